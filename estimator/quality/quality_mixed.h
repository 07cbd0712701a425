/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quality_mixed.h - contexts whose parts are stored in different variants: the loss that is
 * predicted from the parts' own losses, against the one that is measured by going on from the
 * whole. A context is cut into equal blocks, each its own entry in a variant drawn for it;
 * predicted is the token-weighted mean of what those variants lose on whole contexts, taken from
 * the other half of the contexts only.
 *
 * Thread rule: one measurement at a time per process.
 */
#ifndef ESTIMATOR_QUALITY_MIXED_H
#define ESTIMATOR_QUALITY_MIXED_H

#include "estimator/profile/profile.h"
#include "estimator/quality/quality_model.h"

typedef struct quality_mixed_options {
    const char *model, *tokenizer;
    const char *const *texts;
    uint32_t text_count;
    const quality_variant *variants; /* two at least, none merged */
    uint32_t variant_count;
    uint32_t contexts, context_tokens, continuation_tokens;
    uint32_t blocks; /* of a context, 1 to 64 */
    uint32_t mixes;  /* draws for each context */
    uint64_t seed;
    uint32_t threads; /* of the whole contexts; 0: one per processor */
    kvt_profile_progress *progress;
    void *progress_context;
} quality_mixed_options;

/* Predicted against measured, over all mixes of all contexts. */
typedef struct quality_mixed_fit {
    double predicted, measured;  /* means */
    double pearson, spearman;    /* over mixes of contexts */
    double spearman_mixes;       /* over draws, each the mean of its contexts */
    double error_p50, error_p90; /* of a draw's mean over its contexts: |p - m| / m */
    double error_context_p50;    /* of one context: what one question shows */
} quality_mixed_fit;

typedef struct quality_mixed_report {
    profile_model model;
    uint32_t contexts, mixes;
    quality_mixed_fit loss; /* top-1 */
    quality_mixed_fit kl;
    double seconds;
} quality_mixed_report;

/* KVT_OK; KVT_E_ARGUMENT (message says what); KVT_E_CANCELLED; KVT_E_UNSUPPORTED (a variant does
 * not take the layout); what quality_model_open, quality_entries_read and quality_measure give.
 */
KVT_NODISCARD kvt_status quality_mixed_run(const quality_mixed_options *options,
                                           quality_mixed_report *report_out, char *message,
                                           size_t message_size);

#endif
