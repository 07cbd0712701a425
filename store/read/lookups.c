/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lookups.c - exists and match: lookups that read nothing and count no use.
 *
 * Thread rule: any thread. The control lock for a few hash steps, or for LOOKUP_MATCH_STEP keys.
 */
#include "store/read/lookups.h"
#include "base/struct_size.h"
#include "store/hosts/remote_tier.h"
#include "store/learn/token_drop.h"

#include <assert.h>
#include <math.h>

#define LOOKUP_MATCH_LEAST STRUCT_SIZE_THROUGH(kvt_match, load_seconds)

kvt_status kvt_store_exists(kvt_store *store, const kvt_key *key)
{
    const base_store_calls *other = base_store_calls_now(store);
    if (other != NULL) return BASE_CALL(other, exists, store, key);
    if (!fork_guard_is_ours(store)) return KVT_E_STATE;
    if (key == NULL) return KVT_E_ARGUMENT;
    pthread_mutex_lock(&store->lock);
    const store_entry *entry = entry_find_key(&store->table, key);
    bool there = lookup_finds(store, entry);
    pthread_mutex_unlock(&store->lock);
    return there ? KVT_OK : KVT_MISS;
}

/* Seconds of a get of each key. */
static void lookup_predict(kvt_store *store, const kvt_key *keys, size_t count, double *seconds_out)
{
    pthread_mutex_lock(&store->lock);
    for (size_t i = 0; i < count; i++) {
        const store_entry *entry = entry_find_key(&store->table, &keys[i]);
        const bool finds = lookup_finds(store, entry);
        seconds_out[i] = finds ? learn_load_seconds(store, entry, i == 0) : (double)NAN;
    }
    pthread_mutex_unlock(&store->lock);
}

/* Keys looked up under one hold of the lock, so that gets and puts come in between. */
#define LOOKUP_MATCH_STEP 256u

/* How many leading keys are stored. Lock held. */
static size_t lookup_match(const kvt_store *store, const entry_sight *sight)
{
    assert(store_is_locked(store));
    size_t matched = 0;
    while (matched < sight->count) {
        const store_entry *entry = entry_sight_find(&store->table, sight, matched);
        if (!lookup_finds(store, entry) || token_drop_is_uncounted(entry)) break;
        matched++;
    }
    return matched;
}

/* The same of all keys. No lock held. */
static size_t lookup_match_all(kvt_store *store, const kvt_key *keys, size_t count)
{
    size_t matched = 0;
    bool whole = true;
    while (whole && matched < count) {
        size_t step = count - matched < LOOKUP_MATCH_STEP ? count - matched : LOOKUP_MATCH_STEP;
        entry_sight sight;
        entry_sight_begin(&sight, &store->secret, &keys[matched], step);
        pthread_mutex_lock(&store->lock);
        size_t found = lookup_match(store, &sight);
        pthread_mutex_unlock(&store->lock);
        matched += found;
        whole = found == step;
    }
    return matched;
}

kvt_status kvt_store_match(kvt_store *store, const kvt_key *keys, size_t count,
                           const kvt_match *match, size_t *matched_out)
{
    const base_store_calls *other = base_store_calls_now(store);
    if (other != NULL) return BASE_CALL(other, match, store, keys, count, match, matched_out);
    kvt_match whole = {.struct_size = sizeof whole};
    if (store == NULL || (keys == NULL && count != 0)) return KVT_E_ARGUMENT;
    if (match == NULL) match = &whole;
    match = struct_size_in(match, &whole, sizeof whole, LOOKUP_MATCH_LEAST);
    if (match == NULL) return KVT_E_ARGUMENT;
    if (matched_out == NULL && match->worth == NULL && match->load_seconds == NULL)
        return KVT_E_ARGUMENT;
    if (match->worth != NULL && !worth_is_sound(match->worth)) return KVT_E_ARGUMENT;
    if (!fork_guard_is_ours(store)) return KVT_E_STATE;
    size_t matched = 0;
    if (match->hosts && store->remote != NULL && count != 0) {
        kvt_status status = remote_match(store, keys, count, match->deadline_ns, &matched);
        if (status != KVT_OK) return status;
    } else if (matched_out != NULL) {
        matched = lookup_match_all(store, keys, count);
    }
    if (match->worth != NULL) worth_find(store, keys, count, match->worth);
    if (match->load_seconds != NULL) lookup_predict(store, keys, count, match->load_seconds);
    if (matched_out != NULL) *matched_out = matched;
    return KVT_OK;
}
