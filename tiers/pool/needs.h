/* SPDX-License-Identifier: Apache-2.0 */
/*
 * needs.h - what layered loads of passes still need of a pool's members, and when.
 *
 *     begin -> add (what each entry has on each member) -> pace, progress ... -> end
 *                                                      \-> forgotten: patience after its last layer
 *                                                          was due, so a pass that stops holds
 *                                                          nobody up
 *
 * A need is named by a number that is used once: calls with a number that has ended, or was
 * forgotten, do nothing. The layers of a load count as equal in bytes, and each member's part of
 * them as equal, because objects begin at turns of their own (docs/TIERS.md, Turns).
 *
 * Thread rule: any thread; the mutex is a leaf, and workers take it.
 */
#ifndef TIERS_NEEDS_H
#define TIERS_NEEDS_H

#include <pthread.h>
#include <stdatomic.h>

#include "pool.h"
#include "slack.h"

/* One load. Free when number is 0. */
typedef struct need_load {
    uint64_t number;
    tiers_pace pace;
    uint32_t first, end; /* the layers that it reads: all of a load's, those of a ring's block */
    uint32_t ahead;
    uint32_t arrived;                  /* one behind the last layer that has come, */
    uint32_t issued;                   /* and that was asked for */
    uint64_t bytes[TIERS_MEMBERS_MAX]; /* of its layers */
} need_load;

typedef struct tiers_needs {
    pthread_mutex_t mutex;
    uint64_t patience_ns;
    uint64_t numbers;         /* given so far */
    atomic_uint count;        /* of loads that are open */
    _Atomic uint64_t seen_ns; /* when the last one was opened; 0: none ever was */
    need_load loads[SLACK_NEEDS_MAX];
} tiers_needs;

void needs_init(tiers_needs *needs, uint64_t patience_ns);
void needs_destroy(tiers_needs *needs);

/* Number of the new need, of the pass's layers from `first` up to `end`; 0: they are none, or all
 * places are taken by needs that still count, and the load is one of reads that somebody waits for,
 * no more. */
uint64_t needs_begin(tiers_needs *needs, const tiers_pace *pace, uint32_t first, uint32_t end,
                     uint32_t ahead, uint64_t now_ns);

/* Whether passes count: a need is open, or one was opened within the patience. While none does, a
 * worker in the order `slack` begins operations as in `reads_first`. No lock. */
static inline bool needs_are_seen(const tiers_needs *needs, uint64_t now_ns)
{
    const uint64_t seen_ns = atomic_load_explicit(&needs->seen_ns, memory_order_relaxed);
    if (seen_ns == 0) return false;
    return atomic_load(&needs->count) != 0 || now_ns < seen_ns ||
           now_ns - seen_ns < needs->patience_ns;
}

/* Adds an entry's bytes, split over its members by units. */
void needs_add(tiers_needs *needs, uint64_t number, const tiers_location *location, uint64_t bytes);

void needs_set_pace(tiers_needs *needs, uint64_t number, const tiers_pace *pace);
void needs_progress(tiers_needs *needs, uint64_t number, uint32_t arrived, uint32_t issued);
void needs_end(tiers_needs *needs, uint64_t number);

/*
 * Lists what a member is still to read, for the gate. queued_bytes: of waited reads, with the
 * member and not finished; what was asked for and is not among them has landed. Returns the number
 * of needs.
 */
uint32_t needs_list(tiers_needs *needs, uint32_t member, uint64_t now_ns, uint64_t queued_bytes,
                    slack_need out[SLACK_NEEDS_MAX]);

#endif
