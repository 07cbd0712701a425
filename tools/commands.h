/* SPDX-License-Identifier: Apache-2.0 */
/*
 * commands.h - the tables of all commands, each declared in the file that is named after it.
 * Constant data.
 */
#ifndef TOOLS_COMMANDS_H
#define TOOLS_COMMANDS_H

#include "command.h"

extern const command_spec bench_spec, check_config_spec, decode_spec, encode_spec, inspect_spec,
    profile_spec, recover_spec, replay_spec, report_spec, settings_spec, verify_spec;

/* Of profile. */
extern const command_spec profile_attention_spec, profile_calibrate_spec, profile_diff_spec,
    profile_dumps_spec, profile_export_spec, profile_gc_spec, profile_import_spec,
    profile_mixed_spec, profile_quality_spec, profile_show_spec;

/* Of bench. */
extern const command_spec bench_ablation_spec, bench_adaptcache_spec, bench_codecs_spec,
    bench_devices_spec, bench_drift_spec, bench_extent_spec, bench_grid_spec, bench_live_spec,
    bench_loads_spec, bench_policy_spec, bench_restart_spec, bench_stripe_spec;

#endif
