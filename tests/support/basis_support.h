/* SPDX-License-Identifier: Apache-2.0 */
/*
 * basis_support.h - a basis for tests: of each span a reflection, whose inverse is known, between a
 * scale for each component, with spreads that fall and tables of two-sided geometric codes. Single
 * thread.
 */
#ifndef SUPPORT_BASIS_SUPPORT_H
#define SUPPORT_BASIS_SUPPORT_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "test_memory.h"

#include "base/half.h"
#include "basis/basis_file.h"

/* The parts of a basis that can be changed before it is written, and the object. */
typedef struct basis_made {
    transform_basis basis; /* points at the parts below */
    basis_origin origin;
    double *frequencies;
    float *means;
    uint16_t *forward;
    uint16_t *inverse;
    int16_t *spreads;
    uint8_t *object; /* of bytes bytes, aligned to 64 */
    uint64_t bytes;
} basis_made;

static inline double basis_made_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(*state >> 11) * 0x1p-52 - 1.0;
}

static inline void basis_made_span(basis_made *made, uint32_t span, uint64_t *state)
{
    const transform_shape *shape = &made->basis.shape;
    const uint32_t width = transform_width_of(shape, span);
    const uint64_t first = (uint64_t)span * transform_width(shape);
    uint16_t *forward = made->forward + transform_matrix_at(shape, span);
    uint16_t *inverse = made->inverse + transform_matrix_at(shape, span);
    double *mirror = test_alloc(width * sizeof *mirror);
    double length = 0.0;
    for (uint32_t i = 0; i < width; i++) {
        mirror[i] = basis_made_random(state);
        length += mirror[i] * mirror[i];
        made->means[first + i] = (float)basis_made_random(state) * 0.25f;
        for (uint32_t band = 0; band < TRANSFORM_BANDS; band++)
            made->spreads[(first + i) * TRANSFORM_BANDS + band] =
                (int16_t)(24 - (int)(64 * i / width));
    }
    for (uint32_t e = 0; e < width; e++) {
        for (uint32_t c = 0; c < width; c++) {
            const double turned = (e == c ? 1.0 : 0.0) - 2.0 * mirror[e] * mirror[c] / length;
            const double scale = 1.0 + 0.5 * (c % 4);
            forward[(uint64_t)e * width + c] = half_bf16_from_float((float)(turned * scale));
            inverse[(uint64_t)c * width + e] = half_bf16_from_float((float)(turned / scale));
        }
    }
}

/* Tables of codes that fall off as a class' spread says. */
static inline void basis_made_tables(transform_basis *basis)
{
    for (int class = 1; class < TRANSFORM_CLASSES; class ++) {
        uint32_t counts[256] = {0};
        const double deviation = pow(2.0, (class - 8.5) / 2.0);
        uint32_t low = 0;
        while (deviation / (double)(1u << low) > 16.0)
            low++;
        const double fall = exp(-1.4142 * (double)(1u << low) / deviation);
        for (int code = -127; code <= 127; code++)
            counts[code + 128] = (uint32_t)(1e6 * pow(fall, abs(code)));
        counts[0] = 1000;
        basis->tables[class].low_bits = low;
        rans_make_table(counts, 16, &basis->tables[class].symbols);
    }
}

/* Writes the object of the parts as they are. */
static inline kvt_status basis_made_write(basis_made *made)
{
    made->object = NULL;
    const kvt_status status = basis_bytes(&made->basis.shape, &made->bytes);
    if (status != KVT_OK) return status;
    made->object = test_aligned(64, made->bytes);
    return basis_write(&made->basis, &made->origin, made->object, made->bytes);
}

/* The shape is one that basis_bytes takes. */
static inline basis_made basis_made_of(transform_shape shape, uint64_t seed)
{
    basis_made made = {.basis = {.shape = shape}, .origin = {.model = "made", .tokens = 1000}};
    const uint64_t elements = transform_elements(&shape);
    const uint32_t spans = transform_span_count(&shape);
    const uint64_t matrices = transform_matrix_at(&shape, spans);
    made.frequencies = test_zeros((shape.rotary_dim / 2 + 1) * sizeof *made.frequencies);
    made.means = test_zeros(elements * sizeof *made.means);
    made.forward = test_zeros(matrices * sizeof *made.forward);
    made.inverse = test_zeros(matrices * sizeof *made.inverse);
    made.spreads = test_zeros(elements * TRANSFORM_BANDS * sizeof *made.spreads);
    if (made.frequencies == NULL || made.means == NULL || made.forward == NULL ||
        made.inverse == NULL || made.spreads == NULL)
        abort();
    for (uint32_t i = 0; i < shape.rotary_dim / 2; i++)
        made.frequencies[i] = pow(10000.0, -2.0 * i / shape.rotary_dim);
    uint64_t state = seed;
    for (uint32_t span = 0; span < spans; span++)
        basis_made_span(&made, span, &state);
    made.basis.frequencies = made.frequencies;
    made.basis.means = made.means;
    made.basis.forward = made.forward;
    made.basis.inverse = made.inverse;
    made.basis.spreads = made.spreads;
    basis_made_tables(&made.basis);
    return made;
}

#endif
