/* SPDX-License-Identifier: Apache-2.0 */
/*
 * connection.c - one connection of the client: it is made, logs in, sends commands and takes
 * replies. Everything that fails here ends in valkey_disconnect.
 *
 * Thread rule: the client's thread.
 */
#include "base/clock.h"
#include "remote/valkey.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define CONNECTION_READS 16u /* of one step, so that other connections have their turn */

/* ---- replies ---- */

/* The code of an error, if it is one that servers have: no other text of a server is shown, because
 * it may hold anything. */
static const char *connection_code(const char *text, size_t bytes)
{
    static const char *const codes[] = {
        "WRONGPASS",   "NOAUTH",   "NOPERM", "NOPROTO", "LOADING", "OOM",       "READONLY",
        "CLUSTERDOWN", "TRYAGAIN", "MOVED",  "ASK",     "MISCONF", "WRONGTYPE", "MASTERDOWN"};
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++) {
        const size_t length = strlen(codes[i]);
        if (bytes >= length && memcmp(text, codes[i], length) == 0) return codes[i];
    }
    return "an error";
}

/* Ends a request that the node has answered with an error. */
static void connection_take_error(valkey_connection *connection, remote_request *request,
                                  const resp_token *token)
{
    valkey_client *client = connection->node->client;
    const char *text = token->text != NULL ? token->text : "";
    if (valkey_redirect(client, connection->node, request, text, token->text_bytes)) return;
    const char *code = connection_code(text, token->text_bytes);
    const bool reads = request->kind == REMOTE_GET || request->kind == REMOTE_EXISTS;
    kvt_status status = reads ? KVT_MISS : KVT_E_GONE;
    if (!reads && strcmp(code, "OOM") == 0) status = KVT_E_SPACE;
    if (!reads && (strcmp(code, "READONLY") == 0 || strcmp(code, "NOPERM") == 0 ||
                   strcmp(code, "MISCONF") == 0))
        status = KVT_E_READ_ONLY;
    /* An object of another type has the name. */
    if (request->kind == REMOTE_GET && strcmp(code, "WRONGTYPE") == 0) status = KVT_E_MISMATCH;
    if (strcmp(code, "CLUSTERDOWN") == 0) {
        connection->node->lost_ns = base_clock_ns();
        client->map_wanted = client->config.cluster;
    }
    snprintf(client->stats.message, sizeof client->stats.message, "%s answers with %s",
             connection->node->stats.address, code);
    valkey_done(client, request, status);
}

/* Ends a request with its answer. */
static kvt_status connection_take_answer(valkey_connection *connection, remote_request *request,
                                         const resp_token *token)
{
    kvt_status status = KVT_E_CORRUPT;
    const bool null = token->type == '_' || (token->type == '$' && token->number < 0);
    switch (request->kind) {
    case REMOTE_GET:
        request->value_bytes = token->number > 0 ? (uint64_t)token->number : 0;
        if (null) status = KVT_MISS;
        if (token->type == '$' && token->number >= 0) status = token->placed ? KVT_OK : KVT_E_SPACE;
        break;
    case REMOTE_EXISTS:
    case REMOTE_DELETE:
        if (token->type == ':' && token->number >= 0)
            status = token->number > 0 ? KVT_OK : KVT_MISS;
        break;
    case REMOTE_PUT:
        if (token->type == '+') status = KVT_OK;
        if (null && request->fresh) status = KVT_EXISTS;
        break;
    default: break;
    }
    valkey_done(connection->node->client, request, status);
    return status == KVT_E_CORRUPT ? KVT_E_CORRUPT : KVT_OK;
}

/* The login is answered. KVT_E_GONE: with a refusal. */
static kvt_status connection_take_login(valkey_connection *connection, valkey_ask ask,
                                        const resp_token *token)
{
    valkey_client *client = connection->node->client;
    if (token->depth == 0 && (token->type == '-' || token->type == '!')) {
        const char *code = connection_code(token->text, token->text_bytes);
        /* A server from before HELLO speaks RESP2, and knows AUTH alone. */
        const bool old = ask == VALKEY_ASK_HELLO &&
                         (strcmp(code, "an error") == 0 || strcmp(code, "NOPROTO") == 0);
        if (old && connection->role != VALKEY_FEED && client->config.password != NULL)
            return valkey_ask_for(connection, VALKEY_ASK_AUTH) ? KVT_OK : KVT_E_GONE;
        if (!old || connection->role == VALKEY_FEED) {
            char what[200];
            (void)snprintf(what, sizeof what, "refuses the login with %s%s%s%s%s", code,
                           client->secret_fault != NULL ? "; password_file " : "",
                           client->secret_fault != NULL ? client->config.password_file : "",
                           client->secret_fault != NULL ? " " : "",
                           client->secret_fault != NULL ? client->secret_fault : "");
            valkey_say(connection->node, what, "");
            return KVT_E_GONE;
        }
    }
    if (!token->ends) return KVT_OK;
    if (ask == VALKEY_ASK_HELLO && connection->role == VALKEY_FEED)
        return valkey_ask_for(connection, VALKEY_ASK_TRACKING) ? KVT_OK : KVT_E_GONE;
    connection->state = VALKEY_UP;
    connection->up_ns = base_clock_ns();
    remote_breaker_reached(&connection->node->breaker);
    return KVT_OK;
}

/* Takes a token of a push. An invalidation is "invalidate" and an array of keys, or null. */
static void connection_take_push(valkey_connection *connection, const resp_token *token)
{
    valkey_client *client = connection->node->client;
    const remote_config *config = &client->config;
    const bool first = token->depth == 1 && token->type == '$' && token->text != NULL;
    if (first && token->text_bytes == 10 && memcmp(token->text, "invalidate", 10) == 0)
        connection->push_tells = true;
    if (!connection->push_tells || config->invalidated == NULL) return;
    if (token->depth == 1 && token->type == '_')
        config->invalidated(config->invalidated_context, NULL, 0);
    if (token->depth != 2 || token->text == NULL) return;
    client->stats.invalidations++;
    config->invalidated(config->invalidated_context, token->text, token->text_bytes);
}

/* The node has done a piece of work. A connection that has lasted shows that connecting works. */
static void connection_answered(valkey_connection *connection, remote_cause kind)
{
    remote_breaker *breaker = &connection->node->breaker;
    connection->answered_ns = base_clock_ns();
    remote_breaker_good(breaker, kind);
    if (connection->answered_ns - connection->up_ns >= VALKEY_LIFE_NS)
        remote_breaker_good(breaker, REMOTE_CAUSE_CONNECTION);
}

static kvt_status connection_token(void *context, const resp_token *token)
{
    valkey_connection *connection = context;
    valkey_client *client = connection->node->client;
    if (token->depth == 0 && token->type == '>') {
        connection->in_push = !token->ends;
        connection->push_tells = false;
        return KVT_OK;
    }
    if (connection->in_push) {
        connection_take_push(connection, token);
        if (token->ends) connection->in_push = false;
        return KVT_OK;
    }
    if (connection->slot_count == 0) return KVT_E_CORRUPT; /* nobody has asked */
    const valkey_slot slot = connection->slots[connection->slot_first];
    if (token->ends) {
        connection->slot_first = (connection->slot_first + 1) % VALKEY_SLOTS;
        connection->slot_count--;
    }
    if (slot.ask == VALKEY_ASK_NOTHING) return KVT_OK;
    if (slot.ask == VALKEY_ASK_MEMORY) {
        valkey_memory_token(connection->node, token);
        return KVT_OK;
    }
    if (slot.ask == VALKEY_ASK_SLOTS) {
        valkey_map_token(client, connection->node, token);
        return KVT_OK;
    }
    if (slot.ask != VALKEY_ASK_REQUEST) return connection_take_login(connection, slot.ask, token);
    if (!token->ends) return KVT_E_CORRUPT; /* no command of ours is answered with an aggregate */
    /* An answer that nobody waits for any more is none: a node may answer everything too late. */
    if (slot.request == NULL) {
        client->stats.late_replies++;
        return KVT_OK;
    }
    const remote_cause kind = slot.request->kind; /* the request is its owner's after its answer */
    kvt_status status = KVT_OK;
    if (token->type != '-' && token->type != '!')
        status = connection_take_answer(connection, slot.request, token);
    else
        connection_take_error(connection, slot.request, token);
    if (status == KVT_OK)
        connection_answered(connection, kind);
    else
        connection->blame = 1u << kind;
    return status;
}

static bool connection_place(void *context, uint64_t bytes, resp_target *target_out)
{
    const valkey_connection *connection = context;
    if (connection->in_push || connection->slot_count == 0) return false;
    const remote_request *request = connection->slots[connection->slot_first].request;
    if (request == NULL || request->kind != REMOTE_GET) return false;
    if (bytes > remote_parts_bytes(request)) return false;
    *target_out = (resp_target){request->parts, request->part_count};
    return true;
}

static const resp_hooks connection_hooks = {connection_place, connection_token};

/* ---- life ---- */

void valkey_connection_init(valkey_connection *connection, valkey_node *node, valkey_role role)
{
    connection->node = node;
    connection->role = role;
    connection->state = VALKEY_DOWN;
    connection->socket = -1;
}

/* Waits for these events from now on. */
static void connection_poll(valkey_connection *connection, uint32_t events)
{
    if (connection->events == events) return;
    struct epoll_event event = {.events = events, .data.ptr = connection};
    const int how = connection->events == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
    if (epoll_ctl(connection->node->client->poll_fd, how, connection->socket, &event) == 0)
        connection->events = events;
}

static void connection_close_socket(valkey_connection *connection)
{
    remote_tls_end(connection->node->client->tls, connection->tls);
    connection->tls = NULL;
    if (connection->socket >= 0) close(connection->socket);
    connection->socket = -1;
    connection->events = 0;
}

void valkey_disconnect(valkey_connection *connection, kvt_status status)
{
    valkey_client *client = connection->node->client;
    connection_close_socket(connection);
    remote_resolution_leave(connection->resolution);
    connection->resolution = NULL;
    if (connection->found != NULL) freeaddrinfo(connection->found);
    connection->found = connection->address = NULL;
    if (connection->role == VALKEY_FEED && connection->state == VALKEY_UP &&
        client->config.invalidated != NULL)
        client->config.invalidated(client->config.invalidated_context, NULL, 0);
    connection->state = VALKEY_DOWN;
    connection->blame = 0;
    connection->put = NULL;
    connection->out_begin = connection->out_end = 0;
    connection->in_push = false;
    const uint32_t first = connection->slot_first, count = connection->slot_count;
    connection->slot_first = connection->slot_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        remote_request *request = connection->slots[(first + i) % VALKEY_SLOTS].request;
        if (request != NULL) valkey_done(client, request, status);
    }
    remote_request *request;
    while ((request = valkey_take(&connection->waiting)) != NULL)
        valkey_done(client, request, status);
}

/* What the loss of a connection is a failure of, as bits: of the work that comes next on it, and of
 * connecting when it was never up or has not lasted. A server may close one that nobody uses. */
static uint32_t connection_causes(const valkey_connection *connection, kvt_status status)
{
    uint32_t causes = connection->blame;
    if (connection->state != VALKEY_UP) return 1u << REMOTE_CAUSE_CONNECTION;
    for (uint32_t i = 0; i < connection->slot_count && causes == 0; i++) {
        const valkey_slot *slot = &connection->slots[(connection->slot_first + i) % VALKEY_SLOTS];
        if (slot->request != NULL) causes = 1u << slot->request->kind;
    }
    if (causes == 0 && connection->waiting.first != NULL)
        causes = 1u << connection->waiting.first->kind;
    if (base_clock_ns() - connection->up_ns < VALKEY_LIFE_NS ||
        (causes == 0 && status == KVT_E_CORRUPT))
        causes |= 1u << REMOTE_CAUSE_CONNECTION;
    return causes;
}

/* The connection fails: so does its node, unless it was the feed's, which is tried again later. */
static void connection_fail(valkey_connection *connection, kvt_status status, const char *why)
{
    const uint32_t causes = connection_causes(connection, status);
    if (status == KVT_E_CORRUPT) connection->node->client->stats.malformed++;
    valkey_disconnect(connection, status);
    if (connection->role != VALKEY_FEED && causes != 0)
        valkey_node_failed(connection->node, causes, why);
}

/* The socket is connected, TLS included: logs in. */
static void connection_login(valkey_connection *connection)
{
    valkey_renew_secret(connection->node->client);
    resp_init(&connection->reader, &connection_hooks, connection);
    connection->state = VALKEY_LOGIN;
    if (!valkey_ask_for(connection, VALKEY_ASK_HELLO))
        connection_fail(connection, KVT_E_MEMORY, "no memory");
}

/* Tries the next address of the host; fails when none is left. */
static void connection_try(valkey_connection *connection)
{
    for (; connection->address != NULL; connection->address = connection->address->ai_next) {
        const struct addrinfo *to = connection->address;
        const int one = 1;
        connection->socket = socket(to->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (connection->socket < 0) continue;
        (void)setsockopt(connection->socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (connect(connection->socket, to->ai_addr, to->ai_addrlen) == 0 || errno == EINPROGRESS) {
            connection->state = VALKEY_CONNECTING;
            connection_poll(connection, EPOLLOUT);
            return;
        }
        connection_close_socket(connection);
    }
    connection_fail(connection, KVT_E_GONE, "cannot be connected to");
}

void valkey_connect(valkey_connection *connection, uint64_t now_ns)
{
    valkey_node *node = connection->node;
    if (connection->state != VALKEY_DOWN) return;
    connection->began_ns = now_ns;
    if (now_ns + node->client->config.connect_ns < node->client->next_ns)
        node->client->next_ns = now_ns + node->client->config.connect_ns;
    if (connection->out == NULL) connection->out = malloc(VALKEY_OUT_BYTES);
    connection->found = remote_resolve_now(node->host, node->port);
    connection->address = connection->found;
    if (connection->out == NULL) {
        connection_fail(connection, KVT_E_MEMORY, "no memory");
    } else if (connection->found != NULL) {
        connection_try(connection);
    } else {
        connection->state = VALKEY_RESOLVING;
        connection->resolution = remote_resolve(node->host, node->port, node->client->wake_fd);
        if (connection->resolution == NULL) connection_fail(connection, KVT_E_MEMORY, "no memory");
    }
}

/* The name may be resolved. */
static void connection_step_resolving(valkey_connection *connection)
{
    const kvt_status status = remote_resolved(connection->resolution, &connection->found);
    if (status == KVT_QUEUED) return;
    remote_resolution_leave(connection->resolution);
    connection->resolution = NULL;
    connection->address = connection->found;
    if (status == KVT_OK)
        connection_try(connection);
    else
        connection_fail(connection, KVT_E_GONE, "has no address");
}

/* The socket has connected, or not. */
static void connection_step_connecting(valkey_connection *connection)
{
    valkey_client *client = connection->node->client;
    int error = 0;
    socklen_t bytes = sizeof error;
    if (getsockopt(connection->socket, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) error = errno;
    if (error != 0) {
        connection_close_socket(connection);
        connection->address = connection->address->ai_next;
        connection_try(connection);
        return;
    }
    if (client->tls == NULL) {
        connection_login(connection);
        return;
    }
    connection->tls = remote_tls_begin(client->tls, connection->socket, connection->node->host);
    connection->state = VALKEY_SHAKING;
    if (connection->tls == NULL) connection_fail(connection, KVT_E_MEMORY, "no memory");
}

static void connection_step_shaking(valkey_connection *connection)
{
    const char *why = "";
    const kvt_status status = remote_tls_shake(connection->node->client->tls, connection->tls,
                                               &connection->tls_writes, &why);
    if (status == KVT_OK)
        connection_login(connection);
    else if (status == KVT_QUEUED)
        connection_poll(connection, connection->tls_writes ? EPOLLOUT : EPOLLIN);
    else
        connection_fail(connection, KVT_E_GONE, why);
}

/* ---- sending ---- */

/* Adds a slot for a reply. */
static void connection_expect(valkey_connection *connection, valkey_ask ask,
                              remote_request *request)
{
    assert(connection->slot_count < VALKEY_SLOTS);
    const uint32_t at = (connection->slot_first + connection->slot_count++) % VALKEY_SLOTS;
    connection->slots[at] = (valkey_slot){request, ask};
}

/* Adds words to `out` as a command. more: further words that the caller adds. */
static void connection_write(valkey_connection *connection, uint32_t more, uint32_t count,
                             const struct iovec *words)
{
    char *to = connection->out + connection->out_end;
    const char *const limit = connection->out + VALKEY_OUT_BYTES;
    to += snprintf(to, (size_t)(limit - to), "*%u\r\n", count + more);
    for (uint32_t i = 0; i < count; i++) {
        to += snprintf(to, (size_t)(limit - to), "$%zu\r\n", words[i].iov_len);
        assert((size_t)(limit - to) > words[i].iov_len + 2);
        memcpy(to, words[i].iov_base, words[i].iov_len);
        to += words[i].iov_len;
        memcpy(to, "\r\n", 2);
        to += 2;
    }
    connection->out_end = (uint32_t)(to - connection->out);
}

static struct iovec connection_word(const char *text)
{
    return (struct iovec){(void *)(uintptr_t)text, strlen(text)};
}

bool valkey_ask_for(valkey_connection *connection, valkey_ask ask)
{
    const remote_config *config = &connection->node->client->config;
    const char *user = config->user != NULL ? config->user : "default";
    struct iovec words[6];
    uint32_t count = 0;
    if (connection->put != NULL || connection->slot_count == VALKEY_SLOTS) return false;
    if (VALKEY_OUT_BYTES - connection->out_end < VALKEY_LOGIN_MAX) return false;
    if (ask == VALKEY_ASK_HELLO || ask == VALKEY_ASK_AUTH)
        words[count++] = connection_word(ask == VALKEY_ASK_HELLO ? "HELLO" : "AUTH");
    if (ask == VALKEY_ASK_HELLO) words[count++] = connection_word("3");
    if (ask == VALKEY_ASK_HELLO && config->password != NULL)
        words[count++] = connection_word("AUTH");
    if (config->password != NULL && count > 0) {
        if (ask == VALKEY_ASK_HELLO || config->user != NULL) words[count++] = connection_word(user);
        words[count++] = connection_word(config->password);
    }
    if (ask == VALKEY_ASK_TRACKING) {
        words[count++] = connection_word("CLIENT");
        words[count++] = connection_word("TRACKING");
        words[count++] = connection_word("ON");
        words[count++] = connection_word("BCAST");
        words[count++] = connection_word("PREFIX");
        words[count++] = connection_word(config->feed_prefix);
    } else if (ask == VALKEY_ASK_SLOTS) {
        words[count++] = connection_word("CLUSTER");
        words[count++] = connection_word("SLOTS");
    } else if (ask == VALKEY_ASK_MEMORY) {
        words[count++] = connection_word("INFO");
        words[count++] = connection_word("memory");
    } else if (ask == VALKEY_ASK_NOTHING) {
        words[count++] = connection_word("ASKING");
    }
    connection_write(connection, 0, count, words);
    connection_expect(connection, ask, NULL);
    return true;
}

/* Writes a request's command into `out`; the value of a PUT follows it. */
static void connection_begin(valkey_connection *connection, remote_request *request)
{
    static const char *const names[] = {"EXISTS", "GET", "SET", "UNLINK"};
    const struct iovec words[2] = {connection_word(names[request->kind]),
                                   {(void *)(uintptr_t)request->key, request->key_bytes}};
    const bool put = request->kind == REMOTE_PUT;
    const bool ends = put && request->ttl_seconds != 0, fresh = put && request->fresh;
    remote_stats *stats = &connection->node->client->stats;
    if (connection->out_begin == connection->out_end) stats->batches[request->kind]++;
    stats->requests[request->kind]++;
    connection->node->stats.requests++;
    connection_write(connection, (put ? 1u : 0u) + (ends ? 2u : 0u) + (fresh ? 1u : 0u), 2, words);
    connection_expect(connection, VALKEY_ASK_REQUEST, request);
    request->state = REMOTE_SENT;
    if (!put) return;
    connection->out_end += (uint32_t)snprintf(connection->out + connection->out_end,
                                              VALKEY_OUT_BYTES - connection->out_end, "$%llu\r\n",
                                              (unsigned long long)remote_parts_bytes(request));
    char number[16];
    const int digits = snprintf(number, sizeof number, "%u", request->ttl_seconds);
    int tail = snprintf(connection->tail, sizeof connection->tail,
                        ends ? "\r\n$2\r\nEX\r\n$%d\r\n%s\r\n" : "\r\n", digits, number);
    if (fresh)
        tail += snprintf(connection->tail + tail, sizeof connection->tail - (size_t)tail,
                         "$2\r\nNX\r\n");
    connection->tail_bytes = (uint32_t)tail;
    connection->tail_sent = 0;
    connection->put = request;
    connection->put_begins = false;
}

/* The pieces that are to be sent next. */
static uint32_t connection_pieces(valkey_connection *connection,
                                  struct iovec pieces[REMOTE_PARTS_MAX + 2])
{
    uint32_t count = 0;
    const remote_request *put = connection->put;
    if (connection->out_begin < connection->out_end)
        pieces[count++] = (struct iovec){connection->out + connection->out_begin,
                                         connection->out_end - connection->out_begin};
    if (put == NULL) return count;
    uint64_t passed = put->sent_bytes;
    for (uint32_t i = 0; i < put->part_count; i++) {
        const size_t bytes = put->parts[i].iov_len;
        if (passed < bytes)
            pieces[count++] =
                (struct iovec){(char *)put->parts[i].iov_base + passed, bytes - (size_t)passed};
        passed = passed > bytes ? passed - bytes : 0;
    }
    pieces[count++] = (struct iovec){connection->tail + connection->tail_sent,
                                     connection->tail_bytes - connection->tail_sent};
    return count;
}

/* So many bytes are sent. */
static void connection_sent(valkey_connection *connection, uint64_t bytes)
{
    uint64_t step = connection->out_end - connection->out_begin;
    connection->node->stats.bytes_out += bytes;
    if (step > bytes) step = bytes;
    connection->out_begin += (uint32_t)step;
    if (connection->out_begin == connection->out_end)
        connection->out_begin = connection->out_end = 0;
    bytes -= step;
    remote_request *put = connection->put;
    if (put == NULL) return;
    connection->put_begins = true;
    const uint64_t left = remote_parts_bytes(put) - put->sent_bytes;
    step = bytes < left ? bytes : left;
    put->sent_bytes += step;
    connection->tail_sent += (uint32_t)(bytes - step);
    assert(connection->tail_sent <= connection->tail_bytes);
    if (connection->tail_sent == connection->tail_bytes) connection->put = NULL;
}

void valkey_connection_send(valkey_connection *connection)
{
    struct iovec pieces[REMOTE_PARTS_MAX + 2];
    if (connection->state < VALKEY_LOGIN) return;
    const uint32_t window = connection->role == VALKEY_BULK ? VALKEY_WINDOW : VALKEY_SLOTS;
    for (;;) {
        while (connection->state == VALKEY_UP && connection->put == NULL &&
               connection->waiting.first != NULL && connection->slot_count < window &&
               VALKEY_OUT_BYTES - connection->out_end >= VALKEY_COMMAND_MAX)
            connection_begin(connection, valkey_take(&connection->waiting));
        const uint32_t count = connection_pieces(connection, pieces);
        if (count == 0) break;
        const struct msghdr message = {.msg_iov = pieces, .msg_iovlen = count};
        const ssize_t sent =
            connection->tls != NULL
                ? remote_tls_write(connection->node->client->tls, connection->tls,
                                   pieces[0].iov_base, pieces[0].iov_len, &connection->tls_writes)
                : sendmsg(connection->socket, &message, MSG_NOSIGNAL);
        if (sent >= 0) {
            connection_sent(connection, (uint64_t)sent);
            continue;
        }
        if (errno == EINTR) continue;
        if (errno != EAGAIN && errno != EWOULDBLOCK) {
            connection_fail(connection, KVT_E_GONE, "the connection was lost");
            return;
        }
        connection_poll(connection, connection->tls != NULL && !connection->tls_writes
                                        ? EPOLLIN
                                        : EPOLLIN | EPOLLOUT);
        return;
    }
    connection_poll(connection, EPOLLIN);
}

/* ---- receiving ---- */

/* A value comes that no host of ours has written. Its end is not waited for: the connection is
 * closed, which is a failure of the node only when it has not lasted. */
static void connection_refuse(valkey_connection *connection)
{
    valkey_node *node = connection->node;
    valkey_slot *slot = &connection->slots[connection->slot_first];
    remote_request *request = slot->request;
    const bool lasted = base_clock_ns() - connection->up_ns >= VALKEY_LIFE_NS;
    if (connection->slot_count == 0 || slot->ask != VALKEY_ASK_REQUEST ||
        (request != NULL && request->kind != REMOTE_GET)) {
        connection_fail(connection, KVT_E_CORRUPT, "answers nonsense");
        return;
    }
    slot->request = NULL;
    if (request != NULL) {
        request->value_bytes = connection->reader.bulk_bytes;
        valkey_done(node->client, request, KVT_E_SPACE);
    }
    valkey_disconnect(connection, KVT_E_GONE);
    if (!lasted) valkey_node_failed(node, 1u << REMOTE_CAUSE_CONNECTION, "holds values too large");
}

static void connection_receive(valkey_connection *connection)
{
    struct iovec spaces[RESP_SPACES];
    /* TLS keeps bytes that no poll tells of: all of them are read. */
    for (uint32_t i = 0; i < CONNECTION_READS || connection->tls != NULL; i++) {
        const uint32_t count = resp_space(&connection->reader, spaces);
        size_t room = 0;
        for (uint32_t j = 0; j < count; j++)
            room += spaces[j].iov_len;
        const ssize_t got =
            connection->tls != NULL
                ? remote_tls_read(connection->node->client->tls, connection->tls,
                                  spaces[0].iov_base, spaces[0].iov_len, &connection->tls_writes)
                : readv(connection->socket, spaces, (int)count);
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
            connection_fail(connection, KVT_E_GONE, "the connection was lost");
            return;
        }
        connection->node->stats.bytes_in += (uint64_t)got;
        const kvt_status status = resp_got(&connection->reader, (size_t)got);
        if (status == KVT_E_SPACE) {
            connection_refuse(connection);
            return;
        }
        if (status != KVT_OK) {
            connection_fail(connection, status,
                            status == KVT_E_CORRUPT ? "answers nonsense" : NULL);
            return;
        }
        if (connection->tls == NULL && (size_t)got < room) return; /* there is no more now */
    }
}

void valkey_connection_step(valkey_connection *connection, uint32_t events)
{
    (void)events;
    if (connection->state == VALKEY_RESOLVING) connection_step_resolving(connection);
    if (events == 0) return;
    if (connection->state == VALKEY_CONNECTING) connection_step_connecting(connection);
    if (connection->state == VALKEY_SHAKING) connection_step_shaking(connection);
    if (connection->state >= VALKEY_LOGIN) connection_receive(connection);
    if (connection->state >= VALKEY_LOGIN) valkey_connection_send(connection);
}

/* ---- deadlines ---- */

/* A request's deadline has passed. */
static void connection_give_up(valkey_connection *connection, remote_request *request,
                               remote_cause cause, uint64_t now_ns)
{
    valkey_node *node = connection->node;
    node->stats.timeouts++;
    /* Nothing was answered in time since the request, whatever bytes have trickled in. Where
     * something was, the node works and is asked for too much. */
    const bool fails = connection->answered_ns < request->submitted_ns &&
                       now_ns - request->submitted_ns >= VALKEY_SILENCE_NS;
    valkey_done(node->client, request, KVT_E_TIMEOUT);
    if (fails) valkey_node_failed(node, 1u << cause, "does not answer");
}

void valkey_connection_expire(valkey_connection *connection, uint64_t now_ns, uint64_t *next_ns)
{
    valkey_list kept = {NULL, NULL}, late = {NULL, NULL};
    remote_request *request;
    const bool up = connection->state == VALKEY_UP;
    bool cut = false;
    while ((request = valkey_take(&connection->waiting)) != NULL) {
        if (request->deadline_ns > now_ns && request->deadline_ns < *next_ns)
            *next_ns = request->deadline_ns;
        valkey_append(request->deadline_ns > now_ns ? &kept : &late, request);
    }
    connection->waiting = kept;
    for (uint32_t i = 0; i < connection->slot_count; i++) {
        valkey_slot *slot = &connection->slots[(connection->slot_first + i) % VALKEY_SLOTS];
        if (slot->request == NULL) continue;
        if (slot->request->deadline_ns > now_ns) {
            if (slot->request->deadline_ns < *next_ns) *next_ns = slot->request->deadline_ns;
            continue;
        }
        if (i == 0) resp_forget(&connection->reader);
        /* The rest of a value that is sent in part would come from memory that is not ours. */
        if (slot->request == connection->put) cut = true;
        valkey_append(&late, slot->request);
        slot->request = NULL;
    }
    if (cut) valkey_disconnect(connection, KVT_E_GONE);
    while ((request = valkey_take(&late)) != NULL)
        connection_give_up(connection, request, up ? request->kind : REMOTE_CAUSE_CONNECTION,
                           now_ns);
    if (connection->state == VALKEY_DOWN || connection->state == VALKEY_UP) return;
    const uint64_t end_ns = connection->began_ns + connection->node->client->config.connect_ns;
    if (now_ns >= end_ns)
        connection_fail(connection, KVT_E_GONE,
                        connection->state == VALKEY_RESOLVING ? "has no address in time"
                                                              : "does not answer");
    else if (end_ns < *next_ns)
        *next_ns = end_ns;
}
