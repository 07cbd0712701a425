/* SPDX-License-Identifier: Apache-2.0 */
/*
 * list.c - kvt_store_list: the entries that lookups see, bucket by bucket of the table.
 *
 * The cursor is the next bucket, and above LIST_BUCKET_BITS how many entries of its chain have been
 * given. A chain that does not fit behind other items waits for the next call, so that it comes
 * whole; one that is longer than the caller's room is cut, and its rest is counted off then.
 *
 * Thread rule: any thread; the control lock, for LIST_STEP buckets at a time.
 */
#include "base/struct_size.h"
#include "store/background/lifetime.h"

#include <assert.h>
#include <kvterrace/names.h>
#include <string.h>

#define LIST_STEP         256u /* buckets looked at under one hold of the lock */
#define LIST_BUCKET_BITS  40u
#define LIST_ITEM_LEAST   STRUCT_SIZE_THROUGH(kvt_list_item, flags)
#define LIST_FILTER_LEAST STRUCT_SIZE_THROUGH(kvt_clear_filter, space)

typedef struct list_walk {
    const kvt_clear_filter *filter; /* NULL: all */
    unsigned char *items;           /* the caller's */
    uint32_t stride;
    size_t capacity, count;
    uint64_t bucket;
    uint32_t passed; /* entries of its chain that were given before */
} list_walk;

/* Writes the next item. The bytes of a put that was handed over lie in memory, as they were put.
 * Lock held. */
static void list_give(const kvt_store *store, const store_entry *entry, list_walk *walk)
{
    const bool staged = entry->state == ENTRY_STAGED;
    kvt_list_item item = {.struct_size = sizeof item,
                          .tier = KVT_TIER_DRAM,
                          .key = entry->key,
                          .variant = {.codec = KVT_CODEC_RAW},
                          .stored_bytes = entry->kind->source_bytes,
                          .bytes = entry->kind->source_bytes,
                          .age_seconds = lifetime_age_seconds(store, entry),
                          .tokens = entry->kind->layout.tokens,
                          .tenant = entry->tenant,
                          .class_id = entry->class_id};
    if (!staged) {
        item.tier = entry->place->tier;
        item.variant = entry->place->variant;
        item.stored_bytes = entry->place->record_bytes;
        item.copy_bytes = entry->copy != NULL ? entry->copy->record_bytes : 0;
    }
    item.flags = (entry->leased ? KVT_LIST_HELD : 0) | (item.copy_bytes != 0 ? KVT_LIST_COPY : 0) |
                 (entry->state != ENTRY_RESIDENT ? KVT_LIST_MOVING : 0);
    assert(walk->count < walk->capacity);
    unsigned char *at = walk->items + walk->count++ * walk->stride;
    memcpy(at, &walk->stride, sizeof walk->stride);
    struct_size_out(at, &item, sizeof item);
}

static bool list_takes(const kvt_store *store, const store_entry *entry, const list_walk *walk)
{
    return lifetime_shows(store, entry) &&
           spaces_filter_covers(walk->filter, &entry->key, entry->tenant);
}

/* Gives a bucket's chain. False: it stays for the next call, as a whole or from `passed` on. Lock
 * held. */
static bool list_give_chain(const kvt_store *store, list_walk *walk)
{
    const store_entry *const first = store->table.buckets[walk->bucket];
    size_t wanted = 0;
    for (const store_entry *entry = first; entry != NULL; entry = entry->next)
        wanted += list_takes(store, entry, walk);
    if (wanted > walk->capacity - walk->count && walk->count > 0) return false;
    uint32_t taken = 0;
    for (const store_entry *entry = first; entry != NULL; entry = entry->next) {
        if (!list_takes(store, entry, walk) || taken++ < walk->passed) continue;
        if (walk->count == walk->capacity) return false;
        list_give(store, entry, walk);
        walk->passed++;
    }
    walk->bucket++;
    walk->passed = 0;
    return true;
}

/* Walks until no further chain fits, or to the end of the table. */
static void list_run(kvt_store *store, list_walk *walk)
{
    bool more = true;
    while (more) {
        pthread_mutex_lock(&store->lock);
        lease_expire(store);
        /* The table may have grown since the last step; its new buckets lie behind. */
        const entry_table *table = &store->table;
        for (uint32_t i = 0; more && i < LIST_STEP; i++)
            more = walk->bucket < table->bucket_count && list_give_chain(store, walk);
        pthread_mutex_unlock(&store->lock);
    }
}

kvt_status kvt_store_list(kvt_store *store, const kvt_clear_filter *filter, uint64_t *cursor,
                          kvt_list_item *items, size_t capacity, size_t *count_out)
{
    const base_store_calls *other = base_store_calls_of(store);
    if (other != NULL)
        return BASE_CALL(other, list, store, filter, cursor, items, capacity, count_out);
    if (!fork_guard_is_ours(store)) return KVT_E_STATE;
    kvt_clear_filter whole = {.struct_size = sizeof whole};
    if (count_out == NULL) return KVT_E_ARGUMENT;
    *count_out = 0;
    if (cursor == NULL || items == NULL || capacity == 0) return KVT_E_ARGUMENT;
    if (!struct_size_is_sound(items, LIST_ITEM_LEAST)) return KVT_E_ARGUMENT;
    if (filter != NULL) {
        filter = struct_size_in(filter, &whole, sizeof whole, LIST_FILTER_LEAST);
        if (filter == NULL || !spaces_filter_is_sound(filter)) return KVT_E_ARGUMENT;
    }
    list_walk walk = {.filter = filter,
                      .items = (unsigned char *)items,
                      .stride = struct_size_of(items),
                      .capacity = capacity,
                      .bucket = *cursor & ((UINT64_C(1) << LIST_BUCKET_BITS) - 1),
                      .passed = (uint32_t)(*cursor >> LIST_BUCKET_BITS)};
    list_run(store, &walk);
    if (walk.count == 0) return KVT_END;
    *cursor = walk.bucket | (uint64_t)walk.passed << LIST_BUCKET_BITS;
    *count_out = walk.count;
    return KVT_OK;
}
