/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quality_basis_learn.c - learns bases on contexts of a model: see quality_basis.h.
 *
 * Contexts are run one after the other, and kept only where they are needed again: the first two
 * for noise, and those of the tables, whose codes need the spreads of all of them.
 */
#include "estimator/quality/quality_basis.h"

#include "base/half.h"
#include "codecs/record.h"
#include "estimator/quality/basis_learners.h"

#include <kvterrace/rope.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    BASIS_NOISY = 2,    /* contexts with noise */
    BASIS_LISTENED = 96 /* tokens of a continuation at most, on which noise is judged */
};

typedef struct basis_run {
    const quality_basis_lesson *lesson;
    model_session *session;
    evaluate_variant changed;
    double *frequencies;
    basis_learners learners;
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
    const transform_shape shape = {.layers = c->layers,
                                   .kv_heads = c->kv_heads,
                                   .head_dim = c->head_dim,
                                   .rotary_dim = c->head_dim,
                                   .sides = 2,
                                   .pairing =
                                       c->rope_halves ? KVT_ROPE_HALVES : KVT_ROPE_NEIGHBOURS};
    double *gram = malloc(square * sizeof *gram);
    run->frequencies = malloc(c->head_dim * sizeof *run->frequencies);
    kvt_status status = gram == NULL || run->frequencies == NULL ? KVT_E_MEMORY : KVT_OK;
    for (uint32_t i = 0; status == KVT_OK && i < c->head_dim / 2; i++)
        run->frequencies[i] = pow(c->rope_theta, -2.0 * i / c->head_dim);
    if (status == KVT_OK) status = basis_learners_open(&shape, run->frequencies, &run->learners);
    for (uint32_t head = 0; status == KVT_OK && head < c->layers * c->kv_heads; head++) {
        const uint32_t layer = head / c->kv_heads;
        model_output_gram(run->lesson->target->weights, layer, head % c->kv_heads, gram);
        basis_learners_outputs(&run->learners, layer, head % c->kv_heads, gram);
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
    return basis_learners_entry(&run->learners, purpose, &layout, source);
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
    for (uint32_t l = 0; l < c->layers; l++)
        basis_learners_queries(&run->learners, l, entry->queries[l], entry->continuation_tokens,
                               c->heads, entry->context_tokens);
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

/* Adds noise to all tokens but the sinks. */
static kvt_status basis_add_noise(void *context, evaluate_kv *kv)
{
    basis_noise *n = context;
    const uint64_t row = (uint64_t)kv->config->kv_heads * kv->config->head_dim;
    uint16_t *elements = n->side == KVT_SIDE_K ? kv->k[n->layer] : kv->v[n->layer];
    const kvt_status status = basis_learners_noise(&n->run->learners, n->layer, n->side, kv->tokens,
                                                   n->run->frequencies, n->noise, &n->size);
    for (uint64_t e = KVT_SINK_TOKENS * row; status == KVT_OK && e < kv->tokens * row; e++)
        elements[e] = half_from_float(half_to_float(elements[e]) + n->noise[e]);
    return status;
}

/* Hears what noise does to the continuation's KL, of each layer and side. */
static kvt_status basis_listen(basis_run *run, const evaluate_entry *whole)
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
        status = basis_step(run, "noise");
        if (status == KVT_OK)
            status = evaluate_variant_open(entry, basis_add_noise, &noise, &run->changed);
        if (status == KVT_OK)
            status = evaluate_variant_go_on(run->session, entry, &run->changed, &result, NULL);
        if (status == KVT_OK)
            basis_learners_hear(&run->learners, noise.layer, noise.side, noise.size, result.kl);
    }
    run->learners.heard++;
    free(noise.noise);
    return status;
}

/* ---- the whole ---- */

static kvt_status basis_learn(basis_run *run)
{
    const quality_basis_lesson *lesson = run->lesson;
    evaluate_entry *noisy[BASIS_NOISY] = {NULL};
    uint32_t kept = 0;
    kvt_status status = KVT_OK;
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
        status = basis_listen(run, noisy[i]);
    if (status == KVT_OK) status = basis_learners_solve(&run->learners);
    for (uint32_t i = 0; i < BASIS_NOISY; i++)
        evaluate_entry_close(noisy[i]);
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
    if (status == KVT_OK)
        status = basis_learners_finish(&run.learners, lesson->target->facts.name, lesson->digest,
                                       bases_out);
    basis_learners_close(&run.learners);
    evaluate_variant_close(&run.changed);
    free(run.frequencies);
    model_session_close(run.session);
    return status;
}

void quality_bases_free(quality_bases *bases)
{
    for (uint32_t s = 0; s < QUALITY_BASIS_SPANS; s++)
        free(bases->objects[s]);
    memset(bases, 0, sizeof *bases);
}
