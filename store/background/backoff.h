/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backoff.h - entries whose moves failed, and when they may be moved again (backoff.c).
 *
 * Thread rule: under the control lock.
 */
#ifndef STORE_BACKOFF_H
#define STORE_BACKOFF_H

#include "store/core/entry.h"

#define STORE_BACKOFFS 256u

/* An entry whose last move failed: in no plan until an instant (store_now_ns). */
typedef struct store_backoff_item {
    uint64_t handle;
    uint64_t until_ns;
    bool no_room; /* only room was lacking: it makes way for a put that finds none either */
} store_backoff_item;

/* Moves that failed, and when they may be tried again. Under store->lock. */
typedef struct store_backoff {
    uint32_t count;
    uint32_t failed_ticks;   /* plans of the policy's tick that failed, in a row */
    uint64_t next_ns;        /* the earliest until_ns */
    uint64_t tick_resume_ns; /* the tick plans nothing before */
    store_backoff_item items[STORE_BACKOFFS];
} store_backoff;

/* Releases the entries whose time is over, and ends the leases that have run out. Before every call
 * on the policy that may plan. */
void backoff_expire(kvt_store *store);

/* A move of this RESIDENT entry failed: the entry is in no plan for a while. no_room: pool or
 * policy had none for it. */
void backoff_note_failure(kvt_store *store, store_entry *entry, bool no_room);

/* Lets the entries that lacked only room into plans again, for a put that needs their room. False
 * when there is none. */
bool backoff_yield(kvt_store *store);

/* A move of this entry was carried out: its next failure is its first. */
void backoff_note_success(kvt_store *store, store_entry *entry);

/* The policy has forgotten the entry, and its pin with it. */
void backoff_forget(store_entry *entry);

/* Whether the policy's tick may plan now, and how its plan ended. */
bool backoff_may_tick(kvt_store *store);
void backoff_note_tick(kvt_store *store, kvt_status status);

#endif
