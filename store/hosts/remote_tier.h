/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote_tier.h - a store's part in an engine that other hosts share: the link to it, gets from it,
 * probes, publishing (docs/REMOTE.md).
 *
 *     link.c         one thread at a time owns the client; callers hand it batches of requests
 *     fetch.c        gets of keys that are not here
 *     remote_get.c   what a caller's get does with them
 *     remote_match.c prefixes
 *     remote_prefetch.c, load_remote.c: reads that nobody, or a layered load, waits for
 *     remote_costs.c what loads take, and copies cost
 *     publisher.c    write-behind, on a thread of its own
 *     epochs.c       clears: which copies count
 *     remote_open.c  options, open, close, statistics
 *
 *     field                                   guarded by
 *     options, texts, figures                 fixed after open
 *     client, looked_ns                       the driver's
 *     batches, fetches, sizes, loads, seen    remote->lock, a leaf but for the staging's
 *     owed                                    remote->lock; its count is read without
 *     counts                                  remote->lock, those of publishing store->lock
 *     queue, due                              store->lock
 *     hints, epochs                           their own
 *
 * Lock order: store->lock, then remote->lock, then staging.
 */
#ifndef STORE_REMOTE_TIER_H
#define STORE_REMOTE_TIER_H

#include "estimator/predict/predict.h"
#include "remote/client.h"
#include "store/hosts/epochs.h"
#include "store/hosts/object.h"
#include "store/hosts/remote_hints.h"
#include "store/read/access_get.h"

#include <kvterrace/config.h>
#include <kvterrace/remote.h>

#include <stdatomic.h>

/* ---- the link ---- */

/* Requests that are handed to the link together. Their `user` is the batch. */
typedef struct link_batch {
    struct link_batch *next;
    remote_request *requests;
    uint32_t count;
    uint32_t left;
    bool over;                    /* of those without `ended`; under remote->lock */
    void (*ended)(void *context); /* on the link's thread, under no lock; NULL: a caller waits */
    void *context;
} link_batch;

/* Who has the client. */
typedef enum link_driver {
    LINK_THREAD = 0, /* the link's thread */
    LINK_CALLER = 1, /* a caller that waits for its own get */
    LINK_FREE = 2    /* no driver: nothing is under way, and the thread sleeps */
} link_driver;

/* ---- gets ---- */

/* One read of an entry from the engine, shared by the gets that want it. */
typedef struct remote_fetch {
    store_read read;           /* the link uses it until it has ended */
    struct remote_fetch *next; /* of those under way */
    kvt_store *store;
    kvt_key key;
    uint32_t tenant;
    bool learns;                 /* the epochs are asked for first; written under remote->lock */
    bool void_now;               /* the key was deleted since; under remote->lock */
    uint64_t epoch;              /* that the names have; written under remote->lock */
    epoch_question questions[2]; /* for them */
    bool again;                  /* the second round is under way, */
    uint32_t again_from;         /* from this chunk on */
    object_head head;            /* of chunk 0 */
    uint64_t record_bytes;
    uint64_t source_bytes; /* that the first get has asked for */
    uint64_t deadline_ns, began_ns, finished_ns;
    uint32_t node;                        /* of the key when it began, */
    uint64_t expected_bytes, ahead_bytes; /* its record's, and those on their way from there */
    link_batch batch;
    uint32_t room;  /* chunks below */
    uint32_t asked; /* of them, as `cut` has them */
    object_chunk *cut;
    uint8_t (*heads)[OBJECT_HEAD_BYTES];
    struct iovec (*parts)[2];
    remote_request *requests;
    char (*names)[OBJECT_NAME_BYTES];
} remote_fetch;

#define REMOTE_SIZES 16u

#define REMOTE_NETWORK   3.125e9 /* bytes per second, until transfers have been seen */
#define REMOTE_REQUEST_S 0.0003  /* of a request, until loads have been seen */

/* Sizes and seconds of entries of a size that have lately come from the engine. */
typedef struct remote_size {
    uint64_t source_bytes, record_bytes;
    uint64_t most_bytes;      /* the largest record of late */
    double recompute_seconds; /* 0: not known */
    double decode_seconds;
} remote_size;

/* ---- publishing ---- */

/* An entry that waits to be published, or whose copy is to be deleted. */
typedef struct publish_item {
    kvt_key key;
    uint64_t handle;
    uint64_t record_bytes; /* of a deletion, if known */
    uint64_t epoch;        /* that it is published in; 0: not looked up yet */
    uint32_t tenant;
    bool deletes;
} publish_item;

struct store_remote {
    kvt_store *store;
    remote_client *client;
    char *text;                     /* the namespace's */
    char space[OBJECT_SPACE_BYTES]; /* of tenant 0 */
    uint64_t deadline_ns, write_bytes_per_s;
    uint32_t full_bytes, ttl_seconds;
    kvt_publish publish;
    uint64_t writer;
    bool feed;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    link_batch *first, *last;
    link_driver driver;
    bool link_needed;         /* a caller has left something under way */
    pthread_cond_t link_turn; /* the thread's, to look at `driver` again */
    uint64_t looked_ns;       /* when the client's statistics were copied last */
    remote_fetch *fetches;
    remote_size sizes[REMOTE_SIZES];
    uint32_t size_turn;
    remote_size *last_size; /* of the last one, or NULL */
    online_device loads[REMOTE_NODES_MAX];
    online_error load_errors[REMOTE_NODES_MAX];
    uint64_t ahead[REMOTE_NODES_MAX]; /* bytes on their way */
    struct remote_prefetch *landed;   /* reads that no caller waits for; remote_prefetch.c */
    uint32_t prefetching;             /* on their way, and landed */
    kvt_remote_stats counts;
    double found, lost; /* copies that were known to be there, and were or were not; fading */
    remote_stats seen;
    remote_node_stats nodes[REMOTE_NODES_MAX];
    bool link_ends;
    pthread_t link;
    bool has_link;

    publish_item *queue; /* a ring of queue_room */
    uint32_t queue_room, queue_first, queue_count;
    uint64_t queued, done; /* items ever */
    pthread_cond_t due;
    publish_item *owed; /* deletions, in no order */
    uint32_t owed_room, owed_turn;
    _Atomic uint32_t owed_count;
    uint64_t owed_lost; /* for which there was no room */
    bool publisher_ends;
    pthread_t publisher;
    bool has_publisher;
    store_staging *staging; /* the publisher's */

    remote_hints hints;
    remote_epochs epochs;
};

typedef struct store_remote store_remote;

/* ---- remote_settings.c ---- */

/* The first option beside ranges that an open refuses whatever the engine does; NULL: none. */
const char *remote_options_fault(const kvt_remote_options *options);
/* False when an option is out of its setting's range, which the message names with it. */
bool remote_settings_hold(const kvt_remote_options *options, char *message, size_t message_size);
/* Fills the options from [tier.remote] and [remote.NAME]. */
void remote_settings_read(kvt_config *config, const char *name, kvt_remote_options *options);

/* ---- remote_open.c ---- */

/* Opens the engine's client by the options. KVT_OK, also when no server answers; KVT_E_ARGUMENT,
 * KVT_E_UNSUPPORTED, KVT_E_GONE, KVT_E_CORRUPT, KVT_E_MEMORY, KVT_E_IO with a message. */
KVT_NODISCARD kvt_status remote_tier_open(kvt_store *store, const kvt_remote_options *options,
                                          char *message, size_t message_size);

/* Starts the threads of an opened client. KVT_OK; KVT_E_THREAD. */
KVT_NODISCARD kvt_status remote_tier_start(kvt_store *store);

/* Ends the threads; entries that wait to be published are dropped. No call on the store runs. */
void remote_tier_close(kvt_store *store);

/* Writes the metrics of the engine; none without one. */
void remote_tier_stats(kvt_store *store, kvt_remote_stats *out);

/* ---- link.c ---- */

/* The namespace of a tenant. */
void remote_space(const store_remote *remote, uint32_t tenant, char space[OBJECT_SPACE_BYTES]);

KVT_NODISCARD kvt_status link_start(store_remote *remote);
void link_stop(store_remote *remote);

/* Hands a batch over; every request of it has a deadline. No lock held. */
void link_hand(store_remote *remote, link_batch *batch);

/* The same by a thread that is to wait for it. True: the client is that thread's, which is to call
 * link_drive. */
KVT_NODISCARD bool link_hand_own(store_remote *remote, link_batch *batch);

/* Runs the client until a flag, which is under remote->lock, is set, or an instant. */
void link_drive(store_remote *remote, const bool *finished, uint64_t deadline_ns);

/* Hands a batch over, and waits until it is over. */
void link_run(store_remote *remote, link_batch *batch);

/* ---- fetch.c ---- */

/* Joins the read of a key, or begins one within a deadline, in staging that is taken over. Returns
 * NULL without memory. waiter: it is told when the read has ended; or NULL. *joined_out: the
 * staging is the caller's still. *drives_out, without a waiter: as link_hand_own says. */
remote_fetch *fetch_begin(kvt_store *store, const kvt_key *key, uint32_t tenant,
                          uint64_t source_bytes, uint64_t deadline_ns, staging_buffer *buffer,
                          read_waiter *waiter, bool *joined_out, bool *drives_out);

#define FETCH_UNKNOWN OBJECT_CHUNK_BYTES /* of an entry whose size nobody knows */
#define FETCH_TRIES   3u /* reads with ever more room: the first chunk, then the record */

/* The bytes of staging that a read of an entry of so many bytes needs. */
uint64_t fetch_staging_bytes(store_remote *remote, uint64_t source_bytes);

/* Waits until a read has finished, or an instant. KVT_E_TIMEOUT, or how it ended; KVT_MISS also
 * when the copies were cleared, or the entry was deleted here, since it began. */
kvt_status fetch_wait(store_remote *remote, remote_fetch *fetch, uint64_t deadline_ns);

/* Reads of a key that are under way no longer count. */
void fetch_void(store_remote *remote, const kvt_key *key);

/* ---- remote_match.c ---- */

/* How many leading keys, of one at least, are here or on other hosts, as kvt_match.hosts says.
 * KVT_OK; KVT_E_MEMORY. No lock held. */
kvt_status remote_match(kvt_store *store, const kvt_key *keys, size_t count, uint64_t deadline_ns,
                        size_t *matched_out);

/* Whether another host is known to have a key that is not here; asks nobody. */
remote_hint remote_match_hint(kvt_store *store, const kvt_key *key);

/* ---- remote_costs.c ---- */

/* The node of an entry, as far as the client knows. */
uint32_t remote_costs_node(const store_remote *remote, const kvt_key *key, uint32_t tenant);

/* The learned size and seconds of entries of so many bytes; 0: of the last one. NULL: none. And the
 * size of a record is noted. remote->lock held. */
remote_size *remote_costs_size(store_remote *remote, uint64_t source_bytes);
void remote_costs_note_size(store_remote *remote, uint64_t source_bytes, uint64_t record_bytes);

/* Notes the seconds of recomputing and of decoding an entry of so many bytes. */
void remote_costs_note_use(store_remote *remote, uint64_t source_bytes, double recompute_seconds,
                           double decode_seconds);

/* A read begins, and ends: its seconds are learned. remote->lock held. */
void remote_costs_begin(store_remote *remote, remote_fetch *fetch);
void remote_costs_end(store_remote *remote, const remote_fetch *fetch, kvt_status status);

/* Seconds that loading a record from a node takes now; of 0 bytes: of one as the last. */
double remote_costs_load(store_remote *remote, uint32_t node, uint64_t bytes);

/* Whether loading an entry is expected to take less than recomputing it, or that is not known. */
bool remote_costs_beat(store_remote *remote, const kvt_key *key, uint32_t tenant,
                       uint64_t source_bytes);

/* Tells the policy of an entry of which a hint alone is known, assumed to be as the last one. */
typedef struct remote_guess {
    double load_seconds, byte_seconds, decode_seconds, recompute_seconds;
    uint64_t record_bytes;
} remote_guess;

/* False: none has come from there yet. */
bool remote_costs_guess(store_remote *remote, const kvt_key *key, uint32_t tenant,
                        remote_guess *out);

/* The policy is told how long loading the copy of an entry takes; 0: there is none. Lock held. */
void remote_costs_tell(kvt_store *store, uint64_t handle, double load_seconds);

/* The same for an entry that is offered to the policy; 0: no copy is known of. Lock held. */
double remote_costs_of_entry(const kvt_store *store, const store_entry *entry);

/* Statistics of a node: the median error of predictions, and the seconds of 1 MiB now.
 * remote->lock held. */
double remote_costs_error(const store_remote *remote, uint32_t node);
double remote_costs_sample(const store_remote *remote, uint32_t node);

/* ---- remote_get.c ---- */

/* Whether a get of a key that is not here is worth asking for; the store has an engine. No lock
 * held. */
bool remote_get_is_worth(kvt_store *store, const access_get *get);

/* Begins the same for a get of a queue, whose waiter is told. KVT_OK; KVT_BUSY: there is no
 * staging now; KVT_MISS. */
KVT_NODISCARD kvt_status remote_get_start(kvt_store *store, access_get *get);

/* A get whose waiter was told: false when it has to begin again, with more staging. */
bool remote_get_land(kvt_store *store, access_get *get);

/* Takes such a get back. False: it has arrived, or is about to. */
bool remote_get_give_up(kvt_store *store, access_get *get);

/* Serves a get of a key that is not here from the engine. KVT_OK: it is served and counted.
 * KVT_MISS and KVT_E_TIMEOUT: the caller counts it. Other statuses are of the caller's view. No
 * lock held. */
kvt_status remote_get_serve(kvt_store *store, access_get *get, kvt_get_info *info);

/* Decodes the record of a read, counts, and offers it to the local tiers. Statuses as above. */
kvt_status remote_get_finish(kvt_store *store, access_get *get, kvt_get_info *info);

/* Parts of these, for reads that are no call's: whether a record is the entry that its object
 * names, in an exact form; the seconds that recomputing it takes; its object is deleted, because
 * its bytes were wrong; and it is counted how a read ended. No lock held. */
bool remote_get_is_sound(const remote_fetch *fetch, const kvt_record_info *record);
double remote_get_recompute(const kvt_store *store, const remote_fetch *fetch,
                            const kvt_record_info *record);
void remote_get_condemn(kvt_store *store, const remote_fetch *fetch);
void remote_get_count(kvt_store *store, const access_get *get, kvt_status status, bool known,
                      double saved_seconds);

/* ---- remote_prefetch.c ---- */

/* Asks for a key that is not here. KVT_OK: it is on its way, if it is there; KVT_MISS: it is known
 * not to be; KVT_REFUSED: not worth it, or no room; KVT_E_MEMORY. No lock held. */
KVT_NODISCARD kvt_status remote_prefetch_ask(kvt_store *store, const kvt_key *key, uint32_t tenant);

/* Leaves a read that has ended well to the background; its use is taken over. False: there is no
 * room for it, and it is the caller's. No lock held. */
bool remote_prefetch_keep(kvt_store *store, const access_get *get);

/* Decodes and offers prefetched entries that have landed. In a round; no lock held. */
void remote_prefetch_round(kvt_store *store);

/* Drops prefetched entries that have landed. The link has ended. */
void remote_prefetch_close(store_remote *remote);

/* ---- publisher.c ---- */

/* The deletion of a key's copy that is owed to a node: the entry is published anew; whether it is
 * owed still, and the copy counts as absent (one load where none is). */
void owed_forget(store_remote *remote, uint64_t handle);
bool owed_has(store_remote *remote, uint64_t handle);

KVT_NODISCARD kvt_status publisher_open(store_remote *remote, uint32_t queue_room);
KVT_NODISCARD kvt_status publisher_start(store_remote *remote);
void publisher_stop(store_remote *remote);

/* An entry has a record now, or has had a hit: it may be published. Lock held. */
void publisher_note_stored(kvt_store *store, store_entry *entry);
void publisher_note_use(kvt_store *store, store_entry *entry);

/* The copies that a filter covers count no longer, here at once. Lock held. */
void publisher_clear(kvt_store *store, const kvt_clear_filter *filter);

/* Copies of a key are to be deleted. Lock held. */
void publisher_delete(kvt_store *store, const kvt_key *key, uint32_t tenant, uint64_t record_bytes);

#endif
