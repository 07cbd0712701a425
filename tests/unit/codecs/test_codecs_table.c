/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_codecs_table.c - the table of codecs and the names of variants.
 */
#include "codecs/codec_table.h"
#include "codecs_support.h"

TEST(table_finds_by_id)
{
    assert_string_equal(kvt_codec_find(KVT_CODEC_RAW)->name, "raw");
    assert_null(kvt_codec_find(0));
    assert_null(kvt_codec_find(200));
    assert_int_equal(kvt_codec_find(KVT_CODEC_KIVI)->id, KVT_CODEC_KIVI);
    assert_null(kvt_codec_find(KVT_CODEC_DROP)); /* a stage, not a codec */
    assert_non_null(kvt_codec_at(1));
    assert_null(kvt_codec_at(100));
    assert_null(kvt_codec_at(SIZE_MAX));
}

TEST(variant_names_go_round)
{
    static const char *const names[] = {"raw",
                                        "lossless",
                                        "kivi:k4v4,g64",
                                        "kivi:k2v8,g32,r128",
                                        "kivi:k2v2,g128,r128,half",
                                        "planes:k6v4,g64",
                                        "planes:k2v8,g32,vhead",
                                        "planes:k8v3,g128,vchan,vfirst",
                                        "drop:stream,50",
                                        "drop:scores,25+planes:k4v4,g64",
                                        "drop:lagkv,3.125+lossless"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        kvt_variant variant;
        char text[64];
        assert_status(kvt_variant_parse(names[i], &variant), KVT_OK);
        assert_int_equal(kvt_variant_format(variant, text, sizeof text), strlen(names[i]));
        assert_string_equal(text, names[i]);
    }
}

TEST(variant_parse_refuses_others)
{
    static const char *const names[] = {"",
                                        "raw ",
                                        "RAW",
                                        "raw:",
                                        "lossless:9",
                                        "losslessx",
                                        "kivi:",
                                        "kivi:k3v4",
                                        "kivi:k4v4,g16",
                                        "kivi:k4v4,g48",
                                        "kivi:k4v4,r33",
                                        "kivi:k4v4,g128,r32",
                                        "kivi:k4v4,",
                                        "planes:k5v4",
                                        "planes:k4",
                                        "planes:k4v4,vhead,vchan",
                                        "planes:k4v4,g64x",
                                        "planes:k99999999999v4",
                                        "drop:",
                                        "drop:stream",
                                        "drop:stream,0",
                                        "drop:stream,100",
                                        "drop:stream,50+",
                                        "drop:nothing,50",
                                        "drop:stream,50+drop:stream,50"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        kvt_variant variant;
        assert_status(kvt_variant_parse(names[i], &variant), KVT_E_ARGUMENT);
    }
}

TEST(short_names_take_defaults)
{
    static const char *const names[][2] = {{"kivi", "kivi:k4v4,g64"},
                                           {"kivi:k2v2", "kivi:k2v2,g64"},
                                           {"planes", "planes:k4v4,g64"},
                                           {"planes:g32,k6v4,vrow", "planes:k6v4,g32"},
                                           {"drop:knorm,50+raw", "drop:knorm,50"}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        kvt_variant variant;
        char text[64];
        assert_status(kvt_variant_parse(names[i][0], &variant), KVT_OK);
        kvt_variant_format(variant, text, sizeof text);
        assert_string_equal(text, names[i][1]);
    }
}

TEST(variant_format_cuts_and_terminates)
{
    const kvt_variant lossless = {KVT_CODEC_LOSSLESS, KVT_LOSSLESS_DENSE, 0};
    const kvt_variant unknown = {200, 3, 4000000000u};
    char text[64];
    memset(text, 'x', sizeof text);
    assert_int_equal(kvt_variant_format(lossless, text, 5), 8);
    assert_string_equal(text, "loss");
    assert_int_equal(text[5], 'x');
    assert_int_equal(kvt_variant_format(lossless, NULL, 0), 8);
    size_t length = kvt_variant_format(unknown, text, sizeof text);
    assert_string_equal(text, "codec200:mode3:rate4000000000");
    assert_int_equal(length, strlen(text));
}
