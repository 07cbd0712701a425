/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quality_mixed.c - mixed contexts, predicted and measured. The draws are the same for every
 * context, so that a draw has a mean over contexts. Thread rule: quality.h.
 */
#include "base/clock.h"
#include "estimator/profile/profile_internal.h"
#include "estimator/quality/quality.h"
#include "estimator/quality/quality_round_trip.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MIXED_BLOCKS_MAX = 64, MIXED_BLOCK_LEAST = 32 /* tokens */ };

/* Loss and KL of something. */
typedef struct mixed_pair {
    double loss, kl;
} mixed_pair;

typedef struct mixed_run {
    const quality_mixed_options *options;
    char *message;
    size_t message_size;
    quality_model target;
    quality_entries entries;
    quality_row *rows;     /* [contexts][variant_count]: whole contexts */
    uint8_t *draws;        /* [mixes][blocks]: variants */
    mixed_pair *measured;  /* [contexts][mixes] */
    mixed_pair *predicted; /* [contexts][mixes] */
    mixed_pair *means;     /* [2][variant_count]: over contexts of odd and even number */
    quality_round_trip round_trips[2]; /* of blocks of two lengths */
    const uint8_t *draw;               /* at work */
    uint64_t done;
} mixed_run;

static bool mixed_progress(const mixed_run *run)
{
    const quality_mixed_options *o = run->options;
    double all = (double)run->entries.count * (o->variant_count + o->mixes);
    return o->progress == NULL ||
           o->progress(o->progress_context, (double)run->done / all, "mixed contexts");
}

/* ---- whole contexts ---- */

static kvt_status mixed_done(void *context, uint32_t entry, uint32_t variant,
                             const quality_row *row)
{
    mixed_run *run = context;
    run->rows[(size_t)entry * run->options->variant_count + variant] = *row;
    run->done++;
    return mixed_progress(run) ? KVT_OK : KVT_E_CANCELLED;
}

static kvt_status mixed_measure_whole(mixed_run *run)
{
    const quality_mixed_options *o = run->options;
    const quality_request request = {.model = run->target.weights,
                                     .tokenizer = run->target.tokens,
                                     .entries = run->entries.entries,
                                     .entry_count = run->entries.count,
                                     .variants = o->variants,
                                     .variant_count = o->variant_count,
                                     .threads = o->threads,
                                     .done = mixed_done,
                                     .context = run};
    kvt_status status = quality_measure(&request, run->message, run->message_size);
    for (uint32_t v = 0; status == KVT_OK && v < o->variant_count; v++) {
        uint32_t counts[2] = {0, 0};
        for (uint32_t e = 0; e < run->entries.count; e++) {
            const quality_row *row = &run->rows[(size_t)e * o->variant_count + v];
            if (!row->present) {
                (void)snprintf(run->message, run->message_size, "%s does not take the layout",
                               o->variants[v].name);
                return KVT_E_UNSUPPORTED;
            }
            mixed_pair *mean = &run->means[e % 2 * o->variant_count + v];
            mean->loss += 1.0 - row->top1;
            mean->kl += row->kl;
            counts[e % 2]++;
        }
        for (uint32_t half = 0; half < 2; half++) {
            run->means[half * o->variant_count + v].loss /= counts[half];
            run->means[half * o->variant_count + v].kl /= counts[half];
        }
    }
    return status;
}

/* ---- mixed contexts ---- */

/* Tokens [first, end) of the index-th block. */
static uint32_t mixed_cut(uint32_t tokens, uint32_t blocks, uint32_t index)
{
    return (uint32_t)((uint64_t)tokens * index / blocks);
}

/* The rows of one block, there and back. */
static kvt_status mixed_block(mixed_run *run, evaluate_kv *kv, uint32_t first, uint32_t end,
                              const quality_variant *variant)
{
    const uint32_t tokens = end - first;
    const model_config *c = kv->config;
    const kvt_layout layout = {.layers = (uint16_t)c->layers,
                               .kv_heads = (uint16_t)c->kv_heads,
                               .head_dim = (uint16_t)c->head_dim,
                               .dtype = KVT_DTYPE_FP16,
                               .tokens = tokens};
    quality_round_trip *round_trip =
        &run->round_trips[run->round_trips[0].layout.tokens == tokens ? 0 : 1];
    if (run->round_trips[0].source == NULL) round_trip = &run->round_trips[0];
    kvt_status status = KVT_OK;
    if (round_trip->source == NULL || round_trip->layout.tokens != tokens) {
        quality_round_trip_close(round_trip);
        status = quality_round_trip_open(&layout, round_trip);
    }
    if (status != KVT_OK) return status;
    const size_t at = (size_t)first * c->kv_heads * c->head_dim;
    for (uint32_t i = 0; i < 2 * c->layers; i++)
        memcpy(round_trip->source + kvt_layout_matrix_offset(&layout, i / 2, (kvt_side)(i % 2)),
               (i % 2 == 0 ? kv->k : kv->v)[i / 2] + at, round_trip->matrix_bytes);
    status = quality_round_trip_run(round_trip, variant->variant, false);
    for (uint32_t i = 0; status == KVT_OK && i < 2 * c->layers; i++)
        memcpy((i % 2 == 0 ? kv->k : kv->v)[i / 2] + at,
               round_trip->decoded + kvt_layout_matrix_offset(&layout, i / 2, (kvt_side)(i % 2)),
               round_trip->matrix_bytes);
    for (uint32_t l = 0; status == KVT_OK && l < c->layers; l++)
        for (uint32_t h = 0; h < c->kv_heads; h++)
            memcpy(kv->kept[l] + (size_t)h * kv->tokens + first,
                   round_trip->kept + (size_t)l * tokens, tokens);
    return status;
}

/* A evaluate_transform. */
static kvt_status mixed_transform(void *context, evaluate_kv *kv)
{
    mixed_run *run = context;
    const quality_mixed_options *o = run->options;
    kvt_status status = KVT_OK;
    for (uint32_t b = 0; status == KVT_OK && b < o->blocks; b++)
        status = mixed_block(run, kv, mixed_cut(kv->tokens, o->blocks, b),
                             mixed_cut(kv->tokens, o->blocks, b + 1), &o->variants[run->draw[b]]);
    return status;
}

static mixed_pair mixed_predict(const mixed_run *run, uint32_t entry, const uint8_t *draw)
{
    const quality_mixed_options *o = run->options;
    const uint32_t tokens = run->entries.entries[entry].context_tokens;
    const mixed_pair *means = run->means + (size_t)(1 - entry % 2) * o->variant_count;
    mixed_pair sum = {0.0, 0.0};
    for (uint32_t b = 0; b < o->blocks; b++) {
        double share =
            (double)(mixed_cut(tokens, o->blocks, b + 1) - mixed_cut(tokens, o->blocks, b)) /
            tokens;
        sum.loss += share * means[draw[b]].loss;
        sum.kl += share * means[draw[b]].kl;
    }
    return sum;
}

static kvt_status mixed_entry(mixed_run *run, model_session *session, uint32_t index)
{
    const quality_mixed_options *o = run->options;
    const quality_entry *cut = &run->entries.entries[index];
    evaluate_entry *entry = NULL;
    kvt_status status = evaluate_entry_open(session, cut->tokens, cut->context_tokens,
                                            cut->continuation_tokens, &entry);
    for (uint32_t m = 0; status == KVT_OK && m < o->mixes; m++) {
        evaluate_variant variant = {.memory = NULL};
        evaluate_result result;
        run->draw = run->draws + (size_t)m * o->blocks;
        status = evaluate_variant_open(entry, mixed_transform, run, &variant);
        if (status != KVT_OK) break;
        status = evaluate_variant_run(session, entry, &variant, &result, NULL);
        evaluate_variant_close(&variant);
        size_t cell = (size_t)index * o->mixes + m;
        run->measured[cell] = (mixed_pair){1.0 - result.top1, result.kl};
        run->predicted[cell] = mixed_predict(run, index, run->draw);
        run->done++;
        if (status == KVT_OK && !mixed_progress(run)) status = KVT_E_CANCELLED;
    }
    evaluate_entry_close(entry);
    return status;
}

/* ---- figures ---- */

static double mixed_value(const mixed_pair *pair, bool kl)
{
    return kl ? pair->kl : pair->loss;
}

/* values: room for 4 x contexts x mixes. */
static kvt_status mixed_fit(const mixed_run *run, bool kl, double *values, quality_mixed_fit *fit)
{
    const uint32_t contexts = run->entries.count, mixes = run->options->mixes;
    const size_t cells = (size_t)contexts * mixes;
    double *p = values, *m = values + cells, *errors = values + 2 * cells;
    uint32_t count = 0;
    *fit = (quality_mixed_fit){.predicted = 0.0};
    for (size_t i = 0; i < cells; i++) {
        p[i] = mixed_value(&run->predicted[i], kl);
        m[i] = mixed_value(&run->measured[i], kl);
        fit->predicted += p[i] / (double)cells;
        fit->measured += m[i] / (double)cells;
        if (m[i] > 0.0) errors[count++] = fabs(p[i] - m[i]) / m[i];
    }
    fit->pearson = quality_correlation(p, m, (uint32_t)cells);
    kvt_status status = quality_rank_correlation(p, m, (uint32_t)cells, &fit->spearman);
    fit->error_context_p50 = count > 0 ? quality_quantile(errors, count, 0.5) : (double)NAN;
    count = 0;
    for (uint32_t d = 0; d < mixes; d++) {
        double predicted = 0.0, measured = 0.0;
        for (uint32_t e = 0; e < contexts; e++) {
            predicted += mixed_value(&run->predicted[(size_t)e * mixes + d], kl) / contexts;
            measured += mixed_value(&run->measured[(size_t)e * mixes + d], kl) / contexts;
        }
        p[d] = predicted;
        m[d] = measured;
        if (measured > 0.0) errors[count++] = fabs(predicted - measured) / measured;
    }
    if (status == KVT_OK) status = quality_rank_correlation(p, m, mixes, &fit->spearman_mixes);
    fit->error_p50 = count > 0 ? quality_quantile(errors, count, 0.5) : (double)NAN;
    fit->error_p90 = count > 0 ? quality_quantile(errors, count, 0.9) : (double)NAN;
    return status;
}

static kvt_status mixed_report(const mixed_run *run, quality_mixed_report *report)
{
    const size_t cells = (size_t)run->entries.count * run->options->mixes;
    double *values = malloc(4 * cells * sizeof *values);
    if (values == NULL) return KVT_E_MEMORY;
    kvt_status status = mixed_fit(run, false, values, &report->loss);
    if (status == KVT_OK) status = mixed_fit(run, true, values, &report->kl);
    free(values);
    report->contexts = run->entries.count;
    report->mixes = run->options->mixes;
    return status;
}

/* ---- all of it ---- */

static kvt_status mixed_check(const quality_mixed_options *o, char *message, size_t message_size)
{
    const char *wrong = NULL;
    if (o->variant_count < 2 || o->variant_count > UINT8_MAX) wrong = "2 to 255 variants";
    if (o->blocks < 1 || o->blocks > MIXED_BLOCKS_MAX ||
        o->context_tokens < MIXED_BLOCK_LEAST * o->blocks)
        wrong = "1 to 64 blocks of 32 tokens or more";
    if (o->mixes < 1 || o->contexts < 2 || o->continuation_tokens < 4)
        wrong = "a draw, two contexts and four tokens after them, at least";
    for (uint32_t i = 0; i < o->variant_count; i++)
        if (o->variants[i].merged) wrong = "variants that are stored, without @row";
    if (wrong == NULL) return KVT_OK;
    (void)snprintf(message, message_size, "mixed contexts take %s", wrong);
    return KVT_E_ARGUMENT;
}

static kvt_status mixed_make(mixed_run *run)
{
    const quality_mixed_options *o = run->options;
    const size_t contexts = run->entries.count;
    uint64_t seed = o->seed;
    if (contexts < 2) {
        (void)snprintf(run->message, run->message_size, "the texts give one context, not two");
        return KVT_E_ARGUMENT;
    }
    for (size_t e = 0; e < contexts; e++) {
        uint32_t tokens = run->entries.entries[e].context_tokens; /* the text may say */
        if (tokens / MIXED_BLOCK_LEAST >= o->blocks) continue;
        (void)snprintf(run->message, run->message_size,
                       "a context of %u tokens has no %u blocks of %d or more", (unsigned)tokens,
                       (unsigned)o->blocks, (int)MIXED_BLOCK_LEAST);
        return KVT_E_ARGUMENT;
    }
    run->rows = calloc(contexts * o->variant_count, sizeof *run->rows);
    run->draws = calloc((size_t)o->mixes * o->blocks, 1);
    run->measured = calloc(contexts * o->mixes, sizeof *run->measured);
    run->predicted = calloc(contexts * o->mixes, sizeof *run->predicted);
    run->means = calloc(2 * (size_t)o->variant_count, sizeof *run->means);
    if (run->rows == NULL || run->draws == NULL || run->measured == NULL ||
        run->predicted == NULL || run->means == NULL) {
        return KVT_E_MEMORY;
    }
    for (size_t i = 0; i < (size_t)o->mixes * o->blocks; i++)
        run->draws[i] = (uint8_t)(profile_random(&seed) % o->variant_count);
    return KVT_OK;
}

static kvt_status mixed_measure(mixed_run *run)
{
    model_session *session = NULL;
    kvt_status status = mixed_measure_whole(run);
    if (status == KVT_OK) status = model_session_open(run->target.weights, &session);
    for (uint32_t e = 0; status == KVT_OK && e < run->entries.count; e++)
        status = mixed_entry(run, session, e);
    model_session_close(session);
    return status;
}

kvt_status quality_mixed_run(const quality_mixed_options *options, quality_mixed_report *report_out,
                             char *message, size_t message_size)
{
    mixed_run run = {.options = options, .message = message, .message_size = message_size};
    double start = base_clock_seconds();
    *report_out = (quality_mixed_report){.contexts = 0};
    message[0] = '\0';
    kvt_status status = mixed_check(options, message, message_size);
    if (status == KVT_OK)
        status = quality_model_open(options->model, options->tokenizer, NULL, &run.target, message,
                                    message_size);
    if (status == KVT_OK)
        status = quality_entries_read(options->texts, options->text_count, run.target.tokens,
                                      options->context_tokens, options->continuation_tokens,
                                      options->contexts, &run.entries, message, message_size);
    if (status == KVT_OK) status = mixed_make(&run);
    if (status == KVT_OK) status = mixed_measure(&run);
    if (status == KVT_OK) status = mixed_report(&run, report_out);
    report_out->model = run.target.facts;
    report_out->seconds = base_clock_seconds() - start;
    free(run.rows);
    free(run.draws);
    free(run.measured);
    free(run.predicted);
    free(run.means);
    for (int i = 0; i < 2; i++)
        quality_round_trip_close(&run.round_trips[i]);
    quality_entries_free(&run.entries);
    quality_model_close(&run.target);
    return status;
}
