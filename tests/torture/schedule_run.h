/* SPDX-License-Identifier: Apache-2.0 */
/*
 * schedule_run.h - one run of a store under a schedule, for schedule_store.c, which has its lives
 * and blocking calls, and schedule_queue.c, which has its batches of requests.
 */
#ifndef TESTS_SCHEDULE_RUN_H
#define TESTS_SCHEDULE_RUN_H

#include "memory_drive.h"
#include "schedule_store.h"
#include "tiers/pool/pool.h"

#include <kvterrace/queue.h>

enum {
    RUN_CALLERS = 4,
    RUN_KEYS = 24,
    RUN_HOT_KEYS = 6,
    RUN_VERSIONS = 96,
    RUN_CALLS = 32,
    RUN_DISKS = 4, /* DRAM, one or two SSDs, HBM */
    RUN_VALUE_BYTES = 32 * 1024,
    RUN_BATCH = 3, /* requests of one */
    RUN_TRIES = 400
};

#define RUN_MS UINT64_C(1000000)

typedef enum version_state {
    VERSION_NONE,
    VERSION_BEGUN,
    VERSION_KEPT,
    VERSION_REJECTED
} version_state;

typedef struct run_key {
    uint32_t begun;   /* the newest version that was put */
    uint32_t deleted; /* no version up to this one may be read any more */
    uint32_t flushed; /* nor after a kill */
    uint8_t states[RUN_VERSIONS];
} run_key;

typedef struct run_site {
    uint64_t random;
    char folder[64], catalog[96];
    memory_drive disks[RUN_DISKS];
    kvt_device_config configs[RUN_DISKS];
    uint32_t disk_count;
    kvt_store_options options;
    tiers_striping striping; /* of the SSDs */
    bool faults, faulty, durable;
    uint64_t stop_step, stop_hash;
    schedule_outcome outcome;
    kvt_store *store;
    run_key keys[RUN_KEYS];
    uint32_t kept[RUN_KEYS]; /* versions that the next life has to have; 0: none */
    uint64_t moves;          /* that the observer saw */
    schedule_counts counts;
} run_site;

typedef struct run_caller {
    run_site *site;
    uint32_t number;
    kvt_queue *queue; /* NULL: it makes blocking calls alone */
    unsigned char data[RUN_VALUE_BYTES], expected[RUN_VALUE_BYTES];
    unsigned char places[RUN_BATCH][RUN_VALUE_BYTES];
} run_caller;

/* A number below `below`, by the run's own seed. */
uint32_t run_draw(run_site *site, uint32_t below);
_Noreturn void run_complain(const char *what, uint64_t a, uint64_t b);

/* ---- the model ---- */

kvt_entry run_entry(uint32_t number);
/* Begins a version of a key; 0: it has had all of them. */
uint32_t run_begin_version(run_site *site, uint32_t number);
/* Notes how its put ended, and how a delete did that began when `newest` had begun. */
void run_end_version(run_site *site, uint32_t number, uint32_t version, kvt_status status);
void run_end_delete(run_site *site, uint32_t number, uint32_t newest, kvt_status status);
/* Judges caller->data against caller->expected, and the key as it was before the get. */
void run_check_value(const run_caller *caller, uint32_t number, const run_key *before);

/* ---- batches ---- */

/* Submits a batch of gets, with a put or a delete of the caller's own key among them, may call it
 * off, and waits for all of it. */
void run_batch(run_caller *caller, uint32_t own);

#endif
