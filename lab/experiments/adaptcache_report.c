/* SPDX-License-Identifier: Apache-2.0 */
/*
 * adaptcache_report.c - what AdaptCache's experiment says: for each setting the paper's comparison
 * with every fixed system, the best uniform mix at equal quality, hits, and the load that each
 * system bears; in JSON every run's means, too. One thread.
 */
#include "adaptcache_experiment.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SATURATED 0.99 /* of the span that the server works: its queue grows without end */
#define LEVELS    7

static const double levels[LEVELS] = {0.0, 0.001, 0.003, 0.01, 0.02, 0.05, 0.1};

static const char *const notes_paper[] = {
    "delay 1.43 to 2.4 times less than the strongest fixed baseline at equal quality",
    "quality 6 to 55 % better at equal delay",
    "hits of DRAM on code 81, 56, 44 and 11 % by alpha, where KIVI of 2 bits has 38 %",
    "host: one A100, 100 GB of DRAM, 400 GB of SSD at 1 GB/s, Llama-3.1-8B (section 3)",
};
static const char *const notes_ladders[] = {
    ("losses of KIVI: relative score drops on LongBench, Llama-3.1-8B-Instruct (TurboQuant, arXiv "
     "2504.19874, table 1)"),
    ("losses of StreamingLLM in question answering: RULER-4k, Qwen3-8B (SparseKV, Phase 1 Baseline "
     "Results)"),
    ("the other losses: disagreement of the most likely token, codec trial, a model of 3 M "
     "parameters; planes lose what KIVI of their bits does, at half a bit less"),
    "no spread of losses within a task; policies know each task's mean",
};
static const char *const notes_assumed[] = {
    "prefill: FLOP model of Llama-3.1-8B at half of the A100's peak; DRAM at 25 GB/s",
    "speed of decoding: profiles/codecs-gpu.json, or the ladder's; encoding and moves are free",
    "lengths of code contexts: LongBench's LCC and RepoBench-P; the others from real texts",
    "a variant coded from a lossy one loses the sum of both losses",
    "a system recomputes where that is faster than loading, but where its name says always loads",
    "the alpha and the mix are chosen on the first half of the seeds and judged on the others",
};
#define NOTES(list) list, sizeof(list) / sizeof *(list)

/* ---- figures over the rates of a setting ---- */

typedef struct range {
    double least, most;
    uint32_t count, unreached, saturated;
} range;

static void range_add(range *r, double value)
{
    r->least = r->count == 0 ? value : fmin(r->least, value);
    r->most = r->count == 0 ? value : fmax(r->most, value);
    r->count++;
}

/* Of the fixed system's TTFT over the chosen one's, and of the qualities, at all rates that both
 * bear. */
static void compare_fixed(const experiment *run, uint32_t setting, experiment_group group,
                          uint32_t fixed, range *delay, range *quality)
{
    *delay = *quality = (range){0};
    for (uint32_t rate = 0; rate < EXPERIMENT_RATES; rate++) {
        if (!experiment_has_rate(run->options, rate)) continue;
        const experiment_mean tuned = experiment_mean_of(run, setting, rate, fixed, true);
        if (experiment_mean_of(run, setting, rate, fixed, false).busy >= SATURATED) {
            delay->saturated++;
            continue;
        }
        const experiment_ratio by_delay =
            experiment_compare(run, setting, rate,
                               experiment_fastest(run, setting, rate, group, tuned.quality), fixed);
        const experiment_ratio by_quality = experiment_compare(
            run, setting, rate, experiment_best(run, setting, rate, group, tuned.ttft), fixed);
        delay->unreached += !by_delay.reached;
        quality->unreached += !by_quality.reached;
        if (by_delay.reached) range_add(delay, by_delay.delay);
        if (by_quality.reached) range_add(quality, by_quality.quality);
    }
}

typedef struct level_figures {
    double geometric;   /* of the mix's TTFT over the engine's, over the rates */
    double least, most; /* by rate */
    double quality;     /* least of the engine's quality less the mix's */
    uint32_t rates;     /* at which both reach the level and neither is saturated */
    uint32_t engine_alone, mix_alone;
} level_figures;

static bool system_bears(const experiment *run, uint32_t setting, uint32_t rate, uint32_t system)
{
    return system != UINT32_MAX &&
           experiment_mean_of(run, setting, rate, system, false).busy < SATURATED;
}

/* The best uniform mix over the engine at the rates that both bear. */
static level_figures compare_level(const experiment *run, uint32_t setting, uint32_t engine,
                                   double loss)
{
    const experiment_group engines = experiment_group_of_engine(run, engine);
    const experiment_group mixes = experiment_group_of_mixes(run);
    level_figures figures = {.least = INFINITY, .quality = INFINITY};
    double sum = 0.0;
    for (uint32_t rate = 0; rate < EXPERIMENT_RATES; rate++) {
        if (!experiment_has_rate(run->options, rate)) continue;
        const uint32_t ours = experiment_fastest(run, setting, rate, engines, 1.0 - loss);
        const uint32_t mix = experiment_fastest(run, setting, rate, mixes, 1.0 - loss);
        const bool we = system_bears(run, setting, rate, ours);
        const bool they = system_bears(run, setting, rate, mix);
        figures.engine_alone += we && !they;
        figures.mix_alone += they && !we;
        if (!we || !they) continue;
        const experiment_ratio ratio = experiment_compare(run, setting, rate, ours, mix);
        const double quality = experiment_mean_of(run, setting, rate, ours, false).quality -
                               experiment_mean_of(run, setting, rate, mix, false).quality;
        figures.rates++;
        sum += log(ratio.delay);
        figures.least = fmin(figures.least, ratio.delay);
        figures.most = fmax(figures.most, ratio.delay);
        figures.quality = fmin(figures.quality, quality);
    }
    figures.geometric = figures.rates > 0 ? exp(sum / figures.rates) : 0.0;
    return figures;
}

/* The most load that something of the group bears at this loss: a share of what prefill can bear;
 * 0: none of the rates. */
static double most_load(const experiment *run, uint32_t setting, experiment_group group,
                        double loss)
{
    for (uint32_t rate = EXPERIMENT_RATES; rate-- > 0;)
        for (uint32_t i = group.first; i < group.first + group.count; i++) {
            if (!experiment_has_rate(run->options, rate)) continue;
            const experiment_mean mean = experiment_mean_of(run, setting, rate, i, false);
            if (mean.busy < SATURATED && mean.quality >= 1.0 - loss)
                return experiment_rate_shares[rate];
        }
    return 0.0;
}

/* ---- JSON ---- */

static json_t *json_notes(const char *const *notes, size_t count)
{
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(list, json_string(notes[i]));
    return list;
}

static json_t *json_system(const experiment *run, uint32_t setting, uint32_t rate, uint32_t system)
{
    const experiment_system *s = &run->systems[system];
    const experiment_mean mean = experiment_mean_of(run, setting, rate, system, false);
    char name[96];
    experiment_setting_name(run, setting, name, sizeof name);
    json_t *row = json_pack("{s:s,s:s,s:s,s:f,s:f,s:f,s:f,s:f,s:f,s:b}", "case", "system",
                            "setting", name, "system", s->name, "rate_share",
                            experiment_rate_shares[rate], "ttft_s", mean.ttft, "quality",
                            mean.quality, "dram_hit_ratio", mean.dram_hits, "ssd_hit_ratio",
                            mean.ssd_hits, "rho", mean.busy, "saturated", mean.busy >= SATURATED);
    if (s->kind == EXPERIMENT_ENGINE) json_object_set_new(row, "alpha", json_real(s->alpha));
    return row;
}

static void json_range(json_t *row, const char *name, const range *r)
{
    char key[64];
    if (r->count == 0) return;
    (void)snprintf(key, sizeof key, "%s_least", name);
    json_object_set_new(row, key, json_real(r->least));
    (void)snprintf(key, sizeof key, "%s_most", name);
    json_object_set_new(row, key, json_real(r->most));
}

static void json_compares(const experiment *run, uint32_t setting, json_t *rows)
{
    char name[96];
    experiment_setting_name(run, setting, name, sizeof name);
    for (uint32_t engine = 0; engine < EXPERIMENT_ENGINES; engine++) {
        const experiment_group group = experiment_group_of_engine(run, engine);
        for (uint32_t i = 0; i < run->system_count; i++) {
            range delay, quality;
            if (run->systems[i].kind > EXPERIMENT_FIXED) continue;
            compare_fixed(run, setting, group, i, &delay, &quality);
            json_t *row =
                json_pack("{s:s,s:s,s:s,s:s,s:i,s:i,s:i}", "case", "compare", "setting", name,
                          "engine", experiment_engines[engine].name, "fixed", run->systems[i].name,
                          "saturated_rates", (int)delay.saturated, "unmatched_quality",
                          (int)delay.unreached, "unmatched_delay", (int)quality.unreached);
            json_range(row, "delay_ratio", &delay);
            json_range(row, "quality_ratio", &quality);
            json_array_append_new(rows, row);
        }
        for (uint32_t i = 0; i < LEVELS; i++) {
            const level_figures f = compare_level(run, setting, engine, levels[i]);
            json_t *row = json_pack("{s:s,s:s,s:s,s:f,s:i,s:i,s:i}", "case", "mix", "setting", name,
                                    "engine", experiment_engines[engine].name, "loss_limit",
                                    levels[i], "rates", (int)f.rates, "engine_alone",
                                    (int)f.engine_alone, "mix_alone", (int)f.mix_alone);
            if (f.rates > 0) {
                json_object_set_new(row, "delay_ratio", json_real(f.geometric));
                json_object_set_new(row, "delay_ratio_least", json_real(f.least));
                json_object_set_new(row, "delay_ratio_most", json_real(f.most));
                json_object_set_new(row, "quality_less_least", json_real(f.quality));
            }
            json_array_append_new(rows, row);
        }
    }
}

static kvt_status print_json(const experiment *run)
{
    const experiment_options *o = run->options;
    json_t *rows = json_array(), *tasks = json_array();
    for (uint32_t task = 0; task < EXPERIMENT_TASKS; task++) {
        const experiment_task *t = &run->tasks[task];
        json_array_append_new(tasks, json_pack("{s:s,s:I,s:f,s:f}", "task", t->name, "entries",
                                               (json_int_t)t->entries, "sigma", t->sigma,
                                               "repeatability", t->repeatability));
    }
    for (uint32_t setting = 0; setting < EXPERIMENT_SETTINGS; setting++) {
        if (!experiment_has_setting(o, setting)) continue;
        for (uint32_t rate = 0; rate < EXPERIMENT_RATES; rate++)
            for (uint32_t i = 0; experiment_has_rate(o, rate) && i < run->system_count; i++)
                json_array_append_new(rows, json_system(run, setting, rate, i));
        json_compares(run, setting, rows);
    }
    json_t *host =
        json_pack("{s:f,s:f,s:f,s:f}", "dram_bytes", o->dram_bytes, "ssd_bytes", o->ssd_bytes,
                  "ssd_bytes_per_s", o->ssd_bytes_per_s, "prefill_speed", o->prefill_speed);
    json_t *document =
        json_pack("{s:s,s:I,s:I,s:I,s:s,s:s?,s:s,s:o,s:o,s:o,s:o,s:o,s:o}", "schema",
                  "kvterrace-bench-adaptcache-2", "contexts", (json_int_t)o->contexts, "requests",
                  (json_int_t)o->contexts * o->uses, "seeds", (json_int_t)o->seeds, "lengths",
                  run->real_texts ? "texts" : "built-in table", "profile", o->profile, "loss",
                  o->by_answers ? "rouge_l" : "profile", "host", host, "tasks", tasks, "paper",
                  json_notes(NOTES(notes_paper)), "published",
                  o->profile == NULL ? json_notes(NOTES(notes_ladders)) : json_array(), "assumed",
                  json_notes(NOTES(notes_assumed)), "rows", rows);
    if (document == NULL) return KVT_E_MEMORY;
    const int failed = json_dumpf(document, o->out, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
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

/* "1.43-2.40", with a star where a rate is left out because no alpha is good or fast enough. */
static void text_range(FILE *out, const range *r)
{
    char text[40] = "not reached";
    if (r->count > 0)
        (void)snprintf(text, sizeof text, "%.2f-%.2f%s", r->least, r->most,
                       r->unreached > 0 ? "*" : "");
    fprintf(out, " %12s", text);
}

static void text_fixed(const experiment *run, uint32_t setting)
{
    FILE *out = run->options->out;
    fprintf(out,
            "\n  Fixed system's TTFT over the engine's at no less quality (delay), and the "
            "engine's quality over the fixed\n  system's at no more TTFT: least and most over the "
            "rates that the fixed system bears; * not at every rate\n  %-36s %3s",
            "against", "of");
    for (uint32_t engine = 0; engine < EXPERIMENT_ENGINES; engine++)
        fprintf(out, " %25s", experiment_engines[engine].name);
    fputc('\n', out);
    for (uint32_t i = 0; i < run->system_count; i++) {
        if (run->systems[i].kind > EXPERIMENT_FIXED) continue;
        for (uint32_t engine = 0; engine < EXPERIMENT_ENGINES; engine++) {
            range delay, quality;
            compare_fixed(run, setting, experiment_group_of_engine(run, engine), i, &delay,
                          &quality);
            if (engine == 0)
                fprintf(out, "  %-36s %3u", run->systems[i].name, delay.count + delay.unreached);
            text_range(out, &delay);
            text_range(out, &quality);
        }
        fputc('\n', out);
    }
}

static void text_levels(const experiment *run, uint32_t setting)
{
    FILE *out = run->options->out;
    fprintf(out,
            "\n  TTFT of the best uniform mix over the engine's, both with at most this loss: "
            "geometric mean over the rates\n  that both bear (least, most); +n: rates that the "
            "engine bears alone, -n: the mix alone\n  %6s",
            "loss");
    for (uint32_t engine = 0; engine < EXPERIMENT_ENGINES; engine++)
        fprintf(out, " %25s", experiment_engines[engine].name);
    fputc('\n', out);
    for (uint32_t i = 0; i < LEVELS; i++) {
        fprintf(out, "  %6g", levels[i]);
        for (uint32_t engine = 0; engine < EXPERIMENT_ENGINES; engine++) {
            const level_figures f = compare_level(run, setting, engine, levels[i]);
            char text[64] = "-";
            if (f.rates > 0)
                (void)snprintf(text, sizeof text, "%.3f (%.2f %.2f) +%u -%u", f.geometric, f.least,
                               f.most, f.engine_alone, f.mix_alone);
            fprintf(out, " %25s", text);
        }
        fputc('\n', out);
    }
}

/* Hits of DRAM by alpha at the lowest rate, beside those of the smallest fixed variants. */
static void text_hits(const experiment *run, uint32_t setting)
{
    FILE *out = run->options->out;
    uint32_t lowest = 0;
    while (!experiment_has_rate(run->options, lowest))
        lowest++;
    fprintf(out, "\n  Hits of DRAM at a share of %g:", experiment_rate_shares[lowest]);
    for (uint32_t i = 0; i < run->system_count; i++) {
        const experiment_system *s = &run->systems[i];
        if (s->kind != EXPERIMENT_FIXED || s->menu != EXPERIMENT_MENU_PAPER || s->always) continue;
        fprintf(out, " %s %.0f %%,", s->name,
                100.0 * experiment_mean_of(run, setting, lowest, i, false).dram_hits);
    }
    for (uint32_t engine = 0; engine < EXPERIMENT_ENGINES; engine += 4) {
        const experiment_group group = experiment_group_of_engine(run, engine);
        fprintf(out, "\n  %s by alpha:", experiment_engines[engine].name);
        for (uint32_t i = group.first; i < group.first + group.count; i++) {
            const experiment_mean mean = experiment_mean_of(run, setting, lowest, i, false);
            fprintf(out, " %g: %.0f %% %.3f;", run->systems[i].alpha, 100.0 * mean.dram_hits,
                    mean.quality);
        }
    }
    fputc('\n', out);
}

static void text_loads(const experiment *run, uint32_t setting)
{
    static const double losses[] = {0.0, 0.01, 0.05};
    FILE *out = run->options->out;
    fprintf(out,
            "\n  Most load borne (share of what prefill alone can bear; rates tried: up to "
            "%g) at a loss of at most 0, 0.01, 0.05:\n ",
            experiment_rate_shares[EXPERIMENT_RATES - 1]);
    for (uint32_t engine = 0; engine <= EXPERIMENT_ENGINES; engine++) {
        const bool mixes = engine == EXPERIMENT_ENGINES;
        const experiment_group group =
            mixes ? experiment_group_of_mixes(run) : experiment_group_of_engine(run, engine);
        fprintf(out, " %s", mixes ? "best uniform mix" : experiment_engines[engine].name);
        for (size_t i = 0; i < sizeof losses / sizeof losses[0]; i++)
            fprintf(out, " %g", most_load(run, setting, group, losses[i]));
        fputs(mixes ? "\n" : ";", out);
    }
}

static void text_tasks(const experiment *run)
{
    for (uint32_t task = 0; task < EXPERIMENT_TASKS; task++) {
        const experiment_task *t = &run->tasks[task];
        FILE *out = run->options->out;
        fprintf(out, "%s", t->name);
        if (t->entries > 0)
            fprintf(out, " (%u entries; spread %.2f, of which %.2f is known beforehand)",
                    t->entries, t->sigma, t->repeatability);
        for (uint32_t menu = 0; menu < EXPERIMENT_MENUS; menu++) {
            const kvt_cost_model *model = &run->models[menu][task];
            fprintf(out, "%s", menu == 0 ? ": AdaptCache's" : "\n    ours");
            for (uint32_t i = 0; i < model->variant_count; i++) {
                char name[64];
                (void)kvt_variant_format(model->variants[i].variant, name, sizeof name);
                fprintf(out, "%s %s %.2f b %.4f", i > 0 ? "," : "", name,
                        16.0 * model->variants[i].stored_share, model->variants[i].loss);
            }
        }
        fputc('\n', out);
    }
}

kvt_status experiment_print(const experiment *run)
{
    const experiment_options *o = run->options;
    if (o->json) return print_json(run);
    fprintf(o->out,
            "AdaptCache's experiment: %u contexts, lengths from %s, %u requests each, %u seeds; "
            "variants, bits and losses of %s:\n",
            o->contexts, run->real_texts ? "the texts" : "a table", o->uses, o->seeds,
            o->profile != NULL ? o->profile : "the published ladders");
    text_tasks(run);
    fprintf(o->out,
            "host: %g GB of DRAM, %g GB of SSD at %g GB/s, prefill at %g of the model's speed%s\n",
            1e-9 * o->dram_bytes, 1e-9 * o->ssd_bytes, 1e-9 * o->ssd_bytes_per_s, o->prefill_speed,
            o->by_answers ? "; losses are 1 - ROUGE-L of answers" : "");
    for (uint32_t setting = 0; setting < EXPERIMENT_SETTINGS; setting++) {
        char name[96];
        if (!experiment_has_setting(o, setting)) continue;
        experiment_setting_name(run, setting, name, sizeof name);
        fprintf(o->out, "\n%s; prefill alone bears %.3f requests/s\n", name,
                experiment_rate(run, setting, 0) / experiment_rate_shares[0]);
        text_fixed(run, setting);
        text_levels(run, setting);
        text_hits(run, setting);
        text_loads(run, setting);
    }
    fputc('\n', o->out);
    text_notes(run, "the paper says:", NOTES(notes_paper));
    if (o->profile == NULL) text_notes(run, "published:", NOTES(notes_ladders));
    text_notes(run, "assumed:", NOTES(notes_assumed));
    return ferror(o->out) ? KVT_E_IO : KVT_OK;
}
