/* SPDX-License-Identifier: Apache-2.0 */
/*
 * view_rows.c - see view_rows.h: where a matrix lies, and the baseline's copies. Re-entrant.
 */
#include "view_rows.h"

#include "base/copy.h"
#include "codecs/kernels/cpu.h"
#include "codecs/kernels/view_kernels.h"

#include <assert.h>
#include <string.h>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

/* The address of a (layer, side), with its strides. */
static uint8_t *rows_address(const kvt_view *view, const kvt_layout *layout, uint32_t layer,
                             kvt_side side)
{
    const uint64_t layer_offset = layer == 0 ? 0 : layer * (uint64_t)view->layer_stride;
    const uint64_t side_offset = side == 0 ? 0 : (uint64_t)view->side_stride;
    switch (view->bases_kind) {
    case KVT_BASES_SIDES: return (uint8_t *)view->base[side] + layer_offset;
    case KVT_BASES_LAYERS: return (uint8_t *)view->bases[layer] + side_offset;
    case KVT_BASES_LAYERS_SIDES:
        return view->bases[layer * (size_t)kvt_layout_sides(layout) + (size_t)side];
    default: return (uint8_t *)view->base[0] + layer_offset + side_offset;
    }
}

view_rows view_rows_of(const kvt_view *view, const kvt_layout *layout, uint32_t tokens,
                       uint32_t layer, kvt_side side)
{
    const uint64_t head_bytes = (uint64_t)layout->head_dim * kvt_dtype_bytes(layout->dtype);
    assert(layout->dtype != KVT_DTYPE_OPAQUE && tokens <= layout->tokens);
    view_rows rows = {
        .start = rows_address(view, layout, layer, side),
        .heads = layout->kv_heads,
        .block_tokens = view->tokens_per_block != 0 ? view->tokens_per_block : UINT32_MAX,
        .row_bytes = head_bytes * layout->kv_heads,
        .head_bytes = head_bytes,
        .head_stride = (uint64_t)view->head_stride,
        .token_stride = (uint64_t)view->token_stride,
        .block_stride = (uint64_t)view->block_stride,
        .blocks = view->blocks,
    };
    rows.bytes = rows.row_bytes * tokens;
    /* Strides of one member may be anything. */
    if (rows.heads == 1) rows.head_stride = head_bytes;
    const bool slots = layout->tokens > 1 && view->tokens_per_block != 1;
    if (!slots && view->first_slot == 0) rows.token_stride = rows.row_bytes;
    if (rows.head_stride == head_bytes) {
        rows.heads = 1;
        rows.head_bytes = rows.row_bytes;
    }
    rows.dense = rows.heads == 1 && rows.token_stride == rows.row_bytes;
    if (view->tokens_per_block == 0) {
        rows.start += view->first_slot * rows.token_stride;
    } else {
        rows.first_slot = view->first_slot;
    }
    return view_rows_part(&rows, rows.row_bytes, 0, tokens);
}

/* Whether a table's blocks follow each other, as pools that are filled in order have them. */
static bool rows_blocks_follow(const view_rows *rows, uint64_t used)
{
    if (rows->block_stride != rows->block_tokens * rows->token_stride) return false;
    for (uint64_t i = 1; rows->blocks != NULL && i < used; i++) {
        if (rows->blocks[i] != rows->blocks[0] + i) return false;
    }
    return true;
}

view_rows view_rows_part(const view_rows *rows, uint64_t row_bytes, uint64_t first, uint64_t count)
{
    view_rows part = *rows;
    part.bytes = count * row_bytes;
    if (rows->packed) {
        part.start += first * row_bytes;
        return part;
    }
    if (count == 0) return part;
    part.first_slot += first;
    if (part.block_tokens == UINT32_MAX) {
        part.start += part.first_slot * part.token_stride;
        part.first_slot = 0;
        part.packed = part.dense;
        return part;
    }
    const uint64_t block = part.first_slot / part.block_tokens;
    part.first_slot %= part.block_tokens;
    if (part.blocks != NULL) part.blocks += block;
    if (part.blocks == NULL) part.start += block * part.block_stride;
    const uint64_t used = (part.first_slot + count + part.block_tokens - 1) / part.block_tokens;
    if (used > 1 && !rows_blocks_follow(&part, used)) return part;
    /* One block, or as good as one. */
    if (part.blocks != NULL) part.start += part.blocks[0] * part.block_stride;
    if (part.first_slot != 0) part.start += part.first_slot * part.token_stride;
    part.blocks = NULL;
    part.first_slot = 0;
    part.block_tokens = UINT32_MAX;
    part.packed = part.dense;
    return part;
}

uint8_t *view_rows_room(const view_rows *rows, uint64_t at, uint64_t bytes, uint8_t *tile)
{
    assert(at + bytes <= rows->bytes);
    if (rows->packed) return rows->start + at;
    /* Reading lines before they are written costs more than carrying them past the caches. */
    if (rows->stream) return tile;
    const uint64_t in = at % rows->row_bytes;
    const view_rows_place place = view_rows_place_of(rows, at / rows->row_bytes);
    if (rows->dense) {
        const bool fits = place.left == UINT64_MAX || in + bytes <= place.left * rows->row_bytes;
        return fits ? place.row + in : tile;
    }
    const uint64_t head = in / rows->head_bytes;
    const uint64_t in_head = in % rows->head_bytes;
    if (in_head + bytes > rows->head_bytes) return tile;
    return place.row + head * rows->head_stride + in_head;
}

#if defined(__x86_64__)
static inline void view_stream_line(uint8_t *target, const uint8_t *source)
{
    for (uint32_t i = 0; i < VIEW_LINE; i += sizeof(__m128i)) {
        const __m128i part = _mm_loadu_si128((const __m128i *)(const void *)(source + i));
        _mm_stream_si128((__m128i *)(void *)(target + i), part);
    }
}

void view_rows_close(const view_rows *rows)
{
    if (rows->stream) _mm_sfence();
}
#else
static inline void view_stream_line(uint8_t *target, const uint8_t *source)
{
    memcpy(target, source, VIEW_LINE);
}

void view_rows_close(const view_rows *rows)
{
    (void)rows;
}
#endif

static inline void view_copy_line(uint8_t *target, const uint8_t *source)
{
    memcpy(target, source, VIEW_LINE);
}

#include "codecs/kernels/view_body.h"

static const view_kernels *view_kernels_in_use(void)
{
    static const view_kernels baseline = {body_scatter, body_gather};
#if defined(__x86_64__)
    switch (codecs_cpu_level()) {
    case CODECS_CPU_AVX512: return &view_kernels_avx512;
    case CODECS_CPU_AVX2: return &view_kernels_avx2;
    default: break;
    }
#endif
    return &baseline;
}

void view_rows_scatter(const view_rows *rows, uint64_t at, uint64_t bytes, const uint8_t *packed)
{
    view_kernels_in_use()->scatter(rows, at, bytes, packed);
}

void view_rows_gather(const view_rows *rows, uint64_t at, uint64_t bytes, uint8_t *packed)
{
    view_kernels_in_use()->gather(rows, at, bytes, packed);
}

bool view_is_apart(const kvt_view *view, const kvt_layout *layout)
{
    if (layout->dtype == KVT_DTYPE_OPAQUE) return false;
    return !view_rows_of(view, layout, layout->tokens, 0, KVT_SIDE_K).packed;
}

/* The entry's bytes when the view has them all in one run in the layout's order, else NULL. */
static uint8_t *view_packed_start(const kvt_view *view, const kvt_layout *layout)
{
    const kvt_view packed = codecs_packed_view(layout, view->base[0]);
    const bool plain =
        view->bases_kind == KVT_BASES_ONE && view->tokens_per_block == 0 && view->first_slot == 0;
    const bool same =
        view->layer_stride == packed.layer_stride && view->side_stride == packed.side_stride &&
        view->token_stride == packed.token_stride && view->head_stride == packed.head_stride;
    return plain && same ? view->base[0] : NULL;
}

void view_scatter_entry(const kvt_view *view, const kvt_layout *layout, uint32_t first_layer,
                        uint32_t layer_count, const void *packed)
{
    const uint64_t matrix = kvt_layout_matrix_bytes(layout);
    const uint32_t sides = kvt_layout_sides(layout);
    const bool opaque = layout->dtype == KVT_DTYPE_OPAQUE;
    const bool whole = first_layer == 0 && (layer_count == 0 || layer_count == layout->layers);
    uint8_t *start = whole ? view_packed_start(view, layout) : NULL;
    if (start != NULL) {
        base_copy_past(start, packed,
                       opaque ? layout->opaque_bytes : matrix * sides * layout->layers);
        return;
    }
    const uint32_t end = layer_count == 0 ? layout->layers : first_layer + layer_count;
    for (uint32_t m = first_layer * sides; m < end * sides; m++) {
        const kvt_side side = (kvt_side)(m % sides);
        view_rows rows = view_rows_of(view, layout, layout->tokens, m / sides, side);
        rows.stream = !rows.packed && matrix * sides * layout->layers >= VIEW_STREAM_BYTES;
        view_rows_scatter(&rows, 0, matrix,
                          (const uint8_t *)packed +
                              kvt_layout_matrix_offset(layout, m / sides, side));
        view_rows_close(&rows);
    }
}

void view_gather_entry(const kvt_view *view, const kvt_layout *layout, void *packed)
{
    const uint64_t matrix = kvt_layout_matrix_bytes(layout);
    const uint32_t sides = kvt_layout_sides(layout);
    const uint8_t *start = view_packed_start(view, layout);
    if (start != NULL) {
        const bool opaque = layout->dtype == KVT_DTYPE_OPAQUE;
        base_copy(packed, start, opaque ? layout->opaque_bytes : matrix * sides * layout->layers);
        return;
    }
    for (uint32_t m = 0; m < layout->layers * sides; m++) {
        const kvt_side side = (kvt_side)(m % sides);
        const view_rows rows = view_rows_of(view, layout, layout->tokens, m / sides, side);
        view_rows_gather(&rows, 0, matrix,
                         (uint8_t *)packed + kvt_layout_matrix_offset(layout, m / sides, side));
    }
}
