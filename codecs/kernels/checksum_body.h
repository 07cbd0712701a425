/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checksum_body.h - XXH3 and the copy beside it for one level of vectors, compiled once per level
 * by a file that the build gives the level's flags and that defines
 *
 *   CHECKSUM_LINE                        bytes of a vector
 *   checksum_stream_line(target, source) one vector, written past the caches
 *   checksum_fence()                     after the last of them
 *
 * xxhash.h compiled into the file takes the widest vectors that the flags allow, and is static.
 * Re-entrant.
 */
#define XXH_INLINE_ALL
#include <xxhash.h>

enum {
    CHECKSUM_PAGE = 4096,
    CHECKSUM_PAGES = 4, /* pages that are copied side by side, for the memory's sake */
    CHECKSUM_BLOCK = 256,
    CHECKSUM_SPAN = CHECKSUM_PAGES * CHECKSUM_PAGE
};

static uint64_t body_of(const void *bytes, uint64_t count)
{
    return XXH3_64bits(bytes, count);
}

/* Copies spans of pages a block of each in turn; between the blocks the span before, which is in
 * the first cache now, goes into the checksum. */
static void body_copy_spans(uint8_t *target, const uint8_t *source, uint64_t bytes,
                            XXH3_state_t *state)
{
    const uint64_t step = CHECKSUM_PAGES * (uint64_t)CHECKSUM_BLOCK;
    for (uint64_t span = 0; span < bytes; span += CHECKSUM_SPAN) {
        for (uint64_t block = 0; block < CHECKSUM_PAGE; block += CHECKSUM_BLOCK) {
            for (uint64_t page = 0; page < CHECKSUM_SPAN; page += CHECKSUM_PAGE) {
                const uint64_t at = span + page + block;
                for (uint64_t i = 0; i < CHECKSUM_BLOCK; i += CHECKSUM_LINE) {
                    checksum_stream_line(target + at + i, source + at + i);
                }
            }
            if (span == 0) continue;
            XXH3_64bits_update(state, source + span - CHECKSUM_SPAN + block * CHECKSUM_PAGES, step);
        }
    }
    XXH3_64bits_update(state, source + bytes - CHECKSUM_SPAN, CHECKSUM_SPAN);
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
    if (count >= CHECKSUM_STREAM_BYTES) {
        /* Streamed lines are whole ones of the target. */
        const uint64_t head = (0 - (uintptr_t)to) % CHECKSUM_LINE;
        const uint64_t spans = (count - head) / CHECKSUM_SPAN * CHECKSUM_SPAN;
        memcpy(to, from, head);
        XXH3_64bits_update(&state, from, head);
        body_copy_spans(to + head, from + head, spans, &state);
        to += head + spans;
        from += head + spans;
        count -= head + spans;
    }
    memcpy(to, from, count);
    XXH3_64bits_update(&state, from, count);
    XXH3_64bits_update(&state, after, after_count);
    return XXH3_64bits_digest(&state);
}
