/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_basis_file.c - a basis is written and read back; shapes, and every check of the reader.
 */

#include "basis/basis_layout.h"
#include "basis_support.h"
#include "cases.h"

static const transform_shape head_shape = {
    .layers = 3, .kv_heads = 2, .head_dim = 16, .rotary_dim = 16, .sides = 2, .span = 1};

static void assert_is(kvt_status got, kvt_status wanted)
{
    assert_string_equal(kvt_status_name(got), kvt_status_name(wanted));
}

/* The object with its hash made right again, so that what stands behind the hash is reached. */
static kvt_status read_sealed(uint8_t *object, uint64_t bytes)
{
    transform_basis basis;
    basis_hash(object, bytes, object + BASIS_HASH_AT);
    return basis_read(object, bytes, &basis, NULL);
}

static void check_round_trip(transform_shape shape)
{
    basis_made made = basis_made_of(shape, 7);
    transform_basis read;
    basis_origin origin;
    const uint32_t spans = transform_span_count(&shape);
    const uint64_t width = transform_width_of(&shape, spans - 1);
    const uint64_t matrices = transform_matrix_at(&shape, spans - 1) + width * width;
    assert_is(basis_made_write(&made), KVT_OK);
    assert_is(basis_read(made.object, made.bytes, &read, &origin), KVT_OK);
    assert_memory_equal(&read.shape, &made.basis.shape, sizeof read.shape);
    assert_memory_equal(read.hash, made.basis.hash, sizeof read.hash);
    const uint64_t elements = transform_elements(&shape);
    assert_memory_equal(read.means, made.means, elements * sizeof(float));
    assert_memory_equal(read.spreads, made.spreads, elements * TRANSFORM_BANDS * sizeof(int16_t));
    assert_memory_equal(read.forward, made.forward, matrices * sizeof(uint16_t));
    assert_memory_equal(read.inverse, made.inverse, matrices * sizeof(uint16_t));
    if (shape.rotary_dim > 0)
        assert_memory_equal(read.frequencies, made.frequencies, shape.rotary_dim / 2 * 8);
    assert_memory_equal(read.tables + 1, made.basis.tables + 1, 31 * sizeof read.tables[0]);
    assert_string_equal(origin.model, "made");
    assert_int_equal(origin.tokens, 1000);
}

TEST(every_span_comes_back)
{
    transform_shape shape = head_shape;
    check_round_trip(shape);
    shape.span = TRANSFORM_SPAN_LAYER;
    check_round_trip(shape);
    shape.sides = 1;
    shape.rotary_dim = 0;
    check_round_trip(shape);
    shape = head_shape;
    shape.span = TRANSFORM_SPAN_LAYERS4; /* one span of three layers */
    check_round_trip(shape);
    shape.layers = 6; /* one of four, one of two */
    shape.pairing = 1;
    shape.metric = TRANSFORM_METRIC_BOTH;
    check_round_trip(shape);
}

TEST(spans_cover_every_element_once)
{
    for (uint32_t layers = 1; layers < 10; layers++) {
        for (uint8_t span = TRANSFORM_SPAN_HEAD; span <= TRANSFORM_SPAN_LAYERS4; span++) {
            transform_shape shape = head_shape;
            uint64_t covered = 0;
            shape.layers = layers;
            shape.span = span;
            for (uint32_t i = 0; i < transform_span_count(&shape); i++) {
                assert_true(transform_width_of(&shape, i) > 0);
                covered += transform_width_of(&shape, i);
            }
            assert_int_equal(covered, transform_elements(&shape));
        }
    }
}

TEST(shapes_out_of_range_are_refused)
{
    uint64_t bytes;
    transform_shape wrong[12];
    for (size_t i = 0; i < 12; i++)
        wrong[i] = head_shape;
    wrong[0].layers = 0;
    wrong[1].layers = TRANSFORM_LAYERS_MAX + 1;
    wrong[2].kv_heads = 0;
    wrong[3].head_dim = UINT32_MAX;
    wrong[4].kv_heads = UINT32_MAX;
    wrong[5].rotary_dim = 18;
    wrong[6].rotary_dim = 3;
    wrong[7].sides = 3;
    wrong[8].pairing = 2;
    wrong[9].span = 4;
    wrong[10].metric = 4;
    wrong[11].span = TRANSFORM_SPAN_LAYERS4;
    wrong[11].kv_heads = 65;
    for (size_t i = 0; i < 12; i++) {
        basis_made made = {.basis = {.shape = wrong[i]}};
        uint8_t small[64] __attribute__((aligned(64)));
        assert_is(basis_bytes(&wrong[i], &bytes), KVT_E_ARGUMENT);
        assert_is(basis_write(&made.basis, &made.origin, small, sizeof small), KVT_E_ARGUMENT);
    }
    basis_made made = basis_made_of(head_shape, 1);
    assert_is(basis_made_write(&made), KVT_OK);
    assert_is(basis_write(&made.basis, &made.origin, made.object, made.bytes - 1), KVT_E_SPACE);
}

/* Each byte of the header that is changed, with a right hash, gives a status: a basis only when it
 * is a byte that says where the basis comes from. */
TEST(no_byte_of_the_header_is_trusted)
{
    static const uint8_t values[] = {0, 1, 2, 3, 4, 0x7f, 0x80, 0xff};
    basis_made made = basis_made_of(head_shape, 3);
    assert_is(basis_made_write(&made), KVT_OK);
    for (uint64_t at = 0; at < sizeof(basis_header); at++) {
        const uint8_t before = made.object[at];
        for (size_t i = 0; i < sizeof values; i++) {
            made.object[at] = values[i];
            const kvt_status status = read_sealed(made.object, made.bytes);
            const bool origin = at >= offsetof(basis_header, tokens);
            const bool hash = at >= BASIS_HASH_AT && at < offsetof(basis_header, bytes);
            const bool meaning = at == offsetof(basis_header, pairing) ||
                                 at == offsetof(basis_header, metric) ||
                                 at == offsetof(basis_header, rotary_dim);
            if (status != KVT_OK)
                assert_true(status == KVT_E_CORRUPT || status == KVT_E_VERSION);
            else
                assert_true(values[i] == before || origin || hash || meaning);
        }
        made.object[at] = before;
    }
    made.object[offsetof(basis_header, version)] = 3;
    assert_is(read_sealed(made.object, made.bytes), KVT_E_VERSION);
}

TEST(a_changed_or_cut_object_is_refused)
{
    transform_basis basis;
    basis_made made = basis_made_of(head_shape, 5);
    assert_is(basis_made_write(&made), KVT_OK);
    for (uint64_t at = 0; at < made.bytes; at += 97) {
        made.object[at] ^= 1;
        const kvt_status status = basis_read(made.object, made.bytes, &basis, NULL);
        assert_true(status == KVT_E_CORRUPT || status == KVT_E_VERSION);
        made.object[at] ^= 1;
    }
    for (uint64_t bytes = 0; bytes < made.bytes; bytes += 61) {
        uint8_t *cut = test_aligned(64, bytes + 1);
        memcpy(cut, made.object, bytes);
        assert_is(basis_read(cut, bytes, &basis, NULL), KVT_E_CORRUPT);
    }
    assert_is(basis_read(made.object, made.bytes, &basis, NULL), KVT_OK);
}

/* A number that is none, or out of range, in each of the sections. */
TEST(wrong_numbers_are_refused)
{
    static const uint16_t matrix[] = {0x7fc0, 0x7f80, 0xff80, 0x0001, 0x0080, 0x7f00};
    basis_made made = basis_made_of(head_shape, 9);
    assert_is(basis_made_write(&made), KVT_OK);
    made.frequencies[1] = -0.001;
    assert_is(basis_made_write(&made), KVT_E_CORRUPT);
    made.frequencies[1] = (double)NAN;
    assert_is(basis_made_write(&made), KVT_E_CORRUPT);
    made.frequencies[1] = 0.1;
    made.means[5] = INFINITY;
    assert_is(basis_made_write(&made), KVT_E_CORRUPT);
    made.means[5] = 0.0f;
    made.spreads[8] = INT16_MIN;
    assert_is(basis_made_write(&made), KVT_E_CORRUPT);
    made.spreads[8] = 0;
    assert_is(basis_made_write(&made), KVT_OK);
    for (size_t i = 0; i < sizeof matrix / sizeof matrix[0]; i++) {
        const uint16_t forward = made.forward[300];
        const uint16_t inverse = made.inverse[301];
        made.forward[300] = matrix[i];
        assert_is(basis_made_write(&made), KVT_E_CORRUPT);
        made.forward[300] = forward;
        made.inverse[301] = matrix[i];
        assert_is(basis_made_write(&made), KVT_E_CORRUPT);
        made.inverse[301] = inverse;
    }
    assert_is(basis_made_write(&made), KVT_OK);
}

TEST(tables_are_checked)
{
    basis_made made = basis_made_of(head_shape, 13);
    made.basis.tables[31].low_bits = TRANSFORM_LOW_BITS_MAX + 1;
    assert_is(basis_made_write(&made), KVT_E_CORRUPT);
    made.basis.tables[31].low_bits = TRANSFORM_LOW_BITS_MAX;
    assert_is(basis_made_write(&made), KVT_OK);
    made.basis.tables[4].symbols.of[0]++;
    assert_is(basis_made_write(&made), KVT_E_CORRUPT);
    made.basis.tables[4].symbols.of[0]--;
    assert_is(basis_made_write(&made), KVT_OK);
    basis_places places;
    assert_true(basis_place(&head_shape, &places));
    made.object[places.tables] = 1; /* class 0 has no table */
    assert_is(read_sealed(made.object, made.bytes), KVT_E_CORRUPT);
    made.object[places.tables] = 0;
    made.object[places.tables + 2 * BASIS_TABLE_BYTES - 1] = 1; /* behind a table */
    assert_is(read_sealed(made.object, made.bytes), KVT_E_CORRUPT);
}

/* A matrix that does not undo the other one: another sign, another scale, another span's. */
TEST(an_inverse_that_is_none_is_refused)
{
    basis_made made = basis_made_of(head_shape, 17);
    assert_is(basis_made_write(&made), KVT_OK);
    for (uint32_t span = 0; span < transform_span_count(&head_shape); span++)
        assert_true(basis_inverse_holds(&made.basis, span));
    made.inverse[3] ^= 0x8000;
    assert_is(basis_made_write(&made), KVT_E_CORRUPT);
    assert_false(basis_inverse_holds(&made.basis, 0));
    assert_true(basis_inverse_holds(&made.basis, 1));
    made.inverse[3] ^= 0x8000;
    for (uint32_t i = 0; i < 16 * 16; i++)
        made.forward[256 + i] =
            (uint16_t)(made.forward[256 + i] + (made.forward[256 + i] ? 128 : 0));
    assert_false(basis_inverse_holds(&made.basis, 1));
    memset(made.inverse + 512, 0, 256 * sizeof(uint16_t));
    assert_false(basis_inverse_holds(&made.basis, 2));
}
