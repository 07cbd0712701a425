/* SPDX-License-Identifier: Apache-2.0 */
/*
 * results_text.c - the tables that a person reads at once; forms, bounds, hosts, hints and reuse
 * are on the page that kvterrace report makes of the JSON document. One thread.
 */
#include "document.h"
#include "replay.h"
#include "results.h"

#include <math.h>
#include <string.h>

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
    if (workload->grid_ns > 0)
        fprintf(file, "arrivals on a grid of %g s were spread inside their step\n",
                (double)workload->grid_ns * 1e-9);
    if (workload->conversations_per_s > 0.0)
        fprintf(file,
                "conversations have no common clock: their starts were drawn, %g per second "
                "(workload.rate)\n",
                workload->conversations_per_s);
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

#define RUN "policy seed "

static const document_table text_tables[] = {
    {"workload", "name requests block_refs distinct=distinct_blocks tokens=block_tokens"},
    {"results",
     RUN "TTFT_mean=ttft_s_mean p50=ttft_s_p50 p90=ttft_s_p90 p99=ttft_s_p99 wait=wait_s_mean "
         "service=service_ttft_s_mean blocked=blocked_io_s_mean put=put_s_mean rho peak=rho_peak"},
    {"results:hosts", RUN "host_blocks=hosts.local_block_ratio shared=hosts.remote_block_ratio "
                          "written=hosts.written_blocks_per_use"},
    {"results:drive", RUN "ssd_written=bytes_written.ssd writes=drive.writes "
                          "deferred=drive.writes_deferred write_wait=drive.write_wait_s_mean "
                          "most=drive.write_wait_s_max"},
    {"results/explained", "block variant tier used=last_use_s_ago uses_per_s "
                          "expert=reuse_expert.says half_life=reuse_expert.half_life_s "
                          "weight=reuse_expert.weight share=reuse_expert.share_of_rate reason"},
    {0},
};

static const document_table text_verbose[] = {
    {"results",
     RUN "block_hits=hit_block_ratio.total token_hits=hit_token_ratio.total "
         "in_hbm=hit_token_ratio.hbm in_dram=hit_token_ratio.dram in_ssd=hit_token_ratio.ssd "
         "loaded=used_token_ratio dram_read=bytes_read.dram ssd_read=bytes_read.ssd "
         "dram_written=bytes_written.dram ssd_written=bytes_written.ssd quality=quality_mean"},
    {"results", RUN "moves=moves_committed aborted=moves_aborted promoted=promotions "
                    "demoted=demotions evicted=evictions decision=decision_ns_p50 "
                    "p99=decision_ns_p99 refused busy=puts_busy plan_log"},
    {"results:verified_gets", RUN "wall_s verified=verified_gets wrong=wrong_bytes failed_puts "
                                  "load_failures moves_match"},
    {0},
};

/* Mean time to the first token over a policy's seeds; NAN: it was not run, or has no mean. */
static double text_mean(const replay_report *report, const char *policy)
{
    double sum = 0.0;
    uint32_t count = 0;
    for (size_t i = 0; i < report->result_count; i++) {
        const replay_result *result = &report->results[i];
        if (strcmp(result->policy, policy) != 0) continue;
        sum += results_has_mean(result) ? result->times.ttft_mean : NAN;
        count++;
    }
    return count > 0 ? sum / count : NAN;
}

/* The meaning of the runs in words: the engine, or without it the fastest policy, beside no cache
 * and beside the fastest of the others. */
static void text_verdict(const replay_report *report, FILE *file)
{
    static const char ours[] = "utility", none[] = "none";
    const char *rival = NULL;
    for (size_t i = 0; i < report->result_count; i++) {
        const char *policy = report->results[i].policy;
        const double mean = text_mean(report, policy);
        if (strcmp(policy, ours) == 0 || strcmp(policy, none) == 0 ||
            strcmp(policy, REPLAY_ORACLE) == 0 || !isfinite(mean))
            continue;
        if (rival == NULL || mean < text_mean(report, rival)) rival = policy;
    }
    const double empty = text_mean(report, none);
    const char *first = isfinite(text_mean(report, ours)) || rival == NULL ? ours : rival;
    const double mean = text_mean(report, first);
    if (isfinite(mean)) {
        fprintf(file, "%s takes %.3f s to the first token, in the mean%s", first, mean,
                report->options->seeds > 1 ? "" : " of one seed");
        if (isfinite(empty))
            fprintf(file, "; that is %.3f of the %.3f s without a cache", mean / empty, empty);
        if (rival != NULL && first != rival)
            fprintf(file, "%s %.3f of the %.3f s of %s, the fastest of the others",
                    isfinite(empty) ? ", and" : "; that is", mean / text_mean(report, rival),
                    text_mean(report, rival), rival);
        fprintf(file, ".\n");
    }
    if (report->profile_busy)
        fprintf(file, "The machine was busy while its profile was measured: these times are too "
                      "uncertain to compare by.\n");
}

kvt_status replay_print_text(const replay_report *report, bool verbose, FILE *file)
{
    bool sound = true, unstable = false;
    char machine[RESULTS_MACHINE_BYTES];
    json_t *root = results_document(report, &sound), *row;
    size_t i;
    json_array_foreach(json_object_get(root, "results"), i, row)
    {
        unstable |= json_is_null(json_object_get(row, "ttft_s_mean"));
        /* Of fewer requests the 99th percentile is one or two of them. */
        if (report->workload->request_count < 500) (void)json_object_del(row, "ttft_s_p99");
    }
    text_verdict(report, file);
    if (unstable)
        fprintf(file, "Where no mean is shown, rho or peak rho (the busiest part of the span) is "
                      "at least 1: the queue grows as long as that lasts, and no mean exists.\n");
    results_describe(report->options, machine, sizeof machine);
    if (report->store == NULL) fprintf(file, "simulated: %s\n", machine);
    text_workload_notes(report->workload, file);
    fputc('\n', file);
    if (sound) document_print_tables(root, text_tables, file);
    if (verbose) fputc('\n', file);
    if (sound && verbose) document_print_tables(root, text_verbose, file);
    json_decref(root);
    if (!sound) return KVT_E_MEMORY;
    if (verbose)
        fprintf(file, "\nin_hbm, in_dram, in_ssd: tokens found there, which add up to the token "
                      "hits; loaded: what was worth loading of them\nvariants, bounds, hints and "
                      "reuse: --json, and the page of it that kvterrace report makes\n");
    if (report->options->note[0] != '\0') fprintf(file, "\n%s\n", report->options->note);
    return fflush(file) == 0 && !ferror(file) ? KVT_OK : KVT_E_IO;
}
