/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_codecs_sinks.c - the first tokens of a chain are stored raw in every lossy record unless the
 * caller asks for something else, and stay so when a coarser record is made.
 */
#include "codecs/codecs.h"
#include "codecs_support.h"

#include <stdio.h>

enum { TOKENS = 300, LAYERS = 3, ROW = 256 };

static const kvt_layout whole = {.layers = LAYERS,
                                 .kv_heads = 2,
                                 .head_dim = 64,
                                 .dtype = KVT_DTYPE_BF16,
                                 .tokens = TOKENS,
                                 .tokens_may_drop = 1};

static const char *const lossy[] = {"planes:k4v4,g64",    "planes:k2v2,g64", "kivi:k4v4,g64",
                                    "kivi:k2v2,g32",      "entropy:k0.5v1",  "entropy:k0.25v0.5",
                                    "entropy:k1v1,vchan", "planes:k8v8,g64"};

/* Encodes the same elements as an entry at `first`, with extras or without. */
static encoded make(const char *variant, uint32_t first, const kvt_codec_extras *extras)
{
    encoded e = encoded_make(whole, variant, NULL);
    e.spec.first_position = first;
    uint64_t bound, scratch;
    assert_status(kvt_record_bound(&e.spec, &bound, &scratch), KVT_OK);
    e.record = guarded_make(bound);
    e.status = kvt_record_encode_with(&e.spec, extras, e.source.data, e.source.bytes, e.record.data,
                                      bound, e.scratch.data, scratch, &e.record.bytes);
    assert_status(e.status, KVT_OK);
    kvt_record_info info;
    assert_status(kvt_record_verify(e.record.data, e.record.bytes, &info), KVT_OK);
    e.decoded.bytes = info.decoded_bytes;
    assert_status(encoded_decode(&e), KVT_OK);
    return e;
}

/* The fewest tokens that every matrix gives back unchanged at its front, of an entry whose kept
 * tokens begin with token 0. */
static uint32_t exact_front(const encoded *e)
{
    const uint64_t stored = e->decoded.bytes / (2 * LAYERS * ROW);
    uint32_t least = TOKENS;
    for (uint32_t m = 0; m < 2 * LAYERS; m++) {
        const uint8_t *source = e->source.data + (uint64_t)m * TOKENS * ROW;
        const uint8_t *decoded = e->decoded.data + m * stored * ROW;
        uint32_t same = 0;
        while (same < stored && memcmp(source + same * ROW, decoded + same * ROW, ROW) == 0)
            same++;
        if (same < least) least = same;
    }
    return least;
}

TEST(the_position_says_which_tokens_are_raw)
{
    for (size_t v = 0; v < sizeof lossy / sizeof lossy[0]; v++) {
        for (uint32_t first = 0; first <= KVT_SINK_TOKENS + 1; first++) {
            const uint32_t wanted = first < KVT_SINK_TOKENS ? KVT_SINK_TOKENS - first : 0;
            encoded e = make(lossy[v], first, NULL);
            if (exact_front(&e) != wanted)
                fail_msg("%s at %u: %u raw tokens", lossy[v], first, exact_front(&e));
            assert_int_equal(codecs_sink_tokens(e.spec.variant, first, TOKENS), wanted);
        }
    }
}

TEST(extras_count_as_they_are)
{
    const kvt_codec_extras none = {.struct_size = sizeof none};
    const kvt_codec_extras usual = {.struct_size = sizeof usual, .sink_tokens = KVT_SINK_TOKENS};
    for (size_t v = 0; v < sizeof lossy / sizeof lossy[0]; v++) {
        encoded without = make(lossy[v], 0, &none), with = make(lossy[v], 0, &usual);
        encoded plain = make(lossy[v], 0, NULL);
        assert_int_equal(exact_front(&without), 0); /* as every record of before was */
        assert_int_equal(plain.record.bytes, with.record.bytes);
        assert_memory_equal(plain.record.data, with.record.data, with.record.bytes);
    }
}

/* A derived record has the raw tokens of the record that it is made of, whether it has some. */
TEST(coarser_records_keep_the_front)
{
    static const struct {
        const char *from, *to;
    } pairs[] = {{"planes:k8v8,g64", "planes:k4v4,g64"},
                 {"planes:k4v4,g64", "planes:k2v2,g64"},
                 {"entropy:k0.25v0.5", "entropy:k0.75v1.5"}};
    const kvt_codec_extras none = {.struct_size = sizeof none};
    for (size_t i = 0; i < 2 * sizeof pairs / sizeof pairs[0]; i++) {
        const kvt_codec_extras *extras = i % 2 == 0 ? NULL : &none;
        encoded fine = make(pairs[i / 2].from, 0, extras), direct;
        direct = make(pairs[i / 2].to, 0, extras);
        guarded target = guarded_make(fine.record.bytes);
        kvt_record_drop drop;
        kvt_status status;
        if (codecs_made_from(fine.spec.variant, direct.spec.variant) == CODECS_WAY_DROP) {
            status = kvt_record_drop_planes(fine.record.data, fine.record.bytes,
                                            direct.spec.variant, &drop);
            fine.record.bytes = drop.record_bytes;
        } else {
            uint64_t written = 0;
            status = kvt_record_derive(fine.record.data, fine.record.bytes, NULL,
                                       direct.spec.variant, target.data, target.bytes,
                                       fine.scratch.data, fine.scratch.bytes, &written);
            memcpy(fine.record.data, target.data, written);
            fine.record.bytes = written;
        }
        assert_status(status, KVT_OK);
        assert_status(encoded_decode(&fine), KVT_OK);
        assert_int_equal(exact_front(&fine), i % 2 == 0 ? KVT_SINK_TOKENS : 0);
        assert_memory_equal(fine.decoded.data, direct.decoded.data, direct.decoded.bytes);
    }
}

TEST(a_drop_stage_keeps_them_and_stores_them_raw)
{
    static const char *const methods[] = {"stream", "knorm", "keydiff", "lagkv", "scores"};
    static float scores[TOKENS];
    const kvt_codec_extras scored = {
        .struct_size = sizeof scored, .scores = scores, .score_layers = 1};
    for (unsigned i = 0; i < TOKENS; i++)
        scores[i] = (float)i; /* the first tokens score least */
    for (size_t m = 0; m < 5; m++) {
        for (size_t v = 0; v < sizeof lossy / sizeof lossy[0]; v++) {
            char name[96];
            (void)snprintf(name, sizeof name, "drop:%s,50+%s", methods[m], lossy[v]);
            encoded e = encoded_make(whole, "planes:k4v4,g64", NULL);
            assert_status(kvt_variant_parse(name, &e.spec.variant), KVT_OK);
            e.spec.first_position = 0;
            uint64_t bound, scratch;
            assert_status(kvt_record_bound(&e.spec, &bound, &scratch), KVT_OK);
            guarded room = guarded_make(scratch);
            guarded record = guarded_make(bound);
            assert_status(kvt_record_encode_with(&e.spec, m == 4 ? &scored : NULL, e.source.data,
                                                 e.source.bytes, record.data, bound, room.data,
                                                 scratch, &record.bytes),
                          KVT_OK);
            kvt_record_info info;
            assert_status(kvt_record_parse(record.data, record.bytes, &info), KVT_OK);
            e.record = record;
            e.scratch = room;
            e.decoded.bytes = info.decoded_bytes;
            assert_status(encoded_decode(&e), KVT_OK);
            assert_true(exact_front(&e) >= KVT_SINK_TOKENS);
        }
    }
}

TEST(an_entry_of_sinks_alone_is_raw)
{
    kvt_layout layout = whole;
    layout.tokens = KVT_SINK_TOKENS;
    encoded e = encoded_make(layout, "planes:k4v4,g64", NULL);
    assert_status(e.status, KVT_OK);
    e.spec.first_position = 0;
    assert_status(kvt_record_encode(&e.spec, e.source.data, e.source.bytes, e.record.data,
                                    e.record.bytes, e.scratch.data, e.scratch.bytes,
                                    &e.record.bytes),
                  KVT_RAW);
    assert_status(encoded_decode(&e), KVT_OK);
    assert_memory_equal(e.decoded.data, e.source.data, e.source.bytes);
}
