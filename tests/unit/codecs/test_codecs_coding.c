/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_codecs_coding.c - the public calls on single records: the bytes of record.h's calls, every
 * status that coding.h names, and arguments that are none.
 */
#include "codecs_support.h"

#include <kvterrace/coding.h>

static const kvt_layout shaped = {.layers = 3,
                                  .kv_heads = 2,
                                  .head_dim = 32,
                                  .dtype = KVT_DTYPE_BF16,
                                  .tokens = 96,
                                  .tokens_may_drop = 1};

static const char *const variants[] = {
    "raw",
    "lossless",
    "lossless:fast",
    "kivi:k4v2,g32",
    "planes:k6v4,g32",
    "entropy:k0.25v0.5",
    "drop:knorm,50",
    "drop:stream,50+planes:k4v4,g32",
};
enum { VARIANTS = sizeof variants / sizeof variants[0], WORKERS = 3 };

/* A coding with buffers of exactly the sizes that its plan says. */
typedef struct site {
    kvt_coding coding;
    kvt_coding_sizes sizes;
    kvt_coding_info info;
    guarded source, record, scratch, decoded;
    kvt_status status;
} site;

static kvt_coding coding_of(const char *variant)
{
    const kvt_record_spec spec = codecs_support_spec(shaped, variant);
    return (kvt_coding){.struct_size = sizeof(kvt_coding),
                        .first_position = spec.first_position,
                        .key = spec.key,
                        .generation = spec.generation,
                        .layout = shaped,
                        .variant = spec.variant};
}

static kvt_status site_decode(site *s, const kvt_decoding *decoding)
{
    return kvt_coding_decode(decoding, s->record.data, s->info.record_bytes, s->decoded.data,
                             s->decoded.bytes, s->scratch.data, s->scratch.bytes);
}

static site site_make(const kvt_coding *coding)
{
    site s = {
        .coding = *coding, .sizes.struct_size = sizeof s.sizes, .info.struct_size = sizeof s.info};
    uint64_t written;
    assert_status(kvt_coding_plan(coding, &s.sizes), KVT_OK);
    s.source = guarded_make(s.sizes.source_bytes);
    s.record = guarded_make(s.sizes.record_bytes);
    s.scratch = guarded_make(s.sizes.scratch_bytes);
    codecs_kv_sample_fill(&coding->layout, 5, s.source.data);
    s.status = kvt_coding_encode(coding, s.source.data, s.source.bytes, s.record.data,
                                 s.record.bytes, s.scratch.data, s.scratch.bytes, &written);
    assert_true(s.status == KVT_OK || s.status == KVT_RAW);
    guarded_check(&s.record, s.record.bytes);
    guarded_check(&s.scratch, s.scratch.bytes);
    assert_status(kvt_coding_verify(s.record.data, written, &s.info), KVT_OK);
    assert_int_equal(s.info.record_bytes, written);
    s.decoded = guarded_make(s.info.decoded_bytes);
    const uint32_t workers = coding->workers != NULL ? coding->workers->count : 1;
    s.scratch = guarded_make(workers * s.info.scratch_bytes);
    return s;
}

TEST(records_are_those_of_the_store)
{
    for (size_t v = 0; v < VARIANTS; v++) {
        encoded e = encoded_make(shaped, variants[v], NULL);
        const kvt_coding coding = coding_of(variants[v]);
        site s = site_make(&coding);
        assert_int_equal(s.status, e.status);
        assert_int_equal(s.info.record_bytes, e.record.bytes);
        assert_memory_equal(s.record.data, e.record.data, e.record.bytes);
        assert_int_equal(s.info.first_position, 1024);
        assert_int_equal(s.info.generation, 3);
        assert_memory_equal(&s.info.key, &e.spec.key, sizeof e.spec.key);
        assert_int_equal(s.info.source_bytes, s.source.bytes);
        assert_int_equal(s.info.group_count, 0);

        assert_status(site_decode(&s, NULL), KVT_OK);
        guarded_check(&s.decoded, s.decoded.bytes);
        guarded_check(&s.scratch, s.scratch.bytes);
        if (s.decoded.bytes == s.source.bytes && v < 3)
            assert_memory_equal(s.decoded.data, s.source.data, s.source.bytes);
        guarded inside = guarded_make(s.decoded.bytes);
        assert_status(kvt_record_decode(e.record.data, e.record.bytes, NULL, inside.data,
                                        inside.bytes, s.scratch.data, s.scratch.bytes),
                      KVT_OK);
        assert_memory_equal(s.decoded.data, inside.data, inside.bytes);
    }
}

static void run_backwards(void *context, uint32_t tasks, kvt_codec_task task, void *argument)
{
    (void)context;
    for (uint32_t i = tasks; i-- > 0;)
        task(argument, i, i % WORKERS);
}

TEST(lent_threads_change_nothing)
{
    const kvt_codec_workers workers = {
        .struct_size = sizeof workers, .count = WORKERS, .run = run_backwards};
    for (size_t v = 0; v < VARIANTS; v++) {
        kvt_coding coding = coding_of(variants[v]);
        site alone = site_make(&coding);
        coding.workers = &workers;
        site lent = site_make(&coding);
        assert_int_equal(lent.info.record_bytes, alone.info.record_bytes);
        assert_memory_equal(lent.record.data, alone.record.data, alone.info.record_bytes);
        const kvt_decoding decoding = {.struct_size = sizeof decoding, .workers = &workers};
        assert_status(site_decode(&lent, &decoding), KVT_OK);
        guarded_check(&lent.scratch, lent.scratch.bytes);
        assert_status(site_decode(&alone, NULL), KVT_OK);
        assert_memory_equal(lent.decoded.data, alone.decoded.data, alone.decoded.bytes);
    }
}

TEST(sinks_are_raw_unless_none_are_wanted)
{
    const uint64_t row = 2 * 32 * 2;
    kvt_coding coding = coding_of("planes:k2v2,g32");
    coding.first_position = 0;
    for (uint32_t sinks = 0; sinks < 3; sinks++) {
        const uint32_t given[] = {0, 9, KVT_CODING_NO_SINKS}, raw[] = {4, 9, 0};
        coding.sink_tokens = given[sinks];
        site s = site_make(&coding);
        assert_status(site_decode(&s, NULL), KVT_OK);
        assert_memory_equal(s.decoded.data, s.source.data, raw[sinks] * row);
        assert_memory_not_equal(s.decoded.data + raw[sinks] * row, s.source.data + raw[sinks] * row,
                                row);
    }
    /* The last tokens, too, beside the usual sinks. */
    coding.sink_tokens = 0;
    coding.recent_tokens = 5;
    site s = site_make(&coding);
    assert_status(site_decode(&s, NULL), KVT_OK);
    assert_memory_equal(s.decoded.data, s.source.data, 4 * row);
    assert_memory_equal(s.decoded.data + 91 * row, s.source.data + 91 * row, 5 * row);
    assert_memory_not_equal(s.decoded.data + 90 * row, s.source.data + 90 * row, row);
}

TEST(levels_and_scores_come_through)
{
    const int8_t levels[] = {0, 0, 0, 0, -1, -1};
    kvt_coding coding = coding_of("planes:k4v4,g32");
    site plain = site_make(&coding);
    coding.levels = levels;
    site other = site_make(&coding);
    assert_true(other.info.payload_bytes < plain.info.payload_bytes);

    float scores[96];
    uint32_t kept[96];
    for (uint32_t t = 0; t < 96; t++)
        scores[t] = t % 2 == 0 ? 1.0f : 0.0f;
    coding = coding_of("drop:scores,50");
    coding.scores = scores;
    coding.score_layers = 1;
    site s = site_make(&coding);
    assert_true(s.info.stored_tokens < 96);
    assert_status(kvt_coding_tokens_read(s.record.data, s.info.record_bytes, 2, kept, 96), KVT_OK);
    for (uint32_t t = 0; t < s.info.stored_tokens && t < 48; t++)
        assert_int_equal(kept[t], 2 * t);
    assert_status(kvt_coding_tokens_read(s.record.data, s.info.record_bytes, 3, kept, 96),
                  KVT_E_ARGUMENT);
    assert_status(kvt_coding_tokens_read(s.record.data, s.info.record_bytes, 0, kept, 3),
                  KVT_E_ARGUMENT);
}

/* A coarser record decodes as the one that was encoded so. */
static void check_derived(const char *from, const char *to)
{
    const kvt_coding fine = coding_of(from), coarse = coding_of(to);
    site s = site_make(&fine), wanted = site_make(&coarse);
    guarded target = guarded_make(s.info.record_bytes);
    guarded decoded = guarded_make(wanted.decoded.bytes);
    uint64_t bytes;
    assert_status(kvt_coding_derive(NULL, s.record.data, s.info.record_bytes, coarse.variant,
                                    target.data, target.bytes, s.scratch.data, s.scratch.bytes,
                                    &bytes),
                  KVT_OK);
    guarded_check(&target, target.bytes);
    assert_true(bytes < s.info.record_bytes);
    assert_status(kvt_coding_decode(NULL, target.data, bytes, decoded.data, decoded.bytes,
                                    s.scratch.data, s.scratch.bytes),
                  KVT_OK);
    assert_status(site_decode(&wanted, NULL), KVT_OK);
    assert_memory_equal(decoded.data, wanted.decoded.data, decoded.bytes);

    assert_status(kvt_coding_derive(NULL, s.record.data, s.info.record_bytes, coarse.variant,
                                    target.data, 4096, s.scratch.data, s.scratch.bytes, &bytes),
                  KVT_E_SPACE);
    assert_int_equal(bytes, 0);
    kvt_variant other;
    assert_status(kvt_variant_parse("entropy", &other), KVT_OK);
    assert_true(kvt_coding_derive(NULL, s.record.data, s.info.record_bytes, other, target.data,
                                  target.bytes, s.scratch.data, s.scratch.bytes, &bytes) < 0);
    s.record.data[s.info.record_bytes - 4096] ^= 1;
    assert_status(kvt_coding_derive(NULL, s.record.data, s.info.record_bytes, coarse.variant,
                                    target.data, target.bytes, s.scratch.data, s.scratch.bytes,
                                    &bytes),
                  KVT_E_CORRUPT);
}

TEST(a_coarser_record_is_made_of_a_record)
{
    check_derived("entropy:k0.25v0.25", "entropy:k0.75v0.75");
    check_derived("planes:k6v6,g32", "planes:k4v6,g32");
}

TEST(damage_is_found)
{
    for (size_t v = 0; v < VARIANTS; v++) {
        const kvt_coding coding = coding_of(variants[v]);
        site s = site_make(&coding);
        kvt_coding_info info = {.struct_size = sizeof info};
        const uint64_t places[] = {9, 60, 8200, s.info.record_bytes - 1};
        for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
            s.record.data[places[i]] ^= 4;
            assert_true(kvt_coding_verify(s.record.data, s.info.record_bytes, &info) < 0);
            s.record.data[places[i]] ^= 4;
        }
        s.record.data[s.info.record_bytes - 1] ^= 4; /* in the last segment or its padding */
        assert_status(site_decode(&s, NULL), KVT_E_CORRUPT);
        s.record.data[s.info.record_bytes - 1] ^= 4;
        assert_status(kvt_coding_inspect(s.record.data, s.info.record_bytes - 1, &info),
                      KVT_E_CORRUPT);
        assert_status(kvt_coding_inspect(s.record.data, 0, &info), KVT_E_CORRUPT);
        assert_status(site_decode(&s, NULL), KVT_OK);
    }
}

TEST(a_decoder_may_expect_a_key)
{
    const kvt_coding coding = coding_of("lossless");
    site s = site_make(&coding);
    kvt_key key = coding.key;
    kvt_decoding decoding = {.struct_size = sizeof decoding, .key = &key, .generation = 3};
    assert_status(site_decode(&s, &decoding), KVT_OK);
    decoding.generation = 0;
    assert_status(site_decode(&s, &decoding), KVT_E_MISMATCH);
    decoding.generation = 3;
    key.bytes[31] ^= 1;
    assert_status(site_decode(&s, &decoding), KVT_E_MISMATCH);
    s.decoded.bytes -= 2;
    assert_status(site_decode(&s, NULL), KVT_E_SPACE);
    s.decoded.bytes += 2;
    decoding = (kvt_decoding){.struct_size = 4};
    assert_status(site_decode(&s, &decoding), KVT_E_ARGUMENT);
    decoding = (kvt_decoding){.struct_size = sizeof decoding, .reserved = 1};
    assert_status(site_decode(&s, &decoding), KVT_E_ARGUMENT);
}

static kvt_status encode_into(const site *s, const kvt_coding *coding, uint64_t source_bytes,
                              void *record, uint64_t capacity, void *scratch, uint64_t bytes)
{
    uint64_t written = 1;
    kvt_status status = kvt_coding_encode(coding, s->source.data, source_bytes, record, capacity,
                                          scratch, bytes, &written);
    assert_int_equal(written, 0);
    return status;
}

TEST(wrong_arguments_are_named)
{
    const kvt_coding coding = coding_of("entropy:k0.25v0.5");
    site s = site_make(&coding);
    uint8_t *record = s.record.data, *scratch = s.scratch.data;
    const uint64_t source = s.source.bytes, room = s.record.bytes, work = s.scratch.bytes;
    assert_status(encode_into(&s, NULL, source, record, room, scratch, work), KVT_E_ARGUMENT);
    assert_status(encode_into(&s, &coding, source - 2, record, room, scratch, work),
                  KVT_E_ARGUMENT);
    assert_status(encode_into(&s, &coding, source, NULL, room, scratch, work), KVT_E_ARGUMENT);
    assert_status(encode_into(&s, &coding, source, record + 8, room - 64, scratch, work),
                  KVT_E_ARGUMENT);
    assert_status(encode_into(&s, &coding, source, record, room, scratch + 8, work - 64),
                  KVT_E_ARGUMENT);
    assert_status(encode_into(&s, &coding, source, record, room, NULL, work), KVT_E_ARGUMENT);
    assert_status(encode_into(&s, &coding, source, record, room, scratch, 0), KVT_E_ARGUMENT);
    assert_status(encode_into(&s, &coding, source, record, 8192, scratch, work), KVT_E_SPACE);

    kvt_coding_sizes sizes = {.struct_size = sizeof sizes};
    kvt_coding other = coding;
    other.struct_size = 8;
    assert_status(kvt_coding_plan(&other, &sizes), KVT_E_ARGUMENT);
    other = coding;
    other.layout.tokens = 0;
    assert_status(kvt_coding_plan(&other, &sizes), KVT_E_ARGUMENT);
    assert_int_equal(sizes.record_bytes, 0);
    other = coding;
    other.variant.codec = 99;
    assert_status(kvt_coding_plan(&other, &sizes), KVT_E_UNSUPPORTED);
    other = coding;
    other.layout = (kvt_layout){.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = 100};
    assert_status(kvt_coding_plan(&other, &sizes), KVT_E_UNSUPPORTED);
    other = coding_of("raw");
    other.recent_tokens = 1;
    assert_status(kvt_coding_plan(&other, &sizes), KVT_E_UNSUPPORTED);
    other = coding_of("drop:scores,50");
    assert_status(encode_into(&s, &other, source, record, room, scratch, work), KVT_E_ARGUMENT);
    const kvt_codec_workers many = {
        .struct_size = sizeof many, .count = UINT32_MAX, .run = run_backwards};
    other = coding;
    other.workers = &many;
    assert_status(kvt_coding_plan(&other, &sizes), KVT_E_ARGUMENT);
    sizes.struct_size = 4;
    assert_status(kvt_coding_plan(&coding, &sizes), KVT_E_ARGUMENT);
    kvt_coding_info info = {.struct_size = 8};
    assert_status(kvt_coding_inspect(record, room, &info), KVT_E_ARGUMENT);
    info.struct_size = sizeof info;
    assert_status(kvt_coding_inspect(record + 4, room - 64, &info), KVT_E_ARGUMENT);
    assert_status(kvt_coding_inspect(NULL, room, &info), KVT_E_ARGUMENT);
}
