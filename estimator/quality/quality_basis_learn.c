/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quality_basis_learn.c - learns bases on contexts of a model: see quality_basis.h.
 *
 * Contexts are run one after the other, and kept only where they are needed again: the first two
 * for noise, and those of the tables, whose codes need the spreads of all of them.
 */
#include "estimator/quality/quality_basis.h"

#include "base/half.h"
#include "codecs/keys_rerotate.h"
#include "codecs/record.h"
#include "codecs/transform.h"
#include "estimator/quality/basis_learn.h"

#include <kvterrace/rope.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    BASIS_NOISY = 2,    /* contexts with noise */
    BASIS_LISTENED = 96 /* tokens of a continuation at most, on which noise is judged */
};

#define BASIS_NOISE 0.15 /* deviation of the noise over that of the elements, in the metric */

typedef struct basis_run {
    const quality_basis_lesson *lesson;
    model_session *session;
    evaluate_variant changed;
    double *frequencies;
    basis_learner *learners[QUALITY_BASIS_SPANS]; /* NULL: the span is too wide */
    double *weights;
} basis_run;

static kvt_status basis_step(const basis_run *run, const char *what)
{
    const quality_basis_lesson *lesson = run->lesson;
    return lesson->step == NULL || lesson->step(lesson->context, what) ? KVT_OK : KVT_E_CANCELLED;
}

static kvt_layout basis_layout(const basis_run *run, uint32_t tokens)
{
    const model_config *c = model_config_of(run->lesson->target->weights);
    return (kvt_layout){.layers = (uint16_t)c->layers,
                        .kv_heads = (uint16_t)c->kv_heads,
                        .head_dim = (uint16_t)c->head_dim,
                        .dtype = KVT_DTYPE_FP16,
                        .tokens = tokens};
}

static kvt_status basis_open_learners(basis_run *run)
{
    const model_config *c = model_config_of(run->lesson->target->weights);
    const size_t square = (size_t)c->head_dim * c->head_dim;
    transform_shape shape = {.layers = c->layers,
                             .kv_heads = c->kv_heads,
                             .head_dim = c->head_dim,
                             .rotary_dim = c->head_dim,
                             .sides = 2,
                             .pairing = c->rope_halves ? KVT_ROPE_HALVES : KVT_ROPE_NEIGHBOURS};
    double *gram = malloc(square * sizeof *gram);
    run->frequencies = malloc(c->head_dim * sizeof *run->frequencies);
    run->weights = malloc(2 * (size_t)c->layers * sizeof *run->weights);
    kvt_status status =
        gram == NULL || run->frequencies == NULL || run->weights == NULL ? KVT_E_MEMORY : KVT_OK;
    for (uint32_t i = 0; status == KVT_OK && i < c->head_dim / 2; i++)
        run->frequencies[i] = pow(c->rope_theta, -2.0 * i / c->head_dim);
    for (uint32_t s = 0; status == KVT_OK && s < QUALITY_BASIS_SPANS; s++) {
        shape.span = (uint8_t)(TRANSFORM_SPAN_HEAD + s);
        status = basis_learner_open(&shape, run->frequencies, &run->learners[s]);
        if (status == KVT_E_ARGUMENT && s > 0) status = KVT_OK; /* too wide */
    }
    for (uint32_t head = 0; status == KVT_OK && head < c->layers * c->kv_heads; head++) {
        const uint32_t layer = head / c->kv_heads;
        model_output_gram(run->lesson->target->weights, layer, head % c->kv_heads, gram);
        for (uint32_t s = 0; s < QUALITY_BASIS_SPANS; s++) {
            if (run->learners[s] != NULL)
                basis_learner_outputs(run->learners[s], layer, head % c->kv_heads, gram);
        }
    }
    free(gram);
    return status;
}

/* An entry's KV as a learner takes it. */
static uint8_t *basis_pack(const basis_run *run, const evaluate_entry *entry)
{
    const kvt_layout layout = basis_layout(run, entry->context_tokens);
    const uint64_t matrix = kvt_layout_matrix_bytes(&layout);
    uint8_t *source = malloc(2 * (uint64_t)layout.layers * matrix);
    for (uint32_t l = 0; source != NULL && l < layout.layers; l++) {
        memcpy(source + kvt_layout_matrix_offset(&layout, l, KVT_SIDE_K), entry->k[l], matrix);
        memcpy(source + kvt_layout_matrix_offset(&layout, l, KVT_SIDE_V), entry->v[l], matrix);
    }
    return source;
}

static kvt_status basis_feed(const basis_run *run, basis_purpose purpose, uint32_t tokens,
                             const uint8_t *source)
{
    const kvt_layout layout = basis_layout(run, tokens);
    kvt_status status = KVT_OK;
    for (uint32_t s = 0; status == KVT_OK && s < QUALITY_BASIS_SPANS; s++) {
        if (run->learners[s] != NULL)
            status = basis_learner_entry(run->learners[s], purpose, &layout, source);
    }
    return status;
}

static kvt_status basis_open_entry(basis_run *run, const quality_entry *cut,
                                   evaluate_entry **entry_out)
{
    const kvt_status status = basis_step(run, "contexts");
    return status == KVT_OK ? evaluate_entry_open(run->session, cut->tokens, cut->context_tokens,
                                                  cut->continuation_tokens, entry_out)
                            : status;
}

/* Queries and covariances of a context. */
static kvt_status basis_teach(basis_run *run, const evaluate_entry *entry)
{
    const model_config *c = entry->config;
    uint8_t *source = basis_pack(run, entry);
    if (source == NULL) return KVT_E_MEMORY;
    for (uint32_t s = 0; s < QUALITY_BASIS_SPANS; s++) {
        for (uint32_t l = 0; run->learners[s] != NULL && l < c->layers; l++)
            basis_learner_queries(run->learners[s], l, entry->queries[l],
                                  entry->continuation_tokens, c->heads, entry->context_tokens);
    }
    const kvt_status status = basis_feed(run, BASIS_LEARN, entry->context_tokens, source);
    free(source);
    return status;
}

/* ---- noise: what an error of one layer and side weighs ---- */

typedef struct basis_noise {
    basis_run *run;
    uint32_t layer;
    kvt_side side;
    double size;
    float *noise; /* [tokens][row] */
} basis_noise;

/* Adds noise to all tokens but the sinks; keys at their positions. */
static kvt_status basis_add_noise(void *context, evaluate_kv *kv)
{
    const basis_noise *n = context;
    const model_config *c = kv->config;
    const uint32_t row = c->kv_heads * c->head_dim;
    const kvt_layout one = {.layers = 1,
                            .kv_heads = (uint16_t)c->kv_heads,
                            .head_dim = (uint16_t)c->head_dim,
                            .dtype = KVT_DTYPE_FP32,
                            .tokens = 1};
    const kvt_rope rope = {.struct_size = sizeof rope,
                           .rotary_dim = (uint16_t)c->head_dim,
                           .pairing = c->rope_halves ? KVT_ROPE_HALVES : KVT_ROPE_NEIGHBOURS,
                           .frequencies = n->run->frequencies};
    const uint32_t kept = 0;
    uint16_t *elements = n->side == KVT_SIDE_K ? kv->k[n->layer] : kv->v[n->layer];
    kvt_status status = basis_learner_noise(n->run->learners[0], n->layer, n->side, kv->tokens,
                                            n->layer * 2u + (uint32_t)n->side + 1, n->noise);
    for (uint32_t t = KVT_SINK_TOKENS; status == KVT_OK && t < kv->tokens; t++) {
        float *line = n->noise + (size_t)t * row;
        if (n->side == KVT_SIDE_K)
            status = kvt_keys_rerotate(&one, &rope, &kept, 1, 0, t, line, row * sizeof *line);
        for (uint32_t e = 0; e < row; e++) {
            uint16_t *element = &elements[(size_t)t * row + e];
            *element = half_from_float(half_to_float(*element) + (float)n->size * line[e]);
        }
    }
    return status;
}

/* Adds the logarithm of KL per power of the noise, of each layer and side. */
static kvt_status basis_listen(basis_run *run, const evaluate_entry *whole, double *logs)
{
    evaluate_entry begin = *whole;
    const evaluate_entry *entry = &begin;
    const model_config *c = entry->config;
    basis_noise noise = {.run = run};
    evaluate_result result;
    kvt_status status = KVT_OK;
    if (begin.continuation_tokens > BASIS_LISTENED) begin.continuation_tokens = BASIS_LISTENED;
    noise.noise =
        malloc((size_t)entry->context_tokens * c->kv_heads * c->head_dim * sizeof *noise.noise);
    if (noise.noise == NULL) return KVT_E_MEMORY;
    for (uint32_t i = 0; status == KVT_OK && i < 2 * c->layers; i++) {
        noise.layer = i / 2;
        noise.side = i % 2 == 0 ? KVT_SIDE_K : KVT_SIDE_V;
        status = basis_learner_deviation(run->learners[0], noise.layer, noise.side, &noise.size);
        noise.size *= BASIS_NOISE;
        if (status == KVT_OK) status = basis_step(run, "noise");
        if (status == KVT_OK)
            status = evaluate_variant_open(entry, basis_add_noise, &noise, &run->changed);
        if (status == KVT_OK)
            status = evaluate_variant_go_on(run->session, entry, &run->changed, &result, NULL);
        /* Means of KL may be a few 1e-8 off. */
        if (status == KVT_OK) logs[i] += log(fmax(result.kl, 1e-8) / (noise.size * noise.size));
    }
    free(noise.noise);
    return status;
}

/* Weights of the noise runs: the root of KL per power, smoothed over neighbours of its side. */
static void basis_weigh(basis_run *run, const double *logs, uint32_t count)
{
    const uint32_t layers = model_config_of(run->lesson->target->weights)->layers;
    for (uint32_t side = 0; side < 2; side++) {
        for (uint32_t l = 0; l < layers; l++) {
            const uint32_t first = l > 0 ? l - 1 : 0;
            const uint32_t last = l + 1 < layers ? l + 1 : l;
            double sum = 0.0;
            for (uint32_t i = first; i <= last; i++)
                sum += logs[2 * i + side] / count;
            run->weights[2 * l + side] = exp(0.5 * sum / (last - first + 1));
        }
    }
    for (uint32_t s = 0; s < QUALITY_BASIS_SPANS; s++) {
        if (run->learners[s] != NULL) basis_learner_weigh(run->learners[s], run->weights);
    }
}

/* ---- the whole ---- */

static kvt_status basis_learn(basis_run *run)
{
    const quality_basis_lesson *lesson = run->lesson;
    evaluate_entry *noisy[BASIS_NOISY] = {NULL};
    const uint32_t layers = model_config_of(lesson->target->weights)->layers;
    double *logs = calloc(2 * (size_t)layers, sizeof *logs);
    uint32_t kept = 0;
    kvt_status status = logs == NULL ? KVT_E_MEMORY : KVT_OK;
    for (uint32_t i = 0; status == KVT_OK && i < lesson->teach_count; i++) {
        evaluate_entry *entry = NULL;
        status = basis_open_entry(run, lesson->teach[i], &entry);
        if (status == KVT_OK) status = basis_teach(run, entry);
        if (status == KVT_OK && kept < BASIS_NOISY)
            noisy[kept++] = entry;
        else
            evaluate_entry_close(entry);
    }
    for (uint32_t i = 0; status == KVT_OK && i < kept; i++)
        status = basis_listen(run, noisy[i], logs);
    if (status == KVT_OK) basis_weigh(run, logs, kept);
    for (uint32_t s = 0; status == KVT_OK && s < QUALITY_BASIS_SPANS; s++) {
        if (run->learners[s] != NULL) status = basis_learner_solve(run->learners[s]);
    }
    for (uint32_t i = 0; i < BASIS_NOISY; i++)
        evaluate_entry_close(noisy[i]);
    free(logs);
    return status;
}

/* Spreads of all contexts of the tables, then their codes. */
static kvt_status basis_count(basis_run *run)
{
    const quality_basis_lesson *lesson = run->lesson;
    uint8_t **kept = calloc(lesson->table_count, sizeof *kept);
    kvt_status status = kept == NULL ? KVT_E_MEMORY : KVT_OK;
    for (uint32_t i = 0; status == KVT_OK && i < lesson->table_count; i++) {
        evaluate_entry *entry = NULL;
        status = basis_open_entry(run, lesson->tables[i], &entry);
        if (status == KVT_OK) kept[i] = basis_pack(run, entry);
        if (status == KVT_OK && kept[i] == NULL) status = KVT_E_MEMORY;
        if (status == KVT_OK)
            status = basis_feed(run, BASIS_SPREAD, entry->context_tokens, kept[i]);
        evaluate_entry_close(entry);
    }
    for (uint32_t i = 0; status == KVT_OK && i < lesson->table_count; i++)
        status = basis_feed(run, BASIS_COUNT, lesson->tables[i]->context_tokens, kept[i]);
    for (uint32_t i = 0; kept != NULL && i < lesson->table_count; i++)
        free(kept[i]);
    free(kept);
    return status;
}

static kvt_status basis_finish(const basis_run *run, quality_bases *bases)
{
    const quality_basis_lesson *lesson = run->lesson;
    kvt_status status = KVT_OK;
    for (uint32_t s = 0; status == KVT_OK && s < QUALITY_BASIS_SPANS; s++) {
        basis_origin origin = {.tokens = 0};
        if (run->learners[s] == NULL) continue;
        (void)snprintf(origin.model, sizeof origin.model, "%s", lesson->target->facts.name);
        memcpy(origin.digest, &lesson->digest, sizeof lesson->digest);
        status =
            basis_learner_finish(run->learners[s], &origin, &bases->objects[s], &bases->bytes[s]);
        if (status == KVT_OK)
            status = basis_read(bases->objects[s], bases->bytes[s], &bases->bases[s], &origin);
    }
    return status;
}

static kvt_status basis_check(const quality_basis_lesson *lesson)
{
    if (lesson->teach_count == 0 || lesson->table_count == 0) return KVT_E_ARGUMENT;
    for (uint32_t i = 0; i < lesson->teach_count; i++) {
        if (lesson->teach[i]->context_tokens <= KVT_SINK_TOKENS) return KVT_E_ARGUMENT;
    }
    for (uint32_t i = 0; i < lesson->table_count; i++) {
        if (lesson->tables[i]->context_tokens <= KVT_SINK_TOKENS) return KVT_E_ARGUMENT;
    }
    return KVT_OK;
}

uint32_t quality_bases_runs(const quality_basis_lesson *lesson)
{
    const uint32_t layers = model_config_of(lesson->target->weights)->layers;
    const uint32_t noisy =
        lesson->teach_count < BASIS_NOISY ? lesson->teach_count : (uint32_t)BASIS_NOISY;
    return lesson->teach_count + lesson->table_count + noisy * 2 * layers;
}

kvt_status quality_bases_learn(const quality_basis_lesson *lesson, quality_bases *bases_out)
{
    basis_run run = {.lesson = lesson};
    memset(bases_out, 0, sizeof *bases_out);
    kvt_status status = basis_check(lesson);
    if (status == KVT_OK) status = model_session_open(lesson->target->weights, &run.session);
    if (status == KVT_OK) status = basis_open_learners(&run);
    if (status == KVT_OK) status = basis_learn(&run);
    if (status == KVT_OK) status = basis_count(&run);
    if (status == KVT_OK) status = basis_finish(&run, bases_out);
    for (uint32_t s = 0; s < QUALITY_BASIS_SPANS; s++)
        basis_learner_close(run.learners[s]);
    evaluate_variant_close(&run.changed);
    free(run.frequencies);
    free(run.weights);
    model_session_close(run.session);
    return status;
}

void quality_bases_free(quality_bases *bases)
{
    for (uint32_t s = 0; s < QUALITY_BASIS_SPANS; s++)
        free(bases->objects[s]);
    memset(bases, 0, sizeof *bases);
}
