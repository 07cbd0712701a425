/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.h - the store's own object, shared by the files of this room.
 *
 * Lock order: store->lock, then a pool's own locks, then the catalog queue's. observer_lock is
 * taken alone. store->lock is never held over I/O, encoding, SQLite or an observer.
 */
#ifndef STORE_STORE_H
#define STORE_STORE_H

#include "codecs/record.h"
#include "store/bases.h"
#include "store/catalog.h"
#include "store/entry.h"
#include "store/learn.h"
#include "store/lease.h"
#include "store/place.h"
#include "store/quarantine.h"
#include "store/staging.h"
#include "store/transfer.h"
#include "store/visit.h"
#include "tiers/devices/superblock.h"
#include "tiers/pool/pool.h"

#include <kvterrace/kvterrace.h>
#include <kvterrace/watch.h>
#include <pthread.h>

#define STORE_PLAN_MOVES       256u /* moves of one plan at most */
#define STORE_PLANS_QUEUED     64u  /* promotion plans waiting for the background at most */
#define STORE_TIMES            512u /* buckets of the decision time histogram */
#define STORE_HANDOVER_THREADS 4u   /* that carry out puts */

/* A plan that waits for the background; its entries are MOVING or LEAVING already. */
typedef struct store_queued_plan {
    uint32_t count;
    kvt_move moves[];
} store_queued_plan;

#define STORE_RELAYOUTS_QUEUED 64u

/* Objects of one tier that are to be laid out anew, and the budget for that. Under store->lock. */
typedef struct store_relayout {
    uint64_t bytes_per_s; /* fixed after open; 0 = hot objects stay as they are */
    double tokens;        /* bytes that may be moved now */
    uint64_t earned_ns;   /* up to when tokens were earned */
    uint32_t count;
    uint64_t handles[STORE_RELAYOUTS_QUEUED];
    size_t drain_bucket; /* where the walk over the table goes on */
} store_relayout;

#define STORE_BACKOFFS 256u

/* An entry whose last move failed: in no plan until an instant (store_now_ns). */
typedef struct store_backoff_item {
    uint64_t handle;
    uint64_t until_ns;
    bool no_room; /* only room was lacking: it makes way for a put that finds none either */
} store_backoff_item;

/* Moves that failed, and when they may be tried again. Under store->lock. */
typedef struct store_backoff {
    uint32_t count;
    uint32_t failed_ticks;   /* plans of the policy's tick that failed, in a row */
    uint64_t next_ns;        /* the earliest until_ns */
    uint64_t tick_resume_ns; /* the tick plans nothing before */
    store_backoff_item items[STORE_BACKOFFS];
} store_backoff;
/* Copies on SSD beside places above (copies.c). Under store->lock. */
typedef struct store_copies {
    bool kept;            /* fixed after open */
    uint64_t total;       /* listed or not */
    uint64_t bytes;       /* of all of them */
    store_entry **listed; /* entries whose copy may be dropped, in no order */
    uint32_t count;
    uint32_t room;
    uint64_t draw; /* what is drawn next */
} store_copies;

/* The background's write-back (persist_background.c). Under store->lock. */
typedef struct store_persist {
    uint64_t bytes_per_s;  /* fixed after open; 0 = none */
    double tokens;         /* bytes that may be written now */
    uint64_t earned_ns;    /* up to when tokens were earned */
    size_t bucket;         /* where the walk over the table goes on */
    bool pass_found;       /* the walk has found something since it began anew */
    uint64_t bytes_wanted; /* of the record that waits for room or budget; 0 = none does */
    uint64_t dropped_seen; /* of counters.copies_dropped */
    uint64_t resume_ns;    /* nothing is looked at before; store_now_ns */
} store_persist;

/* The walk for entries whose lifetime has ended (lifetime.c). Under store->lock. */
typedef struct store_lifetimes {
    uint64_t next_ns; /* no entry that was looked at ends before; UINT64_MAX = none has an end */
    bool walking;
    size_t bucket; /* where the walk goes on */
} store_lifetimes;

/* A space whose entries belong to a tenant when their puts name none. */
typedef struct store_space {
    uint64_t number;
    uint32_t tenant;
} store_space;

/* Those spaces, in the order of their numbers. Under store->lock. */
typedef struct store_spaces {
    store_space *items;
    uint32_t count, room;
} store_spaces;

/* Puts that were handed over (handover.c). Under store->lock. */
typedef struct store_handover {
    struct store_staged *first, *last; /* in the order of their puts; begun ones too */
    struct store_staged *waiting;      /* the first that no executor has begun */
    uint32_t count;
    uint32_t entered;                              /* threads that have found their part of moves */
    uint64_t numbers;                              /* puts handed over, ever */
    double seconds[KVT_TIER_COUNT];                /* of writes that wait or are under way */
    double write_seconds_per_byte[KVT_TIER_COUNT]; /* of plans lately, per byte that was put */
    uint64_t writes_noted;                         /* plans in that mean */
    double copy_seconds_per_byte;                  /* what the copies of puts lately took */
    kvt_status failure;                            /* the first error since the last flush, */
    uint64_t failed_ns;                            /* and its instant, CLOCK_MONOTONIC */
    bool made;                                     /* what needs closing is there */
    bool stopping;
    pthread_cond_t arrived; /* a put; the stop */
    /* Fixed after open. */
    double backlog_seconds;
    store_staging *staging; /* own lock */
    kvt_move *moves;        /* STORE_PLAN_MOVES of each thread */
    pthread_t threads[STORE_HANDOVER_THREADS];
    uint32_t thread_count; /* 0: callers carry their puts out themselves */
} store_handover;

/* Why a put was refused. The first three sum up to puts_refused, the next two to puts_busy. */
typedef enum store_refusal {
    STORE_REFUSAL_POLICY = 0,
    STORE_REFUSAL_LEARNED = 1,   /* by the policy, at speeds that were learned lately */
    STORE_REFUSAL_NO_DEVICE = 2, /* no tier has room at all */
    STORE_REFUSAL_STAGING = 3,   /* put staging is full */
    STORE_REFUSAL_BACKLOG = 4,   /* a tier's writes are too far behind */
    STORE_REFUSAL_IN_MOTION = 5, /* another call puts or removes the same key */
    STORE_REFUSAL_PARENT = 6,    /* the entry before it is not stored */
    STORE_REFUSAL_COUNT = 7
} store_refusal;

/* What a planned move is for. */
typedef enum store_move_purpose {
    STORE_MOVE_PUT = 0,
    STORE_MOVE_PROMOTION = 1,
    STORE_MOVE_DEMOTION = 2,
    STORE_MOVE_RECODE = 3, /* another form in the same tier */
    STORE_MOVE_EVICTION = 4,
    STORE_MOVE_COUNT = 5
} store_move_purpose;

/* Counters under store->lock. */
typedef struct store_counters {
    uint64_t puts, puts_refused, puts_existing, gets, misses, shared_reads, load_failures, timeouts;
    uint64_t refused_tokens; /* of the misses: the form has dropped tokens */
    uint64_t lacked_basis;   /* of the misses: the store lacks the basis of the form */
    uint64_t refused_loss;   /* of the misses: the form may lose more than the get accepts */
    uint64_t recovered, recovery_drops, moves_committed, moves_aborted;
    uint64_t moves_deferred; /* for a round, because waited reads keep a device busy */
    uint64_t promotions, demotions, evictions;
    uint64_t relayouts, relayout_bytes, quarantined, readmitted, recosted;
    uint64_t moves_failed_io, moves_failed_space, moves_failed_memory;
    uint64_t moves_failed_larger; /* the record was larger than planned */
    uint64_t given_up;            /* entries dropped for the room of a put */
    uint64_t copies_kept, copies_dropped, copy_demotions, copy_fallbacks;
    uint64_t puts_refused_learned, puts_tried;
    uint64_t puts_busy; /* refused because the store could not keep up */
    uint64_t puts_lost; /* accepted, and not stored */
    uint64_t staged_hits;
    uint64_t expired;                    /* entries removed after the end of their lifetime */
    uint64_t persisted, persisted_bytes; /* by write-back */
    uint64_t copy_evictions;
    uint64_t hits[KVT_TIER_COUNT];
    uint64_t decision_times[STORE_TIMES]; /* 16 buckets per octave of nanoseconds */
    uint64_t decision_ns;                 /* of all of them */
    uint64_t checksum_failures;           /* of load_failures */
    uint64_t refusals[STORE_REFUSAL_COUNT];
    uint64_t moves[STORE_MOVE_COUNT][2]; /* committed, aborted; sums as the two above */
    uint64_t put_tokens[2];              /* of puts: stored already, others */
} store_counters;

#define STORE_REFUSALS 64u /* remembered, of which one says why */
#define STORE_TRIALS   16u /* entries that wait to be read back at most */

/* Entries that are lost without a tier: puts that were refused, and evictions above it. */
typedef struct trust_tier {
    uint64_t lost; /* less TRUST_UNDONE for each entry that the tier took on its merit */
    uint64_t next; /* the loss at which a put is tried in the tier whatever the figures say */
    uint64_t wait; /* losses from the next trial to the one after it */
} trust_tier;

/* Puts that were refused, and the trials against figures that refuse too much. Under store->lock.
 */
typedef struct store_trust {
    bool weighs; /* the policy refuses what costs more than it saves; fixed after open */
    trust_tier tiers[KVT_TIER_COUNT];
    uint64_t learned;     /* puts that learned figures refused, ever */
    size_t bucket;        /* where the search for an entry to time went on */
    uint32_t trial_count; /* entries that wait to be timed */
    kvt_key trials[STORE_TRIALS];
    uint64_t refusals; /* ever; the last ones are remembered below */
    struct {
        uint64_t handle;
        const char *reason; /* static */
    } refused[STORE_REFUSALS];
} store_trust;

/* How long the background has left tiers alone whose devices are pressed. Under store->lock. */
typedef struct store_pressure {
    uint32_t rounds[KVT_TIER_COUNT]; /* in a row */
    uint32_t let_through;            /* a mask of the tiers that this round works on all the same */
} store_pressure;

#define STORE_SHARES 1024u /* hash chains of load_share.c */

struct kvt_store {
    pthread_mutex_t lock;
    pthread_cond_t changed;        /* an entry's state, readers or load; the queue; space */
    pthread_cond_t background_due; /* ends the background's pause: stopping, or plan_waits */
    entry_secret secret;           /* fixed once the catalog is open */
    entry_memory memory;           /* of the entries of both tables */
    entry_table table;
    entry_table quarantined; /* on devices that are gone: neither visible nor the policy's */
    kvt_policy *policy;
    uint64_t next_serial;      /* of places, and of the generations in records */
    uint64_t record_bytes_max; /* largest record stored so far */
    store_counters counters;
    store_queued_plan *queue[STORE_PLANS_QUEUED];
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
    store_persist persist;
    store_lifetimes lifetimes;
    store_uses uses;
    store_spaces spaces;
    store_handover handover;
    store_leases leases;
    store_visits visits;
    store_bases bases;        /* own lock */
    struct kvt_queue *queues; /* that are open */
    /* Options are made with figures of an epoch; a curve that is re-opened begins another. */
    uint32_t curve_epoch;
    uint32_t curve_swept;   /* all entries have options of it, or of a later one */
    size_t curve_bucket;    /* where the walk over the table goes on, also in another epoch */
    size_t curve_left;      /* buckets until it is round */
    size_t curve_buckets;   /* of the table, when that was set */
    uint64_t reopened_seen; /* of learn->reopened */
    store_trust trust;

    /* Fixed after open. */
    store_learn *learn;          /* own lock */
    struct store_remote *remote; /* remote_tier.h; NULL: no other host is asked */
    struct store_watch *watch;   /* watching.h; own locks */
    double high_watermark;
    double close_deadline_seconds; /* 0 = close writes nothing back */
    double loss_limit;             /* of every tenant; 1 without lossy variants */
    kvt_striping striping[KVT_TIER_COUNT];
    tiers_pool *pools[KVT_TIER_COUNT];
    uint32_t unit_bytes[KVT_TIER_COUNT];
    uint64_t lent_bytes[KVT_TIER_COUNT]; /* out of the policy's capacity (scratch.h), and those */
    uint64_t scratch_bytes[KVT_TIER_COUNT];   /* of them that extents are held for; under lock */
    uint64_t retired_members[KVT_TIER_COUNT]; /* masks of members known to be out; under lock */
    bool capacity_passed; /* a recovery took in more than the policy may fill the SSD tier with */
    bool returns_owed[KVT_TIER_COUNT]; /* quarantined entries lack memory to return; under lock */
    store_catalog *catalog;            /* NULL: nothing survives */
    uint8_t pool_id[16];               /* in the devices' labels, with the epoch */
    uint64_t epoch;
    tiers_undone undone; /* what the labels say; fixed after the open */
    bool format;
    bool shared;    /* other threads may have the store: shared state needs the lock */
    bool opened;    /* wholly */
    uint32_t forks; /* fork_guard_count of the process that opened it */
    kvt_codec_workers workers_given;
    const kvt_codec_workers *workers; /* these, or NULL */
    pthread_mutex_t wear_lock;        /* a leaf but for what the pool and the catalog do inside */
    uint64_t wear_noted[TIERS_MEMBERS_MAX];  /* bytes written when last queued; under wear_lock */
    pthread_mutex_t kept_lock, shares_lock;  /* scratch.h, before `lock`; load_share.c, after it */
    struct load_share *shares[STORE_SHARES]; /* places that layered loads read; under shares_lock */
    pthread_mutex_t members_lock; /* devices join and leave one at a time; before `lock` */
    kvt_cost_model costs;         /* but for the tiers' bandwidth, which is under lock */
    kvt_cost_model curve_costs;   /* as the measured curves have it, under lock */
    kvt_hole_mode holes;
    uint32_t exact_variants;                  /* of costs; the lossy ones follow, */
    uint32_t whole_variants;                  /* from here on those that drop tokens, */
    uint32_t unscored_variants;               /* and from here on those that do by scores */
    kvt_layout ladder_layout;                 /* of the entries that may be lossy; zero: none may */
    kvt_codec_curve ladder[KVT_VARIANTS_MAX]; /* what the profile offers, whatever the limit */
    uint32_t ladder_count;
    store_staging *staging; /* own lock; outlives the store */
    uint64_t zero_ns;       /* of CLOCK_MONOTONIC, where the store's time begins: uses.h */
    double tick_seconds;
    uint64_t get_deadline_ns; /* from the call on; KVT_NO_DEADLINE = none */
    uint64_t move_bytes_per_s;
    uint32_t moves_per_tick;
    kvt_move_observer *observer;
    void *observer_context;
    pthread_mutex_t observer_lock;
    pthread_t background;
    bool has_background;
    bool background_holds;        /* the lock: for the thread's own end, which may come anywhere */
    uint64_t background_ended_ns; /* store_now_ns, before the store stopped it; 0 = it runs */
};

/*
 * False when nobody holds the control lock of an open store. It is for asserts alone: a function
 * whose contract says "lock held" never sees the lock free. While a store is being opened or closed
 * one thread has it, and takes no lock.
 */
bool store_is_locked(const kvt_store *store);

/* ---- store_common.c ---- */

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

/* Lowers the policy's capacity of the SSD tier, which a recovery has raised to the pool's, as far
 * as the entries stored there allow. In the background round until it is down. Lock held. */
void store_settle_capacity(kvt_store *store);

/* ---- store_offer.c ---- */

/* Builds the offer of an entry to the policy: options holds KVT_OPTIONS_MAX, offer_out names them.
 * Lock held. */
KVT_NODISCARD kvt_status store_offer(const kvt_store *store, const store_entry *entry,
                                     kvt_option *options, kvt_policy_entry *offer_out);

/* The same at other figures than those of now, and with the measured size of one variant, or NULL.
 */
KVT_NODISCARD kvt_status store_offer_at(const kvt_store *store, const kvt_cost_model *figures,
                                        const store_entry *entry, const kvt_known_size *measured,
                                        kvt_option *options, kvt_policy_entry *offer_out);

/* Hands an entry that is stored in a tier to the policy. Lock held. KVT_OK; KVT_E_UNSUPPORTED (a
 * variant that this store does not keep); KVT_E_SPACE; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status store_adopt(kvt_store *store, const store_entry *entry, kvt_tier tier,
                                     kvt_variant variant, uint64_t record_bytes);

/* The same of the record at a place, which is there whether the policy has room for it or not:
 * without room in the SSD tier the policy's capacity is passed until the background has made some,
 * as after a recovery. Lock held. Statuses as there. */
KVT_NODISCARD kvt_status store_adopt_place(kvt_store *store, const store_entry *entry,
                                           const store_place *place);

/* Gives a stored entry's options the figures of now, and the sizes of now. Lock held. */
void store_recost(kvt_store *store, store_entry *entry);
void store_resize(kvt_store *store, const store_entry *entry);

/* ---- plans.c ---- */

/* Marks the entries of a fresh plan as MOVING or LEAVING. Lock held since the policy call. */
void plan_mark(kvt_store *store, const kvt_plan *plan);

/* Aborts marked moves that have not begun. Lock held; returns with the lock held. Observers are
 * notified by the caller through plan_report. */
void plan_abort_moves(kvt_store *store, const kvt_move *moves, uint32_t count);

/* The entry of a move that is not carried out is at rest again, or leaves when it was to be put.
 * Lock held. */
void plan_settle_entry(kvt_store *store, const kvt_move *move);

/* Notifies the observer of how a move ended. No lock held. */
void plan_report(kvt_store *store, const kvt_move *move, kvt_status outcome);

/* Aborts in the policy a plan whose entries were not marked. Lock held. */
void plan_withdraw(kvt_store *store, const kvt_plan *plan);

/* Queues a marked plan for the background, or aborts it when the queue is full. Lock held. */
void plan_queue(kvt_store *store, const kvt_plan *plan);

/* Aborts the queued plan that holds this handle, so that its entry is at rest. True when there was
 * one. Lock held. */
bool plan_cancel(kvt_store *store, uint64_t handle);

/* Takes the plan at an index out of the queue, keeping the order of the others. The caller frees
 * it. Lock held. */
store_queued_plan *plan_unqueue(kvt_store *store, uint32_t index);

/* ---- executor.c ---- */

/* Why a move failed. Only the executor knows the cause; its callers do not guess it. */
typedef enum executor_cause {
    EXECUTOR_DONE = 0,
    EXECUTOR_ROOM,   /* pool or policy had no room for the record; no device said so */
    EXECUTOR_FULL,   /* a device said that it is full */
    EXECUTOR_LARGER, /* the record came out larger than was planned */
    EXECUTOR_DEVICE, /* a device failed or is out of service, and the next plan does without it */
    EXECUTOR_MEMORY, /* of the process */
    EXECUTOR_OTHER   /* what the status says */
} executor_cause;

typedef struct executor_result {
    uint32_t committed;   /* moves */
    executor_cause cause; /* of the first failure */
    bool before_put;      /* a move before the plan's PUT failed */
    uint64_t put_bytes; /* the size that the PUT's record came out with, 0 before it was encoded */
} executor_result;

/* Carries a marked plan out, in order; after a failure the rest is aborted. views: where the
 * bytes of the plan's PUT are, one a group, or NULL. No lock held. Returns the first failure. */
KVT_NODISCARD kvt_status executor_run_plan(kvt_store *store, const kvt_move *moves, uint32_t count,
                                           const kvt_view *views, executor_result *result_out);

/* Carries out a move of a MOVING entry that the policy does not know of: it is neither committed
 * nor aborted there, nor reported. No lock held. Returns how it failed. */
KVT_NODISCARD kvt_status executor_run_unplanned(kvt_store *store, const kvt_move *move,
                                                executor_cause *cause_out);

/* Lays a RESIDENT entry of this tier out anew: the same record, in the same tier, with the weights
 * of now. No lock held. KVT_OK; KVT_MISS (the entry is not at rest there); KVT_E_SPACE (no room: it
 * stays as it is); the failures of reading and writing. */
KVT_NODISCARD kvt_status executor_relayout(kvt_store *store, uint64_t handle, kvt_tier tier);

/* Writes the record of an entry above the SSD to the SSD, as its copy, if there is room now. One in
 * motion is waited for until an instant of CLOCK_MONOTONIC in nanoseconds, 0 for not at all; a plan
 * of it that waits for the background is called off. No lock held. KVT_OK; KVT_MISS (the entry is
 * gone, is on SSD or has a copy there); KVT_E_TIMEOUT (it was in motion all the time); KVT_E_SPACE;
 * the failures of reading and writing. */
KVT_NODISCARD kvt_status executor_copy(kvt_store *store, uint64_t handle, uint64_t deadline_ns);

/* As kvt_record_bound, with scratch for the store's codec workers. */
KVT_NODISCARD kvt_status executor_bound(const kvt_store *store, const kvt_record_spec *spec,
                                        uint64_t *bytes_out, uint64_t *scratch_bytes_out);

/* ---- backoff.c ---- */

/* Releases the entries whose time is over, and ends the leases that have run out. Before every call
 * on the policy that may plan. */
void backoff_expire(kvt_store *store);

/* A move of this RESIDENT entry failed: the entry is in no plan for a while. no_room: pool or
 * policy had none for it. */
void backoff_note_failure(kvt_store *store, store_entry *entry, bool no_room);

/* Lets the entries that lacked only room into plans again, for a put that needs their room. False
 * when there is none. */
bool backoff_yield(kvt_store *store);

/* A move of this entry was carried out: its next failure is its first. */
void backoff_note_success(kvt_store *store, store_entry *entry);

/* The policy has forgotten the entry, and its pin with it. */
void backoff_forget(store_entry *entry);

/* Whether the policy's tick may plan now, and how its plan ended. */
bool backoff_may_tick(kvt_store *store);
void backoff_note_tick(kvt_store *store, kvt_status status);

/* ---- members.c ---- */

/* Queues the wear of SSD members that wrote at least so much since the last time. Any thread: the
 * catalog's writer calls it before a batch, the closer beside it. */
void members_note_wear(kvt_store *store, uint64_t bytes);

/* ---- trust.c ---- */

/* Before the first put. */
void trust_open(kvt_store *store);

/* A plan of the policy's own: counts for each tier the entries that it takes and the evictions
 * above it. Lock held. */
void trust_note_plan(kvt_store *store, const kvt_plan *plan);

/* Offers a new entry to a tier with room that has taken next to nothing for long, as worth any
 * cost; then the entry is to be read back. Lock held. KVT_OK with a plan; KVT_REFUSED: no tier is
 * due, or the entry does not fit. */
KVT_NODISCARD kvt_status trust_try_due(kvt_store *store, const store_entry *entry,
                                       const kvt_policy_entry *offer, kvt_plan *plan);

/*
 * A put was refused. Counts why, and now and then offers the entry once more, at the figures of the
 * measured curves or as one that is worth storing whatever it costs; then it is to be read back.
 * offer is the refused one. Lock held. KVT_OK with a plan; KVT_REFUSED.
 */
KVT_NODISCARD kvt_status trust_note_refused(kvt_store *store, store_entry *entry,
                                            const kvt_policy_entry *offer, kvt_plan *plan);

/* ---- trust_refusals.c ---- */

/* Keeps why a put was refused, in a ring of STORE_REFUSALS: POLICY, LEARNED, PARENT. Lock held. */
void trust_remember(kvt_store *store, uint64_t handle, store_refusal why);

/* Why the last put of a handle was refused, or NULL. Lock held. */
const char *trust_reason(const kvt_store *store, uint64_t handle);

/* Counts a put that the policy has refused in the end. Lock held. */
void trust_count_refused(kvt_store *store, uint64_t handle);

/* Takes the keys of entries that are to be read back, which times them. Returns how many, 0 while
 * devices are pressed. In the background round; no lock held. */
uint32_t trust_take_trials(kvt_store *store, kvt_key keys[STORE_TRIALS]);

/* ---- access.c ---- */

/* Reads and decodes an entry for its timing alone: it counts as no use, and as no get. */
void access_time_entry(kvt_store *store, const kvt_key *key);

/* ---- relayout.c ---- */

/* Looks at the layout of an entry that is being read; one that fell behind is queued at its second
 * such get. Lock held. */
void relayout_note_get(kvt_store *store, store_entry *entry);

/* New entries are costed with how fast the tier is now. Lock held. */
void relayout_note_speed(kvt_store *store, kvt_tier tier);

/* Moves queued objects within the tiers' budgets, and objects on draining members within the
 * round's. insist: the policy's tick made no room, so an object that finds no room on its way off a
 * member is dropped. In the background round; no lock held. */
void relayout_round(kvt_store *store, bool insist, uint64_t *budget, uint32_t *moves_done);

/* ---- copies.c ---- */

/* Keeps a place on SSD that a promotion leaves behind as the entry's copy. False when it may not be
 * kept: it is the caller's still. Lock held. */
bool copies_attach(kvt_store *store, store_entry *entry, store_place *place);

/* Takes an entry's copy away from it; NULL when it has none. The caller's to give back. Lock held.
 */
store_place *copies_detach(kvt_store *store, store_entry *entry);

/* Drops an entry's copy, if any. Lock held. */
void copies_drop(kvt_store *store, store_entry *entry);

/* Whether the entry's copy is the record that a move would write. If so the copy is not dropped
 * until copies_let_go. Lock held. */
bool copies_hold(kvt_store *store, store_entry *entry, const kvt_move *move);
void copies_let_go(kvt_store *store, store_entry *entry);

/* Makes the copy the place of a RESIDENT entry whose place cannot be read, and sets the entry aside
 * when the policy has no memory for it. False: there is no copy. Lock held. */
bool copies_fall_back(kvt_store *store, store_entry *entry);

/* Makes the copy the place of a LEAVING entry that the policy evicted from above, and has
 * forgotten, while the SSD tier is below its high watermark with it: the entry is RESIDENT again.
 * False: it leaves. Lock held. */
bool copies_outlast(kvt_store *store, store_entry *entry);

/* Bytes of the SSD tier that a copy may still be written into: below store.high_watermark, above
 * which the policy would make room, and, but at close, with what is kept free. Lock held. */
uint64_t copies_free_bytes(kvt_store *store, bool closing);

/* Drops copies, the least worth first, until some room is free. Lock held; waits for nobody. */
void copies_trim(kvt_store *store);

/* Drops copies up to so many bytes, whose extents come free with the catalog's next commit. False
 * when there was none. No lock held. */
bool copies_reclaim(kvt_store *store, uint64_t bytes);

/* Drops the copies with units on a member of the SSD tier in the mask. Lock held. */
void copies_clear_members(kvt_store *store, uint64_t members);

/* ---- persist.c ---- */

/* Writes entries above that have no record on SSD there, the most worth first, and makes what has
 * been written durable. Entries in motion are waited for. closing: nothing follows, so no room is
 * kept. No lock held. As kvt_persist.
 */
KVT_NODISCARD kvt_status persist_all(kvt_store *store, uint64_t deadline_ns, bool closing,
                                     kvt_persist_info *info_out);

/* The same at close, once the background has ended; deadline_ns 0: nothing is written. */
void persist_close(kvt_store *store, uint64_t deadline_ns);

/* ---- persist_background.c ---- */

/* Writes some entries that are worth it into free room, within store.persist_rate. In the
 * background round; no lock held. */
void persist_round(kvt_store *store);

/* ---- lifetime.c ---- */

/* Before the first entry. */
void lifetime_open(kvt_store *store);

/* Sets when a new entry was made, and its end; 0 seconds = none. Lock held. */
void lifetime_begin(kvt_store *store, store_entry *entry, double seconds);

/* An entry with an end has come into the table: a walk begins no later than its end. Lock held. */
void lifetime_note(kvt_store *store, const store_entry *entry);

/* Seconds since the put of an entry, or since the open that took it over. Lock held. */
double lifetime_age_seconds(const kvt_store *store, const store_entry *entry);

/* Seconds until the end of an entry's lifetime, above 0; 0 = it has no end. Lock held. */
double lifetime_left_seconds(const kvt_store *store, const store_entry *entry);

/* The end of an entry as the calendar has it, for its catalog row, and back; 0 = none. A row whose
 * end has passed sets an end that has passed. */
uint64_t lifetime_to_calendar(const kvt_store *store, const store_entry *entry);
void lifetime_from_calendar(kvt_store *store, store_entry *entry, uint64_t expires_ns);

/* Whether the entry's lifetime has ended: no lookup sees it then. */
static inline bool lifetime_is_over(const kvt_store *store, const store_entry *entry)
{
    return entry->expires_ns != 0 && store_now_ns(store) >= entry->expires_ns;
}

/* Whether a lookup may see the entry, which may be NULL. Lock held. */
static inline bool lifetime_shows(const kvt_store *store, const store_entry *entry)
{
    return entry != NULL && entry_is_readable(entry) && !lifetime_is_over(store, entry);
}

/* Whether entries may be removed by lifetime_round. Lock held. */
bool lifetime_is_due(const kvt_store *store);

/* Removes entries whose lifetime has ended. In the background round; no lock held. */
void lifetime_round(kvt_store *store);

/* ---- spaces.c ---- */

/* Whose an entry is whose put names tenant 0: its space's tenant, or 0. Lock held. */
uint32_t spaces_tenant(const kvt_store *store, const kvt_key *key);
void spaces_close(kvt_store *store);

/* ---- pressure.c ---- */

/* A background round begins and ends. own: a caller asked for it. Lock held. */
void pressure_begin_round(kvt_store *store, bool own);
void pressure_end_round(kvt_store *store);

/* Whether background work on a tier, or on any, waits for a later round. Lock held. */
bool pressure_defers(const kvt_store *store, kvt_tier tier);
bool pressure_defers_any(const kvt_store *store);

/* Whether a plan does, because of a tier that it reads from or writes to; counts its moves then.
 * Lock held. */
bool pressure_defers_moves(kvt_store *store, const kvt_move *moves, uint32_t count);

/* ---- maintain.c ---- */

KVT_NODISCARD kvt_status maintain_start(kvt_store *store);
/* Has the background carry out what is queued now and not after its pause. Lock held. */
void maintain_wake(kvt_store *store);
void maintain_stop(kvt_store *store);

/* ---- costs.c ---- */

/* Measurements of one device. */
typedef struct cost_device {
    kvt_affine read;
    kvt_affine write;
    bool probed;
} cost_device;

/* Where figures come from. foreign: those of other hardware, and imported ones, count as well. */
typedef struct cost_profile {
    kvt_profile *profile; /* NULL: none */
    bool foreign;
    char *message; /* one line on KVT_E_MISMATCH */
    size_t message_size;
    kvt_record_bases bases; /* that measured variants may need */
} cost_profile;

/* The profile's figures of a device's name, as a store takes them: imported ones with `foreign`
 * alone. KVT_OK; KVT_MISS, also without a profile; what kvt_profile_device gives. */
KVT_NODISCARD kvt_status costs_profiled_curve(kvt_profile *profile, bool foreign, const char *name,
                                              kvt_device_curve *out);

/* From the profile: KVT_OK; KVT_MISS (no profile, or it has none of this device that counts);
 * KVT_E_MISMATCH (its figures by that name are of other hardware); KVT_E_DATABASE. */
KVT_NODISCARD kvt_status costs_profiled_device(const cost_profile *profile,
                                               const kvt_device *device, cost_device *out);

/* By a brief probe of the open device. blank: its content may be overwritten. */
KVT_NODISCARD kvt_status costs_probe_device(kvt_device *device, bool blank, uint64_t head_bytes,
                                            cost_device *out);

/* Folds a tier's devices into one affine model: requests go to all at once. */
kvt_affine costs_combine(const cost_device *devices, uint32_t count, kvt_io_kind kind,
                         kvt_striping striping);

/* Ratio and speed of a variant, from the profile or by encoding a sample. */
KVT_NODISCARD kvt_status costs_measure_variant(const cost_profile *profile, kvt_variant variant,
                                               kvt_codec_curve *out);

/* ---- recover.c ---- */

/* Removes the rows of entries that touch an SSD member in the mask, durably: before the labels of
 * those members say that they are current. *kept_out counts the others. */
KVT_NODISCARD kvt_status recover_drop_stale(store_catalog *catalog, uint64_t members,
                                            uint64_t *dropped_out, uint64_t *kept_out);

/* Counts the rows that touch an SSD member in the mask. */
KVT_NODISCARD kvt_status recover_count_rows(store_catalog *catalog, uint64_t members,
                                            uint64_t *count_out);

/* Takes over the entries that the catalog lists, and drops the rows that cannot be taken over.
 * Before the catalog's writer starts. */
KVT_NODISCARD kvt_status recover_entries(kvt_store *store);

/* ---- ladder.c ---- */

/* Looks the ladder up, before a device is touched. An empty note says afterwards which variants the
 * layout leaves out. KVT_OK, also without a ladder; KVT_E_ARGUMENT;
 * KVT_E_MISMATCH (no calibration, or one of another layout or class); KVT_E_DATABASE;
 * KVT_E_MEMORY. */
KVT_NODISCARD kvt_status ladder_open(kvt_store *store, const kvt_store_options *options,
                                     kvt_profile *profile, char *note, size_t note_size,
                                     char *message, size_t message_size);

/* Puts the variants within both limits of loss behind the exact variants, whose number it keeps. */
KVT_NODISCARD kvt_status ladder_add_costs(kvt_store *store, const cost_profile *profile,
                                          const kvt_store_options *options);

/* Whether entries of a layout may be lossy. */
bool ladder_allows(const kvt_store *store, const kvt_layout *layout);

/* How many of the variants, from the first on, an entry may take. scored: it is about to be taken
 * in with a record by scores. Lock held. */
uint32_t ladder_variants(const kvt_store *store, const store_entry *entry, bool scored);

/* Whether an entry of a layout has a use for scores. */
bool ladder_wants_scores(const kvt_store *store, const kvt_layout *layout);

#endif
