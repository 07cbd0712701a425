/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kivi_group_scalar.h - the scalar kernels by name, for vector kernels that leave some shapes and
 * the ends of others to them, and what all vector kernels ask of a shape. Re-entrant.
 */
#ifndef CODECS_KIVI_GROUP_SCALAR_H
#define CODECS_KIVI_GROUP_SCALAR_H

#include "kivi_group.h"

bool group_scalar_range_columns(const group_shape *shape, const void *source, uint64_t rows,
                                float *low, float *high);
bool group_scalar_range_rows(const group_shape *shape, const void *source, uint64_t rows,
                             float *low, float *high);
bool group_scalar_finish(const group_ranges *ranges, uint64_t count, float max_code,
                         uint16_t *minima, uint16_t *scales);
void group_scalar_code(const group_shape *shape, const group_coding *coding,
                       const group_ranges *ranges, const void *source, uint64_t rows,
                       uint8_t *codes);
void group_scalar_pack(const uint8_t *codes, uint64_t count, const group_plane *planes,
                       uint32_t plane_count, uint64_t offset);
void group_scalar_unpack(const group_plane *planes, uint32_t plane_count, uint64_t offset,
                         uint64_t count, uint8_t *codes);
bool group_scalar_open(const uint16_t *minima, const uint16_t *scales, uint64_t count,
                       const group_ranges *ranges);
void group_scalar_value(const group_shape *shape, const group_levels *levels,
                        const group_ranges *ranges, const uint8_t *codes, uint64_t rows,
                        void *target);

/* Whether groups along rows are runs of the matrix that start at multiples of G. */
static inline bool group_is_flat(const group_shape *shape)
{
    return !shape->columns && shape->unit % shape->group == 0;
}

/* Whether 64 elements at a time fill rows. */
static inline bool group_fills(const group_shape *shape)
{
    return shape->width % 64 == 0 && (shape->columns || group_is_flat(shape));
}

/* One body for every dtype, so that the compiler sees constants. */
#define GROUP_EACH_DTYPE(call, shape)                                                              \
    switch ((shape)->dtype) {                                                                      \
    case KVT_DTYPE_FP16: call(KVT_DTYPE_FP16); break;                                              \
    case KVT_DTYPE_BF16: call(KVT_DTYPE_BF16); break;                                              \
    default: call(KVT_DTYPE_FP32); break;                                                          \
    }

#if defined(__x86_64__)
/* Decoding with AVX-512: group_kernels.decode. */
bool group_avx512_decode(const group_shape *shape, const group_levels *levels,
                         const group_ranges *ranges, const group_plane *planes,
                         uint32_t plane_count, uint64_t offset, uint64_t rows,
                         const group_target *target);
#endif

#endif
