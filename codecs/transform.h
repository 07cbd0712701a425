/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transform.h - codec 8: a linear transform with a basis learnt per model, a cosine transform of
 * each 16 tokens, one uniform step, and an order-0 entropy coder with the basis's tables.
 * docs/codecs/transform.md has the arithmetic and the format.
 *
 * A segment is what is coded together: one matrix for spans of heads, the matrices of one layer, or
 * those of four. A segment is cut into blocks of 256 tokens that decode alone.
 *
 * Steps nest in ratio 3, as in entropy.h: the code at step 3s is the code at step s divided by 3
 * and rounded to nearest, so that transform_derive_step3 gives byte for byte what encoding at 3s
 * gives.
 *
 * A segment with an element that is not finite or beyond 2^60 in size, or with a code beyond 32767,
 * is not taken (KVT_RAW). Elements closer than 2^-40 to their mean count as their mean.
 *
 * No state, no allocation; the caller gives scratch aligned to 64. Re-entrant.
 */
#ifndef CODECS_TRANSFORM_H
#define CODECS_TRANSFORM_H

#include "transform_basis.h"
#include "view_rows.h"

enum {
    TRANSFORM_STEP_ONE = 64, /* a step of the basis's unit */
    TRANSFORM_STEP_MAX = 1023,
    TRANSFORM_BLOCK_TOKENS = 256,
    TRANSFORM_MATRICES_MAX = 8 /* of a segment */
};

/* Turns a token's row of keys, transform_row floats, from position 0 to `position`. KVT_OK;
 * otherwise as kvt_keys_rerotate. */
KVT_NODISCARD kvt_status transform_turn_row(const transform_shape *shape, const double *frequencies,
                                            uint32_t position, float *row);

/* A segment of an entry: which matrices of which tokens. */
typedef struct transform_segment {
    const transform_basis *basis;
    uint32_t index;          /* below transform_segment_count */
    uint32_t first_position; /* of token 0, for the turning of keys */
    uint32_t tokens;         /* at least 1 */
    uint16_t step;           /* in 1/64 of the basis's unit, 1 .. TRANSFORM_STEP_MAX */
    uint8_t dtype;           /* KVT_DTYPE_FP16, BF16 or FP32 */
} transform_segment;

uint32_t transform_segment_count(const transform_shape *shape);

/* The matrices of a segment: layers ascending, K before V. first_layer_out may be NULL. */
uint32_t transform_segment_matrices(const transform_shape *shape, uint32_t index,
                                    uint32_t *first_layer_out);

/* Bytes of the segment's elements. An encoding that would not be smaller is refused, so that this
 * is room enough. */
uint64_t transform_bound(const transform_segment *segment);

/* Scratch of each function below, for segments of this basis and any tokens. */
uint64_t transform_scratch_bytes(const transform_shape *shape);

/* matrices: each [tokens][row], without gaps, at any address. KVT_OK; KVT_RAW (not taken, or it
 * would not shrink: target's content is undefined); KVT_E_SPACE past capacity. */
kvt_status transform_encode(const transform_segment *segment, const void *const *matrices,
                            void *target, uint64_t capacity, void *scratch, uint64_t *written_out);

/*
 * Decodes tokens [first_token, first_token + count) of a segment: the blocks that they lie in, and
 * nothing of the others.
 *   targets   one for each matrix, of `count` rows; NULL for those that are not wanted
 * KVT_OK or KVT_E_CORRUPT.
 */
kvt_status transform_decode(const transform_segment *segment, const void *source, uint64_t bytes,
                            uint32_t first_token, uint32_t count, const view_rows *const *targets,
                            void *scratch);

/* Makes of the encoding of a segment the one at three times its step. KVT_OK, KVT_E_CORRUPT,
 * KVT_RAW, KVT_E_SPACE; KVT_E_ARGUMENT: 3 times the step is beyond TRANSFORM_STEP_MAX. */
kvt_status transform_derive_step3(const transform_segment *segment, const void *source,
                                  uint64_t bytes, void *target, uint64_t capacity, void *scratch,
                                  uint64_t *written_out);

/* ---- for those that learn a basis: what encoding makes on its way ---- */

/* The elements of one span of a segment's block, turned back and without their means, as columns
 * [width][256] in scratch: of the block's tokens (plain), or of its lanes, 16 frequencies of each
 * group of 16 tokens (transform_block.h). Places behind are undefined. span counts from the
 * segment's first one. KVT_OK or KVT_RAW (not taken). */
kvt_status transform_span_columns(const transform_segment *segment, const void *const *matrices,
                                  uint32_t span, uint32_t block, bool plain, void *scratch,
                                  const float **columns_out);

/* The codes of a segment's block as [elements][256] of lanes in scratch. */
kvt_status transform_block_codes(const transform_segment *segment, const void *const *matrices,
                                 uint32_t block, void *scratch, const int16_t **codes_out);

/* The class of a unit of this spread at a step, 0 .. TRANSFORM_CLASSES - 1. */
uint32_t transform_class(int16_t spread, uint32_t step);

#endif
