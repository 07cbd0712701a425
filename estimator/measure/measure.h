/* SPDX-License-Identifier: Apache-2.0 */
/*
 * measure.h - measures devices and codecs into a profile.
 *
 * Thread rule: that of the profile.
 */
#ifndef ESTIMATOR_MEASURE_H
#define ESTIMATOR_MEASURE_H

#include "estimator/profile/profile.h"
#include "tiers/devices/device_ops.h"

/*
 * Measures one device and stores every point: direction x request size x depth, repetitions with
 * median and spread, and the fitted affine model. Overwrites the device's content when writing is
 * measured: pass write_offset and write_bytes of a range that may be overwritten (0 bytes = reads
 * only). KVT_OK; KVT_E_CANCELLED; KVT_E_IO and others of the device; KVT_E_DATABASE;
 * KVT_E_READ_ONLY (profile opened for reading, or writes on a device that refuses them);
 * KVT_E_ARGUMENT (tier, range or request); KVT_E_SPACE (range below one request); KVT_E_MEMORY.
 */
KVT_NODISCARD kvt_status kvt_profile_measure_device(kvt_profile *profile, kvt_device *device,
                                                    kvt_tier tier, uint64_t write_offset,
                                                    uint64_t write_bytes,
                                                    const kvt_profile_request *request);

/* Measures the default ladder and its neighbours on generated bf16 KV (lognormal channel sigma, 10
 * % biased channels; seeded) or on the caller's KV, and stores sizes and speeds: the best
 * instruction set on one thread and on the caller's, and unless quick the lesser ones on one
 * thread. A codec that does not take the KV's shape is left out. Variants of each basis of the
 * profile are measured at three steps (quick: one) on KV drawn from it, by lesser instruction sets
 * those of heads alone; a damaged basis is passed over. No other thread may use codecs meanwhile.
 * KVT_OK; KVT_E_CANCELLED; KVT_E_DATABASE; KVT_E_READ_ONLY; KVT_E_ARGUMENT;
 * KVT_E_MEMORY; KVT_E_CORRUPT (an exact codec lost a bit). */
KVT_NODISCARD kvt_status kvt_profile_measure_codecs(kvt_profile *profile,
                                                    const kvt_profile_request *request);

/* KV of the basis's model as the basis describes it: bf16 [kvt_layout_bytes of the layout], drawn
 * by seed, its first token at first_position. The layout has the basis's shape. KVT_OK or
 * KVT_E_MEMORY. */
KVT_NODISCARD kvt_status basis_sample_fill(const transform_basis *basis, const kvt_layout *layout,
                                           uint32_t first_position, uint64_t seed, void *target);

#endif
