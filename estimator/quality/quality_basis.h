/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quality_basis.h - learns bases of the transform codec on KV of a model, and says what they would
 * save: bits at the KL of the entropy codec. Thread rule: one thread per call.
 */
#ifndef ESTIMATOR_QUALITY_BASIS_H
#define ESTIMATOR_QUALITY_BASIS_H

#include "codecs/transform_basis.h"
#include "estimator/quality/quality.h"

enum {
    QUALITY_BASIS_SPANS = TRANSFORM_SPAN_LAYERS4,
    QUALITY_BASIS_STEPS = 6,   /* of each span */
    QUALITY_BASIS_ENTROPY = 4, /* settings of entropy */
    QUALITY_BASIS_ROWS = QUALITY_BASIS_ENTROPY + QUALITY_BASIS_SPANS * QUALITY_BASIS_STEPS
};

typedef struct quality_basis_options {
    const char *model, *tokenizer;
    const char *const *texts;
    uint32_t text_count;
    uint32_t contexts; /* at least 6: of five, three teach, one makes tables, one judges */
    uint32_t context_tokens, continuation_tokens;
    kvt_profile_progress *progress;
    void *progress_context;
} quality_basis_options;

/* One form over the contexts that judge. Bits are of all tokens but the chain's sinks, which are
 * raw in every form. */
typedef struct quality_basis_row {
    char name[48];
    uint8_t span;       /* transform_span; 0: entropy */
    double bits;        /* an element */
    double kl;          /* mean over the continuation, nats; geometric mean over contexts */
    double top1;        /* mean */
    double recall_kl;   /* the same of a passage word for word; NAN: no text has one */
    double recall_top1; /* mean */
} quality_basis_row;

typedef struct quality_basis_report {
    profile_model model;
    uint32_t learnt, counted, judged; /* contexts */
    quality_basis_row rows[QUALITY_BASIS_ROWS];
    uint32_t row_count;
    /* Of each span, from TRANSFORM_SPAN_HEAD on: bits at the KL of entropy at its bits nearest to
     * 3.1, as a share of them, between the two rows around that KL; NAN: no two rows are. */
    double share[QUALITY_BASIS_SPANS];
    double reference_bits, reference_kl;
    uint64_t bytes[QUALITY_BASIS_SPANS]; /* of the bases */
    double seconds;
} quality_basis_report;

/* Every fifth context judges, and every fifth one makes tables. Stores nothing. KVT_OK;
 * KVT_E_ARGUMENT (fewer than 6 contexts, or continuations of fewer than 2 tokens; a span that is
 * too wide is left out); KVT_E_CANCELLED; KVT_E_UNSUPPORTED (KV beyond fp16); KVT_E_MEMORY; what
 * quality_model_open and quality_entries_read give. */
KVT_NODISCARD kvt_status quality_basis_run(const quality_basis_options *options,
                                           quality_basis_report *report_out, char *message,
                                           size_t message_size);

#endif
