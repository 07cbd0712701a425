/* SPDX-License-Identifier: Apache-2.0 */
/*
 * basis_sample.c - KV that a basis was made for, drawn from its own spreads: components are normal
 * with the deviations that the basis states, taken back by its inverse, on its means, keys turned
 * to their positions. So codes, tables and sizes are those of the basis's model, whose weights and
 * texts are not needed. Thread rule: re-entrant.
 */
#include "base/half.h"
#include "codecs/transform.h"
#include "estimator/measure/measure.h"
#include "estimator/profile/profile_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* About normal, deviation 1. */
static float sample_normal(uint64_t *state)
{
    double sum = 0.0;
    for (int i = 0; i < 4; i++)
        sum += (double)(profile_random(state) >> 11) * 0x1p-53;
    return (float)((sum - 2.0) * 1.7320508);
}

/* The deviation of a component over all frequencies. */
static float sample_deviation(const int16_t *spreads)
{
    float variance = 0.0f;
    for (uint32_t band = 0; band < TRANSFORM_BANDS; band++) {
        const uint32_t count = transform_band_start(band + 1) - transform_band_start(band);
        variance += (float)count / TRANSFORM_ALONG *
                    exp2f(2.0f * (float)spreads[band] / TRANSFORM_SPREAD_STEPS);
    }
    return sqrtf(variance);
}

/* One token's vector of a span, at position 0. */
static void sample_vector(const transform_basis *basis, uint32_t span, uint64_t *state, float *out)
{
    const uint32_t width = transform_width_of(&basis->shape, span);
    const uint64_t first = (uint64_t)span * transform_width(&basis->shape);
    const uint16_t *inverse = basis->inverse + transform_matrix_at(&basis->shape, span);
    memcpy(out, basis->means + first, width * sizeof *out);
    for (uint32_t c = 0; c < width; c++, inverse += width) {
        const float y =
            sample_normal(state) * sample_deviation(basis->spreads + (first + c) * TRANSFORM_BANDS);
        for (uint32_t e = 0; e < width; e++)
            out[e] += y * half_bf16_to_float(inverse[e]);
    }
}

/* All elements of a token in the order of the spans, which is by layer, side, head and channel,
 * into the entry's matrices. */
static kvt_status sample_store(const transform_basis *basis, const kvt_layout *layout,
                               uint32_t token, uint32_t position, float *elements, uint16_t *target)
{
    const transform_shape *shape = &basis->shape;
    const uint32_t row = transform_row(shape);
    kvt_status status = KVT_OK;
    for (uint32_t m = 0; status == KVT_OK && m < shape->layers * shape->sides; m++) {
        const kvt_side side = (kvt_side)(m % shape->sides);
        float *from = elements + (uint64_t)m * row;
        uint16_t *to = target +
                       kvt_layout_matrix_offset(layout, m / shape->sides, side) / sizeof *target +
                       (uint64_t)token * row;
        if (side == KVT_SIDE_K && shape->rotary_dim != 0)
            status = transform_turn_row(shape, basis->frequencies, position, from);
        for (uint32_t e = 0; e < row; e++)
            to[e] = half_bf16_from_float(from[e]);
    }
    return status;
}

kvt_status basis_sample_fill(const transform_basis *basis, const kvt_layout *layout,
                             uint32_t first_position, uint64_t seed, void *target)
{
    const uint32_t spans = transform_span_count(&basis->shape);
    float *elements = malloc(transform_elements(&basis->shape) * sizeof *elements);
    uint64_t state = seed;
    kvt_status status = elements == NULL ? KVT_E_MEMORY : KVT_OK;
    for (uint32_t t = 0; status == KVT_OK && t < layout->tokens; t++) {
        for (uint32_t s = 0; s < spans; s++)
            sample_vector(basis, s, &state,
                          elements + (uint64_t)s * transform_width(&basis->shape));
        status = sample_store(basis, layout, t, first_position + t, elements, target);
    }
    free(elements);
    return status;
}
