/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sparse.h - decoding over a KV cache that is larger than memory: the pages of one step, and
 * attention over them. docs/SPARSE.md has the whole of the design.
 *
 * A step brings, for one layer, pages: rows of K and V that the query needs, each in the precision
 * that it deserves, and an estimate of all others. An engine attends to the pages by its own
 * kernels and merges the estimate; kvt_sparse_attend does both on the CPU. Partial outputs merge
 * exactly: of two with log-sum-exps a and b the whole is (exp(a) A + exp(b) B) / (exp(a) + exp(b)).
 *
 *     kvt_sparse_head heads[8] = {{.pages = list, .page_count = count}, ...};
 *     kvt_sparse_pages pages = {.struct_size = sizeof pages, .kv_heads = 8, .group = 4,
 *                               .head_dim = 128, .dtype = KVT_DTYPE_BF16, .heads = heads};
 *     kvt_status status = kvt_sparse_attend(&pages, queries, output, lse);
 *
 * Sources: KVDrive (sections 4 and 5), SWARM (section 4), RetroInfer (the estimate).
 */
#ifndef KVTERRACE_SPARSE_H
#define KVTERRACE_SPARSE_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVT_SPARSE_HEAD_DIM_MAX 512u /* head_dim is a multiple of 8 */
#define KVT_SPARSE_GROUP_MAX    64u  /* query heads of a KV head */

/* How much of a page was read. Bits are of each element; raw is the layout's own. */
typedef enum kvt_sparse_variant {
    KVT_SPARSE_ABSENT = 0,
    KVT_SPARSE_BITS_2 = 1,
    KVT_SPARSE_BITS_4 = 2,
    KVT_SPARSE_BITS_8 = 3,
    KVT_SPARSE_RAW = 4
} kvt_sparse_variant;

/* Rows that a KV head's queries attend to: [tokens][head_dim] of the dtype, packed. */
typedef struct kvt_sparse_page {
    const void *k, *v;         /* of any alignment */
    const uint32_t *positions; /* of each token in the sequence, in no order; NULL: not told */
    uint32_t tokens;           /* at least 1 */
    uint8_t variant;           /* kvt_sparse_variant; sinks and local tokens are raw */
    uint8_t tier;              /* that it came from; KVT_TIER_NONE: always resident */
} kvt_sparse_page;

/* One KV head of a step. */
typedef struct kvt_sparse_head {
    const kvt_sparse_page *pages; /* NULL when there are none */
    uint32_t page_count;
    uint32_t lost_count;
    const uint32_t *lost;  /* pages that were chosen and have no bytes in this step */
    const float *estimate; /* [group][head_dim], normalised: of the tokens that no page brings */
    const float *estimate_lse; /* [group]; -infinity where nothing is left. NULL, both of them:
                                  there is no estimate */
} kvt_sparse_head;

/* All of a layer and step. */
typedef struct kvt_sparse_pages {
    uint32_t struct_size; /* sizeof(kvt_sparse_pages) of the caller */
    uint32_t layer;
    uint32_t kv_heads, group, head_dim; /* group: query heads of a KV head */
    uint32_t dtype;                     /* KVT_DTYPE_FP16, BF16 or FP32 */
    const kvt_sparse_head *heads;       /* [kv_heads] */
    uint32_t lost_count;                /* of all heads */
    float scale;                        /* of scores; 0: 1 / sqrt(head_dim) */
    uint64_t read_bytes;                /* that this step asked devices for */
} kvt_sparse_pages;

/*
 * Attends on the calling thread.
 *   pages    not NULL; rows, estimate and lists are only read
 *   queries  fp32 [kv_heads][group][head_dim], after position encoding
 *   output   fp32, of the same shape, normalised; 0 where there is nothing to attend to
 *   lse      [kv_heads][group]: log-sum-exp of the scaled scores; -infinity there. May be NULL
 * A row with a score that is no number counts for nothing. KVT_OK: within 1e-5 of exact attention
 * over the same rows (values of size 1). KVT_E_ARGUMENT: a NULL, struct_size, a shape outside of
 * the limits above, a page of no tokens, a query that is not finite; output is unchanged then.
 * Allocates nothing, does not block. Any thread.
 */
KVT_API KVT_NODISCARD kvt_status kvt_sparse_attend(const kvt_sparse_pages *pages,
                                                   const float *queries, float *output, float *lse);

#ifdef __cplusplus
}
#endif

#endif
