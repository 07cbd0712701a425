/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fetch.c - one read of an entry from the engine: its chunks go straight into staging. Gets that
 * want the same entry meanwhile join.
 *
 *     begun -> the epochs of the key, when they are not known lately
 *           -> chunk 0, and those that an entry of this size has had lately
 *           -> finished, or the chunks that chunk 0 names -> finished
 *
 * Chunks count only when all of them are of one writer and lie where the record's size puts them.
 * The file decodes nothing.
 *
 * Thread rule: any thread begins and waits; the steps are the link's thread's.
 */
#include "base/clock.h"
#include "base/wait.h"
#include "store/hosts/remote_tier.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory ---- */

uint64_t fetch_staging_bytes(store_remote *remote, uint64_t source_bytes)
{
    pthread_mutex_lock(&remote->lock);
    const remote_size *size = remote_costs_size(remote, source_bytes);
    const uint64_t known = size != NULL ? size->record_bytes : 0;
    const uint64_t most = size != NULL ? size->most_bytes : 0;
    pthread_mutex_unlock(&remote->lock);
    /* Sizes of views are not known: assumed to be as the last ones, or the record is read again. */
    if (source_bytes == FETCH_UNKNOWN && most != 0)
        return staging_round(most + most / 8 + STAGING_ALIGN);
    /* Bytes that a raw or lossless record takes at most in usual layouts; a larger one is noticed
     * at its first chunk. */
    const uint64_t bound = staging_round(source_bytes + source_bytes / 8 + 131072);
    return known > bound ? staging_round(known) : bound;
}

/* Frees the memory beside the buffer of a read that nobody uses. */
static void fetch_free(store_read *read)
{
    remote_fetch *fetch = (remote_fetch *)(void *)read;
    free(fetch->cut);
    free(fetch->heads);
    free(fetch->parts);
    free(fetch->requests);
    free(fetch->names);
    free(fetch);
}

/* Makes a fetch with room for `room` chunks; its one use is the link's. */
static remote_fetch *fetch_make(uint32_t room)
{
    remote_fetch *fetch = calloc(1, sizeof *fetch);
    if (fetch == NULL) return NULL;
    atomic_init(&fetch->read.users, 1);
    fetch->read.what = READ_WHOLE;
    fetch->read.free = fetch_free;
    fetch->room = room;
    fetch->cut = calloc(OBJECT_CHUNKS_MAX, sizeof *fetch->cut);
    fetch->heads = calloc(room, sizeof *fetch->heads);
    fetch->parts = calloc(room, sizeof *fetch->parts);
    fetch->requests = calloc(room, sizeof *fetch->requests);
    fetch->names = calloc(room, sizeof *fetch->names);
    if (fetch->cut != NULL && fetch->heads != NULL && fetch->parts != NULL &&
        fetch->requests != NULL && fetch->names != NULL)
        return fetch;
    fetch_free(&fetch->read);
    return NULL;
}

/* ---- steps, on the link's thread ---- */

static void fetch_step(void *context);

/* The most bytes that chunk 0 may have. */
static size_t fetch_first_room(const store_remote *remote, const remote_fetch *fetch)
{
    return fetch->read.buffer.bytes < remote->full_bytes ? (size_t)fetch->read.buffer.bytes
                                                         : remote->full_bytes;
}

/* Prepares the requests of chunks of `cut`, from `from` on. */
static void fetch_prepare(store_remote *remote, remote_fetch *fetch, uint32_t from, uint32_t count)
{
    char space[OBJECT_SPACE_BYTES];
    assert(from < count && count <= fetch->room);
    remote_space(remote, fetch->tenant, space);
    for (uint32_t i = from; i < count; i++) {
        const uint32_t length = object_name(space, &fetch->key, fetch->epoch, i, fetch->names[i]);
        fetch->parts[i][0] = (struct iovec){fetch->heads[i], OBJECT_HEAD_BYTES};
        fetch->parts[i][1] = (struct iovec){
            (char *)fetch->read.buffer.memory + fetch->cut[i].offset, (size_t)fetch->cut[i].bytes};
        /* The first chunk may be longer than expected. */
        if (i == 0) fetch->parts[i][1].iov_len = fetch_first_room(remote, fetch);
        fetch->requests[i] = (remote_request){.kind = REMOTE_GET,
                                              .key = fetch->names[i],
                                              .key_bytes = length,
                                              .parts = fetch->parts[i],
                                              .part_count = 2,
                                              .deadline_ns = fetch->deadline_ns};
    }
    fetch->asked = count;
    fetch->batch = (link_batch){.requests = &fetch->requests[from],
                                .count = count - from,
                                .ended = fetch_step,
                                .context = fetch};
}

/* The read has ended: nobody joins it any more, and its waiters are told. */
static void fetch_finish(store_remote *remote, remote_fetch *fetch, kvt_status status)
{
    pthread_mutex_lock(&remote->lock);
    remote_fetch **at = &remote->fetches;
    while (*at != fetch)
        at = &(*at)->next;
    *at = fetch->next;
    fetch->finished_ns = base_clock_ns();
    if (fetch->record_bytes != 0)
        remote_costs_note_size(remote, fetch->source_bytes, fetch->record_bytes);
    remote_costs_end(remote, fetch, status);
    pthread_mutex_unlock(&remote->lock);
    read_end(fetch->store, &fetch->read, status, 0, true);
}

/* Whether a chunk agrees with the first one. */
static bool fetch_fits(const remote_fetch *fetch, uint32_t index)
{
    object_head head;
    const object_head *first = &fetch->head;
    const remote_request *request = &fetch->requests[index];
    return object_head_unpack(fetch->heads[index], &head) == KVT_OK && head.index == index &&
           head.count == first->count && head.generation == first->generation &&
           head.writer == first->writer && head.record_bytes == first->record_bytes &&
           head.offset == fetch->cut[index].offset && head.bytes == fetch->cut[index].bytes &&
           request->value_bytes == OBJECT_HEAD_BYTES + head.bytes &&
           memcmp(&head.key, &fetch->key, sizeof head.key) == 0;
}

/* How a request ended. A malformed reply is the node's fault, and says nothing of the bytes that it
 * keeps. */
static kvt_status fetch_ended(const remote_request *request)
{
    return request->status == KVT_E_CORRUPT ? KVT_E_GONE : request->status;
}

/* How the requests of the chunks behind the first ended, and whether their chunks fit. */
static kvt_status fetch_check(const remote_fetch *fetch)
{
    for (uint32_t i = 0; i < fetch->head.count; i++) {
        const kvt_status status = fetch_ended(&fetch->requests[i]);
        /* Chunk 0 was there, so the record was whole once: a part of it is gone. */
        if (status == KVT_MISS || status == KVT_E_SPACE || status == KVT_E_MISMATCH)
            return KVT_E_CORRUPT;
        if (status != KVT_OK) return status;
        if (!fetch_fits(fetch, i)) return KVT_E_CORRUPT;
    }
    return KVT_OK;
}

/* Reads chunk 0: the record's size, and how it is cut. *same_out: the chunks that were asked for
 * are right. */
static kvt_status fetch_take_first(remote_fetch *fetch, bool *same_out)
{
    const remote_request *first = &fetch->requests[0];
    if (first->status == KVT_E_SPACE) {
        const uint64_t full = fetch->store->remote->full_bytes + OBJECT_HEAD_BYTES;
        /* A chunk larger than those of any host is garbage. One that is larger than ours is not
         * read; one that lacks room is read once it has some. */
        if (first->value_bytes > OBJECT_CHUNK_MOST) return KVT_E_CORRUPT;
        if (first->value_bytes > full) return KVT_E_MISMATCH;
        fetch->record_bytes = first->value_bytes;
        return KVT_E_SPACE;
    }
    if (first->status == KVT_E_MISMATCH) return KVT_E_CORRUPT;
    if (first->status != KVT_OK) return fetch_ended(first);
    if (first->value_bytes < OBJECT_HEAD_BYTES) return KVT_E_CORRUPT;
    kvt_status status = object_head_unpack(fetch->heads[0], &fetch->head);
    if (status != KVT_OK) return status;
    const object_head *head = &fetch->head;
    if (memcmp(&head->key, &fetch->key, sizeof head->key) != 0) return KVT_E_CORRUPT;
    fetch->record_bytes = head->record_bytes;
    if (head->record_bytes > fetch->read.buffer.bytes) return KVT_E_SPACE;
    const uint64_t guess = fetch->cut[0].bytes;
    const uint32_t count = object_cut(head->record_bytes, head->full_bytes, fetch->cut);
    if (count == 0 || count != head->count || count > fetch->room) return KVT_E_CORRUPT;
    /* When the first chunk was longer than expected, the second one has overwritten its end. */
    fetch->again_from = fetch->asked > 1 && fetch->cut[0].bytes > guess ? 0 : 1;
    *same_out = count <= fetch->asked && fetch->again_from == 1;
    for (uint32_t i = 1; i < count && *same_out; i++)
        *same_out =
            fetch->parts[i][1].iov_len == fetch->cut[i].bytes &&
            fetch->parts[i][1].iov_base == (char *)fetch->read.buffer.memory + fetch->cut[i].offset;
    return KVT_OK;
}

/* The chunks to ask for first: as many as the known size has, else the first one. */
static uint32_t fetch_first_chunks(store_remote *remote, remote_fetch *fetch)
{
    pthread_mutex_lock(&remote->lock);
    const remote_size *size = remote_costs_size(remote, fetch->source_bytes);
    const uint64_t known = size != NULL ? size->record_bytes : 0;
    pthread_mutex_unlock(&remote->lock);
    if (known != 0 && known <= fetch->read.buffer.bytes) {
        const uint32_t count = object_cut(known, remote->full_bytes, fetch->cut);
        if (count != 0 && count <= fetch->room) return count;
    }
    fetch->cut[0] = (object_chunk){0, fetch_first_room(remote, fetch)};
    return 1;
}

/* Begins the read of the chunks. No lock held. */
static void fetch_ask_chunks(store_remote *remote, remote_fetch *fetch)
{
    fetch_prepare(remote, fetch, 0, fetch_first_chunks(remote, fetch));
}

/* The epochs have been answered. KVT_OK: both are there. */
static kvt_status fetch_take_epochs(store_remote *remote, remote_fetch *fetch)
{
    kvt_status worst = KVT_OK;
    for (int i = 0; i < 2; i++) {
        const kvt_status status =
            epochs_answer(remote, &fetch->questions[i], &fetch->requests[i], fetch->began_ns);
        if (status != KVT_OK && status != KVT_MISS && status != KVT_E_MISMATCH)
            worst = fetch_ended(&fetch->requests[i]);
    }
    if (worst != KVT_OK) return worst;
    /* The epochs as of the beginning: this read waits for no further answer. */
    uint64_t epoch = 0;
    const epoch_state state =
        epochs_get(&remote->epochs, &fetch->key, fetch->tenant, fetch->began_ns, &epoch);
    /* Others ask whether this read is void; it has an epoch as soon as it does not learn it. */
    pthread_mutex_lock(&remote->lock);
    fetch->epoch = epoch;
    fetch->learns = false;
    pthread_mutex_unlock(&remote->lock);
    return state == EPOCH_KNOWN ? KVT_OK : KVT_MISS;
}

static void fetch_step(void *context)
{
    remote_fetch *fetch = context;
    store_remote *remote = fetch->store->remote;
    bool same = true;
    if (fetch->learns) {
        const kvt_status learnt = fetch_take_epochs(remote, fetch);
        if (learnt == KVT_OK) {
            fetch_ask_chunks(remote, fetch);
            link_hand(remote, &fetch->batch);
        } else {
            fetch_finish(remote, fetch, learnt);
        }
        return;
    }
    kvt_status status = fetch->again ? KVT_OK : fetch_take_first(fetch, &same);
    if (status == KVT_OK && !same) {
        fetch->again = true;
        fetch_prepare(remote, fetch, fetch->again_from, fetch->head.count);
        link_hand(remote, &fetch->batch);
        return;
    }
    if (status == KVT_OK) status = fetch_check(fetch);
    fetch_finish(remote, fetch, status);
}

/* ---- begin and end ---- */

/* Whether a read's bytes no longer count: the copies were cleared, or the entry deleted, since it
 * began. Lock held. */
static bool fetch_is_void(store_remote *remote, const remote_fetch *fetch)
{
    return fetch->void_now || (!fetch->learns && epochs_passed(&remote->epochs, &fetch->key,
                                                               fetch->tenant, fetch->epoch));
}

/* The read of a key that is under way. Lock held. */
static remote_fetch *fetch_find(store_remote *remote, const kvt_key *key, uint32_t tenant)
{
    remote_fetch *fetch = remote->fetches;
    while (fetch != NULL &&
           (fetch->tenant != tenant || memcmp(&fetch->key, key, sizeof *key) != 0 ||
            fetch_is_void(remote, fetch)))
        fetch = fetch->next;
    return fetch;
}

void fetch_void(store_remote *remote, const kvt_key *key)
{
    pthread_mutex_lock(&remote->lock);
    for (remote_fetch *fetch = remote->fetches; fetch != NULL; fetch = fetch->next)
        if (memcmp(&fetch->key, key, sizeof *key) == 0) fetch->void_now = true;
    pthread_mutex_unlock(&remote->lock);
}

remote_fetch *fetch_begin(kvt_store *store, const kvt_key *key, uint32_t tenant,
                          uint64_t source_bytes, uint64_t deadline_ns, staging_buffer *buffer,
                          read_waiter *waiter, bool *joined_out, bool *drives_out)
{
    store_remote *remote = store->remote;
    const uint64_t least = remote->full_bytes < 65536 ? remote->full_bytes : 65536;
    uint64_t room = buffer->bytes / least + 3;
    if (room > OBJECT_CHUNKS_MAX) room = OBJECT_CHUNKS_MAX;
    remote_fetch *fetch = fetch_make((uint32_t)room);
    if (fetch == NULL) return NULL;
    fetch->store = store;
    fetch->key = *key;
    fetch->tenant = tenant;
    fetch->source_bytes = source_bytes;
    fetch->deadline_ns = deadline_ns;
    fetch->began_ns = base_clock_ns();
    fetch->node = remote_costs_node(remote, key, tenant);
    const bool known =
        epochs_get(&remote->epochs, key, tenant, fetch->began_ns, &fetch->epoch) == EPOCH_KNOWN;
    fetch->learns = !known;
    pthread_mutex_lock(&remote->lock);
    remote_fetch *other = fetch_find(remote, key, tenant);
    *joined_out = other != NULL;
    read_join(store, other != NULL ? &other->read : &fetch->read, waiter);
    if (other == NULL) {
        fetch->read.buffer = *buffer;
        *buffer = (staging_buffer){0};
        remote_costs_begin(remote, fetch);
        fetch->next = remote->fetches;
        remote->fetches = fetch;
    }
    pthread_mutex_unlock(&remote->lock);
    if (other != NULL) {
        fetch_free(&fetch->read);
        return other;
    }
    if (known) {
        fetch_ask_chunks(remote, fetch);
    } else {
        /* Prepare the questions for both epochs. */
        epoch_id ids[2];
        epochs_of_key(&fetch->key, fetch->tenant, ids);
        for (int i = 0; i < 2; i++)
            epochs_question(remote, &ids[i], fetch->deadline_ns, &fetch->questions[i],
                            &fetch->requests[i]);
        fetch->batch = (link_batch){
            .requests = fetch->requests, .count = 2, .ended = fetch_step, .context = fetch};
    }
    if (waiter == NULL)
        *drives_out = link_hand_own(remote, &fetch->batch);
    else
        link_hand(remote, &fetch->batch);
    return fetch;
}

kvt_status fetch_wait(store_remote *remote, remote_fetch *fetch, uint64_t deadline_ns)
{
    kvt_status status = read_wait(fetch->store, &fetch->read, deadline_ns);
    if (status != KVT_OK) return status;
    pthread_mutex_lock(&remote->lock);
    if (fetch_is_void(remote, fetch)) status = KVT_MISS;
    pthread_mutex_unlock(&remote->lock);
    return status;
}
