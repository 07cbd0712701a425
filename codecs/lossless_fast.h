/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lossless_fast.h - codec 2, mode fast, for one matrix: exponents in four bits, at memory speed.
 *
 * Fifteen exponents of a tile, 65536 elements in the matrix' order, get codes of 4 bits; code 15
 * stands for any other, which follows as a byte. Sign and mantissa stay as they are. fp16 values
 * that are bf16 inside, the low three mantissa bits all zero, are coded as bf16; other fp16 has
 * seven exponents in 3 bits. What would not shrink stays raw, tile by tile. Exact for all bits.
 *
 * Stored, tile after tile:
 *
 *   | kind, u8 | base, u8 | 0, u16 | escapes, u32 | nibbles | lows | extras | escapes, u8 each |
 *
 *   kind     0: raw, the head has 0 elsewhere and the elements follow.
 *            1: nibble = code, lows = sign and 7 mantissa bits, a byte an element;
 *               of fp32 the 16 low bits as extras, unless bit 5 of kind says that all are zero.
 *            2: fp16 in full. nibble = code of 3 bits, sign above; lows = mantissa bits 7..0;
 *               extras = mantissa bits 9..8.
 *            bit 4: code 0 stands for exponent 0 (zeros), not for base. Bit 6: bf16 inside fp16.
 *   codes    code c is exponent base + c; the largest code (15, of kind 2 7) is the escape.
 *   nibbles  runs of 128: element i of a run in the low half of byte i, element 64 + i in the high
 *            half. A last run of n elements has half = (n + 1) / 2 in place of 64.
 *   extras   of kind 2: runs of 128, two bits an element: elements i, 32 + i, 64 + i, 96 + i in
 *            byte i from the low end; a last run has (n + 3) / 4 in place of 32.
 *
 * No state, no allocation, no scratch. Re-entrant.
 */
#ifndef CODECS_LOSSLESS_FAST_H
#define CODECS_LOSSLESS_FAST_H

#include "view_rows.h"

/* source: bytes of fp16, bf16 or fp32 elements, at any address. KVT_OK; KVT_RAW when the matrix
 * would not shrink or is of another dtype; KVT_E_SPACE past capacity. */
kvt_status lossless_fast_encode(uint8_t dtype, const void *source, uint64_t source_bytes,
                                void *target, uint64_t capacity, uint64_t *written_out);

/* Decodes into exactly the target's bytes. KVT_OK or KVT_E_CORRUPT. */
kvt_status lossless_fast_decode(uint8_t dtype, const void *source, uint64_t source_bytes,
                                const view_rows *target);

#endif
