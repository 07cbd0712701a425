/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_note.c - placement notes: their flat form, what is refused, and that every record on
 * the SSDs of a store carries the one of its place.
 */
#include "codecs/record.h"
#include "codecs/record_note.h"
#include "store/catalog/placement_note.h"
#include "store_support.h"
#include "tiers/pool/location.h"

#include <fcntl.h>
#include <math.h>

#define NOTE_BLOCK 4096u

static tiers_location *make_location(uint32_t extents)
{
    const tiers_share shares[] = {{.member = 2, .units = extents}};
    tiers_location *location = tiers_location_make((uint64_t)extents * 8192, 8192, shares, 1);
    assert_non_null(location);
    assert_ok(tiers_location_room(location, extents));
    for (uint32_t i = 0; i < extents; i++)
        location->extents[i] =
            (tiers_extent){.member = 2, .offset = 8192 + i * UINT64_C(16384), .bytes = 8192};
    location->extent_count = extents;
    return location;
}

TEST(flat_form)
{
    static uint8_t bytes[PLACEMENT_NOTE_BYTES_MAX];
    placement_note read;
    placement_note note = {.serial = (UINT64_C(5) << 32) + 9,
                           .has_parent = true,
                           .parent = support_key(3),
                           .recompute_seconds = 1.5,
                           .location = make_location(3)};
    memset(note.pool, 0xab, sizeof note.pool);
    size_t length = placement_note_pack(&note, bytes, sizeof bytes);
    assert_int_equal(length, 80 + tiers_location_pack(note.location, NULL, 0));
    assert_int_equal(length % 8, 0);
    assert_ok(placement_note_unpack(bytes, length, &read));
    assert_memory_equal(read.pool, note.pool, 16);
    assert_memory_equal(&read.parent, &note.parent, sizeof note.parent);
    assert_true(read.has_parent && read.serial == note.serial && read.recompute_seconds == 1.5);
    assert_int_equal(read.location->extent_count, 3);
    tiers_location_free(read.location);
    /* Cut off, longer, one bit off: never anything else than refused, or another sound number. */
    for (size_t i = 0; i < length; i++)
        assert_true(placement_note_unpack(bytes, i, &read) == KVT_E_CORRUPT);
    assert_int_equal(placement_note_unpack(bytes, length + 8, &read), KVT_E_CORRUPT);
    for (size_t i = 80 * 8; i < length * 8; i++) {
        bytes[i / 8] ^= (uint8_t)(1u << i % 8);
        assert_int_equal(placement_note_unpack(bytes, length, &read), KVT_E_CORRUPT);
        bytes[i / 8] ^= (uint8_t)(1u << i % 8);
    }
    bytes[0] = 2;
    assert_int_equal(placement_note_unpack(bytes, length, &read), KVT_E_VERSION);
    bytes[0] = 1;
    double wrong[] = {-1, NAN, INFINITY};
    for (size_t i = 0; i < 3; i++) {
        memcpy(bytes + 64, &wrong[i], sizeof wrong[i]);
        assert_int_equal(placement_note_unpack(bytes, length, &read), KVT_E_CORRUPT);
    }
    assert_int_equal(placement_note_pack(&note, bytes, length - 1), 0);
    tiers_location_free(note.location);
}

/* Terms stand in the note when one of them is not 0, and are checked. */
TEST(terms)
{
    static uint8_t bytes[PLACEMENT_NOTE_BYTES_MAX];
    placement_note read;
    placement_note note = {.serial = 9, .location = make_location(2)};
    const size_t without = placement_note_pack(&note, bytes, sizeof bytes);
    for (int i = 0; i < 4; i++) {
        note.expires_ns = i == 0 ? UINT64_C(1700000000000000000) : 0;
        note.tenant = i == 1 ? 255 : 0;
        note.class_id = i == 2 ? 65535 : 0;
        note.request_tokens = i == 3 ? UINT32_MAX : 0;
        const size_t length = placement_note_pack(&note, bytes, sizeof bytes);
        assert_int_equal(length, without + 24);
        assert_ok(placement_note_unpack(bytes, length, &read));
        assert_true(read.expires_ns == note.expires_ns && read.tenant == note.tenant);
        assert_true(read.class_id == note.class_id);
        assert_true(read.request_tokens == note.request_tokens);
        tiers_location_free(read.location);
        for (size_t j = 0; j < length; j++)
            assert_int_equal(placement_note_unpack(bytes, j, &read), KVT_E_CORRUPT);
        assert_int_equal(placement_note_pack(&note, bytes, length - 1), 0);
    }
    static const struct {
        size_t at;
        uint8_t byte;
    } wrong[] = {{87, 0x80}, {89, 1}, {94, 1}, {100, 1}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        const size_t length = placement_note_pack(&note, bytes, sizeof bytes);
        bytes[wrong[i].at] = wrong[i].byte;
        assert_int_equal(placement_note_unpack(bytes, length, &read), KVT_E_CORRUPT);
    }
    const size_t length = placement_note_pack(&note, bytes, sizeof bytes);
    memset(bytes + 96, 0, 4); /* terms that are all 0 are left out */
    assert_int_equal(placement_note_unpack(bytes, length, &read), KVT_E_CORRUPT);
    tiers_location_free(note.location);
}

/* One that does not fit takes away the one that was there. */
TEST(attach)
{
    static uint8_t data[SUPPORT_ENTRY_BYTES];
    kvt_record_spec spec = {.key = support_key(3),
                            .generation = 9,
                            .layout = support_layout,
                            .variant = {.codec = KVT_CODEC_RAW}};
    uint64_t capacity, scratch_bytes, written, bytes;
    const void *found;
    support_fill(3, data);
    assert_ok(kvt_record_bound(&spec, &capacity, &scratch_bytes));
    void *record = test_aligned(4096, capacity);
    void *scratch = test_aligned(64, scratch_bytes / 64 * 64 + 64);
    assert_true(kvt_record_encode(&spec, data, sizeof data, record, capacity, scratch,
                                  scratch_bytes, &written) >= 0);
    for (uint32_t extents = 1; extents < 400; extents += 57) {
        placement_note note = {.serial = 9, .location = make_location(extents)};
        placement_note_attach(&note, record);
        bool fits = 80 + tiers_location_pack(note.location, NULL, 0) <= 4088 - 176 - 8;
        assert_int_equal(record_note_get(record, &found, &bytes), fits ? KVT_OK : KVT_MISS);
        assert_true(fits == (extents < 150));
        tiers_location_free(note.location);
    }
}

/* Counts the sound slots of a device file, and those whose note names the place they lie at. */
static void count_notes(const char *path, uint32_t member, uint32_t *slots, uint32_t *placed)
{
    static _Alignas(4096) uint8_t block[NOTE_BLOCK];
    int file = open(path, O_RDONLY);
    assert_true(file >= 0);
    for (off_t at = 8192; pread(file, block, sizeof block, at) == NOTE_BLOCK; at += NOTE_BLOCK) {
        const void *bytes;
        uint64_t length;
        placement_note note;
        kvt_status status = record_note_of_slot(block, &bytes, &length);
        if (status == KVT_E_CORRUPT) continue;
        ++*slots;
        if (status != KVT_OK) continue;
        assert_ok(placement_note_unpack(bytes, length, &note));
        for (uint32_t i = 0; i < note.location->extent_count; i++) {
            const tiers_extent *extent = &note.location->extents[i];
            if (extent->member != member || extent->offset != (uint64_t)at) continue;
            ++*placed;
            break;
        }
        tiers_location_free(note.location);
    }
    close(file);
}

TEST(records_on_ssd_carry_notes)
{
    char folder[64], catalog[96], paths[2][96];
    kvt_device_config devices[2];
    support_make_folder(folder, sizeof folder);
    snprintf(catalog, sizeof catalog, "%s/catalog.db", folder);
    for (int i = 0; i < 2; i++) {
        snprintf(paths[i], sizeof paths[i], "%s/ssd%d", folder, i);
        devices[i] = support_file_config(i == 0 ? "ssd0" : "ssd1", paths[i], 2 << 20);
    }
    kvt_store_options options = support_options(8 << 20, "lru");
    options.durability.catalog_path = catalog;
    options.tiers[KVT_TIER_SSD] =
        (kvt_tier_options){.devices = devices, .device_count = 2, .unit_bytes = 8192};
    kvt_store *store = support_open(&options);
    support_puts(store, 0, 20);
    kvt_store_close(store);
    uint32_t slots = 0, placed = 0;
    for (uint32_t i = 0; i < 2; i++)
        count_notes(paths[i], i, &slots, &placed);
    assert_int_equal(slots, 20);
    assert_int_equal(placed, 20);
}
