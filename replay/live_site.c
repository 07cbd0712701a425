/* SPDX-License-Identifier: Apache-2.0 */
/*
 * live_site.c - which devices were blank before a live run, and blanking them again after it.
 *
 * A device counts as blank when the bytes where a label goes are zero, as the store judges it. A
 * device that carried a label or other bytes is never touched here. A file that the run made is
 * removed. One thread.
 */
#include "live.h"
#include "policy/trial.h"
#include "store/core/store.h"
#include "tiers/devices/device_ops.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LIVE_LABEL_BYTES 8192u /* docs/FORMAT.md, device labels: both slots */
#define LIVE_LABEL_ALIGN 4096u

static bool live_is_zero(const uint8_t *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (bytes[i] != 0) return false;
    }
    return true;
}

/* Reads the label's place of an existing file or block device. */
static kvt_status live_read_head(kvt_device *device, uint8_t *head)
{
    if (device->facts.capacity_bytes < LIVE_LABEL_BYTES) return KVT_E_SPACE;
    return kvt_device_transfer(device, KVT_IO_READ, 0, head, LIVE_LABEL_BYTES);
}

/* A file that a store of this configuration would make. */
static bool live_is_absent(const kvt_device_config *config)
{
    if (config->backend == NULL || config->path == NULL) return false;
    if (strcmp(config->backend, "file") != 0) return false;
    return access(config->path, F_OK) != 0 && errno == ENOENT;
}

/* Whether the run may wipe the device: it is absent, or zeros stand where a label goes. */
static bool live_was_blank(const kvt_device_config *config, uint8_t *head)
{
    kvt_device *device = NULL;
    if (config->backend == NULL || config->path == NULL) return false;
    if (strcmp(config->backend, "file") != 0 && strcmp(config->backend, "nvme") != 0) return false;
    if (live_is_absent(config)) return true;
    bool blank = kvt_device_open(config, &device, NULL, 0) == KVT_OK &&
                 (device->facts.flags & KVT_DEVICE_FOREIGN) == 0 &&
                 live_read_head(device, head) == KVT_OK && live_is_zero(head, LIVE_LABEL_BYTES);
    kvt_device_close(device);
    return blank;
}

/* Zeroes a device's label. A device that is gone is no error. */
static kvt_status live_wipe_one(const kvt_device_config *config, uint8_t *head, char *message,
                                size_t message_size)
{
    kvt_device *device = NULL;
    if (access(config->path, F_OK) != 0) return KVT_OK;
    kvt_status status = kvt_device_open(config, &device, message, message_size);
    if (status != KVT_OK) return status;
    status = live_read_head(device, head);
    if (status == KVT_OK && !live_is_zero(head, LIVE_LABEL_BYTES)) {
        memset(head, 0, LIVE_LABEL_BYTES);
        status = kvt_device_transfer(device, KVT_IO_WRITE, 0, head, LIVE_LABEL_BYTES);
        if (status == KVT_OK) status = kvt_device_sync(device);
    }
    if (status != KVT_OK) {
        snprintf(message, message_size, "device %s: the label of this run stays on it: %s",
                 config->name, kvt_status_text(status));
    }
    kvt_device_close(device);
    return status;
}

kvt_status live_devices_note(live_devices *devices, const kvt_store_options *store)
{
    uint32_t next = 0;
    void *head = NULL;
    *devices = (live_devices){.store = store};
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++)
        devices->count += store->tiers[tier].device_count;
    devices->blank = calloc(2 * ((size_t)devices->count + 1), sizeof *devices->blank);
    if (devices->blank == NULL) return KVT_E_MEMORY;
    devices->absent = devices->blank + devices->count + 1;
    if (posix_memalign(&head, LIVE_LABEL_ALIGN, LIVE_LABEL_BYTES) != 0) return KVT_E_MEMORY;
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
        for (uint32_t i = 0; i < store->tiers[tier].device_count; i++, next++) {
            devices->absent[next] = live_is_absent(&store->tiers[tier].devices[i]);
            devices->blank[next] = live_was_blank(&store->tiers[tier].devices[i], head);
        }
    }
    free(head);
    return KVT_OK;
}

static kvt_status live_devices_wipe(live_devices *devices, char *message, size_t message_size)
{
    uint32_t next = 0;
    void *head = NULL;
    kvt_status first = KVT_OK;
    if (devices->blank == NULL) return KVT_OK;
    if (posix_memalign(&head, LIVE_LABEL_ALIGN, LIVE_LABEL_BYTES) != 0) {
        head = NULL;
        first = KVT_E_MEMORY;
        snprintf(message, message_size, "out of memory: the labels of this run stay");
    }
    for (int tier = 1; tier < KVT_TIER_COUNT && head != NULL; tier++) {
        for (uint32_t i = 0; i < devices->store->tiers[tier].device_count; i++, next++) {
            const kvt_device_config *config = &devices->store->tiers[tier].devices[i];
            if (!devices->blank[next]) continue;
            if (devices->absent[next] && unlink(config->path) == 0) continue;
            char reason[256] = "";
            kvt_status status = live_wipe_one(config, head, reason, sizeof reason);
            if (status == KVT_OK || first != KVT_OK) continue;
            first = status;
            snprintf(message, message_size, "%s", reason);
        }
    }
    free(head);
    free(devices->blank);
    *devices = (live_devices){.count = 0};
    return first;
}

/* ---- a run's own copy of the profile ---- */

/*
 * A store that keeps what it learns writes its profile. The runs of a comparison are to begin
 * alike and to leave nothing behind, so each one has a copy.
 */

void live_profile_remove(live_profile *copy)
{
    static const char *const parts[] = {"", "-wal", "-shm", "-journal"};
    if (copy->folder[0] == '\0') return;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        char path[sizeof copy->path + 16];
        (void)snprintf(path, sizeof path, "%s%s", copy->path, parts[i]);
        (void)unlink(path);
    }
    (void)rmdir(copy->folder);
    *copy = (live_profile){.path = ""};
}

kvt_status live_profile_make(live_profile *copy, const char *path, char *message,
                             size_t message_size)
{
    *copy = (live_profile){.source = path};
    if (path == NULL) return KVT_OK;
    (void)snprintf(copy->folder, sizeof copy->folder, "%s/kvterrace-live-%ld-XXXXXX", P_tmpdir,
                   (long)getpid());
    if (mkdtemp(copy->folder) == NULL) {
        copy->folder[0] = '\0';
        snprintf(message, message_size, "%s: no folder can be made for the run's profile",
                 P_tmpdir);
        return KVT_E_IO;
    }
    (void)snprintf(copy->path, sizeof copy->path, "%s/profile.db", copy->folder);
    kvt_profile *profile = NULL;
    /* Whose figures count is the store's to say. */
    kvt_status status = kvt_profile_open(path, KVT_PROFILE_READ | KVT_PROFILE_FOREIGN, &profile,
                                         message, message_size);
    if (status == KVT_MISS) {
        snprintf(message, message_size, "%.300s: no such profile", path);
        status = KVT_E_GONE;
    }
    if (status == KVT_OK) status = kvt_profile_copy(profile, copy->path, message, message_size);
    kvt_profile_close(profile);
    if (status != KVT_OK) live_profile_remove(copy);
    return status;
}

void live_profile_name_source(const live_profile *copy, char *message, size_t message_size)
{
    char *at = copy->path[0] != '\0' ? strstr(message, copy->path) : NULL;
    if (at == NULL) return;
    char *rest = strdup(at + strlen(copy->path));
    if (rest == NULL) return;
    (void)snprintf(at, message_size - (size_t)(at - message), "%s%s", copy->source, rest);
    free(rest);
}

kvt_status live_site_end(live_devices *devices, live_profile *copy, kvt_status status,
                         char *message, size_t message_size)
{
    char reason[256] = "";
    if (status != KVT_OK) live_profile_name_source(copy, message, message_size);
    live_profile_remove(copy);
    const kvt_status wiped = live_devices_wipe(devices, reason, sizeof reason);
    if (status != KVT_OK || wiped == KVT_OK) return status;
    snprintf(message, message_size, "%s", reason);
    return wiped;
}

void live_try(kvt_store *store, const policy_trial *trial)
{
    pthread_mutex_lock(&store->lock);
    policy_try(store->policy, trial);
    pthread_mutex_unlock(&store->lock);
}
