/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quality_generate.c - greedy answers of a model from several contexts at once. Generation starts
 * from a draft: one batch over prompt and draft says where the model first departs from it, and
 * only what follows is generated token by token, all lanes in one pass over the weights, which is
 * most of the time of a step. Thread rule: one thread per quality_answers.
 */
#include "base/half.h"
#include "estimator/model/model.h"
#include "estimator/model/model_internal.h"
#include "estimator/quality/quality.h"

#include <stdlib.h>
#include <string.h>

static size_t generate_row(const quality_answers *a)
{
    return model_kv_dim(a->entry->config);
}

bool quality_token_ends(const tokenizer *words, uint32_t token)
{
    char text[2 * TOKENIZER_PIECE_BYTES_MAX];
    const uint32_t twice[2] = {token, token}; /* a single blank may be taken away */
    size_t bytes = 1;
    if (words == NULL || token >= tokenizer_vocab(words)) return false;
    return tokenizer_decode(words, twice, 2, text, sizeof text, &bytes) == KVT_OK && bytes == 0;
}

/* `count` tokens behind the lane's context and `before` tokens after it; logits of the last
 * `wanted`. The request points into the lane and into `past`; generate_keep follows it. */
static model_request generate_request(const quality_answers *a, const quality_lane *lane,
                                      uint32_t before, const uint32_t *ids, uint32_t count,
                                      uint32_t wanted, float *logits, model_past *past)
{
    const model_config *c = a->entry->config;
    const uint32_t own = a->entry->context_tokens, past_tokens = own + before;
    *past = (model_past){.tokens = past_tokens,
                         .dtype = KVT_DTYPE_FP16,
                         .k = (const void *const *)lane->k,
                         .v = (const void *const *)lane->v,
                         .kept = lane->dropped ? (const uint8_t *const *)lane->kept : NULL};
    for (uint32_t l = 0; lane->dropped && l < c->layers; l++) {
        for (uint32_t h = 0; h < c->kv_heads; h++) {
            uint8_t *to = lane->kept[l] + (size_t)h * past_tokens;
            memcpy(to, lane->masked[l] + (size_t)h * own, own);
            memset(to + own, 1, before);
        }
    }
    return (model_request){.tokens = ids,
                           .token_count = count,
                           .first_position = lane->position + before,
                           .past = past,
                           .k_out = lane->k_next,
                           .v_out = lane->v_next,
                           .logits_first = count - wanted,
                           .logits_count = wanted,
                           .logits_out = logits};
}

/* Values beyond fp16 become its largest: infinity would make every later token NaN. */
static uint16_t generate_half(float value)
{
    const float largest = 65504.0f;
    return half_from_float(value > largest ? largest : (value < -largest ? -largest : value));
}

/* Rounds what the request made to fp16, behind what the lane has: a step reads all of that, and
 * reading is its time. */
static void generate_keep(const quality_answers *a, quality_lane *lane, const model_request *q)
{
    const size_t place = q->past->tokens * generate_row(a),
                 count = q->token_count * generate_row(a);
    for (uint32_t l = 0; l < a->entry->config->layers; l++) {
        for (size_t i = 0; i < count; i++) {
            lane->k[l][place + i] = generate_half(lane->k_next[l][i]);
            lane->v[l][place + i] = generate_half(lane->v_next[l][i]);
        }
    }
}

/* Whether the lane's answer has come to its end. */
static bool generate_is_over(const quality_answers *a, const quality_lane *lane, uint32_t most)
{
    return lane->done == most ||
           (lane->done > 0 && quality_token_ends(a->tokenizer, lane->answer[lane->done - 1]));
}

/* Prompt and draft in one batch: the answer up to where it leaves the draft, that token included.
 */
static kvt_status generate_from_draft(quality_answers *a, quality_lane *lane,
                                      const quality_prompt *prompt, const uint32_t *draft)
{
    const uint32_t vocab = a->entry->config->vocab, most = prompt->answer_tokens;
    uint32_t *ids = malloc(((size_t)prompt->count + most) * sizeof *ids);
    model_past past;
    if (ids == NULL) return KVT_E_MEMORY;
    memcpy(ids, a->entry->tokens + prompt->first, prompt->count * sizeof *ids);
    memcpy(ids + prompt->count, draft, (most - 1) * sizeof *ids);
    const model_request request =
        generate_request(a, lane, 0, ids, prompt->count + most - 1, most, a->logits, &past);
    kvt_status status = model_forward(a->session, &request);
    free(ids);
    if (status == KVT_OK) generate_keep(a, lane, &request);
    lane->done = 0;
    for (bool kept = true; status == KVT_OK && kept && !generate_is_over(a, lane, most);) {
        const uint32_t at = lane->done++;
        lane->answer[at] = model_best(a->logits + (size_t)at * vocab, vocab);
        kept = lane->answer[at] == draft[at];
    }
    return status;
}

kvt_status quality_generate(quality_answers *a, uint32_t count, const quality_prompt *prompt,
                            const uint32_t *draft)
{
    const uint32_t vocab = a->entry->config->vocab, most = prompt->answer_tokens;
    model_request requests[QUALITY_LANES_MAX];
    model_past pasts[QUALITY_LANES_MAX];
    quality_lane *active[QUALITY_LANES_MAX];
    uint32_t left = 0;
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; status == KVT_OK && i < count; i++)
        status = generate_from_draft(a, &a->lanes[i], prompt, draft);
    do {
        left = 0;
        for (uint32_t i = 0; status == KVT_OK && i < count; i++) {
            quality_lane *lane = &a->lanes[i];
            if (generate_is_over(a, lane, most)) continue;
            requests[left] = generate_request(a, lane, prompt->count + lane->done - 1,
                                              &lane->answer[lane->done - 1], 1, 1,
                                              a->logits + (size_t)left * vocab, &pasts[left]);
            active[left++] = lane;
        }
        if (left > 0) status = model_forward_many(a->session, requests, left);
        for (uint32_t i = 0; status == KVT_OK && i < left; i++) {
            generate_keep(a, active[i], &requests[i]);
            active[i]->answer[active[i]->done++] = model_best(a->logits + (size_t)i * vocab, vocab);
        }
    } while (status == KVT_OK && left > 0);
    return status;
}
