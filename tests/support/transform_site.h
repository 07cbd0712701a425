/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transform_site.h - segments for the tests of codec 8: tokens drawn as a basis says that they are,
 * with keys turned to their positions, and room to code them. Single thread.
 */
#ifndef SUPPORT_TRANSFORM_SITE_H
#define SUPPORT_TRANSFORM_SITE_H

#include <kvterrace/rope.h>
#include <kvterrace/view.h>

#include "basis_support.h"
#include "codecs/element.h"
#include "codecs/kernels/cpu.h"
#include "codecs/keys_rerotate.h"
#include "codecs/transform.h"
#include "codecs_support.h"

/* A segment with what it holds, in fp32 and in its dtype, and rooms. */
typedef struct transform_site {
    transform_segment segment;
    uint32_t matrix_count;
    uint64_t matrix_bytes;
    void *matrices[TRANSFORM_MATRICES_MAX];
    guarded decoded[TRANSFORM_MATRICES_MAX];
    guarded stored;
    uint64_t written;
    void *scratch;
} transform_site;

/* Sum of twelve: close to a normal deviate. */
static inline double site_normal(uint64_t *state)
{
    double sum = 0.0;
    for (int i = 0; i < 12; i++)
        sum += basis_made_random(state) * 0.5;
    return sum;
}

/* Turns the keys of one token from position 0 to another one, or back, in fp32. */
static inline void site_turn(const transform_basis *basis, float *row, uint32_t from, uint32_t to)
{
    const kvt_layout layout = {.layers = 1,
                               .kv_heads = (uint16_t)basis->shape.kv_heads,
                               .head_dim = (uint16_t)basis->shape.head_dim,
                               .dtype = KVT_DTYPE_FP32,
                               .tokens = 1};
    const kvt_rope rope = {.struct_size = sizeof rope,
                           .rotary_dim = (uint16_t)basis->shape.rotary_dim,
                           .pairing = basis->shape.pairing,
                           .frequencies = basis->frequencies};
    const uint32_t kept = 0;
    if (basis->shape.rotary_dim == 0) return;
    assert_ok(kvt_keys_rerotate(&layout, &rope, &kept, 1, from, to, row,
                                transform_row(&basis->shape) * sizeof *row));
}

static inline uint32_t site_first_matrix(const transform_segment *segment)
{
    const transform_shape *shape = &segment->basis->shape;
    uint32_t layer;
    transform_segment_matrices(shape, segment->index, &layer);
    return shape->span == TRANSFORM_SPAN_HEAD ? segment->index : layer * shape->sides;
}

/* The elements of one token of a segment, at position 0: means and drawn components. */
static inline void site_draw_token(const transform_site *site, uint64_t *state, float *elements)
{
    const transform_segment *segment = &site->segment;
    const transform_basis *basis = segment->basis;
    const uint32_t row = transform_row(&basis->shape);
    const uint64_t first = (uint64_t)site_first_matrix(segment) * row;
    const uint32_t count = site->matrix_count * row;
    const uint32_t width = transform_width(&basis->shape);
    for (uint32_t at = 0; at < count;) {
        const uint32_t span = (uint32_t)((first + at) / width);
        const uint32_t wide = transform_width_of(&basis->shape, span);
        const uint16_t *inverse = basis->inverse + transform_matrix_at(&basis->shape, span);
        for (uint32_t e = 0; e < wide; e++)
            elements[at + e] = basis->means[first + at + e];
        for (uint32_t c = 0; c < wide; c++) {
            const double spread = basis->spreads[(first + at + c) * TRANSFORM_BANDS] / 8.0;
            const double y = site_normal(state) * pow(2.0, spread);
            for (uint32_t e = 0; e < wide; e++)
                elements[at + e] +=
                    (float)(y * (double)half_bf16_to_float(inverse[(uint64_t)c * wide + e]));
        }
        at += wide;
    }
}

static inline transform_site site_make(transform_segment segment, uint64_t seed)
{
    const transform_shape *shape = &segment.basis->shape;
    const uint32_t row = transform_row(shape);
    const uint32_t element = kvt_dtype_bytes(segment.dtype);
    transform_site site = {.segment = segment};
    float *elements;
    uint64_t state = seed;
    site.matrix_count = transform_segment_matrices(shape, segment.index, NULL);
    site.matrix_bytes = (uint64_t)segment.tokens * row * element;
    elements = test_alloc((uint64_t)site.matrix_count * row * sizeof *elements);
    for (uint32_t m = 0; m < site.matrix_count; m++) {
        site.matrices[m] = test_alloc(site.matrix_bytes);
        assert_non_null(site.matrices[m]);
        site.decoded[m] = guarded_make(site.matrix_bytes);
    }
    for (uint32_t t = 0; t < segment.tokens; t++) {
        site_draw_token(&site, &state, elements);
        for (uint32_t m = 0; m < site.matrix_count; m++) {
            const bool key = (site_first_matrix(&segment) + m) % shape->sides == 0;
            float *line = elements + (uint64_t)m * row;
            if (key) site_turn(segment.basis, line, 0, segment.first_position + t);
            for (uint32_t e = 0; e < row; e++)
                codecs_element_store(site.matrices[m], (uint64_t)t * row + e, segment.dtype,
                                     line[e]);
        }
    }
    site.stored = guarded_make(transform_bound(&segment));
    site.scratch = test_aligned(64, transform_scratch_bytes(shape));
    return site;
}

static inline kvt_status site_encode(transform_site *site)
{
    const kvt_status status =
        transform_encode(&site->segment, (const void *const *)site->matrices, site->stored.data,
                         site->stored.bytes, site->scratch, &site->written);
    if (status == KVT_OK) guarded_check(&site->stored, site->stored.bytes);
    return status;
}

/* Decodes tokens from any bytes into the decoded matrices, from their start on. */
static inline kvt_status site_decode_from(transform_site *site, const void *source, uint64_t bytes,
                                          uint32_t first, uint32_t count)
{
    view_rows rows[TRANSFORM_MATRICES_MAX];
    const view_rows *targets[TRANSFORM_MATRICES_MAX];
    const uint64_t row_bytes = site->matrix_bytes / site->segment.tokens;
    for (uint32_t m = 0; m < site->matrix_count; m++) {
        rows[m] = view_rows_packed(site->decoded[m].data, count * row_bytes);
        targets[m] = &rows[m];
    }
    const kvt_status status =
        transform_decode(&site->segment, source, bytes, first, count, targets, site->scratch);
    for (uint32_t m = 0; m < site->matrix_count; m++)
        guarded_check(&site->decoded[m], site->decoded[m].bytes);
    return status;
}

static inline kvt_status site_decode(transform_site *site, uint32_t first, uint32_t count)
{
    return site_decode_from(site, site->stored.data, site->written, first, count);
}

/* One element of a matrix as it is, or as it was decoded. */
static inline float site_element(const transform_site *site, uint32_t m, uint64_t at, bool decoded)
{
    return codecs_element_load(decoded ? site->decoded[m].data : site->matrices[m], at,
                               site->segment.dtype);
}

/* The elements of one token, keys at position 0. */
static inline void site_token(const transform_site *site, uint32_t t, bool decoded, float *elements)
{
    const transform_shape *shape = &site->segment.basis->shape;
    const uint32_t row = transform_row(shape);
    for (uint32_t m = 0; m < site->matrix_count; m++) {
        for (uint32_t e = 0; e < row; e++)
            elements[m * row + e] = site_element(site, m, (uint64_t)t * row + e, decoded);
        if ((site_first_matrix(&site->segment) + m) % shape->sides == 0)
            site_turn(site->segment.basis, elements + (uint64_t)m * row,
                      site->segment.first_position + t, 0);
    }
}

#endif
