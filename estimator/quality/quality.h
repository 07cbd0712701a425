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
 *                          (calibrate.h)
 *
 * Thread rule: one measurement at a time per process (the BLAS library's threads are shared);
 * callbacks come from worker threads, one at a time.
 */
#ifndef ESTIMATOR_QUALITY_H
#define ESTIMATOR_QUALITY_H

#include "estimator/profile/profile.h"
#include "estimator/profile/profile_quality.h"
#include "estimator/quality/evaluate.h"
#include "estimator/quality/quality_round_trip.h"

enum { QUALITY_THREADS_MAX = 16, QUALITY_PROMPTS_MAX = 4 };

/* ---- variants ---- */

typedef struct quality_variant {
    char name[QUALITY_NAME_BYTES]; /* as kvt_variant_format, and "@row" where merged */
    kvt_variant variant;
    bool merged; /* the codec is shown the row as one head */
} quality_variant;

/* Reads a name, with "@row" behind it or not. KVT_OK or KVT_E_PARSE. */
KVT_NODISCARD kvt_status quality_variant_parse(const char *name, quality_variant *variant_out);

/* The key by which rows of the profile are found; merged: QUALITY_MERGED_MODE is in its mode. */
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
    /* Another continuation of the context, which gives a passage of it word for word: its last
     * recall_scored tokens are scored. NULL: none. */
    const uint32_t *recall;
    uint32_t recall_tokens, recall_scored;
    uint64_t document; /* equal where entries were cut from one document; 0: not known */
} quality_entry;

typedef struct quality_entries {
    quality_entry *entries;
    uint32_t count;
    uint64_t digest;  /* of all tokens and cuts: equal entries have equal ones */
    uint32_t *tokens; /* what the entries point into */
    quality_question *questions;
} quality_entries;

/*
 * Texts that say what is their context (docs/PROFILE.md has the formats, in bytes and in token ids)
 * are one entry each, cut as they say; all others follow each other and are cut to runs of
 * context_tokens + continuation_tokens, each from the start of a text on. At most `limit` entries.
 * `tokens` may be NULL, or one that only decodes, where all texts come as ids. KVT_OK;
 * KVT_E_ARGUMENT (no entry, or a text that cannot be encoded: the message says why); what
 * evaluate_texts_read gives.
 */
KVT_NODISCARD kvt_status quality_entries_read(const char *const *paths, uint32_t path_count,
                                              const tokenizer *tokens, uint32_t context_tokens,
                                              uint32_t continuation_tokens, uint32_t limit,
                                              quality_entries *entries_out, char *message,
                                              size_t message_size);
void quality_entries_free(quality_entries *entries);

/* The digest that reading at most `count` entries, no more than there are, would have given. */
uint64_t quality_entries_digest(const quality_entries *entries, uint32_t count);

/* ---- measuring ---- */

/* The exact run of an entry. */
typedef struct quality_exact {
    double nll;     /* nats per token */
    double answers; /* share of questions answered rightly; NAN without questions */
    uint32_t questions;
    double recall_nll;           /* of the passage, nats per token; NAN without one */
    const evaluate_entry *entry; /* its KV; until the callback returns */
} quality_exact;

typedef struct quality_request {
    const model *model;         /* NULL: the entries are dumps */
    const tokenizer *tokenizer; /* answers are compared by words; NULL: by tokens */
    const quality_entry *entries;
    const char *const *dumps; /* [entry_count]: paths */
    uint32_t queries;         /* of a dump's layers and heads; no more than there are */
    uint32_t entry_count;
    const quality_variant *variants;
    uint32_t variant_count;
    uint32_t threads;       /* 0: one per processor */
    uint32_t answer_tokens; /* of a greedy answer to no question; 0: no answers are generated */
    kvt_record_bases bases; /* of the variants that need one */

    /* Any status but KVT_OK ends the measurement with it. All may be NULL. */
    bool (*wanted)(void *context, uint32_t entry, uint32_t variant);
    kvt_status (*opened)(void *context, uint32_t entry, const quality_exact *exact); /* no dump */
    /* A variant that does not take the layout gives no row. row->loss is not set. */
    kvt_status (*done)(void *context, uint32_t entry, uint32_t variant, const quality_row *row);
    void *context;
} quality_request;

/* Entries in order, each with all wanted variants; rows do not depend on the number of threads. An
 * entry of which no variant is wanted is not opened.
 * KVT_OK; KVT_E_MEMORY; KVT_E_CORRUPT (a record that does not decode; the message names the
 * variant); KVT_E_ARGUMENT (tokens outside the vocabulary; a dump with fewer queries, or values
 * that are not finite: the message says which); what a callback or quality_dump_open gave. */
KVT_NODISCARD kvt_status quality_measure(const quality_request *request, char *message,
                                         size_t message_size);

/* ---- does the model understand the texts ---- */

/* From this share of the unigram model's nats on, a model counts as one that does not. */
#define QUALITY_UNDERSTOOD_SHARE 0.9

/* Means over entries of nats per token of the continuation, its first token left out. */
typedef struct quality_likelihood {
    double nats;         /* of the model, from exact KV; NAN: not known */
    double unigram_nats; /* of the add-one unigram model of all tokens of these entries; or NAN */
} quality_likelihood;

/* Of `count` entries and their exact runs' nats; NAN of none. KVT_OK; KVT_E_ARGUMENT (a token
 * outside the vocabulary); KVT_E_MEMORY. */
KVT_NODISCARD kvt_status quality_likelihood_of(const quality_entry *const *entries,
                                               const double *nats, uint32_t count, uint32_t vocab,
                                               quality_likelihood *out);

/* Facts that are not known do not count against a model. */
bool quality_understands(const quality_likelihood *likelihood);

/* KVT_OK, or KVT_E_MISMATCH with a message, which names the class unless it is NULL. */
KVT_NODISCARD kvt_status quality_likelihood_check(const quality_likelihood *likelihood,
                                                  const char *class_name, char *message,
                                                  size_t message_size);

/* ---- answers ---- */

/* ROUGE-L (F-measure of the longest common subsequence) and F1 of the bags, of two sequences; 1
 * when both are empty. KVT_OK or KVT_E_MEMORY. */
KVT_NODISCARD kvt_status quality_compare_answers(const uint64_t *exact, uint32_t exact_count,
                                                 const uint64_t *other, uint32_t other_count,
                                                 double *rouge_l_out, double *f1_out);

/* The same of two answers as token ids: by words, or without a tokenizer by tokens.
 * KVT_OK or KVT_E_MEMORY. */
KVT_NODISCARD kvt_status quality_compare_texts(const tokenizer *tokens, const uint32_t *exact,
                                               uint32_t exact_count, const uint32_t *other,
                                               uint32_t other_count, double *rouge_l_out,
                                               double *f1_out);

/* ---- over entries ---- */

/* rows[entry * variant_count + variant] -> curves[variant_count]; intervals are bootstrapped with
 * `seed` over documents, [entry_count]: entries of one document are drawn together; NULL, and 0 of
 * an entry: each is a document of its own. spread_out->nll_nats and ->answers are left alone.
 * KVT_OK or KVT_E_MEMORY. */
KVT_NODISCARD kvt_status quality_summarise(const quality_row *rows, const uint64_t *documents,
                                           uint32_t entry_count, uint32_t variant_count,
                                           uint64_t seed, quality_curve *curves_out,
                                           quality_spread *spread_out);

/* Numbers documents from 0 on, [entry_count]; returns how many there are. */
uint32_t quality_number_documents(const uint64_t *documents, uint32_t entry_count,
                                  uint32_t *numbers_out);

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

/* ---- greedy answers of a model on top of a context's KV ---- */

/*
 * One thread per quality_answers.
 */

/* What the model is asked: tokens of the entry after its context, and how many it may answer. */
typedef struct quality_prompt {
    uint32_t first, count, answer_tokens;
} quality_prompt;

/* One context to go on from: the exact KV, or a variant's. */
typedef struct quality_lane {
    uint16_t **k, **v;        /* [layers], fp16 [context + prompt + answer][kv_heads][head_dim] */
    float **k_next, **v_next; /* [layers], fp32 [prompt + answer][...]: what a pass has made */
    uint8_t **kept;           /* [layers], [kv_heads][context + ...] */
    uint8_t **masked;         /* the context's part of it, [kv_heads][context] */
    bool dropped;
    uint32_t position; /* of the token after the context */
    uint32_t done;     /* tokens of the answer */
    uint32_t *answer;  /* [answer_tokens_max] */
    double rouge_l, f1;
    void *memory;
} quality_lane;

enum { QUALITY_LANES_MAX = 16 };

/* The prompts of one entry and the answers from exact KV. */
typedef struct quality_answers {
    model_session *session;
    const evaluate_entry *entry;
    const tokenizer *tokenizer;
    uint32_t prompt_count, answer_tokens_max, prompt_tokens_max;
    quality_prompt prompts[QUALITY_PROMPTS_MAX];
    uint32_t *exact; /* [QUALITY_PROMPTS_MAX][answer_tokens_max] */
    float *logits;   /* [the larger of answer_tokens_max and QUALITY_LANES_MAX][vocab] */
    quality_lane lanes[QUALITY_LANES_MAX];
    uint32_t lane_count, lanes_most;
    void *memory;
} quality_answers;

/* Generates the exact answers. An entry with questions is asked up to QUALITY_PROMPTS_MAX of them,
 * each answer as long as the reference; another one goes on from its first token for
 * answer_tokens. An answer ends at a token that stands for no text. 0 answer tokens: there are no
 * prompts. KVT_OK or KVT_E_MEMORY. */
KVT_NODISCARD kvt_status quality_answers_open(model_session *session, const evaluate_entry *judged,
                                              const quality_entry *entry, const tokenizer *words,
                                              uint32_t answer_tokens, quality_answers *answers_out);
void quality_answers_close(quality_answers *answers); /* also after opening failed */

/* Takes a variant's KV into the next lane, lane_count - 1 afterwards; the variant is not needed any
 * more. At most lanes_most lanes are there until the next quality_answers_run. KVT_OK or
 * KVT_E_MEMORY. */
KVT_NODISCARD kvt_status quality_answers_add(quality_answers *answers,
                                             const evaluate_variant *variant);

/* Answers all prompts from all lanes at once, and sets rouge_l and f1 of the lanes: means over the
 * prompts; NAN without prompts. The lanes are free afterwards. KVT_OK or KVT_E_MEMORY. */
KVT_NODISCARD kvt_status quality_answers_run(quality_answers *answers);

/* One greedy answer of each of the first `count` lanes to a prompt, [draft] at hand: into
 * lane->answer, lane->done tokens of it. KVT_OK or KVT_E_MEMORY. */
KVT_NODISCARD kvt_status quality_generate(quality_answers *answers, uint32_t count,
                                          const quality_prompt *prompt, const uint32_t *draft);

/* Whether a token stands for no text, as the one that ends an answer does. */
bool quality_token_ends(const tokenizer *words, uint32_t token);

/* Of `most` tokens those up to the one that ends the answer, that included; a model goes on behind
 * it. */
uint32_t quality_answer_length(const tokenizer *words, const uint32_t *ids, uint32_t most);

/* ---- the model that quality is measured on, and what a loss is made of ---- */

/*
 * One thread opens and closes; what is open is read-only.
 */

/* The measures that a loss is made of; each is in [0, 1]. */
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

/* What the KV is used for: answers about the context, or its own words again. A passage that is
 * repeated word for word needs every token of the context, an answer a few of them. */
typedef enum quality_use {
    QUALITY_USE_WORSE,   /* either: the worse of both, entry by entry */
    QUALITY_USE_ANSWERS, /* the continuation alone */
    QUALITY_USE_RECALL,  /* the passage alone */
    QUALITY_USES
} quality_use;

/* "worse", ...; NULL past the last. */
const char *quality_use_name(unsigned use);

/* The loss of a row's passage: 1 - exp(-KL) by the metric kl, 1 - top-1 by every other one. NAN
 * where the row has none. */
double quality_recall_loss(quality_metric metric, const quality_row *row);

/* The loss of a row for that use; a row without a passage is used for answers, whatever is said. */
double quality_row_loss_used(quality_use use, quality_metric metric, const quality_row *row,
                             double exact_answers);

typedef struct quality_model {
    model *weights;
    tokenizer *tokens;
    profile_model facts;
} quality_model;

/* name NULL: from the model's path; tokenizer NULL: tokenizer.bin in the model's folder, or
 * tokenizer.json where there is none. What model_open and tokenizer_open give; KVT_E_ARGUMENT (a
 * path that is too long). */
KVT_NODISCARD kvt_status quality_model_open(const char *path, const char *tokenizer_path,
                                            const char *name, quality_model *measured_out,
                                            char *message, size_t message_size);
void quality_model_close(quality_model *measured); /* zeroed is allowed */

enum { QUALITY_CLASSES_MAX = 8, QUALITY_VARIANTS_MAX = 128 };

typedef struct quality_class {
    const char *name; /* 1 to 63 bytes */
    const char *const *texts;
    uint32_t text_count;
} quality_class;

/* ---- fits that never fall ---- */

/*
 * Least squares under monotony (pool adjacent violators), and a map made of such a fit with an
 * upper bound. Pure: no I/O, no allocation.
 */

/* One observation on the way in, one step of the map on the way out. */
typedef struct isotonic_point {
    double x;
    double y;     /* in: measured; out: fitted */
    double upper; /* in: upper end of y's interval, at least y; out: bound, at least the fit */
    double weight;
} isotonic_point;

/* Replaces y, in order of the points as they stand, by its least-squares fit among sequences that
 * do not fall. Weights are positive. */
void isotonic_fit(isotonic_point *points, uint32_t count);

/*
 * Turns observations into a map, in place: sorted by x, y fitted, equal x merged. `upper` becomes
 * the largest upper end so far. Returns the steps that are left.
 */
uint32_t isotonic_map_fit(isotonic_point *points, uint32_t count);

/*
 * What the map says at x >= 0: y between steps, from 0 at 0 to the first step; `upper` is that of
 * the next step at or above x, which is a bound if the truth is monotone. False past the last step:
 * nothing was seen there.
 */
bool isotonic_map_at(const isotonic_point *steps, uint32_t count, double x, double *y_out,
                     double *upper_out);

/* ---- from attention error to loss ---- */

/*
 * Monotone fits over variants, one per codec family and model. They are made where the losses of
 * the same variants on the same model are known (measured by continuing, or imported); where
 * nothing is known there is a bound.
 */

enum {
    QUALITY_FAMILIES_MAX = 8,
    QUALITY_MAP_STEPS_MAX = 64,
    QUALITY_MAP_LEAST = 3 /* scored variants that a family's fit takes */
};

typedef struct quality_family {
    char name[16];                               /* a codec's name, or "drop" */
    isotonic_point steps[QUALITY_MAP_STEPS_MAX]; /* x: mean attention error, y: loss */
    uint32_t count;
} quality_family;

typedef struct quality_map {
    char metric[32]; /* of the losses; "" without a map */
    quality_family families[QUALITY_FAMILIES_MAX];
    uint32_t family_count;
    bool stored; /* read from the profile: nothing could be fitted now */
} quality_map;

/*
 * Fits the curves' attention errors to losses that the profile has for the same variants of this
 * model: those of class_name where it has any, else of all classes; of several metrics the one
 * with most variants. Without scores the newest fits of this model in the profile. KVT_OK, with or
 * without a family; KVT_E_DATABASE; KVT_E_MEMORY.
 */
KVT_NODISCARD kvt_status quality_map_make(kvt_profile *profile, const char *name,
                                          const char *class_name, const quality_variant *variants,
                                          const quality_curve *curves, uint32_t count,
                                          quality_map *map_out);

/* Stores the fits as what `run` found. KVT_OK; KVT_E_READ_ONLY; KVT_E_DATABASE. */
KVT_NODISCARD kvt_status quality_map_put(kvt_profile *profile, int64_t run, int64_t model_row,
                                         const quality_map *map);

/*
 * The loss that an attention error stands for, and its upper bound. Exact variants: 0. Where the
 * variant's family has a fit that reaches so far: the fit. Otherwise both are
 * quality_loss_bound(high).
 */
void quality_map_loss(const quality_map *map, kvt_variant variant, double error, double high,
                      double *loss_out, double *upper_out);

enum { QUALITY_DUMPS_QUERIES = 8 /* default, of a layer and head */ };

/* ---- dumps of a model ---- */

typedef struct quality_dumps_make_options {
    const char *model, *tokenizer;
    const char *const *texts;
    uint32_t text_count;
    const char *folder; /* made when absent; files are 0000.safetensors and so on */
    uint32_t contexts, context_tokens, continuation_tokens;
    uint32_t queries; /* of each layer and head, spread over the continuation */
    bool unjudged;    /* as of calibrate_options */
    kvt_profile_progress *progress;
    void *progress_context;
} quality_dumps_make_options;

/* Runs the model over contexts cut from the texts and writes one dump each: KV in fp16, queries of
 * the tokens that follow. KVT_OK; KVT_E_CANCELLED; KVT_E_ARGUMENT; KVT_E_UNSUPPORTED (KV beyond
 * fp16); KVT_E_MISMATCH (the model does not understand the texts; the dumps are there); what
 * quality_model_open, quality_entries_read and quality_dump_write give. */
KVT_NODISCARD kvt_status quality_dumps_make(const quality_dumps_make_options *options,
                                            uint32_t *count_out, char *message,
                                            size_t message_size);

#endif
