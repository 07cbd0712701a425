/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kept.c - writes and checks the kept form. Little-endian, as every form of this project:
 *
 *     0   "KVTSPRS1"        8  u32 version (6)     12  u32 unit; the head entry: UINT32_MAX
 *    16   u64 id           24  u32 layers, kv_heads, head_dim, dtype
 *    40   u32 tokens, sinks, zone, segment, page tokens, variants, row bytes
 *    68   u32 clusters, local tokens, slot bytes
 *    80   u64 index (with its slopes, where it has them), code, sums bytes
 *   104   u64 keep
 *   112   u32 bytes of an index key; u32 0, or the sides where the model selects
 *   120   u64 XXH3-64 of everything behind it up to the pages, seeded with that of all before it
 *   128   index | slopes | code | sums | sinks K, V | local K, V | zeros up to 4 KiB | pages
 *
 * Thread rule: re-entrant.
 */
#include "kept.h"

#include <assert.h>
#include <string.h>
#include <xxhash.h>

#include "page_table.h"
#include "sparse_kernels.h"

#define KEPT_MAGIC    "KVTSPRS1"
#define KEPT_VERSION  6u
#define KEPT_HEAD     UINT32_MAX
#define KEPT_SUM_AT   120u
#define KEPT_SHAPE_AT 16u
#define KEPT_SIZES_AT 68u
#define KEPT_KEEP_AT  104u
#define KEPT_GIVEN_AT 112u

static void put32(uint8_t *at, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        at[i] = (uint8_t)(value >> 8 * i);
}

static void put64(uint8_t *at, uint64_t value)
{
    put32(at, (uint32_t)value);
    put32(at + 4, (uint32_t)(value >> 32));
}

static uint32_t get32(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static uint64_t get64(const uint8_t *at)
{
    return get32(at) | (uint64_t)get32(at + 4) << 32;
}

static uint64_t checksum(const uint8_t *bytes, uint64_t end)
{
    const uint64_t seed = XXH3_64bits(bytes, KEPT_SUM_AT);
    return XXH3_64bits_withSeed(bytes + SPARSE_KEPT_HEAD_BYTES, end - SPARSE_KEPT_HEAD_BYTES, seed);
}

/* ---- writing ---- */

uint64_t sparse_kept_bytes(const sparse_kept_unit *unit, uint64_t *pages_at_out)
{
    uint64_t at = SPARSE_KEPT_HEAD_BYTES + unit->index_bytes + unit->slope_bytes +
                  unit->code_bytes + unit->sums_bytes + unit->sinks_bytes + unit->local_bytes;
    at = sparse_whole_grains(at);
    if (pages_at_out != NULL) *pages_at_out = at;
    return at + unit->pages_bytes;
}

static void write_front(const sparse_kept_shape *shape, uint32_t number, uint8_t *target)
{
    const uint32_t numbers[] = {shape->layers,      shape->kv_heads,       shape->head_dim,
                                shape->dtype,       shape->tokens,         shape->sink_tokens,
                                shape->zone_tokens, shape->segment_tokens, shape->page_tokens,
                                shape->variants,    shape->row_bytes};
    memset(target, 0, SPARSE_KEPT_HEAD_BYTES);
    memcpy(target, KEPT_MAGIC, 8);
    put32(target + 8, KEPT_VERSION);
    put32(target + 12, number);
    put64(target + KEPT_SHAPE_AT, shape->id);
    for (uint32_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        put32(target + KEPT_SHAPE_AT + 8 + 4 * i, numbers[i]);
    put64(target + KEPT_KEEP_AT, shape->keep);
    put32(target + KEPT_GIVEN_AT, shape->key_bytes);
    put32(target + KEPT_GIVEN_AT + 4, shape->given);
}

void sparse_kept_write_head(const sparse_kept_shape *shape, uint8_t *target)
{
    write_front(shape, KEPT_HEAD, target);
    put64(target + KEPT_SUM_AT, checksum(target, SPARSE_KEPT_HEAD_BYTES));
}

void sparse_kept_write_keys(const sparse_kept_shape *shape, uint32_t number, const uint8_t *keys,
                            uint32_t tokens, uint8_t *target)
{
    const uint64_t bytes = (uint64_t)tokens * shape->key_bytes;
    write_front(shape, number, target);
    put32(target + KEPT_SIZES_AT, tokens);
    if (bytes > 0) memcpy(target + SPARSE_KEPT_HEAD_BYTES, keys, bytes);
    put64(target + KEPT_SUM_AT, checksum(target, SPARSE_KEPT_HEAD_BYTES + bytes));
}

void sparse_kept_write(const sparse_kept_shape *shape, const sparse_kept_unit *unit,
                       uint8_t *target)
{
    const uint8_t *const parts[] = {unit->index, unit->slopes, unit->code,
                                    unit->sums,  unit->sinks,  unit->local};
    const uint64_t bytes[] = {unit->index_bytes, unit->slope_bytes, unit->code_bytes,
                              unit->sums_bytes,  unit->sinks_bytes, unit->local_bytes};
    uint64_t pages_at;
    (void)sparse_kept_bytes(unit, &pages_at);
    write_front(shape, unit->number, target);
    put32(target + KEPT_SIZES_AT, unit->clusters);
    put32(target + 72, unit->local_tokens);
    put32(target + 76, unit->slot_bytes);
    put64(target + 80, unit->index_bytes + unit->slope_bytes);
    put64(target + 88, unit->code_bytes);
    put64(target + 96, unit->sums_bytes);
    uint64_t at = SPARSE_KEPT_HEAD_BYTES;
    for (int i = 0; i < 6; i++) {
        if (bytes[i] > 0) memcpy(target + at, parts[i], bytes[i]);
        at += bytes[i];
    }
    memset(target + at, 0, pages_at - at);
    put64(target + KEPT_SUM_AT, checksum(target, pages_at));
}

/* ---- reading ---- */

static kvt_status read_front(const uint8_t *bytes, uint64_t size, uint32_t *number_out,
                             sparse_kept_shape *shape_out)
{
    if (size < SPARSE_KEPT_HEAD_BYTES || memcmp(bytes, KEPT_MAGIC, 8) != 0) return KVT_E_CORRUPT;
    if (get32(bytes + 8) != KEPT_VERSION) return KVT_E_VERSION;
    const uint8_t *at = bytes + KEPT_SHAPE_AT + 8;
    *number_out = get32(bytes + 12);
    *shape_out = (sparse_kept_shape){.id = get64(bytes + KEPT_SHAPE_AT),
                                     .keep = get64(bytes + KEPT_KEEP_AT),
                                     .layers = get32(at),
                                     .kv_heads = get32(at + 4),
                                     .head_dim = get32(at + 8),
                                     .dtype = get32(at + 12),
                                     .tokens = get32(at + 16),
                                     .sink_tokens = get32(at + 20),
                                     .zone_tokens = get32(at + 24),
                                     .segment_tokens = get32(at + 28),
                                     .page_tokens = get32(at + 32),
                                     .variants = get32(at + 36),
                                     .row_bytes = get32(at + 40),
                                     .key_bytes = get32(bytes + KEPT_GIVEN_AT),
                                     .given = get32(bytes + KEPT_GIVEN_AT + 4)};
    return KVT_OK;
}

static bool is_zero(const uint8_t *bytes, uint32_t begin, uint32_t end)
{
    for (uint32_t i = begin; i < end; i++)
        if (bytes[i] != 0) return false;
    return true;
}

/* Whether a sequence can have the shape: a delete goes by it alone. */
static bool shape_is_sound(const sparse_kept_shape *shape)
{
    return shape->layers != 0 && shape->layers <= UINT16_MAX && shape->kv_heads != 0 &&
           shape->kv_heads <= UINT16_MAX &&
           (uint64_t)shape->layers * shape->kv_heads <= SPARSE_UNITS_MAX && shape->tokens != 0 &&
           shape->given <= 2 && shape->key_bytes <= SPARSE_KEY_BYTES_MAX &&
           (shape->given > 0 || shape->key_bytes == 0) &&
           (uint64_t)shape->sink_tokens + shape->zone_tokens <= shape->tokens;
}

kvt_status sparse_kept_read_head(const uint8_t *bytes, uint64_t size, sparse_kept_shape *shape_out)
{
    uint32_t number;
    sparse_kept_shape shape;
    kvt_status status = read_front(bytes, size, &number, &shape);
    if (status != KVT_OK) return status;
    if (number != KEPT_HEAD || size != SPARSE_KEPT_HEAD_BYTES ||
        get64(bytes + KEPT_SUM_AT) != checksum(bytes, size) ||
        !is_zero(bytes, KEPT_SIZES_AT, KEPT_KEEP_AT) || !shape_is_sound(&shape))
        return KVT_E_CORRUPT;
    *shape_out = shape;
    return KVT_OK;
}

static bool same_shape(const sparse_kept_shape *a, const sparse_kept_shape *b)
{
    return a->id == b->id && a->keep == b->keep && a->layers == b->layers &&
           a->kv_heads == b->kv_heads && a->head_dim == b->head_dim && a->dtype == b->dtype &&
           a->tokens == b->tokens && a->sink_tokens == b->sink_tokens &&
           a->zone_tokens == b->zone_tokens && a->segment_tokens == b->segment_tokens &&
           a->page_tokens == b->page_tokens && a->variants == b->variants &&
           a->row_bytes == b->row_bytes && a->key_bytes == b->key_bytes && a->given == b->given;
}

/* The sizes that a unit has by its shape and its two free numbers; whatever the bytes say is
 * compared with them. */
static kvt_status expect_sizes(const sparse_kept_shape *shape, const sparse_paging *paging,
                               sparse_kept_unit *unit)
{
    if (unit->clusters > paging->tokens || unit->local_tokens > UINT32_MAX / 2)
        return KVT_E_CORRUPT;
    if (shape->given == 0 && (unit->clusters == 0) != (paging->tokens == 0)) return KVT_E_CORRUPT;
    if (shape->given > 0 && unit->clusters > 1) return KVT_E_CORRUPT;
    unit->index_bytes = unit->clusters * (uint64_t)paging->tokens * sizeof(uint32_t);
    unit->code_bytes = 0;
    if (shape->given == 0) {
        unit->index_bytes = sparse_index_bytes(shape->head_dim, paging->tokens, unit->clusters, 0);
        unit->code_bytes = sparse_code_bytes(paging);
    }
    const uint64_t row = (uint64_t)shape->row_bytes * (shape->given == 1 ? 1 : 2);
    unit->sums_bytes = (uint64_t)paging->pages * SPARSE_SECTIONS * sizeof(uint32_t);
    unit->sinks_bytes = shape->sink_tokens * row;
    unit->local_bytes = unit->local_tokens * row;
    unit->slot_bytes = sparse_slot_bytes(paging, shape->variants, NULL);
    unit->pages_bytes = (uint64_t)paging->pages * unit->slot_bytes;
    return KVT_OK;
}

kvt_status sparse_kept_read(const sparse_kept_shape *shape, const sparse_paging *paging,
                            uint32_t number, const uint8_t *bytes, uint64_t size,
                            sparse_kept_unit *unit_out)
{
    sparse_kept_shape own;
    sparse_kept_unit unit = {.number = 0};
    uint64_t pages_at;
    kvt_status status = read_front(bytes, size, &unit.number, &own);
    if (status != KVT_OK) return status;
    if (unit.number != number || !same_shape(shape, &own)) return KVT_E_MISMATCH;
    unit.clusters = get32(bytes + KEPT_SIZES_AT);
    unit.local_tokens = get32(bytes + 72);
    status = expect_sizes(shape, paging, &unit);
    if (status != KVT_OK) return status;
    const uint64_t index = get64(bytes + 80);
    if (shape->given == 0 && index != unit.index_bytes)
        unit.slope_bytes = sparse_index_slope_bytes(shape->head_dim, unit.clusters);
    if (get32(bytes + 76) != unit.slot_bytes || index != unit.index_bytes + unit.slope_bytes ||
        get64(bytes + 88) != unit.code_bytes || get64(bytes + 96) != unit.sums_bytes ||
        sparse_kept_bytes(&unit, &pages_at) != size ||
        get64(bytes + KEPT_SUM_AT) != checksum(bytes, pages_at))
        return KVT_E_CORRUPT;
    unit.index = bytes + SPARSE_KEPT_HEAD_BYTES;
    unit.slopes = unit.index + unit.index_bytes;
    unit.code = unit.slopes + unit.slope_bytes;
    unit.sums = unit.code + unit.code_bytes;
    unit.sinks = unit.sums + unit.sums_bytes;
    unit.local = unit.sinks + unit.sinks_bytes;
    unit.pages = bytes + pages_at;
    *unit_out = unit;
    return KVT_OK;
}

kvt_status sparse_kept_read_keys(const sparse_kept_shape *shape, uint32_t number,
                                 const uint8_t *bytes, uint64_t size, const uint8_t **keys_out,
                                 uint32_t *tokens_out)
{
    sparse_kept_shape own;
    uint32_t part;
    kvt_status status = read_front(bytes, size, &part, &own);
    if (status != KVT_OK) return status;
    if (part != number || !same_shape(shape, &own)) return KVT_E_MISMATCH;
    const uint32_t tokens = get32(bytes + KEPT_SIZES_AT);
    if (!is_zero(bytes, KEPT_SIZES_AT + 4, KEPT_KEEP_AT) ||
        size != SPARSE_KEPT_HEAD_BYTES + (uint64_t)tokens * shape->key_bytes ||
        get64(bytes + KEPT_SUM_AT) != checksum(bytes, size))
        return KVT_E_CORRUPT;
    *keys_out = bytes + SPARSE_KEPT_HEAD_BYTES;
    *tokens_out = tokens;
    return KVT_OK;
}

static bool are_within(const float *values, uint32_t count, float most)
{
    for (uint32_t i = 0; i < count; i++)
        if (!(values[i] >= 0.0f && values[i] <= most)) return false;
    return true;
}

/* Whether sketches can be scored: the parts of an axis are finite, steps and centre in bounds. */
static bool sketch_is_sound(const sparse_index *index)
{
    const uint32_t axes = index->axes > 0 ? index->axes - 1 : 0;
    for (uint32_t i = 0; i < axes * index->head_dim; i++)
        if ((index->axis[i] & 0x7c00) == 0x7c00) return false;
    for (uint32_t d = 0; index->axes > 0 && d < index->head_dim; d++)
        if (!(fabsf(index->centre[d]) <= SPARSE_ELEMENT_MAX)) return false;
    return are_within(index->axis_step, index->axes, SPARSE_ELEMENT_MAX);
}

/* Whether an index of foreign bytes can be used: places ascend over whole clusters, positions lie
 * in their segments, steps and scatters are within their bounds. */
static bool index_is_sound(const sparse_index *index)
{
    const uint32_t padded = index->lanes;
    if (index->first[0] != 0) return false;
    for (uint32_t c = 0; c < padded; c++) {
        const uint32_t begin = index->first[c], end = index->first[c + 1];
        if (c < index->clusters ? end <= begin : end != begin) return false;
    }
    if (index->first[padded] != index->tokens || !sketch_is_sound(index)) return false;
    if (!are_within(index->key_step, index->head_dim, SPARSE_ELEMENT_MAX) ||
        !are_within(index->value_step, index->head_dim, SPARSE_ELEMENT_MAX))
        return false;
    if (!are_within(index->key_scatter, index->head_dim, SPARSE_DEVIATION_MAX) ||
        !are_within(index->slope, index->slopes != NULL ? padded : 0, SPARSE_ELEMENT_MAX) ||
        !are_within(index->scatter, padded, SPARSE_SCATTER_MAX))
        return false;
    const uint32_t segments = sparse_segment_count(index->tokens, index->segment_tokens);
    for (uint32_t s = 0; s < segments; s++) {
        const uint32_t first = sparse_segment_first(index->tokens, index->segment_tokens, s);
        const uint32_t end = sparse_segment_first(index->tokens, index->segment_tokens, s + 1);
        for (uint32_t place = first; place < end; place++)
            if (index->position[place] >= end - first) return false;
    }
    return true;
}

kvt_status sparse_kept_index(const sparse_kept_shape *shape, const sparse_kept_unit *unit,
                             sparse_index *index_out)
{
    *index_out =
        (sparse_index){.head_dim = shape->head_dim, .segment_tokens = shape->segment_tokens};
    if (shape->given > 0) return KVT_OK;
    /* Without a zone there are no clusters, and steps of zeros, which appended ones widen. */
    kvt_status status = sparse_index_make(shape->head_dim, shape->segment_tokens,
                                          shape->zone_tokens, unit->clusters, 0, index_out);
    if (status != KVT_OK) return status;
    assert(index_out->bytes == unit->index_bytes);
    memcpy(index_out->memory, unit->index, unit->index_bytes);
    if (unit->slope_bytes > 0) {
        status = sparse_index_add_slopes(index_out);
        if (status == KVT_OK) memcpy(index_out->slopes, unit->slopes, unit->slope_bytes);
    }
    if (status == KVT_OK && index_is_sound(index_out)) return KVT_OK;
    sparse_index_free(index_out);
    return status != KVT_OK ? status : KVT_E_CORRUPT;
}
