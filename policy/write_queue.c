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
#include "policy/engine.h"

#include <assert.h>

#define QUEUE_LOOK_SECONDS   1.0
#define QUEUE_HALF_LIFE      37.5   /* seconds; of the busy share */
#define QUEUE_LEFT_HALF_LIFE 1200.0 /* seconds; of what leaves a tier */
#define QUEUE_FULL           0.95   /* a busy share counts as at most this */

/* Sets what a byte costs for the tier's busy share: next to nothing in an idle tier. */
static void queue_set_price(kvt_policy *policy, int level)
{
    double busy = policy->write_busy[level] < QUEUE_FULL ? policy->write_busy[level] : QUEUE_FULL;
    assert(busy >= 0.0 && busy < 1.0);
    policy->write_price[level] = BACKGROUND_SHARE * policy->write_byte_s[level] / (1.0 - busy);
}

/* Changes the seconds that wait; rounding never leaves less than none. */
static void queue_set(kvt_policy *policy, int level, double seconds)
{
    policy->write_queue_s[level] = seconds > 0.0 ? seconds : 0.0;
}

/* The bytes that wait stay the same, so their seconds change with the speed. */
void write_queue_set_speed(kvt_policy *policy, int level)
{
    double bytes_per_s = policy->config.tiers[level + 1].write_bytes_per_s;
    double before = policy->write_byte_s[level];
    double after = bytes_per_s > 0.0 ? 1.0 / bytes_per_s : 0.0;
    policy->write_byte_s[level] = after;
    if (before > 0.0) {
        queue_set(policy, level, policy->write_queue_s[level] * after / before);
        policy->write_busy[level] *= after / before;
    }
    queue_set_price(policy, level);
}

/* Sets the prices of tiers in which nothing waits. */
void write_queue_open(kvt_policy *policy)
{
    for (int level = 0; level < LEVELS; level++) {
        policy->stay[level] = UNLIMITED;
        write_queue_set_speed(policy, level);
    }
}

/* Only what is written counts; bytes that stay in place take no time. */
void write_queue_add(kvt_policy *policy, const move_in_flight *move, double by)
{
    for (int level = 0; level < LEVELS; level++) {
        assert(move->to_bytes[level] >= move->kept[level]);
        uint64_t written = move->to_bytes[level] - move->kept[level];
        if (written == 0) continue;
        double seconds = by * (double)written * policy->write_byte_s[level];
        queue_set(policy, level, policy->write_queue_s[level] + seconds);
    }
}

/*
 * Measures how long a byte stays in each level: by Little's law what is stored over what leaves in
 * a second. Until something has left, and for as long as no more leaves, it stays as long as it is
 * wanted.
 */
static void queue_measure_stay(kvt_policy *policy, double seen)
{
    double kept = number_exp2(-seen / QUEUE_LEFT_HALF_LIFE);
    for (int level = 0; level < LEVELS; level++) {
        uint64_t left = policy->left[level] - policy->left_seen[level];
        policy->left_seen[level] = policy->left[level];
        if (left == 0 && policy->left_seconds[level] <= 0.0) continue;
        policy->left_bytes[level] = kept * policy->left_bytes[level] + (double)left;
        policy->left_seconds[level] = kept * policy->left_seconds[level] + seen;
        double stored = (double)policy->used[level] * policy->left_seconds[level];
        policy->stay[level] =
            policy->left_bytes[level] > 0.0 ? stored / policy->left_bytes[level] : UNLIMITED;
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
    for (int level = 0; level < LEVELS; level++)
        if (policy->write_queue_s[level] > 0.0)
            queue_set(policy, level, policy->write_queue_s[level] - passed);
    assert(policy->now_ns >= policy->write_ns);
    double seen = (double)(policy->now_ns - policy->write_ns) * 1e-9;
    if (seen < QUEUE_LOOK_SECONDS) return;
    double kept = number_exp2(-seen / QUEUE_HALF_LIFE);
    queue_measure_stay(policy, seen);
    policy->write_ns = policy->now_ns;
    for (int level = 0; level < LEVELS; level++) {
        uint64_t bytes = policy->counters.written_bytes[level + 1];
        assert(bytes >= policy->write_seen[level]);
        double busy =
            (double)(bytes - policy->write_seen[level]) * policy->write_byte_s[level] / seen;
        policy->write_busy[level] = busy + kept * (policy->write_busy[level] - busy);
        queue_set_price(policy, level);
        policy->write_seen[level] = bytes;
    }
}
