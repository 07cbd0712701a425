/* SPDX-License-Identifier: Apache-2.0 */
/*
 * score.c - folds queries with the key steps of an index, and scores its clusters. Re-entrant.
 */
#include "score.h"

#include "index_added.h"
#include "sparse_kernels.h"

#include <assert.h>
#include <math.h>

#define FOLDED_MAX 32767.0f /* 512 channels of 127 * 32767 fit an int32 */
#define SKETCH_MAX 127.0f
#define SKETCH_SUM 2184.0f /* times 15 it fits an int16 */

/* Parts of one query in the axes, in steps. That of the scatter is the slope of what it adds. */
static void sketch_parts(const sparse_index *index, const float *query, float scale,
                         float deviation, float *parts)
{
    const uint32_t last = index->axes - 1;
    const float curve = 1.0f + deviation * (1.0f / SPARSE_LIFT_MAX);
    sparse_kernels_in_use()->dots(index->axis, index->head_dim * sizeof *index->axis, last,
                                  KVT_DTYPE_FP16, query, index->head_dim, scale, parts);
    parts[last] = 0.5f * deviation / (curve * curve);
    for (uint32_t i = 0; i < index->axes; i++)
        parts[i] = sparse_within(parts[i] * index->axis_step[i], SPARSE_ELEMENT_MAX);
}

/* All queries in the axes, in one unit. Their codes are so small that no sum of products passes an
 * int16. */
static void fold_sketches(const sparse_index *index, const float *queries, float scale,
                          sparse_query *query)
{
    const uint32_t axes = index->axes, group = query->group, dim = index->head_dim;
    /* Rounding adds half a step each. */
    const float room = SKETCH_SUM - 0.5f * (float)(int32_t)axes;
    float unit = 0.0f;
    for (uint32_t g = 0; g < group; g++) {
        float *parts = query->parts + (size_t)g * axes, most = 0.0f, total = 0.0f;
        sketch_parts(index, queries + (size_t)g * dim, scale, query->deviation[g], parts);
        for (uint32_t i = 0; i < axes; i++) {
            most = fabsf(parts[i]) > most ? fabsf(parts[i]) : most;
            total += fabsf(parts[i]);
        }
        unit = fmaxf(unit, fmaxf(most / SKETCH_MAX, total / room));
    }
    const bool used = unit >= 1e-30f;
    query->sketch_unit = used ? unit : 0.0f;
    for (uint32_t g = 0; g < group; g++) {
        double rest = (double)sparse_lift(query->deviation[g]);
        int32_t codes = 0;
        for (uint32_t i = 0; i < axes; i++) {
            const float part = query->parts[(size_t)g * axes + i];
            const int32_t code = used ? half_round_integer(part / unit) : 0;
            int8_t *to = query->sketch + ((size_t)(i / 2) * group + g) * 4 + i % 2;
            to[0] = to[2] = (int8_t)code;
            codes += code;
        }
        for (uint32_t d = 0; d < dim; d++)
            rest += (double)queries[(size_t)g * dim + d] * (double)scale * (double)index->centre[d];
        rest -= (double)SPARSE_SKETCH_MIDDLE * codes * (double)query->sketch_unit;
        query->sketch_rest[g] =
            sparse_within((float)fmax(fmin(rest, 1e30), -1e30), SPARSE_ELEMENT_MAX);
    }
}

bool sparse_query_fold(const sparse_index *index, const float *queries, uint32_t group, float scale,
                       sparse_query *query)
{
    float row[SPARSE_HEAD_DIM_MAX];
    assert(group > 0 && group <= SPARSE_GROUP_MAX);
    query->group = group;
    for (uint32_t g = 0; g < group; g++) {
        const float *own = queries + (size_t)g * index->head_dim;
        float most = 0.0f, deviation = 0.0f;
        for (uint32_t d = 0; d < index->head_dim; d++) {
            const float scaled = own[d] * scale;
            deviation += scaled * scaled * index->key_scatter[d];
            /* Steps are of the keys, and no fault of the query's. */
            row[d] = sparse_within(own[d] * scale * index->key_step[d], SPARSE_ELEMENT_MAX);
            if (!(fabsf(own[d]) <= SPARSE_ELEMENT_MAX)) return false; /* NaN as well */
            most = fabsf(row[d]) > most ? fabsf(row[d]) : most;
        }
        if (!(deviation >= 0.0f)) deviation = 0.0f;
        query->deviation[g] = deviation < SPARSE_DEVIATION_MAX ? deviation : SPARSE_DEVIATION_MAX;
        const bool used = most >= 1e-30f;
        const float inverse = used ? FOLDED_MAX / most : 0.0f;
        query->unit[g] = used ? most / FOLDED_MAX : 0.0f;
        for (uint32_t d = 0; d < index->head_dim; d++)
            query->folded[(size_t)g * index->head_dim + d] =
                (int16_t)half_round_integer(row[d] * inverse);
    }
    if (index->axes > 0) fold_sketches(index, queries, scale, query);
    return true;
}

static void no_padding(const sparse_index *index, uint32_t group, size_t width, float *scores)
{
    for (uint32_t g = 0; g < group; g++)
        for (uint32_t c = index->clusters; c < index->lanes; c++)
            scores[g * width + c] = -INFINITY;
}

void sparse_score(const sparse_index *index, const sparse_query *query, const uint32_t *list,
                  uint32_t count, size_t width, float *scores_out)
{
    sparse_kernels_in_use()->score(index->centroids, list, list != NULL ? count : index->lanes,
                                   index->head_dim, query->folded, query->group, query->unit, width,
                                   scores_out);
    if (list == NULL) no_padding(index, query->group, width, scores_out);
}

void sparse_score_added(const sparse_index *index, const sparse_query *query, size_t width,
                        float *scores_out)
{
    const sparse_added *added = index->added;
    const uint32_t lanes = sparse_added_lanes(added);
    sparse_kernels_in_use()->score(added->centroids, NULL, lanes, index->head_dim, query->folded,
                                   query->group, query->unit, width, scores_out);
    for (uint32_t i = 0; i < lanes; i++)
        for (uint32_t g = 0; added->tokens[i] == 0 && g < query->group; g++)
            scores_out[g * width + i] = -INFINITY;
}
