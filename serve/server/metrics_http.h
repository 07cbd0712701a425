/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metrics_http.h - a store's metrics and health for whoever scrapes them: HTTP/1.1, GET and HEAD of
 * /metrics (Prometheus text) and of /health (200 when all is in order, else 503 with a line for
 * each item of kvt_health_get). One thread of its own; an answer closes its connection.
 *
 * It is no web server: no TLS, no user is asked who he is. An address beside loopback is for a
 * network that may read all names and figures of the store.
 *
 * Thread rule: open and close from one thread.
 */
#ifndef SERVE_SERVER_METRICS_HTTP_H
#define SERVE_SERVER_METRICS_HTTP_H

#include <kvterrace/kvterrace.h>
#include <kvterrace/watch.h>

typedef struct server_http server_http;

/*
 * Listens and answers until it is closed.
 *   address   "127.0.0.1:9100", "[::1]:9100", or a port alone, of 127.0.0.1; port 0: any free one
 *   message   one line for a person after a failure
 * KVT_OK; KVT_E_ARGUMENT (no address); KVT_E_LOCKED (the port is in use); KVT_E_IO; KVT_E_MEMORY;
 * KVT_E_THREAD. The store stays the caller's and open until server_http_close.
 */
KVT_NODISCARD kvt_status server_http_open(kvt_store *store, const char *address,
                                          server_http **http_out, char *message,
                                          size_t message_size);

/* Where it listens, as text: with the port that it got. */
const char *server_http_address(const server_http *http);

/* Ends it and its connections. NULL is allowed. */
void server_http_close(server_http *http);

#endif
