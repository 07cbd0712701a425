/* SPDX-License-Identifier: Apache-2.0 */
/*
 * errand.h - calls into a device that has no worker yet: opening it, its label, its measurement.
 *
 * Such a call may block for as long as the device likes, so it runs on a thread of its own, and
 * whoever waits for it leaves when it gets nowhere. The thread then stays behind with all that the
 * call uses, as an unresponsive member's worker does (worker.h), and cleans up should it ever return.
 *
 * Thread rule: any thread; an errand's state belongs to its thread until run has returned.
 */
#ifndef TIERS_ERRAND_H
#define TIERS_ERRAND_H

#include <stdbool.h>
#include <stdint.h>

typedef void tiers_errand_call(void *state);

/* Makes a thread call run(state), and waits. True: it has returned. False: it got nowhere for
 * limit_ns (TIERS_TIMEOUT_NEVER: waits for ever); the state is the thread's, which calls
 * late(state) when run returns. Where no thread is to be had, run is called here. */
bool tiers_errand_run(tiers_errand_call *run, tiers_errand_call *late, void *state,
                      uint64_t limit_ns);

/* For what runs on an errand, and without effect elsewhere: it has got somewhere; it now does what
 * takes its time without showing progress, to the end. */
void tiers_errand_progress(void);
void tiers_errand_take_time(void);

#endif
