/* SPDX-License-Identifier: Apache-2.0 */
/*
 * basis_read.c - reads and checks a basis. Cheap checks come before the hash, the hash before those
 * that look at every number. Pure functions.
 */
#include "basis_layout.h"

#include <assert.h>
#include <string.h>

enum {
    /* The exponents of a matrix' elements that are not zero: products with an element or a code
     * then neither underflow nor overflow (docs/codecs/transform.md, Arithmetic). */
    BASIS_EXPONENT_MIN = 127 - 60,
    BASIS_EXPONENT_MAX = 127 + 60,
    BASIS_SPREAD_LIMIT = 60 * TRANSFORM_SPREAD_STEPS,
    BASIS_DRAWS = 2 /* vectors a span */
};

static float basis_float(uint16_t bf16)
{
    const uint32_t bits = (uint32_t)bf16 << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* 2^(spread / 8). */
static float basis_deviation(int32_t spread)
{
    static const float eighths[TRANSFORM_SPREAD_STEPS] = {1.0f,        1.09050773f, 1.18920712f,
                                                          1.29683955f, 1.41421356f, 1.54221083f,
                                                          1.68179283f, 1.83400809f};
    const int32_t whole = (spread + 128 * TRANSFORM_SPREAD_STEPS) / TRANSFORM_SPREAD_STEPS - 128;
    const uint32_t bits = (uint32_t)(127 + whole) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return power * eighths[(uint32_t)spread % TRANSFORM_SPREAD_STEPS];
}

/* A deviation in either direction for each component: the span's `draw`-th vector. */
static void basis_draw(const transform_basis *basis, uint32_t span, uint32_t draw, float *drawn)
{
    const uint32_t width = transform_width_of(&basis->shape, span);
    const int16_t *spreads = basis->spreads + (uint64_t)span * transform_width(&basis->shape);
    uint64_t state = ((uint64_t)span << 8 | draw) + UINT64_C(0x9e3779b97f4a7c15);
    for (uint32_t i = 0; i < width; i++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        const float deviation = basis_deviation(spreads[i]);
        drawn[i] = state >> 63 != 0 ? deviation : -deviation;
    }
}

/* to = from * matrix[width][width]. */
static void basis_multiply(const uint16_t *matrix, uint32_t width, const float *from, float *to)
{
    memset(to, 0, width * sizeof *to);
    for (uint32_t row = 0; row < width; row++) {
        const uint16_t *line = matrix + (uint64_t)row * width;
        for (uint32_t i = 0; i < width; i++)
            to[i] += from[row] * basis_float(line[i]);
    }
}

bool basis_inverse_holds(const transform_basis *basis, uint32_t span)
{
    float drawn[TRANSFORM_WIDTH_MAX];
    float elements[TRANSFORM_WIDTH_MAX];
    float back[TRANSFORM_WIDTH_MAX];
    const uint32_t width = transform_width_of(&basis->shape, span);
    const uint64_t at = transform_matrix_at(&basis->shape, span);
    for (uint32_t draw = 0; draw < BASIS_DRAWS; draw++) {
        double length = 0.0;
        double error = 0.0;
        basis_draw(basis, span, draw, drawn);
        basis_multiply(basis->inverse + at, width, drawn, elements);
        basis_multiply(basis->forward + at, width, elements, back);
        for (uint32_t i = 0; i < width; i++) {
            const double off = (double)back[i] - (double)drawn[i];
            length += (double)drawn[i] * (double)drawn[i];
            error += off * off;
        }
        if (!(error * 64.0 * 64.0 <= length)) return false; /* NaN is refused */
    }
    return true;
}

static bool basis_matrix_sound(const uint16_t *matrix, uint64_t count)
{
    uint32_t wrong = 0;
    for (uint64_t i = 0; i < count; i++) {
        const uint32_t magnitude = matrix[i] & 0x7fffu;
        const uint32_t exponent = magnitude >> 7;
        wrong |= magnitude != 0 && (exponent < BASIS_EXPONENT_MIN || exponent > BASIS_EXPONENT_MAX);
    }
    return wrong == 0;
}

static bool basis_numbers_sound(const transform_basis *basis)
{
    const transform_shape *shape = &basis->shape;
    const uint32_t last = transform_span_count(shape) - 1;
    const uint64_t width = transform_width_of(shape, last);
    const uint64_t matrices = transform_matrix_at(shape, last) + width * width;
    const uint64_t elements = transform_elements(shape);
    for (uint32_t i = 0; i < shape->rotary_dim / 2; i++) {
        if (!(basis->frequencies[i] >= 0.0 && basis->frequencies[i] <= 6.28)) return false;
    }
    for (uint64_t i = 0; i < elements; i++) {
        uint32_t bits;
        memcpy(&bits, &basis->means[i], sizeof bits);
        if ((bits >> 23 & 0xffu) > BASIS_EXPONENT_MAX) return false;
    }
    for (uint64_t i = 0; i < elements * TRANSFORM_BANDS; i++) {
        if (basis->spreads[i] < -BASIS_SPREAD_LIMIT || basis->spreads[i] > BASIS_SPREAD_LIMIT)
            return false;
    }
    return basis_matrix_sound(basis->forward, matrices) &&
           basis_matrix_sound(basis->inverse, matrices);
}

static bool basis_read_tables(const uint8_t *stored, transform_basis *basis)
{
    memset(basis->tables, 0, sizeof basis->tables);
    for (uint32_t class = 0; class < TRANSFORM_CLASSES; class ++, stored += BASIS_TABLE_BYTES) {
        transform_table *table = &basis->tables[class];
        const uint32_t bytes = stored[1];
        for (uint32_t i = class == 0 ? 0 : BASIS_TABLE_AT + bytes; i < BASIS_TABLE_BYTES; i++) {
            if (stored[i] != 0) return false;
        }
        if (class == 0) continue;
        table->low_bits = stored[0];
        if (bytes > RANS_TABLE_BYTES_MAX || table->low_bits > TRANSFORM_LOW_BITS_MAX) return false;
        if (bytes == 0 || rans_read_table(stored + BASIS_TABLE_AT, bytes, &table->symbols) != bytes)
            return false;
    }
    return true;
}

/* Fields of the header that say nothing of the numbers. */
static kvt_status basis_read_header(const uint8_t *object, uint64_t count, basis_header *header,
                                    basis_places *places, transform_basis *basis)
{
    if (count < BASIS_ALIGN) return KVT_E_CORRUPT;
    memcpy(header, object, sizeof *header);
    if (memcmp(header->magic, BASIS_MAGIC, sizeof header->magic) != 0) return KVT_E_CORRUPT;
    if (header->version != BASIS_VERSION) return KVT_E_VERSION;
    basis->shape = (transform_shape){
        .layers = header->layers,
        .kv_heads = header->kv_heads,
        .head_dim = header->head_dim,
        .rotary_dim = header->rotary_dim,
        .sides = header->sides,
        .pairing = header->pairing,
        .span = header->span,
        .metric = header->metric,
    };
    if (header->header_bytes != BASIS_ALIGN || header->reserved != 0) return KVT_E_CORRUPT;
    if (memchr(header->model, 0, sizeof header->model) == NULL) return KVT_E_CORRUPT;
    if (!basis_place(&basis->shape, places)) return KVT_E_CORRUPT;
    return header->bytes == count && places->end == count ? KVT_OK : KVT_E_CORRUPT;
}

kvt_status basis_read_head(const void *bytes, uint64_t count, uint64_t *bytes_out)
{
    basis_header header;
    basis_places places;
    transform_basis basis;
    *bytes_out = 0;
    if (count < BASIS_ALIGN) return KVT_E_CORRUPT;
    memcpy(&header, bytes, sizeof header);
    kvt_status status = basis_read_header(bytes, header.bytes, &header, &places, &basis);
    if (status == KVT_OK) *bytes_out = header.bytes;
    return status;
}

kvt_status basis_read(const void *bytes, uint64_t count, transform_basis *basis_out,
                      basis_origin *origin_out)
{
    basis_header header;
    basis_places places;
    const uint8_t *object = bytes;
    assert(bytes != NULL && basis_out != NULL && (uintptr_t)bytes % 64 == 0);
    kvt_status status = basis_read_header(object, count, &header, &places, basis_out);
    if (status != KVT_OK) return status;
    basis_hash(object, count, basis_out->hash);
    if (memcmp(basis_out->hash, header.hash, sizeof header.hash) != 0) return KVT_E_CORRUPT;
    /* The sections, as they lie in the object. */
    basis_out->frequencies = (const double *)(const void *)(object + places.frequencies);
    basis_out->means = (const float *)(const void *)(object + places.means);
    basis_out->forward = (const uint16_t *)(const void *)(object + places.forward);
    basis_out->inverse = (const uint16_t *)(const void *)(object + places.inverse);
    basis_out->spreads = (const int16_t *)(const void *)(object + places.spreads);
    if (!basis_numbers_sound(basis_out)) return KVT_E_CORRUPT;
    if (!basis_read_tables(object + places.tables, basis_out)) return KVT_E_CORRUPT;
    for (uint32_t span = 0; span < transform_span_count(&basis_out->shape); span++) {
        if (!basis_inverse_holds(basis_out, span)) return KVT_E_CORRUPT;
    }
    if (origin_out != NULL) {
        memcpy(origin_out->model, header.model, sizeof origin_out->model);
        memcpy(origin_out->digest, header.digest, sizeof origin_out->digest);
        origin_out->tokens = header.tokens;
    }
    return KVT_OK;
}
