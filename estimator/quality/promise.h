/* SPDX-License-Identifier: Apache-2.0 */
/*
 * promise.h - what a variant is promised to lose at most: of a class in the mean, and of 90 % of
 * its entries (docs/PROFILE.md, "What a limit promises"). Bounds are made of measured rows of
 * several classes, and tried on each class in turn with the bounds that the others give.
 *
 * Thread rule: any thread; pure but for memory.
 */
#ifndef ESTIMATOR_PROMISE_H
#define ESTIMATOR_PROMISE_H

#include "estimator/quality/quality.h"

/* The share of entries that a limit per entry speaks of, and how sure the bounds are. */
#define PROMISE_ENTRIES    0.9
#define PROMISE_CONFIDENCE 0.95

/* Student's point at the confidence that the normal point z has, one-sided; exact at 1 degree of
 * freedom, within 1 % from 2 on. */
double quality_student(double z, double freedom);

/* Of one variant. */
typedef struct promise_bound {
    double loss;     /* mean over the classes that count */
    double mean;     /* no class has a higher mean loss, at PROMISE_CONFIDENCE */
    double entry;    /* 90 % of a class's entries lose no more than this */
    double widening; /* the factor in both for a class that was never seen; 1: it was */
    bool lost; /* of one class: a loss was seen; else `loss` is half of the least that would show */
} promise_bound;

typedef struct promise_rows {
    const quality_row *rows; /* [entry_count][variant_count]; loss is what counts */
    uint32_t entry_count, variant_count;
    const uint32_t *classes;   /* [entry_count]: the class of each, below class_count */
    const uint64_t *documents; /* [entry_count], as in quality_summarise */
    uint32_t class_count;
    uint32_t trials; /* that one row's loss is a mean of: losses below half of one are not seen */
} promise_rows;

/* Bounds for entries of one of the classes. A variant without losses there has NAN. KVT_OK or
 * KVT_E_MEMORY. */
KVT_NODISCARD kvt_status promise_of_class(const promise_rows *rows, uint32_t class_index,
                                          promise_bound *bounds_out);

/* Bounds for entries of a class that none of the rows is of; classes whose bit is set in `left_out`
 * are as if they were not there. At least one is left. KVT_OK or KVT_E_MEMORY. */
KVT_NODISCARD kvt_status promise_of_others(const promise_rows *rows, uint64_t left_out,
                                           promise_bound *bounds_out);

/* How bounds did on entries that they were not made of, at one limit. */
typedef struct promise_trial {
    double limit;
    uint32_t mean_offered, mean_kept;   /* class x variant: bound within the limit; mean too */
    uint32_t entry_offered, entry_kept; /* bound within the limit; 90 % of the entries too */
    uint32_t entry_seen, entry_within;  /* entries of those offered; within the limit */
} promise_trial;

/* Each class in turn by the bounds that the other classes give. trials_out[count], their limits set
 * by the caller. Needs two classes or more: with one nothing is offered. KVT_OK or KVT_E_MEMORY. */
KVT_NODISCARD kvt_status promise_try(const promise_rows *rows, promise_trial *trials,
                                     uint32_t count);

/* One half of the documents of each class in turn by the bounds that the other half gives, as a
 * class that was measured. Likewise; nothing is offered in a class of fewer than four documents. */
KVT_NODISCARD kvt_status promise_try_documents(const promise_rows *rows, promise_trial *trials,
                                               uint32_t count);

#endif
