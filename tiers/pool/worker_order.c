/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worker_order.c - which rank a worker serves next, in the orders of docs/TIERS.md (Passes and
 * slack). The file collects the numbers and asks the gate (slack.h); it submits nothing.
 *
 *     reads_first    the first rank that has work, and one piece in sixteen for each other one
 *     fifo           the job that came first
 *     round_robin    a read and a write in turn
 *     table, slack   reads, then the writes that the gate lets begin; what is held is asked for
 *                    again after 250 us, a completion or mail. Slack is reads_first while no pass
 *                    counts (needs.h)
 *
 * Thread rule: the worker's thread.
 */
#include <assert.h>

#include "base/clock.h"
#include "slack_log.h"
#include "worker_internal.h"

/* The first rank of a range that has jobs, unless another one has waited through enough pieces.
 * TIERS_RANKS: none has. */
static uint32_t order_first(const tiers_worker *worker, uint32_t from, uint32_t end)
{
    uint32_t first = TIERS_RANKS;
    for (uint32_t rank = from; rank < end; rank++) {
        if (worker->active[rank].head == NULL) continue;
        if (worker->passed[rank] >= WORKER_PASSED_MAX) return rank;
        if (first == TIERS_RANKS) first = rank;
    }
    return first;
}

/* The rank of the job that came first. */
static uint32_t order_oldest(const tiers_worker *worker)
{
    uint32_t oldest = TIERS_RANKS;
    for (uint32_t rank = 0; rank < TIERS_RANKS; rank++) {
        const worker_job *job = worker->active[rank].head;
        if (job == NULL) continue;
        if (oldest == TIERS_RANKS || job->number < worker->active[oldest].head->number)
            oldest = rank;
    }
    return oldest;
}

/* Takes the other direction than the last piece's, as far as it has jobs. */
static uint32_t order_in_turn(const tiers_worker *worker)
{
    const uint32_t read = order_first(worker, TIERS_RANK_WAITED, TIERS_RANK_WRITE);
    const uint32_t write = order_first(worker, TIERS_RANK_WRITE, TIERS_RANKS);
    if (read == TIERS_RANKS) return write;
    return write == TIERS_RANKS || worker->wrote ? read : write;
}

/* ---- the gate ---- */

/* The numbers of a decision. needs has room for SLACK_NEEDS_MAX. */
static slack_state order_state(const tiers_worker *worker, slack_need *needs)
{
    const tiers_worker_options *options = &worker->options;
    const uint64_t now_ns = base_clock_ns();
    const uint64_t waited = atomic_load(&worker->pending_bytes[TIERS_RANK_WAITED]);
    const uint64_t others = atomic_load(&worker->pending_bytes[TIERS_RANK_READ]);
    slack_state state = {.now_ns = now_ns,
                         .short_of_staging = options->hurry != NULL && atomic_load(options->hurry),
                         .reads_queued = waited != 0 || others != 0,
                         .read_bytes_per_s = worker->meter.bytes_per_s[KVT_IO_READ],
                         .write_bytes_per_s = worker_write_rate(worker),
                         .needs = needs};
    for (uint32_t rank = 0; rank < TIERS_RANKS; rank++) {
        const uint64_t bytes = atomic_load(&worker->flying_bytes[rank]);
        const worker_job *job = worker->active[rank].head;
        if (rank < TIERS_RANK_WRITE) {
            state.reading_bytes += bytes;
            continue;
        }
        state.writing_bytes += bytes;
        if (job != NULL && now_ns > job->queued_ns && now_ns - job->queued_ns > state.waited_ns)
            state.waited_ns = now_ns - job->queued_ns;
    }
    state.need_count = needs_list(options->needs, options->member, now_ns, waited, needs);
    return state;
}

/* Asks whether a piece of a rank begins, and counts the decision: each piece that begins, and each
 * time that pieces begin to wait or wait for something else. */
static bool order_asks(tiers_worker *worker, const slack_state *state, uint32_t rank)
{
    const tiers_worker_options *options = &worker->options;
    const bool write = rank >= TIERS_RANK_WRITE;
    assert(worker->active[rank].head != NULL);
    if (write) worker->write_bytes = worker_write_bytes(worker); /* the batch may have changed */
    const slack_question question = {.member = options->member,
                                     .rank = (tiers_rank)rank,
                                     .bytes = write ? worker->write_bytes : worker->request_bytes,
                                     .settings = options->gate,
                                     .account = worker->account,
                                     .state = *state};
    const slack_reason reason = tiers_slack_ask(&question, &worker->account);
    const bool begins = slack_begins(reason);
    if (begins || reason != worker->held_for) {
        FILE *log = options->log != NULL ? atomic_load(options->log) : NULL;
        atomic_fetch_add_explicit(&worker->decisions[reason], 1, memory_order_relaxed);
        if (log != NULL) tiers_slack_log_add(log, &question, reason);
    }
    worker->held_for = begins ? SLACK_ORDERED : reason;
    return begins;
}

/* The orders table and slack. A write that has waited for too long is asked for first, because
 * reads that never end would take every slot. */
static uint32_t order_by_gate(tiers_worker *worker)
{
    slack_need needs[SLACK_NEEDS_MAX];
    const uint32_t read = order_first(worker, TIERS_RANK_WAITED, TIERS_RANK_WRITE);
    const uint32_t write = order_first(worker, TIERS_RANK_WRITE, TIERS_RANKS);
    if (read == TIERS_RANKS && write == TIERS_RANKS) return TIERS_RANKS;
    const slack_state state = order_state(worker, needs);
    const bool late = write != TIERS_RANKS &&
                      tiers_slack_share_is_due(&worker->options.gate, &worker->account, &state);
    if (late && order_asks(worker, &state, write)) return write;
    if (read != TIERS_RANKS) {
        if (order_asks(worker, &state, read)) return read;
        const bool other = read != TIERS_RANK_WAITED;
        if (other && worker->active[TIERS_RANK_WAITED].head != NULL &&
            order_asks(worker, &state, TIERS_RANK_WAITED))
            return TIERS_RANK_WAITED;
    }
    if (write != TIERS_RANKS && !late && order_asks(worker, &state, write)) return write;
    worker->held = true;
    return TIERS_RANKS;
}

/* Looks whether passes count; writes are cut while they do. */
static bool order_is_gated(tiers_worker *worker)
{
    const tiers_needs *needs = worker->options.needs;
    const bool gated = atomic_load(&needs->seen_ns) != 0 && needs_are_seen(needs, base_clock_ns());
    if (gated == worker->gated) return gated;
    worker->gated = gated;
    worker->write_bytes = worker_write_bytes(worker);
    return gated;
}

uint32_t worker_choose_rank(tiers_worker *worker)
{
    const tiers_worker_options *options = &worker->options;
    if (options->needs == NULL || worker->ending || tiers_worker_retired(worker))
        return order_first(worker, 0, TIERS_RANKS);
    switch (options->gate.order) {
    case TIERS_FIFO: return order_oldest(worker);
    case TIERS_ROUND_ROBIN: return order_in_turn(worker);
    case TIERS_SLACK:
        if (!order_is_gated(worker)) return order_first(worker, 0, TIERS_RANKS);
        return order_by_gate(worker);
    case TIERS_TABLE: return order_by_gate(worker);
    default: return order_first(worker, 0, TIERS_RANKS);
    }
}
