/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_estimator_quality.c - entries from texts with and without questions; rows of a small model;
 * greedy answers against generating them plainly; figures over rows that are known.
 */
#include "evaluate_support.h"
#include "quality_scratch.h"

#include "estimator/model/model.h"
#include "estimator/quality/quality.h"

enum { CONTEXT = 96, CONTINUATION = 24, ANSWER = 9, ENTRIES = 4 };

static char message[256];

static quality_variant variant_of(const char *name)
{
    quality_variant variant;
    assert_ok(quality_variant_parse(name, &variant));
    return variant;
}

/* ---- variants ---- */

TEST_ALL(scratch_make_files, scratch_remove_files);

TEST(names_are_read_and_told_apart)
{
    quality_variant merged = variant_of("kivi:k4v4,g64@row"), plain = variant_of("kivi:k4v4,g64");
    assert_true(merged.merged && !plain.merged);
    assert_string_equal(merged.name, "kivi:k4v4,g64@row");
    assert_int_equal(merged.variant.mode, plain.variant.mode);
    assert_int_equal(quality_variant_key(&merged).mode,
                     quality_variant_key(&plain).mode | QUALITY_MERGED_MODE);
    quality_variant wrong;
    assert_int_equal(quality_variant_parse("kivi:k4v4,g64@head", &wrong), KVT_E_PARSE);
    assert_int_equal(quality_variant_parse("nothing", &wrong), KVT_E_PARSE);
    uint32_t usual = 0, quick = 0;
    for (; quality_variant_usual(usual, false) != NULL; usual++)
        assert_int_equal(variant_of(quality_variant_usual(usual, false)).variant.mode & 0x80, 0);
    while (quality_variant_usual(quick, true) != NULL)
        quick++;
    assert_true(quick >= 4 && quick < usual);
}

/* ---- how answers compare ---- */

static void check_answers(const char *exact, const char *other, double rouge_l, double f1)
{
    uint64_t a[16], b[16];
    uint32_t a_count = (uint32_t)strlen(exact), b_count = (uint32_t)strlen(other);
    double found_rouge_l, found_f1;
    for (uint32_t i = 0; i < a_count; i++)
        a[i] = (uint64_t)exact[i];
    for (uint32_t i = 0; i < b_count; i++)
        b[i] = (uint64_t)other[i];
    assert_ok(quality_compare_answers(a, a_count, b, b_count, &found_rouge_l, &found_f1));
    assert_true(fabs(found_rouge_l - rouge_l) < 1e-12);
    assert_true(fabs(found_f1 - f1) < 1e-12);
}

TEST(answers_compare_as_by_hand)
{
    check_answers("abcd", "abcd", 1.0, 1.0);
    check_answers("abcd", "dcba", 0.25, 1.0);
    check_answers("abcd", "aced", 2.0 * 3 / 8, 2.0 * 3 / 8);
    check_answers("aab", "abb", 2.0 * 2 / 6, 2.0 * 2 / 6);
    check_answers("abc", "", 0.0, 0.0);
    check_answers("", "", 1.0, 1.0);
    check_answers("abcdefgh", "bxdyfz", 2.0 * 3 / 14, 2.0 * 3 / 14);
}

/* ---- figures ---- */

TEST(ranks_share_ties)
{
    const double x[] = {1, 2, 3, 4, 5}, same[] = {10, 20, 30, 40, 50}, back[] = {5, 4, 3, 2, 1};
    /* Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: 1 - rounding of the tie = sqrt(0.9). */
    const double tied[] = {1, 2, 2, 3}, plain[] = {1, 2, 3, 4}, flat[] = {7, 7, 7, 7};
    double found;
    assert_ok(quality_rank_correlation(x, same, 5, &found));
    assert_true(fabs(found - 1.0) < 1e-12);
    assert_ok(quality_rank_correlation(x, back, 5, &found));
    assert_true(fabs(found + 1.0) < 1e-12);
    assert_ok(quality_rank_correlation(tied, plain, 4, &found));
    assert_true(fabs(found - sqrt(0.9)) < 1e-12);
    assert_ok(quality_rank_correlation(flat, plain, 4, &found));
    assert_true(isnan(found));
    assert_ok(quality_rank_correlation(x, same, 2, &found));
    assert_true(isnan(found));
    double values[] = {4, 1, 3, 2};
    assert_true(fabs(quality_quantile(values, 4, 0.5) - 2.5) < 1e-12);
    assert_true(fabs(quality_quantile(values, 4, 0.9) - 3.7) < 1e-12);
}

enum { ROWS = 40, COLUMNS = 3 };

/* Log KL is the variant's mean plus the entry's effect; `apart` makes the second half of the
 * continuation know nothing of the first. */
static void fill_rows(quality_row rows[ROWS * COLUMNS], const double effects[ROWS], bool apart)
{
    uint64_t seed = 5;
    for (int e = 0; e < ROWS; e++) {
        double other = ((double)naive_random(&seed) / 0x7fffffff - 0.5) * 2.0;
        for (int v = 0; v < COLUMNS; v++) {
            double kl = exp(-6.0 + v + effects[e]);
            rows[e * COLUMNS + v] = (quality_row){.present = true,
                                                  .bits_per_element = 5.0 - v,
                                                  .loss = kl,
                                                  .kl = kl,
                                                  .kl_first = kl,
                                                  .kl_second = apart ? exp(-6.0 + v + other) : kl,
                                                  .top1 = 1.0 - kl,
                                                  .rouge_l = (double)NAN,
                                                  .attention_error = 10.0 * kl};
        }
    }
}

TEST(figures_find_what_was_put_in)
{
    quality_row rows[ROWS * COLUMNS];
    quality_curve curves[COLUMNS];
    quality_spread spread;
    double effects[ROWS], mean = 0.0, square = 0.0, found[ROWS];
    for (int e = 0; e < ROWS; e++) {
        effects[e] = ((double)((e * 7) % ROWS) - (ROWS - 1) / 2.0) / ROWS;
        mean += effects[e] / ROWS;
    }
    for (int e = 0; e < ROWS; e++)
        square += (effects[e] - mean) * (effects[e] - mean) / (ROWS - 1);
    fill_rows(rows, effects, false);
    assert_ok(quality_summarise(rows, NULL, ROWS, COLUMNS, 1, curves, &spread));
    assert_int_equal(spread.variants, COLUMNS);
    assert_true(fabs(spread.sensitivity_sd - sqrt(square)) < 1e-9);
    assert_true(fabs(spread.repeatability - 1.0) < 1e-9);
    assert_true(fabs(spread.spearman_variants - 1.0) < 1e-9);
    assert_ok(quality_sensitivity(rows, ROWS, COLUMNS, found, &spread));
    for (int e = 0; e < ROWS; e++)
        assert_true(fabs(found[e] - (effects[e] - mean)) < 1e-9);
    for (int v = 0; v < COLUMNS; v++) {
        const quality_curve *curve = &curves[v];
        double sum = 0.0, spread_of_mean;
        for (int e = 0; e < ROWS; e++)
            sum += rows[e * COLUMNS + v].kl / ROWS;
        assert_int_equal(curve->entries, ROWS);
        assert_true(fabs(curve->loss_mean - sum) < 1e-12 && fabs(curve->kl - sum) < 1e-12);
        /* The bootstrap's interval is that of a normal mean, within a fifth. */
        spread_of_mean = curve->loss_cv * curve->loss_mean / sqrt(ROWS);
        assert_true(fabs((curve->loss_high - curve->loss_low) / (2 * 1.96 * spread_of_mean) - 1.0) <
                    0.2);
        assert_true(curve->loss_low < sum && sum < curve->loss_high);
        assert_true(curve->loss_p90 > sum && curve->kl_p90 > sum);
        assert_true(isnan(curve->rouge_l) && isnan(curve->answers) == false);
        assert_true(fabs(curve->spearman_entries - 1.0) < 1e-9);
    }
    fill_rows(rows, effects, true);
    assert_ok(quality_summarise(rows, NULL, ROWS, COLUMNS, 1, curves, &spread));
    assert_true(fabs(spread.repeatability) < 0.4 && fabs(curves[0].repeatability) < 0.4);
}

/* An interval of no width would be a promise. */
TEST(one_entry_says_nothing_of_others)
{
    quality_row row = {.present = true, .loss = 0.25, .kl = 0.1};
    quality_curve curve;
    quality_spread spread;
    assert_ok(quality_summarise(&row, NULL, 1, 1, 1, &curve, &spread));
    assert_true(curve.entries == 1 && curve.loss_mean == 0.25 && curve.kl == 0.1);
    assert_true(curve.loss_low == 0.0 && curve.loss_high == 1.0);
    assert_true(isnan(curve.kl_low) && isnan(curve.kl_high) && isnan(spread.sensitivity_sd));
}

/* A variant without rows has no curve, and one that lacks a row says nothing about entries. */
TEST(missing_rows_are_left_out)
{
    quality_row rows[ROWS * COLUMNS];
    quality_curve curves[COLUMNS];
    quality_spread spread;
    double effects[ROWS] = {0.0};
    effects[3] = 1.0;
    fill_rows(rows, effects, false);
    for (int e = 0; e < ROWS; e++)
        rows[e * COLUMNS + 1].present = false;
    rows[5 * COLUMNS + 2].present = false;
    assert_ok(quality_summarise(rows, NULL, ROWS, COLUMNS, 1, curves, &spread));
    assert_int_equal(curves[0].entries, ROWS);
    assert_int_equal(curves[1].entries, 0);
    assert_int_equal(curves[2].entries, ROWS - 1);
    assert_int_equal(spread.variants, 1);
}

/* ---- entries ---- */

static tokenizer *open_tokenizer(void)
{
    tokenizer *tokens = NULL;
    kvt_status status =
        tokenizer_open(files.tokenizer, SCRATCH_VOCAB, &tokens, message, sizeof message);
    if (status != KVT_OK) fail_msg("%s", message);
    return tokens;
}

static void check_text(const tokenizer *tokens, const quality_entry *entry, uint32_t first,
                       uint32_t end, const char *text)
{
    char found[128];
    size_t bytes;
    /* Behind another token, so that a leading blank stays. */
    uint32_t ids[128] = {3 + 'x'};
    memcpy(ids + 1, entry->tokens + first, (end - first) * sizeof *ids);
    assert_ok(tokenizer_decode(tokens, ids, end - first + 1, found, sizeof found, &bytes));
    found[bytes] = '\0';
    assert_string_equal(found + 1, text);
}

TEST(questions_become_tokens)
{
    tokenizer *tokens = open_tokenizer();
    quality_entries entries;
    const char *const paths[] = {files.asked};
    kvt_status status =
        quality_entries_read(paths, 1, tokens, 10, 10, 8, &entries, message, sizeof message);
    if (status != KVT_OK) fail_msg("%s", message);
    assert_int_equal(entries.count, 2);
    const quality_entry *entry = entries.entries;
    assert_int_equal(entry->question_count, 2);
    assert_int_equal(entry->tokens[0], TOKENIZER_BEGIN);
    check_text(tokens, entry, 0, entry->context_tokens, "bobo has a 12 and a zebo too.");
    assert_int_equal(entry->questions[0].first, entry->context_tokens);
    check_text(tokens, entry, entry->questions[0].first, entry->questions[0].answer, " ? bobo has");
    check_text(tokens, entry, entry->questions[0].answer, entry->questions[0].end, " 12.");
    check_text(tokens, entry, entry->questions[1].first, entry->questions[1].answer, " ? zebo");
    check_text(tokens, entry, entry->questions[1].answer, entry->questions[1].end, " too.");
    check_text(tokens, entry, entry->questions[1].end,
               entry->context_tokens + entry->continuation_tokens, " x");
    check_text(tokens, entry + 1, entry[1].questions[0].answer, entry[1].questions[0].end,
               " bobo.");
    uint64_t digest = entries.digest;
    quality_entries_free(&entries);
    status = quality_entries_read(paths, 1, tokens, 10, 10, 1, &entries, message, sizeof message);
    assert_ok(status);
    assert_int_equal(entries.count, 1);
    assert_true(entries.digest != digest);
    quality_entries_free(&entries);
    tokenizer_close(tokens);
}

TEST(plain_texts_are_joined_and_cut)
{
    tokenizer *tokens = open_tokenizer();
    quality_entries entries;
    const char *const paths[] = {files.plain, files.asked};
    assert_ok(quality_entries_read(paths, 2, tokens, CONTEXT, CONTINUATION, 100, &entries, message,
                                   sizeof message));
    assert_true(entries.count >= 4);
    assert_int_equal(entries.entries[0].question_count, 2);
    for (uint32_t i = 2; i < entries.count; i++) {
        assert_int_equal(entries.entries[i].context_tokens, CONTEXT);
        assert_int_equal(entries.entries[i].continuation_tokens, CONTINUATION);
        assert_int_equal(entries.entries[i].question_count, 0);
        assert_int_equal(entries.entries[i].tokens[0], TOKENIZER_BEGIN);
    }
    quality_entries_free(&entries);
    const char *const one[] = {files.plain};
    assert_int_equal(
        quality_entries_read(one, 1, tokens, 60000, 10, 100, &entries, message, sizeof message),
        KVT_E_ARGUMENT);
    const char *const none[] = {"no such file"};
    assert_int_equal(quality_entries_read(none, 1, tokens, CONTEXT, CONTINUATION, 100, &entries,
                                          message, sizeof message),
                     KVT_E_GONE);
    tokenizer_close(tokens);
}

TEST(marks_beyond_the_text_are_refused)
{
    static const char *const lines[] = {
        "{\"text\": \"abc\", \"context\": 3, \"questions\": []}",
        "{\"text\": \"abc\", \"context\": 0, \"questions\": []}",
        "{\"text\": \"abcdef\", \"context\": 2, \"questions\": [[2, 4, 7]]}",
        "{\"text\": \"abcdef\", \"context\": 2, \"questions\": [[1, 3, 4]]}",
        "{\"text\": \"abcdef\", \"context\": 2, \"questions\": [[2, 2, 4]]}",
        "{\"text\": \"abcdef\", \"context\": 2, \"questions\": [[2, 3, 4], [3, 4, 5]]}",
        "{\"text\": \"abcdef\", \"context\": 2, \"questions\": [[2, 3]]}",
        "{\"text\": \"abcdef\", \"context\": 2, \"questions\": [[2, 3, \"4\"]]}",
        "{\"words\": \"abcdef\"}",
    };
    char path[128];
    snprintf(path, sizeof path, "%s/hostile.jsonl", files.folder);
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        evaluate_texts texts;
        FILE *file = fopen(path, "w");
        assert_non_null(file);
        fprintf(file, "%s\n", lines[i]);
        assert_int_equal(fclose(file), 0);
        assert_int_equal(evaluate_texts_read(path, &texts, message, sizeof message), KVT_E_PARSE);
        assert_non_null(strstr(message, ":1:"));
    }
    assert_int_equal(unlink(path), 0);
}

/* ---- measuring ---- */

typedef struct measured {
    quality_row rows[ENTRIES * 8];
    quality_exact exact[ENTRIES];
    uint32_t variant_count, done, stop_after, left_out;
} measured;

static bool is_wanted(void *context, uint32_t entry, uint32_t variant)
{
    const measured *m = context;
    return entry * m->variant_count + variant != m->left_out;
}

static kvt_status take_exact(void *context, uint32_t entry, const quality_exact *exact)
{
    measured *m = context;
    assert_non_null(exact->entry->k[0]);
    m->exact[entry] = *exact;
    return KVT_OK;
}

static kvt_status take_row(void *context, uint32_t entry, uint32_t variant, const quality_row *row)
{
    measured *m = context;
    m->rows[entry * m->variant_count + variant] = *row;
    return ++m->done == m->stop_after ? KVT_E_CANCELLED : KVT_OK;
}

static kvt_status measure(measured *m, const char *const *names, uint32_t count, const char *text,
                          uint32_t threads)
{
    quality_variant variants[8];
    quality_entries entries;
    tokenizer *tokens = open_tokenizer();
    model *weights = naive_open(files.model);
    for (uint32_t i = 0; i < count; i++)
        variants[i] = variant_of(names[i]);
    assert_ok(quality_entries_read(&text, 1, tokens, CONTEXT, CONTINUATION, ENTRIES, &entries,
                                   message, sizeof message));
    m->variant_count = count;
    const quality_request request = {.model = weights,
                                     .tokenizer = tokens,
                                     .entries = entries.entries,
                                     .entry_count = entries.count,
                                     .variants = variants,
                                     .variant_count = count,
                                     .threads = threads,
                                     .answer_tokens = ANSWER,
                                     .wanted = is_wanted,
                                     .opened = take_exact,
                                     .done = take_row,
                                     .context = m};
    kvt_status status = quality_measure(&request, message, sizeof message);
    quality_entries_free(&entries);
    model_close(weights);
    tokenizer_close(tokens);
    return status;
}

TEST(rows_order_variants_and_ignore_threads)
{
    static const char *const names[] = {"raw", "planes:k8v8,g64", "planes:k2v2,g64",
                                        "drop:stream,50", "kivi:k4v4,g64@row"};
    enum { COUNT = 5 };
    measured one = {.left_out = UINT32_MAX}, three = one;
    assert_ok(measure(&one, names, COUNT, files.plain, 1));
    assert_ok(measure(&three, names, COUNT, files.plain, 3));
    assert_int_equal(one.done, ENTRIES * COUNT);
    for (uint32_t e = 0; e < ENTRIES; e++) {
        const quality_row *row = &one.rows[e * COUNT];
        assert_true(one.exact[e].nll > 0.0 && isnan(one.exact[e].answers));
        for (int v = 0; v < COUNT; v++) {
            const quality_row *other = &three.rows[e * COUNT + (uint32_t)v];
            assert_true(row[v].present && isnan(row[v].answers) && isnan(row[v].loss));
            assert_true(row[v].kl == other->kl && row[v].rouge_l == other->rouge_l);
            double halves = row[v].kl_first + row[v].kl_second;
            assert_true(fabs(halves / 2 - row[v].kl) < 1e-9);
        }
        assert_true(fabs(row[0].kl) < 1e-9 && row[0].top1 == 1.0 && row[0].rouge_l == 1.0);
        assert_true(row[1].kl > row[0].kl && row[2].kl > 10 * row[1].kl);
        assert_true(row[2].attention_error > row[1].attention_error);
        assert_true(row[3].retained_mass < 1.0 && row[1].retained_mass == 1.0);
        assert_true(row[3].bits_per_element < 9.0 && row[2].bits_per_element < 3.0);
        assert_true(row[2].rouge_l <= 1.0 && row[2].f1 >= row[2].rouge_l - 1e-12);
    }
}

TEST(questions_are_answered_or_not)
{
    static const char *const names[] = {"raw", "planes:k2v2,g64"};
    measured m = {.left_out = UINT32_MAX};
    assert_ok(measure(&m, names, 2, files.asked, 1));
    assert_int_equal(m.done, 4);
    for (uint32_t e = 0; e < 2; e++) {
        assert_true(m.exact[e].questions == 2 - e);
        assert_true(m.exact[e].answers >= 0.0 && m.exact[e].answers <= 1.0);
        assert_true(m.rows[e * 2].answers == m.exact[e].answers);
    }
}

TEST(what_is_not_wanted_is_left_out)
{
    static const char *const names[] = {"raw", "planes:k8v8,g64"};
    measured m = {.left_out = 3};
    assert_ok(measure(&m, names, 2, files.plain, 2));
    assert_int_equal(m.done, ENTRIES * 2 - 1);
    assert_false(m.rows[3].present);
    measured stopped = {.left_out = UINT32_MAX, .stop_after = 3};
    assert_int_equal(measure(&stopped, names, 2, files.plain, 1), KVT_E_CANCELLED);
    assert_int_equal(stopped.done, 3);
}

/* ---- generation ---- */

/* Token by token, each time over everything behind the fp16 context. */
static void answer_plainly(model_session *session, const evaluate_entry *e,
                           const evaluate_variant *kv, uint32_t *ids, uint32_t prompt,
                           uint32_t count)
{
    const model_past past = {.tokens = e->context_tokens,
                             .dtype = KVT_DTYPE_FP16,
                             .k = (const void *const *)kv->k,
                             .v = (const void *const *)kv->v,
                             .kept = (const uint8_t *const *)kv->kept};
    float logits[SCRATCH_VOCAB];
    for (uint32_t i = 0; i < count; i++) {
        model_request request = {.tokens = ids,
                                 .token_count = prompt + i,
                                 .first_position = kv->next_position,
                                 .past = &past,
                                 .logits_first = prompt + i - 1,
                                 .logits_count = 1,
                                 .logits_out = logits};
        assert_ok(model_forward(session, &request));
        ids[prompt + i] = model_best(logits, SCRATCH_VOCAB);
    }
}

/* Drops every third token and halves V. */
static kvt_status change_much(void *context, evaluate_kv *kv)
{
    (void)context;
    for (uint32_t l = 0; l < kv->config->layers; l++) {
        for (uint32_t i = 0; i < kv->config->kv_heads * kv->tokens; i++)
            kv->kept[l][i] = i % 3 != 0;
        for (uint32_t i = 0; i < kv->tokens * kv->config->kv_heads * kv->config->head_dim; i++)
            kv->v[l][i] ^= i % 5 == 0 ? 0x8000u : 0;
    }
    return KVT_OK;
}

TEST(drafts_do_not_change_answers)
{
    quality_entries entries;
    quality_answers answers;
    evaluate_entry *judged = NULL;
    evaluate_variant exact = {.memory = NULL}, changed = exact;
    model_session *session = NULL;
    const char *const paths[] = {files.plain};
    tokenizer *tokens = open_tokenizer();
    model *weights = naive_open(files.model);
    assert_ok(quality_entries_read(paths, 1, tokens, CONTEXT, CONTINUATION, 1, &entries, message,
                                   sizeof message));
    assert_ok(model_session_open(weights, &session));
    const quality_entry *entry = entries.entries;
    assert_ok(evaluate_entry_open(session, entry->tokens, CONTEXT, CONTINUATION, &judged));
    assert_ok(evaluate_variant_open(judged, evaluate_exact, NULL, &exact));
    assert_ok(evaluate_variant_open(judged, change_much, NULL, &changed));
    /* Longer than the continuation, so that the draft ends before the answer. */
    const uint32_t length = CONTINUATION + 5;
    assert_ok(quality_answers_open(session, judged, entry, NULL, length, &answers));
    assert_int_equal(answers.prompt_count, 1);
    uint32_t ids[CONTINUATION + 6] = {entry->tokens[CONTEXT]};
    answer_plainly(session, judged, &exact, ids, 1, length);
    assert_memory_equal(answers.exact, ids + 1, length * sizeof *ids);
    double rouge_l, f1, expected_rouge_l, expected_f1;
    /* Two lanes at once: each answers as it does alone. */
    assert_ok(quality_answers_add(&answers, &exact));
    assert_ok(quality_answers_add(&answers, &changed));
    assert_ok(quality_answers_run(&answers));
    assert_true(answers.lanes[0].rouge_l == 1.0 && answers.lanes[0].f1 == 1.0);
    rouge_l = answers.lanes[1].rouge_l;
    f1 = answers.lanes[1].f1;
    uint32_t other[CONTINUATION + 6] = {entry->tokens[CONTEXT]};
    answer_plainly(session, judged, &changed, other, 1, length);
    assert_memory_equal(answers.lanes[1].answer, other + 1, length * sizeof *other);
    assert_true(memcmp(ids, other, sizeof ids) != 0);
    uint64_t a[CONTINUATION + 5], b[CONTINUATION + 5];
    for (uint32_t i = 0; i < length; i++) {
        a[i] = ids[1 + i];
        b[i] = other[1 + i];
    }
    assert_ok(quality_compare_answers(a, length, b, length, &expected_rouge_l, &expected_f1));
    assert_true(rouge_l == expected_rouge_l && f1 == expected_f1 && rouge_l < 1.0);
    quality_answers_close(&answers);
    evaluate_variant_close(&exact);
    evaluate_variant_close(&changed);
    evaluate_entry_close(judged);
    model_session_close(session);
    model_close(weights);
    quality_entries_free(&entries);
    tokenizer_close(tokens);
}

/* ---- likelihood ---- */

/* Token 1 three times of four and token 0 once, of a vocabulary of 4: add-one gives 4/8 and 2/8. */
TEST(likelihood_is_that_of_the_unigram_model)
{
    static const uint32_t ids[] = {1, 1, 0, 1};
    const quality_entry entry = {.tokens = ids, .context_tokens = 1, .continuation_tokens = 3};
    const quality_entry *entries[] = {&entry, &entry};
    const double nats[] = {0.5, 0.7};
    quality_likelihood found;
    assert_ok(quality_likelihood_of(entries, nats, 1, 4, &found));
    assert_true(fabs(found.unigram_nats - (log(8.0 / 2) + log(8.0 / 4)) / 2) < 1e-12);
    assert_true(found.nats == 0.5 && quality_understands(&found));
    assert_ok(quality_likelihood_check(&found, "a", message, sizeof message));
    assert_ok(quality_likelihood_of(entries, nats, 2, 4, &found));
    assert_true(fabs(found.unigram_nats - (log(12.0 / 3) + log(12.0 / 7)) / 2) < 1e-12);
    assert_true(fabs(found.nats - 0.6) < 1e-12);
    found.nats = 0.9 * found.unigram_nats;
    assert_false(quality_understands(&found));
    assert_int_equal(quality_likelihood_check(&found, "a", message, sizeof message),
                     KVT_E_MISMATCH);
    assert_non_null(strstr(message, "class a: the model does not understand"));
    assert_int_equal(quality_likelihood_of(entries, nats, 1, 1, &found), KVT_E_ARGUMENT);
    /* Nothing known is nothing held against a model. */
    assert_ok(quality_likelihood_of(entries, nats, 0, 4, &found));
    assert_true(isnan(found.nats) && isnan(found.unigram_nats) && quality_understands(&found));
}
