/* SPDX-License-Identifier: Apache-2.0 */
/*
 * expected.h - the expected state of a store over kills: what the parent and the worker share.
 *
 * The worker is a process that opens the store and works on it with many threads until it is
 * killed. The parent owns the model: it lies in shared memory, so it survives the worker, and the
 * parent alone judges what the next worker found. A series is a folder with one store, opened by
 * one worker after the other ("lives").
 *
 * A key has versions. Its content is a function of key and version, and every byte is verified. A
 * key has one owner thread, which alone puts and deletes it; every thread gets it.
 *
 * Why the model is sound:
 *   - A version is counted as attempted before its put begins, so no get can be ahead of the model.
 *   - `required` names the version that a later open must find. It is set by a flush alone: the
 *     state of all keys is copied before the call, and after its success those keys that have seen
 *     no event since the copy, and lie on SSD, become required. It is also set by a clean close.
 *     A kvt_store_persist that left nothing, and had room for all, requires more: every key whose
 *     put had returned at the copy, wherever the model takes it to lie, unless it was deleted, or
 *     a note said since that it is evicted, dropped or gives way. A life with faults is left out
 *     there.
 *   - `required` is cleared before the entry can go: by the owner before a delete is called, and by
 *     the store's notes (store/core/kill_note.h) when a plan evicts or a record on SSD gives way to
 *     others, under the store's lock, before any of it reaches the catalog. A change of form or
 *     layout within the SSD tier clears nothing, nor does a promotion that leaves its record there.
 *     An aborted eviction sets it again: the entry stays where it was. No get sees it in between,
 *     so the first look at a key of a life gets it again until no eviction of it is under way.
 *   - `floor` is the lowest version that this life can still read: raised when a delete or a put
 *     has returned. `dead` is the floor that a successful flush found when it began: what is below
 *     it must not come back in any later life.
 * A kill between two writes of the model leaves the weaker expectation, because what weakens is
 * written before the call into the store and what strengthens after it.
 */
#ifndef TESTS_TORTURE_EXPECTED_H
#define TESTS_TORTURE_EXPECTED_H

#include "store/core/kill_note.h"
#include "tiers/pool/pool.h"

#include <kvterrace/kvterrace.h>
#include <kvterrace/queue.h>
#include <stdatomic.h>
#include <stdio.h>

enum {
    EXPECTED_KEYS = 96,
    EXPECTED_MEMBERS_MAX = 5,
    EXPECTED_THREADS_MAX = 8,
    EXPECTED_POINTS_MAX = 128,
    EXPECTED_EVENTS = 24,
    EXPECTED_TIMES = 1 << 15,
    EXPECTED_BYTES_MAX = 32768
};

/* Encryption takes so much of a small device; and a key, of a command. */
#define EXPECTED_SEAL_BYTES ((uint64_t)640 << 10)
#define EXPECTED_SEAL_KEY   "printf '%064d' 7"

/* What one series does; the same seed and number give the same. */
typedef struct expected_series {
    uint64_t seed; /* of this series */
    char folder[200];
    const char *policy;
    uint32_t threads;
    uint32_t members; /* at the first open */
    uint64_t member_bytes;
    uint64_t dram_bytes;
    uint32_t unit_bytes;
    tiers_striping striping;
    kvt_hole_mode holes;
    kvt_variant variant;
    bool lossy; /* a ladder of many forms; the fixed policies' changes with each life */
    double tick_seconds;
    bool sparse;
    bool encrypted;
    uint32_t synchronous_members; /* mask; the others use io_uring where the kernel has it */
} expected_series;

/* What happened to a key last, for the report of a fault. */
typedef struct expected_event {
    uint32_t us; /* of the monotonic clock */
    char what;   /* L life, P p put begun and ended, D d delete, G get, F flush, W persist made it
                    required,   1 placed, 2 moved, 3 copied, 4 evicts, 5 aborted, 6 gives way, 7
                    dropped
                  */
    int value;   /* version, status or tier */
} expected_event;

typedef struct expected_key {
    atomic_uint attempted; /* highest version whose put has begun */
    atomic_ullong valid;   /* bit v mod 64: version v may exist; of the last 64 versions */
    atomic_uint putting;   /* version whose put is under way */
    atomic_uint stored;    /* version that the store has, as far as this life knows; 0 = none */
    atomic_uint floor;
    atomic_uint dead;
    atomic_uint required; /* 0 = none */
    atomic_uint held;     /* required, set aside while a plan is to evict it */
    atomic_uint change;   /* counts events */
    atomic_uint weakened; /* counts those after which it may be gone */
    atomic_uint tier;     /* SSD also for a record there beside a place above */
    atomic_bool leaving;  /* to be evicted */
    atomic_bool dropped;  /* what `stored` names is gone */
    atomic_bool deleting;
    expected_event events[EXPECTED_EVENTS];
    atomic_uint event_count;
    atomic_int found; /* by the first look of this life: version, 0 = miss, -1 = not looked yet */
} expected_key;

/* What is known of the series' one basis. */
typedef enum expected_basis {
    EXPECTED_BASIS_IN_DOUBT,
    EXPECTED_BASIS_ABSENT,
    EXPECTED_BASIS_PRESENT,
    EXPECTED_BASIS_DAMAGED /* never expected */
} expected_basis;

/* One series' memory, shared by parent and worker. */
typedef struct expected_model {
    expected_key keys[EXPECTED_KEYS];
    atomic_uint members;     /* devices of the SSD tier that the store may know */
    atomic_uint devices_out; /* devices that are retired, or on their way back */
    atomic_uint retirements; /* of this series, so that a get sees one that is over when it ends */
    atomic_uint basis;       /* what a later open must find: an expected_basis */
    atomic_uint basis_found; /* by the first look of this life */
    atomic_bool faulty;      /* faults were armed in this life */
    atomic_uint point;       /* kill point to die at + 1; 0 = none */
    atomic_int passes;       /* of it that are left */
    atomic_bool stop;
    atomic_uint reports; /* lines about this series */
    char message[300];   /* of a failed open */
    atomic_int status;   /* of the open */
} expected_model;

/* Sums over all series, shared by all processes of a run. */
typedef struct expected_totals {
    atomic_uint lives, series, kills_random, kills_point, closes, opens_refused, pokes;
    atomic_uint faults, checks, gets, puts, flushes, persists, device_changes, basis_changes;
    atomic_uint persisted_keys; /* that a persist alone made required */
    atomic_uint transform_hits; /* blocking gets of entries in a form with a basis */
    atomic_uint wrong_bytes, lost_flushed, lost_by_fault, failed_reopens, came_back, crashes, hangs,
        odd;
    atomic_uint reached[EXPECTED_POINTS_MAX];
    atomic_uint killed[EXPECTED_POINTS_MAX];
    atomic_uint time_count;
    uint32_t reopen_us[EXPECTED_TIMES];
} expected_totals;

/* ---- kill points ---- */

extern const char *const __start_kvt_kill_points[];
extern const char *const __stop_kvt_kill_points[];
uint32_t expected_point_count(void);

/* Where kill points and notes of this process go. */
void expected_attach(expected_model *model, expected_totals *totals);

/* ---- keys and contents (expected_values.c) ---- */

uint64_t expected_random(uint64_t *state);
kvt_key expected_key_of(uint32_t number);
kvt_layout expected_layout_of(uint32_t number);
uint64_t expected_bytes_of(uint32_t number);
void expected_fill(uint32_t number, uint32_t version, void *data);
/* The version that a content says it has. */
uint32_t expected_version_of(const void *data);
/* Whether a content is the right one: byte for byte, or as near as the forms of a lossy series keep
 * it in each matrix. */
bool expected_same(uint32_t number, const void *data, const void *right);

/* The contents are those of a lossy series: stored in forms with two bases, and others. Set before
 * the first content is made. */
extern bool expected_lossy;
/* Of a matrix, in squares: two codings on top of each other stay below, another content does not.
 */
#define EXPECTED_DISTANCE 0.1

/* ---- the model (expected_model.c); any thread of the worker ---- */

/* Prints one line about a fault of the store and counts it. */
void expected_remember(expected_key *key, char what, int value);
/* Prints what happened to the key last. */
void expected_tell(uint32_t number);
void expected_report(atomic_uint *counter, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

void expected_begin_life(expected_model *model);
/* The calling thread's gets, puts and deletes go through a queue from now on; NULL: they do not. */
void expected_use_queue(kvt_queue *queue);
kvt_status expected_get(kvt_store *store, uint32_t number);
/* The first look at a key in a life: gets it until the answer is sure. An eviction that is planned
 * hides an entry, and the look waits until it is carried out or aborted. */
void expected_look(kvt_store *store, uint32_t number);
void expected_put(kvt_store *store, uint32_t number);
void expected_delete(kvt_store *store, uint32_t number);
void expected_flush(kvt_store *store);
void expected_persist(kvt_store *store);
/* After kvt_store_close has returned. */
void expected_note_close(void);
/* The parent, when the worker has looked at every key. */
void expected_judge(expected_model *model, expected_totals *totals, bool after_faults);

/* ---- bases (expected_basis.c) ---- */

/* Makes the profile with the ladder of a lossy series, and the files of its bases. */
void expected_make_ladder(const expected_series *series);
/* Gives a life of a lossy series its ladder, and the fixed policies a form. */
void expected_use_ladder(const expected_series *series, uint64_t choice,
                         kvt_store_options *options);

void expected_look_at_basis(expected_model *model, kvt_store *store);
/* Adds the basis or removes it; one thread of the worker. */
void expected_change_basis(expected_model *model, expected_totals *totals, kvt_store *store,
                           bool add);
/* The parent, as expected_judge. */
void expected_judge_basis(expected_model *model, expected_totals *totals);

/* ---- the worker (expected_life.c) ---- */

/* What a life does beside the common work. */
typedef struct expected_life {
    uint64_t seed;
    bool faults;         /* armed while it works */
    bool open_fault;     /* one write or sync of the open fails */
    uint32_t skip;       /* of them before that one */
    bool change_devices; /* often */
    bool change_basis;   /* likewise */
} expected_life;

enum { EXPECTED_EXIT_OPEN = 10, EXPECTED_EXIT_REFUSED = 11 };

/* Never returns. Says 'V' on the pipe when every key was looked at, waits for an answer, works
 * until model->stop is set, closes the store. */
_Noreturn void expected_run_life(const expected_series *series, const expected_life *life,
                                 expected_model *model, expected_totals *totals, int say, int hear);

#endif
