/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_bench_adaptcache.c - AdaptCache's experiment: its choices on runs worked out by hand,
 * single systems whose times are known, menus of a profile, and the whole of it in small.
 */
#include "cases.h"

#include "lab/experiments/adaptcache_experiment.h"

#include "codecs/codecs.h"
#include "estimator/exchange/exchange.h"

#include <kvterrace/codec.h>

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static experiment_options small_options(void)
{
    static char ladders[1024];
    experiment_options options;
    const char *source = getenv("KVT_SOURCE_DIR");
    if (source == NULL) fail_msg("KVT_SOURCE_DIR is not set");
    (void)snprintf(ladders, sizeof ladders, "%s/profiles", source);
    experiment_options_init(&options);
    options.ladders = ladders;
    options.contexts = 240;
    options.uses = 5;
    options.seeds = 2;
    options.coarse = true;
    options.threads = 2;
    options.settings = 1u << (EXPERIMENT_SETTINGS - 1);
    return options;
}

static experiment *small_open(const experiment_options *options)
{
    char message[512] = "";
    experiment *run = test_zeros(sizeof *run);
    if (experiment_open(run, options, message, sizeof message) != KVT_OK) fail_msg("%s", message);
    return run;
}

static void small_close(experiment *run)
{
    experiment_close(run);
}

static void near(double value, double wanted)
{
    if (fabs(value - wanted) > 1e-9) fail_msg("%.12f, wanted %.12f", value, wanted);
}

/* ---- choices ---- */

/* Four seeds, one setting and rate; systems 0 to 3, whose outcomes the tests write. */
static experiment *made_up(experiment_options *options, const double ttft[4][4],
                           const double quality[4][4])
{
    experiment *run = test_zeros(sizeof *run);
    *options = (experiment_options){.seeds = 4};
    run->options = options;
    run->system_count = 4;
    const size_t runs = (size_t)EXPERIMENT_SETTINGS * EXPERIMENT_RATES * 4 * 4;
    run->outcomes = calloc(runs, sizeof *run->outcomes);
    assert_non_null(run->outcomes);
    for (uint32_t system = 0; system < 4; system++)
        for (uint32_t seed = 0; seed < 4; seed++)
            run->outcomes[system * 4 + seed] =
                (experiment_outcome){.ttft = ttft[system][seed], .quality = quality[system][seed]};
    return run;
}

/* Seeds 0 and 1 choose, 2 and 3 judge. System 1 is fastest of those as good as 0.97, system 2 is
 * faster and worse, system 3 is slower. */
TEST(choices_are_runs_and_judged_on_other_seeds)
{
    static const double ttft[4][4] = {{8, 8, 6, 9}, {2, 4, 2, 4}, {1, 1, 1, 1}, {5, 5, 1, 1}};
    static const double quality[4][4] = {
        {.97, .97, .9, .9}, {.96, .98, .99, .99}, {.96, .96, 1, 1}, {1, 1, 1, 1}};
    experiment_options options;
    experiment *run = made_up(&options, ttft, quality);
    const experiment_group engine = {1, 3};
    near(experiment_mean_of(run, 0, 0, 1, true).ttft, 3.0);
    near(experiment_mean_of(run, 0, 0, 1, false).quality, 0.99);
    assert_int_equal(experiment_fastest(run, 0, 0, engine, 0.97), 1);
    assert_int_equal(experiment_fastest(run, 0, 0, engine, 0.96), 2);
    assert_int_equal(experiment_fastest(run, 0, 0, engine, 0.99), 3);
    assert_int_equal(experiment_fastest(run, 0, 0, (experiment_group){1, 2}, 0.99), UINT32_MAX);
    assert_int_equal(experiment_best(run, 0, 0, engine, 3.0), 1);
    assert_int_equal(experiment_best(run, 0, 0, engine, 1.0), 2);
    assert_int_equal(experiment_best(run, 0, 0, engine, 0.5), UINT32_MAX);
    const experiment_ratio ratio = experiment_compare(run, 0, 0, 1, 0);
    assert_true(ratio.reached);
    near(ratio.delay, 7.5 / 3.0);
    near(ratio.least, 9.0 / 4.0);
    near(ratio.most, 6.0 / 2.0);
    near(ratio.quality, 0.99 / 0.9);
    assert_false(experiment_compare(run, 0, 0, UINT32_MAX, 0).reached);
    free(run->outcomes);
}

/* One seed chooses and judges. */
TEST(one_seed_does_both)
{
    static const double ttft[4][4] = {{8, 1, 1, 1}, {2, 1, 1, 1}, {1, 1, 1, 1}, {5, 1, 1, 1}};
    static const double quality[4][4] = {{1}, {1}, {1}, {1}};
    experiment_options options;
    experiment *run = made_up(&options, ttft, quality);
    options.seeds = 1;
    near(experiment_mean_of(run, 0, 0, 0, true).ttft, 8.0);
    near(experiment_mean_of(run, 0, 0, 0, false).ttft, 8.0);
    free(run->outcomes);
}

/* ---- single systems ---- */

static uint32_t find_system(const experiment *run, const char *name)
{
    for (uint32_t i = 0; i < run->system_count; i++)
        if (strcmp(run->systems[i].name, name) == 0) return i;
    fail_msg("no system %s", name);
    return 0;
}

static experiment_outcome measure(const experiment *run, const char *name)
{
    const uint32_t setting = EXPERIMENT_TASKS; /* all tasks, even popularity */
    experiment_outcome out;
    char message[512] = "";
    const kvt_status status = experiment_measure(run, &run->draws[setting * run->options->seeds],
                                                 &run->systems[find_system(run, name)], 1e-4, 1,
                                                 &out, message, sizeof message);
    if (status != KVT_OK) fail_msg("%s: %s", name, message);
    return out;
}

TEST(prefill_and_raw_lose_nothing)
{
    const experiment_options options = small_options();
    experiment *run = small_open(&options);
    experiment_draw *draw = &run->draws[EXPERIMENT_TASKS * options.seeds];
    for (uint32_t i = 0; i < options.contexts; i++)
        draw->contexts[i].tokens = 8000;
    const experiment_outcome prefill = measure(run, "prefill"), raw = measure(run, "lru raw");
    const kvt_prefill *model = &run->models[0][0].prefill;
    const double whole = model->fixed_seconds + kvt_prefill_seconds(model, 0, 8064);
    near(prefill.service, whole);
    assert_true(prefill.ttft >= 0.999 * whole && prefill.ttft < 1.01 * whole);
    near(prefill.quality, 1.0);
    near(prefill.dram_hits + prefill.ssd_hits, 0.0);
    /* Raw, 8,000 tokens are 1.05 GB: 95 contexts fit into DRAM; from SSD they load no faster than
     * they compute, and are not loaded. */
    const kvt_layout layout = {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = 8000 * 131072};
    uint64_t head_bytes, record_bytes;
    assert_ok(codecs_raw_record_bytes(&layout, &head_bytes, &record_bytes));
    const double load = 1e-5 + (double)record_bytes / 25e9 + 8000 * 131072.0 / 1e13;
    const double hit = model->fixed_seconds + load + kvt_prefill_seconds(model, 8000, 8064);
    const double share = raw.dram_hits;
    assert_true(share > 0.2 && share < 0.6);
    near(raw.ssd_hits, 0.0);
    near(raw.service, share * hit + (1.0 - share) * whole);
    near(raw.quality, 1.0);
    /* Where it always loads, it does so from SSD, too, and is slower for it. */
    const experiment_outcome always = measure(run, "lru raw, always loads");
    assert_true(always.ssd_hits > 0.1 && always.service > raw.service);
    near(always.dram_hits, raw.dram_hits);
    small_close(run);
}

/* KIVI at 2 bits: all but the first uses hit, each context with its own loss. */
TEST(losses_are_the_contexts_own)
{
    const experiment_options options = small_options();
    experiment *run = small_open(&options);
    experiment_draw *draw = &run->draws[EXPERIMENT_TASKS * options.seeds];
    const experiment_outcome mean = measure(run, "lru kivi:k2v2,g32");
    assert_true(mean.quality < 1.0 && mean.quality > 0.9);
    for (uint32_t i = 0; i < options.contexts; i++)
        draw->contexts[i].sensitivity = 2.0;
    const experiment_outcome twice = measure(run, "lru kivi:k2v2,g32");
    near(1.0 - twice.quality, 2.0 * (1.0 - mean.quality));
    near(twice.ttft, mean.ttft);
    small_close(run);
}

/* A mix of one rung in both tiers holds that rung alone, and is blind to its losses. */
TEST(a_mix_offers_its_rungs)
{
    const experiment_options options = small_options();
    experiment *run = small_open(&options);
    const kvt_cost_model *model = &run->models[EXPERIMENT_MENU_OURS][0];
    experiment_draw *draw = &run->draws[EXPERIMENT_TASKS * options.seeds];
    char name[160];
    for (uint32_t i = 0; i < options.contexts; i++) {
        draw->contexts[i].tokens = 8000;
        draw->contexts[i].task = 0;
    }
    const kvt_variant last = model->variants[model->variant_count - 2].variant;
    char rung[64];
    (void)kvt_variant_format(last, rung, sizeof rung);
    (void)snprintf(name, sizeof name, "mix %s | %s", rung, rung);
    const experiment_outcome mix = measure(run, name);
    const double loss = model->variants[model->variant_count - 2].loss;
    const double hits = mix.dram_hits + mix.ssd_hits;
    assert_true(hits > 0.5);
    near(1.0 - mix.quality, loss * hits);
    small_close(run);
}

/* ---- menus of a profile ---- */

static void write_profile(char path[64], const char *without)
{
    static const struct {
        const char *variant;
        double loss, bits;
    } rows[] = {{"kivi:k4v4 g64", 0.01, 5},    {"kivi:k2v2 g64", 0.2, 3},
                {"drop:stream 50", 0.4, 8},    {"planes:k4v4 g64", 0.01, 4.5},
                {"planes:k8v8 g64", 0.0, 8.5}, {"entropy:k0.5v1", 0.03, 2.7}};
    static const char *const classes[] = {"qa", "summarisation", "agent"};
    json_t *quality = json_array();
    for (size_t c = 0; c < 3; c++)
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
            if (c == 2 && without != NULL && strstr(rows[i].variant, without) != NULL) continue;
            json_array_append_new(
                quality,
                json_pack("{s:s, s:s, s:s, s:s, s:s, s:f, s:f, s:i, s:s, s:f}", "model", "m",
                          "class", classes[c], "method", "continuation", "metric", "top1",
                          "variant", rows[i].variant, "loss_mean", rows[i].loss, "bits_per_element",
                          rows[i].bits, "entries", 7, "source", "test", "rouge_l", 0.75));
        }
    json_t *document = exchange_document("", json_pack("{s:o}", "quality", quality));
    (void)snprintf(path, 64, "/tmp/kvt-adaptcache-XXXXXX");
    const int file = mkstemp(path);
    assert_true(file >= 0);
    assert_int_equal(json_dumpfd(document, file, 0), 0);
    assert_int_equal(close(file), 0);
    json_decref(document);
}

TEST(profiles_make_both_menus)
{
    char path[64], name[64];
    experiment_options options = small_options();
    write_profile(path, NULL);
    options.profile = path;
    experiment *run = small_open(&options);
    static const char *const paper[] = {"raw", "drop:stream,50", "kivi:k4v4,g64", "kivi:k2v2,g64"};
    static const char *const ours[] = {"raw", "planes:k8v8,g64", "planes:k4v4,g64",
                                       "entropy:k0.5v1"};
    for (uint32_t task = 0; task < EXPERIMENT_TASKS; task++) {
        const kvt_cost_model *menus[] = {&run->models[0][task], &run->models[1][task]};
        assert_int_equal(menus[0]->variant_count, 4);
        assert_int_equal(menus[1]->variant_count, 4);
        for (uint32_t i = 0; i < 4; i++) {
            (void)kvt_variant_format(menus[0]->variants[i].variant, name, sizeof name);
            assert_string_equal(name, paper[i]);
            (void)kvt_variant_format(menus[1]->variants[i].variant, name, sizeof name);
            assert_string_equal(name, ours[i]);
            assert_true(menus[0]->variants[i].decode_bytes_per_s > 0.0);
        }
        /* KIVI at 4 bits measured better than half of the tokens: losses are of a method. */
        near(menus[0]->variants[2].loss, 0.01);
        near(menus[0]->variants[3].loss, 0.2);
        near(menus[1]->variants[3].loss, 0.03);
        assert_true(menus[1]->variants[1].loss > 0.0); /* lossy, though it measured as 0 */
        assert_int_equal(run->tasks[task].entries, 7);
    }
    small_close(run);
    assert_int_equal(unlink(path), 0);
}

/* A smaller host holds less, a slower one computes longer, and losses may be those of answers. */
TEST(hosts_and_measures_are_what_is_said)
{
    char path[64];
    experiment_options options = small_options();
    write_profile(path, NULL);
    options.profile = path;
    options.by_answers = true;
    options.prefill_speed = 0.5;
    experiment *run = small_open(&options);
    kvt_prefill usual;
    assert_ok(kvt_prefill_preset_get("llama-3.1-8b:a100", &usual));
    for (uint32_t menu = 0; menu < EXPERIMENT_MENUS; menu++) {
        const kvt_cost_model *model = &run->models[menu][1];
        for (uint32_t i = 1; i < model->variant_count; i++)
            near(model->variants[i].loss, 0.25);
        near(kvt_prefill_seconds(&model->prefill, 0, 5000),
             2.0 * kvt_prefill_seconds(&usual, 0, 5000));
    }
    const experiment_outcome large = measure(run, "lru kivi:k4v4,g64");
    options.dram_bytes = 1e9;
    options.ssd_bytes = 2e9;
    const experiment_outcome small = measure(run, "lru kivi:k4v4,g64");
    assert_true(large.dram_hits > small.dram_hits + 0.2);
    small_close(run);
    assert_int_equal(unlink(path), 0);
}

TEST(profiles_without_a_class_are_refused)
{
    char path[64], message[512] = "";
    experiment_options options = small_options();
    experiment run;
    write_profile(path, NULL);
    options.profile = path;
    options.classes[1] = "poems";
    assert_int_equal(experiment_open(&run, &options, message, sizeof message), KVT_E_CONFIG);
    assert_non_null(strstr(message, "poems"));
    experiment_close(&run);
    assert_int_equal(unlink(path), 0);
    /* A variant that one class lacks is left out, and beats no other. */
    options = small_options();
    write_profile(path, "entropy");
    options.profile = path;
    experiment *sound = small_open(&options);
    assert_int_equal(sound->models[1][0].variant_count, 4);
    assert_int_equal(sound->models[1][0].variants[3].variant.codec, KVT_CODEC_KIVI);
    small_close(sound);
    assert_int_equal(unlink(path), 0);
    options.profile = "/nonexistent/profile.json";
    assert_int_equal(experiment_open(&run, &options, message, sizeof message), KVT_E_GONE);
    experiment_close(&run);
}

/* ---- the whole of it ---- */

static char *small_text(bool json)
{
    char *text = NULL, message[512] = "";
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    experiment_options own = small_options();
    const bench_options options = {.own = &own};
    own.contexts = 60;
    own.uses = 3;
    kvt_status status =
        bench_case_run(&bench_adaptcache_case, &options, out, json, message, sizeof message);
    assert_int_equal(fclose(out), 0);
    if (status != KVT_OK) fail_msg("%d: %s", status, message);
    return text;
}

TEST(every_system_has_a_row_at_every_rate)
{
    char *text = small_text(true), *again = small_text(true);
    assert_string_equal(text, again); /* with two threads */
    json_t *document = json_loads(text, 0, NULL);
    assert_non_null(document);
    const json_t *rows = json_object_get(document, "rows");
    uint32_t systems = 0, mixes = 0, rhos = 0;
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        const char *kind = json_string_value(json_object_get(row, "case"));
        mixes += strcmp(kind, "mix") == 0;
        const json_t *rho = json_object_get(row, "rho_most"); /* a mix that is compared has one */
        assert_true(rho == NULL || (json_number_value(rho) > 0.0 && json_number_value(rho) < 0.99));
        rhos += rho != NULL;
        if (strcmp(kind, "system") != 0) continue;
        systems++;
        const double quality = json_number_value(json_object_get(row, "quality"));
        const double hits = json_number_value(json_object_get(row, "dram_hit_ratio")) +
                            json_number_value(json_object_get(row, "ssd_hit_ratio"));
        assert_true(quality > 0.0 && quality <= 1.0 && hits >= 0.0 && hits <= 1.0);
        assert_true(json_number_value(json_object_get(row, "ttft_s")) > 0.0);
    }
    /* 7 variants a menu: prefill; 7 twice and 6 fixed; the engines' alphas; 28 mixes. */
    const uint32_t wanted = 1 + 14 + 6 + EXPERIMENT_ENGINES * EXPERIMENT_ALPHAS + 28;
    assert_int_equal(systems, EXPERIMENT_RATES * wanted);
    assert_int_equal(mixes, 7 * EXPERIMENT_ENGINES);
    assert_true(rhos > EXPERIMENT_ENGINES);
    json_decref(document);
    free(text);
    free(again);
    text = small_text(false);
    assert_non_null(strstr(text, "delay_ratio_least"));
    free(text);
}

static bool no_further(void *context, double done, const char *what)
{
    (void)what;
    *(double *)context = done;
    return done < 0.5;
}

TEST(interrupted_runs_end)
{
    double done = 0.0;
    experiment_options own = small_options();
    const bench_options options = {.own = &own, .progress = no_further, .progress_context = &done};
    own.contexts = 30;
    own.uses = 2;
    bench_report report;
    bench_report_open(&report, bench_adaptcache_case.schema);
    assert_int_equal(bench_adaptcache_case.run(&options, &report), KVT_E_CANCELLED);
    assert_false(bench_report_holds(&report));
    assert_true(done >= 0.5 && done < 0.6);
    json_decref(report.root);
}
