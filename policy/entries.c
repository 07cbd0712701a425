/* SPDX-License-Identifier: Apache-2.0 */
/*
 * entries.c - the entry table: handle -> entry, the prefix tree, the remembered ones, all memory.
 *
 * Entries live in a growing pool and are named by index. Everything that can fail is in the reserve
 * functions, which run before a call changes anything.
 *
 * The prefix tree joins held entries only: each knows its parent, its first child and its siblings.
 * Entries that left are chained by age, and the oldest of them are forgotten first. The file
 * decides nothing; policies are called when an entry's place in their order may have changed.
 *
 * Lookups by handle are the only hashing of the engine. A bucket has 32 bits: the low ones name the
 * entry, the others are bits of the hash, so that nearly every miss is decided without reading an
 * entry.
 */
#include "policy/engine.h"
#include "policy/reuse_model.h"

#include <assert.h>
#include <string.h>

#define ENTRIES_LIMIT (UINT32_C(1) << 30)
#define BRANCHES_MOST 3 /* children of a prefix whose turn a new child goes on from */

/*
 * A bucket holds an entry's index and, in the bits that an index does not need, some of its hash:
 * a look-up then reads no entry but the one that it wants, next to always. NIL is empty.
 */
static uint64_t entries_mix(uint64_t handle)
{
    uint64_t mixed = (handle ^ handle >> 32) * UINT64_C(0x9E3779B97F4A7C15);
    return mixed ^ mixed >> 32;
}

/* Returns the bucket where the search for a handle begins. */
static uint32_t entries_home(const kvt_policy *policy, uint64_t mixed)
{
    assert(policy->buckets_capacity != 0);
    return (uint32_t)mixed & (policy->buckets_capacity - 1);
}

/* Indexes stay below half the number of buckets; the highest bit stays 0, so none is NIL. */
static uint32_t entries_tag(const kvt_policy *policy, uint64_t mixed)
{
    return (uint32_t)(mixed >> 33) & ~(policy->buckets_capacity / 2 - 1);
}

/* Returns the index that a bucket holds, without the bits of the hash. */
static uint32_t entries_in_bucket(const kvt_policy *policy, uint32_t bucket)
{
    assert(bucket != NIL);
    return bucket & (policy->buckets_capacity / 2 - 1);
}

/* Adds an entry to the hash table, which always has a free bucket: it is at most half full. */
static void entries_link_bucket(kvt_policy *policy, uint32_t index)
{
    assert(index < policy->buckets_capacity / 2);
    uint64_t mixed = entries_mix(entry_at(policy, index)->handle);
    uint32_t at = entries_home(policy, mixed);
    while (policy->buckets[at] != NIL)
        at = (at + 1) & (policy->buckets_capacity - 1);
    policy->buckets[at] = entries_tag(policy, mixed) | index;
}

/* Linear probing without tombstones: later members of the cluster move back over the hole. The
 * invariant of linear probing holds afterwards: no empty bucket lies between an entry's home and
 * its place. */
static void entries_unlink_bucket(kvt_policy *policy, uint32_t index)
{
    uint32_t mask = policy->buckets_capacity - 1;
    uint64_t mixed = entries_mix(entry_at(policy, index)->handle);
    uint32_t hole = entries_home(policy, mixed);
    uint32_t wanted = entries_tag(policy, mixed) | index;
    while (policy->buckets[hole] != wanted)
        hole = (hole + 1) & mask;
    for (uint32_t at = (hole + 1) & mask; policy->buckets[at] != NIL; at = (at + 1) & mask) {
        uint32_t other = entries_in_bucket(policy, policy->buckets[at]);
        uint32_t home = entries_home(policy, entries_mix(entry_at(policy, other)->handle));
        if (((at - home) & mask) < ((at - hole) & mask)) continue;
        policy->buckets[hole] = policy->buckets[at];
        hole = at;
    }
    policy->buckets[hole] = NIL;
}

/* Finds a handle by linear probing. Asks for the entry's memory before it compares the handle. */
uint32_t entries_find(const kvt_policy *policy, uint64_t handle)
{
    uint64_t mixed = entries_mix(handle);
    uint32_t at = entries_home(policy, mixed), tag = entries_tag(policy, mixed);
    for (; policy->buckets[at] != NIL; at = (at + 1) & (policy->buckets_capacity - 1)) {
        uint32_t index = entries_in_bucket(policy, policy->buckets[at]);
        if (policy->buckets[at] != (tag | index)) continue;
        entry_prefetch(policy, index);
        if (entry_at(policy, index)->handle == handle) return index;
    }
    return NIL;
}

/* Moves all buckets into a larger table. False, with the old table in place, without memory. The
 * table is a power of two and at least twice the entries, so a search ends soon at an empty
 * bucket. */
static bool entries_grow_buckets(kvt_policy *policy, uint32_t capacity)
{
    assert((capacity & (capacity - 1)) == 0 && capacity > policy->buckets_capacity);
    size_t bytes = sizeof *policy->buckets * capacity;
    uint32_t *table = engine_resize(policy, NULL, 0, bytes);
    if (table == NULL) return false;
    memset(table, 0xFF, bytes);
    uint32_t *old = policy->buckets;
    uint32_t old_capacity = policy->buckets_capacity;
    policy->buckets = table;
    policy->buckets_capacity = capacity;
    for (uint32_t i = 0; i < old_capacity; i++)
        if (old[i] != NIL) entries_link_bucket(policy, old[i] & (old_capacity / 2 - 1));
    if (old != NULL) engine_resize(policy, old, sizeof *old * old_capacity, 0);
    return true;
}

/* Grows pool, heaps and buckets to `capacity` entries; each part that grew stays grown when a later
 * one fails, which no decision can notice. Indexes stay as they are, pointers do not. */
static bool entries_grow(kvt_policy *policy, uint32_t capacity)
{
    for (int tier = 0; tier < TIERS; tier++) {
        heap *h = &policy->heaps[tier];
        /* Of absent tiers too: a capacity can be given to them later. */
        if (!policy->ops->heaps || h->capacity >= capacity) continue;
        void *items = engine_resize(policy, h->items, sizeof *h->items * h->capacity,
                                    sizeof *h->items * capacity);
        if (items == NULL) return false;
        h->items = items;
        h->capacity = capacity;
    }
    while (policy->buckets_capacity < 2 * capacity) {
        uint32_t wanted = policy->buckets_capacity == 0 ? 64 : policy->buckets_capacity;
        while (wanted < 2 * capacity)
            wanted *= 2;
        if (!entries_grow_buckets(policy, wanted)) return false;
    }
    const size_t wanted = (capacity + SWEPT_SLOTS - 1) / SWEPT_SLOTS;
    if (policy->ops->learns && policy->swept_count < wanted) {
        const size_t had = policy->swept_count;
        float *swept =
            engine_resize(policy, policy->swept, sizeof *swept * had, sizeof *swept * wanted);
        if (swept == NULL) return false;
        memset(swept + had, 0, sizeof *swept * (wanted - had));
        policy->swept = swept;
        policy->swept_count = wanted;
    }
    void *entries =
        engine_resize(policy, policy->entries, sizeof *policy->entries * policy->entries_capacity,
                      sizeof *policy->entries * capacity);
    if (entries == NULL) return false;
    policy->entries = entries;
    policy->entries_capacity = capacity;
    return policy->copies.notes == NULL || elsewhere_grow(policy, capacity);
}

/* Adds a group of victims, whose buckets stand at the same time as all others. Groups are allocated
 * one by one, so that a pointer to one stays valid when another is added. */
bool entries_add_group(kvt_policy *policy)
{
    uint32_t count = policy->group_count;
    victims *added = engine_resize(policy, NULL, 0, sizeof *added);
    if (added == NULL) return false;
    victims **groups =
        engine_resize(policy, policy->groups, sizeof *groups * count, sizeof *groups * (count + 1));
    if (groups == NULL) {
        engine_resize(policy, added, sizeof *added, 0);
        return false;
    }
    for (int tier = 0; tier < TIERS; tier++) {
        for (int kind = 0; kind < STEP_KINDS; kind++) {
            buckets *b = &added->of[tier][kind];
            buckets_init(b);
            buckets_advance(b, engine_links(policy, tier), policy->advanced);
        }
    }
    groups[count] = added;
    policy->groups = groups;
    policy->group_count++;
    return true;
}

/* Starts the least base cost anew, because the option that had it may be gone. */
void entries_index_all(kvt_policy *policy)
{
    policy->least_base_cost = UNLIMITED;
    options_refresh(policy, 0, policy->options_used);
    for (uint32_t i = 0; i < policy->entries_used; i++) {
        if (entry_at(policy, i)->state == POLICY_ENTRY_HELD) policy->ops->index(policy, i);
    }
}

/* Asks for the tables. False without memory; entries_close releases what is there. The pool has
 * room for entries_expected entries, or for those reserved, and grows by doubling beyond. */
bool entries_open(kvt_policy *policy)
{
    policy->entries_free = NIL;
    policy->ghosts = (recency_list){NIL, NIL};
    for (int tier = 0; tier < TIERS; tier++)
        policy->lists[tier] = (recency_list){NIL, NIL};
    uint64_t wanted = policy->config.entries_expected;
    if (wanted < policy->config.entries_reserved) wanted = policy->config.entries_reserved;
    if (wanted > ENTRIES_LIMIT) wanted = ENTRIES_LIMIT;
    if (wanted < 16) wanted = 16;
    if (!entries_grow(policy, (uint32_t)wanted)) return false;
    if (policy->ops->buckets && !entries_add_group(policy)) return false;
    return options_open(policy);
}

/* Releases all tables, also those of an open that failed halfway. */
void entries_close(kvt_policy *policy)
{
    for (uint32_t group = 0; group < policy->group_count; group++)
        engine_resize(policy, policy->groups[group], sizeof *policy->groups[group], 0);
    if (policy->groups != NULL) {
        engine_resize(policy, policy->groups, sizeof *policy->groups * policy->group_count, 0);
    }
    for (int tier = 0; tier < TIERS; tier++) {
        heap *h = &policy->heaps[tier];
        if (h->items != NULL) engine_resize(policy, h->items, sizeof *h->items * h->capacity, 0);
    }
    if (policy->buckets != NULL) {
        engine_resize(policy, policy->buckets, sizeof *policy->buckets * policy->buckets_capacity,
                      0);
    }
    options_close(policy);
    elsewhere_close(policy);
    if (policy->swept != NULL)
        engine_resize(policy, policy->swept, sizeof *policy->swept * policy->swept_count, 0);
    if (policy->entries != NULL) {
        engine_resize(policy, policy->entries, sizeof *policy->entries * policy->entries_capacity,
                      0);
    }
}

/* Makes room for one entry more: a slot that was left, one that was never used, or a pool twice as
 * large. Doubling keeps the cost of growth constant per entry. */
bool entries_reserve(kvt_policy *policy)
{
    if (policy->entries_free != NIL || policy->entries_used < policy->entries_capacity) return true;
    if (policy->entries_capacity > ENTRIES_LIMIT / 2) return false;
    return entries_grow(policy, policy->entries_capacity * 2);
}

/* Adds an entry at the newest end of a list. link[0] of the entry is free for it. */
void list_add_newest(kvt_policy *policy, recency_list *list, uint32_t index)
{
    entry *e = entry_at(policy, index);
    e->link[0].newer = NIL;
    e->link[0].older = list->newest;
    if (list->newest != NIL)
        entry_at(policy, list->newest)->link[0].newer = index;
    else
        list->oldest = index;
    list->newest = index;
    assert(list->oldest != NIL);
}

/* Takes an entry out of the list that it is in. The caller knows which list that is: an entry says
 * so in `listed` or by its state. */
void list_remove(kvt_policy *policy, recency_list *list, uint32_t index)
{
    assert(list->newest != NIL && list->oldest != NIL);
    bucket_link *link = &entry_at(policy, index)->link[0];
    if (link->newer != NIL)
        entry_at(policy, link->newer)->link[0].older = link->older;
    else
        list->newest = link->older;
    if (link->older != NIL)
        entry_at(policy, link->older)->link[0].newer = link->newer;
    else
        list->oldest = link->newer;
    link->newer = link->older = NIL;
}

/* Keeps the number of entries by their highest tier; without stored bytes they count as NONE. The
 * caller strikes the entry out before its option changes and enters it afterwards. */
void engine_tally(kvt_policy *policy, const entry *e, int by)
{
    assert(by == 1 || by == -1);
    int tier = KVT_TIER_NONE;
    if (e->current != KVT_OPTION_NONE) tier = option_home(entry_option(policy, e, e->current)) + 1;
    uint64_t *count = &policy->counters.entries_by_tier[tier];
    *count = (uint64_t)((int64_t)*count + by);
    assert(*count <= policy->entries_used);
}

/* The tier that a child counts at. */
static int tree_rank(const kvt_policy *policy, const entry *e)
{
    uint8_t option = e->move != NIL ? policy->in_flight[e->move].to : e->current;
    if (option == KVT_OPTION_NONE) return e->current == KVT_OPTION_NONE ? TIERS - 1 : e->rank;
    return option_home(entry_option(policy, e, option));
}

/* The parent is sorted anew when the first child of a tier has come or the last one has left: it
 * may be a leaf now, or free to go down. */
void entries_count_child(kvt_policy *policy, uint32_t index, int by)
{
    assert(by == 1 || by == -1);
    const entry *e = entry_at(policy, index);
    if (e->parent == NIL) return;
    uint32_t *below = &entry_at(policy, e->parent)->below[e->rank];
    assert(by > 0 || *below > 0);
    *below += (uint32_t)by;
    if (*below == (by > 0)) policy->ops->index(policy, e->parent);
}

void entries_rank(kvt_policy *policy, uint32_t index)
{
    entry *e = entry_at(policy, index);
    int rank = tree_rank(policy, e);
    if (e->parent == NIL || rank == e->rank) return;
    entries_count_child(policy, index, -1);
    e->rank = (uint8_t)rank & 3u;
    entries_count_child(policy, index, 1);
}

/* Makes an entry the newest child of a held parent. */
static void tree_link(kvt_policy *policy, uint32_t index, uint32_t parent)
{
    assert(index != parent && entry_at(policy, parent)->state == POLICY_ENTRY_HELD);
    entry *e = entry_at(policy, index);
    entry *up = entry_at(policy, parent);
    e->parent = parent;
    e->older_sibling = up->first_child;
    if (up->first_child != NIL) entry_at(policy, up->first_child)->newer_sibling = index;
    up->first_child = index;
    e->rank = (uint8_t)tree_rank(policy, e) & 3u;
    entries_count_child(policy, index, 1);
}

/* Takes an entry out of its parent's children; a root stays as it is. The newer and older siblings
 * close the gap. */
static void tree_unlink(kvt_policy *policy, uint32_t index)
{
    entry *e = entry_at(policy, index);
    uint32_t parent = e->parent;
    if (parent == NIL) return;
    entry *up = entry_at(policy, parent);
    if (e->newer_sibling != NIL)
        entry_at(policy, e->newer_sibling)->older_sibling = e->older_sibling;
    else
        up->first_child = e->older_sibling;
    if (e->older_sibling != NIL)
        entry_at(policy, e->older_sibling)->newer_sibling = e->newer_sibling;
    entries_count_child(policy, index, -1);
    e->parent = e->older_sibling = e->newer_sibling = NIL;
}

/* Gives a handle a slot. The caller has looked for the handle and made room. The counters are 0 and
 * the entry is in no list, heap or bucket. */
uint32_t entries_add(kvt_policy *policy, uint64_t handle)
{
    assert(handle != 0);
    uint32_t index = policy->entries_free;
    if (index != NIL)
        policy->entries_free = entry_at(policy, index)->link[0].older;
    else
        index = policy->entries_used++;
    assert(index < policy->entries_capacity);
    entry *e = entry_at(policy, index);
    memset(e, 0, sizeof *e);
    e->handle = handle;
    e->parent = NIL;
    e->options = NIL;
    for (int tier = 0; tier < TIERS; tier++) {
        e->link[tier] = (bucket_link){NIL, NIL, BUCKETS_ABSENT};
        e->density[tier] = DENSITY_NONE;
    }
    e->state = POLICY_ENTRY_GHOST;
    entries_link_bucket(policy, index);
    return index;
}

/* Forgets a handle and chains its slot for the next one. */
static void entries_free_slot(kvt_policy *policy, uint32_t index)
{
    entries_unlink_bucket(policy, index);
    entry *e = entry_at(policy, index);
    assert(e->state != POLICY_ENTRY_FREE && e->handle != 0);
    reuse_forget(policy, e);
    hints_forget(policy, index);
    if (policy->copies.notes != NULL) policy->copies.notes[index] = (copy_note){0};
    e->state = POLICY_ENTRY_FREE;
    e->handle = 0;
    e->link[0].older = policy->entries_free;
    policy->entries_free = index;
}

/* Gives an entry its options: the ladder's run, or the run of all entries with such options. */
static void entries_set_options(kvt_policy *policy, entry *e, const kvt_policy_entry *given)
{
    assert(given->ladder <= policy->ladder_count);
    e->shares = given->ladder != 0;
    if (e->shares) {
        const ladder *shared = &policy->ladders[given->ladder - 1];
        e->option_count = (uint8_t)shared->option_count;
        e->options = shared->options;
        e->recompute_seconds = (float)given->recompute_seconds;
        return;
    }
    uint32_t count = given->option_count - 1;
    e->option_count = (uint8_t)given->option_count;
    e->recompute_seconds = (float)given->options[0].load_seconds;
    e->options = count > 0 ? options_take(policy, count) : NIL;
    if (count == 0) return;
    options_copy(&policy->options[e->options], &given->options[1], count);
    options_refresh(policy, e->options, count);
    e->options = options_join(policy, e->options, count);
}

/* A ghost outside the FIFO becomes held; options are reserved. The counters of a remembered entry
 * stay; its points are overwritten by its bytes. */
void entries_hold(kvt_policy *policy, uint32_t index, const kvt_policy_entry *given)
{
    entry *e = entry_at(policy, index);
    assert(e->state == POLICY_ENTRY_GHOST && e->current == KVT_OPTION_NONE);
    if (policy->ops->counts) memset(e->bytes, 0, sizeof e->bytes); /* s3fifo keeps its hand */
    e->move = e->first_child = e->older_sibling = e->newer_sibling = NIL;
    e->pins = 0;
    memset(e->below, 0, sizeof e->below);
    bool watched = e->watched;
    if (watched) reuse_expose(policy, e, -1.0);
    entries_set_options(policy, e, given);
    if (watched) reuse_expose(policy, e, 1.0);
    e->sensitivity = given->sensitivity > 0.0 ? (float)given->sensitivity : 1.0f;
    e->share = 1.0f;
    if (given->tokens > 0 && given->tokens < given->request_tokens) {
        e->share = (float)given->tokens / (float)given->request_tokens;
    }
    e->tenant = (uint8_t)given->tenant;
    e->state = POLICY_ENTRY_HELD;
    options_exclude(policy, e);
    policy->held++;
    assert(policy->held <= policy->entries_used);
    engine_tally(policy, e, 1);
    if (given->parent == 0) return;
    uint32_t parent = entries_find(policy, given->parent);
    if (parent == NIL) return;
    /* A parent on its way out is as good as gone: nothing may come to depend on it. */
    const entry *up = entry_at(policy, parent);
    if (up->state != POLICY_ENTRY_HELD) return;
    bool leaving = up->move != NIL && policy->in_flight[up->move].kind == KVT_MOVE_EVICT;
    if (leaving) return;
    tree_link(policy, index, parent);
    /* Only its turn of use is counted now: what goes on a path is as many turns old as the path. A
     * prefix of several branches says nothing of a new one. */
    if (entry_children(up) <= BRANCHES_MOST && e->turn + 1u < up->turn)
        e->turn = (up->turn - 1u) & TURN_MOST;
}

/* A held entry without bytes and without a move leaves; its children become roots. Without
 * `remember`, or under a policy that remembers nothing, the slot is free at once. */
void entries_leave(kvt_policy *policy, uint32_t index, bool remember)
{
    entry *e = entry_at(policy, index);
    assert(e->state == POLICY_ENTRY_HELD && e->move == NIL);
    engine_tally(policy, e, -1);
    e->current = KVT_OPTION_NONE;
    policy->ops->remove(policy, index);
    if (policy->ops->leaving != NULL) policy->ops->leaving(policy, index);
    while (e->first_child != NIL)
        tree_unlink(policy, e->first_child);
    tree_unlink(policy, index);
    remember = remember && policy->ops->remembers && policy->config.ghosts_max > 0;
    uint32_t own = e->option_count > 1 && !e->shares ? e->option_count - 1u : 0;
    uint32_t options = e->options;
    if (remember && policy->ops->counts && !e->shares) remembered_keep(policy, e);
    if (own > 0) options_leave(policy, options, own);
    if (!e->shares) e->options = NIL;
    e->state = POLICY_ENTRY_GHOST;
    policy->held--;
    assert(e->parent == NIL && policy->held < policy->entries_used);
    if (!remember) {
        entries_free_slot(policy, index);
        return;
    }
    list_add_newest(policy, &policy->ghosts, index);
    policy->ghost_count++;
    while (policy->ghost_count > policy->config.ghosts_max)
        entries_drop_ghost(policy, policy->ghosts.oldest);
}

/* Forgets one remembered entry. Its counters are lost; a handle that comes back later is new. */
void entries_drop_ghost(kvt_policy *policy, uint32_t index)
{
    assert(policy->ghost_count > 0 && entry_at(policy, index)->state == POLICY_ENTRY_GHOST);
    list_remove(policy, &policy->ghosts, index);
    policy->ghost_count--;
    entries_free_slot(policy, index);
}

/* Makes a remembered entry the last one to be forgotten. */
void entries_refresh_ghost(kvt_policy *policy, uint32_t index)
{
    assert(entry_at(policy, index)->state == POLICY_ENTRY_GHOST);
    list_remove(policy, &policy->ghosts, index);
    list_add_newest(policy, &policy->ghosts, index);
}
