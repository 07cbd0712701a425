/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_codecs.c - which variants the codecs bench measures, and its order of work: speeds, the
 * seeded sample, the models, the report.
 *
 * Thread rule: one bench at a time.
 */
#include "bench_codecs.h"
#include "codecs/record.h"
#include "estimator/quality/quality.h"
#include "estimator/quality/quality_round_trip.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* The bench's own list. The marked ones are timed on every instruction set; the others differ from
 * one of them in rate alone. KIVI groups V inside a head: "@row" shows it the row as one head,
 * which gives the same groups as planes has by default. */
static const struct {
    const char *name;
    bool everywhere;
} codecs_usual[] = {
    {"raw", true},
    {"lossless", true},
    {"lossless:fast", true},
    {"kivi:k8v8,g64", true},
    {"kivi:k8v8,g64@row", false},
    {"kivi:k4v4,g32", false},
    {"kivi:k4v4,g64", true},
    {"kivi:k4v4,g64@row", false},
    {"kivi:k2v2,g64", true},
    {"kivi:k2v2,g64@row", false},
    {"planes:k8v8,g64", true},
    {"planes:k8v8,g64,vhead", false},
    {"planes:k6v6,g64", true},
    {"planes:k6v4,g64", false},
    {"planes:k4v4,g64", true},
    {"planes:k4v4,g64,vhead", true},
    {"planes:k4v4,g64,vchan", true},
    {"planes:k4v3,g64", false},
    {"planes:k3v3,g64", true},
    {"planes:k3v3,g64,vhead", false},
    {"planes:k2v2,g64", true},
    {"planes:k2v2,g64,vhead", false},
    {"entropy:k0.125v0.25,vchan", false},
    {"entropy:k0.25v0.25,vchan", false},
    {"entropy:k0.25v0.5,vchan", true},
    {"entropy:k0.25v0.5", false},
    {"entropy:k0.333v0.5,vchan", false},
    {"entropy:k0.5v0.5", true},
    {"entropy:k0.75v0.75", false},
    {"entropy:k0.5v1,vchan", false},
    {"entropy:k1v1", false},
    {"drop:stream,50", false},
    {"drop:knorm,50", false},
    {"drop:keydiff,50", false},
    {"drop:lagkv,50", false},
    {"drop:stream,50+planes:k4v4,g64", false},
    {"drop:stream,75+entropy:k0.25v0.5,vchan", false},
};

enum { CODECS_USUAL_COUNT = sizeof codecs_usual / sizeof codecs_usual[0] };

void bench_codecs_note(const bench_codecs_options *options, const char *format, ...)
{
    if (options->quiet) return;
    va_list arguments;
    fputs("kvterrace bench codecs: ", stderr);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
}

kvt_status bench_codecs_blame(kvt_status status, const bench_codec_variant *variant,
                              const char *where, char *message, size_t message_size)
{
    if (status != KVT_OK)
        snprintf(message, message_size, "%s on %s: %s", variant->name, where,
                 kvt_status_text(status));
    return status;
}

/* ---- variants ---- */

static bool codecs_add_variant(bench_codec_results *results, const char *name, bool everywhere)
{
    bench_codec_variant *added = &results->variants[results->variant_count];
    quality_variant read;
    if (quality_variant_parse(name, &read) != KVT_OK) return false;
    snprintf(added->name, sizeof added->name, "%s", read.name);
    added->variant = read.variant;
    added->merged = read.merged;
    added->codec = quality_variant_codec(added->variant);
    added->everywhere = everywhere;
    results->variant_count++;
    return true;
}

/* The variants that options name, or the bench's own. KVT_OK; KVT_E_ARGUMENT (an unknown name; the
 * message says which); KVT_E_MEMORY. */
static kvt_status bench_codecs_choose(bench_codec_results *results, char *message,
                                      size_t message_size)
{
    const bench_codecs_options *options = results->options;
    bool own = options->variant_count == 0;
    uint32_t count = own ? CODECS_USUAL_COUNT : options->variant_count;
    results->variants = calloc(count, sizeof *results->variants);
    if (results->variants == NULL) return KVT_E_MEMORY;
    for (uint32_t i = 0; i < count; i++) {
        const char *name = own ? codecs_usual[i].name : options->variants[i];
        if (codecs_add_variant(results, name, !own || codecs_usual[i].everywhere)) continue;
        if (!own) {
            snprintf(message, message_size, "unknown variant '%s'", name);
            return KVT_E_ARGUMENT;
        }
        bench_codecs_note(options, "%s is left out: this build has no such variant", name);
    }
    return KVT_OK;
}

static kvt_status codecs_choose_isa(const char *name, bool quick, codecs_cpu *first,
                                    codecs_cpu *last, char *message, size_t message_size)
{
    codecs_cpu best = codecs_cpu_best();
    *first = quick ? best : CODECS_CPU_SCALAR;
    *last = best;
    if (name == NULL) return KVT_OK;
    for (int level = CODECS_CPU_SCALAR; level <= CODECS_CPU_AVX512; level++) {
        if (strcmp(name, codecs_cpu_name((codecs_cpu)level)) != 0) continue;
        *first = *last = (codecs_cpu)level;
        if (level <= (int)best) return KVT_OK;
        snprintf(message, message_size, "this processor has no %s", name);
        return KVT_E_UNSUPPORTED;
    }
    snprintf(message, message_size, "unknown instruction set '%s'", name);
    return KVT_E_ARGUMENT;
}

/* ---- measured figures against what is asked of the codecs ---- */

/*
 * Speeds are ratios to memcpy, losses are ratios between variants on the models' KV. A check
 * appears when the variants that it needs were measured.
 */

enum { CHECKS_MAX = 96 };

typedef struct check_list {
    const bench_codec_results *results;
    bench_codec_check *checks;
    uint32_t count;
} check_list;

static bench_codec_check *check_add(check_list *list, const char *source, const char *name,
                                    double value, double limit, bool at_least)
{
    if (list->count == CHECKS_MAX) return NULL;
    bench_codec_check *check = &list->checks[list->count++];
    *check = (bench_codec_check){.value = value,
                                 .limit = limit,
                                 .at_least = at_least,
                                 .ok = at_least ? value >= limit : value <= limit};
    snprintf(check->source, sizeof check->source, "%s", source);
    snprintf(check->name, sizeof check->name, "%s", name);
    return check;
}

/* ---- speed ---- */

/* Least ratios to memcpy: of whole records, or of the kernels of one side. */
static const struct {
    const char *name, *codec;
    uint16_t mode; /* 0: any */
    bool decode;
    int side;
    double least;
} check_speeds[] = {
    {"decode kivi", "kivi", KVT_KIVI_FLOAT, true, BENCH_SIDE_BOTH, 1.5},
    {"decode planes", "planes", 0, true, BENCH_SIDE_BOTH, 1.5},
    {"decode kivi K, kernels", "kivi", KVT_KIVI_FLOAT, true, KVT_SIDE_K, 1.5},
    {"decode kivi V, kernels", "kivi", KVT_KIVI_FLOAT, true, KVT_SIDE_V, 1.5},
    {"decode planes K, kernels", "planes", 0, true, KVT_SIDE_K, 1.5},
    {"decode planes V, kernels", "planes", 0, true, KVT_SIDE_V, 1.5},
    {"encode planes K, kernels", "planes", 0, false, KVT_SIDE_K, 0.5},
    {"encode planes V, kernels", "planes", 0, false, KVT_SIDE_V, 0.25},
    {"encode kivi K, kernels", "kivi", 0, false, KVT_SIDE_K, 0.3},
    {"encode kivi V, kernels", "kivi", 0, false, KVT_SIDE_V, 0.15},
    {"encode lossless fast", "lossless", KVT_LOSSLESS_FAST, false, BENCH_SIDE_BOTH, 0.4},
    {"decode lossless fast", "lossless", KVT_LOSSLESS_FAST, true, BENCH_SIDE_BOTH, 0.8},
    {"encode lossless dense", "lossless", KVT_LOSSLESS_DENSE, false, BENCH_SIDE_BOTH, 0.12},
    {"decode lossless dense", "lossless", KVT_LOSSLESS_DENSE, true, BENCH_SIDE_BOTH, 0.3},
    {"encode entropy", "entropy", 0, false, BENCH_SIDE_BOTH, 0.08},
    {"decode entropy", "entropy", 0, true, BENCH_SIDE_BOTH, 0.25},
};

enum { CHECK_SPEED_COUNT = sizeof check_speeds / sizeof check_speeds[0] };

static bool check_speed_fits(const bench_codec_results *results, const bench_codec_speed *speed,
                             size_t index)
{
    const bench_codec_variant *variant = &results->variants[speed->variant];
    uint16_t mode = check_speeds[index].mode;
    if (strcmp(variant->codec, check_speeds[index].codec) != 0) return false;
    if (mode != 0 && variant->variant.mode != mode) return false;
    return speed->decode == check_speeds[index].decode && speed->threads == 1 &&
           speed->side == check_speeds[index].side;
}

/* The slowest variant of the best instruction set that was timed stands for its codec. */
static void check_speed(check_list *list, size_t index)
{
    const bench_codec_results *results = list->results;
    const bench_codec_speed *slowest = NULL;
    codecs_cpu best = CODECS_CPU_SCALAR;
    for (uint32_t i = 0; i < results->speed_count; i++)
        if (results->speeds[i].isa > best) best = results->speeds[i].isa;
    for (uint32_t i = 0; i < results->speed_count; i++) {
        const bench_codec_speed *speed = &results->speeds[i];
        if (speed->isa != best || !check_speed_fits(results, speed, index)) continue;
        if (slowest == NULL || speed->bytes_per_s < slowest->bytes_per_s) slowest = speed;
    }
    if (slowest == NULL || !(results->memcpy_bytes_per_s > 0)) return;
    bench_codec_check *check = check_add(list, "speed", check_speeds[index].name,
                                         slowest->bytes_per_s / results->memcpy_bytes_per_s,
                                         check_speeds[index].least, true);
    if (check == NULL) return;
    snprintf(check->what, sizeof check->what, "%s, %s", results->variants[slowest->variant].name,
             codecs_cpu_name(best));
}

/* The slowest layout of an engine stands for all of them. */
static void check_views(check_list *list)
{
    const bench_codec_results *results = list->results;
    for (uint32_t i = 0; i < results->variant_count; i++) {
        const bench_codec_view *slowest = NULL;
        for (uint32_t k = 0; k < results->view_count; k++) {
            const bench_codec_view *view = &results->views[k];
            if (view->variant != i) continue;
            if (slowest == NULL || view->packed_ratio < slowest->packed_ratio) slowest = view;
        }
        if (slowest == NULL) continue;
        bench_codec_check *check = check_add(list, "views", "decode into a view / packed",
                                             slowest->packed_ratio, 0.85, true);
        if (check == NULL) return;
        snprintf(check->what, sizeof check->what, "%s, %s", results->variants[i].name,
                 slowest->name);
    }
}

/* ---- loss ---- */

/* KL of one variant over KL of another, on a model whose name starts with `model` (NULL: any). */
static const struct {
    const char *name, *model, *variant, *over;
    double most;
} check_losses[] = {
    {"planes 4 bits / kivi-4, V inside a head", NULL, "planes:k4v4,g64,vhead", "kivi:k4v4,g64",
     1.02},
    {"planes 2 bits / kivi-2, V inside a head", "bitllama_3M", "planes:k2v2,g64,vhead",
     "kivi:k2v2,g64", 0.55},
    {"planes 2 bits / kivi-2, V inside a head", "stories260K", "planes:k2v2,g64,vhead",
     "kivi:k2v2,g64", 0.2},
    {"planes 8 bits / kivi-8, V inside a head", NULL, "planes:k8v8,g64,vhead", "kivi:k8v8,g64",
     1.25},
    {"planes 4 bits / kivi-4, V over the row", NULL, "planes:k4v4,g64", "kivi:k4v4,g64@row", 1.02},
    {"planes 2 bits / kivi-2, V over the row", "bitllama_3M", "planes:k2v2,g64",
     "kivi:k2v2,g64@row", 0.55},
    {"planes 2 bits / kivi-2, V over the row", "stories260K", "planes:k2v2,g64",
     "kivi:k2v2,g64@row", 0.2},
    {"planes 8 bits / kivi-8, V over the row", NULL, "planes:k8v8,g64", "kivi:k8v8,g64@row", 1.25},
};

enum { CHECK_LOSS_COUNT = sizeof check_losses / sizeof check_losses[0] };

static const bench_codec_loss *check_find(const check_list *list, const bench_codec_source *source,
                                          const char *name)
{
    for (uint32_t i = 0; i < list->results->variant_count; i++) {
        const bench_codec_loss *loss = &source->losses[i];
        if (strcmp(list->results->variants[i].name, name) == 0)
            return loss->present && loss->judged ? loss : NULL;
    }
    return NULL;
}

static void check_loss(check_list *list, const bench_codec_source *source, size_t index)
{
    const char *prefix = check_losses[index].model;
    if (prefix != NULL && strncmp(source->name, prefix, strlen(prefix)) != 0) return;
    const bench_codec_loss *one = check_find(list, source, check_losses[index].variant);
    const bench_codec_loss *other = check_find(list, source, check_losses[index].over);
    if (one == NULL || other == NULL || !(other->kl > 0)) return;
    bench_codec_check *check = check_add(list, source->name, check_losses[index].name,
                                         one->kl / other->kl, check_losses[index].most, false);
    if (check == NULL) return;
    snprintf(check->what, sizeof check->what, "%.2f bits against %.2f", one->bits_per_element,
             other->bits_per_element);
}

/* The best entropy variant of at most 3.75 stored bits against planes at 3 bits. */
static void check_entropy(check_list *list, const bench_codec_source *source)
{
    const bench_codec_loss *planes = check_find(list, source, "planes:k3v3,g64");
    const bench_codec_variant *name = NULL;
    const bench_codec_loss *best = NULL;
    for (uint32_t i = 0; i < list->results->variant_count; i++) {
        const bench_codec_loss *loss = &source->losses[i];
        if (strcmp(list->results->variants[i].codec, "entropy") != 0 || !loss->judged) continue;
        if (loss->bits_per_element > 3.75 || (best != NULL && best->kl <= loss->kl)) continue;
        best = loss;
        name = &list->results->variants[i];
    }
    if (best == NULL || planes == NULL || !(planes->kl > 0)) return;
    bench_codec_check *check = check_add(list, source->name, "entropy to 3.75 bits / planes 3 bits",
                                         best->kl / planes->kl, 1.0 / 3.0, false);
    if (check == NULL) return;
    snprintf(check->what, sizeof check->what, "%s, %.2f bits against %.2f", name->name,
             best->bits_per_element, planes->bits_per_element);
}

/* Exact storing of the sample's bf16. */
static void check_lossless(check_list *list)
{
    const bench_codec_source *sample = &list->results->sources[0];
    const bench_codec_lossless *lossless = &sample->lossless;
    if (lossless->fast_ratio > 0)
        (void)check_add(list, sample->name, "lossless fast ratio", lossless->fast_ratio, 1.32,
                        true);
    if (lossless->dense_ratio > 0)
        (void)check_add(list, sample->name, "lossless dense ratio", lossless->dense_ratio, 1.44,
                        true);
}

/* The checks that the measured variants allow; *checks_out is freed by the caller. KVT_OK or
 * KVT_E_MEMORY. */
static kvt_status bench_codecs_check(const bench_codec_results *results,
                                     bench_codec_check **checks_out, uint32_t *count_out)
{
    check_list list = {.results = results, .checks = calloc(CHECKS_MAX, sizeof *list.checks)};
    if (list.checks == NULL) return KVT_E_MEMORY;
    for (size_t i = 0; i < CHECK_SPEED_COUNT; i++)
        check_speed(&list, i);
    check_views(&list);
    check_lossless(&list);
    for (uint32_t s = 1; s < results->source_count; s++) {
        for (size_t i = 0; i < CHECK_LOSS_COUNT; i++)
            check_loss(&list, &results->sources[s], i);
        check_entropy(&list, &results->sources[s]);
    }
    *checks_out = list.checks;
    *count_out = list.count;
    return KVT_OK;
}

/* ---- the whole ---- */

const bench_codec_source *bench_codecs_shown(const bench_codec_results *results)
{
    return &results->sources[results->source_count > 1 ? 1 : 0];
}

static kvt_status codecs_make_sources(bench_codec_results *results)
{
    uint32_t count = 1 + results->options->model_count;
    results->sources = calloc(count, sizeof *results->sources);
    if (results->sources == NULL) return KVT_E_MEMORY;
    for (; results->source_count < count; results->source_count++) {
        bench_codec_source *source = &results->sources[results->source_count];
        source->losses = calloc(results->variant_count, sizeof *source->losses);
        if (source->losses == NULL) return KVT_E_MEMORY;
    }
    return KVT_OK;
}

static kvt_status codecs_measure(bench_codec_results *results, codecs_cpu first, codecs_cpu last,
                                 char *message, size_t message_size)
{
    const bench_codecs_options *options = results->options;
    kvt_status status = bench_codecs_sample(results, &results->sources[0], message, message_size);
    for (uint32_t i = 0; status == KVT_OK && i < options->model_count; i++) {
        status = bench_codecs_judge(results, options->models[i], &results->sources[1 + i], message,
                                    message_size);
    }
    if (status == KVT_OK) status = bench_codecs_time(results, first, last, message, message_size);
    if (status == KVT_OK) status = bench_codecs_views(results, last, message, message_size);
    return status;
}

static kvt_status codecs_report(const bench_codec_results *results)
{
    const bench_codecs_options *options = results->options;
    bench_codec_check *checks = NULL;
    uint32_t count = 0;
    kvt_status status = bench_codecs_check(results, &checks, &count);
    if (status != KVT_OK) return status;
    int failed = options->json ? bench_codecs_report_json(results, checks, count)
                               : bench_codecs_report_text(results, checks, count);
    free(checks);
    return fflush(options->out) == 0 && failed == 0 ? KVT_OK : KVT_E_IO;
}

kvt_status bench_codecs_run(const bench_codecs_options *options, char *message, size_t message_size)
{
    bench_codec_results results = {.options = options};
    codecs_cpu first, last;
    message[0] = '\0';
    kvt_status status =
        codecs_choose_isa(options->isa, options->quick, &first, &last, message, message_size);
    if (status != KVT_OK) return status;
    if (options->model_count > 0 && (options->tokenizer == NULL || options->text_count == 0)) {
        snprintf(message, message_size, "a model needs its tokenizer and texts");
        return KVT_E_ARGUMENT;
    }
    status = bench_codecs_choose(&results, message, message_size);
    if (status == KVT_OK) status = codecs_make_sources(&results);
    if (status == KVT_OK) {
        /* Loss is the same on every instruction set, so it is found on the fastest asked for. */
        codecs_cpu_force(last);
        status = codecs_measure(&results, first, last, message, message_size);
        codecs_cpu_force(codecs_cpu_best());
    }
    if (options->progress != NULL) options->progress(options->progress_context, 1, NULL);
    if (status == KVT_OK) status = codecs_report(&results);
    for (uint32_t i = 0; i < results.source_count; i++)
        free(results.sources[i].losses);
    free(results.sources);
    free(results.variants);
    free(results.speeds);
    free(results.views);
    return status;
}
