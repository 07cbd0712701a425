/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transform_image.h - a basis as kernels of a GPU read it: what decoding needs, one part behind the
 * other, for somebody to copy into the GPU's memory piece by piece.
 *
 *     bits, u32 [32] | slots, u32 [32][256] | turns, u64 | means | spreads | inverse
 *
 * Each part starts at a multiple of 64. Bits are those that a class stores as they are, slots what
 * rans_decode_table has as entries, turns the angle of a pair at position 1 in 2^-64 of a whole
 * turn; the others are the basis's own.
 *
 * Re-entrant; no allocation.
 */
#ifndef CODECS_TRANSFORM_IMAGE_H
#define CODECS_TRANSFORM_IMAGE_H

#include "transform_basis.h"

/* Where parts start, in bytes; bits at 0, slots at KERNEL_CODES_SLOTS. */
typedef struct transform_image {
    uint64_t turns;
    uint64_t means; /* all before them is the head */
    uint64_t spreads;
    uint64_t inverse;
    uint64_t bytes; /* of all */
} transform_image;

transform_image transform_image_of(const transform_shape *shape);

/* Writes bytes [from, from + count) of an image to `target`, which is aligned to 8. A piece has
 * all of the head, or nothing. */
void transform_image_write(const transform_basis *basis, uint64_t from, uint64_t count,
                           uint8_t *target);

/* One position's turn of a pair, in 2^-64 of a whole one. */
uint64_t transform_turn_of(const transform_basis *basis, uint32_t pair);

#endif
