/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prefill.h - the seconds that recomputing an entry would take.
 *
 * Thread rule: a kvt_prefill is plain data; any number of threads may read one.
 */
#ifndef KVTERRACE_PREFILL_H
#define KVTERRACE_PREFILL_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* FLOP model of a decoder with causal attention, grouped queries and a SwiGLU MLP. Llama-3.1-8B,
 * for one, takes 26 L d^2 per token and 2 L d per token pair. */
typedef struct kvt_prefill {
    double linear_seconds_per_token;
    double square_seconds_per_token2; /* prefill(start, end) adds this times end^2 - start^2 */
    double fixed_seconds;             /* per prefill call */
} kvt_prefill;

/* Presets by name: "llama-3.1-8b:a100", "llama-3.1-8b:h100". KVT_OK; KVT_E_ARGUMENT. */
KVT_API KVT_NODISCARD kvt_status kvt_prefill_preset_get(const char *name, kvt_prefill *out);

/* Seconds to compute tokens start..end-1 on top of start cached ones; 0 when end <= start. Without
 * fixed_seconds, so that costs of adjacent ranges add up. */
KVT_API double kvt_prefill_seconds(const kvt_prefill *prefill, uint32_t start, uint32_t end);

/* The index-th preset's name; NULL past the last. */
KVT_API const char *kvt_prefill_preset_name(size_t index);

#ifdef __cplusplus
}
#endif

#endif
