/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_weights.c - a model in memory: the bounds of its configuration, its one block of weights,
 * its end. Thread rule: see model.h.
 */
#include "base/clock.h"
#include "codecs/kernels/checksum.h"
#include "estimator/model/model_host.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

const char *model_config_fault(const model_config *c)
{
    if (c->dim == 0 || c->dim > 1u << 16) return "the width is outside 1..65536";
    if (c->ffn_dim == 0 || c->ffn_dim > 1u << 18) return "the ffn width is outside 1..262144";
    if (c->layers == 0 || c->layers > 1024) return "the layers are outside 1..1024";
    if (c->heads == 0 || c->heads > 1024) return "the heads are outside 1..1024";
    if (c->kv_heads == 0 || c->heads % c->kv_heads != 0) return "kv_heads do not divide the heads";
    if (c->head_dim == 0 || c->head_dim > 1024 || c->head_dim % 2 != 0) {
        return "head_dim is no even number in 2..1024";
    }
    if (c->vocab == 0 || c->vocab > 1u << 20) return "the vocabulary is outside 1..1048576";
    if (c->context == 0 || c->context > 1u << 30) return "the context is outside 1..2^30";
    if (!(c->norm_eps >= 0.0f && c->norm_eps < 1.0f)) return "the norm epsilon is outside 0..1";
    if (!(c->rope_theta >= 1.0 && c->rope_theta < 1e12)) return "the rope base is outside 1..1e12";
    const model_rope_scale *s = &c->rope_scale;
    if (s->factor == 0.0) return NULL;
    if (!(s->factor >= 1.0 && s->factor <= 1e6)) return "the rope factor is outside 1..1e6";
    if (!(s->low > 0.0 && s->high > s->low && s->high <= 1e6)) {
        return "the rope's low_freq_factor and high_freq_factor do not ascend in 0..1e6";
    }
    if (!(s->context >= 1.0 && s->context <= 1073741824.0)) {
        return "the rope's original context is outside 1..2^30";
    }
    return NULL;
}

uint32_t model_rotary_dim(const model_config *c)
{
    return c->frequencies != NULL ? c->rotary_dim : c->head_dim;
}

double model_frequency(const model_config *c, uint32_t pair)
{
    const model_rope_scale *s = &c->rope_scale;
    if (c->frequencies != NULL) return c->frequencies[pair];
    const double plain = pow(c->rope_theta, -2.0 * pair / c->head_dim);
    if (s->factor == 0.0) return plain;
    const double turns = s->context * plain / (2.0 * acos(-1.0));
    const double stays = fmin(fmax((turns - s->low) / (s->high - s->low), 0.0), 1.0);
    return plain * (stays + (1.0 - stays) / s->factor);
}

const char *model_header_config(const model_header *h, model_config *config_out)
{
    if (h->dim <= 0 || h->heads <= 0 || h->vocab == 0 || h->vocab == INT32_MIN) {
        return "a size in the header is not positive";
    }
    if (h->dim % h->heads != 0) return "the heads do not divide the width";
    /* Negative numbers turn into ones above every bound. */
    *config_out = (model_config){.dim = (uint32_t)h->dim,
                                 .ffn_dim = (uint32_t)h->ffn_dim,
                                 .layers = (uint32_t)h->layers,
                                 .heads = (uint32_t)h->heads,
                                 .kv_heads = (uint32_t)h->kv_heads,
                                 .head_dim = (uint32_t)(h->dim / h->heads),
                                 .vocab = (uint32_t)(h->vocab < 0 ? -h->vocab : h->vocab),
                                 .context = (uint32_t)h->context,
                                 .norm_eps = 1e-5f,
                                 .rope_theta = 10000.0,
                                 .tied = h->vocab > 0};
    return model_config_fault(config_out);
}

model_shape model_matrix_shape(const model_config *c, int matrix)
{
    switch (matrix) {
    case MODEL_WQ: return (model_shape){model_query_dim(c), c->dim};
    case MODEL_WK:
    case MODEL_WV: return (model_shape){model_kv_dim(c), c->dim};
    case MODEL_WO: return (model_shape){c->dim, model_query_dim(c)};
    case MODEL_W2: return (model_shape){c->dim, c->ffn_dim};
    default: assert(matrix == MODEL_W1 || matrix == MODEL_W3);
    }
    return (model_shape){c->ffn_dim, c->dim};
}

static float **model_matrix_place(model_layer *layer, int matrix)
{
    float **const places[MODEL_MATRICES] = {&layer->wq, &layer->wk, &layer->wv, &layer->wo,
                                            &layer->w1, &layer->w2, &layer->w3};
    assert(matrix >= 0 && matrix < MODEL_MATRICES);
    return places[matrix];
}

float *model_matrix(model_layer *layer, int matrix)
{
    return *model_matrix_place(layer, matrix);
}

static uint64_t model_layer_count(const model_config *c)
{
    uint64_t count = c->bare_norm ? 0 : 2 * (uint64_t)c->dim;
    for (int matrix = 0; matrix < MODEL_MATRICES; matrix++) {
        model_shape shape = model_matrix_shape(c, matrix);
        count += (uint64_t)shape.rows * shape.columns;
        if (c->biased && matrix <= MODEL_WV) count += shape.rows;
    }
    return count;
}

uint64_t model_weight_count(const model_config *c)
{
    uint64_t table = (uint64_t)c->vocab * c->dim;
    return table * (c->tied ? 1 : 2) + c->dim + c->layers * model_layer_count(c);
}

static float *model_take(float **at, uint64_t count)
{
    float *taken = *at;
    *at += count;
    return taken;
}

kvt_status model_make(const model_config *config, model **model_out)
{
    model *m = calloc(1, sizeof *m);
    *model_out = NULL;
    if (m == NULL) return KVT_E_MEMORY;
    m->config = *config;
    m->weights = calloc(model_weight_count(config), sizeof *m->weights);
    m->layers = calloc(config->layers, sizeof *m->layers);
    if (m->weights == NULL || m->layers == NULL) {
        model_close(m);
        return KVT_E_MEMORY;
    }
    float *at = m->weights;
    uint64_t table = (uint64_t)config->vocab * config->dim;
    m->embedding = model_take(&at, table);
    m->norm_final = model_take(&at, config->dim);
    m->output = config->tied ? m->embedding : model_take(&at, table);
    for (uint32_t l = 0; l < config->layers; l++) {
        if (!config->bare_norm) {
            m->layers[l].norm_attention = model_take(&at, config->dim);
            m->layers[l].norm_ffn = model_take(&at, config->dim);
        }
        for (int matrix = 0; matrix < MODEL_MATRICES; matrix++) {
            model_shape shape = model_matrix_shape(config, matrix);
            *model_matrix_place(&m->layers[l], matrix) =
                model_take(&at, (uint64_t)shape.rows * shape.columns);
            if (config->biased && matrix <= MODEL_WV)
                m->layers[l].bias[matrix] = model_take(&at, shape.rows);
        }
    }
    assert(at == m->weights + model_weight_count(config));
    *model_out = m;
    return KVT_OK;
}

kvt_status model_check_weights(const model *m, const char *path, char *message, size_t message_size)
{
    uint64_t count = model_weight_count(&m->config);
    for (uint64_t i = 0; i < count; i++) {
        if (isfinite(m->weights[i])) continue;
        return model_map_say(KVT_E_CORRUPT, message, message_size, path,
                             "a weight is infinite or no number");
    }
    return KVT_OK;
}

void model_close(model *m)
{
    if (m == NULL) return;
    if (m->host != NULL) free(m->host->grams);
    free(m->host);
    free(m->weights);
    free(m->layers);
    free(m);
}

double model_clock_seconds(const model *m)
{
    return m->host != NULL ? 1e-9 * (double)atomic_load(&m->host->computed_ns) : base_cpu_seconds();
}

uint64_t model_digest(const model *m)
{
    if (m->host != NULL) return m->host->digest;
    return checksum_of(m->weights, model_weight_count(&m->config) * sizeof(float));
}

uint64_t model_parameters(const model *m)
{
    return m->host != NULL ? m->host->parameters : model_weight_count(&m->config);
}

const model_config *model_config_of(const model *m)
{
    return &m->config;
}

bool model_is_elsewhere(const model *m)
{
    return m->host != NULL;
}
