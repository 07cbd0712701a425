/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rekey.c - kvt_store_rekey: the encrypted devices of a closed store under their current keys.
 *
 * A device is opened as a store opens it, so none can be open elsewhere, but never made.
 *
 * Thread rule: the caller's thread.
 */
#include "base/struct_size.h"
#include "store/core/bringup.h"
#include "store/core/given_options.h"
#include "tiers/seal/seal_device.h"

#include <kvterrace/recover.h>

#include <stdio.h>
#include <unistd.h>

typedef struct rekey_state {
    bool (*progress)(void *context, const char *device, uint64_t done, uint64_t total);
    void *context;
    const char *device;
    kvt_rekey_report report;
    char *message;
    size_t message_size;
} rekey_state;

static bool rekey_take_progress(void *context, uint64_t done, uint64_t total)
{
    const rekey_state *state = context;
    return state->progress(state->context, state->device, done, total);
}

static kvt_status rekey_device(rekey_state *state, const kvt_store_options *options,
                               const kvt_device_config *config)
{
    kvt_device *device = NULL;
    kvt_device_config own = *config;
    tiers_rekeyed done = {.units = 0};
    state->device = config->name;
    own.capacity_bytes = 0; /* the size it has, if it was cut off too */
    own.follow_symlinks = config->follow_symlinks || options->follow_symlinks;
    if (access(config->path, F_OK) != 0) {
        snprintf(state->message, state->message_size, "device %s: %s is not there", config->name,
                 config->path);
        return KVT_E_GONE;
    }
    kvt_status status = bringup_open(&own, &device, state->message, state->message_size);
    if (status != KVT_OK) return status;
    state->message[0] = '\0';
    status = tiers_seal_rekey(device, state->progress != NULL ? rekey_take_progress : NULL, state,
                              &done);
    kvt_device_close(device);
    state->report.devices += status == KVT_OK;
    state->report.changed_bytes += done.units * TIERS_SEAL_UNIT_BYTES;
    state->report.damaged_bytes += done.bad * TIERS_SEAL_UNIT_BYTES;
    if (status != KVT_OK)
        snprintf(state->message, state->message_size, "device %s: %s", config->name,
                 kvt_status_text(status));
    return status;
}

kvt_status
kvt_store_rekey(const kvt_store_options *store,
                bool (*progress)(void *context, const char *device, uint64_t done, uint64_t total),
                void *context, kvt_rekey_report *report, char *message, size_t message_size)
{
    char unread[256];
    if (message == NULL || message_size == 0) {
        message = unread;
        message_size = sizeof unread;
    }
    message[0] = '\0';
    if (report == NULL ||
        !struct_size_is_sound(report, STRUCT_SIZE_THROUGH(kvt_rekey_report, damaged_bytes)))
        return KVT_E_ARGUMENT;
    rekey_state state = {
        .progress = progress, .context = context, .message = message, .message_size = message_size};
    given_options given;
    kvt_status status = given_options_take(store, &given, message, message_size);
    if (status != KVT_OK) return status;
    for (int tier = KVT_TIER_HBM; status == KVT_OK && tier < KVT_TIER_COUNT; tier++) {
        const kvt_tier_options *row = &given.options.tiers[tier];
        for (uint32_t i = 0; status == KVT_OK && i < row->device_count; i++)
            if (tiers_seal_is_asked(&row->devices[i]) && row->devices[i].path != NULL)
                status = rekey_device(&state, &given.options, &row->devices[i]);
    }
    given_options_release(&given);
    struct_size_out(report, &state.report, sizeof state.report);
    return status;
}
