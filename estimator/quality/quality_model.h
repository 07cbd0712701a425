/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quality_model.h - the model that quality is measured on, as the profile knows it, and what a
 * loss is made of. Thread rule: one thread opens and closes; what is open is read-only.
 */
#ifndef ESTIMATOR_QUALITY_MODEL_H
#define ESTIMATOR_QUALITY_MODEL_H

#include "estimator/profile/profile_quality.h"
#include "estimator/quality/quality.h"

/* What a loss is made of; each is in [0, 1]. */
typedef enum quality_metric {
    QUALITY_TOP1,    /* 1 - share of tokens with the same most probable next token */
    QUALITY_ROUGE_L, /* 1 - ROUGE-L of greedy answers */
    QUALITY_F1,      /* 1 - F1 of greedy answers */
    QUALITY_KL,      /* 1 - exp(-KL per token) */
    QUALITY_ANSWERS, /* of the questions that exact KV answers rightly, the share lost on balance */
    QUALITY_METRICS
} quality_metric;

/* "top1", ...; NULL past the last. */
const char *quality_metric_name(unsigned metric);

/* The loss of a row by the metric; exact_answers: share of questions that exact KV answers rightly.
 * NAN where the row does not have what the metric needs. */
double quality_row_loss(quality_metric metric, const quality_row *row, double exact_answers);

typedef struct quality_model {
    model *weights;
    tokenizer *tokens;
    profile_model facts;
} quality_model;

/* name NULL: from the model's path; tokenizer NULL: tokenizer.bin in the model's folder. What
 * model_open and tokenizer_open give; KVT_E_ARGUMENT (a path that is too long). */
KVT_NODISCARD kvt_status quality_model_open(const char *path, const char *tokenizer_path,
                                            const char *name, quality_model *measured_out,
                                            char *message, size_t message_size);
void quality_model_close(quality_model *measured); /* zeroed is allowed */

#endif
