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

#include "estimator/profile/quality_row.h"

#include "profile.h"

/* What quality is a property of. */
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

/* One entry x variant; a transaction of its own. */
KVT_NODISCARD kvt_status profile_entry_insert(kvt_profile *profile, int64_t set, uint32_t entry,
                                              kvt_variant variant, const quality_row *row);

/* Every row of a set. */
typedef void profile_entry_visit(void *context, uint32_t entry, kvt_variant variant,
                                 const quality_row *row);
KVT_NODISCARD kvt_status profile_entries_read(kvt_profile *profile, int64_t set,
                                              profile_entry_visit *visit, void *context);

/* Replaces a curve of the same variant. KVT_E_ARGUMENT when it has no loss. */
KVT_NODISCARD kvt_status profile_curve_insert(kvt_profile *profile, int64_t set,
                                              kvt_variant variant, const char *name,
                                              const char *metric, const quality_curve *curve);

/* What a set says beside its curves. */
KVT_NODISCARD kvt_status profile_set_finish(kvt_profile *profile, int64_t set,
                                            const quality_spread *spread);

#endif
