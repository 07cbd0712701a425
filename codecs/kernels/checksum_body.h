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
 * xxhash.h compiled into the file takes the widest vectors that the flags allow, and is static.
 * Re-entrant.
 */
#define XXH_INLINE_ALL
#include <xxhash.h>

/* Bytes that are copied and then, out of the first cache, taken into the checksum: so few that the
 * loads of the next block are under way meanwhile. */
enum { CHECKSUM_BLOCK = 1024 };

static uint64_t body_of(const void *bytes, uint64_t count)
{
    return XXH3_64bits(bytes, count);
}

static void body_copy_blocks(uint8_t *target, const uint8_t *source, uint64_t bytes,
                             XXH3_state_t *state)
{
    for (uint64_t at = 0; at < bytes; at += CHECKSUM_BLOCK) {
        for (uint64_t i = at; i < at + CHECKSUM_BLOCK; i += CHECKSUM_LINE)
            checksum_line(target + i, source + i);
        XXH3_64bits_update(state, source + at, CHECKSUM_BLOCK);
    }
}

/* The same, past the caches; the target is aligned to a line. */
static void body_stream_blocks(uint8_t *target, const uint8_t *source, uint64_t bytes,
                               XXH3_state_t *state)
{
    for (uint64_t at = 0; at < bytes; at += CHECKSUM_BLOCK) {
        for (uint64_t i = at; i < at + CHECKSUM_BLOCK; i += CHECKSUM_LINE)
            checksum_stream_line(target + i, source + i);
        XXH3_64bits_update(state, source + at, CHECKSUM_BLOCK);
    }
    checksum_fence();
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
                          uint64_t after_count)
{
    const uint8_t *from = source;
    uint8_t *to = target;
    XXH3_state_t state;
    XXH3_64bits_reset(&state);
    const bool streams = count >= CHECKSUM_STREAM_BYTES;
    /* Streamed lines are whole ones of the target. */
    const uint64_t head = streams ? (0 - (uintptr_t)to) % CHECKSUM_LINE : 0;
    const uint64_t blocks = (count - head) / CHECKSUM_BLOCK * CHECKSUM_BLOCK;
    const uint64_t tail = count - head - blocks;
    memcpy(to, from, head);
    XXH3_64bits_update(&state, from, head);
    if (streams)
        body_stream_blocks(to + head, from + head, blocks, &state);
    else
        body_copy_blocks(to + head, from + head, blocks, &state);
    memcpy(to + head + blocks, from + head + blocks, tail);
    XXH3_64bits_update(&state, from + head + blocks, tail);
    XXH3_64bits_update(&state, after, after_count);
    return XXH3_64bits_digest(&state);
}
