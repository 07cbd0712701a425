/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simulator.c - one policy on one host in virtual time: what it is opened with and offered, how its
 * calls are timed and its moves logged. What a host does with it is sim_requests.c and sim_plans.c;
 * the loop is sim_run.c. One thread.
 */
#include "base/clock.h"
#include "live.h"
#include "policy/trial.h"
#include "sim_remote.h"

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
    config.alpha_prefills = options->alpha_prefills;
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
    policy_try(sim->policy, &(policy_trial){.half_life_seconds = options->half_life_seconds,
                                            .clock_scale = options->clock_scale});
    /* Whole blocks differ in their recompute seconds alone. */
    snprintf(message, message_size, "out of memory");
    status = kvt_policy_ladder_add(sim->policy, sim->whole, sim->option_count, &sim->ladder);
    if (status == KVT_OK && options->blend.set) status = sim_blend_open(sim);
    const kvt_tenant limits = {.struct_size = sizeof limits,
                               .alpha_seconds = options->alpha_seconds,
                               .alpha_prefills = options->alpha_prefills,
                               .loss_limit = options->loss_limit};
    if (status == KVT_OK) status = kvt_policy_tenant_set(sim->policy, 0, &limits);
    return status;
}

const kvt_option *sim_options(sim_state *sim, uint32_t tokens)
{
    if (tokens == sim->workload->block_tokens || !sim->options->partial_exact) return sim->whole;
    uint32_t count;
    kvt_status status = block_options(sim->options, tokens, sim->exact, &count);
    assert(status == KVT_OK && count == sim->option_count); /* whole blocks were built before */
    (void)status;
    return sim->exact;
}

double sim_prefill_after(const sim_state *sim, const replay_request *request, uint32_t blocks,
                         double whole_s)
{
    uint64_t held = (uint64_t)blocks * sim->workload->block_tokens;
    if (held < request->input_tokens) return whole_s - sim->prefill_s[blocks];
    return kvt_prefill_seconds(&sim->options->model.prefill, request->input_tokens - 1,
                               request->input_tokens);
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
    sim->stored = calloc((size_t)workload->distinct_blocks + 1, sizeof *sim->stored);
    sim->prefill_s = malloc(((size_t)workload->longest_prefix + 1) * sizeof *sim->prefill_s);
    if (sim->options->partial_exact)
        sim->held_tokens = calloc((size_t)workload->distinct_blocks + 1, sizeof *sim->held_tokens);
    sim->samples_ns = malloc(SIM_SAMPLES_MAX * sizeof *sim->samples_ns);
    snprintf(message, message_size, "out of memory");
    if (sim->stored == NULL || sim->prefill_s == NULL || sim->samples_ns == NULL ||
        (sim->options->partial_exact && sim->held_tokens == NULL)) {
        return KVT_E_MEMORY;
    }
    /* An odd distance, so that sampling does not fall into step with the length of the prefixes. */
    sim->sample_every = (uint32_t)(workload->block_refs / SIM_SAMPLES_MAX + 16) | 1u;
    sim->until_sample = sim->sample_every;
    sim->plan = (kvt_plan){.moves = sim->moves, .capacity = SIM_PLAN_MOVES, .count = 0};
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
    if (sim->remote != NULL) entry.copy_seconds = sim_remote_copy_s(sim, visit, position, now_ns);
    if (sim->held_tokens != NULL) sim->held_tokens[block] = entry.tokens;
    sim->inherited[block] = (float)visit->loss;
    uint64_t begin = sim_call_begin(sim);
    status = kvt_policy_admit(sim->policy, now_ns, &entry, &sim->plan);
    sim_call_end(sim, begin);
    return status;
}

const kvt_option *sim_block_options(sim_state *sim, uint32_t block)
{
    return sim_options(sim, sim->held_tokens != NULL ? sim->held_tokens[block]
                                                     : sim->workload->block_tokens);
}

const uint64_t *sim_record_bytes(sim_state *sim, const kvt_move *move)
{
    uint32_t block = (uint32_t)(move->handle - 1);
    if (move->to == KVT_OPTION_NONE) return NULL;
    return sim_block_options(sim, block)[sim_move_option(sim, block, move->to)].read_bytes;
}

void sim_note_stored(sim_state *sim, const kvt_move *move)
{
    replay_result *result = sim->result;
    uint32_t block = (uint32_t)(move->handle - 1);
    const kvt_option *options = sim_block_options(sim, block);
    uint8_t before = sim->stored[block], now = sim_move_option(sim, block, move->to);
    sim_quality_move(sim, move);
    sim->stored[block] = now;
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
        if (before != KVT_OPTION_NONE) sim->used_bytes[tier] -= options[before].read_bytes[tier];
        if (now != KVT_OPTION_NONE) sim->used_bytes[tier] += options[now].read_bytes[tier];
        if (sim->used_bytes[tier] > result->peak_bytes[tier])
            result->peak_bytes[tier] = sim->used_bytes[tier];
    }
}

void sim_log_move(sim_state *sim, uint64_t now_ns, const kvt_move *move, bool committed)
{
    uint64_t hash = sim->result->plan_hash;
    hash = replay_mix(hash ^ move->handle ^ ((uint64_t)committed << 63));
    sim->result->plan_hash = replay_mix(hash ^ (uint64_t)move->kind ^ ((uint64_t)move->from << 8) ^
                                        ((uint64_t)move->to << 16));
    sim->result->moves++;
    if (committed) {
        sim->result->moves_committed++;
    } else {
        sim->result->moves_aborted++;
    }
    if (sim->plan_log == NULL) return;
    char text[256];
    kvt_move_format(move, text, sizeof text);
    (void)fprintf(sim->plan_log, "%llu %s %s\n", (unsigned long long)now_ns,
                  committed ? "committed" : "aborted", text);
}

void sim_add_policy(sim_state *sim)
{
    replay_result *result = sim->result;
    kvt_policy_stats stats;
    kvt_policy_stats_get(sim->policy, &stats);
    result->puts += stats.puts;
    result->refused += stats.refused;
    for (int reason = 0; reason < KVT_REFUSALS; reason++)
        result->refused_for[reason] += stats.refused_for[reason];
    result->promotions += stats.promotions;
    result->demotions += stats.demotions;
    result->evictions += stats.evictions;
    result->reuse = stats.reuse;
}

bool sim_close_log(sim_state *sim)
{
    FILE *log = sim->plan_log;
    sim->plan_log = NULL;
    if (log == NULL) return true;
    const bool written = ferror(log) == 0;
    return fclose(log) == 0 && written;
}

void sim_release(sim_state *sim)
{
    if (sim->policy != NULL) kvt_policy_close(sim->policy);
    (void)sim_close_log(sim);
    free(sim->stored);
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
