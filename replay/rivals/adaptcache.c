/* SPDX-License-Identifier: Apache-2.0 */
/*
 * adaptcache.c - AdaptCache's policy as its paper has it (section 2), a rival: whenever a tier
 * overflows, the change that loses least utility per byte freed there, again and again until it
 * fits. Over all entries of the tier, the new one among them:
 *
 *     change   any variant with fewer bytes in the tier, none more above: compressed further, also
 *              from what is lossy already, unless that has dropped tokens which the other holds;
 *              in a lower tier, which counts as free until it overflows in its turn; or evicted
 *     loss     f * (cost(o') - cost(o)) / bytes freed      cost(o) = alpha * loss(o) + T(o)
 *
 * Our reading where the paper says nothing: f is the decayed counter that `utility` uses, so that
 * two engines differ by their decisions alone. An evicted entry costs its recompute. A use below
 * the highest tier offers the entry to the higher ones in its present variant, as if it were new:
 * else nothing would ever come up. An entry moves once in a plan, and on its way down it does not
 * compete in the tier below within the same plan. It is compared for what it lacks: prices,
 * hysteresis, the cost of writing and coding, the rule of prefixes, and a way back from a lossy
 * variant.
 *
 * Coding an entry anew inside a full tier needs room for both variants, so the largest such variant
 * seen is kept free, at most a 64th of the tier.
 */
#include "policy/reuse.h"
#include "policy/room.h"
#include "rivals.h"

#include <assert.h>
#include <string.h>

/* A change that loses nothing sorts before all others, so their logarithms are shifted above it. */
#define ADAPT_STAGING   64     /* share of a tier that is kept free at most */
#define ADAPT_WORTHLESS 0.0    /* key of a change that loses nothing */
#define ADAPT_BASE      0x1p20 /* of the others: they are logarithms and may be negative */

/* Whether option `at` has dropped tokens that another variant may hold. */
static bool adapt_lacks_tokens(const stored_option *now, const stored_option *then, uint8_t at)
{
    if (!kvt_variant_drops_tokens(now->variant) || (then->made_from >> at & 1) != 0) return false;
    return memcmp(&now->variant, &then->variant, sizeof now->variant) != 0;
}

/* Bytes that a change from option `at` frees in a tier; 0 when it is none there. A limit of the
 * tenant or a tier that is too small rules an option out here as well. */
static uint64_t adapt_freed(const kvt_policy *policy, const entry *e, uint8_t at, uint8_t to,
                            int tier)
{
    uint64_t held = entry_bytes(policy, e, at, tier);
    if (to == KVT_OPTION_NONE) return held;
    const stored_option *now = entry_option(policy, e, at);
    const stored_option *then = entry_option(policy, e, to);
    if (to == at || (e->excluded >> to & 1) != 0 || !then->fits) return 0;
    if (then->loss < now->loss) return 0;            /* what is lost does not come back, */
    if (adapt_lacks_tokens(now, then, at)) return 0; /* and dropped tokens in no other variant */
    for (int above = 0; above < tier; above++)
        if (then->bytes[above] > entry_bytes(policy, e, at, above)) return 0;
    return then->bytes[tier] < held ? held - then->bytes[tier] : 0;
}

/* The change from option `at` that loses least per byte freed in a tier, at one use a second. work:
 * only those that fit now. False when there is none. Rates are left out, because one entry has one
 * rate. */
static bool adapt_change(const kvt_policy *policy, const tentative_plan *work, uint32_t index,
                         uint8_t at, int tier, uint8_t *to_out, double *lost_out)
{
    const entry *e = entry_at(policy, index);
    double cost = entry_cost(policy, e, at);
    double least = UNLIMITED;
    for (uint8_t to = 0; to < e->option_count; to++) {
        uint64_t freed = adapt_freed(policy, e, at, to, tier);
        if (freed == 0 || (work != NULL && !tentative_fits(policy, work, index, to))) continue;
        double lost = (entry_cost(policy, e, to) - cost) / (double)freed;
        if (lost >= least) continue;
        least = lost;
        *to_out = to;
    }
    *lost_out = least;
    return least < UNLIMITED;
}

/* Returns the place of a change in the order of its tier. The factor of time is common to all
 * entries. The heap's order thus stays right while time passes, and only a use changes an entry's
 * key. */
static double adapt_key(const kvt_policy *policy, const entry *e, double lost)
{
    if (lost <= 1e-200) return ADAPT_WORTHLESS;
    return ADAPT_BASE + reuse_log_count(policy, e) + number_log2(lost);
}

/* Gives an entry its key in every tier that holds bytes of it. next[] names the change behind the
 * key. */
static void adapt_index(kvt_policy *policy, uint32_t index)
{
    entry *e = entry_at(policy, index);
    bool movable = entry_is_movable(e);
    for (int tier = 0; tier < TIERS; tier++) {
        heap *h = &policy->heaps[tier];
        double lost;
        uint8_t to = KVT_OPTION_NONE;
        if (movable && adapt_change(policy, NULL, index, e->current, tier, &to, &lost))
            heap_set(h, engine_places(policy, tier), index, adapt_key(policy, e, lost));
        else
            heap_remove(h, engine_places(policy, tier), index);
        e->next[tier] = to;
    }
}

/* Uses of a prefix are at least those of its continuation, as the counters promise; nothing else
 * here knows of prefixes. The walk ends at the first prefix that was used as much. */
static void adapt_touch(kvt_policy *policy, uint32_t index)
{
    const entry *e = entry_at(policy, index);
    if (entry_is_movable(e)) adapt_index(policy, index);
    for (uint32_t up = e->parent; up != NIL; up = e->parent) {
        entry *above = entry_at(policy, up);
        if (!reuse_raise(policy, above, e)) return;
        if (entry_is_movable(above)) adapt_index(policy, up);
        e = above;
    }
}

/* An entry that was on the disk before a restart counts as used once. Counters and prefixes are
 * treated as `utility` treats them. */
static void adapt_adopted(kvt_policy *policy, uint32_t index)
{
    reuse_adopt(policy, entry_at(policy, index));
    adapt_touch(policy, index);
}

/* Describes the change of an entry to another option. Its cost is 0: the published greedy knows no
 * budget. */
static step adapt_step(const kvt_policy *policy, uint32_t index, uint8_t to)
{
    assert(to < entry_at(policy, index)->option_count);
    const entry *e = entry_at(policy, index);
    double saved = entry_cost(policy, e, e->current) - entry_cost(policy, e, to);
    return (step){.entry = index, .to = to, .gain = reuse_rate(policy, e) * saved};
}

/* Takes the first of the tier's heap. No other entry is looked at: the key is exact. */
static bool adapt_choose(kvt_policy *policy, tentative_plan *work, int tier, step *out)
{
    (void)work;
    const heap *h = &policy->heaps[tier];
    if (h->count == 0) return false;
    uint32_t index = h->items[0].entry;
    assert(entry_is_movable(entry_at(policy, index)));
    *out = adapt_step(policy, index, entry_at(policy, index)->next[tier]);
    return true;
}

/* Finds the entry's best change that fits as things are. room.c asks for it when the room below
 * could not be made. */
static bool adapt_fallback(kvt_policy *policy, const tentative_plan *work, uint32_t index, int tier,
                           step *out)
{
    double lost;
    uint8_t to = KVT_OPTION_NONE;
    if (!adapt_change(policy, work, index, entry_at(policy, index)->current, tier, &to, &lost))
        return false;
    *out = adapt_step(policy, index, to);
    return true;
}

/* Keeps free what coding an entry like this one anew would need: its largest variant but one. The
 * room kept only grows, since entries of all sizes share the tier. */
static void adapt_stage(kvt_policy *policy, tentative_plan *work, const entry *e)
{
    for (int tier = TIERS - 1; tier >= 0; tier--) {
        uint64_t next = options_second(policy, e->options, e->option_count - 1u, tier);
        uint64_t *kept = &classic_of(policy)->staging[tier];
        if (next > policy->capacity[tier] / ADAPT_STAGING)
            next = policy->capacity[tier] / ADAPT_STAGING;
        if (next > *kept) *kept = next;
        if (work->room[tier] < (int64_t)*kept && policy->heaps[tier].count > 0)
            (void)room_make(policy, work, tier, (int64_t)*kept);
    }
}

/*
 * The greedy from the highest tier down for an entry that wants to be in option *to: it gives way
 * when its own change loses less than that of the tier's first, else that one does. The entry
 * itself is outside the index. False when nothing of it stays, or the plan may not grow.
 *
 * Each turn of the loop moves one entry or gives the new one fewer bytes in the tier, so it ends.
 */
static bool adapt_settle(kvt_policy *policy, tentative_plan *work, uint32_t index, uint8_t *to)
{
    assert(*to != KVT_OPTION_NONE);
    const entry *e = entry_at(policy, index);
    for (int tier = 0; tier < TIERS; tier++) {
        const heap *h = &policy->heaps[tier];
        while (*to != KVT_OPTION_NONE) {
            int64_t need = (int64_t)entry_need(policy, e, *to, tier);
            int64_t kept = h->count > 0 ? (int64_t)classic_of(policy)->staging[tier] : 0;
            double lost;
            uint8_t own = KVT_OPTION_NONE;
            if (need == 0 || work->room[tier] >= need + kept) break;
            bool yields = adapt_change(policy, NULL, index, *to, tier, &own, &lost) &&
                          (h->count == 0 || adapt_key(policy, e, lost) <= h->items[0].key);
            if (!yields && room_make(policy, work, tier, work->room[tier] + 1)) continue;
            if (work->bounded) return false;
            *to = own;
        }
    }
    return *to != KVT_OPTION_NONE;
}

/* The variant that costs least of those allowed. kept_variant: only the entry's present variant, in
 * whatever tier. NONE comes back when no allowed variant is cheaper than recomputing. */
static uint8_t adapt_wanted(const kvt_policy *policy, const entry *e, bool kept_variant)
{
    assert(!kept_variant || e->current != KVT_OPTION_NONE);
    uint8_t best = e->current;
    for (uint8_t option = 1; option < e->option_count; option++) {
        const stored_option *o = entry_option(policy, e, option);
        if ((e->excluded >> option & 1) != 0 || !o->fits) continue;
        if (kept_variant) {
            const kvt_variant *now = &entry_option(policy, e, e->current)->variant;
            if (o->variant.codec != now->codec || o->variant.mode != now->mode) continue;
            if (o->variant.rate != now->rate) continue;
        }
        if (entry_cost(policy, e, option) < entry_cost(policy, e, best)) best = option;
    }
    return best;
}

/* Settles an entry from where it wants to be and adds its move, or takes all back. False leaves the
 * plan empty. */
static bool adapt_move(kvt_policy *policy, tentative_plan *work, uint32_t index, bool kept_variant)
{
    const entry *e = entry_at(policy, index);
    uint8_t to = adapt_wanted(policy, e, kept_variant);
    if (to != e->current) {
        adapt_stage(policy, work, e);
        if (adapt_settle(policy, work, index, &to) && to != e->current &&
            entry_cost(policy, e, to) < entry_cost(policy, e, e->current)) {
            step move = adapt_step(policy, index, to);
            if (tentative_add(policy, work, &move)) return true;
        }
    }
    tentative_cut(policy, work, 0, 0.0);
    return false;
}

/* Settles a new entry from the option that costs least. Its own change competes with those of the
 * entries that are stored. */
static bool adapt_place(kvt_policy *policy, tentative_plan *work, uint32_t index)
{
    assert(entry_at(policy, index)->current == KVT_OPTION_NONE);
    return adapt_move(policy, work, index, false);
}

/* Offers a used entry to the higher tiers in its present variant. An entry that has its cheapest
 * place already plans nothing. */
static void adapt_improve(kvt_policy *policy, uint32_t index, kvt_plan *plan)
{
    assert(entry_is_movable(entry_at(policy, index)));
    tentative_plan work;
    if (adapt_wanted(policy, entry_at(policy, index), true) == entry_at(policy, index)->current)
        return;
    if (!tentative_begin(policy, &work, plan)) return;
    /* Its present bytes stay held until the move is done, so it must not be its own victim. */
    tentative_exclude(policy, index);
    (void)adapt_move(policy, &work, index, true);
    tentative_include(policy, index);
    tentative_end(policy, &work);
}

/* AdaptCache's greedy as published. It counts uses without learning, and keeps heaps because its
 * keys do not age. */
const policy_ops policy_adaptcache_ops = {
    .name = "adaptcache",
    .open = classic_open,
    .close = classic_close,
    .reason = "It is where its tiers' greedy left it, which moves the least loss per byte first.",
    .counts = true,
    .remembers = true,
    .heaps = true,
    .index = adapt_index,
    .remove = leaf_remove,
    .touch = adapt_touch,
    .choose = adapt_choose,
    .fallback = adapt_fallback,
    .place = adapt_place,
    .adopted = adapt_adopted,
    .improve = adapt_improve,
    .tick = none_tick};
