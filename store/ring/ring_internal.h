/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring_internal.h - a ring's own data, for ring.c (its owner's calls), ring_run.c (the order of its
 * blocks) and ring_block.c (what a block reads).
 *
 * Lock order: the store's lock is taken alone; `lock` alone; `done_lock` under `lock` or alone.
 */
#ifndef STORE_RING_INTERNAL_H
#define STORE_RING_INTERNAL_H

#include "base/fork_guard.h"
#include "gpu/gpu_site.h"
#include "store/read/load_internal.h"
#include "store/ring/ring_contexts.h"
#include "tiers/pool/gather.h"

#define RING_REGIONS_MAX 1024u
#define RING_THREADS_MAX 16u
#define RING_POLL_NS     UINT64_C(20000000) /* between two looks of a ring that sleeps */

/* The record of an object as its last block found it: heads are looked at once. Users share it. */
typedef struct ring_opened {
    atomic_uint users;
    bool ready;          /* its heads are open; set before a second user comes */
    uint64_t serial;     /* of the place; 0: the entry was staged */
    load_entry entry;    /* key, layouts, sections; of no load */
    tiers_unit_map *map; /* of a record that is read */
    load_section sections[];
} ring_opened;

/* One entry that contexts name; under `lock`. */
typedef struct ring_object {
    kvt_key key;
    uint64_t handle;
    uint32_t generation;
    uint32_t users; /* blocks under way that name it */
    bool open;
    bool near;           /* it lay in memory when a block looked last */
    ring_opened *opened; /* or NULL */
    uint32_t next_free;
} ring_object;

/* Memory that contexts may write; under `lock`. */
typedef struct ring_region {
    uint8_t *memory; /* NULL: none */
    uint64_t bytes;
    uint32_t generation;
    uint32_t users;
} ring_region;

/*
 *     free -> waits for another block -> runs -> free, its completion posted
 *          \--------------------------/
 */
typedef enum ring_slot_state { RING_FREE = 0, RING_WAITS = 1, RING_RUNS = 2 } ring_slot_state;

typedef struct ring_slot {
    ring_slot_state state;
    uint64_t position;
    kvt_ring_block block;
    kvt_ring_result result;
    struct ring_slot *next; /* of those that wait, in the order of their positions */
} ring_slot;

/* A call that waits for blocks in a row. It is woken when all of them are complete: a layer of
 * several blocks is one wake. */
typedef struct ring_waiter {
    struct ring_waiter *next;
    uint64_t index;
    uint32_t count;
} ring_waiter;

/* An entry of a block under way. */
typedef struct ring_hold {
    uint32_t slot; /* of the objects */
    kvt_key key;
    uint64_t handle;
    kvt_status status; /* KVT_OK, or that of its contexts */
    ring_opened *opened;
    store_place *place; /* held as a reader, or */
    store_staged *staged;
    const void *record; /* lent: the record lies here; or NULL */
    bool near;
    bool damaged; /* a read or a checksum failed */
} ring_hold;

/* One matrix that contexts want, of one hold. */
typedef struct ring_piece {
    uint32_t hold;
    uint32_t first, count;           /* contexts, in the block's order */
    uint32_t first_read, read_count; /* of the round; none where the record lies in memory */
} ring_piece;

/* A range of a record that is read. */
typedef struct ring_read {
    uint32_t hold;
    kvt_status status;
    uint64_t offset, bytes;
    const uint8_t *data;
} ring_read;

/* Staging of rounds; each gather of it holds it, and so does its block. */
typedef struct ring_lot {
    atomic_uint users;
    store_staging *staging;
    staging_buffer buffer;
} ring_lot;

/* Reads that are begun together, on all devices. */
typedef struct ring_round {
    ring_read *reads;
    uint32_t read_count, read_room;
    uint32_t first_piece, end_piece;
    ring_lot *lot; /* held */
    uint8_t *memory;
    tiers_gather *gathers[KVT_TIER_COUNT];
    uint32_t firsts[KVT_TIER_COUNT], counts[KVT_TIER_COUNT]; /* of its ranges */
    tiers_gather_range *ranges;
    tiers_copy *copies;
    uint32_t *of; /* the read of each range */
} ring_round;

/* The GPU whose kernels post; guarded by its lock. */
typedef struct ring_gpu {
    pthread_mutex_t lock;
    gpu_site *site; /* NULL: none */
    uint64_t gate;  /* kernel_ring_gate, in its scratch */
    gpu_event **launches;
    uint32_t launch_count, launch_room;
    bool ended;
} ring_gpu;

/* A counter of producers that no host's thread claims of. */
#define RING_CLAIMS_OF_GPU (UINT64_C(1) << 63)

/* A thread of a ring, with what one block needs. */
typedef struct ring_worker {
    kvt_ring *ring;
    kvt_store *store;
    pthread_t thread;
    uint64_t deadline_ns; /* of the block */
    uint32_t count;       /* contexts of the block */
    ring_want *wants;
    uint8_t **targets; /* the memory of each want's region */
    uint64_t *region_bytes;
    signed char *statuses;
    uint64_t *order; /* objects, layers, sides, and the contexts themselves */
    ring_spot *spots;
    uint32_t *open_spots;
    ring_hold *holds;
    uint32_t hold_count;
    uint32_t *hold_of; /* of each context */
    ring_piece *pieces;
    uint32_t piece_count;
    uint64_t regions[RING_REGIONS_MAX / 64]; /* that the block uses: a mask */
    ring_lot *lot;
    uint64_t needs[KVT_TIER_COUNT]; /* of the block's pass */
    ring_round rounds[2];
    kvt_record_range *ranges;
    uint32_t range_room;
    uint8_t *decoded; /* one matrix, and the codec's scratch behind it */
    uint64_t decoded_bytes;
    uint64_t bytes, read_bytes, requests; /* of the block */
} ring_worker;

struct kvt_ring {
    uint32_t forks;
    kvt_store *store;          /* under `lock`; NULL: it was closed */
    kvt_ring *next, *previous; /* of the store's, under its lock */
    ring_head head;
    uint8_t *memory;
    int fd, bell, done;
    base_ring submissions, completions;
    _Atomic uint64_t *claims; /* of each place: index + 1 that a call claimed and none has posted */
    double loss_max;
    uint64_t poll_ns, lost_ns;

    pthread_mutex_t lock;
    pthread_cond_t work;
    uint64_t taken;     /* positions, ever */
    uint64_t later;     /* one behind a hole at `taken` that is posted; 0: none is known */
    uint64_t looked_ns; /* at that hole, in sleeps that ran out */
    ring_slot *slots;
    ring_slot *waiting;
    bool polls; /* a thread watches the words */
    atomic_bool stopping;
    kvt_status broken;    /* why it was given up; KVT_OK: it was not */
    _Atomic int given_up; /* the same, once what it leaves has completed */
    atomic_uint under_way;
    ring_object *objects;
    uint32_t object_count, object_room, free_object;
    ring_region regions[RING_REGIONS_MAX];
    kvt_ring_stats stats;

    pthread_mutex_t done_lock;
    pthread_cond_t complete;
    ring_waiter *waits; /* under done_lock */
    atomic_uint waiters;

    ring_worker *workers;
    uint32_t worker_count, started;

    ring_gpu gpu;
};

/* ---- ring.c ---- */

/* Looks at completions in a row. KVT_OK: all are there; KVT_QUEUED: not yet; else as a wait. */
kvt_status ring_look_done(const kvt_ring *ring, uint64_t index, uint32_t count);

/* Ends the rings of a store that closes; their owners close them later. */
void ring_stop_all(kvt_store *store);

/* ---- ring_run.c ---- */

/* A thread of the ring. */
void *ring_main(void *worker);

/* Ends the threads; what was posted and not begun completes with a status. Once. */
void ring_stop(kvt_ring *ring, kvt_status status);

/* ---- ring_gpu.c ---- */

/* Waits for the kernels, of a ring that was given up, and takes its memory from the GPU. */
void ring_gpu_end(kvt_ring *ring);

/* ---- ring_rounds.c ---- */

/* Takes staging. at_once: past the bound, as a holder of places does. KVT_OK; KVT_E_MEMORY;
 * KVT_E_TIMEOUT: the block has no time left, or the ring is stopping. */
KVT_NODISCARD kvt_status ring_lot_take(ring_worker *worker, uint64_t bytes, bool at_once,
                                       ring_lot **lot_out);
void ring_lot_leave(void *lot);

/* Why a block stops before its bytes have come. */
kvt_status ring_late(const ring_worker *worker);

/* Tells a pass what the pieces of a block read, and from where; and that all has come. */
void ring_join_pass(ring_worker *worker, uint64_t pass);
void ring_leave_pass(ring_worker *worker, uint64_t pass);

/* Bytes of one round, of the two that are under way. */
uint64_t ring_half(const ring_worker *worker);

/* Adds a range to a round. False: no memory. */
bool ring_add_read(ring_round *round, uint32_t hold, uint64_t offset, uint64_t bytes);

/* Begins all reads of a round. Those that could not be begun have failed. */
void ring_start_round(ring_worker *worker, ring_round *round);

/* Waits for them, no longer than the block has time. Gives up what the round holds. */
void ring_wait_round(ring_worker *worker, ring_round *round);
void ring_end_round(ring_round *round);

/* ---- ring_block.c ---- */

/* Makes room for blocks. False: no memory. */
bool ring_worker_make(ring_worker *worker, kvt_ring *ring, kvt_store *store);
void ring_worker_free(ring_worker *worker);

static inline const ring_want *ring_first_want(const ring_worker *worker, const ring_piece *piece)
{
    return &worker->wants[worker->order[piece->first] & (KVT_RING_CONTEXTS_MAX - 1)];
}

/* Carries a block out, from its contexts to its statuses in the ring's memory. No lock held. */
void ring_run_block(ring_worker *worker, ring_slot *slot);

/* Looks once more at the entries whose reads failed in a block that is complete: a get of its own
 * finds out whether the record or a device did, and drops the entry. No lock held. */
void ring_settle_damaged(ring_worker *worker);

/* Lets go of a record; NULL is allowed. */
void ring_opened_leave(ring_opened *opened);

static inline bool ring_is_ours(const kvt_ring *ring)
{
    return ring != NULL && fork_guard_is_current(ring->forks);
}

/* Why a ring takes no further block; KVT_OK: it does. */
static inline kvt_status ring_state(const kvt_ring *ring)
{
    if (!ring_is_ours(ring)) return KVT_E_STATE;
    if (atomic_load(&ring->stopping)) return KVT_E_STATE;
    return atomic_load(&ring->given_up);
}

/* An object's place; NULL: the number names none. `lock` is held. */
static inline ring_object *ring_find_object(kvt_ring *ring, uint64_t number)
{
    const uint32_t slot = (uint32_t)number;
    if (slot >= ring->object_count) return NULL;
    ring_object *object = &ring->objects[slot];
    return object->open && object->generation == number >> 32 ? object : NULL;
}

/* Numbers of regions: 10 bits of place, and from 1 on how often it was used. */
static inline ring_region *ring_find_region(kvt_ring *ring, uint32_t number)
{
    ring_region *region = &ring->regions[number % RING_REGIONS_MAX];
    if (region->memory == NULL || region->generation != number / RING_REGIONS_MAX) return NULL;
    return region;
}

/* Frees an object that is closed and that no block names. `lock` is held. */
void ring_object_settle(kvt_ring *ring, ring_object *object);

#endif
