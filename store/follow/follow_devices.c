/* SPDX-License-Identifier: Apache-2.0 */
/*
 * follow_devices.c - the owner's devices, opened for reading beside it, and the bases beside its
 * catalog.
 *
 * A device counts that carries a label of the catalog's store, at the member's place. What its
 * epoch is does not matter here: each record proves itself.
 *
 * Thread rule: as follow_internal.h.
 */
#include "base/clock.h"
#include "store/follow/follow_internal.h"
#include "tiers/devices/superblock.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Why a device's content is not the followed store's, or NULL. */
static const char *devices_judge(const follow_devices *devices, kvt_device *device, uint32_t member)
{
    tiers_superblock label;
    tiers_label_state state;
    const kvt_status status = tiers_superblock_read(device, &label, &state);
    if (status != KVT_OK) return kvt_status_text(status);
    if (state != TIERS_LABEL_SOUND) return "it has no label";
    if (memcmp(label.pool, devices->pool_id, sizeof label.pool) != 0)
        return "it is another store's";
    if (label.tier != KVT_TIER_SSD || label.member != member) return "it is another member";
    return NULL;
}

/* Opens one device into *out; an absent one leaves why in the message, if that is empty. KVT_OK;
 * KVT_E_UNSUPPORTED; KVT_E_MEMORY. */
static kvt_status devices_open_one(const follow_store *store, follow_devices *devices,
                                   uint32_t member, tiers_member_options *out, char *message,
                                   size_t size)
{
    const kvt_device_config *config = &store->configs[member];
    char reason[256];
    kvt_device *device = NULL;
    struct stat facts;
    *out = tiers_member_options_of(config, NULL, 1, 1, NULL);
    out->reserved_head_bytes = TIERS_SUPERBLOCK_BYTES;
    if (config->path != NULL && stat(config->path, &facts) == 0) {
        devices->members[member].device = facts.st_dev;
        devices->members[member].inode = facts.st_ino;
    }
    kvt_status status = kvt_device_open_reader(config, &device, reason, sizeof reason);
    const char *fault = status == KVT_OK ? devices_judge(devices, device, member) : reason;
    if (fault == NULL) {
        out->device = device;
        out->present = true;
        devices->members[member].capacity_bytes = device->facts.capacity_bytes;
        return KVT_OK;
    }
    if (message[0] == '\0') {
        if (status == KVT_OK)
            (void)snprintf(message, size, "device %s: %s", config->name, fault);
        else
            (void)snprintf(message, size, "%s", fault);
    }
    kvt_device_close(device);
    return status == KVT_E_UNSUPPORTED || status == KVT_E_MEMORY ? status : KVT_OK;
}

kvt_status follow_devices_open(const follow_store *store, follow_devices **devices_out,
                               char *message, size_t size)
{
    tiers_member_options members[TIERS_MEMBERS_MAX];
    const tiers_pool_options options = {.unit_bytes = store->unit_bytes};
    uint64_t epoch;
    uint32_t count = 0, present = 0;
    kvt_status status = KVT_OK;
    assert(store->catalog != NULL && store->device_count <= TIERS_MEMBERS_MAX);
    message[0] = '\0';
    follow_devices *devices = calloc(1, sizeof *devices);
    if (devices == NULL) return KVT_E_MEMORY;
    devices->users = 1;
    devices->count = store->device_count;
    catalog_identity(store->catalog, devices->pool_id, &epoch);
    for (; count < store->device_count && status == KVT_OK; count++) {
        status = devices_open_one(store, devices, count, &members[count], message, size);
        present += members[count].present ? 1 : 0;
    }
    if (status == KVT_OK && present != 0)
        status = tiers_pool_open(members, count, &options, &devices->pool, message, size);
    if (status == KVT_OK) {
        *devices_out = devices;
        return KVT_OK;
    }
    for (uint32_t i = 0; i < count; i++)
        kvt_device_close(members[i].device);
    free(devices);
    return status;
}

bool follow_devices_moved(const follow_store *store, const follow_devices *devices)
{
    uint8_t pool_id[16];
    uint64_t epoch;
    if (store->catalog != NULL) {
        catalog_identity(store->catalog, pool_id, &epoch);
        if (memcmp(pool_id, devices->pool_id, sizeof pool_id) != 0) return true;
    }
    for (uint32_t i = 0; i < devices->count; i++) {
        struct stat facts;
        const char *path = store->configs[i].path;
        if (devices->members[i].capacity_bytes == 0) return true;
        if (path == NULL || stat(path, &facts) != 0) continue; /* there is nothing to change to */
        if (facts.st_dev != devices->members[i].device || facts.st_ino != devices->members[i].inode)
            return true;
    }
    return false;
}

bool follow_devices_hold(const follow_devices *devices, const tiers_location *location)
{
    if (devices->pool == NULL) return false;
    for (uint32_t i = 0; i < location->share_count; i++)
        if (location->shares[i].member >= devices->count ||
            devices->members[location->shares[i].member].capacity_bytes == 0)
            return false;
    /* The location is sound, so each extent is of a member with a share. */
    for (uint32_t i = 0; i < location->extent_count; i++) {
        const tiers_extent *extent = &location->extents[i];
        const uint64_t capacity = devices->members[extent->member].capacity_bytes;
        if (extent->bytes > capacity || extent->offset > capacity - extent->bytes) return false;
    }
    return true;
}

bool follow_devices_leave(follow_devices *devices)
{
    assert(devices->users > 0);
    return --devices->users == 0;
}

void follow_devices_close(follow_devices *devices)
{
    /* A pool whose device does not answer goes on alone until it does (pool.h). */
    (void)tiers_pool_close(devices->pool);
    free(devices);
}

/* ---- bases ---- */

static kvt_status bases_visit_file(void *context, const char *path, uint32_t start)
{
    follow_store *store = context;
    void *object = NULL;
    uint64_t bytes;
    for (uint32_t i = 0; i < store->base_count; i++)
        if (transform_hash_start(store->bases[i]->hash) == start) return KVT_OK;
    if (store->base_count == STORE_BASES_MAX) return KVT_OK;
    store_basis *basis = calloc(1, sizeof *basis);
    kvt_status status = basis == NULL ? KVT_E_MEMORY : bases_file_read(path, &object, &bytes);
    if (status == KVT_OK) status = basis_read(object, bytes, &basis->view, &basis->origin);
    if (status == KVT_OK && transform_hash_start(basis->view.hash) == start) {
        basis->object = object;
        basis->bytes = bytes;
        store->owned[store->base_count] = basis;
        store->bases[store->base_count++] = &basis->view;
        return KVT_OK;
    }
    /* One that is being written, or is damaged: gets that need it are KVT_E_MISMATCH. */
    free(object);
    free(basis);
    return KVT_OK;
}

void follow_bases_look(follow_store *store)
{
    const uint64_t now_ns = base_clock_ns();
    if (store->catalog == NULL || now_ns < store->bases_due_ns) return;
    store->bases_due_ns = now_ns + FOLLOW_PAUSE_NS;
    (void)!bases_file_each(catalog_place(store->catalog), bases_visit_file, store);
}
