/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_sparse_index.c - clustering and scores: against plain references, and the same bits on every
 * instruction set.
 */
#include "cases.h"
#include "dice.h"

#include "base/number/number.h"
#include "codecs/kernels/cpu.h"
#include "sparse/score.h"
#include "sparse/sparse_kernels.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct zone {
    uint32_t tokens, dim;
    float *keys, *values;
} zone;

/* Rows around `topics` centres, one channel ten times as large. */
static zone zone_make(uint32_t tokens, uint32_t dim, uint32_t topics, uint64_t dice)
{
    zone z = {.tokens = tokens, .dim = dim};
    z.keys = test_alloc((size_t)tokens * dim * sizeof(float) + 1);
    z.values = test_alloc((size_t)tokens * dim * sizeof(float) + 1);
    for (uint32_t t = 0; t < tokens; t++) {
        uint64_t centre = topics > 0 ? number_mix(t / 7) % topics + 1 : 0;
        for (uint32_t d = 0; d < dim; d++) {
            float middle = dice_signed(&centre) * (d == 3 ? 30.0f : 3.0f);
            z.keys[(size_t)t * dim + d] = topics > 0 ? middle + 0.3f * dice_signed(&dice) : 1.5f;
            z.values[(size_t)t * dim + d] = middle - 0.2f * dice_signed(&dice);
        }
    }
    return z;
}

static kvt_status build(const zone *z, const sparse_index_options *more, sparse_index *index)
{
    const sparse_rows keys = {z->keys, z->dim * sizeof(float)};
    const sparse_rows values = {z->values, z->dim * sizeof(float)};
    sparse_index_options o = *more;
    o.head_dim = z->dim;
    o.dtype = KVT_DTYPE_FP32;
    return sparse_index_build(&o, &keys, &values, z->tokens, index);
}

/* Every token has one place, in its segment, and places ascend with the tokens of a cluster. */
static void check_index(const zone *z, const sparse_index *index)
{
    uint8_t *seen = test_zeros(z->tokens + 1);
    assert_int_equal(index->tokens, z->tokens);
    assert_int_equal(index->first[0], 0);
    assert_int_equal(index->first[index->clusters], z->tokens);
    for (uint32_t c = 0; c < index->clusters; c++) {
        assert_true(index->first[c] < index->first[c + 1]);
        for (uint32_t p = index->first[c]; p < index->first[c + 1]; p++) {
            const uint32_t token = sparse_index_token(index, p);
            assert_true(token < z->tokens && !seen[token]);
            seen[token] = 1;
            if (p > index->first[c]) assert_true(token > sparse_index_token(index, p - 1));
        }
    }
    for (uint32_t t = 0; t < z->tokens; t++)
        assert_true(seen[t]);
}

/* Centroids and mean values are the means of their tokens, within half a step. */
static void check_means(const zone *z, const sparse_index *index)
{
    for (uint32_t c = 0; c < index->clusters; c++) {
        const uint32_t begin = index->first[c], end = index->first[c + 1];
        for (uint32_t d = 0; d < z->dim; d++) {
            double key = 0.0, value = 0.0;
            for (uint32_t p = begin; p < end; p++) {
                const size_t at = (size_t)sparse_index_token(index, p) * z->dim + d;
                key += z->keys[at];
                value += z->values[at];
            }
            const int8_t code = index->centroids[(size_t)c * z->dim + d];
            const double step = index->key_step[d], other = index->value_step[d];
            assert_true(fabs(key / (end - begin) - code * step) <= 0.501 * step + 1e-5);
            assert_true(fabs(value / (end - begin) -
                             index->means[(size_t)c * z->dim + d] * other) <= 0.501 * other + 1e-5);
        }
    }
}

/* Scatter is a cluster's mean squared distance over the unit's, on average over channels; of all
 * tokens it is 1. */
static void check_scatter(const zone *z, const sparse_index *index)
{
    double *squares = test_zeros((size_t)index->clusters * z->dim * sizeof *squares), all = 0.0;
    for (uint32_t d = 0; d < z->dim; d++) {
        double sum = 0.0;
        for (uint32_t c = 0; c < index->clusters; c++) {
            const double count = index->first[c + 1] - index->first[c];
            double mean = 0.0, *own = &squares[(size_t)c * z->dim + d];
            for (uint32_t p = index->first[c]; p < index->first[c + 1]; p++)
                mean += z->keys[(size_t)sparse_index_token(index, p) * z->dim + d] / count;
            for (uint32_t p = index->first[c]; p < index->first[c + 1]; p++) {
                const double key = z->keys[(size_t)sparse_index_token(index, p) * z->dim + d];
                *own += (key - mean) * (key - mean) / count;
            }
            sum += *own * count / z->tokens;
        }
        assert_true(fabs((double)index->key_scatter[d] - sum) < 1e-4 * sum + 1e-12);
        for (uint32_t c = 0; c < index->clusters; c++)
            squares[(size_t)c * z->dim + d] /= sum > 0.0 ? sum : 1.0;
    }
    for (uint32_t c = 0; c < index->clusters; c++) {
        double mean = 0.0;
        for (uint32_t d = 0; d < z->dim; d++)
            mean += squares[(size_t)c * z->dim + d] / z->dim;
        assert_true(fabs((double)index->scatter[c] - mean) < 1e-3 * mean + 1e-9);
        all += mean * (index->first[c + 1] - index->first[c]) / z->tokens;
    }
    assert_true(index->key_scatter[0] <= 0.0f || fabs(all - 1.0) < 1e-3);
}

/* Slopes leave of the covariance of values and keys no more than the nearest product of directions
 * may: less than all, and next to nothing where two tokens have one direction. */
static void check_slopes(const zone *z, const sparse_index *index)
{
    double all = 0.0, left = 0.0;
    for (uint32_t c = 0; c < index->clusters; c++) {
        const uint32_t begin = index->first[c], count = index->first[c + 1] - begin;
        double own = 0.0, own_left = 0.0;
        for (uint32_t i = 0; i < z->dim * z->dim; i++) {
            const uint32_t v = i / z->dim, k = i % z->dim;
            double value = 0.0, key = 0.0, both = 0.0;
            for (uint32_t p = begin; p < begin + count; p++) {
                const size_t at = (size_t)sparse_index_token(index, p) * z->dim;
                value += z->values[at + v] / (double)count;
                key += z->keys[at + k] / (double)count;
                both += z->values[at + v] * (double)z->keys[at + k] / (double)count;
            }
            both -= value * key;
            const double product = (double)index->slope[c] *
                                   index->slopes[(2 * c + 1) * z->dim + v] *
                                   (double)index->value_step[v] *
                                   index->slopes[2 * c * z->dim + k] * (double)index->key_step[k];
            own += both * both;
            own_left += (both - product) * (both - product);
        }
        if (count == 1) assert_true(index->slope[c] >= 0.0f && own_left < 1e-6);
        if (count == 2) assert_true(own_left < 0.05 * own + 1e-6);
        all += own;
        left += own_left;
    }
    if (index->clusters >= 8) assert_true(left <= 0.99 * all + 1e-6); /* steps are of means */
}

TEST(clusters_are_means_of_their_tokens)
{
    const struct {
        uint32_t tokens, dim, topics;
        sparse_index_options options;
    } cases[] = {{1, 8, 1, {.seed = 1}},
                 {15, 64, 3, {.seed = 1}},
                 {16, 64, 3, {.seed = 1}},
                 {700, 64, 40, {.seed = 2, .segment_tokens = 256}},
                 {3000, 128, 100, {.seed = 3}},
                 {517, 40, 20, {.seed = 4, .cluster_tokens = 5, .segment_tokens = 128}},
                 {300, 8, 20, {.seed = 5, .cluster_tokens = 1}},
                 {900, 64, 50, {.seed = 6, .cluster_tokens = 256, .iterations = 9}}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        zone z = zone_make(cases[i].tokens, cases[i].dim, cases[i].topics, 11);
        sparse_index index;
        assert_ok(build(&z, &cases[i].options, &index));
        check_index(&z, &index);
        check_means(&z, &index);
        check_scatter(&z, &index);
        if (z.tokens * z.dim <= 60000) check_slopes(&z, &index);
        sparse_index_free(&index);
    }
}

TEST(tokens_of_a_topic_share_clusters)
{
    /* Far apart topics, fewer than clusters: nearly no cluster mixes two. */
    zone z = zone_make(2048, 64, 60, 5);
    sparse_index index;
    uint32_t mixed = 0;
    assert_ok(build(&z, &(sparse_index_options){.seed = 7}, &index));
    for (uint32_t p = 1; p < z.tokens; p++) {
        uint32_t cluster = 0;
        while (index.first[cluster + 1] <= p)
            cluster++;
        if (index.first[cluster] == p) continue;
        const uint32_t a = sparse_index_token(&index, p), b = sparse_index_token(&index, p - 1);
        mixed += number_mix(a / 7) % 60 != number_mix(b / 7) % 60;
    }
    assert_true(mixed < z.tokens / 20);
    sparse_index_free(&index);
}

TEST(equal_keys_make_one_cluster)
{
    zone z = zone_make(600, 64, 0, 5);
    sparse_index index;
    assert_ok(build(&z, &(sparse_index_options){.segment_tokens = 256}, &index));
    assert_int_equal(index.clusters, sparse_segment_count(600, 256));
    check_index(&z, &index);
    memset(z.keys, 0, 600 * 64 * sizeof(float));
    sparse_index_free(&index);
    assert_ok(build(&z, &(sparse_index_options){.segment_tokens = 256}, &index));
    check_index(&z, &index);
    sparse_index_free(&index);
}

TEST(elements_that_are_not_finite_count_as_zero)
{
    zone z = zone_make(500, 64, 20, 5), clean = zone_make(500, 64, 20, 5);
    const float bad[] = {NAN, INFINITY, -INFINITY, 3e38f, -NAN};
    uint64_t dice = 9;
    for (uint32_t i = 0; i < 200; i++) {
        const size_t at = (size_t)(number_mix(dice++) % (500 * 64));
        z.keys[at] = bad[i % 5];
        clean.keys[at] = 0.0f;
        z.values[at] = bad[(i + 1) % 5];
        clean.values[at] = 0.0f;
    }
    sparse_index index, wanted;
    assert_ok(build(&z, &(sparse_index_options){.seed = 1}, &index));
    assert_ok(build(&clean, &(sparse_index_options){.seed = 1}, &wanted));
    assert_int_equal(index.bytes, wanted.bytes);
    assert_memory_equal(index.centroids, wanted.centroids, (size_t)index.lanes * 64);
    assert_memory_equal(index.means, wanted.means, (size_t)index.lanes * 64);
    sparse_index_free(&index);
    sparse_index_free(&wanted);
}

/* The bound is on every place of a row, in every dtype. */
TEST(rows_are_sound_up_to_the_bound)
{
    const float values[] = {NAN,      -NAN,  INFINITY, -INFINITY, 3e38f,
                            -1.1e30f, 1e30f, -1e30f,   65504.0f};
    for (uint32_t i = 0; i < sizeof values / sizeof *values; i++) {
        for (uint32_t place = 0; place < 24; place++) {
            float wide[24] = {1.0f};
            uint16_t half[24] = {0x3c00}, brain[24] = {0x3f80};
            uint32_t bits;
            memcpy(&bits, &values[i], sizeof bits);
            wide[place] = values[i];
            half[place] = half_from_float(values[i]);
            brain[place] = (uint16_t)(bits >> 16); /* towards 0 */
            assert_int_equal(sparse_rows_are_sound(wide, sizeof wide, KVT_DTYPE_FP32), i > 5);
            assert_int_equal(sparse_rows_are_sound(half, sizeof half, KVT_DTYPE_FP16), i > 7);
            assert_int_equal(sparse_rows_are_sound(brain, sizeof brain, KVT_DTYPE_BF16), i > 5);
        }
    }
    assert_true(sparse_rows_are_sound(NULL, 0, KVT_DTYPE_FP16));
}

/* ---- instruction sets ---- */

static void check_same_index(const sparse_index *a, const sparse_index *b)
{
    const size_t padded = a->lanes;
    assert_int_equal(a->clusters, b->clusters);
    assert_memory_equal(a->centroids, b->centroids, padded * a->head_dim);
    assert_memory_equal(a->means, b->means, padded * a->head_dim);
    assert_memory_equal(a->slopes, b->slopes, 2 * padded * a->head_dim);
    assert_memory_equal(a->slope, b->slope, padded * sizeof(float));
    assert_memory_equal(a->key_step, b->key_step, a->head_dim * sizeof(float));
    assert_memory_equal(a->value_step, b->value_step, a->head_dim * sizeof(float));
    assert_memory_equal(a->key_scatter, b->key_scatter, a->head_dim * sizeof(float));
    assert_memory_equal(a->scatter, b->scatter, padded * sizeof(float));
    assert_memory_equal(a->first, b->first, (padded + 1) * sizeof(uint32_t));
    assert_memory_equal(a->position, b->position, a->tokens * sizeof(uint16_t));
}

/* A code of a sketch, as a number of steps from the axis's 0. */
static double code_of(const sparse_index *index, uint32_t lane, uint32_t axis)
{
    const uint8_t both =
        index->sketch[((size_t)(lane / SPARSE_BLOCK) * index->axes / 4 + axis / 4) * 2 *
                          SPARSE_BLOCK +
                      (lane % SPARSE_BLOCK) * 2 + axis % 2];
    return (axis % 4 < 2 ? both & 15 : both >> 4) - 7.5;
}

/* Axes are orthonormal; codes are the parts of the centroids in them within half a step, or the
 * outermost ones. */
static void check_sketches(const sparse_index *index)
{
    const uint32_t dim = index->head_dim, axes = index->axes;
    for (uint32_t i = 0; i + 1 < axes; i++)
        for (uint32_t j = 0; j <= i; j++) {
            double dot = 0.0;
            for (uint32_t d = 0; d < dim; d++)
                dot += (double)half_to_float(index->axis[i * dim + d]) *
                       (double)half_to_float(index->axis[j * dim + d]);
            assert_true(fabs(dot - (i == j)) < 2e-3);
        }
    for (uint32_t lane = 0; lane < index->lanes; lane++) {
        const uint32_t c = lane < index->clusters ? lane : index->clusters - 1;
        for (uint32_t i = 0; i < axes; i++) {
            double part = (double)index->scatter[c] - 1.0, slack = 1e-4;
            for (uint32_t d = 0; i + 1 < axes && d < dim; d++) {
                const double off =
                    index->centroids[(size_t)c * dim + d] * (double)index->key_step[d] -
                    (double)index->centre[d];
                part = (d > 0 ? part : 0.0) + off * (double)half_to_float(index->axis[i * dim + d]);
                slack += 0.5 * (double)index->key_step[d] *
                         fabs((double)half_to_float(index->axis[i * dim + d]));
            }
            const double step = index->axis_step[i], code = code_of(index, lane, i) * step;
            const bool outermost = fabs(code) > 7.4 * step && fabs(part) > fabs(code);
            assert_true(outermost || fabs(part - code) < 0.51 * step + slack);
        }
    }
}

/* Sketches leave clusters and places as they are. */
/* The mean that clusters share is that of their means, to the nearest step of each. */
static void check_shared(const sparse_index *index)
{
    for (uint32_t c = 0; c < index->clusters; c += SPARSE_SHARED) {
        for (uint32_t d = 0; d < index->head_dim; d++) {
            double sum = 0.0, all = 0.0;
            for (uint32_t i = c; i < c + SPARSE_SHARED && i < index->clusters; i++) {
                sum += (double)(index->first[i + 1] - index->first[i]) *
                       index->means[(size_t)i * index->head_dim + d];
                all += (double)(index->first[i + 1] - index->first[i]);
            }
            const int8_t own = index->shared[(size_t)(c / SPARSE_SHARED) * index->head_dim + d];
            assert_true(fabs(sum / all - own) <= 1.001);
        }
    }
}

TEST(sketches_hold_the_same_clusters)
{
    const struct {
        uint32_t tokens, dim;
    } cases[] = {{1100, 64}, {3000, 8}, {5000, 128}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        zone z = zone_make(cases[i].tokens, cases[i].dim, 60, i);
        sparse_index_options options = {.seed = i, .segment_tokens = 256};
        sparse_index one, two, scalar;
        assert_ok(build(&z, &options, &one));
        options.one_pass = 40;
        assert_ok(build(&z, &options, &two));
        assert_int_equal(one.axes, 0);
        assert_true(two.axes == sparse_sketch_axes(z.dim) && two.axes % 4 == 0);
        assert_true(two.full * 2 <= two.lanes && two.full * 8 >= two.lanes);
        check_same_index(&one, &two);
        check_sketches(&two);
        check_shared(&two);
        codecs_cpu_force(CODECS_CPU_SCALAR);
        assert_ok(build(&z, &options, &scalar));
        codecs_cpu_force(codecs_cpu_best());
        assert_int_equal(scalar.bytes, two.bytes);
        assert_memory_equal(scalar.memory, two.memory, two.bytes);
        /* More is scored in full for steps that read more, and all in one pass at the end. */
        const uint32_t share = two.full;
        sparse_index_read(&two, 1);
        assert_int_equal(two.full, share);
        sparse_index_read(&two, z.tokens / 5);
        assert_true(two.full > share && two.axes > 0);
        sparse_index_read(&two, z.tokens / 2);
        assert_true(two.full == two.lanes && two.axes == 0);
        sparse_index_free(&one);
        sparse_index_free(&two);
        sparse_index_free(&scalar);
    }
}

/* Sums at the ends of their range, of any number of queries and blocks. */
TEST(sums_of_sketches_are_the_same)
{
#if defined(__x86_64__)
    const sparse_kernels *one = &sparse_kernels_scalar, *two = sparse_kernels_in_use();
    enum { AXES = 24, LANES = 5 * SPARSE_BLOCK };
    static uint8_t sketches[LANES * AXES / 2];
    static int8_t folded[2 * 64 * AXES];
    static int16_t sums[2][64 * LANES], peaks[2][64], offset[64], keys[2][LANES];
    static uint32_t list[2][LANES];
    uint64_t dice = 3;
    for (uint32_t round = 0; round < 200; round++) {
        const uint32_t groups[] = {1, 3, 4, 7, 64}, group = groups[round % 5];
        const uint32_t blocks = round % 6;
        for (size_t i = 0; i < sizeof sketches; i++)
            sketches[i] = (uint8_t)(round % 2 ? number_mix(++dice) : 255);
        for (uint32_t i = 0; i < AXES / 2 * group; i++) {
            for (uint32_t k = 0; k < 2; k++) /* 24 of 91 are 2184 */
                folded[4 * i + k] = folded[4 * i + k + 2] =
                    (int8_t)(round % 3 ? (int32_t)(number_mix(++dice) % 183) - 91 : 91);
        }
        for (uint32_t g = 0; g < group; g++)
            offset[g] = (int16_t)(number_mix(++dice) % 65536 - 32768);
        one->sketch(sketches, blocks, AXES, folded, group, LANES, sums[0], peaks[0]);
        two->sketch(sketches, blocks, AXES, folded, group, LANES, sums[1], peaks[1]);
        assert_memory_equal(sums[0], sums[1], sizeof sums[0]);
        assert_memory_equal(peaks[0], peaks[1], sizeof peaks[0]);
        const int16_t least = (int16_t)(number_mix(++dice) % 65536 - 32768);
        const uint32_t width = blocks * SPARSE_BLOCK;
        one->keys(sums[0], LANES, width, offset, group, keys[0]);
        two->keys(sums[1], LANES, width, offset, group, keys[1]);
        assert_memory_equal(keys[0], keys[1], width * sizeof keys[0][0]);
        const uint32_t found = one->sieve(keys[0], width, least, list[0]);
        assert_int_equal(found, two->sieve(keys[1], width, least, list[1]));
        assert_memory_equal(list[0], list[1], found * sizeof *list[0]);
        for (uint32_t c = 0, at = 0; c < width; c++) {
            const bool in = at < found && list[0][at] == c;
            int32_t key = INT16_MIN;
            for (uint32_t g = 0; g < group; g++)
                key = sums[0][g * LANES + c] + offset[g] > key ? sums[0][g * LANES + c] + offset[g]
                                                               : key;
            assert_int_equal(keys[0][c], key < INT16_MAX ? key : INT16_MAX);
            assert_int_equal(in, key >= least);
            at += in;
        }
    }
#endif
}

TEST(every_instruction_set_gives_the_same_index)
{
    const uint32_t dims[] = {8, 40, 64, 80, 128, 512};
    for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++) {
        zone z = zone_make(777, dims[i], 30, i);
        const sparse_index_options options = {.seed = i, .segment_tokens = 256};
        sparse_index scalar, best;
        codecs_cpu_force(CODECS_CPU_SCALAR);
        assert_ok(build(&z, &options, &scalar));
        codecs_cpu_force(codecs_cpu_best());
        assert_ok(build(&z, &options, &best));
        check_same_index(&scalar, &best);
        sparse_index_free(&scalar);
        sparse_index_free(&best);
    }
}

/* Largest rows that the grid allows, where sums are close to overflow. */
TEST(the_grid_holds_the_largest_sums)
{
    const uint32_t dims[] = {8, 128, 512};
    for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++) {
        zone z = zone_make(64, dims[i], 30, i);
        for (uint32_t j = 0; j < 64 * dims[i]; j++)
            z.keys[j] = (j / dims[i]) % 2 == 0 ? 1e30f : -1e30f;
        sparse_index index;
        assert_ok(build(&z, &(sparse_index_options){.seed = 3}, &index));
        check_index(&z, &index);
        /* The two kinds of rows do not mix. */
        for (uint32_t c = 0; c < index.clusters; c++)
            for (uint32_t p = index.first[c]; p + 1 < index.first[c + 1]; p++)
                assert_int_equal(sparse_index_token(&index, p) % 2,
                                 sparse_index_token(&index, p + 1) % 2);
        sparse_index_free(&index);
    }
}

TEST(scores_are_the_same_and_right)
{
    const struct {
        uint32_t dim, group;
    } cases[] = {{8, 1}, {64, 3}, {128, 4}, {80, 7}, {512, 9}, {64, 64}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const uint32_t dim = cases[i].dim, group = cases[i].group;
        zone z = zone_make(1000, dim, 30, i);
        sparse_index index;
        sparse_query query;
        float *queries = test_alloc((size_t)group * dim * sizeof(float));
        int16_t *folded = test_alloc((size_t)group * dim * sizeof(int16_t));
        uint64_t dice = i;
        for (uint32_t j = 0; j < group * dim; j++)
            queries[j] = dice_signed(&dice) * 4.0f;
        assert_ok(build(&z, &(sparse_index_options){.seed = i}, &index));
        const size_t width = index.lanes;
        uint32_t list[16];
        for (uint32_t c = 0; c < 16; c++)
            list[c] = (uint32_t)(number_mix(c) % index.clusters);
        float *a = test_alloc(group * width * sizeof(float)),
              *b = test_alloc(group * width * sizeof(float));
        query.folded = folded;
        assert_true(sparse_query_fold(&index, queries, group, 0.125f, &query));
        codecs_cpu_force(CODECS_CPU_SCALAR);
        sparse_score(&index, &query, NULL, 0, width, a);
        codecs_cpu_force(codecs_cpu_best());
        sparse_score(&index, &query, NULL, 0, width, b);
        assert_memory_equal(a, b, group * width * sizeof(float));
        for (uint32_t set = 0; set < 2; set++) { /* rows of a list are the same ones */
            codecs_cpu_force(set == 0 ? CODECS_CPU_SCALAR : codecs_cpu_best());
            sparse_score(&index, &query, list, 16, 16, b);
            for (uint32_t at = 0; at < 16 * group; at++)
                assert_true(b[at] == a[at / 16 * width + list[at % 16]]);
        }
        for (uint32_t g = 0; g < group; g++) {
            double most = 0.0;
            for (uint32_t d = 0; d < dim; d++)
                most = fmax(most, fabs(queries[g * dim + d] * index.key_step[d]));
            for (uint32_t c = 0; c < index.clusters; c++) {
                double sum = 0.0;
                for (uint32_t d = 0; d < dim; d++) {
                    const int8_t code = index.centroids[(size_t)c * dim + d];
                    sum += (double)queries[g * dim + d] * index.key_step[d] * code;
                }
                /* Half a step of the folded query in each channel, all of one sign. */
                assert_true(fabs(0.125 * sum - a[g * width + c]) <
                            0.125 * most / 32767.0 * 0.51 * 127.0 * dim + 1e-4);
            }
        }
        sparse_index_free(&index);
    }
}

TEST(queries_that_are_not_finite_are_refused)
{
    zone z = zone_make(100, 64, 5, 1);
    sparse_index index;
    sparse_query query;
    float queries[2 * 64] = {0.0f};
    int16_t folded[2 * 64];
    assert_ok(build(&z, &(sparse_index_options){.seed = 1}, &index));
    query.folded = folded;
    assert_true(sparse_query_fold(&index, queries, 2, 0.125f, &query));
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < 3; i++) {
        queries[70 + i] = bad[i];
        assert_false(sparse_query_fold(&index, queries, 2, 0.125f, &query));
        queries[70 + i] = 0.0f;
    }
    sparse_index_free(&index);
}

/* Kernels of attention and weights: the same bits, and right. */

/* Of 0 to 64 rows, 1 to 9 heads, with and without whole fours, and of 8 to 128 channels: no further
 * from the sum than half a step of the largest weight a row, and the scalar body's bits. */
TEST(blends_are_the_same)
{
    static float weight[9 * SPARSE_BLEND], blend[2][9 * 128], first[9 * 128];
    static int8_t row[SPARSE_BLEND][128];
    const int8_t *rows[SPARSE_BLEND];
    uint64_t dice = 5;
    for (uint32_t i = 0; i < SPARSE_BLEND; i++) {
        rows[i] = row[i * 7 % SPARSE_BLEND];
        for (uint32_t d = 0; d < 128; d++)
            row[i][d] = (int8_t)(number_mix(dice ^ (i * 128 + d)) >> 8);
    }
    for (uint32_t head_dim = 8; head_dim <= 128; head_dim += 8) {
        for (uint32_t group = 1; group <= 9; group++) {
            const uint32_t count = (head_dim * 5 + group * 11) % (SPARSE_BLEND + 1);
            for (uint32_t i = 0; i < 9 * SPARSE_BLEND; i++)
                weight[i] = dice_signed(&dice) * (i % 3 == 0 ? 1e-4f : 7.0f);
            for (uint32_t i = 0; i < group * head_dim; i++)
                first[i] = blend[0][i] = blend[1][i] = dice_signed(&dice);
            if (group == 5) memset(weight, 0, SPARSE_BLEND * sizeof *weight);
            sparse_kernels_scalar.blend(rows, count, head_dim, weight, group, blend[0]);
            sparse_kernels_in_use()->blend(rows, count, head_dim, weight, group, blend[1]);
            assert_memory_equal(blend[0], blend[1], group * head_dim * sizeof blend[0][0]);
            for (uint32_t i = 0; i < group * head_dim; i++) {
                const float *own = weight + i / head_dim * SPARSE_BLEND;
                double sum = (double)first[i], most = 0.0;
                for (uint32_t r = 0; r < count; r++) {
                    most = fmax(most, fabs((double)own[r]));
                    sum += (double)own[r] * rows[r][i % head_dim];
                }
                assert_true(fabs(sum - (double)blend[0][i]) <= count * 64.1 * most / 32767 + 1e-4);
            }
        }
    }
}

TEST(sums_of_floats_are_the_same)
{
#if defined(__x86_64__)
    const sparse_kernels *one = &sparse_kernels_scalar, *two = sparse_kernels_in_use();
    const uint8_t dtypes[] = {KVT_DTYPE_FP16, KVT_DTYPE_BF16, KVT_DTYPE_FP32};
    uint64_t dice = 77;
    uint8_t rows[40 * 128 * 4];
    float query[128], weight[40], out[2][40], sums[2][128], wide[2][128], scores[2][64],
        scatter[64];
    uint32_t tokens[64];
    for (int round = 0; round < 50; round++) {
        for (uint32_t d = 0; d < 128; d++)
            query[d] = sums[0][d] = sums[1][d] = dice_signed(&dice) * 9.0f;
        for (uint32_t t = 0; t < 40; t++)
            weight[t] = dice_signed(&dice);
        for (uint32_t c = 0; c < 64; c++) {
            scores[0][c] = scores[1][c] = dice_signed(&dice) * (float)(1 << (round % 12));
            tokens[c] = (uint32_t)(number_mix(dice + c) % 5);
        }
        const uint8_t dtype = dtypes[round % 3];
        for (uint32_t i = 0; i < 40 * 128; i++) {
            const float value = dice_signed(&dice) * 5.0f;
            const uint16_t half =
                dtype == KVT_DTYPE_FP16 ? half_from_float(value) : half_bf16_from_float(value);
            if (dtype == KVT_DTYPE_FP32)
                memcpy(rows + 4 * i, &value, 4);
            else
                memcpy(rows + 2 * i, &half, 2);
        }
        const uint64_t stride = 128 * kvt_dtype_bytes(dtype);
        one->dots(rows, stride, 40, dtype, query, 128, 0.5f, out[0]);
        two->dots(rows, stride, 40, dtype, query, 128, 0.5f, out[1]);
        assert_memory_equal(out[0], out[1], sizeof out[0]);
        one->combine(rows, stride, 40, dtype, weight, 128, sums[0]);
        two->combine(rows, stride, 40, dtype, weight, 128, sums[1]);
        assert_memory_equal(sums[0], sums[1], sizeof sums[0]);
        one->widen(rows, 128, dtype, wide[0]);
        two->widen(rows, 128, dtype, wide[1]);
        assert_memory_equal(wide[0], wide[1], sizeof wide[0]);
        for (uint32_t c = 0; c < 64; c++)
            scatter[c] = (float)tokens[c] * fabsf(dice_signed(&dice)) * (float)(1 << (round % 9));
        one->lift(scatter, 0.7f, 64, scores[0]);
        two->lift(scatter, 0.7f, 64, scores[1]);
        assert_memory_equal(scores[0], scores[1], sizeof scores[0]);
        const float most = one->largest(scores[0], tokens, 64);
        assert_true(most == two->largest(scores[1], tokens, 64));
        double exact = 0.0;
        for (uint32_t c = 0; c < 64; c++)
            exact += (double)tokens[c] * exp((double)scores[0][c] - (double)most);
        const float sum = one->weigh(scores[0], tokens, 64, most);
        assert_true(sum == two->weigh(scores[1], tokens, 64, most));
        assert_memory_equal(scores[0], scores[1], sizeof scores[0]);
        if (exact > 0.0 && round % 12 < 7) assert_true(fabs(sum - exact) < 2e-6 * exact);
    }
#endif
}

TEST(exp_is_exp)
{
    for (float x = 0.0f; x > -86.0f; x -= 0.0137f)
        assert_true(fabs((double)sparse_exp(x) - exp((double)x)) < 6e-6 * exp((double)x));
    assert_true(sparse_exp(-100.0f) == 0.0f && sparse_exp(-INFINITY) == 0.0f);
    assert_true(sparse_exp(NAN) == 0.0f);
    assert_true(sparse_exp(0.0f) == 1.0f);
}

TEST(options_are_refused)
{
    zone z = zone_make(10, 64, 2, 1);
    sparse_index index;
    const sparse_index_options wrong[] = {{.cluster_tokens = 257},
                                          {.segment_tokens = 100},
                                          {.segment_tokens = SPARSE_SEGMENT_MAX + 64},
                                          {.iterations = 101}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(build(&z, &wrong[i], &index), KVT_E_ARGUMENT);
    const sparse_rows rows = {z.keys, 256};
    const uint32_t dims[] = {0, 4, 65, 520};
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(sparse_index_build(
                             &(sparse_index_options){.head_dim = dims[i], .dtype = KVT_DTYPE_FP16},
                             &rows, &rows, 1, &index),
                         KVT_E_ARGUMENT);
    assert_int_equal(
        sparse_index_build(&(sparse_index_options){.head_dim = 64, .dtype = KVT_DTYPE_FP8}, &rows,
                           &rows, 1, &index),
        KVT_E_ARGUMENT);
    /* No tokens: an empty index. */
    assert_ok(sparse_index_build(&(sparse_index_options){.head_dim = 64, .dtype = KVT_DTYPE_FP16},
                                 &rows, &rows, 0, &index));
    assert_int_equal(index.clusters, 0);
    sparse_index_free(&index);
}
