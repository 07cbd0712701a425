/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verify.h - reads every record that a catalog lists from its devices and checks it.
 *
 * Writes nothing: no label, no row, no record. The store of that catalog must be closed, because
 * its devices are locked. One thread calls; the pool's workers read.
 */
#ifndef BENCH_VERIFY_H
#define BENCH_VERIFY_H

#include <kvterrace/kvterrace.h>

typedef struct verify_counts {
    uint64_t entries;
    uint64_t sound;
    uint64_t faulty;
    uint64_t bytes_read;
    uint32_t devices; /* that the catalog lists */
    uint32_t devices_faulty;
} verify_counts;

typedef struct verify_observer {
    void *context;
    /* A device or an entry that fails; key is NULL for a device. */
    void (*fault)(void *context, const char *device, const kvt_key *key, const char *reason);
    /* Now and then; returning false stops (KVT_E_CANCELLED). May be NULL. */
    bool (*progress)(void *context, uint64_t done, uint64_t total);
} verify_observer;

/*
 * Checks the catalog of `options` against its SSD devices. Faults are reported and counted, and do
 * not end the walk. KVT_OK when everything could be looked at, whatever was found; KVT_E_CONFIG (no
 * catalog, no SSD devices); KVT_E_GONE (no such catalog); KVT_E_LOCKED; KVT_E_CORRUPT,
 * KVT_E_VERSION, KVT_E_MISMATCH, KVT_E_DATABASE (the catalog); KVT_E_CANCELLED; KVT_E_MEMORY.
 */
KVT_NODISCARD kvt_status verify_store(const kvt_store_options *options,
                                      const verify_observer *observer, verify_counts *counts_out,
                                      char *message, size_t message_size);

#endif
