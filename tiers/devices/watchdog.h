/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watchdog.h - calls into a device that has no worker yet: open, label, measurement.
 *
 * Such a call may block for as long as the device likes, so a thread of its own makes it. The
 * caller waits for at most the device's timeout without progress and then abandons the call: its
 * thread keeps all that the call uses and cleans up if the device ever answers (docs/TIERS.md,
 * Devices that do not answer). The watchdog ends no thread and takes no operation back.
 *
 * Thread rule: any thread; the state belongs to the call's thread until run has returned.
 */
#ifndef TIERS_WATCHDOG_H
#define TIERS_WATCHDOG_H

#include <stdbool.h>
#include <stdint.h>

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
