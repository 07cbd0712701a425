/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_sparse_kept_form.c - the kept form of a unit: what was written is read, and numbers of an
 * index that no build would give are refused before a step uses them.
 */
#include "cases.h"

#include "base/number/number.h"
#include "sparse/choose.h"
#include "sparse/kept.h"
#include "sparse/page_table.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* So many clusters, of a token each, that the index has sketches. */
enum { DIM = 16, TOKENS = 4200, SEGMENT = 256, PAGE = 16 };

static const sparse_kept_shape shape = {.id = 99,
                                        .layers = 1,
                                        .kv_heads = 1,
                                        .head_dim = DIM,
                                        .dtype = KVT_DTYPE_FP32,
                                        .tokens = TOKENS + 68,
                                        .sink_tokens = 4,
                                        .zone_tokens = TOKENS,
                                        .segment_tokens = SEGMENT,
                                        .page_tokens = PAGE,
                                        .variants = 0x1c,
                                        .row_bytes = DIM * 4};

typedef struct form {
    sparse_paging paging;
    sparse_index index;
    uint64_t bytes;
    uint8_t *target;
} form;

/* A unit of a built index; its other parts are zeros. */
static void write_form(form *f)
{
    static uint8_t zeros[8 << 20];
    const sparse_kept_unit unit = {
        .clusters = f->index.clusters,
        .local_tokens = 4,
        .slot_bytes = sparse_slot_bytes(&f->paging, shape.variants, NULL),
        .index = f->index.memory,
        .slopes = (const uint8_t *)f->index.slopes,
        .code = zeros,
        .sums = zeros,
        .sinks = zeros,
        .local = zeros,
        .index_bytes = f->index.bytes,
        .slope_bytes = f->index.slope_bytes,
        .code_bytes = sparse_code_bytes(&f->paging),
        .sums_bytes = (uint64_t)f->paging.pages * SPARSE_SECTIONS * 4,
        .sinks_bytes = 2ull * shape.sink_tokens * shape.row_bytes,
        .local_bytes = 2ull * 4 * shape.row_bytes,
        .pages_bytes =
            (uint64_t)f->paging.pages * sparse_slot_bytes(&f->paging, shape.variants, NULL)};
    f->bytes = sparse_kept_bytes(&unit, NULL);
    f->target = test_zeros(f->bytes);
    sparse_kept_write(&shape, &unit, f->target);
}

static void form_open(form *f)
{
    static float rows[TOKENS * DIM];
    const sparse_rows sides = {.base = rows, .stride_bytes = DIM * sizeof *rows};
    const sparse_index_options options = {
        .head_dim = DIM, .dtype = KVT_DTYPE_FP32, .cluster_tokens = 1, .segment_tokens = SEGMENT};
    uint64_t dice = 3;
    for (uint32_t i = 0; i < TOKENS * DIM; i++)
        rows[i] = (float)(number_mix(dice + i) % 2000) / 1000.0f - 1.0f;
    *f = (form){.target = NULL};
    assert_ok(sparse_paging_init(&f->paging, DIM, KVT_DTYPE_FP32, TOKENS, SEGMENT, PAGE));
    assert_ok(sparse_index_build(&options, &sides, &sides, TOKENS, &f->index));
    assert_int_equal(f->index.axes, sparse_sketch_axes(DIM));
    write_form(f);
}

static void form_close(form *f)
{
    sparse_index_free(&f->index);
}

static kvt_status read_form(const form *f, sparse_index *index_out)
{
    sparse_kept_unit unit;
    *index_out = (sparse_index){.tokens = 0};
    const kvt_status status = sparse_kept_read(&shape, &f->paging, 0, f->target, f->bytes, &unit);
    return status == KVT_OK ? sparse_kept_index(&shape, &unit, index_out) : status;
}

TEST(an_index_comes_back_as_it_was)
{
    form f;
    sparse_index index;
    form_open(&f);
    assert_ok(read_form(&f, &index));
    assert_int_equal(index.bytes, f.index.bytes);
    assert_memory_equal(index.memory, f.index.memory, index.bytes);
    assert_memory_equal(index.slopes, f.index.slopes, f.index.slope_bytes);
    sparse_index_free(&index);
    sparse_index_drop_slopes(&f.index);
    write_form(&f);
    assert_ok(read_form(&f, &index));
    assert_null(index.slopes);
    assert_memory_equal(index.memory, f.index.memory, index.bytes);
    sparse_index_free(&index);
    form_close(&f);
}

/* Each of them in the first, the second and the last place of each array. */
TEST(numbers_that_no_build_gives_are_refused)
{
    const float bad[] = {NAN, -1.0f, INFINITY, -INFINITY, 1e31f};
    form f;
    sparse_index index;
    form_open(&f);
    struct {
        float *array;
        uint32_t count;
    } arrays[] = {{f.index.key_step, DIM},           {f.index.value_step, DIM},
                  {f.index.key_scatter, DIM},        {f.index.scatter, f.index.lanes},
                  {f.index.axis_step, f.index.axes}, {f.index.slope, f.index.lanes}};
    for (size_t a = 0; a < sizeof arrays / sizeof arrays[0]; a++) {
        const uint32_t places[] = {0, 1, arrays[a].count - 1};
        for (size_t i = 0; i < 3; i++) {
            for (size_t b = 0; b < sizeof bad / sizeof bad[0]; b++) {
                const float held = arrays[a].array[places[i]];
                arrays[a].array[places[i]] = bad[b];
                write_form(&f);
                assert_int_equal(read_form(&f, &index), KVT_E_CORRUPT);
                assert_null(index.memory);
                arrays[a].array[places[i]] = held;
            }
        }
    }
    for (size_t b = 0; b < sizeof bad / sizeof bad[0]; b++) {
        const float centre = f.index.centre[DIM - 1];
        const uint16_t part = f.index.axis[DIM];
        f.index.centre[DIM - 1] = bad[b] * bad[b];
        if (b == 1) f.index.centre[DIM - 1] = -1e31f;
        write_form(&f);
        assert_int_equal(read_form(&f, &index), KVT_E_CORRUPT);
        f.index.centre[DIM - 1] = centre;
        f.index.axis[DIM] = b % 2 ? 0x7c00 : 0xfe01;
        write_form(&f);
        assert_int_equal(read_form(&f, &index), KVT_E_CORRUPT);
        f.index.axis[DIM] = part;
    }
    write_form(&f);
    assert_ok(read_form(&f, &index));
    sparse_index_free(&index);
    form_close(&f);
}

/* The largest scatters that are read, and queries of any size, give weights that are finite. */
TEST(the_largest_scatter_is_finite)
{
    form f;
    sparse_index index;
    form_open(&f);
    for (uint32_t d = 0; d < DIM; d++)
        f.index.key_scatter[d] = SPARSE_DEVIATION_MAX;
    for (uint32_t i = 0; i < f.index.lanes; i++)
        f.index.scatter[i] = SPARSE_SCATTER_MAX;
    for (uint32_t i = 0; i < f.index.axes; i++)
        f.index.axis_step[i] = 1e30f;
    for (uint32_t i = 0; i < (f.index.axes - 1) * DIM; i++)
        f.index.axis[i] = i % 3 ? 0x7bff : 0xfbff;
    for (uint32_t d = 0; d < DIM; d++)
        f.index.centre[d] = d % 5 ? 1e30f : -1e30f;
    for (uint32_t i = 0; i < f.index.lanes; i++)
        f.index.slope[i] = 1e30f;
    for (uint32_t i = 0; i < 2 * f.index.lanes * DIM; i++)
        f.index.slopes[i] = (int8_t)(i % 2 ? 127 : -128);
    for (uint32_t i = 0; i < f.index.lanes * f.index.axes / 2; i++)
        f.index.sketch[i] = (uint8_t)number_mix(i);
    write_form(&f);
    assert_ok(read_form(&f, &index));
    sparse_work_room room = {.pages = 0};
    sparse_work work;
    sparse_work_room_add(&room, &index, f.paging.pages);
    assert_ok(sparse_work_open(&room, 1, DIM, &work));
    for (float size = 1e-30f; size < 1e29f; size *= 1e6f) {
        const float lse = -1.0f;
        float queries[DIM], output[DIM], left;
        uint8_t *variant = test_zeros(f.paging.pages);
        for (uint32_t d = 0; d < DIM; d++)
            queries[d] = d % 2 ? size : -size;
        assert_ok(sparse_choose_weights(&index, &f.paging, queries, 1, 0.2f, &lse, &work));
        sparse_choose_estimate(&index, &f.paging, variant, &work, output, &left);
        for (uint32_t p = 0; p < f.paging.pages; p++)
            assert_true(work.page[p] >= 0.0f && work.page[p] <= 1.001f);
        for (uint32_t d = 0; d < DIM; d++)
            assert_true(isfinite(output[d]));
    }
    sparse_work_close(&work);
    sparse_index_free(&index);
    form_close(&f);
}

TEST(another_version_is_named)
{
    form f;
    sparse_index index;
    form_open(&f);
    f.target[8] = 2;
    assert_int_equal(read_form(&f, &index), KVT_E_VERSION);
    form_close(&f);
}

/* A head's own checksum, as kept.c makes it. */
static void seal_head(uint8_t *head)
{
    const uint64_t sum =
        XXH3_64bits_withSeed(head + SPARSE_KEPT_HEAD_BYTES, 0, XXH3_64bits(head, 120));
    memcpy(head + 120, &sum, sizeof sum);
}

static kvt_status head_of(uint32_t layers, uint32_t heads, uint32_t sinks, sparse_kept_shape *read)
{
    uint8_t head[SPARSE_KEPT_HEAD_BYTES];
    sparse_kept_shape own = shape;
    own.layers = layers;
    own.kv_heads = heads;
    own.sink_tokens = sinks;
    own.keep = UINT64_C(0x0123456789abcdef);
    sparse_kept_write_head(&own, head);
    return sparse_kept_read_head(head, sizeof head, read);
}

TEST(a_head_is_of_a_shape_that_can_be)
{
    static const uint32_t most[][2] = {{1, 1}, {65535, 1}, {1, 65535}, {256, 256}, {512, 128}};
    static const uint32_t more[][2] = {{0, 1},          {1, 0},         {65536, 1}, {1, 65536},
                                       {65536, 65536},  {65535, 65535}, {257, 256}, {UINT32_MAX, 1},
                                       {1, UINT32_MAX}, {1u << 31, 2}};
    sparse_kept_shape read;
    for (size_t i = 0; i < sizeof most / sizeof most[0]; i++) {
        assert_ok(head_of(most[i][0], most[i][1], 4, &read));
        assert_int_equal(read.layers, most[i][0]);
        assert_int_equal(read.kv_heads, most[i][1]);
        assert_true(read.id == 99 && read.keep == UINT64_C(0x0123456789abcdef));
    }
    for (size_t i = 0; i < sizeof more / sizeof more[0]; i++)
        assert_int_equal(head_of(more[i][0], more[i][1], 4, &read), KVT_E_CORRUPT);
    assert_int_equal(head_of(1, 1, UINT32_MAX, &read), KVT_E_CORRUPT);
}

/* A head has no sizes: each byte of them is zero. At 112 are the bytes of an index key, which a
 * sequence has only where the model selects, and the sides of one. */
TEST(a_head_has_no_sizes)
{
    uint8_t head[SPARSE_KEPT_HEAD_BYTES];
    sparse_kept_shape read;
    for (uint32_t at = 68; at < 120; at++) {
        sparse_kept_write_head(&shape, head);
        head[at] ^= 1;
        seal_head(head);
        assert_int_equal(sparse_kept_read_head(head, sizeof head, &read),
                         (at >= 104 && at < 112) || at == 116 ? KVT_OK : KVT_E_CORRUPT);
    }
    sparse_kept_shape model = shape;
    model.given = 2;
    for (int most = 0; most < 2; most++) {
        model.key_bytes = SPARSE_KEY_BYTES_MAX + (uint32_t)most;
        sparse_kept_write_head(&model, head);
        assert_int_equal(sparse_kept_read_head(head, sizeof head, &read),
                         most ? KVT_E_CORRUPT : KVT_OK);
    }
}
