/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_codecs_rows.c - the drop stage inside records: which rows are kept, before any codec, and
 * what a reader learns about them.
 */
#include "codecs/codecs.h"
#include "codecs/drop.h"
#include "codecs_support.h"

#include <stdio.h>

static const kvt_layout whole = {.layers = 3,
                                 .kv_heads = 2,
                                 .head_dim = 64,
                                 .dtype = KVT_DTYPE_BF16,
                                 .tokens = 300,
                                 .tokens_may_drop = 1};

enum { TOKENS = 300, LAYERS = 3, ROW = 256 };

static encoded make(const char *variant, const kvt_codec_extras *extras, uint32_t chain_first)
{
    encoded e = {.spec = codecs_support_spec(whole, variant)};
    uint64_t bytes;
    uint64_t bound;
    uint64_t scratch;
    e.spec.first_position = chain_first;
    assert_status(kvt_layout_bytes(&whole, &bytes), KVT_OK);
    assert_status(kvt_record_bound(&e.spec, &bound, &scratch), KVT_OK);
    e.source = guarded_make(bytes);
    e.record = guarded_make(bound);
    e.scratch = guarded_make(scratch);
    codecs_kv_sample_fill(&whole, 17, e.source.data);
    e.status = kvt_record_encode_with(&e.spec, extras, e.source.data, bytes, e.record.data, bound,
                                      e.scratch.data, scratch, &e.record.bytes);
    assert_true(e.status == KVT_OK || e.status == KVT_RAW);
    guarded_check(&e.scratch, scratch);
    kvt_record_info info;
    assert_status(kvt_record_verify(e.record.data, e.record.bytes, &info), KVT_OK);
    assert_int_equal(info.source_bytes, bytes);
    e.decoded = guarded_make(info.decoded_bytes);
    assert_status(encoded_decode(&e), KVT_OK);
    return e;
}

/* Raw rows after a drop are the source's rows at the kept tokens. */
static void check_raw_rows(encoded *e, uint32_t keep, uint32_t kept[LAYERS][TOKENS])
{
    kvt_record_info info;
    assert_status(kvt_record_parse(e->record.data, e->record.bytes, &info), KVT_OK);
    assert_int_equal(info.stored_tokens, keep);
    assert_int_equal(info.decoded_bytes, 6 * (uint64_t)keep * ROW);
    guarded one = guarded_make((uint64_t)keep * ROW);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        assert_status(
            kvt_record_kept_tokens(e->record.data, e->record.bytes, layer, kept[layer], TOKENS),
            KVT_OK);
        for (uint32_t side = 0; side < 2; side++) {
            const uint64_t matrix = layer * 2 + side;
            const uint8_t *rows = e->decoded.data + matrix * keep * ROW;
            for (uint32_t i = 0; i < keep; i++) {
                assert_true(i == 0 || kept[layer][i] > kept[layer][i - 1]);
                const uint8_t *row = e->source.data + (matrix * TOKENS + kept[layer][i]) * ROW;
                assert_memory_equal(rows + (uint64_t)i * ROW, row, ROW);
            }
            assert_status(kvt_record_decode_matrix(e->record.data, e->record.bytes, NULL, layer,
                                                   (kvt_side)side, one.data, one.bytes,
                                                   e->scratch.data, e->scratch.bytes),
                          KVT_OK);
            assert_memory_equal(one.data, rows, one.bytes);
        }
    }
}

TEST(every_method_keeps_whole_rows)
{
    static const char *const methods[] = {"stream", "knorm", "keydiff", "lagkv", "scores"};
    static uint32_t kept[LAYERS][TOKENS];
    static float scores[LAYERS * TOKENS];
    for (unsigned i = 0; i < LAYERS * TOKENS; i++) {
        scores[i] = (float)(i * 7919 % 1009);
    }
    for (size_t m = 0; m < 2 * sizeof methods / sizeof methods[0]; m++) {
        char name[64];
        const kvt_codec_extras extras = {
            .struct_size = sizeof extras, .scores = scores, .score_layers = LAYERS};
        snprintf(name, sizeof name, "drop:%s,50%s", methods[m / 2], m % 2 ? "+lossless" : "");
        encoded e = make(name, m / 2 == 4 ? &extras : NULL, 0);
        check_raw_rows(&e, 150, kept);
        if (m / 2 == 0) {
            assert_int_equal(kept[0][3], 3); /* sinks, then the most recent */
            assert_int_equal(kept[0][4], 154);
        } else if (m / 2 != 3) { /* LagKV has no whole partition to choose from here */
            assert_memory_not_equal(kept[0], kept[1], 150 * sizeof kept[0][0]);
        }
    }
}

/* What a codec stores after a drop is what it stores of the kept rows alone. */
TEST(codecs_see_the_kept_rows_only)
{
    static const char *const codecs[] = {"planes:k8v6,g64", "kivi:k4v4,g64", "entropy"};
    for (size_t c = 0; c < sizeof codecs / sizeof codecs[0]; c++) {
        char name[64];
        snprintf(name, sizeof name, "drop:knorm,25+%s", codecs[c]);
        encoded dropped = make(name, NULL, 1024);
        encoded rows = make("drop:knorm,25", NULL, 1024);
        kvt_layout layout = whole;
        layout.tokens = (uint32_t)(rows.decoded.bytes / (6 * ROW));
        encoded alone = encoded_make(layout, codecs[c], rows.decoded.data);
        assert_status(encoded_decode(&alone), KVT_OK);
        assert_int_equal(alone.decoded.bytes, dropped.decoded.bytes);
        assert_memory_equal(alone.decoded.data, dropped.decoded.data, alone.decoded.bytes);
    }
}

TEST(planes_drop_after_tokens)
{
    kvt_record_drop drop;
    encoded full = make("drop:stream,50+planes:k8v8,g64", NULL, 0);
    encoded direct = make("drop:stream,50+planes:k4v4,g64", NULL, 0);
    assert_status(
        kvt_record_drop_planes(full.record.data, full.record.bytes, direct.spec.variant, &drop),
        KVT_OK);
    assert_int_equal(drop.record_bytes, direct.record.bytes);
    full.record.bytes = drop.record_bytes;
    assert_status(encoded_decode(&full), KVT_OK);
    assert_memory_equal(full.decoded.data, direct.decoded.data, direct.decoded.bytes);
    kvt_variant other = direct.spec.variant;
    other.mode = (uint16_t)(other.mode & 0xff);
    assert_status(kvt_record_drop_planes(full.record.data, full.record.bytes, other, &drop),
                  KVT_E_ARGUMENT);
}

/* What a record holds follows from its layout, place and variant. */
TEST(kept_tokens_are_known_without_the_record)
{
    static const char *const names[] = {"drop:stream,50", "drop:stream,3.1+planes", "drop:knorm,25",
                                        "drop:lagkv,75", "planes"};
    static const uint32_t sets[] = {1, 1, LAYERS, LAYERS, 0};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        for (uint32_t first = 0; first < 3000; first += 1000) {
            uint32_t tokens, found;
            encoded e = make(names[i], NULL, first);
            kvt_record_info info;
            assert_status(kvt_record_parse(e.record.data, e.record.bytes, &info), KVT_OK);
            assert_status(codecs_kept_tokens(&whole, first, e.spec.variant, &tokens, &found),
                          KVT_OK);
            assert_int_equal(tokens, info.stored_tokens);
            assert_int_equal(found, sets[i]);
        }
    }
    /* Four tokens of this chain stay, the sinks, and the entry has none of them. */
    kvt_layout small = whole;
    kvt_variant variant;
    uint32_t tokens, found;
    small.tokens = 8;
    assert_status(kvt_variant_parse("drop:stream,3.1", &variant), KVT_OK);
    assert_status(codecs_kept_tokens(&small, 100, variant, &tokens, &found), KVT_E_UNSUPPORTED);
    small.tokens_may_drop = 0;
    assert_status(codecs_kept_tokens(&small, 0, variant, &tokens, &found), KVT_E_UNSUPPORTED);
}

/* Tokens dropped once more are those that would have been dropped at once: the kept rows at their
 * places, zeros elsewhere, give the record of the entry itself. */
TEST(a_smaller_share_is_part_of_a_larger_one)
{
    static const char *const pairs[][2] = {{"drop:stream,50", "drop:stream,25"},
                                           {"drop:scores,50", "drop:scores,25+planes:k4v4,g64"},
                                           {"drop:scores,75", "drop:scores,12.5+entropy:k0.5v1"}};
    static float scores[TOKENS];
    static uint32_t kept[TOKENS];
    for (uint32_t i = 0; i < TOKENS; i++)
        scores[i] = (float)(i * 7919 % 53) - 26; /* many are equal */
    for (uint32_t p = 0; p < sizeof pairs / sizeof pairs[0]; p++) {
        const kvt_codec_extras extras = {
            .struct_size = sizeof extras, .scores = scores, .score_layers = 1};
        const kvt_codec_extras *given = p != 0 ? &extras : NULL;
        encoded more = make(pairs[p][0], given, p * 500), fewer = make(pairs[p][1], given, p * 500);
        assert_status(kvt_record_kept_tokens(more.record.data, more.record.bytes, 0, kept, TOKENS),
                      KVT_OK);
        guarded restored = guarded_make(6 * TOKENS * ROW), again = guarded_make(2 << 20);
        const uint64_t keep = more.decoded.bytes / 6;
        for (uint32_t m = 0; m < 6; m++)
            assert_status(drop_scatter(more.decoded.data + m * keep, ROW, kept,
                                       (uint32_t)(keep / ROW), TOKENS,
                                       restored.data + (uint64_t)m * TOKENS * ROW),
                          KVT_OK);
        uint64_t bytes;
        assert_status(kvt_record_encode_with(&fewer.spec, given, restored.data, restored.bytes,
                                             again.data, again.bytes, fewer.scratch.data,
                                             fewer.scratch.bytes, &bytes),
                      KVT_OK);
        assert_int_equal(bytes, fewer.record.bytes);
        assert_memory_equal(again.data, fewer.record.data, bytes);
    }
}

TEST(every_flipped_index_byte_is_found)
{
    encoded e = make("drop:keydiff,50+planes:k2v2,g64", NULL, 0);
    kvt_record_info info;
    static uint32_t kept[TOKENS];
    for (uint64_t i = 0; i < e.record.bytes; i += 7) {
        e.record.data[i] ^= 4;
        assert_status(kvt_record_verify(e.record.data, e.record.bytes, &info), KVT_E_CORRUPT);
        kvt_status status = kvt_record_kept_tokens(e.record.data, e.record.bytes, 2, kept, TOKENS);
        assert_true(status == KVT_OK || status == KVT_E_CORRUPT);
        e.record.data[i] ^= 4;
    }
}

TEST(drops_that_may_not_be_are_refused)
{
    uint64_t bound;
    uint64_t scratch;
    kvt_record_spec spec = codecs_support_spec(whole, "drop:stream,50+planes");
    spec.layout.tokens_may_drop = 0;
    assert_status(kvt_record_bound(&spec, &bound, &scratch), KVT_E_UNSUPPORTED);
    spec.layout.tokens_may_drop = 1;
    spec.layout.dtype = KVT_DTYPE_FP8;
    assert_status(kvt_record_bound(&spec, &bound, &scratch), KVT_E_UNSUPPORTED);
    spec.layout = whole;
    assert_status(kvt_record_bound(&spec, &bound, &scratch), KVT_OK);
    /* Scores are needed, and sinks are the drop stage's own business. */
    encoded e = make("drop:stream,50", NULL, 0);
    spec = codecs_support_spec(whole, "drop:scores,50");
    uint64_t written;
    assert_status(kvt_record_bound(&spec, &bound, &scratch), KVT_OK);
    guarded room = guarded_make(bound);
    guarded more = guarded_make(scratch);
    assert_status(kvt_record_encode(&spec, e.source.data, e.source.bytes, room.data, bound,
                                    more.data, scratch, &written),
                  KVT_E_ARGUMENT);
    const kvt_codec_extras extras = {.struct_size = sizeof extras, .sink_tokens = 4};
    spec = codecs_support_spec(whole, "drop:stream,50+planes");
    assert_status(kvt_record_encode_with(&spec, &extras, e.source.data, e.source.bytes, room.data,
                                         bound, more.data, scratch, &written),
                  KVT_E_UNSUPPORTED);
}
