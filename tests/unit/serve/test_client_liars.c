/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_client_liars.c - a client of a server that agrees with it and then lies, in another way each
 * time: every call ends, nothing is written outside of what the caller has given, and no descriptor
 * stays behind.
 */
#include "peer_support.h"
#include "store_support.h"

#include "base/clock.h"
#include "serve/wire/control.h"
#include "serve/wire/key_records.h"
#include "serve/wire/load_records.h"
#include "serve/wire/messages.h"
#include "serve/wire/peer_socket.h"
#include "serve/wire/request_records.h"

#include <kvterrace/connect.h>
#include <kvterrace/load.h>
#include <kvterrace/queue.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#define ENTRIES 16u
#define PLACES  (16u * 4096u) /* bytes of arguments, and of staging */

typedef enum lie {
    LIE_WELCOME_WITH_A_DESCRIPTOR,
    LIE_AREA_WITHOUT_SEALS,
    LIE_AREA_IS_A_PIPE,
    LIE_AREA_IS_SHORT,
    LIE_REGION_OUT_OF_RANGE,
    LIE_COMPLETES_WHAT_WAS_NOT_POSTED,
    LIE_COMPLETES_TWICE,
    LIE_COMPLETES_ANOTHER_KIND,
    LIE_ANSWERS_BEYOND_THE_RECORD,
    LIE_WORD_OF_NO_RING,
    LIE_COMPLETES_WITHOUT_END,
    LIE_KEEPS_MORE_TOKENS_THAN_THERE_ARE,
    LIE_EVENTS_WAIT_FOR_NO_READER,
    LIE_EVENT_OF_NO_KIND,
    LIE_MORE_EVENTS_THAN_ASKED,
    LIE_HALF_AN_EVENT,
    LIE_EVENTS_WITHOUT_A_RESULT,
    LIE_MEMORY_OF_EVENTS_IS_A_BELL,
    LIES,
    LIE_LAYERS_FALL = LIES, /* of loads from here on, at an exists that follows */
    LIE_LAYERS_EXCEED,
    LIE_TOTAL_CHANGES,
    LIE_FLAGS_OF_NO_LOAD,
    LIE_STATUSES_OF_NO_ENTRY,
    LIE_END_IS_MISSED,
    LIES_OF_LOADS,
    OLDER_THAN_PASSES = LIES_OF_LOADS /* no lie: it does not know them */
} lie;

typedef struct liar {
    wire_listener listener;
    pthread_t thread;
    lie tells;
    atomic_bool stop;
    int peer;
    wire_channel places;
    char *area;
    int bells[2];
    base_ring submissions, completions;
    _Atomic uint64_t claimed;
    uint64_t next;
    wire_load_state *load;
    /* By the last load. The completion that follows it goes by memory that has another address for
     * its reader, where ThreadSanitizer sees no order. */
    _Atomic uint64_t named_pass;
} liar;

static char folder[64], path[96];
static liar me;

/* ---- the server ---- */

static void tell(const wire_message *message, const int *descriptors, uint32_t count)
{
    (void)!wire_send(me.peer, message, descriptors, count);
}

static void complete(const wire_completion *done)
{
    const base_ring_body body = wire_completion_body(done);
    uint64_t position;
    if (base_ring_claim(&me.completions, &me.claimed, 1, &position) == KVT_OK)
        (void)!base_ring_post(&me.completions, position, &body);
    (void)!wire_bell_ring(me.bells[1]);
}

static void spoil(uint64_t ring, uint64_t entry)
{
    const uint64_t word = 0xdead;
    memcpy(me.area + ring + 256 + 64 * entry, &word, sizeof word);
}

static void welcome(const wire_hello *hello)
{
    const uint32_t known = me.tells == OLDER_THAN_PASSES ? WIRE_STRUCT_PASS : WIRE_STRUCTS;
    const wire_speaks speaks = {WIRE_PROTOCOL, WIRE_PROTOCOL, 0x200, wire_structs, known};
    const wire_welcome limits = {.instance = 1,
                                 .registered_bytes = 1 << 20,
                                 .staging_bytes = PLACES * 2,
                                 .depth = ENTRIES,
                                 .channels = 8,
                                 .argument_bytes = PLACES};
    wire_message answer;
    (void)!wire_answer_hello(hello, &speaks, &limits, base_clock_ns(), &answer);
    tell(&answer, &me.bells[0], me.tells == LIE_WELCOME_WITH_A_DESCRIPTOR ? 1 : 0);
}

/* An area as the lie wants it; its descriptor. */
static int make_area(uint64_t bytes)
{
    int made = -1, ends[2];
    if (me.tells == LIE_AREA_IS_A_PIPE) {
        assert_int_equal(pipe(ends), 0);
        close(ends[1]);
        return ends[0];
    }
    if (me.tells == LIE_AREA_WITHOUT_SEALS) {
        made = memfd_create("liar", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        assert_int_equal(ftruncate(made, (off_t)bytes), 0);
        return made;
    }
    assert_ok(wire_memory_make("liar", me.tells == LIE_AREA_IS_SHORT ? WIRE_PAGE : bytes, &made));
    return made;
}

static void open_channel(const wire_message *asked)
{
    wire_message answer;
    const size_t ring = base_ring_bytes(ENTRIES);
    wire_message_make(&answer, WIRE_CHANNEL, WIRE_PROTOCOL, asked->head.number);
    wire_channel *places = &answer.channel;
    places->entries = ENTRIES;
    places->completions = ring;
    places->arguments = (2 * ring + WIRE_PAGE - 1) / WIRE_PAGE * WIRE_PAGE;
    places->argument_bytes = places->staging_bytes = PLACES;
    places->staging = places->arguments + PLACES;
    places->area_bytes = places->staging + PLACES;
    const int made = make_area(places->area_bytes);
    void *area = mmap(NULL, places->area_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, made, 0);
    if (me.area != NULL) munmap(me.area, me.places.area_bytes);
    me.area = NULL;
    me.places = *places;
    if (area != MAP_FAILED && me.tells > LIE_AREA_IS_SHORT) {
        me.area = area;
        base_ring_make(me.area, ENTRIES);
        base_ring_make(me.area + ring, ENTRIES);
        assert_ok(base_ring_attach(&me.submissions, me.area, ring, ENTRIES));
        assert_ok(base_ring_attach(&me.completions, me.area + ring, ring, ENTRIES));
    } else if (area != MAP_FAILED) {
        munmap(area, places->area_bytes);
    }
    me.claimed = me.next = 0;
    if (me.tells == LIE_COMPLETES_WHAT_WAS_NOT_POSTED) {
        /* The post fails, and the number that the request would have had completes. */
        spoil(places->submissions, 0);
        complete(&(wire_completion){.number = ENTRIES, .kind = WIRE_EXISTS});
    }
    const int descriptors[] = {made, me.bells[0], me.bells[1]};
    tell(&answer, descriptors, 3);
    close(made);
    if (me.tells != LIE_EVENTS_WAIT_FOR_NO_READER) return;
    wire_message_make(&answer, WIRE_EVENTS_WAIT, WIRE_PROTOCOL, 0);
    tell(&answer, NULL, 0);
}

/* Answers a get's first step, which asks what is stored. */
static void describe(const wire_request *request, wire_completion *done)
{
    const kvt_description told = {
        .struct_size = sizeof told, .layout = support_layout, .tier = KVT_TIER_DRAM};
    const wire_describe asked = {.description_bytes = sizeof told,
                                 .groups_capacity = KVT_GROUPS_MAX};
    done->answer_bytes = (uint32_t)wire_describe_answer_write(
        &asked, &told, me.area + me.places.arguments + request->argument);
}

/* Begins a load of two layers, of which one is there; lies at the next request. */
static void lie_of_load(const wire_request *request, wire_completion *done)
{
    if (request->kind == WIRE_LOAD_BEGIN) {
        wire_load head;
        memcpy(&head, me.area + me.places.arguments + request->argument, sizeof head);
        me.named_pass = head.pass;
        me.load = (wire_load_state *)(void *)(me.area + me.places.arguments + head.state);
        atomic_store(&me.load->total, 2);
        atomic_store(&me.load->layers, 1);
        done->answer = 1;
    } else if (request->kind == WIRE_LOAD_END) {
        if (me.tells == LIE_END_IS_MISSED) done->status = KVT_MISS;
    } else {
        switch (me.tells) {
        case LIE_LAYERS_FALL: atomic_store(&me.load->layers, 0); break;
        case LIE_LAYERS_EXCEED: atomic_store(&me.load->layers, 3); break;
        case LIE_TOTAL_CHANGES: atomic_store(&me.load->total, 4000000000u); break;
        case LIE_FLAGS_OF_NO_LOAD: atomic_store(&me.load->flags, 1u << 31); break;
        default: atomic_store(&wire_load_statuses(me.load)[0], (int8_t)-100); break;
        }
    }
}

static void lie_to(const wire_request *request)
{
    wire_completion done = {
        .number = request->number, .kind = request->kind, .tier = KVT_TIER_DRAM};
    if (me.tells >= LIES) lie_of_load(request, &done);
    switch (me.tells) {
    case LIE_COMPLETES_TWICE: complete(&done); break;
    case LIE_COMPLETES_ANOTHER_KIND: done.kind = WIRE_TOUCH; break;
    case LIE_ANSWERS_BEYOND_THE_RECORD: done.answer_bytes = request->argument_bytes + 1; break;
    case LIE_WORD_OF_NO_RING: spoil(me.places.completions, 0); break;
    case LIE_COMPLETES_WITHOUT_END: done.status = KVT_QUEUED; break;
    case LIE_KEEPS_MORE_TOKENS_THAN_THERE_ARE:
        if (request->kind == WIRE_DESCRIBE) {
            describe(request, &done);
        } else if (request->kind == WIRE_GET) {
            const wire_got got = {.struct_size = sizeof got, .kept_count = 1u << 24};
            memcpy(me.area + me.places.arguments + request->argument, &got, sizeof got);
            done.answer_bytes = sizeof got;
        }
        break;
    default: break;
    }
    complete(&done);
}

/* Answers calls of a reader of events, which wait without end. */
static void answer_call(const wire_message *asked)
{
    wire_message message;
    struct {
        wire_events head;
        kvt_event events[4];
    } result = {.head = {0}};
    uint32_t bytes = 0;
    for (int i = 0; i < 4; i++)
        result.events[i].kind = me.tells == LIE_EVENT_OF_NO_KIND ? 77 : KVT_EVENT_STORED;
    if (asked->call.call == WIRE_CALL_EVENTS) {
        bytes = sizeof result.head + sizeof(kvt_event);
        if (me.tells == LIE_MORE_EVENTS_THAN_ASKED) bytes += 2 * sizeof(kvt_event);
        if (me.tells == LIE_HALF_AN_EVENT) bytes -= 64;
        if (me.tells == LIE_EVENTS_WITHOUT_A_RESULT) bytes = 0;
        if (me.tells == LIE_MEMORY_OF_EVENTS_IS_A_BELL) bytes = 64 * sizeof(kvt_event) + 8;
    }
    wire_result_make(&message, asked->call.call, WIRE_PROTOCOL, asked->head.number, KVT_OK, &result,
                     bytes);
    tell(&message, me.bells, message.head.kind == WIRE_RESULT_MEMORY ? 1 : 0);
    wire_message_make(&message, WIRE_EVENTS_WAIT, WIRE_PROTOCOL, 0);
    tell(&message, NULL, 0);
}

static void answer(const wire_message *asked)
{
    wire_message message;
    if (asked->head.kind == WIRE_HELLO) {
        welcome(&asked->hello);
    } else if (asked->head.kind == WIRE_OPEN_CHANNEL) {
        open_channel(asked);
    } else if (asked->head.kind == WIRE_CALL) {
        answer_call(asked);
    } else if (asked->head.kind == WIRE_REGISTER) {
        wire_message_make(&message, WIRE_REGION, WIRE_PROTOCOL, asked->head.number);
        message.one.value = me.tells == LIE_REGION_OUT_OF_RANGE ? 4000000000u : 0;
        tell(&message, NULL, 0);
    } else {
        wire_message_make(&message, WIRE_DONE, WIRE_PROTOCOL, asked->head.number);
        tell(&message, NULL, 0);
    }
}

static void peer_forget(void)
{
    if (me.area != NULL) munmap(me.area, me.places.area_bytes);
    if (me.peer >= 0) close(me.peer);
    me.area = NULL;
    me.peer = -1;
}

static void *liar_run(void *argument)
{
    static const wire_expected expected = {WIRE_FROM_CLIENT, 0, WIRE_PROTOCOL};
    (void)argument;
    while (!atomic_load(&me.stop)) {
        wire_packet packet;
        wire_message asked;
        /* It has one client: the newest. */
        struct pollfd waits[] = {{.fd = me.listener.socket, .events = POLLIN},
                                 {.fd = me.peer, .events = POLLIN}};
        (void)poll(waits, 2, 1);
        if (waits[0].revents != 0) {
            peer_forget();
            (void)!wire_accept(&me.listener, &me.peer);
        } else if (waits[1].revents != 0) {
            if (wire_receive(me.peer, &packet) != KVT_OK) {
                peer_forget();
                continue;
            }
            if (wire_message_read(packet.bytes, packet.size, packet.descriptor_count, &expected,
                                  &asked) == KVT_OK)
                answer(&asked);
            wire_packet_close(&packet);
        }
        base_ring_body body;
        while (me.area != NULL && base_ring_take(&me.submissions, me.next, &body) == KVT_OK) {
            wire_request request;
            memcpy(&request, &body, sizeof request);
            me.next++;
            lie_to(&request);
        }
    }
    peer_forget();
    return NULL;
}

static void liar_begin(lie tells)
{
    char message[256];
    me = (liar){.tells = tells, .peer = -1};
    assert_ok(wire_bell_make(&me.bells[0]));
    assert_ok(wire_bell_make(&me.bells[1]));
    assert_ok(wire_listen(path, 0600, &me.listener, message, sizeof message));
    assert_int_equal(pthread_create(&me.thread, NULL, liar_run, NULL), 0);
}

static void liar_end(void)
{
    atomic_store(&me.stop, true);
    pthread_join(me.thread, NULL);
    wire_listener_close(&me.listener);
    close(me.bells[0]);
    close(me.bells[1]);
}

TEST_BEFORE_EACH
{
    support_make_folder(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/socket", folder);
}

TEST_AFTER_EACH
{
    support_remove_folder(folder);
}

/* ---- the client ---- */

/* A get into rows with a guard behind them, which asks for the kept tokens. */
static kvt_status get_rows(kvt_store *store)
{
    enum { GUARD = 4096 };
    static char data[SUPPORT_ENTRY_BYTES + GUARD];
    static uint32_t positions[64];
    kvt_kept_tokens kept = {.struct_size = sizeof kept, .positions = positions, .capacity = 64};
    kvt_get_info info = {.struct_size = sizeof info, .kept = &kept};
    const kvt_key key = support_key(0);
    const int64_t row = (int64_t)(kvt_layout_matrix_bytes(&support_layout) / support_layout.tokens);
    const int64_t matrix = row * support_layout.tokens;
    const kvt_view view = {.struct_size = sizeof view,
                           .bases_kind = KVT_BASES_ONE,
                           .base = {data},
                           .base_bytes = {SUPPORT_ENTRY_BYTES},
                           .layer_stride = 2 * matrix,
                           .side_stride = matrix,
                           .token_stride = row,
                           .head_stride = row / support_layout.kv_heads};
    memset(data, 0x5a, sizeof data);
    const kvt_status status = kvt_store_get(store, &key, &view, KVT_NO_DEADLINE, &info);
    for (size_t i = SUPPORT_ENTRY_BYTES; i < sizeof data; i++)
        assert_int_equal(data[i], 0x5a);
    return status;
}

/* Each drain ends, gives no event that is none, and writes no more than it may. */
static void drain_events(kvt_store *store)
{
    kvt_events *reader = NULL;
    assert_ok(kvt_events_open(store, 16, &reader));
    uint64_t lost = 0, more;
    for (int i = 0; i < 3; i++) {
        kvt_event events[2];
        size_t count = 9;
        memset(events, 0x5a, sizeof events);
        assert_ok(kvt_events_drain(reader, events, 1, &count, &more));
        assert_true(count == 0 && kvt_events_fd(reader) >= 0);
        for (size_t k = 0; k < sizeof events; k++)
            assert_int_equal(((const char *)events)[k], 0x5a);
        lost += more;
    }
    assert_int_equal(lost, 1);
    kvt_events_close(reader);
}

TEST(lies)
{
    for (int tells = 0; tells < LIES; tells++) {
        char message[256] = "";
        kvt_store *store = NULL;
        void *memory = NULL;
        const uint32_t before = open_descriptors();
        const kvt_key key = support_key(0);
        const kvt_connect_options options = {.struct_size = sizeof options, .depth = ENTRIES};
        liar_begin((lie)tells);
        const kvt_status status = kvt_connect(path, &options, &store, message, sizeof message);
        if (tells <= LIE_AREA_IS_SHORT) {
            assert_int_equal(status, KVT_E_CORRUPT);
            assert_true(strlen(message) > 0);
        } else {
            assert_ok(status);
            if (tells == LIE_REGION_OUT_OF_RANGE) assert_ok(kvt_region_make(store, 1, &memory));
            for (int i = 0; i < 3; i++) {
                const kvt_status found = kvt_store_exists(store, &key);
                assert_true(found == KVT_MISS || found == KVT_OK);
                const kvt_status got = get_rows(store);
                assert_true(got == KVT_MISS || got == KVT_E_GONE);
            }
            if (tells >= LIE_EVENT_OF_NO_KIND) drain_events(store);
            if (memory != NULL) assert_ok(kvt_region_free(store, memory));
            kvt_store_close(store);
        }
        liar_end();
        assert_int_equal(open_descriptors(), before);
    }
}

/* ---- loads ---- */

/* Has the server tell its lie, which it has told when this returns. */
static void exists_queued(kvt_queue *queue)
{
    const kvt_request request = {
        .struct_size = sizeof request, .kind = KVT_REQUEST_EXISTS, .key = support_key(0)};
    kvt_completion done = {.struct_size = sizeof done};
    assert_ok(kvt_queue_submit(queue, &request, 1, NULL));
    assert_ok(kvt_queue_wait(queue, KVT_NO_DEADLINE));
    assert_int_equal(kvt_queue_drain(queue, &done, 1), 1);
}

/* What is no state of a load costs the connection; what had come before stays. */
TEST(lies_about_loads)
{
    for (int tells = LIES; tells < LIES_OF_LOADS; tells++) {
        char message[256] = "";
        kvt_store *store = NULL;
        kvt_queue *queue = NULL;
        kvt_load *load = NULL;
        void *memory = NULL;
        kvt_status status, ended;
        kvt_load_result result = {.struct_size = sizeof result};
        const bool costs = tells < LIE_STATUSES_OF_NO_ENTRY;
        const uint32_t before = open_descriptors();
        const kvt_key key = support_key(0);
        const kvt_connect_options options = {.struct_size = sizeof options, .depth = ENTRIES};
        liar_begin((lie)tells);
        assert_ok(kvt_connect(path, &options, &store, message, sizeof message));
        assert_ok(kvt_region_make(store, SUPPORT_ENTRY_BYTES, &memory));
        assert_ok(kvt_queue_open(store, NULL, &queue));
        const kvt_view view = kvt_view_packed(memory, SUPPORT_ENTRY_BYTES);
        const kvt_view *place = &view;
        assert_ok(kvt_load_begin(queue, &key, &place, 1, NULL, &load));
        assert_ok(kvt_load_wait(load, 1, KVT_NO_DEADLINE));
        assert_int_equal(kvt_load_wait(load, 3, KVT_NO_DEADLINE), KVT_E_ARGUMENT);
        exists_queued(queue);
        assert_int_equal(kvt_load_layers(load), 1);
        status = kvt_load_wait(load, 2, base_clock_ns() + 20000000);
        assert_int_equal(status, costs ? KVT_MISS : KVT_E_TIMEOUT);
        status = kvt_load_status(load, 0);
        assert_int_equal(status, KVT_MISS);
        assert_ok(kvt_load_end(load, &ended, &result));
        assert_int_equal(ended, KVT_MISS);
        assert_int_equal(result.layers, 1);
        kvt_queue_close(queue);
        kvt_store_close(store);
        assert_ok(kvt_region_free(NULL, memory));
        liar_end();
        assert_int_equal(open_descriptors(), before);
    }
}

/* ---- a server of an older version ---- */

/* Nothing goes to it that it would take for an unsound request: passes are refused here, and a load
 * names none. */
TEST(passes_of_an_older_server)
{
    char message[256] = "";
    kvt_store *store = NULL;
    kvt_queue *queue = NULL;
    kvt_load *load = NULL;
    void *memory = NULL;
    uint64_t pass = 7;
    const kvt_pass asked = {
        .struct_size = sizeof asked, .new_tokens = 1, .layers = 1, .layer_seconds = 1};
    const kvt_connect_options options = {.struct_size = sizeof options, .depth = ENTRIES};
    const kvt_key key = support_key(0);
    liar_begin(OLDER_THAN_PASSES);
    assert_ok(kvt_connect(path, &options, &store, message, sizeof message));
    assert_int_equal(kvt_pass_begin(store, &asked, &pass), KVT_E_UNSUPPORTED);
    assert_int_equal(kvt_pass_layer(store, 1, 0), KVT_E_UNSUPPORTED);
    assert_int_equal(kvt_pass_end(store, 1), KVT_E_UNSUPPORTED);
    assert_int_equal(pass, 7);
    assert_ok(kvt_region_make(store, SUPPORT_ENTRY_BYTES, &memory));
    assert_ok(kvt_queue_open(store, NULL, &queue));
    const kvt_view view = kvt_view_packed(memory, SUPPORT_ENTRY_BYTES);
    const kvt_view *place = &view;
    const kvt_load_options named = {
        .struct_size = sizeof named, .deadline_ns = KVT_NO_DEADLINE, .pass = 5};
    assert_ok(kvt_load_begin(queue, &key, &place, 1, &named, &load));
    assert_int_equal(me.named_pass, 0);
    assert_ok(kvt_load_end(load, NULL, NULL));
    kvt_queue_close(queue);
    kvt_store_close(store);
    assert_ok(kvt_region_free(NULL, memory));
    liar_end();
}
