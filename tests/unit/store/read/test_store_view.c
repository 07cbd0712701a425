/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_view.c - views: each rule of the check, the axes of each engine, and rows that are
 * gathered from and scattered to where the definition in view.h has them.
 */
#include "codecs_support.h"

#include "codecs/view_rows.h"
#include "engine_views.h"

#include <stdio.h>

static const kvt_layout small = {
    .layers = 3, .kv_heads = 2, .head_dim = 8, .dtype = KVT_DTYPE_FP16, .tokens = 10};

enum { HEAD = 16, ROW = 32, BLOCK = 4, BLOCKS = 9 };

/* A pool [block][layer][side][token][head] of BLOCKS blocks of BLOCK tokens. */
enum { SIDE_STRIDE = BLOCK * ROW, LAYER_STRIDE = 2 * SIDE_STRIDE, BLOCK_STRIDE = 3 * LAYER_STRIDE };

static _Alignas(64) uint8_t pool[BLOCKS * BLOCK_STRIDE];
static uint32_t table[3];

static kvt_view paged(void)
{
    kvt_view view;
    assert_status(kvt_view_make(&small, "blsth", BLOCK, BLOCKS, &view), KVT_OK);
    assert_int_equal(view.side_stride, SIDE_STRIDE);
    assert_int_equal(view.layer_stride, LAYER_STRIDE);
    assert_int_equal(view.block_stride, BLOCK_STRIDE);
    assert_int_equal(view.base_bytes[0], sizeof pool);
    table[0] = 7;
    table[1] = 0;
    table[2] = 4;
    view.base[0] = pool;
    view.blocks = table;
    view.block_count = 3;
    return view;
}

/* The check refuses the view, and says why with these words. */
static void refused(const kvt_view *view, const kvt_layout *layout, const char *words)
{
    char message[200] = "";
    assert_status(kvt_view_check(view, layout, message, sizeof message), KVT_E_ARGUMENT);
    if (strstr(message, words) == NULL) fail_msg("\"%s\" does not say \"%s\"", message, words);
    assert_null(strchr(message, '\n'));
    assert_status(kvt_view_check(view, layout, NULL, 0), KVT_E_ARGUMENT);
}

static void accepted(const kvt_view *view, const kvt_layout *layout)
{
    char message[200] = "";
    kvt_status status = kvt_view_check(view, layout, message, sizeof message);
    if (status != KVT_OK) fail_msg("refused: %s", message);
}

TEST(engines_layouts_pass)
{
    for (uint32_t i = 0; i < ENGINE_VIEWS; i++) {
        engine_pool engine;
        assert_true(engine_pool_open(&engine, &engine_views[i], &small, 1, 0));
        accepted(&engine.view, &small);
        engine_pool_close(&engine);
    }
}

/* Axes without s have one address each for one side. */
TEST(one_side_passes)
{
    kvt_layout latent = small;
    latent.sides = 1;
    for (uint32_t i = 0; i < ENGINE_VIEWS; i++) {
        engine_pool engine;
        assert_true(engine_pool_open(&engine, &engine_views[i], &latent, 1, 0));
        accepted(&engine.view, &latent);
        assert_true(engine.view.bases_kind == KVT_BASES_ONE ||
                    engine.view.bases_kind == KVT_BASES_LAYERS);
        engine_pool_close(&engine);
    }
    kvt_view view = codecs_packed_view(&latent, pool);
    accepted(&view, &latent);
    view.bases_kind = KVT_BASES_SIDES;
    view.base[1] = pool + view.base_bytes[0];
    refused(&view, &latent, "one side");
}

TEST(a_packed_buffer_passes_in_both_orders)
{
    for (uint8_t order = 0; order <= KVT_ORDER_SIDE_LAYER; order++) {
        kvt_layout layout = small;
        layout.order = order;
        uint64_t bytes;
        assert_status(kvt_layout_bytes(&layout, &bytes), KVT_OK);
        kvt_view view = codecs_packed_view(&layout, pool);
        accepted(&view, &layout);
        assert_int_equal(view.base_bytes[0], bytes);
        for (uint32_t i = 0; i < 2u * layout.layers; i++) {
            const uint8_t *at = engine_head_at(&view, 2, i / 2, i % 2, 0, 0);
            assert_int_equal(at - pool,
                             kvt_layout_matrix_offset(&layout, i / 2, (kvt_side)(i % 2)));
        }
        view.base_bytes[0]--;
        refused(&view, &layout, "needs");
    }
    const kvt_layout opaque = {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = 77};
    kvt_view view = codecs_packed_view(&opaque, pool + 1);
    accepted(&view, &opaque);
    view.head_stride = 1;
    refused(&view, &opaque, "opaque");
    view = codecs_packed_view(&opaque, pool);
    view.base_bytes[0] = 76;
    refused(&view, &opaque, "base[0]: the view needs 77 bytes of a buffer of 76");
}

TEST(elements_outside_their_buffer_are_refused)
{
    kvt_view view = paged();
    accepted(&view, &small);
    table[1] = BLOCKS;
    refused(&view, &small, "needs");
    table[1] = 0;
    table[0] = BLOCKS - 1; /* full */
    accepted(&view, &small);
    view.base_bytes[0]--;
    refused(&view, &small, "needs");
    /* The last block holds two tokens of four. */
    view.base_bytes[0] = sizeof pool - 2 * ROW;
    refused(&view, &small, "needs");
    table[0] = 2;
    table[2] = BLOCKS - 1;
    accepted(&view, &small);
    view.base_bytes[0]--;
    refused(&view, &small, "needs");
    view = paged();
    view.base_bytes[0] = UINT64_MAX;
    refused(&view, &small, "address space");
    view.base[0] = NULL;
    refused(&view, &small, "NULL");
}

TEST(block_tables_are_checked)
{
    kvt_view view = paged();
    table[2] = 7;
    refused(&view, &small, "twice");
    view = paged();
    view.block_count = 2;
    refused(&view, &small, "need 3");
    view.block_count = 3;
    view.first_slot = 2;
    accepted(&view, &small); /* 12 slots */
    view.first_slot = 3;
    refused(&view, &small, "need 4");
    view.first_slot = 4;
    refused(&view, &small, "first_slot 4");
    view = paged();
    view.blocks = NULL;
    refused(&view, &small, "blocks is NULL");
    view.block_count = 0;
    accepted(&view, &small); /* 0, 1, 2 */
    view = paged();
    view.tokens_per_block = 0;
    view.first_slot = 0;
    refused(&view, &small, "tokens_per_block");
    /* More numbers than are sorted without an allocation. */
    enum { MANY = 2000 };
    static uint32_t many[MANY];
    static const kvt_layout flat = {
        .layers = 1, .kv_heads = 1, .head_dim = 1, .dtype = KVT_DTYPE_FP8, .tokens = MANY};
    assert_status(kvt_view_make(&flat, "lsbth", 1, MANY, &view), KVT_OK);
    for (uint32_t i = 0; i < MANY; i++) {
        many[i] = MANY - 1 - i;
    }
    view.base[0] = pool;
    view.base_bytes[0] = 2 * (uint64_t)MANY;
    view.blocks = many;
    view.block_count = MANY;
    accepted(&view, &flat);
    many[0] = many[MANY - 1];
    refused(&view, &flat, "twice");
}

TEST(overlaps_are_refused)
{
    kvt_view view = paged();
    view.head_stride = HEAD - 2;
    refused(&view, &small, "head");
    view = paged();
    view.token_stride = 0;
    refused(&view, &small, "token");
    view = paged();
    view.side_stride = 0;
    refused(&view, &small, "side");
    view = paged();
    view.layer_stride = SIDE_STRIDE;
    refused(&view, &small, "overlap");
    view = paged();
    view.block_stride = LAYER_STRIDE;
    accepted(&view, &small); /* the blocks in use are three apart */
    table[2] = 2;
    refused(&view, &small, "overlap");
    /* Heads of 16 bytes at 0, 32 and rows at 48, 80 do not meet, but interleave. */
    view = paged();
    view.head_stride = 2 * HEAD;
    view.token_stride = 3 * HEAD;
    refused(&view, &small, "interleave");
}

TEST(addresses_that_meet_are_refused)
{
    kvt_view view;
    assert_status(kvt_view_make(&small, "lth", 0, 10, &view), KVT_OK);
    assert_int_equal(view.bases_kind, KVT_BASES_SIDES);
    view.base[0] = pool;
    view.base[1] = pool + 3 * 10 * ROW;
    accepted(&view, &small);
    view.base[1] = pool + 3 * 10 * ROW - 2;
    refused(&view, &small, "side");
    view.base[1] = view.base[0];
    refused(&view, &small, "side");
    view.base[1] = NULL;
    refused(&view, &small, "NULL");
    /* K and V fused, given by two addresses. */
    assert_status(kvt_view_make(&small, "lth", 0, 10, &view), KVT_OK);
    view.head_stride = 2 * HEAD;
    view.token_stride = 2 * ROW;
    view.layer_stride = 20 * ROW;
    view.base[0] = pool;
    view.base[1] = pool + HEAD;
    view.base_bytes[0] = 60 * ROW;
    view.base_bytes[1] = 60 * ROW - HEAD;
    accepted(&view, &small);
    view.base_bytes[1] -= HEAD + 1;
    refused(&view, &small, "needs");
    /* Layers anywhere, in any order. */
    assert_status(kvt_view_make(&small, "tsh", 0, 10, &view), KVT_OK);
    assert_int_equal(view.bases_kind, KVT_BASES_LAYERS);
    void *layers[3] = {pool + 40 * ROW, pool, pool + 20 * ROW};
    refused(&view, &small, "bases is NULL");
    view.bases = layers;
    accepted(&view, &small);
    layers[1] = pool + 2;
    refused(&view, &small, "bases");
    layers[1] = pool + 40 * ROW;
    refused(&view, &small, "bases");
    const uint64_t bytes[3] = {20 * ROW, 20 * ROW, 20 * ROW - 1};
    layers[1] = pool;
    view.bases_bytes = bytes;
    refused(&view, &small, "needs");
}

TEST(addresses_of_layers_and_sides_are_compared)
{
    kvt_view view;
    assert_status(kvt_view_make(&small, "th", 0, 10, &view), KVT_OK);
    assert_int_equal(view.bases_kind, KVT_BASES_LAYERS_SIDES);
    void *all[6];
    for (uint32_t i = 0; i < 6; i++) {
        all[i] = pool + (i * 5 % 6) * 10 * ROW;
    }
    view.bases = all;
    accepted(&view, &small);
    all[3] = (uint8_t *)all[2] + 2;
    refused(&view, &small, "bases");
    /* V beside K in every row of every layer. */
    view.token_stride = 2 * ROW;
    for (uint32_t i = 0; i < 6; i++) {
        all[i] = pool + i / 2 * 20 * ROW + i % 2 * ROW;
    }
    view.base_bytes[0] = 19 * ROW;
    accepted(&view, &small);
    view.token_stride = ROW;
    refused(&view, &small, "side");
}

TEST(numbers_out_of_range_are_refused)
{
    kvt_view view = paged();
    view.layer_stride = -LAYER_STRIDE;
    refused(&view, &small, "negative");
    view.layer_stride = INT64_MAX - 1;
    refused(&view, &small, "overflows");
    view = paged();
    view.block_stride = (INT64_MAX >> 2) + 1;
    refused(&view, &small, "overflows");
    view = paged();
    view.head_stride = HEAD + 1;
    refused(&view, &small, "multiple");
    view = paged();
    view.base[0] = pool + 1;
    refused(&view, &small, "multiple");
    view = paged();
    view.bases_kind = 6;
    refused(&view, &small, "bases_kind");
    view = paged();
    view.base[1] = pool;
    refused(&view, &small, "base[1] is set");
    view = paged();
    view.bases = view.base;
    refused(&view, &small, "bases, their bytes");
    view = paged();
    view.base_count = 1;
    refused(&view, &small, "bases, their bytes");
    view = paged();
    view.struct_size = offsetof(kvt_view, base_count) - 1;
    refused(&view, &small, "struct_size");
    view = paged();
    view.memory = KVT_MEMORY_GPU;
    view.gpu = 3;
    accepted(&view, &small);
    view.memory = KVT_MEMORY_HOST;
    refused(&view, &small, "a GPU or an event");
    view = paged();
    view.memory = 2;
    assert_status(kvt_view_check(&view, &small, NULL, 0), KVT_E_UNSUPPORTED);
    view = paged();
    view.dtype = small.dtype == KVT_DTYPE_FP16 ? KVT_DTYPE_BF16 : KVT_DTYPE_FP16;
    refused(&view, &small, "kvt_dtype");
    view.dtype = 0;
    accepted(&view, &small);
    view = paged();
    view.reserved[0] = 1;
    assert_status(kvt_view_check(&view, &small, NULL, 0), KVT_E_UNSUPPORTED);
    struct {
        kvt_view view;
        uint64_t later;
    } longer = {paged(), 0};
    longer.view.struct_size = sizeof longer;
    accepted(&longer.view, &small);
    longer.later = 1;
    refused(&longer.view, &small, "struct_size");
    kvt_layout none = small;
    none.tokens = 0;
    view = paged();
    refused(&view, &none, "layout");
}

TEST(strides_of_one_member_count_for_nothing)
{
    const kvt_layout one = {
        .layers = 1, .kv_heads = 1, .head_dim = 8, .dtype = KVT_DTYPE_FP16, .tokens = 1};
    kvt_view view = codecs_packed_view(&one, pool);
    view.layer_stride = view.token_stride = view.head_stride = -3;
    view.block_stride = INT64_MIN;
    accepted(&view, &one);
    view.tokens_per_block = 4;
    accepted(&view, &one);
    view_rows rows = view_rows_of(&view, &one, 1, 0, KVT_SIDE_V);
    assert_true(rows.packed);
    assert_ptr_equal(rows.start, pool + HEAD);
    view.first_slot = 1;
    refused(&view, &one, "token_stride is negative");
    view.first_slot = 0;
    view.blocks = table;
    view.block_count = 1;
    table[0] = 0;
    refused(&view, &one, "block_stride is negative");
}

TEST(axes_that_do_not_fit_are_refused)
{
    static const char *const wrong[] = {"", "t", "h", "lsthh", "lsthd", "blsth", "LSTH", "lst"};
    kvt_view view;
    for (unsigned i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_status(kvt_view_make(&small, wrong[i], 0, 10, &view), KVT_E_ARGUMENT);
    }
    assert_status(kvt_view_make(&small, "lsth", 0, 0, &view), KVT_E_ARGUMENT);
    assert_status(kvt_view_make(&small, "lsbth", 4, UINT64_MAX / 2, &view), KVT_E_ARGUMENT);
    assert_status(kvt_view_make(&small, "lsth", 4, UINT64_MAX / 2, &view), KVT_E_ARGUMENT);
    const kvt_layout opaque = {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = 77};
    assert_status(kvt_view_make(&opaque, "lsth", 0, 10, &view), KVT_E_ARGUMENT);
}

/* Every piece of a matrix is gathered from where the definition has it, and scattered there. */
static void check_matrix(const kvt_view *view, uint32_t layer, kvt_side side)
{
    enum { MATRIX = 10 * ROW };
    uint8_t packed[MATRIX], tile[MATRIX];
    const view_rows rows = view_rows_of(view, &small, small.tokens, layer, side);
    assert_int_equal(rows.bytes, MATRIX);
    for (uint32_t token = 0; token < small.tokens; token++) {
        for (uint32_t head = 0; head < small.kv_heads; head++) {
            memcpy(packed + token * ROW + head * HEAD,
                   engine_head_at(view, 2, layer, (uint32_t)side, token, head), HEAD);
        }
    }
    for (uint32_t at = 0; at < MATRIX; at += 3) {
        for (uint32_t bytes = 1; bytes <= MATRIX - at; bytes += 13) {
            uint8_t saved[MATRIX];
            view_rows_gather(&rows, at, bytes, tile);
            assert_memory_equal(tile, packed + at, bytes);
            const uint8_t *room = view_rows_room(&rows, at, bytes, tile);
            assert_memory_equal(room, packed + at, bytes);
            memset(tile, 0x11, bytes);
            memcpy(saved, packed + at, bytes);
            view_rows_scatter(&rows, at, bytes, tile);
            view_rows_gather(&rows, at, bytes, tile);
            for (uint32_t i = 0; i < bytes; i++) {
                assert_int_equal(tile[i], 0x11);
            }
            view_rows_scatter(&rows, at, bytes, saved);
        }
    }
    const view_rows part = view_rows_part(&rows, ROW, 3, 5);
    view_rows_gather(&part, 0, part.bytes, tile);
    assert_memory_equal(tile, packed + 3 * ROW, 5 * ROW);
}

TEST(rows_lie_where_the_definition_has_them)
{
    for (uint32_t i = 0; i < ENGINE_VIEWS; i++) {
        engine_pool engine;
        assert_true(engine_pool_open(&engine, &engine_views[i], &small, 1, 0));
        for (uint32_t m = 0; m < engine.pools; m++) {
            for (uint64_t k = 0; k < engine.pool_bytes; k++) {
                ((uint8_t *)engine.memory[m])[k] = (uint8_t)(k * 31 + k / 256 + m * 7);
            }
        }
        for (uint32_t m = 0; m < 2u * small.layers; m++) {
            check_matrix(&engine.view, m / 2, (kvt_side)(m % 2));
        }
        engine_pool_close(&engine);
    }
}

TEST(blocks_in_order_are_one_run)
{
    kvt_view view;
    uint32_t ascending[3] = {5, 6, 7};
    assert_status(kvt_view_make(&small, "lsbth", BLOCK, BLOCKS, &view), KVT_OK);
    view.base[0] = pool;
    view.blocks = ascending;
    view.block_count = 3;
    accepted(&view, &small);
    view_rows rows = view_rows_of(&view, &small, small.tokens, 0, KVT_SIDE_K);
    assert_true(rows.packed);
    assert_ptr_equal(rows.start, pool + 5 * BLOCK * ROW);
    ascending[1] = 8;
    rows = view_rows_of(&view, &small, small.tokens, 0, KVT_SIDE_K);
    assert_false(rows.packed);
    rows = view_rows_of(&view, &small, BLOCK, 0, KVT_SIDE_K);
    assert_true(rows.packed);
}

/* A count that is not the layout's is refused; a caller of a version without one is not asked. */
TEST(addresses_are_counted)
{
    void *bases[] = {pool, pool + sizeof pool / 3, pool + sizeof pool / 3 * 2};
    kvt_view view;
    assert_ok(kvt_view_make(&small, "bsth", BLOCK, BLOCKS / small.layers, &view));
    view.bases = bases;
    for (uint64_t count = 0; count < 4; count++) {
        view.base_count = count;
        if (count == 0 || count == small.layers)
            assert_ok(kvt_view_check(&view, &small, NULL, 0));
        else
            refused(&view, &small, "base_count");
    }
    view.struct_size = offsetof(kvt_view, base_count);
    assert_ok(kvt_view_check(&view, &small, NULL, 0));
}
