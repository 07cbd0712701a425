/* SPDX-License-Identifier: Apache-2.0 */
/* fork_guard.c - counts forks. */
#include "base/fork_guard.h"

#include <pthread.h>

_Atomic uint32_t base_fork_guard_count;

/* Runs in the child of every fork, which has one thread: handles of the parent know another count
 * and refuse all calls. */
static void fork_guard_in_child(void)
{
    atomic_fetch_add_explicit(&base_fork_guard_count, 1, memory_order_relaxed);
}

/* Runs once in a process. A handle that is made before any other registers the handler. */
static void fork_guard_register(void)
{
    (void)pthread_atfork(NULL, NULL, fork_guard_in_child);
}

uint32_t base_fork_guard_start(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, fork_guard_register);
    return atomic_load(&base_fork_guard_count);
}
