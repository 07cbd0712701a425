/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pass_table.c - what computing one layer takes, from a table of measured rows with any holes, and
 * the prefill model between them (Tutti 3.3 looks the table up; the model gives it its shape).
 *
 * Thread rule: re-entrant.
 */
#include "predict.h"

#include <assert.h>
#include <math.h>

#define PASS_SECONDS_LEAST 1e-9

/* The prefill model's seconds of one of so many layers. */
static double pass_model_seconds(const kvt_prefill *prefill, uint32_t layers, uint32_t new_tokens,
                                 uint32_t prefix_tokens)
{
    const uint64_t end = (uint64_t)prefix_tokens + new_tokens;
    const uint32_t last = end < UINT32_MAX ? (uint32_t)end : UINT32_MAX;
    const double all = kvt_prefill_seconds(prefill, prefix_tokens, last) + prefill->fixed_seconds;
    const double one = all / layers;
    return one > PASS_SECONDS_LEAST && isfinite(one) ? one : PASS_SECONDS_LEAST;
}

/* How far a row is from a pass, as the square of a distance of logarithms. */
static double pass_distance(const kvt_pass_row *row, const kvt_pass *pass)
{
    const double input = log((double)row->new_tokens / pass->new_tokens);
    const double prefix = log((row->prefix_tokens + 1.0) / (pass->prefix_tokens + 1.0));
    return input * input + prefix * prefix;
}

double kvt_pass_seconds(const kvt_pass_row *rows, size_t count, const kvt_prefill *prefill,
                        const kvt_pass *pass)
{
    double weights = 0, sum = 0;
    assert(pass->layers > 0 && pass->new_tokens > 0);
    for (size_t i = 0; i < count; i++) {
        const kvt_pass_row *row = &rows[i];
        const double distance = pass_distance(row, pass);
        if (distance == 0) return row->layer_seconds;
        const double model =
            pass_model_seconds(prefill, pass->layers, row->new_tokens, row->prefix_tokens);
        const double weight = 1 / (distance * distance);
        weights += weight;
        sum += weight * log(row->layer_seconds / model);
    }
    const double scale = weights > 0 && isfinite(weights) ? exp(sum / weights) : 1;
    const double seconds =
        scale * pass_model_seconds(prefill, pass->layers, pass->new_tokens, pass->prefix_tokens);
    return isfinite(seconds) && seconds > PASS_SECONDS_LEAST ? seconds : PASS_SECONDS_LEAST;
}
