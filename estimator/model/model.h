/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model.h - a Llama-type decoder on the CPU: loads weights and runs the forward pass on top of any
 * given K and V. It is the evaluate of lossy codecs: what a model does with decoded KV, not how far
 * the numbers moved. RMSNorm, rotary positions, grouped-query causal attention, SwiGLU, and biases
 * of q, k and v where the model has them (Qwen2); all in fp32 with OpenBLAS for the products.
 *
 * Keys are post-RoPE everywhere. K and V of a layer are [tokens][kv_heads][head_dim].
 *
 * Thread rule: a loaded model is read-only and shared freely; one thread per model_session. Results
 * are the same bytes for the same build, request and number of BLAS threads. That number belongs to
 * the process; model_session_open sets it to 1 the first time.
 */
#ifndef ESTIMATOR_MODEL_H
#define ESTIMATOR_MODEL_H

#include <kvterrace/status.h>
#include <kvterrace/types.h>

#include <stddef.h>
#include <stdint.h>

/* How Llama 3.1 stretches its rotation for contexts beyond those of its first training: pairs that
 * turn less than `low` times in `context` tokens turn `factor` times slower, those that turn more
 * than `high` times stay, and between the two the share that stays grows with the turns. */
typedef struct model_rope_scale {
    double factor; /* 0: none */
    double low, high, context;
} model_rope_scale;

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
    model_rope_scale rope_scale;
    const double *frequencies; /* [rotary_dim / 2]; NULL: model_frequency() says what follows */
    uint32_t rotary_dim;       /* of frequencies */
    bool rope_halves; /* pairs (i, i + head_dim/2) as in HF; else (2i, 2i+1) as in llama2.c */
    bool tied;        /* the output matrix is the embedding */
    bool biased;      /* q, k and v have biases, as in Qwen2 */
    bool bare_norm;   /* inputs of linear layers are x / rms(x) / n, without weights (ternary) */
} model_config;

typedef struct model model;
typedef struct model_session model_session;

/*
 * Loads a model: a folder with config.json and model.safetensors or the index of several such files
 * (HF Llama names, F32, F16 or BF16), a file in the llama2.c layout, or one in the ternary layout
 * (magic "24ka", version 1, four two-bit weights per byte), or the Unix socket of a program that
 * runs one (model_host.h). Sizes are checked before anything is allocated or read, and weights must
 * be finite.
 * KVT_OK; KVT_E_CORRUPT (sizes or values that do not fit); KVT_E_PARSE (config.json, a header);
 * KVT_E_UNSUPPORTED (sound, but no model of this kind); KVT_E_GONE; KVT_E_IO; KVT_E_MEMORY.
 */
KVT_NODISCARD kvt_status model_open(const char *path, model **model_out, char *message,
                                    size_t message_size);
void model_close(model *m); /* NULL is allowed */
const model_config *model_config_of(const model *m);
bool model_is_elsewhere(const model *m); /* another program runs it */

/* How keys and queries turn: the first channels of a head, and radians a position of each of their
 * pairs. The one place that turns a model's base into frequencies. */
uint32_t model_rotary_dim(const model_config *config);
double model_frequency(const model_config *config, uint32_t pair);

/* The clock that computing with the model is timed by, in seconds: the processor time of the
 * calling thread, or where a host computes the sum of what its answers say. */
double model_clock_seconds(const model *m);

/* A digest of the weights, and their number. */
uint64_t model_digest(const model *m);
uint64_t model_parameters(const model *m);

/* KVT_OK or KVT_E_MEMORY. The model outlives its sessions. */
KVT_NODISCARD kvt_status model_session_open(const model *m, model_session **session_out);
void model_session_close(model_session *session); /* NULL is allowed */

const model_config *model_session_config(const model_session *session);

/* The Gram matrix [head_dim][head_dim] of a layer's output projection, of the query heads that read
 * this KV head, added up: e G e is the squared size of what an error e of V makes of each's output,
 * at an attention of 1. Of one that a program does not tell, that of the identity. */
void model_output_gram(const model *m, uint32_t layer, uint32_t kv_head, double *gram);

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
    /* [layers], each [token_count][kv_heads][head_dim]. They may lie right behind the rows of an
     * fp32 past, so that past and new rows are the next step's past. */
    float *const *k_out;
    float *const *v_out;
    uint32_t logits_first, logits_count; /* rows whose logits are wanted */
    float *logits_out;                   /* [logits_count][vocab] */
    uint32_t queries_first, queries_count;
    float *const *queries_out;  /* [layers], each [queries_count][heads][head_dim], post-RoPE */
    float *const *attended_out; /* the same rows' attention outputs; NULL: not wanted */
} model_request;

/* Runs the new tokens on top of the past. KVT_OK; KVT_E_ARGUMENT (a token outside the vocabulary, a
 * row outside the request, sizes above 2^20 tokens, another dtype); KVT_E_MEMORY; KVT_E_IO (the
 * program behind a socket has failed or left). */
KVT_NODISCARD kvt_status model_forward(model_session *session, const model_request *request);

/*
 * The same of several sequences at once, each with a past of its own: the weights are read once
 * for all, which is most of the time of a step that adds a token to each. Requests share nothing
 * else; each gives what it gives alone within rounding (1e-5 of its largest logit), and at most
 * 2^20 new tokens are run together. When one is wrong nothing is run.
 */
KVT_NODISCARD kvt_status model_forward_many(model_session *session, const model_request *requests,
                                            uint32_t count);

/* ---- scores of a forward pass: likelihood, KL, attention; sums in double ---- */

/* log(sum(exp(logits))), so that logits[i] minus it is a log-probability. */
double model_log_sum(const float *logits, uint32_t vocab);

/* The id with the largest logit, the first of equals. */
uint32_t model_best(const float *logits, uint32_t vocab);

/* KL(exact || variant) in nats of two rows of logits; 0 when they are equal. Exponentials are fp32
 * ones: a value may be a few 1e-8 off, and as much below zero, which is not cut off because means
 * would then be biased. */
double model_kl(const float *exact, const float *variant, uint32_t vocab);

/* The negative log-likelihood of tokens[1..count) given all before, summed, in nats.
 * KVT_OK; KVT_E_ARGUMENT (fewer than two tokens, or see model_forward); KVT_E_MEMORY. */
KVT_NODISCARD kvt_status model_nll(model_session *session, const uint32_t *tokens, uint32_t count,
                                   double *nll_out);

typedef struct model_probe_result {
    /* Over all queries of a (layer, head): |output - output'| / |output|; the mean over heads. */
    double attention_error;
    /* 1 minus the attention weight that exact KV gives to tokens that the variant dropped. */
    double retained_mass;
} model_probe_result;

/* Queries of the tokens that follow a context, and the context with exact and with other KV. */
typedef struct model_probe {
    const model_past *exact;   /* kept is NULL */
    const model_past *variant; /* as many tokens */
    uint32_t rows;
    const float *const *queries; /* [layers], each [rows][heads][head_dim], post-RoPE */
    /* The rows' own KV, exact on both sides and seen causally, as in a forward pass: per layer
     * [rows][kv_heads][head_dim]. NULL: the rows see the context only. */
    const float *const *own_k;
    const float *const *own_v;
    /* The attention outputs with exact KV where they are known, laid out as queries; they save the
     * exact half of a probe. NULL: not known. */
    const float *const *exact_out;
} model_probe;

/* Attention output with exact and with other KV. head_errors may be NULL, else [layers][heads].
 * KVT_OK; KVT_E_ARGUMENT (no tokens or rows, differing counts, another dtype); KVT_E_MEMORY. */
KVT_NODISCARD kvt_status model_probe_attention(const model_config *config, const model_probe *probe,
                                               model_probe_result *result_out, double *head_errors);

/* ---- the tokenizer; any number of threads may use an open one ---- */

/*
 * Byte-pair encoding with a llama2.c vocabulary (SentencePiece style): int32 longest piece, then
 * for each piece fp32 score, int32 length, bytes. Ids: 0 unknown, 1 begin, 2 end, 3..258 the bytes
 * 0..255, the rest pieces.
 */

enum {
    TOKENIZER_UNKNOWN = 0,
    TOKENIZER_BEGIN = 1,
    TOKENIZER_END = 2,
    TOKENIZER_BYTE_FIRST = 3,
    TOKENIZER_PIECE_FIRST = 259,
    TOKENIZER_PIECE_BYTES_MAX = 256
};

typedef struct tokenizer tokenizer;

/*
 * Reads a vocabulary; `vocab` is how many pieces it must have, 0 for as many as there are. A path
 * that ends in .json is a tokenizer.json of the tokenizers package with byte-level BPE: it decodes
 * (its added tokens, such as those of a chat format, give nothing) and does not encode.
 * KVT_OK; KVT_E_CORRUPT (message says where); KVT_E_PARSE (no JSON); KVT_E_UNSUPPORTED (JSON of
 * another kind of tokenizer); KVT_E_GONE; KVT_E_IO; KVT_E_MEMORY.
 */
KVT_NODISCARD kvt_status tokenizer_open(const char *path, uint32_t vocab, tokenizer **tokenizer_out,
                                        char *message, size_t message_size);
void tokenizer_close(tokenizer *tokens); /* NULL is allowed */
uint32_t tokenizer_vocab(const tokenizer *tokens);
bool tokenizer_encodes(const tokenizer *tokens);

/* The most ids that a text of `bytes` bytes can become, begin token and leading blank included. */
static inline size_t tokenizer_bound(size_t bytes)
{
    return bytes + 2;
}

/*
 * Encodes any bytes: the begin token, the piece for a leading blank (unless the text is empty), one
 * piece per UTF-8 character or bytes where a character has none; then the adjacent pair whose
 * joined piece has the highest score, the leftmost of equals, is merged until no pair has one.
 * ids_out has room for tokenizer_bound(bytes). KVT_OK; KVT_E_UNSUPPORTED (it only decodes);
 * KVT_E_MEMORY.
 */
KVT_NODISCARD kvt_status tokenizer_encode(const tokenizer *tokens, const char *text, size_t bytes,
                                          uint32_t *ids_out, size_t *count_out);

/* Decodes ids into bytes, without a terminator; begin and end tokens give nothing, and the blank
 * that encoding puts first in a text (after a begin token, or at the start) is taken away, unless
 * the vocabulary is byte-level and has no such blank.
 * KVT_OK; KVT_E_ARGUMENT (an id outside the vocabulary); KVT_E_SPACE (*bytes_out is what is
 * needed). */
KVT_NODISCARD kvt_status tokenizer_decode(const tokenizer *tokens, const uint32_t *ids,
                                          size_t count, char *text_out, size_t capacity,
                                          size_t *bytes_out);

#endif
