/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worker.c - the thread of one member: it takes jobs from the mailbox, cuts them into pieces,
 * submits the pieces to the device and books their completions. The calls of other threads are in
 * worker_calls.c. The file places no bytes and knows no record: a job names ranges of the device.
 *
 *     job     free -> mail -> active -> issues no more pieces -> last piece ended -> reported, free
 *             free -> mail    by the caller, under `mutex`; all later steps by the thread
 *     slot    free -> (stalled) -> submitted, metered -> completed, free    by the thread alone
 *
 * A job leaves `active` when its range is walked, when a piece failed, when its transfer was
 * cancelled, or when the member is retired; pieces that the device has always end first. `stalled`
 * holds the one piece that the device refused as busy, or that would pass the bytes in flight.
 *
 * The loop: take mail, submit up to one depth of pieces, reap, which also pushes them. A round
 * submits at most one depth even when the device finishes at once, so a read that arrives meanwhile
 * overtakes a long write. With operations in flight and free slots, mail ends the wait in reap; on
 * a device that cannot be woken the wait is short instead. With nothing in flight the thread
 * sleeps on its condition.
 *
 * Invariants of the thread: free slots + slots with a job = depth; in_flight counts the slots that
 * the device has, and a blocking call; flying_bytes is the sum of their bytes; a job's in_flight is
 * the number of its slots.
 */
#include <assert.h>
#include <string.h>

#include "base/clock.h"
#include "base/wait.h"
#include "tiers/devices/device_internal.h"
#include "tiers/seal/seal_device.h"
#include "worker_internal.h"

enum {
    WORKER_FAILURES_MAX = 8, /* in a row, until the device is asked whether it is still there */
    WORKER_REQUEST_BYTES_MAX = 1 << 20, /* larger pieces gain nothing and hold up others */
    WORKER_WAIT_SHORT_NS = 100 * 1000,
    WORKER_ASK_AGAIN_NS = 250 * 1000,     /* between two questions for what may not begin */
    WORKER_WONDER_NS = 100 * 1000 * 1000, /* between two reads of a slow device that is idle */
    WORKER_WAIT_LONG_NS = 10 * 1000 * 1000,
    WORKER_BUSY_NAP_NS = 50 * 1000,
    WORKER_BUSY_NAPS_MAX = 20000 /* one second of busy with nothing in flight is a broken device */
};

/* ---- lists and figures ---- */

/* A job is in one list at most; the lists are the thread's but for the mailbox. */

/* Appends, so jobs of one rank are served in the order of their queueing. */
void worker_list_push(worker_list *list, worker_job *job)
{
    job->next = NULL;
    if (list->tail != NULL)
        list->tail->next = job;
    else
        list->head = job;
    list->tail = job;
}

/* Removes the first job. The list is not empty. The job keeps its `next`, which means nothing from
 * then on. */
static void worker_list_pop(worker_list *list)
{
    assert(list->head != NULL);
    list->head = list->head->next;
    if (list->head == NULL) list->tail = NULL;
}

/* Publishes a double for threads that read it while this one goes on measuring: the bits are stored
 * at once, so that no reader sees half of a value. */
static void worker_store_double(worker_double *target, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    atomic_store(target, bits);
}

/* Publishes the averages of the meter. The weight is published only where it follows them, so that
 * placement keeps the weight of the open elsewhere. A reader may see the new read and the old write
 * figure together, which does no harm. */
static void worker_publish_speed(tiers_worker *worker)
{
    const tiers_meter *meter = &worker->meter;
    worker_store_double(&worker->read_bytes_per_s, meter->bytes_per_s[KVT_IO_READ]);
    worker_store_double(&worker->write_bytes_per_s, meter->bytes_per_s[KVT_IO_WRITE]);
    if (worker->options.reweigh)
        worker_store_double(&worker->weight_bytes_per_s, meter->weight_bytes_per_s);
}

/* Takes an operation that has ended into the meter. */
static void worker_measure(tiers_worker *worker, const kvt_io *io)
{
    if (tiers_meter_end(&worker->meter, io)) {
        worker_publish_speed(worker);
        worker->write_bytes = worker_write_bytes(worker);
    }
    atomic_store_explicit(&worker->moved_ns, io->finished_ns, memory_order_relaxed);
    if (atomic_load(&worker->stalled_bytes_per_s) != 0) /* the clock is ours, and weights follow */
        atomic_store(&worker->is_late, tiers_meter_is_late(&worker->meter));
}

/* Two clocks watch a device: progress of any kind (watchdog.h), and the age of single operations,
 * which finds one that was lost among others that end. */
/* ---- looking after the device ---- */

void worker_retire(tiers_worker *worker, tiers_retired why)
{
    int serves = TIERS_SERVES;
    if (atomic_compare_exchange_strong(&worker->why, &serves, (int)why))
        atomic_store(&worker->retired_ns, base_clock_ns());
}

bool worker_check(tiers_worker *worker, uint64_t now_ns)
{
    if (worker_has_died(worker)) return true;
    bool unresponsive = tiers_timeout_check(&worker->timeout, now_ns, worker_in_flight(worker) > 0,
                                            atomic_load(&worker->progress));
    if (unresponsive) worker_retire(worker, TIERS_RETIRED_UNRESPONSIVE);
    return unresponsive;
}

/* Counts a call that may block for as long as the device likes. The thread alone changes in_flight
 * and progress, so relaxed order suffices. A submission is such a call too, until the device has
 * taken the operation. */
static void worker_begin_call(tiers_worker *worker)
{
    uint32_t in_flight = worker_in_flight(worker);
    assert(in_flight <= worker->depth);
    atomic_store_explicit(&worker->in_flight, in_flight + 1, memory_order_relaxed);
}

/* Uncounts `ended` operations or calls. A submission that the device refused as busy is no
 * progress: the timeout must go on. */
static void worker_end_calls(tiers_worker *worker, uint32_t ended, bool progress)
{
    uint32_t in_flight = worker_in_flight(worker);
    assert(ended <= in_flight);
    if (progress) atomic_fetch_add_explicit(&worker->progress, ended, memory_order_relaxed);
    atomic_store_explicit(&worker->in_flight, in_flight - ended, memory_order_relaxed);
}

/* All below runs on the worker's thread, which alone talks to the device. */
/* ---- the thread: from jobs to completions ---- */

/* Reports a job whose last piece has ended and returns it to the stock. The report comes without
 * the mutex, because its receiver takes locks of its own; the transfer may be gone after it, so
 * nothing reads it any more. */
static void worker_finish_job(tiers_worker *worker, worker_job *job)
{
    assert(!job->issuing && job->in_flight == 0);
    assert(atomic_load(&worker->pending_bytes[job->rank]) >= job->estimate);
    assert(atomic_load(&worker->jobs_queued) > 0);
    /* End the runs of a job that issues no more: those that never reached the device, or not as a
     * whole, get the job's reason. Nothing of them is in flight. */
    tiers_runs *runs = job->runs;
    for (uint32_t i = 0; runs != NULL && i < runs->count; i++) {
        tiers_run *run = &runs->runs[i];
        assert(run->in_flight == 0 && "the job has none");
        if (atomic_load_explicit(&run->status, memory_order_relaxed) != KVT_QUEUED) continue;
        kvt_status status = run->error != KVT_OK ? run->error : job->result.status;
        assert(status != KVT_OK && "a run that was issued whole has ended");
        atomic_store_explicit(&run->status, status, memory_order_release);
    }
    atomic_fetch_sub(&worker->pending_bytes[job->rank], job->estimate);
    atomic_fetch_sub(&worker->jobs_queued, 1);
    worker->finished(worker->context, job->transfer, &job->result);
    pthread_mutex_lock(&worker->mutex);
    worker_sample_pressure(worker, job->rank);
    job->transfer = NULL;
    job->next = worker->free_jobs;
    worker->free_jobs = job;
    pthread_cond_signal(&worker->room);
    pthread_mutex_unlock(&worker->mutex);
}

/* The reason why a job issues no more pieces; KVT_OK while it may. Its own failure comes before the
 * member's retirement, and that before a cancellation. The order matters, because the first reason
 * becomes the transfer's status. Runs fail apart, so the failure of one stops no other. */
static kvt_status worker_job_verdict(const tiers_worker *worker, const worker_job *job)
{
    if (job->result.status != KVT_OK && job->runs == NULL) return job->result.status;
    if (tiers_worker_retired(worker)) return KVT_E_GONE;
    return atomic_load(&job->transfer->cancelled) ? KVT_E_CANCELLED : KVT_OK;
}

/* The next request of a job's runs, of at most bytes_max; false at their end. */
static bool worker_next_of_runs(tiers_runs *runs, uint32_t bytes_max, kvt_io *io,
                                tiers_run **run_out)
{
    if (runs->next == runs->count) return false;
    tiers_run *run = &runs->runs[runs->next];
    uint64_t rest = run->bytes - run->issued;
    uint32_t bytes = rest < bytes_max ? (uint32_t)rest : bytes_max;
    *io = (kvt_io){.kind = KVT_IO_READ,
                   .bytes = bytes,
                   .offset = run->device_offset + run->issued,
                   .buffer = (char *)run->buffer + run->issued};
    run->issued += bytes;
    run->in_flight++;
    if (run->issued == run->bytes) runs->next++;
    *run_out = run;
    return true;
}

/* Bytes of one request of a transfer at most. */
static uint32_t worker_most(const tiers_worker *worker, const tiers_transfer *transfer)
{
    const tiers_arrival *arrival = transfer->arrival;
    const uint32_t most =
        transfer->kind == KVT_IO_WRITE ? worker->write_bytes : worker->request_bytes;
    if (arrival == NULL || arrival->piece_bytes >= most) return most;
    return (uint32_t)arrival->piece_bytes;
}

/* Takes a job whose last request was taken off the active ones, so that nobody asks whether one
 * more of it may begin. */
static void worker_leave_list(tiers_worker *worker, worker_list *list)
{
    worker_job *job = list->head;
    const bool more = job->runs != NULL
                          ? job->runs->next != job->runs->count
                          : tiers_walk_has(&job->walk, worker_most(worker, job->transfer));
    if (more) return;
    worker_list_pop(list);
    job->issuing = false;
    assert(job->in_flight > 0 && "its last piece ends it");
}

/* The next request of a job; false when it has no more. run_out: the run that it is a part of, or
 * NULL. */
static bool worker_next_request(tiers_worker *worker, worker_job *job, kvt_io *io,
                                tiers_run **run_out)
{
    const tiers_transfer *transfer = job->transfer;
    tiers_piece piece;
    *run_out = NULL;
    if (job->runs != NULL)
        return worker_next_of_runs(job->runs, worker->request_bytes, io, run_out);
    const uint32_t most = worker_most(worker, transfer);
    if (!tiers_walk_next(&job->walk, most, &piece)) return false;
    *io = (kvt_io){.kind = transfer->kind,
                   .bytes = piece.bytes,
                   .offset = piece.device_offset,
                   .buffer = (char *)transfer->buffer + piece.object_offset - transfer->offset};
    return true;
}

/* The next operation to submit, or NULL. Takes jobs out of the lists when they have no more pieces,
 * have failed, or the member is retired. A job whose range is walked, or that has failed, is
 * finished here if none of its pieces is in flight. */
static worker_slot *worker_next_slot(tiers_worker *worker)
{
    worker_slot *slot = worker->stalled;
    worker->stalled = NULL;
    if (slot != NULL) return slot;
    if (worker->free_slots == NULL) return NULL;
    uint32_t rank;
    worker->held = false;
    while ((rank = worker_choose_rank(worker)) != TIERS_RANKS) {
        worker_list *list = &worker->active[rank];
        worker_job *job = list->head;
        kvt_io io;
        tiers_run *run;
        kvt_status verdict = worker_job_verdict(worker, job);
        if (job->result.status == KVT_OK) job->result.status = verdict;
        if (verdict != KVT_OK || !worker_next_request(worker, job, &io, &run)) {
            worker_list_pop(list);
            job->issuing = false;
            if (job->in_flight == 0) worker_finish_job(worker, job);
            continue;
        }
        slot = worker->free_slots;
        worker->free_slots = slot->next;
        assert(slot->job == NULL && "a free slot belongs to no job");
        assert(io.bytes > 0 && io.bytes <= worker->request_bytes);
        worker->wrote = io.kind == KVT_IO_WRITE;
        slot->job = job;
        slot->run = run;
        slot->io = io;
        slot->io.user = slot;
        job->in_flight++;
        for (uint32_t other = 0; other < TIERS_RANKS; other++) {
            bool waits = other != rank && worker->active[other].head != NULL;
            worker->passed[other] = waits ? worker->passed[other] + 1 : 0;
        }
        worker_leave_list(worker, list);
        return slot;
    }
    return NULL;
}

/* Books one piece that has ended, in whatever way: the meter, the account of pending bytes, the
 * result of its job. The last piece of a job that issues no more finishes the job. The device is
 * done with the buffer; the slot is free afterwards. */
static void worker_complete(tiers_worker *worker, worker_slot *slot)
{
    worker_job *job = slot->job;
    const kvt_io *io = &slot->io;
    tiers_job_result *result = &job->result;
    assert(job->in_flight > 0 && "a piece ends once");
    if (slot->metered)
        worker_measure(worker, io);
    else
        atomic_store_explicit(&worker->moved_ns, io->finished_ns, memory_order_relaxed);
    slot->metered = false;
    if (io->kind == KVT_IO_WRITE && io->status != KVT_E_CANCELLED)
        atomic_store(&worker->write_status, io->status);
    if (worker->device != NULL)
        atomic_store_explicit(&worker->seal_faults, tiers_seal_faults(worker->device),
                              memory_order_relaxed);
    if (io->status == KVT_OK) {
        worker->failures = 0;
        atomic_fetch_add(&worker->bytes[io->kind], io->bytes);
        atomic_fetch_add(&worker->requests, 1);
        if (result->bytes == 0 || io->submitted_ns < result->submitted_ns)
            result->submitted_ns = io->submitted_ns;
        if (io->finished_ns > result->finished_ns) result->finished_ns = io->finished_ns;
        result->bytes += io->bytes;
        uint64_t done = io->bytes < job->estimate ? io->bytes : job->estimate;
        job->estimate -= done;
        atomic_fetch_sub(&worker->pending_bytes[job->rank], done);
        tiers_transfer *transfer = job->transfer;
        if (transfer->arrival != NULL)
            worker->options.arrived(worker->context, transfer,
                                    (uint64_t)((char *)io->buffer - (char *)transfer->buffer),
                                    io->bytes);
    } else {
        if (io->status == KVT_E_GONE) worker_retire(worker, TIERS_RETIRED_GONE);
        if (io->status == KVT_E_IO) worker->failures++;
        if (result->status == KVT_OK) result->status = io->status;
    }
    tiers_run *run = slot->run;
    if (run != NULL) {
        assert(run->in_flight > 0);
        run->in_flight--;
        if (run->error == KVT_OK) run->error = io->status;
        if (run->in_flight == 0 && run->issued == run->bytes)
            atomic_store_explicit(&run->status, run->error, memory_order_release);
    }
    job->in_flight--;
    slot->job = NULL;
    slot->run = NULL;
    slot->next = worker->free_slots;
    worker->free_slots = slot;
    if (!job->issuing && job->in_flight == 0) worker_finish_job(worker, job);
}

/* Ends the jobs of a list that shall issue no more pieces. A job with pieces in flight leaves the
 * list and ends with the last of them. */
static void worker_sweep_list(tiers_worker *worker, worker_list *list)
{
    worker_list kept = {NULL, NULL};
    while (list->head != NULL) {
        worker_job *job = list->head;
        worker_list_pop(list);
        kvt_status verdict = worker_job_verdict(worker, job);
        if (verdict == KVT_OK) {
            worker_list_push(&kept, job);
            continue;
        }
        if (job->result.status == KVT_OK) job->result.status = verdict;
        job->issuing = false;
        if (job->in_flight == 0) worker_finish_job(worker, job);
    }
    *list = kept;
}

/* Ends the jobs and the stalled piece that shall not reach the device any more. Without the sweep,
 * a device that is full with operations that do not end would hold up cancelled jobs behind them.
 * Pieces that the device has are left to it. */
static void worker_sweep(tiers_worker *worker, bool cancelled)
{
    if (!cancelled && !tiers_worker_retired(worker)) return;
    worker_slot *slot = worker->stalled;
    if (slot != NULL && worker_job_verdict(worker, slot->job) != KVT_OK) {
        worker->stalled = NULL;
        slot->io.status = tiers_worker_retired(worker) ? KVT_E_GONE : KVT_E_CANCELLED;
        worker_complete(worker, slot);
    }
    for (uint32_t rank = 0; rank < TIERS_RANKS; rank++)
        worker_sweep_list(worker, &worker->active[rank]);
}

/* Keeps the piece that a busy device refused, for the next round. A device that stays busy for
 * WORKER_BUSY_NAPS_MAX naps with nothing in flight fails the piece with KVT_E_GONE. */
static void worker_stall(tiers_worker *worker, worker_slot *slot)
{
    assert(worker->stalled == NULL && "one piece at a time waits for a busy device");
    if (worker_in_flight(worker) == 0) {
        if (++worker->busy_naps > WORKER_BUSY_NAPS_MAX) {
            worker->busy_naps = 0;
            slot->io.status = KVT_E_GONE;
            worker_complete(worker, slot);
            return;
        }
        base_sleep(WORKER_BUSY_NAP_NS);
    }
    worker->stalled = slot;
}

/* Reads the first grain of a device after WORKER_FAILURES_MAX failures in a row, once nothing is in
 * flight. A failed probe retires the member. A range with bad sectors leaves the first grain
 * readable, so bad sectors alone do not retire a member. */
static void worker_probe(tiers_worker *worker)
{
    if (worker->failures < WORKER_FAILURES_MAX || worker_in_flight(worker) > 0) return;
    worker->failures = 0;
    if (tiers_worker_retired(worker)) return;
    worker_begin_call(worker);
    kvt_status status =
        kvt_device_transfer(worker->device, KVT_IO_READ, 0, worker->probe, TIERS_GRAIN_BYTES);
    worker_end_calls(worker, 1, true);
    if (status != KVT_OK) worker_retire(worker, TIERS_RETIRED_GONE);
}

/* Whether a piece may still be issued without new mail. The stalled piece counts, although its job
 * may be in no list. */
static bool worker_has_active(const tiers_worker *worker)
{
    for (uint32_t rank = 0; rank < TIERS_RANKS; rank++)
        if (worker->active[rank].head != NULL) return true;
    return worker->stalled != NULL;
}

/* Whether a device is to be asked, when it is idle, if its answers are still late. */
static bool worker_wonders(const tiers_worker *worker)
{
    return atomic_load(&worker->is_late) && !tiers_worker_retired(worker);
}

/* The answer to worker_wonder. */
static void worker_answered(tiers_worker *worker)
{
    worker_measure(worker, &worker->asked);
    if (worker->asked.status == KVT_E_GONE) worker_retire(worker, TIERS_RETIRED_GONE);
}

/* Reads the first grain of a device that is slow and idle, now and then: it is found to be well
 * although no object is given to it. */
static void worker_wonder(tiers_worker *worker)
{
    kvt_io *io = &worker->asked;
    if (!worker_wonders(worker) || worker_in_flight(worker) > 0 || worker_has_active(worker))
        return;
    const uint64_t now_ns = base_clock_ns();
    if (now_ns - worker->asked_ns < WORKER_WONDER_NS) return;
    worker->asked_ns = now_ns;
    *io = (kvt_io){.kind = KVT_IO_READ, .bytes = TIERS_GRAIN_BYTES, .buffer = worker->probe};
    worker_begin_call(worker);
    const kvt_status status = kvt_device_submit(worker->device, io);
    if (status == KVT_QUEUED)
        atomic_fetch_add(&worker->flying_bytes[TIERS_RANK_READ], io->bytes);
    else
        worker_end_calls(worker, 1, status == KVT_OK);
    if (status == KVT_BUSY) return;
    if (status == KVT_QUEUED) atomic_store(&worker->moved_ns, io->submitted_ns);
    tiers_meter_begin(&worker->meter, io);
    if (status == KVT_OK) worker_answered(worker);
}

/* Submits pieces until the device has its depth, its bytes in flight, or no piece is left. One
 * piece is submitted whatever its bytes, so that a small in_flight_bytes_max stops no device. A
 * piece that was taken from its job before the member retired ends with KVT_E_GONE. */
static void worker_submit(tiers_worker *worker)
{
    worker_probe(worker);
    for (uint32_t round = 0; round < worker->depth; round++) {
        if (worker->failures >= WORKER_FAILURES_MAX) break;
        worker_slot *slot = worker_next_slot(worker);
        if (slot == NULL) break;
        assert(slot->job != NULL && !slot->metered && "it was not submitted yet");
        if (tiers_worker_retired(worker)) { /* it was stalled when that happened */
            slot->io.status = KVT_E_GONE;
            worker_complete(worker, slot);
            continue;
        }
        if (worker_in_flight(worker) > 0 &&
            worker_flying(worker) + slot->io.bytes > worker->options.in_flight_bytes_max) {
            worker->stalled = slot;
            break;
        }
        slot->begun_progress = atomic_load_explicit(&worker->progress, memory_order_relaxed);
        worker_begin_call(worker);
        kvt_status status = kvt_device_submit(worker->device, &slot->io);
        if (status != KVT_BUSY && worker_in_flight(worker) <= 1) /* before bytes count as flying */
            atomic_store(&worker->moved_ns, slot->io.submitted_ns);
        if (status == KVT_QUEUED) /* the call goes on as an operation in flight */
            atomic_fetch_add(&worker->flying_bytes[slot->job->rank], slot->io.bytes);
        else
            worker_end_calls(worker, 1, status == KVT_OK);
        if (status == KVT_BUSY) {
            worker_stall(worker, slot);
            break;
        }
        worker->busy_naps = 0;
        slot->metered = true;
        tiers_meter_begin(&worker->meter, &slot->io);
        if (status == KVT_OK) worker_complete(worker, slot);
    }
    if (worker->device == NULL) return;
    atomic_store(&worker->depth_achieved, worker->device->facts.depth_achieved);
}

/* Takes completions from the device, waiting for the first one up to timeout_ns, or for half of
 * what it has where those are writes alone: nobody goes on by one write of many. A timeout of 0
 * only looks. The counts fall before the pieces are booked, so that a job's report sees them
 * right. */
static void worker_reap(tiers_worker *worker, uint64_t timeout_ns)
{
    if (worker_in_flight(worker) == 0) return;
    size_t min = timeout_ns == 0 ? 0 : 1;
    const bool reads = atomic_load(&worker->flying_bytes[TIERS_RANK_WAITED]) != 0 ||
                       atomic_load(&worker->flying_bytes[TIERS_RANK_READ]) != 0;
    if (min != 0 && !reads) min = (worker_in_flight(worker) + 1) / 2;
    size_t count = kvt_device_reap(worker->device, worker->done, min, worker->depth, timeout_ns);
    if (count > 0) worker_end_calls(worker, (uint32_t)count, true);
    for (size_t i = 0; i < count; i++) {
        const kvt_io *io = worker->done[i];
        if (io == &worker->asked) {
            atomic_fetch_sub(&worker->flying_bytes[TIERS_RANK_READ], io->bytes);
            worker_answered(worker);
            continue;
        }
        worker_slot *slot = io->user;
        tiers_rank rank = slot->job->rank;
        assert(atomic_load(&worker->flying_bytes[rank]) >= io->bytes);
        atomic_fetch_sub(&worker->flying_bytes[rank], io->bytes);
        worker_complete(worker, slot);
    }
    assert((worker_in_flight(worker) == 0) == (worker_flying(worker) == 0));
}

/* Serves all syncs up to a ticket by one sync of the device, after everything that is in flight has
 * ended. On a retired member they fail at once, or end without one where its owner retired it. One
 * sync serves every ticket asked for before it began. */
static void worker_serve_syncs(tiers_worker *worker, uint64_t ticket)
{
    while (worker_in_flight(worker) > 0 && !tiers_worker_retired(worker)) {
        worker_reap(worker, WORKER_WAIT_LONG_NS);
        worker_check_operations(worker);
        worker_sweep(worker, false);
    }
    kvt_status status = atomic_load(&worker->why) == TIERS_RETIRED_ASKED ? KVT_OK : KVT_E_GONE;
    if (!tiers_worker_retired(worker)) {
        worker_begin_call(worker);
        status = kvt_device_sync(worker->device);
        atomic_store(&worker->key_fault, tiers_seal_key_fault(worker->device));
        worker_end_calls(worker, 1, true);
    }
    if (status == KVT_E_GONE) worker_retire(worker, TIERS_RETIRED_GONE);
    pthread_mutex_lock(&worker->mutex);
    assert(ticket > worker->sync_done && ticket <= worker->sync_wanted);
    worker->sync_done = ticket;
    if (status != KVT_OK) {
        worker->sync_failed = ticket;
        worker->sync_status = status;
    }
    pthread_cond_broadcast(&worker->synced);
    pthread_mutex_unlock(&worker->mutex);
}

/* Sets all figures that follow from the device and its options. Nothing is in flight. The slots are
 * all free, so they are chained anew for the new depth. */
static void worker_set_up(tiers_worker *worker, const worker_change *change)
{
    const kvt_device_facts *facts = &change->device->facts;
    const tiers_worker_options *options = change->options;
    assert(worker_in_flight(worker) == 0 && worker->stalled == NULL);
    worker->depth = facts->depth_max;
    if (worker->depth > WORKER_DEPTH_MAX) worker->depth = WORKER_DEPTH_MAX;
    if (worker->depth == 0) worker->depth = 1;
    worker->request_bytes = facts->request_bytes_max & ~(TIERS_GRAIN_BYTES - 1);
    if (worker->request_bytes > WORKER_REQUEST_BYTES_MAX)
        worker->request_bytes = WORKER_REQUEST_BYTES_MAX;
    assert(worker->request_bytes >= TIERS_GRAIN_BYTES &&
           "the pool refuses a device that takes less");
    worker->options = *options;
    if (options->in_flight_bytes_max == 0)
        worker->options.in_flight_bytes_max = TIERS_IN_FLIGHT_BYTES_DEFAULT;
    worker->failures = worker->busy_naps = 0;
    atomic_store(&worker->is_late, false);
    atomic_store(&worker->write_status, KVT_OK);
    atomic_store(&worker->key_fault, NULL);
    tiers_meter_init(&worker->meter, options->read_bytes_per_s, options->write_bytes_per_s,
                     options->request_seconds);
    worker_store_double(&worker->weight_bytes_per_s, options->read_bytes_per_s);
    const bool stalls = options->reweigh && (facts->flags & KVT_DEVICE_VIRTUAL_TIME) == 0;
    worker_store_double(&worker->stalled_bytes_per_s,
                        stalls ? options->read_bytes_per_s / TIERS_METER_FLOOR : 0);
    worker_publish_speed(worker);
    worker->account = (slack_account){0};
    worker->write_bytes = worker_write_bytes(worker);
    const uint64_t timeout_ns = tiers_timeout_of(worker->device, options->timeout_ns);
    pthread_mutex_lock(&worker->mutex);
    tiers_timeout_init(&worker->timeout, timeout_ns, base_clock_ns());
    pthread_mutex_unlock(&worker->mutex);
    worker->free_slots = NULL;
    for (uint32_t i = worker->depth; i-- > 0;) {
        worker->slots[i].next = worker->free_slots;
        worker->free_slots = &worker->slots[i];
    }
}

/* Moves the jobs of the mailbox behind the active ones, in their ranks: it costs the same however
 * many there are. The mutex is held. */
static void worker_take_jobs(tiers_worker *worker)
{
    for (uint32_t rank = 0; rank < TIERS_RANKS; rank++) {
        worker_list *list = &worker->active[rank], *more = &worker->mail[rank];
        if (more->head == NULL) continue;
        if (list->tail != NULL)
            list->tail->next = more->head;
        else
            list->head = more->head;
        list->tail = more->tail;
        *more = (worker_list){NULL, NULL};
    }
}

/* Takes the mail, sleeping when there is nothing else to do. False when the thread is to end. The
 * lists of the mailbox are appended in one step, so the lock is held briefly however many jobs
 * there are. */
static bool worker_collect_mail(tiers_worker *worker, worker_mail *mail_out)
{
    const bool active = worker_has_active(worker);
    bool idle = worker_in_flight(worker) == 0 && (!active || worker->held);
    pthread_mutex_lock(&worker->mutex);
    worker->reaping = false;
    const uint64_t ask_ns = worker->held             ? base_clock_ns() + WORKER_ASK_AGAIN_NS
                            : worker_wonders(worker) ? worker->asked_ns + WORKER_WONDER_NS
                                                     : UINT64_MAX;
    while (idle && !worker_has_mail(worker) && !worker->stop) {
        if (worker->spare_asked) {
            /* Call the spare function once. The mutex is held at entry and exit, and released
             * during the call. The call counts as in flight, so that the timeout watches it. */
            assert(worker_in_flight(worker) == 0 && "operations are never behind it");
            worker->spare_asked = false;
            pthread_mutex_unlock(&worker->mutex);
            worker_begin_call(worker);
            tiers_worker_spare *spare = worker->options.spare;
            bool more = spare != NULL && spare(worker->context, worker, worker->device);
            worker_end_calls(worker, 1, true);
            pthread_mutex_lock(&worker->mutex);
            if (more) worker->spare_asked = true;
        } else if (ask_ns != UINT64_MAX) {
            if (worker->sweep || base_clock_ns() >= ask_ns) break;
            base_condition_wait_until(&worker->work, &worker->mutex, ask_ns);
        } else {
            pthread_cond_wait(&worker->work, &worker->mutex);
        }
    }
    idle = idle && !active && !worker_has_mail(worker);
    worker->ending = worker->stop;
    worker_take_jobs(worker);
    bool sync = worker->sync_wanted != worker->sync_done;
    *mail_out = (worker_mail){
        .sync = sync ? worker->sync_wanted : 0, .change = worker->change, .sweep = worker->sweep};
    worker->sweep = false;
    worker->change = NULL;
    bool go_on = !(worker->stop && idle);
    pthread_mutex_unlock(&worker->mutex);
    return go_on;
}

/* Fails the pieces that were begun by a thread that died, when the device counts no operation in
 * flight: the device uses none of their buffers then. When the device still has operations, every
 * begun piece stays begun, because a device that answers late may still write into its buffer. */
static void worker_end_slots(tiers_worker *worker)
{
    if (worker->device->in_flight != 0) return;
    worker->stalled = NULL;
    worker_end_calls(worker, worker_in_flight(worker), true);
    for (uint32_t i = 0; i < worker->depth; i++) {
        worker_slot *slot = &worker->slots[i];
        if (slot->job == NULL) continue;
        slot->metered = false;
        slot->io.status = KVT_E_GONE;
        worker_complete(worker, slot);
    }
}

/* The cleanup handler of a thread that ends inside the device, by pthread_exit or a cancellation.
 * No thread will reap the operations in flight, so every waiter is woken with KVT_E_GONE. Runs on
 * the dying thread; no lock is held at entry. */
static void worker_die(void *argument)
{
    tiers_worker *worker = argument;
    worker_retire(worker, TIERS_RETIRED_THREAD);
    pthread_mutex_lock(&worker->mutex);
    worker_take_jobs(worker);
    pthread_mutex_unlock(&worker->mutex);
    if (worker->device != NULL) worker_end_slots(worker);
    worker_sweep(worker, true);
    pthread_mutex_lock(&worker->mutex);
    worker->reaping = false;
    worker->sync_done = worker->sync_failed = worker->sync_wanted;
    worker->sync_status = KVT_E_GONE;
    atomic_store(&worker->life, WORKER_DIED);
    pthread_cond_broadcast(&worker->synced);
    pthread_cond_broadcast(&worker->room);
    pthread_cond_broadcast(&worker->changed);
    pthread_mutex_unlock(&worker->mutex);
}

/* Serves until the worker is asked to stop and has no work left. The wait depends on what a
 * completion would allow: a full device or a retired member waits for completions alone, a thread
 * with pieces to submit does not wait, and a thread without them waits for a completion or mail. */
static void worker_serve(tiers_worker *worker)
{
    worker_mail mail;
    while (worker_collect_mail(worker, &mail)) {
        worker_sweep(worker, mail.sweep);
        if (mail.sync != 0) worker_serve_syncs(worker, mail.sync);
        if (mail.change != NULL) {
            /* Carry out a change of device: the old device's operations end, the old device is
             * detached, the new one is attached. Attaching may correct the facts of the device, so
             * worker_set_up reads them afterwards, and the caller after `done`. */
            worker_change *change = mail.change;
            while (worker_in_flight(worker) > 0)
                worker_reap(worker, WORKER_WAIT_LONG_NS);
            if (worker->stalled != NULL) {
                worker_slot *slot = worker->stalled;
                worker->stalled = NULL;
                slot->io.status = KVT_E_GONE;
                worker_complete(worker, slot);
            }
            assert(worker_flying(worker) == 0 && "the old device has none of the buffers");
            if (worker->device != NULL) kvt_device_detach(worker->device);
            worker->device = change->device;
            if (change->device != NULL) {
                kvt_device_attach(change->device);
                worker_set_up(worker, change);
            }
            atomic_store(&worker->why, change->device == NULL ? TIERS_RETIRED_ASKED : TIERS_SERVES);
            pthread_mutex_lock(&worker->mutex);
            change->done = true;
            pthread_cond_broadcast(&worker->changed);
            pthread_mutex_unlock(&worker->mutex);
        }
        worker_submit(worker);
        worker_wonder(worker);
        bool full = worker->free_slots == NULL || worker->stalled != NULL ||
                    worker->failures >= WORKER_FAILURES_MAX || tiers_worker_retired(worker);
        if (full) {
            worker_reap(worker, WORKER_WAIT_LONG_NS);
        } else if (worker_has_active(worker) && !worker->held) {
            worker_reap(worker, 0);
        } else if (worker_in_flight(worker) != 0) {
            /* Wait for a completion or for mail. `reaping` is set under the mutex, so mail that
             * comes after the look ends the wait. */
            uint64_t wait_ns = WORKER_WAIT_SHORT_NS;
            if (worker->device->wakes) {
                pthread_mutex_lock(&worker->mutex);
                worker->reaping = !worker_has_mail(worker) && !worker->sweep;
                wait_ns = !worker->reaping ? 0
                          : !worker->held  ? WORKER_WAIT_LONG_NS
                                           : WORKER_ASK_AGAIN_NS;
                pthread_mutex_unlock(&worker->mutex);
            }
            worker_reap(worker, wait_ns);
        }
        worker_check_operations(worker);
    }
}

/* The cleanup handler covers the loop alone: after it nothing calls into the device but detach. An
 * abandoned worker ends by the call that may free it. */
void *worker_main(void *argument)
{
    tiers_worker *worker = argument;
    pthread_cleanup_push(worker_die, worker);
    worker_serve(worker);
    pthread_cleanup_pop(0);
    assert(worker_in_flight(worker) == 0 && !worker_has_active(worker));
    if (worker->device != NULL) kvt_device_detach(worker->device);
    pthread_mutex_lock(&worker->mutex);
    bool abandoned = atomic_load(&worker->life) == WORKER_ABANDONED;
    if (!abandoned) atomic_store(&worker->life, WORKER_ENDED);
    pthread_cond_broadcast(&worker->changed);
    pthread_mutex_unlock(&worker->mutex);
    if (abandoned) worker->abandoned_end(worker->context);
    return NULL;
}
