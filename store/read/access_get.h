/* SPDX-License-Identifier: Apache-2.0 */
/*
 * access_get.h - one get and its steps, for a caller that waits and for a queue, whose threads
 * never wait for a device. access_begin.c has the beginning, access.c the rest.
 *
 *     begin -> READY ------------------> end
 *         \-> FLIES -> arrived -> READY ->/   (or given up)
 *         \-> STARVES, CHANGED, ENDED
 *
 * Thread rule: a get belongs to one thread at a time; its read and place are shared, under the
 * control lock.
 */
#ifndef STORE_ACCESS_GET_H
#define STORE_ACCESS_GET_H

#include "base/struct_size.h"
#include "gpu/gpu_site.h"
#include "store/core/handover.h"
#include "store/read/read.h"

typedef struct access_get access_get;

/* Where a get's values go: a packed buffer, or a view that was checked for `layout`, or one view
 * for each group. */
typedef struct access_target {
    void *data;
    uint64_t bytes;       /* of the packed entry */
    const kvt_view *view; /* of groups: the first of an array */
    kvt_layout layout;
    const kvt_layout *groups; /* group_count of them, or NULL: the layouts are not known */
    uint32_t group_count;     /* of the entry; 0: it has none */
    uint32_t first_layer;     /* of a view */
    uint32_t layer_count;     /* 0: all from the first one on */
    gpu_site *gpu; /* the views are memory of this GPU; NULL: of the host. A queue's get finds it
                      when it begins */
    bool takes_dropped;    /* records that have dropped tokens, too */
    kvt_kept_tokens *kept; /* the caller's, with a capacity or without; or NULL */
} access_target;

/* How far a get is. */
typedef enum access_stage {
    ACCESS_ENDED = 1,   /* it holds nothing; status says how */
    ACCESS_READY = 2,   /* its bytes are in memory: access_end_ready decodes them */
    ACCESS_FLIES = 3,   /* it reads, or has joined a read; its waiter is told when that ends */
    ACCESS_STARVES = 4, /* it needs staging, or other staging than it has brought: begin it again */
    ACCESS_CHANGED = 5  /* the entry is not of the layouts that the target's views were checked for:
                           begin it again with others. Nothing was read or counted */
} access_stage;

/* One get under way. */
struct access_get {
    const kvt_key *key;
    access_target target;
    uint64_t deadline_ns; /* CLOCK_MONOTONIC; KVT_NO_DEADLINE = none */
    uint64_t handle;      /* of the key */
    double loss_max;      /* as kvt_request.loss_max */
    access_stage stage;
    kvt_status status; /* once it has ended */
    bool again;        /* its entry was moved while its read failed: it begins again only once */
    uint32_t class_id;
    store_place *place; /* held as a reader */
    store_read *read;   /* used; NULL when the record is read where it lies */
    bool owner;         /* reads; the others wait */
    bool in_memory;     /* the record is read where it lies, */
    const void *record; /* which is here; NULL: its device went meanwhile */
    bool far;           /* that is the memory of the target's GPU, at this address. What the CPU has
                           to decode is brought into staging, which `record` is then */
    uint64_t record_bytes;
    bool of_many;            /* it comes with others that are large together, */
    const void *next_record; /* of which the next one's is here, or NULL; with a view */
    bool grouped;            /* the entry has groups */
    bool waited;             /* somebody waits for it: its read goes before other reads */
    bool quiet;              /* for its timing alone: neither a use nor a get */
    store_staged *staged;    /* instead of all below: held as a user */
    kvt_record_spec expected;
    uint64_t serial; /* of the place that is read */
    kvt_variant variant;
    kvt_tier tier;
    staging_buffer staging; /* scratch */
    staging_buffer flying;  /* of an owner: a look at its read's buffer, with the scratch behind */
    uint64_t began_ns;      /* store_now_ns */
    uint64_t source_bytes;
    learn_transfer transfer;     /* owner */
    bool decoded;                /* the record was, as it came, */
    kvt_status decode_status;    /* with this */
    uint32_t decoded_tasks;      /* of a get that no thread waits for, that were until now, */
    uint64_t decode_ns;          /* in this time */
    uint64_t cpu_ns;             /* for a GPU's views, by the CPU, without copies */
    bool by_cpu;                 /* kernels of a GPU do not decode it */
    bool by_gpu;                 /* they have done so */
    bool unsound;                /* they have found bytes of it unsound */
    kvt_status gpu_failure;      /* why its views did not get what was decoded; or KVT_OK */
    kvt_layout layout;           /* of the entry, */
    uint32_t first_position;     /* its place in the chain, */
    uint32_t tokens;             /* and its tokens; those in the record once that is decoded */
    uint32_t position_sets;      /* of kept tokens, as kvt_kept_tokens says */
    bool refused_tokens;         /* it was refused because the record has dropped tokens, */
    bool refused_loss;           /* or because the record may lose more than loss_max */
    bool lacks_basis;            /* the store lacks the basis of `variant` */
    kvt_status failure;          /* of the read, or KVT_OK */
    struct remote_fetch *remote; /* instead of `read`: the read from another host */
    bool remote_asked;           /* set once, so that the thread that begins may look at it */
    bool remote_joined;          /* another get has begun it */
    bool remote_known;           /* a hint said that it is there */
    bool remote_counted;         /* somebody else has counted how the read ended */

    /* Its `ended` is called once when the read of a get that flies has landed or, where it has
     * joined one, has ended: on any thread, maybe before access_begin_all has returned. NULL: the
     * thread that has begun the get waits. */
    read_waiter waiter;
    transfer_landed *come; /* same context: bytes that access_decode_some lacked have come; on a
                              device's thread, under a lock of the pool. NULL with no waiter */
};

/* The transfer of a get that owns its read: of the whole record. */
static inline tiers_transfer access_transfer(const access_get *get)
{
    return (tiers_transfer){.kind = KVT_IO_READ,
                            .waited = get->waited,
                            .location = get->place->location,
                            .buffer = get->read->buffer.memory,
                            .bytes = get->place->record_bytes};
}

/* ---- access_begin.c ---- */

#define ACCESS_ALL_MOST 64u /* gets of one call */

/* Begins gets, whose key, handle, target, deadline_ns, waited, loss_max, again, quiet and its
 * waiter's function are set and all else is zero; began_ns may be. Each is in one of the stages
 * afterwards; one that has ended is not counted yet. A get whose caller blocks has no waiter: it
 * may wait for staging, access_bring starts its read later, and it asks no other host here. Reads
 * of all others are queued before a device's thread is woken. Returns how many reads were started.
 * No lock held. */
uint32_t access_begin_all(kvt_store *store, access_get *const *gets, uint32_t count);

/* Whether what is stored of an entry may lose more than somebody accepts (kvt_request.loss_max).
 * Lock held. */
bool access_loses_too_much(const kvt_store *store, const store_entry *entry, double loss_max);

/* ---- access.c ---- */

/* access_views.c: takes the layout, size and group count of an entry that was found, or NULL, into
 * a target; false when it is not readable. groups: room for KVT_GROUPS_MAX layouts, which the
 * target's groups are then; may be NULL. Lock held. */
bool access_take_layout(const kvt_store *store, const store_entry *entry, access_target *target,
                        kvt_layout *groups);

/* Counts a get that ends before it holds a place. KVT_REFUSED: the form has dropped
 * tokens that the get wants, which is a miss. KVT_E_MISMATCH counts as a miss. A quiet get is not
 * counted. */
kvt_status access_refuse(kvt_store *store, const access_get *get, kvt_status status,
                         kvt_get_info *info);

/* Runs a get on the caller's thread, with the caller's info, which may be NULL. Statuses as of
 * kvt_store_get. False: the entry is not of the layouts that the target's views were checked for,
 * and nothing was read or counted. No lock held. */
bool access_answer(kvt_store *store, const kvt_key *key, const access_target *target,
                   uint64_t deadline_ns, kvt_get_info *given, kvt_status *status_out);

/* Reads and decodes an entry for its timing alone: it counts as no use, and as no get. */
void access_time_entry(kvt_store *store, const kvt_key *key);

/* The instant of a get's deadline, where the caller leaves it to the store. */
uint64_t access_deadline(const kvt_store *store, uint64_t deadline_ns);

/* Whether a caller's info has a size that some version of this library has had. NULL is sound. */
bool access_info_is_sound(const kvt_get_info *info);

/* Fills a caller's info, but for what the caller has set in it. */
static inline void access_give_info(const kvt_get_info *info, kvt_get_info *given)
{
    kvt_get_info whole = *info;
    whole.kept = given->kept;
    struct_size_out(given, &whole, sizeof whole);
}

/* The pieces in which the record of a get comes to its decoder; 0: all at once. */
uint64_t access_piece_bytes(access_get *get);

/* Decodes what has come of a get that flies and owns its read. It does not land, and is not given
 * up, meanwhile. No lock held. */
void access_decode_some(kvt_store *store, access_get *get);

/* A get that flew has arrived: it is READY, or may have to begin again (STARVES). No lock held. */
void access_land(kvt_store *store, access_get *get);

/* Ends a READY get: decodes, or says why not. KVT_BUSY: its read failed at a place that is no
 * longer the entry's, and it begins again. No lock held. */
kvt_status access_end_ready(kvt_store *store, access_get *get, kvt_get_info *info);

/* The same of gets whose records lie in memory, all of them read where they are (in_memory):
 * decoded one after the other, and ended under one hold of the lock. */
void access_complete_all(kvt_store *store, access_get *const *gets, uint32_t count,
                         kvt_get_info *const *infos, kvt_status *statuses_out);

/* Takes back a get under way, because of its deadline or a call. False: it has landed, or is about
 * to, and its waiter is told. True: it is ENDED, its waiter is not told, and its target is not
 * written any more. No lock held. */
bool access_give_up(kvt_store *store, access_get *get, kvt_status status, kvt_get_info *info);

/* Whether a get whose read is under way waits for a device that is out of service. */
bool access_is_stuck(const access_get *get);

/* ---- load_share.c ---- */

/* A get is about to read a place: layered loads that have it open may wait for that read, and take
 * their layers from it (docs/READS.md). The store's lock is held. */
void load_share_get(kvt_store *store, uint64_t serial, store_read *read);

#endif
