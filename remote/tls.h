/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tls.h - TLS of a connection by OpenSSL, which is loaded when the first client asks for it
 * (decision 0030). The server's certificate and name are always verified.
 *
 * Thread rule: a context and its sessions belong to one thread; contexts of several threads are
 * independent.
 */
#ifndef REMOTE_TLS_H
#define REMOTE_TLS_H

#include "remote/client.h"

#include <sys/types.h>

typedef struct remote_tls remote_tls;
typedef struct ssl_st remote_tls_session;

/* KVT_OK; KVT_E_UNSUPPORTED (no OpenSSL here); KVT_E_CORRUPT (a file); KVT_E_MEMORY. The message
 * names the file. The configuration and its texts last until the close: files that change are read
 * again before a handshake. */
KVT_NODISCARD kvt_status remote_tls_open(const remote_config *config, remote_tls **tls_out,
                                         char *message, size_t message_size);
void remote_tls_close(remote_tls *tls);

/* A session over a connected socket; NULL without memory. host: the name or address that the
 * certificate has to be for. */
remote_tls_session *remote_tls_begin(remote_tls *tls, int socket, const char *host);
void remote_tls_end(remote_tls *tls, remote_tls_session *session);

/* Goes on with the handshake. KVT_OK; KVT_QUEUED (*writes: once the socket takes bytes, else once
 * it has some); KVT_E_GONE, with *why_out a static text. */
kvt_status remote_tls_shake(remote_tls *tls, remote_tls_session *session, bool *writes,
                            const char **why_out);

/* As read and write of a socket that does not block: -1 with errno EAGAIN, *writes as above; else
 * EPIPE. */
ssize_t remote_tls_read(remote_tls *tls, remote_tls_session *session, void *to, size_t bytes,
                        bool *writes);
ssize_t remote_tls_write(remote_tls *tls, remote_tls_session *session, const void *from,
                         size_t bytes, bool *writes);

#endif
