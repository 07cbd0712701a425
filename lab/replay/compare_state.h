/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compare_state.h - trials, their samples and what chooses among them; private to the compare
 * files.
 */
#ifndef REPLAY_COMPARE_STATE_H
#define REPLAY_COMPARE_STATE_H

#include "compare.h"
#include "estimator/predict/offer.h"

#define COMPARE_NONE SIZE_MAX

typedef enum compare_role {
    COMPARE_BASELINE, /* a policy with a form */
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

/* ---- compare_pool.c ---- */

/* The index of a setup's trial, made when it is new. KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status compare_add(compare_state *state, const compare_setup *setup,
                                     size_t *index_out);

/* Runs what has not run yet of these trials, on the tuning seeds or on the others, in threads. */
KVT_NODISCARD kvt_status compare_run_trials(compare_state *state, const size_t *trials,
                                            size_t count, bool tuning, const char *what);
void compare_pool_free(compare_state *state);

/* ---- compare_match.c ---- */

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

/* Of all baselines in all forms, marks the fastest at each level of quality, by the tuning seeds.
 */
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

/* ---- compare_mix.c ---- */

/* The rungs that fixed policies use: exact forms, the middle lossy one, the last. */
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
