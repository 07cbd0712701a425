/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decode_synthetic.c - K, V and queries of Llama-3.1-8B's shape without a model.
 *
 * Tokens come in short runs of one topic; keys lie around their topic's centre, two channels are
 * large in all of them. A query holds on to a few topics and changes one now and then; a direction
 * of its own leads it to the sinks. The constants are set so that recall and hits come near those
 * of the dumps; the bench prints both.
 */
#include "decode.h"
#include "lab/private.h"

#include <math.h>
#include <stdlib.h>

#define TOPIC_TOKENS 48.0 /* of a topic, on average */
#define RUN_TOKENS   6    /* of a run, on average */
#define HELD         4    /* topics of a query */
#define CHANGE       0.12 /* that one of them changes in a step */
#define KEY_SPREAD   0.75f
#define SHARPNESS    5.5f
#define SINK_SCORE   9.0f

static double uniform(uint64_t *dice)
{
    *dice += UINT64_C(0x9E3779B97F4A7C15);
    return ((double)(lab_mix(*dice) >> 11) + 0.5) * 0x1p-53;
}

/* Close to a normal number: the sum of four uniform ones. */
static float normal(uint64_t *dice)
{
    const double sum = uniform(dice) + uniform(dice) + uniform(dice) + uniform(dice);
    return (float)((sum - 2.0) * 1.7320508075688772);
}

/* The centre of a topic for keys (0) or values (1), the same whenever it is asked for. */
static void centre(const decode_source *source, uint64_t unit, uint32_t topic, uint32_t side,
                   float *row)
{
    uint64_t dice = lab_mix(source->seed ^ lab_mix(unit * 4 + side) ^ lab_mix(topic + 1));
    double squares = 0.0;
    for (uint32_t d = 0; d < source->head_dim; d++) {
        const double octaves = side == 0 ? (double)source->fall * d / source->head_dim : 0.0;
        row[d] = normal(&dice) * (float)exp2(-octaves);
        squares += exp2(-2.0 * octaves);
    }
    for (uint32_t d = 0; source->fall > 0 && d < source->head_dim; d++)
        row[d] *= (float)sqrt(source->head_dim / squares);
}

/* Earlier topics are more popular. */
static uint32_t draw_topic(uint64_t *dice, uint32_t topics)
{
    const double u = uniform(dice);
    return (uint32_t)((double)topics * u * u) % topics;
}

static void write_row(uint16_t *out, const float *middle, float spread, uint32_t dim,
                      uint64_t *dice)
{
    for (uint32_t d = 0; d < dim; d++)
        out[d] = half_from_float(middle[d] + spread * normal(dice));
}

static void make_queries(const decode_source *source, uint64_t unit, uint32_t topics,
                         uint64_t *dice, float *queries)
{
    const uint32_t dim = source->head_dim;
    const float scale = SHARPNESS / sqrtf((float)dim);
    float row[SPARSE_HEAD_DIM_MAX], sink[SPARSE_HEAD_DIM_MAX];
    uint32_t held[HELD];
    centre(source, unit, topics, 0, sink);
    for (uint32_t i = 0; i < HELD; i++)
        held[i] = draw_topic(dice, topics);
    for (uint32_t r = 0; r < source->rows; r++) {
        if (uniform(dice) < CHANGE)
            held[(uint32_t)(uniform(dice) * HELD)] = draw_topic(dice, topics);
        for (uint32_t g = 0; g < source->group; g++, queries += dim) {
            for (uint32_t d = 0; d < dim; d++)
                queries[d] = SINK_SCORE / sqrtf((float)dim) * sink[d] + 0.8f * normal(dice);
            for (uint32_t i = 0; i < HELD; i++) {
                const float part = scale * (0.6f + 0.4f * (float)uniform(dice)) /
                                   (1.0f + 0.4f * (float)((i + g) % HELD));
                centre(source, unit, held[i], 0, row);
                for (uint32_t d = 0; d < dim; d++)
                    queries[d] += part * row[d];
            }
        }
    }
}

void decode_synthetic_unit(const decode_source *source, uint32_t layer, uint32_t head,
                           uint16_t *keys, uint16_t *values, float *queries)
{
    const uint32_t dim = source->head_dim;
    const uint64_t unit = (uint64_t)layer * source->kv_heads + head;
    const uint32_t topics = (uint32_t)((double)source->tokens / TOPIC_TOKENS) + 2;
    uint64_t dice = lab_mix(source->seed + 77 * unit + 1);
    float key[SPARSE_HEAD_DIM_MAX], value[SPARSE_HEAD_DIM_MAX];
    uint32_t topic = 0;
    for (uint32_t t = 0; t < source->all; t++) {
        if (t < DECODE_SINKS) {
            centre(source, unit, topics, 0, key);
            for (uint32_t d = 0; d < dim; d++)
                value[d] = 0.0f;
        } else if (t == DECODE_SINKS || uniform(&dice) < 1.0 / RUN_TOKENS) {
            topic = draw_topic(&dice, topics);
            centre(source, unit, topic, 0, key);
            centre(source, unit, topic, 1, value);
            key[3] += 12.0f; /* large in all tokens */
            key[dim / 2 + 5] -= 9.0f;
        }
        write_row(keys + (size_t)t * dim, key, KEY_SPREAD, dim, &dice);
        write_row(values + (size_t)t * dim, value, 0.8f, dim, &dice);
    }
    make_queries(source, unit, topics, &dice, queries);
}

void decode_source_synthetic(uint32_t layers, uint32_t tokens, uint32_t rows, uint64_t seed,
                             decode_source *source_out)
{
    *source_out = (decode_source){.name = "synthetic",
                                  .layers = layers,
                                  .kv_heads = 8,
                                  .group = 4,
                                  .head_dim = 128,
                                  .tokens = tokens,
                                  .rows = rows,
                                  .grows = true,
                                  .all = tokens + rows,
                                  .seed = seed};
}
