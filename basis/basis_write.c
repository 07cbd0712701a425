/* SPDX-License-Identifier: Apache-2.0 */
/*
 * basis_write.c - writes a basis, and reads it back before anybody else does. Pure functions.
 */
#include "basis_layout.h"

#include <assert.h>
#include <string.h>

static void basis_write_tables(const transform_basis *basis, uint8_t *target)
{
    for (uint32_t class = 1; class < TRANSFORM_CLASSES; class ++) {
        uint8_t *stored = target + class * BASIS_TABLE_BYTES;
        if (!rans_table_sound(&basis->tables[class].symbols)) continue; /* refused when read */
        stored[0] = (uint8_t)basis->tables[class].low_bits;
        stored[1] = (uint8_t)rans_write_table(&basis->tables[class].symbols,
                                              stored + BASIS_TABLE_AT, RANS_TABLE_BYTES_MAX);
    }
}

static void basis_write_header(const transform_basis *basis, const basis_origin *origin,
                               uint64_t bytes, uint8_t *target)
{
    const transform_shape *shape = &basis->shape;
    basis_header header = {
        .version = BASIS_VERSION,
        .header_bytes = BASIS_ALIGN,
        .bytes = bytes,
        .span = shape->span,
        .sides = shape->sides,
        .pairing = shape->pairing,
        .metric = shape->metric,
        .layers = shape->layers,
        .kv_heads = shape->kv_heads,
        .head_dim = shape->head_dim,
        .rotary_dim = shape->rotary_dim,
        .tokens = origin->tokens,
    };
    memcpy(header.magic, BASIS_MAGIC, sizeof header.magic);
    memcpy(header.digest, origin->digest, sizeof header.digest);
    memcpy(header.model, origin->model, sizeof header.model);
    memcpy(target, &header, sizeof header);
}

kvt_status basis_write(transform_basis *basis, const basis_origin *origin, void *target,
                       uint64_t capacity)
{
    basis_places places;
    transform_basis again;
    uint8_t *object = target;
    const transform_shape *shape = &basis->shape;
    assert(origin != NULL && target != NULL && (uintptr_t)target % 64 == 0);
    if (!basis_place(shape, &places)) return KVT_E_ARGUMENT;
    if (capacity < places.end) return KVT_E_SPACE;
    const uint32_t last = transform_span_count(shape) - 1;
    const uint64_t width = transform_width_of(shape, last);
    const uint64_t matrices = transform_matrix_at(shape, last) + width * width;
    const uint64_t elements = transform_elements(shape);
    memset(object, 0, places.end);
    basis_write_header(basis, origin, places.end, object);
    if (shape->rotary_dim > 0)
        memcpy(object + places.frequencies, basis->frequencies,
               shape->rotary_dim / 2 * sizeof(double));
    memcpy(object + places.means, basis->means, elements * sizeof(float));
    memcpy(object + places.forward, basis->forward, matrices * sizeof(uint16_t));
    memcpy(object + places.inverse, basis->inverse, matrices * sizeof(uint16_t));
    memcpy(object + places.spreads, basis->spreads, elements * TRANSFORM_BANDS * sizeof(int16_t));
    basis_write_tables(basis, object + places.tables);
    basis_hash(object, places.end, basis->hash);
    memcpy(object + BASIS_HASH_AT, basis->hash, sizeof basis->hash);
    return basis_read(object, places.end, &again, NULL);
}
