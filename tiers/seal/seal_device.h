/* SPDX-License-Identifier: Apache-2.0 */
/*
 * seal_device.h - a layer that encrypts what a device holds (docs/ENCRYPTION.md). All above it sees
 * a device with somewhat less room, whose memory is nobody else's.
 *
 * Thread rule: as device_ops.h; the count of damaged units by any thread.
 */
#ifndef TIERS_DEVICE_SEAL_H
#define TIERS_DEVICE_SEAL_H

#include "tiers/devices/device_ops.h"

#define TIERS_SEAL_UNIT_BYTES 4096u

/* Whether a configuration asks for encryption. */
bool tiers_seal_is_asked(const kvt_device_config *config);

/* Wraps an open device. `reads`: for reading beside the process that has it, so nothing is written.
 * On success the inner device belongs to the new one. KVT_OK; KVT_E_CONFIG (key); KVT_E_MISMATCH
 * (another key; a device with a store's label that is not encrypted); KVT_E_UNSUPPORTED (no
 * libcrypto; blocks of more than 4 KiB); KVT_E_SPACE; KVT_E_VERSION; KVT_E_IO, KVT_E_GONE;
 * KVT_E_MEMORY. */
KVT_NODISCARD kvt_status tiers_seal_wrap(kvt_device *inner, const kvt_device_config *config,
                                         bool reads, kvt_device **device_out, char *message,
                                         size_t message_size);

/* For a device that is opened without a key: KVT_E_MISMATCH when it is encrypted. */
KVT_NODISCARD kvt_status tiers_seal_refuse(kvt_device *inner, const kvt_device_config *config,
                                           char *message, size_t message_size);

/* Units that were read and were not what was written, since the open; 0 for any other device. */
uint64_t tiers_seal_faults(const kvt_device *device);

/* Why the key file was not taken when a sync met it changed or gone, a static text; the device goes
 * on under the keys that it has. NULL: it was taken, or the device is another. The thread that
 * syncs. */
const char *tiers_seal_key_fault(const kvt_device *device);

typedef struct tiers_rekeyed {
    uint64_t units; /* that are under the current key now and were not */
    uint64_t bad;   /* damaged ones, which are left as they are */
} tiers_rekeyed;

/* Puts all units under the current key, and forgets the others. Nothing is in flight, and the
 * device is not attached. progress: bytes done and all; false ends the call; may be NULL. A call
 * that is cut off anywhere loses nothing, and the next one goes on. KVT_OK; KVT_E_UNSUPPORTED (not
 * an encrypted device); KVT_E_CANCELLED; KVT_E_IO, KVT_E_GONE, KVT_E_READ_ONLY; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status tiers_seal_rekey(kvt_device *device,
                                          bool (*progress)(void *context, uint64_t done,
                                                           uint64_t total),
                                          void *context, tiers_rekeyed *out);

#endif
