/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_live_report.c - the judgement over the live bench, and its report as text or as JSON,
 * schema "kvterrace-bench-live-1".
 *
 * Thread rule: one bench at a time.
 */
#include "bench_live.h"

#include "bench_parts.h"

#include <math.h>

static json_t *report_setting(const live_setting *setting)
{
    return json_pack("{s:s, s:f, s:f, s:f}", "setting", setting->name, "ssd_read_bytes_per_s",
                     setting->ssd_bytes_per_s, "ssd_write_bytes_per_s",
                     setting->ssd_bytes_per_s * setting->write_share, "rho", setting->rho);
}

static json_t *report_reading(const live_reading *reading)
{
    return json_pack(
        "{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "ttft_s",
        reading->ttft_s, "ttft_s_min", reading->ttft_least_s, "ttft_s_max", reading->ttft_most_s,
        "wait_s", reading->wait_s, "service_s", reading->service_s, "put_s", reading->put_s, "rho",
        reading->rho, "hit_token_ratio", reading->hit_ratio, "puts", (json_int_t)reading->puts,
        "puts_busy", (json_int_t)reading->busy, "refused", (json_int_t)reading->refused,
        "promotions", (json_int_t)reading->promotions, "demotions", (json_int_t)reading->demotions,
        "evictions", (json_int_t)reading->evictions, "ssd_bytes_written",
        (json_int_t)reading->written_bytes);
}

static json_t *report_row(const live_row *row)
{
    return json_pack("{s:s, s:s, s:f, s:f, s:f, s:i, s:i, s:I, s:b, s:o, s:o}", "setting",
                     live_settings[row->setting].name, "policy", live_policies[row->policy],
                     "live_ttft_s", row->live.ttft_s, "sim_ttft_s", row->sim.ttft_s, "ratio",
                     row->ratio, "rank_live", (int)row->rank_live, "rank_sim", (int)row->rank_sim,
                     "wrong_bytes", (json_int_t)row->live.wrong_bytes, "within", (int)row->within,
                     "live", report_reading(&row->live), "sim", report_reading(&row->sim));
}

static json_t *report_totals(const live_results *results)
{
    const live_totals *totals = &results->totals;
    return json_pack("{s:i, s:i, s:f, s:f, s:i, s:i, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:b}",
                     "rows", (int)totals->rows, "within", (int)totals->within, "ratio_min",
                     totals->ratio_least, "ratio_max", totals->ratio_most, "pairs_told_apart",
                     (int)totals->pairs, "pairs_inverted", (int)totals->inverted, "wrong_bytes",
                     (json_int_t)totals->wrong_bytes, "dram_get_overhead_s",
                     results->dram_overhead_s, "ssd_get_overhead_s", results->ssd_overhead_s,
                     "put_overhead_s", results->put_overhead_s, "ratio_allowed", LIVE_RATIO_MOST,
                     "budget_s", results->budget_s, "seconds", results->seconds, "met",
                     (int)totals->met);
}

static int report_json(const bench_options *options, const live_results *results)
{
    json_t *root = bench_report_head("kvterrace-bench-live-1", 1);
    json_t *settings = json_array(), *rows = json_array();
    int failed = root == NULL || settings == NULL || rows == NULL;
    for (uint32_t i = 0; i < results->setting_count && !failed; i++)
        failed = json_array_append_new(settings, report_setting(&live_settings[i]));
    for (uint32_t i = 0; i < results->row_count && !failed; i++)
        failed = json_array_append_new(rows, report_row(&results->rows[i]));
    if (!failed) failed = json_object_set(root, "settings", settings);
    if (!failed) failed = json_object_set(root, "rows", rows);
    if (!failed) failed = json_object_set_new(root, "totals", report_totals(results));
    json_decref(settings);
    json_decref(rows);
    if (!failed) return bench_report_print(options->out, root);
    json_decref(root);
    return 1;
}

static void report_text_row(FILE *out, const live_row *row)
{
    const live_reading *live = &row->live, *sim = &row->sim;
    fprintf(
        out, "%-24s %-11s %8.5f %8.5f %7.3f%s %3u %3u  %5.1f %5.1f %6.3f %6.3f %5llu %5llu %5llu\n",
        live_settings[row->setting].name, live_policies[row->policy], live->ttft_s, sim->ttft_s,
        row->ratio, row->within ? " " : "!", row->rank_live, row->rank_sim, 100 * live->hit_ratio,
        100 * sim->hit_ratio, live->rho, sim->rho, (unsigned long long)live->refused,
        (unsigned long long)sim->refused, (unsigned long long)live->wrong_bytes);
}

static int report_text(FILE *out, const live_results *results)
{
    const live_totals *totals = &results->totals;
    fprintf(out, "a store on throttled memory beside the simulator; mean seconds to the first "
                 "token; hits in %% of tokens; ! = more than 10 %% apart\n");
    fprintf(out, "%-24s %-11s %8s %8s %7s  %7s  %11s %13s %11s %5s\n", "setting", "policy", "live",
            "sim", "ratio", "ranks", "hits", "rho", "refused", "wrong");
    for (uint32_t i = 0; i < results->row_count; i++)
        report_text_row(out, &results->rows[i]);
    fprintf(out,
            "within 10 %%: %u of %u rows, ratios %.3f to %.3f; of %u pairs that the simulator "
            "tells apart by more than 5 %%, %u rank otherwise live; wrong bytes: %llu\n",
            totals->within, totals->rows, totals->ratio_least, totals->ratio_most, totals->pairs,
            totals->inverted, (unsigned long long)totals->wrong_bytes);
    fprintf(out,
            "a get takes %.0f us (DRAM) and %.0f us (SSD) beside its transfer, a put %.0f us "
            "of its caller; %.0f s in all\n",
            results->dram_overhead_s * 1e6, results->ssd_overhead_s * 1e6,
            results->put_overhead_s * 1e6, results->seconds);
    return ferror(out) != 0;
}

int live_report(const bench_options *options, const live_results *results)
{
    return options->json ? report_json(options, results) : report_text(options->out, results);
}

/* ---- ratios, ranks and totals: pure ---- */

/* The rows of the setting that begins at `first`. */
static uint32_t evaluate_count(const live_results *results, uint32_t first)
{
    uint32_t count = 0;
    while (first + count < results->row_count &&
           results->rows[first + count].setting == results->rows[first].setting)
        count++;
    return count;
}

static void evaluate_ranks(live_row *rows, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        rows[i].rank_live = rows[i].rank_sim = 1;
        for (uint32_t j = 0; j < count; j++) {
            rows[i].rank_live += rows[j].live.ttft_s < rows[i].live.ttft_s;
            rows[i].rank_sim += rows[j].sim.ttft_s < rows[i].sim.ttft_s;
        }
    }
}

/* Pairs that the simulator tells apart, and those of them that the store ranks otherwise. */
static void evaluate_pairs(const live_row *rows, uint32_t count, live_totals *totals)
{
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t j = 0; j < count; j++) {
            double better = rows[i].sim.ttft_s, worse = rows[j].sim.ttft_s;
            if (!(worse > better * (1.0 + LIVE_RANK_LEAST))) continue;
            totals->pairs++;
            totals->inverted += !(rows[j].live.ttft_s > rows[i].live.ttft_s);
        }
    }
}

void live_judge(live_results *results)
{
    live_totals *totals = &results->totals;
    *totals = (live_totals){.rows = results->row_count, .ratio_least = INFINITY};
    for (uint32_t i = 0; i < results->row_count; i++) {
        live_row *row = &results->rows[i];
        row->ratio = row->live.ttft_s / row->sim.ttft_s;
        row->within = fabs(row->ratio - 1.0) <= LIVE_RATIO_MOST;
        totals->within += row->within;
        totals->ratio_least = fmin(totals->ratio_least, row->ratio);
        totals->ratio_most = fmax(totals->ratio_most, row->ratio);
        totals->wrong_bytes += row->live.wrong_bytes;
    }
    for (uint32_t first = 0; first < results->row_count;) {
        uint32_t count = evaluate_count(results, first);
        evaluate_ranks(&results->rows[first], count);
        evaluate_pairs(&results->rows[first], count, totals);
        first += count;
    }
    totals->met = totals->rows > 0 && totals->within == totals->rows && totals->inverted == 0 &&
                  totals->wrong_bytes == 0;
}
