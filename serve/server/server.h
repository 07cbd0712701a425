/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server.h - lends a store to other processes of the host (docs/SERVE.md).
 *
 *     server_options options = {.path = "store.sock"};
 *     server *lends;
 *     kvt_status status = server_open(store, &options, &lends, message, sizeof message);
 *     if (status == KVT_OK) status = server_run(lends);    until server_stop, and its end
 *     server_close(lends);
 *
 * Thread rule: one server_run; server_stop from any thread or signal handler.
 */
#ifndef SERVE_SERVER_SERVER_H
#define SERVE_SERVER_SERVER_H

#include <kvterrace/kvterrace.h>
#include <sys/types.h>

typedef struct server server;

/* Zero: the defaults. Read during server_open. */
typedef struct server_options {
    const char *path;   /* of the socket */
    mode_t mode;        /* of it; 0 = 0600 */
    const gid_t *group; /* of it; NULL: as the system gives it */
    const uid_t *users; /* who may connect, beside the operators; NULL: this process's user */
    size_t user_count;
    const uid_t *operators; /* who may change what others have, or see it: clear, maintain, tenants,
                               spaces, devices, observe, list, events; NULL: this process's user
                               and root */
    size_t operator_count;
    uint32_t sessions;         /* at most; 0 = 64; at most 1024 */
    uint32_t depth;            /* entries of a channel's ring, at most; 0 = 1024 */
    uint64_t registered_bytes; /* of a client, together; 0 = 2^40 */
    uint64_t staging_bytes;    /* the same; 0 = 256 MiB */
    uint64_t in_flight_bytes;  /* of KV of gets, puts and loads, of all clients; 0 = 128 MiB. While
                                  n of them have some, each has about an nth, or one request a
                                  channel */
    uint32_t leave_ms; /* after server_stop: how long requests under way may take; 0 = 2000 */
} server_options;

/* Listens; clients that connect wait for server_run. The store may be NULL until server_lend, and
 * stays the caller's and open until server_close; its put_staging_bytes are
 * above 0, because a client may change what it puts while the put runs. SIGUSR2 of the process gets
 * a handler that does nothing: it ends waits at bells that clients have spoilt; SIGBUS one
 * for accesses to regions (region_guard.h). KVT_OK;
 * KVT_E_ARGUMENT; KVT_E_MEMORY; what wire_listen says. message: one line after a failure. */
KVT_NODISCARD kvt_status server_open(kvt_store *store, const server_options *options,
                                     server **server_out, char *message, size_t message_size);

/* Names the store of a server that was opened without one, before server_run. */
void server_lend(server *lends, kvt_store *store);

/* Serves until server_stop. Then no client connects any more, those that are there are told, and
 * a session ends when none of its requests is under way, or after leave_ms; a flush, persist or
 * clear that has begun goes on to its end. KVT_OK; KVT_E_IO. */
KVT_NODISCARD kvt_status server_run(server *lends);

/* Makes server_run leave and return. */
void server_stop(server *lends);

/* Has the server that listens at a path leave, as by SIGTERM, and waits until its process has
 * ended: its store is closed then. KVT_OK, also when nobody listens there; KVT_E_READ_ONLY (it is
 * another user's); KVT_E_TIMEOUT; KVT_E_UNSUPPORTED (its process is not to be known here);
 * KVT_E_ARGUMENT. message: one line after a failure. Blocking. */
KVT_NODISCARD kvt_status server_drain(const char *path, int timeout_ms, char *message,
                                      size_t message_size);

/* Sessions now. */
uint32_t server_sessions(server *lends);

/* Removes the socket and frees the server, which does not run. NULL is allowed. */
void server_close(server *lends);

#endif
