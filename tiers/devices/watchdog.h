/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watchdog.h - when a device counts as unresponsive: it has had work for its timeout and has
 * finished none of it; and calls into a device that has no worker yet: open, label, measurement.
 *
 * Such a call may block for as long as the device likes, so a thread of its own makes it. The
 * caller waits for at most the device's timeout without progress and then abandons the call: its
 * thread keeps all that the call uses and cleans up if the device ever answers (docs/TIERS.md,
 * Devices that do not answer). The watchdog ends no thread and takes no operation back.
 *
 * Thread rule: one lock of its owner guards a tiers_timeout. Calls come from any thread; the state
 * belongs to the call's thread until run has returned.
 */
#ifndef TIERS_WATCHDOG_H
#define TIERS_WATCHDOG_H

#include "device_ops.h"

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

/* The timeout that a device has of one that was asked for, 0 meaning the default. Host memory has
 * none: this process's own threads make its copies, and a copy is late while they have no processor
 * or another thread holds the process's map of memory. */
uint64_t tiers_timeout_of(kvt_device *device, uint64_t timeout_ns);

/* limit_ns is above 0. A device's timeout begins anew with every device. */
void tiers_timeout_init(tiers_timeout *timeout, uint64_t limit_ns, uint64_t now_ns);

/* busy: the device has work; progress: any number that changes when the device finishes some of it.
 * Returns whether the device has been busy without progress for the limit. */
bool tiers_timeout_check(tiers_timeout *timeout, uint64_t now_ns, bool busy, uint64_t progress);

/* ---- calls ---- */

typedef void tiers_watchdog_call(void *state);

/* Makes a thread call run(state) and waits for it. True: run has returned. False: run made no
 * progress for limit_ns (TIERS_TIMEOUT_NEVER: waits for ever) and is abandoned; its thread owns the
 * state and calls late(state) when run returns. Without memory for a thread, the caller runs it. */
bool tiers_watchdog_run(tiers_watchdog_call *run, tiers_watchdog_call *late, void *state,
                        uint64_t limit_ns);

/* Called inside run, and without effect elsewhere. progress: the call got somewhere. suspend: what
 * follows, to the end of the call, shows no progress and has no timeout. */
void tiers_watchdog_progress(void);
void tiers_watchdog_suspend(void);

#endif
