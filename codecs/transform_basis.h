/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transform_basis.h - what the transform codec knows of a model: a basis, as a const view of bytes
 * that somebody else has read and checked (basis/basis_file.h). docs/codecs/transform.md has the
 * arithmetic.
 *
 * A span is a set of matrices whose elements of one token make one vector; the vector's elements
 * are ordered by layer, side (K first), head and channel. A span of heads is one head of one
 * matrix. The spans of a basis are ordered by their first element, and cover every element of a
 * token once: `elements` of them in all.
 *
 * Thread rule: plain data that nobody changes.
 */
#ifndef CODECS_TRANSFORM_BASIS_H
#define CODECS_TRANSFORM_BASIS_H

#include "rans.h"

#include <kvterrace/types.h>

typedef enum transform_span {
    TRANSFORM_SPAN_HEAD = 1,   /* one head of one side */
    TRANSFORM_SPAN_LAYER = 2,  /* all sides of a layer */
    TRANSFORM_SPAN_LAYERS4 = 3 /* all sides of four layers; the last span may have fewer */
} transform_span;

typedef enum transform_metric {
    TRANSFORM_METRIC_PLAIN = 0,   /* squared error, weighted by layer and side alone */
    TRANSFORM_METRIC_QUERIES = 1, /* K by the second moments of its queries */
    TRANSFORM_METRIC_OUTPUTS = 2, /* V by the Gram matrix of the output projection */
    TRANSFORM_METRIC_BOTH = 3
} transform_metric;

enum {
    TRANSFORM_MODE = 2, /* of variants; 1, without the transform along tokens, is gone */
    TRANSFORM_CLASSES = 32,
    TRANSFORM_WIDTH_MAX = 8192,
    TRANSFORM_LAYERS_MAX = 1024,
    TRANSFORM_HASH_BYTES = 32,
    TRANSFORM_SPREAD_STEPS = 8, /* spreads and steps are compared as logarithms in eighths */
    TRANSFORM_ALONG = 16,       /* tokens whose components are transformed together, too */
    TRANSFORM_BANDS = 5,        /* of their frequencies: 0, 1, 2-3, 4-7, 8-15 */
    TRANSFORM_LOW_BITS_MAX = 12
};

typedef struct transform_shape {
    uint32_t layers;
    uint32_t kv_heads;
    uint32_t head_dim;
    uint32_t rotary_dim; /* channels of a head that turn with the position: even; 0: none */
    uint8_t sides;       /* 1 or 2, as kvt_layout_sides */
    uint8_t pairing;     /* kvt_rope_pairing */
    uint8_t span;        /* transform_span */
    uint8_t metric;      /* transform_metric: what the basis was made with */
} transform_shape;

/* A table of one class: symbols of codes, of which `low_bits` are stored as they are. */
typedef struct transform_table {
    uint32_t low_bits;
    rans_table symbols;
} transform_table;

typedef struct transform_basis {
    transform_shape shape;
    uint8_t hash[TRANSFORM_HASH_BYTES];
    const double *frequencies; /* [rotary_dim / 2], radians a position, 0 to 6.28 */
    const float *means;        /* [elements] */
    const uint16_t *forward;   /* bf16, span by span [element][component] */
    const uint16_t *inverse;   /* bf16, span by span [component][element] */
    const int16_t *spreads; /* [elements][TRANSFORM_BANDS], by component: log2 of its deviation in
                                  eighths */
    transform_table tables[TRANSFORM_CLASSES]; /* of class 0 unused */
} transform_basis;

/* Groups of tokens that are transformed together; the last one is filled up. */
static inline uint32_t transform_groups(uint32_t tokens)
{
    return (tokens + TRANSFORM_ALONG - 1) / TRANSFORM_ALONG;
}

/* The first frequency of a band; of TRANSFORM_BANDS their number. */
static inline uint32_t transform_band_start(uint32_t band)
{
    return band == 0 ? 0 : 1u << (band - 1);
}

static inline uint32_t transform_row(const transform_shape *shape)
{
    return shape->kv_heads * shape->head_dim;
}

/* Elements of a token in all layers. */
static inline uint64_t transform_elements(const transform_shape *shape)
{
    return (uint64_t)shape->layers * shape->sides * transform_row(shape);
}

/* Layers that share a span; 1 for heads. */
static inline uint32_t transform_span_layers(const transform_shape *shape)
{
    return shape->span == TRANSFORM_SPAN_LAYERS4 ? 4 : 1;
}

static inline uint32_t transform_span_count(const transform_shape *shape)
{
    const uint32_t together = transform_span_layers(shape);
    if (shape->span == TRANSFORM_SPAN_HEAD) return shape->layers * shape->sides * shape->kv_heads;
    return (shape->layers + together - 1) / together;
}

/* Elements of a span: of all but the last one, and of one. */
static inline uint32_t transform_width(const transform_shape *shape)
{
    if (shape->span == TRANSFORM_SPAN_HEAD) return shape->head_dim;
    return transform_span_layers(shape) * shape->sides * transform_row(shape);
}

static inline uint32_t transform_width_of(const transform_shape *shape, uint32_t span)
{
    const uint64_t before = (uint64_t)span * transform_width(shape);
    const uint64_t left = transform_elements(shape) - before;
    return left < transform_width(shape) ? (uint32_t)left : transform_width(shape);
}

/* The first 20 bits of a basis's hash, as variants name it. */
static inline uint32_t transform_hash_start(const uint8_t hash[TRANSFORM_HASH_BYTES])
{
    return (uint32_t)hash[0] << 12 | (uint32_t)hash[1] << 4 | hash[2] >> 4;
}

/* Where a span's matrix starts in `forward` and `inverse`: all spans before it are full ones. */
static inline uint64_t transform_matrix_at(const transform_shape *shape, uint32_t span)
{
    return (uint64_t)span * transform_width(shape) * transform_width(shape);
}

#endif
