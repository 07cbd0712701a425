/* SPDX-License-Identifier: Apache-2.0 */
/*
 * adaptcache_report.c - what AdaptCache's experiment says: every system at every rate, the two
 * comparisons of the paper, and where each figure comes from. One thread.
 */
#include "adaptcache_experiment.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static const char *const notes_published[] = {
    ("losses of KIVI: relative score drops on LongBench, Llama-3.1-8B-Instruct (TurboQuant, arXiv "
     "2504.19874, table 1)"),
    ("losses of StreamingLLM in question answering: RULER-4k, Qwen3-8B (SparseKV, Phase 1 Baseline "
     "Results)"),
    "mean lengths of code contexts: LongBench's LCC and RepoBench-P",
    "host: AdaptCache, section 3: one A100, 100 GB of DRAM, 400 GB of SSD at 1 GB/s",
    "decoding speed: derived from PatchKV's fetch times (2.1 GB: fp16 344 ms, int4 107 ms)",
};
static const char *const notes_measured[] = {
    ("the other losses: disagreement of the most likely token, codec trial, a model of 3 M "
     "parameters"),
    "planes lose what KIVI of their bits does: their KL in the codec trial, at half a bit less",
    "lengths of the other contexts: texts of L-Eval, QMSum and LongBench, 4.2 characters a token",
    "delays, hits and qualities below: this simulation, in virtual time",
};
static const char *const notes_assumed[] = {
    "prefill: FLOP model of Llama-3.1-8B at half of the A100's peak; DRAM at 25 GB/s",
    "a third of the contexts for each task; popularity as the option says (the paper gives none)",
    "a stored context is loaded only where that is faster than prefill, for every system",
    ("moves and re-coding are free and at once, for every system; loads have their tier to "
     "themselves"),
    "a form coded from a lossy one loses the sum of both losses",
    "no spread of losses within a task; policies know each task's mean",
};
#define NOTES(list) list, sizeof(list) / sizeof *(list)

/* ---- comparisons ---- */

static int point_compare(const void *left, const void *right)
{
    const experiment_outcome *a = left, *b = right;
    return a->quality < b->quality ? -1 : a->quality > b->quality;
}

/* Points by quality, those left out that another beats in both. */
static uint32_t frontier(const experiment_outcome points[EXPERIMENT_ALPHAS],
                         experiment_outcome kept[EXPERIMENT_ALPHAS])
{
    experiment_outcome sorted[EXPERIMENT_ALPHAS];
    uint32_t count = 0;
    memcpy(sorted, points, sizeof sorted);
    qsort(sorted, EXPERIMENT_ALPHAS, sizeof *sorted, point_compare);
    for (uint32_t i = 0; i < EXPERIMENT_ALPHAS; i++) {
        bool beaten = false;
        for (uint32_t k = i + 1; k < EXPERIMENT_ALPHAS; k++)
            if (sorted[k].ttft <= sorted[i].ttft) beaten = true;
        if (!beaten) kept[count++] = sorted[i];
    }
    return count;
}

double experiment_delay_ratio(const experiment_outcome points[EXPERIMENT_ALPHAS],
                              const experiment_outcome *fixed)
{
    experiment_outcome kept[EXPERIMENT_ALPHAS];
    uint32_t count = frontier(points, kept), at = 0;
    while (at < count && kept[at].quality < fixed->quality)
        at++;
    if (at == count) return 0.0;
    double delay = kept[at].ttft;
    if (at > 0) {
        double part =
            (fixed->quality - kept[at - 1].quality) / (kept[at].quality - kept[at - 1].quality);
        delay = kept[at - 1].ttft + part * (kept[at].ttft - kept[at - 1].ttft);
    }
    return fixed->ttft / delay;
}

double experiment_quality_ratio(const experiment_outcome points[EXPERIMENT_ALPHAS],
                                const experiment_outcome *fixed)
{
    experiment_outcome kept[EXPERIMENT_ALPHAS];
    uint32_t count = frontier(points, kept), at = count;
    while (at > 0 && kept[at - 1].ttft > fixed->ttft)
        at--;
    if (at == 0) return 0.0;
    double quality = kept[at - 1].quality;
    if (at < count) {
        double part = (fixed->ttft - kept[at - 1].ttft) / (kept[at].ttft - kept[at - 1].ttft);
        quality += part * (kept[at].quality - kept[at - 1].quality);
    }
    return quality / fixed->quality;
}

typedef struct spread {
    double least, median, most;
    uint32_t count; /* seeds that have a value */
} spread;

static int number_compare(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return a < b ? -1 : a > b;
}

/* Of positive numbers; 0 stands for none. */
static spread spread_of(const double *values, uint32_t count)
{
    double sorted[EXPERIMENT_SEEDS];
    spread s = {0.0, 0.0, 0.0, 0};
    for (uint32_t i = 0; i < count; i++)
        if (values[i] > 0.0) sorted[s.count++] = values[i];
    if (s.count == 0) return s;
    qsort(sorted, s.count, sizeof *sorted, number_compare);
    s.least = sorted[0];
    s.median = 0.5 * (sorted[(s.count - 1) / 2] + sorted[s.count / 2]);
    s.most = sorted[s.count - 1];
    return s;
}

static void engine_points(const experiment *run, uint32_t rate, uint32_t engine, uint32_t seed,
                          experiment_outcome points[EXPERIMENT_ALPHAS])
{
    uint32_t first = EXPERIMENT_FIXED + engine * EXPERIMENT_ALPHAS;
    for (uint32_t i = 0; i < EXPERIMENT_ALPHAS; i++)
        points[i] = run->outcomes[rate][first + i][seed];
}

static void compare(const experiment *run, uint32_t rate, uint32_t engine, uint32_t fixed,
                    spread *delay, spread *quality)
{
    double delays[EXPERIMENT_SEEDS], qualities[EXPERIMENT_SEEDS];
    uint32_t seeds = run->options->seeds;
    for (uint32_t seed = 0; seed < seeds; seed++) {
        experiment_outcome points[EXPERIMENT_ALPHAS];
        engine_points(run, rate, engine, seed, points);
        const experiment_outcome *other = &run->outcomes[rate][fixed][seed];
        delays[seed] = experiment_delay_ratio(points, other);
        qualities[seed] = experiment_quality_ratio(points, other);
    }
    *delay = spread_of(delays, seeds);
    *quality = spread_of(qualities, seeds);
}

/* Median over the seeds of one field of the outcomes; offset: where the field lies. */
static double median_of(const experiment *run, uint32_t rate, uint32_t system, size_t offset)
{
    double values[EXPERIMENT_SEEDS];
    uint32_t seeds = run->options->seeds;
    for (uint32_t seed = 0; seed < seeds; seed++) {
        const char *outcome = (const char *)&run->outcomes[rate][system][seed];
        memcpy(&values[seed], outcome + offset, sizeof *values);
    }
    qsort(values, seeds, sizeof *values, number_compare);
    return 0.5 * (values[(seeds - 1) / 2] + values[seeds / 2]);
}
#define MEDIAN(run, rate, system, field)                                                           \
    median_of(run, rate, system, offsetof(experiment_outcome, field))

/* ---- JSON ---- */

static json_t *json_notes(const char *const *notes, size_t count)
{
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(list, json_string(notes[i]));
    return list;
}

static json_t *json_system(const experiment *run, uint32_t rate, uint32_t system)
{
    char name[160];
    double alpha;
    experiment_name(run, system, name, sizeof name, &alpha);
    json_t *row =
        json_pack("{s:s,s:s,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f}", "case", "system", "system", name,
                  "requests_per_s", run->rates[rate], "rate_share", experiment_rate_shares[rate],
                  "ttft_s", MEDIAN(run, rate, system, ttft), "service_s",
                  MEDIAN(run, rate, system, service), "quality", MEDIAN(run, rate, system, quality),
                  "dram_hit_ratio", MEDIAN(run, rate, system, dram_hits), "ssd_hit_ratio",
                  MEDIAN(run, rate, system, ssd_hits), "rho", MEDIAN(run, rate, system, busy));
    if (alpha > 0.0) json_object_set_new(row, "alpha", json_real(alpha));
    for (uint32_t task = 0; task < EXPERIMENT_TASKS; task++) {
        char key[64];
        size_t at = task * sizeof(double);
        snprintf(key, sizeof key, "quality_%s", experiment_tasks[task]);
        double value =
            median_of(run, rate, system, offsetof(experiment_outcome, task_quality) + at);
        json_object_set_new(row, key, json_real(value));
        snprintf(key, sizeof key, "dram_hit_ratio_%s", experiment_tasks[task]);
        value = median_of(run, rate, system, offsetof(experiment_outcome, task_dram_hits) + at);
        json_object_set_new(row, key, json_real(value));
    }
    return row;
}

static void json_set_spread(json_t *row, const char *name, const spread *s, uint32_t seeds)
{
    char key[64];
    const double values[] = {s->median, s->least, s->most};
    const char *const ends[] = {"", "_least", "_most"};
    for (int i = 0; i < 3; i++) {
        snprintf(key, sizeof key, "%s%s", name, ends[i]);
        json_object_set_new(row, key, s->count > 0 ? json_real(values[i]) : json_null());
    }
    snprintf(key, sizeof key, "%s_seeds", name);
    json_object_set_new(row, key, json_pack("[I,I]", (json_int_t)s->count, (json_int_t)seeds));
}

static json_t *json_compare(const experiment *run, uint32_t rate, uint32_t engine, uint32_t fixed)
{
    char name[160];
    double alpha;
    spread delay, quality;
    experiment_name(run, fixed, name, sizeof name, &alpha);
    compare(run, rate, engine, fixed, &delay, &quality);
    json_t *row =
        json_pack("{s:s,s:s,s:s,s:f}", "case", "compare", "engine", experiment_engines[engine].name,
                  "with", name, "rate_share", experiment_rate_shares[rate]);
    json_set_spread(row, "delay_ratio", &delay, run->options->seeds);
    json_set_spread(row, "quality_ratio", &quality, run->options->seeds);
    return row;
}

static kvt_status print_json(const experiment *run)
{
    const experiment_options *o = run->options;
    json_t *rows = json_array();
    for (uint32_t rate = 0; rate < EXPERIMENT_RATES; rate++) {
        for (uint32_t system = 0; system < EXPERIMENT_SYSTEMS; system++)
            json_array_append_new(rows, json_system(run, rate, system));
        for (uint32_t engine = 0; engine < EXPERIMENT_ENGINES; engine++)
            for (uint32_t fixed = 0; fixed < EXPERIMENT_FIXED; fixed++)
                json_array_append_new(rows, json_compare(run, rate, engine, fixed));
    }
    json_t *document =
        json_pack("{s:s,s:I,s:I,s:I,s:f,s:s,s:f,s:o,s:o,s:o,s:o}", "schema",
                  "kvterrace-bench-adaptcache-1", "contexts", (json_int_t)o->contexts, "requests",
                  (json_int_t)o->contexts * o->uses, "seeds", (json_int_t)o->seeds, "zipf", o->zipf,
                  "lengths", run->real_texts ? "texts" : "built-in table", "prefill_mean_s",
                  run->prefill_mean_s, "published", json_notes(NOTES(notes_published)), "measured",
                  json_notes(NOTES(notes_measured)), "assumed", json_notes(NOTES(notes_assumed)),
                  "rows", rows);
    if (document == NULL) return KVT_E_MEMORY;
    int failed = json_dumpf(document, o->out, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    json_decref(document);
    return failed != 0 || fputc('\n', o->out) == EOF ? KVT_E_IO : KVT_OK;
}

/* ---- text ---- */

static void text_notes(const experiment *run, const char *title, const char *const *notes,
                       size_t count)
{
    fprintf(run->options->out, "%s\n", title);
    for (size_t i = 0; i < count; i++)
        fprintf(run->options->out, "  - %s\n", notes[i]);
}

static void text_systems(const experiment *run, uint32_t rate)
{
    FILE *out = run->options->out;
    fprintf(out,
            "\n%.3f requests/s, %.0f %% of what prefill alone can bear; medians of %u seeds\n"
            "%-26s %6s %8s %8s %8s %8s %8s %6s\n",
            run->rates[rate], 100.0 * experiment_rate_shares[rate], run->options->seeds, "system",
            "alpha", "TTFT s", "quality", "DRAM hit", "of code", "SSD hit", "rho");
    for (uint32_t system = 0; system < EXPERIMENT_SYSTEMS; system++) {
        char name[160], alpha_text[16] = "-";
        double alpha;
        experiment_name(run, system, name, sizeof name, &alpha);
        if (alpha > 0.0) snprintf(alpha_text, sizeof alpha_text, "%g", alpha);
        fprintf(out, "%-26s %6s %8.3f %8.4f %7.1f%% %7.1f%% %7.1f%% %6.3f\n", name, alpha_text,
                MEDIAN(run, rate, system, ttft), MEDIAN(run, rate, system, quality),
                100.0 * MEDIAN(run, rate, system, dram_hits),
                100.0 * MEDIAN(run, rate, system, task_dram_hits[EXPERIMENT_TASKS - 1]),
                100.0 * MEDIAN(run, rate, system, ssd_hits), MEDIAN(run, rate, system, busy));
    }
}

static void text_spread(FILE *out, const spread *s, uint32_t seeds)
{
    if (s->count == 0) {
        fprintf(out, " %25s", "not reached");
        return;
    }
    fprintf(out, " %7.3f (%7.3f %7.3f)%s", s->median, s->least, s->most,
            s->count < seeds ? "*" : " ");
}

static void text_compare(const experiment *run)
{
    FILE *out = run->options->out;
    fprintf(out,
            "\ndelay: of the fixed system over the engine's at the same quality; quality: the "
            "engine's over the fixed\nsystem's at the same delay; medians (least, most), * where "
            "not every seed reaches it\n%-10s %5s %-26s %25s %26s\n",
            "engine", "rate", "fixed system", "delay", "quality");
    for (uint32_t engine = 0; engine < EXPERIMENT_ENGINES; engine++) {
        for (uint32_t rate = 0; rate < EXPERIMENT_RATES; rate++) {
            for (uint32_t fixed = 0; fixed < EXPERIMENT_FIXED; fixed++) {
                char name[160];
                double alpha;
                spread delay, quality;
                experiment_name(run, fixed, name, sizeof name, &alpha);
                compare(run, rate, engine, fixed, &delay, &quality);
                fprintf(out, "%-10s %4.0f%% %-26s", experiment_engines[engine].name,
                        100.0 * experiment_rate_shares[rate], name);
                text_spread(out, &delay, run->options->seeds);
                text_spread(out, &quality, run->options->seeds);
                fputc('\n', out);
            }
        }
    }
}

kvt_status experiment_print(const experiment *run)
{
    const experiment_options *o = run->options;
    if (o->json) return print_json(run);
    fprintf(o->out,
            "AdaptCache's experiment: %u contexts, lengths from %s, %u requests each, popularity "
            "Zipf %g; prefill %.3f s a request\n",
            o->contexts, run->real_texts ? "the texts" : "a table", o->uses, o->zipf,
            run->prefill_mean_s);
    for (uint32_t rate = 0; rate < EXPERIMENT_RATES; rate++)
        text_systems(run, rate);
    text_compare(run);
    fputc('\n', o->out);
    text_notes(run, "published:", NOTES(notes_published));
    text_notes(run, "measured:", NOTES(notes_measured));
    text_notes(run, "assumed:", NOTES(notes_assumed));
    return ferror(o->out) ? KVT_E_IO : KVT_OK;
}
