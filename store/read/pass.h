/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pass.h - announced passes of the model: what their layered loads need of the tiers, and when
 * (docs/CALLS.md, Passes).
 *
 *     announced -> layer 0 -> ... -> ended
 *              \-> forgotten: write_patience after its last layer would have been computed
 *
 * Lock order: a load's lock, then `lock`, then a pool's. Nothing waits under it.
 */
#ifndef STORE_PASS_H
#define STORE_PASS_H

#include "tiers/pool/pool.h"

#include <kvterrace/load.h>
#include <pthread.h>

#define PASS_MOST  64u
#define PASS_LOADS 8u /* of a pass that are told apart; further ones name no pass */

/* The reads of a load, or of a block of a ring, from one tier. */
typedef struct pass_load {
    uint64_t need; /* the pool's number; 0 = free */
    tiers_pool *pool;
    uint32_t first, end; /* the layers that it reads */
    uint32_t arrived;    /* one behind the last of them that has come */
} pass_load;

/* One pass; number 0: the place is free. */
typedef struct store_pass {
    uint64_t number;
    tiers_pace pace;
    bool ready; /* the layer after pace.layer had come when that began: what passes until the next
                   kvt_pass_layer is computing alone */
    pass_load loads[PASS_LOADS];
} store_pass;

typedef struct store_passes {
    pthread_mutex_t lock;
    uint64_t patience_ns;
    uint64_t numbers; /* given so far */
    store_pass passes[PASS_MOST];
    kvt_pass_row *rows; /* measured seconds */
    size_t row_count;
} store_passes;

void passes_init(store_passes *passes, double patience_seconds);
void passes_destroy(store_passes *passes);

/* Copies rows as the table, in place of that before. KVT_OK; KVT_E_ARGUMENT (they are none);
 * KVT_E_MEMORY. */
KVT_NODISCARD kvt_status passes_set_rows(store_passes *passes, const kvt_pass_row *rows,
                                         size_t count);

/* Layers of a pass, from `first` up to `end`, are about to be read from a tier. Returns the number
 * of the need, 0 when the pass is not there, has no such layers or too many loads. */
uint64_t pass_join(store_passes *passes, uint64_t pass, tiers_pool *pool, uint32_t first,
                   uint32_t end, uint32_t ahead);

/* So many layers have come and were asked for. */
void pass_note(store_passes *passes, uint64_t pass, uint64_t need, uint32_t arrived,
               uint32_t issued);

/* The load ends. A pool outlives it. */
void pass_leave(store_passes *passes, uint64_t pass, uint64_t need, tiers_pool *pool);

#endif
