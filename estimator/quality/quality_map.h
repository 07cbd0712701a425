/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quality_map.h - from attention error to loss: monotone fits over variants, one per codec family
 * and model, made where the losses of the same variants on the same model are known (measured by
 * continuing, or imported), and a bound where nothing is.
 *
 * Thread rule: one profile belongs to one thread at a time; maps are plain data.
 */
#ifndef ESTIMATOR_QUALITY_MAP_H
#define ESTIMATOR_QUALITY_MAP_H

#include "estimator/quality/isotonic.h"
#include "estimator/quality/quality.h"

#include "estimator/profile/profile.h"

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
 * The loss that an attention error stands for, and its upper bound. Exact forms: 0. Where the
 * variant's family has a fit that reaches so far: the fit. Otherwise both are
 * quality_loss_bound(high).
 */
void quality_map_loss(const quality_map *map, kvt_variant variant, double error, double high,
                      double *loss_out, double *upper_out);

/* An upper confidence loss without any scores: the error of the worst heads itself, at most 1. On
 * the models that were looked at, top-1 loss stayed below it for every variant (docs/PROFILE.md).
 */
double quality_loss_bound(double attention_error_high);

#endif
