/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_score.c - likelihood, KL and attention probes. Thread rule: model.h.
 */
#include "estimator/model/model.h"
#include "estimator/model/model_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SCORE_BLOCK_ROWS = 64 };

uint32_t model_best(const float *logits, uint32_t vocab)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

double model_log_sum(const float *logits, uint32_t vocab)
{
    double most = (double)logits[model_best(logits, vocab)], sum = 0.0;
    for (uint32_t i = 0; i < vocab; i++)
        sum += exp((double)logits[i] - most);
    return most + log(sum);
}

double model_kl(const float *exact, const float *variant, uint32_t vocab)
{
    double exact_sum = model_log_sum(exact, vocab), variant_sum = model_log_sum(variant, vocab);
    double kl = 0.0;
    for (uint32_t i = 0; i < vocab; i++) {
        double log_p = (double)exact[i] - exact_sum, log_q = (double)variant[i] - variant_sum;
        kl += exp(log_p) * (log_p - log_q);
    }
    return kl;
}

kvt_status model_nll(model_session *session, const uint32_t *tokens, uint32_t count,
                     double *nll_out)
{
    const model_config *c = &session->m->config;
    *nll_out = 0.0;
    if (count < 2 || count - 1 > MODEL_TOKENS_MAX || tokens[count - 1] >= c->vocab) {
        return KVT_E_ARGUMENT;
    }
    uint32_t rows = count - 1;
    float *logits = malloc((size_t)rows * c->vocab * sizeof *logits);
    if (logits == NULL) return KVT_E_MEMORY;
    kvt_status status = model_forward(session, &(model_request){.tokens = tokens,
                                                                .token_count = rows,
                                                                .logits_count = rows,
                                                                .logits_out = logits});
    for (uint32_t r = 0; status == KVT_OK && r < rows; r++) {
        const float *row = logits + (size_t)r * c->vocab;
        *nll_out += model_log_sum(row, c->vocab) - (double)row[tokens[r + 1]];
    }
    free(logits);
    return status;
}

/* Buffers of a probe, in one block of memory; `total` is context and own tokens together. */
typedef struct score_work {
    float *exact_k, *exact_v, *variant_k, *variant_v; /* [total][kv_dim] of one layer */
    float *weights;                                   /* [SCORE_BLOCK_ROWS][total] */
    float *exact_out, *variant_out;                   /* [SCORE_BLOCK_ROWS][query_dim] */
    uint32_t context, total;
} score_work;

/* Sums over the queries of one head. */
typedef struct score_head {
    double difference, norm; /* squared */
    double lost;
} score_head;

static kvt_status score_make(const model_config *c, const model_probe *probe, score_work *work)
{
    uint32_t context = probe->exact->tokens;
    uint32_t total = context + (probe->own_k != NULL ? probe->rows : 0);
    size_t matrix = (size_t)total * model_kv_dim(c);
    size_t weights = (size_t)SCORE_BLOCK_ROWS * total;
    size_t out = (size_t)SCORE_BLOCK_ROWS * model_query_dim(c);
    float *at = malloc((4 * matrix + weights + 2 * out) * sizeof *at);
    if (at == NULL) return KVT_E_MEMORY;
    *work = (score_work){.exact_k = at,
                         .exact_v = at + matrix,
                         .variant_k = at + 2 * matrix,
                         .variant_v = at + 3 * matrix,
                         .weights = at + 4 * matrix,
                         .exact_out = at + 4 * matrix + weights,
                         .variant_out = at + 4 * matrix + weights + out,
                         .context = context,
                         .total = total};
    return KVT_OK;
}

/* K and V of one layer, the context's followed by the rows' own. */
static void score_load(const model_config *c, const model_probe *probe, uint32_t l,
                       score_work *work)
{
    const model_past *exact = probe->exact, *variant = probe->variant;
    size_t count = (size_t)work->context * model_kv_dim(c);
    size_t own = (size_t)(work->total - work->context) * model_kv_dim(c);
    model_convert(exact->dtype, exact->k[l], count, work->exact_k);
    model_convert(exact->dtype, exact->v[l], count, work->exact_v);
    model_convert(variant->dtype, variant->k[l], count, work->variant_k);
    model_convert(variant->dtype, variant->v[l], count, work->variant_v);
    if (own == 0) return;
    memcpy(work->exact_k + count, probe->own_k[l], own * sizeof(float));
    memcpy(work->exact_v + count, probe->own_v[l], own * sizeof(float));
    memcpy(work->variant_k + count, probe->own_k[l], own * sizeof(float));
    memcpy(work->variant_v + count, probe->own_v[l], own * sizeof(float));
}

/* The weight on the context's tokens that were dropped. */
static double score_lost(const score_work *work, const uint8_t *kept, uint32_t rows,
                         uint32_t tokens)
{
    double lost = 0.0;
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t i = 0; i < work->context; i++)
            if (kept[i] == 0) lost += (double)work->weights[(size_t)r * tokens + i];
    return lost;
}

/* `attend` describes the queries of one block; K, V and targets are filled in here. exact_out: the
 * block's outputs with exact KV, NULL where they are to be computed. */
static void score_block(const score_work *work, size_t place, const uint8_t *kept,
                        const float *exact_out, model_attend attend, score_head *head)
{
    attend.weights = work->weights;
    attend.keys = work->exact_k + place;
    attend.values = work->exact_v + place;
    attend.out = work->exact_out;
    if (exact_out == NULL) model_attend_block(&attend);
    const float *exact_rows = exact_out != NULL ? exact_out : work->exact_out;
    if (kept != NULL) head->lost += score_lost(work, kept, attend.rows, attend.tokens);
    attend.keys = work->variant_k + place;
    attend.values = work->variant_v + place;
    attend.out = work->variant_out;
    attend.kept = kept;
    attend.kept_tokens = work->context;
    model_attend_block(&attend);
    for (uint32_t r = 0; r < attend.rows; r++) {
        for (uint32_t i = 0; i < attend.head_dim; i++) {
            double exact = (double)exact_rows[r * attend.query_stride + i];
            double difference = exact - (double)work->variant_out[r * attend.query_stride + i];
            head->difference += difference * difference;
            head->norm += exact * exact;
        }
    }
}

/* The errors of one layer's heads; adds the weight that they lost. */
static void score_layer(const model_config *c, const model_probe *probe, uint32_t l,
                        const score_work *work, double *errors, double *lost)
{
    const uint8_t *kept = probe->variant->kept != NULL ? probe->variant->kept[l] : NULL;
    bool causal = work->total > work->context;
    for (uint32_t h = 0; h < c->heads; h++) {
        uint32_t kv_head = h / (c->heads / c->kv_heads);
        score_head head = {0.0, 0.0, 0.0};
        for (uint32_t first = 0; first < probe->rows; first += SCORE_BLOCK_ROWS) {
            uint32_t left = probe->rows - first;
            uint32_t rows = left < SCORE_BLOCK_ROWS ? left : SCORE_BLOCK_ROWS;
            size_t place = (size_t)first * model_query_dim(c) + (size_t)h * c->head_dim;
            model_attend attend = {.queries = probe->queries[l] + place,
                                   .rows = rows,
                                   .tokens = work->context + (causal ? first + rows : 0),
                                   .head_dim = c->head_dim,
                                   .query_stride = model_query_dim(c),
                                   .kv_stride = model_kv_dim(c),
                                   .visible = work->context + (causal ? first + 1 : 0),
                                   .step = causal ? 1 : 0};
            const bool known = probe->exact_out != NULL && kept == NULL;
            score_block(work, (size_t)kv_head * c->head_dim,
                        kept != NULL ? kept + (size_t)kv_head * work->context : NULL,
                        known ? probe->exact_out[l] + place : NULL, attend, &head);
        }
        errors[h] = head.difference > 0.0 ? sqrt(head.difference / head.norm) : 0.0;
        *lost += head.lost / probe->rows;
    }
}

kvt_status model_probe_attention(const model_config *c, const model_probe *probe,
                                 model_probe_result *result_out, double *head_errors)
{
    score_work work;
    double error = 0.0, lost = 0.0, heads = (double)c->layers * c->heads;
    const model_past *exact = probe->exact, *variant = probe->variant;
    *result_out = (model_probe_result){0.0, 0.0};
    if (probe->rows == 0 || probe->rows > MODEL_TOKENS_MAX || exact->tokens == 0 ||
        exact->tokens > MODEL_TOKENS_MAX || variant->tokens != exact->tokens ||
        exact->kept != NULL || !model_is_float(exact->dtype) || !model_is_float(variant->dtype)) {
        return KVT_E_ARGUMENT;
    }
    double *own = NULL;
    if (head_errors == NULL) head_errors = own = malloc((size_t)c->layers * c->heads * sizeof *own);
    if (head_errors == NULL) return KVT_E_MEMORY;
    kvt_status status = score_make(c, probe, &work);
    for (uint32_t l = 0; status == KVT_OK && l < c->layers; l++) {
        double *errors = head_errors + (size_t)l * c->heads;
        score_load(c, probe, l, &work);
        score_layer(c, probe, l, &work, errors, &lost);
        for (uint32_t h = 0; h < c->heads; h++)
            error += errors[h];
    }
    if (status == KVT_OK) {
        free(work.exact_k);
        *result_out = (model_probe_result){error / heads, 1.0 - lost / heads};
    }
    free(own);
    return status;
}
