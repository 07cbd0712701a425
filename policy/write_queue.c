/* SPDX-License-Identifier: Apache-2.0 */
/*
 * write_queue.c - how much writing waits in each tier, what a byte written there costs,
 * and how long a byte stays there.
 *
 *     queue = seconds of the moves planned so far, less the time that has passed since
 *     price = BACKGROUND_SHARE * (1 / (1 - busy) + queue) * seconds per byte
 *
 * The engine counts its own moves at the tier's bandwidth. It does not ask a device, and it plans
 * every move whose price an entry pays: how much may wait at most is for the executor to say. Reads
 * of moves are not counted here; a get that waits behind them is the executor's to avoid.
 */
#include "policy/write_queue.h"

#include <assert.h>

/* Seconds between two looks at what was written and released; shorter spans would be noise. */
#define QUEUE_LOOK_SECONDS   1.0
#define QUEUE_HALF_LIFE      37.5   /* seconds; of the busy share */
#define QUEUE_LEFT_HALF_LIFE 1200.0 /* seconds; of what leaves a tier */
#define QUEUE_FULL           0.95   /* a busy share counts as at most this */

/* Sets what a byte costs for the tier's busy share: next to nothing in an idle tier. The factor 1 /
 * (1 - busy) is the mean wait of a queue with one server. */
static void queue_set_price(kvt_policy *policy, int tier)
{
    double busy = policy->write_busy[tier] < QUEUE_FULL ? policy->write_busy[tier] : QUEUE_FULL;
    assert(busy >= 0.0 && busy < 1.0);
    policy->write_price[tier] = BACKGROUND_SHARE * policy->write_byte_s[tier] / (1.0 - busy);
}

/* Changes the seconds that wait; rounding never leaves less than none. */
static void queue_set(kvt_policy *policy, int tier, double seconds)
{
    policy->write_queue_s[tier] = seconds > 0.0 ? seconds : 0.0;
}

/* The bytes that wait stay the same, so their seconds change with the speed. A tier whose bandwidth
 * is not known has writes that cost nothing. */
void write_queue_set_speed(kvt_policy *policy, int tier)
{
    double bytes_per_s = policy->config.tiers[tier + 1].write_bytes_per_s;
    double before = policy->write_byte_s[tier];
    double after = bytes_per_s > 0.0 ? 1.0 / bytes_per_s : 0.0;
    policy->write_byte_s[tier] = after;
    if (before > 0.0) {
        queue_set(policy, tier, policy->write_queue_s[tier] * after / before);
        policy->write_busy[tier] *= after / before;
    }
    queue_set_price(policy, tier);
}

/* Sets the prices of tiers in which nothing waits. Until something has left a tier its bytes count
 * as staying for ever. */
void write_queue_open(kvt_policy *policy)
{
    for (int tier = 0; tier < TIERS; tier++) {
        policy->stay[tier] = UNLIMITED;
        write_queue_set_speed(policy, tier);
    }
}

/* Only bytes that are written count; those that stay in place take no time. */
void write_queue_add(kvt_policy *policy, const move_in_flight *move, double by)
{
    for (int tier = 0; tier < TIERS; tier++) {
        assert(move->to_bytes[tier] >= move->kept[tier]);
        uint64_t written = move->to_bytes[tier] - move->kept[tier];
        if (written == 0) continue;
        double seconds = by * (double)written * policy->write_byte_s[tier];
        queue_set(policy, tier, policy->write_queue_s[tier] + seconds);
    }
}

/*
 * Measures how long a byte stays in each tier: by Little's law what is stored over what leaves in
 * a second. Until something has left, and for as long as no more leaves, it stays as long as it is
 * wanted.
 *
 * seen is in seconds since the last look.
 */
static void queue_measure_stay(kvt_policy *policy, double seen)
{
    double kept = number_exp2(-seen / QUEUE_LEFT_HALF_LIFE);
    for (int tier = 0; tier < TIERS; tier++) {
        uint64_t left = policy->left[tier] - policy->left_seen[tier];
        policy->left_seen[tier] = policy->left[tier];
        if (left == 0 && policy->left_seconds[tier] <= 0.0) continue;
        policy->left_bytes[tier] = kept * policy->left_bytes[tier] + (double)left;
        policy->left_seconds[tier] = kept * policy->left_seconds[tier] + seen;
        double stored = (double)policy->used[tier] * policy->left_seconds[tier];
        policy->stay[tier] =
            policy->left_bytes[tier] > 0.0 ? stored / policy->left_bytes[tier] : UNLIMITED;
    }
}

/*
 * Lets time pass. At a busy share u a write waits 1 / (1 - u) times its own time, and what was
 * planned just now makes the next bytes wait as many seconds more. All of it is time in the
 * background, which no request waits for; it is counted so that entries which hardly pay do not
 * keep better ones from being written.
 */
void write_queue_pass(kvt_policy *policy, double passed)
{
    for (int tier = 0; tier < TIERS; tier++)
        if (policy->write_queue_s[tier] > 0.0)
            queue_set(policy, tier, policy->write_queue_s[tier] - passed);
    assert(policy->now_ns >= policy->write_ns);
    double seen = (double)(policy->now_ns - policy->write_ns) * 1e-9;
    if (seen < QUEUE_LOOK_SECONDS) return;
    double kept = number_exp2(-seen / QUEUE_HALF_LIFE);
    queue_measure_stay(policy, seen);
    policy->write_ns = policy->now_ns;
    for (int tier = 0; tier < TIERS; tier++) {
        uint64_t bytes = policy->counters.written_bytes[tier + 1];
        assert(bytes >= policy->write_seen[tier]);
        double busy =
            (double)(bytes - policy->write_seen[tier]) * policy->write_byte_s[tier] / seen;
        policy->write_busy[tier] = busy + kept * (policy->write_busy[tier] - busy);
        queue_set_price(policy, tier);
        policy->write_seen[tier] = bytes;
    }
}
