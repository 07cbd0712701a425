/* SPDX-License-Identifier: Apache-2.0 */
/*
 * units.h - numbers that all files of the engine share: tiers, limits, half-lives.
 */
#ifndef POLICY_UNITS_H
#define POLICY_UNITS_H

#include "kvterrace/policy.h"

/* The tiers that hold bytes. Entries and options are stored by the million, and arrays that begin
 * with the tier NONE would cost each of them eight bytes that are always 0. */
#define TIERS                3
#define NIL                  UINT32_MAX
#define CAPACITY_LIMIT       (UINT64_C(1) << 61) /* twice this fits a signed number, see ledger.c */
#define UNLIMITED            1e300
#define SECONDS_LIMIT        1e12 /* keeps every product of costs and rates finite */
#define ALPHA_PREFILLS_LIMIT 1e9

#define HALF_LIVES    KVT_REUSE_HALF_LIVES /* half-lives that are counted side by side */
#define ORDER_SECONDS 60.0                 /* unit of the victims' order */

#endif
