/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transform_decode.c - codec 8 from bytes to matrices: in columns of tokens, or, where the kernels
 * have a product of the codes that are not 0, in rows. Re-entrant.
 */
#include "transform_work.h"

#include <kvterrace/rope.h>

/* The inputs before which no code is too large for a pair; `count` when there are no pairs. The
 * large ones come first: components are ordered by their spread. */
static uint32_t work_plain(const transform_work *work, uint64_t first, uint32_t count)
{
    uint32_t plain = count;
    for (bool small = work->kernels->pair != NULL; small && plain > 0; plain -= small ? 1 : 0) {
        const int16_t *codes = work_codes(work, first + work->scratch.inputs[plain - 1]);
        uint32_t large = 0;
        for (uint32_t t = 0; t < TRANSFORM_LANES; t++)
            large |= codes[t] > TRANSFORM_PAIR_MOST || codes[t] < -TRANSFORM_PAIR_MOST ? 1u : 0u;
        small = large == 0;
    }
    return plain;
}

/* Lists the components of a span that have codes; returns their number. */
static uint32_t work_live(const transform_work *work, uint64_t first, uint32_t width)
{
    uint16_t *inputs = work->scratch.inputs;
    uint32_t count = 0;
    for (uint32_t i = 0; i < width; i++) {
        if (work->scratch.live[first + i]) inputs[count++] = (uint16_t)i;
    }
    return count;
}

/* Makes the components of a span that have codes the inputs of a product. */
static void work_inputs(const transform_work *work, uint32_t span, transform_product *product)
{
    const uint64_t first = (uint64_t)span * product->width;
    const uint16_t *inputs = work->scratch.inputs;
    float *in = work->scratch.in;
    const uint32_t count = work_live(work, first, product->width);
    product->rows = inputs;
    product->row_count = count;
    product->plain = work_plain(work, first, count);
    for (uint32_t i = 0; i < product->plain; i++, in += TRANSFORM_LANES)
        work->kernels->widen(work_codes(work, first + inputs[i]), TRANSFORM_LANES, in);
    for (uint32_t i = product->plain; i < count; i += 2, in += TRANSFORM_LANES)
        work->kernels->pair(work_codes(work, first + inputs[i]),
                            i + 1 < count ? work_codes(work, first + inputs[i + 1]) : NULL,
                            TRANSFORM_LANES, in);
}

/* Some tokens of a block, and where their rows lie in the targets. */
typedef struct work_tokens {
    uint32_t groups; /* of the block */
    uint32_t first;  /* in the block */
    uint32_t count;
    uint64_t row; /* of the targets */
} work_tokens;

/* Stores one head of a token, whose row of the target is given. */
static void work_store_row(const transform_work *work, const work_piece *piece, uint64_t row,
                           const float *values, const view_rows *target)
{
    _Alignas(64) uint8_t tile[VIEW_TILE_BYTES];
    const uint32_t width = work->segment->basis->shape.head_dim;
    const uint32_t element = kvt_dtype_bytes(work->segment->dtype);
    const uint64_t at = row * segment_row_bytes(work->segment) + (uint64_t)piece->first * element;
    for (uint32_t e = 0; e < width;) {
        const uint64_t piece_bytes = view_rows_piece(target, sizeof tile);
        const uint32_t most =
            (uint32_t)(piece_bytes / element < width - e ? piece_bytes / element : width - e);
        const uint64_t bytes = (uint64_t)most * element;
        uint8_t *room = view_rows_room(target, at + (uint64_t)e * element, bytes, tile);
        work->kernels->narrow(work->segment->dtype, values + e, most, room);
        view_rows_keep(target, at + (uint64_t)e * element, bytes, room, tile);
        e += most;
    }
}

/* Stores the columns of one head, of lanes in groups, as rows. */
static void work_store(const transform_work *work, const work_piece *piece,
                       const work_tokens *tokens, const view_rows *target)
{
    const uint32_t width = work->segment->basis->shape.head_dim;
    float *held = work->scratch.rows;
    for (uint32_t t = 0; t < TRANSFORM_ALONG; t++) {
        /* Behind the groups' lanes are others, of which no row is kept. */
        work->kernels->to_rows(work->scratch.out + t * tokens->groups, width, held);
        for (uint32_t g = 0; g < tokens->groups; g++) {
            const uint32_t token = g * TRANSFORM_ALONG + t;
            if (token < tokens->first || token >= tokens->first + tokens->count) continue;
            work_store_row(work, piece, tokens->row + token - tokens->first,
                           held + (uint64_t)g * width, target);
        }
    }
}

/* A group's tokens of one head of a sparse product, from the sums of their frequencies: what
 * remains to be done to rows. */
static void work_finish_rows(const transform_work *work, const work_piece *piece, uint32_t group,
                             const float *sums, uint32_t width, const float *means,
                             const work_tokens *tokens, const view_rows *target)
{
    const transform_shape *shape = &work->segment->basis->shape;
    const uint32_t pairs = shape->rotary_dim / 2;
    const float step = (float)work->segment->step / (float)TRANSFORM_STEP_ONE;
    float *held = work->scratch.rows;
    work->kernels->back(work->weights, sums + (uint64_t)group * width,
                        (uint64_t)tokens->groups * width, shape->head_dim, held, shape->head_dim);
    for (uint32_t t = 0; t < TRANSFORM_ALONG; t++) {
        const uint32_t token = group * TRANSFORM_ALONG + t;
        float *row = held + (uint64_t)t * shape->head_dim;
        if (token < tokens->first || token >= tokens->first + tokens->count) continue;
        work->kernels->restore_row(row, step, means, shape->head_dim);
        if (piece->turns)
            work->kernels->turn_row(row, work->scratch.cosine + (uint64_t)token * pairs,
                                    work->scratch.sine + (uint64_t)token * pairs, pairs,
                                    shape->pairing == KVT_ROPE_HALVES);
        work_store_row(work, piece, tokens->row + token - tokens->first, row, target);
    }
}

/* The sums of some tokens of a span, of the heads that are wanted. `inputs`: all with codes. */
static void work_sum_sparse(const transform_work *work, uint32_t span, uint32_t inputs,
                            transform_sparse *sparse, const view_rows *const *targets)
{
    const uint32_t head = work->segment->basis->shape.head_dim, pieces = sparse->width / head;
    for (uint32_t done = 0; done == 0 || done < inputs; done += TRANSFORM_SPARSE_ROWS) {
        const uint32_t left = inputs - done;
        sparse->rows = work->scratch.inputs + done;
        sparse->row_count = left < TRANSFORM_SPARSE_ROWS ? left : TRANSFORM_SPARSE_ROWS;
        sparse->more = done > 0;
        work->kernels->list(sparse);
        for (uint32_t i = 0; i < pieces; i++) {
            if (targets[transform_work_piece(work, span * pieces + i).matrix] != NULL)
                work->kernels->sum(sparse, i * head, head);
        }
    }
}

/* Elements of a span of a block from the codes that are not 0. */
static void work_restore_sparse(const transform_work *work, uint32_t span,
                                const work_tokens *tokens, const view_rows *const *targets)
{
    const transform_basis *basis = work->segment->basis;
    const uint32_t head = basis->shape.head_dim, width = work->elements / work->span_count;
    const uint32_t pieces = width / head, lanes = tokens->groups * TRANSFORM_ALONG;
    const uint64_t first = (uint64_t)span * width;
    const float *means = basis->means + work->first_element + first;
    const uint32_t inputs = work_live(work, first, width);
    transform_sparse sparse = {
        .matrix = basis->inverse + transform_matrix_at(&basis->shape, work->first_span + span),
        .width = width,
        .codes = work_codes(work, first),
        .terms = work->scratch.terms,
        .at = work->scratch.at,
        .panel = (uint16_t *)(void *)work->scratch.panel};
    for (; sparse.first_token < lanes; sparse.first_token += sparse.tokens) {
        const uint32_t left = lanes - sparse.first_token;
        sparse.tokens = left < TRANSFORM_SPARSE_TOKENS ? left : TRANSFORM_SPARSE_TOKENS;
        sparse.out = work->scratch.in + (uint64_t)sparse.first_token * width;
        work_sum_sparse(work, span, inputs, &sparse, targets);
    }
    for (uint32_t i = 0; i < pieces; i++) {
        const work_piece piece = transform_work_piece(work, span * pieces + i);
        if (targets[piece.matrix] == NULL) continue;
        for (uint32_t g = tokens->first / TRANSFORM_ALONG;
             g * TRANSFORM_ALONG < tokens->first + tokens->count; g++)
            work_finish_rows(work, &piece, g, work->scratch.in + (uint64_t)i * head, width,
                             means + (uint64_t)i * head, tokens, targets[piece.matrix]);
    }
}

/* Elements of a span of a block, into the targets that are wanted. */
static void work_restore(const transform_work *work, uint32_t span, const work_tokens *tokens,
                         const view_rows *const *targets)
{
    const transform_basis *basis = work->segment->basis;
    const uint32_t head = basis->shape.head_dim;
    const float step = (float)work->segment->step / (float)TRANSFORM_STEP_ONE;
    const uint32_t groups = tokens->groups, lanes = groups * TRANSFORM_ALONG;
    transform_product product = transform_work_product(work, basis->inverse, span, lanes);
    const uint32_t pieces = product.width / head;
    const float *means = basis->means + work->first_element + (uint64_t)span * product.width;
    work_inputs(work, span, &product);
    for (uint32_t i = 0; i < pieces; i++) {
        const work_piece piece = transform_work_piece(work, span * pieces + i);
        if (targets[piece.matrix] == NULL) continue;
        product.first = i * head;
        work->kernels->multiply(&product);
        for (uint32_t e = 0; e < head; e++) {
            float *column = product.out + (uint64_t)e * TRANSFORM_LANES;
            work->kernels->back(work->weights, column, groups, groups, column, groups);
            work->kernels->restore(column, step, means[(uint64_t)i * head + e], lanes);
        }
        if (piece.turns) transform_work_turn(work, product.out, lanes);
        work_store(work, &piece, tokens, targets[piece.matrix]);
    }
}

kvt_status transform_decode(const transform_segment *segment, const void *source, uint64_t bytes,
                            uint32_t first_token, uint32_t count, const view_rows *const *targets,
                            void *scratch)
{
    transform_work work;
    assert(first_token <= segment->tokens && count <= segment->tokens - first_token);
    transform_work_start(&work, segment, segment->step, scratch);
    if (!transform_work_check(&work, source, bytes)) return KVT_E_CORRUPT;
    uint64_t at = block_head_at(work.blocks);
    const uint32_t end = first_token + count;
    for (uint32_t block = 0; block < work.blocks; block++) {
        const uint32_t start = block * TRANSFORM_BLOCK_TOKENS;
        const uint32_t tokens = block_tokens(segment, block);
        if (start >= end || start + tokens <= first_token) {
            at += transform_block_bytes(segment->basis, &work.order, block_groups(segment, block),
                                        (const uint8_t *)source + block_head_at(block));
            continue;
        }
        const uint32_t from = first_token > start ? first_token - start : 0;
        const uint32_t to = end - start < tokens ? end - start : tokens;
        const work_tokens wanted = {block_groups(segment, block), from, to - from,
                                    start + from - first_token};
        kvt_status status = transform_work_read(&work, source, block, &at);
        if (status != KVT_OK) return status;
        transform_work_angles(&work, block, false,
                              work.kernels->list != NULL ? WORK_ROWS : WORK_GROUPS);
        for (uint32_t span = 0; span < work.span_count; span++) {
            if (work.kernels->list != NULL)
                work_restore_sparse(&work, span, &wanted, targets);
            else
                work_restore(&work, span, &wanted, targets);
        }
    }
    return KVT_OK;
}
