/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kivi.c - codec 3: KIVI as published, bit for bit. K in groups of tokens per channel, V in groups
 * of channels per token inside a head; codes of 2, 4 or 8 bits; the residual window stays raw.
 *
 * Parts: metadata (all minima, then all scales, fp16), data (one plane of codes). The arithmetic
 * and the packing are in kivi_group.h, the holes of the published code in docs/codecs/kivi.md.
 * Re-entrant.
 */
#include "codecs/kernels/kivi_group.h"

typedef struct kivi_rate {
    uint32_t bits[2];
    uint32_t group;
    uint32_t window;
} kivi_rate;

static kivi_rate kivi_rate_of(kvt_variant variant)
{
    kivi_rate rate = {{codecs_rate_field(variant, 0, 4), codecs_rate_field(variant, 4, 4)},
                      1u << codecs_rate_field(variant, 8, 4),
                      32 * codecs_rate_field(variant, 12, 8)};
    return rate;
}

static bool kivi_bits_exist(uint32_t bits)
{
    return bits == 2 || bits == 4 || bits == 8;
}

static kvt_status kivi_check(kvt_variant variant, const kvt_layout *layout)
{
    const kivi_rate rate = kivi_rate_of(variant);
    if (variant.mode != KVT_KIVI_FLOAT && variant.mode != KVT_KIVI_HALF) return KVT_E_UNSUPPORTED;
    if (variant.rate >> 20 != 0) return KVT_E_UNSUPPORTED;
    if (!kivi_bits_exist(rate.bits[0]) || !kivi_bits_exist(rate.bits[1])) return KVT_E_UNSUPPORTED;
    if (rate.group != 32 && rate.group != 64 && rate.group != 128) return KVT_E_UNSUPPORTED;
    /* The published window holds whole groups. */
    if (rate.window % rate.group != 0) return KVT_E_UNSUPPORTED;
    return group_layout_fits(layout) ? KVT_OK : KVT_E_UNSUPPORTED;
}

/* Prefill of the published code: K keeps the last T mod R tokens, V the last min(T, R). */
static uint32_t kivi_recent(kvt_variant variant, kvt_side side, uint32_t tokens)
{
    const uint32_t window = kivi_rate_of(variant).window;
    if (window == 0) return 0;
    if (side == KVT_SIDE_K) return tokens % window;
    return tokens < window ? tokens : window;
}

static group_shape kivi_shape(kvt_variant variant, const kvt_matrix *matrix)
{
    const uint64_t width = (uint64_t)matrix->kv_heads * matrix->head_dim;
    const uint32_t group = kivi_rate_of(variant).group;
    const bool columns = matrix->side == KVT_SIDE_K;
    group_shape shape = {.tokens = matrix->tokens,
                         .width = width,
                         .unit = matrix->head_dim,
                         .group = columns ? group : group_in_unit(matrix->head_dim, group),
                         .dtype = matrix->dtype,
                         .columns = columns};
    return shape;
}

static uint32_t kivi_parts(kvt_variant variant, const kvt_matrix *matrix,
                           kvt_part parts[KVT_PARTS_MAX])
{
    const group_shape shape = kivi_shape(variant, matrix);
    const uint32_t bits = kivi_rate_of(variant).bits[matrix->side];
    parts[0] = (kvt_part){.kind = KVT_PART_METADATA, .bytes = 4 * group_count(&shape)};
    parts[1] = (kvt_part){.kind = KVT_PART_DATA, .bytes = group_plane_bytes(&shape, bits)};
    return 2;
}

static uint64_t kivi_scratch(kvt_variant variant, const kvt_matrix *matrix)
{
    const group_shape shape = kivi_shape(variant, matrix);
    return group_scratch(&shape);
}

/* Whether the parts of a matrix are smaller than its elements. */
static bool kivi_shrinks(const group_shape *shape, uint32_t bits)
{
    const uint64_t raw = shape->tokens * shape->width * kvt_dtype_bytes(shape->dtype);
    return 4 * group_count(shape) + group_plane_bytes(shape, bits) < raw;
}

static kvt_status kivi_encode(kvt_variant variant, const kvt_matrix *matrix, const void *source,
                              kvt_part *parts, void *scratch, uint64_t scratch_bytes)
{
    const group_shape shape = kivi_shape(variant, matrix);
    const uint32_t bits = kivi_rate_of(variant).bits[matrix->side];
    const group_coding coding = {.max_code = (float)((1u << bits) - 1u)};
    const uint64_t groups = group_count(&shape);
    if (scratch_bytes < group_scratch(&shape)) return KVT_E_ARGUMENT;
    if (!kivi_shrinks(&shape, bits)) return KVT_RAW;
    if (parts == NULL) {
        return group_encode(&shape, &coding, source, NULL, NULL, NULL, 0, NULL, scratch);
    }
    uint16_t *minima = (uint16_t *)(void *)parts[0].data;
    const group_plane plane = {(uint8_t)bits, 0, parts[1].data};
    return group_encode(&shape, &coding, source, minima, minima + groups, &plane, 1, NULL, scratch);
}

static kvt_status kivi_decode(kvt_variant variant, const kvt_matrix *matrix, const kvt_part *parts,
                              const view_rows *target, void *scratch, uint64_t scratch_bytes)
{
    const group_shape shape = kivi_shape(variant, matrix);
    const uint32_t bits = kivi_rate_of(variant).bits[matrix->side];
    group_levels levels = {.kind = bits == 8 ? GROUP_LEVEL_CODE256 : GROUP_LEVEL_CODE16,
                           .half_steps = variant.mode == KVT_KIVI_HALF};
    if (scratch_bytes < group_scratch(&shape)) return KVT_E_ARGUMENT;
    for (uint32_t i = 0; i < 16; i++) {
        levels.table[i] = (float)i;
    }
    const uint16_t *minima = (const uint16_t *)(const void *)parts[0].data;
    const group_plane plane = {(uint8_t)bits, 0, parts[1].data};
    return group_decode(&shape, &levels, minima, minima + group_count(&shape), &plane, 1, target,
                        scratch);
}

static kvt_status kivi_plan_job(kvt_variant variant, const kvt_matrix *matrix,
                                const kvt_part *parts, const kernel_target *target,
                                uint32_t transfer_bytes, uint8_t dtype, kernel_work *work)
{
    const group_shape shape = kivi_shape(variant, matrix);
    const kvt_status status = group_plan_job(&shape, (uint64_t)(uintptr_t)parts[0].data, parts, 1,
                                             target, transfer_bytes, dtype, work);
    work->kernel = KERNEL_KIVI;
    work->job.group.bits = (uint8_t)kivi_rate_of(variant).bits[matrix->side];
    work->job.group.half_steps = variant.mode == KVT_KIVI_HALF;
    return status;
}

static kvt_status kivi_plan_code(kvt_variant variant, const kvt_matrix *matrix,
                                 const kvt_part *parts, const kernel_target *source,
                                 uint32_t transfer_bytes, uint8_t dtype, uint64_t histogram,
                                 kernel_work works[2])
{
    const group_shape shape = kivi_shape(variant, matrix);
    const uint32_t bits = kivi_rate_of(variant).bits[matrix->side];
    (void)histogram;
    if (!kivi_shrinks(&shape, bits)) return KVT_E_UNSUPPORTED;
    const kvt_status status = group_plan_code(&shape, bits, (uint64_t)(uintptr_t)parts[0].data,
                                              parts, 1, source, transfer_bytes, dtype, works);
    works[1].kernel = KERNEL_CODE_KIVI;
    return status;
}

const kvt_codec codecs_kivi = {
    .id = KVT_CODEC_KIVI,
    .flags = KVT_CODEC_FLAG_NEEDS_SHAPE | KVT_CODEC_FLAG_PARTS | KVT_CODEC_FLAG_FIXED,
    .name = "kivi",
    .check = kivi_check,
    .matrix_planes = codecs_one_plane,
    .first_side = codecs_k_first,
    .matrix_recent = kivi_recent,
    .matrix_parts = kivi_parts,
    .matrix_scratch = kivi_scratch,
    .encode_matrix = kivi_encode,
    .decode_matrix = kivi_decode,
    .plan_job = kivi_plan_job,
    .plan_code = kivi_plan_code,
};
