/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_memory_copy.c - non-temporal copies with SSE2, AVX2 and AVX-512, chosen at run time.
 *
 * Such stores are ordered by nothing but the fence at the end, so that the thread that is notified
 * of the copy's end sees all of it.
 */
#include "device_memory_copy.h"

#if defined(__x86_64__)

#include <immintrin.h>

/* The three copies differ in the width of their registers alone. Which one runs never changes a
 * byte. */
enum { COPY_KINDS = 3 };

/* 64 bytes a turn: four loads, then four stores, so that a full cache line leaves at once. Both
 * addresses and the length are multiples of 64. */
static void copy_sse2(void *target, const void *source, size_t bytes)
{
    __m128i *to = target;
    const __m128i *from = source;
    for (size_t i = 0; i < bytes / 16; i += 4) {
        __m128i a = _mm_load_si128(from + i);
        __m128i b = _mm_load_si128(from + i + 1);
        __m128i c = _mm_load_si128(from + i + 2);
        __m128i d = _mm_load_si128(from + i + 3);
        _mm_stream_si128(to + i, a);
        _mm_stream_si128(to + i + 1, b);
        _mm_stream_si128(to + i + 2, c);
        _mm_stream_si128(to + i + 3, d);
    }
    _mm_sfence();
}

__attribute__((target("avx2"))) static void copy_avx2(void *target, const void *source,
                                                      size_t bytes)
{
    __m256i *to = target;
    const __m256i *from = source;
    for (size_t i = 0; i < bytes / 32; i += 2) {
        __m256i a = _mm256_load_si256(from + i);
        __m256i b = _mm256_load_si256(from + i + 1);
        _mm256_stream_si256(to + i, a);
        _mm256_stream_si256(to + i + 1, b);
    }
    _mm_sfence();
}

__attribute__((target("avx512f"))) static void copy_avx512(void *target, const void *source,
                                                           size_t bytes)
{
    __m512i *to = target;
    const __m512i *from = source;
    for (size_t i = 0; i < bytes / 64; i++)
        _mm512_stream_si512(to + i, _mm512_load_si512(from + i));
    _mm_sfence();
}

memory_stream_copy *memory_stream_at(size_t index)
{
    switch (index) {
    case 0: return copy_sse2;
    case 1: return __builtin_cpu_supports("avx2") ? copy_avx2 : NULL;
    case 2: return __builtin_cpu_supports("avx512f") ? copy_avx512 : NULL;
    default: return NULL;
    }
}

/* The widest one is taken: all are bound by memory, and fewer instructions leave more to other
 * threads. */
memory_stream_copy *memory_stream_choose(void)
{
    memory_stream_copy *best = NULL;
    for (size_t i = 0; i < COPY_KINDS; i++) {
        if (memory_stream_at(i) != NULL) best = memory_stream_at(i);
    }
    return best;
}

#else

memory_stream_copy *memory_stream_at(size_t index)
{
    (void)index;
    return NULL;
}

memory_stream_copy *memory_stream_choose(void)
{
    return NULL;
}

#endif
