/* SPDX-License-Identifier: Apache-2.0 */
/*
 * seal_header.c - reads and writes the two header slots of an encrypted device. All that counts of
 * a slot lies in one sector of 512 bytes, so that no write of it tears.
 *
 *      0  magic "KVTSEALD"        32  data offset u64      64  rows of 24 bytes: number u32, 0 u32,
 *      8  version u32 = 1         40  data bytes u64           check 16 bytes
 *     12  unit bytes u32 = 4096   48  sequence u64        504  XXH3-64 of bytes 0..503
 *     16  id, 16 bytes            56  rows u64
 *
 * Thread rule: as seal_header.h says.
 */
#include "seal_header.h"

#include "base/kill_point.h"
#include "tiers/devices/superblock.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum {
    HEADER_BYTES = 512,
    HEADER_VERSION = 1,
    HEADER_AT_ROWS = 64,
    HEADER_ROW_BYTES = 24,
    HEADER_AT_CHECKSUM = 504,
    HEADER_DATA_ALIGN = 128 << 10,
    HEADER_DATA_LEAST = 64 << 10
};

_Static_assert(HEADER_AT_ROWS + HEADER_ROW_BYTES * SEAL_KEYS_MAX <= HEADER_AT_CHECKSUM,
               "the rows fit");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the numbers are copied as they are");

static const char header_magic[8] = SEAL_HEADER_MAGIC;

static void header_encode(unsigned char *slot, const seal_header *header)
{
    const uint32_t version[2] = {HEADER_VERSION, SEAL_UNIT_BYTES};
    const uint64_t numbers[4] = {header->data_offset, header->data_bytes, header->sequence,
                                 header->count};
    memset(slot, 0, SEAL_UNIT_BYTES);
    memcpy(slot, header_magic, sizeof header_magic);
    memcpy(slot + 8, version, sizeof version);
    memcpy(slot + 16, header->id, sizeof header->id);
    memcpy(slot + 32, numbers, sizeof numbers);
    for (uint32_t i = 0; i < header->count; i++) {
        unsigned char *row = slot + HEADER_AT_ROWS + (size_t)HEADER_ROW_BYTES * i;
        memcpy(row, &header->rows[i].number, 4);
        memcpy(row + 8, header->rows[i].check, SEAL_CHECK_BYTES);
    }
    const uint64_t sum = XXH3_64bits(slot, HEADER_AT_CHECKSUM);
    memcpy(slot + HEADER_AT_CHECKSUM, &sum, sizeof sum);
}

/* Reads a slot; the device is not trusted. KVT_OK; KVT_E_VERSION; KVT_E_CORRUPT. */
static kvt_status header_decode(const unsigned char *slot, seal_header *out)
{
    uint64_t sum, numbers[4];
    uint32_t version[2];
    if (memcmp(slot, header_magic, sizeof header_magic) != 0) return KVT_E_CORRUPT;
    memcpy(&sum, slot + HEADER_AT_CHECKSUM, sizeof sum);
    if (sum != XXH3_64bits(slot, HEADER_AT_CHECKSUM)) return KVT_E_CORRUPT;
    memcpy(version, slot + 8, sizeof version);
    if (version[0] != HEADER_VERSION || version[1] != SEAL_UNIT_BYTES) return KVT_E_VERSION;
    memcpy(out->id, slot + 16, sizeof out->id);
    memcpy(numbers, slot + 32, sizeof numbers);
    if (numbers[0] < SEAL_BLOCKS_AT || numbers[0] % SEAL_UNIT_BYTES != 0 || numbers[1] == 0 ||
        numbers[1] % SEAL_UNIT_BYTES != 0 || numbers[1] > UINT64_MAX / 2 ||
        numbers[0] > UINT64_MAX / 2 || numbers[3] == 0 || numbers[3] > SEAL_KEYS_MAX ||
        (numbers[0] - SEAL_BLOCKS_AT) / SEAL_UNIT_BYTES <
            (numbers[1] + SEAL_BLOCK_SPAN - 1) / SEAL_BLOCK_SPAN)
        return KVT_E_CORRUPT;
    out->data_offset = numbers[0];
    out->data_bytes = numbers[1];
    out->sequence = numbers[2];
    out->count = (uint32_t)numbers[3];
    for (uint32_t i = 0; i < out->count; i++) {
        const unsigned char *row = slot + HEADER_AT_ROWS + (size_t)HEADER_ROW_BYTES * i;
        memcpy(&out->rows[i].number, row, 4);
        memcpy(out->rows[i].check, row + 8, SEAL_CHECK_BYTES);
        if (out->rows[i].number == 0) return KVT_E_CORRUPT;
    }
    return KVT_OK;
}

/* Each slot is read by itself, so that a bad sector in one leaves the other. */
kvt_status seal_header_read(kvt_device *inner, seal_header *out, seal_header_state *state_out)
{
    unsigned char *slot = aligned_alloc(SEAL_UNIT_BYTES, SEAL_UNIT_BYTES);
    kvt_status worst = KVT_OK;
    bool plain = false;
    memset(out, 0, sizeof *out);
    *state_out = SEAL_HEADER_NONE;
    if (slot == NULL) return KVT_E_MEMORY;
    for (uint64_t at = 0; at < SEAL_SLOTS_BYTES; at += SEAL_UNIT_BYTES) {
        seal_header found = {.count = 0};
        kvt_status status = kvt_device_transfer(inner, KVT_IO_READ, at, slot, SEAL_UNIT_BYTES);
        const bool readable = status == KVT_OK;
        if (readable) status = header_decode(slot, &found);
        if (status == KVT_OK &&
            (*state_out == SEAL_HEADER_NONE || found.sequence > out->sequence)) {
            *out = found;
            *state_out = SEAL_HEADER_SOUND;
        }
        plain = plain || (readable && memcmp(slot, TIERS_LABEL_MAGIC, 8) == 0);
        if (status == KVT_E_VERSION || !readable) worst = worst == KVT_E_VERSION ? worst : status;
    }
    free(slot);
    if (*state_out == SEAL_HEADER_SOUND && worst != KVT_E_VERSION) return KVT_OK;
    if (worst == KVT_OK && plain) *state_out = SEAL_HEADER_PLAIN;
    return worst;
}

kvt_status seal_header_write(kvt_device *inner, seal_header *header)
{
    unsigned char *slot = aligned_alloc(SEAL_UNIT_BYTES, SEAL_UNIT_BYTES);
    if (slot == NULL) return KVT_E_MEMORY;
    header->sequence++;
    header_encode(slot, header);
    kvt_status status =
        kvt_device_transfer(inner, KVT_IO_WRITE, header->sequence % 2 == 0 ? SEAL_UNIT_BYTES : 0,
                            slot, SEAL_UNIT_BYTES);
    KILL_POINT("seal: header written, not synced");
    if (status == KVT_OK) status = kvt_device_sync(inner);
    free(slot);
    return status;
}

bool seal_header_plan(seal_header *header, uint64_t capacity_bytes)
{
    const uint64_t blocks = capacity_bytes / SEAL_BLOCK_SPAN + 1;
    const uint64_t least = SEAL_BLOCKS_AT + blocks * SEAL_UNIT_BYTES;
    header->data_offset = (least + HEADER_DATA_ALIGN - 1) / HEADER_DATA_ALIGN * HEADER_DATA_ALIGN;
    if (capacity_bytes < header->data_offset + HEADER_DATA_LEAST) return false;
    header->data_bytes = (capacity_bytes - header->data_offset) / SEAL_UNIT_BYTES * SEAL_UNIT_BYTES;
    return true;
}

kvt_status seal_header_check(const seal_header *header, const uint8_t key[SEAL_KEY_BYTES],
                             uint8_t check_out[SEAL_CHECK_BYTES])
{
    static const char info[] = "kvterrace key check 1";
    uint8_t derived[SEAL_KEY_BYTES];
    const kvt_status status = seal_derive(key, SEAL_KEY_BYTES, header->id, sizeof header->id, info,
                                          sizeof info - 1, derived);
    memcpy(check_out, derived, SEAL_CHECK_BYTES);
    return status;
}
