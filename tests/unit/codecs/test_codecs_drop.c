/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_codecs_drop.c - scores against values computed elsewhere, plans, selection, rows and turning
 * keys. The index has its own file.
 */
#include "codecs_support.h"

#include "codecs/drop.h"
#include "codecs/drop_number.h"
#include "codecs/element.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>

enum { CASES = 6, METHODS = 3, TOKENS_MOST = 32, ELEMENTS_MOST = 1024 };

static const uint8_t method_of[METHODS] = {DROP_METHOD_KNORM, DROP_METHOD_KEYDIFF,
                                           DROP_METHOD_LAGKV};

/* What make_drop_vectors.py computed; the scores are means over the heads. */
typedef struct vector_case {
    char name[32];
    uint8_t dtype;
    uint32_t tokens, lag, sinks, first_position, kept_count;
    uint16_t heads, dim, keep_permille;
    uint16_t k[ELEMENTS_MOST], v[ELEMENTS_MOST]; /* [tokens][heads][dim] */
    double scores[METHODS][TOKENS_MOST];
    uint32_t kept[METHODS][TOKENS_MOST];
} vector_case;

static vector_case vector_cases[CASES];

static void read_elements(const json_t *list, const vector_case *c, uint16_t *elements)
{
    assert_int_equal(json_array_size(list), (size_t)c->tokens * c->heads * c->dim);
    assert_in_range(json_array_size(list), 1, ELEMENTS_MOST);
    for (size_t i = 0; i < json_array_size(list); i++)
        elements[i] = (uint16_t)json_integer_value(json_array_get(list, i));
}

static void read_method(json_t *row, vector_case *c, int method, const char *name)
{
    const json_t *scores = json_object_get(json_object_get(row, "scores"), name);
    const json_t *kept = json_object_get(json_object_get(row, "kept"), name);
    assert_int_equal(json_array_size(scores), c->tokens);
    assert_in_range(c->tokens, 1, TOKENS_MOST);
    assert_in_range(json_array_size(kept), 1, c->tokens);
    c->kept_count = (uint32_t)json_array_size(kept);
    for (uint32_t t = 0; t < c->tokens; t++)
        c->scores[method][t] = json_number_value(json_array_get(scores, t));
    for (uint32_t t = 0; t < c->kept_count; t++)
        c->kept[method][t] = (uint32_t)json_integer_value(json_array_get(kept, t));
}

TEST_BEFORE_ALL
{
    char path[4096];
    snprintf(path, sizeof path, "%s/tests/support/drop_vectors.json", getenv("KVT_SOURCE_DIR"));
    json_t *rows = json_load_file(path, 0, NULL);
    assert_int_equal(json_array_size(rows), CASES);
    for (size_t i = 0; i < CASES; i++) {
        json_t *row = json_array_get(rows, i), *k, *v;
        vector_case *c = &vector_cases[i];
        const char *name, *dtype;
        int tokens, heads, dim, lag, sinks, first, keep;
        assert_int_equal(json_unpack(row, "{ss,ss,si,si,si,si,si,si,si,so,so}", "name", &name,
                                     "dtype", &dtype, "tokens", &tokens, "heads", &heads, "dim",
                                     &dim, "lag", &lag, "sinks", &sinks, "first_position", &first,
                                     "keep_permille", &keep, "k", &k, "v", &v),
                         0);
        *c = (vector_case){.dtype = strcmp(dtype, "bf16") == 0 ? KVT_DTYPE_BF16 : KVT_DTYPE_FP16,
                           .tokens = (uint32_t)tokens,
                           .lag = (uint32_t)lag,
                           .sinks = (uint32_t)sinks,
                           .first_position = (uint32_t)first,
                           .heads = (uint16_t)heads,
                           .dim = (uint16_t)dim,
                           .keep_permille = (uint16_t)keep};
        snprintf(c->name, sizeof c->name, "%s", name);
        read_elements(k, c, c->k);
        read_elements(v, c, c->v);
        read_method(row, c, 0, "knorm");
        read_method(row, c, 1, "keydiff");
        read_method(row, c, 2, "lagkv");
    }
    json_decref(rows);
}
static drop_settings settings_of(const vector_case *c, int method)
{
    drop_settings settings = {.method = method_of[method],
                              .keep_permille = c->keep_permille,
                              .sinks = c->sinks,
                              .lag = c->lag};
    return settings;
}

static drop_shape shape_of(const vector_case *c)
{
    drop_shape shape = {c->tokens, c->heads, c->dim, c->dtype};
    return shape;
}

static double *doubles(uint64_t count)
{
    double *values = test_alloc(count * sizeof *values + 1);
    return values;
}

/* The scores of a layer; the caller frees them. */
static double *scores_of(const drop_settings *settings, const drop_shape *shape, uint32_t first,
                         const void *k, const void *v)
{
    double *scores = doubles(shape->tokens);
    double *scratch = doubles(drop_scores_scratch(settings, shape));
    assert_status(drop_scores(settings, shape, first, k, v, scores, scratch), KVT_OK);
    return scores;
}

TEST(scores_are_the_published_ones)
{
    for (int i = 0; i < CASES; i++) {
        const vector_case *c = &vector_cases[i];
        const drop_shape shape = shape_of(c);
        for (int method = 0; method < METHODS; method++) {
            const drop_settings settings = settings_of(c, method);
            double *scores = scores_of(&settings, &shape, c->first_position, c->k, c->v);
            for (uint32_t t = 0; t < c->tokens; t++) {
                const double want = c->scores[method][t];
                if (fabs(scores[t] - want) > 1e-9 * fabs(want)) {
                    fail_msg("%s, method %d, token %u: %.17g, not %.17g", c->name, method, t,
                             scores[t], want);
                }
            }
        }
    }
}

TEST(selections_are_the_published_ones)
{
    for (int i = 0; i < CASES; i++) {
        const vector_case *c = &vector_cases[i];
        const drop_shape shape = shape_of(c);
        const drop_place place = {c->first_position, c->tokens, c->first_position + c->tokens};
        for (int method = 0; method < METHODS; method++) {
            const drop_settings settings = settings_of(c, method);
            drop_plan plan;
            uint32_t kept[64];
            double *scores = scores_of(&settings, &shape, c->first_position, c->k, c->v);
            assert_status(drop_plan_of(&settings, &place, &plan), KVT_OK);
            assert_int_equal(plan.keep, c->kept_count);
            drop_select(scores, c->tokens, &plan, kept);
            assert_memory_equal(kept, c->kept[method], c->kept_count * sizeof kept[0]);
        }
    }
}

/* fp32 holds every fp16 and bf16 value, so its scores are the same doubles. */
TEST(scores_do_not_depend_on_the_dtype)
{
    for (int i = 0; i < CASES; i++) {
        const vector_case *c = &vector_cases[i];
        const size_t count = (size_t)c->tokens * c->heads * c->dim;
        float *k = test_alloc(count * sizeof *k);
        float *v = test_alloc(count * sizeof *v);
        for (size_t e = 0; e < count; e++) {
            k[e] = codecs_element_load((const uint8_t *)c->k, e, c->dtype);
            v[e] = codecs_element_load((const uint8_t *)c->v, e, c->dtype);
        }
        for (int method = 0; method < METHODS; method++) {
            const drop_settings settings = settings_of(c, method);
            drop_shape shape = shape_of(c);
            double *narrow = scores_of(&settings, &shape, c->first_position, c->k, c->v);
            shape.dtype = KVT_DTYPE_FP32;
            double *wide = scores_of(&settings, &shape, c->first_position, k, v);
            assert_memory_equal(narrow, wide, c->tokens * sizeof *wide);
        }
    }
}

/* Elements that are not finite count as zero, and a channel without a span as well. */
TEST(holes_in_the_definitions_are_filled)
{
    enum { TOKENS = 12, DIM = 8 };
    float k[TOKENS * DIM];
    float zeroed[TOKENS * DIM];
    const drop_shape shape = {TOKENS, 1, DIM, KVT_DTYPE_FP32};
    for (int i = 0; i < TOKENS * DIM; i++) {
        k[i] = zeroed[i] = i % DIM == 2 ? 1.0f : (float)((i * 7919) % 101) - 50.0f;
    }
    k[3] = NAN;
    k[8] = INFINITY;
    k[90] = -INFINITY;
    zeroed[3] = zeroed[8] = zeroed[90] = 0.0f;
    for (int method = 0; method < METHODS; method++) {
        const drop_settings settings = {
            .method = method_of[method], .keep_permille = 500, .lag = 3};
        double *a = scores_of(&settings, &shape, 0, k, k);
        double *b = scores_of(&settings, &shape, 0, zeroed, zeroed);
        assert_memory_equal(a, b, TOKENS * sizeof *a);
        for (int t = 0; t < TOKENS; t++) {
            assert_true(isfinite(a[t]));
        }
    }
    memset(k, 0, sizeof k);
    for (int method = 0; method < METHODS; method++) {
        const drop_settings settings = {
            .method = method_of[method], .keep_permille = 500, .lag = 3};
        double *a = scores_of(&settings, &shape, 0, k, k);
        for (int t = 0; t < TOKENS; t++) {
            assert_true(isfinite(a[t]));
        }
    }
}

TEST(shapes_and_methods_are_checked)
{
    double scores[4];
    double scratch[64];
    const uint16_t k[32] = {0};
    drop_settings settings = {.method = DROP_METHOD_CALLER, .keep_permille = 500, .lag = 2};
    drop_shape shape = {4, 1, 8, KVT_DTYPE_BF16};
    assert_status(drop_scores(&settings, &shape, 0, k, k, scores, scratch), KVT_E_UNSUPPORTED);
    settings.method = DROP_METHOD_KNORM;
    shape.dtype = KVT_DTYPE_FP8;
    assert_status(drop_scores(&settings, &shape, 0, k, k, scores, scratch), KVT_E_UNSUPPORTED);
    shape.dtype = KVT_DTYPE_BF16;
    shape.head_dim = 0;
    assert_status(drop_scores(&settings, &shape, 0, k, k, scores, scratch), KVT_E_UNSUPPORTED);
    shape.head_dim = 8;
    settings.method = DROP_METHOD_LAGKV;
    settings.lag = 0;
    assert_status(drop_scores(&settings, &shape, 0, k, k, scores, scratch), KVT_E_UNSUPPORTED);
    settings.lag = 128;
    assert_int_equal(drop_scores_scratch(&settings, &shape), 0);
    assert_status(drop_scores(&settings, &shape, 0, k, k, scores, NULL), KVT_OK);
    assert_true(scores[1] == 0.25);
    shape.tokens = 0;
    assert_status(drop_scores(&settings, &shape, 0, NULL, NULL, scores, NULL), KVT_OK);
}

TEST(a_stream_keeps_sinks_and_the_end_of_the_chain)
{
    const drop_settings settings = {.method = DROP_METHOD_STREAM, .keep_permille = 500, .sinks = 4};
    const drop_place whole = {0, 100, 100};
    drop_plan plan;
    uint32_t kept[100];
    assert_status(drop_plan_of(&settings, &whole, &plan), KVT_OK);
    assert_int_equal(plan.keep, 50);
    drop_select(NULL, 100, &plan, kept);
    for (uint32_t i = 0; i < 50; i++) {
        assert_int_equal(kept[i], i < 4 ? i : i + 50);
    }
    /* The same chain in four entries keeps the same positions. */
    uint32_t found = 0;
    for (uint32_t first = 0; first < 100; first += 25) {
        const drop_place place = {first, 25, 100};
        uint32_t part[25];
        assert_status(drop_plan_of(&settings, &place, &plan), KVT_OK);
        drop_select(NULL, 25, &plan, part);
        for (uint32_t i = 0; i < plan.keep; i++) {
            assert_int_equal(first + part[i], kept[found++]);
        }
    }
    assert_int_equal(found, 50);
}

TEST(plans_count_what_is_protected)
{
    drop_settings settings = {
        .method = DROP_METHOD_KNORM, .keep_permille = 250, .sinks = 4, .recent = 10};
    drop_plan plan;
    const drop_place first = {0, 16, 64};
    assert_status(drop_plan_of(&settings, &first, &plan), KVT_OK);
    assert_true(plan.head == 4 && plan.tail == 16 && plan.keep == 4);
    const drop_place middle = {16, 16, 64};
    assert_status(drop_plan_of(&settings, &middle, &plan), KVT_OK);
    assert_true(plan.head == 0 && plan.tail == 16 && plan.keep == 4);
    const drop_place last = {48, 16, 64};
    assert_status(drop_plan_of(&settings, &last, &plan), KVT_OK);
    assert_true(plan.head == 0 && plan.tail == 6 && plan.keep == 10);
    const drop_place partial = {3, 8, 11}; /* one sink, and the window takes the others */
    assert_status(drop_plan_of(&settings, &partial, &plan), KVT_OK);
    assert_true(plan.head == 1 && plan.tail == 1 && plan.keep == 8);
    const drop_place far = {UINT32_MAX - 5, 5, UINT32_MAX};
    assert_status(drop_plan_of(&settings, &far, &plan), KVT_OK);
    assert_true(plan.head == 0 && plan.tail == 0 && plan.keep == 5);
    const drop_place empty = {7, 0, 64};
    assert_status(drop_plan_of(&settings, &empty, &plan), KVT_OK);
    assert_int_equal(plan.keep, 0);
    const drop_place outside = {60, 5, 64};
    assert_status(drop_plan_of(&settings, &outside, &plan), KVT_E_ARGUMENT);
    settings.keep_permille = 0;
    assert_status(drop_plan_of(&settings, &first, &plan), KVT_E_ARGUMENT);
    settings.keep_permille = 1001;
    assert_status(drop_plan_of(&settings, &first, &plan), KVT_E_ARGUMENT);
    settings.keep_permille = 1000;
    settings.method = 6;
    assert_status(drop_plan_of(&settings, &first, &plan), KVT_E_ARGUMENT);
    assert_int_equal(drop_keep_count(7, 333), 3);
    assert_int_equal(drop_keep_count(UINT32_MAX, 1000), UINT32_MAX);
    assert_int_equal(drop_keep_count(1000, 1), 1);
}

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* A token is kept exactly when fewer than the wanted number of tokens come before it. */
TEST(selection_takes_the_best_and_breaks_ties_low)
{
    uint32_t seed = 1;
    for (uint32_t round = 0; round < 400; round++) {
        double scores[200];
        uint32_t kept[200];
        const uint32_t tokens = 1 + next_random(&seed) % 200;
        const uint32_t kinds = 1 + next_random(&seed) % 30;
        drop_plan plan = {.head = next_random(&seed) % (tokens + 1)};
        plan.tail = plan.head + next_random(&seed) % (tokens - plan.head + 1);
        const uint32_t fixed = plan.head + tokens - plan.tail;
        plan.keep = fixed + next_random(&seed) % (tokens - fixed + 1);
        for (uint32_t t = 0; t < tokens; t++) {
            scores[t] = ((double)(next_random(&seed) % kinds) - 10.0) * 0.37e-3;
            if (round % 3 == 0 && scores[t] == 0.0 && t % 2) scores[t] = -0.0;
            if (round % 5 == 0 && next_random(&seed) % 9 == 0) scores[t] = NAN;
            if (round % 7 == 0 && next_random(&seed) % 9 == 0) scores[t] = -INFINITY;
            if (round % 7 == 0 && next_random(&seed) % 9 == 0) scores[t] = INFINITY;
        }
        memset(kept, 0xff, sizeof kept);
        drop_select(scores, tokens, &plan, kept);
        uint32_t found = 0;
        for (uint32_t t = 0; t < tokens; t++) {
            uint32_t before = 0;
            for (uint32_t u = plan.head; u < plan.tail; u++) {
                const bool above = isnan(scores[t]) ? !isnan(scores[u]) : scores[u] > scores[t];
                const bool equal = (isnan(scores[t]) && isnan(scores[u])) || scores[u] == scores[t];
                before += above || (equal && u < t);
            }
            const bool stays = t < plan.head || t >= plan.tail || before < plan.keep - fixed;
            if (stays) assert_int_equal(kept[found++], t);
        }
        assert_int_equal(found, plan.keep);
        if (found < 200) assert_int_equal(kept[found], UINT32_MAX);
    }
}

TEST(rows_go_out_and_back)
{
    enum { TOKENS = 9, ROW = 5 };
    uint8_t source[TOKENS * ROW];
    const uint32_t index[] = {0, 1, 4, 5, 8};
    guarded rows = guarded_make(5 * ROW);
    guarded back = guarded_make(TOKENS * ROW);
    for (int i = 0; i < TOKENS * ROW; i++) {
        source[i] = (uint8_t)(i + 1);
    }
    drop_gather(source, ROW, index, 5, rows.data);
    guarded_check(&rows, rows.bytes);
    for (int way = 0; way < 2; way++) {
        const void *from = rows.data;
        if (way == 1) from = memcpy(back.data, rows.data, rows.bytes); /* in place */
        assert_status(drop_scatter(from, ROW, index, 5, TOKENS, back.data), KVT_OK);
        for (uint32_t t = 0, i = 0; t < TOKENS; t++) {
            const bool kept = i < 5 && index[i] == t;
            const uint8_t zeros[ROW] = {0};
            assert_memory_equal(back.data + t * ROW, kept ? source + t * ROW : zeros, ROW);
            i += kept;
        }
        guarded_check(&back, back.bytes);
    }
    const uint32_t falling[] = {3, 3};
    const uint32_t outside[] = {3, 9};
    assert_status(drop_scatter(rows.data, ROW, falling, 2, TOKENS, back.data), KVT_E_CORRUPT);
    assert_status(drop_scatter(rows.data, ROW, outside, 2, TOKENS, back.data), KVT_E_CORRUPT);
    assert_status(drop_scatter(rows.data, ROW, index, 0, TOKENS, back.data), KVT_OK);
    assert_int_equal(back.data[0], 0);
}

TEST(own_functions_are_close_to_libm)
{
    assert_true(drop_exp(0.0) == 1.0);
    assert_true(drop_exp(-1e9) == 0.0 && drop_exp(-INFINITY) == 0.0);
    assert_true(drop_log(1.0) == 0.0);
    for (int i = 0; i < 20000; i++) {
        const double x = (double)i * (double)i * 1e-6 + 1e-9 * i;
        const double e = exp(-x);
        assert_true(fabs(drop_exp(-x) - e) <= 4e-16 * e);
        const double l = log(1.0 + x * x);
        assert_true(fabs(drop_log(1.0 + x * x) - l) <= 4e-16 * fabs(l) + 1e-16);
        assert_true(drop_sqrt(x) == sqrt(x));
    }
    for (uint64_t i = 0; i < 20000; i++) {
        const uint64_t turns = i * UINT64_C(922337203685477) * 21;
        const long double angle = (long double)turns * 0x1p-64L * 2 * 3.14159265358979323846L;
        double c;
        double s;
        drop_cos_sin(turns, &c, &s);
        assert_true(fabs(c - (double)cosl(angle)) <= 4e-16);
        assert_true(fabs(s - (double)sinl(angle)) <= 4e-16);
    }
}

static void turn_key(float *key, const double *frequencies, uint32_t rotary_dim, uint8_t pairing,
                     double position)
{
    for (uint32_t j = 0; j < rotary_dim / 2; j++) {
        const uint32_t a = pairing == DROP_PAIRING_HALF ? j : 2 * j;
        const uint32_t b = pairing == DROP_PAIRING_HALF ? j + rotary_dim / 2 : 2 * j + 1;
        const double c = cos(position * frequencies[j]);
        const double s = sin(position * frequencies[j]);
        const double x = (double)key[a];
        const double y = (double)key[b];
        key[a] = (float)(x * c - y * s);
        key[b] = (float)(y * c + x * s);
    }
}

/* Turned keys are those that the model would have made at the new positions. */
TEST(keys_turn_to_their_new_positions)
{
    enum { KEPT = 5, HEADS = 2, DIM = 20, ROTARY = 16, ROW = HEADS * DIM };
    const uint32_t index[KEPT] = {0, 3, 4, 9000, 130000};
    double frequencies[ROTARY / 2];
    drop_rope_frequencies(500000.0, ROTARY, frequencies);
    for (uint32_t j = 0; j < ROTARY / 2; j++) {
        const double want = pow(500000.0, -2.0 * j / ROTARY);
        assert_true(fabs(frequencies[j] - want) <= 4e-15 * want);
    }
    for (uint8_t dtype = KVT_DTYPE_FP16; dtype <= KVT_DTYPE_FP32; dtype++) {
        for (uint8_t pairing = 0; pairing < 2; pairing++) {
            const drop_rope rope = {frequencies, ROTARY, pairing};
            const drop_shape shape = {KEPT, HEADS, DIM, dtype};
            float wanted[KEPT * ROW];
            uint8_t keys[KEPT * ROW * sizeof(float)];
            for (uint32_t i = 0; i < KEPT * ROW; i++) {
                const uint32_t at = i % DIM;
                if (at != 0) continue;
                float old[DIM];
                for (uint32_t c = 0; c < DIM; c++) {
                    old[c] = wanted[i + c] = (float)((i + c) * 37 % 41) / 16.0f - 1.25f;
                }
                turn_key(old, frequencies, ROTARY, pairing, 70.0 + index[i / ROW]);
                turn_key(wanted + i, frequencies, ROTARY, pairing, 66.0 + i / ROW);
                for (uint32_t c = 0; c < DIM; c++) {
                    codecs_element_store(keys, i + c, dtype, old[c]);
                }
            }
            assert_status(drop_rerotate(&shape, &rope, index, 70, 66, keys), KVT_OK);
            /* Two roundings, of the old key and of the new one, of values up to 1.8. */
            const double unit = dtype == KVT_DTYPE_FP32 ? 0x1p-24 : 0x1p-11;
            const double bound = 4.0 * (dtype == KVT_DTYPE_BF16 ? 0x1p-8 : unit);
            for (uint32_t i = 0; i < KEPT * ROW; i++) {
                const double got = (double)codecs_element_load(keys, i, dtype);
                assert_true(fabs(got - (double)wanted[i]) <= bound);
            }
        }
    }
}

TEST(keys_that_stay_keep_their_bits)
{
    const uint32_t index[2] = {0, 1};
    double frequencies[2];
    uint16_t keys[8] = {0x7e01, 0xfc00, 0x0001, 0x8000, 0x3c00, 0x1234, 0x4321, 0x7fff};
    uint16_t before[8];
    drop_rope_frequencies(10000.0, 4, frequencies);
    memcpy(before, keys, sizeof keys);
    const drop_shape shape = {2, 1, 4, KVT_DTYPE_FP16};
    drop_rope rope = {frequencies, 4, DROP_PAIRING_HALF};
    assert_status(drop_rerotate(&shape, &rope, index, 5, 5, keys), KVT_OK);
    assert_memory_equal(keys, before, sizeof keys);
    rope.rotary_dim = 6;
    assert_status(drop_rerotate(&shape, &rope, index, 5, 0, keys), KVT_E_UNSUPPORTED);
    rope.rotary_dim = 3;
    assert_status(drop_rerotate(&shape, &rope, index, 5, 0, keys), KVT_E_UNSUPPORTED);
    rope.rotary_dim = 4;
    rope.pairing = 2;
    assert_status(drop_rerotate(&shape, &rope, index, 5, 0, keys), KVT_E_UNSUPPORTED);
    rope.pairing = 1;
    frequencies[1] = NAN;
    assert_status(drop_rerotate(&shape, &rope, index, 5, 0, keys), KVT_E_UNSUPPORTED);
    assert_memory_equal(keys, before, sizeof keys);
}
