/*
 * lossless_split.h - one tile of a matrix as byte planes, and back.
 *
 * A tile is a run of tokens by a run of channels. Plane 0 holds what an entropy coder can shrink,
 * the exponents, as the distance from a base of their channel; the other planes hold sign and
 * mantissa:
 *
 *          plane 0                      plane 1            plane 2      plane 3
 *   bf16   base - exponent              sign | mantissa
 *   fp16   (base - exponent) mod 32     mantissa 7..0
 *          in bits 7..3, sign, m9, m8
 *   fp32   base - exponent              sign | m22..m16    m15..m8      m7..m0
 *
 * The base of a channel is its mean exponent over the tile, so that all channels of a tile share
 * one distribution of distances. Wrap-around makes every bit pattern representable, NaN included.
 * Planes are token-major, as the matrix is. Loops are plain C that vectorises. Re-entrant.
 */
#ifndef CODECS_LOSSLESS_SPLIT_H
#define CODECS_LOSSLESS_SPLIT_H

#include <kvterrace/types.h>

enum {
    LOSSLESS_PLANES_MAX = 4,
    LOSSLESS_TILE_TOKENS = 256, /* so that a sum of exponents fits 16 bits */
    LOSSLESS_TILE_CHANNELS = 1024,
    LOSSLESS_TILE_ELEMENTS = LOSSLESS_TILE_TOKENS * LOSSLESS_TILE_CHANNELS
};

/* A tile in place: tokens x channels elements of a matrix whose rows are stride_bytes apart. */
typedef struct lossless_tile {
    uint32_t tokens;   /* 1 .. LOSSLESS_TILE_TOKENS */
    uint32_t channels; /* 1 .. LOSSLESS_TILE_CHANNELS */
    uint64_t stride_bytes;
    uint8_t dtype; /* KVT_DTYPE_BF16, FP16 or FP32 */
} lossless_tile;

/* Writes the base of each channel: its exponent's mean over the tile's tokens, rounded. */
void lossless_tile_bases(const lossless_tile *tile, const uint8_t *source, uint8_t *bases);

/* planes[p] has room for tokens * channels bytes. bases has one byte per channel. */
void lossless_tile_split(const lossless_tile *tile, const uint8_t *source, const uint8_t *bases,
                         uint8_t *const planes[LOSSLESS_PLANES_MAX]);
void lossless_tile_merge(const lossless_tile *tile,
                         const uint8_t *const planes[LOSSLESS_PLANES_MAX], const uint8_t *bases,
                         uint8_t *target);

#endif
