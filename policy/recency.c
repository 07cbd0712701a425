/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recency.c - the fixed policies: none and lru.
 *
 * lru: one recency list per tier over its entries, O(1) per call. A new entry goes to the highest
 * tier that can make room; the least recent entry of a tier moves to the next tier below, or out of
 * the lowest; a use below the highest tier promotes. With one tier this is textbook LRU. No rule
 * keeps a prefix together.
 *
 * Both store one variant, config.variant, or of each entry one of two, and leave the watermarks
 * alone: their capacity is the whole tier, which keeps them comparable with the literature.
 */
#include "policy/recency.h"
#include "policy/room.h"

#include <assert.h>

/* An entry that comes back into a list (aborted, unpinned) is put in order of use by looking this
 * far from both ends; entries that do not belong near an end are taken for recently used ones. */
#define LRU_SEARCH 64

/* This policy keeps no order. */
static void none_ignore(kvt_policy *policy, uint32_t index)
{
    (void)policy;
    (void)index;
}

/* Nothing is stored, so there is no victim. */
static bool none_choose(kvt_policy *policy, tentative_plan *work, int tier, step *out)
{
    (void)policy;
    (void)work;
    (void)tier;
    (void)out;
    return false;
}

/* Nothing is stored, so nothing can give way. */
static bool none_fallback(kvt_policy *policy, const tentative_plan *work, uint32_t index, int tier,
                          step *out)
{
    (void)policy;
    (void)work;
    (void)index;
    (void)tier;
    (void)out;
    return false;
}

/* Refuses every entry. */
static bool none_place(kvt_policy *policy, tentative_plan *work, uint32_t index)
{
    (void)policy;
    (void)work;
    (void)index;
    return false;
}

/* Plans no background work. The fixed policies and the rivals share it: none of them works in the
 * background. */
void none_tick(kvt_policy *policy, tentative_plan *work)
{
    (void)policy;
    (void)work;
}

/* Plans no promotion. */
static void none_improve(kvt_policy *policy, uint32_t index, kvt_plan *plan)
{
    assert(index < policy->entries_used);
    (void)policy;
    (void)index;
    (void)plan;
}

/* Stores nothing: the time of computing everything, which all others are measured against. */
const policy_ops policy_none_ops = {.name = "none",
                                    .index = none_ignore,
                                    .remove = none_ignore,
                                    .touch = none_ignore,
                                    .choose = none_choose,
                                    .fallback = none_fallback,
                                    .place = none_place,
                                    .improve = none_improve,
                                    .tick = none_tick};

/* Takes an entry out of its list. `listed` says which list that is: the tier and one, 0 for
 * none. */
void lru_remove(kvt_policy *policy, uint32_t index)
{
    entry *e = entry_at(policy, index);
    if (e->listed == 0) return;
    assert(e->listed <= TIERS);
    list_remove(policy, &policy->lists[e->listed - 1], index);
    e->listed = 0;
}

/* Puts the entry just before `newer`, on the older side; NIL means at the newest end. The entry is
 * in no list before. */
static void lru_insert_after(kvt_policy *policy, recency_list *list, uint32_t index, uint32_t newer)
{
    assert(newer == NIL || newer != index);
    entry *e = entry_at(policy, index);
    e->link[0].newer = newer;
    e->link[0].older = newer == NIL ? list->newest : entry_at(policy, newer)->link[0].older;
    if (newer == NIL)
        list->newest = index;
    else
        entry_at(policy, newer)->link[0].older = index;
    if (e->link[0].older == NIL)
        list->oldest = index;
    else
        entry_at(policy, e->link[0].older)->link[0].newer = index;
}

/* Puts an entry into a list in the order of use, where a failed move brings it back. The search
 * runs from both ends at once and gives up after LRU_SEARCH steps: few entries come back. The
 * invariant of a list is falling recency from the newest end to the oldest, but for entries that
 * were put at the newest end for want of their place. */
static void lru_insert(kvt_policy *policy, recency_list *list, uint32_t index)
{
    uint64_t recency = entry_at(policy, index)->recency;
    uint32_t newer = NIL; /* everything from here to the newest end is newer */
    uint32_t candidate = list->newest;
    uint32_t from_oldest = list->oldest;
    for (int i = 0; i < LRU_SEARCH; i++) {
        if (candidate == NIL || entry_at(policy, candidate)->recency <= recency) break;
        if (entry_at(policy, from_oldest)->recency > recency) {
            newer = from_oldest;
            break;
        }
        newer = candidate;
        candidate = entry_at(policy, candidate)->link[0].older;
        from_oldest = entry_at(policy, from_oldest)->link[0].newer;
    }
    lru_insert_after(policy, list, index, newer);
}

/* Keeps a movable entry in the list of its tier, in the order of use. An entry that is in its list
 * already keeps its place: only a use moves it. */
void lru_index(kvt_policy *policy, uint32_t index)
{
    entry *e = entry_at(policy, index);
    if (!entry_is_movable(e)) {
        lru_remove(policy, index);
        return;
    }
    int home = option_home(entry_option(policy, e, e->current));
    if (e->listed == home + 1) return;
    lru_remove(policy, index);
    lru_insert(policy, &policy->lists[home], index);
    e->listed = (uint8_t)(home + 1) & 15u;
}

/* Moves a used entry to the newest end. An entry in flight or pinned is in no list and keeps its
 * recency number alone. */
void lru_touch(kvt_policy *policy, uint32_t index)
{
    entry *e = entry_at(policy, index);
    if (e->listed == 0) return;
    recency_list *list = &policy->lists[e->listed - 1];
    if (list->newest == index) return;
    list_remove(policy, list, index);
    list_add_newest(policy, list, index);
}

/* The variant of an entry: one for all, or by a hash of the handle one of two, whichever tier it is
 * in. */
static const kvt_variant *lru_variant(const kvt_policy *policy, const entry *e)
{
    if (policy->trial.other_share <= 0.0) return &policy->config.variant;
    const uint64_t mixed = (e->handle ^ e->handle >> 32) * UINT64_C(0x9e3779b97f4a7c15);
    const bool other = (double)(mixed >> 11) * 0x1p-53 < policy->trial.other_share;
    return other ? &policy->trial.other_variant : &policy->config.variant;
}

/* The option that stores the entry's variant with `tier` as its highest tier; NONE when none does.
 * An option that no capacity could ever hold is none. */
uint8_t lru_option_at(const kvt_policy *policy, const entry *e, int tier)
{
    assert(tier >= 0 && tier < TIERS);
    const kvt_variant *wanted = lru_variant(policy, e);
    for (uint8_t option = 1; option < e->option_count; option++) {
        const stored_option *o = entry_option(policy, e, option);
        if (o->variant.codec != wanted->codec || o->variant.mode != wanted->mode) continue;
        if (o->variant.rate != wanted->rate || option_home(o) != tier) continue;
        if (o->fits) return option;
    }
    return KVT_OPTION_NONE;
}

/* The step of a victim: to the next lower tier that takes the variant, else out. Tiers between may
 * be skipped, where none of their options has the variant. */
step lru_step_down(const kvt_policy *policy, uint32_t index, int tier)
{
    assert(entry_is_movable(entry_at(policy, index)));
    const entry *e = entry_at(policy, index);
    step down = {.entry = index, .to = KVT_OPTION_NONE};
    for (int below = tier + 1; below < TIERS && down.to == KVT_OPTION_NONE; below++)
        down.to = lru_option_at(policy, e, below);
    return down;
}

/* Takes the oldest entry of the tier. The order of the list is the whole decision, so the state of
 * the plan is not asked. */
bool lru_choose(kvt_policy *policy, tentative_plan *work, int tier, step *out)
{
    (void)work;
    uint32_t victim = policy->lists[tier].oldest;
    if (victim == NIL) return false;
    *out = lru_step_down(policy, victim, tier);
    return true;
}

/* An entry that cannot move down leaves. It always finds a step: leaving needs no room. */
bool lru_fallback(kvt_policy *policy, const tentative_plan *work, uint32_t index, int tier,
                  step *out)
{
    *out = lru_step_down(policy, index, tier);
    if (!tentative_fits(policy, work, index, out->to)) out->to = KVT_OPTION_NONE;
    return true;
}

/* Makes room for an option in all its tiers, and adds the move; otherwise takes all back. The plan
 * is empty again after a failure, so the caller may try the next tier. */
static bool lru_move_to(kvt_policy *policy, tentative_plan *work, uint32_t index, uint8_t option)
{
    assert(option != KVT_OPTION_NONE);
    step move = {.entry = index, .to = option};
    if (room_make_for(policy, work, index, option) && tentative_add(policy, work, &move))
        return true;
    tentative_cut(policy, work, 0, 0.0);
    work->bounded = false;
    return false;
}

/* Stores the entry in the highest tier where room can be made. The search goes down, so a tier is
 * tried only when no higher one had room to make. */
bool lru_place(kvt_policy *policy, tentative_plan *work, uint32_t index)
{
    assert(entry_at(policy, index)->current == KVT_OPTION_NONE);
    for (int tier = 0; tier < TIERS; tier++) {
        uint8_t option = lru_option_at(policy, entry_at(policy, index), tier);
        if (option == KVT_OPTION_NONE) continue;
        if (lru_move_to(policy, work, index, option)) return true;
    }
    return false;
}

/* Moves an entry to the highest tier, from `top` on, that takes its variant, whatever has to leave.
 * A promotion that cannot be made leaves the plan empty. */
void lru_promote(kvt_policy *policy, uint32_t index, int top, kvt_plan *plan)
{
    assert(entry_is_movable(entry_at(policy, index)));
    const entry *e = entry_at(policy, index);
    int home = option_home(entry_option(policy, e, e->current));
    uint8_t option = KVT_OPTION_NONE;
    for (int tier = top; tier < home && option == KVT_OPTION_NONE; tier++)
        option = lru_option_at(policy, e, tier);
    tentative_plan work;
    if (option == KVT_OPTION_NONE || !tentative_begin(policy, &work, plan)) return;
    /* Its own bytes below stay held until the promotion is done, so it must not be its victim. */
    tentative_exclude(policy, index);
    bool made = room_make_for(policy, &work, index, option);
    tentative_include(policy, index);
    step move = {.entry = index, .to = option};
    if (!made || !tentative_add(policy, &work, &move)) tentative_cut(policy, &work, 0, 0.0);
    tentative_end(policy, &work);
}

/* A use is a reason to be in any tier. */
void lru_improve(kvt_policy *policy, uint32_t index, kvt_plan *plan)
{
    lru_promote(policy, index, 0, plan);
}

/* Textbook LRU in every tier, with demotion and promotion. It is what a serving engine without a
 * policy does, so most comparisons begin with it. */
const policy_ops policy_lru_ops = {
    .name = "lru",
    .reason = "It is kept by recency: the least recently used entry of a tier moves first.",
    .recency = true,
    .index = lru_index,
    .remove = lru_remove,
    .touch = lru_touch,
    .choose = lru_choose,
    .fallback = lru_fallback,
    .place = lru_place,
    .improve = lru_improve,
    .promote = lru_promote,
    .tick = none_tick};
