/* SPDX-License-Identifier: Apache-2.0 */
/*
 * basis_learn.h - learns a basis of the transform codec (docs/codecs/transform.md).
 *
 *     learner = basis_learner_open
 *     queries, outputs, weights    what an error costs; each may be left out
 *     entries to LEARN             covariances in one pass, sums in double
 *     basis_learner_solve          the matrices
 *     other entries to SPREAD      spreads of components
 *     the same entries to COUNT    tables
 *     basis_learner_finish         the object
 *
 * Tables and spreads of the entries that the matrices were learnt on would be too narrow for
 * others: SPREAD and COUNT take entries of their own. The first KVT_SINK_TOKENS tokens of an entry,
 * which records store raw, are left out everywhere. The same calls give the same bytes on one
 * machine.
 *
 * Thread rule: one thread per learner. Products and eigenvectors are OpenBLAS's.
 */
#ifndef ESTIMATOR_BASIS_LEARN_H
#define ESTIMATOR_BASIS_LEARN_H

#include "basis/basis_file.h"
#include "codecs/transform.h"

typedef struct basis_learner basis_learner;

/* shape.metric is not read: it follows from what the learner is given. frequencies: as of a basis,
 * [rotary_dim / 2], copied. KVT_OK; KVT_E_ARGUMENT (shape); KVT_E_MEMORY. */
KVT_NODISCARD kvt_status basis_learner_open(const transform_shape *shape, const double *frequencies,
                                            basis_learner **learner_out);
void basis_learner_close(basis_learner *learner); /* NULL is allowed */

/* Queries of a layer, [rows][heads][head_dim], post-RoPE; row r stands at first_position + r.
 * Errors of K count by the queries' second moments, turned back to position 0. heads is a multiple
 * of kv_heads. */
void basis_learner_queries(basis_learner *learner, uint32_t layer, const float *queries,
                           uint32_t rows, uint32_t heads, uint32_t first_position);

/* The Gram matrix [head_dim][head_dim] of the output projection of the query heads that read this
 * KV head: errors of V count by it. */
void basis_learner_outputs(basis_learner *learner, uint32_t layer, uint32_t kv_head,
                           const double *gram);

/* The weight of an error of one layer and side beside the others, in the metric above: a factor of
 * its size. Without weights each layer and side has the same ratio of signal to error. */
void basis_learner_weigh(basis_learner *learner, const double *weights); /* [layers][sides] */

/* Draws errors of one size for a layer and side: [tokens][kv_heads][head_dim], independent and
 * normal in the metric with deviation 1, at position 0. KVT_OK or KVT_E_CORRUPT (the metric of a
 * head is not positive: no finite queries). */
KVT_NODISCARD kvt_status basis_learner_noise(basis_learner *learner, uint32_t layer, kvt_side side,
                                             uint32_t tokens, uint64_t seed, float *noise_out);

typedef enum basis_purpose { BASIS_LEARN, BASIS_SPREAD, BASIS_COUNT } basis_purpose;

/* An entry from position 0 on, of the shape's layout. KVT_OK; KVT_E_ARGUMENT (another layout; no
 * token behind the sinks; not the time for it); KVT_E_UNSUPPORTED (elements that the codec does not
 * take); KVT_E_MEMORY. */
KVT_NODISCARD kvt_status basis_learner_entry(basis_learner *learner, basis_purpose purpose,
                                             const kvt_layout *layout, const void *source);

/* The deviation of a layer and side in the metric, of the entries so far. */
KVT_NODISCARD kvt_status basis_learner_deviation(basis_learner *learner, uint32_t layer,
                                                 kvt_side side, double *deviation_out);

/* Makes the matrices of the covariances. The unit of the step is the power of two at which a
 * component takes about two bits. KVT_OK; KVT_E_ARGUMENT (no entry); KVT_E_CORRUPT (a matrix has no
 * inverse); KVT_E_MEMORY. */
KVT_NODISCARD kvt_status basis_learner_solve(basis_learner *learner);

/* The object, of malloc and aligned to 64. origin's tokens are filled in. KVT_OK; KVT_E_ARGUMENT (a
 * step was left out); KVT_E_MEMORY; what basis_write gives. */
KVT_NODISCARD kvt_status basis_learner_finish(basis_learner *learner, basis_origin *origin,
                                              uint8_t **object_out, uint64_t *bytes_out);

#endif
