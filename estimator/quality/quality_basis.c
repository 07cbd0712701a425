/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quality_basis.c - learns bases on contexts of a model and judges them on others: see
 * quality_basis.h.
 *
 * One pass over the contexts that teach gives covariances and the metric; noise on the first two of
 * them, a layer and side at a time, says what an error of each weighs. Contexts are run one after
 * the other, and kept only where they are needed again.
 */
#include "estimator/quality/quality_basis.h"

#include "base/clock.h"
#include "base/half.h"
#include "codecs/keys_rerotate.h"
#include "estimator/quality/basis_learn.h"
#include "estimator/quality/quality_round_trip.h"

#include <kvterrace/rope.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    BASIS_TURN = 5,        /* of so many contexts one judges and one makes tables */
    BASIS_NOISY = 2,       /* contexts with noise */
    BASIS_STEP_FIRST = 24, /* in 64ths of the unit, which is at about two bits; then doubled */
    BASIS_STEP_LAST = BASIS_STEP_FIRST << (QUALITY_BASIS_STEPS - 1)
};

#define BASIS_NOISE     0.15 /* deviation of the noise over that of the elements, in the metric */
#define BASIS_REFERENCE "entropy:k0.333v0.75"

static const char *const basis_entropy[QUALITY_BASIS_ENTROPY] = {
    "entropy:k0.25v0.5", BASIS_REFERENCE, "entropy:k0.5v1", "entropy:k1v2"};

/* Sums of one form over the contexts that judged. */
typedef struct basis_sums {
    double bits, log_kl, top1, log_recall, recall_top1;
    uint32_t recalls;
} basis_sums;

typedef struct basis_run {
    const quality_basis_options *options;
    quality_model target;
    quality_entries entries;
    model_session *session;
    evaluate_variant changed;
    double *frequencies;
    basis_learner *learners[QUALITY_BASIS_SPANS]; /* NULL: the span is too wide */
    uint8_t *objects[QUALITY_BASIS_SPANS];
    transform_basis bases[QUALITY_BASIS_SPANS];
    void *scratch; /* of the widest span */
    double *weights;
    basis_sums sums[QUALITY_BASIS_ROWS];
    quality_basis_report *report;
    uint32_t runs, runs_all; /* of the model, for the progress */
} basis_run;

typedef enum basis_role { ROLE_JUDGE, ROLE_TABLES, ROLE_LEARN } basis_role;

static basis_role basis_role_of(uint32_t index)
{
    const uint32_t turn = index % BASIS_TURN;
    return turn == 0 ? ROLE_JUDGE : turn == 1 ? ROLE_TABLES : ROLE_LEARN;
}

static kvt_status basis_step(basis_run *run, const char *what)
{
    const quality_basis_options *o = run->options;
    run->runs++;
    if (o->progress == NULL) return KVT_OK;
    return o->progress(o->progress_context, (double)run->runs / run->runs_all, what)
               ? KVT_OK
               : KVT_E_CANCELLED;
}

static kvt_layout basis_layout(const basis_run *run, uint32_t tokens)
{
    const model_config *c = model_config_of(run->target.weights);
    return (kvt_layout){.layers = (uint16_t)c->layers,
                        .kv_heads = (uint16_t)c->kv_heads,
                        .head_dim = (uint16_t)c->head_dim,
                        .dtype = KVT_DTYPE_FP16,
                        .tokens = tokens};
}

/* ---- learning ---- */

static kvt_status basis_open_learners(basis_run *run)
{
    const model_config *c = model_config_of(run->target.weights);
    const size_t square = (size_t)c->head_dim * c->head_dim;
    uint64_t scratch = 0;
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
        if (status != KVT_OK || run->learners[s] == NULL) continue;
        const uint64_t bytes = transform_scratch_bytes(&shape);
        scratch = bytes > scratch ? bytes : scratch;
        for (uint32_t head = 0; head < c->layers * c->kv_heads; head++) {
            model_output_gram(run->target.weights, head / c->kv_heads, head % c->kv_heads, gram);
            basis_learner_outputs(run->learners[s], head / c->kv_heads, head % c->kv_heads, gram);
        }
    }
    if (status == KVT_OK) run->scratch = aligned_alloc(64, (scratch + 63) / 64 * 64);
    free(gram);
    return status == KVT_OK && run->scratch == NULL ? KVT_E_MEMORY : status;
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

static kvt_status basis_open_entry(basis_run *run, uint32_t index, evaluate_entry **entry_out)
{
    const quality_entry *cut = &run->entries.entries[index];
    const kvt_status status = evaluate_entry_open(run->session, cut->tokens, cut->context_tokens,
                                                  cut->continuation_tokens, entry_out);
    return status == KVT_OK ? basis_step(run, "contexts") : status;
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
    run->report->learnt++;
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
static kvt_status basis_listen(basis_run *run, const evaluate_entry *entry, double *logs)
{
    const model_config *c = entry->config;
    basis_noise noise = {.run = run};
    evaluate_result result;
    kvt_status status = KVT_OK;
    noise.noise =
        malloc((size_t)entry->context_tokens * c->kv_heads * c->head_dim * sizeof *noise.noise);
    if (noise.noise == NULL) return KVT_E_MEMORY;
    for (uint32_t i = 0; status == KVT_OK && i < 2 * c->layers; i++) {
        noise.layer = i / 2;
        noise.side = i % 2 == 0 ? KVT_SIDE_K : KVT_SIDE_V;
        status = basis_learner_deviation(run->learners[0], noise.layer, noise.side, &noise.size);
        noise.size *= BASIS_NOISE;
        if (status == KVT_OK)
            status = evaluate_variant_open(entry, basis_add_noise, &noise, &run->changed);
        if (status == KVT_OK)
            status = evaluate_variant_run(run->session, entry, &run->changed, &result, NULL);
        if (status == KVT_OK) status = basis_step(run, "noise");
        /* Means of KL may be a few 1e-8 off. */
        if (status == KVT_OK) logs[i] += log(fmax(result.kl, 1e-8) / (noise.size * noise.size));
    }
    free(noise.noise);
    return status;
}

/* Weights of the noise runs: the root of KL per power, smoothed over neighbours of its side. */
static void basis_weigh(basis_run *run, const double *logs, uint32_t count)
{
    const uint32_t layers = model_config_of(run->target.weights)->layers;
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

static kvt_status basis_learn(basis_run *run)
{
    evaluate_entry *noisy[BASIS_NOISY] = {NULL};
    double *logs = calloc(2 * (size_t)model_config_of(run->target.weights)->layers, sizeof *logs);
    uint32_t kept = 0;
    kvt_status status = logs == NULL ? KVT_E_MEMORY : KVT_OK;
    for (uint32_t i = 0; status == KVT_OK && i < run->entries.count; i++) {
        evaluate_entry *entry = NULL;
        if (basis_role_of(i) != ROLE_LEARN) continue;
        status = basis_open_entry(run, i, &entry);
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

/* Spreads and tables, of contexts that did not teach. */
static kvt_status basis_count(basis_run *run)
{
    uint8_t **kept = calloc(run->entries.count, sizeof *kept);
    kvt_status status = kept == NULL ? KVT_E_MEMORY : KVT_OK;
    for (uint32_t i = 0; status == KVT_OK && i < run->entries.count; i++) {
        evaluate_entry *entry = NULL;
        if (basis_role_of(i) != ROLE_TABLES) continue;
        status = basis_open_entry(run, i, &entry);
        if (status == KVT_OK) kept[i] = basis_pack(run, entry);
        if (status == KVT_OK && kept[i] == NULL) status = KVT_E_MEMORY;
        if (status == KVT_OK)
            status = basis_feed(run, BASIS_SPREAD, entry->context_tokens, kept[i]);
        evaluate_entry_close(entry);
        run->report->counted++;
    }
    for (uint32_t i = 0; status == KVT_OK && i < run->entries.count; i++) {
        if (kept[i] != NULL)
            status = basis_feed(run, BASIS_COUNT, run->entries.entries[i].context_tokens, kept[i]);
    }
    for (uint32_t i = 0; kept != NULL && i < run->entries.count; i++)
        free(kept[i]);
    free(kept);
    for (uint32_t s = 0; status == KVT_OK && s < QUALITY_BASIS_SPANS; s++) {
        basis_origin origin = {.tokens = 0};
        uint64_t *bytes = &run->report->bytes[s];
        if (run->learners[s] == NULL) continue;
        (void)snprintf(origin.model, sizeof origin.model, "%s", run->target.facts.name);
        memcpy(origin.digest, &run->entries.digest, sizeof run->entries.digest);
        status = basis_learner_finish(run->learners[s], &origin, &run->objects[s], bytes);
        if (status == KVT_OK) status = basis_read(run->objects[s], *bytes, &run->bases[s], &origin);
    }
    return status;
}

/* ---- judging ---- */

/* A form that is judged: a variant through a record, or segments of a basis. */
typedef struct basis_form {
    basis_run *run;
    const transform_basis *basis; /* NULL: the variant */
    kvt_variant variant;
    uint16_t step;
    quality_round_trip *round_trip;
    double bits; /* of the last context, an element behind the sinks */
} basis_form;

/* One segment there and back, in place. Returns its bytes. */
static kvt_status basis_code_segment(const basis_form *form, uint32_t index, evaluate_kv *kv,
                                     uint8_t *stored, uint64_t *bytes_out)
{
    const transform_shape *shape = &form->basis->shape;
    const uint64_t sinks = (uint64_t)KVT_SINK_TOKENS * transform_row(shape);
    const uint32_t tokens = kv->tokens - KVT_SINK_TOKENS;
    const transform_segment segment = {.basis = form->basis,
                                       .index = index,
                                       .first_position = KVT_SINK_TOKENS,
                                       .tokens = tokens,
                                       .step = form->step,
                                       .dtype = KVT_DTYPE_FP16};
    const void *matrices[TRANSFORM_MATRICES_MAX];
    view_rows rows[TRANSFORM_MATRICES_MAX];
    const view_rows *targets[TRANSFORM_MATRICES_MAX];
    uint32_t layer;
    const uint32_t count = transform_segment_matrices(shape, index, &layer);
    const uint32_t first = shape->span == TRANSFORM_SPAN_HEAD ? index : 2 * layer;
    for (uint32_t m = 0; m < count; m++) {
        uint16_t *const *side = (first + m) % 2 == KVT_SIDE_K ? kv->k : kv->v;
        uint16_t *elements = side[(first + m) / 2] + sinks;
        matrices[m] = elements;
        rows[m] =
            view_rows_packed(elements, (uint64_t)tokens * transform_row(shape) * sizeof *elements);
        targets[m] = &rows[m];
    }
    const uint64_t bound = transform_bound(&segment);
    kvt_status status =
        transform_encode(&segment, matrices, stored, bound, form->run->scratch, bytes_out);
    if (status == KVT_RAW) {
        *bytes_out = bound;
        return KVT_OK;
    }
    if (status == KVT_OK)
        status =
            transform_decode(&segment, stored, *bytes_out, 0, tokens, targets, form->run->scratch);
    return status;
}

static kvt_status basis_code(void *context, evaluate_kv *kv)
{
    basis_form *form = context;
    const transform_shape *shape = &form->basis->shape;
    const double elements =
        (double)transform_elements(shape) * (double)(kv->tokens - KVT_SINK_TOKENS);
    uint64_t all = 0;
    kvt_status status = KVT_OK;
    uint8_t *stored = malloc(TRANSFORM_MATRICES_MAX * (uint64_t)kv->tokens * transform_row(shape) *
                             sizeof(uint16_t));
    if (stored == NULL) return KVT_E_MEMORY;
    for (uint32_t i = 0; status == KVT_OK && i < transform_segment_count(shape); i++) {
        uint64_t bytes;
        status = basis_code_segment(form, i, kv, stored, &bytes);
        if (status == KVT_OK) all += bytes;
    }
    form->bits = (double)all * 8.0 / elements;
    free(stored);
    return status;
}

static kvt_status basis_record(void *context, evaluate_kv *kv)
{
    basis_form *form = context;
    quality_round_trip *trip = form->round_trip;
    for (uint32_t i = 0; i < 2u * trip->layout.layers; i++) {
        const uint16_t *from = i % 2 == KVT_SIDE_K ? kv->k[i / 2] : kv->v[i / 2];
        memcpy(trip->source + kvt_layout_matrix_offset(&trip->layout, i / 2, (kvt_side)(i % 2)),
               from, trip->matrix_bytes);
    }
    const kvt_status status = quality_round_trip_run(trip, form->variant, false);
    if (status != KVT_OK) return status;
    for (uint32_t i = 0; i < 2u * trip->layout.layers; i++) {
        uint16_t *to = i % 2 == KVT_SIDE_K ? kv->k[i / 2] : kv->v[i / 2];
        memcpy(to,
               trip->decoded + kvt_layout_matrix_offset(&trip->layout, i / 2, (kvt_side)(i % 2)),
               trip->matrix_bytes);
    }
    form->bits = quality_coded_bits(&trip->info);
    return KVT_OK;
}

static kvt_status basis_judge_form(basis_form *form, const evaluate_entry *entry,
                                   const evaluate_recall *recall, basis_sums *sums)
{
    basis_run *run = form->run;
    evaluate_result result;
    evaluate_recall_result recalled;
    kvt_status status = evaluate_variant_open(
        entry, form->basis != NULL ? basis_code : basis_record, form, &run->changed);
    if (status == KVT_OK)
        status = evaluate_variant_run(run->session, entry, &run->changed, &result, NULL);
    if (status == KVT_OK && recall->tokens != NULL)
        status = evaluate_recall_run(run->session, entry, recall, &run->changed, &recalled);
    if (status != KVT_OK) return status;
    sums->bits += form->bits;
    sums->log_kl += log(fmax(result.kl, 1e-9));
    sums->top1 += result.top1;
    if (recall->tokens != NULL) {
        sums->log_recall += log(fmax(recalled.kl, 1e-9));
        sums->recall_top1 += recalled.top1;
        sums->recalls++;
    }
    return basis_step(run, "judging");
}

/* Adds the next form to the report; its row stays the same for all contexts. */
static quality_basis_row *basis_row(quality_basis_report *report, uint32_t *at)
{
    quality_basis_row *row = &report->rows[(*at)++];
    if (*at > report->row_count) report->row_count = *at;
    return row;
}

/* All forms of one context. */
static kvt_status basis_judge_entry(basis_run *run, const evaluate_entry *entry,
                                    const evaluate_recall *recall, quality_round_trip *trip)
{
    static const char *const spans[] = {"", "head", "layer", "layers4"};
    uint32_t at = 0;
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; status == KVT_OK && i < QUALITY_BASIS_ENTROPY; i++) {
        basis_form form = {.run = run, .round_trip = trip};
        basis_sums *sums = &run->sums[at];
        quality_basis_row *row = basis_row(run->report, &at);
        (void)snprintf(row->name, sizeof row->name, "%s", basis_entropy[i]);
        status = kvt_variant_parse(basis_entropy[i], &form.variant);
        if (status == KVT_OK) status = basis_judge_form(&form, entry, recall, sums);
    }
    for (uint32_t s = 0; s < QUALITY_BASIS_SPANS; s++) {
        for (uint32_t step = BASIS_STEP_FIRST;
             status == KVT_OK && run->objects[s] != NULL && step <= BASIS_STEP_LAST; step *= 2) {
            basis_form form = {.run = run, .basis = &run->bases[s], .step = (uint16_t)step};
            basis_sums *sums = &run->sums[at];
            quality_basis_row *row = basis_row(run->report, &at);
            row->span = (uint8_t)(TRANSFORM_SPAN_HEAD + s);
            (void)snprintf(row->name, sizeof row->name, "transform:%s,s%g", spans[row->span],
                           (double)step / TRANSFORM_STEP_ONE);
            status = basis_judge_form(&form, entry, recall, sums);
        }
    }
    return status;
}

static kvt_status basis_judge(basis_run *run)
{
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; status == KVT_OK && i < run->entries.count; i++) {
        const quality_entry *cut = &run->entries.entries[i];
        const kvt_layout layout = basis_layout(run, cut->context_tokens);
        evaluate_entry *entry = NULL;
        evaluate_recall recall = {.tokens = NULL};
        quality_round_trip trip = {.source = NULL};
        if (basis_role_of(i) != ROLE_JUDGE) continue;
        status = basis_open_entry(run, i, &entry);
        if (status == KVT_OK && cut->recall != NULL)
            status = evaluate_recall_open(run->session, entry, cut->recall, cut->recall_tokens,
                                          cut->recall_scored, &recall);
        if (status == KVT_OK) status = quality_round_trip_open(&layout, &trip);
        if (status == KVT_OK) status = basis_judge_entry(run, entry, &recall, &trip);
        run->report->judged++;
        quality_round_trip_close(&trip);
        evaluate_recall_close(&recall);
        evaluate_entry_close(entry);
    }
    return status;
}

/* ---- the report ---- */

/* Bits of a span at a KL, between two of its rows; NAN when it is not between any. */
static double basis_bits_at(const quality_basis_report *report, uint8_t span, double kl)
{
    for (uint32_t i = 0; i + 1 < report->row_count; i++) {
        const quality_basis_row *a = &report->rows[i];
        const quality_basis_row *b = a + 1;
        if (a->span != span || b->span != span) continue;
        const double share = log(kl / a->kl) / log(b->kl / a->kl);
        if (share >= 0.0 && share <= 1.0) return a->bits + share * (b->bits - a->bits);
    }
    return (double)NAN;
}

static void basis_close_report(basis_run *run)
{
    quality_basis_report *report = run->report;
    for (uint32_t i = 0; i < report->row_count; i++) {
        quality_basis_row *row = &report->rows[i];
        const basis_sums *sums = &run->sums[i];
        row->bits = sums->bits / report->judged;
        row->kl = exp(sums->log_kl / report->judged);
        row->top1 = sums->top1 / report->judged;
        row->recall_kl = sums->recalls > 0 ? exp(sums->log_recall / sums->recalls) : (double)NAN;
        row->recall_top1 = sums->recalls > 0 ? sums->recall_top1 / sums->recalls : (double)NAN;
        if (strcmp(row->name, BASIS_REFERENCE) != 0) continue;
        report->reference_bits = row->bits;
        report->reference_kl = row->kl;
    }
    for (uint8_t s = 0; s < QUALITY_BASIS_SPANS; s++)
        report->share[s] =
            basis_bits_at(report, (uint8_t)(TRANSFORM_SPAN_HEAD + s), report->reference_kl) /
            report->reference_bits;
}

/* Runs of the model that are to come, as far as they are known. */
static void basis_plan(basis_run *run)
{
    const uint32_t layers = model_config_of(run->target.weights)->layers;
    uint32_t judges = 0;
    for (uint32_t i = 0; i < run->entries.count; i++)
        judges += basis_role_of(i) == ROLE_JUDGE;
    run->runs_all =
        run->entries.count + BASIS_NOISY * 2 * layers + judges * (uint32_t)QUALITY_BASIS_ROWS;
}

static kvt_status basis_check(const basis_run *run, char *message, size_t message_size)
{
    if (run->entries.count <= BASIS_TURN) {
        (void)snprintf(message, message_size, "the texts give %u contexts; %u are needed",
                       (unsigned)run->entries.count, (unsigned)BASIS_TURN + 1);
        return KVT_E_ARGUMENT;
    }
    for (uint32_t i = 0; i < run->entries.count; i++) {
        if (run->entries.entries[i].context_tokens > KVT_SINK_TOKENS) continue;
        (void)snprintf(message, message_size, "context %u has no token behind the sinks",
                       (unsigned)i);
        return KVT_E_ARGUMENT;
    }
    return KVT_OK;
}

kvt_status quality_basis_run(const quality_basis_options *options, quality_basis_report *report_out,
                             char *message, size_t message_size)
{
    basis_run run = {.options = options, .report = report_out};
    const double start = base_clock_seconds();
    *report_out = (quality_basis_report){.learnt = 0};
    message[0] = '\0';
    kvt_status status = quality_model_open(options->model, options->tokenizer, NULL, &run.target,
                                           message, message_size);
    if (status == KVT_OK)
        status = quality_entries_read(options->texts, options->text_count, run.target.tokens,
                                      options->context_tokens, options->continuation_tokens,
                                      options->contexts, &run.entries, message, message_size);
    if (status == KVT_OK) status = basis_check(&run, message, message_size);
    if (status == KVT_OK) status = model_session_open(run.target.weights, &run.session);
    if (status == KVT_OK) {
        basis_plan(&run);
        status = basis_open_learners(&run);
    }
    if (status == KVT_OK) status = basis_learn(&run);
    if (status == KVT_OK) status = basis_count(&run);
    if (status == KVT_OK) status = basis_judge(&run);
    if (status == KVT_OK) basis_close_report(&run);
    report_out->model = run.target.facts;
    report_out->seconds = base_clock_seconds() - start;
    for (uint32_t s = 0; s < QUALITY_BASIS_SPANS; s++) {
        basis_learner_close(run.learners[s]);
        free(run.objects[s]);
    }
    evaluate_variant_close(&run.changed);
    free(run.frequencies);
    free(run.weights);
    free(run.scratch);
    model_session_close(run.session);
    quality_entries_free(&run.entries);
    quality_model_close(&run.target);
    return status;
}
