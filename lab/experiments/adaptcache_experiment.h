/* SPDX-License-Identifier: Apache-2.0 */
/*
 * adaptcache_experiment.h - AdaptCache's own experiment: whole contexts of three task types on one
 * A100, 100 GB of DRAM, 400 GB of SSD at 1 GB/s; its policy and ours against fixed compression in
 * LRU order, no compression, prefill, and the best uniform mix, from little load to saturation.
 *
 * In virtual time: one server behind a FIFO queue; a request prefills its question of 64 tokens on
 * top of its context, which is loaded when that is faster than computing it. A load has its tier
 * for itself. Moves are free and at once, for all systems.
 *
 * Settings: each task alone and all three in one store, each with even and with Zipf popularity. In
 * each setting every system runs at every rate with every seed. An engine has one run per alpha;
 * what it is compared at is one of these runs, never a line between two. The alpha is chosen on
 * the tuning seeds (the first half), the ratio is that of the others.
 *
 * Thread rule: the case uses threads of its own; each run is one thread's, and what runs
 * share is not changed while they go on.
 */
#ifndef REPLAY_ADAPTCACHE_EXPERIMENT_H
#define REPLAY_ADAPTCACHE_EXPERIMENT_H

#include "lab/harness/bench_case.h"
#include "lab/private.h"

#include <kvterrace/policy.h>

enum {
    EXPERIMENT_TASKS = 3,
    EXPERIMENT_SETTINGS = 8, /* each task and all of them, times two popularities */
    EXPERIMENT_RATES = 6,
    EXPERIMENT_ALPHAS = 16,
    EXPERIMENT_MENUS = 2,
    EXPERIMENT_ENGINES = 5,
    EXPERIMENT_SEEDS = 40,
    EXPERIMENT_SYSTEMS_MAX = 320,
    EXPERIMENT_NAME_BYTES = 96
};

/* The variants that an engine may choose from. */
typedef enum experiment_menu {
    EXPERIMENT_MENU_PAPER = 0, /* raw, KIVI and StreamingLLM: AdaptCache's two methods */
    EXPERIMENT_MENU_OURS = 1   /* raw, and what no other beats in size and loss */
} experiment_menu;

typedef struct experiment_options {
    const char *ladders; /* folder of the ladders and of codecs-gpu.json */
    const char *profile; /* measured curves: a file of quality rows, or NULL: the ladders */
    const char *classes[EXPERIMENT_TASKS]; /* of the profile; NULL: its first three */
    uint32_t contexts;
    uint32_t uses; /* requests per context, of which the first 40 % are not counted */
    uint32_t seeds;
    uint32_t threads;
    uint32_t settings; /* bit i: run setting i; 0: all */
    uint32_t rates;    /* bit i: run rate i; 0: all */
    bool coarse;       /* mixes have one rung a tier, never two */
    /* The host and the measure of quality: what the paper's figures depend on. */
    double dram_bytes, ssd_bytes, ssd_bytes_per_s;
    double prefill_speed; /* times the A100's of the FLOP model */
    bool by_answers;      /* a profile's losses are 1 - ROUGE-L of answers, not its own */
} experiment_options;

/* 1,100 contexts, 10 requests each, 6 seeds, all settings, ladders in profiles/, one thread, the
 * paper's host. */
void experiment_options_init(experiment_options *options);

/* The case, whose own options are these. KVT_E_CANCELLED: progress said so; nothing is reported.
 * KVT_E_CONFIG: the profile lacks a class or a method. */
extern const bench_case bench_adaptcache_case;

/* ---- the parts, for its own files and tests ---- */

typedef struct experiment_context {
    uint32_t tokens;
    uint32_t task;
    double upto;        /* running sum of popularity */
    double sensitivity; /* its losses over the task's: what counts */
    double known;       /* what of that an engine can know beforehand */
} experiment_context;

/* The contexts of one setting and seed. */
typedef struct experiment_draw {
    experiment_context *contexts;
    double prefill_mean_s; /* of a request, by popularity */
} experiment_draw;

/* One run: means over the counted requests. */
typedef struct experiment_outcome {
    double ttft, service, quality;
    double dram_hits, ssd_hits; /* of all requests */
    double busy;                /* service seconds over the span; 1: saturated */
} experiment_outcome;

typedef enum experiment_kind {
    EXPERIMENT_PREFILL,
    EXPERIMENT_FIXED,  /* one variant in LRU order */
    EXPERIMENT_ENGINE, /* one engine at one alpha */
    EXPERIMENT_MIX     /* one rung, or two in halves, per tier; our eviction order */
} experiment_kind;

typedef struct experiment_system {
    experiment_kind kind;
    experiment_menu menu;
    uint8_t variant;   /* FIXED: of the menu */
    bool always;       /* FIXED: loads what it holds, also where computing is faster */
    uint8_t engine;    /* ENGINE: index of experiment_engines */
    double alpha;      /* ENGINE */
    uint8_t half_dram; /* MIX: place between rungs, in halves: 3 is rungs 1 and 2, half each */
    uint8_t half_ssd;
    char name[EXPERIMENT_NAME_BYTES];
} experiment_system;

typedef struct experiment_engine {
    const char *name, *policy;
    experiment_menu menu;
    bool per_entry; /* is told what can be known of a context's own sensitivity */
} experiment_engine;
extern const experiment_engine experiment_engines[EXPERIMENT_ENGINES];
extern const double experiment_alphas[EXPERIMENT_ALPHAS];
extern const double experiment_rate_shares[EXPERIMENT_RATES];

/* Losses of a task and their spread between contexts. */
typedef struct experiment_task {
    char name[64];
    double sigma;         /* of the logarithm of a context's factor on losses; 0: all alike */
    double repeatability; /* of what is known of it beforehand */
    uint32_t entries;     /* that the curves are means of; 0: not measured here */
} experiment_task;

typedef struct experiment {
    const bench_options *common; /* of the case; NULL in a part of it */
    const experiment_options *options;
    experiment_task tasks[EXPERIMENT_TASKS];
    kvt_cost_model models[EXPERIMENT_MENUS][EXPERIMENT_TASKS];
    experiment_draw *draws; /* [EXPERIMENT_SETTINGS][seeds] */
    experiment_system systems[EXPERIMENT_SYSTEMS_MAX];
    uint32_t system_count;
    /* [EXPERIMENT_SETTINGS][EXPERIMENT_RATES][system_count][seeds] */
    experiment_outcome *outcomes;
} experiment;

/* adaptcache_menus.c: the options to choose from, by the ladders or by a profile's curves. */
KVT_NODISCARD kvt_status experiment_menus_read(experiment *run, char *message, size_t message_size);

/* adaptcache_contexts.c: draws the contexts of every setting and seed. KVT_OK;
 * KVT_E_MEMORY. */
KVT_NODISCARD kvt_status experiment_draw_all(experiment *run, char *message, size_t message_size);
double experiment_setting_zipf(uint32_t setting);
/* The only task of a setting, or EXPERIMENT_TASKS: all of them. */
uint32_t experiment_setting_task(uint32_t setting);
void experiment_setting_name(const experiment *run, uint32_t setting, char *name, size_t size);

/* adaptcache_run.c: seconds of a request whose context is not loaded. */
double experiment_compute_seconds(const kvt_prefill *prefill, uint32_t tokens);
/* One run of one system at so many requests per second. KVT_OK; KVT_E_MEMORY;
 * what the policy gave. */
KVT_NODISCARD kvt_status experiment_measure(const experiment *run, const experiment_draw *draw,
                                            const experiment_system *system, double rate,
                                            uint64_t seed, experiment_outcome *out, char *message,
                                            size_t message_size);

/* adaptcache_sweep.c: opens with menus, systems and contexts; experiment_close also after a
 * failure. */
KVT_NODISCARD kvt_status experiment_open(experiment *run, const experiment_options *options,
                                         char *message, size_t message_size);
void experiment_close(experiment *run);
bool experiment_has_setting(const experiment_options *options, uint32_t setting);
bool experiment_has_rate(const experiment_options *options, uint32_t rate);
/* Requests per second of a rate in a setting: a share of what prefill alone can bear. */
double experiment_rate(const experiment *run, uint32_t setting, uint32_t rate);
const experiment_outcome *experiment_outcome_at(const experiment *run, uint32_t setting,
                                                uint32_t rate, uint32_t system, uint32_t seed);

/* ---- choice and comparison (adaptcache_choice.c) ---- */

/* The systems that one choice is made among, by their numbers. */
typedef struct experiment_group {
    uint32_t first, count;
} experiment_group;
experiment_group experiment_group_of_engine(const experiment *run, uint32_t engine);
experiment_group experiment_group_of_mixes(const experiment *run);

/* A mean over some of the seeds. */
typedef struct experiment_mean {
    double ttft, quality, dram_hits, ssd_hits, busy;
} experiment_mean;
/* tuning: over the first half of the seeds, else over the others; of one seed, over that one. */
experiment_mean experiment_mean_of(const experiment *run, uint32_t setting, uint32_t rate,
                                   uint32_t system, bool tuning);

/* The one of the group with the least TTFT whose quality is at least `quality`, both on the tuning
 * seeds; UINT32_MAX: none is. */
uint32_t experiment_fastest(const experiment *run, uint32_t setting, uint32_t rate,
                            experiment_group group, double quality);
/* The one with the best quality whose TTFT is at most `ttft`; UINT32_MAX: none is. */
uint32_t experiment_best(const experiment *run, uint32_t setting, uint32_t rate,
                         experiment_group group, double ttft);

/* What a chosen system is against another, on the seeds that did not choose. */
typedef struct experiment_ratio {
    bool reached;              /* else: no system of the group is good or fast enough */
    uint32_t chosen;           /* system */
    double delay, least, most; /* of the other's TTFT over the chosen one's: mean, by seed */
    double quality;            /* of the chosen one's mean quality over the other's */
} experiment_ratio;
experiment_ratio experiment_compare(const experiment *run, uint32_t setting, uint32_t rate,
                                    uint32_t chosen, uint32_t other);

/* adaptcache_report.c */
void experiment_report(const experiment *run, bench_report *report);
extern const document_table experiment_tables[];

#endif
