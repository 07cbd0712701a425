/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decode_cost.c - what a step and an index take of one core: the indexes of one layer of the
 * generator are built, then its selects are timed, as a whole and in parts. The attention that
 * sketches lose of what is read is counted beside.
 */
#include "decode.h"
#include "lab/private.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { COST_ROWS = 16, COST_STEPS = 96, COST_HEADS = 8, COST_JUDGED = 4 };

#define COST_BUDGET 0.0156 /* of the tokens, at 16 bits */

typedef struct cost_site {
    decode_source source;
    uint16_t *keys, *values;
    float *queries[COST_HEADS];
    sparse_index index[COST_HEADS];
    sparse_paging paging;
    sparse_work work, whole; /* of the index, and of it without sketches */
    uint8_t *variant[COST_HEADS];
    singles_codes codes[COST_HEADS];
    singles_work scratch;
    singles_choice choice;
    double recall[2]; /* of both, over all heads and a few steps */
    double build_seconds, code_seconds;
} cost_site;

/* The same index in one pass: every step scores all clusters in full. */
static sparse_index one_pass(const sparse_index *index)
{
    sparse_index whole = *index;
    whole.full = whole.lanes;
    whole.axes = 0;
    return whole;
}

static kvt_status cost_choose(const cost_site *s, const sparse_index *index, const float *queries,
                              sparse_work *work, double *scored_out, uint8_t *variant)
{
    const float resident[4] = {5.0f, 5.0f, 5.0f, 5.0f};
    const float scale = 1.0f / sqrtf((float)s->source.head_dim);
    pages_terms terms;
    pages_plan plan;
    const kvt_status status =
        sparse_choose_weights(index, &s->paging, queries, s->source.group, scale, resident, work);
    if (status != KVT_OK) return status;
    *scored_out = base_cpu_seconds();
    pages_terms_init(&terms, s->source.head_dim, 2, 1u << PAGES_BITS_4 | 1u << PAGES_BITS_8, 4096);
    const pages_problem problem = {.count = s->paging.pages,
                                   .weight = work->page,
                                   .page_tokens = s->paging.page_tokens,
                                   .last_tokens = s->paging.tokens % s->paging.page_tokens,
                                   .budget_bytes = (uint64_t)(COST_BUDGET * s->paging.tokens) *
                                                   s->source.head_dim * 4,
                                   .terms = &terms};
    pages_choose(&problem, variant, &plan);
    return KVT_OK;
}

/* Adds, for one head, the share of the true attention that is read with sketches and in one pass.
 * The keys are still those of the head. */
static kvt_status cost_judge(cost_site *s, uint32_t head)
{
    const uint32_t dim = s->source.head_dim, group = s->source.group, tokens = s->paging.tokens;
    const sparse_index whole = one_pass(&s->index[head]);
    const sparse_index *const indexes[2] = {&s->index[head], &whole};
    sparse_work *const works[2] = {&s->work, &s->whole};
    float *scores = malloc(tokens * sizeof *scores);
    kvt_status status = scores != NULL ? KVT_OK : KVT_E_MEMORY;
    double unused;
    for (uint32_t i = 0; status == KVT_OK && i < 2 * COST_JUDGED; i++) {
        const float *queries = s->queries[head] + (size_t)(i / 2) * group * dim;
        status = cost_choose(s, indexes[i % 2], queries, works[i % 2], &unused, s->variant[head]);
        for (uint32_t g = 0; status == KVT_OK && g < group; g++) {
            double most = -INFINITY, all = 0.0, read = 0.0;
            sparse_kernels_in_use()->dots(s->keys, dim * 2, tokens, KVT_DTYPE_FP16,
                                          queries + (size_t)g * dim, dim, 1.0f / sqrtf((float)dim),
                                          scores);
            for (uint32_t t = 0; t < tokens; t++)
                most = fmax(most, (double)scores[t]);
            for (uint32_t place = 0; place < tokens; place++) {
                const uint32_t token = sparse_index_token(indexes[0], place);
                const double weight = exp((double)scores[token] - most);
                all += weight;
                if (s->variant[head][sparse_page_of(&s->paging, place)] != PAGES_ABSENT)
                    read += weight;
            }
            s->recall[i % 2] += read / all / group / COST_JUDGED / COST_HEADS;
        }
    }
    free(scores);
    return status;
}

static kvt_status cost_open_work(const cost_site *s, const sparse_index *index, uint32_t count,
                                 sparse_work *work)
{
    sparse_work_room room = {.pages = s->paging.pages};
    for (uint32_t h = 0; h < count; h++)
        sparse_work_room_add(&room, &index[h], s->paging.pages);
    return sparse_work_open(&room, s->source.group, s->source.head_dim, work);
}

/* Builds and judges one head. */
static kvt_status cost_head(cost_site *s, const decode_options *options, uint32_t h)
{
    const uint32_t row = s->source.head_dim * 2;
    const sparse_rows keys = {s->keys, row}, values = {s->values, row};
    const sparse_index_options index = {.head_dim = s->source.head_dim,
                                        .dtype = KVT_DTYPE_FP16,
                                        .one_pass = options->one_pass,
                                        .seed = h};
    s->queries[h] = malloc((size_t)COST_ROWS * s->source.group * row * 2);
    s->variant[h] = malloc(s->paging.pages);
    if (s->queries[h] == NULL || s->variant[h] == NULL) return KVT_E_MEMORY;
    decode_synthetic_unit(&s->source, 0, h, s->keys, s->values, s->queries[h]);
    const double start = base_cpu_seconds();
    kvt_status status = sparse_index_build(&index, &keys, &values, options->tokens, &s->index[h]);
    const double built = base_cpu_seconds();
    s->build_seconds += built - start;
    if (status == KVT_OK)
        status = sparse_singles_build(&s->index[h], &keys, KVT_DTYPE_FP16, h, &s->codes[h]);
    s->code_seconds += base_cpu_seconds() - built;
    if (status != KVT_OK) return status;
    const sparse_index whole = one_pass(&s->index[h]);
    status = cost_open_work(s, &s->index[h], 1, &s->work);
    if (status == KVT_OK) status = cost_open_work(s, &whole, 1, &s->whole);
    if (status == KVT_OK) status = cost_judge(s, h);
    sparse_work_close(&s->work);
    sparse_work_close(&s->whole);
    return status;
}

static kvt_status cost_open(cost_site *s, const decode_options *options)
{
    decode_source_synthetic(1, options->tokens, COST_ROWS, options->seed, &s->source);
    s->source.fall = options->fall;
    const size_t all = (size_t)s->source.all * s->source.head_dim;
    s->keys = malloc(all * sizeof *s->keys);
    s->values = malloc(all * sizeof *s->values);
    if (s->keys == NULL || s->values == NULL) return KVT_E_MEMORY;
    kvt_status status = sparse_paging_init(&s->paging, s->source.head_dim, KVT_DTYPE_FP16,
                                           options->tokens, 0, options->page_tokens);
    for (uint32_t h = 0; status == KVT_OK && h < COST_HEADS; h++)
        status = cost_head(s, options, h);
    if (status == KVT_OK) status = cost_open_work(s, s->index, COST_HEADS, &s->work);
    if (status == KVT_OK)
        status = sparse_singles_work_open(options->tokens, s->source.group, s->source.head_dim,
                                          &s->scratch);
    if (status == KVT_OK)
        status = sparse_singles_open(options->tokens, s->paging.pages, s->work.room.lanes,
                                     s->source.group, &s->choice);
    for (uint32_t p = 0; status == KVT_OK && p < s->paging.pages; p += 2)
        s->choice.page[p] = 1;
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
        sparse_singles_free(&s->codes[h]);
    }
    sparse_work_close(&s->work);
    sparse_singles_work_close(&s->scratch);
    sparse_singles_close(&s->choice);
}

/* One layer's select, in the thread's own seconds; then its weights, its plans, and the estimate,
 * which a step makes while its reads are under way. */
static kvt_status cost_step(cost_site *s, uint32_t step, double seconds[4])
{
    const size_t width = (size_t)s->source.group * s->source.head_dim;
    float output[4 * 128], lse[4];
    double scored;
    memset(seconds, 0, 4 * sizeof *seconds);
    const double start = base_cpu_seconds();
    for (uint32_t h = 0; h < COST_HEADS; h++) {
        const kvt_status status =
            cost_choose(s, &s->index[h], s->queries[h] + step % COST_ROWS * width, &s->work,
                        &scored, s->variant[h]);
        if (status != KVT_OK) return status;
    }
    seconds[3] = base_cpu_seconds() - start;
    for (uint32_t h = 0; h < COST_HEADS; h++) {
        const double begin = base_cpu_seconds();
        const kvt_status status =
            cost_choose(s, &s->index[h], s->queries[h] + step % COST_ROWS * width, &s->work,
                        &scored, s->variant[h]);
        if (status != KVT_OK) return status;
        const double chosen = base_cpu_seconds();
        sparse_choose_estimate(&s->index[h], &s->paging, s->variant[h], &s->work, output, lse);
        seconds[0] += scored - begin;
        seconds[1] += chosen - scored;
        seconds[2] += base_cpu_seconds() - chosen;
    }
    return KVT_OK;
}

/* The choice of single tokens of half of the pages, which a step makes meanwhile, too. It leaves
 * nothing of the others' in the caches, so it is timed apart. */
static kvt_status cost_single(cost_site *s, uint32_t step, double *seconds_out)
{
    const uint32_t dim = s->source.head_dim;
    double scored;
    *seconds_out = 0;
    for (uint32_t h = 0; h < COST_HEADS; h++) {
        const float *queries = s->queries[h] + (size_t)(step % COST_ROWS) * s->source.group * dim;
        const kvt_status status =
            cost_choose(s, &s->index[h], queries, &s->work, &scored, s->variant[h]);
        if (status != KVT_OK) return status;
        const double begin = base_cpu_seconds();
        sparse_singles_choose(&s->codes[h], &s->index[h], &s->paging, queries,
                              1.0f / sqrtf((float)dim), (float)COST_BUDGET, &s->scratch, &s->work,
                              &s->choice);
        *seconds_out += base_cpu_seconds() - begin;
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
    double single[COST_STEPS];
    kvt_status status = cost_open(&s, options);
    for (uint32_t step = 0; status == KVT_OK && step < COST_STEPS; step++) {
        double seconds[4];
        status = cost_step(&s, step, seconds);
        score[step] = seconds[0];
        choose[step] = seconds[1];
        estimate[step] = seconds[2];
        select[step] = seconds[3];
    }
    for (uint32_t step = 0; status == KVT_OK && step < COST_STEPS; step++)
        status = cost_single(&s, step, &single[step]);
    if (status == KVT_OK) {
        const double kv = (double)options->tokens * s.source.head_dim * 4.0 * COST_HEADS;
        sparse_code code;
        *cost = (decode_cost){
            .tokens = options->tokens,
            .kv_heads = COST_HEADS,
            .group = s.source.group,
            .head_dim = s.source.head_dim,
            .recall = s.recall[0],
            .recall_one_pass = s.recall[1],
            .build_tokens_per_s = (double)options->tokens * COST_HEADS / s.build_seconds,
            .single_tokens_per_s = (double)options->tokens * COST_HEADS / s.code_seconds};
        for (uint32_t h = 0; h < COST_HEADS; h++) {
            cost->clusters += s.index[h].clusters;
            cost->axes += (double)s.index[h].axes / COST_HEADS;
            cost->full_share += (double)s.index[h].full / s.index[h].lanes / COST_HEADS;
            cost->index_share += (double)(s.index[h].bytes + s.index[h].slope_bytes) / kv;
            cost->single_share += (double)s.codes[h].bytes / kv;
        }
        status = sparse_code_open(&s.paging, &code);
        cost->code_share = (double)code.bytes * COST_HEADS / kv;
        sparse_code_close(&code);
        cost->score_ms = quantile(score, 0.5);
        cost->choose_ms = quantile(choose, 0.5);
        cost->estimate_ms = quantile(estimate, 0.5);
        cost->single_ms = quantile(single, 0.5);
        cost->select_ms_p50 = quantile(select, 0.5);
        cost->select_ms_p99 = quantile(select, 0.99);
    }
    cost_close(&s);
    return status;
}
