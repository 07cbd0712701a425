/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_host.h - a model that another process runs, behind a Unix socket (docs/REFERENCE_MODEL.md,
 * Models of other programs). All measures stay here: the host computes KV and logits alone.
 *
 *     model_open      connect, ask what the model is and what its output projections are
 *     session         a connection of its own
 *     model_forward   a request with tokens and past, an answer with what was wanted
 *
 * All numbers are little-endian. Every message is a head and a payload:
 *
 *     head      "KVTM", u32 kind, u64 bytes of the payload
 *     hello     -> empty                    <- host_hello, f64 frequencies[rotary_dim / 2]
 *     grams     -> empty                    <- f64 [layers][kv_heads][head_dim][head_dim], or empty
 *     forward   -> host_forward, u32 tokens[], of each layer K, V and kept of the past
 *                                           <- f64 seconds of computing, without the socket; f32:
 *                                              of each layer K, V; logits; of each layer
 *                                              queries; of each layer attention outputs
 *     failed    <- a text for a person, instead of any of these
 *
 * An answer has the kind of its question. The host's bytes are not trusted: an answer of another
 * length, a shape beyond the decoder's limits, a number that is none or seconds below zero end the
 * connection.
 *
 * Thread rule: model.h.
 */
#ifndef ESTIMATOR_MODEL_HOST_H
#define ESTIMATOR_MODEL_HOST_H

#include "estimator/model/model_internal.h"

#include <stdatomic.h>

enum { HOST_HELLO = 1, HOST_GRAMS = 2, HOST_FORWARD = 3, HOST_FAILED = 4, HOST_VERSION = 2 };

typedef struct host_head {
    char magic[4];
    uint32_t kind;
    uint64_t bytes;
} host_head;

typedef struct host_hello {
    uint32_t version, layers, heads, kv_heads, head_dim, vocab, context, dim;
    uint32_t rope_halves; /* 0 or 1 */
    uint32_t rotary_dim;  /* elements of a key that turn, at most head_dim; even */
    uint64_t digest;      /* of the weights, however the host makes it: equal where they are */
    uint64_t parameters;
} host_hello;

enum { HOST_WANTS_KV = 1, HOST_WANTS_ATTENDED = 2 };

typedef struct host_forward {
    uint32_t token_count, first_position;
    uint32_t past_tokens, past_dtype; /* kvt_dtype; 0: no past */
    uint32_t past_kept;               /* 1: [kv_heads][past_tokens] of bytes behind each V */
    uint32_t logits_first, logits_count, queries_first, queries_count;
    uint32_t wants; /* HOST_WANTS bits */
} host_forward;

/* Of a model whose weights are elsewhere. */
typedef struct model_host {
    char path[108];
    uint64_t digest, parameters;
    double *grams; /* as answered; where the host knows none, of the identity */
    double frequencies[MODEL_FREQUENCIES_MAX];
    _Atomic uint64_t computed_ns; /* of all answers: what model_clock_seconds says */
} model_host;

/* What model_open gives; KVT_E_GONE where nobody listens. */
KVT_NODISCARD kvt_status model_host_open(const char *path, model **model_out, char *message,
                                         size_t message_size);

/* A connection, or -1. */
int model_host_connect(const model_host *host);

/* Runs sound requests, one after the other. KVT_OK; KVT_E_IO (the host has failed or left, and the
 * connection serves no more). */
KVT_NODISCARD kvt_status model_host_forward(const model_session *session,
                                            const model_request *requests, uint32_t count);

#endif
