/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_estimator_basis.c - a basis is learnt from entries whose covariances are known: components
 * are uncorrelated, errors cost what the metric says, steps are in the metric times the weights,
 * spreads and tables fit entries of the same kind; and calls that come at the wrong time.
 */
#include "transform_site.h"

#include "estimator/quality/basis_learn.h"

enum { TEST_TOKENS = 1000 };

static const transform_shape test_shape = {.layers = 2,
                                           .kv_heads = 2,
                                           .head_dim = 8,
                                           .rotary_dim = 8,
                                           .sides = 2,
                                           .span = TRANSFORM_SPAN_HEAD};
static const double test_frequencies[] = {1.0, 0.1, 0.01, 0.001};

static kvt_layout test_layout(void)
{
    return (kvt_layout){
        .layers = 2, .kv_heads = 2, .head_dim = 8, .dtype = KVT_DTYPE_FP32, .tokens = TEST_TOKENS};
}

/* An entry whose elements are a mixture of a few common causes, K of V's and V of K's, so that wide
 * spans have something to share. Keys stand at their positions. */
static float *test_entry(uint64_t seed)
{
    const uint32_t row = 16;
    float *entry = test_alloc(4 * sizeof(float) * TEST_TOKENS * row);
    const transform_basis turning = {.shape = test_shape, .frequencies = test_frequencies};
    uint64_t state = seed;
    for (uint32_t t = 0; t < TEST_TOKENS; t++) {
        double causes[12];
        for (int i = 0; i < 12; i++)
            causes[i] = site_normal(&state) * (1.0 + i % 3);
        for (uint32_t m = 0; m < 4; m++) {
            float *line = entry + ((uint64_t)m * TEST_TOKENS + t) * row;
            for (uint32_t e = 0; e < row; e++) {
                const double shared = causes[(e + 5 * m) % 12] + 0.5 * causes[(3 * e + m) % 12];
                line[e] = (float)(shared * (m % 2 == 0 ? 2.0 : 0.25) + 0.2 * site_normal(&state) +
                                  (e % 5 == 0 ? 3.0 : 0.0));
            }
            if (m % 2 == 0) site_turn(&turning, line, 0, t);
        }
    }
    return entry;
}

static void learner_feed(basis_learner *learner, basis_purpose purpose, uint64_t seed)
{
    const kvt_layout layout = test_layout();
    float *entry = test_entry(seed);
    assert_status(basis_learner_entry(learner, purpose, &layout, entry), KVT_OK);
}

/* Queries in which two directions count much more than others. */
static void learner_ask(basis_learner *learner)
{
    const transform_basis turning = {.shape = test_shape, .frequencies = test_frequencies};
    uint64_t state = 99;
    for (uint32_t layer = 0; layer < 2; layer++) {
        float queries[64][16]; /* as many heads as KV heads */
        for (uint32_t r = 0; r < 64; r++) {
            for (uint32_t e = 0; e < 16; e++)
                queries[r][e] = (float)(site_normal(&state) * (e % 8 < 2 ? 5.0 : 0.5));
            site_turn(&turning, queries[r], 0, 700 + r);
        }
        basis_learner_queries(learner, layer, queries[0], 64, 2, 700);
    }
}

static void learner_give_outputs(basis_learner *learner)
{
    for (uint32_t layer = 0; layer < 2; layer++) {
        for (uint32_t head = 0; head < 2; head++) {
            double gram[64] = {0};
            for (uint32_t i = 0; i < 8; i++)
                gram[9 * i] = i < 4 ? 9.0 : 1.0;
            basis_learner_outputs(learner, layer, head, gram);
        }
    }
}

typedef struct learnt {
    uint8_t *object;
    transform_basis basis;
    basis_origin origin;
} learnt;

static learnt learn(uint8_t span, bool metric, const double *weights)
{
    transform_shape shape = test_shape;
    basis_learner *learner;
    learnt result = {.origin = {.model = "test"}};
    uint64_t bytes;
    shape.span = span;
    assert_status(basis_learner_open(&shape, test_frequencies, &learner), KVT_OK);
    if (metric) {
        learner_ask(learner);
        learner_give_outputs(learner);
    }
    if (weights != NULL) basis_learner_weigh(learner, weights);
    for (uint64_t seed = 1; seed <= 4; seed++)
        learner_feed(learner, BASIS_LEARN, seed);
    assert_status(basis_learner_solve(learner), KVT_OK);
    learner_feed(learner, BASIS_SPREAD, 11);
    learner_feed(learner, BASIS_SPREAD, 12);
    learner_feed(learner, BASIS_COUNT, 11);
    learner_feed(learner, BASIS_COUNT, 12);
    assert_status(basis_learner_finish(learner, &result.origin, &result.object, &bytes), KVT_OK);
    assert_status(basis_read(result.object, bytes, &result.basis, &result.origin), KVT_OK);
    basis_learner_close(learner);
    return result;
}

/* Codes of an entry of the same kind, at a step: bits, and the sum of squared errors of elements at
 * position 0 by matrix (after weighing columns), in weighed[4]. */
static double code_entry(const transform_basis *basis, uint16_t step, double errors[4])
{
    const kvt_layout layout = test_layout();
    const uint64_t matrix = kvt_layout_matrix_bytes(&layout);
    float *entry = test_entry(77);
    uint64_t stored = 0;
    for (uint32_t s = 0; s < transform_segment_count(&basis->shape); s++) {
        uint32_t layer;
        const uint32_t count = transform_segment_matrices(&basis->shape, s, &layer);
        const uint32_t first = basis->shape.span == TRANSFORM_SPAN_HEAD ? s : 2 * layer;
        const transform_segment segment = {.basis = basis,
                                           .index = s,
                                           .tokens = TEST_TOKENS,
                                           .step = step,
                                           .dtype = KVT_DTYPE_FP32};
        const void *matrices[TRANSFORM_MATRICES_MAX];
        view_rows rows[TRANSFORM_MATRICES_MAX];
        const view_rows *targets[TRANSFORM_MATRICES_MAX];
        float *decoded = test_alloc(count * matrix);
        uint8_t *bytes = test_alloc(transform_bound(&segment));
        void *scratch = test_aligned(64, transform_scratch_bytes(&basis->shape));
        uint64_t written;
        for (uint32_t m = 0; m < count; m++) {
            matrices[m] = (const uint8_t *)entry + (first + m) * matrix;
            rows[m] = view_rows_packed((uint8_t *)decoded + m * matrix, matrix);
            targets[m] = &rows[m];
        }
        assert_status(transform_encode(&segment, matrices, bytes, transform_bound(&segment),
                                       scratch, &written),
                      KVT_OK);
        assert_status(transform_decode(&segment, bytes, written, 0, TEST_TOKENS, targets, scratch),
                      KVT_OK);
        stored += written;
        for (uint32_t m = 0; m < count; m++) {
            errors[first + m] = 0.0;
            for (uint64_t i = 0; i < matrix / sizeof(float); i++) {
                const double off = (double)decoded[m * matrix / sizeof(float) + i] -
                                   (double)((const float *)matrices[m])[i];
                errors[first + m] += off * off;
            }
        }
    }
    return (double)stored * 8.0 / (4.0 * TEST_TOKENS * 16.0);
}

TEST(wider_spans_take_fewer_bits)
{
    static const double even[4] = {1.0, 1.0, 1.0, 1.0};
    double bits[4];
    double errors[4][4];
    for (uint8_t span = TRANSFORM_SPAN_HEAD; span <= TRANSFORM_SPAN_LAYERS4; span++) {
        learnt l = learn(span, false, even);
        /* The unit is a power of two at about two bits. */
        bits[span] = code_entry(&l.basis, 16, errors[span]);
        assert_true(bits[span] > 2.0 && bits[span] < 6.0);
        assert_int_equal(l.origin.tokens, 4 * (TEST_TOKENS - 4));
        assert_int_equal(l.basis.shape.metric, TRANSFORM_METRIC_PLAIN);
        free(l.object);
    }
    /* Twelve causes: a layer has 32 elements. The units of spans differ by powers of two, as their
     * errors do. */
    for (int span = 2; span <= 3; span++) {
        const double same = 0.5 * log2(errors[1][0] / errors[span][0]);
        assert_true(bits[span] - same < 0.8 * bits[1]);
    }
}

/* Errors have one size in the metric times the weight. */
TEST(weights_and_metric_shape_the_errors)
{
    static const double uneven[4] = {1.0, 4.0, 0.5, 4.0};
    double errors[4];
    learnt l = learn(TRANSFORM_SPAN_LAYER, false, uneven);
    (void)code_entry(&l.basis, 6, errors);
    for (int m = 1; m < 4; m++) {
        const double ratio = sqrt(errors[0] / errors[m]) / (uneven[m] / uneven[0]);
        assert_true(ratio > 0.95 && ratio < 1.05);
    }
    free(l.object);
    l = learn(TRANSFORM_SPAN_HEAD, true, uneven);
    assert_int_equal(l.basis.shape.metric, TRANSFORM_METRIC_BOTH);
    free(l.object);
}

/* Components of entries of the same kind: uncorrelated, and as far spread as the basis says. */
TEST(components_are_what_the_basis_says)
{
    learnt l = learn(TRANSFORM_SPAN_LAYER, true, NULL);
    const kvt_layout layout = test_layout();
    float *entry = test_entry(55);
    const uint64_t matrix = kvt_layout_matrix_bytes(&layout);
    const void *matrices[2] = {entry, (const uint8_t *)entry + matrix};
    double moments[32][32] = {{0}};
    void *scratch = test_aligned(64, transform_scratch_bytes(&l.basis.shape));
    const transform_segment segment = {
        .basis = &l.basis, .tokens = TEST_TOKENS, .step = 4, .dtype = KVT_DTYPE_FP32};
    for (uint32_t block = 0; block < 3; block++) { /* whole ones */
        const int16_t *codes;
        assert_status(transform_block_codes(&segment, matrices, block, scratch, &codes), KVT_OK);
        for (uint32_t i = 0; i < 32; i++) {
            for (uint32_t j = 0; j < 32; j++) {
                for (uint32_t t = 0; t < 256; t++)
                    moments[i][j] += (double)codes[i * 256 + t] * codes[j * 256 + t] / 768.0;
            }
        }
    }
    for (uint32_t i = 0; i < 32; i++) {
        const double deviation = sqrt(moments[i][i]) * 4.0 / 64.0;
        double variance = 0.0;
        for (uint32_t band = 0; band < TRANSFORM_BANDS; band++)
            variance += exp2(l.basis.spreads[i * TRANSFORM_BANDS + band] / 4.0) / TRANSFORM_ALONG *
                        (transform_band_start(band + 1) - transform_band_start(band));
        const double said = sqrt(variance);
        if (said > 0.125) assert_true(deviation > 0.85 * said && deviation < 1.18 * said);
        for (uint32_t j = 0; j < i; j++)
            assert_true(fabs(moments[i][j]) < 0.25 * sqrt(moments[i][i] * moments[j][j]) + 0.05);
        if (i > 0) assert_true(moments[i][i] < 1.5 * moments[i - 1][i - 1] + 1.0);
    }
    free(l.object);
}

/* Errors that are drawn have deviation 1 in the metric. */
TEST(noise_is_white_in_the_metric)
{
    basis_learner *learner;
    float noise[2000][2][8];
    double power[2] = {0.0, 0.0};
    assert_status(basis_learner_open(&test_shape, test_frequencies, &learner), KVT_OK);
    learner_give_outputs(learner);
    assert_status(basis_learner_noise(learner, 1, KVT_SIDE_V, 2000, 5, noise[0][0]), KVT_OK);
    for (uint32_t t = 0; t < 2000; t++) {
        for (uint32_t e = 0; e < 8; e++)
            power[e / 4] += (double)noise[t][1][e] * (double)noise[t][1][e] / 8000.0;
    }
    /* A fiftieth of the mean of 9 and 1 is on the diagonal as well. */
    assert_true(fabs(power[0] * 9.1 - 1.0) < 0.05 && fabs(power[1] * 1.1 - 1.0) < 0.05);
    basis_learner_close(learner);
}

TEST(the_same_calls_give_the_same_bytes)
{
    learnt first = learn(TRANSFORM_SPAN_HEAD, true, NULL);
    learnt again = learn(TRANSFORM_SPAN_HEAD, true, NULL);
    assert_memory_equal(first.basis.hash, again.basis.hash, sizeof first.basis.hash);
    free(first.object);
    free(again.object);
}

TEST(calls_out_of_order_are_refused)
{
    basis_learner *learner;
    basis_origin origin = {.model = ""};
    uint8_t *object;
    uint64_t bytes;
    transform_shape wrong = test_shape;
    kvt_layout layout = test_layout();
    float *entry = test_entry(1);
    wrong.rotary_dim = 10;
    assert_status(basis_learner_open(&wrong, test_frequencies, &learner), KVT_E_ARGUMENT);
    basis_learner_close(learner);
    assert_status(basis_learner_open(&test_shape, test_frequencies, &learner), KVT_OK);
    assert_status(basis_learner_solve(learner), KVT_E_ARGUMENT);
    assert_status(basis_learner_entry(learner, BASIS_SPREAD, &layout, entry), KVT_E_ARGUMENT);
    assert_status(basis_learner_entry(learner, BASIS_COUNT, &layout, entry), KVT_E_ARGUMENT);
    assert_status(basis_learner_finish(learner, &origin, &object, &bytes), KVT_E_ARGUMENT);
    layout.head_dim = 4;
    assert_status(basis_learner_entry(learner, BASIS_LEARN, &layout, entry), KVT_E_ARGUMENT);
    layout = test_layout();
    layout.tokens = 4;
    assert_status(basis_learner_entry(learner, BASIS_LEARN, &layout, entry), KVT_E_ARGUMENT);
    layout = test_layout();
    entry[12345] = NAN;
    assert_status(basis_learner_entry(learner, BASIS_LEARN, &layout, entry), KVT_E_UNSUPPORTED);
    basis_learner_close(learner);
}
