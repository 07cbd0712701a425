/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conform_remote_all.c - one checklist over every object back end: memory, fault without faults,
 * mooncake, a single server, a cluster of three. The servers are left out, with a message, where
 * none is installed, and mooncake where there is no library. KVT_MOONCAKE_MASTER: a real master.
 */
#include "remote_support.h"

#include "remote/remote_fault.h"
#include "remote/remote_memory.h"
#include "servers.h"

#include <stdio.h>
#include <stdlib.h>

#define LARGE ((1u << 20) - 16)

typedef struct site {
    const char *name;
    remote_config config;
    remote_client *client;
    servers cluster;
    remote_fault faults;
    uint8_t *bytes, *target;
} site;

static void check_absent(site *at)
{
    uint64_t bytes = 77;
    assert_int_equal(remote_get(at->client, "absent", at->target, 64, &bytes), KVT_MISS);
    assert_int_equal(bytes, 0);
    assert_int_equal(remote_ask(at->client, REMOTE_EXISTS, "absent"), KVT_MISS);
    assert_int_equal(remote_ask(at->client, REMOTE_DELETE, "absent"), KVT_MISS);
}

static void check_sizes(site *at)
{
    static const size_t sizes[] = {0, 1, 2, 15, 4096, 16383, 16384, 16385, 65536, LARGE};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        char key[64];
        uint64_t bytes = 0;
        snprintf(key, sizeof key, "kvt1:ns:{size%zu}:0", i);
        remote_fill(at->bytes, sizes[i], i + 1);
        assert_ok(remote_put(at->client, key, at->bytes, sizes[i]));
        memset(at->target, 0x5a, sizes[i] + 64);
        assert_ok(remote_get(at->client, key, at->target, sizes[i] + 32, &bytes));
        assert_int_equal(bytes, sizes[i]);
        assert_memory_equal(at->target, at->bytes, sizes[i]);
        for (size_t j = 0; j < 64; j++)
            assert_int_equal(at->target[sizes[i] + j], 0x5a);
        assert_ok(remote_ask(at->client, REMOTE_EXISTS, key));
    }
}

static void check_parts(site *at)
{
    remote_fill(at->bytes, 100000, 7);
    memcpy(at->bytes + 50, "\r\n$5\r\nhello\r\n-ERR\r\n", 20);
    struct iovec from[] = {
        {at->bytes, 13}, {at->bytes + 13, 0}, {at->bytes + 13, 70000}, {at->bytes + 70013, 29987}};
    remote_request put = remote_of(REMOTE_PUT, "parts", from, 4);
    put.ttl_seconds = 100;
    assert_ok(remote_do(at->client, &put));
    for (size_t cut = 0; cut <= 100000; cut += 24999) {
        memset(at->target, 0, 100064);
        struct iovec to[] = {{at->target, cut}, {at->target + cut, 100000 - cut}};
        remote_request get = remote_of(REMOTE_GET, "parts", to, 2);
        assert_ok(remote_do(at->client, &get));
        assert_int_equal(get.value_bytes, 100000);
        assert_memory_equal(at->target, at->bytes, 100000);
        assert_int_equal(at->target[100000], 0);
    }
}

static void check_too_small(site *at)
{
    static const size_t rooms[] = {0, 1, 8191, 19999};
    remote_fill(at->bytes, 20000, 3);
    assert_ok(remote_put(at->client, "long", at->bytes, 20000));
    for (size_t i = 0; i < sizeof rooms / sizeof rooms[0]; i++) {
        memset(at->target, 0x5a, 20000);
        assert_int_equal(remote_get(at->client, "long", at->target, rooms[i], NULL), KVT_E_SPACE);
        for (size_t j = rooms[i]; j < 20000; j++)
            assert_int_equal(at->target[j], 0x5a);
    }
    /* The connection goes on. */
    assert_ok(remote_get(at->client, "long", at->target, 20000, NULL));
    assert_memory_equal(at->target, at->bytes, 20000);
}

static void check_replace_and_delete(site *at)
{
    uint64_t bytes = 0;
    assert_ok(remote_put(at->client, "one", "first", 5));
    assert_ok(remote_put(at->client, "one", "second!", 7));
    assert_ok(remote_get(at->client, "one", at->target, 64, &bytes));
    assert_int_equal(bytes, 7);
    assert_memory_equal(at->target, "second!", 7);
    assert_ok(remote_ask(at->client, REMOTE_DELETE, "one"));
    assert_int_equal(remote_ask(at->client, REMOTE_EXISTS, "one"), KVT_MISS);
    assert_int_equal(remote_get(at->client, "one", at->target, 64, &bytes), KVT_MISS);
}

#define MANY 600u

/* Many requests of all kinds at once: each completes once, with what is its own. */
/* A fresh object replaces none, and may come when the one before is gone. */
static void check_fresh(site *at)
{
    char first[] = "first", second[] = "second", got[16] = "";
    struct iovec parts[3] = {{first, 5}, {second, 6}, {got, sizeof got}};
    for (uint32_t ttl = 0; ttl < 2; ttl++) {
        remote_request put = remote_of(REMOTE_PUT, "kvt1:{fresh}:w", &parts[0], 1);
        put.fresh = true;
        put.ttl_seconds = 100 * ttl;
        assert_ok(remote_do(at->client, &put));
        remote_request again = remote_of(REMOTE_PUT, "kvt1:{fresh}:w", &parts[1], 1);
        again.fresh = true;
        again.ttl_seconds = 100 * ttl;
        assert_int_equal(remote_do(at->client, &again), KVT_EXISTS);
        remote_request get = remote_of(REMOTE_GET, "kvt1:{fresh}:w", &parts[2], 1);
        assert_ok(remote_do(at->client, &get));
        assert_int_equal(get.value_bytes, 5);
        assert_memory_equal(got, first, 5);
        remote_request gone = remote_of(REMOTE_DELETE, "kvt1:{fresh}:w", NULL, 0);
        assert_ok(remote_do(at->client, &gone));
    }
}

static void check_many(site *at)
{
    static remote_request requests[MANY];
    static char keys[MANY][32];
    static uint8_t values[MANY][512], got[MANY][512];
    static struct iovec parts[MANY];
    remote_request *done[64];
    for (int round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < MANY; i++) {
            snprintf(keys[i], sizeof keys[i], "kvt1:{many%u}:0", i);
            remote_fill(values[i], 512, i);
            const remote_kind kind = round == 0   ? REMOTE_PUT
                                     : round == 1 ? REMOTE_GET
                                                  : REMOTE_EXISTS;
            parts[i] = (struct iovec){round == 0 ? values[i] : got[i], 512};
            requests[i] = remote_of(kind, keys[i], round < 2 ? &parts[i] : NULL, round < 2);
            requests[i].deadline_ns = base_clock_ns() + 20 * REMOTE_SECOND_NS;
            remote_submit(at->client, &requests[i]);
        }
        uint32_t completed = 0;
        for (int wait = 0; wait < 100 && completed < MANY; wait++)
            completed += (uint32_t)remote_reap(at->client, done, 1, 64, REMOTE_SECOND_NS);
        assert_int_equal(completed, MANY);
        for (uint32_t i = 0; i < MANY; i++) {
            assert_ok(requests[i].status);
            if (round == 1) assert_memory_equal(got[i], values[i], 512);
        }
    }
    assert_int_equal(at->client->in_flight, 0);
}

static void check_deadline(site *at)
{
    struct iovec part = {at->target, 64};
    remote_request get = remote_of(REMOTE_GET, "long", &part, 1);
    get.deadline_ns = base_clock_ns() - 1;
    assert_int_equal(remote_do(at->client, &get), KVT_E_TIMEOUT);
    uint64_t bytes;
    assert_ok(remote_get(at->client, "long", at->target, 20000, &bytes));
    assert_int_equal(bytes, 20000);
}

static void check_wake(site *at)
{
    remote_request *done[1];
    remote_wake(at->client);
    const uint64_t began_ns = base_clock_ns();
    assert_int_equal(remote_reap(at->client, done, 1, 1, 60 * REMOTE_SECOND_NS), 0);
    assert_true(base_clock_ns() - began_ns < 30 * REMOTE_SECOND_NS);
    assert_int_equal(remote_reap(at->client, done, 0, 1, 0), 0);
    assert_int_equal(remote_reap(at->client, done, 1, 1, 1000000), 0);
}

static void check_all(site *at)
{
    char message[200];
    at->bytes = test_alloc(LARGE + 64);
    at->target = test_alloc(LARGE + 64);
    assert_ok(remote_open(&at->config, &at->client, message, sizeof message));
    check_absent(at);
    check_sizes(at);
    check_parts(at);
    check_too_small(at);
    check_replace_and_delete(at);
    check_fresh(at);
    check_many(at);
    check_deadline(at);
    check_wake(at);
    remote_node_stats node;
    remote_stats stats;
    remote_stats_get(at->client, &stats);
    assert_true(stats.requests[REMOTE_GET] >= MANY && stats.malformed == 0);
    assert_true(remote_node_stats_get(at->client, 0, &node));
    assert_int_equal(node.breaker, REMOTE_CLOSED);
    assert_false(remote_node_stats_get(at->client, stats.node_count, &node));
    remote_close(at->client);
}

TEST(memory_conforms)
{
    static site at = {.config = {.backend = "memory", .addresses = "conform"}};
    check_all(&at);
    remote_memory_clear("conform");
    assert_int_equal(remote_memory_count("conform", NULL), 0);
}

TEST(fault_conforms)
{
    static site at = {.config = {.backend = "fault"},
                      .faults = {.inner = {.backend = "memory", .addresses = "conform"}}};
    at.config.faults = &at.faults;
    check_all(&at);
    remote_memory_clear("conform");
}

TEST(mooncake_conforms)
{
    static site at = {.config = {.backend = "mooncake", .addresses = "127.0.0.1:50051"}};
    char message[200];
    remote_client *client = NULL;
    if (getenv("KVT_MOONCAKE_MASTER") != NULL) at.config.addresses = getenv("KVT_MOONCAKE_MASTER");
    if (remote_open(&at.config, &client, message, sizeof message) == KVT_E_UNSUPPORTED) {
        print_message("%s: left out\n", message);
        skip();
    }
    remote_close(client);
    check_all(&at);
}

static void servers_conform(const servers_options *options)
{
    static site at;
    at = (site){.config = {.backend = "valkey", .cluster = !options->single}};
    const int started = servers_start(options, &at.cluster);
    if (started == 77) {
        print_message("no server of Valkey or Redis is installed: left out\n");
        skip();
    }
    assert_int_equal(started, 0);
    at.config.addresses = at.cluster.addresses;
    check_all(&at);
    servers_stop(&at.cluster);
}

TEST(single_conforms)
{
    servers_conform(&(servers_options){.nodes = 1, .single = true});
}

TEST(cluster_conforms)
{
    servers_conform(&(servers_options){.nodes = 3});
}

TEST(configuration_is_refused)
{
    static const char *const wrong[] = {"",           "host",     "host:",  ":6379",   "host:0",
                                        "host:65536", "host:12a", "a b:1x", "h/x:6379"};
    remote_client *client = NULL;
    char message[200];
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        const remote_config config = {.backend = "valkey", .addresses = wrong[i]};
        assert_int_equal(remote_open(&config, &client, message, sizeof message), KVT_E_ARGUMENT);
        assert_null(client);
        assert_true(strlen(message) > 0);
    }
    const remote_config two = {.backend = "valkey", .addresses = "127.0.0.1:1,127.0.0.1:2"};
    assert_int_equal(remote_open(&two, &client, message, sizeof message), KVT_E_ARGUMENT);
    const remote_config unknown = {.backend = "memcached", .addresses = "127.0.0.1:1"};
    assert_int_equal(remote_open(&unknown, &client, message, sizeof message), KVT_E_UNSUPPORTED);
}

TEST_ALL(ignore_pipes, NULL);
