/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wait.h - condition variables whose deadlines are instants of base/clock.h.
 *
 * Locks are POSIX mutexes, used directly. Thread rule: any thread.
 */
#ifndef BASE_WAIT_H
#define BASE_WAIT_H

#include "base/clock.h"

#include <pthread.h>
#include <stdbool.h>

/* Makes a lock that its holders keep for less time than sleeping and waking take: a thread that
 * finds it held looks again for a moment before it sleeps. */
void base_brief_lock_init(pthread_mutex_t *lock);

/* Makes a condition that both waits below may use. */
void base_condition_init(pthread_cond_t *condition);

/*
 * Waits until the condition is signalled or the deadline has come; BASE_CLOCK_NEVER waits without
 * one. May wake early. False when the deadline had passed before the wait began: a caller that
 * loops looks at what it waits for once more after its deadline, and then stops.
 */
bool base_condition_wait_until(pthread_cond_t *condition, pthread_mutex_t *lock,
                               uint64_t deadline_ns);

#endif
