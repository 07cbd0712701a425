/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calibrate_ladder.c - which measured variants are rungs. Thread rule: see calibrate.h.
 */
#include "estimator/quality/calibrate.h"
#include "estimator/quality/quality.h"
#include "estimator/quality/quality_round_trip.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A variant that might become a rung. */
typedef struct ladder_candidate {
    uint32_t variant;
    calibrate_kind kind;
    double bits, distortion;
    uint32_t beaten_by; /* a cheaper one; UINT32_MAX: none */
} ladder_candidate;

static int ladder_order(const void *left, const void *right)
{
    const ladder_candidate *a = left, *b = right;
    if (a->bits != b->bits) return a->bits < b->bits ? 1 : -1;
    return (a->distortion > b->distortion) - (a->distortion < b->distortion);
}

calibrate_kind calibrate_kind_of(const calibrate_bases *bases, kvt_variant variant)
{
    if (quality_variant_drops(variant)) return CALIBRATE_DROPS;
    if (variant.codec != KVT_CODEC_TRANSFORM) return CALIBRATE_PLAIN;
    for (uint32_t s = 0; bases != NULL && s < TRANSFORM_SPAN_LAYERS4; s++)
        if (bases->present[s] && bases->starts[s] == variant.rate >> PROFILE_BASIS_SHIFT)
            return (calibrate_kind)(CALIBRATE_HEAD + s);
    return CALIBRATE_LAYERS4;
}

bool quality_stands_for(calibrate_kind kind, calibrate_kind other)
{
    if (other == CALIBRATE_DROPS) return kind == CALIBRATE_PLAIN || kind == CALIBRATE_DROPS;
    return kind <= other;
}

static uint32_t ladder_find(const ladder_candidate *candidates, uint32_t count, uint32_t variant)
{
    uint32_t at = 0;
    while (at < count && candidates[at].variant != variant)
        at++;
    assert(at < count);
    return at;
}

/* The cheaper one with the least distortion, when that is no more than this one's. Those that the
 * pilot refused have their figures of fewer entries, and beat none. */
static uint32_t ladder_beaten_by(const calibrate_rows *rows, const ladder_candidate *candidates,
                                 uint32_t count, uint32_t at)
{
    uint32_t best = UINT32_MAX;
    for (uint32_t i = 0; i < count; i++) {
        const ladder_candidate *other = &candidates[i];
        if (i == at || other->bits > candidates[at].bits) continue;
        if (rows->beaten_by[other->variant] != CALIBRATE_NONE) continue;
        if (other->bits == candidates[at].bits && i > at) continue;
        if (!quality_stands_for(other->kind, candidates[at].kind)) continue;
        if (other->distortion > candidates[at].distortion) continue;
        if (best == UINT32_MAX || other->distortion < candidates[best].distortion) best = i;
    }
    return best;
}

/* Losses that do not fall along the accepted rungs: what is seen to fall is chance. */
static void ladder_smooth(calibrate_ladder *ladder, calibrate_kind kind)
{
    isotonic_point points[CALIBRATE_RUNGS_MAX];
    uint32_t at[CALIBRATE_RUNGS_MAX], count = 0;
    for (uint32_t i = 0; i < ladder->rung_count; i++) {
        calibrate_rung *rung = &ladder->rungs[i];
        if (!rung->accepted || rung->kind != (uint8_t)kind) continue;
        points[count] = (isotonic_point){.x = count, .y = rung->loss, .weight = 1.0};
        at[count++] = i;
    }
    isotonic_fit(points, count);
    double upper = 0.0;
    for (uint32_t i = 0; i < count; i++) {
        calibrate_rung *rung = &ladder->rungs[at[i]];
        rung->loss = points[i].y;
        upper = fmax(upper, fmax(rung->loss_upper, rung->loss));
        rung->loss_upper = upper;
    }
}

static void ladder_fill(const calibrate_rows *rows, const ladder_candidate *candidates,
                        const ladder_candidate *candidate, calibrate_rung *rung)
{
    const quality_curve *curve = &rows->curves[candidate->variant];
    /* A lossy variant that lost nothing is still lossy: half of the least that could have shown. */
    const double least = 0.5 / ((double)rows->source->trials * curve->entries);
    char measured[192];
    *rung = (calibrate_rung){.variant = rows->variants[candidate->variant],
                             .bits_per_element = candidate->bits,
                             .loss = fmin(fmax(curve->loss_mean, least), 1.0),
                             .kind = (uint8_t)candidate->kind,
                             .accepted = candidate->beaten_by == UINT32_MAX};
    rung->loss_upper = fmin(fmax(curve->loss_high, rung->loss), 1.0);
    (void)snprintf(measured, sizeof measured, "%s %.3g, loss %.4g [%.4g, %.4g], %u entries",
                   isfinite(curve->kl) ? "KL" : "attention error",
                   isfinite(curve->kl) ? curve->kl : curve->attention_error, curve->loss_mean,
                   curve->loss_low, curve->loss_high, (unsigned)curve->entries);
    if (rung->accepted) {
        (void)snprintf(rung->evidence, sizeof rung->evidence, "%s", measured);
        return;
    }
    const ladder_candidate *other = &candidates[candidate->beaten_by];
    calibrate_pair pair =
        calibrate_compare(rows, candidate->variant, other->variant, false, CALIBRATE_ALL_CLASSES);
    (void)snprintf(rung->evidence, sizeof rung->evidence,
                   "%s; worse than %s at %.2f bits: %.3g times its %s [%.3g, %.3g]", measured,
                   rows->variants[other->variant].name, other->bits, exp(pair.mean),
                   isfinite(curve->kl) ? "KL" : "squared attention error", exp(pair.low),
                   exp(pair.high));
}

static void ladder_make_rungs(const calibrate_rows *rows, const uint32_t *variants, uint32_t count,
                              calibrate_ladder *ladder)
{
    ladder_candidate candidates[CALIBRATE_RUNGS_MAX];
    uint32_t kept = 0;
    assert(count <= CALIBRATE_RUNGS_MAX);
    for (uint32_t i = 0; i < count; i++) {
        const quality_curve *curve = &rows->curves[variants[i]];
        if (curve->entries == 0) continue; /* beaten, on entries that are not of this part */
        candidates[kept++] = (ladder_candidate){
            .variant = variants[i],
            .kind = calibrate_kind_of(rows->source->bases, rows->variants[variants[i]].variant),
            .bits = curve->bits_per_element,
            .distortion =
                isfinite(curve->kl) ? curve->kl : curve->attention_error * curve->attention_error};
    }
    qsort(candidates, kept, sizeof candidates[0], ladder_order);
    for (uint32_t i = 0; i < kept; i++) {
        const uint32_t by = rows->beaten_by[candidates[i].variant];
        candidates[i].beaten_by = by == CALIBRATE_NONE ? ladder_beaten_by(rows, candidates, kept, i)
                                                       : ladder_find(candidates, kept, by);
    }
    ladder->rung_count = kept;
    for (uint32_t i = 0; i < kept; i++)
        ladder_fill(rows, candidates, &candidates[i], &ladder->rungs[i]);
    for (int kind = CALIBRATE_PLAIN; kind < CALIBRATE_KINDS; kind++)
        ladder_smooth(ladder, (calibrate_kind)kind);
}

/* ---- the entries of one class ---- */

/* Entries that have a row of every rung, as rows of their own. */
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

static bool part_is_whole(const calibrate_rows *rows, uint32_t entry, const uint32_t *variants,
                          uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (rows->beaten_by[variants[i]] == CALIBRATE_NONE &&
            !rows->rows[(size_t)entry * CALIBRATE_VARIANTS_MAX + variants[i]].present)
            return false;
    return true;
}

static kvt_status part_make(const calibrate_rows *rows, const uint32_t *variants, uint32_t count,
                            int class_index, ladder_part *part)
{
    const calibrate_source *from = rows->source;
    quality_spread spread;
    *part = (ladder_part){.source = *from,
                          .classes = calloc(from->entries + 1u, sizeof *part->classes),
                          .documents = calloc(from->entries + 1u, sizeof *part->documents)};
    kvt_status status = calibrate_rows_make(&part->rows, from, rows->seed);
    if (part->classes == NULL || part->documents == NULL) status = KVT_E_MEMORY;
    if (status != KVT_OK) return status;
    part->source.entries = 0;
    for (uint32_t e = 0; e < from->entries; e++) {
        const uint32_t of_class = from->classes != NULL ? from->classes[e] : 0;
        if (class_index != CALIBRATE_NEW_CLASS && of_class != (uint32_t)class_index) continue;
        if (!part_is_whole(rows, e, variants, count)) continue;
        const uint32_t at = part->source.entries++;
        part->classes[at] = of_class;
        part->documents[at] = from->documents != NULL ? from->documents[e] : 0;
        for (uint32_t i = 0; i < count; i++)
            part->rows.rows[(size_t)at * CALIBRATE_VARIANTS_MAX + variants[i]] =
                rows->rows[(size_t)e * CALIBRATE_VARIANTS_MAX + variants[i]];
    }
    part->source.classes = part->classes;
    part->source.documents = part->documents;
    part->rows.source = &part->source;
    part->rows.count = rows->count;
    memcpy(part->rows.variants, rows->variants, sizeof rows->variants);
    memcpy(part->rows.beaten_by, rows->beaten_by, sizeof rows->beaten_by);
    (void)quality_number_documents(part->documents, part->source.entries, part->rows.documents);
    return quality_summarise(part->rows.rows, part->documents, part->source.entries,
                             CALIBRATE_VARIANTS_MAX, rows->seed, part->rows.curves, &spread);
}

/* Of the variants that are measured on all entries: the others' losses bound nothing. */
static promise_rows part_promises(ladder_part *part)
{
    for (uint32_t i = 0; i < part->source.entries * CALIBRATE_VARIANTS_MAX; i++)
        if (part->rows.beaten_by[i % CALIBRATE_VARIANTS_MAX] != CALIBRATE_NONE)
            part->rows.rows[i].present = false;
    return (promise_rows){.rows = part->rows.rows,
                          .entry_count = part->source.entries,
                          .variant_count = CALIBRATE_VARIANTS_MAX,
                          .classes = part->classes,
                          .documents = part->documents,
                          .class_count =
                              part->source.class_count > 1 ? part->source.class_count : 1,
                          .trials = part->source.trials};
}

kvt_status calibrate_make_ladder(const calibrate_rows *rows, const uint32_t *variants,
                                 uint32_t count, int class_index, calibrate_ladder *ladder)
{
    ladder_part part;
    kvt_status status = part_make(rows, variants, count, class_index, &part);
    ladder->entries = part.source.entries;
    if (status == KVT_OK && part.source.entries < 2) status = KVT_E_ARGUMENT;
    if (status == KVT_OK) {
        ladder_make_rungs(&part.rows, variants, count, ladder);
        const promise_rows promised = part_promises(&part);
        status = calibrate_bound(&promised, part.rows.variants, class_index, ladder);
    }
    part_free(&part);
    return status;
}

kvt_status calibrate_try(const calibrate_rows *rows, const calibrate_ladder *ladder,
                         promise_trial classes[CALIBRATE_LIMITS],
                         promise_trial documents[CALIBRATE_LIMITS])
{
    static const double limits[CALIBRATE_LIMITS] = {0.01, 0.02, 0.05};
    uint32_t variants[CALIBRATE_RUNGS_MAX], count = 0;
    ladder_part part;
    for (uint32_t i = 0; i < rows->count; i++)
        for (uint32_t r = 0; r < ladder->rung_count; r++)
            if (strcmp(rows->variants[i].name, ladder->rungs[r].variant.name) == 0)
                variants[count++] = i;
    for (int i = 0; i < CALIBRATE_LIMITS; i++)
        classes[i] = documents[i] = (promise_trial){.limit = limits[i]};
    kvt_status status = part_make(rows, variants, count, CALIBRATE_NEW_CLASS, &part);
    if (status == KVT_OK) {
        const promise_rows promised = part_promises(&part);
        status = promise_try(&promised, classes, CALIBRATE_LIMITS);
        if (status == KVT_OK)
            status = promise_try_documents(&promised, documents, CALIBRATE_LIMITS);
    }
    part_free(&part);
    return status;
}
