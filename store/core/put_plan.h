/* SPDX-License-Identifier: Apache-2.0 */
/*
 * put_plan.h - one put and the plans that are made for it.
 *
 * Thread rule: a put_work belongs to one thread, the caller of the put or an executor.
 */
#ifndef STORE_PUT_PLAN_H
#define STORE_PUT_PLAN_H

#include "store/core/store.h"

struct store_staged;
struct executor_flight;

/* The state of a put between two of its plans. */
typedef struct put_progress {
    kvt_variant larger_variant; /* the variant whose record came out larger than planned, */
    uint64_t larger_bytes;      /* and its size; 0 = none */
    uint32_t tries;             /* plans asked for so far */
    uint32_t larger_changes;    /* of these, planned again because another entry's record was */
    bool yielded;               /* what lacked only room was let into plans again */
    bool trial;                 /* the plan is trust.c's */
    kvt_status last;            /* how the last plan ended */
} put_progress;

/* One put under way, in the hands of the caller or of an executor. */
typedef struct put_work {
    const kvt_entry *source;
    const kvt_view *views;       /* where the caller's bytes are, or the staged ones; one a group */
    struct store_gpu_views *gpu; /* instead: they are in a GPU's memory */
    uint64_t data_bytes;
    float *scores; /* a copy of the source's, for the entry that the call makes; or NULL */
    struct store_staged *staged;    /* executor: the entry is in the table */
    bool full;                      /* caller: there is no room for the bytes */
    bool here;                      /* caller: one plan may be carried out before the hand-over */
    kvt_plan *plan, own;            /* own: of a caller */
    uint64_t began_ns;              /* caller: store_now_ns */
    struct executor_flight *flight; /* NULL, or the record may be written behind the call, */
    bool flies;                     /* and is */
    put_progress progress;
    kvt_status failure; /* of the last plan that failed */
} put_work;

/* A put with room for what its caller's structures become. Zeroed before, but for views and
 * work.flight. */
typedef struct put_call {
    kvt_entry whole;
    kvt_view views[KVT_GROUPS_MAX];
    put_work work;
} put_call;

/* put.c: a put into a store of this process. KVT_QUEUED, with a flight alone: the record is being
 * written, and put_end, which ends all flights, gives the status. No lock held. */
KVT_NODISCARD kvt_status put_begin(kvt_store *store, put_call *call, const kvt_entry *given,
                                   const kvt_view *view);
KVT_NODISCARD kvt_status put_end(kvt_store *store, put_call *call);

/* KVT_OK: a plan is marked. KVT_QUEUED: an executor decides, when it takes the put. Any other
 * status is how the put ends. No lock held. */
KVT_NODISCARD kvt_status put_decide(kvt_store *store, put_work *work);

/* Whether the marked plan writes memory and does nothing else, so that the put is stored as fast as
 * its bytes are copied. */
bool put_is_copy(const kvt_store *store, const put_work *work);

/* Carries out the plan that is marked, and those made after it. KVT_QUEUED: the first plan failed;
 * hand the put over, with the new plan that is marked or with none. With a flight: the record is
 * being written; called again, it waits for that. No lock held. */
KVT_NODISCARD kvt_status put_run(kvt_store *store, put_work *work);

/* put.c: offers an entry that a get has brought from another host. No caller has made this put, so
 * it is counted as none. view: where its bytes are, checked. Statuses as of kvt_store_put. */
kvt_status put_take_in(kvt_store *store, const kvt_entry *entry, const kvt_view *view);

/* The views of packed bytes of an entry: one, or one a group. */
void put_pack_views(const kvt_entry *source, void *data, kvt_view views[KVT_GROUPS_MAX]);

/* A status from inside the store in the words of the public contract. */
kvt_status put_status(kvt_status status);

/* Carries a plan out that was handed over, and those made after it when it fails. plan holds the
 * first one and has room for others. No lock held. */
KVT_NODISCARD kvt_status put_finish(kvt_store *store, struct store_staged *staged, kvt_plan *plan);

#endif
