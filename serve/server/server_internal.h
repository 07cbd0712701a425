/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server_internal.h - sessions and channels of a server.
 *
 * Thread rule: a session belongs to its thread, but for its regions, which `lock` guards; a channel
 * belongs to its thread, but for what its comments say.
 */
#ifndef SERVE_SERVER_SERVER_INTERNAL_H
#define SERVE_SERVER_SERVER_INTERNAL_H

#include "serve/server/server.h"
#include "serve/wire/channel_entries.h"
#include "serve/wire/peer_socket.h"
#include "serve/wire/request_records.h"

#include <kvterrace/queue.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>

#define SERVER_CHANNELS     8u
#define SERVER_RECORD_BYTES 65536u               /* of an argument record, at most */
#define SERVER_AREA_BYTES   (UINT64_C(64) << 20) /* of a channel's arguments, at most */
#define SERVER_HELLO_MS     5000
#define SERVER_SIGNAL       SIGUSR2

typedef struct server_session server_session;

/* A get or a put that the queue has. */
typedef struct channel_request {
    wire_request request;
    wire_record record;
    void *memory; /* the record's copy and its addresses */
    uint32_t next_free;
} channel_request;

typedef struct server_channel {
    server_session *session;
    kvt_queue *queue;
    wire_channel places; /* of its area */
    char *area;
    base_ring submissions, completions;
    _Atomic uint64_t claimed;  /* of completions */
    uint64_t next;             /* submission */
    int bells[2];              /* ours, the client's */
    int stop, poller;          /* descriptors of our own; stop: written by the session's thread */
    channel_request *requests; /* as many as entries */
    uint32_t first_free, in_flight;
    bool posted;      /* since the client's bell was rung */
    atomic_bool gone; /* its thread touches nothing any more; read by the session's */
    pthread_t thread;
} server_channel;

struct server_session {
    server *lends;
    int socket;
    int wake; /* an eventfd that a channel writes when it ends by itself */
    uint32_t protocol;
    pthread_t thread;
    bool taken;        /* main's: the place holds a session */
    atomic_bool ended; /* its thread touches nothing any more; main joins it */
    pthread_mutex_t lock;
    wire_region regions[WIRE_REGIONS_MAX];
    uint32_t uses[WIRE_REGIONS_MAX]; /* requests that name it */
    uint64_t registered_bytes;
    server_channel *channels[SERVER_CHANNELS];
};

struct server {
    kvt_store *store;
    wire_listener listener;
    uid_t *users;
    size_t user_count;
    uint32_t session_most, depth;
    uint64_t registered_bytes;
    uint64_t instance;
    int stop;  /* an eventfd that is never read */
    int reaps; /* one that each session writes at its end */
    server_session *sessions;
    _Atomic uint32_t session_count;
};

/* Runs a session on a thread of its own: `argument` is a server_session with lends and socket. */
void *server_session_run(void *argument);

/* Opens a channel as asked, whose thread serves from then on. The answer is complete but for its
 * number; of the descriptors that go with it, the area is the caller's to close. KVT_OK;
 * KVT_E_ARGUMENT; KVT_E_MEMORY; KVT_E_THREAD. */
KVT_NODISCARD kvt_status server_channel_open(server_session *session,
                                             const wire_open_channel *asked, wire_channel *answer,
                                             int descriptors[3], server_channel **channel_out);

/* Ends a channel: cancels what its queue has, and frees it. */
void server_channel_close(server_channel *channel);

#endif
