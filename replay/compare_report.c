/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compare_report.c - a comparison as JSON (schema "kvterrace-compare-1") and as tables.
 *
 * Times are seconds. A figure that does not exist (no seed on which both contenders have a mean) is
 * null. One thread.
 */
#include "compare.h"
#include "document.h"

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

static json_t *report_interval(double low, double high, bool *sound)
{
    json_t *pair = json_array();
    document_add(pair, document_number(low), sound);
    document_add(pair, document_number(high), sound);
    return pair;
}

/* The levels of quality at which a row's contender is the fastest baseline. */
static json_t *report_fastest(const replay_compare_result *result, const replay_compare_row *row,
                              bool *sound)
{
    json_t *levels = json_array();
    for (uint32_t i = 0; i < result->level_count; i++) {
        if ((row->fastest_at >> i & 1) == 0) continue;
        document_add(levels, json_real(result->levels[i]), sound);
    }
    return levels;
}

static json_t *report_row(const replay_compare_result *result, replay_compare_row row, bool *sound)
{
#define NAMED(key, member) DOCUMENT_FIELD(replay_compare_row, key, member)
#define FIELD(member)      NAMED(#member, member)
    json_t *object = json_object();
    if (row.seeds == 0) {
        row.ttft_s = row.our_ttft_s = row.quality = row.our_quality = row.ratio = NAN;
        row.ratio_low = row.ratio_high = row.saved_s = row.saved_s_low = row.saved_s_high = NAN;
        row.quality_low = row.quality_high = NAN;
    }
    DOCUMENT_PUT_FIELDS(object, &row, sound, FIELD(against), FIELD(ours), FIELD(ssd_bytes_per_s),
                        NAMED("sigma", spread.sigma), NAMED("repeatability", spread.repeatability),
                        NAMED("ttft_s_mean", ttft_s), NAMED("our_ttft_s_mean", our_ttft_s),
                        NAMED("quality_mean", quality), NAMED("our_quality_mean", our_quality),
                        FIELD(ratio), FIELD(saved_s), NAMED("rho_peak_max", rho),
                        NAMED("our_rho_peak_max", our_rho), FIELD(seeds),
                        NAMED("seeds_skipped", skipped));
    if (row.kind == REPLAY_ROW_MIX)
        document_put(object, "quality_level", json_real(row.level), sound);
    if (row.kind == REPLAY_ROW_BASELINE)
        document_put(object, "fastest_at_quality", report_fastest(result, &row, sound), sound);
    document_put(object, "quality_gain_95",
                 report_interval(row.quality_low, row.quality_high, sound), sound);
    document_put(object, "ratio_95", report_interval(row.ratio_low, row.ratio_high, sound), sound);
    document_put(object, "saved_s_95", report_interval(row.saved_s_low, row.saved_s_high, sound),
                 sound);
    document_put(object, "verdict", json_string(replay_verdict_name(row.verdict)), sound);
    return object;
#undef FIELD
#undef NAMED
}

static json_t *report_rows(const replay_compare_result *result, replay_row_kind kind, bool *sound)
{
    json_t *list = json_array();
    for (size_t i = 0; i < result->row_count; i++) {
        if (result->rows[i].kind != kind) continue;
        document_add(list, report_row(result, result->rows[i], sound), sound);
    }
    return list;
}

static json_t *report_configuration(const replay_compare *plan, const replay_compare_result *result,
                                    bool *sound)
{
#define FIELD(type, key, member) DOCUMENT_FIELD(replay_##type, key, member)
    const replay_options *base = plan->base;
    json_t *object = json_object();
    DOCUMENT_PUT_FIELDS(object, base, sound, FIELD(options, "ladder", ladder),
                        FIELD(options, "servers", servers), FIELD(options, "prefill", prefill_name),
                        FIELD(options, "warmup", warmup),
                        FIELD(options, "dram_bytes", tiers[KVT_TIER_DRAM].capacity_bytes),
                        FIELD(options, "ssd_bytes", tiers[KVT_TIER_SSD].capacity_bytes),
                        FIELD(options, "first_seed", seed));
    DOCUMENT_PUT_FIELDS(object, plan, sound, FIELD(compare, "seeds", seeds),
                        FIELD(compare, "tuning_seeds", tuning_seeds),
                        FIELD(compare, "quick", quick));
    DOCUMENT_PUT_FIELDS(object, result, sound, FIELD(compare_result, "sessions", sessions),
                        FIELD(compare_result, "requests", requests),
                        FIELD(compare_result, "capacity_over_footprint", capacity_over_footprint));
    document_put(object, "holes",
                 json_string(base->holes == KVT_HOLES_MIXED ? "mixed" : "contiguous"), sound);
    document_put(object, "rho_without_cache",
                 report_interval(result->rho_none_low, result->rho_none_high, sound), sound);
    return object;
#undef FIELD
}

kvt_status replay_compare_print_json(const replay_compare *plan,
                                     const replay_compare_result *result,
                                     const replay_compare_head *head, FILE *file)
{
    bool sound = true;
    json_t *root = json_object();
    document_put(root, "schema", json_string("kvterrace-compare-1"), &sound);
    document_put(root, "version", json_string(head->version), &sound);
    document_put(root, "command", document_text(head->command), &sound);
    document_put(root, "machine", document_text(head->machine), &sound);
    if (head->date != NULL) document_put(root, "date", json_string(head->date), &sound);
    const char *name = plan->trace != NULL ? plan->trace->name : "poisson";
    document_put(root, "workload", json_string(name), &sound);
    document_put(root, "interrupted", json_boolean(result->interrupted), &sound);
    document_put(root, "configuration", report_configuration(plan, result, &sound), &sound);
    for (size_t kind = 0; kind < REPORT_KINDS; kind++) {
        document_put(root, report_kinds[kind], report_rows(result, (replay_row_kind)kind, &sound),
                     &sound);
    }
    document_put(root, "note", document_text(plan->base->note), &sound);
    document_put(root, "runs", json_integer((json_int_t)result->runs), &sound);
    document_put(root, "wall_s", json_real(result->wall_s), &sound);
    return document_print(root, sound, 12, file);
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
    report_losses(result, file);
    fprintf(file, "%llu runs in %.1f minutes\n", (unsigned long long)result->runs,
            result->wall_s / 60.0);
    if (plan->base->note[0] != '\0') fprintf(file, "%s\n", plan->base->note);
    return fflush(file) == 0 && !ferror(file) ? KVT_OK : KVT_E_IO;
}
