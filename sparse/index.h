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

#define SPARSE_BLOCK          16u  /* clusters that lie side by side; centroids of an upper one */
#define SPARSE_HEAD_DIM_MAX   512u /* a multiple of 8 */
#define SPARSE_SEGMENT_MAX    32768u
#define SPARSE_CLUSTER_TOKENS 16u
#define SPARSE_SEGMENT_TOKENS 2048u
#define SPARSE_ITERATIONS     3u
#define SPARSE_ITERATIONS_MAX 100u
#define SPARSE_CLUSTER_MAX    256u /* mean tokens of a cluster */

/* An index of more blocks has two levels: a step scores the blocks by a centroid each, and the
 * clusters of the best of them, so many or one in SPARSE_OPEN_SHARE, whichever is more. */
#define SPARSE_OPEN_BLOCKS 256u
#define SPARSE_OPEN_SHARE  4u

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
    uint32_t open_blocks;    /* most blocks of one level; 0: the default */
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
    int8_t *centroids; /* [lanes / SPARSE_BLOCK][head_dim / 2][SPARSE_BLOCK][2] */
    int8_t *means;     /* [lanes][head_dim] */
    uint32_t *tokens;  /* of a lane's cluster */
    float *scatter;    /* of it */
    uint32_t *list;    /* numbers of the blocks of lanes: 0, 1, and so on */
    void *memory;
    uint64_t bytes;
} sparse_added;

/*
 * One block of memory; all pointers but `added` lie in it. Clusters are numbered in packed order.
 * What a step scores lies in lanes: with one level a cluster's lane is its number, with two similar
 * clusters of all segments are neighbours, and each block of them has a centroid and a mean value
 * of its own.
 *
 * The scatter of a cluster is the mean squared distance of its keys from their centroid, each
 * channel in units of what it is on average in all clusters: 1 is usual.
 */
typedef struct sparse_index {
    uint32_t head_dim;
    uint32_t segment_tokens;
    uint32_t tokens; /* of the zone */
    uint32_t clusters;
    uint32_t blocks;         /* of SPARSE_BLOCK lanes, the last one padded with empty ones */
    uint32_t open;           /* blocks whose clusters a step scores, at most */
    uint32_t upper_blocks;   /* of SPARSE_BLOCK blocks; 0: one level */
    int8_t *centroids;       /* [blocks][head_dim / 2][SPARSE_BLOCK][2], by lane */
    int8_t *means;           /* [blocks * SPARSE_BLOCK][head_dim], by lane */
    float *key_step;         /* [head_dim] */
    float *value_step;       /* [head_dim] */
    float *key_scatter;      /* [head_dim]: mean squared distance of a key from its centroid */
    uint32_t *first;         /* [blocks * SPARSE_BLOCK + 1]: place of a cluster's first token */
    uint32_t *cluster;       /* [blocks * SPARSE_BLOCK]: of a lane; of the padding its own number */
    uint32_t *lane;          /* the reverse */
    uint32_t *lane_tokens;   /* [blocks * SPARSE_BLOCK] */
    float *scatter;          /* [blocks * SPARSE_BLOCK], by lane */
    int8_t *upper_centroids; /* [upper_blocks][head_dim / 2][SPARSE_BLOCK][2]: of blocks */
    int8_t *upper_means;     /* [upper_blocks * SPARSE_BLOCK][head_dim] */
    uint32_t *upper_tokens;  /* [upper_blocks * SPARSE_BLOCK] */
    float *upper_scatter;    /* [upper_blocks * SPARSE_BLOCK]: of a block's keys */
    uint16_t *position;      /* [tokens]: of a place, from the first token of its segment */
    sparse_added *added;     /* scored with them; not the index's own; NULL: there are none */
    void *memory;
    uint64_t bytes; /* of memory */
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
 * is the caller's to fill; its levels follow from open_blocks, 0: the default. KVT_OK;
 * KVT_E_MEMORY. */
uint64_t sparse_index_bytes(uint32_t head_dim, uint32_t tokens, uint32_t clusters,
                            uint32_t open_blocks);
KVT_NODISCARD kvt_status sparse_index_make(uint32_t head_dim, uint32_t segment_tokens,
                                           uint32_t tokens, uint32_t clusters, uint32_t open_blocks,
                                           sparse_index *index_out);

/* Segments of a zone, and the first token of one of them; that of segment `count` is tokens. */
uint32_t sparse_segment_count(uint32_t tokens, uint32_t segment_tokens);
uint32_t sparse_segment_first(uint32_t tokens, uint32_t segment_tokens, uint32_t segment);

/* The zone's token (position from the zone's first token) at a place. */
uint32_t sparse_index_token(const sparse_index *index, uint32_t place);

#endif
