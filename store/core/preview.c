/* SPDX-License-Identifier: Apache-2.0 */
/*
 * preview.c - what a store with given options would be, found without opening its devices: the room
 * of its tiers and its variants. The simulator and check-config ask.
 */
#include "store/core/open_internal.h"
#include "store/core/options.h"
#include "store/learn/costs.h"
#include "store/learn/ladder.h"
#include "store/learn/slot_sizes.h"

#include "tiers/devices/superblock.h"
#include "tiers/pool/pool.h"
#include "tiers/pool/stripe.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The size of a file or block device; 0 when it is not known. */
static uint64_t preview_size(const char *path)
{
    struct stat facts;
    if (path == NULL || stat(path, &facts) != 0) return 0;
    if (S_ISREG(facts.st_mode)) return (uint64_t)facts.st_size;
    if (!S_ISBLK(facts.st_mode)) return 0;
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    const off_t end = lseek(file, 0, SEEK_END);
    (void)close(file);
    return end > 0 ? (uint64_t)end : 0;
}

bool kvt_device_room(const kvt_device_config *device, uint64_t *bytes_out)
{
    const bool file = strcmp(device->backend, "file") == 0;
    uint64_t bytes = device->capacity_bytes;
    if (bytes == 0 && file) bytes = preview_size(device->path);
    if (bytes == 0) return false;
    const bool labelled = file || strcmp(device->backend, "nvme") == 0;
    const uint64_t head = labelled ? TIERS_SUPERBLOCK_BYTES : 0;
    *bytes_out = bytes > head ? (bytes - head) / TIERS_GRAIN_BYTES * TIERS_GRAIN_BYTES : 0;
    return true;
}

/* What a tier's devices hold, at most its capacity; without devices its capacity. */
static kvt_status preview_held(const kvt_tier_options *options, int tier, uint64_t *bytes_out,
                               char *message, size_t message_size)
{
    const uint64_t asked = options->capacity_bytes;
    uint64_t sum = 0;
    *bytes_out = asked / TIERS_GRAIN_BYTES * TIERS_GRAIN_BYTES;
    if (options->device_count == 0) return KVT_OK;
    for (uint32_t i = 0; i < options->device_count; i++) {
        const kvt_device_config *device = &options->devices[i];
        uint64_t bytes = 0;
        if (!kvt_device_room(device, &bytes)) {
            (void)snprintf(message, message_size,
                           "device.%s.capacity is not set, and its size is found by opening alone",
                           device->name);
            return KVT_E_CONFIG;
        }
        sum += bytes;
    }
    if (asked >
        sum + options->device_count * (uint64_t)(TIERS_SUPERBLOCK_BYTES + TIERS_GRAIN_BYTES)) {
        (void)snprintf(message, message_size,
                       "tier.%s.capacity: %llu bytes, but its devices hold %llu (labels left out)",
                       kvt_tier_name(tier), (unsigned long long)asked, (unsigned long long)sum);
        return KVT_E_CONFIG;
    }
    /* A tier as large as its devices means all of them. */
    *bytes_out = asked != 0 && asked < sum ? asked : sum;
    return KVT_OK;
}

kvt_status kvt_tier_room(const kvt_tier_options *options, int tier, uint64_t *bytes_out,
                         char *message, size_t message_size)
{
    const uint64_t unit = options->unit_bytes != 0 ? options->unit_bytes : TIERS_UNIT_BYTES_DEFAULT;
    const uint64_t ends = tiers_stripe_ends(options->device_count, unit);
    uint64_t held;
    const kvt_status status = preview_held(options, tier, &held, message, message_size);
    *bytes_out = held > ends ? held - ends : 0;
    return status;
}

kvt_status kvt_tier_check(const kvt_store_options *options, int tier, char *message,
                          size_t message_size)
{
    const kvt_tier_options *row = &options->tiers[tier];
    tiers_slot_size sizes[TIERS_SLOT_CLASSES_MAX];
    uint32_t count = 0;
    uint64_t room = 0, held = 0;
    char fault[160];
    kvt_status status = kvt_tier_room(row, tier, &room, message, message_size);
    if (status == KVT_OK) status = preview_held(row, tier, &held, message, message_size);
    if (status == KVT_OK && room == 0) {
        (void)snprintf(message, message_size,
                       "tier.%s is smaller than one stripe unit on each of its devices",
                       kvt_tier_name(tier));
        return KVT_E_CONFIG;
    }
    if (status == KVT_OK)
        status = learn_slot_sizes(row->slots, &options->loss.ladder_layout, sizes, &count, fault,
                                  sizeof fault);
    if (status != KVT_OK || count == 0 || sizes[count - 1].bytes <= held) return status;
    (void)snprintf(message, message_size, "tier.%s.slots: slots of %llu bytes, but it holds %llu",
                   kvt_tier_name(tier), (unsigned long long)sizes[count - 1].bytes,
                   (unsigned long long)held);
    return KVT_E_CONFIG;
}

kvt_status kvt_store_variants(const kvt_store_options *options, kvt_profile *profile,
                              kvt_cost_model *model, uint32_t *whole_out, char *message,
                              size_t message_size)
{
    char note[1] = "";
    kvt_store *store = calloc(1, sizeof *store);
    if (store == NULL) return KVT_E_MEMORY;
    store->forks = atomic_load(&base_fork_guard_count);
    pthread_mutex_init(&store->bases.lock, NULL);
    cost_profile costs = {.profile = profile,
                          .foreign = options->learning.profile_foreign,
                          .message = message,
                          .message_size = message_size};
    kvt_status status = ladder_open(store, options, profile, note, 0, message, message_size);
    if (status == KVT_OK) status = ladder_take_bases(store, profile, note, 0);
    costs.bases = bases_at_open(store);
    if (status == KVT_OK) status = open_variants(store, options, &costs);
    if (status == KVT_OK) {
        model->variant_count = store->costs.variant_count;
        memcpy(model->variants, store->costs.variants, sizeof model->variants);
        model->parallel_codecs = 1;
        *whole_out = store->whole_variants;
    }
    bases_close(store);
    free(store);
    return status;
}
