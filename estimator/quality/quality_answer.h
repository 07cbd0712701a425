/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quality_answer.h - greedy answers of a model on top of a context's KV, and how two of them
 * compare. Thread rule: one thread per quality_answers; see quality.h.
 */
#ifndef ESTIMATOR_QUALITY_ANSWER_H
#define ESTIMATOR_QUALITY_ANSWER_H

#include "estimator/quality/quality.h"

/* What the model is asked: tokens of the entry after its context, and how many it may answer. */
typedef struct quality_prompt {
    uint32_t first, count, answer_tokens;
} quality_prompt;

/* The prompts of one entry and the answers from exact KV. */
typedef struct quality_answers {
    model_session *session;
    const evaluate_entry *entry;
    const tokenizer *tokenizer;
    uint32_t prompt_count, answer_tokens_max;
    quality_prompt prompts[QUALITY_PROMPTS_MAX];
    uint32_t *exact;  /* [QUALITY_PROMPTS_MAX][answer_tokens_max] */
    uint32_t *answer; /* [answer_tokens_max] */
    uint64_t *words;  /* [2][answer_tokens_max * TOKENIZER_PIECE_BYTES_MAX], of two answers */
    float **k, **v;   /* [layers], fp32 [context + prompt + answer][kv_heads][head_dim] */
    float **k_next, **v_next;
    uint8_t **kept; /* [layers], [kv_heads][context + ...] */
    float *logits;  /* [answer_tokens_max][vocab] */
    void *memory;
} quality_answers;

/* Generates the exact answers. An entry with questions is asked up to QUALITY_PROMPTS_MAX of them,
 * each answer as long as the reference; another one goes on from its first token for
 * answer_tokens. 0 answer tokens: there are no prompts. KVT_OK or KVT_E_MEMORY. */
KVT_NODISCARD kvt_status quality_answers_open(model_session *session, const evaluate_entry *judged,
                                              const quality_entry *entry, const tokenizer *words,
                                              uint32_t answer_tokens, quality_answers *answers_out);
void quality_answers_close(quality_answers *answers); /* also after opening failed */

/* Answers from other KV: means over the prompts; NAN without prompts. KVT_OK or KVT_E_MEMORY. */
KVT_NODISCARD kvt_status quality_answers_compare(quality_answers *answers,
                                                 const evaluate_variant *variant,
                                                 double *rouge_l_out, double *f1_out);

#endif
