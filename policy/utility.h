/* SPDX-License-Identifier: Apache-2.0 */
/*
 * utility.h - what the files of the utility policy share: the prices of room and of writing as one
 * decision sees them, and which options an entry can reach.
 *
 * Units: f in uses per second; utility, loss and costs in seconds saved per second (s/s); prices in
 * s/s per byte. A shadow price is what the next victim of a tier would lose per byte: an entry that
 * comes in has to be worth it. A write cost is the time that a written byte takes others.
 */
#ifndef KVT_POLICY_UTILITY_H
#define KVT_POLICY_UTILITY_H

#include "policy/engine.h"
#include "policy/reuse.h"
#include "policy/write_queue.h"

#include <assert.h>

extern const policy_ops policy_utility_ops;

/* Loss per byte of the cheapest step in a full tier; 0 where another such entry would fit. A lookup
 * changes nothing. */
double utility_price(const kvt_policy *policy, int tier);

/* Shadow prices as one decision sees them; each is looked up once at most. A tier is either free or
 * priced for one decision: bytes up to free[] cost nothing, a need beyond that pays the price for
 * all of its bytes. */
typedef struct shadow_prices {
    const int64_t *room;  /* the caller's, by tier */
    bool giving;          /* room may be given away whole: the watermarks are taken off */
    uint64_t free[TIERS]; /* bytes that pay nothing; 0 in a tier that is tight, or not looked up */
    double price[TIERS];  /* of a byte in a need above that; below 0: not looked up */
} shadow_prices;

/* Returns what a byte costs in a tier that is full: what the next step there would lose; 0 where no
 * entry can give way. Changes nothing. */
double utility_root_price(const kvt_policy *policy, const int64_t room[TIERS], int tier);

/* Begins a decision: no price is looked up yet. */
static inline shadow_prices utility_prices(const int64_t room[TIERS], bool giving)
{
    return (shadow_prices){.room = room, .giving = giving, .price = {-1.0, -1.0, -1.0}};
}

/* Fills in free or price of one tier, for a need of so many bytes there. utility_shadow_cost calls
 * it on first need. */
void utility_look_up_price(kvt_policy *policy, shadow_prices *known, int tier, uint64_t need);

/* Price times bytes over the tiers that have no room for what an option needs. The unit is seconds
 * saved per second. */
static inline double utility_shadow_cost(kvt_policy *policy, shadow_prices *known,
                                         const uint64_t need[TIERS])
{
    double shadow_cost = 0.0;
    for (int tier = 0; tier < TIERS; tier++) {
        if (need[tier] <= known->free[tier]) continue;
        if (known->price[tier] < 0.0) utility_look_up_price(policy, known, tier, need[tier]);
        if (need[tier] > known->free[tier]) shadow_cost += known->price[tier] * (double)need[tier];
    }
    return shadow_cost;
}

/* The cost of a byte written to each tier at this moment, in seconds of a request per byte. */
typedef struct write_costs {
    double per_byte[TIERS];
} write_costs;

/* Reads the write prices once for a decision. */
static inline write_costs utility_write_costs(const kvt_policy *policy)
{
    write_costs now;
    for (int tier = 0; tier < TIERS; tier++)
        now.per_byte[tier] = engine_write_price(policy, tier);
    return now;
}

/* Says whether two options hold the same bytes in other tiers. */
static inline bool utility_same_variant(const stored_option *a, const stored_option *b)
{
    return a->variant.codec == b->variant.codec && a->variant.mode == b->variant.mode &&
           a->variant.rate == b->variant.rate;
}

/* Whether a stored entry may become this stored option: it fits the tiers, and a lossy option may
 * only change its tier, never its variant. An exact entry may become anything that fits; made_from
 * names the options that a lossy one nests. */
static inline bool utility_is_reachable(const kvt_policy *policy, const entry *e, uint8_t option)
{
    const stored_option *to = entry_option(policy, e, option);
    if ((e->excluded >> option & 1) != 0 || !to->fits) return false;
    if (e->current == KVT_OPTION_NONE || e->current == option) return true;
    const stored_option *from = entry_option(policy, e, e->current);
    if (from->loss <= 0.0 || (to->made_from >> e->current & 1) != 0) return true;
    return utility_same_variant(from, to);
}

/* Seconds of a use that a step to a stored option adds because it is coded from a lossy one: the
 * losses of both add up. Within a codec nothing is lost twice. */
static inline double utility_again(const kvt_policy *policy, const entry *e,
                                   const stored_option *to, double alpha)
{
    if (e->current == KVT_OPTION_NONE) return 0.0;
    const stored_option *from = entry_option(policy, e, e->current);
    if (from->loss <= 0.0 || from->variant.codec == to->variant.codec) return 0.0;
    return alpha * (double)e->sensitivity * from->loss;
}

/* Returns the cost of making a stored option and writing what it needs, in seconds of a request. An
 * entry that keeps its variant, or its codec as planes do that are dropped, is not coded. */
static inline double utility_write_at(const kvt_policy *policy, const write_costs *now,
                                      const entry *e, const stored_option *o,
                                      const uint64_t need[TIERS])
{
    double seconds = 0.0;
    bool coded = e->current == KVT_OPTION_NONE;
    if (!coded) {
        const stored_option *from = entry_option(policy, e, e->current);
        const bool nested =
            (o->made_from >> e->current & 1) != 0 && from->variant.codec == o->variant.codec;
        coded = !nested && !utility_same_variant(from, o);
    }
    if (coded) seconds = BACKGROUND_SHARE * o->encode_seconds;
    for (int tier = 0; tier < TIERS; tier++)
        seconds += (double)need[tier] * now->per_byte[tier];
    return seconds;
}

/* Seconds that a placement is expected to serve, over which moves are paid off: the uses to come at
 * the rate now, and no longer than what lies in its tier stays there. to NULL: in any tier. */
double utility_stay(const kvt_policy *policy, const reuse_now *now, const stored_option *to);

/* Sorts some victims anew, within the plan's bound. */
void utility_sweep(kvt_policy *policy, tentative_plan *work, uint32_t turns);

/* utility_place.c: plans a new entry and its room. False leaves the plan empty. */
bool utility_place(kvt_policy *policy, tentative_plan *work, uint32_t index);

/* utility_improve.c */
/* improve plans a promotion of one entry that was just used, promote of one whose use is expected
 * now, no higher than to the tier `top`; tick makes room down to the
 * watermarks, and looks for improvements when no tier needed any. */
void utility_improve(kvt_policy *policy, uint32_t index, kvt_plan *plan);
void utility_promote(kvt_policy *policy, uint32_t index, int top, kvt_plan *plan);
void utility_tick(kvt_policy *policy, tentative_plan *work);

#endif
