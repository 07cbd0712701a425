/* SPDX-License-Identifier: Apache-2.0 */
/*
 * options.h - what a store makes of its options, for the simulator and for reports too.
 *
 * Pure; any thread.
 */
#ifndef STORE_OPTIONS_H
#define STORE_OPTIONS_H

#include <kvterrace/kvterrace.h>

/* "proportional", "equal" or "round_robin": as settings and reports name it. Static storage. */
const char *kvt_striping_name(kvt_striping striping);

/*
 * The bytes of puts that a store stages which has these capacities (by kvt_tier; 0 = no such tier):
 * as asked, or with KVT_PUT_STAGING_AUTO a 32nd of DRAM between 256 MiB and 8 GiB; in either case
 * no more than an eighth of the smallest tier.
 */
uint64_t kvt_put_staging_limit(uint64_t asked_bytes, const uint64_t capacity_bytes[KVT_TIER_COUNT]);

#endif
