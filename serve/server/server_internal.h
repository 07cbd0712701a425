/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server_internal.h - sessions of a server. A channel's own state is in channel_internal.h.
 *
 * Thread rule: a session belongs to its thread, but for its regions and leases, which `lock`
 * guards.
 */
#ifndef SERVE_SERVER_SERVER_INTERNAL_H
#define SERVE_SERVER_SERVER_INTERNAL_H

#include "serve/server/server.h"
#include "serve/wire/channel_entries.h"
#include "serve/wire/peer_socket.h"
#include "serve/wire/request_records.h"

#include <kvterrace/queue.h>
#include <kvterrace/watch.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>

#define SERVER_CHANNELS     8u
#define SERVER_PASSES       16u
#define SERVER_RECORD_BYTES (1u << 20)           /* of an argument record, at most */
#define SERVER_AREA_BYTES   (UINT64_C(64) << 20) /* of a channel's arguments, at most */
#define SERVER_HELLO_MS     5000
#define SERVER_SIGNAL       SIGUSR2

typedef struct server_session server_session;

typedef struct server_channel server_channel;

/* A pass that a channel has begun; number 0: the place is free. */
typedef struct server_pass {
    uint64_t number; /* as of leases */
    uint64_t store_number;
    const server_channel *channel;
} server_pass;

/* A lease that a channel has begun. */
typedef struct server_lease {
    struct server_lease *next;
    const server_channel *channel;
    uint64_t number;       /* that the client knows */
    uint64_t store_number; /* that it has in the store */
    uint64_t until_ns;
    uint32_t key_count;
} server_lease;

struct server_session {
    server *lends;
    int socket;
    int wake;    /* an eventfd that a channel writes when it ends by itself */
    int process; /* a pidfd of the client's; -1: the socket alone says when it ends */
    uint32_t protocol;
    bool is_operator; /* may change what others have */
    bool told;        /* that the server leaves */
    uint32_t quiet;   /* looks since then at which no request was under way */
    int results_memory;
    kvt_events *events;      /* the session's reader; NULL: none */
    bool events_told;        /* that events wait, since the client last asked for them */
    uint64_t flush_failures; /* of the server's, that this session was told or began after */
    void *results; /* its mapping: results that are too large for a message; NULL: none yet */
    pthread_t thread;
    bool taken;        /* main's: the place holds a session */
    atomic_bool ended; /* its thread touches nothing any more; main joins it */
    pthread_mutex_t lock;
    wire_region regions[WIRE_REGIONS_MAX];
    uint32_t uses[WIRE_REGIONS_MAX]; /* requests that name it */
    server_lease *leases;            /* under `lock`, with what follows to number_last */
    uint32_t lease_count, lease_keys;
    server_pass passes[SERVER_PASSES];
    uint64_t
        number_last; /* of leases and passes; from the clock on, so that a client's next session
                             has others */
    uint64_t in_flight_bytes; /* of KV that its channels have given to queues; under `lock` */
    uint64_t fair_bytes;      /* server.fair_bytes, as far as the session has kept up with it */
    uint64_t registered_bytes;
    uint64_t staging_bytes; /* of its channels */
    server_channel *channels[SERVER_CHANNELS];
};

struct server {
    kvt_store *store;
    wire_listener listener;
    uid_t *users; /* who may connect; the last operator_count of them may change things */
    size_t user_count, operator_count;
    uint32_t session_most, depth, leave_ms;
    uint64_t registered_bytes, staging_bytes; /* of a client */
    uint64_t in_flight_bytes;                 /* of all clients */
    _Atomic uint32_t busy;                    /* sessions with bytes in flight */
    _Atomic uint64_t fair_bytes; /* that one which was always busy would have got by now */
    uint64_t instance;
    _Atomic uint64_t leave_ns; /* when sessions end, once `leave` has rung */
    int stop;                  /* an eventfd that is never read, as the next two: main stops */
    int leave;                 /* sessions tell their clients, and end when nothing is under way */
    int end;                   /* sessions end */
    int reaps;                 /* one that each session writes at its end */
    server_session *sessions;
    _Atomic uint32_t session_count;
    _Atomic uint64_t flush_failures; /* flushes that have failed, whoever's */
    _Atomic int32_t flush_failure;   /* the last one's status */
};

/* Runs a session on a thread of its own: `argument` is a server_session with lends and socket. */
void *server_session_run(void *argument);

/* Carries out a WIRE_CALL and sends its answer. KVT_OK; what wire_send says. */
KVT_NODISCARD kvt_status server_call(server_session *session, const wire_message *asked);

/* Opens a channel as asked, whose thread serves from then on. The answer is complete but for its
 * number; of the descriptors that go with it, the area is the caller's to close. KVT_OK;
 * KVT_E_ARGUMENT; KVT_E_SPACE (staging beyond the session's limit); KVT_E_MEMORY; KVT_E_THREAD. */
KVT_NODISCARD kvt_status server_channel_open(server_session *session,
                                             const wire_open_channel *asked, wire_channel *answer,
                                             int descriptors[3], server_channel **channel_out);

/* Whether no request of a channel is under way. The session's thread. */
bool server_channel_is_quiet(const server_channel *channel);

/* Ends a channel: cancels what its queue has, and frees it. */
void server_channel_close(server_channel *channel);

#endif
