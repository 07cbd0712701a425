/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_attention.c - softmax attention: of one head over a block of queries, with the weights, for
 * the probes; and of all heads over tiles of a past and of new tokens, without, for the forward
 * pass. Thread rule: any thread, given buffers of its own.
 */
#include "estimator/model/model_internal.h"
#include "estimator/model/model_vector.h"

#include <cblas.h>

/* ---- one head, all scores at once ---- */

/* One row of scores: how many tokens it sees, and which of the first ones are dropped. */
typedef struct attention_row {
    float *scores;
    uint32_t visible;
    uint32_t masked; /* tokens that `kept` is about; 0: none */
    const uint8_t *kept;
    float scale;
    float peak; /* filled: the largest weight */
} attention_row;

VECTOR_INLINE float attention_max(const attention_row *row)
{
    vector_floats lanes = (vector_floats){0.0f} - INFINITY, next;
    float most = -INFINITY;
    for (uint32_t i = 0; i < row->visible; i += VECTOR_LANES) {
        vector_load(row->scores, i, row->visible, -INFINITY, &next);
        vector_raise(&lanes, &next);
    }
    for (unsigned lane = 0; lane < VECTOR_LANES; lane++)
        most = lanes[lane] > most ? lanes[lane] : most;
    return most;
}

/* Turns the visible scores into weights that sum to 1; a dropped token's is exactly 0. */
VECTOR_INLINE void attention_softmax_body(attention_row *row)
{
    vector_floats sums = {0.0f}, next;
    float *scores = row->scores;
    double sum = 0.0;
    for (uint32_t i = 0; i < row->masked; i++)
        scores[i] = row->kept[i] != 0 ? scores[i] : -INFINITY;
    float most = attention_max(row);
    for (uint32_t i = 0; i < row->visible; i += VECTOR_LANES) {
        vector_load(scores, i, row->visible, most, &next);
        next = (next - most) * row->scale;
        vector_exp(&next);
        vector_store(scores, i, row->visible, &next);
    }
    for (uint32_t i = 0; i < row->masked; i++)
        scores[i] = row->kept[i] != 0 && most > -INFINITY ? scores[i] : 0.0f;
    for (uint32_t i = 0; i < row->visible; i += VECTOR_LANES) {
        vector_load(scores, i, row->visible, 0.0f, &next);
        sums += next;
    }
    for (unsigned lane = 0; lane < VECTOR_LANES; lane++)
        sum += (double)sums[lane];
    float inverse = sum == 0.0 ? 0.0f : (float)(1.0 / sum);
    row->peak = inverse; /* e^0 is exactly 1 */
    for (uint32_t i = 0; i < row->visible; i += VECTOR_LANES) {
        vector_load(scores, i, row->visible, 0.0f, &next);
        next *= inverse;
        vector_store(scores, i, row->visible, &next);
    }
}

VECTOR_VERSIONS(attention_softmax, attention_row)

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
        attention_row row = {.scores = a->weights + (size_t)r * a->tokens,
                             .visible = visible < a->tokens ? (uint32_t)visible : a->tokens,
                             .kept = a->kept,
                             .scale = scale};
        if (a->kept != NULL)
            row.masked = a->kept_tokens < row.visible ? a->kept_tokens : row.visible;
        attention_softmax(&row);
        if (a->peaks != NULL) a->peaks[r] = row.peak;
        memset(row.scores + row.visible, 0, (a->tokens - row.visible) * sizeof *row.scores);
    }
    if (a->out == NULL) return;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, width, tokens, 1.0f, a->weights,
                tokens, a->values, kv_stride, 0.0f, a->out, query_stride);
}

/* ---- all heads, tile by tile ---- */

/*
 * Queries are taken in blocks, keys in tiles, so that the scores of a block and a tile, the tile
 * as fp32 and the block's outputs stay in the second-level cache. The query heads of one KV head
 * are the rows of one product: 64 new tokens of 3 heads are 192 rows. Every row carries the largest
 * score so far and the sum of the weights so far; where a tile has a larger score, the outputs and
 * the sum are scaled down to it.
 *
 *              tile 0    tile 1    tile 2 (own)
 *   block 0  | past    | past    | own \        own keys are seen up to the row's own token
 *   block 1  | past    | past    | own    \
 */
enum { ATTENTION_TILE = 256 };

typedef struct attention_carry {
    float peak; /* of the scores so far; -INFINITY before the first */
    double sum; /* of e^(score - peak) */
} attention_carry;

/* One row of a tile's scores, and what it carries along. */
typedef struct attention_step {
    float *scores; /* [count]; become weights */
    uint32_t count, visible;
    const uint8_t *kept; /* [visible], or NULL: all */
    attention_carry *carry;
    float *out; /* [width] */
    uint32_t width;
} attention_step;

VECTOR_INLINE void attention_scale(float *row, uint32_t count, float factor)
{
    vector_floats next;
    for (uint32_t i = 0; i < count; i += VECTOR_LANES) {
        vector_load(row, i, count, 0.0f, &next);
        next *= factor;
        vector_store(row, i, count, &next);
    }
}

VECTOR_INLINE void attention_advance_body(attention_step *step)
{
    vector_floats sums = {0.0f}, next;
    float *scores = step->scores;
    attention_carry *carry = step->carry;
    double sum = 0.0;
    for (uint32_t i = 0; step->kept != NULL && i < step->visible; i++)
        scores[i] = step->kept[i] != 0 ? scores[i] : -INFINITY;
    float most = attention_max(&(attention_row){.scores = scores, .visible = step->visible});
    memset(scores + step->visible, 0, (step->count - step->visible) * sizeof *scores);
    if (!(most > -INFINITY)) {
        memset(scores, 0, step->visible * sizeof *scores);
        return;
    }
    if (most > carry->peak) {
        float factor = carry->peak > -INFINITY ? expf(carry->peak - most) : 0.0f;
        if (carry->sum > 0.0) attention_scale(step->out, step->width, factor);
        carry->sum *= (double)factor;
        carry->peak = most;
    }
    for (uint32_t i = 0; i < step->visible; i += VECTOR_LANES) {
        /* A filler far below every score adds the smallest of numbers, and nothing is stored. */
        vector_load(scores, i, step->visible, -INFINITY, &next);
        next -= carry->peak;
        vector_exp(&next);
        vector_store(scores, i, step->visible, &next);
        sums += next;
    }
    /* e^-INFINITY is not quite 0 here: what is dropped must be. */
    for (uint32_t i = 0; step->kept != NULL && i < step->visible; i++)
        scores[i] = step->kept[i] != 0 ? scores[i] : 0.0f;
    for (unsigned lane = 0; lane < VECTOR_LANES; lane++)
        sum += (double)sums[lane];
    carry->sum += sum;
}

VECTOR_VERSIONS(attention_advance, attention_step)

/* Buffers for one block, in attention_work's order. */
typedef struct attention_work {
    float *queries;         /* [heads][rows][head_dim], scaled */
    float *out;             /* the same */
    float *scores;          /* [group * rows][ATTENTION_TILE] */
    float *keys, *values;   /* [ATTENTION_TILE][kv_dim] of a past that is not fp32 */
    attention_carry *carry; /* [heads][rows] */
} attention_work;

static size_t attention_up(size_t floats)
{
    return (floats + 15) / 16 * 16;
}

size_t model_attend_floats(const model_config *c)
{
    size_t rows = MODEL_ATTEND_ROWS, block = attention_up(rows * model_query_dim(c));
    return 2 * block + attention_up(c->heads / c->kv_heads * rows * ATTENTION_TILE) +
           2 * attention_up((size_t)ATTENTION_TILE * model_kv_dim(c)) +
           attention_up(c->heads * rows * sizeof(attention_carry) / sizeof(float));
}

static attention_work attention_place(const model_config *c, float *at)
{
    size_t rows = MODEL_ATTEND_ROWS, block = attention_up(rows * model_query_dim(c));
    size_t tile = attention_up((size_t)ATTENTION_TILE * model_kv_dim(c));
    attention_work work = {.queries = at, .out = at + block, .keys = at + 2 * block};
    work.values = work.keys + tile;
    work.scores = work.values + tile;
    work.carry = (attention_carry *)(void *)(work.scores + attention_up(c->heads / c->kv_heads *
                                                                        rows * ATTENTION_TILE));
    return work;
}

/* One tile as fp32, its tokens `kv_dim` apart. */
typedef struct attention_tile {
    const float *keys, *values;
    uint32_t first, count; /* tokens, counted from the past's first */
} attention_tile;

/* Tiles do not go across the end of the past. */
static attention_tile attention_tile_at(const model_attend_all *a, const attention_work *work,
                                        uint32_t first, uint32_t end)
{
    const bool own = first >= a->past;
    const size_t kv_dim = model_kv_dim(a->config);
    uint32_t left = (own ? end : a->past) - first;
    attention_tile tile = {.first = first, .count = left < ATTENTION_TILE ? left : ATTENTION_TILE};
    const size_t place = (own ? first - a->past : first) * kv_dim, floats = tile.count * kv_dim;
    if (own) {
        tile.keys = a->own_keys + place;
        tile.values = a->own_values + place;
    } else if (a->dtype == KVT_DTYPE_FP32) {
        tile.keys = (const float *)a->past_keys + place;
        tile.values = (const float *)a->past_values + place;
    } else {
        model_convert(a->dtype, (const uint16_t *)a->past_keys + place, floats, work->keys);
        model_convert(a->dtype, (const uint16_t *)a->past_values + place, floats, work->values);
        tile.keys = work->keys;
        tile.values = work->values;
    }
    return tile;
}

/* Scores, weights and outputs of one KV head's query heads over one tile; rows are new tokens from
 * `first` on. */
static void attention_tile_head(const model_attend_all *a, const attention_work *work,
                                const attention_tile *tile, uint32_t kv, uint32_t first,
                                uint32_t rows)
{
    const model_config *c = a->config;
    const uint32_t group = c->heads / c->kv_heads, width = c->head_dim;
    const size_t place = (size_t)kv * group * rows, stride = model_kv_dim(c);
    const uint8_t *kept = NULL;
    float *out = work->out + place * width;
    if (a->kept != NULL && tile->first < a->past)
        kept = a->kept + (size_t)kv * a->past + tile->first;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)(group * rows), (int)tile->count,
                (int)width, 1.0f, work->queries + place * width, (int)width,
                tile->keys + (size_t)kv * width, (int)stride, 0.0f, work->scores, (int)tile->count);
    for (uint32_t i = 0; i < group * rows; i++) {
        const uint32_t end = a->past + first + i % rows + 1; /* of what the row sees */
        const uint32_t sees = end > tile->first ? end - tile->first : 0;
        attention_step step = {.scores = work->scores + (size_t)i * tile->count,
                               .count = tile->count,
                               .visible = sees < tile->count ? sees : tile->count,
                               .kept = kept,
                               .carry = work->carry + place + i,
                               .out = out + (size_t)i * width,
                               .width = width};
        attention_advance(&step);
    }
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)(group * rows), (int)width,
                (int)tile->count, 1.0f, work->scores, (int)tile->count,
                tile->values + (size_t)kv * width, (int)stride, 1.0f, out, (int)width);
}

/* Between [rows][heads][head_dim] and [heads][rows][head_dim]. */
static void attention_gather(const model_attend_all *a, const attention_work *work, uint32_t first,
                             uint32_t rows)
{
    const model_config *c = a->config;
    const float scale = 1.0f / sqrtf((float)c->head_dim);
    for (uint32_t h = 0; h < c->heads; h++) {
        for (uint32_t r = 0; r < rows; r++) {
            const float *from = a->queries + ((size_t)(first + r) * c->heads + h) * c->head_dim;
            float *to = work->queries + ((size_t)h * rows + r) * c->head_dim;
            for (uint32_t i = 0; i < c->head_dim; i++)
                to[i] = from[i] * scale;
            work->carry[(size_t)h * rows + r] = (attention_carry){-INFINITY, 0.0};
        }
    }
    memset(work->out, 0, (size_t)rows * model_query_dim(c) * sizeof *work->out);
}

static void attention_scatter(const model_attend_all *a, const attention_work *work, uint32_t first,
                              uint32_t rows)
{
    const model_config *c = a->config;
    for (uint32_t h = 0; h < c->heads; h++) {
        for (uint32_t r = 0; r < rows; r++) {
            const double sum = work->carry[(size_t)h * rows + r].sum;
            const float inverse = sum > 0.0 ? (float)(1.0 / sum) : 0.0f;
            const float *from = work->out + ((size_t)h * rows + r) * c->head_dim;
            float *to = a->out + ((size_t)(first + r) * c->heads + h) * c->head_dim;
            for (uint32_t i = 0; i < c->head_dim; i++)
                to[i] = from[i] * inverse;
        }
    }
}

void model_attend_past(const model_attend_all *a, float *work_floats)
{
    const attention_work work = attention_place(a->config, work_floats);
    for (uint32_t first = 0; first < a->rows; first += MODEL_ATTEND_ROWS) {
        uint32_t left = a->rows - first;
        uint32_t rows = left < MODEL_ATTEND_ROWS ? left : MODEL_ATTEND_ROWS;
        uint32_t end = a->past + (a->own_keys != NULL ? first + rows : 0);
        attention_gather(a, &work, first, rows);
        for (uint32_t at = 0; at < end;) {
            attention_tile tile = attention_tile_at(a, &work, at, end);
            for (uint32_t kv = 0; kv < a->config->kv_heads; kv++)
                attention_tile_head(a, &work, &tile, kv, first, rows);
            at += tile.count;
        }
        attention_scatter(a, &work, first, rows);
    }
}
