/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kivi_group_scalar.c - the scalar kernels of kivi_group.h: the specification, and what the vector
 * kernels use for shapes that do not fill a vector. Re-entrant.
 */
#include "kivi_group_scalar.h"

#include "base/half.h"

static float scalar_load(uint8_t dtype, const void *source, uint64_t index)
{
    uint16_t half;
    float value;
    if (dtype == KVT_DTYPE_FP32) {
        memcpy(&value, (const uint8_t *)source + index * sizeof value, sizeof value);
        return value;
    }
    memcpy(&half, (const uint8_t *)source + index * sizeof half, sizeof half);
    return dtype == KVT_DTYPE_FP16 ? half_to_float(half) : half_bf16_to_float(half);
}

static void scalar_store(uint8_t dtype, void *target, uint64_t index, float value)
{
    uint16_t half;
    if (dtype == KVT_DTYPE_FP32) {
        memcpy((uint8_t *)target + index * sizeof value, &value, sizeof value);
        return;
    }
    half = dtype == KVT_DTYPE_FP16 ? half_from_float(value) : half_bf16_from_float(value);
    memcpy((uint8_t *)target + index * sizeof half, &half, sizeof half);
}

/* An fp32 as an integer of the same order; -0 lies below +0, NaN and infinities at the ends. */
static int32_t scalar_order(float value)
{
    uint32_t bits = half_float_bits(value);
    uint32_t flip = (uint32_t)((int32_t)bits >> 31) & 0x7fffffffu;
    return (int32_t)(bits ^ flip);
}

static float scalar_unorder(int32_t order)
{
    uint32_t flip = (uint32_t)(order >> 31) & 0x7fffffffu;
    return half_bits_float((uint32_t)order ^ flip);
}

/* Extends a range by `count` elements that lie `stride` apart; false when one is not finite. */
static bool scalar_range(uint8_t dtype, const void *source, uint64_t first, uint64_t stride,
                         uint64_t count, float *low_out, float *high_out)
{
    int32_t low = INT32_MAX;
    int32_t high = INT32_MIN;
    for (uint64_t i = 0; i < count; i++) {
        int32_t order = scalar_order(scalar_load(dtype, source, first + i * stride));
        if (order < low) low = order;
        if (order > high) high = order;
    }
    *low_out = scalar_unorder(low);
    *high_out = scalar_unorder(high);
    /* The orders of -infinity and +infinity: what lies beyond them is NaN. */
    return high < 0x7f800000 && low > (int32_t)0x807fffff;
}

bool group_scalar_range_columns(const group_shape *shape, const void *source, uint64_t rows,
                                float *low, float *high)
{
    bool finite = true;
    for (uint64_t c = 0; c < shape->width; c++) {
        finite &= scalar_range(shape->dtype, source, c, shape->width, rows, &low[c], &high[c]);
    }
    return finite;
}

bool group_scalar_range_rows(const group_shape *shape, const void *source, uint64_t rows,
                             float *low, float *high)
{
    bool finite = true;
    const uint64_t end = rows * shape->width;
    for (uint64_t unit = 0; unit < end; unit += shape->unit) {
        for (uint64_t i = 0; i < shape->unit; i += shape->group) {
            uint64_t left = shape->unit - i;
            uint64_t count = left < shape->group ? left : shape->group;
            finite &= scalar_range(shape->dtype, source, unit + i, 1, count, low++, high++);
        }
    }
    return finite;
}

bool group_scalar_finish(const group_ranges *ranges, uint64_t count, float max_code,
                         uint16_t *minima, uint16_t *scales)
{
    bool fits = true;
    for (uint64_t i = 0; i < count; i++) {
        /* Adding zero makes a -0 a +0. */
        float minimum = half_round(ranges->minimum[i] + 0.0f);
        float range = half_round(ranges->scale[i] - minimum);
        /* The minimum may round up past a constant group (bf16, fp32); -0 less +0 is -0. */
        if (range <= 0.0f) range = 0.0f;
        float scale = half_round(range / max_code);
        minimum = minimum + 0.0f;
        fits &= minimum >= -65504.0f && minimum <= 65504.0f && range <= 65504.0f;
        minima[i] = half_from_float(minimum);
        scales[i] = half_from_float(scale);
        ranges->minimum[i] = minimum;
        ranges->inverse[i] = scale > 0.0f ? 1.0f / scale : 0.0f;
        ranges->scale[i] = ranges->inverse[i] * 128.0f;
    }
    return fits;
}

static uint8_t scalar_code(const group_coding *coding, float x, float minimum, float inverse,
                           float inverse_part)
{
    float distance = x - minimum;
    /* Multiplying by the rounded inverse and rounding to fp16 gives the same as dividing: a
     * quotient of two 11-bit numbers is never close enough to the middle of two fp16 numbers. */
    float ratio = half_round(half_round(distance) * inverse);
    if (ratio > coding->max_code) ratio = coding->max_code;
    if (!(ratio > 0.0f)) ratio = 0.0f;
    int32_t code = half_round_integer(ratio);
    if (!coding->fine) return (uint8_t)code;
    float part = distance * inverse_part;
    if (part > 2048.0f) part = 2048.0f; /* an integer in every instruction set */
    if (!(part > 0.0f)) part = 0.0f;
    return group_fine_code((int32_t)part, code);
}

/* The group of element i of a batch. */
static uint64_t scalar_group_of(const group_shape *shape, uint64_t i)
{
    if (shape->columns) return i % shape->width;
    uint64_t per_unit = (shape->unit + shape->group - 1) / shape->group;
    return i / shape->unit * per_unit + i % shape->unit / shape->group;
}

void group_scalar_code(const group_shape *shape, const group_coding *coding,
                       const group_ranges *ranges, const void *source, uint64_t rows,
                       uint8_t *codes)
{
    for (uint64_t i = 0; i < rows * shape->width; i++) {
        uint64_t g = scalar_group_of(shape, i);
        codes[i] = scalar_code(coding, scalar_load(shape->dtype, source, i), ranges->minimum[g],
                               ranges->inverse[g], ranges->scale[g]);
    }
}

/* Where element i of a chunk of n lies in a plane of w bits. */
static void scalar_place(uint64_t i, uint64_t n, uint32_t w, uint64_t *byte_out, uint32_t *bit_out)
{
    const uint64_t bytes = n * w / 8;
    *byte_out = w == 1 ? i / 8 : i % bytes;
    *bit_out = w == 1 ? (uint32_t)(i % 8) : w * (uint32_t)(i / bytes);
}

static void scalar_pack_plane(const uint8_t *codes, uint64_t count, const group_plane *plane,
                              uint8_t *target)
{
    const uint32_t w = plane->bits;
    const unsigned mask = (1u << w) - 1u;
    for (uint64_t chunk = 0; chunk < count; chunk += GROUP_CHUNK) {
        uint64_t n = count - chunk < GROUP_CHUNK ? count - chunk : GROUP_CHUNK;
        uint8_t *bytes = target + chunk / 8 * w;
        memset(bytes, 0, n * w / 8);
        for (uint64_t i = 0; i < n; i++) {
            uint64_t byte;
            uint32_t bit;
            scalar_place(i, n, w, &byte, &bit);
            bytes[byte] |= (uint8_t)(((codes[chunk + i] >> plane->shift) & mask) << bit);
        }
    }
}

void group_scalar_pack(const uint8_t *codes, uint64_t count, const group_plane *planes,
                       uint32_t plane_count, uint64_t offset)
{
    for (uint32_t p = 0; p < plane_count; p++) {
        scalar_pack_plane(codes, count, &planes[p], planes[p].data + offset / 8 * planes[p].bits);
    }
}

static void scalar_unpack_plane(const group_plane *plane, const uint8_t *source, uint64_t count,
                                uint8_t *codes)
{
    const uint32_t w = plane->bits;
    const unsigned mask = (1u << w) - 1u;
    for (uint64_t chunk = 0; chunk < count; chunk += GROUP_CHUNK) {
        uint64_t n = count - chunk < GROUP_CHUNK ? count - chunk : GROUP_CHUNK;
        const uint8_t *bytes = source + chunk / 8 * w;
        for (uint64_t i = 0; i < n; i++) {
            uint64_t byte;
            uint32_t bit;
            scalar_place(i, n, w, &byte, &bit);
            codes[chunk + i] |= (uint8_t)(((unsigned)bytes[byte] >> bit & mask) << plane->shift);
        }
    }
}

void group_scalar_unpack(const group_plane *planes, uint32_t plane_count, uint64_t offset,
                         uint64_t count, uint8_t *codes)
{
    memset(codes, 0, count);
    for (uint32_t p = 0; p < plane_count; p++) {
        scalar_unpack_plane(&planes[p], planes[p].data + offset / 8 * planes[p].bits, count, codes);
    }
}

bool group_scalar_open(const uint16_t *minima, const uint16_t *scales, uint64_t count,
                       const group_ranges *ranges)
{
    uint32_t bad = 0;
    for (uint64_t i = 0; i < count; i++) {
        bad |= (uint32_t)((minima[i] & 0x7fffu) >= 0x7c00u) | (uint32_t)(scales[i] >= 0x7c00u);
        ranges->minimum[i] = half_to_float(minima[i]);
        ranges->scale[i] = half_to_float(scales[i]);
    }
    return bad == 0;
}

static float scalar_level(const group_levels *levels, uint8_t code)
{
    switch (levels->kind) {
    case GROUP_LEVEL_TABLE: return levels->table[code & 15];
    case GROUP_LEVEL_FINE6: return (float)group_fine6_level(code & 63) * (1.0f / 64.0f);
    case GROUP_LEVEL_FINE8: return (float)group_fine_level(code) * (1.0f / 64.0f);
    default: return (float)code;
    }
}

static void scalar_close(void)
{
}

void group_scalar_value(const group_shape *shape, const group_levels *levels,
                        const group_ranges *ranges, const uint8_t *codes, uint64_t rows,
                        void *target)
{
    for (uint64_t i = 0; i < rows * shape->width; i++) {
        uint64_t g = scalar_group_of(shape, i);
        /* Exact in fp32: a scale has 11 bits, a level at most 11. */
        float product = ranges->scale[g] * scalar_level(levels, codes[i]);
        if (levels->half_steps) product = half_round(product);
        float value = product + ranges->minimum[g];
        if (levels->half_steps) value = half_round(value);
        scalar_store(shape->dtype, target, i, value);
    }
}

const group_kernels group_kernels_scalar = {
    .range_columns = group_scalar_range_columns,
    .range_rows = group_scalar_range_rows,
    .finish = group_scalar_finish,
    .code = group_scalar_code,
    .pack = group_scalar_pack,
    .unpack = group_scalar_unpack,
    .open = group_scalar_open,
    .value = group_scalar_value,
    .close = scalar_close,
};
