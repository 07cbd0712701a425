/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_codecs_fp8.c - entries of fp8: E4M3 to float and back, and that every codec with parts codes
 * them as the bf16 of the same values and gives these back rounded. conform_codecs_all tries every
 * codec on them.
 */
#include "basis_support.h"
#include "codecs_support.h"

#include "codecs/kernels/cpu.h"
#include "codecs/kernels/fp8_kernels.h"
#include "codecs/record_format.h"

static const char *const variants[] = {
    "kivi:k4v4,g64",         "kivi:k2v4,g32,r64",
    "kivi:k4v2,g128,half",   "planes:k4v4,g64",
    "planes:k6v2,g32,vhead", "planes:k3v6,g64,vchan,vfirst",
    "entropy:k0.25v0.5",     "entropy:k0.5v0.25,vchan,middle",
    "transform:00000,s6",
};

enum { VARIANTS = sizeof variants / sizeof variants[0] };

static const kvt_layout entry = {
    .layers = 3, .kv_heads = 2, .head_dim = 64, .dtype = KVT_DTYPE_FP8, .tokens = 515};

/* The value by its definition. */
static float value_of(uint8_t fp8)
{
    const int exponent = fp8 >> 3 & 15, mantissa = fp8 & 7;
    const float size =
        exponent == 0 ? ldexpf((float)mantissa, -9) : ldexpf((float)(8 + mantissa), exponent - 10);
    return fp8 & 0x80 ? -size : size;
}

TEST(values_are_those_of_e4m3)
{
    for (unsigned x = 0; x < 256; x++) {
        const float value = half_fp8_to_float((uint8_t)x);
        if ((x & 0x7f) == 0x7f) {
            assert_true(isnan(value));
            assert_int_equal(half_fp8_from_float(value) & 0x7f, 0x7f);
            continue;
        }
        assert_true(value == value_of((uint8_t)x));
        assert_int_equal(half_fp8_from_float(value), x); /* -0 stays -0 */
    }
    assert_true(half_fp8_to_float(0x7e) == 448.0f);
}

/* Between two neighbours the nearer one, in the middle the even one; beyond 448 it is 448. */
TEST(floats_are_rounded_to_the_nearest)
{
    for (unsigned x = 0; x < 0x7e; x++) {
        const float low = value_of((uint8_t)x), high = value_of((uint8_t)(x + 1));
        const float middle = low + (high - low) / 2;
        assert_int_equal(half_fp8_from_float(middle), x % 2 == 0 ? x : x + 1);
        assert_int_equal(half_fp8_from_float(nextafterf(middle, 0.0f)), x);
        assert_int_equal(half_fp8_from_float(-nextafterf(middle, 500.0f)), 0x80 | (x + 1));
    }
    assert_int_equal(half_fp8_from_float(449.0f), 0x7e);
    assert_int_equal(half_fp8_from_float(INFINITY), 0x7e);
    assert_int_equal(half_fp8_from_float(-3e38f), 0xfe);
    assert_int_equal(half_fp8_from_float(1e-40f), 0);
}

/* Every instruction set, every bf16, and counts that fill no register. */
TEST(kernels_agree)
{
    static const uint64_t counts[] = {1, 7, 33, 65536};
    uint8_t *bytes = test_alloc(65536);
    uint16_t *all = test_alloc(65536 * sizeof *all), *wide = test_alloc(65536 * sizeof *wide);
    for (unsigned i = 0; i < 65536; i++)
        all[i] = (uint16_t)i;
    for (int level = CODECS_CPU_SCALAR; level <= (int)codecs_cpu_best(); level++) {
        codecs_cpu_force((codecs_cpu)level);
        for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
            memset(bytes, 0x55, 65536);
            fp8_narrow(all, counts[c], bytes);
            for (unsigned i = 0; i < 65536; i++)
                assert_int_equal(bytes[i], i < counts[c]
                                               ? half_fp8_from_float(half_bf16_to_float(all[i]))
                                               : 0x55);
        }
        for (unsigned i = 0; i < 256; i++)
            bytes[i] = (uint8_t)i;
        fp8_widen(bytes, 256, wide);
        for (unsigned i = 0; i < 256; i++) {
            const float value = half_bf16_to_float(wide[i]);
            if ((i & 0x7f) == 0x7f)
                assert_true(isnan(value));
            else
                assert_true(value == value_of((uint8_t)i) && (signbit(value) != 0) == (i >= 0x80));
        }
    }
    codecs_cpu_force(codecs_cpu_best());
}

/* Bytes of the codec's own parts. */
static uint64_t coded_bytes(const encoded *e)
{
    kvt_record_info info;
    uint64_t bytes = 0;
    assert_status(kvt_record_verify(e->record.data, e->record.bytes, &info), KVT_OK);
    for (uint32_t i = 0; i < info.segment_count; i++) {
        const record_segment segment = record_segment_at(e->record.data, i);
        if (segment.kind == KVT_PART_METADATA || segment.kind == KVT_PART_DATA)
            bytes += segment.stored_bytes;
    }
    return bytes;
}

static encoded encode_at(kvt_layout layout, const char *variant, const void *source,
                         const transform_basis *basis, uint32_t first_position)
{
    encoded e =
        encoded_make(layout, strncmp(variant, "transform", 9) == 0 ? "raw" : variant, source);
    uint64_t bound, scratch, written;
    const transform_basis *list[] = {basis};
    assert_status(kvt_variant_parse(variant, &e.spec.variant), KVT_OK);
    e.spec.first_position = first_position;
    e.spec.bases = (kvt_record_bases){list, 1};
    assert_status(kvt_record_bound(&e.spec, &bound, &scratch), KVT_OK);
    e.record = guarded_make(bound);
    e.scratch = guarded_make(scratch);
    assert_status(kvt_record_encode(&e.spec, e.source.data, e.source.bytes, e.record.data, bound,
                                    e.scratch.data, scratch, &written),
                  KVT_OK);
    assert_status(kvt_record_decode(e.record.data, written, &e.spec, e.decoded.data,
                                    e.decoded.bytes, e.scratch.data, scratch),
                  KVT_OK);
    guarded_check(&e.scratch, scratch);
    e.spec.bases = (kvt_record_bases){0};
    e.record.bytes = written;
    return e;
}

TEST(fp8_is_coded_as_bf16_of_the_same_values)
{
    kvt_layout wide = entry;
    uint64_t bytes;
    wide.dtype = KVT_DTYPE_BF16;
    assert_status(kvt_layout_bytes(&entry, &bytes), KVT_OK);
    uint8_t *source = test_alloc(bytes), *rounded = test_alloc(bytes);
    uint16_t *widened = test_alloc(bytes * sizeof *widened);
    codecs_kv_sample_fill(&entry, 9, source);
    fp8_widen(source, bytes, widened);
    for (uint8_t span = TRANSFORM_SPAN_HEAD; span <= TRANSFORM_SPAN_LAYERS4; span++) {
        const basis_made made = basis_made_of((transform_shape){.layers = entry.layers,
                                                                .kv_heads = entry.kv_heads,
                                                                .head_dim = entry.head_dim,
                                                                .rotary_dim = entry.head_dim,
                                                                .sides = 2,
                                                                .span = span},
                                              5);
        for (size_t v = span == TRANSFORM_SPAN_HEAD ? 0 : VARIANTS - 1; v < VARIANTS; v++) {
            for (uint32_t first = 0; first < 6; first += 3) {
                encoded small = encode_at(entry, variants[v], source, &made.basis, first);
                encoded large = encode_at(wide, variants[v], widened, &made.basis, first);
                assert_true(coded_bytes(&small) > 0);
                assert_int_equal(coded_bytes(&small), coded_bytes(&large));
                fp8_narrow((const uint16_t *)(const void *)large.decoded.data, bytes, rounded);
                assert_memory_equal(small.decoded.data, rounded, bytes);
                assert_memory_not_equal(small.decoded.data, source, bytes);
            }
        }
    }
}

static double bits_of(const char *variant, const void *source)
{
    kvt_record_info info;
    encoded e = encoded_make(entry, variant, source);
    assert_status(kvt_record_parse(e.record.data, e.record.bytes, &info), KVT_OK);
    return info.bits_per_element;
}

TEST(bits_count_against_eight)
{
    assert_true(bits_of("raw", NULL) == 8.0);
    assert_true(fabs(bits_of("planes:k4v4,g64", NULL) - 4.5) < 0.05);
    assert_true(fabs(bits_of("kivi:k2v2,g64", NULL) - 2.5) < 0.05);
    assert_true(bits_of("entropy:k0.25v0.5", NULL) < 4.0);
    /* Eight bits and their groups are more than the elements: K stays as it is. */
    assert_true(fabs(bits_of("kivi:k8v4,g64", NULL) - 6.25) < 0.05);
    assert_true(bits_of("kivi:k8v8,g64", NULL) == 8.0);
    assert_true(bits_of("entropy:k0.0625v0.0625", NULL) <= 8.0);
}

/* A matrix with a NaN keeps every byte; the others are coded. */
TEST(what_is_not_finite_stays)
{
    uint64_t bytes;
    assert_status(kvt_layout_bytes(&entry, &bytes), KVT_OK);
    const uint64_t matrix = kvt_layout_matrix_bytes(&entry);
    uint8_t *source = test_alloc(bytes);
    codecs_kv_sample_fill(&entry, 9, source);
    source[2 * matrix + 77] = 0xff;
    for (size_t v = 0; v < VARIANTS - 1; v++) {
        encoded e = encoded_make(entry, variants[v], source);
        assert_status(encoded_decode(&e), KVT_OK);
        assert_memory_equal(e.decoded.data + 2 * matrix, source + 2 * matrix, matrix);
        assert_memory_not_equal(e.decoded.data, source, matrix);
    }
}

/* Planes: five are refused, levels end at four, and dropping gives what encoding gives. */
TEST(planes_of_fp8)
{
    static const int8_t levels[] = {3, 3, 0, 0, -3, 1};
    const kvt_codec_extras extras = {.struct_size = sizeof extras, .levels = levels};
    kvt_record_spec spec = codecs_support_spec(entry, "planes:k8v4,g64");
    uint64_t bound, scratch, written, again;
    assert_status(kvt_record_bound(&spec, &bound, &scratch), KVT_E_UNSUPPORTED);
    spec = codecs_support_spec(entry, "planes:k6v6,g64");
    encoded e = encoded_make(entry, "planes:k6v6,g64", NULL);
    assert_status(kvt_record_bound_with(&spec, &extras, 0, &bound, &scratch), KVT_OK);
    guarded record = guarded_make(bound), other = guarded_make(bound), room = guarded_make(scratch);
    kvt_record_info info;
    assert_status(kvt_record_encode_with(&spec, &extras, e.source.data, e.source.bytes, record.data,
                                         bound, room.data, scratch, &written),
                  KVT_OK);
    assert_status(kvt_record_verify(record.data, written, &info), KVT_OK);
    assert_int_equal(info.plane_count, 4);
    assert_int_equal(info.raw_segments, 0);
    kvt_variant fewer;
    assert_status(kvt_variant_parse("planes:k4v4,g64", &fewer), KVT_OK);
    spec.variant = fewer;
    assert_status(kvt_record_encode_with(&spec, &extras, e.source.data, e.source.bytes, other.data,
                                         bound, room.data, scratch, &again),
                  KVT_OK);
    kvt_record_drop dropped;
    assert_status(kvt_record_drop_planes(record.data, written, fewer, &dropped), KVT_OK);
    assert_int_equal(dropped.record_bytes, again);
    assert_memory_equal(record.data + info.head_bytes, other.data + info.head_bytes,
                        again - info.head_bytes);
    guarded decoded = guarded_make(e.source.bytes), same = guarded_make(e.source.bytes);
    assert_status(kvt_record_decode(record.data, dropped.record_bytes, NULL, decoded.data,
                                    decoded.bytes, room.data, scratch),
                  KVT_OK);
    assert_status(
        kvt_record_decode(other.data, again, NULL, same.data, same.bytes, room.data, scratch),
        KVT_OK);
    assert_memory_equal(decoded.data, same.data, same.bytes);
}

/* Entropy at three times the step, from the codes alone. */
TEST(coarser_steps_are_derived)
{
    encoded fine = encoded_make(entry, "entropy:k0.25v0.5", NULL);
    encoded coarse = encoded_make(entry, "entropy:k0.75v1.5", NULL);
    guarded made = guarded_make(fine.record.bytes);
    uint64_t written;
    assert_status(kvt_record_derive(fine.record.data, fine.record.bytes, NULL, coarse.spec.variant,
                                    made.data, made.bytes, fine.scratch.data, fine.scratch.bytes,
                                    &written),
                  KVT_OK);
    assert_int_equal(written, coarse.record.bytes);
    assert_memory_equal(made.data, coarse.record.data, written);
}

TEST(what_fp8_does_not_take_is_refused)
{
    static const char *const refused[] = {"lossless:fast", "drop:stream,50", "planes:k4v8,g64",
                                          "drop:keydiff,50+entropy:k0.25v0.5"};
    uint64_t bound, scratch;
    kvt_layout layout = entry;
    layout.tokens_may_drop = 1;
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        const kvt_record_spec spec = codecs_support_spec(layout, refused[i]);
        assert_status(kvt_record_bound(&spec, &bound, &scratch), KVT_E_UNSUPPORTED);
    }
    layout.head_dim = 20;
    const kvt_record_spec odd = codecs_support_spec(layout, "planes:k4v4,g64");
    assert_status(kvt_record_bound(&odd, &bound, &scratch), KVT_E_UNSUPPORTED);
}
