/* SPDX-License-Identifier: Apache-2.0 */
/*
 * steady_costs.h - stores that decide by written figures: the speeds of devices and codecs, the
 * seconds that a store learns from and the clock of its policy are the same on every machine and
 * under every load, so a test may count what the policy chose.
 *
 * The program's line in cmake/tests.cmake wraps KVT_WRAPPED_STEADY. Only one source file of a
 * program includes this header.
 */
#ifndef TESTS_STEADY_COSTS_H
#define TESTS_STEADY_COSTS_H

#include "store/core/store.h"
#include "store/learn/costs.h"
#include "store/learn/uses.h"

#include <stdatomic.h>

#define STEADY_RAW_BYTES_PER_S    1e10
#define STEADY_ENCODE_BYTES_PER_S 5e8
#define STEADY_DECODE_BYTES_PER_S 1e9
#define STEADY_STEP_NS            UINT64_C(100000) /* between two readings of the clock */

extern __typeof__(costs_probe_device) __wrap_costs_probe_device;
extern __typeof__(costs_measure_variant) __real_costs_measure_variant, __wrap_costs_measure_variant;
extern __typeof__(learn_open) __real_learn_open, __wrap_learn_open;
extern __typeof__(store_now_ns) __wrap_store_now_ns;

static inline kvt_affine steady_device(bool durable)
{
    return (kvt_affine){.request_seconds = durable ? 1e-4 : 1e-6,
                        .bytes_per_s = durable ? 1e9 : 1e10};
}

kvt_status __wrap_costs_probe_device(kvt_device *device, bool blank, uint64_t head_bytes,
                                     cost_device *out)
{
    (void)blank;
    (void)head_bytes;
    const kvt_affine figures = steady_device((device->facts.flags & KVT_DEVICE_DURABLE) != 0);
    *out = (cost_device){.read = figures, .write = figures, .probed = true};
    return KVT_OK;
}

/* The share is that of the real sample, which is the same everywhere. */
kvt_status __wrap_costs_measure_variant(const cost_profile *profile, kvt_variant variant,
                                        kvt_codec_curve *out)
{
    const bool raw = variant.codec == KVT_CODEC_RAW;
    const kvt_status status = __real_costs_measure_variant(profile, variant, out);
    out->encode_bytes_per_s = raw ? STEADY_RAW_BYTES_PER_S : STEADY_ENCODE_BYTES_PER_S;
    out->decode_bytes_per_s = raw ? STEADY_RAW_BYTES_PER_S : STEADY_DECODE_BYTES_PER_S;
    return status;
}

uint64_t __wrap_store_now_ns(const kvt_store *store)
{
    static _Atomic uint64_t now_ns = STORE_PAST_NS; /* as a store's own clock begins */
    (void)store;
    return atomic_fetch_add(&now_ns, STEADY_STEP_NS) + STEADY_STEP_NS;
}

/* Seconds by the figures of memory, whatever was measured. */
static inline double steady_seconds(void *context, learn_timing what, double bytes,
                                    double measured_seconds)
{
    const kvt_affine memory = steady_device(false);
    const double transfer = memory.request_seconds + bytes / memory.bytes_per_s;
    (void)context;
    (void)measured_seconds;
    switch (what) {
    case LEARN_TIME_READ:
    case LEARN_TIME_WRITE: return transfer;
    case LEARN_TIME_DECODE: return bytes / STEADY_DECODE_BYTES_PER_S;
    case LEARN_TIME_ENCODE: return bytes / STEADY_ENCODE_BYTES_PER_S;
    case LEARN_TIME_GET:
    case LEARN_TIME_REMOTE: break;
    }
    return transfer + bytes / STEADY_DECODE_BYTES_PER_S;
}

kvt_status __wrap_learn_open(kvt_store *store)
{
    const kvt_status status = __real_learn_open(store);
    if (status == KVT_OK) store->learn->clock = steady_seconds;
    return status;
}

#endif
