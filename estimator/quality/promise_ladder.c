/* SPDX-License-Identifier: Apache-2.0 */
/*
 * promise_ladder.c - ladders of the variants that a measurement with a model has, with bounds for
 * each class and for a class that was not measured. No question is asked of the variants: those
 * that were measured are compared, and a variant that a cheaper one beats is refused. Thread rule:
 * any thread.
 */
#include "estimator/quality/calibrate.h"
#include "estimator/quality/promise.h"

#include <stdlib.h>
#include <string.h>

/* Rows of the entries of one class, or of all (CALIBRATE_NEW_CLASS), as a calibration has them. */
typedef struct ladder_part {
    calibrate_source source;
    calibrate_rows rows;
    uint32_t *classes;
    uint64_t *documents;
} ladder_part;

static void part_free(ladder_part *part)
{
    calibrate_rows_free(&part->rows);
    free(part->classes);
    free(part->documents);
}

static kvt_status part_make(const promise_measured *m, int class_index, ladder_part *part)
{
    const promise_rows *from = &m->rows;
    const uint32_t variants = from->variant_count < CALIBRATE_RUNGS_MAX
                                  ? from->variant_count
                                  : (uint32_t)CALIBRATE_RUNGS_MAX;
    quality_spread spread;
    *part = (ladder_part){.classes = calloc(from->entry_count + 1u, sizeof *part->classes),
                          .documents = calloc(from->entry_count + 1u, sizeof *part->documents)};
    part->rows.rows =
        calloc((size_t)from->entry_count * CALIBRATE_VARIANTS_MAX + 1u, sizeof *part->rows.rows);
    part->rows.curves = calloc(CALIBRATE_VARIANTS_MAX, sizeof *part->rows.curves);
    if (part->classes == NULL || part->documents == NULL || part->rows.rows == NULL ||
        part->rows.curves == NULL)
        return KVT_E_MEMORY;
    for (uint32_t e = 0; e < from->entry_count; e++) {
        if (class_index != CALIBRATE_NEW_CLASS && from->classes[e] != (uint32_t)class_index)
            continue;
        const uint32_t at = part->source.entries++;
        part->classes[at] = from->classes[e];
        part->documents[at] = from->documents[e];
        memcpy(&part->rows.rows[(size_t)at * CALIBRATE_VARIANTS_MAX],
               &from->rows[(size_t)e * from->variant_count], variants * sizeof(quality_row));
    }
    part->source.trials = from->trials;
    part->rows.source = &part->source;
    part->rows.count = variants;
    memcpy(part->rows.variants, m->variants, variants * sizeof *m->variants);
    return quality_summarise(part->rows.rows, part->documents, part->source.entries,
                             CALIBRATE_VARIANTS_MAX, 1, part->rows.curves, &spread);
}

static kvt_status ladder_put(kvt_profile *profile, int64_t run, int64_t of_model,
                             const promise_measured *m, int class_index, const char *name)
{
    ladder_part part;
    uint32_t at[CALIBRATE_RUNGS_MAX], count = 0;
    calibrate_ladder *ladder = calloc(1, sizeof *ladder);
    kvt_status status = part_make(m, class_index, &part);
    if (ladder == NULL) status = KVT_E_MEMORY;
    for (uint32_t i = 0; status == KVT_OK && i < part.rows.count; i++) {
        const bool exact = part.rows.curves[i].loss_mean == 0.0 && part.rows.curves[i].kl < 1e-9;
        if (part.rows.curves[i].entries > 0 && !exact && !part.rows.variants[i].merged)
            at[count++] = i;
    }
    if (status == KVT_OK && count > 0) {
        const calibrate_entries of = {part.classes, part.documents, m->rows.class_count};
        calibrate_make_rungs(&part.rows, at, count, ladder);
        status = calibrate_bound(&part.rows, &of, class_index, ladder);
        if (status == KVT_OK) status = calibrate_put_ladder(profile, run, of_model, name, ladder);
    }
    part_free(&part);
    free(ladder);
    return status;
}

kvt_status promise_put_ladders(kvt_profile *profile, int64_t run, int64_t of_model,
                               const promise_measured *m)
{
    kvt_status status = KVT_OK;
    for (uint32_t c = 0; status == KVT_OK && c < m->rows.class_count; c++)
        status = ladder_put(profile, run, of_model, m, (int)c, m->class_names[c]);
    if (status == KVT_OK && m->rows.class_count > 1)
        status = ladder_put(profile, run, of_model, m, CALIBRATE_NEW_CLASS, m->all_name);
    return status;
}
