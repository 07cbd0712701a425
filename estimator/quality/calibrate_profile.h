/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calibrate_profile.h - a calibration into a profile database, from a model and texts or from KV
 * dumps with queries. Every measured row is stored as it is done; a calibration that was stopped is
 * gone on with when model, texts or dumps, cuts and metric are the same.
 *
 * Thread rule: see quality.h; the profile belongs to the calling thread, and to one of the
 * measuring threads at a time meanwhile.
 */
#ifndef ESTIMATOR_CALIBRATE_PROFILE_H
#define ESTIMATOR_CALIBRATE_PROFILE_H

#include "estimator/profile/profile.h"
#include "estimator/quality/calibrate.h"
#include "estimator/quality/quality_model.h"

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

#endif
