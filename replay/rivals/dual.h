/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dual.h - the bound on what any placement of an engine's entries is worth, for the simulator and
 * the benches. No decision depends on it.
 *
 * Thread rule: the caller's lock, as in policy.h.
 */
#ifndef REPLAY_DUAL_H
#define REPLAY_DUAL_H

#include "kvterrace/policy.h"

/*
 * How far the engine's state is from the best possible one with the same predicted rates, over all
 * entries that it knows: stored, in flight and remembered. Utilities are in seconds saved per
 * second against storing nothing, which is worth 0; a gap is a distance over what is at stake, the
 * dual less that 0. Each gap is named by what it bounds:
 *
 *     solver      the dual against the best placement of this instance that was found: what the
 *                 search may have left the bound too high by
 *     counters    the dual against the engine's own state, at the rates that its counters predict
 *     foresight   the same at the rates that really come, which no engine knows: replay and bench
 *                 report it, this call does not
 */
typedef struct dual_bound {
    double primal;                /* utility of what is stored now */
    double dual;                  /* at least the utility of any placement of the known entries */
    double gap_counters;          /* (dual - primal) / dual; 0 when nothing is worth storing */
    double price[KVT_TIER_COUNT]; /* the dual's prices, s/s per byte */
    uint64_t entries;             /* known ones, all counted in dual */
    uint32_t passes;              /* over all entries, those that skip what is decided too */
    double placed;                /* utility of the best placement found, at least primal */
    double gap_solver;            /* (dual - placed) / dual; 0 when nothing is worth storing */
    uint64_t remembered;          /* of the entries: not stored, only remembered */
} dual_bound;

/*
 * Solves the Lagrangian dual of the present instance. start has the prices of an earlier bound of
 * the same engine, from which the search starts; NULL without one. A background step: some hundreds
 * of passes over a sample of 4,000 entries (all of them below 8,192), six over one of 65,000, and
 * over all three passes beside some that look only at the entries which are still open.
 * The dual is rounded up and counts every option that the tenants' limits allow, reachable or not,
 * and what is stored now. Bytes of tiers are the only rows; tree and shares of tenants are left
 * out, so the bound holds with them. A remembered entry counts with its ladder's options; of
 * options of its own it keeps up to six points that promise at least as much, from the time when
 * it left. An entry that is forgotten (ghosts_max) is not known.
 * KVT_OK; KVT_E_UNSUPPORTED (the policy counts no uses); KVT_E_MEMORY.
 *
 * The engine's clock moves to now_ns; entries and plans do not change.
 */
KVT_NODISCARD kvt_status dual_solve(kvt_policy *policy, uint64_t now_ns, const double *start,
                                    dual_bound *bound_out);

#endif
