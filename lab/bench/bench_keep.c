/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_keep.c - what it costs to keep KV for long: encryption, opens, the scrub, slow drives.
 *
 * Thread rule: one case at a time.
 */
#include "bench_keep.h"

static kvt_status keep_run(const bench_options *options, bench_report *report)
{
    const unsigned part = options->part;
    bench_options seal = *options;
    seal.iterations = 0; /* the number of entries */
    kvt_status status = KVT_OK;
    if (part == BENCH_KEEP_ALL || part == BENCH_KEEP_SEAL) status = bench_keep_seal(&seal, report);
    if (status == KVT_OK && (part == BENCH_KEEP_ALL || part == BENCH_KEEP_REOPEN))
        status = bench_keep_reopen(options, report);
    if (status == KVT_OK && (part == BENCH_KEEP_ALL || part == BENCH_KEEP_SCRUB))
        status = bench_keep_scrub(options, report);
    if (status == KVT_OK && (part == BENCH_KEEP_ALL || part == BENCH_KEEP_SLOW))
        status = bench_keep_slow(options, report);
    return status;
}

const bench_case bench_keep_case = {
    .name = "keep",
    .schema = "kvterrace-bench-keep-1",
    .tables =
        (const document_table[]){
            {"seal_cores", "unit_bytes encrypt_bytes_per_s "
                           "decrypt_bytes_per_s memcpy_bytes_per_s"},
            {"seal_drives", "drives encrypted object_bytes "
                            "read_bytes_per_s write_bytes_per_s "
                            "read_ratio write_ratio cpu_s_per_gb"},
            {"reopen", "early churned entries known open_seconds first_hit_seconds known_seconds "
                       "processor_seconds wrong"},
            {"scrub", "planted found left found_seconds period_seconds pairs p50_ratio p99_ratio "
                      "p99_ratio_asked p99_without_seconds p99_with_seconds"},
            {"scrub_drives", "drive bytes_per_s faults share share_most share_asked"},
            {"slow", "delay_ms kind share_before gone_seconds gone_seconds_asked back_seconds "
                     "back_seconds_asked others_bytes_per_s others_first_second others_then "
                     "others_asked"},
            {"slow_gets", "delay_ms weight_gone_seconds p99_before_seconds p99_first_second "
                          "p99_then_seconds p50_then_seconds p99_back_seconds p99_end_seconds"},
            {"keep_faults", "part delay_ms gets wrong lost timed_out late"},
            {"", "wrong"},
            {0}},
    .run = keep_run,
};
