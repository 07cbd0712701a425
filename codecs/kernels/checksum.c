/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checksum.c - see checksum.h: the choice of kernels, and the library itself. Re-entrant.
 */
#include "checksum.h"

#define XXH_STATIC_LINKING_ONLY /* a state on the stack */
#include <xxhash.h>

static uint64_t scalar_of(const void *bytes, uint64_t count)
{
    return XXH3_64bits(bytes, count);
}

static uint64_t scalar_copy(void *target, const void *source, uint64_t count, const void *after,
                            uint64_t after_count, bool stream, const checksum_next *next)
{
    XXH3_state_t state;
    (void)stream;
    (void)next;
    memcpy(target, source, count);
    XXH3_64bits_reset(&state);
    XXH3_64bits_update(&state, source, count);
    XXH3_64bits_update(&state, after, after_count);
    return XXH3_64bits_digest(&state);
}

static uint64_t scalar_walk(const void *source, uint64_t count, uint64_t after_count,
                            checksum_take take, const void *context)
{
    const uint8_t *from = source;
    for (uint64_t at = 0; at < count; at += CHECKSUM_PIECE) {
        take(context, at, count - at < CHECKSUM_PIECE ? count - at : CHECKSUM_PIECE, from + at);
    }
    return XXH3_64bits(source, count + after_count);
}

const checksum_kernels checksum_kernels_scalar = {scalar_of, scalar_copy, scalar_walk};

static const checksum_kernels *checksum_kernels_in_use(void)
{
#if defined(__x86_64__)
    switch (codecs_cpu_level()) {
    case CODECS_CPU_AVX512: return &checksum_kernels_avx512;
    case CODECS_CPU_AVX2: return &checksum_kernels_avx2;
    default: break;
    }
#endif
    return &checksum_kernels_scalar;
}

uint64_t checksum_of(const void *bytes, uint64_t count)
{
    return checksum_kernels_in_use()->of(bytes, count);
}

uint64_t checksum_copy(void *target, const void *source, uint64_t count, const void *after,
                       uint64_t after_count, bool stream, const checksum_next *next)
{
    return checksum_kernels_in_use()->copy(target, source, count, after, after_count, stream, next);
}

uint64_t checksum_walk(const void *source, uint64_t count, uint64_t after_count, checksum_take take,
                       const void *context)
{
    return checksum_kernels_in_use()->walk(source, count, after_count, take, context);
}
