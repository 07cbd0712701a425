/* SPDX-License-Identifier: Apache-2.0 */
/*
 * history.c - see history.h.
 */
#include "history.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { HISTORY_EVENTS = 32, HISTORY_FIRST_VERSIONS = 16 };

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
    history_version *versions; /* version v is at v - 1 */
    uint32_t count, room;
    uint32_t first_open; /* those before have an end */
    history_event events[HISTORY_EVENTS];
    uint32_t event_count;
} history_key;

struct history {
    uint32_t count;
    history_key keys[];
};

history *history_make(uint32_t count)
{
    history *all = calloc(1, sizeof *all + count * sizeof all->keys[0]);
    if (all == NULL) return NULL;
    all->count = count;
    for (uint32_t i = 0; i < count; i++)
        pthread_mutex_init(&all->keys[i].lock, NULL);
    return all;
}

void history_free(history *all)
{
    for (uint32_t i = 0; all != NULL && i < all->count; i++) {
        pthread_mutex_destroy(&all->keys[i].lock);
        free(all->keys[i].versions);
    }
    free(all);
}

static history_key *history_lock(history *all, uint32_t key)
{
    if (key >= all->count) abort();
    pthread_mutex_lock(&all->keys[key].lock);
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

static bool history_grow(history_key *key)
{
    if (key->count < key->room) return true;
    uint32_t room = key->room != 0 ? key->room * 2 : HISTORY_FIRST_VERSIONS;
    history_version *versions = realloc(key->versions, room * sizeof *versions);
    if (versions == NULL) return false;
    key->versions = versions;
    key->room = room;
    return true;
}

uint32_t history_put_begin(history *all, uint32_t number, uint64_t call)
{
    history_key *key = history_lock(all, number);
    uint32_t version = 0;
    if (history_grow(key)) {
        key->versions[key->count++] = (history_version){.call = call,
                                                        .returned = HISTORY_NEVER,
                                                        .since = HISTORY_NEVER,
                                                        .until = HISTORY_NEVER};
        version = key->count;
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
