/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loop_sample.c - from samples to means, percentiles and forms. One thread.
 */
#include "replay/loop/loop_sample.h"

#include <kvterrace/codec.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLE_INTERVAL 1.96 /* standard errors on either side: 95 % */

kvt_status loop_samples_open(loop_samples *samples, uint64_t most)
{
    *samples = (loop_samples){.samples = calloc(most + 1, sizeof *samples->samples)};
    return samples->samples != NULL ? KVT_OK : KVT_E_MEMORY;
}

void loop_samples_close(loop_samples *samples)
{
    free(samples->samples);
    samples->samples = NULL;
}

void loop_samples_add(loop_samples *samples, const loop_sample *sample)
{
    samples->samples[samples->count++] = *sample;
}

void loop_samples_stored(loop_samples *samples, kvt_variant variant, int tier)
{
    uint32_t at = 0;
    while (at < samples->stored_count &&
           memcmp(&samples->stored_variant[at], &variant, sizeof variant) != 0)
        at++;
    if (at == LOOP_FORMS_MAX) return;
    if (at == samples->stored_count) samples->stored_variant[samples->stored_count++] = variant;
    samples->stored[at][tier]++;
}

/* ---- quantiles of what one reader gives of the samples ---- */

typedef double (*sample_value)(const loop_sample *sample); /* NAN: is left out */

static double value_ttft(const loop_sample *s)
{
    return s->wait_s + s->load_s + s->prefill_s + s->question_s;
}

static double value_error(const loop_sample *s)
{
    if (!s->hit || !(s->predicted_s > 0.0) || !(s->get_s > 0.0)) return (double)NAN;
    return fabs(s->predicted_s / s->get_s - 1.0);
}

static double value_get(const loop_sample *s)
{
    return s->hit && !s->staged ? s->get_s : (double)NAN;
}

static double value_predicted(const loop_sample *s)
{
    return s->hit && s->predicted_s > 0.0 ? s->predicted_s : (double)NAN;
}

static double value_decode(const loop_sample *s)
{
    return s->hit && !s->staged ? s->decode_s : (double)NAN;
}

static double value_recall(const loop_sample *s)
{
    return s->recall;
}

static double value_rouge_l(const loop_sample *s)
{
    return s->rouge_l;
}

/* Of one variant's samples, or of all with NULL. Values into work; returns how many. */
static size_t samples_take(const loop_samples *samples, const kvt_variant *variant,
                           sample_value value, double *work)
{
    size_t count = 0;
    for (uint64_t i = 0; i < samples->count; i++) {
        const loop_sample *sample = &samples->samples[i];
        if (variant != NULL &&
            (!sample->hit || memcmp(&sample->variant, variant, sizeof *variant) != 0))
            continue;
        work[count] = value(sample);
        if (!isnan(work[count])) count++;
    }
    return count;
}

/* NAN of none. */
static double samples_at(double *values, size_t count, double share)
{
    return count > 0 ? quality_quantile(values, (uint32_t)count, share) : (double)NAN;
}

/* NAN of none. */
static double samples_mean(const double *values, size_t count)
{
    double sum = 0.0;
    for (size_t i = 0; i < count; i++)
        sum += values[i];
    return count > 0 ? sum / (double)count : (double)NAN;
}

/* ---- forms ---- */

/*
 * The mean loss of one variant's hits with an interval of 95 %. Answers about one context are
 * alike, so the contexts are what varies: the variance of the mean is that of the contexts' sums.
 */
static void form_loss(const loop_samples *samples, kvt_variant variant, uint32_t context_count,
                      double *sums, loop_form *form)
{
    double total = 0.0, variance = 0.0;
    uint64_t hits = 0;
    for (uint64_t i = 0; i < samples->count; i++) {
        const loop_sample *sample = &samples->samples[i];
        if (!sample->hit || memcmp(&sample->variant, &variant, sizeof variant) != 0) continue;
        total += sample->loss;
        form->top1 += sample->top1;
        form->rouge_l += sample->rouge_l;
        form->f1 += sample->f1;
        form->same += sample->same;
        form->staged += sample->staged;
        form->hits[0]++;
        form->hits[sample->tier]++;
        hits++;
    }
    if (hits == 0) {
        form->rouge_l = form->f1 = form->top1 = form->loss = form->loss_low = form->loss_high =
            (double)NAN;
        return;
    }
    form->rouge_l /= (double)hits;
    form->f1 /= (double)hits;
    form->top1 /= (double)hits;
    form->loss = total / (double)hits;
    for (uint32_t c = 0; c < context_count; c++)
        sums[c] = (double)NAN;
    for (uint64_t i = 0; i < samples->count; i++) {
        const loop_sample *sample = &samples->samples[i];
        if (!sample->hit || memcmp(&sample->variant, &variant, sizeof variant) != 0) continue;
        double *sum = &sums[sample->context];
        if (isnan(*sum)) form->contexts++;
        *sum = (isnan(*sum) ? 0.0 : *sum) + sample->loss - form->loss;
    }
    for (uint32_t c = 0; c < context_count; c++)
        if (!isnan(sums[c])) variance += sums[c] * sums[c];
    form->loss_low = form->loss_high = (double)NAN;
    if (form->contexts < 2) return;
    const double contexts = (double)form->contexts;
    const double error = sqrt(variance * contexts / (contexts - 1.0)) / (double)hits;
    form->loss_low = fmax(0.0, form->loss - SAMPLE_INTERVAL * error);
    form->loss_high = fmin(1.0, form->loss + SAMPLE_INTERVAL * error);
}

static void samples_add_form(const loop_samples *samples, kvt_variant variant,
                             const loop_ladder *ladder, double *work, loop_result *result)
{
    loop_form *form = &result->forms[result->form_count];
    const uint32_t rung = loop_ladder_find(ladder, variant);
    uint32_t most = 0;
    *form = (loop_form){
        .loss_predicted = (double)NAN, .loss_upper = (double)NAN, .stored_share = (double)NAN};
    (void)kvt_variant_format(variant, form->name, sizeof form->name);
    for (uint64_t i = 0; i < samples->count; i++)
        if (samples->samples[i].context >= most) most = samples->samples[i].context + 1;
    double *sums = malloc((most + 1) * sizeof *sums);
    if (sums == NULL) return;
    form_loss(samples, variant, most, sums, form);
    free(sums);
    if (rung < ladder->all) {
        form->loss_predicted = ladder->curves[rung].loss;
        form->loss_upper = ladder->curves[rung].loss_upper;
        form->stored_share = ladder->curves[rung].stored_share;
    }
    for (uint32_t i = 0; i < samples->stored_count; i++) {
        if (memcmp(&samples->stored_variant[i], &variant, sizeof variant) != 0) continue;
        memcpy(form->stored, samples->stored[i], sizeof form->stored);
        for (int tier = 1; tier < KVT_TIER_COUNT; tier++)
            form->stored[0] += form->stored[tier];
    }
    size_t count = samples_take(samples, &variant, value_recall, work);
    form->recall = samples_mean(work, count);
    count = samples_take(samples, &variant, value_get, work);
    form->load_p50 = samples_at(work, count, 0.5);
    count = samples_take(samples, &variant, value_predicted, work);
    form->load_predicted_p50 = samples_at(work, count, 0.5);
    count = samples_take(samples, &variant, value_decode, work);
    form->decode_p50 = samples_at(work, count, 0.5);
    if (form->hits[0] > 0 || form->stored[0] > 0) result->form_count++;
}

static bool samples_have(const loop_samples *samples, kvt_variant variant)
{
    for (uint64_t i = 0; i < samples->count; i++)
        if (samples->samples[i].hit &&
            memcmp(&samples->samples[i].variant, &variant, sizeof variant) == 0)
            return true;
    for (uint32_t i = 0; i < samples->stored_count; i++)
        if (memcmp(&samples->stored_variant[i], &variant, sizeof variant) == 0) return true;
    return false;
}

/* In the order of the ladder. */
static void samples_add_forms(const loop_samples *samples, const loop_ladder *ladder, double *work,
                              loop_result *result)
{
    for (uint32_t i = 0; i < ladder->all && result->form_count < LOOP_FORMS_MAX; i++)
        if (samples_have(samples, ladder->curves[i].variant))
            samples_add_form(samples, ladder->curves[i].variant, ladder, work, result);
}

/* ---- all ---- */

static void samples_means(const loop_samples *samples, const loop_ladder *ladder,
                          loop_result *result)
{
    double busy = 0.0, predicted = 0.0;
    for (uint64_t i = 0; i < samples->count; i++) {
        const loop_sample *s = &samples->samples[i];
        const double share = 1.0 / (double)samples->count;
        result->hits += s->hit;
        result->loads_declined += s->declined;
        if (s->hit) result->hits_by_tier[s->tier]++;
        result->ttft_mean += share * value_ttft(s);
        result->wait_mean += share * s->wait_s;
        result->load_mean += share * s->load_s;
        result->prefill_mean += share * s->prefill_s;
        result->question_mean += share * s->question_s;
        result->put_mean += share * s->put_s;
        result->rouge_l += share * s->rouge_l;
        result->f1 += share * s->f1;
        result->top1 += share * s->top1;
        result->loss += share * s->loss;
        result->same_answers += s->same;
        busy += s->load_s + s->prefill_s + s->question_s + s->put_s;
        const uint32_t rung = s->hit ? loop_ladder_find(ladder, s->variant) : ladder->all;
        if (rung < ladder->all) predicted += ladder->curves[rung].loss;
    }
    result->hits_by_tier[0] = result->hits;
    result->loss_predicted = result->hits > 0 ? predicted / (double)result->hits : 0.0;
    result->span_s = 1e-9 * (double)(samples->last_arrival_ns - samples->first_arrival_ns);
    result->rho = result->span_s > 0.0 ? busy / result->span_s : (double)NAN;
}

void loop_samples_finish(loop_samples *samples, const loop_ladder *ladder, loop_result *result)
{
    double *work = malloc((samples->count + 1) * sizeof *work);
    result->requests = samples->count;
    if (work == NULL) return;
    samples_means(samples, ladder, result);
    size_t count = samples_take(samples, NULL, value_ttft, work);
    result->ttft_p50 = samples_at(work, count, 0.5);
    result->ttft_p90 = samples_at(work, count, 0.9);
    result->ttft_p99 = samples_at(work, count, 0.99);
    count = samples_take(samples, NULL, value_rouge_l, work);
    result->rouge_l_p10 = samples_at(work, count, 0.1);
    count = samples_take(samples, NULL, value_recall, work);
    result->recall = samples_mean(work, count);
    count = samples_take(samples, NULL, value_error, work);
    result->load_predictions = count;
    result->load_error_p50 = samples_at(work, count, 0.5);
    result->load_error_p90 = samples_at(work, count, 0.9);
    samples_add_forms(samples, ladder, work, result);
    free(work);
}
