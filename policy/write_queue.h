/* SPDX-License-Identifier: Apache-2.0 */
/*
 * write_queue.h - what waits to be written to each tier: write prices, how long bytes stay. Thread
 * rule: the caller's lock.
 */
#ifndef POLICY_WRITE_QUEUE_H
#define POLICY_WRITE_QUEUE_H

#include "policy/engine.h"

/* Seconds of a request in one of background work: a prefill server has ten idle cores or more. */
#define BACKGROUND_SHARE 0.1

/* open sets the prices of an idle engine; set_speed and pass keep them true when a bandwidth
 * changes or time passes. */
void write_queue_open(kvt_policy *policy);
void write_queue_set_speed(kvt_policy *policy, int tier); /* to what the tier's facts say now */
/* Adds the seconds of a move's writes (by 1.0), or takes them out again (-1.0). */
void write_queue_add(kvt_policy *policy, const move_in_flight *move, double by);
void write_queue_pass(kvt_policy *policy, double passed);

/* The cost of a byte written to a tier: write_queue_pass, and the queue of this moment. The unit is
 * seconds of a request per byte. */
static inline double engine_write_price(const kvt_policy *policy, int tier)
{
    assert(tier >= 0 && tier < TIERS);
    return policy->write_price[tier] +
           BACKGROUND_SHARE * policy->write_queue_s[tier] * policy->write_byte_s[tier];
}

#endif
