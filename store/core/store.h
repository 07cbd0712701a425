/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.h - the store's own object, and what every file of this room may ask of it
 * (store_common.c). A part of the object that has a file of its own is that file's header's.
 *
 * Lock order: store->lock, then a pool's own locks, then the catalog queue's. observer_lock is
 * taken alone. store->lock is never held over I/O, encoding, SQLite or an observer.
 */
#ifndef STORE_STORE_H
#define STORE_STORE_H

#include "base/fork_guard.h"
#include "base/handle_calls.h"
#include "codecs/record.h"
#include "gpu/gpu_sites.h"
#include "store/background/backoff.h"
#include "store/background/copies.h"
#include "store/background/persist.h"
#include "store/background/pressure.h"
#include "store/background/quarantine.h"
#include "store/background/relayout.h"
#include "store/background/scrub.h"
#include "store/catalog/catalog.h"
#include "store/core/entry.h"
#include "store/core/place.h"
#include "store/core/plans.h"
#include "store/core/spaces.h"
#include "store/core/staging.h"
#include "store/core/transfer.h"
#include "store/learn/bases.h"
#include "store/learn/learn.h"
#include "store/learn/trust.h"
#include "store/read/lease.h"
#include "store/read/pass.h"
#include "store/read/visit.h"
#include "tiers/devices/superblock.h"
#include "tiers/pool/pool.h"

#include <kvterrace/kvterrace.h>
#include <kvterrace/watch.h>
#include <pthread.h>
#include <stdatomic.h>

#define STORE_PLAN_MOVES       256u /* moves of one plan at most */
#define STORE_PLANS_QUEUED     64u  /* promotion plans waiting for the background at most */
#define STORE_TIMES            512u /* buckets of the decision time histogram */
#define STORE_HANDOVER_THREADS 4u   /* that carry out puts */

/* The walk for entries whose lifetime has ended (lifetime.c). Under store->lock. */
typedef struct store_lifetimes {
    uint64_t next_ns; /* no entry that was looked at ends before; UINT64_MAX = none has an end */
    bool walking;
    size_t bucket; /* where the walk goes on */
} store_lifetimes;

/* Puts that were handed over (handover.c). Under store->lock. */
typedef struct store_handover {
    struct store_staged *first, *last; /* in the order of their puts; begun ones too */
    struct store_staged *waiting;      /* the first that no executor has begun */
    uint32_t count;
    uint32_t entered;                              /* threads that have begun moves of puts */
    uint64_t numbers;                              /* puts handed over, ever */
    double seconds[KVT_TIER_COUNT];                /* of writes that wait or are under way */
    double write_seconds_per_byte[KVT_TIER_COUNT]; /* of recent plans, per byte put */
    uint64_t writes_noted;                         /* plans in that mean */
    double copy_seconds_per_byte;                  /* of recent copies of puts */
    kvt_status failure;                            /* the first error since the last flush, */
    uint64_t failed_ns;                            /* and its instant, CLOCK_MONOTONIC */
    bool made;                                     /* there is something to close */
    bool stopping;
    pthread_cond_t arrived; /* a put; the stop */
    /* Fixed after open. */
    double backlog_seconds;
    store_staging *staging; /* own lock */
    kvt_move *moves;        /* STORE_PLAN_MOVES of each thread */
    pthread_t threads[STORE_HANDOVER_THREADS];
    uint32_t thread_count; /* 0: callers carry their puts out themselves */
} store_handover;

/* What a planned move is for. */
typedef enum store_move_purpose {
    STORE_MOVE_PUT = 0,
    STORE_MOVE_PROMOTION = 1,
    STORE_MOVE_DEMOTION = 2,
    STORE_MOVE_RECODE = 3, /* another variant in the same tier */
    STORE_MOVE_EVICTION = 4,
    STORE_MOVE_COUNT = 5
} store_move_purpose;

/* Causes of writes of records to SSD. */
typedef enum store_write_cause {
    STORE_WRITE_PUT = 0,
    STORE_WRITE_DEMOTION = 1,
    STORE_WRITE_RECODE = 2,
    STORE_WRITE_COPY = 3, /* write-back */
    STORE_WRITE_RELAYOUT = 4,
    STORE_WRITE_COUNT = 5
} store_write_cause;

/* Counts under store->lock that the public statistics (store->counters) do not have. */
typedef struct store_tallies {
    uint64_t decision_times[STORE_TIMES]; /* 16 buckets per octave of nanoseconds */
    uint64_t decision_ns;                 /* of all of them */
    uint64_t checksum_failures;           /* of load_failures */
    uint64_t refusals[STORE_REFUSAL_COUNT];
    uint64_t outcomes[STORE_MOVE_COUNT][2];  /* committed, aborted; sums as those of moves */
    uint64_t ssd_written[STORE_WRITE_COUNT]; /* bytes of records that were kept */
    uint64_t put_tokens[2];                  /* of puts: stored already, others */
} store_tallies;

#define STORE_SHARES     1024u /* hash chains of load_share.c */
#define STORE_PLANES_MAX 64u   /* variants of planes in a calibration */

struct kvt_store {
    const base_store_calls *elsewhere; /* NULL: it is of this process (base/handle_calls.h) */
    uint32_t forks;                    /* base_fork_guard_count of the process that opened it */
    pthread_mutex_t lock;
    pthread_cond_t changed;        /* an entry's state or readers; the queue; space */
    pthread_cond_t background_due; /* ends the background's pause: stopping, or plan_waits */
    entry_secret secret;           /* fixed once the catalog is open */
    entry_memory memory;           /* of the entries of both tables */
    entry_table table;
    entry_table quarantined; /* on devices that are gone: neither visible nor the policy's */
    kvt_policy *policy;
    uint64_t next_serial;      /* of places, and of the generations in records */
    uint64_t record_bytes_max; /* largest record stored so far */
    kvt_store_stats counters;  /* what is counted as it happens; under lock, as the tallies */
    store_tallies tallies;
    struct store_queued_plan *queue[STORE_PLANS_QUEUED];
    uint32_t queue_count;
    uint64_t hints_skipped; /* keys that were not stored, ever */
    store_pressure pressure;
    bool plan_waits; /* for the background, which is to run the queue at once */
    bool maintaining;
    bool stopping;
    uint32_t draining[KVT_TIER_COUNT]; /* replaced places that are read and not visited */
    uint64_t drained;                  /* places given back after that, ever */
    store_relayout relayouts[KVT_TIER_COUNT];
    store_backoff backoff;
    store_copies copies;
    store_scrub scrub;
    store_persist persist;
    store_lifetimes lifetimes;
    store_uses uses;
    store_spaces spaces;
    store_handover handover;
    store_leases leases;
    store_visits visits;
    store_passes passes;      /* own lock */
    store_bases bases;        /* own lock */
    gpu_sites gpus;           /* own lock */
    struct kvt_queue *queues; /* that are open */
    struct kvt_ring *rings;   /* same */
    /* Options are made with the figures of an epoch; a curve that drifts begins another epoch. */
    uint32_t curve_epoch;
    uint32_t curve_swept;   /* all entries have options of it, or of a later epoch */
    size_t curve_bucket;    /* the walk's next bucket; a new epoch goes on from it */
    size_t curve_left;      /* buckets that the walk has left */
    size_t curve_buckets;   /* of the table, when curve_left was set */
    uint64_t reopened_seen; /* of learn->reopened */
    store_trust trust;

    /* Fixed after open. */
    store_learn *learn;          /* own lock */
    struct store_remote *remote; /* remote_tier.h; NULL: no other host is asked */
    struct store_watch *watch;   /* watching.h; own locks */
    double high_watermark;
    double close_deadline_seconds; /* 0 = close writes nothing back */
    double loss_limit;             /* of every tenant; 1 without lossy variants */
    tiers_pool *pools[KVT_TIER_COUNT];
    uint32_t unit_bytes[KVT_TIER_COUNT];
    uint32_t placement[KVT_TIER_COUNT];       /* kvt_placement */
    uint64_t padding_bytes;                   /* of SSD's slots, as the policy's capacity has it */
    uint64_t lent_bytes[KVT_TIER_COUNT];      /* taken out of the policy's capacity (scratch.h), */
    uint64_t scratch_bytes[KVT_TIER_COUNT];   /* part of them that extents hold; under lock */
    uint64_t withheld_bytes[KVT_TIER_COUNT];  /* as the policy was told (store_withhold) */
    uint64_t retired_members[KVT_TIER_COUNT]; /* masks of members known to be out; under lock */
    bool capacity_passed; /* a recovery took in more than the policy may fill the SSD tier with */
    bool returns_owed[KVT_TIER_COUNT]; /* quarantined entries lack memory to return; under lock */
    store_catalog *catalog;            /* NULL: nothing survives */
    uint8_t pool_id[16];               /* in the devices' labels, with the epoch */
    uint64_t epoch;
    tiers_undone undone; /* found in the labels; fixed after the open */
    bool format;
    struct store_early *early; /* early.h, until the close; NULL without serve_early */
    bool shared;               /* other threads may have the store: shared state needs the lock */
    bool opened;               /* wholly */
    kvt_codec_workers workers_given;
    const kvt_codec_workers *workers;        /* these, or NULL */
    pthread_mutex_t wear_lock;               /* under it only locks of pool and catalog */
    uint64_t wear_noted[TIERS_MEMBERS_MAX];  /* bytes written when last queued; under wear_lock */
    pthread_mutex_t kept_lock, reads_lock;   /* scratch.h, before `lock`; read.h, after it */
    pthread_cond_t read_ended;               /* a read has ended */
    struct load_share *shares[STORE_SHARES]; /* places that layered loads read; under reads_lock */
    pthread_mutex_t members_lock; /* devices join and leave one at a time; before `lock` */
    kvt_cost_model costs;         /* the tiers' bandwidth is under lock */
    kvt_cost_model curve_costs;   /* by the measured curves, under lock */
    kvt_hole_mode holes;
    uint32_t exact_variants;                  /* of costs; from here on lossy ones, */
    uint32_t whole_variants;                  /* from here on those that drop tokens, */
    uint32_t unscored_variants;               /* and from here on those that drop by scores */
    kvt_layout ladder_layout;                 /* of the entries that may be lossy; zero: none may */
    kvt_codec_curve ladder[KVT_VARIANTS_MAX]; /* of the profile, within the limits */
    uint32_t ladder_count;
    kvt_codec_curve planes[STORE_PLANES_MAX]; /* of its calibration, within them or not */
    uint32_t planes_count;
    _Atomic uint64_t coarse_bytes; /* that progressive loads keep (load_coarse.c) */
    store_staging *staging;        /* own lock; outlives the store */
    uint64_t zero_ns;              /* of CLOCK_MONOTONIC, where the store's time begins: uses.h */
    double tick_seconds;
    uint64_t get_deadline_ns; /* from the call on; KVT_NO_DEADLINE = none */
    uint64_t move_bytes_per_s;
    uint32_t moves_per_tick;
    kvt_observer observer;
    pthread_mutex_t observer_lock;
    pthread_t background;
    bool has_background;
    bool background_holds;        /* the thread holds `lock`; it may end at any instant */
    uint64_t background_ended_ns; /* store_now_ns, before the store stopped it; 0 = it runs */
};
_Static_assert(offsetof(struct kvt_store, forks) == offsetof(base_handle, forks), "a handle");

/*
 * False when nobody holds the control lock of an open store. It is for asserts alone: a function
 * whose contract says "lock held" never sees the lock free. While a store is being opened or closed
 * one thread has it, and takes no lock.
 */
bool store_is_locked(const kvt_store *store);

/* Nanoseconds since the store was opened, and STORE_PAST_NS more (uses.h). */
uint64_t store_now_ns(const kvt_store *store);

/* Counts a load that failed, of a get or of a move. Lock held. */
void store_count_load_failure(kvt_store *store, kvt_status failure);

/* Counts a decision that took from started_ns to ended_ns (store_now_ns). Lock held. */
void store_count_decision(kvt_store *store, uint64_t started_ns, uint64_t ended_ns);

/* The tier of a bytes vector with bytes in one tier; NONE when it is all zero. */
kvt_tier store_tier_of(const uint64_t bytes[KVT_TIER_COUNT]);

/* What a planned move is for. */
store_move_purpose store_purpose_of(const kvt_move *move);

/* The members of a tier in one state, with all of some KVT_DEVICE_ flags, as a mask. */
uint64_t store_members(const kvt_store *store, kvt_tier tier, kvt_device_state state,
                       uint32_t flags);

/* Whether some tier has capacity now. */
bool store_has_capacity(const kvt_store *store);

/* The seconds that a copy of so many staged bytes takes. Lock held. */
double store_copy_seconds(const kvt_store *store, uint64_t bytes);

/* Sum of a bytes vector. */
uint64_t store_bytes_of(const uint64_t bytes[KVT_TIER_COUNT]);

/* The capacity that the policy plans with: the pool's, less the bytes that whole stripe units on
 * several members can leave unusable, and less what is lent (scratch.h). Lock held, but at open. */
uint64_t store_policy_capacity(const kvt_store *store, kvt_tier tier);

/* Withholds from the policy what is no room in a tier now (tiers_pool_withheld), and some records
 * more, because evictions of plans under way free room that is to be withheld, too. Called before
 * each decision on a put and in each background round. Lock held. */
void store_withhold(kvt_store *store);

/* Lowers the policy's capacity of the SSD tier, which a recovery has raised to the pool's, as far
 * as the entries stored there allow. In the background round until it is down. Lock held. */
void store_settle_capacity(kvt_store *store);

/* Closes all parts, of a store that an open has made as far as it came. Not concurrent with
 * anything. */
void store_close_parts(kvt_store *store);

/* Whether the store was opened by this process. */
static inline bool fork_guard_is_ours(const kvt_store *store)
{
    return fork_guard_is_current(store->forks);
}

#endif
