/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_server_sessions.c - a store that other processes use: what one client puts another one gets,
 * byte for byte; clients that break the protocol, or die, end their own session alone, and nothing
 * of them stays.
 */
#include "serve_client.h"
#include "store_site.h"

#include "serve/server/server.h"

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define ENTRY SUPPORT_ENTRY_BYTES

static char folder[64], path[96];
static kvt_store *store;
static server *lends;
static pthread_t thread;
static uint32_t descriptors_before;

/* The clients of a case; those that it has not closed are closed behind it. */
static serve_client first, second, many[5];

static void *server_runs(void *argument)
{
    return server_run(argument) == KVT_OK ? NULL : argument;
}

/* Lends a store, which is closed by serve_end. */
static void serve_begin(kvt_store *opened)
{
    char message[256];
    store = opened;
    const server_options options = {
        .path = path, .sessions = 4, .registered_bytes = 16 << 20, .depth = 64};
    const kvt_status status = server_open(store, &options, &lends, message, sizeof message);
    if (status != KVT_OK) fail_msg("%s: %s", kvt_status_name(status), message);
    assert_int_equal(pthread_create(&thread, NULL, server_runs, lends), 0);
    descriptors_before = open_descriptors();
}

TEST_BEFORE_EACH
{
    first.socket = second.socket = -1;
    for (uint32_t i = 0; i < 5; i++)
        many[i].socket = -1;
    snprintf(folder, sizeof folder, "server_XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/s", folder);
    serve_begin(support_open_memory("lru", 64 << 20, 8 << 20));
}

/* Every client has closed: its session ends, and what it had is given back. */
static void wait_for_sessions(uint32_t count)
{
    while (server_sessions(lends) != count)
        usleep(1000);
}

/* Mappings of channels and of clients' memory. */
static uint32_t shared_mappings(void)
{
    char line[512];
    uint32_t count = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    assert_non_null(maps);
    while (fgets(line, sizeof line, maps) != NULL)
        count += strstr(line, "memfd:client") != NULL || strstr(line, "memfd:kvterrace") != NULL;
    fclose(maps);
    return count;
}

/* Nothing of the clients has stayed. */
static void serve_end(void)
{
    void *failed;
    client_close(&first);
    client_close(&second);
    for (uint32_t i = 0; i < 5; i++)
        client_close(&many[i]);
    wait_for_sessions(0);
    assert_int_equal(open_descriptors(), descriptors_before);
    assert_int_equal(shared_mappings(), 0);
    server_stop(lends);
    assert_int_equal(pthread_join(thread, &failed), 0);
    assert_null(failed);
    server_close(lends);
    kvt_store_close(store);
}

TEST_AFTER_EACH
{
    char lock[128];
    serve_end();
    snprintf(lock, sizeof lock, "%s.lock", path);
    assert_int_equal(unlink(lock), 0);
    assert_int_equal(rmdir(folder), 0);
}

static void client_ready(serve_client *at, char **memory)
{
    assert_ok(client_hello(at, path));
    assert_ok(client_open_channel(at));
    assert_ok(client_register(at, 64 * ENTRY, F_SEAL_SHRINK, memory, NULL));
}

static const wire_get any_get = {.struct_size = sizeof any_get, .deadline_ns = KVT_NO_DEADLINE};

static wire_put put_of(kvt_layout layout)
{
    return (wire_put){.struct_size = sizeof(wire_put),
                      .layout = layout,
                      .recompute_seconds = 1,
                      .deadline_ns = KVT_NO_DEADLINE};
}

static kvt_status client_puts(serve_client *at, uint32_t number, char *memory)
{
    const kvt_key key = support_key(number);
    const wire_put head = put_of(support_layout);
    support_fill(number, memory);
    return client_call(at, WIRE_PUT, &key, &head, KVT_PACKED(memory, ENTRY));
}

/* Gets an entry into registered memory and compares it. */
static kvt_status client_gets(serve_client *at, uint32_t number, char *memory)
{
    static _Thread_local char expected[ENTRY];
    const kvt_key key = support_key(number);
    memset(memory, 0xee, ENTRY);
    const kvt_status status = client_call(at, WIRE_GET, &key, &any_get, KVT_PACKED(memory, ENTRY));
    if (status != KVT_OK) return status;
    support_fill(number, expected);
    return memcmp(memory, expected, ENTRY) == 0 ? KVT_OK : KVT_E_CORRUPT;
}

TEST(what_one_client_puts_another_gets)
{
    char *memory[2];
    client_ready(&first, &memory[0]);
    client_ready(&second, &memory[1]);
    for (uint32_t i = 0; i < 32; i++) {
        const kvt_key key = support_key(i);
        assert_int_equal(client_call(&second, WIRE_EXISTS, &key, NULL, NULL), KVT_MISS);
        assert_int_equal(client_gets(&second, i, memory[1]), KVT_MISS);
        assert_ok(client_puts(&first, i, memory[0] + i * ENTRY));
        assert_int_equal(client_puts(&first, i, memory[0]), KVT_EXISTS);
        assert_ok(client_call(&second, WIRE_EXISTS, &key, NULL, NULL));
        assert_ok(client_gets(&second, i, memory[1] + i * ENTRY));
    }
    /* The store's own process sees them, too, and they stay when the clients go. */
    client_close(&first);
    client_close(&second);
    support_gets(store, 0, 32);
}

TEST(requests_of_a_batch_complete_once_each)
{
    char *memory;
    client_ready(&first, &memory);
    for (uint32_t i = 0; i < CLIENT_ENTRIES; i++)
        assert_ok(client_puts(&first, i, memory));
    for (uint32_t round = 0; round < 50; round++) {
        uint64_t numbers[CLIENT_ENTRIES];
        bool seen[CLIENT_ENTRIES] = {false};
        for (uint32_t i = 0; i < CLIENT_ENTRIES; i++) {
            const kvt_key key = support_key(i);
            if (i % 4 == 3)
                assert_ok(client_post(&first, WIRE_EXISTS, &key, NULL, NULL, &numbers[i]));
            else
                assert_ok(client_post(&first, WIRE_GET, &key, &any_get,
                                      KVT_PACKED(memory + i * ENTRY, ENTRY), &numbers[i]));
        }
        for (uint32_t i = 0; i < CLIENT_ENTRIES; i++) {
            wire_completion done;
            uint32_t place = 0;
            assert_ok(client_take(&first, &done));
            assert_ok(done.status);
            while (place < CLIENT_ENTRIES && numbers[place] != done.number)
                place++;
            assert_true(place < CLIENT_ENTRIES && !seen[place]);
            seen[place] = true;
            if (done.kind == WIRE_GET) {
                assert_int_equal(done.tier, KVT_TIER_DRAM);
                assert_true(done.stored_bytes > 0);
            }
        }
        for (uint32_t i = 0; i < CLIENT_ENTRIES; i++) {
            static char expected[ENTRY];
            if (i % 4 == 3) continue;
            support_fill(i, expected);
            assert_memory_equal(memory + i * ENTRY, expected, ENTRY);
            memset(memory + i * ENTRY, 0, ENTRY);
        }
    }
    client_close(&first);
}

/* An engine's pool: blocks of 16 tokens, of one layer each. */
TEST(views_with_blocks_reach_into_regions)
{
    char *memory;
    kvt_view view;
    uint32_t blocks[] = {5, 2};
    static char expected[ENTRY];
    const kvt_key key = support_key(1);
    client_ready(&first, &memory);
    assert_ok(client_puts(&first, 1, memory));
    assert_ok(kvt_view_make(&support_layout, "lsbth", 16, 8, &view));
    view.base[0] = memory;
    view.blocks = blocks;
    view.block_count = 2;
    memset(memory, 0, 8 * ENTRY);
    assert_ok(client_call(&first, WIRE_GET, &key, &any_get, &view));
    support_fill(1, expected);
    /* Layer 0, K: its first 16 tokens lie in block 5. */
    assert_memory_equal(memory + 5 * 16 * 256, expected, 16 * 256);
    assert_memory_equal(memory + 2 * 16 * 256, expected + 16 * 256, 16 * 256);
    blocks[1] = 8;
    assert_int_equal(client_call(&first, WIRE_GET, &key, &any_get, &view), KVT_E_ARGUMENT);
    client_close(&first);
}

TEST(bad_requests_are_answered_and_the_session_goes_on)
{
    char *memory;
    uint64_t number;
    client_ready(&first, &memory);
    assert_ok(client_puts(&first, 1, memory));
    const kvt_key key = support_key(1);
    /* A kind that does not exist. */
    assert_int_equal(client_call(&first, 13, &key, NULL, NULL), KVT_E_UNSUPPORTED);
    /* No record; a view of another size; a layout that is none. */
    assert_int_equal(client_call(&first, WIRE_GET, &key, NULL, NULL), KVT_E_ARGUMENT);
    assert_int_equal(client_call(&first, WIRE_GET, &key, &any_get, KVT_PACKED(memory, ENTRY - 64)),
                     KVT_E_ARGUMENT);
    const wire_put none = put_of((kvt_layout){.dtype = 77});
    assert_int_equal(client_call(&first, WIRE_PUT, &key, &none, KVT_PACKED(memory, ENTRY)),
                     KVT_E_ARGUMENT);
    /* A place that leaves its region, and one of a region that is not there. */
    const wire_region own = first.regions[0];
    first.regions[0].bytes += ENTRY;
    assert_int_equal(
        client_call(&first, WIRE_GET, &key, &any_get, KVT_PACKED(memory + 64 * ENTRY - 64, ENTRY)),
        KVT_E_ARGUMENT);
    first.regions[0] = (wire_region){0};
    first.regions[63] = own;
    assert_int_equal(client_call(&first, WIRE_GET, &key, &any_get, KVT_PACKED(memory, ENTRY)),
                     KVT_E_ARGUMENT);
    first.regions[63] = (wire_region){0};
    first.regions[0] = own;
    assert_ok(client_gets(&first, 1, memory));
    /* Regions. */
    char *more;
    uint32_t region = 64;
    assert_int_equal(client_register(&first, ENTRY, 0, &more, &region), KVT_E_UNSUPPORTED);
    assert_int_equal(client_register(&first, 16 << 20, F_SEAL_SHRINK, &more, &region), KVT_E_SPACE);
    assert_ok(client_register(&first, ENTRY, F_SEAL_SHRINK, &more, &region));
    assert_ok(client_gets(&first, 1, more));
    assert_ok(client_one(&first, WIRE_RELEASE, region));
    assert_int_equal(client_one(&first, WIRE_RELEASE, region), KVT_E_ARGUMENT);
    assert_int_equal(client_one(&first, WIRE_RELEASE, 64), KVT_E_ARGUMENT);
    assert_int_equal(client_call(&first, WIRE_GET, &key, &any_get, KVT_PACKED(more, ENTRY)),
                     KVT_E_ARGUMENT);
    /* Channels. */
    assert_int_equal(client_one(&first, WIRE_CLOSE_CHANNEL, 5), KVT_E_ARGUMENT);
    assert_ok(client_gets(&first, 1, memory));
    assert_ok(client_one(&first, WIRE_CLOSE_CHANNEL, 0));
    assert_ok(client_post(&first, WIRE_EXISTS, &key, NULL, NULL, &number));
    client_close(&first);
}

/* ---- clients that break the protocol ---- */

static void assert_ended(serve_client *at)
{
    wire_message message;
    assert_int_equal(client_message(at, at->protocol, at->protocol, &message, (int[3]){0}),
                     KVT_E_GONE);
    client_close(at);
}

TEST(whoever_breaks_the_protocol_ends_alone)
{
    char *memory, *other;
    client_ready(&first, &memory);
    assert_ok(client_puts(&first, 1, memory));
    /* Rings. */
    for (uint32_t k = 0; k < 4; k++) {
        const kvt_key key = support_key(1);
        uint64_t number;
        client_ready(&second, &other);
        base_ring_entry *entries = second.submissions.words->entry;
        if (k == 0) atomic_store(&entries[0].sequence, 77);
        if (k == 1) atomic_store(&second.completions.words->entry[0].sequence, 9999);
        if (k == 2)
            for (uint32_t i = 0; i < CLIENT_ENTRIES; i++)
                atomic_store(&second.completions.words->entry[i].sequence, 1);
        /* More requests than a ring has entries, none of whose completions is taken. */
        for (uint32_t i = 0; k == 3 && i <= CLIENT_ENTRIES; i++) {
            const wire_request asks = {.number = i, .kind = WIRE_EXISTS, .key = key};
            const base_ring_body body = wire_request_body(&asks);
            uint64_t position;
            while (base_ring_claim(&second.submissions, &second.claimed, 1, &position) != KVT_OK)
                assert_ok(wire_bell_ring(second.bells[0]));
            assert_ok(base_ring_post(&second.submissions, position, &body));
        }
        if (k == 1 || k == 2)
            assert_ok(client_post(&second, WIRE_EXISTS, &key, NULL, NULL, &number));
        assert_ok(wire_bell_ring(second.bells[0]));
        assert_ended(&second);
    }
    /* Messages. */
    for (uint32_t k = 0; k < 4; k++) {
        wire_message message;
        client_ready(&second, &other);
        wire_message_make(&message, WIRE_RELEASE, second.protocol, 9);
        if (k == 0) message.head.kind = WIRE_HELLO;
        if (k == 1) message.head.protocol = 0;
        if (k == 2) message.head.bytes = 24;
        assert_ok(wire_send(second.socket, &message, second.bells, k == 3 ? 2 : 0));
        assert_ended(&second);
    }
    assert_ok(client_gets(&first, 1, memory));
    client_close(&first);
}

TEST(a_version_that_nobody_speaks_is_refused_by_name)
{
    const wire_speaks speaks = {7, 9, 0x900, wire_structs, WIRE_STRUCTS};
    wire_message message, answer;
    assert_ok(wire_connect(path, &first.socket));
    wire_hello_make(&message, &speaks, "a newer one", base_clock_ns());
    assert_ok(wire_send(first.socket, &message, NULL, 0));
    assert_ok(client_message(&first, 0, 9, &answer, (int[3]){0}));
    assert_int_equal(answer.head.kind, WIRE_REFUSED);
    assert_int_equal(answer.head.status, KVT_E_VERSION);
    assert_string_equal(answer.refused.text,
                        "the client speaks the protocols 7 to 9, the server 1 to 1");
    assert_ended(&first);
}

TEST(more_sessions_than_there_are_places_are_closed)
{
    for (uint32_t i = 0; i < 4; i++)
        assert_ok(client_hello(&many[i], path));
    const kvt_status status = client_hello(&many[4], path);
    assert_int_equal(status, KVT_E_GONE);
    client_close(&many[0]);
    wait_for_sessions(3);
    client_close(&many[4]);
    assert_ok(client_hello(&many[4], path));
    for (uint32_t i = 1; i < 5; i++)
        client_close(&many[i]);
}

/* A client whose bell cannot be rung: its channel waits there, and ends all the same. */
TEST(a_client_that_spoils_its_bell_ends)
{
    char *memory, *other;
    uint64_t number;
    const uint64_t most = UINT64_MAX - 1;
    const kvt_key key = support_key(1);
    client_ready(&second, &memory);
    client_ready(&first, &other);
    assert_int_equal(fcntl(second.bells[1], F_SETFL, 0), 0);
    assert_int_equal(write(second.bells[1], &most, sizeof most), sizeof most);
    assert_true(base_ring_sleeps(&second.completions, 0));
    assert_ok(client_post(&second, WIRE_EXISTS, &key, NULL, NULL, &number));
    while (base_ring_sleeps(&second.completions, 0))
        usleep(100);
    assert_ok(client_puts(&first, 1, other));
    client_close(&second);
    wait_for_sessions(1);
    assert_ok(client_gets(&first, 1, other));
    client_close(&first);
}

/* ---- clients that die ---- */

/* Puts and gets until it is killed; it has been forked from a process with threads, so it calls
 * nothing that takes a lock of theirs but malloc. */
static void client_runs_for_ever(uint32_t seed)
{
    char *memory;
    if (client_hello(&second, path) != KVT_OK || client_open_channel(&second) != KVT_OK) _exit(1);
    if (client_register(&second, 64 * ENTRY, F_SEAL_SHRINK, &memory, NULL) != KVT_OK) _exit(2);
    for (uint32_t i = seed;; i = i * 1664525u + 1013904223u) {
        const kvt_key key = support_key(i >> 8 & 63);
        const wire_put head = put_of(support_layout);
        uint64_t number;
        wire_completion done;
        while (second.pending.open < CLIENT_ENTRIES / 2) {
            char *place = memory + second.pending.first_free * ENTRY;
            support_fill(i >> 8 & 63, place);
            const bool puts = (i >> 20 & 3) == 0;
            if (client_post(&second, puts ? WIRE_PUT : WIRE_GET, &key,
                            puts ? (const void *)&head : &any_get, KVT_PACKED(place, ENTRY),
                            &number) != KVT_OK)
                _exit(3);
        }
        if (client_take(&second, &done) != KVT_OK) _exit(4);
    }
}

TEST(clients_that_are_killed_leave_nothing)
{
    char *memory;
    client_ready(&first, &memory);
    assert_ok(client_puts(&first, 1000, memory));
    for (uint32_t round = 0; round < 30; round++) {
        const pid_t parent = getpid(), child = fork();
        if (child == 0) {
            /* The child's copies of the parent's descriptors would keep its session. */
            if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent) _exit(9);
            close(first.socket);
            client_runs_for_ever(round);
        }
        assert_true(child > 0);
        const uint64_t gets = support_stats(store).gets;
        while (support_stats(store).gets < gets + 20 + round * 7)
            assert_ok(client_gets(&first, 1000, memory));
        wait_for_sessions(2);
        assert_int_equal(kill(child, SIGKILL), 0);
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        wait_for_sessions(1);
        assert_int_equal(support_stats(store).staging_bytes, 0);
    }
    for (uint32_t i = 0; i < 64; i++) {
        const kvt_status status = client_gets(&first, i, memory);
        assert_true(status == KVT_OK || status == KVT_MISS);
    }
    client_close(&first);
}

/* A client dies while a device reads for it; its memory is unmapped before the device answers. */
TEST(reads_of_a_dead_client_touch_nothing)
{
    site *s = site_prepare((site_shape){
        .disks = 1, .disk_bytes = 32 << 20, .unit_bytes = 65536, .fast = true, .staged = true});
    const tiers_fault_rule hang = {.action = TIERS_FAULT_HANG, .kinds = TIERS_FAULT_READS};
    char *memory, *other;
    uint64_t number;
    serve_end();
    site_open(s);
    serve_begin(s->store);
    s->store = NULL; /* serve_end closes it */
    client_ready(&first, &memory);
    client_ready(&second, &other);
    for (uint32_t i = 0; i < 4; i++)
        assert_ok(client_puts(&first, i, memory));
    assert_ok(kvt_store_flush(store));
    assert_ok(client_gets(&second, 3, other));
    assert_ok(tiers_fault_add(s->disks[0].device, &hang));
    for (uint32_t i = 0; i < 4; i++) {
        const kvt_key key = support_key(i);
        assert_ok(client_post(&first, WIRE_GET, &key, &any_get,
                              KVT_PACKED(memory + i * ENTRY, ENTRY), &number));
    }
    tiers_fault_counts counts = {0};
    while (counts.hung == 0) {
        usleep(1000);
        tiers_fault_counts_get(s->disks[0].device, &counts);
    }
    assert_int_equal(client_one(&first, WIRE_RELEASE, 0), KVT_BUSY);
    const kvt_key key = support_key(0);
    assert_ok(client_call(&second, WIRE_EXISTS, &key, NULL, NULL));
    client_close(&first);
    wait_for_sessions(1);
    assert_int_equal(shared_mappings(), 4);
    assert_ok(client_post(&second, WIRE_GET, &key, &any_get, KVT_PACKED(other, ENTRY), &number));
    assert_ok(client_call(&second, WIRE_EXISTS, &key, NULL, NULL));
    tiers_fault_clear(s->disks[0].device);
    wire_completion done;
    assert_ok(client_take(&second, &done));
    assert_int_equal(done.number, number);
    assert_ok(done.status);
    for (uint32_t i = 0; i < 4; i++)
        assert_ok(client_gets(&second, i, other));
    serve_end();
    serve_begin(support_open_memory("lru", 64 << 20, 8 << 20));
}
