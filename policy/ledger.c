/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ledger.c - the moves in flight and the bytes that each tier holds.
 *
 * used counts what is stored plus the target bytes of every move in flight. Stored bytes never
 * pass the capacity, and a move's targets fit beside everything but its own plan's sources, so
 * used stays within twice the capacity; CAPACITY_LIMIT keeps that inside 64 bits.
 *
 * A move's slot is its id modulo the table size. When an old move still occupies the slot, the id
 * is passed over: ids ascend, but not always by one.
 *
 * Invariants, in every tier: used >= releasing; used = bytes of all held entries + targets of the
 * moves in flight less what they keep in place; a move's kept is at most either of its ends. The
 * file plans nothing and never refuses a move: fits is asked before begin.
 */
#include "policy/engine.h"
#include "policy/write_queue.h"

#include <assert.h>
#include <string.h>

/* Makes room for a plan of so many moves. The table stays at most half full, so a free slot is
 * found soon. The caller asks before a plan is begun, so no move of the plan can fail for
 * memory. */
bool ledger_reserve(kvt_policy *policy, uint32_t moves)
{
    uint64_t wanted = 2 * ((uint64_t)policy->in_flight_count + moves);
    if (policy->in_flight_capacity >= wanted) return true;
    uint64_t capacity = policy->in_flight_capacity == 0 ? 64 : policy->in_flight_capacity;
    while (capacity < wanted)
        capacity *= 2;
    if (capacity > UINT32_MAX / 2) return false;
    move_in_flight *grown = engine_resize(policy, NULL, 0, sizeof *grown * (size_t)capacity);
    if (grown == NULL) return false;
    memset(grown, 0, sizeof *grown * (size_t)capacity);
    /* Different slots of the small table are different slots of the large one. */
    for (uint32_t i = 0; i < policy->in_flight_capacity; i++) {
        const move_in_flight *move = &policy->in_flight[i];
        if (move->id == 0) continue;
        uint32_t slot = (uint32_t)(move->id & (capacity - 1));
        grown[slot] = *move;
        entry_at(policy, move->entry)->move = slot;
    }
    if (policy->in_flight != NULL) {
        engine_resize(policy, policy->in_flight, sizeof *grown * policy->in_flight_capacity, 0);
    }
    policy->in_flight = grown;
    policy->in_flight_capacity = (uint32_t)capacity;
    assert((capacity & (capacity - 1)) == 0 && capacity >= wanted);
    return true;
}

/* Finds a move by its id; NULL when it has ended or never was. An id that ended is never found
 * again, because its slot has another id or 0 by then. */
move_in_flight *ledger_find(kvt_policy *policy, uint64_t id)
{
    if (id == 0 || policy->in_flight_capacity == 0) return NULL;
    move_in_flight *move = &policy->in_flight[id & (policy->in_flight_capacity - 1)];
    return move->id == id ? move : NULL;
}

/* Enters what a move reserves and will release in one tier, or strikes it out. Both signs use the
 * same sum modulo 2^64, so striking a move out restores the numbers exactly. */
static void ledger_count(kvt_policy *policy, const entry *e, const move_in_flight *move, int tier,
                         int by)
{
    assert(by == 1 || by == -1);
    uint64_t sign = by > 0 ? 1 : UINT64_MAX; /* modulo 2^64 */
    uint64_t source = entry_bytes(policy, e, move->from, tier);
    assert(move->kept[tier] <= source && move->kept[tier] <= move->to_bytes[tier]);
    policy->used[tier] += sign * (move->to_bytes[tier] - move->kept[tier]);
    policy->releasing[tier] += sign * (source - move->kept[tier]);
    policy->tenants[e->tenant].used[tier] += sign * (move->to_bytes[tier] - source);
}

/* Reserves the target bytes of a move of a movable entry, or of a new one. ledger_reserve has made
 * room in the table, and the plan has found that the bytes fit. The kind follows from the two
 * options: from NONE it is a put, to NONE an eviction, else a change. */
move_in_flight *ledger_begin(kvt_policy *policy, uint32_t index, uint8_t to)
{
    entry *e = entry_at(policy, index);
    assert(policy->in_flight_count < policy->in_flight_capacity && e->move == NIL);
    uint32_t mask = policy->in_flight_capacity - 1;
    while (policy->in_flight[policy->next_id & mask].id != 0)
        policy->next_id++;
    move_in_flight *move = &policy->in_flight[policy->next_id & mask];
    move->id = policy->next_id++;
    move->entry = index;
    move->from = e->current;
    move->to = to;
    move->kind = (uint8_t)(e->current == KVT_OPTION_NONE ? KVT_MOVE_PUT
                           : to == KVT_OPTION_NONE       ? KVT_MOVE_EVICT
                                                         : KVT_MOVE_CHANGE);
    for (int tier = 0; tier < TIERS; tier++) {
        move->to_bytes[tier] = entry_bytes(policy, e, to, tier);
        move->kept[tier] = entry_kept(policy, e, to, tier);
        ledger_count(policy, e, move, tier, 1);
    }
    write_queue_add(policy, move, 1.0);
    e->move = (uint32_t)(move->id & mask);
    policy->in_flight_count++;
    assert(ledger_find(policy, move->id) == move);
    return move;
}

/* Corrects a move to the bytes that were really stored and have been found to fit. A smaller object
 * may keep less in place than was planned. The write queue keeps the planned seconds; the
 * difference is forgotten with time. */
void ledger_correct(kvt_policy *policy, move_in_flight *move, const uint64_t actual[TIERS])
{
    assert(move->id != 0 && move->to != KVT_OPTION_NONE);
    const entry *e = entry_at(policy, move->entry);
    for (int tier = 0; tier < TIERS; tier++) {
        ledger_count(policy, e, move, tier, -1);
        move->to_bytes[tier] = actual[tier];
        if (move->kept[tier] > actual[tier]) move->kept[tier] = actual[tier];
        ledger_count(policy, e, move, tier, 1);
    }
}

/* Ends a move: done releases its source, otherwise its target; the entry's option follows. A move
 * that was not done gives the waiting seconds of its writes back too. */
void ledger_end(kvt_policy *policy, move_in_flight *move, bool done)
{
    assert(policy->in_flight_count > 0 && entry_at(policy, move->entry)->move != NIL);
    entry *e = entry_at(policy, move->entry);
    if (!done) write_queue_add(policy, move, -1.0);
    for (int tier = 0; tier < TIERS; tier++) {
        uint64_t source = entry_bytes(policy, e, move->from, tier);
        uint64_t released = source - move->kept[tier];
        if (!done) {
            ledger_count(policy, e, move, tier, -1);
            continue;
        }
        assert(policy->used[tier] >= released && policy->releasing[tier] >= released);
        policy->used[tier] -= released;
        policy->releasing[tier] -= released;
        policy->left[tier] += released;
    }
    if (done) {
        e->current = move->to;
        for (int tier = 0; tier < TIERS; tier++)
            e->bytes[tier] = move->to_bytes[tier];
    }
    e->move = NIL;
    move->id = 0;
    policy->in_flight_count--;
}

/* Says whether bytes fit beside all that is stored and reserved. */
bool ledger_fits(const kvt_policy *policy, const uint64_t bytes[TIERS])
{
    for (int tier = 0; tier < TIERS; tier++) {
        if (bytes[tier] == 0) continue;
        if (policy->used[tier] > policy->capacity[tier]) return false;
        if (bytes[tier] > policy->capacity[tier] - policy->used[tier]) return false;
    }
    return true;
}
