/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_gram.c - what the output projection makes of an error of attention. Thread rule: model.h.
 */
#include "estimator/model/model_host.h"

#include <assert.h>
#include <string.h>

void model_output_gram(const model *m, uint32_t layer, uint32_t kv_head, double *gram)
{
    const model_config *c = &m->config;
    const uint32_t group = c->heads / c->kv_heads;
    const size_t width = c->head_dim;
    assert(layer < c->layers && kv_head < c->kv_heads);
    if (m->host != NULL) {
        const size_t at = ((size_t)layer * c->kv_heads + kv_head) * width * width;
        memcpy(gram, m->host->grams + at, width * width * sizeof *gram);
        return;
    }
    memset(gram, 0, width * width * sizeof *gram);
    for (uint32_t head = kv_head * group; head < (kv_head + 1) * group; head++) {
        for (uint32_t out = 0; out < c->dim; out++) {
            const float *line =
                m->layers[layer].wo + (size_t)out * c->heads * width + (size_t)head * width;
            for (size_t i = 0; i < width; i++) {
                for (size_t j = 0; j < width; j++)
                    gram[i * width + j] += (double)line[i] * (double)line[j];
            }
        }
    }
}
