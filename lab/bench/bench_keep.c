/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_keep.c - what it costs to keep KV for long: encryption, and opens.
 *
 * Thread rule: one case at a time.
 */
#include "bench_keep.h"

static kvt_status keep_run(const bench_options *options, bench_report *report)
{
    bench_options seal = *options;
    seal.iterations = 0; /* the number of entries */
    const kvt_status status = bench_keep_seal(&seal, report);
    return status == KVT_OK ? bench_keep_reopen(options, report) : status;
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
            {"reopen", "early entries known open_seconds first_hit_seconds known_seconds "
                       "processor_seconds wrong"},
            {"", "wrong"},
            {0}},
    .run = keep_run,
};
