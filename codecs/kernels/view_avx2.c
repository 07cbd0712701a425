/* SPDX-License-Identifier: Apache-2.0 */
/*
 * view_avx2.c - rows of views with 256-bit vectors; compiled with the flags of that level.
 * Re-entrant.
 */
#if defined(__x86_64__)
#include "view_kernels.h"

#include <immintrin.h>

static inline void view_copy_line(uint8_t *target, const uint8_t *source)
{
    for (uint32_t i = 0; i < VIEW_LINE; i += 32) {
        const __m256i half = _mm256_loadu_si256((const __m256i *)(const void *)(source + i));
        _mm256_storeu_si256((__m256i *)(void *)(target + i), half);
    }
}

static inline void view_stream_line(uint8_t *target, const uint8_t *source)
{
    for (uint32_t i = 0; i < VIEW_LINE; i += 32) {
        const __m256i half = _mm256_loadu_si256((const __m256i *)(const void *)(source + i));
        _mm256_stream_si256((__m256i *)(void *)(target + i), half);
    }
}

#include "view_body.h"

const view_kernels view_kernels_avx2 = {body_scatter, body_gather};
#endif
