/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_parts.c - repetitions, drives, buffers and transfers that cases share.
 *
 * Thread rule: one bench at a time.
 */
#include "bench_parts.h"

#include "lab/private.h"

#include <stdlib.h>
#include <sys/resource.h>

uint32_t bench_repetitions(uint32_t wanted, uint32_t usual, bool quick)
{
    if (wanted > BENCH_ITERATIONS_MAX) return BENCH_ITERATIONS_MAX;
    if (wanted > 0) return wanted;
    return quick ? 1 : usual;
}

kvt_status bench_take_drives(bench_options *options, uint64_t capacity_bytes, uint64_t latency_ns,
                             kvt_device_config own[BENCH_OWN_DRIVES], bench_report *report)
{
    static const char *const names[BENCH_OWN_DRIVES] = {"memory0", "memory1", "memory2", "memory3"};
    static const uint64_t rates[BENCH_OWN_DRIVES] = {100000000, 100000000, 200000000, 400000000};
    for (uint32_t i = 0; options->overwrite != NULL && i < options->device_count; i++)
        if (!options->overwrite[i])
            return bench_blame(report, KVT_E_MISMATCH, options->devices[i].name,
                               "the drive may hold data; set store.format=yes to overwrite it");
    if (options->device_count != 0) return KVT_OK;
    for (int i = 0; i < BENCH_OWN_DRIVES; i++)
        own[i] = (kvt_device_config){.struct_size = sizeof own[i],
                                     .name = names[i],
                                     .backend = "memory",
                                     .capacity_bytes = capacity_bytes,
                                     .emulated = true,
                                     .read_bytes_per_s = rates[i],
                                     .write_bytes_per_s = rates[i],
                                     .latency_ns = latency_ns};
    options->devices = own;
    options->device_count = BENCH_OWN_DRIVES;
    options->overwrite = NULL;
    return KVT_OK;
}

double bench_process_seconds(void)
{
    struct rusage usage;
    (void)getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

void *bench_buffer(uint64_t bytes)
{
    uint64_t *words = aligned_alloc(TIERS_GRAIN_BYTES, bytes);
    if (words == NULL) return NULL;
    for (uint64_t i = 0; i < bytes / 8; i++)
        words[i] = i * 0x9e3779b97f4a7c15u;
    return words;
}

kvt_status bench_move(tiers_pool *pool, kvt_io_kind kind, const tiers_location *location,
                      void *buffer, double *bytes_per_s, double *spread_out)
{
    tiers_transfer transfer = {
        .kind = kind, .location = location, .buffer = buffer, .bytes = location->bytes};
    tiers_transfer_start(pool, &transfer);
    kvt_status status = tiers_transfer_wait(pool, &transfer);
    *bytes_per_s = bench_bytes_per_s(location->bytes, transfer.finished_ns - transfer.started_ns);
    if (spread_out != NULL) {
        uint64_t first_ns = transfer.member_finished_ns_first - transfer.started_ns;
        uint64_t last_ns = transfer.finished_ns - transfer.started_ns;
        *spread_out = first_ns > 0 ? (double)(last_ns - first_ns) / (double)first_ns : 0;
    }
    return status;
}
