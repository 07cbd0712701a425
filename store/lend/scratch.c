/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scratch.c - lends bytes of the tiers: the store's count of lent bytes lowers the capacity that
 * the policy plans with (store_policy_capacity), and what is lent bounds what is reserved.
 *
 *     open      lent rises, capacity falls -> entries make way where they must -> granted
 *                                          \-> they do not: lent falls again, refused
 *     reserve   within the grant; extents that the policy has given up already may still be owed
 *               by the catalog, or held by copies and quarantined entries, which make way
 *     close     lent falls, capacity rises
 *
 * Invariant: store->lent_bytes[tier] is the sum of what the open scratches were granted there and
 * of visits whose entries have left (visit.h), and what a scratch has reserved is at most its
 * grant. Both under the control lock.
 */
#include "store/lend/scratch.h"
#include "store/core/plans.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "store/core/kill_note.h"
#include "store/learn/uses.h"
#include "store/read/lookups.h"

enum {
    SCRATCH_IDLE_ROUNDS = 4, /* without progress, until entries are taken to stay */
    SCRATCH_COMPARED = 64,   /* entries of which the least worth goes */
    SCRATCH_NAP_NS = 1000000 /* between two rounds, or looks at another thread's */
};
#define SCRATCH_WAIT_NS UINT64_C(10000000000)

struct store_scratch {
    kvt_store *store;
    uint64_t granted[KVT_TIER_COUNT]; /* under the control lock, as reserved */
    uint64_t reserved[KVT_TIER_COUNT];
};

/* Gives the policy the capacity that is left now. Lock held. */
static void scratch_update_policy(kvt_store *store, kvt_tier tier)
{
    (void)!kvt_policy_capacity_set(store->policy, tier, store_policy_capacity(store, tier));
}

/* Bytes that the policy counts in a tier, moves in flight included. Lock held. */
static uint64_t scratch_policy_used(kvt_store *store, kvt_tier tier, double *price_out)
{
    kvt_policy_stats stats;
    kvt_policy_stats_get(store->policy, &stats);
    *price_out = stats.price[tier];
    return stats.used_bytes[tier];
}

/* Bytes that a tier lacks for a request, by the policy's account; 0 with the capacity lowered,
 * which the policy may not have room for yet: *used_out says so. Lock held. */
static uint64_t scratch_ask(kvt_store *store, const scratch_wish *wish, uint64_t *used_out)
{
    const uint64_t capacity = store_policy_capacity(store, wish->tier);
    double price;
    *used_out = scratch_policy_used(store, wish->tier, &price);
    const uint64_t taken = *used_out + store->withheld_bytes[wish->tier];
    const uint64_t free = taken < capacity ? capacity - taken : 0;
    if (wish->bytes > capacity) return wish->bytes - capacity;
    if (wish->bytes > free && !(wish->worth_per_byte > price)) return wish->bytes - free;
    store->lent_bytes[wish->tier] += wish->bytes;
    scratch_update_policy(store, wish->tier);
    return 0;
}

/* The entry at rest in a tier that is worth least per byte among some dozens, from a place in the
 * table on that goes round; NULL: none may go. One that others continue, or that is held, stays.
 * Lock held. */
static store_entry *scratch_find_least(kvt_store *store, kvt_tier tier, size_t *bucket)
{
    const size_t count = store->table.bucket_count;
    store_entry *least = NULL;
    double least_worth = 0;
    uint32_t seen = 0;
    for (size_t i = 0; i < count && seen < SCRATCH_COMPARED; i++) {
        store_entry *entry = store->table.buckets[(*bucket)++ % count];
        for (; entry != NULL; entry = entry->next) {
            kvt_policy_worth worth = {.struct_size = sizeof worth};
            if (entry->state != ENTRY_RESIDENT || entry->place->tier != tier ||
                entry->place->visited)
                continue;
            if (kvt_policy_worth_get(store->policy, entry->handle, tier, &worth) != KVT_OK ||
                worth.resident_children != 0 ||
                lease_find_hold(&store->leases, entry->handle) != NULL)
                continue;
            seen++;
            if (least != NULL && worth.per_byte >= least_worth) continue;
            least = entry;
            least_worth = worth.per_byte;
        }
    }
    return least;
}

/* Drops entries until the policy's account fits the capacity, for policies that make room for a put
 * alone. False when there was none to drop. No lock held. */
static bool scratch_drop_entries(kvt_store *store, kvt_tier tier)
{
    bool dropped = false;
    size_t bucket = 0;
    pthread_mutex_lock(&store->lock);
    for (;;) {
        double price;
        scratch_update_policy(store, tier);
        if (scratch_policy_used(store, tier, &price) <= store_policy_capacity(store, tier)) break;
        store_entry *entry = scratch_find_least(store, tier, &bucket);
        if (entry == NULL) break;
        KILL_NOTE(KILL_NOTE_GIVES_WAY, &entry->key, tier);
        quarantine_drop_entry(store, entry, KVT_REMOVED_EVICTED);
        store->counters.evictions++;
        dropped = true;
    }
    pthread_mutex_unlock(&store->lock);
    return dropped;
}

/* Lets the policy's tick evict and demote until its bytes fit the capacity that is left; entries
 * that a tick leaves are dropped. A tier whose new capacity is below its bytes keeps them, and each
 * later call can lower the capacity further. Returns the bytes that are still too many. No lock
 * held. */
static uint64_t scratch_make_room(kvt_store *store, kvt_tier tier, uint64_t used)
{
    const uint64_t end_ns = base_clock_ns() + SCRATCH_WAIT_NS;
    uint32_t idle = 0;
    for (;;) {
        double price;
        pthread_mutex_lock(&store->lock);
        scratch_update_policy(store, tier);
        const uint64_t now_used = scratch_policy_used(store, tier, &price);
        const uint64_t capacity = store_policy_capacity(store, tier);
        pthread_mutex_unlock(&store->lock);
        if (now_used <= capacity) return 0;
        idle = now_used < used ? 0 : idle + 1;
        used = now_used;
        if (idle > SCRATCH_IDLE_ROUNDS || base_clock_ns() >= end_ns) return now_used - capacity;
        if (idle > 0 && scratch_drop_entries(store, tier)) continue;
        if (kvt_store_maintain(store, NULL) == KVT_BUSY || idle > 0) base_sleep(SCRATCH_NAP_NS);
    }
}

/* Takes back bytes that were lent and that a scratch could not get. Lock held. */
static void scratch_take_back(kvt_store *store, kvt_tier tier, uint64_t bytes)
{
    assert(store->lent_bytes[tier] >= bytes);
    store->lent_bytes[tier] -= bytes;
    scratch_update_policy(store, tier);
}

kvt_status scratch_grow(store_scratch *scratch, const scratch_wish *wish, uint64_t *missing_out)
{
    kvt_store *store = scratch->store;
    const kvt_tier tier = wish->tier;
    assert(tier > KVT_TIER_NONE && tier < KVT_TIER_COUNT);
    if (missing_out != NULL) *missing_out = 0;
    if (store->pools[tier] == NULL) return KVT_E_UNSUPPORTED;
    uint64_t used;
    pthread_mutex_lock(&store->lock);
    uint64_t missing = scratch_ask(store, wish, &used);
    pthread_mutex_unlock(&store->lock);
    if (missing == 0) {
        missing = scratch_make_room(store, tier, used);
        pthread_mutex_lock(&store->lock);
        if (missing != 0)
            scratch_take_back(store, tier, wish->bytes);
        else
            scratch->granted[tier] += wish->bytes;
        pthread_mutex_unlock(&store->lock);
    }
    if (missing_out != NULL) *missing_out = missing;
    return missing == 0 ? KVT_OK : KVT_E_SPACE;
}

/* All tiers are asked even after one was refused, so that every missing byte is named. */
kvt_status scratch_open(kvt_store *store, const scratch_wish *wishes, uint32_t count,
                        store_scratch **scratch_out, uint64_t *missing_out)
{
    store_scratch *scratch = calloc(1, sizeof *scratch);
    if (missing_out != NULL) memset(missing_out, 0, KVT_TIER_COUNT * sizeof *missing_out);
    if (scratch == NULL) return KVT_E_MEMORY;
    scratch->store = store;
    kvt_status first = KVT_OK;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t missing;
        kvt_status status = scratch_grow(scratch, &wishes[i], &missing);
        if (missing_out != NULL) missing_out[wishes[i].tier] += missing;
        if (first == KVT_OK) first = status;
    }
    if (first != KVT_OK) {
        scratch_close(scratch);
        return first;
    }
    *scratch_out = scratch;
    return KVT_OK;
}

kvt_store *scratch_store(const store_scratch *scratch)
{
    return scratch->store;
}

bool scratch_is_ours(const kvt_store *store)
{
    return fork_guard_is_ours(store);
}

pthread_mutex_t *scratch_kept_lock(kvt_store *store)
{
    return &store->kept_lock;
}

void scratch_close(store_scratch *scratch)
{
    if (scratch == NULL) return;
    kvt_store *store = scratch->store;
    pthread_mutex_lock(&store->lock);
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++) {
        assert(scratch->reserved[tier] == 0 && "its locations were released");
        if (scratch->granted[tier] != 0)
            scratch_take_back(store, (kvt_tier)tier, scratch->granted[tier]);
    }
    pthread_mutex_unlock(&store->lock);
    free(scratch);
}

tiers_pool *scratch_pool(const store_scratch *scratch, kvt_tier tier)
{
    return scratch->store->pools[tier];
}

uint64_t scratch_lent(const store_scratch *scratch, kvt_tier tier)
{
    pthread_mutex_lock(&scratch->store->lock);
    uint64_t bytes = scratch->granted[tier];
    pthread_mutex_unlock(&scratch->store->lock);
    return bytes;
}

uint64_t scratch_free(store_scratch *scratch, kvt_tier tier)
{
    pthread_mutex_lock(&scratch->store->lock);
    uint64_t bytes = scratch->granted[tier] - scratch->reserved[tier];
    pthread_mutex_unlock(&scratch->store->lock);
    return bytes;
}

/* Extents that a scratch holds, or soon will. Lock held. */
static void scratch_count_extents(store_scratch *scratch, kvt_tier tier, int64_t bytes)
{
    scratch->reserved[tier] += (uint64_t)bytes;
    scratch->store->scratch_bytes[tier] += (uint64_t)bytes;
    assert(scratch->reserved[tier] <= scratch->granted[tier]);
    assert(scratch->store->scratch_bytes[tier] <= scratch->store->lent_bytes[tier]);
}

/* Takes extents once owed ones, and entries of less worth, have made way. No lock held. */
static kvt_status scratch_take(kvt_store *store, kvt_tier tier, uint64_t bytes, uint32_t unit_bytes,
                               uint64_t members, tiers_location **location_out)
{
    for (;;) {
        bool owed = store->catalog != NULL && tier == KVT_TIER_SSD &&
                    catalog_pending_release(store->catalog);
        kvt_status status =
            tiers_pool_reserve_on(store->pools[tier], bytes, unit_bytes, members, location_out);
        if (status != KVT_E_SPACE) return status;
        if (owed) {
            status = catalog_settle(store->catalog);
            if (status != KVT_OK) return status;
            continue;
        }
        if (tier == KVT_TIER_SSD && copies_reclaim(store, bytes)) continue;
        if (!quarantine_reclaim(store, tier, bytes)) return KVT_E_SPACE;
    }
}

kvt_status scratch_reserve(store_scratch *scratch, kvt_tier tier, uint64_t bytes,
                           uint32_t unit_bytes, uint64_t members, tiers_location **location_out)
{
    kvt_store *store = scratch->store;
    const uint64_t grain = TIERS_GRAIN_BYTES;
    assert(bytes > 0 && tier > KVT_TIER_NONE && tier < KVT_TIER_COUNT);
    if (bytes > UINT64_MAX - (grain - 1)) return KVT_E_SPACE;
    bytes = (bytes + grain - 1) / grain * grain;
    pthread_mutex_lock(&store->lock);
    bool fits = bytes <= scratch->granted[tier] - scratch->reserved[tier];
    if (fits) scratch_count_extents(scratch, tier, (int64_t)bytes);
    pthread_mutex_unlock(&store->lock);
    if (!fits) return KVT_E_SPACE;
    if (unit_bytes == 0) unit_bytes = store->unit_bytes[tier];
    kvt_status status = scratch_take(store, tier, bytes, unit_bytes, members, location_out);
    if (status == KVT_OK) return KVT_OK;
    pthread_mutex_lock(&store->lock);
    scratch_count_extents(scratch, tier, -(int64_t)bytes);
    pthread_mutex_unlock(&store->lock);
    return status;
}

void scratch_release(store_scratch *scratch, kvt_tier tier, tiers_location *location)
{
    if (location == NULL) return;
    kvt_store *store = scratch->store;
    const uint64_t bytes = location->bytes;
    tiers_pool_release(store->pools[tier], location);
    pthread_mutex_lock(&store->lock);
    scratch_count_extents(scratch, tier, -(int64_t)bytes);
    pthread_cond_broadcast(&store->changed); /* there may be room for a put */
    pthread_mutex_unlock(&store->lock);
}

/* ---- entries that are read where they lie ---- */

/* The entry of a key at rest; NULL: there is none. A move of it ends first, as for a delete. Lock
 * held, and released while waiting. */
static store_entry *scratch_await(kvt_store *store, const kvt_key *key)
{
    for (;;) {
        store_entry *entry = entry_find_key(&store->table, key);
        if (entry == NULL || entry->state == ENTRY_ARRIVING) return NULL;
        if (entry->state == ENTRY_RESIDENT) return lookup_finds(store, entry) ? entry : NULL;
        if (entry->state == ENTRY_STAGED || !plan_cancel(store, entry->handle))
            pthread_cond_wait(&store->changed, &store->lock);
    }
}

kvt_status scratch_visit(kvt_store *store, const kvt_key *key, bool memory,
                         scratch_visited *visited_out)
{
    scratch_visited visited = {.visit = NULL};
    uint64_t clock_ns = 0;
    pthread_mutex_lock(&store->lock);
    store_entry *entry = scratch_await(store, key);
    kvt_status status = KVT_OK;
    if (entry == NULL)
        status = KVT_MISS;
    else if (entry->kind->layout.dtype != KVT_DTYPE_OPAQUE || entry->kind->group_count != 0)
        status = KVT_E_MISMATCH;
    if (status == KVT_OK) status = visit_begin(store, entry, memory, &visited);
    if (status == KVT_OK) uses_count(store, entry, &clock_ns);
    pthread_mutex_unlock(&store->lock);
    if (status == KVT_OK) *visited_out = visited;
    return status;
}
