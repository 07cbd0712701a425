/* SPDX-License-Identifier: Apache-2.0 */
/*
 * view_rows.h - one (layer, side) matrix where a view has it. Codecs count in bytes of the packed
 * matrix [token][head][dim]; this file knows where those bytes are.
 *
 * A decoder asks for room for a piece of the matrix. Where the piece has its bytes in one run of
 * the view the room is that run, and nothing is copied. Else the room is the decoder's tile, a
 * buffer that stays in the first cache, and view_rows_keep carries it to the view.
 *
 * Re-entrant.
 */
#ifndef CODECS_VIEW_ROWS_H
#define CODECS_VIEW_ROWS_H

#include <kvterrace/view.h>

enum {
    VIEW_TILE_BYTES = 8192,     /* of a decoder that chooses its pieces freely */
    VIEW_STREAM_BYTES = 1 << 20 /* an entry this large is scattered past the caches */
};

/* Axes whose bytes follow each other are one axis here: without gaps between heads there is one
 * head, a whole row; without gaps between rows a run reaches to the end of its block. */
typedef struct view_rows {
    uint8_t *start; /* of block 0, slot 0 */
    uint64_t bytes; /* of the packed matrix */
    bool packed;    /* all of it is one run from `start` on; nothing below counts */
    bool dense;     /* heads == 1, and the rows of a block follow each other */
    bool stream;    /* scattered lines are written past the caches: view_rows_close ends it */
    uint32_t heads;
    uint32_t block_tokens; /* UINT32_MAX: no blocks */
    uint64_t row_bytes;
    uint64_t head_bytes;
    uint64_t head_stride;
    uint64_t token_stride;
    uint64_t block_stride;
    uint64_t first_slot;    /* of token 0, from blocks[0] on */
    const uint32_t *blocks; /* NULL: 0, 1, 2, .. */
} view_rows;

/* Whether a view, or one of its groups, is of memory that the host cannot touch. */
static inline bool view_is_far(const kvt_view *view)
{
    bool far = view->memory != KVT_MEMORY_HOST;
    if (view->struct_size < offsetof(kvt_view, reserved)) return far;
    if (view->bases_kind != KVT_BASES_GROUPS || view->groups == NULL) return far;
    if (view->group_count > KVT_GROUPS_MAX) return far; /* refused by its check */
    for (uint32_t i = 0; i < view->group_count; i++)
        far = far || (view->groups[i] != NULL && view->groups[i]->memory != KVT_MEMORY_HOST);
    return far;
}

/* The view of a packed buffer with the strides of its layout, which has been checked: the views
 * that codecs take have strides or bases. */
kvt_view codecs_packed_view(const kvt_layout *layout, void *data);

/* A matrix, or any bytes, in one run. */
static inline view_rows view_rows_packed(void *start, uint64_t bytes)
{
    return (view_rows){.start = start, .bytes = bytes, .packed = true};
}

/* The same as an argument of one call. */
#define VIEW_ROWS_PACKED(at, count)                                                                \
    (&(const view_rows){.start = (at), .bytes = (count), .packed = true})

/* A matrix of a view that has been checked. tokens: the layout's, or fewer. */
view_rows view_rows_of(const kvt_view *view, const kvt_layout *layout, uint32_t tokens,
                       uint32_t layer, kvt_side side);

/* Whether a view has its matrices apart, none of them in one run. */
bool view_is_apart(const kvt_view *view, const kvt_layout *layout);

/* The matrix' rows from `first` on, `count` of row_bytes each. */
view_rows view_rows_part(const view_rows *rows, uint64_t row_bytes, uint64_t first, uint64_t count);

/* Where `bytes` bytes from `at` on, which lie inside of the matrix, may be written in one run. tile
 * has room for them. */
uint8_t *view_rows_room(const view_rows *rows, uint64_t at, uint64_t bytes, uint8_t *tile);

/* Copies packed bytes to their places, and packed bytes from their places. */
void view_rows_scatter(const view_rows *rows, uint64_t at, uint64_t bytes, const uint8_t *packed);
void view_rows_gather(const view_rows *rows, uint64_t at, uint64_t bytes, uint8_t *packed);

/* Copies layers of a packed entry into a view that has been checked for its layout: `layer_count`
 * of them from first_layer on, 0 = all that follow. */
void view_scatter_entry(const kvt_view *view, const kvt_layout *layout, uint32_t first_layer,
                        uint32_t layer_count, const void *packed);

/* Copies an entry out of a view into kvt_layout_bytes(layout) bytes. */
void view_gather_entry(const kvt_view *view, const kvt_layout *layout, void *packed);

/* After the last byte of a matrix that is streamed: other threads see all of it. */
void view_rows_close(const view_rows *rows);

/* Ends what view_rows_room began with the same arguments. */
static inline void view_rows_keep(const view_rows *rows, uint64_t at, uint64_t bytes,
                                  const uint8_t *room, const uint8_t *tile)
{
    if (room == tile) view_rows_scatter(rows, at, bytes, room);
}

/* The most bytes of a piece: all of a packed matrix, else what a tile of `tile_bytes` takes. */
static inline uint64_t view_rows_piece(const view_rows *rows, uint64_t tile_bytes)
{
    return rows->packed ? UINT64_MAX : tile_bytes;
}

#endif
