/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_codecs_entropy.c - codec 5 on one matrix: error bounds, sizes beside the order-0 entropy,
 * nesting of steps, odd shapes and values, room, damage, and equality of the instruction sets.
 */
#include "codecs_support.h"

#include "codecs/entropy.h"
#include "codecs/kernels/cpu.h"

#include <xxhash.h>

/* Encoding of a 300 x 64 fp16 sample and what it decodes to: stored bytes outlive the program. */
#define PIN_ENCODED UINT64_C(0xe322f4e3062fa64a)
#define PIN_DECODED UINT64_C(0xeda9d9a573e97323)

/* The last one has two spans; it is large, so few cases take it. */
enum { SHAPES = 11, SMALL_SHAPES = SHAPES - 1 };

static const entropy_shape shapes[SHAPES] = {
    {1, 1, KVT_DTYPE_FP16},     {1, 700, KVT_DTYPE_BF16},     {255, 1, KVT_DTYPE_FP32},
    {257, 13, KVT_DTYPE_BF16},  {300, 64, KVT_DTYPE_FP16},    {511, 33, KVT_DTYPE_FP32},
    {768, 128, KVT_DTYPE_BF16}, {3, 1072, KVT_DTYPE_FP16},    {513, 520, KVT_DTYPE_BF16},
    {40, 8, KVT_DTYPE_BF16},    {1100, 1024, KVT_DTYPE_FP16},
};

typedef struct matrix {
    entropy_shape shape;
    uint64_t bytes;
    guarded source;
    guarded target;
    guarded scratch;
    guarded decoded;
} matrix;

static double value_at(const entropy_shape *shape, const uint8_t *data, uint64_t index)
{
    if (shape->dtype == KVT_DTYPE_FP32) {
        float value;
        memcpy(&value, data + 4 * index, sizeof value);
        return (double)value;
    }
    uint16_t half;
    memcpy(&half, data + 2 * index, sizeof half);
    if (shape->dtype == KVT_DTYPE_BF16) {
        uint32_t bits = (uint32_t)half << 16;
        float value;
        memcpy(&value, &bits, sizeof value);
        return (double)value;
    }
    int exponent = half >> 10 & 0x1f;
    double size =
        exponent == 0 ? ldexp(half & 0x3ff, -24) : ldexp((half & 0x3ff) + 1024, exponent - 25);
    return half & 0x8000 ? -size : size;
}

static void value_put(const entropy_shape *shape, uint8_t *data, uint64_t index, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (shape->dtype == KVT_DTYPE_FP32) {
        memcpy(data + 4 * index, &bits, sizeof bits);
    } else if (shape->dtype == KVT_DTYPE_BF16) {
        uint16_t half = (uint16_t)(bits >> 16);
        memcpy(data + 2 * index, &half, sizeof half);
    } else {
        /* Small integers and simple fractions only. */
        uint32_t size = bits & 0x7fffffff;
        uint16_t half = (uint16_t)(size == 0 ? 0 : (size >> 13) - (112u << 10));
        half = (uint16_t)(half | (bits >> 16 & 0x8000));
        memcpy(data + 2 * index, &half, sizeof half);
    }
}

static matrix matrix_make(entropy_shape shape)
{
    matrix made = {.shape = shape};
    kvt_layout layout = {.layers = 1,
                         .kv_heads = 1,
                         .head_dim = (uint16_t)shape.row,
                         .dtype = shape.dtype,
                         .tokens = shape.tokens};
    uint64_t entry;
    assert_status(kvt_layout_bytes(&layout, &entry), KVT_OK);
    made.bytes = entry / 2;
    assert_int_equal(entropy_bound(&shape), made.bytes);
    guarded whole = guarded_make(entry);
    codecs_kv_sample_fill(&layout, 11, whole.data);
    made.source = guarded_make(made.bytes);
    memcpy(made.source.data, whole.data, made.bytes);
    made.target = guarded_make(made.bytes);
    made.scratch = guarded_make(entropy_scratch_bytes(&shape));
    made.decoded = guarded_make(made.bytes);
    return made;
}

static entropy_settings settings_of(uint32_t step, entropy_axis axis, bool centroids)
{
    entropy_settings settings = {(uint16_t)step, (uint8_t)axis, centroids, NULL};
    return settings;
}

static kvt_status matrix_encode(matrix *m, const entropy_settings *settings, uint64_t *written)
{
    kvt_status status = entropy_encode(settings, &m->shape, m->source.data, m->target.data,
                                       m->target.bytes, m->scratch.data, written);
    guarded_check(&m->target, m->bytes);
    guarded_check(&m->scratch, m->scratch.bytes);
    return status;
}

/* Decodes a copy of exactly these bytes. */
static kvt_status matrix_decode(matrix *m, const uint8_t *stored, uint64_t bytes)
{
    uint8_t *exact = test_alloc(bytes + (bytes == 0));
    memcpy(exact, stored, bytes);
    kvt_status status = entropy_decode(
        &m->shape, exact, bytes, VIEW_ROWS_PACKED(m->decoded.data, m->bytes), m->scratch.data);
    guarded_check(&m->decoded, m->bytes);
    guarded_check(&m->scratch, m->scratch.bytes);
    return status;
}

/* The deviation that the codec may use at most: that about zero or about the mean of its 256 tokens
 * or its row, half a number (6 %) above, whichever is larger. */
static double deviation_at(const matrix *m, entropy_axis axis, uint64_t token, uint64_t channel)
{
    uint64_t first = token / 256 * 256;
    uint64_t last = first + 256 < m->shape.tokens ? first + 256 : m->shape.tokens;
    double sum = 0;
    uint64_t count = 0;
    if (axis == ENTROPY_AXIS_CHANNEL) {
        for (uint64_t t = first; t < last; t++, count++) {
            double x = value_at(&m->shape, m->source.data, t * m->shape.row + channel);
            sum += x * x;
        }
    } else {
        for (uint64_t c = 0; c < m->shape.row; c++, count++) {
            double x = value_at(&m->shape, m->source.data, token * m->shape.row + c);
            sum += x * x;
        }
    }
    return sqrt(sum / (double)count) * 1.07;
}

static double rounding_of(uint8_t dtype, double size)
{
    switch (dtype) {
    case KVT_DTYPE_BF16: return size / 256 + 1e-38;
    case KVT_DTYPE_FP16: return size / 2048 + 6e-8;
    default: return size / 1e6 + 1e-38;
    }
}

/* Every element within half a step of its deviation, or what a shifted centre adds to it. */
static void check_errors(const matrix *m, const entropy_settings *settings)
{
    const double reach = settings->centroids ? 0.8 : 0.501;
    for (uint64_t token = 0; token < m->shape.tokens; token += 7) {
        for (uint64_t channel = 0; channel < m->shape.row; channel += 11) {
            uint64_t at = token * m->shape.row + channel;
            double x = value_at(&m->shape, m->source.data, at);
            double y = value_at(&m->shape, m->decoded.data, at);
            double deviation = deviation_at(m, (entropy_axis)settings->axis, token, channel);
            double limit = reach * settings->step / 64.0 * deviation;
            limit += rounding_of(m->shape.dtype, fabs(x) + limit);
            if (!(fabs(x - y) <= limit)) {
                fail_msg("token %llu channel %llu: %g became %g, limit %g",
                         (unsigned long long)token, (unsigned long long)channel, x, y, limit);
            }
        }
    }
}

TEST(round_trips_within_half_a_step)
{
    static const uint32_t steps[] = {4, 9, 16, 33, 64, 162, 256};
    for (size_t i = 0; i < SHAPES; i++) {
        matrix m = matrix_make(shapes[i]);
        for (size_t s = 0; s < sizeof steps / sizeof steps[0]; s++) {
            for (unsigned way = 0; way < 4; way++) {
                if (i == SMALL_SHAPES && way != s % 4) continue;
                uint64_t written;
                entropy_settings settings = settings_of(
                    steps[s], way & 1 ? ENTROPY_AXIS_TOKEN : ENTROPY_AXIS_CHANNEL, way >= 2);
                kvt_status status = matrix_encode(&m, &settings, &written);
                bool tiny = m.bytes < 3000;
                if (tiny && status == KVT_RAW) continue;
                assert_status(status, KVT_OK);
                assert_true(written < m.bytes);
                assert_status(matrix_decode(&m, m.target.data, written), KVT_OK);
                check_errors(&m, &settings);
            }
        }
    }
}

TEST(every_instruction_set_gives_the_same)
{
    const codecs_cpu level = codecs_cpu_level();
    static const uint32_t steps[] = {4, 27, 50, 256};
    for (size_t i = 0; i < SMALL_SHAPES; i++) {
        matrix m = matrix_make(shapes[i]);
        guarded first = guarded_make(m.bytes);
        guarded first_decoded = guarded_make(m.bytes);
        for (unsigned way = 0; way < 16; way++) {
            uint64_t first_written = 0;
            kvt_status first_status = KVT_OK;
            entropy_settings settings = settings_of(steps[way / 4], way & 1, (way & 2) != 0);
            for (int l = CODECS_CPU_SCALAR; l <= (int)codecs_cpu_best(); l++) {
                uint64_t written;
                codecs_cpu_force((codecs_cpu)l);
                kvt_status status = matrix_encode(&m, &settings, &written);
                if (l == CODECS_CPU_SCALAR) {
                    first_written = written;
                    first_status = status;
                    memcpy(first.data, m.target.data, written);
                }
                assert_int_equal(status, first_status);
                assert_int_equal(written, first_written);
                assert_memory_equal(m.target.data, first.data, written);
                if (status != KVT_OK) continue;
                assert_status(matrix_decode(&m, m.target.data, written), KVT_OK);
                if (l == CODECS_CPU_SCALAR) {
                    memcpy(first_decoded.data, m.decoded.data, m.bytes);
                }
                assert_memory_equal(m.decoded.data, first_decoded.data, m.bytes);
            }
        }
    }
    codecs_cpu_force(level);
}

/* Coded bits beside the order-0 entropy of the codes, tables and metadata apart. */
static void check_size(matrix *m, const entropy_settings *settings)
{
    uint32_t counts[256] = {0};
    uint64_t written;
    double bits = 0;
    const double elements = (double)m->shape.tokens * m->shape.row;
    assert_status(matrix_encode(m, settings, &written), KVT_OK);
    assert_status(entropy_count(settings, &m->shape, m->source.data, m->scratch.data, counts),
                  KVT_OK);
    for (unsigned s = 0; s < 256; s++) {
        if (counts[s] > 0) bits -= counts[s] * log2(counts[s] / elements);
    }
    uint64_t groups = (m->shape.tokens + 255) / 256;
    uint64_t entries =
        settings->axis == ENTROPY_AXIS_CHANNEL ? m->shape.row * groups : (uint64_t)m->shape.tokens;
    double metadata = (double)entries * 2 * 8 + (double)groups * 32 + 16 * 8;
    if ((double)written * 8 > bits * 1.03 + metadata) {
        fail_msg("step %u: %.4f bits, entropy %.4f, metadata %.4f", settings->step,
                 (double)written * 8 / elements, bits / elements, metadata / elements);
    }
    assert_true((double)written * 8 > bits);
}

TEST(size_is_within_three_percent)
{
    static const entropy_shape sizes[] = {{768, 32, KVT_DTYPE_FP16},
                                          {768, 128, KVT_DTYPE_BF16},
                                          {1024, 1024, KVT_DTYPE_BF16},
                                          {2048, 768, KVT_DTYPE_FP16}};
    static const uint32_t steps[] = {4, 16, 32, 64, 96};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        matrix m = matrix_make(sizes[i]);
        for (size_t s = 0; s < sizeof steps / sizeof steps[0]; s++) {
            entropy_settings settings = settings_of(steps[s], ENTROPY_AXIS_CHANNEL, false);
            check_size(&m, &settings);
            settings.axis = ENTROPY_AXIS_TOKEN;
            check_size(&m, &settings);
        }
    }
}

TEST(gaussian_rates)
{
    /* Entropy of a gaussian quantised at .25, .5 and 1 deviations. */
    static const struct {
        uint32_t step;
        double bits;
    } known[] = {{16, 4.0471}, {32, 3.0471}, {64, 2.1048}};
    matrix m = matrix_make((entropy_shape){2048, 256, KVT_DTYPE_FP32});
    uint64_t dice = 88172645463325252;
    for (uint64_t i = 0; i < (uint64_t)2048 * 256; i++) {
        double sum = 0;
        for (unsigned k = 0; k < 12; k++) {
            dice ^= dice << 13;
            dice ^= dice >> 7;
            dice ^= dice << 17;
            sum += (double)(dice >> 40) / 16777216.0 - 0.5;
        }
        value_put(&m.shape, m.source.data, i, (float)sum);
    }
    for (size_t i = 0; i < 3; i++) {
        uint64_t written;
        entropy_settings settings = settings_of(known[i].step, ENTROPY_AXIS_CHANNEL, false);
        assert_status(matrix_encode(&m, &settings, &written), KVT_OK);
        double bits = (double)written * 8 / (2048.0 * 256);
        /* A deviation per channel and 256 tokens is 1/32 of a bit; its rounding moves the step. */
        assert_true(bits > known[i].bits - 0.06 && bits < known[i].bits * 1.03 + 1.0 / 32);
    }
}

static double squared_error(const matrix *m)
{
    double sum = 0;
    for (uint64_t i = 0; i < (uint64_t)m->shape.tokens * m->shape.row; i++) {
        double error =
            value_at(&m->shape, m->source.data, i) - value_at(&m->shape, m->decoded.data, i);
        sum += error * error;
    }
    return sum;
}

TEST(centroids_lower_the_error)
{
    static const uint32_t steps[] = {32, 64, 128, 192};
    static const double share[] = {0.99, 0.95, 0.85, 0.95};
    matrix m = matrix_make((entropy_shape){768, 128, KVT_DTYPE_BF16});
    for (size_t s = 0; s < sizeof steps / sizeof steps[0]; s++) {
        double errors[2];
        for (unsigned centroids = 0; centroids < 2; centroids++) {
            uint64_t written;
            entropy_settings settings = settings_of(steps[s], ENTROPY_AXIS_CHANNEL, centroids != 0);
            assert_status(matrix_encode(&m, &settings, &written), KVT_OK);
            assert_status(matrix_decode(&m, m.target.data, written), KVT_OK);
            errors[centroids] = squared_error(&m);
        }
        if (!(errors[1] < share[s] * errors[0])) {
            fail_msg("step %u: %g with centroids, %g without", steps[s], errors[1], errors[0]);
        }
    }
}

TEST(3x_the_step_is_derived_exactly)
{
    static const uint32_t steps[] = {4, 7, 16, 27, 81, 85, 243, 256};
    for (size_t i = 0; i < SHAPES; i++) {
        matrix m = matrix_make(shapes[i]);
        guarded derived = guarded_make(m.bytes);
        for (size_t s = 0; s < (i < SMALL_SHAPES ? sizeof steps / sizeof steps[0] : 1); s++) {
            for (unsigned axis = 0; axis < 2; axis++) {
                uint64_t fine;
                uint64_t coarse;
                uint64_t written;
                entropy_settings settings = settings_of(steps[s], (entropy_axis)axis, axis == 0);
                if (matrix_encode(&m, &settings, &fine) != KVT_OK) continue;
                kvt_status status =
                    entropy_derive_step3(&m.shape, m.target.data, fine, derived.data, derived.bytes,
                                         m.scratch.data, &written);
                guarded_check(&derived, m.bytes);
                settings.step = (uint16_t)(3 * steps[s]);
                assert_status(matrix_encode(&m, &settings, &coarse), status);
                if (status != KVT_OK) continue;
                assert_int_equal(written, coarse);
                assert_memory_equal(derived.data, m.target.data, coarse);
            }
        }
    }
}

TEST(derive_refuses_too_large_a_step)
{
    matrix m = matrix_make(shapes[4]);
    guarded derived = guarded_make(m.bytes);
    uint64_t fine;
    uint64_t written;
    entropy_settings settings = settings_of(257, ENTROPY_AXIS_CHANNEL, false);
    assert_status(matrix_encode(&m, &settings, &fine), KVT_OK);
    assert_status(entropy_derive_step3(&m.shape, m.target.data, fine, derived.data, derived.bytes,
                                       m.scratch.data, &written),
                  KVT_E_CORRUPT);
}

TEST(given_tables)
{
    matrix m = matrix_make(shapes[6]);
    uint32_t counts[256] = {0};
    rans_table table;
    uint64_t own;
    uint64_t written;
    uint64_t direct;
    uint64_t derived_bytes;
    entropy_settings settings = settings_of(16, ENTROPY_AXIS_CHANNEL, true);
    assert_status(entropy_count(&settings, &m.shape, m.source.data, m.scratch.data, counts),
                  KVT_OK);
    entropy_make_table(counts, &table);
    assert_true(rans_table_sound(&table));
    settings.step = 48;
    assert_status(matrix_encode(&m, &settings, &direct), KVT_OK);
    guarded coarse = guarded_make(direct);
    memcpy(coarse.data, m.target.data, direct);
    settings.step = 16;
    assert_status(matrix_encode(&m, &settings, &own), KVT_OK);
    settings.table = &table;
    assert_status(matrix_encode(&m, &settings, &written), KVT_OK);
    assert_true(written <= own + own / 100);
    assert_status(matrix_decode(&m, m.target.data, written), KVT_OK);
    check_errors(&m, &settings);
    /* The table is not handed down. */
    guarded derived = guarded_make(m.bytes);
    assert_status(entropy_derive_step3(&m.shape, m.target.data, written, derived.data,
                                       derived.bytes, m.scratch.data, &derived_bytes),
                  KVT_OK);
    assert_int_equal(direct, derived_bytes);
    assert_memory_equal(derived.data, coarse.data, direct);
}

/* Shares make a table, not sizes: counts of a large sample are not cut off at the top. */
TEST(counts_of_large_samples)
{
    uint32_t few[256] = {0};
    uint32_t many[256] = {0};
    rans_table small;
    rans_table large;
    for (uint32_t i = 0; i < 10; i++) {
        few[118 + i] = 1000u << i;
        few[138 - i] = 1000u << i;
    }
    for (unsigned s = 0; s < 256; s++) {
        many[s] = few[s] * 2000u;
    }
    entropy_make_table(few, &small);
    entropy_make_table(many, &large);
    assert_memory_equal(&small, &large, sizeof small);
    memset(many, 0xff, sizeof many);
    entropy_make_table(many, &large);
    assert_true(rans_table_sound(&large));
}

/* A table made for coarse codes sends most fine ones through escapes; they come back too. */
TEST(foreign_tables_lose_only_bytes)
{
    matrix m = matrix_make((entropy_shape){300, 64, KVT_DTYPE_FP32});
    uint32_t counts[256] = {0};
    rans_table table;
    uint64_t written;
    entropy_settings settings = settings_of(200, ENTROPY_AXIS_CHANNEL, false);
    assert_status(entropy_count(&settings, &m.shape, m.source.data, m.scratch.data, counts),
                  KVT_OK);
    entropy_make_table(counts, &table);
    settings.step = 4;
    settings.table = &table;
    assert_status(matrix_encode(&m, &settings, &written), KVT_OK);
    assert_status(matrix_decode(&m, m.target.data, written), KVT_OK);
    check_errors(&m, &settings);
}

/* All equal, zero, far outliers, large and small scales. */
TEST(odd_values)
{
    static const float scales[] = {0.0f, 1.0f, 30000.0f, 0x1p-14f};
    for (size_t i = 0; i < SMALL_SHAPES; i++) {
        for (unsigned kind = 0; kind < 16; kind++) {
            matrix m = matrix_make(shapes[i]);
            const float scale = scales[kind % 4];
            const uint64_t elements = m.bytes / kvt_dtype_bytes(m.shape.dtype);
            for (uint64_t at = 0; at < elements; at++) {
                float value = scale;
                if (kind / 4 == 1) value = at % 3 == 0 ? -scale : scale;
                if (kind / 4 == 2) value = at % 97 == 0 ? 2 * scale : 0.0f;
                if (kind / 4 == 3) value = at == elements / 2 ? scale : scale / 1024;
                value_put(&m.shape, m.source.data, at, value);
            }
            for (unsigned axis = 0; axis < 2; axis++) {
                uint64_t written;
                entropy_settings settings = settings_of(21, (entropy_axis)axis, false);
                kvt_status status = matrix_encode(&m, &settings, &written);
                if (status == KVT_RAW && m.bytes < 3000) continue;
                assert_status(status, KVT_OK);
                assert_status(matrix_decode(&m, m.target.data, written), KVT_OK);
                check_errors(&m, &settings);
            }
        }
    }
}

TEST(what_is_not_finite_is_not_taken)
{
    static const uint32_t odd[] = {0x7f800000, 0xff800000, 0x7fc00000, 0xffffffff, 0x7f810000};
    for (size_t i = 0; i < SMALL_SHAPES; i++) {
        matrix m = matrix_make(shapes[i]);
        const uint64_t elements = m.bytes / kvt_dtype_bytes(m.shape.dtype);
        const uint64_t places[] = {0, elements / 2, elements - 1};
        for (size_t p = 0; p < 3; p++) {
            for (size_t o = 0; o < sizeof odd / sizeof odd[0]; o++) {
                uint8_t kept[4];
                uint64_t written;
                uint32_t element = kvt_dtype_bytes(m.shape.dtype);
                uint8_t *place = m.source.data + places[p] * element;
                uint16_t half = (uint16_t)(odd[o] >> 16);
                if (m.shape.dtype == KVT_DTYPE_FP16) half |= 0x7c00;
                memcpy(kept, place, element);
                memcpy(place, element == 4 ? (const void *)&odd[o] : (const void *)&half, element);
                for (unsigned axis = 0; axis < 2; axis++) {
                    entropy_settings settings = settings_of(16, (entropy_axis)axis, false);
                    assert_status(matrix_encode(&m, &settings, &written), KVT_RAW);
                    assert_int_equal(written, 0);
                }
                memcpy(place, kept, element);
            }
        }
    }
}

TEST(fp32_extremes)
{
    matrix m = matrix_make((entropy_shape){256, 16, KVT_DTYPE_FP32});
    static const float sizes[] = {3.0e38f, 1.0e17f, 1.0e-18f, 1.0e-30f, 1.0e-45f};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        uint64_t written;
        for (uint64_t at = 0; at < 256 * 16; at++) {
            value_put(&m.shape, m.source.data, at, (at * 7 / 5) % 2 ? sizes[i] : -sizes[i]);
        }
        for (unsigned axis = 0; axis < 2; axis++) {
            entropy_settings settings = settings_of(64, (entropy_axis)axis, false);
            kvt_status status = matrix_encode(&m, &settings, &written);
            if (sizes[i] > 1e20f) {
                assert_status(status, KVT_RAW); /* squares pass fp32 */
                continue;
            }
            assert_status(status, KVT_OK);
            assert_status(matrix_decode(&m, m.target.data, written), KVT_OK);
            if (sizes[i] > 1e-17f) check_errors(&m, &settings);
            for (uint64_t at = 0; at < 256 * 16; at++) {
                double error =
                    value_at(&m.shape, m.source.data, at) - value_at(&m.shape, m.decoded.data, at);
                assert_true(fabs(error) <= 0.55 * (double)sizes[i] + 0x1p-62);
            }
        }
    }
}

TEST(capacity_is_exact)
{
    for (size_t i = 0; i < 8; i++) {
        matrix m = matrix_make(shapes[i]);
        uint64_t need;
        uint64_t written;
        entropy_settings settings = settings_of(64, ENTROPY_AXIS_TOKEN, false);
        if (matrix_encode(&m, &settings, &need) == KVT_OK) {
            guarded exact = guarded_make(need);
            assert_status(entropy_encode(&settings, &m.shape, m.source.data, exact.data, need,
                                         m.scratch.data, &written),
                          KVT_OK);
            assert_int_equal(written, need);
            assert_memory_equal(exact.data, m.target.data, need);
            guarded_check(&exact, need);
            for (uint64_t less = 1; less <= need; less += less < 40 ? 1 : need / 7) {
                memset(exact.data, GUARD_VALUE, need);
                assert_status(entropy_encode(&settings, &m.shape, m.source.data, exact.data,
                                             need - less, m.scratch.data, &written),
                              KVT_E_SPACE);
                assert_int_equal(written, 0);
                guarded_check(&exact, need - less);
            }
        }
    }
}

TEST(same_input_gives_same_bytes)
{
    matrix m = matrix_make(shapes[8]);
    uint64_t first;
    uint64_t second;
    entropy_settings settings = settings_of(20, ENTROPY_AXIS_CHANNEL, true);
    assert_status(matrix_encode(&m, &settings, &first), KVT_OK);
    guarded kept = guarded_make(first);
    memcpy(kept.data, m.target.data, first);
    memset(m.scratch.data, 0x3c, m.scratch.bytes);
    memset(m.target.data, 0x77, m.target.bytes);
    assert_status(matrix_encode(&m, &settings, &second), KVT_OK);
    assert_int_equal(first, second);
    assert_memory_equal(kept.data, m.target.data, first);
}

TEST(bytes_are_pinned)
{
    matrix m = matrix_make(shapes[4]);
    uint64_t written;
    entropy_settings settings = settings_of(24, ENTROPY_AXIS_CHANNEL, true);
    assert_status(matrix_encode(&m, &settings, &written), KVT_OK);
    assert_status(matrix_decode(&m, m.target.data, written), KVT_OK);
    uint64_t stored_hash = XXH3_64bits(m.target.data, written);
    uint64_t decoded_hash = XXH3_64bits(m.decoded.data, m.bytes);
    if (stored_hash != PIN_ENCODED || decoded_hash != PIN_DECODED) {
        fail_msg("encoded 0x%016llx, decoded 0x%016llx", (unsigned long long)stored_hash,
                 (unsigned long long)decoded_hash);
    }
}

TEST(cut_encodings_are_refused)
{
    static const size_t chosen[] = {3, 4, 5, 7, 9};
    for (size_t i = 0; i < sizeof chosen / sizeof chosen[0]; i++) {
        matrix m = matrix_make(shapes[chosen[i]]);
        uint64_t written;
        entropy_settings settings = settings_of(4, ENTROPY_AXIS_CHANNEL, true);
        assert_status(matrix_encode(&m, &settings, &written), KVT_OK);
        const uint64_t step = written / 700 + 1;
        for (uint64_t cut = 0; cut < written; cut += cut < 64 || written - cut < 64 ? 1 : step) {
            assert_status(matrix_decode(&m, m.target.data, cut), KVT_E_CORRUPT);
        }
        m.target.data[written] = 0;
        assert_status(matrix_decode(&m, m.target.data, written + 1), KVT_E_CORRUPT);
    }
}

/* A checksum outside notices damage; here it must only be harmless, the same on every machine, and
 * a derived encoding of it too. */
TEST(flipped_bytes_are_harmless)
{
    const codecs_cpu level = codecs_cpu_level();
    static const size_t chosen[] = {3, 9};
    for (size_t i = 0; i < sizeof chosen / sizeof chosen[0]; i++) {
        matrix m = matrix_make(shapes[chosen[i]]);
        guarded derived = guarded_make(m.bytes);
        guarded first = guarded_make(m.bytes);
        uint64_t written;
        uint64_t unused_bytes;
        entropy_settings settings = settings_of(4, ENTROPY_AXIS_CHANNEL, true);
        assert_status(matrix_encode(&m, &settings, &written), KVT_OK);
        for (uint64_t at = 0; at < written; at++) {
            kvt_status first_status = KVT_OK;
            m.target.data[at] ^= (uint8_t)(1u << at % 8);
            for (int l = CODECS_CPU_SCALAR; l <= (int)codecs_cpu_best(); l++) {
                codecs_cpu_force((codecs_cpu)l);
                kvt_status status = matrix_decode(&m, m.target.data, written);
                assert_true(status == KVT_OK || status == KVT_E_CORRUPT);
                if (l == CODECS_CPU_SCALAR) {
                    first_status = status;
                    memcpy(first.data, m.decoded.data, m.bytes);
                }
                assert_int_equal(status, first_status);
                if (status == KVT_OK) assert_memory_equal(m.decoded.data, first.data, m.bytes);
            }
            kvt_status status = entropy_derive_step3(&m.shape, m.target.data, written, derived.data,
                                                     derived.bytes, m.scratch.data, &unused_bytes);
            assert_true(status == KVT_OK || status == KVT_E_CORRUPT || status == KVT_RAW);
            guarded_check(&derived, m.bytes);
            m.target.data[at] ^= (uint8_t)(1u << at % 8);
        }
    }
    codecs_cpu_force(level);
}
