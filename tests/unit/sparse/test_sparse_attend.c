/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_sparse_attend.c - the public attention: against a naive one in double, and what it refuses.
 */
#include "cases.h"
#include "dice.h"

#include "base/half.h"
#include "base/number/number.h"

#include <kvterrace/sparse.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { HEADS = 3, QUERIES = 6, DIM = 40, TOKENS = 400, PAGES = 60 };

typedef struct site {
    float keys[HEADS][TOKENS][DIM], values[HEADS][TOKENS][DIM]; /* as the dtype has them */
    uint8_t k[HEADS][TOKENS * DIM * 4 + 1], v[HEADS][TOKENS * DIM * 4 + 1];
    float queries[QUERIES * DIM];
    kvt_sparse_page list[2][PAGES];
    kvt_sparse_head heads[HEADS];
    kvt_sparse_pages pages;
} site;

static float store(uint8_t *to, size_t i, uint8_t dtype, float value)
{
    if (dtype == KVT_DTYPE_FP32) {
        memcpy(to + 4 * i, &value, 4);
        return value;
    }
    const uint16_t half =
        dtype == KVT_DTYPE_FP16 ? half_from_float(value) : half_bf16_from_float(value);
    memcpy(to + 2 * i, &half, 2);
    return dtype == KVT_DTYPE_FP16 ? half_to_float(half) : half_bf16_to_float(half);
}

/* Pages of unequal lengths cover the first two heads; the third has none. Odd addresses. */
static site *site_open(uint8_t dtype, uint64_t dice)
{
    site *s = test_zeros(sizeof *s);
    for (uint32_t h = 0; h < HEADS; h++)
        for (uint32_t i = 0; i < TOKENS * DIM; i++) {
            s->keys[h][i / DIM][i % DIM] = store(s->k[h] + 1, i, dtype, 4.0f * dice_signed(&dice));
            s->values[h][i / DIM][i % DIM] = store(s->v[h] + 1, i, dtype, dice_signed(&dice));
        }
    for (uint32_t i = 0; i < QUERIES * DIM; i++)
        s->queries[i] = 4.0f * dice_signed(&dice);
    for (uint32_t h = 0; h < 2; h++) {
        uint32_t count = 0;
        for (uint32_t at = 0, n = 1; at < TOKENS; at += n, n += 3) {
            if (n > TOKENS - at) n = TOKENS - at;
            const size_t bytes = (size_t)at * DIM * kvt_dtype_bytes(dtype);
            assert_true(count < PAGES);
            s->list[h][count++] = (kvt_sparse_page){.k = s->k[h] + 1 + bytes,
                                                    .v = s->v[h] + 1 + bytes,
                                                    .tokens = n,
                                                    .variant = KVT_SPARSE_RAW};
        }
        s->heads[h] = (kvt_sparse_head){.pages = s->list[h], .page_count = count};
    }
    s->pages = (kvt_sparse_pages){.struct_size = sizeof s->pages,
                                  .kv_heads = HEADS,
                                  .group = QUERIES / HEADS,
                                  .head_dim = DIM,
                                  .dtype = dtype,
                                  .heads = s->heads};
    return s;
}

static void check_head(const site *s, uint32_t q, double scale, const float *output, float lse)
{
    double sum = 0.0, sums[DIM] = {0.0};
    for (uint32_t t = 0; t < TOKENS; t++) {
        double dot = 0.0;
        for (uint32_t d = 0; d < DIM; d++)
            dot += (double)s->queries[q * DIM + d] * (double)s->keys[q / 2][t][d];
        sum += exp(dot * scale);
        for (uint32_t d = 0; d < DIM; d++)
            sums[d] += exp(dot * scale) * (double)s->values[q / 2][t][d];
    }
    const kvt_sparse_head *head = &s->heads[q / 2];
    if (head->estimate != NULL) {
        const double weight = exp((double)head->estimate_lse[q % 2]);
        sum += weight;
        for (uint32_t d = 0; d < DIM; d++)
            sums[d] += weight * (double)head->estimate[q % 2 * DIM + d];
    }
    assert_true(fabs(log(sum) - (double)lse) < 2e-5);
    for (uint32_t d = 0; d < DIM; d++)
        assert_true(fabs(sums[d] / sum - (double)output[q * DIM + d]) < 1e-5);
}

TEST(attention_over_pages_is_exact)
{
    const uint8_t dtypes[] = {KVT_DTYPE_FP16, KVT_DTYPE_BF16, KVT_DTYPE_FP32};
    for (size_t i = 0; i < 6; i++) {
        site *s = site_open(dtypes[i % 3], i);
        float output[QUERIES * DIM], again[QUERIES * DIM], lse[QUERIES];
        float estimate[QUERIES * DIM], estimate_lse[QUERIES];
        uint64_t dice = i;
        s->pages.scale = i < 3 ? 0.0f : 0.3f;
        for (uint32_t j = 0; j < QUERIES * DIM; j++)
            estimate[j] = dice_signed(&dice);
        for (uint32_t j = 0; j < QUERIES; j++)
            estimate_lse[j] = 9.0f + 3.0f * dice_signed(&dice);
        for (uint32_t h = 0; i % 2 && h < HEADS; h++) {
            s->heads[h].estimate = estimate + 2 * h * DIM;
            s->heads[h].estimate_lse = estimate_lse + 2 * h;
        }
        assert_ok(kvt_sparse_attend(&s->pages, s->queries, output, lse));
        for (uint32_t q = 0; q < 4; q++)
            check_head(s, q, i < 3 ? 1.0 / sqrt(DIM) : 0.3, output, lse[q]);
        /* The third head has its estimate, or nothing. */
        for (uint32_t d = 4 * DIM; d < 6 * DIM; d++)
            assert_true(fabsf(output[d] - (i % 2 ? estimate[d] : 0.0f)) < 1e-6f);
        assert_true(i % 2 ? fabsf(lse[5] - estimate_lse[5]) < 1e-5f : lse[5] == -INFINITY);
        assert_ok(kvt_sparse_attend(&s->pages, s->queries, again, NULL));
        assert_memory_equal(output, again, sizeof output);
    }
}

TEST(scores_that_are_no_numbers_count_for_nothing)
{
    site *s = site_open(KVT_DTYPE_FP32, 3);
    float output[QUERIES * DIM], lse[QUERIES];
    const float bad[] = {NAN, INFINITY};
    memcpy(s->k[0] + 1 + 4 * DIM * 7, &bad[0], 4);
    assert_ok(kvt_sparse_attend(&s->pages, s->queries, output, lse));
    for (uint32_t d = 0; d < DIM; d++)
        assert_true(fabsf(output[d]) <= 1.0f);
}

/* Keys and queries at their bounds: the row with the largest score has all the weight. */
TEST(scores_beyond_the_floats_are_the_largest)
{
    float keys[2 * DIM] = {0.0f}, values[2 * DIM], queries[DIM] = {1e30f, 1e30f}, output[DIM], lse;
    for (uint32_t i = 0; i < 2 * DIM; i++)
        values[i] = i < DIM ? 2.0f : 1e30f;
    const kvt_sparse_page page = {.k = keys, .v = values, .tokens = 2};
    const kvt_sparse_head head = {.pages = &page, .page_count = 1};
    const kvt_sparse_pages pages = {.struct_size = sizeof pages,
                                    .kv_heads = 1,
                                    .group = 1,
                                    .head_dim = DIM,
                                    .dtype = KVT_DTYPE_FP32,
                                    .heads = &head};
    for (uint32_t row = 0; row < 2; row++) {
        keys[row * DIM] = 1e30f;
        keys[(1 - row) * DIM] = -1e30f;
        assert_ok(kvt_sparse_attend(&pages, queries, output, &lse));
        for (uint32_t d = 0; d < DIM; d++)
            assert_true(output[d] == values[row * DIM]);
        assert_true(isfinite(lse));
    }
}

static void refuse(site *s, const kvt_sparse_pages *pages)
{
    float output[QUERIES * DIM] = {7.0f};
    assert_int_equal(kvt_sparse_attend(pages, s->queries, output, NULL), KVT_E_ARGUMENT);
    assert_true(output[0] == 7.0f);
}

TEST(foreign_shapes_are_refused)
{
    site *s = site_open(KVT_DTYPE_FP16, 4);
    float output[QUERIES * DIM];
    const float number = 0.0f;
    kvt_sparse_pages p = s->pages;
    assert_int_equal(kvt_sparse_attend(NULL, s->queries, output, NULL), KVT_E_ARGUMENT);
    assert_int_equal(kvt_sparse_attend(&p, NULL, output, NULL), KVT_E_ARGUMENT);
    assert_int_equal(kvt_sparse_attend(&p, s->queries, NULL, NULL), KVT_E_ARGUMENT);
    p.struct_size = 8, refuse(s, &p), p = s->pages;
    p.kv_heads = 0, refuse(s, &p), p = s->pages;
    p.kv_heads = 65536, refuse(s, &p), p = s->pages;
    p.group = 0, refuse(s, &p), p = s->pages;
    p.group = 65, refuse(s, &p), p = s->pages;
    p.head_dim = 0, refuse(s, &p), p = s->pages;
    p.head_dim = 36, refuse(s, &p), p = s->pages;
    p.head_dim = 1032, refuse(s, &p), p = s->pages;
    p.dtype = KVT_DTYPE_FP8, refuse(s, &p), p = s->pages;
    p.dtype = 77, refuse(s, &p), p = s->pages;
    p.scale = NAN, refuse(s, &p), p = s->pages;
    p.scale = -1.0f, refuse(s, &p), p = s->pages;
    p.heads = NULL, refuse(s, &p), p = s->pages;
    s->heads[1].estimate = &number, refuse(s, &p), s->heads[1].estimate = NULL;
    s->heads[2].page_count = 1, refuse(s, &p), s->heads[2].page_count = 0;
    s->list[1][1].tokens = 0, refuse(s, &p), s->list[1][1].tokens = 4;
    const void *k = s->list[1][1].k;
    s->list[1][1].k = NULL, refuse(s, &p), s->list[1][1].k = k;
    assert_ok(kvt_sparse_attend(&p, s->queries, output, NULL));
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < 3; i++) {
        s->queries[QUERIES * DIM - 1] = bad[i];
        refuse(s, &p);
    }
}
