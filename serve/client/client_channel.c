/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client_channel.c - the client's side of a channel: the area, parts of it for requests, posting,
 * taking completions. There is no thread behind it: of the threads that wait one sleeps at the
 * bell, for all.
 */
#include "serve/client/client_internal.h"
#include "serve/client/client_load_state.h"

#include "base/clock.h"
#include "base/wait.h"
#include "serve/wire/shared_memory.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define CLIENT_RECORD_UNIT 64u

/* ---- areas ---- */

static void area_free(client_area *area)
{
    wire_memory_unmap(area->memory, area->places.area_bytes);
    for (int i = 0; i < 2; i++)
        if (area->bells[i] >= 0) close(area->bells[i]);
    client_range_free(&area->arguments);
    client_range_free(&area->staging);
    wire_pending_free(&area->pending);
    free((void *)area->open);
    free(area);
}

static void area_leave(client_area *area)
{
    assert(area->users > 0);
    if (--area->users == 0) area_free(area);
}

/* The server has checked nothing for us: every place lies inside of the area. */
static bool places_are_sound(const wire_channel *places)
{
    const uint64_t ring = base_ring_is_size(places->entries) ? base_ring_bytes(places->entries) : 0;
    const uint64_t parts[][2] = {{places->submissions, ring},
                                 {places->completions, ring},
                                 {places->arguments, places->argument_bytes},
                                 {places->staging, places->staging_bytes}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (parts[i][0] % 64 != 0 || parts[i][0] > places->area_bytes ||
            parts[i][1] > places->area_bytes - parts[i][0])
            return false;
    return ring != 0 && places->area_bytes <= WIRE_MEMORY_MAX;
}

static kvt_status area_fill(client_area *area, int descriptor)
{
    const wire_channel *places = &area->places;
    void *address;
    if (!places_are_sound(places)) return KVT_E_CORRUPT;
    kvt_status status =
        wire_memory_map(descriptor, 0, places->area_bytes, WIRE_SEALED_SIZE, &address);
    if (status != KVT_OK) return status == KVT_E_MEMORY ? status : KVT_E_CORRUPT;
    area->memory = address;
    const size_t ring = base_ring_bytes(places->entries);
    status = base_ring_attach(&area->submissions, area->memory + places->submissions, ring,
                              places->entries);
    if (status == KVT_OK)
        status = base_ring_attach(&area->completions, area->memory + places->completions, ring,
                                  places->entries);
    if (status != KVT_OK) return KVT_E_CORRUPT;
    area->open = (client_request **)calloc(places->entries, sizeof *area->open);
    if (area->open == NULL) return KVT_E_MEMORY;
    status = wire_pending_init(&area->pending, places->entries);
    if (status == KVT_OK)
        status = client_range_init(&area->arguments, places->argument_bytes, CLIENT_RECORD_UNIT);
    if (status == KVT_OK)
        status = client_range_init(&area->staging, places->staging_bytes, WIRE_PAGE);
    return status;
}

kvt_status client_area_make(const wire_channel *places, const int descriptors[3],
                            client_area **area_out)
{
    client_area *area = calloc(1, sizeof *area);
    kvt_status status = area != NULL ? KVT_OK : KVT_E_MEMORY;
    if (status == KVT_OK) {
        *area = (client_area){.places = *places, .bells = {-1, -1}, .users = 1};
        status = area_fill(area, descriptors[0]);
    }
    close(descriptors[0]);
    if (status != KVT_OK) {
        close(descriptors[1]);
        close(descriptors[2]);
        if (area != NULL) area_free(area);
        return status;
    }
    area->bells[0] = descriptors[1];
    area->bells[1] = descriptors[2];
    *area_out = area;
    return KVT_OK;
}

/* ---- coming and going ---- */

void client_channel_attach(client_channel *channel, client_area *area, int socket)
{
    assert(channel->area == NULL);
    channel->area = area;
    channel->regions[WIRE_STAGING] = (wire_region){.address = area->memory + area->places.staging,
                                                   .bytes = area->places.staging_bytes};
    if (channel->poller < 0) return;
    /* The socket tells its end, and that the server leaves. */
    struct epoll_event bell = {.events = EPOLLIN}, ends = {.events = EPOLLIN};
    (void)epoll_ctl(channel->poller, EPOLL_CTL_ADD, area->bells[1], &bell);
    (void)epoll_ctl(channel->poller, EPOLL_CTL_ADD, socket, &ends);
    (void)base_ring_sleeps(&area->completions, area->next);
}

/* Of a request whose completion is filled. */
static void request_ends(client_channel *channel, client_request *request)
{
    request->completed = true;
    if (request->abandoned) {
        client_request_free(channel, request);
        free(request);
    } else if (!request->waited) {
        channel->completed(channel, request);
    }
}

void client_channel_detach(client_channel *channel, int socket)
{
    client_area *area = channel->area;
    if (area == NULL) return;
    client_loads_lose(channel);
    channel->area = NULL;
    channel->regions[WIRE_STAGING] = (wire_region){0};
    if (channel->poller >= 0) {
        /* The server may hold the bell open, and an epoll would go on to see it. */
        (void)epoll_ctl(channel->poller, EPOLL_CTL_DEL, area->bells[1], NULL);
        (void)epoll_ctl(channel->poller, EPOLL_CTL_DEL, socket, NULL);
    }
    for (uint32_t i = 0; i < area->places.entries; i++) {
        client_request *request = area->open[i];
        if (request == NULL) continue;
        area->open[i] = NULL;
        request->untaken = !base_ring_was_taken(&area->submissions, request->position);
        request->done =
            (wire_completion){.kind = request->body.kind,
                              .status = client_lost(request->body.kind, !request->untaken)};
        request_ends(channel, request);
    }
    area_leave(area);
    pthread_cond_broadcast(&channel->arrived);
}

kvt_status client_lost(uint32_t kind, bool posted)
{
    switch (kind) {
    case WIRE_PUT: return posted ? KVT_E_GONE : KVT_REFUSED;
    case WIRE_PASS_BEGIN:
    case WIRE_DELETE: return KVT_E_GONE;
    default: return KVT_MISS;
    }
}

/* ---- requests ---- */

kvt_status client_request_room(client_channel *channel, client_request *request,
                               uint64_t record_bytes, uint64_t staging_bytes)
{
    client_area *area = channel->area;
    assert(request->area == NULL);
    if (area == NULL) return KVT_E_GONE;
    if (!client_range_holds(&area->arguments, record_bytes) ||
        !client_range_holds(&area->staging, staging_bytes))
        return KVT_E_SPACE;
    request->record_bytes = request->staging_bytes = 0;
    if (record_bytes > 0) {
        if (!client_range_take(&area->arguments, record_bytes, &request->record_at))
            return KVT_BUSY;
        request->record_bytes = record_bytes;
    }
    if (staging_bytes > 0) {
        if (!client_range_take(&area->staging, staging_bytes, &request->staging_at)) {
            if (record_bytes > 0)
                client_range_give(&area->arguments, request->record_at, record_bytes);
            request->record_bytes = 0;
            return KVT_BUSY;
        }
        request->staging_bytes = staging_bytes;
    }
    request->area = area;
    area->users++;
    return KVT_OK;
}

void client_request_free(client_channel *channel, client_request *request)
{
    client_area *area = request->area;
    if (area == NULL) return;
    if (request->record_bytes > 0)
        client_range_give(&area->arguments, request->record_at, request->record_bytes);
    if (request->staging_bytes > 0)
        client_range_give(&area->staging, request->staging_at, request->staging_bytes);
    request->record_bytes = request->staging_bytes = 0;
    request->area = NULL;
    if (channel->roomless > 0) {
        pthread_cond_broadcast(&channel->arrived);
        if (channel->reading && area == channel->area) {
            /* The one at the bell may be the one that waits for room. */
            const kvt_status status = wire_bell_ring(area->bells[1]);
            (void)status;
        }
    }
    area_leave(area);
}

kvt_status client_request_post(client_channel *channel, client_request *request)
{
    client_area *area = channel->area;
    wire_request *body = &request->body;
    uint64_t position;
    if (area == NULL || (request->area != NULL && request->area != area)) return KVT_E_GONE;
    /* The server waits for the ends of loads. */
    if (atomic_load(&channel->store->leaving) && body->kind != WIRE_LOAD_END) return KVT_E_GONE;
    if (request->record_bytes > 0) body->argument = request->record_at;
    kvt_status status = wire_pending_open(&area->pending, (wire_request_kind)body->kind,
                                          body->argument_bytes, &body->number);
    if (status != KVT_OK) return status;
    const base_ring_body entry = wire_request_body(body);
    status = base_ring_claim(&area->submissions, &area->claimed, 1, &position);
    if (status == KVT_OK) status = base_ring_post(&area->submissions, position, &entry);
    if (status != KVT_OK) {
        /* No more are open than there are entries, so this server has broken the ring. */
        (void)shutdown(channel->store->socket, SHUT_RDWR);
        return KVT_E_GONE;
    }
    request->position = position;
    request->posted = true;
    request->completed = request->untaken = false;
    area->open[body->number % area->places.entries] = request;
    if (base_ring_wakes(&area->submissions)) status = wire_bell_ring(area->bells[0]);
    return KVT_OK;
}

bool client_request_abandon(client_channel *channel, client_request *request)
{
    client_area *area = channel->area;
    client_request *orphan = malloc(sizeof *orphan);
    assert(request->posted && !request->completed && area != NULL);
    if (orphan == NULL) return false;
    *orphan = *request;
    orphan->waited = false;
    orphan->abandoned = true;
    assert(area->open[request->body.number % area->places.entries] == request);
    area->open[request->body.number % area->places.entries] = orphan;
    request->area = NULL;
    request->record_bytes = request->staging_bytes = 0;
    return true;
}

/* Completes the request that a completion names. KVT_OK; KVT_E_CORRUPT. */
static kvt_status channel_complete(client_channel *channel, const base_ring_body *body)
{
    client_area *area = channel->area;
    wire_completion done;
    uint32_t place;
    kvt_status status = wire_completion_read(body, &done);
    if (status == KVT_OK) status = wire_pending_close(&area->pending, &done, &place);
    if (status != KVT_OK) return status;
    client_request *request = area->open[place];
    if (request == NULL) return KVT_E_CORRUPT; /* its post has failed */
    area->open[place] = NULL;
    request->done = done;
    request_ends(channel, request);
    return KVT_OK;
}

bool client_channel_take(client_channel *channel)
{
    client_area *area = channel->area;
    base_ring_body body;
    kvt_status status = KVT_END;
    bool moved = false;
    if (area == NULL) return false;
    while ((status = base_ring_take(&area->completions, area->next, &body)) == KVT_OK) {
        area->next++;
        status = channel_complete(channel, &body);
        if (status != KVT_OK) break;
        moved = true;
    }
    if (status == KVT_END && client_loads_take(channel, &moved) != KVT_OK) status = KVT_E_CORRUPT;
    if (status != KVT_END) {
        (void)shutdown(channel->store->socket, SHUT_RDWR);
        client_channel_detach(channel, channel->store->socket);
        return true;
    }
    if (moved) pthread_cond_broadcast(&channel->arrived);
    return moved;
}

bool client_channel_look(client_channel *channel)
{
    if (channel->area == NULL) return true;
    struct pollfd asked = {.fd = channel->store->socket, .events = POLLIN};
    if (poll(&asked, 1, 0) > 0 && asked.revents == POLLIN) client_hear(channel->store);
    if ((asked.revents & ~POLLIN) == 0) return false;
    client_channel_detach(channel, channel->store->socket);
    return true;
}

/* Looks at the ring for a moment and sleeps at the bell. The lock is let go meanwhile. */
static kvt_status channel_sleep(client_channel *channel, uint64_t deadline_ns)
{
    client_area *area = channel->area;
    struct pollfd waits[] = {{.fd = area->bells[1], .events = POLLIN},
                             {.fd = channel->store->socket, .events = POLLIN}};
    const uint64_t now_ns = base_clock_ns();
    int timeout_ms = -1;
    if (deadline_ns != KVT_NO_DEADLINE) {
        if (now_ns >= deadline_ns) return KVT_E_TIMEOUT;
        const uint64_t left_ms = (deadline_ns - now_ns) / 1000000 + 1;
        timeout_ms = left_ms < 1000000 ? (int)left_ms : 1000000;
    }
    const uint64_t next = area->next;
    int count = 0;
    bool found = false;
    channel->reading = true;
    area->users++;
    /* Several requests keep more threads of the server busy than one, and a processor that looks is
     * one that they lack. Layers of loads come by another word than the ring's. */
    const bool looks = channel->loads == NULL && area->pending.open <= 1;
    if (looks) {
        pthread_mutex_unlock(&channel->lock);
        found = base_spin_until_not(&channel->spin, base_ring_word(&area->completions, next), next);
        pthread_mutex_lock(&channel->lock);
    }
    if (!found && area == channel->area && base_ring_sleeps(&area->completions, area->next)) {
        bool moved = false;
        /* The server rings for what it writes of loads, too. */
        if (client_loads_take(channel, &moved) == KVT_OK && !moved) {
            pthread_mutex_unlock(&channel->lock);
            count = poll(waits, 2, timeout_ms);
            pthread_mutex_lock(&channel->lock);
        }
    }
    if (looks) base_spin_learn(&channel->spin, base_clock_ns() - now_ns);
    channel->reading = false;
    if (count > 0 && waits[0].revents != 0) wire_bell_clear(area->bells[1]);
    if (count > 0 && waits[1].revents == POLLIN) client_hear(channel->store);
    if (count > 0 && (waits[1].revents & ~POLLIN) != 0) {
        /* Completions that the server has posted before its end count. */
        (void)client_channel_take(channel);
        client_channel_detach(channel, waits[1].fd);
    }
    area_leave(area);
    /* The next one that waits sleeps at the bell. */
    pthread_cond_broadcast(&channel->arrived);
    return KVT_OK;
}

kvt_status client_channel_wait(client_channel *channel, uint64_t deadline_ns)
{
    if (client_channel_take(channel)) return KVT_OK;
    if (channel->area == NULL) {
        /* A caller that waits for a server looks for it. */
        const uint64_t until_ns = base_clock_ns() + CLIENT_LOOK_NS;
        (void)base_condition_wait_until(&channel->arrived, &channel->lock,
                                        until_ns < deadline_ns ? until_ns : deadline_ns);
        return base_clock_ns() < deadline_ns ? KVT_OK : KVT_E_TIMEOUT;
    }
    if (!channel->reading) return channel_sleep(channel, deadline_ns);
    return base_condition_wait_until(&channel->arrived, &channel->lock, deadline_ns)
               ? KVT_OK
               : KVT_E_TIMEOUT;
}
