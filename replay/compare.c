/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compare.c - the plan of a comparison: workloads, contenders, what is tuned and what is evaluated.
 *
 * For each speed of the SSD:
 *   1. every baseline with every variant of compare_rungs, and our grid at the main spread, on the
 *      tuning seeds; the best mix of every level (compare_mix.c) and our grid at every spread
 *   2. for each of these, ours with the least TTFT at equal or better quality on every tuning seed;
 *      alpha is then halved towards the neighbour that was not good enough (OURS_STEPS times)
 *   3. each choice again, among all that was tried for any contender; what was chosen, on the
 *      evaluation seeds; rows
 *
 * The caller's thread, and those of compare_pool.c.
 */
#include "compare.h"
#include "base/clock.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define OURS_STEPS      3u
#define OURS_ADAPTCACHE "adaptcache"

/* The engine's own knobs: alpha in seconds for a request's quality, with any variant and with the
 * losses limited to each rung's. */
static const double ours_alphas[] = {0.3,  1.0,  2.0,   4.0,    8.0,   16.0,
                                     32.0, 64.0, 256.0, 1000.0, 4000.0};
#define OURS_ALPHAS (sizeof ours_alphas / sizeof ours_alphas[0])
static const double limited_alphas[] = {0.3, 2.0};
#define LIMITED_ALPHAS (sizeof limited_alphas / sizeof limited_alphas[0])

void replay_compare_init(replay_compare *plan)
{
    memset(plan, 0, sizeof *plan);
    plan->seeds = 20;
    plan->tuning_seeds = 4;
    plan->threads = 1;
    plan->write_follows = true;
    /* Entry effects of 0.2-0.3 nats that repeat with r of 0.2-0.34 on one homogeneous workload, of
     * 0.5-0.7 with 0.47-0.77 on mixed ones: the codec trial of profiles/ladder-codec-trial.json. */
    plan->main = (replay_spread){0.7, 0.6};
    plan->spreads[0] = (replay_spread){0.0, 0.0};
    plan->spreads[1] = (replay_spread){0.25, 0.3};
    plan->spreads[2] = (replay_spread){0.7, 0.6};
    plan->spreads[3] = (replay_spread){1.2, 0.6};
    plan->spread_count = 4;
}

void replay_compare_free(replay_compare_result *result)
{
    free(result->rows);
    memset(result, 0, sizeof *result);
}

/* ---- contenders ---- */

/* A setup without a variant, limit or blend of its own, at the default alpha. */
static compare_setup compare_setup_of(const char *policy, compare_role role, double speed,
                                      replay_spread spread)
{
    compare_setup setup;
    memset(&setup, 0, sizeof setup);
    snprintf(setup.policy, sizeof setup.policy, "%s", policy);
    setup.role = role;
    setup.alpha_s = 10.0;
    setup.loss_limit = 1.0;
    setup.spread = spread;
    setup.ssd_bytes_per_s = speed;
    return setup;
}

/* Adds a trial and puts its index at the end of the list. */
static kvt_status compare_append(compare_state *state, const compare_setup *setup, size_t **list,
                                 size_t *count)
{
    size_t *grown = realloc(*list, (*count + 1) * sizeof *grown);
    if (grown == NULL) return KVT_E_MEMORY;
    *list = grown;
    return compare_add(state, setup, &grown[(*count)++]);
}

/* A policy that chooses variants itself has no variant of its own: the exact variants to choose
 * from and its alphas stand in their place. */
static kvt_status compare_add_baseline(compare_state *state, const char *policy, double speed,
                                       uint64_t capacity, size_t **list, size_t *count)
{
    const replay_options *base = state->plan->base;
    uint8_t rungs[KVT_VARIANTS_MAX];
    uint32_t rung_count = compare_rungs(base, rungs);
    compare_setup setup = compare_setup_of(policy, COMPARE_BASELINE, speed, state->plan->main);
    setup.ssd_capacity_bytes = capacity;
    kvt_status status = KVT_OK;
    if (strcmp(policy, OURS_ADAPTCACHE) == 0) {
        setup.loss_limit = 0.0;
        status = compare_append(state, &setup, list, count);
        setup.loss_limit = 1.0;
        for (size_t i = 0; i < OURS_ALPHAS && status == KVT_OK; i += 3) {
            setup.alpha_s = ours_alphas[i];
            status = compare_append(state, &setup, list, count);
        }
        return status;
    }
    if (strcmp(policy, "none") == 0) rung_count = 1;
    for (uint32_t i = 0; i < rung_count && status == KVT_OK; i++) {
        setup.variant = rungs[i];
        bool exact = base->model.variants[rungs[i]].loss <= 0.0;
        /* With room for everything only the exact variants are a question. */
        if (capacity > 0 && !exact) continue;
        status = compare_append(state, &setup, list, count);
    }
    return status;
}

/* The grid with the losses limited to each rung's but the last, which limits nothing. */
static kvt_status compare_add_limited(compare_state *state, compare_setup *setup, size_t **list,
                                      size_t *count)
{
    const kvt_cost_model *model = &state->plan->base->model;
    kvt_status status = KVT_OK;
    for (uint32_t rung = 0; rung + 1 < model->variant_count; rung++) {
        const kvt_codec_curve *curve = &model->variants[rung];
        if (curve->loss <= 0.0) continue;
        setup->loss_limit = fmax(curve->loss, curve->loss_upper);
        for (size_t i = 0; i < LIMITED_ALPHAS && status == KVT_OK; i++) {
            setup->alpha_s = limited_alphas[i];
            status = compare_append(state, setup, list, count);
        }
    }
    return status;
}

/* Adds the utility engine's grid: exact variants alone, every alpha, and limited losses unless
 * quick. */
static kvt_status compare_add_ours(compare_state *state, double speed, uint64_t capacity,
                                   replay_spread spread, size_t **list, size_t *count)
{
    compare_setup setup = compare_setup_of("utility", COMPARE_OURS, speed, spread);
    setup.ssd_capacity_bytes = capacity;
    setup.loss_limit = 0.0;
    kvt_status status = compare_append(state, &setup, list, count);
    setup.loss_limit = 1.0;
    for (size_t i = 0; i < OURS_ALPHAS && status == KVT_OK; i++) {
        setup.alpha_s = ours_alphas[i];
        status = compare_append(state, &setup, list, count);
    }
    if (status != KVT_OK || state->plan->quick) return status;
    return compare_add_limited(state, &setup, list, count);
}

/* ---- matching ---- */

/* Appends a match; the list grows by doubling. */
static kvt_status compare_match_add(compare_matches *matches, compare_match match)
{
    if (matches->count == matches->room) {
        size_t room = matches->room == 0 ? 64 : matches->room * 2;
        compare_match *grown = realloc(matches->list, room * sizeof *grown);
        if (grown == NULL) return KVT_E_MEMORY;
        matches->list = grown;
        matches->room = room;
    }
    matches->list[matches->count++] = match;
    return KVT_OK;
}

/* The next smaller alpha that was tried at the same spread and limit; it was too coarse, or slower
 * than the chosen one, in which case there is nothing to gain there. */
static double compare_alpha_below(const compare_state *state, size_t chosen)
{
    const compare_setup *setup = &state->trials[chosen].setup;
    double below = 0.0;
    for (size_t i = 0; i < state->trial_count; i++) {
        compare_setup other;
        memcpy(&other, &state->trials[i].setup, sizeof other);
        double alpha = other.alpha_s;
        other.alpha_s = setup->alpha_s;
        if (alpha >= setup->alpha_s || alpha <= below) continue;
        if (memcmp(&other, setup, sizeof other) == 0) below = alpha;
    }
    return below;
}

/* Ours against one contender: the best of the grid, then alpha from it downwards. */
static kvt_status compare_match_ours(compare_state *state, size_t against, size_t *ours_out)
{
    *ours_out = compare_pick(state, against);
    for (uint32_t step = 0; step < OURS_STEPS && *ours_out != COMPARE_NONE; step++) {
        compare_setup setup;
        memcpy(&setup, &state->trials[*ours_out].setup, sizeof setup);
        double below = compare_alpha_below(state, *ours_out);
        if (setup.loss_limit <= 0.0 || below <= 0.0) break;
        /* Two decimals: matches of different contenders then share their trials. */
        double middle = sqrt(setup.alpha_s * below);
        double unit = pow(10.0, floor(log10(middle)) - 1.0);
        setup.alpha_s = round(middle / unit) * unit;
        if (setup.alpha_s >= state->trials[*ours_out].setup.alpha_s || setup.alpha_s <= below)
            break;
        size_t trial;
        kvt_status status = compare_add(state, &setup, &trial);
        if (status == KVT_OK) {
            status = compare_run_trials(state, &trial, 1, true, "utility, fine alphas");
        }
        if (status != KVT_OK) return status;
        *ours_out = compare_pick(state, against);
    }
    return KVT_OK;
}

/* Matches every trial of the list with one of ours, at this level of quality. */
static kvt_status compare_match_list(compare_state *state, replay_row_kind kind, const size_t *list,
                                     size_t count, double level, compare_matches *matches)
{
    kvt_status status = KVT_OK;
    for (size_t i = 0; i < count && status == KVT_OK; i++) {
        compare_match match = {.kind = kind, .against = list[i], .level = level};
        double ttft, quality;
        if (compare_tuned(state, list[i], &ttft, &quality)) {
            status = compare_match_ours(state, list[i], &match.ours);
        } else {
            /* Overloaded: nothing to match. The exact variants stand in, and the row says so. */
            compare_setup exact;
            memcpy(&exact, &state->trials[list[i]].setup, sizeof exact);
            compare_setup setup =
                compare_setup_of("utility", COMPARE_OURS, exact.ssd_bytes_per_s, exact.spread);
            setup.ssd_capacity_bytes = exact.ssd_capacity_bytes;
            setup.loss_limit = 0.0;
            status = compare_add(state, &setup, &match.ours);
        }
        if (status != KVT_OK || match.ours == COMPARE_NONE) continue;
        status = compare_match_add(matches, match);
    }
    return status;
}

/* ---- parts of one speed ---- */

/* Tunes all baselines and our grid at one speed and matches them. A capacity above 0 replaces
 * the SSD's. */
static kvt_status compare_baselines(compare_state *state, double speed, uint64_t capacity,
                                    compare_matches *matches)
{
    size_t *list = NULL, count = 0, *ours = NULL, our_count = 0;
    kvt_status status = KVT_OK;
    replay_row_kind kind = capacity > 0 ? REPLAY_ROW_FOOTPRINT : REPLAY_ROW_BASELINE;
    for (size_t i = 0; i < state->plan->policy_count && status == KVT_OK; i++) {
        status =
            compare_add_baseline(state, state->plan->policies[i], speed, capacity, &list, &count);
    }
    if (status == KVT_OK) {
        status = compare_add_ours(state, speed, capacity, state->plan->main, &ours, &our_count);
    }
    if (status == KVT_OK) status = compare_run_trials(state, list, count, true, "baselines");
    if (status == KVT_OK) status = compare_run_trials(state, ours, our_count, true, "utility");
    if (status == KVT_OK) status = compare_match_list(state, kind, list, count, 0.0, matches);
    free(list);
    free(ours);
    return status;
}

/* A mix runs the same at every spread; what it loses does not, so it is run again at each. */
static kvt_status compare_mixes_at(compare_state *state, double speed, replay_spread spread,
                                   const size_t *best, const double *levels, uint32_t level_count,
                                   compare_matches *matches)
{
    size_t *ours = NULL, count = 0;
    kvt_status status = compare_add_ours(state, speed, 0, spread, &ours, &count);
    if (status == KVT_OK) status = compare_run_trials(state, ours, count, true, "utility");
    free(ours);
    for (uint32_t i = 0; i < level_count && status == KVT_OK; i++) {
        size_t mix;
        if (best[i] == COMPARE_NONE) continue;
        /* Without a loss there is no spread to tell apart. */
        bool main = spread.sigma == state->plan->main.sigma &&
                    spread.repeatability == state->plan->main.repeatability;
        if (levels[i] >= 1.0 && !main) continue;
        compare_setup setup;
        memcpy(&setup, &state->trials[best[i]].setup, sizeof setup);
        setup.spread = spread;
        status = compare_add(state, &setup, &mix);
        if (status == KVT_OK) {
            status = compare_run_trials(state, &mix, 1, true, "mixes at other spreads");
        }
        if (status == KVT_OK) {
            status = compare_match_list(state, REPLAY_ROW_MIX, &mix, 1, levels[i], matches);
        }
    }
    return status;
}

static kvt_status compare_mixes(compare_state *state, double speed, compare_matches *matches)
{
    double levels[REPLAY_LEVELS_MAX];
    size_t best[REPLAY_LEVELS_MAX];
    uint32_t count = compare_levels(state->plan, levels);
    if (state->plan->spread_count == 0) return KVT_OK;
    kvt_status status = compare_sweep_mixes(state, speed, levels, count, best);
    for (uint32_t i = 0; i < state->plan->spread_count && status == KVT_OK; i++) {
        status =
            compare_mixes_at(state, speed, state->plan->spreads[i], best, levels, count, matches);
    }
    return status;
}

/* ---- rows ---- */

static kvt_status compare_row_add(compare_state *state, const compare_match *match)
{
    replay_compare_result *result = state->result;
    if (result->row_count == result->row_room) {
        size_t room = result->row_room == 0 ? 64 : result->row_room * 2;
        replay_compare_row *grown = realloc(result->rows, room * sizeof *grown);
        if (grown == NULL) return KVT_E_MEMORY;
        result->rows = grown;
        result->row_room = room;
    }
    const compare_setup *setup = &state->trials[match->against].setup;
    replay_compare_row *row = &result->rows[result->row_count++];
    *row =
        (replay_compare_row){.kind = match->kind, .spread = setup->spread, .level = match->level};
    row->ssd_bytes_per_s = setup->ssd_bytes_per_s > 0.0
                               ? setup->ssd_bytes_per_s
                               : state->plan->base->tiers[KVT_TIER_SSD].read.bytes_per_s;
    compare_label(state, match->against, row->against);
    compare_label(state, match->ours, row->ours);
    compare_judge(state, match->against, match->ours, row);
    row->fastest_at = match->fastest_at;
    return KVT_OK;
}

/* The load that all contenders face, whether `none` is one of them or not. */
static kvt_status compare_load(compare_state *state)
{
    replay_compare_result *result = state->result;
    uint8_t rungs[KVT_VARIANTS_MAX];
    double speed = state->plan->speed_count > 0 ? state->plan->speeds[0] : 0.0;
    compare_setup setup = compare_setup_of("none", COMPARE_BASELINE, speed, state->plan->main);
    size_t trial;
    (void)compare_rungs(state->plan->base, rungs);
    setup.variant = rungs[0];
    kvt_status status = compare_add(state, &setup, &trial);
    if (status == KVT_OK) status = compare_run_trials(state, &trial, 1, false, "without a cache");
    for (uint32_t seed = 0; seed < state->plan->seeds && status == KVT_OK; seed++) {
        double rho = state->trials[trial].samples[seed].rho;
        if (seed == 0 || rho < result->rho_none_low) result->rho_none_low = rho;
        if (seed == 0 || rho > result->rho_none_high) result->rho_none_high = rho;
    }
    return status;
}

/* Runs both sides of all matches on the evaluation seeds and adds their rows. */
static kvt_status compare_evaluate(compare_state *state, const compare_matches *matches)
{
    size_t *trials = malloc((matches->count * 2 + 1) * sizeof *trials);
    if (trials == NULL) return KVT_E_MEMORY;
    for (size_t i = 0; i < matches->count; i++) {
        trials[2 * i] = matches->list[i].against;
        trials[2 * i + 1] = matches->list[i].ours;
    }
    kvt_status status = compare_run_trials(state, trials, matches->count * 2, false, "evaluation");
    free(trials);
    const bool interrupted = status == KVT_E_CANCELLED;
    kvt_status added = interrupted ? KVT_OK : status;
    for (size_t i = 0; i < matches->count && added == KVT_OK; i++) {
        added = compare_row_add(state, &matches->list[i]);
        replay_compare_result *result = state->result;
        if (added == KVT_OK && interrupted && result->rows[result->row_count - 1].seeds < 2)
            result->row_count--;
    }
    return added == KVT_OK ? status : added;
}

/* An SSD that holds every block of the largest workload as it is, beside the other tiers. */
static uint64_t compare_footprint(const compare_state *state)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < state->seed_count; i++)
        if (state->workloads[i].distinct_blocks > most) most = state->workloads[i].distinct_blocks;
    uint64_t block = state->plan->base->bytes_per_token * state->workloads[0].block_tokens;
    return (most + 1) * (block + 4096);
}

/* Everything at one speed of the SSD; the middle speed also gets an SSD of the footprint's size. */
static kvt_status compare_speed(compare_state *state, uint32_t index)
{
    compare_matches matches = {0};
    uint32_t speeds = state->plan->speed_count;
    double speed = speeds > 0 ? state->plan->speeds[index] : 0.0;
    kvt_status status = compare_baselines(state, speed, 0, &matches);
    if (status == KVT_OK) status = compare_mixes(state, speed, &matches);
    bool ssd = state->plan->base->tiers[KVT_TIER_SSD].capacity_bytes > 0;
    if (status == KVT_OK && ssd && index == speeds / 2) {
        status = compare_baselines(state, speed, compare_footprint(state), &matches);
    }
    compare_match_again(state, &matches);
    compare_mark_fastest(state, &matches);
    if (status == KVT_OK) status = compare_evaluate(state, &matches);
    free(matches.list);
    return status;
}

/* ---- before and after ---- */

static kvt_status compare_check(const replay_compare *plan, char *message, size_t message_size)
{
    const char *fault = NULL;
    const kvt_cost_model *model = &plan->base->model;
    bool lossy = false;
    for (uint32_t i = 0; i < model->variant_count; i++)
        lossy = lossy || model->variants[i].loss > 0.0;
    if (!lossy) fault = "replay.ladder: a comparison needs a ladder with lossy forms";
    if (plan->seeds < 2 || plan->seeds > 1000) fault = "replay.seeds: 2 to 1000 of a comparison";
    if (plan->tuning_seeds < 1 || plan->tuning_seeds > 100) fault = "tuning seeds: 1 to 100";
    if (plan->threads < 1) fault = "threads: at least 1";
    if (plan->policy_count == 0) fault = "--policy: a comparison needs a baseline beside utility";
    if (fault == NULL) return KVT_OK;
    snprintf(message, message_size, "%s", fault);
    return KVT_E_CONFIG;
}

/* Makes the workloads of all seeds, by resampling the trace or by generating. */
static kvt_status compare_draw(compare_state *state)
{
    const replay_compare *plan = state->plan;
    for (uint32_t i = 0; i < state->seed_count; i++) {
        kvt_status status;
        uint64_t seed = plan->base->seed + i;
        if (plan->trace != NULL) {
            snprintf(state->message, state->message_size, "out of memory");
            status = replay_resample(plan->trace, seed, plan->sessions, &state->workloads[i],
                                     &state->result->sessions);
        } else {
            replay_generator generator = *plan->generator;
            generator.seed = seed;
            status = replay_workload_generate(&generator, &state->workloads[i], state->message,
                                              state->message_size);
        }
        if (status == KVT_OK) {
            status =
                replay_normals_draw(seed, state->workloads[i].distinct_blocks, &state->normals[i]);
        }
        if (status != KVT_OK) return status;
    }
    double capacity = 0.0;
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++)
        capacity += (double)plan->base->tiers[tier].capacity_bytes;
    const replay_workload *first = &state->workloads[0];
    double footprint = (double)first->distinct_blocks * (double)first->block_tokens *
                       (double)plan->base->bytes_per_token;
    state->result->requests = first->request_count;
    state->result->level_count = compare_levels(plan, state->result->levels);
    state->result->capacity_over_footprint = footprint > 0.0 ? capacity / footprint : 0.0;
    return KVT_OK;
}

/* Times one run of a baseline and one of ours on the first tuning seed, and says what is to come:
 * an upper bound of the runs, and the minutes on the threads. */
static kvt_status compare_budget(compare_state *state)
{
    const replay_compare *plan = state->plan;
    uint8_t rungs[KVT_VARIANTS_MAX];
    double levels[REPLAY_LEVELS_MAX];
    uint64_t speeds = plan->speed_count > 0 ? plan->speed_count : 1, spreads = plan->spread_count;
    uint64_t level_count = compare_levels(plan, levels);
    uint64_t both = plan->seeds + plan->tuning_seeds;
    uint64_t baselines = plan->policy_count * compare_rungs(plan->base, rungs) + 1;
    uint64_t grid = 1 + OURS_ALPHAS + LIMITED_ALPHAS * plan->base->model.variant_count;
    uint64_t theirs = (baselines * speeds + baselines / 2) * both;
    uint64_t ours = spreads == 0 ? 0 : compare_mix_runs(plan, (uint32_t)level_count);
    ours += (grid * (spreads + 1) + level_count * spreads * (1 + OURS_STEPS)) * plan->tuning_seeds;
    ours += (level_count * spreads * 2 + 8) * plan->seeds;
    ours = ours * speeds + grid * plan->tuning_seeds;

    size_t trials[2];
    double seconds[2];
    double speed = plan->speed_count > 0 ? plan->speeds[0] : 0.0;
    compare_setup setup = compare_setup_of("lru", COMPARE_OTHER, speed, plan->main);
    kvt_status status = compare_add(state, &setup, &trials[0]);
    setup = compare_setup_of("utility", COMPARE_OURS, speed, plan->main);
    setup.alpha_s = 16.0;
    if (status == KVT_OK) status = compare_add(state, &setup, &trials[1]);
    if (status == KVT_OK) status = compare_run_trials(state, trials, 2, true, "first runs");
    if (status != KVT_OK) return status;
    for (int i = 0; i < 2; i++)
        seconds[i] = state->trials[trials[i]].samples[plan->seeds].seconds;
    state->runs_planned = theirs + ours;
    double total = (double)theirs * seconds[0] + (double)ours * seconds[1];
    if (plan->budget != NULL) {
        plan->budget(plan->context, state->runs_planned, total / plan->threads / 60.0, seconds[1]);
    }
    return KVT_OK;
}

kvt_status replay_compare_run(const replay_compare *plan, replay_compare_result *result,
                              char *message, size_t message_size)
{
    memset(result, 0, sizeof *result);
    kvt_status status = compare_check(plan, message, message_size);
    if (status != KVT_OK) return status;
    compare_state state = {.plan = plan,
                           .result = result,
                           .seed_count = plan->seeds + plan->tuning_seeds,
                           .message = message,
                           .message_size = message_size};
    const double begin_s = base_clock_seconds();
    snprintf(message, message_size, "out of memory");
    state.workloads = calloc(state.seed_count, sizeof *state.workloads);
    state.normals = calloc(state.seed_count, sizeof *state.normals);
    status = state.workloads != NULL && state.normals != NULL ? compare_draw(&state) : KVT_E_MEMORY;
    if (status == KVT_OK) status = compare_budget(&state);
    if (status == KVT_OK) status = compare_load(&state);
    uint32_t speeds = plan->speed_count > 0 ? plan->speed_count : 1;
    for (uint32_t i = 0; i < speeds && status == KVT_OK; i++)
        status = compare_speed(&state, i);
    result->runs = state.runs_done;
    result->wall_s = base_clock_seconds() - begin_s;
    compare_pool_free(&state);
    for (uint32_t i = 0; state.workloads != NULL && i < state.seed_count; i++)
        replay_workload_free(&state.workloads[i]);
    for (uint32_t i = 0; state.normals != NULL && i < state.seed_count; i++)
        free(state.normals[i].pairs);
    free(state.workloads);
    free(state.normals);
    result->interrupted = status == KVT_E_CANCELLED;
    if (status != KVT_OK && !result->interrupted) replay_compare_free(result);
    return status;
}
