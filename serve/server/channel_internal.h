/* SPDX-License-Identifier: Apache-2.0 */
/*
 * channel_internal.h - one channel: what it has of its area, its queue and its requests.
 *
 * Thread rule: a channel belongs to its thread, but for what its comments say.
 */
#ifndef SERVE_SERVER_CHANNEL_INTERNAL_H
#define SERVE_SERVER_CHANNEL_INTERNAL_H

#include "base/spin.h"
#include "serve/server/server_internal.h"

#define CHANNEL_BATCH   64u /* requests that are given to the queue at once, at most */
#define CHANNEL_CLASSES (KVT_CLASS_BACKGROUND + 1u)

/* A get, a put or a delete. The queue has it, or it is held here: its session has as many bytes in
 * flight as it may. */
typedef struct channel_request {
    wire_request request;
    wire_record record;   /* of a get or a put */
    kvt_get_info info;    /* of a get that asks for it */
    kvt_kept_tokens kept; /* the same; its positions are of our heap, too */
    kvt_request asks;     /* of the queue */
    uint64_t bytes;       /* of its KV, or a guess */
    bool held;            /* else its bytes are in flight */
    uint32_t next_held;
    void *memory;         /* the record's copy and its addresses */
    uint64_t batch;       /* of the client */
    uint64_t queue_batch; /* of the queue; several may have a part of a client's; 0: not yet */
    bool open;
    uint32_t next_free;
} channel_request;

typedef struct channel_load channel_load;

struct server_channel {
    server_session *session;
    kvt_queue *queue;
    wire_channel places; /* of its area */
    char *area;
    wire_region staging; /* of it */
    base_ring submissions, completions;
    _Atomic uint64_t claimed;  /* of completions */
    uint64_t next;             /* submission */
    base_spin spin;            /* before it sleeps without requests in flight */
    int bells[2];              /* ours, the client's */
    int stop, poller;          /* descriptors of our own; stop: written by the session's thread, */
    atomic_bool stops;         /* after this */
    bool helps;                /* the queue may have gets that this thread can carry out */
    channel_request *requests; /* as many as entries */
    uint32_t first_free;
    _Atomic uint32_t in_flight; /* requests that are not completed; read by the session's thread */
    uint64_t copied_bytes;      /* of records of the requests in flight */
    uint64_t batch;             /* of the client: counts those that have begun */
    struct {
        uint32_t first, last, count; /* requests that are held, in their order, by class */
    } held[CHANNEL_CLASSES];
    uint32_t begun; /* that the queue has, or that are in `waiting`; and loads that read */
    kvt_request waiting[CHANNEL_BATCH]; /* for the queue, all of one batch */
    uint32_t waiting_count;
    channel_load *loads;         /* that have not ended */
    uint64_t load_last;          /* number */
    uint64_t load_bytes;         /* of their records */
    _Atomic uint32_t load_count; /* read by the session's thread */
    int nudge;                   /* an eventfd that is never read: a load has moved */
    bool posted;                 /* since the client's bell was rung */
    atomic_bool gone;            /* its thread touches nothing any more; read by the session's */
    pthread_t thread;
};

/* Posts a completion, for which an entry is free: each request that was taken has one kept for it.
 * KVT_OK; KVT_E_CORRUPT. */
KVT_NODISCARD kvt_status server_channel_post(server_channel *channel, const wire_completion *done);

/* Posts one that says no more than a status. */
KVT_NODISCARD kvt_status server_channel_answer(server_channel *channel, const wire_request *request,
                                               kvt_status status);

/* The record of a request in the client's memory: copied once, or written. */
static inline char *channel_record(const server_channel *channel, const wire_request *request)
{
    return channel->area + channel->places.arguments + request->argument;
}

/* Wakes the channel's thread. Any thread. */
void server_channel_nudge(server_channel *channel);

/* ---- the session's share (channel_share.c) ---- */

/* Whether so many bytes of KV may be read or written now: counted as in flight then, until
 * server_channel_arrives. They may where the session's share has room, with `always`, and where the
 * channel has nothing in flight.
 *   begins   with them a request or a load has something in flight */
bool server_channel_admits(server_channel *channel, uint64_t bytes, bool always, bool begins);

/* So many bytes have come; ends: with them the request or the load has nothing in flight. */
void server_channel_arrives(server_channel *channel, uint64_t bytes, bool ends);

/* The bytes of KV behind a view of an entry. Where the view does not say it the store does: an
 * entry's size follows from no other's. 0 of a miss. */
uint64_t server_channel_view_bytes(server_channel *channel, const kvt_key *key,
                                   const kvt_view *view);

/* ---- requests of the queue (channel_requests.c) ---- */

/* Makes the queue's request of a get, a put or a delete, which waits for server_channel_submit, or
 * is held. KVT_OK: or it was answered; KVT_E_CORRUPT as server_channel_post. */
KVT_NODISCARD kvt_status server_channel_begin(server_channel *channel, const wire_request *request);

/* Gives the queue the requests that wait; when it refuses them they are answered. KVT_OK;
 * KVT_E_CORRUPT. */
KVT_NODISCARD kvt_status server_channel_submit(server_channel *channel);

/* Gives the queue what is held, as far as there is room in flight: the session's share, and one
 * request of each channel in any case, whose completion brings the thread back here. A request past
 * its deadline needs no room: the queue ends it. Nothing waits for server_channel_submit before or
 * afterwards. *until_ns_out: the next such deadline. KVT_OK; KVT_E_CORRUPT. */
KVT_NODISCARD kvt_status server_channel_release(server_channel *channel, uint64_t *until_ns_out);

/* Calls off the batch of the open request of that number, when nothing waits for
 * server_channel_submit. KVT_OK; KVT_MISS. */
KVT_NODISCARD kvt_status server_channel_cancel(server_channel *channel, uint64_t number);

/* Posts what the queue has completed. KVT_OK, *moved_out when there was something;
 * KVT_E_CORRUPT. */
KVT_NODISCARD kvt_status server_channel_drain(server_channel *channel, bool *moved_out);

/* Notes that a request or a load no longer names regions, by their bits. */
void server_channel_regions_leave(server_channel *channel, uint64_t regions);

/* Frees what requests in flight have; the queue is closed. */
void server_channel_forget_all(server_channel *channel);

/* ---- calls that wait for nothing (channel_calls.c) ---- */

/* Carries out a request of another kind and posts its completion. KVT_OK; KVT_E_CORRUPT. */
KVT_NODISCARD kvt_status server_channel_call(server_channel *channel, const wire_request *request);

/* Forgets the leases that a channel has begun; its queue's close has ended them. */
void server_channel_leases_forget(server_channel *channel);

/* ---- passes (channel_passes.c) ---- */

/* Begin a pass, note its layer and end it. What kvt_pass_begin, kvt_pass_layer and kvt_pass_end
 * say; KVT_E_ARGUMENT (the record); KVT_BUSY (the session has as many as it may). */
KVT_NODISCARD kvt_status server_channel_pass_begin(server_channel *channel, const void *record,
                                                   size_t bytes, uint64_t *number_out);
KVT_NODISCARD kvt_status server_channel_pass_layer(server_channel *channel, const void *record,
                                                   size_t bytes);
KVT_NODISCARD kvt_status server_channel_pass_end(server_channel *channel, uint64_t number);

/* The store's number of a session's pass; 0: there is none. */
uint64_t server_channel_pass(server_channel *channel, uint64_t number);

/* Ends the passes that a channel has begun. */
void server_channel_passes_end(server_channel *channel);

/* ---- layered loads (channel_loads.c) ---- */

/* Takes a record of a load, a copy that nobody else writes, and begins the load with the last one.
 * KVT_OK; what kvt_load_begin says; KVT_E_ARGUMENT (the record); KVT_BUSY (too many are open). With
 * another status than KVT_OK the load is gone. */
KVT_NODISCARD kvt_status server_channel_load_begin(server_channel *channel, const void *record,
                                                   size_t bytes, uint64_t *number_out);

/* Ends a load, begun or not. KVT_OK; KVT_MISS (there is none of that number). */
KVT_NODISCARD kvt_status server_channel_load_end(server_channel *channel, uint64_t number,
                                                 uint64_t *read_out, uint64_t *shared_out);

/* Whether a load waits for the session's share: gets and puts wait behind it. */
bool server_channel_loads_wait(const server_channel *channel);

/* Begins loads that have waited, passes on what the client has released, and what was announced.
 * True: there was something. */
bool server_channel_loads_turn(server_channel *channel);

/* How long the channel's thread may sleep until server_channel_loads_check, in ms; -1: for ever. */
int server_channel_loads_pause(const server_channel *channel);

/* Has loads give up reads of devices that are out of service. */
void server_channel_loads_check(server_channel *channel);

/* Ends all loads, before the queue closes. */
void server_channel_loads_end(server_channel *channel);

#endif
