/* SPDX-License-Identifier: Apache-2.0 */
/*
 * publisher.c - copies of entries for other hosts, written behind the callers: a bounded queue of
 * keys, one thread that takes them.
 *
 *     stored, or hit -> queued -> its epoch -> asked for (EXISTS) -> claimed -> read, pinned
 *                    -> chunks 1.. written -> chunk 0 written -> unpinned
 *
 * Chunk 0 comes when the others have been acknowledged, so an object that is found is whole. A full
 * queue or a node that fails drops entries, which is counted; nothing waits for the engine. A
 * deletion takes the place of an entry that waits to be published. One that a node does not take is
 * owed: it is kept until the close, tried again each second, and until it is done its key counts as
 * absent here, so that a deleted entry does not come back with the node.
 *
 * Thread rule: the queue is under the store's lock, what is owed under remote->lock; the rest is
 * the publisher's thread.
 */
#include "base/clock.h"
#include "base/thread.h"
#include "base/wait.h"
#include "codecs/codec_table.h"
#include "store/core/handover.h"
#include "store/hosts/remote_tier.h"

#include <assert.h>
#include <kvterrace/key.h>
#include <stdlib.h>
#include <string.h>

#define PUBLISHER_BATCH   64u                  /* entries that are asked for at once */
#define PUBLISHER_BYTES   (UINT64_C(8) << 20)  /* of records that are written at once, */
#define PUBLISHER_RECORDS 16u                  /* and their number, at most */
#define PUBLISHER_MOST    (UINT64_C(1) << 30)  /* of one record */
#define PUBLISHER_WAIT_NS UINT64_C(1000000000) /* of a request, for each PUBLISHER_BYTES up to it */
#define PUBLISHER_CLAIM_S 10u                  /* that a claim to write an entry lasts */
#define PUBLISHER_STAGING (UINT64_C(32) << 20)
#define PUBLISHER_LOOK    4096u                /* deletions that are looked at for room */
#define PUBLISHER_OWED_NS UINT64_C(1000000000) /* between two tries of deletions that are owed */

/* ---- deletions that a node has not taken; remote->lock is taken inside ---- */

/* The place of a handle; owed_count: it is none of them. remote->lock held. */
static uint32_t owed_find(const store_remote *remote, uint64_t handle)
{
    const uint32_t count = atomic_load_explicit(&remote->owed_count, memory_order_relaxed);
    uint32_t at = 0;
    while (at < count && remote->owed[at].handle != handle)
        at++;
    return at;
}

/* Keeps a deletion that a node has not taken. False: without room it is counted as dropped. */
static bool owed_add(store_remote *remote, const publish_item *item)
{
    pthread_mutex_lock(&remote->lock);
    const uint32_t count = atomic_load_explicit(&remote->owed_count, memory_order_relaxed);
    const bool known = owed_find(remote, item->handle) < count;
    const bool room = count < remote->owed_room;
    if (!known && room) {
        remote->owed[count] = *item;
        atomic_store_explicit(&remote->owed_count, count + 1, memory_order_release);
    }
    remote->owed_lost += !known && !room;
    pthread_mutex_unlock(&remote->lock);
    return known || room;
}

void owed_forget(store_remote *remote, uint64_t handle)
{
    if (atomic_load_explicit(&remote->owed_count, memory_order_acquire) == 0) return;
    pthread_mutex_lock(&remote->lock);
    const uint32_t at = owed_find(remote, handle);
    const uint32_t count = atomic_load_explicit(&remote->owed_count, memory_order_relaxed);
    if (at < count) { /* the last one comes into its place */
        remote->owed[at] = remote->owed[count - 1];
        atomic_store_explicit(&remote->owed_count, count - 1, memory_order_release);
    }
    pthread_mutex_unlock(&remote->lock);
}

bool owed_has(store_remote *remote, uint64_t handle)
{
    if (atomic_load_explicit(&remote->owed_count, memory_order_acquire) == 0) return false;
    pthread_mutex_lock(&remote->lock);
    const bool found =
        owed_find(remote, handle) < atomic_load_explicit(&remote->owed_count, memory_order_relaxed);
    pthread_mutex_unlock(&remote->lock);
    return found;
}

/* ---- the queue; lock held ---- */

/* The item that is `at` places behind the first one. */
static publish_item *publisher_at(const store_remote *remote, uint32_t at)
{
    return &remote->queue[(remote->queue_first + at) % remote->queue_room];
}

/* A deletion that cannot be kept: no copy of its space counts any more, so that this one does not
 * either. The store's lock is held, or not. */
static void publisher_give_up_space(store_remote *remote, const kvt_key *key)
{
    const kvt_clear_filter space = {
        .struct_size = sizeof space, .by_space = true, .space = kvt_key_space(key)};
    epochs_bump(remote, &space);
}

/* Makes room in a full queue for a deletion: the newest entry that waits to be published gives way,
 * because a copy that is not written costs less than one that stays. False: the deletion waits in
 * the queue already, or the queue is full of others. */
static bool publisher_make_room(store_remote *remote, const publish_item *item)
{
    kvt_store *store = remote->store;
    uint32_t at = remote->queue_count;
    const uint32_t least = at > PUBLISHER_LOOK ? at - PUBLISHER_LOOK : 0;
    while (at > least && publisher_at(remote, at - 1)->deletes)
        if (publisher_at(remote, --at)->handle == item->handle) return false;
    if (at == least) {
        remote->counts.dropped_deletes++;
        publisher_give_up_space(remote, &item->key);
        return false;
    }
    const publish_item *given_up = publisher_at(remote, at - 1);
    store_entry *entry = entry_find_hashed(&store->table, given_up->handle, &given_up->key);
    if (entry != NULL) entry->shared = false;
    for (; at < remote->queue_count; at++)
        *publisher_at(remote, at - 1) = *publisher_at(remote, at);
    remote->queue_count--;
    remote->queued--; /* as if it had not been */
    remote->counts.dropped_queue++;
    return true;
}

static bool publisher_push(store_remote *remote, const publish_item *item)
{
    if (remote->queue_count == remote->queue_room) {
        remote->counts.dropped_queue += !item->deletes;
        if (!item->deletes || !publisher_make_room(remote, item)) return false;
    }
    if (!item->deletes) owed_forget(remote, item->handle);
    remote->queue[(remote->queue_first + remote->queue_count++) % remote->queue_room] = *item;
    remote->queued++;
    pthread_cond_signal(&remote->due);
    return true;
}

/* Whether an entry's record may be published at all: exact, alone, of no groups. */
static bool publisher_may(const store_remote *remote, const store_entry *entry)
{
    const store_place *place = entry->place;
    return place != NULL && remote->publish != KVT_PUBLISH_NONE && !remote->publisher_ends &&
           kvt_codec_is_exact(place->variant) && entry->kind->group_count == 0 &&
           place->record_bytes <= PUBLISHER_MOST && entry->expires_ns == 0;
}

/* Offers an entry at its first record or at its first hit. */
static void publisher_offer(store_remote *remote, store_entry *entry)
{
    const publish_item item = {.key = entry->key, .handle = entry->handle, .tenant = entry->tenant};
    const bool may = publisher_may(remote, entry);
    remote->counts.declined += !may;
    if (may) entry->shared = publisher_push(remote, &item);
}

void publisher_note_stored(kvt_store *store, store_entry *entry)
{
    store_remote *remote = store->remote;
    if (remote == NULL || entry->shared || remote->publish == KVT_PUBLISH_SECOND_USE) return;
    publisher_offer(remote, entry);
}

void publisher_note_use(kvt_store *store, store_entry *entry)
{
    store_remote *remote = store->remote;
    if (remote == NULL || entry->shared || entry->used) return;
    entry->used = true;
    publisher_offer(remote, entry);
}

void publisher_delete(kvt_store *store, const kvt_key *key, uint32_t tenant, uint64_t record_bytes)
{
    store_remote *remote = store->remote;
    const publish_item item = {.key = *key,
                               .handle = entry_handle(&store->secret, key),
                               .tenant = tenant,
                               .record_bytes = record_bytes,
                               .deletes = true};
    if (remote == NULL || remote->publisher_ends) return;
    fetch_void(remote, key);
    remote_hints_set(&remote->hints, item.handle, HINT_ABSENT, base_clock_ns());
    (void)publisher_push(remote, &item);
}

void publisher_clear(kvt_store *store, const kvt_clear_filter *filter)
{
    store_remote *remote = store->remote;
    assert(store_is_locked(store));
    if (remote == NULL || remote->publisher_ends) return;
    epochs_bump(remote, filter);
    pthread_cond_signal(&remote->due);
}

/* ---- a batch, on the publisher's thread ---- */

/* A record that is being written. */
typedef struct publisher_record {
    publish_item item;
    store_place *place; /* held as a reader */
    const void *record; /* lent, or in the buffer */
    bool lent;
    staging_buffer buffer;
    object_head head;
    kvt_status status;
} publisher_record;

/* The memory of one write: the records and their chunks. */
typedef struct publisher_write {
    publisher_record records[PUBLISHER_RECORDS];
    uint32_t count;
    remote_request *requests;
    struct iovec (*parts)[2];
    uint8_t (*heads)[OBJECT_HEAD_BYTES];
    char (*names)[OBJECT_NAME_BYTES];
    uint32_t room;
    object_chunk cut[OBJECT_CHUNKS_MAX];
} publisher_write;

/* Pins the record of an entry that is still here. False: there is none to publish. */
static bool publisher_pin(kvt_store *store, publisher_record *one)
{
    store_remote *remote = store->remote;
    pthread_mutex_lock(&store->lock);
    store_entry *entry = entry_find_hashed(&store->table, one->item.handle, &one->item.key);
    const bool here = entry != NULL && entry_is_visible(entry) && publisher_may(remote, entry);
    if (here) {
        one->place = entry->place;
        one->place->readers++;
        if (tiers_pool_lends(store->pools[one->place->tier], one->place->location))
            one->record = tiers_pool_lend(store->pools[one->place->tier], one->place->location);
        one->lent = one->record != NULL;
        one->head = (object_head){.flags = entry->has_parent ? OBJECT_HAS_PARENT : 0,
                                  .full_bytes = remote->full_bytes,
                                  .generation = one->place->generation,
                                  .writer = remote->writer,
                                  .record_bytes = one->place->record_bytes,
                                  .key = one->item.key,
                                  .parent = entry->parent,
                                  .recompute_seconds = (double)entry->recompute_seconds,
                                  .class_id = entry->class_id,
                                  .request_tokens = entry->request_tokens};
        if (!entry->has_parent) one->head.parent = (kvt_key){{0}};
    }
    pthread_mutex_unlock(&store->lock);
    return here;
}

/* Copies a record that is not lent into the publisher's staging, and verifies it: a published
 * record is copied to other hosts. */
static kvt_status publisher_read(kvt_store *store, publisher_record *one)
{
    if (one->lent) return KVT_OK;
    store_staging *staging = store->remote->staging;
    transfer_report report;
    kvt_record_info info;
    kvt_status status = staging_acquire(staging, staging_round(one->place->record_bytes),
                                        base_clock_ns() + PUBLISHER_WAIT_NS, &one->buffer);
    if (status != KVT_OK) return status;
    const tiers_transfer read = {.kind = KVT_IO_READ,
                                 .location = one->place->location,
                                 .buffer = one->buffer.memory,
                                 .bytes = one->place->record_bytes};
    status = transfer_run(staging, store->pools[one->place->tier], &read,
                          base_clock_ns() + PUBLISHER_WAIT_NS, NULL, &one->buffer, &report);
    if (status != KVT_OK) return status;
    one->record = one->buffer.memory;
    return kvt_record_verify(one->record, one->place->record_bytes, &info);
}

/* Makes room for the requests of a write. */
static bool publisher_grow(publisher_write *write, uint32_t room)
{
    if (room <= write->room) return true;
    remote_request *requests = calloc(room, sizeof *requests);
    struct iovec(*parts)[2] = calloc(room, sizeof *parts);
    uint8_t(*heads)[OBJECT_HEAD_BYTES] = calloc(room, sizeof *heads);
    char(*names)[OBJECT_NAME_BYTES] = calloc(room, sizeof *names);
    free(write->requests);
    free(write->parts);
    free(write->heads);
    free(write->names);
    write->requests = requests;
    write->parts = parts;
    write->heads = heads;
    write->names = names;
    const bool made = requests != NULL && parts != NULL && heads != NULL && names != NULL;
    write->room = made ? room : 0;
    return made;
}

/* Prepares the request that writes a chunk. */
static void publisher_prepare(store_remote *remote, publisher_write *write, uint32_t at,
                              const publisher_record *one, uint32_t index, uint32_t count)
{
    char space[OBJECT_SPACE_BYTES];
    object_head head = one->head;
    head.index = index;
    head.count = count;
    head.offset = write->cut[index].offset;
    head.bytes = write->cut[index].bytes;
    object_head_pack(&head, write->heads[at]);
    remote_space(remote, one->item.tenant, space);
    write->parts[at][0] = (struct iovec){write->heads[at], OBJECT_HEAD_BYTES};
    write->parts[at][1] =
        (struct iovec){(char *)(uintptr_t)one->record + head.offset, (size_t)head.bytes};
    write->requests[at] = (remote_request){
        .kind = REMOTE_PUT,
        .key = write->names[at],
        .key_bytes = object_name(space, &one->item.key, one->item.epoch, index, write->names[at]),
        .parts = write->parts[at],
        .part_count = 2,
        .ttl_seconds = remote->ttl_seconds,
        .deadline_ns =
            base_clock_ns() +
            PUBLISHER_WAIT_NS * (1 + (uint64_t)at * remote->full_bytes / PUBLISHER_BYTES)};
}

/* Writes of every record either its first chunk, or all chunks behind that. */
static kvt_status publisher_write_chunks(store_remote *remote, publisher_write *write, bool first)
{
    uint32_t owners[PUBLISHER_RECORDS + 1], used = 0;
    for (uint32_t pass = 0; pass < 2; pass++) {
        used = 0;
        for (uint32_t i = 0; i < write->count; i++) {
            const publisher_record *one = &write->records[i];
            owners[i] = used;
            if (one->status != KVT_OK) continue;
            const uint32_t count =
                object_cut(one->head.record_bytes, remote->full_bytes, write->cut);
            assert(count > 0);
            for (uint32_t index = first ? 0 : 1; index < (first ? 1 : count); index++, used++)
                if (pass == 1) publisher_prepare(remote, write, used, one, index, count);
        }
        owners[write->count] = used;
        if (used == 0) return KVT_OK;
        if (pass == 0 && !publisher_grow(write, used)) return KVT_E_MEMORY;
    }
    link_batch batch = {.requests = write->requests, .count = used};
    link_run(remote, &batch);
    for (uint32_t i = 0; i < write->count; i++)
        for (uint32_t at = owners[i]; at < owners[i + 1]; at++)
            if (write->requests[at].status != KVT_OK)
                write->records[i].status = write->requests[at].status;
    return KVT_OK;
}

/* Waits until the write rate lets so many bytes through. False: the store closes. */
static bool publisher_pace(store_remote *remote, uint64_t bytes, uint64_t *free_ns)
{
    const uint64_t now_ns = base_clock_ns();
    if (remote->write_bytes_per_s == 0) return true;
    if (*free_ns < now_ns) *free_ns = now_ns;
    const uint64_t begin_ns = *free_ns;
    *free_ns += (uint64_t)((double)bytes / (double)remote->write_bytes_per_s * 1e9);
    pthread_mutex_lock(&remote->store->lock);
    bool waiting = true;
    while (!remote->publisher_ends && waiting && base_clock_ns() < begin_ns)
        waiting = base_condition_wait_until(&remote->due, &remote->store->lock, begin_ns);
    const bool goes_on = !remote->publisher_ends;
    pthread_mutex_unlock(&remote->store->lock);
    return goes_on;
}

/* Asks for the epochs of items that are not known. publishes: absent epochs are drawn, and
 * deletions are left out. */
static void publisher_learn(store_remote *remote, const publish_item *items, uint32_t count,
                            bool publishes)
{
    epochs_asking asking = {.creates = publishes};
    for (uint32_t i = 0; i < count; i++) {
        if (publishes && items[i].deletes) continue;
        epochs_want(remote, &items[i].key, items[i].tenant, &asking,
                    base_clock_ns() + PUBLISHER_WAIT_NS);
    }
    epochs_run(remote, &asking, base_clock_ns() + PUBLISHER_WAIT_NS);
}

/* Deletes the object of an item: first chunk 0, without which it is not found. */
static kvt_status publisher_unlink(store_remote *remote, const publish_item *item)
{
    char space[OBJECT_SPACE_BYTES], names[9][OBJECT_NAME_BYTES];
    object_chunk cut[OBJECT_CHUNKS_MAX];
    remote_request requests[9];
    uint32_t count = 1;
    if (item->record_bytes != 0) count = object_cut(item->record_bytes, remote->full_bytes, cut);
    if (count == 0) count = 1;
    uint64_t epoch = item->epoch;
    if (epoch == 0) {
        const uint64_t began_ns = base_clock_ns();
        publisher_learn(remote, item, 1, false);
        const epoch_state state =
            epochs_get(&remote->epochs, &item->key, item->tenant, began_ns, &epoch);
        if (state != EPOCH_KNOWN) return state == EPOCH_ABSENT ? KVT_MISS : KVT_E_GONE;
    }
    remote_space(remote, item->tenant, space);
    kvt_status status = KVT_OK;
    for (uint32_t from = 0; from < count; from += 8) {
        const uint32_t chunks = count - from < 8 ? count - from : 8;
        /* The claim goes, too: the entry may be published again. */
        const uint32_t step = chunks + (from == 0 ? 1 : 0);
        for (uint32_t i = 0; i < step; i++)
            requests[i] = (remote_request){
                .kind = REMOTE_DELETE,
                .key = names[i],
                .key_bytes = i == chunks
                                 ? object_claim_name(space, &item->key, epoch, names[i])
                                 : object_name(space, &item->key, epoch, from + i, names[i]),
                .deadline_ns = base_clock_ns() + PUBLISHER_WAIT_NS};
        link_batch batch = {.requests = requests, .count = step};
        link_run(remote, &batch);
        if (from == 0) status = requests[0].status;
    }
    pthread_mutex_lock(&remote->store->lock);
    remote->counts.deleted += status == KVT_OK;
    pthread_mutex_unlock(&remote->store->lock);
    return status;
}

/* Carries a deletion out. again: it is owed already, unless its entry has been stored anew; else it
 * is owed from now on when its node does not take it. */
static void publisher_delete_now(store_remote *remote, const publish_item *item, bool again)
{
    const kvt_status status = publisher_unlink(remote, item);
    if (status == KVT_OK || status == KVT_MISS)
        owed_forget(remote, item->handle);
    else if (!again && !owed_add(remote, item))
        publisher_give_up_space(remote, &item->key);
}

/* Counts how an item ended: it was written, or was there already, or its node fails. */
static void publisher_settle(kvt_store *store, const publish_item *item, kvt_status status,
                             bool written, uint64_t bytes)
{
    store_remote *remote = store->remote;
    const bool there = status == KVT_OK, others = !written && (there || status == KVT_EXISTS);
    double load_seconds = 0;
    if (there) {
        const uint32_t node = remote_costs_node(remote, &item->key, item->tenant);
        load_seconds = remote_costs_load(remote, node, bytes);
        remote_hints_set(&remote->hints, item->handle, HINT_THERE, base_clock_ns());
    }
    pthread_mutex_lock(&store->lock);
    if (there) remote_costs_tell(store, item->handle, load_seconds);
    remote->counts.published += written && there;
    remote->counts.published_bytes += there ? bytes : 0;
    remote->counts.deduplicated += others;
    remote->counts.dropped_node += !there && !others;
    store_entry *entry = entry_find_hashed(&store->table, item->handle, &item->key);
    if (!there && entry != NULL) entry->shared = false;
    pthread_mutex_unlock(&store->lock);
}

/* Writes the records that are pinned in `write`. */
static void publisher_carry_out(kvt_store *store, publisher_write *write)
{
    store_remote *remote = store->remote;
    for (uint32_t i = 0; i < write->count; i++)
        write->records[i].status = publisher_read(store, &write->records[i]);
    kvt_status status = publisher_write_chunks(remote, write, false);
    if (status == KVT_OK) status = publisher_write_chunks(remote, write, true);
    for (uint32_t i = 0; i < write->count; i++) {
        publisher_record *one = &write->records[i];
        if (status != KVT_OK) one->status = status;
        /* Let a pinned record go. */
        if (one->place != NULL) {
            pthread_mutex_lock(&store->lock);
            if (one->lent)
                tiers_pool_take_back(store->pools[one->place->tier], one->place->location,
                                     KVT_IO_READ, one->place->record_bytes);
            place_leave(store, one->place);
            pthread_mutex_unlock(&store->lock);
            one->place = NULL;
            if (one->buffer.memory != NULL) staging_release(store->remote->staging, &one->buffer);
        }
        publisher_settle(store, &one->item, one->status, true, one->head.record_bytes);
        /* Chunks that no get finds would stay in an engine that evicts nothing. */
        one->item.record_bytes = one->head.record_bytes;
        if (one->status == KVT_E_SPACE) (void)!publisher_unlink(remote, &one->item);
    }
    write->count = 0;
}

/* Asks which of the items are stored. statuses: KVT_OK: stored; KVT_MISS: not; else its node
 * fails. */
static void publisher_ask(store_remote *remote, publish_item *items, uint32_t count,
                          kvt_status *statuses)
{
    static const uint64_t wait_ns = PUBLISHER_WAIT_NS;
    remote_request requests[PUBLISHER_BATCH];
    char names[PUBLISHER_BATCH][OBJECT_NAME_BYTES];
    uint32_t asked[PUBLISHER_BATCH], used = 0;
    publisher_learn(remote, items, count, true);
    const uint64_t now_ns = base_clock_ns();
    for (uint32_t i = 0; i < count; i++) {
        char space[OBJECT_SPACE_BYTES];
        statuses[i] = KVT_OK;
        if (items[i].deletes ||
            remote_hints_get(&remote->hints, items[i].handle, now_ns) == HINT_THERE)
            continue;
        statuses[i] = KVT_E_GONE;
        if (epochs_get(&remote->epochs, &items[i].key, items[i].tenant, now_ns, &items[i].epoch) !=
            EPOCH_KNOWN)
            continue;
        remote_space(remote, items[i].tenant, space);
        requests[used] = (remote_request){
            .kind = REMOTE_EXISTS,
            .key = names[used],
            .key_bytes = object_name(space, &items[i].key, items[i].epoch, 0, names[used]),
            .deadline_ns = now_ns + wait_ns};
        asked[used++] = i;
    }
    if (used == 0) return;
    link_batch batch = {.requests = requests, .count = used};
    link_run(remote, &batch);
    for (uint32_t i = 0; i < used; i++)
        statuses[asked[i]] = requests[i].status;
}

/* Claims the items that are not stored, so that of several hosts that publish an entry at once one
 * writes it. KVT_EXISTS in statuses: another host has the claim. */
static void publisher_claim(store_remote *remote, const publish_item *items, uint32_t count,
                            kvt_status *statuses)
{
    remote_request requests[PUBLISHER_BATCH];
    char names[PUBLISHER_BATCH][OBJECT_NAME_BYTES];
    uint32_t asked[PUBLISHER_BATCH], used = 0;
    struct iovec part = {&remote->writer, sizeof remote->writer};
    for (uint32_t i = 0; i < count; i++) {
        char space[OBJECT_SPACE_BYTES];
        if (items[i].deletes || statuses[i] != KVT_MISS) continue;
        remote_space(remote, items[i].tenant, space);
        requests[used] = (remote_request){
            .kind = REMOTE_PUT,
            .key = names[used],
            .key_bytes = object_claim_name(space, &items[i].key, items[i].epoch, names[used]),
            .parts = &part,
            .part_count = 1,
            .ttl_seconds = PUBLISHER_CLAIM_S,
            .fresh = true,
            .deadline_ns = base_clock_ns() + PUBLISHER_WAIT_NS};
        asked[used++] = i;
    }
    if (used == 0) return;
    link_batch batch = {.requests = requests, .count = used};
    link_run(remote, &batch);
    for (uint32_t i = 0; i < used; i++)
        if (requests[i].status != KVT_OK) statuses[asked[i]] = requests[i].status;
}

/* Carries out the items of a batch in their order. */
static void publisher_run(kvt_store *store, publisher_write *write, publish_item *items,
                          uint32_t count, uint64_t *free_ns)
{
    kvt_status statuses[PUBLISHER_BATCH];
    uint64_t bytes = 0;
    publisher_ask(store->remote, items, count, statuses);
    publisher_claim(store->remote, items, count, statuses);
    for (uint32_t i = 0; i < count; i++) {
        if (items[i].deletes) {
            publisher_carry_out(store, write);
            bytes = 0;
            publisher_delete_now(store->remote, &items[i], false);
            continue;
        }
        if (statuses[i] != KVT_MISS) {
            publisher_settle(store, &items[i], statuses[i], false, 0);
            continue;
        }
        publisher_record *one = &write->records[write->count];
        *one = (publisher_record){.item = items[i]};
        if (!publisher_pin(store, one)) continue;
        write->count++;
        bytes += one->head.record_bytes;
        if (!publisher_pace(store->remote, one->head.record_bytes, free_ns)) break;
        if (bytes < PUBLISHER_BYTES && write->count < PUBLISHER_RECORDS) continue;
        publisher_carry_out(store, write);
        bytes = 0;
    }
    publisher_carry_out(store, write);
}

/* Tries the deletions and clears that are owed once more, and looks after the clears of the last
 * minute, when it is time. Returns when that will be. */
static uint64_t publisher_pay(store_remote *remote, publish_item *items, uint64_t due_ns)
{
    const uint64_t now_ns = base_clock_ns();
    if (now_ns < due_ns) return due_ns;
    epochs_look_after(remote, PUBLISHER_WAIT_NS);
    epochs_pay(remote, PUBLISHER_WAIT_NS);
    /* The deletions to be tried next, at most so many; they stay kept. */
    pthread_mutex_lock(&remote->lock);
    const uint32_t count = atomic_load_explicit(&remote->owed_count, memory_order_relaxed);
    const uint32_t taken = count < PUBLISHER_BATCH ? count : PUBLISHER_BATCH;
    /* Those that are tried go behind the others, so that a node which stays away holds up none. */
    for (uint32_t i = 0; i < taken; i++) {
        const uint32_t at = (remote->owed_turn + i) % count;
        items[i] = remote->owed[at];
    }
    if (count != 0) remote->owed_turn = (remote->owed_turn + taken) % count;
    pthread_mutex_unlock(&remote->lock);
    for (uint32_t i = 0; i < taken; i++)
        publisher_delete_now(remote, &items[i], true);
    return now_ns + PUBLISHER_OWED_NS;
}

static void *publisher_main(void *argument)
{
    store_remote *remote = argument;
    kvt_store *store = remote->store;
    publish_item items[PUBLISHER_BATCH];
    uint64_t free_ns = 0, owed_ns = 0;
    publisher_write *write = calloc(1, sizeof *write);
    pthread_mutex_lock(&store->lock);
    while (write != NULL && !remote->publisher_ends) {
        uint32_t count = 0;
        while (count < PUBLISHER_BATCH && remote->queue_count > 0) {
            items[count++] = remote->queue[remote->queue_first];
            remote->queue_first = (remote->queue_first + 1) % remote->queue_room;
            remote->queue_count--;
        }
        const bool clears = !epochs_tried(&remote->epochs, EPOCHS_ALL);
        const bool owes = atomic_load_explicit(&remote->owed_count, memory_order_relaxed) != 0 ||
                          epochs_kept(&remote->epochs) != 0;
        if (count == 0 && !clears && (!owes || base_clock_ns() < owed_ns)) {
            (void)base_condition_wait_until(&remote->due, &store->lock,
                                            owes ? owed_ns : KVT_NO_DEADLINE);
            continue;
        }
        pthread_mutex_unlock(&store->lock);
        if (clears) epochs_pay(remote, PUBLISHER_WAIT_NS); /* before what is put after them */
        publisher_run(store, write, items, count, &free_ns);
        if (owes) owed_ns = publisher_pay(remote, items, owed_ns);
        pthread_mutex_lock(&store->lock);
        remote->done += count;
        pthread_cond_broadcast(&store->changed);
    }
    remote->publisher_ends = true;
    pthread_mutex_unlock(&store->lock);
    /* The store closes: clears and deletions that have not been tried are, for a second at most. */
    const uint64_t end_ns = base_clock_ns() + PUBLISHER_WAIT_NS;
    if (!epochs_tried(&remote->epochs, EPOCHS_ALL)) epochs_pay(remote, PUBLISHER_WAIT_NS);
    for (uint32_t i = 0; i < remote->queue_count && base_clock_ns() < end_ns; i++)
        if (publisher_at(remote, i)->deletes)
            publisher_delete_now(remote, publisher_at(remote, i), false);
    if (write != NULL) {
        free(write->requests);
        free(write->parts);
        free(write->heads);
        free(write->names);
    }
    free(write);
    return NULL;
}

/* ---- life ---- */

kvt_status publisher_open(store_remote *remote, uint32_t queue_room)
{
    remote->queue = calloc(queue_room, sizeof *remote->queue);
    remote->queue_room = queue_room;
    remote->owed = calloc(queue_room, sizeof *remote->owed);
    remote->owed_room = queue_room;
    if (remote->queue == NULL || remote->owed == NULL) return KVT_E_MEMORY;
    return staging_open(PUBLISHER_STAGING, &remote->staging);
}

kvt_status publisher_start(store_remote *remote)
{
    if (base_thread_start(&remote->publisher, publisher_main, remote) != KVT_OK)
        return KVT_E_THREAD;
    remote->has_publisher = true;
    return KVT_OK;
}

void publisher_stop(store_remote *remote)
{
    if (remote->has_publisher) {
        pthread_mutex_lock(&remote->store->lock);
        remote->publisher_ends = true;
        pthread_cond_broadcast(&remote->due);
        pthread_mutex_unlock(&remote->store->lock);
        pthread_join(remote->publisher, NULL);
    }
    remote->has_publisher = false;
    staging_close(remote->staging);
    remote->staging = NULL;
    free(remote->queue);
    remote->queue = NULL;
    free(remote->owed);
    remote->owed = NULL;
}

kvt_status kvt_remote_flush(kvt_store *store, uint64_t deadline_ns)
{
    const base_store_calls *other = base_store_calls_of(store);
    if (other != NULL) return BASE_CALL(other, remote_flush, store, deadline_ns);
    if (store == NULL) return KVT_E_UNSUPPORTED;
    if (!fork_guard_is_ours(store)) return KVT_E_STATE;
    if (store->remote == NULL) return KVT_E_UNSUPPORTED;
    store_remote *remote = store->remote;
    bool waiting = true;
    pthread_mutex_lock(&store->lock);
    const uint64_t last = remote->queued, bumped = epochs_bumped_ever(&remote->epochs);
    while ((remote->done < last || !epochs_tried(&remote->epochs, bumped)) && waiting &&
           !remote->publisher_ends)
        waiting = base_condition_wait_until(&store->changed, &store->lock, deadline_ns);
    const bool all =
        remote->publisher_ends || (remote->done >= last && epochs_tried(&remote->epochs, bumped));
    pthread_mutex_unlock(&store->lock);
    return all ? KVT_OK : KVT_E_TIMEOUT;
}
