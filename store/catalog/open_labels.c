/* SPDX-License-Identifier: Apache-2.0 */
/*
 * open_labels.c - whose the devices of a store are: labels against the catalog (superblock.h has
 * the protocol).
 *
 * Nothing is written here but by open_read_rows, open_announce, open_write_labels and
 * open_write_epoch, in this order, once everything has been checked.
 *
 * Thread rule: the opener's thread.
 */
#include "base/kill_point.h"
#include "store/catalog/recovery.h"
#include "store/core/open_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The label of a device in one epoch of this store. */
static tiers_superblock open_label_of(const open_state *state, const open_device *device,
                                      uint64_t epoch)
{
    tiers_superblock label = {.tier = (uint32_t)device->tier,
                              .member = device->member,
                              .epoch = epoch,
                              .capacity_bytes = device->device->facts.capacity_bytes};
    memcpy(label.pool, state->pool_id, sizeof label.pool);
    return label;
}

/* Treats a device as blank that carries a part of this store's first label: a power cut left it. */
static kvt_status open_check_torn(open_state *state, open_device *device, tiers_label_state *found)
{
    kvt_status status = KVT_OK;
    if (*found != TIERS_LABEL_FOREIGN || state->store->catalog == NULL) return KVT_OK;
    for (uint64_t epoch = state->epoch; epoch <= state->epoch + 1; epoch++) {
        tiers_superblock label = open_label_of(state, device, epoch);
        bool torn = false;
        status = bringup_label_torn(&device->device, device->config.timeout_ns, &label, &torn);
        if (status != KVT_OK) return status;
        if (torn) *found = TIERS_LABEL_BLANK;
    }
    return KVT_OK;
}

/*
 * Compares a label of this store with the catalog. A label that is newer than the catalog's epochs
 * comes from a life that another catalog served: the present catalog was put back from a copy and
 * does not list the records on the devices.
 */
static kvt_status open_check_epoch(open_state *state, open_device *device, const char *name,
                                   uint64_t epoch)
{
    if (epoch <= catalog_opening(state->store->catalog)) {
        device->stale = epoch < state->epoch;
        device->blank = device->stale;
        return KVT_OK;
    }
    if (!state->options->format) {
        snprintf(state->message, state->message_size,
                 "catalog %s is older than device %s (epochs %llu, %llu): a copy that was put "
                 "back? kvterrace recover --replace makes a new one from the devices; store.format "
                 "gives up what they hold",
                 state->options->durability.catalog_path, name, (unsigned long long)state->epoch,
                 (unsigned long long)epoch);
        return KVT_E_MISMATCH;
    }
    device->blank = device->given_up = true;
    return KVT_OK;
}

/* Judges a device by its label: blank, ours, stale, or another owner's. Another owner's is refused
 * unless store.format is set. */
static kvt_status open_check_label(open_state *state, open_device *device)
{
    tiers_superblock label;
    tiers_label_state found;
    char name[32];
    snprintf(name, sizeof name, "%s", device->device->name);
    kvt_status status =
        bringup_read_label(&device->device, device->config.timeout_ns, &label, &found);
    if (status == KVT_E_VERSION && state->options->format) {
        status = KVT_OK;
        found = TIERS_LABEL_FOREIGN;
    }
    if (status == KVT_OK) status = open_check_torn(state, device, &found);
    if (status != KVT_OK) {
        snprintf(state->message, state->message_size, "device %s: its label cannot be read: %s",
                 name, kvt_status_text(status));
        return status;
    }
    bool ours = found == TIERS_LABEL_SOUND && state->store->catalog != NULL &&
                memcmp(label.pool, state->pool_id, sizeof label.pool) == 0 &&
                label.tier == (uint32_t)device->tier && label.member == device->member;
    if (ours && label.epoch >= state->epoch && label.undone.count > state->store->undone.count)
        state->store->undone = label.undone; /* first labels of devices have none */
    if (ours) return open_check_epoch(state, device, name, label.epoch);
    /* Some file systems begin behind the place of the label, so it looks blank. */
    if (found == TIERS_LABEL_BLANK && (device->device->facts.flags & KVT_DEVICE_FOREIGN) != 0)
        found = TIERS_LABEL_FOREIGN;
    device->new = found == TIERS_LABEL_BLANK;
    if (found != TIERS_LABEL_BLANK && !state->options->format) {
        snprintf(state->message, state->message_size,
                 "device %s holds %s; %sset store.format to take it over (its content is lost)",
                 name, found == TIERS_LABEL_SOUND ? "entries of another store" : "other bytes",
                 found == TIERS_LABEL_SOUND
                     ? "if they are this store's and its catalog was lost, kvterrace recover makes "
                       "a new one; else "
                     : "");
        return KVT_E_MISMATCH;
    }
    device->blank = device->given_up = true;
    return KVT_OK;
}

kvt_status open_check_labels(open_state *state)
{
    for (uint32_t i = 0; i < state->device_count; i++) {
        if (!state->devices[i].labelled) continue;
        kvt_status status = open_check_label(state, &state->devices[i]);
        if (status != KVT_OK) return status;
    }
    return KVT_OK;
}

/*
 * Refuses to open when rows lie on members that are blank or missing. Such a member is more likely
 * not mounted than given up, and opening without it would forget its entries. members is a mask;
 * name is the first one's.
 */
static kvt_status open_refuse_missing(open_state *state, uint64_t members, const char *name,
                                      const char *what)
{
    recover_found found = {0};
    if (state->options->format || state->store->catalog == NULL || members == 0) return KVT_OK;
    kvt_status status = recover_read(state->store, members, false, NULL, &found);
    if (status != KVT_OK || found.stale == 0) return status;
    snprintf(state->message, state->message_size,
             "device %s is %s, but the catalog lists %llu entries on it; bring it back, or set "
             "store.format to give them up",
             name, what, (unsigned long long)found.stale);
    return KVT_E_GONE;
}

/* SSD members that the catalog knows and the options do not name. */
typedef struct open_unnamed {
    uint32_t named; /* members below are in the options */
    uint64_t members;
    char first[sizeof((catalog_device *)0)->name];
} open_unnamed;

/* Notes one SSD device of the catalog that the options do not name. */
static bool open_visit_unnamed(void *context, const catalog_device *device)
{
    open_unnamed *unnamed = context;
    if (device->tier != KVT_TIER_SSD || device->member < unnamed->named || device->member >= 64)
        return true;
    if (unnamed->members == 0) memcpy(unnamed->first, device->name, sizeof unnamed->first);
    unnamed->members |= UINT64_C(1) << device->member;
    return true;
}

/* Refuses to open without an SSD device that was added while a store served and is not in the
 * options. A configuration without any SSD device is refused by open_read_rows. */
static kvt_status open_check_unnamed(open_state *state)
{
    open_unnamed unnamed = {.named = state->options->tiers[KVT_TIER_SSD].device_count};
    if (state->store->catalog == NULL || unnamed.named == 0) return KVT_OK;
    kvt_status status = catalog_each_device(state->store->catalog, open_visit_unnamed, &unnamed);
    if (status != KVT_OK) return status;
    return open_refuse_missing(state, unnamed.members, unnamed.first, "not configured");
}

/* SSD members whose file does not exist: seen before opening them, which would make the files. */
kvt_status open_check_missing(open_state *state)
{
    uint64_t members = 0;
    const kvt_tier_options *ssd = &state->options->tiers[KVT_TIER_SSD];
    for (uint32_t i = 0; i < ssd->device_count && i < TIERS_MEMBERS_MAX; i++) {
        const char *path = ssd->devices[i].path;
        if (path != NULL && access(path, F_OK) != 0) members |= UINT64_C(1) << i;
    }
    const char *name = members != 0 ? ssd->devices[__builtin_ctzll(members)].name : NULL;
    kvt_status status = open_refuse_missing(state, members, name, "missing");
    return status == KVT_OK ? open_check_unnamed(state) : status;
}

kvt_status open_check_new(open_state *state)
{
    uint64_t members = 0;
    for (uint32_t i = 0; i < state->device_count; i++) {
        const open_device *device = &state->devices[i];
        if (device->tier == KVT_TIER_SSD && device->new) members |= UINT64_C(1) << device->member;
    }
    const kvt_tier_options *ssd = &state->options->tiers[KVT_TIER_SSD];
    const char *name = members != 0 ? ssd->devices[__builtin_ctzll(members)].name : NULL;
    return open_refuse_missing(state, members, name, "blank");
}

kvt_status open_read_rows(open_state *state)
{
    uint64_t stale = 0;
    bool has_ssd = false;
    kvt_store *store = state->store;
    if (store->catalog == NULL) return KVT_OK;
    for (uint32_t i = 0; i < state->device_count; i++) {
        const open_device *device = &state->devices[i];
        if (device->tier != KVT_TIER_SSD) continue;
        has_ssd = true;
        /* Taken over empty: the catalog's rows on it are stale. */
        if (device->blank || !device->labelled) stale |= UINT64_C(1) << device->member;
    }
    recover_found found = {0};
    kvt_status status =
        recover_read(store, stale, has_ssd || state->options->format, &state->rows, &found);
    state->newest_serial = found.newest_serial;
    state->row_count = found.rows;
    if (status != KVT_OK) {
        open_say_catalog(state, status);
        return status;
    }
    if (found.rows != 0 && !has_ssd && !state->options->format) {
        snprintf(state->message, state->message_size,
                 "catalog %s lists %llu entries on SSD, but no SSD device is configured; set "
                 "store.format "
                 "to give them up",
                 state->options->durability.catalog_path, (unsigned long long)found.rows);
        return KVT_E_MISMATCH;
    }
    return KVT_OK;
}

/*
 * Serials above all that the catalog lists, and below this life's, are nobody's from now on: a
 * crash has undone their puts, or their entries have gone. Their records lie on the devices still,
 * and kvt_store_recover would take one for the newest of its key. Below the highest listed serial
 * there is no such record: before it got its serial, the deletion of what its key had was queued,
 * and with the row of the highest that deletion was committed, too.
 */
void open_note_undone(open_state *state)
{
    tiers_undone *undone = &state->store->undone;
    const uint64_t begin = (state->epoch + 1) << 32; /* of this life's serials */
    const uint64_t newest = state->newest_serial;
    if (state->store->catalog == NULL || state->epoch == 0) return;
    if (newest >= begin) return; /* a damaged row, which says nothing */
    while (undone->count > 0 && undone->ranges[undone->count - 1].after >= newest)
        undone->count--; /* the new range has it */
    if (undone->count == TIERS_UNDONE_MAX)
        memmove(&undone->ranges[0], &undone->ranges[1], --undone->count * sizeof undone->ranges[0]);
    undone->ranges[undone->count].after = newest;
    undone->ranges[undone->count++].before = begin;
}

/* The catalog knows of an epoch before a device carries it; else it would pass for an older one. */
kvt_status open_announce(open_state *state)
{
    store_catalog *catalog = state->store->catalog;
    if (catalog == NULL || catalog_opening(catalog) > state->epoch) return KVT_OK;
    kvt_status status = catalog_announce(catalog, state->epoch + 1);
    if (status != KVT_OK) open_say_catalog(state, status);
    return status;
}

kvt_status open_write_labels(open_state *state)
{
    state->labelling = true;
    for (uint32_t i = 0; i < state->device_count; i++) {
        open_device *device = &state->devices[i];
        if (!device->labelled) continue;
        tiers_superblock label = open_label_of(state, device, state->epoch + 1);
        if (!device->blank) label.undone = state->store->undone;
        char name[32];
        snprintf(name, sizeof name, "%s", device->device->name);
        kvt_status status = bringup_write_label(&device->device, device->config.timeout_ns, &label);
        if (status != KVT_OK) {
            snprintf(state->message, state->message_size, "device %s: cannot write its label: %s%s",
                     name, kvt_status_text(status),
                     status == KVT_E_SPACE
                         ? "; a sparse member needs 4 KiB free on its file system for that"
                         : "");
            return status;
        }
        KILL_POINT("open: one label written");
    }
    return KVT_OK;
}

kvt_status open_write_epoch(open_state *state)
{
    if (state->store->catalog == NULL) return KVT_OK;
    catalog_device *rows = calloc(state->device_count, sizeof *rows);
    if (rows == NULL) return KVT_E_MEMORY;
    size_t count = 0;
    for (uint32_t i = 0; i < state->device_count; i++) {
        const open_device *device = &state->devices[i];
        if (!device->labelled) continue;
        rows[count].tier = device->tier;
        rows[count].member = device->member;
        rows[count].capacity_bytes = device->device->facts.capacity_bytes;
        snprintf(rows[count].name, sizeof rows[count].name, "%s", device->device->name);
        count++;
    }
    kvt_status status = catalog_set_epoch(state->store->catalog, state->epoch + 1, rows, count);
    free(rows);
    if (status != KVT_OK) open_say_catalog(state, status);
    return status;
}

void open_say_catalog(const open_state *state, kvt_status status)
{
    snprintf(state->message, state->message_size, "catalog %s: %s%s",
             state->options->durability.catalog_path,
             status == KVT_E_CORRUPT ? "it is damaged" : kvt_status_text(status),
             status == KVT_E_CORRUPT || status == KVT_E_DATABASE
                 ? "; kvterrace recover --replace makes a new one from the devices"
                 : "");
}
