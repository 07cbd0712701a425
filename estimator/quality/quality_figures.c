/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quality_figures.c - what rows of entries x variants make: means with intervals, ranks, and how
 * much of the difference between entries belongs to the entry. Thread rule: any thread.
 */
#include "base/order.h"
#include "estimator/quality/quality.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>

enum { FIGURES_RESAMPLES = 2000 };

/* Losses of variants that are nearly exact are noise, and those of broken ones all alike. */
#define FIGURES_BITS_MOST 6.0
#define FIGURES_KL_MOST   0.5
#define FIGURES_KL_LEAST  1e-9

#define FIGURES_NAN ((double)NAN)

/* Of sorted values. */
static double figures_point(const double *sorted, uint32_t count, double share)
{
    double place = share * (count - 1);
    uint32_t low = (uint32_t)place, high = low + 1 < count ? low + 1 : low;
    return sorted[low] + (place - low) * (sorted[high] - sorted[low]);
}

double quality_quantile(double *values, uint32_t count, double share)
{
    qsort(values, count, sizeof *values, base_order_doubles);
    return figures_point(values, count, share);
}

static double figures_mean(const double *values, uint32_t count)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < count; i++)
        sum += values[i];
    return count > 0 ? sum / count : FIGURES_NAN;
}

static double figures_deviation(const double *values, uint32_t count)
{
    double mean = figures_mean(values, count), sum = 0.0;
    for (uint32_t i = 0; i < count; i++)
        sum += (values[i] - mean) * (values[i] - mean);
    return count > 1 ? sqrt(sum / (count - 1)) : FIGURES_NAN;
}

double quality_correlation(const double *x, const double *y, uint32_t count)
{
    double mean_x = figures_mean(x, count), mean_y = figures_mean(y, count);
    double xx = 0.0, yy = 0.0, xy = 0.0;
    if (count < 3) return FIGURES_NAN;
    for (uint32_t i = 0; i < count; i++) {
        xx += (x[i] - mean_x) * (x[i] - mean_x);
        yy += (y[i] - mean_y) * (y[i] - mean_y);
        xy += (x[i] - mean_x) * (y[i] - mean_y);
    }
    if (!(xx > 0.0 && yy > 0.0)) return FIGURES_NAN;
    double correlation = xy / sqrt(xx * yy);
    return correlation > 1.0 ? 1.0 : correlation < -1.0 ? -1.0 : correlation;
}

/* The rank of each value, from 1; equal values share the mean of theirs. */
static void figures_rank(const double *values, uint32_t count, double *sorted, double *ranks)
{
    for (uint32_t i = 0; i < count; i++)
        sorted[i] = values[i];
    qsort(sorted, count, sizeof *sorted, base_order_doubles);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t below = 0, upto;
        for (uint32_t step = count; step > 0; step /= 2)
            while (below + step <= count && sorted[below + step - 1] < values[i])
                below += step;
        for (upto = below; upto < count && sorted[upto] <= values[i];)
            upto++;
        ranks[i] = 0.5 * ((double)below + 1.0 + upto);
    }
}

kvt_status quality_rank_correlation(const double *x, const double *y, uint32_t count,
                                    double *correlation_out)
{
    *correlation_out = FIGURES_NAN;
    double *work = malloc(((size_t)count + 1) * 3 * sizeof *work);
    if (work == NULL) return KVT_E_MEMORY;
    figures_rank(x, count, work, work + count);
    figures_rank(y, count, work, work + 2 * (size_t)count);
    *correlation_out = quality_correlation(work + count, work + 2 * (size_t)count, count);
    free(work);
    return KVT_OK;
}

/* ---- one variant ---- */

/* Rows of a set, and columns of numbers taken from them. */
typedef struct figures_work {
    const quality_row *rows;
    const uint32_t *documents; /* [entry_count]: of which each entry was cut */
    uint32_t document_count;
    uint32_t entry_count, variant_count;
    double *values, *others; /* [the larger of the two counts] */
    uint32_t *at;            /* the document of each of the values */
    double *sums, *counts;   /* [document_count], of the values */
    double *resampled;       /* [FIGURES_RESAMPLES] */
    uint64_t seed;
} figures_work;

static double figures_member(const quality_row *row, size_t offset)
{
    return *(const double *)(const void *)((const char *)row + offset);
}

/* The finite values of one member over the entries that have a row. */
static uint32_t figures_take(const figures_work *work, uint32_t variant, size_t offset)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < work->entry_count; i++) {
        const quality_row *row = &work->rows[(size_t)i * work->variant_count + variant];
        double value = figures_member(row, offset);
        if (!row->present || !isfinite(value)) continue;
        work->at[count] = work->documents[i];
        work->values[count++] = value;
    }
    return count;
}

static uint64_t figures_random(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* Sums the values by document, and leaves out documents without any. Returns how many have some. */
static uint32_t figures_group(figures_work *work, uint32_t count)
{
    uint32_t used = 0;
    for (uint32_t d = 0; d < work->document_count; d++)
        work->sums[d] = work->counts[d] = 0.0;
    for (uint32_t i = 0; i < count; i++) {
        work->sums[work->at[i]] += work->values[i];
        work->counts[work->at[i]] += 1.0;
    }
    for (uint32_t d = 0; d < work->document_count; d++) {
        if (work->counts[d] == 0.0) continue;
        work->sums[used] = work->sums[d];
        work->counts[used++] = work->counts[d];
    }
    return used;
}

/* The middle 95 % of the means of documents drawn with replacement, each with all of its entries;
 * holds the mean itself. One document says nothing of others: no number. */
static void figures_interval(figures_work *work, uint32_t count, double mean, double *low,
                             double *high)
{
    uint64_t state = work->seed;
    const uint32_t documents = figures_group(work, count);
    *low = *high = FIGURES_NAN;
    if (documents < 2) return;
    for (uint32_t i = 0; i < FIGURES_RESAMPLES; i++) {
        double sum = 0.0, drawn = 0.0;
        for (uint32_t j = 0; j < documents; j++) {
            const uint64_t d = (figures_random(&state) >> 32) * documents >> 32;
            sum += work->sums[d];
            drawn += work->counts[d];
        }
        work->resampled[i] = sum / drawn;
    }
    qsort(work->resampled, FIGURES_RESAMPLES, sizeof *work->resampled, base_order_doubles);
    *low = fmin(mean, figures_point(work->resampled, FIGURES_RESAMPLES, 0.025));
    *high = fmax(mean, figures_point(work->resampled, FIGURES_RESAMPLES, 0.975));
}

static void figures_loss(figures_work *work, uint32_t variant, quality_curve *curve)
{
    uint32_t count = figures_take(work, variant, offsetof(quality_row, loss));
    curve->loss_mean = figures_mean(work->values, count);
    curve->loss_low = curve->loss_high = curve->loss_p90 = curve->loss_cv = FIGURES_NAN;
    if (count == 0) return;
    figures_interval(work, count, curve->loss_mean, &curve->loss_low, &curve->loss_high);
    /* A loss is a share: of one document all that is known of others. */
    if (isnan(curve->loss_high)) curve->loss_low = 0.0;
    if (isnan(curve->loss_high)) curve->loss_high = 1.0;
    if (curve->loss_mean > 0.0)
        curve->loss_cv = figures_deviation(work->values, count) / curve->loss_mean;
    curve->loss_p90 = quality_quantile(work->values, count, 0.9);
}

static void figures_kl(figures_work *work, uint32_t variant, quality_curve *curve)
{
    uint32_t count = figures_take(work, variant, offsetof(quality_row, kl));
    curve->kl = figures_mean(work->values, count);
    curve->kl_low = curve->kl_high = curve->kl_p90 = FIGURES_NAN;
    if (count == 0) return;
    figures_interval(work, count, curve->kl, &curve->kl_low, &curve->kl_high);
    curve->kl_p90 = quality_quantile(work->values, count, 0.9);
}

static double figures_log(double kl)
{
    return log(kl > FIGURES_KL_LEAST ? kl : FIGURES_KL_LEAST);
}

/* Over entries: attention error against KL, and the halves of the continuation. */
static kvt_status figures_over_entries(const figures_work *work, uint32_t variant,
                                       quality_curve *curve)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < work->entry_count; i++) {
        const quality_row *row = &work->rows[(size_t)i * work->variant_count + variant];
        if (!row->present || !isfinite(row->attention_error) || !isfinite(row->kl)) continue;
        work->values[count] = row->attention_error;
        work->others[count++] = row->kl;
    }
    kvt_status status =
        quality_rank_correlation(work->values, work->others, count, &curve->spearman_entries);
    count = 0;
    for (uint32_t i = 0; i < work->entry_count; i++) {
        const quality_row *row = &work->rows[(size_t)i * work->variant_count + variant];
        if (!row->present || !isfinite(row->kl_first) || !isfinite(row->kl_second)) continue;
        work->values[count] = figures_log(row->kl_first);
        work->others[count++] = figures_log(row->kl_second);
    }
    curve->repeatability = quality_correlation(work->values, work->others, count);
    return status;
}

static kvt_status figures_curve(figures_work *work, uint32_t variant, quality_curve *curve)
{
    static const struct {
        size_t row, curve;
    } means[] = {
#define MEAN(name) {offsetof(quality_row, name), offsetof(quality_curve, name)}
        MEAN(bits_per_element),
        MEAN(physical_bits_per_element),
        MEAN(top1),
        MEAN(nll_delta),
        MEAN(rouge_l),
        MEAN(f1),
        MEAN(answers),
        MEAN(attention_error),
        MEAN(attention_error_high),
        MEAN(retained_mass),
        MEAN(flip_rate),
        MEAN(nmse[0]),
        MEAN(nmse[1]),
#undef MEAN
    };
    *curve = (quality_curve){.entries = 0};
    for (uint32_t i = 0; i < work->entry_count; i++)
        curve->entries += work->rows[(size_t)i * work->variant_count + variant].present;
    if (curve->entries == 0) return KVT_OK;
    for (size_t i = 0; i < sizeof means / sizeof means[0]; i++) {
        double *member = (double *)(void *)((char *)curve + means[i].curve);
        *member = figures_mean(work->values, figures_take(work, variant, means[i].row));
    }
    figures_loss(work, variant, curve);
    figures_kl(work, variant, curve);
    return figures_over_entries(work, variant, curve);
}

/* ---- over variants ---- */

static kvt_status figures_over_variants(figures_work *work, const quality_curve *curves,
                                        quality_spread *spread)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < work->variant_count; i++) {
        if (curves[i].entries == 0 || !isfinite(curves[i].spearman_entries)) continue;
        work->values[count++] = curves[i].spearman_entries;
    }
    spread->spearman_entries = count > 0 ? quality_quantile(work->values, count, 0.5) : FIGURES_NAN;
    count = 0;
    for (uint32_t i = 0; i < work->variant_count; i++) {
        if (curves[i].entries == 0 || !isfinite(curves[i].attention_error) ||
            !isfinite(curves[i].kl)) {
            continue;
        }
        work->values[count] = curves[i].attention_error;
        work->others[count++] = curves[i].kl;
    }
    return quality_rank_correlation(work->values, work->others, count, &spread->spearman_variants);
}

uint32_t quality_number_documents(const uint64_t *documents, uint32_t entry_count,
                                  uint32_t *numbers_out)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < entry_count; i++) {
        uint32_t before = i;
        if (documents != NULL && documents[i] != 0)
            for (before = 0; before < i && documents[before] != documents[i];)
                before++;
        numbers_out[i] = before < i ? numbers_out[before] : count++;
    }
    return count;
}

kvt_status quality_summarise(const quality_row *rows, const uint64_t *documents,
                             uint32_t entry_count, uint32_t variant_count, uint64_t seed,
                             quality_curve *curves_out, quality_spread *spread_out)
{
    figures_work work = {
        .rows = rows, .entry_count = entry_count, .variant_count = variant_count, .seed = seed};
    size_t most = (entry_count > variant_count ? entry_count : variant_count) + 1u;
    kvt_status status = KVT_E_MEMORY;
    work.values = malloc((4 * most + FIGURES_RESAMPLES) * sizeof *work.values);
    double *effects = malloc(((size_t)entry_count + 1) * sizeof *effects);
    uint32_t *numbers = malloc(2 * most * sizeof *numbers);
    if (work.values == NULL || effects == NULL || numbers == NULL) goto out;
    work.others = work.values + most;
    work.sums = work.others + most;
    work.counts = work.sums + most;
    work.resampled = work.counts + most;
    work.at = numbers + most;
    work.documents = numbers;
    work.document_count = quality_number_documents(documents, entry_count, numbers);
    status = KVT_OK;
    for (uint32_t i = 0; status == KVT_OK && i < variant_count; i++)
        status = figures_curve(&work, i, &curves_out[i]);
    if (status == KVT_OK) status = figures_over_variants(&work, curves_out, spread_out);
    if (status == KVT_OK)
        status = quality_sensitivity(rows, entry_count, variant_count, effects, spread_out);
out:
    free(work.values);
    free(effects);
    free(numbers);
    return status;
}

/* ---- what belongs to the entry ---- */

/* Whether a variant's losses say something about entries; every entry has to have a row. */
static bool figures_is_telling(const quality_row *rows, uint32_t entry_count,
                               uint32_t variant_count, uint32_t variant)
{
    double kl = 0.0, bits = 0.0;
    for (uint32_t i = 0; i < entry_count; i++) {
        const quality_row *row = &rows[(size_t)i * variant_count + variant];
        if (!row->present || !isfinite(row->kl_first) || !isfinite(row->kl_second)) return false;
        kl += row->kl / entry_count;
        bits += row->bits_per_element / entry_count;
    }
    return bits < FIGURES_BITS_MOST && kl > FIGURES_KL_LEAST && kl < FIGURES_KL_MOST;
}

/* Adds one variant's log KL less its mean over entries. */
static void figures_add_effect(const quality_row *rows, uint32_t entry_count,
                               uint32_t variant_count, uint32_t variant, size_t offset,
                               double *effects)
{
    double mean = 0.0;
    for (uint32_t i = 0; i < entry_count; i++)
        mean += figures_log(figures_member(&rows[(size_t)i * variant_count + variant], offset)) /
                entry_count;
    for (uint32_t i = 0; i < entry_count; i++)
        effects[i] +=
            figures_log(figures_member(&rows[(size_t)i * variant_count + variant], offset)) - mean;
}

kvt_status quality_sensitivity(const quality_row *rows, uint32_t entry_count,
                               uint32_t variant_count, double *effects, quality_spread *spread)
{
    uint32_t telling = 0;
    double *halves = calloc(2 * (size_t)entry_count + 1, sizeof *halves);
    if (halves == NULL) return KVT_E_MEMORY;
    for (uint32_t i = 0; i < entry_count; i++)
        effects[i] = 0.0;
    for (uint32_t i = 0; i < variant_count; i++) {
        if (!figures_is_telling(rows, entry_count, variant_count, i)) continue;
        telling++;
        figures_add_effect(rows, entry_count, variant_count, i, offsetof(quality_row, kl), effects);
        figures_add_effect(rows, entry_count, variant_count, i, offsetof(quality_row, kl_first),
                           halves);
        figures_add_effect(rows, entry_count, variant_count, i, offsetof(quality_row, kl_second),
                           halves + entry_count);
    }
    for (uint32_t i = 0; i < entry_count; i++)
        effects[i] = telling > 0 ? effects[i] / telling : FIGURES_NAN;
    spread->variants = telling;
    spread->sensitivity_sd = telling > 0 ? figures_deviation(effects, entry_count) : FIGURES_NAN;
    spread->repeatability = quality_correlation(halves, halves + entry_count, entry_count);
    free(halves);
    return KVT_OK;
}
