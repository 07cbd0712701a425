/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rotate_codec.c - codec 7 behind the table: settings out of the variant, one part per matrix.
 * Re-entrant.
 */
#include "codecs.h"
#include "rotate.h"

static rotate_settings rotate_settings_of(kvt_variant variant)
{
    rotate_settings settings = {.bits = (uint8_t)codecs_rate_field(variant, 0, 4),
                                .span = variant.rate & CODECS_ROTATE_ROW ? ROTATE_SPAN_ROW
                                                                         : ROTATE_SPAN_HEAD};
    return settings;
}

static kvt_status rotate_variant_check(kvt_variant variant, const kvt_layout *layout)
{
    const rotate_shape shape = {layout->tokens, layout->kv_heads, layout->head_dim, layout->dtype};
    if (variant.mode != 1 || variant.rate >> 5 != 0) return KVT_E_UNSUPPORTED;
    return rotate_check(&shape, rotate_settings_of(variant));
}

static rotate_shape rotate_shape_of(const kvt_matrix *matrix)
{
    rotate_shape shape = {matrix->tokens, matrix->kv_heads, matrix->head_dim, matrix->dtype};
    return shape;
}

static uint32_t rotate_parts(kvt_variant variant, const kvt_matrix *matrix,
                             kvt_part parts[KVT_PARTS_MAX])
{
    const rotate_shape shape = rotate_shape_of(matrix);
    (void)variant;
    parts[0] = (kvt_part){.kind = KVT_PART_DATA, .bytes = rotate_source_bytes(&shape)};
    return 1;
}

static uint64_t rotate_scratch(kvt_variant variant, const kvt_matrix *matrix)
{
    (void)variant;
    (void)matrix;
    return 0;
}

static kvt_status rotate_encode_matrix(kvt_variant variant, const kvt_matrix *matrix,
                                       const void *source, kvt_part *parts, void *scratch,
                                       uint64_t scratch_bytes)
{
    const rotate_shape shape = rotate_shape_of(matrix);
    uint64_t written = 0;
    (void)scratch;
    (void)scratch_bytes;
    kvt_status status = rotate_encode(&shape, rotate_settings_of(variant), source, parts[0].data,
                                      parts[0].bytes, &written);
    parts[0].bytes = written;
    return status;
}

static kvt_status rotate_decode_matrix(kvt_variant variant, const kvt_matrix *matrix,
                                       const kvt_part *parts, const view_rows *target,
                                       void *scratch, uint64_t scratch_bytes)
{
    const rotate_shape shape = rotate_shape_of(matrix);
    (void)scratch;
    (void)scratch_bytes;
    return rotate_decode(&shape, rotate_settings_of(variant), parts[0].data, parts[0].bytes,
                         target);
}

const kvt_codec codecs_rotate = {
    .struct_size = sizeof(kvt_codec),
    .abi_version = KVT_CODEC_ABI,
    .id = KVT_CODEC_ROTATE,
    .flags = KVT_CODEC_FLAG_NEEDS_SHAPE | KVT_CODEC_FLAG_PARTS,
    .name = "rotate",
    .check = rotate_variant_check,
    .matrix_planes = codecs_one_plane,
    .first_side = codecs_k_first,
    .matrix_recent = codecs_none_recent,
    .matrix_parts = rotate_parts,
    .matrix_scratch = rotate_scratch,
    .encode_matrix = rotate_encode_matrix,
    .decode_matrix = rotate_decode_matrix,
};
