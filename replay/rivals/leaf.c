/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leaf.c - lru-leaf: lru, but only entries without held children are moved, so that no prefix loses
 * its head. Recency changes the order of all leaves when a child leaves, hence a heap by recency.
 */
#include "rivals.h"

#include <assert.h>

/* Takes an entry out of all tiers' heaps. */
void leaf_remove(kvt_policy *policy, uint32_t index)
{
    for (int tier = 0; tier < TIERS; tier++)
        heap_remove(&policy->heaps[tier], engine_places(policy, tier), index);
}

/* Keeps movable leaves in the heap of their tier, in the order of use; a prefix that is needed
 * stays outside. A leaf that becomes a prefix leaves the heap when its first child is linked, since
 * the engine sorts the parent anew then. */
static void leaf_index(kvt_policy *policy, uint32_t index)
{
    const entry *e = entry_at(policy, index);
    leaf_remove(policy, index);
    if (!entry_is_movable(e) || entry_children(e) > 0) return;
    int home = option_home(entry_option(policy, e, e->current));
    heap_set(&policy->heaps[home], engine_places(policy, home), index, (double)e->recency);
}

/* Takes the least recently used leaf of the tier. gdsf and lfu use it as well: the heap's first is
 * their victim too. */
bool leaf_choose(kvt_policy *policy, tentative_plan *work, int tier, step *out)
{
    assert(policy->ops->heaps);
    (void)work;
    const heap *h = &policy->heaps[tier];
    if (h->count == 0) return false;
    assert(entry_is_movable(entry_at(policy, h->items[0].entry)));
    *out = lru_step_down(policy, h->items[0].entry, tier);
    return true;
}

/* LRU over leaves: a prefix leaves after all of its continuations. No continuation is left behind
 * without its prefix, which it would be useless without. */
const policy_ops policy_lru_leaf_ops = {
    .name = "lru-leaf",
    .reason = "It is kept by recency: the least recently used leaf of a tier moves first.",
    .recency = true,
    .heaps = true,
    .index = leaf_index,
    .remove = leaf_remove,
    .touch = leaf_index,
    .choose = leaf_choose,
    .fallback = lru_fallback,
    .place = lru_place,
    .improve = lru_improve,
    .promote = lru_promote,
    .tick = none_tick};
