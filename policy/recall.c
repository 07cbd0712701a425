/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recall.c - what an engine knows of uses, given out as numbers and taken over by the next engine:
 * the counters of stored entries, the order of their last uses, and the learned weights.
 *
 * The numbers do not say what is stored: entries are adopted first, and remembered ones are not
 * given out. Hints and set rates stay with the engine that got them.
 */
#include "policy/engine.h"
#include "policy/reuse.h"
#include "policy/reuse_model.h"

#include <assert.h>
#include <string.h>

#define RECALL_MOST 1e12 /* of every number given */

/* The stored entry of a handle; NULL when there is none. */
static entry *recall_find(const kvt_policy *policy, uint64_t handle, uint32_t *index_out)
{
    *index_out = entries_find(policy, handle);
    if (*index_out == NIL) return NULL;
    entry *e = entry_at(policy, *index_out);
    return e->state == POLICY_ENTRY_HELD && e->current != KVT_OPTION_NONE ? e : NULL;
}

/* Whether an entry has counters of several half-lives, or needs none. */
static bool recall_knows(const kvt_policy *policy, const entry *e)
{
    return !policy->ops->counts || !reuse_is_plain(policy, e);
}

kvt_status kvt_policy_uses_get(const kvt_policy *policy, uint64_t now_ns, uint64_t handle,
                               kvt_policy_uses *out)
{
    assert(policy != NULL);
    if (out == NULL || !struct_size_is_sound(out, STRUCT_SIZE_THROUGH(kvt_policy_uses, count)))
        return KVT_E_ARGUMENT;
    uint32_t index;
    const entry *e = recall_find(policy, handle, &index);
    if (e == NULL) return KVT_MISS;
    if (!recall_knows(policy, e)) return KVT_E_UNSUPPORTED;
    kvt_policy_uses whole = {.order = e->recency};
    if (now_ns > e->last_access_ns)
        whole.idle_seconds = (double)(now_ns - e->last_access_ns) * 1e-9;
    if (policy->ops->counts) {
        whole.used = e->turn;
        for (int k = 0; k < HALF_LIVES; k++)
            whole.count[k] = reuse_count(e, k);
    }
    struct_size_out(out, &whole, sizeof whole);
    return KVT_OK;
}

/* Whether all numbers are within their bounds. */
static bool recall_is_sound(const kvt_policy_uses *uses)
{
    bool sound = uses->used <= TURN_MOST && number_is_within(uses->idle_seconds, 0.0, RECALL_MOST);
    for (int k = 0; k < HALF_LIVES; k++)
        sound = sound && number_is_within(uses->count[k], 0.0, RECALL_MOST);
    return sound;
}

/* The engine's time so many seconds ago, no earlier than its first. */
static uint64_t recall_instant(const kvt_policy *policy, double idle_seconds)
{
    double idle_ns = idle_seconds * 1e9;
    double known_ns = (double)(policy->now_ns - policy->base_ns);
    return idle_ns < known_ns ? policy->now_ns - (uint64_t)idle_ns : policy->base_ns;
}

kvt_status kvt_policy_uses_set(kvt_policy *policy, uint64_t now_ns, uint64_t handle,
                               const kvt_policy_uses *uses)
{
    assert(policy != NULL && uses != NULL);
    kvt_policy_uses whole = {0};
    uses = struct_size_in(uses, &whole, sizeof whole, STRUCT_SIZE_THROUGH(kvt_policy_uses, count));
    if (uses == NULL || !recall_is_sound(uses)) return KVT_E_ARGUMENT;
    uint32_t index;
    entry *e = recall_find(policy, handle, &index);
    if (e == NULL) return KVT_MISS;
    if (!recall_knows(policy, e)) return KVT_E_UNSUPPORTED;
    engine_set_clock(policy, now_ns);
    const uint64_t last_ns = recall_instant(policy, uses->idle_seconds);
    if (policy->ops->counts) {
        reuse_recall(policy, e, last_ns, uses);
    } else if (policy->ops->recency) {
        e->last_access_ns = last_ns;
    } else {
        return KVT_OK; /* counters of a baseline's own */
    }
    e->recency = ++policy->recency;
    policy->ops->touch(policy, index);
    return KVT_OK;
}

kvt_status kvt_policy_weights_set(kvt_policy *policy, const kvt_reuse_weights *weights)
{
    assert(policy != NULL && weights != NULL);
    if (policy->model == NULL) return KVT_E_UNSUPPORTED;
    if (policy->model->scaled) return KVT_E_STATE;
    for (int k = 0; k < HALF_LIVES; k++)
        if (!number_is_within(weights->weight[k], 0.0, 1e6)) return KVT_E_ARGUMENT;
    for (int turn = 0; turn < REUSE_TURNS; turn++)
        for (int bin = 0; bin < REUSE_AGES; bin++)
            if (!number_is_within(weights->hazard[turn][bin], 0.0, 1e6)) return KVT_E_ARGUMENT;
    if (weights->uses > 0) reuse_model_recall(policy, weights);
    return KVT_OK;
}
