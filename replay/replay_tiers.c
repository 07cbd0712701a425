/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replay_tiers.c - the tiers that a simulation has: the room that a store with the same settings
 * would find on its devices, and the speeds that are set, that the profile measured, or that are
 * stated defaults of the simulated host. One thread.
 */
#include "base/config_values.h"
#include "options_parts.h"
#include "store/core/options.h"
#include "store/learn/costs.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* The simulated host where neither a setting nor a profile says otherwise: device memory of an
 * A100, a PCIe 4.0 x16 link to host memory, and the SSD of AdaptCache's evaluation. */
static const replay_tier options_default_tier[KVT_TIER_COUNT] = {
    [KVT_TIER_HBM] = {.read = {5e-6, 2039e9, 0.0}, .write = {5e-6, 2039e9, 0.0}},
    [KVT_TIER_DRAM] = {.read = {20e-6, 25e9, 0.0}, .write = {20e-6, 25e9, 0.0}},
    [KVT_TIER_SSD] = {.read = {100e-6, 1e9, 0.0}, .write = {100e-6, 1e9, 0.0}},
};

#define OPTIONS_ADAPTCACHE_DRAM UINT64_C(100000000000)
#define OPTIONS_ADAPTCACHE_SSD  UINT64_C(400000000000)

static const char *const tier_keys[KVT_TIER_COUNT][3] = {
    [KVT_TIER_HBM] = {"tier.hbm.capacity", "tier.hbm.latency", "tier.hbm.devices"},
    [KVT_TIER_DRAM] = {"tier.dram.capacity", "tier.dram.latency", "tier.dram.devices"},
    [KVT_TIER_SSD] = {"tier.ssd.capacity", "tier.ssd.latency", "tier.ssd.devices"},
};

const char *const options_speed_keys[KVT_TIER_COUNT][2] = {
    [KVT_TIER_HBM] = {"tier.hbm.read_bandwidth", "tier.hbm.write_bandwidth"},
    [KVT_TIER_DRAM] = {"tier.dram.read_bandwidth", "tier.dram.write_bandwidth"},
    [KVT_TIER_SSD] = {"tier.ssd.read_bandwidth", "tier.ssd.write_bandwidth"},
};

void options_note(replay_options *options, const char *format, ...)
{
    size_t used = strlen(options->note);
    if (used > 0 && used + 1 < sizeof options->note) {
        options->note[used++] = ' ';
        options->note[used] = '\0';
    }
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(options->note + used, sizeof options->note - used, format, arguments);
    va_end(arguments);
}

void options_default_tiers(replay_options *options)
{
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++)
        options->tiers[tier] = options_default_tier[tier];
}

/* Devices striped together: bandwidths add up, the slowest request counts. */
typedef struct options_stripe {
    kvt_affine read, write;
    uint32_t unwritten;
} options_stripe;

static void options_add_device(options_stripe *stripe, const kvt_device_curve *curve)
{
    kvt_affine *read = &stripe->read, *write = &stripe->write;
    read->bytes_per_s += curve->read.bytes_per_s;
    write->bytes_per_s += curve->write.bytes_per_s;
    stripe->unwritten += curve->write.bytes_per_s <= 0.0;
    read->request_seconds = fmax(read->request_seconds, curve->read.request_seconds);
    write->request_seconds = fmax(write->request_seconds, curve->write.request_seconds);
}

static void options_take_stripe(replay_options *options, int tier, const options_stripe *stripe,
                                bool measured_out[2])
{
    measured_out[KVT_IO_READ] = stripe->read.bytes_per_s > 0.0;
    /* One member without a write curve leaves the whole tier without one. */
    measured_out[KVT_IO_WRITE] = stripe->write.bytes_per_s > 0.0 && stripe->unwritten == 0;
    if (measured_out[KVT_IO_READ]) options->tiers[tier].read = stripe->read;
    if (measured_out[KVT_IO_WRITE]) options->tiers[tier].write = stripe->write;
}

/* All devices of a tier that were measured; imported ones stand for hardware of somebody's. */
static kvt_status options_tier_from_profile(replay_options *options, kvt_profile *profile, int tier,
                                            bool measured_out[2])
{
    kvt_device_curve curve;
    options_stripe stripe = {.unwritten = 0};
    kvt_status status;
    for (size_t i = 0; (status = kvt_profile_device_at(profile, i, &curve)) == KVT_OK; i++)
        if (curve.tier == tier && !curve.imported) options_add_device(&stripe, &curve);
    if (status != KVT_END) return status;
    options_take_stripe(options, tier, &stripe, measured_out);
    return KVT_OK;
}

/* One of the names in tier.*.devices; the same one twice is two of its kind. */
static kvt_status options_add_named(options_stripe *stripe, kvt_profile *profile, int tier,
                                    const char *name, char *message, size_t message_size)
{
    kvt_device_curve curve;
    kvt_status status = kvt_profile_device(profile, name, &curve);
    if (status == KVT_OK && curve.tier == tier) {
        options_add_device(stripe, &curve);
        return KVT_OK;
    }
    if (status < 0) {
        snprintf(message, message_size, "%s", kvt_status_text(status));
        return status;
    }
    if (status == KVT_OK) {
        snprintf(message, message_size, "%s: the profile's %s is of tier %s", tier_keys[tier][2],
                 name, kvt_tier_name(curve.tier));
    } else {
        snprintf(message, message_size, "%s: the profile knows no device \"%s\"",
                 tier_keys[tier][2], name);
    }
    return KVT_E_CONFIG;
}

/* The devices that a setting names, imported ones among them. Without a profile at hand nothing is
 * looked up. */
static kvt_status options_tier_by_names(replay_options *options, kvt_config *config,
                                        kvt_profile *profile, int tier, bool measured_out[2],
                                        char *message, size_t message_size)
{
    options_stripe stripe = {.unwritten = 0};
    char name[64];
    const char *at = kvt_config_text(config, tier_keys[tier][2]);
    kvt_status status = KVT_OK;
    while (profile != NULL && status == KVT_OK) {
        at += strspn(at, ", ");
        size_t length = strcspn(at, ", ");
        if (length == 0) break;
        snprintf(name, sizeof name, "%.*s", (int)length, at);
        status = options_add_named(&stripe, profile, tier, name, message, message_size);
        at += length;
    }
    if (profile == NULL) {
        measured_out[KVT_IO_READ] = measured_out[KVT_IO_WRITE] = true;
    } else if (status == KVT_OK) {
        options_take_stripe(options, tier, &stripe, measured_out);
        options_note(options, "%s is made of %s, from the profile.", kvt_tier_name(tier),
                     kvt_config_text(config, tier_keys[tier][2]));
    }
    return status;
}

/* Says which of a tier's speeds are neither set nor measured. */
static void options_note_defaults(replay_options *options, int tier, bool read, bool write)
{
    const replay_tier *model = &options->tiers[tier];
    if (read && write && model->read.bytes_per_s == model->write.bytes_per_s) {
        options_note(options, "%s at the default %.4g GB/s, not measured.", kvt_tier_name(tier),
                     model->read.bytes_per_s * 1e-9);
        return;
    }
    if (read) {
        options_note(options, "%s reads at the default %.4g GB/s, not measured.",
                     kvt_tier_name(tier), model->read.bytes_per_s * 1e-9);
    }
    if (write) {
        options_note(options, "%s writes at the default %.4g GB/s, not measured.",
                     kvt_tier_name(tier), model->write.bytes_per_s * 1e-9);
    }
}

/* No tier is set: the capacities of a published host, and what the profile measured. Speeds that
 * are set for a tier without a capacity stay unread, and are reported as without effect. */
static kvt_status options_take_standard(kvt_profile *profile, replay_options *options)
{
    static const int tiers[] = {KVT_TIER_DRAM, KVT_TIER_SSD};
    options->tiers[KVT_TIER_DRAM].capacity_bytes = OPTIONS_ADAPTCACHE_DRAM;
    options->tiers[KVT_TIER_SSD].capacity_bytes = OPTIONS_ADAPTCACHE_SSD;
    options_note(options, "No tier is set: the host of AdaptCache's evaluation is simulated, "
                          "100 GB of DRAM at 25 GB/s and 400 GB of SSD at 1 GB/s.");
    for (size_t i = 0; profile != NULL && i < sizeof tiers / sizeof tiers[0]; i++) {
        bool measured[2] = {false, false};
        kvt_status status = options_tier_from_profile(options, profile, tiers[i], measured);
        if (status != KVT_OK) return status;
        if (!measured[KVT_IO_READ]) continue;
        options_note(options, "But %s as the profile measured it: reads at %.4g GB/s.",
                     kvt_tier_name(tiers[i]), options->tiers[tiers[i]].read.bytes_per_s * 1e-9);
        options_note_defaults(options, tiers[i], false, !measured[KVT_IO_WRITE]);
    }
    return KVT_OK;
}

/* Where the figures of a tier come from, for the line that says what is simulated. */
static void options_source(replay_tier *tier, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void options_source(replay_tier *tier, const char *format, ...)
{
    const size_t used = strlen(tier->source);
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(tier->source + used, sizeof tier->source - used, format, arguments);
    va_end(arguments);
}

/* The profile's figures of a device as a store takes them: by its name, in both directions. */
static kvt_status options_profiled(const kvt_store_options *store, kvt_profile *profile,
                                   const char *name, cost_device *out)
{
    kvt_device_curve curve;
    const kvt_status status =
        costs_profiled_curve(profile, store->learning.profile_foreign, name, &curve);
    if (status != KVT_OK) return status;
    if (!(curve.read.bytes_per_s > 0) || !(curve.write.bytes_per_s > 0)) return KVT_MISS;
    *out = (cost_device){.read = curve.read, .write = curve.write};
    return KVT_OK;
}

/* A device's figures as a store would have them, or the default that the note names, under the
 * device's own caps. */
static kvt_status options_cost_device(replay_options *options, const kvt_store_options *store,
                                      kvt_profile *profile, int tier,
                                      const kvt_device_config *device, cost_device *out)
{
    const bool is_model = strcmp(device->backend, "sim") == 0;
    const double latency = (double)device->latency_ns * 1e-9;
    *out = (cost_device){.read = options_default_tier[tier].read,
                         .write = options_default_tier[tier].write};
    if (is_model) out->read = out->write = (kvt_affine){.bytes_per_s = INFINITY};
    const kvt_status status =
        is_model ? KVT_MISS : options_profiled(store, profile, device->name, out);
    if (status < 0) return status;
    if (device->read_bytes_per_s > 0)
        out->read.bytes_per_s = fmin(out->read.bytes_per_s, (double)device->read_bytes_per_s);
    if (device->write_bytes_per_s > 0)
        out->write.bytes_per_s = fmin(out->write.bytes_per_s, (double)device->write_bytes_per_s);
    out->read.request_seconds += latency;
    out->write.request_seconds += latency;
    replay_tier *model = &options->tiers[tier];
    options_source(model, "%s%s %s", model->source[0] != '\0' ? ", " : "", device->name,
                   is_model           ? "as set"
                   : status == KVT_OK ? "measured"
                                      : "by default");
    if (status == KVT_MISS && !is_model)
        options_note(options,
                     "%s is not in the profile: %.4g GB/s assumed (kvterrace profile devices "
                     "measures it).",
                     device->name, out->read.bytes_per_s * 1e-9);
    return KVT_OK;
}

/* A tier of devices. */
static kvt_status options_tier_of_devices(replay_options *options, const kvt_store_options *store,
                                          kvt_profile *profile, int tier)
{
    const kvt_tier_options *row = &store->tiers[tier];
    cost_device costs[TIERS_MEMBERS_MAX];
    assert(row->device_count > 0);
    for (uint32_t i = 0; i < row->device_count && i < TIERS_MEMBERS_MAX; i++) {
        kvt_status status =
            options_cost_device(options, store, profile, tier, &row->devices[i], &costs[i]);
        if (status != KVT_OK) return status;
    }
    options->tiers[tier].read = costs_combine(costs, row->device_count, KVT_IO_READ);
    options->tiers[tier].write = costs_combine(costs, row->device_count, KVT_IO_WRITE);
    return KVT_OK;
}

/* The tier's speeds: of the devices that the store would have; without any, of those of the profile
 * that are named, or that were measured of the tier. */
static kvt_status options_tier_speeds(kvt_config *config, const kvt_store_options *store,
                                      kvt_profile *profile, int tier, replay_options *options,
                                      bool measured_out[2], char *message, size_t message_size)
{
    kvt_status status = KVT_OK;
    if (kvt_config_text(config, tier_keys[tier][2]) != NULL) {
        return options_tier_by_names(options, config, profile, tier, measured_out, message,
                                     message_size);
    }
    if (store->tiers[tier].device_count > 0) {
        measured_out[KVT_IO_READ] = measured_out[KVT_IO_WRITE] = true;
        status = options_tier_of_devices(options, store, profile, tier);
    } else if (profile != NULL) {
        cost_device memory;
        /* The memory of a tier without devices has the tier's name. */
        status = tier == KVT_TIER_SSD
                     ? KVT_MISS
                     : options_profiled(store, profile, kvt_tier_name(tier), &memory);
        if (status == KVT_OK) {
            options->tiers[tier].read = memory.read;
            options->tiers[tier].write = memory.write;
            measured_out[KVT_IO_READ] = measured_out[KVT_IO_WRITE] = true;
        } else if (status == KVT_MISS) {
            status = options_tier_from_profile(options, profile, tier, measured_out);
        }
    }
    if (status != KVT_OK)
        snprintf(message, message_size, "%s: %s", options->profile, kvt_status_text(status));
    return status;
}

/* Speeds that are set for a tier as a whole. */
static void options_set_speeds(kvt_config *config, int tier, replay_options *options,
                               const bool measured[2])
{
    replay_tier *model = &options->tiers[tier];
    const bool set = kvt_config_has(config, options_speed_keys[tier][0]);
    const bool set_write = set || kvt_config_has(config, options_speed_keys[tier][1]);
    if (set) {
        model->read.bytes_per_s = (double)kvt_config_bytes(config, options_speed_keys[tier][0]);
        /* One figure for a tier means both directions until the other one is set. */
        model->write.bytes_per_s = model->read.bytes_per_s;
    }
    if (kvt_config_has(config, options_speed_keys[tier][1]))
        model->write.bytes_per_s = (double)kvt_config_bytes(config, options_speed_keys[tier][1]);
    if (kvt_config_has(config, tier_keys[tier][1])) {
        model->read.request_seconds = kvt_config_number(config, tier_keys[tier][1]);
        model->write.request_seconds = model->read.request_seconds;
    }
    options_note_defaults(options, tier, !set && !measured[KVT_IO_READ],
                          !set_write && !measured[KVT_IO_WRITE]);
    if (model->source[0] != '\0' && !set && !set_write) return;
    model->source[0] = '\0';
    options_source(model, "%s",
                   set || set_write        ? "as set"
                   : measured[KVT_IO_READ] ? "measured"
                                           : "by default");
}

kvt_status options_read_tiers(kvt_config *config, const kvt_store_options *store,
                              kvt_profile *profile, bool checking, replay_options *options,
                              char *message, size_t message_size)
{
    bool any = false, named = false;
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
        replay_tier *model = &options->tiers[tier];
        bool measured[2] = {false, false};
        named |= kvt_config_has(config, tier_keys[tier][0]);
        kvt_status status =
            kvt_tier_room(&store->tiers[tier], tier, &model->capacity_bytes, message, message_size);
        if (status != KVT_OK && !checking) return status;
        if (status != KVT_OK) model->capacity_bytes = 1;
        if (model->capacity_bytes == 0) continue;
        any = true;
        status = options_tier_speeds(config, store, profile, tier, options, measured, message,
                                     message_size);
        if (status != KVT_OK) return status;
        options_set_speeds(config, tier, options, measured);
    }
    if (any) return KVT_OK;
    if (named) {
        snprintf(message, message_size,
                 "every tier that is set has a capacity of 0: give one of "
                 "them room; the policy none shows what no cache costs");
        return KVT_E_CONFIG;
    }
    kvt_status status = options_take_standard(profile, options);
    if (status != KVT_OK)
        snprintf(message, message_size, "%s: %s", options->profile, kvt_status_text(status));
    return status;
}
