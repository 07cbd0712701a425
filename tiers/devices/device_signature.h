/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_signature.h - whether a drive carries a file system, an array member or a partition table
 * whose marks lie outside the place where our label goes.
 *
 * Marks in the first 8 KiB (partition tables, ext, XFS, swap, LVM, LUKS) are seen by the reading of
 * the label (superblock.h); this file looks for the others.
 *
 * Thread rule: as device_ops.h.
 */
#ifndef TIERS_DEVICE_SIGNATURE_H
#define TIERS_DEVICE_SIGNATURE_H

#include "device_internal.h"

/* Reads the places by `run`, which makes one blocking transfer; what cannot be read carries
 * nothing. `drive_bytes` is the size of the whole drive, of which the device may use less, and
 * `block` has TIERS_SIGNATURE_BYTES, aligned to as much. */
bool tiers_signature_found(kvt_device *device, void (*run)(kvt_device *, kvt_io *, uint32_t),
                           uint64_t drive_bytes, void *block);

enum { TIERS_SIGNATURE_BYTES = 4096 };

#endif
