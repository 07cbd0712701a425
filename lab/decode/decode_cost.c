/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decode_cost.c - what a step and an index take of one core: the indexes of one layer of the
 * generator are built, then its selects are timed, scores and choices apart.
 */
#include "base/clock.h"
#include "base/order.h"
#include "decode.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { COST_ROWS = 16, COST_STEPS = 96, COST_HEADS = 8 };

typedef struct cost_site {
    decode_source source;
    uint16_t *keys, *values;
    float *queries[COST_HEADS];
    sparse_index index[COST_HEADS];
    sparse_paging paging;
    sparse_work work;
    uint8_t *variant[COST_HEADS];
    double build_seconds;
} cost_site;

static kvt_status cost_open(cost_site *s, const decode_options *options)
{
    decode_source_synthetic(1, options->tokens, COST_ROWS, options->seed, &s->source);
    const size_t all = (size_t)s->source.all * s->source.head_dim;
    const uint32_t width = s->source.group * s->source.head_dim;
    uint32_t clusters = 0;
    kvt_status status = KVT_OK;
    s->keys = malloc(all * sizeof *s->keys);
    s->values = malloc(all * sizeof *s->values);
    if (s->keys == NULL || s->values == NULL) return KVT_E_MEMORY;
    const sparse_rows keys = {s->keys, s->source.head_dim * 2};
    const sparse_rows values = {s->values, s->source.head_dim * 2};
    for (uint32_t h = 0; status == KVT_OK && h < COST_HEADS; h++) {
        s->queries[h] = malloc((size_t)COST_ROWS * width * sizeof(float));
        if (s->queries[h] == NULL) return KVT_E_MEMORY;
        decode_synthetic_unit(&s->source, 0, h, s->keys, s->values, s->queries[h]);
        const sparse_index_options index = {
            .head_dim = s->source.head_dim, .dtype = KVT_DTYPE_FP16, .seed = h};
        const double start = base_cpu_seconds();
        status = sparse_index_build(&index, &keys, &values, options->tokens, &s->index[h]);
        s->build_seconds += base_cpu_seconds() - start;
        if (s->index[h].clusters > clusters) clusters = s->index[h].clusters;
    }
    if (status == KVT_OK)
        status = sparse_paging_init(&s->paging, s->source.head_dim, KVT_DTYPE_FP16, options->tokens,
                                    0, options->page_tokens);
    for (uint32_t h = 0; status == KVT_OK && h < COST_HEADS; h++)
        if ((s->variant[h] = malloc(s->paging.pages)) == NULL) status = KVT_E_MEMORY;
    if (status == KVT_OK)
        status = sparse_work_open(clusters, s->paging.pages, s->source.group, s->source.head_dim,
                                  &s->work);
    return status;
}

static void cost_close(cost_site *s)
{
    free(s->keys);
    free(s->values);
    for (uint32_t h = 0; h < COST_HEADS; h++) {
        free(s->queries[h]);
        free(s->variant[h]);
        sparse_index_free(&s->index[h]);
    }
    sparse_work_close(&s->work);
}

/* One layer's select: seconds of weights, of plans, and of the estimate, which a step makes while
 * its reads are under way. */
static kvt_status cost_step(cost_site *s, uint32_t step, double seconds[3])
{
    const float scale = 1.0f / sqrtf((float)s->source.head_dim);
    const uint32_t width = s->source.group * s->source.head_dim;
    const float resident[4] = {5.0f, 5.0f, 5.0f, 5.0f};
    float output[4 * 128], lse[4];
    pages_terms terms;
    pages_terms_init(&terms, s->source.head_dim, 2, 1u << PAGES_BITS_4 | 1u << PAGES_BITS_8, 4096);
    seconds[0] = seconds[1] = seconds[2] = 0.0;
    for (uint32_t h = 0; h < COST_HEADS; h++) {
        const double start = base_clock_seconds();
        const kvt_status status = sparse_choose_weights(
            &s->index[h], &s->paging, s->queries[h] + (size_t)(step % COST_ROWS) * width,
            s->source.group, scale, resident, &s->work);
        if (status != KVT_OK) return status;
        const double scored = base_clock_seconds();
        const pages_problem problem = {.count = s->paging.pages,
                                       .weight = s->work.page,
                                       .page_tokens = s->paging.page_tokens,
                                       .last_tokens = s->paging.tokens % s->paging.page_tokens,
                                       .budget_bytes = (uint64_t)(0.0156 * s->paging.tokens) * 512,
                                       .terms = &terms};
        pages_plan plan;
        pages_choose(&problem, s->variant[h], &plan);
        const double chosen = base_clock_seconds();
        sparse_choose_estimate(&s->index[h], &s->paging, s->variant[h], &s->work, output, lse);
        seconds[0] += scored - start;
        seconds[1] += chosen - scored;
        seconds[2] += base_clock_seconds() - chosen;
    }
    return KVT_OK;
}

static double quantile(double *values, double share)
{
    qsort(values, COST_STEPS, sizeof *values, base_order_doubles);
    return 1000.0 * values[(uint32_t)(share * (COST_STEPS - 1))];
}

kvt_status decode_cost_measure(const decode_options *options, decode_cost *cost)
{
    cost_site s = {.keys = NULL};
    double select[COST_STEPS], score[COST_STEPS], choose[COST_STEPS], estimate[COST_STEPS];
    kvt_status status = cost_open(&s, options);
    for (uint32_t step = 0; status == KVT_OK && step < COST_STEPS; step++) {
        double seconds[3];
        status = cost_step(&s, step, seconds);
        score[step] = seconds[0];
        choose[step] = seconds[1];
        estimate[step] = seconds[2];
        select[step] = seconds[0] + seconds[1];
    }
    if (status == KVT_OK) {
        const double kv = (double)options->tokens * s.source.head_dim * 4.0 * COST_HEADS;
        sparse_code code;
        *cost = (decode_cost){.tokens = options->tokens,
                              .kv_heads = COST_HEADS,
                              .group = s.source.group,
                              .head_dim = s.source.head_dim,
                              .build_tokens_per_s =
                                  (double)options->tokens * COST_HEADS / s.build_seconds};
        for (uint32_t h = 0; h < COST_HEADS; h++) {
            cost->clusters += s.index[h].clusters;
            cost->index_share += (double)s.index[h].bytes / kv;
        }
        status = sparse_code_open(&s.paging, &code);
        cost->code_share = (double)code.bytes * COST_HEADS / kv;
        sparse_code_close(&code);
        cost->score_ms = quantile(score, 0.5);
        cost->choose_ms = quantile(choose, 0.5);
        cost->estimate_ms = quantile(estimate, 0.5);
        cost->select_ms_p50 = quantile(select, 0.5);
        cost->select_ms_p99 = quantile(select, 0.99);
    }
    cost_close(&s);
    return status;
}
