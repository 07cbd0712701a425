/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calibrate_limits.c - what the rungs of a ladder lose at most, and a ladder into a profile. Bounds
 * that are no part of a rung's row are choices of the calibration: a question, and a figure for an
 * answer. Thread rule: see calibrate.h.
 */
#include "estimator/profile/profile_internal.h"
#include "estimator/quality/calibrate.h"
#include "estimator/quality/promise.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const promise_bound *limits_of(const promise_rows *rows, const quality_variant *variants,
                                      const promise_bound *bounds, const char *name)
{
    for (uint32_t i = 0; i < rows->variant_count; i++)
        if (strcmp(variants[i].name, name) == 0) return &bounds[i];
    return NULL;
}

/* Bounds do not fall along the accepted rungs of one kind. */
static void limits_raise(calibrate_ladder *ladder, int kind)
{
    double upper = 0.0, entry = 0.0;
    for (uint32_t i = 0; i < ladder->rung_count; i++) {
        calibrate_rung *rung = &ladder->rungs[i];
        if (!rung->accepted || rung->kind != (uint8_t)kind) continue;
        upper = fmax(upper, fmax(rung->loss_upper, rung->loss));
        rung->loss_upper = upper;
        if (rung->loss_entry == 0.0) continue;
        entry = fmax(entry, fmax(rung->loss_entry, upper));
        rung->loss_entry = entry;
    }
}

kvt_status calibrate_bound(const promise_rows *rows, const quality_variant *variants,
                           int class_index, calibrate_ladder *ladder)
{
    promise_bound *bounds = calloc(rows->variant_count + 1u, sizeof *bounds);
    if (bounds == NULL) return KVT_E_MEMORY;
    kvt_status status = class_index == CALIBRATE_NEW_CLASS
                            ? promise_of_others(rows, 0, bounds)
                            : promise_of_class(rows, (uint32_t)class_index, bounds);
    ladder->widening = 0.0;
    for (uint32_t i = 0; status == KVT_OK && i < ladder->rung_count; i++) {
        calibrate_rung *rung = &ladder->rungs[i];
        const promise_bound *bound = limits_of(rows, variants, bounds, rung->variant.name);
        rung->loss_entry = 0.0;
        if (bound == NULL || isnan(bound->entry)) continue;
        rung->loss_entry = fmax(bound->entry, rung->loss);
        rung->loss_upper = fmax(bound->mean, rung->loss);
        if (class_index == CALIBRATE_NEW_CLASS) ladder->widening = bound->widening;
    }
    free(bounds);
    if (status != KVT_OK) return status;
    for (int kind = CALIBRATE_PLAIN; kind < CALIBRATE_KINDS; kind++)
        limits_raise(ladder, kind);
    return KVT_OK;
}

/* ---- into the database ---- */

static int limits_put_rung(kvt_profile *profile, sqlite3_int64 id, uint32_t position,
                           const calibrate_rung *rung)
{
    profile_row row = profile_row_begin(
        profile, "INSERT INTO calibration_rung (calibration_id, position, codec, mode, rate, "
                 "name, bits_per_element, loss, loss_upper, accepted, evidence) VALUES (?, ?, "
                 "?, ?, ?, ?, ?, ?, ?, ?, ?)");
    profile_row_integer(&row, (uint64_t)id);
    profile_row_integer(&row, position);
    profile_row_integer(&row, rung->variant.variant.codec);
    profile_row_integer(&row, rung->variant.variant.mode);
    profile_row_integer(&row, rung->variant.variant.rate);
    profile_row_text(&row, rung->variant.name);
    profile_row_real(&row, rung->bits_per_element);
    profile_row_real(&row, rung->loss);
    profile_row_real(&row, rung->loss_upper);
    profile_row_integer(&row, rung->accepted);
    profile_row_text(&row, rung->evidence);
    return profile_row_end(&row);
}

static int limits_put_choice(kvt_profile *profile, sqlite3_int64 id, const char *question,
                             const char *chosen, const char *evidence)
{
    profile_row row = profile_row_begin(
        profile, "INSERT INTO calibration_choice (calibration_id, question, chosen, evidence) "
                 "VALUES (?, ?, ?, ?)");
    profile_row_integer(&row, (uint64_t)id);
    profile_row_text(&row, question);
    profile_row_text(&row, chosen);
    profile_row_text(&row, evidence);
    return profile_row_end(&row);
}

static int limits_put_bounds(kvt_profile *profile, sqlite3_int64 id, const calibrate_ladder *ladder)
{
    char question[sizeof PROFILE_ENTRY_LIMIT + QUALITY_NAME_BYTES], chosen[32];
    int result = SQLITE_OK;
    for (uint32_t i = 0; result == SQLITE_OK && i < ladder->rung_count; i++) {
        const calibrate_rung *rung = &ladder->rungs[i];
        if (!rung->accepted || !(rung->loss_entry > 0.0)) continue;
        (void)snprintf(question, sizeof question, PROFILE_ENTRY_LIMIT "%s", rung->variant.name);
        (void)snprintf(chosen, sizeof chosen, "%.9g", rung->loss_entry);
        result = limits_put_choice(profile, id, question, chosen,
                                   "a bound at 95 % confidence; docs/PROFILE.md");
    }
    if (result != SQLITE_OK || !(ladder->widening > 1.0)) return result;
    (void)snprintf(chosen, sizeof chosen, "%.9g", ladder->widening);
    return limits_put_choice(profile, id, PROFILE_WIDENING, chosen,
                             "from how the measured classes differ");
}

kvt_status calibrate_put_ladder(kvt_profile *profile, int64_t run, int64_t of_model,
                                const char *class_name, const calibrate_ladder *ladder)
{
    profile_row row = profile_row_begin(
        profile, "INSERT INTO calibration (run_id, model_id, class) VALUES (?, ?, ?)");
    profile_row_integer(&row, (uint64_t)run);
    profile_row_integer(&row, (uint64_t)of_model);
    profile_row_text(&row, class_name);
    int result = profile_row_end(&row);
    const sqlite3_int64 id = sqlite3_last_insert_rowid(profile->database);
    for (uint32_t i = 0; result == SQLITE_OK && i < ladder->rung_count; i++)
        result = limits_put_rung(profile, id, i, &ladder->rungs[i]);
    for (uint32_t i = 0; result == SQLITE_OK && i < ladder->choice_count; i++)
        result = limits_put_choice(profile, id, ladder->choices[i].question,
                                   ladder->choices[i].chosen, ladder->choices[i].evidence);
    if (result == SQLITE_OK) result = limits_put_bounds(profile, id, ladder);
    return profile_status(result);
}
