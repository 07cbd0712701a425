/* SPDX-License-Identifier: Apache-2.0 */
/*
 * queue.h - batches of requests to a store, carried out by the queue's own threads and reported as
 * completions, for callers with an event loop (docs/CALLS.md).
 *
 *     kvt_request requests[64];
 *     for (uint32_t i = 0; i < 64; i++)
 *         requests[i] = (kvt_request){.struct_size = sizeof requests[i], .kind = KVT_REQUEST_GET,
 *                                     .key = keys[i], .view = &views[i], .user = i,
 *                                     .deadline_ns = KVT_NO_DEADLINE};
 *     uint64_t batch;
 *     kvt_status status = kvt_queue_submit(queue, requests, 64, &batch);
 *     ... kvt_queue_fd(queue) becomes readable ...
 *     kvt_completion done[64];
 *     done[0].struct_size = sizeof done[0];
 *     size_t count = kvt_queue_drain(queue, done, 64);
 *
 * Thread rule: every function on a kvt_queue from any thread, open and close excepted. None but
 * kvt_queue_wait and kvt_queue_close waits for a device.
 */
#ifndef KVTERRACE_QUEUE_H
#define KVTERRACE_QUEUE_H

#include "kvterrace.h"
#include "view.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kvt_queue kvt_queue;

/* Zero but for struct_size: the defaults. */
typedef struct kvt_queue_options {
    uint32_t struct_size;
    uint32_t threads;   /* for gets and lookups; 0 = 2; at most 64. The queue has two more: one for
                         requests that come while these decode large entries, and one that carries
                         puts and deletes out in the order in which they were submitted */
    uint32_t depth;     /* requests that are accepted and not drained; 0 = 4096; at most 2^20. The
                            queue keeps about 900 bytes for each of the largest number so far */
    bool whole_batches; /* the descriptor becomes readable when the last request of a batch
                           completes, and not before. kvt_queue_drain and kvt_queue_wait
                           still give each request as soon as it has completed */
    bool submitter_waits; /* who submits calls kvt_queue_wait next, which carries out gets of what
                             lies in memory: until then no thread is woken for up to 32 requests */
    uint8_t reserved[2];  /* zero */
} kvt_queue_options;

/*
 * Opens a queue on a store. options may be NULL. KVT_OK; KVT_E_ARGUMENT; KVT_E_MEMORY (no
 * descriptor, too); KVT_E_THREAD; KVT_E_STATE (in a child of fork). Close it before the store:
 * kvt_store_close ends the queues that are open. kvt_queue_submit returns KVT_E_STATE from then on,
 * completions can still be drained, and the owner still closes them.
 */
KVT_API KVT_NODISCARD kvt_status kvt_queue_open(kvt_store *store, const kvt_queue_options *options,
                                                kvt_queue **queue_out);

/* Cancels requests that have not begun, abandons reads in flight, waits for entries that are being
 * decoded or put, and frees the queue. Completions that were not drained are dropped. Afterwards no
 * memory that a request named is touched. No other call may run or follow. NULL is allowed. In a
 * child of fork: does nothing. */
KVT_API void kvt_queue_close(kvt_queue *queue);

/* A descriptor for poll: readable while completions wait, or with whole_batches from the completion
 * of a whole batch on until all completions are drained. It is an eventfd of the queue's own, valid
 * until close; -1 in a child of fork. Do not read from it, unless you then drain all completions:
 * only a drain that empties the queue makes it ready for the next completion. */
KVT_API int kvt_queue_fd(const kvt_queue *queue);

typedef enum kvt_request_kind {
    KVT_REQUEST_GET = 1, /* as kvt_store_get */
    KVT_REQUEST_PUT = 2, /* as kvt_store_put. While the store cannot keep up it waits until its
                                 deadline, and is KVT_BUSY after that */
    KVT_REQUEST_EXISTS =
        3, /* as kvt_store_exists: no use. With an engine that other hosts share also
                               KVT_OK, with guess set, when another host is known to have it */
    KVT_REQUEST_PREFETCH = 4, /* as kvt_store_prefetch: towards a tier */
    KVT_REQUEST_DELETE = 5,   /* as kvt_store_delete */
    KVT_REQUEST_TOUCH = 6     /* a use without a read */
} kvt_request_kind;

/* How urgent a request is: one is begun when none of a more urgent class waits. */
typedef enum kvt_request_class {
    KVT_CLASS_WAITED = 0,    /* somebody waits for it */
    KVT_CLASS_PREFETCH = 1,  /* somebody will */
    KVT_CLASS_BACKGROUND = 2 /* nobody does */
} kvt_request_class;

/* One request. Fields that its kind has no use for are zero. */
typedef struct kvt_request {
    uint32_t struct_size;   /* the same in all requests of a call */
    uint32_t kind;          /* kvt_request_kind */
    uint32_t urgency;       /* kvt_request_class */
    uint32_t tier;          /* prefetch: kvt_tier to move the entry up to */
    kvt_key key;            /* all but put */
    const kvt_entry *entry; /* put; borrowed until the completion, as all that it points to */
    const kvt_view *view; /* get, put; borrowed until the completion, its arrays and the KV, too */
    uint64_t deadline_ns; /* get, put: until when to wait for devices and for room;
                             KVT_NO_DEADLINE = for as long as it takes; 0 = not at all;
                             KVT_STORE_DEADLINE: as kvt_store_get has it */
    double loss_max;      /* get: a miss when the stored variant's loss may pass this, by its upper
                             confidence bound; 0 = whatever the store keeps; below 0 = exact
                             variants alone */
    uint64_t user;        /* comes back with the completion */
    uint32_t first_layer; /* get: first of the layers that are wanted, counted over all groups in
                             their order; an opaque group is written when all layers are wanted.
                             A packed view of an entry of groups takes all: KVT_E_ARGUMENT */
    uint32_t layer_count; /* 0: all from first_layer on */
    kvt_get_info *info;   /* get: NULL, or as of kvt_store_get. info, its kept and the positions are
                             borrowed until the completion, and filled when that says KVT_OK */
} kvt_request;

/*
 * Accepts a batch: all of it, or nothing. A request that is unsound, or whose view does not fit the
 * entry, completes with its own status and does not disturb the others. Of two gets that are begun
 * together into overlapping memory the later one completes with KVT_E_ARGUMENT, as does a get of
 * which two views overlap.
 *   count      0 is allowed, and completes nothing
 *   batch_out  names the batch to kvt_queue_cancel, ascending from 1; may be NULL
 * KVT_OK; KVT_BUSY (more than depth would be accepted and not drained: drain, then submit again);
 * KVT_E_ARGUMENT (NULL, struct_size, count above depth); KVT_E_MEMORY; KVT_E_STATE (in a child of
 * fork; the store was closed).
 */
KVT_API KVT_NODISCARD kvt_status kvt_queue_submit(kvt_queue *queue, const kvt_request *requests,
                                                  size_t count, uint64_t *batch_out);

/* What became of one request. */
typedef struct kvt_completion {
    uint32_t struct_size;
    kvt_status status; /* as the blocking call of the request's kind */
    uint64_t batch;
    uint64_t user;
    uint32_t index;        /* of the request in its batch */
    uint32_t kind;         /* kvt_request_kind */
    uint32_t tier;         /* get with KVT_OK: kvt_tier that the entry was read from */
    bool timed_out;        /* get: a miss at its deadline; the entry may still be stored */
    bool refused_loss;     /* get: a miss because the stored variant may lose more than loss_max */
    bool refused_tokens;   /* get: a miss because the stored variant drops tokens (kvt_get_info) */
    bool guess;            /* exists: not here; known to be on another host (remote.h) */
    kvt_variant variant;   /* get with KVT_OK: as stored; KVT_E_MISMATCH: names the lacking basis */
    uint64_t stored_bytes; /* get with KVT_OK: bytes of the record that were read */
    uint64_t elapsed_ns;   /* from the submit on */
} kvt_completion;

/*
 * Takes completions, in the order in which they came, and clears the descriptor when none is left.
 *   completions  completions[0].struct_size is set by the caller: the distance from one to the next
 * Returns how many; 0 also for a wrong struct_size and in a child of fork. Never waits.
 */
KVT_API size_t kvt_queue_drain(kvt_queue *queue, kvt_completion *completions, size_t capacity);

/* Waits until completions wait to be drained, or until an instant of CLOCK_MONOTONIC in
 * nanoseconds (KVT_NO_DEADLINE: for as long as it takes). Until then the caller's thread carries
 * out gets that the queue's threads have not taken, up to 32 or 1 MiB at once, while no read of the
 * queue is under way; the call may be late by the time that these take. KVT_OK; KVT_END (no request
 * is accepted and not completed); KVT_E_TIMEOUT; KVT_E_STATE. */
KVT_API KVT_NODISCARD kvt_status kvt_queue_wait(kvt_queue *queue, uint64_t deadline_ns);

/* Calls a batch off: its requests that have not begun, puts that wait for room, and gets whose read
 * is in flight complete with KVT_E_CANCELLED. Entries that are being decoded or put complete as if
 * nothing had been called off. KVT_OK; KVT_MISS (the batch is unknown, or all of it had completed);
 * KVT_E_STATE. Waits for nothing. */
KVT_API KVT_NODISCARD kvt_status kvt_queue_cancel(kvt_queue *queue, uint64_t batch);

/* Counts of one queue since its open, and of now. */
typedef struct kvt_queue_stats {
    uint32_t struct_size;
    uint32_t waiting;   /* accepted and not begun, now */
    uint32_t begun;     /* begun and not completed, now */
    uint32_t undrained; /* completed and not drained, now */
    uint64_t batches, requests, completed, cancelled, timed_out, refused_busy;
    uint64_t device_reads; /* transfers that gets of this queue have started */
    uint64_t wakes;        /* writes of the descriptor */
} kvt_queue_stats;

/* KVT_OK; KVT_E_ARGUMENT (struct_size, NULL); KVT_E_STATE. */
KVT_API KVT_NODISCARD kvt_status kvt_queue_stats_get(kvt_queue *queue, kvt_queue_stats *stats);

#ifdef __cplusplus
}
#endif

#endif
