/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worker_internal.h - a worker's own data, for worker.c (the thread) and worker_calls.c (the calls
 * of other threads). Nothing outside these two files reads it.
 *
 *                       written by                      read by            guarded by
 *     mailbox           any thread; emptied by the      the thread         `mutex`
 *                       worker's thread
 *     life, timeout     the thread and its waiters      both               `mutex`
 *     pressure          the thread, and who queues      any thread         `mutex`
 *     accounts          the thread; pending_bytes and   any thread         atomic
 *                       jobs_queued also by a caller
 *                       that queues; why by any thread
 *     the rest          the thread                      the thread         its own
 *
 * An operation is in three accounts. pending_bytes counts it from queue to completion, flying_bytes
 * and in_flight from submit to completion; the differences still wait in the worker.
 * in_flight also counts a blocking call that is under way, so that a member has work exactly when
 * in_flight is above 0, and progress counts each end of either: the two that the timeout watches.
 */
#ifndef TIERS_WORKER_INTERNAL_H
#define TIERS_WORKER_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "stripe.h"
#include "tiers/devices/watchdog.h"
#include "worker.h"
#include "worker_meter.h"

enum { WORKER_DEPTH_MAX = 256 };

/* One member's part of a transfer. The job is in exactly one of these: the free list, the mailbox,
 * an active list, or nowhere but in the slots of its pieces (issuing is false, in_flight above 0).
 */
typedef struct worker_job {
    struct worker_job *next;
    tiers_transfer *transfer;
    uint64_t estimate; /* share of pending_bytes; falls with each piece that ends */
    uint32_t in_flight;
    uint64_t number; /* in the order of their queueing */
    uint64_t queued_ns;
    tiers_rank rank;
    bool issuing; /* in a list; more pieces may come */
    tiers_job_result result;
    tiers_runs *runs; /* or NULL: then the walk says what to move */
    tiers_walk walk;
} worker_job;

/* Jobs in the order of their coming; tail is NULL exactly when head is. */
typedef struct worker_list {
    worker_job *head;
    worker_job *tail;
} worker_list;

/* One piece of a job, and the device operation that moves it. A slot without a job is free. */
typedef struct worker_slot {
    kvt_io io;
    worker_job *job;
    tiers_run *run; /* of the job's runs, or NULL */
    struct worker_slot *next;
    uint64_t begun_progress; /* the worker's, when it was submitted */
    bool metered;            /* the device has accepted it */
} worker_slot;

/* Doubles that other threads read while the worker changes them, as their bits. */
typedef _Atomic uint64_t worker_double;

/* A change of device, on its caller's stack until done. */
typedef struct worker_change {
    kvt_device *device;
    const tiers_worker_options *options;
    bool done;
} worker_change;

/* The mail of one round, as the thread took it from the mailbox. */
typedef struct worker_mail {
    uint64_t sync;         /* the ticket to serve; 0 = none */
    worker_change *change; /* NULL = none */
    bool sweep;            /* a transfer that may be in `active` was cancelled */
} worker_mail;

/* The life of the thread:
 *
 *     RUNS ---> ENDED                     it left its loop because of `stop`
 *      |  \--> ABANDONED ---> (freed)     close left it to an unresponsive device: nobody joins it
 *      \-----> DIED ---> JOINED           it ended inside the device; JOINED ---> RUNS: another one
 */
typedef enum worker_life {
    WORKER_RUNS,
    WORKER_ENDED,
    WORKER_ABANDONED,
    WORKER_DIED,
    WORKER_JOINED
} worker_life;

struct tiers_worker {
    kvt_device *device; /* NULL: none, and retired */
    tiers_job_finished *finished;
    tiers_worker_ended *abandoned_end; /* an abandoned thread calls it last */
    void *context;
    pthread_t thread;

    /* The mailbox. */
    pthread_mutex_t mutex;
    pthread_cond_t work; /* mail for the thread */
    pthread_cond_t room; /* a job became free */
    pthread_cond_t synced;
    pthread_cond_t changed; /* the device did, or `life` */
    worker_job *free_jobs;
    worker_list mail[TIERS_RANKS];
    uint64_t sync_wanted; /* the last ticket that was asked for */
    uint64_t sync_done;   /* and the last that was served */
    uint64_t sync_failed; /* the last one of a sync that failed, and how it did */
    kvt_status sync_status;
    worker_change *change;
    uint64_t jobs_posted; /* ever */
    bool stop;
    bool spare_asked;
    bool sweep;   /* a transfer that may be in the mail was cancelled */
    bool reaping; /* the thread waits in its device, which mail wakes: once */
    tiers_timeout timeout;
    tiers_pressure pressure; /* of waited reads; sampled when one is queued or has ended */
    _Atomic int life;        /* worker_life; changed under the mutex */

    /* Accounts. */
    _Atomic int why; /* tiers_retired; the member is retired unless TIERS_SERVES */
    _Atomic uint64_t retired_ns;
    _Atomic int write_status;   /* of the last write that ended */
    _Atomic uint32_t in_flight; /* operations that the device has, and a blocking call */
    _Atomic uint64_t progress;  /* operations and calls that ended */
    _Atomic uint64_t pending_bytes[TIERS_RANKS];
    _Atomic uint64_t flying_bytes[TIERS_RANKS]; /* the device has them */
    _Atomic uint64_t moved_ns;    /* device clock: of the last completion, or of the first
                                     submission to an idle device */
    _Atomic uint32_t jobs_queued; /* and not finished */
    _Atomic uint64_t bytes[2];    /* by kvt_io_kind */
    _Atomic uint64_t requests;
    _Atomic uint64_t seal_faults;    /* of the device, as of the last piece */
    _Atomic(const char *) key_fault; /* of the device, as of the last sync */
    atomic_bool is_late; /* its answers were: it is asked when idle whether they still are */
    _Atomic uint64_t decisions[TIERS_DECISIONS];
    _Atomic uint32_t depth_achieved;
    worker_double read_bytes_per_s;
    worker_double write_bytes_per_s;
    worker_double weight_bytes_per_s;
    worker_double stalled_bytes_per_s; /* the weight while the device has work and answers nothing
                                          for WORKER_STALL_NS; 0: there is no such weight */

    /* The thread's own. */
    tiers_worker_options options; /* of the device; in_flight_bytes_max is settled */
    uint32_t depth;
    uint32_t request_bytes;
    uint32_t write_bytes; /* of one write, as the order bounds it */
    bool gated;           /* in the order slack, passes count */
    worker_list active[TIERS_RANKS];
    uint32_t passed[TIERS_RANKS]; /* pieces of other ranks submitted while the rank waited */
    slack_account account;
    bool wrote;            /* the last piece was a write */
    bool held;             /* what waits may not begin now */
    bool ending;           /* the thread is asked to stop: nothing is held any more */
    slack_reason held_for; /* what the last decision said, SLACK_ORDERED: nothing was held */
    worker_slot *free_slots;
    worker_slot *stalled; /* the device was busy for it */
    uint32_t busy_naps;
    uint32_t failures;   /* pieces failed since the last one that succeeded */
    uint64_t checked_ns; /* when the thread last checked its operations */
    tiers_meter meter;
    void *probe;       /* a grain */
    kvt_io asked;      /* reads it, of an idle device that is late, */
    uint64_t asked_ns; /* last at this instant */
    worker_job *jobs;
    worker_slot *slots;
    kvt_io **done;
};

#define WORKER_PASSED_MAX 15u /* pieces of other ranks, until a rank that waits is served */

/* The rank to serve next in the member's order; TIERS_RANKS: no job has a piece to issue, or none
 * of them may begin now (`held`). On the thread. */
uint32_t worker_choose_rank(tiers_worker *worker);

/* Takes the member out of service; the first reason is kept. */
void worker_retire(tiers_worker *worker, tiers_retired why);

void worker_list_push(worker_list *list, worker_job *job);

/* Notes the backlog of waited reads when a job of that rank was queued or has ended. The mutex is
 * held. */
void worker_sample_pressure(tiers_worker *worker, tiers_rank rank);

/* Adds up the time without an answer and retires the member at its timeout. Returns whether the
 * device is unresponsive now. The mutex is held. */
bool worker_check(tiers_worker *worker, uint64_t now_ns);

/* Looks for a lost operation and checks the timeout, at most once per TIERS_CHECK_NS, because the
 * loop passes here for every few completions. */
void worker_check_operations(tiers_worker *worker);

/* Whether the mailbox holds a job, a sync or a change. A sweep is no mail: it matters only to jobs
 * that are there already. The mutex is held. */
static inline bool worker_has_mail(const tiers_worker *worker)
{
    for (uint32_t rank = 0; rank < TIERS_RANKS; rank++)
        if (worker->mail[rank].head != NULL) return true;
    return worker->sync_wanted != worker->sync_done || worker->change != NULL;
}

/* Whether the thread ended inside the device, joined or not. */
static inline bool worker_has_died(const tiers_worker *worker)
{
    int life = atomic_load(&worker->life);
    return life == WORKER_DIED || life == WORKER_JOINED;
}

/* Operations that the device has, and a blocking call. */
static inline uint32_t worker_in_flight(const tiers_worker *worker)
{
    return atomic_load_explicit(&worker->in_flight, memory_order_relaxed);
}

/* Bytes that the device has. */
static inline uint64_t worker_flying(const tiers_worker *worker)
{
    uint64_t bytes = 0;
    for (uint32_t rank = 0; rank < TIERS_RANKS; rank++)
        bytes += atomic_load_explicit(&worker->flying_bytes[rank], memory_order_relaxed);
    return bytes;
}

/* The rate that writes count with at the gate. On the thread. */
static inline double worker_write_rate(const tiers_worker *worker)
{
    const tiers_worker_options *options = &worker->options;
    const double rate =
        slack_write_rate(worker->meter.bytes_per_s[KVT_IO_WRITE], options->write_bytes_per_s);
    return rate > 0 ? rate : options->read_bytes_per_s;
}

/* Bytes of one write at most. On the thread. */
static inline uint32_t worker_write_bytes(const tiers_worker *worker)
{
    const tiers_worker_options *options = &worker->options;
    if (!worker->gated) return worker->request_bytes;
    const uint64_t bytes =
        slack_write_bytes(&options->gate, &worker->account, worker_write_rate(worker));
    return bytes < worker->request_bytes ? (uint32_t)bytes : worker->request_bytes;
}

/* Notifies the thread that there is something in the mailbox. The mutex is held. */
void worker_nudge(tiers_worker *worker);

/* The thread's function; the argument is the worker. */
void *worker_main(void *worker);

#endif
