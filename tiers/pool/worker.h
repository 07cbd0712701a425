/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worker.h - the one thread that touches a member's device.
 *
 * A transfer reaches a worker as a job: its part on that member. Jobs and operations come from
 * fixed stocks made at start, and a job walks its units lazily, so no transfer fails for memory.
 * When all TIERS_WORKER_JOBS jobs are taken, queueing waits until one ends.
 *
 *     queue --> mailbox --> waited reads -> pieces --> device, up to its depth --> finished,
 *                       \-> other reads --/                                        once a job
 *                       \-> puts --------/
 *                       \-> background --/
 *
 * The four are ranks (tiers_rank). In the order reads_first a rank is served when those before it
 * are empty, and a rank that has waited while fifteen pieces of others were submitted is served
 * next; worker_order.c has the other orders. The pieces in flight are bounded in number by the
 * device's depth and in bytes by the options.
 *
 * A device that has work and finishes none of it for the timeout is retired, and so is one
 * that loses an operation: older than the limit, and overtaken by two queues full of others. Every
 * waiting thread checks the device too, because the worker's thread may be stuck in a blocking
 * call. Nothing in flight is ever given up: its job ends with its completion, if there will be one.
 *
 * A thread that ends inside its device, because the device's code ended it, retires its member.
 * Pieces that the device had not taken fail with KVT_E_GONE. Operations that it had are abandoned
 * by their waiters, as with a device that is unresponsive.
 *
 * A run of pieces that fail, without one that succeeds, makes the worker read the device's first
 * grain; when that fails, too, the member is retired.
 *
 * Thread rule: all functions from any thread, start and stop excepted.
 */
#ifndef TIERS_WORKER_H
#define TIERS_WORKER_H

#include "needs.h"

#define TIERS_WORKER_JOBS             512u
#define TIERS_IN_FLIGHT_BYTES_DEFAULT ((uint64_t)8 << 20)

typedef struct tiers_worker tiers_worker;

/* A continuous range of a member, to be read into memory. `status` is KVT_QUEUED until the run has
 * ended; who reads another value there (acquire) may read the buffer. The runs of one list fail
 * apart from each other. */
typedef struct tiers_run {
    uint64_t device_offset;
    uint64_t bytes; /* a multiple of the grain, not 0 */
    void *buffer;   /* aligned to the grain */

    uint64_t issued;    /* the worker's, as the rest */
    uint32_t in_flight; /* requests of it that have not ended */
    kvt_status error;   /* the first of them that failed */
    _Atomic int status;
} tiers_run;

/* The runs that one member has of a gather, served in their order. */
typedef struct tiers_runs {
    tiers_run *runs;
    uint32_t count;
    uint32_t next; /* the worker's: the first that is not issued whole */
} tiers_runs;

/* The outcome of one member's part of a transfer. */
typedef struct tiers_job_result {
    kvt_status status;     /* first error */
    uint32_t member;       /* whose part it was */
    uint64_t bytes;        /* moved */
    uint64_t submitted_ns; /* device clock; of the first operation, 0 without any */
    uint64_t finished_ns;  /* device clock; of the last operation, 0 without any */
} tiers_job_result;

/* Called on the worker's thread, once per job; the worker does not touch the transfer again. */
typedef void tiers_job_finished(void *context, tiers_transfer *transfer,
                                const tiers_job_result *result);

/* Called on the worker's thread when it has nothing else to do and was asked to; the device may be
 * NULL. Returns whether to be called again. Must take no lock that a thread may hold while it waits
 * for the worker. */
typedef bool tiers_worker_spare(void *context, tiers_worker *worker, kvt_device *device);

/* Called on the worker's thread for each range of a transfer with `arrival` that has come. */
typedef void tiers_worker_arrived(void *context, tiers_transfer *transfer, uint64_t at,
                                  uint64_t bytes);

/* The figures of a device as they were measured before; each device brings its own. */
typedef struct tiers_worker_options {
    double read_bytes_per_s; /* above 0; the weight to begin with */
    double write_bytes_per_s;
    double request_seconds;
    uint64_t in_flight_bytes_max; /* 0 = TIERS_IN_FLIGHT_BYTES_DEFAULT */
    uint64_t timeout_ns;       /* 0 = TIERS_TIMEOUT_NS_DEFAULT; TIERS_TIMEOUT_NEVER (watchdog.h) */
    bool reweigh;              /* the weight follows what is measured */
    slack_settings gate;       /* the order, and what it asks for */
    uint32_t member;           /* of the pool, among the needs: */
    tiers_needs *needs;        /* of the pool; NULL = the order reads_first, whatever the gate */
    const atomic_bool *hurry;  /* writes are short of staging; NULL = never */
    _Atomic(FILE *) *log;      /* of decisions: NULL, or one that holds NULL, = none */
    tiers_worker_spare *spare; /* NULL = none */
    tiers_worker_arrived *arrived; /* NULL = none, and no transfer has `arrival` */
} tiers_worker_options;

/* The last call of an abandoned worker's thread, which no thread joins; it may free the worker. */
typedef void tiers_worker_ended(void *context);

/* Starts the thread; the device stays the caller's but is the worker's to use until the end.
 * KVT_OK; KVT_E_MEMORY (thread creation included). */
KVT_NODISCARD kvt_status tiers_worker_start(kvt_device *device, const tiers_worker_options *options,
                                            tiers_job_finished *finished, tiers_worker_ended *ended,
                                            void *context, tiers_worker **worker_out);

/* Asks the thread to end when all jobs are done. */
void tiers_worker_end(tiers_worker *worker);

/* Waits until the thread has ended; the device is detached then. False when the device is
 * unresponsive: the thread stays with the operations in flight and calls `ended` at last. */
bool tiers_worker_join(tiers_worker *worker);

/* Frees a worker whose thread has ended. NULL is allowed. */
void tiers_worker_free(tiers_worker *worker);

/* Queues the part of the transfer that one share has, about so many bytes; the thread may not look
 * for it before tiers_worker_call. May wait for a free job, until an instant of CLOCK_MONOTONIC.
 * KVT_OK; KVT_E_TIMEOUT, KVT_E_GONE: nothing is queued, and `finished` will not be called for it.
 */
KVT_NODISCARD kvt_status tiers_worker_queue(tiers_worker *worker, tiers_transfer *transfer,
                                            uint32_t share, uint64_t bytes, uint64_t deadline_ns);

/* The same for a transfer of runs, which are the whole part of this member. */
KVT_NODISCARD kvt_status tiers_worker_queue_runs(tiers_worker *worker, tiers_transfer *transfer,
                                                 uint32_t member, uint64_t deadline_ns);

/* Wakes the thread for queued jobs. A caller queues all its jobs, for other workers too, before it
 * wakes a thread, because a thread that is woken may take the caller's processor. */
void tiers_worker_call(tiers_worker *worker);

/* Wakes the thread to end the jobs of cancelled transfers. */
void tiers_worker_sweep(tiers_worker *worker);

/* Checks the device's timeout. True when the member is retired. */
bool tiers_worker_check(tiers_worker *worker);

/* One request to make finished writes durable; begin on several workers lets their devices sync at
 * the same time. */
typedef struct tiers_worker_sync {
    uint64_t ticket;
} tiers_worker_sync;

/* Asks for a sync of the device after the operations that it has now. */
void tiers_worker_sync_begin(tiers_worker *worker, tiers_worker_sync *sync);

/* KVT_OK, also when its owner retired the member before the device was asked; KVT_E_IO; KVT_E_GONE,
 * also when the device does not answer. */
KVT_NODISCARD kvt_status tiers_worker_sync_wait(tiers_worker *worker,
                                                const tiers_worker_sync *sync);

/* Fails all jobs, present and future, with KVT_E_GONE; operations in flight still end. */
void tiers_worker_retire(tiers_worker *worker, tiers_retired why);

/* Fills the worker's part of a member's statistics: retirement, bytes, bandwidths. */
void tiers_worker_stats_get(const tiers_worker *worker, tiers_member_stats *out);

/* Whether the member is out of service; new jobs fail with KVT_E_GONE then. */
bool tiers_worker_retired(const tiers_worker *worker);

/* Whether the last write that ended failed: new units are better elsewhere. */
bool tiers_worker_write_failed(const tiers_worker *worker);

/* Asks for calls of the spare function when there is time. */
void tiers_worker_ask_spare(tiers_worker *worker);

/* Whether waited reads keep the device busy (worker_meter.h); never so on a retired member. */
bool tiers_worker_is_pressed(tiers_worker *worker);

/* The rank in which a transfer is served. */
static inline tiers_rank tiers_worker_rank(const tiers_transfer *transfer)
{
    if (transfer->kind == KVT_IO_WRITE)
        return transfer->waited ? TIERS_RANK_WRITE : TIERS_RANK_BACKGROUND;
    return transfer->waited ? TIERS_RANK_WAITED : TIERS_RANK_READ;
}

/* Bytes queued and not finished, approximately. */
uint64_t tiers_worker_pending_bytes(const tiers_worker *worker);

/* Of these, the bytes of one kind that go before a transfer of a rank that is queued now: those of
 * its rank and the ranks before it, and of the others what the device has already. */
uint64_t tiers_worker_ahead(const tiers_worker *worker, tiers_rank rank, kvt_io_kind kind);

/* Device clock: the last completion, or when the device began to have work. */
uint64_t tiers_worker_moved_ns(const tiers_worker *worker);

/* Nothing is queued, in flight or under way: change_device would not wait. */
bool tiers_worker_idle(tiers_worker *worker);

/*
 * Gives the worker another device, or NULL for none; the old device is the caller's again. With
 * NULL the worker is retired, with a device it serves and measures anew. Jobs stay queued
 * meanwhile; the call waits for operations in flight. Before the call the worker is retired or has
 * nothing to do. KVT_OK; KVT_BUSY (the old device does not answer; nothing has changed).
 */
KVT_NODISCARD kvt_status tiers_worker_change_device(tiers_worker *worker, kvt_device *device,
                                                    const tiers_worker_options *options);

/* Whether the device has work and has answered nothing for a quarter of a second. */
bool tiers_worker_stalls(const tiers_worker *worker);

/* Whether it does, or its answers are late: the worker asks an idle device by itself whether they
 * still are, so nothing needs to be put there to find out. */
bool tiers_worker_is_late(tiers_worker *worker);

/* Bytes per second of reads that placement should count on (worker_meter.h). */
double tiers_worker_weight(const tiers_worker *worker);

/* Counts bytes that a thread moved in the device's memory itself, in one request. */
void tiers_worker_count(tiers_worker *worker, kvt_io_kind kind, uint64_t bytes);

/* Bytes of one kind that were moved since the worker was started, by it or beside it. */
uint64_t tiers_worker_bytes(const tiers_worker *worker, kvt_io_kind kind);

#endif
