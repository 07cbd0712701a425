/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tls.c - the calls of OpenSSL that a client needs, found in libssl at run time. The headers give
 * their prototypes.
 *
 * Thread rule: as tls.h says; the library is loaded once and never unloaded.
 */
#include "remote/tls.h"

#include "base/file_mark.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Every call, with the library that has it: libcrypto's names are found through libssl. */
#define TLS_CALLS(CALL)                                                                            \
    CALL(TLS_client_method)                                                                        \
    CALL(SSL_CTX_new)                                                                              \
    CALL(SSL_CTX_free)                                                                             \
    CALL(SSL_CTX_ctrl)                                                                             \
    CALL(SSL_CTX_set_verify)                                                                       \
    CALL(SSL_CTX_set_default_verify_paths)                                                         \
    CALL(SSL_CTX_load_verify_locations)                                                            \
    CALL(SSL_CTX_use_certificate_chain_file)                                                       \
    CALL(SSL_CTX_use_PrivateKey_file)                                                              \
    CALL(SSL_CTX_check_private_key)                                                                \
    CALL(SSL_new)                                                                                  \
    CALL(SSL_free)                                                                                 \
    CALL(SSL_ctrl)                                                                                 \
    CALL(SSL_set_fd)                                                                               \
    CALL(SSL_set1_host)                                                                            \
    CALL(SSL_get0_param)                                                                           \
    CALL(SSL_connect)                                                                              \
    CALL(SSL_read)                                                                                 \
    CALL(SSL_write)                                                                                \
    CALL(SSL_get_error)                                                                            \
    CALL(SSL_get_verify_result)                                                                    \
    CALL(X509_verify_cert_error_string)                                                            \
    CALL(X509_VERIFY_PARAM_set1_ip_asc)                                                            \
    CALL(ERR_clear_error)

#define TLS_POINTER(name) __typeof__(&name) call_##name;
static struct {
    bool found;
    TLS_CALLS(TLS_POINTER)
} tls_library;

static void tls_load(void)
{
    void *library = dlopen("libssl.so.3", RTLD_NOW | RTLD_LOCAL);
    bool found = library != NULL;
#define TLS_FIND(name)                                                                             \
    if (found) *(void **)&tls_library.call_##name = dlsym(library, #name);                         \
    found = found && tls_library.call_##name != NULL;
    TLS_CALLS(TLS_FIND)
    tls_library.found = found;
}

#define TLS(name) tls_library.call_##name

#define TLS_FILES 3

struct remote_tls {
    const remote_config *config; /* the client's, with the files' names */
    SSL_CTX *context;
    base_file_mark marks[TLS_FILES]; /* of the files when the context was made */
    bool refused;                    /* a handshake has failed since */
};

/* Notes how the files are now. */
static void tls_look(const remote_config *config, base_file_mark marks[TLS_FILES])
{
    const char *const files[TLS_FILES] = {config->ca, config->cert, config->cert_key};
    for (int i = 0; i < TLS_FILES; i++)
        (void)base_file_look(files[i], &marks[i]);
}

/* Loads the files that a configuration names. Returns the one at fault, or NULL. */
static const char *tls_load_files(SSL_CTX *context, const remote_config *config)
{
    if (config->ca != NULL && TLS(SSL_CTX_load_verify_locations)(context, config->ca, NULL) != 1)
        return config->ca;
    if (config->ca == NULL && TLS(SSL_CTX_set_default_verify_paths)(context) != 1)
        return "the system's certificates";
    if (config->cert != NULL && TLS(SSL_CTX_use_certificate_chain_file)(context, config->cert) != 1)
        return config->cert;
    if (config->cert_key != NULL &&
        (TLS(SSL_CTX_use_PrivateKey_file)(context, config->cert_key, SSL_FILETYPE_PEM) != 1 ||
         TLS(SSL_CTX_check_private_key)(context) != 1))
        return config->cert_key;
    return NULL;
}

/* Makes a context of the files as they are. NULL without memory, or with the file at fault in
 * *fault_out. */
static SSL_CTX *tls_make_context(const remote_config *config, const char **fault_out)
{
    *fault_out = NULL;
    SSL_CTX *context = TLS(SSL_CTX_new)(TLS(TLS_client_method)());
    if (context == NULL) return NULL;
    TLS(SSL_CTX_ctrl)(context, SSL_CTRL_SET_MIN_PROTO_VERSION, TLS1_2_VERSION, NULL);
    TLS(SSL_CTX_ctrl)
    (context, SSL_CTRL_MODE, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER,
     NULL);
    TLS(SSL_CTX_set_verify)(context, SSL_VERIFY_PEER, NULL);
    *fault_out = tls_load_files(context, config);
    TLS(ERR_clear_error)();
    if (*fault_out == NULL) return context;
    TLS(SSL_CTX_free)(context);
    return NULL;
}

/* Reads the files again when one of them has changed, or a handshake has failed. Files that cannot
 * be used leave the last ones in use: a renewal is often seen half done. Connections keep the
 * context that they began with. */
static void tls_renew(remote_tls *tls)
{
    base_file_mark marks[TLS_FILES];
    const char *fault;
    tls_look(tls->config, marks);
    if (!tls->refused && memcmp(marks, tls->marks, sizeof marks) == 0) return;
    SSL_CTX *context = tls_make_context(tls->config, &fault);
    if (context == NULL) return;
    TLS(SSL_CTX_free)(tls->context);
    tls->context = context;
    memcpy(tls->marks, marks, sizeof marks);
    tls->refused = false;
}

kvt_status remote_tls_open(const remote_config *config, remote_tls **tls_out, char *message,
                           size_t message_size)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, tls_load);
    *tls_out = NULL;
    if (!tls_library.found) {
        snprintf(message, message_size, "tls: there is no libssl.so.3 here");
        return KVT_E_UNSUPPORTED;
    }
    remote_tls *tls = calloc(1, sizeof *tls);
    if (tls == NULL) return KVT_E_MEMORY;
    const char *fault;
    tls->config = config;
    tls_look(config, tls->marks);
    tls->context = tls_make_context(config, &fault);
    if (tls->context == NULL) {
        free(tls);
        if (fault == NULL) return KVT_E_MEMORY;
        snprintf(message, message_size, "tls: %s cannot be used", fault);
        return KVT_E_CORRUPT;
    }
    *tls_out = tls;
    return KVT_OK;
}

void remote_tls_close(remote_tls *tls)
{
    if (tls == NULL) return;
    TLS(SSL_CTX_free)(tls->context);
    free(tls);
}

/* The name that the certificate must have: an address, or a host's name that is also asked for. */
static bool tls_expect(SSL *session, const char *host)
{
    unsigned char address[sizeof(struct in6_addr)];
    if (inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1)
        return TLS(X509_VERIFY_PARAM_set1_ip_asc)(TLS(SSL_get0_param)(session), host) == 1;
    return TLS(SSL_ctrl)(session, SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name,
                         (void *)(uintptr_t)host) == 1 &&
           TLS(SSL_set1_host)(session, host) == 1;
}

remote_tls_session *remote_tls_begin(remote_tls *tls, int socket, const char *host)
{
    tls_renew(tls);
    SSL *session = TLS(SSL_new)(tls->context);
    if (session == NULL) return NULL;
    if (TLS(SSL_set_fd)(session, socket) == 1 && tls_expect(session, host)) return session;
    TLS(SSL_free)(session);
    return NULL;
}

void remote_tls_end(remote_tls *tls, remote_tls_session *session)
{
    (void)tls;
    if (session != NULL) TLS(SSL_free)(session);
}

/* Whether a call that did not end may be made again, and after what. */
static bool tls_again(SSL *session, int result, bool *writes)
{
    const int error = TLS(SSL_get_error)(session, result);
    *writes = error == SSL_ERROR_WANT_WRITE;
    TLS(ERR_clear_error)();
    return error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE;
}

kvt_status remote_tls_shake(remote_tls *tls, remote_tls_session *session, bool *writes,
                            const char **why_out)
{
    const int result = TLS(SSL_connect)(session);
    if (result == 1) return KVT_OK;
    if (tls_again(session, result, writes)) return KVT_QUEUED;
    tls->refused = true;
    const long verified = TLS(SSL_get_verify_result)(session);
    *why_out = verified != X509_V_OK ? TLS(X509_verify_cert_error_string)(verified)
                                     : "the TLS handshake failed";
    return KVT_E_GONE;
}

ssize_t remote_tls_read(remote_tls *tls, remote_tls_session *session, void *to, size_t bytes,
                        bool *writes)
{
    (void)tls;
    const int result = TLS(SSL_read)(session, to, bytes > INT32_MAX ? INT32_MAX : (int)bytes);
    if (result > 0) return result;
    errno = tls_again(session, result, writes) ? EAGAIN : EPIPE;
    return -1;
}

ssize_t remote_tls_write(remote_tls *tls, remote_tls_session *session, const void *from,
                         size_t bytes, bool *writes)
{
    (void)tls;
    const int result = TLS(SSL_write)(session, from, bytes > INT32_MAX ? INT32_MAX : (int)bytes);
    if (result > 0) return result;
    errno = tls_again(session, result, writes) ? EAGAIN : EPIPE;
    return -1;
}
