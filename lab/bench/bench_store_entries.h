/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_store_entries.h - what a store keeps of each entry beside its record, by structure, and
 * lookups of many keys at once.
 *
 * Thread rule: one bench at a time.
 */
#ifndef BENCH_BENCH_STORE_ENTRIES_H
#define BENCH_BENCH_STORE_ENTRIES_H

#include "bench_store.h"

/* Bytes an entry. The sizes of structures count, and of tables their share. */
typedef struct store_memory {
    uint32_t entries;       /* that are stored */
    double resident;        /* that the process took, which the parts below explain */
    double entry;           /* key, parent, layout, times: the store's */
    double place;           /* of the record */
    double location;        /* extents on the devices */
    double lookup;          /* the store's table from key to entry */
    double decision;        /* the engine's entry, */
    double decision_lookup; /* its table, */
    double options;         /* and its options, which entries share */
    double rest;            /* of what the process took */
} store_memory;

/* What the entries of a site take, which are all stored. */
void store_memory_split(const store_bench_site *site, store_memory *out);

/* The engine's part of that, in bench_store_engine.c. */
void store_memory_decide(const kvt_policy *policy, store_memory *out);

/* The keys of a prefix. */
enum { STORE_MATCH_KEYS = 512 };

/* Times calls of kvt_match_worth, each of STORE_MATCH_KEYS other keys: a prefix that was put at
 * once, or scattered ones. Returns the calls that failed or found less than all. */
uint32_t store_match_run(const store_bench_site *site, bool scattered, uint64_t *ns,
                         uint32_t calls);

json_t *store_memory_json(const store_memory *memory);
void store_memory_print(FILE *out, const store_memory *memory);

#endif
