/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_policy.h - what the files of `bench policy` share: drawn instances and result rows.
 *
 * Thread rule: one bench at a time.
 */
#ifndef BENCH_BENCH_POLICY_H
#define BENCH_BENCH_POLICY_H

#include "bench.h"

#include "policy/engine.h"
#include "sparse/decide/knapsack.h"

/* One variant of the drawn ladder: stored bits per element of 16, and mean loss. */
typedef struct policy_rung {
    const char *name;
    double bits;
    double loss;
    double decode_bytes_per_s; /* of original bytes */
} policy_rung;

extern const policy_rung policy_rungs[];
extern const uint32_t policy_rung_count;

/* An instance: entries with sizes, rates and sensitivities drawn from a seed. */
typedef struct policy_instance {
    uint32_t entries;
    uint32_t options; /* stored ones of each entry */
    uint32_t tiers;
    uint64_t seed;
    double alpha_seconds;
    double *rate;      /* uses per second */
    double *recompute; /* seconds */
    double *sensitivity;
    uint32_t *tokens;
    uint64_t capacity[TIERS];
} policy_instance;

/* options is a multiple of tiers; KVT_OK; KVT_E_MEMORY. Released by policy_instance_free. */
KVT_NODISCARD kvt_status policy_instance_draw(uint32_t entries, uint32_t options, uint32_t tiers,
                                              uint64_t seed, policy_instance *out);
void policy_instance_free(policy_instance *instance);

/* Fills the stored options of an entry, [0] being NONE; sizes and times, mean losses. */
void policy_instance_options(const policy_instance *instance, uint32_t number, kvt_option *options);

/* Number of distinct token counts that instances draw, and the count of each. */
#define POLICY_SIZES 64u
uint32_t policy_size_tokens(uint32_t size);

typedef struct policy_static_row {
    uint32_t entries, options, tiers;
    uint64_t seed;
    double primal, dual, gap_solver, solve_s;
    double adaptcache, uniform, lru; /* primals of the others */
    const char *uniform_rung;
} policy_static_row;
KVT_NODISCARD kvt_status policy_static_run(const policy_instance *instance, policy_static_row *row);

typedef struct policy_live_row {
    uint32_t entries, options, tiers;
    uint64_t seed;
    double primal, dual, solve_s;
    double solve_cpu_s;              /* of solve_s, what this thread worked */
    double gap_solver, gap_counters; /* dual_bound */
    double gap_foresight; /* of the engine's placement at the drawn rates; NAN without a dual */
    uint64_t known;       /* entries that the dual counts */
    uint64_t calls, moves;
    uint64_t decision_ns_p50, decision_ns_p99; /* admissions into full tiers that gave moves */
    uint64_t room_ns_p50, room_ns_p99;         /* those of them that made room first */
    uint64_t access_ns_p50, access_ns_p99;
    uint64_t decisions, rooms;
    double bytes_per_entry;     /* whose options are a ladder's */
    double own_bytes_per_entry; /* whose options are its own, as a store's are */
    uint32_t passes;
    uint64_t stored; /* entries */
} policy_live_row;
/* dual_true: the static instance's dual, which is that of all entries at the drawn rates; NAN when
 * it was not solved. */
KVT_NODISCARD kvt_status policy_live_run(const policy_instance *instance, double dual_true,
                                         policy_live_row *row, char *message, size_t message_size);

double policy_unit(uint64_t *state); /* between 0 and 1; the state is any number */

#endif
