/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kivi_group_avx512_value.c - stored planes to values with AVX-512, in one pass: codes are put
 * together, turned into levels, multiplied, rounded and written without touching memory between,
 * so that reading ahead and streaming stores overlap. A batch is walked in strips of 64 columns
 * over its rows: minima and scales of a strip stay in registers, and every row is a stream of its
 * own for the memory. One fused multiplication and addition gives the value (the product is exact,
 * so that fusing changes nothing). Along rows, elements of at most 16 levels are looked up in a
 * table of finished elements, made once per group. The same bytes as the scalar kernels.
 * Re-entrant.
 */
#include "kivi_group_scalar.h"

#if defined(__x86_64__)

#include <immintrin.h>

#ifndef __OPTIMIZE__
/* Without optimisation some intrinsics are macros, which write full masks as -1. */
#pragma GCC diagnostic ignored "-Wsign-conversion"
#endif

#define AVX512_INLINE static inline __attribute__((always_inline)) CODECS_TARGET_AVX512

enum {
    AVX512_ROUND = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC,
    AVX512_AHEAD = 8192 /* elements whose stored bytes are asked for ahead, at least */
};

/* How codes are stored: one plane of so many bits, or that many nested planes. */
typedef enum avx512_stored {
    AVX512_BITS2,
    AVX512_BITS4,
    AVX512_BITS8,
    AVX512_NESTED2,
    AVX512_NESTED3,
    AVX512_NESTED4,
    AVX512_NESTED5
} avx512_stored;

/* The parameters that the body is compiled for. */
typedef struct avx512_form {
    avx512_stored stored;
    uint8_t dtype;
    bool half_steps;
} avx512_form;

/* Levels of all codes, and how planes of 2 bits are spread. Codes are looked up with bits of their
 * neighbours above them, so that the levels repeat. */
typedef struct avx512_table {
    __m512 levels;                /* AVX512_BITS2 to 4, AVX512_NESTED2 and 3 */
    __m512i fine6[2];             /* lower and upper bytes of levels in 1/64 */
    __m512i turn[KVT_PLANES_MAX]; /* lanes of 32 bits are turned, then masked */
    __m512i mask[KVT_PLANES_MAX]; /* the bits of a plane in every byte */
    __m512i for_words;            /* the order of bytes that avx512_float_words asks for */
    float unit;                   /* of a level */
} avx512_table;

static const uint8_t avx512_nested[KVT_PLANES_MAX] = {2, 1, 1, 2, 2};

AVX512_INLINE bool avx512_is_few(avx512_stored stored)
{
    return stored != AVX512_BITS8 && stored != AVX512_NESTED4 && stored != AVX512_NESTED5;
}

AVX512_INLINE uint32_t avx512_planes(avx512_stored stored)
{
    return stored < AVX512_NESTED2 ? 1 : (uint32_t)(stored - AVX512_NESTED2) + 2;
}

/* Bits of plane p. */
AVX512_INLINE uint32_t avx512_bits(avx512_stored stored, uint32_t p)
{
    if (stored == AVX512_BITS4) return 4;
    if (stored == AVX512_BITS8) return 8;
    return avx512_nested[p];
}

static CODECS_TARGET_AVX512 void avx512_table_fill(const group_levels *levels, avx512_stored stored,
                                                   const group_plane *planes, uint32_t plane_count,
                                                   avx512_table *table)
{
    const __m512i quarters = _mm512_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2, 4, 4, 4, 4, 6, 6, 6, 6);
    table->levels = _mm512_loadu_ps(levels->table);
    if (stored == AVX512_BITS2)
        table->levels = _mm512_shuffle_f32x4(table->levels, table->levels, 0);
    table->fine6[0] = _mm512_loadu_si512(levels->fine6[0]);
    table->fine6[1] = _mm512_loadu_si512(levels->fine6[1]);
    table->unit = stored == AVX512_NESTED4   ? 1.0f / 64.0f
                  : stored == AVX512_NESTED5 ? 1.0f / 32.0f
                                             : 1;
    for (uint32_t p = 0; p < plane_count; p++) {
        table->turn[p] = _mm512_and_si512(
            _mm512_sub_epi32(_mm512_set1_epi32(planes[p].shift), quarters), _mm512_set1_epi32(31));
        table->mask[p] = _mm512_set1_epi8((char)(((1u << planes[p].bits) - 1u) << planes[p].shift));
    }
    table->for_words =
        _mm512_setr_epi32(0x11011000, 0x13031202, 0x31213020, 0x33233222, 0x15051404, 0x17071606,
                          0x35253424, 0x37273626, 0x19091808, 0x1b0b1a0a, 0x39293828, 0x3b2b3a2a,
                          0x1d0d1c0c, 0x1f0f1e0e, 0x3d2d3c2c, 0x3f2f3e2e);
}

/* ---- codes ---- */

/* 64 codes of nested planes, one in a byte. at: the chunk in every plane. */
AVX512_INLINE __m512i avx512_nested_codes(uint32_t planes, const avx512_table *table,
                                          const uint8_t *const at[KVT_PLANES_MAX])
{
    __m512i code = _mm512_setzero_si512();
    for (uint32_t p = 0; p < planes; p++) {
        if (avx512_nested[p] == 1) {
            uint64_t bits;
            memcpy(&bits, at[p], sizeof bits);
            /* The bit is not there yet: adding sets it. */
            code = _mm512_mask_add_epi8(code, bits, code, table->mask[p]);
            continue;
        }
        __m512i two = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)at[p]));
        /* code | (turned & mask) */
        code = _mm512_ternarylogic_epi32(code, _mm512_rolv_epi32(two, table->turn[p]),
                                         table->mask[p], 0xf8);
    }
    return code;
}

AVX512_INLINE __m512i avx512_zext_16(const uint8_t *at)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)at));
}

/* Byte 4 i + j of the result is byte 16 j + i. */
AVX512_INLINE __m512i avx512_transpose(__m512i bytes)
{
    const __m512i from =
        _mm512_setr_epi32(0x30201000, 0x31211101, 0x32221202, 0x33231303, 0x34241404, 0x35251505,
                          0x36261606, 0x37271707, 0x38281808, 0x39291909, 0x3a2a1a0a, 0x3b2b1b0b,
                          0x3c2c1c0c, 0x3d2d1d0d, 0x3e2e1e0e, 0x3f2f1f0f);
    return _mm512_permutexvar_epi8(from, bytes);
}

/* Numbers of 16 bits from their lower and upper bytes, as floats. The bytes are in such an order
 * that unpacking them leaves numbers i and 16 + i (32 + i and 48 + i) in lane i of 32 bits. */
AVX512_INLINE void avx512_float_words(__m512i low, __m512i high, __m512 level[4])
{
    const __m512i lower = _mm512_set1_epi32(0xffff);
    const __m512i a = _mm512_unpacklo_epi8(low, high);
    const __m512i b = _mm512_unpackhi_epi8(low, high);
    level[0] = _mm512_cvtepi32_ps(_mm512_and_si512(a, lower));
    level[1] = _mm512_cvtepi32_ps(_mm512_srli_epi32(a, 16));
    level[2] = _mm512_cvtepi32_ps(_mm512_and_si512(b, lower));
    level[3] = _mm512_cvtepi32_ps(_mm512_srli_epi32(b, 16));
}

/* The levels of a chunk of 64, in units of table->unit. */
AVX512_INLINE void avx512_levels(avx512_stored stored, const avx512_table *table,
                                 const uint8_t *const at[KVT_PLANES_MAX], __m512 level[4])
{
    if (stored == AVX512_BITS8) {
        for (unsigned k = 0; k < 4; k++) {
            level[k] = _mm512_cvtepi32_ps(avx512_zext_16(at[0] + 16 * k));
        }
    } else if (stored == AVX512_BITS4) {
        for (unsigned k = 0; k < 2; k++) {
            __m512i w = avx512_zext_16(at[0] + 16 * k);
            level[k] = _mm512_permutexvar_ps(w, table->levels);
            level[k + 2] = _mm512_permutexvar_ps(_mm512_srli_epi32(w, 4), table->levels);
        }
    } else if (stored == AVX512_BITS2) {
        __m512i w = avx512_zext_16(at[0]);
        for (unsigned k = 0; k < 4; k++) {
            level[k] = _mm512_permutexvar_ps(_mm512_srli_epi32(w, 2 * k), table->levels);
        }
    } else if (stored == AVX512_NESTED4) {
        __m512i c = _mm512_permutexvar_epi8(table->for_words, avx512_nested_codes(4, table, at));
        avx512_float_words(_mm512_permutexvar_epi8(c, table->fine6[0]),
                           _mm512_permutexvar_epi8(c, table->fine6[1]), level);
    } else if (stored == AVX512_NESTED5) {
        /* group_fine_level(c) = 2 (c + min(max(c - 15, 0), 225)). */
        const __m512i lower = _mm512_set1_epi32(0xffff);
        const __m512i ones = _mm512_set1_epi8(1);
        __m512i c = _mm512_permutexvar_epi8(table->for_words, avx512_nested_codes(5, table, at));
        __m512i d =
            _mm512_min_epu8(_mm512_subs_epu8(c, _mm512_set1_epi8(15)), _mm512_set1_epi8((char)225));
        __m512i a = _mm512_maddubs_epi16(_mm512_unpacklo_epi8(c, d), ones);
        __m512i b = _mm512_maddubs_epi16(_mm512_unpackhi_epi8(c, d), ones);
        level[0] = _mm512_cvtepi32_ps(_mm512_and_si512(a, lower));
        level[1] = _mm512_cvtepi32_ps(_mm512_srli_epi32(a, 16));
        level[2] = _mm512_cvtepi32_ps(_mm512_and_si512(b, lower));
        level[3] = _mm512_cvtepi32_ps(_mm512_srli_epi32(b, 16));
    } else {
        __m512i w = avx512_transpose(avx512_nested_codes(avx512_planes(stored), table, at));
        for (unsigned k = 0; k < 4; k++) {
            level[k] = _mm512_permutexvar_ps(_mm512_srli_epi32(w, 8 * k), table->levels);
        }
    }
}

/* Codes of a chunk of 64 in the lower 4 bits of two vectors of words; of 2 bits, the bits above
 * are their neighbours'. */
AVX512_INLINE void avx512_words(avx512_stored stored, const avx512_table *table,
                                const uint8_t *const at[KVT_PLANES_MAX], __m512i word[2])
{
    if (stored == AVX512_BITS4) {
        word[0] = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(const void *)at[0]));
        word[1] = _mm512_srli_epi16(word[0], 4);
    } else if (stored == AVX512_BITS2) {
        const __m512i from =
            _mm512_set_epi64((long long)0x800f800e800d800c, (long long)0x800b800a80098008,
                             (long long)0x8007800680058004, (long long)0x8003800280018000,
                             (long long)0x800f800e800d800c, (long long)0x800b800a80098008,
                             (long long)0x8007800680058004, (long long)0x8003800280018000);
        const __m512i low = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(2), 1);
        __m512i two = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)at[0]));
        two = _mm512_shuffle_epi8(two, from);
        word[0] = _mm512_srlv_epi16(two, low);
        word[1] = _mm512_srlv_epi16(two, _mm512_add_epi16(low, _mm512_set1_epi16(4)));
    } else {
        /* Byte 2 i of the words is code i, byte 2 i + 1 code 32 + i. */
        const __m512i from = _mm512_setr_epi32(0x21012000, 0x23032202, 0x25052404, 0x27072606,
                                               0x29092808, 0x2b0b2a0a, 0x2d0d2c0c, 0x2f0f2e0e,
                                               0x31113010, 0x33133212, 0x35153414, 0x37173616,
                                               0x39193818, 0x3b1b3a1a, 0x3d1d3c1c, 0x3f1f3e1e);
        word[0] =
            _mm512_permutexvar_epi8(from, avx512_nested_codes(avx512_planes(stored), table, at));
        word[1] = _mm512_srli_epi16(word[0], 8);
    }
}

/* ---- values ---- */

AVX512_INLINE __m512 avx512_value(const avx512_form form, __m512 level, __m512 scale,
                                  __m512 minimum)
{
    if (form.half_steps) {
        __m512 product = _mm512_mul_ps(level, scale);
        product = _mm512_cvtph_ps(_mm512_cvtps_ph(product, AVX512_ROUND));
        return _mm512_cvtph_ps(_mm512_cvtps_ph(_mm512_add_ps(product, minimum), AVX512_ROUND));
    }
    return _mm512_fmadd_ps(level, scale, minimum);
}

/* 32 values as bf16 or fp16. Values are finite, or infinite in fp16. */
AVX512_INLINE __m512i avx512_shorten(const avx512_form form, __m512 a, __m512 b)
{
    if (form.dtype == KVT_DTYPE_FP16) {
        return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtps_ph(a, AVX512_ROUND)),
                                  _mm512_cvtps_ph(b, AVX512_ROUND), 1);
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

AVX512_INLINE void avx512_put(bool stream, uint8_t *target, __m512i bytes)
{
    if (stream) {
        _mm512_stream_si512((__m512i *)(void *)target, bytes);
    } else {
        _mm512_storeu_si512(target, bytes);
    }
}

/* ---- walking ---- */

/* Rows of whole chunks, and where they are. */
typedef struct avx512_batch {
    avx512_table table;
    group_ranges ranges;
    bool columns;
    unsigned log_group;
    uint64_t rows;
    uint64_t chunks;      /* of a row */
    uint64_t ahead;       /* chunks */
    uint64_t chunk_bytes; /* of values */
    uint64_t row_stride;
    uint64_t head_chunks; /* of a run in a row */
    uint64_t head_stride;
    bool stream;
    uint8_t *target;
    const uint8_t *planes[KVT_PLANES_MAX];
} avx512_batch;

/* Where chunk `chunk` lies in every plane; asks for what is read later. */
AVX512_INLINE void avx512_find(const avx512_form form, const avx512_batch *batch, uint64_t chunk,
                               const uint8_t *at[KVT_PLANES_MAX])
{
    for (uint32_t p = 0; p < avx512_planes(form.stored); p++) {
        const uint32_t bytes = 8 * avx512_bits(form.stored, p);
        at[p] = batch->planes[p] + chunk * bytes;
        /* Once per line, into the second cache a block ahead and into the first a line ahead, where
         * a miss would wait among the streaming stores. An address past the end does no harm. */
        if (chunk % (64 / bytes) == 0) {
            _mm_prefetch((const char *)at[p] + 64, _MM_HINT_T0);
            _mm_prefetch((const char *)at[p] + batch->ahead * bytes, _MM_HINT_T1);
        }
    }
}

#define BODY(name)               avx512_plain_##name
#define BODY_TARGET              CODECS_TARGET_AVX512
#define BODY_SHORTEN(form, a, b) avx512_shorten(form, a, b)
#define BODY_DTYPES(form)        form(KVT_DTYPE_FP16) form(KVT_DTYPE_BF16) form(KVT_DTYPE_FP32)
#include "kivi_group_avx512_body.h"

/* Processors that convert to bf16. Numbers that it would take for 0 do not occur: the smallest
 * product is 2^-24 * 2^-24. */
#define BODY(name) avx512_native_##name
#define BODY_TARGET                                                                                \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx512bf16,"  \
                          "avx2,fma,f16c,bmi2")))
#define BODY_SHORTEN(form, a, b) ((__m512i)_mm512_cvtne2ps_pbh(b, a))
#define BODY_DTYPES(form)        form(KVT_DTYPE_BF16)
#include "kivi_group_avx512_body.h"

static avx512_stored avx512_find_stored(const group_plane *planes, uint32_t plane_count)
{
    if (plane_count > 1) return (avx512_stored)(AVX512_NESTED2 + plane_count - 2);
    return planes[0].bits == 2 ? AVX512_BITS2 : planes[0].bits == 4 ? AVX512_BITS4 : AVX512_BITS8;
}

bool group_avx512_decode(const group_shape *shape, const group_levels *levels,
                         const group_ranges *ranges, const group_plane *planes,
                         uint32_t plane_count, uint64_t offset, uint64_t rows,
                         const group_target *target)
{
    const uint64_t chunk_bytes = GROUP_CHUNK * kvt_dtype_bytes(shape->dtype);
    const uint64_t lines = (uintptr_t)target->start | target->row_stride | target->head_stride;
    const avx512_form form = {avx512_find_stored(planes, plane_count), shape->dtype,
                              levels->half_steps};
    avx512_batch batch = {.ranges = *ranges,
                          .columns = shape->columns,
                          .log_group = (unsigned)__builtin_ctz(shape->group),
                          .rows = rows,
                          .chunks = shape->width / GROUP_CHUNK,
                          .chunk_bytes = chunk_bytes,
                          .row_stride = target->row_stride,
                          .head_chunks = target->head_bytes / chunk_bytes,
                          .head_stride = target->head_stride,
                          .stream = levels->stream && lines % 64 == 0,
                          .target = target->start};
    if (shape->width % 64 != 0 || target->head_bytes % chunk_bytes != 0) return false;
    if (!shape->columns && shape->unit % shape->group != 0) return false;
    const uint64_t block = GROUP_BATCH_ROWS * shape->width;
    batch.ahead = (block > AVX512_AHEAD ? block : AVX512_AHEAD) / GROUP_CHUNK;
    for (uint32_t p = 0; p < plane_count; p++) {
        batch.planes[p] = planes[p].data + offset / 8 * planes[p].bits;
    }
    avx512_table_fill(levels, form.stored, planes, plane_count, &batch.table);
    if (shape->dtype == KVT_DTYPE_BF16 && __builtin_cpu_supports("avx512bf16")) {
        avx512_native_batch(form, &batch);
    } else {
        avx512_plain_batch(form, &batch);
    }
    return true;
}

#endif
