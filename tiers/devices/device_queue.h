/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_queue.h - how the file and nvme back ends keep many operations in flight: through an
 * io_uring ring (device_uring.c), else through threads that make blocking calls
 * (device_threads.c), else one after the other.
 *
 *     open -> [register] -> attach -> submit, flush, reap -> detach -> close
 *
 * Until attach and after detach each operation is a blocking call on the caller's thread. The ring
 * is made disabled at open, so that what the kernel grants is known there, and enabled by attach:
 * SINGLE_ISSUER and DEFER_TASKRUN bind it to the thread that enables it.
 *
 * The queue owns kvt_io.device_word of an operation in flight: bytes moved so far (low half), tries
 * without progress (high half).
 *
 * Thread rule: as device_ops.h.
 */
#ifndef TIERS_DEVICE_QUEUE_H
#define TIERS_DEVICE_QUEUE_H

#include "device_internal.h"

#include <liburing.h>
#include <pthread.h>

enum {
    TIERS_QUEUE_RETRIES_MAX = 64, /* of one operation, without progress */
    TIERS_QUEUE_DEPTH_MAX = 4096,
    TIERS_QUEUE_THREADS_DEFAULT = 8,
    TIERS_QUEUE_THREADS_MAX = 32
};

/* The calls by which a queue reaches its back end. */
typedef struct tiers_queue_calls {
    const char *names[3]; /* of the engine, by tiers_queue_kind */
    bool wide; /* ring entries of 128 bytes and completions of 32, for command passthrough */

    /* Moves the rest of an operation, from `moved` on, by blocking calls and finishes it. Called by
     * any thread of the queue, several at once. */
    void (*run)(kvt_device *device, kvt_io *io, uint32_t moved);

    /* Fills a zeroed ring entry for the rest of an operation; buffer_index is that of the
     * registered region around it, or -1. The queue sets file, flags and user data. */
    void (*prepare)(kvt_device *device, struct io_uring_sqe *entry, const kvt_io *io,
                    uint32_t moved, int buffer_index);

    /* Reads a completion. True when it finished the operation; else *moved says how far it is. */
    bool (*settle)(kvt_device *device, kvt_io *io, int32_t result, uint32_t *moved);
} tiers_queue_calls;

/* A list of operations through kvt_io.next. */
typedef struct tiers_io_list {
    kvt_io *head;
    kvt_io *tail;
} tiers_io_list;

void tiers_io_list_push(tiers_io_list *list, kvt_io *io);
kvt_io *tiers_io_list_pop(tiers_io_list *list); /* NULL when empty */

/* The ring and its two lists. queued_count is the length of `queued`; queued_count + kernel_count +
 * the length of `ready` is the number of operations in flight. */
typedef struct tiers_ring {
    struct io_uring uring;
    int wake_fd;          /* an eventfd that the ring polls while it is enabled; -1 = none */
    bool woken;           /* since the last reap */
    tiers_io_list queued; /* in the submission queue, not yet taken by the kernel; in order */
    tiers_io_list ready;  /* finished by blocking calls after the ring broke */
    uint32_t queued_count;
    uint32_t kernel_count; /* taken by the kernel, completion not yet seen */
    uint32_t refusals;     /* in a row, with nothing in the kernel */
    bool open;
    bool fixed_file;
    bool fixed_buffers;
    bool broken; /* the kernel refused to take entries: nothing is submitted to it any more */
} tiers_ring;

/* The threads, and the operations on their way to and from them. All members but `threads` and
 * `count` are under `lock`; finished_count is the length of `finished`. */
typedef struct tiers_threads {
    pthread_mutex_t lock;
    pthread_cond_t work; /* something to do, or the end */
    pthread_cond_t done; /* something finished */
    tiers_io_list todo;
    tiers_io_list finished;
    uint32_t finished_count;
    uint32_t count;
    bool stop;
    bool woken;
    pthread_t threads[TIERS_QUEUE_THREADS_MAX];
} tiers_threads;

/* How operations are kept in flight, as achieved and not as asked for. */
typedef enum tiers_queue_kind {
    TIERS_QUEUE_INLINE = 0, /* one blocking call at a time */
    TIERS_QUEUE_RING = 1,
    TIERS_QUEUE_THREADS = 2
} tiers_queue_kind;

/* regions are sorted by address. ring and threads are in use as `kind` says. */
typedef struct tiers_queue {
    kvt_device *device;
    const tiers_queue_calls *calls;
    int fd;
    uint32_t depth; /* operations in flight at once, as achieved */
    tiers_queue_kind kind;
    bool attached;
    kvt_device_region *regions; /* none larger than the kernel takes */
    uint32_t region_count;
    tiers_ring ring;
    tiers_threads threads;
} tiers_queue;

/*
 * The first member of a back end that works through a queue, and the calls of kvt_device_ops that
 * it answers. attach and register_buffers name the engine anew after what was achieved:
 * "io_uring+direct+fixed", say.
 */
typedef struct tiers_queued {
    kvt_device base;
    tiers_queue queue;
} tiers_queued;

/* Opens the queue of a device whose facts are set but for depth_max and engine, which follow from
 * it: chooses the best kind that the machine grants, without io_uring when synchronous; depth 0 is
 * the kind's default. Cannot fail. The descriptor stays the caller's and open until close. */
void tiers_queued_open(tiers_queued *queued, const tiers_queue_calls *calls, int fd,
                       const kvt_device_config *config);
/* Closes the ring and forgets the regions; the queue is detached. */
void tiers_queue_close(tiers_queue *queue);
void tiers_queued_attach(kvt_device *device);
void tiers_queued_detach(kvt_device *device);
kvt_status tiers_queued_register(kvt_device *device, const kvt_device_region *regions,
                                 uint32_t count);
kvt_status tiers_queued_submit(kvt_device *device, kvt_io *io);
void tiers_queued_flush(kvt_device *device);
size_t tiers_queued_reap(kvt_device *device, kvt_io **done, size_t min, size_t max,
                         uint64_t timeout_ns);
void tiers_queued_wake(kvt_device *device);

/* ---- device_uring.c ---- */

/* Makes a disabled ring over the queue's descriptor and registers the queue's regions; false when
 * the kernel refuses a ring. */
bool tiers_ring_open(tiers_queue *queue);

/* Makes it the calling thread's. False: it is closed again. */
bool tiers_ring_enable(tiers_queue *queue);
/* Takes the ring down; nothing is in flight. */
void tiers_ring_close(tiers_queue *queue);

/* Registers the queue's regions in place of earlier ones; false when the kernel refuses to. */
bool tiers_ring_register(tiers_queue *queue);
KVT_NODISCARD kvt_status tiers_ring_submit(tiers_queue *queue, kvt_io *io);
/* flush submits what is queued. reap collects completions, and waits and resubmits as the contract
 * of kvt_device_ops says. wake ends the wait of another thread. */
void tiers_ring_flush(tiers_queue *queue);
size_t tiers_ring_reap(tiers_queue *queue, kvt_io **done, size_t min, size_t max,
                       uint64_t timeout_ns);
void tiers_ring_wake(tiers_queue *queue);

/* ---- device_threads.c ---- */

/* Starts up to queue->depth threads; false when not one could be. */
bool tiers_threads_start(tiers_queue *queue);
/* Ends and joins all threads; nothing is in flight. submit, reap and wake are as the queue's. */
void tiers_threads_stop(tiers_queue *queue);
void tiers_threads_submit(tiers_queue *queue, kvt_io *io);
size_t tiers_threads_reap(tiers_queue *queue, kvt_io **done, size_t min, size_t max,
                          uint64_t timeout_ns);
void tiers_threads_wake(tiers_queue *queue);

#endif
