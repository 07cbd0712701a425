/* SPDX-License-Identifier: Apache-2.0 */
/*
 * timeout.h - when a device counts as unresponsive: it has had work for its timeout and has
 * finished none of it. This file adds up the time; the caller reads the clock and acts on the
 * answer.
 *
 * Thread rule: a tiers_timeout is guarded by one lock of its owner.
 */
#ifndef TIERS_TIMEOUT_H
#define TIERS_TIMEOUT_H

#include <stdbool.h>
#include <stdint.h>

#define TIERS_TIMEOUT_NS_DEFAULT (UINT64_C(5) * 1000 * 1000 * 1000)
#define TIERS_TIMEOUT_NEVER      UINT64_MAX

/* A thread that waits for a device checks the device's timeout this often. */
#define TIERS_CHECK_NS (UINT64_C(20) * 1000 * 1000)

/*
 * The time for which a device has had work and finished none of it. Each check counts the time
 * since the check before, but never more than a small step, because a device is not to blame for a
 * time in which the whole process or machine stood still.
 */
typedef struct tiers_timeout {
    uint64_t limit_ns; /* TIERS_TIMEOUT_NEVER: the device is never unresponsive */
    uint64_t checked_ns;
    uint64_t stalled_ns;
    uint64_t progress; /* at the last check */
} tiers_timeout;

/* limit_ns is above 0. A device's timeout begins anew with every device. */
void tiers_timeout_init(tiers_timeout *timeout, uint64_t limit_ns, uint64_t now_ns);

/* busy: the device has work; progress: any number that changes when the device finishes some of it.
 * Returns whether the device has been busy without progress for the limit. */
bool tiers_timeout_check(tiers_timeout *timeout, uint64_t now_ns, bool busy, uint64_t progress);

#endif
