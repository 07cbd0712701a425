/*
 * results.h - collects one sample per request and makes a replay_result of them; private to the
 * room. One thread per collector, or the caller's lock.
 */
#ifndef REPLAY_RESULTS_H
#define REPLAY_RESULTS_H

#include "replay.h"

typedef struct results_sample {
    double wait_s;
    double service_s;
    double compute_s; /* of the service: prefill with its fixed part */
} results_sample;

typedef struct results_collector {
    replay_result *result;
    const replay_workload *workload;
    uint64_t skip; /* requests of the warm-up */
    double *ttft_s;
    uint64_t count;
    double wait_sum, service_sum, compute_sum, blocked_sum;
} results_collector;

/* Clears a result and fills what is known before the run. */
void results_start(replay_result *result, const char *mode, const char *policy,
                   const replay_options *options, const replay_workload *workload);

KVT_NODISCARD kvt_status results_collector_open(results_collector *collector, replay_result *result,
                                                const replay_workload *workload, double warmup);
void results_collector_close(results_collector *collector);

/* The sample of request `index`; ignored during the warm-up. Each index once. */
void results_add(results_collector *collector, uint64_t index, const results_sample *sample);

/* Turns sums into means and ratios. The hit sums must be in the result already. */
void results_finish(results_collector *collector, uint32_t servers);

/* Median and 99th percentile of samples, which are sorted in place; 0 without samples. */
void results_percentiles(uint64_t *samples, size_t count, uint64_t *p50_out, uint64_t *p99_out);

#endif
