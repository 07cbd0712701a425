/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clock.h - the clock of the library: every instant, duration and pause comes from here, so that a
 * test program can put a virtual clock in its place (docs/TESTING.md).
 *
 * An instant is a reading of CLOCK_MONOTONIC, and what base_clock_leap has added to it. Thread
 * rule: any thread.
 */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>

#define BASE_CLOCK_NEVER UINT64_MAX /* an instant that does not come */

/* The instant now, in nanoseconds. */
uint64_t base_clock_ns(void);

/* The instant now, in seconds. */
double base_clock_seconds(void);

/* The calendar, CLOCK_REALTIME, in nanoseconds: it goes on while the process does not run, and may
 * be set back. */
uint64_t base_calendar_ns(void);

/* The processor time of the calling thread, in seconds. */
double base_cpu_seconds(void);

/* Sleeps until an instant; returns at once when it has passed. Signals do not end it. */
void base_sleep_until(uint64_t wake_ns);

/* Sleeps for a number of nanoseconds from now. */
void base_sleep(uint64_t nanoseconds);

/* Puts the clock of this process ahead, for good: an experiment leaves out time in which nothing
 * happens. Waits for an instant that began before the leap end as if there had been none. */
void base_clock_leap(uint64_t nanoseconds);

/* The reading of CLOCK_MONOTONIC at which an instant comes: what the system's own waits take. */
uint64_t base_clock_system_ns(uint64_t instant_ns);

#endif
