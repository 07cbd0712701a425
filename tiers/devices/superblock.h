/* SPDX-License-Identifier: Apache-2.0 */
/*
 * superblock.h - the label of a durable device: which pool, which member, which epoch.
 *
 * Two slots of 4 KiB at offsets 0 and 4096 are written in turn, so that a torn write leaves the
 * older one. The epoch rises by one at every open of the pool. A device that was away during an
 * open carries an older epoch: what it holds is stale, and it is taken back empty.
 *
 * Open protocol (the store drives it; E = the catalog's epoch):
 *   1 read the label of every device; accept E, and E + 1 if it was announced (a crash between 2
 *     and 4); an older one is "stale", a newer one says that the catalog is: refused
 *   2 announce E + 1 in the catalog           3 write E + 1 to every device present
 *   4 write E + 1 to the catalog              5 serve
 * Objects on stale devices are dropped from the catalog before anything is served.
 *
 * Thread rule: as a device: one thread at a time.
 */
#ifndef TIERS_SUPERBLOCK_H
#define TIERS_SUPERBLOCK_H

#include "device_ops.h"

#define TIERS_SUPERBLOCK_BYTES 8192u      /* both slots; members reserve this much at their head */
#define TIERS_LABEL_BYTES      4096u      /* one slot, */
#define TIERS_LABEL_MAGIC      "KVTLABEL" /* and what it begins with, without the 0 */

#define TIERS_UNDONE_MAX 128u

/* Serials that the store gave away and listed nowhere when it was opened next: what was written
 * under them never counts again. Ascending; of more ranges than fit the oldest are forgotten. */
typedef struct tiers_undone {
    uint32_t count;
    struct {
        uint64_t after, before; /* neither is in the range */
    } ranges[TIERS_UNDONE_MAX];
} tiers_undone;

typedef struct tiers_superblock {
    uint8_t pool[16]; /* random id of the store */
    uint32_t tier;    /* kvt_tier */
    uint32_t member;  /* index in the tier */
    uint64_t epoch;   /* at least 1 */
    uint64_t capacity_bytes;
    tiers_undone undone;
} tiers_superblock;

typedef enum tiers_label_state {
    TIERS_LABEL_BLANK = 0,  /* both slots are zero: a new device */
    TIERS_LABEL_SOUND = 1,  /* at least one slot is valid; the newer one was returned */
    TIERS_LABEL_FOREIGN = 2 /* other bytes: somebody else's data, or both slots damaged */
} tiers_label_state;

/* KVT_OK; KVT_E_VERSION (sound, but of another format); KVT_E_IO, KVT_E_GONE; KVT_E_MEMORY. With
 * BLANK and FOREIGN *out is all zeros. */
KVT_NODISCARD kvt_status tiers_superblock_read(kvt_device *device, tiers_superblock *out,
                                               tiers_label_state *state_out);

/* Whether the device carries nothing but a part of its first label: sectors of 512 bytes that are
 * zero or this label's, as a power cut during the write leaves them. KVT_OK; KVT_E_IO, KVT_E_GONE;
 * KVT_E_MEMORY. */
KVT_NODISCARD kvt_status tiers_superblock_torn(kvt_device *device, const tiers_superblock *label,
                                               bool *torn_out);

/* Writes the slot that does not hold the newest label, then syncs. */
KVT_NODISCARD kvt_status tiers_superblock_write(kvt_device *device, const tiers_superblock *label);

#endif
