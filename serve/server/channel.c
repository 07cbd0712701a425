/* SPDX-License-Identifier: Apache-2.0 */
/*
 * channel.c - a channel's life: it is opened with its area, takes requests from the ring, has them
 * carried out, rings the client's bell, and ends.
 *
 * Thread rule: the channel's thread; open and close are the session's.
 */
#include "serve/server/channel_internal.h"

#include "base/clock.h"
#include "base/thread.h"
#include "serve/wire/shared_memory.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

kvt_status server_channel_post(server_channel *channel, const wire_completion *done)
{
    const base_ring_body body = wire_completion_body(done);
    uint64_t position;
    kvt_status status = base_ring_claim(&channel->completions, &channel->claimed, 1, &position);
    if (status == KVT_OK) status = base_ring_post(&channel->completions, position, &body);
    channel->posted = true;
    return status == KVT_OK ? KVT_OK : KVT_E_CORRUPT;
}

kvt_status server_channel_answer(server_channel *channel, const wire_request *request,
                                 kvt_status status)
{
    const wire_completion done = {
        .number = request->number, .kind = request->kind, .status = status};
    return server_channel_post(channel, &done);
}

#define CHANNEL_LOOK_NS  50000 /* at the ring before it sleeps, at most */
#define CHANNEL_SHARE_NS 50000 /* that the thread gives to gets before it looks at the ring again */

/* ---- its thread ---- */

/* Carries out a request that was taken, or gives it to the queue. */
static kvt_status channel_serve(server_channel *channel, const base_ring_body *body)
{
    wire_request request;
    const kvt_status status =
        wire_request_read(body, channel->places.argument_bytes, SERVER_RECORD_BYTES, &request);
    /* An unsound request begins a batch as others do. */
    if ((request.urgency & WIRE_BATCH_BEGINS) != 0) {
        const kvt_status submitted = server_channel_submit(channel);
        if (submitted != KVT_OK) return submitted;
        channel->batch++;
    }
    if (status != KVT_OK) return server_channel_answer(channel, &request, status);
    const bool queued =
        request.kind == WIRE_GET || request.kind == WIRE_PUT || request.kind == WIRE_DELETE;
    return queued ? server_channel_begin(channel, &request)
                  : server_channel_call(channel, &request);
}

/* Takes up to a batch of requests. KVT_OK, *moved_out when there was one; KVT_E_CORRUPT. */
static kvt_status channel_take(server_channel *channel, bool *moved_out)
{
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; i < CHANNEL_BATCH && status == KVT_OK; i++) {
        base_ring_body body;
        status = base_ring_take(&channel->submissions, channel->next, &body);
        if (status != KVT_OK) break;
        channel->next++;
        *moved_out = true;
        /* A client holds no more requests open than a ring has entries. */
        if (channel->in_flight == channel->places.entries ||
            base_ring_room(&channel->completions, &channel->claimed, channel->in_flight) != KVT_OK)
            return KVT_E_CORRUPT;
        status = channel_serve(channel, &body);
    }
    if (status != KVT_OK && status != KVT_END) return status;
    return server_channel_submit(channel);
}

/* Sleeps until there is something to do, or that instant. While requests are in flight it is the
 * queue that may have something, and the ring is not looked at first. */
static void channel_sleep(server_channel *channel, uint64_t until_ns)
{
    struct epoll_event event;
    int timeout_ms = server_channel_loads_pause(channel);
    const bool looks = timeout_ms >= 0; /* at the devices of loads */
    const bool idle = channel->in_flight == 0 && channel->loads == NULL;
    const uint64_t began_ns = base_clock_ns();
    const bool found =
        idle &&
        base_spin_until_not(&channel->spin, base_ring_word(&channel->submissions, channel->next),
                            channel->next);
    /* The client rings for what it has released, too. */
    if (!found && base_ring_sleeps(&channel->submissions, channel->next) &&
        !server_channel_loads_turn(channel)) {
        if (until_ns < KVT_STORE_DEADLINE) {
            const uint64_t left_ms = until_ns > began_ns ? (until_ns - began_ns) / 1000000 + 1 : 0;
            const int most_ms = left_ms < 1000000 ? (int)left_ms : 1000000;
            if (timeout_ms < 0 || timeout_ms > most_ms) timeout_ms = most_ms;
        }
        if (epoll_wait(channel->poller, &event, 1, timeout_ms) == 0 && looks)
            server_channel_loads_check(channel);
    }
    if (idle) base_spin_learn(&channel->spin, base_clock_ns() - began_ns);
}

/* Carries out gets of what lies in memory, without a hand-over, where the queue may have some. */
static void channel_help(server_channel *channel)
{
    const bool helps = channel->helps && channel->in_flight > 0;
    channel->helps = false;
    if (helps) (void)!kvt_queue_wait(channel->queue, base_clock_ns() + CHANNEL_SHARE_NS);
}

static void *channel_run(void *argument)
{
    server_channel *channel = argument;
    sigset_t ends_waits;
    sigemptyset(&ends_waits);
    sigaddset(&ends_waits, SERVER_SIGNAL);
    pthread_sigmask(SIG_UNBLOCK, &ends_waits, NULL);
    kvt_status status = KVT_OK;
    while (status == KVT_OK && !atomic_load(&channel->stops)) {
        bool moved = false;
        uint64_t until_ns = KVT_NO_DEADLINE;
        status = channel_take(channel, &moved);
        channel_help(channel);
        if (status == KVT_OK) status = server_channel_drain(channel, &moved);
        if (status == KVT_OK) status = server_channel_release(channel, &until_ns);
        moved = server_channel_loads_turn(channel) || moved;
        if (channel->posted && base_ring_wakes(&channel->completions) &&
            wire_bell_ring(channel->bells[1]) == KVT_E_IO)
            status = KVT_E_IO;
        channel->posted = false;
        if (status == KVT_OK && !moved) channel_sleep(channel, until_ns);
    }
    /* No load and no request touches a region after these two. */
    server_channel_loads_end(channel);
    kvt_queue_close(channel->queue);
    server_channel_forget_all(channel);
    server_channel_leases_forget(channel);
    server_channel_passes_end(channel);
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
    if (places->staging_bytes > 0)
        channel->staging = (wire_region){channel->area + places->staging, places->staging_bytes};
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
    channel->nudge = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (channel->poller < 0 || channel->stop < 0 || channel->nudge < 0) return KVT_E_MEMORY;
    const int watched[] = {channel->bells[0], channel->nudge, channel->stop,
                           kvt_queue_fd(channel->queue)};
    for (size_t i = 0; i < sizeof watched / sizeof *watched; i++) {
        /* The client's ringing is never read (docs/SERVE.md, Bells). */
        struct epoll_event event = {.events = i < 2 ? EPOLLIN | EPOLLET : EPOLLIN};
        if (epoll_ctl(channel->poller, EPOLL_CTL_ADD, watched[i], &event) != 0) return KVT_E_MEMORY;
    }
    return KVT_OK;
}

/* Gives back all but the thread. */
static void channel_free(server_channel *channel)
{
    wire_memory_unmap(channel->area, channel->places.area_bytes);
    const int descriptors[] = {channel->bells[0], channel->bells[1], channel->stop, channel->nudge,
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
    if (asked->entries > session->lends->depth || asked->argument_bytes > SERVER_AREA_BYTES)
        return KVT_E_ARGUMENT;
    if (asked->staging_bytes > session->lends->staging_bytes - session->staging_bytes)
        return KVT_E_SPACE;
    server_channel *channel = calloc(1, sizeof *channel);
    if (channel == NULL) return KVT_E_MEMORY;
    *channel = (server_channel){.session = session,
                                .bells = {-1, -1},
                                .stop = -1,
                                .nudge = -1,
                                .poller = -1,
                                .places = *answer};
    base_spin_init(&channel->spin, CHANNEL_LOOK_NS);
    channel->places.entries = asked->entries;
    channel->places.argument_bytes = asked->argument_bytes;
    channel->places.staging_bytes = asked->staging_bytes;
    channel->requests = calloc(asked->entries, sizeof *channel->requests);
    for (uint32_t i = 0; channel->requests != NULL && i < asked->entries; i++)
        channel->requests[i].next_free = i + 1;
    descriptors[0] = -1;
    const kvt_queue_options options = {.struct_size = sizeof options,
                                       .threads = 1,
                                       .depth = asked->entries,
                                       .submitter_waits = true};
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
    session->staging_bytes += asked->staging_bytes;
    *answer = channel->places;
    descriptors[1] = channel->bells[0];
    descriptors[2] = channel->bells[1];
    *channel_out = channel;
    return KVT_OK;
}

bool server_channel_is_quiet(const server_channel *channel)
{
    /* The word is the client's to write, too: it can end its own session early, or have it end with
     * the time. */
    return atomic_load(&channel->in_flight) == 0 && atomic_load(&channel->load_count) == 0 &&
           atomic_load(&channel->submissions.words->asleep) != 0;
}

void server_channel_close(server_channel *channel)
{
    const uint64_t one = 1;
    atomic_store(&channel->stops, true);
    const ssize_t result = write(channel->stop, &one, sizeof one);
    assert(result == (ssize_t)sizeof one);
    (void)result;
    /* The client may have made the wait at its bell endless. */
    for (uint64_t pause = 100000; !atomic_load(&channel->gone); pause = 10000000) {
        pthread_kill(channel->thread, SERVER_SIGNAL);
        base_sleep(pause);
    }
    pthread_join(channel->thread, NULL);
    assert(channel->session->staging_bytes >= channel->places.staging_bytes);
    channel->session->staging_bytes -= channel->places.staging_bytes;
    channel_free(channel);
}
