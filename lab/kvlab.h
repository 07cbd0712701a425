/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvlab.h - the cases of kvlab that stand outside of kvlab.c. One thread.
 */
#ifndef LAB_KVLAB_H
#define LAB_KVLAB_H

#include "tools/command/command.h"

extern const command_spec bench_decode_spec, bench_devices_spec, bench_live_spec,
    bench_pipeline_spec, bench_remote_spec, bench_restart_spec, bench_sequence_spec,
    bench_store_spec, bench_stripe_spec, bench_transform_spec;

#endif
