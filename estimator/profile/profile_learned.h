/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_learned.h - what a running store has learned, in the profile and back; and the spread of
 * losses that its factors are shrunk by. Thread rule: as profile.h says.
 */
#ifndef ESTIMATOR_PROFILE_LEARNED_H
#define ESTIMATOR_PROFILE_LEARNED_H

#include "profile.h"

/* One row (docs/PROFILE.md, learned). Figures that are not there are not a number. */
typedef struct profile_learned {
    char kind[8];  /* "device", "codec", "loss", "reuse" */
    char name[96]; /* of a device its identity; of a codec its variant; else the class */
    char part[24];
    double value;
    double weight;
    uint64_t observations;
    double error_p50;
    double error_p90;
    double log_likelihood;
    double age_seconds; /* read: since the row was written, by the clock of day; at least 0 */
} profile_learned;

/*
 * Writes the rows as the content of a run, in one transaction: a process that is killed leaves what
 * was there before. Waits for other writers a quarter of a second at most. *run is 0 for a new run,
 * which the call begins, or what an earlier call gave. KVT_OK; KVT_E_READ_ONLY; KVT_E_DATABASE.
 */
KVT_NODISCARD kvt_status profile_learned_write(kvt_profile *profile, const char *command_line,
                                               const profile_learned *rows, size_t count,
                                               int64_t *run);

typedef void profile_learned_visit(void *context, const profile_learned *row);

/* Visits the newest row of each thing that was learned on this host with this version of the
 * library, and since when the device or the codecs were not measured anew. KVT_OK; KVT_E_DATABASE.
 */
KVT_NODISCARD kvt_status profile_learned_read(kvt_profile *profile, profile_learned_visit *visit,
                                              void *context);

/*
 * The spread of entries' losses on a model of the layout (by name, or NULL), from the newest
 * complete measurement that tells it, on a class of texts (or NULL). KVT_OK; KVT_MISS;
 * KVT_E_DATABASE.
 */
KVT_NODISCARD kvt_status profile_sensitivity_read(kvt_profile *profile, const kvt_layout *layout,
                                                  const char *model, const char *class_name,
                                                  double *sd_out, double *repeatability_out);

#endif
