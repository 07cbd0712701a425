/* SPDX-License-Identifier: Apache-2.0 */
/*
 * follow_look.c - rows of the catalog, looked up at each call, and the calls that they answer.
 *
 * A row that a writer has committed is seen by the next lookup. The catalog's file may be replaced,
 * and its writer come and go, at any time; what was read meanwhile is read again.
 *
 * Thread rule: as follow_internal.h.
 */
#include "base/clock.h"
#include "base/struct_size.h"
#include "codecs/codecs.h"
#include "store/core/entry.h"
#include "store/follow/follow_internal.h"

#include <kvterrace/names.h>
#include <math.h>
#include <string.h>

#define LOOK_DESCRIPTION_LEAST STRUCT_SIZE_THROUGH(kvt_description, groups)
#define LOOK_MATCH_LEAST       STRUCT_SIZE_THROUGH(kvt_match, load_seconds)
#define LOOK_TRIES             3u /* of one lookup, each with the catalog opened anew */

kvt_status follow_catalog(follow_store *store, char *message, size_t size)
{
    if (store->catalog != NULL && !catalog_has_moved(store->catalog)) return KVT_OK;
    catalog_close(store->catalog);
    const uint32_t beside = store->within ? CATALOG_WITHIN : CATALOG_BESIDE;
    store->catalog_failure =
        catalog_open(store->catalog_path, CATALOG_READ | beside, &store->catalog, message, size);
    if (store->catalog_failure == KVT_MISS) store->catalog_failure = KVT_E_GONE;
    return store->catalog_failure;
}

/* Copies a row, whose bytes are SQLite's. */
static void look_visit(void *context, const catalog_row *row)
{
    follow_row *out = context;
    out->status = KVT_E_CORRUPT;
    if (row->location == NULL) return;
    out->row = *row;
    out->row.groups = NULL;
    out->row.location = NULL;
    if (row->group_count != 0)
        memcpy(out->groups, row->groups, row->group_count * sizeof out->groups[0]);
    out->status = kvt_layout_bytes(&row->layout, &out->source_bytes);
    if (out->status == KVT_OK && out->wants_location)
        out->status = tiers_location_unpack(row->location, row->location_bytes, &out->location);
}

kvt_status follow_look(follow_store *store, const kvt_key *key, follow_row *out)
{
    char message[256];
    const bool wants = out->wants_location;
    kvt_status status = KVT_E_GONE;
    for (uint32_t i = 0; i < LOOK_TRIES; i++) {
        *out = (follow_row){.wants_location = wants};
        status = follow_catalog(store, message, sizeof message);
        if (status != KVT_OK) continue;
        status = catalog_find_entry(store->catalog, key, look_visit, out);
        if (status == KVT_OK) status = out->status;
        if (status == KVT_E_MEMORY) return status;
        const bool moved = catalog_has_moved(store->catalog);
        if ((status == KVT_OK || status == KVT_MISS) && !moved) break;
        tiers_location_free(out->location);
        out->location = NULL;
        if (moved || status == KVT_E_CORRUPT) continue;
        /* SQLite has failed: with another connection it may not. */
        catalog_close(store->catalog);
        store->catalog = NULL;
        store->catalog_failure = status;
    }
    const uint64_t end_ns = status == KVT_OK ? out->row.expires_ns : 0;
    if (status == KVT_OK && (end_ns == 0 || base_calendar_ns() < end_ns)) return KVT_OK;
    tiers_location_free(out->location);
    out->location = NULL;
    return KVT_MISS;
}

bool follow_has_basis(follow_store *store, kvt_variant variant)
{
    uint32_t start;
    if (!entry_basis_of(variant, &start)) return true;
    for (int looked = 0; looked < 2; looked++) {
        for (uint32_t i = 0; i < store->base_count; i++)
            if (transform_hash_start(store->bases[i]->hash) == start) return true;
        if (looked == 0) follow_bases_look(store);
    }
    return false;
}

kvt_status follow_exists(kvt_store *handle, const kvt_key *key)
{
    follow_store *store = follow_enter(handle);
    follow_row row = {.wants_location = false};
    if (store == NULL) return KVT_E_STATE;
    if (key == NULL) return KVT_E_ARGUMENT;
    pthread_mutex_lock(&store->lock);
    kvt_status status = follow_look(store, key, &row);
    if (status == KVT_OK && !follow_has_basis(store, row.row.variant)) status = KVT_MISS;
    pthread_mutex_unlock(&store->lock);
    return status;
}

kvt_status follow_describe(kvt_store *handle, const kvt_key *key, kvt_description *out)
{
    follow_store *store = follow_enter(handle);
    follow_row found = {.wants_location = false};
    if (store == NULL) return KVT_E_STATE;
    if (key == NULL || out == NULL || !struct_size_is_sound(out, LOOK_DESCRIPTION_LEAST))
        return KVT_E_ARGUMENT;
    if (out->groups == NULL && out->groups_capacity != 0) return KVT_E_ARGUMENT;
    kvt_description whole = {.struct_size = sizeof whole,
                             .groups_capacity = out->groups_capacity,
                             .groups = out->groups};
    pthread_mutex_lock(&store->lock);
    const kvt_status status = follow_look(store, key, &found);
    const bool has = status == KVT_OK && follow_has_basis(store, found.row.variant);
    pthread_mutex_unlock(&store->lock);
    const catalog_row *row = &found.row;
    if (status == KVT_OK) {
        const uint64_t now_ns = base_calendar_ns();
        uint32_t sets;
        whole.tier = KVT_TIER_SSD;
        whole.layout = row->layout;
        whole.bytes = found.source_bytes;
        whole.variant = row->variant;
        whole.stored_bytes = row->record_bytes;
        whole.has_parent = row->has_parent;
        whole.parent = row->parent;
        whole.first_position = row->first_position;
        whole.request_tokens = row->request_tokens;
        whole.tenant = row->tenant;
        whole.class_id = row->class_id;
        if (row->expires_ns > now_ns)
            whole.lifetime_seconds = (double)(row->expires_ns - now_ns) * 1e-9;
        whole.lacks_basis = has ? 0 : 1;
        whole.group_count = row->group_count;
        whole.tokens_kept = row->layout.tokens;
        if (row->group_count == 0 &&
            codecs_kept_tokens(&row->layout, row->first_position, row->variant, &whole.tokens_kept,
                               &sets) != KVT_OK)
            whole.tokens_kept = 0; /* a variant that this library does not know */
        if (row->group_count != 0 && row->group_count <= out->groups_capacity)
            memcpy(out->groups, found.groups, row->group_count * sizeof found.groups[0]);
    }
    struct_size_out(out, &whole, sizeof whole);
    return status;
}

kvt_status follow_match(kvt_store *handle, const kvt_key *keys, size_t count,
                        const kvt_match *match, size_t *matched_out)
{
    follow_store *store = follow_enter(handle);
    kvt_match whole = {.struct_size = sizeof whole};
    if (store == NULL) return KVT_E_STATE;
    if ((keys == NULL && count != 0) || matched_out == NULL) return KVT_E_ARGUMENT;
    match = match == NULL ? &whole : struct_size_in(match, &whole, sizeof whole, LOOK_MATCH_LEAST);
    if (match == NULL) return KVT_E_ARGUMENT;
    /* They are predictions of a policy and of learned figures, which a follower has not. */
    if (match->worth != NULL || match->load_seconds != NULL) return KVT_E_UNSUPPORTED;
    for (*matched_out = 0; *matched_out < count; ++*matched_out) {
        follow_row row = {.wants_location = false};
        pthread_mutex_lock(&store->lock);
        kvt_status status = follow_look(store, &keys[*matched_out], &row);
        /* A get refuses records without some of their tokens. */
        const bool reads = status == KVT_OK && follow_has_basis(store, row.row.variant) &&
                           !kvt_variant_drops_tokens(row.row.variant);
        pthread_mutex_unlock(&store->lock);
        if (status != KVT_OK && status != KVT_MISS) return status;
        if (!reads) break;
    }
    return KVT_OK;
}
