/* SPDX-License-Identifier: Apache-2.0 */
/*
 * executor_internal.h - one move under way, as the files of the executor share it: executor.c has
 * the table of stages, executor_record.c and executor_publish.c the stages, executor_undo.c the
 * end of an operation whose stage failed.
 *
 *     field              set by              given up by
 *     source             executor_begin      publish, adopt, keep: the reader's count falls
 *     staging, record    read, encode        prepare
 *     location           reserve, or encode  publish, keep: the location is the place's
 *                        in place
 *     serial             write               publish, keep
 *     place              prepare             publish: the place is the entry's; keep: its copy
 *     row                prepare             publish, keep: the row is queued
 *     owes               reserve             executor_settle_debt
 *
 * executor_undo gives back each field that is still set when a stage fails.
 *
 * Thread rule: an operation belongs to one thread.
 */
#ifndef STORE_EXECUTOR_INTERNAL_H
#define STORE_EXECUTOR_INTERNAL_H

#include "codecs/record_groups.h"
#include "store/core/executor.h"
#include "store/core/store.h"

typedef enum store_stage {
    STAGE_READ,
    STAGE_RECODE,
    STAGE_ENCODE,
    STAGE_RESERVE,
    STAGE_WRITE,
    STAGE_PREPARE,
    STAGE_PUBLISH,
    STAGE_ADOPT,
    STAGE_KEEP,
    STAGE_UNLIST,
    STAGE_COUNT
} store_stage;

/* One move under way. Zeroed at the start; the operation holds exactly what its fields name. */
typedef struct store_op {
    kvt_store *store;
    const kvt_move *move;
    store_entry *entry;
    kvt_key key;                 /* the entry's, which may leave before the operation ends */
    uint64_t began_ns;           /* store_now_ns */
    uint64_t device_ns;          /* of reading and writing */
    uint64_t code_ns;            /* of encoding and decoding */
    const kvt_view *views;       /* put: where the bytes are; one, or one a group; NULL: not yet, */
    struct store_gpu_views *gpu; /* because they are in a GPU's memory */
    kvt_tier tier;               /* target */
    kvt_record_spec spec;        /* of the new record */
    kvt_record_spec expected;    /* change: of the source's */
    record_groups_spec groups;   /* of an entry with groups, beside spec; count 0: no groups */
    kvt_variant group_variants[KVT_GROUPS_MAX]; /* what groups.variants points to */
    staging_buffer staging;
    void *record; /* in staging: the record to write */
    uint64_t record_bytes;
    uint64_t bound_bytes;   /* of a record that is encoded anew, at most */
    uint64_t scratch_bytes; /* of encoding and decoding the new record */
    tiers_location *location;
    uint64_t serial;                  /* of the new place; in the record's note */
    store_place *source;              /* change: held as a reader */
    store_place *place;               /* the new place, before it is the entry's */
    catalog_insertion *row;           /* its catalog row, before it is queued */
    struct executor_flights *flights; /* NULL, or of the thread: ended before it waits */
    struct executor_flight *flight;   /* NULL, or the put may be written behind the stages' walk */
    const store_stage *stage;         /* the next one */
    bool written;                     /* encode has put the record where it belongs */
    bool recoded;                     /* change: a GPU has made the record from the source's */
    bool owes;            /* a new layout: until it ends, room that others may wait for */
    bool planned;         /* by the policy: it is committed or aborted there */
    bool for_put;         /* its plan ends with a put, which needs the room */
    bool source_asked;    /* change: the source was read, or the read was tried */
    bool anywhere;        /* room on devices that answer late is room */
    bool no_room;         /* pool or policy had no room for the new record, */
    bool late;            /* but on such devices */
    bool held;            /* there would have been room, and readers did not give it back */
    bool larger;          /* the record is larger than planned, or the codec gained nothing */
    uint32_t stages_done; /* mask; a stuck operation prints its own history in a debugger */
} store_op;

/* ---- executor.c ---- */

/* Runs the stages of an operation from the next one on, and undoes it at the first that fails.
 * KVT_QUEUED: the write of its flight is under way; called again when that has landed. */
kvt_status executor_walk(store_op *op, executor_cause *cause_out);

/* ---- executor_flights.c ---- */

/* Staging for an operation. No lock held. */
kvt_status executor_take_staging(store_op *op, uint64_t bytes);

/* Ends the flights of the operation's thread, before it waits for what another thread holds: that
 * thread may wait for what the flights hold. No lock held. */
void executor_before_wait(const store_op *op);

/* Begins the write of a flight, or takes its outcome when it has landed. KVT_QUEUED: it flies. */
kvt_status executor_fly(store_op *op);

/* ---- executor_record.c: the record, its room, its bytes on the device ---- */

kvt_status stage_read(store_op *op);
kvt_status stage_recode(store_op *op);
kvt_status stage_encode(store_op *op);
kvt_status stage_reserve(store_op *op);
kvt_status stage_write(store_op *op);

/* ---- executor_publish.c: the entry and the table ---- */

kvt_status stage_prepare(store_op *op);
kvt_status stage_publish(store_op *op);
kvt_status stage_adopt(store_op *op);
kvt_status stage_keep(store_op *op);
kvt_status stage_unlist(store_op *op);

/* ---- executor_undo.c ---- */

/* A new layout counts no longer as room that others may wait for. Lock held. */
void executor_settle_debt(store_op *op);

/* Gives back what the operation holds, and settles its entry. Returns why it failed. No lock held.
 */
executor_cause executor_undo(store_op *op, kvt_status status);

#endif
