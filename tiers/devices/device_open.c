/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_open.c - the table of back ends, and opening a device by its configuration. Any thread;
 * the table is constant.
 */
#include "device_internal.h"
#include "tiers/seal/seal_device.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* The order is that of the public list, kvt_device_backend_at. `throttle` is missing, because it
 * wraps an open device and cannot be opened by name. */
static const kvt_device_ops *const device_backends[] = {
    &tiers_memory_ops, &tiers_hbm_ops,  &tiers_file_ops,
    &tiers_nvme_ops,   &tiers_null_ops, &tiers_sim_ops,
};

enum { DEVICE_BACKEND_COUNT = sizeof device_backends / sizeof device_backends[0] };

_Atomic(tiers_stand_in_find *) tiers_stand_in;

const kvt_device_ops *kvt_device_backend_at(size_t index)
{
    return index < DEVICE_BACKEND_COUNT ? device_backends[index] : NULL;
}

/* Whether a text of the configuration is there and not empty. NULL and "" mean the same in a
 * configuration. */
static bool device_text_set(const char *text)
{
    return text != NULL && text[0] != '\0';
}

/* A setting without effect is an error: it means that the caller thinks of another device. */
static kvt_status device_config_check(const kvt_device_config *config, const kvt_device_ops *ops,
                                      char *message, size_t message_size)
{
    bool is_file = strcmp(ops->name, "file") == 0;
    bool is_drive = is_file || strcmp(ops->name, "nvme") == 0;
    bool is_sim = strcmp(ops->name, "sim") == 0;
    const char *wrong = NULL;
    if (is_drive && !device_text_set(config->path)) wrong = "a file or nvme device needs a path";
    if (!is_drive && device_text_set(config->path)) wrong = "a path is only for file and nvme";
    if (!is_file && (config->buffered || config->sparse)) {
        wrong = "buffered and sparse are only for file devices";
    }
    if (!is_drive && (config->synchronous || config->trim)) {
        wrong = "synchronous and trim are only for file and nvme devices";
    }
    if (!is_drive && config->capacity_bytes == 0) wrong = "a capacity is required";
    if (is_sim && (config->read_bytes_per_s == 0 || config->write_bytes_per_s == 0)) {
        wrong = "a sim device needs read and write bandwidth";
    }
    if (strcmp(ops->name, "memory") != 0 && (config->on_node || config->node != 0)) {
        wrong = "a node is only for memory devices";
    }
    if (strcmp(ops->name, "hbm") != 0 && config->gpu != 0) wrong = "a gpu is only for hbm devices";
    if (tiers_seal_is_asked(config)) {
        if (!is_drive && strcmp(ops->name, "memory") != 0)
            wrong = "a key is only for file, nvme and memory devices";
        if (device_text_set(config->key_file) && device_text_set(config->key_command))
            wrong = "key_file and key_command are both set";
    }
    if (wrong == NULL) return KVT_OK;
    tiers_device_message(message, message_size, config, "%s", wrong);
    return KVT_E_ARGUMENT;
}

/* Opens the back end of the configuration, and wraps it with the throttle when it is capped. A sim
 * device applies the caps itself, in virtual time. On failure nothing stays open. */
static kvt_status device_open_checked(const kvt_device_config *config, bool reads,
                                      kvt_device **device_out, char *message, size_t message_size)
{
    tiers_stand_in_find *find = reads ? NULL : tiers_stand_in;
    const kvt_device_ops *stand_in = find != NULL ? find(config->backend) : NULL;
    const kvt_device_ops *ops = stand_in;
    for (size_t i = 0; ops == NULL && i < DEVICE_BACKEND_COUNT; i++)
        if (strcmp(device_backends[i]->name, config->backend) == 0) ops = device_backends[i];
    if (ops == NULL) {
        tiers_device_message(message, message_size, config,
                             "unknown back end '%s' (known: memory, hbm, file, nvme, null, sim)",
                             config->backend);
        return KVT_E_UNSUPPORTED;
    }
    assert(ops->struct_size >= sizeof *ops && ops->abi_version == KVT_DEVICE_ABI);
    kvt_status status = KVT_OK;
    if (stand_in == NULL) status = device_config_check(config, ops, message, message_size);
    if (status != KVT_OK) return status;

    if (reads && ops != &tiers_file_ops) {
        tiers_device_message(message, message_size, config, "only file devices have readers");
        return KVT_E_UNSUPPORTED;
    }
    kvt_device *device = NULL;
    status = reads ? tiers_file_open_reader(config, &device, message, message_size)
                   : ops->open(config, &device, message, message_size);
    if (status != KVT_OK) return status;
    bool capped = config->read_bytes_per_s | config->write_bytes_per_s | config->latency_ns;
    if (capped && (device->facts.flags & KVT_DEVICE_VIRTUAL_TIME) == 0) {
        kvt_device *inner = device;
        status = tiers_throttle_wrap(inner, config, &device);
        if (status != KVT_OK) {
            tiers_device_message(message, message_size, config, "no memory for the throttle");
            kvt_device_close(inner);
            return status;
        }
    }
    /* A drive that the configuration calls plain must not be encrypted, and the reverse. */
    kvt_device *inner = device;
    if (tiers_seal_is_asked(config))
        status = tiers_seal_wrap(inner, config, reads, &device, message, message_size);
    else if (stand_in == NULL && (device->facts.flags & KVT_DEVICE_DURABLE) != 0)
        status = tiers_seal_refuse(inner, config, message, message_size);
    if (status != KVT_OK) {
        kvt_device_close(inner);
        return status;
    }
    device->facts.depth_achieved = 0; /* that look does not count */
    *device_out = device;
    return KVT_OK;
}

static kvt_status device_open(const kvt_device_config *config, bool reads, kvt_device **device_out,
                              char *message, size_t message_size)
{
    char unread[256];
    assert(device_out != NULL);
    *device_out = NULL;
    if (message == NULL || message_size == 0) {
        message = unread;
        message_size = sizeof unread;
    }
    message[0] = '\0';
    if (config == NULL || config->struct_size != sizeof *config) {
        snprintf(message, message_size, "device: the configuration has another version's size");
        return KVT_E_ARGUMENT;
    }
    if (!device_text_set(config->name) || strlen(config->name) > 31) {
        snprintf(message, message_size, "device: a name has 1 to 31 characters");
        return KVT_E_ARGUMENT;
    }
    if (!device_text_set(config->backend)) {
        tiers_device_message(message, message_size, config, "no back end is named");
        return KVT_E_ARGUMENT;
    }
    return device_open_checked(config, reads, device_out, message, message_size);
}

kvt_status kvt_device_open(const kvt_device_config *config, kvt_device **device_out, char *message,
                           size_t message_size)
{
    return device_open(config, false, device_out, message, message_size);
}

kvt_status kvt_device_open_reader(const kvt_device_config *config, kvt_device **device_out,
                                  char *message, size_t message_size)
{
    return device_open(config, true, device_out, message, message_size);
}
