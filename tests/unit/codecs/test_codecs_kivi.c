/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_codecs_kivi.c - kivi against vectors made by another library's fp16 arithmetic
 * (tests/support/make_kivi_vectors.py), its sizes against the published formulas, its window, and
 * what we define where the published code does not. The kernels of kivi and planes: every
 * instruction set gives the bytes of the scalar ones, for every stored width, dtype and grouping,
 * odd shapes and unaligned targets.
 */
#include "codecs_support.h"

#include "base/half.h"
#include "codecs/codec_table.h"
#include "codecs/kernels/cpu.h"
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
    vectors file = {.bytes = test_alloc(1 << 20)};
    snprintf(path, sizeof path, "%s/tests/support/kivi_vectors.bin", source ? source : ".");
    FILE *stream = fopen(path, "rb");
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
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++) {
        kvt_record_info info;
        encoded e = encoded_make(layout, rates[i].variant, NULL);
        assert_status(kvt_record_parse(e.record.data, e.record.bytes, &info), KVT_OK);
        assert_true(info.bits_per_element == rates[i].bits);
    }
}

/* K keeps the last T mod R tokens raw, V the last min(T, R). */
TEST(the_window_is_raw)
{
    static const uint32_t tokens[] = {1, 31, 32, 63, 64, 65, 127, 128, 200};
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
    }
}

TEST(constant_groups_are_exact)
{
    const kvt_layout layout = {
        .layers = 1, .kv_heads = 1, .head_dim = 64, .dtype = KVT_DTYPE_FP16, .tokens = 64};
    uint16_t source[2 * 64 * 64];
    for (unsigned i = 0; i < 2 * 64 * 64; i++) {
        source[i] = i < 64 * 64 ? (uint16_t)(0x3c00 + i % 64) : (uint16_t)(0xc000 + i / 64 % 64);
    }
    encoded e = encoded_make(layout, "kivi:k2v2,g64", source);
    assert_status(e.status, KVT_OK);
    assert_status(encoded_decode(&e), KVT_OK);
    assert_memory_equal(e.decoded.data, source, sizeof source);
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
    }
}

/* The fp32 dequantisation is scale * code + minimum in one rounding to the output. */
TEST(both_dequantisations_share_codes)
{
    const kvt_layout layout = {
        .layers = 1, .kv_heads = 2, .head_dim = 64, .dtype = KVT_DTYPE_FP16, .tokens = 128};
    encoded full = encoded_make(layout, "kivi:k8v8,g32", NULL);
    encoded half = encoded_make(layout, "kivi:k8v8,g32,half", NULL);
    assert_int_equal(full.record.bytes, half.record.bytes);
    assert_memory_equal(full.record.data + 8192, half.record.data + 8192, full.record.bytes - 8192);
    assert_status(encoded_decode(&full), KVT_OK);
    assert_status(encoded_decode(&half), KVT_OK);
    assert_memory_not_equal(full.decoded.data, half.decoded.data, full.decoded.bytes);
}

TEST(odd_heads_are_left_to_lossless)
{
    kvt_record_spec spec = {
        .generation = 1,
        .layout = {
            .layers = 1, .kv_heads = 2, .head_dim = 20, .dtype = KVT_DTYPE_FP16, .tokens = 9}};
    uint64_t bound;
    uint64_t scratch;
    for (unsigned i = 0; i < 2; i++) {
        assert_status(kvt_variant_parse(i ? "kivi" : "planes", &spec.variant), KVT_OK);
        spec.layout.head_dim = 20;
        assert_status(kvt_record_bound(&spec, &bound, &scratch), KVT_E_UNSUPPORTED);
        spec.layout.head_dim = 24;
        assert_status(kvt_record_bound(&spec, &bound, &scratch), KVT_OK);
    }
}

/* ---- kernels ---- */

/* A source of `seed` with ties, subnormals, negative zeros, constant groups and large ranges. */
static void fill_rough(const kvt_layout *layout, uint64_t seed, uint8_t *target, uint64_t bytes)
{
    const uint32_t size = kvt_dtype_bytes(layout->dtype);
    uint64_t state = seed * 2 + 1;
    for (uint64_t i = 0; i < bytes / size; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        const uint32_t draw = (uint32_t)(state >> 33);
        const uint64_t token = i * size / (kvt_layout_matrix_bytes(layout) / layout->tokens);
        float x = (float)(draw % 4096) / 256.0f - 7.0f; /* many lie between two codes */
        if (token % 7 == 0) x = 2.5f;
        if (draw % 31 == 0) x = -0.0f;
        if (token / 128 % 2 == 1) x *= 1e-7f; /* subnormal scales */
        if (draw % 997 == 0) x *= 3000.0f;
        /* Ranges down to the smallest scales that fp16 holds with all bits, and below. */
        if (i / 64 % 3 == 1) x *= half_bits_float((127u - (uint32_t)(i / 192 % 17)) << 23);
        uint16_t half =
            layout->dtype == KVT_DTYPE_FP16 ? half_from_float(x) : half_bf16_from_float(x);
        memcpy(target + size * i, size == 4 ? (const void *)&x : (const void *)&half, size);
    }
}

/* Encodes and decodes one matrix with every instruction set, at a target that is `shift` bytes past
 * an aligned one, and compares with the scalar kernels. */
static void check_kernels(const kvt_layout *layout, const char *name, kvt_side side, uint64_t shift)
{
    kvt_variant variant;
    assert_status(kvt_variant_parse(name, &variant), KVT_OK);
    const kvt_codec *codec = kvt_codec_find(variant.codec);
    const kvt_matrix matrix = {.tokens = layout->tokens,
                               .kv_heads = layout->kv_heads,
                               .head_dim = layout->head_dim,
                               .dtype = layout->dtype,
                               .side = (uint8_t)side,
                               .planes = codec->matrix_planes(variant, side, 0)};
    const uint64_t bytes = kvt_layout_matrix_bytes(layout);
    const uint64_t room = codec->matrix_scratch(variant, &matrix);
    guarded source = guarded_make(bytes);
    guarded scratch = guarded_make(room);
    guarded first = {0};
    guarded parts_of_first = {0};
    fill_rough(layout, bytes + side, source.data, bytes);
    for (int level = CODECS_CPU_SCALAR; level <= (int)codecs_cpu_best(); level++) {
        kvt_part parts[KVT_PARTS_MAX];
        const uint32_t count = codec->matrix_parts(variant, &matrix, parts);
        uint64_t stored = 0;
        for (uint32_t i = 0; i < count; i++) {
            stored += parts[i].bytes;
        }
        guarded record = guarded_make(stored);
        guarded decoded = guarded_make(bytes + shift);
        stored = 0;
        for (uint32_t i = 0; i < count; i++) {
            parts[i].data = record.data + stored;
            stored += parts[i].bytes;
        }
        codecs_cpu_force((codecs_cpu)level);
        assert_status(
            codec->encode_matrix(variant, &matrix, source.data, parts, scratch.data, room), KVT_OK);
        assert_status(codec->decode_matrix(variant, &matrix, parts,
                                           VIEW_ROWS_PACKED(decoded.data + shift, bytes),
                                           scratch.data, room),
                      KVT_OK);
        guarded_check(&record, stored);
        guarded_check(&decoded, bytes + shift);
        guarded_check(&scratch, room);
        if (level == CODECS_CPU_SCALAR) {
            first = decoded;
            parts_of_first = record;
            continue;
        }
        if (memcmp(record.data, parts_of_first.data, stored) != 0 ||
            memcmp(decoded.data + shift, first.data + shift, bytes) != 0) {
            fail_msg("%s, side %d, dtype %u, %u x %u x %u: %s differs", name, (int)side,
                     (unsigned)layout->dtype, (unsigned)layout->tokens, (unsigned)layout->kv_heads,
                     (unsigned)layout->head_dim, codecs_cpu_name((codecs_cpu)level));
        }
    }
    codecs_cpu_force(codecs_cpu_best());
}

TEST(every_kernel_gives_the_scalar_bytes)
{
    static const uint8_t dtypes[] = {KVT_DTYPE_FP16, KVT_DTYPE_BF16, KVT_DTYPE_FP32};
    static const char *const names[] = {
        "planes:k8v6,g64",       "planes:k6v8,g32,vhead", "planes:k4v3,g128", "planes:k3v4,g32",
        "planes:k2v2,g64,vchan", "kivi:k8v8,g64",         "kivi:k4v4,g32",    "kivi:k2v2,g128",
        "kivi:k4v2,g64,half",    "kivi:k2v8,g32,half"};
    /* Whole chunks, a row of one chunk, a streamed target; rows of 2, 4 and 8 that fill chunks, and
     * tails; groups that end inside of vectors; a row too long for ranges of 8 rows. */
    static const uint32_t shapes[][3] = {{129, 2, 64}, {70, 1, 64}, {300, 8, 64}, {77, 3, 24},
                                         {131, 2, 80}, {64, 4, 8},  {75, 2, 32},  {133, 1, 32},
                                         {45, 1, 16},  {71, 1, 48}, {35, 2, 96},  {70, 1, 112},
                                         {13, 9, 120}};
    for (unsigned s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        for (unsigned n = 0; n < 3 * sizeof names / sizeof names[0]; n++) {
            kvt_layout layout = {.layers = 1,
                                 .kv_heads = (uint16_t)shapes[s][1],
                                 .head_dim = (uint16_t)shapes[s][2],
                                 .dtype = dtypes[n % 3],
                                 .tokens = shapes[s][0]};
            const uint64_t shift = n % 2 == 0 ? 0 : kvt_dtype_bytes(layout.dtype) * (1 + n % 5);
            check_kernels(&layout, names[n / 3], KVT_SIDE_K, shift);
            check_kernels(&layout, names[n / 3], KVT_SIDE_V, shift);
        }
    }
}

/* An infinite minimum, and scales that are infinite or negative, are found by every kernel. */
TEST(unsound_metadata_are_refused)
{
    static const uint16_t wrong[] = {0x7c00, 0xfc00, 0x7e00, 0x8000, 0xbc00};
    for (int level = CODECS_CPU_SCALAR; level <= (int)codecs_cpu_best(); level++) {
        codecs_cpu_force((codecs_cpu)level);
        for (uint32_t n = 0; n < 2 * 64 * 5; n++) {
            const uint32_t group = n / 5 % 64;
            const bool scale = n / 5 >= 64;
            const kvt_matrix matrix = {.tokens = 64,
                                       .kv_heads = 1,
                                       .head_dim = 64,
                                       .dtype = KVT_DTYPE_BF16,
                                       .side = (uint8_t)(group % 2),
                                       .planes = 1};
            static uint16_t metadata[128];
            static uint8_t codes[64 * 64 / 2];
            static uint16_t values[64 * 64];
            static _Alignas(64) uint8_t scratch[65536];
            kvt_variant variant;
            assert_status(kvt_variant_parse("kivi:k4v4,g64", &variant), KVT_OK);
            const kvt_codec *codec = kvt_codec_find(variant.codec);
            kvt_part parts[KVT_PARTS_MAX];
            assert_int_equal(codec->matrix_parts(variant, &matrix, parts), 2);
            assert_int_equal(parts[0].bytes, sizeof metadata);
            assert_int_equal(parts[1].bytes, sizeof codes);
            assert_true(codec->matrix_scratch(variant, &matrix) <= sizeof scratch);
            parts[0].data = (uint8_t *)metadata;
            parts[1].data = codes;
            memset(metadata, 0, sizeof metadata);
            metadata[64 * scale + group] = wrong[n % 5];
            const bool sound = !scale && n % 5 >= 3; /* a minimum may be negative */
            assert_status(codec->decode_matrix(variant, &matrix, parts,
                                               VIEW_ROWS_PACKED((void *)values, sizeof values),
                                               scratch, sizeof scratch),
                          sound ? KVT_OK : KVT_E_CORRUPT);
        }
    }
    codecs_cpu_force(codecs_cpu_best());
}
