/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_codecs_lossless.c - what the lossless codec must reach on KV-like content, what it must
 * notice, and that damaged segments are refused.
 */
#include "codecs/codec_table.h"
#include "codecs/lossless_bytes.h"
#include "codecs_support.h"

#include <xxhash.h>
#include <zstd.h>

#define PIN_BF16 UINT64_C(0xf8bcbecc889c4c0e)
#define PIN_FP16 UINT64_C(0xf9e31344d51726a4)
#define PIN_FP32 UINT64_C(0xe00c8551cd5c28eb)
#define PIN_FP8  UINT64_C(0xb0eefe88b35470d9)

enum { TOKENS = 512, WIDTH = 1024 };

static kvt_layout layout_of(uint8_t dtype)
{
    kvt_layout layout = {
        .layers = 1, .kv_heads = 8, .head_dim = 128, .dtype = dtype, .tokens = TOKENS};
    return layout;
}

static double payload_bits(const encoded *e)
{
    kvt_record_info info;
    assert_status(kvt_record_verify(e->record.data, e->record.bytes, &info), KVT_OK);
    return info.bits_per_element;
}

static double bits_of(kvt_layout layout, const void *source)
{
    encoded e = encoded_make(layout, "lossless", source);
    double bits = payload_bits(&e);
    assert_status(encoded_decode(&e), KVT_OK);
    assert_memory_equal(e.decoded.data, e.source.data, e.source.bytes);
    return bits;
}

TEST(kv_like_entries_shrink)
{
    /* 16 bits at a ratio of 1.44; fp16 and fp32 carry more mantissa that nothing shrinks. */
    assert_true(bits_of(layout_of(KVT_DTYPE_BF16), NULL) <= 16.0 / 1.44);
    assert_true(bits_of(layout_of(KVT_DTYPE_FP16), NULL) <= 16.0 / 1.15);
    assert_true(bits_of(layout_of(KVT_DTYPE_FP32), NULL) <= 32.0 / 1.17);
    assert_true(bits_of(layout_of(KVT_DTYPE_FP8), NULL) <= 8.0 / 1.2);
}

static float float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* fp32 and fp16 entries that hold bf16 values have mantissa bits that are always zero. */
TEST(hidden_bf16_is_noticed)
{
    kvt_layout bf16 = layout_of(KVT_DTYPE_BF16);
    const size_t count = 2 * (size_t)TOKENS * WIDTH;
    uint16_t *source = test_alloc(count * sizeof *source);
    uint32_t *wide = test_alloc(count * sizeof *wide);
    uint16_t *half = test_alloc(count * sizeof *half);
    codecs_kv_sample_fill(&bf16, 21, source);
    for (size_t i = 0; i < count; i++) {
        wide[i] = (uint32_t)source[i] << 16;
        /* Exact for the fp16 range of normal numbers; smaller ones become zero. */
        uint32_t exponent = (source[i] >> 7) & 0xffu;
        bool normal = exponent >= 113 && exponent < 143;
        assert_true(float_of_bits(wide[i]) < 65504.0f);
        half[i] = normal ? (uint16_t)((source[i] & 0x8000u) | ((exponent - 112) << 10) |
                                      ((source[i] & 0x7fu) << 3))
                         : 0;
    }
    assert_true(bits_of(layout_of(KVT_DTYPE_FP32), wide) <= 12.0);
    assert_true(bits_of(layout_of(KVT_DTYPE_FP16), half) <= 11.5);
}

TEST(constant_entries_almost_vanish)
{
    kvt_layout layout = layout_of(KVT_DTYPE_BF16);
    uint8_t *source = test_zeros(2 * (size_t)TOKENS * WIDTH * 2);
    assert_true(bits_of(layout, source) < 0.1);
}

TEST(opaque_repeats_are_found)
{
    const kvt_layout layout = {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = 1 << 20};
    const kvt_layout noise = {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = 1 << 14};
    uint8_t *source = test_alloc(1 << 20);
    codecs_kv_sample_fill(&noise, 3, source);
    for (size_t i = 1; i < 64; i++) {
        memcpy(source + i * (1 << 14), source, 1 << 14);
    }
    assert_true(bits_of(layout, source) < 2.0);
}

/* All 65536 patterns in every position of a tile, with and without bases. */
TEST(every_16_bit_pattern_survives)
{
    static const uint8_t dtypes[] = {KVT_DTYPE_BF16, KVT_DTYPE_FP16};
    const size_t count = 2 * 65536;
    uint16_t *source = test_alloc(count * sizeof *source);
    for (unsigned k = 0; k < 8; k++) {
        kvt_layout layout = {.layers = 1, .kv_heads = 1, .dtype = dtypes[k % 2]};
        layout.tokens = k & 2 ? 16 : 1024;
        layout.head_dim = (uint16_t)(65536 / layout.tokens);
        for (size_t i = 0; i < count; i++) {
            source[i] = (uint16_t)(k & 4 ? i * 40503u : i);
        }
        (void)bits_of(layout, source);
    }
}

/* A segment of any bytes decodes to something or is refused; nothing is written past the target.
 * Every single-byte change and every cut of a sound segment is tried. */
TEST(damaged_segments_are_bounded)
{
    const kvt_layout layout = {
        .layers = 1, .kv_heads = 1, .head_dim = 24, .dtype = KVT_DTYPE_FP16, .tokens = 100};
    const kvt_variant variant = {KVT_CODEC_LOSSLESS, KVT_LOSSLESS_DENSE, 0};
    const kvt_codec *codec = kvt_codec_find(KVT_CODEC_LOSSLESS);
    const uint64_t bytes = kvt_layout_matrix_bytes(&layout);
    guarded source = guarded_make(2 * bytes);
    guarded stored = guarded_make(bytes);
    guarded target = guarded_make(bytes);
    guarded scratch = guarded_make(codec->segment_scratch(variant, &layout, bytes));
    uint64_t written;
    unsigned refused = 0;
    codecs_kv_sample_fill(&layout, 8, source.data);
    assert_status(codec->encode_segment(variant, &layout, source.data, bytes, stored.data, bytes,
                                        scratch.data, scratch.bytes, &written),
                  KVT_OK);
    for (uint64_t i = 0; i < written; i++) {
        stored.data[i] ^= 0x55;
        kvt_status status = codec->decode_segment(variant, &layout, stored.data, written,
                                                  VIEW_ROWS_PACKED(target.data, bytes),
                                                  scratch.data, scratch.bytes);
        if (status != KVT_OK) assert_status(status, KVT_E_CORRUPT);
        refused += status != KVT_OK;
        stored.data[i] ^= 0x55;
        guarded_check(&target, bytes);
        guarded_check(&scratch, scratch.bytes);
        uint8_t *cut = test_alloc(i + 1);
        memcpy(cut, stored.data, i);
        assert_status(codec->decode_segment(variant, &layout, cut, i,
                                            VIEW_ROWS_PACKED(target.data, bytes), scratch.data,
                                            scratch.bytes),
                      KVT_E_CORRUPT);
    }
    /* The tile's head and words carry no free bits. */
    assert_true(refused >= 12);
    assert_status(codec->decode_segment(variant, &layout, stored.data, written,
                                        VIEW_ROWS_PACKED(target.data, bytes - 2), scratch.data,
                                        scratch.bytes),
                  KVT_E_CORRUPT);
}

TEST(sample_is_pinned_and_seeded)
{
    const kvt_layout layout = layout_of(KVT_DTYPE_BF16);
    const size_t bytes = 4 * (size_t)TOKENS * WIDTH;
    uint8_t *first = test_alloc(bytes);
    uint8_t *second = test_alloc(bytes);
    codecs_kv_sample_fill(&layout, 1, first);
    codecs_kv_sample_fill(&layout, 1, second);
    assert_memory_equal(first, second, bytes);
    codecs_kv_sample_fill(&layout, 2, second);
    assert_memory_not_equal(first, second, 64);
    static const uint8_t dtypes[] = {KVT_DTYPE_BF16, KVT_DTYPE_FP16, KVT_DTYPE_FP32, KVT_DTYPE_FP8};
    static const uint64_t pinned[] = {PIN_BF16, PIN_FP16, PIN_FP32, PIN_FP8};
    for (unsigned i = 0; i < 4; i++) {
        kvt_layout small = layout;
        small.dtype = dtypes[i];
        small.tokens = 64;
        uint64_t size;
        assert_status(kvt_layout_bytes(&small, &size), KVT_OK);
        codecs_kv_sample_fill(&small, 42, first);
        assert_int_equal(XXH3_64bits(first, size), pinned[i]);
    }
}

/* Tokens differ, all values are finite, and about one channel in ten has a mean far from zero. */
TEST(sample_looks_like_kv)
{
    const kvt_layout layout = layout_of(KVT_DTYPE_FP32);
    const size_t count = 2 * (size_t)TOKENS * WIDTH;
    float *values = test_alloc(count * sizeof *values);
    unsigned biased = 0;
    double smallest = 1e9;
    double largest = 0;
    codecs_kv_sample_fill(&layout, 4, values);
    for (unsigned c = 0; c < WIDTH; c++) {
        double sum = 0;
        double squares = 0;
        for (unsigned t = 0; t < TOKENS; t++) {
            double x = (double)values[(size_t)t * WIDTH + c];
            assert_true(x > -1e3 && x < 1e3);
            sum += x;
            squares += x * x;
        }
        double mean = sum / TOKENS;
        double variance = squares / TOKENS - mean * mean;
        assert_true(variance > 0);
        biased += mean * mean > variance;
        if (variance < smallest) smallest = variance;
        if (variance > largest) largest = variance;
    }
    assert_in_range(biased, 70, 140);
    assert_true(largest > 30 * smallest);
}

/* Segments of fp8 as 0.2.0 wrote them, runs of bytes, are read. */
TEST(fp8_of_the_first_release_is_read)
{
    const kvt_layout layout = {
        .layers = 1, .kv_heads = 4, .head_dim = 128, .dtype = KVT_DTYPE_FP8, .tokens = 700};
    const kvt_variant variant = {KVT_CODEC_LOSSLESS, KVT_LOSSLESS_DENSE, 0};
    const kvt_codec *codec = kvt_codec_find(KVT_CODEC_LOSSLESS);
    const uint64_t bytes = kvt_layout_matrix_bytes(&layout);
    guarded source = guarded_make(2 * bytes);
    guarded stored = guarded_make(bytes);
    guarded target = guarded_make(bytes);
    guarded writing = guarded_make(lossless_bytes_scratch(bytes));
    guarded reading = guarded_make(codec->segment_scratch(variant, &layout, bytes));
    uint64_t written;
    codecs_kv_sample_fill(&layout, 8, source.data);
    assert_status(
        lossless_bytes_encode(source.data, bytes, stored.data, bytes, writing.data, &written),
        KVT_OK);
    assert_status(codec->decode_segment(variant, &layout, stored.data, written,
                                        VIEW_ROWS_PACKED(target.data, bytes), reading.data,
                                        reading.bytes),
                  KVT_OK);
    assert_memory_equal(target.data, source.data, bytes);
    assert_status(codec->decode_segment(variant, &layout, stored.data, written - 1,
                                        VIEW_ROWS_PACKED(target.data, bytes), reading.data,
                                        reading.bytes),
                  KVT_E_CORRUPT);
}

/* A run is one frame: what lies behind it decodes to nothing, and is refused all the same. */
TEST(frames_in_a_row_are_refused)
{
    static const uint8_t skippable[8] = {0x50, 0x2a, 0x4d, 0x18};
    enum { RUN = 4096 };
    const kvt_layout layout = {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = RUN};
    const kvt_codec *codec = kvt_codec_find(KVT_CODEC_LOSSLESS);
    kvt_variant variant;
    uint8_t run[RUN] = {0};
    uint8_t stored[RUN];
    assert_status(kvt_variant_parse("lossless", &variant), KVT_OK);
    guarded scratch = guarded_make(codec->segment_scratch(variant, &layout, RUN));
    const size_t frame = ZSTD_compress(stored + 4, RUN - 4, run, RUN, 1);
    assert_false(ZSTD_isError(frame));
    for (unsigned kind = 0; kind < 3; kind++) {
        size_t bytes = frame;
        if (kind == 1) {
            memcpy(stored + 4 + bytes, skippable, sizeof skippable);
            bytes += sizeof skippable;
        }
        if (kind == 2) bytes += ZSTD_compress(stored + 4 + bytes, 64, run, 0, 1);
        const uint32_t word = (uint32_t)bytes | UINT32_C(1) << 31;
        memcpy(stored, &word, sizeof word);
        assert_status(codec->decode_segment(variant, &layout, stored, 4 + bytes,
                                            VIEW_ROWS_PACKED(run, RUN), scratch.data,
                                            scratch.bytes),
                      kind == 0 ? KVT_OK : KVT_E_CORRUPT);
    }
}
