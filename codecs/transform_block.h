/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transform_block.h - the codes of one block of a segment, and their bytes.
 *
 * A block is 16 frequencies of its groups of 16 tokens: lanes in the order of frequency, then
 * group. A unit is a component's lanes of one band of frequencies. Its class is how its spread
 * compares with the step, so that it follows from the basis and the step alone. Units of class 0
 * are not stored. The others are stored in the order of their classes, and inside a class of their
 * bands and components; of each its lanes. A class of large codes stores some low bits as they are,
 * and the rest as symbols of its table. All classes share one rANS stream, whose states go on from
 * class to class; the first symbol of every class belongs to state 0.
 *
 *   block | states, u16 each | code | low bits, by unit whole bytes | escapes, i16 each |
 *         | exceptions {component u16, lane u8, 0, code i16} |
 *
 * An escape is the code of a symbol that its class's table lacks, in the order of the symbols; an
 * exception is a code of class 0 that is not 0, in the order of those units and lanes. Re-entrant.
 */
#ifndef CODECS_TRANSFORM_BLOCK_H
#define CODECS_TRANSFORM_BLOCK_H

#include "rans_stream.h"
#include "transform.h"

enum {
    TRANSFORM_BLOCK_HEAD_BYTES = 12, /* code bytes u32, escapes u32, exceptions u32 */
    TRANSFORM_EXCEPTION_BYTES = 6
};

/* The addend of a spread at a step: its class is a quarter of the sum. */
int32_t transform_class_offset(uint32_t step);

/* The units of a segment at one step, in the order in which they are stored. */
typedef struct transform_order {
    uint32_t components;
    /* Of each class and band in `by_class`; a class ends where the next one starts. */
    uint32_t starts[TRANSFORM_CLASSES + 1][TRANSFORM_BANDS];
    uint16_t *by_class; /* [components * TRANSFORM_BANDS]: components */
} transform_order;

void transform_order_make(const transform_basis *basis, uint64_t first_component,
                          uint32_t components, uint32_t step, transform_order *order);

/* Memory that coding needs beside the codes. */
typedef struct transform_room {
    uint8_t *symbols; /* [components * 256 + RANS_STATES_MAX] */
    rans_encode_table *encode_table;
    rans_decode_table *decode_table;
} transform_room;

/* Appends a block of codes [components][256] of so many groups. The block's head goes to
 * head_at, before it. False when the room is too small. */
bool transform_block_write(const transform_basis *basis, const transform_order *order,
                           const int16_t *codes, uint32_t groups, const transform_room *room,
                           uint64_t head_at, rans_target *target);

/* Bytes of a block from its head; UINT64_MAX when the head cannot be right. */
uint64_t transform_block_bytes(const transform_basis *basis, const transform_order *order,
                               uint32_t groups, const uint8_t *head);

/* Fills codes, lanes behind the last group with 0; live[c] tells whether a component has a code
 * that is not 0, or may have one. KVT_OK or KVT_E_CORRUPT. bytes are those of the head. */
kvt_status transform_block_read(const transform_basis *basis, const transform_order *order,
                                const uint8_t *head, const uint8_t *source, uint32_t groups,
                                const transform_room *room, int16_t *codes, uint8_t *live);

#endif
