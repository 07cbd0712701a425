/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recovery.c - takes over the entries that the catalog lists, when a store is opened.
 *
 *     row -> location checked -> extents adopted by the pool -> entry ARRIVING -> sorted, parents
 *     first -> adopted by the policy -> RESIDENT -> their uses known (uses.c)
 *
 * Nothing is read from the devices: a record that rotted fails its first get. A row that cannot be
 * taken over is deleted and counted; its extents stay free.
 *
 * Thread rule: the opener's thread, before the catalog's writer and the background start.
 */
#include "store/catalog/recovery.h"
#include "base/clock.h"
#include "base/kill_point.h"
#include "store/background/lifetime.h"
#include "store/core/executor.h"
#include "store/core/store_offer.h"
#include "store/learn/uses.h"
#include "store/read/groups.h"
#include "store/watch/watching.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Names of rows to drop, collected while the catalog is being read. */
typedef struct recover_walk {
    kvt_store *store;
    uint64_t members; /* recover_drop_stale: mask */
    uint64_t kept;
    bool count_only;
    kvt_status status; /* an error that ends the walk: memory */
    catalog_name *drops;
    size_t drop_count;
    size_t drop_capacity;
} recover_walk;

/* Notes a row for deletion after the walk. False ends the walk: there is no memory. */
static bool recover_note_drop(recover_walk *walk, const catalog_row *row)
{
    if (walk->drop_count == walk->drop_capacity) {
        size_t capacity = walk->drop_capacity == 0 ? 64 : walk->drop_capacity * 2;
        catalog_name *drops = realloc(walk->drops, capacity * sizeof *drops);
        if (drops == NULL) {
            walk->status = KVT_E_MEMORY;
            return false;
        }
        walk->drops = drops;
        walk->drop_capacity = capacity;
    }
    walk->drops[walk->drop_count++] = (catalog_name){.key = row->key, .serial = row->serial};
    return true;
}

/* ---- rows on devices that were taken back empty ---- */

/* Notes a row that touches a member in the mask. An unsound row is noted too, unless rows are only
 * counted: such a row names no member that could be trusted. */
static bool recover_visit_stale(void *context, const catalog_row *row)
{
    recover_walk *walk = context;
    tiers_location *location = NULL;
    bool unsound = row->location == NULL;
    bool touches = unsound && !walk->count_only; /* an unsound row goes with the others */
    if (!unsound) {
        kvt_status status = tiers_location_unpack(row->location, row->location_bytes, &location);
        if (status == KVT_E_MEMORY) {
            walk->status = status;
            return false;
        }
        touches = status != KVT_OK && !walk->count_only;
        if (status != KVT_OK) location = NULL;
        for (uint32_t i = 0; !touches && location != NULL && i < location->share_count; i++) {
            uint32_t member = location->shares[i].member;
            touches = member < 64 && (walk->members >> member & 1) != 0;
        }
        tiers_location_free(location);
    }
    if (touches) return recover_note_drop(walk, row);
    walk->kept++;
    return true;
}

kvt_status recover_drop_stale(store_catalog *catalog, uint64_t members, uint64_t *dropped_out,
                              uint64_t *kept_out)
{
    recover_walk walk = {.members = members};
    *dropped_out = 0;
    /* An unsound row is dropped when it is taken over. */
    if (members == 0) return catalog_count_entries(catalog, kept_out);
    kvt_status status = catalog_each_entry_unsorted(catalog, recover_visit_stale, &walk);
    if (status == KVT_OK) status = walk.status;
    if (status == KVT_OK) status = catalog_drop_rows(catalog, walk.drops, walk.drop_count);
    *dropped_out = walk.drop_count;
    *kept_out = walk.kept;
    free(walk.drops);
    return status;
}

kvt_status recover_count_rows(store_catalog *catalog, uint64_t members, uint64_t *count_out)
{
    recover_walk walk = {.members = members, .count_only = true};
    kvt_status status = catalog_each_entry_unsorted(catalog, recover_visit_stale, &walk);
    if (status == KVT_OK) status = walk.status;
    *count_out = walk.drop_count;
    free(walk.drops);
    return status;
}

/* ---- taking over ---- */

/* A row's entry in the table, and its place in the pool, before the policy knows of it. */
typedef struct recover_item {
    store_entry *entry;
    store_place *place;
} recover_item;

/* The items of one walk over the catalog, and the rows that could not be taken over. */
typedef struct recover_list {
    recover_walk walk;
    kvt_layout layout; /* of the row whose scratch is known, */
    kvt_variant variant;
    uint64_t scratch_bytes; /* and its scratch; layout and variant decide it */
    bool scratch_known;
    recover_item *items;
    size_t count;
    size_t capacity;
    size_t expired; /* rows whose entry's lifetime ended meanwhile; they are dropped, too */
} recover_list;

/* Undoes the taking over of one row: entry, extents, ticket, place. The row itself is still in the
 * catalog, and stays there if this open fails. */
static void recover_forget(kvt_store *store, recover_item item)
{
    assert(item.place != NULL && item.place->readers == 0);
    if (item.entry != NULL) entry_erase(&store->table, item.entry);
    if (item.place->location != NULL)
        tiers_pool_disown(store->pools[KVT_TIER_SSD], item.place->location);
    catalog_ticket_free(item.place->ticket);
    entry_place_free(&store->memory, item.place);
}

/* The scratch that decoding the record of a row with groups takes. */
static kvt_status recover_group_scratch(const kvt_store *store, const catalog_row *row,
                                        uint64_t *bytes_out)
{
    const kvt_record_spec spec = {.key = row->key,
                                  .generation = row->generation,
                                  .variant = row->variant,
                                  .first_position = row->first_position,
                                  .bases = bases_of(store, row->variant)};
    kvt_layout layouts[KVT_GROUPS_MAX];
    kvt_variant variants[KVT_GROUPS_MAX];
    uint64_t bound_bytes;
    memcpy(layouts, row->groups, row->group_count * sizeof layouts[0]);
    const record_groups_spec groups =
        groups_spec(store, &spec, layouts, row->group_count, variants);
    return groups_bound(store, &groups, NULL, &bound_bytes, bytes_out);
}

/* The scratch that decoding a row's record takes. Rows that follow each other mostly share layout
 * and variant, so the last answer is kept. */
static kvt_status recover_scratch(recover_list *list, const catalog_row *row, uint64_t *bytes_out)
{
    if (row->group_count != 0) return recover_group_scratch(list->walk.store, row, bytes_out);
    if (!list->scratch_known || memcmp(&list->layout, &row->layout, sizeof row->layout) != 0 ||
        memcmp(&list->variant, &row->variant, sizeof row->variant) != 0) {
        const kvt_record_spec spec = {.key = row->key,
                                      .generation = row->generation,
                                      .layout = row->layout,
                                      .variant = row->variant,
                                      .first_position = row->first_position,
                                      .bases = bases_of(list->walk.store, row->variant)};
        uint64_t bound_bytes, scratch_bytes;
        kvt_status status = executor_bound(list->walk.store, &spec, &bound_bytes, &scratch_bytes);
        if (status != KVT_OK) return status;
        list->scratch_bytes = scratch_bytes;
        list->layout = row->layout;
        list->variant = row->variant;
        list->scratch_known = true;
    }
    *bytes_out = list->scratch_bytes;
    return KVT_OK;
}

/* Takes one row into table and pool; on failure nothing of it remains. KVT_MISS: the lifetime of
 * its entry has ended. */
static kvt_status recover_row(recover_list *list, const catalog_row *row, recover_item *item_out)
{
    kvt_store *store = list->walk.store;
    uint64_t scratch_bytes = 0;
    tiers_location *location = NULL;
    recover_item item = {NULL, NULL};
    if (row->location == NULL || store->pools[KVT_TIER_SSD] == NULL) return KVT_E_CORRUPT;
    if (row->expires_ns != 0 && row->expires_ns <= base_calendar_ns()) return KVT_MISS;
    kvt_status status = recover_scratch(list, row, &scratch_bytes);
    if (status != KVT_OK) return status;
    item.place = entry_place_new(&store->memory, row->variant);
    if (item.place == NULL) return KVT_E_MEMORY;
    status = tiers_location_unpack(row->location, row->location_bytes, &location);
    if (status == KVT_OK && location->bytes != row->record_bytes) status = KVT_E_CORRUPT;
    if (status == KVT_OK) status = tiers_pool_adopt(store->pools[KVT_TIER_SSD], location);
    if (status == KVT_OK) {
        *item.place = (store_place){.tier = KVT_TIER_SSD,
                                    .variant = row->variant,
                                    .serial = row->serial,
                                    .generation = row->generation,
                                    .record_bytes = row->record_bytes,
                                    .scratch_bytes = scratch_bytes,
                                    .location = location};
        status = catalog_ticket_new(&row->key, row->serial, &item.place->ticket);
    } else {
        tiers_location_free(location);
    }
    if (status == KVT_OK) {
        kvt_layout groups[KVT_GROUPS_MAX];
        const entry_shape shape = {&row->layout, groups, row->group_count};
        if (row->group_count != 0) memcpy(groups, row->groups, row->group_count * sizeof groups[0]);
        status = entry_insert(&store->table, &row->key, &shape, &item.entry);
    }
    if (status != KVT_OK) {
        recover_forget(store, item);
        return status;
    }
    store_entry *entry = item.entry;
    entry->has_parent = row->has_parent;
    entry->parent = row->parent;
    entry->first_position = row->first_position;
    entry->recompute_seconds = (float)row->recompute_seconds;
    entry->tenant = (uint8_t)row->tenant;
    entry->class_id = (uint16_t)row->class_id;
    entry->request_tokens = row->request_tokens;
    lifetime_from_calendar(store, entry, row->expires_ns);
    *item_out = item;
    return KVT_OK;
}

/* Takes one row over, or notes it for deletion. False ends the walk: there is no memory. */
static bool recover_visit(void *context, const catalog_row *row)
{
    recover_list *list = context;
    if (list->count == list->capacity) {
        size_t capacity = list->capacity == 0 ? 256 : list->capacity * 2;
        recover_item *items = realloc(list->items, capacity * sizeof *items);
        if (items == NULL) {
            list->walk.status = KVT_E_MEMORY;
            return false;
        }
        list->items = items;
        list->capacity = capacity;
    }
    kvt_status status = recover_row(list, row, &list->items[list->count]);
    if (status == KVT_OK) {
        list->count++;
        return true;
    }
    if (status == KVT_E_MEMORY) {
        list->walk.status = status;
        return false;
    }
    if (status == KVT_MISS) list->expired++;
    return recover_note_drop(&list->walk, row);
}

/* Parents first; of equals the older one. */
static int recover_compare(const void *left, const void *right)
{
    const recover_item *a = left, *b = right;
    if (a->entry->first_position != b->entry->first_position)
        return a->entry->first_position > b->entry->first_position ? 1 : -1;
    if (a->place->generation != b->place->generation)
        return a->place->generation > b->place->generation ? 1 : -1;
    return memcmp(&a->entry->key, &b->entry->key, sizeof a->entry->key);
}

/* Hands an entry to the policy, and makes it readable. False ends the walk. */
static bool recover_adopt(recover_list *list, recover_item item)
{
    assert(item.entry->state == ENTRY_ARRIVING && item.place->location != NULL);
    kvt_store *store = list->walk.store;
    kvt_status status =
        store_adopt(store, item.entry, KVT_TIER_SSD, item.place->variant, item.place->record_bytes);
    if (status == KVT_OK) {
        item.entry->place = item.place;
        entry_set_state(item.entry, ENTRY_ARRIVING, ENTRY_RESIDENT);
        watch_note_stored(store, item.entry);
        store->counters.recovered++;
        return true;
    }
    const catalog_row row = {.key = item.entry->key, .serial = item.place->serial};
    recover_forget(store, item);
    if (status == KVT_E_MEMORY) list->walk.status = status;
    return status != KVT_E_MEMORY && recover_note_drop(&list->walk, &row);
}

/*
 * Walks over the catalog once, in the order of the file, and sorts the items in memory: SQLite
 * would sort whole rows, on disk when they are many.
 */
kvt_status recover_entries(kvt_store *store)
{
    assert(store->catalog != NULL && store->table.count == 0);
    recover_list list = {.walk = {.store = store}};
    size_t adopted = 0;
    kvt_status status = catalog_each_entry_unsorted(store->catalog, recover_visit, &list);
    if (status == KVT_OK) status = list.walk.status;
    KILL_POINT("open: rows read");
    /* Raise the policy's capacity of the SSD tier to the pool's, for the time of the recovery: the
     * policy has to adopt every entry that the pool adopted. A row whose deletion was not committed
     * before a crash comes back beside the entry that was to have its room. Together such rows may
     * pass the policy's own capacity, which is less than the pool's by the bytes that whole stripe
     * units can leave unusable. */
    tiers_pool_facts facts;
    if (store->pools[KVT_TIER_SSD] != NULL) {
        tiers_pool_facts_get(store->pools[KVT_TIER_SSD], &facts);
        (void)!kvt_policy_capacity_set(store->policy, KVT_TIER_SSD, facts.capacity_bytes);
    }
    uses_found uses = {0};
    if (status == KVT_OK) status = uses_read(store, &uses);
    if (status == KVT_OK && list.count > 1)
        qsort(list.items, list.count, sizeof *list.items, recover_compare);
    while (status == KVT_OK && adopted < list.count) {
        (void)recover_adopt(&list, list.items[adopted++]);
        status = list.walk.status;
    }
    while (adopted < list.count)
        recover_forget(store, list.items[adopted++]);
    uses_give(store, &uses);
    store_settle_capacity(store);
    if (status == KVT_OK)
        status = catalog_drop_rows(store->catalog, list.walk.drops, list.walk.drop_count);
    store->counters.recovery_drops += list.walk.drop_count - list.expired;
    store->counters.expired += list.expired;
    free(list.walk.drops);
    free(list.items);
    return status;
}
