/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rebuild.c - kvt_store_recover: a new catalog from the labels and placement notes on the SSD
 * devices.
 *
 *     labels -> which members count -> pool -> scan -> draft -> choose -> publish
 *
 * The devices are opened as a store opens them, so none can be open elsewhere, but without
 * trimming, and nothing is written to them.
 *
 * Thread rule: the caller's thread; the scan has threads of its own.
 */
#include "store/catalog/rebuild.h"

#include "base/struct_size.h"
#include "store/core/given_options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void kvt_recover_options_init_sized(kvt_recover_options *options, uint32_t struct_size)
{
    const kvt_recover_options defaults = {0};
    options->struct_size = struct_size;
    struct_size_out(options, &defaults, sizeof defaults);
}

/* ---- devices ---- */

/* Opens a device and reads its label. KVT_OK, also when it cannot be used: then its state says why.
 * KVT_E_LOCKED; KVT_E_MEMORY. */
static kvt_status rebuild_open_device(rebuild_state *state, uint32_t member,
                                      tiers_superblock *label)
{
    const kvt_device_config *config = &state->store->tiers[KVT_TIER_SSD].devices[member];
    kvt_recover_device *device = &state->report->devices[member];
    tiers_member_options *options = &state->members[member];
    kvt_device_config own = *config;
    char reason[256] = "";
    tiers_label_state found = TIERS_LABEL_FOREIGN;
    own.trim = false;
    if (config->path != NULL) own.capacity_bytes = 0; /* the size it has, if it was cut off too */
    own.follow_symlinks = config->follow_symlinks || state->store->follow_symlinks;
    *options = tiers_member_options_of(config, NULL, 1, 1, NULL);
    options->reserved_head_bytes = TIERS_SUPERBLOCK_BYTES;
    snprintf(device->name, sizeof device->name, "%s", config->name != NULL ? config->name : "");
    device->state = KVT_RECOVER_MISSING;
    if (config->path != NULL && access(config->path, F_OK) != 0) return KVT_OK;
    kvt_status status = bringup_open(&own, &options->device, reason, sizeof reason);
    const bool keys = status == KVT_E_CONFIG || status == KVT_E_MISMATCH;
    if (status == KVT_E_LOCKED || status == KVT_E_MEMORY || status == KVT_E_ARGUMENT || keys) {
        snprintf(state->message, state->message_size, "%s", reason);
        return status;
    }
    if (status == KVT_OK)
        status = bringup_read_label(&options->device, config->timeout_ns, label, &found);
    if (status == KVT_E_MEMORY) return status;
    if (status != KVT_OK) return KVT_OK;
    device->state = KVT_RECOVER_FOREIGN;
    if (found == TIERS_LABEL_BLANK) device->state = KVT_RECOVER_BLANK;
    /* Serials begin with an epoch, and the catalog keeps them as signed numbers. */
    if (found != TIERS_LABEL_SOUND || label->tier != KVT_TIER_SSD || label->epoch >= INT32_MAX)
        return KVT_OK;
    device->member = label->member;
    device->epoch = label->epoch;
    state->labelled_bytes[member] = label->capacity_bytes;
    device->state = KVT_RECOVER_USED;
    return KVT_OK;
}

/* Judges the labels beside each other. One epoch behind the newest may be an open that was cut
 * short between two labels: the scan will show. */
static void rebuild_evaluate_labels(rebuild_state *state, const tiers_superblock *labels)
{
    kvt_recover_report *report = state->report;
    /* Choose the store that most members belong to; of equals the store of the first member. */
    uint32_t most = 0;
    for (uint32_t i = 0; i < state->member_count; i++) {
        uint32_t alike = 0;
        if (report->devices[i].state != KVT_RECOVER_USED) continue;
        for (uint32_t k = 0; k < state->member_count; k++) {
            alike += report->devices[k].state == KVT_RECOVER_USED &&
                     memcmp(labels[i].pool, labels[k].pool, sizeof labels[i].pool) == 0;
        }
        if (alike <= most) continue;
        most = alike;
        memcpy(report->pool, labels[i].pool, sizeof report->pool);
    }
    for (uint32_t i = 0; i < state->member_count; i++) {
        kvt_recover_device *device = &report->devices[i];
        if (device->state != KVT_RECOVER_USED) continue;
        if (memcmp(labels[i].pool, report->pool, sizeof report->pool) != 0) {
            device->state = KVT_RECOVER_FOREIGN;
        } else if (device->member != i) {
            device->state = KVT_RECOVER_MISPLACED;
        } else if (device->epoch > report->epoch) {
            report->epoch = device->epoch;
        }
    }
    for (uint32_t i = 0; i < state->member_count; i++) {
        kvt_recover_device *device = &report->devices[i];
        if (device->state != KVT_RECOVER_USED) continue;
        if (report->epoch - device->epoch > 1) device->state = KVT_RECOVER_STALE;
        if (device->state != KVT_RECOVER_USED) continue;
        state->used |= UINT64_C(1) << i;
        if (device->epoch != report->epoch)
            state->behind |= UINT64_C(1) << i;
        else if (labels[i].undone.count > state->undone.count)
            state->undone = labels[i].undone; /* first labels of devices have none */
    }
}

/* Excludes the members that are one epoch behind, when a record of the newest epoch was found: the
 * open of that epoch served, so these members missed it and are stale. */
static void rebuild_evaluate_behind(rebuild_state *state)
{
    kvt_recover_report *report = state->report;
    bool served = false;
    for (size_t i = 0; i < state->list.count; i++)
        served = served || state->list.found[i].serial >> 32 == report->epoch;
    if (!served) return;
    for (uint32_t i = 0; i < state->member_count; i++) {
        if ((state->behind >> i & 1) != 0) report->devices[i].state = KVT_RECOVER_STALE;
    }
    state->used &= ~state->behind;
    state->behind = 0;
}

/* ---- the call ---- */

/* The steps in order. KVT_MISS: nothing was found, and the catalog is as it was. */
static kvt_status rebuild_run(rebuild_state *state)
{
    kvt_recover_report *report = state->report;
    kvt_status status = state->options->dry_run ? KVT_OK : rebuild_hold_place(state);
    if (status == KVT_OK) {
        tiers_superblock *labels = calloc(TIERS_MEMBERS_MAX, sizeof *labels);
        status = labels != NULL ? KVT_OK : KVT_E_MEMORY;
        for (uint32_t i = 0; i < state->report->device_count && status == KVT_OK; i++) {
            state->member_count++;
            status = rebuild_open_device(state, i, &labels[i]);
        }
        if (status == KVT_OK) rebuild_evaluate_labels(state, labels);
        free(labels);
    }
    if (status == KVT_OK && state->used == 0) return KVT_MISS;
    if (status == KVT_OK) {
        /* The pool takes over the devices that count. */
        const tiers_pool_options options = {.unit_bytes = 0};
        for (uint32_t i = 0; i < state->member_count; i++) {
            tiers_member_options *member = &state->members[i];
            member->present = (state->used >> i & 1) != 0;
            if (member->present) continue;
            kvt_device_close(member->device);
            member->device = NULL;
        }
        status = tiers_pool_open(state->members, state->member_count, &options, &state->pool,
                                 state->message, state->message_size);
        for (uint32_t i = 0; i < state->member_count && status == KVT_OK; i++)
            state->members[i].device = NULL;
    }
    if (status == KVT_OK) status = rebuild_scan(state);
    if (status != KVT_OK) return status;
    rebuild_evaluate_behind(state);
    if (!state->options->dry_run) status = rebuild_draft_open(state);
    if (status == KVT_OK) status = rebuild_choose(state);
    if (status == KVT_OK && report->entries == 0) return KVT_MISS;
    if (status == KVT_OK && !state->options->dry_run) status = rebuild_publish(state);
    return status;
}

kvt_status kvt_store_recover(const kvt_store_options *store, const kvt_recover_options *options,
                             kvt_recover_report *report, char *message, size_t message_size)
{
    char unread[256];
    if (message == NULL || message_size == 0) {
        message = unread;
        message_size = sizeof unread;
    }
    message[0] = '\0';
    kvt_recover_options whole = {0};
    options = struct_size_in(options, &whole, sizeof whole,
                             STRUCT_SIZE_THROUGH(kvt_recover_options, context));
    if (options == NULL ||
        !struct_size_is_sound(report, STRUCT_SIZE_THROUGH(kvt_recover_report, too_large)))
        return KVT_E_ARGUMENT;
    given_options given;
    kvt_status status = given_options_take(store, &given, message, message_size);
    if (status != KVT_OK) return status;
    kvt_recover_report filled = {0};
    rebuild_state state = {.store = &given.options,
                           .options = options,
                           .report = &filled,
                           .message = message,
                           .message_size = message_size};
    const uint32_t devices = given.options.tiers[KVT_TIER_SSD].device_count;
    if (given.options.durability.catalog_path == NULL || devices == 0) {
        status = KVT_E_ARGUMENT;
        snprintf(message, message_size, "%s",
                 devices == 0 && given.options.durability.catalog_path != NULL
                     ? "no SSD device is configured"
                     : "store.catalog is not set");
    } else {
        filled.device_count = devices;
        status = rebuild_run(&state);
    }
    /* Close everything; a draft that was not published is removed. */
    rebuild_discard(&state);
    (void)tiers_pool_close(state.pool);
    for (uint32_t i = 0; i < state.member_count; i++)
        kvt_device_close(state.members[i].device);
    free(state.list.found);
    /* Every configured device was used and read in whole. */
    filled.complete = (status == KVT_OK || status == KVT_MISS) && filled.unreadable_bytes == 0;
    for (uint32_t i = 0; i < filled.device_count; i++)
        filled.complete = filled.complete && filled.devices[i].state == KVT_RECOVER_USED;
    if (status == KVT_MISS) {
        snprintf(message, message_size,
                 "nothing could be recovered: %llu header slots found on the devices that count",
                 (unsigned long long)filled.headers);
    } else if (status != KVT_OK && message[0] == '\0') {
        snprintf(message, message_size, "%s", kvt_status_text(status));
    }
    given_options_release(&given);
    struct_size_out(report, &filled, sizeof filled);
    return status;
}
