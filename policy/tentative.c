/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tentative.c - a tentative plan: a plan while it is being built.
 *
 * A move that is added is in flight at once: its bytes are reserved and its entry leaves the victim
 * index. Cutting the plan takes moves back in reverse order and restores ids, bytes and index, so a
 * tentative plan that does not pay leaves the engine as it was, the write queues but for rounding.
 *
 * Inside a tentative plan an evicted entry no longer counts as a child, so that its parent may
 * follow it in the same plan, later in order. Outside it counts until the eviction is committed: no
 * other plan may rely on it.
 */
#include "policy/engine.h"
#include "policy/plan.h"

#include <assert.h>
#include <string.h>

/* False when no move could be made at all: no room in the plan, or no memory for the ledger. The
 * limit is the plan's length or the number of held entries, because an entry moves once in a
 * plan. */
bool tentative_begin(kvt_policy *policy, tentative_plan *work, kvt_plan *plan)
{
    uint32_t limit = plan->capacity;
    if (limit > policy->held) limit = policy->held;
    plan->count = 0;
    if (limit == 0 || !ledger_reserve(policy, limit)) return false;
    work->plan = plan;
    work->limit = limit;
    assert(limit <= plan->capacity);
    work->bytes_left = UINT64_MAX;
    work->bounded = false;
    work->spent = 0.0;
    work->budget = UNLIMITED;
    work->own_group = -1;
    work->refusals = 0;
    work->sweeps = work->refreshes = TENTATIVE_SORTS;
    work->next_id_before = policy->next_id;
    work->skipped_count = 0;
    work->used_before[KVT_TIER_NONE] = 0;
    for (int tier = 0; tier < TIERS; tier++) {
        work->used_before[tier + 1] = policy->used[tier] + policy->withheld[tier];
        work->room[tier] = policy_room(policy, tier);
    }
    return true;
}

/* Whether an entry's tenant may hold it in that option. Shares count what will be there once all
 * moves in flight have ended, so that a tenant at its limit can replace its own entries. Only a
 * step that adds bytes of the tenant in a tier is refused. */
bool tentative_fits_share(const kvt_policy *policy, uint32_t index, uint8_t option)
{
    const entry *e = entry_at(policy, index);
    const tenant *owner = &policy->tenants[e->tenant];
    if (!owner->limited) return true;
    for (int tier = 0; tier < TIERS; tier++) {
        uint64_t share = owner->limits.share_bytes[tier + 1];
        uint64_t now = entry_bytes(policy, e, e->current, tier);
        uint64_t then = entry_bytes(policy, e, option, tier);
        if (share != 0 && then > now && owner->used[tier] - now + then > share) return false;
    }
    return true;
}

/* Whether the target bytes of a move fit now, in order. */
bool tentative_fits(const kvt_policy *policy, const tentative_plan *work, uint32_t index,
                    uint8_t option)
{
    const entry *e = entry_at(policy, index);
    for (int tier = 0; tier < TIERS; tier++) {
        uint64_t bytes = entry_need(policy, e, option, tier);
        if (bytes > 0 && work->room[tier] < (int64_t)(bytes + entry_staging(policy, e, tier)))
            return false;
    }
    return tentative_fits_share(policy, index, option);
}

/* Writes a move as the caller will read it. The options are named by number and the variant by
 * value, so an executor needs no engine to obey. */
static void tentative_describe(const kvt_policy *policy, const move_in_flight *move, double gain,
                               kvt_move *out)
{
    const entry *e = entry_at(policy, move->entry);
    memset(out, 0, sizeof *out);
    out->id = move->id;
    out->handle = e->handle;
    out->kind = move->kind;
    out->from = move->from;
    out->to = move->to;
    if (move->to != KVT_OPTION_NONE) out->to_variant = entry_option(policy, e, move->to)->variant;
    for (int tier = 0; tier < TIERS; tier++) {
        out->from_bytes[tier + 1] = entry_bytes(policy, e, move->from, tier);
        out->to_bytes[tier + 1] = move->to_bytes[tier];
        out->kept_bytes[tier + 1] = move->kept[tier];
    }
    out->gain = gain;
}

/* Excludes an entry from the victims, as a pin does, while the plan has another move for it. Each
 * exclude needs its include before the plan ends. */
void tentative_exclude(kvt_policy *policy, uint32_t index)
{
    assert(entry_at(policy, index)->state == POLICY_ENTRY_HELD);
    entry_at(policy, index)->pins++;
    policy->ops->remove(policy, index);
}

/* Lets an entry be a victim again. */
void tentative_include(kvt_policy *policy, uint32_t index)
{
    assert(entry_at(policy, index)->pins > 0);
    entry_at(policy, index)->pins--;
    policy->ops->index(policy, index);
}

/* False, and nothing changed, when the move passes a bound: length, bytes, room or budget. On
 * success the entry is in flight, so it cannot be chosen again in this plan. */
bool tentative_add(kvt_policy *policy, tentative_plan *work, const step *move)
{
    kvt_plan *plan = work->plan;
    const entry *e = entry_at(policy, move->entry);
    if (!tentative_fits(policy, work, move->entry, move->to)) return false;
    uint64_t writes = 0;
    for (int tier = 0; tier < TIERS; tier++)
        writes += entry_need(policy, e, move->to, tier);
    if (plan->count >= work->limit || writes > work->bytes_left) {
        work->bounded = true;
        return false;
    }
    if (work->spent + move->cost > work->budget) {
        work->refusals++;
        return false;
    }

    policy->ops->remove(policy, move->entry);
    move_in_flight *begun = ledger_begin(policy, move->entry, move->to);
    tentative_describe(policy, begun, move->gain, &plan->moves[plan->count++]);
    work->spent += move->cost;
    work->bytes_left -= writes;
    for (int tier = 0; tier < TIERS; tier++) {
        work->room[tier] -= (int64_t)begun->to_bytes[tier];
        work->room[tier] += (int64_t)entry_bytes(policy, e, begun->from, tier);
        /* The kept bytes cancel out. */
    }
    if (begun->kind == KVT_MOVE_EVICT)
        entries_count_child(policy, move->entry, -1);
    else
        entries_rank(policy, move->entry);
    return true;
}

/* Takes a victim that no step can move out of the index until the plan ends. The caller makes sure
 * that a place in the list is left. */
void tentative_skip(kvt_policy *policy, tentative_plan *work, uint32_t index)
{
    assert(work->skipped_count < TENTATIVE_SKIPS);
    policy->ops->remove(policy, index);
    work->skipped[work->skipped_count++] = index;
}

/* Takes moves back until `count` are left, the last one first. Ids that were given are given again,
 * so that a plan which was tried leaves no gap in the log. spent is what the plan had lost when it
 * was `count` moves long. */
void tentative_cut(kvt_policy *policy, tentative_plan *work, uint32_t count, double spent)
{
    assert(count <= work->plan->count);
    kvt_plan *plan = work->plan;
    while (plan->count > count) {
        move_in_flight *move = ledger_find(policy, plan->moves[--plan->count].id);
        assert(move != NULL);
        uint32_t index = move->entry;
        const entry *e = entry_at(policy, index);
        for (int tier = 0; tier < TIERS; tier++) {
            work->room[tier] += (int64_t)move->to_bytes[tier];
            work->room[tier] -= (int64_t)entry_bytes(policy, e, move->from, tier);
            work->bytes_left += move->to_bytes[tier] - move->kept[tier];
        }
        if (move->kind == KVT_MOVE_EVICT) entries_count_child(policy, index, 1);
        policy->next_id = move->id;
        ledger_end(policy, move, false);
        entries_rank(policy, index);
        policy->ops->index(policy, index);
    }
    if (count == 0) policy->next_id = work->next_id_before;
    work->spent = spent;
}

/* Checks the finished plan as a caller would, in debug builds. */
static void tentative_check(const kvt_policy *policy, const tentative_plan *work)
{
#ifndef NDEBUG
    uint64_t capacity[KVT_TIER_COUNT] = {0};
    for (int tier = 0; tier < TIERS; tier++)
        capacity[tier + 1] = policy->capacity[tier];
    char message[128];
    kvt_status status =
        plan_check(work->plan, work->used_before, capacity, message, sizeof message);
    assert(status == KVT_OK);
#else
    (void)policy;
    (void)work;
#endif
}

/* The tentative plan becomes the plan. Skipped entries come back into the index, and evicted
 * children count again until their eviction is committed. */
void tentative_end(kvt_policy *policy, tentative_plan *work)
{
    assert(work->plan->count <= work->limit);
    for (uint32_t i = work->plan->count; i-- > 0;) {
        const move_in_flight *move = ledger_find(policy, work->plan->moves[i].id);
        if (move->kind == KVT_MOVE_EVICT) entries_count_child(policy, move->entry, 1);
    }
    while (work->skipped_count > 0)
        policy->ops->index(policy, work->skipped[--work->skipped_count]);
    tentative_check(policy, work);
}
