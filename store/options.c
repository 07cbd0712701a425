/* SPDX-License-Identifier: Apache-2.0 */
/*
 * options.c - defaults of kvt_store_options, and filling them from settings.
 *
 * Only settings that have an effect are read, so that the others are reported as unused: a path
 * means nothing to a memory device, a unit nothing to a tier that is absent.
 *
 * Thread rule: one thread at a time per object.
 */
#include "estimator/profile/profile.h"

#include <kvterrace/kvterrace.h>

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void kvt_store_options_init(kvt_store_options *options)
{
    memset(options, 0, sizeof *options);
    options->struct_size = sizeof *options;
    options->policy = "utility";
    options->variant.codec = KVT_CODEC_RAW;
    options->lossless = true;
    options->alpha_seconds = 10;
    options->half_life_seconds = 300;
    options->hysteresis = 1.25;
    options->holes = KVT_HOLES_CONTIGUOUS;
    kvt_status status = kvt_prefill_preset("llama-3.1-8b:a100", &options->prefill);
    assert(status == KVT_OK);
    (void)status;
    options->high_watermark = 0.995;
    options->low_watermark = 0.99;
    options->staging_bytes = UINT64_C(256) << 20;
    options->put_staging_bytes = KVT_PUT_STAGING_AUTO;
    options->put_backlog_seconds = 10;
    options->tick_seconds = 0.05;
    options->moves_per_tick = 64;
    options->seed = 1;
    options->loss_limit = 0.01;
    options->learn = true;
    options->learn_seconds = 300;
    options->copies = true;
    options->close_deadline_seconds = 20;
    options->persist_bytes_per_s = 32000000;
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++) {
        options->tiers[tier].rebalance_bytes_per_s = 32000000;
    }
}

const char *kvt_striping_name(kvt_striping striping)
{
    static const char *const names[] = {[KVT_STRIPE_PROPORTIONAL] = "proportional",
                                        [KVT_STRIPE_EQUAL] = "equal",
                                        [KVT_STRIPE_ROUND_ROBIN] = "round_robin"};
    assert((unsigned)striping < sizeof names / sizeof names[0]);
    return names[striping];
}

/* What kvt_store_options_read allocates. */
typedef struct options_owner {
    kvt_device_config *devices; /* of all tiers, grouped by tier */
    char **texts;
    size_t text_count;
    size_t text_capacity;
    kvt_prefill prefill;
} options_owner;

/* A copy that lives as long as the owner; NULL for NULL, and NULL with *status set without memory.
 */
static const char *options_keep(options_owner *owner, const char *text, kvt_status *status)
{
    if (text == NULL) return NULL;
    if (owner->text_count == owner->text_capacity) {
        size_t capacity = owner->text_capacity == 0 ? 16 : owner->text_capacity * 2;
        char **texts = realloc(owner->texts, capacity * sizeof *texts);
        if (texts == NULL) {
            *status = KVT_E_MEMORY;
            return NULL;
        }
        owner->texts = texts;
        owner->text_capacity = capacity;
    }
    char *copy = strdup(text);
    if (copy == NULL) {
        *status = KVT_E_MEMORY;
        return NULL;
    }
    owner->texts[owner->text_count++] = copy;
    return copy;
}

/* A count that is an index: one that does not fit is no device's. */
static uint32_t options_count(kvt_config *config, const char *key)
{
    uint64_t count = kvt_config_bytes(config, key);
    return count < UINT32_MAX ? (uint32_t)count : UINT32_MAX;
}

static int options_tier(const char *name)
{
    for (int tier = KVT_TIER_HBM; name != NULL && tier < KVT_TIER_COUNT; tier++) {
        if (strcmp(name, kvt_tier_name(tier)) == 0) return tier;
    }
    return KVT_TIER_NONE;
}

/* The settings that one back end alone has; the path is a drive's. */
static void options_read_place(kvt_config *config, const char *name, kvt_device_config *device)
{
    char key[96];
    if (strcmp(device->backend, "memory") == 0) {
        snprintf(key, sizeof key, "device.%s.node", name);
        device->on_node = kvt_config_has(config, key);
        if (device->on_node) device->node = options_count(config, key);
    } else if (strcmp(device->backend, "hbm") == 0) {
        snprintf(key, sizeof key, "device.%s.gpu", name);
        device->gpu = options_count(config, key);
    }
}

/* One [device.NAME] section. */
static kvt_status options_read_device(kvt_config *config, options_owner *owner, const char *name,
                                      kvt_device_config *device, char *message, size_t message_size)
{
    char key[96];
    kvt_status status = KVT_OK;
    memset(device, 0, sizeof *device);
    device->struct_size = sizeof *device;
#define DEVICE_KEY(field) (snprintf(key, sizeof key, "device.%s." field, name), key)
    device->name = options_keep(owner, name, &status);
    device->backend = options_keep(owner, kvt_config_text(config, DEVICE_KEY("backend")), &status);
    if (status != KVT_OK) return status;
    if (device->backend == NULL) {
        snprintf(message, message_size, "device.%s.backend is not set", name);
        return KVT_E_CONFIG;
    }
    bool file = strcmp(device->backend, "file") == 0;
    bool drive = file || strcmp(device->backend, "nvme") == 0;
    if (file) {
        device->buffered = kvt_config_switch(config, DEVICE_KEY("buffered"));
        device->sparse = !kvt_config_switch(config, DEVICE_KEY("prewrite"));
        device->follow_symlinks = kvt_config_switch(config, "store.follow_symlinks");
    }
    if (drive) {
        device->path = options_keep(owner, kvt_config_text(config, DEVICE_KEY("path")), &status);
        device->synchronous = kvt_config_switch(config, DEVICE_KEY("synchronous"));
        device->trim = kvt_config_switch(config, DEVICE_KEY("trim"));
        if (status == KVT_OK && device->path == NULL) {
            snprintf(message, message_size, "device.%s.path is not set", name);
            status = KVT_E_CONFIG;
        }
    }
    options_read_place(config, name, device);
    device->capacity_bytes = kvt_config_bytes(config, DEVICE_KEY("capacity"));
    if (status == KVT_OK && !drive && device->capacity_bytes == 0) {
        snprintf(message, message_size, "device.%s.capacity is not set", name);
        status = KVT_E_CONFIG;
    }
    uint64_t depth = kvt_config_bytes(config, DEVICE_KEY("depth"));
    if (status == KVT_OK && depth > 4096) {
        snprintf(message, message_size, "device.%s.depth is above 4096", name);
        status = KVT_E_CONFIG;
    }
    device->depth = (uint32_t)depth;
    device->emulated = kvt_config_switch(config, DEVICE_KEY("emulated"));
    device->read_bytes_per_s = kvt_config_bytes(config, DEVICE_KEY("read_bandwidth"));
    device->write_bytes_per_s = kvt_config_bytes(config, DEVICE_KEY("write_bandwidth"));
    device->latency_ns = (uint64_t)(kvt_config_number(config, DEVICE_KEY("latency")) * 1e9);
    device->in_flight_bytes_max = kvt_config_bytes(config, DEVICE_KEY("in_flight"));
    device->write_bytes_per_day = kvt_config_bytes(config, DEVICE_KEY("write_budget"));
    double timeout = kvt_config_number(config, DEVICE_KEY("timeout"));
    device->timeout_ns = timeout > 0 ? (uint64_t)(timeout * 1e9) : UINT64_MAX;
#undef DEVICE_KEY
    return status;
}

static size_t options_count_devices(const kvt_config *config)
{
    size_t count = 0;
    while (kvt_config_device_at(config, count) != NULL) {
        count++;
    }
    return count;
}

/* Devices of all tiers, grouped by tier, in file order inside a tier. */
static kvt_status options_read_devices(kvt_config *config, options_owner *owner,
                                       kvt_store_options *options, char *message,
                                       size_t message_size)
{
    size_t count = options_count_devices(config), next = 0;
    owner->devices = calloc(count + 1, sizeof *owner->devices);
    if (owner->devices == NULL) return KVT_E_MEMORY;
    for (size_t i = 0; i < count; i++) {
        char key[96];
        const char *name = kvt_config_device_at(config, i);
        snprintf(key, sizeof key, "device.%s.tier", name);
        if (options_tier(kvt_config_text(config, key)) != KVT_TIER_NONE) continue;
        snprintf(message, message_size, "%s is not set", key);
        return KVT_E_CONFIG;
    }
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++) {
        size_t first = next;
        for (size_t i = 0; i < count; i++) {
            char key[96];
            const char *name = kvt_config_device_at(config, i);
            snprintf(key, sizeof key, "device.%s.tier", name);
            if (options_tier(kvt_config_text(config, key)) != tier) continue;
            kvt_status status = options_read_device(config, owner, name, &owner->devices[next++],
                                                    message, message_size);
            if (status != KVT_OK) return status;
        }
        options->tiers[tier].devices = &owner->devices[first];
        options->tiers[tier].device_count = (uint32_t)(next - first);
    }
    return KVT_OK;
}

static kvt_status options_read_tiers(kvt_config *config, kvt_store_options *options, char *message,
                                     size_t message_size)
{
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++) {
        kvt_tier_options *one = &options->tiers[tier];
        char key[64];
#define TIER_KEY(field) (snprintf(key, sizeof key, "tier.%s." field, kvt_tier_name(tier)), key)
        one->capacity_bytes = kvt_config_bytes(config, TIER_KEY("capacity"));
        if (one->capacity_bytes == 0 && one->device_count == 0) continue;
        uint64_t unit = kvt_config_bytes(config, TIER_KEY("unit"));
        if (unit == 0 || unit % 4096 != 0 || unit > (UINT64_C(1) << 30)) {
            snprintf(message, message_size, "tier.%s.unit is not a multiple of 4 KiB up to 1 GiB",
                     kvt_tier_name(tier));
            return KVT_E_CONFIG;
        }
        one->unit_bytes = (uint32_t)unit;
        const char *striping = kvt_config_text(config, TIER_KEY("striping"));
        while (strcmp(striping, kvt_striping_name(one->striping)) != 0) {
            one->striping++; /* the settings were checked against the names */
        }
        one->rebalance_bytes_per_s = kvt_config_bytes(config, TIER_KEY("rebalance_rate"));
        one->weights_fixed = !kvt_config_switch(config, TIER_KEY("reweigh"));
        one->emulated = tier == KVT_TIER_HBM && one->device_count == 0 &&
                        kvt_config_switch(config, TIER_KEY("emulated"));
#undef TIER_KEY
    }
    return KVT_OK;
}

/* A prefill model by name is not bound to a host: any profile that opens may have it. */
static kvt_status options_profile_prefill(const char *path, const char *name, kvt_prefill *prefill,
                                          char *message, size_t message_size)
{
    kvt_profile *profile = NULL;
    if (path == NULL) {
        snprintf(message, message_size, "prefill.profile: needs store.profile");
        return KVT_E_CONFIG;
    }
    kvt_status status = kvt_profile_open(path, KVT_PROFILE_READ | KVT_PROFILE_FOREIGN, &profile,
                                         message, message_size);
    if (status != KVT_OK) return status == KVT_MISS ? KVT_E_GONE : status;
    status = kvt_profile_prefill(profile, name, prefill);
    kvt_profile_close(profile);
    if (status == KVT_MISS) {
        snprintf(message, message_size, "prefill.profile: %s has no prefill model \"%s\"", path,
                 name);
        return KVT_E_CONFIG;
    }
    return status;
}

static kvt_status options_read_prefill(kvt_config *config, options_owner *owner,
                                       kvt_store_options *options, char *message,
                                       size_t message_size)
{
    const char *csv = kvt_config_text(config, "prefill.csv");
    const char *named = kvt_config_text(config, "prefill.profile");
    kvt_status status;
    if (csv != NULL && named != NULL) {
        snprintf(message, message_size, "prefill.csv and prefill.profile exclude each other");
        return KVT_E_CONFIG;
    }
    if (named != NULL) {
        status = options_profile_prefill(kvt_config_text(config, "store.profile"), named,
                                         &options->prefill, message, message_size);
    } else if (csv != NULL) {
        uint64_t layers = kvt_config_bytes(config, "prefill.layers");
        status =
            kvt_prefill_read_csv(csv, (uint32_t)layers, &owner->prefill, message, message_size);
        options->prefill = owner->prefill;
    } else {
        char name[64];
        snprintf(name, sizeof name, "llama-3.1-8b:%s", kvt_config_text(config, "prefill.gpu"));
        status = kvt_prefill_preset(name, &options->prefill);
    }
    return status;
}

/* LAYERSxHEADSxDIM:DTYPE, such as 32x8x128:bf16. */
static bool options_parse_layout(const char *text, kvt_layout *layout)
{
    static const struct {
        const char *name;
        uint8_t dtype;
    } dtypes[] = {{"bf16", KVT_DTYPE_BF16}, {"fp16", KVT_DTYPE_FP16}, {"fp32", KVT_DTYPE_FP32}};
    uint16_t *const counts[] = {&layout->layers, &layout->kv_heads, &layout->head_dim};
    memset(layout, 0, sizeof *layout);
    for (size_t i = 0; i < 3; i++) {
        char *end;
        unsigned long count = *text >= '0' && *text <= '9' ? strtoul(text, &end, 10) : 0;
        if (count == 0 || count > UINT16_MAX || *end != "xx:"[i]) return false;
        *counts[i] = (uint16_t)count;
        text = end + 1;
    }
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
        if (strcmp(text, dtypes[i].name) == 0) layout->dtype = dtypes[i].dtype;
    return layout->dtype != KVT_DTYPE_OPAQUE;
}

static kvt_status options_read_ladder(kvt_config *config, options_owner *owner,
                                      kvt_store_options *options, char *message,
                                      size_t message_size)
{
    kvt_status status = KVT_OK;
    options->ladder = strcmp(kvt_config_text(config, "store.ladder"), "calibrated") == 0;
    if (!options->ladder) return KVT_OK;
    const char *layout = kvt_config_text(config, "store.ladder_layout");
    if (options->profile_path == NULL || layout == NULL) {
        (void)snprintf(message, message_size, "store.ladder: a calibrated ladder needs %s",
                       layout == NULL ? "store.ladder_layout" : "store.profile");
        return KVT_E_CONFIG;
    }
    if (!options_parse_layout(layout, &options->ladder_layout)) {
        (void)snprintf(message, message_size,
                       "store.ladder_layout: '%s' is not LAYERSxHEADSxDIM:DTYPE with DTYPE bf16, "
                       "fp16 or fp32, such as 32x8x128:bf16",
                       layout);
        return KVT_E_CONFIG;
    }
    options->ladder_model =
        options_keep(owner, kvt_config_text(config, "store.ladder_model"), &status);
    options->ladder_class =
        options_keep(owner, kvt_config_text(config, "store.ladder_class"), &status);
    options->loss_limit = kvt_config_number(config, "store.loss_limit");
    return status;
}

static kvt_status options_read_store(kvt_config *config, options_owner *owner,
                                     kvt_store_options *options)
{
    kvt_status status = KVT_OK;
    options->catalog_path = options_keep(owner, kvt_config_text(config, "store.catalog"), &status);
    options->profile_path = options_keep(owner, kvt_config_text(config, "store.profile"), &status);
    if (options->profile_path != NULL) {
        options->profile_foreign = kvt_config_switch(config, "store.profile_foreign");
        options->learn = kvt_config_switch(config, "store.learn");
        options->learn_seconds = kvt_config_number(config, "store.learn_interval");
    }
    options->format = kvt_config_switch(config, "store.format");
    options->policy = options_keep(owner, kvt_config_text(config, "store.policy"), &status);
    if (status != KVT_OK) return status;
    status = kvt_variant_parse(kvt_config_text(config, "store.variant"), &options->variant);
    if (status != KVT_OK) return KVT_E_CONFIG;
    options->lossless = kvt_config_switch(config, "store.lossless");
    options->alpha_seconds = kvt_config_number(config, "store.alpha");
    options->half_life_seconds = kvt_config_number(config, "store.half_life");
    options->hysteresis = kvt_config_number(config, "store.hysteresis");
    options->holes = strcmp(kvt_config_text(config, "store.holes"), "mixed") == 0
                         ? KVT_HOLES_MIXED
                         : KVT_HOLES_CONTIGUOUS;
    options->high_watermark = kvt_config_number(config, "store.high_watermark");
    options->low_watermark = kvt_config_number(config, "store.low_watermark");
    options->staging_bytes = kvt_config_bytes(config, "store.staging");
    if (kvt_config_has(config, "store.put_staging"))
        options->put_staging_bytes = kvt_config_bytes(config, "store.put_staging");
    options->put_backlog_seconds = kvt_config_number(config, "store.put_backlog");
    options->tick_seconds = kvt_config_number(config, "store.tick");
    options->move_bytes_per_s = kvt_config_bytes(config, "store.move_rate");
    uint64_t moves = kvt_config_bytes(config, "store.moves_per_tick");
    options->moves_per_tick = moves > UINT32_MAX ? UINT32_MAX : (uint32_t)moves;
    options->seed = kvt_config_bytes(config, "store.seed");
    options->get_deadline_seconds = kvt_config_number(config, "store.get_deadline");
    options->copies = kvt_config_switch(config, "store.copies");
    options->follow_symlinks = kvt_config_switch(config, "store.follow_symlinks");
    options->handle_seed = kvt_config_bytes(config, "store.handle_seed");
    options->close_deadline_seconds = kvt_config_number(config, "store.close_deadline");
    options->persist_bytes_per_s = kvt_config_bytes(config, "store.persist_rate");
    return KVT_OK;
}

kvt_status kvt_store_options_read(kvt_config *config, kvt_store_options *options, void **owner_out,
                                  char *message, size_t message_size)
{
    *owner_out = NULL;
    kvt_store_options_init(options);
    options_owner *owner = calloc(1, sizeof *owner);
    if (owner == NULL) return KVT_E_MEMORY;
    kvt_status status = options_read_store(config, owner, options);
    if (status == KVT_OK)
        status = options_read_ladder(config, owner, options, message, message_size);
    if (status == KVT_OK) {
        status = options_read_devices(config, owner, options, message, message_size);
    }
    if (status == KVT_OK) status = options_read_tiers(config, options, message, message_size);
    if (status == KVT_OK) {
        status = options_read_prefill(config, owner, options, message, message_size);
    }
    if (status != KVT_OK) {
        kvt_store_options_free(owner);
        return status;
    }
    *owner_out = owner;
    return KVT_OK;
}

void kvt_store_options_free(void *memory)
{
    options_owner *owner = memory;
    if (owner == NULL) return;
    for (size_t i = 0; i < owner->text_count; i++) {
        free(owner->texts[i]);
    }
    kvt_prefill_free(&owner->prefill);
    free(owner->texts);
    free(owner->devices);
    free(owner);
}
