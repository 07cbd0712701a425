/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decode_coactive.c - SWARM's clusters (Algorithm 1) from a profile: the first half of the steps,
 * in each of which the tenth of the zone with the most attention is active.
 *
 * f(i, j) counts the steps in which both are active, P(i, j) = f(i, j) / sum_k f(i, k), d = 1 - P.
 * Entries in descending density become medoids unless they are covered; candidates within tau join
 * in ascending distance while the mean distance stays within it; covered entries may join again.
 * The paper names no tau: the one is taken of a few that gives clusters of 16 on average, nearly.
 * Tokens that the profile never saw active stay apart, in runs of 16 by position.
 */
#include "decode.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ACTIVE_SHARE 0.1
#define CLUSTER_MEAN 16.0
#define ENTRIES_MOST 6000u /* of a unit: the matrix is square */
#define CLUSTER_MOST 256u
#define TAUS         12

typedef struct coactive {
    uint32_t entries;   /* active ones */
    uint32_t *place;    /* of each */
    uint32_t *entry_of; /* of a place; UINT32_MAX */
    uint16_t *together; /* [entries][entries] */
    float *total;       /* sum of a row */
    uint32_t *density, *order;
    uint8_t *covered;
} coactive;

typedef struct ranked {
    float value;
    uint32_t entry;
} ranked;

static int compare_ranked(const void *left, const void *right)
{
    const ranked *a = left, *b = right;
    if (a->value != b->value) return a->value > b->value ? -1 : 1;
    return a->entry < b->entry ? -1 : a->entry > b->entry;
}

/* The places with the most attention of the group in a step. */
static void step_active(const decode_unit *unit, uint32_t row, ranked *all)
{
    for (uint32_t p = 0; p < unit->zone; p++)
        all[p] = (ranked){0.0f, p};
    for (uint32_t g = 0; g < unit->group; g++) {
        const size_t at = (size_t)row * unit->group + g;
        for (uint32_t p = 0; p < unit->zone; p++)
            all[p].value += (float)exp((double)unit->logits[PAGES_RAW][at * unit->zone + p] -
                                       unit->zone_lse[at]);
    }
    qsort(all, unit->zone, sizeof *all, compare_ranked);
}

static kvt_status coactive_open(coactive *c, const decode_unit *unit)
{
    *c = (coactive){.entry_of = malloc(unit->zone * sizeof *c->entry_of),
                    .place = malloc(ENTRIES_MOST * sizeof *c->place),
                    .together = calloc((size_t)ENTRIES_MOST * ENTRIES_MOST, sizeof *c->together),
                    .total = calloc(ENTRIES_MOST, sizeof *c->total),
                    .density = calloc(ENTRIES_MOST, sizeof *c->density),
                    .order = malloc(ENTRIES_MOST * sizeof *c->order),
                    .covered = malloc(ENTRIES_MOST)};
    if (!c->entry_of || !c->place || !c->together || !c->total || !c->density || !c->order ||
        !c->covered)
        return KVT_E_MEMORY;
    for (uint32_t p = 0; p < unit->zone; p++)
        c->entry_of[p] = UINT32_MAX;
    return KVT_OK;
}

static void coactive_close(coactive *c)
{
    free(c->entry_of);
    free(c->place);
    free(c->together);
    free(c->total);
    free(c->density);
    free(c->order);
    free(c->covered);
}

static kvt_status coactive_profile(coactive *c, const decode_unit *unit)
{
    const uint32_t active = (uint32_t)(ACTIVE_SHARE * unit->zone) + 1;
    ranked *all = malloc(unit->zone * sizeof *all);
    uint32_t *list = malloc(active * sizeof *list);
    kvt_status status = all != NULL && list != NULL ? KVT_OK : KVT_E_MEMORY;
    for (uint32_t row = 0; status == KVT_OK && row < unit->rows / 2; row++) {
        uint32_t count = 0;
        step_active(unit, row, all);
        for (uint32_t i = 0; i < active && i < unit->zone; i++) {
            const uint32_t place = all[i].entry;
            if (c->entry_of[place] == UINT32_MAX) {
                if (c->entries == ENTRIES_MOST) continue;
                c->place[c->entries] = place;
                c->entry_of[place] = c->entries++;
            }
            list[count++] = c->entry_of[place];
        }
        for (uint32_t i = 0; i < count; i++)
            for (uint32_t j = 0; j < count; j++)
                if (i != j) c->together[(size_t)list[i] * ENTRIES_MOST + list[j]]++;
    }
    for (uint32_t i = 0; i < c->entries; i++)
        for (uint32_t j = 0; j < c->entries; j++)
            c->total[i] += (float)c->together[(size_t)i * ENTRIES_MOST + j];
    free(all);
    free(list);
    return status;
}

static float distance(const coactive *c, uint32_t i, uint32_t j)
{
    if (c->total[i] == 0.0f) return 1.0f;
    return 1.0f - (float)c->together[(size_t)i * ENTRIES_MOST + j] / c->total[i];
}

/* Clusters at one tau. items NULL: only counts members. Returns the clusters. */
static uint32_t coactive_cluster(coactive *c, float tau, ranked *scratch, uint32_t *members_out,
                                 decode_choice *choice)
{
    uint32_t clusters = 0, members = 0;
    for (uint32_t i = 0; i < c->entries; i++) {
        c->density[i] = 0;
        for (uint32_t j = 0; j < c->entries; j++)
            c->density[i] += distance(c, i, j) < tau;
        scratch[i] = (ranked){(float)c->density[i], i};
    }
    qsort(scratch, c->entries, sizeof *scratch, compare_ranked);
    for (uint32_t i = 0; i < c->entries; i++)
        c->order[i] = scratch[i].entry;
    memset(c->covered, 0, c->entries);
    for (uint32_t k = 0; k < c->entries; k++) {
        const uint32_t medoid = c->order[k];
        uint32_t count = 0, joined = 1;
        double sum = 0.0;
        if (c->covered[medoid]) continue;
        for (uint32_t j = 0; j < c->entries; j++)
            if (j != medoid && distance(c, medoid, j) <= tau)
                scratch[count++] = (ranked){-distance(c, medoid, j), j};
        qsort(scratch, count, sizeof *scratch, compare_ranked);
        c->covered[medoid] = 1;
        if (choice != NULL) {
            choice->medoids[clusters] = c->place[medoid];
            choice->items.first[clusters] = members;
            choice->items.places[members] = c->place[medoid];
        }
        for (uint32_t j = 0; j < count && joined < CLUSTER_MOST; j++, joined++) {
            sum -= (double)scratch[j].value;
            if (sum / (j + 1) > (double)tau) break;
            c->covered[scratch[j].entry] = 1;
            if (choice != NULL) choice->items.places[members + joined] = c->place[scratch[j].entry];
        }
        members += joined;
        clusters++;
    }
    *members_out = members;
    return clusters;
}

/* The tau whose clusters have the mean size that is nearest to 16. */
static float coactive_tau(coactive *c, ranked *scratch)
{
    float best = 1.0f;
    double nearest = INFINITY;
    for (int i = 0; i < TAUS; i++) {
        uint32_t members;
        const float tau = 1.0f - 0.0004f * powf(1.5f, (float)i) * 1.2f;
        const uint32_t clusters = coactive_cluster(c, tau, scratch, &members, NULL);
        const double off = fabs(log((double)members / clusters / CLUSTER_MEAN));
        if (clusters > 0 && off < nearest) {
            nearest = off;
            best = tau;
        }
    }
    return best;
}

/* Tokens that were never active, in runs of 16 by position. */
static void coactive_rest(const coactive *c, const decode_unit *unit, uint32_t clusters,
                          uint32_t members, decode_choice *choice)
{
    uint32_t in_run = 0;
    for (uint32_t t = 0; t < unit->zone; t++) {
        const uint32_t place = unit->place_of[t];
        if (c->entry_of[place] != UINT32_MAX) continue;
        if (in_run == 0) {
            choice->medoids[clusters] = place;
            choice->items.first[clusters++] = members;
        }
        choice->items.places[members++] = place;
        in_run = (in_run + 1) % 16;
    }
    choice->items.count = clusters;
    choice->items.first[clusters] = members;
    for (uint32_t i = 0; i < clusters; i++)
        choice->items.tokens[i] = (uint16_t)(choice->items.first[i + 1] - choice->items.first[i]);
}

kvt_status decode_coactive_open(decode_unit *unit, decode_choice *choice)
{
    coactive c;
    uint32_t members = 0;
    kvt_status status = coactive_open(&c, unit);
    ranked *scratch = malloc(ENTRIES_MOST * sizeof *scratch);
    if (scratch == NULL) status = KVT_E_MEMORY;
    if (status == KVT_OK) status = coactive_profile(&c, unit);
    if (status == KVT_OK) {
        const float tau = coactive_tau(&c, scratch);
        uint32_t clusters = coactive_cluster(&c, tau, scratch, &members, NULL);
        const uint32_t most = clusters + (unit->zone - c.entries) / 16 + 2;
        status = decode_items_open(&choice->items, most, members + unit->zone);
        choice->medoids = malloc((size_t)most * sizeof *choice->medoids);
        if (choice->medoids == NULL) status = KVT_E_MEMORY;
        if (status == KVT_OK) {
            clusters = coactive_cluster(&c, tau, scratch, &members, choice);
            coactive_rest(&c, unit, clusters, members, choice);
        }
    }
    free(scratch);
    coactive_close(&c);
    return status;
}
