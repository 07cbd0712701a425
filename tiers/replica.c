/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replica.c - second copies of objects: where their units go, and which copy a read takes
 * (docs/TIERS.md, Replicas).
 *
 * A read routes its units one after the other to the copy whose member will be done first, as SWARM
 * 6.1 fills its buckets: units with a single copy in service first. Queues are in seconds, because
 * members differ in speed.
 *
 * Thread rule: all functions from any thread; reserving runs under the pool's mutex, routing only
 * reads what workers publish.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "location.h"
#include "pool_internal.h"
#include "stripe.h"

/* A route that is not shorter by this is not worth a deviation from the first copy, which is
 * balanced over whole runs. */
#define REPLICA_GAIN_MIN 1.02

/* ---- where its units go ---- */

typedef struct replica_deal {
    uint64_t room[TIERS_MEMBERS_MAX];  /* bytes; 0 = takes no part */
    double weight[TIERS_MEMBERS_MAX];  /* bytes per second */
    uint64_t dealt[TIERS_MEMBERS_MAX]; /* bytes */
    uint32_t units[TIERS_MEMBERS_MAX];
    uint32_t member_count;
} replica_deal;

static void replica_open_rooms(tiers_pool *pool, bool single, replica_deal *deal)
{
    memset(deal, 0, sizeof *deal);
    deal->member_count = pool->member_count;
    for (uint32_t i = 0; i < deal->member_count; i++) {
        pool_member *member = &pool->members[i];
        if (!pool_member_takes(member) || tiers_worker_write_failed(member->worker)) continue;
        pool_count_wear(member);
        if (tiers_wear_is_spent(&member->wear)) continue;
        deal->room[i] = member->capacity_bytes - member->used_bytes;
        deal->weight[i] = pool_member_weight(member);
        /* Objects of one unit are balanced among each other. */
        if (single) deal->dealt[i] = member->replica_bytes;
    }
}

/* The member other than `taken` whose part would be read first with this unit on it; member_count =
 * none has room. */
static uint32_t replica_choose(const replica_deal *deal, uint32_t taken, uint64_t bytes)
{
    uint32_t best = deal->member_count;
    double best_seconds = 0;
    for (uint32_t i = 0; i < deal->member_count; i++) {
        if (i == taken || deal->room[i] < bytes) continue;
        double seconds = (double)(deal->dealt[i] + bytes) / deal->weight[i];
        if (best != deal->member_count && seconds >= best_seconds) continue;
        best = i;
        best_seconds = seconds;
    }
    return best;
}

/* Fills both deals: first_deal with indexes into the first copy's shares, deal with members. */
static bool replica_deal_units(replica_deal *deal, const tiers_location *first, uint8_t *first_deal,
                               uint8_t *members)
{
    tiers_dealer dealer;
    tiers_dealer_init(&dealer, first->shares, first->share_count);
    for (uint32_t unit = 0; unit < dealer.total; unit++) {
        uint64_t start = (uint64_t)unit * first->unit_bytes;
        uint64_t left = first->bytes - start;
        uint64_t bytes = left < first->unit_bytes ? left : first->unit_bytes;
        first_deal[unit] = (uint8_t)tiers_dealer_next(&dealer);
        uint32_t member = replica_choose(deal, first->shares[first_deal[unit]].member, bytes);
        if (member == deal->member_count) return false;
        deal->room[member] -= bytes;
        deal->dealt[member] += bytes;
        deal->units[member]++;
        members[unit] = (uint8_t)member;
    }
    return true;
}

/* A location without extents from the two arrays, which it owns on success. `deal` has members and
 * gets indexes into the shares. */
static tiers_location *replica_make(const replica_deal *dealt, const tiers_location *first,
                                    uint64_t units, uint8_t *first_deal, uint8_t *deal)
{
    tiers_share shares[TIERS_MEMBERS_MAX];
    uint8_t index[TIERS_MEMBERS_MAX] = {0};
    uint32_t count = 0;
    for (uint32_t i = 0; i < dealt->member_count; i++) {
        if (dealt->units[i] == 0) continue;
        index[i] = (uint8_t)count;
        shares[count++] = (tiers_share){.member = i, .units = dealt->units[i]};
    }
    tiers_location *location = tiers_location_make(first->bytes, first->unit_bytes, shares, count);
    if (location == NULL) return NULL;
    for (uint64_t unit = 0; unit < units; unit++)
        deal[unit] = index[deal[unit]];
    location->deal = deal;
    location->first_deal = first_deal;
    return location;
}

static bool replica_within_budget(const tiers_pool *pool, uint64_t bytes)
{
    uint64_t capacity;
    uint64_t used;
    uint64_t replicas = 0;
    pool_sum(pool, &capacity, &used);
    for (uint32_t i = 0; i < pool->member_count; i++)
        replicas += pool->members[i].replica_bytes;
    double most = pool->replica_share * (double)capacity;
    return used <= capacity && bytes <= capacity - used && (double)(replicas + bytes) <= most;
}

kvt_status tiers_pool_reserve_replica(tiers_pool *pool, const tiers_location *first,
                                      tiers_location **replica_out)
{
    uint64_t units = tiers_location_units(first->bytes, first->unit_bytes);
    assert(first->deal == NULL);
    if (units > TIERS_REPLICA_UNITS_MAX) return KVT_E_SPACE;
    uint8_t *first_deal = malloc(units);
    uint8_t *deal = malloc(units);
    tiers_location *location = NULL;
    kvt_status status = first_deal != NULL && deal != NULL ? KVT_OK : KVT_E_MEMORY;
    replica_deal dealt;
    pthread_mutex_lock(&pool->mutex);
    if (status == KVT_OK && !replica_within_budget(pool, first->bytes)) status = KVT_E_SPACE;
    if (status == KVT_OK) {
        replica_open_rooms(pool, units == 1, &dealt);
        if (!replica_deal_units(&dealt, first, first_deal, deal)) status = KVT_E_SPACE;
    }
    if (status == KVT_OK) {
        location = replica_make(&dealt, first, units, first_deal, deal);
        if (location == NULL) status = KVT_E_MEMORY;
    }
    if (location != NULL) status = pool_take_extents(pool, location);
    pthread_mutex_unlock(&pool->mutex);
    if (status == KVT_OK) {
        *replica_out = location;
        return KVT_OK;
    }
    if (location == NULL) {
        free(first_deal);
        free(deal);
    }
    tiers_location_free(location);
    return status;
}

bool tiers_location_survives(const tiers_location *location, const tiers_location *replica,
                             uint64_t members)
{
    bool touched = false;
    for (uint32_t i = 0; i < location->share_count; i++)
        if ((members >> location->shares[i].member & 1) != 0) touched = true;
    if (!touched || replica == NULL) return !touched;
    uint64_t units = tiers_location_units(location->bytes, location->unit_bytes);
    for (uint64_t unit = 0; unit < units; unit++) {
        uint32_t first = location->shares[replica->first_deal[unit]].member;
        uint32_t second = replica->shares[replica->deal[unit]].member;
        if ((members >> first & 1) != 0 && (members >> second & 1) != 0) return false;
    }
    return true;
}

/* ---- which copy a read takes ---- */

/* The members' queues while units are routed. */
typedef struct route_queues {
    double seconds[TIERS_MEMBERS_MAX]; /* until the queue is empty */
    double unit[TIERS_MEMBERS_MAX];    /* seconds that a unit takes; 0 = does not serve */
} route_queues;

static void route_look(const tiers_pool *pool, uint32_t unit_bytes, route_queues *queues)
{
    memset(queues, 0, sizeof *queues);
    for (uint32_t i = 0; i < pool->member_count; i++) {
        const pool_member *member = &pool->members[i];
        if (!pool_member_serves(member)) continue;
        double weight = pool_member_weight(member);
        queues->seconds[i] = (double)tiers_worker_pending_bytes(member->worker) / weight;
        queues->unit[i] = unit_bytes / weight;
    }
}

static uint32_t route_member(const tiers_location *first, const tiers_location *replica,
                             uint64_t unit, bool second)
{
    return second ? replica->shares[replica->deal[unit]].member
                  : first->shares[replica->first_deal[unit]].member;
}

/* Puts a unit behind a member's queue; returns when it will have arrived. */
static double route_add(route_queues *queues, uint32_t member)
{
    return queues->seconds[member] += queues->unit[member];
}

/* Seconds until all units have arrived from the first copy; negative when some cannot. */
static double route_first_seconds(const tiers_transfer *transfer, route_queues queues,
                                  uint64_t begin, uint64_t end)
{
    double slowest = 0;
    for (uint64_t unit = begin; unit < end; unit++) {
        uint32_t member = route_member(transfer->location, transfer->replica, unit, false);
        if (queues.unit[member] == 0 || (transfer->avoid >> member & 1) != 0) return -1;
        double seconds = route_add(&queues, member);
        if (seconds > slowest) slowest = seconds;
    }
    return slowest;
}

static void route_mark(tiers_transfer *transfer, uint64_t unit, bool second)
{
    uint64_t bit = UINT64_C(1) << unit % 64;
    transfer->routes[unit / 64] =
        second ? transfer->routes[unit / 64] | bit : transfer->routes[unit / 64] & ~bit;
}

/* Routes the units that have no choice, or, in the second pass, those that have. Raises *slowest to
 * when the last of them will have arrived. False when a unit has no copy in service. */
static bool route_pass(tiers_transfer *transfer, route_queues *queues, uint64_t begin, uint64_t end,
                       bool choice, double *slowest)
{
    for (uint64_t unit = begin; unit < end; unit++) {
        uint32_t first = route_member(transfer->location, transfer->replica, unit, false);
        uint32_t second = route_member(transfer->location, transfer->replica, unit, true);
        bool has_first = queues->unit[first] > 0;
        bool has_second = queues->unit[second] > 0;
        if (!has_first && !has_second) return false;
        if (has_first && has_second) {
            has_first = (transfer->avoid >> first & 1) == 0;
            has_second = (transfer->avoid >> second & 1) == 0;
        }
        if ((has_first == has_second) != choice) continue;
        bool take_second = has_second;
        if (choice)
            take_second = queues->seconds[second] + queues->unit[second] <
                          queues->seconds[first] + queues->unit[first];
        route_mark(transfer, unit, take_second);
        double seconds = route_add(queues, take_second ? second : first);
        if (seconds > *slowest) *slowest = seconds;
    }
    return true;
}

/* The shares that hold routed units. */
static uint32_t route_list_parts(const tiers_transfer *transfer, uint64_t begin, uint64_t end,
                                 pool_part *parts)
{
    const tiers_location *copies[2] = {transfer->location, transfer->replica};
    uint32_t units[2][TIERS_MEMBERS_MAX] = {{0}};
    uint32_t count = 0;
    for (uint64_t unit = begin; unit < end; unit++) {
        bool second = (transfer->routes[unit / 64] >> unit % 64 & 1) != 0;
        units[second]
             [second ? transfer->replica->deal[unit] : transfer->replica->first_deal[unit]]++;
    }
    for (uint32_t copy = 0; copy < 2; copy++) {
        for (uint32_t i = 0; i < copies[copy]->share_count; i++) {
            if (units[copy][i] == 0) continue;
            parts[count++] =
                (pool_part){.copy = copies[copy],
                            .share = i,
                            .bytes = (uint64_t)units[copy][i] * transfer->location->unit_bytes};
        }
    }
    return count;
}

uint32_t pool_route_read(const tiers_pool *pool, tiers_transfer *transfer, pool_part *parts)
{
    const tiers_location *location = transfer->location;
    uint32_t unit_bytes = location->unit_bytes;
    assert(transfer->bytes > 0 && transfer->replica->bytes == location->bytes);
    assert(transfer->replica->deal != NULL && transfer->replica->unit_bytes == unit_bytes);
    uint64_t begin = transfer->offset / unit_bytes;
    uint64_t end = tiers_location_units(transfer->offset + transfer->bytes, unit_bytes);
    route_queues queues;
    double routed_seconds = 0;
    route_look(pool, unit_bytes, &queues);
    double first_seconds = route_first_seconds(transfer, queues, begin, end);
    if (!route_pass(transfer, &queues, begin, end, false, &routed_seconds) ||
        !route_pass(transfer, &queues, begin, end, true, &routed_seconds))
        return 0;
    if (first_seconds >= 0 && first_seconds < routed_seconds * REPLICA_GAIN_MIN)
        memset(transfer->routes, 0, sizeof transfer->routes);
    return route_list_parts(transfer, begin, end, parts);
}

bool tiers_transfer_used_replica(const tiers_transfer *transfer)
{
    for (uint32_t i = 0; transfer->replica != NULL && i < TIERS_REPLICA_UNITS_MAX / 64; i++)
        if (transfer->routes[i] != 0) return true;
    return false;
}
