/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tentative.h - a tentative plan: moves are reserved as they are added, or taken back. Thread rule:
 * the caller's lock.
 */
#ifndef POLICY_TENTATIVE_H
#define POLICY_TENTATIVE_H

#include "policy/units.h"

#include <stdbool.h>

/* Bounds on the work of one decision. A plan gives up after so many skipped victims or refused
 * steps, so that one among millions of entries takes microseconds; ticks do what is left. */
#define TENTATIVE_SKIPS    32u
#define TENTATIVE_SORTS    4u /* a decision waits for no more of each kind; ticks do the rest */
#define TENTATIVE_REFUSALS 4u /* victims come in order: when so many cost too much, others do too */

/* A plan being built. room is capacity minus all bytes held, counting this plan's own releases in
 * order; it may be negative while other plans are in flight. At any moment room[tier] = capacity -
 * used at the start - what the plan's moves write there + what they will release there. A plan that
 * is cut back to no moves has room, ids, bytes and index as at its begin. */
typedef struct tentative_plan {
    /* The caller's plan, its bounds, and what is left of them. */
    kvt_plan *plan;
    uint32_t limit;      /* moves */
    uint64_t bytes_left; /* that may still be written */
    int64_t room[TIERS];
    bool bounded; /* the length or the bytes of the plan ran out */
    /* A move whose cost would pass the budget is refused and counted in refusals; the plan goes on
     * with others until there are too many. */
    double spent;       /* utility lost by the steps so far, s/s */
    double budget;      /* and what they may lose at most */
    uint32_t refusals;  /* steps that would have lost more */
    uint32_t sweeps;    /* victims that may still be sorted anew in turn, */
    uint32_t refreshes; /* and at the front: few in a decision, more in a tick */
    int own_group;      /* only victims of this group count, for its tenant's share; below 0: all */
    /* State at the begin: the check in debug builds starts from used_before, which has what is
     * withheld, too, and a plan that is taken back whole gives its ids back. */
    uint64_t used_before[KVT_TIER_COUNT];
    uint64_t next_id_before;
    /* Victims that no step could move; they are put back into the index at the end. */
    uint32_t skipped[TENTATIVE_SKIPS];
    uint32_t skipped_count;
} tentative_plan;

/* One way to give up bytes: an entry goes to option `to` and loses `cost` seconds per second. cost
 * is what the plan's budget is charged; room below is paid for by the steps that make it, so cost
 * leaves it out. */
typedef struct step {
    uint32_t entry;
    uint8_t to;
    double cost;
    double gain; /* U(to) - U(from), for the plan log */
} step;

/*
 * begin, then add and cut as often as wanted, then end, which makes the plan the caller's. exclude
 * and include bracket work during which an entry must not be a victim; skip does so until the end.
 * cut takes back all moves after the first `count` and restores what was spent.
 *
 * begin returns false, and nothing is to be ended, when no move could be made. add returns false
 * and changes nothing when the move passes a bound.
 */
bool tentative_begin(kvt_policy *policy, tentative_plan *work, kvt_plan *plan);
bool tentative_add(kvt_policy *policy, tentative_plan *work, const step *move);
void tentative_exclude(kvt_policy *policy, uint32_t index);
void tentative_include(kvt_policy *policy, uint32_t index);
void tentative_skip(kvt_policy *policy, tentative_plan *work, uint32_t index);
void tentative_cut(kvt_policy *policy, tentative_plan *work, uint32_t count, double spent);
void tentative_end(kvt_policy *policy, tentative_plan *work);
/* fits: room in every tier and in the tenant's share, as the plan stands now. fits_share: the share
 * alone. */
bool tentative_fits(const kvt_policy *policy, const tentative_plan *work, uint32_t index,
                    uint8_t option);
bool tentative_fits_share(const kvt_policy *policy, uint32_t index, uint8_t option);

#endif
