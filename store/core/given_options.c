/* SPDX-License-Identifier: Apache-2.0 */
/*
 * given_options.c - takes in the structs that callers hand to kvt_store_open, kvt_store_recover and
 * kvt_device_add.
 *
 * Thread rule: any thread.
 */
#include "store/core/given_options.h"

#include "base/struct_size.h"
#include "tiers/pool/pool.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

kvt_status given_device_take(const kvt_device_config *given, kvt_device_config *out)
{
    *out = (kvt_device_config){.struct_size = sizeof *out};
    const kvt_device_config *taken =
        struct_size_in(given, out, sizeof *out, STRUCT_SIZE_THROUGH(kvt_device_config, timeout_ns));
    if (taken == NULL) return KVT_E_ARGUMENT;
    if (taken != out) *out = *taken;
    return KVT_OK;
}

/* Takes one tier's devices into `to`; NULL, or the fault. */
static const char *given_take_tier(kvt_tier_options *tier, kvt_device_config *to)
{
    const unsigned char *from = (const unsigned char *)tier->devices;
    if (tier->device_count == 0) return NULL;
    if (from == NULL) return "a tier has a device_count but no devices";
    uint32_t distance = struct_size_of(from);
    for (uint32_t i = 0; i < tier->device_count; i++, from += distance) {
        /* The first item's size is checked before the second is looked for. */
        if (struct_size_of(from) != distance ||
            given_device_take((const kvt_device_config *)(const void *)from, &to[i]) != KVT_OK)
            return "a device's struct_size is not one that this library knows";
    }
    tier->devices = to;
    return NULL;
}

/* The fault of a tier that cannot be had, or NULL. */
static const char *given_tier_fault(const kvt_store_options *options)
{
    static const uint8_t zeros[sizeof options->reserved];
    if (memcmp(options->reserved, zeros, sizeof zeros) != 0)
        return "the reserved fields of the options are not zero";
    for (int i = KVT_TIER_NONE; i < KVT_TIER_PLACES; i++) {
        const kvt_tier_options *tier = &options->tiers[i];
        bool absent = i == KVT_TIER_NONE || i >= KVT_TIER_COUNT;
        if (absent && (tier->capacity_bytes != 0 || tier->device_count != 0))
            return "a tier is asked for that this version does not have";
        if ((tier->reserved[0] | tier->reserved[1] | tier->reserved_word) != 0)
            return "the reserved fields of a tier's options are not zero";
    }
    return NULL;
}

/* Takes workers and devices in; options are this library's already. */
static kvt_status given_take_parts(given_options *out, const char **fault)
{
    kvt_store_options *options = &out->options;
    *fault = given_tier_fault(options);
    if (*fault != NULL) return KVT_E_UNSUPPORTED;
    if (options->codec_workers != NULL) {
        const kvt_codec_workers *workers =
            struct_size_in(options->codec_workers, &out->workers, sizeof out->workers,
                           STRUCT_SIZE_THROUGH(kvt_codec_workers, context));
        *fault = "codec_workers have no struct_size that this library knows";
        if (workers == NULL) return KVT_E_ARGUMENT;
        out->workers = *workers;
        options->codec_workers = &out->workers;
    }
    uint64_t count = 0;
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++) {
        *fault = "a tier has more than 64 devices";
        if (options->tiers[tier].device_count > TIERS_MEMBERS_MAX) return KVT_E_ARGUMENT;
        count += options->tiers[tier].device_count;
    }
    *fault = "no memory for the devices' configurations";
    out->devices = calloc(count + 1, sizeof *out->devices);
    if (out->devices == NULL) return KVT_E_MEMORY;
    kvt_device_config *to = out->devices;
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++) {
        *fault = given_take_tier(&options->tiers[tier], to);
        if (*fault != NULL) return KVT_E_ARGUMENT;
        to += options->tiers[tier].device_count;
    }
    return KVT_OK;
}

kvt_status given_options_take(const kvt_store_options *given, given_options *out, char *message,
                              size_t message_size)
{
    *out = (given_options){.devices = NULL};
    kvt_store_options_init(&out->options);
    const char *fault = "options were not made by kvt_store_options_init";
    kvt_status status = KVT_E_ARGUMENT;
    const kvt_store_options *taken = struct_size_in(given, &out->options, sizeof out->options,
                                                    STRUCT_SIZE_THROUGH(kvt_store_options, remote));
    if (taken != NULL) {
        if (taken != &out->options) out->options = *taken;
        status = given_take_parts(out, &fault);
    }
    if (status == KVT_OK) return KVT_OK;
    snprintf(message, message_size, "%s", fault);
    given_options_release(out);
    return status;
}

void given_options_release(given_options *taken)
{
    for (size_t i = 0; i < taken->text_count; i++)
        free(taken->texts[i]);
    free(taken->texts);
    free(taken->devices);
    *taken = (given_options){.devices = NULL};
}

/* Replaces one string by a copy of it; the texts have room. */
static bool given_keep(given_options *taken, const char **text)
{
    if (*text == NULL) return true;
    char *copy = strdup(*text);
    if (copy == NULL) return false;
    taken->texts[taken->text_count++] = copy;
    *text = copy;
    return true;
}

kvt_status given_options_keep(given_options *taken)
{
    kvt_store_options *options = &taken->options;
    const char **own[] = {&options->policy,
                          &options->durability.catalog_path,
                          &options->learning.profile_path,
                          &options->loss.ladder_model,
                          &options->loss.ladder_class,
                          &options->watch.path,
                          &options->tiers[KVT_TIER_HBM].slots,
                          &options->tiers[KVT_TIER_DRAM].slots,
                          &options->tiers[KVT_TIER_SSD].slots};
    const size_t own_count = sizeof own / sizeof own[0];
    size_t devices = 0;
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++)
        devices += options->tiers[tier].device_count;
    assert(taken->texts == NULL);
    taken->texts = calloc(own_count + 5 * devices, sizeof *taken->texts);
    bool kept = taken->texts != NULL;
    for (size_t i = 0; i < own_count && kept; i++)
        kept = given_keep(taken, own[i]);
    for (size_t i = 0; i < devices && kept; i++) {
        kvt_device_config *device = &taken->devices[i];
        kept = given_keep(taken, &device->name) && given_keep(taken, &device->backend) &&
               given_keep(taken, &device->path) && given_keep(taken, &device->key_file) &&
               given_keep(taken, &device->key_command);
    }
    return kept ? KVT_OK : KVT_E_MEMORY;
}
