/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_score.h - what a forward pass is evaluated by: likelihood, KL, and how much attention
 * moved. Sums are in double. Thread rule: any thread; one thread per session.
 */
#ifndef ESTIMATOR_MODEL_SCORE_H
#define ESTIMATOR_MODEL_SCORE_H

#include "estimator/model/model.h"

/* log(sum(exp(logits))), so that logits[i] minus it is a log-probability. */
double model_log_sum(const float *logits, uint32_t vocab);

/* The id with the largest logit, the first of equals. */
uint32_t model_best(const float *logits, uint32_t vocab);

/* KL(exact || variant) in nats of two rows of logits; 0 when they are equal. Rounding may leave a
 * value a few 1e-16 below zero, which is not cut off because means would then be biased. */
double model_kl(const float *exact, const float *variant, uint32_t vocab);

/* The negative log-likelihood of tokens[1..count) given all before, summed, in nats.
 * KVT_OK; KVT_E_ARGUMENT (fewer than two tokens, or see model_forward); KVT_E_MEMORY. */
KVT_NODISCARD kvt_status model_nll(model_session *session, const uint32_t *tokens, uint32_t count,
                                   double *nll_out);

typedef struct model_probe_result {
    /* Over all queries of a (layer, head): |output - output'| / |output|; the mean over heads. */
    double attention_error;
    /* 1 minus the attention weight that exact KV gives to tokens that the variant dropped. */
    double retained_mass;
} model_probe_result;

/* Queries of the tokens that follow a context, and the context with exact and with other KV. */
typedef struct model_probe {
    const model_past *exact;   /* kept is NULL */
    const model_past *variant; /* as many tokens */
    uint32_t rows;
    const float *const *queries; /* [layers], each [rows][heads][head_dim], post-RoPE */
    /* The rows' own KV, exact on both sides and seen causally, as in a forward pass: per layer
     * [rows][kv_heads][head_dim]. NULL: the rows see the context only. */
    const float *const *own_k;
    const float *const *own_v;
    /* The attention outputs with exact KV where they are known, laid out as queries; they save the
     * exact half of a probe of KV from which nothing is dropped. NULL: not known. */
    const float *const *exact_out;
} model_probe;

/* Attention output with exact and with other KV. head_errors may be NULL, else [layers][heads].
 * KVT_OK; KVT_E_ARGUMENT (no tokens or rows, differing counts, another dtype); KVT_E_MEMORY. */
KVT_NODISCARD kvt_status model_probe_attention(const model_config *config, const model_probe *probe,
                                               model_probe_result *result_out, double *head_errors);

#endif
