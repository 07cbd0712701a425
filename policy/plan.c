/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan.c - plans as data: the validator and the one-line text of a move.
 *
 * The file needs no engine, so an executor, a log or a test can check plans with it. It cannot know
 * whether a plan is good, or whether an entry is really where the plan says. Any thread.
 */
#include "policy/plan.h"

#include "base/number/number.h"

#include <assert.h>

/* Says whether no tier holds bytes. */
static bool plan_is_zero(const uint64_t bytes[KVT_TIER_COUNT])
{
    for (int tier = 0; tier < KVT_TIER_COUNT; tier++)
        if (bytes[tier] != 0) return false;
    return true;
}

/* Returns the fault of one move by itself, or NULL. The three kinds are told apart by which end is
 * NONE, and the bytes have to agree with that. */
static const char *plan_move_fault(const kvt_move *move)
{
    bool from_zero = plan_is_zero(move->from_bytes);
    bool to_zero = plan_is_zero(move->to_bytes);
    if (move->handle == 0) return "has handle 0";
    if (move->from_bytes[KVT_TIER_NONE] != 0 || move->to_bytes[KVT_TIER_NONE] != 0) {
        return "holds bytes in tier none";
    }
    if (move->from >= KVT_OPTIONS_MAX || move->to >= KVT_OPTIONS_MAX) {
        return "names an option that cannot exist";
    }
    if (!number_is_finite(move->gain)) return "has a gain that is not a number";
    switch (move->kind) {
    case KVT_MOVE_PUT:
        if (move->from != KVT_OPTION_NONE || !from_zero) return "puts an entry that is stored";
        if (move->to == KVT_OPTION_NONE || to_zero) return "puts an entry nowhere";
        return NULL;
    case KVT_MOVE_CHANGE:
        if (move->from == KVT_OPTION_NONE || from_zero) return "changes an entry that is not there";
        if (move->to == KVT_OPTION_NONE || to_zero) return "changes an entry to nothing";
        if (move->from == move->to) return "changes an entry to itself";
        return NULL;
    case KVT_MOVE_EVICT:
        if (move->from == KVT_OPTION_NONE || from_zero) return "evicts an entry that is not there";
        if (move->to != KVT_OPTION_NONE || !to_zero) return "evicts an entry to somewhere";
        return NULL;
    default: return "has an unknown kind";
    }
}

/* Returns a fault unless the kept bytes are part of both ends. Bytes that stay in place are neither
 * written nor released. */
static const char *plan_kept_fault(const kvt_move *move)
{
    for (int tier = 0; tier < KVT_TIER_COUNT; tier++) {
        uint64_t kept = move->kept_bytes[tier];
        if (kept > move->from_bytes[tier] || kept > move->to_bytes[tier]) {
            return "keeps more than it has";
        }
    }
    return NULL;
}

/* Carries the bytes of one move out on the ledger `held`. A move holds source and target at once,
 * so the new bytes are added in every tier before any are released. */
static const char *plan_carry_out(const kvt_move *move, uint64_t held[KVT_TIER_COUNT],
                                  const uint64_t capacity[KVT_TIER_COUNT])
{
    for (int tier = 0; tier < KVT_TIER_COUNT; tier++) {
        uint64_t more = move->to_bytes[tier] - move->kept_bytes[tier];
        if (more == 0) continue;
        if (held[tier] > capacity[tier] || more > capacity[tier] - held[tier]) {
            return "passes the capacity of a tier";
        }
        held[tier] += more;
    }
    for (int tier = 0; tier < KVT_TIER_COUNT; tier++) {
        uint64_t less = move->from_bytes[tier] - move->kept_bytes[tier];
        if (less > held[tier]) return "releases more than its tier holds";
        held[tier] -= less;
    }
    return NULL;
}

/* Carries the plan out on a copy of the ledger, move by move, and stops at the first fault. message
 * receives the number and the fault of the first bad move. */
kvt_status plan_check(const kvt_plan *plan, const uint64_t used[KVT_TIER_COUNT],
                      const uint64_t capacity[KVT_TIER_COUNT], char *message, size_t message_size)
{
    assert(plan != NULL);
    text out;
    text_start(&out, message, message_size);
    if (plan->count > plan->capacity || (plan->count > 0 && plan->moves == NULL)) {
        text_add(&out, "the plan counts more moves than it has room for");
        return KVT_E_STATE;
    }
    uint64_t held[KVT_TIER_COUNT];
    for (int tier = 0; tier < KVT_TIER_COUNT; tier++)
        held[tier] = used[tier];
    for (uint32_t i = 0; i < plan->count; i++) {
        const kvt_move *move = &plan->moves[i];
        const char *fault = plan_move_fault(move);
        if (fault == NULL && (move->id == 0 || (i > 0 && move->id <= plan->moves[i - 1].id))) {
            fault = "has an id that does not ascend";
        }
        for (uint32_t k = 0; k < i && fault == NULL; k++)
            if (plan->moves[k].handle == move->handle) fault = "names an entry a second time";
        if (fault == NULL) fault = plan_kept_fault(move);
        if (fault == NULL) fault = plan_carry_out(move, held, capacity);
        if (fault == NULL) continue;
        text_add(&out, "move ");
        text_add_number(&out, i);
        text_add(&out, " ");
        text_add(&out, fault);
        return KVT_E_STATE;
    }
    return KVT_OK;
}

/* Adds the bytes of the three real tiers after a label. */
static void plan_add_bytes(text *out, const char *label, const uint64_t bytes[KVT_TIER_COUNT])
{
    text_add(out, label);
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++) {
        if (tier > KVT_TIER_HBM) text_add(out, ",");
        text_add_number(out, bytes[tier]);
    }
}

/* One line such as "7 CHANGE 42 2>3 variant 1/0/0 from 0,64,0 to 0,0,64 gain 0x1.8p-3": bytes by
 * tier hbm,dram,ssd, with "kept ..." before the gain when bytes stay in place. Golden logs are made
 * of these lines, so the text is a format: doubles are exact. */
size_t kvt_move_format(const kvt_move *move, char *line, size_t size)
{
    static const char *const kinds[] = {"?", "PUT", "CHANGE", "EVICT"};
    text out;
    text_start(&out, line, size);
    text_add_number(&out, move->id);
    text_add(&out, " ");
    text_add(&out, kinds[move->kind <= KVT_MOVE_EVICT ? move->kind : 0]);
    text_add(&out, " ");
    text_add_number(&out, move->handle);
    text_add(&out, " ");
    text_add_number(&out, move->from);
    text_add(&out, ">");
    text_add_number(&out, move->to);
    text_add(&out, " variant ");
    text_add_number(&out, move->to_variant.codec);
    text_add(&out, "/");
    text_add_number(&out, move->to_variant.mode);
    text_add(&out, "/");
    text_add_number(&out, move->to_variant.rate);
    plan_add_bytes(&out, " from ", move->from_bytes);
    plan_add_bytes(&out, " to ", move->to_bytes);
    if (!plan_is_zero(move->kept_bytes)) plan_add_bytes(&out, " kept ", move->kept_bytes);
    text_add(&out, " gain ");
    text_add_double(&out, move->gain);
    return out.length;
}
