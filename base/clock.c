/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clock.c - the one place where the library reads a clock and sleeps.
 *
 * Thread rule: any thread.
 */
#include "clock.h"

#include <errno.h>
#include <stdatomic.h>
#include <time.h>

#define CLOCK_SECOND_NS UINT64_C(1000000000)

/* Nanoseconds by which the clock is ahead of CLOCK_MONOTONIC. */
static _Atomic uint64_t clock_ahead_ns;

/* Nanoseconds of a clock that exists everywhere, so its reading cannot fail. */
static uint64_t clock_read(clockid_t clock)
{
    struct timespec now;
    (void)clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * CLOCK_SECOND_NS + (uint64_t)now.tv_nsec;
}

uint64_t base_clock_ns(void)
{
    return clock_read(CLOCK_MONOTONIC) + clock_ahead_ns;
}

/* For measurements; a double holds a nanosecond for some months of uptime. */
double base_clock_seconds(void)
{
    return 1e-9 * (double)base_clock_ns();
}

/* It may jump, so no wait depends on it. */
uint64_t base_calendar_ns(void)
{
    return clock_read(CLOCK_REALTIME);
}

double base_cpu_seconds(void)
{
    return 1e-9 * (double)clock_read(CLOCK_THREAD_CPUTIME_ID);
}

/* A signal does not end the sleep early. */
void base_sleep_until(uint64_t wake_ns)
{
    wake_ns = base_clock_system_ns(wake_ns);
    const struct timespec wake = {.tv_sec = (time_t)(wake_ns / CLOCK_SECOND_NS),
                                  .tv_nsec = (long)(wake_ns % CLOCK_SECOND_NS)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &wake, NULL) == EINTR)
        continue;
}

void base_sleep(uint64_t nanoseconds)
{
    base_sleep_until(base_clock_ns() + nanoseconds);
}

void base_clock_leap(uint64_t nanoseconds)
{
    clock_ahead_ns += nanoseconds;
}

uint64_t base_clock_system_ns(uint64_t instant_ns)
{
    const uint64_t ahead_ns = clock_ahead_ns;
    return instant_ns > ahead_ns ? instant_ns - ahead_ns : 0;
}
