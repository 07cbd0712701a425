/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_wire_channel.c - a channel between two processes: agreement, an area and a region by
 * descriptor, requests and completions in rings. And a server that writes anything: no completion
 * is taken for a request that is not open.
 */
#include "peer_support.h"
#include "ring_support.h"
#include "wire_support.h"

#include "base/clock.h"
#include "serve/wire/peer_socket.h"
#include "serve/wire/pending.h"
#include "serve/wire/shared_memory.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>

#define ENTRIES  16u
#define REQUESTS 5000u
#define PAGES    16u
#define PAGE     4096u

/* One side of a channel. */
typedef struct side {
    int socket;
    int bells[2]; /* the server's, the client's */
    char *area, *region;
    base_ring submissions, completions;
    _Atomic uint64_t claimed;
} side;

/* The next message, waited for; its descriptors go to `descriptors`. */
static kvt_status next_message(int socket, wire_expected expected, wire_message *message_out,
                               int descriptors[WIRE_DESCRIPTORS_MAX])
{
    static wire_packet packet;
    struct pollfd wait = {.fd = socket, .events = POLLIN};
    if (poll(&wait, 1, -1) != 1) return KVT_E_IO;
    kvt_status status = wire_receive(socket, &packet);
    if (status != KVT_OK) return status;
    status = wire_message_read(packet.bytes, packet.size, packet.descriptor_count, &expected,
                               message_out);
    if (status != KVT_OK) wire_packet_close(&packet);
    memcpy(descriptors, packet.descriptors, sizeof packet.descriptors);
    return status;
}

static kvt_status attach(side *at, int area, const wire_channel *channel)
{
    void *address;
    const size_t ring = base_ring_bytes(channel->entries);
    kvt_status status = wire_memory_map(area, 0, channel->area_bytes, WIRE_SEALED_SIZE, &address);
    close(area);
    if (status != KVT_OK) return status;
    at->area = address;
    status =
        base_ring_attach(&at->submissions, at->area + channel->submissions, ring, channel->entries);
    if (status != KVT_OK) return status;
    return base_ring_attach(&at->completions, at->area + channel->completions, ring,
                            channel->entries);
}

/* ---- the server's process ---- */

static kvt_status server_welcomes(side *at)
{
    wire_message message, answer;
    int descriptors[WIRE_DESCRIPTORS_MAX];
    const wire_welcome limits = wire_test_limits();
    kvt_status status =
        next_message(at->socket, (wire_expected){WIRE_FROM_CLIENT, 0, 0}, &message, descriptors);
    if (status != KVT_OK) return status;
    status =
        wire_answer_hello(&message.hello, &wire_test_speaks, &limits, base_clock_ns(), &answer);
    if (status != KVT_OK) return status;
    return wire_send(at->socket, &answer, NULL, 0);
}

static kvt_status server_opens(side *at)
{
    wire_message message, answer;
    int descriptors[WIRE_DESCRIPTORS_MAX];
    const wire_expected expected = {WIRE_FROM_CLIENT, 3, 3};
    kvt_status status = next_message(at->socket, expected, &message, descriptors);
    if (status != KVT_OK || message.head.kind != WIRE_OPEN_CHANNEL) return KVT_E_STATE;
    const uint32_t entries = message.open.entries;
    wire_message_make(&answer, WIRE_CHANNEL, 3, message.head.number);
    wire_channel *channel = &answer.channel;
    channel->entries = entries;
    channel->completions = base_ring_bytes(entries);
    channel->arguments = (2 * base_ring_bytes(entries) + PAGE - 1) / PAGE * PAGE;
    channel->argument_bytes = message.open.argument_bytes;
    channel->staging = channel->arguments + channel->argument_bytes;
    channel->staging_bytes = message.open.staging_bytes;
    channel->area_bytes = channel->staging + channel->staging_bytes;
    int sent[3];
    void *address;
    status = wire_memory_make("area", channel->area_bytes, &sent[0]);
    if (status == KVT_OK) status = wire_bell_make(&sent[1]);
    if (status == KVT_OK) status = wire_bell_make(&sent[2]);
    if (status == KVT_OK)
        status = wire_memory_map(sent[0], 0, channel->area_bytes, WIRE_SEALED_SIZE, &address);
    if (status != KVT_OK) return status;
    base_ring_make((char *)address + channel->submissions, entries);
    base_ring_make((char *)address + channel->completions, entries);
    wire_memory_unmap(address, channel->area_bytes);
    memcpy(at->bells, &sent[1], sizeof at->bells);
    status = wire_send(at->socket, &answer, sent, 3);
    return status == KVT_OK ? attach(at, sent[0], channel) : status;
}

static kvt_status server_registers(side *at)
{
    wire_message message, answer;
    int descriptors[WIRE_DESCRIPTORS_MAX];
    void *address;
    const wire_expected expected = {WIRE_FROM_CLIENT, 3, 3};
    kvt_status status = next_message(at->socket, expected, &message, descriptors);
    if (status != KVT_OK || message.head.kind != WIRE_REGISTER) return KVT_E_STATE;
    status = wire_memory_map(descriptors[0], message.registers.offset, message.registers.bytes,
                             WIRE_SEALED_SHRINK, &address);
    close(descriptors[0]);
    if (status != KVT_OK) return status;
    at->region = address;
    wire_message_make(&answer, WIRE_REGION, 3, message.head.number);
    return wire_send(at->socket, &answer, NULL, 0);
}

/* Writes each request's page of the region: what its argument record says. */
static kvt_status server_answers(side *at, const wire_channel *channel, const wire_request *request,
                                 kvt_status status)
{
    wire_completion done = {.number = request->number, .kind = request->kind};
    uint32_t word = 0;
    if (status == KVT_OK && request->argument_bytes == sizeof word) {
        memcpy(&word, at->area + channel->arguments + request->argument, sizeof word);
        memset(at->region + (uint64_t)(word % PAGES) * PAGE, (int)(word % 251), PAGE);
    }
    done.status = status;
    done.answer = word;
    const base_ring_body body = wire_completion_body(&done);
    uint64_t position;
    status = base_ring_claim(&at->completions, &at->claimed, 1, &position);
    return status == KVT_OK ? base_ring_post(&at->completions, position, &body) : status;
}

/* Answers batches of what has come, the last request of a batch first. */
static kvt_status server_serves(side *at, const wire_channel *channel)
{
    uint64_t next = 0;
    while (next < REQUESTS) {
        wire_request batch[ENTRIES];
        kvt_status sound[ENTRIES];
        uint32_t count = 0;
        base_ring_body body;
        kvt_status status = KVT_OK;
        while (count < 1 + next % ENTRIES &&
               base_ring_room(&at->completions, &at->claimed, count) == KVT_OK &&
               (status = base_ring_take(&at->submissions, next, &body)) == KVT_OK) {
            sound[count] = wire_request_read(&body, channel->argument_bytes, 4096, &batch[count]);
            count++;
            next++;
        }
        if (status != KVT_OK && status != KVT_END) return status;
        for (uint32_t i = count; i > 0; i--)
            if ((status = server_answers(at, channel, &batch[i - 1], sound[i - 1])) != KVT_OK)
                return status;
        if (count > 0 && base_ring_wakes(&at->completions)) {
            if ((status = wire_bell_ring(at->bells[1])) != KVT_OK) return status;
        }
        if (count > 0 || !base_ring_sleeps(&at->submissions, next)) continue;
        struct pollfd wait = {.fd = at->bells[0], .events = POLLIN};
        if (poll(&wait, 1, 100) < 0) return KVT_E_IO;
        wire_bell_clear(at->bells[0]);
    }
    return KVT_OK;
}

static int server_process(const wire_listener *listener)
{
    static side at;
    wire_peer peer;
    const uid_t users[] = {getuid()};
    struct pollfd wait = {.fd = listener->socket, .events = POLLIN};
    if (poll(&wait, 1, -1) != 1 || wire_accept(listener, &at.socket) != KVT_OK) return 1;
    if (wire_peer_check(at.socket, users, 1, &peer) != KVT_OK) return 2;
    if (server_welcomes(&at) != KVT_OK) return 3;
    if (server_opens(&at) != KVT_OK) return 4;
    if (server_registers(&at) != KVT_OK) return 5;
    const wire_channel channel = {.arguments = PAGE, .argument_bytes = PAGE};
    return server_serves(&at, &channel) == KVT_OK ? 0 : 6;
}

/* ---- the client ---- */

static void client_opens(side *at, const char *path)
{
    wire_message message, answer;
    int descriptors[WIRE_DESCRIPTORS_MAX] = {-1, -1, -1};
    assert_ok(wire_connect(path, &at->socket));
    wire_hello_make(&message, &wire_test_speaks, "a test", base_clock_ns());
    const wire_hello hello = message.hello;
    assert_ok(wire_send(at->socket, &message, NULL, 0));
    assert_ok(
        next_message(at->socket, (wire_expected){WIRE_FROM_SERVER, 0, 3}, &answer, descriptors));
    assert_int_equal(answer.head.kind, WIRE_WELCOME);
    assert_ok(wire_check_welcome(&answer.welcome, &hello, &wire_test_speaks, NULL));
    const wire_expected expected = {WIRE_FROM_SERVER, 3, 3};
    wire_message_make(&message, WIRE_OPEN_CHANNEL, 3, 2);
    message.open.entries = ENTRIES;
    message.open.argument_bytes = PAGE;
    assert_ok(wire_send(at->socket, &message, NULL, 0));
    assert_ok(next_message(at->socket, expected, &answer, descriptors));
    assert_int_equal(answer.head.number, 2);
    assert_int_equal(answer.channel.arguments, PAGE);
    assert_ok(attach(at, descriptors[0], &answer.channel));
    memcpy(at->bells, &descriptors[1], sizeof at->bells);
    /* The region: memory of its own, which it cannot take away any more. */
    const int memory = memfd_create("client", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    void *address;
    assert_int_equal(ftruncate(memory, PAGES * PAGE), 0);
    assert_int_equal(fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    assert_ok(wire_memory_map(memory, 0, PAGES * PAGE, WIRE_SEALED_SHRINK, &address));
    at->region = address;
    wire_message_make(&message, WIRE_REGISTER, 3, 3);
    message.registers.bytes = PAGES * PAGE;
    assert_ok(wire_send(at->socket, &message, &memory, 1));
    assert_ok(next_message(at->socket, expected, &answer, descriptors));
    assert_int_equal(answer.head.kind, WIRE_REGION);
    close(memory);
}

/* Asks for the page of `word` by a record in the area; every tenth request is unsound. */
static kvt_status client_asks(side *at, wire_pending *pending, uint32_t word)
{
    wire_request request = {.kind = WIRE_GET, .argument_bytes = sizeof word};
    kvt_status status =
        wire_pending_open(pending, WIRE_GET, request.argument_bytes, &request.number);
    if (status != KVT_OK) return status;
    request.argument = request.number % ENTRIES * 8;
    memcpy(at->area + PAGE + request.argument, &word, sizeof word);
    if (word % 10 == 9) request.argument = PAGE - 2;
    return peer_post(&at->submissions, &at->claimed, at->bells[0], &request);
}

/* Takes one completion, waited for. */
static void client_takes(side *at, wire_pending *pending, uint64_t next)
{
    base_ring_body body;
    wire_completion done;
    uint32_t place;
    kvt_status status;
    while ((status = base_ring_take(&at->completions, next, &body)) == KVT_END) {
        if (!base_ring_sleeps(&at->completions, next)) continue;
        struct pollfd wait = {.fd = at->bells[1], .events = POLLIN};
        assert_true(poll(&wait, 1, -1) == 1);
        wire_bell_clear(at->bells[1]);
    }
    assert_ok(status);
    assert_ok(wire_completion_read(&body, &done));
    assert_ok(wire_pending_close(pending, &done, &place));
    assert_int_equal(wire_pending_close(pending, &done, &place), KVT_E_CORRUPT);
    if (done.status == KVT_OK) {
        const char *page = at->region + done.answer % PAGES * PAGE;
        assert_int_equal(page[0], page[PAGE - 1]);
        assert_true(done.answer % 10 != 9);
    } else {
        assert_int_equal(done.status, KVT_E_ARGUMENT);
    }
}

TEST(two_processes_work_over_a_channel)
{
    char folder[] = "wire_channel_XXXXXX", path[64], text[256];
    static side at;
    wire_listener listener;
    wire_pending pending;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/s", folder);
    assert_ok(wire_listen(path, 0600, &listener, text, sizeof text));
    const pid_t child = ring_fork();
    if (child == 0) _exit(server_process(&listener));
    client_opens(&at, path);
    assert_ok(wire_pending_init(&pending, ENTRIES));
    uint32_t asked = 0;
    for (uint64_t next = 0; next < REQUESTS; next++) {
        while (asked < REQUESTS && pending.open < 1 + next % ENTRIES)
            assert_ok(client_asks(&at, &pending, asked++));
        client_takes(&at, &pending, next);
    }
    assert_int_equal(pending.open, 0);
    assert_int_equal(ring_child_ends(child), 0);
    /* The last sound request of each page has left its bytes there. */
    for (uint32_t page = 0; page < PAGES; page++)
        assert_true(at.region[page * PAGE] != 0);
    /* The server is gone: its socket says so. */
    wire_packet packet;
    struct pollfd wait = {.fd = at.socket, .events = POLLIN};
    assert_int_equal(poll(&wait, 1, -1), 1);
    assert_int_equal(wire_receive(at.socket, &packet), KVT_E_GONE);
    wire_pending_free(&pending);
    wire_memory_unmap(at.region, PAGES * PAGE);
    close(at.socket);
    close(at.bells[0]);
    close(at.bells[1]);
    wire_listener_close(&listener);
    snprintf(text, sizeof text, "%s.lock", path);
    (void)unlink(text);
    assert_int_equal(rmdir(folder), 0);
}

/* ---- entries ---- */

TEST(a_request_that_leaves_its_area_is_refused)
{
    const struct {
        uint16_t kind, urgency;
        uint32_t bytes;
        uint64_t argument;
        kvt_status status;
    } rows[] = {
        {WIRE_GET, 0, 8, 0, KVT_OK},
        {WIRE_CANCEL, 2, 0, UINT64_MAX, KVT_OK},
        {WIRE_PUT, 1, 64, 4096 - 64, KVT_OK},
        {WIRE_PUT, 1, 65, 0, KVT_E_ARGUMENT},
        {WIRE_PUT, 1, 64, 4096 - 56, KVT_E_ARGUMENT},
        {WIRE_PUT, 1, 64, 4, KVT_E_ARGUMENT},
        {WIRE_PUT, 1, 64, 4096, KVT_E_ARGUMENT},
        {WIRE_PUT, 1, 8, UINT64_MAX - 7, KVT_E_ARGUMENT},
        {WIRE_PUT, 3, 0, 0, KVT_E_ARGUMENT},
        /* A batch begins with it. */
        {WIRE_PUT, WIRE_BATCH_BEGINS | 2, 64, 0, KVT_OK},
        {WIRE_PUT, WIRE_BATCH_BEGINS | 3, 64, 0, KVT_E_ARGUMENT},
        {WIRE_PUT, 0x4000, 64, 0, KVT_E_ARGUMENT},
        /* A record where there is none, and none where there is one. */
        {WIRE_MATCH, 0, 0, 0, KVT_E_ARGUMENT},
        {WIRE_DESCRIBE, 0, 0, 0, KVT_E_ARGUMENT},
        {WIRE_EXISTS, 0, 8, 0, KVT_E_ARGUMENT},
        {WIRE_LEASE_END, 0, 8, 0, KVT_E_ARGUMENT},
        {WIRE_TOUCH, 0, 8, 0, KVT_OK},
        {WIRE_TOUCH, 0, 0, 0, KVT_OK},
        {0, 0, 0, 0, KVT_E_ARGUMENT},
        {WIRE_REQUEST_KINDS, 0, 0, 0, KVT_E_ARGUMENT},
        {UINT16_MAX, 0, 0, 0, KVT_E_ARGUMENT},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        wire_request read_out, request = {.number = i,
                                          .kind = rows[i].kind,
                                          .urgency = rows[i].urgency,
                                          .argument_bytes = rows[i].bytes,
                                          .argument = rows[i].argument};
        const base_ring_body body = wire_request_body(&request);
        assert_int_equal(wire_request_read(&body, 4096, 64, &read_out), rows[i].status);
        assert_int_equal(read_out.number, i);
    }
}

TEST(a_number_comes_once)
{
    wire_pending pending;
    uint64_t numbers[8], number;
    uint32_t place;
    assert_ok(wire_pending_init(&pending, 8));
    wire_completion none = {.kind = WIRE_GET};
    for (none.number = 0; none.number < 40; none.number++)
        assert_int_equal(wire_pending_close(&pending, &none, &place), KVT_E_CORRUPT);
    for (uint32_t i = 0; i < 8; i++)
        assert_ok(wire_pending_open(&pending, WIRE_GET, 16, &numbers[i]));
    assert_int_equal(wire_pending_open(&pending, WIRE_GET, 16, &number), KVT_BUSY);
    for (uint32_t round = 0; round < 20; round++) {
        const uint32_t i = round * 5 % 8;
        wire_completion done = {.number = numbers[i], .kind = WIRE_PUT};
        assert_int_equal(wire_pending_close(&pending, &done, &place), KVT_E_CORRUPT);
        done.kind = WIRE_GET;
        done.answer_bytes = 17;
        assert_int_equal(wire_pending_close(&pending, &done, &place), KVT_E_CORRUPT);
        done.answer_bytes = 16;
        assert_ok(wire_pending_close(&pending, &done, &place));
        assert_int_equal(place, numbers[i] % 8);
        assert_int_equal(wire_pending_close(&pending, &done, &place), KVT_E_CORRUPT);
        assert_ok(wire_pending_open(&pending, WIRE_GET, 16, &number));
        assert_int_equal(number, numbers[i] + 8);
        assert_int_equal(wire_pending_close(&pending, &done, &place), KVT_E_CORRUPT);
        numbers[i] = number;
    }
    assert_int_equal(pending.open, 8);
    wire_pending_free(&pending);
}

/* ---- a server that writes anything ---- */

/* Completions that look sound, for numbers that may be open, until it is killed. */
static void hostile_runs(base_ring_words *words)
{
    uint64_t seed = 9;
    for (;;) {
        for (uint32_t i = 0; i < 8; i++) {
            const uint64_t draw = ring_random(&seed);
            base_ring_entry *entry = &words->entry[draw % ENTRIES];
            const wire_completion done = {.number = draw >> 8 & 255, .kind = WIRE_GET};
            const base_ring_body body = wire_completion_body(&done);
            for (uint32_t k = 0; k < BASE_RING_BODY_WORDS; k++)
                atomic_store_explicit(&entry->body[k], body.words[k], memory_order_relaxed);
            atomic_fetch_add(&entry->sequence, 1);
        }
        ring_scribble(words, ENTRIES, &seed);
    }
}

TEST(no_completion_of_a_hostile_server_is_wrong)
{
    const size_t bytes = base_ring_bytes(ENTRIES);
    void *memory = ring_memory(bytes);
    base_ring_words *words = memory;
    base_ring_make(memory, ENTRIES);
    const pid_t child = ring_fork();
    if (child == 0) hostile_runs(words);
    wire_pending pending;
    base_ring ring;
    uint64_t open[ENTRIES] = {0}; /* numbers that this test holds open, by place */
    uint64_t taken = 0, refused = 0, broken = 0, next = 0;
    assert_ok(wire_pending_init(&pending, ENTRIES));
    assert_ok(base_ring_attach(&ring, memory, bytes, ENTRIES));
    while (taken < 300 || refused < 300 || broken < 300) {
        uint64_t number;
        if (pending.open < ENTRIES / 2) {
            assert_ok(wire_pending_open(&pending, WIRE_GET, 0, &number));
            assert_int_equal(open[number % ENTRIES], 0);
            open[number % ENTRIES] = number;
        }
        base_ring_body body;
        wire_completion done;
        uint32_t place;
        kvt_status status = base_ring_take(&ring, next, &body);
        if (status == KVT_END) {
            sched_yield();
            continue;
        }
        if (status == KVT_E_CORRUPT) {
            /* A new channel. Numbers stay small, so that the other side meets them by chance. */
            wire_pending_free(&pending);
            assert_ok(wire_pending_init(&pending, ENTRIES));
            memset(open, 0, sizeof open);
            base_ring_make(memory, ENTRIES);
            next = 0;
            broken++;
            continue;
        }
        assert_ok(status);
        next++;
        status = wire_completion_read(&body, &done);
        if (status == KVT_OK) status = wire_pending_close(&pending, &done, &place);
        if (status == KVT_OK) {
            assert_int_equal(done.kind, WIRE_GET);
            assert_int_equal(open[place], done.number);
            open[place] = 0;
            taken++;
        } else {
            assert_int_equal(status, KVT_E_CORRUPT);
            refused++;
        }
    }
    kill(child, SIGKILL);
    assert_true(WIFSIGNALED(ring_child_ends(child)));
    wire_pending_free(&pending);
    ring_memory_free(memory, bytes);
}
