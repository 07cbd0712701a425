/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recovery.c - takes over the entries that the catalog lists, when a store is opened, and keeps
 * their rows for the next open when it is closed.
 *
 *     recover_read     row -> location checked -> entry ARRIVING
 *     recover_entries  sorted by place -> extents adopted by the pool -> sorted, parents first
 *                      -> adopted by the policy -> RESIDENT -> their uses known (uses.c)
 *
 * The rows are read once, before the labels are written, because the labels say what the rows show.
 * They come from the file that the last close left (catalog_kept.c), or from the catalog. Nothing
 * is read from the devices: a record that rotted fails its first get. A row that cannot be
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

/* A row's entry in the table, and its place, before the policy knows of it. The items are sorted by
 * major, then by minor. */
typedef struct recover_item {
    store_entry *entry;
    store_place *place;
    uint64_t major;
    uint64_t minor;
} recover_item;

struct recover_list {
    kvt_store *store;
    uint64_t members;  /* SSD members whose rows are stale: mask */
    bool kept;         /* the rows are to be taken over */
    bool copied;       /* they are those of the last close: a fault in one counts against all */
    kvt_status status; /* an error that ends the walk: memory */
    recover_found found;
    catalog_name *drops; /* rows that cannot be taken over */
    size_t drop_count;
    size_t drop_capacity;
    size_t expired;    /* of the drops: rows whose entry's lifetime ended meanwhile */
    kvt_layout layout; /* of the row whose scratch is known, */
    kvt_variant variant;
    uint64_t scratch_bytes; /* and its scratch; layout and variant decide it */
    bool scratch_known;
    recover_item *items;
    size_t count;
    size_t capacity;
    store_offer_kept offer; /* of the entry that was adopted last */
    size_t held;            /* the first items, whose extents the pool has adopted */
};

/* Notes a row for deletion after the walk. False ends the walk: there is no memory. */
static bool recover_note_drop(recover_list *list, const kvt_key *key, uint64_t serial)
{
    if (list->drop_count == list->drop_capacity) {
        size_t capacity = list->drop_capacity == 0 ? 64 : list->drop_capacity * 2;
        catalog_name *drops = realloc(list->drops, capacity * sizeof *drops);
        if (drops == NULL) {
            list->status = KVT_E_MEMORY;
            return false;
        }
        list->drops = drops;
        list->drop_capacity = capacity;
    }
    list->drops[list->drop_count++] = (catalog_name){.key = *key, .serial = serial};
    return true;
}

/* Deletes the rows that were noted, durably, and counts them. */
static kvt_status recover_drop(recover_list *list)
{
    kvt_store *store = list->store;
    kvt_status status = catalog_drop_rows(store->catalog, list->drops, list->drop_count);
    store->counters.recovery_drops += list->drop_count - list->expired;
    store->counters.expired += list->expired;
    list->drop_count = 0;
    list->expired = 0;
    return status;
}

/* Whether a location touches a member of the mask. */
static bool recover_touches(const tiers_location *location, uint64_t members)
{
    for (uint32_t i = 0; i < location->share_count; i++) {
        const uint32_t member = location->shares[i].member;
        if (member < 64 && (members >> member & 1) != 0) return true;
    }
    return false;
}

/* The location of a row; KVT_E_CORRUPT of an unsound one. */
static kvt_status recover_location(const catalog_row *row, tiers_location **location_out)
{
    *location_out = NULL;
    if (row->location == NULL) return KVT_E_CORRUPT;
    return tiers_location_unpack(row->location, row->location_bytes, location_out);
}

/* ---- reading the rows ---- */

/* Undoes the taking over of one row: entry, ticket, place, and extents that the pool holds. The row
 * itself is still in the catalog, and stays there if this open fails. */
static void recover_forget(kvt_store *store, recover_item item, bool held)
{
    assert(item.place != NULL && item.place->readers == 0);
    if (item.entry != NULL) entry_erase(&store->table, item.entry);
    if (held)
        tiers_pool_disown(store->pools[KVT_TIER_SSD], item.place->location);
    else
        tiers_location_free(item.place->location);
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
    if (row->group_count != 0) return recover_group_scratch(list->store, row, bytes_out);
    if (!list->scratch_known || memcmp(&list->layout, &row->layout, sizeof row->layout) != 0 ||
        memcmp(&list->variant, &row->variant, sizeof row->variant) != 0) {
        const kvt_record_spec spec = {.key = row->key,
                                      .generation = row->generation,
                                      .layout = row->layout,
                                      .variant = row->variant,
                                      .first_position = row->first_position,
                                      .bases = bases_of(list->store, row->variant)};
        uint64_t bound_bytes, scratch_bytes;
        kvt_status status = executor_bound(list->store, &spec, &bound_bytes, &scratch_bytes);
        if (status != KVT_OK) return status;
        list->scratch_bytes = scratch_bytes;
        list->layout = row->layout;
        list->variant = row->variant;
        list->scratch_known = true;
    }
    *bytes_out = list->scratch_bytes;
    return KVT_OK;
}

/* Makes one row an entry of the table, with a place at the location, which is its own from then on;
 * on failure nothing of it remains. KVT_MISS: the lifetime of its entry has ended. */
static kvt_status recover_row(recover_list *list, const catalog_row *row, tiers_location *location,
                              recover_item *item_out)
{
    kvt_store *store = list->store;
    uint64_t scratch_bytes = 0;
    recover_item item = {.place = NULL};
    kvt_status status = KVT_OK;
    if (row->expires_ns != 0 && row->expires_ns <= base_calendar_ns()) status = KVT_MISS;
    if (status == KVT_OK && location->bytes != row->record_bytes) status = KVT_E_CORRUPT;
    if (status == KVT_OK) status = recover_scratch(list, row, &scratch_bytes);
    if (status == KVT_OK) {
        item.place = entry_place_new(&store->memory, row->variant);
        if (item.place == NULL) status = KVT_E_MEMORY;
    }
    if (status != KVT_OK) {
        tiers_location_free(location);
        return status;
    }
    *item.place = (store_place){.tier = KVT_TIER_SSD,
                                .variant = row->variant,
                                .serial = row->serial,
                                .generation = row->generation,
                                .record_bytes = row->record_bytes,
                                .scratch_bytes = scratch_bytes,
                                .location = location};
    status = catalog_ticket_new(&row->key, row->serial, &item.place->ticket);
    if (status == KVT_OK) {
        kvt_layout groups[KVT_GROUPS_MAX];
        const entry_shape shape = {&row->layout, groups, row->group_count};
        if (row->group_count != 0) memcpy(groups, row->groups, row->group_count * sizeof groups[0]);
        status = entry_insert(&store->table, &row->key, &shape, &item.entry);
    }
    if (status != KVT_OK) {
        recover_forget(store, item, false);
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
    if (row->expires_ns != 0) lifetime_from_calendar(store, entry, row->expires_ns);
    item.major = location->extents[0].member;
    item.minor = location->extents[0].offset;
    *item_out = item;
    return KVT_OK;
}

/* Makes room for so many items; false without memory. */
static bool recover_room(recover_list *list, size_t capacity)
{
    recover_item *items = realloc(list->items, capacity * sizeof *items);
    if (items == NULL) return false;
    list->items = items;
    list->capacity = capacity;
    return true;
}

/* Makes room for one more item. */
static bool recover_grow(recover_list *list)
{
    return list->count < list->capacity ||
           recover_room(list, list->capacity == 0 ? 256 : list->capacity * 2);
}

/* Makes one row an item, or notes it for deletion. False ends the walk: there is no memory. */
static bool recover_visit(void *context, const catalog_row *row)
{
    recover_list *list = context;
    tiers_location *location;
    kvt_status status = recover_location(row, &location);
    /* With stale members, an unsound row goes with theirs. */
    if (status == KVT_OK && recover_touches(location, list->members)) {
        tiers_location_free(location);
        list->found.stale++;
        return recover_note_drop(list, &row->key, row->serial);
    }
    if (row->serial > list->found.newest_serial) list->found.newest_serial = row->serial;
    list->found.rows++;
    if (!list->kept) {
        tiers_location_free(location);
        return true;
    }
    if (status == KVT_OK && !recover_grow(list)) {
        tiers_location_free(location);
        status = KVT_E_MEMORY;
    }
    if (status == KVT_OK) status = recover_row(list, row, location, &list->items[list->count]);
    if (status == KVT_OK) {
        list->count++;
        return true;
    }
    if (list->copied && status == KVT_E_CORRUPT) return false;
    list->status = status == KVT_E_MEMORY ? status : KVT_OK;
    if (status == KVT_MISS) list->expired++;
    return status != KVT_E_MEMORY && recover_note_drop(list, &row->key, row->serial);
}

/* Forgets all that was read. */
static void recover_forget_all(recover_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        recover_forget(list->store, list->items[i], i < list->held);
    list->count = list->held = list->drop_count = list->expired = 0;
    list->found = (recover_found){0};
}

/* Reads the rows that the last close left. KVT_MISS: there are none, or not all are sound. */
static kvt_status recover_read_kept(recover_list *list)
{
    const uint64_t count = catalog_kept_count(list->store->catalog);
    kvt_status status;
    if (list->members != 0 || !list->kept || count == 0) goto leave;
    /* A count that is not of this catalog costs address space alone. */
    if (recover_room(list, (size_t)count)) entry_table_reserve(&list->store->table, (size_t)count);
    list->copied = true;
    status = catalog_each_kept(list->store->catalog, recover_visit, list);
    list->copied = false;
    if (status == KVT_OK) return status;
    recover_forget_all(list);
leave:
    status = catalog_leave_kept(list->store->catalog);
    if (status == KVT_OK) status = list->status;
    return status == KVT_OK ? KVT_MISS : status;
}

kvt_status recover_read(kvt_store *store, uint64_t members, bool kept, recover_list **list_out,
                        recover_found *found_out)
{
    assert(store->catalog != NULL && store->table.count == 0);
    recover_list *list = calloc(1, sizeof *list);
    if (list == NULL) return KVT_E_MEMORY;
    *list = (recover_list){.store = store, .members = members, .kept = kept};
    kvt_status status = recover_read_kept(list);
    if (status == KVT_MISS)
        status = catalog_each_entry_unsorted(store->catalog, recover_visit, list);
    if (status == KVT_OK) status = list->status;
    *found_out = list->found;
    if (list_out == NULL) {
        recover_close(list);
        return status;
    }
    *list_out = list;
    KILL_POINT("open: rows read");
    return status == KVT_OK && members != 0 ? recover_drop(list) : status;
}

void recover_close(recover_list *list)
{
    if (list == NULL) return;
    recover_forget_all(list);
    free(list->drops);
    free(list->items);
    free(list);
}

/* ---- taking over ---- */

static int recover_compare(const void *left, const void *right)
{
    const recover_item *a = left, *b = right;
    if (a->major != b->major) return a->major > b->major ? 1 : -1;
    if (a->minor != b->minor) return a->minor > b->minor ? 1 : -1;
    return memcmp(&a->entry->key, &b->entry->key, sizeof a->entry->key);
}

/* Sorts the items, which may be sorted. */
static void recover_sort(recover_list *list)
{
    for (size_t i = 1; i < list->count; i++) {
        if (recover_compare(&list->items[i - 1], &list->items[i]) <= 0) continue;
        qsort(list->items, list->count, sizeof *list->items, recover_compare);
        return;
    }
}

/* Has the pool adopt the extents of all items, in the order in which they lie: each is then taken
 * from the front of the one free range behind it. Of two that overlap the later one is dropped. */
static void recover_hold(recover_list *list)
{
    tiers_pool *pool = list->store->pools[KVT_TIER_SSD];
    recover_sort(list);
    size_t next = 0;
    for (; next < list->count && list->status == KVT_OK; next++) {
        recover_item item = list->items[next];
        const kvt_status status =
            pool != NULL ? tiers_pool_adopt(pool, item.place->location) : KVT_E_CORRUPT;
        if (status == KVT_OK) {
            item.major = item.entry->first_position;
            item.minor = item.place->generation;
            list->items[list->held++] = item;
        } else {
            if (status == KVT_E_MEMORY) list->status = status;
            (void)recover_note_drop(list, &item.entry->key, item.place->serial);
            recover_forget(list->store, item, false);
        }
    }
    while (next < list->count)
        recover_forget(list->store, list->items[next++], false);
    list->count = list->held;
}

/* Hands an entry to the policy, and makes it readable; an entry that it does not take is noted for
 * deletion. */
static void recover_adopt(recover_list *list, recover_item item)
{
    assert(item.entry->state == ENTRY_ARRIVING && item.place->location != NULL);
    kvt_store *store = list->store;
    kvt_status status = store_adopt(store, item.entry, KVT_TIER_SSD, item.place->variant,
                                    item.place->record_bytes, &list->offer);
    if (status == KVT_OK) {
        item.entry->place = item.place;
        entry_set_state(item.entry, ENTRY_ARRIVING, ENTRY_RESIDENT);
        watch_note_stored(store, item.entry);
        catalog_account(store->catalog, &item.entry->key, item.place->serial, true);
        store->counters.recovered++;
        return;
    }
    if (status == KVT_E_MEMORY) list->status = status;
    (void)recover_note_drop(list, &item.entry->key, item.place->serial);
    recover_forget(store, item, true);
}

/* Items whose entry and place are prefetched: each is a miss of the caches. */
enum { RECOVER_AHEAD = 12 };

kvt_status recover_entries(recover_list *list)
{
    kvt_store *store = list->store;
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
    if (list->count != 0) recover_hold(list);
    kvt_status status = list->status;
    if (status == KVT_OK) status = uses_read(store, &uses);
    recover_sort(list); /* parents first; of equals the older one */
    size_t adopted = 0;
    for (; status == KVT_OK && adopted < list->count; status = list->status) {
        if (adopted + RECOVER_AHEAD < list->count) {
            __builtin_prefetch(list->items[adopted + RECOVER_AHEAD].entry, 1);
            __builtin_prefetch(&list->items[adopted + RECOVER_AHEAD].entry->kind, 1);
            __builtin_prefetch(list->items[adopted + RECOVER_AHEAD].place);
        }
        recover_adopt(list, list->items[adopted++]);
    }
    while (adopted < list->count)
        recover_forget(store, list->items[adopted++], true);
    list->count = list->held = 0;
    uses_give(store, &uses);
    store_settle_capacity(store);
    return status == KVT_OK ? recover_drop(list) : status;
}

/* ---- keeping the rows ---- */

/* Lists the places of a table that have a row. */
static void recover_list_places(recover_list *list, const entry_table *table)
{
    for (size_t i = 0; i < table->bucket_count; i++) {
        for (store_entry *entry = table->buckets[i]; entry != NULL; entry = entry->next) {
            store_place *places[2] = {entry->place, entry->copy};
            for (int j = 0; j < 2; j++) {
                if (places[j] == NULL || places[j]->left != PLACE_HELD || places[j]->ticket == NULL)
                    continue;
                const tiers_extent *first = &places[j]->location->extents[0];
                list->items[list->count++] = (recover_item){.entry = entry,
                                                            .place = places[j],
                                                            .major = first->member,
                                                            .minor = first->offset};
            }
        }
    }
}

/* Hands one row over. */
static bool recover_keep_row(kvt_store *store, const recover_item *item, catalog_keeper *keeper)
{
    uint8_t small[512];
    const store_place *place = item->place;
    catalog_row row = executor_row_of(store, item->entry, place);
    row.location_bytes = tiers_location_pack(place->location, small, sizeof small);
    row.location = row.location_bytes <= sizeof small ? small : malloc(row.location_bytes);
    if (row.location == NULL) return false;
    if (row.location != small)
        (void)tiers_location_pack(place->location, row.location, row.location_bytes);
    const bool taken = catalog_keep_row(keeper, &row);
    if (row.location != small) free(row.location);
    return taken;
}

/* Hands all rows over. */
static void recover_keep(void *context, catalog_keeper *keeper)
{
    const recover_list *list = context;
    for (size_t i = 0; i < list->count; i++)
        if (!recover_keep_row(list->store, &list->items[i], keeper)) break;
}

void recover_close_catalog(kvt_store *store)
{
    const size_t most = 2 * (store->table.count + store->quarantined.count); /* place and copy */
    recover_list list = {.store = store, .items = malloc(most * sizeof *list.items)};
    if (list.items != NULL) {
        recover_list_places(&list, &store->table);
        recover_list_places(&list, &store->quarantined);
        recover_sort(&list);
        catalog_keep_at_close(store->catalog, list.count, recover_keep, &list);
    }
    catalog_close(store->catalog);
    free(list.items);
}
