/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_codecs_record_derive.c - coarser records of entropy records: the same bytes as encoding the
 * elements, exact room, damage; static tables that the caller gives; which variant is made from
 * which other, and in which way.
 */
#include "cases.h"
#include "codecs_support.h"

#include "codecs/codecs.h"
#include "codecs/kernels/cpu.h"
#include "codecs/record_format.h"

static kvt_layout small_layout(uint8_t dtype)
{
    kvt_layout layout = {
        .layers = 3, .kv_heads = 2, .head_dim = 24, .dtype = dtype, .order = 1, .tokens = 300};
    return layout;
}

static guarded derive_room(const encoded *e, uint64_t *bytes_out, kvt_variant variant)
{
    guarded target = guarded_make(e->record.bytes);
    assert_status(kvt_record_derive(e->record.data, e->record.bytes, NULL, variant, target.data,
                                    target.bytes, e->scratch.data, e->scratch.bytes, bytes_out),
                  KVT_OK);
    guarded_check(&target, target.bytes);
    return target;
}

static void check_derived(const encoded *fine, const encoded *direct)
{
    uint64_t written;
    kvt_record_info info;
    guarded derived = derive_room(fine, &written, direct->spec.variant);
    assert_int_equal(written, direct->record.bytes);
    assert_memory_equal(derived.data, direct->record.data, written);
    assert_status(kvt_record_verify(derived.data, written, &info), KVT_OK);
    assert_int_equal(info.spec.variant.rate, direct->spec.variant.rate);
}

TEST(derived_is_what_encoding_gives)
{
    static const uint8_t dtypes[] = {KVT_DTYPE_BF16, KVT_DTYPE_FP16, KVT_DTYPE_FP32};
    static const char *const pairs[][2] = {
        {"entropy:k0.25v0.5", "entropy:k0.75v1.5"},
        {"entropy:k0.25v0.5,vchan", "entropy:k0.25v1.5,vchan"},
        {"entropy:k0.125v1,middle", "entropy:k0.375v1,middle"},
        {"entropy:k0.5v0.5", "entropy:k0.5v0.5"},
        {"drop:stream,50+entropy:k0.25v0.5", "drop:stream,50+entropy:k0.75v1.5"},
    };
    for (size_t d = 0; d < sizeof dtypes; d++) {
        for (size_t p = 0; p < sizeof pairs / sizeof pairs[0]; p++) {
            kvt_layout layout = small_layout(dtypes[d]);
            layout.tokens_may_drop = pairs[p][0][0] == 'd';
            encoded fine = encoded_make(layout, pairs[p][0], NULL);
            encoded direct = encoded_make(layout, pairs[p][1], fine.source.data);
            assert_status(fine.status, KVT_OK);
            check_derived(&fine, &direct);
        }
    }
}

/* Three times and three times again is nine times. */
TEST(derivations_add_up)
{
    const kvt_layout layout = small_layout(KVT_DTYPE_BF16);
    encoded fine = encoded_make(layout, "entropy:k0.125v0.25", NULL);
    encoded middle = encoded_make(layout, "entropy:k0.375v0.75", fine.source.data);
    encoded direct = encoded_make(layout, "entropy:k1.125v2.25", fine.source.data);
    uint64_t written;
    guarded once = derive_room(&fine, &written, middle.spec.variant);
    const encoded between = {.record = {once.data, written}, .scratch = fine.scratch};
    check_derived(&between, &direct);
}

/* Raw tokens and a matrix that cannot be coded are handed on as they are. */
TEST(raw_parts_are_kept)
{
    kvt_layout layout = small_layout(KVT_DTYPE_FP32);
    const kvt_codec_extras extras = {
        .struct_size = sizeof extras, .sink_tokens = 1030, .recent_tokens = 20};
    encoded fine = encoded_make(layout, "entropy:k0.25v0.5", NULL);
    encoded direct = encoded_make(layout, "entropy:k0.75v1.5", fine.source.data);
    const uint32_t not_a_number = 0x7fc00000;
    const uint64_t matrix = kvt_layout_matrix_offset(&layout, 1, KVT_SIDE_V);
    memcpy(fine.source.data + matrix + 4000, &not_a_number, sizeof not_a_number);
    encoded *both[] = {&fine, &direct};
    for (unsigned i = 0; i < 2; i++) {
        encoded *e = both[i];
        uint64_t bound;
        uint64_t scratch;
        assert_status(kvt_record_bound(&e->spec, &bound, &scratch), KVT_OK);
        assert_status(kvt_record_encode_with(&e->spec, &extras, fine.source.data, fine.source.bytes,
                                             e->record.data, bound, e->scratch.data, scratch,
                                             &e->record.bytes),
                      KVT_OK);
    }
    kvt_record_info info;
    assert_status(kvt_record_parse(fine.record.data, fine.record.bytes, &info), KVT_OK);
    assert_int_equal(info.raw_segments, 1);
    check_derived(&fine, &direct);
}

TEST(other_variants_are_refused)
{
    static const struct {
        const char *from;
        const char *to;
        kvt_status status;
    } cases[] = {
        {"entropy:k0.25v0.5", "entropy:k0.5v0.5", KVT_E_ARGUMENT},
        {"entropy:k0.75v1.5", "entropy:k0.25v0.5", KVT_E_ARGUMENT},
        {"entropy:k0.25v0.5", "entropy:k2.25v0.5", KVT_E_ARGUMENT},
        {"entropy:k0.25v0.5", "entropy:k0.75v1.5,vchan", KVT_E_ARGUMENT},
        {"entropy:k0.25v0.5", "entropy:k0.75v1.5,middle", KVT_E_ARGUMENT},
        {"entropy:k0.25v0.5", "drop:stream,50+entropy:k0.75v1.5", KVT_E_ARGUMENT},
        {"entropy:k0.25v0.5", "planes:k4v4,g64", KVT_E_ARGUMENT},
        {"planes:k4v4,g64", "entropy:k0.75v1.5", KVT_E_UNSUPPORTED},
        {"lossless", "lossless", KVT_E_UNSUPPORTED},
        {"raw", "raw", KVT_E_UNSUPPORTED},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        encoded e = encoded_make(small_layout(KVT_DTYPE_BF16), cases[i].from, NULL);
        guarded target = guarded_make(e.record.bytes);
        kvt_variant to;
        uint64_t written = 1;
        assert_status(kvt_variant_parse(cases[i].to, &to), KVT_OK);
        assert_status(kvt_record_derive(e.record.data, e.record.bytes, NULL, to, target.data,
                                        target.bytes, e.scratch.data, e.scratch.bytes, &written),
                      cases[i].status);
        assert_int_equal(written, 0);
        guarded_check(&target, 0);
    }
}

TEST(room_is_exact)
{
    const codecs_cpu level = codecs_cpu_level();
    encoded fine = encoded_make(small_layout(KVT_DTYPE_BF16), "entropy:k0.25v0.5", NULL);
    kvt_variant to;
    uint64_t need;
    uint64_t written;
    assert_status(kvt_variant_parse("entropy:k0.75v1.5", &to), KVT_OK);
    guarded whole = derive_room(&fine, &need, to);
    guarded exact = guarded_make(need);
    for (int l = CODECS_CPU_SCALAR; l <= (int)codecs_cpu_best(); l++) {
        codecs_cpu_force((codecs_cpu)l);
        for (uint64_t room = 0; room <= need; room += room + 64 < need ? 61 : 1) {
            memset(exact.data, GUARD_VALUE, need);
            kvt_status status =
                kvt_record_derive(fine.record.data, fine.record.bytes, NULL, to, exact.data, room,
                                  fine.scratch.data, fine.scratch.bytes, &written);
            assert_status(status, room == need ? KVT_OK : KVT_E_SPACE);
            guarded_check(&exact, room);
        }
        assert_memory_equal(exact.data, whole.data, need);
    }
    codecs_cpu_force(level);
    assert_status(kvt_record_derive(fine.record.data, fine.record.bytes, NULL, to, exact.data, need,
                                    fine.scratch.data, 64, &written),
                  KVT_E_ARGUMENT);
}

TEST(damage_is_noticed)
{
    encoded fine = encoded_make(small_layout(KVT_DTYPE_BF16), "entropy:k0.25v0.5", NULL);
    guarded target = guarded_make(fine.record.bytes);
    kvt_variant to;
    kvt_record_info info;
    uint64_t written;
    assert_status(kvt_variant_parse("entropy:k0.75v1.5", &to), KVT_OK);
    assert_status(kvt_record_parse(fine.record.data, fine.record.bytes, &info), KVT_OK);
    for (uint64_t at = info.head_bytes; at < fine.record.bytes; at += 37) {
        fine.record.data[at] ^= 0x20;
        assert_status(kvt_record_derive(fine.record.data, fine.record.bytes, NULL, to, target.data,
                                        target.bytes, fine.scratch.data, fine.scratch.bytes,
                                        &written),
                      KVT_E_CORRUPT);
        assert_int_equal(written, 0);
        fine.record.data[at] ^= 0x20;
    }
    for (uint64_t cut = 0; cut < fine.record.bytes; cut += 509) {
        assert_status(kvt_record_derive(fine.record.data, cut, NULL, to, target.data, target.bytes,
                                        fine.scratch.data, fine.scratch.bytes, &written),
                      KVT_E_CORRUPT);
    }
}

/* Counts of all matrices of an entry, per layer and side, or all layers together. */
/* The rate of the record and the head of an encoding say the same. */
TEST(another_rate_is_refused)
{
    static const uint32_t rates[] = {1, 1 << 10, 1 << 20, 1 << 21};
    encoded e = encoded_make(small_layout(KVT_DTYPE_BF16), "entropy:k0.25v0.5", NULL);
    record_header header;
    memcpy(&header, e.record.data, sizeof header);
    const uint32_t rate = header.rate;
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++) {
        kvt_record_info info;
        uint64_t written;
        header.rate = rate ^ rates[i];
        memcpy(e.record.data, &header, sizeof header);
        const uint64_t checksum = checksum_of(e.record.data, RECORD_CHECKSUM_AT);
        memcpy(e.record.data + RECORD_CHECKSUM_AT, &checksum, sizeof checksum);
        assert_status(kvt_record_parse(e.record.data, e.record.bytes, &info), KVT_OK);
        assert_status(encoded_decode(&e), KVT_E_CORRUPT);
        guarded target = guarded_make(e.record.bytes);
        assert_status(kvt_record_derive(e.record.data, e.record.bytes, NULL, info.spec.variant,
                                        target.data, target.bytes, e.scratch.data, e.scratch.bytes,
                                        &written),
                      KVT_E_CORRUPT);
    }
}

static void count_entry(const encoded *e, bool per_layer, uint32_t *counts)
{
    const kvt_layout *layout = &e->spec.layout;
    const kvt_codec *codec = kvt_codec_find(KVT_CODEC_ENTROPY);
    memset(counts, 0, sizeof *counts * 2 * layout->layers * KVT_ENTROPY_SYMBOLS);
    for (uint32_t i = 0; i < 2u * layout->layers; i++) {
        const kvt_matrix matrix = {.tokens = layout->tokens,
                                   .kv_heads = layout->kv_heads,
                                   .head_dim = layout->head_dim,
                                   .dtype = layout->dtype,
                                   .side = (uint8_t)(i % 2),
                                   .layer = (uint16_t)(i / 2),
                                   .planes = 1};
        const uint64_t at = kvt_layout_matrix_offset(layout, i / 2, (kvt_side)(i % 2));
        guarded scratch = guarded_make(codec->matrix_scratch(e->spec.variant, &matrix));
        uint32_t *table = counts + (per_layer ? i : i % 2) * KVT_ENTROPY_SYMBOLS;
        uint64_t before = 0;
        uint64_t after = 0;
        for (unsigned s = 0; s < KVT_ENTROPY_SYMBOLS; s++) {
            before += table[s];
        }
        assert_status(kvt_entropy_count(e->spec.variant, &matrix, e->source.data + at, scratch.data,
                                        scratch.bytes, table),
                      KVT_OK);
        for (unsigned s = 0; s < KVT_ENTROPY_SYMBOLS; s++) {
            after += table[s];
        }
        assert_int_equal(after - before, (uint64_t)layout->tokens * 48);
        assert_status(kvt_entropy_count(e->spec.variant, &matrix, e->source.data + at, scratch.data,
                                        scratch.bytes - 1, table),
                      KVT_E_ARGUMENT);
    }
}

TEST(given_tables_serve)
{
    const kvt_layout layout = small_layout(KVT_DTYPE_BF16);
    uint32_t *counts = test_alloc(sizeof *counts * 6 * KVT_ENTROPY_SYMBOLS);
    encoded own = encoded_make(layout, "entropy:k0.25v0.5,middle", NULL);
    assert_status(encoded_decode(&own), KVT_OK);
    kvt_record_info own_info;
    assert_status(kvt_record_parse(own.record.data, own.record.bytes, &own_info), KVT_OK);
    for (unsigned per_layer = 0; per_layer < 2; per_layer++) {
        count_entry(&own, per_layer != 0, counts);
        const kvt_codec_extras extras = {.struct_size = sizeof extras,
                                         .symbol_counts = counts,
                                         .count_layers = per_layer ? layout.layers : 1};
        encoded given = encoded_make(layout, "entropy:k0.25v0.5,middle", own.source.data);
        uint64_t bound;
        uint64_t scratch;
        kvt_record_info info;
        assert_status(kvt_record_bound(&given.spec, &bound, &scratch), KVT_OK);
        assert_status(kvt_record_encode_with(&given.spec, &extras, own.source.data,
                                             own.source.bytes, given.record.data, bound,
                                             given.scratch.data, scratch, &given.record.bytes),
                      KVT_OK);
        /* Tables change the code, not the values. */
        assert_status(encoded_decode(&given), KVT_OK);
        assert_memory_equal(given.decoded.data, own.decoded.data, own.decoded.bytes);
        assert_status(kvt_record_verify(given.record.data, given.record.bytes, &info), KVT_OK);
        assert_true(info.payload_bytes <= own_info.payload_bytes + own_info.payload_bytes / 20);
        assert_int_equal(info.payload_bytes == own_info.payload_bytes, per_layer);
    }
}

TEST(bad_counts_are_refused)
{
    static uint32_t counts[2 * KVT_ENTROPY_SYMBOLS];
    const kvt_layout layout = small_layout(KVT_DTYPE_BF16);
    static const struct {
        const char *variant;
        uint32_t k_count, v_count;
        uint32_t layers;
        uint32_t reserved;
        kvt_status status;
    } cases[] = {
        {"entropy:k0.25v0.5", 5, 5, 1, 0, KVT_OK},
        {"entropy:k0.25v0.5", 5, 0, 1, 0, KVT_E_ARGUMENT},
        {"entropy:k0.25v0.5", UINT32_MAX, 5, 1, 0, KVT_E_ARGUMENT},
        {"entropy:k0.25v0.5", 5, 5, 0, 0, KVT_E_ARGUMENT},
        {"entropy:k0.25v0.5", 5, 5, 2, 0, KVT_E_ARGUMENT},
        {"entropy:k0.25v0.5", 5, 5, 1, 1, KVT_E_UNSUPPORTED},
        {"planes:k4v4,g64", 5, 5, 1, 0, KVT_E_UNSUPPORTED},
        {"lossless", 5, 5, 1, 0, KVT_E_UNSUPPORTED},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        encoded e = encoded_make(layout, cases[i].variant, NULL);
        uint64_t bound;
        uint64_t scratch;
        counts[1] = counts[2] = cases[i].k_count;
        counts[KVT_ENTROPY_SYMBOLS + 9] = cases[i].v_count;
        const kvt_codec_extras extras = {.struct_size = sizeof extras,
                                         .symbol_counts = counts,
                                         .count_layers = cases[i].layers,
                                         .reserved2 = cases[i].reserved};
        assert_status(kvt_record_bound(&e.spec, &bound, &scratch), KVT_OK);
        assert_status(kvt_record_encode_with(&e.spec, &extras, e.source.data, e.source.bytes,
                                             e.record.data, bound, e.scratch.data, scratch,
                                             &e.record.bytes),
                      cases[i].status);
    }
}

/* ---- ways from variant to variant ---- */

static kvt_variant named(const char *name)
{
    kvt_variant variant;
    assert_ok(kvt_variant_parse(name, &variant));
    return variant;
}

TEST(each_pair_has_its_way)
{
    static const struct {
        const char *from, *to;
        codecs_way way;
    } pairs[] = {
        {"raw", "entropy:k1v1", CODECS_WAY_RECODE},
        {"lossless", "raw", CODECS_WAY_RECODE},
        {"lossless:fast", "planes:k2v2,g64", CODECS_WAY_RECODE},
        {"planes:k8v8,g64", "planes:k4v4,g64", CODECS_WAY_DROP},
        {"planes:k4v3,g64", "planes:k4v2,g64", CODECS_WAY_DROP},
        {"planes:k8v8,g64", "planes:k4v4,g32", CODECS_WAY_RECODE},
        {"planes:k8v8,g64", "entropy:k1v1", CODECS_WAY_RECODE},
        {"planes:k8v6,g64", "entropy:k1v1", CODECS_WAY_NONE},
        {"planes:k4v2,g64", "planes:k4v3,g64", CODECS_WAY_NONE},
        {"planes:k6v6,g64", "planes:k4v4,g32", CODECS_WAY_NONE},
        {"entropy:k0.25v0.5", "entropy:k0.75v1.5", CODECS_WAY_DERIVE},
        {"entropy:k0.25v0.5", "entropy:k0.25v1.5", CODECS_WAY_DERIVE},
        {"entropy:k0.25v0.5", "entropy:k0.5v1.5", CODECS_WAY_NONE},
        {"entropy:k0.25v0.5", "entropy:k0.75v1.5,vchan", CODECS_WAY_NONE},
        {"entropy:k0.75v1.5", "entropy:k0.25v0.5", CODECS_WAY_NONE},
        {"entropy:k0.25v0.5", "planes:k2v2,g64", CODECS_WAY_NONE},
        {"kivi:k8v8,g64", "kivi:k4v4,g64", CODECS_WAY_NONE},
        {"drop:stream,50+planes:k8v8,g64", "drop:stream,50+planes:k4v4,g64", CODECS_WAY_DROP},
        {"drop:stream,50+planes:k8v8,g64", "planes:k4v4,g64", CODECS_WAY_NONE},
        {"drop:stream,50+raw", "raw", CODECS_WAY_NONE},
        {"planes:k8v8,g64", "drop:stream,50+planes:k4v4,g64", CODECS_WAY_RECODE},
        {"drop:stream,50", "drop:stream,25", CODECS_WAY_RECODE},
        {"drop:stream,50", "drop:stream,50+entropy:k1v1", CODECS_WAY_RECODE},
        {"drop:scores,50+lossless", "drop:scores,25+planes:k4v4,g64", CODECS_WAY_RECODE},
        {"drop:scores,50+planes:k8v8,g64", "drop:scores,25+planes:k4v4,g64", CODECS_WAY_RECODE},
        {"drop:scores,50+planes:k6v6,g64", "drop:scores,25+planes:k4v4,g64", CODECS_WAY_NONE},
        {"drop:stream,25", "drop:stream,50", CODECS_WAY_NONE},
        {"drop:stream,50", "drop:scores,25", CODECS_WAY_NONE},
        {"drop:knorm,50", "drop:knorm,25", CODECS_WAY_NONE},
        {"drop:keydiff,50", "drop:keydiff,50+planes:k4v4,g64", CODECS_WAY_NONE},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        if (codecs_made_from(named(pairs[i].from), named(pairs[i].to)) != pairs[i].way)
            fail_msg("%s to %s", pairs[i].from, pairs[i].to);
    }
}

TEST(unknown_codecs_make_nothing)
{
    const kvt_variant unknown = {.codec = 127};
    assert_int_equal(codecs_made_from(unknown, named("raw")), CODECS_WAY_NONE);
    assert_int_equal(codecs_made_from(unknown, unknown), CODECS_WAY_NONE);
}
