/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blake2b.c - BLAKE2b as RFC 7693 has it, in the RFC's order and words. The file has no key, no
 * salt and no tree mode.
 */
#include "base/blake2b.h"

#include <assert.h>
#include <string.h>

#define BLAKE2B_ROUNDS 12

static const uint64_t blake2b_iv[8] = {UINT64_C(0x6a09e667f3bcc908), UINT64_C(0xbb67ae8584caa73b),
                                       UINT64_C(0x3c6ef372fe94f82b), UINT64_C(0xa54ff53a5f1d36f1),
                                       UINT64_C(0x510e527fade682d1), UINT64_C(0x9b05688c2b3e6c1f),
                                       UINT64_C(0x1f83d9abfb41bd6b), UINT64_C(0x5be0cd19137e2179)};

/* The order in which a round takes the message's words. Rounds 10 and 11 repeat 0 and 1. */
static const uint8_t blake2b_sigma[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
    {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
    {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
    {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
    {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
    {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};

/* Rotates a word to the right. */
static inline uint64_t blake2b_turn(uint64_t word, int bits)
{
    return word >> bits | word << (64 - bits);
}

/* The mixing function G over four words of v and two of the message. */
static inline void blake2b_mix(uint64_t v[16], int a, int b, int c, int d, uint64_t x, uint64_t y)
{
    v[a] += v[b] + x;
    v[d] = blake2b_turn(v[d] ^ v[a], 32);
    v[c] += v[d];
    v[b] = blake2b_turn(v[b] ^ v[c], 24);
    v[a] += v[b] + y;
    v[d] = blake2b_turn(v[d] ^ v[a], 16);
    v[c] += v[d];
    v[b] = blake2b_turn(v[b] ^ v[c], 63);
}

/* The compression function F: takes the block into the state. The counter of bytes needs one word:
 * no message here has 2^64 of them. */
static void blake2b_compress(blake2b *hash, int is_last)
{
    uint64_t v[16], m[16] = {0}; /* the words of the message are little-endian */
    for (int i = 0; i < 128; i++)
        m[i / 8] = m[i / 8] >> 8 | (uint64_t)hash->block[i] << 56;
    memcpy(v, hash->state, sizeof hash->state);
    memcpy(v + 8, blake2b_iv, sizeof blake2b_iv);
    v[12] ^= hash->taken;
    if (is_last) v[14] = ~v[14];
    for (int i = 0; i < BLAKE2B_ROUNDS; i++) {
        const uint8_t *s = blake2b_sigma[i % 10];
        blake2b_mix(v, 0, 4, 8, 12, m[s[0]], m[s[1]]);
        blake2b_mix(v, 1, 5, 9, 13, m[s[2]], m[s[3]]);
        blake2b_mix(v, 2, 6, 10, 14, m[s[4]], m[s[5]]);
        blake2b_mix(v, 3, 7, 11, 15, m[s[6]], m[s[7]]);
        blake2b_mix(v, 0, 5, 10, 15, m[s[8]], m[s[9]]);
        blake2b_mix(v, 1, 6, 11, 12, m[s[10]], m[s[11]]);
        blake2b_mix(v, 2, 7, 8, 13, m[s[12]], m[s[13]]);
        blake2b_mix(v, 3, 4, 9, 14, m[s[14]], m[s[15]]);
    }
    for (int i = 0; i < 8; i++)
        hash->state[i] ^= v[i] ^ v[i + 8];
}

void blake2b_begin(blake2b *hash, size_t digest_bytes)
{
    assert(digest_bytes >= 1 && digest_bytes <= 64);
    memset(hash, 0, sizeof *hash);
    memcpy(hash->state, blake2b_iv, sizeof blake2b_iv);
    hash->state[0] ^= UINT64_C(0x01010000) ^ digest_bytes;
    hash->digest_bytes = digest_bytes;
}

void blake2b_add(blake2b *hash, const void *data, size_t bytes)
{
    assert(hash->held <= BLAKE2B_BLOCK_BYTES);
    const uint8_t *next = data;
    while (bytes != 0) {
        if (hash->held == BLAKE2B_BLOCK_BYTES) {
            blake2b_compress(hash, 0);
            hash->held = 0;
        }
        size_t step = BLAKE2B_BLOCK_BYTES - hash->held;
        if (step > bytes) step = bytes;
        memcpy(hash->block + hash->held, next, step);
        hash->held += step;
        hash->taken += step;
        next += step;
        bytes -= step;
    }
}

void blake2b_end(blake2b *hash, uint8_t *digest)
{
    assert(hash->digest_bytes != 0);
    memset(hash->block + hash->held, 0, BLAKE2B_BLOCK_BYTES - hash->held);
    blake2b_compress(hash, 1);
    for (size_t i = 0; i < hash->digest_bytes; i++)
        digest[i] = (uint8_t)(hash->state[i / 8] >> (8 * (i % 8)));
}
