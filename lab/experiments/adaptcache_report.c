/* SPDX-License-Identifier: Apache-2.0 */
/*
 * adaptcache_report.c - what AdaptCache's experiment says: for each setting the paper's comparison
 * with every fixed system, the best uniform mix at equal quality, hits, and the load that each
 * system bears; in JSON every run's means, too. One thread.
 */
#include "adaptcache_experiment.h"

#include <math.h>

#define SATURATED 0.99 /* of the span that the server works: its queue grows without end */
#define LEVELS    7

static const double levels[LEVELS] = {0.0, 0.001, 0.003, 0.01, 0.02, 0.05, 0.1};

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
    double least, most; /* by rate; of one rate, by seed */
    double rho;         /* most that either server works of the span */
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
    const uint32_t rates = run->options->rates;
    const bool alone = rates != 0 && (rates & (rates - 1)) == 0;
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
        figures.least = fmin(figures.least, alone ? ratio.least : ratio.delay);
        figures.most = fmax(figures.most, alone ? ratio.most : ratio.delay);
        figures.rho =
            fmax(figures.rho, fmax(experiment_mean_of(run, setting, rate, ours, false).busy,
                                   experiment_mean_of(run, setting, rate, mix, false).busy));
        figures.quality = fmin(figures.quality, quality);
    }
    figures.geometric = figures.rates > 0 ? exp(sum / figures.rates) : 0.0;
    return figures;
}

/* ---- JSON ---- */

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

static void report_compares(const experiment *run, uint32_t setting, bench_report *report)
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
            bench_report_row(report, "rows", row);
        }
        for (uint32_t i = 0; i < LEVELS; i++) {
            const level_figures f = compare_level(run, setting, engine, levels[i]);
            json_t *row = json_pack("{s:s,s:s,s:s,s:f,s:i,s:i,s:i}", "case", "mix", "setting", name,
                                    "engine", experiment_engines[engine].name, "loss_limit",
                                    levels[i], "rates", (int)f.rates, "engine_alone",
                                    (int)f.engine_alone, "mix_alone", (int)f.mix_alone);
            if (f.rates > 0)
                json_object_update_new(row, json_pack("{s:f, s:f, s:f, s:f, s:f}", "delay_ratio",
                                                      f.geometric, "delay_ratio_least", f.least,
                                                      "delay_ratio_most", f.most, "rho_most", f.rho,
                                                      "quality_less_least", f.quality));
            bench_report_row(report, "rows", row);
        }
    }
}

void experiment_report(const experiment *run, bench_report *report)
{
    const experiment_options *o = run->options;
    bench_report_add(
        report, json_pack("{s:I,s:I,s:I,s:s,s:s?,s:s,s:{s:f,s:f,s:f,s:f}}", "contexts",
                          (json_int_t)o->contexts, "requests", (json_int_t)o->contexts * o->uses,
                          "seeds", (json_int_t)o->seeds, "lengths", "built-in table", "profile",
                          o->profile, "loss", o->by_answers ? "rouge_l" : "profile", "host",
                          "dram_bytes", o->dram_bytes, "ssd_bytes", o->ssd_bytes, "ssd_bytes_per_s",
                          o->ssd_bytes_per_s, "prefill_speed", o->prefill_speed));
    for (uint32_t task = 0; task < EXPERIMENT_TASKS; task++) {
        const experiment_task *t = &run->tasks[task];
        bench_report_row(report, "tasks",
                         json_pack("{s:s,s:I,s:f,s:f}", "task", t->name, "entries",
                                   (json_int_t)t->entries, "sigma", t->sigma, "repeatability",
                                   t->repeatability));
    }
    for (uint32_t setting = 0; setting < EXPERIMENT_SETTINGS; setting++) {
        if (!experiment_has_setting(o, setting)) continue;
        for (uint32_t rate = 0; rate < EXPERIMENT_RATES; rate++)
            for (uint32_t i = 0; experiment_has_rate(o, rate) && i < run->system_count; i++)
                bench_report_row(report, "rows", json_system(run, setting, rate, i));
        report_compares(run, setting, report);
    }
}

/* Of `compare` the fixed system's TTFT over the engine's at no less quality, and the engine's
 * quality over the fixed system's at no more TTFT, over the rates that the fixed system bears. Of
 * `mix` the TTFT of the best uniform mix over the engine's, both with at most this loss: geometric
 * mean over the rates that both bear; the least and the most are by rate, of one rate by seed. */
const document_table experiment_tables[] = {
    {"", "contexts requests seeds lengths profile loss"},
    {"tasks", "task entries sigma repeatability"},
    {"rows:compare", "setting fixed engine delay_ratio_least delay_ratio_most quality_ratio_least "
                     "quality_ratio_most saturated_rates unmatched_quality unmatched_delay"},
    {"rows:mix",
     "setting loss_limit engine delay_ratio delay_ratio_least delay_ratio_most rho_most rates "
     "engine_alone mix_alone"},
    {0},
};
