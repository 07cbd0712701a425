/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quality_profile.h - a measurement of quality with a model, into a profile database and as a
 * report. Every entry x variant is stored as it is done; a run that was stopped is gone on with
 * when model, texts, cuts and metric are the same.
 *
 * Thread rule: see quality.h; the profile belongs to the calling thread, and to one of the
 * measuring threads at a time meanwhile.
 */
#ifndef ESTIMATOR_QUALITY_PROFILE_H
#define ESTIMATOR_QUALITY_PROFILE_H

#include "estimator/profile/profile.h"
#include "estimator/quality/quality_model.h"

enum { QUALITY_CLASSES_MAX = 8, QUALITY_VARIANTS_MAX = 128 };

typedef struct quality_class {
    const char *name; /* 1 to 63 bytes */
    const char *const *texts;
    uint32_t text_count;
} quality_class;

typedef struct quality_profile_options {
    const char *name;      /* of the model; NULL: from its path */
    const char *model;     /* as model_open takes it */
    const char *tokenizer; /* NULL: tokenizer.bin in the model's folder */
    const quality_class *classes;
    uint32_t class_count;
    const quality_variant *variants;
    uint32_t variant_count;
    uint32_t contexts; /* entries of each class, at most */
    uint32_t context_tokens, continuation_tokens;
    uint32_t answer_tokens; /* 0: no answers are generated */
    uint32_t threads;       /* 0: one per processor */
    quality_metric metric;
    const char *command_line;
    kvt_profile_progress *progress; /* may be NULL; false stops (KVT_E_CANCELLED) */
    void *progress_context;
} quality_profile_options;

typedef struct quality_set_report {
    char class_name[64];
    uint32_t entries;
    uint32_t context_tokens, continuation_tokens; /* of the first entry */
    quality_spread spread;
    quality_curve *curves; /* [variant_count] */
    double *sensitivity;   /* [entries], the entry effect */
} quality_set_report;

/* Classes in their order, then, of two and more, all entries together as class "pooled". */
typedef struct quality_report {
    profile_model model;
    quality_metric metric;
    quality_set_report sets[QUALITY_CLASSES_MAX + 1];
    uint32_t set_count;
    uint64_t resumed; /* rows that an earlier run had left */
    double seconds;
} quality_report;

/* KVT_OK; KVT_E_ARGUMENT (message says what); KVT_E_CANCELLED; KVT_E_READ_ONLY; KVT_E_DATABASE;
 * what model_open, tokenizer_open, quality_entries_read and quality_measure give. */
KVT_NODISCARD kvt_status quality_profile_run(kvt_profile *profile,
                                             const quality_profile_options *options,
                                             quality_report *report_out, char *message,
                                             size_t message_size);
void quality_report_free(quality_report *report); /* zeroed is allowed */

#endif
