/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model.h - a Llama-type decoder on the CPU: loads weights and runs the forward pass on top of any
 * given K and V. It is the evaluate of lossy codecs: what a model does with decoded KV, not how far
 * the numbers moved. RMSNorm, rotary positions, grouped-query causal attention, SwiGLU; all in fp32
 * with OpenBLAS for the products.
 *
 * Keys are post-RoPE everywhere. K and V of a layer are [tokens][kv_heads][head_dim].
 *
 * Thread rule: a loaded model is read-only and shared freely; one thread per model_session. Results
 * are the same bytes for the same build, request and number of BLAS threads. That number belongs to
 * the process; model_session_open sets it to 1 the first time.
 */
#ifndef ESTIMATOR_MODEL_H
#define ESTIMATOR_MODEL_H

#include <kvterrace/types.h>

typedef struct model_config {
    uint32_t dim;
    uint32_t ffn_dim;
    uint32_t layers;
    uint32_t heads; /* query heads; a multiple of kv_heads: head h reads KV head h / (heads/kv) */
    uint32_t kv_heads;
    uint32_t head_dim;
    uint32_t vocab;
    uint32_t context; /* tokens seen in training; information, not a limit */
    float norm_eps;
    double rope_theta;
    bool rope_halves; /* pairs (i, i + head_dim/2) as in HF; else (2i, 2i+1) as in llama2.c */
    bool tied;        /* the output matrix is the embedding */
    bool bare_norm;   /* inputs of linear layers are x / rms(x) / n, without weights (ternary) */
} model_config;

typedef struct model model;
typedef struct model_session model_session;

/*
 * Loads a model: a folder with config.json and model.safetensors (HF Llama names, F32, F16 or
 * BF16), a file in the llama2.c layout, or one in the ternary layout (magic "24ka", version 1, four
 * two-bit weights per byte). Sizes are checked before anything is allocated or read, and weights
 * must be finite.
 * KVT_OK; KVT_E_CORRUPT (sizes or values that do not fit); KVT_E_PARSE (config.json, a header);
 * KVT_E_UNSUPPORTED (sound, but no model of this kind); KVT_E_GONE; KVT_E_IO; KVT_E_MEMORY.
 */
KVT_NODISCARD kvt_status model_open(const char *path, model **model_out, char *message,
                                    size_t message_size);
void model_close(model *m); /* NULL is allowed */
const model_config *model_config_of(const model *m);

/* KVT_OK or KVT_E_MEMORY. The model outlives its sessions. */
KVT_NODISCARD kvt_status model_session_open(const model *m, model_session **session_out);
void model_session_close(model_session *session); /* NULL is allowed */

const model_config *model_session_config(const model_session *session);

/* Threads that OpenBLAS uses in this process from now on. */
void model_set_blas_threads(int threads);

/* The kernels that OpenBLAS chose when it was loaded: "SkylakeX", or "Prescott" on a processor that
 * it does not know. */
const char *model_blas_kernels(void);

/* K and V of the tokens before the new ones: per layer, [tokens][kv_heads][head_dim]. */
typedef struct model_past {
    uint32_t tokens;
    uint8_t dtype;        /* kvt_dtype: FP32, FP16 or BF16 */
    const void *const *k; /* [layers] */
    const void *const *v;
    const uint8_t *const *kept; /* NULL: all; else per layer [kv_heads][tokens], 0 = dropped */
} model_past;

typedef struct model_request {
    const uint32_t *tokens;
    uint32_t token_count;    /* at least 1 */
    uint32_t first_position; /* of the first token, for RoPE; without drops past->tokens */
    const model_past *past;  /* NULL: nothing before */

    /* What is wanted; NULL pointers and zero counts: nothing. Rows count from the first token. */
    /* [layers], each [token_count][kv_heads][head_dim]. Both right behind the rows of an fp32 past:
     * nothing is copied, and a generation costs its new rows only. */
    float *const *k_out;
    float *const *v_out;
    uint32_t logits_first, logits_count; /* rows whose logits are wanted */
    float *logits_out;                   /* [logits_count][vocab] */
    uint32_t queries_first, queries_count;
    float *const *queries_out;  /* [layers], each [queries_count][heads][head_dim], post-RoPE */
    float *const *attended_out; /* the same rows' attention outputs; NULL: not wanted */
} model_request;

/* Runs the new tokens on top of the past. KVT_OK; KVT_E_ARGUMENT (a token outside the vocabulary, a
 * row outside the request, sizes above 2^20 tokens, another dtype); KVT_E_MEMORY. */
KVT_NODISCARD kvt_status model_forward(model_session *session, const model_request *request);

#endif
