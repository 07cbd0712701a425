/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_offer.c - the offer of one entry to the policy: its options at admission, at adoption, and
 * again when its figures or sizes have changed.
 *
 * The file gathers the entry's layout, place and request, what was learned of its class, and the
 * sizes that its own records have shown. The numbers are made by kvt_offer_build alone.
 *
 * Thread rule: under the control lock.
 */
#include "store/core/store_offer.h"
#include "codecs/codecs.h"
#include "store/learn/ladder.h"
#include "store/read/groups.h"

#include <assert.h>
#include <string.h>

/* scored: the entry is to be taken in with a record by scores, which it has lost. */
static kvt_status store_offer_as(const kvt_store *store, const kvt_cost_model *figures,
                                 const store_entry *entry, bool scored,
                                 const kvt_known_size *measured, kvt_option *options,
                                 kvt_policy_entry *offer_out)
{
    double shares[KVT_VARIANTS_MAX];
    kvt_known_size known[LEARN_KNOWN_SIZES + 1];
    online_loss_factor factor = learn_loss_factor(store, entry);
    learn_size_shares(store, entry, shares);
    uint32_t known_count = learn_known_sizes(entry, known);
    if (measured != NULL && measured->bytes != 0) known[known_count++] = *measured;
    const entry_kind *kind = entry->kind;
    const kvt_offer_groups groups = {.layouts = kind->groups,
                                     .count = kind->group_count,
                                     .exact = groups_exact(store),
                                     .lossy = groups_lossy(store, kind->groups, kind->group_count)};
    /* In a variant that cannot be coded now an entry takes no less room than exact. */
    for (uint32_t i = 0; i < figures->variant_count; i++) {
        const kvt_variant variant = figures->variants[i].variant;
        if (!bases_has(store, variant) || !groups_take(store, kind, groups.lossy, variant))
            shares[i] = 1.0;
    }
    const kvt_offer offer = {
        .groups = kind->group_count != 0 ? &groups : NULL,
        .handle = entry->handle,
        .parent = entry->has_parent ? entry_handle(&store->secret, &entry->parent) : 0,
        .layout = entry->kind->layout,
        .first_position = entry->first_position,
        .request_tokens = entry->request_tokens,
        .class_id = entry->class_id,
        .tenant = entry->tenant,
        .variants = kind->group_count == 0 ? ladder_variants(store, entry, scored)
                    : groups.lossy != 0    ? store->whole_variants
                                           : store->exact_variants,
        .recompute_seconds = (double)entry->recompute_seconds,
        .loss_factor = factor.mean,
        .loss_factor_upper = factor.upper,
        .shares = shares,
        .known = known,
        .known_count = known_count};
    return kvt_offer_build(figures, store->holes, &offer, options, offer_out);
}

kvt_status store_offer_at(const kvt_store *store, const kvt_cost_model *figures,
                          const store_entry *entry, const kvt_known_size *measured,
                          kvt_option *options, kvt_policy_entry *offer_out)
{
    return store_offer_as(store, figures, entry, false, measured, options, offer_out);
}

kvt_status store_offer(const kvt_store *store, const store_entry *entry, kvt_option *options,
                       kvt_policy_entry *offer_out)
{
    assert(store_is_locked(store));
    return store_offer_at(store, &store->costs, entry, NULL, options, offer_out);
}

/* The option that stands for a stored record. The bytes of its variant are corrected to what is
 * stored, in every tier. */
static uint8_t store_find_option(kvt_tier tier, kvt_variant variant, uint64_t record_bytes,
                                 kvt_option *options, uint32_t count)
{
    assert(count > 0 && record_bytes > 0);
    uint8_t found = KVT_OPTION_NONE;
    for (uint32_t i = 1; i < count; i++) {
        if (memcmp(&options[i].variant, &variant, sizeof variant) != 0) continue;
        kvt_tier other = store_tier_of(options[i].bytes);
        options[i].bytes[other] = record_bytes;
        options[i].read_bytes[other] = record_bytes;
        if (other == tier) found = (uint8_t)i;
    }
    return found;
}

/* Whether two offers at adoption differ in nothing but names. */
static bool store_facts_are(const store_offer_facts *a, const store_offer_facts *b)
{
    return a->kind == b->kind && a->record_bytes == b->record_bytes &&
           memcmp(&a->variant, &b->variant, sizeof a->variant) == 0 &&
           memcmp(&a->recompute_seconds, &b->recompute_seconds, sizeof a->recompute_seconds) == 0 &&
           a->first_position == b->first_position && a->request_tokens == b->request_tokens &&
           a->class_id == b->class_id && a->tenant == b->tenant && a->tier == b->tier;
}

kvt_status store_adopt(kvt_store *store, const store_entry *entry, kvt_tier tier,
                       kvt_variant variant, uint64_t record_bytes, store_offer_kept *kept)
{
    assert(store_is_locked(store) && tier != KVT_TIER_NONE);
    store_offer_kept own;
    const store_offer_facts facts = {.kind = entry->kind,
                                     .record_bytes = record_bytes,
                                     .variant = variant,
                                     .recompute_seconds = entry->recompute_seconds,
                                     .first_position = entry->first_position,
                                     .request_tokens = entry->request_tokens,
                                     .class_id = entry->class_id,
                                     .tenant = entry->tenant,
                                     .tier = (uint8_t)tier};
    /* An entry with sizes or losses of its own has an offer of its own. */
    if (kept == NULL || entry->rare != NULL || entry->place != NULL) {
        own.facts = (store_offer_facts){.tier = KVT_TIER_NONE};
        kept = &own;
    }
    if (!store_facts_are(&kept->facts, &facts)) {
        kept->facts.tier = KVT_TIER_NONE;
        /* An entry stored under a weaker promise is not served under a stronger one. */
        if (learn_variant_waits(store, entry, variant)) return KVT_E_UNSUPPORTED;
        const bool scored = codecs_drop_method(variant) == KVT_DROP_SCORES;
        kvt_status status =
            store_offer_as(store, &store->costs, entry, scored, NULL, kept->options, &kept->offer);
        if (status != KVT_OK) return status;
        kept->option =
            store_find_option(tier, variant, record_bytes, kept->options, kept->offer.option_count);
        if (kept->option == KVT_OPTION_NONE) return KVT_E_UNSUPPORTED;
        kept->facts = facts;
    }
    kept->offer.handle = entry->handle;
    kept->offer.parent = entry->has_parent ? entry_handle(&store->secret, &entry->parent) : 0;
    return kvt_policy_adopt(store->policy, store_now_ns(store), &kept->offer, kept->option);
}

kvt_status store_adopt_place(kvt_store *store, const store_entry *entry, const store_place *place)
{
    const kvt_tier tier = (kvt_tier)place->tier;
    kvt_policy_stats stats;
    kvt_status status = store_adopt(store, entry, tier, place->variant, place->record_bytes, NULL);
    if (status != KVT_E_SPACE || tier != KVT_TIER_SSD) return status;
    kvt_policy_stats_get(store->policy, &stats);
    status =
        kvt_policy_capacity_set(store->policy, tier, stats.used_bytes[tier] + place->record_bytes);
    if (status == KVT_OK)
        status = store_adopt(store, entry, tier, place->variant, place->record_bytes, NULL);
    store_settle_capacity(store);
    return status;
}

void store_resize(kvt_store *store, const store_entry *entry)
{
    assert(store_is_locked(store));
    kvt_option options[KVT_OPTIONS_MAX];
    kvt_policy_entry offer;
    if (store_offer(store, entry, options, &offer) != KVT_OK) return;
    (void)!kvt_policy_resize(store->policy, entry->handle, options, offer.option_count);
}

void store_recost(kvt_store *store, store_entry *entry)
{
    assert(store_is_locked(store));
    kvt_option options[KVT_OPTIONS_MAX];
    kvt_policy_entry offer;
    entry->curve_epoch = (uint16_t)store->curve_epoch;
    if (store_offer(store, entry, options, &offer) != KVT_OK) return;
    if (kvt_policy_recost(store->policy, entry->handle, options, offer.option_count) == KVT_OK)
        store->counters.learned.recosted++;
}
