/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_drift.h - what the parts of the drift bench share: a store on emulated drives, objects
 * with known bytes, results.
 *
 * Thread rule: one bench at a time; the objects' functions from any thread.
 */
#ifndef BENCH_BENCH_DRIFT_H
#define BENCH_BENCH_DRIFT_H

#include "bench.h"
#include "bench_parts.h"

#include <kvterrace/kvterrace.h>

enum { DRIFT_DRIVES_MAX = 16 };

typedef struct drift_site {
    const bench_options *options;
    kvt_store *store;
    uint32_t drive_count;
    double rates[DRIFT_DRIVES_MAX]; /* as they were told to be, bytes per second */
    char folder[96];
    char catalog[112];
} drift_site;

/* One object: its number is its key, its version what its bytes depend on besides. */
typedef struct drift_object {
    uint32_t number;
    uint32_t version;
    uint64_t bytes;
} drift_object;

/* A get and how it went. */
typedef struct drift_reading {
    kvt_status status; /* KVT_E_CORRUPT: other bytes than were put */
    double seconds;    /* of the whole call */
    double read_seconds;
    uint64_t stored_bytes;
} drift_reading;

kvt_status drift_put(drift_site *site, const drift_object *object, void *buffer);
drift_reading drift_get(drift_site *site, const drift_object *object, void *buffer);
void drift_delete(drift_site *site, const drift_object *object);

kvt_store_stats drift_stats(const drift_site *site);

typedef struct drift_slowing {
    uint64_t object_bytes;
    double sum_before, sum_after; /* bytes per second */
    double ratio_before;          /* of the sum, reads, median */
    double seconds_to_ratio; /* until an object that was written then was read at 0.9; <0: never */
    double new_ratio;        /* of objects written later than 2 s after the change, median */
    double new_ratio_worst;
    double old_ratio; /* of the new sum */
    double old_of_allowed;
    uint32_t hot_objects;
    double hot_ratio; /* after they were laid out anew, median */
    double hot_seconds;
    uint64_t moved_objects, moved_bytes;
    uint64_t budget_bytes_per_s;
    uint64_t budget_bytes; /* what that allows in the time, with what may be saved up */
    uint32_t wrong;
} drift_slowing;

typedef struct drift_vanishing {
    uint32_t objects, small_objects;
    uint64_t reads, hits, misses, wrong, late;
    double deadline_seconds, slowest_seconds;
    uint64_t quarantined, readmitted, replaced;
    uint32_t readable_gone;   /* objects that could be read while the drive was gone, of all */
    uint32_t unreadable_else; /* objects that do not touch the drive and were not read: must be 0 */
    uint32_t readable_back;   /* after its return, of all; old versions would be wrong */
    double add_seconds;
} drift_vanishing;

int bench_drift_vanishing(drift_site *site, drift_vanishing *out);

#endif
