/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fork_guard.c - counts the forks of this process, in the child, by a handler of pthread_atfork.
 * The file knows no store; each store compares the count with its own (fork_guard.h).
 *
 * Thread rule: any thread.
 */
#include "store/fork_guard.h"

#include <pthread.h>

_Atomic uint32_t fork_guard_count;

/* Runs in the child of every fork, which has one thread: stores of the parent know another count
 * and refuse all calls. */
static void fork_guard_in_child(void)
{
    atomic_fetch_add_explicit(&fork_guard_count, 1, memory_order_relaxed);
}

/* Runs once in a process. A store that is opened before any other registers the handler. */
static void fork_guard_register(void)
{
    (void)pthread_atfork(NULL, NULL, fork_guard_in_child);
}

void fork_guard_start(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, fork_guard_register);
}
