/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reuse.c - how often an entry is used: counters that are halved once a half life, in up to three
 * half lives side by side, and the one order among entries that is in use now.
 *
 *     n_k    = sum over uses of 2^(-(t_last - t_use) / h_k)            kept with the entry
 *     g      = log2 n_k + t_last / h_k                                 changes only with a use
 *     f(t)   = ln 2 / h_k * 2^(g - t / h_k)                            uses per second
 *
 * The factor 2^(-t/h) is common to all entries, so an order by g plus a constant of the entry never
 * ages. Plain recency is the same with n = 1: only the last use counts.
 */
#include "policy/engine.h"

#define REUSE_EMPTY (-65536.0) /* log2 of a count of nothing */
#define REUSE_MOST  1e30f

static double reuse_seconds(const kvt_policy *policy, uint64_t at_ns)
{
    return at_ns > policy->base_ns ? (double)(at_ns - policy->base_ns) * 1e-9 : 0.0;
}

/* Brings an entry's counters to its new last access. */
static void reuse_decay(kvt_policy *policy, entry *e, uint64_t at_ns)
{
    double passed = reuse_seconds(policy, at_ns) - reuse_seconds(policy, e->last_access_ns);
    e->last_access_ns = at_ns;
    if (passed <= 0.0) return;
    for (uint32_t k = 0; k < policy->clocks; k++) {
        if (e->count[k] > 0.0f) {
            e->count[k] =
                (float)((double)e->count[k] * number_exp2(-passed / policy->half_life[k]));
        }
    }
}

void reuse_use(kvt_policy *policy, entry *e, double weight)
{
    reuse_decay(policy, e, policy->now_ns);
    for (uint32_t k = 0; k < policy->clocks; k++) {
        float more = e->count[k] + (float)weight;
        e->count[k] = more < REUSE_MOST ? more : REUSE_MOST;
    }
}

/* As used once, one half life ago, unless more is remembered. */
void reuse_adopt(kvt_policy *policy, entry *e)
{
    reuse_decay(policy, e, policy->now_ns);
    for (uint32_t k = 0; k < policy->clocks; k++)
        if (e->count[k] < 0.5f) e->count[k] = 0.5f;
}

/* Raises a prefix to what its continuation has; false when it had that already. */
bool reuse_raise(kvt_policy *policy, entry *up, const entry *child)
{
    bool raised = false;
    if (up->last_access_ns < child->last_access_ns) {
        reuse_decay(policy, up, child->last_access_ns);
        raised = true;
    }
    for (uint32_t k = 0; k < policy->clocks; k++) {
        double later = reuse_seconds(policy, up->last_access_ns) -
                       reuse_seconds(policy, child->last_access_ns);
        double least = (double)child->count[k];
        if (later > 0.0) least *= number_exp2(-later / policy->half_life[k]);
        if ((double)up->count[k] >= least) continue;
        up->count[k] = (float)least;
        raised = true;
    }
    return raised;
}

double reuse_log_count(const kvt_policy *policy, const entry *e)
{
    double when = reuse_seconds(policy, e->last_access_ns) / policy->order_half_life;
    if (policy->order == RECENCY_ORDER) return when;
    float count = e->count[policy->order];
    return (count > 1e-30f ? number_log2((double)count) : REUSE_EMPTY) + when;
}

double reuse_rate_of(const kvt_policy *policy, double log_count)
{
    return REUSE_LN2 / policy->order_half_life * number_exp2(log_count - policy->now_half_lives);
}

double reuse_rate(const kvt_policy *policy, const entry *e)
{
    double age = reuse_seconds(policy, e->last_access_ns) / policy->order_half_life;
    double count = policy->order == RECENCY_ORDER ? 1.0 : (double)e->count[policy->order];
    return REUSE_LN2 / policy->order_half_life * count * number_exp2(age - policy->now_half_lives);
}

void reuse_set_now(kvt_policy *policy)
{
    policy->now_half_lives = reuse_seconds(policy, policy->now_ns) / policy->order_half_life;
    if (policy->now_half_lives < policy->advanced + 1.0) return;
    policy->advanced = policy->now_half_lives;
    for (uint32_t group = 0; group < policy->group_count; group++)
        for (int at = 0; at < LEVELS * STEP_KINDS; at++)
            buckets_advance(&policy->groups[group]->of[at / STEP_KINDS][at % STEP_KINDS],
                            engine_links(policy, at / STEP_KINDS), policy->advanced);
}

/* Takes up another order: every key changes, so all entries leave the index first. */
void reuse_set_order(kvt_policy *policy, uint32_t order)
{
    for (uint32_t i = 0; i < policy->entries_used; i++)
        if (entry_at(policy, i)->state == ENTRY_HELD) policy->ops->remove(policy, i);
    policy->order = order;
    policy->order_half_life = policy->half_life[order < CLOCKS ? order : 0];
    for (uint32_t group = 0; group < policy->group_count; group++)
        for (int at = 0; at < LEVELS * STEP_KINDS; at++)
            buckets_init(&policy->groups[group]->of[at / STEP_KINDS][at % STEP_KINDS]);
    policy->advanced = -1.0;
    reuse_set_now(policy);
    entries_index_all(policy);
}
