/* SPDX-License-Identifier: Apache-2.0 */
/*
 * options.h - what a store makes of its options, for the simulator and for reports too.
 *
 * Any thread; what takes a profile, one at a time per profile.
 */
#ifndef STORE_OPTIONS_H
#define STORE_OPTIONS_H

#include "estimator/predict/predict.h"

#include <kvterrace/kvterrace.h>

/* False when an option is out of its setting's range, which the message names with it. */
bool store_options_hold(const kvt_store_options *options, char *message, size_t message_size);

/* The part of the policy's configuration that needs no device. */
void store_options_policy(const kvt_store_options *options, kvt_policy_config *config);

/* The policy's own checks of it, on a tier of one page; what kvt_policy_open gives. */
KVT_NODISCARD kvt_status store_options_try_policy(const kvt_store_options *options, char *message,
                                                  size_t message_size);

/*
 * The bytes of puts that a store stages which has these capacities (by kvt_tier; 0 = no such tier):
 * as asked, or with KVT_PUT_STAGING_AUTO a 32nd of DRAM between 256 MiB and 8 GiB; in either case
 * no more than an eighth of the smallest tier.
 */
uint64_t kvt_put_staging_limit(uint64_t asked_bytes, const uint64_t capacity_bytes[KVT_TIER_COUNT]);

/* The bytes of a device that hold records: all but its label's. False when only opening the device
 * would tell. Looks a file up, and opens nothing but a block device's size. */
bool kvt_device_room(const kvt_device_config *device, uint64_t *bytes_out);

/* The bytes of a tier that the policy of a store with these options would count on; 0: there is no
 * such tier. KVT_OK; KVT_E_CONFIG, with a message that names the device or tier. */
KVT_NODISCARD kvt_status kvt_tier_room(const kvt_tier_options *options, int tier,
                                       uint64_t *bytes_out, char *message, size_t message_size);

/* Refuses a tier that an open would find too small: for a stripe unit on each of its devices, or
 * for the largest of its slots. KVT_OK; KVT_E_CONFIG, with a message; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status kvt_tier_check(const kvt_store_options *options, int tier, char *message,
                                        size_t message_size);

/*
 * The variants that a store with these options would offer, in its order, with the figures that it
 * would decide with: from the profile, or measured here where the profile has none. *whole_out:
 * how many of them, from the first on, keep all tokens. Returns what kvt_store_open returns for a
 * ladder.
 */
KVT_NODISCARD kvt_status kvt_store_variants(const kvt_store_options *options, kvt_profile *profile,
                                            kvt_cost_model *model, uint32_t *whole_out,
                                            char *message, size_t message_size);

#endif
