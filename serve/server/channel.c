/* SPDX-License-Identifier: Apache-2.0 */
/*
 * channel.c - one channel: takes requests from the ring, answers those that wait for nothing, gives
 * the others to a queue of the store, and posts what became of them. Everything here but
 * open and close runs on the channel's thread.
 */
#include "serve/server/server_internal.h"

#include "base/clock.h"
#include "base/thread.h"
#include "serve/wire/shared_memory.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define CHANNEL_BATCH 64u

/* There is an entry free: each request that was taken has one kept for it. */
static kvt_status channel_post(server_channel *channel, const wire_completion *done)
{
    const base_ring_body body = wire_completion_body(done);
    uint64_t position;
    kvt_status status = base_ring_claim(&channel->completions, &channel->claimed, 1, &position);
    if (status == KVT_OK) status = base_ring_post(&channel->completions, position, &body);
    channel->posted = true;
    return status == KVT_OK ? KVT_OK : KVT_E_CORRUPT;
}

static kvt_status channel_answer(server_channel *channel, const wire_request *request,
                                 kvt_status status)
{
    const wire_completion done = {
        .number = request->number, .kind = request->kind, .status = status};
    return channel_post(channel, &done);
}

/* ---- gets and puts ---- */

/* Notes that a request names regions, or that it no longer does. */
static void channel_count_uses(server_channel *channel, uint64_t regions, bool begins)
{
    server_session *session = channel->session;
    pthread_mutex_lock(&session->lock);
    for (uint32_t i = 0; i < WIRE_REGIONS_MAX; i++) {
        if ((regions >> i & 1) == 0) continue;
        assert(begins || session->uses[i] > 0);
        session->uses[i] += begins ? 1 : (uint32_t)-1;
    }
    pthread_mutex_unlock(&session->lock);
}

static void channel_forget(server_channel *channel, channel_request *one)
{
    if (one->memory == NULL) return;
    channel_count_uses(channel, one->record.regions, false);
    free(one->memory);
    one->memory = NULL;
    one->next_free = channel->first_free;
    channel->first_free = (uint32_t)(one - channel->requests);
    channel->in_flight--;
}

/* Copies a request's record and reads the copy; the regions that it names stay mapped. */
static kvt_status channel_read_record(server_channel *channel, channel_request *one)
{
    const wire_request *request = &one->request;
    const size_t bytes = request->argument_bytes;
    const size_t bases = wire_record_bases(bytes), copy = (bytes + 7) / 8 * 8;
    uint8_t *memory = malloc(copy + bases * 2 * sizeof(void *) + 8);
    if (memory == NULL) return KVT_E_MEMORY;
    memcpy(memory, channel->area + channel->places.arguments + request->argument, bytes);
    one->record =
        (wire_record){.bases = (void **)(void *)(memory + copy),
                      .bases_bytes = (uint64_t *)(void *)(memory + copy + bases * sizeof(void *))};
    server_session *session = channel->session;
    pthread_mutex_lock(&session->lock);
    const kvt_status status =
        wire_record_read(request->kind, memory, bytes, session->regions, &one->record);
    for (uint32_t i = 0; status == KVT_OK && i < WIRE_REGIONS_MAX; i++)
        session->uses[i] += one->record.regions >> i & 1;
    pthread_mutex_unlock(&session->lock);
    if (status != KVT_OK) {
        free(memory);
        return status;
    }
    one->memory = memory;
    return KVT_OK;
}

/* Makes the queue's request of a get or a put. */
static kvt_status channel_begin(server_channel *channel, const wire_request *request,
                                kvt_request *out)
{
    channel_request *one = &channel->requests[channel->first_free];
    assert(channel->first_free < channel->places.entries && one->memory == NULL);
    one->request = *request;
    const kvt_status status = channel_read_record(channel, one);
    if (status != KVT_OK) return status;
    *out = (kvt_request){.struct_size = sizeof *out,
                         .kind = request->kind,
                         .urgency = request->urgency,
                         .view = &one->record.view,
                         .user = channel->first_free};
    if (request->kind == WIRE_PUT) {
        one->record.entry.key = request->key;
        out->entry = &one->record.entry;
        out->deadline_ns = one->record.put.deadline_ns;
    } else {
        out->key = request->key;
        out->deadline_ns = one->record.get.deadline_ns;
        out->loss_max = one->record.get.loss_max;
        out->first_layer = one->record.get.first_layer;
        out->layer_count = one->record.get.layer_count;
    }
    channel->first_free = one->next_free;
    channel->in_flight++;
    return KVT_OK;
}

/* Gives the queue a batch; what it does not accept is answered here. */
static kvt_status channel_submit(server_channel *channel, const kvt_request *batch, size_t count)
{
    kvt_status status = count > 0 ? kvt_queue_submit(channel->queue, batch, count, NULL) : KVT_OK;
    if (status == KVT_OK) return KVT_OK;
    const kvt_status refused = status;
    status = KVT_OK;
    for (size_t i = 0; i < count && status == KVT_OK; i++) {
        channel_request *one = &channel->requests[batch[i].user];
        const wire_request request = one->request;
        channel_forget(channel, one);
        status = channel_answer(channel, &request, refused);
    }
    return status;
}

/* Takes up to a batch of requests. KVT_OK, *moved_out when there was one; KVT_E_CORRUPT. */
static kvt_status channel_take(server_channel *channel, bool *moved_out)
{
    kvt_request batch[CHANNEL_BATCH];
    size_t count = 0;
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; i < CHANNEL_BATCH && status == KVT_OK; i++) {
        base_ring_body body;
        wire_request request;
        status = base_ring_take(&channel->submissions, channel->next, &body);
        if (status != KVT_OK) break;
        channel->next++;
        *moved_out = true;
        /* A client holds no more requests open than a ring has entries. */
        if (channel->in_flight == channel->places.entries ||
            base_ring_room(&channel->completions, &channel->claimed, channel->in_flight) != KVT_OK)
            return KVT_E_CORRUPT;
        status =
            wire_request_read(&body, channel->places.argument_bytes, SERVER_RECORD_BYTES, &request);
        if (status == KVT_OK && request.kind == WIRE_EXISTS)
            status = channel_answer(channel, &request,
                                    kvt_store_exists(channel->session->lends->store, &request.key));
        else if (status == KVT_OK && (request.kind == WIRE_GET || request.kind == WIRE_PUT)) {
            status = channel_begin(channel, &request, &batch[count]);
            if (status == KVT_OK)
                count++;
            else
                status = channel_answer(channel, &request, status);
        } else {
            status =
                channel_answer(channel, &request, status == KVT_OK ? KVT_E_UNSUPPORTED : status);
        }
    }
    if (status != KVT_OK && status != KVT_END) return status;
    return channel_submit(channel, batch, count);
}

/* Posts what the queue has completed. */
static kvt_status channel_drain(server_channel *channel, bool *moved_out)
{
    kvt_completion done[CHANNEL_BATCH];
    done[0].struct_size = sizeof done[0];
    const size_t count = kvt_queue_drain(channel->queue, done, CHANNEL_BATCH);
    kvt_status status = KVT_OK;
    for (size_t i = 0; i < count && status == KVT_OK; i++) {
        channel_request *one = &channel->requests[done[i].user];
        const wire_completion tells = {
            .number = one->request.number,
            .status = done[i].status,
            .kind = one->request.kind,
            .tier = (uint8_t)done[i].tier,
            .flags = (uint8_t)((done[i].timed_out ? WIRE_TIMED_OUT : 0) |
                               (done[i].refused_loss ? WIRE_REFUSED_LOSS : 0) |
                               (done[i].refused_tokens ? WIRE_REFUSED_TOKENS : 0) |
                               (done[i].guess ? WIRE_GUESS : 0)),
            .variant = done[i].variant,
            .stored_bytes = done[i].stored_bytes,
            .elapsed_ns = done[i].elapsed_ns};
        channel_forget(channel, one);
        status = channel_post(channel, &tells);
    }
    *moved_out = *moved_out || count > 0;
    return status;
}

/* ---- its thread ---- */

static void channel_sleep(server_channel *channel)
{
    struct epoll_event event;
    if (base_ring_sleeps(&channel->submissions, channel->next))
        (void)epoll_wait(channel->poller, &event, 1, -1);
}

static bool channel_stopped(const server_channel *channel)
{
    struct pollfd asked = {.fd = channel->stop, .events = POLLIN};
    return poll(&asked, 1, 0) > 0;
}

static void *channel_run(void *argument)
{
    server_channel *channel = argument;
    sigset_t ends_waits;
    sigemptyset(&ends_waits);
    sigaddset(&ends_waits, SERVER_SIGNAL);
    pthread_sigmask(SIG_UNBLOCK, &ends_waits, NULL);
    kvt_status status = KVT_OK;
    while (status == KVT_OK && !channel_stopped(channel)) {
        bool moved = false;
        status = channel_take(channel, &moved);
        if (status == KVT_OK) status = channel_drain(channel, &moved);
        if (channel->posted && base_ring_wakes(&channel->completions) &&
            wire_bell_ring(channel->bells[1]) == KVT_E_IO)
            status = KVT_E_IO;
        channel->posted = false;
        if (status == KVT_OK && !moved) channel_sleep(channel);
    }
    /* No request touches a region after this. */
    kvt_queue_close(channel->queue);
    for (uint32_t i = 0; i < channel->places.entries; i++)
        channel_forget(channel, &channel->requests[i]);
    if (status != KVT_OK) status = wire_bell_ring(channel->session->wake);
    atomic_store(&channel->gone, true);
    return NULL;
}

/* ---- open and close ---- */

/* Lays out an area and makes its rings. */
static kvt_status channel_make_area(server_channel *channel, int *area_out)
{
    wire_channel *places = &channel->places;
    const size_t ring = base_ring_bytes(places->entries);
    places->submissions = 0;
    places->completions = ring;
    places->arguments = (2 * ring + WIRE_PAGE - 1) / WIRE_PAGE * WIRE_PAGE;
    places->staging = places->arguments + places->argument_bytes;
    places->area_bytes = places->staging + places->staging_bytes;
    void *address;
    kvt_status status = wire_memory_make("kvterrace-channel", places->area_bytes, area_out);
    if (status == KVT_OK)
        status = wire_memory_map(*area_out, 0, places->area_bytes, WIRE_SEALED_SIZE, &address);
    if (status != KVT_OK) return status;
    channel->area = address;
    base_ring_make(channel->area + places->submissions, places->entries);
    base_ring_make(channel->area + places->completions, places->entries);
    status = base_ring_attach(&channel->submissions, channel->area + places->submissions, ring,
                              places->entries);
    if (status != KVT_OK) return status;
    return base_ring_attach(&channel->completions, channel->area + places->completions, ring,
                            places->entries);
}

static kvt_status channel_watch(server_channel *channel)
{
    channel->poller = epoll_create1(EPOLL_CLOEXEC);
    channel->stop = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (channel->poller < 0 || channel->stop < 0) return KVT_E_MEMORY;
    const int watched[] = {channel->bells[0], channel->stop, kvt_queue_fd(channel->queue)};
    for (size_t i = 0; i < sizeof watched / sizeof *watched; i++) {
        /* The client's ringing is never read (docs/SERVE.md, Bells). */
        struct epoll_event event = {.events = i == 0 ? EPOLLIN | EPOLLET : EPOLLIN};
        if (epoll_ctl(channel->poller, EPOLL_CTL_ADD, watched[i], &event) != 0) return KVT_E_MEMORY;
    }
    return KVT_OK;
}

/* Gives back all but the thread. */
static void channel_free(server_channel *channel)
{
    wire_memory_unmap(channel->area, channel->places.area_bytes);
    const int descriptors[] = {channel->bells[0], channel->bells[1], channel->stop,
                               channel->poller};
    for (size_t i = 0; i < sizeof descriptors / sizeof *descriptors; i++)
        if (descriptors[i] >= 0) close(descriptors[i]);
    free(channel->requests);
    free(channel);
}

kvt_status server_channel_open(server_session *session, const wire_open_channel *asked,
                               wire_channel *answer, int descriptors[3],
                               server_channel **channel_out)
{
    if (asked->entries > session->lends->depth || asked->argument_bytes > SERVER_AREA_BYTES ||
        asked->staging_bytes != 0)
        return KVT_E_ARGUMENT;
    server_channel *channel = calloc(1, sizeof *channel);
    if (channel == NULL) return KVT_E_MEMORY;
    *channel = (server_channel){
        .session = session, .bells = {-1, -1}, .stop = -1, .poller = -1, .places = *answer};
    channel->places.entries = asked->entries;
    channel->places.argument_bytes = asked->argument_bytes;
    channel->requests = calloc(asked->entries, sizeof *channel->requests);
    for (uint32_t i = 0; channel->requests != NULL && i < asked->entries; i++)
        channel->requests[i].next_free = i + 1;
    descriptors[0] = -1;
    const kvt_queue_options options = {
        .struct_size = sizeof options, .threads = 1, .depth = asked->entries};
    kvt_status status = channel->requests != NULL ? KVT_OK : KVT_E_MEMORY;
    if (status == KVT_OK) status = channel_make_area(channel, &descriptors[0]);
    if (status == KVT_OK) status = wire_bell_make(&channel->bells[0]);
    if (status == KVT_OK) status = wire_bell_make(&channel->bells[1]);
    if (status == KVT_OK) status = kvt_queue_open(session->lends->store, &options, &channel->queue);
    if (status == KVT_OK) status = channel_watch(channel);
    if (status == KVT_OK) status = base_thread_start(&channel->thread, channel_run, channel);
    if (status != KVT_OK) {
        kvt_queue_close(channel->queue);
        if (descriptors[0] >= 0) close(descriptors[0]);
        channel_free(channel);
        return status;
    }
    *answer = channel->places;
    descriptors[1] = channel->bells[0];
    descriptors[2] = channel->bells[1];
    *channel_out = channel;
    return KVT_OK;
}

void server_channel_close(server_channel *channel)
{
    const uint64_t one = 1;
    const ssize_t result = write(channel->stop, &one, sizeof one);
    assert(result == (ssize_t)sizeof one);
    (void)result;
    /* The client may have made the wait at its bell endless. */
    for (uint64_t pause = 100000; !atomic_load(&channel->gone); pause = 10000000) {
        pthread_kill(channel->thread, SERVER_SIGNAL);
        base_sleep(pause);
    }
    pthread_join(channel->thread, NULL);
    channel_free(channel);
}
