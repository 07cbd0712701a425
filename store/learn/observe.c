/* SPDX-License-Identifier: Apache-2.0 */
/*
 * observe.c - the calls that look at a store or inform it: flush, explain, tenants,
 * observed quality, statistics.
 *
 * Thread rule: any thread.
 */
#include "base/struct_size.h"
#include "store/background/lifetime.h"
#include "store/core/handover.h"
#include "store/core/store_offer.h"

#include "tiers/pool/slack.h"
#include <math.h>

#include <string.h>

#define LEARN_FACTOR_OFF                                                                           \
    0.05 /* a bound of a class's factor that moved by more gives its entries new options */

kvt_status kvt_store_flush(kvt_store *store)
{
    const base_store_calls *other = base_store_calls_of(store);
    if (other != NULL)
        return other->flush != NULL ? other->flush(store) : base_calls_lack(store, other->lacks);
    if (!fork_guard_is_ours(store)) return KVT_E_STATE;
    (void)handover_drain(store, UINT64_MAX, NULL);
    pthread_mutex_lock(&store->lock);
    const kvt_status lost = store->handover.failure;
    store->handover.failure = KVT_OK;
    pthread_mutex_unlock(&store->lock);
    if (store->catalog == NULL) return lost;
    kvt_status status = catalog_flush(store->catalog);
    if (status == KVT_OK) return lost;
    switch (status) {
    case KVT_E_IO:
    case KVT_E_GONE: return KVT_E_IO;
    case KVT_E_MEMORY:
    case KVT_E_SPACE: return status;
    default: return KVT_E_DATABASE;
    }
}

kvt_status kvt_store_explain(kvt_store *store, const kvt_key *key, kvt_explanation *out)
{
    const base_store_calls *other = base_store_calls_of(store);
    if (other != NULL) return BASE_CALL(other, explain, store, key, out);
    if (!fork_guard_is_ours(store)) return KVT_E_STATE;
    if (key == NULL || out == NULL) return KVT_E_ARGUMENT;
    if (!struct_size_is_sound(out, STRUCT_SIZE_THROUGH(kvt_explanation, reuse_share)))
        return KVT_E_ARGUMENT;
    kvt_explanation whole = {.struct_size = sizeof whole};
    pthread_mutex_lock(&store->lock);
    kvt_status status = KVT_MISS;
    const store_entry *entry = entry_find_key(&store->table, key);
    if (entry != NULL && !lifetime_is_over(store, entry))
        status = kvt_policy_explain(store->policy, store_now_ns(store),
                                    entry_handle(&store->secret, key), &whole);
    if (status == KVT_MISS) whole.reason = trust_reason(store, entry_handle(&store->secret, key));
    pthread_mutex_unlock(&store->lock);
    struct_size_out(out, &whole, sizeof whole);
    return status;
}

kvt_status kvt_tenant_set(kvt_store *store, uint32_t tenant, const kvt_tenant *limits)
{
    const base_store_calls *other = base_store_calls_of(store);
    if (other != NULL) return BASE_CALL(other, tenant_set, store, tenant, limits);
    if (!fork_guard_is_ours(store)) return KVT_E_STATE;
    if (limits == NULL) return KVT_E_ARGUMENT;
    kvt_tenant held = {0};
    limits =
        struct_size_in(limits, &held, sizeof held, STRUCT_SIZE_THROUGH(kvt_tenant, share_bytes));
    if (limits == NULL) return KVT_E_ARGUMENT;
    held = *limits;
    if (held.loss_limit > store->loss_limit) held.loss_limit = store->loss_limit;
    pthread_mutex_lock(&store->lock);
    kvt_status status = kvt_policy_tenant_set(store->policy, tenant, &held);
    pthread_mutex_unlock(&store->lock);
    return status;
}

/* The smallest duration of a bucket. */
static uint64_t observe_bucket_ns(uint32_t bucket)
{
    if (bucket < 16) return bucket;
    uint32_t octave = bucket / 16 + 3;
    return (UINT64_C(16) + bucket % 16) << (octave - 4);
}

/* A quantile of the decision times, from the histogram's buckets. */
static uint64_t observe_quantile(const uint64_t *times, double share)
{
    uint64_t total = 0, seen = 0;
    for (uint32_t i = 0; i < STORE_TIMES; i++) {
        total += times[i];
    }
    if (total == 0) return 0;
    for (uint32_t i = 0; i < STORE_TIMES; i++) {
        seen += times[i];
        if ((double)seen >= share * (double)total) return observe_bucket_ns(i);
    }
    return observe_bucket_ns(STORE_TIMES - 1);
}

/* Everything but the sizes of structs. */
static void observe_store(kvt_store *store, kvt_store_stats *stats)
{
    pthread_mutex_lock(&store->lock);
    *stats = store->counters;
    memset(stats->tiers, 0, sizeof stats->tiers);
    stats->decision_ns_p50 = observe_quantile(store->tallies.decision_times, 0.50);
    stats->decision_ns_p99 = observe_quantile(store->tallies.decision_times, 0.99);
    stats->backing_off = store->backoff.count;
    stats->in_place.entries = store->visits.entries;
    kvt_policy_stats_get(store->policy, &stats->policy);
    lease_expire(store);
    stats->leases = store->leases.counts;
    stats->hints_skipped = store->hints_skipped;
    stats->copies.count = store->copies.total;
    stats->copies.bytes = store->copies.bytes;
    stats->staging_bytes = staging_bytes_out(store->staging);
    stats->puts_waiting = store->handover.count;
    if (store->handover.staging != NULL)
        stats->put_staging_bytes = staging_bytes_out(store->handover.staging);
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++) {
        if (store->pools[tier] == NULL) continue;
        tiers_pool_facts facts;
        tiers_pool_facts_get(store->pools[tier], &facts);
        stats->lent_bytes[tier] = store->lent_bytes[tier];
        stats->in_place.bytes[tier] = store->visits.bytes[tier];
        stats->tiers[tier] = (kvt_tier_stats){.capacity_bytes = facts.capacity_bytes,
                                              .used_bytes = facts.used_bytes,
                                              .entries = stats->policy.entries_by_tier[tier],
                                              .bytes_read = facts.bytes_read,
                                              .bytes_written = facts.bytes_written,
                                              .hits = store->counters.tiers[tier].hits,
                                              .emulated = facts.emulated};
    }
    pthread_mutex_unlock(&store->lock);
    catalog_health catalog = {0};
    if (store->catalog != NULL) catalog_health_get(store->catalog, &catalog);
    stats->catalog_log_bytes = catalog.log_bytes;
    learn_fill_stats(store, stats);
}

kvt_status kvt_store_stats_get(kvt_store *store, kvt_store_stats *stats)
{
    const base_store_calls *other = base_store_calls_of(store);
    if (other != NULL) return BASE_CALL(other, stats, store, stats);
    if (!fork_guard_is_ours(store)) return KVT_E_STATE;
    if (stats == NULL ||
        !struct_size_is_sound(stats, STRUCT_SIZE_THROUGH(kvt_store_stats, hints_skipped)))
        return KVT_E_ARGUMENT;
    kvt_store_stats whole = {0};
    observe_store(store, &whole);
    struct_size_out(stats, &whole, sizeof whole);
    return KVT_OK;
}

/* A pool knows neither its tier nor what was learned of a member. */
static void observe_member(kvt_tier tier, const tiers_member_stats *member, kvt_device_stats *out)
{
    const tiers_wear *wear = &member->wear;
    bool serves = member->state == KVT_DEVICE_SERVING || member->state == KVT_DEVICE_DRAINING;
    *out = (kvt_device_stats){.tier = tier,
                              .facts = member->facts,
                              .used_bytes = member->used_bytes,
                              .bytes_read = member->bytes_read,
                              .bytes_written = member->bytes_written,
                              .requests = member->requests,
                              .read_bytes_per_s = member->read_bytes_per_s,
                              .write_bytes_per_s = member->write_bytes_per_s,
                              .retired = !serves,
                              .weight_bytes_per_s = member->weight_bytes_per_s,
                              .pending_bytes = member->pending_bytes,
                              .free_bytes = member->free_bytes,
                              .free_bytes_largest = member->free_bytes_largest,
                              .free_ranges = member->free_ranges,
                              .state = member->state,
                              .bytes_written_ever = wear->written_bytes,
                              .write_budget_bytes_per_day = wear->budget_bytes_per_day,
                              .write_budget_beyond_bytes = wear->beyond_bytes,
                              .tag_faults = member->seal_faults};
    out->decisions = (kvt_io_decisions){.idle = member->decisions[SLACK_IDLE],
                                        .fits = member->decisions[SLACK_FITS],
                                        .share = member->decisions[SLACK_SHARE],
                                        .waits_reads = member->decisions[SLACK_BEHIND_READS],
                                        .waits_layers = member->decisions[SLACK_LATE],
                                        .waits_grain = member->decisions[SLACK_GRAIN],
                                        .waits_turn = member->decisions[SLACK_TURN]};
    if (wear->budget_bytes_per_day != 0 && wear->left_bytes > 0)
        out->write_budget_left_bytes = (uint64_t)wear->left_bytes;
    memcpy(out->name, member->name, sizeof out->name);
}

kvt_status kvt_device_stats_get(kvt_store *store, size_t index, kvt_device_stats *out)
{
    const base_store_calls *other = base_store_calls_of(store);
    if (other != NULL) return BASE_CALL(other, device_stats, store, index, out);
    if (!fork_guard_is_ours(store)) return KVT_E_STATE;
    if (out == NULL ||
        !struct_size_is_sound(out, STRUCT_SIZE_THROUGH(kvt_device_stats, read_drift)))
        return KVT_E_ARGUMENT;
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++) {
        if (store->pools[tier] == NULL) continue;
        tiers_pool_facts facts;
        tiers_pool_facts_get(store->pools[tier], &facts);
        if (index < facts.member_count) {
            tiers_member_stats member;
            kvt_status status = tiers_pool_member(store->pools[tier], (uint32_t)index, &member);
            if (status != KVT_OK) return status;
            kvt_device_stats whole;
            observe_member((kvt_tier)tier, &member, &whole);
            learn_fill_device(store, (kvt_tier)tier, (uint32_t)index, &whole);
            if (tier == KVT_TIER_SSD) {
                pthread_mutex_lock(&store->lock);
                whole.scrub_faults = store->scrub.faults[index];
                pthread_mutex_unlock(&store->lock);
            }
            struct_size_out(out, &whole, sizeof whole);
            return KVT_OK;
        }
        index -= facts.member_count;
    }
    return KVT_END;
}

const char *kvt_version(void)
{
    return "0.2.0";
}

kvt_status kvt_quality_observe(kvt_store *store, const kvt_key *key, kvt_variant variant,
                               double loss, double weight)
{
    const base_store_calls *other = base_store_calls_of(store);
    if (other != NULL) return BASE_CALL(other, observe, store, key, variant, loss, weight);
    if (!fork_guard_is_ours(store)) return KVT_E_STATE;
    if (key == NULL || !(loss >= 0 && loss <= 1)) return KVT_E_ARGUMENT;
    if (!(weight > 0 && weight <= 1000)) return KVT_E_ARGUMENT;
    store_learn *learn = store->learn;
    kvt_status status = KVT_MISS;
    pthread_mutex_lock(&store->lock);
    store_entry *entry = entry_find_key(&store->table, key);
    if (entry != NULL && entry_is_visible(entry)) {
        double mean = learn_variant_loss(store, entry, variant);
        entry_rare *rare = mean > 0 ? entry_rare_make(entry) : NULL;
        status = mean > 0 ? KVT_E_MEMORY : KVT_E_UNSUPPORTED;
        if (rare != NULL) {
            uint32_t class_id = learn_class_of(entry->class_id);
            status = KVT_OK;
            (void)online_loss_observe(&learn->loss_prior, &learn->losses[class_id], &rare->loss,
                                      loss / mean, weight);
            store_recost(store, entry);
            /* All entries of a class follow a bound that moved: in the background, with a new
             * epoch. */
            const double upper = learn_class_factor(store, class_id).upper;
            if (fabs(upper / learn->factors[class_id] - 1) >= LEARN_FACTOR_OFF) {
                learn->factors[class_id] = upper;
                learn_begin_epoch(store);
            }
        }
    }
    pthread_mutex_unlock(&store->lock);
    return status;
}

kvt_status kvt_class_stats_get(kvt_store *store, uint32_t class_id, kvt_class_stats *out)
{
    const base_store_calls *other = base_store_calls_of(store);
    if (other != NULL) return BASE_CALL(other, class_stats, store, class_id, out);
    if (!fork_guard_is_ours(store)) return KVT_E_STATE;
    if (class_id >= KVT_REUSE_CLASSES) return KVT_END;
    if (out == NULL || !struct_size_is_sound(out, STRUCT_SIZE_THROUGH(kvt_class_stats, reuse)))
        return KVT_E_ARGUMENT;
    store_learn *learn = store->learn;
    kvt_class_stats whole = {0};
    pthread_mutex_lock(&store->lock);
    const online_loss_class *of_class = &learn->losses[class_id];
    const online_loss_factor factor = learn_class_factor(store, class_id);
    whole.loss_factor = factor.mean;
    whole.loss_factor_upper = factor.upper;
    whole.loss_observations = of_class->observations;
    whole.loss_reopened = of_class->reopened;
    pthread_mutex_unlock(&store->lock);
    pthread_mutex_lock(&learn->reuse_lock);
    kvt_status status = kvt_reuse_read(learn->reuse, store_now_ns(store), class_id, &whole.reuse);
    pthread_mutex_unlock(&learn->reuse_lock);
    struct_size_out(out, &whole, sizeof whole);
    return status;
}
