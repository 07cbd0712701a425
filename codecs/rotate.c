/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rotate.c - codec 7 on a matrix: the layout of its bytes, the runs of equal groups, and the groups
 * that stay raw. See rotate.h. Re-entrant.
 */
#include "rotate.h"

#include "codecs/kernels/rotate_kernel.h"

#include <assert.h>
#include <string.h>

/* How the rows of a matrix are cut. */
typedef struct rotate_cut {
    uint64_t vectors;       /* heads or rows */
    uint64_t vector_length; /* elements of one */
    uint64_t vector_groups; /* groups of one */
    uint64_t groups;        /* of the matrix */
    uint64_t scale_bytes;   /* of the matrix */
    uint64_t code_bytes;    /* of the matrix */
    uint32_t tail_length;   /* of a vector's last group */
    uint32_t element_bytes;
} rotate_cut;

static rotate_cut rotate_cut_of(const rotate_shape *shape, rotate_settings settings)
{
    rotate_cut cut;
    const bool row = settings.span == ROTATE_SPAN_ROW;
    cut.vectors = row ? shape->tokens : (uint64_t)shape->tokens * shape->kv_heads;
    cut.vector_length = row ? (uint64_t)shape->kv_heads * shape->head_dim : shape->head_dim;
    cut.vector_groups = (cut.vector_length + ROTATE_GROUP_MAX - 1) / ROTATE_GROUP_MAX;
    cut.groups = cut.vectors * cut.vector_groups;
    cut.scale_bytes = cut.groups * sizeof(uint16_t);
    cut.code_bytes = cut.vectors * (cut.vector_length / 8) * settings.bits;
    cut.tail_length = (uint32_t)(cut.vector_length - (cut.vector_groups - 1) * ROTATE_GROUP_MAX);
    cut.element_bytes = kvt_dtype_bytes(shape->dtype);
    return cut;
}

static bool rotate_cut_is_even(const rotate_cut *cut)
{
    return cut->vector_groups == 1 || cut->tail_length == ROTATE_GROUP_MAX;
}

kvt_status rotate_check(const rotate_shape *shape, rotate_settings settings)
{
    if (settings.bits != 3 && settings.bits != 4 && settings.bits != 8) return KVT_E_UNSUPPORTED;
    if (settings.span > ROTATE_SPAN_ROW) return KVT_E_UNSUPPORTED;
    if (shape->dtype != KVT_DTYPE_FP16 && shape->dtype != KVT_DTYPE_BF16 &&
        shape->dtype != KVT_DTYPE_FP32) {
        return KVT_E_UNSUPPORTED;
    }
    if (shape->kv_heads == 0 || shape->head_dim == 0 || shape->head_dim % 8 != 0) {
        return KVT_E_UNSUPPORTED;
    }
    const uint64_t row = (uint64_t)shape->kv_heads * shape->head_dim * sizeof(float);
    return shape->tokens <= (UINT64_C(1) << 46) / row ? KVT_OK : KVT_E_UNSUPPORTED;
}

uint64_t rotate_source_bytes(const rotate_shape *shape)
{
    return (uint64_t)shape->kv_heads * shape->head_dim * kvt_dtype_bytes(shape->dtype) *
           shape->tokens;
}

uint64_t rotate_stored_bytes(const rotate_shape *shape, rotate_settings settings)
{
    const rotate_cut cut = rotate_cut_of(shape, settings);
    return cut.scale_bytes + cut.code_bytes;
}

static rotate_encode_run *rotate_encoder(void)
{
#if defined(__x86_64__)
    switch (codecs_cpu_level()) {
    case CODECS_CPU_AVX512: return rotate_encode_run_avx512;
    case CODECS_CPU_AVX2: return rotate_encode_run_avx2;
    default: break;
    }
#endif
    return rotate_encode_run_scalar;
}

static rotate_decode_run *rotate_decoder(void)
{
#if defined(__x86_64__)
    switch (codecs_cpu_level()) {
    case CODECS_CPU_AVX512: return rotate_decode_run_avx512;
    case CODECS_CPU_AVX2: return rotate_decode_run_avx2;
    default: break;
    }
#endif
    return rotate_decode_run_scalar;
}

/* Elements of group `index` and the place of its first one in the matrix. */
static uint32_t rotate_group_at(const rotate_cut *cut, uint64_t index, uint64_t *first_out)
{
    const uint64_t vector = index / cut->vector_groups;
    const uint64_t group = index % cut->vector_groups;
    *first_out = vector * cut->vector_length + group * ROTATE_GROUP_MAX;
    return group + 1 == cut->vector_groups ? cut->tail_length : (uint32_t)ROTATE_GROUP_MAX;
}

static uint16_t rotate_scale_at(const uint8_t *scales, uint64_t index)
{
    uint16_t scale;
    memcpy(&scale, scales + index * sizeof scale, sizeof scale);
    return scale;
}

/* Encodes every group; returns how many are raw. */
static uint64_t rotate_encode_groups(const rotate_cut *cut, rotate_run run, const uint8_t *source,
                                     uint8_t *scales, uint8_t *codes)
{
    rotate_encode_run *encode = rotate_encoder();
    if (rotate_cut_is_even(cut)) {
        run.groups = cut->groups;
        run.length = cut->vector_groups == 1 ? cut->tail_length : (uint32_t)ROTATE_GROUP_MAX;
        return encode(&run, source, scales, codes);
    }
    rotate_run tail = run;
    uint64_t raw = 0;
    run.groups = cut->vector_groups - 1;
    run.length = ROTATE_GROUP_MAX;
    tail.groups = 1;
    tail.length = cut->tail_length;
    const uint64_t whole = run.groups * ROTATE_GROUP_MAX;
    for (uint64_t v = 0; v < cut->vectors; v++) {
        raw += encode(&run, source, scales, codes);
        scales += run.groups * sizeof(uint16_t);
        codes += whole / 8 * run.bits;
        raw += encode(&tail, source + whole * cut->element_bytes, scales, codes);
        scales += sizeof(uint16_t);
        codes += tail.length / 8 * run.bits;
        source += cut->vector_length * cut->element_bytes;
    }
    return raw;
}

/* Decodes a run of equal groups, which begins at byte `at` of the matrix. */
static void rotate_decode_equal(rotate_run run, uint32_t element_bytes, const uint8_t *scales,
                                const uint8_t *codes, const view_rows *target, uint64_t at)
{
    _Alignas(64) uint8_t tile[VIEW_TILE_BYTES];
    rotate_decode_run *decode = rotate_decoder();
    const uint64_t group_bytes = (uint64_t)run.length * element_bytes;
    const uint64_t piece = view_rows_piece(target, sizeof tile / group_bytes);
    for (uint64_t left = run.groups; left > 0; left -= run.groups) {
        run.groups = left < piece ? left : piece;
        uint8_t *room = view_rows_room(target, at, run.groups * group_bytes, tile);
        decode(&run, scales, codes, room);
        view_rows_keep(target, at, run.groups * group_bytes, room, tile);
        scales += run.groups * sizeof(uint16_t);
        codes += run.groups * (run.length / 8) * run.bits;
        at += run.groups * group_bytes;
    }
}

static void rotate_decode_groups(const rotate_cut *cut, rotate_run run, const uint8_t *scales,
                                 const uint8_t *codes, const view_rows *target)
{
    const uint32_t element = cut->element_bytes;
    if (rotate_cut_is_even(cut)) {
        run.groups = cut->groups;
        run.length = cut->vector_groups == 1 ? cut->tail_length : (uint32_t)ROTATE_GROUP_MAX;
        rotate_decode_equal(run, element, scales, codes, target, 0);
        return;
    }
    rotate_run tail = run;
    run.groups = cut->vector_groups - 1;
    run.length = ROTATE_GROUP_MAX;
    tail.groups = 1;
    tail.length = cut->tail_length;
    const uint64_t whole = run.groups * ROTATE_GROUP_MAX;
    for (uint64_t v = 0; v < cut->vectors; v++) {
        const uint64_t at = v * cut->vector_length * element;
        rotate_decode_equal(run, element, scales, codes, target, at);
        scales += run.groups * sizeof(uint16_t);
        codes += whole / 8 * run.bits;
        rotate_decode_equal(tail, element, scales, codes, target, at + whole * element);
        scales += sizeof(uint16_t);
        codes += tail.length / 8 * run.bits;
    }
}

kvt_status rotate_encode(const rotate_shape *shape, rotate_settings settings, const void *source,
                         void *target, uint64_t capacity, uint64_t *written_out)
{
    const rotate_cut cut = rotate_cut_of(shape, settings);
    const rotate_run run = {.bits = settings.bits, .dtype = shape->dtype};
    const uint64_t source_bytes = rotate_source_bytes(shape);
    const uint8_t *bytes = source;
    uint8_t *scales = target;
    assert(rotate_check(shape, settings) == KVT_OK);
    *written_out = 0;
    if (source_bytes == 0) return KVT_OK;
    uint64_t used = cut.scale_bytes + cut.code_bytes;
    if (used >= source_bytes) return KVT_RAW;
    if (used > capacity) return KVT_E_SPACE;
    uint64_t raw = rotate_encode_groups(&cut, run, bytes, scales, scales + cut.scale_bytes);
    bool fits = true;
    for (uint64_t g = 0; raw > 0; g++) {
        uint64_t first;
        const uint32_t length = rotate_group_at(&cut, g, &first);
        if (rotate_scale_at(scales, g) != ROTATE_SCALE_RAW) continue;
        const uint64_t count = (uint64_t)length * cut.element_bytes;
        fits = fits && count <= capacity - used;
        if (fits) memcpy(scales + used, bytes + first * cut.element_bytes, count);
        used += count;
        if (used >= source_bytes) return KVT_RAW;
        raw--;
    }
    if (!fits) return KVT_E_SPACE;
    *written_out = used;
    return KVT_OK;
}

kvt_status rotate_decode(const rotate_shape *shape, rotate_settings settings, const void *source,
                         uint64_t source_bytes, const view_rows *target)
{
    const rotate_cut cut = rotate_cut_of(shape, settings);
    const rotate_run run = {.bits = settings.bits, .dtype = shape->dtype};
    const uint8_t *scales = source;
    const uint64_t fixed = cut.scale_bytes + cut.code_bytes;
    uint64_t raw_bytes = 0;
    uint64_t first;
    assert(rotate_check(shape, settings) == KVT_OK);
    if (source_bytes < fixed) return KVT_E_CORRUPT;
    for (uint64_t g = 0; g < cut.groups; g++) {
        const uint16_t scale = rotate_scale_at(scales, g);
        if (scale < ROTATE_SCALE_RAW) continue;
        if (scale > ROTATE_SCALE_RAW) return KVT_E_CORRUPT;
        raw_bytes += (uint64_t)rotate_group_at(&cut, g, &first) * cut.element_bytes;
    }
    if (source_bytes - fixed != raw_bytes) return KVT_E_CORRUPT;
    if (cut.groups == 0) return KVT_OK;
    rotate_decode_groups(&cut, run, scales, scales + cut.scale_bytes, target);
    const uint8_t *raw = scales + fixed;
    for (uint64_t g = 0; raw_bytes > 0; g++) {
        if (rotate_scale_at(scales, g) != ROTATE_SCALE_RAW) continue;
        const uint64_t count = (uint64_t)rotate_group_at(&cut, g, &first) * cut.element_bytes;
        view_rows_scatter(target, first * cut.element_bytes, count, raw);
        raw += count;
        raw_bytes -= count;
    }
    return KVT_OK;
}
