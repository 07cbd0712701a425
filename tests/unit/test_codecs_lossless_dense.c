/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_codecs_lossless_dense.c - lossless dense: exact for every bit pattern
 * and shape, what it must save, room, damage, and that every instruction set gives the same bytes.
 */
#include "codecs_support.h"

#include "codecs/kernels/cpu.h"
#include "codecs/lossless_dense.h"

#include <xxhash.h>

/* Encodings of a 200 x 100 sample by dtype, as below: stored bytes outlive the program. */
static const uint64_t pins[] = {UINT64_C(0x70f20eebe46bf7e4), UINT64_C(0xc1b2ad7c069880c6),
                                UINT64_C(0xa50906c8d6952b97)};

enum { KINDS = 10 };

static const uint8_t dtypes[] = {KVT_DTYPE_FP16, KVT_DTYPE_BF16, KVT_DTYPE_FP32};

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void fill_sample(uint8_t dtype, uint8_t *data, uint64_t elements)
{
    const uint16_t row = 1000;
    kvt_layout layout = {.layers = 1,
                         .kv_heads = 1,
                         .head_dim = row,
                         .dtype = dtype,
                         .tokens = (uint32_t)(elements / row + 1)};
    uint64_t bytes;
    assert_status(kvt_layout_bytes(&layout, &bytes), KVT_OK);
    guarded whole = guarded_make(bytes);
    codecs_kv_sample_fill(&layout, 5, whole.data);
    memcpy(data, whole.data, elements * kvt_dtype_bytes(dtype));
    free(whole.data);
}

/* 0 sample, 1 random bits, 2 zero, 3 sample with zeros, 4 every 16-bit pattern, 5 one exponent a
 * value in turn, 6 narrow mantissas, 7 NaN and infinity, 8 sample with a random stretch, 9 few
 * mantissa bits. */
static void fill_kind(unsigned kind, uint8_t dtype, uint8_t *data, uint64_t elements)
{
    uint64_t state = 0x2545f4914f6cdd1d + kind;
    const uint32_t step = dtype == KVT_DTYPE_FP16 ? 1u << 10 : 1u << 7;
    fill_sample(dtype, data, elements);
    for (uint64_t i = 0; i < elements; i++) {
        uint32_t word = (uint32_t)(next_random(&state) >> 16);
        uint32_t bits = 0;
        memcpy(&bits, data + i * kvt_dtype_bytes(dtype), kvt_dtype_bytes(dtype));
        switch (kind) {
        case 1: bits = kvt_dtype_bytes(dtype) == 2 ? word & 0xffff : word; break;
        case 2: bits = 0; break;
        case 3: bits = i / 500 % 2 ? bits : 0; break;
        case 4: bits = (uint32_t)(i & 0xffff); break;
        case 5: bits = (uint32_t)i * step & 0xffff; break;
        case 6: bits &= dtype == KVT_DTYPE_FP32 ? 0xffff0000u : 0xfff8u; break;
        case 7: bits = i % 3 ? 0x7fc1u + (uint32_t)(i % 7) : 0xff80u; break;
        case 8: bits = i / 10000 == 2 ? word & 0xffff : bits; break;
        case 9: bits &= dtype == KVT_DTYPE_FP32 ? 0xfff00000u : 0xfff0u; break;
        default: break;
        }
        memcpy(data + i * kvt_dtype_bytes(dtype), &bits, kvt_dtype_bytes(dtype));
    }
}

/* Scratch of exactly the promised size, so that a sanitizer sees a byte too many. */
static kvt_status encode_with_scratch(const lossless_dense_shape *shape, const uint8_t *source,
                                      uint8_t *target, uint64_t capacity, uint64_t *written)
{
    guarded scratch = guarded_make(lossless_dense_scratch_bytes(shape));
    kvt_status status =
        lossless_dense_encode(shape, source, target, capacity, scratch.data, written);
    guarded_check(&scratch, scratch.bytes);
    free(scratch.data);
    return status;
}

static kvt_status decode_exact(const lossless_dense_shape *shape, const uint8_t *stored,
                               uint64_t bytes, guarded *decoded)
{
    guarded scratch = guarded_make(lossless_dense_scratch_bytes(shape));
    uint8_t *exact = malloc(bytes + (bytes == 0));
    assert_non_null(exact);
    memcpy(exact, stored, bytes);
    kvt_status status = lossless_dense_decode(
        shape, exact, bytes, VIEW_ROWS_PACKED(decoded->data, decoded->bytes), scratch.data);
    guarded_check(decoded, decoded->bytes);
    guarded_check(&scratch, scratch.bytes);
    free(exact);
    free(scratch.data);
    return status;
}

/* Encodes and decodes on every instruction set, which must agree. */
static kvt_status round_trip(const lossless_dense_shape *shape, const guarded *source,
                             uint64_t *written_out)
{
    const codecs_cpu level = codecs_cpu_level();
    guarded first = guarded_make(source->bytes);
    guarded target = guarded_make(source->bytes);
    guarded decoded = guarded_make(source->bytes);
    kvt_status first_status = KVT_OK;
    for (int l = CODECS_CPU_SCALAR; l <= (int)codecs_cpu_best(); l++) {
        uint64_t written;
        codecs_cpu_force((codecs_cpu)l);
        kvt_status status =
            encode_with_scratch(shape, source->data, target.data, target.bytes, &written);
        guarded_check(&target, target.bytes);
        if (l == CODECS_CPU_SCALAR) {
            first_status = status;
            *written_out = written;
            memcpy(first.data, target.data, written);
        }
        assert_int_equal(status, first_status);
        assert_int_equal(written, *written_out);
        assert_memory_equal(target.data, first.data, written);
        if (status != KVT_OK) continue;
        assert_true(written < source->bytes);
        memset(decoded.data, 0x11, decoded.bytes);
        assert_status(decode_exact(shape, target.data, written, &decoded), KVT_OK);
        assert_memory_equal(decoded.data, source->data, source->bytes);
    }
    codecs_cpu_force(level);
    free(first.data);
    free(target.data);
    free(decoded.data);
    return first_status;
}

TEST(every_bit_comes_back)
{
    static const struct {
        uint32_t tokens;
        uint32_t row;
    } sizes[] = {{1, 1},   {1, 3000},  {3, 1025},  {64, 1},   {70, 128}, {257, 33},
                 {256, 8}, {63, 1024}, {300, 200}, {65, 513}, {600, 96}};
    for (size_t d = 0; d < sizeof dtypes; d++) {
        for (size_t l = 0; l < sizeof sizes / sizeof sizes[0]; l++) {
            for (unsigned kind = 0; kind < KINDS; kind++) {
                uint64_t written;
                const uint64_t elements = (uint64_t)sizes[l].tokens * sizes[l].row;
                const lossless_dense_shape shape = {sizes[l].tokens, sizes[l].row, dtypes[d]};
                guarded source = guarded_make(elements * kvt_dtype_bytes(dtypes[d]));
                assert_int_equal(lossless_dense_bound(&shape), source.bytes);
                fill_kind(kind, dtypes[d], source.data, elements);
                kvt_status status = round_trip(&shape, &source, &written);
                assert_true(status == KVT_OK || status == KVT_RAW);
                /* What has few exponents shrinks, all but the shortest. */
                bool plain = kind == 0 || kind == 2 || kind == 3 || kind == 6 || kind == 9;
                if (plain && elements > 2000) assert_int_equal(status, KVT_OK);
                free(source.data);
            }
        }
    }
}

static double ratio_of(uint8_t dtype, unsigned kind)
{
    uint64_t written;
    /* Rows as the sample's, so that channels are columns. */
    const lossless_dense_shape shape = {512, 1000, dtype};
    guarded source = guarded_make(lossless_dense_bound(&shape));
    fill_kind(kind, dtype, source.data, 512 * 1000);
    assert_status(round_trip(&shape, &source, &written), KVT_OK);
    double ratio = (double)source.bytes / (double)written;
    free(source.data);
    return ratio;
}

TEST(ratios_on_the_sample)
{
    double bf16 = ratio_of(KVT_DTYPE_BF16, 0);
    double fp16 = ratio_of(KVT_DTYPE_FP16, 0);
    double fp32 = ratio_of(KVT_DTYPE_FP32, 0);
    double narrow = ratio_of(KVT_DTYPE_FP16, 6);
    double bf16_in_fp32 = ratio_of(KVT_DTYPE_FP32, 6);
    /* Sign and three mantissa bits left: four bits that nothing shrinks. */
    double few_bits = ratio_of(KVT_DTYPE_BF16, 9);
    print_message("ratios: bf16 %.4f, fp16 %.4f, fp32 %.4f, bf16 inside fp16 %.4f, inside fp32 "
                  "%.4f\n",
                  bf16, fp16, fp32, narrow, bf16_in_fp32);
    assert_true(bf16 >= 1.50);
    assert_true(fp16 >= 1.17);
    assert_true(fp32 >= 1.19);
    assert_true(narrow >= 1.50);
    assert_true(bf16_in_fp32 >= 3.0);
    assert_true(few_bits >= 2.35);
}

TEST(capacity_is_exact)
{
    const codecs_cpu level = codecs_cpu_level();
    static const unsigned kinds[] = {0, 3, 6, 8, 9};
    for (size_t d = 0; d < sizeof dtypes; d++) {
        for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
            const lossless_dense_shape shape = {kinds[k] == 8 ? 500 : 80, 100, dtypes[d]};
            uint64_t need;
            uint64_t written;
            guarded source = guarded_make(lossless_dense_bound(&shape));
            fill_kind(kinds[k], dtypes[d], source.data, shape.tokens * shape.row);
            assert_status(round_trip(&shape, &source, &need), KVT_OK);
            guarded exact = guarded_make(need);
            for (int l = CODECS_CPU_SCALAR; l <= (int)codecs_cpu_best(); l++) {
                codecs_cpu_force((codecs_cpu)l);
                assert_status(encode_with_scratch(&shape, source.data, exact.data, need, &written),
                              KVT_OK);
                assert_int_equal(written, need);
                guarded_check(&exact, need);
                for (uint64_t less = 1; less <= need; less += less < 30 ? 1 : need / 20) {
                    memset(exact.data, GUARD_VALUE, need);
                    assert_status(
                        encode_with_scratch(&shape, source.data, exact.data, need - less, &written),
                        KVT_E_SPACE);
                    assert_int_equal(written, 0);
                    guarded_check(&exact, need - less);
                }
            }
            codecs_cpu_force(level);
            free(exact.data);
            free(source.data);
        }
    }
}

TEST(bytes_are_pinned)
{
    for (size_t d = 0; d < sizeof dtypes; d++) {
        uint64_t written;
        const lossless_dense_shape shape = {200, 100, dtypes[d]};
        guarded source = guarded_make((uint64_t)20000 * kvt_dtype_bytes(dtypes[d]));
        guarded target = guarded_make(source.bytes);
        fill_kind(3, dtypes[d], source.data, 20000);
        assert_status(encode_with_scratch(&shape, source.data, target.data, target.bytes, &written),
                      KVT_OK);
        uint64_t hash = XXH3_64bits(target.data, written);
        if (hash != pins[d]) fail_msg("%zu: 0x%016llx", d, (unsigned long long)hash);
        free(source.data);
        free(target.data);
    }
}

TEST(other_dtypes_stay_raw)
{
    uint8_t source[256] = {0};
    uint8_t target[256];
    uint64_t written;
    lossless_dense_shape shape = {16, 16, KVT_DTYPE_FP8};
    assert_status(encode_with_scratch(&shape, source, target, 256, &written), KVT_RAW);
    guarded decoded = guarded_make(256);
    assert_status(decode_exact(&shape, source, 256, &decoded), KVT_E_CORRUPT);
    free(decoded.data);
}

/* A checksum outside notices damage; here it must only be harmless and the same everywhere. */
TEST(damage_is_harmless)
{
    const codecs_cpu level = codecs_cpu_level();
    for (size_t d = 0; d < sizeof dtypes; d++) {
        const lossless_dense_shape shape = {70, 9, dtypes[d]};
        uint64_t written;
        guarded source = guarded_make(lossless_dense_bound(&shape));
        guarded target = guarded_make(source.bytes);
        guarded decoded = guarded_make(source.bytes);
        guarded first = guarded_make(source.bytes);
        fill_kind(dtypes[d] == KVT_DTYPE_FP16 ? 6 : 0, dtypes[d], source.data, 630);
        assert_status(encode_with_scratch(&shape, source.data, target.data, target.bytes, &written),
                      KVT_OK);
        for (uint64_t cut = 0; cut < written; cut++) {
            assert_status(decode_exact(&shape, target.data, cut, &decoded), KVT_E_CORRUPT);
        }
        target.data[written] = 0;
        assert_status(decode_exact(&shape, target.data, written + 1, &decoded), KVT_E_CORRUPT);
        for (uint64_t at = 0; at < written; at++) {
            kvt_status first_status = KVT_OK;
            target.data[at] ^= (uint8_t)(1u << at % 8);
            for (int l = CODECS_CPU_SCALAR; l <= (int)codecs_cpu_best(); l++) {
                codecs_cpu_force((codecs_cpu)l);
                kvt_status status = decode_exact(&shape, target.data, written, &decoded);
                assert_true(status == KVT_OK || status == KVT_E_CORRUPT);
                if (l == CODECS_CPU_SCALAR) {
                    first_status = status;
                    memcpy(first.data, decoded.data, decoded.bytes);
                }
                assert_int_equal(status, first_status);
                if (status != KVT_OK) continue;
                assert_memory_equal(decoded.data, first.data, first.bytes);
            }
            target.data[at] ^= (uint8_t)(1u << at % 8);
        }
        codecs_cpu_force(level);
        free(source.data);
        free(target.data);
        free(decoded.data);
        free(first.data);
    }
}
