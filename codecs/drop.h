/* SPDX-License-Identifier: Apache-2.0 */
/*
 * drop.h - codec 6: which tokens of an entry are kept, and their rows. The record stores the choice
 * as one bit per token (record_rows.c).
 *
 * A stage before any other codec. It works on matrices [tokens][kv_heads][head_dim] and on token
 * numbers of the entry, 0 .. tokens - 1; position = first_position + token. In order:
 *
 *   drop_plan_of      how many tokens stay, and which ones by their position
 *   drop_scores       one score per token of one layer; the higher, the more worth keeping
 *   drop_select       the kept tokens, ascending
 *   drop_gather       the kept rows of a matrix, which the next codec takes
 *   drop_rerotate     (optional) turns kept keys to contiguous positions
 *   drop_scatter      rows back to their tokens; dropped tokens become zeros
 *
 * Scores are computed in double, with sums in a stated order and with an exponential of our own, so
 * that the same tokens are kept on every machine. Elements that are not finite count as zero in
 * scores. Sources: StreamingLLM (arXiv 2309.17453), K-norm (arXiv 2406.11430), KeyDiff
 * (arXiv 2504.15364), LagKV (arXiv 2504.04704), in the forms that NVIDIA's kvpress gives them.
 * docs/codecs/drop.md says when each is worth using.
 *
 * Thread rule: re-entrant, no state, no allocation.
 */
#ifndef CODECS_DROP_H
#define CODECS_DROP_H

#include <kvterrace/types.h>

typedef enum drop_method {
    DROP_METHOD_STREAM = 1,  /* sinks and the most recent tokens of the chain */
    DROP_METHOD_KNORM = 2,   /* -|k| */
    DROP_METHOD_KEYDIFF = 3, /* -cos(k, mean of k / |k|) */
    DROP_METHOD_LAGKV = 4,   /* rank of the spread relative to the next partition */
    DROP_METHOD_CALLER = 5   /* scores come from the caller */
} drop_method;

typedef struct drop_settings {
    uint8_t method;         /* drop_method */
    uint16_t keep_permille; /* 1 .. 1000, of the entry's tokens; STREAM: of the chain's */
    uint32_t sinks;         /* positions below this are always kept; usual: 4, 0 for none */
    uint32_t recent;        /* and so are this many at the end of the chain; may be 0 */
    uint32_t lag;           /* LAGKV: tokens of a partition, at least 1; usual: 128 */
} drop_settings;

/* Where an entry lies in its chain (the whole sequence): first_position + tokens <= chain_tokens.
 */
typedef struct drop_place {
    uint32_t first_position;
    uint32_t tokens; /* of the entry */
    uint32_t chain_tokens;
} drop_place;

/* Tokens [0, head) and [tail, tokens) stay whatever their scores; keep counts them as well. */
typedef struct drop_plan {
    uint32_t head;
    uint32_t tail; /* at least head */
    uint32_t keep; /* at least head + tokens - tail, at most tokens */
} drop_plan;

/* ceil(tokens * keep_permille / 1000). */
uint32_t drop_keep_count(uint32_t tokens, uint32_t keep_permille);

/*
 * KVT_OK, or KVT_E_ARGUMENT for a setting or place outside its range.
 * STREAM keeps drop_keep_count(chain_tokens) tokens of the chain, sinks included, and of this entry
 * those among them: an entry in the middle of its chain may keep none. The other methods keep
 * drop_keep_count(tokens), or all that must stay if those are more.
 */
kvt_status drop_plan_of(const drop_settings *settings, const drop_place *place,
                        drop_plan *plan_out);

/* One matrix. */
typedef struct drop_shape {
    uint32_t tokens;
    uint16_t kv_heads;
    uint16_t head_dim;
    uint8_t dtype; /* KVT_DTYPE_FP16, BF16 or FP32 */
} drop_shape;

/* Doubles of scratch that drop_scores needs. */
uint64_t drop_scores_scratch(const drop_settings *settings, const drop_shape *shape);

/*
 * Scores the tokens of one layer: the mean over the KV heads of each head's score.
 *   k, v      the layer's matrices; v is read by LAGKV only; NULL: K alone counts
 *   scores    shape->tokens of them, overwritten
 *   scratch   drop_scores_scratch doubles; may be NULL when that is 0
 * KVT_OK; KVT_E_UNSUPPORTED for an unknown method, dtype or shape, and for CALLER.
 *
 * STREAM gives the token number. LAGKV leaves out the first tokens that are sinks by position and
 * cuts the rest into partitions of lag tokens; sinks, the last whole partition and what follows it
 * score 1, a token before them its rank in its partition / lag. An entry shorter than its sinks and
 * two partitions scores its sinks 1 and the others by recency. Where a channel of the reference
 * partition is constant, its relative value is 0.
 */
kvt_status drop_scores(const drop_settings *settings, const drop_shape *shape,
                       uint32_t first_position, const void *k, const void *v, double *scores,
                       double *scratch);

/*
 * The plan's protected tokens and those of highest score; of equal scores the lower token. NaN is
 * below every number. scores may be NULL when the plan leaves no choice.
 *   index_out   room for plan->keep tokens; ascending
 */
void drop_select(const double *scores, uint32_t tokens, const drop_plan *plan, uint32_t *index_out);

/* Copies the rows of the kept tokens. row_bytes = kv_heads * head_dim * element bytes. */
void drop_gather(const void *source, uint64_t row_bytes, const uint32_t *index, uint32_t count,
                 void *target);

/* Puts count rows where the index says and fills the others of `tokens` rows with zeros. rows may
 * be the start of target. KVT_OK, or KVT_E_CORRUPT for an index that is not ascending or not below
 * tokens (then target's content is undefined). */
kvt_status drop_scatter(const void *rows, uint64_t row_bytes, const uint32_t *index, uint32_t count,
                        uint32_t tokens, void *target);

typedef enum drop_pairing {
    DROP_PAIRING_HALF = 0,       /* channel j turns with j + rotary_dim / 2 */
    DROP_PAIRING_INTERLEAVED = 1 /* channel 2 j turns with 2 j + 1 */
} drop_pairing;

/* How the model turns its keys. frequencies are radians per position of each of the rotary_dim / 2
 * pairs, in [0, 6.28]: drop_rope_frequencies gives the plain ones, scaled models have their own. */
typedef struct drop_rope {
    const double *frequencies;
    uint16_t rotary_dim; /* even, at most head_dim; the channels after it are not turned */
    uint8_t pairing;     /* drop_pairing */
} drop_rope;

/* base^(-2 j / rotary_dim) for j = 0 .. rotary_dim / 2 - 1. base > 1. */
void drop_rope_frequencies(double base, uint32_t rotary_dim, double *frequencies);

/*
 * Turns the kept keys (shape->tokens rows, in place) from position old_first + index[i] to
 * new_first + i. Angles in double, the turn in fp32, one rounding to the dtype. KVT_OK, or
 * KVT_E_UNSUPPORTED for a shape or a rope that does not fit.
 */
kvt_status drop_rerotate(const drop_shape *shape, const drop_rope *rope, const uint32_t *index,
                         uint32_t old_first, uint32_t new_first, void *k);

#endif
