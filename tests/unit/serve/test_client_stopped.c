/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_client_stopped.c - a server that is stopped holds no call that it need not hold, and nothing
 * that came too late stays behind when it goes on. The server is a process of its own.
 */
#include "serve_process.h"

#include <kvterrace/connect.h>
#include <kvterrace/lookup.h>
#include <kvterrace/names.h>
#include <kvterrace/queue.h>
#include <kvterrace/watch.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define ENTRY      SUPPORT_ENTRY_BYTES
#define REGISTERED (1u << 20) /* that a client may have */
#define CHANNELS   8u         /* the same, one of them for blocking calls */

static char folder[64], path[96];
static pid_t host;
static kvt_store *store;

static void serve(void)
{
    char message[256];
    server *lends;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    kvt_store *own = support_open_memory("lru", 16 << 20, 1 << 20);
    const server_options options = {.path = path, .registered_bytes = REGISTERED};
    if (server_open(own, &options, &lends, message, sizeof message) != KVT_OK) _exit(1);
    _exit(server_run(lends) == KVT_OK ? 0 : 1);
}

static void go_on(void)
{
    assert_int_equal(kill(host, SIGCONT), 0);
}

static kvt_store *connect_for(double answer_seconds)
{
    char message[256] = "";
    kvt_store *made = NULL;
    const kvt_connect_options options = {.struct_size = sizeof options,
                                         .answer_seconds = answer_seconds};
    kvt_status status = KVT_E_GONE;
    while (status == KVT_E_GONE) {
        status = kvt_connect(path, &options, &made, message, sizeof message);
        if (status == KVT_E_GONE) usleep(1000);
    }
    if (status != KVT_OK) fail_msg("%s", message);
    return made;
}

TEST_BEFORE_EACH
{
    support_make_folder(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/s", folder);
    host = fork();
    assert_true(host >= 0);
    if (host == 0) serve();
    store = connect_for(0.2);
}

TEST_AFTER_EACH
{
    kill(host, SIGKILL);
    waitpid(host, NULL, 0);
    support_remove_folder(folder);
}

static kvt_status get_by(uint32_t number, void *data, uint64_t deadline_ns, kvt_get_info *info)
{
    const kvt_key key = support_key(number);
    *info = (kvt_get_info){.struct_size = sizeof *info};
    return kvt_store_get(store, &key, KVT_PACKED(data, ENTRY), deadline_ns, info);
}

/* Calls of all kinds end, more often than a socket or a ring has room for questions. */
static void expect_timeouts(void)
{
    static char data[ENTRY];
    kvt_get_info info;
    kvt_store_stats stats = {.struct_size = sizeof stats};
    kvt_queue *queue;
    void *memory;
    uint64_t lease;
    const kvt_key key = support_key(1);
    const uint64_t now_ns = base_clock_ns();
    memset(data, 0x55, sizeof data);
    assert_int_equal(kvt_store_stats_get(store, &stats), KVT_E_TIMEOUT);
    assert_int_equal(kvt_queue_open(store, NULL, &queue), KVT_E_TIMEOUT);
    assert_int_equal(kvt_region_make(store, REGISTERED, &memory), KVT_E_TIMEOUT);
    assert_int_equal(kvt_store_exists(store, &key), KVT_E_TIMEOUT);
    assert_int_equal(kvt_store_touch(store, &key, 1, NULL), KVT_E_TIMEOUT);
    assert_int_equal(
        kvt_lease_begin(store, NULL, &key, 1, now_ns + UINT64_C(3600000000000), NULL, &lease),
        KVT_E_TIMEOUT);
    assert_int_equal(get_by(1, data, now_ns + 1000000, &info), KVT_MISS);
    assert_true(info.timed_out);
    assert_int_equal(support_put(store, 9), KVT_E_TIMEOUT);
    for (uint32_t i = 0; i < ENTRY; i++)
        assert_int_equal(data[i], 0x55);
}

TEST(calls_end_and_leave_nothing)
{
    static char data[ENTRY];
    kvt_get_info info;
    kvt_store_stats stats = {.struct_size = sizeof stats};
    kvt_queue *queues[CHANNELS - 1];
    void *memory = NULL;
    assert_ok(support_put(store, 1));
    serve_process_stop(host);
    expect_timeouts();
    expect_timeouts();
    go_on();
    /* What was asked for comes late; what it made is given back. */
    assert_ok(kvt_store_stats_get(store, &stats));
    for (int i = 0; i < 3; i++)
        assert_ok(support_get(store, 1, NULL));
    assert_ok(get_by(1, data, KVT_NO_DEADLINE, &info));
    for (uint32_t i = 0; i < CHANNELS - 1; i++)
        assert_ok(kvt_queue_open(store, NULL, &queues[i]));
    assert_ok(kvt_region_make(store, REGISTERED, &memory));
    assert_ok(kvt_region_free(store, memory));
    for (uint32_t i = 0; i < CHANNELS - 1; i++)
        kvt_queue_close(queues[i]);
    /* The put whose answer came too late has been carried out, or not. */
    const kvt_status late = support_get(store, 9, NULL);
    assert_true(late == KVT_OK || late == KVT_MISS);
    kvt_store_close(store);
}

/* More questions than the socket takes: those that cannot be sent time out as well. The server may
 * end a session that does not read its answers, and another one begins. */
TEST(a_full_socket)
{
    kvt_store_stats stats = {.struct_size = sizeof stats};
    kvt_store_close(store);
    store = connect_for(0.001);
    serve_process_stop(host);
    for (uint32_t i = 0; i < 600; i++)
        assert_int_equal(kvt_store_stats_get(store, &stats), KVT_E_TIMEOUT);
    go_on();
    kvt_status status = KVT_E_TIMEOUT;
    while (status == KVT_E_TIMEOUT || status == KVT_E_GONE)
        status = kvt_store_stats_get(store, &stats);
    assert_ok(status);
    kvt_store_close(store);
}

/* A close with requests under way that name no region waits for nobody. */
TEST(closes_end)
{
    static char data[4][ENTRY];
    kvt_queue *queue;
    kvt_view views[4];
    kvt_request requests[4];
    assert_ok(support_put(store, 1));
    assert_ok(kvt_queue_open(store, NULL, &queue));
    serve_process_stop(host);
    for (uint32_t i = 0; i < 4; i++) {
        views[i] = kvt_view_packed(data[i], ENTRY);
        requests[i] = (kvt_request){.struct_size = sizeof requests[i],
                                    .kind = KVT_REQUEST_GET,
                                    .key = support_key(1),
                                    .view = &views[i],
                                    .deadline_ns = KVT_NO_DEADLINE};
    }
    assert_ok(kvt_queue_submit(queue, requests, 4, NULL));
    kvt_queue_close(queue);
    kvt_store_close(store);
    go_on();
    store = connect_for(0);
    assert_ok(support_get(store, 1, NULL));
    kvt_store_close(store);
}
