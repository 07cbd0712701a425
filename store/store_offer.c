/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_offer.c - what a store knows of an entry becomes what the policy decides on: its layout,
 * place and request, what was learned of its kind, and sizes that its own records have shown. The
 * numbers are made by kvt_offer_build alone.
 *
 * Thread rule: under the control lock.
 */
#include "store/store.h"

kvt_status store_offer_at(const kvt_store *store, const kvt_cost_model *figures,
                          const store_entry *entry, const kvt_known_size *measured,
                          kvt_option *options, kvt_policy_entry *offer_out)
{
    double shares[KVT_VARIANTS_MAX];
    kvt_known_size known[LEARN_KNOWN_SIZES + 1];
    online_loss_factor factor = learn_loss_factor(store, entry);
    learn_size_shares(store, entry, shares);
    uint32_t known_count = learn_known_sizes(entry, known);
    if (measured != NULL && measured->bytes != 0) known[known_count++] = *measured;
    const kvt_offer offer = {
        .handle = entry->handle,
        .parent = entry->has_parent ? entry_handle(&store->secret, &entry->parent) : 0,
        .layout = entry->layout,
        .first_position = entry->first_position,
        .request_tokens = entry->request_tokens,
        .class_id = entry->class_id,
        .tenant = entry->tenant,
        .variants = ladder_takes(store, &entry->layout) ? 0 : store->exact_variants,
        .recompute_seconds = entry->recompute_seconds,
        .loss_factor = factor.mean,
        .loss_factor_upper = factor.upper,
        .shares = shares,
        .known = known,
        .known_count = known_count};
    return kvt_offer_build(figures, store->holes, &offer, options, offer_out);
}

kvt_status store_offer(const kvt_store *store, const store_entry *entry, kvt_option *options,
                       kvt_policy_entry *offer_out)
{
    return store_offer_at(store, &store->costs, entry, NULL, options, offer_out);
}
