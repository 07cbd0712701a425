/* SPDX-License-Identifier: Apache-2.0 */
/*
 * results.h - collects one sample per request and makes a replay_result of them; private to the
 * room. One thread per collector, or the caller's lock.
 */
#ifndef REPLAY_RESULTS_H
#define REPLAY_RESULTS_H

#include "replay.h"

#include <jansson.h>

typedef struct results_sample {
    double wait_s;
    double service_s;
    double compute_s; /* of the service: prefill with its fixed part */
    double loss;      /* of the request, 0 to 1 */
    double put_s;     /* the server stays busy so long after the first token; live */
} results_sample;

/* The busiest part of a run is looked for in at most so many parts of its span, fewer where a part
 * would hold less than RESULTS_PART_REQUESTS: a handful of long requests is chance, not load. */
#define RESULTS_PARTS_MAX     10u
#define RESULTS_PART_REQUESTS 200u

typedef struct results_collector {
    replay_result *result;
    const replay_workload *workload;
    uint64_t skip; /* requests of the warm-up */
    double *ttft_s;
    float *quality;
    uint64_t count;
    double wait_sum, service_sum, compute_sum, blocked_sum, put_sum;
    uint64_t first_ns, part_ns; /* the first counted arrival; length of a part, 0 = one burst */
    uint32_t part_count;
    double busy_s[RESULTS_PARTS_MAX]; /* server seconds that the arrivals of each part ask for */
} results_collector;

/* Whether mean waiting says anything: at a load of 1 and above, of the whole run or of its busiest
 * part, the queue grows as long as that lasts, and a mean tells how long, not how loaded. */
bool results_has_mean(const replay_result *result);

/* Clears a result and fills what is known before the run. */
void results_start(replay_result *result, const char *mode, const char *policy,
                   const replay_options *options, const replay_workload *workload);

/* Requests of the warm-up. */
uint64_t results_skip(const replay_workload *workload, double warmup);

KVT_NODISCARD kvt_status results_collector_open(results_collector *collector, replay_result *result,
                                                const replay_workload *workload, double warmup);
void results_collector_close(results_collector *collector);

/* The sample of request `index`; ignored during the warm-up. Each index once. */
void results_add(results_collector *collector, uint64_t index, const results_sample *sample);

/* Turns sums into means and ratios. The hit sums must be in the result already. */
void results_finish(results_collector *collector, uint32_t servers);

/* Median and 99th percentile of samples, which are sorted in place; 0 without samples. */
void results_percentiles(uint64_t *samples, size_t count, uint64_t *p50_out, uint64_t *p99_out);

/* ---- numbers as people read them; any thread ---- */

#define RESULTS_TEXT_BYTES 24u

/* "12.3 GB", decimal prefixes; "0" for none. */
const char *results_format_bytes(double bytes, char *text);

/* The JSON document of a replay; *sound becomes false where memory is short. Release with
 * json_decref. */
json_t *results_document(const replay_report *report, bool *sound);

/* The machine that a simulation is of, in one line: tiers, speeds and where these come from,
 * variants, limit of loss. */
#define RESULTS_MACHINE_BYTES 2048u
void results_describe(const replay_options *options, char *text, size_t size);

/* "random", "spill:0.2", ... text holds RESULTS_TEXT_BYTES. */
const char *results_format_route(const replay_options *options, char *text);

#endif
