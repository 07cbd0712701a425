/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compare.h - every online baseline against the utility engine at equal or better quality, over
 * many seeds.
 *
 *     replay_compare plan; replay_compare_init(&plan);   base, trace or generator, policies
 *     replay_compare_run(&plan, &result, ...);
 *     replay_compare_print_json(&plan, &result, stdout); or _text
 *     replay_compare_free(&result);
 *
 * Seeds S .. S+n-1 evaluate, the t behind them tune: no figure in a row comes from a run that had a
 * part in a choice. A seed is one workload (sessions drawn anew, arrivals inside the trace's step),
 * and all contenders see the same one, so differences are paired by seed.
 *
 * Runs are spread over threads; the rows do not depend on how many.
 */
#ifndef REPLAY_COMPARE_H
#define REPLAY_COMPARE_H

#include "estimator/predict/predict.h"
#include "replay.h"

#define REPLAY_SPEEDS_MAX  8u
#define REPLAY_SPREADS_MAX 8u
#define REPLAY_LABEL_BYTES 160u
#define REPLAY_LEVELS_MAX  8u

/* How far entries differ in what they lose, and how much of it a policy can know beforehand. */
typedef struct replay_spread {
    double sigma;
    double repeatability;
} replay_spread;

typedef struct replay_compare {
    const replay_options *base;        /* simulation, with a ladder */
    const replay_workload *trace;      /* read with keep_steps; NULL: generator */
    const replay_generator *generator; /* each seed generates anew */
    uint32_t sessions;                 /* of one draw from the trace; 0 = as many as it has */
    uint32_t seeds;                    /* 2 .. 1000 */
    uint32_t tuning_seeds;             /* 1 .. 100 */
    uint32_t threads;                  /* at least 1 */
    bool quick;                        /* coarse grids */
    double speeds[REPLAY_SPEEDS_MAX];  /* of the SSD, bytes/s; writes follow unless set apart */
    uint32_t speed_count;              /* 0: as base has it, once */
    bool write_follows;                /* an SSD writes as fast as it reads */
    replay_spread main;                /* of the rows against baselines */
    replay_spread spreads[REPLAY_SPREADS_MAX]; /* of the rows against the best uniform mix */
    uint32_t spread_count;
    const char *const *policies; /* the baselines */
    size_t policy_count;
    /* Called in turn from one thread at a time; total is an estimate until the end. NULL: silent */
    void (*progress)(void *context, uint64_t done, uint64_t total, const char *what);
    /* Once, before the long part. */
    void (*budget)(void *context, uint64_t runs, double minutes, double run_s);
    void *context;
    bool (*interrupted)(void); /* or NULL: whether the comparison is to end between two runs */
} replay_compare;

typedef enum replay_row_kind {
    REPLAY_ROW_BASELINE, /* a policy with a variant of its own */
    REPLAY_ROW_MIX,      /* the best uniform mix of a quality level */
    REPLAY_ROW_FOOTPRINT /* baselines with an SSD that holds the whole footprint */
} replay_row_kind;

typedef enum replay_verdict {
    REPLAY_WIN,       /* the interval of the ratio is below 1, quality at least as good */
    REPLAY_TIE,       /* the interval holds 1 */
    REPLAY_LOSE,      /* the interval is above 1 */
    REPLAY_UNMATCHED, /* ours has the lower quality over the evaluation seeds */
    REPLAY_UNSTABLE   /* fewer than two seeds on which both have a mean */
} replay_verdict;

typedef struct replay_compare_row {
    replay_row_kind kind;
    double ssd_bytes_per_s;
    replay_spread spread;
    double level; /* quality asked of a mix */
    char against[REPLAY_LABEL_BYTES];
    char ours[REPLAY_LABEL_BYTES];
    double ttft_s, our_ttft_s; /* means over the seeds used */
    double quality, our_quality;
    double rho, our_rho;                       /* the largest peak rho over these seeds */
    double ratio, ratio_low, ratio_high;       /* ours over theirs: of the means, 95 % */
    double saved_s, saved_s_low, saved_s_high; /* theirs less ours */
    double quality_low, quality_high;          /* ours less theirs, 95 % */
    uint32_t fastest_at; /* bit i: no baseline in any variant is faster at level i of the result, by
                            the tuning seeds; of baselines alone */
    uint32_t seeds, skipped; /* skipped: at least one of the two has no mean (rho of 1) */
    replay_verdict verdict;
} replay_compare_row;

typedef struct replay_compare_result {
    replay_compare_row *rows;
    size_t row_count, row_room;
    uint32_t sessions;                  /* of one draw; 0 = generated */
    uint64_t requests;                  /* of the first seed */
    double capacity_over_footprint;     /* of the first seed, raw entries */
    double rho_none_low, rho_none_high; /* without a cache, over the seeds */
    double levels[REPLAY_LEVELS_MAX];   /* of quality */
    uint32_t level_count;
    uint64_t runs;
    double wall_s;
    bool interrupted; /* rows are of the seeds that were finished, and some are missing */
} replay_compare_result;

/* 20 and 4 seeds, one thread; the main spread and those that the codec trial measured. */
void replay_compare_init(replay_compare *plan);

/* KVT_OK; KVT_E_CANCELLED (interrupted; the result has the rows with at least two finished seeds,
 * and is to be freed); KVT_E_CONFIG (no ladder, a count out of range); what replay_run_sim,
 * _resample and _generate say. */
KVT_NODISCARD kvt_status replay_compare_run(const replay_compare *plan,
                                            replay_compare_result *result, char *message,
                                            size_t message_size);
void replay_compare_free(replay_compare_result *result);

/* The head of a document, beside the plan. */
typedef struct replay_compare_head {
    const char *version;
    const char *command;
    const char *machine;
    const char *date;
} replay_compare_head;

/* Schema "kvterrace-compare-1". KVT_OK; KVT_E_MEMORY; KVT_E_IO. */
KVT_NODISCARD kvt_status replay_compare_print_json(const replay_compare *plan,
                                                   const replay_compare_result *result,
                                                   const replay_compare_head *head, FILE *file);
KVT_NODISCARD kvt_status replay_compare_print_text(const replay_compare *plan,
                                                   const replay_compare_result *result,
                                                   const replay_compare_head *head, FILE *file);

/* ---- trials, their samples and their choice; private to the compare files ---- */

#define COMPARE_NONE SIZE_MAX

typedef enum compare_role {
    COMPARE_BASELINE, /* a policy with a variant */
    COMPARE_OURS,     /* what a baseline or a mix is matched with */
    COMPARE_MIX,
    COMPARE_OTHER /* evaluated, never chosen */
} compare_role;

/* One configuration: everything that may differ between two runs on the same workload. Padding is
 * zero, so that equal ones are equal bytes. */
typedef struct compare_setup {
    char policy[32];
    compare_role role;
    uint32_t variant; /* of fixed policies: index into the model */
    double alpha_s;
    double loss_limit;
    replay_spread spread;
    double ssd_bytes_per_s;
    uint64_t ssd_capacity_bytes; /* 0 = as base */
    replay_blend blend;
} compare_setup;

typedef struct compare_sample {
    bool done;
    bool stable; /* the mean exists */
    double ttft_s, quality, rho, rho_peak;
    double seconds; /* the run itself */
} compare_sample;

typedef struct compare_trial {
    compare_setup setup;
    compare_sample *samples; /* seeds, then tuning seeds */
} compare_trial;

typedef struct compare_state {
    const replay_compare *plan;
    replay_compare_result *result;
    replay_workload *workloads; /* seeds, then tuning seeds */
    replay_normals *normals;    /* of the same */
    uint32_t seed_count;        /* of both */
    compare_trial *trials;
    size_t trial_count, trial_room;
    uint64_t runs_done, runs_planned;
    char *message;
    size_t message_size;
} compare_state;

/* ---- running trials ---- */

/* The index of a setup's trial, made when it is new. KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status compare_add(compare_state *state, const compare_setup *setup,
                                     size_t *index_out);

/* Runs what has not run yet of these trials, on the tuning seeds or on the others, in threads. */
KVT_NODISCARD kvt_status compare_run_trials(compare_state *state, const size_t *trials,
                                            size_t count, bool tuning, const char *what);
void compare_pool_free(compare_state *state);

/* ---- matching contenders ---- */

/* Means over the tuning seeds; false when one of them has no mean or was not run. */
bool compare_tuned(const compare_state *state, size_t trial, double *ttft_out, double *quality_out);

/* The trial of ours with the least mean TTFT whose quality is at least `floor`'s on every tuning
 * seed; same speed and capacity, and the floor's spread. COMPARE_NONE when there is none. */
size_t compare_pick(const compare_state *state, size_t floor);

/* Two contenders that become a row. */
typedef struct compare_match {
    replay_row_kind kind;
    size_t against, ours;
    double level;
    uint32_t fastest_at; /* of a baseline: the levels at which no other of them is faster, bits */
} compare_match;

typedef struct compare_matches {
    compare_match *list;
    size_t count, room;
} compare_matches;

/* Picks anew for every match: what was tried for one contender counts for all. */
void compare_match_again(const compare_state *state, compare_matches *matches);

/* Of all baselines in all variants, marks the fastest at each level of quality, by the tuning
 * seeds. */
void compare_mark_fastest(const compare_state *state, compare_matches *matches);

/* Two contenders seed by seed; fills the figures of a row. */
void compare_judge(const compare_state *state, size_t against, size_t ours,
                   replay_compare_row *row);

/* The 95 % interval of the mean of `values` and of the ratio sum(ours) / sum(theirs), by drawing
 * pairs with replacement. */
typedef struct compare_interval {
    double low, high;
} compare_interval;
void compare_bootstrap(const double *theirs, const double *ours, uint32_t count,
                       compare_interval *difference_out, compare_interval *ratio_out);

void compare_label(const compare_state *state, size_t trial, char label[REPLAY_LABEL_BYTES]);

/* ---- uniform mixes ---- */

/* The rungs that fixed policies use: exact variants, the middle lossy one, the last. */
uint32_t compare_rungs(const replay_options *base, uint8_t rungs[KVT_VARIANTS_MAX]);

/* The qualities at which mixes are compared, and the fastest baselines named; returns how many. */
uint32_t compare_levels(const replay_compare *plan, double levels[REPLAY_LEVELS_MAX]);

/* Sweeps mixes of one speed on the tuning seeds; best_out[i] is that of level i, or COMPARE_NONE.
 */
KVT_NODISCARD kvt_status compare_sweep_mixes(compare_state *state, double ssd_bytes_per_s,
                                             const double *levels, uint32_t level_count,
                                             size_t *best_out);
/* Upper bound of its runs. */
uint64_t compare_mix_runs(const replay_compare *plan, uint32_t level_count);

#endif
