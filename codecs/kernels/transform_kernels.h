/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transform_kernels.h - the arithmetic of codec 8 on blocks of up to 256 tokens, for each
 * instruction set. Lanes are tokens: arrays are [row][256], and a row's tokens are rounded up to
 * 16.
 *
 * A product's factors have so few bits that it is exact in fp32 (docs/codecs/transform.md), so a
 * fused multiply-add and a product with a sum give the same bits; sums are taken in ascending
 * order. Instructions that multiply two bf16 pairs and add both products, one after the other and
 * each with its rounding, give the same bits again (transform_avx512.c). Re-entrant.
 */
#ifndef CODECS_TRANSFORM_KERNELS_H
#define CODECS_TRANSFORM_KERNELS_H

#include <kvterrace/types.h>

enum {
    TRANSFORM_LANES = 256,     /* floats between rows */
    TRANSFORM_LANE_GROUP = 16, /* tokens are rounded up to a multiple of this */
    TRANSFORM_PANEL = 8,       /* outputs that are made together */
    TRANSFORM_PAIR_MOST = 256, /* codes up to this size are bf16 without rounding */
    TRANSFORM_SPARSE_TOKENS = 128,
    TRANSFORM_SPARSE_ROWS = 128,
    TRANSFORM_SPARSE_ROOM = TRANSFORM_SPARSE_ROWS + 8, /* eight terms are written at once */
    TRANSFORM_SPARSE_PANEL = 64 /* outputs of a sparse product that are made together */
};

/* out[o] = sum over k of matrix[rows[k]][first + o] * in[k], for o below count. The inputs from
 * `plain` on may come as pairs of bf16 instead: one row for two of them, as `pair` writes it. */
typedef struct transform_product {
    const uint16_t *matrix; /* bf16 [width][width] */
    uint32_t width;
    const uint16_t *rows; /* ascending, row_count of them; NULL: all */
    uint32_t row_count;
    uint32_t plain; /* row_count: no pairs */
    uint32_t first;
    uint32_t count;
    uint32_t tokens;
    const float *in; /* [row_count][256], or [plain + half of the others, rounded up][256] */
    float *out;      /* [count][256] */
    float *panel;    /* scratch [row_count][TRANSFORM_PANEL] */
} transform_product;

/* The product of decoding in rows: of each token only the codes that are not 0, which at the rates
 * of this codec are a fifth to a half. A term of 0 changes no sum, so the bits are those of
 * `multiply`. Inputs are taken in parts whose factors of a panel stay in the first cache. Tokens
 * are groups of 16 within the block's 256; codes behind its last one are 0. */
typedef struct transform_sparse {
    const uint16_t *matrix; /* as of a product */
    uint32_t width;
    const uint16_t *rows;         /* ascending: the inputs of this part, row_count of them */
    uint32_t row_count;           /* at most TRANSFORM_SPARSE_ROWS */
    bool more;                    /* other parts were summed before: their sums go on */
    uint32_t first_token, tokens; /* multiples of 16; at most TRANSFORM_SPARSE_TOKENS */
    const int16_t *codes;         /* [width][256] */
    float *out;                   /* [tokens][width] */
    /* Scratch. A term is a code that is not 0, and where its factors lie in the panel, in bytes. */
    float *terms;    /* [tokens][TRANSFORM_SPARSE_ROOM] */
    uint32_t *at;    /* the same */
    uint16_t *panel; /* [TRANSFORM_SPARSE_ROWS][TRANSFORM_SPARSE_PANEL] */
    uint32_t counts[TRANSFORM_SPARSE_TOKENS];
} transform_sparse;

/* How values become codes: inverse = units a step; third = 1 / 3^j, or 0 when j is 0. */
typedef struct transform_rounding {
    float inverse;
    float third;
} transform_rounding;

typedef struct transform_kernels {
    void (*multiply)(const transform_product *product);

    /* NULL: multiply takes no pairs. Two rows of codes of at most TRANSFORM_PAIR_MOST in size as
     * bf16, the first one in the upper half of each float's place; second may be NULL. */
    void (*pair)(const int16_t *first, const int16_t *second, uint32_t tokens, float *pairs);

    /* Both NULL: decoding takes `multiply`. The terms of all tokens; then, as often as wanted, the
     * sums of `count` outputs from `first` on. */
    void (*list)(transform_sparse *sparse);
    void (*sum)(const transform_sparse *sparse, uint32_t first, uint32_t count);

    /* Cosines and sines of 256 positions, `stride` floats apart; turn: of one position, in 2^-64 of
     * a whole one. */
    void (*angles)(uint64_t turn, uint64_t first, uint64_t stride, float *c, float *s);

    /* in[i] -= mean, rounded to 16 significant bits, and 0 below 2^-40. False when one is not
     * finite or not below 2^60. */
    bool (*centre)(float *in, float mean, uint32_t tokens);

    /* False when a code is beyond 32767. */
    bool (*quantise)(const float *values, const transform_rounding *rounding, uint32_t tokens,
                     int16_t *codes);

    /* (x, y) turned: x c - y s, y c + x s. */
    void (*turn)(float *x, float *y, const float *c, const float *s, uint32_t tokens);

    /* Codes to fp32. */
    void (*widen)(const int16_t *codes, uint32_t tokens, float *values);

    /* Sixteen rows of `count` floats, one behind the other, become columns of sixteen tokens, and
     * the other way round. */
    void (*to_columns)(const float *rows, uint32_t count, float *columns);
    void (*to_rows)(const float *columns, uint32_t count, float *rows);

    /* values[i] = values[i] * step + mean. */
    void (*restore)(float *values, float step, float mean, uint32_t tokens);

    /* The same of a row, whose elements have means of their own. */
    void (*restore_row)(float *row, float step, const float *means, uint32_t count);

    /* A row's pairs turned: its first and second `pairs` elements, which are apart, or
     * neighbours. */
    void (*turn_row)(float *row, const float *c, const float *s, uint32_t pairs, bool apart);

    /* The cosine transform of 16 tokens, for each of count places k: token t is in[t * in_stride +
     * k], frequency f out[f * out_stride + k] = sum over t below 8, ascending, of weights[f][t] *
     * (token t + token 15 - t), of the difference where f is odd. in and out may be the same, with
     * the same stride, of up to 16 places. */
    void (*along)(const float weights[16][8], const float *in, uint64_t in_stride, uint32_t count,
                  float *out, uint64_t out_stride);

    /* Its inverse: tokens t and 15 - t are the sum and the difference of two sums over frequencies,
     * ascending, of weights[f][t] * frequency f: of the even ones and of the odd ones. */
    void (*back)(const float weights[16][8], const float *in, uint64_t in_stride, uint32_t count,
                 float *out, uint64_t out_stride);

    /* Elements of finite values below 2^100 in size: limited to the dtype's largest, to the
     * nearest, ties to even. */
    void (*narrow)(uint8_t dtype, const float *values, uint32_t count, uint8_t *target);
} transform_kernels;

/* The sparse product with AVX2. */
void transform_list_avx2(transform_sparse *sparse);
void transform_sum_avx2(const transform_sparse *sparse, uint32_t first, uint32_t count);

extern const transform_kernels transform_kernels_scalar;
extern const transform_kernels transform_kernels_avx2;
extern const transform_kernels transform_kernels_avx512;
extern const transform_kernels transform_kernels_avx512bf16;

/* Whether the processor has the products of pairs, and they round as they have to. */
bool transform_has_pairs(void);

/* The ones of the level in use. */
const transform_kernels *transform_kernels_choose(void);

#endif
