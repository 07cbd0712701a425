/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan.h - the check of a plan as data, for debug builds and tests. It needs no engine.
 *
 * A plan that passes may still be a bad one, and the entries may be elsewhere by the time it is
 * obeyed: both are beyond this check.
 *
 * Thread rule: pure.
 */
#ifndef KVT_POLICY_PLAN_H
#define KVT_POLICY_PLAN_H

#include "kvterrace/policy.h"

/*
 * Checks a plan without its engine: kinds and options agree, every handle at most once, ids ascend,
 * and carried out in order from `used` no tier passes its capacity. message names the first fault.
 * KVT_OK, or KVT_E_STATE. Debug builds run it on every plan the engine makes.
 */
KVT_NODISCARD kvt_status plan_check(const kvt_plan *plan, const uint64_t used[KVT_TIER_COUNT],
                                    const uint64_t capacity[KVT_TIER_COUNT], char *message,
                                    size_t message_size);

#endif
