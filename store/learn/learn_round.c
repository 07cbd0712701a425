/* SPDX-License-Identifier: Apache-2.0 */
/*
 * learn_round.c - the background's part of learning: figures without evidence decay towards their
 * curves, the costs of new options follow the learned figures, and stored entries get options with
 * the figures of a new epoch.
 *
 * Thread rule: one round at a time, in the background.
 */
#include "store/core/store_offer.h"
#include "store/learn/costs.h"

#include <assert.h>
#include <math.h>

#define LEARN_DECAY_NS      UINT64_C(1000000000)
#define LEARN_DEVICE_OFF    0.1 /* by which learned seconds differ before options are made anew */
#define LEARN_TARGET_OFF    0.1 /* the same of the share of gets that go into a GPU's memory */
#define LEARN_PRIORS_NS     UINT64_C(30000000000)
#define LEARN_SWEEP_STEP    64u /* entries under one hold of the lock */
#define LEARN_SWEEP_ROUND   8192u
#define LEARN_SWEEP_BUCKETS 4096u
/* ---- figures as costs of new options ---- */

#define LEARN_CODEC_OFF 0.25 /* the same of a variant's speed, before its options are */

/* The figures of one member that decisions count on: the learned ones, else those of its weight,
 * within the bounds of the curve. */
static kvt_affine learn_member_figures(const learn_member *member, kvt_io_kind kind,
                                       double weight_bytes_per_s)
{
    const online_device *device = &member->kinds[kind];
    double bytes_per_s = fmin(weight_bytes_per_s, ONLINE_FACTOR_MOST / device->curve[1]);
    bytes_per_s = fmax(bytes_per_s, 1.0 / (ONLINE_FACTOR_MOST * device->curve[1]));
    if (device->observations >= ONLINE_SURE) bytes_per_s = 1.0 / device->used[1];
    return online_figures(
        (kvt_affine){.request_seconds = device->used[0], .bytes_per_s = bytes_per_s});
}

/* The figures of one member and direction as its measured curve has them, without what was learned
 * from use. */
static kvt_affine learn_member_curve(const learn_member *member, kvt_io_kind kind)
{
    const online_device *device = &member->kinds[kind];
    return online_figures(
        (kvt_affine){.request_seconds = device->curve[0], .bytes_per_s = 1.0 / device->curve[1]});
}

void learn_cost_tier(kvt_store *store, kvt_tier tier)
{
    assert(store_is_locked(store));
    store_learn *learn = store->learn;
    tiers_member_stats stats;
    cost_device devices[TIERS_MEMBERS_MAX], curves[TIERS_MEMBERS_MAX];
    double reads[TIERS_MEMBERS_MAX], writes[TIERS_MEMBERS_MAX]; /* bytes per second; 0 = none */
    uint32_t members = 0, count = 0;
    for (; tiers_pool_member(store->pools[tier], members, &stats) == KVT_OK; members++) {
        bool takes = stats.state == KVT_DEVICE_SERVING;
        reads[members] = takes ? stats.weight_bytes_per_s : 0;
        writes[members] = stats.write_bytes_per_s;
    }
    pthread_mutex_lock(&learn->lock);
    for (uint32_t i = 0; i < members; i++) {
        const learn_member *member = &learn->tiers[tier].members[i];
        if (!(reads[i] > 0) || !member->known) continue;
        devices[count].read = learn_member_figures(member, KVT_IO_READ, reads[i]);
        devices[count].write = learn_member_figures(member, KVT_IO_WRITE, writes[i]);
        curves[count].read = learn_member_curve(member, KVT_IO_READ);
        curves[count].write = learn_member_curve(member, KVT_IO_WRITE);
        count++;
    }
    pthread_mutex_unlock(&learn->lock);
    if (count == 0) return;
    store->costs.read[tier] = costs_combine(devices, count, KVT_IO_READ);
    store->costs.write[tier] = costs_combine(devices, count, KVT_IO_WRITE);
    store->costs.arriving[tier] = !tiers_pool_in_memory(store->pools[tier]);
    store->curve_costs.arriving[tier] = store->costs.arriving[tier];
    store->curve_costs.present[tier] = true;
    store->curve_costs.read[tier] = costs_combine(curves, count, KVT_IO_READ);
    store->curve_costs.write[tier] = costs_combine(curves, count, KVT_IO_WRITE);
}

/* Takes over what was learned of one variant. True when its seconds are far enough from those that
 * options were made with. Both locks held. */
static bool learn_cost_codec(kvt_store *store, uint32_t variant)
{
    assert(variant < store->costs.variant_count);
    kvt_codec_curve *curve = &store->costs.variants[variant];
    kvt_codec_curve *measured = &store->curve_costs.variants[variant];
    const learn_codec *codec = &store->learn->codecs[variant];
    measured->decode_bytes_per_s = online_rate(1.0 / (codec->decode_curve * codec->decode.base));
    measured->encode_bytes_per_s = online_rate(1.0 / (codec->encode_curve * codec->encode.base));
    double decode = online_rate(1.0 / (codec->decode_curve * online_factor_value(&codec->decode)));
    double encode = online_rate(1.0 / (codec->encode_curve * online_factor_value(&codec->encode)));
    bool decoded = codec->decode.average.observations >= ONLINE_SURE &&
                   fabs(decode / curve->decode_bytes_per_s - 1.0) >= LEARN_CODEC_OFF;
    bool encoded = codec->encode.average.observations >= ONLINE_SURE &&
                   fabs(encode / curve->encode_bytes_per_s - 1.0) >= LEARN_CODEC_OFF;
    if (decoded) curve->decode_bytes_per_s = decode;
    if (encoded) curve->encode_bytes_per_s = encode;
    return decoded || encoded;
}

void learn_cost_all(kvt_store *store)
{
    for (uint32_t i = 0; i < store->costs.variant_count; i++)
        (void)learn_cost_codec(store, i);
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++)
        if (store->pools[tier] != NULL) learn_cost_tier(store, (kvt_tier)tier);
}

/* Takes over which share of gets goes into a GPU's memory. True when options change with it. Both
 * locks held. */
static bool learn_cost_targets(kvt_store *store)
{
    const double share = store->learn->gpu_share;
    if (fabs(share - store->costs.gpu_share) < LEARN_TARGET_OFF) return false;
    store->costs.gpu_share = store->curve_costs.gpu_share = share;
    return store->costs.link.bytes_per_s > 0;
}

/* ---- the round ---- */

/* Whether the seconds of some device of a tier have moved far enough from those that the options
 * were made with, by drift or by decay. learn.lock held. */
static bool learn_tier_is_off(learn_tier *tier)
{
    bool off = false;
    for (uint32_t i = 0; i < TIERS_MEMBERS_MAX; i++) {
        learn_member *member = &tier->members[i];
        for (int kind = 0; kind < 2 && member->known; kind++) {
            const double *used = member->kinds[kind].used;
            double seconds = used[0] + used[1] * ONLINE_LOAD_BYTES;
            if (fabs(seconds / member->option_seconds[kind] - 1.0) < LEARN_DEVICE_OFF) continue;
            member->option_seconds[kind] = seconds;
            off = true;
        }
    }
    return off;
}

/* Whether there was nothing new since the last look. */
static bool learn_is_idle(uint64_t *evidence, uint64_t observations)
{
    bool idle = *evidence == observations;
    *evidence = observations;
    return idle;
}

/* Decays the figures of a tier and its devices that have no new observation; `kept` is the share of
 * the distance from the curve that remains. learn.lock held. */
static void learn_decay_tier(learn_tier *tier, double kept)
{
    if (learn_is_idle(&tier->evidence, tier->overhead.observations)) {
        tier->overhead.value *= kept;
        tier->waiting.value *= kept;
    }
    for (uint32_t i = 0; i < TIERS_MEMBERS_MAX; i++) {
        learn_member *member = &tier->members[i];
        for (int kind = 0; kind < 2 && member->known; kind++) {
            online_device *device = &member->kinds[kind];
            if (learn_is_idle(&member->evidence[kind], device->observations))
                online_device_decay(device, kept);
        }
    }
}

/* Gives the entries of a part of the table options of this epoch. False when the epoch is through.
 * Lock held. */
static bool learn_sweep_step(kvt_store *store, uint32_t *entries_done)
{
    uint32_t before = *entries_done;
    for (uint32_t i = 0; i < LEARN_SWEEP_BUCKETS; i++) {
        /* A table that grew has split its buckets: another round, for those on both sides. */
        size_t buckets = store->table.bucket_count;
        if (buckets != store->curve_buckets) store->curve_left = store->curve_buckets = buckets;
        if (store->curve_left == 0) {
            store->curve_swept = store->curve_epoch;
            return false;
        }
        /* Entries that are on their way in, or may come back, have options as well. */
        store->curve_left--;
        store_entry *entry = store->table.buckets[store->curve_bucket++ & (buckets - 1)];
        for (; entry != NULL; entry = entry->next) {
            if (entry->curve_epoch == (uint16_t)store->curve_epoch) continue;
            store_recost(store, entry);
            ++*entries_done;
        }
        if (*entries_done - before >= LEARN_SWEEP_STEP) return true;
    }
    return true;
}

void learn_round(kvt_store *store)
{
    bool off = false;
    pthread_mutex_lock(&store->lock);
    pthread_mutex_lock(&store->learn->lock);
    off = store->learn->reopened != store->reopened_seen;
    store->reopened_seen = store->learn->reopened;
    /* Move the figures that no observation has touched since the last look towards their curves.
     * learn.lock held. */
    store_learn *learn = store->learn;
    uint64_t now_ns = store_now_ns(store);
    if (now_ns - learn->decayed_ns >= LEARN_DECAY_NS) {
        double kept = learn_kept((double)(now_ns - learn->decayed_ns) * 1e-9);
        learn->decayed_ns = now_ns;
        for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++)
            learn_decay_tier(&learn->tiers[tier], kept);
        for (uint32_t i = 0; i < store->costs.variant_count; i++) {
            learn_codec *codec = &learn->codecs[i];
            if (learn_is_idle(&codec->evidence[0], codec->decode.average.observations))
                online_factor_decay(&codec->decode, kept);
            if (learn_is_idle(&codec->evidence[1], codec->encode.average.observations))
                online_factor_decay(&codec->encode, kept);
        }
    }
    for (uint32_t i = 0; i < store->costs.variant_count; i++)
        off |= learn_cost_codec(store, i);
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++)
        off |= learn_tier_is_off(&store->learn->tiers[tier]);
    off |= learn_cost_targets(store);
    pthread_mutex_unlock(&store->learn->lock);
    /* A round may have done much since it looked at the tiers last. */
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT && off; tier++) {
        if (store->pools[tier] == NULL) continue;
        learn_cost_tier(store, (kvt_tier)tier);
        const kvt_affine *read = &store->costs.read[tier], *write = &store->costs.write[tier];
        (void)!kvt_policy_speed_set(store->policy, (kvt_tier)tier, read->bytes_per_s,
                                    write->bytes_per_s, read->request_seconds);
    }
    if (off) learn_begin_epoch(store);
    pthread_mutex_unlock(&store->lock);
    /* Recost entries until the epoch is through or the round's share of them is done. The lock is
     * released between steps, so lookups come in between. */
    uint32_t done = 0;
    bool more = true;
    while (more && done < LEARN_SWEEP_ROUND) {
        pthread_mutex_lock(&store->lock);
        more = store->curve_swept != store->curve_epoch && !store->stopping &&
               learn_sweep_step(store, &done);
        pthread_mutex_unlock(&store->lock);
    }
    if (store_now_ns(store) - store->learn->priors_updated_ns > LEARN_PRIORS_NS) {
        store->learn->priors_updated_ns = store_now_ns(store);
        learn_update_priors(store);
    }
    if (store_now_ns(store) - store->learn->saved_ns >= store->learn->save_interval_ns)
        learn_save(store);
}
