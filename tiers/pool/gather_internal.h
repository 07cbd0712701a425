/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gather_internal.h - a gather's own data, for gather.c (life, waiting) and gather_batch.c (which
 * copies are read, and by which requests).
 *
 *     gather    the states of the ranges, and a list of batches; the first batch has all ranges
 *     batch     ranges that are read at the same time; a second read of some is another batch
 *     attempt   the read of one range in one batch, from one copy into one slot of the buffer
 *     part      what one member has of a batch: one transfer, whose runs are its requests
 *
 *     attempt   pending --> its runs have ended: OK, or failed
 *               pending --> late: other copies are tried meanwhile --> OK, failed, or never ends
 *
 * A slot of a failed attempt is used again; that of a late one never, because a device may still
 * write into it. A batch lives until the gather is freed, since workers name its runs.
 */
#ifndef TIERS_GATHER_INTERNAL_H
#define TIERS_GATHER_INTERNAL_H

#include "gather.h"
#include "pool_internal.h"

/* A read that is wanted: of a range, from one of its copies. */
typedef struct gather_pick {
    uint32_t range;
    uint32_t copy;
    bool alone;          /* joined with no neighbour */
    unsigned char *data; /* its slot, or NULL: the next of the buffer */
    tiers_spot first;    /* where it begins */
} gather_pick;

typedef struct gather_attempt {
    uint32_t range;
    uint32_t copy;
    unsigned char *data;
    uint64_t members; /* a mask of those that have a run of it */
    uint32_t first_piece;
    uint32_t piece_count;
    bool settled;
} gather_attempt;

typedef struct gather_part {
    uint32_t member;
    tiers_runs runs;
    tiers_transfer transfer;
} gather_part;

typedef struct gather_batch {
    struct gather_batch *next; /* older */
    uint64_t hedge_at_ns;
    uint32_t attempt_count;
    uint32_t part_count;
    gather_attempt *attempts;
    uint32_t *pieces; /* the run of each piece of each attempt */
    bool *shared;     /* for each run: it reads more than one range */
    tiers_run *runs;  /* grouped by part */
    gather_part parts[];
} gather_batch;

typedef struct gather_state {
    uint8_t tried;       /* a mask of copies */
    uint8_t again;       /* of those whose request failed together with neighbours */
    bool done;           /* the range's status is final */
    uint32_t waiting;    /* attempts that may still succeed, and are not late */
    uint32_t hoping;     /* those that are late, on members that serve */
    kvt_status failure;  /* the first one */
    unsigned char *slot; /* of an attempt that failed; NULL = none */
} gather_state;

struct tiers_gather {
    tiers_pool *pool;
    tiers_gather_request request;
    uint64_t buffer_used;
    gather_batch *batches;  /* the newest first */
    _Atomic uint32_t holds; /* the owner's, and one for each transfer from its release on */
    tiers_transfer_released *released;
    void *released_context;
    gather_pick *picks;            /* room for one of each range */
    const tiers_location **pinned; /* the locations of all copies */
    uint32_t pin_count;
    gather_state states[];
};

/* Whether the first `bytes` bytes of a copy lie on members that serve. */
bool gather_copy_serves(const tiers_gather *gather, uint32_t range, uint32_t copy);

/* Chooses a copy for each range that has one on members that serve, and returns the number of
 * picks; the others have failed with KVT_E_GONE. */
uint32_t gather_choose(tiers_gather *gather);

/* Makes a batch of picks, which it sorts, and starts its reads. `data` of a pick is set. KVT_OK;
 * KVT_E_MEMORY: nothing has begun. */
KVT_NODISCARD kvt_status gather_begin(tiers_gather *gather, gather_pick *picks, uint32_t count,
                                      uint64_t deadline_ns);

#endif
