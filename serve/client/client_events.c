/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client_events.c - a reader of a connected store's events: a session of its own, in which the
 * server has the reader proper. A drain is one question, which no flush of the store's session
 * keeps waiting; the socket becomes readable when events wait (docs/SERVE.md, Events).
 *
 *     reads -> gone (each drain looks for the server) -> reads, of another reader: an event is lost
 *
 * Thread rule: as watch.h: one call on a reader at a time.
 */
#include "serve/client/client_calls.h"

#include "serve/client/client_control.h"
#include "serve/wire/shared_memory.h"

#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define EVENTS_ANSWER_NS UINT64_C(5000000000) /* a drain waits no longer for a server */

typedef struct client_events {
    const base_events_calls *elsewhere; /* first, as in every handle */
    uint32_t forks;
    uint32_t capacity;
    client_store *link; /* a connection without channels */
    int timer;          /* makes the descriptor readable while there is no server */
    bool gone;
    uint64_t lost; /* not told yet */
} client_events;

static client_events *events_of(const kvt_events *handle)
{
    return (client_events *)(uintptr_t)handle;
}

static kvt_store *events_handle(const client_events *reader)
{
    return (kvt_store *)(void *)reader->link;
}

/* A reader at the server that is connected. */
static kvt_status events_begin(const client_events *reader)
{
    const wire_index_argument argument = {.at = {sizeof argument, 0}, .index = reader->capacity};
    return client_order(events_handle(reader), WIRE_CALL_EVENTS_OPEN, &argument, NULL);
}

static void events_look_later(const client_events *reader)
{
    const struct itimerspec pause = {.it_value.tv_nsec = (long)CLIENT_PAUSE_LAST_NS};
    wire_bell_clear(reader->timer);
    (void)timerfd_settime(reader->timer, 0, &pause, NULL);
}

/* Takes what the server has for the reader. KVT_OK; KVT_E_STATE: it has no reader; KVT_E_GONE and
 * others: there is no server to speak of. */
static kvt_status events_ask(client_events *reader, kvt_event *events, size_t capacity,
                             size_t *count_out)
{
    control_result result;
    const wire_index_argument argument = {.at = {sizeof argument, 0},
                                          .index = capacity < WIRE_EVENTS_MAX ? (uint32_t)capacity
                                                                              : WIRE_EVENTS_MAX};
    kvt_status status = client_control(events_handle(reader), WIRE_CALL_EVENTS, &argument, &result);
    if (status == KVT_OK && result.count > argument.index) status = KVT_E_GONE;
    if (status == KVT_OK) {
        const wire_events *told = result.bytes;
        reader->lost += told->lost;
        if (result.count > 0) memcpy(events, told + 1, result.count * sizeof *events);
        *count_out = result.count;
    }
    free(result.bytes);
    return status;
}

static kvt_status events_drain(kvt_events *handle, kvt_event *events, size_t capacity,
                               size_t *count_out, uint64_t *lost_out)
{
    client_events *reader = events_of(handle);
    if (count_out == NULL || (events == NULL && capacity != 0)) return KVT_E_ARGUMENT;
    *count_out = 0;
    if (lost_out != NULL) *lost_out = 0;
    if (!fork_guard_is_current(reader->forks)) return KVT_E_STATE;
    kvt_status status = events_ask(reader, events, capacity, count_out);
    if (status == KVT_E_STATE) {
        /* Another session: what has changed since the last one is not known. */
        status = events_begin(reader);
        if (status == KVT_OK) reader->lost++;
    } else if (status != KVT_OK && !reader->gone) {
        reader->lost++;
    }
    reader->gone = status != KVT_OK;
    if (reader->gone) events_look_later(reader);
    if (lost_out != NULL) {
        *lost_out = reader->lost;
        reader->lost = 0;
    }
    return KVT_OK;
}

static int events_fd(const kvt_events *handle)
{
    const client_events *reader = events_of(handle);
    return fork_guard_is_current(reader->forks) ? reader->link->poller : -1;
}

static void events_free(client_events *reader)
{
    client_store *link = reader->link;
    if (reader->timer >= 0) close(reader->timer);
    if (link != NULL) {
        client_link_end(link);
        if (link->poller >= 0) close(link->poller);
        client_let_go(link);
    }
    free(reader);
}

static void events_close(kvt_events *handle)
{
    client_events *reader = events_of(handle);
    if (fork_guard_is_current(reader->forks)) events_free(reader);
}

static const base_events_calls client_events_calls = {
    .close = events_close, .fd = events_fd, .drain = events_drain};

/* Makes a reader's connection to the server of a store, not connected yet. */
static kvt_status events_fill(client_events *reader, const client_store *store)
{
    client_store *link = malloc(sizeof *link);
    if (link == NULL) return KVT_E_MEMORY;
    reader->link = link;
    *link = (client_store){.elsewhere = store->elsewhere,
                           .forks = store->forks,
                           .holders = 1,
                           .socket = -1,
                           .poller = epoll_create1(EPOLL_CLOEXEC),
                           .pause_ns = CLIENT_PAUSE_FIRST_NS,
                           .answer_by_ns = KVT_NO_DEADLINE,
                           .answer_ns = EVENTS_ANSWER_NS};
    pthread_mutex_init(&link->lock, NULL);
    pthread_mutex_init(&link->file_lock, NULL);
    memcpy(link->path, store->path, sizeof link->path);
    memcpy(link->name, store->name, sizeof link->name);
    if (store->users != NULL) {
        link->users = calloc((size_t)store->user_count + 1, sizeof *link->users);
        if (link->users == NULL) return KVT_E_MEMORY;
        memcpy(link->users, store->users, store->user_count * sizeof *link->users);
        link->user_count = store->user_count;
    }
    reader->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN};
    if (link->poller < 0 || reader->timer < 0) return KVT_E_IO;
    return epoll_ctl(link->poller, EPOLL_CTL_ADD, reader->timer, &event) == 0 ? KVT_OK : KVT_E_IO;
}

kvt_status client_events_open(kvt_store *handle, uint32_t capacity, kvt_events **events_out)
{
    client_store *store;
    if (events_out == NULL) return KVT_E_ARGUMENT;
    *events_out = NULL;
    kvt_status status = client_enter(handle, &store);
    if (status != KVT_OK) return status;
    if (capacity == 0 || capacity > KVT_EVENTS_CAPACITY_MAX) return KVT_E_ARGUMENT;
    client_events *reader = malloc(sizeof *reader);
    if (reader == NULL) return KVT_E_MEMORY;
    *reader = (client_events){.elsewhere = &client_events_calls,
                              .forks = store->forks,
                              .capacity = capacity,
                              .timer = -1};
    status = events_fill(reader, store);
    if (status == KVT_OK) {
        status = client_link_begin(reader->link, NULL, 0);
        if (status != KVT_OK && status != KVT_E_MEMORY) status = KVT_E_GONE;
    }
    if (status == KVT_OK) status = events_begin(reader);
    if (status == KVT_OK)
        *events_out = (kvt_events *)(void *)reader;
    else
        events_free(reader);
    return status;
}
