/* SPDX-License-Identifier: Apache-2.0 */
/*
 * break_even.c - where one choice stops being faster than another: forms against raw by the
 * bandwidth of the device, loading against recomputing by the length of the context. The terms are
 * those of kvt_offer_build (docs/PROFILE.md has the formulas); the rounding of stored bytes to
 * KVT_RECORD_ALIGN is left out. Pure; any thread.
 */
#include "break_even.h"

#include <assert.h>
#include <math.h>

double kvt_load_seconds(const kvt_affine *read, const kvt_codec_curve *form, double source_bytes)
{
    assert(read != NULL && form != NULL);
    double seconds = read->request_seconds + form->stored_share * source_bytes / read->bytes_per_s;
    if (form->decode_bytes_per_s > 0.0) seconds += source_bytes / form->decode_bytes_per_s;
    return seconds;
}

/* Seconds per source byte; no speed means that decoding is free. */
static double break_even_decode(const kvt_codec_curve *form)
{
    return form->decode_bytes_per_s > 0.0 ? 1.0 / form->decode_bytes_per_s : 0.0;
}

double kvt_break_even_bandwidth(const kvt_codec_curve *raw, const kvt_codec_curve *form)
{
    assert(raw != NULL && form != NULL);
    const double saved = raw->stored_share - form->stored_share;
    const double decode = break_even_decode(form) - break_even_decode(raw);
    if (saved <= 0.0) return 0.0; /* at low bandwidths it is no better, whatever it does above */
    return decode > 0.0 ? saved / decode : INFINITY;
}

/* Prefill less load: positive where loading wins. */
typedef struct break_even_race {
    const kvt_prefill *prefill;
    double load_fixed;
    double load_per_token;
} break_even_race;

/* Seconds that loading n tokens saves, by a measured table's row. */
static double break_even_at_row(const break_even_race *race, uint32_t row)
{
    const double tokens = (double)row * (double)race->prefill->table_step;
    return race->prefill->fixed_seconds + race->prefill->table_seconds[row] - race->load_fixed -
           race->load_per_token * tokens;
}

/* The larger root of a convex parabola: from there on loading wins for good. */
static double break_even_parabola(const break_even_race *race)
{
    const double square = race->prefill->square_seconds_per_token2;
    const double linear = race->prefill->linear_seconds_per_token - race->load_per_token;
    const double fixed = race->prefill->fixed_seconds - race->load_fixed;
    if (square <= 0.0) {
        if (linear <= 0.0) return linear == 0.0 && fixed >= 0.0 ? 0.0 : INFINITY;
        return fmax(0.0, -fixed / linear);
    }
    const double root = linear * linear - 4.0 * square * fixed;
    if (root < 0.0) return 0.0; /* loading wins at every length */
    /* The form without cancellation: fixed is negative as a rule, so the roots differ in sign. */
    const double sum = -linear + sqrt(root);
    if (linear <= 0.0) return fmax(0.0, sum / (2.0 * square));
    return fmax(0.0, -2.0 * fixed / (linear + sqrt(root)));
}

/* The last row at which recomputing wins; from it to the next the race is a line, and after the
 * last row the last slope goes on, as in kvt_prefill_seconds. */
static double break_even_table(const break_even_race *race)
{
    const kvt_prefill *prefill = race->prefill;
    const uint32_t last = prefill->table_count - 1u;
    const double step = (double)prefill->table_step;
    assert(prefill->table_count >= 2 && prefill->table_step > 0);
    uint32_t row = last;
    while (row > 0 && break_even_at_row(race, row) >= 0.0)
        row--;
    double here = break_even_at_row(race, row);
    if (row == last) {
        double slope = (here - break_even_at_row(race, last - 1u)) / step;
        return slope > 0.0 ? (double)last * step - here / slope : INFINITY;
    }
    if (here >= 0.0) return 0.0;
    double next = break_even_at_row(race, row + 1u);
    return ((double)row + here / (here - next)) * step;
}

double kvt_break_even_tokens(const kvt_affine *read, const kvt_codec_curve *form,
                             double bytes_per_token, const kvt_prefill *prefill)
{
    assert(read != NULL && form != NULL && prefill != NULL);
    const break_even_race race = {
        .prefill = prefill,
        .load_fixed = read->request_seconds,
        .load_per_token =
            bytes_per_token * (form->stored_share / read->bytes_per_s + break_even_decode(form)),
    };
    return prefill->table_seconds != NULL ? break_even_table(&race) : break_even_parabola(&race);
}
