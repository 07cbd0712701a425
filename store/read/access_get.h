/* SPDX-License-Identifier: Apache-2.0 */
/*
 * access_get.h - one get and its steps: access.c carries it out on the caller's thread,
 * access_async.c for a queue, whose threads never wait for a device.
 *
 *     begin -> READY ------------------> end
 *         \-> FLIES -> arrived -> READY ->/   (or given up)
 *         \-> STARVES, ENDED
 *
 * Thread rule: a get belongs to one thread at a time; its load and place are shared, under the
 * control lock.
 */
#ifndef STORE_ACCESS_GET_H
#define STORE_ACCESS_GET_H

#include "base/struct_size.h"
#include "store/core/handover.h"

typedef struct access_get access_get;

/* Between the steps of a get, and never a caller's: the entry is not of the layouts that the views
 * were checked for. KVT_E_MISMATCH is what a caller gets where the store lacks a basis. */
#define ACCESS_CHANGED KVT_E_STATE

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
    bool takes_dropped;       /* records that have dropped tokens, too */
    kvt_kept_tokens *kept;    /* the caller's, with a capacity or without; or NULL */
} access_target;

/* How far a get is that no thread waits for. */
typedef enum access_stage {
    ACCESS_ENDED = 1,  /* status says how */
    ACCESS_READY = 2,  /* its bytes are in memory: access_end_ready decodes them */
    ACCESS_FLIES = 3,  /* `arrived` is called when its read, or the one that it has joined, ends */
    ACCESS_STARVES = 4 /* there was no staging: begin it again later */
} access_stage;

/* Called once for a get that flies, on any thread, maybe under the control lock, and maybe before
 * access_begin_all has returned. */
typedef void access_arrived(void *context);

/* One get under way. */
struct access_get {
    uint64_t deadline_ns; /* CLOCK_MONOTONIC; KVT_NO_DEADLINE = none */
    uint64_t handle;
    uint32_t class_id;
    store_place *place; /* held as a reader */
    store_load *load;   /* held as a user; NULL when the record is read where it lies */
    bool owner;         /* reads; the others wait */
    bool in_memory;     /* the record is read where it lies, */
    const void *record; /* which is here; NULL: its device went meanwhile */
    uint64_t record_bytes;
    bool of_many;            /* it comes with others that are large together, */
    const void *next_record; /* of which the next one's is here, or NULL; with a view */
    bool waited;             /* somebody waits for it: its read goes before other reads */
    bool quiet;              /* for its timing alone: neither a use nor a get */
    store_staged *staged;    /* instead of all below: held as a user */
    kvt_record_spec expected;
    uint64_t serial; /* of the place that is read */
    kvt_variant variant;
    kvt_tier tier;
    staging_buffer staging; /* scratch; an owner's lies in its load's buffer instead */
    uint64_t began_ns;      /* store_now_ns */
    uint64_t source_bytes;
    learn_transfer transfer;     /* owner */
    kvt_layout layout;           /* of the entry, */
    uint32_t first_position;     /* its place in the chain, */
    uint32_t tokens;             /* and its tokens; those in the record once that is decoded */
    uint32_t position_sets;      /* of kept tokens, as kvt_kept_tokens says */
    bool refused_tokens;         /* it was refused because the record has dropped tokens */
    bool lacks_basis;            /* the store lacks the basis of `variant` */
    kvt_status failure;          /* of the load, or KVT_OK */
    struct remote_fetch *remote; /* instead of all of the load: its read from another host */
    bool remote_asked;           /* set once, so that the thread that begins may look at it */
    bool remote_joined;          /* another get has begun it */
    bool remote_known;           /* a hint said that it is there */
    bool remote_counted;         /* somebody else has counted how the read ended */

    /* Of a get that no thread waits for (access_async.c). */
    struct access_get *next_waiter; /* of the load that it has joined */
    const kvt_key *key;
    access_target target;
    double loss_max;   /* as kvt_request.loss_max */
    bool refused_loss; /* it was refused for that */
    access_stage stage;
    kvt_status status;      /* once it has ended */
    store_transfer *flight; /* owner: the read under way */
    access_arrived *arrived;
    void *arrived_context;
};

/* The table's answer to a get that is about to begin; valid under one hold of the lock. */
typedef struct access_view {
    store_entry *entry; /* under this hold of the lock */
    bool in_memory;     /* the record can be read where it lies */
    bool join;          /* a read of the place is in flight already */
    uint64_t staging_bytes;
} access_view;

/* ---- access.c: the steps ---- */

/*
 * Finds the entry and the staging that a get of it needs. Everything that decoding needs was worked
 * out when the place was published, so no codec is asked here. Lock held. KVT_OK; KVT_QUEUED (the
 * bytes are to be copied from the staging of their put); KVT_MISS; ACCESS_CHANGED (not the layout
 * of the target's view); KVT_E_ARGUMENT (another size); KVT_E_MISMATCH (the store lacks the basis
 * of its form), and what token_drop_admits says.
 */
kvt_status access_look(const kvt_store *store, const kvt_key *key, const access_target *target,
                       access_view *view);

/* The same of an entry that was found under the key, or NULL. */
kvt_status access_look_at(const kvt_store *store, store_entry *entry, const access_target *target,
                          access_view *view);

/* Takes the form of an entry that was looked at, with KVT_E_MISMATCH. Lock held. */
void access_note_form(access_get *get, const access_view *view, kvt_status status);

/* Counts the use, then becomes a reader. Lock held; staging is in get already. *clock_ns as of
 * uses_count. */
kvt_status access_enter(kvt_store *store, const access_view *view, access_get *get,
                        uint64_t *clock_ns);

/* access_views.c: takes the layout, size and group count of an entry that was found, or NULL, into
 * a target; false when it is not readable. groups: room for KVT_GROUPS_MAX layouts, which the
 * target's groups are then; may be NULL. Lock held. */
bool access_take_layout(const kvt_store *store, const store_entry *entry, access_target *target,
                        kvt_layout *groups);

/* Whether what is stored of an entry may lose more than somebody accepts (kvt_request.loss_max).
 * Lock held. */
bool access_loses_too_much(const kvt_store *store, const store_entry *entry, double loss_max);

/* Becomes a user of the bytes that a put has handed over. No promotion is planned: the entry has no
 * place yet. Lock held. */
void access_begin_staged(kvt_store *store, const store_entry *entry, access_get *get);

/* Publishes how an owner's read ended to the gets that joined. No lock held. */
void access_publish(kvt_store *store, const access_get *get, kvt_status status, uint64_t read_ns);

/*
 * access_complete of gets whose records lie in memory, all of them read where they are (in_memory):
 * decoded one after the other, and ended under one hold of the lock.
 *   again          of each, as there
 *   statuses_out   of each
 */
void access_complete_all(kvt_store *store, access_get *const *gets, const bool *again,
                         uint32_t count, kvt_get_info *const *infos, kvt_status *statuses_out);

/* Whether a get joined a read that its owner gave up, and still has time of its own. */
bool access_may_begin_again(const access_get *get, kvt_status status);

/* Gives up load, place and staging of a get that begins again. No lock held. */
void access_let_go(kvt_store *store, access_get *get);

/* Counts a get that ends before it holds a load or a place. KVT_REFUSED: the form has dropped
 * tokens that the get wants, which is a miss. KVT_E_MISMATCH counts as a miss. */
kvt_status access_refuse(kvt_store *store, kvt_status status, kvt_get_info *info);

/* Decodes what has come, or copies what is staged, counts, and gives everything up. status: how the
 * read ended. KVT_BUSY: the load failed at a place that is no longer the entry's, and `again`
 * allows the get to begin again. No lock held. */
kvt_status access_complete(kvt_store *store, const kvt_key *key, const access_target *target,
                           access_get *get, kvt_status status, bool again, kvt_get_info *info);

/* Runs a get on the caller's thread, with the caller's info, which may be NULL. Statuses as of
 * kvt_get_until; ACCESS_CHANGED: the entry is not of the layouts that the target's views were
 * checked for, and nothing was read or counted. No lock held. */
kvt_status access_answer(kvt_store *store, const kvt_key *key, const access_target *target,
                         uint64_t deadline_ns, kvt_get_info *info);

/* Reads and decodes an entry for its timing alone: it counts as no use, and as no get. */
void access_time_entry(kvt_store *store, const kvt_key *key);

/* Whether a caller's info has a size that some version of this library has had. NULL is sound. */
bool access_info_is_sound(const kvt_get_info *info);

/* Fills a caller's info, but for what the caller has set in it. */
static inline void access_give_info(const kvt_get_info *info, kvt_get_info *given)
{
    kvt_get_info whole = *info;
    whole.kept = given->kept;
    struct_size_out(given, &whole, sizeof whole);
}

/* ---- access_async.c: gets that no thread waits for ---- */

/* Begins gets, whose key, target, deadline_ns, waited, loss_max, arrived and its context are set
 * and all else is zero. Each is in one of the stages afterwards. Reads of all of them are queued
 * before a device's thread is woken. Returns how many reads were started. No lock held. */
uint32_t access_begin_all(kvt_store *store, access_get *const *gets, uint32_t count);

#define ACCESS_ALL_MOST 64u /* gets of one call */

/* A get that flew has arrived: it is READY, or may have to begin again (STARVES). No lock held. */
void access_land(kvt_store *store, access_get *get);

/* Ends a READY get: decodes, or says why not. KVT_BUSY: begin it again. No lock held. */
kvt_status access_end_ready(kvt_store *store, access_get *get, bool again, kvt_get_info *info);

/* Takes back a get that flies, because of its deadline or a call. False: it has landed, or is about
 * to, and `arrived` is called. True: it is ENDED, `arrived` is not called, and its target is not
 * written any more. No lock held. */
bool access_give_up(kvt_store *store, access_get *get, kvt_status status, kvt_get_info *info);

/* Whether a get that flies waits for a device that is out of service. */
bool access_is_stuck(const access_get *get);

/* ---- load_share.c: a get's read is shown to the layered loads of its place, which take their
 * layers from it (docs/CALLS.md, Shared reads). Lock held; the lock of the shares is taken inside.
 * ---- */

/* A get is about to read a place: loads that have it open may wait for that read. */
void load_share_get(kvt_store *store, uint64_t serial, store_load *read);

/* A get's read has ended, as its status says. */
void load_share_published(kvt_store *store, store_load *read);

#endif
