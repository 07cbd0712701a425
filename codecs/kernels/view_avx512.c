/* SPDX-License-Identifier: Apache-2.0 */
/*
 * view_avx512.c - rows of views with 512-bit vectors; compiled with the flags of that level.
 * Re-entrant.
 */
#if defined(__x86_64__)
#include "view_kernels.h"

#include <immintrin.h>

static inline void view_copy_line(uint8_t *target, const uint8_t *source)
{
    _mm512_storeu_si512(target, _mm512_loadu_si512(source));
}

static inline void view_stream_line(uint8_t *target, const uint8_t *source)
{
    _mm512_stream_si512((void *)target, _mm512_loadu_si512(source));
}

#include "view_body.h"

const view_kernels view_kernels_avx512 = {body_scatter, body_gather};
#endif
