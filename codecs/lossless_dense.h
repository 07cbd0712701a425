/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lossless_dense.h - codec 2, mode dense, for one matrix: exponents as distances from their
 * channel's mean, coded by interleaved rANS (rans_stream.h); the rest as it is. Exact.
 *
 * A tile is a run of up to 256 tokens by a run of up to 1024 channels. Stored, tokens outside:
 *
 *   | kind, u8 | flags, u8 | 0, u16 | bases, a byte a channel (flag 1) | extras | lows | stream |
 *
 *   kind   0: raw, the head has 0 elsewhere and the tile's rows follow.
 *          1: lows = sign and 7 mantissa bits, a byte an element; of fp32 the 16 low bits as
 *             extras, unless flag 2 says that all are zero.
 *          2: fp16 in full. lows = mantissa bits 7..0; extras = sign above mantissa bits 9..8,
 *             three bits an element from the low end of each byte on, up to a whole byte.
 *          3: fp8. extras = sign above three mantissa bits, four bits an element: of a run of 128
 *             elements the first half in low ends, the second in high ones. No lows.
 *   flags  1: bases. 2: see above. 4: bf16 inside fp16, kind 1: its low three mantissa bits, which
 *          lows leave out, are zero. 8: lows are a stream of themselves plus 1, mod 256.
 *   stream symbol = 128 + base - exponent mod 256; without bases the base is 0.
 *
 * Scratch is aligned to 64. No state, no allocation. Re-entrant.
 */
#ifndef CODECS_LOSSLESS_DENSE_H
#define CODECS_LOSSLESS_DENSE_H

#include "view_rows.h"

typedef struct lossless_dense_shape {
    uint64_t tokens; /* at least 1 */
    uint64_t row;    /* channels of a token, at least 1 */
    uint8_t dtype;   /* KVT_DTYPE_FP16, BF16, FP32 or FP8; others are not taken */
} lossless_dense_shape;

/* A matrix that does not shrink is refused: its own bytes are the bound. */
uint64_t lossless_dense_bound(const lossless_dense_shape *shape);
uint64_t lossless_dense_scratch_bytes(const lossless_dense_shape *shape);

/* KVT_OK; KVT_RAW when the matrix would not shrink or is of another dtype; KVT_E_SPACE past
 * capacity. */
kvt_status lossless_dense_encode(const lossless_dense_shape *shape, const void *source,
                                 void *target, uint64_t capacity, void *scratch,
                                 uint64_t *written_out);

/* Decodes the whole matrix. KVT_OK or KVT_E_CORRUPT. */
kvt_status lossless_dense_decode(const lossless_dense_shape *shape, const void *source,
                                 uint64_t source_bytes, const view_rows *target, void *scratch);

#endif
