/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transform.c - codec 8 from matrices to bytes, and from codes to coarser ones: see transform.h,
 * and transform_block.h for the bytes of a block. Re-entrant.
 */
#include "transform_work.h"

#include "keys_rerotate.h"

#include <kvterrace/rope.h>
#include <string.h>

kvt_status transform_turn_row(const transform_shape *shape, const double *frequencies,
                              uint32_t position, float *row)
{
    const kvt_layout one = {.layers = 1,
                            .kv_heads = (uint16_t)shape->kv_heads,
                            .head_dim = (uint16_t)shape->head_dim,
                            .dtype = KVT_DTYPE_FP32,
                            .tokens = 1};
    const kvt_rope rope = {.struct_size = sizeof rope,
                           .rotary_dim = (uint16_t)shape->rotary_dim,
                           .pairing = shape->pairing,
                           .frequencies = frequencies};
    const uint32_t kept = 0;
    return kvt_keys_rerotate(&one, &rope, &kept, 1, 0, position, row,
                             transform_row(shape) * sizeof *row);
}

/* Loads one head of a block as columns: of its tokens as they are (plain), or of lanes, all groups'
 * first tokens, their second ones and so on. The last token stands for those that the last group
 * lacks; behind the groups, and behind plain tokens, zeros are loaded. */
static void work_load(const transform_work *work, const uint8_t *rows, uint64_t row_bytes,
                      uint32_t tokens, bool plain, float *columns)
{
    const uint32_t width = work->segment->basis->shape.head_dim;
    const uint32_t groups = transform_groups(tokens);
    float *held = work->scratch.rows;
    for (uint32_t part = 0; part < (plain ? groups : TRANSFORM_ALONG); part++) {
        for (uint32_t i = 0; i < SEGMENT_GROUP; i++) {
            const uint32_t token = plain ? part * SEGMENT_GROUP + i : i * TRANSFORM_ALONG + part;
            const uint32_t taken = token < tokens ? token : tokens - 1;
            float *line = held + (uint64_t)i * width;
            if (plain ? token < tokens : i < groups)
                work->loads->load(work->segment->dtype, rows + taken * row_bytes, width, line);
            else
                memset(line, 0, width * sizeof *line);
        }
        /* Lanes behind the groups' are written again with the next part. */
        work->kernels->to_columns(held, width, columns + part * (plain ? SEGMENT_GROUP : groups));
    }
}

/* The elements of a span of a block, turned back, without their means; plain: as they are, else
 * their frequencies. False: not taken. */
static bool work_gather(const transform_work *work, const void *const *matrices, uint32_t span,
                        uint32_t block, bool plain)
{
    const uint32_t tokens = block_tokens(work->segment, block);
    const uint32_t groups = block_groups(work->segment, block);
    const uint32_t lanes = plain ? tokens : groups * TRANSFORM_ALONG;
    const transform_basis *basis = work->segment->basis;
    const uint32_t head = basis->shape.head_dim;
    const uint64_t row_bytes = segment_row_bytes(work->segment);
    const uint32_t element = kvt_dtype_bytes(work->segment->dtype);
    const uint32_t pieces = work->elements / head / work->span_count;
    const float *means = basis->means + work->first_element + (uint64_t)span * pieces * head;
    bool taken = true;
    for (uint32_t i = 0; i < pieces; i++) {
        const work_piece piece = transform_work_piece(work, span * pieces + i);
        const uint8_t *rows = (const uint8_t *)matrices[piece.matrix] +
                              (uint64_t)block * TRANSFORM_BLOCK_TOKENS * row_bytes +
                              (uint64_t)piece.first * element;
        float *columns = work->scratch.in + (uint64_t)i * head * TRANSFORM_LANES;
        work_load(work, rows, row_bytes, tokens, plain, columns);
        if (piece.turns) transform_work_turn(work, columns, lanes);
        for (uint32_t e = 0; e < head; e++) {
            float *column = columns + (uint64_t)e * TRANSFORM_LANES;
            taken &= work->kernels->centre(column, means[(uint64_t)i * head + e], lanes);
            if (plain) continue;
            work->kernels->along(work->weights, column, groups, groups, column, groups);
            taken &= work->kernels->centre(column, 0.0f, lanes);
        }
    }
    return taken;
}

/* The codes of a span of a block. False: not taken. */
static bool work_quantise(const transform_work *work, uint32_t span, uint32_t lanes)
{
    transform_product product =
        transform_work_product(work, work->segment->basis->forward, span, lanes);
    int16_t *codes = work->scratch.codes + (uint64_t)span * product.width * TRANSFORM_LANES;
    bool taken = true;
    for (; product.first < product.width; product.first += product.count) {
        work->kernels->multiply(&product);
        for (uint32_t o = 0; o < product.count; o++)
            taken &= work->kernels->quantise(
                product.out + (uint64_t)o * TRANSFORM_LANES, &work->rounding, lanes,
                codes + (uint64_t)(product.first + o) * TRANSFORM_LANES);
    }
    return taken;
}

/* The codes of a block. False: not taken. */
static bool work_code(const transform_work *work, const void *const *matrices, uint32_t block)
{
    const uint32_t lanes = block_groups(work->segment, block) * TRANSFORM_ALONG;
    bool taken = true;
    transform_work_angles(work, block, true, WORK_GROUPS);
    for (uint32_t span = 0; taken && span < work->span_count; span++)
        taken = work_gather(work, matrices, span, block, false) && work_quantise(work, span, lanes);
    return taken;
}

/* Room for what is smaller than the matrices. */
static rans_target target_start(const transform_segment *segment, void *target, uint64_t capacity)
{
    const uint64_t most = transform_bound(segment) - 1;
    return (rans_target){target, capacity < most ? capacity : most, 0};
}

static kvt_status target_finish(const transform_segment *segment, const rans_target *target,
                                uint64_t capacity, bool fits, uint64_t *written_out)
{
    if (!fits) return capacity >= transform_bound(segment) - 1 ? KVT_RAW : KVT_E_SPACE;
    *written_out = target->used;
    return KVT_OK;
}

/* Appends the head of a segment and room for those of its blocks. */
static bool segment_write_head(const transform_work *work, uint32_t step, rans_target *target)
{
    const uint8_t empty[TRANSFORM_BLOCK_HEAD_BYTES] = {0};
    uint8_t head[SEGMENT_HEAD_BYTES] = {0};
    codecs_store32(head, work->blocks);
    head[4] = (uint8_t)step;
    head[5] = (uint8_t)(step >> 8);
    head[6] = work->segment->basis->shape.span;
    bool fits = rans_append(target, head, sizeof head);
    for (uint32_t block = 0; fits && block < work->blocks; block++)
        fits = rans_append(target, empty, sizeof empty);
    return fits;
}

kvt_status transform_encode(const transform_segment *segment, const void *const *matrices,
                            void *target, uint64_t capacity, void *scratch, uint64_t *written_out)
{
    transform_work work;
    *written_out = 0;
    transform_work_start(&work, segment, segment->step, scratch);
    rans_target out = target_start(segment, target, capacity);
    bool fits = segment_write_head(&work, segment->step, &out);
    for (uint32_t block = 0; fits && block < work.blocks; block++) {
        if (!work_code(&work, matrices, block)) return KVT_RAW;
        fits = transform_block_write(segment->basis, &work.order, work.scratch.codes,
                                     block_groups(segment, block), &work.scratch.room,
                                     block_head_at(block), &out);
    }
    return target_finish(segment, &out, capacity, fits, written_out);
}

kvt_status transform_span_columns(const transform_segment *segment, const void *const *matrices,
                                  uint32_t span, uint32_t block, bool plain, void *scratch,
                                  const float **columns_out)
{
    transform_work work;
    transform_work_start(&work, segment, segment->step, scratch);
    assert(span < work.span_count && block < work.blocks);
    transform_work_angles(&work, block, true, plain ? WORK_LANES : WORK_GROUPS);
    *columns_out = work.scratch.in;
    return work_gather(&work, matrices, span, block, plain) ? KVT_OK : KVT_RAW;
}

kvt_status transform_block_codes(const transform_segment *segment, const void *const *matrices,
                                 uint32_t block, void *scratch, const int16_t **codes_out)
{
    transform_work work;
    transform_work_start(&work, segment, segment->step, scratch);
    assert(block < work.blocks);
    *codes_out = work.scratch.codes;
    return work_code(&work, matrices, block) ? KVT_OK : KVT_RAW;
}

kvt_status transform_derive_step3(const transform_segment *segment, const void *source,
                                  uint64_t bytes, void *target, uint64_t capacity, void *scratch,
                                  uint64_t *written_out)
{
    transform_work work;
    const uint32_t step = 3u * segment->step;
    *written_out = 0;
    if (step > TRANSFORM_STEP_MAX) return KVT_E_ARGUMENT;
    transform_work_start(&work, segment, segment->step, scratch);
    if (!transform_work_check(&work, source, bytes)) return KVT_E_CORRUPT;
    rans_target out = target_start(segment, target, capacity);
    bool fits = segment_write_head(&work, step, &out);
    uint64_t at = block_head_at(work.blocks);
    for (uint32_t block = 0; fits && block < work.blocks; block++) {
        /* Both orders share one array. */
        transform_order_make(segment->basis, work.first_element, work.elements, segment->step,
                             &work.order);
        kvt_status status = transform_work_read(&work, source, block, &at);
        if (status != KVT_OK) return status;
        for (uint64_t i = 0; i < (uint64_t)work.elements * TRANSFORM_LANES; i++) {
            const int32_t code = work.scratch.codes[i];
            work.scratch.codes[i] = (int16_t)(code < 0 ? -((1 - code) / 3) : (code + 1) / 3);
        }
        transform_order_make(segment->basis, work.first_element, work.elements, step, &work.order);
        fits = transform_block_write(segment->basis, &work.order, work.scratch.codes,
                                     block_groups(segment, block), &work.scratch.room,
                                     block_head_at(block), &out);
    }
    return target_finish(segment, &out, capacity, fits, written_out);
}
