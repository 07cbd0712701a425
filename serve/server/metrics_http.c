/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metrics_http.c - one thread that polls a listening socket and a few connections. A connection
 * sends a head of at most HTTP_HEAD bytes, gets one answer, and is closed; one that is slower than
 * HTTP_SECONDS is closed before. What a peer sends is looked at as text of a known length.
 */
#include "serve/server/metrics_http.h"

#include "base/clock.h"
#include "base/thread.h"
#include "serve/wire/shared_memory.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define HTTP_PEERS   16u
#define HTTP_HEAD    4096u /* bytes of a request, at most */
#define HTTP_SECONDS 5u
#define HTTP_ITEMS   64u /* lines of /health */

typedef struct http_peer {
    int socket; /* -1: the place is free */
    uint64_t end_ns;
    char head[HTTP_HEAD];
    size_t came;
    char *answer; /* NULL: the head is not whole yet */
    size_t bytes, sent;
    bool done; /* all is sent; what still comes is dropped, until the peer closes */
} http_peer;

struct server_http {
    kvt_store *store;
    int listening, stop;
    char address[128];
    pthread_t thread;
    bool started;
    http_peer peers[HTTP_PEERS];
};

static void peer_close(http_peer *peer)
{
    if (peer->socket >= 0) close(peer->socket);
    free(peer->answer);
    peer->answer = NULL;
    peer->socket = -1;
}

/* Sets a peer's answer: a head, and `body` behind it. Without memory the peer is closed. */
static void peer_answer(http_peer *peer, const char *status, const char *body, size_t bytes,
                        bool head_only)
{
    char head[256];
    const int length = snprintf(head, sizeof head,
                                "HTTP/1.1 %s\r\nContent-Type: text/plain; version=0.0.4; "
                                "charset=utf-8\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n",
                                status, bytes);
    const size_t all = (size_t)length + (head_only ? 0 : bytes);
    peer->answer = malloc(all);
    if (peer->answer == NULL) {
        peer_close(peer);
        return;
    }
    memcpy(peer->answer, head, (size_t)length);
    if (!head_only) memcpy(peer->answer + length, body, bytes);
    peer->bytes = all;
    peer->sent = 0;
}

static void answer_metrics(const server_http *http, http_peer *peer, bool head_only)
{
    const size_t room = kvt_metrics_write(http->store, NULL, 0) + 4096;
    char *text = malloc(room);
    if (text == NULL) {
        peer_close(peer);
        return;
    }
    const size_t bytes = kvt_metrics_write(http->store, text, room);
    peer_answer(peer, "200 OK", text, bytes == 0 ? 0 : (bytes < room ? bytes : room) - 1,
                head_only);
    free(text);
}

static void answer_health(const server_http *http, http_peer *peer, bool head_only)
{
    static const char fine[] = "ok\n";
    kvt_health_item items[HTTP_ITEMS];
    char text[HTTP_ITEMS * 320];
    size_t count = 0, used = 0;
    kvt_status overall = KVT_OK;
    items[0].struct_size = sizeof items[0];
    const kvt_status status = kvt_health_get(http->store, items, HTTP_ITEMS, &count, &overall);
    if (status == KVT_OK && overall == KVT_OK) {
        peer_answer(peer, "200 OK", fine, sizeof fine - 1, head_only);
        return;
    }
    for (size_t i = 0; status == KVT_OK && i < count && i < HTTP_ITEMS; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s: %s\n", items[i].name,
                                 items[i].text);
    peer_answer(peer, "503 Service Unavailable", text, used, head_only);
}

static bool is_word(const char *at, size_t length, const char *word)
{
    return length == strlen(word) && memcmp(at, word, length) == 0;
}

/* Answers a whole head: "METHOD PATH HTTP/1.x", then lines that are not read. */
static void peer_reply(const server_http *http, http_peer *peer)
{
    const char *end = memchr(peer->head, '\r', peer->came);
    const size_t line = end != NULL ? (size_t)(end - peer->head) : peer->came;
    const char *space = memchr(peer->head, ' ', line);
    const size_t method = space != NULL ? (size_t)(space - peer->head) : line;
    const char *path = space != NULL ? space + 1 : peer->head + line;
    const size_t left = line - (size_t)(path - peer->head);
    const char *after = memchr(path, ' ', left);
    const size_t whole = after != NULL ? (size_t)(after - path) : left;
    const char *query = memchr(path, '?', whole);
    const size_t length = query != NULL ? (size_t)(query - path) : whole;
    const bool head_only = is_word(peer->head, method, "HEAD");
    if (after == NULL || left - whole < 9 || memcmp(after + 1, "HTTP/1.", 7) != 0)
        peer_answer(peer, "400 Bad Request", "", 0, false);
    else if (!head_only && !is_word(peer->head, method, "GET"))
        peer_answer(peer, "405 Method Not Allowed\r\nAllow: GET, HEAD", "", 0, false);
    else if (is_word(path, length, "/metrics"))
        answer_metrics(http, peer, head_only);
    else if (is_word(path, length, "/health"))
        answer_health(http, peer, head_only);
    else
        peer_answer(peer, "404 Not Found", "", 0, false);
}

/* Reads what has come. */
static void peer_read(const server_http *http, http_peer *peer)
{
    if (peer->done) peer->came = 0;
    const ssize_t came =
        recv(peer->socket, peer->head + peer->came, sizeof peer->head - peer->came, MSG_DONTWAIT);
    if (came < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (came <= 0) {
        peer_close(peer);
        return;
    }
    if (peer->done) return;
    peer->came += (size_t)came;
    if (memmem(peer->head, peer->came, "\r\n\r\n", 4) != NULL)
        peer_reply(http, peer);
    else if (peer->came == sizeof peer->head)
        peer_answer(peer, "431 Request Header Fields Too Large", "", 0, false);
}

static void peer_write(http_peer *peer)
{
    const ssize_t sent = send(peer->socket, peer->answer + peer->sent, peer->bytes - peer->sent,
                              MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (sent > 0) peer->sent += (size_t)sent;
    if (sent >= 0 && peer->sent < peer->bytes) return;
    /* A close with bytes that nobody has read would reset the connection under the answer. */
    peer->done = true;
    if (sent < 0 || shutdown(peer->socket, SHUT_WR) != 0) peer_close(peer);
}

static bool peer_writes(const http_peer *peer)
{
    return peer->answer != NULL && !peer->done;
}

static void http_accept(server_http *http)
{
    const int socket = accept4(http->listening, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (socket < 0) {
        /* No descriptor is left, perhaps: not at once again. */
        if (errno == EMFILE || errno == ENFILE) base_sleep(100000000);
        return;
    }
    for (uint32_t i = 0; i < HTTP_PEERS; i++) {
        http_peer *peer = &http->peers[i];
        if (peer->socket >= 0) continue;
        peer->socket = socket;
        peer->came = 0;
        peer->done = false;
        peer->end_ns = base_clock_ns() + HTTP_SECONDS * UINT64_C(1000000000);
        return;
    }
    close(socket);
}

static void *http_run(void *argument)
{
    server_http *http = argument;
    for (;;) {
        struct pollfd waits[HTTP_PEERS + 2];
        const uint64_t now_ns = base_clock_ns();
        uint64_t end_ns = UINT64_MAX;
        for (uint32_t i = 0; i < HTTP_PEERS; i++) {
            http_peer *peer = &http->peers[i];
            if (peer->socket >= 0 && peer->end_ns <= now_ns) peer_close(peer);
            waits[i] =
                (struct pollfd){.fd = peer->socket, .events = peer_writes(peer) ? POLLOUT : POLLIN};
            if (peer->socket >= 0 && peer->end_ns < end_ns) end_ns = peer->end_ns;
        }
        waits[HTTP_PEERS] = (struct pollfd){.fd = http->stop, .events = POLLIN};
        waits[HTTP_PEERS + 1] = (struct pollfd){.fd = http->listening, .events = POLLIN};
        const int timeout = end_ns == UINT64_MAX ? -1 : (int)((end_ns - now_ns) / 1000000 + 1);
        if (poll(waits, HTTP_PEERS + 2, timeout) <= 0) continue;
        if (waits[HTTP_PEERS].revents != 0) break;
        for (uint32_t i = 0; i < HTTP_PEERS; i++) {
            if (waits[i].revents == 0) continue;
            if (peer_writes(&http->peers[i]))
                peer_write(&http->peers[i]);
            else
                peer_read(http, &http->peers[i]);
        }
        if (waits[HTTP_PEERS + 1].revents != 0) http_accept(http);
    }
    for (uint32_t i = 0; i < HTTP_PEERS; i++)
        peer_close(&http->peers[i]);
    return NULL;
}

/* ---- open and close ---- */

/* Cuts "HOST:PORT", "[HOST]:PORT" or "PORT". */
static bool address_cut(const char *address, char host[64], char port[8])
{
    const char *colon = strrchr(address, ':');
    const char *number = colon != NULL ? colon + 1 : address;
    const size_t digits = strspn(number, "0123456789");
    if (digits == 0 || digits > 5 || number[digits] != '\0' || strtoul(number, NULL, 10) > 65535)
        return false;
    memcpy(port, number, digits + 1);
    size_t length = colon != NULL ? (size_t)(colon - address) : 0;
    const char *from = address;
    if (length >= 2 && from[0] == '[' && from[length - 1] == ']') {
        from++;
        length -= 2;
    }
    if ((colon != NULL && length == 0) || length >= 64) return false;
    memcpy(host, length > 0 ? from : "127.0.0.1", length > 0 ? length : 10);
    if (length > 0) host[length] = '\0';
    return true;
}

static kvt_status http_listen(server_http *http, const char *address, char *message,
                              size_t message_size)
{
    const struct addrinfo wanted = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV,
                                    .ai_socktype = SOCK_STREAM};
    char host[64], port[8];
    struct addrinfo *found = NULL;
    if (!address_cut(address, host, port) || getaddrinfo(host, port, &wanted, &found) != 0) {
        snprintf(message, message_size, "'%s' is no numeric ADDRESS:PORT", address);
        return KVT_E_ARGUMENT;
    }
    const int one = 1;
    struct sockaddr_storage bound;
    socklen_t length = sizeof bound;
    http->listening = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const bool listens =
        http->listening >= 0 &&
        setsockopt(http->listening, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0 &&
        bind(http->listening, found->ai_addr, found->ai_addrlen) == 0 &&
        listen(http->listening, (int)HTTP_PEERS) == 0 &&
        getsockname(http->listening, (struct sockaddr *)&bound, &length) == 0;
    const int error = errno;
    const bool six = found->ai_family == AF_INET6;
    freeaddrinfo(found);
    if (!listens) {
        snprintf(message, message_size, "%s: %s", address, strerror(error));
        return error == EADDRINUSE ? KVT_E_LOCKED : KVT_E_IO;
    }
    if (getnameinfo((struct sockaddr *)&bound, length, NULL, 0, port, sizeof port,
                    NI_NUMERICSERV) != 0)
        return KVT_E_IO;
    snprintf(http->address, sizeof http->address, six ? "[%s]:%s" : "%s:%s", host, port);
    return KVT_OK;
}

kvt_status server_http_open(kvt_store *store, const char *address, server_http **http_out,
                            char *message, size_t message_size)
{
    server_http *http = calloc(1, sizeof *http);
    *http_out = NULL;
    if (http == NULL) return KVT_E_MEMORY;
    http->store = store;
    http->listening = http->stop = -1;
    for (uint32_t i = 0; i < HTTP_PEERS; i++)
        http->peers[i].socket = -1;
    kvt_status status = http_listen(http, address, message, message_size);
    if (status == KVT_OK) status = wire_bell_make(&http->stop);
    if (status == KVT_OK) status = base_thread_start(&http->thread, http_run, http);
    http->started = status == KVT_OK;
    if (status != KVT_OK)
        server_http_close(http);
    else
        *http_out = http;
    return status;
}

const char *server_http_address(const server_http *http)
{
    return http->address;
}

void server_http_close(server_http *http)
{
    if (http == NULL) return;
    if (http->started) {
        const kvt_status status = wire_bell_ring(http->stop);
        (void)status;
        pthread_join(http->thread, NULL);
    }
    if (http->listening >= 0) close(http->listening);
    if (http->stop >= 0) close(http->stop);
    free(http);
}
