/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tinylfu.c - W-TinyLFU (Einziger, Friedman, Manes 2017) behind the interface of the engine: a
 * window of one percent of each tier, a segmented LRU for the rest (a fifth on probation, four
 * fifths protected), and a sketch of past uses that decides between the window's oldest and the
 * probation's oldest.
 *
 *     listed   1 + tier window | 1 + TIERS + tier probation | 1 + 2 * TIERS + tier protected
 *     sketch   four rows of counters up to 15; all halved after ten uses per held entry
 *
 * The paper counts entries and this file counts bytes, because entries differ in size. Segments are
 * kept for each tier by itself; the sketch is one for all.
 */
#include "rivals.h"

#include <assert.h>
#include <string.h>

/* Shares of a tier, of the main segment, and sizes of the sketch as in the paper; a counter of one
 * byte holds up to 15 as one of four bits does there. */
#define WINDOW_SHARE    0.01
#define PROTECTED_SHARE 0.8
#define SKETCH_ROWS     4u
#define SKETCH_MOST     15u

/* The segment that an entry belongs to, kept in a counter that this policy does not count with. */
#define SEGMENT(e)        ((e)->count[1])
#define SEGMENT_WINDOW    0.0f
#define SEGMENT_PROBATION 1.0f
#define SEGMENT_PROTECTED 2.0f

/* Empties the lists of these policies, and asks for the sketch where there is one. False without
 * memory. The sketch has at least one counter a row for each entry that the engine expects. */
bool classic_open(kvt_policy *policy)
{
    classic_state *c = engine_resize(policy, NULL, 0, sizeof *c);
    policy->rival = c;
    if (c == NULL) return false;
    memset(c, 0, sizeof *c);
    for (int tier = 0; tier < TIERS; tier++) {
        c->hands[tier] = NIL;
        c->mains[tier] = c->guarded[tier] = (recency_list){NIL, NIL};
        for (uint32_t class = 0; class < PENSIEVE_CLASSES; class ++)
            c->by_cost[tier][class] = (recency_list){NIL, NIL};
    }
    if (policy->ops != &policy_tinylfu_ops) return true;
    c->sketch_width = 1024;
    while (c->sketch_width < policy->config.entries_expected)
        c->sketch_width *= 2;
    c->sketch = engine_resize(policy, NULL, 0, (size_t)SKETCH_ROWS * c->sketch_width);
    if (c->sketch == NULL) return false;
    memset(c->sketch, 0, (size_t)SKETCH_ROWS * c->sketch_width);
    return true;
}

/* Releases sketch and state. */
void classic_close(kvt_policy *policy)
{
    classic_state *c = classic_of(policy);
    if (c == NULL) return;
    if (c->sketch != NULL)
        engine_resize(policy, c->sketch, (size_t)SKETCH_ROWS * c->sketch_width, 0);
    engine_resize(policy, c, sizeof *c, 0);
}

/* Returns a handle's counter in one row of the sketch. Each row hashes the handle by another odd
 * multiple. */
static uint8_t *sketch_counter(const kvt_policy *policy, uint64_t handle, uint32_t row)
{
    assert(row < SKETCH_ROWS && classic_of(policy)->sketch_width != 0);
    uint64_t x = handle + (row + 1) * UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    uint32_t column = (uint32_t)(x >> 32) & (classic_of(policy)->sketch_width - 1);
    return &classic_of(policy)->sketch[row * classic_of(policy)->sketch_width + column];
}

/* Estimates how often a handle was used: the least of its counters. The estimate is never below the
 * true count since the last halving, but for the cap. */
static uint8_t sketch_uses(const kvt_policy *policy, uint64_t handle)
{
    uint8_t least = SKETCH_MOST;
    for (uint32_t row = 0; row < SKETCH_ROWS; row++) {
        uint8_t here = *sketch_counter(policy, handle, row);
        if (here < least) least = here;
    }
    return least;
}

/* Counts a use in every row; all counters are halved when ten uses an entry have been counted.
 * Halving lets old uses fade; the count of adds is halved with the counters, so the next halving
 * comes after half as many. */
static void sketch_add(kvt_policy *policy, uint64_t handle)
{
    assert(classic_of(policy)->sketch != NULL);
    classic_state *c = classic_of(policy);
    for (uint32_t row = 0; row < SKETCH_ROWS; row++) {
        uint8_t *counter = sketch_counter(policy, handle, row);
        if (*counter < SKETCH_MOST) ++*counter;
    }
    if (++c->sketch_adds < UINT64_C(10) * (policy->held + 1)) return;
    for (uint32_t i = 0; i < SKETCH_ROWS * c->sketch_width; i++)
        c->sketch[i] >>= 1;
    c->sketch_adds /= 2;
}

/* Returns the list of a segment's number: windows, probation, protected, by tier. The numbering is
 * that of the file's head. */
static recency_list *segment_list(kvt_policy *policy, uint8_t listed)
{
    assert(listed >= 1 && listed <= 3 * TIERS);
    int tier = (listed - 1) % TIERS;
    if (listed <= TIERS) return &policy->lists[tier];
    return listed <= 2 * TIERS ? &classic_of(policy)->mains[tier]
                               : &classic_of(policy)->guarded[tier];
}

/* Returns the bytes of a segment. */
static uint64_t *segment_bytes(kvt_policy *policy, uint8_t listed)
{
    assert(listed >= 1 && listed <= 3 * TIERS);
    int tier = (listed - 1) % TIERS;
    if (listed <= TIERS) return &classic_of(policy)->window_bytes[tier];
    return listed <= 2 * TIERS ? &classic_of(policy)->main_bytes[tier]
                               : &classic_of(policy)->guarded_bytes[tier];
}

/* Takes an entry and its bytes out of its segment. The bytes counted are those of the tier whose
 * list it was in. */
static void segment_remove(kvt_policy *policy, uint32_t index)
{
    entry *e = entry_at(policy, index);
    if (e->listed == 0) return;
    list_remove(policy, segment_list(policy, e->listed), index);
    assert(*segment_bytes(policy, e->listed) >= e->bytes[(e->listed - 1) % TIERS]);
    *segment_bytes(policy, e->listed) -= e->bytes[(e->listed - 1) % TIERS];
    e->listed = 0;
}

/* Keeps a movable entry in the segment that it belongs to, at the newest end when that changes. The
 * segment is SEGMENT(e), the tier that of the highest bytes. */
static void segment_index(kvt_policy *policy, uint32_t index)
{
    entry *e = entry_at(policy, index);
    if (!entry_is_movable(e)) {
        segment_remove(policy, index);
        return;
    }
    int home = option_home(entry_option(policy, e, e->current));
    uint8_t listed = (uint8_t)(1 + home + (int)SEGMENT(e) * TIERS);
    if (e->listed == listed) return;
    segment_remove(policy, index);
    list_add_newest(policy, segment_list(policy, listed), index);
    e->listed = listed & 15u;
    *segment_bytes(policy, listed) += e->bytes[home];
}

/* Sends the oldest of the protected segment back on probation until the rest fits its share. The
 * protected segment's bytes thus end at most at its share. */
static void segment_relieve(kvt_policy *policy, int tier)
{
    double most = PROTECTED_SHARE * (1.0 - WINDOW_SHARE) * (double)policy->capacity[tier];
    while ((double)classic_of(policy)->guarded_bytes[tier] > most) {
        uint32_t oldest = classic_of(policy)->guarded[tier].oldest;
        assert(oldest != NIL);
        SEGMENT(entry_at(policy, oldest)) = SEGMENT_PROBATION;
        segment_index(policy, oldest);
    }
}

/* Counts the use; an entry on probation becomes protected. A use in the window or the protected
 * segment moves the entry to the newest end. */
static void tinylfu_touch(kvt_policy *policy, uint32_t index)
{
    entry *e = entry_at(policy, index);
    sketch_add(policy, e->handle);
    if (e->listed == 0) return;
    int tier = (e->listed - 1) % TIERS;
    if (SEGMENT(e) == SEGMENT_PROBATION) {
        SEGMENT(e) = SEGMENT_PROTECTED;
        segment_index(policy, index);
        segment_relieve(policy, tier);
        return;
    }
    recency_list *list = segment_list(policy, e->listed);
    list_remove(policy, list, index);
    list_add_newest(policy, list, index);
}

/* Takes one step towards a victim: NIL when the window's oldest went on probation instead. The
 * window's oldest and the one on probation compete when both segments are full; the sketch decides,
 * and a tie keeps the one that is there. */
static uint32_t tinylfu_victim(kvt_policy *policy, int tier)
{
    assert(tier >= 0 && tier < TIERS);
    classic_state *c = classic_of(policy);
    double capacity = (double)policy->capacity[tier];
    uint32_t candidate = policy->lists[tier].oldest;
    uint32_t other = c->mains[tier].oldest;
    if (other == NIL) other = c->guarded[tier].oldest;
    /* The new entry that room is made for will be in the window. */
    bool window_full = (double)c->window_bytes[tier] >= WINDOW_SHARE * capacity;
    if (candidate == NIL || (!window_full && other != NIL)) return other;
    double main = (double)(c->main_bytes[tier] + c->guarded_bytes[tier]);
    entry *e = entry_at(policy, candidate);
    bool room = main + (double)e->bytes[tier] <= (1.0 - WINDOW_SHARE) * capacity;
    bool wins = other != NIL && sketch_uses(policy, e->handle) >
                                    sketch_uses(policy, entry_at(policy, other)->handle);
    if (!room && !wins) return candidate;
    SEGMENT(e) = SEGMENT_PROBATION;
    segment_index(policy, candidate);
    return room ? NIL : other;
}

/* Lets the oldest of the window and of probation compete until one of them is the victim. It ends,
 * because each turn without a victim moves one entry from the window to probation. */
static bool tinylfu_choose(kvt_policy *policy, tentative_plan *work, int tier, step *out)
{
    (void)work;
    uint32_t victim = NIL;
    while (victim == NIL) {
        const classic_state *c = classic_of(policy);
        if (policy->lists[tier].oldest == NIL && c->mains[tier].oldest == NIL &&
            c->guarded[tier].oldest == NIL) {
            return false;
        }
        victim = tinylfu_victim(policy, tier);
    }
    *out = lru_step_down(policy, victim, tier);
    return true;
}

/* A new entry starts in the window. Its counters of an earlier life do not matter: only the sketch
 * remembers uses. */
static bool tinylfu_place(kvt_policy *policy, tentative_plan *work, uint32_t index)
{
    assert(entry_at(policy, index)->listed == 0);
    SEGMENT(entry_at(policy, index)) = SEGMENT_WINDOW;
    return lru_place(policy, work, index);
}

/* A window and a segmented LRU, with a sketch between them. It needs no ghosts: the sketch counts
 * uses of handles that are not stored. */
const policy_ops policy_tinylfu_ops = {.name = "w-tinylfu",
                                       .open = classic_open,
                                       .close = classic_close,
                                       .index = segment_index,
                                       .remove = segment_remove,
                                       .touch = tinylfu_touch,
                                       .choose = tinylfu_choose,
                                       .fallback = lru_fallback,
                                       .place = tinylfu_place,
                                       .improve = classic_improve,
                                       .promote = classic_promote,
                                       .tick = none_tick};
