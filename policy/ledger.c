/*
 * ledger.c - the moves in flight and the bytes that each tier holds.
 *
 * used counts what is stored plus the target bytes of every move in flight. Stored bytes never
 * pass the capacity, and a move's targets fit beside everything but its own plan's sources, so
 * used stays within twice the capacity; CAPACITY_LIMIT keeps that inside 64 bits.
 *
 * A move's slot is its id modulo the table size. When an old move still occupies the slot, the id
 * is passed over: ids ascend, but not always by one.
 */
#include "policy/engine.h"

#include <assert.h>
#include <string.h>

bool ledger_reserve(kvt_policy *policy, uint32_t moves)
{
    uint64_t wanted = 2 * ((uint64_t)policy->flight_count + moves);
    if (policy->flights_capacity >= wanted) return true;
    uint64_t capacity = policy->flights_capacity == 0 ? 64 : policy->flights_capacity;
    while (capacity < wanted)
        capacity *= 2;
    if (capacity > UINT32_MAX / 2) return false;
    flight *grown = engine_resize(policy, NULL, 0, sizeof *grown * (size_t)capacity);
    if (grown == NULL) return false;
    memset(grown, 0, sizeof *grown * (size_t)capacity);
    /* Different slots of the small table are different slots of the large one. */
    for (uint32_t i = 0; i < policy->flights_capacity; i++) {
        const flight *move = &policy->flights[i];
        if (move->id == 0) continue;
        uint32_t slot = (uint32_t)(move->id & (capacity - 1));
        grown[slot] = *move;
        entry_at(policy, move->entry)->move = slot;
    }
    if (policy->flights != NULL) {
        engine_resize(policy, policy->flights, sizeof *grown * policy->flights_capacity, 0);
    }
    policy->flights = grown;
    policy->flights_capacity = (uint32_t)capacity;
    return true;
}

flight *ledger_find(kvt_policy *policy, uint64_t id)
{
    if (id == 0 || policy->flights_capacity == 0) return NULL;
    flight *move = &policy->flights[id & (policy->flights_capacity - 1)];
    return move->id == id ? move : NULL;
}

/* Reserves the target bytes of a move of a movable entry, or of a new one. Room was reserved. */
flight *ledger_begin(kvt_policy *policy, uint32_t index, uint8_t to)
{
    entry *e = entry_at(policy, index);
    assert(policy->flight_count < policy->flights_capacity && e->move == NIL);
    uint32_t mask = policy->flights_capacity - 1;
    while (policy->flights[policy->next_id & mask].id != 0)
        policy->next_id++;
    flight *move = &policy->flights[policy->next_id & mask];
    move->id = policy->next_id++;
    move->entry = index;
    move->from = e->current;
    move->to = to;
    move->kind = (uint8_t)(e->current == KVT_OPTION_NONE ? KVT_MOVE_PUT
                           : to == KVT_OPTION_NONE       ? KVT_MOVE_EVICT
                                                         : KVT_MOVE_CHANGE);
    for (int level = 0; level < LEVELS; level++) {
        move->to_bytes[level] = entry_bytes(policy, e, to, level);
        policy->used[level] += move->to_bytes[level];
        policy->releasing[level] += entry_bytes(policy, e, e->current, level);
    }
    e->move = (uint32_t)(move->id & mask);
    policy->flight_count++;
    return move;
}

/* Ends a move: done releases its source, otherwise its target; the entry's option follows. */
void ledger_end(kvt_policy *policy, flight *move, bool done)
{
    entry *e = entry_at(policy, move->entry);
    for (int level = 0; level < LEVELS; level++) {
        uint64_t source = entry_bytes(policy, e, move->from, level);
        uint64_t gone = done ? source : move->to_bytes[level];
        assert(policy->used[level] >= gone && policy->releasing[level] >= source);
        policy->used[level] -= gone;
        policy->releasing[level] -= source;
    }
    if (done) e->current = move->to;
    e->move = NIL;
    move->id = 0;
    policy->flight_count--;
}

bool ledger_fits(const kvt_policy *policy, const uint64_t bytes[LEVELS])
{
    for (int level = 0; level < LEVELS; level++) {
        if (bytes[level] == 0) continue;
        if (policy->used[level] > policy->capacity[level]) return false;
        if (bytes[level] > policy->capacity[level] - policy->used[level]) return false;
    }
    return true;
}
