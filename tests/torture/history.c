/* SPDX-License-Identifier: Apache-2.0 */
/*
 * history.c - see history.h.
 */
#include "history.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { HISTORY_EVENTS = 32, HISTORY_VERSIONS = 1 << 18 };

#define HISTORY_NEVER UINT64_MAX

typedef struct history_version {
    uint64_t call;     /* of its put */
    uint64_t returned; /* that put; HISTORY_NEVER: it has not */
    uint64_t since;    /* stored by then, if ever */
    uint64_t until;    /* gone by then */
    bool rejected;
    bool given; /* by a get */
} history_version;

typedef struct history_event {
    const char *what;
    uint32_t version;
    uint64_t call, back;
} history_event;

typedef struct history_key {
    pthread_mutex_t lock;
    history_version *versions; /* version v is at v - 1; memory is taken as it is used */
    uint32_t count;
    uint32_t first_open; /* those before have an end */
    history_event events[HISTORY_EVENTS];
    uint32_t event_count;
} history_key;

struct history {
    uint32_t count;
    history_key keys[];
};

/* Memory that children of fork share; NULL: there is none. */
static void *history_map(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory != MAP_FAILED ? memory : NULL;
}

static size_t history_bytes(uint32_t count)
{
    return sizeof(history) + count * sizeof(history_key);
}

history *history_make(uint32_t count)
{
    pthread_mutexattr_t shared;
    history *all = history_map(history_bytes(count));
    if (all == NULL) return NULL;
    pthread_mutexattr_init(&shared);
    pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&shared, PTHREAD_MUTEX_ROBUST);
    all->count = count;
    for (uint32_t i = 0; i < count; i++) {
        history_key *key = &all->keys[i];
        pthread_mutex_init(&key->lock, &shared);
        key->versions = history_map(HISTORY_VERSIONS * sizeof *key->versions);
        if (key->versions == NULL) abort();
    }
    pthread_mutexattr_destroy(&shared);
    return all;
}

void history_free(history *all)
{
    for (uint32_t i = 0; all != NULL && i < all->count; i++) {
        pthread_mutex_destroy(&all->keys[i].lock);
        munmap(all->keys[i].versions, HISTORY_VERSIONS * sizeof(history_version));
    }
    if (all != NULL) munmap(all, history_bytes(all->count));
}

/* What a process has left that was killed with the lock is sound: it has noted less than it saw, so
 * less is called wrong. */
static history_key *history_lock(history *all, uint32_t key)
{
    if (key >= all->count) abort();
    const int result = pthread_mutex_lock(&all->keys[key].lock);
    if (result == EOWNERDEAD)
        pthread_mutex_consistent(&all->keys[key].lock);
    else if (result != 0)
        abort();
    return &all->keys[key];
}

static void history_unlock(history_key *key)
{
    while (key->first_open < key->count && key->versions[key->first_open].until != HISTORY_NEVER)
        key->first_open++;
    pthread_mutex_unlock(&key->lock);
}

/* Lock held. */
static void history_note(history_key *key, const char *what, uint32_t version, uint64_t call,
                         uint64_t back)
{
    key->events[key->event_count++ % HISTORY_EVENTS] = (history_event){what, version, call, back};
}

static void history_end_by(history_version *version, uint64_t at)
{
    if (at < version->until) version->until = at;
}

/* A version was stored by `at`: what was stored before its put began is gone by then. Lock held. */
static void history_establish(history_key *key, history_version *stored, uint64_t at)
{
    if (at < stored->since) stored->since = at;
    for (uint32_t i = key->first_open; i < key->count; i++) {
        history_version *other = &key->versions[i];
        if (other != stored && other->since < stored->call) history_end_by(other, at);
    }
}

uint32_t history_put_begin(history *all, uint32_t number, uint64_t call)
{
    history_key *key = history_lock(all, number);
    uint32_t version = 0;
    if (key->count < HISTORY_VERSIONS) {
        key->versions[key->count] = (history_version){.call = call,
                                                      .returned = HISTORY_NEVER,
                                                      .since = HISTORY_NEVER,
                                                      .until = HISTORY_NEVER};
        version = ++key->count;
        history_note(key, "put begins", version, call, 0);
    }
    history_unlock(key);
    return version;
}

const char *history_put_end(history *all, uint32_t number, uint32_t version, uint64_t back,
                            history_outcome outcome)
{
    static const char *const names[] = {"", "put kept", "put rejected", "put unknown"};
    const char *wrong = NULL;
    history_key *key = history_lock(all, number);
    if (version == 0 || version > key->count) abort();
    history_version *put = &key->versions[version - 1];
    put->returned = back;
    history_note(key, names[outcome], version, put->call, back);
    if (outcome == HISTORY_KEPT) history_establish(key, put, back);
    if (outcome == HISTORY_UNKNOWN && back < put->since) put->since = back;
    if (outcome == HISTORY_REJECTED) {
        put->rejected = true;
        put->until = 0;
        if (put->given) wrong = "a put says that it kept nothing, and a get has given its version";
    }
    history_unlock(key);
    return wrong;
}

void history_expire(history *all, uint32_t number, uint32_t version, uint64_t at)
{
    history_key *key = history_lock(all, number);
    if (version == 0 || version > key->count) abort();
    history_end_by(&key->versions[version - 1], at);
    history_note(key, "expires", version, at, at);
    history_unlock(key);
}

void history_removed(history *all, uint32_t number, uint64_t call, uint64_t back)
{
    history_key *key = history_lock(all, number);
    history_note(key, "removed", 0, call, back);
    for (uint32_t i = key->first_open; i < key->count; i++)
        if (key->versions[i].since < call) history_end_by(&key->versions[i], back);
    history_unlock(key);
}

void history_cleared(history *all, uint32_t number, uint64_t call, uint64_t back)
{
    history_key *key = history_lock(all, number);
    history_note(key, "cleared", 0, call, back);
    for (uint32_t i = key->first_open; i < key->count; i++)
        if (key->versions[i].returned < call) history_end_by(&key->versions[i], back);
    history_unlock(key);
}

/* What is wrong with a version that was stored within an interval; NULL: nothing. */
static const char *history_judge(const history_version *version, uint64_t call, uint64_t back)
{
    if (version->rejected) return "a get gave what a put had not kept";
    if (version->call >= back) return "a get gave a version before it was put";
    if (version->until < call) return "a get gave what had been removed or replaced";
    return NULL;
}

const char *history_get(history *all, uint32_t number, uint32_t version, uint64_t call,
                        uint64_t back)
{
    const char *wrong = "a get gave a version that was never put";
    history_key *key = history_lock(all, number);
    if (version != 0 && version <= key->count) {
        history_version *given = &key->versions[version - 1];
        wrong = history_judge(given, call, back);
        given->given = true;
        if (wrong == NULL) history_establish(key, given, back);
    }
    history_note(key, wrong == NULL ? "get" : "get, wrong", version, call, back);
    history_unlock(key);
    return wrong;
}

const char *history_found(history *all, uint32_t number, uint64_t call, uint64_t back)
{
    const char *wrong = "a key was found that was not stored";
    history_key *key = history_lock(all, number);
    for (uint32_t i = key->count; i-- > 0 && wrong != NULL;)
        if (history_judge(&key->versions[i], call, back) == NULL) wrong = NULL;
    if (wrong != NULL) history_note(key, "found, wrong", 0, call, back);
    history_unlock(key);
    return wrong;
}

void history_print(history *all, uint32_t number)
{
    history_key *key = history_lock(all, number);
    uint32_t from = key->event_count > HISTORY_EVENTS ? key->event_count - HISTORY_EVENTS : 0;
    fprintf(stderr, "the last events of key %" PRIu32 ", instants in ns:\n", number);
    for (uint32_t i = from; i < key->event_count; i++) {
        const history_event *event = &key->events[i % HISTORY_EVENTS];
        fprintf(stderr, "  %-14s version %" PRIu32 ", %" PRIu64 " to %" PRIu64 "\n", event->what,
                event->version, event->call, event->back);
    }
    history_unlock(key);
}
