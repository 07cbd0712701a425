/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quality_answer.c - answers of a model and how two of them compare. Those of several variants are
 * generated together (quality_generate.c), from the exact answer as the draft, which most variants
 * keep to the end; the exact run's draft is the text. Thread rule: one thread per quality_answers.
 */
#include "codecs/kernels/checksum.h"
#include "estimator/model/model.h"
#include "estimator/model/model_internal.h"
#include "estimator/quality/quality.h"

#include <assert.h>
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

uint32_t quality_answer_length(const tokenizer *words, const uint32_t *ids, uint32_t most)
{
    uint32_t count = 0;
    while (count < most && !(count > 0 && quality_token_ends(words, ids[count - 1])))
        count++;
    return count;
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
    for (uint32_t i = 0; i < count; i++) {
        if (a->prompts[i].answer_tokens > a->answer_tokens_max)
            a->answer_tokens_max = a->prompts[i].answer_tokens;
        if (a->prompts[i].count > a->prompt_tokens_max) a->prompt_tokens_max = a->prompts[i].count;
    }
}

static size_t answers_up(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* One block of memory for what all lanes share. */
static kvt_status answers_make(quality_answers *a)
{
    const size_t most = a->answer_tokens_max;
    const size_t rows = most > QUALITY_LANES_MAX ? most : QUALITY_LANES_MAX;
    const size_t logits = answers_up(rows * a->entry->config->vocab * sizeof(float));
    const size_t ids = answers_up(QUALITY_PROMPTS_MAX * most * sizeof(uint32_t));
    uint8_t *at = malloc(logits + ids);
    a->memory = at;
    if (at == NULL) return KVT_E_MEMORY;
    a->logits = (float *)(void *)at;
    a->exact = (uint32_t *)(void *)(at + logits);
    return KVT_OK;
}

/* One block of memory for a lane: pointers, then what they point to. Returns its bytes, and with
 * memory sets the pointers. */
static size_t lane_place(const quality_answers *a, uint8_t *at, quality_lane *lane)
{
    const model_config *c = a->entry->config;
    const size_t rows =
        (size_t)a->entry->context_tokens + a->prompt_tokens_max + a->answer_tokens_max;
    const size_t pointers = answers_up(c->layers * sizeof(void *));
    const size_t matrix = answers_up(rows * model_kv_dim(c) * sizeof(uint16_t));
    const size_t next =
        answers_up((rows - a->entry->context_tokens) * model_kv_dim(c) * sizeof(float));
    const size_t kept = answers_up(rows * c->kv_heads);
    const size_t ids = answers_up(a->answer_tokens_max * sizeof(uint32_t));
    if (at != NULL) {
        lane->k = (uint16_t **)(void *)at;
        lane->v = (uint16_t **)(void *)(at + pointers);
        lane->k_next = (float **)(void *)(at + 2 * pointers);
        lane->v_next = (float **)(void *)(at + 3 * pointers);
        lane->kept = (uint8_t **)(void *)(at + 4 * pointers);
        lane->masked = (uint8_t **)(void *)(at + 5 * pointers);
        lane->answer = (uint32_t *)(void *)(at + 6 * pointers);
        at += 6 * pointers + ids;
        for (uint32_t l = 0; l < c->layers; l++, at += 2 * (matrix + next + kept)) {
            lane->k[l] = (uint16_t *)(void *)at;
            lane->v[l] = (uint16_t *)(void *)(at + matrix);
            lane->k_next[l] = (float *)(void *)(at + 2 * matrix);
            lane->v_next[l] = (float *)(void *)(at + 2 * matrix + next);
            lane->kept[l] = at + 2 * (matrix + next);
            lane->masked[l] = at + 2 * (matrix + next) + kept;
        }
    }
    return 6 * pointers + ids + 2 * c->layers * (matrix + next + kept);
}

/* Contexts of many tokens have fewer lanes. */
#define ANSWERS_LANE_BYTES ((size_t)2 << 30)

/* A context's K and V in front of the next lane's buffers; what is generated is written behind. */
static kvt_status answers_load(quality_answers *a, uint16_t *const *k, uint16_t *const *v,
                               uint8_t *const *kept, uint32_t position)
{
    const model_config *c = a->entry->config;
    const uint32_t tokens = a->entry->context_tokens;
    const size_t count = tokens * model_kv_dim(c);
    quality_lane *lane = &a->lanes[a->lane_count];
    if (lane->memory == NULL) {
        lane->memory = malloc(lane_place(a, NULL, lane));
        if (lane->memory == NULL) return KVT_E_MEMORY;
        (void)lane_place(a, lane->memory, lane);
    }
    lane->dropped = kept != NULL;
    lane->position = position;
    for (uint32_t l = 0; l < c->layers; l++) {
        memcpy(lane->k[l], k[l], count * sizeof *k[l]);
        memcpy(lane->v[l], v[l], count * sizeof *v[l]);
        if (kept != NULL) memcpy(lane->masked[l], kept[l], (size_t)c->kv_heads * tokens);
    }
    a->lane_count++;
    return KVT_OK;
}

/* The exact answer to one prompt, with the text after the prompt as the draft. */
static kvt_status answers_exact(quality_answers *a, uint32_t index)
{
    const evaluate_entry *e = a->entry;
    const quality_prompt *prompt = &a->prompts[index];
    uint32_t *exact = a->exact + (size_t)index * a->answer_tokens_max;
    uint32_t from = prompt->first + prompt->count;
    uint32_t left = e->context_tokens + e->continuation_tokens - from;
    uint32_t known = left < prompt->answer_tokens ? left : prompt->answer_tokens;
    memset(exact, 0, a->answer_tokens_max * sizeof *exact);
    memcpy(exact, e->tokens + from, known * sizeof *exact);
    kvt_status status = quality_generate(a, 1, prompt, exact);
    if (status != KVT_OK) return status;
    /* Behind its end the answer says nothing, and a draft anything. */
    memset(exact, 0, a->answer_tokens_max * sizeof *exact);
    memcpy(exact, a->lanes[0].answer, a->lanes[0].done * sizeof *exact);
    return KVT_OK;
}

kvt_status quality_answers_open(model_session *session, const evaluate_entry *judged,
                                const quality_entry *entry, const tokenizer *words,
                                uint32_t answer_tokens, quality_answers *answers)
{
    *answers = (quality_answers){
        .session = session, .entry = judged, .tokenizer = words, .lanes_most = QUALITY_LANES_MAX};
    answers_choose(answers, entry, answer_tokens);
    if (answers->prompt_count == 0) return KVT_OK;
    const size_t lanes = ANSWERS_LANE_BYTES / lane_place(answers, NULL, NULL);
    if (lanes < answers->lanes_most) answers->lanes_most = lanes > 0 ? (uint32_t)lanes : 1;
    kvt_status status = answers_make(answers);
    if (status == KVT_OK)
        status = answers_load(answers, judged->k, judged->v, NULL, judged->context_tokens);
    for (uint32_t i = 0; status == KVT_OK && i < answers->prompt_count; i++)
        status = answers_exact(answers, i);
    answers->lane_count = 0;
    return status;
}

void quality_answers_close(quality_answers *answers)
{
    for (uint32_t i = 0; i < QUALITY_LANES_MAX; i++)
        free(answers->lanes[i].memory);
    free(answers->memory);
    *answers = (quality_answers){.memory = NULL};
}

kvt_status quality_answers_add(quality_answers *a, const evaluate_variant *variant)
{
    assert(a->lane_count < a->lanes_most);
    if (a->prompt_count == 0) {
        a->lane_count++;
        return KVT_OK;
    }
    return answers_load(a, variant->k, variant->v, variant->dropped ? variant->kept : NULL,
                        variant->next_position);
}

kvt_status quality_answers_run(quality_answers *a)
{
    const uint32_t lanes = a->lane_count;
    double rouge_l, f1;
    kvt_status status = KVT_OK;
    a->lane_count = 0;
    for (uint32_t i = 0; i < lanes; i++)
        a->lanes[i].rouge_l = a->lanes[i].f1 = a->prompt_count > 0 ? 0.0 : (double)NAN;
    for (uint32_t p = 0; status == KVT_OK && p < a->prompt_count; p++) {
        const uint32_t *exact = a->exact + (size_t)p * a->answer_tokens_max;
        const uint32_t exact_count =
            quality_answer_length(a->tokenizer, exact, a->prompts[p].answer_tokens);
        status = quality_generate(a, lanes, &a->prompts[p], exact);
        for (uint32_t i = 0; status == KVT_OK && i < lanes; i++) {
            quality_lane *lane = &a->lanes[i];
            status = quality_compare_texts(a->tokenizer, exact, exact_count, lane->answer,
                                           lane->done, &rouge_l, &f1);
            if (status != KVT_OK) return status;
            lane->rouge_l = fmin(lane->rouge_l + rouge_l / a->prompt_count, 1.0);
            lane->f1 = fmin(lane->f1 + f1 / a->prompt_count, 1.0);
        }
    }
    return status;
}
