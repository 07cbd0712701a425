/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_live_judge.c - ratios, ranks and totals of the live bench. Pure.
 */
#include "bench_live.h"

#include <math.h>

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
