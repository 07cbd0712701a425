/* SPDX-License-Identifier: Apache-2.0 */
/*
 * results_text.c - the table that a person reads. One thread.
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

static size_t results_workload_notes(const replay_workload *workload,
                                     char notes[][RESULTS_NOTE_BYTES], size_t count)
{
    char text[RESULTS_TEXT_BYTES];
    size_t used = 0;
    if (workload->grid_ns > 0 && used < count) {
        snprintf(notes[used++], RESULTS_NOTE_BYTES,
                 "arrivals on a grid of %s were spread inside their step",
                 results_format_seconds((double)workload->grid_ns * 1e-9, text));
    }
    if (workload->conversations_per_s > 0.0 && used < count) {
        snprintf(notes[used++], RESULTS_NOTE_BYTES,
                 "conversations have no common clock: their starts were drawn, %g per second "
                 "(workload.rate)",
                 workload->conversations_per_s);
    }
    return used;
}

/* How soon blocks come back, by class. */
static void text_reuse(const replay_workload *workload, FILE *file)
{
    replay_reuse_row rows[REPLAY_REUSE_CLASSES];
    char half_life[RESULTS_TEXT_BYTES];
    if (replay_workload_reuse(workload, rows) != KVT_OK) return;
    for (uint32_t i = 0; i < REPLAY_REUSE_CLASSES; i++) {
        const kvt_reuse_class *found = &rows[i].found;
        if (found->uses == 0) continue;
        fprintf(file,
                "reuse, %s: half life %s, each use brings about %.2f; ln likelihood per use "
                "%.2f, at a constant rate %.2f\n",
                rows[i].name, results_format_seconds(found->half_life_seconds, half_life),
                found->branching, found->log_likelihood, found->log_likelihood_exponential);
    }
}

static void text_percent(double ratio, char *text)
{
    snprintf(text, RESULTS_TEXT_BYTES, ratio > 0.0 ? "%.1f %%" : "0", ratio * 100.0);
}

/* Hosts, routing, and the tier that they share. */
static void text_hosts_head(const replay_options *options, FILE *file)
{
    static const char *const publish[] = {"all", "second_use", "what leaves a host"};
    const replay_remote *remote = &options->remote;
    char route[RESULTS_TEXT_BYTES], text[RESULTS_TEXT_BYTES];
    if (!replay_has_hosts(options)) return;
    fprintf(file, "%u hosts of that kind, route %s%s", options->hosts,
            results_format_route(options, route),
            options->restart ? ", each starts anew once" : "");
    if (remote->capacity_bytes == 0) {
        fprintf(file, "; nothing is shared\n");
        return;
    }
    fprintf(file, "; shared %s", results_format_bytes((double)remote->capacity_bytes, text));
    fprintf(file, " on %u nodes of ", remote->nodes);
    fprintf(file, "%s/s", results_format_bytes((double)remote->node_bytes_per_s, text));
    fprintf(file, ", links of %s/s", results_format_bytes((double)remote->host_bytes_per_s, text));
    fprintf(file, ", published %s", publish[remote->publish]);
    if (remote->write_bytes_per_s > 0)
        fprintf(file, ", %s/s at most",
                results_format_bytes((double)remote->write_bytes_per_s, text));
    fprintf(file, "\n");
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
    text_hosts_head(options, file);
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
    char notes[3][RESULTS_NOTE_BYTES];
    size_t count = results_workload_notes(workload, notes, 3);
    for (size_t i = 0; i < count; i++)
        fprintf(file, "%s\n", notes[i]);
    text_reuse(workload, file);
}

static bool results_has_p99(const replay_report *report)
{
    return report->workload->request_count >= RESULTS_P99_REQUESTS;
}

static void text_times(const replay_report *report, FILE *file)
{
    bool live = report->result_count > 0 && strcmp(report->results[0].mode, "live") == 0;
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
                            results_has_p99(report) ? times->ttft_p99 : NAN,
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

/* Shares of blocks in a leading run, and how much went over the links. */
static void text_host_row(const char *name, const replay_host *host, FILE *file)
{
    char local[RESULTS_TEXT_BYTES], remote[RESULTS_TEXT_BYTES], found[RESULTS_TEXT_BYTES];
    char ttft[RESULTS_TEXT_BYTES], in[RESULTS_TEXT_BYTES], out[RESULTS_TEXT_BYTES];
    double refs = host->block_refs > 0 ? (double)host->block_refs : 1.0;
    text_percent((double)(host->local_blocks + host->remote_blocks) / refs, found);
    text_percent((double)host->local_blocks / refs, local);
    text_percent((double)host->remote_blocks / refs, remote);
    fprintf(file, "%-18s %9llu %10s %8s %8s %8s %9.3f %10s %10s\n", name,
            (unsigned long long)host->requests, results_format_seconds(host->ttft_mean, ttft),
            found, local, remote, (double)host->published_blocks / refs,
            results_format_bytes((double)host->fetched_bytes, in),
            results_format_bytes((double)host->published_bytes, out));
}

/* All hosts of each run, and each host of a single one. */
static void text_hosts(const replay_report *report, FILE *file)
{
    if (report->result_count == 0 || report->results[0].hosts.count == 0) return;
    fprintf(file, "\n%-18s %9s %10s %8s %8s %8s %9s %10s %10s\n", "hosts", "requests", "TTFT mean",
            "found", "local", "shared", "writes", "fetched", "published");
    for (size_t i = 0; i < report->result_count; i++) {
        const replay_hosts *hosts = &report->results[i].hosts;
        char name[48];
        snprintf(name, sizeof name, "%.12s, %llu", report->results[i].policy,
                 (unsigned long long)report->results[i].seed);
        text_host_row(name, &hosts->all, file);
        for (uint32_t h = 0; report->result_count == 1 && h < hosts->count; h++) {
            snprintf(name, sizeof name, "  host %u", h);
            text_host_row(name, &hosts->rows[h], file);
        }
    }
    const replay_hosts *last = &report->results[report->result_count - 1].hosts;
    fprintf(file,
            "found: blocks of the leading runs, in the host's own tiers and in the shared one; "
            "writes: published blocks per block of the requests\n"
            "of the last run: %llu probes; of %llu blocks without a copy %llu declined, %llu "
            "dropped; %llu computed anew that had one, %llu written twice; %llu evicted\n",
            (unsigned long long)last->probes, (unsigned long long)last->offered,
            (unsigned long long)last->declined, (unsigned long long)last->dropped,
            (unsigned long long)last->deduplicated, (unsigned long long)last->twice,
            (unsigned long long)last->evicted);
}

/* Blocks that were computed and not taken distort a comparison: then they have a column. */
static bool text_has_busy_puts(const replay_report *report)
{
    for (size_t i = 0; i < report->result_count; i++)
        if (report->results[i].puts_busy > 0) return true;
    return false;
}

/* What became of the hints, if any were given. */
static void text_hints(const replay_report *report, FILE *file)
{
    static const char *const kinds[KVT_HINT_KINDS] = {"retain", "next use", "demote",
                                                      "end of session"};
    for (size_t i = 0; i < report->result_count; i++) {
        const replay_result *result = &report->results[i];
        for (int kind = 0; kind < KVT_HINT_KINDS; kind++) {
            if (result->hints.given[kind] == 0) continue;
            fprintf(file, "%s, seed %llu, hints of %s: %llu came true, %llu failed, %llu open\n",
                    result->policy, (unsigned long long)result->seed, kinds[kind],
                    (unsigned long long)result->hints.came_true[kind],
                    (unsigned long long)result->hints.failed[kind],
                    (unsigned long long)result->hints.open[kind]);
        }
    }
}

/* What waiting requests asked for, if any did. */
static void text_prefetches(const replay_report *report, FILE *file)
{
    for (size_t i = 0; i < report->result_count; i++) {
        const replay_result *result = &report->results[i];
        if (result->prefetch_offered == 0) continue;
        fprintf(file,
                "%s, seed %llu, prefetches of waiting requests: %llu blocks of %llu moved up\n",
                result->policy, (unsigned long long)result->seed,
                (unsigned long long)result->prefetch_moved,
                (unsigned long long)result->prefetch_offered);
    }
}

static void text_moves(const replay_report *report, FILE *file)
{
    bool busy = text_has_busy_puts(report);
    fprintf(file, "\n%-12s %5s %10s %10s %10s %10s %10s %9s %9s%s\n", "policy", "seed", "moves",
            "aborted", "promoted", "demoted", "evicted", "decision", "p99",
            busy ? "  busy puts" : "");
    for (size_t i = 0; i < report->result_count; i++) {
        const replay_result *result = &report->results[i];
        fprintf(file, "%-12s %5llu %10llu %10llu %10llu %10llu %10llu %6llu ns %6llu ns",
                result->policy, (unsigned long long)result->seed,
                (unsigned long long)result->moves_committed,
                (unsigned long long)result->moves_aborted, (unsigned long long)result->promotions,
                (unsigned long long)result->demotions, (unsigned long long)result->evictions,
                (unsigned long long)result->decision_ns_p50,
                (unsigned long long)result->decision_ns_p99);
        if (busy) fprintf(file, " %10llu", (unsigned long long)result->puts_busy);
        fputc('\n', file);
    }
    text_hints(report, file);
    text_prefetches(report, file);
    for (size_t i = 0; i < report->result_count; i++) {
        const replay_result *result = &report->results[i];
        if (result->plan_log[0] == '\0') continue;
        fprintf(file, "%splan log of %s, seed %llu: %s\n", i == 0 ? "\n" : "", result->policy,
                (unsigned long long)result->seed, result->plan_log);
    }
}

/* The forms that gets were served in a run over a ladder, by tier. */
static void text_forms(const replay_result *result, FILE *file)
{
    if (result->form_count == 0) return;
    fprintf(file,
            "  The quality above counts no loss of these forms: replay --model measures answers.\n"
            "  %-36s %8s %8s %8s %12s\n",
            "gets by form", "hbm", "dram", "ssd", "tokens kept");
    for (uint32_t i = 0; i < result->form_count; i++) {
        const replay_form *form = &result->forms[i];
        char name[96];
        (void)kvt_variant_format(form->variant, name, sizeof name);
        fprintf(file, "  %-36s %8llu %8llu %8llu %11.1f%%\n", name,
                (unsigned long long)form->gets[KVT_TIER_HBM],
                (unsigned long long)form->gets[KVT_TIER_DRAM],
                (unsigned long long)form->gets[KVT_TIER_SSD],
                100.0 * (double)form->tokens_kept / (double)form->tokens);
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
        text_forms(result, file);
    }
}

/* ---- how far the policies were from the best ---- */

#define REGRET_COLUMNS 7u

static const char *const regret_heads[REGRET_COLUMNS] = {
    "saved", "bound", "bound, moved", "solver", "counters", "foresight", "online"};

double results_regret_online(const replay_result *result)
{
    return result->bound.known ? result->bound.interval_s - result->saved_s : NAN;
}

/* Prints "-" for a figure that is not known. */
static void regret_row(const replay_result *result, double row[REGRET_COLUMNS])
{
    row[0] = result->saved_s;
    row[1] = result->bound.interval_s;
    row[2] = result->bound.moving_s;
    row[3] = result->regret_solver_s;
    row[4] = result->regret_counters_s;
    row[5] = result->regret_foresight_s;
    row[6] = results_regret_online(result);
    for (size_t j = 0; j < REGRET_COLUMNS; j++)
        if (fabs(row[j]) < 1e-9) row[j] = 0.0; /* rounding */
}

static size_t regret_count(const replay_report *report)
{
    size_t count = 0;
    for (size_t i = 0; i < report->result_count; i++)
        count += report->results[i].bound.known;
    return count;
}

/* The figures that all runs of a workload share. */
static void regret_lead(const replay_bound *bound, char *text, size_t size)
{
    char all[RESULTS_TEXT_BYTES], ideal[RESULTS_TEXT_BYTES], spent[RESULTS_TEXT_BYTES];
    snprintf(text, size,
             "computing everything takes %s a request; a store without limits saves %s of it; "
             "Belady's hits with the fixed policies' form: %.1f %% of the blocks; bound of %llu "
             "intervals found in %s",
             results_format_seconds(bound->recompute_s, all),
             results_format_seconds(bound->ideal_s, ideal), bound->belady_block_ratio * 100.0,
             (unsigned long long)bound->intervals, results_format_seconds(bound->seconds, spent));
}

static const char regret_note[] =
    "seconds a request; saved: prefill not computed, less loads, less alpha * loss. bound: what no "
    "policy can pass; moved: not even one that improves forms ahead of their use. Regrets, "
    "by what they bound: solver, the dual against the best placement found, at the engine's rates "
    "and over all that it knows (policies that count uses); counters, that dual against the "
    "engine's state; foresight, the placement against the best for the uses that came; online, "
    "bound less saved";

/* The table of bounds and regrets, when there is one. */
static void results_regrets_text(const replay_report *report, FILE *file)
{
    char text[RESULTS_TEXT_BYTES], lead[512];
    if (regret_count(report) == 0) return;
    fprintf(file, "\n%-12s %5s", "policy", "seed");
    for (size_t j = 0; j < REGRET_COLUMNS; j++)
        fprintf(file, " %12s", regret_heads[j]);
    fprintf(file, "\n");
    for (size_t i = 0; i < report->result_count; i++) {
        const replay_result *result = &report->results[i];
        double row[REGRET_COLUMNS];
        if (!result->bound.known) continue;
        regret_row(result, row);
        fprintf(file, "%-12s %5llu", result->policy, (unsigned long long)result->seed);
        for (size_t j = 0; j < REGRET_COLUMNS; j++)
            fprintf(file, " %12s", results_format_seconds(row[j], text));
        fprintf(file, "\n");
    }
    regret_lead(&report->results[0].bound, lead, sizeof lead);
    fprintf(file, "%s\n%s\n", lead, regret_note);
}

/* ---- what the engine learned of reuse, and why single blocks are where they are ---- */

static const char *const reuse_words[KVT_REUSE_KINDS] = {"how uses add up", "the last use alone",
                                                         "having been used again"};

/* The expert with the largest weight. */
static void reuse_text_weights(const replay_result *result, FILE *file)
{
    const kvt_reuse_weights *reuse = &result->reuse;
    char half_life[RESULTS_TEXT_BYTES];
    int best_kind = 0, best = 0;
    for (int kind = 0; kind < KVT_REUSE_KINDS; kind++) {
        for (int k = 0; k < KVT_REUSE_HALF_LIVES; k++) {
            if (reuse->weight[kind][k] <= reuse->weight[best_kind][best]) continue;
            best_kind = kind;
            best = k;
        }
    }
    fprintf(file,
            "\nreuse learned by %s, seed %llu, from %llu uses: %s has the largest weight, %.2f "
            "with a half-life of %s\n",
            result->policy, (unsigned long long)result->seed, (unsigned long long)reuse->uses,
            reuse_words[best_kind], reuse->weight[best_kind][best],
            results_format_seconds(reuse->half_life_seconds[best], half_life));
}

static void reuse_text_explained(const replay_explained *row, FILE *file)
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

/* One line for each run that learned, and one for each explained block. */
static void results_reuse_text(const replay_report *report, FILE *file)
{
    for (size_t i = 0; i < report->result_count; i++) {
        const replay_result *result = &report->results[i];
        if (result->reuse.uses > 0) reuse_text_weights(result, file);
        if (result->explained_count > 0)
            fprintf(
                file,
                "stored blocks with the highest rates, or used last where %s predicts none, seed "
                "%llu:\n",
                result->policy, (unsigned long long)result->seed);
        for (uint32_t row = 0; row < result->explained_count; row++)
            reuse_text_explained(&result->explained[row], file);
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
    results_regrets_text(report, file);
    results_reuse_text(report, file);
    text_live(report, file);
    for (size_t i = 0; i < report->result_count; i++)
        unstable |= !results_has_mean(&report->results[i]);
    fprintf(file, "\nin hbm, dram, ssd: tokens found there, which add up to the token hits; "
                  "loaded: what was worth loading of them\n");
    if (unstable) {
        fprintf(file, "-: at a rho or peak rho (the busiest part of the span) >= 1 the queue grows "
                      "as long as that lasts; no mean exists\n");
    }
    if (report->options->note[0] != '\0') fprintf(file, "\n%s\n", report->options->note);
    return fflush(file) == 0 && !ferror(file) ? KVT_OK : KVT_E_IO;
}
