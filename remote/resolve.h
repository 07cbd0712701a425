/* SPDX-License-Identifier: Apache-2.0 */
/*
 * resolve.h - the address of a host's name, without waiting for a name server.
 *
 * Thread rule: a resolution belongs to one thread; its work is done on a detached one.
 */
#ifndef REMOTE_RESOLVE_H
#define REMOTE_RESOLVE_H

#include "remote/client.h"

#include <netdb.h>

typedef struct remote_resolution remote_resolution;

/* Splits "host:port" or "[v6]:port". False: it is neither. */
bool remote_split(const char *address, size_t bytes, char host[NI_MAXHOST], char port[8]);

/* The fault of a list of addresses, with commas or blanks between; NULL: there is none. A text
 * without the list's words, which may hold a secret. NULL is an empty list. */
const char *remote_addresses_fault(const char *addresses, bool cluster);

/* Begins. wake_fd: an eventfd that gets a word when it is over; it is duplicated. NULL: no memory.
 */
remote_resolution *remote_resolve(const char *host, const char *port, int wake_fd);

/* The numeric address without a thread, or NULL; the caller frees it with freeaddrinfo. */
struct addrinfo *remote_resolve_now(const char *host, const char *port);

/* KVT_QUEUED: not yet. KVT_OK: *found_out is the caller's. KVT_E_GONE: there is none. */
kvt_status remote_resolved(remote_resolution *resolution, struct addrinfo **found_out);

/* Lets a resolution go, over or not. NULL is allowed. */
void remote_resolution_leave(remote_resolution *resolution);

#endif
