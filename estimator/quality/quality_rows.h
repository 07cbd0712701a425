/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quality_rows.h - rows that a measurement with a model leaves in the profile: what of an entry is
 * stored as which row, and what two measurements must share so that the rows of one count for the
 * other. `profile quality` and `profile calibrate` write and read them alike.
 *
 * Thread rule: one thread at a time per profile.
 */
#ifndef ESTIMATOR_QUALITY_ROWS_H
#define ESTIMATOR_QUALITY_ROWS_H

#include "estimator/quality/quality.h"

#define QUALITY_METHOD "continuation"
#define QUALITY_POOLED "pooled" /* all classes together; the ladder of any other class */

enum { QUALITY_SEED = 1 };

/* The row of the exact run: nll_delta is the likelihood itself. No record has such a variant. */
#define QUALITY_EXACT_KEY ((kvt_variant){KVT_CODEC_RAW, QUALITY_MERGED_MODE, 0})

static inline bool quality_same_variant(kvt_variant a, kvt_variant b)
{
    return a.codec == b.codec && a.mode == b.mode && a.rate == b.rate;
}

/* What a row says of its passage, as a row of its own; not present where it has none. */
quality_row quality_row_passage(quality_metric metric, const quality_row *row);

/* One row into `set`, and what it says of its passage into `passages` before it (0: nowhere), so
 * that a row of answers says that both are there. KVT_OK; what profile_entry_insert gives. */
KVT_NODISCARD kvt_status quality_row_put(kvt_profile *profile, int64_t set, int64_t passages,
                                         uint32_t entry, kvt_variant key, quality_metric metric,
                                         const quality_row *row);

/* The row of the exact run, likewise. */
KVT_NODISCARD kvt_status quality_row_put_exact(kvt_profile *profile, int64_t set, int64_t passages,
                                               uint32_t entry, const quality_exact *exact);

/* ---- sets ---- */

/* The set of an interrupted run with the same settings, or a new one. *run is the run of all sets
 * of a measurement, 0 before the first of them: that one decides which it is, and `kind` begins it.
 * KVT_OK; KVT_E_READ_ONLY; KVT_E_DATABASE. */
KVT_NODISCARD kvt_status quality_set_open(kvt_profile *profile, const profile_set *set,
                                          const char *kind, const char *command_line, int64_t *run,
                                          int64_t *set_out);

typedef struct quality_cuts {
    uint64_t texts;   /* quality_entries_digest of its entries */
    uint32_t entries; /* how many there are */
    uint32_t context_tokens, continuation_tokens;
    uint32_t answer_tokens;
    quality_metric metric;
    quality_use use;
    bool calibration; /* the set belongs to a calibration: its entries need not have all variants */
} quality_cuts;

/* JSON, the caller frees it; NULL: no memory. */
char *quality_cuts_write(const quality_cuts *cuts);

/* False where the text is no such JSON. metric, use and calibration are left alone. */
bool quality_cuts_read(const char *settings, quality_cuts *cuts_out);

#endif
