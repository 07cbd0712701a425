/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kivi_group_avx512_body.h - the loops of kivi_group_avx512_value.c, which includes this once for
 * processors that convert to bf16 and once for the others. Before: BODY(name), BODY_TARGET,
 * BODY_SHORTEN(form, a, b) and BODY_DTYPES(form). Has no include guard on purpose.
 */
#define BODY_INLINE static inline __attribute__((always_inline)) BODY_TARGET

/* A chunk of values. */
BODY_INLINE void BODY(store)(const avx512_form form, bool stream, uint8_t *target,
                             const __m512 v[4])
{
    if (form.dtype == KVT_DTYPE_FP32) {
        for (unsigned k = 0; k < 4; k++) {
            avx512_put(stream, target + 64 * k, _mm512_castps_si512(v[k]));
        }
        return;
    }
    avx512_put(stream, target, BODY_SHORTEN(form, v[0], v[1]));
    avx512_put(stream, target + 64, BODY_SHORTEN(form, v[2], v[3]));
}

/* `rows` chunks below each other, along columns, the first of them to `to`. */
BODY_INLINE void BODY(columns)(const avx512_form form, const avx512_batch *batch, uint64_t first,
                               uint64_t column, uint64_t rows, uint8_t *to)
{
    const uint8_t *at[KVT_PLANES_MAX];
    const __m512 unit = _mm512_set1_ps(batch->table.unit);
    __m512 scale[4];
    __m512 minimum[4];
    for (unsigned k = 0; k < 4; k++) {
        scale[k] = _mm512_loadu_ps(batch->ranges.scale + 64 * column + 16 * k);
        scale[k] = _mm512_mul_ps(scale[k], unit);
        minimum[k] = _mm512_loadu_ps(batch->ranges.minimum + 64 * column + 16 * k);
    }
#pragma GCC unroll 1
    for (uint64_t row = 0; row < rows; row++) {
        const uint64_t chunk = first + row * batch->chunks;
        __m512 v[4];
        avx512_find(form, batch, chunk, at);
        avx512_levels(form.stored, &batch->table, at, v);
        for (unsigned k = 0; k < 4; k++) {
            v[k] = avx512_value(form, v[k], scale[k], minimum[k]);
        }
        BODY(store)(form, batch->stream, to, v);
        to += batch->row_stride;
    }
}

/* The same along rows. `two_groups`: a chunk is two groups. */
BODY_INLINE void BODY(rows)(const avx512_form form, bool two_groups, const avx512_batch *batch,
                            uint64_t first, uint64_t rows, uint8_t *to)
{
    const uint8_t *at[KVT_PLANES_MAX];
    const __m512 unit = _mm512_set1_ps(batch->table.unit);
#pragma GCC unroll 1
    for (uint64_t row = 0; row < rows; row++) {
        const uint64_t chunk = first + row * batch->chunks;
        const uint64_t group = chunk * GROUP_CHUNK >> batch->log_group;
        __m512 v[4];
        avx512_find(form, batch, chunk, at);
        avx512_levels(form.stored, &batch->table, at, v);
        for (unsigned k = 0; k < 4; k++) {
            const uint64_t g = two_groups ? group + k / 2 : group;
            __m512 scale = _mm512_mul_ps(_mm512_set1_ps(batch->ranges.scale[g]), unit);
            v[k] = avx512_value(form, v[k], scale, _mm512_set1_ps(batch->ranges.minimum[g]));
        }
        BODY(store)(form, batch->stream, to, v);
        to += batch->row_stride;
    }
}

/* The same for 16-bit elements of at most 16 levels: a table of elements per group. */
BODY_INLINE void BODY(lookup)(const avx512_form form, bool two_groups, const avx512_batch *batch,
                              uint64_t first, uint64_t rows, uint8_t *to)
{
    const uint8_t *at[KVT_PLANES_MAX];
    const __m512 levels = batch->table.levels;
#pragma GCC unroll 1
    for (uint64_t row = 0; row < rows; row++) {
        const uint64_t chunk = first + row * batch->chunks;
        const uint64_t group = chunk * GROUP_CHUNK >> batch->log_group;
        __m512i elements[2];
        __m512i word[2];
        avx512_find(form, batch, chunk, at);
        avx512_words(form.stored, &batch->table, at, word);
        for (unsigned k = 0; k < 2; k++) {
            const uint64_t g = two_groups ? group + k : group;
            __m512 v = avx512_value(form, levels, _mm512_set1_ps(batch->ranges.scale[g]),
                                    _mm512_set1_ps(batch->ranges.minimum[g]));
            elements[k] = BODY_SHORTEN(form, v, v);
            avx512_put(batch->stream, to + 64 * k, _mm512_permutexvar_epi16(word[k], elements[k]));
        }
        to += batch->row_stride;
    }
}

/* Blocks of rows, from left to right. */
BODY_INLINE void BODY(walk)(const avx512_form form, const avx512_batch *batch_in)
{
    const avx512_batch batch = *batch_in; /* the compiler sees that no store changes it */
    for (uint64_t row = 0; row < batch.rows; row += GROUP_BATCH_ROWS) {
        const uint64_t left = batch.rows - row;
        const uint64_t rows = left < GROUP_BATCH_ROWS ? left : GROUP_BATCH_ROWS;
        uint8_t *head = batch.target + row * batch.row_stride, *to = head;
        for (uint64_t c = 0, in_head = 0; c < batch.chunks; c++) {
            const uint64_t first = row * batch.chunks + c;
            if (batch.columns) {
                BODY(columns)(form, &batch, first, c, rows, to);
            } else if (!avx512_is_few(form.stored) || form.dtype == KVT_DTYPE_FP32) {
                if (batch.log_group == 5)
                    BODY(rows)(form, true, &batch, first, rows, to);
                else
                    BODY(rows)(form, false, &batch, first, rows, to);
            } else {
                if (batch.log_group == 5)
                    BODY(lookup)(form, true, &batch, first, rows, to);
                else
                    BODY(lookup)(form, false, &batch, first, rows, to);
            }
            to += batch.chunk_bytes;
            if (++in_head != batch.head_chunks) continue;
            in_head = 0;
            to = head += batch.head_stride;
        }
    }
}

/* One body for every form, so that the compiler sees constants. */
#define BODY_FORM(STORED, DTYPE, HALF)                                                             \
    if (asked.stored == (STORED) && asked.dtype == (DTYPE) && asked.half_steps == (HALF)) {        \
        BODY(walk)((avx512_form){(STORED), (DTYPE), (HALF)}, batch);                               \
        return;                                                                                    \
    }
#define BODY_DTYPE(DTYPE)                                                                          \
    BODY_FORM(AVX512_BITS2, DTYPE, false)                                                          \
    BODY_FORM(AVX512_BITS4, DTYPE, false)                                                          \
    BODY_FORM(AVX512_BITS8, DTYPE, false)                                                          \
    BODY_FORM(AVX512_BITS2, DTYPE, true)                                                           \
    BODY_FORM(AVX512_BITS4, DTYPE, true)                                                           \
    BODY_FORM(AVX512_BITS8, DTYPE, true)                                                           \
    BODY_FORM(AVX512_NESTED2, DTYPE, false)                                                        \
    BODY_FORM(AVX512_NESTED3, DTYPE, false)                                                        \
    BODY_FORM(AVX512_NESTED4, DTYPE, false)                                                        \
    BODY_FORM(AVX512_NESTED5, DTYPE, false)

static BODY_TARGET __attribute__((noinline)) void BODY(batch)(const avx512_form asked,
                                                              const avx512_batch *batch)
{
    BODY_DTYPES(BODY_DTYPE)
}

#undef BODY_INLINE
#undef BODY
#undef BODY_TARGET
#undef BODY_SHORTEN
#undef BODY_DTYPES
#undef BODY_FORM
#undef BODY_DTYPE
