/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_policy.c - kvterrace bench policy: static instances, the engine at work, and the report.
 */
#include "bench_policy.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROWS_MAX    64u
#define STATIC_MOST 2000000u

typedef struct policy_report {
    const bench_policy_options *options;
    policy_static_row fixed[ROWS_MAX];
    policy_live_row live[ROWS_MAX];
    uint32_t fixed_count, live_count;
    double done, share; /* of all instances: those before this one, and this one */
} policy_report;

/* Says what comes next, `part` of the six of an instance. KVT_E_CANCELLED: the bench is to
 * end. */
static kvt_status report_tell(const policy_report *report, const char *kind, uint32_t entries,
                              uint32_t tiers, uint32_t part)
{
    const bench_policy_options *options = report->options;
    char what[64];
    if (options->progress == NULL) return KVT_OK;
    (void)snprintf(what, sizeof what, "%s, %u entries, %u %s", kind, entries, tiers,
                   tiers == 1 ? "tier" : "tiers");
    const double done = report->done + report->share * part / 6;
    return options->progress(options->progress_context, done, what) ? KVT_OK : KVT_E_CANCELLED;
}

/* Every number of tiers with eight options in each; the static instance first, then the engine on
 * the same one. */
static kvt_status report_measure(policy_report *report, uint32_t entries, uint64_t seed,
                                 char *message, size_t message_size)
{
    for (uint32_t tiers = 1; tiers <= 3; tiers++) {
        policy_instance instance;
        kvt_status status =
            policy_instance_draw(entries, tiers * policy_rung_count, tiers, seed, &instance);
        if (status != KVT_OK) return status;
        double dual_true = NAN;
        /* The arrays of a static instance take 32 bytes an option. */
        if (entries <= STATIC_MOST) {
            status = report_tell(report, "static", entries, tiers, 2 * tiers - 2);
            if (status == KVT_OK)
                status = policy_static_run(&instance, &report->fixed[report->fixed_count]);
            if (status == KVT_OK) dual_true = report->fixed[report->fixed_count++].dual;
        }
        if (status == KVT_OK) status = report_tell(report, "live", entries, tiers, 2 * tiers - 1);
        if (status == KVT_OK) {
            status = policy_live_run(&instance, dual_true, &report->live[report->live_count],
                                     message, message_size);
        }
        if (status == KVT_OK) report->live_count++;
        policy_instance_free(&instance);
        if (status != KVT_OK) return status;
    }
    return KVT_OK;
}

static json_t *report_static_json(const policy_static_row *row)
{
    return json_pack("{s:s,s:I,s:I,s:I,s:I,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:s}", "case", "static", "n",
                     (json_int_t)row->entries, "options", (json_int_t)row->options, "tiers",
                     (json_int_t)row->tiers, "seed", (json_int_t)row->seed, "primal", row->primal,
                     "dual", row->dual, "gap_solver", row->gap_solver, "solve_s", row->solve_s,
                     "adaptcache_primal", row->adaptcache, "uniform_primal", row->uniform,
                     "lru_primal", row->lru, "uniform_variant",
                     row->uniform_rung != NULL ? row->uniform_rung : "none");
}

static json_t *report_live_json(const policy_live_row *row)
{
    return json_pack(
        "{s:s,s:I,s:I,s:I,s:I,s:f,s:f,s:f,s:f,s:o,s:f,s:f,s:f,s:I,s:I,s:I,s:I,s:I,s:I,s:f,s:f,s:I,"
        "s:I,"
        "s:I,"
        "s:I,s:I}",
        "case", "live", "n", (json_int_t)row->entries, "options", (json_int_t)row->options, "tiers",
        (json_int_t)row->tiers, "seed", (json_int_t)row->seed, "primal", row->primal, "dual",
        row->dual, "gap_solver", row->gap_solver, "gap_counters", row->gap_counters,
        "gap_foresight", isnan(row->gap_foresight) ? json_null() : json_real(row->gap_foresight),
        "solve_s", row->solve_s, "dual_solve_s", row->solve_s, "dual_cpu_s", row->solve_cpu_s,
        "decision_ns_p50", (json_int_t)row->decision_ns_p50, "decision_ns_p99",
        (json_int_t)row->decision_ns_p99, "room_decision_ns_p50", (json_int_t)row->room_ns_p50,
        "room_decision_ns_p99", (json_int_t)row->room_ns_p99, "access_ns_p50",
        (json_int_t)row->access_ns_p50, "access_ns_p99", (json_int_t)row->access_ns_p99,
        "bytes_per_entry", row->bytes_per_entry, "own_bytes_per_entry", row->own_bytes_per_entry,
        "stored", (json_int_t)row->stored, "known", (json_int_t)row->known, "decisions",
        (json_int_t)row->decisions, "calls", (json_int_t)row->calls, "moves",
        (json_int_t)row->moves);
}

static kvt_status report_json(const policy_report *report)
{
    json_t *rows = json_array();
    for (uint32_t i = 0; i < report->fixed_count; i++)
        json_array_append_new(rows, report_static_json(&report->fixed[i]));
    for (uint32_t i = 0; i < report->live_count; i++)
        json_array_append_new(rows, report_live_json(&report->live[i]));
    json_t *document = json_pack("{s:s,s:o}", "schema", "kvterrace-bench-policy-1", "rows", rows);
    if (document == NULL) return KVT_E_MEMORY;
    int failed =
        json_dumpf(document, report->options->out, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    json_decref(document);
    if (failed != 0 || fputc('\n', report->options->out) == EOF) return KVT_E_IO;
    return KVT_OK;
}

static kvt_status report_text(const policy_report *report)
{
    FILE *out = report->options->out;
    fprintf(
        out,
        "static instances, share of the dual bound; solver: its distance from the best placement\n"
        "%9s %5s %8s %5s %10s %8s %11s %8s %8s %s\n",
        "n", "tiers", "options", "seed", "solver", "solve s", "AdaptCache", "uniform", "LRU",
        "(best uniform)");
    for (uint32_t i = 0; i < report->fixed_count; i++) {
        const policy_static_row *row = &report->fixed[i];
        fprintf(out, "%9u %5u %8u %5llu %10.2e %8.2f %11.4f %8.4f %8.4f (%s)\n", row->entries,
                row->tiers, row->options, (unsigned long long)row->seed, row->gap_solver,
                row->solve_s, row->adaptcache / row->dual, row->uniform / row->dual,
                row->lru / row->dual, row->uniform_rung != NULL ? row->uniform_rung : "none");
    }
    fprintf(
        out,
        "\nthe engine after ten calls an entry, rates as it predicts them; decision: an admission "
        "into\nfull tiers that gave moves, `room` those that made room first; nanoseconds. Gaps "
        "over "
        "what is at stake:\nsolver, the dual from the best placement found for what is known; "
        "counters, the engine's state\nfrom it at its own rates, over all known entries; "
        "foresight, the same at the drawn rates; cpu s: what the dual took of one "
        "processor;\nbytes: "
        "an entry's memory with a ladder's options; own: with options of its own, as in a store\n"
        "%9s %5s %5s %9s %9s %9s %9s %9s %8s %8s %13s %13s %13s %8s %8s\n",
        "n", "tiers", "seed", "stored", "known", "solver", "counters", "foresight", "dual s",
        "cpu s", "decision", "room", "access", "bytes", "own");
    for (uint32_t i = 0; i < report->live_count; i++) {
        const policy_live_row *row = &report->live[i];
        fprintf(out,
                "%9u %5u %5llu %9llu %9llu %9.2e %9.2e %9.2e %8.3f %8.3f %6llu %6llu %6llu %6llu "
                "%6llu %6llu "
                "%8.1f %8.1f\n",
                row->entries, row->tiers, (unsigned long long)row->seed,
                (unsigned long long)row->stored, (unsigned long long)row->known, row->gap_solver,
                row->gap_counters, row->gap_foresight, row->solve_s, row->solve_cpu_s,
                (unsigned long long)row->decision_ns_p50, (unsigned long long)row->decision_ns_p99,
                (unsigned long long)row->room_ns_p50, (unsigned long long)row->room_ns_p99,
                (unsigned long long)row->access_ns_p50, (unsigned long long)row->access_ns_p99,
                row->bytes_per_entry, row->own_bytes_per_entry);
    }
    return ferror(out) ? KVT_E_IO : KVT_OK;
}

/* How many sizes are measured. */
static double policy_sizes(const bench_policy_options *options)
{
    return options->entries != 0 || options->quick ? 1 : 3;
}

kvt_status bench_policy_run(const bench_policy_options *options, char *message, size_t message_size)
{
    static const uint32_t sizes[] = {1000, 100000, 1000000};
    static policy_report report;
    memset(&report, 0, sizeof report);
    report.options = options;
    snprintf(message, message_size, "out of memory");
    uint32_t seeds = options->seeds != 0 ? options->seeds : 3;
    uint32_t most = ROWS_MAX / 9;
    if (options->quick) seeds = 1;
    if (seeds > most) seeds = most;
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; i < 3 && status == KVT_OK; i++) {
        uint32_t entries = options->entries != 0 ? options->entries : sizes[i];
        if (i > 0 && (options->entries != 0 || options->quick)) break;
        /* One seed is enough of what takes longest. */
        uint32_t here = entries >= 1000000 ? 1 : seeds;
        for (uint64_t seed = 1; seed <= here && status == KVT_OK; seed++) {
            report.share = 1 / (here * policy_sizes(options));
            report.done = (i + (double)(seed - 1) / here) / policy_sizes(options);
            status = report_measure(&report, entries, seed, message, message_size);
        }
    }
    if (options->progress != NULL) (void)options->progress(options->progress_context, 1, NULL);
    const bool cancelled = status == KVT_E_CANCELLED;
    if (status != KVT_OK && !(cancelled && report.fixed_count + report.live_count > 0))
        return status;
    kvt_status printed = options->json ? report_json(&report) : report_text(&report);
    return printed == KVT_OK ? status : printed;
}

/* ---- instances, drawn from a seed ---- */

/*
 * An instance has contexts of 256 to 128 K tokens, Zipf popularity, lognormal sensitivity and the
 * ladder of the codec trial.
 */

/* Bits and relative loss as the codec trial (profiles/ladder-codec-trial.json) measured them, its
 * KL mapped to loss by one factor; decode rates as this library reaches them on one core. */
const policy_rung policy_rungs[] = {
    {"raw", 16.0, 0.0, 1e13},        {"lossless", 10.6, 0.0, 3e9},    {"planes 8", 8.5, 1e-5, 8e9},
    {"planes 6", 6.5, 2e-4, 9e9},    {"planes 6/4", 5.5, 2e-3, 1e10}, {"planes 4", 4.5, 3e-3, 1e10},
    {"entropy 3.6", 3.6, 6e-3, 3e9}, {"entropy 2.6", 2.6, 5e-2, 3e9},
};
const uint32_t policy_rung_count = sizeof policy_rungs / sizeof policy_rungs[0];

#define BYTES_PER_TOKEN 131072.0 /* Llama-3.1-8B in 16 bits */

static const double tier_bandwidth[TIERS] = {1.5e12, 25e9, 3e9};
static const double tier_seconds[TIERS] = {2e-6, 1e-5, 1e-4};
static const double tier_share[TIERS] = {0.01, 0.05, 0.2}; /* of all raw bytes */

static uint64_t draw(uint64_t *state)
{
    return number_mix(*state += UINT64_C(0x9E3779B97F4A7C15));
}

double policy_unit(uint64_t *state)
{
    return ((double)(draw(state) >> 11) + 0.5) * 0x1p-53;
}

static double draw_normal(uint64_t *state)
{
    double radius = sqrt(-2.0 * log(policy_unit(state)));
    return radius * cos(6.283185307179586 * policy_unit(state));
}

uint32_t policy_size_tokens(uint32_t size)
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

kvt_status policy_instance_draw(uint32_t entries, uint32_t options, uint32_t tiers, uint64_t seed,
                                policy_instance *out)
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

void policy_instance_free(policy_instance *instance)
{
    free(instance->rate);
    free(instance->recompute);
    free(instance->sensitivity);
    free(instance->tokens);
}

void policy_instance_options(const policy_instance *instance, uint32_t number, kvt_option *options)
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
