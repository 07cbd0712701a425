/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checksum_body.h - XXH3 and the copy beside it for one level of vectors, compiled once per level
 * by a file that the build gives the level's flags and that defines
 *
 *   CHECKSUM_LINE                        bytes of a vector
 *   checksum_line(target, source)        one vector, copied
 *   checksum_stream_line(target, source) one vector, written past the caches
 *   checksum_fence()                     after the last of them
 *
 * xxhash.h compiled into the file takes the widest vectors that the flags allow, and is static. The
 * copy drives the header's own steps, because its streaming interface would carry every block
 * through a buffer: a stripe is hashed from the lines that were loaded for the copy. The unit test
 * compares every length with the library.
 *
 * Re-entrant.
 */
#define XXH_INLINE_ALL
#include <xxhash.h>

/* XXH3's long form: stripes of 64 bytes, each with the next 8 bytes of the secret; after as many
 * as the secret allows, the sums are scrambled. The last stripe ends with the last byte. */
enum {
    CHECKSUM_STRIPE = XXH_STRIPE_LEN,
    CHECKSUM_STRIPES = (XXH_SECRET_DEFAULT_SIZE - XXH_STRIPE_LEN) / XXH_SECRET_CONSUME_RATE,
    CHECKSUM_BLOCK = CHECKSUM_STRIPE * CHECKSUM_STRIPES,
    CHECKSUM_AHEAD = 2 * CHECKSUM_BLOCK, /* target lines are asked for so long before */
    CHECKSUM_SOURCE_AHEAD = 4096,        /* and source lines of a streamed copy */
    CHECKSUM_AFTER_MAX = 4096            /* bytes behind a copy that are hashed on the stack */
};

_Static_assert(CHECKSUM_BLOCK > XXH3_MIDSIZE_MAX, "whatever fills a block has the long form");

typedef struct body_sums {
    XXH_ALIGN(XXH_ACC_ALIGN) xxh_u64 of[XXH_ACC_NB];
} body_sums;

static uint64_t body_of(const void *bytes, uint64_t count)
{
    return XXH3_64bits(bytes, count);
}

/* Adds so many stripes from the block's first on. */
static inline void body_add(body_sums *sums, const uint8_t *from, uint64_t stripes)
{
    for (uint64_t i = 0; i < stripes; i++)
        XXH3_accumulate_512(sums->of, from + i * CHECKSUM_STRIPE,
                            XXH3_kSecret + i * XXH_SECRET_CONSUME_RATE);
}

static inline void body_scramble(body_sums *sums)
{
    XXH3_scrambleAcc(sums->of, XXH3_kSecret + XXH_SECRET_DEFAULT_SIZE - CHECKSUM_STRIPE);
}

/* Adds the last `count` bytes of a message of `total` bytes, at least one; a stripe lies before
 * them. Returns the checksum. */
static uint64_t body_end(body_sums *sums, const uint8_t *from, uint64_t count, uint64_t total)
{
    for (; count > CHECKSUM_BLOCK; count -= CHECKSUM_BLOCK) {
        body_add(sums, from, CHECKSUM_STRIPES);
        body_scramble(sums);
        from += CHECKSUM_BLOCK;
    }
    body_add(sums, from, (count - 1) / CHECKSUM_STRIPE);
    XXH3_accumulate_512(sums->of, from + count - CHECKSUM_STRIPE,
                        XXH3_kSecret + XXH_SECRET_DEFAULT_SIZE - CHECKSUM_STRIPE -
                            XXH_SECRET_LASTACC_START);
    return XXH3_mergeAccs(sums->of, XXH3_kSecret + XXH_SECRET_MERGEACCS_START,
                          total * XXH_PRIME64_1);
}

/* Asks for lines of the source, because the processor's own prefetch ends with the page, and for
 * one line of what comes next each time when BODY_NEXT_EVERY bytes have been copied. */
static inline void body_ask_ahead(const uint8_t *source, uint64_t at, uint64_t bytes,
                                  const checksum_next *next)
{
    enum { BODY_NEXT_EVERY = 512 };
    if (at + CHECKSUM_SOURCE_AHEAD < bytes) __builtin_prefetch(source + at + CHECKSUM_SOURCE_AHEAD);
    const uint64_t line = at / BODY_NEXT_EVERY * CHECKSUM_STRIPE;
    if (next == NULL || at % BODY_NEXT_EVERY != 0 || line >= CHECKSUM_NEXT_BYTES) return;
    __builtin_prefetch(next->runs[0] + line);
    __builtin_prefetch(next->runs[1] + line);
}

/* Copies whole blocks and adds as many bytes from `hashed` on, which lies in the same lines. */
static inline void body_copy_blocks(uint8_t *target, const uint8_t *source, const uint8_t *hashed,
                                    uint64_t bytes, bool stream, const checksum_next *next,
                                    body_sums *sums)
{
    for (uint64_t block = 0; block < bytes; block += CHECKSUM_BLOCK) {
        /* A line that is written whole needs no read: it is only claimed, before it is due. */
        for (uint64_t i = 0; !stream && i < CHECKSUM_BLOCK && block + CHECKSUM_AHEAD < bytes;
             i += CHECKSUM_STRIPE)
            __builtin_prefetch(target + block + CHECKSUM_AHEAD + i, 1);
        for (uint64_t i = 0; i < CHECKSUM_STRIPES; i++) {
            const uint64_t at = block + i * CHECKSUM_STRIPE;
            if (stream) body_ask_ahead(source, at, bytes, next);
            for (uint64_t line = at; line < at + CHECKSUM_STRIPE; line += CHECKSUM_LINE) {
                if (stream)
                    checksum_stream_line(target + line, source + line);
                else
                    checksum_line(target + line, source + line);
            }
            XXH3_accumulate_512(sums->of, hashed + at, XXH3_kSecret + i * XXH_SECRET_CONSUME_RATE);
        }
        body_scramble(sums);
    }
    if (stream) checksum_fence();
}

/* A copy with the streaming interface, for what the fast one does not take. */
static uint64_t body_copy_any(uint8_t *target, const uint8_t *source, uint64_t count,
                              const uint8_t *after, uint64_t after_count)
{
    XXH3_state_t state;
    memcpy(target, source, count);
    if (after_count == 0) return XXH3_64bits(source, count);
    XXH3_64bits_reset(&state);
    XXH3_64bits_update(&state, source, count);
    XXH3_64bits_update(&state, after, after_count);
    return XXH3_64bits_digest(&state);
}

static uint64_t body_walk(const void *source, uint64_t count, uint64_t after_count,
                          checksum_take take, const void *context)
{
    const uint8_t *from = source;
    XXH3_state_t state;
    XXH3_64bits_reset(&state);
    for (uint64_t at = 0; at < count; at += CHECKSUM_PIECE) {
        const uint64_t bytes = count - at < CHECKSUM_PIECE ? count - at : CHECKSUM_PIECE;
        XXH3_64bits_update(&state, from + at, bytes);
        take(context, at, bytes, from + at);
    }
    XXH3_64bits_update(&state, from + count, after_count);
    return XXH3_64bits_digest(&state);
}

static uint64_t body_copy(void *target, const void *source, uint64_t count, const void *after,
                          uint64_t after_count, bool stream, const checksum_next *next)
{
    const uint8_t *from = source;
    uint8_t *to = target;
    const uint64_t total = count + after_count;
    /* Streamed lines are whole ones of the target. */
    const uint64_t head = stream ? (0 - (uintptr_t)to) % CHECKSUM_LINE : 0;
    if (count < head + CHECKSUM_BLOCK || total == CHECKSUM_BLOCK ||
        after_count > CHECKSUM_AFTER_MAX)
        return body_copy_any(to, from, count, after, after_count);
    /* At least one byte is left for the end. */
    uint64_t blocks = (count - head) / CHECKSUM_BLOCK;
    if (blocks > (total - 1) / CHECKSUM_BLOCK) blocks = (total - 1) / CHECKSUM_BLOCK;
    const uint64_t done = blocks * CHECKSUM_BLOCK, left = count - done;
    body_sums sums = {XXH3_INIT_ACC};
    memcpy(to, from, head);
    if (stream)
        body_copy_blocks(to + head, from + head, from, done, true, next, &sums);
    else
        body_copy_blocks(to, from, from, done, false, NULL, &sums);
    memcpy(to + head + done, from + head + done, left - head);
    if (after_count == 0 || after == from + count)
        return body_end(&sums, from + done, total - done, total);
    uint8_t end[CHECKSUM_STRIPE + 2 * CHECKSUM_BLOCK + CHECKSUM_AFTER_MAX];
    memcpy(end, from + done - CHECKSUM_STRIPE, CHECKSUM_STRIPE + left);
    memcpy(end + CHECKSUM_STRIPE + left, after, after_count);
    return body_end(&sums, end + CHECKSUM_STRIPE, total - done, total);
}
