/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_live_site.h - the store that the live bench runs on.
 *
 * Thread rule: one bench at a time.
 */
#ifndef BENCH_BENCH_LIVE_SITE_H
#define BENCH_BENCH_LIVE_SITE_H

#include "bench_live.h"

#include <kvterrace/kvterrace.h>

#define SITE_DRAM_BYTES_PER_S 4e9
#define SITE_SLACK_BYTES      (UINT64_C(1) << 20)
#define SITE_PUT_STAGING      (UINT64_C(8) << 20)
#define SITE_STAGING_BYTES    (UINT64_C(16) << 20)

typedef struct live_site {
    kvt_device_config devices[KVT_TIER_COUNT];
    kvt_store_options store; /* points into the site */
} live_site;

/* Seconds of a call beside the transfer of its bytes, medians. */
typedef struct live_overheads {
    double get_s;
    double put_s; /* of the caller */
} live_overheads;

/* The site may not be moved afterwards. */
void live_site_make(const live_setting *setting, const replay_options *options, live_site *site);

/* Puts and gets entries of the options' size on memory of this speed. KVT_OK; kvt_open's, kvt_put's
 * and kvt_get's errors. */
KVT_NODISCARD kvt_status live_site_measure(double bytes_per_s, const replay_options *options,
                                           live_overheads *out, char *message, size_t message_size);

#endif
