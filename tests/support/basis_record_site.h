/* SPDX-License-Identifier: Apache-2.0 */
/*
 * basis_record_site.h - an entry drawn as a basis says that its tokens are, and its record, for the
 * tests of records that need a basis. Single thread.
 */
#ifndef SUPPORT_BASIS_RECORD_SITE_H
#define SUPPORT_BASIS_RECORD_SITE_H

#include "codecs/view_rows.h"
#include "transform_site.h"

#include "codecs/kernels/checksum.h"
#include "codecs/record_format.h"

typedef struct basis_record {
    basis_made made;
    const transform_basis *list[1];
    kvt_record_spec spec;
    uint64_t bound, head_bytes;
    guarded source, record, scratch, decoded;
    kvt_status status; /* of the encoding */
} basis_record;

/* The list points into the struct itself, which is returned by value: set before each use. */
static inline void basis_record_bind(basis_record *r)
{
    r->list[0] = &r->made.basis;
    r->made.basis.frequencies = r->made.frequencies;
    r->spec.bases = (kvt_record_bases){r->list, 1};
}

/* Draws segment by segment what encoding without sinks would see; fp8 as fp32. */
static inline void basis_record_draw(basis_record *r, uint64_t seed)
{
    const kvt_layout *layout = &r->spec.layout;
    const transform_shape *shape = &r->made.basis.shape;
    const uint64_t matrix = kvt_layout_matrix_bytes(layout);
    const bool narrow = layout->dtype == KVT_DTYPE_FP8;
    for (uint32_t s = 0; s < transform_segment_count(shape); s++) {
        transform_site site =
            site_make((transform_segment){.basis = &r->made.basis,
                                          .index = s,
                                          .first_position = r->spec.first_position,
                                          .tokens = layout->tokens,
                                          .step = 64,
                                          .dtype = narrow ? KVT_DTYPE_FP32 : layout->dtype},
                      seed + s);
        for (uint32_t m = 0; m < site.matrix_count; m++) {
            uint8_t *to = r->source.data + (site_first_matrix(&site.segment) + m) * matrix;
            for (uint64_t i = 0; narrow && i < matrix; i++)
                to[i] = half_fp8_from_float(site_element(&site, m, i, false));
            if (!narrow) memcpy(to, site.matrices[m], matrix);
        }
    }
}

static inline kvt_status basis_record_encode(basis_record *r, guarded *record,
                                             const kvt_codec_workers *workers, uint64_t *written)
{
    basis_record_bind(r);
    const kvt_status status = kvt_record_encode_parallel(
        &r->spec, NULL, workers, r->source.data, r->source.bytes, record->data, record->bytes,
        r->scratch.data, r->scratch.bytes, written);
    guarded_check(record, record->bytes);
    return status;
}

/* With exactly the scratch that the record asks for. */
static inline kvt_status basis_record_decode(basis_record *r, const kvt_record_spec *expected)
{
    kvt_record_info info;
    basis_record_bind(r);
    const kvt_status parsed = kvt_record_parse(r->record.data, r->record.bytes, &info);
    if (parsed != KVT_OK) return parsed;
    guarded scratch = guarded_make(info.scratch_bytes);
    const kvt_status status =
        kvt_record_decode(r->record.data, r->record.bytes, expected, r->decoded.data,
                          r->decoded.bytes, scratch.data, scratch.bytes);
    guarded_check(&scratch, scratch.bytes);
    guarded_check(&r->decoded, r->decoded.bytes);
    return status;
}

/* Encodes the source again, and decodes it. */
static inline void basis_record_again(basis_record *r)
{
    kvt_record_info info;
    uint64_t written;
    r->record.bytes = r->bound;
    memset(r->record.data, GUARD_VALUE, r->bound);
    r->status = basis_record_encode(r, &r->record, NULL, &written);
    assert_true(r->status == KVT_OK || r->status == KVT_RAW);
    guarded_check(&r->scratch, r->scratch.bytes);
    r->record.bytes = written;
    assert_status(kvt_record_verify(r->record.data, written, &info), KVT_OK);
    r->head_bytes = info.head_bytes;
    assert_status(basis_record_decode(r, &r->spec), KVT_OK);
}

static inline void basis_record_rooms(basis_record *r)
{
    uint64_t bytes, scratch;
    basis_record_bind(r);
    assert_status(kvt_layout_bytes(&r->spec.layout, &bytes), KVT_OK);
    assert_status(kvt_record_bound(&r->spec, &r->bound, &scratch), KVT_OK);
    r->source = guarded_make(bytes);
    r->decoded = guarded_make(bytes);
    r->record = guarded_make(r->bound);
    r->scratch = guarded_make(scratch);
}

static inline basis_record basis_record_of(transform_shape shape, uint8_t dtype, uint32_t tokens,
                                           uint32_t first, uint16_t step)
{
    basis_record r = {.made = basis_made_of(shape, 77)};
    assert_status(basis_made_write(&r.made), KVT_OK);
    r.spec = (kvt_record_spec){.key = {{1, 2, 3}},
                               .generation = 9,
                               .layout = {.layers = (uint16_t)shape.layers,
                                          .kv_heads = (uint16_t)shape.kv_heads,
                                          .head_dim = (uint16_t)shape.head_dim,
                                          .dtype = dtype,
                                          .tokens = tokens,
                                          .sides = shape.sides == 1 ? KVT_SIDES_ONE : 0},
                               .variant = {KVT_CODEC_TRANSFORM, TRANSFORM_MODE,
                                           transform_hash_start(r.made.basis.hash) << 10 | step},
                               .first_position = first};
    basis_record_rooms(&r);
    basis_record_draw(&r, 5);
    basis_record_again(&r);
    return r;
}

/* Six layers of two heads of 16, so that the last span of four layers is short. */
static inline basis_record basis_record_make(uint8_t span, uint8_t dtype, uint32_t tokens,
                                             uint32_t first, uint16_t step)
{
    const transform_shape shape = {
        .layers = 6, .kv_heads = 2, .head_dim = 16, .rotary_dim = 16, .sides = 2, .span = span};
    return basis_record_of(shape, dtype, tokens, first, step);
}

/* The entry of the first tokens, with a copy of the basis. */
static inline basis_record basis_record_prefix(basis_record *whole, uint32_t tokens)
{
    basis_record r = {.made = basis_made_of(whole->made.basis.shape, 77), .spec = whole->spec};
    const uint64_t matrix = kvt_layout_matrix_bytes(&whole->spec.layout);
    assert_status(basis_made_write(&r.made), KVT_OK);
    r.spec.layout.tokens = tokens;
    basis_record_rooms(&r);
    const uint64_t cut = kvt_layout_matrix_bytes(&r.spec.layout);
    for (uint64_t m = 0; m < r.source.bytes / cut; m++)
        memcpy(r.source.data + m * cut, whole->source.data + m * matrix, cut);
    basis_record_again(&r);
    return r;
}

/* Puts a number that is none into a matrix, and encodes again. */
static inline void basis_record_spoil(basis_record *r, uint32_t matrix)
{
    const kvt_layout *layout = &r->spec.layout;
    const uint64_t bytes = kvt_layout_matrix_bytes(layout);
    codecs_element_store(r->source.data + matrix * bytes,
                         bytes / kvt_dtype_bytes(layout->dtype) / 2 + 11, layout->dtype, INFINITY);
    basis_record_again(r);
}

/* Whether the record holds a matrix as it is. */
static inline bool basis_record_is_raw(const basis_record *r, uint32_t matrix)
{
    const uint8_t level = r->record.data[RECORD_LEVELS_AT + matrix / 2];
    return (matrix % 2 == 0 ? level & 15 : level >> 4) == RECORD_LEVEL_RAW;
}

/* Flips bits of the header, and seals it again. */
static inline void basis_record_edit(basis_record *r, uint64_t at, uint8_t bits)
{
    r->record.data[at] ^= bits;
    record_seal_slot(r->record.data);
}

/* Sinks and raw matrices are as they were, all else is near, but not the same. */
static inline void basis_record_check_values(const basis_record *r)
{
    const kvt_layout *layout = &r->spec.layout;
    const uint64_t matrix = kvt_layout_matrix_bytes(layout);
    const uint64_t row = matrix / layout->tokens;
    const uint64_t sinks = r->spec.first_position < 4 ? 4 - r->spec.first_position : 0;
    for (uint32_t m = 0; m < 12; m++) {
        const uint8_t *source = r->source.data + m * matrix;
        const uint8_t *decoded = r->decoded.data + m * matrix;
        if (basis_record_is_raw(r, m)) {
            assert_memory_equal(source, decoded, matrix);
            continue;
        }
        assert_memory_equal(source, decoded, sinks * row);
        assert_memory_not_equal(source, decoded, matrix);
        for (uint64_t i = 0; i < matrix / kvt_dtype_bytes(layout->dtype); i++) {
            const float x = codecs_element_load(source, i, layout->dtype);
            const float y = codecs_element_load(decoded, i, layout->dtype);
            if (!(fabsf(x - y) < 6.0f)) fail_msg("matrix %u: %g is %g", m, (double)x, (double)y);
        }
    }
}

/* What the record decodes to is what transform_decode gives for the coded tokens: within half a
 * step in the metric, as the tests of segments say. */
static inline void basis_record_check_segments(basis_record *r)
{
    const kvt_layout *layout = &r->spec.layout;
    const uint64_t matrix = kvt_layout_matrix_bytes(layout);
    const uint64_t row = matrix / layout->tokens;
    const uint32_t sinks = r->spec.first_position < 4 ? 4 - r->spec.first_position : 0;
    const transform_shape *shape = &r->made.basis.shape;
    for (uint32_t s = 0; s < transform_segment_count(shape); s++) {
        transform_site site =
            site_make((transform_segment){.basis = &r->made.basis,
                                          .index = s,
                                          .first_position = r->spec.first_position + sinks,
                                          .tokens = layout->tokens - sinks,
                                          .step = (uint16_t)(r->spec.variant.rate & 1023),
                                          .dtype = layout->dtype},
                      1);
        const uint32_t first = site_first_matrix(&site.segment);
        for (uint32_t m = 0; m < site.matrix_count; m++)
            memcpy(site.matrices[m], r->source.data + (first + m) * matrix + sinks * row,
                   site.matrix_bytes);
        assert_status(site_encode(&site), KVT_OK);
        assert_status(site_decode(&site, 0, site.segment.tokens), KVT_OK);
        for (uint32_t m = 0; m < site.matrix_count; m++)
            assert_memory_equal(site.decoded[m].data,
                                r->decoded.data + (first + m) * matrix + sinks * row,
                                site.matrix_bytes);
    }
}

static inline void basis_record_check_matrices(basis_record *r, uint32_t layer)
{
    const uint64_t matrix = kvt_layout_matrix_bytes(&r->spec.layout);
    guarded one = guarded_make(matrix);
    basis_record_bind(r);
    for (uint32_t side = 0; side < 2; side++) {
        assert_status(kvt_record_decode_matrix(r->record.data, r->record.bytes, &r->spec.bases,
                                               layer, (kvt_side)side, one.data, matrix,
                                               r->scratch.data, r->scratch.bytes),
                      KVT_OK);
        assert_memory_equal(one.data, r->decoded.data + (2 * layer + side) * matrix, matrix);
        guarded_check(&one, matrix);
    }
}

/* One layer through an opened head, of the whole record or of its ranges and nothing else. */
static inline void basis_record_check_layer(basis_record *r, uint32_t layer, bool ranged)
{
    const uint64_t matrix = kvt_layout_matrix_bytes(&r->spec.layout);
    kvt_record_range ranges[KVT_RECORD_RANGES_MAX];
    _Alignas(8) uint8_t memory[16384];
    uint64_t kept;
    uint32_t count;
    basis_record_bind(r);
    assert_status(kvt_record_head_open(r->record.data, r->record.bytes, true, &r->spec, memory,
                                       sizeof memory, &kept),
                  KVT_OK);
    const kvt_record_head *head = (const kvt_record_head *)(void *)memory;
    assert_status(kvt_record_head_ranges(head, layer, 1, ranges, KVT_RECORD_RANGES_MAX, &count),
                  KVT_OK);
    const uint64_t bytes = count == 0 ? 0 : ranges[count - 1].at + ranges[count - 1].bytes;
    uint8_t *payload = test_aligned(4096, bytes + 4096);
    guarded target = guarded_make(r->decoded.bytes);
    for (uint32_t i = 0; i < count; i++)
        memcpy(payload + ranges[i].at, r->record.data + ranges[i].offset, ranges[i].bytes);
    const kvt_view view = codecs_packed_view(&r->spec.layout, target.data);
    assert_status(kvt_record_head_decode(head, &r->spec.layout, &view, layer, 1,
                                         ranged ? payload : r->record.data, ranged ? ranges : NULL,
                                         ranged ? count : 0, r->scratch.data, r->scratch.bytes),
                  KVT_OK);
    assert_memory_equal(target.data + 2 * layer * matrix, r->decoded.data + 2 * layer * matrix,
                        2 * matrix);
    guarded_check(&target, 2 * (layer + 1) * matrix);
}

static inline void basis_record_check_layers(basis_record *r, uint32_t first, uint32_t count)
{
    const uint64_t matrix = kvt_layout_matrix_bytes(&r->spec.layout);
    const uint32_t end = count == 0 ? r->spec.layout.layers : first + count;
    guarded target = guarded_make(r->decoded.bytes);
    const kvt_view view = codecs_packed_view(&r->spec.layout, target.data);
    basis_record_bind(r);
    assert_status(kvt_record_decode_view(r->record.data, r->record.bytes, &r->spec, NULL,
                                         &r->spec.layout, &view, first, count, r->scratch.data,
                                         r->scratch.bytes),
                  KVT_OK);
    assert_memory_equal(target.data + 2 * first * matrix, r->decoded.data + 2 * first * matrix,
                        2 * (end - first) * matrix);
    for (uint64_t i = 0; i < 2 * first * matrix; i++)
        assert_int_equal(target.data[i], GUARD_VALUE);
    guarded_check(&target, 2 * end * matrix);
}

static inline void basis_record_run(void *context, uint32_t tasks, kvt_codec_task task,
                                    void *argument)
{
    (void)context;
    for (uint32_t i = tasks; i-- > 0;)
        task(argument, i, i % 3);
}

/* Three workers, from and into packed memory or a pool of blocks: the same record and values. */
static inline void basis_record_check_workers(basis_record *r, bool apart)
{
    static const uint32_t blocks[] = {4, 0, 2, 1, 3};
    const kvt_codec_workers workers = {sizeof workers, 3, basis_record_run, NULL};
    const kvt_layout *layout = &r->spec.layout;
    guarded again = guarded_make(r->bound), pool;
    kvt_view view;
    uint64_t written, scratch_bytes;
    basis_record_bind(r);
    assert_status(kvt_record_scratch_view(&r->spec, 3, &scratch_bytes), KVT_OK);
    guarded scratch = guarded_make(scratch_bytes);
    assert_true(layout->tokens <= 5 * 32);
    assert_status(kvt_view_make(layout, "blsth", 32, 5, &view), KVT_OK);
    pool = guarded_make(apart ? view.base_bytes[0] : r->source.bytes);
    if (!apart) view = codecs_packed_view(layout, pool.data);
    view.base[0] = pool.data;
    if (apart) view.blocks = blocks;
    view_scatter_entry(&view, layout, 0, 0, r->source.data);
    const kvt_status status = kvt_record_encode_view(
        &r->spec, &workers, &view, again.data, again.bytes, scratch.data, scratch.bytes, &written);
    assert_status(status, r->status);
    assert_int_equal(written, r->record.bytes);
    assert_memory_equal(again.data, r->record.data, written);
    guarded_check(&scratch, scratch.bytes);
    memset(pool.data, 0x77, pool.bytes);
    assert_status(kvt_record_decode_view(again.data, written, &r->spec, &workers, layout, &view, 0,
                                         0, scratch.data, scratch.bytes),
                  KVT_OK);
    guarded_check(&scratch, scratch.bytes);
    guarded_check(&pool, pool.bytes);
    guarded packed = guarded_make(r->decoded.bytes);
    view_gather_entry(&view, layout, packed.data);
    assert_memory_equal(packed.data, r->decoded.data, r->decoded.bytes);
}

#endif
