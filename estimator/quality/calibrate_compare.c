/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calibrate_compare.c - variants against each other, entry by entry: over all entries that have
 * both, and on the pilot, the first few documents, whose verdict saves the other entries. Thread
 * rule: see calibrate.h.
 */
#include "estimator/quality/calibrate.h"

#include <math.h>

/* The worth of one bit per element at high rates: four times less squared error, and KL is
 * quadratic in the error of attention. */
#define CALIBRATE_BIT 1.3862943611198906

/* Below this, KL is the rounding of its own sum. */
#define CALIBRATE_LEAST 1e-12

enum {
    PILOT_DOCUMENTS = 6,      /* and at least so many of each class: */
    PILOT_DOCUMENTS_CLASS = 2 /* what is clear on them needs no more */
};

/* ---- comparing ---- */

static double rows_distortion(const quality_row *row)
{
    double value = isfinite(row->kl) ? row->kl : row->attention_error * row->attention_error;
    return value > CALIBRATE_LEAST ? value : CALIBRATE_LEAST;
}

/* Student's 97.5 % point; the series is 0.3 % off at 4 degrees of freedom, less beyond. */
static double calibrate_student(uint32_t freedom)
{
    static const double few[] = {12.706, 4.303, 3.182};
    return freedom <= 3 ? few[freedom - 1] : quality_student(1.959964, freedom);
}

/* The difference of two variants on one entry; false where it lacks one of them. */
static bool compare_entry(const calibrate_rows *rows, uint32_t entry, const uint32_t pair[2],
                          bool even_bits, double *difference)
{
    const quality_row *one = calibrate_row_at(rows, entry, pair[0]),
                      *other = calibrate_row_at(rows, entry, pair[1]);
    if (!one->present || !other->present) return false;
    *difference = log(rows_distortion(one) / rows_distortion(other));
    if (even_bits) *difference += CALIBRATE_BIT * (one->bits_per_element - other->bits_per_element);
    return true;
}

/* Student's interval of a mean whose parts are documents: entries of one are no proof of each
 * other. */
static void compare_interval(const double *sums, const double *counts, uint32_t places,
                             calibrate_pair *pair)
{
    double squares = 0.0;
    for (uint32_t d = 0; d < places; d++) {
        const double off = sums[d] - counts[d] * pair->mean;
        squares += off * off;
        pair->documents += counts[d] > 0.0;
    }
    pair->low = -INFINITY;
    pair->high = INFINITY;
    if (pair->documents < 2) return;
    const double freedom = pair->documents - 1.0, count = pair->entries;
    const double half =
        calibrate_student(pair->documents - 1) * sqrt(squares * pair->documents / freedom) / count;
    pair->low = pair->mean - half;
    pair->high = pair->mean + half;
}

/* Among the entries of a mask; NULL: all. */
static calibrate_pair compare_among(const calibrate_rows *rows, const bool *mask, uint32_t a,
                                    uint32_t b, bool even_bits, int class_index)
{
    const uint32_t both[2] = {a, b}, entries = rows->source->entries;
    calibrate_pair pair = {.entries = 0};
    const uint32_t *classes = rows->source->classes;
    double *sums = rows->sums, *counts = rows->sums + entries, sum = 0.0, difference;
    for (uint32_t i = 0; i < 2 * entries; i++)
        sums[i] = 0.0;
    for (uint32_t e = 0; e < entries; e++) {
        const int of_class = classes != NULL ? (int)classes[e] : 0;
        if (class_index != CALIBRATE_ALL_CLASSES && of_class != class_index) continue;
        if (mask != NULL && !mask[e]) continue;
        if (!compare_entry(rows, e, both, even_bits, &difference)) continue;
        sums[rows->documents[e]] += difference;
        counts[rows->documents[e]] += 1.0;
        sum += difference;
        pair.entries++;
    }
    if (pair.entries == 0) return pair;
    pair.mean = sum / pair.entries;
    compare_interval(sums, counts, entries, &pair);
    return pair;
}

calibrate_pair calibrate_compare(const calibrate_rows *rows, uint32_t a, uint32_t b, bool even_bits,
                                 int class_index)
{
    return compare_among(rows, NULL, a, b, even_bits, class_index);
}

/* ---- the pilot ---- */

/* Whether the pilot leaves no doubt that `a` is no better than `b`: by twice the interval, since
 * many are judged so, or because both are the same. The pilot's rows are the same ones whenever a
 * calibration goes on, and so is the verdict. */
static bool pilot_loses(const calibrate_rows *rows, uint32_t a, uint32_t b, bool even_bits)
{
    const calibrate_pair pair =
        compare_among(rows, rows->pilot, a, b, even_bits, CALIBRATE_ALL_CLASSES);
    if (pair.entries == 0 || pair.documents < 2) return false;
    return pair.mean >= 0.0 && pair.mean - 2.0 * (pair.high - pair.mean) >= 0.0;
}

static double pilot_bits(const calibrate_rows *rows, uint32_t variant)
{
    double bits = 0.0;
    uint32_t entries = 0;
    for (uint32_t e = 0; e < rows->source->entries; e++) {
        if (!rows->pilot[e] || !calibrate_row_at(rows, e, variant)->present) continue;
        bits += calibrate_row_at(rows, e, variant)->bits_per_element;
        entries++;
    }
    return entries > 0 ? bits / entries : (double)NAN;
}

/* Of the variants that were measured, or are marked, one that is cheaper than this one, may stand
 * for it and is better beyond doubt; CALIBRATE_NONE: none. */
uint32_t quality_pilot_beaten_by(const calibrate_rows *rows, const bool *marked, uint32_t variant)
{
    const calibrate_bases *bases = rows->source->bases;
    const calibrate_kind kind = calibrate_kind_of(bases, rows->variants[variant].variant);
    const double bits = pilot_bits(rows, variant);
    for (uint32_t i = 0; i < rows->count; i++) {
        if (marked != NULL && !marked[i]) continue;
        if (!(pilot_bits(rows, i) < bits)) continue;
        if (!quality_stands_for(calibrate_kind_of(bases, rows->variants[i].variant), kind))
            continue;
        if (pilot_loses(rows, variant, i, false)) return i;
    }
    return CALIBRATE_NONE;
}

/* Marks the first asked entries of each class, of different documents. */
void quality_pilot_choose(calibrate_rows *rows)
{
    const calibrate_source *source = rows->source;
    const uint32_t classes = source->class_count > 1 ? source->class_count : 1;
    uint32_t room = (PILOT_DOCUMENTS + classes - 1) / classes, of_class[QUALITY_CLASSES_MAX] = {0};
    if (room < PILOT_DOCUMENTS_CLASS) room = PILOT_DOCUMENTS_CLASS;
    for (uint32_t e = 0; e < source->entries; e++) {
        const uint32_t at = source->classes != NULL ? source->classes[e] : 0;
        bool fits = (source->asked == NULL || source->asked[e]) && of_class[at] < room;
        for (uint32_t i = 0; fits && i < e; i++)
            fits = !rows->pilot[i] || rows->documents[i] != rows->documents[e];
        rows->pilot[e] = fits;
        of_class[at] += fits;
        rows->pilot_count += fits;
        rows->asked_count += source->asked == NULL || source->asked[e];
    }
}

/* Which candidates of a question the pilot leaves: none that is no better than another at even
 * bits, nor one that drops tokens where a cheaper variant is better with all of them. One alone is
 * the answer. Returns how many. */
uint32_t quality_pilot_leaves(const calibrate_rows *rows, const uint32_t *at, uint32_t count,
                              bool *left)
{
    uint32_t remaining = 0, best = CALIBRATE_NONE;
    for (uint32_t i = 0; i < count; i++) {
        left[i] = at[i] != CALIBRATE_NONE;
        if (!left[i]) continue;
        if (best == CALIBRATE_NONE ||
            compare_among(rows, rows->pilot, at[i], at[best], true, CALIBRATE_ALL_CLASSES).mean <
                0.0)
            best = i;
    }
    for (uint32_t i = 0; i < count; i++) {
        left[i] = left[i] && (i == best || !pilot_loses(rows, at[i], at[best], true));
        if (left[i] && quality_variant_drops(rows->variants[at[i]].variant))
            left[i] = quality_pilot_beaten_by(rows, NULL, at[i]) == CALIBRATE_NONE;
        remaining += left[i];
    }
    return remaining;
}

/* Of a basis question's candidates those that the pilot leaves in doubt or finds better, entropy
 * with them. Returns how many. */
uint32_t quality_pilot_leaves_bases(const calibrate_rows *rows, const uint32_t *at, uint32_t count,
                                    bool *left)
{
    uint32_t remaining = 0;
    for (uint32_t i = 1; i < count; i++) {
        left[i] = at[0] != CALIBRATE_NONE && at[i] != CALIBRATE_NONE &&
                  !pilot_loses(rows, at[i], at[0], true);
        remaining += left[i];
    }
    left[0] = remaining > 0;
    return remaining + left[0];
}
