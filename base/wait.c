/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wait.c - timed waits of condition variables on CLOCK_MONOTONIC, the clock of base/clock.h.
 *
 * Thread rule: any thread.
 */
#include "wait.h"

#include <time.h>

#define WAIT_SECOND_NS UINT64_C(1000000000)

void base_brief_lock_init(pthread_mutex_t *lock)
{
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    (void)pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_ADAPTIVE_NP);
    pthread_mutex_init(lock, &attributes);
    pthread_mutexattr_destroy(&attributes);
}

/* The default clock of a condition is the calendar, which may jump. */
void base_condition_init(pthread_cond_t *condition)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &attributes);
    pthread_condattr_destroy(&attributes);
}

/* False: the deadline had passed before the wait. A wake without a reason is possible, so callers
 * wait in a loop. */
bool base_condition_wait_until(pthread_cond_t *condition, pthread_mutex_t *lock,
                               uint64_t deadline_ns)
{
    if (deadline_ns == BASE_CLOCK_NEVER) {
        pthread_cond_wait(condition, lock);
        return true;
    }
    if (base_clock_ns() >= deadline_ns) return false;
    const uint64_t system_ns = base_clock_system_ns(deadline_ns);
    const struct timespec deadline = {.tv_sec = (time_t)(system_ns / WAIT_SECOND_NS),
                                      .tv_nsec = (long)(system_ns % WAIT_SECOND_NS)};
    (void)pthread_cond_timedwait(condition, lock, &deadline);
    return true;
}
