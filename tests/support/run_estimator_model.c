/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run_estimator_model.c - what the reference decoder makes of texts in token ids, for a test that
 * compares it with another implementation.
 *
 *   run_estimator_model MODEL TEXTS.jsonl ANSWER_TOKENS
 *
 * One JSON object per text: "nll", of every token after the first given all before, in nats, and
 * "greedy", the answer to the first question. The text is run in pieces, each on top of the K and V
 * of those before. Single thread.
 */
#include "estimator/model/model.h"
#include "estimator/quality/evaluate.h"

#include <stdio.h>
#include <stdlib.h>

enum { RUN_PIECE = 512 };

typedef struct run_state {
    model_session *session;
    const model_config *c;
    float **k, **v, **k_next, **v_next; /* [layers], of the text and its answer */
    float *logits;                      /* [RUN_PIECE][vocab] */
} run_state;

/* Tokens [first, first + count) of a text whose earlier ones have K and V; logits of all. */
static kvt_status run_piece(const run_state *s, const uint32_t *tokens, uint32_t first,
                            uint32_t count)
{
    const size_t place = (size_t)first * s->c->kv_heads * s->c->head_dim;
    const model_past past = {.tokens = first,
                             .dtype = KVT_DTYPE_FP32,
                             .k = (const void *const *)s->k,
                             .v = (const void *const *)s->v};
    for (uint32_t l = 0; l < s->c->layers; l++) {
        s->k_next[l] = s->k[l] + place;
        s->v_next[l] = s->v[l] + place;
    }
    return model_forward(s->session, &(model_request){.tokens = tokens,
                                                      .token_count = count,
                                                      .first_position = first,
                                                      .past = first > 0 ? &past : NULL,
                                                      .k_out = s->k_next,
                                                      .v_out = s->v_next,
                                                      .logits_count = count,
                                                      .logits_out = s->logits});
}

static kvt_status run_likelihood(const run_state *s, const uint32_t *tokens, uint32_t count)
{
    for (uint32_t first = 0; first < count; first += RUN_PIECE) {
        uint32_t piece = count - first < RUN_PIECE ? count - first : RUN_PIECE;
        kvt_status status = run_piece(s, tokens + first, first, piece);
        if (status != KVT_OK) return status;
        for (uint32_t i = 0; i < piece && first + i + 1 < count; i++) {
            const float *row = s->logits + (size_t)i * s->c->vocab;
            printf("%s%.9g", first + i == 0 ? "" : ", ",
                   model_log_sum(row, s->c->vocab) - (double)row[tokens[first + i + 1]]);
        }
    }
    return KVT_OK;
}

/* The prompt's K and V are there; its last token is run again for its logits. */
static kvt_status run_answer(const run_state *s, const uint32_t *tokens, uint32_t prompt,
                             uint32_t count)
{
    uint32_t token = tokens[prompt - 1];
    for (uint32_t i = 0; i < count; i++) {
        kvt_status status = run_piece(s, &token, prompt - 1 + i, 1);
        if (status != KVT_OK) return status;
        token = model_best(s->logits, s->c->vocab);
        printf("%s%u", i == 0 ? "" : ", ", (unsigned)token);
    }
    return KVT_OK;
}

static kvt_status run_text(run_state *s, const evaluate_marks *marks, uint32_t answer_tokens)
{
    const evaluate_tokens *t = marks->tokens;
    const size_t rows = (size_t)t->count + answer_tokens;
    const size_t floats = rows * s->c->kv_heads * s->c->head_dim;
    if (marks->count == 0) return KVT_E_ARGUMENT;
    for (uint32_t l = 0; l < s->c->layers; l++) {
        s->k[l] = malloc(floats * sizeof(float));
        s->v[l] = malloc(floats * sizeof(float));
        if (s->k[l] == NULL || s->v[l] == NULL) return KVT_E_MEMORY;
    }
    printf("{\"nll\": [");
    kvt_status status = run_likelihood(s, t->ids, t->count);
    printf("], \"greedy\": [");
    if (status == KVT_OK)
        status = run_answer(s, t->ids, (uint32_t)marks->questions[0].answer, answer_tokens);
    printf("]}\n");
    (void)fflush(stdout);
    for (uint32_t l = 0; l < s->c->layers; l++) {
        free(s->k[l]);
        free(s->v[l]);
    }
    return status;
}

int main(int count, char **arguments)
{
    char message[512] = "";
    model *m = NULL;
    evaluate_texts texts;
    run_state s;
    if (count != 4) return 2;
    kvt_status status = model_open(arguments[1], &m, message, sizeof message);
    if (status == KVT_OK)
        status = evaluate_texts_read(arguments[2], &texts, message, sizeof message);
    if (status == KVT_OK) status = model_session_open(m, &s.session);
    if (status != KVT_OK) {
        fprintf(stderr, "%s: %s\n", kvt_status_name(status), message);
        return 1;
    }
    s.c = model_config_of(m);
    float *pointers[4][1024];
    s.k = pointers[0];
    s.v = pointers[1];
    s.k_next = pointers[2];
    s.v_next = pointers[3];
    s.logits = malloc((size_t)RUN_PIECE * s.c->vocab * sizeof(float));
    if (s.logits == NULL) status = KVT_E_MEMORY;
    for (size_t i = 0; status == KVT_OK && i < texts.count; i++)
        status = texts.marks[i].tokens == NULL
                     ? KVT_E_ARGUMENT
                     : run_text(&s, &texts.marks[i], (uint32_t)strtoul(arguments[3], NULL, 10));
    if (status != KVT_OK) fprintf(stderr, "%s\n", kvt_status_name(status));
    free(s.logits);
    evaluate_texts_free(&texts);
    model_session_close(s.session);
    model_close(m);
    return status == KVT_OK ? 0 : 1;
}
