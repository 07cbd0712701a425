/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_codecs_lossless_modes.c - both modes of the lossless codec, dense and fast: exact for every
 * bit pattern and shape, what they must save, room, damage, and that every instruction set gives
 * the same bytes.
 */
#include "codecs_support.h"
#include "dice.h"

#include "codecs/kernels/cpu.h"
#include "codecs/lossless_dense.h"
#include "codecs/lossless_fast.h"

#include <xxhash.h>

enum { KINDS = 10, SIZES = 16 };

typedef lossless_dense_shape shape;

static const uint8_t dtypes[] = {KVT_DTYPE_FP16, KVT_DTYPE_BF16, KVT_DTYPE_FP32, KVT_DTYPE_FP8};

typedef kvt_status encoder(const shape *s, const uint8_t *source, uint8_t *target,
                           uint64_t capacity, uint64_t *written);
typedef kvt_status decoder(const shape *s, const uint8_t *stored, uint64_t bytes, guarded *decoded);

/* A mode and what is asked of it. */
typedef struct mode {
    encoder *encode;
    decoder *decode;
    unsigned kinds;
    size_t dtypes; /* that it takes, of the list above */
    struct {
        uint32_t tokens, row;
    } sizes[SIZES];
    uint64_t shrinks_above; /* elements */
    uint32_t ratio_tokens, ratio_row;
    double bf16, fp16, fp32, narrow, bf16_in_fp32; /* the least ratios of the sample */
    uint32_t full_tokens, stretch_tokens;          /* rows of 100: of the capacity that is needed */
    uint64_t steps;                                /* of capacities below it */
    /* Of encodings of a 200 x 100 sample by dtype: stored bytes outlive the program. */
    uint64_t pins[4];
} mode;

static uint64_t bytes_of(const shape *s)
{
    return (uint64_t)s->tokens * s->row * kvt_dtype_bytes(s->dtype);
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
        uint32_t word = (uint32_t)(dice_shift(&state) >> 16);
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
static kvt_status dense_encode(const shape *s, const uint8_t *source, uint8_t *target,
                               uint64_t capacity, uint64_t *written)
{
    guarded scratch = guarded_make(lossless_dense_scratch_bytes(s));
    kvt_status status = lossless_dense_encode(s, source, target, capacity, scratch.data, written);
    guarded_check(&scratch, scratch.bytes);
    return status;
}

static kvt_status dense_decode(const shape *s, const uint8_t *stored, uint64_t bytes,
                               guarded *decoded)
{
    guarded scratch = guarded_make(lossless_dense_scratch_bytes(s));
    kvt_status status = lossless_dense_decode(
        s, stored, bytes, VIEW_ROWS_PACKED(decoded->data, decoded->bytes), scratch.data);
    guarded_check(&scratch, scratch.bytes);
    return status;
}

static kvt_status fast_encode(const shape *s, const uint8_t *source, uint8_t *target,
                              uint64_t capacity, uint64_t *written)
{
    return lossless_fast_encode(s->dtype, source, bytes_of(s), target, capacity, written);
}

static kvt_status fast_decode(const shape *s, const uint8_t *stored, uint64_t bytes,
                              guarded *decoded)
{
    return lossless_fast_decode(s->dtype, stored, bytes,
                                VIEW_ROWS_PACKED(decoded->data, decoded->bytes));
}

static const mode dense = {.encode = dense_encode,
                           .decode = dense_decode,
                           .kinds = KINDS,
                           .dtypes = 4,
                           .sizes = {{1, 1},
                                     {1, 3000},
                                     {3, 1025},
                                     {64, 1},
                                     {70, 128},
                                     {257, 33},
                                     {256, 8},
                                     {63, 1024},
                                     {300, 200},
                                     {65, 513},
                                     {600, 96}},
                           .shrinks_above = 2000,
                           .ratio_tokens =
                               512, /* rows as the sample's, so that channels are columns */
                           .ratio_row = 1000,
                           .bf16 = 1.50,
                           .fp16 = 1.17,
                           .fp32 = 1.19,
                           .narrow = 1.50,
                           .bf16_in_fp32 = 3.0,
                           .full_tokens = 80,
                           .stretch_tokens = 500,
                           .steps = 20,
                           .pins = {UINT64_C(0x70f20eebe46bf7e4), UINT64_C(0xc1b2ad7c069880c6),
                                    UINT64_C(0xa50906c8d6952b97), UINT64_C(0xc0505a4e8b8e2d13)}};
static const mode fast = {.encode = fast_encode,
                          .decode = fast_decode,
                          .kinds = KINDS - 1,
                          .dtypes = 3,
                          .sizes = {{1, 1},
                                    {1, 2},
                                    {1, 3},
                                    {1, 63},
                                    {1, 64},
                                    {1, 65},
                                    {1, 127},
                                    {1, 128},
                                    {1, 129},
                                    {1, 511},
                                    {1, 513},
                                    {1, 1000},
                                    {1, 4097},
                                    {1, 65535},
                                    {1, 65536},
                                    {1, 70000}},
                          .shrinks_above = 200,
                          .ratio_tokens = 8,
                          .ratio_row = 65536,
                          .bf16 = 1.32,
                          .fp16 = 1.08,
                          .fp32 = 1.13,
                          .narrow = 1.32,
                          .bf16_in_fp32 = 2.6,
                          .full_tokens = 15,
                          .stretch_tokens = 700,
                          .steps = 50,
                          .pins = {UINT64_C(0xf6366c3dd9b3d35d), UINT64_C(0x1ef9c78a653e643f),
                                   UINT64_C(0x49ea3a5b5c168f9a)}};

/* From memory of exactly so many bytes. */
static kvt_status decode_exact(const mode *m, const shape *s, const uint8_t *stored, uint64_t bytes,
                               guarded *decoded)
{
    uint8_t *exact = test_alloc(bytes + (bytes == 0));
    memcpy(exact, stored, bytes);
    kvt_status status = m->decode(s, exact, bytes, decoded);
    guarded_check(decoded, decoded->bytes);
    return status;
}

/* Encodes and decodes on every instruction set, which must agree. */
static kvt_status round_trip(const mode *m, const shape *s, const guarded *source,
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
        kvt_status status = m->encode(s, source->data, target.data, target.bytes, &written);
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
        assert_status(decode_exact(m, s, target.data, written, &decoded), KVT_OK);
        assert_memory_equal(decoded.data, source->data, source->bytes);
    }
    codecs_cpu_force(level);
    return first_status;
}

/* A source of that kind. */
static guarded source_of(const shape *s, unsigned kind)
{
    guarded source = guarded_make(bytes_of(s));
    fill_kind(kind, s->dtype, source.data, (uint64_t)s->tokens * s->row);
    return source;
}

static void check_every_bit(const mode *m)
{
    for (size_t d = 0; d < m->dtypes; d++) {
        for (size_t l = 0; l < SIZES && m->sizes[l].tokens != 0; l++) {
            for (unsigned kind = 0; kind < m->kinds; kind++) {
                uint64_t written;
                const shape s = {m->sizes[l].tokens, m->sizes[l].row, dtypes[d]};
                guarded source = source_of(&s, kind);
                assert_int_equal(lossless_dense_bound(&s), source.bytes);
                kvt_status status = round_trip(m, &s, &source, &written);
                assert_true(status == KVT_OK || status == KVT_RAW);
                /* What has few exponents shrinks, all but the shortest. */
                bool plain = kind == 0 || kind == 2 || kind == 3 || kind == 6 || kind == 9;
                if (plain && (uint64_t)s.tokens * s.row > m->shrinks_above) assert_ok(status);
            }
        }
    }
}

TEST(every_bit_comes_back_from_dense)
{
    check_every_bit(&dense);
}

TEST(every_bit_comes_back_from_fast)
{
    check_every_bit(&fast);
}

static double ratio_of(const mode *m, uint8_t dtype, unsigned kind)
{
    uint64_t written;
    const shape s = {m->ratio_tokens, m->ratio_row, dtype};
    guarded source = source_of(&s, kind);
    assert_status(round_trip(m, &s, &source, &written), KVT_OK);
    double ratio = (double)source.bytes / (double)written;
    return ratio;
}

static void check_ratios(const mode *m)
{
    double bf16 = ratio_of(m, KVT_DTYPE_BF16, 0);
    double fp16 = ratio_of(m, KVT_DTYPE_FP16, 0);
    double fp32 = ratio_of(m, KVT_DTYPE_FP32, 0);
    double narrow = ratio_of(m, KVT_DTYPE_FP16, 6);
    double bf16_in_fp32 = ratio_of(m, KVT_DTYPE_FP32, 6);
    print_message("ratios: bf16 %.4f, fp16 %.4f, fp32 %.4f, bf16 inside fp16 %.4f, inside fp32 "
                  "%.4f\n",
                  bf16, fp16, fp32, narrow, bf16_in_fp32);
    assert_true(bf16 >= m->bf16);
    assert_true(fp16 >= m->fp16);
    assert_true(fp32 >= m->fp32);
    assert_true(narrow >= m->narrow);
    assert_true(bf16_in_fp32 >= m->bf16_in_fp32);
}

TEST(ratios_of_dense)
{
    check_ratios(&dense);
    /* Sign and three mantissa bits left: four bits that nothing shrinks. */
    assert_true(ratio_of(&dense, KVT_DTYPE_BF16, 9) >= 2.35);
    const double fp8 = ratio_of(&dense, KVT_DTYPE_FP8, 0);
    print_message("ratio: fp8 %.4f\n", fp8);
    assert_true(fp8 >= 1.2);
}

TEST(ratios_of_fast)
{
    check_ratios(&fast);
}

static void check_capacity(const mode *m)
{
    const codecs_cpu level = codecs_cpu_level();
    static const unsigned kinds[] = {0, 3, 6, 8, 9};
    for (size_t d = 0; d < m->dtypes; d++) {
        for (size_t k = 0; k < sizeof kinds / sizeof kinds[0] && kinds[k] < m->kinds; k++) {
            const shape s = {kinds[k] == 8 ? m->stretch_tokens : m->full_tokens, 100, dtypes[d]};
            uint64_t need, written;
            guarded source = source_of(&s, kinds[k]);
            assert_status(round_trip(m, &s, &source, &need), KVT_OK);
            guarded exact = guarded_make(need);
            for (int l = CODECS_CPU_SCALAR; l <= (int)codecs_cpu_best(); l++) {
                codecs_cpu_force((codecs_cpu)l);
                assert_status(m->encode(&s, source.data, exact.data, need, &written), KVT_OK);
                assert_int_equal(written, need);
                guarded_check(&exact, need);
                for (uint64_t less = 1; less <= need;
                     less += less < 2 * m->steps ? 1 : need / m->steps) {
                    memset(exact.data, GUARD_VALUE, need);
                    assert_status(m->encode(&s, source.data, exact.data, need - less, &written),
                                  KVT_E_SPACE);
                    assert_int_equal(written, 0);
                    guarded_check(&exact, need - less);
                }
            }
            codecs_cpu_force(level);
        }
    }
}

TEST(capacity_of_dense_is_exact)
{
    check_capacity(&dense);
}

TEST(capacity_of_fast_is_exact)
{
    check_capacity(&fast);
}

static void check_pins(const mode *m)
{
    for (size_t d = 0; d < m->dtypes; d++) {
        uint64_t written;
        const shape s = {200, 100, dtypes[d]};
        guarded source = source_of(&s, 3);
        guarded target = guarded_make(source.bytes);
        assert_status(m->encode(&s, source.data, target.data, target.bytes, &written), KVT_OK);
        uint64_t hash = XXH3_64bits(target.data, written);
        if (hash != m->pins[d]) fail_msg("%zu: 0x%016llx", d, (unsigned long long)hash);
    }
}

TEST(bytes_are_pinned)
{
    check_pins(&dense);
    check_pins(&fast);
}

TEST(other_dtypes_stay_raw)
{
    uint8_t source[256] = {0};
    uint8_t target[256];
    uint64_t written;
    guarded decoded = guarded_make(256);
    const shape s = {16, 16, KVT_DTYPE_FP8};
    const shape bytes = {16, 16, KVT_DTYPE_OPAQUE};
    assert_status(dense_encode(&bytes, source, target, 256, &written), KVT_RAW);
    assert_status(decode_exact(&dense, &bytes, source, 256, &decoded), KVT_E_CORRUPT);
    assert_status(fast_encode(&s, source, target, 256, &written), KVT_RAW);
    assert_status(decode_exact(&fast, &s, source, 256, &decoded), KVT_E_CORRUPT);
    assert_status(lossless_fast_encode(KVT_DTYPE_OPAQUE, source, 256, target, 256, &written),
                  KVT_RAW);
    assert_status(lossless_fast_encode(KVT_DTYPE_FP32, source, 255, target, 256, &written),
                  KVT_RAW);
    assert_status(lossless_fast_decode(KVT_DTYPE_BF16, source, 256, VIEW_ROWS_PACKED(target, 255)),
                  KVT_E_CORRUPT);
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
}

/* A checksum outside notices damage; here it must only be harmless and the same everywhere. */
static void check_damage(const mode *m, const shape *s, const guarded *source, uint32_t flips)
{
    const codecs_cpu level = codecs_cpu_level();
    uint64_t written;
    guarded target = guarded_make(source->bytes);
    guarded decoded = guarded_make(source->bytes);
    guarded first = guarded_make(source->bytes);
    assert_status(m->encode(s, source->data, target.data, target.bytes, &written), KVT_OK);
    for (uint64_t cut = 0; cut < written; cut++)
        assert_status(decode_exact(m, s, target.data, cut, &decoded), KVT_E_CORRUPT);
    target.data[written] = 0;
    assert_status(decode_exact(m, s, target.data, written + 1, &decoded), KVT_E_CORRUPT);
    for (uint64_t at = 0; at < written * flips; at++) {
        kvt_status first_status = KVT_OK;
        target.data[at / flips] ^= (uint8_t)(1u << at % 8);
        for (int l = CODECS_CPU_SCALAR; l <= (int)codecs_cpu_best(); l++) {
            codecs_cpu_force((codecs_cpu)l);
            kvt_status status = decode_exact(m, s, target.data, written, &decoded);
            assert_true(status == KVT_OK || status == KVT_E_CORRUPT);
            if (l == CODECS_CPU_SCALAR) {
                first_status = status;
                memcpy(first.data, decoded.data, decoded.bytes);
            }
            assert_int_equal(status, first_status);
            if (status == KVT_OK) assert_memory_equal(decoded.data, first.data, first.bytes);
        }
        target.data[at / flips] ^= (uint8_t)(1u << at % 8);
    }
    codecs_cpu_force(level);
}

TEST(damage_of_dense_is_harmless)
{
    for (size_t d = 0; d < dense.dtypes; d++) {
        const shape s = {70, 9, dtypes[d]};
        guarded source = source_of(&s, dtypes[d] == KVT_DTYPE_FP16 ? 6 : 0);
        check_damage(&dense, &s, &source, 1);
    }
}

TEST(damage_of_fast_is_harmless)
{
    for (size_t d = 0; d < fast.dtypes; d++) {
        const shape s = {1, 1021, dtypes[d]};
        const uint32_t element = kvt_dtype_bytes(s.dtype);
        guarded source = source_of(&s, 0);
        for (uint64_t i = 0; i < s.row; i += 97) {
            const uint32_t bits = i % 2 ? 0 : element == 2 ? 0x7f80u : 0x7f800000u;
            memcpy(source.data + i * element, &bits, element);
        }
        check_damage(&fast, &s, &source, 8);
    }
}
