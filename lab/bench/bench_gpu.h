/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_gpu.h - what the parts of the case `gpu` share: the GPU with its copies as they were
 * measured, rows of the report, stores whose entries are loaded into pages.
 *
 *     bench_gpu.c          the case: the copies, then one bar after the other
 *     bench_gpu_site.c     memory, timing and rows
 *     bench_gpu_kernels.c  kernels alone: bars 1, 2, 3 and 7
 *     bench_gpu_store.c    a store and the pages that it is loaded into
 *     bench_gpu_loads.c    loads: bars 4, 5 and 6
 *     bench_gpu_faults.c   loads with faults: bar 8
 *
 * Thread rule: one case at a time; the GPU's context is current on the case's thread.
 */
#ifndef BENCH_BENCH_GPU_H
#define BENCH_BENCH_GPU_H

#include "bench.h"
#include "lab/private.h"

#include <kvterrace/gpu.h>

#define GPU_BENCH_SPIN "kvlab_spin"

enum { GPU_BENCH_BLOCK = 16, GPU_BENCH_SAMPLES = 4, GPU_BENCH_TEXT = 160 };

/* Calls that the library does not make. */
typedef struct gpu_bench_calls {
    int (*copy_within)(gpu_address target, gpu_address source, size_t bytes, void *stream);
    int (*elapsed)(float *milliseconds, void *begin, void *end);
    int (*attribute)(int *value, int attribute, int device);
} gpu_bench_calls;

typedef struct gpu_bench {
    const bench_options *options;
    bench_gpu_options own;
    bench_report *report;
    gpu_site *site;
    gpu_bench_calls calls;
    bool entered;                /* its context is current */
    void *events[2];             /* with timing */
    void *spin_module, *spin;    /* the kernel that stands for an engine, once it was launched */
    uint32_t multiprocessors;    /* of the GPU */
    double traffic_bytes_per_s;  /* read and written, of a copy within the GPU */
    double link_bytes_per_s;     /* of a copy to the GPU */
    uint64_t began_ns, until_ns; /* of the case */
    uint32_t launches[KERNEL_COUNT];
    uint32_t bar; /* that runs */
} gpu_bench;

/* A row; what is 0 or NULL was not measured. */
typedef struct gpu_bench_row {
    const char *name;
    const char *variant, *side, *isa;
    uint32_t entries;
    double bytes_per_s; /* of elements made, or read by a check */
    double traffic_ratio, link_ratio, cpu_s_per_gb;
    int bit_exact;       /* 1: yes, -1: no, 0: not asked */
    const char *measure; /* of asked and reached; NULL: nothing is asked */
    double asked, reached;
    bool most;       /* asked is the most, else the least */
    const char *why; /* it was not run */
} gpu_bench_row;

void bench_gpu_add(gpu_bench *bench, const gpu_bench_row *row);

/* Whether the time of the case is over; a row says so. */
bool bench_gpu_late(gpu_bench *bench, const char *name);

/* A status of one call of the driver, with a message that names it. */
kvt_status bench_gpu_call(gpu_bench *bench, int error, const char *what);
kvt_status bench_gpu_memory(gpu_bench *bench, uint64_t bytes, gpu_address *address_out);
void bench_gpu_free(gpu_bench *bench, gpu_address *address);

/* Copies at once, by way of pinned memory. */
kvt_status bench_gpu_write(gpu_bench *bench, gpu_address target, const void *source,
                           uint64_t bytes);
kvt_status bench_gpu_read(gpu_bench *bench, void *target, gpu_address source, uint64_t bytes);

/* Seconds of one of `times` runs of some work in the stream GPU_IN, behind one that warms up. */
typedef kvt_status gpu_bench_work(void *context);
kvt_status bench_gpu_time(gpu_bench *bench, uint32_t times, gpu_bench_work *work, void *context,
                          double *seconds_out);

/* A sample of one of GPU_BENCH_SAMPLES seeds. */
void bench_gpu_sample(const kvt_layout *layout, uint32_t entry, void *target);

/* Numbers of blocks: a permutation of [0, count) that leaves no two neighbours together. */
uint32_t bench_gpu_block(uint64_t index, uint64_t count);

/* ---- a store and pages ---- */

typedef struct gpu_bench_store {
    gpu_bench *bench;
    kvt_layout layout;
    uint64_t entry_bytes;
    uint64_t stored_bytes; /* of all entries */
    uint32_t entries;
    kvt_store *store;
    kvt_queue *queue;
    gpu_address pages;
    uint64_t page_bytes;
    uint32_t *blocks;
    kvt_view *views;
    const kvt_view **pointers;
    kvt_key *keys;
    kvt_status *statuses;
    void *stream;                        /* of the engine */
    uint8_t *samples[GPU_BENCH_SAMPLES]; /* of its puts, as they were needed */
    char profile[64];
} gpu_bench_store;

/* Opens a store of entries in a variant on devices of a tier, or on memory of DRAM; puts them. */
kvt_status bench_gpu_store_open(gpu_bench *bench, const kvt_layout *layout, uint32_t entries,
                                const char *variant, const kvt_device_config *devices,
                                uint32_t device_count, kvt_tier tier, gpu_bench_store *store);
void bench_gpu_store_close(gpu_bench_store *store);

/* Puts an entry, whose key the store does not have. */
kvt_status bench_gpu_store_put(gpu_bench_store *store, uint32_t entry);

/* Loads all entries as an engine does, begin to end; compute_turns: of the kernel that stands for
 * the engine, behind each layer, on so many blocks. end_ns_out may be NULL: from the last event to
 * the return of kvt_load_end. */
typedef struct gpu_bench_load {
    uint64_t turns;
    uint32_t blocks, threads;
    double seconds; /* to the end of the engine's stream */
    uint64_t end_ns;
} gpu_bench_load;
kvt_status bench_gpu_store_load(gpu_bench_store *store, gpu_bench_load *load);

/* Whether an entry's pages are what a get of it gives; `packed` has room for two entries. */
kvt_status bench_gpu_store_same(gpu_bench_store *store, uint32_t entry, uint8_t *packed,
                                bool *same_out);

/* The kernel that stands for an engine: launches it in a stream. */
kvt_status bench_gpu_spin(gpu_bench *bench, uint64_t turns, uint32_t blocks, uint32_t threads,
                          void *stream);
extern const char bench_gpu_spin_ptx[];

/* ---- bars ---- */

kvt_status bench_gpu_decode(gpu_bench *bench);  /* 1 */
kvt_status bench_gpu_entropy(gpu_bench *bench); /* 2 */
kvt_status bench_gpu_check(gpu_bench *bench);   /* 3 */
kvt_status bench_gpu_memory_loads(gpu_bench *bench);
kvt_status bench_gpu_drive_loads(gpu_bench *bench);
kvt_status bench_gpu_layers(gpu_bench *bench);
kvt_status bench_gpu_modules(gpu_bench *bench); /* 7 */
kvt_status bench_gpu_faults(gpu_bench *bench);

#endif
