/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_estimator_reference.c - the shipped reference model in the decoder: its likelihood is the
 * one of its training, it answers questions about 512 tokens, and it loses answers where KV is
 * dropped or coded too coarsely.
 */
#include "cases.h"

#include "estimator/model/model.h"
#include "estimator/quality/quality.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

enum { VOCAB = 672, CONTEXT = 512, VARIANTS = 3 };

/* How many of the answers from exact KV may go, and must go. */
static const struct {
    const char *name;
    double least, most;
} losses[VARIANTS] = {
    {"planes:k8v8,g64", -0.02, 0.02},
    {"kivi:k2v2,g64", 0.03, 0.5},
    {"drop:stream,50", 0.3, 0.7},
};

static model *loaded;
static tokenizer *tokens;

static const char *in_folder(const char *file)
{
    static char path[1024];
    const char *source = getenv("KVT_SOURCE_DIR");
    assert_non_null(source);
    snprintf(path, sizeof path, "%s/reference_model/%s", source, file);
    return path;
}

static int open_all(void **state)
{
    char message[256] = "";
    (void)state;
    kvt_status status = model_open(in_folder("model"), &loaded, message, sizeof message);
    if (status == KVT_OK)
        status = tokenizer_open(in_folder("model/tokenizer.bin"), VOCAB, &tokens, message,
                                sizeof message);
    if (status != KVT_OK) print_message("%s\n", message);
    return status == KVT_OK ? 0 : -1;
}

TEST_AFTER_ALL
{
    tokenizer_close(tokens);
    model_close(loaded);
}

TEST_ALL(open_all, NULL);

TEST(shape_is_as_documented)
{
    const model_config *c = model_config_of(loaded);
    assert_int_equal(c->dim, 128);
    assert_int_equal(c->ffn_dim, 256);
    assert_int_equal(c->layers, 4);
    assert_int_equal(c->heads, 4);
    assert_int_equal(c->kv_heads, 2);
    assert_int_equal(c->head_dim, 32);
    assert_int_equal(c->vocab, VOCAB);
    assert_true(c->tied);
    assert_true(c->rope_halves);
}

/* check.jsonl was written with the weights, by another implementation and in fp64. */
TEST(likelihood_is_the_trainers)
{
    FILE *file = fopen(in_folder("model/check.jsonl"), "r");
    char *line = NULL;
    size_t capacity = 0, rows = 0;
    model_session *session;
    assert_non_null(file);
    assert_ok(model_session_open(loaded, &session));
    for (; getline(&line, &capacity, file) > 0; rows++) {
        json_t *row = json_loads(line, 0, NULL);
        const char *text = json_string_value(json_object_get(row, "text"));
        double wanted = json_number_value(json_object_get(row, "nll_nats")), nll;
        size_t count;
        assert_non_null(text);
        uint32_t *ids = test_alloc(tokenizer_bound(strlen(text)) * sizeof *ids);
        assert_ok(tokenizer_encode(tokens, text, strlen(text), ids, &count));
        assert_int_equal(count, json_integer_value(json_object_get(row, "tokens")));
        assert_ok(model_nll(session, ids, (uint32_t)count, &nll));
        print_message("%zu tokens: %.4f nats, %.4f wanted\n", count, nll, wanted);
        assert_true(fabs(nll - wanted) < 1e-4 * wanted);
        json_decref(row);
    }
    assert_int_equal(rows, 3);
    free(line);
    fclose(file);
    model_session_close(session);
}

/* Sums over entries: of the share of questions answered rightly, from exact KV and from each. */
typedef struct answered {
    double questions, exact, variant[VARIANTS];
} answered;

static kvt_status count_exact(void *context, uint32_t entry, const quality_exact *exact)
{
    (void)entry;
    answered *sums = context;
    sums->questions += exact->questions;
    sums->exact += exact->answers;
    return KVT_OK;
}

static kvt_status count_variant(void *context, uint32_t entry, uint32_t variant,
                                const quality_row *row)
{
    (void)entry;
    ((answered *)context)->variant[variant] += row->answers;
    return KVT_OK;
}

TEST(answers_are_recalled_and_lost)
{
    const char *path = in_folder("texts/recall-512.jsonl");
    quality_variant variants[VARIANTS];
    quality_entries entries;
    answered sums = {.questions = 0};
    char message[256] = "";
    for (size_t i = 0; i < VARIANTS; i++)
        assert_ok(quality_variant_parse(losses[i].name, &variants[i]));
    if (quality_entries_read(&path, 1, tokens, CONTEXT, 80, 64, &entries, message,
                             sizeof message) != KVT_OK) {
        fail_msg("%s", message);
    }
    assert_int_equal(entries.count, 40);
    for (uint32_t i = 0; i < entries.count; i++)
        assert_int_equal(entries.entries[i].context_tokens, CONTEXT);
    quality_request request = {.model = loaded,
                               .tokenizer = tokens,
                               .entries = entries.entries,
                               .entry_count = entries.count,
                               .variants = variants,
                               .variant_count = VARIANTS,
                               .threads = 1,
                               .opened = count_exact,
                               .done = count_variant,
                               .context = &sums};
    if (quality_measure(&request, message, sizeof message) != KVT_OK) fail_msg("%s", message);
    double exact = sums.exact / entries.count;
    print_message("%.0f questions: %.3f from exact KV\n", sums.questions, exact);
    assert_true(sums.questions >= 400);
    assert_true(exact >= 0.9);
    for (size_t i = 0; i < VARIANTS; i++) {
        double lost = exact - sums.variant[i] / entries.count;
        print_message("%s: %.3f lost\n", losses[i].name, lost);
        assert_true(lost >= losses[i].least && lost <= losses[i].most);
    }
    quality_entries_free(&entries);
}
