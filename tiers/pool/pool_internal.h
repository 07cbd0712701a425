/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool_internal.h - the pool's own data, for pool.c (life and transfers), gather.c (ranges of
 * many objects), lend.c (loans), pool_members.c (states and figures) and reserve.c (space).
 *
 *     members             changed under `mutex`; a transfer reads its members without it, because
 *                         workers stay until the pool closes, and because the location in its hands
 *                         was made under the mutex after its members had begun
 *     transfers           their second block under `done_mutex`
 *     late, pins          under `done_mutex`: a worker never takes `mutex`
 *     holds, member_count, trimmed, memory, address, gpu, lent  atomic
 *
 * Lock order: `mutex` before a worker's mailbox; `done_mutex` is a leaf.
 */
#ifndef TIERS_POOL_INTERNAL_H
#define TIERS_POOL_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "extent.h"
#include "pool.h"
#include "stripe.h"
#include "trim.h"
#include "worker.h"

/* Invariants: used_bytes = extents held + the range being trimmed, at most capacity_bytes; worker
 * and space exist together, from the first device on. */
typedef struct pool_member {
    kvt_device *device; /* NULL when absent */
    char name[32];
    kvt_device_facts facts;  /* as of the last insertion */
    tiers_worker *worker;    /* NULL until there was a device; then to the end of the pool */
    uint64_t capacity_bytes; /* what the space began with */
    tiers_space *space;      /* NULL until there was a device */
    uint64_t used_bytes;     /* what is being trimmed included; of slots, those that are taken */
    uint64_t slot_bytes;     /* of free slots: the space holds them, and they count as free */
    uint64_t align_bytes;    /* of slots */
    double pass;             /* entry: bytes over weight of what was put here, as entry_pass */
    double owed;             /* units of its proportion that objects left it short of; stripe.h */
    tiers_trims trims;
    atomic_bool trimmed; /* the range out was trimmed: the next holder of the mutex gives it back */
    tiers_wear wear;
    uint64_t wear_counted; /* of what the worker wrote, in wear already */
    uint64_t left_bytes;   /* of extents released with transfers in flight; done_mutex */
    bool draining;
    uint32_t passed_over;            /* objects in a row without a unit here */
    uint32_t spared;                 /* objects in a row kept away since a write failed */
    uint32_t syncs;                  /* under way on the worker */
    _Atomic(unsigned char *) memory; /* the device's bytes, or NULL */
    _Atomic uint64_t address;        /* as its own processor finds them, or 0, */
    _Atomic uint32_t gpu;            /* which is this GPU, as of tiers_member_options */
    _Atomic uint32_t lent;           /* objects of it that are lent now; eject waits for 0 */
} pool_member;

typedef struct pool_slots pool_slots;

struct tiers_pool {
    pthread_mutex_t mutex;
    pthread_mutex_t done_mutex; /* the second block of every transfer in flight, and pins */
    pthread_cond_t done;
    tiers_location *late;   /* released, and their last transfers have ended since; done_mutex */
    _Atomic uint32_t holds; /* who closes, and each worker that nobody joined */
    _Atomic uint32_t left_objects; /* locations that members' left_bytes count */
    uint64_t budget_bytes;         /* UINT64_MAX = all there is */
    uint32_t unit_bytes;
    tiers_striping striping; /* under the mutex */
    uint32_t cursor;         /* round robin: the member whose turn it is; under the mutex */
    uint32_t reserved;       /* objects so far, modulo 2^32; under the mutex */
    double entry_pass;       /* entry: the pass of the member chosen last; under the mutex */
    pool_slots *slots;       /* slots.h; NULL = none; under the mutex */
    uint32_t trim_waiters;   /* reservations that wait for a trim's end: none begins meanwhile */
    bool reweigh;
    slack_settings gate; /* but for mix_loss, which is each member's */
    atomic_bool hurry;   /* writes hold more staging than its watermark */
    _Atomic(FILE *) log; /* of decisions, or NULL */
    tiers_needs needs;   /* own lock */
    bool virtual_time;   /* every present member's clock is virtual */
    _Atomic uint32_t member_count;
    pool_member members[TIERS_MEMBERS_MAX];
};

/* Whether reads and writes reach the member. A member whose device is gone for good has a retired
 * worker, and so serves nothing. */
static inline bool pool_member_serves(const pool_member *member)
{
    return member->worker != NULL && !tiers_worker_retired(member->worker);
}

/* Whether new units go to the member; the mutex is held. */
static inline bool pool_member_takes(const pool_member *member)
{
    return pool_member_serves(member) && !member->draining;
}

/* The weight that placement counts on, in bytes per second. The member has a worker. */
static inline double pool_member_weight(const pool_member *member)
{
    return tiers_worker_weight(member->worker);
}

/* Whether placement counts bandwidths. */
static inline bool pool_is_weighted(const tiers_pool *pool)
{
    return pool->striping != TIERS_STRIPE_EQUAL && pool->striping != TIERS_STRIPE_ROUND_ROBIN;
}

/* The weight that the deal counts on; 0 = the member takes no part. The mutex is held, as for the
 * next ones. */
double pool_deal_weight(const tiers_pool *pool, uint32_t member);

/* Deals `units` to members with weights and rooms, in the pool's way; owed: what they are owed
 * after it. KVT_OK; KVT_E_SPACE. */
KVT_NODISCARD kvt_status pool_deal(const tiers_pool *pool, const tiers_stripe_member *members,
                                   uint32_t units, uint32_t *dealt, double *owed);

/* Whether an object of so many units lies whole on one member. */
bool pool_is_whole(const tiers_pool *pool, uint64_t units);

/* The member of a mask for an object that lies whole on one: in turn by bandwidth (entry), or that
 * which is free first. member_count: none. */
uint32_t pool_choose_whole(const tiers_pool *pool, uint64_t mask, uint64_t bytes);

/* Counts an object whose member was chosen so. */
void pool_count_whole(tiers_pool *pool, uint32_t member, uint64_t bytes);

/* The step at which the deal of the k-th object of so many units begins. */
uint32_t pool_turn(const tiers_pool *pool, uint32_t k, uint64_t units);

/* Whether a new object may lie on the member now: it takes units, answers in time, its last write
 * did not fail, and its budget of writes is not spent. */
bool pool_member_welcomes(pool_member *member);

/* The members that answer late, as a mask, where the others hold half of the capacity or more; 0:
 * they do not, or none is late. */
uint64_t pool_lagging(tiers_pool *pool);

/* Brings a member's wear up to now; the mutex is held. */
void pool_count_wear(pool_member *member);

/* Fills a member without a device from the options, and starts it; on failure nothing has changed.
 * KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status pool_start_member(tiers_pool *pool, pool_member *member,
                                           const tiers_member_options *options);

/* Returns the extents of locations that were released while transfers of them were in flight. The
 * worker that ends the last transfer cannot do it, because a worker never takes the mutex. The
 * mutex is held. */
void pool_collect_late(tiers_pool *pool);

/* Fills the second block of a transfer for so many parts on the members of a mask. done_mutex is
 * held. */
void pool_begin_transfer(tiers_pool *pool, tiers_transfer *transfer, uint64_t members,
                         uint32_t count);

/* Books the part of a transfer that one member has: the workers' report, or the starter's for a
 * part that its worker did not take. */
tiers_job_finished pool_job_finished;

/* Members that transfers were queued with, and that are to be called. */
typedef struct pool_calls {
    uint64_t drives;
    uint64_t copying; /* memory */
} pool_calls;
void pool_note_call(const tiers_pool *pool, pool_calls *calls, uint32_t member);
void pool_call(tiers_pool *pool, const pool_calls *calls);

/* A pinned location is not freed, and its extents are given to nobody else. done_mutex is held. */
void pool_pin(const tiers_location *location);

/* Counts the extents of a location that was released and is pinned, or is not any more. done_mutex
 * is held. */
void pool_count_left(tiers_pool *pool, const tiers_location *location, bool left);
void pool_unpin(tiers_pool *pool, const tiers_location *location);

/* Gives a range of a member's space back; the mutex is held. trim: nothing durable names it. */
void pool_release_range(pool_member *member, tiers_range range, bool trim);

/* Gives the range back that the member's worker has trimmed; the mutex is held. True when there was
 * one. */
bool pool_settle_trim(pool_member *member);

/* The workers' spare function: one step of trimming. */
tiers_worker_spare pool_trim_step;

/* The fault of a member's options, or NULL. */
const char *pool_member_fault(const tiers_member_options *options);

/* Budget and use of the members that take new units; the mutex is held. */
void pool_sum(const tiers_pool *pool, uint64_t *capacity_out, uint64_t *used_out);

#endif
