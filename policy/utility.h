/* SPDX-License-Identifier: Apache-2.0 */
/*
 * utility.h - what the files of the utility policy share. Units: f in 1/s, utility, loss, rent and
 * charge in seconds saved per second (s/s), prices in s/s per byte.
 */
#ifndef KVT_POLICY_UTILITY_H
#define KVT_POLICY_UTILITY_H

#include "policy/engine.h"

/* Loss per byte of the cheapest step in a full tier; 0 where another such entry would fit. */
double utility_price(const kvt_policy *policy, int level);

/* Rents as one decision sees them, looked up at most once each. */
typedef struct rents {
    const int64_t *room;   /* the caller's, by level */
    bool giving;           /* room is what may be given away: the watermarks are in it */
    uint64_t free[LEVELS]; /* bytes that pay nothing; 0 in a tier that is tight, or not looked up */
    double price[LEVELS];  /* of a byte in a need above that; below 0: not looked up */
} rents;

static inline rents utility_rents(const int64_t room[LEVELS], bool giving)
{
    return (rents){.room = room, .giving = giving, .price = {-1.0, -1.0, -1.0}};
}

void utility_look_up_rent(kvt_policy *policy, rents *known, int level, uint64_t need);

/* Price times bytes over the tiers that have no room for what an option needs. */
static inline double utility_rent(kvt_policy *policy, rents *known, const uint64_t need[LEVELS])
{
    double rent = 0.0;
    for (int level = 0; level < LEVELS; level++) {
        if (need[level] <= known->free[level]) continue;
        if (known->price[level] < 0.0) utility_look_up_rent(policy, known, level, need[level]);
        if (need[level] > known->free[level]) rent += known->price[level] * (double)need[level];
    }
    return rent;
}

/* What a byte written to each level is charged at this moment. */
typedef struct tolls {
    double per_byte[LEVELS];
} tolls;

static inline tolls utility_tolls(const kvt_policy *policy)
{
    tolls now;
    for (int level = 0; level < LEVELS; level++)
        now.per_byte[level] = engine_write_price(policy, level);
    return now;
}

static inline bool utility_same_variant(const form *a, const form *b)
{
    return a->variant.codec == b->variant.codec && a->variant.mode == b->variant.mode &&
           a->variant.rate == b->variant.rate;
}

/* Whether a stored entry may become this stored option: it fits the tiers, and a lossy form may
 * only change its tier, never its variant. */
static inline bool utility_is_reachable(const kvt_policy *policy, const entry *e, uint8_t option)
{
    const form *to = entry_form(policy, e, option);
    if ((e->barred >> option & 1) != 0 || !to->fits) return false;
    if (e->current == KVT_OPTION_NONE || e->current == option) return true;
    const form *from = entry_form(policy, e, e->current);
    if (from->loss <= 0.0 || (to->made_from >> e->current & 1) != 0) return true;
    return utility_same_variant(from, to);
}

/* What making a stored option's form and writing what it needs is charged, in seconds of a request.
 */
static inline double utility_write_at(const kvt_policy *policy, const tolls *now, const entry *e,
                                      const form *o, const uint64_t need[LEVELS])
{
    double seconds = 0.0;
    bool coded = e->current == KVT_OPTION_NONE ||
                 ((o->made_from >> e->current & 1) == 0 &&
                  !utility_same_variant(entry_form(policy, e, e->current), o));
    if (coded) seconds = BACKGROUND_SHARE * o->encode_seconds;
    for (int level = 0; level < LEVELS; level++)
        seconds += (double)need[level] * now->per_byte[level];
    return seconds;
}

/* Seconds that a placement is expected to serve, over which moves are paid off: the uses to come at
 * the rate now, and no longer than what lies in its tier stays there. to NULL: in any tier. */
double utility_stay(const kvt_policy *policy, const reuse_now *now, const form *to);

/* Sorts some victims anew, within the draft's bound. */
void utility_sweep(kvt_policy *policy, draft *work, uint32_t turns);

/* utility_improve.c */
void utility_improve(kvt_policy *policy, uint32_t index, kvt_plan *plan);
void utility_tick(kvt_policy *policy, draft *work);

#endif
