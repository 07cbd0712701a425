/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_forward.c - the forward pass: new tokens on top of given K and V, in one batch per layer.
 * Thread rule: one thread per session.
 */
#include "estimator/model/model_internal.h"

#include <cblas.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Query rows per attention block: the scores of a block stay in cache, and a block near the start
 * of a long prompt does not score the tokens that come after it. */
enum { FORWARD_BLOCK_ROWS = 64 };

static atomic_flag forward_threads_set = ATOMIC_FLAG_INIT;

void model_set_blas_threads(int threads)
{
    atomic_flag_test_and_set(&forward_threads_set);
    openblas_set_num_threads(threads);
}

const char *model_blas_kernels(void)
{
    return openblas_get_corename();
}

kvt_status model_session_open(const model *m, model_session **session_out)
{
    if (!atomic_flag_test_and_set(&forward_threads_set)) openblas_set_num_threads(1);
    model_session *session = calloc(1, sizeof *session);
    *session_out = session;
    if (session == NULL) return KVT_E_MEMORY;
    session->m = m;
    return KVT_OK;
}

void model_session_close(model_session *session)
{
    if (session == NULL) return;
    free(session->memory);
    free(session);
}

const model_config *model_session_config(const model_session *session)
{
    return &session->m->config;
}

static uint32_t forward_max(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static kvt_status forward_reserve(model_session *s, uint32_t rows, uint32_t past)
{
    const model_config *c = &s->m->config;
    size_t wide = forward_max(c->dim, forward_max(c->ffn_dim, model_query_dim(c)));
    size_t total = (size_t)past + rows;
    struct {
        float **place;
        size_t floats;
    } parts[] = {{&s->x, (size_t)rows * c->dim},
                 {&s->normed, rows * wide},
                 {&s->query, (size_t)rows * model_query_dim(c)},
                 {&s->attended, (size_t)rows * model_query_dim(c)},
                 {&s->gate, (size_t)rows * c->ffn_dim},
                 {&s->up, (size_t)rows * c->ffn_dim},
                 {&s->delta, (size_t)rows * c->dim},
                 {&s->cosine, (size_t)rows * c->head_dim / 2},
                 {&s->sine, (size_t)rows * c->head_dim / 2},
                 {&s->keys, total * model_kv_dim(c)},
                 {&s->values, total * model_kv_dim(c)},
                 {&s->weights, total * FORWARD_BLOCK_ROWS}};
    size_t floats = 0;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        floats += (parts[i].floats + 15) / 16 * 16;
    if (floats > s->memory_floats) {
        free(s->memory);
        s->memory_floats = 0;
        s->memory = aligned_alloc(64, floats * sizeof *s->memory);
        if (s->memory == NULL) return KVT_E_MEMORY;
        s->memory_floats = floats;
    }
    float *at = s->memory;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        *parts[i].place = at;
        at += (parts[i].floats + 15) / 16 * 16;
    }
    return KVT_OK;
}

/* y[rows][out] = x[rows][in] w[out][in]^T */
static void forward_linear(const float *x, const float *w, float *y, uint32_t rows,
                           model_shape shape)
{
    int in = (int)shape.columns, out = (int)shape.rows;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)rows, out, in, 1.0f, x, in, w, in,
                0.0f, y, out);
}

static void forward_matrix(model_session *s, uint32_t l, int matrix, const float *x, float *y,
                           uint32_t rows)
{
    forward_linear(x, model_matrix(&s->m->layers[l], matrix), y, rows,
                   model_matrix_shape(&s->m->config, matrix));
}

/* RMSNorm with weights; without them x / rms(x) / width, the ternary models' scaling. */
static void forward_norm(const model_config *c, const float *weight, const float *x, uint32_t rows,
                         uint32_t width, float *out)
{
    for (uint32_t r = 0; r < rows; r++, x += width, out += width) {
        double sum = 0.0;
        for (uint32_t i = 0; i < width; i++)
            sum += (double)x[i] * x[i];
        double mean = sum / width;
        if (weight == NULL) {
            float scale = mean > 0.0 ? (float)(1.0 / (sqrt(mean) * width)) : 0.0f;
            for (uint32_t i = 0; i < width; i++)
                out[i] = x[i] * scale;
        } else {
            float scale = (float)(1.0 / sqrt(mean + (double)c->norm_eps));
            for (uint32_t i = 0; i < width; i++)
                out[i] = x[i] * scale * weight[i];
        }
    }
}

/* What goes into the second linear layer of a block: scaled in ternary models, else as it is. */
static const float *forward_inner(model_session *s, const float *x, uint32_t rows, uint32_t width)
{
    if (!s->m->config.bare_norm) return x;
    forward_norm(&s->m->config, NULL, x, rows, width, s->normed);
    return s->normed;
}

static void forward_rotation_table(model_session *s, uint32_t first, uint32_t rows)
{
    const model_config *c = &s->m->config;
    uint32_t half = c->head_dim / 2;
    for (uint32_t i = 0; i < half; i++) {
        double frequency = pow(c->rope_theta, -2.0 * i / c->head_dim);
        for (uint32_t r = 0; r < rows; r++) {
            double angle = ((double)first + r) * frequency;
            s->cosine[(size_t)r * half + i] = (float)cos(angle);
            s->sine[(size_t)r * half + i] = (float)sin(angle);
        }
    }
}

static void forward_rotate(const model_session *s, float *vectors, uint32_t rows, uint32_t heads)
{
    const model_config *c = &s->m->config;
    uint32_t half = c->head_dim / 2;
    uint32_t step = c->rope_halves ? 1 : 2, apart = c->rope_halves ? half : 1;
    for (uint32_t r = 0; r < rows; r++) {
        const float *cosine = s->cosine + (size_t)r * half, *sine = s->sine + (size_t)r * half;
        for (uint32_t h = 0; h < heads; h++, vectors += c->head_dim) {
            for (uint32_t i = 0; i < half; i++) {
                float *low = &vectors[i * step], *high = low + apart;
                float a = *low, b = *high;
                *low = a * cosine[i] - b * sine[i];
                *high = a * sine[i] + b * cosine[i];
            }
        }
    }
}

/* K and V of one layer over past and new tokens; the new ones' rows are to be written. */
typedef struct forward_kv {
    float *keys, *values;
} forward_kv;

/* Where the new rows go right behind an fp32 past, they are put there and nothing is copied. */
static forward_kv forward_place(const model_session *s, const model_request *q, uint32_t l,
                                uint32_t past)
{
    size_t rows = (size_t)past * model_kv_dim(&s->m->config);
    if (past > 0 && q->past->dtype == KVT_DTYPE_FP32 && q->k_out != NULL && q->v_out != NULL &&
        q->k_out[l] == (const float *)q->past->k[l] + rows &&
        q->v_out[l] == (const float *)q->past->v[l] + rows) {
        return (forward_kv){q->k_out[l] - rows, q->v_out[l] - rows};
    }
    if (past > 0) {
        model_convert(q->past->dtype, q->past->k[l], rows, s->keys);
        model_convert(q->past->dtype, q->past->v[l], rows, s->values);
    }
    return (forward_kv){s->keys, s->values};
}

static void forward_attend(model_session *s, const model_request *q, uint32_t l, uint32_t past,
                           const forward_kv *at)
{
    const model_config *c = &s->m->config;
    uint32_t group = c->heads / c->kv_heads, width = c->head_dim;
    for (uint32_t h = 0; h < c->heads; h++) {
        uint32_t kv = h / group;
        for (uint32_t first = 0; first < q->token_count; first += FORWARD_BLOCK_ROWS) {
            uint32_t left = q->token_count - first;
            uint32_t rows = left < FORWARD_BLOCK_ROWS ? left : FORWARD_BLOCK_ROWS;
            size_t place = (size_t)first * model_query_dim(c) + (size_t)h * width;
            model_attend attend = {.queries = s->query + place,
                                   .keys = at->keys + (size_t)kv * width,
                                   .values = at->values + (size_t)kv * width,
                                   .out = s->attended + place,
                                   .weights = s->weights,
                                   .rows = rows,
                                   .tokens = past + first + rows,
                                   .head_dim = width,
                                   .query_stride = model_query_dim(c),
                                   .kv_stride = model_kv_dim(c),
                                   .visible = past + first + 1,
                                   .step = 1};
            if (past > 0 && q->past->kept != NULL) {
                attend.kept = q->past->kept[l] + (size_t)kv * past;
                attend.kept_tokens = past;
            }
            model_attend_block(&attend);
        }
    }
}

static void forward_add(float *x, const float *delta, size_t count)
{
    for (size_t i = 0; i < count; i++)
        x[i] += delta[i];
}

static void forward_attention_part(model_session *s, const model_request *q, uint32_t l,
                                   uint32_t past)
{
    const model_config *c = &s->m->config;
    uint32_t rows = q->token_count, kv_dim = model_kv_dim(c), query_dim = model_query_dim(c);
    const forward_kv at = forward_place(s, q, l, past);
    float *keys = at.keys + (size_t)past * kv_dim, *values = at.values + (size_t)past * kv_dim;
    forward_norm(c, s->m->layers[l].norm_attention, s->x, rows, c->dim, s->normed);
    forward_matrix(s, l, MODEL_WQ, s->normed, s->query, rows);
    forward_matrix(s, l, MODEL_WK, s->normed, keys, rows);
    forward_matrix(s, l, MODEL_WV, s->normed, values, rows);
    forward_rotate(s, s->query, rows, c->heads);
    forward_rotate(s, keys, rows, c->kv_heads);
    if (q->k_out != NULL && q->k_out[l] != keys)
        memcpy(q->k_out[l], keys, (size_t)rows * kv_dim * sizeof *keys);
    if (q->v_out != NULL && q->v_out[l] != values)
        memcpy(q->v_out[l], values, (size_t)rows * kv_dim * sizeof *values);
    if (q->queries_out != NULL) {
        memcpy(q->queries_out[l], s->query + (size_t)q->queries_first * query_dim,
               (size_t)q->queries_count * query_dim * sizeof *s->query);
    }
    forward_attend(s, q, l, past, &at);
    if (q->attended_out != NULL) {
        memcpy(q->attended_out[l], s->attended + (size_t)q->queries_first * query_dim,
               (size_t)q->queries_count * query_dim * sizeof *s->attended);
    }
    forward_matrix(s, l, MODEL_WO, forward_inner(s, s->attended, rows, query_dim), s->delta, rows);
    forward_add(s->x, s->delta, (size_t)rows * c->dim);
}

static void forward_ffn_part(model_session *s, uint32_t l, uint32_t rows)
{
    const model_config *c = &s->m->config;
    size_t count = (size_t)rows * c->ffn_dim;
    forward_norm(c, s->m->layers[l].norm_ffn, s->x, rows, c->dim, s->normed);
    forward_matrix(s, l, MODEL_W1, s->normed, s->gate, rows);
    forward_matrix(s, l, MODEL_W3, s->normed, s->up, rows);
    for (size_t i = 0; i < count; i++)
        s->gate[i] *= s->up[i] / (1.0f + expf(-s->gate[i]));
    forward_matrix(s, l, MODEL_W2, forward_inner(s, s->gate, rows, c->ffn_dim), s->delta, rows);
    forward_add(s->x, s->delta, (size_t)rows * c->dim);
}

static bool forward_is_sound(const model_config *c, const model_request *q)
{
    if (q->token_count == 0 || q->token_count > MODEL_TOKENS_MAX) return false;
    for (uint32_t i = 0; i < q->token_count; i++)
        if (q->tokens[i] >= c->vocab) return false;
    if (q->past != NULL) {
        if (q->past->tokens > MODEL_TOKENS_MAX) return false;
        if (!model_is_float(q->past->dtype)) return false;
    }
    return q->logits_first <= q->token_count &&
           q->logits_count <= q->token_count - q->logits_first &&
           q->queries_first <= q->token_count &&
           q->queries_count <= q->token_count - q->queries_first;
}

kvt_status model_forward(model_session *s, const model_request *q)
{
    const model *m = s->m;
    const model_config *c = &m->config;
    if (!forward_is_sound(c, q)) return KVT_E_ARGUMENT;
    uint32_t past = q->past != NULL ? q->past->tokens : 0, rows = q->token_count;
    kvt_status status = forward_reserve(s, rows, past);
    if (status != KVT_OK) return status;
    for (uint32_t r = 0; r < rows; r++) {
        memcpy(s->x + (size_t)r * c->dim, m->embedding + (size_t)q->tokens[r] * c->dim,
               c->dim * sizeof *s->x);
    }
    forward_rotation_table(s, q->first_position, rows);
    for (uint32_t l = 0; l < c->layers; l++) {
        forward_attention_part(s, q, l, past);
        forward_ffn_part(s, l, rows);
    }
    if (q->logits_out != NULL && q->logits_count > 0) {
        forward_norm(c, m->norm_final, s->x + (size_t)q->logits_first * c->dim, q->logits_count,
                     c->dim, s->normed);
        forward_linear(s->normed, m->output, q->logits_out, q->logits_count,
                       (model_shape){c->vocab, c->dim});
    }
    return KVT_OK;
}
