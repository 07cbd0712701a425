/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_codecs_planes.c - planes: the top 4 bits are KIVI-4, error shrinks with every plane,
 * extremes stay exact, and dropping planes from a record gives what encoding at that rate gives.
 */
#include "codecs_support.h"

#include "base/half.h"
#include "codecs/kernels/cpu.h"
#include "codecs/kernels/kivi_group.h"
#include "codecs/record_format.h"

#include <math.h>
#include <stdio.h>

static const uint32_t plane_bits[] = {2, 3, 4, 6, 8};

static const kvt_layout small = {
    .layers = 3, .kv_heads = 2, .head_dim = 32, .dtype = KVT_DTYPE_FP16, .tokens = 150};

/* Squared error and largest error of one matrix. */
static void errors_of(const encoded *e, uint32_t index, double *squared, double *largest)
{
    const kvt_layout *layout = &e->spec.layout;
    const uint64_t count = (uint64_t)layout->tokens * layout->kv_heads * layout->head_dim;
    *squared = 0;
    *largest = 0;
    for (uint64_t i = index * count; i < (index + 1) * count; i++) {
        double error = (double)element_at(layout, e->source.data, i) -
                       (double)element_at(layout, e->decoded.data, i);
        *squared += error * error;
        if (fabs(error) > *largest) *largest = fabs(error);
    }
}

/* Values of a shape that is not the generator's: 0 uniform, 1 heavy tails, 2 two clusters. */
static void fill_shape(const kvt_layout *layout, unsigned shape, uint8_t *target)
{
    uint64_t bytes;
    assert_status(kvt_layout_bytes(layout, &bytes), KVT_OK);
    uint64_t state = shape + 1;
    for (uint64_t i = 0; i < bytes / kvt_dtype_bytes(layout->dtype); i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        float u = (float)(state >> 40) * (1.0f / 16777216.0f);
        float x = u;
        if (shape == 1) x = (u - 0.5f) / (1.01f - fabsf(2.0f * u - 1.0f));
        if (shape == 2) x = (i * 7 % 3 == 0 ? -3.0f : 2.0f) + u * 0.7f;
        uint16_t half =
            layout->dtype == KVT_DTYPE_FP16 ? half_from_float(x) : half_bf16_from_float(x);
        if (layout->dtype == KVT_DTYPE_FP32) {
            memcpy(target + 4 * i, &x, 4);
        } else {
            memcpy(target + 2 * i, &half, 2);
        }
    }
}

TEST(error_never_grows_with_planes)
{
    static const char *const settings[] = {"g64", "g32,vhead", "g128,vchan"};
    static const uint8_t dtypes[] = {KVT_DTYPE_FP16, KVT_DTYPE_BF16, KVT_DTYPE_FP32};
    for (unsigned n = 0; n < 3 * 3 * 4; n++) {
        kvt_layout layout = small;
        layout.dtype = dtypes[n % 3];
        uint8_t *source = test_alloc(6 * kvt_layout_matrix_bytes(&layout));
        if (n / 9 == 3) {
            codecs_kv_sample_fill(&layout, 21, source);
        } else {
            fill_shape(&layout, n / 9, source);
        }
        double squared[6];
        double largest[6];
        for (unsigned p = 0; p < 5; p++) {
            char name[64];
            snprintf(name, sizeof name, "planes:k%uv%u,%s", (unsigned)plane_bits[p],
                     (unsigned)plane_bits[p], settings[n / 3 % 3]);
            encoded e = encoded_make(layout, name, source);
            assert_status(encoded_decode(&e), KVT_OK);
            for (uint32_t m = 0; m < 6; m++) {
                double s;
                double l;
                errors_of(&e, m, &s, &l);
                if (p > 0 && !(s <= squared[m])) {
                    fail_msg("%s, shape %u: %g after %g", name, n / 9, s, squared[m]);
                }
                if (p > 1 && !(l <= largest[m])) {
                    fail_msg("%s, shape %u: largest %g after %g", name, n / 9, l, largest[m]);
                }
                squared[m] = s;
                largest[m] = l;
            }
        }
    }
}

/* Fills every matrix with groups from 0 to 15, so that a step is 1; `most` elements in 16 are `low`
 * or, alternating, 15 - low, the others are whole numbers or anything between. */
static void fill_steps(const kvt_layout *layout, unsigned most, float low, uint8_t *target)
{
    const uint32_t width = (uint32_t)layout->kv_heads * layout->head_dim;
    const uint64_t rows = (uint64_t)layout->layers * 2 * layout->tokens;
    uint64_t state = 77;
    for (uint64_t i = 0; i < rows * width; i++) {
        const uint64_t token = i / width % layout->tokens;
        state = state * 6364136223846793005u + 1442695040888963407u;
        float x = (float)(state >> 40) * (15.0f / 16777216.0f);
        if (state >> 33 & 1) x = (float)(int)x;
        if ((state >> 20 & 15) < most) x = state >> 34 & 1 ? low : 15.0f - low;
        if (token % 64 == 0 || i % width == 0) x = 0.0f;
        if (token % 64 == 1 || i % width == 1) x = 15.0f;
        memcpy(target + 4 * i, &x, sizeof x);
    }
}

/* What holds for any content: with p planes an element errs at most bounds[p] steps, and a plane
 * never takes it beyond the larger of its error before and that bound. Its 4-bit code is that of
 * its distance rounded to fp16, which is off by up to 2^-8 steps. */
TEST(error_keeps_its_bound_on_levels)
{
    static const float bounds[] = {4.0f, 2.0f, 0.5f, 0.125f, 0.03125f};
    const float rounding = 1.0f / 256.0f + 1e-5f;
    kvt_layout layout = small;
    layout.dtype = KVT_DTYPE_FP32;
    const uint64_t count = 6 * kvt_layout_matrix_bytes(&layout) / 4;
    float *source = test_alloc(4 * count);
    float *before = test_zeros(count * sizeof *before);
    fill_steps(&layout, 3, 2.0f, (uint8_t *)source);
    for (unsigned p = 0; p < 5; p++) {
        char name[64];
        snprintf(name, sizeof name, "planes:k%uv%u", (unsigned)plane_bits[p],
                 (unsigned)plane_bits[p]);
        encoded e = encoded_make(layout, name, (uint8_t *)source);
        assert_status(encoded_decode(&e), KVT_OK);
        for (uint64_t i = 0; i < count; i++) {
            float error = fabsf(element_at(&layout, e.decoded.data, i) - source[i]);
            assert_true(error <= bounds[p] + rounding);
            if (p > 0) assert_true(error <= fmaxf(before[i], bounds[p]) + rounding);
            if (p == 2 && source[i] == floorf(source[i])) assert_true(error == 0.0f);
            before[i] = error;
        }
    }
}

/* The outermost of 4 levels: the mean of its cell, less what crowds there beyond a sixth. */
TEST(crowded_ends_bias_the_outer_levels)
{
    static const unsigned crowds[] = {0, 6, 14};
    kvt_layout layout = small;
    layout.dtype = KVT_DTYPE_FP32;
    const uint64_t count = kvt_layout_matrix_bytes(&layout) / 4;
    float *source = test_alloc(6 * 4 * count);
    for (unsigned c = 0; c < 3; c++) {
        double sum = 0;
        double outer = 0;
        fill_steps(&layout, crowds[c], 2.0f, (uint8_t *)source);
        encoded e = encoded_make(layout, "planes:k2v2,g64", (uint8_t *)source);
        assert_status(encoded_decode(&e), KVT_OK);
        for (uint64_t i = 0; i < count; i++) {
            /* The groups of column 1 are constant, and their codes 0. */
            const bool constant = i % 64 == 1;
            if (!constant && source[i] >= 3.5f) continue;
            sum += constant ? 0.0 : (double)source[i];
            outer += 1.0;
        }
        const double pull = outer / (double)count - 1.0 / 6.0;
        assert_true(pull > 0.05);
        const double expected = sum / outer * (1.0 - pull);
        assert_true(fabs((double)element_at(&layout, e.decoded.data, 0) - expected) < 0.05);
    }
}

TEST(four_bits_are_kivi)
{
    static const char *const names[][2] = {{"planes:k4v4,g64,vhead", "kivi:k4v4,g64"},
                                           {"planes:k4v4,g32,vhead", "kivi:k4v4,g32"},
                                           {"planes:k4v4,g128,vhead", "kivi:k4v4,g128"}};
    for (size_t i = 0; i < 6; i++) {
        kvt_layout layout = {.layers = 1,
                             .kv_heads = 3,
                             .head_dim = 96,
                             .dtype = i < 3 ? KVT_DTYPE_FP16 : KVT_DTYPE_BF16,
                             .tokens = 150};
        encoded planes = encoded_make(layout, names[i % 3][0], NULL);
        encoded kivi = encoded_make(layout, names[i % 3][1], NULL);
        assert_status(encoded_decode(&planes), KVT_OK);
        assert_status(encoded_decode(&kivi), KVT_OK);
        assert_memory_equal(planes.decoded.data, kivi.decoded.data, kivi.decoded.bytes);
    }
}

/* The smallest and the largest element of a group decode to themselves from 4 bits on. */
TEST(extremes_stay_exact)
{
    const kvt_layout layout = {
        .layers = 1, .kv_heads = 1, .head_dim = 64, .dtype = KVT_DTYPE_FP16, .tokens = 64};
    for (unsigned p = 2; p < 5; p++) {
        char name[64];
        uint16_t source[2 * 64 * 64];
        for (unsigned i = 0; i < 2 * 64 * 64; i++) {
            unsigned along = i < 64 * 64 ? i / 64 : i % 64;
            /* Range 15 * 2^-4: scale and both ends are exact in fp16. */
            float x = along == 3 ? -0.5f : along == 40 ? 0.4375f : (float)(i * 37 % 97) / 256.0f;
            source[i] = half_from_float(x);
        }
        snprintf(name, sizeof name, "planes:k%uv%u,g64", (unsigned)plane_bits[p],
                 (unsigned)plane_bits[p]);
        encoded e = encoded_make(layout, name, source);
        assert_status(encoded_decode(&e), KVT_OK);
        for (unsigned i = 0; i < 2 * 64 * 64; i++) {
            unsigned along = i < 64 * 64 ? i / 64 : i % 64;
            if (along != 3 && along != 40) continue;
            assert_memory_equal(e.decoded.data + 2 * i, &source[i], 2);
        }
    }
}

/* A group of negative zeros has the range 0, whose sign must not reach the stored scale. */
TEST(negative_zeros_come_back)
{
    static const char *const names[] = {"planes:k8v8,g64", "planes:k4v4,g64", "kivi:k4v4,g64"};
    for (uint8_t dtype = KVT_DTYPE_FP16; dtype <= KVT_DTYPE_BF16; dtype++) {
        const kvt_layout layout = {
            .layers = 1, .kv_heads = 1, .head_dim = 64, .dtype = dtype, .tokens = 128};
        uint16_t source[2 * 128 * 64];
        for (unsigned i = 0; i < 2 * 128 * 64; i++) {
            source[i] = i / 64 % 128 < 64 ? 0x8000 : (uint16_t)(0x3c00 + i * 7 % 512);
        }
        for (unsigned n = 0; n < 9; n++) {
            codecs_cpu_force((codecs_cpu)(n / 3));
            encoded e = encoded_make(layout, names[n % 3], source);
            assert_status(encoded_decode(&e), KVT_OK);
            for (unsigned i = 0; i < 2 * 128 * 64; i++) {
                uint16_t back;
                memcpy(&back, e.decoded.data + 2 * i, 2);
                if (source[i] == 0x8000) assert_int_equal(back & 0x7fff, 0);
            }
        }
    }
    codecs_cpu_force(codecs_cpu_best());
}

/* Attention averages rounding out, but not a bias: 6 and 8 bits must err to both sides alike. */
TEST(fine_planes_are_unbiased)
{
    enum { TOKENS = 256, WIDTH = 64 };
    const kvt_layout layout = {
        .layers = 1, .kv_heads = 1, .head_dim = WIDTH, .dtype = KVT_DTYPE_FP32, .tokens = TOKENS};
    static float source[2 * TOKENS * WIDTH];
    uint32_t random = 1;
    for (unsigned i = 0; i < 2 * TOKENS * WIDTH; i++) {
        random = random * 1664525u + 1013904223u;
        source[i] = (float)(random >> 8) * 0x1p-24f - 0.5f;
    }
    for (unsigned p = 3; p < 5; p++) {
        char name[64];
        snprintf(name, sizeof name, "planes:k%uv%u,g64", (unsigned)plane_bits[p],
                 (unsigned)plane_bits[p]);
        encoded e = encoded_make(layout, name, source);
        assert_status(encoded_decode(&e), KVT_OK);
        double sum = 0, squares = 0;
        for (unsigned i = 0; i < 2 * TOKENS * WIDTH; i++) {
            float back;
            memcpy(&back, e.decoded.data + 4 * i, 4);
            sum += (double)back - (double)source[i];
            squares += ((double)back - (double)source[i]) * ((double)back - (double)source[i]);
        }
        double count = 2 * TOKENS * WIDTH;
        double bias = sum / count / sqrt(squares / count);
        assert_true(bias > -0.03 && bias < 0.03); /* five standard errors; it once was 0.19 */
    }
}

/* Fine codes nest in the 4-bit codes, and levels rise with them. */
TEST(fine_codes_are_nested_and_ordered)
{
    for (int32_t code = 1; code < 256; code++) {
        assert_true(group_fine_level(code) > group_fine_level(code - 1));
    }
    for (int32_t code = 1; code < 64; code++) {
        assert_true(group_fine6_level(code) > group_fine6_level(code - 1));
    }
    for (int32_t u = 0; u <= 1920; u++) {
        int32_t c = half_round_integer((float)u / 128.0f);
        int32_t code = group_fine_code(u, c);
        assert_int_equal(code >> 4, c);
        /* Parts are 1/16 wide in the middle, 1/32 at the ends. */
        int32_t error8 = abs(2 * group_fine_level(code) - u);
        int32_t error6 = abs(2 * group_fine6_level(code >> 2) - u);
        assert_in_range(error8, 0, 4);
        assert_in_range(error6, 0, 16);
    }
}

TEST(sizes_follow_the_planes)
{
    const kvt_layout layout = {
        .layers = 2, .kv_heads = 8, .head_dim = 128, .dtype = KVT_DTYPE_BF16, .tokens = 256};
    const double tables = 32.0 * 8.0 / (256.0 * 1024.0);
    for (unsigned n = 0; n < 25; n++) {
        char name[64];
        kvt_record_info info;
        uint32_t k = plane_bits[n / 5];
        uint32_t v = plane_bits[n % 5];
        snprintf(name, sizeof name, "planes:k%uv%u,g64", (unsigned)k, (unsigned)v);
        encoded e = encoded_make(layout, name, NULL);
        assert_status(kvt_record_verify(e.record.data, e.record.bytes, &info), KVT_OK);
        double want = ((double)k + (double)v) / 2.0 + 0.5 + tables;
        assert_true(fabs(info.bits_per_element - want) < 1e-9);
    }
}

static void compare_records(const uint8_t *dropped, const uint8_t *direct, uint64_t bytes)
{
    record_parsed a;
    record_parsed b;
    assert_status(record_parse(dropped, bytes, RECORD_DEPTH_STRICT, &a, NULL), KVT_OK);
    assert_status(record_parse(direct, bytes, RECORD_DEPTH_STRICT, &b, NULL), KVT_OK);
    assert_int_equal(a.header.record_bytes, bytes);
    assert_int_equal(b.header.record_bytes, bytes);
    assert_int_equal(a.header.rate, b.header.rate);
    assert_int_equal(a.header.segment_count, b.header.segment_count);
    assert_int_equal(a.header.table_checksum, b.header.table_checksum);
    assert_memory_equal(a.table, b.table, a.plan.table_bytes);
    uint64_t payload = a.plan.payload_offset;
    assert_memory_equal(dropped + payload, direct + payload, bytes - payload);
}

/* From K and V planes to fewer: what encoding at that rate gives, byte for byte. */
static void check_drop(kvt_layout layout, const kvt_codec_extras *extras, const char *settings,
                       unsigned from, unsigned to, const uint8_t *source)
{
    char name[2][64];
    encoded full;
    encoded direct;
    for (unsigned i = 0; i < 2; i++) {
        unsigned n = i ? to : from;
        snprintf(name[i], sizeof name[i], "planes:k%uv%u,%s", (unsigned)plane_bits[n / 5],
                 (unsigned)plane_bits[n % 5], settings);
        encoded *e = i ? &direct : &full;
        *e = encoded_make(layout, name[i], source);
        e->record.bytes = 0;
        uint64_t bound;
        uint64_t scratch;
        assert_status(kvt_record_bound(&e->spec, &bound, &scratch), KVT_OK);
        assert_status(kvt_record_encode_with(&e->spec, extras, e->source.data, e->source.bytes,
                                             e->record.data, bound, e->scratch.data,
                                             e->scratch.bytes, &e->record.bytes),
                      KVT_OK);
    }
    record_parsed parsed;
    kvt_record_drop drop;
    assert_status(
        record_parse(full.record.data, full.record.bytes, RECORD_DEPTH_LOAD, &parsed, NULL),
        KVT_OK);
    uint8_t *head = test_alloc(full.record.bytes);
    memcpy(head, full.record.data, full.record.bytes);
    assert_status(
        kvt_record_drop_planes(full.record.data, full.record.bytes, direct.spec.variant, &drop),
        KVT_OK);
    assert_int_equal(drop.record_bytes, direct.record.bytes);
    compare_records(full.record.data, direct.record.data, direct.record.bytes);
    assert_status(kvt_record_decode(full.record.data, drop.record_bytes, NULL, full.decoded.data,
                                    full.decoded.bytes, full.scratch.data, full.scratch.bytes),
                  KVT_OK);
    assert_status(encoded_decode(&direct), KVT_OK);
    assert_memory_equal(full.decoded.data, direct.decoded.data, direct.decoded.bytes);

    /* With the head alone: enough when no payload moves, refused otherwise. */
    kvt_record_drop again;
    kvt_status status =
        kvt_record_drop_planes(head, parsed.plan.payload_offset, direct.spec.variant, &again);
    if (drop.moved_from == drop.record_bytes) {
        assert_status(status, KVT_OK);
        assert_memory_equal(head, full.record.data, parsed.plan.payload_offset);
    } else {
        assert_status(status, KVT_E_SPACE);
    }
}

TEST(dropping_planes_is_encoding_at_the_lower_rate)
{
    static const char *const settings[] = {"g64", "g32,vhead", "g64,vchan,vfirst"};
    int8_t levels[6] = {1, -1, 0, 2, -3, 0};
    const kvt_codec_extras extras = {
        .struct_size = sizeof extras, .sink_tokens = 1028, .recent_tokens = 30, .levels = levels};
    uint8_t *source = test_alloc(6 * kvt_layout_matrix_bytes(&small));
    codecs_kv_sample_fill(&small, 4, source);
    /* One matrix that cannot be coded. */
    memset(source + 3 * kvt_layout_matrix_bytes(&small) + 100, 0x7c, 2);
    for (unsigned from = 0; from < 25; from++) {
        for (unsigned to = 0; to < 25; to++) {
            if (to / 5 > from / 5 || to % 5 > from % 5) continue;
            check_drop(small, (from + to) % 2 ? &extras : NULL, settings[(from + to) % 3], from, to,
                       source);
        }
    }
}

/* Equal planes, or the first side one ahead: only header and table are written. */
TEST(dropping_the_last_planes_moves_nothing)
{
    static const char *const steps[] = {"planes:k8v6,g64", "planes:k6v6,g64", "planes:k6v4,g64",
                                        "planes:k4v4,g64", "planes:k3v3,g64", "planes:k2v2,g64"};
    encoded e = encoded_make(small, "planes:k8v8,g64", NULL);
    uint64_t before = e.record.bytes;
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        kvt_variant variant;
        kvt_record_drop drop;
        kvt_record_info info;
        assert_status(kvt_variant_parse(steps[i], &variant), KVT_OK);
        assert_status(kvt_record_drop_planes(e.record.data, e.record.bytes, variant, &drop),
                      KVT_OK);
        assert_int_equal(drop.moved_from, drop.record_bytes);
        assert_int_equal(drop.slot_offset, i % 2 == 0 ? 4096 : 0);
        assert_true(drop.record_bytes < before);
        before = drop.record_bytes;
        assert_status(kvt_record_verify(e.record.data, drop.record_bytes, &info), KVT_OK);
        assert_int_equal(info.payload_bytes, drop.payload_bytes);
        assert_int_equal(info.spec.variant.rate, variant.rate);
    }
}

/* A rewrite that was torn leaves the record as it was. */
TEST(a_torn_drop_leaves_the_larger_record)
{
    kvt_variant variant;
    kvt_record_drop drop;
    kvt_record_info info;
    encoded e = encoded_make(small, "planes:k8v8,g64", NULL);
    assert_status(encoded_decode(&e), KVT_OK);
    guarded before = guarded_make(e.decoded.bytes);
    memcpy(before.data, e.decoded.data, e.decoded.bytes);
    assert_status(kvt_variant_parse("planes:k4v4,g64", &variant), KVT_OK);
    assert_status(kvt_record_drop_planes(e.record.data, e.record.bytes, variant, &drop), KVT_OK);
    e.record.data[drop.slot_offset + 600] ^= 1;
    assert_status(encoded_decode(&e), KVT_OK);
    assert_memory_equal(before.data, e.decoded.data, e.decoded.bytes);
    assert_status(kvt_record_verify(e.record.data, e.record.bytes, &info), KVT_E_CORRUPT);
}

TEST(drops_that_are_none_are_refused)
{
    static const char *const wrong[] = {"planes:k8v4,g64",
                                        "planes:k4v6,g64",
                                        "planes:k2v2,g32",
                                        "planes:k2v2,g64,vhead",
                                        "planes:k2v2,g64,vfirst",
                                        "kivi:k2v2,g64",
                                        "raw"};
    kvt_variant variant;
    kvt_record_drop drop;
    encoded e = encoded_make(small, "planes:k6v4,g64", NULL);
    guarded before = guarded_make(e.record.bytes);
    memcpy(before.data, e.record.data, e.record.bytes);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_status(kvt_variant_parse(wrong[i], &variant), KVT_OK);
        assert_status(kvt_record_drop_planes(e.record.data, e.record.bytes, variant, &drop),
                      KVT_E_ARGUMENT);
        assert_memory_equal(e.record.data, before.data, e.record.bytes);
    }
    e = encoded_make(small, "kivi", NULL);
    assert_status(kvt_variant_parse("kivi:k2v2,g64", &variant), KVT_OK);
    assert_status(kvt_record_drop_planes(e.record.data, e.record.bytes, variant, &drop),
                  KVT_E_UNSUPPORTED);
}

TEST(every_flipped_byte_is_found)
{
    static const char *const names[] = {"planes:k8v4,g32", "kivi:k4v2,g32,r32"};
    const kvt_layout layout = {
        .layers = 2, .kv_heads = 1, .head_dim = 16, .dtype = KVT_DTYPE_BF16, .tokens = 70};
    for (size_t n = 0; n < 3; n++) {
        kvt_record_info info;
        kvt_record_drop drop;
        encoded e = encoded_make(layout, names[n % 2], NULL);
        if (n == 2) {
            kvt_variant variant;
            assert_status(kvt_variant_parse("planes:k2v2,g32", &variant), KVT_OK);
            assert_status(kvt_record_drop_planes(e.record.data, e.record.bytes, variant, &drop),
                          KVT_OK);
            e.record.bytes = drop.record_bytes;
        }
        assert_status(kvt_record_verify(e.record.data, e.record.bytes, &info), KVT_OK);
        for (uint64_t i = 0; i < e.record.bytes; i++) {
            e.record.data[i] ^= 0x10;
            kvt_status status = kvt_record_verify(e.record.data, e.record.bytes, &info);
            if (status != KVT_E_CORRUPT) fail_msg("byte %llu", (unsigned long long)i);
            status = encoded_decode(&e);
            assert_true(status == KVT_OK || status == KVT_E_CORRUPT);
            assert_true(status == KVT_E_CORRUPT || i < e.spec.layout.layers * 12288u);
            e.record.data[i] ^= 0x10;
        }
        for (uint64_t bytes = 0; bytes < e.record.bytes; bytes++) {
            assert_status(kvt_record_parse(e.record.data, bytes, &info), KVT_E_CORRUPT);
        }
    }
}

/* Sinks and recent window are positions in the whole chain. */
TEST(sinks_and_window_are_of_the_chain)
{
    const kvt_layout layout = {
        .layers = 1, .kv_heads = 1, .head_dim = 64, .dtype = KVT_DTYPE_BF16, .tokens = 64};
    static const struct {
        uint32_t first, chain, sinks, recent, head, tail;
    } cases[] = {{0, 0, 4, 0, 4, 0},       {0, 64, 0, 32, 0, 32},    {100, 164, 104, 8, 4, 8},
                 {100, 1000, 4, 32, 0, 0}, {100, 170, 0, 32, 0, 26}, {0, 0, 60, 60, 60, 4}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        encoded e = encoded_make(layout, "planes:k2v2,g32", NULL);
        const uint64_t row = 128;
        const kvt_codec_extras extras = {.struct_size = sizeof extras,
                                         .chain_tokens = cases[i].chain,
                                         .sink_tokens = cases[i].sinks,
                                         .recent_tokens = cases[i].recent};
        e.spec.first_position = cases[i].first;
        uint64_t bound;
        uint64_t scratch;
        assert_status(kvt_record_bound(&e.spec, &bound, &scratch), KVT_OK);
        kvt_status status =
            kvt_record_encode_with(&e.spec, &extras, e.source.data, e.source.bytes, e.record.data,
                                   bound, e.scratch.data, e.scratch.bytes, &e.record.bytes);
        bool all = cases[i].head + cases[i].tail == 64;
        assert_status(status, all ? KVT_RAW : KVT_OK);
        assert_status(encoded_decode(&e), KVT_OK);
        for (uint32_t side = 0; side < 2; side++) {
            const uint8_t *x = e.source.data + side * 64 * row;
            const uint8_t *y = e.decoded.data + side * 64 * row;
            assert_memory_equal(x, y, cases[i].head * row);
            assert_memory_equal(x + (64 - cases[i].tail) * row, y + (64 - cases[i].tail) * row,
                                cases[i].tail * row);
            if (!all) assert_memory_not_equal(x, y, 64 * row);
        }
    }
}
