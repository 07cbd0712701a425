/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bringup.h - the steps of a device before a pool owns it: open, read the label, measure, write the
 * label. Each step is a watchdog call (tiers/devices/watchdog.h): for a device that does not answer
 * within its timeout the step returns KVT_E_GONE and sets *device to NULL. Such a device is closed
 * when it answers.
 *
 * Thread rule: any thread; one at a time for a device.
 */
#ifndef STORE_BRINGUP_H
#define STORE_BRINGUP_H

#include "store/core/store.h"
#include "store/learn/costs.h"

#include "tiers/devices/device_ops.h"
#include "tiers/devices/superblock.h"

/* As kvt_device_open, with a message. Making a file takes as long as it takes, and so do devices
 * without a path, as memory. */
KVT_NODISCARD kvt_status bringup_open(const kvt_device_config *config, kvt_device **device_out,
                                      char *message, size_t message_size);

/* As tiers_superblock_read, _torn and _write. timeout_ns as kvt_device_config has it. */
KVT_NODISCARD kvt_status bringup_read_label(kvt_device **device, uint64_t timeout_ns,
                                            tiers_superblock *out, tiers_label_state *state_out);
KVT_NODISCARD kvt_status bringup_label_torn(kvt_device **device, uint64_t timeout_ns,
                                            const tiers_superblock *label, bool *torn_out);
KVT_NODISCARD kvt_status bringup_write_label(kvt_device **device, uint64_t timeout_ns,
                                             const tiers_superblock *label);

/* As costs_probe_device. */
KVT_NODISCARD kvt_status bringup_measure(kvt_device **device, uint64_t timeout_ns, bool blank,
                                         uint64_t head_bytes, cost_device *out);

#endif
