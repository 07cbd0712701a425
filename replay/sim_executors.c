/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_executors.c - plans behind a put's return and the background's, carried out in virtual time.
 *
 * A move occupies the read queue of its source, then the write queue of its target, and is
 * committed when it has been written: until then the policy counts room at both ends. The fixed
 * seconds of a request delay its waiters and do not occupy the I/O queue.
 *
 * Not modelled: failures, and what follows from them. One thread.
 */
#include "sim_store.h"
#include "store/core/options.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

uint64_t store_occupy(uint64_t *free_ns, uint64_t now_ns, const kvt_affine *queue, uint64_t bytes)
{
    *free_ns =
        (*free_ns > now_ns ? *free_ns : now_ns) + sim_to_ns((double)bytes / queue->bytes_per_s);
    return *free_ns + sim_to_ns(queue->request_seconds);
}

uint64_t store_staging_bound(const replay_options *options)
{
    uint64_t capacity_bytes[KVT_TIER_COUNT] = {0};
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++)
        capacity_bytes[tier] = options->tiers[tier].capacity_bytes;
    return kvt_put_staging_limit(options->put_staging_bytes, capacity_bytes);
}

bool store_staging_takes(uint64_t staged_bytes, uint64_t bytes, uint64_t bound_bytes)
{
    return bound_bytes == 0 || staged_bytes == 0 || staged_bytes + bytes <= bound_bytes;
}

bool store_backlog_takes(const double waiting_s[KVT_TIER_COUNT],
                         const double added_s[KVT_TIER_COUNT], double bound_s)
{
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
        if (!(bound_s > 0.0) || !(added_s[tier] > 0.0) || !(waiting_s[tier] > 0.0)) continue;
        if (waiting_s[tier] + added_s[tier] > bound_s) return false;
    }
    return true;
}

/* Weight of a new plan in the mean of what plans write, as in the store. */
#define STORE_WRITE_GAIN 0.125

/* The writes that a put without a plan is expected to make. */
static void store_expect_writes(const store_model *model, uint64_t bytes,
                                double seconds[KVT_TIER_COUNT])
{
    for (int tier = 0; tier < KVT_TIER_COUNT; tier++)
        seconds[tier] = model->write_s_per_byte[tier] * (double)bytes;
}

bool store_lags_unplanned(const store_model *model, uint64_t bytes)
{
    double expected_s[KVT_TIER_COUNT];
    if (model->handed_over < STORE_EXECUTORS) return false;
    store_expect_writes(model, bytes, expected_s);
    return !store_backlog_takes(model->backlog_s, expected_s,
                                model->sim->options->put_backlog_seconds);
}

/* ---- queues ---- */

static void store_append(store_queue *queue, store_plan *plan)
{
    if (queue->first == NULL) queue->last = &queue->first;
    plan->next = NULL;
    *queue->last = plan;
    queue->last = &plan->next;
    queue->count++;
}

static store_plan *store_pop(store_queue *queue)
{
    store_plan *plan = queue->first;
    if (plan == NULL) return NULL;
    queue->first = plan->next;
    queue->count--;
    return plan;
}

/* ---- plans ---- */

static store_plan *store_new_plan(store_model *model)
{
    store_plan *plan = model->spare;
    if (plan == NULL) {
        plan = calloc(1, sizeof *plan);
        if (plan == NULL) return NULL;
    } else {
        model->spare = plan->next;
        *plan = (store_plan){.moves = plan->moves, .move_room = plan->move_room};
    }
    plan->block = STORE_NOBODY;
    return plan;
}

static void store_give_plan(store_model *model, store_plan *plan)
{
    plan->next = model->spare;
    model->spare = plan;
}

/* Moves the simulator's present plan into this one. */
static kvt_status store_fill_plan(sim_state *sim, store_plan *plan)
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
static store_plan *store_take_plan(store_model *model)
{
    store_plan *plan = store_new_plan(model);
    if (plan == NULL) return NULL;
    if (store_fill_plan(model->sim, plan) == KVT_OK) return plan;
    store_give_plan(model, plan);
    return NULL;
}

/* Frees a plan with its moves; NULL is allowed. */
static void store_free_plan(store_plan *plan)
{
    if (plan != NULL) free(plan->moves);
    free(plan);
}

void store_release_plans(store_model *model)
{
    store_plan *plan;
    while ((plan = store_pop(&model->handed)) != NULL)
        store_free_plan(plan);
    while ((plan = store_pop(&model->promotions)) != NULL)
        store_free_plan(plan);
    while ((plan = model->spare) != NULL) {
        model->spare = plan->next;
        store_free_plan(plan);
    }
    for (uint32_t i = 0; i <= STORE_EXECUTORS; i++)
        store_free_plan(model->workers[i].plan);
}

/* ---- moves ---- */

/* Bytes that a move reads from a tier: bytes that both variants keep in place are not read. */
static uint64_t store_read_bytes(const kvt_move *move, int tier)
{
    return move->kind == KVT_MOVE_CHANGE ? move->from_bytes[tier] - move->kept_bytes[tier] : 0;
}

/* Bytes that a move writes to a tier, as planned. */
static uint64_t store_written_bytes(const kvt_move *move, int tier)
{
    return move->kind == KVT_MOVE_EVICT ? 0 : move->to_bytes[tier] - move->kept_bytes[tier];
}

/* Whether a move writes. One that only gives up planes or a copy in place reads and writes nothing.
 */
static bool store_writes(const kvt_move *move)
{
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++)
        if (store_written_bytes(move, tier) > 0) return true;
    return false;
}

/* Occupies the read queues of a move's sources. Returns the instant at which the move is read. */
static uint64_t store_read_move(store_model *model, const kvt_move *move)
{
    sim_state *sim = model->sim;
    uint64_t end_ns = model->now_ns;
    for (int tier = 1; tier < KVT_TIER_COUNT && store_writes(move); tier++) {
        uint64_t bytes = store_read_bytes(move, tier);
        if (bytes == 0) continue;
        uint64_t there_ns = store_occupy(&sim->read_free_ns[tier], model->now_ns,
                                         &sim->options->model.read[tier], bytes);
        if (there_ns > end_ns) end_ns = there_ns;
        if (!sim->counting) continue;
        sim->result->bytes_read[tier] += bytes;
        sim->result->moved_bytes_read[tier] += bytes;
    }
    return end_ns;
}

/* Occupies the write queues of a move's targets, with the record's real bytes. Returns the instant
 * at which the move is written. */
static uint64_t store_write_move(store_model *model, const kvt_move *move)
{
    sim_state *sim = model->sim;
    uint64_t end_ns = model->now_ns;
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
        if (store_written_bytes(move, tier) == 0) continue;
        uint64_t bytes = sim_record_bytes(sim, move)[tier] - move->kept_bytes[tier];
        uint64_t there_ns = store_occupy(&sim->write_free_ns[tier], model->now_ns,
                                         &sim->options->model.write[tier], bytes);
        if (there_ns > end_ns) end_ns = there_ns;
        if (sim->counting) sim->result->bytes_written[tier] += bytes;
    }
    return end_ns;
}

/* Commits or aborts a move in the policy; an entry whose eviction ended is no longer hidden. */
static kvt_status store_settle_move(store_model *model, const kvt_move *move, bool committed)
{
    sim_state *sim = model->sim;
    kvt_status status = committed
                            ? kvt_policy_commit(sim->policy, move->id, sim_record_bytes(sim, move))
                            : kvt_policy_abort(sim->policy, move->id);
    if (status != KVT_OK) return status;
    if (committed) sim_quality_move(sim, move);
    if (move->kind == KVT_MOVE_EVICT) model->state[move->handle - 1] &= (uint8_t)~STORE_LEAVING;
    sim_log_move(sim, model->now_ns, move, committed);
    return KVT_OK;
}

/* Hides the blocks that a plan is about to evict from readers. */
static void store_mark(store_model *model, const store_plan *plan)
{
    for (uint32_t i = 0; i < plan->count; i++)
        if (plan->moves[i].kind == KVT_MOVE_EVICT)
            model->state[plan->moves[i].handle - 1] |= STORE_LEAVING;
}

/* Sums the write seconds of a plan, by tier, for the backlog. */
static void store_weigh_plan(const sim_state *sim, store_plan *plan)
{
    memset(plan->backlog_s, 0, sizeof plan->backlog_s);
    for (uint32_t i = 0; i < plan->count; i++) {
        for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
            uint64_t bytes = store_written_bytes(&plan->moves[i], tier);
            const kvt_affine *queue = &sim->options->model.write[tier];
            if (bytes > 0)
                plan->backlog_s[tier] +=
                    queue->request_seconds + (double)bytes / queue->bytes_per_s;
        }
    }
}

/* Adds the writes of a put to the backlog: its plan's, or those to be expected. */
static void store_add_backlog(store_model *model, const store_plan *plan)
{
    sim_state *sim = model->sim;
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
        model->backlog_s[tier] += plan->backlog_s[tier];
        if (sim->counting && model->backlog_s[tier] > sim->result->write_lag_s_max[tier])
            sim->result->write_lag_s_max[tier] = model->backlog_s[tier];
    }
}

static void store_take_backlog(store_model *model, const store_plan *plan)
{
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
        double left = model->backlog_s[tier] - plan->backlog_s[tier];
        /* Sums of doubles: nothing waits when nothing was handed over. */
        model->backlog_s[tier] = left > 1e-12 ? left : 0.0;
    }
}

/* Adds the weighed plan of a put of so many bytes to the backlog and to the mean of what plans
 * write, and hides the blocks that it evicts. */
static void store_begin_plan(store_model *model, const store_plan *plan, uint64_t bytes)
{
    assert(bytes > 0);
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
        double *mean = &model->write_s_per_byte[tier];
        double seen = plan->backlog_s[tier] / (double)bytes;
        *mean += (model->writes_noted == 0 ? 1.0 : STORE_WRITE_GAIN) * (seen - *mean);
    }
    model->writes_noted++;
    store_add_backlog(model, plan);
    store_mark(model, plan);
}

/* ---- workers ---- */

/* Ends a worker's plan: the backlog and the staged bytes of its put fall. */
static void store_end_plan(store_model *model, store_worker *worker)
{
    store_plan *plan = worker->plan;
    worker->plan = NULL;
    if (plan->block != STORE_NOBODY) {
        model->state[plan->block] &= (uint8_t)~STORE_STAGED;
        assert(model->staged_bytes >= plan->staged_bytes);
        model->staged_bytes -= plan->staged_bytes;
        model->handed_over--;
    }
    store_take_backlog(model, plan);
    store_give_plan(model, plan);
}

/* The plan that the background goes on with, or NULL: then it pauses. */
static kvt_status store_next_round(store_model *model, store_worker *worker)
{
    sim_state *sim = model->sim;
    const replay_options *options = sim->options;
    worker->plan = store_pop(&model->promotions);
    if (worker->plan != NULL || worker->ticked) return KVT_OK;
    worker->ticked = true;
    double budget = (double)options->move_bytes_per_s * options->tick_seconds;
    uint64_t bytes = options->move_bytes_per_s == 0 ? UINT64_MAX : (uint64_t)budget;
    uint32_t moves =
        options->moves_per_tick < SIM_PLAN_MOVES ? options->moves_per_tick : SIM_PLAN_MOVES;
    if (moves == 0) return KVT_OK;
    uint64_t begin = sim_call_begin(sim);
    kvt_status status = kvt_policy_tick(sim->policy, model->now_ns, moves, bytes, &sim->plan);
    sim_call_end(sim, begin);
    if (status != KVT_OK || sim->plan.count == 0) return status;
    worker->plan = store_take_plan(model);
    if (worker->plan == NULL) return KVT_E_MEMORY;
    store_mark(model, worker->plan);
    return KVT_OK;
}

/* Asks the policy for the plan of a put that has waited. A put that it declines has no moves, and
 * its writes stay expected until the worker has ended it. */
static kvt_status store_decide_later(store_model *model, store_plan *plan)
{
    kvt_status status = store_ask(model, &plan->visit, plan->position);
    if (status != KVT_OK) return status > KVT_OK ? KVT_OK : status;
    status = store_fill_plan(model->sim, plan);
    if (status != KVT_OK) return status;
    store_take_backlog(model, plan);
    store_weigh_plan(model->sim, plan);
    store_begin_plan(model, plan, plan->staged_bytes);
    return KVT_OK;
}

/* Takes the next plan of an executor, or of the background. A put that waited is decided here. */
static kvt_status store_next_plan(store_model *model, store_worker *worker)
{
    bool background = worker == &model->workers[STORE_EXECUTORS];
    worker->writing = false;
    if (background) return store_next_round(model, worker);
    worker->plan = store_pop(&model->handed);
    if (worker->plan == NULL || !worker->plan->later) return KVT_OK;
    return store_decide_later(model, worker->plan);
}

/* Goes on with its plan as far as that takes no time; schedules the end of what does. */
static kvt_status store_go_on(store_model *model, uint32_t index)
{
    store_worker *worker = &model->workers[index];
    uint32_t actor = store_actor_of_worker(model, index);
    for (;;) {
        if (worker->plan != NULL && worker->plan->done == worker->plan->count)
            store_end_plan(model, worker);
        if (worker->plan == NULL) {
            kvt_status status = store_next_plan(model, worker);
            if (status != KVT_OK) return status;
            if (worker->plan == NULL) break;
            if (worker->plan->count == 0) continue;
        }
        const kvt_move *move = &worker->plan->moves[worker->plan->done];
        uint64_t end_ns =
            worker->writing ? store_write_move(model, move) : store_read_move(model, move);
        if (end_ns > model->now_ns) {
            store_schedule(model, end_ns, actor);
            return KVT_OK;
        }
        kvt_status status = KVT_OK;
        if (worker->writing || !store_writes(move)) {
            status = store_settle_move(model, move, true);
            worker->plan->done++;
        }
        worker->writing = !worker->writing && store_writes(move);
        if (status != KVT_OK) return status;
    }
    if (index != STORE_EXECUTORS) return KVT_OK;
    /* A pause that a prefetch has ended goes on to its own end. */
    if (!worker->woken)
        model->round_ns = model->now_ns + sim_to_ns(model->sim->options->tick_seconds);
    worker->ticked = worker->woken = false;
    store_schedule(model, model->round_ns > model->now_ns ? model->round_ns : model->now_ns, actor);
    return KVT_OK;
}

void store_wake_background(store_model *model)
{
    store_worker *worker = &model->workers[STORE_EXECUTORS];
    if (worker->plan != NULL || model->promotions.count == 0) return;
    worker->ticked = worker->woken = true;
    store_hasten(model, store_actor_of_worker(model, STORE_EXECUTORS));
}

kvt_status store_work(store_model *model, uint32_t index)
{
    store_worker *worker = &model->workers[index];
    if (worker->plan == NULL) return store_go_on(model, index);
    /* The present move has been read, or written. */
    const kvt_move *move = &worker->plan->moves[worker->plan->done];
    if (worker->writing) {
        kvt_status status = store_settle_move(model, move, true);
        if (status != KVT_OK) return status;
        worker->plan->done++;
    }
    worker->writing = !worker->writing;
    return store_go_on(model, index);
}

/* ---- handing over ---- */

static kvt_status store_drop_plan(store_model *model, store_plan *plan)
{
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; i < plan->count && status == KVT_OK; i++)
        status = store_settle_move(model, &plan->moves[i], false);
    store_give_plan(model, plan);
    return status == KVT_OK ? KVT_BUSY : status;
}

/* Asks the policy at once. */
static kvt_status store_decide(store_model *model, const sim_visit *visit, uint32_t position,
                               uint64_t bytes, store_plan **out)
{
    kvt_status status = store_ask(model, visit, position);
    if (status != KVT_OK) return status;
    store_plan *plan = store_take_plan(model);
    if (plan == NULL) return KVT_E_MEMORY;
    store_weigh_plan(model->sim, plan);
    if (!store_backlog_takes(model->backlog_s, plan->backlog_s,
                             model->sim->options->put_backlog_seconds))
        return store_drop_plan(model, plan);
    store_begin_plan(model, plan, bytes);
    *out = plan;
    return KVT_OK;
}

kvt_status store_hand_over(store_model *model, const sim_visit *visit, uint32_t position,
                           uint64_t bytes)
{
    store_plan *plan = NULL;
    if (model->handed_over >= STORE_EXECUTORS) {
        plan = store_new_plan(model);
        if (plan == NULL) return KVT_E_MEMORY;
        plan->later = true;
        plan->visit = *visit;
        plan->position = position;
        store_expect_writes(model, bytes, plan->backlog_s);
        store_add_backlog(model, plan);
    } else {
        kvt_status status = store_decide(model, visit, position, bytes, &plan);
        if (status != KVT_OK) return status;
    }
    plan->block = visit->prefix[position];
    plan->staged_bytes = bytes;
    model->staged_bytes += bytes;
    model->handed_over++;
    model->state[plan->block] |= STORE_STAGED;
    store_append(&model->handed, plan);
    for (uint32_t i = 0; i < STORE_EXECUTORS; i++)
        if (model->workers[i].plan == NULL) return store_go_on(model, i);
    return KVT_OK;
}

kvt_status store_queue_promotion(store_model *model)
{
    store_plan *plan = store_take_plan(model);
    if (plan == NULL) return KVT_E_MEMORY;
    store_mark(model, plan);
    store_append(&model->promotions, plan);
    return KVT_OK;
}
