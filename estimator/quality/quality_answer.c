/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quality_answer.c - answers of a model and how two of them compare. Greedy generation starts from
 * a draft: one batch over prompt and draft says where the model first departs from it, and only
 * what follows is generated token by token. The exact run's draft is the text, a variant's the
 * exact answer, which most variants keep to the end. Thread rule: one thread per quality_answers.
 */
#include "codecs/kernels/checksum.h"
#include "estimator/model/model.h"
#include "estimator/model/model_internal.h"
#include "estimator/quality/quality.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- how two answers compare ---- */

static uint32_t answer_common_subsequence(const uint64_t *a, uint32_t a_count, const uint64_t *b,
                                          uint32_t b_count, uint32_t *row)
{
    memset(row, 0, ((size_t)b_count + 1) * sizeof *row);
    for (uint32_t i = 0; i < a_count; i++) {
        uint32_t diagonal = 0; /* of the row above, one to the left */
        for (uint32_t j = 1; j <= b_count; j++) {
            uint32_t above = row[j];
            if (a[i] == b[j - 1]) {
                row[j] = diagonal + 1;
            } else if (row[j - 1] > above) {
                row[j] = row[j - 1];
            }
            diagonal = above;
        }
    }
    return row[b_count];
}

/* Items that both have, as often as both have them. */
static uint32_t answer_common_bag(const uint64_t *a, uint32_t a_count, const uint64_t *b,
                                  uint32_t b_count, uint32_t *used)
{
    uint32_t common = 0;
    memset(used, 0, ((size_t)b_count + 1) * sizeof *used);
    for (uint32_t i = 0; i < a_count; i++) {
        uint32_t j = 0;
        while (j < b_count && (used[j] != 0 || a[i] != b[j]))
            j++;
        if (j == b_count) continue;
        used[j] = 1;
        common++;
    }
    return common;
}

kvt_status quality_compare_answers(const uint64_t *exact, uint32_t exact_count,
                                   const uint64_t *other, uint32_t other_count, double *rouge_l_out,
                                   double *f1_out)
{
    uint32_t total = exact_count + other_count;
    *rouge_l_out = *f1_out = 1.0;
    if (total == 0) return KVT_OK;
    uint32_t *work = malloc(((size_t)other_count + 1) * sizeof *work);
    if (work == NULL) return KVT_E_MEMORY;
    /* Both are F-measures: twice what is common over the two lengths. */
    *rouge_l_out =
        2.0 * answer_common_subsequence(exact, exact_count, other, other_count, work) / total;
    *f1_out = 2.0 * answer_common_bag(exact, exact_count, other, other_count, work) / total;
    free(work);
    return KVT_OK;
}

/* The words of an answer as checksums: runs of letters, digits and bytes above ASCII, in lower
 * case; without a tokenizer its tokens. */
static kvt_status answer_words(const tokenizer *tokens, const uint32_t *ids, uint32_t count,
                               uint64_t *words, uint32_t *word_count)
{
    *word_count = 0;
    if (tokens == NULL) {
        for (uint32_t i = 0; i < count; i++)
            words[i] = ids[i];
        *word_count = count;
        return KVT_OK;
    }
    size_t bytes = 0, start = 0, capacity = (size_t)count * TOKENIZER_PIECE_BYTES_MAX;
    char *text = malloc(capacity + 1);
    if (text == NULL) return KVT_E_MEMORY;
    kvt_status status = tokenizer_decode(tokens, ids, count, text, capacity, &bytes);
    text[bytes] = ' ';
    for (size_t i = 0; status == KVT_OK && i <= bytes; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c >= 0x80 || isalnum(c)) {
            text[i] = (char)(c < 0x80 ? tolower(c) : c);
            continue;
        }
        if (i > start) words[(*word_count)++] = checksum_of(text + start, i - start);
        start = i + 1;
    }
    free(text);
    return status;
}

static kvt_status answer_compare(const quality_answers *a, const uint32_t *exact, uint32_t count,
                                 double *rouge_l, double *f1)
{
    uint64_t *other_words = a->words + (size_t)a->answer_tokens_max * TOKENIZER_PIECE_BYTES_MAX;
    uint32_t exact_count, other_count;
    kvt_status status = answer_words(a->tokenizer, exact, count, a->words, &exact_count);
    if (status == KVT_OK)
        status = answer_words(a->tokenizer, a->answer, count, other_words, &other_count);
    if (status != KVT_OK) return status;
    return quality_compare_answers(a->words, exact_count, other_words, other_count, rouge_l, f1);
}

kvt_status quality_compare_texts(const tokenizer *tokens, const uint32_t *exact,
                                 uint32_t exact_count, const uint32_t *other, uint32_t other_count,
                                 double *rouge_l_out, double *f1_out)
{
    const size_t room = (size_t)TOKENIZER_PIECE_BYTES_MAX * exact_count + 1;
    uint32_t exact_words = 0, other_words = 0;
    uint64_t *words =
        malloc((room + (size_t)TOKENIZER_PIECE_BYTES_MAX * other_count) * sizeof *words);
    if (words == NULL) return KVT_E_MEMORY;
    kvt_status status = answer_words(tokens, exact, exact_count, words, &exact_words);
    if (status == KVT_OK)
        status = answer_words(tokens, other, other_count, words + room, &other_words);
    if (status == KVT_OK)
        status = quality_compare_answers(words, exact_words, words + room, other_words, rouge_l_out,
                                         f1_out);
    free(words);
    return status;
}

/* ---- generation ---- */

/* A context to go on from. */
typedef struct answer_context {
    uint16_t *const *k, *const *v;
    const uint8_t *const *kept; /* NULL: nothing is dropped */
    uint32_t position;
} answer_context;

static size_t answer_row(const quality_answers *a)
{
    return model_kv_dim(a->entry->config);
}

/* The context's K and V in front of the buffers; what is generated is written behind them. */
static void answer_load(const quality_answers *a, const answer_context *context)
{
    size_t count = a->entry->context_tokens * answer_row(a);
    for (uint32_t l = 0; l < a->entry->config->layers; l++) {
        model_convert(KVT_DTYPE_FP16, context->k[l], count, a->k[l]);
        model_convert(KVT_DTYPE_FP16, context->v[l], count, a->v[l]);
    }
}

/* `count` tokens behind the context and `before` tokens after it; logits of the last `wanted`. */
static kvt_status answer_forward(quality_answers *a, const answer_context *context, uint32_t before,
                                 const uint32_t *ids, uint32_t count, uint32_t wanted)
{
    const model_config *c = a->entry->config;
    const uint32_t own = a->entry->context_tokens, past_tokens = own + before;
    model_past past = {.tokens = past_tokens,
                       .dtype = KVT_DTYPE_FP32,
                       .k = (const void *const *)a->k,
                       .v = (const void *const *)a->v,
                       .kept = context->kept != NULL ? (const uint8_t *const *)a->kept : NULL};
    for (uint32_t l = 0; l < c->layers; l++) {
        a->k_next[l] = a->k[l] + past_tokens * answer_row(a);
        a->v_next[l] = a->v[l] + past_tokens * answer_row(a);
        for (uint32_t h = 0; context->kept != NULL && h < c->kv_heads; h++) {
            uint8_t *to = a->kept[l] + (size_t)h * past_tokens;
            memcpy(to, context->kept[l] + (size_t)h * own, own);
            memset(to + own, 1, before);
        }
    }
    model_request request = {.tokens = ids,
                             .token_count = count,
                             .first_position = context->position + before,
                             .past = &past,
                             .k_out = a->k_next,
                             .v_out = a->v_next,
                             .logits_first = count - wanted,
                             .logits_count = wanted,
                             .logits_out = a->logits};
    return model_forward(a->session, &request);
}

/* The greedy answer to a prompt, into a->answer. The draft is as long as the answer. */
static kvt_status answer_generate(quality_answers *a, const answer_context *context,
                                  const quality_prompt *prompt, const uint32_t *draft)
{
    const uint32_t vocab = a->entry->config->vocab, count = prompt->answer_tokens;
    uint32_t *ids = malloc(((size_t)prompt->count + count) * sizeof *ids), done = 0;
    if (ids == NULL) return KVT_E_MEMORY;
    memcpy(ids, a->entry->tokens + prompt->first, prompt->count * sizeof *ids);
    memcpy(ids + prompt->count, draft, (count - 1) * sizeof *ids);
    kvt_status status = answer_forward(a, context, 0, ids, prompt->count + count - 1, count);
    free(ids);
    for (bool kept = true; status == KVT_OK && kept && done < count; done++) {
        a->answer[done] = model_best(a->logits + (size_t)done * vocab, vocab);
        kept = a->answer[done] == draft[done];
    }
    for (; status == KVT_OK && done < count; done++) {
        status = answer_forward(a, context, prompt->count + done - 1, &a->answer[done - 1], 1, 1);
        a->answer[done] = model_best(a->logits, vocab);
    }
    return status;
}

/* ---- one entry ---- */

static void answers_choose(quality_answers *a, const quality_entry *entry, uint32_t answer_tokens)
{
    uint32_t all = entry->question_count;
    uint32_t count = all < QUALITY_PROMPTS_MAX ? all : (uint32_t)QUALITY_PROMPTS_MAX;
    if (answer_tokens == 0) return;
    for (uint32_t i = 0; i < count; i++) {
        const quality_question *question = &entry->questions[(uint64_t)i * all / count];
        a->prompts[i] = (quality_prompt){question->first, question->answer - question->first,
                                         question->end - question->answer};
    }
    if (count == 0) a->prompts[count++] = (quality_prompt){entry->context_tokens, 1, answer_tokens};
    a->prompt_count = count;
    for (uint32_t i = 0; i < count; i++)
        if (a->prompts[i].answer_tokens > a->answer_tokens_max)
            a->answer_tokens_max = a->prompts[i].answer_tokens;
}

static size_t answers_up(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* One block of memory: pointers, then what they point to. */
static kvt_status answers_make(quality_answers *a)
{
    const model_config *c = a->entry->config;
    uint32_t longest = 0, most = a->answer_tokens_max;
    for (uint32_t i = 0; i < a->prompt_count; i++)
        if (a->prompts[i].count > longest) longest = a->prompts[i].count;
    const size_t rows = (size_t)a->entry->context_tokens + longest + most;
    const size_t pointers = answers_up(c->layers * sizeof(void *));
    const size_t matrix = answers_up(rows * answer_row(a) * sizeof(float));
    const size_t kept = answers_up(rows * c->kv_heads);
    const size_t logits = answers_up((size_t)most * c->vocab * sizeof(float));
    const size_t ids = answers_up((QUALITY_PROMPTS_MAX + 1u) * (size_t)most * sizeof(uint32_t));
    const size_t words = 2 * (size_t)most * TOKENIZER_PIECE_BYTES_MAX * sizeof(uint64_t);
    uint8_t *at = malloc(5 * pointers + c->layers * (2 * matrix + kept) + logits + ids + words);
    a->memory = at;
    if (at == NULL) return KVT_E_MEMORY;
    a->k = (float **)(void *)at;
    a->v = (float **)(void *)(at + pointers);
    a->k_next = (float **)(void *)(at + 2 * pointers);
    a->v_next = (float **)(void *)(at + 3 * pointers);
    a->kept = (uint8_t **)(void *)(at + 4 * pointers);
    at += 5 * pointers;
    for (uint32_t l = 0; l < c->layers; l++, at += 2 * matrix + kept) {
        a->k[l] = (float *)(void *)at;
        a->v[l] = (float *)(void *)(at + matrix);
        a->kept[l] = at + 2 * matrix;
    }
    a->logits = (float *)(void *)at;
    a->exact = (uint32_t *)(void *)(at + logits);
    a->answer = a->exact + (size_t)QUALITY_PROMPTS_MAX * most;
    a->words = (uint64_t *)(void *)(at + logits + ids);
    return KVT_OK;
}

/* The exact answer to one prompt, with the text after the prompt as the draft. */
static kvt_status answers_exact(quality_answers *a, const answer_context *context, uint32_t index)
{
    const evaluate_entry *e = a->entry;
    const quality_prompt *prompt = &a->prompts[index];
    uint32_t *exact = a->exact + (size_t)index * a->answer_tokens_max;
    uint32_t from = prompt->first + prompt->count;
    uint32_t left = e->context_tokens + e->continuation_tokens - from;
    uint32_t known = left < prompt->answer_tokens ? left : prompt->answer_tokens;
    memset(exact, 0, a->answer_tokens_max * sizeof *exact);
    memcpy(exact, e->tokens + from, known * sizeof *exact);
    kvt_status status = answer_generate(a, context, prompt, exact);
    if (status == KVT_OK) memcpy(exact, a->answer, prompt->answer_tokens * sizeof *exact);
    return status;
}

kvt_status quality_answers_open(model_session *session, const evaluate_entry *judged,
                                const quality_entry *entry, const tokenizer *words,
                                uint32_t answer_tokens, quality_answers *answers)
{
    *answers = (quality_answers){.session = session, .entry = judged, .tokenizer = words};
    answers_choose(answers, entry, answer_tokens);
    if (answers->prompt_count == 0) return KVT_OK;
    kvt_status status = answers_make(answers);
    if (status != KVT_OK) return status;
    answer_context context = {judged->k, judged->v, NULL, judged->context_tokens};
    answer_load(answers, &context);
    for (uint32_t i = 0; status == KVT_OK && i < answers->prompt_count; i++)
        status = answers_exact(answers, &context, i);
    return status;
}

void quality_answers_close(quality_answers *answers)
{
    free(answers->memory);
    *answers = (quality_answers){.memory = NULL};
}

kvt_status quality_answers_compare(quality_answers *a, const evaluate_variant *variant,
                                   double *rouge_l_out, double *f1_out)
{
    *rouge_l_out = *f1_out = (double)NAN;
    if (a->prompt_count == 0) return KVT_OK;
    answer_context context = {variant->k, variant->v,
                              variant->dropped ? (const uint8_t *const *)variant->kept : NULL,
                              variant->next_position};
    answer_load(a, &context);
    double rouge_l = 0.0, f1 = 0.0, one_rouge_l = 0.0, one_f1 = 0.0;
    for (uint32_t i = 0; i < a->prompt_count; i++) {
        const uint32_t *exact = a->exact + (size_t)i * a->answer_tokens_max;
        kvt_status status = answer_generate(a, &context, &a->prompts[i], exact);
        if (status == KVT_OK)
            status = answer_compare(a, exact, a->prompts[i].answer_tokens, &one_rouge_l, &one_f1);
        if (status != KVT_OK) return status;
        rouge_l += one_rouge_l / a->prompt_count;
        f1 += one_f1 / a->prompt_count;
    }
    *rouge_l_out = fmin(rouge_l, 1.0);
    *f1_out = fmin(f1, 1.0);
    return KVT_OK;
}
