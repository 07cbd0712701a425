/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transform_work.h - what encoding and decoding of a segment of codec 8 share. Internal to
 * transform.c, transform_decode.c and transform_work.c. Re-entrant.
 *
 *   segment | blocks, u32 | step, u16 | span, u8 | 0 | per block its head | blocks |
 */
#ifndef CODECS_TRANSFORM_WORK_H
#define CODECS_TRANSFORM_WORK_H

#include "codecs.h"
#include "codecs/kernels/entropy_kernels.h"
#include "codecs/kernels/transform_kernels.h"
#include "transform.h"
#include "transform_block.h"

#include <assert.h>

enum {
    SEGMENT_HEAD_BYTES = 8,
    SEGMENT_GROUP = TRANSFORM_LANE_GROUP /* rows that are turned into columns together */
};
_Static_assert((int)TRANSFORM_LANES == (int)TRANSFORM_BLOCK_TOKENS, "a block is a row of lanes");

/* The caller's scratch, cut. */
typedef struct transform_scratch {
    float *in;    /* [width][256], or the sums of a sparse product */
    float *out;   /* [head_dim][256] */
    float *panel; /* [width][TRANSFORM_PANEL], or that of a sparse product */
    float *terms; /* of a sparse product */
    uint32_t *at;
    float *rows;   /* [16][head_dim] */
    float *cosine; /* [rotary_dim / 2][256], or [256][rotary_dim / 2] */
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
    float weights[16][8]; /* of the transform along tokens: [frequency][token below 8] */
    uint64_t first_element;
    uint32_t elements;
    uint32_t first_span;
    uint32_t span_count;
    uint32_t blocks;
} transform_work;

/* The head that is piece `piece` of a segment: its matrix, its place in a row, whether it turns. */
typedef struct work_piece {
    uint32_t matrix;
    uint32_t first; /* element in a row */
    bool turns;
} work_piece;

static inline uint64_t segment_row_bytes(const transform_segment *segment)
{
    return (uint64_t)transform_row(&segment->basis->shape) * kvt_dtype_bytes(segment->dtype);
}

static inline uint32_t block_tokens(const transform_segment *segment, uint32_t block)
{
    const uint32_t left = segment->tokens - block * TRANSFORM_BLOCK_TOKENS;
    return left < TRANSFORM_BLOCK_TOKENS ? left : TRANSFORM_BLOCK_TOKENS;
}

/* Groups of 16 tokens that a block's last ones are rounded up to. */
static inline uint32_t block_groups(const transform_segment *segment, uint32_t block)
{
    return transform_groups(block_tokens(segment, block));
}

static inline uint64_t block_head_at(uint32_t block)
{
    return SEGMENT_HEAD_BYTES + (uint64_t)block * TRANSFORM_BLOCK_HEAD_BYTES;
}

static inline const int16_t *work_codes(const transform_work *work, uint64_t component)
{
    return work->scratch.codes + component * TRANSFORM_LANES;
}

/* Cuts the scratch and orders the components by their classes at the step. */
void transform_work_start(transform_work *work, const transform_segment *segment, uint32_t step,
                          void *scratch);

/* How the tokens of a block lie: as lanes [token of a group][group], as lanes one after the other,
 * or as rows, a token's pairs together. */
typedef enum work_layout { WORK_GROUPS, WORK_LANES, WORK_ROWS } work_layout;

/* Cosines and sines of a block for a segment with keys: by its tokens' positions, or back to
 * position 0. */
void transform_work_angles(const transform_work *work, uint32_t block, bool back,
                           work_layout layout);

/* Turns the columns of one head of K. */
void transform_work_turn(const transform_work *work, float *head, uint32_t lanes);

work_piece transform_work_piece(const transform_work *work, uint32_t piece);

/* The product of a span and all its outputs, from the scratch. */
transform_product transform_work_product(const transform_work *work, const uint16_t *matrices,
                                         uint32_t span, uint32_t tokens);

/* Whether the head is the segment's, and all its blocks fill what is left. */
bool transform_work_check(const transform_work *work, const uint8_t *source, uint64_t bytes);

/* Reads a block's codes, and moves past it. */
kvt_status transform_work_read(const transform_work *work, const uint8_t *source, uint32_t block,
                               uint64_t *at);

#endif
