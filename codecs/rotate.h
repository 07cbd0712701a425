/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rotate.h - codec 7 on one matrix [tokens][kv_heads][head_dim]: Hadamard rotation, then a uniform
 * mid-rise quantiser with one fp16 scale per group.
 *
 * A row (or, with ROTATE_SPAN_HEAD, each head of it) is cut into groups of 256 elements, the last
 * one shorter. A group of L elements is rotated block by block: its blocks are the powers of two
 * that L is a sum of, largest first (128 = 128, 80 = 64 + 16, 96 = 64 + 32), each with the
 * orthonormal Walsh-Hadamard matrix in natural order.
 *
 *   encode  y  = butterflies of the group in fp32, stages of distance n / 2, .., 4, 2, 1
 *           a  = largest |y| / sqrt(n) of the group
 *           d  = a / 2^(bits-1) rounded up to fp16, the group's scale; at least 2^-24 unless a is 0
 *           c  = floor(y * (1 / sqrt(n) / d)) + 2^(bits-1), kept within 0 .. 2^bits - 1
 *   decode  F  = butterflies of c - (2^bits - 1) / 2, which are exact integers
 *           x' = F * (d / sqrt(n)), kept within the dtype's finite range, rounded to the dtype
 *
 * Each product and quotient above is one fp32 operation. A group with NaN or infinity, or whose
 * scale would pass the largest fp16, is kept as it is: its scale is ROTATE_SCALE_RAW, its codes are
 * zero, and its elements follow the codes.
 *
 *   +--------------------+---------------------------+-------------------------+
 *   | scales             | codes                     | raw groups              |
 *   | u16 per group      | L * bits / 8 bytes a group| L elements each         |
 *   +--------------------+---------------------------+-------------------------+
 *   groups token by token, in the order of the matrix; code j of a group is bits
 *   [bits * j, bits * (j + 1)) of its bytes, least significant first.
 *
 * The error of a rotated value is at most d / 2 (plus fp32 rounding), so that of a group's vector
 * is at most d * sqrt(L) / 2. Needs the default floating-point environment (nearest, no flush to
 * zero). Thread rule: re-entrant, no state; every instruction set gives the same bytes.
 */
#ifndef CODECS_ROTATE_H
#define CODECS_ROTATE_H

#include "view_rows.h"

enum {
    ROTATE_GROUP_MAX = 256, /* so that F fits 16 bits with 8-bit codes */
    ROTATE_SCALE_RAW = 0x7c00
};

typedef enum rotate_span {
    ROTATE_SPAN_HEAD = 0, /* groups inside a head */
    ROTATE_SPAN_ROW = 1   /* groups over kv_heads * head_dim */
} rotate_span;

typedef struct rotate_settings {
    uint8_t bits; /* 3, 4 or 8 */
    uint8_t span; /* rotate_span */
} rotate_settings;

/* One matrix, in memory or as it was. */
typedef struct rotate_shape {
    uint32_t tokens; /* 0 allowed */
    uint16_t kv_heads;
    uint16_t head_dim; /* a multiple of 8 */
    uint8_t dtype;     /* KVT_DTYPE_FP16, BF16 or FP32 */
} rotate_shape;

/* KVT_OK, or KVT_E_UNSUPPORTED for a setting or a shape that this codec does not take. The other
 * functions are called only after KVT_OK. */
kvt_status rotate_check(const rotate_shape *shape, rotate_settings settings);

/* Bytes of the matrix. */
uint64_t rotate_source_bytes(const rotate_shape *shape);

/* Stored bytes when no group is raw: the usual case, and the least. */
uint64_t rotate_stored_bytes(const rotate_shape *shape, rotate_settings settings);

/*
 * Encodes rotate_source_bytes of source. Never writes past capacity, and only *written_out bytes
 * count. KVT_OK; KVT_RAW when the result would not be smaller than the source; KVT_E_SPACE when
 * capacity is too small (rotate_source_bytes is always enough).
 */
kvt_status rotate_encode(const rotate_shape *shape, rotate_settings settings, const void *source,
                         void *target, uint64_t capacity, uint64_t *written_out);

/* Decodes any bytes into rotate_source_bytes of target. KVT_OK or KVT_E_CORRUPT. */
kvt_status rotate_decode(const rotate_shape *shape, rotate_settings settings, const void *source,
                         uint64_t source_bytes, const view_rows *target);

#endif
