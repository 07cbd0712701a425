/* SPDX-License-Identifier: Apache-2.0 */
/*
 * session.c - one client: agrees with it, opens its channels and maps its memory, until either side
 * ends it. A descriptor that a client sends may make this thread wait, and no other.
 */
#include "serve/server/server_internal.h"

#include "base/clock.h"
#include "serve/server/region_guard.h"
#include "serve/wire/control.h"
#include "serve/wire/shared_memory.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SERVER_LEAVE_LOOK_MS 10

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* Linux 6.5 */
#endif

/* Has `process` end with the client's process: a child of fork may hold the socket open beyond it.
 * Without a pidfd the socket alone says it. KVT_OK; KVT_E_GONE: the process has ended. */
static kvt_status session_watch(server_session *session, const wire_peer *peer)
{
    socklen_t size = sizeof session->process;
    if (getsockopt(session->socket, SOL_SOCKET, SO_PEERPIDFD, &session->process, &size) == 0)
        return KVT_OK;
    session->process = -1;
    if (peer->process <= 0) return KVT_OK;
    session->process = (int)syscall(SYS_pidfd_open, peer->process, 0);
    return session->process < 0 && errno == ESRCH ? KVT_E_GONE : KVT_OK;
}

static bool session_is_quiet(const server_session *session)
{
    for (uint32_t i = 0; i < SERVER_CHANNELS; i++) {
        const server_channel *channel = session->channels[i];
        if (channel != NULL && !server_channel_is_quiet(channel)) return false;
    }
    return true;
}

/* The server leaves: tells the client once. KVT_OK: requests are under way; KVT_E_CANCELLED: none
 * was at two looks, or their time has passed; what wire_send says. */
static kvt_status session_leave(server_session *session)
{
    const uint64_t now_ns = base_clock_ns(), end_ns = atomic_load(&session->lends->leave_ns);
    const uint64_t left_ns = end_ns > now_ns ? end_ns - now_ns : 0;
    if (session->protocol == 0 || left_ns == 0) return KVT_E_CANCELLED;
    if (!session->told) {
        wire_message message;
        wire_message_make(&message, WIRE_LEAVING, session->protocol, 0);
        message.one.value = (uint32_t)(left_ns / 1000000);
        session->told = true;
        return wire_send(session->socket, &message, NULL, 0);
    }
    session->quiet = session_is_quiet(session) ? session->quiet + 1 : 0;
    return session->quiet < 2 ? KVT_OK : KVT_E_CANCELLED;
}

/* The descriptor that says that events wait, where the client is to be told; else -1. */
static int session_events(const server_session *session)
{
    return session->events != NULL && !session->events_told ? kvt_events_fd(session->events) : -1;
}

/* Tells the client that events wait, once until it asks for them: so one such message lies in the
 * socket at most. What wire_send says. */
static kvt_status session_tell_events(server_session *session)
{
    wire_message message;
    wire_message_make(&message, WIRE_EVENTS_WAIT, session->protocol, 0);
    session->events_told = true;
    return wire_send(session->socket, &message, NULL, 0);
}

/* Waits for a packet. KVT_OK; KVT_E_TIMEOUT; KVT_E_CANCELLED (the server stops, or a channel has
 * ended by itself); what wire_receive says. */
static kvt_status session_next(server_session *session, int timeout_ms, wire_packet *packet_out)
{
    for (;;) {
        struct pollfd waits[] = {
            {.fd = session->socket, .events = POLLIN},
            {.fd = session->lends->end, .events = POLLIN},
            {.fd = session->wake, .events = POLLIN},
            {.fd = session->process, .events = POLLIN},
            {.fd = session->told ? -1 : session->lends->leave, .events = POLLIN},
            {.fd = session_events(session), .events = POLLIN}};
        const int count = poll(waits, sizeof waits / sizeof *waits,
                               session->told ? SERVER_LEAVE_LOOK_MS : timeout_ms);
        if (count < 0 && errno != EINTR) return KVT_E_IO;
        if (count < 0) continue;
        if (waits[1].revents != 0 || waits[2].revents != 0) return KVT_E_CANCELLED;
        if (waits[3].revents != 0) return KVT_E_GONE;
        if (waits[4].revents != 0 || (session->told && count == 0)) {
            const kvt_status status = session_leave(session);
            if (status != KVT_OK) return status;
            continue;
        }
        if (count == 0) return KVT_E_TIMEOUT;
        if (waits[5].revents != 0) {
            const kvt_status status = session_tell_events(session);
            if (status != KVT_OK) return status;
        }
        const kvt_status status = wire_receive(session->socket, packet_out);
        if (status != KVT_END) return status;
    }
}

/* Agrees with the client. KVT_OK; what ends the session. */
static kvt_status session_agree(server_session *session)
{
    const server *lends = session->lends;
    const wire_welcome limits = {.instance = lends->instance,
                                 .registered_bytes = lends->registered_bytes,
                                 .staging_bytes = lends->staging_bytes,
                                 .depth = lends->depth,
                                 .channels = SERVER_CHANNELS,
                                 .argument_bytes = SERVER_RECORD_BYTES};
    wire_packet packet;
    wire_message hello, answer;
    kvt_status status = session_next(session, SERVER_HELLO_MS, &packet);
    if (status != KVT_OK) return status;
    const wire_expected expected = {WIRE_FROM_CLIENT, 0, 0};
    status =
        wire_message_read(packet.bytes, packet.size, packet.descriptor_count, &expected, &hello);
    wire_packet_close(&packet);
    if (status != KVT_OK) return status;
    status = wire_answer_hello(&hello.hello, &wire_own_speaks, &limits, base_clock_ns(), &answer);
    session->protocol = answer.head.protocol;
    const kvt_status sent = wire_send(session->socket, &answer, NULL, 0);
    return status != KVT_OK ? status : sent;
}

static kvt_status session_done(server_session *session, const wire_message *asked,
                               kvt_status status)
{
    wire_message answer;
    wire_message_make(&answer, WIRE_DONE, session->protocol, asked->head.number);
    answer.head.status = status;
    return wire_send(session->socket, &answer, NULL, 0);
}

static kvt_status session_open_channel(server_session *session, const wire_message *asked)
{
    uint32_t number = 0;
    while (number < SERVER_CHANNELS && session->channels[number] != NULL)
        number++;
    if (number == SERVER_CHANNELS) return session_done(session, asked, KVT_BUSY);
    wire_message answer;
    int descriptors[3];
    wire_message_make(&answer, WIRE_CHANNEL, session->protocol, asked->head.number);
    kvt_status status = server_channel_open(session, &asked->open, &answer.channel, descriptors,
                                            &session->channels[number]);
    if (status != KVT_OK) return session_done(session, asked, status);
    answer.channel.channel = number;
    status = wire_send(session->socket, &answer, descriptors, 3);
    close(descriptors[0]);
    return status;
}

static kvt_status session_close_channel(server_session *session, const wire_message *asked)
{
    const uint32_t number = asked->one.value;
    if (number >= SERVER_CHANNELS || session->channels[number] == NULL)
        return session_done(session, asked, KVT_E_ARGUMENT);
    server_channel_close(session->channels[number]);
    session->channels[number] = NULL;
    return session_done(session, asked, KVT_OK);
}

/* Maps a client's memory under a number that no request can have named before the answer. */
static kvt_status session_register(server_session *session, const wire_message *asked,
                                   int descriptor)
{
    const uint64_t bytes = asked->registers.bytes;
    uint32_t number = 0;
    while (number < WIRE_REGIONS_MAX && session->regions[number].address != NULL)
        number++;
    if (number == WIRE_REGIONS_MAX) return session_done(session, asked, KVT_BUSY);
    if (bytes > session->lends->registered_bytes - session->registered_bytes)
        return session_done(session, asked, KVT_E_SPACE);
    void *address;
    kvt_status status =
        wire_memory_map(descriptor, asked->registers.offset, bytes, WIRE_SEALED_SHRINK, &address);
    if (status == KVT_OK) {
        status = server_guard_add(address, bytes, wire_memory_page(descriptor), session->wake);
        if (status != KVT_OK) wire_memory_unmap(address, bytes);
    }
    if (status != KVT_OK) return session_done(session, asked, status);
    session->registered_bytes += bytes;
    pthread_mutex_lock(&session->lock);
    session->regions[number] = (wire_region){.address = address, .bytes = bytes};
    pthread_mutex_unlock(&session->lock);
    wire_message answer;
    wire_message_make(&answer, WIRE_REGION, session->protocol, asked->head.number);
    answer.one.value = number;
    return wire_send(session->socket, &answer, NULL, 0);
}

static void region_unmap(const wire_region *region)
{
    if (region->address == NULL) return;
    server_guard_remove(region->address);
    wire_memory_unmap(region->address, region->bytes);
}

/* Unmaps a region that no request names. */
static kvt_status session_release(server_session *session, uint32_t number)
{
    if (number >= WIRE_REGIONS_MAX) return KVT_E_ARGUMENT;
    pthread_mutex_lock(&session->lock);
    const wire_region region = session->regions[number];
    const bool used = session->uses[number] > 0;
    if (!used) session->regions[number] = (wire_region){0};
    pthread_mutex_unlock(&session->lock);
    if (region.address == NULL) return KVT_E_ARGUMENT;
    if (used) return KVT_BUSY;
    region_unmap(&region);
    assert(session->registered_bytes >= region.bytes);
    session->registered_bytes -= region.bytes;
    return KVT_OK;
}

/* Carries out one message. Another status than KVT_OK ends the session. */
static kvt_status session_carry_out(server_session *session, const wire_message *asked,
                                    const wire_packet *packet)
{
    switch (asked->head.kind) {
    case WIRE_OPEN_CHANNEL: return session_open_channel(session, asked);
    case WIRE_CLOSE_CHANNEL: return session_close_channel(session, asked);
    case WIRE_REGISTER: return session_register(session, asked, packet->descriptors[0]);
    case WIRE_RELEASE:
        return session_done(session, asked, session_release(session, asked->one.value));
    case WIRE_CALL: return server_call(session, asked);
    default: return KVT_E_CORRUPT;
    }
}

static kvt_status session_serve(server_session *session)
{
    const wire_expected expected = {WIRE_FROM_CLIENT, session->protocol, session->protocol};
    kvt_status status = KVT_OK;
    while (status == KVT_OK) {
        wire_packet packet;
        wire_message message;
        status = session_next(session, -1, &packet);
        if (status != KVT_OK) return status;
        status = wire_message_read(packet.bytes, packet.size, packet.descriptor_count, &expected,
                                   &message);
        if (status == KVT_OK) status = session_carry_out(session, &message, &packet);
        wire_packet_close(&packet);
    }
    return status;
}

void *server_session_run(void *argument)
{
    server_session *session = argument;
    const server *lends = session->lends;
    wire_peer peer;
    kvt_status status = wire_peer_check(session->socket, lends->users, lends->user_count, &peer);
    if (status == KVT_OK) status = session_watch(session, &peer);
    session->flush_failures = atomic_load(&lends->flush_failures);
    for (size_t i = 0; status == KVT_OK && i < lends->operator_count; i++)
        if (lends->users[lends->user_count - 1 - i] == peer.user) session->is_operator = true;
    if (status == KVT_OK) status = session_agree(session);
    if (status == KVT_OK) status = session_serve(session);
    for (uint32_t i = 0; i < SERVER_CHANNELS; i++)
        if (session->channels[i] != NULL) server_channel_close(session->channels[i]);
    for (uint32_t i = 0; i < WIRE_REGIONS_MAX; i++) {
        assert(session->uses[i] == 0);
        region_unmap(&session->regions[i]);
    }
    kvt_events_close(session->events);
    wire_memory_unmap(session->results, WIRE_RESULT_MAX);
    const int descriptors[] = {session->socket, session->wake, session->process,
                               session->results_memory};
    for (size_t i = 0; i < sizeof descriptors / sizeof *descriptors; i++)
        if (descriptors[i] >= 0) close(descriptors[i]);
    pthread_mutex_destroy(&session->lock);
    const uint64_t one = 1;
    atomic_store(&session->ended, true);
    const ssize_t result = write(session->lends->reaps, &one, sizeof one);
    (void)result;
    return NULL;
}
