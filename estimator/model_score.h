/*
 * model_score.h - what a forward pass is judged by: likelihood, KL, and how much attention moved.
 * Sums are in double. Thread rule: any thread; one thread per session.
 */
#ifndef ESTIMATOR_MODEL_SCORE_H
#define ESTIMATOR_MODEL_SCORE_H

#include "estimator/model.h"

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

typedef struct model_probe {
    /* Over all queries of a (layer, head): |output - output'| / |output|; the mean over all heads.
     */
    double attention_error;
    /* The attention weight that exact KV gives to tokens that the variant kept; the mean. */
    double retained_mass;
} model_probe;

/*
 * Attention of the given queries over a context, with exact and with other K and V. Every query
 * sees the whole context and nothing else, so the context comes before all of them.
 * `queries` is per layer [rows][heads][head_dim], post-RoPE. Both pasts have the same tokens;
 * exact->kept must be NULL. layer_errors may be NULL, else [layers].
 * KVT_OK; KVT_E_ARGUMENT (no tokens or rows, differing counts, another dtype); KVT_E_MEMORY.
 */
KVT_NODISCARD kvt_status model_probe_attention(const model_config *config, const model_past *exact,
                                               const model_past *variant,
                                               const float *const *queries, uint32_t rows,
                                               model_probe *probe_out, double *layer_errors);

#endif
