/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_plans.c - plans behind a put's return and the background's, carried out in virtual time.
 *
 * A move occupies the read queue of its source, then the write queue of its target, and is
 * committed when it has been written: until then the policy counts room at both ends. The fixed
 * seconds of a request delay its waiters and do not occupy the I/O queue.
 *
 * Not modelled: failures, and what follows from them. One thread.
 */
#include "sim_host.h"

#include "store/core/options.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Occupies a queue with bytes. Returns when the last one has passed, and the request's own seconds
 * beside. */
static uint64_t plan_occupy(uint64_t *free_ns, uint64_t now_ns, const kvt_affine *queue,
                            uint64_t bytes)
{
    *free_ns =
        (*free_ns > now_ns ? *free_ns : now_ns) + sim_to_ns((double)bytes / queue->bytes_per_s);
    return *free_ns + sim_to_ns(queue->request_seconds);
}

uint64_t sim_staging_bound(const replay_options *options)
{
    uint64_t capacity_bytes[KVT_TIER_COUNT] = {0};
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++)
        capacity_bytes[tier] = options->tiers[tier].capacity_bytes;
    return kvt_put_staging_limit(options->put_staging_bytes, capacity_bytes);
}

bool sim_staging_takes(uint64_t staged_bytes, uint64_t bytes, uint64_t bound_bytes)
{
    return bound_bytes == 0 || staged_bytes == 0 || staged_bytes + bytes <= bound_bytes;
}

bool sim_backlog_takes(const double waiting_s[KVT_TIER_COUNT], const double added_s[KVT_TIER_COUNT],
                       double bound_s)
{
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
        if (!(bound_s > 0.0) || !(added_s[tier] > 0.0) || !(waiting_s[tier] > 0.0)) continue;
        if (waiting_s[tier] + added_s[tier] > bound_s) return false;
    }
    return true;
}

/* Weight of a new plan in the mean of what plans write, as in the store. */
#define SIM_WRITE_GAIN 0.125

/* The writes that a put without a plan is expected to make. */
static void plan_expect_writes(const sim_host *host, uint64_t bytes, double seconds[KVT_TIER_COUNT])
{
    for (int tier = 0; tier < KVT_TIER_COUNT; tier++)
        seconds[tier] = host->write_s_per_byte[tier] * (double)bytes;
}

bool sim_lags_unplanned(const sim_host *host, uint64_t bytes)
{
    double expected_s[KVT_TIER_COUNT];
    if (host->handed_over < SIM_EXECUTORS) return false;
    plan_expect_writes(host, bytes, expected_s);
    return !sim_backlog_takes(host->backlog_s, expected_s, host->sim.options->put_backlog_seconds);
}

/* ---- queues ---- */

static void plan_append(sim_queue *queue, sim_plan *plan)
{
    if (queue->first == NULL) queue->last = &queue->first;
    plan->next = NULL;
    *queue->last = plan;
    queue->last = &plan->next;
    queue->count++;
}

static sim_plan *plan_pop(sim_queue *queue)
{
    sim_plan *plan = queue->first;
    if (plan == NULL) return NULL;
    queue->first = plan->next;
    queue->count--;
    return plan;
}

/* ---- plans ---- */

static sim_plan *plan_new(sim_host *host)
{
    sim_plan *plan = host->spare;
    if (plan == NULL) {
        plan = calloc(1, sizeof *plan);
        if (plan == NULL) return NULL;
    } else {
        host->spare = plan->next;
        *plan = (sim_plan){.moves = plan->moves, .move_room = plan->move_room};
    }
    plan->block = SIM_NOBODY;
    return plan;
}

static void plan_give(sim_host *host, sim_plan *plan)
{
    plan->next = host->spare;
    host->spare = plan;
}

/* Moves the simulator's present plan into this one. */
static kvt_status plan_fill(sim_state *sim, sim_plan *plan)
{
    if (sim->plan.count > plan->move_room) {
        kvt_move *grown = realloc(plan->moves, sim->plan.count * sizeof *grown);
        if (grown == NULL) return KVT_E_MEMORY;
        plan->moves = grown;
        plan->move_room = sim->plan.count;
    }
    plan->count = sim->plan.count;
    memcpy(plan->moves, sim->plan.moves, plan->count * sizeof *plan->moves);
    sim->plan.count = 0;
    return KVT_OK;
}

/* A plan with the simulator's present moves, or NULL. */
static sim_plan *plan_take(sim_host *host)
{
    sim_plan *plan = plan_new(host);
    if (plan == NULL) return NULL;
    if (plan_fill(&host->sim, plan) == KVT_OK) return plan;
    plan_give(host, plan);
    return NULL;
}

void sim_forget_plans(sim_host *host)
{
    sim_plan *plan;
    if (host->drive != NULL) drive_forget(host->drive);
    while ((plan = plan_pop(&host->handed)) != NULL)
        plan_give(host, plan);
    while ((plan = plan_pop(&host->promotions)) != NULL)
        plan_give(host, plan);
    for (uint32_t i = 0; i <= SIM_EXECUTORS; i++) {
        if (host->workers[i].plan != NULL) plan_give(host, host->workers[i].plan);
        host->workers[i] = (sim_worker){.plan = NULL};
    }
    host->handed_over = 0;
    host->staged_bytes = host->writes_noted = 0;
    memset(host->backlog_s, 0, sizeof host->backlog_s);
    memset(host->write_s_per_byte, 0, sizeof host->write_s_per_byte);
}

void sim_release_plans(sim_host *host)
{
    sim_forget_plans(host);
    for (sim_plan *plan; (plan = host->spare) != NULL; free(plan)) {
        host->spare = plan->next;
        free(plan->moves);
    }
}

/* ---- moves ---- */

/* Bytes that a move reads from a tier: bytes that both variants keep in place are not read. */
static uint64_t plan_read_bytes(const kvt_move *move, int tier)
{
    return move->kind == KVT_MOVE_CHANGE ? move->from_bytes[tier] - move->kept_bytes[tier] : 0;
}

/* Bytes that a move writes to a tier, as planned; none where the entry's copy is the record. */
static uint64_t plan_written_bytes(const sim_host *host, const kvt_move *move, int tier)
{
    if (move->kind == KVT_MOVE_EVICT || sim_copies_hold(host, move)) return 0;
    return move->to_bytes[tier] - move->kept_bytes[tier];
}

/* Whether a move writes. One that only gives up planes or a copy in place reads and writes nothing.
 */
static bool plan_writes(const sim_host *host, const kvt_move *move)
{
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++)
        if (plan_written_bytes(host, move, tier) > 0) return true;
    return false;
}

/* Occupies the read queues of a move's sources. Returns the instant at which the move is read, but
 * for the bytes that the model of the drives is to read. */
static uint64_t plan_read(sim_host *host, const kvt_move *move, uint64_t *drive_bytes_out)
{
    sim_state *sim = &host->sim;
    uint64_t end_ns = host->run->now_ns;
    for (int tier = 1; tier < KVT_TIER_COUNT && plan_writes(host, move); tier++) {
        uint64_t bytes = plan_read_bytes(move, tier);
        if (bytes == 0) continue;
        if (tier == KVT_TIER_SSD && host->drive != NULL) {
            *drive_bytes_out = bytes;
        } else {
            uint64_t there_ns = plan_occupy(&sim->read_free_ns[tier], host->run->now_ns,
                                            &sim->options->model.read[tier], bytes);
            if (there_ns > end_ns) end_ns = there_ns;
        }
        if (!sim->counting) continue;
        sim->result->bytes_read[tier] += bytes;
        sim->result->moved_bytes_read[tier] += bytes;
    }
    return end_ns;
}

/* Occupies the write queues of a move's targets, with the record's real bytes. Returns the instant
 * at which the move is written, but for the drives' bytes. */
static uint64_t plan_write(sim_host *host, const kvt_move *move, uint64_t *drive_bytes_out)
{
    sim_state *sim = &host->sim;
    uint64_t end_ns = host->run->now_ns;
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
        if (plan_written_bytes(host, move, tier) == 0) continue;
        uint64_t bytes = sim_record_bytes(sim, move)[tier] - move->kept_bytes[tier];
        if (tier == KVT_TIER_SSD && host->drive != NULL) {
            *drive_bytes_out = bytes;
        } else {
            uint64_t there_ns = plan_occupy(&sim->write_free_ns[tier], host->run->now_ns,
                                            &sim->options->model.write[tier], bytes);
            if (there_ns > end_ns) end_ns = there_ns;
        }
        if (sim->counting) sim->result->bytes_written[tier] += bytes;
    }
    return end_ns;
}

/* Notes where a committed move has left its block. */
static void plan_note(sim_host *host, const kvt_move *move)
{
    sim_state *sim = &host->sim;
    uint32_t block = (uint32_t)(move->handle - 1);
    uint8_t before = sim->stored[block];
    sim_note_stored(sim, move);
    sim_copies_note(host, block, before);
    if (sim->remote != NULL && move->kind == KVT_MOVE_EVICT)
        sim_remote_leave(sim, block, host->run->now_ns);
}

/* Commits or aborts a move in the policy; an entry whose eviction ended is no longer hidden. */
static kvt_status plan_settle(sim_host *host, const kvt_move *move, bool committed)
{
    sim_state *sim = &host->sim;
    kvt_status status = committed
                            ? kvt_policy_commit(sim->policy, move->id, sim_record_bytes(sim, move))
                            : kvt_policy_abort(sim->policy, move->id);
    if (status != KVT_OK) return status;
    if (committed) plan_note(host, move);
    if (move->kind == KVT_MOVE_EVICT) host->state[move->handle - 1] &= (uint8_t)~SIM_LEAVING;
    sim_log_move(sim, host->run->now_ns, move, committed);
    return KVT_OK;
}

/* Hides the blocks that a plan is about to evict from readers. */
static void plan_mark(sim_host *host, const sim_plan *plan)
{
    for (uint32_t i = 0; i < plan->count; i++)
        if (plan->moves[i].kind == KVT_MOVE_EVICT)
            host->state[plan->moves[i].handle - 1] |= SIM_LEAVING;
}

/* Sums the write seconds of a plan, by tier, for the backlog. */
static void plan_weigh(const sim_host *host, sim_plan *plan)
{
    memset(plan->backlog_s, 0, sizeof plan->backlog_s);
    for (uint32_t i = 0; i < plan->count; i++) {
        for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
            uint64_t bytes = plan_written_bytes(host, &plan->moves[i], tier);
            const kvt_affine *queue = &host->sim.options->model.write[tier];
            if (bytes > 0)
                plan->backlog_s[tier] +=
                    queue->request_seconds + (double)bytes / queue->bytes_per_s;
        }
    }
}

/* Adds the writes of a put to the backlog: its plan's, or those to be expected. */
static void plan_add_backlog(sim_host *host, const sim_plan *plan)
{
    sim_state *sim = &host->sim;
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
        host->backlog_s[tier] += plan->backlog_s[tier];
        if (sim->counting && host->backlog_s[tier] > sim->result->write_lag_s_max[tier])
            sim->result->write_lag_s_max[tier] = host->backlog_s[tier];
    }
}

static void plan_take_backlog(sim_host *host, const sim_plan *plan)
{
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
        double left = host->backlog_s[tier] - plan->backlog_s[tier];
        /* Sums of doubles: nothing waits when nothing was handed over. */
        host->backlog_s[tier] = left > 1e-12 ? left : 0.0;
    }
}

/* Adds the weighed plan of a put of so many bytes to the backlog and to the mean of what plans
 * write, and hides the blocks that it evicts. */
static void plan_begin(sim_host *host, const sim_plan *plan, uint64_t bytes)
{
    assert(bytes > 0);
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
        double *mean = &host->write_s_per_byte[tier];
        double seen = plan->backlog_s[tier] / (double)bytes;
        *mean += (host->writes_noted == 0 ? 1.0 : SIM_WRITE_GAIN) * (seen - *mean);
    }
    host->writes_noted++;
    plan_add_backlog(host, plan);
    plan_mark(host, plan);
}

/* ---- workers ---- */

/* Ends a worker's plan: the backlog and the staged bytes of its put fall. */
static void plan_end(sim_host *host, sim_worker *worker)
{
    sim_plan *plan = worker->plan;
    worker->plan = NULL;
    if (plan->block != SIM_NOBODY) {
        host->state[plan->block] &= (uint8_t)~SIM_STAGED;
        assert(host->staged_bytes >= plan->staged_bytes);
        host->staged_bytes -= plan->staged_bytes;
        host->handed_over--;
    }
    plan_take_backlog(host, plan);
    plan_give(host, plan);
}

/* The plan that the background goes on with, or NULL: then it pauses. */
static kvt_status plan_next_round(sim_host *host, sim_worker *worker)
{
    sim_state *sim = &host->sim;
    const replay_options *options = sim->options;
    worker->plan = plan_pop(&host->promotions);
    if (worker->plan != NULL || worker->ticked) return KVT_OK;
    worker->ticked = true;
    double budget = (double)options->move_bytes_per_s * options->tick_seconds;
    uint64_t bytes = options->move_bytes_per_s == 0 ? UINT64_MAX : (uint64_t)budget;
    uint32_t moves =
        options->moves_per_tick < SIM_PLAN_MOVES ? options->moves_per_tick : SIM_PLAN_MOVES;
    if (moves == 0) return KVT_OK;
    uint64_t begin = sim_call_begin(sim);
    kvt_status status = kvt_policy_tick(sim->policy, host->run->now_ns, moves, bytes, &sim->plan);
    sim_call_end(sim, begin);
    if (status != KVT_OK || sim->plan.count == 0) return status;
    worker->plan = plan_take(host);
    if (worker->plan == NULL) return KVT_E_MEMORY;
    plan_mark(host, worker->plan);
    return KVT_OK;
}

/* Asks the policy for the plan of a put that has waited. A put that it declines has no moves, and
 * its writes stay expected until the worker has ended it. */
static kvt_status plan_decide_later(sim_host *host, sim_plan *plan)
{
    kvt_status status = sim_ask(host, &plan->visit, plan->position);
    if (status != KVT_OK) return status > KVT_OK ? KVT_OK : status;
    status = plan_fill(&host->sim, plan);
    if (status != KVT_OK) return status;
    plan_take_backlog(host, plan);
    plan_weigh(host, plan);
    plan_begin(host, plan, plan->staged_bytes);
    return KVT_OK;
}

/* Takes the next plan of an executor, or of the background. A put that waited is decided here. */
static kvt_status plan_next(sim_host *host, sim_worker *worker)
{
    bool background = worker == &host->workers[SIM_EXECUTORS];
    worker->writing = false;
    if (background) return plan_next_round(host, worker);
    worker->plan = plan_pop(&host->handed);
    if (worker->plan == NULL || !worker->plan->later) return KVT_OK;
    return plan_decide_later(host, worker->plan);
}

/* Goes on with its plan as far as that takes no time; schedules the end of what does. */
static kvt_status plan_go_on(sim_host *host, uint32_t index)
{
    sim_worker *worker = &host->workers[index];
    uint32_t actor = sim_actor_of_worker(host, index);
    for (;;) {
        if (worker->plan != NULL && worker->plan->done == worker->plan->count)
            plan_end(host, worker);
        if (worker->plan == NULL) {
            kvt_status status = plan_next(host, worker);
            if (status != KVT_OK) return status;
            if (worker->plan == NULL) break;
            if (worker->plan->count == 0) continue;
        }
        const kvt_move *move = &worker->plan->moves[worker->plan->done];
        uint64_t drive_bytes = 0;
        uint64_t end_ns = worker->writing ? plan_write(host, move, &drive_bytes)
                                          : plan_read(host, move, &drive_bytes);
        if (drive_bytes > 0)
            return sim_drive_move(host, index, worker->writing, drive_bytes, end_ns);
        if (end_ns > host->run->now_ns) {
            sim_schedule(host, end_ns, actor);
            return KVT_OK;
        }
        kvt_status status = KVT_OK;
        if (worker->writing || !plan_writes(host, move)) {
            status = plan_settle(host, move, true);
            worker->plan->done++;
        }
        worker->writing = !worker->writing && plan_writes(host, move);
        if (status != KVT_OK) return status;
    }
    if (index != SIM_EXECUTORS) return KVT_OK;
    /* A pause that a prefetch has ended goes on to its own end. */
    if (!worker->woken)
        host->round_ns = host->run->now_ns + sim_to_ns(host->sim.options->tick_seconds);
    worker->ticked = worker->woken = false;
    sim_schedule(host, host->round_ns > host->run->now_ns ? host->round_ns : host->run->now_ns,
                 actor);
    return KVT_OK;
}

void sim_wake_background(sim_host *host)
{
    sim_worker *worker = &host->workers[SIM_EXECUTORS];
    if (worker->plan != NULL || host->promotions.count == 0) return;
    worker->ticked = worker->woken = true;
    sim_hasten(host, sim_actor_of_worker(host, SIM_EXECUTORS));
}

kvt_status sim_work(sim_host *host, uint32_t index)
{
    sim_worker *worker = &host->workers[index];
    if (worker->plan == NULL) return plan_go_on(host, index);
    /* The present move has been read, or written. */
    const kvt_move *move = &worker->plan->moves[worker->plan->done];
    if (worker->writing) {
        kvt_status status = plan_settle(host, move, true);
        if (status != KVT_OK) return status;
        worker->plan->done++;
    }
    worker->writing = !worker->writing;
    return plan_go_on(host, index);
}

/* ---- handing over ---- */

static kvt_status plan_drop(sim_host *host, sim_plan *plan)
{
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; i < plan->count && status == KVT_OK; i++)
        status = plan_settle(host, &plan->moves[i], false);
    plan_give(host, plan);
    return status == KVT_OK ? KVT_BUSY : status;
}

/* Asks the policy at once. */
static kvt_status plan_decide(sim_host *host, const sim_visit *visit, uint32_t position,
                              uint64_t bytes, sim_plan **out)
{
    kvt_status status = sim_ask(host, visit, position);
    if (status != KVT_OK) return status;
    sim_plan *plan = plan_take(host);
    if (plan == NULL) return KVT_E_MEMORY;
    plan_weigh(host, plan);
    if (!sim_backlog_takes(host->backlog_s, plan->backlog_s,
                           host->sim.options->put_backlog_seconds))
        return plan_drop(host, plan);
    plan_begin(host, plan, bytes);
    *out = plan;
    return KVT_OK;
}

kvt_status sim_hand_over(sim_host *host, const sim_visit *visit, uint32_t position, uint64_t bytes)
{
    sim_plan *plan = NULL;
    if (host->handed_over >= SIM_EXECUTORS) {
        plan = plan_new(host);
        if (plan == NULL) return KVT_E_MEMORY;
        plan->later = true;
        plan->visit = *visit;
        plan->position = position;
        plan_expect_writes(host, bytes, plan->backlog_s);
        plan_add_backlog(host, plan);
    } else {
        kvt_status status = plan_decide(host, visit, position, bytes, &plan);
        if (status != KVT_OK) return status;
    }
    plan->block = visit->prefix[position];
    plan->staged_bytes = bytes;
    host->staged_bytes += bytes;
    host->handed_over++;
    host->state[plan->block] |= SIM_STAGED;
    plan_append(&host->handed, plan);
    for (uint32_t i = 0; i < SIM_EXECUTORS; i++)
        if (host->workers[i].plan == NULL) return plan_go_on(host, i);
    return KVT_OK;
}

kvt_status sim_queue_promotion(sim_host *host)
{
    sim_plan *plan = plan_take(host);
    if (plan == NULL) return KVT_E_MEMORY;
    plan_mark(host, plan);
    plan_append(&host->promotions, plan);
    return KVT_OK;
}
