/* SPDX-License-Identifier: Apache-2.0 */
/*
 * options.c - defaults of kvt_store_options, and filling them from settings.
 *
 * A setting that has no effect beside the others is refused before any is read: the condition of
 * each stands in the table of settings.
 *
 * Thread rule: one thread at a time per object.
 */
#include "options.h"
#include "store/learn/slot_sizes.h"

#include "base/config_values.h"
#include "base/settings_fields.h"
#include "base/struct_size.h"
#include "estimator/profile/profile.h"
#include "store/hosts/remote_tier.h"

#include <kvterrace/config.h>
#include <kvterrace/remote.h>

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the member that each setting fills ---- */

#define STORE_FIELD(name, member)                                                                  \
    SETTINGS_FIELD(kvt_store_options, "store." name, member, .modes = 0)

static const settings_field store_fields[] = {
    STORE_FIELD("profile_foreign", learning.profile_foreign),
    STORE_FIELD("learn", learning.learn),
    STORE_FIELD("learn_interval", learning.learn_seconds),
    STORE_FIELD("ladder", loss.ladder),
    STORE_FIELD("loss_limit", loss.loss_limit),
    STORE_FIELD("entry_loss_limit", loss.entry_loss_limit),
    STORE_FIELD("format", format),
    STORE_FIELD("lossless", lossless),
    STORE_FIELD("alpha", loss.alpha_seconds),
    STORE_FIELD("alpha_prefills", loss.alpha_prefills),
    STORE_FIELD("hysteresis", hysteresis),
    STORE_FIELD("holes", holes),
    STORE_FIELD("high_watermark", limits.high_watermark),
    STORE_FIELD("low_watermark", limits.low_watermark),
    STORE_FIELD("staging", limits.staging_bytes),
    STORE_FIELD("put_staging", limits.put_staging_bytes),
    STORE_FIELD("put_backlog", limits.put_backlog_seconds),
    STORE_FIELD("tick", limits.tick_seconds),
    STORE_FIELD("move_rate", limits.move_bytes_per_s),
    STORE_FIELD("moves_per_tick", limits.moves_per_tick),
    STORE_FIELD("seed", seed),
    STORE_FIELD("get_deadline", limits.get_deadline_seconds),
    STORE_FIELD("copies", durability.copies),
    STORE_FIELD("follow_symlinks", follow_symlinks),
    STORE_FIELD("follow", follow),
    STORE_FIELD("serve_early", serve_early),
    STORE_FIELD("handle_seed", handle_seed),
    STORE_FIELD("close_deadline", durability.close_deadline_seconds),
    STORE_FIELD("persist_rate", durability.persist_bytes_per_s),
    STORE_FIELD("watch_interval", watch.seconds),
    STORE_FIELD("io_order", io.order),
    STORE_FIELD("write_grain", io.write_grain_seconds),
    STORE_FIELD("write_patience", io.write_patience_seconds),
    STORE_FIELD("scrub_period", scrub.period_seconds),
    STORE_FIELD("scrub_share", scrub.share),
    STORE_FIELD("scrub_faults", scrub.faults),
    SETTINGS_FIELD(kvt_store_options, "gpu.scratch", gpu.scratch_bytes, .modes = 0),
    SETTINGS_FIELD(kvt_store_options, "gpu.pinned", gpu.pinned_bytes, .modes = 0),
};

#define TIER_FIELD(name, member, ...)                                                              \
    SETTINGS_FIELD(kvt_tier_options, "tier.*." name, member, __VA_ARGS__)

static const settings_field tier_fields[] = {
    TIER_FIELD("unit", unit_bytes, .modes = 0),
    TIER_FIELD("placement", placement, .modes = 0),
    TIER_FIELD("rebalance_rate", rebalance_bytes_per_s, .modes = 0),
    TIER_FIELD("reweigh", weights_fixed, .negated = true),
};

#define DEVICE_FIELD(name, member)                                                                 \
    SETTINGS_FIELD(kvt_device_config, "device.*." name, member, .modes = 0)

static const settings_field device_fields[] = {
    DEVICE_FIELD("buffered", buffered),
    SETTINGS_FIELD(kvt_device_config, "device.*.prewrite", sparse, .negated = true),
    DEVICE_FIELD("synchronous", synchronous),
    DEVICE_FIELD("trim", trim),
    DEVICE_FIELD("node", node),
    DEVICE_FIELD("gpu", gpu),
    DEVICE_FIELD("capacity", capacity_bytes),
    DEVICE_FIELD("depth", depth),
    DEVICE_FIELD("emulated", emulated),
    DEVICE_FIELD("read_bandwidth", read_bytes_per_s),
    DEVICE_FIELD("write_bandwidth", write_bytes_per_s),
    DEVICE_FIELD("latency", latency_ns),
    DEVICE_FIELD("in_flight", in_flight_bytes_max),
    DEVICE_FIELD("write_budget", write_bytes_per_day),
    DEVICE_FIELD("write_budget_shadow", write_budget_shadow),
    DEVICE_FIELD("timeout", timeout_ns),
    DEVICE_FIELD("mix_kept", mix_kept),
};

#define COUNT_OF(table) (sizeof(table) / sizeof(table)[0])

bool store_options_hold(const kvt_store_options *options, char *message, size_t message_size)
{
    return settings_hold(store_fields, COUNT_OF(store_fields), options, message, message_size);
}

void store_options_policy(const kvt_store_options *options, kvt_policy_config *config)
{
    kvt_policy_config_init(config);
    config->name = options->policy;
    config->variant = options->variant;
    config->alpha_seconds = options->loss.alpha_seconds;
    config->alpha_prefills = options->loss.alpha_prefills;
    config->hysteresis = options->hysteresis;
    config->holes = (uint8_t)options->holes;
    config->high_watermark = options->limits.high_watermark;
    config->low_watermark = options->limits.low_watermark;
    config->seed = options->seed;
    config->allocator.resize = kvt_memory_resize;
}

kvt_status store_options_try_policy(const kvt_store_options *options, char *message,
                                    size_t message_size)
{
    kvt_policy_config config;
    kvt_policy *trial = NULL;
    store_options_policy(options, &config);
    config.entries_expected = 1;
    config.ghosts_max = 1;
    config.tiers[KVT_TIER_DRAM] =
        (kvt_tier_facts){.capacity_bytes = 4096, .read_bytes_per_s = 1, .write_bytes_per_s = 1};
    kvt_status status = kvt_policy_open(&config, &trial, message, message_size);
    kvt_policy_close(trial);
    return status;
}

/* Sets what an option is when nobody sets it. */
static void options_fill(kvt_store_options *options)
{
    memset(options, 0, sizeof *options);
    options->struct_size = sizeof *options;
    options->policy = "utility";
    options->variant.codec = KVT_CODEC_RAW;
    options->limits.put_staging_bytes = KVT_PUT_STAGING_AUTO;
    settings_read(NULL, NULL, store_fields, COUNT_OF(store_fields), SETTINGS_ALL_MODES, options);
    kvt_status status = kvt_prefill_preset_get("llama-3.1-8b:a100", &options->prefill);
    assert(status == KVT_OK);
    (void)status;
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++)
        options->tiers[tier].rebalance_bytes_per_s = 32000000;
}

void kvt_store_options_init_sized(kvt_store_options *options, uint32_t struct_size)
{
    kvt_store_options whole;
    options_fill(&whole);
    options->struct_size = struct_size;
    struct_size_out(options, &whole, sizeof whole);
}

/* The memory of kvt_store_options_read. */
typedef struct options_owner {
    kvt_device_config *devices; /* of all tiers, grouped by tier */
    char **texts;
    size_t text_count;
    size_t text_capacity;
    kvt_remote_options remote;
    kvt_pass_row *pass_rows;
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

/* The tier of a name; KVT_TIER_NONE for NULL and for an unknown name. */
static int options_tier(const char *name)
{
    for (int tier = KVT_TIER_HBM; name != NULL && tier < KVT_TIER_COUNT; tier++) {
        if (strcmp(name, kvt_tier_name(tier)) == 0) return tier;
    }
    return KVT_TIER_NONE;
}

/* A text of one device, copied. */
static const char *options_device_text(kvt_config *config, options_owner *owner, const char *name,
                                       const char *field, kvt_status *status)
{
    char key[96];
    snprintf(key, sizeof key, "device.%s.%s", name, field);
    return options_keep(owner, kvt_config_text(config, key), status);
}

/* One [device.NAME] section. */
static kvt_status options_read_device(kvt_config *config, options_owner *owner, const char *name,
                                      kvt_device_config *device, char *message, size_t message_size)
{
    char node[96], depth[96];
    kvt_status status = KVT_OK;
    *device = (kvt_device_config){.struct_size = sizeof *device};
    device->name = options_keep(owner, name, &status);
    device->backend = options_device_text(config, owner, name, "backend", &status);
    if (status != KVT_OK) return status;
    if (device->backend == NULL) {
        snprintf(message, message_size, "device.%s.backend is not set", name);
        return KVT_E_CONFIG;
    }
    const bool file = strcmp(device->backend, "file") == 0;
    const bool drive = file || strcmp(device->backend, "nvme") == 0;
    settings_read(config, name, device_fields, COUNT_OF(device_fields), 0, device);
    /* Settings that the back end does not use count as not set. */
    if (!file) device->sparse = false;
    if (drive) device->path = options_device_text(config, owner, name, "path", &status);
    if (drive || strcmp(device->backend, "memory") == 0) {
        device->key_file = options_device_text(config, owner, name, "key_file", &status);
        device->key_command = options_device_text(config, owner, name, "key_command", &status);
    }
    if (status != KVT_OK) return status;
    if (file) device->follow_symlinks = kvt_config_switch(config, "store.follow_symlinks");
    snprintf(node, sizeof node, "device.%s.node", name);
    snprintf(depth, sizeof depth, "device.%s.depth", name);
    device->on_node = kvt_config_has(config, node);
    if (device->timeout_ns == 0) device->timeout_ns = UINT64_MAX;
    const char *fault = drive && device->path == NULL           ? "path is not set"
                        : !drive && device->capacity_bytes == 0 ? "capacity is not set"
                        : device->depth > 4096                  ? "depth is above 4096"
                        : device->key_file != NULL && device->key_command != NULL
                            ? "key_file and key_command are both set"
                        : device->depth == 0 && kvt_config_has(config, depth) ? "depth is 0"
                                                                              : NULL;
    if (fault == NULL) return KVT_OK;
    snprintf(message, message_size, "device.%s.%s", name, fault);
    return KVT_E_CONFIG;
}

/* Devices of all tiers, grouped by tier, in file order inside a tier. */
static kvt_status options_read_devices(kvt_config *config, options_owner *owner,
                                       kvt_store_options *options, char *message,
                                       size_t message_size)
{
    size_t count = 0, next = 0;
    while (kvt_config_device_at(config, count) != NULL)
        count++;
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

/* Reads the [tier.NAME] sections of tiers that have a capacity or a device. */
static kvt_status options_read_tiers(kvt_config *config, options_owner *owner,
                                     kvt_store_options *options, char *message, size_t message_size)
{
    tiers_slot_size slots[TIERS_SLOT_CLASSES_MAX];
    uint32_t slot_count;
    char fault[160];
    kvt_status status = KVT_OK;
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++) {
        kvt_tier_options *one = &options->tiers[tier];
        char key[64];
#define TIER_KEY(field) (snprintf(key, sizeof key, "tier.%s." field, kvt_tier_name(tier)), key)
        one->capacity_bytes = kvt_config_bytes(config, TIER_KEY("capacity"));
        if (one->capacity_bytes == 0 && one->device_count == 0) continue;
        settings_read(config, kvt_tier_name(tier), tier_fields, COUNT_OF(tier_fields), 0, one);
        if (one->unit_bytes == 0 || one->unit_bytes % 4096 != 0 || one->unit_bytes > (1u << 30)) {
            snprintf(message, message_size, "tier.%s.unit is not a multiple of 4 KiB up to 1 GiB",
                     kvt_tier_name(tier));
            return KVT_E_CONFIG;
        }
        one->emulated = tier == KVT_TIER_HBM && one->device_count == 0 &&
                        kvt_config_switch(config, TIER_KEY("emulated"));
        one->slots = options_keep(owner, kvt_config_text(config, TIER_KEY("slots")), &status);
        if (status == KVT_OK)
            status = learn_slot_sizes(one->slots, &options->loss.ladder_layout, slots, &slot_count,
                                      fault, sizeof fault);
        if (status == KVT_E_CONFIG)
            snprintf(message, message_size, "tier.%s.%s", kvt_tier_name(tier), fault);
        if (status != KVT_OK) return status;
#undef TIER_KEY
    }
    return KVT_OK;
}

/* A prefill model by name is not bound to a host: any profile that opens may have it. */
static kvt_status options_profile_prefill(const char *path, const char *name, kvt_prefill *prefill,
                                          char *message, size_t message_size)
{
    kvt_profile *profile = NULL;
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

/* Reads the prefill model: from the profile, or the preset of a GPU. */
static kvt_status options_read_prefill(kvt_config *config, kvt_store_options *options,
                                       char *message, size_t message_size)
{
    const char *named = kvt_config_text(config, "prefill.profile");
    char name[64];
    if (named != NULL)
        return options_profile_prefill(kvt_config_text(config, "store.profile"), named,
                                       &options->prefill, message, message_size);
    snprintf(name, sizeof name, "llama-3.1-8b:%s", kvt_config_text(config, "prefill.gpu"));
    return kvt_prefill_preset_get(name, &options->prefill);
}

/* Reads the table of seconds per layer that prefill.slack names, of any host. */
static kvt_status options_read_passes(kvt_config *config, options_owner *owner,
                                      kvt_store_options *options, char *message,
                                      size_t message_size)
{
    const char *name = kvt_config_text(config, "prefill.slack");
    const char *path = options->learning.profile_path;
    kvt_profile *profile = NULL;
    size_t count = 0;
    if (name == NULL) return KVT_OK;
    kvt_status status = kvt_profile_open(path, KVT_PROFILE_READ | KVT_PROFILE_FOREIGN, &profile,
                                         message, message_size);
    if (status != KVT_OK) return status == KVT_MISS ? KVT_E_GONE : status;
    status = kvt_profile_passes(profile, name, &owner->pass_rows, &count);
    kvt_profile_close(profile);
    options->pass_rows = owner->pass_rows;
    options->pass_row_count = count;
    if (status != KVT_MISS && status != KVT_E_SPACE) return status;
    snprintf(message, message_size, "prefill.slack: %s has %s \"%s\"", path,
             status == KVT_MISS ? "no table of seconds per layer" : "more than 4096 rows of", name);
    return KVT_E_CONFIG;
}

/* LAYERSxHEADSxDIM:DTYPE[,drop|,one], such as 32x8x128:bf16. */
static bool options_parse_layout(const char *text, kvt_layout *layout)
{
    static const struct {
        const char *name;
        uint8_t dtype;
    } dtypes[] = {{"bf16", KVT_DTYPE_BF16},
                  {"fp16", KVT_DTYPE_FP16},
                  {"fp32", KVT_DTYPE_FP32},
                  {"fp8", KVT_DTYPE_FP8}};
    uint16_t *const counts[] = {&layout->layers, &layout->kv_heads, &layout->head_dim};
    memset(layout, 0, sizeof *layout);
    for (size_t i = 0; i < 3; i++) {
        char *end;
        unsigned long count = *text >= '0' && *text <= '9' ? strtoul(text, &end, 10) : 0;
        if (count == 0 || count > UINT16_MAX || *end != "xx:"[i]) return false;
        *counts[i] = (uint16_t)count;
        text = end + 1;
    }
    const size_t length = strcspn(text, ",");
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
        if (strlen(dtypes[i].name) == length && strncmp(text, dtypes[i].name, length) == 0)
            layout->dtype = dtypes[i].dtype;
    text += length;
    layout->tokens_may_drop = strcmp(text, ",drop") == 0;
    if (strcmp(text, ",one") == 0) layout->sides = KVT_SIDES_ONE;
    return layout->dtype != KVT_DTYPE_OPAQUE &&
           (*text == '\0' || layout->tokens_may_drop || layout->sides != 0);
}

/* Reads the settings of a ladder, which need a profile and a layout. Forms of slots have the layout
 * without a ladder, too. */
static kvt_status options_read_ladder(kvt_config *config, options_owner *owner,
                                      kvt_store_options *options, char *message,
                                      size_t message_size)
{
    kvt_status status = KVT_OK;
    const char *layout = kvt_config_text(config, "store.ladder_layout");
    if (!options->loss.ladder && layout == NULL) return KVT_OK;
    if (options->loss.ladder && (options->learning.profile_path == NULL || layout == NULL)) {
        (void)snprintf(message, message_size, "store.ladder: a calibrated ladder needs %s",
                       layout == NULL ? "store.ladder_layout" : "store.profile");
        return KVT_E_CONFIG;
    }
    if (!options_parse_layout(layout, &options->loss.ladder_layout)) {
        (void)snprintf(
            message, message_size,
            "store.ladder_layout: '%s' is not LAYERSxHEADSxDIM:DTYPE[,drop|,one] with DTYPE "
            "bf16, fp16, fp32 or fp8, such as 32x8x128:bf16",
            layout);
        return KVT_E_CONFIG;
    }
    options->loss.ladder_model =
        options_keep(owner, kvt_config_text(config, "store.ladder_model"), &status);
    options->loss.ladder_class =
        options_keep(owner, kvt_config_text(config, "store.ladder_class"), &status);
    return status;
}

/* Reads the [remote.NAME] section and [tier.remote]. Without the first one the second is without
 * effect, which its settings are reported for. */
static kvt_status options_read_remote(kvt_config *config, options_owner *owner,
                                      kvt_store_options *options, char *message,
                                      size_t message_size)
{
    kvt_remote_options *remote = &owner->remote;
    char name[KVT_CONFIG_NAME_BYTES], other[KVT_CONFIG_NAME_BYTES], key[96];
    kvt_status status = KVT_OK;
    if (!kvt_config_name_at(config, "remote", 0, name)) return KVT_OK;
    if (kvt_config_name_at(config, "remote", 1, other)) {
        snprintf(message, message_size, "remote.%s and remote.%s: a store has one engine", name,
                 other);
        return KVT_E_CONFIG;
    }
    kvt_remote_options_init(remote);
    remote_settings_read(config, name, remote);
#define REMOTE_TEXT(field)                                                                         \
    (snprintf(key, sizeof key, "remote.%s." field, name),                                          \
     options_keep(owner, kvt_config_text(config, key), &status))
    remote->backend = REMOTE_TEXT("backend");
    remote->address = REMOTE_TEXT("address");
    remote->user = REMOTE_TEXT("user");
    remote->password_file = REMOTE_TEXT("password_file");
    if (remote->tls) {
        remote->ca = REMOTE_TEXT("ca");
        remote->cert = REMOTE_TEXT("cert");
        remote->cert_key = REMOTE_TEXT("cert_key");
    }
#undef REMOTE_TEXT
    remote->namespace_text =
        options_keep(owner, kvt_config_text(config, "tier.remote.namespace"), &status);
    if (status != KVT_OK) return status;
    options->remote = remote;
    const char *fault = remote->namespace_text == NULL ? "tier.remote.namespace is not set"
                        : remote->address == NULL      ? "its address is not set"
                                                       : remote_options_fault(remote);
    if (fault == NULL)
        return remote_settings_hold(remote, message, message_size) ? KVT_OK : KVT_E_CONFIG;
    /* An address with a secret in it is not shown. */
    const char *shown = strncmp(fault, "address is", 10) == 0 ? remote->address : "";
    snprintf(message, message_size, "remote.%s: %s%s%s%s", name, fault,
             shown[0] != '\0' ? ": '" : "", shown, shown[0] != '\0' ? "'" : "");
    return KVT_E_CONFIG;
}

static kvt_status options_read_store(kvt_config *config, options_owner *owner,
                                     kvt_store_options *options)
{
    kvt_status status = KVT_OK;
    options->durability.catalog_path =
        options_keep(owner, kvt_config_text(config, "store.catalog"), &status);
    options->learning.profile_path =
        options_keep(owner, kvt_config_text(config, "store.profile"), &status);
    options->watch.path = options_keep(owner, kvt_config_text(config, "store.watch_path"), &status);
    options->policy = options_keep(owner, kvt_config_text(config, "store.policy"), &status);
    if (status != KVT_OK) return status;
    status = kvt_variant_parse(kvt_config_text(config, "store.variant"), &options->variant);
    if (status != KVT_OK) return KVT_E_CONFIG;
    settings_read(config, NULL, store_fields, COUNT_OF(store_fields), 0, options);
    return KVT_OK;
}

kvt_status kvt_store_options_read(kvt_config *config, kvt_store_options *given, void **owner_out,
                                  char *message, size_t message_size)
{
    *owner_out = NULL;
    if (!struct_size_is_sound(given, STRUCT_SIZE_THROUGH(kvt_store_options, remote))) {
        snprintf(message, message_size,
                 "options have no struct_size: kvt_store_options_init sets it");
        return KVT_E_ARGUMENT;
    }
    kvt_store_options whole, *options = &whole;
    options_fill(options);
    options_owner *owner = calloc(1, sizeof *owner);
    if (owner == NULL) return KVT_E_MEMORY;
    kvt_status status = kvt_config_check_effects(config, message, message_size);
    if (status == KVT_OK) status = options_read_store(config, owner, options);
    if (status == KVT_OK)
        status = options_read_ladder(config, owner, options, message, message_size);
    if (status == KVT_OK) {
        status = options_read_devices(config, owner, options, message, message_size);
    }
    if (status == KVT_OK)
        status = options_read_tiers(config, owner, options, message, message_size);
    if (status == KVT_OK)
        status = options_read_remote(config, owner, options, message, message_size);
    if (status == KVT_OK) {
        status = options_read_prefill(config, options, message, message_size);
    }
    if (status == KVT_OK)
        status = options_read_passes(config, owner, options, message, message_size);
    if (status != KVT_OK) {
        kvt_store_options_free(owner);
        return status;
    }
    struct_size_out(given, &whole, sizeof whole);
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
    free(owner->texts);
    free(owner->devices);
    free(owner->pass_rows);
    free(owner);
}
