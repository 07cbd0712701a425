/* SPDX-License-Identifier: Apache-2.0 */
/*
 * draft.c - a plan while it is being built.
 *
 * A move that is added is in flight at once: its bytes are reserved and its entry leaves the victim
 * index. Cutting the draft takes moves back in reverse order and restores ids, bytes and index, so
 * a tentative plan that does not pay leaves the engine as it was, the write queues but
 * for rounding.
 *
 * Inside a draft an evicted entry no longer counts as a child, so that its parent may follow it in
 * the same plan, later in order. Outside it counts until the eviction is committed: no other plan
 * may rely on it.
 */
#include "policy/engine.h"

#include <assert.h>
#include <string.h>

/* False when no move could be made at all: no room in the plan, or no memory for the ledger. */
bool draft_begin(kvt_policy *policy, draft *work, kvt_plan *plan)
{
    uint32_t limit = plan->capacity;
    if (limit > policy->held) limit = policy->held;
    plan->count = 0;
    if (limit == 0 || !ledger_reserve(policy, limit)) return false;
    work->plan = plan;
    work->limit = limit;
    work->bytes_left = UINT64_MAX;
    work->bounded = false;
    work->spent = 0.0;
    work->budget = UNLIMITED;
    work->own_group = -1;
    work->refusals = 0;
    work->sweeps = work->refreshes = DRAFT_SORTS;
    work->next_id_before = policy->next_id;
    work->aside_count = 0;
    work->used_before[KVT_TIER_NONE] = 0;
    for (int level = 0; level < LEVELS; level++) {
        work->used_before[level + 1] = policy->used[level];
        work->room[level] = (int64_t)policy->capacity[level] - (int64_t)policy->used[level];
    }
    return true;
}

/* Whether an entry's tenant may hold it in that option. Shares count what will be there once all
 * moves in flight have ended, so that a tenant at its limit can replace its own entries. */
bool draft_fits_share(const kvt_policy *policy, uint32_t index, uint8_t option)
{
    const entry *e = entry_at(policy, index);
    const tenant *owner = &policy->tenants[e->tenant];
    if (!owner->limited) return true;
    for (int level = 0; level < LEVELS; level++) {
        uint64_t share = owner->wishes.share_bytes[level + 1];
        uint64_t now = entry_bytes(policy, e, e->current, level);
        uint64_t then = entry_bytes(policy, e, option, level);
        if (share != 0 && then > now && owner->used[level] - now + then > share) return false;
    }
    return true;
}

/* Whether the target bytes of a move fit now, in order. */
bool draft_fits(const kvt_policy *policy, const draft *work, uint32_t index, uint8_t option)
{
    const entry *e = entry_at(policy, index);
    for (int level = 0; level < LEVELS; level++) {
        uint64_t bytes = entry_need(policy, e, option, level);
        if (bytes > 0 && (work->room[level] < 0 || bytes > (uint64_t)work->room[level])) {
            return false;
        }
    }
    return draft_fits_share(policy, index, option);
}

static void draft_count_child(kvt_policy *policy, uint32_t index, int by)
{
    uint32_t parent = entry_at(policy, index)->parent;
    if (parent == NIL) return;
    entry *up = entry_at(policy, parent);
    up->children = (uint32_t)((int64_t)up->children + by);
    policy->ops->index(policy, parent);
}

static void draft_describe(const kvt_policy *policy, const flight *move, double gain, kvt_move *out)
{
    const entry *e = entry_at(policy, move->entry);
    memset(out, 0, sizeof *out);
    out->id = move->id;
    out->handle = e->handle;
    out->kind = move->kind;
    out->from = move->from;
    out->to = move->to;
    if (move->to != KVT_OPTION_NONE) out->to_variant = entry_form(policy, e, move->to)->variant;
    for (int level = 0; level < LEVELS; level++) {
        out->from_bytes[level + 1] = entry_bytes(policy, e, move->from, level);
        out->to_bytes[level + 1] = move->to_bytes[level];
        out->kept_bytes[level + 1] = move->kept[level];
    }
    out->gain = gain;
}

/* Bars an entry from being a victim, as a pin does, while the draft has other plans for it. */
void draft_bar(kvt_policy *policy, uint32_t index)
{
    entry_at(policy, index)->pins++;
    policy->ops->remove(policy, index);
}

void draft_unbar(kvt_policy *policy, uint32_t index)
{
    entry_at(policy, index)->pins--;
    policy->ops->index(policy, index);
}

/* False, and nothing changed, when the move passes a bound: length, bytes, room or budget. */
bool draft_add(kvt_policy *policy, draft *work, const step *move)
{
    kvt_plan *plan = work->plan;
    const entry *e = entry_at(policy, move->entry);
    if (!draft_fits(policy, work, move->entry, move->to)) return false;
    uint64_t writes = 0;
    for (int level = 0; level < LEVELS; level++)
        writes += entry_need(policy, e, move->to, level);
    if (plan->count >= work->limit || writes > work->bytes_left) {
        work->bounded = true;
        return false;
    }
    if (work->spent + move->cost > work->budget) {
        work->refusals++;
        return false;
    }

    policy->ops->remove(policy, move->entry);
    flight *begun = ledger_begin(policy, move->entry, move->to);
    draft_describe(policy, begun, move->gain, &plan->moves[plan->count++]);
    work->spent += move->cost;
    work->bytes_left -= writes;
    for (int level = 0; level < LEVELS; level++) {
        work->room[level] -= (int64_t)begun->to_bytes[level];
        work->room[level] += (int64_t)entry_bytes(policy, e, begun->from, level);
        /* What is kept cancels out. */
    }
    if (begun->kind == KVT_MOVE_EVICT) draft_count_child(policy, move->entry, -1);
    return true;
}

/* Takes a victim that no step can move out of the index until the draft ends. */
void draft_set_aside(kvt_policy *policy, draft *work, uint32_t index)
{
    assert(work->aside_count < DRAFT_ASIDE);
    policy->ops->remove(policy, index);
    work->aside[work->aside_count++] = index;
}

/* Takes moves back until `count` are left. */
void draft_cut(kvt_policy *policy, draft *work, uint32_t count, double spent)
{
    kvt_plan *plan = work->plan;
    while (plan->count > count) {
        flight *move = ledger_find(policy, plan->moves[--plan->count].id);
        uint32_t index = move->entry;
        const entry *e = entry_at(policy, index);
        for (int level = 0; level < LEVELS; level++) {
            work->room[level] += (int64_t)move->to_bytes[level];
            work->room[level] -= (int64_t)entry_bytes(policy, e, move->from, level);
            work->bytes_left += move->to_bytes[level] - move->kept[level];
        }
        if (move->kind == KVT_MOVE_EVICT) draft_count_child(policy, index, 1);
        policy->next_id = move->id;
        ledger_end(policy, move, false);
        policy->ops->index(policy, index);
    }
    if (count == 0) policy->next_id = work->next_id_before;
    work->spent = spent;
}

static void draft_check(const kvt_policy *policy, const draft *work)
{
#ifndef NDEBUG
    uint64_t capacity[KVT_TIER_COUNT] = {0};
    for (int level = 0; level < LEVELS; level++)
        capacity[level + 1] = policy->capacity[level];
    char message[128];
    kvt_status status =
        kvt_plan_check(work->plan, work->used_before, capacity, message, sizeof message);
    assert(status == KVT_OK);
#else
    (void)policy;
    (void)work;
#endif
}

/* The draft becomes the plan. */
void draft_end(kvt_policy *policy, draft *work)
{
    for (uint32_t i = work->plan->count; i-- > 0;) {
        const flight *move = ledger_find(policy, work->plan->moves[i].id);
        if (move->kind == KVT_MOVE_EVICT) draft_count_child(policy, move->entry, 1);
    }
    while (work->aside_count > 0)
        policy->ops->index(policy, work->aside[--work->aside_count]);
    draft_check(policy, work);
}
