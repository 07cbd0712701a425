/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_grid_figures.c - from replays to ratios: means over the seeds, the best rival, paired
 * ratios with their interval, totals over the cells, and why a cell is lost. No state.
 */
#include "bench_grid.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* 97.5 % points of Student's t. Beyond the table the last one is a little too wide. */
static double figures_t(uint32_t degrees)
{
    static const double points[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306,
                                    2.262,  2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
                                    2.110,  2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064,
                                    2.060,  2.056, 2.052, 2.048, 2.045, 2.042};
    const uint32_t known = sizeof points / sizeof points[0];
    return points[(degrees < known ? degrees : known) - 1];
}

grid_interval grid_interval_of(const double *values, uint32_t count)
{
    double sum = 0.0, squares = 0.0;
    for (uint32_t i = 0; i < count; i++)
        sum += values[i];
    double mean = sum / (double)count;
    if (count < 2) return (grid_interval){mean, NAN, NAN};
    for (uint32_t i = 0; i < count; i++)
        squares += (values[i] - mean) * (values[i] - mean);
    double error = sqrt(squares / (double)(count - 1) / (double)count) * figures_t(count - 1);
    return (grid_interval){mean, mean - error, mean + error};
}

static double figures_mean(const double *values, uint32_t count)
{
    return grid_interval_of(values, count).mean;
}

/* A sample's numbers stand one after the other, from the first to the last. */
enum { SAMPLE_NUMBERS = (sizeof(grid_sample) - offsetof(grid_sample, ttft_s)) / sizeof(double) };

static grid_sample sample_mean(const grid_run *run, uint32_t seeds)
{
    grid_sample mean = {.stable = true};
    double *sums = &mean.ttft_s;
    for (uint32_t seed = 0; seed < seeds; seed++) {
        const double *numbers = &run->samples[seed].ttft_s;
        mean.stable = mean.stable && run->samples[seed].stable;
        for (int i = 0; i < SAMPLE_NUMBERS; i++)
            sums[i] += numbers[i];
    }
    for (int i = 0; i < SAMPLE_NUMBERS; i++)
        sums[i] /= (double)seeds;
    return mean;
}

/* Whether a mean is the better one: one that exists, then the smaller. */
static bool sample_beats(const grid_sample *one, const grid_sample *other)
{
    if (one->stable != other->stable) return one->stable;
    return one->ttft_s < other->ttft_s;
}

/* A policy with one variant gets the better of its variants. */
static void evaluate_rows(grid_result *result, uint32_t seeds)
{
    result->row_count = 0;
    for (uint32_t i = 0; i < result->run_count; i++) {
        const grid_run *run = &result->runs[i];
        grid_sample mean = sample_mean(run, seeds);
        uint32_t row = 0;
        while (row < result->row_count && strcmp(result->rows[row].run->policy, run->policy) != 0)
            row++;
        if (row == result->row_count) {
            result->row_count++;
        } else if (!sample_beats(&mean, &result->rows[row].mean)) {
            continue;
        }
        result->rows[row] = (grid_row){.run = run, .mean = mean};
    }
}

static grid_interval evaluate_ratio(const grid_row *row, const grid_row *best, uint32_t seeds)
{
    double ratios[GRID_SEEDS_MAX];
    if (!row->mean.stable || !best->mean.stable) return (grid_interval){NAN, NAN, NAN};
    for (uint32_t seed = 0; seed < seeds; seed++)
        ratios[seed] = row->run->samples[seed].ttft_s / best->run->samples[seed].ttft_s;
    return grid_interval_of(ratios, seeds);
}

void grid_judge(grid_result *result, uint32_t seeds)
{
    evaluate_rows(result, seeds);
    result->best = result->ours = UINT32_MAX;
    for (uint32_t row = 0; row < result->row_count; row++) {
        if (strcmp(result->rows[row].run->policy, GRID_OURS) == 0) {
            result->ours = row;
        } else if (result->best == UINT32_MAX ||
                   sample_beats(&result->rows[row].mean, &result->rows[result->best].mean)) {
            result->best = row;
        }
    }
    for (uint32_t row = 0; row < result->row_count; row++)
        result->rows[row].ratio =
            evaluate_ratio(&result->rows[row], &result->rows[result->best], seeds);
    result->bound_mean_s = figures_mean(result->bound_s, seeds);
    result->kept_bound_mean_s = figures_mean(result->kept_bound_s, seeds);
    result->judged = true;
}

/* ---- totals ---- */

/* How bad a cell is for us; one in which we alone have no mean is the worst. */
static double sum_badness(const grid_result *result)
{
    const grid_row *ours = &result->rows[result->ours];
    if (!isnan(ours->ratio.mean)) return ours->ratio.mean;
    return result->rows[result->best].mean.stable ? INFINITY : 0.0;
}

static void sum_worst(const grid_result *result, grid_totals *totals)
{
    uint32_t at = totals->worst_count;
    while (at > 0 && sum_badness(totals->worst[at - 1]) < sum_badness(result))
        at--;
    if (at == GRID_WORST) return;
    uint32_t last = totals->worst_count < GRID_WORST ? totals->worst_count++ : GRID_WORST - 1;
    memmove(&totals->worst[at + 1], &totals->worst[at], (last - at) * sizeof totals->worst[0]);
    totals->worst[at] = result;
}

void grid_sum(const grid_result *results, size_t count, grid_totals *totals)
{
    double logarithms = 0.0;
    *totals = (grid_totals){.cells = (uint32_t)count};
    for (size_t i = 0; i < count; i++) {
        const grid_result *result = &results[i];
        totals->skipped += result->skipped;
        totals->unfinished += !result->skipped && !result->judged;
        if (!result->judged) continue;
        const grid_row *ours = &result->rows[result->ours];
        const grid_row *best = &result->rows[result->best];
        double badness = sum_badness(result);
        totals->lost += ours->ratio.low > GRID_LIMIT || isinf(badness) != 0;
        sum_worst(result, totals);
        if (isnan(ours->ratio.mean) || !(best->mean.ttft_s > GRID_ROOM * result->bound_mean_s))
            continue;
        totals->roomy++;
        logarithms += log(ours->ratio.mean);
    }
    totals->geometric_mean = totals->roomy > 0 ? exp(logarithms / totals->roomy) : NAN;
}

/* ---- reasons ---- */

static const char *explain_cause(const grid_sample *ours, const grid_sample *best)
{
    double wait = ours->wait_s - best->wait_s, service = ours->service_s - best->service_s;
    if (!ours->stable) return "the servers are asked for more than they have";
    if (ours->ttft_s <= best->ttft_s) return "no loss";
    if (wait > service && service <= 0.0) return "its requests wait longer";
    if (ours->loaded < best->loaded - 0.01) return "it loads fewer tokens";
    if (ours->found[KVT_TIER_DRAM] < best->found[KVT_TIER_DRAM] - 0.01)
        return "it finds fewer tokens in DRAM";
    return "its loads take longer";
}

void grid_explain(const grid_result *result, char *text, size_t size)
{
    const grid_sample *ours = &result->rows[result->ours].mean;
    const grid_sample *best = &result->rows[result->best].mean;
    double requests = (double)result->requests[0];
    (void)snprintf(
        text, size,
        "%s: loaded %.1f %% of the tokens against %.1f %%, found in DRAM %.1f %% against %.1f %%, "
        "in SSD %.1f %% against %.1f %%; waits %.3f s against %.3f s; a request writes %.3f GB to "
        "DRAM and %.3f GB to SSD against %.3f and %.3f, refuses %.2f puts against %.2f, evicts "
        "%.2f against %.2f; what it holds is %.3f s a request from the best at its own rates and "
        "%.3f s from the best for the uses that came",
        explain_cause(ours, best), ours->loaded * 100.0, best->loaded * 100.0,
        ours->found[KVT_TIER_DRAM] * 100.0, best->found[KVT_TIER_DRAM] * 100.0,
        ours->found[KVT_TIER_SSD] * 100.0, best->found[KVT_TIER_SSD] * 100.0, ours->wait_s,
        best->wait_s, ours->written_bytes[KVT_TIER_DRAM] / requests * 1e-9,
        ours->written_bytes[KVT_TIER_SSD] / requests * 1e-9,
        best->written_bytes[KVT_TIER_DRAM] / requests * 1e-9,
        best->written_bytes[KVT_TIER_SSD] / requests * 1e-9, ours->refused, best->refused,
        ours->evicted, best->evicted, ours->counters_s, ours->foresight_s);
}
