/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_reads.h - carries out on drives what a method of sparse decode reads in each step
 * (lab/decode/decode_layer.h): one batch a step, as the library does for its own pages.
 *
 * Items have slots of one size, dealt one after the other to the drives by the store's striping;
 * the entries of SWARM's clusters have blocks of 4 KiB, one after the other, and replicas are
 * copies that a read may choose between. The slots have no content: only time is measured.
 *
 * Thread rule: one thread at a time.
 */
#ifndef BENCH_BENCH_READS_H
#define BENCH_BENCH_READS_H

#include "bench.h"
#include "lab/decode/decode_layer.h"
#include "lab/private.h"

typedef struct bench_slots {
    const decode_layer *layer;
    const decode_trial *trial;
    store_scratch *scratch;
    tiers_location **locations; /* of each part */
    tiers_unit_map **maps;
    uint32_t *slot_bytes;
    uint32_t *copy_first, *copies; /* of SWARM's tokens: their blocks */
    tiers_copy *targets;           /* of the ranges of a step */
    tiers_gather_range *ranges;
    uint8_t *buffer;
    uint64_t buffer_bytes;
    uint32_t range_room;
    tiers_gather *gather; /* under way */
} bench_slots;

/* Opens an empty store on a bench's drives, with DRAM for windows. As kvt_store_open. */
KVT_NODISCARD kvt_status bench_reads_store(const bench_options *options, tiers_striping striping,
                                           uint64_t dram_bytes, kvt_store **store_out,
                                           bench_report *report);

#define BENCH_READS_DRIVES 64u /* of a store, that are counted */

/* Bytes that each drive of a store has read, and its speed. */
typedef struct bench_reads_drives {
    uint32_t count;
    uint64_t bytes[BENCH_READS_DRIVES];
    double bytes_per_s[BENCH_READS_DRIVES];
} bench_reads_drives;

void bench_reads_count(kvt_store *store, bench_reads_drives *drives);

/* Seconds of the drive that had most to do between two counts. */
double bench_reads_busiest(const bench_reads_drives *before, const bench_reads_drives *after);

/* Takes the slots' room. KVT_OK; KVT_E_SPACE; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status bench_slots_open(kvt_store *store, const decode_layer *layer,
                                          const decode_trial *trial, bench_slots *slots_out);
void bench_slots_close(bench_slots *slots); /* zeroed ones are allowed */

/* Starts what a step reads. KVT_OK: a wait follows; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status bench_slots_start(bench_slots *slots, const decode_reads *reads,
                                           uint32_t step, uint64_t *bytes_out);

/* Waits for it. io_ns_out: from the first read's start to the last one's end. KVT_OK; what the
 * drives give. */
KVT_NODISCARD kvt_status bench_slots_wait(bench_slots *slots, uint64_t *io_ns_out);

#endif
