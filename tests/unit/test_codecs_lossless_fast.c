/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_codecs_lossless_fast.c - mode fast of the lossless codec: exact for every bit pattern, what
 * it must save, room, damage, and that every instruction set gives the same bytes.
 */
#include "codecs_support.h"

#include "codecs/kernels/cpu.h"
#include "codecs/lossless_fast.h"

#include <xxhash.h>

/* Encodings of a 200 x 100 sample by dtype, as below: stored bytes outlive the program. */
static const uint64_t pins[] = {UINT64_C(0xf6366c3dd9b3d35d), UINT64_C(0x1ef9c78a653e643f),
                                UINT64_C(0x49ea3a5b5c168f9a)};

enum { ELEMENTS_MAX = 70000, KINDS = 9 };

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

static void element_put(uint8_t dtype, uint8_t *data, uint64_t at, uint32_t bits)
{
    uint32_t element = kvt_dtype_bytes(dtype);
    if (element == 2 && bits > 0xffff) bits >>= 16;
    memcpy(data + at * element, &bits, element);
}

/* 0 sample, 1 random bits, 2 zero, 3 sample with zeros, 4 every 16-bit pattern, 5 one exponent a
 * value in turn, 6 narrow mantissas, 7 NaN and infinity, 8 sample with a random stretch. */
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
        default: break;
        }
        memcpy(data + i * kvt_dtype_bytes(dtype), &bits, kvt_dtype_bytes(dtype));
    }
}

static kvt_status decode_exact(uint8_t dtype, const uint8_t *stored, uint64_t bytes,
                               guarded *decoded)
{
    uint8_t *exact = malloc(bytes + (bytes == 0));
    assert_non_null(exact);
    memcpy(exact, stored, bytes);
    kvt_status status =
        lossless_fast_decode(dtype, exact, bytes, VIEW_ROWS_PACKED(decoded->data, decoded->bytes));
    guarded_check(decoded, decoded->bytes);
    free(exact);
    return status;
}

/* Encodes and decodes on every instruction set, which must agree. */
static kvt_status round_trip(uint8_t dtype, const guarded *source, uint64_t *written_out)
{
    const codecs_cpu level = codecs_cpu_level();
    guarded first = guarded_make(source->bytes);
    guarded target = guarded_make(source->bytes);
    guarded decoded = guarded_make(source->bytes);
    kvt_status first_status = KVT_OK;
    for (int l = CODECS_CPU_SCALAR; l <= (int)codecs_cpu_best(); l++) {
        uint64_t written;
        codecs_cpu_force((codecs_cpu)l);
        kvt_status status = lossless_fast_encode(dtype, source->data, source->bytes, target.data,
                                                 target.bytes, &written);
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
        assert_status(decode_exact(dtype, target.data, written, &decoded), KVT_OK);
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
    static const uint64_t lengths[] = {1,   2,   3,   63,   64,   65,    127,   128,
                                       129, 511, 513, 1000, 4097, 65535, 65536, ELEMENTS_MAX};
    for (size_t d = 0; d < sizeof dtypes; d++) {
        for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++) {
            for (unsigned kind = 0; kind < KINDS; kind++) {
                uint64_t written;
                guarded source = guarded_make(lengths[l] * kvt_dtype_bytes(dtypes[d]));
                fill_kind(kind, dtypes[d], source.data, lengths[l]);
                kvt_status status = round_trip(dtypes[d], &source, &written);
                assert_true(status == KVT_OK || status == KVT_RAW);
                /* What has few exponents shrinks, all but the shortest. */
                bool plain = kind == 0 || kind == 2 || kind == 3 || kind == 6;
                if (plain && lengths[l] > 200) assert_int_equal(status, KVT_OK);
                free(source.data);
            }
        }
    }
}

static double ratio_of(uint8_t dtype, unsigned kind)
{
    uint64_t written;
    guarded source = guarded_make((uint64_t)8 * 65536 * kvt_dtype_bytes(dtype));
    fill_kind(kind, dtype, source.data, 8 * 65536);
    assert_status(round_trip(dtype, &source, &written), KVT_OK);
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
    print_message("ratios: bf16 %.4f, fp16 %.4f, fp32 %.4f, bf16 inside fp16 %.4f, inside fp32 "
                  "%.4f\n",
                  bf16, fp16, fp32, narrow, bf16_in_fp32);
    assert_true(bf16 >= 1.32);
    assert_true(fp16 >= 1.08);
    assert_true(fp32 >= 1.13);
    assert_true(narrow >= 1.32);
    assert_true(bf16_in_fp32 >= 2.6);
}

TEST(unaligned_buffers)
{
    enum { COUNT = 700001 };
    guarded source = guarded_make(2 * COUNT + 64);
    guarded target = guarded_make(2 * COUNT + 64);
    guarded decoded = guarded_make(2 * COUNT + 64);
    fill_sample(KVT_DTYPE_BF16, source.data, COUNT);
    for (unsigned shift = 0; shift < 4; shift++) {
        uint64_t written;
        memmove(source.data + shift, source.data + (shift ? shift - 1 : 0), 2 * COUNT);
        assert_status(lossless_fast_encode(KVT_DTYPE_BF16, source.data + shift, 2 * COUNT,
                                           target.data + 3 * shift, 2 * COUNT, &written),
                      KVT_OK);
        assert_status(lossless_fast_decode(KVT_DTYPE_BF16, target.data + 3 * shift, written,
                                           VIEW_ROWS_PACKED(decoded.data + shift, 2 * COUNT)),
                      KVT_OK);
        assert_memory_equal(decoded.data + shift, source.data + shift, 2 * COUNT);
    }
    free(source.data);
    free(target.data);
    free(decoded.data);
}

TEST(bytes_are_pinned)
{
    for (size_t d = 0; d < sizeof dtypes; d++) {
        uint64_t written;
        guarded source = guarded_make((uint64_t)20000 * kvt_dtype_bytes(dtypes[d]));
        guarded target = guarded_make(source.bytes);
        fill_kind(3, dtypes[d], source.data, 20000);
        assert_status(lossless_fast_encode(dtypes[d], source.data, source.bytes, target.data,
                                           target.bytes, &written),
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
    assert_status(lossless_fast_encode(KVT_DTYPE_FP8, source, 256, target, 256, &written), KVT_RAW);
    assert_status(lossless_fast_encode(KVT_DTYPE_OPAQUE, source, 256, target, 256, &written),
                  KVT_RAW);
    assert_status(lossless_fast_encode(KVT_DTYPE_FP32, source, 255, target, 256, &written),
                  KVT_RAW);
    assert_status(lossless_fast_decode(KVT_DTYPE_FP8, source, 256, VIEW_ROWS_PACKED(target, 256)),
                  KVT_E_CORRUPT);
    assert_status(lossless_fast_decode(KVT_DTYPE_BF16, source, 256, VIEW_ROWS_PACKED(target, 255)),
                  KVT_E_CORRUPT);
}

TEST(capacity_is_exact)
{
    const codecs_cpu level = codecs_cpu_level();
    static const unsigned kinds[] = {0, 3, 6, 8};
    for (size_t d = 0; d < sizeof dtypes; d++) {
        for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
            const uint64_t elements = kinds[k] == 8 ? ELEMENTS_MAX : 1500;
            uint64_t need;
            uint64_t written;
            guarded source = guarded_make(elements * kvt_dtype_bytes(dtypes[d]));
            fill_kind(kinds[k], dtypes[d], source.data, elements);
            assert_status(round_trip(dtypes[d], &source, &need), KVT_OK);
            guarded exact = guarded_make(need);
            for (int l = CODECS_CPU_SCALAR; l <= (int)codecs_cpu_best(); l++) {
                codecs_cpu_force((codecs_cpu)l);
                assert_status(lossless_fast_encode(dtypes[d], source.data, source.bytes, exact.data,
                                                   need, &written),
                              KVT_OK);
                assert_int_equal(written, need);
                guarded_check(&exact, need);
                for (uint64_t less = 1; less <= need; less += less < 100 ? 1 : need / 50) {
                    memset(exact.data, GUARD_VALUE, need);
                    assert_status(lossless_fast_encode(dtypes[d], source.data, source.bytes,
                                                       exact.data, need - less, &written),
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

TEST(damage_is_harmless)
{
    const codecs_cpu level = codecs_cpu_level();
    for (size_t d = 0; d < sizeof dtypes; d++) {
        enum { COUNT = 1021 };
        uint64_t written;
        guarded source = guarded_make((uint64_t)COUNT * kvt_dtype_bytes(dtypes[d]));
        guarded target = guarded_make(source.bytes);
        guarded decoded = guarded_make(source.bytes);
        guarded first = guarded_make(source.bytes);
        fill_kind(0, dtypes[d], source.data, COUNT);
        for (uint64_t i = 0; i < COUNT; i += 97) {
            element_put(dtypes[d], source.data, i, i % 2 ? 0 : 0x7f800000);
        }
        assert_status(lossless_fast_encode(dtypes[d], source.data, source.bytes, target.data,
                                           target.bytes, &written),
                      KVT_OK);
        for (uint64_t cut = 0; cut < written; cut++) {
            assert_status(decode_exact(dtypes[d], target.data, cut, &decoded), KVT_E_CORRUPT);
        }
        target.data[written] = 0;
        assert_status(decode_exact(dtypes[d], target.data, written + 1, &decoded), KVT_E_CORRUPT);
        for (uint64_t at = 0; at < written * 8; at++) {
            kvt_status first_status = KVT_OK;
            target.data[at / 8] ^= (uint8_t)(1u << at % 8);
            for (int l = CODECS_CPU_SCALAR; l <= (int)codecs_cpu_best(); l++) {
                codecs_cpu_force((codecs_cpu)l);
                kvt_status status = decode_exact(dtypes[d], target.data, written, &decoded);
                assert_true(status == KVT_OK || status == KVT_E_CORRUPT);
                if (l == CODECS_CPU_SCALAR) {
                    first_status = status;
                    memcpy(first.data, decoded.data, decoded.bytes);
                }
                assert_int_equal(status, first_status);
                if (status != KVT_OK) continue;
                assert_memory_equal(decoded.data, first.data, first.bytes);
            }
            target.data[at / 8] ^= (uint8_t)(1u << at % 8);
        }
        codecs_cpu_force(level);
        free(source.data);
        free(target.data);
        free(decoded.data);
        free(first.data);
    }
}
