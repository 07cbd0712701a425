/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_client_events.c - readers of events of a connected store, and what else watches one: they
 * are told what readers of the store's own process are told, each has a session of its own, and
 * what a server bounds is bounded. A server that is killed: test_client_connection.c.
 */
#include "serve_site.h"

#include "serve/wire/control.h"

#include <kvterrace/connect.h>
#include <kvterrace/watch.h>
#include <poll.h>
#include <sys/wait.h>

enum { MIB = 1 << 20 };

static serve_site site;
static kvt_store *store; /* connected */

static kvt_status connect_to(kvt_store **out)
{
    char message[256];
    return kvt_connect(site.path, NULL, out, message, sizeof message);
}

TEST_BEFORE_EACH
{
    serve_site_begin(&site, support_open_memory("lru", 64 * MIB, 2 * MIB));
    assert_ok(connect_to(&store));
}

TEST_AFTER_EACH
{
    kvt_store_close(store);
    serve_site_end(&site);
}

static bool is_readable(const kvt_events *reader, int timeout_ms)
{
    struct pollfd wait = {.fd = kvt_events_fd(reader), .events = POLLIN};
    return poll(&wait, 1, timeout_ms) == 1;
}

/* All events that wait, of which the first `lost` are lost. */
static size_t drain_all(kvt_events *reader, kvt_event *events, size_t capacity, uint64_t lost)
{
    size_t count;
    uint64_t told;
    assert_ok(kvt_events_drain(reader, events, capacity, &count, &told));
    assert_int_equal(told, lost);
    return count;
}

/* A reader at each side: both are told the same, however many events one drain takes. */
TEST(a_reader_is_told_what_the_store_s_own_readers_are)
{
    enum { MANY = 300 };
    static kvt_event own[2 * MANY], ours[2 * MANY];
    kvt_events *beside = NULL, *reader = NULL;
    assert_ok(kvt_events_open(site.store, 2 * MANY, &beside));
    assert_ok(kvt_events_open(store, 2 * MANY, &reader));
    assert_false(is_readable(reader, 0));
    assert_int_equal(drain_all(reader, ours, 8, 0), 0);
    static const size_t parts[] = {1, 30, 31, 32, 2 * MANY};
    for (size_t part = 0; part < 5; part++) {
        for (uint32_t i = 0; i < MANY; i++) {
            const kvt_key key = support_key(i);
            if (part % 2 == 0)
                assert_ok(support_put(store, i));
            else
                assert_ok(kvt_store_delete(store, &key));
        }
        assert_ok(kvt_store_flush(store));
        size_t count = 0;
        while (count < MANY) {
            assert_true(is_readable(reader, 10000));
            const size_t now = drain_all(reader, ours + count, parts[part], 0);
            assert_true(now > 0 && now <= parts[part]);
            count += now;
        }
        assert_false(is_readable(reader, 20));
        assert_int_equal(drain_all(beside, own, 2 * MANY, 0), count);
        assert_memory_equal(own, ours, count * sizeof *own);
    }
    kvt_events_close(beside);
    kvt_events_close(reader);
}

TEST(what_is_lost_is_said_once)
{
    kvt_event events[8];
    kvt_events *reader = NULL;
    size_t count;
    assert_int_equal(kvt_events_open(store, 0, &reader), KVT_E_ARGUMENT);
    assert_int_equal(kvt_events_open(store, KVT_EVENTS_CAPACITY_MAX + 1, &reader), KVT_E_ARGUMENT);
    assert_int_equal(kvt_events_open(store, 1, NULL), KVT_E_ARGUMENT);
    assert_ok(kvt_events_open(store, 4, &reader));
    for (uint32_t i = 0; i < 10; i++)
        assert_ok(support_put(store, i));
    assert_int_equal(kvt_events_drain(reader, NULL, 1, &count, NULL), KVT_E_ARGUMENT);
    assert_int_equal(kvt_events_drain(reader, events, 1, NULL, NULL), KVT_E_ARGUMENT);
    /* A drain that does not ask leaves the number to the next one. */
    assert_ok(kvt_events_drain(reader, events, 1, &count, NULL));
    assert_int_equal(count, 1);
    const kvt_key key = support_key(6);
    assert_memory_equal(&events[0].key, &key, sizeof key);
    assert_int_equal(drain_all(reader, NULL, 0, 6), 0);
    assert_int_equal(drain_all(reader, events, 8, 0), 3);
    kvt_events_close(reader);
}

/* The largest capacity is taken; the server keeps fewer. */
TEST(a_server_bounds_what_waits)
{
    static kvt_event events[WIRE_EVENTS_MAX + 8];
    kvt_events *reader = NULL;
    assert_ok(kvt_events_open(store, KVT_EVENTS_CAPACITY_MAX, &reader));
    kvt_key key = support_key(0);
    for (uint32_t i = 0; i < WIRE_EVENTS_MAX / 2 + 8; i++) {
        assert_ok(support_put(site.store, 0));
        assert_ok(kvt_store_delete(site.store, &key));
    }
    assert_int_equal(drain_all(reader, events, WIRE_EVENTS_MAX + 8, 16), WIRE_EVENTS_MAX);
    for (size_t i = 1; i < WIRE_EVENTS_MAX; i++)
        assert_int_equal(events[i].number, events[i - 1].number + 1);
    kvt_events_close(reader);
}

/* A reader is a session: it outlives the store's, and ends where there is no room for it. */
TEST(a_reader_has_a_session_of_its_own)
{
    kvt_event event;
    kvt_events *readers[4] = {NULL};
    assert_int_equal(server_sessions(site.lends), 1);
    for (int i = 0; i < 3; i++)
        assert_ok(kvt_events_open(store, 8, &readers[i]));
    assert_int_equal(server_sessions(site.lends), 4);
    assert_int_equal(kvt_events_open(store, 8, &readers[3]), KVT_E_GONE);
    assert_null(readers[3]);
    kvt_store_close(store);
    store = NULL;
    assert_ok(support_put(site.store, 1));
    for (int i = 0; i < 3; i++) {
        assert_true(is_readable(readers[i], 10000));
        assert_int_equal(drain_all(readers[i], &event, 1, 0), 1);
        assert_int_equal(event.kind, KVT_EVENT_STORED);
        kvt_events_close(readers[i]);
    }
    kvt_events_close(NULL);
}

TEST(a_child_of_fork_has_no_reader)
{
    kvt_event event;
    kvt_events *reader = NULL;
    int how;
    assert_ok(kvt_events_open(store, 8, &reader));
    assert_ok(support_put(store, 1));
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        size_t count;
        kvt_events *other = NULL;
        const bool refused = kvt_events_fd(reader) == -1 &&
                             kvt_events_drain(reader, &event, 1, &count, NULL) == KVT_E_STATE &&
                             kvt_events_open(store, 8, &other) == KVT_E_STATE &&
                             kvt_watch_write(store, "file") == KVT_E_STATE;
        kvt_events_close(reader);
        _exit(refused ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 0);
    assert_int_equal(drain_all(reader, &event, 1, 0), 1);
    kvt_events_close(reader);
}

/* ---- the file, and what else goes by the socket ---- */

static size_t read_text(const char *path, char *text, size_t size)
{
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    const size_t bytes = fread(text, 1, size - 1, file);
    text[bytes] = '\0';
    fclose(file);
    return bytes;
}

TEST(a_file_is_written_by_the_client)
{
    static char text[1 << 20];
    char path[128];
    snprintf(path, sizeof path, "%s/watch", site.folder);
    assert_ok(support_put(store, 1));
    assert_ok(support_get(store, 1, NULL));
    for (int i = 0; i < 2; i++) { /* it replaces its own */
        assert_ok(kvt_watch_write(store, path));
        assert_true(read_text(path, text, sizeof text) > 4096);
        assert_memory_equal(text, "# kvterrace-watch-1 ", 20);
        assert_non_null(strstr(text, "\nkvterrace_hits_total"));
        assert_non_null(strstr(text, "# operation instant="));
        assert_non_null(strstr(text, "kind=get tier=dram status=KVT_OK"));
    }
    FILE *other = fopen(path, "w");
    assert_true(other != NULL && fputs("something else", other) >= 0);
    fclose(other);
    assert_int_equal(kvt_watch_write(store, path), KVT_E_MISMATCH);
    assert_int_equal(kvt_watch_write(store, ""), KVT_E_ARGUMENT);
    assert_int_equal(kvt_watch_write(store, NULL), KVT_E_ARGUMENT);
}

TEST(observations_reach_the_store)
{
    const kvt_key there = support_key(1), absent = support_key(2);
    const kvt_variant raw = {.codec = KVT_CODEC_RAW};
    assert_ok(support_put(store, 1));
    assert_int_equal(kvt_quality_observe(store, &there, raw, 0.5, 1), KVT_E_UNSUPPORTED);
    assert_int_equal(kvt_quality_observe(store, &absent, raw, 0.5, 1), KVT_MISS);
    assert_int_equal(kvt_quality_observe(store, &there, raw, 1.5, 1), KVT_E_ARGUMENT);
    assert_int_equal(kvt_quality_observe(store, &there, raw, 0.5, 0), KVT_E_ARGUMENT);
    assert_int_equal(kvt_quality_observe(store, NULL, raw, 0.5, 1), KVT_E_ARGUMENT);
}
