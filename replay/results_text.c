/* SPDX-License-Identifier: Apache-2.0 */
/*
 * results_text.c - the tables that a person reads at once; forms, bounds, hosts, hints and reuse
 * are on the page that kvterrace report makes of the JSON document. One thread.
 */
#include "replay.h"
#include "results.h"

#include <math.h>
#include <string.h>

const char *results_format_seconds(double seconds, char *text)
{
    if (!isfinite(seconds)) {
        snprintf(text, RESULTS_TEXT_BYTES, "-");
    } else if (seconds == 0.0) {
        snprintf(text, RESULTS_TEXT_BYTES, "0");
    } else if (fabs(seconds) >= 100.0) {
        snprintf(text, RESULTS_TEXT_BYTES, "%.0f s", seconds);
    } else if (fabs(seconds) >= 1.0) {
        snprintf(text, RESULTS_TEXT_BYTES, "%.*f s", seconds >= 10.0 ? 1 : 2, seconds);
    } else if (fabs(seconds) >= 1e-3) {
        double ms = seconds * 1e3;
        snprintf(text, RESULTS_TEXT_BYTES, "%.*f ms", ms >= 100.0 ? 0 : ms >= 10.0 ? 1 : 2, ms);
    } else {
        snprintf(text, RESULTS_TEXT_BYTES, "%.0f us", seconds * 1e6);
    }
    return text;
}

const char *results_format_bytes(double bytes, char *text)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
    size_t unit = 0;
    while (bytes >= 1000.0 && unit + 1 < sizeof units / sizeof units[0]) {
        bytes /= 1000.0;
        unit++;
    }
    int digits = bytes >= 100.0 || unit == 0 ? 0 : bytes >= 10.0 ? 1 : 2;
    if (bytes == 0.0) {
        snprintf(text, RESULTS_TEXT_BYTES, "0");
    } else {
        snprintf(text, RESULTS_TEXT_BYTES, "%.*f %s", digits, bytes, units[unit]);
    }
    return text;
}

const char *results_format_route(const replay_options *options, char *text)
{
    static const char *const names[] = {"sticky", "random", "spill", "least_loaded"};
    if (options->route == REPLAY_ROUTE_SPILL)
        snprintf(text, RESULTS_TEXT_BYTES, "spill:%g", options->spill_share);
    else
        snprintf(text, RESULTS_TEXT_BYTES, "%s", names[options->route]);
    return text;
}

/* Notes how a workload's arrivals came about, which a reader must know. */
static void text_workload_notes(const replay_workload *workload, FILE *file)
{
    char text[RESULTS_TEXT_BYTES];
    if (workload->grid_ns > 0)
        fprintf(file, "arrivals on a grid of %s were spread inside their step\n",
                results_format_seconds((double)workload->grid_ns * 1e-9, text));
    if (workload->conversations_per_s > 0.0)
        fprintf(file,
                "conversations have no common clock: their starts were drawn, %g per second "
                "(workload.rate)\n",
                workload->conversations_per_s);
}

static void text_percent(double ratio, char *text)
{
    snprintf(text, RESULTS_TEXT_BYTES, ratio > 0.0 ? "%.1f %%" : "0", ratio * 100.0);
}

void results_describe(const replay_options *options, char *text, size_t size)
{
    size_t used = 0;
    char bytes[3][RESULTS_TEXT_BYTES], name[64];
    text[0] = '\0';
#define ADD(...)                                                                                   \
    do {                                                                                           \
        if (used < size) used += (size_t)snprintf(text + used, size - used, __VA_ARGS__);          \
    } while (0)
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
        const replay_tier *model = &options->tiers[tier];
        if (model->capacity_bytes == 0) continue;
        ADD("%s %s reading %s/s, writing %s/s%s%s%s; ", kvt_tier_name(tier),
            results_format_bytes((double)model->capacity_bytes, bytes[0]),
            results_format_bytes(model->read.bytes_per_s, bytes[1]),
            results_format_bytes(model->write.bytes_per_s, bytes[2]),
            model->source[0] != '\0' ? " (" : "", model->source,
            model->source[0] != '\0' ? ")" : "");
    }
    for (uint32_t i = 0; i < options->model.variant_count; i++) {
        kvt_variant_format(options->model.variants[i].variant, name, sizeof name);
        ADD("%s%s", i > 0 ? ", " : "variants ", name);
    }
    if (options->ladder[0] == '\0')
        ADD(", all exact");
    else if (options->loss_limit < 1.0)
        ADD(", no loss above %.4g", options->loss_limit);
    else
        ADD(", no limit of loss");
#undef ADD
}

static void text_head(const replay_report *report, FILE *file)
{
    const replay_workload *workload = report->workload;
    const replay_options *options = report->options;
    char text[RESULTS_TEXT_BYTES];
    double ideal = workload->block_refs > 0
                       ? (double)workload->repeated_refs / (double)workload->block_refs
                       : 0.0;
    fprintf(file, "%s: %llu requests, %llu blocks of %u tokens (%llu distinct), seed %llu\n",
            workload->name, (unsigned long long)workload->request_count,
            (unsigned long long)workload->block_refs, workload->block_tokens,
            (unsigned long long)workload->distinct_blocks, (unsigned long long)options->seed);
    double footprint = (double)workload->distinct_blocks * (double)workload->block_tokens *
                       (double)options->bytes_per_token;
    fprintf(file, "footprint %s; an unlimited cache hits %.1f %% of the blocks\n",
            results_format_bytes(footprint, text), ideal * 100.0);
    fprintf(file, "%u servers, prefill %s, %s", options->servers, options->prefill_name,
            options->overlap ? "loads overlap the prefill" : "loads precede the prefill");
    if (options->overlap && options->layers > 0) fprintf(file, " in %u layers", options->layers);
    if (options->prefetch) fprintf(file, ", waiting requests prefetch");
    fprintf(file, "\n");
    char machine[RESULTS_MACHINE_BYTES];
    results_describe(options, machine, sizeof machine);
    if (report->store == NULL) fprintf(file, "simulated: %s\n", machine);
    if (replay_has_hosts(options)) {
        fprintf(file, "%u hosts of that kind, route %s, ", options->hosts,
                results_format_route(options, text));
        fprintf(file, "a shared tier of %s\n",
                results_format_bytes((double)options->remote.capacity_bytes, text));
    }
    if (report->result_count > 0 && strcmp(report->results[0].mode, "live") == 0) {
        fprintf(file,
                "live at scale 1/%.4g, in bytes of this machine:", 1.0 / report->results[0].scale);
        for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
            uint64_t capacity = report->results[0].capacity_bytes[tier];
            if (capacity == 0) continue;
            fprintf(file, " %s %s%s", kvt_tier_name(tier),
                    results_format_bytes((double)capacity, text),
                    report->results[0].emulated[tier] ? " (emulated)" : "");
        }
        fprintf(file, "\n");
    }
    text_workload_notes(workload, file);
}

static void text_times(const replay_report *report, FILE *file)
{
    bool live = report->result_count > 0 && strcmp(report->results[0].mode, "live") == 0;
    bool has_p99 = report->workload->request_count >= RESULTS_P99_REQUESTS;
    fprintf(file, "\n%-12s %5s %10s %10s %10s %10s %10s %10s %10s%s %6s %6s\n", "policy", "seed",
            "TTFT mean", "p50", "p90", "p99", "wait", "service", "blocked",
            live ? "        put" : "", "rho", "peak");
    for (size_t i = 0; i < report->result_count; i++) {
        const replay_result *result = &report->results[i];
        const replay_times *times = &result->times;
        bool stable = results_has_mean(result);
        double values[8] = {stable ? times->ttft_mean : NAN,
                            times->ttft_p50,
                            times->ttft_p90,
                            has_p99 ? times->ttft_p99 : NAN,
                            stable ? times->wait_mean : NAN,
                            times->service_mean,
                            times->blocked_mean,
                            result->put_mean_s};
        char text[RESULTS_TEXT_BYTES];
        fprintf(file, "%-12s %5llu", result->policy, (unsigned long long)result->seed);
        for (int j = 0; j < (live ? 8 : 7); j++) {
            fprintf(file, " %10s", results_format_seconds(values[j], text));
        }
        fprintf(file, " %6.3f %6.3f\n", result->rho, result->rho_peak);
    }
}

static void text_hits(const replay_report *report, FILE *file)
{
    fprintf(file, "\n%-12s %5s %10s %10s %8s %8s %8s %8s %10s %10s %8s\n", "policy", "seed",
            "block hits", "token hits", "in hbm", "in dram", "in ssd", "loaded", "read", "written",
            "quality");
    for (size_t i = 0; i < report->result_count; i++) {
        const replay_result *result = &report->results[i];
        char hits[6][RESULTS_TEXT_BYTES], read[RESULTS_TEXT_BYTES], written[RESULTS_TEXT_BYTES];
        double bytes_read = 0.0, bytes_written = 0.0;
        text_percent(result->hit_block_ratio[0], hits[0]);
        text_percent(result->hit_token_ratio[0], hits[1]);
        text_percent(result->used_token_ratio, hits[5]);
        for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
            text_percent(result->hit_token_ratio[tier], hits[1 + tier]);
            bytes_read += (double)result->bytes_read[tier];
            bytes_written += (double)result->bytes_written[tier];
        }
        fprintf(file, "%-12s %5llu %10s %10s %8s %8s %8s %8s %10s %10s %8.4f\n", result->policy,
                (unsigned long long)result->seed, hits[0], hits[1], hits[2], hits[3], hits[4],
                hits[5], results_format_bytes(bytes_read, read),
                results_format_bytes(bytes_written, written), result->quality_mean);
    }
}

/* Prints the shares of blocks that several hosts found, and the copies that they wrote. */
static void text_hosts(const replay_report *report, FILE *file)
{
    for (size_t i = 0; i < report->result_count; i++) {
        const replay_result *result = &report->results[i];
        const replay_hosts *hosts = &result->hosts;
        if (hosts->count == 0) continue;
        fprintf(file,
                "%s%s, seed %llu: of the blocks %.1f %% found on their host and %.1f %% in the "
                "shared tier, %.3f written there per block used\n",
                i == 0 ? "\n" : "", result->policy, (unsigned long long)result->seed,
                100.0 * hosts->local_ratio, 100.0 * hosts->remote_ratio, hosts->written_per_use);
    }
}

static void text_moves(const replay_report *report, FILE *file)
{
    fprintf(file, "\n%-12s %5s %10s %10s %10s %10s %10s %9s %9s  busy puts\n", "policy", "seed",
            "moves", "aborted", "promoted", "demoted", "evicted", "decision", "p99");
    for (size_t i = 0; i < report->result_count; i++) {
        const replay_result *result = &report->results[i];
        fprintf(file, "%-12s %5llu %10llu %10llu %10llu %10llu %10llu %6llu ns %6llu ns %10llu\n",
                result->policy, (unsigned long long)result->seed,
                (unsigned long long)result->moves_committed,
                (unsigned long long)result->moves_aborted, (unsigned long long)result->promotions,
                (unsigned long long)result->demotions, (unsigned long long)result->evictions,
                (unsigned long long)result->decision_ns_p50,
                (unsigned long long)result->decision_ns_p99, (unsigned long long)result->puts_busy);
    }
    for (size_t i = 0; i < report->result_count; i++) {
        const replay_result *result = &report->results[i];
        if (result->plan_log[0] == '\0') continue;
        fprintf(file, "%splan log of %s, seed %llu: %s\n", i == 0 ? "\n" : "", result->policy,
                (unsigned long long)result->seed, result->plan_log);
    }
}

static void text_live(const replay_report *report, FILE *file)
{
    for (size_t i = 0; i < report->result_count; i++) {
        const replay_result *result = &report->results[i];
        if (strcmp(result->mode, "live") != 0) continue;
        char wall[RESULTS_TEXT_BYTES];
        fprintf(file,
                "%s%-12s %s: %llu gets verified, %llu wrong; %llu moves committed, %llu "
                "aborted, plan log %s\n",
                i == 0 ? "\n" : "", result->policy, results_format_seconds(result->wall_s, wall),
                (unsigned long long)result->verified_gets, (unsigned long long)result->wrong_bytes,
                (unsigned long long)result->moves_committed,
                (unsigned long long)result->moves_aborted,
                result->moves_match ? "agrees" : "DIFFERS from the store's counters");
    }
}

/* ---- why single blocks are where they are ---- */

static void text_explained_block(const replay_explained *row, FILE *file)
{
    const kvt_explanation *why = &row->why;
    char variant[64], age[RESULTS_TEXT_BYTES], half_life[RESULTS_TEXT_BYTES];
    kvt_variant_format(why->options[why->current].option.variant, variant, sizeof variant);
    fprintf(file, "block %u: %s in %s, used %s ago", row->block, variant, kvt_tier_name(row->tier),
            results_format_seconds(why->last_access_age_seconds, age));
    if (why->accesses_per_s > 0.0) fprintf(file, ", %.2g uses/s expected", why->accesses_per_s);
    if (why->reuse_expert != NULL) {
        fprintf(file, "; reuse expert: %s, half-life %s, weight %.2f, %.0f %% of the rate",
                why->reuse_expert, results_format_seconds(why->reuse_half_life_seconds, half_life),
                why->reuse_weight, why->reuse_share * 100.0);
    }
    fprintf(file, ". %s\n", why->reason != NULL ? why->reason : "");
}

static void text_explained(const replay_report *report, FILE *file)
{
    for (size_t i = 0; i < report->result_count; i++) {
        const replay_result *result = &report->results[i];
        if (result->explained_count > 0)
            fprintf(file,
                    "\nstored blocks with the highest rates, or used last where %s predicts none, "
                    "seed %llu:\n",
                    result->policy, (unsigned long long)result->seed);
        for (uint32_t row = 0; row < result->explained_count; row++)
            text_explained_block(&result->explained[row], file);
    }
}

/* ---- the whole ---- */

kvt_status replay_print_text(const replay_report *report, FILE *file)
{
    bool unstable = false;
    text_head(report, file);
    text_times(report, file);
    text_hits(report, file);
    text_hosts(report, file);
    text_moves(report, file);
    text_explained(report, file);
    text_live(report, file);
    for (size_t i = 0; i < report->result_count; i++)
        unstable |= !results_has_mean(&report->results[i]);
    fprintf(file,
            "\nin hbm, dram, ssd: tokens found there, which add up to the token hits; "
            "loaded: what was worth loading of them\n"
            "variants, bounds, hosts, hints and reuse: --json, and the page of it that kvterrace "
            "report makes\n");
    if (unstable) {
        fprintf(file, "-: at a rho or peak rho (the busiest part of the span) >= 1 the queue grows "
                      "as long as that lasts; no mean exists\n");
    }
    if (report->options->note[0] != '\0') fprintf(file, "\n%s\n", report->options->note);
    return fflush(file) == 0 && !ferror(file) ? KVT_OK : KVT_E_IO;
}
