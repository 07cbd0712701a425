/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy.h - memcpy for runs of KV.
 *
 * The C library copies runs of 2 KiB and more by `rep movsb`, which AMD's Zen 3 and Zen 4 carry out
 * at 3 GB/s in place of 37 where the target lies 1 to 63 bytes ahead of the source, of addresses
 * within pages. The data of malloc lies 16 bytes behind the begin of a page, and that of a mapping
 * at it.
 *
 * Re-entrant.
 */
#ifndef BASE_COPY_H
#define BASE_COPY_H

#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#define BASE_COPY_PIECE 1024u      /* the C library copies it by vectors */
#define BASE_COPY_LONG  (1u << 20) /* more of the cache than a copy is worth */
#define BASE_COPY_LINE  64u

/* As memcpy. */
static inline void base_copy(void *target, const void *source, size_t bytes)
{
#if defined(__x86_64__)
    const uintptr_t ahead = ((uintptr_t)target - (uintptr_t)source) % 4096;
    for (; ahead - 1 < 63 && bytes > BASE_COPY_PIECE; bytes -= BASE_COPY_PIECE) {
        memcpy(target, source, BASE_COPY_PIECE);
        target = (uint8_t *)target + BASE_COPY_PIECE;
        source = (const uint8_t *)source + BASE_COPY_PIECE;
    }
#endif
    memcpy(target, source, bytes);
}

/* The same for a reader of the target that comes later: a long run is written past the caches. */
static inline void base_copy_past(void *target, const void *source, size_t bytes)
{
    uint8_t *to = target;
    const uint8_t *from = source;
#if defined(__x86_64__)
    if (bytes >= BASE_COPY_LONG) {
        const size_t head = -(uintptr_t)to % BASE_COPY_LINE;
        memcpy(to, from, head);
        to += head, from += head, bytes -= head;
        for (; bytes >= BASE_COPY_LINE; bytes -= BASE_COPY_LINE) {
            for (size_t i = 0; i < BASE_COPY_LINE; i += sizeof(__m128i))
                _mm_stream_si128((__m128i *)(void *)(to + i),
                                 _mm_loadu_si128((const __m128i *)(const void *)(from + i)));
            to += BASE_COPY_LINE, from += BASE_COPY_LINE;
        }
        _mm_sfence(); /* whoever is told of the copy's end sees all of it */
    }
#endif
    base_copy(to, from, bytes);
}

#endif
