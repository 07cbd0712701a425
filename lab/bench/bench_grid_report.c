/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_grid_report.c - the report of the grid, and the list of its cells. No state.
 */
#include "bench_grid.h"

#include <math.h>
#include <string.h>

#define REPORT_WHY_BYTES 768u

static const char *report_half(size_t index)
{
    return grid_half_name(grid_is_hidden(index) ? GRID_HALF_HIDDEN : GRID_HALF_TUNING);
}

static const char *report_form(const grid_row *row, const grid_cell *cell)
{
    if (strcmp(row->run->policy, "none") == 0) return "none";
    if (row->run->lossless) return "lossless";
    bool chooses =
        strcmp(row->run->policy, GRID_OURS) == 0 || strcmp(row->run->policy, "adaptcache") == 0;
    return chooses && cell->lossless ? "raw, lossless" : "raw";
}

static json_t *report_cell(size_t index)
{
    const grid_cell *cell = grid_cell_at(index);
    json_t *forms =
        cell->lossless ? json_pack("[s, s]", "raw", "lossless") : json_pack("[s]", "raw");
    return json_pack("{s:s, s:s, s:s, s:I, s:f, s:I, s:f, s:o, s:f, s:f, s:b}", "cell", cell->name,
                     "family", grid_family_name(cell->family), "half", report_half(index),
                     "turns_mean", (json_int_t)cell->turns, "zipf", cell->zipf, "capacity_percent",
                     (json_int_t)cell->capacity_percent, "ssd_gb_per_s", cell->ssd_gb_per_s,
                     "forms", forms, "load", cell->load, "strength", cell->strength, "quick",
                     (int)cell->quick);
}

static json_t *report_judged_cell(const grid_result *result)
{
    json_t *object = report_cell(result->index);
    json_object_update_new(object, json_pack("{s:b, s:b}", "skipped", (int)result->skipped,
                                             "finished", (int)result->judged));
    if (!result->judged) return object;
    const grid_cell *cell = grid_cell_at(result->index);
    const grid_row *ours = &result->rows[result->ours], *best = &result->rows[result->best];
    json_t *judged = json_pack(
        "{s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:b, s:o, s:o, s:f, s:I, s:I}", "best_rival",
        best->run->policy, "best_form", report_form(best, cell), "rival_ttft_s",
        bench_number(best->mean.ttft_s), "utility_ttft_s", bench_number(ours->mean.ttft_s), "ratio",
        bench_number(ours->ratio.mean), "ratio_low", bench_number(ours->ratio.low), "ratio_high",
        bench_number(ours->ratio.high), "room",
        (int)(best->mean.ttft_s > GRID_ROOM * result->bound_mean_s), "bound",
        bench_number(result->bound_mean_s), "bound_without_moves",
        bench_number(result->kept_bound_mean_s), "footprint_bytes", result->footprint_bytes[0],
        "servers", (json_int_t)result->servers[0], "requests", (json_int_t)result->requests[0]);
    json_object_update_new(object, judged);
    return object;
}

static json_t *report_row(const grid_result *result, const grid_row *row, uint32_t seeds)
{
    const grid_cell *cell = grid_cell_at(result->index);
    const grid_sample *mean = &row->mean;
    json_t *object = json_pack(
        "{s:s, s:s, s:s, s:s, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "cell", cell->name,
        "half", report_half(result->index), "policy", row->run->policy, "form",
        report_form(row, cell), "seeds", (json_int_t)seeds, "wait_s_mean", mean->wait_s,
        "service_s_mean", mean->service_s, "loaded", mean->loaded, "puts", mean->puts, "refused",
        mean->refused, "puts_busy", mean->busy, "evicted", mean->evicted, "aborted", mean->aborted);
    json_object_update_new(
        object, json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "ttft_s_mean",
                          bench_number(mean->stable ? mean->ttft_s : NAN), "ratio_to_best",
                          bench_number(row->ratio.mean), "ratio_low", bench_number(row->ratio.low),
                          "ratio_high", bench_number(row->ratio.high), "bound",
                          bench_number(result->bound_mean_s), "regret_counters_s",
                          bench_number(mean->counters_s), "regret_foresight_s",
                          bench_number(mean->foresight_s)));
    for (int tier = KVT_TIER_DRAM; tier <= KVT_TIER_SSD; tier++) {
        static const char *const names[] = {"found", "read_bytes", "written_bytes"};
        const double values[] = {mean->found[tier], mean->read_bytes[tier],
                                 mean->written_bytes[tier]};
        for (int i = 0; i < 3; i++) {
            char key[32];
            (void)snprintf(key, sizeof key, "%s_%s", names[i],
                           tier == KVT_TIER_DRAM ? "dram" : "ssd");
            json_object_set_new(object, key, json_real(values[i]));
        }
    }
    return object;
}

static json_t *report_totals(const grid_totals *totals)
{
    json_t *worst = json_array();
    for (uint32_t i = 0; i < totals->worst_count; i++) {
        const grid_result *result = totals->worst[i];
        char why[REPORT_WHY_BYTES];
        grid_explain(result, why, sizeof why);
        json_array_append_new(
            worst, json_pack("{s:s, s:s, s:o, s:s}", "cell", grid_cell_at(result->index)->name,
                             "best_rival", result->rows[result->best].run->policy, "ratio",
                             bench_number(result->rows[result->ours].ratio.mean), "why", why));
    }
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:o, s:o}", "cells", (json_int_t)totals->cells,
                     "skipped", (json_int_t)totals->skipped, "unfinished",
                     (json_int_t)totals->unfinished, "intervals_above_1_02",
                     (json_int_t)totals->lost, "cells_with_room", (json_int_t)totals->roomy,
                     "geometric_mean_with_room", bench_number(totals->geometric_mean), "worst",
                     worst);
}

void grid_report(const bench_options *options, uint32_t seeds, const grid_result *results,
                 size_t count, double wall_s, bench_report *report)
{
    const grid_options *own = options->own;
    grid_totals totals;
    grid_sum(results, count, &totals);
    for (size_t i = 0; i < count; i++) {
        bench_report_row(report, "cells", report_judged_cell(&results[i]));
        for (uint32_t row = 0; results[i].judged && row < results[i].row_count; row++)
            bench_report_row(report, "rows", report_row(&results[i], &results[i].rows[row], seeds));
    }
    if (json_object_get(report->root, "rows") == NULL)
        bench_report_set(report, "rows", json_array());
    bench_report_add(report,
                     json_pack("{s:I, s:s, s:b, s:b, s:f, s:o}", "repetitions", (json_int_t)seeds,
                               "half", grid_half_name(own->half), "quick", (int)options->quick,
                               "interrupted", (int)(totals.unfinished > 0), "seconds", wall_s,
                               "totals", report_totals(&totals)));
}

static kvt_status grid_list(const bench_options *options, bench_report *report)
{
    bench_report_set(report, "cells", json_array());
    for (size_t i = 0; i < grid_cell_count(); i++)
        if (grid_is_chosen(options, i)) bench_report_row(report, "cells", report_cell(i));
    return KVT_OK;
}

const bench_case bench_grid_list_case = {
    .name = "grid",
    .schema = "kvterrace-bench-grid-list-1",
    .tables = (const bench_table[]){{"cells", "cell family half quick"}, {0}},
    .run = grid_list,
};
