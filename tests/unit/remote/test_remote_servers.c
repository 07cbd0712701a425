/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_remote_servers.c - the client against servers of Valkey or Redis: logins, ACLs, TLS, moved
 * slots, a node that is stopped or killed and returns, the feed. Left out where no server is
 * installed.
 */
#include "remote_support.h"

#include "servers.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static servers cluster;

static void start(const servers_options *options)
{
    const int started = servers_start(options, &cluster);
    if (started == 77) {
        print_message("no server of Valkey or Redis is installed: left out\n");
        skip();
    }
    assert_int_equal(started, 0);
}

static remote_client *open_client(remote_config config)
{
    char message[200] = "";
    remote_client *client = NULL;
    config.backend = "valkey";
    config.addresses = cluster.addresses;
    config.cluster = cluster.cluster;
    if (remote_open(&config, &client, message, sizeof message) != KVT_OK)
        print_message("%s\n", message);
    assert_non_null(client);
    return client;
}

TEST(logins_and_rights)
{
    static const char *const arguments[] = {
        "--user", "kvt",   "on",     ">hunter2hunter2", "~kvt1:*", "resetchannels",
        "-@all",  "+get",  "+set",   "+exists",         "+unlink", "+hello",
        "+auth",  "+ping", "--user", "default",         "off",     NULL};
    char value[16];
    remote_stats stats;
    start(&(servers_options){.nodes = 1, .single = true, .arguments = arguments});
    remote_client *client =
        open_client((remote_config){.user = "kvt", .password = "hunter2hunter2"});
    assert_ok(remote_put(client, "kvt1:a", "value", 5));
    assert_ok(remote_get(client, "kvt1:a", value, sizeof value, NULL));
    assert_memory_equal(value, "value", 5);
    /* Keys that are not ours. */
    assert_int_equal(remote_put(client, "other:a", "value", 5), KVT_E_READ_ONLY);
    assert_int_equal(remote_get(client, "other:a", value, sizeof value, NULL), KVT_MISS);
    remote_stats_get(client, &stats);
    assert_non_null(strstr(stats.message, "NOPERM"));
    remote_close(client);
    const remote_config wrong[] = {{.user = "kvt", .password = "wrong-one"},
                                   {.user = "nobody", .password = "hunter2hunter2"},
                                   {.password = "hunter2hunter2"},
                                   {.user = NULL}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        client = open_client(wrong[i]);
        assert_int_not_equal(remote_ask(client, REMOTE_EXISTS, "kvt1:a"), KVT_OK);
        remote_stats_get(client, &stats);
        assert_null(strstr(stats.message, "hunter2"));
        assert_null(strstr(stats.message, "wrong-one"));
        assert_true(strlen(stats.message) > 0);
        remote_close(client);
    }
    servers_stop(&cluster);
}

/* Puts 60 keys, which all nodes have some of. */
static void put_keys(remote_client *client, uint32_t on_node[3])
{
    for (uint32_t i = 0; i < 60; i++) {
        char key[32];
        snprintf(key, sizeof key, "kvt1:{k%u}:0", i);
        assert_ok(remote_put(client, key, key, strlen(key)));
        on_node[remote_node_of(client, key, strlen(key)) % 3]++;
    }
}

/* Gets them; counts hits, and time that is longer than the deadline and some more. */
static uint32_t get_keys(remote_client *client, uint32_t *late_out)
{
    uint32_t hits = 0;
    for (uint32_t i = 0; i < 60; i++) {
        char key[32], value[32];
        snprintf(key, sizeof key, "kvt1:{k%u}:0", i);
        struct iovec part = {value, sizeof value};
        remote_request request = remote_of(REMOTE_GET, key, &part, 1);
        request.deadline_ns = base_clock_ns() + 100000000;
        const kvt_status status = remote_do(client, &request);
        assert_true(status == KVT_OK || status == KVT_E_TIMEOUT || status == KVT_E_GONE);
        if (status == KVT_OK) assert_memory_equal(value, key, strlen(key));
        hits += status == KVT_OK;
        *late_out += request.finished_ns > request.deadline_ns + REMOTE_SECOND_NS;
    }
    return hits;
}

TEST(nodes_fail_and_return)
{
    uint32_t late = 0, on_node[3] = {0, 0, 0};
    remote_node_stats node;
    start(&(servers_options){.nodes = 3});
    remote_client *client = open_client((remote_config){.seed = 7});
    put_keys(client, on_node);
    assert_true(on_node[0] > 0 && on_node[1] > 0 && on_node[2] > 0);
    assert_int_equal(get_keys(client, &late), 60);
    assert_true(servers_signal(&cluster, 1, SIGSTOP));
    const uint32_t hits = get_keys(client, &late);
    assert_int_equal(hits, 60 - on_node[1]);
    assert_true(remote_node_stats_get(client, 1, &node));
    /* Three of its requests have waited, the others failed at once. */
    assert_int_equal(node.timeouts, 3);
    assert_int_not_equal(node.breaker, REMOTE_CLOSED);
    assert_true(servers_signal(&cluster, 1, SIGCONT));
    for (int i = 0; i < 200 && node.breaker != REMOTE_CLOSED; i++) {
        remote_request *done[1];
        (void)remote_reap(client, done, 1, 1, 50000000);
        assert_true(remote_node_stats_get(client, 1, &node));
    }
    assert_int_equal(get_keys(client, &late), 60);
    assert_true(servers_kill(&cluster, 2));
    assert_int_equal(get_keys(client, &late), 60 - on_node[2]);
    assert_int_equal(late, 0);
    remote_close(client);
    servers_stop(&cluster);
}

/* A client whose map is old or not there is redirected, once a request, and learns. */
TEST(redirections_are_followed)
{
    uint32_t on_node[3] = {0, 0, 0}, late = 0;
    char answer[256], line[160], id[41];
    remote_stats stats;
    start(&(servers_options){.nodes = 3});
    remote_client *client = open_client((remote_config){.tls = false});
    put_keys(client, on_node);
    remote_stats_get(client, &stats);
    const uint64_t before = stats.redirections;
    assert_int_equal(stats.node_count, 3);
    /* A slot without keys goes to another node. */
    const char *key = "kvt1:{moved}:0";
    uint32_t owner = remote_node_of(client, key, strlen(key)), other = (owner + 1) % 3;
    assert_true(servers_say(&cluster, other, "CLUSTER MYID", answer, sizeof answer));
    snprintf(id, sizeof id, "%.40s", answer);
    assert_true(servers_say(&cluster, 0, "CLUSTER KEYSLOT {moved}", answer, sizeof answer));
    for (uint32_t i = 0; i < 3; i++) {
        char reply[64];
        snprintf(line, sizeof line, "CLUSTER SETSLOT %d NODE %s", (int)strtol(answer, NULL, 10),
                 id);
        assert_true(servers_say(&cluster, i, line, reply, sizeof reply));
    }
    assert_ok(remote_put(client, key, "here", 4));
    char value[8];
    assert_ok(remote_get(client, key, value, sizeof value, NULL));
    assert_memory_equal(value, "here", 4);
    assert_int_equal(remote_node_of(client, key, strlen(key)), other);
    remote_stats_get(client, &stats);
    assert_int_equal(stats.redirections, before + 1);
    assert_int_equal(get_keys(client, &late), 60);
    remote_close(client);
    servers_stop(&cluster);
}

static uint32_t told;
static char told_key[64];

static void tell(void *context, const char *key, size_t bytes)
{
    (void)context;
    if (key == NULL) return;
    told++;
    snprintf(told_key, sizeof told_key, "%.*s", (int)bytes, key);
}

TEST(the_feed_names_keys)
{
    remote_request *done[1];
    told = 0;
    start(&(servers_options){.nodes = 1, .single = true});
    remote_client *writer = open_client((remote_config){.tls = false});
    remote_client *reader =
        open_client((remote_config){.feed_prefix = "kvt1:", .invalidated = tell});
    char value[8];
    assert_int_equal(remote_get(reader, "kvt1:a", value, sizeof value, NULL), KVT_MISS);
    for (int i = 0; i < 200 && told == 0; i++) {
        assert_ok(remote_put(writer, "kvt1:a", "1", 1));
        assert_ok(remote_put(writer, "other:a", "1", 1));
        (void)remote_reap(reader, done, 1, 1, 20000000);
    }
    assert_true(told > 0);
    assert_string_equal(told_key, "kvt1:a");
    remote_close(writer);
    remote_close(reader);
    servers_stop(&cluster);
}

/* Runs a command of openssl in a folder. */
static bool openssl(const char *folder, const char *arguments)
{
    char command[600];
    snprintf(command, sizeof command, "cd '%s' && openssl %s >/dev/null 2>&1", folder, arguments);
    return system(command) == 0;
}

#define NAMED "-subj /CN=kvterrace-test -addext subjectAltName=IP:127.0.0.1"

/* Certificates, all but the second of one key: for this host, of another key, for another host,
 * and one that has expired in a second. */
static bool make_certificates(const char *folder)
{
    return openssl(folder,
                   "req -x509 -newkey rsa:2048 -nodes -days 30 -keyout key -out cert " NAMED) &&
           openssl(folder,
                   "req -x509 -newkey rsa:2048 -nodes -days 30 -keyout key2 -out cert2 " NAMED) &&
           openssl(folder, "req -x509 -key key -days 30 -out cert3 -subj /CN=other "
                           "-addext subjectAltName=IP:10.0.0.1") &&
           openssl(folder, "x509 -in cert -signkey key -days 0 -out expired");
}

TEST(tls_is_verified)
{
    char folder[] = "kvt-tls-XXXXXX", path[5][128], whole[5][256], here[128];
    assert_non_null(mkdtemp(folder));
    assert_non_null(getcwd(here, sizeof here));
    const bool made = make_certificates(folder);
    static const char *const names[] = {"cert", "cert2", "cert3", "key", "expired"};
    for (int i = 0; i < 5; i++) {
        snprintf(path[i], sizeof path[i], "%s/%s", folder, names[i]);
        snprintf(whole[i], sizeof whole[i], "%s/%s", here, path[i]);
    }
    if (!made) {
        print_message("no openssl command makes certificates here: left out\n");
        skip();
    }
    /* Each server has one certificate, which the client trusts or not. */
    const struct {
        int server, trusted;
        kvt_status expected;
        const char *why;
    } cases[] = {{0, 0, KVT_OK, NULL},
                 {0, 1, KVT_E_GONE, "self-signed"},
                 {2, 2, KVT_E_GONE, "IP address mismatch"},
                 {4, 4, KVT_E_GONE, "expired"}};
    base_sleep(2 * REMOTE_SECOND_NS); /* until the last one has expired */
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *const arguments[] = {"--tls-cert-file",
                                         whole[cases[i].server],
                                         "--tls-key-file",
                                         whole[3],
                                         "--tls-ca-cert-file",
                                         whole[cases[i].server],
                                         "--tls-auth-clients",
                                         "no",
                                         NULL};
        start(&(servers_options){.nodes = 1, .single = true, .tls = true, .arguments = arguments});
        char address[32], message[200] = "", value[200000];
        snprintf(address, sizeof address, "127.0.0.1:%u", cluster.tls_port);
        const remote_config config = {
            .backend = "valkey", .addresses = address, .tls = true, .ca = path[cases[i].trusted]};
        remote_client *client = NULL;
        assert_ok(remote_open(&config, &client, message, sizeof message));
        memset(value, 'v', sizeof value);
        const kvt_status status = remote_put(client, "kvt1:a", value, sizeof value);
        assert_int_equal(status, cases[i].expected);
        remote_stats stats;
        remote_stats_get(client, &stats);
        if (status == KVT_OK) {
            static char back[200000];
            assert_ok(remote_get(client, "kvt1:a", back, sizeof back, NULL));
            assert_memory_equal(back, value, sizeof back);
        } else {
            if (strstr(stats.message, cases[i].why) == NULL) print_message("%s\n", stats.message);
            assert_non_null(strstr(stats.message, cases[i].why));
        }
        remote_close(client);
        servers_stop(&cluster);
    }
    remote_client *client = NULL;
    char message[200];
    const remote_config wrong = {
        .backend = "valkey", .addresses = "127.0.0.1:1", .tls = true, .ca = "no-such-file"};
    assert_int_equal(remote_open(&wrong, &client, message, sizeof message), KVT_E_CORRUPT);
    assert_non_null(strstr(message, "no-such-file"));
    char command[200];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    assert_int_equal(system(command), 0);
}

/* Copies a file over another, as a renewal does. */
static void renew(const char *from, const char *to)
{
    char command[1400];
    snprintf(command, sizeof command, "cp '%.300s' '%.300s.new' && mv '%.300s.new' '%.300s'", from,
             to, to, to);
    assert_int_equal(system(command), 0);
}

/* The server's certificate is one that the client does not trust, then the client's own is one that
 * the server does not: after its files are renewed the same client is served. */
TEST(renewed_certificates_are_read_again)
{
    char folder[] = "kvt-tls-XXXXXX", here[128], whole[4][256], ca[300], own[300];
    assert_non_null(mkdtemp(folder));
    assert_non_null(getcwd(here, sizeof here));
    if (!make_certificates(folder)) {
        print_message("no openssl command makes certificates here: left out\n");
        skip();
    }
    static const char *const names[] = {"cert", "cert2", "cert3", "key"};
    for (int i = 0; i < 4; i++)
        snprintf(whole[i], sizeof whole[i], "%s/%s/%s", here, folder, names[i]);
    snprintf(ca, sizeof ca, "%s/%s/ca", here, folder);
    snprintf(own, sizeof own, "%s/%s/own", here, folder);
    const char *const arguments[] = {"--tls-cert-file",
                                     whole[0],
                                     "--tls-key-file",
                                     whole[3],
                                     "--tls-ca-cert-file",
                                     whole[0],
                                     "--tls-auth-clients",
                                     "optional",
                                     NULL};
    start(&(servers_options){.nodes = 1, .single = true, .tls = true, .arguments = arguments});
    for (int own_is_old = 0; own_is_old < 2; own_is_old++) {
        char address[32], message[200] = "";
        renew(whole[own_is_old ? 0 : 1], ca);
        renew(whole[own_is_old ? 2 : 0], own);
        snprintf(address, sizeof address, "127.0.0.1:%u", cluster.tls_port);
        const remote_config config = {.backend = "valkey",
                                      .addresses = address,
                                      .tls = true,
                                      .ca = ca,
                                      .cert = own,
                                      .cert_key = whole[3]};
        remote_client *client = NULL;
        assert_ok(remote_open(&config, &client, message, sizeof message));
        assert_int_equal(remote_put(client, "kvt1:a", "value", 5), KVT_E_GONE);
        renew(whole[0], own_is_old ? own : ca);
        kvt_status status = KVT_E_GONE;
        remote_request *done[1];
        for (int i = 0; i < 1000 && status != KVT_OK; i++) {
            (void)remote_reap(client, done, 1, 1, 10000000);
            status = remote_put(client, "kvt1:a", "value", 5);
        }
        remote_stats stats;
        remote_stats_get(client, &stats);
        if (status != KVT_OK) print_message("%s\n", stats.message);
        assert_ok(status);
        remote_close(client);
    }
    servers_stop(&cluster);
    char command[200];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    assert_int_equal(system(command), 0);
}

TEST_ALL(ignore_pipes, NULL);
