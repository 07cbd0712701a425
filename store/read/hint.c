/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hint.c - what a caller says of entries that it will use, or will not: prefetch and hints. The
 * file moves nothing: the policy plans, and the background carries it out.
 *
 * Thread rule: any thread; the control lock for at most HINT_STEP look-ups, or one decision.
 */
#include "base/struct_size.h"
#include "store/background/maintain.h"
#include "store/core/plans.h"
#include "store/hosts/remote_tier.h"
#include "store/read/lookups.h"

#include <assert.h>
#include <kvterrace/lookup.h>

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
    store_count_decision(store, started_ns, store_now_ns(store));
    if (status != KVT_OK || plan.count == 0) return status;
    assert(plan.count <= plan.capacity);
    plan_mark(store, &plan);
    /* plan_queue aborts the plan where there is no memory to keep it. */
    uint32_t before = store->queue_count;
    plan_queue(store, &plan);
    if (store->queue_count == before) return KVT_E_MEMORY;
    maintain_wake(store);
    return KVT_OK;
}

kvt_status kvt_store_prefetch(kvt_store *store, const kvt_key *key, kvt_tier tier)
{
    const base_store_calls *other = base_store_calls_of(store);
    if (other != NULL) return BASE_CALL(other, prefetch, store, key, tier);
    if (store == NULL || key == NULL) return KVT_E_ARGUMENT;
    if (!fork_guard_is_ours(store)) return KVT_E_STATE;
    if ((int)tier <= KVT_TIER_NONE || (int)tier >= KVT_TIER_COUNT) return KVT_E_UNSUPPORTED;
    if (store->pools[tier] == NULL) return KVT_E_UNSUPPORTED;
    kvt_status status = KVT_MISS;
    pthread_mutex_lock(&store->lock);
    const store_entry *entry = entry_find_key(&store->table, key);
    if (lookup_finds(store, entry) && entry->state == ENTRY_STAGED)
        /* An entry in a put's staging lies in memory, whatever tier it goes to. */
        status = tier >= KVT_TIER_DRAM ? KVT_OK : KVT_REFUSED;
    else if (lookup_finds(store, entry))
        status = hint_promote(store, entry, tier);
    const bool elsewhere = entry == NULL && store->remote != NULL;
    const uint32_t tenant = elsewhere ? spaces_tenant(store, key) : 0;
    pthread_mutex_unlock(&store->lock);
    return elsewhere ? remote_prefetch_ask(store, key, tenant) : status;
}

/* ---- hints ---- */

#define HINT_STEP  256u /* keys under one hold of the lock */
#define HINT_LEAST STRUCT_SIZE_THROUGH(kvt_expectation, seconds)

/* Gives the hint for some keys, as of one moment. Lock held. */
static kvt_status hint_give(kvt_store *store, const kvt_key *keys, size_t count,
                            const kvt_expectation *expected, size_t *given)
{
    assert(store_is_locked(store));
    const uint64_t now_ns = store_now_ns(store);
    for (size_t i = 0; i < count; i++) {
        const store_entry *entry = entry_find_key(&store->table, &keys[i]);
        kvt_status status = KVT_MISS;
        if (lookup_finds(store, entry))
            status =
                kvt_policy_hint(store->policy, now_ns, entry->handle, (kvt_hint_kind)expected->kind,
                                expected->seconds, entry->tenant);
        if (status == KVT_MISS)
            store->hints_skipped++;
        else if (status != KVT_OK)
            return status;
        else
            ++*given;
    }
    return KVT_OK;
}

/* The policy checks the same numbers, but not when no key is stored. */
static bool hint_is_sound(const kvt_expectation *expected)
{
    if (expected->kind >= KVT_HINT_KINDS) return false;
    bool use = expected->kind == KVT_HINT_RETAIN || expected->kind == KVT_HINT_NEXT_USE;
    return use ? expected->seconds > 0 && expected->seconds <= KVT_HINT_SECONDS_MAX
               : expected->seconds >= 0 && expected->seconds <= KVT_HINT_SECONDS_MAX;
}

kvt_status kvt_store_hint(kvt_store *store, const kvt_key *keys, size_t count,
                          const kvt_expectation *expected, size_t *hinted_out)
{
    const base_store_calls *other = base_store_calls_of(store);
    if (other != NULL) return BASE_CALL(other, hint, store, keys, count, expected, hinted_out);
    if (store == NULL || expected == NULL || (keys == NULL && count != 0)) return KVT_E_ARGUMENT;
    if (!fork_guard_is_ours(store)) return KVT_E_STATE;
    kvt_expectation whole = {0};
    expected = struct_size_in(expected, &whole, sizeof whole, HINT_LEAST);
    if (expected == NULL || !hint_is_sound(expected)) return KVT_E_ARGUMENT;
    kvt_status status = KVT_OK;
    size_t given = 0;
    for (size_t from = 0; from < count && status == KVT_OK; from += HINT_STEP) {
        size_t step = count - from < HINT_STEP ? count - from : HINT_STEP;
        pthread_mutex_lock(&store->lock);
        status = hint_give(store, &keys[from], step, expected, &given);
        pthread_mutex_unlock(&store->lock);
    }
    assert(given <= count);
    if (hinted_out != NULL) *hinted_out = given;
    if (status != KVT_OK) return status;
    return given != 0 || count == 0 ? KVT_OK : KVT_MISS;
}
