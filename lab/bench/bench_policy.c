/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_policy.c - the decision engine alone, on instances that are drawn from a seed: static ones
 * beside their dual bound; then the engine at work, ten calls an entry that are drawn by the
 * entries' rates, with its own state against the bound of its own rates.
 *
 * Thread rule: one case at a time.
 */
#include "bench.h"
#include "lab/private.h"
#include "replay/rivals/dual.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define STATIC_MOST      2000000u
#define SEEDS_MOST       7u
#define CALLS_PER_ENTRY  10u
#define LIVE_MOVES       64u
#define LIVE_OWN_ENTRIES 100000u /* that are weighed with options of their own */
#define HALF_LIFE_S      30000   /* three times the mean time between uses of an entry */

enum { TIERS = KVT_TIER_COUNT - 1 };

/* One variant of the drawn ladder: stored bits per element of 16, and mean loss. */
typedef struct policy_rung {
    const char *name;
    double bits;
    double loss;
    double decode_bytes_per_s; /* of original bytes */
} policy_rung;

/* An instance: entries with sizes, rates and sensitivities drawn from a seed. */
typedef struct policy_instance {
    uint32_t entries;
    uint32_t options; /* stored ones of each entry */
    uint32_t tiers;
    uint64_t seed;
    double alpha_seconds;
    double *rate;      /* uses per second */
    double *recompute; /* seconds */
    double *sensitivity;
    uint32_t *tokens;
    uint64_t capacity[TIERS];
} policy_instance;

/* ---- instances, drawn from a seed ---- */

/*
 * An instance has contexts of 256 to 128 K tokens, Zipf popularity, lognormal sensitivity and the
 * ladder of the codec trial.
 */

/* Bits and relative loss as the codec trial (profiles/ladder-codec-trial.json) measured them, its
 * KL mapped to loss by one factor; decode rates as this library reaches them on one core. */
static const policy_rung policy_rungs[] = {
    {"raw", 16.0, 0.0, 1e13},        {"lossless", 10.6, 0.0, 3e9},    {"planes 8", 8.5, 1e-5, 8e9},
    {"planes 6", 6.5, 2e-4, 9e9},    {"planes 6/4", 5.5, 2e-3, 1e10}, {"planes 4", 4.5, 3e-3, 1e10},
    {"entropy 3.6", 3.6, 6e-3, 3e9}, {"entropy 2.6", 2.6, 5e-2, 3e9},
};
enum { RUNGS = sizeof policy_rungs / sizeof policy_rungs[0] };

#define BYTES_PER_TOKEN 131072.0 /* Llama-3.1-8B in 16 bits */

static const double tier_bandwidth[TIERS] = {1.5e12, 25e9, 3e9};
static const double tier_seconds[TIERS] = {2e-6, 1e-5, 1e-4};
static const double tier_share[TIERS] = {0.01, 0.05, 0.2}; /* of all raw bytes */

static uint64_t draw(uint64_t *state)
{
    return lab_mix(*state += UINT64_C(0x9E3779B97F4A7C15));
}

/* Between 0 and 1; the state is any number. */
static double policy_unit(uint64_t *state)
{
    return ((double)(draw(state) >> 11) + 0.5) * 0x1p-53;
}

static double draw_normal(uint64_t *state)
{
    double radius = sqrt(-2.0 * log(policy_unit(state)));
    return radius * cos(6.283185307179586 * policy_unit(state));
}

/* The token counts that instances draw. */
#define POLICY_SIZES 64u

static uint32_t policy_size_tokens(uint32_t size)
{
    /* Nine octaves from 256 tokens, seven steps each. */
    return (uint32_t)(256.0 * exp2((double)size * 9.0 / (POLICY_SIZES - 1)));
}

/* Seconds to prefill n tokens of Llama-3.1-8B on an A100 at 156 TFLOP/s, by the FLOP counts
 * that prefill.h states. */
static double prefill_seconds(double n)
{
    return (26.0 * 32.0 * 4096.0 * 4096.0 * n + 2.0 * 32.0 * 4096.0 * n * n) / 156e12;
}

static void policy_instance_free(policy_instance *instance)
{
    free(instance->rate);
    free(instance->recompute);
    free(instance->sensitivity);
    free(instance->tokens);
}

static kvt_status policy_instance_draw(uint32_t entries, uint32_t options, uint32_t tiers,
                                       uint64_t seed, policy_instance *out)
{
    memset(out, 0, sizeof *out);
    out->entries = entries;
    out->options = options;
    out->tiers = tiers;
    out->seed = seed;
    out->alpha_seconds = 10.0;
    out->rate = malloc(entries * sizeof *out->rate);
    out->recompute = malloc(entries * sizeof *out->recompute);
    out->sensitivity = malloc(entries * sizeof *out->sensitivity);
    out->tokens = malloc(entries * sizeof *out->tokens);
    if (out->rate == NULL || out->recompute == NULL || out->sensitivity == NULL ||
        out->tokens == NULL) {
        policy_instance_free(out);
        return KVT_E_MEMORY;
    }
    uint64_t state = seed;
    double bytes = 0.0, sum = 0.0;
    for (uint32_t i = 0; i < entries; i++) {
        double size = (double)POLICY_SIZES * (0.45 + 0.16 * draw_normal(&state));
        if (size < 0.0) size = 0.0;
        if (size > POLICY_SIZES - 1) size = POLICY_SIZES - 1;
        out->tokens[i] = policy_size_tokens((uint32_t)size);
        out->recompute[i] = prefill_seconds((double)out->tokens[i]);
        out->sensitivity[i] = exp(0.7 * draw_normal(&state));
        /* Rank by the entry's number: sizes are drawn apart from it. */
        out->rate[i] = pow((double)(i + 1), -0.9);
        sum += out->rate[i];
        bytes += BYTES_PER_TOKEN * out->tokens[i];
    }
    for (uint32_t i = 0; i < entries; i++)
        out->rate[i] *= 1e-4 * (double)entries / sum;
    for (uint32_t tier = 0; tier < tiers; tier++) {
        int level = TIERS - 1 - (int)tier;
        out->capacity[level] = (uint64_t)(tier_share[level] * bytes);
    }
    return KVT_OK;
}

/* Fills the stored options of an entry, [0] being NONE; sizes and times, mean losses. */
static void policy_instance_options(const policy_instance *instance, uint32_t number,
                                    kvt_option *options)
{
    double source = BYTES_PER_TOKEN * instance->tokens[number];
    uint32_t rungs = instance->options / instance->tiers;
    memset(options, 0, (instance->options + 1) * sizeof *options);
    options[0].load_seconds = instance->recompute[number];
    for (uint32_t i = 0; i < instance->options; i++) {
        kvt_option *o = &options[i + 1];
        const policy_rung *rung = &policy_rungs[i % rungs];
        int level = TIERS - 1 - (int)(i / rungs);
        uint64_t bytes = (uint64_t)(source * rung->bits / 16.0 / 4096.0 + 1.0) * 4096;
        /* The rung's number stands for its variant. */
        o->variant = (kvt_variant){.codec = 4, .rate = i % rungs};
        o->bytes[level + 1] = o->read_bytes[level + 1] = bytes;
        o->load_seconds = tier_seconds[level] + (double)bytes / tier_bandwidth[level];
        o->decode_seconds = source / rung->decode_bytes_per_s;
        o->loss = rung->loss;
        /* Coarser rungs are made by dropping planes or from the variant before; see codec-trial. */
        for (uint32_t k = 0; k < instance->options; k++)
            if (k % rungs < i % rungs) o->made_from |= UINT32_C(1) << (k + 1);
    }
}

/* ---- static instances ---- */

typedef struct arrays {
    uint32_t *first;
    double *value;
    uint64_t *bytes;
    uint32_t *choice;
    knapsack_step *steps;
} arrays;

static void arrays_free(arrays *a)
{
    free(a->first);
    free(a->value);
    free(a->bytes);
    free(a->choice);
    free(a->steps);
}

static kvt_status arrays_make(const policy_instance *instance, arrays *a)
{
    uint32_t n = instance->entries, m = instance->options;
    memset(a, 0, sizeof *a);
    a->first = malloc(((size_t)n + 1) * sizeof *a->first);
    a->value = malloc((size_t)n * m * sizeof *a->value);
    a->bytes = malloc((size_t)n * m * TIERS * sizeof *a->bytes);
    a->choice = malloc((size_t)n * sizeof *a->choice);
    a->steps = malloc((size_t)n * sizeof *a->steps);
    if (a->first == NULL || a->value == NULL || a->bytes == NULL || a->choice == NULL ||
        a->steps == NULL) {
        arrays_free(a);
        return KVT_E_MEMORY;
    }
    kvt_option options[KVT_OPTIONS_MAX];
    for (uint32_t i = 0; i < n; i++) {
        policy_instance_options(instance, i, options);
        a->first[i] = i * m;
        for (uint32_t o = 0; o < m; o++) {
            const kvt_option *option = &options[o + 1];
            double loss = fmin(1.0, instance->sensitivity[i] * option->loss);
            double cost =
                instance->alpha_seconds * loss + option->load_seconds + option->decode_seconds;
            size_t at = (size_t)i * m + o;
            a->value[at] = instance->rate[i] * (options[0].load_seconds - cost);
            memcpy(&a->bytes[at * TIERS], &option->bytes[1], TIERS * sizeof *a->bytes);
        }
    }
    a->first[n] = n * m;
    return KVT_OK;
}

/* Adds the row of a static instance, and tells its dual, which is that of all entries at the drawn
 * rates. */
static kvt_status policy_static_run(const policy_instance *instance, bench_report *report,
                                    double *dual_out)
{
    arrays a;
    kvt_status status = arrays_make(instance, &a);
    if (status != KVT_OK) return status;
    knapsack k = {
        .entries = instance->entries, .first = a.first, .value = a.value, .bytes = a.bytes};
    memcpy(k.capacity, instance->capacity, sizeof k.capacity);
    knapsack_result result;
    const double begin = base_clock_seconds();
    knapsack_solve(&k, a.choice, a.steps, &result);
    const double solve_s = base_clock_seconds() - begin;
    const double dual = result.dual;
    arrays_free(&a);
    bench_report_row(report, "rows",
                     json_pack("{s:s,s:I,s:I,s:I,s:I,s:f,s:f,s:f,s:f}", "case", "static", "n",
                               (json_int_t)instance->entries, "options",
                               (json_int_t)instance->options, "tiers", (json_int_t)instance->tiers,
                               "seed", (json_int_t)instance->seed, "primal", result.primal, "dual",
                               dual, "gap_solver", (dual - result.primal) / dual, "solve_s",
                               solve_s));
    *dual_out = dual;
    return KVT_OK;
}

/* ---- the engine at work ---- */

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
    config.alpha_seconds = instance->alpha_seconds;
    config.holes = KVT_HOLES_MIXED;
    config.entries_expected = instance->entries;
    config.ghosts_max = instance->entries; /* so that all that was seen is known */
    config.allocator = (kvt_allocator){&run->memory, counted_resize};
    for (int level = 0; level < TIERS; level++)
        config.tiers[level + 1].capacity_bytes = instance->capacity[level];
    kvt_status status = kvt_policy_open(&config, &run->policy, message, message_size);
    if (status == KVT_OK) policy_try_half_life(run->policy, HALF_LIFE_S);
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

/* Adds NAME_ns_p50 and NAME_ns_p99. */
static json_t *live_with_times(json_t *row, const char *name, uint32_t *samples, uint64_t count)
{
    char p50[40], p99[40];
    (void)snprintf(p50, sizeof p50, "%s_ns_p50", name);
    (void)snprintf(p99, sizeof p99, "%s_ns_p99", name);
    qsort(samples, count, sizeof *samples, live_compare);
    const uint32_t middle = count > 0 ? samples[count / 2] : 0;
    const uint32_t high = count > 0 ? samples[count * 99 / 100] : 0;
    json_object_update_new(row,
                           json_pack("{s:I, s:I}", p50, (json_int_t)middle, p99, (json_int_t)high));
    return row;
}

/* Seconds saved per second by the present placement at the drawn rates. */
static double live_worth(const live *run)
{
    const policy_instance *instance = run->instance;
    kvt_option options[KVT_OPTIONS_MAX];
    double worth = 0.0;
    for (uint32_t i = 0; i < instance->entries; i++) {
        uint8_t option = kvt_policy_option_get(run->policy, i + UINT64_C(1));
        if (option == KVT_OPTION_NONE) continue;
        policy_instance_options(instance, i, options);
        double loss = fmin(1.0, instance->sensitivity[i] * options[option].loss);
        double cost = options[option].load_seconds + options[option].decode_seconds +
                      instance->alpha_seconds * loss;
        worth += instance->rate[i] * (instance->recompute[i] - cost);
    }
    return worth;
}

/* Ten calls an entry, of which those of the last fifth are timed. */
static kvt_status live_work(live *run)
{
    const uint32_t n = run->instance->entries;
    const uint64_t calls = (uint64_t)CALLS_PER_ENTRY * n, tick = n / 512 + 1;
    const double total = run->upto[n - 1];
    kvt_status status = KVT_OK;
    for (uint64_t i = 0; status == KVT_OK && i < calls; i++) {
        run->now_ns += (uint64_t)(-log(policy_unit(&run->state)) / total * 1e9) + 1;
        status = live_call(run, i >= calls - 2 * (uint64_t)n);
        if (status != KVT_OK || i % tick != 0) continue;
        status = kvt_policy_tick(run->policy, run->now_ns, LIVE_MOVES, UINT64_MAX, &run->plan);
        if (status == KVT_OK) status = live_carry_out(run);
    }
    return status;
}

static json_t *live_row(live *run, double dual_true, const dual_bound *bound, double solve_s,
                        double solve_cpu_s)
{
    const policy_instance *instance = run->instance;
    kvt_policy_stats stats;
    kvt_policy_stats_get(run->policy, &stats);
    json_t *row = json_pack(
        "{s:s,s:I,s:I,s:I,s:I,s:f,s:f,s:f,s:f,s:o,s:f,s:f,s:f,s:I,s:I,s:I,s:I,s:I}", "case", "live",
        "n", (json_int_t)instance->entries, "options", (json_int_t)instance->options, "tiers",
        (json_int_t)instance->tiers, "seed", (json_int_t)instance->seed, "primal", bound->primal,
        "dual", bound->dual, "gap_solver", bound->gap_solver, "gap_counters", bound->gap_counters,
        "gap_foresight", bench_number((dual_true - live_worth(run)) / dual_true), "solve_s",
        solve_s, "dual_solve_s", solve_s, "dual_cpu_s", solve_cpu_s, "stored",
        (json_int_t)stats.entries, "known", (json_int_t)bound->entries, "decisions",
        (json_int_t)run->decisions, "calls",
        (json_int_t)((uint64_t)CALLS_PER_ENTRY * instance->entries), "moves",
        (json_int_t)run->moves);
    row = live_with_times(row, "decision", run->decision_ns, run->decisions);
    row = live_with_times(row, "room_decision", run->room_ns, run->rooms);
    return live_with_times(row, "access", run->access_ns, run->accesses);
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

/* Adds the row of the engine at work on the instance. dual_true: the static instance's; NAN when it
 * was not solved. */
static kvt_status policy_live_run(const policy_instance *instance, double dual_true,
                                  bench_report *report)
{
    const uint32_t n = instance->entries;
    double sum = 0.0, shared_bytes = 0.0, own_bytes = 0.0;
    json_t *row = NULL;
    live *run = calloc(1, sizeof *run);
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
        run->access_ns == NULL)
        goto out;
    for (uint32_t i = 0; i < n; i++)
        run->upto[i] = sum += instance->rate[i];
    status = live_open(run, report->message, BENCH_MESSAGE_BYTES);
    if (status == KVT_OK) status = live_work(run);
    dual_bound bound;
    const double begin = base_clock_seconds(), cpu_begin = base_cpu_seconds();
    if (status == KVT_OK) status = dual_solve(run->policy, run->now_ns, NULL, &bound);
    const double solve_cpu_s = base_cpu_seconds() - cpu_begin;
    const double solve_s = base_clock_seconds() - begin;
    if (status == KVT_OK) row = live_row(run, dual_true, &bound, solve_s, solve_cpu_s);
    kvt_policy_close(run->policy);
    if (status == KVT_OK) status = live_weigh(instance, false, &shared_bytes);
    if (status == KVT_OK) status = live_weigh(instance, true, &own_bytes);
    json_object_set_new(row, "bytes_per_entry", json_real(shared_bytes));
    json_object_set_new(row, "own_bytes_per_entry", json_real(own_bytes));
    if (status == KVT_OK)
        bench_report_row(report, "rows", row);
    else
        json_decref(row);
out:
    free(run->upto);
    free(run->decision_ns);
    free(run->room_ns);
    free(run->access_ns);
    free(run);
    return status;
}

/* ---- the order of work ---- */

/* An instance of each number of tiers with eight options in each; the static one first, then the
 * engine on the same one. done and share: of all instances, those before these, and these. */
static kvt_status policy_measure(const bench_options *options, bench_report *report,
                                 uint32_t entries, uint64_t seed, double done, double share)
{
    kvt_status status = KVT_OK;
    for (uint32_t part = 0; part < 6 && status == KVT_OK; part += 2) {
        const uint32_t tiers = part / 2 + 1;
        policy_instance instance;
        double dual = NAN;
        char what[64];
        (void)snprintf(what, sizeof what, "%u entries, %u tiers", entries, tiers);
        if (!bench_tell(options, done + share * part / 6, 1, what)) return KVT_E_CANCELLED;
        status = policy_instance_draw(entries, tiers * RUNGS, tiers, seed, &instance);
        if (status != KVT_OK) return status;
        /* The arrays of a static instance take 32 bytes an option. */
        if (entries <= STATIC_MOST) status = policy_static_run(&instance, report, &dual);
        if (status == KVT_OK && !bench_tell(options, done + share * (part + 1) / 6, 1, what))
            status = KVT_E_CANCELLED;
        if (status == KVT_OK) status = policy_live_run(&instance, dual, report);
        policy_instance_free(&instance);
    }
    return status;
}

static kvt_status policy_run(const bench_options *options, bench_report *report)
{
    static const uint32_t sizes[] = {1000, 100000, 1000000};
    const bench_policy_options *own = options->own;
    const uint32_t count = own->entries != 0 || options->quick ? 1 : 3;
    uint32_t seeds = own->seeds != 0 ? own->seeds : 3;
    if (options->quick) seeds = 1;
    if (seeds > SEEDS_MOST) seeds = SEEDS_MOST;
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; i < count && status == KVT_OK; i++) {
        const uint32_t entries = own->entries != 0 ? own->entries : sizes[i];
        /* One seed is enough of what takes longest. */
        const uint32_t here = entries >= 1000000 ? 1 : seeds;
        for (uint64_t seed = 1; seed <= here && status == KVT_OK; seed++)
            status = policy_measure(options, report, entries, seed,
                                    (i + (double)(seed - 1) / here) / count,
                                    1.0 / ((double)here * count));
    }
    return status;
}

/* A decision is an admission into full tiers that gave moves, and one
 * that makes room first has a row of its own. Gaps are over what is at stake: of the solver, the
 * dual from the best placement found for what is known; of the counters, the engine's state from it
 * at its own rates, over all known entries; of foresight, the same at the drawn rates. */
const bench_case bench_policy_case = {
    .name = "policy",
    .schema = "kvterrace-bench-policy-1",
    .tables = (const document_table[]){{"rows:static", "n tiers options seed gap_solver solve_s"},
                                       {"rows:live",
                                        "n tiers seed stored known gap_solver gap_counters "
                                        "gap_foresight dual_solve_s dual_cpu_s decision_ns_p50 "
                                        "decision_ns_p99 room_decision_ns_p50 room_decision_ns_p99 "
                                        "access_ns_p50 access_ns_p99 bytes_per_entry "
                                        "own_bytes_per_entry"},
                                       {0}},
    .run = policy_run,
};
