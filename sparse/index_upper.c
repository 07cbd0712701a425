/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index_upper.c - the second level of a large index: clusters are put into an order in which
 * similar ones of all segments lie side by side, and each block of them gets a centroid.
 *
 *     clusters -> about sqrt(C / 16) groups -> inside each, groups of about 16 -> lanes in order
 *
 * Both are the k-means of cluster.h over the clusters' own means, so the order is the same on every
 * instruction set. Re-entrant.
 */
#include "index_upper.h"

#include "base/number/number.h"
#include "cluster.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

/* Items in the order of their groups, of a group in their own. */
static void order_by_group(const cluster_work *work, uint32_t items, uint32_t groups,
                           uint32_t *begin, uint32_t *order_out)
{
    uint32_t at = 0;
    for (uint32_t i = 0; i < groups; i++) {
        begin[work->order[i]] = at;
        at += work->counts[work->order[i]];
    }
    assert(at == items);
    for (uint32_t i = 0; i < items; i++)
        order_out[begin[work->owner[i]]++] = i;
}

/* Groups of the items of a list; the list is put in their order. */
typedef struct upper_level {
    const float *rows; /* of all items */
    uint32_t dim;
    cluster_work work;
    uint32_t *begin, *order; /* scratch */
} upper_level;

static void level_close(upper_level *level)
{
    cluster_work_close(&level->work);
    free(level->begin);
    free(level->order);
}

static kvt_status level_open(const float *rows, uint32_t dim, uint32_t items, uint32_t groups,
                             upper_level *level)
{
    *level = (upper_level){.rows = rows, .dim = dim};
    level->begin = malloc(groups * sizeof *level->begin);
    level->order = malloc(items * sizeof *level->order);
    kvt_status status = level->begin != NULL && level->order != NULL
                            ? cluster_work_open(dim, items, groups, &level->work)
                            : KVT_E_MEMORY;
    if (status != KVT_OK) level_close(level);
    return status;
}

/* list_out is the list in the order of its groups; their ends go to `ends`, or NULL. Returns the
 * number of groups. */
static uint32_t level_run(upper_level *level, const uint32_t *list, uint32_t items, uint32_t groups,
                          uint64_t seed, uint32_t *list_out, uint32_t *ends)
{
    for (uint32_t i = 0; i < items; i++)
        memcpy(level->work.rows + (size_t)i * level->dim,
               level->rows + (size_t)list[i] * level->dim, level->dim * sizeof(float));
    const uint32_t found =
        cluster_segment(&level->work, items, groups, SPARSE_ITERATIONS, number_mix(seed));
    order_by_group(&level->work, items, found, level->begin, level->order);
    for (uint32_t i = 0; i < items; i++)
        list_out[i] = list[level->order[i]];
    for (uint32_t i = 0, end = 0; ends != NULL && i < found; i++)
        ends[i] = end += level->work.counts[level->work.order[i]];
    return found;
}

static uint32_t fine_groups(uint32_t items)
{
    return (items + SPARSE_BLOCK - 1) / SPARSE_BLOCK;
}

/* The second level of groups, inside each of the first. `list` comes in their order. */
static kvt_status order_inside(const float *rows, uint32_t dim, const uint32_t *list,
                               const uint32_t *ends, uint32_t groups, uint64_t seed,
                               uint32_t *order_out)
{
    upper_level level;
    uint32_t most = 0, begin = 0;
    for (uint32_t i = 0; i < groups; i++) {
        const uint32_t items = ends[i] - (i > 0 ? ends[i - 1] : 0);
        most = items > most ? items : most;
    }
    kvt_status status = level_open(rows, dim, most, fine_groups(most), &level);
    if (status != KVT_OK) return status;
    for (uint32_t i = 0; i < groups; begin = ends[i++])
        (void)level_run(&level, list + begin, ends[i] - begin, fine_groups(ends[i] - begin),
                        seed + i + 1, order_out + begin, NULL);
    level_close(&level);
    return KVT_OK;
}

kvt_status index_upper_order(const float *rows, uint32_t dim, uint32_t clusters, uint64_t seed,
                             uint32_t *order_out)
{
    const uint32_t groups = (uint32_t)ceilf(sqrtf((float)fine_groups(clusters)));
    upper_level level;
    uint32_t *list = malloc(clusters * sizeof *list);
    uint32_t *ends = malloc(groups * sizeof *ends);
    kvt_status status = list != NULL && ends != NULL
                            ? level_open(rows, dim, clusters, groups, &level)
                            : KVT_E_MEMORY;
    if (status == KVT_OK) {
        for (uint32_t i = 0; i < clusters; i++)
            order_out[i] = i;
        const uint32_t found = level_run(&level, order_out, clusters, groups, seed, list, ends);
        level_close(&level);
        status = order_inside(rows, dim, list, ends, found, seed, order_out);
    }
    free(list);
    free(ends);
    return status;
}
