/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_codecs_record.c - the record: damage of every byte, truncation, versions, slots, alignment,
 * refusals, and the pinned bytes of a small raw record.
 */
#include "codecs_support.h"

#include "codecs/record_format.h"

#include <xxhash.h>

#define GOLDEN_RECORD  UINT64_C(0x18195cca591f16ea)
#define GOLDEN_SEGMENT UINT64_C(0xe178a139a61eee7b)

static const kvt_layout small_bf16 = {
    .layers = 2, .kv_heads = 1, .head_dim = 16, .dtype = KVT_DTYPE_BF16, .tokens = 70};
static const kvt_layout odd_opaque = {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = 1001};

static record_header header_of(const encoded *e)
{
    record_header header;
    memcpy(&header, e->record.data, sizeof header);
    return header;
}

/* Writes a slot with its checksum, as a writer of that header would. */
static void header_put(encoded *e, uint64_t slot_offset, const record_header *header)
{
    uint8_t *slot = e->record.data + slot_offset;
    memcpy(slot, header, sizeof *header);
    uint64_t checksum = XXH3_64bits(slot, RECORD_CHECKSUM_AT);
    memcpy(slot + RECORD_CHECKSUM_AT, &checksum, sizeof checksum);
}

static void table_put(encoded *e, uint32_t index, const record_segment *segment)
{
    record_header header = header_of(e);
    memcpy(e->record.data + RECORD_TABLE_OFFSET + index * sizeof *segment, segment,
           sizeof *segment);
    header.table_checksum = XXH3_64bits(e->record.data + RECORD_TABLE_OFFSET, header.table_bytes);
    header_put(e, 0, &header);
}

static kvt_status parse(const encoded *e)
{
    kvt_record_info info;
    return kvt_record_parse(e->record.data, e->record.bytes, &info);
}

static kvt_status verify(const encoded *e)
{
    kvt_record_info info;
    return kvt_record_verify(e->record.data, e->record.bytes, &info);
}

static void flip_every_byte(kvt_layout layout, const char *variant)
{
    encoded e = encoded_make(layout, variant, NULL);
    assert_status(verify(&e), KVT_OK);
    for (uint64_t i = 0; i < e.record.bytes; i++) {
        for (unsigned k = 0; k < 2; k++) {
            e.record.data[i] ^= k ? 0x80 : 0x01;
            kvt_status verified = verify(&e);
            if (verified != KVT_E_CORRUPT) {
                fail_msg("byte %llu: verify says %s", (unsigned long long)i,
                         kvt_status_name(verified));
            }
            memset(e.decoded.data, 0, e.decoded.bytes);
            kvt_status status = encoded_decode(&e);
            if (status == KVT_OK) {
                /* Only the unused second slot may be damaged without harm to the load. */
                assert_in_range(i, RECORD_SLOT_BYTES, RECORD_TABLE_OFFSET - 1);
                assert_memory_equal(e.decoded.data, e.source.data, e.source.bytes);
            } else {
                assert_status(status, KVT_E_CORRUPT);
            }
            e.record.data[i] ^= k ? 0x80 : 0x01;
        }
    }
    assert_status(encoded_decode(&e), KVT_OK);
}

TEST(every_flipped_byte_is_found)
{
    flip_every_byte(small_bf16, "lossless");
    flip_every_byte(small_bf16, "raw");
    flip_every_byte(odd_opaque, "lossless");
}

TEST(every_truncation_is_found)
{
    kvt_record_info info;
    encoded e = encoded_make(small_bf16, "lossless", NULL);
    for (uint64_t bytes = 0; bytes < e.record.bytes; bytes++) {
        /* A copy of exactly these bytes, so that a sanitizer sees a read past them. */
        uint8_t *cut = test_alloc(bytes + 1);
        memcpy(cut, e.record.data, bytes);
        assert_status(kvt_record_parse(cut, bytes, &info), KVT_E_CORRUPT);
        assert_status(kvt_record_decode(cut, bytes, NULL, e.decoded.data, e.decoded.bytes,
                                        e.scratch.data, e.scratch.bytes),
                      KVT_E_CORRUPT);
    }
}

TEST(bytes_after_the_record_are_ignored)
{
    kvt_record_info info;
    encoded e = encoded_make(small_bf16, "lossless", NULL);
    guarded longer = guarded_make(e.record.bytes + 5000);
    memcpy(longer.data, e.record.data, e.record.bytes);
    assert_status(kvt_record_verify(longer.data, longer.bytes, &info), KVT_OK);
    assert_int_equal(info.record_bytes, e.record.bytes);
}

TEST(later_versions_are_told_apart)
{
    encoded e = encoded_make(small_bf16, "lossless", NULL);
    const record_header good = header_of(&e);
    record_header header = good;
    header.major = 2;
    header_put(&e, 0, &header);
    assert_status(parse(&e), KVT_E_VERSION);
    assert_status(encoded_decode(&e), KVT_E_VERSION);
    header = good;
    header.critical_flags = 32;
    header_put(&e, 0, &header);
    assert_status(parse(&e), KVT_E_VERSION);
    header = good;
    header.codec = 99;
    header_put(&e, 0, &header);
    assert_status(parse(&e), KVT_E_VERSION);
    header = good;
    header.mode = 9;
    header_put(&e, 0, &header);
    assert_status(parse(&e), KVT_E_VERSION);
    header = good;
    header.minor = RECORD_MINOR + 1;
    header.optional_flags = 8;
    header_put(&e, 0, &header);
    assert_status(verify(&e), KVT_OK);
    assert_status(encoded_decode(&e), KVT_OK);
    header.minor = 0;
    header_put(&e, 0, &header);
    assert_status(parse(&e), KVT_E_CORRUPT);
}

TEST(sound_checksums_do_not_excuse_wrong_fields)
{
    encoded e = encoded_make(small_bf16, "lossless", NULL);
    const record_header good = header_of(&e);
    for (size_t i = 0; i < sizeof good; i++) {
        /* Sequence, key, generation and first position carry no redundancy. */
        bool free_field = (i >= 16 && i < 24) || (i >= 32 && i < 72) || (i >= 104 && i < 108);
        bool minor = i == 10 || i == 11;
        if (free_field || minor) continue;
        record_header header = good;
        ((uint8_t *)&header)[i] ^= 0x40;
        header_put(&e, 0, &header);
        kvt_status status = parse(&e);
        if (status != KVT_E_CORRUPT && status != KVT_E_VERSION) {
            fail_msg("header byte %zu: %s", i, kvt_status_name(status));
        }
    }
    header_put(&e, 0, &good);
    assert_status(verify(&e), KVT_OK);
    const record_segment sound = record_segment_at(e.record.data, 1);
    for (size_t i = 0; i < offsetof(record_segment, checksum); i++) {
        record_segment segment = sound;
        ((uint8_t *)&segment)[i] ^= 0x40;
        table_put(&e, 1, &segment);
        assert_status(parse(&e), KVT_E_CORRUPT);
    }
    table_put(&e, 1, &sound);
    assert_status(verify(&e), KVT_OK);
}

/* A stage that does not exist, layouts that take none, and chains that do not hold the entry. */
TEST(drop_stages_and_chains_are_checked)
{
    kvt_layout layout = small_bf16;
    layout.tokens_may_drop = 1;
    encoded e = encoded_make(layout, "drop:stream,50", NULL);
    const record_header good = header_of(&e);
    for (unsigned i = 0; i < 5; i++) {
        record_header header = good;
        if (i == 1) header.mode = (uint16_t)((header.mode & 0x1fffu) | 6u << 13);
        if (i == 2) header.tokens_may_drop = 0;
        if (i == 3) header.mode = (uint16_t)(header.mode & ~0x1f00u);
        if (i == 4) header.first_position = UINT32_MAX - header.logical_tokens + 1;
        header_put(&e, 0, &header);
        assert_status(parse(&e), i == 0 ? KVT_OK : i == 4 ? KVT_E_CORRUPT : KVT_E_VERSION);
    }
    layout.tokens_may_drop = 0;
    layout.head_dim = 8;
    layout.tokens = 300;
    encoded parts = encoded_make(layout, "kivi", NULL);
    assert_status(parts.status, KVT_OK);
    record_header header = header_of(&parts);
    header.first_position++; /* the chain ended with the entry */
    header_put(&parts, 0, &header);
    assert_status(parse(&parts), KVT_E_CORRUPT);
}

/* There is no number for the slot that a rewrite would go to. */
TEST(the_last_sequence_is_not_rewritten)
{
    kvt_layout layout = small_bf16;
    kvt_record_drop drop;
    kvt_variant fewer;
    layout.head_dim = 8;
    layout.tokens = 300;
    encoded e = encoded_make(layout, "planes:k8v8", NULL);
    assert_status(kvt_variant_parse("planes:k2v2", &fewer), KVT_OK);
    record_header header = header_of(&e);
    header.sequence = UINT64_MAX;
    header_put(&e, 0, &header);
    assert_status(verify(&e), KVT_OK);
    assert_status(kvt_record_drop_planes(e.record.data, e.record.bytes, fewer, &drop),
                  KVT_E_CORRUPT);
    assert_status(verify(&e), KVT_OK);
}

TEST(padding_must_be_zero)
{
    encoded e = encoded_make(small_bf16, "lossless", NULL);
    record_segment segment = record_segment_at(e.record.data, 3);
    assert_true(segment.padded_bytes > segment.stored_bytes);
    e.record.data[segment.offset + segment.stored_bytes] = 1;
    segment.checksum = XXH3_64bits(e.record.data + segment.offset, segment.padded_bytes);
    table_put(&e, 3, &segment);
    assert_status(parse(&e), KVT_OK);
    assert_status(verify(&e), KVT_E_CORRUPT);
    assert_status(encoded_decode(&e), KVT_E_CORRUPT);
}

TEST(the_higher_slot_counts)
{
    kvt_record_info info;
    encoded e = encoded_make(small_bf16, "lossless", NULL);
    record_header later = header_of(&e);
    later.sequence = 2;
    later.first_position = 77;
    header_put(&e, RECORD_SLOT_BYTES, &later);
    assert_status(kvt_record_verify(e.record.data, e.record.bytes, &info), KVT_OK);
    assert_int_equal(info.spec.first_position, 77);
    /* Slot B was torn: the load goes on with slot A, a verification reports it. */
    e.record.data[RECORD_SLOT_BYTES + 100] ^= 1;
    assert_status(kvt_record_parse(e.record.data, e.record.bytes, &info), KVT_OK);
    assert_int_equal(info.spec.first_position, 1024);
    assert_status(verify(&e), KVT_E_CORRUPT);
    assert_status(encoded_decode(&e), KVT_OK);
    assert_memory_equal(e.decoded.data, e.source.data, e.source.bytes);
    /* Slot A was torn: slot B serves. */
    e.record.data[RECORD_SLOT_BYTES + 100] ^= 1;
    e.record.data[300] ^= 1;
    assert_status(kvt_record_parse(e.record.data, e.record.bytes, &info), KVT_OK);
    assert_int_equal(info.spec.first_position, 77);
    e.record.data[300] ^= 1;
    /* Two slots of one sequence cannot both count. */
    later.sequence = 1;
    header_put(&e, RECORD_SLOT_BYTES, &later);
    assert_status(parse(&e), KVT_E_CORRUPT);
}

TEST(another_key_or_generation_is_a_mismatch)
{
    encoded e = encoded_make(small_bf16, "lossless", NULL);
    kvt_record_spec expected = e.spec;
    assert_status(kvt_record_decode(e.record.data, e.record.bytes, &expected, e.decoded.data,
                                    e.decoded.bytes, e.scratch.data, e.scratch.bytes),
                  KVT_OK);
    expected.generation++;
    assert_status(kvt_record_decode(e.record.data, e.record.bytes, &expected, e.decoded.data,
                                    e.decoded.bytes, e.scratch.data, e.scratch.bytes),
                  KVT_E_MISMATCH);
    expected = e.spec;
    expected.key.bytes[31] ^= 1;
    assert_status(kvt_record_decode(e.record.data, e.record.bytes, &expected, e.decoded.data,
                                    e.decoded.bytes, e.scratch.data, e.scratch.bytes),
                  KVT_E_MISMATCH);
}

TEST(wrong_sizes_and_arguments_are_refused)
{
    uint64_t bound;
    uint64_t scratch;
    uint64_t written;
    encoded e = encoded_make(small_bf16, "lossless", NULL);
    encoded o = encoded_make(odd_opaque, "raw", NULL);
    uint64_t matrix = kvt_layout_matrix_bytes(&small_bf16);
    const void *record = e.record.data;
    assert_status(kvt_record_decode(record, e.record.bytes, NULL, e.decoded.data,
                                    e.decoded.bytes - 1, e.scratch.data, e.scratch.bytes),
                  KVT_E_SPACE);
    assert_status(kvt_record_decode(record, e.record.bytes, NULL, e.decoded.data, e.decoded.bytes,
                                    e.scratch.data, e.scratch.bytes - 1),
                  KVT_E_SPACE);
    assert_status(kvt_record_decode_matrix(record, e.record.bytes, NULL, 2, KVT_SIDE_K,
                                           e.decoded.data, matrix, e.scratch.data, e.scratch.bytes),
                  KVT_E_ARGUMENT);
    assert_status(kvt_record_decode_matrix(record, e.record.bytes, NULL, 0, (kvt_side)2,
                                           e.decoded.data, matrix, e.scratch.data, e.scratch.bytes),
                  KVT_E_ARGUMENT);
    assert_status(kvt_record_decode_matrix(record, e.record.bytes, NULL, 1, KVT_SIDE_V,
                                           e.decoded.data, matrix + 1, e.scratch.data,
                                           e.scratch.bytes),
                  KVT_E_SPACE);
    assert_status(kvt_record_decode_matrix(o.record.data, o.record.bytes, NULL, 0, KVT_SIDE_K,
                                           o.decoded.data, o.decoded.bytes, NULL, 0),
                  KVT_E_ARGUMENT);
    assert_status(kvt_record_encode(&e.spec, e.source.data, e.source.bytes - 2, e.record.data,
                                    e.record.bytes, e.scratch.data, e.scratch.bytes, &written),
                  KVT_E_ARGUMENT);
    assert_status(kvt_record_encode(&e.spec, e.source.data, e.source.bytes, e.record.data,
                                    e.record.bytes, e.scratch.data, e.scratch.bytes - 1, &written),
                  KVT_E_ARGUMENT);
    kvt_record_spec spec = e.spec;
    spec.generation = 0;
    assert_status(kvt_record_bound(&spec, &bound, &scratch), KVT_E_ARGUMENT);
    spec = e.spec;
    spec.layout.tokens = 0;
    assert_status(kvt_record_bound(&spec, &bound, &scratch), KVT_E_ARGUMENT);
    spec = e.spec;
    spec.variant.codec = 77;
    assert_status(kvt_record_bound(&spec, &bound, &scratch), KVT_E_UNSUPPORTED);
    spec = e.spec;
    spec.variant.rate = 1;
    assert_status(kvt_record_bound(&spec, &bound, &scratch), KVT_E_UNSUPPORTED);
}

TEST(alignment_is_per_run_of_layers)
{
    /* 40 KiB a layer raw: a run of 64 KiB ends after every second layer. */
    const kvt_layout layout = {
        .layers = 7, .kv_heads = 2, .head_dim = 64, .dtype = KVT_DTYPE_BF16, .tokens = 80};
    encoded e = encoded_make(layout, "raw", NULL);
    for (uint32_t i = 0; i < 14; i++) {
        record_segment segment = record_segment_at(e.record.data, i);
        bool run_ends = i % 4 == 3 || i == 13;
        assert_int_equal(segment.layer, i / 2);
        assert_int_equal(segment.side, i % 2);
        assert_int_equal(segment.stored_bytes, 20480);
        assert_int_equal(segment.offset % 64, 0);
        assert_int_equal(segment.padded_bytes, 20480);
        if (run_ends) assert_int_equal((segment.offset + segment.padded_bytes) % 4096, 0);
    }

    e = encoded_make(layout, "lossless", NULL);
    uint64_t run_start = 8192 + 4096;
    for (uint32_t i = 0; i < 14; i++) {
        record_segment segment = record_segment_at(e.record.data, i);
        uint64_t end = segment.offset + segment.padded_bytes;
        uint64_t close = (segment.offset + segment.stored_bytes + 63) / 64 * 64;
        bool run_ends = i == 13 || (i % 2 == 1 && close - run_start >= 65536);
        assert_int_equal(end, run_ends ? (close + 4095) / 4096 * 4096 : close);
        if (run_ends) run_start = end;
    }
}

TEST(an_incompressible_entry_is_a_raw_record)
{
    kvt_record_info info;
    const kvt_layout bytes_of = {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = 4480};
    uint8_t noise[4480];
    codecs_kv_sample_fill(&bytes_of, 1, noise);
    const kvt_layout one_layer = {
        .layers = 1, .kv_heads = 1, .head_dim = 16, .dtype = KVT_DTYPE_BF16, .tokens = 70};
    encoded as_lossless = encoded_make(one_layer, "lossless", noise);
    encoded as_raw = encoded_make(one_layer, "raw", noise);
    assert_status(as_lossless.status, KVT_RAW);
    assert_status(as_raw.status, KVT_OK);
    assert_int_equal(as_lossless.record.bytes, as_raw.record.bytes);
    assert_memory_equal(as_lossless.record.data, as_raw.record.data, as_raw.record.bytes);
    assert_status(kvt_record_parse(as_raw.record.data, as_raw.record.bytes, &info), KVT_OK);
    assert_int_equal(info.raw_segments, 0);
    assert_int_equal(info.payload_bytes, 4480);
    assert_true(info.bits_per_element == 16.0);
}

TEST(single_segments_fall_back_to_raw)
{
    kvt_record_info info;
    const kvt_layout layout = {
        .layers = 2, .kv_heads = 2, .head_dim = 64, .dtype = KVT_DTYPE_BF16, .tokens = 128};
    const kvt_layout noise = {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = 32768};
    uint8_t *source = test_alloc(4 * 32768);
    codecs_kv_sample_fill(&layout, 9, source);
    codecs_kv_sample_fill(&noise, 9, source + 32768);
    encoded e = encoded_make(layout, "lossless", source);
    assert_status(e.status, KVT_OK);
    assert_status(kvt_record_verify(e.record.data, e.record.bytes, &info), KVT_OK);
    assert_int_equal(info.segment_count, 4);
    assert_int_equal(info.raw_segments, 1);
    assert_int_equal(record_segment_at(e.record.data, 1).kind, RECORD_KIND_RAW);
    assert_status(encoded_decode(&e), KVT_OK);
    assert_memory_equal(e.decoded.data, source, 4 * 32768);
}

/* The pinned form: a change of these numbers is a change of the format. */
TEST(golden_raw_record)
{
    uint8_t source[96];
    const kvt_layout layout = {.layers = 2,
                               .kv_heads = 1,
                               .head_dim = 4,
                               .dtype = KVT_DTYPE_FP16,
                               .order = KVT_ORDER_SIDE_LAYER,
                               .tokens = 3};
    for (unsigned i = 0; i < sizeof source; i++) {
        source[i] = (uint8_t)(i * 5 + 3);
    }
    encoded e = encoded_make(layout, "raw", source);
    assert_int_equal(e.record.bytes, 16384);
    assert_int_equal(XXH3_64bits(e.record.data, e.record.bytes), GOLDEN_RECORD);
    record_segment second = record_segment_at(e.record.data, 1);
    assert_int_equal(second.offset, 12288 + 64);
    assert_int_equal(second.checksum, GOLDEN_SEGMENT);
    /* Layer 0 V lies after both layers' K in this order. */
    assert_memory_equal(e.record.data + second.offset, source + 48, 24);
    assert_status(encoded_decode(&e), KVT_OK);
    assert_memory_equal(e.decoded.data, source, sizeof source);
}

/* A caller of another version: with fields that are unknown here, or without the last ones. */
TEST(extras_of_other_versions)
{
    struct {
        kvt_codec_extras known;
        uint64_t unknown;
    } later = {.known = {.struct_size = sizeof later, .sink_tokens = 1025}};
    uint64_t written;
    uint64_t alike;
    encoded e = encoded_make(small_bf16, "kivi:k4v4,g32", NULL);
    guarded first = guarded_make(2 * e.record.bytes);
    guarded second = guarded_make(2 * e.record.bytes);
    assert_status(kvt_record_encode_with(&e.spec, &later.known, e.source.data, e.source.bytes,
                                         first.data, first.bytes, e.scratch.data, e.scratch.bytes,
                                         &written),
                  KVT_OK);
    later.known.struct_size = offsetof(kvt_codec_extras, reserved) + sizeof later.known.reserved;
    assert_status(kvt_record_encode_with(&e.spec, &later.known, e.source.data, e.source.bytes,
                                         second.data, second.bytes, e.scratch.data, e.scratch.bytes,
                                         &alike),
                  KVT_OK);
    assert_int_equal(written, alike);
    assert_memory_equal(first.data, second.data, written);
    later.known.struct_size = sizeof later;
    later.unknown = 1;
    assert_status(kvt_record_encode_with(&e.spec, &later.known, e.source.data, e.source.bytes,
                                         first.data, first.bytes, e.scratch.data, e.scratch.bytes,
                                         &written),
                  KVT_E_UNSUPPORTED);
}
