/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transform_image.c - see transform_image.h. Re-entrant.
 */
#include "transform_image.h"

#include "codecs.h"
#include "codecs/kernels/jobs.h"

#include <assert.h>
#include <string.h>

enum { IMAGE_ALIGN = 64 };

_Static_assert(TRANSFORM_CLASSES * sizeof(uint32_t) == KERNEL_CODES_SLOTS,
               "bits lie before the slots");

uint64_t transform_turn_of(const transform_basis *basis, uint32_t pair)
{
    const double turns = basis->frequencies[pair] * 0x1.45f306dc9c883p-3; /* 1 / (2 pi) */
    return (uint64_t)(turns * 0x1p64);
}

static uint64_t image_inverse_bytes(const transform_shape *shape)
{
    const uint32_t last = transform_span_count(shape) - 1;
    const uint64_t width = transform_width_of(shape, last);
    return (transform_matrix_at(shape, last) + width * width) * sizeof(uint16_t);
}

transform_image transform_image_of(const transform_shape *shape)
{
    const uint64_t elements = transform_elements(shape);
    transform_image image;
    uint64_t at = KERNEL_CODES_SLOTS + TRANSFORM_CLASSES * RANS_SCALE * sizeof(uint32_t);
    image.turns = at;
    at += shape->rotary_dim / 2 * sizeof(uint64_t);
    image.means = at = codecs_align(at, IMAGE_ALIGN);
    at += elements * sizeof(float);
    image.spreads = at = codecs_align(at, IMAGE_ALIGN);
    at += elements * TRANSFORM_BANDS * sizeof(int16_t);
    image.inverse = at = codecs_align(at, IMAGE_ALIGN);
    at += image_inverse_bytes(shape);
    image.bytes = codecs_align(at, IMAGE_ALIGN);
    return image;
}

static void image_write_head(const transform_basis *basis, const transform_image *image,
                             uint8_t *target)
{
    uint32_t *bits = (uint32_t *)(void *)target;
    uint32_t *slots = bits + TRANSFORM_CLASSES;
    uint64_t *turns = (uint64_t *)(void *)(target + image->turns);
    for (uint32_t class = 1; class < TRANSFORM_CLASSES; class ++) {
        rans_decode_table table;
        bits[class] = basis->tables[class].low_bits;
        rans_fill_decode_table(&basis->tables[class].symbols, &table);
        memcpy(slots + class * RANS_SCALE, table.entry, sizeof table.entry);
    }
    for (uint32_t pair = 0; pair < basis->shape.rotary_dim / 2; pair++)
        turns[pair] = transform_turn_of(basis, pair);
}

void transform_image_write(const transform_basis *basis, uint64_t from, uint64_t count,
                           uint8_t *target)
{
    const transform_image image = transform_image_of(&basis->shape);
    const uint64_t elements = transform_elements(&basis->shape);
    const struct {
        uint64_t at, bytes;
        const void *source;
    } parts[] = {
        {image.means, elements * sizeof *basis->means, basis->means},
        {image.spreads, elements * TRANSFORM_BANDS * sizeof *basis->spreads, basis->spreads},
        {image.inverse, image_inverse_bytes(&basis->shape), basis->inverse},
    };
    assert(from <= image.bytes && count <= image.bytes - from && (uintptr_t)target % 8 == 0);
    assert(from >= image.means || (from == 0 && count >= image.means));
    memset(target, 0, count);
    if (from == 0) image_write_head(basis, &image, target);
    for (uint32_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        const uint64_t end = parts[i].at + parts[i].bytes;
        const uint64_t first = from > parts[i].at ? from : parts[i].at;
        const uint64_t behind = from + count < end ? from + count : end;
        if (first >= behind) continue;
        memcpy(target + (first - from), (const uint8_t *)parts[i].source + (first - parts[i].at),
               behind - first);
    }
}
