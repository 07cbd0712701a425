/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_estimator_model_many.c - attention over more tokens than a tile and a block hold, against a
 * plain forward pass in double; and several sequences in one call against each in a call of its
 * own.
 */
#include "base/half.h"
#include "model_support.h"

#include <unistd.h>

enum { TOKENS = 700, SEQUENCES = 7 };

static uint32_t tokens[TOKENS];
static naive_model plain;
static model *loaded;
static model_session *session;

static int open_model(void **state)
{
    (void)state;
    char folder[] = "model-many-XXXXXX", path[64];
    uint64_t random = 4;
    if (mkdtemp(folder) == NULL) return -1;
    snprintf(path, sizeof path, "%s/model.bin", folder);
    plain = naive_make(naive_config(), 11);
    naive_write(&plain, path);
    loaded = naive_open(path);
    for (uint32_t i = 0; i < TOKENS; i++)
        tokens[i] = naive_random(&random) % plain.c.vocab;
    (void)unlink(path);
    (void)rmdir(folder);
    return model_session_open(loaded, &session) != KVT_OK;
}

TEST_AFTER_ALL
{
    model_session_close(session);
    model_close(loaded);
}

static size_t row_floats(void)
{
    return (size_t)plain.c.kv_heads * plain.c.head_dim;
}

/* K and V of all tokens, and their logits. */
typedef struct whole_run {
    float *k[NAIVE_LAYERS_MAX], *v[NAIVE_LAYERS_MAX], *logits;
} whole_run;

static whole_run run_whole(void)
{
    whole_run whole = {.logits = test_zeros((size_t)TOKENS * plain.c.vocab * sizeof(float))};
    for (uint32_t l = 0; l < plain.c.layers; l++) {
        whole.k[l] = test_zeros(TOKENS * row_floats() * sizeof(float));
        whole.v[l] = test_zeros(TOKENS * row_floats() * sizeof(float));
    }
    assert_ok(model_forward(session, &(model_request){.tokens = tokens,
                                                      .token_count = TOKENS,
                                                      .k_out = whole.k,
                                                      .v_out = whole.v,
                                                      .logits_count = TOKENS,
                                                      .logits_out = whole.logits}));
    return whole;
}

static void assert_near(const float *is, const double *wanted, size_t count, const char *what)
{
    for (size_t i = 0; i < count; i++)
        if (!(fabs((double)is[i] - wanted[i]) <= 2e-5))
            fail_msg("%s %zu: %.9g, not %.9g", what, i, (double)is[i], wanted[i]);
}

TEST_ALL(open_model, NULL);

TEST(long_texts_agree_with_the_plain_pass)
{
    size_t layer = TOKENS * row_floats();
    double *logits = test_zeros((size_t)TOKENS * plain.c.vocab * sizeof *logits);
    double *k = test_zeros(plain.c.layers * layer * sizeof *k);
    double *v = test_zeros(plain.c.layers * layer * sizeof *v);
    naive_forward(&plain, tokens, TOKENS, logits, k, v);
    whole_run whole = run_whole();
    assert_near(whole.logits, logits, (size_t)TOKENS * plain.c.vocab, "logit");
    for (uint32_t l = 0; l < plain.c.layers; l++) {
        assert_near(whole.k[l], k + l * layer, layer, "key");
        assert_near(whole.v[l], v + l * layer, layer, "value");
    }
}

/* ---- several sequences ---- */

/* A past of `tokens` tokens, in a dtype of its own, some of which may be dropped. */
typedef struct sequence {
    uint32_t past, count, first_logits;
    uint8_t dtype;
    bool drops;
    void *k[NAIVE_LAYERS_MAX], *v[NAIVE_LAYERS_MAX];
    uint8_t *kept[NAIVE_LAYERS_MAX];
    model_past shown;
    float *k_out[NAIVE_LAYERS_MAX], *v_out[NAIVE_LAYERS_MAX], *logits;
    float *queries_out[NAIVE_LAYERS_MAX], *attended_out[NAIVE_LAYERS_MAX];
} sequence;

static void *as_dtype(const float *from, size_t count, uint8_t dtype)
{
    float *floats = test_alloc((count + 1) * sizeof *floats);
    uint16_t *halves = (uint16_t *)(void *)floats;
    for (size_t i = 0; i < count; i++) {
        if (dtype == KVT_DTYPE_FP32) floats[i] = from[i];
        if (dtype == KVT_DTYPE_FP16) halves[i] = half_from_float(from[i]);
        if (dtype == KVT_DTYPE_BF16) halves[i] = half_bf16_from_float(from[i]);
    }
    return floats;
}

static void make_sequence(const whole_run *whole, sequence *s)
{
    const size_t kv = row_floats(), query = (size_t)plain.c.heads * plain.c.head_dim;
    for (uint32_t l = 0; l < plain.c.layers; l++) {
        s->k[l] = as_dtype(whole->k[l], s->past * kv, s->dtype);
        s->v[l] = as_dtype(whole->v[l], s->past * kv, s->dtype);
        s->kept[l] = test_alloc((size_t)s->past * plain.c.kv_heads + 1);
        s->k_out[l] = test_zeros(s->count * kv * sizeof(float));
        s->v_out[l] = test_zeros(s->count * kv * sizeof(float));
        s->queries_out[l] = test_zeros(s->count * query * sizeof(float));
        s->attended_out[l] = test_zeros(s->count * query * sizeof(float));
        /* Whole tiles of one head are dropped too. */
        for (uint32_t i = 0; i < s->past * plain.c.kv_heads; i++)
            s->kept[l][i] = i % 3 != l % 3 && (i < 20 || i >= 600);
    }
    s->logits = test_zeros((size_t)s->count * plain.c.vocab * sizeof(float));
    s->shown = (model_past){.tokens = s->past,
                            .dtype = s->dtype,
                            .k = (const void *const *)s->k,
                            .v = (const void *const *)s->v,
                            .kept = s->drops ? (const uint8_t *const *)s->kept : NULL};
}

static model_request request_of(sequence *s)
{
    return (model_request){.tokens = tokens + s->past,
                           .token_count = s->count,
                           .first_position = s->past,
                           .past = s->past > 0 ? &s->shown : NULL,
                           .k_out = s->k_out,
                           .v_out = s->v_out,
                           .logits_first = s->first_logits,
                           .logits_count = s->count - s->first_logits,
                           .logits_out = s->logits,
                           .queries_first = s->first_logits,
                           .queries_count = s->count - s->first_logits,
                           .queries_out = s->queries_out,
                           .attended_out = s->attended_out};
}

static void assert_same(const float *a, const float *b, size_t count, const char *what)
{
    double sum = 0.0;
    for (size_t i = 0; i < count; i++) {
        sum += fabs((double)a[i]);
        if (!(fabs((double)a[i] - (double)b[i]) <= 1e-5))
            fail_msg("%s %zu: %.9g, not %.9g", what, i, (double)b[i], (double)a[i]);
    }
    if (count > 0) assert_true(sum > 0.0);
}

static void assert_sequences_agree(const sequence *alone, const sequence *together)
{
    const size_t rows = alone->count - alone->first_logits;
    const size_t query = (size_t)plain.c.heads * plain.c.head_dim;
    assert_same(alone->logits, together->logits, rows * plain.c.vocab, "logit");
    for (uint32_t l = 0; l < plain.c.layers; l++) {
        assert_same(alone->k_out[l], together->k_out[l], alone->count * row_floats(), "key");
        assert_same(alone->v_out[l], together->v_out[l], alone->count * row_floats(), "value");
        assert_same(alone->queries_out[l], together->queries_out[l], rows * query, "query");
        assert_same(alone->attended_out[l], together->attended_out[l], rows * query, "output");
    }
}

TEST(several_sequences_equal_each_alone)
{
    static const sequence shapes[SEQUENCES] = {
        {.past = 699, .count = 1, .dtype = KVT_DTYPE_FP16},
        {.past = 0, .count = 300, .first_logits = 290, .dtype = KVT_DTYPE_FP32},
        {.past = 640, .count = 1, .dtype = KVT_DTYPE_FP32, .drops = true},
        {.past = 256, .count = 3, .dtype = KVT_DTYPE_BF16},
        {.past = 1, .count = 1, .dtype = KVT_DTYPE_FP32},
        {.past = 300, .count = 140, .first_logits = 7, .dtype = KVT_DTYPE_FP16, .drops = true},
        {.past = 0, .count = 1, .dtype = KVT_DTYPE_FP32},
    };
    whole_run whole = run_whole();
    sequence alone[SEQUENCES], together[SEQUENCES];
    model_request requests[SEQUENCES];
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        alone[i] = together[i] = shapes[i];
        make_sequence(&whole, &alone[i]);
        make_sequence(&whole, &together[i]);
        model_request request = request_of(&alone[i]);
        assert_ok(model_forward(session, &request));
        requests[i] = request_of(&together[i]);
    }
    assert_ok(model_forward_many(session, requests, SEQUENCES));
    for (uint32_t i = 0; i < SEQUENCES; i++)
        assert_sequences_agree(&alone[i], &together[i]);
    /* The same batch gives the same bytes. */
    float again[64];
    size_t bytes = sizeof again;
    memcpy(again, together[0].logits, bytes);
    assert_ok(model_forward_many(session, requests, SEQUENCES));
    assert_memory_equal(again, together[0].logits, bytes);
    /* An fp32 past that is the whole run's goes on as the whole run does. */
    assert_same(whole.logits + (size_t)1 * plain.c.vocab, together[4].logits, plain.c.vocab,
                "logit");
    for (uint32_t i = 0; i < SEQUENCES; i++) {
    }
}

/* More rows of logits than are computed together, wanted by ones and twos. */
TEST(many_rows_are_handed_to_their_requests)
{
    enum { COUNT = 45 };
    model_request requests[COUNT];
    float *logits = test_zeros(4 * COUNT * (size_t)plain.c.vocab * sizeof *logits);
    float *alone = logits + 2 * COUNT * (size_t)plain.c.vocab;
    for (uint32_t i = 0; i < COUNT; i++) {
        const size_t place = 2 * i * (size_t)plain.c.vocab;
        requests[i] = (model_request){.tokens = tokens + i,
                                      .token_count = 3,
                                      .logits_first = 1,
                                      .logits_count = 1 + i % 2,
                                      .logits_out = alone + place};
        assert_ok(model_forward(session, &requests[i]));
        requests[i].logits_out = logits + place;
    }
    requests[7].logits_out = NULL;
    memset(alone + 14 * (size_t)plain.c.vocab, 0, 2 * plain.c.vocab * sizeof *alone);
    assert_ok(model_forward_many(session, requests, COUNT));
    assert_same(alone, logits, 2 * COUNT * (size_t)plain.c.vocab, "logit");
}

TEST(one_wrong_request_runs_none)
{
    float logits[2][128] = {{0}};
    const uint32_t outside = plain.c.vocab;
    model_request requests[2] = {
        {.tokens = tokens, .token_count = 1, .logits_count = 1, .logits_out = logits[0]},
        {.tokens = &outside, .token_count = 1, .logits_count = 1, .logits_out = logits[1]}};
    assert_true(plain.c.vocab <= 128);
    assert_int_equal(model_forward_many(session, requests, 2), KVT_E_ARGUMENT);
    assert_true(logits[0][0] == 0.0f);
    requests[1].tokens = tokens;
    requests[1].token_count = 0;
    assert_int_equal(model_forward_many(session, requests, 2), KVT_E_ARGUMENT);
    assert_ok(model_forward_many(session, requests, 0));
    assert_true(logits[0][0] == 0.0f);
    requests[1].token_count = 1;
    assert_ok(model_forward_many(session, requests, 2));
    assert_same(logits[0], logits[1], plain.c.vocab, "logit");
}
