/*
 * lossless_rans.h - codec 2, mode dense with its own coder, for one matrix: exponents as distances
 * from their channel's mean, coded by interleaved rANS (rans.h); the rest as it is. Exact.
 *
 * A tile is a run of up to 256 tokens by a run of up to 1024 channels. Stored, tokens outside:
 *
 *   | kind, u8 | flags, u8 | states, u8 | 0 | table bytes, u16 | 0, u16 | words, u32 |
 *   | bases, a byte a channel (flag 1) | table | states, u32 each | lows | extras | words, u16 |
 *
 *   kind   0: raw, the head has 0 elsewhere and the tile's rows follow.
 *          1: symbol = base - exponent mod 256; lows = sign and 7 mantissa bits, a byte an element;
 *             of fp32 the 16 low bits as extras, unless flag 2 says that all are zero.
 *          2: fp16 in full. symbol = (base - exponent mod 32) * 8 + sign * 4 + mantissa bits 9..8;
 *             lows = mantissa bits 7..0. fp16 with flag 4, kind 1, has its low three bits zero.
 *
 * Scratch is aligned to 64. No state, no allocation. Re-entrant.
 */
#ifndef CODECS_LOSSLESS_RANS_H
#define CODECS_LOSSLESS_RANS_H

#include <kvterrace/types.h>

typedef struct lossless_rans_shape {
    uint64_t tokens; /* at least 1 */
    uint64_t row;    /* channels of a token, at least 1 */
    uint8_t dtype;   /* KVT_DTYPE_FP16, BF16 or FP32; others are not taken */
} lossless_rans_shape;

/* A matrix that does not shrink is refused: its own bytes are the bound. */
uint64_t lossless_rans_bound(const lossless_rans_shape *shape);
uint64_t lossless_rans_scratch_bytes(const lossless_rans_shape *shape);

/* KVT_OK; KVT_RAW when the matrix would not shrink or is of another dtype; KVT_E_SPACE past
 * capacity. */
kvt_status lossless_rans_encode(const lossless_rans_shape *shape, const void *source, void *target,
                                uint64_t capacity, void *scratch, uint64_t *written_out);

/* Decodes the whole matrix. KVT_OK or KVT_E_CORRUPT. */
kvt_status lossless_rans_decode(const lossless_rans_shape *shape, const void *source,
                                uint64_t source_bytes, void *target, void *scratch);

#endif
