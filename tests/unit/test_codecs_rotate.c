/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_codecs_rotate.c - codec 7's kernels: the bytes against a direct computation, the stated
 * error, every instruction set against the scalar one, and that the decoder believes no byte.
 */
#include "codecs_support.h"

#include "codecs/kernels/cpu.h"
#include "codecs/rotate.h"
#include "codecs/rotate_number.h"

#include <math.h>
#include <xxhash.h>

static const uint8_t all_bits[] = {3, 4, 8};
static const uint16_t all_dims[] = {8,  16,  24,  32,  40,  56,  64,  72,  80,  88,
                                    96, 112, 120, 128, 160, 192, 248, 256, 264, 512};
#define PIN_3 UINT64_C(0xc425d6c3e3310792)
#define PIN_4 UINT64_C(0x2d06800538d394c2)
#define PIN_8 UINT64_C(0x8c3401622454d311)

enum { DIMS = sizeof all_dims / sizeof all_dims[0] };

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Values of which kind decides: ordinary, tiny, large, sparse, with holes, any bits. */
enum { KIND_PLAIN, KIND_TINY, KIND_LARGE, KIND_SPARSE, KIND_HOLES, KIND_BITS, KINDS };

static void fill(const rotate_shape *shape, int kind, uint64_t seed, uint8_t *target)
{
    const uint64_t bytes = rotate_source_bytes(shape);
    const uint64_t count = bytes / kvt_dtype_bytes(shape->dtype);
    uint64_t random = seed * 2 + 1;
    for (uint64_t i = 0; i < count; i++) {
        float value = (float)(int64_t)(next_random(&random) % 20001) / 5000.0f - 2.0f;
        if (kind == KIND_TINY) value *= 1e-7f;
        if (kind == KIND_LARGE) value *= shape->dtype == KVT_DTYPE_FP16 ? 3e4f : 1e38f;
        if (kind == KIND_SPARSE && next_random(&random) % 50 != 0) value = 0.0f;
        if (kind == KIND_HOLES && next_random(&random) % 400 == 0) value = NAN;
        if (kind == KIND_HOLES && next_random(&random) % 400 == 0) value = -INFINITY;
        rotate_element_store(target, i, shape->dtype, value);
    }
    for (uint64_t i = 0; kind == KIND_BITS && i < bytes; i++) {
        target[i] = (uint8_t)next_random(&random);
    }
}

typedef struct coded {
    rotate_shape shape;
    rotate_settings settings;
    guarded source;
    guarded stored;
    guarded decoded;
    uint64_t bytes; /* stored; 0 when raw */
} coded;

static coded coded_make(rotate_shape shape, rotate_settings settings, int kind, uint64_t seed)
{
    coded c = {.shape = shape, .settings = settings};
    const uint64_t bytes = rotate_source_bytes(&shape);
    assert_status(rotate_check(&shape, settings), KVT_OK);
    c.source = guarded_make(bytes);
    c.stored = guarded_make(bytes);
    c.decoded = guarded_make(bytes);
    fill(&shape, kind, seed, c.source.data);
    const kvt_status status =
        rotate_encode(&shape, settings, c.source.data, c.stored.data, bytes, &c.bytes);
    assert_true(status == KVT_OK || (status == KVT_RAW && c.bytes == 0));
    guarded_check(&c.stored, bytes);
    return c;
}

static void coded_free(coded *c)
{
    free(c->source.data);
    free(c->stored.data);
    free(c->decoded.data);
}

static void coded_decode(coded *c)
{
    memset(c->decoded.data, 0x11, c->decoded.bytes);
    assert_status(rotate_decode(&c->shape, c->settings, c->stored.data, c->bytes,
                                VIEW_ROWS_PACKED(c->decoded.data, c->decoded.bytes)),
                  KVT_OK);
    guarded_check(&c->decoded, c->decoded.bytes);
}

static uint64_t vector_length(const coded *c)
{
    const uint64_t row = (uint64_t)c->shape.kv_heads * c->shape.head_dim;
    return c->settings.span == ROTATE_SPAN_ROW ? row : c->shape.head_dim;
}

/* The entry of the orthonormal block-diagonal matrix of a group of `length`. */
static double matrix_entry(uint32_t length, uint32_t row, uint32_t column)
{
    uint32_t at = 0;
    for (uint32_t left = length; left > 0;) {
        uint32_t n = 1;
        while (2 * n <= left) {
            n *= 2;
        }
        if (row < at + n || column < at + n) {
            if (row < at || column < at || row >= at + n || column >= at + n) return 0.0;
            const int odd = __builtin_popcount((row - at) & (column - at)) & 1;
            return (odd ? -1.0 : 1.0) / sqrt((double)n);
        }
        at += n;
        left -= n;
    }
    return 0.0;
}

static double fp16_value(const uint8_t *source)
{
    uint16_t half;
    memcpy(&half, source, sizeof half);
    return (double)half_to_float(half);
}

static uint32_t code_at(const uint8_t *codes, uint32_t bits, uint64_t index)
{
    uint32_t code = 0;
    for (uint32_t b = 0; b < bits; b++) {
        const uint64_t at = index * bits + b;
        code |= (uint32_t)(codes[at / 8] >> (at % 8) & 1u) << b;
    }
    return code;
}

/* The group's rotated values in double are within half a step of their codes' values, the scale is
 * the least that reaches, and the decoded elements are the matrix times the codes' values. */
static void check_group(const coded *c, uint64_t first, uint32_t length, uint64_t group,
                        const uint8_t *codes)
{
    const uint8_t dtype = c->shape.dtype;
    const double scale = fp16_value(c->stored.data + 2 * group);
    const double half = (double)(1 << (c->settings.bits - 1));
    double largest = 0.0;
    double levels[ROTATE_GROUP_MAX];
    for (uint32_t i = 0; i < length; i++) {
        double y = 0.0;
        double sum = 0.0;
        for (uint32_t j = 0; j < length; j++) {
            const double x = (double)rotate_element_load(c->source.data, first + j, dtype);
            y += matrix_entry(length, i, j) * x;
            sum += fabs(matrix_entry(length, i, j) * x);
        }
        largest = fabs(y) > largest ? fabs(y) : largest;
        levels[i] = scale * ((double)code_at(codes, c->settings.bits, i) - half + 0.5);
        if (fabs(y - levels[i]) > scale / 2 + 2e-6 * sum) fail_msg("row %u of %u", i, length);
    }
    assert_true(largest <= scale * half * (1 + 1e-5) && (scale <= 0x1p-24 || largest > 0.0));
    assert_true(scale <= 0x1p-24 || largest >= scale * half * (1 - 0x1p-9) ||
                (scale < 0x1p-14 && largest >= (scale - 0x1p-24) * half * (1 - 1e-5)));
    for (uint32_t i = 0; i < length; i++) {
        double x = 0.0;
        for (uint32_t j = 0; j < length; j++) {
            x += matrix_entry(length, j, i) * levels[j];
        }
        const double got = (double)rotate_element_load(c->decoded.data, first + i, dtype);
        const double unit = dtype == KVT_DTYPE_BF16 ? 0x1p-8 : 0x1p-11;
        assert_true(fabs(got - x) <= 1.01 * unit * fabs(x) + scale * half * 1e-6 + 0x1p-25);
    }
}

static void codes_are_the_rotated_values(void **state)
{
    (void)state;
    for (int i = 0; i < 2 * 3 * 3 * DIMS; i++) {
        rotate_settings settings = {all_bits[i % 3], (uint8_t)(i / 3 % 2)};
        rotate_shape shape = {2, 3, all_dims[i / 18], (uint8_t)(1 + i / 6 % 3)};
        coded c = coded_make(shape, settings, i % 5 == 0 ? KIND_SPARSE : KIND_PLAIN, (uint64_t)i);
        const uint64_t vector = vector_length(&c);
        const uint64_t vectors =
            rotate_source_bytes(&shape) / kvt_dtype_bytes(shape.dtype) / vector;
        const uint64_t groups = vectors * ((vector + 255) / 256);
        const uint8_t *codes = c.stored.data + 2 * groups;
        uint64_t group = 0;
        assert_true(c.bytes == rotate_stored_bytes(&shape, settings));
        coded_decode(&c);
        for (uint64_t v = 0; v < vectors; v++) {
            for (uint64_t at = 0; at < vector; at += 256) {
                const uint32_t length = (uint32_t)(vector - at < 256 ? vector - at : 256);
                check_group(&c, v * vector + at, length, group++, codes);
                codes += length * settings.bits / 8;
            }
        }
        coded_free(&c);
    }
}

static void bits_are_as_stated(void **state)
{
    (void)state;
    const rotate_shape shape = {64, 8, 128, KVT_DTYPE_BF16};
    const uint64_t elements = 64 * 8 * 128;
    for (int i = 0; i < 3; i++) {
        const rotate_settings head = {all_bits[i], ROTATE_SPAN_HEAD};
        const rotate_settings row = {all_bits[i], ROTATE_SPAN_ROW};
        assert_true(rotate_stored_bytes(&shape, head) * 8 ==
                    elements * all_bits[i] + elements / 128 * 16);
        assert_true(rotate_stored_bytes(&shape, row) * 8 ==
                    elements * all_bits[i] + elements / 256 * 16);
    }
}

static void every_instruction_set_gives_the_same_bytes(void **state)
{
    (void)state;
    const codecs_cpu before = codecs_cpu_level();
    for (int i = 0; i < 3000; i++) {
        uint64_t random = (uint64_t)i + 77;
        for (int k = 0; k < 5; k++) {
            (void)next_random(&random);
        }
        const rotate_settings settings = {all_bits[i % 3], (uint8_t)(i / 3 % 2)};
        const rotate_shape shape = {(uint32_t)(random % 4), (uint16_t)(1 + random / 8 % 4),
                                    all_dims[random / 64 % DIMS], (uint8_t)(1 + i / 6 % 3)};
        codecs_cpu_force(CODECS_CPU_SCALAR);
        coded want = coded_make(shape, settings, i % KINDS, (uint64_t)i);
        if (want.bytes > 0) coded_decode(&want);
        for (int level = CODECS_CPU_AVX2; level <= (int)codecs_cpu_best(); level++) {
            codecs_cpu_force((codecs_cpu)level);
            coded got = coded_make(shape, settings, i % KINDS, (uint64_t)i);
            assert_true(got.bytes == want.bytes);
            if (got.bytes > 0) {
                assert_memory_equal(got.stored.data, want.stored.data, want.bytes);
                coded_decode(&got);
                assert_memory_equal(got.decoded.data, want.decoded.data, want.decoded.bytes);
            }
            coded_free(&got);
        }
        coded_free(&want);
    }
    codecs_cpu_force(before);
}

/* Groups that cannot be rotated come back bit for bit, and their neighbours are coded. */
static void holes_are_kept_as_they_are(void **state)
{
    (void)state;
    const rotate_shape shape = {6, 2, 128, KVT_DTYPE_BF16};
    const rotate_settings settings = {4, ROTATE_SPAN_HEAD};
    const uint16_t holes[] = {0x7fc1, 0xff80, 0xffff, 0x7f01};
    coded c = coded_make(shape, settings, KIND_PLAIN, 9);
    const uint64_t plain = c.bytes;
    for (unsigned i = 0; i < 4; i++) {
        memcpy(c.source.data + 2 * (128 * (3 * i) + 7 * i), &holes[i], 2);
    }
    assert_status(
        rotate_encode(&shape, settings, c.source.data, c.stored.data, c.stored.bytes, &c.bytes),
        KVT_OK);
    assert_true(c.bytes == plain + 4 * 256);
    coded_decode(&c);
    for (unsigned g = 0; g < 12; g++) {
        const bool raw = g % 3 == 0;
        const int same = memcmp(c.decoded.data + 256 * g, c.source.data + 256 * g, 256) == 0;
        assert_int_equal(same, raw);
    }
    coded_free(&c);
    /* Every element a hole: nothing shrinks. */
    coded raw = coded_make(shape, settings, KIND_PLAIN, 9);
    memset(raw.source.data, 0xff, raw.source.bytes);
    assert_status(rotate_encode(&shape, settings, raw.source.data, raw.stored.data,
                                raw.stored.bytes, &raw.bytes),
                  KVT_RAW);
    coded_free(&raw);
}

static void zeros_stay_zeros(void **state)
{
    (void)state;
    for (int i = 0; i < 18; i++) {
        const rotate_settings settings = {all_bits[i % 3], (uint8_t)(i / 3 % 2)};
        const rotate_shape shape = {3, 2, i % 2 ? 80 : 128, (uint8_t)(1 + i / 6)};
        coded c = coded_make(shape, settings, KIND_PLAIN, 1);
        memset(c.source.data, 0, c.source.bytes);
        assert_status(
            rotate_encode(&shape, settings, c.source.data, c.stored.data, c.stored.bytes, &c.bytes),
            KVT_OK);
        coded_decode(&c);
        assert_memory_equal(c.decoded.data, c.source.data, c.source.bytes);
        coded_free(&c);
    }
}

/* Errors around the largest fp16 value do not make an infinity. */
static void fp16_stays_finite(void **state)
{
    (void)state;
    const rotate_shape shape = {4, 2, 128, KVT_DTYPE_FP16};
    for (int i = 0; i < 3; i++) {
        const rotate_settings settings = {all_bits[i], ROTATE_SPAN_HEAD};
        coded c = coded_make(shape, settings, KIND_PLAIN, 3);
        uint64_t random = 11;
        int clamped = 0;
        for (uint64_t k = 0; k < 1024; k++) {
            const float value = next_random(&random) % 2 ? 65504.0f : -65504.0f;
            rotate_element_store(c.source.data, k, KVT_DTYPE_FP16, value);
        }
        assert_status(
            rotate_encode(&shape, settings, c.source.data, c.stored.data, c.stored.bytes, &c.bytes),
            KVT_OK);
        coded_decode(&c);
        for (uint64_t k = 0; k < 1024; k++) {
            const float value = rotate_element_load(c.decoded.data, k, KVT_DTYPE_FP16);
            assert_true(isfinite(value));
            clamped += fabsf(value) == 65504.0f;
        }
        assert_true(clamped > 100);
        coded_free(&c);
    }
}

static void capacity_is_respected(void **state)
{
    (void)state;
    for (int i = 0; i < 60; i++) {
        const rotate_settings settings = {all_bits[i % 3], (uint8_t)(i / 3 % 2)};
        const rotate_shape shape = {5, 2, all_dims[i % DIMS], (uint8_t)(1 + i % 3)};
        coded c = coded_make(shape, settings, i % 4 == 0 ? KIND_HOLES : KIND_PLAIN, (uint64_t)i);
        uint64_t written;
        if (c.bytes == 0) {
            coded_free(&c);
            continue;
        }
        guarded exact = guarded_make(c.bytes);
        assert_status(rotate_encode(&shape, settings, c.source.data, exact.data, c.bytes, &written),
                      KVT_OK);
        assert_true(written == c.bytes);
        assert_memory_equal(exact.data, c.stored.data, c.bytes);
        guarded_check(&exact, c.bytes);
        for (uint64_t less = 1; less <= c.bytes; less += 1 + c.bytes / 7) {
            guarded small = guarded_make(c.bytes - less);
            assert_status(
                rotate_encode(&shape, settings, c.source.data, small.data, small.bytes, &written),
                KVT_E_SPACE);
            assert_true(written == 0);
            guarded_check(&small, small.bytes);
            free(small.data);
        }
        free(exact.data);
        coded_free(&c);
    }
}

/* A copy of exactly these bytes, so that a sanitizer sees a read past them. */
static kvt_status decode_exact(const coded *c, const uint8_t *bytes, uint64_t count)
{
    uint8_t *copy = malloc(count + (count == 0));
    assert_non_null(copy);
    memcpy(copy, bytes, count);
    kvt_status status = rotate_decode(&c->shape, c->settings, copy, count,
                                      VIEW_ROWS_PACKED(c->decoded.data, c->decoded.bytes));
    assert_true(status == KVT_OK || status == KVT_E_CORRUPT);
    guarded_check(&c->decoded, c->decoded.bytes);
    free(copy);
    return status;
}

static void damaged_bytes_are_harmless(void **state)
{
    (void)state;
    const codecs_cpu before = codecs_cpu_level();
    for (int i = 0; i < 24; i++) {
        const rotate_settings settings = {all_bits[i % 3], (uint8_t)(i / 3 % 2)};
        const rotate_shape shape = {2, 2, i % 2 ? 72 : 64, (uint8_t)(1 + i % 3)};
        codecs_cpu_force((codecs_cpu)(i % 3));
        coded c = coded_make(shape, settings, i % 4 == 0 ? KIND_HOLES : KIND_PLAIN, (uint64_t)i);
        for (uint64_t cut = 0; cut < c.bytes; cut++) {
            assert_status(decode_exact(&c, c.stored.data, cut), KVT_E_CORRUPT);
        }
        for (uint64_t bit = 0; bit < c.bytes * 8; bit++) {
            c.stored.data[bit / 8] ^= (uint8_t)(1u << (bit % 8));
            (void)decode_exact(&c, c.stored.data, c.bytes);
            c.stored.data[bit / 8] ^= (uint8_t)(1u << (bit % 8));
        }
        if (c.bytes > 0 && c.bytes < c.stored.bytes) {
            assert_status(decode_exact(&c, c.stored.data, c.bytes + 1), KVT_E_CORRUPT);
        }
        const uint16_t scales[] = {0x7c01, 0x8000, 0xfc00, 0xffff};
        for (int k = 0; k < 4 && c.bytes > 0; k++) {
            memcpy(c.stored.data, &scales[k], sizeof scales[k]);
            assert_status(decode_exact(&c, c.stored.data, c.bytes), KVT_E_CORRUPT);
        }
        coded_free(&c);
    }
    codecs_cpu_force(before);
}

static void settings_and_shapes_are_checked(void **state)
{
    (void)state;
    const rotate_settings fine = {4, ROTATE_SPAN_HEAD};
    const rotate_settings bits = {5, ROTATE_SPAN_HEAD};
    const rotate_settings span = {4, 2};
    rotate_shape shape = {2, 2, 64, KVT_DTYPE_BF16};
    assert_status(rotate_check(&shape, fine), KVT_OK);
    assert_status(rotate_check(&shape, bits), KVT_E_UNSUPPORTED);
    assert_status(rotate_check(&shape, span), KVT_E_UNSUPPORTED);
    shape.head_dim = 60;
    assert_status(rotate_check(&shape, fine), KVT_E_UNSUPPORTED);
    shape.head_dim = 0;
    assert_status(rotate_check(&shape, fine), KVT_E_UNSUPPORTED);
    shape.head_dim = 65528;
    shape.kv_heads = 65535;
    shape.tokens = UINT32_MAX;
    assert_status(rotate_check(&shape, fine), KVT_E_UNSUPPORTED);
    const rotate_shape other = {2, 2, 64, KVT_DTYPE_FP8};
    assert_status(rotate_check(&other, fine), KVT_E_UNSUPPORTED);
    const rotate_shape empty = {0, 2, 64, KVT_DTYPE_BF16};
    uint64_t written;
    uint8_t byte = 0;
    assert_status(rotate_encode(&empty, fine, &byte, &byte, 0, &written), KVT_OK);
    assert_true(written == 0);
    assert_status(rotate_decode(&empty, fine, &byte, 0, VIEW_ROWS_PACKED(&byte, 0)), KVT_OK);
    assert_status(rotate_decode(&empty, fine, &byte, 1, VIEW_ROWS_PACKED(&byte, 0)), KVT_E_CORRUPT);
}

/* The conversions of rotate_number.h over every 16-bit pattern and many floats. */
static void numbers_convert_exactly(void **state)
{
    (void)state;
    uint64_t random = 5;
    for (uint32_t i = 0; i < 65536; i++) {
        const uint16_t half = (uint16_t)i;
        const bool nan16 = (half & 0x7fffu) > 0x7c00u;
        const bool nanbf = (half & 0x7fffu) > 0x7f80u;
        if (!nan16) assert_int_equal(half_from_float(half_to_float(half)), half);
        if (!nanbf) assert_int_equal(half_bf16_from_float(half_bf16_to_float(half)), half);
        const int exponent = (half >> 10) & 31;
        const double fraction = half & 1023;
        double value = exponent == 0 ? ldexp(fraction, -24) : ldexp(fraction + 1024, exponent - 25);
        if (exponent == 31) continue;
        if (half & 0x8000u) value = -value;
        assert_true((double)half_to_float(half) == value);
    }
    for (int i = 0; i < 300000; i++) {
        const uint32_t bits = (uint32_t)next_random(&random);
        const float value = half_bits_float(bits);
        if (isnan(value)) continue;
        const double near = (double)value;
        const double bf = (double)half_bf16_to_float(half_bf16_from_float(value));
        assert_true(isinf(bf) || fabs(bf - near) <= fabs(near) * 0x1p-8 + 0x1p-134);
        const double fp = (double)half_to_float(half_from_float(value));
        assert_true(isinf(fp) ? fabs(near) >= 65520.0
                              : fabs(fp - near) <= fabs(near) * 0x1p-11 + 0x1p-25);
    }
    assert_int_equal(half_from_float(0x1.002p0f), 0x3c00); /* ties go to even */
    assert_int_equal(half_from_float(0x1.006p0f), 0x3c02);
    assert_int_equal(half_bf16_from_float(0x1.01p0f), 0x3f80);
    assert_int_equal(half_bf16_from_float(0x1.03p0f), 0x3f82);
    assert_int_equal(half_from_float(0x1p-25f), 0);
    assert_int_equal(half_from_float(0x1.8p-24f), 2);
    assert_int_equal(half_from_float(NAN) & 0x7fffu, 0x7e00);
}

/* What was once written must stay readable: the bytes of a sample are pinned. */
static void stored_bytes_are_pinned(void **state)
{
    (void)state;
    static const uint64_t pins[3] = {PIN_3, PIN_4, PIN_8};
    for (int i = 0; i < 3; i++) {
        const rotate_shape shape = {7, 3, 80, KVT_DTYPE_BF16};
        const rotate_settings settings = {all_bits[i], (uint8_t)(i % 2)};
        coded c = coded_make(shape, settings, KIND_HOLES, 21);
        const uint64_t hash = XXH3_64bits(c.stored.data, c.bytes);
        if (hash != pins[i]) {
            fail_msg("%u bits: 0x%016llx", settings.bits, (unsigned long long)hash);
        }
        coded_free(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_convert_exactly),
        cmocka_unit_test(codes_are_the_rotated_values),
        cmocka_unit_test(bits_are_as_stated),
        cmocka_unit_test(every_instruction_set_gives_the_same_bytes),
        cmocka_unit_test(holes_are_kept_as_they_are),
        cmocka_unit_test(zeros_stay_zeros),
        cmocka_unit_test(fp16_stays_finite),
        cmocka_unit_test(capacity_is_respected),
        cmocka_unit_test(damaged_bytes_are_harmless),
        cmocka_unit_test(settings_and_shapes_are_checked),
        cmocka_unit_test(stored_bytes_are_pinned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
