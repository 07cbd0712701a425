/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gather.h - ranges of many locations as one read: one batch to all drives of a pool.
 *
 *     tiers_copy copies[2] = {{map, 8192}, {replica_map, 0}};
 *     tiers_gather_range ranges[] = {{.copies = copies, .copy_count = 2, .bytes = 4096}, ...};
 *     tiers_gather_request request = {.ranges = ranges, .count = 40, .buffer = memory,
 *                                     .buffer_bytes = bytes, .waited = true};
 *     if (tiers_gather_start(pool, &request, &gather) == KVT_OK) {
 *         status = tiers_gather_wait(gather, deadline_ns);
 *         ... ranges[i].status, ranges[i].data ...
 *         tiers_gather_release(gather, released, context);
 *     }
 *
 * A range is one continuous part of an object, and may have copies in other objects of the pool.
 * Ranges without a choice are placed first, then those with the fewest copies; each goes to the
 * member that will be done first, by what is queued there and by the members' measured bandwidths
 * (SWARM 6.1, with bandwidths). The gather decides where in the buffer a range comes to lie:
 * neighbours on a device become neighbours there, and one request reads them.
 *
 * Ranges fail apart. One whose request failed is read again: alone, when the request also had
 * neighbours, then from its other copies. A member that vanished, or that does not answer, is left
 * for the copies as well; a range without any is lost, and says so. Only a range with KVT_OK has
 * bytes, and its bytes are what the device gave: checksums are the caller's.
 *
 *     start --> in flight --wait--> all ranges have a status --release--> over, released is called
 *                   |  ^              | KVT_E_TIMEOUT: more may come
 *                   |  +--- wait -----+
 *                   +------------------release------------------> released is called later, when no
 *                                                                 device uses the buffer any more
 *
 * Thread rule: start from any thread; wait and release by one thread at a time.
 */
#ifndef TIERS_GATHER_H
#define TIERS_GATHER_H

#include "pool.h"
#include "unit_map.h"

#define TIERS_GATHER_COPIES_MAX 8u

typedef struct tiers_gather tiers_gather;

/* Where a range lies: in the object of a map, from an offset on (a multiple of the grain). */
typedef struct tiers_copy {
    const tiers_unit_map *map;
    uint64_t offset;
} tiers_copy;

/* The caller fills the first block. */
typedef struct tiers_gather_range {
    const tiers_copy *copies; /* the caller's until release; the first is the range's own place */
    uint32_t copy_count;      /* 1..TIERS_GATHER_COPIES_MAX */
    uint32_t bytes;           /* a multiple of the grain, not 0 */

    kvt_status status; /* KVT_QUEUED until a wait has seen it end; see tiers_gather_wait */
    uint32_t copy;     /* that was read, with KVT_OK */
    const void *data;  /* in the buffer, with KVT_OK */
} tiers_gather_range;

/*
 * The buffer holds the ranges, and what is beyond their sum is for second reads of ranges whose
 * first one a device still has: without room for that, such a range is not read again.
 */
typedef struct tiers_gather_request {
    tiers_gather_range *ranges; /* the caller's until release */
    uint32_t count;             /* not 0 */
    void *buffer;               /* aligned to the grain; the gather's until released is called */
    uint64_t buffer_bytes;      /* at least the sum of the ranges */
    bool waited;                /* somebody waits for it: rank TIERS_RANK_WAITED */
    uint64_t hedge_ns; /* a range that has not come so long after its read began is also read from
                          another copy; 0 = only when its member is out of service */
} tiers_gather_request;

/* Starts all reads. Waits only while one of the members has hundreds of jobs queued, not beyond an
 * instant of CLOCK_MONOTONIC. KVT_OK: gather_out is the caller's until its release. KVT_E_MEMORY:
 * nothing has begun. Failures of members come with the wait. */
KVT_NODISCARD kvt_status tiers_gather_start(tiers_pool *pool, const tiers_gather_request *request,
                                            uint64_t deadline_ns, tiers_gather **gather_out);

/*
 * Waits until every range has its bytes or has failed in all of its copies, not beyond an instant
 * of CLOCK_MONOTONIC (UINT64_MAX: no deadline). KVT_OK: all have their bytes. Else the first
 * status of a range that has not: KVT_E_IO, KVT_E_GONE (also: its members do not answer and are out
 * of service), KVT_E_READ_ONLY, KVT_E_MEMORY; KVT_E_TIMEOUT: it had not come at the deadline, and
 * another wait goes on.
 */
KVT_NODISCARD kvt_status tiers_gather_wait(tiers_gather *gather, uint64_t deadline_ns);

/* Ends a gather. Requests that no device has yet are dropped. released(context) is called once,
 * when no device uses the buffer any more: at once, when all has ended; never, when a device never
 * answers. It is called under no lock and must not call the pool. */
void tiers_gather_release(tiers_gather *gather, tiers_transfer_released *released, void *context);

/* The part that one member had. */
typedef struct tiers_gather_share {
    uint32_t member;
    uint32_t requests;    /* after neighbours were joined, before a device's limit cuts them */
    uint64_t bytes;       /* asked for; second reads included */
    uint64_t started_ns;  /* of its first read; clock as tiers_transfer */
    uint64_t finished_ns; /* of its last read; 0 = it has not ended */
} tiers_gather_share;

/* Fills shares (room for TIERS_MEMBERS_MAX) in member order, after a wait. Returns their number. */
uint32_t tiers_gather_shares(tiers_gather *gather, tiers_gather_share *shares);

#endif
