/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transform_codec.c - codec 8 behind the table: one part for the matrices of a span, coded by
 * transform.h with the basis that the record found. Re-entrant.
 */
#include "codecs.h"
#include "transform.h"

#include <assert.h>

static uint16_t transform_step_of(kvt_variant variant)
{
    return (uint16_t)codecs_rate_field(variant, 0, CODECS_BASIS_SHIFT);
}

static kvt_status transform_check(kvt_variant variant, const kvt_layout *layout)
{
    const uint64_t row = (uint64_t)layout->kv_heads * layout->head_dim;
    if (variant.mode != TRANSFORM_MODE || transform_step_of(variant) == 0) return KVT_E_UNSUPPORTED;
    if (variant.rate >> (CODECS_BASIS_SHIFT + CODECS_BASIS_BITS) != 0) return KVT_E_UNSUPPORTED;
    if (layout->dtype == KVT_DTYPE_OPAQUE) return KVT_E_UNSUPPORTED;
    return layout->layers <= TRANSFORM_LAYERS_MAX && row <= TRANSFORM_WIDTH_MAX ? KVT_OK
                                                                                : KVT_E_UNSUPPORTED;
}

static uint32_t transform_parts(kvt_variant variant, const kvt_matrix *matrix,
                                kvt_part parts[KVT_PARTS_MAX])
{
    (void)variant;
    /* Bytes of the elements that one part stands for: the most that it takes. */
    const uint64_t bytes = (uint64_t)matrix->tokens * matrix->kv_heads * matrix->head_dim *
                           kvt_dtype_bytes(matrix->dtype) * matrix->span;
    parts[0] = (kvt_part){.kind = KVT_PART_DATA, .bytes = bytes};
    return 1;
}

/* Scratch follows from layout and span alone, so that it is known where no basis is. */
static uint64_t transform_scratch(kvt_variant variant, const kvt_matrix *matrix)
{
    const bool known = matrix->basis_span != 0;
    const uint8_t first = known ? (uint8_t)matrix->basis_span : TRANSFORM_SPAN_HEAD;
    const uint8_t last = known ? first : TRANSFORM_SPAN_LAYERS4;
    uint64_t most = 0;
    (void)variant;
    for (uint8_t span = first; span <= last; span++) {
        const transform_shape shape = {.layers = matrix->layers,
                                       .kv_heads = matrix->kv_heads,
                                       .head_dim = matrix->head_dim,
                                       .rotary_dim = matrix->head_dim & ~1u,
                                       .sides = (uint8_t)matrix->sides,
                                       .span = span};
        if (transform_width(&shape) > TRANSFORM_WIDTH_MAX) continue;
        const uint64_t bytes = transform_scratch_bytes(&shape);
        if (bytes > most) most = bytes;
    }
    return most;
}

static transform_segment transform_segment_of(kvt_variant variant, const kvt_matrix *matrix)
{
    assert(matrix->basis != NULL);
    return (transform_segment){.basis = matrix->basis,
                               .index = matrix->index,
                               .first_position = matrix->first_position,
                               .tokens = matrix->tokens,
                               .step = transform_step_of(variant),
                               .dtype = matrix->dtype};
}

static kvt_status transform_encode_span(kvt_variant variant, const kvt_matrix *matrix,
                                        const void *const *sources, kvt_part *part, void *scratch,
                                        uint64_t scratch_bytes)
{
    const transform_segment segment = transform_segment_of(variant, matrix);
    uint64_t written = 0;
    if (scratch_bytes < transform_scratch_bytes(&matrix->basis->shape)) return KVT_E_ARGUMENT;
    kvt_status status =
        transform_encode(&segment, sources, part->data, part->bytes, scratch, &written);
    part->bytes = written;
    return status;
}

static kvt_status transform_decode_span(kvt_variant variant, const kvt_matrix *matrix,
                                        const kvt_part *part, const view_rows *const *targets,
                                        void *scratch, uint64_t scratch_bytes)
{
    const transform_segment segment = transform_segment_of(variant, matrix);
    if (scratch_bytes < transform_scratch_bytes(&matrix->basis->shape)) return KVT_E_ARGUMENT;
    return transform_decode(&segment, part->data, part->bytes, 0, matrix->tokens, targets, scratch);
}

/* The same basis, at the same step or three times it. */
static bool transform_derives_to(kvt_variant present, kvt_variant coarser)
{
    const uint32_t from = transform_step_of(present);
    const uint32_t to = transform_step_of(coarser);
    return present.mode == coarser.mode &&
           present.rate >> CODECS_BASIS_SHIFT == coarser.rate >> CODECS_BASIS_SHIFT &&
           (to == from || to == 3 * from);
}

static kvt_status transform_derive_matrix(kvt_variant present, kvt_variant coarser,
                                          const kvt_matrix *matrix, const kvt_part *parts,
                                          kvt_part *coarser_parts, void *scratch,
                                          uint64_t scratch_bytes)
{
    const transform_segment segment = transform_segment_of(present, matrix);
    const uint64_t room = coarser_parts[0].bytes;
    if (scratch_bytes < transform_scratch_bytes(&matrix->basis->shape)) return KVT_E_ARGUMENT;
    if (transform_step_of(coarser) == segment.step) {
        coarser_parts[0].bytes = parts[0].bytes;
        if (parts[0].bytes > room) return KVT_E_SPACE;
        memcpy(coarser_parts[0].data, parts[0].data, parts[0].bytes);
        return KVT_OK;
    }
    return transform_derive_step3(&segment, parts[0].data, parts[0].bytes, coarser_parts[0].data,
                                  room, scratch, &coarser_parts[0].bytes);
}

const kvt_codec codecs_transform = {
    .id = KVT_CODEC_TRANSFORM,
    .flags = KVT_CODEC_FLAG_NEEDS_SHAPE | KVT_CODEC_FLAG_PARTS | KVT_CODEC_FLAG_SPANS,
    .name = "transform",
    .check = transform_check,
    .matrix_planes = codecs_one_plane,
    .first_side = codecs_k_first,
    .matrix_recent = codecs_none_recent,
    .matrix_parts = transform_parts,
    .matrix_scratch = transform_scratch,
    .encode_span = transform_encode_span,
    .decode_span = transform_decode_span,
    .derives_to = transform_derives_to,
    .derive_matrix = transform_derive_matrix,
};
