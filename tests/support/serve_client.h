/* SPDX-License-Identifier: Apache-2.0 */
/*
 * serve_client.h - a client of a server, as plain as it can be: one channel, calls that post and
 * wait. It trusts the server.
 */
#ifndef KVT_TESTS_SUPPORT_SERVE_CLIENT_H
#define KVT_TESTS_SUPPORT_SERVE_CLIENT_H

#include "peer_support.h"

#include "base/clock.h"
#include "serve/wire/key_records.h"
#include "serve/wire/peer_socket.h"
#include "serve/wire/pending.h"
#include "serve/wire/request_records.h"
#include "serve/wire/shared_memory.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#define CLIENT_ENTRIES 16u
#define CLIENT_RECORD  16384u /* bytes for the record of each open request */

typedef struct serve_client {
    int socket, bells[2];
    uint32_t protocol, number; /* of the last question */
    char *area;
    wire_channel places;
    base_ring submissions, completions;
    _Atomic uint64_t claimed;
    uint64_t next;
    wire_pending pending;
    wire_region regions[WIRE_REGIONS_MAX + 1]; /* where the client has them */
} serve_client;

/* The next message of the server; its descriptors go to `descriptors`. KVT_E_GONE: the session has
 * ended. */
static inline kvt_status client_message(serve_client *at, uint32_t least, uint32_t most,
                                        wire_message *message_out, int descriptors[3])
{
    wire_packet packet;
    const wire_expected comes = {WIRE_FROM_SERVER, least, most};
    struct pollfd wait = {.fd = at->socket, .events = POLLIN};
    while (poll(&wait, 1, -1) < 0)
        continue;
    kvt_status status = wire_receive(at->socket, &packet);
    if (status != KVT_OK) return status;
    status =
        wire_message_read(packet.bytes, packet.size, packet.descriptor_count, &comes, message_out);
    for (uint32_t i = 0; i < packet.descriptor_count; i++)
        descriptors[i] = packet.descriptors[i];
    return status;
}

/* Asks, and takes the answer. */
static inline kvt_status client_ask(serve_client *at, wire_message *message, const int *sent,
                                    uint32_t count, wire_message *answer, int descriptors[3])
{
    kvt_status status = wire_send(at->socket, message, sent, count);
    if (status == KVT_OK)
        status = client_message(at, at->protocol, at->protocol, answer, descriptors);
    if (status == KVT_OK && answer->head.number != message->head.number) return KVT_E_CORRUPT;
    if (status == KVT_OK && answer->head.kind == WIRE_DONE) return answer->head.status;
    return status;
}

static inline kvt_status client_hello(serve_client *at, const char *path)
{
    const wire_speaks speaks = {WIRE_PROTOCOL, WIRE_PROTOCOL, 0x200, wire_structs, WIRE_STRUCTS};
    wire_message message, answer;
    *at = (serve_client){.socket = -1};
    kvt_status status = wire_connect(path, &at->socket);
    if (status != KVT_OK) return status;
    wire_hello_make(&message, &speaks, "a test", base_clock_ns());
    status = wire_send(at->socket, &message, NULL, 0);
    if (status == KVT_OK) status = client_message(at, 0, WIRE_PROTOCOL, &answer, (int[3]){0});
    if (status != KVT_OK || answer.head.kind == WIRE_REFUSED)
        return status != KVT_OK ? status : answer.head.status;
    at->protocol = answer.welcome.protocol;
    at->number = 1;
    return wire_check_welcome(&answer.welcome, &message.hello, &speaks, NULL);
}

/* Opens a channel with so much staging, which is the client's last region. */
static inline kvt_status client_open_staged(serve_client *at, uint64_t staging_bytes)
{
    wire_message message, answer;
    int descriptors[3];
    void *address;
    wire_message_make(&message, WIRE_OPEN_CHANNEL, at->protocol, ++at->number);
    message.open.entries = CLIENT_ENTRIES;
    message.open.argument_bytes = CLIENT_ENTRIES * CLIENT_RECORD;
    message.open.staging_bytes = staging_bytes;
    kvt_status status = client_ask(at, &message, NULL, 0, &answer, descriptors);
    if (status != KVT_OK) return status;
    at->places = answer.channel;
    at->bells[0] = descriptors[1];
    at->bells[1] = descriptors[2];
    status = wire_memory_map(descriptors[0], 0, at->places.area_bytes, WIRE_SEALED_SIZE, &address);
    close(descriptors[0]);
    if (status != KVT_OK) return status;
    at->area = address;
    if (staging_bytes > 0)
        at->regions[WIRE_STAGING] = (wire_region){at->area + at->places.staging, staging_bytes};
    const size_t ring = base_ring_bytes(CLIENT_ENTRIES);
    status =
        base_ring_attach(&at->submissions, at->area + at->places.submissions, ring, CLIENT_ENTRIES);
    if (status == KVT_OK)
        status = base_ring_attach(&at->completions, at->area + at->places.completions, ring,
                                  CLIENT_ENTRIES);
    return status == KVT_OK ? wire_pending_init(&at->pending, CLIENT_ENTRIES) : status;
}

static inline kvt_status client_open_channel(serve_client *at)
{
    return client_open_staged(at, 0);
}

/* Registers `bytes` of new memory, which stays mapped here until client_close. */
static inline kvt_status client_register(serve_client *at, uint64_t bytes, int seals,
                                         char **address_out, uint32_t *region_out)
{
    wire_message message, answer;
    *address_out = NULL;
    const int memory = memfd_create("client", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(memory >= 0 && ftruncate(memory, (off_t)bytes) == 0);
    assert_int_equal(fcntl(memory, F_ADD_SEALS, seals), 0);
    char *address = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    assert_true(address != MAP_FAILED);
    wire_message_make(&message, WIRE_REGISTER, at->protocol, ++at->number);
    message.registers.bytes = bytes;
    const kvt_status status = client_ask(at, &message, &memory, 1, &answer, (int[3]){0});
    close(memory);
    if (status != KVT_OK) {
        munmap(address, bytes);
        return status;
    }
    at->regions[answer.one.value] = (wire_region){address, bytes};
    *address_out = address;
    if (region_out != NULL) *region_out = answer.one.value;
    return KVT_OK;
}

static inline kvt_status client_one(serve_client *at, wire_kind kind, uint32_t value)
{
    wire_message message, answer;
    wire_message_make(&message, kind, at->protocol, ++at->number);
    message.one.value = value;
    return client_ask(at, &message, NULL, 0, &answer, (int[3]){0});
}

/* The record of a request, and where the server writes its answer. */
static inline char *client_record(serve_client *at, const wire_request *request)
{
    return at->area + at->places.arguments + request->number % CLIENT_ENTRIES * CLIENT_RECORD;
}

/* A request that has its number, and no record yet. */
static inline kvt_status client_make(serve_client *at, uint32_t kind, const kvt_key *key,
                                     wire_request *request)
{
    *request = (wire_request){.kind = (uint16_t)kind};
    if (key != NULL) request->key = *key;
    return wire_pending_open(&at->pending, (wire_request_kind)kind, CLIENT_RECORD,
                             &request->number);
}

/* Posts a request, whose record is written where bytes is above 0. */
static inline kvt_status client_send(serve_client *at, wire_request *request, size_t bytes)
{
    request->argument_bytes = (uint32_t)bytes;
    if (bytes > 0) request->argument = request->number % CLIENT_ENTRIES * CLIENT_RECORD;
    return peer_post(&at->submissions, &at->claimed, at->bells[0], request);
}

/* Posts a request; head is a wire_get or wire_put, or NULL for kinds without a record. */
static inline kvt_status client_post(serve_client *at, uint32_t kind, const kvt_key *key,
                                     const void *head, const kvt_view *view, uint64_t *number_out)
{
    wire_request request;
    size_t bytes = 0;
    kvt_status status = client_make(at, kind, key, &request);
    char *record = client_record(at, &request);
    if (status != KVT_OK) return status;
    *number_out = request.number;
    if (head != NULL && kind == WIRE_GET)
        status = wire_get_write(head, view, 1, at->regions, record, CLIENT_RECORD, &bytes);
    else if (head != NULL)
        status =
            wire_put_write(head, NULL, NULL, view, 1, at->regions, record, CLIENT_RECORD, &bytes);
    return status == KVT_OK ? client_send(at, &request, bytes) : status;
}

/* Takes the next completion, waited for; KVT_E_GONE: the session has ended. */
static inline kvt_status client_take(serve_client *at, wire_completion *done_out)
{
    base_ring_body body;
    kvt_status status;
    uint32_t place;
    while ((status = base_ring_take(&at->completions, at->next, &body)) == KVT_END) {
        if (!base_ring_sleeps(&at->completions, at->next)) continue;
        struct pollfd waits[] = {{.fd = at->bells[1], .events = POLLIN},
                                 {.fd = at->socket, .events = POLLIN}};
        if (poll(waits, 2, -1) < 0) continue;
        if (waits[1].revents != 0) return KVT_E_GONE;
        wire_bell_clear(at->bells[1]);
    }
    if (status != KVT_OK) return status;
    at->next++;
    status = wire_completion_read(&body, done_out);
    return status == KVT_OK ? wire_pending_close(&at->pending, done_out, &place) : status;
}

/* Posts and waits for its completion, with no other request open. */
static inline kvt_status client_call(serve_client *at, uint32_t kind, const kvt_key *key,
                                     const void *head, const kvt_view *view)
{
    uint64_t number;
    wire_completion done;
    kvt_status status = client_post(at, kind, key, head, view, &number);
    if (status == KVT_OK) status = client_take(at, &done);
    if (status != KVT_OK) return status;
    return done.number == number ? done.status : KVT_E_CORRUPT;
}

/* Posts a request, waits for its completion, with no other open, and gives its status. */
static inline kvt_status client_finish(serve_client *at, wire_request *request, size_t bytes,
                                       wire_completion *done_out)
{
    kvt_status status = client_send(at, request, bytes);
    if (status == KVT_OK) status = client_take(at, done_out);
    if (status != KVT_OK) return status;
    return done_out->number == request->number ? done_out->status : KVT_E_CORRUPT;
}

/* A call on a list of keys. The answer, if any, is at client_record of *request_out. */
static inline kvt_status client_list(serve_client *at, uint32_t kind, const wire_list *list,
                                     const kvt_key *keys, wire_request *request_out,
                                     wire_completion *done_out)
{
    size_t bytes = 0;
    kvt_status status = client_make(at, kind, NULL, request_out);
    if (status == KVT_OK)
        status = wire_list_write(kind, list, keys, client_record(at, request_out), CLIENT_RECORD,
                                 &bytes);
    return status == KVT_OK ? client_finish(at, request_out, bytes, done_out) : status;
}

/* A call on one key, or on a number. */
static inline kvt_status client_plain(serve_client *at, uint32_t kind, const kvt_key *key,
                                      uint64_t argument)
{
    wire_request request;
    wire_completion done;
    kvt_status status = client_make(at, kind, key, &request);
    request.argument = argument;
    return status == KVT_OK ? client_finish(at, &request, 0, &done) : status;
}

static inline void client_close(serve_client *at)
{
    if (at->area != NULL) wire_memory_unmap(at->area, at->places.area_bytes);
    for (uint32_t i = 0; i < WIRE_REGIONS_MAX; i++)
        if (at->regions[i].address != NULL) munmap(at->regions[i].address, at->regions[i].bytes);
    if (at->area != NULL) {
        close(at->bells[0]);
        close(at->bells[1]);
    }
    if (at->socket >= 0) close(at->socket);
    wire_pending_free(&at->pending);
    *at = (serve_client){.socket = -1};
}

#endif
