/*
 * model_attention.c - softmax attention of one head over a block of queries, for the forward pass
 * and for the probes. Thread rule: any thread, given buffers of its own.
 */
#include "estimator/model_internal.h"

#include <cblas.h>
#include <math.h>

enum { ATTENTION_LANES = 16 };

/* e^x for x <= 0 within 2 units in the last place, and without branches, so that compilers turn
 * the loop around it into vector code. Below -87 it gives the smallest normal number. */
static inline float attention_exp(float x)
{
    union {
        float value;
        uint32_t bits;
    } power, shifted;
    x = x < -87.0f ? -87.0f : x;
    /* Adding 1.5 * 2^23 rounds to an integer, which then stands in the low bits. */
    shifted.value = x * 1.44269504f + 12582912.0f;
    float whole = shifted.value - 12582912.0f;
    float r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
    float p = 1.0f / 5040.0f;
    p = p * r + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    power.bits = (shifted.bits - 0x4b400000u + 127u) << 23;
    return p * power.value;
}

static float attention_max(const float *scores, uint32_t count)
{
    float lanes[ATTENTION_LANES], most = -INFINITY;
    uint32_t i = 0;
    for (unsigned lane = 0; lane < ATTENTION_LANES; lane++)
        lanes[lane] = -INFINITY;
    for (; i + ATTENTION_LANES <= count; i += ATTENTION_LANES)
        for (unsigned lane = 0; lane < ATTENTION_LANES; lane++)
            lanes[lane] = scores[i + lane] > lanes[lane] ? scores[i + lane] : lanes[lane];
    for (; i < count; i++)
        most = scores[i] > most ? scores[i] : most;
    for (unsigned lane = 0; lane < ATTENTION_LANES; lane++)
        most = lanes[lane] > most ? lanes[lane] : most;
    return most;
}

static float attention_sum(const float *weights, uint32_t count)
{
    float lanes[ATTENTION_LANES] = {0.0f};
    double sum = 0.0;
    uint32_t i = 0;
    for (; i + ATTENTION_LANES <= count; i += ATTENTION_LANES)
        for (unsigned lane = 0; lane < ATTENTION_LANES; lane++)
            lanes[lane] += weights[i + lane];
    for (; i < count; i++)
        sum += weights[i];
    for (unsigned lane = 0; lane < ATTENTION_LANES; lane++)
        sum += lanes[lane];
    return (float)sum;
}

/* Turns scores into weights; those of the tokens from `visible` on become zero. */
static void attention_softmax(float *row, uint32_t visible, uint32_t tokens, float scale,
                              const uint8_t *kept, uint32_t kept_tokens)
{
    uint32_t masked = kept == NULL ? 0 : kept_tokens < visible ? kept_tokens : visible;
    for (uint32_t i = 0; i < masked; i++)
        row[i] = kept[i] != 0 ? row[i] : -INFINITY;
    float most = attention_max(row, visible);
    if (most == -INFINITY && masked > 0) visible = 0;
    for (uint32_t i = 0; i < visible; i++)
        row[i] = attention_exp((row[i] - most) * scale);
    /* A dropped token's weight is exactly nothing. */
    for (uint32_t i = 0; i < masked && visible > 0; i++)
        row[i] = kept[i] != 0 ? row[i] : 0.0f;
    float inverse = visible > 0 ? 1.0f / attention_sum(row, visible) : 0.0f;
    for (uint32_t i = 0; i < visible; i++)
        row[i] *= inverse;
    for (uint32_t i = visible; i < tokens; i++)
        row[i] = 0.0f;
}

void model_attend_block(const model_attend *a)
{
    float scale = 1.0f / sqrtf((float)a->head_dim);
    int rows = (int)a->rows, tokens = (int)a->tokens, width = (int)a->head_dim;
    int query_stride = (int)a->query_stride, kv_stride = (int)a->kv_stride;
    if (a->rows == 0) return;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, tokens, width, 1.0f, a->queries,
                query_stride, a->keys, kv_stride, 0.0f, a->weights, tokens);
    for (uint32_t r = 0; r < a->rows; r++) {
        uint64_t visible = a->visible + (uint64_t)r * a->step;
        attention_softmax(a->weights + (size_t)r * a->tokens,
                          visible < a->tokens ? (uint32_t)visible : a->tokens, a->tokens, scale,
                          a->kept, a->kept_tokens);
    }
    if (a->out == NULL) return;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, width, tokens, 1.0f, a->weights,
                tokens, a->values, kv_stride, 0.0f, a->out, query_stride);
}
