/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_placement_note.c - what a scan for records does with a block of a device: any bytes.
 *
 * The input is tried as a slot, then as a note in a slot that is sealed for it, and then as edits
 * {u16 place, u8 value} of a sound note whose location's checksum is made right again, so that the
 * checks behind it are reached. What unpacks must pack to the same bytes, and its numbers agree.
 */
#include "codecs/record_format.h"
#include "codecs/record_note.h"
#include "fuzz_arena.h"
#include "store/catalog/placement_note.h"
#include "tiers/pool/location.h"

#include <xxhash.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum {
    FUZZ_EDIT_BYTES = 3,
    FUZZ_LOCATION_AT = 80,
    FUZZ_NOTE_MAX = 3800,
    FUZZ_PIECES_MAX = 4096,
};

static void fuzz_unpack(const uint8_t *bytes, size_t size)
{
    placement_note note;
    static uint8_t again[PLACEMENT_NOTE_BYTES_MAX];
    kvt_status status = placement_note_unpack(bytes, size, &note);
    if (status == KVT_OK) {
        if (tiers_location_check(note.location) != KVT_OK || note.serial == 0) abort();
        if (size <= sizeof again && (placement_note_pack(&note, again, sizeof again) != size ||
                                     memcmp(again, bytes, size) != 0))
            abort();
    } else if (note.location != NULL) {
        abort();
    }
    tiers_location_free(note.location);
}

static void fuzz_slot(const uint8_t *slot)
{
    const void *note;
    uint64_t bytes;
    if (record_note_of_slot(slot, &note, &bytes) != KVT_OK) return;
    fuzz_unpack(fuzz_arena_copy(note, bytes), bytes);
}

/* A slot with the note; nothing else of the record is looked at. */
static void fuzz_noted(const uint8_t *note, size_t size)
{
    static uint8_t record[2 * RECORD_SLOT_BYTES];
    record_header header = {.major = RECORD_MAJOR, .header_bytes = sizeof header, .sequence = 1};
    memset(record, 0, sizeof record);
    memcpy(header.magic, RECORD_MAGIC, sizeof header.magic);
    memcpy(record, &header, sizeof header);
    if (record_note_set(record, note, size / 8 * 8) == KVT_E_CORRUPT) abort();
    fuzz_slot(fuzz_arena_copy(record, RECORD_SLOT_BYTES));
}

/* Three extents on two members. */
static size_t fuzz_make(uint8_t *target, size_t capacity)
{
    const tiers_share shares[] = {{.member = 0, .units = 2}, {.member = 3, .units = 1}};
    tiers_location *location = tiers_location_make(3 * 8192, 8192, shares, 2);
    if (location == NULL || tiers_location_room(location, 3) != KVT_OK) abort();
    location->extents[0] = (tiers_extent){.member = 0, .offset = 8192, .bytes = 4096};
    location->extents[1] = (tiers_extent){.member = 0, .offset = 40960, .bytes = 12288};
    location->extents[2] = (tiers_extent){.member = 3, .offset = 1 << 20, .bytes = 8192};
    location->extent_count = 3;
    const placement_note note = {.serial = 7, .recompute_seconds = 0.5, .location = location};
    const size_t bytes = placement_note_pack(&note, target, capacity);
    tiers_location_free(location);
    return bytes;
}

static void fuzz_edited(const uint8_t *data, size_t size)
{
    static uint8_t built[PLACEMENT_NOTE_BYTES_MAX];
    const size_t bytes = fuzz_make(built, sizeof built);
    for (size_t i = 0; i + FUZZ_EDIT_BYTES <= size && i < FUZZ_PIECES_MAX; i += FUZZ_EDIT_BYTES) {
        size_t place = (size_t)data[i] | (size_t)data[i + 1] << 8;
        built[place % bytes] = data[i + 2];
    }
    uint64_t sum = XXH3_64bits(built + FUZZ_LOCATION_AT, bytes - FUZZ_LOCATION_AT - sizeof sum);
    memcpy(built + bytes - sizeof sum, &sum, sizeof sum);
    fuzz_unpack(fuzz_arena_copy(built, bytes), bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_arena_reset();
    fuzz_unpack(fuzz_arena_copy(data, size), size);
    if (size >= RECORD_SLOT_BYTES) fuzz_slot(fuzz_arena_copy(data, RECORD_SLOT_BYTES));
    fuzz_noted(data, size < FUZZ_NOTE_MAX ? size : FUZZ_NOTE_MAX);
    fuzz_edited(data, size);
    return 0;
}
