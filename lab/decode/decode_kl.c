/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decode_kl.c - budgets of layers and heads by knapsack, judged by what a model makes of them: its
 * KL against full attention, at as many tokens read.
 *
 *     context -> K, V -> index of each unit; the context's last queries -> error of each unit at
 *             each size -> knapsack -> tokens of each unit, together as many as uniform ones
 *     continuation, token by token: the query of a layer, below which all are sparse, chooses its
 *             clusters; then a pass with the choices of all layers -> logits -> KL
 *
 * Clusters are read in 16 bits, those of the most weight per token first; sinks, the last tokens
 * and the continuation's own are always there. An estimate is one row of the cluster's centroid and
 * mean value for each token that is not read, which is n exp(s) of them: the library's without what
 * the cluster's scatter adds.
 *
 * Thread rule: one thread has a run.
 */
#include "decode.h"
#include "estimator/model/model.h"
#include "estimator/quality/evaluate.h"
#include "sparse/attend.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    KL_CONTEXT = 1800, /* tokens, and steps behind them, where nobody says it */
    KL_STEPS = 128,
    KL_PROFILE = 64, /* the context's last queries, of which every second one is asked */
    KL_SIZES = 9
};

/* Sizes in uniform budgets. */
static const double kl_sizes[KL_SIZES] = {0.125, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0};
static const double kl_budgets[DECODE_KL_BUDGETS] = {0.0312, 0.0625, 0.125};

/* Rows of all layers. */
typedef struct kl_rows {
    float *memory;
    float *layer[DECODE_KL_LAYERS];
} kl_rows;

typedef struct kl_cluster {
    float density;
    uint32_t cluster;
} kl_cluster;

typedef struct kl_unit {
    sparse_index index;
    sparse_paging paging;
    sparse_work work;
    /* Of each budget and size, the last: of nothing, by norm. */
    double error[DECODE_KL_BUDGETS][KL_SIZES + 1][DECODE_KL_NORMS];
} kl_unit;

typedef struct kl_run {
    model_session *session;
    const model_config *config;
    uint32_t units, group;
    uint32_t context, steps, zone, all; /* tokens */
    size_t row;                         /* floats of a token's K */
    const uint32_t *tokens;
    kl_rows k, v;           /* [all]; behind the context those of the last pass */
    kl_rows past_k, past_v; /* with the estimate in place of what is not read */
    kl_rows mean_k, mean_v; /* of a token of the zone, its cluster's */
    kl_rows queries;        /* [profile + steps], exact */
    kl_rows query;          /* of one token */
    float *exact, *sparse;  /* logits: [profile + steps][vocab], [vocab] */
    uint8_t *kept;          /* [layers][kv_heads][tokens before] */
    kl_cluster *order;
    kl_unit *unit;
    bool estimate;
} kl_run;

static float *head_of(const kl_run *r, const kl_rows *rows, uint32_t unit, uint32_t token)
{
    const uint32_t heads = r->config->kv_heads;
    return rows->layer[unit / heads] + token * r->row + unit % heads * r->config->head_dim;
}

/* ---- memory ---- */

static bool rows_open(const kl_run *r, kl_rows *rows, size_t floats)
{
    rows->memory = calloc(r->config->layers * floats, sizeof(float));
    for (uint32_t l = 0; rows->memory != NULL && l < r->config->layers; l++)
        rows->layer[l] = rows->memory + l * floats;
    return rows->memory != NULL;
}

static void run_close(kl_run *r)
{
    kl_rows *const all[] = {&r->k,      &r->v,      &r->past_k,  &r->past_v,
                            &r->mean_k, &r->mean_v, &r->queries, &r->query};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]->memory);
    for (uint32_t u = 0; r->unit != NULL && u < r->units; u++) {
        sparse_index_free(&r->unit[u].index);
        sparse_work_close(&r->unit[u].work);
    }
    free(r->exact);
    free(r->sparse);
    free(r->kept);
    free(r->order);
    free(r->unit);
    model_session_close(r->session);
}

static void run_init(const model *m, const decode_options *o, kl_run *r)
{
    const model_config *c = model_config_of(m);
    *r = (kl_run){.config = c,
                  .units = c->layers * c->kv_heads,
                  .group = c->heads / c->kv_heads,
                  .context = o->context > 0 ? o->context : KL_CONTEXT,
                  .steps = o->rows > 0 ? o->rows : KL_STEPS,
                  .row = (size_t)c->kv_heads * c->head_dim};
    r->all = r->context + r->steps;
    r->zone = r->context - DECODE_SINKS - DECODE_LOCAL;
}

static kvt_status run_open(const model *m, kl_run *r)
{
    const model_config *c = r->config;
    if (c->layers > DECODE_KL_LAYERS || c->head_dim % 8 != 0 || c->head_dim > SPARSE_HEAD_DIM_MAX ||
        r->group > SPARSE_GROUP_MAX)
        return KVT_E_UNSUPPORTED;
    kl_rows *const sides[] = {&r->k, &r->v, &r->past_k, &r->past_v, &r->mean_k, &r->mean_v};
    bool fine = true;
    for (int i = 0; i < 6; i++)
        fine = fine && rows_open(r, sides[i], r->all * r->row);
    const size_t queries = (size_t)c->heads * c->head_dim;
    fine = fine && rows_open(r, &r->queries, (KL_PROFILE + r->steps) * queries) &&
           rows_open(r, &r->query, queries);
    r->exact = malloc((size_t)(KL_PROFILE + r->steps) * c->vocab * sizeof(float));
    r->sparse = malloc(c->vocab * sizeof(float));
    r->kept = malloc((size_t)r->units * r->all);
    r->order = malloc(r->zone * sizeof *r->order);
    r->unit = calloc(r->units, sizeof *r->unit);
    if (!fine || r->exact == NULL || r->sparse == NULL || r->kept == NULL || r->order == NULL ||
        r->unit == NULL)
        return KVT_E_MEMORY;
    return model_session_open(m, &r->session);
}

/* ---- what a unit reads ---- */

static int compare_clusters(const void *a, const void *b)
{
    const kl_cluster *x = a, *y = b;
    if (x->density != y->density) return x->density > y->density ? -1 : 1;
    return x->cluster < y->cluster ? -1 : 1;
}

/* Orders a unit's clusters for queries that see `seen` tokens. */
static kvt_status order_clusters(kl_run *r, uint32_t unit, const float *queries, uint32_t seen,
                                 uint32_t *count_out)
{
    kl_unit *u = &r->unit[unit];
    const uint32_t dim = r->config->head_dim, after = DECODE_SINKS + r->zone;
    const uint64_t stride = r->row * sizeof(float);
    const float scale = 1.0f / sqrtf((float)dim);
    float lse[SPARSE_GROUP_MAX], rest[SPARSE_GROUP_MAX];
    const sparse_run sinks = {head_of(r, &r->k, unit, 0), head_of(r, &r->v, unit, 0), stride,
                              DECODE_SINKS, KVT_DTYPE_FP32};
    const sparse_run local = {head_of(r, &r->k, unit, after), head_of(r, &r->v, unit, after),
                              stride, seen - after, KVT_DTYPE_FP32};
    sparse_attend_lse(&sinks, queries, r->group, dim, scale, lse);
    sparse_attend_lse(&local, queries, r->group, dim, scale, rest);
    for (uint32_t g = 0; g < r->group; g++)
        lse[g] = fmaxf(lse[g], rest[g]) + log1pf(expf(-fabsf(lse[g] - rest[g])));
    kvt_status status =
        sparse_choose_weights(&u->index, &u->paging, queries, r->group, scale, lse, &u->work);
    *count_out = 0;
    for (uint32_t c = 0; status == KVT_OK && c < u->index.clusters; c++)
        if (u->index.lane_tokens[c] > 0)
            r->order[(*count_out)++] =
                (kl_cluster){u->work.weight[c] / (float)(int32_t)u->index.lane_tokens[c], c};
    qsort(r->order, *count_out, sizeof *r->order, compare_clusters);
    return status;
}

/* Marks the tokens of the first clusters that fit, and those outside of the zone. */
static void keep_tokens(const kl_run *r, uint32_t unit, uint32_t count, uint32_t budget,
                        uint32_t tokens, uint8_t *kept)
{
    const sparse_index *index = &r->unit[unit].index;
    memset(kept, 1, tokens);
    memset(kept + DECODE_SINKS, 0, r->zone);
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t first = index->first[r->order[i].cluster];
        const uint32_t own = index->lane_tokens[r->order[i].cluster];
        if (own > budget) continue;
        budget -= own;
        for (uint32_t p = first; p < first + own; p++)
            kept[DECODE_SINKS + sparse_index_token(index, p)] = 1;
    }
}

/* ---- errors over the context's last queries ---- */

/* The stand-in for a token's rows. */
typedef enum kl_stand { KL_ROWS_ALONE, KL_ROWS_AND_MEANS, KL_MEANS_ALONE } kl_stand;

/* Attention over what is kept; of the rest with KL_ROWS_AND_MEANS its estimate. With KL_MEANS_ALONE
 * the zone is as the index knows it. */
static void attend(const kl_run *r, uint32_t unit, const float *query, uint32_t seen,
                   const uint8_t *kept, kl_stand stand, double *output)
{
    const uint32_t dim = r->config->head_dim;
    double largest = -INFINITY, sum = 0.0;
    memset(output, 0, dim * sizeof *output);
    for (uint32_t t = 0; t < seen; t++) {
        const bool zone = t >= DECODE_SINKS && t < DECODE_SINKS + r->zone;
        const bool absent = kept != NULL && !kept[t];
        if (absent && stand != KL_ROWS_AND_MEANS) continue;
        const bool mean = absent || (zone && stand == KL_MEANS_ALONE);
        const float *k = head_of(r, mean ? &r->mean_k : &r->k, unit, t);
        const float *v = head_of(r, mean ? &r->mean_v : &r->v, unit, t);
        double score = 0.0;
        for (uint32_t d = 0; d < dim; d++)
            score += (double)query[d] * (double)k[d];
        score /= sqrt(dim);
        const double most = fmax(largest, score), factor = exp(largest - most);
        const double weight = exp(score - most);
        sum = sum * factor + weight;
        for (uint32_t d = 0; d < dim; d++)
            output[d] = output[d] * factor + weight * (double)v[d];
        largest = most;
    }
    for (uint32_t d = 0; d < dim; d++)
        output[d] /= sum;
}

static double distance(const double *a, const double *b, uint32_t dim)
{
    double sum = 0.0;
    for (uint32_t d = 0; d < dim; d++)
        sum += (a[d] - b[d]) * (a[d] - b[d]);
    return sum;
}

static uint32_t tokens_of(const kl_run *r, double size, uint32_t budget)
{
    return (uint32_t)(size * kl_budgets[budget] * r->zone + 0.5);
}

/* Adds one query's errors, of all budgets and sizes. */
static void add_errors(kl_run *r, uint32_t unit, const float *query, uint32_t seen, uint32_t count)
{
    const uint32_t dim = r->config->head_dim;
    const kl_stand stand = r->estimate ? KL_ROWS_AND_MEANS : KL_ROWS_ALONE;
    double exact[SPARSE_HEAD_DIM_MAX], means[SPARSE_HEAD_DIM_MAX], got[SPARSE_HEAD_DIM_MAX];
    double most[SPARSE_HEAD_DIM_MAX];
    attend(r, unit, query, seen, NULL, KL_ROWS_ALONE, exact);
    attend(r, unit, query, seen, NULL, KL_MEANS_ALONE, means);
    for (uint32_t b = 0; b < DECODE_KL_BUDGETS; b++) {
        keep_tokens(r, unit, count, tokens_of(r, kl_sizes[KL_SIZES - 1], b), seen, r->kept);
        attend(r, unit, query, seen, r->kept, stand, most);
        for (uint32_t s = 0; s <= KL_SIZES; s++) {
            double *error = r->unit[unit].error[b][s];
            keep_tokens(r, unit, count, s < KL_SIZES ? tokens_of(r, kl_sizes[s], b) : 0, seen,
                        r->kept);
            attend(r, unit, query, seen, r->kept, stand, got);
            error[DECODE_KL_SQUARED] += distance(exact, got, dim);
            error[DECODE_KL_NEAREST] += distance(most, got, dim);
            attend(r, unit, query, seen, r->kept, KL_MEANS_ALONE, got);
            error[DECODE_KL_PREDICTED] += distance(means, got, dim);
        }
    }
}

static kvt_status profile(kl_run *r)
{
    const model_config *c = r->config;
    kvt_status status = KVT_OK;
    for (uint32_t unit = 0; unit < r->units && status == KVT_OK; unit++) {
        memset(r->unit[unit].error, 0, sizeof r->unit[unit].error);
        for (uint32_t q = 1; q < KL_PROFILE && status == KVT_OK; q += 2) {
            const uint32_t seen = r->context - KL_PROFILE + q + 1;
            const uint32_t head = unit % c->kv_heads * r->group;
            const float *queries =
                r->queries.layer[unit / c->kv_heads] + ((size_t)q * c->heads + head) * c->head_dim;
            uint32_t count;
            status = order_clusters(r, unit, queries, seen, &count);
            for (uint32_t g = 0; g < r->group && status == KVT_OK; g++)
                add_errors(r, unit, queries + g * c->head_dim, seen, count);
        }
    }
    return status;
}

/* ---- budgets, and what the model makes of them ---- */

static kvt_status divide(const kl_run *r, uint32_t b, decode_kl_norm norm, uint32_t *tokens)
{
    uint64_t bytes[KL_SIZES];
    windows_curve *curves = calloc(r->units, sizeof *curves);
    double(*benefit)[KL_SIZES] = calloc(r->units, sizeof *benefit);
    void *memory = malloc(windows_divide_memory(r->units, KL_SIZES));
    const bool fine = curves != NULL && benefit != NULL && memory != NULL;
    for (uint32_t s = 0; s < KL_SIZES; s++)
        bytes[s] = tokens_of(r, kl_sizes[s], b);
    for (uint32_t u = 0; fine && u < r->units; u++) {
        const double(*error)[DECODE_KL_NORMS] = r->unit[u].error[b];
        for (uint32_t s = 0; s < KL_SIZES; s++)
            benefit[u][s] = fmax(0.0, error[KL_SIZES][norm] - error[s][norm]);
        curves[u] = (windows_curve){bytes, benefit[u]};
    }
    if (fine && norm != DECODE_KL_UNIFORM)
        (void)windows_divide(curves, r->units, KL_SIZES, (uint64_t)r->units * tokens_of(r, 1.0, b),
                             tokens, memory, NULL);
    for (uint32_t u = 0; fine && u < r->units; u++)
        tokens[u] = norm == DECODE_KL_UNIFORM ? tokens_of(r, 1.0, b)
                    : tokens[u] != UINT32_MAX ? (uint32_t)bytes[tokens[u]]
                                              : 0;
    free(curves);
    free(benefit);
    free(memory);
    return fine ? KVT_OK : KVT_E_MEMORY;
}

/* A pass over the token behind `position` others, with what is kept of these. */
static kvt_status pass(kl_run *r, uint32_t position, bool wants_logits)
{
    const uint8_t *kept[DECODE_KL_LAYERS];
    float *k_out[DECODE_KL_LAYERS], *v_out[DECODE_KL_LAYERS];
    for (uint32_t l = 0; l < r->config->layers; l++) {
        kept[l] = r->kept + (size_t)l * r->config->kv_heads * position;
        k_out[l] = r->k.layer[l] + position * r->row;
        v_out[l] = r->v.layer[l] + position * r->row;
    }
    const model_past past = {.tokens = position,
                             .dtype = KVT_DTYPE_FP32,
                             .k = (const void *const *)(r->estimate ? r->past_k : r->k).layer,
                             .v = (const void *const *)(r->estimate ? r->past_v : r->v).layer,
                             .kept = r->estimate ? NULL : kept};
    const model_request request = {.tokens = r->tokens + position,
                                   .token_count = 1,
                                   .first_position = position,
                                   .past = &past,
                                   .k_out = k_out,
                                   .v_out = v_out,
                                   .logits_count = wants_logits,
                                   .logits_out = r->sparse,
                                   .queries_count = 1,
                                   .queries_out = r->query.layer};
    return model_forward(r->session, &request);
}

/* The rows of a unit that a pass sees with the estimate. */
static void stand_in(kl_run *r, uint32_t unit, const uint8_t *kept)
{
    const size_t bytes = r->config->head_dim * sizeof(float);
    for (uint32_t t = DECODE_SINKS; t < DECODE_SINKS + r->zone; t++) {
        const kl_rows *k = kept[t] ? &r->k : &r->mean_k, *v = kept[t] ? &r->v : &r->mean_v;
        memcpy(head_of(r, &r->past_k, unit, t), head_of(r, k, unit, t), bytes);
        memcpy(head_of(r, &r->past_v, unit, t), head_of(r, v, unit, t), bytes);
    }
}

/* One token, layer by layer; its logits. */
static kvt_status step(kl_run *r, uint32_t position, const uint32_t *tokens)
{
    const model_config *c = r->config;
    memset(r->kept, 1, (size_t)r->units * position);
    for (uint32_t l = 0; l < c->layers; l++) {
        memcpy(r->past_k.layer[l], r->k.layer[l], position * r->row * sizeof(float));
        memcpy(r->past_v.layer[l], r->v.layer[l], position * r->row * sizeof(float));
    }
    for (uint32_t unit = 0; unit < r->units; unit++) {
        const uint32_t layer = unit / c->kv_heads, head = unit % c->kv_heads;
        uint8_t *kept = r->kept + (size_t)unit * position;
        uint32_t count;
        kvt_status status = head == 0 ? pass(r, position, false) : KVT_OK;
        if (status == KVT_OK)
            status = order_clusters(r, unit,
                                    r->query.layer[layer] + (size_t)head * r->group * c->head_dim,
                                    position + 1, &count);
        if (status != KVT_OK) return status;
        keep_tokens(r, unit, count, tokens[unit], position, kept);
        if (r->estimate) stand_in(r, unit, kept);
    }
    return pass(r, position, true);
}

static kvt_status judge(kl_run *r, const uint32_t *tokens, double *kl_out, double *top1_out)
{
    const uint32_t vocab = r->config->vocab;
    kvt_status status = KVT_OK;
    *kl_out = *top1_out = 0.0;
    for (uint32_t i = 0; i < r->steps && status == KVT_OK; i++) {
        const float *exact = r->exact + (size_t)(KL_PROFILE + i) * vocab;
        status = step(r, r->context + i, tokens);
        if (status != KVT_OK) break;
        *kl_out += model_kl(exact, r->sparse, vocab) / r->steps;
        *top1_out += (model_best(exact, vocab) == model_best(r->sparse, vocab)) / (double)r->steps;
    }
    return status;
}

/* ---- one context ---- */

/* Builds a unit's index, and the rows that stand for its clusters. */
static kvt_status index_unit(kl_run *r, uint32_t unit)
{
    kl_unit *u = &r->unit[unit];
    const uint32_t dim = r->config->head_dim;
    const uint64_t stride = r->row * sizeof(float);
    const sparse_rows keys = {head_of(r, &r->k, unit, DECODE_SINKS), stride};
    const sparse_rows values = {head_of(r, &r->v, unit, DECODE_SINKS), stride};
    const sparse_index_options options = {
        .head_dim = dim, .dtype = KVT_DTYPE_FP32, .open_blocks = r->zone, .seed = unit + 1};
    sparse_index_free(&u->index);
    sparse_work_close(&u->work);
    memset(&u->index, 0, sizeof u->index);
    memset(&u->work, 0, sizeof u->work);
    kvt_status status = sparse_index_build(&options, &keys, &values, r->zone, &u->index);
    if (status == KVT_OK)
        status = sparse_paging_init(&u->paging, dim, KVT_DTYPE_FP32, r->zone,
                                    u->index.segment_tokens, 0);
    sparse_work_room room = {.pages = 0};
    if (status != KVT_OK) return status;
    sparse_work_room_add(&room, &u->index, u->paging.pages);
    for (uint32_t c = 0; c < u->index.clusters; c++) {
        const int8_t *key = u->index.centroids + (size_t)(c / SPARSE_BLOCK) * dim * SPARSE_BLOCK +
                            c % SPARSE_BLOCK * 2;
        const int8_t *value = u->index.means + (size_t)c * dim;
        for (uint32_t p = u->index.first[c]; p < u->index.first[c + 1]; p++) {
            const uint32_t t = DECODE_SINKS + sparse_index_token(&u->index, p);
            float *k = head_of(r, &r->mean_k, unit, t), *v = head_of(r, &r->mean_v, unit, t);
            for (uint32_t d = 0; d < dim; d++) {
                k[d] = (float)key[d / 2 * 2 * SPARSE_BLOCK + d % 2] * u->index.key_step[d];
                v[d] = (float)value[d] * u->index.value_step[d];
            }
        }
    }
    return sparse_work_open(&room, r->group, dim, &u->work);
}

static kvt_status run_exact(kl_run *r)
{
    const model_request request = {.tokens = r->tokens,
                                   .token_count = r->all,
                                   .k_out = r->k.layer,
                                   .v_out = r->v.layer,
                                   .logits_first = r->context - KL_PROFILE,
                                   .logits_count = KL_PROFILE + r->steps,
                                   .logits_out = r->exact,
                                   .queries_first = r->context - KL_PROFILE,
                                   .queries_count = KL_PROFILE + r->steps,
                                   .queries_out = r->queries.layer};
    kvt_status status = model_forward(r->session, &request);
    for (uint32_t unit = 0; unit < r->units && status == KVT_OK; unit++)
        status = index_unit(r, unit);
    return status;
}

static kvt_status run_context(kl_run *r, decode_kl *result)
{
    uint32_t *tokens = malloc(r->units * sizeof *tokens);
    kvt_status status = tokens != NULL ? run_exact(r) : KVT_E_MEMORY;
    for (int e = 0; e < 2 && status == KVT_OK; e++) {
        r->estimate = e == 1;
        status = profile(r);
        for (uint32_t b = 0; b < DECODE_KL_BUDGETS && status == KVT_OK; b++) {
            double uniform = 0.0;
            for (int n = 0; n < DECODE_KL_NORMS && status == KVT_OK; n++) {
                decode_kl_figures *figures = &result->figures[e][b][n];
                double kl = 0.0, top1 = 0.0;
                status = divide(r, b, (decode_kl_norm)n, tokens);
                if (status == KVT_OK) status = judge(r, tokens, &kl, &top1);
                if (n == DECODE_KL_UNIFORM) uniform = kl;
                figures->kl += kl;
                figures->top1 += top1;
                figures->lower += kl < uniform;
                for (uint32_t u = 0; u < r->units; u++)
                    figures->tokens += tokens[u];
            }
        }
    }
    free(tokens);
    if (status == KVT_OK) result->contexts++;
    return status;
}

/* ---- the model and its texts ---- */

static kvt_status open_texts(const kl_run *r, const decode_options *o, evaluate_set *set,
                             char *message, size_t size)
{
    char path[4096];
    tokenizer *words = NULL;
    evaluate_texts texts = {.count = 0};
    (void)snprintf(path, sizeof path, "%s/tokenizer.bin", o->model);
    kvt_status status = tokenizer_open(path, r->config->vocab, &words, message, size);
    if (status == KVT_OK) status = evaluate_texts_read(o->texts, &texts, message, size);
    if (status == KVT_OK)
        status = evaluate_set_make(&texts, words, r->context, r->steps, o->contexts, set);
    if (status == KVT_OK && set->count == 0) {
        (void)snprintf(message, size, "%s: no context of %u tokens", o->texts, r->all);
        status = KVT_E_ARGUMENT;
    }
    evaluate_texts_free(&texts);
    tokenizer_close(words);
    return status;
}

kvt_status decode_kl_measure(const decode_options *o, decode_kl *result, char *message, size_t size)
{
    model *m = NULL;
    kl_run run = {.units = 0};
    evaluate_set set = {.count = 0};
    memset(result, 0, sizeof *result);
    kvt_status status = model_open(o->model, &m, message, size);
    if (status == KVT_OK) run_init(m, o, &run);
    if (status == KVT_OK) status = open_texts(&run, o, &set, message, size);
    if (status == KVT_OK) status = run_open(m, &run);
    for (uint32_t i = 0; i < set.count && status == KVT_OK; i++) {
        run.tokens = evaluate_set_entry(&set, i);
        if (o->progress != NULL && !o->progress(o->progress_context, (double)i / set.count, "KL"))
            status = KVT_E_CANCELLED;
        if (status == KVT_OK) status = run_context(&run, result);
    }
    for (uint32_t b = 0; b < DECODE_KL_BUDGETS; b++)
        result->budgets[b] = kl_budgets[b];
    run_close(&run);
    evaluate_set_free(&set);
    model_close(m);
    return status;
}
