/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_model.c - the reference decoder beside OpenBLAS: a prefill beside the matrix products that
 * it is made of, and a token for each of several sequences, one call each and in one call.
 *
 * Thread rule: one bench at a time.
 */
#include "base/clock.h"
#include "base/half.h"
#include "bench.h"
#include "bench_parts.h"
#include "estimator/model/model.h"
#include "estimator/model/model_internal.h"

#include <cblas.h>
#include <stdlib.h>
#include <string.h>

enum {
    MODEL_REPEATS = 3,
    MODEL_SEQUENCES = 25,
    /* Query rows of a product of attention: large enough for its full speed; each row scores half a
     * block of tokens too many. */
    MODEL_PRODUCT_ROWS = 256
};

/* One context length. */
typedef struct model_row {
    uint32_t tokens;
    bench_rate prefill_s, linear_s, attention_s; /* the products alone: the weights', attention's */
    bench_rate ratio;                            /* prefill over both, paired */
    bench_rate alone_s, together_s;              /* a token for each sequence */
    bench_rate speedup;
} model_row;

typedef struct model_bench {
    const bench_model_options *options;
    model *m;
    const model_config *c;
    model_session *session;
    uint32_t *ids;
    float **k, **v; /* [layers], of the longest context */
    uint16_t **k_half, **v_half;
    float *logits;                 /* [MODEL_SEQUENCES][vocab] */
    float *left, *right, *product; /* of the products alone */
    uint32_t longest, repeats;
} model_bench;

/* Of the processor where one thread works, so that what else runs on the machine counts less. */
static double model_seconds(const model_bench *b)
{
    return b->options->threads <= 1 ? base_cpu_seconds() : base_clock_seconds();
}

/* ---- the products alone ---- */

static double model_linear_seconds(const model_bench *b, uint32_t tokens)
{
    double start = model_seconds(b);
    for (uint32_t l = 0; l < b->c->layers; l++) {
        for (int matrix = 0; matrix < MODEL_MATRICES; matrix++) {
            const model_shape shape = model_matrix_shape(b->c, matrix);
            const int in = (int)shape.columns, out = (int)shape.rows;
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)tokens, out, in, 1.0f,
                        b->left, in, model_matrix(&b->m->layers[l], matrix), in, 0.0f, b->product,
                        out);
        }
    }
    return model_seconds(b) - start;
}

/* Scores and outputs of all heads, block by block, each up to its last token. */
static double model_attention_seconds(const model_bench *b, uint32_t tokens)
{
    const model_config *c = b->c;
    const int width = (int)c->head_dim;
    const int query = (int)model_query_dim(c), kv = (int)model_kv_dim(c);
    double start = model_seconds(b);
    for (uint32_t l = 0; l < c->layers; l++) {
        for (uint32_t h = 0; h < c->heads; h++) {
            const size_t place = (size_t)(h / (c->heads / c->kv_heads)) * c->head_dim;
            for (uint32_t first = 0; first < tokens; first += MODEL_PRODUCT_ROWS) {
                uint32_t left = tokens - first;
                int rows = (int)(left < MODEL_PRODUCT_ROWS ? left : MODEL_PRODUCT_ROWS);
                int seen = (int)first + rows;
                cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, seen, width, 1.0f,
                            b->left + (size_t)first * (size_t)query + (size_t)h * c->head_dim,
                            query, b->k[l] + place, kv, 0.0f, b->product, seen);
                cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, width, seen, 1.0f,
                            b->product, seen, b->v[l] + place, kv, 0.0f, b->right, query);
            }
        }
    }
    return model_seconds(b) - start;
}

/* ---- the decoder ---- */

static kvt_status model_prefill(const model_bench *b, uint32_t tokens, double *seconds_out)
{
    double start = model_seconds(b);
    kvt_status status = model_forward(b->session, &(model_request){.tokens = b->ids,
                                                                   .token_count = tokens,
                                                                   .k_out = b->k,
                                                                   .v_out = b->v,
                                                                   .logits_first = tokens - 1,
                                                                   .logits_count = 1,
                                                                   .logits_out = b->logits});
    *seconds_out = model_seconds(b) - start;
    return status;
}

/* One token for each sequence on top of fp16 KV, as what a store gives back is. */
static kvt_status model_step(const model_bench *b, uint32_t tokens, bool together,
                             double *seconds_out)
{
    const model_past past = {.tokens = tokens,
                             .dtype = KVT_DTYPE_FP16,
                             .k = (const void *const *)b->k_half,
                             .v = (const void *const *)b->v_half};
    model_request requests[MODEL_SEQUENCES];
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; i < MODEL_SEQUENCES; i++) {
        requests[i] = (model_request){.tokens = &b->ids[i % tokens],
                                      .token_count = 1,
                                      .first_position = tokens,
                                      .past = &past,
                                      .logits_count = 1,
                                      .logits_out = b->logits + (size_t)i * b->c->vocab};
    }
    double start = model_seconds(b);
    if (together) {
        status = model_forward_many(b->session, requests, MODEL_SEQUENCES);
    } else {
        for (uint32_t i = 0; status == KVT_OK && i < MODEL_SEQUENCES; i++)
            status = model_forward(b->session, &requests[i]);
    }
    *seconds_out = model_seconds(b) - start;
    return status;
}

/* ---- one context length ---- */

typedef enum model_figure {
    MODEL_PREFILL,
    MODEL_LINEAR,
    MODEL_ATTENTION,
    MODEL_RATIO,
    MODEL_ALONE,
    MODEL_TOGETHER,
    MODEL_SPEEDUP,
    MODEL_FIGURES
} model_figure;

static kvt_status model_measure_once(const model_bench *b, uint32_t tokens,
                                     double figures[MODEL_FIGURES])
{
    kvt_status status = model_prefill(b, tokens, &figures[MODEL_PREFILL]);
    if (status != KVT_OK) return status;
    figures[MODEL_LINEAR] = model_linear_seconds(b, tokens);
    figures[MODEL_ATTENTION] = model_attention_seconds(b, tokens);
    figures[MODEL_RATIO] =
        figures[MODEL_PREFILL] / (figures[MODEL_LINEAR] + figures[MODEL_ATTENTION]);
    for (uint32_t l = 0; l < b->c->layers; l++) {
        for (size_t i = 0; i < (size_t)tokens * model_kv_dim(b->c); i++) {
            b->k_half[l][i] = half_from_float(b->k[l][i]);
            b->v_half[l][i] = half_from_float(b->v[l][i]);
        }
    }
    status = model_step(b, tokens, false, &figures[MODEL_ALONE]);
    if (status == KVT_OK) status = model_step(b, tokens, true, &figures[MODEL_TOGETHER]);
    figures[MODEL_SPEEDUP] = figures[MODEL_ALONE] / figures[MODEL_TOGETHER];
    return status;
}

static kvt_status model_measure(const model_bench *b, uint32_t tokens, model_row *row)
{
    double samples[MODEL_FIGURES][BENCH_ITERATIONS_MAX];
    bench_rate *const places[MODEL_FIGURES] = {&row->prefill_s, &row->linear_s, &row->attention_s,
                                               &row->ratio,     &row->alone_s,  &row->together_s,
                                               &row->speedup};
    row->tokens = tokens;
    for (uint32_t i = 0; i < b->repeats; i++) {
        double figures[MODEL_FIGURES];
        kvt_status status = model_measure_once(b, tokens, figures);
        if (status != KVT_OK) return status;
        for (int figure = 0; figure < MODEL_FIGURES; figure++)
            samples[figure][i] = figures[figure];
    }
    for (int figure = 0; figure < MODEL_FIGURES; figure++)
        *places[figure] = bench_rate_of(samples[figure], b->repeats);
    return KVT_OK;
}

/* ---- results ---- */

static int model_print_json(const model_bench *b, const model_row *rows)
{
    json_t *root = bench_report_head("kvterrace-bench-model-1", b->repeats);
    json_t *list = json_array();
    int failed = root == NULL || list == NULL;
    for (uint32_t i = 0; i < b->options->token_counts && !failed; i++) {
        const model_row *r = &rows[i];
        json_t *row = json_pack("{s:I}", "tokens", (json_int_t)r->tokens);
        failed = row == NULL || bench_put_rate(row, "prefill_s", &r->prefill_s) ||
                 bench_put_rate(row, "linear_s", &r->linear_s) ||
                 bench_put_rate(row, "attention_s", &r->attention_s) ||
                 bench_put_rate(row, "ratio", &r->ratio) ||
                 bench_put_rate(row, "step_alone_s", &r->alone_s) ||
                 bench_put_rate(row, "step_together_s", &r->together_s) ||
                 bench_put_rate(row, "step_speedup", &r->speedup) || json_array_append(list, row);
        json_decref(row);
    }
    if (!failed) {
        json_t *facts =
            json_pack("{s:O, s:s, s:s, s:I, s:I}", "rows", list, "model", b->options->model, "blas",
                      model_blas_kernels(), "threads", (json_int_t)b->options->threads, "sequences",
                      (json_int_t)MODEL_SEQUENCES);
        failed = facts == NULL || json_object_update(root, facts);
        json_decref(facts);
    }
    json_decref(list);
    return bench_report_print(b->options->out, failed ? NULL : root);
}

static int model_print_text(const model_bench *b, const model_row *rows)
{
    FILE *out = b->options->out;
    fprintf(out, "%s, %s kernels, %u thread%s; seconds%s, medians of %u\n\n", b->options->model,
            model_blas_kernels(), (unsigned)b->options->threads,
            b->options->threads == 1 ? "" : "s",
            b->options->threads == 1 ? " of the processor" : "", (unsigned)b->repeats);
    fprintf(out, "%8s %10s %10s %10s %8s   %10s %10s %8s\n", "tokens", "prefill", "weights'",
            "attention", "ratio", "25 alone", "together", "speedup");
    for (uint32_t i = 0; i < b->options->token_counts; i++) {
        const model_row *r = &rows[i];
        fprintf(out, "%8u %10.3f %10.3f %10.3f %8.2f   %10.3f %10.3f %8.2f\n", (unsigned)r->tokens,
                r->prefill_s.median, r->linear_s.median, r->attention_s.median, r->ratio.median,
                r->alone_s.median, r->together_s.median, r->speedup.median);
    }
    fprintf(out, "\nprefill over sgemm's time for the same products, weights' and attention's; a "
                 "token for each of 25\nsequences on fp16 KV, in a call each and in one.\n");
    return ferror(out) != 0;
}

/* ---- the whole ---- */

static void model_free(model_bench *b)
{
    for (uint32_t l = 0; b->c != NULL && l < b->c->layers; l++) {
        if (b->k != NULL) free(b->k[l]);
        if (b->v != NULL) free(b->v[l]);
        if (b->k_half != NULL) free(b->k_half[l]);
        if (b->v_half != NULL) free(b->v_half[l]);
    }
    free(b->k);
    free(b->v);
    free(b->k_half);
    free(b->v_half);
    free(b->ids);
    free(b->logits);
    free(b->left);
    free(b->right);
    free(b->product);
    model_session_close(b->session);
    model_close(b->m);
}

static float *model_noise(size_t count)
{
    float *floats = malloc(count * sizeof *floats);
    uint64_t state = 1;
    for (size_t i = 0; floats != NULL && i < count; i++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        floats[i] = (float)(state >> 40) * 0x1p-24f - 0.5f;
    }
    return floats;
}

static kvt_status model_make_buffers(model_bench *b)
{
    const model_config *c = b->c;
    const size_t rows = (size_t)b->longest * model_kv_dim(c);
    size_t wide = c->ffn_dim > c->dim ? c->ffn_dim : c->dim;
    if (model_query_dim(c) > wide) wide = model_query_dim(c);
    const size_t product = b->longest * (wide > MODEL_PRODUCT_ROWS ? wide : MODEL_PRODUCT_ROWS);
    b->k = calloc(c->layers, sizeof *b->k);
    b->v = calloc(c->layers, sizeof *b->v);
    b->k_half = calloc(c->layers, sizeof *b->k_half);
    b->v_half = calloc(c->layers, sizeof *b->v_half);
    b->ids = calloc(b->longest, sizeof *b->ids);
    b->logits = calloc((size_t)MODEL_SEQUENCES * c->vocab, sizeof *b->logits);
    b->left = model_noise(b->longest * wide);
    b->right = model_noise((size_t)MODEL_PRODUCT_ROWS * wide);
    b->product = model_noise(product);
    if (b->k == NULL || b->v == NULL || b->k_half == NULL || b->v_half == NULL || b->ids == NULL ||
        b->logits == NULL || b->left == NULL || b->right == NULL || b->product == NULL) {
        return KVT_E_MEMORY;
    }
    for (uint32_t l = 0; l < c->layers; l++) {
        b->k[l] = model_noise(rows);
        b->v[l] = model_noise(rows);
        b->k_half[l] = calloc(rows, sizeof **b->k_half);
        b->v_half[l] = calloc(rows, sizeof **b->v_half);
        if (b->k[l] == NULL || b->v[l] == NULL || b->k_half[l] == NULL || b->v_half[l] == NULL)
            return KVT_E_MEMORY;
    }
    for (uint32_t i = 0; i < b->longest; i++)
        b->ids[i] = (uint32_t)(i * UINT64_C(2654435761) % c->vocab);
    return KVT_OK;
}

kvt_status bench_model_run(const bench_model_options *options, char *message, size_t message_size)
{
    bench_model_options given = *options;
    model_row rows[BENCH_MODEL_LENGTHS];
    model_bench b = {.options = &given};
    if (given.threads == 0) given.threads = 1;
    b.repeats = bench_repetitions(given.iterations, MODEL_REPEATS, given.quick);
    if (given.token_counts == 0) {
        static const uint32_t usual[] = {1024, 3072, 7168};
        given.token_counts = given.quick ? 1 : 3;
        memcpy(given.tokens, usual, sizeof usual);
    }
    for (uint32_t i = 0; i < given.token_counts; i++)
        if (given.tokens[i] > b.longest) b.longest = given.tokens[i];
    kvt_status status = model_open(given.model, &b.m, message, message_size);
    if (status != KVT_OK) return status;
    b.c = model_config_of(b.m);
    status = model_session_open(b.m, &b.session);
    model_set_blas_threads((int)given.threads);
    if (status == KVT_OK) status = model_make_buffers(&b);
    for (uint32_t i = 0; status == KVT_OK && i < given.token_counts; i++) {
        if (given.progress != NULL)
            given.progress(given.progress_context, (double)i / given.token_counts, "prefill");
        status = model_measure(&b, given.tokens[i], &rows[i]);
    }
    if (status == KVT_OK && given.progress != NULL)
        given.progress(given.progress_context, 1.0, NULL);
    if (status == KVT_OK && (given.json ? model_print_json(&b, rows) : model_print_text(&b, rows)))
        status = KVT_E_IO;
    model_free(&b);
    return status;
}
