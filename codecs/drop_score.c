/* SPDX-License-Identifier: Apache-2.0 */
/*
 * drop_score.c - how much each token of a layer is worth, by the published scores. See drop.h.
 *
 * A sum over channels runs in eight lanes, channel c in lane c mod 8, and the lanes are added in
 * pairs; a sum over tokens or heads runs in their order. That is the definition: a faster version
 * must keep it. Re-entrant.
 */
#include "drop.h"

#include "drop_number.h"
#include "element.h"

enum { DROP_LANES = 8, DROP_PIECE = 128 };

/* The channels of one head of one token. */
typedef struct drop_vector {
    const uint8_t *data;
    uint32_t length;
    uint8_t dtype;
} drop_vector;

static drop_vector drop_vector_at(const drop_shape *shape, const void *matrix, uint64_t token,
                                  uint32_t head)
{
    const uint64_t first = (token * shape->kv_heads + head) * shape->head_dim;
    const uint8_t *bytes = matrix;
    drop_vector vector = {bytes + first * kvt_dtype_bytes(shape->dtype), shape->head_dim,
                          shape->dtype};
    return vector;
}

static float drop_finite(uint32_t bits)
{
    return half_bits_float((bits & 0x7f800000u) == 0x7f800000u ? 0 : bits);
}

/* Loads channels [first, first + count) as floats, zero where not finite, and zeros up to a
 * multiple of the lanes. */
static void drop_load(drop_vector vector, uint32_t first, uint32_t count, float *values)
{
    const uint8_t *source = vector.data + (uint64_t)first * kvt_dtype_bytes(vector.dtype);
    uint16_t halves[DROP_PIECE];
    for (uint32_t i = count; i % DROP_LANES != 0; i++) {
        values[i] = 0.0f;
    }
    if (vector.dtype == KVT_DTYPE_FP32) {
        memcpy(values, source, count * sizeof values[0]);
        for (uint32_t i = 0; i < count; i++) {
            values[i] = drop_finite(half_float_bits(values[i]));
        }
        return;
    }
    memcpy(halves, source, count * sizeof halves[0]);
    if (vector.dtype == KVT_DTYPE_BF16) {
        for (uint32_t i = 0; i < count; i++) {
            values[i] = drop_finite((uint32_t)halves[i] << 16);
        }
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        /* 2^112 moves the exponent's bias; exact for subnormals as well. */
        const uint32_t size = halves[i] & 0x7fffu;
        const float value = half_bits_float(size >= 0x7c00u ? 0 : size << 13) * 0x1p112f;
        values[i] = halves[i] & 0x8000u ? -value : value;
    }
}

static uint32_t drop_piece(uint32_t length, uint32_t first)
{
    return length - first < DROP_PIECE ? length - first : (uint32_t)DROP_PIECE;
}

static double drop_lanes_sum(const double *lanes)
{
    return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
           ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

static void drop_lanes_add(double *lanes, const double *values, uint32_t count)
{
    uint32_t i = 0;
    for (; i + DROP_LANES <= count; i += DROP_LANES) {
        for (uint32_t j = 0; j < DROP_LANES; j++) {
            lanes[j] += values[i + j];
        }
    }
    for (uint32_t j = 0; i + j < count; j++) {
        lanes[j] += values[i + j];
    }
}

static double drop_squares(drop_vector vector)
{
    double lanes[DROP_LANES] = {0};
    float values[DROP_PIECE];
    for (uint32_t first = 0; first < vector.length; first += DROP_PIECE) {
        const uint32_t count = drop_piece(vector.length, first);
        drop_load(vector, first, count, values);
        for (uint32_t i = 0; i < count; i += DROP_LANES) {
            for (uint32_t j = 0; j < DROP_LANES; j++) {
                const double value = (double)values[i + j];
                lanes[j] += value * value;
            }
        }
    }
    return drop_lanes_sum(lanes);
}

static double drop_at_least(double value, double least)
{
    return value > least ? value : least;
}

static void drop_score_knorm(const drop_shape *shape, uint32_t head, const void *k, double *scores)
{
    for (uint64_t t = 0; t < shape->tokens; t++) {
        scores[t] -= drop_sqrt(drop_squares(drop_vector_at(shape, k, t, head)));
    }
}

/* anchor += vector / max(|vector|, 1e-12) */
static void drop_anchor_add(drop_vector vector, double *anchor)
{
    const double norm = drop_at_least(drop_sqrt(drop_squares(vector)), 1e-12);
    float values[DROP_PIECE];
    for (uint32_t first = 0; first < vector.length; first += DROP_PIECE) {
        const uint32_t count = drop_piece(vector.length, first);
        drop_load(vector, first, count, values);
        for (uint32_t i = 0; i < count; i++) {
            anchor[first + i] += (double)values[i] / norm;
        }
    }
}

static double drop_dot(drop_vector vector, const double *anchor)
{
    double lanes[DROP_LANES] = {0};
    double products[DROP_PIECE];
    float values[DROP_PIECE];
    for (uint32_t first = 0; first < vector.length; first += DROP_PIECE) {
        const uint32_t count = drop_piece(vector.length, first);
        drop_load(vector, first, count, values);
        for (uint32_t i = 0; i < count; i++) {
            products[i] = (double)values[i] * anchor[first + i];
        }
        drop_lanes_add(lanes, products, count);
    }
    return drop_lanes_sum(lanes);
}

/* scratch: head_dim doubles. */
static void drop_score_keydiff(const drop_shape *shape, uint32_t head, const void *k,
                               double *scores, double *scratch)
{
    double squares[DROP_LANES] = {0};
    for (uint32_t i = 0; i < shape->head_dim; i++) {
        scratch[i] = 0.0;
    }
    for (uint64_t t = 0; t < shape->tokens; t++) {
        drop_anchor_add(drop_vector_at(shape, k, t, head), scratch);
    }
    for (uint32_t i = 0; i < shape->head_dim; i++) {
        scratch[i] /= (double)shape->tokens;
        const double square = scratch[i] * scratch[i];
        squares[i % DROP_LANES] += square;
    }
    const double anchor_norm = drop_at_least(drop_sqrt(drop_lanes_sum(squares)), 1e-8);
    for (uint64_t t = 0; t < shape->tokens; t++) {
        const drop_vector vector = drop_vector_at(shape, k, t, head);
        const double norm = drop_at_least(drop_sqrt(drop_squares(vector)), 1e-8);
        const double product = norm * anchor_norm;
        scores[t] -= drop_dot(vector, scratch) / product;
    }
}

/* The least and the span of each channel over lag tokens. A span of 0 becomes infinity, so that
 * values relative to it are 0. */
static void drop_lag_reference(const drop_shape *shape, uint32_t head, const void *matrix,
                               uint64_t first_token, uint32_t lag, double *least, double *span)
{
    float values[DROP_PIECE];
    for (uint32_t i = 0; i < shape->head_dim; i++) {
        least[i] = __builtin_inf();
        span[i] = -__builtin_inf();
    }
    for (uint64_t t = first_token; t < first_token + lag; t++) {
        const drop_vector vector = drop_vector_at(shape, matrix, t, head);
        for (uint32_t first = 0; first < vector.length; first += DROP_PIECE) {
            const uint32_t count = drop_piece(vector.length, first);
            drop_load(vector, first, count, values);
            for (uint32_t i = 0; i < count; i++) {
                const double value = (double)values[i];
                const double low = least[first + i];
                const double high = span[first + i];
                least[first + i] = value < low ? value : low;
                span[first + i] = value > high ? value : high;
            }
        }
    }
    for (uint32_t i = 0; i < shape->head_dim; i++) {
        span[i] -= least[i];
        if (!(span[i] > 0.0)) span[i] = __builtin_inf();
    }
}

/* Standard deviation (n - 1) over the channels of a token's values relative to the reference;
 * relative has room for head_dim doubles. */
static double drop_lag_spread(drop_vector vector, const double *least, const double *span,
                              double *relative)
{
    double lanes[DROP_LANES] = {0};
    float values[DROP_PIECE];
    if (vector.length < 2) return 0.0;
    for (uint32_t first = 0; first < vector.length; first += DROP_PIECE) {
        const uint32_t count = drop_piece(vector.length, first);
        drop_load(vector, first, count, values);
        for (uint32_t i = 0; i < count; i++) {
            const double above = (double)values[i] - least[first + i];
            relative[first + i] = above / span[first + i];
        }
    }
    drop_lanes_add(lanes, relative, vector.length);
    const double mean = drop_lanes_sum(lanes) / (double)vector.length;
    for (uint32_t c = 0; c < vector.length; c++) {
        const double off = relative[c] - mean;
        relative[c] = off * off;
    }
    memset(lanes, 0, sizeof lanes);
    drop_lanes_add(lanes, relative, vector.length);
    return drop_sqrt(drop_lanes_sum(lanes) / (double)(vector.length - 1));
}

/* Adds half the softmax over the partition of the spreads to sum. scratch: 3 head_dim + lag. */
static void drop_lag_side(const drop_shape *shape, uint32_t head, const void *matrix,
                          uint64_t first_token, uint32_t lag, double *sum, double *scratch)
{
    double *least = scratch;
    double *span = least + shape->head_dim;
    double *relative = span + shape->head_dim;
    double *spreads = relative + shape->head_dim;
    double largest = 0.0;
    double total = 0.0;
    drop_lag_reference(shape, head, matrix, first_token + lag, lag, least, span);
    for (uint32_t i = 0; i < lag; i++) {
        const drop_vector vector = drop_vector_at(shape, matrix, first_token + i, head);
        spreads[i] = drop_lag_spread(vector, least, span, relative);
        if (spreads[i] > largest) largest = spreads[i];
    }
    for (uint32_t i = 0; i < lag; i++) {
        spreads[i] = drop_exp(spreads[i] - largest);
        total += spreads[i];
    }
    for (uint32_t i = 0; i < lag; i++) {
        const double share = spreads[i] / total;
        sum[i] += share * 0.5;
    }
}

/* Adds to each token's score how many of its partition rank below it; of equals the lower token
 * ranks above. Whole numbers, so that means that are equal are equal in bits. */
static void drop_lag_rank(const double *sum, uint32_t lag, double *scores)
{
    for (uint32_t i = 0; i < lag; i++) {
        uint32_t below = 0;
        for (uint32_t j = 0; j < lag; j++) {
            below += sum[j] < sum[i] || (sum[j] == sum[i] && j > i);
        }
        scores[i] += (double)below;
    }
}

/* Whether the tokens after the sinks make two partitions. */
static bool drop_lag_applies(const drop_settings *settings, uint64_t rest)
{
    return rest >= 2 * (uint64_t)settings->lag;
}

/* Fixed-point value of a LAGKV score of 1. */
static double drop_lag_unit(const drop_settings *settings, const drop_shape *shape, uint32_t sinks)
{
    const uint32_t rest = shape->tokens - sinks;
    if (drop_lag_applies(settings, rest)) return (double)settings->lag;
    return rest == 0 ? 1.0 : (double)rest;
}

/* Adds the head's scores, in units. scratch: 3 head_dim + 2 lag doubles. */
static void drop_score_lagkv(const drop_settings *settings, const drop_shape *shape, uint32_t sinks,
                             uint32_t head, const void *k, const void *v, double *scores,
                             double *scratch)
{
    const uint64_t lag = settings->lag;
    const double unit = drop_lag_unit(settings, shape, sinks);
    uint64_t at = 0;
    for (; at < sinks; at++) {
        scores[at] += unit;
    }
    if (!drop_lag_applies(settings, shape->tokens - sinks)) {
        for (; at < shape->tokens; at++) {
            scores[at] += (double)(at - sinks);
        }
        return;
    }
    double *sum = scratch + 3 * (uint64_t)shape->head_dim + lag;
    for (; at + 2 * lag <= shape->tokens; at += lag) {
        for (uint64_t i = 0; i < lag; i++) {
            sum[i] = 0.0;
        }
        drop_lag_side(shape, head, k, at, settings->lag, sum, scratch);
        if (v != NULL) drop_lag_side(shape, head, v, at, settings->lag, sum, scratch);
        drop_lag_rank(sum, settings->lag, scores + at);
    }
    for (; at < shape->tokens; at++) {
        scores[at] += unit;
    }
}

uint64_t drop_scores_scratch(const drop_settings *settings, const drop_shape *shape)
{
    if (settings->method == DROP_METHOD_KEYDIFF) return shape->head_dim;
    if (settings->method != DROP_METHOD_LAGKV) return 0;
    if (!drop_lag_applies(settings, shape->tokens)) return 0;
    return 3 * (uint64_t)shape->head_dim + 2 * (uint64_t)settings->lag;
}

kvt_status drop_scores(const drop_settings *settings, const drop_shape *shape,
                       uint32_t first_position, const void *k, const void *v, double *scores,
                       double *scratch)
{
    const uint32_t left = first_position < settings->sinks ? settings->sinks - first_position : 0;
    const uint32_t sinks = left < shape->tokens ? left : shape->tokens;
    if (shape->kv_heads == 0 || shape->head_dim == 0 ||
        (shape->dtype != KVT_DTYPE_FP16 && shape->dtype != KVT_DTYPE_BF16 &&
         shape->dtype != KVT_DTYPE_FP32))
        return KVT_E_UNSUPPORTED;
    if (settings->method == DROP_METHOD_LAGKV && settings->lag == 0) return KVT_E_UNSUPPORTED;
    for (uint64_t t = 0; t < shape->tokens; t++) {
        scores[t] = settings->method == DROP_METHOD_STREAM ? (double)t : 0.0;
    }
    if (settings->method == DROP_METHOD_STREAM) return KVT_OK;
    for (uint32_t head = 0; head < shape->kv_heads; head++) {
        switch (settings->method) {
        case DROP_METHOD_KNORM: drop_score_knorm(shape, head, k, scores); break;
        case DROP_METHOD_KEYDIFF: drop_score_keydiff(shape, head, k, scores, scratch); break;
        case DROP_METHOD_LAGKV:
            drop_score_lagkv(settings, shape, sinks, head, k, v, scores, scratch);
            break;
        default: return KVT_E_UNSUPPORTED;
        }
    }
    double parts = (double)shape->kv_heads;
    if (settings->method == DROP_METHOD_LAGKV) parts *= drop_lag_unit(settings, shape, sinks);
    for (uint64_t t = 0; t < shape->tokens; t++) {
        scores[t] /= parts;
    }
    return KVT_OK;
}
