/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_codecs_kivi_group.c - the kernels of kivi and planes: every instruction set gives the bytes
 * of the scalar ones, for every stored width, dtype and grouping, odd shapes and unaligned targets.
 */
#include "codecs_support.h"

#include "base/half.h"
#include "codecs/codec_table.h"
#include "codecs/kernels/cpu.h"

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
        free(record.data);
        free(decoded.data);
    }
    codecs_cpu_force(codecs_cpu_best());
    free(source.data);
    free(scratch.data);
    free(first.data);
    free(parts_of_first.data);
}

TEST(every_kernel_gives_the_scalar_bytes)
{
    static const uint8_t dtypes[] = {KVT_DTYPE_FP16, KVT_DTYPE_BF16, KVT_DTYPE_FP32};
    static const char *const names[] = {
        "planes:k8v6,g64",       "planes:k6v8,g32,vhead", "planes:k4v3,g128", "planes:k3v4,g32",
        "planes:k2v2,g64,vchan", "kivi:k8v8,g64",         "kivi:k4v4,g32",    "kivi:k2v2,g128",
        "kivi:k4v2,g64,half",    "kivi:k2v8,g32,half"};
    /* Whole chunks, a row of one chunk, a streamed target, and shapes that leave tails. */
    static const uint32_t shapes[][3] = {{129, 2, 64}, {70, 1, 64},  {300, 8, 64},
                                         {77, 3, 24},  {131, 2, 80}, {64, 4, 8}};
    (void)state;
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
    (void)state;
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
