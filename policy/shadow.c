/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shadow.c - four small caches of numbers over a sample of the entries: one for each half life and
 * one in plain recency order. What each would have saved decides which order the engine uses.
 *
 * A handle is in the sample by its hash: one in 64, more of small engines, so that a few hundred
 * are. Each shadow has the same share of all tiers' bytes as the sample has of the entries, holds
 * each entry in its most exact form, and gives up what saves least per byte by its own counters.
 *
 *     window of 512 sampled uses -> score[k] = seconds saved, older windows halved
 *     lead[k] = score[k] - score[present], square[k] = its sum of squares, use by use
 *     another order is taken up when it leads the present one by 3 % and by three standard errors
 *     of the lead, at the next tick: a sample's luck is no reason to change
 *
 * Items live in a ring: a new one takes the oldest's slot, so what is remembered is bounded.
 */
#include "policy/engine.h"

#include <string.h>

#define SHADOWS       (CLOCKS + 1)
#define SHADOW_ITEMS  65536u
#define SHADOW_WINDOW 512u
#define SHADOW_LEAD   1.03
#define SHADOW_SURE   9.0 /* square of the standard errors that a lead has to have */
#define SHADOW_FEW    256u

typedef struct shadow_item {
    uint64_t handle; /* 0: free */
    uint64_t last_ns;
    uint64_t bytes;
    float count[CLOCKS];
    float saved; /* seconds by one use of the stored entry */
    uint32_t place[SHADOWS];
} shadow_item;

struct shadow {
    uint64_t mask; /* of the mixed handle */
    uint64_t capacity_bytes;
    uint64_t used[SHADOWS];
    double score[SHADOWS];
    double lead[SHADOWS];
    double square[SHADOWS];
    uint32_t uses; /* in this window */
    uint32_t next; /* slot of the ring */
    uint32_t item_count;
    uint32_t bucket_mask;
    uint32_t wanted; /* the order to be taken up */
    shadow_item *items;
    uint32_t *table; /* slot + 1, linear probing; 0 is empty */
    heap heaps[SHADOWS];
};

static uint64_t shadow_mix(uint64_t handle)
{
    return number_mix(handle + UINT64_C(0x9E3779B97F4A7C15));
}

static heap_places shadow_places(const struct shadow *s, uint32_t order)
{
    unsigned char *first = (unsigned char *)s->items;
    return (heap_places){first + offsetof(shadow_item, place) + sizeof(uint32_t) * order,
                         sizeof(shadow_item)};
}

static void shadow_free(kvt_policy *policy, struct shadow *s)
{
    for (uint32_t k = 0; k < SHADOWS; k++) {
        heap *h = &s->heaps[k];
        if (h->items != NULL) engine_resize(policy, h->items, sizeof *h->items * h->capacity, 0);
    }
    if (s->items != NULL) engine_resize(policy, s->items, sizeof *s->items * s->item_count, 0);
    if (s->table != NULL) {
        engine_resize(policy, s->table, sizeof *s->table * (s->bucket_mask + 1), 0);
    }
    engine_resize(policy, s, sizeof *s, 0);
}

static bool shadow_allocate(kvt_policy *policy, struct shadow *s, uint32_t items)
{
    uint32_t slots = 64;
    while (slots < 2 * items)
        slots *= 2;
    s->item_count = items;
    s->bucket_mask = slots - 1;
    s->items = engine_resize(policy, NULL, 0, sizeof *s->items * items);
    s->table = engine_resize(policy, NULL, 0, sizeof *s->table * slots);
    if (s->items == NULL || s->table == NULL) return false;
    memset(s->items, 0, sizeof *s->items * items);
    memset(s->table, 0, sizeof *s->table * slots);
    for (uint32_t k = 0; k < SHADOWS; k++) {
        heap *h = &s->heaps[k];
        h->items = engine_resize(policy, NULL, 0, sizeof *h->items * items);
        if (h->items == NULL) return false;
        h->capacity = items;
    }
    return true;
}

bool shadow_open(kvt_policy *policy)
{
    if (policy->clocks == 1) return true;
    uint64_t known = policy->config.entries_expected + policy->config.ghosts_max;
    uint64_t capacity = 0;
    uint32_t shift = 0;
    for (int level = 0; level < LEVELS; level++)
        capacity += policy->capacity[level];
    while (shift < 6 && policy->config.entries_expected >> shift > 2 * SHADOW_FEW)
        shift++;
    uint64_t items = known >> shift;
    if (items < SHADOW_FEW) items = SHADOW_FEW;
    if (items > SHADOW_ITEMS) items = SHADOW_ITEMS;
    struct shadow *s = engine_resize(policy, NULL, 0, sizeof *s);
    if (s == NULL) return false;
    memset(s, 0, sizeof *s);
    s->mask = (UINT64_C(1) << shift) - 1;
    s->capacity_bytes = capacity >> shift;
    s->wanted = policy->order;
    if (!shadow_allocate(policy, s, (uint32_t)items)) {
        shadow_free(policy, s);
        return false;
    }
    policy->shadow = s;
    return true;
}

void shadow_close(kvt_policy *policy)
{
    if (policy->shadow != NULL) shadow_free(policy, policy->shadow);
}

/* The bucket that holds the handle, or the empty one where it would go. */
static uint32_t shadow_bucket(const struct shadow *s, uint64_t handle, uint64_t mixed)
{
    uint32_t at = (uint32_t)(mixed >> 32) & s->bucket_mask;
    while (s->table[at] != 0 && s->items[s->table[at] - 1].handle != handle)
        at = (at + 1) & s->bucket_mask;
    return at;
}

static void shadow_evict(struct shadow *s, uint32_t order, uint32_t slot)
{
    s->used[order] -= s->items[slot].bytes;
    heap_remove(&s->heaps[order], shadow_places(s, order), slot);
}

static void shadow_forget(struct shadow *s, uint32_t slot)
{
    shadow_item *item = &s->items[slot];
    if (item->handle == 0) return;
    for (uint32_t k = 0; k < SHADOWS; k++)
        if (item->place[k] != NIL) shadow_evict(s, k, slot);
    uint32_t hole = shadow_bucket(s, item->handle, shadow_mix(item->handle));
    uint32_t at = hole;
    for (;;) {
        at = (at + 1) & s->bucket_mask;
        if (s->table[at] == 0) break;
        uint32_t home =
            (uint32_t)(shadow_mix(s->items[s->table[at] - 1].handle) >> 32) & s->bucket_mask;
        if (((at - home) & s->bucket_mask) < ((at - hole) & s->bucket_mask)) continue;
        s->table[hole] = s->table[at];
        hole = at;
    }
    s->table[hole] = 0;
    item->handle = 0;
}

/* What an entry takes and saves in its most exact form, the cheapest of those. */
static bool shadow_appraise(const kvt_policy *policy, const entry *e, uint64_t *bytes, float *saved)
{
    double none = entry_cost(policy, e, KVT_OPTION_NONE);
    double least = UNLIMITED;
    double cost = 0.0;
    *bytes = 0;
    for (uint8_t option = 1; option < e->option_count; option++) {
        const form *o = entry_form(policy, e, option);
        if (o->loss > least) continue;
        double here = entry_cost(policy, e, option);
        if (o->loss >= least && here >= cost) continue;
        least = o->loss;
        cost = here;
        *bytes = o->bytes[0] + o->bytes[1] + o->bytes[2];
    }
    *saved = (float)(none - cost);
    return *bytes > 0 && *saved > 0.0f;
}

static shadow_item *shadow_item_of(kvt_policy *policy, const entry *e, uint64_t mixed)
{
    struct shadow *s = policy->shadow;
    uint64_t bytes;
    float saved;
    uint32_t at = shadow_bucket(s, e->handle, mixed);
    if (s->table[at] != 0) return &s->items[s->table[at] - 1];
    if (e->state != ENTRY_HELD || !shadow_appraise(policy, e, &bytes, &saved)) return NULL;
    uint32_t slot = s->next;
    s->next = s->next + 1 < s->item_count ? s->next + 1 : 0;
    shadow_forget(s, slot);
    shadow_item *item = &s->items[slot];
    memset(item, 0, sizeof *item);
    memset(item->place, 0xFF, sizeof item->place);
    item->handle = e->handle;
    item->last_ns = policy->now_ns;
    item->bytes = bytes;
    item->saved = saved;
    s->table[shadow_bucket(s, e->handle, mixed)] = slot + 1;
    return item;
}

/* Adds one use to the scores, and to the leads over the order that is wanted. */
static void shadow_score(struct shadow *s, const shadow_item *item)
{
    double present = item->place[s->wanted] != NIL ? (double)item->saved : 0.0;
    for (uint32_t k = 0; k < SHADOWS; k++) {
        double here = item->place[k] != NIL ? (double)item->saved : 0.0;
        double more = here - present;
        s->score[k] += here;
        s->lead[k] += more;
        s->square[k] += more * more;
    }
}

static bool shadow_leads(const struct shadow *s, uint32_t k)
{
    if (s->score[k] <= SHADOW_LEAD * s->score[s->wanted]) return false;
    return s->lead[k] > 0.0 && s->lead[k] * s->lead[k] > SHADOW_SURE * s->square[k];
}

/* One window ends: the order that saved most is wanted if it leads. A square is that of a sum of
 * halves: it falls to a quarter. */
static void shadow_judge(kvt_policy *policy)
{
    struct shadow *s = policy->shadow;
    uint32_t best = 0;
    for (uint32_t k = 1; k < SHADOWS; k++)
        if (s->score[k] > s->score[best]) best = k;
    if (best == RECENCY_ORDER) policy->counters.recency_windows++;
    bool changes = shadow_leads(s, best);
    if (changes) s->wanted = best;
    for (uint32_t k = 0; k < SHADOWS; k++) {
        s->score[k] *= 0.5;
        s->lead[k] *= changes ? 0.0 : 0.5;
        s->square[k] *= changes ? 0.0 : 0.25;
    }
    s->uses = 0;
}

static void shadow_key(kvt_policy *policy, shadow_item *item, uint32_t slot)
{
    struct shadow *s = policy->shadow;
    double density = number_log2((double)item->saved / (double)item->bytes);
    double now_s = (double)(policy->now_ns - policy->base_ns) * 1e-9;
    for (uint32_t k = 0; k < SHADOWS; k++) {
        double key = density;
        if (k == RECENCY_ORDER)
            key += now_s / policy->half_life[1];
        else
            key += number_log2((double)item->count[k]) + now_s / policy->half_life[k];
        if (item->place[k] == NIL) s->used[k] += item->bytes;
        heap_set(&s->heaps[k], shadow_places(s, k), slot, key);
        while (s->used[k] > s->capacity_bytes)
            shadow_evict(s, k, s->heaps[k].items[0].entry);
    }
}

void shadow_use(kvt_policy *policy, const entry *e)
{
    struct shadow *s = policy->shadow;
    uint64_t mixed = shadow_mix(e->handle);
    if ((mixed & s->mask) != 0) return;
    shadow_item *item = shadow_item_of(policy, e, mixed);
    if (item == NULL || item->bytes > s->capacity_bytes) return;
    double passed = (double)(policy->now_ns - item->last_ns) * 1e-9;
    item->last_ns = policy->now_ns;
    shadow_score(s, item);
    for (uint32_t k = 0; k < CLOCKS; k++) {
        double kept = (double)item->count[k] * number_exp2(-passed / policy->half_life[k]);
        item->count[k] = (float)(kept + 1.0);
    }
    shadow_key(policy, item, (uint32_t)(item - s->items));
    if (++s->uses == SHADOW_WINDOW) shadow_judge(policy);
}

/* A background step: takes up the order that the last windows asked for. */
void shadow_follow(kvt_policy *policy)
{
    if (policy->shadow == NULL || policy->shadow->wanted == policy->order) return;
    policy->counters.half_life_changes++;
    reuse_set_order(policy, policy->shadow->wanted);
}
