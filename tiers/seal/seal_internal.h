/* SPDX-License-Identifier: Apache-2.0 */
/*
 * seal_internal.h - the calls of libcrypto, for seal.c and for tests that let one fail.
 *
 * Thread rule: the table is written once, before its first use.
 */
#ifndef TIERS_SEAL_INTERNAL_H
#define TIERS_SEAL_INTERNAL_H

#include <openssl/evp.h>
#include <openssl/hmac.h>

#define SEAL_CALLS(CALL)                                                                           \
    CALL(EVP_CIPHER_CTX_new)                                                                       \
    CALL(EVP_CIPHER_CTX_free)                                                                      \
    CALL(EVP_CIPHER_CTX_ctrl)                                                                      \
    CALL(EVP_aes_256_gcm)                                                                          \
    CALL(EVP_CipherInit_ex)                                                                        \
    CALL(EVP_CipherUpdate)                                                                         \
    CALL(EVP_CipherFinal_ex)                                                                       \
    CALL(EVP_sha256)                                                                               \
    CALL(HMAC)

#define SEAL_POINTER(name) __typeof__(&name) call_##name;
typedef struct seal_calls {
    bool found;
    SEAL_CALLS(SEAL_POINTER)
} seal_calls;

extern seal_calls seal_library;

#endif
