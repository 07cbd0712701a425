/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rope.h - how a model turns its keys by their positions, for callers that want the kept keys of an
 * entry that has dropped tokens at contiguous positions (kvt_kept_tokens.rope).
 *
 * Source: RoFormer (arXiv 2104.09864). Thread rule: plain data.
 */
#ifndef KVTERRACE_ROPE_H
#define KVTERRACE_ROPE_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Which channels of a head turn together. */
typedef enum kvt_rope_pairing {
    KVT_ROPE_HALVES = 0,    /* j with j + rotary_dim / 2, as in Hugging Face's Llama */
    KVT_ROPE_NEIGHBOURS = 1 /* 2 j with 2 j + 1, as in llama2.c and the paper */
} kvt_rope_pairing;

typedef struct kvt_rope {
    uint32_t struct_size; /* sizeof(kvt_rope) of the caller */
    uint16_t rotary_dim;  /* number of a head's channels that turn: even, at most head_dim */
    uint8_t pairing;      /* kvt_rope_pairing */
    uint8_t reserved;
    double base;               /* theta; pair j turns by base^(-2 j / rotary_dim) a position */
    const double *frequencies; /* NULL; else [rotary_dim / 2] in radians a position, for scaled
                                * models: 0 to 6.28, base is not looked at */
} kvt_rope;

#ifdef __cplusplus
}
#endif

#endif
