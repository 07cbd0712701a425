/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hint.c - what a caller says of entries that it will use: prefetch. The file moves nothing: the
 * policy plans, and the background carries it out.
 *
 * Thread rule: any thread; the control lock for one look-up and one decision.
 */
#include "store/fork_guard.h"
#include "store/store.h"

#include <assert.h>
#include <kvterrace/lookup.h>

/* What a put has handed over lies in memory, whatever tier it goes to. */
static kvt_status hint_prefetch_staged(kvt_tier tier)
{
    return tier >= KVT_TIER_DRAM ? KVT_OK : KVT_REFUSED;
}

/* Asks the policy for a plan and has the background carry it out. Lock held. */
static kvt_status hint_promote(kvt_store *store, const store_entry *entry, kvt_tier tier)
{
    assert(store_is_locked(store) && entry->place != NULL);
    if (entry->place->tier <= tier && entry->state == ENTRY_RESIDENT) return KVT_OK;
    if (store->queue_count == STORE_PLANS_QUEUED || store->stopping) return KVT_REFUSED;
    kvt_move moves[32];
    kvt_plan plan = {.moves = moves, .capacity = 32};
    backoff_expire(store);
    uint64_t started_ns = store_now_ns(store);
    kvt_status status = kvt_policy_promote(store->policy, started_ns, entry->handle, tier, &plan);
    store_count_decision(store, started_ns);
    if (status != KVT_OK || plan.count == 0) return status;
    plan_mark(store, &plan);
    uint32_t before = store->queue_count;
    plan_queue(store, &plan);
    if (store->queue_count == before) return KVT_E_MEMORY;
    maintain_wake(store);
    return KVT_OK;
}

kvt_status kvt_prefetch(kvt_store *store, const kvt_key *key, kvt_tier tier)
{
    if (store == NULL || key == NULL) return KVT_E_ARGUMENT;
    if (!fork_guard_is_ours(store)) return KVT_E_STATE;
    if ((int)tier <= KVT_TIER_NONE || (int)tier >= KVT_TIER_COUNT) return KVT_E_UNSUPPORTED;
    if (store->pools[tier] == NULL) return KVT_E_UNSUPPORTED;
    kvt_status status = KVT_MISS;
    pthread_mutex_lock(&store->lock);
    const store_entry *entry = entry_find_key(&store->table, key);
    if (entry != NULL && entry_is_readable(entry))
        status = entry->state == ENTRY_STAGED ? hint_prefetch_staged(tier)
                                              : hint_promote(store, entry, tier);
    pthread_mutex_unlock(&store->lock);
    return status;
}
