/* SPDX-License-Identifier: Apache-2.0 */
/*
 * adaptcache_experiment.h - AdaptCache's own experiment: whole contexts of three task types on one
 * A100, 100 GB of DRAM, 400 GB of SSD at 1 GB/s; its policy and ours against fixed compression in
 * LRU order, no compression and prefill, at Poisson rates up to the knee.
 *
 * In virtual time: one server behind a FIFO queue; a request prefills its question of 64 tokens on
 * top of its context, which is loaded when that is faster than computing it. A load has its tier
 * for itself. Moves are free and at once, for all systems. One thread per experiment.
 */
#ifndef REPLAY_ADAPTCACHE_EXPERIMENT_H
#define REPLAY_ADAPTCACHE_EXPERIMENT_H

#include "estimator/predict/predict.h"
#include "estimator/profile/profile.h"
#include <kvterrace/policy.h>

#include <stdio.h>

#define EXPERIMENT_TASKS    3u
#define EXPERIMENT_VARIANTS 7u
#define EXPERIMENT_RATES    4u
#define EXPERIMENT_ALPHAS   4u
#define EXPERIMENT_FIXED    (1u + EXPERIMENT_VARIANTS) /* prefill, then each variant in LRU order */
#define EXPERIMENT_ENGINES  3u
#define EXPERIMENT_MENUS    2u /* variants to choose from: AdaptCache's, nested ones */
#define EXPERIMENT_SYSTEMS  (EXPERIMENT_FIXED + EXPERIMENT_ENGINES * EXPERIMENT_ALPHAS)
#define EXPERIMENT_SEEDS    20u

typedef struct experiment_options {
    const char *ladders; /* folder of ladder-adaptcache-*.csv and ladder-nested-*.csv */
    const char *texts;   /* folder of real texts, or NULL: the built-in table of their lengths */
    uint32_t contexts;
    uint32_t uses; /* requests per context, of which the first 40 % are not counted */
    uint32_t seeds;
    double zipf; /* exponent of popularity; 0: every context alike */
    bool json;
    bool (*progress)(void *context, double done, const char *what); /* or NULL; false ends it */
    void *progress_context;
    FILE *out;
} experiment_options;

/* 1,100 contexts, 10 requests each, 5 seeds, every context alike, ladders in profiles/. */
void experiment_options_init(experiment_options *options);

/* Runs and prints it. KVT_OK; KVT_E_CANCELLED (progress said so; the seeds that were finished are
 * printed); the ladders' and the texts' errors; KVT_E_MEMORY; KVT_E_IO. */
KVT_NODISCARD kvt_status experiment_run(const experiment_options *options, char *message,
                                        size_t message_size);

/* ---- the parts, for its own files and tests ---- */

typedef struct experiment_context {
    uint32_t tokens;
    uint32_t task;
    double upto; /* running sum of popularity */
} experiment_context;

/* One run: means over the counted requests. */
typedef struct experiment_outcome {
    double ttft, service, quality;
    double task_quality[EXPERIMENT_TASKS];
    double dram_hits, ssd_hits;              /* of all requests */
    double task_dram_hits[EXPERIMENT_TASKS]; /* of the task's */
    double busy;                             /* service seconds over the span */
} experiment_outcome;

typedef struct experiment {
    const experiment_options *options;
    kvt_cost_model models[EXPERIMENT_MENUS][EXPERIMENT_TASKS];
    experiment_context *contexts;
    double prefill_mean_s;          /* of a request, by popularity, of the first seed */
    double rates[EXPERIMENT_RATES]; /* requests per second */
    bool real_texts;
    experiment_outcome outcomes[EXPERIMENT_RATES][EXPERIMENT_SYSTEMS][EXPERIMENT_SEEDS];
} experiment;

extern const char *const experiment_tasks[EXPERIMENT_TASKS];
extern const double experiment_alphas[EXPERIMENT_ALPHAS];
extern const double experiment_rate_shares[EXPERIMENT_RATES];
typedef struct experiment_engine {
    const char *name, *policy;
    uint32_t menu;
} experiment_engine;
extern const experiment_engine experiment_engines[EXPERIMENT_ENGINES];

/* adaptcache_contexts.c: draws the contexts of a seed. KVT_OK; KVT_E_GONE; KVT_E_PARSE; ... */
KVT_NODISCARD kvt_status experiment_draw(experiment *run, uint64_t seed, char *message,
                                         size_t message_size);

/* adaptcache_experiment.c: reads the ladders; runs one system at one rate. */
KVT_NODISCARD kvt_status experiment_open(experiment *run, const experiment_options *options,
                                         char *message, size_t message_size);
void experiment_close(experiment *run);
KVT_NODISCARD kvt_status experiment_measure(experiment *run, uint32_t system, double rate,
                                            uint64_t seed, experiment_outcome *out, char *message,
                                            size_t message_size);
/* Name of a system, its alpha when it has one (else 0). */
void experiment_name(const experiment *run, uint32_t system, char *name, size_t size,
                     double *alpha_out);

/* adaptcache_report.c */

/*
 * An engine's points, one per alpha, against one fixed system: delay of the fixed one over the
 * engine's at the fixed one's quality, and the engine's quality over the fixed one's at its delay.
 * Between two points on the line between them; 0 where the engine reaches no such point.
 */
double experiment_delay_ratio(const experiment_outcome points[EXPERIMENT_ALPHAS],
                              const experiment_outcome *fixed);
double experiment_quality_ratio(const experiment_outcome points[EXPERIMENT_ALPHAS],
                                const experiment_outcome *fixed);
KVT_NODISCARD kvt_status experiment_print(const experiment *run);

#endif
