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
 * Memory: one unit in kept form.
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
        status = sparse_block_wait(block);
        if (status != KVT_OK) break;
        memcpy(target + (uint64_t)page * table->slot_bytes, sparse_block_memory(block), bytes);
        for (uint32_t i = 0; i < count && status == KVT_OK; i++)
            if (!sparse_table_sound(table, &unit->code, page + i,
                                    target + (uint64_t)(page + i) * table->slot_bytes))
                status = KVT_E_IO;
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

static kvt_status keep_unit(kvt_sparse *s, const sparse_kept_shape *shape, const kvt_key *key,
                            uint32_t number)
{
    const sparse_unit *unit = &s->units[number];
    const uint64_t sinks = 2 * (uint64_t)unit->sinks.tokens * s->row_bytes;
    const uint64_t local = 2 * (uint64_t)unit->local.tokens * s->row_bytes;
    uint8_t *resident = malloc(sinks + local + 1);
    if (resident == NULL) return KVT_E_MEMORY;
    gather_resident(s, &unit->sinks, resident);
    gather_resident(s, &unit->local, resident + sinks);
    const sparse_kept_unit kept = {
        .number = number,
        .clusters = unit->index.clusters,
        .local_tokens = unit->local.tokens,
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
    kvt_status status = bytes != NULL ? KVT_OK : KVT_E_MEMORY;
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

kvt_status kvt_sparse_keep(kvt_sparse *s, const kvt_key *key)
{
    if (s == NULL || key == NULL) return KVT_E_ARGUMENT;
    if (!s->ready) return KVT_E_STATE;
    if (kvt_exists(s->store, key) == KVT_OK) return KVT_EXISTS;
    const sparse_kept_shape shape = shape_of(s);
    const uint32_t units = shape.layers * shape.kv_heads;
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

/* Writes pages to their slots; bad ones fail when they are read. */
static kvt_status write_pages(kvt_sparse *s, const sparse_unit *unit, const uint8_t *pages)
{
    const sparse_table *table = &unit->table;
    const uint32_t step = (4u << 20) / table->slot_bytes + 1;
    kvt_status status = KVT_OK;
    uint32_t turn = 0;
    for (uint32_t page = 0; page < unit->paging.pages && status == KVT_OK; page += step, turn++) {
        const uint32_t rest = unit->paging.pages - page, count = rest < step ? rest : step;
        const uint64_t bytes = (uint64_t)count * table->slot_bytes;
        sparse_block **block = &s->blocks[turn & 1];
        if (*block == NULL) *block = sparse_block_make((uint64_t)step * table->slot_bytes);
        if (*block == NULL) return KVT_E_MEMORY;
        status = sparse_block_wait(*block);
        if (status != KVT_OK) break;
        memcpy(sparse_block_memory(*block), pages + (uint64_t)page * table->slot_bytes, bytes);
        sparse_block_start(*block, scratch_pool(s->scratch, KVT_TIER_SSD), KVT_IO_WRITE,
                           table->location, (uint64_t)page * table->slot_bytes, bytes);
    }
    for (int i = 0; i < 2; i++) {
        kvt_status own = s->blocks[i] != NULL ? sparse_block_wait(s->blocks[i]) : KVT_OK;
        if (status == KVT_OK) status = own;
    }
    return status;
}

static void put_resident(const kvt_sparse *s, const uint8_t *bytes, uint32_t tokens,
                         sparse_resident *target)
{
    const uint64_t side = (uint64_t)tokens * s->row_bytes;
    memcpy(target->keys, bytes, side);
    memcpy(target->values, bytes + side, side);
    target->tokens = tokens;
}

/* A unit from its bytes. */
static kvt_status restore_unit(kvt_sparse *s, const sparse_kept_shape *shape,
                               const sparse_paging *paging, uint32_t number, const uint8_t *bytes,
                               uint64_t size)
{
    sparse_unit *unit = &s->units[number];
    sparse_kept_unit kept;
    kvt_status status = sparse_kept_read(shape, paging, number, bytes, size, &kept);
    if (status != KVT_OK) return status;
    if (kept.local_tokens > s->local_room) return KVT_E_MISMATCH; /* tokens_max is lower now */
    unit->paging = *paging;
    status = sparse_kept_index(shape, &kept, &unit->index);
    if (status == KVT_OK) status = sparse_code_open(&unit->paging, &unit->code);
    if (status == KVT_OK)
        status = sparse_table_open(s->scratch, KVT_TIER_SSD, &unit->paging, s->variants,
                                   sparse_unit_id(s, number), &unit->table);
    if (status == KVT_OK) status = sparse_window_open_unit(s, unit);
    if (status != KVT_OK) return status;
    assert(unit->code.bytes == kept.code_bytes && unit->table.slot_bytes == kept.slot_bytes);
    if (kept.code_bytes > 0) memcpy(unit->code.memory, kept.code, kept.code_bytes);
    if (kept.sums_bytes > 0) memcpy(unit->table.sums, kept.sums, kept.sums_bytes);
    put_resident(s, kept.sinks, shape->sink_tokens, &unit->sinks);
    put_resident(s, kept.local, kept.local_tokens, &unit->local);
    return unit->paging.pages > 0 ? write_pages(s, unit, kept.pages) : KVT_OK;
}

static kvt_status restore_units(kvt_sparse *s, const kvt_key *key, const sparse_kept_shape *shape,
                                const sparse_paging *paging)
{
    kvt_status status = KVT_OK;
    const uint32_t heads = shape->kv_heads;
    for (uint32_t i = 0; i < shape->layers * heads && status == KVT_OK; i++) {
        const kvt_key part = part_key(key, i);
        uint8_t *bytes;
        uint64_t size;
        status = get_bytes(s->store, &part, &bytes, &size);
        if (status != KVT_OK) return status;
        status = restore_unit(s, shape, paging, i, bytes, size);
        free(bytes);
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
    if (status != KVT_OK) return status;
    status = sparse_kept_read_head(head, size, &shape);
    free(head);
    if (status == KVT_OK) status = sparse_sequence_make(store, options, &s, message, message_size);
    if (status != KVT_OK) return status;
    status = sparse_paging_init(&paging, s->options.layout.head_dim, s->options.layout.dtype,
                                s->zone_tokens, s->options.segment_tokens, s->options.page_tokens);
    if (status == KVT_OK && !shape_fits(s, &shape, &paging)) status = KVT_E_MISMATCH;
    s->id = shape.id;
    if (status == KVT_OK) status = restore_units(s, key, &shape, &paging);
    if (status != KVT_OK) {
        kvt_sparse_close(s);
        return status;
    }
    *sequence_out = s;
    return KVT_OK;
}
