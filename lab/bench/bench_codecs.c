/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_codecs.c - which variants the codecs case measures, what is asked of them, and its report.
 *
 * Thread rule: one bench at a time.
 */
#include "bench_codecs.h"
#include "estimator/quality/quality.h"
#include "lab/private.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

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

kvt_status bench_codecs_blame(const bench_codec_results *results, kvt_status status,
                              const bench_codec_variant *variant, const char *where)
{
    if (status != KVT_OK)
        snprintf(results->report->message, BENCH_MESSAGE_BYTES, "%s on %s: %s", variant->name,
                 where, kvt_status_text(status));
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

/* The variants that options name, or the case's own. */
static kvt_status codecs_choose(bench_codec_results *results)
{
    const bool own = results->own->variant_count == 0;
    const uint32_t count = own ? CODECS_USUAL_COUNT : results->own->variant_count;
    results->variants = calloc(count, sizeof *results->variants);
    results->losses = calloc(count, sizeof *results->losses);
    if (results->variants == NULL || results->losses == NULL) return KVT_E_MEMORY;
    for (uint32_t i = 0; i < count; i++) {
        const char *name = own ? codecs_usual[i].name : results->own->variants[i];
        if (codecs_add_variant(results, name, !own || codecs_usual[i].everywhere)) continue;
        if (!own) {
            snprintf(results->report->message, BENCH_MESSAGE_BYTES, "unknown variant '%s'", name);
            return KVT_E_ARGUMENT;
        }
        bench_note(results->options, "%s is left out: this build has no such variant", name);
    }
    return KVT_OK;
}

static kvt_status codecs_choose_isa(const char *name, bool quick, codecs_cpu *first,
                                    codecs_cpu *last, char *message)
{
    codecs_cpu best = codecs_cpu_best();
    *first = quick ? best : CODECS_CPU_SCALAR;
    *last = best;
    if (name == NULL) return KVT_OK;
    for (int level = CODECS_CPU_SCALAR; level <= CODECS_CPU_AVX512; level++) {
        if (strcmp(name, codecs_cpu_name((codecs_cpu)level)) != 0) continue;
        *first = *last = (codecs_cpu)level;
        if (level <= (int)best) return KVT_OK;
        snprintf(message, BENCH_MESSAGE_BYTES, "this processor has no %s", name);
        return KVT_E_UNSUPPORTED;
    }
    snprintf(message, BENCH_MESSAGE_BYTES, "unknown instruction set '%s'", name);
    return KVT_E_ARGUMENT;
}

/* ---- what is asked of the codecs ---- */

/* Least ratios to memcpy. */
static const struct {
    const char *name, *codec;
    uint16_t mode; /* 0: any */
    bool decode;
    double least;
} check_speeds[] = {
    {"decode kivi", "kivi", KVT_KIVI_FLOAT, true, 1.5},
    {"decode planes", "planes", 0, true, 1.5},
    {"encode lossless fast", "lossless", KVT_LOSSLESS_FAST, false, 0.4},
    {"decode lossless fast", "lossless", KVT_LOSSLESS_FAST, true, 0.8},
    {"encode lossless dense", "lossless", KVT_LOSSLESS_DENSE, false, 0.12},
    {"decode lossless dense", "lossless", KVT_LOSSLESS_DENSE, true, 0.3},
    {"encode entropy", "entropy", 0, false, 0.08},
    {"decode entropy", "entropy", 0, true, 0.25},
};

enum { CHECK_SPEED_COUNT = sizeof check_speeds / sizeof check_speeds[0] };

static bool check_speed_fits(const bench_codec_results *results, const bench_codec_speed *speed,
                             size_t index)
{
    const bench_codec_variant *variant = &results->variants[speed->variant];
    uint16_t mode = check_speeds[index].mode;
    if (strcmp(variant->codec, check_speeds[index].codec) != 0) return false;
    if (mode != 0 && variant->variant.mode != mode) return false;
    return speed->decode == check_speeds[index].decode && speed->threads == 1;
}

/* The slowest variant of the best instruction set that was timed stands for its codec. */
static void check_speed(const bench_codec_results *results, size_t index)
{
    const bench_codec_speed *slowest = NULL;
    codecs_cpu best = CODECS_CPU_SCALAR;
    for (uint32_t i = 0; i < results->speed_count; i++)
        if (results->speeds[i].isa > best) best = results->speeds[i].isa;
    for (uint32_t i = 0; i < results->speed_count; i++) {
        const bench_codec_speed *speed = &results->speeds[i];
        if (speed->isa != best || !check_speed_fits(results, speed, index)) continue;
        if (slowest == NULL || speed->rate.median < slowest->rate.median) slowest = speed;
    }
    if (slowest == NULL || !(results->memcpy_bytes_per_s > 0)) return;
    const double ratio = slowest->rate.median / results->memcpy_bytes_per_s;
    const double least = check_speeds[index].least;
    char what[2 * BENCH_NAME_BYTES];
    snprintf(what, sizeof what, "%s, %s", results->variants[slowest->variant].name,
             codecs_cpu_name(best));
    bench_report_row(results->report, "checks",
                     json_pack("{s:s, s:s, s:s, s:f, s:s, s:f, s:b}", "source", "speed", "check",
                               check_speeds[index].name, "what", what, "value", ratio, "asked",
                               "at_least", "limit", least, "ok", (int)(ratio >= least)));
}

/* ---- the report ---- */

static json_t *report_layout(const kvt_layout *layout)
{
    return json_pack("{s:i, s:I, s:i, s:i, s:s}", "layers", (int)layout->layers, "tokens",
                     (json_int_t)layout->tokens, "kv_heads", (int)layout->kv_heads, "head_dim",
                     (int)layout->head_dim, "dtype", "bf16");
}

/* The row with what its variant costs and does; null for what is no number. */
static json_t *report_with_loss(json_t *row, const bench_codec_loss *loss)
{
    const double bits = loss->bits_per_element;
    json_object_update_new(
        row, json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "bits_per_element",
                       bench_number(loss->present ? bits : NAN), "physical_bits_per_element",
                       bench_number(loss->present ? loss->physical_bits_per_element : NAN), "ratio",
                       bench_number(loss->present && bits > 0 ? 16.0 / bits : NAN), "nmse_k",
                       bench_number(loss->present ? loss->nmse[0] : NAN), "nmse_v",
                       bench_number(loss->present ? loss->nmse[1] : NAN), "attention_error",
                       bench_number(loss->present ? loss->attention_error : NAN)));
    return row;
}

/* One row per timing, with the losses of its variant. */
static void report_speed(const bench_codec_results *results, const bench_codec_speed *speed)
{
    const bench_codec_variant *variant = &results->variants[speed->variant];
    json_t *row =
        json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:f, s:s}", "codec", variant->codec,
                  "variant", variant->name, "isa", codecs_cpu_name(speed->isa), "direction",
                  speed->decode ? "decode" : "encode", "side", "both", "scope", "record", "threads",
                  (json_int_t)speed->threads, "samples", (json_int_t)speed->samples, "memcpy_ratio",
                  speed->rate.median / results->memcpy_bytes_per_s, "source", "sample");
    row = bench_with_rate(row, "bytes_per_s", &speed->rate);
    bench_report_row(results->report, "results",
                     report_with_loss(row, &results->losses[speed->variant]));
}

static void report_fill(const bench_codec_results *results)
{
    bench_report *report = results->report;
    struct utsname host = {.release = ""};
    (void)uname(&host);
    bench_report_add(report, json_pack("{s:{s:s, s:s, s:s}, s:f, s:I, s:I, s:o}", "machine",
                                       "kernel", host.release, "architecture", host.machine, "isa",
                                       codecs_cpu_name(codecs_cpu_best()), "memcpy_bytes_per_s",
                                       results->memcpy_bytes_per_s, "memcpy_bytes",
                                       (json_int_t)results->memcpy_bytes, "working_set_bytes",
                                       (json_int_t)results->working_set_bytes, "entry",
                                       report_layout(&results->entry)));
    for (uint32_t i = 0; i < results->speed_count; i++)
        report_speed(results, &results->speeds[i]);
    for (uint32_t i = 0; i < results->variant_count; i++) {
        const bench_codec_variant *variant = &results->variants[i];
        if (!results->losses[i].present) continue;
        bench_report_row(report, "losses",
                         report_with_loss(json_pack("{s:s, s:s, s:s}", "source", "sample", "codec",
                                                    variant->codec, "variant", variant->name),
                                          &results->losses[i]));
    }
    bench_report_row(report, "sources",
                     json_pack("{s:s, s:o, s:i, s:f}", "source", "sample", "entry",
                               report_layout(&results->sample), "contexts", 0, "seconds",
                               results->sample_seconds));
    for (size_t i = 0; i < CHECK_SPEED_COUNT; i++)
        check_speed(results, i);
}

/* ---- the whole ---- */

static kvt_status codecs_run(const bench_options *options, bench_report *report)
{
    bench_codec_results results = {.options = options, .own = options->own, .report = report};
    codecs_cpu first, last;
    kvt_status status =
        codecs_choose_isa(results.own->isa, options->quick, &first, &last, report->message);
    if (status == KVT_OK) status = codecs_choose(&results);
    if (status == KVT_OK) {
        /* Loss is the same on every instruction set, so it is found on the fastest asked for. */
        codecs_cpu_force(last);
        status = bench_codecs_sample(&results);
        if (status == KVT_OK) status = bench_codecs_time(&results, first, last);
        codecs_cpu_force(codecs_cpu_best());
    }
    if (status == KVT_OK) report_fill(&results);
    free(results.losses);
    free(results.variants);
    free(results.speeds);
    return status;
}

const bench_case bench_codecs_case = {
    .name = "codecs",
    .schema = "kvterrace-bench-codecs-1",
    .tables =
        (const document_table[]){
            {"", "memcpy_bytes_per_s memcpy_bytes working_set_bytes"},
            {"results", "variant isa direction threads bytes_per_s memcpy_ratio"},
            {"losses", "variant bits_per_element physical_bits_per_element ratio "
                       "nmse_k nmse_v attention_error"},
            {"checks", "source check what value limit ok"},
            {0}},
    .run = codecs_run,
};
