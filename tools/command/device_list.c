/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_list.c - which devices are measured, and which of them may be overwritten. One thread.
 *
 * A file or block device that exists may hold anything, a kvterrace label or somebody else's bytes,
 * so it is only read unless store.format gives it up.
 */
#include "device_list.h"
#include "base/config_values.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LIST_MEMORY_BYTES (UINT64_C(256) << 20)

static bool list_exists(const char *path)
{
    return access(path, F_OK) == 0;
}

static bool list_may_overwrite(const kvt_device_config *config, bool format)
{
    bool has_content = strcmp(config->backend, "file") == 0 && list_exists(config->path);
    if (strcmp(config->backend, "nvme") == 0) has_content = true;
    return !has_content || format;
}

/* The device that a store makes for a tier without any. */
static void list_add_memory(device_list *list, kvt_tier tier, bool emulated,
                            uint64_t capacity_bytes)
{
    device_item *item = &list->items[list->count++];
    item->tier = tier;
    item->overwrite = true;
    item->config = (kvt_device_config){.struct_size = sizeof item->config,
                                       .name = kvt_tier_name((int)tier),
                                       .backend = tier == KVT_TIER_HBM ? "hbm" : "memory",
                                       .emulated = emulated,
                                       .capacity_bytes = capacity_bytes};
}

static kvt_status list_make_standard(const char *directory, uint64_t file_bytes, device_list *list,
                                     char *message, size_t message_size)
{
    list_add_memory(list, KVT_TIER_DRAM, false, LIST_MEMORY_BYTES);
    char folder[DEVICE_PATH_SIZE];
    int length = snprintf(folder, sizeof folder, "%s/kvterrace-XXXXXX", directory);
    if (length < 0 || (size_t)length >= sizeof folder || !mkdtemp(folder)) {
        (void)snprintf(message, message_size, "no folder for a test file in %.300s: %m", directory);
        return errno == ENOENT || errno == ENOTDIR ? KVT_E_GONE : KVT_E_IO;
    }
    memcpy(list->folder, folder, sizeof folder);
    length = snprintf(list->file, sizeof list->file, "%.*s/ssd0", (int)sizeof list->file - 8,
                      list->folder);
    if (length < 0) return KVT_E_IO;
    device_item *item = &list->items[list->count++];
    item->tier = KVT_TIER_SSD;
    item->overwrite = true;
    item->config = (kvt_device_config){.struct_size = sizeof item->config,
                                       .name = "ssd0",
                                       .backend = "file",
                                       .path = list->file,
                                       .capacity_bytes = file_bytes};
    return KVT_OK;
}

static kvt_status list_take_configured(const kvt_store_options *options, device_list *list,
                                       char *message, size_t message_size)
{
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++) {
        const kvt_tier_options *row = &options->tiers[tier];
        if (list->count + row->device_count + 1 > DEVICE_LIST_MAX) {
            (void)snprintf(message, message_size, "more than %u devices", DEVICE_LIST_MAX);
            return KVT_E_CONFIG;
        }
        for (uint32_t i = 0; i < row->device_count; i++) {
            device_item *item = &list->items[list->count++];
            item->tier = (kvt_tier)tier;
            item->config = row->devices[i];
            item->overwrite = list_may_overwrite(&item->config, options->format);
        }
        /* The store makes one memory device for such a tier; a part of it shows its speed. */
        if (row->device_count == 0 && row->capacity_bytes > 0 && tier != KVT_TIER_SSD) {
            list_add_memory(list, (kvt_tier)tier, row->emulated,
                            row->capacity_bytes < LIST_MEMORY_BYTES ? row->capacity_bytes
                                                                    : LIST_MEMORY_BYTES);
        }
    }
    return KVT_OK;
}

kvt_status device_list_make(kvt_config *config, const char *directory, uint64_t file_bytes,
                            device_list *list, char *message, size_t message_size)
{
    memset(list, 0, sizeof *list);
    bool configured =
        kvt_config_device_at(config, 0) != NULL || kvt_config_has(config, "tier.hbm.capacity") ||
        kvt_config_has(config, "tier.dram.capacity") || kvt_config_has(config, "tier.ssd.capacity");
    if (!configured) return list_make_standard(directory, file_bytes, list, message, message_size);
    kvt_store_options options = {.struct_size = sizeof options};
    kvt_status status =
        kvt_store_options_read(config, &options, &list->owner, message, message_size);
    if (status == KVT_OK) status = list_take_configured(&options, list, message, message_size);
    return status;
}

void device_list_free(device_list *list)
{
    if (list->file[0] != '\0') (void)unlink(list->file);
    if (list->folder[0] != '\0') (void)rmdir(list->folder);
    kvt_store_options_free(list->owner);
    memset(list, 0, sizeof *list);
}
