/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_estimator_offer.c - the prefill model against the published table, and properties of the
 * offers built from a cost model.
 */
#include "cases.h"

#include "codecs/codecs.h"
#include "codecs/record.h"
#include "estimator/predict/predict.h"

#include "estimator/profile/profile.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void assert_near(double value, double expected, double relative)
{
    if (fabs(value - expected) <= relative * fabs(expected)) return;
    fail_msg("%.9g is not within %g of %.9g", value, relative, expected);
}

/* Seconds as research prints them: two significant digits, so half of the last one is allowed. */
TEST(preset_matches_published_table)
{
    static const struct {
        uint32_t tokens;
        double a100, a100_half_digit, h100, h100_half_digit;
    } rows[] = {
        {1024, 0.09, 0.005, 0.025, 0.0005},
        {8192, 0.85, 0.005, 0.22, 0.005},
        {32768, 4.7, 0.05, 1.25, 0.01},
        {131072, 41.0, 0.5, 10.7, 0.05},
    };
    kvt_prefill a100, h100;
    assert_ok(kvt_prefill_preset_get("llama-3.1-8b:a100", &a100));
    assert_ok(kvt_prefill_preset_get("llama-3.1-8b:h100", &h100));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        double a = kvt_prefill_seconds(&a100, 0, rows[i].tokens);
        double h = kvt_prefill_seconds(&h100, 0, rows[i].tokens);
        if (fabs(a - rows[i].a100) > rows[i].a100_half_digit) fail_msg("a100 row %zu: %g", i, a);
        if (fabs(h - rows[i].h100) > rows[i].h100_half_digit) fail_msg("h100 row %zu: %g", i, h);
    }
    kvt_prefill unknown;
    assert_int_equal(kvt_prefill_preset_get("llama-3.1-8b:b200", &unknown), KVT_E_ARGUMENT);
    assert_int_equal(kvt_prefill_preset_get("", &unknown), KVT_E_ARGUMENT);
}

/* Eq. 5 by its own arithmetic, and costs of adjacent ranges that add up. */
TEST(prefill_follows_the_formula)
{
    kvt_prefill prefill;
    assert_ok(kvt_prefill_preset_get("llama-3.1-8b:a100", &prefill));
    double d = 4096.0, layers = 32.0, n = 10000.0, p = 3000.0;
    double flops = 26.0 * layers * d * d * (n - p) + 2.0 * layers * d * (n * n - p * p);
    assert_near(kvt_prefill_seconds(&prefill, 3000, 10000), flops / 156e12, 1e-12);
    double parts = kvt_prefill_seconds(&prefill, 0, 700) + kvt_prefill_seconds(&prefill, 700, 9000);
    assert_near(parts, kvt_prefill_seconds(&prefill, 0, 9000), 1e-12);
    assert_true(kvt_prefill_seconds(&prefill, 5, 5) == 0.0);
    assert_true(kvt_prefill_seconds(&prefill, 6, 5) == 0.0);
    prefill.fixed_seconds = 7.0;
    assert_true(kvt_prefill_seconds(&prefill, 0, 1) < 1.0);
    assert_true(isfinite(kvt_prefill_seconds(&prefill, 0, UINT32_MAX)));
}

static kvt_cost_model small_model(void)
{
    kvt_cost_model model;
    memset(&model, 0, sizeof model);
    const double rates[KVT_TIER_COUNT] = {0.0, 100e9, 10e9, 1e9};
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++) {
        model.present[tier] = true;
        model.read[tier] = (kvt_affine){1e-6 * tier, rates[tier], 0.0};
        model.write[tier] = model.read[tier];
    }
    model.variants[0] = (kvt_codec_curve){.variant = {KVT_CODEC_RAW, 0, 0},
                                          .stored_share = 1.001,
                                          .encode_bytes_per_s = 12e9,
                                          .decode_bytes_per_s = 14e9};
    model.variants[1] = (kvt_codec_curve){.variant = {KVT_CODEC_LOSSLESS, KVT_LOSSLESS_DENSE, 0},
                                          .stored_share = 0.7,
                                          .encode_bytes_per_s = 0.5e9,
                                          .decode_bytes_per_s = 2e9};
    model.variant_count = 2;
    model.parallel_codecs = 2;
    assert_ok(kvt_prefill_preset_get("llama-3.1-8b:a100", &model.prefill));
    return model;
}

static const kvt_layout block = {
    .layers = 32, .kv_heads = 8, .head_dim = 128, .dtype = KVT_DTYPE_BF16, .tokens = 512};

/* Bytes of a raw record, by making it. */
static uint64_t make_raw(const kvt_layout *layout)
{
    kvt_record_spec spec = {
        .generation = 1, .layout = *layout, .variant = {.codec = KVT_CODEC_RAW}};
    uint64_t source_bytes, bound, scratch_bytes, written = 0;
    assert_ok(kvt_layout_bytes(layout, &source_bytes));
    assert_ok(kvt_record_bound(&spec, &bound, &scratch_bytes));
    void *source = test_zeros(source_bytes);
    void *record = test_aligned(4096, bound);
    void *scratch = test_aligned(4096, scratch_bytes + 4096);
    assert_true(kvt_record_encode(&spec, source, source_bytes, record, bound, scratch,
                                  scratch_bytes, &written) >= 0);
    return written;
}

static double head_bytes(const kvt_layout *layout)
{
    uint64_t head, raw;
    assert_ok(codecs_raw_record_bytes(layout, &head, &raw));
    return (double)head;
}

static kvt_policy_entry build(const kvt_cost_model *model, kvt_hole_mode holes,
                              const kvt_offer *offer, kvt_option *options)
{
    kvt_policy_entry entry = {.struct_size = sizeof entry};
    assert_ok(kvt_offer_build(model, holes, offer, options, &entry));
    assert_ptr_equal(entry.options, options);
    return entry;
}

TEST(options_have_the_promised_order_and_costs)
{
    kvt_cost_model model = small_model();
    kvt_option options[KVT_OPTIONS_MAX];
    const double source = 64 << 20;
    const uint64_t raw = make_raw(&block);
    const kvt_offer offer = {.handle = 7, .layout = block, .first_position = 512};
    const kvt_policy_entry entry = build(&model, KVT_HOLES_MIXED, &offer, options);
    assert_int_equal(entry.option_count, 7);
    assert_near(options[0].load_seconds, kvt_prefill_seconds(&model.prefill, 512, 1024), 1e-12);
    assert_int_equal(options[0].variant.codec, 0);
    for (uint32_t i = 1; i < entry.option_count; i++) {
        int tier = KVT_TIER_HBM + (int)(i - 1) / 2;
        const kvt_codec_curve *curve = &model.variants[(i - 1) % 2];
        for (int other = 0; other < KVT_TIER_COUNT; other++) {
            if (other != tier) assert_int_equal(options[i].bytes[other], 0);
            if (other != tier) assert_int_equal(options[i].read_bytes[other], 0);
        }
        uint64_t planned = options[i].bytes[tier], expected = options[i].read_bytes[tier];
        assert_int_equal(planned % KVT_RECORD_ALIGN, 0);
        assert_int_equal(expected % KVT_RECORD_ALIGN, 0);
        double exact = 0.7 * source + head_bytes(&block);
        if (curve->variant.codec == KVT_CODEC_RAW) {
            assert_int_equal(planned, raw);
            assert_int_equal(expected, raw);
        } else {
            assert_true((double)expected >= exact && (double)expected < exact + KVT_RECORD_ALIGN);
            assert_true((double)planned >= 0.7 * 1.02 * source && planned < raw);
        }
        assert_int_equal(options[i].variant.codec, curve->variant.codec);
        assert_near(options[i].load_seconds,
                    1e-6 * tier + (double)expected / model.read[tier].bytes_per_s, 1e-12);
        assert_near(options[i].decode_seconds, source / (curve->decode_bytes_per_s * 2.0), 1e-12);
        assert_near(options[i].encode_seconds, source / (curve->encode_bytes_per_s * 2.0), 1e-12);
        assert_true(options[i].loss == 0.0);
        assert_int_equal(options[i].kept_from, 0);
    }
}

/* From tiers that are read, a large record takes the longer of reading and decoding, and one part
 * of the shorter; from lent memory, and as a small one, it takes both. */
TEST(large_records_are_decoded_behind_the_read)
{
    kvt_cost_model model = small_model();
    kvt_option options[KVT_OPTIONS_MAX];
    model.arriving[KVT_TIER_HBM] = model.arriving[KVT_TIER_SSD] = true;
    for (int small = 0; small < 2; small++) {
        kvt_layout layout = block;
        uint64_t source;
        if (small) layout.tokens = 1;
        assert_ok(kvt_layout_bytes(&layout, &source));
        const kvt_offer offer = {.handle = 7, .layout = layout, .first_position = 512};
        const kvt_policy_entry entry = build(&model, KVT_HOLES_MIXED, &offer, options);
        for (uint32_t i = 1; i < entry.option_count; i++) {
            const int tier = KVT_TIER_HBM + (int)(i - 1) / 2;
            const double decode =
                (double)source / (model.variants[(i - 1) % 2].decode_bytes_per_s * 2.0);
            const double read = options[i].load_seconds - 1e-6 * tier;
            const double both = fmax(read, decode) + fmin(read, decode) / 64.0;
            const bool behind = !small && tier != KVT_TIER_DRAM;
            assert_near(options[i].decode_seconds, behind ? both - read : decode, 1e-9);
        }
    }
}

/* A get into a GPU's memory: the link takes the place of the read of memory, comes beside that of a
 * device, and is not needed where the record lies there; without kernels the raw bytes cross behind
 * the CPU's decoding. Of gets of both kinds an option has the mean. */
TEST(gets_into_a_gpu_have_its_seconds)
{
    enum { RAW, LOSSLESS };
    const double source = 64 << 20, kernels = source / 200e9;
    kvt_cost_model model = small_model();
    kvt_option host[KVT_OPTIONS_MAX], gpu[KVT_OPTIONS_MAX], half[KVT_OPTIONS_MAX];
    const kvt_offer offer = {.handle = 7, .layout = block, .first_position = 512};
    model.arriving[KVT_TIER_HBM] = model.arriving[KVT_TIER_SSD] = true;
    (void)build(&model, KVT_HOLES_MIXED, &offer, host);
    model.variants[LOSSLESS].gpu_bytes_per_s = 200e9;
    model.gpu_share = 1.0; /* with no link measured all is as into the host's memory */
    (void)build(&model, KVT_HOLES_MIXED, &offer, gpu);
    assert_memory_equal(gpu, host, 7 * sizeof *host);
    model.link = (kvt_affine){.request_seconds = 1e-3, .bytes_per_s = 25e9};
    (void)build(&model, KVT_HOLES_MIXED, &offer, gpu);
    model.gpu_share = 0.5;
    (void)build(&model, KVT_HOLES_MIXED, &offer, half);
    assert_memory_equal(&gpu[0], &host[0], sizeof *host);
    for (int i = 1; i < 7; i++) {
        const int tier = KVT_TIER_HBM + (i - 1) / 2;
        const double stored = (double)host[i].read_bytes[tier], link = 1e-3 + stored / 25e9;
        double load = host[i].load_seconds, decode = host[i].decode_seconds;
        if ((i - 1) % 2 == RAW) {
            decode += 1e-3 + source / 25e9;
        } else if (tier ==
                   KVT_TIER_SSD) { /* whose read takes longest: a part of the rest is left */
            const uint32_t steps = codecs_arriving_steps(&block, model.variants[LOSSLESS].variant,
                                                         host[i].read_bytes[tier]);
            assert_true(steps > 1 && link + kernels < load);
            decode = (link + kernels) / steps;
        } else {
            load = tier == KVT_TIER_DRAM ? link : 0.0;
            decode = kernels;
        }
        assert_true(fabs(gpu[i].load_seconds - load) < 1e-9);
        assert_near(gpu[i].decode_seconds, decode, 1e-9);
        assert_near(half[i].load_seconds, (load + host[i].load_seconds) / 2, 1e-9);
        assert_near(half[i].decode_seconds, (decode + host[i].decode_seconds) / 2, 1e-9);
    }
    /* An emulated GPU is the host's memory. */
    model.arriving[KVT_TIER_HBM] = false;
    (void)build(&model, KVT_HOLES_MIXED, &offer, half);
    assert_true(half[2].load_seconds > 0.5e-3);
    kvt_policy_entry entry = {.struct_size = sizeof entry};
    for (int way = 0; way < 5; way++) {
        kvt_cost_model bad = model;
        if (way == 0) bad.gpu_share = 1.5;
        if (way == 1) bad.gpu_share = (double)NAN;
        if (way == 2) bad.link.bytes_per_s = -1.0;
        if (way == 3) bad.link.request_seconds = (double)INFINITY;
        if (way == 4) bad.variants[1].gpu_bytes_per_s = (double)NAN;
        assert_int_equal(kvt_offer_build(&bad, KVT_HOLES_MIXED, &offer, half, &entry),
                         KVT_E_ARGUMENT);
    }
}

/* What is decoded as it comes, and in how many steps at most. */
TEST(steps_of_records)
{
    static const struct {
        const char *name;
        uint64_t bytes;
        uint32_t steps;
    } cases[] = {{"raw", 64 << 20, 64},
                 {"raw", 1 << 20, 1},
                 {"lossless", 1 << 20, 8},
                 {"lossless", 1 << 17, 1},
                 {"kivi:k4v4,g64", 16 << 20, 64},
                 {"planes:k4v4,g64", 64 << 20, 1},
                 {"entropy:k0.25v0.5", 300 << 10, 2},
                 {"drop:stream,50", 64 << 20, 1},
                 {"transform:12345,s1", 64 << 20, 8}};
    for (uint32_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        kvt_variant variant;
        assert_ok(kvt_variant_parse(cases[i].name, &variant));
        assert_int_equal(codecs_arriving_steps(&block, variant, cases[i].bytes), cases[i].steps);
    }
    const kvt_layout opaque = {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = 33 << 20};
    const kvt_variant raw = {KVT_CODEC_RAW, 0, 0};
    assert_int_equal(codecs_arriving_steps(&opaque, raw, 34 << 20), 5);
    kvt_layout few = block;
    few.tokens = 1;
    assert_int_equal(codecs_arriving_steps(&few, raw, 64 << 20), 1);
}

/* Raw records are planned to the byte, whatever their layout. */
TEST(raw_records_take_what_is_planned)
{
    kvt_cost_model model = small_model();
    kvt_option options[KVT_OPTIONS_MAX];
    for (uint32_t i = 0; i < 60; i++) {
        kvt_layout layout = {.layers = (uint16_t)(1 + i % 5),
                             .kv_heads = (uint16_t)(1 + i % 9),
                             .head_dim = (uint16_t)(1 + i * 37 % 160),
                             .dtype = i % 2 ? KVT_DTYPE_BF16 : KVT_DTYPE_FP8,
                             .tokens = 1 + i * i % 300};
        if (i % 3 == 0)
            layout = (kvt_layout){.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = 1 + i * 33331};
        const kvt_offer offer = {.layout = layout};
        (void)build(&model, KVT_HOLES_CONTIGUOUS, &offer, options);
        assert_int_equal(options[1].bytes[KVT_TIER_HBM], make_raw(&layout));
    }
}

/* Token drop alone has raw as its codec, and takes what its curve says. */
TEST(dropped_tokens_take_no_room)
{
    kvt_cost_model model = small_model();
    kvt_option options[KVT_OPTIONS_MAX];
    assert_ok(kvt_variant_parse("drop:stream,50", &model.variants[1].variant));
    model.variants[1].stored_share = 0.5;
    model.variants[1].loss = 0.1;
    kvt_offer offer = {.layout = block};
    offer.layout.tokens_may_drop = 1;
    (void)build(&model, KVT_HOLES_CONTIGUOUS, &offer, options);
    const double whole = (double)options[1].read_bytes[KVT_TIER_HBM];
    const double half = (double)options[2].read_bytes[KVT_TIER_HBM];
    if (half < 0.49 * whole || half > 0.51 * whole) fail_msg("%.0f of %.0f bytes", half, whole);
}

TEST(absent_tiers_and_opaque_entries)
{
    kvt_cost_model model = small_model();
    model.present[KVT_TIER_HBM] = false;
    model.read[KVT_TIER_HBM].bytes_per_s = 0.0;
    kvt_option options[KVT_OPTIONS_MAX];
    const kvt_offer offer = {.layout = {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = 4096},
                             .recompute_seconds = 2.5};
    kvt_policy_entry entry = build(&model, KVT_HOLES_CONTIGUOUS, &offer, options);
    assert_int_equal(entry.option_count, 5);
    assert_true(options[0].load_seconds == 2.5 && entry.recompute_seconds == 2.5);
    assert_int_equal(options[1].bytes[KVT_TIER_DRAM], make_raw(&offer.layout));
    model.variant_count = 0;
    assert_int_equal(build(&model, KVT_HOLES_CONTIGUOUS, &offer, options).option_count, 1);
}

/* What recomputing costs: of the whole path where holes end it, of the place where they do not. The
 * entries of a path carry all of it together. */
TEST(recomputing_is_shared_along_a_path)
{
    kvt_cost_model model = small_model();
    kvt_policy_entry entry = {.struct_size = sizeof entry};
    kvt_offer offer = {.layout = block, .request_tokens = 4096};
    double sum = 0.0, whole = kvt_prefill_seconds(&model.prefill, 0, 4096);
    for (uint32_t at = 0; at < 4096; at += 512) {
        offer.first_position = at;
        assert_ok(kvt_offer_describe(&model, KVT_HOLES_CONTIGUOUS, &offer, &entry));
        assert_near(entry.recompute_seconds, whole / 8.0, 1e-12);
        assert_int_equal(entry.request_tokens, 4096);
        sum += entry.recompute_seconds;
        assert_ok(kvt_offer_describe(&model, KVT_HOLES_MIXED, &offer, &entry));
        assert_near(entry.recompute_seconds, kvt_prefill_seconds(&model.prefill, at, at + 512),
                    1e-12);
    }
    assert_near(sum, whole, 1e-12);
    /* A request whose length is not known ends with the entry; the caller's figure goes before. */
    offer.request_tokens = 0;
    assert_ok(kvt_offer_describe(&model, KVT_HOLES_CONTIGUOUS, &offer, &entry));
    assert_int_equal(entry.request_tokens, 4096);
    offer.recompute_seconds = 9.0;
    assert_ok(kvt_offer_describe(&model, KVT_HOLES_CONTIGUOUS, &offer, &entry));
    assert_true(entry.recompute_seconds == 9.0);
}

TEST(what_is_learned_goes_before_the_curves)
{
    kvt_cost_model model = small_model();
    model.variants[2] = model.variants[1];
    model.variants[2].variant = (kvt_variant){.codec = KVT_CODEC_KIVI};
    model.variants[2].loss = 0.01;
    model.variants[2].loss_upper = 0.02;
    model.variant_count = 3;
    kvt_option options[KVT_OPTIONS_MAX];
    const double shares[3] = {NAN, 0.5, NAN};
    const kvt_known_size known = {model.variants[2].variant, 8192};
    kvt_offer offer = {.layout = block,
                       .shares = shares,
                       .known = &known,
                       .known_count = 1,
                       .loss_factor = 2.0,
                       .loss_factor_upper = 3.0,
                       .tenant = 3,
                       .class_id = 5,
                       .parent = 4,
                       .handle = 2,
                       .sensitivity = 1.5};
    kvt_policy_entry entry = build(&model, KVT_HOLES_CONTIGUOUS, &offer, options);
    double wanted = 0.5 * (64 << 20) + head_bytes(&block);
    assert_true((double)options[2].read_bytes[KVT_TIER_HBM] >= wanted);
    assert_true((double)options[2].read_bytes[KVT_TIER_HBM] < wanted + KVT_RECORD_ALIGN);
    assert_int_equal(options[3].bytes[KVT_TIER_HBM], 8192);
    assert_near(options[3].loss, 0.02, 1e-12);
    assert_near(options[3].loss_upper, 0.06, 1e-12);
    assert_true(entry.handle == 2 && entry.parent == 4 && entry.tenant == 3);
    assert_true(entry.class_id == 5 && entry.tokens == 512 && entry.sensitivity == 1.5);
    offer.variants = 2;
    assert_int_equal(build(&model, KVT_HOLES_CONTIGUOUS, &offer, options).option_count, 7);
}

/* A bound that was widened for a class never measured loses the widening to observations, whole,
 * and never falls below what the variant loses. */
TEST(observations_take_the_place_of_a_widening)
{
    kvt_cost_model model = small_model();
    model.variants[1].loss = 0.01;
    model.variants[1].loss_upper = 0.05;
    model.variants[1].loss_widening = 2.5;
    kvt_option options[KVT_OPTIONS_MAX];
    kvt_offer offer = {.layout = block, .loss_factor = 1.0, .loss_factor_upper = 1.0};
    (void)build(&model, KVT_HOLES_CONTIGUOUS, &offer, options);
    assert_near(options[2].loss_upper, 0.05, 1e-12); /* nothing was observed */
    offer.loss_factor_upper = 1.5;
    (void)build(&model, KVT_HOLES_CONTIGUOUS, &offer, options);
    assert_near(options[2].loss_upper, 0.05 / 2.5 * 1.5, 1e-12);
    model.variants[1].loss_widening = 10;
    (void)build(&model, KVT_HOLES_CONTIGUOUS, &offer, options);
    assert_near(options[2].loss_upper, 0.01 * 1.5, 1e-12);
}

/* More bytes never cost less, and never take fewer stored bytes; a plain generator draws sizes. */
TEST(costs_grow_with_size)
{
    kvt_cost_model model = small_model();
    uint64_t random = 0x9e3779b97f4a7c15u;
    for (int round = 0; round < 2000; round++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        kvt_offer small = {
            .layout = {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = 1 + (random >> 36)}};
        kvt_offer large = small;
        large.layout.opaque_bytes += random & 0xfffff;
        kvt_option a[KVT_OPTIONS_MAX], b[KVT_OPTIONS_MAX];
        uint32_t count = build(&model, KVT_HOLES_CONTIGUOUS, &small, a).option_count;
        assert_int_equal(build(&model, KVT_HOLES_CONTIGUOUS, &large, b).option_count, count);
        for (uint32_t i = 0; i < count; i++) {
            assert_true(b[i].load_seconds >= a[i].load_seconds);
            assert_true(b[i].decode_seconds >= a[i].decode_seconds);
            for (int tier = 0; tier < KVT_TIER_COUNT; tier++) {
                assert_true(b[i].bytes[tier] >= a[i].bytes[tier]);
            }
        }
    }
}

/* A coarse variant is coded from a fine lossy one: within a codec from one that loses a quarter of
 * it or less. Its bound has that of the other, raised likewise, and stays within the limit. */
TEST(fine_lossy_variants_are_coded_again)
{
    static const struct {
        const char *name;
        double share, loss, upper;
    } rungs[] = {{"planes:k6v4,g64", 0.35, 0.02, 0.03},
                 {"entropy:k0.25v0.5", 0.23, 0.05, 0.06},
                 {"entropy:k0.5v1", 0.17, 0.12, 0.15},
                 {"drop:stream,25", 0.16, 0.01, 0.02},
                 {"entropy:k1v2", 0.11, 0.35, 0.40}};
    kvt_cost_model model = small_model();
    kvt_option options[KVT_OPTIONS_MAX];
    const kvt_offer offer = {.handle = 7, .layout = block};
    model.present[KVT_TIER_HBM] = model.present[KVT_TIER_SSD] = false;
    for (size_t i = 0; i < 5; i++) {
        kvt_codec_curve *curve = &model.variants[model.variant_count++];
        *curve = model.variants[0];
        assert_ok(kvt_variant_parse(rungs[i].name, &curve->variant));
        curve->stored_share = rungs[i].share;
        curve->loss = rungs[i].loss;
        curve->loss_upper = rungs[i].upper;
    }
    /* Options: none, raw, lossless, then the five. Dropped tokens never come back. */
    build(&model, KVT_HOLES_MIXED, &offer, options);
    assert_int_equal(options[4].made_from, 1u << 3);
    assert_int_equal(options[5].made_from, 1u << 3); /* 0.05 is more than a quarter of 0.12 */
    assert_int_equal(options[7].made_from, 1u << 3 | 1u << 4);
    assert_near(options[4].loss_upper, 0.06 + 0.03, 1e-9);
    assert_near(options[5].loss_upper, 0.15 + 0.03, 1e-9);
    assert_near(options[7].loss_upper, 0.40 + 0.06 + 0.03, 1e-9);
    assert_near(options[7].loss, 0.35, 1e-9);
    /* A limit leaves out what would pass it, and keeps the variant. */
    model.loss_limit = 0.45;
    build(&model, KVT_HOLES_MIXED, &offer, options);
    assert_int_equal(options[7].made_from, 1u << 3);
    assert_near(options[7].loss_upper, 0.43, 1e-9);
    model.loss_limit = 0.41;
    build(&model, KVT_HOLES_MIXED, &offer, options);
    assert_int_equal(options[7].made_from, 0);
    assert_near(options[7].loss_upper, 0.40, 1e-9);
    /* In whatever order the variants are given. */
    const kvt_codec_curve first = model.variants[2];
    model.loss_limit = 0.0;
    model.variants[2] = model.variants[6];
    model.variants[6] = first;
    build(&model, KVT_HOLES_MIXED, &offer, options);
    assert_int_equal(options[3].made_from, 1u << 7 | 1u << 4);
    assert_near(options[3].loss_upper, 0.49, 1e-9);
}

static void expect_argument_error(const kvt_cost_model *model, const kvt_offer *offer)
{
    kvt_option options[KVT_OPTIONS_MAX];
    kvt_policy_entry entry = {.struct_size = sizeof entry};
    assert_int_equal(kvt_offer_build(model, KVT_HOLES_CONTIGUOUS, offer, options, &entry),
                     KVT_E_ARGUMENT);
    assert_int_equal(entry.option_count, 0);
}

TEST(bad_models_are_refused)
{
    kvt_cost_model good = small_model(), model = good;
    const kvt_offer sound = {.layout = block};
    kvt_offer offer = sound;
    offer.layout.tokens = 0;
    expect_argument_error(&good, &offer);
    offer = sound;
    offer.first_position = UINT32_MAX;
    expect_argument_error(&good, &offer);
    offer = sound;
    offer.recompute_seconds = NAN;
    expect_argument_error(&good, &offer);
    offer.recompute_seconds = -1.0;
    expect_argument_error(&good, &offer);
    for (uint32_t i = 2; i < KVT_VARIANTS_MAX; i++)
        model.variants[i] = model.variants[1];
    model.variant_count = KVT_VARIANTS_MAX; /* of three tiers: all that a model can hold fit */
    kvt_option options[KVT_OPTIONS_MAX];
    uint32_t count = build(&model, KVT_HOLES_CONTIGUOUS, &sound, options).option_count;
    assert_int_equal(count, 1 + 3 * KVT_VARIANTS_MAX);
    assert_true(count <= KVT_OPTIONS_MAX);
    model.variant_count = KVT_VARIANTS_MAX + 1;
    expect_argument_error(&model, &sound);
    model = good;
    model.parallel_codecs = 0;
    expect_argument_error(&model, &sound);
    const double bad[] = {0.0, -1.0, NAN, INFINITY};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        model = good;
        model.read[KVT_TIER_SSD].bytes_per_s = bad[i];
        expect_argument_error(&model, &sound);
        model = good;
        model.variants[1].stored_share = bad[i];
        expect_argument_error(&model, &sound);
        model = good;
        model.variants[1].decode_bytes_per_s = bad[i];
        expect_argument_error(&model, &sound);
    }
}
