/* SPDX-License-Identifier: Apache-2.0 */
/*
 * option_runs.c - the pool of options. An entry's options are a run of the pool, named by its first
 * index. Entries with equal options share a run, because most entries of a store have the layout
 * and the figures of others: a thousand entries then take the memory of one.
 *
 * A run in use is never changed: an entry that gets other figures goes to another run. Runs of
 * ladders are not in the table, and have no users.
 */
#include "policy/engine.h"

#include <assert.h>
#include <string.h>

#define STAGING_SHARE 64 /* of a tier may stay free for changes inside it */
#define STAGING_SMALL 32 /* likewise in a small tier */

/* ---- equal runs ---- */

/* A hash of what a run says. */
static uint32_t options_hash(const stored_option *options, uint32_t count)
{
    uint64_t hash = count;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t words[OPTION_FACTS_BYTES / sizeof(uint64_t)];
        memcpy(words, &options[i], sizeof words);
        for (size_t w = 0; w < sizeof words / sizeof words[0]; w++) {
            hash = (hash ^ words[w]) * UINT64_C(0x9E3779B97F4A7C15);
            hash ^= hash >> 32;
        }
    }
    return (uint32_t)hash;
}

/* Says whether two runs of this length are equal. */
static bool options_equal(const stored_option *a, const stored_option *b, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (memcmp(&a[i], &b[i], OPTION_FACTS_BYTES) != 0) return false;
    return true;
}

/* The place in the table where the search for a listed run begins. */
static uint32_t options_home(const kvt_policy *policy, uint32_t first)
{
    const stored_option *run = &policy->options[first];
    return options_hash(run, run->length) & (policy->runs_capacity - 1);
}

/* Lists a run in the table, which always has a free place. */
static void options_list(kvt_policy *policy, uint32_t first)
{
    uint32_t at = options_home(policy, first);
    while (policy->runs[at] != NIL)
        at = (at + 1) & (policy->runs_capacity - 1);
    policy->runs[at] = first;
}

/* Takes a listed run out of the table: later members of the cluster move back over the hole. */
static void options_unlist(kvt_policy *policy, uint32_t first)
{
    uint32_t mask = policy->runs_capacity - 1;
    uint32_t hole = options_home(policy, first);
    while (policy->runs[hole] != first)
        hole = (hole + 1) & mask;
    for (uint32_t at = (hole + 1) & mask; policy->runs[at] != NIL; at = (at + 1) & mask) {
        if (((at - options_home(policy, policy->runs[at])) & mask) < ((at - hole) & mask)) continue;
        policy->runs[hole] = policy->runs[at];
        hole = at;
    }
    policy->runs[hole] = NIL;
    assert(policy->run_count > 0);
    policy->run_count--;
}

/* Makes sure that the table stays at most half full with a run more. */
static bool options_reserve_table(kvt_policy *policy)
{
    if (policy->run_count < policy->runs_capacity / 2) return true;
    uint32_t old_capacity = policy->runs_capacity, *old = policy->runs;
    uint32_t capacity = old_capacity == 0 ? 64 : old_capacity * 2;
    uint32_t *runs = engine_resize(policy, NULL, 0, sizeof *runs * capacity);
    if (runs == NULL) return false;
    memset(runs, 0xFF, sizeof *runs * capacity);
    policy->runs = runs;
    policy->runs_capacity = capacity;
    for (uint32_t i = 0; i < old_capacity; i++)
        if (old[i] != NIL) options_list(policy, old[i]);
    if (old != NULL) engine_resize(policy, old, sizeof *old * old_capacity, 0);
    return true;
}

/* ---- the pool ---- */

/* Asks for the tables. False without memory; options_close releases what is there. */
bool options_open(kvt_policy *policy)
{
    for (uint32_t length = 0; length < KVT_OPTIONS_MAX; length++)
        policy->options_free[length] = NIL;
    return options_reserve(policy, KVT_OPTIONS_MAX);
}

/* Releases the tables, also those of an open that failed halfway. */
void options_close(kvt_policy *policy)
{
    if (policy->runs != NULL)
        engine_resize(policy, policy->runs, sizeof *policy->runs * policy->runs_capacity, 0);
    if (policy->options != NULL) {
        engine_resize(policy, policy->options, sizeof *policy->options * policy->options_capacity,
                      0);
    }
}

/* Makes room for a run of options: one that was released, or the end of the pool. */
bool options_reserve(kvt_policy *policy, uint32_t count)
{
    if (!options_reserve_table(policy)) return false;
    if (count < KVT_OPTIONS_MAX && policy->options_free[count] != NIL) return true;
    if (policy->options_capacity - policy->options_used >= count) return true;
    uint64_t capacity = policy->options_capacity;
    while (capacity - policy->options_used < count)
        capacity = capacity == 0 ? 64 : capacity * 2;
    if (capacity > NIL) return false;
    void *options =
        engine_resize(policy, policy->options, sizeof *policy->options * policy->options_capacity,
                      sizeof *policy->options * (size_t)capacity);
    if (options == NULL) return false;
    policy->options = options;
    policy->options_capacity = (uint32_t)capacity;
    return true;
}

/* A released run of options keeps the index of the next released run of its length in its head.
 * options_reserve has made sure that one of the two sources has the run. */
uint32_t options_take(kvt_policy *policy, uint32_t count)
{
    assert(count > 0 && count < KVT_OPTIONS_MAX);
    uint32_t first = policy->options_free[count];
    if (first == NIL) {
        first = policy->options_used;
        policy->options_used += count;
        assert(policy->options_used <= policy->options_capacity);
        return first;
    }
    policy->options_free[count] = (uint32_t)policy->options[first].bytes[0];
    assert(first + count <= policy->options_used);
    return first;
}

/* Releases a run of options to the chain of its length. Runs are never joined or split, so a length
 * that is common finds its runs again. */
static void options_give_back(kvt_policy *policy, uint32_t first, uint32_t count)
{
    assert(first + count <= policy->options_used && count < KVT_OPTIONS_MAX);
    policy->options[first].bytes[0] = policy->options_free[count];
    policy->options_free[count] = first;
}

/* ---- users ---- */

/* The run is given back when an older one says the same. */
uint32_t options_join(kvt_policy *policy, uint32_t first, uint32_t count)
{
    stored_option *run = &policy->options[first];
    uint32_t at = options_hash(run, count) & (policy->runs_capacity - 1);
    for (; policy->runs[at] != NIL; at = (at + 1) & (policy->runs_capacity - 1)) {
        stored_option *older = &policy->options[policy->runs[at]];
        if (older->length != count || !options_equal(older, run, count)) continue;
        older->users++;
        options_give_back(policy, first, count);
        return policy->runs[at];
    }
    run->length = (uint8_t)count;
    run->users = 1;
    policy->runs[at] = first;
    policy->run_count++;
    assert(policy->run_count <= policy->runs_capacity / 2);
    return first;
}

/* The last user gives the run back. */
void options_leave(kvt_policy *policy, uint32_t first, uint32_t count)
{
    stored_option *run = &policy->options[first];
    assert(run->length == count && run->users > 0);
    if (--run->users != 0) return;
    options_unlist(policy, first);
    options_give_back(policy, first, count);
}

/* The table loses the run that is to be changed, so the place that a run takes there is free for
 * it again. */
uint32_t options_part(kvt_policy *policy, uint32_t first, uint32_t count)
{
    stored_option *run = &policy->options[first];
    assert(run->length == count && run->users > 0);
    if (run->users == 1) {
        options_unlist(policy, first);
        return first;
    }
    run->users--;
    uint32_t copy = options_take(policy, count);
    memcpy(&policy->options[copy], &policy->options[first], count * sizeof policy->options[copy]);
    return copy;
}

/* ---- what options say ---- */

uint64_t options_second(const kvt_policy *policy, uint32_t first, uint32_t count, int tier)
{
    uint64_t most = 0, next = 0;
    for (uint32_t i = first; i < first + count; i++) {
        uint64_t bytes = policy->options[i].bytes[tier];
        if (bytes > most) {
            next = most;
            most = bytes;
        } else if (bytes > next && bytes < most) {
            next = bytes;
        }
    }
    return next;
}

/* The bytes of the largest of some options in a tier that have so many at most; 0 without one. */
static uint64_t options_within(const kvt_policy *policy, uint32_t first, uint32_t count, int tier,
                               uint64_t most)
{
    uint64_t best = 0;
    for (uint32_t i = first; i < first + count; i++) {
        uint64_t bytes = policy->options[i].bytes[tier];
        if (bytes <= most && bytes > best) best = bytes;
    }
    return best;
}

/*
 * Keeps free the room that one of these options needs for a while to become another inside a tier.
 * Without it a full tier would hold raw entries for ever, because nothing in it could be coded
 * smaller. The room only grows, since entries of all sizes share the tier. A tier of less than 64
 * such variants keeps the room of the largest variant that it has 32 times.
 */
static void options_stage(kvt_policy *policy, uint32_t first, uint32_t count)
{
    for (int tier = 0; tier < TIERS; tier++) {
        uint64_t next = options_second(policy, first, count, tier);
        if (next > policy->capacity[tier] / STAGING_SHARE) {
            policy->staging_short[tier] = true;
            next =
                options_within(policy, first, count, tier, policy->capacity[tier] / STAGING_SMALL);
        }
        if (next > policy->staging[tier]) policy->staging[tier] = next;
    }
}

/* Works out again what is derived of options: their base cost, and whether they fit their tiers.
 * least_base_cost only falls here; entries_index_all works it out anew. */
void options_refresh(kvt_policy *policy, uint32_t first, uint32_t count)
{
    assert(first + count <= policy->options_used);
    for (uint32_t i = first; i < first + count; i++) {
        stored_option *o = &policy->options[i];
        o->base_cost = o->load_seconds + o->decode_seconds;
        o->fits = true;
        for (int tier = 0; tier < TIERS; tier++)
            o->fits = o->fits && o->bytes[tier] <= policy->capacity[tier];
        if (o->base_cost < policy->least_base_cost) policy->least_base_cost = o->base_cost;
    }
    if (policy->ops->learns) options_stage(policy, first, count);
}

/* Copies options as the public calls give them. An upper bound of loss that is missing is the
 * loss itself. */
void options_copy(stored_option *to, const kvt_option *options, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++, to++) {
        const kvt_option *o = &options[i];
        *to = (stored_option){.variant = o->variant,
                              .load_seconds = o->load_seconds,
                              .decode_seconds = o->decode_seconds,
                              .encode_seconds = o->encode_seconds,
                              .loss = o->loss,
                              .loss_upper = o->loss_upper > o->loss ? o->loss_upper : o->loss,
                              .made_from = o->made_from | o->kept_from,
                              .kept_from = o->kept_from};
        for (int tier = 0; tier < TIERS; tier++) {
            to->bytes[tier] = o->bytes[tier + 1];
            to->read_bytes[tier] = o->read_bytes[tier + 1];
        }
    }
}

/*
 * Works out the options that an entry's tenant rules out. Too lossy: always. Too slow: while
 * another option or recomputing is fast enough; when nothing is, all but the fastest.
 *
 * An entry that is stored in an option which is ruled out now keeps it until a move can change
 * that.
 */
void options_exclude(kvt_policy *policy, entry *e)
{
    assert(e->tenant < policy->tenant_count && e->option_count >= 1);
    const kvt_tenant *limits = &policy->tenants[e->tenant].limits;
    e->excluded = 0;
    if (limits->loss_limit >= 1.0 && limits->load_limit_seconds <= 0.0) return;
    double fastest = (double)e->recompute_seconds;
    uint8_t best = KVT_OPTION_NONE;
    for (uint8_t option = 1; option < e->option_count; option++) {
        const stored_option *o = entry_option(policy, e, option);
        if ((double)e->sensitivity * o->loss_upper > limits->loss_limit) {
            e->excluded |= UINT32_C(1) << option;
        } else if (o->load_seconds + o->decode_seconds < fastest) {
            fastest = o->load_seconds + o->decode_seconds;
            best = option;
        }
    }
    double limit = limits->load_limit_seconds;
    for (uint8_t option = 1; limit > 0.0 && option < e->option_count; option++) {
        const stored_option *o = entry_option(policy, e, option);
        bool slow = o->load_seconds + o->decode_seconds > limit;
        if (slow && (fastest <= limit || option != best)) e->excluded |= UINT32_C(1) << option;
    }
    for (uint32_t left = e->excluded; left != 0; left &= left - 1)
        policy->counters.limited++;
}
