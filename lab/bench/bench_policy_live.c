/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_policy_live.c - the engine at work on a drawn instance: ten calls an entry, drawn by the
 * entries' rates, then its own state against the bound of its own rates.
 */
#include "base/clock.h"
#include "bench_policy.h"
#include "replay/rivals/dual.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CALLS_PER_ENTRY  10u
#define LIVE_MOVES       64u
#define LIVE_OWN_ENTRIES 100000u /* that are weighed with options of their own */
#define HALF_LIFE_S      30000   /* three times the mean time between uses of an entry */

typedef struct counted_memory {
    uint64_t held;
} counted_memory;

static void *counted_resize(void *context, void *memory, size_t old_bytes, size_t bytes)
{
    counted_memory *counted = context;
    void *result = kvt_memory_resize(NULL, memory, old_bytes, bytes);
    if (bytes == 0 || result != NULL) counted->held += bytes - old_bytes;
    return result;
}

typedef struct live {
    const policy_instance *instance;
    kvt_policy *policy;
    counted_memory memory;
    uint32_t ladders[POLICY_SIZES];
    double *upto; /* running sum of rates */
    uint64_t state;
    uint64_t now_ns;
    uint32_t *decision_ns;
    uint32_t *room_ns;
    uint32_t *access_ns;
    uint64_t decisions, rooms, accesses, moves;
    kvt_move room[LIVE_MOVES];
    kvt_plan plan;
} live;

static uint32_t live_draw(live *run)
{
    double wanted = policy_unit(&run->state) * run->upto[run->instance->entries - 1];
    uint32_t low = 0, high = run->instance->entries - 1;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (run->upto[middle] < wanted)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static uint32_t live_size(const policy_instance *instance, uint32_t number)
{
    for (uint32_t size = 0; size < POLICY_SIZES; size++)
        if (policy_size_tokens(size) == instance->tokens[number]) return size;
    return 0;
}

static kvt_status live_open(live *run, char *message, size_t message_size)
{
    const policy_instance *instance = run->instance;
    kvt_policy_config config;
    kvt_policy_config_init(&config);
    config.half_life_seconds = HALF_LIFE_S;
    config.alpha_seconds = instance->alpha_seconds;
    config.holes = KVT_HOLES_MIXED;
    config.entries_expected = instance->entries;
    config.ghosts_max = instance->entries; /* so that all that was seen is known */
    config.allocator = (kvt_allocator){&run->memory, counted_resize};
    for (int level = 0; level < TIERS; level++)
        config.tiers[level + 1].capacity_bytes = instance->capacity[level];
    kvt_status status = kvt_policy_open(&config, &run->policy, message, message_size);
    kvt_option options[KVT_OPTIONS_MAX];
    for (uint32_t size = 0; status == KVT_OK && size < POLICY_SIZES; size++) {
        uint32_t tokens = policy_size_tokens(size);
        policy_instance one = *instance;
        double seconds = 0.0, unit = 1.0;
        one.tokens = &tokens;
        one.recompute = &seconds;
        one.sensitivity = &unit;
        policy_instance_options(&one, 0, options);
        status =
            kvt_policy_ladder_add(run->policy, options, instance->options + 1, &run->ladders[size]);
    }
    return status;
}

static kvt_status live_carry_out(live *run)
{
    for (uint32_t i = 0; i < run->plan.count; i++) {
        kvt_status status = kvt_policy_commit(run->policy, run->room[i].id, NULL);
        if (status != KVT_OK) return status;
    }
    run->moves += run->plan.count;
    run->plan.count = 0;
    return KVT_OK;
}

/* Whether the tiers are as full as they are kept: no more room than the low watermark leaves. */
static bool live_is_full(const live *run)
{
    kvt_policy_stats stats;
    kvt_policy_stats_get(run->policy, &stats);
    for (int level = 0; level < TIERS; level++) {
        double full = 0.94 * (double)run->instance->capacity[level];
        if ((double)stats.used_bytes[level + 1] < full) return false;
    }
    return true;
}

static kvt_status live_admit(live *run, uint32_t number, bool timed)
{
    const policy_instance *instance = run->instance;
    const kvt_policy_entry offer = {.struct_size = sizeof offer,
                                    .handle = number + UINT64_C(1),
                                    .tokens = instance->tokens[number],
                                    .ladder = run->ladders[live_size(instance, number)],
                                    .recompute_seconds = instance->recompute[number],
                                    .sensitivity = instance->sensitivity[number]};
    bool full = timed && live_is_full(run);
    uint64_t begin = base_clock_ns();
    kvt_status status = kvt_policy_admit(run->policy, run->now_ns, &offer, &run->plan);
    uint32_t spent = (uint32_t)(base_clock_ns() - begin);
    if (full && run->plan.count > 0) run->decision_ns[run->decisions++] = spent;
    if (full && run->plan.count > 1) run->room_ns[run->rooms++] = spent;
    return status;
}

static kvt_status live_call(live *run, bool timed)
{
    uint32_t number = live_draw(run);
    uint64_t begin = base_clock_ns();
    kvt_status status =
        kvt_policy_access(run->policy, run->now_ns, number + UINT64_C(1), &run->plan);
    uint64_t end = base_clock_ns();
    if (status == KVT_OK && timed) run->access_ns[run->accesses++] = (uint32_t)(end - begin);
    if (status == KVT_MISS) status = live_admit(run, number, timed);
    if (status != KVT_OK && status != KVT_REFUSED) return status;
    return live_carry_out(run);
}

static int live_compare(const void *left, const void *right)
{
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return a < b ? -1 : a > b;
}

static void live_percentiles(uint32_t *samples, uint64_t count, uint64_t *p50, uint64_t *p99)
{
    if (count == 0) return;
    qsort(samples, count, sizeof *samples, live_compare);
    *p50 = samples[count / 2];
    *p99 = samples[count * 99 / 100];
}

/* Seconds saved per second by the present placement at the drawn rates. */
static double live_worth(const live *run)
{
    const policy_instance *instance = run->instance;
    kvt_option options[KVT_OPTIONS_MAX];
    double worth = 0.0;
    for (uint32_t i = 0; i < instance->entries; i++) {
        uint8_t option = kvt_policy_option(run->policy, i + UINT64_C(1));
        if (option == KVT_OPTION_NONE) continue;
        policy_instance_options(instance, i, options);
        double loss = fmin(1.0, instance->sensitivity[i] * options[option].loss);
        double cost = options[option].load_seconds + options[option].decode_seconds +
                      instance->alpha_seconds * loss;
        worth += instance->rate[i] * (instance->recompute[i] - cost);
    }
    return worth;
}

static kvt_status live_run(live *run, double dual_true, policy_live_row *row)
{
    uint32_t n = run->instance->entries;
    uint64_t calls = (uint64_t)CALLS_PER_ENTRY * n;
    double total = run->upto[n - 1];
    kvt_status status = KVT_OK;
    uint64_t tick = n / 512 + 1;
    for (uint64_t i = 0; status == KVT_OK && i < calls; i++) {
        run->now_ns += (uint64_t)(-log(policy_unit(&run->state)) / total * 1e9) + 1;
        status = live_call(run, i >= calls - 2 * (uint64_t)n);
        if (status != KVT_OK || i % tick != 0) continue;
        status = kvt_policy_tick(run->policy, run->now_ns, LIVE_MOVES, UINT64_MAX, &run->plan);
        if (status == KVT_OK) status = live_carry_out(run);
    }
    if (status != KVT_OK) return status;
    kvt_policy_stats stats;
    kvt_policy_stats_get(run->policy, &stats);
    row->stored = stats.entries;
    row->calls = calls;
    row->moves = run->moves;
    live_percentiles(run->decision_ns, run->decisions, &row->decision_ns_p50,
                     &row->decision_ns_p99);
    live_percentiles(run->room_ns, run->rooms, &row->room_ns_p50, &row->room_ns_p99);
    live_percentiles(run->access_ns, run->accesses, &row->access_ns_p50, &row->access_ns_p99);
    row->decisions = run->decisions;
    row->rooms = run->rooms;
    dual_bound bound;
    double begin = base_clock_seconds(), cpu_begin = base_cpu_seconds();
    status = dual_solve(run->policy, run->now_ns, NULL, &bound);
    row->solve_cpu_s = base_cpu_seconds() - cpu_begin;
    row->solve_s = base_clock_seconds() - begin;
    row->primal = bound.primal;
    row->dual = bound.dual;
    row->gap_solver = bound.gap_solver;
    row->gap_counters = bound.gap_counters;
    row->gap_foresight = (dual_true - live_worth(run)) / dual_true;
    row->known = bound.entries;
    row->passes = bound.passes;
    return status;
}

/* Memory of an engine that holds as many entries as it was told to expect. Entries share ladders,
 * or bring options of their own, as those of a store do. */
static kvt_status live_weigh(const policy_instance *instance, bool own, double *bytes_out)
{
    live run = {.instance = instance};
    policy_instance roomy = *instance;
    if (own && roomy.entries > LIVE_OWN_ENTRIES) roomy.entries = LIVE_OWN_ENTRIES;
    uint32_t n = roomy.entries;
    char message[128];
    for (int level = 0; level < TIERS; level++)
        if (roomy.capacity[level] > 0) roomy.capacity[level] = UINT64_C(1) << 61;
    run.instance = &roomy;
    kvt_status status = live_open(&run, message, sizeof message);
    for (uint32_t i = 0; status == KVT_OK && i < n; i++) {
        kvt_option options[KVT_OPTIONS_MAX];
        kvt_policy_entry offer = {.struct_size = sizeof offer,
                                  .handle = i + UINT64_C(1),
                                  .ladder = run.ladders[live_size(instance, i)],
                                  .recompute_seconds = instance->recompute[i]};
        if (own) {
            policy_instance_options(instance, i, options);
            offer.ladder = 0;
            offer.options = options;
            offer.option_count = instance->options + 1;
        }
        status = kvt_policy_adopt(run.policy, 1, &offer, 1);
    }
    *bytes_out = (double)run.memory.held / (double)n;
    kvt_policy_close(run.policy);
    return status;
}

kvt_status policy_live_run(const policy_instance *instance, double dual_true, policy_live_row *row,
                           char *message, size_t message_size)
{
    uint32_t n = instance->entries;
    live *run = calloc(1, sizeof *run);
    memset(row, 0, sizeof *row);
    row->entries = n;
    row->options = instance->options;
    row->tiers = instance->tiers;
    row->seed = instance->seed;
    kvt_status status = KVT_E_MEMORY;
    if (run == NULL) return status;
    run->instance = instance;
    run->state = instance->seed * 77 + 5;
    run->now_ns = 1;
    run->plan = (kvt_plan){.moves = run->room, .capacity = LIVE_MOVES};
    run->upto = malloc(n * sizeof *run->upto);
    run->decision_ns = malloc((size_t)2 * n * sizeof *run->decision_ns);
    run->room_ns = malloc((size_t)2 * n * sizeof *run->room_ns);
    run->access_ns = malloc((size_t)2 * n * sizeof *run->access_ns);
    if (run->upto == NULL || run->decision_ns == NULL || run->room_ns == NULL ||
        run->access_ns == NULL) {
        goto out;
    }
    double sum = 0.0;
    for (uint32_t i = 0; i < n; i++)
        run->upto[i] = sum += instance->rate[i];
    status = live_open(run, message, message_size);
    if (status == KVT_OK) status = live_run(run, dual_true, row);
    kvt_policy_close(run->policy);
    if (status == KVT_OK) status = live_weigh(instance, false, &row->bytes_per_entry);
    if (status == KVT_OK) status = live_weigh(instance, true, &row->own_bytes_per_entry);
out:
    free(run->upto);
    free(run->decision_ns);
    free(run->room_ns);
    free(run->access_ns);
    free(run);
    return status;
}
