/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lookups.c - exists, predicted loads and match_prefix: lookups that read nothing and count no use.
 *
 * Thread rule: any thread. The control lock for a few hash steps, or for LOOKUP_MATCH_STEP keys.
 */
#include "store/read/lookups.h"
#include "store/learn/token_drop.h"

#include <assert.h>
#include <math.h>

kvt_status kvt_store_exists(kvt_store *store, const kvt_key *key)
{
    if (!fork_guard_is_ours(store)) return KVT_E_STATE;
    if (key == NULL) return KVT_E_ARGUMENT;
    pthread_mutex_lock(&store->lock);
    const store_entry *entry = entry_find_key(&store->table, key);
    bool there = lookup_finds(store, entry);
    pthread_mutex_unlock(&store->lock);
    return there ? KVT_OK : KVT_MISS;
}

kvt_status kvt_predict_loads(kvt_store *store, const kvt_key *keys, size_t count,
                             double *seconds_out)
{
    if (!fork_guard_is_ours(store)) return KVT_E_STATE;
    if (count != 0 && (keys == NULL || seconds_out == NULL)) return KVT_E_ARGUMENT;
    pthread_mutex_lock(&store->lock);
    for (size_t i = 0; i < count; i++) {
        const store_entry *entry = entry_find_key(&store->table, &keys[i]);
        const bool finds = lookup_finds(store, entry);
        seconds_out[i] = finds ? learn_load_seconds(store, entry, i == 0) : (double)NAN;
    }
    pthread_mutex_unlock(&store->lock);
    return KVT_OK;
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

kvt_status kvt_match_prefix(kvt_store *store, const kvt_key *keys, size_t count,
                            size_t *matched_out)
{
    if (!fork_guard_is_ours(store)) return KVT_E_STATE;
    if (matched_out == NULL || (keys == NULL && count != 0)) return KVT_E_ARGUMENT;
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
    *matched_out = matched;
    return KVT_OK;
}
