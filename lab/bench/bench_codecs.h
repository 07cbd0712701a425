/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_codecs.h - what the parts of the codecs case hand to each other: variants, speeds, losses.
 *
 * Thread rule: one bench at a time.
 */
#ifndef BENCH_BENCH_CODECS_H
#define BENCH_BENCH_CODECS_H

#include "bench.h"
#include "lab/private.h"

#include <kvterrace/codec.h>

enum { BENCH_NAME_BYTES = 96, BENCH_ISA_COUNT = 3 };

typedef struct bench_codec_variant {
    char name[BENCH_NAME_BYTES];
    kvt_variant variant;
    const char *codec; /* its name, or "drop" */
    bool everywhere;   /* timed on every instruction set, not on the best alone */
    bool merged;       /* named with "@row": coded as if the row were one head; not timed */
} bench_codec_variant;

/* What one variant costs and does to the numbers of the seeded sample. */
typedef struct bench_codec_loss {
    bool present; /* the codec takes the sample's layout */
    double bits_per_element;
    double physical_bits_per_element;
    double nmse[2];
    double attention_error;
} bench_codec_loss;

/* One timing: samples of one entry each, through a record. Rates count the original bytes. */
typedef struct bench_codec_speed {
    uint32_t variant;
    codecs_cpu isa;
    bool decode;
    uint32_t threads; /* above 1: by the clock on the wall, else CPU time */
    bench_rate rate;
    uint32_t samples;
} bench_codec_speed;

typedef struct bench_codec_results {
    const bench_options *options;
    const bench_codecs_options *own;
    bench_report *report;
    bench_codec_variant *variants;
    bench_codec_loss *losses; /* [variant_count] */
    uint32_t variant_count;
    bench_codec_speed *speeds;
    uint32_t speed_count, speed_capacity;
    kvt_layout sample;
    double sample_seconds;
    double memcpy_bytes_per_s;
    uint64_t memcpy_bytes;
    uint64_t working_set_bytes;
    kvt_layout entry; /* what speeds were measured over */
} bench_codec_results;

/* The status, with the variant and where it failed in the message. */
KVT_NODISCARD kvt_status bench_codecs_blame(const bench_codec_results *results, kvt_status status,
                                            const bench_codec_variant *variant, const char *where);

/* Times every variant on the instruction sets from `first` to `last`. */
KVT_NODISCARD kvt_status bench_codecs_time(bench_codec_results *results, codecs_cpu first,
                                           codecs_cpu last);

/* Fills losses of the seeded sample. */
KVT_NODISCARD kvt_status bench_codecs_sample(bench_codec_results *results);

#endif
