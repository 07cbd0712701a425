/* SPDX-License-Identifier: Apache-2.0 */
/*
 * judge.h - judges a lossy codec by what a trained model makes of the decoded KV. Entries are cut
 * from concatenated texts: a context, whose exact KV is rounded to fp16 once, and a continuation
 * that is teacher-forced on top of it. A transform changes the context's K and V (encode, decode);
 * the continuation is run again, its own KV exact, and compared token by token.
 *
 * Thread rule: one thread per entry and session; sets are read-only once read.
 */
#ifndef ESTIMATOR_JUDGE_H
#define ESTIMATOR_JUDGE_H

#include "estimator/model/model.h"
#include "estimator/model/tokenizer.h"

/* What is bad in few heads counts: a high quantile beside the mean. */
#define JUDGE_HIGH 0.9

/* A question about a text's context, as offsets in bytes: [first, answer) asks, [answer, end) is
 * the answer. */
typedef struct judge_question {
    size_t first, answer, end;
} judge_question;

/* What a text says about itself; zero: nothing, it is one of many that follow each other. */
typedef struct judge_marks {
    size_t context; /* bytes before the questions */
    judge_question *questions;
    size_t count;
} judge_marks;

typedef struct judge_texts {
    char **texts;       /* UTF-8, terminated */
    judge_marks *marks; /* [count] */
    size_t count;
} judge_texts;

/*
 * The lines of a JSONL file: their "text" members, or "context" or "input" where these are strings.
 * A "text" with a number as "context" has that many bytes of context, and "questions", each
 * [first, answer, end] in bytes, ascending. Reads `path`, or `path`.zst when there is no `path`,
 * and repairs every text without a context. KVT_OK; KVT_E_PARSE (the message names the line);
 * KVT_E_GONE; KVT_E_IO; KVT_E_MEMORY.
 */
KVT_NODISCARD kvt_status judge_texts_read(const char *path, judge_texts *texts_out, char *message,
                                          size_t message_size);
void judge_texts_free(judge_texts *texts);

/* Replaces typographic quotes and dashes that were read as cp1252 and written as UTF-8 by the ASCII
 * characters that they stand for, in place. A closing quote lost its last byte on the way. */
void judge_repair_text(char *text);

/* Evaluation entries: disjoint runs of context + continuation tokens, each starting at the begin
 * token of a text; texts follow each other, and the last one of an entry is cut. */
typedef struct judge_set {
    uint32_t context_tokens;
    uint32_t continuation_tokens;
    uint32_t count;
    uint32_t *tokens; /* [count][context_tokens + continuation_tokens] */
} judge_set;

/* At most `limit` entries, as many as the texts give. KVT_OK or KVT_E_MEMORY. */
KVT_NODISCARD kvt_status judge_set_make(const judge_texts *texts, const tokenizer *tokens,
                                        uint32_t context_tokens, uint32_t continuation_tokens,
                                        uint32_t limit, judge_set *set_out);
void judge_set_free(judge_set *set);
const uint32_t *judge_set_entry(const judge_set *set, uint32_t index);

/* The exact run of one entry. Plain data to look at; a codec's own tests take their KV from here.
 */
typedef struct judge_entry {
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
} judge_entry;

/* KVT_OK; KVT_E_ARGUMENT (fewer than 1 context or 2 continuation tokens, see model_forward);
 * KVT_E_UNSUPPORTED (K or V do not fit fp16); KVT_E_MEMORY. The session's model outlives the
 * entry; sessions of other models must not run it. */
KVT_NODISCARD kvt_status judge_entry_open(model_session *session, const uint32_t *tokens,
                                          uint32_t context_tokens, uint32_t continuation_tokens,
                                          judge_entry **entry_out);
void judge_entry_close(judge_entry *entry); /* NULL is allowed */

/* A copy of an entry's context KV, to be changed in place. */
typedef struct judge_kv {
    const model_config *config;
    uint32_t tokens;
    uint16_t *const *k; /* [layers], fp16 [tokens][kv_heads][head_dim], post-RoPE */
    uint16_t *const *v;
    uint8_t *const *kept;   /* [layers], [kv_heads][tokens]; all 1, set to 0 what is dropped */
    uint32_t next_position; /* of the first continuation token; changed where keys are re-rotated */
} judge_kv;

/* Any status but KVT_OK ends the judging of this entry with it. */
typedef kvt_status (*judge_transform)(void *context, judge_kv *kv);

/* Of one entry, over its continuation. */
typedef struct judge_result {
    double kl;                   /* mean KL(exact || variant), nats */
    double top1;                 /* share of tokens with the same most probable next token */
    double nll_delta;            /* variant minus exact, nats per token */
    double attention_error;      /* of the exact run's queries, own KV exact; see model_score.h */
    double attention_error_high; /* its JUDGE_HIGH quantile over layers and heads */
    double retained_mass;
} judge_result;

/* One token of the continuation. */
typedef struct judge_token {
    double kl;
    uint32_t best; /* the most probable next token */
} judge_token;

/* The context with changed KV, to go on from. */
typedef struct judge_variant {
    uint16_t **k, **v; /* as the entry's */
    uint8_t **kept;
    bool dropped; /* some token of some head is */
    uint32_t next_position;
    float *logits; /* [continuation_tokens][vocab] once run */
    void *memory;
} judge_variant;

/* KVT_OK; KVT_E_MEMORY; what the transform gave. */
KVT_NODISCARD kvt_status judge_variant_open(const judge_entry *entry, judge_transform transform,
                                            void *context, judge_variant *variant_out);
void judge_variant_close(judge_variant *variant); /* also after opening failed */

/* tokens_out may be NULL, else [continuation_tokens]. KVT_OK or KVT_E_MEMORY. */
KVT_NODISCARD kvt_status judge_variant_run(model_session *session, const judge_entry *entry,
                                           const judge_variant *variant, judge_result *result_out,
                                           judge_token *tokens_out);

/* The three together. */
KVT_NODISCARD kvt_status judge_entry_run(model_session *session, const judge_entry *entry,
                                         judge_transform transform, void *context,
                                         judge_result *result_out, judge_token *tokens_out);

/* Leaves everything as it is: exact against exact, the noise floor. */
kvt_status judge_exact(void *context, judge_kv *kv);

#endif
