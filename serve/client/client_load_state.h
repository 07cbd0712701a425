/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client_load_state.h - the layered loads of a channel, and how far they are: by a state in the
 * channel's area, which the server writes (docs/SERVE.md, Layered loads).
 *
 *     made -> begun -> ended
 *               \-> lost, with the connection or the queue -> ended
 *
 * Thread rule: all but `complete`, `lost` and the area's words is under the channel's lock, as are
 * the calls here. The area of a load stays mapped until its end or its queue's close.
 */
#ifndef SERVE_CLIENT_CLIENT_LOAD_STATE_H
#define SERVE_CLIENT_CLIENT_LOAD_STATE_H

#include "serve/client/client_internal.h"
#include "serve/wire/load_records.h"

struct client_load {
    const base_load_calls *elsewhere; /* first, as in every handle */
    uint32_t forks;
    client_channel *channel; /* NULL: its queue was closed */
    client_load *next;       /* of the channel's */
    client_request room;     /* of its state */
    wire_load_state *state;  /* NULL: it has no room */
    wire_load asked;
    size_t count;
    uint64_t regions; /* bits of those that it names */
    bool begun;       /* the server has it */
    atomic_bool lost; /* and its state is of no use any more */
    _Atomic uint32_t complete;
    uint32_t total;
    bool reads, empty;
    int8_t *statuses; /* once it is lost or has ended */
    kvt_load_announced *announced;
    void *announced_context;
    uint32_t announced_layers;
    bool announced_empty, calling;
};

/* Takes over how far a load is. KVT_OK, *moved is set when it is further; KVT_E_CORRUPT: no server
 * writes this. */
KVT_NODISCARD kvt_status client_load_take(client_load *load, bool *moved);

/* Keeps what is known of a load. Nothing of its state is looked at afterwards. */
void client_load_settle(client_load *load);

/* An entry's status, as far as it is known. Takes no lock. */
KVT_NODISCARD kvt_status client_load_status(const client_load *load, size_t index);

/* The same of all loads of a channel: how far they are; and that the connection is lost. */
KVT_NODISCARD kvt_status client_loads_take(client_channel *channel, bool *moved);
void client_loads_lose(client_channel *channel);

/* Calls those that want to be told of layers; the lock is let go meanwhile. */
void client_loads_announce(client_channel *channel);

/* Whether an open load names a region, by the server's number; whether there is an open one. */
bool client_loads_name(const client_channel *channel, uint32_t region);
bool client_loads_are_open(const client_channel *channel);

#endif
