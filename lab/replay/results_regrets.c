/* SPDX-License-Identifier: Apache-2.0 */
/*
 * results_regrets.c - how far the policies were from the best: one table for a person. One thread.
 */
#include "replay.h"
#include "results.h"
#include "results_text.h"

#include <math.h>

#define REGRET_COLUMNS 7u

static const char *const regret_heads[REGRET_COLUMNS] = {
    "saved", "bound", "bound, moved", "solver", "counters", "foresight", "online"};

double results_regret_online(const replay_result *result)
{
    return result->bound.known ? result->bound.interval_s - result->saved_s : NAN;
}

/* Prints "-" for a figure that is not known. */
static void regret_row(const replay_result *result, double row[REGRET_COLUMNS])
{
    row[0] = result->saved_s;
    row[1] = result->bound.interval_s;
    row[2] = result->bound.moving_s;
    row[3] = result->regret_solver_s;
    row[4] = result->regret_counters_s;
    row[5] = result->regret_foresight_s;
    row[6] = results_regret_online(result);
    for (size_t j = 0; j < REGRET_COLUMNS; j++)
        if (fabs(row[j]) < 1e-9) row[j] = 0.0; /* rounding */
}

static size_t regret_count(const replay_report *report)
{
    size_t count = 0;
    for (size_t i = 0; i < report->result_count; i++)
        count += report->results[i].bound.known;
    return count;
}

/* The figures that all runs of a workload share. */
static void regret_lead(const replay_bound *bound, char *text, size_t size)
{
    char all[RESULTS_TEXT_BYTES], ideal[RESULTS_TEXT_BYTES], spent[RESULTS_TEXT_BYTES];
    snprintf(text, size,
             "computing everything takes %s a request; a store without limits saves %s of it; "
             "Belady's hits with the fixed policies' form: %.1f %% of the blocks; bound of %llu "
             "intervals found in %s",
             results_format_seconds(bound->recompute_s, all),
             results_format_seconds(bound->ideal_s, ideal), bound->belady_block_ratio * 100.0,
             (unsigned long long)bound->intervals, results_format_seconds(bound->seconds, spent));
}

static const char regret_note[] =
    "seconds a request; saved: prefill not computed, less loads, less alpha * loss. bound: what no "
    "policy can pass; moved: not even one that improves forms ahead of their use. Regrets, "
    "by what they bound: solver, the dual against the best placement found, at the engine's rates "
    "and over all that it knows (policies that count uses); counters, that dual against the "
    "engine's state; foresight, the placement against the best for the uses that came; online, "
    "bound less saved";

void results_regrets_text(const replay_report *report, FILE *file)
{
    char text[RESULTS_TEXT_BYTES], lead[512];
    if (regret_count(report) == 0) return;
    fprintf(file, "\n%-12s %5s", "policy", "seed");
    for (size_t j = 0; j < REGRET_COLUMNS; j++)
        fprintf(file, " %12s", regret_heads[j]);
    fprintf(file, "\n");
    for (size_t i = 0; i < report->result_count; i++) {
        const replay_result *result = &report->results[i];
        double row[REGRET_COLUMNS];
        if (!result->bound.known) continue;
        regret_row(result, row);
        fprintf(file, "%-12s %5llu", result->policy, (unsigned long long)result->seed);
        for (size_t j = 0; j < REGRET_COLUMNS; j++)
            fprintf(file, " %12s", results_format_seconds(row[j], text));
        fprintf(file, "\n");
    }
    regret_lead(&report->results[0].bound, lead, sizeof lead);
    fprintf(file, "%s\n%s\n", lead, regret_note);
}
