/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calibrate.h - the choices of a model's ladder, made of measurements.
 *
 * What a good variant is differs between models, and some answers invert (K or V first, tokens or
 * channels, rotated or not, which tokens to drop). So each is a question with candidates: all are
 * measured on the same entries and compared pair by pair. From the chosen ones follow the rungs,
 * and of those only such count as no cheaper rung beats.
 *
 * Thread rule: one calibration at a time; the source may use threads of its own.
 */
#ifndef ESTIMATOR_CALIBRATE_H
#define ESTIMATOR_CALIBRATE_H

#include "estimator/profile/profile.h"
#include "estimator/quality/quality.h"

#include <kvterrace/codec.h>

enum {
    CALIBRATE_VARIANTS_MAX = 64,
    CALIBRATE_RUNGS_MAX = 32,
    CALIBRATE_CHOICES_MAX = 8,
    CALIBRATE_TEXT_BYTES = 320
};

/* Where rows come from: a model that goes on from decoded KV, or dumps with queries. */
typedef struct calibrate_source {
    uint32_t entries;
    uint32_t trials; /* that one row's loss is a mean of: tokens, or queries */
    /* Measures the variants on every entry: rows_out[entry * count + variant], with loss set and,
     * where the method has it, kl; otherwise attention_error. Rows of variants that do not take the
     * layout are not present. */
    kvt_status (*measure)(void *context, const quality_variant *variants, uint32_t count,
                          quality_row *rows_out);
    /* Mean bits per element of an entropy variant with each matrix' own tables and with one table
     * per layer and side of other entries' codes; NULL: that question is not asked. */
    kvt_status (*tables)(void *context, const quality_variant *variant, double *own_bits_out,
                         double *shared_bits_out);
    void *context;
} calibrate_source;

/* Measured variants, each once. */
typedef struct calibrate_rows {
    const calibrate_source *source;
    quality_variant variants[CALIBRATE_VARIANTS_MAX];
    uint32_t count;
    quality_row *rows;     /* [entries][CALIBRATE_VARIANTS_MAX] */
    quality_curve *curves; /* [CALIBRATE_VARIANTS_MAX]; entries 0: does not take the layout */
    uint64_t seed;
} calibrate_rows;

typedef struct calibrate_choice {
    const char *question;
    char chosen[QUALITY_NAME_BYTES];
    char evidence[CALIBRATE_TEXT_BYTES];
} calibrate_choice;

typedef struct calibrate_rung {
    quality_variant variant;
    double bits_per_element;
    double loss, loss_upper; /* do not fall along the accepted rungs */
    double loss_entry;       /* 90 % of entries lose no more; likewise; 0: not known */
    bool accepted;
    char evidence[CALIBRATE_TEXT_BYTES];
} calibrate_rung;

/* Rungs by falling bits. */
typedef struct calibrate_ladder {
    calibrate_choice choices[CALIBRATE_CHOICES_MAX];
    uint32_t choice_count;
    calibrate_rung rungs[CALIBRATE_RUNGS_MAX];
    uint32_t rung_count;
    double widening; /* in both bounds, for a class that was not measured; 0: it was */
} calibrate_ladder;

/* Measures what the questions need, answers them, and makes the ladder. rows_out keeps all that was
 * measured; calibrate_rows_free it, also after an error. KVT_OK; KVT_E_ARGUMENT (the layout takes
 * no lossy variant, or fewer than two entries); KVT_E_MEMORY; what the source gave. */
KVT_NODISCARD kvt_status calibrate_run(const calibrate_source *source, uint64_t seed,
                                       calibrate_ladder *ladder_out, calibrate_rows *rows_out,
                                       char *message, size_t message_size);
void calibrate_rows_free(calibrate_rows *rows);

/* ---- parts, for tests ---- */

/* Two variants entry by entry: log of distortion (KL, or squared attention error), less what the
 * difference in bits is worth: 2 ln 2 a bit, as at high rates. Below zero: a is better. */
typedef struct calibrate_pair {
    uint32_t entries;
    double mean, low, high; /* 95 % interval of the mean */
} calibrate_pair;

/* even_bits: bits count as above; else distortion alone. */
calibrate_pair calibrate_compare(const calibrate_rows *rows, uint32_t a, uint32_t b,
                                 bool even_bits);

/* Measures variants by name that have not been. indices_out[count]: where they are; UINT32_MAX for
 * one that does not take the layout. */
KVT_NODISCARD kvt_status calibrate_measure(calibrate_rows *rows, const char *const *names,
                                           uint32_t count, uint32_t *indices_out);

/* The rungs of measured variants, by falling bits; see docs/PROFILE.md for what is refused. */
void calibrate_make_rungs(const calibrate_rows *rows, const uint32_t *variants, uint32_t count,
                          calibrate_ladder *ladder);

/* ---- bounds of rungs ---- */

/* Where the entries of calibrate_rows come from. */
typedef struct calibrate_entries {
    const uint32_t *classes;   /* [entries], below class_count */
    const uint64_t *documents; /* [entries], as in quality_summarise */
    uint32_t class_count;
} calibrate_entries;

enum { CALIBRATE_NEW_CLASS = -1 };

/* Sets loss_entry of the rungs for entries of a class (promise.h). CALIBRATE_NEW_CLASS: for those
 * of none, and loss_upper with it. KVT_OK or KVT_E_MEMORY. */
KVT_NODISCARD kvt_status calibrate_bound(const calibrate_rows *rows, const calibrate_entries *of,
                                         int class_index, calibrate_ladder *ladder);

/* Puts rungs, choices and bounds of a ladder into the profile. KVT_OK; KVT_E_DATABASE; ... */
KVT_NODISCARD kvt_status calibrate_put_ladder(kvt_profile *profile, int64_t run, int64_t of_model,
                                              const char *class_name,
                                              const calibrate_ladder *ladder);

/* ---- a calibration into a profile database ---- */

/*
 * The source is a model and texts, or KV dumps with queries. Every measured row is stored as it is
 * done; a calibration that was stopped is gone on with when model, texts or dumps, cuts and metric
 * are the same. The profile belongs to the calling thread, and to one of the measuring threads at
 * a time meanwhile.
 */

typedef struct calibrate_options {
    const char *name;       /* of the model; NULL: from its path (not with dumps) */
    const char *class_name; /* of the texts, 1 to 63 bytes */
    const char *model;      /* as model_open takes it; NULL: dumps */
    const char *tokenizer;  /* NULL: tokenizer.bin in the model's folder */
    const char *const *texts;
    uint32_t text_count;
    uint32_t contexts, context_tokens, continuation_tokens;
    uint32_t answer_tokens; /* for metrics that compare answers */
    quality_metric metric;
    const char *const *dumps;
    uint32_t dump_count;
    uint32_t queries; /* of a dump's layers and heads; 0: the usual */
    uint32_t threads; /* 0: one per processor */
    const char *command_line;
    kvt_profile_progress *progress; /* may be NULL; false stops (KVT_E_CANCELLED) */
    void *progress_context;
} calibrate_options;

typedef struct calibrate_report {
    profile_model model;
    uint32_t entries;
    uint32_t measured; /* variants */
    uint64_t resumed;  /* rows that an earlier run had left */
    double seconds;
    calibrate_ladder ladder;
} calibrate_report;

/* KVT_OK; KVT_E_ARGUMENT (message says what); KVT_E_CANCELLED; KVT_E_READ_ONLY; KVT_E_DATABASE;
 * what calibrate_run and the readers of models, texts and dumps give. */
KVT_NODISCARD kvt_status calibrate_profile_run(kvt_profile *profile,
                                               const calibrate_options *options,
                                               calibrate_report *report_out, char *message,
                                               size_t message_size);

/* ---- what entropy tables of other entries cost on KV, beside each matrix' own ---- */

/*
 * One thread per calibrate_tables.
 */

enum { CALIBRATE_TABLES_ENTRIES = 4 /* that are counted, and as many that are coded */ };

typedef struct calibrate_tables {
    kvt_variant variant;
    kvt_layout layout;
    uint32_t *counts; /* [layers][K, V][KVT_ENTROPY_SYMBOLS] */
    double own_bits, shared_bits;
    uint32_t coded;
} calibrate_tables;

/* KVT_OK; KVT_E_UNSUPPORTED (another codec, or a layout that it does not take); KVT_E_MEMORY. */
KVT_NODISCARD kvt_status calibrate_tables_open(kvt_variant variant, const kvt_layout *layout,
                                               calibrate_tables *tables);
void calibrate_tables_close(calibrate_tables *tables);

/* Adds an entry's symbols to the counts; codes one both ways. Entries are of the layout but for
 * their tokens. KVT_OK; KVT_E_MEMORY; what the codec gives. */
KVT_NODISCARD kvt_status calibrate_tables_count(calibrate_tables *tables, uint32_t tokens,
                                                const void *entry);
KVT_NODISCARD kvt_status calibrate_tables_code(calibrate_tables *tables, uint32_t tokens,
                                               const void *entry);

#endif
