/* SPDX-License-Identifier: Apache-2.0 */
/*
 * classic.c - baselines from the literature behind the interface of the engine: fifo, lru-twice,
 * lfu, gdsf, pensieve, sieve, s3fifo.
 *
 * Each keeps, for every tier, an order of the entries whose highest bytes are there. Room is made
 * as lru makes it: the victim moves to the next tier below, or out of the lowest. They store one
 * variant, config.variant, know nothing of prefixes, and leave the watermarks alone.
 *
 *     fifo      order of arrival
 *     lru-twice lru, but an entry is let in only when it is remembered: its second use (the rule of
 *               KVBM and HiCache); what the first use writes is the ghost, which costs no bytes
 *     lfu       least often used since it came in; ties by recency
 *     gdsf      GreedyDual-Size-Frequency (Cherkasova 1998): L + uses * recompute seconds / bytes,
 *               L being the last victim's value
 *     pensieve  Pensieve (EuroSys '25): least recompute seconds over idle time. The order changes
 *               with time between entries of unlike cost only: one list per half octave of cost
 *     sieve     SIEVE (NSDI '24): one list, a visited bit, a hand from the oldest to the newest
 *     s3fifo    S3-FIFO (SOSP '23): a small queue of a tenth of the tier, a main queue with up to 3
 *               second chances, ghosts of nine tenths; two uses in the small queue lead to main
 *
 * The numbers that a policy needs of an entry are kept in its counters, which these policies do not
 * count with otherwise.
 *
 * No policy of this file looks at losses, options or prices. Questions that the papers leave to the
 * implementer (several tiers, sizes that differ, failed moves) are solved in the same way for all:
 * a victim moves down, bytes count and not entries, and an entry that comes back counts as just
 * inserted, but in lists that are in order of use.
 */
#include "rivals.h"

#include <assert.h>
#include <string.h>

/* Shares and counts of the S3-FIFO paper: the small queue's and the ghosts' share of a tier, the
 * second chances in main, and the uses that lead there. */
#define S3_SMALL_SHARE 0.1
#define S3_GHOST_SHARE 0.9
#define S3_CHANCES     3.0f
#define S3_TO_MAIN     2.0f

/* The counters of an entry by what they mean here. */
#define USES(e) ((e)->count[0])
#define MARK(e) ((e)->count[1])

/* Returns the highest tier that holds bytes of a stored entry. The caller has made sure that the
 * entry is stored. */
static int classic_home(const kvt_policy *policy, const entry *e)
{
    assert(e->current != KVT_OPTION_NONE);
    return option_home(entry_option(policy, e, e->current));
}

/* ---- policies with a list ---- */

/* Keeps an entry in the list of its tier, in the order of coming in. An entry that moves to another
 * tier is the newest there. */
static void fifo_index(kvt_policy *policy, uint32_t index)
{
    entry *e = entry_at(policy, index);
    if (!entry_is_movable(e)) {
        lru_remove(policy, index);
        return;
    }
    uint8_t listed = (uint8_t)(classic_home(policy, e) + 1);
    if (e->listed == listed) return;
    lru_remove(policy, index);
    list_add_newest(policy, &policy->lists[listed - 1], index);
    e->listed = listed & 15u;
}

/* A use changes nothing. fifo keeps the order of arrival, so there is nothing to count. */
static void classic_ignore(kvt_policy *policy, uint32_t index)
{
    (void)policy;
    (void)index;
}

/* A use in a lower tier brings an entry up only where there is room: the papers of these policies
 * know one tier, and no promotion that drives others out. The bytes below stay until the move is
 * committed. */
void classic_promote(kvt_policy *policy, uint32_t index, int top, kvt_plan *plan)
{
    assert(entry_is_movable(entry_at(policy, index)));
    const entry *e = entry_at(policy, index);
    int home = classic_home(policy, e);
    tentative_plan work;
    if (home <= top || !tentative_begin(policy, &work, plan)) return;
    for (int tier = top; tier < home; tier++) {
        uint8_t option = lru_option_at(policy, e, tier);
        step move = {.entry = index, .to = option};
        if (option != KVT_OPTION_NONE && tentative_add(policy, &work, &move)) break;
    }
    tentative_end(policy, &work);
}

/* A use is a reason to be in any tier. */
void classic_improve(kvt_policy *policy, uint32_t index, kvt_plan *plan)
{
    classic_promote(policy, index, 0, plan);
}

/* First in, first out, in every tier. The simplest order there is; every other policy of this file
 * has to beat it. */
const policy_ops policy_fifo_ops = {.name = "fifo",
                                    .index = fifo_index,
                                    .remove = lru_remove,
                                    .touch = classic_ignore,
                                    .choose = lru_choose,
                                    .fallback = lru_fallback,
                                    .place = lru_place,
                                    .improve = classic_improve,
                                    .promote = classic_promote,
                                    .tick = none_tick};

/* ---- lru with admission by the second use ---- */

/* Stores an entry at its second use. An entry at its first use is refused and remembered, counter
 * and all. */
static bool twice_place(kvt_policy *policy, tentative_plan *work, uint32_t index)
{
    entry *e = entry_at(policy, index);
    return USES(e) >= 2.0f && lru_place(policy, work, index);
}

/* Counts to two and moves the entry to the newest end. Uses beyond the second say nothing to this
 * policy. */
static void twice_touch(kvt_policy *policy, uint32_t index)
{
    assert(index < policy->entries_used);
    entry *e = entry_at(policy, index);
    if (USES(e) < 2.0f) USES(e) += 1.0f;
    lru_touch(policy, index);
}

/* LRU that lets an entry in at its second use. It is the only list policy that remembers, because
 * its rule is about entries that are not stored. */
const policy_ops policy_lru_twice_ops = {.name = "lru-twice",
                                         .remembers = true,
                                         .index = lru_index,
                                         .remove = lru_remove,
                                         .touch = twice_touch,
                                         .choose = lru_choose,
                                         .fallback = lru_fallback,
                                         .place = twice_place,
                                         .improve = lru_improve,
                                         .promote = lru_promote,
                                         .tick = none_tick};

/* The victim is the first of its tier's heap; ties go by the entry's index, which heap.h
 * promises. */
/* ---- policies with a value in a heap ---- */

/* Keeps an entry in the heap of its tier by a value, and out of the others. A value must not be
 * NaN, which has no place in an order. */
static void heap_index(kvt_policy *policy, uint32_t index, double value)
{
    assert(value == value);
    const entry *e = entry_at(policy, index);
    int home = entry_is_movable(e) ? classic_home(policy, e) : TIERS;
    for (int tier = 0; tier < TIERS; tier++) {
        heap *h = &policy->heaps[tier];
        if (tier == home)
            heap_set(h, engine_places(policy, tier), index, value);
        else
            heap_remove(h, engine_places(policy, tier), index);
    }
}

/* Uses since it came in; the order of use decides between equals. It would take 2^44 uses of the
 * engine for recency to outweigh one use of the entry. */
static void lfu_index(kvt_policy *policy, uint32_t index)
{
    const entry *e = entry_at(policy, index);
    heap_index(policy, index, (double)USES(e) + (double)e->recency * 0x1p-44);
}

/* Counts a use. */
static void lfu_touch(kvt_policy *policy, uint32_t index)
{
    assert(policy->ops->heaps);
    entry *e = entry_at(policy, index);
    /* A count of 2^20 leaves 33 bits for the order among equals. */
    if (USES(e) < 0x1p20f) USES(e) += 1.0f;
    lfu_index(policy, index);
}

/* Least often used since it came in. Uses never fade, so an entry that was popular once stays long:
 * the weakness that the others address. */
const policy_ops policy_lfu_ops = {.name = "lfu",
                                   .heaps = true,
                                   .index = lfu_index,
                                   .remove = leaf_remove,
                                   .touch = lfu_touch,
                                   .choose = leaf_choose,
                                   .fallback = lru_fallback,
                                   .place = lru_place,
                                   .improve = classic_improve,
                                   .promote = classic_promote,
                                   .tick = none_tick};

/* The value is a double; two of the entry's floats hold it. It is kept, because a later L must not
 * change what an entry was worth when it was used. */
static double gdsf_value(const entry *e)
{
    double value;
    memcpy(&value, &e->count[1], sizeof value);
    return value;
}

/* Keeps an entry in the heap of its tier by its value. */
static void gdsf_index(kvt_policy *policy, uint32_t index)
{
    heap_index(policy, index, gdsf_value(entry_at(policy, index)));
}

/* Works an entry's value out: L, and uses times recompute seconds per byte. The bytes are those of
 * its first option that holds any, in all tiers: the variant that is stored. */
static void gdsf_touch(kvt_policy *policy, uint32_t index)
{
    entry *e = entry_at(policy, index);
    if (USES(e) < 0x1p24f) USES(e) += 1.0f;
    uint64_t bytes = 0;
    for (uint8_t option = 1; option < e->option_count && bytes == 0; option++) {
        const stored_option *o = entry_option(policy, e, option);
        bytes = o->bytes[0] + o->bytes[1] + o->bytes[2];
    }
    if (bytes == 0) bytes = 1;
    double worth = (double)USES(e) * (double)e->recompute_seconds / (double)bytes;
    double value = classic_of(policy)->inflation + worth;
    assert(worth >= 0.0);
    memcpy(&e->count[1], &value, sizeof value);
    gdsf_index(policy, index);
}

/* Takes the least value. L rises with what is evicted, not with what moves down. An entry that
 * moves down keeps its value, so it says nothing of what is worth storing. */
static bool gdsf_choose(kvt_policy *policy, tentative_plan *work, int tier, step *out)
{
    assert(classic_of(policy)->inflation >= 0.0);
    if (!leaf_choose(policy, work, tier, out)) return false;
    if (out->to == KVT_OPTION_NONE)
        classic_of(policy)->inflation = gdsf_value(entry_at(policy, out->entry));
    return true;
}

/* GreedyDual-Size-Frequency by recompute seconds. The recompute seconds stand for the cost of the
 * paper, and the bytes of the stored variant for its size. */
const policy_ops policy_gdsf_ops = {.name = "gdsf",
                                    .open = classic_open,
                                    .close = classic_close,
                                    .heaps = true,
                                    .index = gdsf_index,
                                    .remove = leaf_remove,
                                    .touch = gdsf_touch,
                                    .choose = gdsf_choose,
                                    .fallback = lru_fallback,
                                    .place = lru_place,
                                    .improve = classic_improve,
                                    .promote = classic_promote,
                                    .tick = none_tick};

/* ---- Pensieve ---- */

/* Sorts entries into classes of half octaves of recompute seconds. Inside a class the oldest entry
 * has the least value, give or take half an octave of cost. */
static uint32_t pensieve_class(const entry *e)
{
    double cost = (double)e->recompute_seconds;
    if (!(cost > 0x1p-16)) return 0;
    double octaves = 2.0 * (number_log2(cost) + 16.0);
    return octaves < PENSIEVE_CLASSES - 1 ? (uint32_t)octaves : PENSIEVE_CLASSES - 1;
}

/* The class whose list holds an entry: its seconds may change while it is listed. */
#define LISTED_CLASS(e) ((e)->next[0])

/* Takes an entry out of its list. */
static void pensieve_remove(kvt_policy *policy, uint32_t index)
{
    entry *e = entry_at(policy, index);
    if (e->listed == 0) return;
    assert(e->listed <= TIERS);
    list_remove(policy, &classic_of(policy)->by_cost[e->listed - 1][LISTED_CLASS(e)], index);
    e->listed = 0;
}

/* In order of use but for entries that come back from a failed move, which count as just used.
 * `listed` is the tier and one; LISTED_CLASS the list inside it. */
static void pensieve_index(kvt_policy *policy, uint32_t index)
{
    entry *e = entry_at(policy, index);
    if (!entry_is_movable(e)) {
        pensieve_remove(policy, index);
        return;
    }
    uint8_t listed = (uint8_t)(classic_home(policy, e) + 1);
    if (e->listed == listed) return;
    pensieve_remove(policy, index);
    LISTED_CLASS(e) = (uint8_t)pensieve_class(e);
    list_add_newest(policy, &classic_of(policy)->by_cost[listed - 1][LISTED_CLASS(e)], index);
    e->listed = listed & 15u;
}

/* Moves an entry to the newest end of its class, which is that of its present seconds. An entry
 * outside every list, in flight or pinned, is not touched. */
static void pensieve_touch(kvt_policy *policy, uint32_t index)
{
    entry *e = entry_at(policy, index);
    if (e->listed == 0) return;
    recency_list *lists = classic_of(policy)->by_cost[e->listed - 1];
    list_remove(policy, &lists[LISTED_CLASS(e)], index);
    LISTED_CLASS(e) = (uint8_t)pensieve_class(e);
    list_add_newest(policy, &lists[LISTED_CLASS(e)], index);
}

/* Takes the least recompute seconds per second without a use, among the oldest of all classes. One
 * look at each class replaces a sort of all entries by a value that changes with time. */
static bool pensieve_choose(kvt_policy *policy, tentative_plan *work, int tier, step *out)
{
    assert(tier >= 0 && tier < TIERS);
    (void)work;
    uint32_t victim = NIL;
    double least = UNLIMITED;
    for (uint32_t class = 0; class < PENSIEVE_CLASSES; class ++) {
        uint32_t oldest = classic_of(policy)->by_cost[tier][class].oldest;
        if (oldest == NIL) continue;
        const entry *e = entry_at(policy, oldest);
        double idle = (double)(policy->now_ns - e->last_access_ns) * 1e-9 + 1e-9;
        double value = (double)e->recompute_seconds / idle;
        if (value >= least) continue;
        least = value;
        victim = oldest;
    }
    if (victim == NIL) return false;
    *out = lru_step_down(policy, victim, tier);
    return true;
}

/* Least recompute seconds over idle time. */
const policy_ops policy_pensieve_ops = {.name = "pensieve",
                                        .open = classic_open,
                                        .close = classic_close,
                                        .index = pensieve_index,
                                        .remove = pensieve_remove,
                                        .touch = pensieve_touch,
                                        .choose = pensieve_choose,
                                        .fallback = lru_fallback,
                                        .place = lru_place,
                                        .improve = lru_improve,
                                        .promote = lru_promote,
                                        .tick = none_tick};

/* The hand is an entry's index, so every removal has to look whether it points there. */
/* ---- SIEVE ---- */

/* Takes an entry out of its queue; a hand that points at it goes on. */
static void sieve_remove(kvt_policy *policy, uint32_t index)
{
    const entry *e = entry_at(policy, index);
    if (e->listed != 0 && classic_of(policy)->hands[e->listed - 1] == index) {
        classic_of(policy)->hands[e->listed - 1] = e->link[0].newer;
    }
    lru_remove(policy, index);
}

/* Keeps an entry in the queue of its tier, in the order of coming in. sieve_remove has to run
 * before the entry leaves its queue, because fifo_index knows no hand. */
static void sieve_index(kvt_policy *policy, uint32_t index)
{
    const entry *e = entry_at(policy, index);
    bool stays = entry_is_movable(e) && e->listed == classic_home(policy, e) + 1;
    if (!stays && e->listed != 0) sieve_remove(policy, index);
    fifo_index(policy, index);
}

/* Marks a stored entry as visited. An entry that is not in a queue has no mark, and gets none by
 * being put back. */
static void sieve_touch(kvt_policy *policy, uint32_t index)
{
    entry *e = entry_at(policy, index);
    MARK(e) = e->listed != 0 ? 1.0f : 0.0f;
}

/* Moves the hand from the oldest entry to newer ones, and takes marks away as it passes. It stops
 * at the first entry that was not visited since it last passed; that one is the victim. The hand
 * stays where it stopped; sieve_remove moves it on when the victim leaves. */
static bool sieve_choose(kvt_policy *policy, tentative_plan *work, int tier, step *out)
{
    (void)work;
    if (policy->lists[tier].oldest == NIL) return false;
    uint32_t *hand = &classic_of(policy)->hands[tier];
    if (*hand == NIL) *hand = policy->lists[tier].oldest;
    while (MARK(entry_at(policy, *hand)) > 0.0f) {
        assert(entry_at(policy, *hand)->listed == tier + 1);
        entry *e = entry_at(policy, *hand);
        MARK(e) = 0.0f;
        *hand = e->link[0].newer != NIL ? e->link[0].newer : policy->lists[tier].oldest;
    }
    *out = lru_step_down(policy, *hand, tier);
    return true;
}

/* One queue, one bit, one hand. */
const policy_ops policy_sieve_ops = {.name = "sieve",
                                     .open = classic_open,
                                     .close = classic_close,
                                     .index = sieve_index,
                                     .remove = sieve_remove,
                                     .touch = sieve_touch,
                                     .choose = sieve_choose,
                                     .fallback = lru_fallback,
                                     .place = lru_place,
                                     .improve = classic_improve,
                                     .promote = classic_promote,
                                     .tick = none_tick};

/* ---- S3-FIFO: listed is 1 + tier for the small queue, 1 + TIERS + tier for main ---- */

/* Returns the queue of a number. */
static recency_list *s3_list(kvt_policy *policy, uint8_t listed)
{
    assert(listed >= 1 && listed <= 2 * TIERS);
    return listed <= TIERS ? &policy->lists[listed - 1]
                           : &classic_of(policy)->mains[listed - 1 - TIERS];
}

/* Takes an entry out of its queue, and its bytes out of main's. */
static void s3_remove(kvt_policy *policy, uint32_t index)
{
    entry *e = entry_at(policy, index);
    if (e->listed == 0) return;
    int tier = (e->listed - 1) % TIERS;
    assert(e->listed <= TIERS || classic_of(policy)->main_bytes[tier] >= e->bytes[tier]);
    list_remove(policy, s3_list(policy, e->listed), index);
    if (e->listed > TIERS) classic_of(policy)->main_bytes[tier] -= e->bytes[tier];
    e->listed = 0;
}

/* MARK says where the entry belongs: 1 main, else the small queue. Bytes of main are counted here
 * and in s3_remove alone. */
static void s3_index(kvt_policy *policy, uint32_t index)
{
    entry *e = entry_at(policy, index);
    if (!entry_is_movable(e)) {
        s3_remove(policy, index);
        return;
    }
    int home = classic_home(policy, e);
    uint8_t listed = (uint8_t)(1 + home + (MARK(e) > 0.0f ? TIERS : 0));
    if (e->listed == listed) return;
    s3_remove(policy, index);
    list_add_newest(policy, s3_list(policy, listed), index);
    e->listed = listed & 15u;
    if (listed > TIERS) classic_of(policy)->main_bytes[home] += e->bytes[home];
}

/* Counts up to three uses of a stored entry. An entry outside the queues counts no use: it may be a
 * ghost. */
static void s3_touch(kvt_policy *policy, uint32_t index)
{
    entry *e = entry_at(policy, index);
    if (e->listed != 0 && USES(e) < S3_CHANCES) USES(e) += 1.0f;
}

/* Takes the oldest of the small queue: used twice, it goes to main and NIL is returned; else it is
 * the victim. The move to main costs no bytes: both queues are of the same tier. */
static uint32_t s3_from_small(kvt_policy *policy, int tier)
{
    uint32_t oldest = policy->lists[tier].oldest;
    if (oldest == NIL) return NIL;
    entry *e = entry_at(policy, oldest);
    if (USES(e) < S3_TO_MAIN) return oldest;
    MARK(e) = 1.0f;
    assert(e->listed == tier + 1);
    s3_index(policy, oldest);
    return NIL;
}

/* Takes the oldest of main that was not used since its last round. An entry that was used gets
 * another round for one of its chances, at the newest end. It ends, because each round takes a
 * chance away. */
static uint32_t s3_from_main(kvt_policy *policy, int tier)
{
    recency_list *list = &classic_of(policy)->mains[tier];
    while (list->oldest != NIL) {
        uint32_t oldest = list->oldest;
        entry *e = entry_at(policy, oldest);
        if (USES(e) < 1.0f) return oldest;
        USES(e) -= 1.0f;
        list_remove(policy, list, oldest);
        list_add_newest(policy, list, oldest);
    }
    return NIL;
}

/* Takes the victim from main when main is larger than its share, else from the small queue. NIL
 * without a victim cannot last: each turn moves an entry to main, takes a chance, or finds one. */
static bool s3_choose(kvt_policy *policy, tentative_plan *work, int tier, step *out)
{
    assert(tier >= 0 && tier < TIERS);
    (void)work;
    double main_limit = (1.0 - S3_SMALL_SHARE) * (double)policy->capacity[tier];
    uint32_t victim = NIL;
    while (victim == NIL) {
        bool from_main = (double)classic_of(policy)->main_bytes[tier] > main_limit ||
                         policy->lists[tier].oldest == NIL;
        if (from_main && classic_of(policy)->mains[tier].oldest == NIL) return false;
        victim = from_main ? s3_from_main(policy, tier) : s3_from_small(policy, tier);
    }
    *out = lru_step_down(policy, victim, tier);
    return true;
}

/* Bytes of an entry in the variant that these policies store. */
static uint64_t classic_size(const kvt_policy *policy, const entry *e)
{
    for (int tier = 0; tier < TIERS; tier++) {
        uint8_t option = lru_option_at(policy, e, tier);
        if (option == KVT_OPTION_NONE) continue;
        const stored_option *o = entry_option(policy, e, option);
        return o->bytes[0] + o->bytes[1] + o->bytes[2];
    }
    return 0;
}

/* A ghost is young while fewer bytes than nine tenths of the tiers have become ghosts since. It
 * keeps in bytes[0], which nothing stored needs, how many had been when it left. */
static bool s3_place(kvt_policy *policy, tentative_plan *work, uint32_t index)
{
    entry *e = entry_at(policy, index);
    double capacity = 0.0;
    for (int tier = 0; tier < TIERS; tier++)
        capacity += (double)policy->capacity[tier];
    double since = (double)(classic_of(policy)->ghost_bytes - e->bytes[0]);
    bool known = MARK(e) < 0.0f && since <= S3_GHOST_SHARE * capacity;
    MARK(e) = known ? 1.0f : 0.0f;
    USES(e) = 0.0f;
    e->bytes[0] = 0;
    return lru_place(policy, work, index);
}

/* Only what leaves the small queue is remembered; -1 marks it. */
static void s3_leaving(kvt_policy *policy, uint32_t index)
{
    entry *e = entry_at(policy, index);
    if (MARK(e) > 0.0f) {
        MARK(e) = 0.0f;
        return;
    }
    MARK(e) = -1.0f;
    classic_of(policy)->ghost_bytes += classic_size(policy, e);
    e->bytes[0] = classic_of(policy)->ghost_bytes;
}

/* A small and a main queue, with ghosts. */
const policy_ops policy_s3fifo_ops = {.name = "s3fifo",
                                      .open = classic_open,
                                      .close = classic_close,
                                      .remembers = true,
                                      .index = s3_index,
                                      .remove = s3_remove,
                                      .touch = s3_touch,
                                      .choose = s3_choose,
                                      .fallback = lru_fallback,
                                      .place = s3_place,
                                      .leaving = s3_leaving,
                                      .improve = classic_improve,
                                      .promote = classic_promote,
                                      .tick = none_tick};
