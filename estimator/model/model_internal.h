/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_internal.h - the weights, shared by the loaders and the forward pass. Thread rule: model.h.
 */
#ifndef ESTIMATOR_MODEL_INTERNAL_H
#define ESTIMATOR_MODEL_INTERNAL_H

#include "estimator/model/model.h"
#include "estimator/model/whole_file.h"

#define MODEL_TOKENS_MAX      (1u << 20)
#define MODEL_FREQUENCIES_MAX 512 /* half of the widest head */

/* Matrices are [out][in]. The norms are NULL where the model has bare_norm. */
typedef struct model_layer {
    float *norm_attention, *norm_ffn;
    float *wq, *wk, *wv, *wo;
    float *w1, *w2, *w3; /* gate [ffn][dim], down [dim][ffn], up [ffn][dim] */
    float *bias[3];      /* of wq, wk and wv, [out]; NULL: none */
} model_layer;

struct model {
    model_config config;
    float *weights; /* all of them; the pointers below point into it */
    float *embedding, *norm_final, *output;
    model_layer *layers;
    struct model_host *host; /* instead of all weights, or NULL */
};

/* The seven matrices of a layer in the order of the files. */
enum { MODEL_WQ, MODEL_WK, MODEL_WV, MODEL_WO, MODEL_W1, MODEL_W2, MODEL_W3, MODEL_MATRICES };

typedef struct model_shape {
    uint32_t rows, columns;
} model_shape;

_Static_assert(MODEL_WQ == 0 && MODEL_WV == 2, "places of model_layer.bias");

model_shape model_matrix_shape(const model_config *config, int matrix);
float *model_matrix(model_layer *layer, int matrix);

static inline uint32_t model_query_dim(const model_config *config)
{
    return config->heads * config->head_dim;
}

static inline uint32_t model_kv_dim(const model_config *config)
{
    return config->kv_heads * config->head_dim;
}

/* NULL, or why no model has such a configuration. Bounds keep every size below 2^62. */
const char *model_config_fault(const model_config *config);

/* fp32 weights of a sound configuration, embedding and norms included. */
uint64_t model_weight_count(const model_config *config);

/* Allocates; pointers are set, weights zero. KVT_OK or KVT_E_MEMORY. */
KVT_NODISCARD kvt_status model_make(const model_config *config, model **model_out);

/* KVT_E_CORRUPT when a weight is infinite or NaN. */
KVT_NODISCARD kvt_status model_check_weights(const model *m, const char *path, char *message,
                                             size_t message_size);

/* The seven int32 that both llama2.c layouts start with; a negative vocabulary is given as such. */
typedef struct model_header {
    int32_t dim, ffn_dim, layers, heads, kv_heads, vocab, context;
} model_header;

/* Fills what the header says and what the layouts have in common. NULL, or what is wrong. */
const char *model_header_config(const model_header *header, model_config *config_out);

KVT_NODISCARD kvt_status model_open_llama2c(const char *path, const model_map *map,
                                            model **model_out, char *message, size_t message_size);
KVT_NODISCARD kvt_status model_open_ternary(const char *path, const model_map *map,
                                            model **model_out, char *message, size_t message_size);
KVT_NODISCARD kvt_status model_open_folder(const char *path, model **model_out, char *message,
                                           size_t message_size);

/* Reads the config.json of a folder. KVT_OK; KVT_E_UNSUPPORTED (a setting that the decoder does not
 * know or do: the message names key and value); KVT_E_PARSE; KVT_E_CORRUPT (sizes that do not fit);
 * what model_map_open gives. */
KVT_NODISCARD kvt_status model_config_read(const char *path, model_config *config_out,
                                           char *message, size_t message_size);

/* The same over bytes; `name` is for messages. */
KVT_NODISCARD kvt_status model_config_parse(const char *name, const void *bytes, uint64_t size,
                                            model_config *config_out, char *message,
                                            size_t message_size);

#define TOKENIZER_VOCAB_MAX (1u << 20)

typedef struct tokenizer_piece {
    const uint8_t *bytes;
    uint32_t length;
    uint32_t id;
    float score;
} tokenizer_piece;

/* The pieces of a tokenizer.json by id, and what they point into; both are freed by the caller,
 * failed or not. `vocab` and the statuses are those of tokenizer_open. */
KVT_NODISCARD kvt_status tokenizer_json_read(const char *path, const model_map *map, uint32_t vocab,
                                             tokenizer_piece **pieces_out, uint32_t *count_out,
                                             uint8_t **bytes_out, char *message,
                                             size_t message_size);

/* Says that a vocabulary has another number of pieces than the model; gives KVT_E_CORRUPT. */
kvt_status tokenizer_say_count(const char *path, uint32_t is, uint32_t wanted, char *message,
                               size_t message_size);

/* Rows whose logits are computed together where requests want few each. */
enum { MODEL_LOGIT_ROWS = 32 };

/* Buffers of the forward pass; grown to the largest request so far. Rows are the new tokens of all
 * requests of a batch, one request behind the other. */
struct model_session {
    const model *m;
    int connection; /* to the model's host; -1: none */
    float *memory;
    size_t memory_floats;
    float *x, *normed, *query, *attended, *gate, *up, *delta;
    float *keys, *values; /* [rows][kv_dim], of the layer at work */
    float *cosine, *sine; /* [rows][head_dim / 2] */
    float *work;          /* model_attend_floats */
    float *logits;        /* [MODEL_LOGIT_ROWS][vocab]; of several requests only */
};

static inline bool model_is_float(uint8_t dtype)
{
    return dtype == KVT_DTYPE_FP16 || dtype == KVT_DTYPE_BF16 || dtype == KVT_DTYPE_FP32;
}

/* `count` elements of a float dtype, or of fp8 in E4M3, as fp32. */
void model_convert(uint8_t dtype, const void *source, size_t count, float *target);

/* One KV head of one query head over a block of rows; leading dimensions are in elements. */
typedef struct model_attend {
    const float *queries; /* [rows], ld query_stride */
    const float *keys;    /* [tokens], ld kv_stride */
    const float *values;
    float *out;     /* [rows], ld query_stride; NULL: only the weights */
    float *weights; /* [rows][tokens], filled with the attention weights */
    uint32_t rows, tokens, head_dim;
    size_t query_stride, kv_stride;
    uint32_t visible;     /* tokens that the first row sees; each further row sees `step` more */
    uint32_t step;        /* 1 causal, 0 all rows see the same */
    const uint8_t *kept;  /* NULL: all; else for the first kept_tokens tokens, 0 = dropped */
    uint32_t kept_tokens; /* the tokens after them are kept */
    float *peaks;         /* [rows], the largest weight of each row; or NULL */
} model_attend;

/* softmax(q k^T / sqrt(head_dim)) v. A row that sees no kept token gives weights of zero. */
void model_attend_block(const model_attend *attend);

/* All heads of one sequence's new tokens over its past and, causally, over themselves. */
typedef struct model_attend_all {
    const model_config *config;
    const float *queries; /* [rows][heads][head_dim] */
    float *out;           /* the same; may be the queries */
    uint32_t rows;
    const float *own_keys, *own_values; /* [rows][kv_heads][head_dim]; NULL: the past is all */
    uint32_t past;                      /* tokens */
    uint8_t dtype;
    const void *past_keys, *past_values; /* [past][kv_heads][head_dim] */
    const uint8_t *kept;                 /* [kv_heads][past], 0 = dropped; NULL: all are kept */
} model_attend_all;

/* Query rows that are worked on together. */
enum { MODEL_ATTEND_ROWS = 128 };

/* `work` has model_attend_floats(config) floats, aligned to 64 bytes. */
size_t model_attend_floats(const model_config *config);
void model_attend_past(const model_attend_all *attend, float *work);

#endif
