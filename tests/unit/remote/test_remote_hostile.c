/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_remote_hostile.c - the client against a server that answers what the test says: false
 * lengths, nested arrays, half replies, replies that nobody asked for, redirections without end,
 * silence. Each request ends once, in time, with a status; nothing is written beyond its parts or
 * after its end.
 */
#include "remote_server.h"

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct hostile_case {
    const char *answer;
    size_t bytes;
    remote_kind kind;
    kvt_status expected;
} hostile_case;

#define CASE(text, kind, expected)                                                                 \
    {                                                                                              \
        text, sizeof(text) - 1, kind, expected                                                     \
    }

static const hostile_case hostile_cases[] = {
    CASE("$5\r\nhello\r\n", REMOTE_GET, KVT_OK),
    CASE("$-1\r\n", REMOTE_GET, KVT_MISS),
    CASE("_\r\n", REMOTE_GET, KVT_MISS),
    CASE("$65\r\n01234567890123456789012345678901234567890123456789012345678901234\r\n", REMOTE_GET,
         KVT_E_SPACE),
    CASE("$99999999999\r\n", REMOTE_GET, KVT_E_CORRUPT),
    CASE("$536870913\r\n", REMOTE_GET, KVT_E_CORRUPT),
    CASE("$16777217\r\n", REMOTE_GET, KVT_E_SPACE),
    CASE("$16777217\r\n", REMOTE_EXISTS, KVT_E_CORRUPT),
    CASE("$-7\r\n", REMOTE_GET, KVT_E_CORRUPT),
    CASE("$5\r\nhelloXX", REMOTE_GET, KVT_E_CORRUPT),
    CASE("*1\r\n$5\r\nhello\r\n", REMOTE_GET, KVT_E_CORRUPT),
    CASE("*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n", REMOTE_GET, KVT_E_CORRUPT),
    CASE(":7\r\n", REMOTE_GET, KVT_E_CORRUPT),
    CASE("+OK\r\n", REMOTE_GET, KVT_E_CORRUPT),
    CASE("HTTP/1.1 200 OK\r\n\r\n", REMOTE_GET, KVT_E_CORRUPT),
    CASE("-WRONGTYPE Operation\r\n", REMOTE_GET, KVT_E_MISMATCH),
    CASE("-CLUSTERDOWN The cluster is down\r\n", REMOTE_GET, KVT_MISS),
    CASE("-LOADING\r\n", REMOTE_GET, KVT_MISS),
    CASE("!21\r\nSYNTAX invalid syntax\r\n", REMOTE_GET, KVT_MISS),
    CASE("-\r\n", REMOTE_GET, KVT_MISS),
    CASE("-MOVED 1 127.0.0.1:1\r\n", REMOTE_GET, KVT_MISS), /* it is no cluster */
    CASE("-OOM command not allowed\r\n", REMOTE_PUT, KVT_E_SPACE),
    CASE("-READONLY You can't\r\n", REMOTE_PUT, KVT_E_READ_ONLY),
    CASE("-NOPERM\r\n", REMOTE_PUT, KVT_E_READ_ONLY),
    CASE("-ERR\r\n", REMOTE_PUT, KVT_E_GONE),
    CASE("$2\r\nOK\r\n", REMOTE_PUT, KVT_E_CORRUPT),
    CASE(":1\r\n", REMOTE_EXISTS, KVT_OK),
    CASE(":0\r\n", REMOTE_EXISTS, KVT_MISS),
    CASE(":-1\r\n", REMOTE_EXISTS, KVT_E_CORRUPT),
    CASE("$1\r\n1\r\n", REMOTE_EXISTS, KVT_E_CORRUPT),
    CASE(":1\r\n", REMOTE_DELETE, KVT_OK),
    /* A push before the reply is none. */
    CASE(">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n:1\r\n", REMOTE_EXISTS, KVT_OK),
    CASE(">3\r\n+message\r\n_\r\n*2\r\n:1\r\n:2\r\n$5\r\nhello\r\n", REMOTE_GET, KVT_OK),
};

TEST(answers_end_as_they_should)
{
    for (size_t i = 0; i < sizeof hostile_cases / sizeof hostile_cases[0]; i++) {
        const hostile_case *one = &hostile_cases[i];
        server at = {.login = HELLO_ANSWER, .answer = one->answer, .answer_bytes = one->bytes};
        server_start(&at);
        remote_client *client = open_client(&at, (remote_config){.tls = false});
        uint8_t value[64 + 16];
        memset(value, 0x5a, sizeof value);
        struct iovec parts[] = {{value, 10}, {value + 10, 54}};
        remote_request request = remote_of(one->kind, "key", parts, 2);
        if (one->kind == REMOTE_EXISTS || one->kind == REMOTE_DELETE) request.part_count = 0;
        const kvt_status status = remote_do(client, &request);
        if (status != one->expected)
            print_message("case %zu: %s, not %s\n", i, kvt_status_name(status),
                          kvt_status_name(one->expected));
        assert_int_equal(status, one->expected);
        for (size_t j = 64; j < sizeof value; j++)
            assert_int_equal(value[j], 0x5a);
        remote_close(client);
        server_stop(&at);
    }
}

/* A node's answer about its memory: NULL = nothing that is taken. */
typedef struct memory_case {
    const char *text;
    uint64_t bytes, bytes_max;
    const char *eviction;
} memory_case;

#define MEMORY(used, most, policy)                                                                 \
    "# Memory\r\nused_memory:" used "\r\nused_memory_peak:7\r\nmaxmemory:" most                    \
    "\r\nmaxmemory_policy:" policy "\r\n"

static const memory_case memory_cases[] = {
    {MEMORY("4096", "0", "noeviction"), 4096, 0, "noeviction"},
    {"txt:" MEMORY("1", "999999999999999999", "allkeys-lru"), 1, 999999999999999999, "allkeys-lru"},
    {"used_memory:5\nmaxmemory:6\nmaxmemory_policy:volatile-ttl", 5, 6, "volatile-ttl"},
    {MEMORY("18446744073709551616", "0", "noeviction"), 0, 0, ""},
    {MEMORY("-1", "0", "noeviction"), 0, 0, ""},
    {MEMORY("4096", "1e9", "noeviction"), 0, 0, ""},
    {MEMORY("", "0", "noeviction"), 0, 0, ""},
    {MEMORY("4096", "0", ""), 0, 0, ""},
    {MEMORY("4096", "0", "a-policy-of-24-characters"), 0, 0, ""},
    {MEMORY("4096", "0", "\033[2J\"}"), 0, 0, ""},
    {"used_memory", 0, 0, ""},
    {"\n\n:::\r\r\nxused_memory:1", 0, 0, ""},
    {"", 0, 0, ""},
};

static const char *const memory_answers[] = {
    "-NOPERM User kvt has no permissions to run the 'info' command\r\n",
    "$-1\r\n",
    "_\r\n",
    ":4096\r\n",
    "+used_memory:1\r\n",
    "*2\r\n$13\r\nused_memory:1\r\n*1\r\n$11\r\nmaxmemory:0\r\n",
    "%1\r\n+used_memory\r\n:1\r\n",
};

/* Asks until the node's memory is as it should be, and for a moment at most. */
static void memory_becomes(remote_client *client, uint64_t bytes, uint64_t most,
                           const char *eviction)
{
    remote_node_stats node = {.memory_bytes = UINT64_MAX};
    for (int i = 0; i < 2000 && (node.memory_bytes != bytes || node.memory_bytes_max != most);
         i++) {
        assert_ok(remote_ask(client, REMOTE_EXISTS, "key"));
        base_sleep(2000000);
        assert_true(remote_node_stats_get(client, 0, &node));
    }
    assert_int_equal(node.memory_bytes, bytes);
    assert_int_equal(node.memory_bytes_max, most);
    assert_string_equal(node.eviction, eviction);
    assert_int_equal(node.failures, 0);
}

/* Sound figures are taken, all others are none, and requests go on beside the question. */
TEST(a_node_tells_of_its_memory)
{
    char first[256], answer[256];
    const char *text = MEMORY("77", "88", "allkeys-lfu");
    snprintf(first, sizeof first, "$%zu\r\n%s\r\n", strlen(text), text);
    server at = {.login = HELLO_ANSWER, .memory = first};
    server_start(&at);
    remote_client *client = open_client(&at, (remote_config){.memory_ns = 1000000});
    const size_t texts = sizeof memory_cases / sizeof *memory_cases,
                 answers = sizeof memory_answers / sizeof *memory_answers;
    for (size_t i = 0; i < texts + answers; i++) {
        const memory_case *one = i < texts ? &memory_cases[i] : &(memory_case){"", 0, 0, ""};
        atomic_store(&at.memory, first);
        memory_becomes(client, 77, 88, "allkeys-lfu");
        snprintf(answer, sizeof answer, "%c%zu\r\n%s\r\n", i % 2 == 0 ? '$' : '=',
                 strlen(one->text), one->text);
        atomic_store(&at.memory, i < texts ? answer : memory_answers[i - texts]);
        memory_becomes(client, one->bytes, one->bytes_max, one->eviction);
    }
    remote_stats stats;
    remote_stats_get(client, &stats);
    assert_int_equal(stats.malformed, 0);
    /* A text of 16 MiB costs the connection, and no more. */
    atomic_store(&at.memory, "$16777217\r\n");
    for (int i = 0; i < 2000 && stats.malformed == 0; i++) {
        (void)remote_ask(client, REMOTE_EXISTS, "key");
        base_sleep(2000000);
        remote_stats_get(client, &stats);
    }
    assert_int_equal(stats.malformed, 1);
    atomic_store(&at.memory, first);
    assert_ok(remote_ask(client, REMOTE_EXISTS, "key"));
    remote_close(client);
    server_stop(&at);
}

/* Without a pause of its own a client asks no node in its first seconds. */
TEST(a_short_life_asks_for_no_memory)
{
    server at = {.login = HELLO_ANSWER, .answer = ":1\r\n", .answer_bytes = 4};
    server_start(&at);
    remote_client *client = open_client(&at, (remote_config){.tls = false});
    for (int i = 0; i < 20; i++)
        assert_ok(remote_ask(client, REMOTE_EXISTS, "key"));
    assert_null(memmem(at.heard, atomic_load(&at.heard_bytes), "INFO", 4));
    remote_close(client);
    server_stop(&at);
}

/* A second answer to one command is an answer that nobody asked for. */
TEST(answers_too_many_close_the_connection)
{
    server at = {.login = HELLO_ANSWER, .answer = ":1\r\n:1\r\n", .answer_bytes = 8};
    server_start(&at);
    remote_client *client = open_client(&at, (remote_config){.tls = false});
    assert_ok(remote_ask(client, REMOTE_EXISTS, "key"));
    remote_request *done[1];
    (void)remote_reap(client, done, 0, 1, 100000000);
    for (int i = 0; i < 50; i++)
        (void)remote_reap(client, done, 0, 1, 1000000);
    remote_stats stats;
    remote_stats_get(client, &stats);
    assert_int_equal(stats.malformed, 1);
    assert_ok(remote_ask(client, REMOTE_EXISTS, "key")); /* on a new one */
    remote_close(client);
    server_stop(&at);
}

/* Half a value, then nothing: the request ends at its deadline, its buffer is its owner's at once,
 * and the node is left alone after the third such end. */
TEST(half_a_value_ends_in_time)
{
    server at = {.login = HELLO_ANSWER, .answer = "$64\r\nhalf of it", .answer_bytes = 15};
    server_start(&at);
    remote_client *client = open_client(&at, (remote_config){.tls = false});
    uint8_t value[64];
    remote_node_stats node;
    for (int i = 0; i < 3; i++) {
        struct iovec part = {value, sizeof value};
        remote_request request = remote_of(REMOTE_GET, "key", &part, 1);
        request.deadline_ns = base_clock_ns() + 60000000;
        const kvt_status status = remote_do(client, &request);
        assert_int_equal(status, KVT_E_TIMEOUT);
        assert_true(request.finished_ns >= request.deadline_ns);
        memset(value, 0x77, sizeof value);
        remote_request *done[1];
        assert_int_equal(remote_reap(client, done, 0, 1, 2000000), 0);
        for (size_t j = 0; j < sizeof value; j++)
            assert_int_equal(value[j], 0x77);
    }
    assert_true(remote_node_stats_get(client, 0, &node));
    assert_int_equal(node.timeouts, 3);
    assert_int_equal(node.opened, 1);
    remote_close(client);
    server_stop(&at);
}

/* A server that accepts and says nothing: three timeouts, then requests fail at once; it answers
 * again, and is used again. */
TEST(silence_opens_the_breaker)
{
    server at = {.login = "", .answer = ":1\r\n", .answer_bytes = 4};
    server_start(&at);
    remote_client *client = open_client(&at, (remote_config){.connect_ns = 200000000, .seed = 3});
    remote_node_stats node = {.breaker = REMOTE_CLOSED};
    int tries = 0;
    while (node.breaker == REMOTE_CLOSED && tries < 20) {
        remote_request request = remote_of(REMOTE_EXISTS, "key", NULL, 0);
        request.deadline_ns = base_clock_ns() + 30000000;
        assert_int_not_equal(remote_do(client, &request), KVT_OK);
        assert_true(remote_node_stats_get(client, 0, &node));
        tries++;
    }
    assert_true(tries <= 4);
    const uint64_t began_ns = base_clock_ns();
    assert_int_equal(remote_ask(client, REMOTE_EXISTS, "key"), KVT_E_GONE);
    assert_true(base_clock_ns() - began_ns < REMOTE_SECOND_NS);
    remote_stats stats;
    remote_stats_get(client, &stats);
    assert_non_null(strstr(stats.message, "does not answer"));
    atomic_store(&at.login, HELLO_ANSWER);
    remote_request *done[1];
    for (int i = 0; i < 200 && node.breaker != REMOTE_CLOSED; i++) {
        (void)remote_reap(client, done, 1, 1, 50000000);
        assert_true(remote_node_stats_get(client, 0, &node));
    }
    assert_int_equal(node.breaker, REMOTE_CLOSED);
    assert_ok(remote_ask(client, REMOTE_EXISTS, "key"));
    remote_close(client);
    server_stop(&at);
}

TEST(a_refused_login_shows_no_secret)
{
    /* A server may say the password back. */
    server at = {.login = "-WRONGPASS hunter2hunter2 is wrong, kvtuser\r\n",
                 .answer = ":1\r\n",
                 .answer_bytes = 4};
    server_start(&at);
    remote_client *client =
        open_client(&at, (remote_config){.user = "kvtuser", .password = "hunter2hunter2"});
    assert_int_equal(remote_ask(client, REMOTE_EXISTS, "key"), KVT_E_GONE);
    remote_stats stats;
    remote_stats_get(client, &stats);
    assert_non_null(strstr(stats.message, "WRONGPASS"));
    assert_non_null(strstr(stats.message, "127.0.0.1"));
    assert_null(strstr(stats.message, "hunter2"));
    assert_non_null(strstr(at.heard, "HELLO\r\n$1\r\n3\r\n$4\r\nAUTH\r\n$7\r\nkvtuser\r\n"));
    remote_close(client);
    server_stop(&at);
}

/* Replaces a file as an operator does: a new one is renamed over it. */
static void write_secret(const char *path, const char *text, mode_t mode)
{
    char beside[200];
    snprintf(beside, sizeof beside, "%s.new", path);
    FILE *file = fopen(beside, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0 && fclose(file) == 0);
    assert_int_equal(chmod(beside, mode), 0);
    assert_int_equal(rename(beside, path), 0);
}

/* Asks until the node answers; the breaker's pauses pass meanwhile. */
static kvt_status ask_until(remote_client *client, kvt_status wanted)
{
    kvt_status status = KVT_QUEUED;
    remote_request *done[1];
    for (int i = 0; i < 8000 && status != wanted; i++) {
        if (i > 0) (void)remote_reap(client, done, 1, 1, 10000000);
        status = remote_ask(client, REMOTE_EXISTS, "key");
    }
    return status;
}

/* Asks until the client says so of a failure. */
static bool says_in_time(remote_client *client, const char *what)
{
    remote_stats stats = {.message = ""};
    remote_request *done[1];
    kvt_status last = KVT_OK;
    for (int i = 0; i < 8000 && strstr(stats.message, what) == NULL; i++) {
        (void)remote_reap(client, done, 1, 1, 10000000);
        last = remote_ask(client, REMOTE_EXISTS, "key");
        remote_stats_get(client, &stats);
    }
    if (strstr(stats.message, what) == NULL) {
        remote_node_stats node;
        assert_true(remote_node_stats_get(client, 0, &node));
        print_message("not '%s' but '%s', %s; breaker %d, opened %llu times\n", what, stats.message,
                      kvt_status_name(last), (int)node.breaker, (unsigned long long)node.opened);
    }
    return strstr(stats.message, what) != NULL;
}

/* The password changes here and there while the client runs: it is read again. A file that others
 * may read, or that is gone, is not taken, and the last password stays. */
TEST(a_renewed_password_is_read_again)
{
    char path[] = "kvt-secret-XXXXXX";
    const int made = mkstemp(path);
    assert_true(made >= 0);
    close(made);
    write_secret(path, "hunter1hunter1\n", 0600);
    server at = {
        .login = HELLO_ANSWER, .secret = "hunter1hunter1", .answer = ":1\r\n", .answer_bytes = 4};
    server_start(&at);
    remote_client *client =
        open_client(&at, (remote_config){.user = "kvtuser", .password_file = path, .seed = 1});
    assert_ok(remote_ask(client, REMOTE_EXISTS, "key"));
    for (int turn = 0; turn < 3; turn++) {
        static const char *const secrets[] = {"hunter2hunter2", "hunter3hunter3", "hunter1hunter1"};
        remote_stats stats;
        atomic_store(&at.secret, secrets[turn]);
        atomic_store(&at.cuts, true);
        assert_int_equal(ask_until(client, KVT_E_GONE), KVT_E_GONE);
        atomic_store(&at.cuts, false);
        assert_true(says_in_time(client, "refuses the login with WRONGPASS"));
        if (turn == 1) { /* others may read it: it is not taken, and the refusal says why */
            write_secret(path, secrets[turn], 0644);
            assert_true(says_in_time(client, "chmod 600"));
            remote_stats_get(client, &stats);
            assert_null(strstr(stats.message, "hunter"));
        }
        write_secret(path, secrets[turn], 0600);
        assert_ok(ask_until(client, KVT_OK));
        base_sleep(UINT64_C(1100000000)); /* a connection that lasts: pauses are short again */
        assert_ok(ask_until(client, KVT_OK));
    }
    unlink(path); /* what was read last serves */
    atomic_store(&at.cuts, true);
    assert_int_equal(ask_until(client, KVT_E_GONE), KVT_E_GONE);
    atomic_store(&at.cuts, false);
    assert_ok(ask_until(client, KVT_OK));
    remote_close(client);
    server_stop(&at);
}

TEST(an_old_server_is_spoken_to_in_resp2)
{
    server at = {
        .login = "-ERR unknown command 'HELLO'\r\n", .answer = "$-1\r\n", .answer_bytes = 5};
    server_start(&at);
    remote_client *client = open_client(&at, (remote_config){.tls = false});
    uint8_t value[8];
    assert_int_equal(remote_get(client, "key", value, 8, NULL), KVT_MISS);
    remote_close(client);
    server_stop(&at);
}

/* Every node says that another one has the slot: followed once, then a miss. */
TEST(redirections_end)
{
    static char moved[64];
    server at = {.login = HELLO_ANSWER, .answer = moved};
    server_start(&at);
    at.answer_bytes = (size_t)snprintf(moved, sizeof moved, "-MOVED 5 :%u\r\n", at.port);
    remote_client *client = open_client(&at, (remote_config){.cluster = true});
    uint8_t value[8];
    for (int i = 0; i < 5; i++)
        assert_int_equal(remote_get(client, "key", value, 8, NULL), KVT_MISS);
    remote_stats stats;
    remote_stats_get(client, &stats);
    assert_int_equal(stats.redirections, 5);
    assert_int_equal(stats.node_count, 1);
    remote_close(client);
    server_stop(&at);
}

TEST(a_name_without_address_is_no_node)
{
    char message[200];
    remote_client *client = NULL;
    const remote_config config = {.backend = "valkey", .addresses = "no-such-host.invalid:6379"};
    assert_ok(remote_open(&config, &client, message, sizeof message));
    remote_request request = remote_of(REMOTE_EXISTS, "key", NULL, 0);
    request.deadline_ns = base_clock_ns() + 20 * REMOTE_SECOND_NS;
    const kvt_status status = remote_do(client, &request);
    assert_true(status == KVT_E_GONE || status == KVT_E_TIMEOUT);
    remote_stats stats;
    remote_stats_get(client, &stats);
    assert_non_null(strstr(stats.message, "no-such-host.invalid:6379"));
    remote_close(client);
}

/* Nobody listens there: three failures, and then the requests fail without a connection. */
TEST(a_closed_port_fails_at_once)
{
    server at = {.login = "", .answer = ""};
    server_start(&at);
    server_stop(&at);
    remote_client *client = open_client(&at, (remote_config){.tls = false});
    const uint64_t began_ns = base_clock_ns();
    for (int i = 0; i < 100; i++)
        assert_int_equal(remote_ask(client, REMOTE_EXISTS, "key"), KVT_E_GONE);
    assert_true(base_clock_ns() - began_ns < 5 * REMOTE_SECOND_NS);
    remote_close(client);
}

/* A node that answers probes and no gets is left alone as well: a probe's answer says nothing of
 * gets. */
TEST(a_node_that_ignores_gets_is_left_alone)
{
    server at = {
        .login = HELLO_ANSWER, .answer = ":1\r\n", .answer_bytes = 4, .ignores_gets = true};
    server_start(&at);
    remote_client *client = open_client(&at, (remote_config){.tls = false});
    uint8_t value[64];
    uint32_t gone = 0;
    for (int i = 0; i < 8; i++) {
        struct iovec part = {value, sizeof value};
        remote_request request = remote_of(REMOTE_GET, "key", &part, 1);
        request.deadline_ns = base_clock_ns() + 60000000;
        gone += remote_do(client, &request) == KVT_E_GONE;
        (void)remote_ask(client, REMOTE_EXISTS, "key");
    }
    remote_node_stats node;
    assert_true(remote_node_stats_get(client, 0, &node));
    assert_true(node.opened >= 1);
    assert_true(gone >= 1);
    remote_close(client);
    server_stop(&at);
}

/* Gets until the node is left alone, and how many that took. */
static uint32_t gets_until_gone(remote_client *client, uint64_t deadline_ns)
{
    uint8_t value[64];
    for (uint32_t i = 0; i < 8; i++) {
        struct iovec part = {value, sizeof value};
        remote_request request = remote_of(REMOTE_GET, "key", &part, 1);
        request.deadline_ns = base_clock_ns() + deadline_ns;
        const kvt_status status = remote_do(client, &request);
        if (status == KVT_E_GONE) return i;
        assert_int_equal(status, KVT_E_TIMEOUT);
    }
    return 8;
}

/* A node that sends a byte now and then is no better than one that sends none. */
TEST(a_drip_opens_the_breaker)
{
    /* A byte takes 10 ms at least, so the answer lasts longer than three deadlines; a deadline is
     * long enough for the login on a busy machine. */
    char answer[600] = "$590\r\n";
    memset(answer + 6, 'x', sizeof answer - 6);
    server at = {
        .login = HELLO_ANSWER, .answer = answer, .answer_bytes = sizeof answer, .drips = true};
    server_start(&at);
    remote_client *client = open_client(&at, (remote_config){.tls = false});
    remote_node_stats node;
    assert_int_equal(gets_until_gone(client, 500000000), 3);
    assert_true(remote_node_stats_get(client, 0, &node));
    assert_int_equal(node.timeouts, 3);
    assert_int_equal(node.opened, 1);
    assert_true(node.bytes_in > sizeof HELLO_ANSWER + 3); /* it has sent some */
    remote_close(client);
    server_stop(&at);
}

/* Nor is one whose answers are whole and late. */
TEST(late_answers_open_the_breaker)
{
    server at = {.login = HELLO_ANSWER,
                 .answer = "$5\r\nhello\r\n",
                 .answer_bytes = 11,
                 .pause_ns = 120000000};
    server_start(&at);
    remote_client *client = open_client(&at, (remote_config){.tls = false});
    remote_stats stats;
    assert_int_equal(gets_until_gone(client, 80000000), 3);
    remote_stats_get(client, &stats);
    assert_true(stats.late_replies >= 1);
    remote_close(client);
    server_stop(&at);
}

/* A node that lets log in and does all but one kind of work, which it breaks in one of these ways,
 * is soon left alone, however much of the other kinds goes well in between. */
TEST(a_node_that_breaks_one_kind_is_left_alone)
{
    static const char *const words[REMOTE_KINDS] = {"EXISTS", "\r\nGET\r\n", "\r\nSET\r\n",
                                                    "UNLINK"};
    static const char *const answers[] = {"$500000\r\nabc", "$-2\r\n", "", "*1\r\n:1\r\n"};
    for (int broken = 0; broken < REMOTE_KINDS; broken++) {
        for (size_t how = 0; how < sizeof answers / sizeof answers[0]; how++) {
            server at = {.login = HELLO_ANSWER,
                         .answer = answers[how],
                         .answer_bytes = strlen(answers[how]),
                         .breaks = words[broken],
                         .closes = true};
            server_start(&at);
            remote_client *client = open_client(&at, (remote_config){.seed = 1});
            remote_node_stats node;
            uint8_t value[16];
            for (int i = 0; i < 400; i++) {
                const remote_kind kind = (remote_kind)(i % 2 == 0 ? broken : i / 2 % REMOTE_KINDS);
                struct iovec part = {value, kind == REMOTE_PUT ? 5 : sizeof value};
                remote_request request = remote_of(kind, "key", &part, 1);
                if (kind == REMOTE_EXISTS || kind == REMOTE_DELETE) request.part_count = 0;
                const kvt_status status = remote_do(client, &request);
                assert_true(kind != (remote_kind)broken || status != KVT_OK);
            }
            assert_true(remote_node_stats_get(client, 0, &node));
            /* Three failures at first, and one each time that it is tried again. */
            const uint32_t accepted = atomic_load(&at.accepted);
            if (node.opened < 1 || accepted > 6 + 3 * node.opened)
                fail_msg("%s, answer %zu: %u connections, opened %llu times", words[broken], how,
                         accepted, (unsigned long long)node.opened);
            remote_close(client);
            server_stop(&at);
        }
    }
}

/* An answer, and then the connection's end: connecting itself is what fails. */
TEST(a_node_that_keeps_no_connection_is_left_alone)
{
    static const char *const answers[] = {":1\r\n", ":1\r\n:1\r\n"};
    for (size_t how = 0; how < 2; how++) {
        server at = {.login = HELLO_ANSWER,
                     .answer = answers[how],
                     .answer_bytes = strlen(answers[how]),
                     .closes = true};
        server_start(&at);
        remote_client *client = open_client(&at, (remote_config){.seed = 1});
        remote_node_stats node;
        for (int i = 0; i < 200; i++) {
            remote_request *done[1];
            (void)remote_ask(client, REMOTE_EXISTS, "key");
            (void)remote_reap(client, done, 0, 1, 0);
        }
        assert_true(remote_node_stats_get(client, 0, &node));
        const uint32_t accepted = atomic_load(&at.accepted);
        if (node.opened < 1 || accepted > 6 + 3 * node.opened)
            fail_msg("%u connections, opened %llu times", accepted,
                     (unsigned long long)node.opened);
        remote_close(client);
        server_stop(&at);
    }
}

/* ---- maps of a cluster ---- */

#define MAP_BYTES 160

/* A map in which all slots lie on one port. */
static void map_of(char map[MAP_BYTES], unsigned port)
{
    snprintf(map, MAP_BYTES, "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:%u\r\n", port);
}

static remote_client *open_cluster(const server *first, const server *second)
{
    char addresses[64], message[200];
    remote_client *client = NULL;
    snprintf(addresses, sizeof addresses, "127.0.0.1:%u,127.0.0.1:%u", first->port, second->port);
    const remote_config config = {
        .backend = "valkey", .addresses = addresses, .cluster = true, .seed = 3};
    assert_ok(remote_open(&config, &client, message, sizeof message));
    return client;
}

/* Asks until a get is served. */
static void get_until_served(remote_client *client)
{
    char value[8];
    kvt_status status = KVT_MISS;
    for (int i = 0; i < 2000 && status != KVT_OK; i++) {
        remote_request *done[1];
        status = remote_get(client, "key", value, sizeof value, NULL);
        (void)remote_reap(client, done, 1, 1, 5000000);
    }
    assert_ok(status);
}

/* A node that has lost its cluster says that its slots are its own still: the other is believed. */
TEST(a_node_without_its_cluster_is_asked_last)
{
    char maps[2][MAP_BYTES];
    server lost = {.login = HELLO_ANSWER, .answer = "-CLUSTERDOWN The cluster is down\r\n"};
    server well = {.login = HELLO_ANSWER, .answer = "$5\r\nhello\r\n"};
    server_start(&lost);
    server_start(&well);
    map_of(maps[0], lost.port);
    map_of(maps[1], well.port);
    atomic_store(&lost.map, maps[0]);
    atomic_store(&well.map, maps[1]);
    remote_client *client = open_cluster(&lost, &well);
    get_until_served(client);
    char value[8];
    for (int i = 0; i < 20; i++)
        assert_ok(remote_get(client, "key", value, sizeof value, NULL));
    remote_close(client);
    server_stop(&lost);
    server_stop(&well);
}

/* While a node is out of service the map is asked for again, and when another one has its slots it
 * is neither probed nor told of. */
TEST(a_node_that_is_replaced_is_let_go)
{
    char maps[2][MAP_BYTES], value[8];
    server dead = {.login = HELLO_ANSWER}, well = {.login = HELLO_ANSWER};
    server_start(&dead);
    server_start(&well);
    server_stop(&dead);
    map_of(maps[0], dead.port);
    map_of(maps[1], well.port);
    atomic_store(&well.answer, "$5\r\nhello\r\n");
    atomic_store(&well.map, maps[0]);
    remote_client *client = open_cluster(&dead, &well);
    remote_node_stats node = {.opened = 0};
    for (int i = 0; i < 2000 && node.opened < 4; i++) {
        remote_request *done[1];
        assert_int_not_equal(remote_get(client, "key", value, sizeof value, NULL), KVT_OK);
        (void)remote_reap(client, done, 1, 1, 5000000);
        assert_true(remote_node_stats_get(client, 0, &node));
    }
    assert_int_equal(node.opened, 4);
    atomic_store(&well.map, maps[1]);
    get_until_served(client);
    for (int i = 0; i < 2000 && node.breaker != REMOTE_CLOSED; i++) {
        remote_request *done[1];
        (void)remote_reap(client, done, 1, 1, 5000000);
        assert_true(remote_node_stats_get(client, 0, &node));
    }
    assert_int_equal(node.breaker, REMOTE_CLOSED);
    assert_int_equal(node.opened, 4);
    assert_int_equal(node.failing_ns, 0);
    remote_close(client);
    server_stop(&well);
}

/* Servers whose addresses change, more than the client has places for. */
TEST(nodes_that_have_left_make_room)
{
    enum { ROUNDS = 3, MOVES = 40 };
    char map[MAP_BYTES], moved[ROUNDS * MOVES][64], value[8];
    remote_stats stats;
    server well = {.login = HELLO_ANSWER, .answer = "$5\r\nhello\r\n"};
    server_start(&well);
    map_of(map, well.port);
    atomic_store(&well.map, map);
    remote_client *client = open_cluster(&well, &well);
    get_until_served(client);
    for (uint32_t i = 0; i < ROUNDS * MOVES; i++) {
        /* Nobody listens there. */
        snprintf(moved[i], sizeof moved[i], "-MOVED %u 127.1.2.3:%u\r\n", i % MOVES, i + 1);
        atomic_store(&well.answer, moved[i]);
        assert_int_equal(remote_get(client, "key", value, sizeof value, NULL), KVT_E_GONE);
        if (i % MOVES != MOVES - 1) continue;
        atomic_store(&well.answer, "$5\r\nhello\r\n");
        const uint32_t home = remote_node_of(client, "key", 3);
        /* The map has come when slot 0, that of the empty key, is at home again. */
        for (int tries = 0; tries < 2000 && remote_node_of(client, "", 0) != home; tries++)
            get_until_served(client);
        assert_int_equal(remote_node_of(client, "", 0), home);
    }
    remote_stats_get(client, &stats);
    assert_int_equal(stats.redirections, ROUNDS * MOVES);
    assert_true(stats.node_count <= MOVES + 1);
    remote_close(client);
    server_stop(&well);
}

TEST_ALL(ignore_pipes, NULL);
