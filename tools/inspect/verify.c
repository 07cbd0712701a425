/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verify.c - a catalog's entries against the bytes on its devices.
 *
 * Devices are opened as the store opens them, but nothing is written and a file that is absent is
 * not made. Entries keep their extents adopted to the end, so two rows that claim one range show.
 */
#include "tools/inspect/inspect.h"

#include "codecs/record.h"
#include "store/catalog/catalog.h"
#include "tiers/devices/superblock.h"
#include "tiers/pool/pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct verify_walk {
    const kvt_store_options *options;
    const verify_observer *observer;
    verify_counts *counts;
    store_catalog *catalog;
    uint8_t pool_id[16];
    uint64_t epoch;
    tiers_member_options members[TIERS_MEMBERS_MAX];
    uint32_t member_count;
    bool absent[TIERS_MEMBERS_MAX]; /* missing, stale or not this store's */
    tiers_pool *pool;
    tiers_location **held; /* adopted, given back at the end */
    size_t held_count;
    size_t held_capacity;
    uint64_t total;
    basis_needs needs;
    void *buffer;
    uint64_t buffer_bytes;
    kvt_status status; /* what ended the walk */
    char *message;
    size_t message_size;
} verify_walk;

static void verify_fault_device(verify_walk *walk, uint32_t member, const char *reason)
{
    walk->absent[member] = true;
    walk->counts->devices_faulty++;
    walk->observer->fault(walk->observer->context,
                          walk->options->tiers[KVT_TIER_SSD].devices[member].name, NULL, reason);
}

/* Why a device's label does not let its content count, or NULL when it does. */
static const char *verify_judge_label(const verify_walk *walk, kvt_device *device, uint32_t member)
{
    tiers_superblock label;
    tiers_label_state state;
    kvt_status status = tiers_superblock_read(device, &label, &state);
    if (status != KVT_OK) return kvt_status_text(status);
    if (state == TIERS_LABEL_BLANK) return "has no label";
    if (state == TIERS_LABEL_FOREIGN) return "carries other bytes";
    if (memcmp(label.pool, walk->pool_id, sizeof label.pool) != 0) return "is of another store";
    if (label.tier != KVT_TIER_SSD || label.member != member) return "is another member";
    if (label.epoch != walk->epoch && label.epoch != walk->epoch + 1) return "is stale";
    return NULL;
}

static kvt_status verify_open_devices(verify_walk *walk)
{
    const kvt_tier_options *tier = &walk->options->tiers[KVT_TIER_SSD];
    char reason[256];
    for (uint32_t i = 0; i < tier->device_count; i++) {
        const kvt_device_config *config = &tier->devices[i];
        kvt_device *device = NULL;
        walk->members[i] = tiers_member_options_of(config, NULL, 1, 1, NULL);
        walk->members[i].reserved_head_bytes = TIERS_SUPERBLOCK_BYTES;
        walk->member_count++;
        if (config->path && access(config->path, F_OK) != 0) {
            verify_fault_device(walk, i, "is missing");
            continue;
        }
        kvt_status status = kvt_device_open(config, &device, reason, sizeof reason);
        if (status == KVT_E_LOCKED || status == KVT_E_MEMORY) {
            (void)snprintf(walk->message, walk->message_size, "%s", reason);
            return status;
        }
        const char *judged =
            status == KVT_OK ? verify_judge_label(walk, device, i) : (const char *)reason;
        if (judged) {
            verify_fault_device(walk, i, judged);
            kvt_device_close(device);
            continue;
        }
        walk->members[i].device = device;
        walk->members[i].present = true;
    }
    return KVT_OK;
}

/* The pool takes the devices over; before that they are this walk's to close. */
static kvt_status verify_open_pool(verify_walk *walk)
{
    const kvt_tier_options *tier = &walk->options->tiers[KVT_TIER_SSD];
    const tiers_pool_options options = {.unit_bytes = tier->unit_bytes};
    bool any = false;
    for (uint32_t i = 0; i < walk->member_count; i++)
        any = any || walk->members[i].present;
    if (!any) return KVT_OK; /* every entry will be reported */
    kvt_status status = tiers_pool_open(walk->members, walk->member_count, &options, &walk->pool,
                                        walk->message, walk->message_size);
    if (status == KVT_OK) {
        for (uint32_t i = 0; i < walk->member_count; i++)
            walk->members[i].device = NULL;
    }
    return status;
}

static kvt_status verify_need_buffer(verify_walk *walk, uint64_t bytes)
{
    if (bytes <= walk->buffer_bytes) return KVT_OK;
    free(walk->buffer);
    walk->buffer_bytes = 0;
    if (posix_memalign(&walk->buffer, TIERS_GRAIN_BYTES, bytes) != 0) {
        walk->buffer = NULL;
        return KVT_E_MEMORY;
    }
    walk->buffer_bytes = bytes;
    return KVT_OK;
}

static kvt_status verify_hold(verify_walk *walk, tiers_location *location)
{
    if (walk->held_count == walk->held_capacity) {
        size_t capacity = walk->held_capacity ? walk->held_capacity * 2 : 256;
        void *held = realloc(walk->held, capacity * sizeof(tiers_location *));
        if (!held) return KVT_E_MEMORY;
        walk->held = held;
        walk->held_capacity = capacity;
    }
    walk->held[walk->held_count++] = location;
    return KVT_OK;
}

/* Whether the basis that a record needs is beside the catalog. One that is not is a fault of the
 * basis, which is reported once; another one by the same digits is the record's. */
static const char *verify_judge_basis(const verify_walk *walk, const kvt_record_info *info)
{
    char reason[8];
    if (basis_files_serve_record(&walk->needs.files, info, reason, sizeof reason)) return NULL;
    for (uint32_t i = 0; i < walk->needs.files.count; i++)
        if (transform_hash_start(walk->needs.files.list[i]->hash) ==
            transform_hash_start(info->basis))
            return "needs another basis than the one by the same digits that is there";
    return NULL;
}

/* Checks the record in the buffer against its row; returns what is wrong, or NULL. */
static const char *verify_judge_record(const verify_walk *walk, const catalog_row *row)
{
    kvt_record_info info;
    kvt_status status = kvt_record_verify(walk->buffer, row->record_bytes, &info);
    if (status != KVT_OK) return kvt_status_text(status);
    if (memcmp(&info.spec.key, &row->key, sizeof row->key) != 0) return "is another entry's record";
    if (info.spec.generation != row->generation) return "is another generation's record";
    if (info.record_bytes != row->record_bytes) return "has another size than its row says";
    if (memcmp(&info.spec.layout, &row->layout, sizeof row->layout) != 0) {
        return "has another layout than its row says";
    }
    return verify_judge_basis(walk, &info);
}

static bool verify_on_absent_member(const verify_walk *walk, const tiers_location *location)
{
    for (uint32_t i = 0; i < location->share_count; i++) {
        uint32_t member = location->shares[i].member;
        if (member >= walk->member_count || walk->absent[member]) return true;
    }
    return false;
}

/* Reads and judges one row. Returns what is wrong, or NULL; running out of memory ends the walk. */
static const char *verify_row(verify_walk *walk, const catalog_row *row)
{
    tiers_location *location = NULL;
    if (!row->location) return "its row cannot be read";
    kvt_status status = tiers_location_unpack(row->location, row->location_bytes, &location);
    if (status == KVT_E_MEMORY) walk->status = status;
    if (status != KVT_OK) return "its location cannot be read";
    const char *reason = NULL;
    if (location->bytes != row->record_bytes) {
        reason = "its location and its size differ";
    } else if (!walk->pool || verify_on_absent_member(walk, location)) {
        reason = "a part of it is on a device that is not there";
    } else if (tiers_pool_adopt(walk->pool, location) != KVT_OK) {
        reason = "its extents are out of range or claimed twice";
    }
    if (reason) {
        tiers_location_free(location);
        return reason;
    }
    /* Its size is bounded now: the extents lie inside the devices. */
    walk->status = verify_hold(walk, location);
    if (walk->status != KVT_OK) {
        tiers_pool_forget(walk->pool, location);
        return kvt_status_text(walk->status);
    }
    walk->status = verify_need_buffer(walk, row->record_bytes);
    if (walk->status != KVT_OK) return kvt_status_text(walk->status);
    status =
        tiers_pool_transfer(walk->pool, KVT_IO_READ, location, walk->buffer, row->record_bytes);
    if (status != KVT_OK) return kvt_status_text(status);
    walk->counts->bytes_read += row->record_bytes;
    return verify_judge_record(walk, row);
}

static bool verify_visit(void *context, const catalog_row *row)
{
    verify_walk *walk = context;
    const verify_observer *observer = walk->observer;
    const char *reason = verify_row(walk, row);
    if (walk->status != KVT_OK) return false;
    walk->counts->entries++;
    if (reason) {
        walk->counts->faulty++;
        observer->fault(observer->context, NULL, &row->key, reason);
    } else {
        walk->counts->sound++;
    }
    if (observer->progress &&
        !observer->progress(observer->context, walk->counts->entries, walk->total)) {
        walk->status = KVT_E_CANCELLED;
        return false;
    }
    return true;
}

static bool verify_count_entry(void *context, const catalog_row *row)
{
    verify_walk *walk = context;
    walk->total++;
    if (row->location != NULL) walk->status = basis_needs_count(&walk->needs, row->variant);
    return walk->status == KVT_OK;
}

/* Looks at the bases that the rows need, and reports each. */
static kvt_status verify_look_at_bases(verify_walk *walk)
{
    kvt_status status = walk->status;
    if (status == KVT_OK)
        status = basis_needs_look(&walk->needs, walk->catalog, catalog_place(walk->catalog));
    for (uint32_t i = 0; status == KVT_OK && i < walk->needs.count; i++) {
        walk->counts->bases++;
        walk->counts->bases_faulty += walk->needs.items[i].state != BASIS_FILE_PRESENT;
        if (walk->observer->basis != NULL)
            walk->observer->basis(walk->observer->context, &walk->needs.items[i]);
    }
    return status;
}

static bool verify_count_device(void *context, const catalog_device *device)
{
    (void)device;
    ((verify_walk *)context)->counts->devices++;
    return true;
}

static void verify_close(verify_walk *walk)
{
    /* Not released: a device that trims would lose the records that were just found to be sound. */
    for (size_t i = 0; i < walk->held_count; i++)
        tiers_pool_forget(walk->pool, walk->held[i]);
    free(walk->held);
    free(walk->buffer);
    tiers_pool_close(walk->pool);
    basis_needs_free(&walk->needs);
    for (uint32_t i = 0; i < walk->member_count; i++)
        kvt_device_close(walk->members[i].device);
    catalog_close(walk->catalog);
}

kvt_status verify_store(const kvt_store_options *options, const verify_observer *observer,
                        verify_counts *counts_out, char *message, size_t message_size)
{
    memset(counts_out, 0, sizeof *counts_out);
    if (!options->durability.catalog_path) {
        (void)snprintf(message, message_size, "store.catalog is not set");
        return KVT_E_CONFIG;
    }
    if (options->tiers[KVT_TIER_SSD].device_count > TIERS_MEMBERS_MAX) {
        (void)snprintf(message, message_size, "more than %u devices", TIERS_MEMBERS_MAX);
        return KVT_E_CONFIG;
    }
    verify_walk walk = {.options = options,
                        .observer = observer,
                        .counts = counts_out,
                        .message = message,
                        .message_size = message_size};
    kvt_status status = catalog_open(options->durability.catalog_path, CATALOG_READ, &walk.catalog,
                                     message, message_size);
    if (status == KVT_MISS) {
        (void)snprintf(message, message_size, "%.300s: no such catalog",
                       options->durability.catalog_path);
        return KVT_E_GONE;
    }
    if (status != KVT_OK) return status;
    catalog_identity(walk.catalog, walk.pool_id, &walk.epoch);
    status = verify_open_devices(&walk);
    if (status == KVT_OK) status = verify_open_pool(&walk);
    if (status == KVT_OK) status = catalog_each_device(walk.catalog, verify_count_device, &walk);
    if (status == KVT_OK) status = catalog_each_entry(walk.catalog, verify_count_entry, &walk);
    if (status == KVT_OK) status = verify_look_at_bases(&walk);
    if (status == KVT_OK) status = catalog_each_entry(walk.catalog, verify_visit, &walk);
    if (status == KVT_OK) status = walk.status;
    verify_close(&walk);
    return status;
}
