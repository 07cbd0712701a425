/* SPDX-License-Identifier: Apache-2.0 */
/*
 * windows.h - which pages of a unit stay in a tier between decode steps, and how large windows are.
 *
 * After a step its pages and those that were resident compete for the window's bytes: those with
 * the highest standing stay, and of equals the lower page. A standing is the mean of the page's
 * expected weights per token, `decay` a step. A page's weight counts while it is not resident, too:
 * the index gives weights of all pages in every step for nothing.
 *
 * Pure: memory is the caller's. Thread rule: the caller's lock.
 */
#ifndef SPARSE_WINDOWS_H
#define SPARSE_WINDOWS_H

#include "sparse/decide/pages.h"

#include <stdbool.h>
#include <string.h>

#define WINDOWS_DECAY_DEFAULT 0.5f

/* One window of one unit. The arrays are the caller's, `pages` items each, zeroed at the start;
 * windows_step keeps them. */
typedef struct windows_unit windows_unit;

/* Another rule, of those to compare with (replay/rivals/window_rules.h): brings the standing of a
 * page that is resident or of the step up to date. */
typedef void windows_rate(windows_unit *unit, uint32_t page, float weight, bool used,
                          bool resident);

struct windows_unit {
    uint32_t pages;
    uint32_t page_tokens;     /* of a page without an own number */
    uint32_t last_tokens;     /* of the last page; 0: as the others */
    const uint16_t *tokens;   /* of each page, or NULL */
    const pages_terms *terms; /* bytes of a variant: token_bytes, of raw ones where rows stay */
    windows_rate *rate;       /* NULL: the decayed mean, of all pages */
    float decay;              /* the weight of the past, [0, 1) */
    uint64_t capacity_bytes;
    uint64_t used_bytes; /* never above the capacity between calls */
    uint32_t step;       /* steps so far */
    uint8_t *held;       /* pages_variant of each page, PAGES_ABSENT: not resident */
    float *standing;     /* of every page */
    uint64_t *order;     /* scratch */
};

static inline uint32_t windows_page_tokens(const windows_unit *unit, uint32_t page)
{
    if (unit->tokens != NULL) return unit->tokens[page];
    return page + 1 == unit->pages && unit->last_tokens > 0 ? unit->last_tokens : unit->page_tokens;
}

typedef struct windows_change {
    uint32_t kept;       /* pages that are resident now */
    uint32_t left;       /* that were resident and are not any more */
    uint32_t turned;     /* that were read and found no place */
    uint64_t hit_bytes;  /* of what the step wanted: resident before it, */
    uint64_t read_bytes; /* and not */
} windows_change;

/*
 * Ends a step.
 *   weight    expected weight of each page in this step
 *   wanted    variant of each that the plan chose, at least what is held; PAGES_ABSENT: not used
 *   left_out  numbers of the pages that left, or NULL; room for `pages`
 */
void windows_step(windows_unit *unit, const float *weight, const uint8_t *wanted,
                  uint32_t *left_out, windows_change *change_out);

/* Number i of the pages that the last step kept, below change.kept, in no order. Until the next
 * call with the unit. */
static inline uint32_t windows_kept(const windows_unit *unit, uint32_t i)
{
    return (uint32_t)unit->order[i];
}

/* Changes the capacity; pages with the lowest standing leave at once. Returns how many. */
uint32_t windows_resize(windows_unit *unit, uint64_t capacity_bytes, uint32_t *left_out);

/* The pages that stand highest among those that are resident, as many as fit into so many bytes:
 * those for the faster of two tiers that a window lies in. pages_out has room for `pages`, and they
 * come in no order. Returns how many. */
uint32_t windows_head(windows_unit *unit, uint64_t bytes, uint32_t *pages_out);

/* Gain of a unit by its size: the curve of one unit at `sizes` sizes, ascending in bytes. */
typedef struct windows_curve {
    const uint64_t *bytes;
    const double *benefit; /* seconds of fetching saved per step, or error avoided; not negative */
} windows_curve;

/*
 * Sizes of all units that together take at most capacity_bytes: the multiple-choice knapsack.
 * choice_out[i] is a place in the curve of unit i, or UINT32_MAX: no window. memory: scratch of
 * windows_divide_memory(units, sizes) bytes, aligned to 8. Returns the benefit of the choice;
 * *bound_out, or NULL, what no choice passes.
 */
double windows_divide(const windows_curve *curves, uint32_t units, uint32_t sizes,
                      uint64_t capacity_bytes, uint32_t *choice_out, void *memory,
                      double *bound_out);
size_t windows_divide_memory(uint32_t units, uint32_t sizes);

#endif
