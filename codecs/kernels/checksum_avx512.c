/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checksum_avx512.c - checksums with 512-bit vectors; compiled with the flags of that level.
 * Re-entrant.
 */
#if defined(__x86_64__)
#include "checksum.h"

#include <immintrin.h>

enum { CHECKSUM_LINE = 64 };

static inline void checksum_line(uint8_t *target, const uint8_t *source)
{
    _mm512_storeu_si512((void *)target, _mm512_loadu_si512(source));
}

static inline void checksum_stream_line(uint8_t *target, const uint8_t *source)
{
    _mm512_stream_si512((void *)target, _mm512_loadu_si512(source));
}

static inline void checksum_fence(void)
{
    _mm_sfence();
}

#include "checksum_body.h"

const checksum_kernels checksum_kernels_avx512 = {body_of, body_copy, body_walk};
#endif
