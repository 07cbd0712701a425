/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fork_guard.h - whether a store belongs to this process.
 *
 * A child of fork has a copy of a store, but neither its threads nor, in its locks, their state:
 * a call would wait for ever, and closing would end what the parent uses. So every call on a store,
 * or on a handle that came from one, asks first. It costs one load: a handler of pthread_atfork
 * counts in the child. tests/unit/test_sparse_fork.c calls everything that the headers declare.
 *
 * Thread rule: any thread.
 */
#ifndef STORE_FORK_GUARD_H
#define STORE_FORK_GUARD_H

#include "store/store.h"

#include <stdatomic.h>

/* How many forks lie between the first process and this one, as far as the library was there. */
extern _Atomic uint32_t fork_guard_count;

/* Counts from now on. Called by every open. */
void fork_guard_start(void);

/* Whether a handle was made by this process; `forks` is the count that it was made with. Handles
 * that may outlive their store, as queues, loads and readers of events, keep a count of their own.
 */
static inline bool fork_guard_is_current(uint32_t forks)
{
    return atomic_load_explicit(&fork_guard_count, memory_order_relaxed) == forks;
}

/* Whether the store was opened by this process. Every public call asks this first: the threads of a
 * forked store are in the parent, and its locks may be held by nobody. */
static inline bool fork_guard_is_ours(const kvt_store *store)
{
    return fork_guard_is_current(store->forks);
}

#endif
