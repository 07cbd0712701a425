/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recost.c - new figures for the options of an entry that is stored: seconds and losses when a
 * curve has been measured anew, sizes when a record has come out. Variants and lineage stay, and so
 * do the bytes that are stored or reserved, so no plan that is under way is touched. An entry that
 * shares its options with others goes to others; those of a ladder cannot be changed.
 */
#include "policy/engine.h"

#include <assert.h>
#include <string.h>

/* Says whether options are those of the entry: as many, the same variants, bytes in the same tiers.
 * Another list of options would change what the numbers of options mean to the caller, in plans
 * under way and in lineage bits. */
static bool recost_fits(const kvt_policy *policy, const entry *e, const kvt_option *options,
                        uint32_t count)
{
    if (e->shares || count != e->option_count) return false;
    for (uint32_t i = 1; i < count; i++) {
        const stored_option *o = &policy->options[e->options + i - 1];
        if (memcmp(&o->variant, &options[i].variant, sizeof o->variant) != 0) return false;
        for (int tier = 0; tier < TIERS; tier++)
            if ((o->bytes[tier] != 0) != (options[i].bytes[tier + 1] != 0)) return false;
    }
    return true;
}

/* The stored entry whose options the options are; KVT_MISS when it is not stored. *index_out is
 * valid only with KVT_OK. */
static kvt_status recost_find(const kvt_policy *policy, uint64_t handle, const kvt_option *options,
                              uint32_t count, uint32_t *index_out)
{
    assert(policy != NULL);
    kvt_status status = policy_options_check(options, count);
    if (status != KVT_OK) return status;
    *index_out = entries_find(policy, handle);
    if (*index_out == NIL || entry_at(policy, *index_out)->state != POLICY_ENTRY_HELD)
        return KVT_MISS;
    bool fits = recost_fits(policy, entry_at(policy, *index_out), options, count);
    return fits ? KVT_OK : KVT_E_ARGUMENT;
}

/* The options of the entry have been changed: works out what is derived of them, and shares them
 * with the entries that have the same. */
static void recost_join(kvt_policy *policy, entry *e)
{
    if (e->option_count < 2) return;
    uint32_t count = e->option_count - 1u;
    options_refresh(policy, e->options, count);
    e->options = options_join(policy, e->options, count);
}

/* Takes new seconds and losses over and sorts the entry anew. Stored bytes stay, so nothing in the
 * ledger changes; the entry may stand elsewhere in its tier's order afterwards. */
kvt_status kvt_policy_recost(kvt_policy *policy, uint64_t handle, const kvt_option *options,
                             uint32_t count)
{
    uint32_t index;
    kvt_status status = recost_find(policy, handle, options, count, &index);
    if (status != KVT_OK) return status;
    if (count > 1 && !options_reserve(policy, count - 1)) return KVT_E_MEMORY;
    entry *e = entry_at(policy, index);
    e->recompute_seconds = (float)options[0].load_seconds;
    if (count > 1) e->options = options_part(policy, e->options, count - 1);
    for (uint32_t i = 1; i < count; i++) {
        stored_option *o = &policy->options[e->options + i - 1];
        o->load_seconds = options[i].load_seconds;
        o->decode_seconds = options[i].decode_seconds;
        o->encode_seconds = options[i].encode_seconds;
        o->loss = options[i].loss;
        o->loss_upper = options[i].loss_upper > o->loss ? options[i].loss_upper : o->loss;
    }
    recost_join(policy, e);
    options_exclude(policy, e);
    policy->ops->index(policy, index);
    return KVT_OK;
}

/* Takes new bytes over. An entry whose move is in flight keeps what was reserved for it, so the
 * call has to come later. The stored bytes do not change either: the call predicts anew what each
 * option would take. */
kvt_status kvt_policy_resize(kvt_policy *policy, uint64_t handle, const kvt_option *options,
                             uint32_t count)
{
    uint32_t index;
    kvt_status status = recost_find(policy, handle, options, count, &index);
    if (status != KVT_OK) return status;
    entry *e = entry_at(policy, index);
    if (e->move != NIL) return KVT_BUSY; /* its target is reserved as it was planned */
    if (count > 1 && !options_reserve(policy, count - 1)) return KVT_E_MEMORY;
    if (count > 1) e->options = options_part(policy, e->options, count - 1);
    for (uint32_t i = 1; i < count; i++) {
        stored_option *o = &policy->options[e->options + i - 1];
        for (int tier = 0; tier < TIERS; tier++) {
            o->bytes[tier] = options[i].bytes[tier + 1];
            o->read_bytes[tier] = options[i].read_bytes[tier + 1];
        }
    }
    recost_join(policy, e);
    policy->ops->index(policy, index);
    return KVT_OK;
}
