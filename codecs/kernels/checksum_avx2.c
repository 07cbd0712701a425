/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checksum_avx2.c - checksums with 256-bit vectors; compiled with the flags of that level.
 * Re-entrant.
 */
#if defined(__x86_64__)
#include "checksum.h"

#include <immintrin.h>

enum { CHECKSUM_LINE = 32 };

static inline void checksum_line(uint8_t *target, const uint8_t *source)
{
    const __m256i line = _mm256_loadu_si256((const __m256i *)(const void *)source);
    _mm256_storeu_si256((__m256i *)(void *)target, line);
}

static inline void checksum_stream_line(uint8_t *target, const uint8_t *source)
{
    const __m256i line = _mm256_loadu_si256((const __m256i *)(const void *)source);
    _mm256_stream_si256((__m256i *)(void *)target, line);
}

static inline void checksum_fence(void)
{
    _mm_sfence();
}

#include "checksum_body.h"

const checksum_kernels checksum_kernels_avx2 = {body_of, body_copy, body_walk};
#endif
