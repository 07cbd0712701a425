/*
 * kivi_group_avx512_value.c - codes to values with AVX-512. Levels become floats, one fused
 * multiplication and addition gives the value (the product is exact, so that fusing changes
 * nothing), and 64 values at a time are written, past the caches for large targets. Along rows up
 * to 64 levels are turned into elements once per group and then looked up. The same bytes as the
 * scalar kernel. Re-entrant.
 */
#include "kivi_group_scalar.h"

#if defined(__x86_64__)

#include <immintrin.h>

#ifndef __OPTIMIZE__
/* Without optimisation some intrinsics are macros, which write full masks as -1. */
#pragma GCC diagnostic ignored "-Wsign-conversion"
#endif

#define WIDE static inline __attribute__((always_inline)) CODECS_TARGET_AVX512
#define WIDE_BF16                                                                                  \
    __attribute__((                                                                                \
        target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512bf16,avx2,fma,f16c,bmi2")))

enum { WIDE_ROUND = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC };

/* What the body below is compiled for. */
typedef struct wide_form {
    uint8_t dtype;
    group_level_kind kind;
    bool half_steps;
    bool native; /* the processor converts to bf16 */
} wide_form;

/* The levels of 6 fine bits as fp16. */
typedef struct wide_table {
    __m512i fine6[2];
    __m512 levels; /* 16 of them */
} wide_table;

/* group_fine6_level of 16 codes from `first` on, as fp16. */
WIDE __m256i wide_fine6(int first)
{
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i q = _mm512_add_epi32(lanes, _mm512_set1_epi32(first));
    const __m512i eight = _mm512_slli_epi32(q, 3);
    __m512i level = _mm512_sub_epi32(_mm512_add_epi32(eight, eight), _mm512_set1_epi32(24));
    level = _mm512_max_epi32(level, _mm512_add_epi32(eight, _mm512_set1_epi32(3)));
    level = _mm512_min_epi32(level, _mm512_add_epi32(eight, _mm512_set1_epi32(453)));
    level = _mm512_maskz_mov_epi32(_mm512_test_epi32_mask(q, q), level);
    level = _mm512_mask_mov_epi32(level, _mm512_cmpeq_epi32_mask(q, _mm512_set1_epi32(63)),
                                  _mm512_set1_epi32(960));
    __m512 value = _mm512_mul_ps(_mm512_cvtepi32_ps(level), _mm512_set1_ps(1.0f / 64.0f));
    return _mm512_cvtps_ph(value, WIDE_ROUND);
}

static CODECS_TARGET_AVX512 void wide_table_fill(const group_levels *levels, wide_table *table)
{
    table->levels = _mm512_loadu_ps(levels->table);
    table->fine6[0] = _mm512_setzero_si512();
    table->fine6[1] = _mm512_setzero_si512();
    for (int k = 0; levels->kind == GROUP_LEVEL_FINE6 && k < 2; k++) {
        table->fine6[k] = _mm512_inserti64x4(_mm512_castsi256_si512(wide_fine6(32 * k)),
                                             wide_fine6(32 * k + 16), 1);
    }
}

/* The levels of 64 codes; those of GROUP_LEVEL_FINE8 are in 1/64. */
WIDE void wide_levels(group_level_kind kind, const wide_table *table, const uint8_t *codes,
                      __m512 level[4])
{
    if (kind == GROUP_LEVEL_FINE6 || kind == GROUP_LEVEL_FINE8) {
        for (unsigned k = 0; k < 2; k++) {
            __m512i w = _mm512_cvtepu8_epi16(
                _mm256_loadu_si256((const __m256i *)(const void *)(codes + 32 * k)));
            if (kind == GROUP_LEVEL_FINE6) {
                w = _mm512_permutex2var_epi16(table->fine6[0], w, table->fine6[1]);
                level[2 * k] = _mm512_cvtph_ps(_mm512_castsi512_si256(w));
                level[2 * k + 1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(w, 1));
                continue;
            }
            __m512i twice = _mm512_add_epi16(w, w);
            __m512i inner = _mm512_sub_epi16(_mm512_add_epi16(twice, twice), _mm512_set1_epi16(30));
            w = _mm512_min_epi16(_mm512_max_epi16(inner, twice),
                                 _mm512_add_epi16(twice, _mm512_set1_epi16(450)));
            level[2 * k] = _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(_mm512_castsi512_si256(w)));
            level[2 * k + 1] =
                _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(_mm512_extracti64x4_epi64(w, 1)));
        }
        return;
    }
    for (unsigned k = 0; k < 4; k++) {
        __m512i w =
            _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(codes + 16 * k)));
        level[k] = kind == GROUP_LEVEL_TABLE ? _mm512_permutexvar_ps(w, table->levels)
                                             : _mm512_cvtepi32_ps(w);
    }
}

WIDE __m512 wide_value(const wide_form form, __m512 level, __m512 scale, __m512 minimum)
{
    if (form.half_steps) {
        __m512 product = _mm512_mul_ps(level, scale);
        product = _mm512_cvtph_ps(_mm512_cvtps_ph(product, WIDE_ROUND));
        return _mm512_cvtph_ps(_mm512_cvtps_ph(_mm512_add_ps(product, minimum), WIDE_ROUND));
    }
    return _mm512_fmadd_ps(level, scale, minimum);
}

/* 32 values as bf16 or fp16. Values are finite, or infinite in fp16. */
WIDE __m512i wide_narrow(const wide_form form, __m512 a, __m512 b)
{
    if (form.dtype == KVT_DTYPE_FP16) {
        return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtps_ph(a, WIDE_ROUND)),
                                  _mm512_cvtps_ph(b, WIDE_ROUND), 1);
    }
    const __m512i one = _mm512_set1_epi32(1);
    const __m512i half = _mm512_set1_epi32(0x7fff);
    const __m512i upper =
        _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27,
                         25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    __m512i x = _mm512_castps_si512(a);
    __m512i y = _mm512_castps_si512(b);
    x = _mm512_add_epi32(_mm512_add_epi32(x, half),
                         _mm512_and_si512(_mm512_srli_epi32(x, 16), one));
    y = _mm512_add_epi32(_mm512_add_epi32(y, half),
                         _mm512_and_si512(_mm512_srli_epi32(y, 16), one));
    return _mm512_permutex2var_epi16(x, upper, y);
}

static inline __attribute__((always_inline)) WIDE_BF16 __m512i wide_narrow_native(__m512 a,
                                                                                  __m512 b)
{
    return (__m512i)_mm512_cvtne2ps_pbh(b, a);
}

WIDE void wide_put(bool stream, uint8_t *target, __m512i bytes)
{
    if (stream) {
        _mm512_stream_si512((__m512i *)(void *)target, bytes);
    } else {
        _mm512_storeu_si512(target, bytes);
    }
}

/* The body, once for processors that convert to bf16 and once for the others. */
#define WIDE_BODY(NAME, TARGET, NARROW)                                                            \
    static inline __attribute__((always_inline)) TARGET void NAME##_store(                         \
        const wide_form form, bool stream, uint8_t *target, uint64_t index, const __m512 v[4])     \
    {                                                                                              \
        if (form.dtype == KVT_DTYPE_FP32) {                                                        \
            for (unsigned k = 0; k < 4; k++) {                                                     \
                wide_put(stream, target + 4 * (index + 16 * k), _mm512_castps_si512(v[k]));        \
            }                                                                                      \
            return;                                                                                \
        }                                                                                          \
        wide_put(stream, target + 2 * index, NARROW(v[0], v[1]));                                  \
        wide_put(stream, target + 2 * (index + 32), NARROW(v[2], v[3]));                           \
    }                                                                                              \
                                                                                                   \
    static inline __attribute__((always_inline)) TARGET void NAME##_columns(                       \
        const wide_form form, bool stream, const group_shape *shape, const wide_table *table,      \
        const group_ranges *ranges, const uint8_t *codes, uint64_t rows, uint8_t *target)          \
    {                                                                                              \
        const __m512 unit = _mm512_set1_ps(form.kind == GROUP_LEVEL_FINE8 ? 1.0f / 64.0f : 1.0f);  \
        for (uint64_t row = 0; row < rows; row++) {                                                \
            for (uint64_t c = 0; c < shape->width; c += 64) {                                      \
                __m512 v[4];                                                                       \
                wide_levels(form.kind, table, codes + row * shape->width + c, v);                  \
                for (unsigned k = 0; k < 4; k++) {                                                 \
                    __m512 scale = _mm512_loadu_ps(ranges->scale + c + 16 * k);                    \
                    if (form.kind == GROUP_LEVEL_FINE8) scale = _mm512_mul_ps(scale, unit);        \
                    v[k] = wide_value(form, v[k], scale,                                           \
                                      _mm512_loadu_ps(ranges->minimum + c + 16 * k));              \
                }                                                                                  \
                NAME##_store(form, stream, target, row * shape->width + c, v);                     \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    static inline __attribute__((always_inline)) TARGET void NAME##_rows(                          \
        const wide_form form, bool stream, const group_shape *shape, const wide_table *table,      \
        const group_ranges *ranges, const uint8_t *codes, uint64_t rows, uint8_t *target)          \
    {                                                                                              \
        const float unit = form.kind == GROUP_LEVEL_FINE8 ? 1.0f / 64.0f : 1.0f;                   \
        const unsigned log_group = (unsigned)__builtin_ctz(shape->group);                          \
        for (uint64_t i = 0; i < rows * shape->width; i += 64) {                                   \
            __m512 v[4];                                                                           \
            wide_levels(form.kind, table, codes + i, v);                                           \
            for (unsigned k = 0; k < 4; k++) {                                                     \
                const uint64_t g = (i + 16 * k) >> log_group;                                      \
                v[k] = wide_value(form, v[k], _mm512_set1_ps(ranges->scale[g] * unit),             \
                                  _mm512_set1_ps(ranges->minimum[g]));                             \
            }                                                                                      \
            NAME##_store(form, stream, target, i, v);                                              \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    /* 16-bit elements of at most 16 levels, groups of 64 or more: a table of elements. */         \
    static inline __attribute__((always_inline)) TARGET void NAME##_lookup(                        \
        const wide_form form, bool stream, const group_shape *shape, const wide_table *table,      \
        const group_ranges *ranges, const uint8_t *codes, uint64_t rows, uint8_t *target)          \
    {                                                                                              \
        const uint64_t groups = rows * shape->width / shape->group;                                \
        for (uint64_t g = 0; g < groups; g++) {                                                    \
            __m512 v = wide_value(form, table->levels, _mm512_set1_ps(ranges->scale[g]),           \
                                  _mm512_set1_ps(ranges->minimum[g]));                             \
            const __m512i elements = NARROW(v, v);                                                 \
            for (uint64_t i = g * shape->group; i < (g + 1) * shape->group; i += 32) {             \
                __m512i w = _mm512_cvtepu8_epi16(                                                  \
                    _mm256_loadu_si256((const __m256i *)(const void *)(codes + i)));               \
                wide_put(stream, target + 2 * i, _mm512_permutexvar_epi16(w, elements));           \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    static TARGET __attribute__((noinline)) void NAME##_all(                                       \
        const wide_form asked, bool stream, const group_shape *shape, const wide_table *table,     \
        const group_ranges *ranges, const uint8_t *codes, uint64_t rows, uint8_t *target)          \
    {                                                                                              \
        WIDE_FOR_FORMS(NAME)                                                                       \
    }

#define WIDE_ONE_FORM(NAME, DTYPE, KIND, HALF)                                                     \
    if (asked.dtype == (DTYPE) && asked.kind == (KIND) && asked.half_steps == (HALF)) {            \
        const wide_form form = {(DTYPE), (KIND), (HALF), false};                                   \
        const bool few = (KIND) == GROUP_LEVEL_TABLE || (KIND) == GROUP_LEVEL_CODE16;              \
        if (shape->columns) {                                                                      \
            NAME##_columns(form, stream, shape, table, ranges, codes, rows, target);               \
        } else if (few && (DTYPE) != KVT_DTYPE_FP32) {                                             \
            NAME##_lookup(form, stream, shape, table, ranges, codes, rows, target);                \
        } else {                                                                                   \
            NAME##_rows(form, stream, shape, table, ranges, codes, rows, target);                  \
        }                                                                                          \
        return;                                                                                    \
    }

#define WIDE_ONE_DTYPE(NAME, DTYPE)                                                                \
    WIDE_ONE_FORM(NAME, DTYPE, GROUP_LEVEL_TABLE, false)                                           \
    WIDE_ONE_FORM(NAME, DTYPE, GROUP_LEVEL_FINE6, false)                                           \
    WIDE_ONE_FORM(NAME, DTYPE, GROUP_LEVEL_FINE8, false)                                           \
    WIDE_ONE_FORM(NAME, DTYPE, GROUP_LEVEL_CODE16, false)                                          \
    WIDE_ONE_FORM(NAME, DTYPE, GROUP_LEVEL_CODE256, false)                                         \
    WIDE_ONE_FORM(NAME, DTYPE, GROUP_LEVEL_CODE16, true)                                           \
    WIDE_ONE_FORM(NAME, DTYPE, GROUP_LEVEL_CODE256, true)

#define WIDE_FOR_FORMS(NAME)                                                                       \
    WIDE_ONE_DTYPE(NAME, KVT_DTYPE_FP16)                                                           \
    WIDE_ONE_DTYPE(NAME, KVT_DTYPE_BF16)                                                           \
    WIDE_ONE_DTYPE(NAME, KVT_DTYPE_FP32)

#define WIDE_NARROW_PLAIN(a, b)  wide_narrow(form, a, b)
#define WIDE_NARROW_NATIVE(a, b) wide_narrow_native(a, b)

WIDE_BODY(wide_plain, CODECS_TARGET_AVX512, WIDE_NARROW_PLAIN)

#undef WIDE_FOR_FORMS
#define WIDE_FOR_FORMS(NAME) WIDE_ONE_DTYPE(NAME, KVT_DTYPE_BF16)

WIDE_BODY(wide_native, WIDE_BF16, WIDE_NARROW_NATIVE)

void group_avx512_value(const group_shape *shape, const group_levels *levels,
                        const group_ranges *ranges, const uint8_t *codes, uint64_t rows,
                        void *target)
{
    const bool flat = shape->unit % shape->group == 0 && rows * shape->width % 64 == 0;
    if (shape->columns ? shape->width % 64 != 0 : !flat) {
        group_scalar_value(shape, levels, ranges, codes, rows, target);
        return;
    }
    wide_table table;
    wide_table_fill(levels, &table);
    const wide_form form = {shape->dtype, levels->kind, levels->half_steps, false};
    const bool stream = levels->stream && (uintptr_t)target % 64 == 0;
    if (shape->dtype == KVT_DTYPE_BF16 && __builtin_cpu_supports("avx512bf16")) {
        wide_native_all(form, stream, shape, &table, ranges, codes, rows, target);
    } else {
        wide_plain_all(form, stream, shape, &table, ranges, codes, rows, target);
    }
}

#endif
