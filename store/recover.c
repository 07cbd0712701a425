/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recover.c - takes over what the catalog lists when a store is opened.
 *
 * Nothing is read from the devices: a record that rotted fails its first get. A row that cannot be
 * taken over is deleted and counted; its extents stay free.
 *
 * Thread rule: the opener's thread, before the catalog's writer and the background start.
 */
#include "store/store.h"
#include "tiers/kill_point.h"

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
    kvt_status status = catalog_each_entry(catalog, recover_visit_stale, &walk);
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
    kvt_status status = catalog_each_entry(catalog, recover_visit_stale, &walk);
    if (status == KVT_OK) status = walk.status;
    *count_out = walk.drop_count;
    free(walk.drops);
    return status;
}

/* ---- taking over ---- */

/* The option that stands for a stored record, its bytes corrected to what is stored. */
static uint8_t recover_find_option(kvt_tier tier, kvt_variant variant, uint64_t record_bytes,
                                   kvt_option *options, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++) {
        if (options[i].bytes[tier] == 0) continue;
        if (memcmp(&options[i].variant, &variant, sizeof variant) != 0) continue;
        options[i].bytes[tier] = record_bytes;
        options[i].read_bytes[tier] = record_bytes;
        return (uint8_t)i;
    }
    return KVT_OPTION_NONE;
}

kvt_status recover_adopt_policy(kvt_store *store, const store_entry *entry, kvt_tier tier,
                                kvt_variant variant, uint64_t record_bytes)
{
    kvt_option options[KVT_OPTIONS_MAX];
    kvt_policy_entry offer = {
        .handle = entry->handle,
        .parent = entry->has_parent ? entry_handle(&store->secret, &entry->parent) : 0,
        .options = options,
        .tokens = entry->layout.tokens};
    store_describe(entry, &offer);
    kvt_status status = store_build_options(store, entry, options, &offer.option_count);
    if (status != KVT_OK) return status;
    uint8_t option = recover_find_option(tier, variant, record_bytes, options, offer.option_count);
    if (option == KVT_OPTION_NONE) return KVT_E_UNSUPPORTED;
    return kvt_policy_adopt(store->policy, store_now_ns(store), &offer, option);
}

/* Takes one row over; on failure nothing of it remains. */
static kvt_status recover_row(kvt_store *store, const catalog_row *row)
{
    tiers_location *location = NULL;
    store_entry *entry = NULL;
    bool adopted = false;
    if (row->location == NULL || store->pools[KVT_TIER_SSD] == NULL) return KVT_E_CORRUPT;
    store_place *place = calloc(1, sizeof *place);
    if (place == NULL) return KVT_E_MEMORY;
    kvt_status status = tiers_location_unpack(row->location, row->location_bytes, &location);
    if (status != KVT_OK) goto out;
    if (location->bytes != row->record_bytes) status = KVT_E_CORRUPT;
    if (status == KVT_OK) status = tiers_pool_adopt(store->pools[KVT_TIER_SSD], location);
    if (status != KVT_OK) goto out;
    adopted = true;
    status = catalog_ticket_new(&row->key, row->serial, &place->ticket);
    if (status == KVT_OK) status = entry_insert(&store->table, &row->key, &entry);
    if (status != KVT_OK) goto out;
    entry->has_parent = row->has_parent;
    entry->parent = row->parent;
    entry->layout = row->layout;
    (void)!kvt_layout_bytes(&row->layout, &entry->source_bytes); /* checked by the catalog */
    entry->first_position = row->first_position;
    entry->recompute_seconds = row->recompute_seconds;
    status = recover_adopt_policy(store, entry, KVT_TIER_SSD, row->variant, row->record_bytes);
    if (status != KVT_OK) goto out;
    place->tier = KVT_TIER_SSD;
    place->variant = row->variant;
    place->serial = row->serial;
    place->generation = row->generation;
    place->record_bytes = row->record_bytes;
    place->location = location;
    entry->place = place;
    entry_set_state(entry, ENTRY_ARRIVING, ENTRY_RESIDENT);
    return KVT_OK;
out:
    if (entry != NULL) entry_erase(&store->table, entry);
    if (adopted) {
        /* Its row is still in the catalog, and stays there if this open fails. */
        tiers_pool_disown(store->pools[KVT_TIER_SSD], location);
    } else {
        tiers_location_free(location);
    }
    catalog_ticket_free(place->ticket);
    free(place);
    return status;
}

static bool recover_visit(void *context, const catalog_row *row)
{
    recover_walk *walk = context;
    kvt_status status = recover_row(walk->store, row);
    if (status == KVT_OK) {
        walk->store->counters.recovered++;
        return true;
    }
    if (status == KVT_E_MEMORY) {
        walk->status = status;
        return false;
    }
    return recover_note_drop(walk, row);
}

kvt_status recover_entries(kvt_store *store)
{
    recover_walk walk = {.store = store};
    kvt_status status = catalog_each_entry(store->catalog, recover_visit, &walk);
    if (status == KVT_OK) status = walk.status;
    KILL_POINT("open: rows read");
    if (status == KVT_OK) status = catalog_drop_rows(store->catalog, walk.drops, walk.drop_count);
    store->counters.recovery_drops += walk.drop_count;
    free(walk.drops);
    return status;
}
