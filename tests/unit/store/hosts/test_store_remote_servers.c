/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_remote_servers.c - stores over a server of Valkey or Redis: a caller's get drives the
 * client itself where nobody else does, beside other callers, a queue and prefetches; a server that
 * restarts or stops in between. Left out where no server is installed.
 */
#include "remote_support.h"
#include "store_remote_support.h"

#include "base/clock.h"
#include "servers.h"
#include "store/hosts/remote_tier.h"

#include <kvterrace/key.h>
#include <kvterrace/lookup.h>
#include <kvterrace/names.h>
#include <kvterrace/queue.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#define CALLERS   4u
#define GETS      150u
#define MOMENT_NS UINT64_C(5000000)

static servers cluster;

static void start(void)
{
    const int started = servers_start(&(servers_options){.nodes = 1, .single = true}, &cluster);
    if (started == 77) {
        print_message("no server of Valkey or Redis is installed: left out\n");
        skip();
    }
    assert_int_equal(started, 0);
}

/* A store over the server; without room of its own each of its gets comes from there. */
static kvt_store *open_store(kvt_publish publish, double deadline_seconds, uint64_t dram_bytes)
{
    kvt_remote_options remote = remote_options(publish);
    remote.backend = "valkey";
    remote.address = cluster.addresses;
    remote.deadline_seconds = deadline_seconds;
    remote.hint_ttl_seconds = 0;
    return open_policy(&remote, "lru", dram_bytes);
}

typedef struct caller {
    kvt_store *store;
    uint32_t number;
    atomic_uint wrong;
} caller;

static void *call(void *argument)
{
    caller *self = argument;
    for (uint32_t i = 0; i < GETS; i++) {
        const kvt_key key = support_key((i * 3 + self->number) % COUNT);
        if (self->number == 0 && i % 4 == 0)
            (void)!kvt_store_prefetch(self->store, &key, KVT_TIER_DRAM);
        if (support_get(self->store, (i * 7 + self->number) % COUNT, NULL) != KVT_OK)
            atomic_fetch_add(&self->wrong, 1);
    }
    return NULL;
}

/* Gets of a queue beside the callers'. */
static void ask_by_queue(kvt_store *store)
{
    static char data[COUNT][SUPPORT_ENTRY_BYTES];
    const kvt_queue_options options = {.struct_size = sizeof options};
    kvt_queue *queue = NULL;
    kvt_view views[COUNT];
    assert_ok(kvt_queue_open(store, &options, &queue));
    for (uint32_t round = 0; round < 10; round++) {
        for (uint32_t i = 0; i < COUNT; i++) {
            views[i] = kvt_view_packed(data[i], SUPPORT_ENTRY_BYTES);
            const kvt_request request = {.struct_size = sizeof request,
                                         .kind = KVT_REQUEST_GET,
                                         .key = support_key(i),
                                         .view = &views[i],
                                         .deadline_ns = KVT_NO_DEADLINE};
            assert_ok(kvt_queue_submit(queue, &request, 1, NULL));
        }
        for (uint32_t ended = 0; ended < COUNT; ended++) {
            kvt_completion done = {.struct_size = sizeof done};
            assert_ok(kvt_queue_wait(queue, KVT_NO_DEADLINE));
            assert_int_equal(kvt_queue_drain(queue, &done, 1), 1);
            assert_ok(done.status);
        }
    }
    kvt_queue_close(queue);
}

TEST(callers_drive_the_client)
{
    start();
    kvt_store *a = open_store(KVT_PUBLISH_ALL, 20, 8 << 20);
    kvt_store *b = open_store(KVT_PUBLISH_NONE, 20, 16 << 10);
    caller callers[CALLERS];
    pthread_t threads[CALLERS];
    put_all(a);
    support_gets(b, 0, COUNT);
    assert_int_equal(stats_of(b).hits, COUNT);
    for (uint32_t i = 0; i < CALLERS; i++) {
        callers[i] = (caller){.store = b, .number = i};
        assert_int_equal(pthread_create(&threads[i], NULL, call, &callers[i]), 0);
    }
    ask_by_queue(b);
    for (uint32_t i = 0; i < CALLERS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(atomic_load(&callers[i].wrong), 0);
    }
    /* Nothing is under way, and nobody has the client. */
    link_driver driver = LINK_THREAD;
    for (uint32_t i = 0; i < 2000 && driver != LINK_FREE; i++) {
        base_sleep(MOMENT_NS);
        pthread_mutex_lock(&b->remote->lock);
        driver = b->remote->driver;
        pthread_mutex_unlock(&b->remote->lock);
    }
    assert_int_equal(driver, LINK_FREE);
    assert_int_equal(stats_of(b).timeouts + stats_of(b).node_failures, 0);
    kvt_store_close(a);
    kvt_store_close(b);
    servers_stop(&cluster);
}

/* Its connections are lost while nobody drives: the next get finds that, and asks on a new one. */
TEST(a_server_restarts_between_gets)
{
    start();
    kvt_store *a = open_store(KVT_PUBLISH_ALL, 20, 8 << 20);
    kvt_store *b = open_store(KVT_PUBLISH_NONE, 20, 16 << 10);
    put_all(a);
    assert_ok(support_get(b, 1, NULL));
    assert_true(servers_restart(&cluster, 0));
    assert_int_equal(support_get(b, 1, NULL), KVT_MISS);
    assert_int_equal(stats_of(b).misses, 1);
    assert_int_equal(stats_of(b).timeouts + stats_of(b).node_failures, 0);
    kvt_store_close(a);
    a = open_store(KVT_PUBLISH_ALL, 20, 8 << 20);
    put_all(a);
    kvt_status status = KVT_MISS; /* for a second b knows the epoch that the server has lost */
    for (uint32_t i = 0; i < 1000 && status == KVT_MISS; i++) {
        status = support_get(b, 1, NULL);
        base_sleep(10000000);
    }
    assert_ok(status);
    kvt_store_close(a);
    kvt_store_close(b);
    servers_stop(&cluster);
}

/* A clear of one host over a server: the other finds nothing of that space when its second has
 * passed, and what is published then. */
TEST(a_clear_reaches_the_other_host)
{
    start();
    kvt_store *a = open_store(KVT_PUBLISH_ALL, 20, 8 << 20);
    kvt_store *b = open_store(KVT_PUBLISH_NONE, 20, 16 << 10);
    for (int how = 0; how < 2; how++) {
        put_all(a);
        epochs_forget(&b->remote->epochs); /* a second passes */
        support_gets(b, 0, COUNT);
        const kvt_key third = support_key(3);
        const kvt_clear_filter filter = {.struct_size = sizeof filter,
                                         .by_space = how == 0,
                                         .space = kvt_key_space(&third),
                                         .everything = how == 1};
        assert_ok(kvt_store_clear(a, &filter, NULL));
        assert_ok(kvt_remote_flush(a, KVT_NO_DEADLINE));
        assert_int_equal(stats_of(a).owed_clears, 0);
        epochs_forget(&b->remote->epochs);
        for (uint32_t i = 0; i < COUNT; i++) /* each key is a space of its own */
            assert_int_equal(support_get(b, i, NULL), how == 1 || i == 3 ? KVT_MISS : KVT_OK);
        assert_ok(support_put(a, 3));
        assert_ok(kvt_remote_flush(a, KVT_NO_DEADLINE));
        epochs_forget(&b->remote->epochs);
        assert_ok(support_get(b, 3, NULL));
        assert_ok(kvt_store_clear(
            a, &(kvt_clear_filter){.struct_size = sizeof filter, .everything = true}, NULL));
        assert_ok(kvt_remote_flush(a, KVT_NO_DEADLINE));
    }
    kvt_store_close(a);
    kvt_store_close(b);
    servers_stop(&cluster);
}

/* Another client writes under our names: each is a miss, is deleted, and published anew. */
TEST(garbage_is_given_up)
{
    static const char *const writes[] = {"SET %s text", "RPUSH %s a b", "SETRANGE %s 20 garbage",
                                         "SETRANGE %s 10000000 x", "SETRANGE %s 67108863 x"};
    start();
    kvt_store *a = open_store(KVT_PUBLISH_ALL, 20, 8 << 20);
    kvt_store *b = open_store(KVT_PUBLISH_NONE, 20, 16 << 10);
    for (uint32_t i = 0; i < sizeof writes / sizeof writes[0]; i++) {
        char name[OBJECT_NAME_BYTES], line[300], answer[64];
        const kvt_key key = support_key(i);
        uint64_t epoch = 0;
        put_all(a);
        epochs_forget(&b->remote->epochs);
        assert_ok(support_get(b, i, NULL));
        assert_int_equal(epochs_get(&b->remote->epochs, &key, 0, base_clock_ns(), &epoch),
                         EPOCH_KNOWN);
        (void)object_name(b->remote->space, &key, epoch, 0, name);
        if (i == 1) {
            snprintf(line, sizeof line, "DEL %s", name);
            assert_true(servers_say(&cluster, 0, line, answer, sizeof answer));
        }
        snprintf(line, sizeof line, writes[i], name);
        assert_true(servers_say(&cluster, 0, line, answer, sizeof answer));
        support_gets(b, COUNT - 4, 4); /* the key itself is here no longer */
        assert_int_equal(support_get(b, i, NULL), KVT_MISS);
        assert_ok(kvt_remote_flush(b, KVT_NO_DEADLINE));
        assert_int_equal(stats_of(b).bad_records, i + 1);
        assert_int_equal(stats_of(b).unfit + stats_of(b).node_failures, 0);
        snprintf(line, sizeof line, "EXISTS %s", name);
        assert_true(servers_say(&cluster, 0, line, answer, sizeof answer));
        assert_string_equal(answer, "0");
        assert_ok(kvt_store_clear(
            a, &(kvt_clear_filter){.struct_size = sizeof(kvt_clear_filter), .everything = true},
            NULL));
        assert_ok(kvt_remote_flush(a, KVT_NO_DEADLINE));
    }
    assert_int_equal(stats_of(b).nodes_open, 0);
    kvt_store_close(a);
    kvt_store_close(b);
    servers_stop(&cluster);
}

/* A get that drives leaves at its deadline, and what it has left is the thread's. */
TEST(a_server_stops_under_a_get)
{
    start();
    kvt_store *a = open_store(KVT_PUBLISH_ALL, 20, 8 << 20);
    kvt_store *b = open_store(KVT_PUBLISH_NONE, 0.05, 16 << 10);
    put_all(a);
    kvt_status status = KVT_MISS;
    for (uint32_t i = 0; i < 100 && status != KVT_OK; i++) /* a busy machine may be late */
        status = support_get(b, 1, NULL);
    assert_ok(status);
    assert_true(servers_signal(&cluster, 0, SIGSTOP));
    for (uint32_t i = 0; i < 8; i++) {
        kvt_get_info info = {.struct_size = sizeof info};
        assert_int_equal(support_get(b, i, &info), KVT_MISS);
        assert_true(i > 0 || info.timed_out);
    }
    assert_int_equal(stats_of(b).nodes_open, 1);
    assert_true(servers_signal(&cluster, 0, SIGCONT));
    status = KVT_MISS;
    for (uint32_t i = 0; i < 2000 && status != KVT_OK; i++) {
        base_sleep(MOMENT_NS);
        status = support_get(b, i % COUNT, NULL);
    }
    assert_ok(status);
    kvt_store_close(a);
    kvt_store_close(b);
    servers_stop(&cluster);
}

TEST_ALL(ignore_pipes, NULL);
