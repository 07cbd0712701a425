/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dual.c - how far the present placement is from the best one with the same predicted rates: the
 * engine's entries as an instance of knapsack.h. Reads only, but for the prices that it keeps.
 *
 * A solution works on a copy of what it needs, 48 bytes a held entry and 40 a form, which it gives
 * back: the passes are most of the work, and they touch nothing else.
 */
#include "policy/knapsack.h"

#include <assert.h>
#include <string.h>

#define DUAL_ROUNDS 3 /* passes over all entries */

typedef struct dual_entry {
    double rate;
    double none;  /* cost of recomputing */
    double sense; /* alpha times sensitivity */
    double alpha; /* what a loss costs at most */
    uint32_t forms;
    uint8_t option_count;
    uint16_t barred; /* 1: look the mask up; forms are few that are */
} dual_entry;

/* Forms at the present weights lie number by number, so that the options of an entry are weighed
 * several at once. What cannot be held costs UNLIMITED. */
typedef struct dual_instance {
    const kvt_policy *policy;
    dual_entry *entries;
    uint32_t *index; /* of the engine's entry */
    double *forms;   /* what the next three point into */
    double *time;
    double *loss;
    double *bytes[LEVELS];
    uint32_t count;
} dual_instance;

#define DUAL_NUMBERS (2 + LEVELS) /* of a form */

/* The options' scores at some prices. */
static void dual_weigh(const dual_instance *instance, const dual_entry *e,
                       const double price[LEVELS], double score[KVT_OPTIONS_MAX])
{
    const double *time = &instance->time[e->forms];
    const double *losses = &instance->loss[e->forms];
    const double *hbm = &instance->bytes[0][e->forms];
    const double *dram = &instance->bytes[1][e->forms];
    const double *ssd = &instance->bytes[2][e->forms];
    double sense = e->sense, alpha = e->alpha, none = e->none, rate = e->rate;
    double p0 = price[0], p1 = price[1], p2 = price[2];
    uint32_t count = e->option_count - 1u;
    for (uint32_t o = 0; o < count; o++) {
        double loss = sense * losses[o];
        double cost = time[o] + (loss < alpha ? loss : alpha);
        score[o] = rate * (none - cost) - p0 * hbm[o] - p1 * dram[o] - p2 * ssd[o];
    }
}

static void dual_ask(const void *context, const double price[LEVELS], uint32_t stride,
                     price_pass *out)
{
    const dual_instance *instance = context;
    for (uint32_t i = 0; i < instance->count; i += stride) {
        const dual_entry *e = &instance->entries[i];
        double score[KVT_OPTIONS_MAX];
        uint32_t found = NIL;
        double best = 0.0;
        uint32_t barred =
            e->barred != 0 ? entry_at(instance->policy, instance->index[i])->barred >> 1 : 0;
        dual_weigh(instance, e, price, score);
        for (uint32_t o = 0; o + 1 < e->option_count; o++) {
            if (score[o] <= best || (barred >> o & 1) != 0) continue;
            best = score[o];
            found = e->forms + o;
        }
        if (found == NIL) continue;
        out->value += best;
        for (int level = 0; level < LEVELS; level++)
            out->used[level] += instance->bytes[level][found];
    }
}

static void dual_copy_form(const kvt_policy *policy, uint32_t index, dual_instance *to)
{
    const form *from = &policy->forms[index];
    to->time[index] = from->fits ? from->face : UNLIMITED;
    to->loss[index] = from->loss;
    for (int level = 0; level < LEVELS; level++)
        to->bytes[level][index] = (double)from->bytes[level];
}

/* Copies the held entries; utility of what is stored now in *primal_out. */
static void dual_fill(const kvt_policy *policy, dual_instance *instance, double *primal_out)
{
    *primal_out = 0.0;
    /* Released runs hold what they held; no entry names them. */
    for (uint32_t i = 0; i < policy->forms_used; i++)
        dual_copy_form(policy, i, instance);
    for (uint32_t i = 0; i < policy->entries_used; i++) {
        const entry *e = entry_at(policy, i);
        if (e->state != ENTRY_HELD) continue;
        instance->index[instance->count] = i;
        dual_entry *to = &instance->entries[instance->count++];
        to->rate = reuse_rate(policy, e);
        to->none = entry_cost(policy, e, KVT_OPTION_NONE);
        to->alpha = entry_alpha(policy, e);
        to->sense = to->alpha * (double)e->sensitivity;
        to->forms = e->forms == NIL ? 0 : e->forms;
        to->option_count = e->option_count;
        to->barred = e->barred != 0;
        if (e->current != KVT_OPTION_NONE) {
            *primal_out += to->rate * (to->none - entry_cost(policy, e, e->current));
        }
    }
}

static void dual_search(kvt_policy *policy, const dual_instance *instance,
                        kvt_policy_bound *bound_out)
{
    price_search search = {
        .ask = dual_ask, .context = instance, .entries = instance->count, .tolerance = 1e-6};
    for (int level = 0; level < LEVELS; level++) {
        search.capacity[level] = (double)policy->capacity[level];
        search.price[level] = policy->priced ? policy->price[level] : 1e-12;
    }
    price_find(&search, DUAL_ROUNDS);
    bound_out->dual = search.best;
    if (search.best > 0.0) {
        bound_out->gap_relative = (search.best - bound_out->primal) / search.best;
    }
    for (int level = 0; level < LEVELS; level++)
        policy->price[level] = bound_out->price[level + 1] = search.best_price[level];
    policy->priced = true;
    bound_out->entries = policy->held;
    bound_out->passes = search.passes;
}

kvt_status kvt_policy_solve(kvt_policy *policy, uint64_t now_ns, kvt_policy_bound *bound_out)
{
    assert(policy != NULL && bound_out != NULL);
    memset(bound_out, 0, sizeof *bound_out);
    if (!policy->ops->counts) return KVT_E_UNSUPPORTED;
    if (policy->started) engine_set_clock(policy, now_ns);
    dual_instance instance = {.policy = policy};
    size_t entries_bytes = sizeof *instance.entries * (policy->held + 1u);
    size_t index_bytes = sizeof *instance.index * (policy->held + 1u);
    size_t forms_bytes = sizeof *instance.forms * DUAL_NUMBERS * (policy->forms_used + 1u);
    kvt_status status = KVT_E_MEMORY;
    instance.entries = engine_resize(policy, NULL, 0, entries_bytes);
    instance.index = engine_resize(policy, NULL, 0, index_bytes);
    instance.forms = engine_resize(policy, NULL, 0, forms_bytes);
    if (instance.entries == NULL || instance.index == NULL || instance.forms == NULL) goto out;
    instance.time = instance.forms;
    instance.loss = instance.time + policy->forms_used;
    for (int level = 0; level < LEVELS; level++)
        instance.bytes[level] = instance.loss + (size_t)(level + 1) * policy->forms_used;
    dual_fill(policy, &instance, &bound_out->primal);
    dual_search(policy, &instance, bound_out);
    status = KVT_OK;
out:
    if (instance.entries != NULL) engine_resize(policy, instance.entries, entries_bytes, 0);
    if (instance.index != NULL) engine_resize(policy, instance.index, index_bytes, 0);
    if (instance.forms != NULL) engine_resize(policy, instance.forms, forms_bytes, 0);
    return status;
}
