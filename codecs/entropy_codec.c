/* SPDX-License-Identifier: Apache-2.0 */
/*
 * entropy_codec.c - codec 5 behind the table: settings out of the variant, one part per matrix.
 * K has a deviation per channel, V per token or per channel. Re-entrant.
 */
#include "codecs/kernels/kivi_group.h"
#include "entropy.h"

#include <assert.h>

static entropy_settings entropy_settings_of(kvt_variant variant, uint8_t side)
{
    const bool v = side == KVT_SIDE_V;
    const bool token = v && (variant.rate & CODECS_ENTROPY_V_CHANNEL) == 0;
    entropy_settings settings = {
        .step = (uint16_t)codecs_rate_field(variant, v ? 10 : 0, 10),
        .axis = token ? ENTROPY_AXIS_TOKEN : ENTROPY_AXIS_CHANNEL,
        .centroids = (variant.rate & CODECS_ENTROPY_MIDDLE) == 0,
    };
    return settings;
}

static kvt_status entropy_check(kvt_variant variant, const kvt_layout *layout)
{
    if (variant.mode != 1 || variant.rate >> 22 != 0) return KVT_E_UNSUPPORTED;
    for (uint8_t side = KVT_SIDE_K; side <= KVT_SIDE_V; side++) {
        const uint16_t step = entropy_settings_of(variant, side).step;
        if (step < ENTROPY_STEP_MIN || step > ENTROPY_STEP_MAX) return KVT_E_UNSUPPORTED;
    }
    if ((uint64_t)layout->kv_heads * layout->head_dim > ENTROPY_ROW_MAX) return KVT_E_UNSUPPORTED;
    return group_layout_fits(layout) ? KVT_OK : KVT_E_UNSUPPORTED;
}

static entropy_shape entropy_shape_of(const kvt_matrix *matrix)
{
    entropy_shape shape = {matrix->tokens, (uint32_t)matrix->kv_heads * matrix->head_dim,
                           matrix->dtype};
    return shape;
}

static uint32_t entropy_parts(kvt_variant variant, const kvt_matrix *matrix,
                              kvt_part parts[KVT_PARTS_MAX])
{
    const entropy_shape shape = entropy_shape_of(matrix);
    (void)variant;
    parts[0] = (kvt_part){.kind = KVT_PART_DATA, .bytes = entropy_bound(&shape)};
    return 1;
}

static uint64_t entropy_scratch(kvt_variant variant, const kvt_matrix *matrix)
{
    const entropy_shape shape = entropy_shape_of(matrix);
    (void)variant;
    return entropy_scratch_bytes(&shape);
}

/* The caller's counts for a matrix, or NULL. */
static const uint32_t *entropy_given_counts(const kvt_matrix *matrix)
{
    const kvt_codec_extras *extras = matrix->extras;
    if (extras == NULL || extras->symbol_counts == NULL) return NULL;
    const uint32_t layer = extras->count_layers == 1 ? 0 : matrix->layer;
    return extras->symbol_counts + (2 * (uint64_t)layer + matrix->side) * KVT_ENTROPY_SYMBOLS;
}

static kvt_status entropy_encode_matrix(kvt_variant variant, const kvt_matrix *matrix,
                                        const void *source, kvt_part *parts, void *scratch,
                                        uint64_t scratch_bytes)
{
    const entropy_shape shape = entropy_shape_of(matrix);
    entropy_settings settings = entropy_settings_of(variant, matrix->side);
    rans_table table;
    uint64_t written = 0;
    if (scratch_bytes < entropy_scratch_bytes(&shape)) return KVT_E_ARGUMENT;
    const uint32_t *counts = entropy_given_counts(matrix);
    if (counts != NULL) {
        entropy_make_table(counts, &table);
        settings.table = &table;
    }
    kvt_status status =
        entropy_encode(&settings, &shape, source, parts[0].data, parts[0].bytes, scratch, &written);
    parts[0].bytes = written;
    return status;
}

static kvt_status entropy_decode_matrix(kvt_variant variant, const kvt_matrix *matrix,
                                        const kvt_part *parts, const view_rows *target,
                                        void *scratch, uint64_t scratch_bytes)
{
    const entropy_shape shape = entropy_shape_of(matrix);
    const entropy_settings settings = entropy_settings_of(variant, matrix->side);
    if (scratch_bytes < entropy_scratch_bytes(&shape)) return KVT_E_ARGUMENT;
    if (!entropy_agrees(&settings, parts[0].data, parts[0].bytes)) return KVT_E_CORRUPT;
    return entropy_decode(&shape, parts[0].data, parts[0].bytes, target, scratch);
}

/* The matrix' step in both variants; equal ones or three times as large. */
static bool entropy_side_derives(kvt_variant present, kvt_variant coarser, uint8_t side)
{
    const uint16_t from = entropy_settings_of(present, side).step;
    const uint16_t to = entropy_settings_of(coarser, side).step;
    return to == from || to == 3 * from;
}

static bool entropy_derives_to(kvt_variant present, kvt_variant coarser)
{
    return present.mode == coarser.mode && present.rate >> 20 == coarser.rate >> 20 &&
           entropy_side_derives(present, coarser, KVT_SIDE_K) &&
           entropy_side_derives(present, coarser, KVT_SIDE_V);
}

static kvt_status entropy_derive_matrix(kvt_variant present, kvt_variant coarser,
                                        const kvt_matrix *matrix, const kvt_part *parts,
                                        kvt_part *coarser_parts, void *scratch,
                                        uint64_t scratch_bytes)
{
    const entropy_shape shape = entropy_shape_of(matrix);
    const uint64_t room = coarser_parts[0].bytes;
    const entropy_settings settings = entropy_settings_of(present, matrix->side);
    if (scratch_bytes < entropy_scratch_bytes(&shape)) return KVT_E_ARGUMENT;
    if (!entropy_agrees(&settings, parts[0].data, parts[0].bytes)) return KVT_E_CORRUPT;
    if (settings.step == entropy_settings_of(coarser, matrix->side).step) {
        coarser_parts[0].bytes = parts[0].bytes;
        if (parts[0].bytes > room) return KVT_E_SPACE;
        memcpy(coarser_parts[0].data, parts[0].data, parts[0].bytes);
        return KVT_OK;
    }
    return entropy_derive_step3(&shape, parts[0].data, parts[0].bytes, coarser_parts[0].data, room,
                                scratch, &coarser_parts[0].bytes);
}

kvt_status kvt_entropy_count(kvt_variant variant, const kvt_matrix *matrix, const void *source,
                             void *scratch, uint64_t scratch_bytes,
                             uint32_t counts[KVT_ENTROPY_SYMBOLS])
{
    const entropy_shape shape = entropy_shape_of(matrix);
    const kvt_layout layout = {.layers = 1,
                               .kv_heads = matrix->kv_heads,
                               .head_dim = matrix->head_dim,
                               .dtype = matrix->dtype,
                               .tokens = matrix->tokens};
    uint64_t bytes;
    assert(source != NULL && counts != NULL);
    variant = codecs_variant_core(variant);
    if (variant.codec != KVT_CODEC_ENTROPY) return KVT_E_UNSUPPORTED;
    kvt_status status = kvt_layout_bytes(&layout, &bytes);
    if (status == KVT_OK) status = entropy_check(variant, &layout);
    if (status != KVT_OK) return status;
    if (matrix->side > KVT_SIDE_V) return KVT_E_ARGUMENT;
    if (scratch == NULL || scratch_bytes < entropy_scratch_bytes(&shape)) return KVT_E_ARGUMENT;
    const entropy_settings settings = entropy_settings_of(variant, matrix->side);
    return entropy_count(&settings, &shape, source, scratch, counts);
}

static kvt_status entropy_plan_job(kvt_variant variant, const kvt_matrix *matrix,
                                   const kvt_part *parts, const kernel_target *target,
                                   uint32_t transfer_bytes, uint8_t dtype, kernel_work *work)
{
    const entropy_shape shape = entropy_shape_of(matrix);
    const entropy_settings settings = entropy_settings_of(variant, matrix->side);
    const uint64_t span = entropy_span_tokens(&shape);
    work->kernel = KERNEL_ENTROPY;
    work->blocks = (shape.tokens + span - 1) / span;
    work->job.entropy = (kernel_entropy_job){.source = (uint64_t)(uintptr_t)parts[0].data,
                                             .bytes = parts[0].bytes,
                                             .tokens = shape.tokens,
                                             .width = shape.row,
                                             .span_tokens = (uint32_t)span,
                                             .transfer_bytes = transfer_bytes,
                                             .step = settings.step,
                                             .flags = entropy_flags(&settings),
                                             .dtype = dtype,
                                             .target = *target};
    return KVT_OK;
}

const kvt_codec codecs_entropy = {
    .id = KVT_CODEC_ENTROPY,
    .flags = KVT_CODEC_FLAG_NEEDS_SHAPE | KVT_CODEC_FLAG_PARTS,
    .name = "entropy",
    .check = entropy_check,
    .matrix_planes = codecs_one_plane,
    .first_side = codecs_k_first,
    .matrix_recent = codecs_none_recent,
    .matrix_parts = entropy_parts,
    .matrix_scratch = entropy_scratch,
    .encode_matrix = entropy_encode_matrix,
    .decode_matrix = entropy_decode_matrix,
    .plan_job = entropy_plan_job,
    .derives_to = entropy_derives_to,
    .derive_matrix = entropy_derive_matrix,
};
