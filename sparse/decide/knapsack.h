/* SPDX-License-Identifier: Apache-2.0 */
/*
 * knapsack.h - the multiple-choice knapsack itself: prices, a bound, and a solution of an instance
 * whose values do not change.
 *
 * The search for prices knows an instance only by one question: at these prices, what would all
 * entries together take, and what is that worth? The solver below asks it of arrays, replay's
 * bounds of an engine's entries and of a trace.
 *
 *     L(p) = sum over entries of max over options of (value(o) - sum_d p_d * bytes_d(o))
 *            + sum_d p_d * capacity_d
 *
 * L bounds every choice from above for any p >= 0, so the least value found over all entries is a
 * bound whatever the search did. Thread rule: pure functions over the caller's memory.
 */
#ifndef SPARSE_KNAPSACK_H
#define SPARSE_KNAPSACK_H

#include <stdint.h>

#define KNAPSACK_ROWS 3          /* capacities: tiers that hold bytes, or one and two empty rows */
#define KNAPSACK_NONE UINT32_MAX /* an entry that takes nothing */
#define PRICE_CLOSED  1e30       /* of a tier without capacity */
#define PRICE_UNKNOWN 1e300      /* above every price and value */

/* The findings of one pass over the entries. */
typedef struct price_pass {
    double value;               /* sum of the entries' best scores */
    double used[KNAPSACK_ROWS]; /* bytes they take */
} price_pass;

/* Adds up every stride-th entry. The result is added to *out, which the caller has zeroed; one
 * score per entry counts, the best one or 0. */
typedef void price_ask(const void *context, const double price[KNAPSACK_ROWS], uint32_t stride,
                       price_pass *out);

/* Says that prices stay between low and high, price among them, until the next call: of the
 * questions about all entries. An instance may then skip whatever no price of the box can
 * change. */
typedef void price_narrow(const void *context, const double price[KNAPSACK_ROWS],
                          const double low[KNAPSACK_ROWS], const double high[KNAPSACK_ROWS]);

/* One search for prices: the questions that it may ask, where it starts, and what it found. The
 * caller fills the fields up to tolerance; price_find fills the rest. */
typedef struct price_search {
    price_ask *ask;
    price_narrow *narrow; /* optional: none needed */
    const void *context;
    uint32_t entries;
    double capacity[KNAPSACK_ROWS];
    double price[KNAPSACK_ROWS]; /* where it starts, and where it is */
    double tolerance;            /* of L, relative: a round that gains less is the last */
    double best;                 /* least L over the entries of the stage; at the end over all */
    double best_price[KNAPSACK_ROWS];
    double placed;   /* most that a pass over all took which fits; 0 when none did */
    uint32_t passes; /* over all entries, narrowed or not */
    uint32_t stride; /* of the present stage */
} price_search;

/* prices.c: finds prices on samples, then corrects them in `refine` rounds over all entries. */
void price_find(price_search *search, uint32_t refine);

/* An instance in arrays. Entry i has options first[i] .. first[i + 1] - 1, beside taking nothing,
 * which is worth 0. */
typedef struct knapsack {
    uint32_t entries;
    const uint32_t *first; /* entries + 1 */
    const double *value;   /* of each option */
    const uint64_t *bytes; /* KNAPSACK_ROWS of each option */
    uint64_t capacity[KNAPSACK_ROWS];
} knapsack;

/* primal is the value of the choice, dual the bound on every choice; used are the bytes of the
 * choice, and passes those over all entries. */
typedef struct knapsack_result {
    double primal;
    double dual;
    double price[KNAPSACK_ROWS];
    uint64_t used[KNAPSACK_ROWS];
    uint32_t passes;
} knapsack_result;

/*
 * Chooses one option of each entry, or none: choice[i] is an option's number or KNAPSACK_NONE.
 * steps is the caller's scratch of `entries` items. The choice at the best prices is repaired by
 * the steps that lose least per byte and filled by those that gain most.
 */
typedef struct knapsack_step {
    double density;
    uint32_t entry;
    uint32_t option;
} knapsack_step;
/* Sinks steps[at] to its place in a heap with the least density first. */
void knapsack_sift(knapsack_step *steps, uint32_t count, uint32_t at);

void knapsack_solve(const knapsack *instance, uint32_t *choice, knapsack_step *steps,
                    knapsack_result *out);

#endif
