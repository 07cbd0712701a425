/* SPDX-License-Identifier: Apache-2.0 */
/*
 * evaluate_recall.c - whether a model still finds the words of its context: it is asked to repeat a
 * passage, the passage is teacher-forced, and its last tokens are compared with the exact run's.
 * Losses of answers leave that open: an answer rests on a few places of the context, which may come
 * through where the rest is lost. Thread rule: see evaluate.h.
 */
#include "estimator/quality/evaluate.h"

#include <stdlib.h>
#include <string.h>

static kvt_status recall_forward(model_session *session, const evaluate_recall *recall,
                                 const model_past *past, uint32_t position, float *logits)
{
    /* The row before a token says what the model expects there. */
    const model_request request = {.tokens = recall->tokens,
                                   .token_count = recall->count,
                                   .first_position = position,
                                   .past = past,
                                   .logits_first = recall->count - recall->scored - 1,
                                   .logits_count = recall->scored,
                                   .logits_out = logits};
    return model_forward(session, &request);
}

static double recall_nll(const evaluate_recall *recall, const float *logits, uint32_t vocab)
{
    const uint32_t *next = recall->tokens + recall->count - recall->scored;
    double nll = 0.0;
    for (uint32_t r = 0; r < recall->scored; r++, logits += vocab)
        nll += model_log_sum(logits, vocab) - (double)logits[next[r]];
    return nll / recall->scored;
}

kvt_status evaluate_recall_open(model_session *session, const evaluate_entry *e,
                                const uint32_t *tokens, uint32_t count, uint32_t scored,
                                evaluate_recall *recall)
{
    const model_past past = {.tokens = e->context_tokens,
                             .dtype = KVT_DTYPE_FP16,
                             .k = (const void *const *)e->k,
                             .v = (const void *const *)e->v};
    *recall = (evaluate_recall){.tokens = tokens, .count = count, .scored = scored};
    if (scored < 2 || scored >= count) return KVT_E_ARGUMENT;
    const size_t row = (size_t)scored * e->config->vocab;
    recall->exact = malloc(2 * row * sizeof *recall->exact);
    if (recall->exact == NULL) return KVT_E_MEMORY;
    recall->changed = recall->exact + row;
    kvt_status status = recall_forward(session, recall, &past, e->context_tokens, recall->exact);
    if (status == KVT_OK) recall->nll = recall_nll(recall, recall->exact, e->config->vocab);
    if (status != KVT_OK) evaluate_recall_close(recall);
    return status;
}

void evaluate_recall_close(evaluate_recall *recall)
{
    free(recall->exact);
    *recall = (evaluate_recall){.exact = NULL};
}

kvt_status evaluate_recall_run(model_session *session, const evaluate_entry *e,
                               const evaluate_recall *recall, const evaluate_variant *variant,
                               evaluate_recall_result *result)
{
    const model_past past = {.tokens = e->context_tokens,
                             .dtype = KVT_DTYPE_FP16,
                             .k = (const void *const *)variant->k,
                             .v = (const void *const *)variant->v,
                             .kept =
                                 variant->dropped ? (const uint8_t *const *)variant->kept : NULL};
    const uint32_t vocab = e->config->vocab, half = recall->scored / 2;
    uint32_t same = 0;
    *result = (evaluate_recall_result){.kl = 0.0};
    kvt_status status =
        recall_forward(session, recall, &past, variant->next_position, recall->changed);
    if (status != KVT_OK) return status;
    for (uint32_t r = 0; r < recall->scored; r++) {
        const float *exact = recall->exact + (size_t)r * vocab;
        const float *other = recall->changed + (size_t)r * vocab;
        const double kl = model_kl(exact, other, vocab);
        result->kl += kl / recall->scored;
        if (r < half) result->kl_first += kl / half;
        if (r >= half) result->kl_second += kl / (recall->scored - half);
        same += model_best(exact, vocab) == model_best(other, vocab);
    }
    result->top1 = (double)same / recall->scored;
    result->nll_delta = recall_nll(recall, recall->changed, vocab) - recall->nll;
    return KVT_OK;
}
