/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pressure.h - background work leaves devices alone on which gets wait (pressure.c).
 *
 * Thread rule: under the control lock.
 */
#ifndef STORE_PRESSURE_H
#define STORE_PRESSURE_H

#include <kvterrace/kvterrace.h>
#include <stdbool.h>

/* How long the background has left tiers alone whose devices are pressed. Under store->lock. */
typedef struct store_pressure {
    uint32_t rounds[KVT_TIER_COUNT]; /* in a row */
    uint32_t let_through;            /* a mask of the tiers that this round works on all the same */
} store_pressure;

/* A background round begins and ends. own: a caller asked for it. Lock held. */
void pressure_begin_round(kvt_store *store, bool own);
void pressure_end_round(kvt_store *store);

/* Whether background work on a tier, or on any, waits for a later round. Lock held. */
bool pressure_defers(const kvt_store *store, kvt_tier tier);
bool pressure_defers_any(const kvt_store *store);

/* Whether a plan does, because of a tier that it reads from or writes to; counts its moves then.
 * Lock held. */
bool pressure_defers_moves(kvt_store *store, const kvt_move *moves, uint32_t count);

#endif
