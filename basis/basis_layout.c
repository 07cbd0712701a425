/* SPDX-License-Identifier: Apache-2.0 */
/*
 * basis_layout.c - where the sections of a basis lie, and its hash. Pure functions.
 */
#include "basis_layout.h"

#include "base/blake2b.h"

#include <kvterrace/rope.h>

#include <string.h>

static bool basis_shape_sound(const transform_shape *shape)
{
    const bool numbers = shape->layers >= 1 && shape->layers <= TRANSFORM_LAYERS_MAX &&
                         shape->kv_heads >= 1 && shape->kv_heads <= TRANSFORM_WIDTH_MAX &&
                         shape->head_dim >= 1 && shape->head_dim <= TRANSFORM_WIDTH_MAX &&
                         shape->sides >= 1 && shape->sides <= 2;
    if (!numbers || shape->span < TRANSFORM_SPAN_HEAD || shape->span > TRANSFORM_SPAN_LAYERS4)
        return false;
    if ((uint64_t)shape->kv_heads * shape->head_dim > TRANSFORM_WIDTH_MAX) return false;
    if (transform_width(shape) > TRANSFORM_WIDTH_MAX) return false;
    return shape->rotary_dim % 2 == 0 && shape->rotary_dim <= shape->head_dim &&
           shape->pairing <= KVT_ROPE_NEIGHBOURS && shape->metric <= TRANSFORM_METRIC_BOTH;
}

/* Returns where a section starts, and moves past it. */
static uint64_t basis_section(uint64_t *at, uint64_t bytes)
{
    const uint64_t start = *at;
    *at += (bytes + BASIS_ALIGN - 1) / BASIS_ALIGN * BASIS_ALIGN;
    return start;
}

bool basis_place(const transform_shape *shape, basis_places *places_out)
{
    if (!basis_shape_sound(shape)) return false;
    const uint32_t last = transform_span_count(shape) - 1;
    const uint64_t width = transform_width_of(shape, last);
    const uint64_t elements = transform_elements(shape);
    const uint64_t matrices = transform_matrix_at(shape, last) + width * width;
    uint64_t at = BASIS_ALIGN;
    places_out->frequencies = basis_section(&at, shape->rotary_dim / 2 * sizeof(double));
    places_out->means = basis_section(&at, elements * sizeof(float));
    places_out->forward = basis_section(&at, matrices * sizeof(uint16_t));
    places_out->inverse = basis_section(&at, matrices * sizeof(uint16_t));
    places_out->spreads = basis_section(&at, elements * TRANSFORM_BANDS * sizeof(int16_t));
    places_out->tables = basis_section(&at, TRANSFORM_CLASSES * BASIS_TABLE_BYTES);
    places_out->end = at;
    return true;
}

void basis_hash(const void *bytes, uint64_t count, uint8_t hash_out[TRANSFORM_HASH_BYTES])
{
    static const uint8_t zeros[TRANSFORM_HASH_BYTES] = {0};
    const uint8_t *source = bytes;
    blake2b hash;
    blake2b_begin(&hash, TRANSFORM_HASH_BYTES);
    blake2b_add(&hash, source, BASIS_HASH_AT);
    blake2b_add(&hash, zeros, sizeof zeros);
    blake2b_add(&hash, source + BASIS_HASH_AT + sizeof zeros, count - BASIS_HASH_AT - sizeof zeros);
    blake2b_end(&hash, hash_out);
}

kvt_status basis_bytes(const transform_shape *shape, uint64_t *bytes_out)
{
    basis_places places;
    *bytes_out = 0;
    if (!basis_place(shape, &places)) return KVT_E_ARGUMENT;
    *bytes_out = places.end;
    return KVT_OK;
}
