/* SPDX-License-Identifier: Apache-2.0 */
/*
 * valkey.c - the client of Valkey and Redis as a back end: requests go to the node of their key,
 * and time passes for deadlines, breakers and connections. One connection is connection.c's.
 *
 * Thread rule: the client's thread; valkey_wake on any.
 */
#include "remote/valkey.h"

#include "base/clock.h"
#include "remote/backends.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define VALKEY_EVENTS     64
#define VALKEY_MAP_PAUSE  UINT64_C(1000000000) /* between two askings for the map, or the feed */
#define VALKEY_CONNECT_NS UINT64_C(1000000000)
#define VALKEY_MEMORY_NS  UINT64_C(10000000000)
#define VALKEY_LOST_NS    UINT64_C(10000000000) /* that a node without its cluster is asked last */

void valkey_append(valkey_list *list, remote_request *request)
{
    request->next = NULL;
    if (list->last != NULL)
        list->last->next = request;
    else
        list->first = request;
    list->last = request;
}

remote_request *valkey_take(valkey_list *list)
{
    remote_request *request = list->first;
    if (request == NULL) return NULL;
    list->first = request->next;
    if (list->first == NULL) list->last = NULL;
    return request;
}

/* Whether a node may be asked. One that has failed a kind of work three times running, and can be
 * reached again, is asked for one such piece at a time until it has done one. */
static bool valkey_may_ask(valkey_node *node, remote_request *request)
{
    if (node->breaker.state != REMOTE_CLOSED) return false;
    if (!remote_breaker_suspects(&node->breaker, request->kind)) return true;
    if ((node->on_trial >> request->kind & 1) != 0) return false;
    node->on_trial |= 1u << request->kind;
    request->on_trial = true;
    return true;
}

/* A request leaves its node. */
static void valkey_end_trial(valkey_client *client, remote_request *request)
{
    if (request->on_trial) client->nodes[request->node]->on_trial &= ~(1u << request->kind);
    request->on_trial = false;
}

void valkey_done(valkey_client *client, remote_request *request, kvt_status status)
{
    assert(request->state == REMOTE_QUEUED || request->state == REMOTE_SENT);
    valkey_end_trial(client, request);
    request->status = status;
    request->state = REMOTE_DONE;
    request->finished_ns = base_clock_ns();
    valkey_append(&client->done, request);
}

/* ---- nodes ---- */

/* Whether a node serves slots, as the map has it. */
static bool valkey_serves(const valkey_client *client, const valkey_node *node)
{
    bool serves = !client->config.cluster;
    for (uint32_t slot = 0; slot < VALKEY_HASH_SLOTS && !serves; slot++)
        serves = atomic_load_explicit(&client->map[slot], memory_order_relaxed) == node->index;
    return serves;
}

/* Whether another node may have the place of this one, which has left the cluster: in a cluster
 * whose servers change their addresses the table would fill. */
static bool valkey_is_free(const valkey_client *client, const valkey_node *node)
{
    bool idle = !node->given;
    for (int role = 0; role < VALKEY_ROLES && idle; role++)
        idle = node->connections[role].state == VALKEY_DOWN &&
               node->connections[role].waiting.first == NULL;
    return idle && !valkey_serves(client, node);
}

uint32_t valkey_find_node(valkey_client *client, const char *host, const char *port)
{
    for (uint32_t i = 0; i < client->node_count; i++)
        if (strcmp(client->nodes[i]->host, host) == 0 && strcmp(client->nodes[i]->port, port) == 0)
            return i;
    uint32_t at = 0;
    while (at < client->node_count && !valkey_is_free(client, client->nodes[at]))
        at++;
    if (at == REMOTE_NODES_MAX) return UINT32_MAX;
    const bool grows = at == client->node_count;
    valkey_node *node = grows ? calloc(1, sizeof *node) : client->nodes[at];
    if (node == NULL) return UINT32_MAX;
    for (int role = 0; role < VALKEY_ROLES; role++)
        free(node->connections[role].out);
    *node = (valkey_node){.client = client, .index = at};
    snprintf(node->host, sizeof node->host, "%s", host);
    snprintf(node->port, sizeof node->port, "%s", port);
    snprintf(node->stats.address, sizeof node->stats.address, "%.50s:%s", host, port);
    remote_breaker_init(&node->breaker, client->config.seed + node->index);
    for (int role = 0; role < VALKEY_ROLES; role++)
        valkey_connection_init(&node->connections[role], node, (valkey_role)role);
    client->nodes[at] = node;
    client->node_count += grows;
    return at;
}

void valkey_say(valkey_node *node, const char *what, const char *more)
{
    char *message = node->stats.message;
    (void)snprintf(message, sizeof node->stats.message, "%s %s%s", node->stats.address, what, more);
    memcpy(node->client->stats.message, message, sizeof node->client->stats.message);
}

void valkey_renew_secret(valkey_client *client)
{
    if (client->config.password_file != NULL)
        client->secret_fault = base_password_read(client->config.password_file, &client->secret);
}

void valkey_node_failed(valkey_node *node, uint32_t causes, const char *why)
{
    valkey_client *client = node->client;
    const uint64_t now_ns = base_clock_ns();
    bool opens = false;
    assert(causes != 0);
    node->stats.failures++;
    if (why != NULL) valkey_say(node, why, "");
    for (remote_cause cause = 0; cause < REMOTE_CAUSES; cause++)
        if ((causes >> cause & 1) != 0 && remote_breaker_bad(&node->breaker, cause, now_ns))
            opens = true;
    if (!opens) return;
    if (node->breaker.until_ns < client->next_ns) client->next_ns = node->breaker.until_ns;
    /* Another node of the cluster may serve the slots by now. */
    client->map_wanted = client->config.cluster;
    for (int role = 0; role < VALKEY_ROLES; role++)
        valkey_disconnect(&node->connections[role], KVT_E_GONE);
}

void valkey_route(valkey_client *client, remote_request *request, uint32_t node_index, bool asking)
{
    valkey_node *node = client->nodes[node_index];
    const bool bulk = request->kind == REMOTE_GET || request->kind == REMOTE_PUT;
    valkey_connection *connection = &node->connections[bulk ? VALKEY_BULK : VALKEY_PROBE];
    valkey_end_trial(client, request);
    request->node = node_index;
    request->state = REMOTE_QUEUED;
    request->sent_bytes = 0;
    if (!valkey_may_ask(node, request)) {
        valkey_done(client, request, KVT_E_GONE);
        return;
    }
    if (request->deadline_ns < client->next_ns) client->next_ns = request->deadline_ns;
    /* ASKING goes right before its command, so such a request goes before those that wait. */
    if (asking && connection->state == VALKEY_UP && connection->put == NULL &&
        connection->slot_count + 2 <= VALKEY_SLOTS &&
        valkey_ask_for(connection, VALKEY_ASK_NOTHING)) {
        request->next = connection->waiting.first;
        connection->waiting.first = request;
        if (connection->waiting.last == NULL) connection->waiting.last = request;
        return;
    }
    valkey_append(&connection->waiting, request);
}

/* Asks one node that answers for the map, when it is wanted: nodes in turn, because one may not
 * know yet that it has been replaced, and those that have lost their cluster last. */
static void valkey_ask_map(valkey_client *client, uint64_t now_ns)
{
    const uint32_t count = client->node_count;
    const uint64_t due_ns =
        client->map_asked_ns != 0 ? client->map_asked_ns + VALKEY_MAP_PAUSE : now_ns;
    /* Another node may come to serve the slots of one that is out of service at any time. */
    for (uint32_t i = 0; i < count && now_ns >= due_ns && !client->map_wanted; i++)
        client->map_wanted = client->nodes[i]->breaker.state != REMOTE_CLOSED &&
                             valkey_serves(client, client->nodes[i]);
    if (!client->map_wanted) return;
    if (due_ns > now_ns && due_ns < client->next_ns) client->next_ns = due_ns;
    for (uint32_t i = 0; i < 2 * count && now_ns >= due_ns; i++) {
        valkey_node *node = client->nodes[(client->map_turn + i) % count];
        const bool lost = node->lost_ns != 0 && now_ns < node->lost_ns + VALKEY_LOST_NS;
        valkey_connection *connection = &node->connections[VALKEY_PROBE];
        if (node->breaker.state != REMOTE_CLOSED || (lost && i < count)) continue;
        valkey_connect(connection, now_ns);
        if (connection->state != VALKEY_UP) continue;
        if (!valkey_ask_for(connection, VALKEY_ASK_SLOTS)) continue;
        client->map_turn = (node->index + 1) % count;
        client->map_asked_ns = now_ns;
        client->map_wanted = false;
        return;
    }
}

/* Asks a node for its memory behind what waits for it, on a connection that has lasted a pause. */
static void valkey_ask_memory(valkey_node *node, uint64_t now_ns)
{
    const uint64_t pause_ns = node->client->config.memory_ns;
    for (int role = VALKEY_BULK; role <= VALKEY_PROBE; role++) {
        valkey_connection *connection = &node->connections[role];
        if (connection->state != VALKEY_UP || connection->waiting.first != NULL) continue;
        if (now_ns < connection->up_ns + pause_ns || now_ns < node->memory_ns + pause_ns) continue;
        if (!valkey_ask_for(connection, VALKEY_ASK_MEMORY)) continue;
        node->memory_ns = now_ns;
        valkey_connection_send(connection);
        return;
    }
}

/* Sends the waiting requests of one node, and connects where that is needed. */
static void valkey_flush_node(valkey_client *client, valkey_node *node, uint64_t now_ns)
{
    const uint64_t opened = node->breaker.opened;
    if (remote_breaker_probes(&node->breaker, now_ns)) {
        if (valkey_serves(client, node)) {
            valkey_connect(&node->connections[VALKEY_BULK], now_ns);
        } else { /* nobody asks it any more, so it is not out of service either */
            remote_breaker_init(&node->breaker, client->config.seed + node->index);
            node->breaker.opened = opened;
        }
    } else if (node->breaker.state == REMOTE_OPEN && node->breaker.until_ns < client->next_ns)
        client->next_ns = node->breaker.until_ns;
    if (node->breaker.state == REMOTE_CLOSED && client->config.feed_prefix != NULL &&
        now_ns >= node->connections[VALKEY_FEED].began_ns + VALKEY_MAP_PAUSE)
        valkey_connect(&node->connections[VALKEY_FEED], now_ns);
    for (int role = 0; role < VALKEY_ROLES; role++) {
        valkey_connection *connection = &node->connections[role];
        if (connection->waiting.first != NULL) valkey_connect(connection, now_ns);
        valkey_connection_send(connection);
    }
    valkey_ask_memory(node, now_ns);
}

static void valkey_flush(remote_client *base)
{
    valkey_client *client = (valkey_client *)base;
    const uint64_t now_ns = base_clock_ns();
    if (client->config.cluster) valkey_ask_map(client, now_ns);
    for (uint32_t i = 0; i < client->node_count; i++)
        valkey_flush_node(client, client->nodes[i], now_ns);
}

/* ---- requests ---- */

static uint32_t valkey_node_of(const remote_client *base, const char *key, size_t key_bytes)
{
    const valkey_client *client = (const valkey_client *)base;
    if (!client->config.cluster) return 0;
    return atomic_load_explicit(&client->map[valkey_key_slot(key, key_bytes)],
                                memory_order_relaxed);
}

static void valkey_submit(remote_client *base, remote_request *request)
{
    valkey_client *client = (valkey_client *)base;
    uint32_t node = valkey_node_of(base, request->key, request->key_bytes);
    assert(node < client->node_count);
    valkey_route(client, request, node, false);
}

/* Lets time pass: deadlines, pauses, connections that take too long. */
static void valkey_expire(valkey_client *client, uint64_t now_ns)
{
    if (now_ns < client->next_ns) return;
    client->next_ns = UINT64_MAX;
    for (uint32_t i = 0; i < client->node_count; i++)
        for (int role = 0; role < VALKEY_ROLES; role++)
            valkey_connection_expire(&client->nodes[i]->connections[role], now_ns,
                                     &client->next_ns);
    for (uint32_t i = 0; i < client->node_count; i++)
        valkey_flush_node(client, client->nodes[i], now_ns);
}

/* Waits for events, not beyond an instant, and goes on with what they are of. */
static void valkey_wait(valkey_client *client, uint64_t until_ns)
{
    struct epoll_event events[VALKEY_EVENTS];
    const uint64_t now_ns = base_clock_ns();
    const uint64_t wait_ns = until_ns > now_ns ? until_ns - now_ns : 0;
    const bool ever = wait_ns / 1000000000 > 3600;
    /* Whole milliseconds, upwards: epoll_pwait2 needs a later C library than the wheel asks for. */
    const int count = epoll_wait(client->poll_fd, events, VALKEY_EVENTS,
                                 ever ? -1 : (int)((wait_ns + 999999) / 1000000));
    for (int i = 0; i < count; i++) {
        if (events[i].data.ptr != NULL) {
            valkey_connection_step(events[i].data.ptr, events[i].events);
            continue;
        }
        uint64_t ignored;
        client->woken = read(client->wake_fd, &ignored, sizeof ignored) > 0;
        for (uint32_t node = 0; node < client->node_count; node++)
            for (int role = 0; role < VALKEY_ROLES; role++)
                valkey_connection_step(&client->nodes[node]->connections[role], 0);
    }
}

static size_t valkey_reap(remote_client *base, remote_request **done, size_t min, size_t max,
                          uint64_t timeout_ns)
{
    valkey_client *client = (valkey_client *)base;
    const uint64_t began_ns = base_clock_ns();
    const uint64_t end_ns = timeout_ns < UINT64_MAX - began_ns ? began_ns + timeout_ns : UINT64_MAX;
    size_t count = 0;
    for (bool polled = false;; polled = true) {
        valkey_flush(base);
        const uint64_t now_ns = base_clock_ns();
        valkey_expire(client, now_ns);
        while (count < max && client->done.first != NULL)
            done[count++] = valkey_take(&client->done);
        if (polled && (count >= min || client->woken || now_ns >= end_ns)) break;
        if (count == max && max > 0) break;
        uint64_t until_ns = count >= min ? 0 : end_ns;
        if (client->next_ns < until_ns) until_ns = client->next_ns;
        valkey_wait(client, until_ns);
    }
    client->woken = false;
    return count;
}

/* A late byte, a connection that is being made, a breaker's pause and the map want a thread. So do
 * the feed, and TLS, whose writes may raise SIGPIPE. */
static bool valkey_is_calm(const remote_client *base)
{
    const valkey_client *client = (const valkey_client *)base;
    bool calm = client->tls == NULL && client->config.feed_prefix == NULL && !client->map_wanted;
    for (uint32_t i = 0; i < client->node_count && calm; i++) {
        const valkey_node *node = client->nodes[i];
        calm = node->breaker.state == REMOTE_CLOSED;
        for (int role = 0; role < VALKEY_ROLES && calm; role++) {
            const valkey_connection *connection = &node->connections[role];
            calm = connection->state == VALKEY_DOWN ||
                   (connection->state == VALKEY_UP && connection->slot_count == 0 &&
                    connection->out_begin == connection->out_end);
        }
    }
    return calm;
}

static void valkey_wake(remote_client *base)
{
    const valkey_client *client = (const valkey_client *)base;
    const uint64_t one = 1;
    ssize_t written = write(client->wake_fd, &one, sizeof one);
    (void)written;
}

static int valkey_fd(const remote_client *base)
{
    return ((const valkey_client *)base)->poll_fd;
}

static void valkey_stats(const remote_client *base, remote_stats *out)
{
    const valkey_client *client = (const valkey_client *)base;
    *out = client->stats;
    out->node_count = client->node_count;
}

static bool valkey_node_stats(const remote_client *base, uint32_t node, remote_node_stats *out)
{
    const valkey_client *client = (const valkey_client *)base;
    if (node >= client->node_count) return false;
    *out = client->nodes[node]->stats;
    out->breaker = client->nodes[node]->breaker.state;
    out->opened = client->nodes[node]->breaker.opened;
    out->suspect = remote_breaker_suspects_work(&client->nodes[node]->breaker);
    out->failing_ns = client->nodes[node]->breaker.failing_ns;
    return true;
}

/* ---- life ---- */

static void valkey_close(remote_client *base)
{
    valkey_client *client = (valkey_client *)base;
    client->config.invalidated = NULL;
    for (uint32_t i = 0; i < client->node_count; i++) {
        for (int role = 0; role < VALKEY_ROLES; role++) {
            valkey_disconnect(&client->nodes[i]->connections[role], KVT_E_CANCELLED);
            free(client->nodes[i]->connections[role].out);
        }
        free(client->nodes[i]);
    }
    remote_tls_close(client->tls);
    if (client->poll_fd >= 0) close(client->poll_fd);
    if (client->wake_fd >= 0) close(client->wake_fd);
    if (client->texts != NULL) explicit_bzero(client->texts, strlen(client->texts));
    free(client->texts);
    explicit_bzero(&client->secret, sizeof client->secret);
    free(client);
}

/* Keeps the texts that are used after the open: the login, the feed's prefix, files. */
static kvt_status valkey_keep(valkey_client *client, const remote_config *config)
{
    const char *const from[] = {config->password,     config->user, config->feed_prefix,
                                config->ca,           config->cert, config->cert_key,
                                config->password_file};
    const char **const to[] = {&client->config.password,     &client->config.user,
                               &client->config.feed_prefix,  &client->config.ca,
                               &client->config.cert,         &client->config.cert_key,
                               &client->config.password_file};
    const int count = sizeof from / sizeof from[0];
    size_t bytes = 1, used = 0;
    for (int i = 0; i < count; i++)
        bytes += from[i] != NULL ? strlen(from[i]) + 1 : 0;
    client->texts = calloc(1, bytes);
    if (client->texts == NULL) return KVT_E_MEMORY;
    for (int i = 0; i < count; i++) {
        if (from[i] == NULL) continue;
        *to[i] = memcpy(client->texts + used, from[i], strlen(from[i]) + 1);
        used += strlen(from[i]) + 1;
    }
    client->config.addresses = NULL;
    return KVT_OK;
}

/* Adds the nodes of a list of addresses. False: one of them is none; the message says why. */
static bool valkey_add_nodes(valkey_client *client, const char *addresses, char *message,
                             size_t message_size)
{
    char host[NI_MAXHOST], port[8];
    const char *fault = remote_addresses_fault(addresses, client->config.cluster);
    if (fault != NULL) {
        snprintf(message, message_size, "%s", fault);
        return false;
    }
    for (addresses += strspn(addresses, ", \t"); *addresses != '\0';
         addresses += strspn(addresses, ", \t")) {
        const size_t bytes = strcspn(addresses, ", \t");
        if (!remote_split(addresses, bytes, host, port) ||
            valkey_find_node(client, host, port) == UINT32_MAX)
            break;
        client->nodes[client->node_count - 1]->given = true;
        addresses += bytes;
    }
    return client->node_count > 0;
}

static kvt_status valkey_prepare(valkey_client *client, const remote_config *config, char *message,
                                 size_t message_size)
{
    const char *const words[] = {config->user, config->password, config->feed_prefix};
    for (int i = 0; i < 3; i++) {
        if (words[i] == NULL || strlen(words[i]) <= 256) continue;
        snprintf(message, message_size, "a user, password or prefix is longer than 256 bytes");
        return KVT_E_ARGUMENT;
    }
    if (client->config.connect_ns == 0) client->config.connect_ns = VALKEY_CONNECT_NS;
    if (client->config.memory_ns == 0) client->config.memory_ns = VALKEY_MEMORY_NS;
    if (client->config.seed == 0) client->config.seed = base_clock_ns() ^ (uint64_t)getpid() << 32;
    kvt_status status = valkey_keep(client, config);
    if (status != KVT_OK) return status;
    valkey_renew_secret(client);
    if (config->password_file != NULL) client->config.password = client->secret.text;
    if (!valkey_add_nodes(client, config->addresses, message, message_size)) return KVT_E_ARGUMENT;
    if (config->tls) status = remote_tls_open(&client->config, &client->tls, message, message_size);
    if (status != KVT_OK) return status;
    client->poll_fd = epoll_create1(EPOLL_CLOEXEC);
    client->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    if (client->poll_fd < 0 || client->wake_fd < 0 ||
        epoll_ctl(client->poll_fd, EPOLL_CTL_ADD, client->wake_fd, &event) != 0)
        return KVT_E_IO;
    client->map_wanted = config->cluster;
    return KVT_OK;
}

static kvt_status valkey_open(const remote_config *config, remote_client **client_out,
                              char *message, size_t message_size)
{
    valkey_client *client = calloc(1, sizeof *client);
    if (client == NULL) return KVT_E_MEMORY;
    client->base.ops = &remote_valkey_ops;
    client->config = *config;
    client->poll_fd = client->wake_fd = -1;
    client->next_ns = UINT64_MAX;
    const kvt_status status = valkey_prepare(client, config, message, message_size);
    if (status == KVT_OK)
        *client_out = &client->base;
    else
        valkey_close(&client->base);
    return status;
}

const remote_ops remote_valkey_ops = {.struct_size = sizeof(remote_ops),
                                      .name = "valkey",
                                      .open = valkey_open,
                                      .close = valkey_close,
                                      .fd = valkey_fd,
                                      .submit = valkey_submit,
                                      .flush = valkey_flush,
                                      .reap = valkey_reap,
                                      .wake = valkey_wake,
                                      .stats = valkey_stats,
                                      .node_stats = valkey_node_stats,
                                      .node_of = valkey_node_of,
                                      .is_calm = valkey_is_calm};
