/*
 * utility.h - what the files of the utility policy share. Units: f in 1/s, utility, loss, rent and
 * charge in seconds saved per second (s/s), prices in s/s per byte.
 */
#ifndef KVT_POLICY_UTILITY_H
#define KVT_POLICY_UTILITY_H

#include "policy/engine.h"

/* Loss per byte of the cheapest step in a full tier; 0 where another such entry would fit. */
double utility_price(const kvt_policy *policy, int level);

/* Prices as one decision sees them, looked up at most once each. */
typedef struct rents {
    int64_t room[LEVELS];
    bool tight[LEVELS];   /* no more room than the watermarks keep free */
    double price[LEVELS]; /* below 0: not looked up yet */
} rents;

rents utility_rents(const kvt_policy *policy, const int64_t room[LEVELS]);

/* Price times bytes over the tiers that have no room for an option. */
double utility_rent(const kvt_policy *policy, rents *known, const entry *e, uint8_t option);

/* What making an option's form and writing it is charged, in seconds of a request. */
double utility_write_seconds(const kvt_policy *policy, const entry *e, uint8_t option);

/* Seconds that a placement is expected to last: moves are paid off over this time. */
double utility_stay_seconds(const kvt_policy *policy);

/* Whether a stored entry may become this stored option: it fits the tiers, and a lossy form may
 * only change its tier, never its variant. */
bool utility_is_reachable(const kvt_policy *policy, const entry *e, uint8_t option);

/* utility_improve.c */
void utility_improve(kvt_policy *policy, uint32_t index, kvt_plan *plan);
void utility_tick(kvt_policy *policy, draft *work);

#endif
