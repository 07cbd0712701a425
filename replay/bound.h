/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bound.h - what the best placement could save: the multiple-choice knapsack over the uses of a
 * workload, whose Lagrangian dual no policy passes. Private to the room. One thread per instance.
 *
 * A stay is one item: a block that is kept from one use to the next (the interval bound), or over a
 * window with several uses (the static bound). It takes one variant or none:
 *
 *     value(variant) = recompute - uses * (load + decode) - min(loss_most, sense * loss)   seconds
 *     takes            span * bytes(variant)             of the tier's capacity * horizon
 *
 * docs/decisions/0007-regrets.md has why that bounds every policy of the simulator.
 */
#ifndef REPLAY_BOUND_H
#define REPLAY_BOUND_H

#include "replay.h"
#include "workload.h"

#define BOUND_LEVELS (KVT_TIER_COUNT - 1) /* tiers that hold bytes */
#define BOUND_NONE   UINT32_MAX

typedef struct bound_stay {
    uint32_t block;
    float recompute_s; /* of all its uses */
    float uses;
    float sense;     /* seconds per 1.0 of a variant's loss */
    float loss_most; /* seconds that loss costs at most */
    float span;      /* how long it is held, in the measure of the horizon */
    float last;      /* of that, from the moment before the use that ends it; moving alone */
    float scale;     /* of bytes and times: below 1 for a partial block charged its own tokens */
} bound_stay;

typedef struct bound_variant {
    int level;
    double bytes;
    double request_s; /* of one load, whatever the size */
    double sized_s;   /* load and decode beyond that, of a whole block */
    double loss;
    uint32_t held_as; /* bit i: an entry held as variant i can become this one without the exact
                         bytes, or variant i is exact */
} bound_variant;

typedef struct bound_instance {
    bound_variant variants[KVT_OPTIONS_MAX];
    uint32_t variant_count;
    uint32_t place[KVT_OPTIONS_MAX]; /* of an option among the variants; BOUND_NONE: none, or it
                                        never fits */
    bool moving; /* a variant may change between uses: the last one counts, the cheapest is held */
    double capacity[BOUND_LEVELS]; /* times the horizon */
    bound_stay *stays;
    uint32_t count, room;
} bound_instance;

/* The values of a workload's uses; built once. */
typedef struct bound_source {
    const replay_options *options;
    const replay_workload *workload;
    uint32_t
        *least_tokens;  /* by block: the fewest that any request has of it; NULL: whole blocks */
    double grain_share; /* of the smallest variant: what rounding to whole grains may add */
} bound_source;

KVT_NODISCARD kvt_status bound_source_open(bound_source *source, const replay_options *options,
                                           const replay_workload *workload);
void bound_source_close(bound_source *source);

/* The use of a prefix's block at `position`, when at most run_tokens tokens could be loaded. span
 * and last stay 0. */
bound_stay bound_use(const bound_source *source, const replay_request *request, uint32_t position,
                     uint32_t run_tokens);

/* Variants and capacities; weight[tier] is how much of a tier's load counts. KVT_E_ARGUMENT. */
KVT_NODISCARD kvt_status bound_begin(bound_instance *instance, const bound_source *source,
                                     const double weight[KVT_TIER_COUNT], double horizon);
KVT_NODISCARD kvt_status bound_add(bound_instance *instance, const bound_stay *stay);
void bound_end(bound_instance *instance);

/* Seconds that a stay saves in a variant, at least 0: what is not worth loading is not loaded. */
double bound_value(const bound_variant *variant, const bound_stay *stay);

/* The least dual value found, seconds; the search ends when a round gains less than `tolerance` of
 * it. price_out may be NULL. */
double bound_solve(const bound_instance *instance, double tolerance,
                   double price_out[BOUND_LEVELS]);

/* The dual at price 0: every stay in its best variant. */
double bound_ideal(const bound_instance *instance);

/* ---- the offline optimum for blocks of one size ---- */

/*
 * Belady's MIN evicts the block whose next use is the farthest. It bounds hit ratios and is no
 * policy.
 */

/* Share of the workload's block references that hit in a cache of `blocks` blocks that knows the
 * future (Belady's MIN; a block that is not used again is never kept in favour of one that is).
 * Below 0 without memory. */
double replay_belady(const replay_workload *workload, uint64_t blocks);

#endif
