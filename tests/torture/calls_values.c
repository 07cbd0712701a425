/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calls_values.c - keys, layouts, contents and views of the torture of the calls.
 *
 * A row is one token of one side of a layer. Its values have magnitudes from 0.75 to 1.5. The signs
 * of its first 32 are the bits of the version, all other signs and the magnitudes are noise of key,
 * version and row. Quantizers of at least two bits keep these signs.
 */
#include "calls.h"
#include "codecs/view_rows.h"

#include "expected.h"

#include <kvterrace/key.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { VALUES_VERSION_BITS = 32, VALUES_FAMILIES = 4 };

const calls_rung calls_rungs[CALLS_RUNGS] = {
    {"planes:k8v8,g64", 8.5, 0.0005, 0.001, 0.03},
    {"planes:k6v6,g64", 6.5, 0.001, 0.002, 0.08},
    {"planes:k4v4,g64", 4.5, 0.005, 0.009, 0.25},
    {"kivi:k2v2,g64", 2.5, 0.02, 0.03, 0.6},
};

/* ---- keys ---- */

/* Families of keys, by their entries: exact of one side, of two sides, opaque, lossy. */
typedef enum values_family {
    VALUES_EXACT = 0,
    VALUES_LOSSY = 1,
    VALUES_ONE_SIDE = 2,
    VALUES_OPAQUE = 3
} values_family;

static values_family values_family_of(uint32_t number)
{
    static const values_family of[8] = {VALUES_EXACT, VALUES_EXACT, VALUES_LOSSY,    VALUES_EXACT,
                                        VALUES_EXACT, VALUES_LOSSY, VALUES_ONE_SIDE, VALUES_OPAQUE};
    return of[number % 8];
}

static const kvt_layout values_layouts[VALUES_FAMILIES][2] = {
    {{.layers = CALLS_LAYERS, .kv_heads = 1, .head_dim = 64, .dtype = KVT_DTYPE_BF16, .tokens = 8},
     {.layers = CALLS_LAYERS,
      .kv_heads = 1,
      .head_dim = 64,
      .dtype = KVT_DTYPE_BF16,
      .tokens = 28}},
    {{.layers = CALLS_LAYERS, .kv_heads = 2, .head_dim = 64, .dtype = KVT_DTYPE_BF16, .tokens = 64},
     {.layers = CALLS_LAYERS,
      .kv_heads = 2,
      .head_dim = 64,
      .dtype = KVT_DTYPE_BF16,
      .tokens = 48}},
    {{.layers = CALLS_LAYERS,
      .kv_heads = 1,
      .head_dim = 128,
      .dtype = KVT_DTYPE_BF16,
      .tokens = 16,
      .sides = 1},
     {.layers = CALLS_LAYERS,
      .kv_heads = 1,
      .head_dim = 128,
      .dtype = KVT_DTYPE_BF16,
      .tokens = 12,
      .sides = 1}},
    {{.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = 4096},
     {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = 20000}}};

const kvt_layout *calls_layout_of(uint32_t number)
{
    return &values_layouts[values_family_of(number)][number / 8 % 2];
}

/* Halves of the exact layouts of two sides, with an order that counts layers first. */
static const kvt_layout values_groups[2][CALLS_GROUPS] = {{{.layers = CALLS_LAYERS / 2,
                                                            .kv_heads = 1,
                                                            .head_dim = 64,
                                                            .dtype = KVT_DTYPE_BF16,
                                                            .tokens = 8},
                                                           {.layers = CALLS_LAYERS / 2,
                                                            .kv_heads = 1,
                                                            .head_dim = 64,
                                                            .dtype = KVT_DTYPE_BF16,
                                                            .tokens = 8}},
                                                          {{.layers = CALLS_LAYERS / 2,
                                                            .kv_heads = 1,
                                                            .head_dim = 64,
                                                            .dtype = KVT_DTYPE_BF16,
                                                            .tokens = 28},
                                                           {.layers = CALLS_LAYERS / 2,
                                                            .kv_heads = 1,
                                                            .head_dim = 64,
                                                            .dtype = KVT_DTYPE_BF16,
                                                            .tokens = 28}}};

const kvt_layout *calls_groups_of(uint32_t number)
{
    return number % 8 == 1 ? values_groups[number / 8 % 2] : NULL;
}

bool calls_is_lossy(uint32_t number)
{
    return values_family_of(number) == VALUES_LOSSY;
}

bool calls_may_expire(uint32_t number)
{
    return number % 4 == 3;
}

uint64_t calls_bytes_of(uint32_t number)
{
    uint64_t bytes = 0;
    if (kvt_layout_bytes(calls_layout_of(number), &bytes) != KVT_OK) abort();
    return bytes;
}

uint32_t calls_tenant_of(uint32_t number)
{
    return number % CALLS_TENANTS;
}

kvt_key calls_key_of(uint32_t number)
{
    kvt_key key = {{0}};
    key.bytes[0] = (uint8_t)(1 + number % CALLS_SPACES);
    memcpy(key.bytes + 8, &number, sizeof number);
    key.bytes[31] = 0xca;
    return key;
}

uint32_t calls_number_of(const kvt_key *key)
{
    uint32_t number;
    memcpy(&number, key->bytes + 8, sizeof number);
    return key->bytes[31] == 0xca && number < CALLS_KEYS ? number : CALLS_KEYS;
}

uint64_t calls_space_of(uint32_t number)
{
    kvt_key key = calls_key_of(number);
    return kvt_key_space(&key);
}

/* ---- contents ---- */

/* The rows of a key's entry; an opaque entry is rows of 64 elements, the last one cut. */
typedef struct values_shape {
    uint32_t row_elements;
    uint32_t rows_of_layer;
    uint32_t layers;
    uint64_t bytes;
} values_shape;

static values_shape values_shape_of(uint32_t number)
{
    const kvt_layout *layout = calls_layout_of(number);
    uint64_t bytes = calls_bytes_of(number);
    if (layout->dtype == KVT_DTYPE_OPAQUE)
        return (values_shape){.row_elements = 64,
                              .rows_of_layer = (uint32_t)(bytes / 128),
                              .layers = 1,
                              .bytes = bytes};
    return (values_shape){.row_elements = (uint32_t)layout->kv_heads * layout->head_dim,
                          .rows_of_layer = kvt_layout_sides(layout) * layout->tokens,
                          .layers = layout->layers,
                          .bytes = bytes};
}

static void values_fill_row(uint32_t number, uint32_t version, uint32_t row, uint32_t elements,
                            uint16_t *out)
{
    uint64_t state = ((uint64_t)number << 48) ^ ((uint64_t)row << 32) ^ version, noise = 0;
    (void)expected_random(&state);
    for (uint32_t i = 0; i < elements; i++) {
        if (i % 8 == 0) noise = expected_random(&state);
        uint32_t bits = (uint32_t)(noise >> (i % 8 * 8)) & 0xff;
        uint32_t sign = i < VALUES_VERSION_BITS ? version >> i & 1 : bits >> 7;
        out[i] = (uint16_t)(sign << 15 | (0x3f40 + (bits & 0x7f)));
    }
}

void calls_fill(uint32_t number, uint32_t version, void *packed)
{
    values_shape shape = values_shape_of(number);
    uint16_t *elements = packed;
    uint32_t rows = shape.rows_of_layer * shape.layers;
    for (uint32_t row = 0; row < rows; row++)
        values_fill_row(number, version, row, shape.row_elements,
                        elements + (uint64_t)row * shape.row_elements);
    uint64_t filled = (uint64_t)rows * shape.row_elements * 2;
    memset((unsigned char *)packed + filled, 0x11, shape.bytes - filled);
}

static float values_float(uint16_t element)
{
    uint32_t bits = (uint32_t)element << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static bool values_are_near(const uint16_t *got, const uint16_t *wanted, uint32_t count,
                            double bound)
{
    for (uint32_t i = 0; i < count; i++) {
        double off = fabs((double)values_float(got[i]) - (double)values_float(wanted[i]));
        if (!(off <= bound) || (got[i] ^ wanted[i]) >> 15 != 0) return false;
    }
    return true;
}

uint32_t calls_read(calls_site *site, uint32_t number, const void *packed, uint32_t first_layer,
                    uint32_t layer_count, double bound, void *wanted)
{
    values_shape shape = values_shape_of(number);
    const uint16_t *elements = packed;
    uint32_t version = 0;
    for (uint32_t i = 0; i < VALUES_VERSION_BITS; i++)
        version |= (uint32_t)(elements[i] >> 15) << i;
    uint16_t *right = wanted;
    uint32_t rows = shape.rows_of_layer * layer_count, from = shape.rows_of_layer * first_layer;
    for (uint32_t row = 0; row < rows; row++) {
        const uint16_t *got = elements + (uint64_t)row * shape.row_elements;
        values_fill_row(number, version, from + row, shape.row_elements, right);
        if (memcmp(got, right, shape.row_elements * 2) == 0) continue;
        if (bound > 0 && values_are_near(got, right, shape.row_elements, bound)) continue;
        calls_violate(site, number, "a get gave bytes of no version, of several, or too far off",
                      (int64_t)version << 32 | row);
    }
    uint64_t read = (uint64_t)rows * shape.row_elements * 2;
    const unsigned char *rest = (const unsigned char *)packed + read;
    for (uint64_t i = 0; layer_count == shape.layers && i < shape.bytes - read; i++)
        if (rest[i] != 0x11) calls_violate(site, number, "a get gave a wrong end", (int64_t)i);
    return version;
}

/* ---- quality ---- */

double calls_bound(uint32_t number, double loss_max)
{
    double bound = 0;
    if (!calls_is_lossy(number) || loss_max < 0) return 0;
    for (uint32_t i = 0; i < CALLS_RUNGS; i++)
        if (loss_max == 0 || calls_rungs[i].upper <= loss_max) bound = calls_rungs[i].bound;
    return bound;
}

double calls_bound_of(calls_site *site, uint32_t number, double loss_max, kvt_variant variant)
{
    if (variant.codec == KVT_CODEC_RAW || variant.codec == KVT_CODEC_LOSSLESS) return 0;
    char name[96];
    (void)kvt_variant_format(variant, name, sizeof name);
    for (uint32_t i = 0; i < CALLS_RUNGS; i++) {
        const calls_rung *rung = &calls_rungs[i];
        if (strcmp(name, rung->name) != 0) continue;
        bool accepted =
            calls_is_lossy(number) && loss_max >= 0 && (loss_max == 0 || rung->upper <= loss_max);
        if (!accepted)
            calls_violate(site, number, "a get gave a variant that it did not accept", i);
        atomic_fetch_add(&site->counts.lossy_hits, 1);
        /* What was decoded into planes of eight bits may have been coded again from them. */
        return rung->bound + calls_rungs[0].bound;
    }
    calls_violate(site, number, "a get gave a variant that the store does not keep", variant.codec);
}

/* ---- views ---- */

/* Axes of the shapes: packed is the first. */
static const char *const values_axes[] = {"lsth",  "lsth",  "slth",  "tlsh",
                                          "lbths", "blsth", "lbsht", "bthls"};

void calls_place_make(calls_thread *self, uint32_t number, calls_place *place)
{
    const kvt_layout *layout = calls_layout_of(number);
    uint32_t which = calls_draw(self, sizeof values_axes / sizeof values_axes[0]);
    if (which == 0 || layout->dtype == KVT_DTYPE_OPAQUE) {
        place->view = codecs_packed_view(layout, place->pool);
        return;
    }
    bool paged = strchr(values_axes[which], 'b') != NULL;
    uint32_t per = paged ? 4u << calls_draw(self, 2) : 0, first = paged ? calls_draw(self, per) : 0;
    uint32_t count = paged ? (first + layout->tokens + per - 1) / per : 0;
    uint32_t pool_blocks = paged ? count + calls_draw(self, 3) : layout->tokens;
    if (count > CALLS_BLOCKS_MAX ||
        kvt_view_make(layout, values_axes[which], per, pool_blocks, &place->view) != KVT_OK)
        calls_violate(self->site, number, "a view cannot be made", which);
    place->view.base[0] = place->pool;
    if (place->view.base_bytes[0] > CALLS_POOL_BYTES)
        calls_violate(self->site, number, "a pool is too small", which);
    place->view.first_slot = first;
    if (!paged) return;
    uint32_t order[CALLS_BLOCKS_MAX + 4];
    for (uint32_t i = 0; i < pool_blocks; i++) {
        uint32_t at = calls_draw(self, i + 1);
        order[i] = order[at];
        order[at] = i;
    }
    memcpy(place->blocks, order, count * sizeof order[0]);
    place->view.blocks = place->blocks;
    place->view.block_count = count;
}

uint32_t calls_place_cut(uint32_t number, calls_place *place)
{
    const kvt_layout *groups = calls_groups_of(number);
    if (groups == NULL) {
        place->pointers[0] = &place->view;
        return 1;
    }
    int64_t at = 0;
    for (uint32_t i = 0; i < CALLS_GROUPS; at += groups[i].layers * place->view.layer_stride, i++) {
        kvt_view *part = &place->parts[i];
        *part = place->view;
        part->base[0] = (unsigned char *)place->view.base[0] + at;
        part->base_bytes[0] -= (uint64_t)at < part->base_bytes[0] ? (uint64_t)at : 0;
        place->pointers[i] = part;
    }
    return CALLS_GROUPS;
}

/* Elements of a head are dense unless the view says otherwise: all of these have them dense. */
typedef enum place_move { PLACE_GATHER, PLACE_SCATTER, PLACE_WIPE } place_move;

static void place_walk(const calls_place *place, uint32_t number, uint32_t first_layer,
                       uint32_t layer_count, place_move move, unsigned char *packed)
{
    const kvt_layout *layout = calls_layout_of(number);
    if (layout->dtype == KVT_DTYPE_OPAQUE) {
        uint64_t bytes = calls_bytes_of(number);
        if (move == PLACE_GATHER) memcpy(packed, place->pool, bytes);
        if (move == PLACE_SCATTER) memcpy(place->pool, packed, bytes);
        if (move == PLACE_WIPE) memset(place->pool, CALLS_UNTOUCHED, bytes);
        return;
    }
    uint32_t bytes = layout->head_dim * 2u, sides = kvt_layout_sides(layout);
    uint32_t heads = layout->kv_heads, per_layer = sides * layout->tokens * heads;
    for (uint32_t i = 0; i < layer_count * per_layer; i++) {
        uint32_t head = i % heads, token = i / heads % layout->tokens;
        uint32_t side = i / heads / layout->tokens % sides, layer = first_layer + i / per_layer;
        /* The row of one head; the views of this program have one address. */
        const kvt_view *view = &place->view;
        uint64_t slot = (uint64_t)view->first_slot + token, block = 0;
        if (view->tokens_per_block != 0) {
            block = view->blocks[slot / view->tokens_per_block];
            slot %= view->tokens_per_block;
        }
        unsigned char *there =
            (unsigned char *)view->base[0] + (int64_t)layer * view->layer_stride +
            (int64_t)side * view->side_stride + (int64_t)block * view->block_stride +
            (int64_t)slot * view->token_stride + (int64_t)head * view->head_stride;
        unsigned char *here = packed + (uint64_t)i * bytes;
        if (move == PLACE_GATHER) memcpy(here, there, bytes);
        if (move == PLACE_SCATTER) memcpy(there, here, bytes);
        if (move == PLACE_WIPE) memset(there, CALLS_UNTOUCHED, bytes);
    }
}

void calls_place_scatter(const calls_place *place, uint32_t number, void *packed)
{
    place_walk(place, number, 0, CALLS_LAYERS, PLACE_SCATTER, packed);
}

void calls_place_gather(const calls_place *place, uint32_t number, uint32_t first_layer,
                        uint32_t layer_count, void *packed)
{
    place_walk(place, number, first_layer, layer_count, PLACE_GATHER, packed);
}

void calls_place_wipe(calls_site *site, const calls_place *place, uint32_t number,
                      uint32_t first_layer, uint32_t layer_count)
{
    unsigned char none[1];
    place_walk(place, number, first_layer, layer_count, PLACE_WIPE, none);
    const unsigned char *pool = place->pool;
    if (pool[0] == CALLS_UNTOUCHED && memcmp(pool, pool + 1, CALLS_POOL_BYTES - 1) == 0) return;
    calls_violate(site, number, "memory beside a view was written", first_layer);
}
