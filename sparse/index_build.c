/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index_build.c - builds the index of one unit, segment by segment, and quantises it at the end,
 * when the largest centroid of every channel is known.
 *
 * Means are sums of floats in the order of tokens, so they do not depend on the instruction set.
 * Re-entrant.
 */
#include "base/number/number.h"
#include "cluster.h"
#include "index_lane.h"
#include "index_sketch.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

enum { SLOPE_ROUNDS = 3 };

/* The unit as it grows: means in floats, clusters in packed order. */
typedef struct index_draft {
    sparse_index_options options;
    const sparse_kernels *kernels;
    const sparse_rows *keys, *values;
    uint32_t tokens;
    uint32_t clusters;
    float *key_means, *value_means; /* [clusters][head_dim] */
    float *key_squares;             /* [clusters][head_dim]: squared distances, their sums */
    float *slopes[2];               /* [clusters][head_dim]: of keys, and of values */
    float *value_rows;              /* of the segment; the keys' are the work's */
    uint32_t *first;
    uint16_t *position;
    uint16_t *rank; /* of a segment's cluster in its order */
    cluster_work work;
} index_draft;

static uint32_t clusters_of(const sparse_index_options *options, uint32_t tokens)
{
    return (tokens + options->cluster_tokens - 1) / options->cluster_tokens;
}

static bool index_options_take(const sparse_index_options *given, sparse_index_options *own)
{
    *own = *given;
    if (own->cluster_tokens == 0) own->cluster_tokens = SPARSE_CLUSTER_TOKENS;
    if (own->segment_tokens == 0) own->segment_tokens = SPARSE_SEGMENT_TOKENS;
    if (own->iterations == 0) own->iterations = SPARSE_ITERATIONS;
    return own->head_dim > 0 && own->head_dim % 8 == 0 && own->head_dim <= SPARSE_HEAD_DIM_MAX &&
           (own->dtype == KVT_DTYPE_FP16 || own->dtype == KVT_DTYPE_BF16 ||
            own->dtype == KVT_DTYPE_FP32) &&
           own->cluster_tokens <= SPARSE_CLUSTER_MAX && own->segment_tokens % 64 == 0 &&
           own->segment_tokens <= SPARSE_SEGMENT_MAX && own->iterations <= SPARSE_ITERATIONS_MAX;
}

static kvt_status draft_open(index_draft *draft)
{
    const sparse_index_options *o = &draft->options;
    const uint32_t segments = sparse_segment_count(draft->tokens, o->segment_tokens);
    uint32_t longest = 0;
    size_t clusters = 0;
    for (uint32_t s = 0; s < segments; s++) {
        const uint32_t tokens = sparse_segment_first(draft->tokens, o->segment_tokens, s + 1) -
                                sparse_segment_first(draft->tokens, o->segment_tokens, s);
        if (tokens > longest) longest = tokens;
        clusters += clusters_of(o, tokens);
    }
    draft->key_means = calloc(clusters * o->head_dim, sizeof *draft->key_means);
    draft->value_means = calloc(clusters * o->head_dim, sizeof *draft->value_means);
    draft->key_squares = calloc(clusters * o->head_dim, sizeof *draft->key_squares);
    for (uint32_t i = 0; i < 2; i++)
        draft->slopes[i] = calloc(clusters * o->head_dim, sizeof *draft->slopes[i]);
    draft->value_rows = malloc((size_t)longest * o->head_dim * sizeof *draft->value_rows);
    draft->first = malloc((clusters + 1) * sizeof *draft->first);
    draft->position = malloc(draft->tokens * sizeof *draft->position);
    draft->rank = malloc(clusters_of(o, longest) * sizeof *draft->rank);
    if (draft->key_means == NULL || draft->value_means == NULL || draft->key_squares == NULL ||
        draft->slopes[0] == NULL || draft->slopes[1] == NULL || draft->value_rows == NULL ||
        draft->first == NULL || draft->position == NULL || draft->rank == NULL)
        return KVT_E_MEMORY;
    return cluster_work_open(o->head_dim, longest, clusters_of(o, longest), &draft->work);
}

static void draft_close(index_draft *draft)
{
    free(draft->key_means);
    free(draft->value_means);
    free(draft->key_squares);
    free(draft->slopes[0]);
    free(draft->slopes[1]);
    free(draft->value_rows);
    free(draft->first);
    free(draft->position);
    free(draft->rank);
    cluster_work_close(&draft->work);
}

static const void *row_at(const sparse_rows *rows, uint32_t token)
{
    return (const uint8_t *)rows->base + token * rows->stride_bytes;
}

static void add_row(float *restrict sum, const float *restrict row, uint32_t count)
{
    for (uint32_t d = 0; d < count; d++)
        sum[d] += row[d];
}

/* Places of the segment's tokens, and sums of their rows by cluster. */
static void draft_place(index_draft *draft, uint32_t begin, uint32_t tokens, uint32_t found)
{
    const uint32_t dim = draft->options.head_dim;
    cluster_work *work = &draft->work;
    uint32_t *next = draft->first + draft->clusters, place = begin;
    for (uint32_t i = 0; i < found; i++) {
        draft->rank[work->order[i]] = (uint16_t)i;
        next[i] = place;
        place += work->counts[work->order[i]];
    }
    assert(place == begin + tokens);
    for (uint32_t t = 0; t < tokens; t++) {
        const uint32_t i = draft->rank[work->owner[t]];
        const size_t at = (size_t)(draft->clusters + i) * dim;
        draft->position[next[i]++] = (uint16_t)t;
        add_row(draft->key_means + at, work->rows + (size_t)t * dim, dim);
        add_row(draft->value_means + at, draft->value_rows + (size_t)t * dim, dim);
    }
}

/* Rows of one side at a cluster's tokens, and their mean. */
typedef struct slope_side {
    const float *rows, *mean;
    float *along; /* the side's direction */
} slope_side;

/* A side's direction becomes the sum of what its rows are off their mean, times what those of the
 * other side have along theirs. */
static void slope_turn(const slope_side *own, const slope_side *other, const uint16_t *position,
                       uint32_t count, uint32_t dim)
{
    memset(own->along, 0, dim * sizeof *own->along);
    for (uint32_t i = 0; i < count; i++) {
        const float *row = own->rows + (size_t)position[i] * dim;
        const float *across = other->rows + (size_t)position[i] * dim;
        float dot = 0.0f;
        for (uint32_t d = 0; d < dim; d++)
            dot += (across[d] - other->mean[d]) * other->along[d];
        for (uint32_t d = 0; d < dim; d++)
            own->along[d] += (row[d] - own->mean[d]) * dot;
    }
}

/* To length 1; false when there is no direction. */
static bool make_unit(float *row, uint32_t dim)
{
    float square = 0.0f;
    for (uint32_t d = 0; d < dim; d++)
        square += row[d] * row[d];
    const bool sound = square > INDEX_LEAST && square < SPARSE_ELEMENT_MAX;
    const float inverse = sound ? 1.0f / sqrtf(square) : 0.0f;
    for (uint32_t d = 0; d < dim; d++)
        row[d] = sound ? row[d] * inverse : 0.0f;
    return sound;
}

/* The covariance of a cluster's values and keys, as the nearest product of two directions: by turns
 * each side's is what the rows have along the other's. */
static void draft_slope(index_draft *draft, uint32_t cluster, uint32_t count)
{
    const uint32_t dim = draft->options.head_dim;
    const size_t at = (size_t)cluster * dim;
    const uint16_t *position = draft->position + draft->first[cluster];
    const slope_side keys = {draft->work.rows, draft->key_means + at, draft->slopes[0] + at};
    const slope_side values = {draft->value_rows, draft->value_means + at, draft->slopes[1] + at};
    for (uint32_t d = 0; d < dim; d++)
        keys.along[d] = keys.rows[(size_t)position[0] * dim + d] - keys.mean[d];
    for (uint32_t round = 0; round <= SLOPE_ROUNDS; round++) {
        const bool sound = make_unit(keys.along, dim);
        slope_turn(&values, &keys, position, sound ? count : 0, dim);
        if (round == SLOPE_ROUNDS || !make_unit(values.along, dim)) break;
        slope_turn(&keys, &values, position, count, dim);
    }
    for (uint32_t d = 0; d < dim; d++)
        values.along[d] /= (float)count;
}

static void draft_segment(index_draft *draft, uint32_t segment)
{
    const sparse_index_options *o = &draft->options;
    cluster_work *work = &draft->work;
    const uint32_t begin = sparse_segment_first(draft->tokens, o->segment_tokens, segment);
    const uint32_t tokens =
        sparse_segment_first(draft->tokens, o->segment_tokens, segment + 1) - begin;
    for (uint32_t t = 0; t < tokens; t++) {
        const size_t at = (size_t)t * o->head_dim;
        draft->kernels->widen(row_at(draft->keys, begin + t), o->head_dim, o->dtype,
                              work->rows + at);
        draft->kernels->widen(row_at(draft->values, begin + t), o->head_dim, o->dtype,
                              draft->value_rows + at);
    }
    const uint32_t found = cluster_segment(work, tokens, clusters_of(o, tokens), o->iterations,
                                           number_mix(o->seed + segment));
    draft_place(draft, begin, tokens, found);
    uint32_t place = begin;
    for (uint32_t i = 0; i < found; i++) {
        const uint32_t count = work->counts[work->order[i]];
        const size_t at = (size_t)(draft->clusters + i) * o->head_dim;
        for (uint32_t d = 0; d < o->head_dim; d++) {
            draft->key_means[at + d] /= (float)count;
            draft->value_means[at + d] /= (float)count;
        }
        draft->first[draft->clusters + i] = place;
        draft_slope(draft, draft->clusters + i, count);
        place += count;
    }
    for (uint32_t t = 0; t < tokens; t++) {
        const size_t at = (size_t)(draft->clusters + draft->rank[work->owner[t]]) * o->head_dim;
        index_add_squares(draft->key_squares + at, work->rows + (size_t)t * o->head_dim,
                          draft->key_means + at, 1.0f, o->head_dim);
    }
    draft->clusters += found;
}

/* ---- the index ---- */

static size_t aligned(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

static uint32_t whole_blocks(uint64_t clusters)
{
    return (uint32_t)((clusters + SPARSE_BLOCK - 1) / SPARSE_BLOCK * SPARSE_BLOCK);
}

void sparse_index_read(sparse_index *index, uint64_t tokens)
{
    if (index->axes == 0) return;
    const uint64_t most = tokens < index->tokens ? 2 * tokens : 2 * (uint64_t)index->tokens;
    const uint32_t wanted = whole_blocks(most * index->clusters / index->tokens);
    const uint32_t share = whole_blocks(index->lanes / SPARSE_FULL_SHARE);
    index->full = wanted > share ? wanted : share;
    if (index->full <= index->lanes / 2) return;
    index->full = index->lanes;
    index->axes = 0;
}

/* Sizes that follow from the clusters. */
static void index_shape(sparse_index *index, uint32_t one_pass)
{
    const uint32_t lanes = whole_blocks(index->clusters);
    const bool two = index->clusters > (one_pass != 0 ? one_pass : SPARSE_ONE_PASS);
    index->lanes = lanes;
    index->axes = two ? sparse_sketch_axes(index->head_dim) : 0;
    index->full = lanes;
    if (two) sparse_index_read(index, 0);
}

/* Cuts the next array off the index's memory; without memory it only counts. */
static void *cut(const sparse_index *index, size_t *at, size_t bytes)
{
    void *array = index->memory != NULL ? (uint8_t *)index->memory + *at : NULL;
    *at += aligned(bytes);
    return array;
}

static size_t index_cut(sparse_index *index)
{
    const size_t dim = index->head_dim, lanes = index->lanes;
    size_t at = 0;
    index->centroids = cut(index, &at, lanes * dim);
    index->means = cut(index, &at, lanes * dim);
    index->key_step = cut(index, &at, dim * sizeof(float));
    index->value_step = cut(index, &at, dim * sizeof(float));
    index->key_scatter = cut(index, &at, dim * sizeof(float));
    index->first = cut(index, &at, (lanes + 1) * sizeof(uint32_t));
    index->scatter = cut(index, &at, lanes * sizeof(float));
    index->sketch = cut(index, &at, lanes * index->axes / 2);
    index->shared = cut(index, &at, index->axes > 0 ? lanes / SPARSE_SHARED * dim : 0);
    index->axis = cut(index, &at, (index->axes > 0 ? index->axes - 1 : 0) * dim * sizeof(uint16_t));
    index->axis_step = cut(index, &at, index->axes * sizeof(float));
    index->centre = cut(index, &at, (index->axes > 0 ? dim : 0) * sizeof(float));
    index->position = cut(index, &at, index->tokens * sizeof(uint16_t));
    return at;
}

uint64_t sparse_index_bytes(uint32_t head_dim, uint32_t tokens, uint32_t clusters,
                            uint32_t one_pass)
{
    sparse_index index = {.head_dim = head_dim, .tokens = tokens, .clusters = clusters};
    index_shape(&index, one_pass);
    return index_cut(&index);
}

kvt_status sparse_index_make(uint32_t head_dim, uint32_t segment_tokens, uint32_t tokens,
                             uint32_t clusters, uint32_t one_pass, sparse_index *index_out)
{
    sparse_index index = {.head_dim = head_dim,
                          .segment_tokens = segment_tokens,
                          .tokens = tokens,
                          .clusters = clusters};
    index_shape(&index, one_pass);
    index.bytes = index_cut(&index);
    index.memory = aligned_alloc(64, index.bytes);
    if (index.memory == NULL) return KVT_E_MEMORY;
    memset(index.memory, 0, index.bytes);
    (void)index_cut(&index);
    *index_out = index;
    return KVT_OK;
}

uint64_t sparse_index_slope_bytes(uint32_t head_dim, uint32_t clusters)
{
    const size_t lanes = whole_blocks(clusters);
    return aligned(2 * lanes * head_dim) + aligned(lanes * sizeof(float));
}

kvt_status sparse_index_add_slopes(sparse_index *index)
{
    const uint64_t bytes = sparse_index_slope_bytes(index->head_dim, index->clusters);
    index->slopes = bytes > 0 ? aligned_alloc(64, bytes) : NULL;
    if (index->slopes == NULL) return bytes > 0 ? KVT_E_MEMORY : KVT_OK;
    memset(index->slopes, 0, bytes);
    index->slope =
        (float *)(void *)(index->slopes + aligned(2 * (size_t)index->lanes * index->head_dim));
    index->slope_bytes = bytes;
    return KVT_OK;
}

void sparse_index_drop_slopes(sparse_index *index)
{
    free(index->slopes);
    index->slopes = NULL;
    index->slope = NULL;
    index->slope_bytes = 0;
}

static kvt_status index_allocate(const index_draft *draft, sparse_index *index)
{
    kvt_status status =
        sparse_index_make(draft->options.head_dim, draft->options.segment_tokens, draft->tokens,
                          draft->clusters, draft->options.one_pass, index);
    if (status != KVT_OK) return status;
    for (uint32_t c = 0; c <= index->lanes; c++)
        index->first[c] = c < draft->clusters ? draft->first[c] : draft->tokens;
    if (draft->tokens > 0)
        memcpy(index->position, draft->position, draft->tokens * sizeof *index->position);
    return sparse_index_add_slopes(index);
}

/* The value of one step in every channel, and its inverse; 0 of channels that are zero. */
static void index_steps(const float *means, uint32_t clusters, uint32_t dim, float *step,
                        float *inverse)
{
    memset(step, 0, dim * sizeof *step);
    for (uint32_t c = 0; c < clusters; c++, means += dim) {
        for (uint32_t d = 0; d < dim; d++) {
            const float size = means[d] < 0.0f ? -means[d] : means[d];
            step[d] = size > step[d] ? size : step[d];
        }
    }
    for (uint32_t d = 0; d < dim; d++) {
        const bool used = step[d] >= INDEX_LEAST;
        inverse[d] = used ? 127.0f / step[d] : 0.0f;
        step[d] = used ? step[d] / 127.0f : 0.0f;
    }
}

/* Squared distances become means of a cluster, and those of the unit. */
static void index_scatters(index_draft *draft, sparse_index *index)
{
    const uint32_t dim = index->head_dim;
    double sums[SPARSE_HEAD_DIM_MAX] = {0.0};
    for (uint32_t c = 0; c < index->clusters; c++) {
        float *squares = draft->key_squares + (size_t)c * dim;
        const float count = (float)(int32_t)(index->first[c + 1] - index->first[c]);
        for (uint32_t d = 0; d < dim; d++) {
            sums[d] += (double)squares[d];
            squares[d] /= count;
        }
    }
    for (uint32_t d = 0; d < dim; d++) {
        const double mean = index->tokens > 0 ? sums[d] / index->tokens : 0.0;
        const bool counts = mean >= (double)INDEX_LEAST && mean <= (double)SPARSE_DEVIATION_MAX;
        index->key_scatter[d] = counts ? (float)mean : 0.0f;
    }
    for (uint32_t c = 0; c < index->clusters; c++)
        index->scatter[c] =
            index_scatter(draft->key_squares + (size_t)c * dim, index->key_scatter, dim);
}

/* A direction in steps, the largest 127; returns the value of 1. */
static float put_slope(const float *row, const float *inverse, uint32_t dim, int8_t *slopes)
{
    float most = 0.0f;
    for (uint32_t d = 0; d < dim; d++)
        most = fmaxf(most, fabsf(row[d] * inverse[d]));
    const bool sound = most >= INDEX_LEAST && most <= SPARSE_ELEMENT_MAX;
    for (uint32_t d = 0; d < dim; d++)
        slopes[d] = (int8_t)(sound ? half_round_integer(row[d] * inverse[d] * (127.0f / most)) : 0);
    return sound ? most / 127.0f : 0.0f;
}

/* Mean values of the tokens of SPARSE_SHARED clusters. */
static void put_shared(const index_draft *draft, const float *inverse, sparse_index *index)
{
    const uint32_t dim = index->head_dim;
    for (uint32_t c = 0; c < index->clusters; c += SPARSE_SHARED) {
        const uint32_t left = index->clusters - c,
                       count = left < SPARSE_SHARED ? left : SPARSE_SHARED;
        const float all = (float)(int32_t)(index->first[c + count] - index->first[c]);
        float mean[SPARSE_HEAD_DIM_MAX] = {0.0f};
        for (uint32_t i = c; i < c + count; i++) {
            const float share = (float)(int32_t)(index->first[i + 1] - index->first[i]) / all;
            for (uint32_t d = 0; d < dim; d++)
                mean[d] += share * draft->value_means[(size_t)i * dim + d];
        }
        index_put_mean(mean, inverse, dim, c / SPARSE_SHARED, index->shared);
    }
}

static void index_quantise(index_draft *draft, sparse_index *index)
{
    const uint32_t dim = index->head_dim;
    float keys[SPARSE_HEAD_DIM_MAX], values[SPARSE_HEAD_DIM_MAX];
    index_steps(draft->key_means, draft->clusters, dim, index->key_step, keys);
    index_steps(draft->value_means, draft->clusters, dim, index->value_step, values);
    for (uint32_t c = 0; c < index->clusters; c++) {
        index_put_mean(draft->key_means + (size_t)c * dim, keys, dim, c, index->centroids);
        index_put_mean(draft->value_means + (size_t)c * dim, values, dim, c, index->means);
        int8_t *slopes = index->slopes + 2 * (size_t)c * dim;
        const float slope =
            put_slope(draft->slopes[0] + (size_t)c * dim, keys, dim, slopes) *
            put_slope(draft->slopes[1] + (size_t)c * dim, values, dim, slopes + dim);
        index->slope[c] = slope <= SPARSE_ELEMENT_MAX ? slope : 0.0f;
    }
    if (index->axes > 0) put_shared(draft, values, index);
    index_scatters(draft, index);
}

kvt_status sparse_index_build(const sparse_index_options *options, const sparse_rows *keys,
                              const sparse_rows *values, uint32_t tokens, sparse_index *index_out)
{
    index_draft draft = {
        .kernels = sparse_kernels_in_use(), .keys = keys, .values = values, .tokens = tokens};
    *index_out = (sparse_index){.tokens = 0};
    if (!index_options_take(options, &draft.options)) return KVT_E_ARGUMENT;
    const uint32_t segments = sparse_segment_count(tokens, draft.options.segment_tokens);
    kvt_status status = tokens > 0 ? draft_open(&draft) : KVT_OK;
    for (uint32_t s = 0; status == KVT_OK && s < segments; s++)
        draft_segment(&draft, s);
    if (status == KVT_OK) status = index_allocate(&draft, index_out);
    if (status == KVT_OK) index_quantise(&draft, index_out);
    if (status == KVT_OK && index_out->axes > 0)
        status = index_sketch_write(draft.key_means, index_out);
    if (status != KVT_OK) sparse_index_free(index_out);
    draft_close(&draft);
    return status;
}

void sparse_index_free(sparse_index *index)
{
    sparse_index_drop_slopes(index);
    free(index->memory);
    *index = (sparse_index){.tokens = 0};
}

uint32_t sparse_index_token(const sparse_index *index, uint32_t place)
{
    const uint32_t segments = sparse_segment_count(index->tokens, index->segment_tokens);
    uint32_t segment = place / index->segment_tokens;
    assert(place < index->tokens);
    if (segment >= segments) segment = segments - 1; /* the last one is longer */
    return segment * index->segment_tokens + index->position[place];
}
