/* SPDX-License-Identifier: Apache-2.0 */
/*
 * seal_header.h - what an encrypted device says of itself: its id, where its data lie, and the
 * numbers of the keys that its units are under (docs/ENCRYPTION.md, Layout).
 *
 * Thread rule: as a device: one thread at a time.
 */
#ifndef TIERS_SEAL_HEADER_H
#define TIERS_SEAL_HEADER_H

#include "seal.h"
#include "seal_device.h"
#include "tiers/devices/device_ops.h"

#define SEAL_UNIT_BYTES   TIERS_SEAL_UNIT_BYTES
#define SEAL_BLOCK_UNITS  128u                                 /* whose entries one block has */
#define SEAL_BLOCK_SPAN   (SEAL_BLOCK_UNITS * SEAL_UNIT_BYTES) /* bytes of data of a block */
#define SEAL_SLOTS_BYTES  8192u                                /* both slots of the header */
#define SEAL_JOURNAL_AT   8192u                                /* a page, a block, its data */
#define SEAL_BLOCKS_AT    (SEAL_JOURNAL_AT + 2 * SEAL_UNIT_BYTES + SEAL_BLOCK_SPAN)
#define SEAL_CHECK_BYTES  16u
#define SEAL_HEADER_MAGIC "KVTSEALD" /* what a slot begins with, without the 0 */

/* What readers get in place of a damaged unit: no sound record, label or page has it. */
#define SEAL_POISON 0xEB

/* A master key as the device knows it. */
typedef struct seal_row {
    uint32_t number; /* at least 1; entries name it */
    uint8_t check[SEAL_CHECK_BYTES];
} seal_row;

typedef struct seal_header {
    uint8_t id[16]; /* random, of this formatting */
    uint64_t data_offset;
    uint64_t data_bytes;
    uint64_t sequence; /* of the write; the higher of two sound slots counts */
    uint32_t count;
    seal_row rows[SEAL_KEYS_MAX];
} seal_header;

typedef enum seal_header_state {
    SEAL_HEADER_NONE = 0,  /* neither; the header is zero */
    SEAL_HEADER_SOUND = 1, /* an encrypted device */
    SEAL_HEADER_PLAIN = 2  /* a store's label, not encrypted */
} seal_header_state;

/* KVT_OK; KVT_E_VERSION; KVT_E_IO, KVT_E_GONE; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status seal_header_read(kvt_device *inner, seal_header *out,
                                          seal_header_state *state_out);

/* Writes the slot that does not count, with the next sequence, and syncs. Nothing is in flight. */
KVT_NODISCARD kvt_status seal_header_write(kvt_device *inner, seal_header *header);

/* Lays out a device of a capacity. False: it is too small. */
bool seal_header_plan(seal_header *header, uint64_t capacity_bytes);

/* What a device says of a key in its header. KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status seal_header_check(const seal_header *header,
                                           const uint8_t key[SEAL_KEY_BYTES],
                                           uint8_t check_out[SEAL_CHECK_BYTES]);

#endif
