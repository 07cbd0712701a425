/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compare_report.c - a comparison as JSON (schema "kvterrace-compare-1") and as tables.
 *
 * Times are seconds. A figure that does not exist (no seed on which both contenders have a mean) is
 * null. One thread.
 */
#include "compare.h"

#include <jansson.h>
#include <math.h>

static const char *const report_kinds[] = {
    [REPLAY_ROW_BASELINE] = "baselines",
    [REPLAY_ROW_MIX] = "mixes",
    [REPLAY_ROW_FOOTPRINT] = "footprint",
};
#define REPORT_KINDS (sizeof report_kinds / sizeof report_kinds[0])

static const char *replay_verdict_name(replay_verdict verdict)
{
    static const char *const names[] = {[REPLAY_WIN] = "win",
                                        [REPLAY_TIE] = "tie",
                                        [REPLAY_LOSE] = "lose",
                                        [REPLAY_UNMATCHED] = "unmatched",
                                        [REPLAY_UNSTABLE] = "unstable"};
    return names[verdict];
}

/* ---- JSON ---- */

static void report_put(json_t *object, const char *key, json_t *value, bool *sound)
{
    if (json_object_set_new(object, key, value) != 0) *sound = false;
}

static json_t *report_real(double value, bool known)
{
    return known && isfinite(value) ? json_real(value) : json_null();
}

static json_t *report_interval(double low, double high, bool known, bool *sound)
{
    json_t *pair = json_array();
    if (json_array_append_new(pair, report_real(low, known)) != 0) *sound = false;
    if (json_array_append_new(pair, report_real(high, known)) != 0) *sound = false;
    return pair;
}

/* The levels of quality at which a row's contender is the fastest baseline. */
static json_t *report_fastest(const replay_compare_result *result, const replay_compare_row *row,
                              bool *sound)
{
    json_t *levels = json_array();
    for (uint32_t i = 0; i < result->level_count; i++) {
        if ((row->fastest_at >> i & 1) == 0) continue;
        if (json_array_append_new(levels, json_real(result->levels[i])) != 0) *sound = false;
    }
    return levels;
}

static json_t *report_row(const replay_compare_result *result, const replay_compare_row *row,
                          bool *sound)
{
    json_t *object = json_object();
    bool known = row->seeds > 0;
    report_put(object, "against", json_string(row->against), sound);
    report_put(object, "ours", json_string(row->ours), sound);
    report_put(object, "ssd_bytes_per_s", json_real(row->ssd_bytes_per_s), sound);
    report_put(object, "sigma", json_real(row->spread.sigma), sound);
    report_put(object, "repeatability", json_real(row->spread.repeatability), sound);
    if (row->kind == REPLAY_ROW_MIX) {
        report_put(object, "quality_level", json_real(row->level), sound);
    }
    if (row->kind == REPLAY_ROW_BASELINE) {
        report_put(object, "fastest_at_quality", report_fastest(result, row, sound), sound);
    }
    report_put(object, "ttft_s_mean", report_real(row->ttft_s, known), sound);
    report_put(object, "our_ttft_s_mean", report_real(row->our_ttft_s, known), sound);
    report_put(object, "quality_mean", report_real(row->quality, known), sound);
    report_put(object, "our_quality_mean", report_real(row->our_quality, known), sound);
    report_put(object, "quality_gain_95",
               report_interval(row->quality_low, row->quality_high, known, sound), sound);
    report_put(object, "ratio", report_real(row->ratio, known), sound);
    report_put(object, "ratio_95", report_interval(row->ratio_low, row->ratio_high, known, sound),
               sound);
    report_put(object, "saved_s", report_real(row->saved_s, known), sound);
    report_put(object, "saved_s_95",
               report_interval(row->saved_s_low, row->saved_s_high, known, sound), sound);
    report_put(object, "rho_peak_max", json_real(row->rho), sound);
    report_put(object, "our_rho_peak_max", json_real(row->our_rho), sound);
    report_put(object, "seeds", json_integer(row->seeds), sound);
    report_put(object, "seeds_skipped", json_integer(row->skipped), sound);
    report_put(object, "verdict", json_string(replay_verdict_name(row->verdict)), sound);
    return object;
}

static json_t *report_rows(const replay_compare_result *result, replay_row_kind kind, bool *sound)
{
    json_t *list = json_array();
    for (size_t i = 0; i < result->row_count; i++) {
        if (result->rows[i].kind != kind) continue;
        if (json_array_append_new(list, report_row(result, &result->rows[i], sound)) != 0)
            *sound = false;
    }
    return list;
}

static json_t *report_text(const char *text)
{
    return text != NULL && text[0] != '\0' ? json_string(text) : json_null();
}

static json_t *report_configuration(const replay_compare *plan, const replay_compare_result *result,
                                    bool *sound)
{
    const replay_options *base = plan->base;
    json_t *object = json_object();
    report_put(object, "ladder", report_text(base->ladder), sound);
    report_put(object, "servers", json_integer(base->servers), sound);
    report_put(object, "prefill", json_string(base->prefill_name), sound);
    report_put(object, "warmup", json_real(base->warmup), sound);
    report_put(object, "holes",
               json_string(base->holes == KVT_HOLES_MIXED ? "mixed" : "contiguous"), sound);
    report_put(object, "dram_bytes",
               json_integer((json_int_t)base->tiers[KVT_TIER_DRAM].capacity_bytes), sound);
    report_put(object, "ssd_bytes",
               json_integer((json_int_t)base->tiers[KVT_TIER_SSD].capacity_bytes), sound);
    report_put(object, "first_seed", json_integer((json_int_t)base->seed), sound);
    report_put(object, "seeds", json_integer(plan->seeds), sound);
    report_put(object, "tuning_seeds", json_integer(plan->tuning_seeds), sound);
    report_put(object, "sessions", json_integer(result->sessions), sound);
    report_put(object, "requests", json_integer((json_int_t)result->requests), sound);
    report_put(object, "capacity_over_footprint", json_real(result->capacity_over_footprint),
               sound);
    report_put(object, "rho_without_cache",
               report_interval(result->rho_none_low, result->rho_none_high, true, sound), sound);
    report_put(object, "quick", json_boolean(plan->quick), sound);
    return object;
}

kvt_status replay_compare_print_json(const replay_compare *plan,
                                     const replay_compare_result *result,
                                     const replay_compare_head *head, FILE *file)
{
    bool sound = true;
    json_t *root = json_object();
    report_put(root, "schema", json_string("kvterrace-compare-1"), &sound);
    report_put(root, "version", json_string(head->version), &sound);
    report_put(root, "command", report_text(head->command), &sound);
    report_put(root, "machine", report_text(head->machine), &sound);
    if (head->date != NULL) report_put(root, "date", json_string(head->date), &sound);
    const char *name = plan->trace != NULL ? plan->trace->name : "poisson";
    report_put(root, "workload", json_string(name), &sound);
    report_put(root, "interrupted", json_boolean(result->interrupted), &sound);
    report_put(root, "configuration", report_configuration(plan, result, &sound), &sound);
    for (size_t kind = 0; kind < REPORT_KINDS; kind++) {
        report_put(root, report_kinds[kind], report_rows(result, (replay_row_kind)kind, &sound),
                   &sound);
    }
    report_put(root, "note", report_text(plan->base->note), &sound);
    report_put(root, "runs", json_integer((json_int_t)result->runs), &sound);
    report_put(root, "wall_s", json_real(result->wall_s), &sound);
    kvt_status status = sound ? KVT_OK : KVT_E_MEMORY;
    if (sound) {
        int dumped = json_dumpf(root, file, JSON_INDENT(2) | JSON_REAL_PRECISION(12));
        if (dumped != 0 || fputc('\n', file) == EOF || fflush(file) != 0) status = KVT_E_IO;
    }
    json_decref(root);
    return status;
}

/* ---- text ---- */

static void report_line(const replay_compare_row *row, FILE *file)
{
    if (row->seeds == 0) {
        fprintf(file, "%-52s %9s %8s  no mean: peak rho %.2f; ours %.2f\n", row->against, "-", "-",
                row->rho, row->our_rho);
        return;
    }
    fprintf(file, "%-52s %7.3f s %8.5f  %-28s %7.3f s %8.5f  %.3f [%.3f, %.3f]  %s", row->against,
            row->ttft_s, row->quality, row->ours, row->our_ttft_s, row->our_quality, row->ratio,
            row->ratio_low, row->ratio_high, replay_verdict_name(row->verdict));
    if (row->skipped > 0) fprintf(file, " (%u seeds without a mean)", row->skipped);
    fputc('\n', file);
}

static const char *const report_titles[] = {
    [REPLAY_ROW_BASELINE] = "Baselines",
    [REPLAY_ROW_MIX] = "Best uniform mixes",
    [REPLAY_ROW_FOOTPRINT] = "An SSD as large as the footprint, exact forms",
};

/* One table per kind, speed and spread, in the order of the rows. */
static void report_tables(const replay_compare_result *result, replay_row_kind kind, FILE *file)
{
    const replay_compare_row *before = NULL;
    for (size_t i = 0; i < result->row_count; i++) {
        const replay_compare_row *row = &result->rows[i];
        if (row->kind != kind) continue;
        if (before == NULL || before->ssd_bytes_per_s != row->ssd_bytes_per_s ||
            before->spread.sigma != row->spread.sigma) {
            fprintf(file, "\n%s; ssd at %.3g GB/s, sigma %.3g, repeatability %.3g\n",
                    report_titles[kind], row->ssd_bytes_per_s * 1e-9, row->spread.sigma,
                    row->spread.repeatability);
            fprintf(file, "%-52s %9s %8s  %-28s %9s %8s  %s\n", "against", "TTFT", "quality",
                    "ours at equal or better quality", "TTFT", "quality", "ratio [95 %]");
        }
        report_line(row, file);
        before = row;
    }
}

/* At each level of quality the fastest of all baselines in all variants, and what stands against
 * it. */
static void report_strongest(const replay_compare_result *result, FILE *file)
{
    fprintf(file, "\nThe fastest baseline at each level of quality, by the tuning seeds\n");
    for (size_t i = 0; i < result->row_count; i++) {
        const replay_compare_row *row = &result->rows[i];
        for (uint32_t level = 0; level < result->level_count; level++) {
            if ((row->fastest_at >> level & 1) == 0) continue;
            fprintf(
                file,
                "ssd at %.3g GB/s, quality %.3f: %s, %.3f s; ours %.3f s, %.3f [%.3f, %.3f] %s\n",
                row->ssd_bytes_per_s * 1e-9, result->levels[level], row->against, row->ttft_s,
                row->our_ttft_s, row->ratio, row->ratio_low, row->ratio_high,
                replay_verdict_name(row->verdict));
        }
    }
}

static void report_losses(const replay_compare_result *result, FILE *file)
{
    size_t counts[REPLAY_UNSTABLE + 1] = {0};
    for (size_t i = 0; i < result->row_count; i++)
        counts[result->rows[i].verdict]++;
    fprintf(file, "\n%zu rows: %zu win, %zu tie, %zu lose, %zu unmatched, %zu unstable\n",
            result->row_count, counts[REPLAY_WIN], counts[REPLAY_TIE], counts[REPLAY_LOSE],
            counts[REPLAY_UNMATCHED], counts[REPLAY_UNSTABLE]);
    for (size_t i = 0; i < result->row_count; i++) {
        const replay_compare_row *row = &result->rows[i];
        if (row->verdict == REPLAY_WIN) continue;
        fprintf(file, "no win (%s): %s, %s, ssd %.3g GB/s, sigma %.3g: ratio %.3f [%.3f, %.3f]\n",
                replay_verdict_name(row->verdict), report_kinds[row->kind], row->against,
                row->ssd_bytes_per_s * 1e-9, row->spread.sigma, row->ratio, row->ratio_low,
                row->ratio_high);
    }
}

kvt_status replay_compare_print_text(const replay_compare *plan,
                                     const replay_compare_result *result,
                                     const replay_compare_head *head, FILE *file)
{
    (void)head;
    fprintf(file, "%s: %llu requests", plan->trace != NULL ? plan->trace->name : "poisson",
            (unsigned long long)result->requests);
    if (result->sessions > 0) fprintf(file, " of %u drawn sessions", result->sessions);
    fprintf(file, " (seed %llu); seeds: %u evaluate, %u tune\n",
            (unsigned long long)plan->base->seed, plan->seeds, plan->tuning_seeds);
    fprintf(file, "capacity %.3f of the raw footprint; rho without a cache %.3f to %.3f\n",
            result->capacity_over_footprint, result->rho_none_low, result->rho_none_high);
    for (size_t kind = 0; kind < REPORT_KINDS; kind++)
        report_tables(result, (replay_row_kind)kind, file);
    report_strongest(result, file);
    report_losses(result, file);
    fprintf(file, "%llu runs in %.1f minutes\n", (unsigned long long)result->runs,
            result->wall_s / 60.0);
    if (plan->base->note[0] != '\0') fprintf(file, "%s\n", plan->base->note);
    return fflush(file) == 0 && !ferror(file) ? KVT_OK : KVT_E_IO;
}
