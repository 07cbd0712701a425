/* SPDX-License-Identifier: Apache-2.0 */
/*
 * advise.c - the calls that update what the engine knows: the clock, ladders, tenants, priors,
 * rates, capacity, speed, hints, copies. None of them makes a plan, and nothing that is stored
 * moves by them: later decisions see the change. Those that change what an option is worth sort the
 * entries anew that have it, which takes a pass over all of them. Thread rule: the caller's lock.
 */
#include "policy/engine.h"
#include "policy/reuse.h"
#include "policy/write_queue.h"

#include <assert.h>
#include <string.h>

/* Classes and ladders are arrays by number, so a number that is asked for bounds their memory. */
#define CLASSES_LIMIT 65536u
#define LADDERS_LIMIT (1u << 20)

/* Time never steps back: a caller's clock that does is held at the latest time seen. The first time
 * that is seen becomes the origin, so that logarithms of times stay small. */
void engine_set_clock(kvt_policy *policy, uint64_t now_ns)
{
    if (!policy->started) {
        policy->started = true;
        policy->base_ns = policy->now_ns = policy->write_ns = now_ns;
    }
    if (now_ns > policy->now_ns) {
        double passed = (double)(now_ns - policy->now_ns) * 1e-9;
        policy->now_ns = now_ns;
        reuse_set_now(policy);
        write_queue_pass(policy, passed);
    }
    if (policy->hints.due.count > 0) hints_pass(policy);
}

/* Returns what is wrong with the facts of a tier, or NULL. The check runs at open and before a
 * speed is changed, so a bandwidth in use is 0 (not known) or at least 1. */
const char *advise_tier_fault(const kvt_policy_config *config)
{
    if (config->tiers[KVT_TIER_NONE].capacity_bytes != 0) return "tier none cannot have a capacity";
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++) {
        const kvt_tier_facts *facts = &config->tiers[tier];
        if (facts->capacity_bytes > CAPACITY_LIMIT) return "a tier's capacity passes 2^61 bytes";
        if (facts->write_bytes_per_s != 0.0 &&
            !number_is_within(facts->write_bytes_per_s, 1.0, UNLIMITED)) {
            return "write_bytes_per_s must be 0 (not known) or at least 1";
        }
        if (!number_is_within(facts->read_bytes_per_s, 0.0, UNLIMITED)) {
            return "read_bytes_per_s must be a number, 0 or more";
        }
        if (!number_is_within(facts->request_seconds, 0.0, SECONDS_LIMIT)) {
            return "request_seconds must be a number, 0 or more";
        }
    }
    return NULL;
}

/* Makes tenant 0, which stands for everybody who names no tenant. False without memory.
 * The price of loss is the configured one until set_tenant changes it; the loss is not limited. */
bool advise_open(kvt_policy *policy)
{
    assert(policy->tenants == NULL && policy->tenant_count == 0);
    policy->tenants = engine_resize(policy, NULL, 0, sizeof *policy->tenants);
    if (policy->tenants == NULL) return false;
    policy->tenant_count = 1;
    memset(policy->tenants, 0, sizeof *policy->tenants);
    policy->tenants[0].known = true;
    policy->tenants[0].limits = (kvt_tenant){.struct_size = sizeof(kvt_tenant),
                                             .alpha_seconds = policy->config.alpha_seconds,
                                             .alpha_prefills = policy->config.alpha_prefills,
                                             .loss_limit = 1.0};
    return true;
}

/* Releases the tables of this file. Each may be missing when an open has failed halfway. */
void advise_close(kvt_policy *policy)
{
    if (policy->tenants != NULL) {
        engine_resize(policy, policy->tenants, sizeof *policy->tenants * policy->tenant_count, 0);
    }
    if (policy->priors != NULL) {
        engine_resize(policy, policy->priors, sizeof *policy->priors * policy->prior_count, 0);
    }
    if (policy->ladders != NULL) {
        engine_resize(policy, policy->ladders, sizeof *policy->ladders * policy->ladders_capacity,
                      0);
    }
}

/* Checks one option as a caller gives it. Its bits may name only options of the same list, tier
 * NONE holds no bytes, and an option other than NONE stores some. Numbers that pass keep every
 * product of costs, rates and bytes finite, so decisions check no overflow. */
static bool advise_option_is_sound(const kvt_option *o, uint32_t count, bool is_none)
{
    assert(count >= 1 && count <= KVT_OPTIONS_MAX);
    if (!number_is_within(o->load_seconds, 0.0, SECONDS_LIMIT)) return false;
    if (!number_is_within(o->decode_seconds, 0.0, SECONDS_LIMIT)) return false;
    if (!number_is_within(o->encode_seconds, 0.0, SECONDS_LIMIT)) return false;
    if (!number_is_within(o->loss, 0.0, 1.0)) return false;
    if (!number_is_within(o->loss_upper, 0.0, 1.0)) return false;
    if ((uint64_t)(o->made_from | o->kept_from) >> count != 0) return false;
    bool stored = false;
    for (int tier = 0; tier < KVT_TIER_COUNT; tier++) {
        if (o->bytes[tier] > CAPACITY_LIMIT) return false;
        if (o->bytes[tier] != 0) stored = true;
    }
    if (o->bytes[KVT_TIER_NONE] != 0 || o->read_bytes[KVT_TIER_NONE] != 0) return false;
    if (is_none) return !stored && o->decode_seconds <= 0.0 && o->loss <= 0.0;
    return stored;
}

/* Checks a list of options as a caller gives it: the first is NONE, and no number is out of range.
 * Option 0 is NONE, whose load_seconds are the recompute time. KVT_OK;
 * KVT_E_ARGUMENT; KVT_E_UNSUPPORTED (bytes in a tier that this version lacks). */
kvt_status policy_options_check(const kvt_option *options, uint32_t count)
{
    if (options == NULL || count < 1 || count > KVT_OPTIONS_MAX) return KVT_E_ARGUMENT;
    uint64_t beyond = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (!advise_option_is_sound(&options[i], count, i == KVT_OPTION_NONE))
            return KVT_E_ARGUMENT;
        for (int tier = KVT_TIER_COUNT; tier < KVT_TIER_PLACES; tier++)
            beyond |= options[i].bytes[tier] | options[i].read_bytes[tier];
    }
    return beyond == 0 ? KVT_OK : KVT_E_UNSUPPORTED;
}

/* Copies the options once for all entries that will name this ladder. Ladders are never released
 * one by one, so their numbers stay valid as long as the engine lives. *ladder_out is from 1 on; 0
 * names no ladder. */
kvt_status kvt_policy_ladder_add(kvt_policy *policy, const kvt_option *options, uint32_t count,
                                 uint32_t *ladder_out)
{
    assert(policy != NULL && ladder_out != NULL);
    *ladder_out = 0;
    kvt_status status = policy_options_check(options, count);
    if (status != KVT_OK) return status;
    if (policy->ladder_count == LADDERS_LIMIT) return KVT_E_MEMORY;
    if (policy->ladder_count == policy->ladders_capacity) {
        uint32_t capacity = policy->ladders_capacity == 0 ? 16 : policy->ladders_capacity * 2;
        ladder *grown =
            engine_resize(policy, policy->ladders, sizeof *grown * policy->ladders_capacity,
                          sizeof *grown * capacity);
        if (grown == NULL) return KVT_E_MEMORY;
        policy->ladders = grown;
        policy->ladders_capacity = capacity;
    }
    if (!options_reserve(policy, count - 1)) return KVT_E_MEMORY;
    ladder *added = &policy->ladders[policy->ladder_count++];
    added->option_count = count;
    added->options = count > 1 ? options_take(policy, count - 1) : NIL;
    if (count > 1) {
        options_copy(&policy->options[added->options], &options[1], count - 1);
        options_refresh(policy, added->options, count - 1);
    }
    *ladder_out = policy->ladder_count;
    assert(policy->ladder_count <= policy->ladders_capacity);
    return KVT_OK;
}

/* Checks what a caller asks for a tenant. A share in tier NONE means nothing and is refused. */
static bool advise_tenant_is_sound(const kvt_tenant *limits)
{
    if (!number_is_within(limits->alpha_seconds, 0.0, SECONDS_LIMIT)) return false;
    if (!number_is_within(limits->alpha_prefills, 0.0, ALPHA_PREFILLS_LIMIT)) return false;
    if (!number_is_within(limits->loss_limit, 0.0, 1.0)) return false;
    if (!number_is_within(limits->load_limit_seconds, 0.0, SECONDS_LIMIT)) return false;
    for (int tier = 0; tier < KVT_TIER_COUNT; tier++)
        if (limits->share_bytes[tier] > CAPACITY_LIMIT) return false;
    return limits->share_bytes[KVT_TIER_NONE] == 0;
}

/* Tenants that nobody has described have tenant 0's limits without its shares. Limits that are set
 * for tenant 0 later reach them too, until they are described themselves. */
static bool advise_grow_tenants(kvt_policy *policy, uint32_t count)
{
    assert(policy->tenant_count >= 1 && count <= KVT_TENANTS_MAX);
    if (policy->tenant_count >= count) return true;
    tenant *grown = engine_resize(policy, policy->tenants, sizeof *grown * policy->tenant_count,
                                  sizeof *grown * count);
    if (grown == NULL) return false;
    for (uint32_t i = policy->tenant_count; i < count; i++) {
        grown[i] = (tenant){.limits = grown[0].limits};
        memset(grown[i].limits.share_bytes, 0, sizeof grown[i].limits.share_bytes);
    }
    policy->tenants = grown;
    policy->tenant_count = count;
    return true;
}

/* Makes room for a tenant that is named for the first time. False without memory. */
bool advise_knows_tenant(kvt_policy *policy, uint32_t number)
{
    assert(number < KVT_TENANTS_MAX);
    return number < policy->tenant_count || advise_grow_tenants(policy, number + 1);
}

/* A tenant with a share needs victims of its own from now on. A group is never given back: a tenant
 * whose share is lifted keeps its own victims. */
static bool advise_give_group(kvt_policy *policy, tenant *owner)
{
    if (!policy->ops->buckets || owner->group != 0) return true;
    if (policy->group_count > UINT8_MAX || !entries_add_group(policy)) return false;
    owner->group = (uint8_t)(policy->group_count - 1);
    assert(owner->group != 0 && policy->groups[owner->group] != NULL);
    return true;
}

/* Changes limits, and with them which options the entries of the tenant may take. Its entries leave
 * the victim index before the group changes and come back after it, because the index is found by
 * the group. Limits of tenant 0 pass to every tenant that nobody has described, without the shares.
 * The walks take time in proportion to all entries. */
kvt_status kvt_policy_tenant_set(kvt_policy *policy, uint32_t number, const kvt_tenant *limits)
{
    assert(policy != NULL && limits != NULL);
    kvt_tenant whole = {0};
    limits =
        struct_size_in(limits, &whole, sizeof whole, STRUCT_SIZE_THROUGH(kvt_tenant, share_bytes));
    if (limits == NULL || number >= KVT_TENANTS_MAX || !advise_tenant_is_sound(limits))
        return KVT_E_ARGUMENT;
    for (int tier = KVT_TIER_COUNT; tier < KVT_TIER_PLACES; tier++)
        if (limits->share_bytes[tier] != 0) return KVT_E_UNSUPPORTED;
    if (!advise_knows_tenant(policy, number)) return KVT_E_MEMORY;
    tenant *owner = &policy->tenants[number];
    bool limited = false;
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++)
        if (limits->share_bytes[tier] != 0) limited = true;
    /* The group that is added must not show before its entries have left the old one. */
    uint8_t group = owner->group;
    if (limited && !advise_give_group(policy, owner)) return KVT_E_MEMORY;
    uint8_t new_group = owner->group;
    owner->group = group;
    for (uint32_t i = 0; i < policy->entries_used; i++) {
        entry *e = entry_at(policy, i);
        if (e->state == POLICY_ENTRY_HELD && e->tenant == number) policy->ops->remove(policy, i);
    }
    owner->group = new_group;
    owner->limits = *limits;
    owner->limited = limited;
    owner->known = true;
    for (uint32_t i = 0; number == 0 && i < policy->tenant_count; i++) {
        tenant *other = &policy->tenants[i];
        if (other->known) continue;
        other->limits = *limits;
        memset(other->limits.share_bytes, 0, sizeof other->limits.share_bytes);
    }
    for (uint32_t i = 0; i < policy->entries_used; i++) {
        entry *e = entry_at(policy, i);
        if (e->state != POLICY_ENTRY_HELD) continue;
        if (e->tenant != number && (number != 0 || policy->tenants[e->tenant].known)) continue;
        options_exclude(policy, e);
        policy->ops->index(policy, i);
    }
    return KVT_OK;
}

/* Keeps a prior by class. Classes that nobody has named have the prior 0. The prior counts once,
 * when an entry of the class is seen for the first time. */
kvt_status kvt_policy_prior_set(kvt_policy *policy, uint32_t class_id, double uses)
{
    assert(policy != NULL);
    if (class_id == 0 || class_id >= CLASSES_LIMIT || !number_is_within(uses, 0.0, 1e6)) {
        return KVT_E_ARGUMENT;
    }
    if (class_id >= policy->prior_count) {
        float *grown = engine_resize(policy, policy->priors, sizeof *grown * policy->prior_count,
                                     sizeof *grown * (class_id + 1));
        if (grown == NULL) return KVT_E_MEMORY;
        for (uint32_t i = policy->prior_count; i <= class_id; i++)
            grown[i] = 0.0f;
        policy->priors = grown;
        policy->prior_count = class_id + 1;
    }
    policy->priors[class_id] = (float)uses;
    assert(class_id < policy->prior_count);
    return KVT_OK;
}

/* The counters that reuse.c turns into this rate, as of the engine's time. The entry has this one
 * counter until it is forgotten; uses that follow add to it. */
kvt_status kvt_policy_rate_set(kvt_policy *policy, uint64_t handle, double uses_per_s)
{
    assert(policy != NULL);
    if (!policy->ops->counts) return KVT_E_UNSUPPORTED;
    if (!number_is_within(uses_per_s, 0.0, SECONDS_LIMIT)) return KVT_E_ARGUMENT;
    uint32_t index = entries_find(policy, handle);
    if (index == NIL) return KVT_MISS;
    entry *e = entry_at(policy, index);
    reuse_set_rate(policy, e, uses_per_s);
    if (e->state == POLICY_ENTRY_HELD) policy->ops->index(policy, index);
    return KVT_OK;
}

/* A tier never gets less capacity than it stores now: the engine does not plan the moves that
 * would empty it. */
kvt_status kvt_policy_capacity_set(kvt_policy *policy, kvt_tier tier, uint64_t capacity_bytes)
{
    assert(policy != NULL);
    if ((int)tier <= KVT_TIER_NONE || (int)tier >= KVT_TIER_COUNT) return KVT_E_ARGUMENT;
    if (capacity_bytes > CAPACITY_LIMIT) return KVT_E_ARGUMENT;
    int at = (int)tier - 1;
    uint64_t before = policy->capacity[at];
    uint64_t used = policy->used[at];
    /* Reservations of moves in flight may pass the old capacity for a while; what is stored never
     * does, so the old capacity bounds what has to be kept. */
    if (used > before) used = before;
    uint64_t after = capacity_bytes > used ? capacity_bytes : used;
    if (after == before) return KVT_OK;
    policy->capacity[at] = after;
    assert(after <= CAPACITY_LIMIT);
    /* The capacities decide which steps an entry has. */
    entries_index_all(policy);
    return KVT_OK;
}

/* The capacity stays, and with it the steps that entries have. */
kvt_status kvt_policy_withheld_set(kvt_policy *policy, kvt_tier tier, uint64_t withheld_bytes)
{
    assert(policy != NULL);
    if ((int)tier <= KVT_TIER_NONE || (int)tier >= KVT_TIER_COUNT) return KVT_E_ARGUMENT;
    if (withheld_bytes > CAPACITY_LIMIT) return KVT_E_ARGUMENT;
    policy->withheld[(int)tier - 1] = withheld_bytes;
    return KVT_OK;
}

/* Writes that wait keep their bytes; their seconds follow the new bandwidth. Read bandwidth and
 * request seconds are kept for the figures alone: loads are in the options. */
kvt_status kvt_policy_speed_set(kvt_policy *policy, kvt_tier tier, double read_bytes_per_s,
                                double write_bytes_per_s, double request_seconds)
{
    assert(policy != NULL);
    if ((int)tier <= KVT_TIER_NONE || (int)tier >= KVT_TIER_COUNT) return KVT_E_ARGUMENT;
    kvt_tier_facts *facts = &policy->config.tiers[tier];
    kvt_policy_config asked = policy->config;
    asked.tiers[tier].read_bytes_per_s = read_bytes_per_s;
    asked.tiers[tier].write_bytes_per_s = write_bytes_per_s;
    asked.tiers[tier].request_seconds = request_seconds;
    if (advise_tier_fault(&asked) != NULL) return KVT_E_ARGUMENT;
    *facts = asked.tiers[tier];
    write_queue_set_speed(policy, (int)tier - 1);
    return KVT_OK;
}

/* Takes a hint of an entry's next use. A hint of an entry that is not stored is a miss. */
kvt_status kvt_policy_hint(kvt_policy *policy, uint64_t now_ns, uint64_t handle, kvt_hint_kind kind,
                           double seconds, uint32_t giver)
{
    assert(policy != NULL);
    if ((int)kind < 0 || (int)kind >= KVT_HINT_KINDS || giver >= KVT_TENANTS_MAX)
        return KVT_E_ARGUMENT;
    if (!number_is_within(seconds, 0.0, KVT_HINT_SECONDS_MAX)) return KVT_E_ARGUMENT;
    if (hints_expect_use((uint8_t)kind) && !(seconds > 0.0)) return KVT_E_ARGUMENT;
    if (!advise_knows_tenant(policy, giver)) return KVT_E_MEMORY;
    if (policy->ops->learns && !hints_reserve(policy)) return KVT_E_MEMORY;
    engine_set_clock(policy, now_ns);
    uint32_t index = entries_find(policy, handle);
    if (index == NIL || entry_at(policy, index)->state != POLICY_ENTRY_HELD) return KVT_MISS;
    if (!policy->ops->learns) {
        policy->hints.counts.given[kind]++;
        policy->hints.counts.dropped[kind]++;
        return KVT_OK;
    }
    hints_give(policy, index, (uint8_t)kind, seconds, (uint8_t)giver);
    policy->ops->index(policy, index);
    return KVT_OK;
}

/* Notes whether somebody else keeps a copy of an entry, which costs that load instead. */
kvt_status kvt_policy_copy_set(kvt_policy *policy, uint64_t now_ns, uint64_t handle,
                               double load_seconds)
{
    assert(policy != NULL);
    if (!number_is_within(load_seconds, 0.0, SECONDS_LIMIT)) return KVT_E_ARGUMENT;
    if (!policy->ops->learns) return KVT_OK;
    engine_set_clock(policy, now_ns);
    uint32_t index = entries_find(policy, handle);
    if (index == NIL) return KVT_MISS;
    if (load_seconds == 0.0 && policy->copies.notes == NULL) return KVT_OK;
    if (!elsewhere_reserve(policy)) return KVT_E_MEMORY;
    elsewhere_note(policy, index, load_seconds);
    if (entry_is_movable(entry_at(policy, index))) policy->ops->index(policy, index);
    return KVT_OK;
}
