/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_common.c - the small helpers that every file of the store may call: its clock, the
 * arithmetic of byte vectors, a tier's capacity for the policy, and the histogram of decision
 * times.
 *
 * It also counts the forks of this process. The file calls no other file of the store, so it
 * closes no circle. It decides nothing.
 *
 * Thread rule: any thread; store_count_decision under the control lock.
 */
#include "base/clock.h"
#include "store/learn/uses.h"
#include "tiers/pool/stripe.h"

#include <assert.h>

uint64_t store_now_ns(const kvt_store *store)
{
    return base_clock_ns() - store->zero_ns;
}

kvt_tier store_tier_of(const uint64_t bytes[KVT_TIER_COUNT])
{
    assert(bytes[KVT_TIER_NONE] == 0);
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++) {
        if (bytes[tier] != 0) return (kvt_tier)tier;
    }
    return KVT_TIER_NONE;
}

uint64_t store_bytes_of(const uint64_t bytes[KVT_TIER_COUNT])
{
    assert(bytes[KVT_TIER_NONE] == 0);
    uint64_t sum = 0;
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++) {
        sum += bytes[tier];
    }
    return sum;
}

store_move_purpose store_purpose_of(const kvt_move *move)
{
    if (move->kind == KVT_MOVE_PUT) return STORE_MOVE_PUT;
    if (move->kind == KVT_MOVE_EVICT) return STORE_MOVE_EVICTION;
    const kvt_tier from = store_tier_of(move->from_bytes), to = store_tier_of(move->to_bytes);
    if (from == to) return STORE_MOVE_RECODE;
    return to < from ? STORE_MOVE_PROMOTION : STORE_MOVE_DEMOTION;
}

uint64_t store_policy_capacity(const kvt_store *store, kvt_tier tier)
{
    assert(tier != KVT_TIER_NONE && store->pools[tier] != NULL);
    tiers_pool_facts facts;
    tiers_pool_facts_get(store->pools[tier], &facts);
    /* What slots lose to records that do not fill them, and what the ends of members do: with whole
     * records on a member, up to one of them each. */
    uint64_t unit_bytes = store->unit_bytes[tier];
    if (store->placement[tier] == KVT_PLACE_ENTRY && store->record_bytes_max > unit_bytes)
        unit_bytes = store->record_bytes_max;
    const uint64_t taken = store->lent_bytes[tier] + facts.padding_bytes +
                           tiers_stripe_ends(facts.member_count, unit_bytes);
    return facts.capacity_bytes > taken ? facts.capacity_bytes - taken : 0;
}

/* Records that are withheld beside room that is none, or a part of the tier. The withheld bytes
 * fall by a part of a record at a time, so that new objects lie on all devices and not on the one
 * alone that is well again. */
#define STORE_AHEAD_RECORDS 8u
#define STORE_AHEAD_PARTS   64u
#define STORE_BACK_PARTS    2u

void store_withhold(kvt_store *store)
{
    assert(store_is_locked(store));
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++) {
        if (store->pools[tier] == NULL) continue;
        uint64_t bytes = tiers_pool_withheld(store->pools[tier]);
        if (bytes != 0) {
            const uint64_t records = STORE_AHEAD_RECORDS * store->record_bytes_max;
            const uint64_t part = store_policy_capacity(store, (kvt_tier)tier) / STORE_AHEAD_PARTS;
            bytes += records < part ? records : part;
        }
        const uint64_t step = store->record_bytes_max / STORE_BACK_PARTS;
        if (store->withheld_bytes[tier] > bytes + step) bytes = store->withheld_bytes[tier] - step;
        if (bytes == store->withheld_bytes[tier]) continue;
        if (kvt_policy_withheld_set(store->policy, (kvt_tier)tier, bytes) == KVT_OK)
            store->withheld_bytes[tier] = bytes;
    }
}

void store_settle_capacity(kvt_store *store)
{
    assert(store_is_locked(store));
    kvt_policy_stats stats;
    if (store->pools[KVT_TIER_SSD] == NULL) return;
    uint64_t capacity = store_policy_capacity(store, KVT_TIER_SSD);
    (void)!kvt_policy_capacity_set(store->policy, KVT_TIER_SSD, capacity);
    kvt_policy_stats_get(store->policy, &stats);
    store->capacity_passed = stats.used_bytes[KVT_TIER_SSD] > capacity;
}

uint64_t store_members(const kvt_store *store, kvt_tier tier, kvt_device_state state,
                       uint32_t flags)
{
    assert(tier != KVT_TIER_NONE);
    uint64_t mask = 0;
    tiers_member_stats member;
    if (store->pools[tier] == NULL) return 0;
    for (uint32_t i = 0; tiers_pool_member(store->pools[tier], i, &member) == KVT_OK; i++)
        if (member.state == state && (member.facts.flags & flags) == flags)
            mask |= UINT64_C(1) << i;
    return mask;
}

bool store_has_capacity(const kvt_store *store)
{
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++)
        if (store->pools[tier] != NULL && store_policy_capacity(store, (kvt_tier)tier) != 0)
            return true;
    return false;
}

/* Bucket of a duration: 16 per octave, exact below 16 ns. */
static uint32_t common_time_bucket(uint64_t ns)
{
    if (ns < 16) return (uint32_t)ns;
    uint32_t octave = 63u - (uint32_t)__builtin_clzll(ns);
    uint32_t bucket = (octave - 3) * 16 + (uint32_t)((ns >> (octave - 4)) & 15);
    return bucket < STORE_TIMES ? bucket : STORE_TIMES - 1;
}

void store_count_decision(kvt_store *store, uint64_t started_ns, uint64_t ended_ns)
{
    assert(store_is_locked(store));
    assert(started_ns != 0 && ended_ns >= started_ns);
    const uint64_t took_ns = ended_ns - started_ns;
    store->tallies.decision_times[common_time_bucket(took_ns)]++;
    store->tallies.decision_ns += took_ns;
}

void store_count_load_failure(kvt_store *store, kvt_status failure)
{
    assert(store_is_locked(store));
    store->counters.load_failures++;
    if (failure == KVT_E_CORRUPT) store->tallies.checksum_failures++;
}

bool store_is_locked(const kvt_store *store)
{
    pthread_mutex_t *lock = (pthread_mutex_t *)(uintptr_t)&store->lock;
    if (!store->shared) return true;
    if (pthread_mutex_trylock(lock) != 0) return true;
    pthread_mutex_unlock(lock);
    return false;
}

double store_copy_seconds(const kvt_store *store, uint64_t bytes)
{
    assert(store_is_locked(store));
    return store->handover.copy_seconds_per_byte * (double)bytes;
}
