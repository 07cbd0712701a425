/* SPDX-License-Identifier: Apache-2.0 */
/*
 * explain.c - why an entry is where it is, what keeping it is worth, and the engine's figures.
 *
 * The file only reads. A question about a later moment is answered by a copy of the engine whose
 * clock is moved, so that asking never changes a later decision. The answer is a weighing at the
 * present prices; a move may still find no room, because others need the same bytes.
 */
#include "policy/reuse.h"
#include "policy/reuse_model.h"
#include "policy/utility.h"

#include <assert.h>
#include <string.h>

/* Fills in what a byte costs in each tier now. A policy that counts no uses has no prices. The
 * numbers are those that a decision at this moment would see. */
static void explain_prices(const kvt_policy *policy, double price[KVT_TIER_COUNT])
{
    price[KVT_TIER_NONE] = 0.0;
    for (int tier = 0; tier < TIERS; tier++)
        price[tier + 1] = policy->ops->counts ? utility_price(policy, tier) : 0.0;
}

/* Copies what the reuse model has learned; zeros where the policy has none. The weights are the
 * model's own: the uses in all that a count of 1 predicts. */
static void explain_weights(const kvt_policy *policy, kvt_reuse_weights *out)
{
    memset(out, 0, sizeof *out);
    if (policy->model == NULL) return;
    out->uses = (uint64_t)policy->model->events;
    memcpy(out->half_life_seconds, reuse_half_lives, sizeof out->half_life_seconds);
    memcpy(out->weight, policy->model->weight, sizeof out->weight);
    memcpy(out->age_seconds, reuse_age_nodes, sizeof out->age_seconds);
    memcpy(out->hazard, policy->model->ages.hazard, sizeof out->hazard);
}

/* The running counts are kept as they are; all else is worked out here. Nothing is counted or
 * learned by it. */
void kvt_policy_stats_get(const kvt_policy *policy, kvt_policy_stats *out)
{
    assert(policy != NULL && out != NULL);
    *out = policy->counters;
    out->entries = policy->held;
    out->ghosts = policy->ghost_count;
    out->moves_in_flight = policy->in_flight_count;
    out->used_bytes[KVT_TIER_NONE] = 0;
    for (int tier = 0; tier < TIERS; tier++)
        out->used_bytes[tier + 1] = policy->used[tier];
    explain_prices(policy, out->price);
    explain_weights(policy, &out->reuse);
    out->hints = policy->hints.counts;
}

/* Writes an option as a caller would give it, with the bytes that are really stored when it is
 * the present one. */
static void explain_option(const kvt_policy *policy, const entry *e, uint8_t option,
                           kvt_option *out)
{
    memset(out, 0, sizeof *out);
    if (option == KVT_OPTION_NONE) {
        out->load_seconds = entry_cost(policy, e, KVT_OPTION_NONE);
        return;
    }
    const stored_option *o = entry_option(policy, e, option);
    out->variant = o->variant;
    for (int tier = 0; tier < TIERS; tier++) {
        out->bytes[tier + 1] = o->bytes[tier];
        out->read_bytes[tier + 1] = o->read_bytes[tier];
    }
    if (option == e->current) {
        for (int tier = 0; tier < TIERS; tier++) {
            if (o->read_bytes[tier] == o->bytes[tier]) out->read_bytes[tier + 1] = e->bytes[tier];
            out->bytes[tier + 1] = e->bytes[tier];
        }
    }
    out->load_seconds = o->load_seconds;
    out->decode_seconds = o->decode_seconds;
    out->encode_seconds = o->encode_seconds;
    out->loss = o->loss;
    out->loss_upper = o->loss_upper;
    out->made_from = o->made_from;
    out->kept_from = o->kept_from;
}

/* Says whether the entry may take an option. A prefix that stored continuations need may not become
 * NONE. Room is not asked here: a score says what would pay, not what fits now. */
static bool explain_is_feasible(const kvt_policy *policy, const entry *e, uint8_t option)
{
    assert(option < e->option_count);
    if (option == KVT_OPTION_NONE) {
        return policy->config.holes == KVT_HOLES_MIXED || entry_children(e) == 0;
    }
    return utility_is_reachable(policy, e, option);
}

/* Weighs every option at the present prices and picks the one with the highest score. The present
 * option is best where no other can be taken. */
static void explain_options(const kvt_policy *policy, const entry *e, kvt_explanation *out)
{
    double best = 0.0;
    bool found = false;
    out->best = e->current;
    for (uint8_t option = 0; option < out->option_count; option++) {
        kvt_explained_option *to = &out->options[option];
        explain_option(policy, e, option, &to->option);
        to->utility = -out->accesses_per_s * entry_cost(policy, e, option);
        for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++)
            to->shadow_cost += out->price[tier] * (double)to->option.bytes[tier];
        to->score = to->utility - to->shadow_cost;
        to->feasible = explain_is_feasible(policy, e, option);
        /* Only a policy that counts uses has an opinion. */
        if (!policy->ops->counts || !to->feasible || (found && to->score <= best)) continue;
        found = true;
        best = to->score;
        out->best = option;
    }
}

/* The term of the rate that says most about an entry. reuse_share is that term's part of the rate,
 * from 0 to 1: a hint may have lowered the rate. */
static void explain_reuse(const kvt_policy *policy, const entry *e, kvt_explanation *out)
{
    if (policy->model == NULL || e->rate_set || !(out->accesses_per_s > 0.0)) return;
    double age = reuse_seconds(policy, policy->now_ns) - reuse_seconds(policy, e->last_access_ns);
    double decay[HALF_LIVES];
    reuse_decays(age, decay);
    out->reuse_expert = "how long ago its last use was";
    out->reuse_kind = KVT_REUSE_AGE;
    out->reuse_weight = reuse_ages_look(&policy->model->ages, reuse_ages_turn(e->turn), age).rate;
    double most = out->reuse_weight;
    for (int k = 0; k < HALF_LIVES; k++) {
        double term = policy->model->rate[k] * decay[k] * reuse_count(e, k);
        if (term <= most) continue;
        most = term;
        out->reuse_expert = "how its uses add up";
        out->reuse_kind = KVT_REUSE_COUNT;
        out->reuse_half_life_seconds = reuse_half_lives[k];
        out->reuse_weight = policy->model->weight[k];
    }
    out->reuse_share = most < out->accesses_per_s ? most / out->accesses_per_s : 1.0;
}

/* The first sentence that holds. The order of the tests is the order of what binds: state, pins,
 * limits, then scores. */
static const char *explain_reason(const kvt_policy *policy, const entry *e,
                                  const kvt_explanation *out)
{
    if (e->state == POLICY_ENTRY_GHOST) {
        return "It is not stored; its reuse counter is remembered.";
    }
    if (e->move != NIL && e->current == KVT_OPTION_NONE) {
        return "It is being stored now: its first move has not been committed.";
    }
    if (e->move != NIL) return "A move of it is in flight, so no other move is planned.";
    if (e->pins > 0) return "It is pinned, so it stays where it is until the last pin is gone.";
    if (!policy->ops->counts && policy->ops->reason != NULL) return policy->ops->reason;
    if (!policy->ops->counts)
        return "It is kept by its policy's own order, which does not score options.";
    if ((e->excluded >> e->current & 1) != 0) {
        return "Its tenant's limits rule its present stored_option out; another takes its place "
               "when it "
               "can.";
    }
    if (out->best == out->current) {
        return "Its present option has the best score: utility less the shadow price of its bytes.";
    }
    if (out->best == KVT_OPTION_NONE) {
        return "Its bytes are worth more to others than to it: it leaves when room is needed.";
    }
    if (policy->ops->reason != NULL) return policy->ops->reason;
    if (entry_children(e) > 0 &&
        out->options[KVT_OPTION_NONE].score > out->options[out->current].score) {
        return "Stored continuations need it as their prefix, so it cannot be dropped.";
    }
    if (option_home(entry_option(policy, e, out->best)) >
        option_home(entry_option(policy, e, e->current))) {
        return "A lower tier scores better: it moves down when room is needed here.";
    }
    return "Another option scores better; it moves when the gain over its stay exceeds the "
           "hysteresis times the cost of the move.";
}

/* Looks at a copy of the engine whose clock is the asked time, so that nothing in the engine itself
 * changes. The copy's pointers lead to the engine's tables, so the call must not run beside one
 * that changes them. out is zero. */
static kvt_status explain_entry(const kvt_policy *policy, uint64_t now_ns, uint64_t handle,
                                kvt_explanation *out)
{
    uint32_t index = entries_find(policy, handle);
    if (index == NIL) return KVT_MISS;
    const entry *e = entry_at(policy, index);
    /* The same engine at the asked time; the tables are shared and only read. */
    kvt_policy view = *policy;
    if (now_ns > view.now_ns) {
        view.now_ns = now_ns;
        view.group_count = 0; /* the shared buckets stay where they are */
        reuse_set_now(&view);
        view.group_count = policy->group_count;
    }
    out->handle = handle;
    out->parent = e->parent == NIL ? 0 : entry_at(policy, e->parent)->handle;
    out->current = e->current;
    if (e->state == POLICY_ENTRY_HELD) {
        out->resident_children = entry_children(e);
        out->pins = e->pins;
        out->option_count = e->option_count;
        out->in_flight = e->move != NIL;
    }
    out->accesses_per_s = policy->ops->counts ? reuse_rate(&view, e) : 0.0;
    out->last_access_age_seconds = (double)(view.now_ns - e->last_access_ns) * 1e-9;
    explain_prices(&view, out->price);
    explain_options(&view, e, out);
    assert(out->option_count == 0 || out->best < out->option_count);
    explain_reuse(&view, e, out);
    assert(out->reuse_share >= 0.0 && out->reuse_share < 1.0 + 1e-6);
    out->reason = explain_reason(&view, e, out);
    return KVT_OK;
}

kvt_status kvt_policy_explain(const kvt_policy *policy, uint64_t now_ns, uint64_t handle,
                              kvt_explanation *out)
{
    assert(policy != NULL && out != NULL);
    if (!struct_size_is_sound(out, STRUCT_SIZE_THROUGH(kvt_explanation, reuse_share)))
        return KVT_E_ARGUMENT;
    kvt_explanation whole = {0};
    kvt_status status = explain_entry(policy, now_ns, handle, &whole);
    struct_size_out(out, &whole, sizeof whole);
    return status;
}

/* The tier's option with the most saved seconds per byte. *out stays 0 where no option of the tier
 * saves anything. */
static void explain_best_worth(const kvt_policy *policy, const entry *e, int tier,
                               kvt_policy_worth *out)
{
    double recompute = entry_cost(policy, e, KVT_OPTION_NONE);
    for (uint8_t option = 1; option < e->option_count; option++) {
        uint64_t bytes = entry_bytes(policy, e, option, tier);
        if (bytes == 0 || !utility_is_reachable(policy, e, option)) continue;
        double saved = recompute - entry_cost(policy, e, option);
        double per_byte = out->uses_per_s * saved / (double)bytes;
        if (per_byte <= out->per_byte) continue;
        out->saved_seconds = saved;
        out->per_byte = per_byte;
    }
}

/* A policy that counts no uses has recency alone: the seconds since the last use stand for the time
 * between two. Numbers of the two kinds compare among entries of one policy, never between
 * policies. out is zero. */
static kvt_status explain_worth(const kvt_policy *policy, uint64_t handle, kvt_tier tier,
                                kvt_policy_worth *out)
{
    uint32_t index = entries_find(policy, handle);
    if (index == NIL || entry_at(policy, index)->state != POLICY_ENTRY_HELD) return KVT_MISS;
    const entry *e = entry_at(policy, index);
    out->resident_children = entry_children(e);
    if (policy->ops->counts) {
        out->uses_per_s = reuse_rate(policy, e);
        explain_best_worth(policy, e, (int)tier - 1, out);
        return KVT_OK;
    }
    uint64_t bytes = 0;
    for (int at = 0; at < TIERS; at++)
        bytes += e->bytes[at];
    out->uses_per_s = 1.0 / ((double)(policy->now_ns - e->last_access_ns) * 1e-9 + 1e-3);
    out->saved_seconds = 1.0;
    if (bytes != 0) out->per_byte = out->uses_per_s / (double)bytes;
    return KVT_OK;
}

kvt_status kvt_policy_worth_get(const kvt_policy *policy, uint64_t handle, kvt_tier tier,
                                kvt_policy_worth *out)
{
    assert(policy != NULL && out != NULL);
    if (tier <= KVT_TIER_NONE || (int)tier >= KVT_TIER_COUNT) return KVT_E_ARGUMENT;
    if (!struct_size_is_sound(out, STRUCT_SIZE_THROUGH(kvt_policy_worth, per_byte)))
        return KVT_E_ARGUMENT;
    kvt_policy_worth whole = {0};
    kvt_status status = explain_worth(policy, handle, tier, &whole);
    struct_size_out(out, &whole, sizeof whole);
    return status;
}
