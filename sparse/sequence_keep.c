/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sequence_keep.c - a sequence becomes entries of the store, and comes back without clustering.
 *
 *     keep    for each unit: pages read and verified -> kept form -> entry; then the head entry,
 *             under the caller's key, which names the number of this keep
 *     open    head entry -> shape -> visits of the units' entries, room for those that cannot be
 *             visited -> for each unit: front of its entry -> checks -> index, code; its pages are
 *             read where they lie, or copied into the room
 *     delete  the units' entries, then the head entry
 *
 * Entries are the store's: they survive as entries do, may be evicted as entries are, and a kept
 * sequence of which one has gone is a miss. The head entry is put last and deleted last, so a keep
 * that was cut short is a miss as well, and a delete that was is ended by another one.
 *
 * Each keep draws a number, from which the keys of its parts come beside the caller's key: parts of
 * two keeps never mix, whoever stores its head first has the key, and the other one deletes its
 * parts. Parts whose head never came are found by nobody, and leave as entries without use do.
 *
 * Memory: one unit in kept form to keep it, two to copy pages.
 *
 * Thread rule: the sequence's thread. A head is put and deleted under the store's lock of
 * kept sequences, so that a head which was looked at is the one that is deleted.
 */
#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <xxhash.h>

#include <kvterrace/names.h>

#include "base/handle_calls.h"
#include "kept.h"
#include "sequence.h"
#include "sparse_kernels.h"

/* The key of a part of a kept sequence: the caller's, mixed with the keep's and the part's number.
 */
static kvt_key part_key(const kvt_key *key, uint64_t keep, uint32_t number)
{
    kvt_key part;
    uint8_t name[sizeof *key + sizeof keep];
    memcpy(name, key, sizeof *key);
    for (uint32_t i = 0; i < sizeof keep; i++)
        name[sizeof *key + i] = (uint8_t)(keep >> 8 * i);
    for (uint64_t i = 0; i < 2; i++) {
        const XXH128_hash_t hash =
            XXH3_128bits_withSeed(name, sizeof name, (uint64_t)number * 2 + i + 1);
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
                               .row_bytes = s->row_bytes,
                               .key_bytes = o->key_bytes,
                               .given = o->given ? kvt_layout_sides(&o->layout) : 0};
}

/* ---- keep ---- */

static kvt_status put_bytes(kvt_sparse *s, const kvt_key *key, const void *bytes, uint64_t size)
{
    const kvt_entry entry = {.struct_size = sizeof entry,
                             .key = *key,
                             .layout = {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = size},
                             .recompute_seconds = s->built_seconds > 0 ? s->built_seconds : 1};
    const kvt_status status = kvt_store_put(s->store, &entry, KVT_PACKED(bytes, size));
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
        sparse_block_start(block, scratch_pool(s->scratch, table->tier), KVT_IO_READ,
                           table->location, sparse_table_slot(table, page), bytes);
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
    if (s->value_bytes > 0) memcpy(target + side, rows->values, side);
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
    if (to->s->value_bytes > 0) memcpy(to->values + at, value, row);
}

static void gather_joined(void *context, const sparse_joined *page)
{
    const keep_rows *to = context;
    const uint64_t row = to->s->row_bytes;
    for (uint32_t i = 0; i < page->tokens; i++)
        gather_row(to, page->positions[i], page->keys + i * row, page->values + i * row);
}

/* The rows of an appended page that is at rest, in the best variant it has. */
static kvt_status gather_page(kvt_sparse *s, const sparse_unit *unit, uint32_t own,
                              sparse_block *block, uint8_t *rows, const keep_rows *to)
{
    const sparse_table *table = &unit->tail.table;
    const uint32_t page = unit->paging.pages + own, tokens = s->tail_page.page_tokens;
    /* The best that a page at rest has. */
    const bool raw = unit->tail.table.has_raw || !sparse_unit_has_code(s, unit, page);
    const pages_variant variant = raw ? PAGES_RAW : PAGES_BITS_8;
    const sparse_part part = sparse_table_part(table, own, variant);
    const uint64_t side = (uint64_t)tokens * s->row_bytes;
    const uint8_t *bytes = sparse_block_memory(block);
    if (bytes == NULL) return KVT_E_GONE;
    sparse_block_start(block, scratch_pool(s->scratch, KVT_TIER_SSD), KVT_IO_READ, table->location,
                       sparse_table_slot(table, own) + part.offset, part.bytes);
    kvt_status status = sparse_block_wait(block);
    if (status == KVT_OK && !sparse_table_verify(table, own, variant, bytes)) status = KVT_E_IO;
    if (status == KVT_OK && variant == PAGES_RAW)
        memcpy(rows, bytes, side + (uint64_t)tokens * s->value_bytes);
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
    const uint64_t row = (uint64_t)s->row_bytes + s->value_bytes;
    const uint64_t sinks = unit->sinks.tokens * row;
    const uint32_t tokens = local_tokens(s, number / shape->kv_heads);
    const uint64_t local = tokens * row;
    uint8_t *resident = malloc(sinks + local + 1);
    if (resident == NULL) return KVT_E_MEMORY;
    gather_resident(s, &unit->sinks, resident);
    kvt_status status = gather_local(s, unit, tokens, resident + sinks);
    if (status != KVT_OK) {
        free(resident);
        return status;
    }
    const bool ordered = unit->token_at != NULL;
    const sparse_kept_unit kept = {
        .number = number,
        .clusters = ordered ? 1 : unit->index.clusters,
        .local_tokens = tokens,
        .slot_bytes = unit->table.slot_bytes,
        .index = ordered ? (const uint8_t *)unit->token_at : unit->index.memory,
        .index_bytes =
            ordered ? s->zone_tokens * (uint64_t)sizeof *unit->token_at : unit->index.bytes,
        .slopes = (const uint8_t *)unit->index.slopes,
        .slope_bytes = unit->index.slope_bytes,
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
    const kvt_key part = part_key(key, shape->keep, number);
    if (status == KVT_OK) status = put_bytes(s, &part, bytes, size);
    free(bytes);
    free(resident);
    return status;
}

static kvt_status keep_keys(kvt_sparse *s, const sparse_kept_shape *shape, const kvt_key *key,
                            uint32_t layer)
{
    const uint32_t number = shape->layers * shape->kv_heads + layer;
    const kvt_key part = part_key(key, shape->keep, number);
    const void *keys;
    uint32_t tokens;
    kvt_status status = kvt_sparse_keys(s, layer, &keys, &tokens);
    if (status != KVT_OK) return status;
    const uint64_t size = SPARSE_KEPT_HEAD_BYTES + (uint64_t)tokens * shape->key_bytes;
    uint8_t *bytes = malloc(size);
    if (bytes == NULL) return KVT_E_MEMORY;
    sparse_kept_write_keys(shape, number, keys, tokens, bytes);
    status = put_bytes(s, &part, bytes, size);
    free(bytes);
    return status;
}

/* An opaque entry's bytes; the caller frees them. */
static kvt_status get_bytes(kvt_store *store, const kvt_key *key, uint8_t **bytes_out,
                            uint64_t *size_out)
{
    kvt_description what = {.struct_size = sizeof what};
    kvt_status status = kvt_store_describe(store, key, &what);
    if (status != KVT_OK) return status;
    if (what.layout.dtype != KVT_DTYPE_OPAQUE) return KVT_E_MISMATCH;
    uint8_t *bytes = malloc(what.layout.opaque_bytes + 1);
    if (bytes == NULL) return KVT_E_MEMORY;
    status = kvt_store_get(store, key, KVT_PACKED(bytes, what.layout.opaque_bytes),
                           KVT_STORE_DEADLINE, NULL);
    if (status != KVT_OK) {
        free(bytes);
        return status;
    }
    *bytes_out = bytes;
    *size_out = what.layout.opaque_bytes;
    return KVT_OK;
}

static kvt_status read_head(kvt_store *store, const kvt_key *key, sparse_kept_shape *shape_out)
{
    uint8_t *head;
    uint64_t size;
    kvt_status status = get_bytes(store, key, &head, &size);
    if (status != KVT_OK) return status;
    status = sparse_kept_read_head(head, size, shape_out);
    free(head);
    return status;
}

/* KVT_OK, also where some of them are not there; as kvt_store_delete. */
static kvt_status delete_parts(kvt_store *store, const kvt_key *key, const sparse_kept_shape *shape)
{
    for (uint32_t i = 0; i < sparse_kept_parts(shape); i++) {
        const kvt_key part = part_key(key, shape->keep, i);
        const kvt_status status = kvt_store_delete(store, &part);
        if (status != KVT_OK && status != KVT_MISS) return status;
    }
    return KVT_OK;
}

static bool has_parts(kvt_store *store, const kvt_key *key, const sparse_kept_shape *shape)
{
    for (uint32_t i = 0; i < sparse_kept_parts(shape); i++) {
        const kvt_key part = part_key(key, shape->keep, i);
        if (kvt_store_exists(store, &part) != KVT_OK) return false;
    }
    return true;
}

/* Deletes what nobody can open: a kept sequence of which a part has gone. Under the lock. KVT_OK:
 * the key is free; KVT_EXISTS. */
static kvt_status free_key(kvt_store *store, const kvt_key *key)
{
    sparse_kept_shape shape;
    if (kvt_store_exists(store, key) != KVT_OK) return KVT_OK;
    const kvt_status status = read_head(store, key, &shape);
    if (status == KVT_MISS) return KVT_OK;
    if (status != KVT_OK || has_parts(store, key, &shape)) return KVT_EXISTS;
    (void)!delete_parts(store, key, &shape);
    const kvt_status deleted = kvt_store_delete(store, key);
    return deleted == KVT_OK || deleted == KVT_MISS ? KVT_OK : KVT_EXISTS;
}

static kvt_status put_head(kvt_sparse *s, const kvt_key *key, const sparse_kept_shape *shape)
{
    uint8_t head[SPARSE_KEPT_HEAD_BYTES];
    sparse_kept_write_head(shape, head);
    pthread_mutex_lock(scratch_kept_lock(s->store));
    kvt_status status = free_key(s->store, key);
    if (status == KVT_OK) status = put_bytes(s, key, head, sizeof head);
    pthread_mutex_unlock(scratch_kept_lock(s->store));
    return status;
}

kvt_status kvt_sparse_keep(kvt_sparse *s, const kvt_key *key)
{
    if (s == NULL || key == NULL) return KVT_E_ARGUMENT;
    if (!s->ready || !scratch_is_ours(s->store)) return KVT_E_STATE;
    sparse_kept_shape shape = shape_of(s);
    if (getrandom(&shape.keep, sizeof shape.keep, 0) != (ssize_t)sizeof shape.keep) return KVT_E_IO;
    pthread_mutex_lock(scratch_kept_lock(s->store));
    kvt_status status = free_key(s->store, key);
    pthread_mutex_unlock(scratch_kept_lock(s->store));
    if (status != KVT_OK) return status;
    sparse_slopes_fit(s);
    for (uint32_t i = 0; i < shape.layers * shape.kv_heads && status == KVT_OK; i++)
        status = keep_unit(s, &shape, key, i);
    for (uint32_t i = 0; shape.key_bytes > 0 && i < shape.layers && status == KVT_OK; i++)
        status = keep_keys(s, &shape, key, i);
    if (status == KVT_OK) status = put_head(s, key, &shape);
    if (status != KVT_OK) (void)!delete_parts(s->store, key, &shape);
    return status;
}

/* ---- open ---- */

/* The first field that the options have otherwise than the kept sequence; NULL: none. */
static const char *shape_difference(const kvt_sparse *s, const sparse_kept_shape *shape,
                                    const sparse_paging *paging)
{
    const kvt_sparse_options *o = &s->options;
    if (shape->layers != o->layout.layers) return "layers";
    if (shape->kv_heads != o->layout.kv_heads) return "kv_heads";
    if (shape->head_dim != o->layout.head_dim) return "head_dim";
    if (shape->dtype != o->layout.dtype || shape->row_bytes != s->row_bytes) return "dtype";
    if (shape->tokens != o->layout.tokens) return "the layout's tokens";
    if (shape->sink_tokens != o->sink_tokens) return "sink_tokens";
    if (shape->segment_tokens != o->segment_tokens) return "segment_tokens";
    if (shape->page_tokens != paging->page_tokens) return "page_tokens";
    if (shape->zone_tokens != s->zone_tokens) return "local_tokens";
    if (shape->given != (o->given ? kvt_layout_sides(&o->layout) : 0)) return "given, or the sides";
    if (shape->key_bytes != o->key_bytes) return "key_bytes";
    return shape->variants != s->variants ? "variants" : NULL;
}

static void put_resident(const kvt_sparse *s, const uint8_t *bytes, uint32_t tokens,
                         sparse_resident *target)
{
    const uint64_t side = (uint64_t)tokens * s->row_bytes;
    memcpy(target->keys, bytes, side);
    if (s->value_bytes > 0) memcpy(target->values, bytes + side, side);
    target->tokens = tokens;
}

/* Local rows, of which the oldest join as they did when they were appended. */
static kvt_status put_local(kvt_sparse *s, sparse_unit *unit, const uint8_t *bytes, uint32_t tokens)
{
    const uint64_t row = s->row_bytes;
    const uint8_t *values = s->value_bytes > 0 ? bytes + tokens * row : bytes;
    kvt_status status = sparse_append_reserve(s, unit, tokens);
    for (uint32_t i = 0; i < tokens && status == KVT_OK; i++)
        sparse_append_token(s, unit, bytes + i * row, values + i * row, s->local_first + i);
    return status;
}

/* A unit's entry, as an open has it before the unit takes it. */
typedef struct kept_part {
    kvt_key key;
    scratch_visited visited; /* or else its bytes are copied */
} kept_part;

/* A sequence that is being opened. */
typedef struct kept_open {
    kvt_sparse *s;
    sparse_kept_shape shape;
    sparse_paging paging;
    kept_part *parts; /* of each unit */
    struct kept_keys {
        uint8_t *bytes;
        uint64_t size;
    } * keys; /* of each layer */
    uint32_t units;
    uint32_t copied;      /* of these, those that are not visited */
    uint64_t pages_bytes; /* of each unit */
    char *message;        /* as of kvt_sparse_open_kept */
    size_t message_size;
} kept_open;

static kvt_status differs(const kept_open *open, const char *field)
{
    if (open->message != NULL && open->message_size > 0)
        snprintf(open->message, open->message_size,
                 "the sequence was kept with another value of %s", field);
    return KVT_E_MISMATCH;
}

/* Visits the entries of all units that are not visited yet. */
static kvt_status visit_parts(kvt_store *store, kept_open *open, bool memory)
{
    open->copied = 0;
    for (uint32_t i = 0; i < open->units; i++) {
        kept_part *part = &open->parts[i];
        if (part->visited.visit != NULL) continue;
        kvt_status status = scratch_visit(store, &part->key, memory, &part->visited);
        if (status == KVT_E_UNSUPPORTED)
            open->copied++;
        else if (status != KVT_OK)
            return status;
    }
    return KVT_OK;
}

/* Entries on SSD are visited before room is taken, so that they do not make way for it; those in
 * memory afterwards, so that the window has its room. Index keys are read now, too. */
static kvt_status begin_parts(kvt_store *store, const kvt_key *key, kept_open *open)
{
    open->units = open->shape.layers * open->shape.kv_heads;
    open->parts = calloc(open->units, sizeof *open->parts);
    if (open->parts == NULL) return KVT_E_MEMORY;
    for (uint32_t i = 0; i < open->units; i++)
        open->parts[i].key = part_key(key, open->shape.keep, i);
    kvt_status status = visit_parts(store, open, false);
    if (status != KVT_OK || open->shape.key_bytes == 0) return status;
    open->keys = calloc(open->shape.layers, sizeof *open->keys);
    if (open->keys == NULL) return KVT_E_MEMORY;
    for (uint32_t i = 0; i < open->shape.layers && status == KVT_OK; i++) {
        const kvt_key part = part_key(key, open->shape.keep, open->units + i);
        status = get_bytes(store, &part, &open->keys[i].bytes, &open->keys[i].size);
    }
    return status;
}

/* A block of so many bytes that is not being written. */
static kvt_status take_block(kvt_sparse *s, uint32_t turn, uint64_t bytes, sparse_block **block_out)
{
    sparse_block **block = &s->blocks[turn & 1];
    if (*block != NULL) {
        kvt_status status = sparse_block_wait(*block);
        if (status != KVT_OK) return status;
    }
    if (*block == NULL || sparse_block_bytes(*block) < bytes) {
        sparse_block_free(*block);
        *block = sparse_block_make(bytes);
    }
    *block_out = *block;
    return *block != NULL ? KVT_OK : KVT_E_MEMORY;
}

/* The front of an entry that is visited: all before the pages. *bytes_out is valid until the
 * block's next use. */
static kvt_status read_front(const kept_open *open, uint32_t number, const uint8_t **bytes_out)
{
    const scratch_visited *visited = &open->parts[number].visited;
    if (visited->bytes < open->pages_bytes + SPARSE_KEPT_HEAD_BYTES) return KVT_E_CORRUPT;
    *bytes_out = visited->memory;
    if (*bytes_out != NULL) return KVT_OK;
    const uint64_t grains = sparse_whole_grains(visited->bytes - open->pages_bytes);
    sparse_block *block;
    kvt_status status = take_block(open->s, number, grains, &block);
    if (status != KVT_OK) return status;
    sparse_block_start(block, scratch_pool(open->s->scratch, visited->tier), KVT_IO_READ,
                       visited->location, visited->offset, grains);
    status = sparse_block_wait(block);
    *bytes_out = sparse_block_memory(block);
    return status;
}

/* An entry's bytes in a block. */
static kvt_status get_block(const kept_open *open, uint32_t number, sparse_block **block_out,
                            uint64_t *size_out)
{
    const kvt_key *key = &open->parts[number].key;
    kvt_description what = {.struct_size = sizeof what};
    kvt_status status = kvt_store_describe(open->s->store, key, &what);
    if (status != KVT_OK) return status;
    if (what.layout.dtype != KVT_DTYPE_OPAQUE) return KVT_E_MISMATCH;
    *size_out = what.layout.opaque_bytes;
    status = take_block(open->s, number, *size_out, block_out);
    if (status != KVT_OK) return status;
    return kvt_store_get(open->s->store, key,
                         KVT_PACKED(sparse_block_memory(*block_out), *size_out), KVT_STORE_DEADLINE,
                         NULL);
}

/* The table of a unit: over the slots of the entry that is visited, which the table has then, or
 * over room of its own. */
static kvt_status open_table(const kept_open *open, uint32_t number, sparse_unit *unit)
{
    kvt_sparse *s = open->s;
    scratch_visited *visited = &open->parts[number].visited;
    const uint64_t id = sparse_unit_id(s, number);
    if (visited->visit == NULL || unit->paging.pages == 0)
        return sparse_table_open(s->scratch, KVT_TIER_SSD, &unit->paging, s->variants, id,
                                 &unit->table);
    const uint64_t first_slot = visited->offset + visited->bytes - open->pages_bytes;
    return sparse_table_visit(s->scratch, visited, first_slot, &unit->paging, s->variants, id,
                              &unit->table);
}

/* Whether every page has a form that a step can read. */
static bool code_is_complete(const sparse_unit *unit)
{
    for (uint32_t page = 0; page < unit->paging.pages && !unit->table.has_raw; page++)
        if (!sparse_code_has(&unit->paging, &unit->code, page)) return false;
    return true;
}

/* The order of a zone whose model selects. */
static kvt_status restore_order(const kvt_sparse *s, sparse_unit *unit,
                                const sparse_kept_unit *kept)
{
    if (kept->clusters == 0) return KVT_OK;
    uint32_t *token_at = malloc(kept->index_bytes);
    if (token_at == NULL) return KVT_E_MEMORY;
    memcpy(token_at, kept->index, kept->index_bytes);
    const kvt_status status = sparse_given_arrange(s, unit, token_at);
    if (status != KVT_OK) free(token_at);
    return status;
}

/* A unit from the front of its entry. The unit's pages are bad or sound as they are read. */
static kvt_status restore_unit(const kept_open *open, uint32_t number, const uint8_t *bytes,
                               uint64_t size, sparse_kept_unit *kept)
{
    kvt_sparse *s = open->s;
    const sparse_kept_shape *shape = &open->shape;
    sparse_unit *unit = &s->units[number];
    kvt_status status = sparse_kept_read(shape, &open->paging, number, bytes, size, kept);
    if (status != KVT_OK) return status;
    if (kept->local_tokens > s->local_most) return differs(open, "tokens_max"); /* too low */
    const uint32_t first = s->options.layout.tokens - s->local_first;
    const uint32_t layer = number / shape->kv_heads, head = number % shape->kv_heads;
    if (kept->local_tokens < first) return KVT_E_CORRUPT;
    if (head == 0) s->appended[layer] = kept->local_tokens - first;
    if (kept->local_tokens - first != s->appended[layer]) return KVT_E_MISMATCH;
    unit->paging = open->paging;
    status = sparse_kept_index(shape, kept, &unit->index);
    if (status == KVT_OK)
        status = shape->given == 0 ? sparse_code_open(&unit->paging, &unit->code)
                                   : restore_order(s, unit, kept);
    if (status == KVT_OK) status = open_table(open, number, unit);
    if (status == KVT_OK) status = sparse_append_open_unit(s, unit);
    if (status == KVT_OK) status = sparse_window_open_unit(s, unit);
    if (status != KVT_OK) return status;
    assert(unit->code.bytes == kept->code_bytes && unit->table.slot_bytes == kept->slot_bytes);
    if (kept->code_bytes > 0) memcpy(unit->code.memory, kept->code, kept->code_bytes);
    const uint8_t dtype = s->options.layout.dtype;
    if (!code_is_complete(unit) || !sparse_rows_are_sound(kept->sinks, kept->sinks_bytes, dtype) ||
        !sparse_rows_are_sound(kept->local, kept->local_bytes, dtype))
        return KVT_E_CORRUPT;
    if (kept->sums_bytes > 0) memcpy(unit->table.sums, kept->sums, kept->sums_bytes);
    put_resident(s, kept->sinks, shape->sink_tokens, &unit->sinks);
    return put_local(s, unit, kept->local, kept->local_tokens);
}

/* A unit whose entry is visited. */
static kvt_status restore_in_place(const kept_open *open, uint32_t number)
{
    const uint64_t size = open->parts[number].visited.bytes;
    sparse_kept_unit kept;
    const uint8_t *bytes;
    kvt_status status = read_front(open, number, &bytes);
    return status == KVT_OK ? restore_unit(open, number, bytes, size, &kept) : status;
}

/* A unit whose entry is read whole, and whose pages are written into room of the sequence, while
 * the next one's entry is read. */
static kvt_status restore_copied(const kept_open *open, uint32_t number)
{
    kvt_sparse *s = open->s;
    sparse_block *block;
    sparse_kept_unit kept;
    uint64_t size;
    kvt_status status = get_block(open, number, &block, &size);
    if (status != KVT_OK) return status;
    const uint8_t *bytes = sparse_block_memory(block);
    status = restore_unit(open, number, bytes, size, &kept);
    if (status != KVT_OK || kept.pages_bytes == 0) return status;
    sparse_block_start_at(block, (uint64_t)(kept.pages - bytes),
                          scratch_pool(s->scratch, KVT_TIER_SSD), KVT_IO_WRITE,
                          s->units[number].table.location, 0, kept.pages_bytes);
    return KVT_OK;
}

/* The index keys of all layers. */
static kvt_status restore_keys(const kept_open *open)
{
    kvt_sparse *s = open->s;
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; open->keys != NULL && i < open->shape.layers && status == KVT_OK; i++) {
        const uint8_t *keys;
        uint32_t tokens;
        status = sparse_kept_read_keys(&open->shape, open->units + i, open->keys[i].bytes,
                                       open->keys[i].size, &keys, &tokens);
        if (status == KVT_OK && tokens > s->options.tokens_max) return differs(open, "tokens_max");
        if (status == KVT_OK) status = kvt_sparse_give_keys(s, i, keys, tokens);
    }
    return status;
}

static kvt_status restore_units(const kept_open *open)
{
    kvt_sparse *s = open->s;
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; i < open->units && status == KVT_OK; i++) {
        status = open->parts[i].visited.visit != NULL ? restore_in_place(open, i)
                                                      : restore_copied(open, i);
        if ((i + 1) % open->shape.kv_heads != 0) continue;
        if (status == KVT_OK) status = sparse_sequence_wait_blocks(s);
        if (status == KVT_OK) status = sparse_sequence_add_layer(s);
    }
    return status;
}

/* Makes a sequence of the shape, and fills it. */
static kvt_status open_parts(kvt_store *store, const kvt_sparse_options *options, kept_open *open)
{
    kvt_status status =
        sparse_sequence_make(store, options, false, &open->s, open->message, open->message_size);
    if (status != KVT_OK) return status;
    kvt_sparse *s = open->s;
    s->id = open->shape.id;
    status = sparse_sequence_paging(s, s->zone_tokens, s->options.segment_tokens,
                                    s->tail_page.page_tokens, &open->paging);
    if (status != KVT_OK) return status;
    const char *difference = shape_difference(s, &open->shape, &open->paging);
    if (difference != NULL) return differs(open, difference);
    open->pages_bytes =
        (uint64_t)open->paging.pages * sparse_slot_bytes(&open->paging, s->variants, NULL);
    status = visit_parts(store, open, true);
    if (status == KVT_OK && open->copied > 0 && open->pages_bytes > 0)
        status = sparse_sequence_grow(s, open->copied * open->pages_bytes, open->message,
                                      open->message_size);
    return status == KVT_OK ? restore_units(open) : status;
}

kvt_status kvt_sparse_open_kept(kvt_store *store, const kvt_sparse_options *options,
                                const kvt_key *key, kvt_sparse **sequence_out, char *message,
                                size_t message_size)
{
    if (base_store_calls_of(store) != NULL) return KVT_E_UNSUPPORTED;
    kept_open open = {.message = message, .message_size = message_size};
    if (message != NULL && message_size > 0) message[0] = '\0';
    if (store == NULL || key == NULL || sequence_out == NULL) return KVT_E_ARGUMENT;
    kvt_status status = read_head(store, key, &open.shape);
    /* Of another number of units it is a mismatch, which is said once the options are known to be
     * sound. */
    if (status == KVT_OK && options != NULL && options->layout.layers == open.shape.layers &&
        options->layout.kv_heads == open.shape.kv_heads)
        status = begin_parts(store, key, &open);
    if (status == KVT_OK) status = open_parts(store, options, &open);
    if (status == KVT_OK) status = restore_keys(&open);
    for (uint32_t i = 0; open.keys != NULL && i < open.shape.layers; i++)
        free(open.keys[i].bytes);
    free(open.keys);
    /* Visits that no table has taken. */
    for (uint32_t i = 0; open.parts != NULL && i < open.units; i++)
        scratch_leave(store, &open.parts[i].visited);
    free(open.parts);
    if (status != KVT_OK) {
        sparse_sequence_say(status, message, message_size);
        kvt_sparse_close(open.s);
        return status;
    }
    *sequence_out = open.s;
    return KVT_OK;
}

/* ---- delete ---- */

kvt_status kvt_sparse_delete(kvt_store *store, const kvt_key *key)
{
    if (base_store_calls_of(store) != NULL) return KVT_E_UNSUPPORTED;
    sparse_kept_shape shape;
    if (store == NULL || key == NULL) return KVT_E_ARGUMENT;
    if (!scratch_is_ours(store)) return KVT_E_STATE;
    pthread_mutex_lock(scratch_kept_lock(store));
    kvt_status status = read_head(store, key, &shape);
    if (status == KVT_OK) status = delete_parts(store, key, &shape);
    if (status == KVT_OK) status = kvt_store_delete(store, key);
    pthread_mutex_unlock(scratch_kept_lock(store));
    return status;
}
