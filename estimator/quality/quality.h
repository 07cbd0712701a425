/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quality.h - measures what variants do to the answers of a model: its own KV of real texts goes
 * through records, the model goes on from what comes back, and is compared with going on from the
 * exact KV. Teacher-forced over the continuation (KL, top-1, likelihood), and in greedy answers of
 * its own (ROUGE-L, F1), which is AdaptCache's definition of quality.
 *
 *   quality_entries_read   texts of one class -> entries
 *   quality_measure        entries x variants -> rows, by several threads, each row handed over as
 *                          it is done
 *   quality_summarise      rows -> a curve per variant, and how entries differ
 *   quality_profile_run    all of that into a profile database, going on where a run was stopped
 *
 * Thread rule: one measurement at a time per process (the BLAS library's threads are shared);
 * callbacks come from worker threads, one at a time.
 */
#ifndef ESTIMATOR_QUALITY_H
#define ESTIMATOR_QUALITY_H

#include "estimator/profile/quality_row.h"
#include "estimator/quality/evaluate.h"

#include "estimator/profile/profile.h"

enum { QUALITY_THREADS_MAX = 16, QUALITY_PROMPTS_MAX = 4 };

/* ---- variants ---- */

typedef struct quality_variant {
    char name[QUALITY_NAME_BYTES]; /* as kvt_variant_format, and "@row" where merged */
    kvt_variant variant;
    bool merged; /* the codec is shown the row as one head */
} quality_variant;

/* Reads a name, with "@row" behind it or not. KVT_OK or KVT_E_PARSE. */
KVT_NODISCARD kvt_status quality_variant_parse(const char *name, quality_variant *variant_out);

/* What rows of the profile are found by: QUALITY_MERGED_MODE is in its mode where merged. */
kvt_variant quality_variant_key(const quality_variant *variant);

/* The index-th name of the list that is measured without --variants (`quick`: a short one): every
 * rung of the default ladder, both K:V splits, and the codecs that they are compared with. NULL
 * past the last. */
const char *quality_variant_usual(uint32_t index, bool quick);

/* ---- entries ---- */

/* Tokens, counted from the entry's start: [first, answer) asks, [answer, end) is the answer. */
typedef struct quality_question {
    uint32_t first, answer, end;
} quality_question;

typedef struct quality_entry {
    const uint32_t *tokens;
    uint32_t context_tokens, continuation_tokens;
    const quality_question *questions; /* within the continuation */
    uint32_t question_count;
} quality_entry;

typedef struct quality_entries {
    quality_entry *entries;
    uint32_t count;
    uint64_t digest;  /* of all tokens and cuts: equal entries have equal ones */
    uint32_t *tokens; /* what the entries point into */
    quality_question *questions;
} quality_entries;

/*
 * Texts that say what is their context (docs/PROFILE.md has the format) are one entry each, cut as
 * they say; all others are joined, and cut to context_tokens + continuation_tokens as
 * evaluate_set_make does. At most `limit` entries. KVT_OK; KVT_E_ARGUMENT (no entry: the message
 * says why); what evaluate_texts_read gives.
 */
KVT_NODISCARD kvt_status quality_entries_read(const char *const *paths, uint32_t path_count,
                                              const tokenizer *tokens, uint32_t context_tokens,
                                              uint32_t continuation_tokens, uint32_t limit,
                                              quality_entries *entries_out, char *message,
                                              size_t message_size);
void quality_entries_free(quality_entries *entries);

/* ---- measuring ---- */

/* The exact run of an entry. */
typedef struct quality_exact {
    double nll;     /* nats per token */
    double answers; /* share of questions answered rightly; NAN without questions */
    uint32_t questions;
    const evaluate_entry *entry; /* its KV; until the callback returns */
} quality_exact;

typedef struct quality_request {
    const model *model;
    const tokenizer *tokenizer; /* answers are compared by words; NULL: by tokens */
    const quality_entry *entries;
    uint32_t entry_count;
    const quality_variant *variants;
    uint32_t variant_count;
    uint32_t threads;       /* 0: one per processor */
    uint32_t answer_tokens; /* of a greedy answer to no question; 0: no answers are generated */

    /* Any status but KVT_OK ends the measurement with it. All may be NULL. */
    bool (*wanted)(void *context, uint32_t entry, uint32_t variant);
    kvt_status (*opened)(void *context, uint32_t entry, const quality_exact *exact);
    /* A variant that does not take the layout gives no row. row->loss is not set. */
    kvt_status (*done)(void *context, uint32_t entry, uint32_t variant, const quality_row *row);
    void *context;
} quality_request;

/* Entries in order, each with all wanted variants; rows do not depend on the number of threads.
 * KVT_OK; KVT_E_MEMORY; KVT_E_CORRUPT (a record that does not decode; the message names the
 * variant); KVT_E_ARGUMENT (tokens outside the vocabulary); what a callback gave. */
KVT_NODISCARD kvt_status quality_measure(const quality_request *request, char *message,
                                         size_t message_size);

/* ---- answers ---- */

/* ROUGE-L (F-measure of the longest common subsequence) and F1 of the bags, of two sequences; 1
 * when both are empty. KVT_OK or KVT_E_MEMORY. */
KVT_NODISCARD kvt_status quality_compare_answers(const uint64_t *exact, uint32_t exact_count,
                                                 const uint64_t *other, uint32_t other_count,
                                                 double *rouge_l_out, double *f1_out);

/* ---- over entries ---- */

/* rows[entry * variant_count + variant] -> curves[variant_count]; intervals are bootstrapped over
 * entries with `seed`. spread_out->nll_nats and ->answers are left alone. KVT_OK or KVT_E_MEMORY.
 */
KVT_NODISCARD kvt_status quality_summarise(const quality_row *rows, uint32_t entry_count,
                                           uint32_t variant_count, uint64_t seed,
                                           quality_curve *curves_out, quality_spread *spread_out);

/* The entry effect of log KL, [entry_count]; NAN for an entry without rows. KVT_OK or KVT_E_MEMORY.
 */
KVT_NODISCARD kvt_status quality_sensitivity(const quality_row *rows, uint32_t entry_count,
                                             uint32_t variant_count, double *effects_out,
                                             quality_spread *spread_out);

/* Spearman's rank correlation, ties with their mean rank; NAN below three values or for values that
 * are all equal. KVT_OK or KVT_E_MEMORY. */
KVT_NODISCARD kvt_status quality_rank_correlation(const double *x, const double *y, uint32_t count,
                                                  double *correlation_out);

/* Pearson's; NAN likewise. */
double quality_correlation(const double *x, const double *y, uint32_t count);

/* The share-quantile of values, linear between them; sorts in place. count > 0. */
double quality_quantile(double *values, uint32_t count, double share);

#endif
