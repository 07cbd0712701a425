/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blake2b.h - the cryptographic hash BLAKE2b (RFC 7693), for names that nobody can forge. Unkeyed,
 * without salt and personalization: what programs of other languages compute by default.
 *
 * XXH3 stays the checksum of bytes: it is faster, and promises nothing against an adversary.
 *
 * Thread rule: one thread at a time per object.
 */
#ifndef BASE_BLAKE2B_H
#define BASE_BLAKE2B_H

#include <stddef.h>
#include <stdint.h>

#define BLAKE2B_BLOCK_BYTES 128u

typedef struct blake2b {
    uint64_t state[8];
    uint64_t taken; /* bytes compressed or in the block */
    size_t held;    /* bytes in the block, which is compressed when more follow */
    size_t digest_bytes;
    uint8_t block[BLAKE2B_BLOCK_BYTES];
} blake2b;

/* Begins a digest of 1 to 64 bytes, which is a parameter of the hash: a shorter digest is not the
 * beginning of a longer one. */
void blake2b_begin(blake2b *hash, size_t digest_bytes);

/* Takes bytes in; data may be NULL when there are none. */
void blake2b_add(blake2b *hash, const void *data, size_t bytes);

/* Writes the digest. The object is begun anew before its next use. */
void blake2b_end(blake2b *hash, uint8_t *digest);

#endif
