/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote_server.h - a server of RESP on a thread of its own, which answers what a test says.
 */
#ifndef TESTS_REMOTE_SERVER_H
#define TESTS_REMOTE_SERVER_H

#include "remote_support.h"

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/socket.h>
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
    _Atomic(const char *) memory; /* to INFO; NULL: as to the others */
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

/* An answer of the server to a command. */
static inline const char *server_serves(const char *bytes, size_t got)
{
    if (memmem(bytes, got, "\r\nGET\r\n", 7) != NULL) return "$5\r\nhello\r\n";
    return memmem(bytes, got, "\r\nSET\r\n", 7) != NULL ? "+OK\r\n" : ":1\r\n";
}

/* Answers each INFO and EXISTS that has come. False: the connection is over. */
static inline bool server_tell_memory(const server *at, int socket, const char *bytes, size_t got)
{
    const char *const end = bytes + got;
    for (const char *next = bytes;; next += 4) {
        const char *info = memmem(next, (size_t)(end - next), "INFO", 4);
        const char *exists = memmem(next, (size_t)(end - next), "EXISTS", 6);
        if (info == NULL && exists == NULL) return true;
        const bool asks = exists == NULL || (info != NULL && info < exists);
        const char *answer = asks ? atomic_load(&at->memory) : ":1\r\n";
        if (send(socket, answer, strlen(answer), MSG_NOSIGNAL) <= 0) return false;
        next = asks ? info : exists;
    }
}

/* Sends the next byte of an answer that drips. False: the connection is over. */
static inline bool server_drip(const server *at, server_talk *talk)
{
    if (talk->socket <= 0 || talk->dripped == at->answer_bytes) return true;
    return send(talk->socket, at->answer + talk->dripped++, 1, MSG_NOSIGNAL) == 1;
}

/* Answers what has come. False: the connection is over. A drip goes on through all commands, so
 * that the answer stays a sound one however slowly it comes. */
static inline bool server_answer(server *at, server_talk *talk)
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
    if (atomic_load(&at->memory) != NULL && talk->logged_in)
        return server_tell_memory(at, talk->socket, bytes, (size_t)got);
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

static inline void *server_main(void *argument)
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

static inline void server_start(server *at)
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

static inline void server_stop(server *at)
{
    atomic_store(&at->ends, true);
    pthread_join(at->thread, NULL);
    close(at->listening);
}

static inline remote_client *open_client(const server *at, remote_config config)
{
    char address[64], message[200];
    remote_client *client = NULL;
    snprintf(address, sizeof address, "127.0.0.1:%u", at->port);
    config.backend = "valkey";
    config.addresses = address;
    assert_ok(remote_open(&config, &client, message, sizeof message));
    return client;
}

#endif
