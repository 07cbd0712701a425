/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simulator.c - the replay loop in virtual time: servers, reference order, policy calls, results.
 *
 * The queue is FIFO, so services start in arrival order, and everything that a policy sees happens
 * in that order: the run is one pass over the requests without an event queue. A request refers
 * to its blocks root first; a resident one is accessed, another one is admitted. hit_block_ratio
 * counts residence at that moment; hit_token_ratio counts the leading run as it was found when the
 * service began, before any of the request's own admissions. One thread.
 */
#include "base/clock.h"
#include "live.h"
#include "policy/trial.h"
#include "results.h"
#include "sim_remote.h"
#include "sim_store.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SIM_SAMPLES_MAX 32768u

kvt_status sim_open_policy(sim_state *sim, const char *name, char *message, size_t message_size)
{
    const replay_options *options = sim->options;
    kvt_policy_config config;
    kvt_policy_config_init(&config);
    config.name = sim->oracle.on ? "utility" : name;
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
        const replay_tier *model = &options->tiers[tier];
        if (model->capacity_bytes == 0) continue;
        config.tiers[tier] = (kvt_tier_facts){.capacity_bytes = model->capacity_bytes,
                                              .read_bytes_per_s = model->read.bytes_per_s,
                                              .write_bytes_per_s = model->write.bytes_per_s,
                                              .request_seconds = model->read.request_seconds};
    }
    config.variant = options->variant;
    config.alpha_seconds = options->alpha_seconds;
    config.hysteresis = options->hysteresis;
    config.holes = (uint8_t)options->holes;
    config.high_watermark = options->high_watermark;
    config.low_watermark = options->low_watermark;
    /* The tables of many hosts grow as they need. */
    config.entries_expected = sim->workload->distinct_blocks / options->hosts + 1;
    config.seed = options->policy_seed;
    config.allocator.resize = kvt_memory_resize;
    kvt_status status = kvt_policy_open(&config, &sim->policy, message, message_size);
    if (status != KVT_OK) return status;
    policy_try_half_life(sim->policy, options->half_life_seconds);
    /* Whole blocks differ in their recompute seconds alone. */
    snprintf(message, message_size, "out of memory");
    status = kvt_policy_ladder_add(sim->policy, sim->whole, sim->option_count, &sim->ladder);
    if (status == KVT_OK && options->blend.set) status = sim_blend_open(sim);
    const kvt_tenant limits = {.struct_size = sizeof limits,
                               .alpha_seconds = options->alpha_seconds,
                               .loss_limit = options->loss_limit};
    if (status == KVT_OK) status = kvt_policy_set_tenant(sim->policy, 0, &limits);
    return status;
}

/* Builds the options of a whole block, once for all of them, and the prefill seconds by length. */
static kvt_status sim_build_options(sim_state *sim)
{
    const replay_workload *workload = sim->workload;
    kvt_status status =
        block_options(sim->options, workload->block_tokens, sim->whole, &sim->option_count);
    if (status != KVT_OK) return status;
    for (uint32_t o = 0; o < sim->option_count; o++) {
        for (uint8_t tier = 1; tier < KVT_TIER_COUNT; tier++)
            if (sim->whole[o].read_bytes[tier] > 0) sim->tier_of[o] = tier;
    }
    for (uint32_t i = 0; i <= workload->longest_prefix; i++) {
        sim->prefill_s[i] =
            kvt_prefill_seconds(&sim->options->model.prefill, 0, i * workload->block_tokens);
    }
    return KVT_OK;
}

/* Allocates the simulation's arrays, which sim_release frees whatever the outcome. */
static kvt_status sim_prepare(sim_state *sim, char *message, size_t message_size)
{
    const replay_workload *workload = sim->workload;
    sim->free_ns = calloc(sim->options->servers, sizeof *sim->free_ns);
    sim->ready_ns = calloc((size_t)workload->distinct_blocks + 1, sizeof *sim->ready_ns);
    sim->run = malloc((size_t)workload->longest_prefix + 1);
    sim->prefill_s = malloc(((size_t)workload->longest_prefix + 1) * sizeof *sim->prefill_s);
    if (sim->options->partial_exact)
        sim->held_tokens = calloc((size_t)workload->distinct_blocks + 1, sizeof *sim->held_tokens);
    sim->samples_ns = malloc(SIM_SAMPLES_MAX * sizeof *sim->samples_ns);
    snprintf(message, message_size, "out of memory");
    if (sim->free_ns == NULL || sim->ready_ns == NULL || sim->run == NULL ||
        sim->prefill_s == NULL || sim->samples_ns == NULL ||
        (sim->options->partial_exact && sim->held_tokens == NULL)) {
        return KVT_E_MEMORY;
    }
    /* An odd distance, so that sampling does not fall into step with the length of the prefixes. */
    sim->sample_every = (uint32_t)(workload->block_refs / SIM_SAMPLES_MAX + 16) | 1u;
    sim->until_sample = sim->sample_every;
    sim->plan = (kvt_plan){.moves = sim->moves, .capacity = SIM_PLAN_MOVES, .count = 0};
    sim->tick_ns =
        sim->options->tick_seconds > 0.0 ? sim_to_ns(sim->options->tick_seconds) : UINT64_MAX;
    if (sim->options->plan_log != NULL) {
        sim->plan_log = fopen(sim->options->plan_log, "w");
        if (sim->plan_log == NULL) {
            snprintf(message, message_size, "%s: %s", sim->options->plan_log, strerror(errno));
            return KVT_E_IO;
        }
        snprintf(sim->result->plan_log, sizeof sim->result->plan_log, "%s", sim->options->plan_log);
    }
    kvt_status status = sim_build_options(sim);
    if (status != KVT_OK) {
        snprintf(message, message_size, "the options of a block cannot be built: %s",
                 kvt_status_text(status));
    }
    return status;
}

/* Brackets one policy call. Every sample_every-th is timed. */
uint64_t sim_call_begin(sim_state *sim)
{
    sim->result->decisions++;
    if (--sim->until_sample > 0) return 0;
    sim->until_sample = sim->sample_every;
    return base_clock_ns();
}

void sim_call_end(sim_state *sim, uint64_t begin_ns)
{
    if (begin_ns == 0) return;
    size_t at = sim->sample_count++ % SIM_SAMPLES_MAX;
    sim->samples_ns[at] = base_clock_ns() - begin_ns;
    if (sim->sample_room < SIM_SAMPLES_MAX) sim->sample_room++;
}

void sim_note_peak(sim_state *sim)
{
    kvt_policy_stats stats;
    kvt_policy_stats_get(sim->policy, &stats);
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
        if (stats.used_bytes[tier] > sim->result->peak_bytes[tier]) {
            sim->result->peak_bytes[tier] = stats.used_bytes[tier];
        }
    }
}

/* Runs the policy's ticks that are due by now, each with its own budget of bytes and moves. */
kvt_status sim_tick_until(sim_state *sim, uint64_t now_ns)
{
    const replay_options *options = sim->options;
    double budget = (double)options->move_bytes_per_s * options->tick_seconds;
    uint64_t bytes = options->move_bytes_per_s == 0 ? UINT64_MAX : (uint64_t)budget;
    uint32_t moves =
        options->moves_per_tick < SIM_PLAN_MOVES ? options->moves_per_tick : SIM_PLAN_MOVES;
    while (sim->tick_ns <= now_ns) {
        uint64_t begin = sim_call_begin(sim);
        kvt_status status = kvt_policy_tick(sim->policy, sim->tick_ns, moves, bytes, &sim->plan);
        sim_call_end(sim, begin);
        if (status == KVT_OK) status = sim_carry_out(sim, &(sim_hand){.now_ns = sim->tick_ns});
        if (status != KVT_OK) return status;
        sim_note_peak(sim);
        sim->tick_ns += sim_to_ns(options->tick_seconds);
    }
    return KVT_OK;
}

/* A request that waits asks for the blocks of its leading run to be brought up. */
static kvt_status sim_prefetch(sim_state *sim, const replay_request *request)
{
    const uint32_t *prefix = &sim->workload->blocks[request->first_block];
    uint64_t now_ns = request->arrival_ns;
    for (uint32_t i = 0; i < request->block_count; i++) {
        uint8_t option = sim_option_of(sim, prefix[i]);
        if (option == KVT_OPTION_NONE) break;
        kvt_status status = sim_prefetch_offer(sim, prefix[i], option, now_ns);
        if (status == KVT_OK) status = sim_carry_out(sim, &(sim_hand){.now_ns = now_ns});
        if (status != KVT_OK) return status;
    }
    return KVT_OK;
}

/* Lets the requests prefetch that arrive before the next service begins, in the order of time: they
 * have to wait. `next` is the request of that service. */
static kvt_status sim_arrive_until(sim_state *sim, uint64_t next, uint64_t start_ns, uint64_t skip)
{
    const replay_workload *workload = sim->workload;
    kvt_status status = KVT_OK;
    if (!sim->options->prefetch) return KVT_OK;
    while (status == KVT_OK && sim->arrived < workload->request_count &&
           workload->requests[sim->arrived].arrival_ns < start_ns) {
        const replay_request *request = &workload->requests[sim->arrived];
        sim->counting = sim->arrived++ >= skip;
        status = sim_tick_until(sim, request->arrival_ns);
        if (status == KVT_OK) status = sim_prefetch(sim, request);
    }
    if (sim->arrived <= next) sim->arrived = next + 1; /* it is served as it arrives */
    return status;
}

/* Builds the offer of a block to the engine, as a store would. Whole blocks share the variants of a
 * ladder; a partial block that is charged its own tokens has sizes of its own. */
static kvt_status sim_make_offer(sim_state *sim, const sim_visit *visit, uint32_t position,
                                 kvt_option *options, kvt_policy_entry *entry_out)
{
    uint32_t unit = sim->workload->block_tokens, block = visit->prefix[position];
    uint32_t tokens =
        sim->options->partial_exact ? sim_block_tokens(sim, visit->request, position) : unit;
    kvt_offer offer =
        block_offer(sim->options, position * unit, tokens, visit->request->input_tokens);
    const kvt_cost_model *model = &sim->options->model;
    offer.handle = sim_handle(block);
    offer.parent = position > 0 ? sim_handle(visit->prefix[position - 1]) : 0;
    offer.sensitivity = sim->known != NULL ? (double)sim->known[block] : 0.0;
    if (tokens != unit)
        return kvt_offer_build(model, sim->options->holes, &offer, options, entry_out);
    kvt_status status = kvt_offer_describe(model, sim->options->holes, &offer, entry_out);
    entry_out->ladder = sim->ladder;
    return status;
}

kvt_status sim_offer(sim_state *sim, const sim_visit *visit, uint32_t position, uint64_t now_ns)
{
    uint32_t block = visit->prefix[position];
    kvt_option options[KVT_OPTIONS_MAX], blended[KVT_TIER_COUNT];
    kvt_policy_entry entry = {.struct_size = sizeof entry};
    kvt_status status = sim_make_offer(sim, visit, position, options, &entry);
    if (status != KVT_OK) return status;
    if (sim->options->blend.set) {
        uint32_t mask = sim_blend_mask(sim, block);
        entry.sensitivity = 1.0;
        if (entry.ladder == 0) {
            entry.option_count = sim_blend_options(sim, mask, options, blended);
            entry.options = blended;
        } else {
            entry.ladder = sim->blend_ladder[mask];
        }
    }
    if (sim->remote != NULL) entry.copy_seconds = sim_remote_copy_s(sim, visit, position);
    if (sim->held_tokens != NULL) sim->held_tokens[block] = entry.tokens;
    sim->inherited[block] = (float)visit->loss;
    uint64_t begin = sim_call_begin(sim);
    status = kvt_policy_admit(sim->policy, now_ns, &entry, &sim->plan);
    sim_call_end(sim, begin);
    return status;
}

/* Offers a block that was computed, and carries the plan out. A refusal is no error. */
static kvt_status sim_admit(sim_state *sim, const sim_visit *visit, uint32_t position,
                            uint64_t ready_ns)
{
    kvt_status status = sim_offer(sim, visit, position, visit->start_ns);
    if (status == KVT_REFUSED || status == KVT_EXISTS) return KVT_OK;
    if (status != KVT_OK) return status;
    uint64_t handle = sim_handle(visit->prefix[position]);
    return sim_carry_out(sim, &(sim_hand){visit->start_ns, handle, ready_ns});
}

/* Reports a hit to the engine, and carries the plan out. */
static kvt_status sim_access(sim_state *sim, const sim_visit *visit, uint32_t position,
                             uint8_t option, uint64_t ready_ns)
{
    uint64_t handle = sim_handle(visit->prefix[position]);
    if (sim->counting) {
        sim->result->hit_block_ratio[sim->tier_of[option]] += 1.0;
        sim->result->hit_block_ratio[0] += 1.0;
    }
    uint64_t begin = sim_call_begin(sim);
    kvt_status status = kvt_policy_access(sim->policy, visit->start_ns, handle, &sim->plan);
    sim_call_end(sim, begin);
    if (status != KVT_OK) return status;
    if (sim->plan.count == 0) return KVT_OK;
    /* Loaded or computed, the request has the block's bytes in memory when its service ends. */
    return sim_carry_out(sim, &(sim_hand){visit->start_ns, handle, ready_ns});
}

/* Reports one of a request's blocks to the engine. */
static kvt_status sim_refer_block(sim_state *sim, const sim_visit *visit, uint32_t position,
                                  uint64_t ready_ns)
{
    uint32_t block = visit->prefix[position];
    uint64_t request = (uint64_t)(visit->request - sim->workload->requests);
    uint32_t uses = sim_oracle_uses(sim, block, request);
    uint8_t option = sim_option_of(sim, block);
    if (sim->oracle.on && option == KVT_OPTION_NONE && uses == 0) return KVT_OK;
    kvt_status status = sim_oracle_tell(sim, block, uses > 0 ? (double)(uses - 1) : 0.0);
    if (status != KVT_OK) return status;
    status = option != KVT_OPTION_NONE ? sim_access(sim, visit, position, option, ready_ns)
                                       : sim_admit(sim, visit, position, ready_ns);
    return status == KVT_OK ? sim_oracle_tell(sim, block, (double)uses) : status;
}

kvt_status sim_refer(sim_state *sim, const sim_visit *visit)
{
    uint64_t ready_ns = visit->start_ns + sim_to_ns(visit->service_s);
    uint32_t count = visit->request->block_count;
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; i < count && status == KVT_OK; i++)
        status = sim_refer_block(sim, visit, sim->backwards ? count - 1 - i : i, ready_ns);
    return status;
}

/* The earliest free server becomes busy until end_ns. */
void sim_take_server(sim_state *sim, uint64_t end_ns)
{
    uint32_t count = sim->options->servers, at = 0;
    for (;;) {
        uint32_t child = at * 2 + 1;
        if (child >= count) break;
        if (child + 1 < count && sim->free_ns[child + 1] < sim->free_ns[child]) child++;
        if (sim->free_ns[child] >= end_ns) break;
        sim->free_ns[at] = sim->free_ns[child];
        at = child;
    }
    sim->free_ns[at] = end_ns;
}

/* Asks the caller, whose answer may cost more than a request, every 16 requests. */
bool sim_may_proceed(const replay_options *options, uint64_t request, uint64_t count)
{
    if (options->proceed == NULL || request % 16 != 0) return true;
    return options->proceed(options->proceed_context, (double)request / (double)count);
}

static kvt_status sim_run(sim_state *sim, results_collector *collector)
{
    const replay_workload *workload = sim->workload;
    for (uint64_t i = 0; i < workload->request_count; i++) {
        const replay_request *request = &workload->requests[i];
        if (!sim_may_proceed(sim->options, i, workload->request_count)) return KVT_E_CANCELLED;
        sim_visit visit = {.request = request, .prefix = &workload->blocks[request->first_block]};
        visit.start_ns = request->arrival_ns;
        if (sim->free_ns[0] > visit.start_ns) visit.start_ns = sim->free_ns[0];
        kvt_status status = sim_arrive_until(sim, i, visit.start_ns, collector->skip);
        sim->counting = i >= collector->skip;
        if (status == KVT_OK) status = sim_tick_until(sim, visit.start_ns);
        if (status == KVT_OK) status = sim_oracle_refresh(sim, i, visit.start_ns);
        if (status == KVT_OK) status = sim_regret_look(sim, i, visit.start_ns);
        if (status != KVT_OK) return status;
        sim_serve(sim, &visit);
        sim_take_server(sim, visit.start_ns + sim_to_ns(visit.service_s));
        status = sim_refer(sim, &visit);
        if (status == KVT_OK) status = sim_hints_give(sim, &visit, visit.start_ns);
        if (status != KVT_OK) return status;
        if (sim->counting) sim->result->delay_hits += visit.delayed;
        if (sim->counting) sim->saved_s += visit.saved_s - sim->options->alpha_seconds * visit.loss;
        results_add(
            collector, i,
            &(results_sample){.wait_s = (double)(visit.start_ns - request->arrival_ns) * 1e-9,
                              .service_s = visit.service_s,
                              .compute_s = visit.prefill_s,
                              .loss = visit.loss});
    }
    sim_note_peak(sim);
    return KVT_OK;
}

void sim_add_policy(sim_state *sim)
{
    replay_result *result = sim->result;
    kvt_policy_stats stats;
    kvt_policy_stats_get(sim->policy, &stats);
    result->puts += stats.puts;
    result->refused += stats.refused;
    result->promotions += stats.promotions;
    result->demotions += stats.demotions;
    result->evictions += stats.evictions;
    result->reuse = stats.reuse;
}

static void sim_finish(sim_state *sim, results_collector *collector)
{
    replay_result *result = sim->result;
    sim_add_policy(sim);
    result->hints.struct_size = sizeof result->hints;
    (void)!kvt_policy_hint_stats_get(sim->policy, &result->hints);
    results_finish(collector, sim->options->servers);
    sim_regret_finish(sim);
    results_percentiles(sim->samples_ns, sim->sample_room, &result->decision_ns_p50,
                        &result->decision_ns_p99);
}

void sim_release(sim_state *sim)
{
    if (sim->policy != NULL) kvt_policy_close(sim->policy);
    if (sim->plan_log != NULL && fclose(sim->plan_log) != 0) sim->plan_log_failed = true;
    free(sim->free_ns);
    free(sim->ready_ns);
    free(sim->run);
    free(sim->prefill_s);
    free(sim->held_tokens);
    free(sim->samples_ns);
    sim_quality_close(sim);
    sim_regret_close(sim);
    sim_oracle_close(sim);
    sim_hints_close(sim);
}

kvt_status sim_open(sim_state *sim, const char *policy, char *message, size_t message_size)
{
    kvt_status status = sim_prepare(sim, message, message_size);
    if (status == KVT_OK) status = sim_quality_open(sim);
    if (status == KVT_OK) status = sim_regret_open(sim);
    sim->oracle.on = strcmp(policy, REPLAY_ORACLE) == 0;
    if (status == KVT_OK) status = sim_oracle_open(sim);
    if (status == KVT_OK) status = sim_hints_open(sim, message, message_size);
    return status == KVT_OK ? sim_open_policy(sim, policy, message, message_size) : status;
}

kvt_status replay_run_sim(const replay_options *options, const replay_workload *workload,
                          const char *policy, replay_result *result, char *message,
                          size_t message_size)
{
    assert(options != NULL && workload != NULL && policy != NULL && result != NULL);
    results_collector collector = {0};
    if (replay_has_hosts(options))
        return sim_hosts_run(options, workload, policy, result, message, message_size);
    results_start(result, "sim", policy, options, workload);
    sim_state *sim = calloc(1, sizeof *sim);
    snprintf(message, message_size, "out of memory");
    if (sim == NULL) return KVT_E_MEMORY;
    sim->options = options;
    sim->workload = workload;
    sim->result = result;
    kvt_status status = sim_open(sim, policy, message, message_size);
    if (status != KVT_OK) goto out;
    status = results_collector_open(&collector, result, workload, options->warmup);
    if (status != KVT_OK) goto out;

    uint64_t begin = base_clock_ns();
    status = options->store_model ? sim_store_run(sim, &collector) : sim_run(sim, &collector);
    result->loop_s = (double)(base_clock_ns() - begin) * 1e-9 - sim->regret.spent_s;
    if (status != KVT_OK) {
        snprintf(message, message_size, "policy %s: %s", policy, kvt_status_text(status));
        goto out;
    }
    sim_finish(sim, &collector);
    status = sim_explain(sim);
out:
    results_collector_close(&collector);
    sim_release(sim);
    if (status == KVT_OK && sim->plan_log_failed) {
        snprintf(message, message_size, "%s: write failed", options->plan_log);
        status = KVT_E_IO;
    }
    free(sim);
    return status;
}
