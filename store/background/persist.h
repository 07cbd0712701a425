/* SPDX-License-Identifier: Apache-2.0 */
/*
 * persist.h - entries above the SSD are written back (persist.c, persist_background.c).
 *
 * Thread rule: no lock is held.
 */
#ifndef STORE_PERSIST_H
#define STORE_PERSIST_H

#include <kvterrace/kvterrace.h>
#include <stdbool.h>

/* The background's write-back (persist_background.c). Under store->lock. */
typedef struct store_persist {
    uint64_t bytes_per_s;  /* fixed after open; 0 = none */
    double tokens;         /* bytes that may be written now */
    uint64_t earned_ns;    /* up to when tokens were earned */
    size_t bucket;         /* where the walk over the table goes on */
    bool pass_found;       /* the walk has found something since it began anew */
    uint64_t bytes_wanted; /* of the record that waits for room or budget; 0 = none does */
    uint64_t dropped_seen; /* of counters.copies.dropped */
    uint64_t resume_ns;    /* nothing is looked at before; store_now_ns */
} store_persist;

/* Writes back at close, once the background has ended, what kvt_store_persist would; deadline_ns 0:
 * nothing is written. */
void persist_close(kvt_store *store, uint64_t deadline_ns);

/* Writes some entries that are worth it into free room, within store.persist_rate. In the
 * background round; no lock held. */
void persist_round(kvt_store *store);

#endif
