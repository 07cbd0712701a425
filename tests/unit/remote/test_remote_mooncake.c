/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_remote_mooncake.c - the back end of Mooncake over a library that does as it is told
 * (tests/support/fake_mooncake.c): calls that do not return, that fail, that find no room. Left out
 * where another library of that name is found.
 */
#include "remote_support.h"

#include "fake_mooncake.h"

#include <dlfcn.h>
#include <stdio.h>

#define DEADLINE_NS UINT64_C(20000000)
#define SLACK_NS    UINT64_C(200000000) /* of a busy machine */

static void (*set_mode)(fake_mooncake_mode mode);
static int (*held)(void);

static remote_client *open_client(void)
{
    const remote_config config = {.backend = "mooncake", .addresses = "127.0.0.1:50051"};
    remote_client *client = NULL;
    char message[200];
    set_mode(FAKE_MOONCAKE_GOOD);
    assert_ok(remote_open(&config, &client, message, sizeof message));
    return client;
}

static int find_library(void)
{
    void *library = dlopen("libmooncake_store.so", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) return -1;
    *(void **)&set_mode = dlsym(library, "fake_mooncake_set");
    *(void **)&held = dlsym(library, "fake_mooncake_held");
    return set_mode != NULL && held != NULL ? 0 : -1;
}

/* Runs requests at once. Returns how many ended later than their deadline allows. */
static uint32_t run_all(remote_client *client, remote_request *requests, uint32_t count)
{
    remote_request *done[16];
    uint32_t ended = 0, late = 0;
    const uint64_t end_ns = base_clock_ns() + DEADLINE_NS;
    for (uint32_t i = 0; i < count; i++) {
        requests[i].state = REMOTE_IDLE;
        requests[i].deadline_ns = end_ns;
        remote_submit(client, &requests[i]);
    }
    while (ended < count)
        ended += (uint32_t)remote_reap(client, done, 1, 16, REMOTE_SECOND_NS);
    for (uint32_t i = 0; i < count; i++)
        late += requests[i].finished_ns > end_ns + SLACK_NS;
    return late;
}

TEST(whoever_waits_leaves)
{
    remote_client *client = open_client();
    uint8_t value[4096], got[3][4096];
    struct iovec parts[3];
    remote_request gets[3];
    remote_fill(value, sizeof value, 5);
    assert_ok(remote_put(client, "silent", value, sizeof value));
    memset(got, 0x5a, sizeof got);
    set_mode(FAKE_MOONCAKE_SILENT);
    for (uint32_t i = 0; i < 3; i++) {
        parts[i] = (struct iovec){got[i], sizeof got[i]};
        gets[i] = remote_of(REMOTE_GET, "silent", &parts[i], 1);
        assert_int_equal(run_all(client, &gets[i], 1), 0);
        assert_int_equal(gets[i].status, KVT_E_TIMEOUT);
    }
    assert_int_equal(held(), 3); /* each on a thread of its own */
    remote_node_stats node;
    assert_true(remote_node_stats_get(client, 0, &node));
    assert_int_equal(node.breaker, REMOTE_OPEN);
    assert_int_equal(node.timeouts, 3);
    assert_int_equal(run_all(client, gets, 1), 0);
    assert_int_equal(gets[0].status, KVT_E_GONE); /* at once */
    set_mode(FAKE_MOONCAKE_GOOD);
    while (held() != 0)
        base_sleep(1000000);
    for (uint32_t i = 0; i < 100 && gets[0].status != KVT_OK; i++) {
        base_sleep(10000000);
        (void)run_all(client, gets, 1);
    }
    assert_ok(gets[0].status);
    assert_memory_equal(got[0], value, sizeof value);
    /* What came late went nowhere. */
    for (uint32_t i = 1; i < 3; i++)
        for (size_t j = 0; j < sizeof got[i]; j++)
            assert_int_equal(got[i][j], 0x5a);
    remote_stats stats;
    remote_stats_get(client, &stats);
    assert_int_equal(stats.late_replies, 3);
    remote_close(client);
}

TEST(a_put_that_leaves_keeps_its_bytes)
{
    remote_client *client = open_client();
    uint8_t value[1000], got[1000];
    struct iovec part = {value, sizeof value};
    remote_fill(value, sizeof value, 9);
    set_mode(FAKE_MOONCAKE_SILENT);
    remote_request put = remote_of(REMOTE_PUT, "late put", &part, 1);
    assert_int_equal(run_all(client, &put, 1), 0);
    assert_int_equal(put.status, KVT_E_TIMEOUT);
    memset(value, 0, sizeof value); /* the caller's again */
    set_mode(FAKE_MOONCAKE_GOOD);
    while (held() != 0)
        base_sleep(1000000);
    remote_fill(value, sizeof value, 9);
    kvt_status status = KVT_MISS;
    for (int i = 0; i < 1000 && status != KVT_OK; i++) {
        base_sleep(1000000);
        status = remote_get(client, "late put", got, sizeof got, NULL);
    }
    assert_ok(status);
    assert_memory_equal(got, value, sizeof value);
    remote_close(client);
}

TEST(a_close_leaves_calls_behind)
{
    remote_client *client = open_client();
    uint8_t got[64];
    struct iovec part = {got, sizeof got};
    assert_ok(remote_put(client, "close", "12345", 5));
    set_mode(FAKE_MOONCAKE_SILENT);
    remote_request get = remote_of(REMOTE_GET, "close", &part, 1);
    assert_int_equal(run_all(client, &get, 1), 0);
    assert_int_equal(held(), 1);
    remote_close(client); /* the call's thread has the client from here on */
    assert_int_equal(held(), 1);
    set_mode(FAKE_MOONCAKE_GOOD);
    while (held() != 0)
        base_sleep(1000000);
    base_sleep(20000000); /* the memory is given back, which a checker of leaks looks at */
}

TEST(failures_have_their_status)
{
    remote_client *client = open_client();
    uint8_t got[64];
    set_mode(FAKE_MOONCAKE_FULL);
    assert_int_equal(remote_put(client, "full", "12345", 5), KVT_E_SPACE);
    set_mode(FAKE_MOONCAKE_GONE);
    for (int i = 0; i < 3; i++)
        assert_int_equal(remote_get(client, "full", got, sizeof got, NULL), KVT_E_GONE);
    remote_node_stats node;
    assert_true(remote_node_stats_get(client, 0, &node));
    assert_true(node.breaker == REMOTE_OPEN && node.failures == 3);
    remote_close(client);
    /* Where no master answers, requests fail and the client opens. */
    client = open_client();
    set_mode(FAKE_MOONCAKE_GONE);
    assert_int_equal(remote_ask(client, REMOTE_EXISTS, "full"), KVT_E_GONE);
    remote_stats stats;
    remote_stats_get(client, &stats);
    assert_non_null(strstr(stats.message, "127.0.0.1:50051"));
    remote_close(client);
}

TEST(a_life_ends)
{
    remote_client *client = open_client();
    char got[16];
    char one[] = "first", two[] = "other";
    struct iovec first = {one, 5}, second = {two, 5};
    remote_request put = remote_of(REMOTE_PUT, "life", &first, 1);
    put.fresh = true;
    put.ttl_seconds = 1;
    assert_ok(remote_do(client, &put));
    put.parts = &second;
    put.deadline_ns = 0;
    assert_int_equal(remote_do(client, &put), KVT_EXISTS);
    base_sleep(1100000000);
    assert_int_equal(remote_get(client, "life", got, sizeof got, NULL), KVT_MISS);
    put.deadline_ns = 0;
    assert_ok(remote_do(client, &put));
    assert_ok(remote_get(client, "life", got, sizeof got, NULL));
    assert_memory_equal(got, "other", 5);
    remote_close(client);
}

TEST(configurations_are_refused)
{
    static const char *const wrong[] = {"",        "host",         "host:",      ":1",
                                        "host:0",  "udp://h:1",    "host:65536", "a:1, b:2",
                                        "host:1x", "tcp://host:1x"};
    remote_client *client = NULL;
    char message[200];
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        const remote_config config = {.backend = "mooncake", .addresses = wrong[i]};
        assert_int_equal(remote_open(&config, &client, message, sizeof message), KVT_E_ARGUMENT);
        assert_true(strlen(message) > 0 && client == NULL);
    }
    const remote_config more[] = {
        {.backend = "mooncake", .addresses = "h:1", .tls = true},
        {.backend = "mooncake", .addresses = "h:1", .user = "kvt"},
        {.backend = "mooncake", .addresses = "h:1", .password = "secret"},
        {.backend = "mooncake", .addresses = "h:1", .cluster = true},
        {.backend = "mooncake", .addresses = "h:1", .feed_prefix = "kvt1:"},
    };
    for (size_t i = 0; i < sizeof more / sizeof more[0]; i++) {
        assert_int_equal(remote_open(&more[i], &client, message, sizeof message), KVT_E_ARGUMENT);
        assert_null(strstr(message, "secret"));
    }
    const remote_config rdma = {.backend = "mooncake", .addresses = "rdma://10.0.0.1:50051/mlx5_0"};
    assert_ok(remote_open(&rdma, &client, message, sizeof message));
    assert_true(remote_fd(client) >= 0);
    remote_close(client);
}

int main(void)
{
    if (find_library() != 0) {
        fprintf(stderr, "no libmooncake_store.so for tests: left out\n");
        return 77;
    }
    return tests_run();
}
