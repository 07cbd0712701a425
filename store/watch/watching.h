/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watching.h - what a store keeps to be watched by: the last operations and the counts of gets
 * (watch.c), the readers of events (watch_events.c) and the file that is written now and then
 * (watch_file.c). watch_metrics.c prints the counts. Nothing here decides or delays anything.
 *
 * Gets and puts count in one of several parts, by thread, so that threads do not share cache lines.
 * A part has a lock of one flag, held for a few stores; a thread that finds it held takes the next
 * part.
 *
 * Thread rule: any thread. The parts' locks are leaves; the readers' lock is taken under the
 * control lock, and a reader's own under that.
 */
#ifndef STORE_WATCHING_H
#define STORE_WATCHING_H

#include "estimator/predict/predict.h"
#include "store/core/entry.h"

#include <kvterrace/watch.h>
#include <pthread.h>
#include <stdatomic.h>

#define WATCH_PARTS      8u
#define WATCH_OPERATIONS 4096u                   /* of each part, a power of two */
#define WATCH_FORMS      (KVT_VARIANTS_MAX + 1u) /* the last one: none of the store's variants */

/* Why a get was a miss. */
typedef enum watch_miss {
    WATCH_MISS_ABSENT = 0,
    WATCH_MISS_CORRUPT = 1, /* a checksum, or the record's format */
    WATCH_MISS_DEVICE = 2,  /* a read failed */
    WATCH_MISS_DEADLINE = 3,
    WATCH_MISS_TOKENS = 4, /* the form has dropped tokens, and the get did not ask for such */
    WATCH_MISS_LOSS = 5,   /* the form may lose more than the get accepts */
    WATCH_MISS_BASIS = 6,  /* the store lacks the basis of the form */
    WATCH_MISS_COUNT = 7
} watch_miss;

/* Buckets by powers of two: the first holds what is at most 2^first, the next ones 2^step times
 * as much each; a last one the rest. */
typedef struct watch_scale {
    uint32_t first;
    uint32_t step;
    uint32_t count;
} watch_scale;

#define WATCH_BUCKETS_MAX 24u

extern const watch_scale watch_get_scale;  /* nanoseconds */
extern const watch_scale watch_load_scale; /* bytes */

/* Values by bucket, the last one for those beyond the scale; `sum` is of the values themselves. */
typedef struct watch_histogram {
    uint64_t buckets[WATCH_BUCKETS_MAX + 1];
    uint64_t sum;
} watch_histogram;

/* Those of a store, and other hosts. */
#define WATCH_TIERS (KVT_TIER_REMOTE + 1)

/* Labels by which gets are counted, beside the store's own counters. */
typedef struct watch_counts {
    uint64_t hits[WATCH_TIERS][WATCH_FORMS];
    uint64_t hit_tokens[WATCH_TIERS];
    uint64_t hit_bytes[WATCH_TIERS]; /* as they were put */
    uint64_t misses[WATCH_MISS_COUNT];
    uint64_t missed_bytes[WATCH_MISS_COUNT];
    watch_histogram get_ns;     /* of hits */
    watch_histogram load_bytes; /* of hits */
} watch_counts;

/* The counts and the ring of the threads that count here. All but `held` is its holder's. */
typedef struct watch_part {
    _Alignas(64) atomic_flag held;
    uint64_t written; /* operations, ever */
    watch_counts counts;
    kvt_operation ring[WATCH_OPERATIONS];
} watch_part;

/* The thread that writes store.watch_path. */
typedef struct watch_writer {
    char *path; /* NULL: there is no file */
    double seconds;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool stopping; /* under lock */
    pthread_t thread;
    bool has_thread;
} watch_writer;

/* All that a store keeps to be watched by. file_lock is held over the file's input and output, and
 * nothing else is taken under it. */
typedef struct store_watch {
    watch_part parts[WATCH_PARTS];
    atomic_uint readers; /* of events, that are open */
    pthread_mutex_t readers_lock;
    struct kvt_events *first; /* under readers_lock */
    uint64_t events;          /* numbered so far; under readers_lock */
    pthread_mutex_t file_lock;
    watch_writer writer;
} store_watch;

/* ---- watch.c ---- */

/* Before anything is noted. KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status watch_open(kvt_store *store);
void watch_close(kvt_store *store);

/* A get that has ended, but for one that is for its timing alone. */
typedef struct watch_get {
    const kvt_key *key;
    const kvt_get_info *info;
    uint64_t began_ns;  /* store_now_ns */
    kvt_status status;  /* what the call returns */
    kvt_status failure; /* of the load, when there was one; else KVT_OK */
    uint32_t tokens;    /* of the entry; 0 = not known */
    uint64_t data_bytes;
    bool refused_loss;
} watch_get;

void watch_note_get(kvt_store *store, const watch_get *get);

/* Any other operation, with its instant. */
void watch_note(kvt_store *store, const kvt_operation *operation);

/* An operation on a key that ends now, all of its time in decide_ns; began_ns is of
 * store_now_ns. */
kvt_operation watch_operation(const kvt_store *store, kvt_operation_kind kind, const kvt_key *key,
                              uint64_t began_ns, kvt_status status);

/* Says how much of an operation's elapsed_ns was spent where. */
void watch_split(kvt_operation *operation, uint64_t transfer_ns, uint64_t code_ns);

/* The counts of all parts. */
void watch_sum(kvt_store *store, watch_counts *out);

/* ---- watch_events.c ---- */

/* An entry has become readable, or not. Both hold the control lock, so that the order of events is
 * that of the changes; a second note of the same change does nothing. */
void watch_note_stored(kvt_store *store, store_entry *entry);
void watch_note_removed(kvt_store *store, store_entry *entry, kvt_event_reason reason);

/* A readable entry has a new place; it was in a tier and a form before. Control lock held. */
void watch_note_moved(kvt_store *store, const store_entry *entry, kvt_tier tier,
                      kvt_variant variant);

/* Readers that are open get no more events. When the store closes. */
void watch_end_readers(kvt_store *store);

/* ---- watch_file.c ---- */

/* Writes the file, if a path is given. The statuses of kvt_watch_write. */
KVT_NODISCARD kvt_status watch_file_open(kvt_store *store, const char *path, double seconds);

/* Starts the thread that goes on writing the file. KVT_OK; KVT_E_THREAD. */
KVT_NODISCARD kvt_status watch_file_start(kvt_store *store);

/* Ends the thread, and writes the file for the last time. */
void watch_file_stop(kvt_store *store);

#endif
