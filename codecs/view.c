/* SPDX-License-Identifier: Apache-2.0 */
/*
 * view.c - views made from a layout: the packed buffer, and pools whose axes leave no gaps.
 * store/read/view_check.c checks views of any origin. Re-entrant.
 */
#include "view_rows.h"

#include <assert.h>
#include <string.h>

#define VIEW_POOL_MAX (INT64_C(1) << 62)

static int64_t view_head_bytes(const kvt_layout *layout)
{
    return (int64_t)layout->head_dim * kvt_dtype_bytes(layout->dtype);
}

kvt_view codecs_packed_view(const kvt_layout *layout, void *data)
{
    kvt_view view = {.struct_size = sizeof view, .dtype = layout->dtype, .base = {data}};
    if (layout->dtype == KVT_DTYPE_OPAQUE) {
        view.base_bytes[0] = layout->opaque_bytes;
        return view;
    }
    const uint64_t matrix = kvt_layout_matrix_bytes(layout);
    const uint64_t sides = kvt_layout_sides(layout);
    const bool side_inside = layout->order == KVT_ORDER_LAYER_SIDE;
    view.head_stride = view_head_bytes(layout);
    view.token_stride = view.head_stride * layout->kv_heads;
    view.side_stride = (int64_t)(side_inside ? matrix : matrix * layout->layers);
    view.layer_stride = (int64_t)(side_inside ? matrix * sides : matrix);
    view.base_bytes[0] = matrix * sides * layout->layers;
    return view;
}

/* An axis of a pool: how many members it has, and where its stride goes. */
typedef struct view_letter {
    char letter;
    bool seen;
    uint64_t count;
    int64_t *stride;
} view_letter;

enum { VIEW_LAYER, VIEW_SIDE, VIEW_BLOCK, VIEW_TOKEN, VIEW_HEAD, VIEW_LETTERS };

static view_letter *view_find_letter(view_letter letters[VIEW_LETTERS], char letter)
{
    for (uint32_t i = 0; i < VIEW_LETTERS; i++) {
        if (letters[i].letter == letter) return &letters[i];
    }
    return NULL;
}

/* Marks the letters of the axes. False when one is unknown, twice, or missing. */
static bool view_read_axes(view_letter letters[VIEW_LETTERS], const char *axes, bool blocks)
{
    for (const char *at = axes; *at != 0; at++) {
        view_letter *letter = view_find_letter(letters, *at);
        if (letter == NULL || letter->seen) return false;
        letter->seen = true;
    }
    return letters[VIEW_TOKEN].seen && letters[VIEW_HEAD].seen &&
           (blocks || !letters[VIEW_BLOCK].seen);
}

/* Gives every axis its stride, the innermost first; the bytes of all of them, or 0 when they are
 * none or too many. */
static uint64_t view_lay_axes(view_letter letters[VIEW_LETTERS], const char *axes,
                              int64_t head_bytes)
{
    int64_t bytes = head_bytes;
    for (size_t i = strlen(axes); i-- > 0;) {
        const view_letter *letter = view_find_letter(letters, axes[i]);
        *letter->stride = bytes;
        if (__builtin_mul_overflow(bytes, letter->count, &bytes) || bytes > VIEW_POOL_MAX) return 0;
    }
    return (uint64_t)bytes;
}

kvt_status kvt_view_make(const kvt_layout *layout, const char *axes, uint32_t tokens_per_block,
                         uint64_t pool_blocks, kvt_view *view_out)
{
    uint64_t entry_bytes;
    uint64_t tokens = pool_blocks;
    kvt_view view = {
        .struct_size = sizeof view, .dtype = layout->dtype, .tokens_per_block = tokens_per_block};
    assert(layout != NULL && axes != NULL && view_out != NULL);
    if (kvt_layout_bytes(layout, &entry_bytes) != KVT_OK) return KVT_E_ARGUMENT;
    if (layout->dtype == KVT_DTYPE_OPAQUE) return KVT_E_ARGUMENT;
    view_letter letters[VIEW_LETTERS] = {
        {'l', false, layout->layers, &view.layer_stride},
        {'s', false, kvt_layout_sides(layout), &view.side_stride},
        {'b', false, pool_blocks, &view.block_stride},
        {'t', false, tokens_per_block, &view.token_stride},
        {'h', false, layout->kv_heads, &view.head_stride},
    };
    if (!view_read_axes(letters, axes, tokens_per_block != 0)) return KVT_E_ARGUMENT;
    if (!letters[VIEW_BLOCK].seen) {
        const uint64_t run = tokens_per_block != 0 ? tokens_per_block : 1;
        if (__builtin_mul_overflow(tokens, run, &tokens)) return KVT_E_ARGUMENT;
        letters[VIEW_TOKEN].count = tokens;
    }
    const uint64_t bytes = view_lay_axes(letters, axes, view_head_bytes(layout));
    if (bytes == 0) return KVT_E_ARGUMENT;
    if (!letters[VIEW_BLOCK].seen) view.block_stride = view.token_stride * tokens_per_block;
    const bool sides = !letters[VIEW_SIDE].seen && kvt_layout_sides(layout) > 1;
    if (letters[VIEW_LAYER].seen) {
        view.bases_kind = sides ? KVT_BASES_SIDES : KVT_BASES_ONE;
    } else {
        view.bases_kind = sides ? KVT_BASES_LAYERS_SIDES : KVT_BASES_LAYERS;
    }
    view.base_bytes[0] = bytes;
    if (view.bases_kind == KVT_BASES_SIDES) view.base_bytes[1] = bytes;
    *view_out = view;
    return KVT_OK;
}
