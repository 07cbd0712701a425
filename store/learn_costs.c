/* SPDX-License-Identifier: Apache-2.0 */
/*
 * learn_costs.c - turns learned figures of devices and codecs into the cost model of new options.
 *
 * The file gives no stored entry new options; learn_round.c does.
 *
 * Thread rule: under the control lock; learn.lock, a leaf, is taken inside.
 */
#include "store/costs.h"

#include <assert.h>
#include <math.h>

#define LEARN_CODEC_OFF 0.25 /* a variant's seconds are off by more: its options are made anew */

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
    kvt_striping striping = store->striping[tier];
    store->costs.read[tier] = costs_combine(devices, count, KVT_IO_READ, striping);
    store->costs.write[tier] = costs_combine(devices, count, KVT_IO_WRITE, striping);
    store->curve_costs.present[tier] = true;
    store->curve_costs.read[tier] = costs_combine(curves, count, KVT_IO_READ, striping);
    store->curve_costs.write[tier] = costs_combine(curves, count, KVT_IO_WRITE, striping);
}

bool learn_cost_codec(kvt_store *store, uint32_t variant)
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
