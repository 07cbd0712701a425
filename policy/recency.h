/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recency.h - what policies that keep an order of last uses and one variant share. Thread rule: the
 * caller's lock.
 */
#ifndef POLICY_RECENCY_H
#define POLICY_RECENCY_H

#include "policy/engine.h"

/* Members of policy_ops that several rivals share. option_at finds the configured variant in one
 * tier, step_down the move of a victim to the next tier that takes it. */
void lru_remove(kvt_policy *policy, uint32_t index);
void lru_index(kvt_policy *policy, uint32_t index);
void lru_touch(kvt_policy *policy, uint32_t index);
bool lru_choose(kvt_policy *policy, tentative_plan *work, int tier, step *out);
uint8_t lru_option_at(const kvt_policy *policy, const entry *e, int tier);
step lru_step_down(const kvt_policy *policy, uint32_t index, int tier);
bool lru_fallback(kvt_policy *policy, const tentative_plan *work, uint32_t index, int tier,
                  step *out);
bool lru_place(kvt_policy *policy, tentative_plan *work, uint32_t index);
void lru_improve(kvt_policy *policy, uint32_t index, kvt_plan *plan);
void lru_promote(kvt_policy *policy, uint32_t index, int top, kvt_plan *plan);
void none_tick(kvt_policy *policy, tentative_plan *work);

extern const policy_ops policy_none_ops;
extern const policy_ops policy_lru_ops;

#endif
