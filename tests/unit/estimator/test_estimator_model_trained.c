/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_estimator_model_trained.c - the reference decoder on the two trained models of the data
 * folder: likelihood as measured elsewhere, greedy text as documented, generation from kept KV, and
 * the loss of 4-bit KV as the codec trial found it. Skipped without KVT_DATA_DIR.
 */
#include "cases.h"
#include "evaluate_support.h"

#include "base/half.h"
#include "estimator/model/model.h"
#include "estimator/quality/quality.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STORIES = 40, IDS_MAX = 2048, VOCAB = 512, LAYERS_MAX = 8 };

/* Figures of the data set's description and, for 4-bit KIVI with groups of 64, of the trial. */
static const struct {
    const char *file, *greedy;
    double nll, kl, attention_error;
} models[] = {
    {"stories260K.bin",
     ", there was a little girl named Lily. She loved to play outside in the park. One day, she "
     "saw a big, red ball. She wanted to play with it, but it was too high.",
     1.307, 2.8e-3, 0.062},
    {"bitllama_3M.bin",
     ", there was a little girl named Lily. She loved to play outside and explore the world around "
     "her. One day, she saw a big, red ball. She was so happy and wanted to play with it.",
     1.200, 0.56e-3, 0.039},
};

static char texts_path[512];
static evaluate_texts texts;
static tokenizer *tokens;
static model *loaded[2];
static model_session *sessions[2];

static void open_all(void)
{
    const char *data = getenv("KVT_DATA_DIR");
    char path[512], message[256] = "";
    kvt_status status = KVT_OK;
    if (data == NULL || data[0] == '\0') {
        print_message("KVT_DATA_DIR is not set: no trained models\n");
        skip();
    }
    if (tokens != NULL) return;
    snprintf(texts_path, sizeof texts_path, "%s/texts/tinystories/stories_a.jsonl", data);
    if (evaluate_texts_read(texts_path, &texts, message, sizeof message) != KVT_OK)
        fail_msg("%s", message);
    for (size_t i = 0; status == KVT_OK && i < 2; i++) {
        snprintf(path, sizeof path, "%s/models/%s", data, models[i].file);
        status = model_open(path, &loaded[i], message, sizeof message);
        if (status == KVT_OK) status = model_session_open(loaded[i], &sessions[i]);
    }
    snprintf(path, sizeof path, "%s/models/tok512.bin", data);
    if (status == KVT_OK) status = tokenizer_open(path, VOCAB, &tokens, message, sizeof message);
    if (status != KVT_OK) fail_msg("%s", message);
}

TEST_AFTER_ALL
{
    evaluate_texts_free(&texts);
    tokenizer_close(tokens);
    for (size_t i = 0; i < 2; i++) {
        model_session_close(sessions[i]);
        model_close(loaded[i]);
    }
}

TEST(likelihood_is_as_measured)
{
    open_all();
    for (size_t m = 0; m < 2; m++) {
        double sum = 0.0, count = 0.0;
        for (size_t i = 0; i < STORIES; i++) {
            uint32_t ids[IDS_MAX];
            size_t ids_count;
            double nll;
            assert_true(strlen(texts.texts[i]) + 2 < IDS_MAX);
            assert_ok(
                tokenizer_encode(tokens, texts.texts[i], strlen(texts.texts[i]), ids, &ids_count));
            assert_ok(model_nll(sessions[m], ids, (uint32_t)ids_count, &nll));
            sum += nll;
            count += (double)(ids_count - 1);
        }
        print_message("%s: %.4f nats per token, %.3f expected\n", models[m].file, sum / count,
                      models[m].nll);
        assert_true(fabs(sum / count - models[m].nll) < 0.01 * models[m].nll);
    }
}

/* Token by token, each on top of the KV of all before. */
TEST(greedy_text_is_as_documented)
{
    open_all();
    for (size_t m = 0; m < 2; m++) {
        enum { LENGTH = 96 };
        const model_config *c = model_config_of(loaded[m]);
        size_t row = (size_t)c->kv_heads * c->head_dim, count, bytes;
        float *memory = test_zeros(2 * c->layers * LENGTH * row * sizeof *memory), logits[VOCAB];
        float *k[LAYERS_MAX], *v[LAYERS_MAX], *k_out[LAYERS_MAX], *v_out[LAYERS_MAX];
        uint32_t ids[LENGTH];
        char text[1024];
        for (uint32_t l = 0; l < c->layers; l++) {
            k[l] = memory + 2 * l * LENGTH * row;
            v[l] = k[l] + LENGTH * row;
        }
        assert_ok(tokenizer_encode(tokens, "Once upon a time", 16, ids, &count));
        for (uint32_t done = 0, more; count < LENGTH; done += more) {
            model_past past = {done, KVT_DTYPE_FP32, (const void *const *)k, (const void *const *)v,
                               NULL};
            more = (uint32_t)count - done;
            for (uint32_t l = 0; l < c->layers; l++) {
                k_out[l] = k[l] + done * row;
                v_out[l] = v[l] + done * row;
            }
            model_request request = {.tokens = ids + done,
                                     .token_count = more,
                                     .first_position = done,
                                     .past = &past,
                                     .k_out = k_out,
                                     .v_out = v_out,
                                     .logits_first = more - 1,
                                     .logits_count = 1,
                                     .logits_out = logits};
            assert_ok(model_forward(sessions[m], &request));
            ids[count++] = model_best(logits, VOCAB);
        }
        assert_ok(tokenizer_decode(tokens, ids, count, text, sizeof text - 1, &bytes));
        text[bytes] = '\0';
        if (strncmp(text + 16, models[m].greedy, strlen(models[m].greedy)) != 0) {
            fail_msg("%s: %s", models[m].file, text);
        }
    }
}

/* 4-bit codes of `count` values that are `stride` apart, and back, as KIVI does it. */
static void quantise(uint16_t *values, uint32_t count, size_t stride)
{
    float low = INFINITY, high = -INFINITY;
    for (uint32_t i = 0; i < count; i++) {
        low = fminf(low, half_to_float(values[i * stride]));
        high = fmaxf(high, half_to_float(values[i * stride]));
    }
    float scale = half_to_float(half_from_float((high - low) / 15.0f));
    for (uint32_t i = 0; i < count && scale > 0.0f; i++) {
        float code = rintf((half_to_float(values[i * stride]) - low) / scale);
        code = fminf(fmaxf(code, 0.0f), 15.0f);
        values[i * stride] = half_from_float(code * scale + low);
    }
}

/* K per channel in groups of 64 tokens, V per token in groups of 64 at most (one row of the
 * smaller). */
static kvt_status four_bits(void *context, evaluate_kv *kv)
{
    (void)context;
    uint32_t row = kv->config->kv_heads * kv->config->head_dim, group = row < 64 ? row : 64;
    for (uint32_t l = 0; l < kv->config->layers; l++) {
        for (uint32_t t = 0; t < kv->tokens; t += 64)
            for (uint32_t i = 0; i < row; i++)
                quantise(kv->k[l] + (size_t)t * row + i, 64, row);
        for (uint32_t t = 0; t < kv->tokens; t++)
            for (uint32_t i = 0; i < row; i += group)
                quantise(kv->v[l] + (size_t)t * row + i, group, 1);
    }
    return KVT_OK;
}

/* Few entries here, so the bounds are wide: a factor of two for KL, a fifth for attention. */
TEST(four_bits_lose_what_the_trial_found)
{
    enum { ENTRIES = 2 };
    char message[256] = "";
    const char *const paths[] = {texts_path};
    quality_entries set;
    open_all();
    assert_ok(quality_entries_read(paths, 1, tokens, 768, 200, UINT32_MAX, &set, message,
                                   sizeof message));
    assert_true(set.count >= 96);
    for (size_t m = 0; m < 2; m++) {
        evaluate_result results[ENTRIES];
        evaluate_result mean = {.kl = 0.0};
        for (uint32_t i = 0; i < ENTRIES; i++) {
            evaluate_entry *entry;
            assert_ok(
                evaluate_entry_open(sessions[m], set.entries[i * 11].tokens, 768, 200, &entry));
            assert_ok(evaluate_entry_run(sessions[m], entry, four_bits, NULL, &results[i], NULL));
            evaluate_entry_close(entry);
            assert_true(results[i].attention_error_high > results[i].attention_error);
            mean.kl += results[i].kl / ENTRIES;
            mean.top1 += results[i].top1 / ENTRIES;
            mean.attention_error += results[i].attention_error / ENTRIES;
        }
        print_message("%s: KL %.3g, top-1 %.4f, attention error %.4f\n", models[m].file, mean.kl,
                      mean.top1, mean.attention_error);
        assert_true(mean.kl > 0.5 * models[m].kl && mean.kl < 2 * models[m].kl);
        assert_true(fabs(mean.attention_error / models[m].attention_error - 1) < 0.2);
        assert_true(mean.top1 > 0.95 && mean.top1 < 1.0);
    }
    quality_entries_free(&set);
}
