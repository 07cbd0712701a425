/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index.h - the index of one unit (layer, KV head) of a sparse sequence: clusters of the zone's
 * keys, in memory. docs/SPARSE.md has the bytes.
 *
 * Built once from the zone's K and V, in integers, so that the same rows and seed give the same
 * index on every compiler and instruction set. Thread rule: an index that is built is only read,
 * by any threads.
 */
#ifndef SPARSE_INDEX_H
#define SPARSE_INDEX_H

#include <kvterrace/types.h>

#define SPARSE_BLOCK          16u   /* clusters whose sketches lie side by side */
#define SPARSE_HEAD_DIM_MAX   512u  /* a multiple of 8 */
#define SPARSE_ROW_DIM_MAX    1024u /* of rows that no index is over */
#define SPARSE_SEGMENT_MAX    32768u
#define SPARSE_CLUSTER_TOKENS 16u
#define SPARSE_SEGMENT_TOKENS 2048u
#define SPARSE_ITERATIONS     3u
#define SPARSE_ITERATIONS_MAX 100u
#define SPARSE_CLUSTER_MAX    256u /* mean tokens of a cluster */

/* A step scores all clusters of an index of at most so many. Of a larger one it scores the sketches
 * of all, and then the best, one in SPARSE_FULL_SHARE or more, in full. A sketch is a centroid in
 * the first principal axes of the centroids and the cluster's scatter, 4 bits each. */
#define SPARSE_ONE_PASS      4096u
#define SPARSE_FULL_SHARE    8u
#define SPARSE_SHARED        8u   /* clusters with one mean value, where none is scored in full */
#define SPARSE_SKETCH_MIDDLE 7.5f /* the code of an axis's 0 */

/* Axes of a sketch, the last one for the scatter: three eighths of the channels, out to fours. */
static inline uint32_t sparse_sketch_axes(uint32_t head_dim)
{
    return (head_dim * 3 / 8 + 3) / 4 * 4;
}

/* Largest scatter of a cluster, and largest mean square of what a score deviates from a
 * centroid's. */
#define SPARSE_SCATTER_MAX   65504.0f
#define SPARSE_DEVIATION_MAX 1e30f

typedef struct sparse_index_options {
    uint32_t head_dim;
    uint8_t dtype;           /* KVT_DTYPE_FP16, BF16 or FP32 */
    uint32_t cluster_tokens; /* mean tokens of a cluster, 1 .. 256; 0: the default */
    uint32_t segment_tokens; /* a multiple of 64, up to SPARSE_SEGMENT_MAX; 0: the default */
    uint32_t iterations;     /* 1 .. 100; 0: the default */
    uint32_t one_pass;       /* most clusters of an index without sketches; 0: the default */
    uint64_t seed;
} sparse_index_options;

/* Rows of one head in the caller's memory: [head_dim] elements each, stride_bytes apart. */
typedef struct sparse_rows {
    const void *base;
    uint64_t stride_bytes;
} sparse_rows;

/*
 * Clusters of pages that came after the build: `page_clusters` lanes a page, the last of them maybe
 * empty. They have the steps of the index that they belong to (index_added.h).
 */
typedef struct sparse_added {
    uint32_t pages, pages_max; /* that have come, that there is room for */
    uint32_t page_clusters;
    int8_t *centroids; /* [lanes][head_dim] */
    int8_t *means;     /* [lanes][head_dim] */
    uint32_t *tokens;  /* of a lane's cluster */
    float *scatter;    /* of it */
    void *memory;
    uint64_t bytes;
} sparse_added;

/*
 * Two blocks of memory; all pointers but `added` and the slopes lie in the first. Clusters are
 * numbered in packed order; `lanes` of them, the last ones empty, fill whole blocks.
 *
 * The scatter of a cluster is the mean squared distance of its keys from their centroid, each
 * channel in units of what it is on average in all clusters: 1 is usual.
 */
typedef struct sparse_index {
    uint32_t head_dim;
    uint32_t segment_tokens;
    uint32_t tokens; /* of the zone */
    uint32_t clusters;
    uint32_t lanes;      /* clusters, out to a whole block */
    uint32_t axes;       /* of a sketch; 0: there are none */
    uint32_t full;       /* clusters that a step scores in full, at most; a multiple of a block */
    int8_t *centroids;   /* [lanes][head_dim] */
    int8_t *means;       /* [lanes][head_dim] */
    float *key_step;     /* [head_dim] */
    float *value_step;   /* [head_dim] */
    float *key_scatter;  /* [head_dim]: mean squared distance of a key from its centroid */
    uint32_t *first;     /* [lanes + 1]: place of a cluster's first token */
    float *scatter;      /* [lanes] */
    uint8_t *sketch;     /* [lanes / SPARSE_BLOCK][axes / 4][SPARSE_BLOCK][2]: axes 0 and 1 of 4 in
                            the low halves of a cluster's two bytes, 2 and 3 in the high ones */
    int8_t *shared;      /* [lanes / SPARSE_SHARED][head_dim]: mean values of as many clusters; with
                            sketches */
    uint16_t *axis;      /* fp16 [axes - 1][head_dim] */
    float *axis_step;    /* [axes] */
    float *centre;       /* [head_dim]: of the centroids; with sketches */
    uint16_t *position;  /* [tokens]: of a place, from the first token of its segment */
    sparse_added *added; /* scored with them; not the index's own; NULL: there are none */
    void *memory;
    uint64_t bytes; /* of memory */
    int8_t
        *slopes;  /* [lanes][2][head_dim], memory of its own: along the first one a cluster's values
                        change the most, by the second one times slope; NULL: without slopes */
    float *slope; /* [lanes], behind them */
    uint64_t slope_bytes;
} sparse_index;

/*
 * Clusters `tokens` rows of one head. KVT_OK; KVT_E_ARGUMENT (options); KVT_E_MEMORY. With 0 tokens
 * the index is empty. Elements that are not finite count as 0. About 2.5 MiB of scratch a segment
 * at head_dim 128; the index holds its own memory until sparse_index_free.
 */
KVT_NODISCARD kvt_status sparse_index_build(const sparse_index_options *options,
                                            const sparse_rows *keys, const sparse_rows *values,
                                            uint32_t tokens, sparse_index *index_out);
void sparse_index_free(sparse_index *index); /* zeroed ones are allowed */

/* The bytes of an index of so many clusters, and an index with zeroed memory for them whose content
 * is the caller's to fill; it has sketches when one_pass (0: the default) is less. KVT_OK;
 * KVT_E_MEMORY. */
uint64_t sparse_index_bytes(uint32_t head_dim, uint32_t tokens, uint32_t clusters,
                            uint32_t one_pass);
KVT_NODISCARD kvt_status sparse_index_make(uint32_t head_dim, uint32_t segment_tokens,
                                           uint32_t tokens, uint32_t clusters, uint32_t one_pass,
                                           sparse_index *index_out);

/* The bytes of an index's slopes; gives it room for them, zeroed, or takes them from it. KVT_OK;
 * KVT_E_MEMORY. */
uint64_t sparse_index_slope_bytes(uint32_t head_dim, uint32_t clusters);
KVT_NODISCARD kvt_status sparse_index_add_slopes(sparse_index *index);
void sparse_index_drop_slopes(sparse_index *index);

/* Lets steps that read so many tokens at most score the clusters of twice as many in full; in one
 * pass when these are more than half. */
void sparse_index_read(sparse_index *index, uint64_t tokens);

/* Segments of a zone, and the first token of one of them; that of segment `count` is tokens. */
uint32_t sparse_segment_count(uint32_t tokens, uint32_t segment_tokens);
uint32_t sparse_segment_first(uint32_t tokens, uint32_t segment_tokens, uint32_t segment);

/* The zone's token (position from the zone's first token) at a place. */
uint32_t sparse_index_token(const sparse_index *index, uint32_t place);

#endif
