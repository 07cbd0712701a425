/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bringup.c - runs each step of a device's bring-up (open, read label, measure, write label) as a
 * watchdog call, so that a device that hangs ends the step and not the opener.
 *
 * Thread rule: any thread; one at a time for a device.
 */
#include "store/core/bringup.h"
#include "store/learn/costs.h"

#include "tiers/devices/watchdog.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Everything that a step touches. The opener abandons it to the step when the device hangs, so a
 * step must not touch memory of the opener. */
typedef struct bringup {
    kvt_device *device;
    kvt_status status;
    kvt_device_config config; /* open: with the strings below */
    char *name;
    char *backend;
    char *path;
    char *key_file;
    char *key_command;
    char message[256];
    tiers_superblock label; /* read, torn, write */
    tiers_label_state found;
    bool torn;
    bool blank; /* measure */
    uint64_t head_bytes;
    cost_device cost;
} bringup;

/* Frees the call's own memory; the device is not touched. */
static void bringup_free(bringup *self)
{
    if (self == NULL) return;
    free(self->name);
    free(self->backend);
    free(self->path);
    free(self->key_file);
    free(self->key_command);
    free(self);
}

/* Runs on the step's thread when the device answers after the opener gave up: closes the device. */
static void bringup_late(void *state)
{
    bringup *self = state;
    kvt_device_close(self->device);
    bringup_free(self);
}

/* The steps. Each runs on the watchdog call's thread and touches `state` alone. */
static void bringup_run_open(void *state)
{
    bringup *self = state;
    self->status =
        kvt_device_open(&self->config, &self->device, self->message, sizeof self->message);
}

/* Steps of a bring-up, each on a thread of the watchdog: a step that does not return keeps the
 * bring-up, and the opener goes on without its device. */
static void bringup_run_read(void *state)
{
    bringup *self = state;
    self->status = tiers_superblock_read(self->device, &self->label, &self->found);
}

static void bringup_run_torn(void *state)
{
    bringup *self = state;
    self->status = tiers_superblock_torn(self->device, &self->label, &self->torn);
}

static void bringup_run_write(void *state)
{
    bringup *self = state;
    self->status = tiers_superblock_write(self->device, &self->label);
}

static void bringup_run_measure(void *state)
{
    bringup *self = state;
    self->status = costs_probe_device(self->device, self->blank, self->head_bytes, &self->cost);
}

/* Runs a step. KVT_OK: the step has returned and the caller owns the
 * bring-up again. KVT_E_GONE: the step still runs and owns bring-up and device; bringup_late frees
 * both. */
static kvt_status bringup_do(bringup *self, tiers_watchdog_call *run, uint64_t timeout_ns)
{
    return tiers_watchdog_run(run, bringup_late, self, timeout_ns) ? KVT_OK : KVT_E_GONE;
}

kvt_status bringup_open(const kvt_device_config *config, kvt_device **device_out, char *message,
                        size_t message_size)
{
    bool storage = config->name != NULL && config->backend != NULL && config->path != NULL;
    if (!storage) return kvt_device_open(config, device_out, message, message_size);
    *device_out = NULL;
    bringup *self = calloc(1, sizeof *self);
    if (self == NULL) return KVT_E_MEMORY;
    self->name = strdup(config->name);
    self->backend = strdup(config->backend);
    self->path = strdup(config->path);
    self->key_file = strdup(config->key_file != NULL ? config->key_file : "");
    self->key_command = strdup(config->key_command != NULL ? config->key_command : "");
    kvt_status status = KVT_E_MEMORY;
    if (self->name == NULL || self->backend == NULL || self->path == NULL ||
        self->key_file == NULL || self->key_command == NULL)
        goto out;
    self->config = *config;
    self->config.name = self->name;
    self->config.backend = self->backend;
    self->config.path = self->path;
    self->config.key_file = self->key_file;
    self->config.key_command = self->key_command;
    status = bringup_do(self, bringup_run_open,
                        config->timeout_ns != 0 ? config->timeout_ns : TIERS_TIMEOUT_NS_DEFAULT);
    if (status != KVT_OK) {
        snprintf(message, message_size, "device %s: %s does not answer", config->name,
                 config->path);
        return status;
    }
    status = self->status;
    *device_out = self->device;
    snprintf(message, message_size, "%s", self->message);
out:
    bringup_free(self);
    return status;
}

/* Runs a step on a device that is open; `step` has its arguments, and its results when the device
 * has answered. */
static kvt_status bringup_on(kvt_device **device, uint64_t timeout_ns, tiers_watchdog_call *run,
                             bringup *step)
{
    bringup *self = malloc(sizeof *self);
    if (self == NULL) return KVT_E_MEMORY;
    *self = *step;
    self->device = *device;
    kvt_status status = bringup_do(self, run, tiers_timeout_of(*device, timeout_ns));
    if (status != KVT_OK) {
        *device = NULL;
        return status;
    }
    *step = *self;
    bringup_free(self);
    return step->status;
}

kvt_status bringup_read_label(kvt_device **device, uint64_t timeout_ns, tiers_superblock *out,
                              tiers_label_state *state_out)
{
    bringup step = {.found = TIERS_LABEL_FOREIGN};
    const kvt_status status = bringup_on(device, timeout_ns, bringup_run_read, &step);
    *out = step.label;
    *state_out = step.found;
    return status;
}

kvt_status bringup_label_torn(kvt_device **device, uint64_t timeout_ns,
                              const tiers_superblock *label, bool *torn_out)
{
    bringup step = {.label = *label};
    const kvt_status status = bringup_on(device, timeout_ns, bringup_run_torn, &step);
    *torn_out = step.torn;
    return status;
}

kvt_status bringup_write_label(kvt_device **device, uint64_t timeout_ns,
                               const tiers_superblock *label)
{
    bringup step = {.label = *label};
    return bringup_on(device, timeout_ns, bringup_run_write, &step);
}

kvt_status bringup_measure(kvt_device **device, uint64_t timeout_ns, bool blank,
                           uint64_t head_bytes, cost_device *out)
{
    bringup step = {.blank = blank, .head_bytes = head_bytes};
    const kvt_status status = bringup_on(device, timeout_ns, bringup_run_measure, &step);
    if (status == KVT_OK) *out = step.cost;
    return status;
}
