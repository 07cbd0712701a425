/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_restart.h - what the parts of the restart bench share: a store on four members, entries
 * with known bytes, results.
 *
 * Thread rule: one bench at a time.
 */
#ifndef BENCH_BENCH_RESTART_H
#define BENCH_BENCH_RESTART_H

#include "bench.h"
#include "bench_parts.h"

#include <kvterrace/kvterrace.h>

enum { RESTART_MEMBERS = 4, RESTART_ENTRY_BYTES = 8192 };

/* How a store behaves beside the others of its kind. */
typedef struct restart_behaviour {
    const char *name;
    bool copies;
    double close_deadline_seconds;
    uint64_t persist_bytes_per_s;
} restart_behaviour;

/* Four members in a folder of their own. hollow: they keep their labels and drop all else, so that
 * many records need no room; such entries cannot be read. */
typedef struct restart_site {
    char folder[160];
    char catalog[192];
    char paths[RESTART_MEMBERS][192];
    char names[RESTART_MEMBERS][8];
    kvt_device_config members[RESTART_MEMBERS];
    bool hollow;
    kvt_store_options options;
} restart_site;

/* Makes the folder, which bench_scratch_remove removes. Not 0: it cannot be made. */
int restart_site_make(restart_site *site, const bench_options *bench, bool hollow);

/* Options for a store of so many bytes on SSD and in memory. */
void restart_site_size(restart_site *site, const restart_behaviour *behaviour, uint64_t ssd_bytes,
                       uint64_t dram_bytes);

kvt_store *restart_site_open(restart_site *site);

kvt_status restart_put(kvt_store *store, uint32_t number);

/* KVT_E_CORRUPT: other bytes than were put. */
kvt_status restart_get(kvt_store *store, uint32_t number);
kvt_status restart_exists(kvt_store *store, uint32_t number);

/* Bytes on record that an entry takes. 0: it cannot be told. */
uint64_t restart_record_bytes(void);

/* One life and the reopening after it. */
typedef struct restart_row {
    uint32_t entries;
    const char *behaviour;
    bool killed;
    bool hollow;
    double put_seconds, close_seconds;
    double reopen_seconds, reopen_cpu_seconds;
    uint64_t stored, stored_bytes; /* when the life ended */
    uint64_t fit_bytes;            /* of them, what the SSD tier may hold */
    uint64_t back, back_bytes;
    uint64_t checked, wrong;
} restart_row;

/* Gets while the background writes back at a rate, and without. */
typedef struct restart_gets {
    uint64_t persist_bytes_per_s;
    uint64_t gets;
    double p50_seconds, p99_seconds; /* medians of the repetitions */
    double p99_min_seconds, p99_max_seconds;
    double written_bytes_per_s; /* by the write-back */
} restart_gets;

enum { RESTART_RATES = 3 };

int bench_restart_gets(const bench_options *options, restart_gets rows[RESTART_RATES]);

#endif
