/* SPDX-License-Identifier: Apache-2.0 */
/*
 * size_advice.c - what the runs of kvterrace size come to: the cheapest cell, what it saves with an
 * interval, and three sentences of it. One thread.
 */
#include "size.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

static const char *const advice_rooms[SIZE_AXES] = {"DRAM", "SSD"};

static const size_run *advice_cheapest(const size_study *study, size_policy policy)
{
    const size_run *best = NULL;
    for (size_t i = 0; i < study->run_count; i++) {
        const size_run *run = &study->runs[i];
        if (run->done && run->draw == 0 && run->policy == policy &&
            (best == NULL || run->cost < best->cost))
            best = run;
    }
    return best;
}

const size_run *tools_size_choose(const size_study *study)
{
    const size_run *ours = advice_cheapest(study, SIZE_OURS);
    const size_run *lru = advice_cheapest(study, SIZE_LRU);
    return ours != NULL && lru != NULL && lru->cost < ours->cost * (1.0 - SIZE_TIE) ? lru : ours;
}

/* A finished run in the cell of another one; NULL: there is none. */
static const size_run *advice_find(const size_study *study, const size_run *cell,
                                   size_policy policy, uint32_t draw)
{
    for (size_t i = 0; i < study->run_count; i++) {
        const size_run *run = &study->runs[i];
        if (run->done && run->policy == policy && run->draw == draw &&
            (policy == SIZE_NONE || memcmp(run->bytes, cell->bytes, sizeof run->bytes) == 0))
            return run;
    }
    return NULL;
}

/* Quantiles of Student's distribution for an interval of 95 %; beyond the table the next one. */
static double advice_quantile(uint32_t degrees)
{
    static const double table[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306};
    const uint32_t count = sizeof table / sizeof table[0];
    return degrees <= count ? table[degrees - 1] : 2.262;
}

/* What the cell saves over another policy, with the spread of the draws as its error: another
 * stretch of the traffic would differ as they do. A draw without a mean has no say in seconds. */
static void advice_compare(const size_study *study, size_advice *advice, size_policy over)
{
    double sums[SIZE_SAVINGS] = {0}, squares[SIZE_SAVINGS] = {0};
    size_interval *saved = advice->saved[over];
    uint32_t counts[SIZE_SAVINGS] = {0};
    for (size_t s = 0; s < SIZE_SAVINGS; s++)
        saved[s] = (size_interval){.value = NAN, .low = NAN, .high = NAN};
    for (uint32_t draw = 0; draw <= study->draws; draw++) {
        const size_run *ours = advice_find(study, advice->run, advice->run->policy, draw);
        const size_run *other = advice_find(study, advice->run, over, draw);
        if (ours == NULL || other == NULL) continue;
        const double savings[SIZE_SAVINGS] = {other->mean_s - ours->mean_s,
                                              other->gpu_hours - ours->gpu_hours};
        for (size_t s = 0; s < SIZE_SAVINGS; s++) {
            if (draw == 0) saved[s].value = savings[s];
            if (draw == 0 || (s == SIZE_SECONDS && !(ours->steady && other->steady))) continue;
            sums[s] += savings[s];
            squares[s] += savings[s] * savings[s];
            counts[s]++;
        }
    }
    for (size_t s = 0; s < SIZE_SAVINGS; s++) {
        if (counts[s] < 2) continue;
        const double variance = (squares[s] - sums[s] * sums[s] / counts[s]) / (counts[s] - 1);
        const double reach = advice_quantile(counts[s] - 1) * sqrt(fmax(0.0, variance));
        saved[s].low = saved[s].value - reach;
        saved[s].high = saved[s].value + reach;
    }
}

__attribute__((format(printf, 2, 3))) static void advice_say(char text[SIZE_SENTENCE_BYTES],
                                                             const char *format, ...)
{
    const size_t used = strlen(text);
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text + used, SIZE_SENTENCE_BYTES - used, format, arguments);
    va_end(arguments);
}

/* "64 GiB of DRAM and 2 TB of SSD". */
static void advice_say_cell(char *text, const size_run *run)
{
    char size[SIZE_TEXT_BYTES];
    const char *between = "";
    for (size_axis_name axis = 0; axis < SIZE_AXES; axis++) {
        if (run->bytes[axis] == 0) continue;
        advice_say(text, "%s%s of %s", between, tools_size_format_bytes(size, run->bytes[axis]),
                   advice_rooms[axis]);
        between = " and ";
    }
}

/* "0.412 [0.397, 0.427]". */
static void advice_say_interval(char *text, const size_interval *interval, int digits)
{
    advice_say(text, "%.*f", digits, interval->value);
    if (isfinite(interval->low))
        advice_say(text, " [%.*f, %.*f]", digits, interval->low, digits, interval->high);
}

/* What to buy or set, and what a month of it costs. */
static void advice_say_what(const size_study *study, size_advice *advice)
{
    char *const text = advice->sentences[0];
    const size_run *run = advice->run;
    if (!advice->pays) {
        advice_say(text,
                   "Buy nothing: no cache at all is cheapest at these prices, $%.0f a month; "
                   "of %u cells with a cache ",
                   advice->none->cost, (unsigned)advice->cells);
        advice_say_cell(text, run);
        advice_say(text, " comes closest with $%.0f.", run->cost);
        return;
    }
    const bool owned = run->bytes[SIZE_DRAM] <= study->owned[SIZE_DRAM] &&
                       run->bytes[SIZE_SSD] <= study->owned[SIZE_SSD];
    advice_say(text, "%s ", owned ? "Set" : "Buy");
    advice_say_cell(text, run);
    advice_say(text,
               ", with store.policy = %s: the cheapest of %u cells at $%.0f a month (DRAM "
               "$%.0f, SSD $%.0f, GPU hours $%.0f), against $%.0f without a cache.",
               tools_size_policy_names[run->policy], (unsigned)advice->cells, run->cost,
               run->room[SIZE_DRAM], run->room[SIZE_SSD], run->gpu, advice->none->cost);
}

static void advice_say_saving(const size_study *study, size_advice *advice)
{
    char *const text = advice->sentences[1];
    const size_run *run = advice->run, *none = advice->none;
    const size_interval *over_none = advice->saved[SIZE_NONE], *over_lru = advice->saved[SIZE_LRU];
    advice_say(text, "%s ", advice->pays ? "It saves" : "That one would save");
    advice_say_interval(text, &over_none[SIZE_SECONDS], 3);
    advice_say(text,
               " s of %.3f s to the first token (99th percentile %.2f s instead of %.2f s) "
               "and ",
               none->mean_s, run->p99_s, none->p99_s);
    advice_say_interval(text, &over_none[SIZE_HOURS], 1);
    advice_say(text, " of %.1f GPU hours a day", none->gpu_hours);
    if (run->policy == SIZE_OURS && isfinite(over_lru[SIZE_HOURS].value)) {
        advice_say(text, "; over LRU in the same room ");
        advice_say_interval(text, &over_lru[SIZE_SECONDS], 3);
        advice_say(text, " s and ");
        advice_say_interval(text, &over_lru[SIZE_HOURS], 1);
        advice_say(text, " hours");
    }
    advice_say(text, ".");
    if (!run->steady || !none->steady)
        advice_say(text,
                   " %s %u servers fall behind at times: these means are of this stretch "
                   "alone.",
                   run->steady ? "Without a cache" : "Even so", (unsigned)study->options.servers);
}

/* The advised cell with the next larger size of an axis; NULL: there is none. */
static const size_run *advice_next(const size_study *study, const size_run *run,
                                   size_axis_name axis)
{
    for (uint32_t i = 0; i < study->axes[axis].count; i++) {
        size_run larger = *run;
        larger.bytes[axis] = study->axes[axis].bytes[i];
        if (larger.bytes[axis] > run->bytes[axis])
            return advice_find(study, &larger, run->policy, 0);
    }
    return NULL;
}

static void advice_say_where_not(const size_study *study, size_advice *advice)
{
    char *const text = advice->sentences[2], size[SIZE_TEXT_BYTES];
    advice_say(text, "Where it does not pay: ");
    for (size_axis_name axis = 0; axis < SIZE_AXES; axis++) {
        const size_run *more = advice_next(study, advice->run, axis);
        if (more == NULL) {
            advice_say(text, "more %s was not tried (--%s); ", advice_rooms[axis],
                       kvt_tier_name(tools_size_tiers[axis]));
            continue;
        }
        const double saved = advice->run->gpu - more->gpu;
        advice_say(text, "%s of %s would cost $%.0f more a month and %s $%.0f of GPU hours; ",
                   tools_size_format_bytes(size, more->bytes[axis]), advice_rooms[axis],
                   more->room[axis] - advice->run->room[axis], saved >= 0 ? "save" : "cost",
                   fabs(saved));
    }
    advice_say(text, "%u of the %u cells cost more than no cache at all.", (unsigned)advice->dearer,
               (unsigned)advice->cells);
}

void tools_size_advise(const size_study *study, size_advice *advice)
{
    *advice = (size_advice){.none = advice_cheapest(study, SIZE_NONE)};
    if (advice->none != NULL) advice->run = tools_size_choose(study);
    if (advice->run == NULL) return;
    for (size_t i = 0; i < study->run_count; i++) {
        const size_run *run = &study->runs[i];
        if (!run->done || run->draw > 0 || run->policy != SIZE_OURS) continue;
        advice->cells++;
        advice->dearer += run->cost > advice->none->cost;
    }
    advice->pays = advice->run->cost < advice->none->cost;
    advice_compare(study, advice, SIZE_NONE);
    advice_compare(study, advice, SIZE_LRU);
    advice_say_what(study, advice);
    advice_say_saving(study, advice);
    advice_say_where_not(study, advice);
}
