/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client_internal.h - a store that a server lends: its connection, its channels, and requests on
 * their way (docs/SERVE.md, The client).
 *
 *     client_link.c       the connection: hello, questions by the socket, loss and return
 *     client_regions.c    memory that the server has mapped, too
 *     client_channel.c    rings and area of one channel: room, posting, taking, waiting
 *     client_transfer.c   one get or put through a channel: its record, staging, copies
 *     client_under_way.c  the list of those that have begun and not ended
 *     client_calls.c      the blocking calls, by the channel of the store
 *     client_prefix.c     gets of a prefix, all under way at once
 *     client_connect.c    makes and ends a store; which calls stand for which public function
 *     client_control.c    the calls by the socket
 *     client_queue.c      a queue, by a channel of its own
 *     client_loads.c      layered loads of a queue
 *     client_load_state.c how far they are
 *     client_passes.c     passes and bases
 *     client_events.c     a reader of events, by a connection of its own
 *
 * Lock order: client_store.lock, then one client_channel.lock. No lock is held over a copy of KV,
 * nor over a wait but for an answer of the server's to a question by the socket.
 */
#ifndef SERVE_CLIENT_CLIENT_INTERNAL_H
#define SERVE_CLIENT_CLIENT_INTERNAL_H

#include "base/fork_guard.h"
#include "base/handle_calls.h"
#include "base/spin.h"
#include "serve/client/client_range.h"
#include "serve/wire/messages.h"
#include "serve/wire/pending.h"
#include "serve/wire/request_records.h"

#include <kvterrace/connect.h>
#include <pthread.h>
#include <stdatomic.h>

#define CLIENT_SPIN_NS        200000u /* at most: as long as a get of 1 MiB takes a thread anyhow */
#define CLIENT_TEXTS          64u
#define CLIENT_PAUSE_FIRST_NS UINT64_C(10000000)  /* before a lost server is looked for again */
#define CLIENT_PAUSE_LAST_NS  UINT64_C(100000000) /* the same after several looks */

/* What waits for a server that is gone looks for it so often; the pauses above bound how often that
 * is a connection. */
#define CLIENT_LOOK_NS 5000000

typedef struct client_channel client_channel;
typedef struct client_request client_request;
typedef struct client_transfer client_transfer;
typedef struct client_load client_load;

/* The memory and bells of a channel, as of one connection. It goes when its channel has left it and
 * no request holds a part of it. */
typedef struct client_area {
    char *memory;
    wire_channel places;
    base_ring submissions, completions;
    _Atomic uint64_t claimed; /* of submissions */
    uint64_t next;            /* completion */
    int bells[2];             /* the server's, ours */
    wire_pending pending;
    client_request **open; /* by the places of pending */
    client_range arguments, staging;
    uint32_t users; /* the channel, requests with parts, and a thread that sleeps at the bell */
} client_area;

/* One channel. All under its lock. */
struct client_channel {
    struct client_store *store;
    client_channel *next; /* of the store's; under store->lock */
    pthread_mutex_t lock;
    pthread_cond_t arrived;     /* completions, room, an area, the end of an area */
    client_area *area;          /* NULL: there is no connection */
    uint32_t number;            /* the server's */
    uint32_t entries;           /* of the rings */
    uint64_t staging_bytes;     /* asked for */
    client_transfer *transfers; /* gets and puts that have begun and not ended */
    client_load *loads;         /* that have not ended */
    uint32_t roomless;          /* threads that wait for parts of the area */
    bool reading;               /* a thread looks and sleeps at the bell, for all */
    base_spin spin;             /* the reading thread's */
    int poller;                 /* of a queue's channel, which watches bell and socket; else -1 */
    /* Told of each request that has completed and is not waited for, under the lock. */
    void (*completed)(client_channel *channel, client_request *request);
    wire_region regions[WIRE_REGIONS_MAX + 1]; /* the last one is the area's staging */
};

/* A request that is made, posted or completed. */
struct client_request {
    client_area *area; /* whose parts it holds; NULL: none */
    uint64_t record_at, record_bytes, staging_at, staging_bytes;
    wire_request body;    /* argument_bytes and argument as its maker says, if it has no record */
    wire_completion done; /* once completed */
    uint64_t position;    /* in the ring, once posted */
    bool posted, completed;
    bool untaken; /* it completed because its connection was lost, before the server had taken it */
    bool waited;  /* by a thread: the channel's owner is not told of it */
    bool abandoned; /* nobody waits any more: it is a copy of its own, which ends by itself */
};

typedef struct client_store {
    const base_store_calls *elsewhere; /* first, as in every handle */
    uint32_t forks;
    _Atomic uint32_t holders; /* the owner, until kvt_store_close, and each queue */
    char path[108];
    char name[64];
    uint32_t *users;
    uint32_t user_count;

    pthread_mutex_t file_lock; /* kvt_watch_write's */
    pthread_mutex_t lock;      /* of all that follows */
    int socket;                /* -1: none */
    bool dead;                 /* the socket is of no use any more */
    atomic_bool
        leaving; /* the server takes no more: nothing is posted until there is another one */
    bool closed;
    uint32_t protocol, number; /* of the last question */
    bool greets;               /* hello is sent, and not answered yet */
    uint64_t greets_until_ns, retry_ns, pause_ns;
    uint64_t answer_by_ns; /* until when answers are waited for: a bound while it connects */
    uint64_t patience_ns;  /* that calls wait for a server; fixed */
    uint64_t answer_ns;    /* that they wait for its answer; fixed */
    uint32_t owed;         /* the oldest question whose answer came too late so far; 0: none */
    int poller;            /* an epoll that watches the socket; -1: none; fixed */
    wire_welcome limits;   /* of the server that is connected, or was */
    _Atomic uint32_t record_bytes; /* limits.argument_bytes; any thread */
    atomic_bool takes_passes;      /* the same server knows them; any thread */
    char *texts[CLIENT_TEXTS];     /* of explanations; NULL from the first free place on */
    client_channel *channels;
    client_channel calls; /* of the blocking calls; the last of `channels` */
} client_store;

_Static_assert(offsetof(client_store, forks) == offsetof(base_handle, forks), "a handle");

/* ---- client_link.c ---- */

/* Whether a handle is a connected store: a follower has a table of calls, too. */
bool client_is(const kvt_store *handle);

/* Whether calls on the store may go on: KVT_OK; KVT_E_STATE (in a child of fork). */
KVT_NODISCARD kvt_status client_enter(const kvt_store *handle, client_store **store_out);

/*
 * Asks the server, and waits for its answer. Under the lock.
 *   question      its head is made by wire_message_make with number 0, which is set here
 *   descriptors   sent with it
 *   answer        the message
 *   received      room for WIRE_DESCRIPTORS_MAX of the answer's, the caller's to close; may be NULL
 *                 where the answer has none
 * KVT_OK: an answer of the kind `expected`; the answer's status, where it is WIRE_DONE or has
 * another one than KVT_OK; KVT_E_GONE (no connection, or it was lost); KVT_E_MEMORY (no descriptors
 * are left for the answer's; it was not asked); KVT_E_TIMEOUT (the server is there and does not
 * answer; what a late answer gives is given back).
 */
KVT_NODISCARD kvt_status client_ask_locked(client_store *store, wire_message *question,
                                           const int *descriptors, uint32_t descriptor_count,
                                           wire_kind expected, wire_message *answer, int *received);

/* Connects again when that is due and the connection has been lost, with all channels and regions.
 * KVT_OK: the channel has an area; KVT_E_GONE. Takes both locks. Waits for nothing when another
 * thread is connecting. */
KVT_NODISCARD kvt_status client_restore(client_store *store, const client_channel *channel);

/* Adds a channel that has its entries and staging_bytes to the store, and opens it.
 * client_channel_end gives back what it has. */
KVT_NODISCARD kvt_status client_channel_begin(client_store *store, client_channel *channel);
void client_channel_end(client_channel *channel);

/* Connects a store that is filled; message: why not, a line. What kvt_connect says. */
KVT_NODISCARD kvt_status client_link_begin(client_store *store, char *message, size_t size);

/* Ends the connection, for good. */
void client_link_end(client_store *store);

/* Gives back one hold of the store; the last one frees it. */
void client_let_go(client_store *store);

/* ---- client_regions.c ---- */

/* Registers all regions of the store anew with the server that it has connected to; fills the
 * tables of its channels. Under store->lock. */
KVT_NODISCARD kvt_status client_regions_restore(client_store *store);

/* Fills the table of a channel that is new. Under store->lock. */
void client_regions_tell(client_store *store, client_channel *channel);

/* The server's number of the region that begins there; WIRE_REGIONS_MAX: it has none. Under
 * store->lock. */
KVT_NODISCARD uint32_t client_region_number(const client_store *store, const void *memory);

/* The store has been closed: its regions are nobody's. */
void client_regions_leave(client_store *store);

/* ---- client_channel.c ---- */

/* Makes an area of what the server has answered; the descriptors are the area's or closed. KVT_OK;
 * KVT_E_CORRUPT; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status client_area_make(const wire_channel *places, const int descriptors[3],
                                          client_area **area_out);

/* Under the channel's lock: puts an area into a channel that has none; takes the channel's away,
 * whose open requests complete as lost. */
void client_channel_attach(client_channel *channel, client_area *area, int socket);
void client_channel_detach(client_channel *channel, int socket);

/* The status of a request that is lost: posted, or not yet. */
kvt_status client_lost(uint32_t kind, bool posted);

/* Takes parts of the area for a request that has none; both sizes may be 0. Under the lock.
 * KVT_OK; KVT_BUSY (not now); KVT_E_SPACE (never); KVT_E_GONE (no area). */
KVT_NODISCARD kvt_status client_request_room(client_channel *channel, client_request *request,
                                             uint64_t record_bytes, uint64_t staging_bytes);

/* Gives its parts back. Under the lock. NULL parts are allowed. */
void client_request_free(client_channel *channel, client_request *request);

/* Posts a request. Under the lock. KVT_OK; KVT_BUSY (the ring is full); KVT_E_GONE (its area is no
 * longer the channel's). */
KVT_NODISCARD kvt_status client_request_post(client_channel *channel, client_request *request);

/* Waits no longer for a request that was posted and has not completed, whose memory is none but
 * the area's: its parts stay taken until the server has completed it. Under the lock. False: there
 * is no memory to say so. */
bool client_request_abandon(client_channel *channel, client_request *request);

/* Reads what the server says without being asked, which is that it leaves, when no question is
 * under way. Under the channel's lock. */
void client_hear(client_store *store);

/* Takes all completions that are there. Under the lock. True: some request has completed. */
bool client_channel_take(client_channel *channel);

/* Looks whether the connection is lost, after a take that found nothing. Under the lock. True: it
 * is, and all that was open has completed. */
bool client_channel_look(client_channel *channel);

/* Waits for something to change: completions, room, the area. Under the lock, which is let go
 * meanwhile. KVT_OK; KVT_E_TIMEOUT. */
KVT_NODISCARD kvt_status client_channel_wait(client_channel *channel, uint64_t deadline_ns);

static inline void *client_record_of(const client_request *request)
{
    return request->area->memory + request->area->places.arguments + request->record_at;
}

static inline void *client_staging_of(const client_request *request)
{
    return request->area->memory + request->area->places.staging + request->staging_at;
}

/* ---- client_calls.c ---- */

/* Makes a request ready to be posted, under the channel's lock; its statuses are those of
 * client_request_room, or end the call. */
typedef kvt_status client_prepare(client_channel *channel, client_request *request, void *context);

/*
 * Prepares, posts and waits for a request.
 *   prepare   NULL: it has no record
 * KVT_OK: request->done tells; what is given back by client_request_free may hold an answer. Else
 * it was not posted: KVT_E_GONE (no connection); KVT_E_TIMEOUT (no room until the deadline); what
 * prepare says.
 */
KVT_NODISCARD kvt_status client_call_do(client_channel *channel, client_request *request,
                                        client_prepare *prepare, void *context,
                                        uint64_t deadline_ns);

/* ---- client_queue.c ---- */

KVT_NODISCARD kvt_status client_queue_open(kvt_store *handle, const kvt_queue_options *options,
                                           kvt_queue **queue_out);

/* The channel of a connected queue. */
client_channel *client_queue_channel(kvt_queue *queue);

/* Makes the descriptor of the channel's queue ready for what comes, after a call that has taken
 * completions. Under the channel's lock. */
void client_queue_rearm(client_channel *channel);

/* ---- client_loads.c ---- */

/* As kvt_load_begin, without waiting for an entry. */
kvt_status client_load_begin(kvt_queue *queue, const kvt_key *keys, const kvt_view *const *views,
                             size_t count, const kvt_load_options *options, kvt_load **load_out);

/* The queue has closed: its loads are left to their owners. No other thread has the channel. */
void client_loads_leave(client_channel *channel);

#endif
