/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worker_calls.c - the calls of other threads on a worker: start, stop, change of device, queue,
 * sync, and figures. The contracts are in worker.h. No function here submits to the device or reaps
 * from it; the calls leave mail and wait on conditions.
 *
 * A caller that waits checks the timeout itself, every TIERS_CHECK_NS: the worker's thread may be
 * blocked inside the device and cannot.
 *
 * Thread rule: all functions from any thread, start and stop excepted. The figures are atomic and
 * take no lock.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/thread.h"
#include "base/wait.h"
#include "tiers/devices/device_internal.h"
#include "worker_internal.h"

/* Each figure is one atomic number that the thread publishes. Readers may see figures of different
 * moments, but never half of one. */
/* ---- figures ---- */

bool tiers_worker_retired(const tiers_worker *worker)
{
    return atomic_load(&worker->why) != TIERS_SERVES;
}

/* The last value that the thread published. */
static double worker_load_double(const worker_double *source)
{
    uint64_t bits = atomic_load(source);
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

#define WORKER_STALL_NS UINT64_C(250000000)

bool tiers_worker_stalls(const tiers_worker *worker)
{
    if (worker_load_double(&worker->stalled_bytes_per_s) <= 0 || worker_flying(worker) == 0)
        return false;
    const uint64_t moved_ns = atomic_load(&worker->moved_ns), now_ns = base_clock_ns();
    return now_ns > moved_ns && now_ns - moved_ns > WORKER_STALL_NS;
}

/* Silence that was seen lasts until the meter has judged an answer. */
bool tiers_worker_is_late(tiers_worker *worker)
{
    if (tiers_worker_stalls(worker)) atomic_store(&worker->is_late, true);
    return atomic_load(&worker->is_late);
}

/* The meter knows requests that have ended. A device that answers none of those that it has is not
 * waited for: its weight is the least until it answers. */
double tiers_worker_weight(const tiers_worker *worker)
{
    const double weight = worker_load_double(&worker->weight_bytes_per_s);
    const double stalled = worker_load_double(&worker->stalled_bytes_per_s);
    return stalled < weight && tiers_worker_stalls(worker) ? stalled : weight;
}

bool tiers_worker_write_failed(const tiers_worker *worker)
{
    return atomic_load(&worker->write_status) != KVT_OK;
}

uint64_t tiers_worker_pending_bytes(const tiers_worker *worker)
{
    return tiers_worker_ahead(worker, TIERS_RANK_BACKGROUND, KVT_IO_READ) +
           tiers_worker_ahead(worker, TIERS_RANK_BACKGROUND, KVT_IO_WRITE);
}

/* The one operation in sixteen of a later rank is left out: it moves a prediction by little. */
uint64_t tiers_worker_ahead(const tiers_worker *worker, tiers_rank rank, kvt_io_kind kind)
{
    uint32_t first = kind == KVT_IO_READ ? TIERS_RANK_WAITED : TIERS_RANK_WRITE;
    uint32_t end = kind == KVT_IO_READ ? TIERS_RANK_WRITE : TIERS_RANKS;
    uint64_t bytes = 0;
    for (uint32_t other = first; other < end; other++)
        bytes += atomic_load(other <= (uint32_t)rank ? &worker->pending_bytes[other]
                                                     : &worker->flying_bytes[other]);
    return bytes;
}

void worker_sample_pressure(tiers_worker *worker, tiers_rank rank)
{
    if (rank != TIERS_RANK_WAITED) return;
    double bytes = (double)atomic_load(&worker->pending_bytes[TIERS_RANK_WAITED]);
    double bytes_per_s = worker_load_double(&worker->read_bytes_per_s);
    assert(bytes_per_s > 0);
    tiers_pressure_sample(&worker->pressure, bytes / bytes_per_s, base_clock_ns());
}

bool tiers_worker_is_pressed(tiers_worker *worker)
{
    pthread_mutex_lock(&worker->mutex);
    bool pressed = tiers_pressure_is_on(&worker->pressure, base_clock_ns());
    pthread_mutex_unlock(&worker->mutex);
    return pressed && !tiers_worker_retired(worker);
}

/* An operation is lost when so many times the depth of others, submitted after it, have ended. */
#define WORKER_OVERTAKEN 2u

/* Whether the device lost an operation: the operation is older than the timeout, and in the
 * meantime WORKER_OVERTAKEN times the depth of other operations have ended. The timeout alone does
 * not find it, because the others' progress restarts the timeout. A device with virtual time is
 * never blamed, because its instants cannot be compared with ours. */
static bool worker_has_lost_operation(const tiers_worker *worker, uint64_t now_ns)
{
    const kvt_device *device = worker->device;
    if (device == NULL || (device->facts.flags & KVT_DEVICE_VIRTUAL_TIME) != 0) return false;
    uint64_t progress = atomic_load(&worker->progress);
    for (uint32_t i = 0; i < worker->depth; i++) {
        const worker_slot *slot = &worker->slots[i];
        const kvt_io *io = &slot->io;
        if (io->state != KVT_IO_IN_FLIGHT || io->submitted_ns == 0) continue;
        bool old =
            now_ns > io->submitted_ns && now_ns - io->submitted_ns > worker->timeout.limit_ns;
        if (old && progress - slot->begun_progress > (uint64_t)WORKER_OVERTAKEN * worker->depth)
            return true;
    }
    return false;
}

void worker_check_operations(tiers_worker *worker)
{
    if (worker_in_flight(worker) == 0) return;
    uint64_t now_ns = base_clock_ns();
    if (now_ns - worker->checked_ns < TIERS_CHECK_NS) return;
    worker->checked_ns = now_ns;
    if (worker_has_lost_operation(worker, now_ns))
        worker_retire(worker, TIERS_RETIRED_UNRESPONSIVE);
    (void)tiers_worker_check(worker);
}

uint64_t tiers_worker_moved_ns(const tiers_worker *worker)
{
    return atomic_load_explicit(&worker->moved_ns, memory_order_relaxed);
}

uint64_t tiers_worker_bytes(const tiers_worker *worker, kvt_io_kind kind)
{
    return atomic_load(&worker->bytes[kind]);
}

void tiers_worker_count(tiers_worker *worker, kvt_io_kind kind, uint64_t bytes)
{
    atomic_fetch_add_explicit(&worker->bytes[kind], bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&worker->requests, 1, memory_order_relaxed);
}

/* The figures are read one by one, so two of them may be of different moments. */
void tiers_worker_stats_get(const tiers_worker *worker, tiers_member_stats *out)
{
    out->why = (tiers_retired)atomic_load(&worker->why);
    out->write_status = atomic_load(&worker->write_status);
    out->retired_ns = out->why != TIERS_SERVES ? atomic_load(&worker->retired_ns) : 0;
    out->bytes_read = tiers_worker_bytes(worker, KVT_IO_READ);
    out->bytes_written = tiers_worker_bytes(worker, KVT_IO_WRITE);
    out->requests = atomic_load(&worker->requests);
    out->seal_faults = atomic_load(&worker->seal_faults);
    out->key_fault = atomic_load(&worker->key_fault);
    out->pending_bytes = tiers_worker_pending_bytes(worker);
    out->read_bytes_per_s = worker_load_double(&worker->read_bytes_per_s);
    out->write_bytes_per_s = worker_load_double(&worker->write_bytes_per_s);
    out->weight_bytes_per_s = tiers_worker_weight(worker);
    for (uint32_t i = 0; i < TIERS_DECISIONS; i++)
        out->decisions[i] = atomic_load(&worker->decisions[i]);
    uint32_t depth = atomic_load(&worker->depth_achieved);
    if (depth > out->facts.depth_achieved) out->facts.depth_achieved = depth;
}

/* ---- work ---- */

/* A caller leaves mail under the mutex and nudges the thread. It never touches a list of the
 * thread's own. */

/* `reaping` falls with the first nudge, so a device is woken once per wait. */
void worker_nudge(tiers_worker *worker)
{
    pthread_cond_signal(&worker->work);
    if (worker->reaping) kvt_device_wake(worker->device);
    worker->reaping = false;
}

/* Waits until a job is free, not beyond the deadline. KVT_E_TIMEOUT; KVT_E_GONE when the member is
 * retired, also at once. The mutex is held, and released while waiting. */
static kvt_status worker_await_job(tiers_worker *worker, uint64_t deadline_ns)
{
    if (worker->free_jobs == NULL) worker_nudge(worker); /* what is queued may be the caller's */
    while (worker->free_jobs == NULL) {
        uint64_t now_ns = base_clock_ns();
        if (now_ns >= deadline_ns) return KVT_E_TIMEOUT;
        (void)worker_check(worker, now_ns);
        if (tiers_worker_retired(worker)) return KVT_E_GONE;
        uint64_t wake_ns = now_ns + TIERS_CHECK_NS;
        base_condition_wait_until(&worker->room, &worker->mutex,
                                  wake_ns < deadline_ns ? wake_ns : deadline_ns);
    }
    return tiers_worker_retired(worker) ? KVT_E_GONE : KVT_OK;
}

/* Takes a free job for a transfer and puts it into the mailbox. The estimate counts as pending at
 * once, so the next reservation sees it. The mutex is held. */
static void worker_post_job(tiers_worker *worker, tiers_transfer *transfer, uint32_t member,
                            uint64_t bytes)
{
    worker_job *job = worker->free_jobs;
    worker->free_jobs = job->next;
    assert(job->transfer == NULL && job->in_flight == 0 && "a free job belongs to no transfer");
    job->transfer = transfer;
    job->estimate = bytes;
    job->rank = tiers_worker_rank(transfer);
    job->in_flight = 0;
    job->number = ++worker->jobs_posted;
    job->queued_ns = base_clock_ns();
    job->issuing = true;
    job->runs = transfer->runs;
    job->result = (tiers_job_result){.status = KVT_OK, .member = member};
    atomic_fetch_add(&worker->pending_bytes[job->rank], job->estimate);
    atomic_fetch_add(&worker->jobs_queued, 1);
    worker_list_push(&worker->mail[job->rank], job);
    worker_sample_pressure(worker, job->rank);
}

/* The walk is set up here and not on the thread, because the location is pinned by now. */
kvt_status tiers_worker_queue(tiers_worker *worker, tiers_transfer *transfer, uint32_t share,
                              uint64_t bytes, uint64_t deadline_ns)
{
    const tiers_location *location = transfer->location;
    assert(transfer->runs == NULL && share < location->share_count);
    pthread_mutex_lock(&worker->mutex);
    kvt_status status = worker_await_job(worker, deadline_ns);
    if (status == KVT_OK) {
        tiers_walk_init(&worker->free_jobs->walk, location, share, transfer->offset,
                        transfer->bytes);
        worker_post_job(worker, transfer, location->shares[share].member, bytes);
    }
    pthread_mutex_unlock(&worker->mutex);
    return status;
}

kvt_status tiers_worker_queue_runs(tiers_worker *worker, tiers_transfer *transfer, uint32_t member,
                                   uint64_t deadline_ns)
{
    assert(transfer->runs != NULL && transfer->kind == KVT_IO_READ);
    pthread_mutex_lock(&worker->mutex);
    kvt_status status = worker_await_job(worker, deadline_ns);
    if (status == KVT_OK) worker_post_job(worker, transfer, member, transfer->bytes);
    pthread_mutex_unlock(&worker->mutex);
    return status;
}

void tiers_worker_call(tiers_worker *worker)
{
    pthread_mutex_lock(&worker->mutex);
    if (worker_has_mail(worker)) worker_nudge(worker);
    pthread_mutex_unlock(&worker->mutex);
}

void tiers_worker_sweep(tiers_worker *worker)
{
    pthread_mutex_lock(&worker->mutex);
    worker->sweep = true;
    worker_nudge(worker);
    pthread_mutex_unlock(&worker->mutex);
}

bool tiers_worker_check(tiers_worker *worker)
{
    pthread_mutex_lock(&worker->mutex);
    (void)worker_check(worker, base_clock_ns());
    pthread_mutex_unlock(&worker->mutex);
    return tiers_worker_retired(worker);
}

/* Tickets ascend; a sync that begins later serves all smaller ones. */
void tiers_worker_sync_begin(tiers_worker *worker, tiers_worker_sync *sync)
{
    pthread_mutex_lock(&worker->mutex);
    sync->ticket = ++worker->sync_wanted;
    worker_nudge(worker);
    pthread_mutex_unlock(&worker->mutex);
}

/* The ticket is the caller's own, so several waiters do not disturb each other. */
kvt_status tiers_worker_sync_wait(tiers_worker *worker, const tiers_worker_sync *sync)
{
    kvt_status status = KVT_OK;
    pthread_mutex_lock(&worker->mutex);
    assert(sync->ticket > 0 && sync->ticket <= worker->sync_wanted && "begin gave the ticket");
    while (worker->sync_done < sync->ticket && status == KVT_OK) {
        uint64_t now_ns = base_clock_ns();
        if (worker_check(worker, now_ns))
            status = KVT_E_GONE;
        else
            base_condition_wait_until(&worker->synced, &worker->mutex, now_ns + TIERS_CHECK_NS);
    }
    /* A later sync that failed counts as well: what it lost may be what this one is for. */
    if (status == KVT_OK && worker->sync_failed >= sync->ticket) status = worker->sync_status;
    pthread_mutex_unlock(&worker->mutex);
    return status;
}

bool tiers_worker_idle(tiers_worker *worker)
{
    pthread_mutex_lock(&worker->mutex);
    bool idle = atomic_load(&worker->jobs_queued) == 0 && worker_in_flight(worker) == 0 &&
                worker->sync_wanted == worker->sync_done;
    pthread_mutex_unlock(&worker->mutex);
    return idle;
}

void tiers_worker_ask_spare(tiers_worker *worker)
{
    pthread_mutex_lock(&worker->mutex);
    worker->spare_asked = true;
    worker_nudge(worker);
    pthread_mutex_unlock(&worker->mutex);
}

void tiers_worker_retire(tiers_worker *worker, tiers_retired why)
{
    worker_retire(worker, why);
}

/* The thread's life is in worker_internal.h. Start, change and join are serialised by the pool. */
/* ---- life ---- */

void tiers_worker_free(tiers_worker *worker)
{
    if (worker == NULL) return;
    assert(atomic_load(&worker->life) != WORKER_RUNS && "its thread has ended");
    pthread_cond_destroy(&worker->changed);
    pthread_cond_destroy(&worker->synced);
    pthread_cond_destroy(&worker->room);
    pthread_cond_destroy(&worker->work);
    pthread_mutex_destroy(&worker->mutex);
    free(worker->probe);
    free(worker->done);
    free(worker->slots);
    free(worker->jobs);
    free(worker);
}

/* Joins the thread that died and detaches its device; with_device starts another thread, which
 * attaches the new device when it finds the change in its mail. Nothing is in flight. JOINED with a
 * device to come becomes RUNS again. */
static kvt_status worker_revive(tiers_worker *worker, bool with_device)
{
    if (atomic_load(&worker->life) == WORKER_DIED) pthread_join(worker->thread, NULL);
    atomic_store(&worker->life, WORKER_JOINED);
    if (worker->device != NULL) kvt_device_detach(worker->device);
    worker->device = NULL;
    if (!with_device) return KVT_OK;
    atomic_store(&worker->life, WORKER_RUNS);
    const kvt_status status = base_thread_start(&worker->thread, worker_main, worker);
    if (status != KVT_OK) atomic_store(&worker->life, WORKER_JOINED);
    return status;
}

/* The change lies on this stack, so the function returns only when the thread has carried it out or
 * has not seen it. */
kvt_status tiers_worker_change_device(tiers_worker *worker, kvt_device *device,
                                      const tiers_worker_options *options)
{
    if (worker_has_died(worker)) {
        kvt_status revived = worker_revive(worker, device != NULL);
        if (revived != KVT_OK || device == NULL) return revived;
    }
    worker_change change = {.device = device, .options = options};
    kvt_status status = KVT_OK;
    pthread_mutex_lock(&worker->mutex);
    assert(worker->change == NULL && "one change at a time");
    assert(device == NULL || options != NULL);
    worker->change = &change;
    worker_nudge(worker);
    while (!change.done && status == KVT_OK) {
        uint64_t now_ns = base_clock_ns();
        bool unresponsive = worker_check(worker, now_ns);
        if (unresponsive && (worker->change == &change || worker_has_died(worker))) {
            worker->change = NULL; /* the thread has not seen it, or will not end it */
            status = KVT_BUSY;
        } else {
            base_condition_wait_until(&worker->changed, &worker->mutex, now_ns + TIERS_CHECK_NS);
        }
    }
    pthread_mutex_unlock(&worker->mutex);
    return status;
}

/* The stocks of jobs and slots are made here, so that no transfer needs memory later. The first
 * device comes by the same change as every later one. */
kvt_status tiers_worker_start(kvt_device *device, const tiers_worker_options *options,
                              tiers_job_finished *finished, tiers_worker_ended *ended,
                              void *context, tiers_worker **worker_out)
{
    kvt_status status = KVT_E_MEMORY;
    tiers_worker *worker = calloc(1, sizeof *worker);
    if (worker == NULL) return status;
    assert(device != NULL && options->read_bytes_per_s > 0 && finished != NULL);
    worker->finished = finished;
    worker->abandoned_end = ended;
    worker->context = context;
    pthread_mutex_init(&worker->mutex, NULL);
    base_condition_init(&worker->work);
    base_condition_init(&worker->room);
    base_condition_init(&worker->synced);
    base_condition_init(&worker->changed);
    worker->jobs = calloc(TIERS_WORKER_JOBS, sizeof *worker->jobs);
    worker->slots = calloc(WORKER_DEPTH_MAX, sizeof *worker->slots);
    worker->done = calloc(WORKER_DEPTH_MAX, sizeof(kvt_io *));
    worker->probe = aligned_alloc(TIERS_GRAIN_BYTES, TIERS_GRAIN_BYTES);
    if (worker->jobs == NULL || worker->slots == NULL || worker->done == NULL ||
        worker->probe == NULL)
        goto fail;
    for (uint32_t i = TIERS_WORKER_JOBS; i-- > 0;) {
        worker->jobs[i].next = worker->free_jobs;
        worker->free_jobs = &worker->jobs[i];
    }
    status = base_thread_start(&worker->thread, worker_main, worker);
    if (status != KVT_OK) goto fail;
    (void)!tiers_worker_change_device(worker, device,
                                      options); /* there is no old one to wait for */
    *worker_out = worker;
    return KVT_OK;
fail:
    worker->life = WORKER_JOINED; /* there is no thread */
    tiers_worker_free(worker);
    return status;
}

void tiers_worker_end(tiers_worker *worker)
{
    pthread_mutex_lock(&worker->mutex);
    worker->stop = true;
    worker_nudge(worker);
    pthread_mutex_unlock(&worker->mutex);
}

bool tiers_worker_join(tiers_worker *worker)
{
    pthread_mutex_lock(&worker->mutex);
    while (atomic_load(&worker->life) == WORKER_RUNS) {
        uint64_t now_ns = base_clock_ns();
        if (worker_check(worker, now_ns))
            atomic_store(&worker->life, WORKER_ABANDONED);
        else
            base_condition_wait_until(&worker->changed, &worker->mutex, now_ns + TIERS_CHECK_NS);
    }
    int life = atomic_load(&worker->life);
    pthread_t thread = worker->thread;
    pthread_mutex_unlock(&worker->mutex); /* an abandoned worker may be freed from here on */
    if (life == WORKER_ABANDONED) {
        pthread_detach(thread);
        return false;
    }
    if (life != WORKER_JOINED) pthread_join(thread, NULL);
    /* A device with operations in flight when its thread died is kept for ever, with its buffers.
     */
    return life == WORKER_ENDED || worker->device == NULL || worker->device->in_flight == 0;
}
