/* SPDX-License-Identifier: Apache-2.0 */
/*
 * newcomer.c - see newcomer.h.
 *
 * Thread rule: any thread; one at a time for a device.
 */
#include "store/newcomer.h"

#include "tiers/devices/timeout.h"
#include "tiers/devices/watchdog.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* All that a step touches, so that it can be left alone with it. */
typedef struct newcomer {
    kvt_device *device;
    kvt_status status;
    kvt_device_config config; /* open: with the strings below */
    char *name;
    char *backend;
    char *path;
    char message[256];
    tiers_superblock label; /* read, torn, write */
    tiers_label_state found;
    bool torn;
    bool blank; /* measure */
    uint64_t head_bytes;
    cost_device cost;
} newcomer;

static void newcomer_free(newcomer *self)
{
    if (self == NULL) return;
    free(self->name);
    free(self->backend);
    free(self->path);
    free(self);
}

static void newcomer_late(void *state)
{
    newcomer *self = state;
    kvt_device_close(self->device);
    newcomer_free(self);
}

static void newcomer_run_open(void *state)
{
    newcomer *self = state;
    self->status =
        kvt_device_open(&self->config, &self->device, self->message, sizeof self->message);
}

static void newcomer_run_read(void *state)
{
    newcomer *self = state;
    self->status = tiers_superblock_read(self->device, &self->label, &self->found);
}

static void newcomer_run_torn(void *state)
{
    newcomer *self = state;
    self->status = tiers_superblock_torn(self->device, &self->label, &self->torn);
}

static void newcomer_run_write(void *state)
{
    newcomer *self = state;
    self->status = tiers_superblock_write(self->device, &self->label);
}

static void newcomer_run_measure(void *state)
{
    newcomer *self = state;
    self->status = costs_probe_device(self->device, self->blank, self->head_bytes, &self->cost);
}

/* Runs a step. KVT_OK: it has returned, and the newcomer is the caller's; KVT_E_GONE: it is not. */
static kvt_status newcomer_do(newcomer *self, tiers_watchdog_call *run, uint64_t timeout_ns)
{
    uint64_t limit_ns = timeout_ns != 0 ? timeout_ns : TIERS_TIMEOUT_NS_DEFAULT;
    return tiers_watchdog_run(run, newcomer_late, self, limit_ns) ? KVT_OK : KVT_E_GONE;
}

kvt_status newcomer_open(const kvt_device_config *config, kvt_device **device_out, char *message,
                         size_t message_size)
{
    bool storage = config->struct_size == sizeof *config && config->ops == NULL &&
                   config->name != NULL && config->backend != NULL && config->path != NULL;
    if (!storage) return kvt_device_open(config, device_out, message, message_size);
    *device_out = NULL;
    newcomer *self = calloc(1, sizeof *self);
    if (self == NULL) return KVT_E_MEMORY;
    self->name = strdup(config->name);
    self->backend = strdup(config->backend);
    self->path = strdup(config->path);
    kvt_status status = KVT_E_MEMORY;
    if (self->name == NULL || self->backend == NULL || self->path == NULL) goto out;
    self->config = *config;
    self->config.name = self->name;
    self->config.backend = self->backend;
    self->config.path = self->path;
    status = newcomer_do(self, newcomer_run_open, config->timeout_ns);
    if (status != KVT_OK) {
        snprintf(message, message_size, "device %s: %s does not answer", config->name,
                 config->path);
        return status;
    }
    status = self->status;
    *device_out = self->device;
    snprintf(message, message_size, "%s", self->message);
out:
    newcomer_free(self);
    return status;
}

/* A newcomer for a device that is open; NULL without memory. */
static newcomer *newcomer_of(kvt_device *device)
{
    newcomer *self = calloc(1, sizeof *self);
    if (self != NULL) self->device = device;
    return self;
}

kvt_status newcomer_read_label(kvt_device **device, uint64_t timeout_ns, tiers_superblock *out,
                               tiers_label_state *state_out)
{
    newcomer *self = newcomer_of(*device);
    if (self == NULL) return KVT_E_MEMORY;
    kvt_status status = newcomer_do(self, newcomer_run_read, timeout_ns);
    if (status != KVT_OK) {
        *device = NULL;
        return status;
    }
    status = self->status;
    *out = self->label;
    *state_out = self->found;
    newcomer_free(self);
    return status;
}

kvt_status newcomer_label_torn(kvt_device **device, uint64_t timeout_ns,
                               const tiers_superblock *label, bool *torn_out)
{
    newcomer *self = newcomer_of(*device);
    if (self == NULL) return KVT_E_MEMORY;
    self->label = *label;
    kvt_status status = newcomer_do(self, newcomer_run_torn, timeout_ns);
    if (status != KVT_OK) {
        *device = NULL;
        return status;
    }
    status = self->status;
    *torn_out = self->torn;
    newcomer_free(self);
    return status;
}

kvt_status newcomer_write_label(kvt_device **device, uint64_t timeout_ns,
                                const tiers_superblock *label)
{
    newcomer *self = newcomer_of(*device);
    if (self == NULL) return KVT_E_MEMORY;
    self->label = *label;
    kvt_status status = newcomer_do(self, newcomer_run_write, timeout_ns);
    if (status != KVT_OK) {
        *device = NULL;
        return status;
    }
    status = self->status;
    newcomer_free(self);
    return status;
}

kvt_status newcomer_measure(kvt_device **device, uint64_t timeout_ns, bool blank,
                            uint64_t head_bytes, cost_device *out)
{
    newcomer *self = newcomer_of(*device);
    if (self == NULL) return KVT_E_MEMORY;
    self->blank = blank;
    self->head_bytes = head_bytes;
    kvt_status status = newcomer_do(self, newcomer_run_measure, timeout_ns);
    if (status != KVT_OK) {
        *device = NULL;
        return status;
    }
    status = self->status;
    *out = self->cost;
    newcomer_free(self);
    return status;
}
