/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_sparse_choose.c - coded pages against the codec's own records, weights and estimates against
 * sums in double, attention against a naive one.
 */
#include "cases.h"
#include "dice.h"

#include "base/number/number.h"
#include "codecs/kernels/cpu.h"
#include "sparse/attend.h"
#include "sparse/choose.h"
#include "sparse/index_added.h"
#include "sparse/sparse_kernels.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { GROUP = 3 };

typedef struct site {
    uint32_t tokens, dim;
    uint16_t *keys, *values; /* fp16, in the order of positions */
    uint16_t *packed[2];     /* in the order of places */
    sparse_index index;
    sparse_paging paging;
    sparse_code code;
    uint8_t *coded; /* every page's 8-bit form, one after the other */
    void *scratch;
    float *queries;
    float scale;
} site;

static void site_pack(site *s)
{
    for (uint32_t p = 0; p < s->tokens; p++) {
        const size_t from = (size_t)sparse_index_token(&s->index, p) * s->dim;
        memcpy(s->packed[0] + (size_t)p * s->dim, s->keys + from, s->dim * 2);
        memcpy(s->packed[1] + (size_t)p * s->dim, s->values + from, s->dim * 2);
    }
    for (uint32_t g = 0; g < sparse_segment_count(s->tokens, s->paging.segment_tokens); g++) {
        const size_t at =
            (size_t)sparse_segment_first(s->tokens, s->paging.segment_tokens, g) * s->dim;
        assert_ok(sparse_code_segment(&s->paging, &s->code, g, s->packed[0] + at, s->packed[1] + at,
                                      s->coded + 2 * at, s->scratch));
    }
}

static site *site_open(uint32_t tokens, uint32_t dim, uint32_t page_tokens, uint64_t dice)
{
    site *s = test_zeros(sizeof *s);
    const size_t elements = (size_t)tokens * dim;
    s->tokens = tokens;
    s->dim = dim;
    s->scale = 1.0f / sqrtf((float)dim);
    s->keys = test_alloc(elements * 2);
    s->values = test_alloc(elements * 2);
    s->packed[0] = test_alloc(elements * 2);
    s->packed[1] = test_alloc(elements * 2);
    s->coded = test_alloc(2 * elements);
    s->queries = test_alloc(GROUP * dim * sizeof(float));
    for (uint32_t t = 0; t < tokens; t++) {
        uint64_t topic = number_mix(t / 5) % 40 + 1;
        for (uint32_t d = 0; d < dim; d++) {
            const float middle = dice_signed(&topic) * (d == 2 ? 8.0f : 2.0f);
            s->keys[(size_t)t * dim + d] = half_from_float(middle + 0.2f * dice_signed(&dice));
            s->values[(size_t)t * dim + d] =
                half_from_float(middle * 0.5f + 0.3f * dice_signed(&dice));
        }
    }
    for (uint32_t i = 0; i < GROUP * dim; i++)
        s->queries[i] = 3.0f * dice_signed(&dice);
    const sparse_rows keys = {s->keys, dim * 2}, values = {s->values, dim * 2};
    const sparse_index_options options = {
        .head_dim = dim, .dtype = KVT_DTYPE_FP16, .segment_tokens = 256, .seed = 5};
    assert_ok(sparse_index_build(&options, &keys, &values, tokens, &s->index));
    assert_ok(sparse_paging_init(&s->paging, dim, KVT_DTYPE_FP16, tokens, 256, page_tokens));
    assert_ok(sparse_code_open(&s->paging, &s->code));
    s->scratch = test_aligned(64, sparse_code_scratch(&s->paging));
    site_pack(s);
    return s;
}

static void site_close(site *s)
{
    sparse_index_free(&s->index);
    sparse_code_close(&s->code);
}

/* ---- pages ---- */

static void check_page(const site *s, uint32_t page, pages_variant variant, double *error)
{
    const uint32_t first = sparse_page_first(&s->paging, page);
    const uint32_t n = sparse_page_first(&s->paging, page + 1) - first;
    uint16_t keys[128 * 512], values[128 * 512];
    /* The prefix alone, in a buffer of its size, so that a read past it is found. */
    const uint64_t bytes = sparse_page_bytes(&s->paging, n, variant);
    uint8_t *prefix = test_alloc(bytes);
    memcpy(prefix, s->coded + 2 * (size_t)first * s->dim, bytes);
    assert_ok(
        sparse_code_page(&s->paging, &s->code, page, variant, prefix, keys, values, s->scratch));
    for (uint32_t i = 0; i < n * s->dim; i++) {
        const size_t at = (size_t)first * s->dim + i;
        const double k = (double)half_to_float(s->packed[0][at]) - (double)half_to_float(keys[i]);
        const double v = (double)half_to_float(s->packed[1][at]) - (double)half_to_float(values[i]);
        *error += k * k + v * v;
    }
}

TEST(prefixes_of_pages_decode)
{
    const struct {
        uint32_t tokens, dim, page;
    } cases[] = {{1000, 64, 64}, {777, 128, 32}, {300, 40, 8},  {515, 8, 16},
                 {260, 512, 16}, {64, 64, 128},  {700, 72, 128}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        site *s = site_open(cases[i].tokens, cases[i].dim, cases[i].page, i);
        double error[PAGES_VARIANTS] = {0.0};
        for (uint32_t page = 0; page < s->paging.pages; page++) {
            assert_true(sparse_code_has(&s->paging, &s->code, page));
            check_page(s, page, PAGES_BITS_2, &error[PAGES_BITS_2]);
            check_page(s, page, PAGES_BITS_4, &error[PAGES_BITS_4]);
            check_page(s, page, PAGES_BITS_8, &error[PAGES_BITS_8]);
        }
        /* Two more bits halve the error twice, its square four times. */
        assert_true(error[PAGES_BITS_4] < error[PAGES_BITS_2] / 4.0);
        assert_true(error[PAGES_BITS_8] < error[PAGES_BITS_4] / 64.0);
        site_close(s);
    }
}

TEST(segments_that_do_not_fit_the_code_stay_raw)
{
    site *s = site_open(600, 64, 32, 4);
    const uint16_t infinite = 0x7c00;
    s->packed[1][300 * 64] = infinite;
    assert_int_equal(sparse_code_segment(&s->paging, &s->code, 1, s->packed[0] + 256 * 64,
                                         s->packed[1] + 256 * 64, s->coded, s->scratch),
                     KVT_RAW);
    assert_true(sparse_code_has(&s->paging, &s->code, 7));
    assert_false(sparse_code_has(&s->paging, &s->code, 8));
    site_close(s);
}

/* Minima that are not finite, and finite ones whose rows pass what fp16 holds. */
TEST(forged_minima_give_no_rows)
{
    static const uint16_t forged[] = {0x7c00, 0xfc00, 0x7e01, 0x7bff};
    site *s = site_open(300, 64, 32, 4);
    uint16_t keys[32 * 64], values[32 * 64],
        *minima = (uint16_t *)(void *)(s->code.memory + 64 + 32);
    for (size_t i = 0; i < sizeof forged / sizeof *forged; i++) {
        const uint16_t minimum = minima[7], scale = minima[3 * 64 + 7]; /* 3 groups of a segment */
        minima[7] = forged[i];
        if (i == 3) minima[3 * 64 + 7] = 0x7bff;
        assert_int_equal(sparse_code_page(&s->paging, &s->code, 0, PAGES_BITS_4, s->coded, keys,
                                          values, s->scratch),
                         KVT_E_CORRUPT);
        minima[7] = minimum;
        minima[3 * 64 + 7] = scale;
        assert_ok(sparse_code_page(&s->paging, &s->code, 0, PAGES_BITS_4, s->coded, keys, values,
                                   s->scratch));
    }
    site_close(s);
}

/* ---- weights ---- */

static void work_open(const site *s, sparse_work *work)
{
    sparse_work_room room = {.pages = 0};
    sparse_work_room_add(&room, &s->index, s->paging.pages);
    assert_ok(sparse_work_open(&room, GROUP, s->dim, work));
}

static double score_of(const site *s, uint32_t g, uint32_t c)
{
    double sum = 0.0;
    for (uint32_t d = 0; d < s->dim; d++)
        sum += (double)s->queries[g * s->dim + d] * (double)s->index.key_step[d] *
               s->index.centroids[(size_t)c * s->dim + d];
    return sum * (double)s->scale;
}

/* The same with what a cluster's scatter adds. */
static double lifted_score(const site *s, uint32_t g, uint32_t c)
{
    double deviation = 0.0;
    for (uint32_t d = 0; d < s->dim; d++) {
        const double scaled = (double)s->queries[g * s->dim + d] * (double)s->scale;
        deviation += scaled * scaled * (double)s->index.key_scatter[d];
    }
    const double x = deviation * (double)s->index.scatter[c];
    return score_of(s, g, c) + x / 2 / (1 + x / 12);
}

/* The change of a cluster's values towards a query, in steps of a code. */
static double change_of(const site *s, uint32_t g, uint32_t c)
{
    double along = 0.0;
    for (uint32_t d = 0; d < s->dim; d++)
        along += (double)s->queries[g * s->dim + d] * (double)s->index.key_step[d] *
                 s->index.slopes[2 * (size_t)c * s->dim + d];
    return fmax(fmin(along * (double)s->scale * (double)s->index.slope[c], 1.0), -1.0);
}

/* What choose.c says, in double. */
static void check_weights(const site *s, const float *resident, const uint8_t *variant,
                          const sparse_work *work, const float *output, const float *lse)
{
    double *page = test_zeros(s->paging.pages * sizeof *page);
    for (uint32_t g = 0; g < GROUP; g++) {
        double all = exp((double)resident[g]), left = 0.0, sums[128] = {0.0};
        for (uint32_t c = 0; c < s->index.clusters; c++)
            all += (s->index.first[c + 1] - s->index.first[c]) * exp(lifted_score(s, g, c));
        for (uint32_t c = 0; c < s->index.clusters; c++) {
            const double one = exp(lifted_score(s, g, c)), change = change_of(s, g, c);
            for (uint32_t p = s->index.first[c]; p < s->index.first[c + 1]; p++) {
                page[p / s->paging.page_tokens] += one / all / GROUP;
                if (variant[p / s->paging.page_tokens] != 0) continue;
                left += one;
                for (uint32_t d = 0; d < s->dim; d++)
                    sums[d] += one *
                               (s->index.means[(size_t)c * s->dim + d] +
                                change * s->index.slopes[(2 * (size_t)c + 1) * s->dim + d]) *
                               (double)s->index.value_step[d];
            }
        }
        assert_true(fabs(work->lse[g] - log(all)) < 1e-3);
        assert_true(fabs(lse[g] - log(left)) < 1e-3);
        for (uint32_t d = 0; d < s->dim; d++)
            assert_true(fabs(sums[d] / left - (double)output[g * s->dim + d]) < 2e-3);
    }
    for (uint32_t p = 0; p < s->paging.pages; p++)
        assert_true(fabs(page[p] - (double)work->page[p]) < 1e-3 * page[p] + 1e-7);
}

TEST(weights_and_estimates_are_those_of_the_centroids)
{
    for (uint64_t seed = 0; seed < 6; seed++) {
        site *s =
            site_open(900 + (uint32_t)seed * 37, seed % 2 ? 64 : 128, seed % 3 ? 32 : 64, seed);
        sparse_work work;
        float resident[GROUP] = {-1.0f, 2.0f, 0.5f}, output[GROUP * 128], lse[GROUP];
        uint8_t *variant = test_zeros(s->paging.pages);
        for (uint32_t p = 0; p < s->paging.pages; p += 3)
            variant[p] = PAGES_BITS_4;
        work_open(s, &work);
        assert_ok(sparse_choose_weights(&s->index, &s->paging, s->queries, GROUP, s->scale,
                                        resident, &work));
        sparse_choose_estimate(&s->index, &s->paging, variant, &work, output, lse);
        check_weights(s, resident, variant, &work, output, lse);
        /* All pages are read: nothing is estimated. */
        memset(variant, PAGES_RAW, s->paging.pages);
        sparse_choose_estimate(&s->index, &s->paging, variant, &work, output, lse);
        for (uint32_t g = 0; g < GROUP; g++)
            assert_true(lse[g] == -INFINITY);
        s->queries[5] = NAN;
        assert_int_equal(sparse_choose_weights(&s->index, &s->paging, s->queries, GROUP, s->scale,
                                               resident, &work),
                         KVT_E_ARGUMENT);
        sparse_work_close(&work);
        site_close(s);
    }
}

TEST(plans_are_the_same_on_every_instruction_set)
{
    site *s = site_open(1500, 64, 32, 9);
    sparse_work one, two;
    const float resident[GROUP] = {0.0f, -INFINITY, 3.0f};
    work_open(s, &one);
    work_open(s, &two);
    codecs_cpu_force(CODECS_CPU_SCALAR);
    assert_ok(
        sparse_choose_weights(&s->index, &s->paging, s->queries, GROUP, s->scale, resident, &one));
    codecs_cpu_force(codecs_cpu_best());
    assert_ok(
        sparse_choose_weights(&s->index, &s->paging, s->queries, GROUP, s->scale, resident, &two));
    assert_memory_equal(one.page, two.page, s->paging.pages * sizeof(float));
    sparse_work_close(&one);
    sparse_work_close(&two);
    site_close(s);
}

/* ---- two passes ---- */

/* Work in two passes with this many clusters in full; `one` is the same index in one pass. */
static void two_open(site *s, uint32_t full, sparse_index *one, sparse_work works[2])
{
    const sparse_rows keys = {s->keys, s->dim * 2}, values = {s->values, s->dim * 2};
    const sparse_index_options options = {.head_dim = s->dim,
                                          .dtype = KVT_DTYPE_FP16,
                                          .segment_tokens = 256,
                                          .one_pass = 40,
                                          .seed = 5};
    sparse_added *added = s->index.added;
    sparse_index_free(&s->index);
    assert_ok(sparse_index_build(&options, &keys, &values, s->tokens, &s->index));
    assert_true(s->index.axes > 0);
    s->index.added = added;
    s->index.full = full < s->index.lanes ? full : s->index.lanes;
    *one = s->index;
    one->axes = 0;
    const sparse_index *const indexes[2] = {one, &s->index};
    for (uint32_t i = 0; i < 2; i++) {
        sparse_work_room room = {.pages = 0};
        sparse_work_room_add(&room, indexes[i], s->paging.pages);
        assert_ok(sparse_work_open(&room, GROUP, s->dim, &works[i]));
    }
}

static double page_sum(const site *s, const sparse_work *work)
{
    double sum = 0.0;
    for (uint32_t p = 0; p < s->paging.pages; p++) {
        assert_true(work->page[p] >= 0.0f && work->page[p] < 1.001f);
        sum += (double)work->page[p];
    }
    return sum;
}

static int falling(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* The list ascends, and weighs nearly what the heaviest clusters do. */
static void check_list(const site *s, const sparse_work *one, const sparse_work *two)
{
    const uint32_t clusters = s->index.clusters;
    float *weight = test_alloc(clusters * sizeof *weight);
    double listed = 0.0, best = 0.0;
    memcpy(weight, one->weight, clusters * sizeof *weight);
    qsort(weight, clusters, sizeof *weight, falling);
    assert_true(two->listed > 0 && two->listed <= s->index.full);
    for (uint32_t i = 0; i < two->listed; i++) {
        assert_true(two->list[i] < clusters && (i == 0 || two->list[i] > two->list[i - 1]));
        listed += (double)one->weight[two->list[i]];
        best += (double)weight[i];
    }
    assert_true(listed > 0.6 * best);
}

/* With all clusters in full two passes are one; with some, the rest weighs about what it does. */
TEST(two_passes_weigh_like_one)
{
    const float residents[][GROUP] = {{-1.0f, 1.0f, -INFINITY}, {14.0f, 14.0f, 14.0f}, {9, -60, 3}};
    const uint32_t fulls[] = {UINT32_MAX, 48, 16};
    for (uint32_t i = 0; i < 9; i++) {
        site *s = site_open(3000, i % 2 ? 64 : 128, 32, 11 + i);
        const float *resident = residents[i % 3];
        float output[2][GROUP * 128], lse[2][GROUP];
        uint8_t *variant = test_zeros(s->paging.pages);
        sparse_index index;
        sparse_work works[2];
        const uint32_t full = fulls[i / 3];
        two_open(s, full, &index, works);
        for (uint32_t p = 0; p < s->paging.pages; p += 5)
            variant[p] = PAGES_BITS_8;
        for (uint32_t w = 0; w < 2; w++) {
            assert_ok(sparse_choose_weights(w == 0 ? &index : &s->index, &s->paging, s->queries,
                                            GROUP, s->scale, resident, &works[w]));
            sparse_choose_estimate(w == 0 ? &index : &s->index, &s->paging, variant, &works[w],
                                   output[w], lse[w]);
        }
        check_list(s, &works[0], &works[1]);
        const double one = page_sum(s, &works[0]), two = page_sum(s, &works[1]);
        for (uint32_t g = 0; g < GROUP; g++) {
            assert_true(fabs((double)works[1].lse[g] - (double)works[0].lse[g]) < 0.5);
            assert_true(fabs((double)lse[1][g] - (double)lse[0][g]) < 0.2);
            if (full != UINT32_MAX) continue;
            assert_true(fabs((double)works[1].lse[g] - (double)works[0].lse[g]) < 1e-4);
            assert_true(fabs((double)lse[1][g] - (double)lse[0][g]) < 1e-4);
            for (uint32_t d = 0; d < s->dim; d++)
                assert_true(fabs((double)output[0][g * s->dim + d] -
                                 (double)output[1][g * s->dim + d]) < 1e-3);
        }
        assert_true(full != UINT32_MAX ? two < one * 1.2 + 1e-6 && two > one * 0.1
                                       : fabs(two - one) < 1e-4 * one + 1e-9);
        /* Nothing is left of what is read, and every instruction set chooses alike. */
        memset(variant, PAGES_RAW, s->paging.pages);
        sparse_choose_estimate(&s->index, &s->paging, variant, &works[1], output[1], lse[1]);
        for (uint32_t g = 0; g < GROUP; g++)
            assert_true(lse[1][g] == -INFINITY);
        float *page = test_alloc(s->paging.pages * sizeof *page);
        memcpy(page, works[1].page, s->paging.pages * sizeof *page);
        codecs_cpu_force(CODECS_CPU_SCALAR);
        assert_ok(sparse_choose_weights(&s->index, &s->paging, s->queries, GROUP, s->scale,
                                        resident, &works[1]));
        codecs_cpu_force(codecs_cpu_best());
        assert_memory_equal(page, works[1].page, s->paging.pages * sizeof *page);
        sparse_work_close(&works[0]);
        sparse_work_close(&works[1]);
        site_close(s);
    }
}

/* Clusters that were added are always in full. */
TEST(added_clusters_weigh_the_same_in_two_passes)
{
    site *s = site_open(2000, 64, 32, 3);
    const float resident[GROUP] = {-INFINITY, -INFINITY, -INFINITY};
    const uint32_t tokens[2] = {10, 22};
    const float scatter[2] = {1.0f, 0.5f};
    float means[2 * 64], output[2][GROUP * 64], lse[2][GROUP];
    sparse_index index;
    sparse_added added;
    sparse_work works[2];
    for (uint32_t i = 0; i < 128; i++)
        means[i] = s->queries[i] * 0.5f;
    assert_ok(sparse_added_open(64, 3, 2, &added));
    s->index.added = &added;
    two_open(s, 48, &index, works);
    sparse_added_page(&s->index, means, means, tokens, scatter, 2);
    const uint32_t pages = s->paging.pages + added.pages;
    uint8_t *variant = test_zeros(pages);
    for (uint32_t w = 0; w < 2; w++) {
        const sparse_index *own = w == 0 ? &index : &s->index;
        assert_ok(sparse_choose_weights(own, &s->paging, s->queries, GROUP, s->scale, resident,
                                        &works[w]));
        sparse_choose_estimate(own, &s->paging, variant, &works[w], output[w], lse[w]);
    }
    assert_true(works[0].page[s->paging.pages] > 0.01f);
    for (uint32_t p = s->paging.pages; p < pages; p++)
        assert_true(fabsf(works[0].page[p] - works[1].page[p]) < 0.1f * works[0].page[p]);
    for (uint32_t g = 0; g < GROUP; g++)
        assert_true(fabsf(lse[0][g] - lse[1][g]) < 0.2f);
    sparse_work_close(&works[0]);
    sparse_work_close(&works[1]);
    sparse_added_close(&added);
    site_close(s);
}

TEST(an_empty_zone_has_no_weights)
{
    const sparse_rows rows = {NULL, 0};
    const float queries[64] = {1.0f}, resident[1] = {-INFINITY};
    float output[64], lse[1];
    sparse_index index;
    sparse_paging paging;
    sparse_work work;
    assert_ok(sparse_index_build(&(sparse_index_options){.head_dim = 64, .dtype = KVT_DTYPE_FP16},
                                 &rows, &rows, 0, &index));
    assert_ok(sparse_paging_init(&paging, 64, KVT_DTYPE_FP16, 0, 0, 0));
    const sparse_work_room room = {.pages = 0};
    assert_ok(sparse_work_open(&room, 1, 64, &work));
    assert_ok(sparse_choose_weights(&index, &paging, queries, 1, 0.125f, resident, &work));
    assert_true(work.lse[0] == -INFINITY);
    sparse_choose_estimate(&index, &paging, NULL, &work, output, lse);
    assert_true(lse[0] == -INFINITY && output[0] == 0.0f);
    sparse_work_close(&work);
    sparse_index_free(&index);
}

/* ---- attention ---- */

static void naive(const site *s, uint32_t g, uint32_t first, uint32_t end, double *output,
                  double *lse)
{
    double sum = 0.0;
    memset(output, 0, s->dim * sizeof *output);
    for (uint32_t t = first; t < end; t++) {
        double dot = 0.0;
        for (uint32_t d = 0; d < s->dim; d++)
            dot += (double)s->queries[g * s->dim + d] *
                   (double)half_to_float(s->keys[(size_t)t * s->dim + d]);
        const double weight = exp(dot * (double)s->scale);
        sum += weight;
        for (uint32_t d = 0; d < s->dim; d++)
            output[d] += weight * (double)half_to_float(s->values[(size_t)t * s->dim + d]);
    }
    for (uint32_t d = 0; d < s->dim; d++)
        output[d] /= sum;
    *lse = log(sum);
}

TEST(attention_is_that_of_a_naive_one)
{
    const uint32_t dims[] = {8, 64, 128, 72};
    for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++) {
        site *s = site_open(1300, dims[i], 32, i);
        const uint32_t dim = dims[i], cut[] = {0, 3, 400, 401, 1300};
        double output[GROUP * 128], wanted[128], wanted_lse;
        float got[GROUP * 128], lse[GROUP], part[GROUP * 128], part_lse[GROUP], only[GROUP];
        sparse_partial partial[GROUP];
        sparse_attend_start(output, partial, GROUP, dim);
        sparse_attend_end(output, partial, GROUP, dim, got, lse);
        assert_true(lse[0] == -INFINITY && got[0] == 0.0f);
        /* In runs, one of which comes as a part that was attended apart. */
        for (uint32_t r = 0; r < 4; r++) {
            const sparse_run run = {s->keys + (size_t)cut[r] * dim,
                                    s->values + (size_t)cut[r] * dim, dim * 2, cut[r + 1] - cut[r],
                                    KVT_DTYPE_FP16};
            double apart[GROUP * 128];
            sparse_partial other[GROUP];
            if (r != 2) {
                sparse_attend_run(&run, s->queries, GROUP, dim, s->scale, output, partial);
                continue;
            }
            sparse_attend_start(apart, other, GROUP, dim);
            sparse_attend_run(&run, s->queries, GROUP, dim, s->scale, apart, other);
            sparse_attend_end(apart, other, GROUP, dim, part, part_lse);
            for (uint32_t g = 0; g < GROUP; g++)
                sparse_attend_merge(part + g * dim, part_lse[g], dim, output + g * dim,
                                    &partial[g]);
        }
        sparse_attend_end(output, partial, GROUP, dim, got, lse);
        const sparse_run whole = {s->keys, s->values, dim * 2, 1300, KVT_DTYPE_FP16};
        sparse_attend_lse(&whole, s->queries, GROUP, dim, s->scale, only);
        for (uint32_t g = 0; g < GROUP; g++) {
            naive(s, g, 0, 1300, wanted, &wanted_lse);
            assert_true(fabs(wanted_lse - (double)lse[g]) < 1e-5);
            assert_true(fabs(wanted_lse - (double)only[g]) < 1e-5);
            for (uint32_t d = 0; d < dim; d++)
                assert_true(fabs(wanted[d] - (double)got[g * dim + d]) < 1e-5);
        }
        site_close(s);
    }
}
