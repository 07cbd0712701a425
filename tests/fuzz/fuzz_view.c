/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_view.c - the check of views against a map of bytes. The input chooses a small layout and a
 * view, with strides in any relation, in one pool. The map marks every byte of every element: what
 * passes the check has each byte once and none outside its buffers; what overlaps or leaves is
 * refused. What is refused for no such reason does not nest, is misaligned, or lacks something.
 * Of a view that passes, gathered rows are the marked bytes, and scattered rows touch no others.
 */
#include "codecs/view_rows.h"
#include "fuzz_arena.h"

#include <stdio.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FUZZ_POOL = 4096, FUZZ_LAYERS = 3, FUZZ_BLOCKS = 6 };

/* Mostly small, at times anything. */
static int64_t fuzz_stride(fuzz_input *input)
{
    const uint8_t kind = fuzz_byte(input);
    if (kind < 250) return (int64_t)fuzz_byte(input) * (kind % 4 == 0 ? 1 : 2 << kind % 3);
    int64_t stride = 0;
    for (uint32_t i = 0; i < 8; i++) {
        stride = (int64_t)((uint64_t)stride << 8 | fuzz_byte(input));
    }
    return stride;
}

typedef struct fuzz_case {
    kvt_layout layout;
    kvt_view view;
    void *bases[2 * FUZZ_LAYERS];
    uint64_t bases_bytes[2 * FUZZ_LAYERS];
    uint32_t blocks[FUZZ_BLOCKS];
    uint8_t *pool;
} fuzz_case;

static void fuzz_layout(fuzz_input *input, kvt_layout *layout)
{
    *layout = (kvt_layout){
        .layers = (uint16_t)(1 + fuzz_byte(input) % FUZZ_LAYERS),
        .kv_heads = (uint16_t)(1 + fuzz_byte(input) % 3),
        .head_dim = (uint16_t)(1 + fuzz_byte(input) % 4),
        .dtype = (uint8_t)(KVT_DTYPE_FP16 + fuzz_byte(input) % 4),
        .tokens = 1u + fuzz_byte(input) % 7,
    };
}

static void fuzz_address(fuzz_input *input, const fuzz_case *c, void **base, uint64_t *bytes)
{
    const uint32_t at = fuzz_byte(input) * 8u + (fuzz_byte(input) % 16 == 0 ? 1 : 0);
    *base = c->pool + at;
    *bytes = FUZZ_POOL - at;
    if (fuzz_byte(input) % 4 == 0) *bytes = fuzz_byte(input) * 4u;
}

/* A view that nests by its making, as a start, or none. */
static void fuzz_start(fuzz_input *input, fuzz_case *c)
{
    static const char *const axes[] = {"lsth", "slth", "tlsh", "lbths", "blsth", "lbsht",
                                       "tlh",  "lth",  "blth", "tsh",   "ht",    "bth"};
    const uint8_t which = fuzz_byte(input) % 16;
    const uint32_t per = 1u + fuzz_byte(input) % 4;
    c->view = (kvt_view){.struct_size = sizeof c->view};
    if (which >= sizeof axes / sizeof axes[0]) return;
    const bool paged = strchr(axes[which], 'b') != NULL || per > 2;
    if (kvt_view_make(&c->layout, axes[which], paged ? per : 0, 8, &c->view) != KVT_OK) abort();
}

static void fuzz_make(fuzz_input *input, fuzz_case *c)
{
    fuzz_layout(input, &c->layout);
    fuzz_start(input, c);
    kvt_view *view = &c->view;
    const uint8_t changes = fuzz_byte(input);
    if (changes & 1) view->layer_stride = fuzz_stride(input);
    if (changes & 2) view->side_stride = fuzz_stride(input);
    if (changes & 4) view->block_stride = fuzz_stride(input);
    if (changes & 8) view->token_stride = fuzz_stride(input);
    if (changes & 16) view->head_stride = fuzz_stride(input);
    if (changes & 32) view->bases_kind = fuzz_byte(input) % 5;
    if (changes & 64) view->tokens_per_block = fuzz_byte(input) % 5;
    if (changes & 128) view->first_slot = fuzz_byte(input) % 6;
    if (view->bases_kind < KVT_BASES_LAYERS) {
        fuzz_address(input, c, &view->base[0], &view->base_bytes[0]);
        if (view->bases_kind == KVT_BASES_SIDES)
            fuzz_address(input, c, &view->base[1], &view->base_bytes[1]);
    } else {
        view->bases = c->bases;
        view->bases_bytes = c->bases_bytes;
        for (uint32_t i = 0; i < 2 * FUZZ_LAYERS; i++)
            fuzz_address(input, c, &c->bases[i], &c->bases_bytes[i]);
    }
    const uint8_t count = fuzz_byte(input) % 8;
    for (uint32_t i = 0; i < FUZZ_BLOCKS; i++)
        c->blocks[i] = fuzz_byte(input) % 9;
    if (count > FUZZ_BLOCKS || view->tokens_per_block == 0) return;
    view->blocks = c->blocks;
    view->block_count = count;
}

/* Whether every element's head is one of its buffer and no byte belongs to two. marks: of the pool.
 * Offsets are sums of products that the 128 bits below cannot lose. */
static bool fuzz_is_sound(const fuzz_case *c, uint8_t *marks)
{
    __extension__ typedef __int128 wide;
    const kvt_view *view = &c->view;
    const kvt_layout *layout = &c->layout;
    const uint64_t head_bytes = (uint64_t)layout->head_dim * kvt_dtype_bytes(layout->dtype);
    const uint32_t per = view->tokens_per_block != 0 ? view->tokens_per_block : UINT32_MAX;
    const uint32_t rows = 2u * layout->layers * layout->tokens;
    for (uint32_t i = 0; i < rows * layout->kv_heads; i++) {
        const uint32_t head = i % layout->kv_heads, row = i / layout->kv_heads;
        const uint32_t token = row % layout->tokens, matrix = row / layout->tokens;
        const uint32_t side = matrix % 2, layer = matrix / 2;
        const uint32_t p = view->first_slot + token;
        if (view->blocks != NULL && p / per >= view->block_count) return false;
        const uint32_t block = view->blocks != NULL ? view->blocks[p / per] : p / per;
        wide at = (wide)(p % per) * view->token_stride + (wide)block * view->block_stride +
                  (wide)head * view->head_stride;
        const uint8_t *base = view->base[0];
        uint64_t bytes = view->base_bytes[0];
        if (view->bases_kind == KVT_BASES_SIDES) {
            base = view->base[side];
            bytes = view->base_bytes[side];
        } else if (view->bases_kind >= KVT_BASES_LAYERS) {
            const uint32_t index =
                view->bases_kind == KVT_BASES_LAYERS_SIDES ? 2 * layer + side : layer;
            base = view->bases[index];
            bytes = view->bases_bytes[index];
        }
        if (view->bases_kind < KVT_BASES_LAYERS) at += (wide)layer * view->layer_stride;
        if (view->bases_kind % 2 == 0) at += (wide)side * view->side_stride;
        if (at < 0 || at + (wide)head_bytes > (wide)bytes) return false;
        uint8_t *mark = marks + (base - c->pool) + (uint64_t)at;
        for (uint64_t k = 0; k < head_bytes; k++) {
            if (mark[k]) return false;
            mark[k] = 1;
        }
    }
    return true;
}

/* Rows of a sound view are its marked bytes. */
static void fuzz_move(const fuzz_case *c, const uint8_t *marks)
{
    uint8_t packed[FUZZ_POOL];
    uint64_t moved = 0, marked = 0;
    memset(c->pool, 0, FUZZ_POOL);
    memset(packed, 1, sizeof packed);
    for (uint32_t m = 0; m < 2u * c->layout.layers; m++) {
        const view_rows rows =
            view_rows_of(&c->view, &c->layout, c->layout.tokens, m / 2, (kvt_side)(m % 2));
        const uint64_t cut = rows.bytes / 3;
        view_rows_scatter(&rows, 0, cut, packed);
        view_rows_scatter(&rows, cut, rows.bytes - cut, packed);
        uint8_t *again = fuzz_arena_take(rows.bytes);
        view_rows_gather(&rows, 0, rows.bytes, again);
        if (memcmp(again, packed, rows.bytes) != 0) abort();
        moved += rows.bytes;
    }
    if (memcmp(c->pool, marks, FUZZ_POOL) != 0) abort();
    for (uint32_t i = 0; i < FUZZ_POOL; i++)
        marked += marks[i];
    if (moved != marked) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input input = {data, size};
    fuzz_case c = {0};
    char message[200] = "";
    fuzz_arena_reset();
    c.pool = fuzz_arena_take(FUZZ_POOL);
    uint8_t *marks = fuzz_arena_take(FUZZ_POOL);
    memset(marks, 0, FUZZ_POOL);
    fuzz_make(&input, &c);
    const kvt_status status = kvt_view_check(&c.view, &c.layout, message, sizeof message);
    const bool kind = c.view.bases_kind <= KVT_BASES_LAYERS_SIDES;
    const bool sound = kind && fuzz_is_sound(&c, marks);
    if (status != KVT_OK && (status != KVT_E_ARGUMENT || message[0] == 0)) abort();
    if (status == KVT_OK && !sound) abort();
    if (status == KVT_OK) fuzz_move(&c, marks);
    /* A view that is sound is refused for these reasons alone. */
    static const char *const allowed[] = {"interleave",      "multiple",  "negative",
                                          "first_slot",      "overflows", "tokens_per_block",
                                          "without a table", "twice"};
    if (status == KVT_OK || !sound) return 0;
    for (size_t i = 0; i < sizeof allowed / sizeof allowed[0]; i++) {
        if (strstr(message, allowed[i]) != NULL) return 0;
    }
    abort();
}
