/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_grid_report.c - the grid as a table or as JSON, schema "kvterrace-bench-grid-1"; and the
 * list of its cells. No state.
 */
#include "bench_grid.h"
#include "bench_parts.h"

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

/* ---- JSON ---- */

/* A value that is no number becomes null. Frees nothing on failure: the caller sees that a key is
 * missing. */
static int report_put(json_t *object, const char *key, double value)
{
    return json_object_set_new(object, key, isfinite(value) ? json_real(value) : json_null());
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
                     cell->quick);
}

static json_t *report_judged_cell(const grid_result *result)
{
    json_t *object = report_cell(result->index);
    if (object == NULL) return NULL;
    int failed = json_object_set_new(object, "skipped", json_boolean(result->skipped));
    failed |= json_object_set_new(object, "finished", json_boolean(result->judged));
    if (!result->judged) return object;
    const grid_cell *cell = grid_cell_at(result->index);
    const grid_row *ours = &result->rows[result->ours], *best = &result->rows[result->best];
    bool roomy = best->mean.ttft_s > GRID_ROOM * result->bound_mean_s;
    failed |= json_object_set_new(object, "best_rival", json_string(best->run->policy));
    failed |= json_object_set_new(object, "best_form", json_string(report_form(best, cell)));
    failed |= report_put(object, "ratio", ours->ratio.mean);
    failed |= report_put(object, "ratio_low", ours->ratio.low);
    failed |= report_put(object, "ratio_high", ours->ratio.high);
    failed |= json_object_set_new(object, "room", json_boolean(roomy));
    failed |= report_put(object, "bound", result->bound_mean_s);
    failed |= report_put(object, "bound_without_moves", result->kept_bound_mean_s);
    failed |= report_put(object, "footprint_bytes", result->footprint_bytes[0]);
    failed |= json_object_set_new(object, "servers", json_integer(result->servers[0]));
    failed |=
        json_object_set_new(object, "requests", json_integer((json_int_t)result->requests[0]));
    if (failed == 0) return object;
    json_decref(object);
    return NULL;
}

static json_t *report_row(const grid_result *result, const grid_row *row, uint32_t seeds)
{
    static const char *const tiers[KVT_TIER_COUNT] = {NULL, NULL, "dram", "ssd"};
    const grid_cell *cell = grid_cell_at(result->index);
    const grid_sample *mean = &row->mean;
    json_t *object = json_pack(
        "{s:s, s:s, s:s, s:s, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "cell", cell->name,
        "half", report_half(result->index), "policy", row->run->policy, "form",
        report_form(row, cell), "seeds", (json_int_t)seeds, "wait_s_mean", mean->wait_s,
        "service_s_mean", mean->service_s, "loaded", mean->loaded, "puts", mean->puts, "refused",
        mean->refused, "puts_busy", mean->busy, "evicted", mean->evicted, "aborted", mean->aborted);
    if (object == NULL) return NULL;
    int failed = report_put(object, "ttft_s_mean", mean->stable ? mean->ttft_s : NAN);
    failed |= report_put(object, "ratio_to_best", row->ratio.mean);
    failed |= report_put(object, "ratio_low", row->ratio.low);
    failed |= report_put(object, "ratio_high", row->ratio.high);
    failed |= report_put(object, "bound", result->bound_mean_s);
    failed |= report_put(object, "regret_counters_s", mean->counters_s);
    failed |= report_put(object, "regret_foresight_s", mean->foresight_s);
    for (int tier = 0; tier < KVT_TIER_COUNT; tier++) {
        char key[32];
        if (tiers[tier] == NULL) continue;
        (void)snprintf(key, sizeof key, "found_%s", tiers[tier]);
        failed |= report_put(object, key, mean->found[tier]);
        (void)snprintf(key, sizeof key, "read_bytes_%s", tiers[tier]);
        failed |= report_put(object, key, mean->read_bytes[tier]);
        (void)snprintf(key, sizeof key, "written_bytes_%s", tiers[tier]);
        failed |= report_put(object, key, mean->written_bytes[tier]);
    }
    if (failed == 0) return object;
    json_decref(object);
    return NULL;
}

static json_t *report_totals(const grid_totals *totals)
{
    json_t *worst = json_array();
    int failed = worst == NULL;
    for (uint32_t i = 0; i < totals->worst_count; i++) {
        const grid_result *result = totals->worst[i];
        char why[REPORT_WHY_BYTES];
        grid_explain(result, why, sizeof why);
        json_t *entry = json_pack("{s:s, s:s, s:s}", "cell", grid_cell_at(result->index)->name,
                                  "best_rival", result->rows[result->best].run->policy, "why", why);
        failed |=
            entry == NULL || report_put(entry, "ratio", result->rows[result->ours].ratio.mean);
        failed |= json_array_append_new(worst, entry);
    }
    json_t *object =
        json_pack("{s:I, s:I, s:I, s:I, s:I, s:o}", "cells", (json_int_t)totals->cells, "skipped",
                  (json_int_t)totals->skipped, "unfinished", (json_int_t)totals->unfinished,
                  "intervals_above_1_02", (json_int_t)totals->lost, "cells_with_room",
                  (json_int_t)totals->roomy, "worst", worst);
    if (object == NULL) return NULL;
    failed |= report_put(object, "geometric_mean_with_room", totals->geometric_mean);
    if (failed == 0) return object;
    json_decref(object);
    return NULL;
}

static int report_json(const grid_options *options, uint32_t seeds, const grid_result *results,
                       size_t count, double wall_s)
{
    grid_totals totals;
    grid_sum(results, count, &totals);
    json_t *root = bench_report_head("kvterrace-bench-grid-1", seeds);
    json_t *cells = json_array(), *rows = json_array();
    int failed = root == NULL || cells == NULL || rows == NULL;
    for (size_t i = 0; i < count; i++) {
        failed |= json_array_append_new(cells, report_judged_cell(&results[i]));
        for (uint32_t row = 0; results[i].judged && row < results[i].row_count; row++)
            failed |=
                json_array_append_new(rows, report_row(&results[i], &results[i].rows[row], seeds));
    }
    failed |= json_object_set_new(root, "half", json_string(grid_half_name(options->half)));
    failed |= json_object_set_new(root, "quick", json_boolean(options->quick));
    failed |= json_object_set_new(root, "store_model", json_boolean(options->store_model));
    failed |= json_object_set_new(root, "interrupted", json_boolean(totals.unfinished > 0));
    failed |= json_object_set_new(root, "seconds", json_real(wall_s));
    failed |= json_object_set_new(root, "totals", report_totals(&totals));
    failed |= json_object_set_new(root, "cells", cells);
    failed |= json_object_set_new(root, "rows", rows);
    if (failed != 0) {
        json_decref(root);
        root = NULL;
    }
    return bench_report_print(options->out, root);
}

/* ---- text ---- */

static void report_line(FILE *out, const grid_result *result)
{
    const grid_cell *cell = grid_cell_at(result->index);
    const grid_row *ours = &result->rows[result->ours], *best = &result->rows[result->best];
    char rival[64];
    (void)snprintf(rival, sizeof rival, "%s%s", best->run->policy,
                   best->run->lossless ? ", lossless" : "");
    fprintf(out, "%-38s %-7s %-20s %9.3f %9.3f %7.3f  [%6.3f, %6.3f] %9.3f\n", cell->name,
            report_half(result->index), rival, best->mean.ttft_s, ours->mean.ttft_s,
            ours->ratio.mean, ours->ratio.low, ours->ratio.high, result->bound_mean_s);
}

static void report_worst(FILE *out, const grid_totals *totals)
{
    if (totals->worst_count > 0) fprintf(out, "\nthe worst %u:\n", totals->worst_count);
    for (uint32_t i = 0; i < totals->worst_count; i++) {
        const grid_result *result = totals->worst[i];
        char why[REPORT_WHY_BYTES];
        grid_explain(result, why, sizeof why);
        fprintf(out, "  %s, %.3f of %s: %s\n", grid_cell_at(result->index)->name,
                result->rows[result->ours].ratio.mean, result->rows[result->best].run->policy, why);
    }
}

static int report_text(const grid_options *options, uint32_t seeds, const grid_result *results,
                       size_t count, double wall_s)
{
    grid_totals totals;
    FILE *out = options->out;
    grid_sum(results, count, &totals);
    fprintf(out,
            "mean TTFT in seconds, %u seeds, defaults; ratio of utility to the best rival, "
            "paired, with its 95 %% interval; bound: no policy can be faster\n\n",
            seeds);
    fprintf(out, "%-38s %-7s %-20s %9s %9s %7s  %-16s %9s\n", "cell", "half", "best rival", "rival",
            "utility", "ratio", "95 %", "bound");
    for (size_t i = 0; i < count; i++)
        if (results[i].judged) report_line(out, &results[i]);
    fprintf(out, "\n%u cells, %u skipped, %u unfinished; intervals above %.2f: %u\n", totals.cells,
            totals.skipped, totals.unfinished, GRID_LIMIT, totals.lost);
    if (totals.roomy > 0)
        fprintf(out,
                "geometric mean of the ratio in the %u cells whose best rival lies more than "
                "5 %% above the bound: %.3f\n",
                totals.roomy, totals.geometric_mean);
    report_worst(out, &totals);
    fprintf(out, "\n%.0f s\n", wall_s);
    return ferror(out) != 0;
}

kvt_status grid_print(const grid_options *options, uint32_t seeds, const grid_result *results,
                      size_t count, double wall_s)
{
    int failed = options->json ? report_json(options, seeds, results, count, wall_s)
                               : report_text(options, seeds, results, count, wall_s);
    return failed != 0 ? KVT_E_IO : KVT_OK;
}

kvt_status grid_print_list(const grid_options *options)
{
    json_t *cells = options->json ? json_array() : NULL;
    int failed = options->json && cells == NULL;
    for (size_t i = 0; i < grid_cell_count(); i++) {
        if (!grid_is_chosen(options, i)) continue;
        const grid_cell *cell = grid_cell_at(i);
        if (options->json) {
            failed |= json_array_append_new(cells, report_cell(i));
        } else {
            fprintf(options->out, "%-38s %-12s %-7s%s\n", cell->name,
                    grid_family_name(cell->family), report_half(i), cell->quick ? " quick" : "");
        }
    }
    if (!options->json) return ferror(options->out) != 0 ? KVT_E_IO : KVT_OK;
    json_t *root = json_pack("{s:s, s:s, s:o}", "schema", "kvterrace-bench-grid-list-1", "version",
                             kvt_version(), "cells", cells);
    if (failed != 0) {
        json_decref(root);
        root = NULL;
    }
    return bench_report_print(options->out, root) != 0 ? KVT_E_IO : KVT_OK;
}
