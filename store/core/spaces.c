/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spaces.c - entries by the space that their keys begin with: what a space holds, and whose it is.
 *
 * A space has no account of its own: what it holds is counted by a walk over the table, so that
 * neither an entry nor a move carries its cost. Limits are a tenant's, which the policy has
 * (kvt_tenant_set); a space that is given to a tenant counts in the tenant's share.
 *
 * Thread rule: any thread; the control lock, for SPACES_STEP buckets at a time.
 */
#include "base/struct_size.h"
#include "store/background/lifetime.h"

#include <assert.h>
#include <kvterrace/key.h>
#include <kvterrace/names.h>
#include <stdlib.h>
#include <string.h>

#define SPACES_STEP 256u  /* buckets looked at under one hold of the lock */
#define SPACES_MAX  4096u /* spaces that are given to tenants */

#define SPACES_STATS_LEAST STRUCT_SIZE_THROUGH(kvt_space_stats, copy_bytes)

/* ---- whose a space is ---- */

/* The index of a space, or of the first one behind where it would stand. */
static uint32_t spaces_find(const store_spaces *spaces, uint64_t number)
{
    uint32_t first = 0, end = spaces->count;
    while (first < end) {
        uint32_t middle = first + (end - first) / 2;
        if (spaces->items[middle].number < number)
            first = middle + 1;
        else
            end = middle;
    }
    return first;
}

/* Whether the space at an index is the one that was looked for. */
static bool spaces_has(const store_spaces *spaces, uint32_t index, uint64_t number)
{
    return index < spaces->count && spaces->items[index].number == number;
}

uint32_t spaces_tenant(const kvt_store *store, const kvt_key *key)
{
    assert(store_is_locked(store));
    const store_spaces *spaces = &store->spaces;
    /* Most stores have no such space, and a put asks each time. */
    if (spaces->count == 0) return 0;
    uint64_t number = kvt_key_space(key);
    uint32_t index = spaces_find(spaces, number);
    return spaces_has(spaces, index, number) ? spaces->items[index].tenant : 0;
}

/* Adds a space at an index. */
static kvt_status spaces_insert(store_spaces *spaces, uint32_t index, store_space space)
{
    assert(index <= spaces->count && spaces->count <= spaces->room);
    if (spaces->count == SPACES_MAX) return KVT_E_SPACE;
    if (spaces->count == spaces->room) {
        uint32_t room = spaces->room == 0 ? 16 : spaces->room * 2;
        store_space *grown = realloc(spaces->items, room * sizeof *grown);
        if (grown == NULL) return KVT_E_MEMORY;
        spaces->items = grown;
        spaces->room = room;
    }
    memmove(&spaces->items[index + 1], &spaces->items[index],
            (spaces->count - index) * sizeof *spaces->items);
    spaces->items[index] = space;
    spaces->count++;
    assert(index == 0 || spaces->items[index - 1].number < space.number);
    assert(index + 1 == spaces->count || space.number < spaces->items[index + 1].number);
    return KVT_OK;
}

kvt_status kvt_space_set(kvt_store *store, uint64_t space, uint32_t tenant)
{
    const base_store_calls *other = base_store_calls_of(store);
    if (other != NULL) return BASE_CALL(other, space_set, store, space, tenant);
    if (!fork_guard_is_ours(store)) return KVT_E_STATE;
    if (tenant >= KVT_TENANTS_MAX) return KVT_E_ARGUMENT;
    kvt_status status = KVT_OK;
    pthread_mutex_lock(&store->lock);
    store_spaces *spaces = &store->spaces;
    uint32_t index = spaces_find(spaces, space);
    bool there = spaces_has(spaces, index, space);
    if (there && tenant == 0) {
        /* Take a space out of the list. */
        assert(index < spaces->count);
        spaces->count--;
        memmove(&spaces->items[index], &spaces->items[index + 1],
                (spaces->count - index) * sizeof *spaces->items);
    } else if (there) {
        spaces->items[index].tenant = tenant;
    } else if (tenant != 0) {
        status = spaces_insert(spaces, index, (store_space){space, tenant});
    }
    pthread_mutex_unlock(&store->lock);
    return status;
}

/* ---- what a space holds ---- */

/* Adds an entry that lookups see. An entry that a put has handed over holds nothing of a tier yet.
 */
static void spaces_count(const store_entry *entry, kvt_space_stats *stats)
{
    stats->entries++;
    stats->bytes += entry->kind->source_bytes;
    if (entry->state == ENTRY_STAGED) return;
    assert(entry->place != NULL && entry->place->tier < KVT_TIER_COUNT);
    stats->tier_entries[entry->place->tier]++;
    stats->tier_bytes[entry->place->tier] += entry->place->record_bytes;
    if (entry->copy == NULL) return;
    stats->copies++;
    stats->copy_bytes += entry->copy->record_bytes;
}

kvt_status kvt_space_stats_get(kvt_store *store, uint64_t space, kvt_space_stats *stats)
{
    const base_store_calls *other = base_store_calls_of(store);
    if (other != NULL) return BASE_CALL(other, space_stats, store, space, stats);
    if (!fork_guard_is_ours(store)) return KVT_E_STATE;
    if (stats == NULL || !struct_size_is_sound(stats, SPACES_STATS_LEAST)) return KVT_E_ARGUMENT;
    kvt_space_stats whole = {.struct_size = sizeof whole};
    const entry_table *table = &store->table;
    size_t bucket = 0;
    bool more = true;
    while (more) {
        pthread_mutex_lock(&store->lock);
        /* The table may have grown since the last step; its new buckets lie behind. */
        for (uint32_t i = 0; i < SPACES_STEP && bucket < table->bucket_count; i++) {
            const store_entry *entry = table->buckets[bucket++];
            for (; entry != NULL; entry = entry->next)
                if (kvt_key_space(&entry->key) == space && lifetime_shows(store, entry))
                    spaces_count(entry, &whole);
        }
        more = bucket < table->bucket_count;
        pthread_mutex_unlock(&store->lock);
    }
    struct_size_out(stats, &whole, sizeof whole);
    return KVT_OK;
}
