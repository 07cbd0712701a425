/* SPDX-License-Identifier: Apache-2.0 */
/*
 * private.h - what the laboratory sees of the library beside its public headers. No other file of
 * lab/ includes a header of the library's rooms (tests/lint.py).
 */
#ifndef LAB_PRIVATE_H
#define LAB_PRIVATE_H

/* Clocks, threads and orders, the same as the library's, so that both sides of a ratio are read
 * alike; configured devices. */
#include "base/clock.h"
#include "base/config_values.h"
#include "base/half.h"
#include "base/order.h"
#include "base/ring_words.h"
#include "base/thread.h"
#include "base/wait.h"

/* Speeds of codecs by instruction set, on generated KV and under bases that are made for a run. */
#include "basis/basis_file.h"
#include "codecs/codecs.h"
#include "codecs/drop.h"
#include "codecs/kernels/cpu.h"
#include "codecs/kernels/kernel_table.h"
#include "codecs/kernels/transform_kernels.h"
#include "codecs/kv_sample.h"
#include "codecs/record.h"
#include "codecs/record_jobs.h"
#include "codecs/transform.h"
#include "codecs/transform_image.h"
#include "estimator/measure/measure.h"

/* Profiles and cost models that a case makes for its own store or policy. */
#include "estimator/predict/predict.h"
#include "estimator/profile/profile.h"
#include "estimator/profile/profile_internal.h"
#include "estimator/profile/profile_quality.h"

/* A GPU below a store: jobs of its kernels, its streams, and the calls of the driver. */
#include "gpu/gpu_site_internal.h"

/* The engine beside its bound, at half-lives that no store sets. */
#include "policy/trial.h"
#include "sparse/decide/knapsack.h"

/* Sparse decode taken apart: index, choice, attention, and reads of pages; pools of a store, whose
 * striping a case sets. */
#include "sparse/attend.h"
#include "sparse/choose.h"
#include "sparse/paging.h"
#include "sparse/sequence.h"
#include "sparse/singles.h"
#include "sparse/sparse_kernels.h"
#include "store/core/store.h"
#include "store/lend/scratch.h"

/* Pools over drives, below a store. */
#include "tiers/devices/device_layer.h"
#include "tiers/devices/device_ops.h"
#include "tiers/pool/gather.h"
#include "tiers/pool/pool.h"
#include "tiers/pool/slack_log.h"
#include "tiers/pool/stripe.h"
#include "tiers/seal/seal.h"
#include "tiers/seal/seal_device.h"

/* One step of splitmix64, as base/number/number.h has it. */
static inline uint64_t lab_mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return x ^ x >> 31;
}

#endif
