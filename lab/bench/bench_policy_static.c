/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_policy_static.c - static instances: our solution and its bound beside AdaptCache's greedy,
 * the best uniform rung, and LRU order with a uniform rung.
 */
#include "base/clock.h"
#include "bench_policy.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct arrays {
    uint32_t *first;
    double *value;
    uint64_t *bytes;
    uint32_t *choice;
    knapsack_step *steps;
    uint32_t *order;
} arrays;

static void arrays_free(arrays *a)
{
    free(a->first);
    free(a->value);
    free(a->bytes);
    free(a->choice);
    free(a->steps);
    free(a->order);
}

static kvt_status arrays_make(const policy_instance *instance, arrays *a)
{
    uint32_t n = instance->entries, m = instance->options;
    memset(a, 0, sizeof *a);
    a->first = malloc(((size_t)n + 1) * sizeof *a->first);
    a->value = malloc((size_t)n * m * sizeof *a->value);
    a->bytes = malloc((size_t)n * m * TIERS * sizeof *a->bytes);
    a->choice = malloc((size_t)n * sizeof *a->choice);
    a->steps = malloc((size_t)n * sizeof *a->steps);
    a->order = malloc((size_t)n * sizeof *a->order);
    if (a->first == NULL || a->value == NULL || a->bytes == NULL || a->choice == NULL ||
        a->steps == NULL || a->order == NULL) {
        arrays_free(a);
        return KVT_E_MEMORY;
    }
    kvt_option options[KVT_OPTIONS_MAX];
    for (uint32_t i = 0; i < n; i++) {
        policy_instance_options(instance, i, options);
        a->first[i] = i * m;
        for (uint32_t o = 0; o < m; o++) {
            const kvt_option *option = &options[o + 1];
            double loss = fmin(1.0, instance->sensitivity[i] * option->loss);
            double cost =
                instance->alpha_seconds * loss + option->load_seconds + option->decode_seconds;
            size_t at = (size_t)i * m + o;
            a->value[at] = instance->rate[i] * (options[0].load_seconds - cost);
            memcpy(&a->bytes[at * TIERS], &option->bytes[1], TIERS * sizeof *a->bytes);
        }
    }
    a->first[n] = n * m;
    return KVT_OK;
}

/* Fills tiers from the top with one rung, entries in the given order; the value of it. */
static double fill_in_order(const policy_instance *instance, const arrays *a, uint32_t rung)
{
    uint32_t rungs = instance->options / instance->tiers;
    uint64_t room[TIERS];
    double sum = 0.0;
    memcpy(room, instance->capacity, sizeof room);
    for (uint32_t k = 0; k < instance->entries; k++) {
        uint32_t i = a->order[k];
        for (uint32_t tier = instance->tiers; tier-- > 0;) {
            size_t at = (size_t)i * instance->options + tier * rungs + rung;
            int level = TIERS - 1 - (int)tier;
            uint64_t bytes = a->bytes[at * TIERS + (size_t)level];
            if (bytes > room[level] || a->value[at] <= 0.0) continue;
            room[level] -= bytes;
            sum += a->value[at];
            break;
        }
    }
    return sum;
}

typedef struct ranked {
    double key;
    uint32_t entry;
} ranked;

static int ranked_compare(const void *left, const void *right)
{
    const ranked *a = left, *b = right;
    if (a->key != b->key) return a->key > b->key ? -1 : 1;
    return a->entry < b->entry ? -1 : 1;
}

/* Best uniform rung by density, and the best rung in the order of last use. */
static kvt_status run_uniform(const policy_instance *instance, arrays *a, policy_static_row *row)
{
    uint32_t rungs = instance->options / instance->tiers;
    ranked *ranks = malloc(instance->entries * sizeof *ranks);
    if (ranks == NULL) return KVT_E_MEMORY;
    uint64_t state = instance->seed ^ 0x5bd1e995;
    for (uint32_t rung = 0; rung < rungs; rung++) {
        for (uint32_t i = 0; i < instance->entries; i++) {
            /* The lowest tier's option: its size is that of all. */
            size_t at = (size_t)i * instance->options + rung;
            ranks[i] = (ranked){a->value[at] / (double)a->bytes[at * TIERS + 2], i};
        }
        qsort(ranks, instance->entries, sizeof *ranks, ranked_compare);
        for (uint32_t i = 0; i < instance->entries; i++)
            a->order[i] = ranks[i].entry;
        double value = fill_in_order(instance, a, rung);
        if (value > row->uniform) {
            row->uniform = value;
            row->uniform_rung = policy_rungs[rung].name;
        }
    }
    /* Ages of last uses are exponential with the entry's rate. */
    for (uint32_t i = 0; i < instance->entries; i++) {
        state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
        double unit = ((double)(state >> 11) + 0.5) * 0x1p-53;
        ranks[i] = (ranked){log(unit) / instance->rate[i], i};
    }
    qsort(ranks, instance->entries, sizeof *ranks, ranked_compare);
    for (uint32_t i = 0; i < instance->entries; i++)
        a->order[i] = ranks[i].entry;
    for (uint32_t rung = 0; rung < rungs; rung++)
        row->lru = fmax(row->lru, fill_in_order(instance, a, rung));
    free(ranks);
    return KVT_OK;
}

/* ---- AdaptCache: each tier by itself, from the top; what does not fit goes one step on by the
 * least loss per byte, and the tier below counts as free until it is its turn ---- */

static bool greedy_step(const policy_instance *instance, const arrays *a, uint32_t i, int level,
                        knapsack_step *way)
{
    uint32_t now = a->choice[i];
    const uint64_t *bytes = a->bytes;
    bool found = false;
    if (now == NIL || bytes[(size_t)now * TIERS + (size_t)level] == 0) return false;
    uint64_t held = bytes[(size_t)now * TIERS + (size_t)level];
    for (uint32_t o = a->first[i]; o <= a->first[i + 1]; o++) {
        uint32_t option = o < a->first[i + 1] ? o : NIL;
        bool above = false;
        uint64_t then = 0;
        for (int other = 0; option != NIL && other <= level; other++) {
            uint64_t there = bytes[(size_t)option * TIERS + (size_t)other];
            if (other < level && there > 0) above = true;
            if (other == level) then = there;
        }
        if (above || then >= held) continue;
        double lost = a->value[now] - (option == NIL ? 0.0 : a->value[option]);
        double density = lost / (double)(held - then);
        if (found && density >= way->density) continue;
        *way = (knapsack_step){density, i, option};
        found = true;
    }
    (void)instance;
    return found;
}

static double run_adaptcache(const policy_instance *instance, arrays *a)
{
    uint32_t rungs = instance->options / instance->tiers;
    int top = TIERS - (int)instance->tiers;
    double sum = 0.0;
    for (uint32_t i = 0; i < instance->entries; i++)
        a->choice[i] = i * instance->options + (instance->tiers - 1) * rungs;
    for (int level = top; level < TIERS; level++) {
        uint64_t used = 0;
        uint32_t count = 0;
        for (uint32_t i = 0; i < instance->entries; i++) {
            if (a->choice[i] == NIL) continue;
            used += a->bytes[(size_t)a->choice[i] * TIERS + (size_t)level];
            if (greedy_step(instance, a, i, level, &a->steps[count])) count++;
        }
        for (uint32_t at = count / 2; at-- > 0;)
            knapsack_sift(a->steps, count, at);
        while (used > instance->capacity[level] && count > 0) {
            knapsack_step way = a->steps[0];
            used -= a->bytes[(size_t)a->choice[way.entry] * TIERS + (size_t)level];
            a->choice[way.entry] = way.option;
            if (way.option != NIL) used += a->bytes[(size_t)way.option * TIERS + (size_t)level];
            if (greedy_step(instance, a, way.entry, level, &way))
                a->steps[0] = way;
            else
                a->steps[0] = a->steps[--count];
            if (count > 0) knapsack_sift(a->steps, count, 0);
        }
    }
    for (uint32_t i = 0; i < instance->entries; i++)
        if (a->choice[i] != NIL) sum += a->value[a->choice[i]];
    return sum;
}

kvt_status policy_static_run(const policy_instance *instance, policy_static_row *row)
{
    arrays a;
    memset(row, 0, sizeof *row);
    row->entries = instance->entries;
    row->options = instance->options;
    row->tiers = instance->tiers;
    row->seed = instance->seed;
    kvt_status status = arrays_make(instance, &a);
    if (status != KVT_OK) return status;
    knapsack k = {
        .entries = instance->entries, .first = a.first, .value = a.value, .bytes = a.bytes};
    memcpy(k.capacity, instance->capacity, sizeof k.capacity);
    knapsack_result result;
    double begin = base_clock_seconds();
    knapsack_solve(&k, a.choice, a.steps, &result);
    row->solve_s = base_clock_seconds() - begin;
    row->primal = result.primal;
    row->dual = result.dual;
    row->gap_solver = (result.dual - result.primal) / result.dual;
    row->adaptcache = run_adaptcache(instance, &a);
    status = run_uniform(instance, &a, row);
    arrays_free(&a);
    return status;
}
