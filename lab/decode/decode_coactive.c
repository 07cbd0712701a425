/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decode_coactive.c - SWARM's clusters (Algorithm 1) from a profile: steps, in each of which the
 * tenth of the tokens with the most attention is active.
 *
 * f(i, j) counts the steps in which both are active, P(i, j) = f(i, j) / sum_k f(i, k), d = 1 - P.
 * As many tokens are active in every step, the sum is that number, less one, for each step of i: so
 * P(i, j) is the share of i's steps that are j's too, but for a factor, and the paper's tau is a
 * least share here. Entries in descending density become medoids unless they are covered;
 * candidates in ascending distance join while their mean distance to the cluster's members stays
 * within tau; covered entries may join again, and have replicas by that. Tokens that the profile
 * never saw active stay apart, in runs of 16.
 *
 * A token that is active once shares all of its steps with each token of that step, so the densest
 * entries are the rarest, and their clusters the largest: a short profile gives large clusters,
 * whatever tau is.
 */
#include "decode.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CLUSTER_MEAN 16.0
#define REST_TOKENS  16u
#define SHARES       6

static const double shares[SHARES] = {0.3, 0.45, 0.6, 0.75, 0.9, 1.0};

typedef struct coactive {
    const decode_profile *profile;
    uint32_t *density[SHARES]; /* of each entry */
    uint8_t *covered;
    uint32_t *members; /* of all clusters, one after the other */
    uint32_t *first;   /* of each cluster; its medoid comes first */
    uint32_t clusters, room;
} coactive;

typedef struct ranked {
    double value;
    uint32_t entry;
} ranked;

static int compare_ranked(const void *left, const void *right)
{
    const ranked *a = left, *b = right;
    if (a->value != b->value) return a->value > b->value ? -1 : 1;
    return a->entry < b->entry ? -1 : a->entry > b->entry;
}

static uint32_t bits(uint64_t value)
{
    return (uint32_t)__builtin_popcountll(value);
}

/* The share of the steps of one entry that are the other's too. */
static double nearness(uint64_t of, uint64_t with)
{
    return (double)bits(of & with) / bits(of);
}

/* ---- the profile ---- */

kvt_status decode_profile_open(uint32_t entries, decode_profile *profile)
{
    *profile = (decode_profile){.entries = entries, .seen = calloc(entries + 1u, sizeof(uint64_t))};
    return profile->seen != NULL ? KVT_OK : KVT_E_MEMORY;
}

void decode_profile_close(decode_profile *profile)
{
    free(profile->seen);
}

kvt_status decode_profile_add(decode_profile *profile, const float *attention)
{
    const uint32_t active = profile->entries / 10 + 1;
    if (profile->steps == DECODE_PROFILE_STEPS) return KVT_OK;
    ranked *all = malloc((profile->entries + 1u) * sizeof *all);
    if (all == NULL) return KVT_E_MEMORY;
    for (uint32_t i = 0; i < profile->entries; i++)
        all[i] = (ranked){(double)attention[i], i};
    qsort(all, profile->entries, sizeof *all, compare_ranked);
    for (uint32_t i = 0; i < active && i < profile->entries; i++)
        profile->seen[all[i].entry] |= UINT64_C(1) << profile->steps;
    profile->steps++;
    free(all);
    return KVT_OK;
}

/* ---- clusters ---- */

/* Entries within tau of each, for every tau at once: the least common steps that count. */
static void coactive_density(coactive *c)
{
    const decode_profile *p = c->profile;
    for (uint32_t i = 0; i < p->entries; i++) {
        uint32_t common[DECODE_PROFILE_STEPS + 1] = {0};
        const uint64_t own = p->seen[i];
        if (own == 0) continue;
        for (uint32_t j = 0; j < p->entries; j++)
            common[bits(own & p->seen[j])]++;
        for (int s = 0; s < SHARES; s++)
            for (uint32_t steps = (uint32_t)ceil(shares[s] * bits(own)); steps <= bits(own);
                 steps++)
                c->density[s][i] += common[steps];
    }
}

/* A cluster around a medoid. Returns its members, which are appended; 0: out of memory. */
static uint32_t coactive_grow(coactive *c, uint32_t medoid, double share, uint32_t at,
                              ranked *scratch)
{
    const decode_profile *p = c->profile;
    uint32_t count = 0, joined = 1;
    if (c->room < at + p->entries) {
        uint32_t *more = realloc(c->members, 2 * ((size_t)at + p->entries) * sizeof *more);
        if (more == NULL) return 0;
        c->members = more;
        c->room = 2 * (at + p->entries);
    }
    for (uint32_t j = 0; j < p->entries; j++) {
        const double near = nearness(p->seen[medoid], p->seen[j]);
        if (j != medoid && near >= share) scratch[count++] = (ranked){near, j};
    }
    qsort(scratch, count, sizeof *scratch, compare_ranked);
    uint32_t *members = c->members + at;
    members[0] = medoid;
    for (uint32_t k = 0; k < count && joined < DECODE_COACTIVE_MOST; k++) {
        double sum = 0.0;
        for (uint32_t m = 0; m < joined; m++)
            sum += nearness(p->seen[scratch[k].entry], p->seen[members[m]]);
        if (sum >= share * joined) members[joined++] = scratch[k].entry;
    }
    for (uint32_t m = 0; m < joined; m++)
        c->covered[members[m]] = 1;
    return joined;
}

static kvt_status coactive_cluster(coactive *c, int s, ranked *order, ranked *scratch)
{
    const decode_profile *p = c->profile;
    uint32_t at = 0;
    for (uint32_t i = 0; i < p->entries; i++)
        order[i] = (ranked){(double)c->density[s][i], i};
    qsort(order, p->entries, sizeof *order, compare_ranked);
    memset(c->covered, 0, p->entries);
    c->clusters = 0;
    for (uint32_t k = 0; k < p->entries; k++) {
        const uint32_t medoid = order[k].entry;
        if (c->covered[medoid] || p->seen[medoid] == 0) continue;
        const uint32_t members = coactive_grow(c, medoid, shares[s], at, scratch);
        if (members == 0) return KVT_E_MEMORY;
        c->first[c->clusters++] = at;
        at += members;
    }
    c->first[c->clusters] = at;
    return KVT_OK;
}

/* The tau whose clusters have the mean size that is nearest to 16; c has its clusters then. */
static kvt_status coactive_choose(coactive *c, ranked *order, ranked *scratch)
{
    int best = 0, last = -1;
    double nearest = INFINITY;
    kvt_status status = KVT_OK;
    for (int s = 0; s < SHARES && status == KVT_OK; s++) {
        status = coactive_cluster(c, s, order, scratch);
        last = s;
        if (c->clusters == 0) return status;
        const double off = fabs(log((double)c->first[c->clusters] / c->clusters / CLUSTER_MEAN));
        if (off >= nearest) continue;
        nearest = off;
        best = s;
    }
    return status == KVT_OK && last != best ? coactive_cluster(c, best, order, scratch) : status;
}

static kvt_status coactive_items(const coactive *c, decode_items *items, uint32_t **medoids_out)
{
    const decode_profile *p = c->profile;
    const uint32_t members = c->first[c->clusters];
    uint32_t rest = 0, count = c->clusters, at = members;
    for (uint32_t i = 0; i < p->entries; i++)
        rest += p->seen[i] == 0;
    kvt_status status = decode_items_open(
        items, c->clusters + (rest + REST_TOKENS - 1) / REST_TOKENS, members + rest);
    uint32_t *medoids = malloc((items->count + 1u) * sizeof *medoids);
    *medoids_out = medoids;
    if (status != KVT_OK || medoids == NULL) return KVT_E_MEMORY;
    memcpy(items->places, c->members, members * sizeof *items->places);
    memcpy(items->first, c->first, (c->clusters + 1u) * sizeof *items->first);
    for (uint32_t i = 0; i < c->clusters; i++)
        medoids[i] = c->members[c->first[i]];
    for (uint32_t i = 0; i < p->entries; i++) {
        if (p->seen[i] != 0) continue;
        if ((at - members) % REST_TOKENS == 0) {
            medoids[count] = i;
            items->first[count++] = at;
        }
        items->places[at++] = i;
    }
    items->first[count] = at;
    for (uint32_t i = 0; i < count; i++)
        items->tokens[i] = (uint16_t)(items->first[i + 1] - items->first[i]);
    return KVT_OK;
}

kvt_status decode_coactive_build(const decode_profile *profile, decode_items *items,
                                 uint32_t **medoids_out)
{
    const size_t entries = profile->entries + 1u;
    coactive c = {
        .profile = profile, .covered = malloc(entries), .first = malloc(entries * sizeof *c.first)};
    ranked *order = malloc(entries * sizeof *order), *scratch = malloc(entries * sizeof *scratch);
    bool fine = c.covered != NULL && c.first != NULL && order != NULL && scratch != NULL;
    for (int s = 0; s < SHARES; s++) {
        c.density[s] = calloc(entries, sizeof *c.density[s]);
        fine = fine && c.density[s] != NULL;
    }
    if (fine) coactive_density(&c);
    kvt_status status = fine ? coactive_choose(&c, order, scratch) : KVT_E_MEMORY;
    if (status == KVT_OK && c.members == NULL) c.members = calloc(1, sizeof *c.members);
    if (status == KVT_OK) status = coactive_items(&c, items, medoids_out);
    for (int s = 0; s < SHARES; s++)
        free(c.density[s]);
    free(order);
    free(scratch);
    free(c.covered);
    free(c.first);
    free(c.members);
    return status;
}

/* ---- one unit ---- */

void decode_unit_attention(const decode_unit *unit, uint32_t row, float *attention)
{
    for (uint32_t g = 0; g < unit->group; g++) {
        const size_t at = (size_t)row * unit->group + g;
        const float *logits = unit->logits[PAGES_RAW] + at * unit->zone;
        for (uint32_t t = 0; t < unit->zone; t++)
            attention[t] +=
                expf(logits[unit->place_of[t]] - (float)unit->zone_lse[at]) / (float)unit->group;
    }
}

/* The first half of the steps is the profile. */
kvt_status decode_coactive_open(decode_unit *unit, decode_choice *choice)
{
    decode_profile profile;
    kvt_status status = decode_profile_open(unit->zone, &profile);
    float *attention = malloc((unit->zone + 1u) * sizeof *attention);
    if (attention == NULL) status = KVT_E_MEMORY;
    for (uint32_t row = 0; status == KVT_OK && row < unit->rows / 2; row++) {
        memset(attention, 0, unit->zone * sizeof *attention);
        decode_unit_attention(unit, row, attention);
        status = decode_profile_add(&profile, attention);
    }
    if (status == KVT_OK)
        status = decode_coactive_build(&profile, &choice->items, &choice->medoids);
    for (uint32_t i = 0; status == KVT_OK && i < choice->items.count; i++)
        choice->medoids[i] = unit->place_of[choice->medoids[i]];
    for (uint32_t i = 0; status == KVT_OK && i < choice->items.first[choice->items.count]; i++)
        choice->items.places[i] = unit->place_of[choice->items.places[i]];
    free(attention);
    decode_profile_close(&profile);
    return status;
}
