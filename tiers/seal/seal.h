/* SPDX-License-Identifier: Apache-2.0 */
/*
 * seal.h - AES-256-GCM over units and keys derived by HKDF, by libcrypto, which is found at run
 * time when a configuration asks for it (docs/ENCRYPTION.md).
 *
 * Thread rule: any thread; a cipher belongs to one thread at a time.
 */
#ifndef TIERS_SEAL_H
#define TIERS_SEAL_H

#include <kvterrace/status.h>
#include <kvterrace/types.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SEAL_KEY_BYTES   32u
#define SEAL_NONCE_BYTES 12u
#define SEAL_TAG_BYTES   16u

#define SEAL_KEYS_MAX 16u

/* A key, expanded for both directions. */
typedef struct seal_cipher seal_cipher;

/* Whether there is a libcrypto here. Loads it with the first call, and never unloads it. */
bool seal_available(void);

/* KVT_OK; KVT_E_MEMORY, also when libcrypto fails. There is a libcrypto. */
KVT_NODISCARD kvt_status seal_cipher_new(const uint8_t key[SEAL_KEY_BYTES],
                                         seal_cipher **cipher_out);
void seal_cipher_free(seal_cipher *cipher);

/* Encrypts bytes of `plain` into `sealed`, which may be the same memory, and gives their tag. A
 * nonce is used once under a key. KVT_OK; KVT_E_MEMORY: libcrypto failed, `sealed` is of no use. */
KVT_NODISCARD kvt_status seal_encrypt(seal_cipher *cipher, const uint8_t nonce[SEAL_NONCE_BYTES],
                                      const void *plain, void *sealed, size_t bytes,
                                      uint8_t tag_out[SEAL_TAG_BYTES]);

/* Decrypts in place. KVT_OK; KVT_E_CORRUPT: the tag is of other bytes, another nonce or another
 * key; KVT_E_MEMORY: libcrypto failed. But for KVT_OK the bytes are wiped. */
KVT_NODISCARD kvt_status seal_decrypt(seal_cipher *cipher, const uint8_t nonce[SEAL_NONCE_BYTES],
                                      void *data, size_t bytes, const uint8_t tag[SEAL_TAG_BYTES]);

/* HKDF-SHA-256 (RFC 5869), 32 bytes of output. Neither salt nor info is larger than 64 bytes.
 * KVT_OK; KVT_E_MEMORY: libcrypto failed. */
KVT_NODISCARD kvt_status seal_derive(const void *secret, size_t secret_bytes, const void *salt,
                                     size_t salt_bytes, const void *info, size_t info_bytes,
                                     uint8_t key_out[SEAL_KEY_BYTES]);

/* The master keys of a device, the current one first. */
typedef struct seal_keys {
    uint32_t count;
    uint8_t keys[SEAL_KEYS_MAX][SEAL_KEY_BYTES];
} seal_keys;

/* Reads keys from a file, or else from what a command of the shell writes. NULL: read; else why
 * not, a static text, which the message has behind the name of file or command and the line. The
 * caller wipes *out. */
KVT_NODISCARD const char *seal_keys_read(const char *file, const char *command, seal_keys *out,
                                         char *message, size_t message_size);

#endif
