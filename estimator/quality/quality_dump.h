/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quality_dump.h - KV dumps: one entry's K and V and, if there are any, queries that attended to
 * it, in a safetensors file. Tensors are k.<layer> and v.<layer>, of shape [tokens, kv_heads,
 * head_dim] in F16, BF16 or F32, layers from 0 without gaps, and q.<layer> of shape [rows, heads,
 * head_dim]. Keys and queries are post-RoPE.
 *
 * Thread rule: an open dump is read-only; any number of threads may load from it.
 */
#ifndef ESTIMATOR_QUALITY_DUMP_H
#define ESTIMATOR_QUALITY_DUMP_H

#include <kvterrace/types.h>

typedef struct safetensors safetensors;

typedef struct quality_dump {
    safetensors *file;
    kvt_layout layout;                /* layer by layer, K before V */
    uint32_t query_heads, query_rows; /* 0: there are no queries */
    uint32_t ignored;                 /* tensors of other names */
} quality_dump;

/* Opens `path` and checks that every tensor fits. KVT_OK; KVT_E_PARSE (the dump is not of this
 * form; the message says what is missing or does not fit); KVT_E_CORRUPT (not a sound safetensors
 * file); KVT_E_GONE; KVT_E_IO; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status quality_dump_open(const char *path, quality_dump *dump_out, char *message,
                                           size_t message_size);
void quality_dump_close(quality_dump *dump); /* zeroed is allowed */

/* The entry as the layout says, kvt_layout_bytes of it. */
void quality_dump_load(const quality_dump *dump, void *source);

/* `rows` of the dump's query rows, evenly spread over them, in the order in which attention over
 * one KV head takes them: [layers][kv_heads][group][rows][head_dim] with group = query_heads /
 * kv_heads. rows is 1 .. query_rows. */
void quality_dump_load_queries(const quality_dump *dump, uint32_t rows, float *queries);

/* All of one layer's queries, [query_rows][query_heads][head_dim]. */
void quality_dump_layer_queries(const quality_dump *dump, uint32_t layer, float *queries);

/* Of all K, V and queries: equal dumps have equal ones. */
uint64_t quality_dump_digest(const quality_dump *dump);

/* What a dump is made of. Matrices are in layout.dtype. */
typedef struct quality_dump_content {
    kvt_layout layout;
    const void *const *k; /* [layers], each [tokens][kv_heads][head_dim] */
    const void *const *v;
    const float *const *queries; /* [layers], each [query_rows][query_heads][head_dim] */
    uint32_t query_heads, query_rows;
} quality_dump_content;

/* Writes a dump, queries in F32; the file appears under `path` when it is complete. KVT_OK;
 * KVT_E_IO; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status quality_dump_write(const char *path, const quality_dump_content *content,
                                            char *message, size_t message_size);

#endif
