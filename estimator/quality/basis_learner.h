/* SPDX-License-Identifier: Apache-2.0 */
/*
 * basis_learner.h - the inside of a learner, for the files that share it. Thread rule:
 * basis_learn.h.
 */
#ifndef ESTIMATOR_BASIS_LEARNER_H
#define ESTIMATOR_BASIS_LEARNER_H

#include "estimator/quality/basis_learn.h"

struct basis_learner {
    transform_shape shape;
    transform_basis basis; /* points at the arrays below */
    double *frequencies;
    float *means;
    uint16_t *forward, *inverse;
    int16_t *spreads;
    uint32_t spans, width; /* of a full one */
    uint64_t elements;
    void *scratch; /* of the codec */

    double
        *metric; /* [layers][sides][kv_heads][head_dim^2]: second moments, then Cholesky factors */
    uint64_t *rows;  /* [layers]: queries that were added; 0: none */
    bool outputs;    /* Gram matrices were given */
    bool factored;   /* metric holds factors L of L L' */
    double *weights; /* [layers][sides] */
    bool weighted;   /* they were given */

    double *moments; /* [spans][width^2] about zero, as transform_matrix_at counts */
    double *sums;    /* [elements]; */
    uint64_t learnt; /* tokens */
    bool solved;

    double *squares; /* [elements][TRANSFORM_BANDS], of components of the SPREAD entries */
    uint64_t spread; /* groups of 16 tokens */
    bool spreads_made;
    uint64_t (*counts)[256]; /* [TRANSFORM_CLASSES] */
    bool counted;
};

/* Where the metric of one head lies. */
static inline double *learner_metric_at(const basis_learner *learner, uint32_t layer, uint32_t side,
                                        uint32_t kv_head)
{
    const uint64_t size = (uint64_t)learner->shape.head_dim * learner->shape.head_dim;
    const uint64_t head =
        ((uint64_t)layer * learner->shape.sides + side) * learner->shape.kv_heads + kv_head;
    return learner->metric + head * size;
}

/* The metric of an element's head: elements are ordered by layer, side and head. */
static inline double *learner_metric_of(const basis_learner *learner, uint64_t element)
{
    const uint64_t size = (uint64_t)learner->shape.head_dim * learner->shape.head_dim;
    return learner->metric + element / learner->shape.head_dim * size;
}

/* Makes factors of the metric, once. KVT_OK or KVT_E_CORRUPT. */
kvt_status learner_factor(basis_learner *learner);

/* The counts that the table of a class begins with: codes that fall off geometrically, as wide as
 * the class. Returns the low bits. */
uint32_t learner_table_start(uint32_t class, uint64_t counts[256]);

#endif
