/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client_transfer.h - one get or put through a channel: straight from and to regions, or packed
 * through staging, with one copy. A get into a view that is not packed asks first what is stored,
 * because the entry's layout says where its bytes go.
 *
 *     client_transfer_init_get(&transfer, key, view, ..)          what the caller wants
 *     client_transfer_enter(channel, &transfer)         under the channel's lock
 *     client_transfer_prepare(channel, &transfer)       room and record; under the lock
 *     client_transfer_fill(&transfer)                   a put's copy into staging
 *     client_request_post(channel, &transfer.request)
 *     ... it completes ...
 *     client_transfer_finish(&transfer)       a get's copy out of it; KVT_QUEUED: once more
 *     client_transfer_end(channel, &transfer)           under the lock
 *
 * Thread rule: one thread at a time for each transfer; prepare and end under the channel's lock.
 */
#ifndef SERVE_CLIENT_CLIENT_TRANSFER_H
#define SERVE_CLIENT_CLIENT_TRANSFER_H

#include "serve/client/client_internal.h"

typedef enum transfer_step {
    TRANSFER_NEW = 0,
    TRANSFER_DIRECT = 1,   /* its view lies in regions */
    TRANSFER_STAGED = 2,   /* packed, in staging */
    TRANSFER_DESCRIBES = 3 /* a get that asks for the entry's layout */
} transfer_step;

struct client_transfer {
    client_request request;      /* first */
    client_transfer *next, **at; /* of the channel's; at NULL: in no list */
    transfer_step step;
    uint32_t urgency;
    const kvt_entry *entry; /* a put's, else NULL; the caller's */
    const kvt_view *view;   /* the caller's, or `whole` */
    kvt_view whole;
    kvt_entry entry_whole;
    wire_get get;
    kvt_get_info *info; /* may be NULL */
    kvt_layout layout;  /* of the entry, */
    kvt_layout *groups; /* or of its groups; allocated */
    uint32_t group_count;
    uint64_t packed_bytes; /* of the entry */
    bool misses;           /* nothing is stored: the get is made to be counted */
};

/* Whether a view says how many addresses it has, and all lie in regions, whose bits are added.
 * Under the channel's lock. */
bool client_view_is_direct(const client_channel *channel, const kvt_view *view, uint64_t *regions);

/* What a caller gave, checked as far as that can be done here; all of it is borrowed until the end.
 * KVT_OK; KVT_E_ARGUMENT; KVT_E_UNSUPPORTED. */
KVT_NODISCARD kvt_status client_transfer_init_get(client_transfer *transfer, const kvt_key *key,
                                                  const kvt_view *view, uint64_t deadline_ns,
                                                  kvt_get_info *info);
KVT_NODISCARD kvt_status client_transfer_init_put(client_transfer *transfer, const kvt_entry *entry,
                                                  const kvt_view *view, uint64_t deadline_ns);

/* Lists a transfer with its channel, if it is not listed yet, and takes it out. Under the lock. */
void client_transfer_enter(client_channel *channel, client_transfer *transfer);
void client_transfer_leave(client_transfer *transfer);

/* Whether a transfer of the channel may name bytes of a range. Under the channel's lock. */
bool client_transfer_names(const client_channel *channel, const void *memory, uint64_t bytes);

/* Whether the server may write to, or read from, regions for a transfer of the channel. Under the
 * channel's lock. */
bool client_transfer_is_under_way(const client_channel *channel);

/* Takes room and writes the record of the next step. What client_request_room says, and
 * KVT_E_ARGUMENT, KVT_E_UNSUPPORTED, KVT_E_MEMORY for the view: the transfer is done then. */
KVT_NODISCARD kvt_status client_transfer_prepare(client_channel *channel,
                                                 client_transfer *transfer);

void client_transfer_fill(client_transfer *transfer);

/* What has come of its request. KVT_QUEUED: there is another step; else the status of the call. */
KVT_NODISCARD kvt_status client_transfer_finish(client_transfer *transfer);

/* Carries out what is left of a transfer through the store's channel, and ends it. KVT_E_TIMEOUT:
 * it found no room until the deadline; else the status of the call. client_calls.c */
KVT_NODISCARD kvt_status client_transfer_run(client_store *store, client_transfer *transfer,
                                             uint64_t deadline_ns);

/* Gives everything back. */
void client_transfer_end(client_channel *channel, client_transfer *transfer);

#endif
