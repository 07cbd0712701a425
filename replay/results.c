/* SPDX-License-Identifier: Apache-2.0 */
/*
 * results.c - means, quantiles and ratios of one run. One thread per collector.
 */
#include "results.h"

#include "base/order.h"

#include <stdlib.h>
#include <string.h>

void replay_result_free(replay_result *result)
{
    free(result->hosts.rows);
    result->hosts.rows = NULL;
    result->hosts.count = 0;
    free(result->explained);
    result->explained = NULL;
    result->explained_count = 0;
}

void results_start(replay_result *result, const char *mode, const char *policy,
                   const replay_options *options, const replay_workload *workload)
{
    memset(result, 0, sizeof *result);
    snprintf(result->mode, sizeof result->mode, "%s", mode);
    snprintf(result->policy, sizeof result->policy, "%s", policy);
    memcpy(result->workload, workload->name, sizeof result->workload);
    result->seed = options->seed;
    result->block_refs = workload->block_refs;
    result->distinct_blocks = workload->distinct_blocks;
    result->scale = 1.0;
    if (workload->block_refs > 0) {
        result->ideal_block_ratio = (double)workload->repeated_refs / (double)workload->block_refs;
    }
    result->footprint_bytes = (double)workload->distinct_blocks * (double)workload->block_tokens *
                              (double)options->bytes_per_token;
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
        result->capacity_bytes[tier] = options->tiers[tier].capacity_bytes;
    }
}

/* Cuts the span of the counted arrivals into equal parts. */
static void results_part(results_collector *collector)
{
    const replay_workload *workload = collector->workload;
    uint64_t count = workload->request_count - collector->skip;
    collector->part_count = 1;
    if (count == 0) return;
    uint64_t parts = count / RESULTS_PART_REQUESTS;
    if (parts > RESULTS_PARTS_MAX) parts = RESULTS_PARTS_MAX;
    if (parts > 0) collector->part_count = (uint32_t)parts;
    collector->first_ns = workload->requests[collector->skip].arrival_ns;
    uint64_t span_ns =
        workload->requests[workload->request_count - 1].arrival_ns - collector->first_ns;
    collector->part_ns = span_ns / collector->part_count;
}

uint64_t results_skip(const replay_workload *workload, double warmup)
{
    return (uint64_t)((double)workload->request_count * warmup);
}

kvt_status results_collector_open(results_collector *collector, replay_result *result,
                                  const replay_workload *workload, double warmup)
{
    memset(collector, 0, sizeof *collector);
    collector->result = result;
    collector->workload = workload;
    collector->skip = results_skip(workload, warmup);
    results_part(collector);
    collector->ttft_s = malloc((size_t)(workload->request_count + 1) * sizeof(double));
    collector->quality = malloc((size_t)(workload->request_count + 1) * sizeof(float));
    return collector->ttft_s != NULL && collector->quality != NULL ? KVT_OK : KVT_E_MEMORY;
}

void results_collector_close(results_collector *collector)
{
    free(collector->ttft_s);
    free(collector->quality);
    collector->ttft_s = NULL;
    collector->quality = NULL;
}

void results_add(results_collector *collector, uint64_t index, const results_sample *sample)
{
    if (index < collector->skip) return;
    collector->quality[collector->count] = (float)(1.0 - sample->loss);
    collector->ttft_s[collector->count++] = sample->wait_s + sample->service_s;
    collector->wait_sum += sample->wait_s;
    collector->service_sum += sample->service_s;
    collector->compute_sum += sample->compute_s;
    collector->put_sum += sample->put_s;
    uint64_t since_ns = collector->workload->requests[index].arrival_ns - collector->first_ns;
    uint64_t part = collector->part_ns > 0 ? since_ns / collector->part_ns : 0;
    if (part >= collector->part_count) part = collector->part_count - 1;
    collector->busy_s[part] += sample->service_s + sample->put_s;
    double blocked = sample->service_s - sample->compute_s;
    if (blocked > 0.0) collector->blocked_sum += blocked;
}

/* Nearest rank: the smallest value that at least share of the samples do not pass. */
static size_t quantile_index(size_t count, double share)
{
    double rank = share * (double)count;
    size_t whole = (size_t)rank;
    if ((double)whole < rank) whole++;
    if (whole == 0) whole = 1;
    return whole > count ? count - 1 : whole - 1;
}

void results_percentiles(uint64_t *samples, size_t count, uint64_t *p50_out, uint64_t *p99_out)
{
    *p50_out = *p99_out = 0;
    if (count == 0) return;
    qsort(samples, count, sizeof *samples, base_order_u64);
    *p50_out = samples[quantile_index(count, 0.50)];
    *p99_out = samples[quantile_index(count, 0.99)];
}

static void results_quantiles(results_collector *collector)
{
    replay_times *times = &collector->result->times;
    size_t count = (size_t)collector->count;
    const double *sorted = collector->ttft_s;
    qsort(collector->ttft_s, count, sizeof(double), base_order_doubles);
    times->ttft_p50 = sorted[quantile_index(count, 0.50)];
    times->ttft_p90 = sorted[quantile_index(count, 0.90)];
    times->ttft_p99 = sorted[quantile_index(count, 0.99)];
    times->ttft_max = sorted[count - 1];
    for (uint32_t i = 0; i < REPLAY_CDF_POINTS; i++) {
        times->ttft_cdf[i] = sorted[quantile_index(count, (double)i / (REPLAY_CDF_POINTS - 1))];
    }
}

static void results_quality(results_collector *collector)
{
    size_t count = (size_t)collector->count;
    double sum = 0.0;
    for (size_t i = 0; i < count; i++)
        sum += (double)collector->quality[i];
    qsort(collector->quality, count, sizeof *collector->quality, base_order_floats);
    collector->result->quality_mean = sum / (double)count;
    collector->result->quality_p10 = (double)collector->quality[quantile_index(count, 0.10)];
}

/* Hit counters become shares of the counted requests' references and tokens. */
static void results_ratios(results_collector *collector)
{
    const replay_workload *workload = collector->workload;
    replay_result *result = collector->result;
    double refs = 0.0, tokens = 0.0;
    for (uint64_t i = collector->skip; i < workload->request_count; i++) {
        refs += (double)workload->requests[i].block_count;
        tokens += (double)workload->requests[i].input_tokens;
    }
    for (int tier = 0; tier < KVT_TIER_COUNT; tier++) {
        result->hit_block_ratio[tier] = refs > 0 ? result->hit_block_ratio[tier] / refs : 0.0;
        result->hit_token_ratio[tier] = tokens > 0 ? result->hit_token_ratio[tier] / tokens : 0.0;
    }
    result->used_token_ratio = tokens > 0 ? result->used_token_ratio / tokens : 0.0;
}

void results_finish(results_collector *collector, uint32_t servers)
{
    const replay_workload *workload = collector->workload;
    replay_result *result = collector->result;
    result->requests = collector->count;
    result->requests_skipped = collector->skip;
    if (result->loop_s > 0.0) {
        result->block_refs_per_s = (double)result->block_refs / result->loop_s;
    }
    results_ratios(collector);
    if (collector->count == 0) return;
    results_quantiles(collector);
    results_quality(collector);
    double count = (double)collector->count;
    replay_times *times = &result->times;
    times->wait_mean = collector->wait_sum / count;
    times->service_mean = collector->service_sum / count;
    times->ttft_mean = times->wait_mean + times->service_mean;
    times->compute_mean = collector->compute_sum / count;
    times->blocked_mean = collector->blocked_sum / count;
    result->put_mean_s = collector->put_sum / count;
    const replay_request *first = &workload->requests[collector->skip];
    const replay_request *last = &workload->requests[workload->request_count - 1];
    result->span_s = (double)(last->arrival_ns - first->arrival_ns) * 1e-9;
    /* A single burst has no arrival rate; its load is that of the time it takes to serve. */
    double span = result->span_s > 0.0 ? result->span_s : times->ttft_max;
    if (!(span > 0.0)) return;
    double capacity_s = span * (double)servers, busiest_s = 0.0;
    result->rho = (collector->service_sum + collector->put_sum) / capacity_s;
    for (uint32_t i = 0; i < collector->part_count; i++) {
        if (collector->busy_s[i] > busiest_s) busiest_s = collector->busy_s[i];
    }
    result->rho_peak = busiest_s * (double)collector->part_count / capacity_s;
}

bool results_has_mean(const replay_result *result)
{
    return result->rho < 1.0 && result->rho_peak < 1.0;
}
