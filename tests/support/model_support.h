/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_support.h - small models with random weights for the tests of the reference decoder: made
 * here, written as files here, and run by a plain forward pass in double that shares nothing with
 * the one under test. All weights are multiples of 1/128 below 1/2, so that fp16 and bf16 hold them
 * exactly. Single thread.
 */
#ifndef SUPPORT_MODEL_SUPPORT_H
#define SUPPORT_MODEL_SUPPORT_H

#include "cases.h"

#include "estimator/model/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAIVE_LAYERS_MAX = 3, NAIVE_MATRICES = 7 };

/* wq, wk, wv, wo, w1 (gate), w2 (down), w3 (up); all [out][in]. */
typedef struct naive_model {
    model_config c;
    float *embedding, *norm_final, *output;
    float *norm_attention[NAIVE_LAYERS_MAX], *norm_ffn[NAIVE_LAYERS_MAX];
    float *w[NAIVE_LAYERS_MAX][NAIVE_MATRICES];
    float *bias[NAIVE_LAYERS_MAX][3];              /* of wq, wk, wv; NULL: none */
    float scale[NAIVE_LAYERS_MAX][NAIVE_MATRICES]; /* of ternary weights */
} naive_model;

static inline uint32_t naive_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*state >> 33);
}

static inline float *naive_weights(size_t count, uint64_t *state, bool ternary, float scale)
{
    float *weights = test_alloc(count * sizeof *weights);
    for (size_t i = 0; i < count; i++) {
        int draw = (int)(naive_random(state) % (ternary ? 3 : 127));
        weights[i] = ternary ? (float)(draw - 1) * scale : (float)(draw - 63) / 128.0f;
    }
    return weights;
}

/* Elements of one matrix and, through *rows_out, its outputs. */
static inline size_t naive_matrix(const model_config *c, int matrix, size_t *rows_out)
{
    size_t query = (size_t)c->heads * c->head_dim, kv = (size_t)c->kv_heads * c->head_dim;
    const size_t rows[NAIVE_MATRICES] = {query, kv, kv, c->dim, c->ffn_dim, c->dim, c->ffn_dim};
    const size_t columns[NAIVE_MATRICES] = {c->dim, c->dim,     c->dim, query,
                                            c->dim, c->ffn_dim, c->dim};
    *rows_out = rows[matrix];
    return rows[matrix] * columns[matrix];
}

static inline naive_model naive_make(model_config config, uint64_t seed)
{
    naive_model m = {.c = config};
    uint64_t state = seed;
    size_t table = (size_t)config.vocab * config.dim;
    m.embedding = naive_weights(table, &state, false, 0);
    m.norm_final = naive_weights(config.dim, &state, false, 0);
    m.output = config.tied ? m.embedding : naive_weights(table, &state, false, 0);
    for (uint32_t l = 0; l < config.layers; l++) {
        m.norm_attention[l] = naive_weights(config.dim, &state, false, 0);
        m.norm_ffn[l] = naive_weights(config.dim, &state, false, 0);
        for (int i = 0; i < NAIVE_MATRICES; i++) {
            size_t rows, count = naive_matrix(&config, i, &rows);
            m.scale[l][i] = 1.0f + (float)i;
            m.w[l][i] = naive_weights(count, &state, config.bare_norm, m.scale[l][i]);
            if (config.biased && i < 3) m.bias[l][i] = naive_weights(rows, &state, false, 0);
        }
    }
    return m;
}

/* ---- the forward pass, one token after the other ---- */

static inline void naive_product(const float *w, const double *x, size_t rows, size_t columns,
                                 double *y)
{
    for (size_t r = 0; r < rows; r++) {
        y[r] = 0.0;
        for (size_t i = 0; i < columns; i++)
            y[r] += (double)w[r * columns + i] * x[i];
    }
}

static inline void naive_bias(const float *bias, size_t rows, double *y)
{
    for (size_t r = 0; bias != NULL && r < rows; r++)
        y[r] += (double)bias[r];
}

static inline void naive_norm(const naive_model *m, const float *weight, const double *x, size_t n,
                              double *y)
{
    double mean = 0.0;
    for (size_t i = 0; i < n; i++)
        mean += x[i] * x[i] / (double)n;
    for (size_t i = 0; i < n; i++) {
        if (weight == NULL) {
            y[i] = x[i] / sqrt(mean) / (double)n;
        } else {
            y[i] = x[i] / sqrt(mean + (double)m->c.norm_eps) * (double)weight[i];
        }
    }
}

/* Radians a position of a pair; those of long waves are slower in a scaled model. */
static inline double naive_frequency(const model_config *c, uint32_t pair)
{
    const double plain = 1.0 / pow(c->rope_theta, 2.0 * pair / c->head_dim);
    const double wave = 2.0 * acos(-1.0) / plain, context = c->rope_scale.context;
    const double low = c->rope_scale.low, high = c->rope_scale.high;
    if (c->rope_scale.factor == 0.0 || wave < context / high) return plain;
    if (wave > context / low) return plain / c->rope_scale.factor;
    const double share = (context / wave - low) / (high - low);
    return (1.0 - share) * plain / c->rope_scale.factor + share * plain;
}

static inline void naive_rotate(const model_config *c, double *x, uint32_t heads, uint32_t position)
{
    for (uint32_t h = 0; h < heads; h++, x += c->head_dim) {
        for (uint32_t i = 0; i < c->head_dim / 2; i++) {
            double angle = position * naive_frequency(c, i);
            uint32_t a = c->rope_halves ? i : 2 * i;
            uint32_t b = c->rope_halves ? i + c->head_dim / 2 : 2 * i + 1;
            double real = x[a] * cos(angle) - x[b] * sin(angle);
            x[b] = x[a] * sin(angle) + x[b] * cos(angle);
            x[a] = real;
        }
    }
}

/* One query over `tokens` keys and values of its head, `stride` apart. */
static inline void naive_attend(const double *query, const double *keys, const double *values,
                                size_t stride, uint32_t tokens, uint32_t width, double *out)
{
    double sum = 0.0;
    memset(out, 0, width * sizeof *out);
    for (uint32_t t = 0; t < tokens; t++) {
        double score = 0.0;
        for (uint32_t i = 0; i < width; i++)
            score += query[i] * keys[t * stride + i];
        double weight = exp(score / sqrt((double)width));
        sum += weight;
        for (uint32_t i = 0; i < width; i++)
            out[i] += weight * values[t * stride + i];
    }
    for (uint32_t i = 0; i < width; i++)
        out[i] /= sum;
}

enum { NAIVE_WIDE = 512 };

/* keys and values: this layer's [tokens][kv_dim], rows before `position` filled. */
static inline void naive_layer(const naive_model *m, uint32_t l, uint32_t position, double *x,
                               double *keys, double *values)
{
    const model_config *c = &m->c;
    size_t query_dim = (size_t)c->heads * c->head_dim, kv_dim = (size_t)c->kv_heads * c->head_dim;
    bool bare = c->bare_norm;
    double normed[NAIVE_WIDE], q[NAIVE_WIDE], out[NAIVE_WIDE], up[NAIVE_WIDE];
    double *key = keys + position * kv_dim, *value = values + position * kv_dim;
    naive_norm(m, bare ? NULL : m->norm_attention[l], x, c->dim, normed);
    naive_product(m->w[l][0], normed, query_dim, c->dim, q);
    naive_product(m->w[l][1], normed, kv_dim, c->dim, key);
    naive_product(m->w[l][2], normed, kv_dim, c->dim, value);
    naive_bias(m->bias[l][0], query_dim, q);
    naive_bias(m->bias[l][1], kv_dim, key);
    naive_bias(m->bias[l][2], kv_dim, value);
    naive_rotate(c, q, c->heads, position);
    naive_rotate(c, key, c->kv_heads, position);
    for (uint32_t h = 0; h < c->heads; h++) {
        size_t place = (size_t)(h / (c->heads / c->kv_heads)) * c->head_dim;
        naive_attend(q + (size_t)h * c->head_dim, keys + place, values + place, kv_dim,
                     position + 1, c->head_dim, out + (size_t)h * c->head_dim);
    }
    if (bare) naive_norm(m, NULL, out, query_dim, out);
    naive_product(m->w[l][3], out, c->dim, query_dim, normed);
    for (uint32_t i = 0; i < c->dim; i++)
        x[i] += normed[i];
    naive_norm(m, bare ? NULL : m->norm_ffn[l], x, c->dim, normed);
    naive_product(m->w[l][4], normed, c->ffn_dim, c->dim, out);
    naive_product(m->w[l][6], normed, c->ffn_dim, c->dim, up);
    for (uint32_t i = 0; i < c->ffn_dim; i++)
        out[i] = out[i] / (1.0 + exp(-out[i])) * up[i];
    if (bare) naive_norm(m, NULL, out, c->ffn_dim, out);
    naive_product(m->w[l][5], out, c->dim, c->ffn_dim, normed);
    for (uint32_t i = 0; i < c->dim; i++)
        x[i] += normed[i];
}

/* logits [count][vocab]; k and v [layers][count][kv_dim]. */
static inline void naive_forward(const naive_model *m, const uint32_t *tokens, uint32_t count,
                                 double *logits, double *k, double *v)
{
    const model_config *c = &m->c;
    size_t layer = (size_t)count * c->kv_heads * c->head_dim;
    double x[NAIVE_WIDE];
    assert_true(c->dim <= NAIVE_WIDE && c->ffn_dim <= NAIVE_WIDE);
    for (uint32_t t = 0; t < count; t++) {
        for (uint32_t i = 0; i < c->dim; i++)
            x[i] = (double)m->embedding[(size_t)tokens[t] * c->dim + i];
        for (uint32_t l = 0; l < c->layers; l++)
            naive_layer(m, l, t, x, k + l * layer, v + l * layer);
        naive_norm(m, m->norm_final, x, c->dim, x);
        naive_product(m->output, x, c->vocab, c->dim, logits + (size_t)t * c->vocab);
    }
}

/* ---- files ---- */

static inline void naive_put(FILE *file, const void *data, size_t bytes)
{
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
}

static inline void naive_put_matrices(FILE *file, const naive_model *m, int matrix)
{
    for (uint32_t l = 0; l < m->c.layers; l++) {
        size_t rows, count = naive_matrix(&m->c, matrix, &rows);
        naive_put(file, m->w[l][matrix], count * sizeof(float));
    }
}

static inline void naive_header(const model_config *c, int32_t header[7])
{
    const uint32_t sizes[7] = {c->dim,      c->ffn_dim, c->layers, c->heads,
                               c->kv_heads, c->vocab,   c->context};
    for (int i = 0; i < 7; i++)
        header[i] = (int32_t)sizes[i];
}

/* The llama2.c layout. */
static inline void naive_write(const naive_model *m, const char *path)
{
    int32_t header[7];
    size_t table = (size_t)m->c.vocab * m->c.dim * sizeof(float);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    naive_header(&m->c, header);
    if (!m->c.tied) header[5] = -header[5];
    naive_put(file, header, sizeof header);
    naive_put(file, m->embedding, table);
    for (uint32_t l = 0; l < m->c.layers; l++)
        naive_put(file, m->norm_attention[l], m->c.dim * sizeof(float));
    for (int i = 0; i < 4; i++)
        naive_put_matrices(file, m, i);
    for (uint32_t l = 0; l < m->c.layers; l++)
        naive_put(file, m->norm_ffn[l], m->c.dim * sizeof(float));
    for (int i = 4; i < NAIVE_MATRICES; i++)
        naive_put_matrices(file, m, i);
    naive_put(file, m->norm_final, m->c.dim * sizeof(float));
    for (uint32_t i = 0; i < m->c.context * m->c.head_dim; i++) {
        const uint32_t half = m->c.head_dim / 2, at = i % (m->c.context * half);
        const double angle =
            at / half * pow(m->c.rope_theta, -2.0 * (double)(at % half) / m->c.head_dim);
        const float factor = (float)(i < m->c.context * half ? cos(angle) : sin(angle));
        naive_put(file, &factor, sizeof factor);
    }
    if (!m->c.tied) naive_put(file, m->output, table);
    assert_int_equal(fclose(file), 0);
}

static inline model *naive_open(const char *path)
{
    model *loaded = NULL;
    char message[256] = "";
    kvt_status status = model_open(path, &loaded, message, sizeof message);
    if (status != KVT_OK) fail_msg("%s: %s", kvt_status_name(status), message);
    return loaded;
}

/* Three layers, four query heads on two KV heads, own output matrix. */
static inline model_config naive_config(void)
{
    return (model_config){.dim = 24,
                          .ffn_dim = 20,
                          .layers = 3,
                          .heads = 4,
                          .kv_heads = 2,
                          .head_dim = 6,
                          .vocab = 70,
                          .context = 5,
                          .norm_eps = 1e-5f,
                          .rope_theta = 10000.0};
}

#endif
