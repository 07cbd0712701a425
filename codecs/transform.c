/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transform.c - codec 8 from matrices to bytes and back: see transform.h, and transform_block.h for
 * the bytes of a block. Re-entrant.
 *
 *   segment | blocks, u32 | step, u16 | span, u8 | 0 | per block its head | blocks |
 */
#include "transform.h"

#include "codecs.h"
#include "codecs/kernels/entropy_kernels.h"
#include "codecs/kernels/transform_kernels.h"
#include "drop_number.h"
#include "transform_block.h"

#include <kvterrace/rope.h>

#include <assert.h>
#include <string.h>

enum {
    SEGMENT_HEAD_BYTES = 8,
    SEGMENT_GROUP = TRANSFORM_LANE_GROUP, /* rows that are turned into columns together */
    SEGMENT_ALIGN = 64
};
_Static_assert((int)TRANSFORM_LANES == (int)TRANSFORM_BLOCK_TOKENS, "a block is a row of lanes");

/* The caller's scratch, cut. */
typedef struct transform_scratch {
    float *in;     /* [width][256] */
    float *out;    /* [head_dim][256] */
    float *panel;  /* [width][TRANSFORM_PANEL] */
    float *rows;   /* [16][head_dim] */
    float *cosine; /* [rotary_dim / 2][256] */
    float *sine;
    uint16_t *inputs; /* [width] */
    int16_t *codes;   /* [elements][256] */
    uint8_t *live;    /* [elements] */
    uint16_t *by_class;
    transform_room room;
} transform_scratch;

/* A segment being coded. */
typedef struct transform_work {
    const transform_segment *segment;
    const transform_kernels *kernels;
    const entropy_kernels *loads;
    transform_scratch scratch;
    transform_order order;
    transform_rounding rounding;
    uint64_t first_element;
    uint32_t elements;
    uint32_t first_span;
    uint32_t span_count;
    uint32_t blocks;
} transform_work;

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

static uint64_t segment_row_bytes(const transform_segment *segment)
{
    return (uint64_t)transform_row(&segment->basis->shape) * kvt_dtype_bytes(segment->dtype);
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
    uint64_t at = 0;
    parts->in = scratch_place(scratch, &at, width * lane);
    parts->out = scratch_place(scratch, &at, shape->head_dim * lane);
    parts->panel = scratch_place(scratch, &at, width * TRANSFORM_PANEL * sizeof(float));
    parts->rows = scratch_place(scratch, &at, SEGMENT_GROUP * sizeof(float) * shape->head_dim);
    parts->cosine = scratch_place(scratch, &at, shape->rotary_dim / 2 * lane);
    parts->sine = scratch_place(scratch, &at, shape->rotary_dim / 2 * lane);
    parts->inputs = scratch_place(scratch, &at, width * sizeof(uint16_t));
    parts->codes = scratch_place(scratch, &at, elements * TRANSFORM_LANES * sizeof(int16_t));
    parts->live = scratch_place(scratch, &at, elements);
    parts->by_class = scratch_place(scratch, &at, elements * sizeof(uint16_t));
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

static void work_start(transform_work *work, const transform_segment *segment, uint32_t step,
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
    work->order.by_class = work->scratch.by_class;
    transform_order_make(segment->basis, work->first_element, work->elements, step, &work->order);
}

static uint32_t block_tokens(const transform_segment *segment, uint32_t block)
{
    const uint32_t left = segment->tokens - block * TRANSFORM_BLOCK_TOKENS;
    return left < TRANSFORM_BLOCK_TOKENS ? left : TRANSFORM_BLOCK_TOKENS;
}

/* Cosines and sines of a block: by its tokens' positions, or back to position 0. */
static void work_angles(const transform_work *work, uint32_t block, bool back)
{
    const transform_basis *basis = work->segment->basis;
    const uint64_t first =
        (uint64_t)work->segment->first_position + (uint64_t)block * TRANSFORM_BLOCK_TOKENS;
    for (uint32_t pair = 0; pair < basis->shape.rotary_dim / 2; pair++) {
        const double turns = basis->frequencies[pair] * 0x1.45f306dc9c883p-3; /* 1 / (2 pi) */
        const uint64_t one = (uint64_t)(turns * 0x1p64);
        float *cosine = work->scratch.cosine + (uint64_t)pair * TRANSFORM_LANES;
        float *sine = work->scratch.sine + (uint64_t)pair * TRANSFORM_LANES;
        for (uint32_t t = 0; t < TRANSFORM_LANES; t++) {
            double c;
            double s;
            drop_cos_sin(one * (back ? 0 - (first + t) : first + t), &c, &s);
            cosine[t] = (float)c;
            sine[t] = (float)s;
        }
    }
}

/* Turns the columns of one head of K. */
static void work_turn(const transform_work *work, float *head, uint32_t tokens)
{
    const transform_shape *shape = &work->segment->basis->shape;
    const uint32_t half = shape->rotary_dim / 2;
    for (uint32_t pair = 0; pair < half; pair++) {
        const bool apart = shape->pairing == KVT_ROPE_HALVES;
        const uint64_t at = (uint64_t)pair * TRANSFORM_LANES;
        float *x = head + (apart ? at : 2 * at);
        float *y = apart ? x + (uint64_t)half * TRANSFORM_LANES : x + TRANSFORM_LANES;
        work->kernels->turn(x, y, work->scratch.cosine + at, work->scratch.sine + at, tokens);
    }
}

/* The head that is piece `piece` of a segment: its matrix, its place in a row, whether it turns. */
typedef struct work_piece {
    uint32_t matrix;
    uint32_t first; /* element in a row */
    bool turns;
} work_piece;

static work_piece work_piece_of(const transform_work *work, uint32_t piece)
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

/* Loads one head of a block as columns. */
static void work_load(const transform_work *work, const uint8_t *rows, uint64_t row_bytes,
                      uint32_t tokens, float *columns)
{
    const uint32_t width = work->segment->basis->shape.head_dim;
    float *held = work->scratch.rows;
    for (uint32_t first = 0; first < tokens; first += SEGMENT_GROUP) {
        for (uint32_t t = 0; t < SEGMENT_GROUP; t++) {
            float *line = held + (uint64_t)t * width;
            if (first + t < tokens)
                work->loads->load(work->segment->dtype, rows + (first + t) * row_bytes, width,
                                  line);
            else
                memset(line, 0, width * sizeof *line);
        }
        work->kernels->to_columns(held, width, columns + first);
    }
}

/* The elements of a span of a block, turned back, without their means. False: not taken. */
static bool work_gather(const transform_work *work, const void *const *matrices, uint32_t span,
                        uint32_t block, uint32_t tokens)
{
    const transform_basis *basis = work->segment->basis;
    const uint32_t head = basis->shape.head_dim;
    const uint64_t row_bytes = segment_row_bytes(work->segment);
    const uint32_t element = kvt_dtype_bytes(work->segment->dtype);
    const uint32_t pieces = work->elements / head / work->span_count;
    const float *means = basis->means + work->first_element + (uint64_t)span * pieces * head;
    bool taken = true;
    for (uint32_t i = 0; i < pieces; i++) {
        const work_piece piece = work_piece_of(work, span * pieces + i);
        const uint8_t *rows = (const uint8_t *)matrices[piece.matrix] +
                              (uint64_t)block * TRANSFORM_BLOCK_TOKENS * row_bytes +
                              (uint64_t)piece.first * element;
        float *columns = work->scratch.in + (uint64_t)i * head * TRANSFORM_LANES;
        work_load(work, rows, row_bytes, tokens, columns);
        if (piece.turns) work_turn(work, columns, tokens);
        for (uint32_t e = 0; e < head; e++)
            taken &= work->kernels->centre(columns + (uint64_t)e * TRANSFORM_LANES,
                                           means[(uint64_t)i * head + e], tokens);
    }
    return taken;
}

static transform_product work_product(const transform_work *work, const uint16_t *matrices,
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

/* The codes of a span of a block. False: not taken. */
static bool work_quantise(const transform_work *work, uint32_t span, uint32_t tokens)
{
    transform_product product = work_product(work, work->segment->basis->forward, span, tokens);
    int16_t *codes = work->scratch.codes + (uint64_t)span * product.width * TRANSFORM_LANES;
    bool taken = true;
    for (; product.first < product.width; product.first += product.count) {
        work->kernels->multiply(&product);
        for (uint32_t o = 0; o < product.count; o++)
            taken &= work->kernels->quantise(
                product.out + (uint64_t)o * TRANSFORM_LANES, &work->rounding, tokens,
                codes + (uint64_t)(product.first + o) * TRANSFORM_LANES);
    }
    return taken;
}

/* The codes of a block. False: not taken. */
static bool work_code(const transform_work *work, const void *const *matrices, uint32_t block,
                      uint32_t tokens)
{
    bool taken = true;
    work_angles(work, block, true);
    for (uint32_t span = 0; taken && span < work->span_count; span++)
        taken =
            work_gather(work, matrices, span, block, tokens) && work_quantise(work, span, tokens);
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

static uint64_t block_head_at(uint32_t block)
{
    return SEGMENT_HEAD_BYTES + (uint64_t)block * TRANSFORM_BLOCK_HEAD_BYTES;
}

kvt_status transform_encode(const transform_segment *segment, const void *const *matrices,
                            void *target, uint64_t capacity, void *scratch, uint64_t *written_out)
{
    transform_work work;
    *written_out = 0;
    work_start(&work, segment, segment->step, scratch);
    rans_target out = target_start(segment, target, capacity);
    bool fits = segment_write_head(&work, segment->step, &out);
    for (uint32_t block = 0; fits && block < work.blocks; block++) {
        const uint32_t tokens = block_tokens(segment, block);
        if (!work_code(&work, matrices, block, tokens)) return KVT_RAW;
        fits = transform_block_write(segment->basis, &work.order, work.scratch.codes, tokens,
                                     &work.scratch.room, block_head_at(block), &out);
    }
    return target_finish(segment, &out, capacity, fits, written_out);
}

kvt_status transform_span_columns(const transform_segment *segment, const void *const *matrices,
                                  uint32_t span, uint32_t block, void *scratch,
                                  const float **columns_out)
{
    transform_work work;
    work_start(&work, segment, segment->step, scratch);
    assert(span < work.span_count && block < work.blocks);
    work_angles(&work, block, true);
    *columns_out = work.scratch.in;
    return work_gather(&work, matrices, span, block, block_tokens(segment, block)) ? KVT_OK
                                                                                   : KVT_RAW;
}

kvt_status transform_block_codes(const transform_segment *segment, const void *const *matrices,
                                 uint32_t block, void *scratch, const int16_t **codes_out)
{
    transform_work work;
    work_start(&work, segment, segment->step, scratch);
    assert(block < work.blocks);
    *codes_out = work.scratch.codes;
    return work_code(&work, matrices, block, block_tokens(segment, block)) ? KVT_OK : KVT_RAW;
}

/* Whether the head is the segment's, and all its blocks fill what is left. */
static bool segment_check_head(const transform_work *work, const uint8_t *source, uint64_t bytes)
{
    const transform_segment *segment = work->segment;
    uint64_t need = block_head_at(work->blocks);
    if (bytes < need || codecs_load32(source) != work->blocks) return false;
    if ((source[4] | (uint32_t)source[5] << 8) != segment->step) return false;
    if (source[6] != segment->basis->shape.span || source[7] != 0) return false;
    for (uint32_t block = 0; block < work->blocks; block++) {
        const uint64_t one =
            transform_block_bytes(segment->basis, &work->order, block_tokens(segment, block),
                                  source + block_head_at(block));
        if (one > bytes - need) return false;
        need += one;
    }
    return need == bytes;
}

/* Reads a block's codes, and moves past it. */
static kvt_status work_read(const transform_work *work, const uint8_t *source, uint32_t block,
                            uint64_t *at)
{
    const transform_segment *segment = work->segment;
    const uint8_t *head = source + block_head_at(block);
    const uint32_t tokens = block_tokens(segment, block);
    const uint8_t *stored = source + *at;
    *at += transform_block_bytes(segment->basis, &work->order, tokens, head);
    return transform_block_read(segment->basis, &work->order, head, stored, tokens,
                                &work->scratch.room, work->scratch.codes, work->scratch.live);
}

static const int16_t *work_codes(const transform_work *work, uint64_t component)
{
    return work->scratch.codes + component * TRANSFORM_LANES;
}

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

/* Makes the components of a span that have codes the inputs of a product. */
static void work_inputs(const transform_work *work, uint32_t span, transform_product *product)
{
    const uint64_t first = (uint64_t)span * product->width;
    uint16_t *inputs = work->scratch.inputs;
    float *in = work->scratch.in;
    uint32_t count = 0;
    for (uint32_t i = 0; i < product->width; i++) {
        if (work->scratch.live[first + i]) inputs[count++] = (uint16_t)i;
    }
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
    uint32_t first; /* in the block */
    uint32_t count;
    uint64_t row; /* of the targets */
} work_tokens;

/* Stores the columns of one head as rows. */
static void work_store(const transform_work *work, const work_piece *piece,
                       const work_tokens *tokens, const view_rows *target)
{
    _Alignas(64) uint8_t tile[VIEW_TILE_BYTES];
    const uint32_t width = work->segment->basis->shape.head_dim;
    const uint32_t element = kvt_dtype_bytes(work->segment->dtype);
    const uint64_t row_bytes = segment_row_bytes(work->segment);
    float *held = work->scratch.rows;
    for (uint32_t i = 0; i < tokens->count; i += SEGMENT_GROUP) {
        const uint32_t left = tokens->count - i;
        const uint32_t group = left < SEGMENT_GROUP ? left : SEGMENT_GROUP;
        /* Behind the block's last token the columns have anything, of which no row is kept. */
        work->kernels->to_rows(work->scratch.out + tokens->first + i, width, held);
        for (uint32_t t = 0; t < group; t++) {
            const uint64_t at =
                (tokens->row + i + t) * row_bytes + (uint64_t)piece->first * element;
            for (uint32_t e = 0; e < width;) {
                const uint64_t piece_bytes = view_rows_piece(target, sizeof tile);
                const uint32_t most =
                    (uint32_t)(piece_bytes / element < width - e ? piece_bytes / element
                                                                 : width - e);
                const uint64_t bytes = (uint64_t)most * element;
                uint8_t *room = view_rows_room(target, at + (uint64_t)e * element, bytes, tile);
                work->kernels->narrow(work->segment->dtype, held + (uint64_t)t * width + e, most,
                                      room);
                view_rows_keep(target, at + (uint64_t)e * element, bytes, room, tile);
                e += most;
            }
        }
    }
}

/* Elements of a span of a block, into the targets that are wanted. */
static void work_restore(const transform_work *work, uint32_t span, uint32_t block_count,
                         const work_tokens *tokens, const view_rows *const *targets)
{
    const transform_basis *basis = work->segment->basis;
    const uint32_t head = basis->shape.head_dim;
    const float step = (float)work->segment->step / (float)TRANSFORM_STEP_ONE;
    transform_product product = work_product(work, basis->inverse, span, block_count);
    const uint32_t pieces = product.width / head;
    const float *means = basis->means + work->first_element + (uint64_t)span * product.width;
    work_inputs(work, span, &product);
    for (uint32_t i = 0; i < pieces; i++) {
        const work_piece piece = work_piece_of(work, span * pieces + i);
        if (targets[piece.matrix] == NULL) continue;
        product.first = i * head;
        work->kernels->multiply(&product);
        for (uint32_t e = 0; e < head; e++)
            work->kernels->restore(product.out + (uint64_t)e * TRANSFORM_LANES, step,
                                   means[(uint64_t)i * head + e], block_count);
        if (piece.turns) work_turn(work, product.out, block_count);
        work_store(work, &piece, tokens, targets[piece.matrix]);
    }
}

kvt_status transform_decode(const transform_segment *segment, const void *source, uint64_t bytes,
                            uint32_t first_token, uint32_t count, const view_rows *const *targets,
                            void *scratch)
{
    transform_work work;
    assert(first_token <= segment->tokens && count <= segment->tokens - first_token);
    work_start(&work, segment, segment->step, scratch);
    if (!segment_check_head(&work, source, bytes)) return KVT_E_CORRUPT;
    uint64_t at = block_head_at(work.blocks);
    const uint32_t end = first_token + count;
    for (uint32_t block = 0; block < work.blocks; block++) {
        const uint32_t start = block * TRANSFORM_BLOCK_TOKENS;
        const uint32_t tokens = block_tokens(segment, block);
        if (start >= end || start + tokens <= first_token) {
            at += transform_block_bytes(segment->basis, &work.order, tokens,
                                        (const uint8_t *)source + block_head_at(block));
            continue;
        }
        const uint32_t from = first_token > start ? first_token - start : 0;
        const uint32_t to = end - start < tokens ? end - start : tokens;
        const work_tokens wanted = {from, to - from, start + from - first_token};
        kvt_status status = work_read(&work, source, block, &at);
        if (status != KVT_OK) return status;
        work_angles(&work, block, false);
        for (uint32_t span = 0; span < work.span_count; span++)
            work_restore(&work, span, tokens, &wanted, targets);
    }
    return KVT_OK;
}

static void work_third(int16_t *codes, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        const int32_t code = codes[i];
        codes[i] = (int16_t)(code < 0 ? -((1 - code) / 3) : (code + 1) / 3);
    }
}

kvt_status transform_derive_step3(const transform_segment *segment, const void *source,
                                  uint64_t bytes, void *target, uint64_t capacity, void *scratch,
                                  uint64_t *written_out)
{
    transform_work work;
    const uint32_t step = 3u * segment->step;
    *written_out = 0;
    if (step > TRANSFORM_STEP_MAX) return KVT_E_ARGUMENT;
    work_start(&work, segment, segment->step, scratch);
    if (!segment_check_head(&work, source, bytes)) return KVT_E_CORRUPT;
    rans_target out = target_start(segment, target, capacity);
    bool fits = segment_write_head(&work, step, &out);
    uint64_t at = block_head_at(work.blocks);
    for (uint32_t block = 0; fits && block < work.blocks; block++) {
        /* Both orders share one array. */
        transform_order_make(segment->basis, work.first_element, work.elements, segment->step,
                             &work.order);
        kvt_status status = work_read(&work, source, block, &at);
        if (status != KVT_OK) return status;
        work_third(work.scratch.codes, (uint64_t)work.elements * TRANSFORM_LANES);
        transform_order_make(segment->basis, work.first_element, work.elements, step, &work.order);
        fits = transform_block_write(segment->basis, &work.order, work.scratch.codes,
                                     block_tokens(segment, block), &work.scratch.room,
                                     block_head_at(block), &out);
    }
    return target_finish(segment, &out, capacity, fits, written_out);
}
