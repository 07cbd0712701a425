/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_live_report.c - the judgement over the live case, and its report.
 *
 * Thread rule: one bench at a time.
 */
#include "bench_live.h"

#include <math.h>

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

void live_report(bench_report *report, const live_results *results)
{
    bench_report_set(report, "repetitions", json_integer(1));
    for (const live_setting *one = live_settings; one < live_settings + results->setting_count;
         one++)
        bench_report_row(report, "settings",
                         json_pack("{s:s, s:f, s:f, s:f}", "setting", one->name,
                                   "ssd_read_bytes_per_s", one->ssd_bytes_per_s,
                                   "ssd_write_bytes_per_s", one->ssd_bytes_per_s * one->write_share,
                                   "rho", one->rho));
    for (uint32_t i = 0; i < results->row_count; i++)
        bench_report_row(report, "rows", report_row(&results->rows[i]));
    bench_report_set(report, "totals", report_totals(results));
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
