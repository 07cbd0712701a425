/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_codecs_note.c - notes in header slots: put in, read, replaced and removed; what does not
 * fit; and that readers of older minor versions still see the record.
 */
#include "codecs/record_format.h"
#include "codecs/record_note.h"
#include "codecs_support.h"

static const kvt_layout note_layout = {
    .layers = 2, .kv_heads = 2, .head_dim = 32, .dtype = KVT_DTYPE_BF16, .tokens = 96};

static const char *const note_variants[] = {"raw", "lossless", "kivi:k4v4,g32", "planes:k8v8,g64",
                                            "entropy:k0.5v1"};
#define NOTE_VARIANTS (sizeof note_variants / sizeof note_variants[0])

static void note_fill(uint8_t *note, size_t bytes, uint8_t seed)
{
    for (size_t i = 0; i < bytes; i++)
        note[i] = (uint8_t)(seed + 31 * i);
}

static void check_note(const encoded *e, const uint8_t *wanted, uint64_t bytes)
{
    const void *note;
    uint64_t note_bytes;
    kvt_record_info info;
    assert_status(record_note_get(e->record.data, &note, &note_bytes),
                  bytes != 0 ? KVT_OK : KVT_MISS);
    assert_int_equal(note_bytes, bytes);
    if (bytes != 0) assert_memory_equal(note, wanted, bytes);
    assert_status(kvt_record_parse(e->record.data, e->record.bytes, &info), KVT_OK);
    assert_status(kvt_record_verify(e->record.data, e->record.bytes, &info), KVT_OK);
    assert_int_equal(info.record_bytes, e->record.bytes);
}

/* Put, replaced by a shorter and a longer one, removed: then the record is what the encoder gave.
 */
TEST(notes_come_and_go)
{
    static const size_t sizes[] = {8, 120, 64, 2000, 0, 256, 0};
    uint8_t note[2000];
    for (size_t v = 0; v < NOTE_VARIANTS; v++) {
        encoded e = encoded_make(note_layout, note_variants[v], NULL);
        uint8_t *before = test_alloc(e.record.bytes);
        memcpy(before, e.record.data, e.record.bytes);
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            note_fill(note, sizes[i], (uint8_t)i);
            assert_status(record_note_set(e.record.data, note, sizes[i]), KVT_OK);
            check_note(&e, note, sizes[i]);
            assert_memory_equal(before + 4096, e.record.data + 4096, e.record.bytes - 4096);
            assert_status(encoded_decode(&e), KVT_OK);
        }
        assert_memory_equal(before, e.record.data, e.record.bytes);
    }
}

/* The longest one fits, and eight bytes more do not; then the record has no note at all. */
TEST(what_does_not_fit_is_left_out)
{
    static uint8_t note[4096];
    note_fill(note, sizeof note, 7);
    for (size_t v = 0; v < NOTE_VARIANTS; v++) {
        encoded e = encoded_make(note_layout, note_variants[v], NULL);
        record_header header;
        memcpy(&header, e.record.data, sizeof header);
        const uint64_t room = 4088 - (header.header_bytes + 7) / 8 * 8 - 8;
        assert_status(record_note_set(e.record.data, note, room), KVT_OK);
        check_note(&e, note, room);
        assert_status(record_note_set(e.record.data, note, room + 8), KVT_E_SPACE);
        check_note(&e, NULL, 0);
        assert_status(record_note_set(e.record.data, note, UINT64_MAX - 7), KVT_E_SPACE);
        check_note(&e, NULL, 0);
    }
}

/* Planes are dropped into the other slot, which has no note: the old one's does not count. */
TEST(the_slot_that_counts_has_the_note)
{
    uint8_t note[64], second[96];
    kvt_record_drop drop;
    kvt_variant fewer;
    const void *found;
    uint64_t bytes;
    note_fill(note, sizeof note, 1);
    note_fill(second, sizeof second, 2);
    encoded e = encoded_make(note_layout, "planes:k8v8,g64", NULL);
    assert_status(record_note_set(e.record.data, note, sizeof note), KVT_OK);
    assert_status(kvt_variant_parse("planes:k6v6,g64", &fewer), KVT_OK);
    assert_status(kvt_record_drop_planes(e.record.data, e.record.bytes, fewer, &drop), KVT_OK);
    e.record.bytes = drop.record_bytes;
    check_note(&e, NULL, 0);
    assert_status(record_note_set(e.record.data, second, sizeof second), KVT_OK);
    check_note(&e, second, sizeof second);
    assert_status(record_note_of_slot(e.record.data, &found, &bytes), KVT_OK);
    assert_memory_equal(found, note, sizeof note);
    assert_status(record_note_of_slot(e.record.data + 4096, &found, &bytes), KVT_OK);
    assert_memory_equal(found, second, sizeof second);
}

/* A reader of minor 1 takes what a later minor version adds for something to ignore: the fields
 * that it knows must be those of the record without the note. */
TEST(older_readers_see_the_record)
{
    uint8_t note[200];
    note_fill(note, sizeof note, 3);
    for (size_t v = 0; v < NOTE_VARIANTS; v++) {
        encoded e = encoded_make(note_layout, note_variants[v], NULL);
        record_header before, after;
        memcpy(&before, e.record.data, sizeof before);
        assert_status(record_note_set(e.record.data, note, sizeof note), KVT_OK);
        memcpy(&after, e.record.data, sizeof after);
        assert_int_equal(after.minor, 2);
        assert_int_equal(after.major, before.major);
        assert_int_equal(after.critical_flags, before.critical_flags);
        assert_true(after.header_bytes > before.header_bytes);
        after.minor = before.minor;
        after.header_bytes = before.header_bytes;
        assert_int_equal(after.optional_flags, RECORD_OPTIONAL_NOTE);
        after.optional_flags = before.optional_flags;
        assert_memory_equal(&before, &after, sizeof before);
    }
}

/* Every bit of a slot with a note is covered, and a sound checksum does not excuse a wrong note. */
TEST(damage_is_found)
{
    uint8_t note[104];
    kvt_record_info info;
    const void *found;
    uint64_t bytes;
    note_fill(note, sizeof note, 9);
    encoded e = encoded_make(note_layout, "kivi:k4v4,g32", NULL);
    assert_status(record_note_set(e.record.data, note, sizeof note), KVT_OK);
    for (unsigned i = 0; i < 4096; i++) {
        e.record.data[i] ^= (uint8_t)(1u << i % 8);
        assert_status(kvt_record_verify(e.record.data, e.record.bytes, &info), KVT_E_CORRUPT);
        assert_true(record_note_of_slot(e.record.data, &found, &bytes) != KVT_OK);
        e.record.data[i] ^= (uint8_t)(1u << i % 8);
    }
    record_header header;
    memcpy(&header, e.record.data, sizeof header);
    const unsigned head = (unsigned)(header.header_bytes - sizeof note - 8);
    /* The length of the note, its reserved field, the zeros beside it, the flag. */
    const unsigned places[] = {
        head, head + 1, head + 3, head + 4, head + 7, head - 1, 4087, header.header_bytes, 28, 29};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        e.record.data[places[i]] ^= 0x40;
        record_seal_slot(e.record.data);
        assert_status(kvt_record_parse(e.record.data, e.record.bytes, &info), KVT_E_CORRUPT);
        e.record.data[places[i]] ^= 0x40;
    }
    record_seal_slot(e.record.data);
    check_note(&e, note, sizeof note);
    memset(e.record.data, 0, 8);
    assert_status(record_note_set(e.record.data, note, sizeof note), KVT_E_CORRUPT);
    assert_status(record_note_of_slot(e.record.data + 4096, &found, &bytes), KVT_E_CORRUPT);
}
