/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fork_guard.h - whether a handle belongs to this process. A child of fork has a copy of a store,
 * but neither its threads nor, in its locks, their state: a call would wait for ever, and closing
 * would end what the parent uses. So every call on a store, or on a handle that came from one, asks
 * first. It costs one load: a handler of pthread_atfork counts in the child.
 * tests/unit/sparse/test_sparse_fork.c calls everything that the headers declare.
 *
 * Thread rule: any thread.
 */
#ifndef BASE_FORK_GUARD_H
#define BASE_FORK_GUARD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* How many forks lie between the first process and this one, as far as the library was there. */
extern _Atomic uint32_t base_fork_guard_count;

/* Counts from now on. Called by every open. Returns the count, for the handle to keep. */
uint32_t base_fork_guard_start(void);

/* Whether a handle was made by this process; `forks` is the count that it was made with. Handles
 * that may outlive their store, as queues, loads and readers of events, keep a count of their own.
 */
static inline bool fork_guard_is_current(uint32_t forks)
{
    return atomic_load_explicit(&base_fork_guard_count, memory_order_relaxed) == forks;
}

#endif
