/* SPDX-License-Identifier: Apache-2.0 */
/*
 * basis_learners.c - a learner of each span: see basis_learners.h.
 */
#include "estimator/quality/basis_learners.h"

#include "codecs/record.h"
#include "codecs/transform.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LEARNERS_NOISE 0.15 /* deviation of the noise over that of the elements, in the metric */
#define LEARNERS_LEAST 1e-8 /* an error that is measured as a mean may be so far off, or below 0 */

const char *quality_basis_span_name(uint32_t span)
{
    static const char *const names[] = {"", "head", "layer", "layers4"};
    return names[span <= QUALITY_BASIS_SPANS ? span : 0];
}

void quality_bases_free(quality_bases *bases)
{
    for (uint32_t s = 0; s < QUALITY_BASIS_SPANS; s++)
        free(bases->objects[s]);
    memset(bases, 0, sizeof *bases);
}

kvt_status basis_learners_open(const transform_shape *shape, const double *frequencies,
                               basis_learners *learners_out)
{
    memset(learners_out, 0, sizeof *learners_out);
    learners_out->shape = *shape;
    learners_out->logs = calloc((size_t)shape->layers * shape->sides, sizeof *learners_out->logs);
    kvt_status status = learners_out->logs == NULL ? KVT_E_MEMORY : KVT_OK;
    for (uint32_t s = 0; status == KVT_OK && s < QUALITY_BASIS_SPANS; s++) {
        transform_shape own = *shape;
        own.span = (uint8_t)(TRANSFORM_SPAN_HEAD + s);
        status = basis_learner_open(&own, frequencies, &learners_out->of[s]);
        if (status == KVT_E_ARGUMENT && s > 0) status = KVT_OK; /* too wide */
    }
    return status;
}

void basis_learners_close(basis_learners *learners)
{
    for (uint32_t s = 0; s < QUALITY_BASIS_SPANS; s++)
        basis_learner_close(learners->of[s]);
    free(learners->logs);
    memset(learners, 0, sizeof *learners);
}

void basis_learners_queries(const basis_learners *learners, uint32_t layer, const float *queries,
                            uint32_t rows, uint32_t heads, uint32_t first_position)
{
    for (uint32_t s = 0; s < QUALITY_BASIS_SPANS; s++) {
        if (learners->of[s] != NULL)
            basis_learner_queries(learners->of[s], layer, queries, rows, heads, first_position);
    }
}

void basis_learners_outputs(const basis_learners *learners, uint32_t layer, uint32_t kv_head,
                            const double *gram)
{
    for (uint32_t s = 0; s < QUALITY_BASIS_SPANS; s++) {
        if (learners->of[s] != NULL) basis_learner_outputs(learners->of[s], layer, kv_head, gram);
    }
}

kvt_status basis_learners_entry(const basis_learners *learners, basis_purpose purpose,
                                const kvt_layout *layout, const void *source)
{
    kvt_status status = KVT_OK;
    for (uint32_t s = 0; status == KVT_OK && s < QUALITY_BASIS_SPANS; s++) {
        if (learners->of[s] != NULL)
            status = basis_learner_entry(learners->of[s], purpose, layout, source);
    }
    return status;
}

/* ---- noise ---- */

kvt_status basis_learners_noise(const basis_learners *learners, uint32_t layer, kvt_side side,
                                uint32_t tokens, const double *frequencies, float *noise_out,
                                double *size_out)
{
    const transform_shape *shape = &learners->shape;
    const uint64_t row = transform_row(shape);
    kvt_status status = basis_learner_deviation(learners->of[0], layer, side, size_out);
    *size_out *= LEARNERS_NOISE;
    if (status == KVT_OK)
        status = basis_learner_noise(learners->of[0], layer, side, tokens,
                                     layer * 2u + (uint32_t)side + 1, noise_out);
    for (uint32_t t = 0; status == KVT_OK && t < tokens; t++) {
        float *line = noise_out + t * row;
        if (side == KVT_SIDE_K && shape->rotary_dim > 0)
            status = transform_turn_row(shape, frequencies, t, line);
        for (uint64_t e = 0; e < row; e++)
            line[e] *= (float)*size_out;
    }
    return status;
}

void basis_learners_hear(basis_learners *learners, uint32_t layer, kvt_side side, double size,
                         double error)
{
    learners->logs[layer * learners->shape.sides + (uint32_t)side] +=
        log(fmax(error, LEARNERS_LEAST) / (size * size));
}

/* The weights of what was heard; NULL without memory. */
static double *learners_weights(const basis_learners *learners)
{
    const uint32_t layers = learners->shape.layers, sides = learners->shape.sides;
    double *weights = malloc((size_t)layers * sides * sizeof *weights);
    for (uint32_t i = 0; weights != NULL && i < layers * sides; i++) {
        const uint32_t l = i / sides;
        const uint32_t first = l > 0 ? l - 1 : 0;
        const uint32_t last = l + 1 < layers ? l + 1 : l;
        double sum = 0.0;
        for (uint32_t near = first; near <= last; near++)
            sum += learners->logs[near * sides + i % sides] / learners->heard;
        weights[i] = exp(0.5 * sum / (last - first + 1));
    }
    return weights;
}

kvt_status basis_learners_solve(basis_learners *learners)
{
    kvt_status status = KVT_OK;
    if (learners->heard > 0) {
        double *weights = learners_weights(learners);
        if (weights == NULL) return KVT_E_MEMORY;
        for (uint32_t s = 0; s < QUALITY_BASIS_SPANS; s++) {
            if (learners->of[s] != NULL) basis_learner_weigh(learners->of[s], weights);
        }
        free(weights);
    }
    for (uint32_t s = 0; status == KVT_OK && s < QUALITY_BASIS_SPANS; s++) {
        if (learners->of[s] != NULL) status = basis_learner_solve(learners->of[s]);
    }
    return status;
}

kvt_status basis_learners_finish(const basis_learners *learners, const char *model_name,
                                 uint64_t digest, quality_bases *bases_out)
{
    kvt_status status = KVT_OK;
    for (uint32_t s = 0; status == KVT_OK && s < QUALITY_BASIS_SPANS; s++) {
        basis_origin origin = {.tokens = 0};
        if (learners->of[s] == NULL) continue;
        (void)snprintf(origin.model, sizeof origin.model, "%s", model_name);
        memcpy(origin.digest, &digest, sizeof digest);
        status = basis_learner_finish(learners->of[s], &origin, &bases_out->objects[s],
                                      &bases_out->bytes[s]);
        if (status == KVT_OK)
            status = basis_read(bases_out->objects[s], bases_out->bytes[s], &bases_out->bases[s],
                                &origin);
    }
    return status;
}
