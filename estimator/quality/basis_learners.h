/* SPDX-License-Identifier: Apache-2.0 */
/*
 * basis_learners.h - one learner of each span, fed alike, and the bases that they make.
 *
 * Thread rule: one thread per set of learners.
 */
#ifndef ESTIMATOR_BASIS_LEARNERS_H
#define ESTIMATOR_BASIS_LEARNERS_H

#include "codecs/transform_basis.h"
#include "estimator/quality/basis_learn.h"

enum { QUALITY_BASIS_SPANS = TRANSFORM_SPAN_LAYERS4 };

/* The name of a span, "head" for TRANSFORM_SPAN_HEAD; "" of 0. */
const char *quality_basis_span_name(uint32_t span);

/* Of each span; objects of spans that are too wide for the codec are NULL. */
typedef struct quality_bases {
    uint8_t *objects[QUALITY_BASIS_SPANS]; /* .kvtbasis, aligned to 64 */
    uint64_t bytes[QUALITY_BASIS_SPANS];
    transform_basis bases[QUALITY_BASIS_SPANS]; /* views of the objects */
} quality_bases;

void quality_bases_free(quality_bases *bases);

typedef struct basis_learners {
    basis_learner *of[QUALITY_BASIS_SPANS]; /* NULL: the span is too wide */
    transform_shape shape;                  /* of all but span and metric */
    double *logs;                           /* [layers][sides]: sums of basis_learners_hear */
    uint32_t heard;                         /* contexts */
} basis_learners;

/* There is one of heads at least. KVT_OK; KVT_E_ARGUMENT (shape); KVT_E_MEMORY. */
KVT_NODISCARD kvt_status basis_learners_open(const transform_shape *shape,
                                             const double *frequencies,
                                             basis_learners *learners_out);
void basis_learners_close(basis_learners *learners); /* zeroed is allowed */

/* Of basis_learn.h, for each span. */
void basis_learners_queries(const basis_learners *learners, uint32_t layer, const float *queries,
                            uint32_t rows, uint32_t heads, uint32_t first_position);
void basis_learners_outputs(const basis_learners *learners, uint32_t layer, uint32_t kv_head,
                            const double *gram);
KVT_NODISCARD kvt_status basis_learners_entry(const basis_learners *learners, basis_purpose purpose,
                                              const kvt_layout *layout, const void *source);

/* Draws noise for a layer and side, at their positions, [tokens][row]: of `size_out` in the metric,
 * a fixed share of the deviation of the entries so far. KVT_OK; KVT_E_CORRUPT. */
KVT_NODISCARD kvt_status basis_learners_noise(const basis_learners *learners, uint32_t layer,
                                              kvt_side side, uint32_t tokens,
                                              const double *frequencies, float *noise_out,
                                              double *size_out);

/* Hears the error that noise of a size caused in a context, of a layer and side, in powers, as KL
 * is. */
void basis_learners_hear(basis_learners *learners, uint32_t layer, kvt_side side, double size,
                         double error);

/* Weighs by what was heard of `heard` contexts: the root of error per power, smoothed over a side's
 * neighbours. Without any, each layer and side has the same ratio of signal to error. KVT_OK;
 * KVT_E_MEMORY; what basis_learner_solve gives. */
KVT_NODISCARD kvt_status basis_learners_solve(basis_learners *learners);

/* The objects, and views of them. Free with quality_bases_free, also after an error. */
KVT_NODISCARD kvt_status basis_learners_finish(const basis_learners *learners, const char *model,
                                               uint64_t digest, quality_bases *bases_out);

#endif
