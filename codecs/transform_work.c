/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transform_work.c - shapes of segments, their scratch, angles of keys and heads of blocks: see
 * transform_work.h. Re-entrant.
 */
#include "transform_work.h"

#include "codecs/kernels/cosine_tables.h"
#include "transform_image.h"

#include <kvterrace/rope.h>

#include <string.h>

enum { SEGMENT_ALIGN = 64 };

/* Matrices that one segment has, but for the last one of spans of layers. */
static uint32_t segment_together(const transform_shape *shape)
{
    return shape->span == TRANSFORM_SPAN_HEAD ? 1 : transform_span_layers(shape) * shape->sides;
}

uint32_t transform_segment_count(const transform_shape *shape)
{
    const uint32_t together = segment_together(shape);
    return (shape->layers * shape->sides + together - 1) / together;
}

uint32_t transform_segment_matrices(const transform_shape *shape, uint32_t index,
                                    uint32_t *first_layer_out)
{
    const uint32_t together = segment_together(shape);
    const uint32_t left = shape->layers * shape->sides - index * together;
    assert(index < transform_segment_count(shape));
    if (first_layer_out != NULL) *first_layer_out = index * together / shape->sides;
    return left < together ? left : together;
}

uint64_t transform_bound(const transform_segment *segment)
{
    return segment_row_bytes(segment) * segment->tokens *
           transform_segment_matrices(&segment->basis->shape, segment->index, NULL);
}

static void *scratch_place(uint8_t *scratch, uint64_t *at, uint64_t bytes)
{
    void *place = scratch == NULL ? NULL : scratch + *at;
    *at += codecs_align(bytes, SEGMENT_ALIGN);
    return place;
}

/* Cuts the scratch, which may be NULL; returns the bytes needed. */
static uint64_t scratch_cut(const transform_shape *shape, uint8_t *scratch,
                            transform_scratch *parts)
{
    const uint64_t lane = TRANSFORM_LANES * sizeof(float);
    const uint64_t width = transform_width(shape);
    const uint64_t elements = (uint64_t)segment_together(shape) * transform_row(shape);
    const uint64_t terms = (uint64_t)TRANSFORM_SPARSE_TOKENS * TRANSFORM_SPARSE_ROOM;
    const uint64_t panel = TRANSFORM_SPARSE_ROWS * TRANSFORM_SPARSE_PANEL * sizeof(uint16_t);
    const uint64_t columns = width * TRANSFORM_PANEL * sizeof(float);
    uint64_t at = 0;
    parts->in = scratch_place(scratch, &at, width * lane);
    parts->out = scratch_place(scratch, &at, shape->head_dim * lane);
    parts->panel = scratch_place(scratch, &at, panel > columns ? panel : columns);
    parts->terms = scratch_place(scratch, &at, terms * sizeof *parts->terms);
    parts->at = scratch_place(scratch, &at, terms * sizeof *parts->at);
    parts->rows = scratch_place(scratch, &at, SEGMENT_GROUP * sizeof(float) * shape->head_dim);
    parts->cosine = scratch_place(scratch, &at, shape->rotary_dim / 2 * lane);
    parts->sine = scratch_place(scratch, &at, shape->rotary_dim / 2 * lane);
    parts->inputs = scratch_place(scratch, &at, width * sizeof(uint16_t));
    parts->codes = scratch_place(scratch, &at, elements * TRANSFORM_LANES * sizeof(int16_t));
    parts->live = scratch_place(scratch, &at, elements);
    parts->by_class = scratch_place(scratch, &at, elements * TRANSFORM_BANDS * sizeof(uint16_t));
    parts->room.symbols = scratch_place(scratch, &at, elements * TRANSFORM_LANES + RANS_STATES_MAX);
    parts->room.encode_table = scratch_place(scratch, &at, sizeof *parts->room.encode_table);
    parts->room.decode_table = scratch_place(scratch, &at, sizeof *parts->room.decode_table);
    return at;
}

uint64_t transform_scratch_bytes(const transform_shape *shape)
{
    transform_scratch parts;
    return scratch_cut(shape, NULL, &parts);
}

/* The weights of the orthonormal cosine transform (DCT-II) of 16 tokens. */
static void work_make_weights(transform_work *work)
{
    static const float quarter[17] = {COSINE_QUARTER};
    for (uint32_t f = 0; f < TRANSFORM_ALONG; f++) {
        for (uint32_t t = 0; t < TRANSFORM_ALONG / 2; t++) {
            const uint32_t angle = (2 * t + 1) * f % 64; /* of pi / 32; 64 is a whole turn */
            const uint32_t half = angle > 32 ? 64 - angle : angle;
            const float value = half > 16 ? -quarter[32 - half] : quarter[half];
            work->weights[f][t] = f == 0 ? 0.25f : value;
        }
    }
}

void transform_work_start(transform_work *work, const transform_segment *segment, uint32_t step,
                          void *scratch)
{
    const transform_shape *shape = &segment->basis->shape;
    uint32_t inner = step;
    uint32_t divisor = 1;
    assert(segment->tokens > 0 && step > 0 && step <= TRANSFORM_STEP_MAX);
    work->segment = segment;
    work->kernels = transform_kernels_choose();
    work->loads = entropy_kernels_choose();
    scratch_cut(shape, scratch, &work->scratch);
    work->first_element = (uint64_t)segment->index * segment_together(shape) * transform_row(shape);
    work->elements = transform_segment_matrices(shape, segment->index, NULL) * transform_row(shape);
    work->first_span = (uint32_t)(work->first_element / transform_width(shape));
    work->span_count = shape->span == TRANSFORM_SPAN_HEAD ? shape->kv_heads : 1;
    work->blocks = (segment->tokens + TRANSFORM_BLOCK_TOKENS - 1) / TRANSFORM_BLOCK_TOKENS;
    for (; inner % 3 == 0; inner /= 3)
        divisor *= 3;
    work->rounding.inverse = (float)TRANSFORM_STEP_ONE / (float)inner;
    work->rounding.third = divisor > 1 ? 1.0f / (float)divisor : 0.0f;
    work_make_weights(work);
    work->order.by_class = work->scratch.by_class;
    transform_order_make(segment->basis, work->first_element, work->elements, step, &work->order);
}

/* Keys come first in every segment that has some. */
/* A pair's row of 256 tokens becomes one of lanes. The last token stands for those that the last
 * group lacks, as in what is loaded. */
static void work_order_lanes(const transform_work *work, float *row, uint32_t tokens)
{
    const uint32_t groups = transform_groups(tokens);
    float columns[TRANSFORM_ALONG][TRANSFORM_LANES];
    for (uint32_t t = tokens; t < groups * TRANSFORM_ALONG; t++)
        row[t] = row[tokens - 1];
    work->kernels->to_columns(row, TRANSFORM_ALONG, columns[0]);
    for (uint32_t t = 0; t < TRANSFORM_ALONG; t++)
        memcpy(row + (uint64_t)t * groups, columns[t], groups * sizeof *row);
}

void transform_work_angles(const transform_work *work, uint32_t block, bool back,
                           work_layout layout)
{
    const transform_basis *basis = work->segment->basis;
    const uint32_t pairs = basis->shape.rotary_dim / 2;
    const uint64_t first =
        (uint64_t)work->segment->first_position + (uint64_t)block * TRANSFORM_BLOCK_TOKENS;
    const bool rows = layout == WORK_ROWS;
    const uint64_t pair_stride = rows ? 1 : TRANSFORM_LANES;
    if (!transform_work_piece(work, 0).turns) return;
    for (uint32_t pair = 0; pair < pairs; pair++) {
        const uint64_t one = transform_turn_of(basis, pair);
        work->kernels->angles(back ? 0 - one : one, first, rows ? pairs : 1,
                              work->scratch.cosine + pair * pair_stride,
                              work->scratch.sine + pair * pair_stride);
        if (layout != WORK_GROUPS) continue;
        work_order_lanes(work, work->scratch.cosine + pair * pair_stride,
                         block_tokens(work->segment, block));
        work_order_lanes(work, work->scratch.sine + pair * pair_stride,
                         block_tokens(work->segment, block));
    }
}

void transform_work_turn(const transform_work *work, float *head, uint32_t lanes)
{
    const transform_shape *shape = &work->segment->basis->shape;
    const uint32_t half = shape->rotary_dim / 2;
    for (uint32_t pair = 0; pair < half; pair++) {
        const bool apart = shape->pairing == KVT_ROPE_HALVES;
        const uint64_t at = (uint64_t)pair * TRANSFORM_LANES;
        float *x = head + (apart ? at : 2 * at);
        float *y = apart ? x + (uint64_t)half * TRANSFORM_LANES : x + TRANSFORM_LANES;
        work->kernels->turn(x, y, work->scratch.cosine + at, work->scratch.sine + at, lanes);
    }
}

work_piece transform_work_piece(const transform_work *work, uint32_t piece)
{
    const transform_shape *shape = &work->segment->basis->shape;
    const uint32_t matrix = piece / shape->kv_heads;
    const uint32_t all = work->segment->index * segment_together(shape) + matrix;
    return (work_piece){
        .matrix = matrix,
        .first = piece % shape->kv_heads * shape->head_dim,
        .turns = all % shape->sides == KVT_SIDE_K && shape->rotary_dim > 0,
    };
}

transform_product transform_work_product(const transform_work *work, const uint16_t *matrices,
                                         uint32_t span, uint32_t tokens)
{
    const transform_shape *shape = &work->segment->basis->shape;
    const uint32_t width = work->elements / work->span_count;
    return (transform_product){
        .matrix = matrices + transform_matrix_at(shape, work->first_span + span),
        .width = width,
        .row_count = width,
        .plain = width,
        .count = shape->head_dim,
        .tokens = tokens,
        .in = work->scratch.in,
        .out = work->scratch.out,
        .panel = work->scratch.panel,
    };
}

bool transform_work_check(const transform_work *work, const uint8_t *source, uint64_t bytes)
{
    const transform_segment *segment = work->segment;
    uint64_t need = block_head_at(work->blocks);
    if (bytes < need || codecs_load32(source) != work->blocks) return false;
    if ((source[4] | (uint32_t)source[5] << 8) != segment->step) return false;
    if (source[6] != segment->basis->shape.span || source[7] != 0) return false;
    for (uint32_t block = 0; block < work->blocks; block++) {
        const uint64_t one =
            transform_block_bytes(segment->basis, &work->order, block_groups(segment, block),
                                  source + block_head_at(block));
        if (one > bytes - need) return false;
        need += one;
    }
    return need == bytes;
}

kvt_status transform_work_read(const transform_work *work, const uint8_t *source, uint32_t block,
                               uint64_t *at)
{
    const transform_segment *segment = work->segment;
    const uint8_t *head = source + block_head_at(block);
    const uint32_t groups = block_groups(segment, block);
    const uint8_t *stored = source + *at;
    *at += transform_block_bytes(segment->basis, &work->order, groups, head);
    return transform_block_read(segment->basis, &work->order, head, stored, groups,
                                &work->scratch.room, work->scratch.codes, work->scratch.live);
}
