/* SPDX-License-Identifier: Apache-2.0 */
/*
 * superblock.c - reads and writes the two label slots at the head of a durable device.
 *
 * One slot is 4096 bytes, little-endian, the same in every format version as far as the first two
 * fields and the checksum go (docs/FORMAT.md, Superblock):
 *
 *      0  magic "KVTLABEL"        16  pool id, 16 bytes     48  capacity in bytes
 *      8  format version u32      32  tier u32              56  sequence u64
 *     12  slot bytes u32 = 4096   36  member u32            64  undone ranges u64
 *                                 40  epoch u64             72  each: after u64, before u64
 *                                                         4088  XXH3-64 of bytes 0..4087
 *
 * The sequence rises by one at every write and alone decides which slot is newer: a device that is
 * labelled for another pool starts there with a lower epoch than its old label may carry.
 *
 * The file checks the form of a label and never its meaning: whether pool, member and epoch are the
 * wanted ones is for the store.
 */
#include "superblock.h"
#include "base/kill_point.h"
#include "tiers/seal/seal_header.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum {
    SLOT_BYTES = TIERS_LABEL_BYTES,
    SLOT_SECTOR_BYTES = 512,
    SLOT_VERSION = 2,
    SLOT_AT_VERSION = 8,
    SLOT_AT_BYTES = 12,
    SLOT_AT_POOL = 16,
    SLOT_AT_TIER = 32,
    SLOT_AT_MEMBER = 36,
    SLOT_AT_EPOCH = 40,
    SLOT_AT_CAPACITY = 48,
    SLOT_AT_SEQUENCE = 56,
    SLOT_AT_UNDONE_COUNT = 64,
    SLOT_AT_UNDONE = 72,
    SLOT_AT_CHECKSUM = 4088
};

_Static_assert(SLOT_AT_UNDONE + 16 * TIERS_UNDONE_MAX <= SLOT_AT_CHECKSUM, "the ranges fit");
_Static_assert(2 * SLOT_BYTES == TIERS_SUPERBLOCK_BYTES, "two slots fill the head of a member");

static const char slot_magic[8] = TIERS_LABEL_MAGIC;

/* The state of one slot by its bytes; tiers_label_state is that of the device by both. */
typedef enum slot_state {
    SLOT_BLANK,
    SLOT_SOUND,
    SLOT_OTHER,     /* sound, of another format version */
    SLOT_DAMAGED,   /* other bytes */
    SLOT_UNREADABLE /* the device fails there */
} slot_state;

/* The judgment of one slot. sequence and label count only with SLOT_SOUND. */
typedef struct slot_reading {
    slot_state state;
    uint64_t sequence;
    tiers_superblock label;
} slot_reading;

/* Writes a little-endian number. The byte order is part of the format. */
static void slot_put(unsigned char *at, uint64_t value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        at[i] = (unsigned char)(value >> (8 * i));
}

/* Reads a little-endian number. */
static uint64_t slot_get(const unsigned char *at, size_t bytes)
{
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; i++)
        value |= (uint64_t)at[i] << (8 * i);
    return value;
}

/* Whether all bytes are 0. */
static bool slot_is_zero(const unsigned char *at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        if (at[i] != 0) return false;
    }
    return true;
}

/* Fills a slot with a label and its checksum. All bytes that no field names are 0 and inside the
 * checksum. */
static void slot_encode(unsigned char *slot, const tiers_superblock *label, uint64_t sequence)
{
    memset(slot, 0, SLOT_BYTES);
    memcpy(slot, slot_magic, sizeof slot_magic);
    slot_put(slot + SLOT_AT_VERSION, SLOT_VERSION, 4);
    slot_put(slot + SLOT_AT_BYTES, SLOT_BYTES, 4);
    memcpy(slot + SLOT_AT_POOL, label->pool, sizeof label->pool);
    slot_put(slot + SLOT_AT_TIER, label->tier, 4);
    slot_put(slot + SLOT_AT_MEMBER, label->member, 4);
    slot_put(slot + SLOT_AT_EPOCH, label->epoch, 8);
    slot_put(slot + SLOT_AT_CAPACITY, label->capacity_bytes, 8);
    slot_put(slot + SLOT_AT_SEQUENCE, sequence, 8);
    slot_put(slot + SLOT_AT_UNDONE_COUNT, label->undone.count, 8);
    for (uint32_t i = 0; i < label->undone.count; i++) {
        slot_put(slot + SLOT_AT_UNDONE + 16u * i, label->undone.ranges[i].after, 8);
        slot_put(slot + SLOT_AT_UNDONE + 16u * i + 8u, label->undone.ranges[i].before, 8);
    }
    slot_put(slot + SLOT_AT_CHECKSUM, XXH3_64bits(slot, SLOT_AT_CHECKSUM), 8);
}

/* Reads the ranges. False: more than there are, or an empty one. */
static bool slot_decode_undone(const unsigned char *slot, tiers_undone *undone)
{
    const uint64_t count = slot_get(slot + SLOT_AT_UNDONE_COUNT, 8);
    if (count > TIERS_UNDONE_MAX) return false;
    undone->count = (uint32_t)count;
    for (uint32_t i = 0; i < undone->count; i++) {
        undone->ranges[i].after = slot_get(slot + SLOT_AT_UNDONE + 16u * i, 8);
        undone->ranges[i].before = slot_get(slot + SLOT_AT_UNDONE + 16u * i + 8u, 8);
        if (undone->ranges[i].after >= undone->ranges[i].before) return false;
    }
    const size_t end = SLOT_AT_UNDONE + 16u * undone->count;
    return slot_is_zero(slot + end, SLOT_AT_CHECKSUM - end);
}

/* Judges a slot by its bytes. Magic and checksum decide first, so that a sound slot of another
 * version is never taken for damage. The fields come from a device and are not trusted: each is
 * checked, and none is used as a size or an index. */
static slot_reading slot_decode(const unsigned char *slot)
{
    slot_reading reading = {.state = SLOT_DAMAGED};
    if (slot_is_zero(slot, SLOT_BYTES)) {
        reading.state = SLOT_BLANK;
        return reading;
    }
    if (memcmp(slot, slot_magic, sizeof slot_magic) != 0) return reading;
    if (slot_get(slot + SLOT_AT_CHECKSUM, 8) != XXH3_64bits(slot, SLOT_AT_CHECKSUM)) return reading;
    if (slot_get(slot + SLOT_AT_VERSION, 4) != SLOT_VERSION) {
        reading.state = SLOT_OTHER;
        return reading;
    }
    tiers_superblock *label = &reading.label;
    memcpy(label->pool, slot + SLOT_AT_POOL, sizeof label->pool);
    label->tier = (uint32_t)slot_get(slot + SLOT_AT_TIER, 4);
    label->member = (uint32_t)slot_get(slot + SLOT_AT_MEMBER, 4);
    label->epoch = slot_get(slot + SLOT_AT_EPOCH, 8);
    label->capacity_bytes = slot_get(slot + SLOT_AT_CAPACITY, 8);
    reading.sequence = slot_get(slot + SLOT_AT_SEQUENCE, 8);
    /* The last sequence number has no successor: a slot with it could never be replaced. */
    bool sane = slot_get(slot + SLOT_AT_SEQUENCE, 8) != UINT64_MAX &&
                slot_get(slot + SLOT_AT_BYTES, 4) == SLOT_BYTES && label->epoch != 0 &&
                label->tier < KVT_TIER_COUNT && slot_decode_undone(slot, &label->undone);
    if (sane) reading.state = SLOT_SOUND;
    return reading;
}

/* Reads both slots, each by itself, so that a bad sector in one leaves the other. A device that is
 * gone ends the reading; any other failure makes one slot unreadable. */
static kvt_status slots_read(kvt_device *device, unsigned char *slot, slot_reading readings[2])
{
    assert(device->facts.capacity_bytes >= TIERS_SUPERBLOCK_BYTES);
    assert(device->facts.align_bytes <= SLOT_BYTES);
    for (uint32_t i = 0; i < 2; i++) {
        kvt_status status =
            kvt_device_transfer(device, KVT_IO_READ, (uint64_t)i * SLOT_BYTES, slot, SLOT_BYTES);
        if (status == KVT_E_GONE) return status;
        if (status == KVT_OK) {
            readings[i] = slot_decode(slot);
        } else {
            readings[i] = (slot_reading){.state = SLOT_UNREADABLE};
        }
    }
    return KVT_OK;
}

/* The slot with the newest sound label, or -1. Two equal sequences cannot come from this code; the
 * first slot wins then. */
static int slots_newest(const slot_reading readings[2])
{
    bool sound[2] = {readings[0].state == SLOT_SOUND, readings[1].state == SLOT_SOUND};
    if (sound[0] && sound[1]) return readings[1].sequence > readings[0].sequence ? 1 : 0;
    if (sound[0]) return 0;
    return sound[1] ? 1 : -1;
}

/* Whether either slot is in a state. */
static bool slots_have(const slot_reading readings[2], slot_state state)
{
    return readings[0].state == state || readings[1].state == state;
}

/* The order of the tests is the order of caution: another format first, then sound slots, then
 * damage that hides what was there, and last a blank device. */
kvt_status tiers_superblock_read(kvt_device *device, tiers_superblock *out,
                                 tiers_label_state *state_out)
{
    slot_reading readings[2];
    memset(out, 0, sizeof *out);
    *state_out = TIERS_LABEL_FOREIGN;
    unsigned char *slot = aligned_alloc(SLOT_BYTES, SLOT_BYTES);
    if (slot == NULL) return KVT_E_MEMORY;
    kvt_status status = slots_read(device, slot, readings);
    free(slot);
    if (status != KVT_OK) return status;

    if (slots_have(readings, SLOT_OTHER)) {
        *state_out = TIERS_LABEL_SOUND;
        return KVT_E_VERSION;
    }
    int newest = slots_newest(readings);
    if (newest >= 0) {
        *out = readings[newest].label;
        *state_out = TIERS_LABEL_SOUND;
        return KVT_OK;
    }
    if (slots_have(readings, SLOT_UNREADABLE)) return KVT_E_IO;
    if (readings[0].state == SLOT_BLANK && readings[1].state == SLOT_BLANK) {
        *state_out = TIERS_LABEL_BLANK;
    }
    return KVT_OK;
}

/* Whether a slot was never written as a whole: it is zero, or of an encrypted device whose unit and
 * entry a cut has kept apart. */
static bool slot_is_unwritten(const kvt_device *device, const unsigned char *slot)
{
    if (slot_is_zero(slot, SLOT_BYTES)) return true;
    if ((device->facts.flags & KVT_DEVICE_ENCRYPTED) == 0 || slot[0] != SEAL_POISON) return false;
    return memcmp(slot, slot + 1, SLOT_BYTES - 1) == 0;
}

/* The first label of a device goes to slot 0 with sequence 1, so a torn one is compared with
 * exactly these bytes. Sectors are written whole or not at all. */
kvt_status tiers_superblock_torn(kvt_device *device, const tiers_superblock *label, bool *torn_out)
{
    *torn_out = false;
    unsigned char *slots = aligned_alloc(SLOT_BYTES, (size_t)2 * SLOT_BYTES);
    if (slots == NULL) return KVT_E_MEMORY;
    unsigned char *whole = slots + SLOT_BYTES;
    kvt_status status = kvt_device_transfer(device, KVT_IO_READ, SLOT_BYTES, slots, SLOT_BYTES);
    bool torn = status == KVT_OK && slot_is_unwritten(device, slots);
    if (torn) status = kvt_device_transfer(device, KVT_IO_READ, 0, slots, SLOT_BYTES);
    slot_encode(whole, label, 1);
    const bool unwritten = slot_is_unwritten(device, slots);
    for (uint32_t at = 0; torn && !unwritten && status == KVT_OK && at < SLOT_BYTES;
         at += SLOT_SECTOR_BYTES)
        torn = slot_is_zero(slots + at, SLOT_SECTOR_BYTES) ||
               memcmp(slots + at, whole + at, SLOT_SECTOR_BYTES) == 0;
    free(slots);
    *torn_out = torn && status == KVT_OK;
    return status;
}

/* The slot that is overwritten is never the newest sound one, so a torn write leaves the label of
 * before. Another format is never overwritten. */
kvt_status tiers_superblock_write(kvt_device *device, const tiers_superblock *label)
{
    assert(label->epoch >= 1 && label->tier < KVT_TIER_COUNT);
    assert(label->undone.count <= TIERS_UNDONE_MAX);
    slot_reading readings[2];
    unsigned char *slot = aligned_alloc(SLOT_BYTES, SLOT_BYTES);
    if (slot == NULL) return KVT_E_MEMORY;
    kvt_status status = slots_read(device, slot, readings);
    if (status != KVT_OK) goto out;
    if (slots_have(readings, SLOT_OTHER)) {
        status = KVT_E_VERSION;
        goto out;
    }
    /* The slot behind the first label gets its room: a hole in it would make the next label fail
     * when the file system is full by then. A device that is not blank has written blocks there. */
    if (readings[0].state == SLOT_BLANK && readings[1].state == SLOT_BLANK) {
        memset(slot, 0, SLOT_BYTES);
        status = kvt_device_transfer(device, KVT_IO_WRITE, SLOT_BYTES, slot, SLOT_BYTES);
        if (status != KVT_OK) goto out;
    }
    int newest = slots_newest(readings);
    uint64_t sequence = newest >= 0 ? readings[newest].sequence + 1 : 1;
    bool first_is_bad = newest < 0 && readings[0].state == SLOT_UNREADABLE;
    uint64_t target = newest == 0 || first_is_bad ? 1 : 0;
    slot_encode(slot, label, sequence);
    status = kvt_device_transfer(device, KVT_IO_WRITE, target * SLOT_BYTES, slot, SLOT_BYTES);
    KILL_POINT("label: slot written, not synced");
    if (status == KVT_OK) status = kvt_device_sync(device);
out:
    free(slot);
    return status;
}
