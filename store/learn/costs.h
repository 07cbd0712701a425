/* SPDX-License-Identifier: Apache-2.0 */
/*
 * costs.h - what devices and codecs cost, when a store opens (costs.c).
 *
 * Thread rule: any thread.
 */
#ifndef STORE_COSTS_H
#define STORE_COSTS_H

#include "store/core/store.h"

/* Measurements of one device. */
typedef struct cost_device {
    kvt_affine read;
    kvt_affine write;
    double mix_kept;    /* of the profile (kvt_profile_mix_kept); 0 = not measured */
    uint64_t begins_at; /* of the profile (kvt_profile_begins_at); 0 = not measured */
    bool probed;
} cost_device;

/* Where figures come from. foreign: those of other hardware, and imported ones, count as well. */
typedef struct cost_profile {
    kvt_profile *profile; /* NULL: none */
    bool foreign;
    char *message; /* one line on KVT_E_MISMATCH */
    size_t message_size;
    kvt_record_bases bases; /* that measured variants may need */
} cost_profile;

/* The profile's figures of a device's name, as a store takes them: imported ones with `foreign`
 * alone. KVT_OK; KVT_MISS, also without a profile; what kvt_profile_device gives. */
KVT_NODISCARD kvt_status costs_profiled_curve(kvt_profile *profile, bool foreign, const char *name,
                                              kvt_device_curve *out);

/* From the profile: KVT_OK; KVT_MISS (no profile, or it has none of this device that counts);
 * KVT_E_MISMATCH (its figures by that name are of other hardware); KVT_E_DATABASE. */
KVT_NODISCARD kvt_status costs_profiled_device(const cost_profile *profile,
                                               const kvt_device *device, cost_device *out);

/* Takes the profile's figures of a GPU, its link and its kernels' speeds, into a model whose
 * variants are known. What the profile has none of stays 0. KVT_OK; KVT_E_DATABASE. */
KVT_NODISCARD kvt_status learn_profiled_gpu(const cost_profile *profile, kvt_cost_model *costs);

/* By a brief probe of the open device. blank: its content may be overwritten. */
KVT_NODISCARD kvt_status costs_probe_device(kvt_device *device, bool blank, uint64_t head_bytes,
                                            cost_device *out);

/* Folds a tier's devices into one affine model: requests go to all at once. */
kvt_affine costs_combine(const cost_device *devices, uint32_t count, kvt_io_kind kind);

/* Ratio and speed of a variant, from the profile or by encoding a sample. */
KVT_NODISCARD kvt_status costs_measure_variant(const cost_profile *profile, kvt_variant variant,
                                               kvt_codec_curve *out);

#endif
