/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_keep_site.h - a store on drives whose bytes a case can damage and whose answers it can
 * delay, entries whose bytes follow from their numbers, and threads that get them meanwhile.
 *
 * Thread rule: one site at a time; its readers are threads of their own.
 */
#ifndef BENCH_BENCH_KEEP_SITE_H
#define BENCH_BENCH_KEEP_SITE_H

#include "bench_keep.h"
#include "bench_parts.h"

#include "lab/private.h"

#include <pthread.h>
#include <stdatomic.h>

enum { KEEP_READERS_MAX = 8 };

/* A drive: memory that takes each operation at once and answers it delay_ns later, below the
 * store's own throttle. */
typedef struct keep_drive {
    tiers_layer layer;
    _Atomic uint64_t delay_ns;
    _Atomic uint64_t bytes[2]; /* taken, by kvt_io_kind */
    kvt_io *held;              /* the worker's */
} keep_drive;

typedef struct keep_site keep_site;

/* A get: when it was due, and what it took from then on. */
typedef struct keep_sample {
    uint64_t due_ns, elapsed_ns;
} keep_sample;

/* One thread that gets. */
typedef struct keep_reader {
    keep_site *site;
    pthread_t thread;
    void *buffer;
    keep_sample *samples;
    uint32_t count;
    uint64_t random;
    uint64_t wrong, missed, timed_out, late;
    bool runs;
} keep_reader;

struct keep_site {
    kvt_store_options options;
    kvt_device_config configs[BENCH_OWN_DRIVES];
    keep_drive *drives[BENCH_OWN_DRIVES]; /* open as long as the store */
    kvt_store *store;
    uint64_t entry_bytes;
    char message[BENCH_MESSAGE_BYTES];

    /* The readers' work, each: gets of entries from `first` on, `span` of them, at random, so
     * many a second in the mean, each within wait_ns (0: any time). */
    _Atomic uint32_t first;
    uint32_t span;
    double gets_per_s;
    uint64_t wait_ns;
    _Atomic uint64_t bytes_got[BENCH_OWN_DRIVES]; /* by these gets, of each drive; if `counted` */
    bool counted;
    atomic_bool stops;
    keep_reader readers[KEEP_READERS_MAX];
    uint32_t reader_count;
};

/* Opens a store on four drives, each with its eighths (1, 1, 2, 4) of the bytes and of what all
 * read a second, by the site's options; entry_bytes is set. As kvt_store_open. */
KVT_NODISCARD kvt_status keep_site_open(keep_site *site, uint64_t bytes, uint64_t bytes_per_s,
                                        uint32_t unit_bytes);
void keep_site_close(keep_site *site);

/* Puts one entry; waits while the store is busy. */
KVT_NODISCARD kvt_status keep_put(keep_site *site, void *buffer, uint32_t number);

/* Gets one entry. KVT_E_CORRUPT: it has other bytes than were put. Else as kvt_store_get. */
KVT_NODISCARD kvt_status keep_get(keep_site *site, void *buffer, uint32_t number,
                                  uint64_t deadline_ns, kvt_get_info *info);

/* Where the record of an entry lies, as long as nothing moves it; NULL: it is not on SSD. */
const tiers_location *keep_location(keep_site *site, uint32_t number);

/* Sleeps until the next of events that come at random, so many a second in the mean, and returns
 * when it is due, which the sleep may pass. */
uint64_t keep_pace(uint64_t due_ns, double per_s, uint64_t *random);

/* Starts so many readers, and ends them. Their counts stay until the next start. */
KVT_NODISCARD kvt_status keep_read(keep_site *site, uint32_t readers);
void keep_read_end(keep_site *site);
void keep_read_free(keep_site *site);

/* The seconds below which so large a share of the gets ended that were due between two instants; 0:
 * there were none. Behind keep_read_end. */
double keep_quantile(const keep_site *site, uint64_t from_ns, uint64_t to_ns, double share);

#endif
