/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_remote_hostile.c - the client against a server that answers what the test says: false
 * lengths, nested arrays, half replies, replies that nobody asked for, redirections without end,
 * silence. Each request ends once, in time, with a status; nothing is written beyond its parts or
 * after its end.
 */
#include "remote_support.h"

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

#define HELLO_ANSWER "%1\r\n+server\r\n+played\r\n"

/* A server that gives one answer to each command after the login. */
typedef struct server {
    int listening;
    uint16_t port;
    pthread_t thread;
    _Atomic(const char *) login;  /* the answer to the first command */
    _Atomic(const char *) secret; /* NULL: none is asked for; else a login has it */
    atomic_bool cuts;             /* closes each connection that has logged in */
    _Atomic(const char *) map;    /* to CLUSTER SLOTS; NULL: as to the others */
    _Atomic(const char *) answer; /* to each one after it */
    size_t answer_bytes;          /* 0, with a map: all of it */
    bool ignores_gets;
    const char *breaks;   /* NULL: all get the answer; else this command, and others are served */
    bool closes;          /* behind an answer */
    atomic_uint accepted; /* connections */
    bool drips;           /* a byte of the answer at a time, */
    uint64_t pause_ns;    /* and before each answer so long */
    atomic_bool ends;
    char heard[4096]; /* of the first connection */
    atomic_size_t heard_bytes;
} server;

#define TALKS 16

/* One connection of the server; 0 = none. */
typedef struct server_talk {
    int socket;
    bool logged_in;
    size_t dripped; /* bytes of the answer that drips */
} server_talk;

/* What a server says to a command. */
static const char *server_serves(const char *bytes, size_t got)
{
    if (memmem(bytes, got, "\r\nGET\r\n", 7) != NULL) return "$5\r\nhello\r\n";
    return memmem(bytes, got, "\r\nSET\r\n", 7) != NULL ? "+OK\r\n" : ":1\r\n";
}

/* Sends the next byte of an answer that drips. False: the connection is over. */
static bool server_drip(const server *at, server_talk *talk)
{
    if (talk->socket <= 0 || talk->dripped == at->answer_bytes) return true;
    return send(talk->socket, at->answer + talk->dripped++, 1, MSG_NOSIGNAL) == 1;
}

/* Answers what has come. False: the connection is over. A drip goes on through all commands, so
 * that the answer stays a sound one however slowly it comes. */
static bool server_answer(server *at, server_talk *talk)
{
    char bytes[4096];
    const ssize_t got = recv(talk->socket, bytes, sizeof bytes, 0);
    if (got <= 0) return false;
    const size_t used = atomic_load(&at->heard_bytes);
    if (used + (size_t)got < sizeof at->heard) {
        memcpy(at->heard + used, bytes, (size_t)got);
        atomic_store(&at->heard_bytes, used + (size_t)got);
    }
    const char *login = atomic_load(&at->login), *secret = atomic_load(&at->secret);
    if (secret != NULL && memmem(bytes, (size_t)got, secret, strlen(secret)) == NULL)
        login = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";
    const char *answer = talk->logged_in ? atomic_load(&at->answer) : login;
    const char *map = atomic_load(&at->map);
    if (map != NULL && talk->logged_in) {
        answer = memmem(bytes, (size_t)got, "SLOTS", 5) != NULL ? map : answer;
        return send(talk->socket, answer, strlen(answer), MSG_NOSIGNAL) > 0;
    }
    const size_t answer_bytes = talk->logged_in ? at->answer_bytes : strlen(login);
    const bool ignored =
        at->ignores_gets && talk->logged_in && memmem(bytes, (size_t)got, "GET", 3) != NULL;
    const bool drips = at->drips && talk->logged_in;
    if (talk->logged_in) base_sleep(at->pause_ns);
    const bool first = !talk->logged_in;
    talk->logged_in = true;
    if (at->breaks != NULL && !first &&
        memmem(bytes, (size_t)got, at->breaks, strlen(at->breaks)) == NULL) {
        const char *served = server_serves(bytes, (size_t)got);
        return send(talk->socket, served, strlen(served), MSG_NOSIGNAL) > 0;
    }
    if (drips) return talk->dripped != 0 || server_drip(at, talk);
    if (answer_bytes > 0 && !ignored) (void)!send(talk->socket, answer, answer_bytes, MSG_NOSIGNAL);
    return first || !at->closes;
}

static void *server_main(void *argument)
{
    server *at = argument;
    server_talk talks[TALKS] = {{0, false, 0}};
    while (!atomic_load(&at->ends)) {
        struct pollfd waits[TALKS + 1] = {{.fd = at->listening, .events = POLLIN}};
        for (int i = 0; i < TALKS; i++)
            waits[i + 1] =
                (struct pollfd){.fd = talks[i].socket > 0 ? talks[i].socket : -1, .events = POLLIN};
        (void)poll(waits, TALKS + 1, 10);
        for (int i = 0; i < TALKS; i++) {
            const bool cut = talks[i].logged_in && atomic_load(&at->cuts);
            if (!cut && (waits[i + 1].revents == 0 || server_answer(at, &talks[i]))) continue;
            if (talks[i].socket <= 0) continue;
            close(talks[i].socket);
            talks[i] = (server_talk){0, false, 0};
        }
        for (int i = 0; i < TALKS; i++)
            if (talks[i].dripped != 0) (void)server_drip(at, &talks[i]);
        for (int i = 0; waits[0].revents != 0 && i < TALKS; i++) {
            if (talks[i].socket != 0) continue;
            talks[i].socket = accept(at->listening, NULL, NULL);
            atomic_fetch_add(&at->accepted, 1);
            break;
        }
    }
    for (int i = 0; i < TALKS; i++)
        if (talks[i].socket > 0) close(talks[i].socket);
    return NULL;
}

static void server_start(server *at)
{
    struct sockaddr_in here = {.sin_family = AF_INET};
    socklen_t bytes = sizeof here;
    at->listening = socket(AF_INET, SOCK_STREAM, 0);
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(bind(at->listening, (struct sockaddr *)&here, sizeof here), 0);
    assert_int_equal(listen(at->listening, 16), 0);
    assert_int_equal(getsockname(at->listening, (struct sockaddr *)&here, &bytes), 0);
    at->port = ntohs(here.sin_port);
    assert_int_equal(pthread_create(&at->thread, NULL, server_main, at), 0);
}

static void server_stop(server *at)
{
    atomic_store(&at->ends, true);
    pthread_join(at->thread, NULL);
    close(at->listening);
}

static remote_client *open_client(const server *at, remote_config config)
{
    char address[64], message[200];
    remote_client *client = NULL;
    snprintf(address, sizeof address, "127.0.0.1:%u", at->port);
    config.backend = "valkey";
    config.addresses = address;
    assert_ok(remote_open(&config, &client, message, sizeof message));
    return client;
}

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
