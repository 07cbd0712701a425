/* SPDX-License-Identifier: Apache-2.0 */
/*
 * evaluate.h - evaluates a lossy codec by what a trained model makes of the decoded KV. Entries
 * are cut from concatenated texts: a context, whose exact KV is rounded to fp16 once, and a
 * continuation that is teacher-forced on top of it. A transform changes the context's K and V
 * (encode, decode); the continuation is run again, its own KV exact, and compared token by token.
 *
 * Thread rule: one thread per entry and session; sets are read-only once read.
 */
#ifndef ESTIMATOR_EVALUATE_H
#define ESTIMATOR_EVALUATE_H

#include "estimator/model/model.h"

/* A high quantile beside the mean, because an error in few heads counts. */
#define EVALUATE_HIGH 0.9

/* A question about a text's context, as offsets in bytes: [first, answer) asks, [answer, end) is
 * the answer. */
typedef struct evaluate_question {
    size_t first, answer, end;
} evaluate_question;

/* A text that comes as token ids (docs/PROFILE.md has the format), in one block of memory. */
typedef struct evaluate_tokens {
    const uint32_t *ids; /* [count]: context and continuation, then [recall_count] of recall */
    uint32_t count;
    uint32_t recall_count;  /* 0: no passage is to be recalled */
    uint32_t recall_scored; /* the last ones of them */
    uint64_t document;      /* checksum of its name; 0: it has none */
} evaluate_tokens;

/* Facts that a text states of itself; zero: none, it is one of many in a row. */
typedef struct evaluate_marks {
    size_t context; /* bytes, or tokens, before the questions */
    evaluate_question *questions;
    size_t count;
    evaluate_tokens *tokens; /* NULL: the text is a text, and offsets are bytes; else tokens */
} evaluate_marks;

typedef struct evaluate_texts {
    char **texts;          /* UTF-8, terminated */
    evaluate_marks *marks; /* [count] */
    size_t count;
} evaluate_texts;

/*
 * The lines of a JSONL file: their "text" members, or "context" or "input" where these are strings.
 * A "text" with a number as "context" has that many bytes of context, and "questions", each
 * [first, answer, end] in bytes, ascending. A line with "tokens" is an entry in token ids, and its
 * text is empty. Reads `path`, or `path`.zst when there is no `path`, and repairs every text
 * without a context. KVT_OK; KVT_E_PARSE (the message names the line);
 * KVT_E_GONE; KVT_E_IO; KVT_E_MEMORY.
 */
KVT_NODISCARD kvt_status evaluate_texts_read(const char *path, evaluate_texts *texts_out,
                                             char *message, size_t message_size);
void evaluate_texts_free(evaluate_texts *texts);

/*
 * Ids, recall and document of one line, an object with "tokens"; free() gives them back. KVT_OK;
 * KVT_E_PARSE (*wrong_out says what); KVT_E_MEMORY.
 */
struct json_t;
KVT_NODISCARD kvt_status evaluate_tokens_read(const struct json_t *line,
                                              evaluate_tokens **tokens_out, const char **wrong_out);

/* Replaces typographic quotes and dashes that were read as cp1252 and written as UTF-8 by the ASCII
 * characters that they stand for, in place. A closing quote lost its last byte on the way. */
void evaluate_repair_text(char *text);

/* K and V of a sequence as fp16, [layers] each [count][kv_heads][head_dim]. KVT_OK;
 * KVT_E_UNSUPPORTED (they do not fit fp16); KVT_E_MEMORY; what model_forward gives. */
KVT_NODISCARD kvt_status evaluate_prefill(model_session *session, const uint32_t *tokens,
                                          uint32_t count, uint16_t *const *k, uint16_t *const *v);

/* The exact run of one entry. Plain data to look at; a codec's own tests take their KV from here.
 */
typedef struct evaluate_entry {
    const model_config *config;
    uint32_t context_tokens;
    uint32_t continuation_tokens;
    uint32_t *tokens;       /* all of them */
    uint16_t **k, **v;      /* [layers], fp16 [context_tokens][kv_heads][head_dim] */
    float **queries;        /* [layers], [continuation_tokens][heads][head_dim], post-RoPE */
    float **own_k, **own_v; /* [layers], the continuation's own KV in the exact run */
    float **attended;       /* [layers], as queries: what attention gave */
    float *logits;          /* [continuation_tokens][vocab] */
    double nll;             /* mean over the continuation's tokens after its first, nats */
    void *memory;
} evaluate_entry;

/* KVT_OK; KVT_E_ARGUMENT (fewer than 1 context or 2 continuation tokens, see model_forward);
 * KVT_E_UNSUPPORTED (K or V do not fit fp16); KVT_E_MEMORY. The session's model outlives the
 * entry; sessions of other models must not run it. */
KVT_NODISCARD kvt_status evaluate_entry_open(model_session *session, const uint32_t *tokens,
                                             uint32_t context_tokens, uint32_t continuation_tokens,
                                             evaluate_entry **entry_out);
void evaluate_entry_close(evaluate_entry *entry); /* NULL is allowed */

/* A copy of an entry's context KV, to be changed in place. */
typedef struct evaluate_kv {
    const model_config *config;
    uint32_t tokens;
    uint16_t *const *k; /* [layers], fp16 [tokens][kv_heads][head_dim], post-RoPE */
    uint16_t *const *v;
    uint8_t *const *kept;   /* [layers], [kv_heads][tokens]; all 1, set to 0 what is dropped */
    uint32_t next_position; /* of the first continuation token; changed where keys are re-rotated */
} evaluate_kv;

/* Any status but KVT_OK ends the evaluating of this entry with it. */
typedef kvt_status (*evaluate_transform)(void *context, evaluate_kv *kv);

/* Of one entry, over its continuation. */
typedef struct evaluate_result {
    double kl;                   /* mean KL(exact || variant), nats */
    double top1;                 /* share of tokens with the same most probable next token */
    double nll_delta;            /* variant minus exact, nats per token */
    double attention_error;      /* of the exact run's queries, own KV exact; see model.h */
    double attention_error_high; /* its JUDGE_HIGH quantile over layers and heads */
    double retained_mass;
} evaluate_result;

/* One token of the continuation. */
typedef struct evaluate_token {
    double kl;
    uint32_t best; /* the most probable next token */
} evaluate_token;

/* The context with changed KV, to go on from. */
typedef struct evaluate_variant {
    uint16_t **k, **v; /* as the entry's */
    uint8_t **kept;
    bool dropped; /* some token of some head is */
    uint32_t next_position;
    float *logits; /* [continuation_tokens][vocab] once run */
    void *memory;
    size_t memory_bytes;
} evaluate_variant;

/* variant_out is all zero or was opened before, of any entry: its memory is used again then.
 * KVT_OK; KVT_E_MEMORY; what the transform gave. */
KVT_NODISCARD kvt_status evaluate_variant_open(const evaluate_entry *entry,
                                               evaluate_transform transform, void *context,
                                               evaluate_variant *variant_out);
void evaluate_variant_close(evaluate_variant *variant); /* also after opening failed */

/* tokens_out may be NULL, else [continuation_tokens]. KVT_OK or KVT_E_MEMORY. */
KVT_NODISCARD kvt_status evaluate_variant_run(model_session *session, const evaluate_entry *entry,
                                              const evaluate_variant *variant,
                                              evaluate_result *result_out,
                                              evaluate_token *tokens_out);

/* The same without what attention makes of it: attention_error and those below it stay 0. */
KVT_NODISCARD kvt_status evaluate_variant_go_on(model_session *session, const evaluate_entry *entry,
                                                const evaluate_variant *variant,
                                                evaluate_result *result_out,
                                                evaluate_token *tokens_out);

/* ---- recall: a passage of the context, word for word ---- */

/* Another continuation of an entry's context, and the exact run of it. */
typedef struct evaluate_recall {
    const uint32_t *tokens; /* [count], the caller's: the request, then the passage */
    uint32_t count;
    uint32_t scored; /* the last ones of them; at least 2 */
    float *exact;    /* [scored][vocab] */
    float *changed;  /* the same, of the last variant */
    double nll;      /* of the scored tokens from exact KV, nats per token */
} evaluate_recall;

/* Over the scored tokens. */
typedef struct evaluate_recall_result {
    double kl, kl_first, kl_second; /* mean KL(exact || variant), nats; of the two halves */
    double top1;
    double nll_delta;
} evaluate_recall_result;

/* KVT_OK; KVT_E_ARGUMENT (fewer than 2 scored tokens, or none before them; a token outside the
 * vocabulary); KVT_E_MEMORY. */
KVT_NODISCARD kvt_status evaluate_recall_open(model_session *session, const evaluate_entry *entry,
                                              const uint32_t *tokens, uint32_t count,
                                              uint32_t scored, evaluate_recall *recall_out);
void evaluate_recall_close(evaluate_recall *recall); /* zeroed is allowed */

/* KVT_OK or KVT_E_MEMORY. */
KVT_NODISCARD kvt_status evaluate_recall_run(model_session *session, const evaluate_entry *entry,
                                             const evaluate_recall *recall,
                                             const evaluate_variant *variant,
                                             evaluate_recall_result *result_out);

#endif
