/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calls.h - the torture of the calls that engines make: what its files share.
 *
 * Threads of four kinds make all calls on one small set of keys, while an operator lets drives
 * fail, fall silent, fill, go and come back. Every get is judged by the history (history.h) and by
 * its bytes. The first violation ends the program.
 *
 *     calls_values.c   keys, layouts, contents, views; what bytes a get may give
 *     memory_drive.c   drives of memory that the operator gives orders
 *     calls_site.c     the store, its profile and drives; the operator; violations
 *     calls_direct.c   the blocking calls
 *     calls_queue.c    batches of requests; cancels and closes in flight
 *     calls_load.c     layered loads
 *
 * Some keys may be kept in lossy variants. Their contents are made so that a version can be read
 * from each row of any of these variants, and that no value is further off than calls_bound says.
 */
#ifndef TESTS_TORTURE_CALLS_H
#define TESTS_TORTURE_CALLS_H

#include "history.h"
#include "memory_drive.h"

#include "base/clock.h"

#include <kvterrace/kvterrace.h>
#include <kvterrace/load.h>
#include <kvterrace/lookup.h>
#include <kvterrace/names.h>
#include <kvterrace/queue.h>
#include <kvterrace/watch.h>
#include <pthread.h>
#include <stdatomic.h>

enum {
    CALLS_KEYS = 96,
    CALLS_THREADS_MAX = 64,
    CALLS_DRIVES = 3,
    CALLS_TENANTS = 3,
    CALLS_SPACES = 4,
    CALLS_SHARED_QUEUES = 2,
    CALLS_BYTES_MAX = 128 * 1024, /* of an entry */
    CALLS_POOL_BYTES = 256 * 1024,
    CALLS_BLOCKS_MAX = 64,
    CALLS_LAYERS = 4,
    CALLS_GROUPS = 2
};

#define CALLS_MS     UINT64_C(1000000)
#define CALLS_SECOND UINT64_C(1000000000)

/* ---- the site ---- */

/* What was done, for the last line. */
typedef struct calls_counts {
    atomic_ullong calls, requests, completions, gets, hits, lossy_hits, puts, kept, deletes, leases;
    atomic_ullong loads, layers, cancels, cancelled, timed_out, refused_loss, closes,
        device_changes;
    atomic_ullong quarantined, readmitted, promotions, demotions, evictions, aborted, shared_reads;
    atomic_ullong load_failures, expired, lives;
} calls_counts;

typedef struct calls_site {
    const char *program;
    uint64_t seed;
    uint32_t seconds;
    uint32_t thread_count;
    char folder[64], catalog[96], profile[96];
    memory_drive drives[CALLS_DRIVES];
    uint64_t drive_random[CALLS_DRIVES];
    kvt_device_config configs[CALLS_DRIVES];
    kvt_store_options options;
    kvt_store *store;
    history *history;
    kvt_queue *shared[CALLS_SHARED_QUEUES];
    atomic_bool stop;
    atomic_bool closing; /* the store is: requests in flight may be called off */
    atomic_uint faults;  /* odd while the operator disturbs a drive */
    calls_counts counts;
} calls_site;

typedef struct calls_slot calls_slot;

typedef struct calls_thread {
    calls_site *site;
    uint32_t number;
    uint64_t random;
    pthread_t thread;
    kvt_store *store;   /* the site's, or a connection to it */
    kvt_queue **shared; /* CALLS_SHARED_QUEUES of that store */
    kvt_queue *queue;   /* its own */
    calls_slot *slots;
    unsigned char *bytes;  /* CALLS_BYTES_MAX, for contents */
    unsigned char *wanted; /* same */
    unsigned char *pool;   /* CALLS_POOL_BYTES, for views */
    uint64_t lease;        /* 0: none is held */
} calls_thread;

/* Fills a thread but for `store` and `shared`. Its pool is a region of the connected store, where
 * one is named, and else memory of its own. */
void calls_thread_make(calls_thread *self, calls_site *site, uint32_t number, kvt_store *region);

/* Below a bound. */
uint32_t calls_draw(calls_thread *self, uint32_t below);

/* Ends the program, with what is known of the key and how to run it again. */
_Noreturn void calls_violate(calls_site *site, uint32_t number, const char *what, int64_t value);

/* Violates when `wrong` is not NULL. */
static inline void calls_judge(calls_site *site, uint32_t number, const char *wrong, int64_t value)
{
    if (wrong != NULL) calls_violate(site, number, wrong, value);
}

bool calls_site_make(calls_site *site);
void calls_site_open(calls_site *site);
void calls_site_count(calls_site *site);
/* Deletes every key; then nothing may be held. */
void calls_site_empty(calls_site *site);
void calls_site_remove(calls_site *site);
/* All drives work and serve. */
void calls_site_mend(calls_site *site);
void *calls_operator_main(void *site);

/* ---- values ---- */

kvt_key calls_key_of(uint32_t number);
/* The key's number; CALLS_KEYS: it is none of ours. */
uint32_t calls_number_of(const kvt_key *key);
const kvt_layout *calls_layout_of(uint32_t number);
/* The same entry as two groups of layers, whose packed bytes are the entry's; NULL: the key has
 * none. */
const kvt_layout *calls_groups_of(uint32_t number);
uint64_t calls_bytes_of(uint32_t number);
uint32_t calls_tenant_of(uint32_t number);
uint64_t calls_space_of(uint32_t number);
/* Whether entries of the key may have lifetimes. */
bool calls_may_expire(uint32_t number);
/* Whether the key may be kept in a lossy variant. */
bool calls_is_lossy(uint32_t number);

void calls_fill(uint32_t number, uint32_t version, void *packed);

/* The lossy variants of the store: name, bound of their loss, how far a value may be off. */
typedef struct calls_rung {
    const char *name;
    double bits, loss, upper, bound;
} calls_rung;

enum { CALLS_RUNGS = 4 };
extern const calls_rung calls_rungs[CALLS_RUNGS];

/* How far a value of the key may be off: when what a request accepts is all that is known, and when
 * the variant is. Violates when the variant is none that the request accepts. */
double calls_bound(uint32_t number, double loss_max);
double calls_bound_of(calls_site *site, uint32_t number, double loss_max, kvt_variant variant);

/* Judges bytes of some layers, packed: whole, of one version, within the bound. Returns the
 * version. `wanted` has CALLS_BYTES_MAX. */
uint32_t calls_read(calls_site *site, uint32_t number, const void *packed, uint32_t first_layer,
                    uint32_t layer_count, double bound, void *wanted);

/* ---- views ---- */

/* A place in a pool, and what it takes to describe it. The pool is all CALLS_UNTOUCHED but for the
 * elements of the view. */
typedef struct calls_place {
    unsigned char *pool;
    kvt_view view;
    uint32_t blocks[CALLS_BLOCKS_MAX];
    kvt_view parts[CALLS_GROUPS]; /* of a key with groups: the view of each */
    const kvt_view *pointers[CALLS_GROUPS];
} calls_place;

#define CALLS_UNTOUCHED 0xee

/* Chooses one of the shapes for the key's layout. */
void calls_place_make(calls_thread *self, uint32_t number, calls_place *place);
/* Cuts the view into those of the groups, as it is now. Returns how many there are; 1: the key has
 * none, and the view is the one. */
uint32_t calls_place_cut(uint32_t number, calls_place *place);
void calls_place_scatter(const calls_place *place, uint32_t number, void *packed);
/* Gathers layers, packed. */
void calls_place_gather(const calls_place *place, uint32_t number, uint32_t first_layer,
                        uint32_t layer_count, void *packed);
/* Makes the elements of some layers untouched again; with all of them nothing but these may have
 * been touched. */
void calls_place_wipe(calls_site *site, const calls_place *place, uint32_t number,
                      uint32_t first_layer, uint32_t layer_count);

/* ---- threads ---- */

void calls_direct_step(calls_thread *self);
void calls_keeper_step(calls_thread *self);
void calls_load_step(calls_thread *self);
void calls_queue_step(calls_thread *self);

/* What a thread of these kinds has open, from the beginning of a life to its end. */
void calls_queue_begin(calls_thread *self);
void calls_load_begin(calls_thread *self);
void calls_load_end(calls_thread *self);
/* Drains a queue until nothing is accepted that could complete. */
void calls_queue_drain(calls_thread *helper, kvt_queue *queue);
/* Closes the thread's queue, whatever is in flight. */
void calls_queue_end(calls_thread *self);
/* When all queues have been drained or closed: no request may be left without an end. */
void calls_queue_check(calls_thread *self);

/* What a put's status says to the history. Violates when it may not be. */
void calls_note_put(calls_site *site, uint32_t number, uint32_t version, uint64_t call,
                    uint64_t back, kvt_status status, double lifetime_seconds);

/* An entry as this program puts it. */
kvt_entry calls_entry_of(uint32_t number, const kvt_key *parent);

#endif
