/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_store.h - the store bench's site: a store whose tier DRAM holds equal entries, the memory
 * that an engine would have beside it, and timed loops over both.
 *
 * Every source is read once per lap over several times the processor's caches, and every target is
 * the next slot of a ring larger than the caches. So memcpy and the store's calls meet memory that
 * is equally cold.
 *
 * Thread rule: one bench at a time; a site's loops run on as many threads as they say.
 */
#ifndef BENCH_BENCH_STORE_H
#define BENCH_BENCH_STORE_H

#include "bench.h"
#include "bench_parts.h"

#include <kvterrace/kvterrace.h>
#include <kvterrace/queue.h>

enum {
    STORE_BENCH_THREADS_MAX = 2,
    STORE_BENCH_REPEATS_MAX = 99,
    STORE_BENCH_BATCH_OF = 64 /* at most */
};

/* What one loop does with each entry. */
typedef enum store_bench_call {
    STORE_BENCH_COPY, /* memcpy of as many bytes */
    STORE_BENCH_GET,
    STORE_BENCH_PUT,
    STORE_BENCH_EXISTS,
    STORE_BENCH_BATCH, /* gets through a queue, a batch at a time */
    STORE_BENCH_PREFIX /* kvt_prefix_get of a batch */
} store_bench_call;

typedef struct store_bench_site {
    kvt_store *store;
    kvt_queue *queue;
    uint64_t bytes;   /* of an entry */
    uint32_t entries; /* stored for the whole life of the site */
    uint32_t puts;    /* room for so many more */
    uint32_t sources; /* entries with bytes of their own */
    char *source;     /* the entries' bytes, one after the other */
    char *ring;       /* targets of gets and copies */
    uint64_t ring_bytes;
    double memory_per_entry; /* that the process took while they were put */
} store_bench_site;

/* What a get says of itself, in nanoseconds. */
enum { STORE_BENCH_READ, STORE_BENCH_DECODE, STORE_BENCH_ELAPSED, STORE_BENCH_PARTS };

/* One loop of one thread: calls on entries first, first + stride, and so on. */
typedef struct store_bench_loop {
    store_bench_site *site;
    store_bench_call call;
    uint32_t thread, threads;
    uint32_t calls;
    uint32_t batch;                     /* calls that are one, of those made in batches */
    uint32_t first;                     /* entry; the loop leaves the next one */
    uint64_t *ns;                       /* of each call, or its share of a batch, */
    uint64_t *parts[STORE_BENCH_PARTS]; /* and of gets, as they say of themselves */
    uint64_t sum_ns;                    /* of all calls */
    uint32_t failed;                    /* calls that failed, or gave wrong bytes */
} store_bench_loop;

/* Opens a store with room and puts the entries. hollow: the tier keeps no bytes, for tables of
 * many entries. As kvt_store_open and kvt_store_put. */
KVT_NODISCARD kvt_status store_bench_open(store_bench_site *site, uint64_t bytes, uint32_t entries,
                                          uint32_t puts, bool hollow, bench_report *report);
void store_bench_close(store_bench_site *site);

/* Runs the loop on each of loop->threads threads at once, and gives the wall time of all. loops has
 * as many members; they differ in what they find. */
uint64_t store_bench_run(store_bench_loop *loops, uint32_t threads);

/* The key of an entry by its number. */
kvt_key store_bench_key(uint32_t number);

/* Takes the entries of the last put loop out again, after a flush. */
void store_bench_unput(store_bench_site *site, uint32_t calls);

/* ---- lookups of many keys ---- */

enum { STORE_MATCH_KEYS = 512 };

/* Times calls of kvt_store_match, each of STORE_MATCH_KEYS other keys: a prefix that was put at
 * once, or scattered ones. Returns the calls that failed or found less than all. */
uint32_t store_match_run(const store_bench_site *site, bool scattered, uint64_t *ns,
                         uint32_t calls);

/* ---- a prefix of many entries ---- */

enum { STORE_BENCH_PREFIX_ENTRIES = 512 };

/* What is timed of a prefix. */
enum {
    STORE_BENCH_LOAD_ENDS,  /* kvt_load_begin and kvt_load_end */
    STORE_BENCH_LOAD_WHOLE, /* them, and every wait and release of 32 layers */
    STORE_BENCH_PREFIX_CASES
};

/* Times a prefix of tiny entries in memory so many times, and says how large they are. Adds the
 * entries that did not come to *failed. False: no store. */
bool store_bench_prefix(uint32_t rounds, uint64_t *const ns[STORE_BENCH_PREFIX_CASES],
                        uint64_t *entry_bytes, uint32_t *failed);

#endif
