/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conform_codecs_all.c - one checklist over every codec of the table, several variants of each,
 * every dtype, odd shapes and nasty contents: round trip (exact for exact codecs, close for the
 * others), bounds, capacity, repeatability, and the same values from every one of scalar, avx2,
 * avx512 and cuda. One that is not here is named in a line; KVT_TEST_ISA=NAME checks that one
 * alone, and skips (77) without it. Over the stand-in for the driver cuda is the host's build of
 * the kernels, and every CUDA_SHARE-th record is decoded so. Single thread.
 */
#include "basis_support.h"
#include "fake_kernels.h"
#include "kernel_gpu.h"

#include "base/half.h"
#include "codecs/codec_table.h"
#include "codecs/kernels/cpu.h"

#include <stdio.h>

/* The instruction sets: levels of the processor, and the GPU. */
enum { ISA_CUDA = CODECS_CPU_AVX512 + 1, ISA_COUNT, CUDA_SHARE = 31 };

static struct {
    bool wanted[ISA_COUNT];
    bool alone;     /* one is wanted alone: what does not depend on it is left out */
    uint32_t share; /* of the records that the GPU decodes */
    uint32_t turn;
    kernel_gpu gpu;
} isas;

static const char *isa_name(int isa)
{
    return isa == ISA_CUDA ? "cuda" : codecs_cpu_name((codecs_cpu)isa);
}

typedef enum content {
    CONTENT_SAMPLE,  /* looks like KV */
    CONTENT_ZERO,    /* all elements zero */
    CONTENT_EQUAL,   /* one odd value everywhere */
    CONTENT_RANDOM,  /* does not shrink */
    CONTENT_SPECIAL, /* NaN, infinity, subnormals and the largest values mixed */
    CONTENT_COUNTER, /* all 16-bit patterns in turn */
    CONTENT_COUNT
} content;

typedef struct shape {
    uint16_t layers;
    uint16_t heads;
    uint16_t dim;
    uint32_t tokens;
} shape;

static const shape shapes[] = {
    {1, 1, 1, 1},     {1, 1, 1, 300},  {2, 1, 3, 7},   {3, 8, 128, 1},
    {1, 5, 17, 63},   {2, 2, 9, 64},   {1, 1, 80, 65}, {1, 9, 120, 9},
    {1, 9, 120, 258}, {3, 2, 20, 600}, {2, 4, 8, 77},  {1, 2, 96, 130},
};

/* Every codec of the table with settings that differ in what they make a codec do. */
static const char *const variants[] = {
    "raw",
    "lossless",
    "lossless:fast",
    "kivi:k4v4,g64",
    "kivi:k2v8,g32,r64",
    "kivi:k8v2,g128,half",
    "planes:k8v8,g64",
    "planes:k2v3,g32,vhead",
    "planes:k6v4,g128,vchan,vfirst",
    "entropy:k0.25v0.5",
    "entropy:k0.75v0.1,vchan,middle",
    "transform:00000,s0.25",
    "transform:00000,s1",
};

enum { VARIANT_COUNT = sizeof variants / sizeof variants[0] };
static const uint64_t opaque_sizes[] = {1, 2, 63, 4096, 100001, 262145, 8388609};

static void fill_special(uint8_t dtype, uint8_t *target, uint64_t bytes)
{
    static const uint16_t fp16[] = {0x7c00, 0xfc00, 0x7e01, 0xffff, 0x0001, 0x83ff, 0x7bff, 0x8000};
    static const uint16_t bf16[] = {0x7f80, 0xff80, 0x7fc1, 0xffff, 0x0001, 0x807f, 0x7f7f, 0x8000};
    static const uint32_t fp32[] = {0x7f800000, 0xff800000, 0x7fc00001, 0xffffffff,
                                    0x00000001, 0x807fffff, 0x7f7fffff, 0x80000000};
    uint64_t state = 1;
    for (uint64_t i = 0; i < bytes; i++) {
        uint64_t element = i / kvt_dtype_bytes(dtype);
        if (i % kvt_dtype_bytes(dtype) == 0) state = state * 6364136223846793005u + element;
        unsigned pick = (unsigned)(state >> 61);
        unsigned byte = (unsigned)(i % kvt_dtype_bytes(dtype));
        uint32_t value = dtype == KVT_DTYPE_FP16   ? fp16[pick]
                         : dtype == KVT_DTYPE_FP32 ? fp32[pick]
                                                   : bf16[pick];
        target[i] = (uint8_t)(value >> (8 * byte));
    }
}

static void fill(const kvt_layout *layout, content kind, uint8_t *target, uint64_t bytes)
{
    kvt_layout as_bytes = {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = bytes};
    switch (kind) {
    case CONTENT_SAMPLE: codecs_kv_sample_fill(layout, 11, target); break;
    case CONTENT_ZERO: memset(target, 0, bytes); break;
    case CONTENT_EQUAL: memset(target, 0x3f, bytes); break;
    case CONTENT_RANDOM: codecs_kv_sample_fill(&as_bytes, 12, target); break;
    case CONTENT_SPECIAL: fill_special(layout->dtype, target, bytes); break;
    default:
        for (uint64_t i = 0; i < bytes; i++) {
            target[i] = (uint8_t)(i / 2 >> 8 * (i % 2));
        }
        break;
    }
}

/* A basis of a layout, which stays until another one is asked for. Its hash is zero, as in the
 * names above. Spans take turns as far as they are not wide. */
static basis_made made;

static const transform_basis *basis_of(const kvt_layout *layout)
{
    const uint32_t row = (uint32_t)layout->kv_heads * layout->head_dim;
    transform_shape wanted = {.layers = layout->layers,
                              .kv_heads = layout->kv_heads,
                              .head_dim = layout->head_dim,
                              .rotary_dim = layout->head_dim & ~1u,
                              .sides = (uint8_t)kvt_layout_sides(layout),
                              .pairing = layout->order,
                              .span = (uint8_t)(1 + (layout->tokens + layout->kv_heads) % 3)};
    if (wanted.span != TRANSFORM_SPAN_HEAD && row > 128) wanted.span = TRANSFORM_SPAN_HEAD;
    if (memcmp(&wanted, &made.basis.shape, sizeof wanted) == 0) return &made.basis;
    made = basis_made_of(wanted, 5);
    return &made.basis;
}

TEST_BEFORE_EACH
{
    made = (basis_made){0}; /* its memory was of the case before */
}

static kvt_variant variant_at(size_t index)
{
    kvt_variant variant;
    assert_status(kvt_variant_parse(variants[index], &variant), KVT_OK);
    return variant;
}

/*
 * A lossy codec keeps what is not finite, and is within the range of the matrix otherwise: a
 * group's step is at most a third of its range. rotate spreads an error over up to 256 elements and
 * has no zero level: d * sqrt(L) / 2 is 16 times the largest element with 4 bits; entropy's step
 * follows the mean square where a mean does not pay.
 */
static void check_close(const kvt_record_spec *spec, const uint8_t *source, const uint8_t *decoded,
                        uint64_t bytes)
{
    const kvt_layout *layout = &spec->layout;
    const uint64_t elements = bytes / kvt_dtype_bytes(layout->dtype);
    float low = INFINITY;
    float high = -INFINITY;
    bool finite = true;
    for (uint64_t i = 0; i < elements; i++) {
        float x = element_at(layout, source, i);
        finite &= isfinite(x) != 0;
        if (!isfinite(x)) continue;
        low = fminf(low, x);
        high = fmaxf(high, x);
    }
    float size = fmaxf(fabsf(high), fabsf(low));
    float bound = 0.6f * (high - low) + size * 0.01f + 1e-6f;
    if (layout->dtype == KVT_DTYPE_FP8) bound += size / 16.0f; /* half a step of the element */
    if (spec->variant.codec == KVT_CODEC_ENTROPY) bound = fmaxf(bound, size * 0.5f);
    /* Half a step in each component of up to 512, and the rounding of the matrices. */
    if (spec->variant.codec == KVT_CODEC_TRANSFORM) bound += size * 0.5f + 12.0f;
    /* With a window of V what is not finite may lie in its raw rows alone. */
    const bool window = spec->variant.codec == KVT_CODEC_KIVI && layout->sides == KVT_SIDES_V;
    if (!finite && !window) {
        assert_memory_equal(source, decoded, bytes);
        return;
    }
    for (uint64_t i = 0; i < elements; i++) {
        float x = element_at(layout, source, i);
        float y = element_at(layout, decoded, i);
        bool close = isfinite(x) ? fabsf(x - y) <= bound : isnan(x) ? isnan(y) : x == y;
        if (!close) {
            char name[64];
            kvt_variant_format(spec->variant, name, sizeof name);
            fail_msg("%s, dtype %u, [%u][%u][%u], element %llu: %g became %g, bound %g", name,
                     layout->dtype, (unsigned)layout->tokens, layout->kv_heads, layout->head_dim,
                     (unsigned long long)i, (double)x, (double)y, (double)bound);
        }
    }
}

static void check_segment(kvt_variant variant, const kvt_layout *layout, const uint8_t *source,
                          uint64_t bytes)
{
    const kvt_codec *codec = kvt_codec_find(variant.codec);
    const uint64_t bound = codec->segment_bound(variant, layout, bytes);
    const uint64_t scratch_bytes = codec->segment_scratch(variant, layout, bytes);
    guarded scratch = guarded_make(scratch_bytes);
    guarded stored = guarded_make(bound);
    guarded again = guarded_make(bound);
    guarded decoded = guarded_make(bytes);
    uint64_t written = 0;
    uint64_t written_again = 0;

    assert_status(codec->check(variant, layout), KVT_OK);
    kvt_status status = codec->encode_segment(variant, layout, source, bytes, stored.data, bound,
                                              scratch.data, scratch_bytes, &written);
    guarded_check(&stored, bound);
    guarded_check(&scratch, scratch_bytes);
    if (status == KVT_OK) {
        assert_true(written <= bound);
        memset(scratch.data, 0x11, scratch_bytes);
        assert_status(codec->encode_segment(variant, layout, source, bytes, again.data, written,
                                            scratch.data, scratch_bytes, &written_again),
                      KVT_OK);
        assert_int_equal(written, written_again);
        assert_memory_equal(stored.data, again.data, written);
        guarded_check(&again, written);
        memset(again.data, GUARD_VALUE, written);
        assert_status(codec->encode_segment(variant, layout, source, bytes, again.data, written - 1,
                                            scratch.data, scratch_bytes, &written_again),
                      KVT_E_SPACE);
        guarded_check(&again, written - 1);
        memset(scratch.data, 0x22, scratch_bytes);
        assert_status(codec->decode_segment(variant, layout, stored.data, written,
                                            VIEW_ROWS_PACKED(decoded.data, bytes), scratch.data,
                                            scratch_bytes),
                      KVT_OK);
        assert_memory_equal(decoded.data, source, bytes);
        guarded_check(&decoded, bytes);
        assert_status(codec->decode_segment(variant, layout, stored.data, written - 1,
                                            VIEW_ROWS_PACKED(decoded.data, bytes), scratch.data,
                                            scratch_bytes),
                      KVT_E_CORRUPT);
        guarded_check(&decoded, bytes);
    } else {
        assert_status(status, KVT_RAW);
        assert_int_not_equal(codec->id, KVT_CODEC_RAW);
    }
}

static void check_capacity(const kvt_record_spec *spec, const uint8_t *source, uint64_t bytes,
                           const guarded *first, uint64_t record_bytes, kvt_status expected)
{
    uint64_t bound;
    uint64_t scratch_bytes;
    uint64_t written = 0;
    assert_status(kvt_record_bound(spec, &bound, &scratch_bytes), KVT_OK);
    guarded scratch = guarded_make(scratch_bytes);
    guarded record = guarded_make(record_bytes);
    memset(scratch.data, 0x33, scratch_bytes);
    assert_status(kvt_record_encode(spec, source, bytes, record.data, record_bytes, scratch.data,
                                    scratch_bytes, &written),
                  expected);
    assert_int_equal(written, record_bytes);
    assert_memory_equal(record.data, first->data, record_bytes);
    guarded_check(&record, record_bytes);
    memset(record.data, GUARD_VALUE, record_bytes);
    const uint64_t small[] = {record_bytes - 1, record_bytes - 4096, 8192, 4097, 0};
    for (size_t i = 0; i < sizeof small / sizeof small[0]; i++) {
        assert_status(kvt_record_encode(spec, source, bytes, record.data, small[i], scratch.data,
                                        scratch_bytes, &written),
                      KVT_E_SPACE);
        guarded_check(&record, small[i]);
        memset(record.data, GUARD_VALUE, record_bytes);
    }
}

/* One matrix alone is what it is in the whole. */
static void check_matrices(const kvt_record_info *info, const kvt_record_bases *bases,
                           const guarded *record, const uint8_t *whole, guarded *scratch)
{
    const kvt_layout *layout = &info->spec.layout;
    if (layout->dtype == KVT_DTYPE_OPAQUE) return;
    const uint64_t matrix = kvt_layout_matrix_bytes(layout);
    guarded target = guarded_make(matrix);
    for (uint32_t layer = 0; layer < layout->layers; layer++) {
        for (uint32_t side = 0; side < kvt_layout_sides(layout); side++) {
            assert_status(kvt_record_decode_matrix(record->data, record->bytes, bases, layer,
                                                   (kvt_side)side, target.data, matrix,
                                                   scratch->data, scratch->bytes),
                          KVT_OK);
            uint64_t offset = kvt_layout_matrix_offset(layout, layer, (kvt_side)side);
            assert_memory_equal(target.data, whole + offset, matrix);
            guarded_check(&target, matrix);
        }
    }
}

/* A GPU gives the same values, in pages and packed. */
static void check_cuda(const kvt_record_spec *spec, const guarded *record, const guarded *decoded)
{
    if (spec->layout.dtype == KVT_DTYPE_OPAQUE || isas.turn++ % isas.share != 0) return;
    guarded values = guarded_make(decoded->bytes);
    const kvt_status status = kernel_gpu_decode(&isas.gpu, record->data, record->bytes, spec,
                                                isas.turn / isas.share % 2 == 0, values.data);
    if (status == KVT_E_UNSUPPORTED) return;
    assert_status(status, KVT_OK);
    if (memcmp(values.data, decoded->data, decoded->bytes) != 0) fail_msg("cuda decodes otherwise");
    guarded_check(&values, decoded->bytes);
}

/* Every instruction set that is here gives the same record and the same values. */
static void check_instruction_sets(const kvt_record_spec *spec, const uint8_t *source,
                                   uint64_t bytes, const guarded *record, const guarded *decoded,
                                   guarded *scratch)
{
    guarded again = guarded_make(record->bytes);
    guarded values = guarded_make(bytes);
    if (isas.wanted[ISA_CUDA]) check_cuda(spec, record, decoded);
    for (int level = CODECS_CPU_SCALAR; level < ISA_CUDA; level++) {
        uint64_t written;
        if (!isas.wanted[level]) continue;
        codecs_cpu_force((codecs_cpu)level);
        kvt_status status = kvt_record_encode(spec, source, bytes, again.data, again.bytes,
                                              scratch->data, scratch->bytes, &written);
        assert_true(status == KVT_OK || status == KVT_RAW);
        assert_int_equal(written, record->bytes);
        if (memcmp(again.data, record->data, written) != 0) {
            fail_msg("%s encodes otherwise", codecs_cpu_name((codecs_cpu)level));
        }
        memset(values.data, 0x44, bytes);
        assert_status(kvt_record_decode(record->data, written, spec, values.data, bytes,
                                        scratch->data, scratch->bytes),
                      KVT_OK);
        if (memcmp(values.data, decoded->data, bytes) != 0) {
            fail_msg("%s decodes otherwise", codecs_cpu_name((codecs_cpu)level));
        }
        guarded_check(&values, bytes);
    }
    codecs_cpu_force(codecs_cpu_best());
}

static void check_info(const kvt_record_info *info, const kvt_record_spec *spec, kvt_status status,
                       uint64_t written, uint64_t bytes)
{
    assert_int_equal(info->record_bytes, written);
    assert_int_equal(info->source_bytes, bytes);
    assert_int_equal(info->decoded_bytes, bytes);
    assert_memory_equal(&info->spec.key, &spec->key, sizeof spec->key);
    assert_memory_equal(&info->spec.layout, &spec->layout, sizeof spec->layout);
    assert_int_equal(info->spec.generation, spec->generation);
    assert_int_equal(info->spec.first_position, spec->first_position);
    assert_int_equal(info->spec.variant.codec,
                     status == KVT_RAW ? KVT_CODEC_RAW : spec->variant.codec);
    assert_true(info->payload_bytes <= bytes);
}

static void check_record(const kvt_record_spec *spec, const uint8_t *source, uint64_t bytes)
{
    uint64_t bound;
    uint64_t scratch_bytes;
    uint64_t written = 0;
    kvt_record_info info;
    assert_status(kvt_record_bound(spec, &bound, &scratch_bytes), KVT_OK);
    assert_int_equal(bound % KVT_RECORD_ALIGN, 0);
    guarded scratch = guarded_make(scratch_bytes);
    guarded record = guarded_make(bound);
    guarded decoded = guarded_make(bytes);
    kvt_status status = kvt_record_encode(spec, source, bytes, record.data, bound, scratch.data,
                                          scratch_bytes, &written);
    if (status != KVT_RAW) assert_status(status, KVT_OK);
    guarded_check(&record, bound);
    assert_int_equal(written % KVT_RECORD_ALIGN, 0);
    assert_status(kvt_record_parse(record.data, written, &info), KVT_OK);
    assert_status(kvt_record_verify(record.data, written, &info), KVT_OK);
    check_info(&info, spec, status, written, bytes);
    assert_status(kvt_record_decode(record.data, written, spec, decoded.data, bytes, scratch.data,
                                    scratch_bytes),
                  KVT_OK);
    if (kvt_codec_find(info.spec.variant.codec)->flags & KVT_CODEC_FLAG_EXACT) {
        assert_memory_equal(decoded.data, source, bytes);
    } else {
        for (uint32_t i = 0; i < kvt_layout_sides(&spec->layout) * spec->layout.layers; i++) {
            uint64_t matrix = kvt_layout_matrix_bytes(&spec->layout);
            check_close(spec, source + i * matrix, decoded.data + i * matrix, matrix);
        }
    }
    guarded_check(&decoded, bytes);
    guarded_check(&scratch, scratch_bytes);
    guarded whole = {record.data, written};
    check_instruction_sets(spec, source, bytes, &whole, &decoded, &scratch);
    if (isas.alone) return;
    check_matrices(&info, &spec->bases, &whole, decoded.data, &scratch);
    check_capacity(spec, source, bytes, &record, written, status);
}

static void check_layout(kvt_variant variant, const kvt_layout *layout, content kind)
{
    const kvt_codec *codec = kvt_codec_find(variant.codec);
    uint64_t bytes;
    if (codec->check(variant, layout) != KVT_OK) {
        char name[64];
        kvt_variant_format(variant, name, sizeof name);
        /* raw and the dense mode take everything. */
        assert_int_not_equal(variant.codec, KVT_CODEC_RAW);
        assert_false(variant.codec == KVT_CODEC_LOSSLESS && variant.mode == KVT_LOSSLESS_DENSE);
        /* So do all codecs of fp8 where they do of bf16, but for what fp8 is too small for. */
        kvt_layout wide = *layout;
        wide.dtype = KVT_DTYPE_BF16;
        const bool small =
            strcmp(name, "lossless:fast") == 0 || strcmp(name, "planes:k8v8,g64") == 0;
        assert_true(layout->dtype != KVT_DTYPE_FP8 || small ||
                    codec->check(variant, &wide) != KVT_OK);
        return;
    }
    assert_status(kvt_layout_bytes(layout, &bytes), KVT_OK);
    kvt_record_spec spec = {.key = {.bytes = {1, 2, 3}},
                            .generation = 7,
                            .layout = *layout,
                            .variant = variant,
                            .first_position = 512};
    const transform_basis *list[1];
    if (codec->flags & KVT_CODEC_FLAG_SPANS) {
        list[0] = basis_of(layout);
        spec.bases = (kvt_record_bases){list, 1};
    }
    /* One byte off the alignment: sources need none. */
    const size_t ends = test_ends();
    uint8_t *room = test_alloc(bytes + 1);
    uint8_t *source = room + 1;
    uint8_t *sample = test_alloc(bytes);
    fill(layout, kind, sample, bytes);
    memcpy(source, sample, bytes);
    uint64_t segment = layout->dtype == KVT_DTYPE_OPAQUE ? bytes : kvt_layout_matrix_bytes(layout);
    if (!(codec->flags & KVT_CODEC_FLAG_PARTS) && !isas.alone)
        check_segment(variant, layout, source, segment);
    check_record(&spec, source, bytes);
    test_end(ends); /* hundreds of MiB, were they to stay */
}

TEST(conform_every_shape)
{
    static const uint8_t dtypes[] = {KVT_DTYPE_BF16, KVT_DTYPE_FP16, KVT_DTYPE_FP32, KVT_DTYPE_FP8};
    for (size_t v = 0; v < VARIANT_COUNT; v++) {
        for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
            for (unsigned k = 0; k < sizeof dtypes * CONTENT_COUNT; k++) {
                kvt_layout layout = {.layers = shapes[s].layers,
                                     .kv_heads = shapes[s].heads,
                                     .head_dim = shapes[s].dim,
                                     .dtype = dtypes[k / CONTENT_COUNT],
                                     .order = (uint8_t)(s % 2),
                                     .tokens = shapes[s].tokens};
                check_layout(variant_at(v), &layout, (content)(k % CONTENT_COUNT));
            }
        }
    }
}

/* One matrix a layer, K or V: MLA's latent with and without its rope part, the rope part alone, K
 * of 192 and V of 128, and shapes that fill no group. */
TEST(conform_one_side)
{
    static const shape latents[] = {{2, 1, 512, 130}, {1, 1, 576, 65}, {3, 1, 64, 300},
                                    {1, 1, 576, 1},   {2, 2, 24, 77},  {1, 1, 9, 64},
                                    {2, 2, 192, 71},  {2, 2, 128, 71}};
    static const uint8_t dtypes[] = {KVT_DTYPE_BF16, KVT_DTYPE_FP16, KVT_DTYPE_FP32, KVT_DTYPE_FP8};
    for (size_t v = 0; v < VARIANT_COUNT; v++) {
        for (size_t s = 0; s < sizeof latents / sizeof latents[0]; s++) {
            for (unsigned k = 0; k < sizeof dtypes * CONTENT_COUNT; k++) {
                kvt_layout layout = {.layers = latents[s].layers,
                                     .kv_heads = latents[s].heads,
                                     .head_dim = latents[s].dim,
                                     .dtype = dtypes[k / CONTENT_COUNT],
                                     .order = (uint8_t)(s % 2),
                                     .sides = (s + k) % 2 == 1 ? KVT_SIDES_V : KVT_SIDES_ONE,
                                     .tokens = latents[s].tokens};
                check_layout(variant_at(v), &layout, (content)(k % CONTENT_COUNT));
            }
        }
    }
}

TEST(conform_opaque_sizes)
{
    for (size_t v = 0; v < VARIANT_COUNT; v++) {
        const kvt_variant variant = variant_at(v);
        if (kvt_codec_find(variant.codec)->flags & KVT_CODEC_FLAG_NEEDS_SHAPE) continue;
        if (variant.codec == KVT_CODEC_LOSSLESS && variant.mode == KVT_LOSSLESS_FAST) continue;
        for (size_t s = 0; s < sizeof opaque_sizes / sizeof opaque_sizes[0]; s++) {
            kvt_layout layout = {
                .dtype = KVT_DTYPE_OPAQUE, .tokens = 5, .opaque_bytes = opaque_sizes[s]};
            if (opaque_sizes[s] < 1000000) {
                check_layout(variant, &layout, CONTENT_RANDOM);
                check_layout(variant, &layout, CONTENT_ZERO);
            }
            check_layout(variant, &layout, CONTENT_COUNTER);
        }
    }
}

TEST(conform_card_is_sound)
{
    assert_non_null(kvt_codec_at(0));
    for (size_t c = 0; kvt_codec_at(c) != NULL; c++) {
        const kvt_codec *codec = kvt_codec_at(c);
        assert_ptr_equal(kvt_codec_find(codec->id), codec);
        const bool parts = (codec->flags & KVT_CODEC_FLAG_PARTS) != 0;
        const bool spans = (codec->flags & KVT_CODEC_FLAG_SPANS) != 0;
        assert_true(parts || !spans);
        assert_true((parts && !spans) == (codec->encode_matrix != NULL));
        assert_true((parts && !spans) == (codec->decode_matrix != NULL));
        assert_true(spans == (codec->encode_span != NULL && codec->decode_span != NULL));
        assert_true(parts == (codec->encode_segment == NULL && codec->decode_segment == NULL));
        bool tried = false;
        for (size_t v = 0; v < VARIANT_COUNT; v++) {
            tried |= variant_at(v).codec == codec->id;
        }
        if (!tried) fail_msg("no variant of %s is tried here", codec->name);
        kvt_variant wrong;
        char usual[64];
        (void)snprintf(usual, sizeof usual, "%s%s", codec->name, spans ? ":00000" : "");
        assert_status(kvt_variant_parse(usual, &wrong), KVT_OK);
        assert_int_equal(wrong.codec, codec->id);
        kvt_layout layout = {.layers = 1, .kv_heads = 1, .head_dim = 8, .tokens = 1};
        layout.dtype = KVT_DTYPE_BF16;
        wrong.mode = 999;
        assert_status(codec->check(wrong, &layout), KVT_E_UNSUPPORTED);
        for (size_t other = 0; other < c; other++) {
            assert_int_not_equal(kvt_codec_at(other)->id, codec->id);
        }
    }
}

/* Each kernel that decodes has decoded records, and is so held to the processor's values. */
TEST(conform_cuda_runs_every_kernel)
{
    if (!isas.wanted[ISA_CUDA]) skip();
    for (uint32_t k = 0; k < KERNEL_DECODERS; k++)
        if (isas.gpu.launches[k] == 0)
            fail_msg("no record here runs %s", kernel_facts_of((kernel_id)k)->function);
    assert_int_equal(fake_kernel_failures, 0);
}

/* Says what is not here. False: it was all that was wanted. */
static bool find_isas(const char *only)
{
    const char *reason = "this processor lacks it";
    bool any = false;
    isas.alone = only != NULL;
    isas.share = 1;
    fake_cuda_state *fake_state = fake_cuda_find();
    if (fake_state != NULL) isas.share = CUDA_SHARE;
    fake_kernels_give(fake_state, NULL, 0);
    for (int isa = CODECS_CPU_SCALAR; isa < ISA_COUNT; isa++) {
        if (only != NULL && strcmp(only, isa_name(isa)) != 0) continue;
        isas.wanted[isa] =
            isa == ISA_CUDA ? kernel_gpu_open(&isas.gpu) : isa <= (int)codecs_cpu_best();
        any |= isas.wanted[isa];
        if (isa == ISA_CUDA) reason = isas.gpu.reason;
        if (!isas.wanted[isa]) printf("skipped: %s: %s\n", isa_name(isa), reason);
    }
    return any;
}

int main(void)
{
    const char *only = getenv("KVT_TEST_ISA");
    if (!find_isas(only != NULL && only[0] != '\0' ? only : NULL)) return 77;
    const int failed = tests_run();
    gpu_site_close(isas.gpu.site);
    return failed;
}
