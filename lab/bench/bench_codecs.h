/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_codecs.h - what the parts of the codecs bench hand to each other: variants, speeds, losses,
 * checks, and the report over them.
 *
 * Thread rule: one bench at a time.
 */
#ifndef BENCH_BENCH_CODECS_H
#define BENCH_BENCH_CODECS_H

#include "bench.h"
#include "codecs/kernels/cpu.h"
#include "codecs/record.h"
#include "estimator/measure/measure.h"
#include "estimator/profile/profile.h"

#include <kvterrace/codec.h>

enum { BENCH_NAME_BYTES = 96, BENCH_ISA_COUNT = 3, BENCH_SIDE_BOTH = 2 };

typedef struct bench_codec_variant {
    char name[BENCH_NAME_BYTES];
    kvt_variant variant;
    const char *codec; /* its name, or "drop" */
    bool everywhere;   /* timed on every instruction set, not on the best alone */
    bool merged;       /* named with "@row": coded as if the row were one head; not timed */
} bench_codec_variant;

/* What one variant costs and does on one source of KV. */
typedef struct bench_codec_loss {
    bool present; /* the codec takes this source's layout */
    double bits_per_element;
    double physical_bits_per_element;
    double nmse[2];
    double attention_error;
    bool judged; /* the rest is set */
    double kl, kl_p90, top1, nll_delta, retained_mass;
} bench_codec_loss;

/* How far exact storing goes on bf16 KV of a source, as ratios: what is stored, and order-0 entropy
 * of exponents plus 8 bits of sign and mantissa, with one table per layer and side or one per
 * channel of it (the tables themselves not counted). Zero: not measured. */
typedef struct bench_codec_lossless {
    double dense_ratio, fast_ratio;
    double matrix_bound_ratio, channel_bound_ratio;
} bench_codec_lossless;

/* The seeded sample, or a model. */
typedef struct bench_codec_source {
    char name[BENCH_NAME_BYTES];
    kvt_layout layout; /* of one entry */
    uint32_t contexts; /* entries judged; 0 for the sample */
    double seconds;
    bench_codec_lossless lossless;
    bench_codec_loss exact;   /* noise floor; judged for models only */
    bench_codec_loss *losses; /* [variant_count] */
} bench_codec_source;

/* One timing: the median of samples, each of one entry (both sides) or one side of one. Rates count
 * the original bytes of the sides that were moved. */
typedef struct bench_codec_speed {
    uint32_t variant;
    codecs_cpu isa;
    bool decode;
    int side;         /* kvt_side: the codec's kernels alone; BENCH_SIDE_BOTH: whole records */
    uint32_t threads; /* above 1: by the clock on the wall, else CPU time */
    double bytes_per_s, min, max;
    uint32_t samples;
} bench_codec_speed;

/* Records of 4 MiB decoded into one engine's layout, beside the packed buffer. */
typedef struct bench_codec_view {
    const char *name;
    uint32_t variant;
    double bytes_per_s;  /* median of the samples, in original bytes */
    double packed_ratio; /* median of the samples' ratios to the packed decoding beside each */
    uint32_t samples;
} bench_codec_view;

typedef struct bench_codec_results {
    const bench_codecs_options *options;
    bench_codec_variant *variants;
    uint32_t variant_count;
    bench_codec_speed *speeds;
    uint32_t speed_count, speed_capacity;
    bench_codec_view *views;
    uint32_t view_count;
    bench_codec_source *sources; /* the sample, then the models */
    uint32_t source_count;
    double memcpy_bytes_per_s;
    uint64_t memcpy_bytes;
    uint64_t working_set_bytes;
    kvt_layout entry; /* what speeds were measured over */
} bench_codec_results;

/* One figure against what was asked of it. */
typedef struct bench_codec_check {
    char source[BENCH_NAME_BYTES]; /* "speed", or a model */
    char name[BENCH_NAME_BYTES];
    char what[2 * BENCH_NAME_BYTES];
    double value, limit;
    bool at_least; /* else: at most */
    bool ok;
} bench_codec_check;

/* A note on stderr, unless options say quiet. */
void bench_codecs_note(const bench_codecs_options *options, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The status, with the variant and where it failed in the message; KVT_OK leaves the message. */
KVT_NODISCARD kvt_status bench_codecs_blame(kvt_status status, const bench_codec_variant *variant,
                                            const char *where, char *message, size_t message_size);

/* Times every variant on the instruction sets from `first` to `last`. */
KVT_NODISCARD kvt_status bench_codecs_time(bench_codec_results *results, codecs_cpu first,
                                           codecs_cpu last, char *message, size_t message_size);

/* Times the variants that are timed everywhere, into each layout of engine_views.h, on one
 * instruction set. */
KVT_NODISCARD kvt_status bench_codecs_views(bench_codec_results *results, codecs_cpu isa,
                                            char *message, size_t message_size);

/* Fills losses of the seeded sample, or of one model over options->contexts entries. */
KVT_NODISCARD kvt_status bench_codecs_sample(bench_codec_results *results,
                                             bench_codec_source *source, char *message,
                                             size_t message_size);
KVT_NODISCARD kvt_status bench_codecs_judge(bench_codec_results *results, const char *path,
                                            bench_codec_source *source, char *message,
                                            size_t message_size);

/* Reports return 0, or 1 when out cannot be written or memory is short. */
int bench_codecs_report_json(const bench_codec_results *results, const bench_codec_check *checks,
                             uint32_t check_count);
int bench_codecs_report_text(const bench_codec_results *results, const bench_codec_check *checks,
                             uint32_t check_count);

/* The figures that a row shows: the first model's, or the sample's when there is none. */
const bench_codec_source *bench_codecs_shown(const bench_codec_results *results);

#endif
