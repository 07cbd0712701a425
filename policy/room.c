/* SPDX-License-Identifier: Apache-2.0 */
/*
 * room.c - makes room in one tier, by the steps that the policy chooses, in an order that can be
 * carried out: what makes room below comes before what moves down.
 *
 *     need room in DRAM -> cheapest step: entry 7 goes to SSD -> SSD is full
 *         need room in SSD -> cheapest step: entry 3 is evicted      plan: EVICT 3
 *     entry 7 moves down                                             plan: EVICT 3, CHANGE 7
 *
 * A step adds bytes only below the tier it makes room in, or in that tier what fits already, so
 * the stack of waiting steps is never deeper than the tiers. A step whose room below cannot be made
 * falls back to one that needs none (an eviction, as a rule), else its entry is skipped. Nothing
 * here weighs a step: what a step loses is the policy's to say, and the plan's budget ends it.
 *
 * The recursion of the picture is written as a stack of at most three frames, so that a plan needs
 * no memory and every step back is explicit.
 */
#include "policy/room.h"

#include <assert.h>

/* One tier in which room is being made, for the caller or for the step that waits in the frame
 * below it on the stack. */
typedef struct room_frame {
    int tier;
    int64_t need;
    bool waiting; /* `pending` waits for room below; its entry is out of the index */
    step pending;
    uint32_t mark; /* moves and losses before the pending step's own room-making */
    double spent_mark;
} room_frame;

/* Pushes what the pending step still needs below; false when it needs nothing more. */
static bool room_descend(kvt_policy *policy, const tentative_plan *work, room_frame *frames,
                         int *depth)
{
    assert(*depth >= 1 && *depth <= TIERS);
    const room_frame *top = &frames[*depth - 1];
    const entry *e = entry_at(policy, top->pending.entry);
    for (int tier = top->tier + 1; tier < TIERS; tier++) {
        int64_t bytes = (int64_t)entry_need(policy, e, top->pending.to, tier);
        if (bytes == 0) continue;
        bytes += (int64_t)entry_staging(policy, e, tier);
        if (work->room[tier] >= bytes) continue;
        assert(*depth < TIERS);
        frames[(*depth)++] = (room_frame){.tier = tier, .need = bytes};
        return true;
    }
    return false;
}

/* Ends the wait of a step: its entry may be chosen again, by this or another tier. */
static void room_release(kvt_policy *policy, room_frame *top)
{
    assert(top->waiting);
    tentative_include(policy, top->pending.entry);
    top->waiting = false;
}

/* The step on top could not be made as planned: take its room-making back, try it without. False:
 * the plan may not grow, or too many victims were skipped or refused. */
static bool room_give_way(kvt_policy *policy, tentative_plan *work, room_frame *top)
{
    assert(top->waiting);
    tentative_cut(policy, work, top->mark, top->spent_mark);
    room_release(policy, top);
    step other;
    if (work->bounded) return false;
    if (policy->ops->fallback(policy, work, top->pending.entry, top->tier, &other) &&
        tentative_add(policy, work, &other)) {
        return true;
    }
    if (work->skipped_count == TENTATIVE_SKIPS || work->refusals >= TENTATIVE_REFUSALS)
        return false;
    tentative_skip(policy, work, top->pending.entry);
    return true;
}

/* One step on the top frame; false when it can go no further: no victim is left, the next one costs
 * too much (and no other is cheaper), or the plan may not grow. At most one move is added a call,
 * so the caller checks the frame's need after each. */
static bool room_advance(kvt_policy *policy, tentative_plan *work, room_frame *frames, int *depth)
{
    room_frame *top = &frames[*depth - 1];
    if (!top->waiting) {
        if (!policy->ops->choose(policy, work, top->tier, &top->pending)) return false;
        if (tentative_fits(policy, work, top->pending.entry, top->pending.to)) {
            return tentative_add(policy, work, &top->pending);
        }
        top->waiting = true;
        top->mark = work->plan->count;
        top->spent_mark = work->spent;
        tentative_exclude(policy, top->pending.entry);
    }
    if (room_descend(policy, work, frames, depth)) return true;
    if (!tentative_fits(policy, work, top->pending.entry, top->pending.to)) {
        return room_give_way(policy, work, top);
    }
    room_release(policy, top);
    if (tentative_add(policy, work, &top->pending)) return true;
    tentative_cut(policy, work, top->mark, top->spent_mark);
    return false;
}

/* Works on a stack of tiers: the frame on top makes room for the step that waits below it. */
bool room_make(kvt_policy *policy, tentative_plan *work, int tier, int64_t need)
{
    assert(tier >= 0 && tier < TIERS);
    room_frame frames[TIERS];
    int depth = 1;
    frames[0] = (room_frame){.tier = tier, .need = need};
    while (depth > 0) {
        room_frame *top = &frames[depth - 1];
        bool done = !top->waiting && work->room[top->tier] >= top->need;
        if (done || !room_advance(policy, work, frames, &depth)) {
            depth--;
            if (done) continue;
            /* A frame that fails takes its caller's step down with it, and so on upwards. */
            while (depth > 0 && !room_give_way(policy, work, &frames[depth - 1]))
                depth--;
            if (depth == 0) return false;
        }
    }
    return true;
}

/* A tenant at its share makes room for its own entry from its own entries. Its steps are of the
 * tenant's own group alone, whatever the tiers' order says. */
static bool room_make_share(kvt_policy *policy, tentative_plan *work, uint32_t index,
                            uint8_t option)
{
    assert(policy->tenants[entry_at(policy, index)->tenant].limited);
    const entry *e = entry_at(policy, index);
    const tenant *owner = &policy->tenants[e->tenant];
    while (!tentative_fits_share(policy, index, option)) {
        step own;
        bool found = false;
        for (int tier = 0; tier < TIERS && !found; tier++) {
            uint64_t share = owner->limits.share_bytes[tier + 1];
            uint64_t now = entry_bytes(policy, e, e->current, tier);
            uint64_t then = entry_bytes(policy, e, option, tier);
            if (share == 0 || then <= now || owner->used[tier] - now + then <= share) continue;
            work->own_group = owner->group;
            found = policy->ops->choose(policy, work, tier, &own);
            work->own_group = -1;
            if (!found) return false;
            if (tentative_fits(policy, work, own.entry, own.to)) continue;
            found = policy->ops->fallback(policy, work, own.entry, tier, &own);
            if (!found) return false;
        }
        if (!found || !tentative_add(policy, work, &own)) return false;
    }
    return true;
}

/* Makes room in every tier that an option needs, the tenant's share first. False leaves the steps
 * made so far in the plan, for the caller to cut. */
bool room_make_for(kvt_policy *policy, tentative_plan *work, uint32_t index, uint8_t option)
{
    assert(option != KVT_OPTION_NONE);
    const entry *e = entry_at(policy, index);
    if (policy->tenants[e->tenant].limited && !room_make_share(policy, work, index, option)) {
        return false;
    }
    for (int tier = 0; tier < TIERS; tier++) {
        int64_t need = (int64_t)entry_need(policy, e, option, tier);
        if (need == 0) continue;
        need += (int64_t)entry_staging(policy, e, tier);
        if (work->room[tier] < need && !room_make(policy, work, tier, need)) return false;
    }
    return true;
}
