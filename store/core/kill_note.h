/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kill_note.h - what the store reports to a test's model before a flushed entry may go.
 *
 * The observer of moves speaks after a move: a process that is killed between the commit of a row's
 * deletion and the call would leave a model that still expects the entry. A note is made under the
 * store's lock when the decision falls, and before anything of it can reach a device or the
 * catalog. It compiles to nothing in the product, as kill_point.h says.
 */
#ifndef STORE_KILL_NOTE_H
#define STORE_KILL_NOTE_H

#include "base/kill_point.h"

#include <kvterrace/types.h>

typedef enum kill_note {
    KILL_NOTE_PLACED = 1, /* a new entry was published in the tier; its row is queued */
    KILL_NOTE_MOVED,      /* a stored entry was published in the tier, its old place is replaced */
    KILL_NOTE_COPIED,     /* a record on SSD lies beside a place above; its row is queued */
    KILL_NOTE_EVICTS,     /* a plan evicts the entry */
    KILL_NOTE_ABORTED,    /* that plan's move ended; the entry stays where it was */
    KILL_NOTE_GIVES_WAY,  /* what is on SSD is dropped for room, or with a device's content */
    KILL_NOTE_DROPPED     /* the entry is gone, by an eviction or otherwise; excuses nothing */
} kill_note;

#ifdef KVT_KILL_POINTS
void kvt_kill_note(kill_note note, const kvt_key *key, kvt_tier tier);
#define KILL_NOTE(note, key, tier) kvt_kill_note((note), (key), (tier))
#else
#define KILL_NOTE(note, key, tier) ((void)0)
#endif

#endif
