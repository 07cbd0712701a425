/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_codecs.c - which variants the codecs bench measures, and its order of work: speeds, the
 * seeded sample, the models, the report.
 *
 * Thread rule: one bench at a time.
 */
#include "bench_codecs.h"
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
    {"rotate:b8", false},
    {"rotate:b4", true},
    {"rotate:b4,row", false},
    {"rotate:b3,row", true},
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

kvt_status bench_codecs_choose(bench_codec_results *results, char *message, size_t message_size)
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
    return status;
}
