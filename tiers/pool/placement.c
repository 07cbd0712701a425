/* SPDX-License-Identifier: Apache-2.0 */
/*
 * placement.c - which members an object goes to: weights, deals, the member of an object that lies
 * whole on one, and what members and pool have room for. Extents are in reserve.c, slots in
 * pool_slots.c.
 *
 * Thread rule: under the pool's mutex.
 */
#include <assert.h>

#include "base/clock.h"
#include "pool_internal.h"

/* The weight is bytes per second, or 1 for the baselines, which deal alike to all members. A worker
 * stays while the mutex is held. */
double pool_deal_weight(const tiers_pool *pool, uint32_t member)
{
    if (pool->members[member].worker == NULL) return 0;
    if (!pool_is_weighted(pool)) return 1.0;
    return pool_member_weight(&pool->members[member]);
}

/* Shares of `units`. Round robin is equal shares whose remainder begins where the last object
 * ended: ties go to the lower member, so the members are asked in that order. The cursor moves on
 * only when the reservation has succeeded. */
kvt_status pool_deal(const tiers_pool *pool, const tiers_stripe_member *members, uint32_t units,
                     uint32_t *dealt, double *owed)
{
    uint32_t count = pool->member_count;
    if (pool->striping != TIERS_STRIPE_ROUND_ROBIN)
        return tiers_stripe_share(members, count, units, dealt, owed);
    tiers_stripe_member turned[TIERS_MEMBERS_MAX] = {{0}};
    uint32_t turned_dealt[TIERS_MEMBERS_MAX];
    for (uint32_t i = 0; i < count; i++)
        turned[i] = members[(pool->cursor + i) % count];
    kvt_status status = tiers_stripe_share(turned, count, units, turned_dealt, NULL);
    for (uint32_t i = 0; i < count && status == KVT_OK; i++)
        dealt[(pool->cursor + i) % count] = turned_dealt[i], owed[i] = 0;
    return status;
}

bool pool_is_whole(const tiers_pool *pool, uint64_t units)
{
    return pool->striping == TIERS_STRIPE_ENTRY ||
           (units == 1 && pool->striping != TIERS_STRIPE_ROUND_ROBIN);
}

/* How full a member is for its bandwidth, with so many bytes more. */
static double pool_fill(const tiers_pool *pool, uint32_t member, uint64_t bytes)
{
    return (double)(pool->members[member].used_bytes + bytes) / pool_deal_weight(pool, member);
}

/* Entry: the member that has had least for its bandwidth. Else the one whose queue will be empty
 * first; between equals, as on an idle pool, the one that is filled least for its bandwidth, so
 * that small objects spread in the same proportion as large ones. */
uint32_t pool_choose_whole(const tiers_pool *pool, uint64_t mask, uint64_t bytes)
{
    const bool in_turn = pool->striping == TIERS_STRIPE_ENTRY;
    uint32_t best = pool->member_count;
    double best_first = 0;
    for (uint32_t i = 0; i < pool->member_count; i++) {
        const pool_member *member = &pool->members[i];
        if ((mask >> i & 1) == 0 || member->worker == NULL) continue;
        double first = member->pass > pool->entry_pass ? member->pass : pool->entry_pass;
        if (!in_turn)
            first = (double)tiers_worker_pending_bytes(member->worker) / pool_deal_weight(pool, i);
        bool better = best == pool->member_count || first < best_first;
        if (!better && first == best_first)
            better = pool_fill(pool, i, bytes) < pool_fill(pool, best, bytes);
        if (!better) continue;
        best = i;
        best_first = first;
    }
    return best;
}

/* Stride scheduling: a member that was away, or full, goes on with the others and makes nothing
 * up. */
void pool_count_whole(tiers_pool *pool, uint32_t index, uint64_t bytes)
{
    pool_member *member = &pool->members[index];
    if (pool->striping != TIERS_STRIPE_ENTRY) return;
    if (member->pass < pool->entry_pass) member->pass = pool->entry_pass;
    pool->entry_pass = member->pass;
    member->pass += (double)bytes / pool_deal_weight(pool, index);
}

bool pool_member_welcomes(pool_member *member)
{
    if (!pool_member_takes(member) || tiers_worker_write_failed(member->worker)) return false;
    if (tiers_worker_is_late(member->worker)) return false;
    if (member->wear.budget_bytes_per_day == 0) return true;
    pool_count_wear(member);
    return !tiers_wear_is_spent(&member->wear);
}

uint64_t pool_lagging(tiers_pool *pool)
{
    uint64_t late = 0, late_bytes = 0, bytes = 0;
    for (uint32_t i = 0; i < pool->member_count; i++) {
        pool_member *member = &pool->members[i];
        if (!pool_member_takes(member)) continue;
        if (tiers_worker_is_late(member->worker)) {
            late |= UINT64_C(1) << i;
            late_bytes += member->capacity_bytes;
        } else if (pool_member_welcomes(member)) {
            bytes += member->capacity_bytes;
        }
    }
    return bytes >= late_bytes ? late : 0;
}

/* Multiples of the golden ratio spread any number of objects in a row evenly over the steps of a
 * deal. The baselines deal as they are known to. */
uint32_t pool_turn(const tiers_pool *pool, uint32_t k, uint64_t units)
{
    const uint64_t golden = UINT64_C(2654435769); /* of 2^32 */
    const uint64_t steps = units < TIERS_TURN_MAX ? units : TIERS_TURN_MAX;
    if (!pool_is_weighted(pool)) return 0;
    return (uint32_t)((uint64_t)(uint32_t)(k * golden) * steps >> 32);
}

/* Bytes are counted when they are asked for, not when they are written, so every reader of wear
 * calls this first. */
void pool_count_wear(pool_member *member)
{
    if (member->worker == NULL) return;
    uint64_t written = tiers_worker_bytes(member->worker, KVT_IO_WRITE);
    assert(written >= member->wear_counted && "what was written is never taken back");
    tiers_wear_advance(&member->wear, base_calendar_ns(), written - member->wear_counted);
    member->wear_counted = written;
}

/* A member that drains or is gone counts in neither sum. */
void pool_sum(const tiers_pool *pool, uint64_t *capacity_out, uint64_t *used_out)
{
    uint64_t capacity = 0;
    uint64_t used = 0;
    for (uint32_t i = 0; i < pool->member_count; i++) {
        const pool_member *member = &pool->members[i];
        if (!pool_member_takes(member)) continue;
        assert(member->used_bytes + member->slot_bytes <= member->capacity_bytes);
        capacity += member->capacity_bytes;
        used += member->used_bytes;
    }
    *capacity_out = capacity < pool->budget_bytes ? capacity : pool->budget_bytes;
    *used_out = used;
}
