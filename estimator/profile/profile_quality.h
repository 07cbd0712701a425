/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_quality.h - rows of quality into and out of the profile database: models, sets, entries,
 * curves (docs/PROFILE.md has the columns). Numbers that are not finite are stored as NULL: not
 * measured.
 *
 * Thread rule: as profile.h says.
 */
#ifndef ESTIMATOR_PROFILE_QUALITY_H
#define ESTIMATOR_PROFILE_QUALITY_H

#include "profile.h"

#include <kvterrace/types.h>

/* ---- one variant on one entry, and over all entries ---- */

/*
 * Plain data that measuring, the profile database and reports share. Not a number: not measured.
 */

/* A record whose row was coded as one head: added to the mode of its variant, as "@row" is to its
 * name. No stored variant has such a mode. */
#define QUALITY_MERGED_MODE 0x80u

enum { QUALITY_NAME_BYTES = 96 };

/* One entry x variant, as in quality_entry of the profile (docs/PROFILE.md). */
typedef struct quality_row {
    bool present; /* else: not measured, or the codec does not take the layout */
    double bits_per_element, physical_bits_per_element;
    double loss; /* by the set's metric, in [0, 1] */
    double kl;   /* mean over the continuation, nats */
    double kl_first, kl_second;
    double top1;      /* share of tokens with the same most probable next token */
    double nll_delta; /* variant minus exact, nats per token */
    double rouge_l;   /* of greedy answers against those from exact KV; likewise f1 */
    double f1;
    double answers; /* share of the entry's questions that are answered rightly */
    double attention_error, attention_error_high;
    double retained_mass, flip_rate;
    double nmse[2]; /* K, V */
    /* The same of a passage of the context that is given word for word; stored as a row of the
     * class's set of passages. */
    double recall_kl, recall_kl_first, recall_kl_second, recall_top1, recall_nll_delta;
} quality_row;

/* One variant over the entries of a set, as in quality_curve. */
typedef struct quality_curve {
    uint32_t entries; /* with a row; 0: the rest is not set */
    double bits_per_element, physical_bits_per_element;
    double loss_mean, loss_low, loss_high; /* 95 % interval of the mean */
    double loss_p90, loss_cv;              /* cv: standard deviation over mean, between entries */
    double kl, kl_low, kl_high, kl_p90;
    double top1, nll_delta, rouge_l, f1, answers;
    double attention_error, attention_error_high, retained_mass, flip_rate;
    double nmse[2];
    double spearman_entries; /* attention error against KL, over entries */
    double repeatability;    /* of log KL between the halves of the continuation, over entries */
} quality_curve;

/* What a set says beside its curves. */
typedef struct quality_spread {
    double nll_nats;          /* of exact KV, mean over entries */
    double answers;           /* share of all questions that exact KV answers rightly */
    double spearman_variants; /* mean attention error against mean KL */
    double spearman_entries;  /* median over variants */
    double sensitivity_sd;    /* of the entry effect: log KL less its variant's mean */
    double repeatability;     /* of the entry effect between the halves of the continuation */
    uint32_t variants;        /* that the entry effect is of: lossy, below 6 bits, KL below 0.5 */
} quality_spread;

/* ---- rows of the database ---- */

/* The things that quality belongs to. */
typedef struct profile_model {
    char name[96];   /* not empty */
    char digest[24]; /* of the weights; "" for published figures */
    uint64_t parameters;
    uint32_t layers, heads, kv_heads, head_dim, vocab;
} profile_model;

/* The model's row, made when there is none of that name and digest. KVT_OK; KVT_E_READ_ONLY;
 * KVT_E_DATABASE. */
KVT_NODISCARD kvt_status profile_model_put(kvt_profile *profile, const profile_model *model,
                                           int64_t *model_out);

/* The newest model of that name and shape (layers, KV heads, head_dim), whatever its digest; else
 * as profile_model_put: for KV that is known by the model's name alone. */
KVT_NODISCARD kvt_status profile_model_of_shape(kvt_profile *profile, const profile_model *model,
                                                int64_t *model_out);

/* One measurement of many variants on a model and a class of text. */
typedef struct profile_set {
    int64_t model;
    const char *class_name; /* 1 to 63 bytes */
    const char *method;     /* "continuation", "attention" or "import" */
    const char *settings;   /* JSON: what a run that goes on with it must share */
    uint32_t context_tokens, continuation_tokens, entries;
} profile_set;

/* The newest set of an incomplete run of this library version that has the same model, class,
 * method and settings. KVT_OK; KVT_MISS; KVT_E_DATABASE. */
KVT_NODISCARD kvt_status profile_set_find(kvt_profile *profile, const profile_set *set,
                                          int64_t *run_out, int64_t *set_out);
KVT_NODISCARD kvt_status profile_set_insert(kvt_profile *profile, int64_t run,
                                            const profile_set *set, int64_t *set_out);

/* Copies into the set of that number the rows that it lacks and an import has: of the same model,
 * class, method and settings, measured by this library version as the import's source says, of the
 * newest import first. One transaction. KVT_OK; KVT_E_DATABASE. */
KVT_NODISCARD kvt_status profile_set_take_imports(kvt_profile *profile, const profile_set *set,
                                                  int64_t number);

/* One entry x variant; a transaction of its own. */
KVT_NODISCARD kvt_status profile_entry_insert(kvt_profile *profile, int64_t set, uint32_t entry,
                                              kvt_variant variant, const quality_row *row);

/* Every row of a set, each with what the set of passages has of the same entry and variant
 * (`passages` 0: there is none, and the recall figures are NAN). */
typedef void profile_entry_visit(void *context, uint32_t entry, kvt_variant variant,
                                 const quality_row *row);
KVT_NODISCARD kvt_status profile_entries_read(kvt_profile *profile, int64_t set, int64_t passages,
                                              profile_entry_visit *visit, void *context);

#define PROFILE_PASSAGES "/recall" /* behind the name of a class: the set of its passages */

/* Every set that was measured by continuing on the model, by this library version: imported ones,
 * whose source says so, before those of this profile, and older ones before newer. `passages`: the
 * set of its passages, which is not visited by itself, or 0. */
typedef void profile_set_visit(void *context, int64_t set, int64_t passages, const char *settings);
KVT_NODISCARD kvt_status profile_sets_of_texts(kvt_profile *profile, int64_t model,
                                               profile_set_visit *visit, void *context);

/* Replaces a curve of the same variant. KVT_E_ARGUMENT when it has no loss. */
KVT_NODISCARD kvt_status profile_curve_insert(kvt_profile *profile, int64_t set,
                                              kvt_variant variant, const char *name,
                                              const char *metric, const quality_curve *curve);

/* What a set says beside its curves. */
KVT_NODISCARD kvt_status profile_set_finish(kvt_profile *profile, int64_t set,
                                            const quality_spread *spread);

/* ---- bases that a calibration learns ---- */

/* An object as content of a run. lesson: JSON of everything that the same basis follows from, so
 * that a calibration that goes on finds it. As profile_basis_import. */
KVT_NODISCARD kvt_status profile_basis_put(kvt_profile *profile, int64_t run, int64_t model,
                                           const char *lesson, const void *object, uint64_t bytes);

/* The basis of a lesson and span, as profile_basis_get. */
KVT_NODISCARD kvt_status profile_basis_find(kvt_profile *profile, int64_t model, const char *lesson,
                                            uint32_t span, profile_basis *out);

#endif
