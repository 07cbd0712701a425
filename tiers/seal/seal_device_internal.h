/* SPDX-License-Identifier: Apache-2.0 */
/*
 * seal_device_internal.h - what the layer and the change of keys share.
 *
 * Thread rule: as seal_device.h says.
 */
#ifndef TIERS_DEVICE_SEAL_INTERNAL_H
#define TIERS_DEVICE_SEAL_INTERNAL_H

#include "seal_vault.h"
#include "tiers/devices/device_layer.h"

#include <stdatomic.h>

/* The head of an encrypted device. */
typedef struct seal_core {
    tiers_layer layer;
    seal_vault vault;
    bool formatted;       /* else nothing was ever written, and the header is to be made */
    uint32_t rekeys;      /* changes of entries past the layer */
    atomic_ullong faults; /* units that were not what was written */
} seal_core;

extern const kvt_device_ops tiers_seal_ops;

/* Ends a change of keys that was cut off: what its journal has goes to its place. Blocking, nothing
 * is in flight. KVT_OK; KVT_E_IO, KVT_E_GONE, KVT_E_READ_ONLY; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status seal_journal_replay(kvt_device *inner, const seal_header *header);

#endif
