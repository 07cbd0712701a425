/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_score.c - likelihood, KL and attention probes. Thread rule: model.h.
 */
#include "estimator/model/model.h"
#include "estimator/model/model_internal.h"
#include "estimator/model/model_vector.h"

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

/* One row's logits, or two rows' at the same tokens; what is asked of them. */
typedef struct score_row {
    const float *logits, *other;
    uint32_t count;
    float most, other_most; /* the largest of each */
    double sum, other_sum;  /* of e^(logit - largest) */
    double apart;           /* of e^(logit - largest) (logit - other) */
} score_row;

enum { SCORE_LANES_EACH = 64 }; /* vectors that are added up in fp32 */

VECTOR_INLINE void score_most_body(score_row *row)
{
    vector_floats most = (vector_floats){0.0f} + row->logits[0], next;
    for (uint32_t i = 0; i < row->count; i += VECTOR_LANES) {
        vector_load(row->logits, i, row->count, row->logits[0], &next);
        vector_raise(&most, &next);
    }
    row->most = most[0];
    for (unsigned lane = 1; lane < VECTOR_LANES; lane++)
        if (most[lane] > row->most) row->most = most[lane];
}

VECTOR_VERSIONS(score_most, score_row)

VECTOR_INLINE double score_total(const vector_floats *sums)
{
    double total = 0.0;
    for (unsigned lane = 0; lane < VECTOR_LANES; lane++)
        total += (double)(*sums)[lane];
    return total;
}

/* Lanes behind the row's end count as e^-87. */
VECTOR_INLINE void score_sum_body(score_row *row)
{
    row->sum = 0.0;
    for (uint32_t i = 0; i < row->count;) {
        vector_floats sums = {0.0f}, x;
        for (unsigned n = 0; n < SCORE_LANES_EACH && i < row->count; n++, i += VECTOR_LANES) {
            vector_load(row->logits, i, row->count, row->most - 87.0f, &x);
            x -= row->most;
            vector_exp(&x);
            sums += x;
        }
        row->sum += score_total(&sums);
    }
}

VECTOR_VERSIONS(score_sum, score_row)

VECTOR_INLINE void score_sums_body(score_row *row)
{
    row->sum = row->other_sum = row->apart = 0.0;
    for (uint32_t i = 0; i < row->count;) {
        vector_floats sums = {0.0f}, others = {0.0f}, apart = {0.0f}, x, y;
        for (unsigned n = 0; n < SCORE_LANES_EACH && i < row->count; n++, i += VECTOR_LANES) {
            vector_load(row->logits, i, row->count, row->most - 87.0f, &x);
            vector_load(row->other, i, row->count, row->other_most - 87.0f, &y);
            x -= row->most;
            y -= row->other_most;
            const vector_floats between = x - y;
            vector_exp(&x);
            vector_exp(&y);
            sums += x;
            others += y;
            apart += x * between;
        }
        row->sum += score_total(&sums);
        row->other_sum += score_total(&others);
        row->apart += score_total(&apart);
    }
}

VECTOR_VERSIONS(score_sums, score_row)

double model_log_sum(const float *logits, uint32_t vocab)
{
    score_row row = {.logits = logits, .count = vocab};
    score_most(&row);
    score_sum(&row);
    return (double)row.most + log(row.sum);
}

/* With x and y less their largest: sum p (x - y) - (log sum e^x - log sum e^y). */
double model_kl(const float *exact, const float *variant, uint32_t vocab)
{
    score_row row = {.logits = exact, .other = variant, .count = vocab};
    score_row other = {.logits = variant, .count = vocab};
    score_most(&row);
    score_most(&other);
    row.other_most = other.most;
    score_sums(&row);
    return row.apart / row.sum - log(row.sum / row.other_sum);
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
    float *exact_out, *variant_out; /* [rows][query_dim] of one layer */
    float *attend;                  /* model_attend_floats */
    float *keys;                    /* exact, [total][kv_dim]; where tokens are dropped */
    float *weights;                 /* [SCORE_BLOCK_ROWS][total]; likewise */
    uint32_t context, total;
} score_work;

static size_t score_up(size_t floats)
{
    return (floats + 15) / 16 * 16;
}

static kvt_status score_make(const model_config *c, const model_probe *probe, score_work *work)
{
    uint32_t context = probe->exact->tokens;
    uint32_t total = context + (probe->own_k != NULL ? probe->rows : 0);
    size_t out = score_up((size_t)probe->rows * model_query_dim(c));
    size_t attend = score_up(model_attend_floats(c));
    bool dropped = probe->variant->kept != NULL;
    size_t keys = dropped ? score_up((size_t)total * model_kv_dim(c)) : 0;
    size_t weights = dropped ? score_up((size_t)SCORE_BLOCK_ROWS * total) : 0;
    float *at = aligned_alloc(64, (2 * out + attend + keys + weights) * sizeof *at);
    if (at == NULL) return KVT_E_MEMORY;
    *work = (score_work){.exact_out = at,
                         .variant_out = at + out,
                         .attend = at + 2 * out,
                         .keys = at + 2 * out + attend,
                         .weights = at + 2 * out + attend + keys,
                         .context = context,
                         .total = total};
    return KVT_OK;
}

/* The attention outputs of all rows with one side's KV, as the forward pass computes them. */
static void score_attend(const model_config *c, const model_probe *probe, const model_past *past,
                         uint32_t l, const score_work *work, float *out)
{
    const bool own = probe->own_k != NULL;
    model_attend_past(&(model_attend_all){.config = c,
                                          .queries = probe->queries[l],
                                          .out = out,
                                          .rows = probe->rows,
                                          .own_keys = own ? probe->own_k[l] : NULL,
                                          .own_values = own ? probe->own_v[l] : NULL,
                                          .past = past->tokens,
                                          .dtype = past->dtype,
                                          .past_keys = past->k[l],
                                          .past_values = past->v[l],
                                          .kept = past->kept != NULL ? past->kept[l] : NULL},
                      work->attend);
}

/* The weight that one head's rows put on dropped tokens of the context, summed over the rows. */
static double score_lost(const model_config *c, const model_probe *probe, uint32_t l, uint32_t h,
                         const score_work *work)
{
    const uint32_t kv_head = h / (c->heads / c->kv_heads);
    const uint8_t *kept = probe->variant->kept[l] + (size_t)kv_head * work->context;
    const uint32_t causal = work->total > work->context ? 1 : 0;
    double lost = 0.0;
    for (uint32_t first = 0; first < probe->rows; first += SCORE_BLOCK_ROWS) {
        uint32_t left = probe->rows - first;
        uint32_t rows = left < SCORE_BLOCK_ROWS ? left : SCORE_BLOCK_ROWS;
        size_t place = (size_t)first * model_query_dim(c) + (size_t)h * c->head_dim;
        model_attend attend = {.queries = probe->queries[l] + place,
                               .keys = work->keys + (size_t)kv_head * c->head_dim,
                               .weights = work->weights,
                               .rows = rows,
                               .tokens = work->context + (causal ? first + rows : 0),
                               .head_dim = c->head_dim,
                               .query_stride = model_query_dim(c),
                               .kv_stride = model_kv_dim(c),
                               .visible = work->context + (causal ? first + 1 : 0),
                               .step = causal};
        model_attend_block(&attend);
        for (uint32_t r = 0; r < rows; r++)
            for (uint32_t i = 0; i < work->context; i++)
                if (kept[i] == 0) lost += (double)work->weights[(size_t)r * attend.tokens + i];
    }
    return lost;
}

/* The exact keys of one layer, the context's followed by the rows' own. */
static void score_load_keys(const model_config *c, const model_probe *probe, uint32_t l,
                            const score_work *work)
{
    const size_t count = (size_t)work->context * model_kv_dim(c);
    const size_t own = (size_t)(work->total - work->context) * model_kv_dim(c);
    model_convert(probe->exact->dtype, probe->exact->k[l], count, work->keys);
    if (own > 0) memcpy(work->keys + count, probe->own_k[l], own * sizeof(float));
}

/* |exact - variant| / |exact| of one head over all rows. */
static double score_error(const model_config *c, uint32_t rows, uint32_t h, const float *exact,
                          const float *variant)
{
    double difference = 0.0, norm = 0.0;
    for (uint32_t r = 0; r < rows; r++) {
        const size_t place = (size_t)r * model_query_dim(c) + (size_t)h * c->head_dim;
        for (uint32_t i = 0; i < c->head_dim; i++) {
            double is = (double)exact[place + i], apart = is - (double)variant[place + i];
            difference += apart * apart;
            norm += is * is;
        }
    }
    return difference > 0.0 ? sqrt(difference / norm) : 0.0;
}

/* The errors of one layer's heads; adds the weight that they lost. */
static void score_layer(const model_config *c, const model_probe *probe, uint32_t l,
                        const score_work *work, double *errors, double *lost)
{
    const float *exact = work->exact_out;
    if (probe->exact_out != NULL) {
        exact = probe->exact_out[l];
    } else {
        score_attend(c, probe, probe->exact, l, work, work->exact_out);
    }
    score_attend(c, probe, probe->variant, l, work, work->variant_out);
    for (uint32_t h = 0; h < c->heads; h++)
        errors[h] = score_error(c, probe->rows, h, exact, work->variant_out);
    if (probe->variant->kept == NULL) return;
    score_load_keys(c, probe, l, work);
    for (uint32_t h = 0; h < c->heads; h++)
        *lost += score_lost(c, probe, l, h, work) / probe->rows;
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
        score_layer(c, probe, l, &work, errors, &lost);
        for (uint32_t h = 0; h < c->heads; h++)
            error += errors[h];
    }
    if (status == KVT_OK) {
        free(work.exact_out);
        *result_out = (model_probe_result){error / heads, 1.0 - lost / heads};
    }
    free(own);
    return status;
}
