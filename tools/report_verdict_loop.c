/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report_verdict_loop.c - verdict on the whole loop on a real model: the engine beside the fastest
 * contender whose answers are as good, and predictions beside what was measured. One thread.
 */
#include "profile_document.h"
#include "report.h"

#include <math.h>
#include <string.h>

#define LOOP_QUALITY_STEP 1e-3 /* a smaller difference of mean ROUGE-L is none */
#define LOOP_TIME_STEP    0.02 /* nor is a smaller one of times */
#define LOOP_ERROR_ASKED  0.1  /* of predicted seconds, median */

/* Mean of a number over a contender's seeds; NAN without one. */
static double loop_mean(const json_t *results, const char *contender, const char *key)
{
    const json_t *row;
    size_t i, count = 0;
    double sum = 0.0;
    json_array_foreach(results, i, row)
    {
        const double value = view_number(row, key, NAN);
        if (strcmp(view_text(row, "contender"), contender) != 0 || !isfinite(value)) continue;
        sum += value;
        count++;
    }
    return count > 0 ? sum / (double)count : NAN;
}

/* The contender with the least mean time among those whose answers are as good as ours. */
static const char *loop_strongest(const json_t *results, const char *ours, double quality)
{
    const char *best = NULL;
    const json_t *row;
    size_t i;
    json_array_foreach(results, i, row)
    {
        const char *name = view_text(row, "contender");
        if (strcmp(name, ours) == 0 || strcmp(name, "none") == 0) continue;
        if (!(loop_mean(results, name, "rouge_l") >= quality - LOOP_QUALITY_STEP)) continue;
        if (best == NULL ||
            loop_mean(results, name, "ttft_s_mean") < loop_mean(results, best, "ttft_s_mean"))
            best = name;
    }
    return best;
}

static void loop_say_times(const json_t *results, json_t *verdict)
{
    char ours_text[VERDICT_NUMBER_BYTES], other_text[VERDICT_NUMBER_BYTES];
    const double ours = loop_mean(results, "utility", "ttft_s_mean");
    const double quality = loop_mean(results, "utility", "rouge_l");
    if (!isfinite(ours) || !isfinite(quality)) return;
    const char *other = loop_strongest(results, "utility", quality);
    if (other == NULL) {
        verdict_say(verdict, "note",
                    "No other contender answers as well as utility (ROUGE-L %.4f).", quality);
        return;
    }
    const double others = loop_mean(results, other, "ttft_s_mean"), ratio = ours / others;
    const char *state = ratio < 1.0 - LOOP_TIME_STEP   ? "ahead"
                        : ratio > 1.0 + LOOP_TIME_STEP ? "behind"
                                                       : "level";
    verdict_say(verdict, state,
                "Mean time to first token: utility %s, %s %s (%.3f times), with ROUGE-L %.4f and "
                "%.4f; of the contenders that answer as well, this is the fastest.",
                verdict_seconds(ours_text, ours), other, verdict_seconds(other_text, others), ratio,
                quality, loop_mean(results, other, "rouge_l"));
}

static void loop_say_losses(const json_t *results, json_t *verdict)
{
    unsigned within = 0, judged = 0;
    const json_t *row, *form;
    size_t i, j;
    json_array_foreach(results, i, row)
    {
        json_array_foreach(json_object_get(row, "forms"), j, form)
        {
            const json_t *inside = json_object_get(form, "loss_within");
            if (!json_is_boolean(inside)) continue;
            judged++;
            within += json_is_true(inside);
        }
    }
    if (judged > 0)
        verdict_say(verdict, within == judged ? "met" : "missed",
                    "Predicted losses lie within the measured intervals for %u of %u forms.",
                    within, judged);
}

static void loop_say_seconds(const json_t *results, json_t *verdict)
{
    const json_t *row;
    size_t i;
    double worst = 0.0;
    const char *name = NULL;
    json_array_foreach(results, i, row)
    {
        const double error = view_number(row, "load_error_p50", NAN);
        if (!isfinite(error) || error < worst) continue;
        worst = error;
        name = view_text(row, "contender");
    }
    if (name != NULL)
        verdict_say(verdict, worst <= LOOP_ERROR_ASKED ? "met" : "missed",
                    "Predicted seconds of loads are off by at most %.1f %% in the median (%s).",
                    100.0 * worst, name);
}

void verdict_loop(const json_t *document, json_t *verdict)
{
    const json_t *results = json_object_get(document, "results"), *row;
    double checked = 0.0, wrong = 0.0;
    size_t i;
    if (!json_is_array(results)) return;
    json_array_foreach(results, i, row)
    {
        checked += view_number(row, "exact_checked", 0.0);
        wrong += view_number(row, "exact_wrong", 0.0) + view_number(row, "tokens_wrong", 0.0) +
                 view_number(row, "positions_wrong", 0.0);
    }
    loop_say_times(results, verdict);
    loop_say_losses(results, verdict);
    loop_say_seconds(results, verdict);
    verdict_say(verdict, wrong > 0 ? "missed" : "met",
                "Every byte of %.0f gets of exact forms was compared; %.0f differ.", checked,
                wrong);
    verdict_next(verdict, "Run it with other seeds (--seeds 3) before a difference is believed.");
}
