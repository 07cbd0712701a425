/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_codecs_kivi.c - kivi against vectors made by another library's fp16 arithmetic
 * (tests/support/make_kivi_vectors.py), its sizes against the published formulas, its window, and
 * what we define where the published code does not.
 */
#include "codecs_support.h"

#include "base/half.h"
#include "codecs/kernels/kivi_group.h"

#include <stdio.h>

typedef struct vectors {
    uint8_t *bytes;
    size_t size;
    size_t at;
} vectors;

typedef struct vector_case {
    uint32_t side;
    uint32_t bits;
    uint32_t group;
    uint32_t tokens;
    uint32_t heads;
    uint32_t dim;
} vector_case;

static const uint8_t *vectors_take(vectors *file, size_t bytes)
{
    assert_true(bytes <= file->size - file->at);
    file->at += bytes;
    return file->bytes + file->at - bytes;
}

static vectors vectors_open(void)
{
    char path[512];
    const char *source = getenv("KVT_SOURCE_DIR");
    vectors file = {.bytes = malloc(1 << 20)};
    snprintf(path, sizeof path, "%s/tests/support/kivi_vectors.bin", source ? source : ".");
    FILE *stream = fopen(path, "rb");
    assert_non_null(file.bytes);
    if (stream == NULL) fail_msg("%s is missing", path);
    file.size = fread(file.bytes, 1, 1 << 20, stream);
    fclose(stream);
    assert_memory_equal(vectors_take(&file, 8), "KIVIVEC1", 8);
    return file;
}

/* The codes of a data part, one byte each. */
static void codes_of(uint32_t bits, uint8_t *data, uint64_t count, uint8_t *codes)
{
    const group_plane plane = {(uint8_t)bits, 0, data};
    group_kernels_scalar.unpack(&plane, 1, 0, count, codes);
}

static void check_case(vectors *file, const vector_case *c)
{
    const uint64_t count = (uint64_t)c->tokens * c->heads * c->dim;
    kvt_variant variant = {KVT_CODEC_KIVI, KVT_KIVI_HALF, 0};
    uint32_t log_group = c->group == 32 ? 5 : c->group == 64 ? 6 : 7;
    variant.rate = c->bits | c->bits << 4 | log_group << 8;
    kvt_matrix matrix = {.tokens = c->tokens,
                         .kv_heads = (uint16_t)c->heads,
                         .head_dim = (uint16_t)c->dim,
                         .dtype = KVT_DTYPE_FP16,
                         .side = (uint8_t)c->side,
                         .planes = 1};
    kvt_part parts[KVT_PARTS_MAX];
    const kvt_codec *codec = kvt_codec_find(KVT_CODEC_KIVI);
    assert_int_equal(codec->matrix_parts(variant, &matrix, parts), 2);
    guarded metadata = guarded_make(parts[0].bytes);
    guarded data = guarded_make(parts[1].bytes);
    guarded scratch = guarded_make(codec->matrix_scratch(variant, &matrix));
    guarded codes = guarded_make(count);
    guarded values = guarded_make(2 * count);
    parts[0].data = metadata.data;
    parts[1].data = data.data;
    const uint8_t *input = vectors_take(file, 2 * count);
    kvt_status status =
        codec->encode_matrix(variant, &matrix, input, parts, scratch.data, scratch.bytes);
    assert_status(status, KVT_OK);
    guarded_check(&metadata, metadata.bytes);
    guarded_check(&data, data.bytes);
    /* Minima, then scales, as the file has them. */
    assert_memory_equal(metadata.data, vectors_take(file, metadata.bytes), metadata.bytes);
    codes_of(c->bits, data.data, count, codes.data);
    assert_memory_equal(codes.data, vectors_take(file, count), count);
    assert_status(codec->decode_matrix(variant, &matrix, parts,
                                       VIEW_ROWS_PACKED(values.data, values.bytes), scratch.data,
                                       scratch.bytes),
                  KVT_OK);
    assert_memory_equal(values.data, vectors_take(file, 2 * count), 2 * count);
    guarded_check(&values, values.bytes);
    free(metadata.data);
    free(data.data);
    free(scratch.data);
    free(codes.data);
    free(values.data);
}

TEST(kivi_equals_the_oracle)
{
    for (int level = CODECS_CPU_SCALAR; level <= (int)codecs_cpu_best(); level++) {
        vectors file = vectors_open();
        codecs_cpu_force((codecs_cpu)level);
        uint32_t count = codecs_load32(vectors_take(&file, 4));
        assert_in_range(count, 40, 100);
        for (uint32_t i = 0; i < count; i++) {
            vector_case c;
            memcpy(&c, vectors_take(&file, sizeof c), sizeof c);
            check_case(&file, &c);
        }
        assert_int_equal(file.at, file.size);
        free(file.bytes);
    }
    codecs_cpu_force(codecs_cpu_best());
}

/* Rounding a product with the rounded inverse to fp16 is the division, and the product never lies
 * in the middle of two fp16 numbers: all significands. */
TEST(the_inverse_divides_exactly)
{
    for (uint32_t b = 1024; b < 2048; b++) {
        const float inverse = 1.0f / (float)b;
        for (uint32_t a = 1024; a < 3072; a++) {
            uint32_t distance = a < 2048 ? a : 2 * (a - 1024); /* quotients below and above 1 */
            float quotient = (float)distance / (float)b;
            float product = (float)distance * inverse;
            if (half_from_float(quotient) != half_from_float(product) ||
                (half_float_bits(product) & 0x1fffu) == 0x1000u) {
                fail_msg("%u / %u", (unsigned)distance, (unsigned)b);
            }
        }
    }
}

TEST(sizes_are_the_published_ones)
{
    static const struct {
        const char *variant;
        double bits;
    } rates[] = {{"kivi:k2v2,g32", 3.0}, {"kivi:k2v2,g64", 2.5}, {"kivi:k2v2,g128", 2.25},
                 {"kivi:k4v4,g32", 5.0}, {"kivi:k4v4,g64", 4.5}, {"kivi:k4v4,g128", 4.25},
                 {"kivi:k8v8,g32", 9.0}, {"kivi:k8v8,g64", 8.5}, {"kivi:k8v8,g128", 8.25},
                 {"kivi:k4v2,g64", 3.5}};
    const kvt_layout layout = {
        .layers = 2, .kv_heads = 2, .head_dim = 128, .dtype = KVT_DTYPE_FP16, .tokens = 256};
    (void)state;
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++) {
        kvt_record_info info;
        encoded e = encoded_make(layout, rates[i].variant, NULL);
        assert_status(kvt_record_parse(e.record.data, e.record.bytes, &info), KVT_OK);
        assert_true(info.bits_per_element == rates[i].bits);
        encoded_free(&e);
    }
}

/* K keeps the last T mod R tokens raw, V the last min(T, R). */
TEST(the_window_is_raw)
{
    static const uint32_t tokens[] = {1, 31, 32, 63, 64, 65, 127, 128, 200};
    (void)state;
    for (size_t i = 0; i < sizeof tokens / sizeof tokens[0]; i++) {
        const uint32_t t = tokens[i];
        const kvt_layout layout = {
            .layers = 2, .kv_heads = 2, .head_dim = 64, .dtype = KVT_DTYPE_BF16, .tokens = t};
        const uint64_t row = 2 * 128;
        encoded e = encoded_make(layout, "kivi:k2v2,g64,r64", NULL);
        assert_status(encoded_decode(&e), KVT_OK);
        for (uint32_t m = 0; m < 4; m++) {
            uint64_t end = (m + 1) * t * row;
            uint64_t raw = m % 2 == 0 ? t % 64 : t < 64 ? t : 64;
            assert_memory_equal(e.decoded.data + end - raw * row, e.source.data + end - raw * row,
                                raw * row);
            if (raw + 8 > t) continue;
            assert_memory_not_equal(e.decoded.data + end - t * row, e.source.data + end - t * row,
                                    (t - raw) * row);
        }
        encoded_free(&e);
    }
}

TEST(constant_groups_are_exact)
{
    const kvt_layout layout = {
        .layers = 1, .kv_heads = 1, .head_dim = 64, .dtype = KVT_DTYPE_FP16, .tokens = 64};
    uint16_t source[2 * 64 * 64];
    (void)state;
    for (unsigned i = 0; i < 2 * 64 * 64; i++) {
        source[i] = i < 64 * 64 ? (uint16_t)(0x3c00 + i % 64) : (uint16_t)(0xc000 + i / 64 % 64);
    }
    encoded e = encoded_make(layout, "kivi:k2v2,g64", source);
    assert_status(e.status, KVT_OK);
    assert_status(encoded_decode(&e), KVT_OK);
    assert_memory_equal(e.decoded.data, source, sizeof source);
    encoded_free(&e);
}

/* One element that cannot be coded makes its matrix raw, and only its matrix. */
TEST(what_cannot_be_coded_stays_raw)
{
    static const struct {
        uint8_t dtype;
        uint32_t value;
    } odd[] = {{KVT_DTYPE_FP16, 0x7c00},     {KVT_DTYPE_FP16, 0xfc00},
               {KVT_DTYPE_FP16, 0x7c01},     {KVT_DTYPE_FP16, 0xffff},
               {KVT_DTYPE_BF16, 0x7f80},     {KVT_DTYPE_BF16, 0xffc1},
               {KVT_DTYPE_BF16, 0x4780},     {KVT_DTYPE_FP32, 0x7fc00000},
               {KVT_DTYPE_FP32, 0x47800000}, {KVT_DTYPE_FP32, 0xff800000}};
    (void)state;
    for (size_t i = 0; i < 2 * sizeof odd / sizeof odd[0]; i++) {
        const uint8_t dtype = odd[i / 2].dtype;
        const uint32_t size = kvt_dtype_bytes(dtype);
        const kvt_layout layout = {
            .layers = 2, .kv_heads = 2, .head_dim = 64, .dtype = dtype, .tokens = 70};
        const uint64_t matrix = kvt_layout_matrix_bytes(&layout);
        uint8_t *source = test_alloc(4 * matrix);
        codecs_kv_sample_fill(&layout, 3, source);
        memcpy(source + matrix + 5003 * size, &odd[i / 2].value, size);
        encoded e = encoded_make(layout, i % 2 ? "kivi:k4v4,g64" : "planes:k8v8,g64", source);
        kvt_record_info info;
        assert_status(kvt_record_verify(e.record.data, e.record.bytes, &info), KVT_OK);
        assert_int_equal(info.raw_segments, 1);
        assert_status(encoded_decode(&e), KVT_OK);
        assert_memory_equal(e.decoded.data + matrix, source + matrix, matrix);
        assert_memory_not_equal(e.decoded.data, source, matrix);
        encoded_free(&e);
        free(source);
    }
}

/* The fp32 dequantisation is scale * code + minimum in one rounding to the output. */
TEST(both_dequantisations_share_codes)
{
    const kvt_layout layout = {
        .layers = 1, .kv_heads = 2, .head_dim = 64, .dtype = KVT_DTYPE_FP16, .tokens = 128};
    (void)state;
    encoded full = encoded_make(layout, "kivi:k8v8,g32", NULL);
    encoded half = encoded_make(layout, "kivi:k8v8,g32,half", NULL);
    assert_int_equal(full.record.bytes, half.record.bytes);
    assert_memory_equal(full.record.data + 8192, half.record.data + 8192, full.record.bytes - 8192);
    assert_status(encoded_decode(&full), KVT_OK);
    assert_status(encoded_decode(&half), KVT_OK);
    assert_memory_not_equal(full.decoded.data, half.decoded.data, full.decoded.bytes);
    encoded_free(&full);
    encoded_free(&half);
}

TEST(odd_heads_are_left_to_lossless)
{
    kvt_record_spec spec = {
        .generation = 1,
        .layout = {
            .layers = 1, .kv_heads = 2, .head_dim = 20, .dtype = KVT_DTYPE_FP16, .tokens = 9}};
    uint64_t bound;
    uint64_t scratch;
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        assert_status(kvt_variant_parse(i ? "kivi" : "planes", &spec.variant), KVT_OK);
        spec.layout.head_dim = 20;
        assert_status(kvt_record_bound(&spec, &bound, &scratch), KVT_E_UNSUPPORTED);
        spec.layout.head_dim = 24;
        assert_status(kvt_record_bound(&spec, &bound, &scratch), KVT_OK);
        spec.layout.dtype = KVT_DTYPE_FP8;
        assert_status(kvt_record_bound(&spec, &bound, &scratch), KVT_E_UNSUPPORTED);
        spec.layout.dtype = KVT_DTYPE_FP16;
    }
}
