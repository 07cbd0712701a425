/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sequence_keep.c - a sequence becomes entries of the store, and comes back without clustering.
 *
 *     keep    for each unit: pages read and verified -> kept form -> entry; then the head entry
 *     open    head entry -> shape -> room -> for each unit: entry -> checks -> index, code, pages
 *
 * Entries are the store's: they survive as entries do, may be evicted as entries are, and a kept
 * sequence of which one has gone is a miss. The head entry is put last, so a keep that was cut
 * short is a miss as well.
 *
 * Memory: two units in kept form.
 *
 * Thread rule: the sequence's thread.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include <kvterrace/names.h>

#include "kept.h"
#include "sequence.h"

/* The key of a part of a kept sequence: the caller's, mixed with the part's number. */
static kvt_key part_key(const kvt_key *key, uint32_t number)
{
    kvt_key part;
    for (uint64_t i = 0; i < 2; i++) {
        const XXH128_hash_t hash =
            XXH3_128bits_withSeed(key, sizeof *key, (uint64_t)number * 2 + i + 1);
        memcpy(part.bytes + 16 * i, &hash, sizeof hash);
    }
    return part;
}

static sparse_kept_shape shape_of(const kvt_sparse *s)
{
    const kvt_sparse_options *o = &s->options;
    return (sparse_kept_shape){.id = s->id,
                               .layers = o->layout.layers,
                               .kv_heads = o->layout.kv_heads,
                               .head_dim = o->layout.head_dim,
                               .dtype = o->layout.dtype,
                               .tokens = o->layout.tokens,
                               .sink_tokens = o->sink_tokens,
                               .zone_tokens = s->zone_tokens,
                               .segment_tokens = o->segment_tokens,
                               .page_tokens = s->units[0].paging.page_tokens,
                               .variants = s->variants,
                               .row_bytes = s->row_bytes};
}

/* ---- keep ---- */

static kvt_status put_bytes(kvt_sparse *s, const kvt_key *key, const void *bytes, uint64_t size)
{
    const kvt_entry entry = {.struct_size = sizeof entry,
                             .key = *key,
                             .layout = {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = size},
                             .recompute_seconds = s->built_seconds > 0 ? s->built_seconds : 1};
    kvt_status status = kvt_put(s->store, &entry, bytes, size);
    if (status == KVT_EXISTS) return KVT_OK;
    return status == KVT_REFUSED || status == KVT_BUSY ? KVT_E_SPACE : status;
}

/* Reads the pages of a unit as they are, and checks them. */
static kvt_status read_pages(kvt_sparse *s, const sparse_unit *unit, uint8_t *target)
{
    const sparse_table *table = &unit->table;
    const uint32_t step = (4u << 20) / table->slot_bytes + 1; /* pages */
    sparse_block *block = sparse_block_make((uint64_t)step * table->slot_bytes);
    kvt_status status = block != NULL ? KVT_OK : KVT_E_MEMORY;
    for (uint32_t page = 0; page < unit->paging.pages && status == KVT_OK; page += step) {
        const uint32_t rest = unit->paging.pages - page, count = rest < step ? rest : step;
        const uint64_t bytes = (uint64_t)count * table->slot_bytes;
        sparse_block_start(block, scratch_pool(s->scratch, KVT_TIER_SSD), KVT_IO_READ,
                           table->location, (uint64_t)page * table->slot_bytes, bytes);
        const kvt_status whole = sparse_block_wait(block);
        if (sparse_block_memory(block) == NULL) { /* its drive may write into it still */
            sparse_block_free(block);
            block = sparse_block_make((uint64_t)step * table->slot_bytes);
            if (block == NULL) return KVT_E_MEMORY;
        }
        if (whole == KVT_OK)
            memcpy(target + (uint64_t)page * table->slot_bytes, sparse_block_memory(block), bytes);
        for (uint32_t i = 0; i < count && status == KVT_OK; i++) {
            uint8_t *slot = target + (uint64_t)(page + i) * table->slot_bytes;
            if (whole == KVT_OK && sparse_table_sound(table, &unit->code, page + i, slot)) continue;
            status = sparse_table_read(table, &unit->code, page + i, slot);
        }
    }
    sparse_block_free(block);
    return status;
}

/* Rows of one resident part, K then V. */
static void gather_resident(const kvt_sparse *s, const sparse_resident *rows, uint8_t *target)
{
    const uint64_t side = (uint64_t)rows->tokens * s->row_bytes;
    memcpy(target, rows->keys, side);
    memcpy(target + side, rows->values, side);
}

/* Local and appended rows of a unit in the order of positions: K, then V. */
typedef struct keep_rows {
    const kvt_sparse *s;
    uint8_t *keys, *values;
} keep_rows;

static void gather_row(const keep_rows *to, uint32_t position, const uint8_t *key,
                       const uint8_t *value)
{
    const uint64_t row = to->s->row_bytes, at = (position - to->s->local_first) * row;
    memcpy(to->keys + at, key, row);
    memcpy(to->values + at, value, row);
}

static void gather_joined(void *context, const sparse_joined *page)
{
    const keep_rows *to = context;
    const uint64_t row = to->s->row_bytes;
    for (uint32_t i = 0; i < page->tokens; i++)
        gather_row(to, page->positions[i], page->keys + i * row, page->values + i * row);
}

/* The best variant that a page at rest has. */
static pages_variant best_variant(const kvt_sparse *s, const sparse_unit *unit, uint32_t page)
{
    if (unit->tail.table.has_raw || !sparse_unit_has_code(s, unit, page)) return PAGES_RAW;
    return PAGES_BITS_8;
}

/* The rows of an appended page that is at rest, in the best variant it has. */
static kvt_status gather_page(kvt_sparse *s, const sparse_unit *unit, uint32_t own,
                              sparse_block *block, uint8_t *rows, const keep_rows *to)
{
    const sparse_table *table = &unit->tail.table;
    const uint32_t page = unit->paging.pages + own, tokens = s->tail_page.page_tokens;
    const pages_variant variant = best_variant(s, unit, page);
    const sparse_part part = sparse_table_part(table, own, variant);
    const uint64_t side = (uint64_t)tokens * s->row_bytes;
    const uint8_t *bytes = sparse_block_memory(block);
    if (bytes == NULL) return KVT_E_GONE;
    sparse_block_start(block, scratch_pool(s->scratch, KVT_TIER_SSD), KVT_IO_READ, table->location,
                       (uint64_t)own * table->slot_bytes + part.offset, part.bytes);
    kvt_status status = sparse_block_wait(block);
    if (status == KVT_OK && !sparse_table_verify(table, own, variant, bytes)) status = KVT_E_IO;
    if (status == KVT_OK && variant == PAGES_RAW) memcpy(rows, bytes, 2 * side);
    if (status == KVT_OK && variant != PAGES_RAW)
        status = sparse_unit_decode(s, unit, page, variant, bytes, rows, rows + side);
    for (uint32_t i = 0; i < tokens && status == KVT_OK; i++)
        gather_row(to, unit->tail.positions[(size_t)own * tokens + i], rows + i * s->row_bytes,
                   rows + side + i * s->row_bytes);
    return status;
}

/* All rows behind the zone, to target: of `tokens` tokens. */
static kvt_status gather_local(kvt_sparse *s, const sparse_unit *unit, uint32_t tokens,
                               uint8_t *target)
{
    const uint64_t row = s->row_bytes;
    keep_rows to = {.s = s, .keys = target, .values = target + tokens * row};
    const uint32_t first = s->local_first + tokens - unit->local.tokens;
    for (uint32_t i = 0; i < unit->local.tokens; i++)
        gather_row(&to, first + i, unit->local.keys + i * row, unit->local.values + i * row);
    (void)sparse_append_in_memory(unit, gather_joined, &to);
    const uint32_t pages = unit->tail.added.pages;
    if (pages == 0) return KVT_OK;
    sparse_block *block = sparse_block_make(unit->tail.table.slot_bytes);
    uint8_t *rows = malloc(2 * (size_t)s->tail_page.page_tokens * row);
    kvt_status status = block != NULL && rows != NULL ? KVT_OK : KVT_E_MEMORY;
    for (uint32_t own = 0; own < pages && status == KVT_OK; own++)
        status = gather_page(s, unit, own, block, rows, &to);
    sparse_block_free(block);
    free(rows);
    return status;
}

/* Tokens behind the zone. */
static uint32_t local_tokens(const kvt_sparse *s, uint32_t layer)
{
    return s->options.layout.tokens - s->local_first + s->appended[layer];
}

static kvt_status keep_unit(kvt_sparse *s, const sparse_kept_shape *shape, const kvt_key *key,
                            uint32_t number)
{
    const sparse_unit *unit = &s->units[number];
    const uint64_t sinks = 2 * (uint64_t)unit->sinks.tokens * s->row_bytes;
    const uint32_t tokens = local_tokens(s, number / shape->kv_heads);
    const uint64_t local = 2 * (uint64_t)tokens * s->row_bytes;
    uint8_t *resident = malloc(sinks + local + 1);
    if (resident == NULL) return KVT_E_MEMORY;
    gather_resident(s, &unit->sinks, resident);
    kvt_status status = gather_local(s, unit, tokens, resident + sinks);
    if (status != KVT_OK) {
        free(resident);
        return status;
    }
    const sparse_kept_unit kept = {
        .number = number,
        .clusters = unit->index.clusters,
        .local_tokens = tokens,
        .slot_bytes = unit->table.slot_bytes,
        .index = unit->index.memory,
        .index_bytes = unit->index.bytes,
        .code = unit->code.memory,
        .code_bytes = unit->code.bytes,
        .sums = (const uint8_t *)unit->table.sums,
        .sums_bytes = (uint64_t)unit->paging.pages * sizeof *unit->table.sums,
        .sinks = resident,
        .sinks_bytes = sinks,
        .local = resident + sinks,
        .local_bytes = local,
        .pages_bytes = (uint64_t)unit->paging.pages * unit->table.slot_bytes};
    uint64_t pages_at;
    const uint64_t size = sparse_kept_bytes(&kept, &pages_at);
    uint8_t *bytes = malloc(size);
    if (bytes == NULL) status = KVT_E_MEMORY;
    if (status == KVT_OK) {
        sparse_kept_write(shape, &kept, bytes);
        status = unit->paging.pages > 0 ? read_pages(s, unit, bytes + pages_at) : KVT_OK;
    }
    const kvt_key part = part_key(key, number);
    if (status == KVT_OK) status = put_bytes(s, &part, bytes, size);
    free(bytes);
    free(resident);
    return status;
}

/* An opaque entry's bytes; the caller frees them. */
static kvt_status get_bytes(kvt_store *store, const kvt_key *key, uint8_t **bytes_out,
                            uint64_t *size_out)
{
    kvt_description what = {.struct_size = sizeof what};
    kvt_status status = kvt_describe(store, key, &what);
    if (status != KVT_OK) return status;
    if (what.layout.dtype != KVT_DTYPE_OPAQUE) return KVT_E_MISMATCH;
    uint8_t *bytes = malloc(what.layout.opaque_bytes + 1);
    if (bytes == NULL) return KVT_E_MEMORY;
    status = kvt_get(store, key, bytes, what.layout.opaque_bytes, NULL);
    if (status != KVT_OK) {
        free(bytes);
        return status;
    }
    *bytes_out = bytes;
    *size_out = what.layout.opaque_bytes;
    return KVT_OK;
}

/* Whether a key has a kept sequence of which a part has gone: nobody can open it. */
static bool is_incomplete(kvt_store *store, const kvt_key *key)
{
    uint8_t *bytes = NULL;
    uint64_t size;
    sparse_kept_shape shape;
    kvt_status status = get_bytes(store, key, &bytes, &size);
    if (status != KVT_OK) return status == KVT_MISS;
    status = sparse_kept_read_head(bytes, size, &shape);
    free(bytes);
    if (status != KVT_OK) return false; /* somebody else's */
    for (uint32_t i = 0; i < shape.layers * shape.kv_heads; i++) {
        const kvt_key part = part_key(key, i);
        if (kvt_exists(store, &part) != KVT_OK) return true;
    }
    return false;
}

kvt_status kvt_sparse_keep(kvt_sparse *s, const kvt_key *key)
{
    if (s == NULL || key == NULL) return KVT_E_ARGUMENT;
    if (!s->ready || !scratch_is_ours(s->store)) return KVT_E_STATE;
    if (kvt_exists(s->store, key) == KVT_OK && !is_incomplete(s->store, key)) return KVT_EXISTS;
    const sparse_kept_shape shape = shape_of(s);
    const uint32_t units = shape.layers * shape.kv_heads;
    (void)!kvt_delete(s->store, key);
    for (uint32_t i = 0; i < units; i++) {
        /* A unit of an earlier keep that was cut short has another id. */
        const kvt_key part = part_key(key, i);
        (void)!kvt_delete(s->store, &part);
        kvt_status status = keep_unit(s, &shape, key, i);
        if (status != KVT_OK) return status;
    }
    uint8_t head[SPARSE_KEPT_HEAD_BYTES];
    sparse_kept_write_head(&shape, head);
    return put_bytes(s, key, head, sizeof head);
}

/* ---- open ---- */

static bool shape_fits(const kvt_sparse *s, const sparse_kept_shape *shape,
                       const sparse_paging *paging)
{
    const kvt_sparse_options *o = &s->options;
    return shape->layers == o->layout.layers && shape->kv_heads == o->layout.kv_heads &&
           shape->head_dim == o->layout.head_dim && shape->dtype == o->layout.dtype &&
           shape->tokens == o->layout.tokens && shape->sink_tokens == o->sink_tokens &&
           shape->zone_tokens == s->zone_tokens && shape->segment_tokens == o->segment_tokens &&
           shape->page_tokens == paging->page_tokens && shape->variants == s->variants &&
           shape->row_bytes == s->row_bytes;
}

static void put_resident(const kvt_sparse *s, const uint8_t *bytes, uint32_t tokens,
                         sparse_resident *target)
{
    const uint64_t side = (uint64_t)tokens * s->row_bytes;
    memcpy(target->keys, bytes, side);
    memcpy(target->values, bytes + side, side);
    target->tokens = tokens;
}

/* Local rows, of which the oldest join as they did when they were appended. */
static kvt_status put_local(kvt_sparse *s, sparse_unit *unit, const uint8_t *bytes, uint32_t tokens)
{
    const uint64_t row = s->row_bytes;
    const uint8_t *values = bytes + tokens * row;
    kvt_status status = sparse_append_reserve(s, unit, tokens);
    for (uint32_t i = 0; i < tokens && status == KVT_OK; i++)
        sparse_append_token(s, unit, bytes + i * row, values + i * row, s->local_first + i);
    return status;
}

/* A unit from its bytes. */
static kvt_status restore_unit(kvt_sparse *s, const sparse_kept_shape *shape,
                               const sparse_paging *paging, uint32_t number, sparse_block *block,
                               uint64_t size)
{
    const uint8_t *bytes = sparse_block_memory(block);
    sparse_unit *unit = &s->units[number];
    sparse_kept_unit kept;
    kvt_status status = sparse_kept_read(shape, paging, number, bytes, size, &kept);
    if (status != KVT_OK) return status;
    if (kept.local_tokens > s->local_most) return KVT_E_MISMATCH; /* tokens_max is lower now */
    const uint32_t first = s->options.layout.tokens - s->local_first;
    const uint32_t layer = number / shape->kv_heads, head = number % shape->kv_heads;
    if (kept.local_tokens < first) return KVT_E_CORRUPT;
    if (head == 0) s->appended[layer] = kept.local_tokens - first;
    if (kept.local_tokens - first != s->appended[layer]) return KVT_E_MISMATCH;
    unit->paging = *paging;
    status = sparse_kept_index(shape, &kept, &unit->index);
    if (status == KVT_OK) status = sparse_code_open(&unit->paging, &unit->code);
    if (status == KVT_OK)
        status = sparse_table_open(s->scratch, KVT_TIER_SSD, &unit->paging, s->variants,
                                   sparse_unit_id(s, number), &unit->table);
    if (status == KVT_OK) status = sparse_append_open_unit(s, unit);
    if (status == KVT_OK) status = sparse_window_open_unit(s, unit);
    if (status != KVT_OK) return status;
    assert(unit->code.bytes == kept.code_bytes && unit->table.slot_bytes == kept.slot_bytes);
    if (kept.code_bytes > 0) memcpy(unit->code.memory, kept.code, kept.code_bytes);
    if (kept.sums_bytes > 0) memcpy(unit->table.sums, kept.sums, kept.sums_bytes);
    put_resident(s, kept.sinks, shape->sink_tokens, &unit->sinks);
    status = put_local(s, unit, kept.local, kept.local_tokens);
    if (status != KVT_OK || unit->paging.pages == 0) return status;
    /* Bad pages fail when they are read. */
    sparse_block_start_at(block, (uint64_t)(kept.pages - bytes),
                          scratch_pool(s->scratch, KVT_TIER_SSD), KVT_IO_WRITE,
                          unit->table.location, 0, kept.pages_bytes);
    return KVT_OK;
}

/* An entry's bytes in a block that is not being written. */
static kvt_status get_block(kvt_sparse *s, const kvt_key *key, uint32_t turn,
                            sparse_block **block_out, uint64_t *size_out)
{
    sparse_block **block = &s->blocks[turn & 1];
    kvt_description what = {.struct_size = sizeof what};
    kvt_status status = kvt_describe(s->store, key, &what);
    if (status != KVT_OK) return status;
    if (what.layout.dtype != KVT_DTYPE_OPAQUE) return KVT_E_MISMATCH;
    const uint64_t size = what.layout.opaque_bytes;
    if (*block != NULL) status = sparse_block_wait(*block);
    if (status != KVT_OK) return status;
    if (*block == NULL || sparse_block_bytes(*block) < size) {
        sparse_block_free(*block);
        *block = sparse_block_make(size);
    }
    if (*block == NULL) return KVT_E_MEMORY;
    *block_out = *block;
    *size_out = size;
    return kvt_get(s->store, key, sparse_block_memory(*block), size, NULL);
}

/* While the pages of one unit are written, the next one's entry is read. */
static kvt_status restore_units(kvt_sparse *s, const kvt_key *key, const sparse_kept_shape *shape,
                                const sparse_paging *paging)
{
    kvt_status status = KVT_OK;
    const uint32_t heads = shape->kv_heads;
    for (uint32_t i = 0; i < shape->layers * heads && status == KVT_OK; i++) {
        const kvt_key part = part_key(key, i);
        sparse_block *block;
        uint64_t size;
        status = get_block(s, &part, i, &block, &size);
        if (status == KVT_OK) status = restore_unit(s, shape, paging, i, block, size);
        if (status == KVT_OK && (i + 1) % heads == 0) status = sparse_sequence_wait_blocks(s);
        if (status == KVT_OK && (i + 1) % heads == 0) status = sparse_sequence_add_layer(s);
    }
    return status;
}

kvt_status kvt_sparse_open_kept(kvt_store *store, const kvt_sparse_options *options,
                                const kvt_key *key, kvt_sparse **sequence_out, char *message,
                                size_t message_size)
{
    uint8_t *head;
    uint64_t size;
    sparse_kept_shape shape;
    kvt_sparse *s = NULL;
    sparse_paging paging;
    if (message != NULL && message_size > 0) message[0] = '\0';
    if (store == NULL || key == NULL || sequence_out == NULL) return KVT_E_ARGUMENT;
    kvt_status status = get_bytes(store, key, &head, &size);
    if (status == KVT_OK) {
        status = sparse_kept_read_head(head, size, &shape);
        free(head);
    }
    if (status == KVT_OK) status = sparse_sequence_make(store, options, &s, message, message_size);
    if (status != KVT_OK) {
        sparse_sequence_say(status, message, message_size);
        return status;
    }
    status = sparse_paging_init(&paging, s->options.layout.head_dim, s->options.layout.dtype,
                                s->zone_tokens, s->options.segment_tokens, s->options.page_tokens);
    if (status == KVT_OK && !shape_fits(s, &shape, &paging)) status = KVT_E_MISMATCH;
    s->id = shape.id;
    if (status == KVT_OK) status = restore_units(s, key, &shape, &paging);
    if (status != KVT_OK) {
        sparse_sequence_say(status, message, message_size);
        kvt_sparse_close(s);
        return status;
    }
    *sequence_out = s;
    return KVT_OK;
}
