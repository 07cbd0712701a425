/* SPDX-License-Identifier: Apache-2.0 */
/*
 * room.h - makes room in a tier by the policy's steps, lowest tier first. Thread rule: the caller's
 * lock.
 */
#ifndef POLICY_ROOM_H
#define POLICY_ROOM_H

#include "policy/engine.h"

/* True when room[tier] >= need. Complete steps stay in the plan when it fails. The caller
 * cuts the plan back when half of the room is no use to it. */
bool room_make(kvt_policy *policy, tentative_plan *work, int tier, int64_t need);
/* The same in every tier of an option, from the top: room below may be used up from above. */
bool room_make_for(kvt_policy *policy, tentative_plan *work, uint32_t index, uint8_t option);

#endif
