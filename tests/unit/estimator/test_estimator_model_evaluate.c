/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_estimator_model_evaluate.c - the judge on small random models: exact against exact, known
 * changes of K and V, dropped tokens, probes against sums in double, KL by hand, texts and sets.
 */
#include "base/half.h"
#include "estimator/model/model.h"
#include "estimator/quality/evaluate.h"
#include "estimator/quality/quality.h"
#include "evaluate_support.h"
#include "model_folder.h"
#include "model_support.h"

#include <unistd.h>
#include <zstd.h>

enum { CONTEXT = 80, CONTINUATION = 70 }; /* more than one block of queries */

/* A model, a session and one entry of random tokens. */
typedef struct bench_case {
    naive_model m;
    model *loaded;
    model_session *session;
    evaluate_entry *entry;
} bench_case;

static bench_case case_make(uint64_t seed)
{
    bench_case b = {.m = naive_make(naive_config(), seed)};
    uint32_t tokens[CONTEXT + CONTINUATION];
    naive_write(&b.m, in_folder("model.bin"));
    b.loaded = naive_open(in_folder("model.bin"));
    assert_ok(model_session_open(b.loaded, &b.session));
    for (size_t i = 0; i < CONTEXT + CONTINUATION; i++)
        tokens[i] = naive_random(&seed) % b.m.c.vocab;
    assert_ok(evaluate_entry_open(b.session, tokens, CONTEXT, CONTINUATION, &b.entry));
    return b;
}

static void case_free(bench_case *b)
{
    evaluate_entry_close(b->entry);
    model_session_close(b->session);
    model_close(b->loaded);
}

static void assert_close(double is, double wanted, double tolerance, const char *what)
{
    if (!(fabs(is - wanted) <= tolerance)) fail_msg("%s: %.9g, not %.9g", what, is, wanted);
}

static evaluate_result run(bench_case *b, evaluate_transform transform, void *context)
{
    evaluate_result result;
    assert_ok(evaluate_entry_run(b->session, b->entry, transform, context, &result, NULL));
    return result;
}

TEST_ALL(make_folder, remove_folder);

TEST(exact_against_exact_is_nothing)
{
    bench_case b = case_make(41);
    evaluate_result result = run(&b, evaluate_exact, NULL);
    assert_true(result.kl == 0.0 && result.top1 == 1.0 && result.nll_delta == 0.0);
    assert_true(result.attention_error == 0.0 && result.retained_mass == 1.0);
    case_free(&b);
}

/* The entry's own figures against one plain run over all its tokens: what is left is the rounding
 * of the context's KV to fp16. */
TEST(entries_hold_the_exact_run)
{
    bench_case b = case_make(42);
    const model_config *c = &b.m.c;
    enum { ALL = CONTEXT + CONTINUATION };
    size_t row = (size_t)c->kv_heads * c->head_dim, layer = ALL * row;
    double *logits = test_zeros((size_t)ALL * c->vocab * sizeof *logits), nll = 0.0;
    double *k = test_zeros(c->layers * layer * sizeof *k),
           *v = test_zeros(c->layers * layer * sizeof *v);
    naive_forward(&b.m, b.entry->tokens, ALL, logits, k, v);
    for (uint32_t l = 0; l < c->layers; l++) {
        for (size_t i = 0; i < CONTEXT * row; i++) {
            double key = k[l * layer + i], value = v[l * layer + i];
            assert_close((double)half_to_float(b.entry->k[l][i]), key, fabs(key) / 1024 + 1e-5,
                         "key");
            assert_close((double)half_to_float(b.entry->v[l][i]), value, fabs(value) / 1024 + 1e-5,
                         "value");
        }
        for (size_t i = 0; i < CONTINUATION * row; i++)
            assert_close((double)b.entry->own_k[l][i], k[l * layer + CONTEXT * row + i], 5e-3,
                         "own key");
    }
    for (uint32_t r = 0; r < CONTINUATION; r++) {
        const double *wanted = logits + (size_t)(CONTEXT + r) * c->vocab;
        double sum = 0.0;
        for (uint32_t i = 0; i < c->vocab; i++) {
            assert_close((double)b.entry->logits[(size_t)r * c->vocab + i], wanted[i], 5e-3,
                         "logit");
            sum += exp(wanted[i]);
        }
        if (r + 1 < CONTINUATION) nll += log(sum) - wanted[b.entry->tokens[CONTEXT + r + 1]];
    }
    assert_close(b.entry->nll, nll / (CONTINUATION - 1), 2e-3, "nll");
    case_free(&b);
}

static kvt_status scale_values(void *context, evaluate_kv *kv)
{
    double factor = *(double *)context;
    size_t count = (size_t)kv->tokens * kv->config->kv_heads * kv->config->head_dim;
    for (uint32_t l = 0; l < kv->config->layers; l++)
        for (size_t i = 0; i < count; i++)
            kv->v[l][i] = half_from_float((float)factor * half_to_float(kv->v[l][i]));
    return KVT_OK;
}

/* A larger change is a larger loss, and the entry is as before after each run. */
TEST(changes_are_seen)
{
    bench_case b = case_make(43);
    double small = 0.95, large = 0.5, sum = 0.0;
    evaluate_token tokens[CONTINUATION];
    evaluate_result a = run(&b, scale_values, &small), z = run(&b, scale_values, &large), again;
    assert_true(a.kl > 1e-6 && z.kl > 20 * a.kl && z.top1 <= a.top1);
    assert_true(a.attention_error > 0.001 && z.attention_error > 5 * a.attention_error);
    assert_true(a.retained_mass == 1.0);
    assert_ok(evaluate_entry_run(b.session, b.entry, scale_values, &small, &again, tokens));
    assert_true(again.kl == a.kl && again.nll_delta == a.nll_delta);
    for (int i = 0; i < CONTINUATION; i++)
        sum += tokens[i].kl;
    assert_close(sum / CONTINUATION, a.kl, 1e-12, "mean of the tokens' KL");
    case_free(&b);
}

/* The entry's own attention outputs stand for computing them once more. */
TEST(kept_outputs_are_those_of_a_probe)
{
    bench_case b = case_make(44);
    const evaluate_entry *e = b.entry;
    double factor = 0.7;
    evaluate_variant variant = {.memory = NULL};
    evaluate_result result;
    model_probe_result plain;
    assert_ok(evaluate_variant_open(e, scale_values, &factor, &variant));
    assert_false(variant.dropped);
    assert_ok(evaluate_variant_run(b.session, e, &variant, &result, NULL));
    const model_past exact = {CONTEXT, KVT_DTYPE_FP16, (const void *const *)e->k,
                              (const void *const *)e->v, NULL};
    const model_past other = {CONTEXT, KVT_DTYPE_FP16, (const void *const *)variant.k,
                              (const void *const *)variant.v, NULL};
    const model_probe probe = {.exact = &exact,
                               .variant = &other,
                               .rows = CONTINUATION,
                               .queries = (const float *const *)e->queries,
                               .own_k = (const float *const *)e->own_k,
                               .own_v = (const float *const *)e->own_v};
    assert_ok(model_probe_attention(e->config, &probe, &plain, NULL));
    assert_true(plain.attention_error > 0.01);
    assert_close(result.attention_error, plain.attention_error, 1e-6, "attention error");
    evaluate_variant_close(&variant);
    case_free(&b);
}

static kvt_status drop_all(void *context, evaluate_kv *kv)
{
    (void)context;
    for (uint32_t l = 0; l < kv->config->layers; l++)
        memset(kv->kept[l], 0, (size_t)kv->config->kv_heads * kv->tokens);
    return KVT_OK;
}

static kvt_status fail_transform(void *context, evaluate_kv *kv)
{
    (void)context;
    (void)kv;
    return KVT_E_CORRUPT;
}

static kvt_status move_on(void *context, evaluate_kv *kv)
{
    (void)context;
    kv->next_position += 3;
    return KVT_OK;
}

TEST(drops_positions_and_failures_pass_through)
{
    bench_case b = case_make(44);
    const model_config *c = &b.m.c;
    evaluate_result dropped = run(&b, drop_all, NULL), moved = run(&b, move_on, NULL), failed;
    /* Without the context the continuation is a text of its own, wherever it starts. */
    float *alone = test_zeros((size_t)CONTINUATION * c->vocab * sizeof *alone);
    double kl = 0.0;
    model_request request = {.tokens = b.entry->tokens + CONTEXT,
                             .token_count = CONTINUATION,
                             .logits_count = CONTINUATION,
                             .logits_out = alone};
    assert_ok(model_forward(b.session, &request));
    for (uint32_t r = 0; r < CONTINUATION; r++)
        kl += model_kl(b.entry->logits + (size_t)r * c->vocab, alone + (size_t)r * c->vocab,
                       c->vocab);
    assert_close(dropped.kl, kl / CONTINUATION, 1e-6, "KL without context");
    assert_true(dropped.retained_mass > 0.0 && dropped.retained_mass < 0.7);
    assert_true(moved.kl > 0.0 && moved.attention_error == 0.0);
    assert_int_equal(evaluate_entry_run(b.session, b.entry, fail_transform, NULL, &failed, NULL),
                     KVT_E_CORRUPT);
    case_free(&b);
}

/* Attention of one query row over context and own tokens in double; weights through *lost. */
static void attend_plainly(const model_config *c, const float *query, const model_past *past,
                           const uint8_t *kept, const float *own_k, const float *own_v,
                           uint32_t layer, uint32_t kv_head, uint32_t own, double *out,
                           double *lost)
{
    size_t row = (size_t)c->kv_heads * c->head_dim, place = (size_t)kv_head * c->head_dim;
    double sum = 0.0, gone = 0.0;
    memset(out, 0, c->head_dim * sizeof *out);
    for (uint32_t t = 0; t < past->tokens + own; t++) {
        bool before = t < past->tokens;
        const float *k =
            before ? (const float *)past->k[layer] + t * row : own_k + (t - past->tokens) * row;
        const float *v =
            before ? (const float *)past->v[layer] + t * row : own_v + (t - past->tokens) * row;
        double score = 0.0;
        for (uint32_t i = 0; i < c->head_dim; i++)
            score += (double)query[i] * (double)k[place + i];
        double weight = exp(score / sqrt(c->head_dim));
        if (before && kept != NULL && kept[kv_head * past->tokens + t] == 0) {
            gone += weight;
            if (lost == NULL) continue;
        }
        sum += weight;
        for (uint32_t i = 0; i < c->head_dim; i++)
            out[i] += weight * (double)v[place + i];
    }
    for (uint32_t i = 0; i < c->head_dim; i++)
        out[i] /= sum;
    if (lost != NULL) *lost += gone / sum;
}

enum { PROBE_TOKENS = 37, PROBE_ROWS = 70 };

TEST(probes_equal_sums_in_double)
{
    uint64_t random = 77;
    model_config c = {.dim = 24, .heads = 4, .kv_heads = 2, .head_dim = 6, .layers = 1};
    size_t row = 12;
    float *k = naive_weights(PROBE_TOKENS * row, &random, false, 0);
    float *v = naive_weights(PROBE_TOKENS * row, &random, false, 0);
    float *other = naive_weights(PROBE_TOKENS * row, &random, false, 0);
    float *own_k = naive_weights(PROBE_ROWS * row, &random, false, 0);
    float *own_v = naive_weights(PROBE_ROWS * row, &random, false, 0);
    float *query = naive_weights((size_t)PROBE_ROWS * 24, &random, false, 0);
    uint8_t kept[2 * PROBE_TOKENS];
    for (size_t i = 0; i < sizeof kept; i++)
        kept[i] = naive_random(&random) % 3 != 0;
    const void *ks[] = {k}, *vs[] = {v}, *others[] = {other};
    const uint8_t *masks[] = {kept};
    const float *queries[] = {query}, *own_ks[] = {own_k}, *own_vs[] = {own_v};
    model_past exact = {PROBE_TOKENS, KVT_DTYPE_FP32, ks, vs, NULL};
    model_past variant = {PROBE_TOKENS, KVT_DTYPE_FP32, ks, others, masks};
    for (int with_own = 0; with_own < 2; with_own++) {
        double error = 0.0, lost = 0.0, heads[4], plain[4];
        for (uint32_t h = 0; h < 4; h++) {
            double difference = 0.0, norm = 0.0, a[6], b[6];
            for (uint32_t r = 0; r < PROBE_ROWS; r++) {
                const float *q = query + (size_t)r * 24 + h * 6;
                uint32_t own = with_own ? r + 1 : 0;
                attend_plainly(&c, q, &exact, kept, own_k, own_v, 0, h / 2, own, a, &lost);
                attend_plainly(&c, q, &variant, kept, own_k, own_v, 0, h / 2, own, b, NULL);
                for (int i = 0; i < 6; i++) {
                    difference += (a[i] - b[i]) * (a[i] - b[i]);
                    norm += a[i] * a[i];
                }
            }
            plain[h] = sqrt(difference / norm);
            error += plain[h] / 4;
        }
        model_probe_result result;
        model_probe probe = {.exact = &exact,
                             .variant = &variant,
                             .rows = PROBE_ROWS,
                             .queries = queries,
                             .own_k = with_own ? own_ks : NULL,
                             .own_v = with_own ? own_vs : NULL};
        assert_ok(model_probe_attention(&c, &probe, &result, heads));
        assert_close(result.attention_error, error, 1e-5, "attention error");
        for (uint32_t h = 0; h < 4; h++)
            assert_close(heads[h], plain[h], 1e-5, "error of a head");
        assert_close(result.retained_mass, 1 - lost / (4 * PROBE_ROWS), 1e-5, "retained mass");
        probe.rows = 0;
        assert_int_equal(model_probe_attention(&c, &probe, &result, NULL), KVT_E_ARGUMENT);
    }
}

TEST(scores_by_hand)
{
    const float even[2] = {500.0f, 500.0f}, odd[2] = {0.0f, logf(9.0f)};
    assert_close(model_log_sum(even, 2), 500 + log(2), 1e-12, "log sum");
    assert_close(model_kl(even, odd, 2), -log(2) - (log(0.1) + log(0.9)) / 2, 1e-7, "KL");
    assert_close(model_kl(odd, even, 2), log(2) + 0.1 * log(0.1) + 0.9 * log(0.9), 1e-7, "KL");
    assert_true(model_kl(odd, odd, 2) == 0.0);
    assert_int_equal(model_best(even, 2), 0);
    assert_int_equal(model_best(odd, 2), 1);
}

TEST(texts_are_repaired)
{
    static const char *const pairs[][2] = {
        {"plain \xe2\x80\x9cquote\xe2\x80\x9d", "plain \xe2\x80\x9cquote\xe2\x80\x9d"},
        {"\xc3\xa2\xe2\x82\xac\xc5\x93Hi\xc3\xa2\xe2\x82\xac she", "\"Hi\" she"},
        {"It\xc3\xa2\xe2\x82\xac\xe2\x84\xa2s", "It's"},
        {"a\xc3\xa2\xe2\x82\xac\xe2\x80\x9c"
         "b\xc3\xa2\xe2\x82\xac\xe2\x80\x9d",
         "a-b-"},
        {"\xc3\xa2\xe2\x82\xac\xc2\xa6\xc3\xa2\xe2\x82\xac", "...\""},
        {"\xc3\xa2\xe2\x82", "\xc3\xa2\xe2\x82"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        char text[128];
        snprintf(text, sizeof text, "%s", pairs[i][0]);
        evaluate_repair_text(text);
        assert_string_equal(text, pairs[i][1]);
    }
}

static void write_texts(const char *lines)
{
    FILE *file = fopen(in_folder("texts.jsonl"), "wb");
    assert_non_null(file);
    naive_put(file, lines, strlen(lines));
    assert_int_equal(fclose(file), 0);
}

TEST(texts_name_their_bad_lines)
{
    static const char *const bad[] = {"{\"text\": \"a\"}\n{\"text\": 1}\n",
                                      "{\"text\": \"a\"}\n{\"other\": \"b\"}\n",
                                      "{\"text\": \"a\"}\n\n", "{\"text\": \"a\"}\n[\n"};
    evaluate_texts texts;
    char message[256];
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        write_texts(bad[i]);
        assert_int_equal(evaluate_texts_read(in_folder("texts.jsonl"), &texts, message, 256),
                         KVT_E_PARSE);
        assert_non_null(strstr(message, "texts.jsonl:2: "));
        assert_int_equal(texts.count, 0);
    }
}

/* A compressed file is read by its own name as well as by that without .zst. */
TEST(texts_are_unpacked)
{
    static const char text[] = "{\"text\": \"packed\"}\n";
    char packed[256];
    size_t bytes = ZSTD_compress(packed, sizeof packed, text, sizeof text - 1, 1);
    assert_false(ZSTD_isError(bytes));
    FILE *file = fopen(in_folder("packed.jsonl.zst"), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(packed, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
    static const char *const names[] = {"packed.jsonl.zst", "packed.jsonl"};
    for (size_t i = 0; i < 2; i++) {
        evaluate_texts texts;
        assert_ok(evaluate_texts_read(in_folder(names[i]), &texts, NULL, 0));
        assert_int_equal(texts.count, 1);
        assert_string_equal(texts.texts[0], "packed");
        evaluate_texts_free(&texts);
    }
    (void)unlink(in_folder("packed.jsonl.zst"));
}

/* 259 byte pieces and nothing else: a text of n bytes is n + 2 tokens. */
TEST(sets_start_at_texts_and_are_disjoint)
{
    FILE *file = fopen(in_folder("vocabulary.bin"), "wb");
    assert_non_null(file);
    naive_put(file, &(int32_t){4}, 4);
    for (int id = 0; id < 259; id++) {
        naive_put(file, &(float){0}, 4);
        naive_put(file, &(int32_t){1}, 4);
        naive_put(file, "?", 1);
    }
    assert_int_equal(fclose(file), 0);
    write_texts("{\"text\": \"abcd\"}\n{\"text\": \"efgh\"}\n{\"text\": \"ijklmnop\"}\n"
                "{\"text\": \"qr\"}\n{\"text\": \"s\", \"more\": 1}");
    char path[256], message[256] = "";
    const char *const paths[] = {path};
    quality_entries set;
    tokenizer *tokens;
    (void)snprintf(path, sizeof path, "%s", in_folder("texts.jsonl"));
    assert_ok(tokenizer_open(in_folder("vocabulary.bin"), 259, &tokens, NULL, 0));
    assert_ok(quality_entries_read(paths, 1, tokens, 5, 3, 9, &set, message, sizeof message));
    /* 6 + 2 of 6; then all but two of 10; the last two texts give 7, which is too few. */
    assert_int_equal(set.count, 2);
    const uint32_t wanted[2][8] = {{1, 35, 100, 101, 102, 103, 1, 35},
                                   {1, 35, 108, 109, 110, 111, 112, 113}};
    for (uint32_t i = 0; i < 2; i++)
        assert_memory_equal(set.entries[i].tokens, wanted[i], sizeof wanted[i]);
    quality_entries_free(&set);
    assert_ok(quality_entries_read(paths, 1, tokens, 5, 3, 1, &set, message, sizeof message));
    assert_int_equal(set.count, 1);
    quality_entries_free(&set);
    tokenizer_close(tokens);
}
