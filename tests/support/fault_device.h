/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fault_device.h - a device that misbehaves on order: wraps any other one, for tests and torture.
 *
 *     kvt_device *faulty;
 *     tiers_fault_open(disk, &faulty);                 disk now belongs to faulty
 *     tiers_fault_rule third_write = {.action = TIERS_FAULT_FAIL, .kinds = TIERS_FAULT_WRITES,
 *                                     .skip = 2, .hits = 1, .status = KVT_E_IO, .os_error = EIO};
 *     tiers_fault_add(faulty, &third_write);
 *
 * Without rules it is transparent. Everything is decided by counts and offsets, never by chance or
 * time, so a run repeats itself. The first rule that fires wins; later rules do not count that
 * operation.
 *
 * Thread rule: the device as device_ops.h; the tiers_fault_* functions below may be called by
 * any thread at any time between open and close.
 */
#ifndef SUPPORT_FAULT_DEVICE_H
#define SUPPORT_FAULT_DEVICE_H

#include "tiers/devices/device_ops.h"

typedef enum tiers_fault_action {
    TIERS_FAULT_FAIL = 1,  /* ends with status and os_error; no byte moves */
    TIERS_FAULT_FLIP = 2,  /* reads: one bit of what comes back is inverted */
    TIERS_FAULT_TEAR = 3,  /* writes: only the head reaches the device; ends with status, which
                              may be KVT_OK, as after a power cut */
    TIERS_FAULT_BUSY = 4,  /* submit answers KVT_BUSY */
    TIERS_FAULT_DELAY = 5, /* ends delay_ns later than it would */
    TIERS_FAULT_HANG = 6,  /* taken and not answered, and no byte moves, until the rules are
                              cleared; then it is done as if it had just come */
    TIERS_FAULT_EXIT = 7,  /* ends the calling thread inside submit, as a device's own code may */
} tiers_fault_action;

enum { TIERS_FAULT_READS = 1, TIERS_FAULT_WRITES = 2, TIERS_FAULT_SYNCS = 4 };

enum { TIERS_FAULT_RULES_MAX = 16 };

/* One order. Fields that the action does not name are ignored. skip and hits count the operations
 * that match kind and range, so a rule can hit the third write to a range and no other. */
typedef struct tiers_fault_rule {
    tiers_fault_action action;
    uint32_t kinds;      /* TIERS_FAULT_READS | ...; syncs only with FAIL and HANG */
    uint64_t offset;     /* only operations that touch [offset, offset + bytes) ... */
    uint64_t bytes;      /* ... or all, and syncs, when bytes is 0 */
    uint64_t skip;       /* matching operations let through first */
    uint64_t hits;       /* then so many are hit; 0 = all from there on */
    kvt_status status;   /* FAIL, TEAR */
    int os_error;        /* FAIL, TEAR */
    uint32_t torn_bytes; /* TEAR: head that is written, rounded down to the alignment */
    uint64_t flip_bit;   /* FLIP: bit number in the operation's buffer, modulo its length */
    uint64_t delay_ns;   /* DELAY */
} tiers_fault_rule;

typedef struct tiers_fault_counts {
    uint64_t reads; /* accepted operations, whether hit or not */
    uint64_t writes;
    uint64_t syncs;
    uint64_t hits; /* rules that fired, KVT_BUSY included */
    uint64_t hung; /* operations and syncs that hang now */
} tiers_fault_counts;

/* Wraps an open device; on success it belongs to the new one. KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status tiers_fault_open(kvt_device *inner, kvt_device **device_out);

/* Adds a rule behind the present ones. KVT_OK; KVT_E_SPACE (TIERS_FAULT_RULES_MAX are set). */
KVT_NODISCARD kvt_status tiers_fault_add(kvt_device *device, const tiers_fault_rule *rule);

/* Removes all rules, and lets what hangs go on. */
void tiers_fault_clear(kvt_device *device);

/* While gone, everything that is submitted, synced or still in flight ends with KVT_E_GONE. */
void tiers_fault_set_gone(kvt_device *device, bool gone);

/* Reads the counts since open; clearing the rules does not reset them. */
void tiers_fault_counts_get(kvt_device *device, tiers_fault_counts *out);

#endif
