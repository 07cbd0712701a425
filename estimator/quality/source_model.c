/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source_model.c - a model over texts as a source of KV: see quality_source.h. It runs over entries
 * when their KV is asked for, and goes on from changed KV.
 */
#include "estimator/quality/quality_rows.h"
#include "estimator/quality/quality_source.h"

#include "base/half.h"
#include "codecs/kernels/checksum.h"
#include "codecs/record.h"

#include <kvterrace/rope.h>

#include <stdlib.h>
#include <string.h>

enum { MODEL_LISTENED = 96 /* tokens of a continuation at most, on which noise is judged */ };

static kvt_layout model_layout(const quality_source *source, uint32_t tokens)
{
    const model_config *c = model_config_of(source->target->weights);
    return (kvt_layout){.layers = (uint16_t)c->layers,
                        .kv_heads = (uint16_t)c->kv_heads,
                        .head_dim = (uint16_t)c->head_dim,
                        .dtype = KVT_DTYPE_FP16,
                        .tokens = tokens};
}

static kvt_status source_model_identify(quality_source *source, const void *entry,
                                        quality_identity *out)
{
    const quality_entry *cut = entry;
    const size_t all = (size_t)cut->context_tokens + cut->continuation_tokens;
    *out = (quality_identity){
        .layout = model_layout(source, cut->context_tokens),
        .heads = source->target->facts.heads,
        .document = cut->document,
        .content = checksum_of(cut->tokens, cut->context_tokens * sizeof *cut->tokens),
        .link = {cut->context_tokens, checksum_of(cut->tokens, all * sizeof *cut->tokens)},
        .links = 2};
    return KVT_OK;
}

static kvt_status source_model_open(quality_source *source, const void *entry, quality_kv *kv)
{
    const quality_entry *cut = entry;
    kvt_status status = KVT_OK;
    if (source->session == NULL)
        status = model_session_open(source->target->weights, &source->session);
    if (status == KVT_OK)
        status = evaluate_entry_open(source->session, cut->tokens, cut->context_tokens,
                                     cut->continuation_tokens, &kv->judged);
    if (status != KVT_OK) return status;
    kv->layout = model_layout(source, cut->context_tokens);
    const uint64_t matrix = kvt_layout_matrix_bytes(&kv->layout);
    kv->bytes = malloc(2 * (uint64_t)kv->layout.layers * matrix);
    if (kv->bytes == NULL) return KVT_E_MEMORY;
    for (uint32_t i = 0; i < 2u * kv->layout.layers; i++)
        memcpy(kv->bytes + kvt_layout_matrix_offset(&kv->layout, i / 2, (kvt_side)(i % 2)),
               i % 2 == KVT_SIDE_K ? kv->judged->k[i / 2] : kv->judged->v[i / 2], matrix);
    return KVT_OK;
}

static kvt_status source_model_outputs(quality_source *source, basis_learners *learners)
{
    const model_config *c = model_config_of(source->target->weights);
    double *gram = malloc((size_t)c->head_dim * c->head_dim * sizeof *gram);
    if (gram == NULL) return KVT_E_MEMORY;
    for (uint32_t head = 0; head < c->layers * c->kv_heads; head++) {
        const uint32_t layer = head / c->kv_heads;
        model_output_gram(source->target->weights, layer, head % c->kv_heads, gram);
        basis_learners_outputs(learners, layer, head % c->kv_heads, gram);
    }
    free(gram);
    return KVT_OK;
}

static kvt_status source_model_queries(quality_source *source, quality_kv *kv,
                                       basis_learners *learners)
{
    const evaluate_entry *judged = kv->judged;
    (void)source;
    for (uint32_t l = 0; l < judged->config->layers; l++)
        basis_learners_queries(learners, l, judged->queries[l], judged->continuation_tokens,
                               judged->config->heads, judged->context_tokens);
    return KVT_OK;
}

typedef struct model_noise {
    uint32_t layer;
    kvt_side side;
    const float *noise;
} model_noise;

/* An evaluate_transform: adds noise to all tokens but the sinks. */
static kvt_status model_add_noise(void *context, evaluate_kv *kv)
{
    const model_noise *n = context;
    const uint64_t row = (uint64_t)kv->config->kv_heads * kv->config->head_dim;
    uint16_t *elements = n->side == KVT_SIDE_K ? kv->k[n->layer] : kv->v[n->layer];
    for (uint64_t e = KVT_SINK_TOKENS * row; e < kv->tokens * row; e++)
        elements[e] = half_from_float(half_to_float(elements[e]) + n->noise[e]);
    return KVT_OK;
}

static kvt_status source_model_disturb(quality_source *source, quality_kv *kv, uint32_t layer,
                                       kvt_side side, const float *noise, double *error_out)
{
    evaluate_entry begin = *kv->judged;
    model_noise added = {.layer = layer, .side = side, .noise = noise};
    evaluate_result result = {.kl = 0.0};
    if (begin.continuation_tokens > MODEL_LISTENED) begin.continuation_tokens = MODEL_LISTENED;
    kvt_status status = evaluate_variant_open(&begin, model_add_noise, &added, &source->changed);
    if (status == KVT_OK)
        status = evaluate_variant_go_on(source->session, &begin, &source->changed, &result, NULL);
    *error_out = result.kl;
    return status;
}

static const quality_source_type source_model = {.method = QUALITY_METHOD,
                                                 .entries = "documents",
                                                 .identify = source_model_identify,
                                                 .open = source_model_open,
                                                 .outputs = source_model_outputs,
                                                 .queries = source_model_queries,
                                                 .disturb = source_model_disturb};

quality_source quality_source_of_model(const quality_model *target, char *message,
                                       size_t message_size)
{
    quality_source source = {.type = &source_model,
                             .name = target->facts.name,
                             .asked = true,
                             .message = message,
                             .message_size = message_size,
                             .target = target};
    quality_rope_of(model_config_of(target->weights), &source.rope);
    return source;
}
