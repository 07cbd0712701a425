/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transform_codec.c - codec 8 behind the table: one part for the matrices of a span, coded by
 * transform.h with the basis that the record found. Re-entrant.
 */
#include "codecs.h"
#include "transform.h"
#include "transform_block.h"
#include "transform_image.h"

#include <kvterrace/rope.h>

#include <assert.h>

_Static_assert((int)KERNEL_CODES_TOKENS == (int)TRANSFORM_BLOCK_TOKENS, "a block of codes");

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

/* ---- jobs of a GPU ---- */

/* The room of a segment: see kernel_codes_job. */
typedef struct transform_room_plan {
    uint32_t components;
    uint32_t groups;
    uint32_t pairs; /* that turn */
    uint32_t blocks;
    uint64_t angles_at;
    uint64_t block_bytes;
} transform_room_plan;

static transform_room_plan transform_plan_room(const kvt_matrix *matrix)
{
    const transform_shape *shape = &matrix->basis->shape;
    const uint32_t all = matrix->index * transform_segment_matrices(shape, 0, NULL);
    const uint32_t most =
        matrix->tokens < TRANSFORM_BLOCK_TOKENS ? matrix->tokens : TRANSFORM_BLOCK_TOKENS;
    transform_room_plan room = {
        .components = transform_segment_matrices(shape, matrix->index, NULL) * transform_row(shape),
        .groups = transform_groups(most),
        .pairs = all % shape->sides == KVT_SIDE_K ? shape->rotary_dim / 2 : 0,
        .blocks = (uint32_t)(((uint64_t)matrix->tokens + TRANSFORM_BLOCK_TOKENS - 1) /
                             TRANSFORM_BLOCK_TOKENS),
    };
    const uint64_t lanes = (uint64_t)room.groups * TRANSFORM_ALONG;
    room.angles_at =
        codecs_align(room.components * (lanes + TRANSFORM_BANDS) * sizeof(int16_t), 64);
    room.block_bytes = room.angles_at + codecs_align(lanes * room.pairs * 2 * sizeof(float), 64);
    return room;
}

static uint64_t transform_span_room(const kvt_matrix *matrix)
{
    const transform_room_plan room = transform_plan_room(matrix);
    return room.blocks * room.block_bytes;
}

static kvt_status transform_plan_span(kvt_variant variant, const kvt_matrix *matrix,
                                      const kvt_part *part, const kvt_span_place *place,
                                      uint8_t dtype, kernel_work works[1 + KVT_SPAN_MAX],
                                      uint32_t *count_out)
{
    const transform_basis *basis = matrix->basis;
    const transform_shape *shape = &basis->shape;
    const transform_image image = transform_image_of(shape);
    const transform_room_plan room = transform_plan_room(matrix);
    const bool heads = shape->span == TRANSFORM_SPAN_HEAD;
    const uint32_t row = transform_row(shape), step = transform_step_of(variant);
    const uint64_t first =
        (uint64_t)matrix->index * row * transform_segment_matrices(shape, 0, NULL);
    const uint32_t span = (uint32_t)(first / transform_width(shape));
    const uint32_t chunks = (shape->head_dim + 2 * KERNEL_WARP - 1) / (2 * KERNEL_WARP);
    const uint32_t items =
        (room.groups * chunks + KERNEL_TRANSFORM_ITEMS - 1) / KERNEL_TRANSFORM_ITEMS;
    uint32_t count = 0;
    works[count++] =
        (kernel_work){.kernel = KERNEL_CODES,
                      .blocks = room.blocks,
                      .job.codes = {.source = (uint64_t)(uintptr_t)part->data,
                                    .bytes = part->bytes,
                                    .tables = place->basis,
                                    .spreads = place->basis + image.spreads +
                                               first * TRANSFORM_BANDS * sizeof *basis->spreads,
                                    .turns = place->basis + image.turns,
                                    .room = place->room,
                                    .room_bytes = room.block_bytes,
                                    .angles_at = room.angles_at,
                                    .tokens = matrix->tokens,
                                    .components = room.components,
                                    .room_groups = room.groups,
                                    .first_position = matrix->first_position,
                                    .pairs = room.pairs,
                                    .class_offset = transform_class_offset(step),
                                    .step = (uint16_t)step,
                                    .span = shape->span}};
    for (uint32_t m = 0; m < matrix->span; m++) {
        const bool keys = (first / row + m) % shape->sides == KVT_SIDE_K;
        if (place->targets[m] == NULL) continue;
        works[count++] = (kernel_work){
            .kernel = KERNEL_TRANSFORM,
            .blocks = (uint64_t)room.blocks * shape->kv_heads * items,
            .job.transform = {.room = place->room,
                              .room_bytes = room.block_bytes,
                              .angles_at = room.angles_at,
                              .inverse = place->basis + image.inverse +
                                         transform_matrix_at(shape, span) * sizeof *basis->inverse,
                              .means = place->basis + image.means +
                                       (first + m * row) * sizeof *basis->means,
                              .tokens = matrix->tokens,
                              .room_groups = room.groups,
                              .width = heads ? shape->head_dim : room.components,
                              .column = m * row,
                              .heads = shape->kv_heads,
                              .head_dim = shape->head_dim,
                              .chunks = chunks,
                              .rotary = keys ? shape->rotary_dim : 0,
                              .apart = shape->pairing == KVT_ROPE_HALVES,
                              .own_spans = heads,
                              .dtype = dtype,
                              .step = (uint16_t)step,
                              .transfer_bytes = (uint16_t)place->transfers[m],
                              .target = *place->targets[m]}};
    }
    *count_out = count;
    return KVT_OK;
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
    .span_room = transform_span_room,
    .plan_span = transform_plan_span,
    .derives_to = transform_derives_to,
    .derive_matrix = transform_derive_matrix,
};
