/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check.cu - XXH3 with 64 bits of segments, and their padding.
 *
 * XXH3's long form has eight sums of 64 bits. A block of 1,024 bytes is 16 stripes of 64; each
 * stripe adds to every sum, and after a block the sums are scrambled, which nothing can run ahead
 * of. But what a block adds does not depend on the sums. So a warp takes four blocks at once:
 *
 *     lane   0 .. 7    8 .. 15   16 .. 23  24 .. 31
 *     block  4n        4n + 1    4n + 2    4n + 3       each lane one of the eight sums
 *
 * reads 4 KiB in 16 loads of 8 bytes that do not wait for each other, and only then goes over the
 * four blocks in turn: add, scramble, add, scramble. Of the chain a KiB costs one multiplication.
 */
#include "kernel_words.h"

enum {
    CHECK_STRIPE = 64,
    CHECK_STRIPES = 16, /* of a block */
    CHECK_BLOCK = 1024,
    CHECK_SUMS = 8,
    CHECK_GROUPS = KERNEL_WARP / CHECK_SUMS, /* blocks at once */
    CHECK_MIDDLE = 240                       /* messages up to here have other forms */
};

#define CHECK_PRIME32_1 0x9e3779b1ull
#define CHECK_PRIME64_1 0x9e3779b185ebca87ull

/* The default secret as words. */
KERNEL_TABLE uint64_t check_secret[24] = {
    0xbe4ba423396cfeb8ull, 0x1cad21f72c81017cull, 0xdb979083e96dd4deull, 0x1f67b3b7a4a44072ull,
    0x78e5c0cc4ee679cbull, 0x2172ffcc7dd05a82ull, 0x8e2443f7744608b8ull, 0x4c263a81e69035e0ull,
    0xcb00c391bb52283cull, 0xa32e531b8b65d088ull, 0x4ef90da297486471ull, 0xd8acdea946ef1938ull,
    0x3f349ce33f76faa8ull, 0x1d4f0bc7c7bbdcf9ull, 0x3159b4cd4be0518aull, 0x647378d9c97e9fc8ull,
    0xc3ebd33483acc5eaull, 0xeb6313faffa081c5ull, 0x49daf0b751dd0d17ull, 0x9e68d429265516d3ull,
    0xfca1477d58be162bull, 0xce31d07ad1b8f88full, 0x280416958f3acb45ull, 0x7e404bbbcafbd7afull,
};

KERNEL_TABLE uint64_t check_start[CHECK_SUMS] = {
    0xc2b2ae3dull,         0x9e3779b185ebca87ull, 0xc2b2ae3d27d4eb4full, 0x165667b19e3779f9ull,
    0x85ebca77c2b2ae63ull, 0x85ebca77ull,         0x27d4eb2f165667c5ull, 0x9e3779b1ull,
};

/* The secret from any of its bytes on. */
KERNEL_INLINE uint64_t check_secret_at(uint32_t byte)
{
    const uint32_t shift = 8 * (byte % 8);
    const uint64_t word = check_secret[byte / 8];
    return shift == 0 ? word : word >> shift | check_secret[byte / 8 + 1] << (64 - shift);
}

KERNEL_INLINE uint64_t check_fold(uint64_t a, uint64_t b)
{
    return (a * b) ^ kernel_multiply_high(a, b);
}

KERNEL_INLINE uint64_t check_avalanche(uint64_t hash)
{
    hash ^= hash >> 37;
    hash *= 0x165667919e3779f9ull;
    return hash ^ hash >> 32;
}

/* Adds a word of a stripe to what its sum gets, and to what its neighbour gets. */
KERNEL_INLINE void check_add(uint64_t data, uint64_t secret, uint64_t *own, uint64_t *other)
{
    const uint64_t key = data ^ secret;
    *own += (uint64_t)(uint32_t)key * (key >> 32);
    *other += data;
}

/* ---- messages of 64, 128 and 192 bytes: every lane for itself ---- */

KERNEL_INLINE uint64_t check_mix(uint64_t address, uint32_t secret)
{
    return check_fold(kernel_load8(address) ^ check_secret_at(secret),
                      kernel_load8(address + 8) ^ check_secret_at(secret + 8));
}

KERNEL_INLINE uint64_t check_short(uint64_t address, uint32_t bytes)
{
    uint64_t hash = bytes * CHECK_PRIME64_1;
    if (bytes <= 128) {
        /* Pairs from both ends; of 64 bytes two, of 128 four. */
        for (uint32_t i = bytes / 32; i-- > 0;) {
            hash += check_mix(address + 16 * i, 32 * i);
            hash += check_mix(address + bytes - 16 * (i + 1), 32 * i + 16);
        }
        return check_avalanche(hash);
    }
    for (uint32_t i = 0; i < 8; i++)
        hash += check_mix(address + 16 * i, 16 * i);
    hash = check_avalanche(hash);
    for (uint32_t i = 8; i < bytes / 16; i++)
        hash += check_mix(address + 16 * i, 16 * (i - 8) + 3);
    return check_avalanche(hash + check_mix(address + bytes - 16, 136 - 17));
}

/* ---- longer ones: by the warp ---- */

/* The hash, in lane 0. bytes is more than CHECK_MIDDLE. */
KERNEL_INLINE uint64_t check_long(uint64_t address, uint64_t bytes)
{
    const uint32_t lane = kernel_lane(), mine = lane % CHECK_SUMS, group = lane / CHECK_SUMS;
    const uint64_t blocks = (bytes - 1) / CHECK_BLOCK;
    uint64_t secret[CHECK_STRIPES];
    KERNEL_UNROLL
    for (uint32_t i = 0; i < CHECK_STRIPES; i++)
        secret[i] = check_secret[i + mine];
    const uint64_t scramble = check_secret[CHECK_STRIPES + mine];
    uint64_t sum = check_start[mine];
    for (uint64_t block = 0; block < blocks; block += CHECK_GROUPS) {
        const uint64_t from = address + (block + group) * CHECK_BLOCK + 8 * mine;
        uint64_t own = 0, other = 0;
        if (block + group < blocks) {
            uint64_t data[CHECK_STRIPES];
            KERNEL_UNROLL
            for (uint32_t i = 0; i < CHECK_STRIPES; i++)
                data[i] = kernel_load8(from + i * CHECK_STRIPE);
            KERNEL_UNROLL
            for (uint32_t i = 0; i < CHECK_STRIPES; i++)
                check_add(data[i], secret[i], &own, &other);
        }
        own += kernel_shuffle8(other, lane ^ 1);
        KERNEL_UNROLL
        for (uint32_t i = 0; i < CHECK_GROUPS; i++) {
            const uint64_t part = kernel_shuffle8(own, CHECK_SUMS * i + mine);
            if (block + i < blocks) {
                sum += part;
                sum = (sum ^ sum >> 47 ^ scramble) * CHECK_PRIME32_1;
            }
        }
    }
    /* The stripes behind the last whole block, and the last 64 bytes with a secret of their own. */
    const uint64_t rest = address + blocks * CHECK_BLOCK + 8 * mine;
    const uint32_t stripes = (uint32_t)((bytes - 1 - blocks * CHECK_BLOCK) / CHECK_STRIPE);
    uint64_t own = 0, other = 0;
    for (uint32_t i = group; i < stripes; i += CHECK_GROUPS)
        check_add(kernel_load8(rest + i * CHECK_STRIPE), check_secret[i + mine], &own, &other);
    if (group == 0)
        check_add(kernel_load8(address + bytes - CHECK_STRIPE + 8 * mine),
                  check_secret_at(121 + 8 * mine), &own, &other);
    own += kernel_shuffle8(other, lane ^ 1);
    own += kernel_shuffle8(own, lane ^ 8);
    own += kernel_shuffle8(own, lane ^ 16);
    sum += own;
    /* Pairs of sums, in the even lanes. */
    const uint64_t next = kernel_shuffle8(sum, lane ^ 1);
    uint64_t pair = check_fold(sum ^ check_secret_at(11 + 8 * mine),
                               next ^ check_secret_at(11 + 8 * (mine | 1)));
    pair += kernel_shuffle8(pair, lane ^ 2);
    pair += kernel_shuffle8(pair, lane ^ 4);
    return check_avalanche(bytes * CHECK_PRIME64_1 + pair);
}

/* Whether this lane's share of the padding has a byte that is not zero. */
KERNEL_INLINE uint32_t check_padding(const kernel_check_job *job)
{
    uint64_t found = 0;
    const uint64_t first = job->stored_bytes / 8 * 8;
    for (uint64_t at = first + 8 * kernel_lane(); at < job->padded_bytes; at += 8 * KERNEL_WARP) {
        uint64_t word = kernel_load8(job->address + at);
        if (at < job->stored_bytes) word >>= 8 * (job->stored_bytes - at);
        found |= word;
    }
    return found != 0;
}

KERNEL_ENTRY(2) kvt_check(uint64_t jobs, uint32_t job_count, uint64_t verdicts)
{
    const uint32_t index = kernel_block() * KERNEL_CHECK_BLOCK + kernel_warp();
    if (index >= job_count) return;
    kernel_check_job job;
    KERNEL_TAKE(&job, jobs + (uint64_t)index * sizeof job);
    const uint64_t hash = job.padded_bytes <= CHECK_MIDDLE
                              ? check_short(job.address, (uint32_t)job.padded_bytes)
                              : check_long(job.address, job.padded_bytes);
    const uint32_t padding = kernel_ballot(check_padding(&job));
    if (kernel_lane() != 0) return;
    kernel_say(verdicts, &job.head,
               hash != job.checksum ? KERNEL_CHECKSUM
               : padding != 0       ? KERNEL_PADDING
                                    : KERNEL_SOUND);
}
