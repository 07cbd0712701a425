/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trim.h - reports free ranges to a member's drive, where device.*.trim asks for it.
 *
 * A range that is given back goes to the free space at once and is noted. When the worker has
 * nothing else to do, it takes a noted range out of the free space, if all of it is still free,
 * trims it, and gives it back; meanwhile it counts as used. So a range is never trimmed while
 * it is held, and a thread that frees a range never waits; a reservation that
 * finds no other room waits for its end (reserve.c). Notes are bounded and may be
 * lost: trimming is advice.
 *
 * Callers give a range back only when nothing durable names it any more (a store: once the catalog
 * has committed the deletion of its row), which is what trimming it needs too.
 *
 * Thread rule: notes and the range out under the pool's mutex; steps on the worker's thread.
 */
#ifndef TIERS_TRIM_H
#define TIERS_TRIM_H

#include "extent.h"

#define TIERS_TRIM_NOTES 256u

typedef struct tiers_trims {
    tiers_range notes[TIERS_TRIM_NOTES]; /* a ring; neighbours freed in turn are one note */
    uint32_t first;
    uint32_t count;
    tiers_range out; /* taken out of the free space; bytes 0: none */
} tiers_trims;

/* Notes a range that was just given back. False when there is no room for it. */
bool tiers_trim_note(tiers_trims *trims, tiers_range range);

/* Takes the next noted range that is still free out of the space, at most TIERS_TRIM_BYTES_MAX of
 * it. False when there is none. */
bool tiers_trim_begin(tiers_trims *trims, tiers_space *space);

/* Gives it back. Returns its bytes; 0 when none was out. */
uint64_t tiers_trim_end(tiers_trims *trims, tiers_space *space);

/* Bytes of one command: nothing else runs meanwhile. */
#define TIERS_TRIM_BYTES_MAX (UINT64_C(64) << 20)

#endif
