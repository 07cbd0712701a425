/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quality_basis_report.c - means over the contexts that judged, and what lies between two rows: see
 * quality_basis.h. Pure functions.
 */
#include "estimator/quality/quality_basis.h"

#include <math.h>

const double quality_basis_recall_bits[QUALITY_BASIS_SPANS] = {2.4, 1.7, 1.1};

const char *quality_basis_span_name(uint32_t span)
{
    static const char *const names[] = {"", "head", "layer", "layers4"};
    return names[span <= QUALITY_BASIS_SPANS ? span : 0];
}

void quality_basis_add(quality_basis_sums *sums, const quality_basis_sums *more)
{
    sums->bits += more->bits;
    sums->order0_bits += more->order0_bits;
    sums->log_kl += more->log_kl;
    sums->top1 += more->top1;
    sums->log_recall += more->log_recall;
    sums->recall_top1 += more->recall_top1;
    sums->contexts += more->contexts;
    sums->recalls += more->recalls;
}

static void report_row(const quality_basis_sums *sums, quality_basis_row *row)
{
    const double over = 1.0 / sums->contexts;
    row->bits = sums->bits * over;
    row->order0_bits = row->span != 0 ? sums->order0_bits * over : (double)NAN;
    row->kl = exp(sums->log_kl * over);
    row->top1 = sums->top1 * over;
    row->recall_kl = sums->recalls > 0 ? exp(sums->log_recall / sums->recalls) : (double)NAN;
    row->recall_top1 = sums->recalls > 0 ? sums->recall_top1 / sums->recalls : (double)NAN;
}

/* The value at `at` on the line from (x0, y0) to (x1, y1); NAN outside of it. */
static double report_between(double at, double x0, double y0, double x1, double y1)
{
    const double share = (at - x0) / (x1 - x0);
    return share >= 0.0 && share <= 1.0 ? y0 + share * (y1 - y0) : (double)NAN;
}

double quality_basis_reference(const quality_basis_row *rows, uint32_t count)
{
    double least = (double)NAN;
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t j = 0; j < count; j++) {
            const quality_basis_row *a = &rows[i], *b = &rows[j];
            if (a->span != 0 || b->span != 0 || !(a->bits < b->bits)) continue;
            const double one =
                report_between(QUALITY_BASIS_BITS, a->bits, log(a->kl), b->bits, log(b->kl));
            if (!isnan(one) && !(one >= least)) least = one;
        }
    }
    return least;
}

static void report_span(quality_basis_judged *judged, uint32_t count, uint32_t index)
{
    judged->bits[index] = judged->recall_top1[index] = (double)NAN;
    for (uint32_t i = 0; i + 1 < count; i++) {
        const quality_basis_row *a = &judged->rows[i], *b = a + 1;
        if (a->span != index + 1 || b->span != index + 1) continue;
        const double bits =
            report_between(log(judged->reference_kl), log(a->kl), a->bits, log(b->kl), b->bits);
        const double recall = report_between(quality_basis_recall_bits[index], a->bits,
                                             a->recall_top1, b->bits, b->recall_top1);
        if (!isnan(bits)) judged->bits[index] = bits;
        if (!isnan(recall)) judged->recall_top1[index] = recall;
    }
}

void quality_basis_sum_up(const quality_basis_sums *sums, uint32_t count,
                          quality_basis_judged *judged)
{
    judged->contexts = sums[0].contexts;
    for (uint32_t i = 0; i < count; i++)
        report_row(&sums[i], &judged->rows[i]);
    judged->reference_kl = exp(quality_basis_reference(judged->rows, count));
    for (uint32_t s = 0; s < QUALITY_BASIS_SPANS; s++)
        report_span(judged, count, s);
}
