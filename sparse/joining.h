/* SPDX-License-Identifier: Apache-2.0 */
/*
 * joining.h - tokens that were appended to a unit come together in memory, by key, until they are a
 * page.
 *
 *     token --take--> OPEN page (joins the nearest, or founds one) --full--> FULL, first in and out
 *                       ^      |
 *                       +------+  two near ones become one when a token needs a page of its own
 *
 * A token founds a page when it is farther from the nearest one than SPARSE_JOIN_FAR times the mean
 * of such distances, so the measure follows the keys. A page of the prompt is on drives and is not
 * written again, so nothing joins it. What a page has gathered by the time it is full is clustered
 * anew (sparse_joining_split), so it does not matter how far its mean has drifted meanwhile.
 *
 * The same tokens give the same pages on every compiler and instruction set.
 *
 * Thread rule: one user at a time. Memory is taken by sparse_joining_reserve alone.
 */
#ifndef SPARSE_JOINING_H
#define SPARSE_JOINING_H

#include "cluster.h"

#define SPARSE_OPEN_PAGES 8u
#define SPARSE_JOIN_FAR   2.0f /* of squared distances */

typedef struct sparse_joined {
    struct sparse_joined *next; /* of full or spare ones */
    uint32_t tokens;
    uint32_t failures;      /* writes of it that failed; the user's */
    uint32_t *positions;    /* of each token */
    uint8_t *keys, *values; /* packed rows */
    float *sum;             /* of keys */
} sparse_joined;

typedef struct sparse_joining {
    uint32_t head_dim, page_tokens, row_bytes, value_bytes;
    uint8_t dtype;
    bool in_order; /* tokens join one page after the other, as they come */
    sparse_joined *open[SPARSE_OPEN_PAGES];
    float *means; /* [SPARSE_OPEN_PAGES][head_dim] of the keys; NULL before the first token */
    float norms[SPARSE_OPEN_PAGES];
    uint32_t open_count, open_tokens, full_count, spare_count;
    float near; /* mean squared distance of a token to the nearest page */
    sparse_joined *full, *full_last, *spare;
} sparse_joining;

/* The caller may set in_order and value_bytes (0: K alone) before the first token. */
void sparse_joining_open(uint32_t head_dim, uint8_t dtype, uint32_t page_tokens,
                         sparse_joining *joining_out);
void sparse_joining_close(sparse_joining *joining); /* zeroed ones are allowed */

/* Memory for so many tokens more. KVT_OK; KVT_E_MEMORY: what there was is there. */
KVT_NODISCARD kvt_status sparse_joining_reserve(sparse_joining *joining, uint32_t tokens);

/* Takes a token; memory was reserved. Keys and values are packed rows of the dtype. */
void sparse_joining_take(sparse_joining *joining, const uint8_t *key, const uint8_t *value,
                         uint32_t position);

/* Takes the first full page out, or NULL; puts one back behind the others; frees one that is not
 * needed any more, or keeps its memory for tokens to come. */
sparse_joined *sparse_joining_next(sparse_joining *joining);
void sparse_joining_return(sparse_joining *joining, sparse_joined *page);
void sparse_joining_retire(sparse_joining *joining, sparse_joined *page);

/*
 * The clusters of a full page: their mean keys and values, fp32 [clusters][head_dim], tokens, and
 * scatter, in units of `key_scatter` of the index that they join (index.h). work has room for a
 * page of tokens and so many clusters. Returns how many are not empty.
 */
uint32_t sparse_joining_split(const sparse_joining *joining, const sparse_joined *page,
                              uint32_t clusters, uint32_t iterations, uint64_t seed,
                              const float *key_scatter, cluster_work *work, float *key_means,
                              float *value_means, uint32_t *tokens_out, float *scatter_out);

#endif
