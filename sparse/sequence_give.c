/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sequence_give.c - layers become units: rows are clustered, put into the order of clusters, coded
 * and written as pages, a segment at a time; sinks and the last tokens stay as they are.
 *
 *     rows of one head -> index -> for each segment: packed rows -> coded form -> slots -> written
 *                                                                     while the next is made
 *
 * Memory beside the index: a segment's rows and coded form, and two blocks of its slots.
 *
 * Thread rule: the sequence's thread.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <kvterrace/load.h>
#include <kvterrace/names.h>
#include <kvterrace/queue.h>

#include "base/clock.h"
#include "base/handle_calls.h"
#include "sequence.h"
#include "sparse_kernels.h"

/* One layer's rows of one head. */
typedef struct give_head {
    const uint8_t *keys, *values; /* of token 0 */
    uint64_t stride_bytes;
} give_head;

/* Work memory for the segments of a unit. */
typedef struct give_work {
    uint8_t *keys, *values; /* packed */
    uint8_t *coded;
    uint8_t *scratch;
} give_work;

static uint32_t segment_tokens_most(const kvt_sparse *s)
{
    const uint64_t most = (uint64_t)s->options.segment_tokens * 3 / 2;
    return s->zone_tokens < most ? s->zone_tokens : (uint32_t)most;
}

static void work_close(give_work *work)
{
    free(work->keys);
    free(work->values);
    free(work->coded);
    free(work->scratch);
}

static kvt_status work_open(const kvt_sparse *s, const sparse_paging *paging, give_work *work)
{
    const uint64_t side = (uint64_t)segment_tokens_most(s) * s->row_bytes;
    *work = (give_work){.keys = malloc(side),
                        .values = malloc(side),
                        .coded = malloc(2 * side),
                        .scratch = aligned_alloc(64, (sparse_code_scratch(paging) + 63) / 64 * 64)};
    if (work->keys != NULL && work->values != NULL && work->coded != NULL && work->scratch != NULL)
        return KVT_OK;
    work_close(work);
    return KVT_E_MEMORY;
}

/* ---- slots ---- */

/* Rows of a segment in the order of places. */
static void pack_rows(const kvt_sparse *s, const sparse_unit *unit, const give_head *rows,
                      uint32_t first, uint32_t tokens, give_work *work)
{
    for (uint32_t i = 0; i < tokens; i++) {
        const uint64_t token = unit->token_at != NULL ? unit->token_at[first + i]
                               : s->options.given     ? first + i
                                                      : s->options.sink_tokens +
                                                        sparse_index_token(&unit->index, first + i);
        memcpy(work->keys + (uint64_t)i * s->row_bytes, rows->keys + token * rows->stride_bytes,
               s->row_bytes);
        memcpy(work->values + (uint64_t)i * s->value_bytes,
               rows->values + token * rows->stride_bytes, s->value_bytes);
    }
}

/* The slots of a segment's pages, and their checksums. */
static void fill_slots(const kvt_sparse *s, sparse_unit *unit, uint32_t first, uint32_t tokens,
                       bool coded, const give_work *work, uint8_t *slots)
{
    const sparse_table *table = &unit->table;
    const uint8_t *source = work->coded;
    uint32_t page = sparse_page_of(&unit->paging, first);
    for (uint32_t done = 0; done < tokens; page++) {
        const uint32_t own = sparse_page_first(&unit->paging, page + 1) - first - done;
        const uint64_t side = (uint64_t)own * s->row_bytes;
        const uint64_t prefix = sparse_page_bytes(&unit->paging, own, PAGES_BITS_8);
        memset(slots, 0, table->slot_bytes);
        if (coded) memcpy(slots, source, prefix);
        if (table->has_raw) {
            uint8_t *raw = slots + table->coded_bytes;
            memcpy(raw, work->keys + (uint64_t)done * s->row_bytes, side);
            memcpy(raw + side, work->values + (uint64_t)done * s->value_bytes,
                   (uint64_t)own * s->value_bytes);
        }
        sparse_table_seal(&unit->table, page, slots, coded);
        source += prefix;
        slots += table->slot_bytes;
        done += own;
    }
}

/* A block that is not being written. */
static kvt_status next_block(kvt_sparse *s, uint64_t bytes, uint32_t turn, sparse_block **block_out)
{
    sparse_block **block = &s->blocks[turn & 1];
    if (*block != NULL) {
        kvt_status status = sparse_block_wait(*block);
        if (status != KVT_OK) return status;
    }
    if (*block == NULL) *block = sparse_block_make(bytes);
    *block_out = *block;
    return *block != NULL ? KVT_OK : KVT_E_MEMORY;
}

/* Makes and writes one segment of a unit. */
static kvt_status give_segment(kvt_sparse *s, sparse_unit *unit, const give_head *rows,
                               uint32_t segment, give_work *work)
{
    const uint32_t first = sparse_segment_first(s->zone_tokens, s->options.segment_tokens, segment);
    const uint32_t tokens =
        sparse_segment_first(s->zone_tokens, s->options.segment_tokens, segment + 1) - first;
    const uint64_t most =
        (uint64_t)(segment_tokens_most(s) / unit->paging.page_tokens + 1) * unit->table.slot_bytes;
    bool coded = unit->table.coded_bytes != 0;
    pack_rows(s, unit, rows, first, tokens, work);
    if (coded) {
        kvt_status status = sparse_code_segment(&unit->paging, &unit->code, segment, work->keys,
                                                work->values, work->coded, work->scratch);
        if (status < 0) return status;
        coded = status == KVT_OK;
    }
    if (!coded && !unit->table.has_raw) return KVT_E_UNSUPPORTED;
    sparse_block *block;
    kvt_status status = next_block(s, most, segment, &block);
    if (status != KVT_OK) return status;
    fill_slots(s, unit, first, tokens, coded, work, sparse_block_memory(block));
    const uint64_t page = sparse_page_of(&unit->paging, first);
    const uint64_t pages = (tokens + unit->paging.page_tokens - 1) / unit->paging.page_tokens;
    sparse_block_start(block, scratch_pool(s->scratch, KVT_TIER_SSD), KVT_IO_WRITE,
                       unit->table.location, page * unit->table.slot_bytes,
                       pages * unit->table.slot_bytes);
    return KVT_OK;
}

/* ---- units ---- */

static void copy_resident(const kvt_sparse *s, const give_head *rows, uint32_t first,
                          uint32_t tokens, sparse_resident *target)
{
    for (uint32_t i = 0; i < tokens; i++) {
        const uint64_t at = (uint64_t)(target->tokens + i) * s->row_bytes;
        memcpy(target->keys + at, rows->keys + (first + i) * rows->stride_bytes, s->row_bytes);
        if (s->value_bytes == 0) continue;
        memcpy(target->values + at, rows->values + (first + i) * rows->stride_bytes, s->row_bytes);
    }
    target->tokens += tokens;
}

static kvt_status index_unit(kvt_sparse *s, sparse_unit *unit, const give_head *rows)
{
    const kvt_sparse_options *o = &s->options;
    kvt_status status = sparse_sequence_paging(s, s->zone_tokens, o->segment_tokens,
                                               s->tail_page.page_tokens, &unit->paging);
    if (status != KVT_OK || o->given) return status;
    const uint64_t skip = (uint64_t)o->sink_tokens * rows->stride_bytes;
    const sparse_rows keys = {.base = rows->keys + skip, .stride_bytes = rows->stride_bytes};
    const sparse_rows values = {.base = rows->values + skip, .stride_bytes = rows->stride_bytes};
    const sparse_index_options index = {.head_dim = o->layout.head_dim,
                                        .dtype = o->layout.dtype,
                                        .cluster_tokens = o->cluster_tokens,
                                        .segment_tokens = o->segment_tokens,
                                        .iterations = o->iterations,
                                        .seed = o->seed};
    status = sparse_index_build(&index, &keys, &values, s->zone_tokens, &unit->index);
    if (status == KVT_OK && o->single_share > 0.0f)
        status = sparse_singles_build(&unit->index, &keys, o->layout.dtype, o->seed,
                                      &unit->single_codes);
    return status == KVT_OK ? sparse_code_open(&unit->paging, &unit->code) : status;
}

static kvt_status give_unit(kvt_sparse *s, sparse_unit *unit, const give_head *rows)
{
    const uint64_t number = (uint64_t)(unit - s->units);
    kvt_status status = index_unit(s, unit, rows);
    if (status == KVT_OK)
        status = sparse_table_open(s->scratch, KVT_TIER_SSD, &unit->paging, s->variants,
                                   sparse_unit_id(s, number), &unit->table);
    if (status == KVT_OK) status = sparse_append_open_unit(s, unit);
    if (status == KVT_OK) status = sparse_window_open_unit(s, unit);
    if (status != KVT_OK) return status;
    copy_resident(s, rows, 0, s->options.sink_tokens, &unit->sinks);
    copy_resident(s, rows, s->local_first, s->options.layout.tokens - s->local_first, &unit->local);
    if (s->zone_tokens == 0) return KVT_OK;
    give_work work;
    status = work_open(s, &unit->paging, &work);
    if (status != KVT_OK) return status;
    const uint32_t segments = sparse_segment_count(s->zone_tokens, s->options.segment_tokens);
    for (uint32_t i = 0; i < segments && status == KVT_OK; i++)
        status = give_segment(s, unit, rows, i, &work);
    kvt_status written = sparse_sequence_wait_blocks(s);
    work_close(&work);
    return status != KVT_OK ? status : written;
}

/* Gives a layer: the rows of a token's heads follow each other. */
static kvt_status give_layer(kvt_sparse *s, uint32_t layer, const uint8_t *k, const uint8_t *v,
                             uint64_t token_stride, uint64_t head_stride)
{
    const uint64_t started_ns = base_clock_ns();
    const uint64_t bytes = s->options.layout.tokens * token_stride;
    const uint8_t dtype = s->options.layout.dtype;
    if (!sparse_rows_are_sound(k, bytes, dtype) ||
        (s->value_bytes > 0 && !sparse_rows_are_sound(v, bytes, dtype))) {
        s->give_failed = true;
        return KVT_E_UNSUPPORTED;
    }
    for (uint32_t h = 0; h < s->options.layout.kv_heads; h++) {
        const give_head rows = {.keys = k + h * head_stride,
                                .values = (s->value_bytes > 0 ? v : k) + h * head_stride,
                                .stride_bytes = token_stride};
        kvt_status status = give_unit(s, sparse_unit_of(s, layer, h), &rows);
        if (status == KVT_OK) continue;
        s->give_failed = true;
        return status;
    }
    s->built_seconds += (double)(base_clock_ns() - started_ns) * 1e-9;
    return sparse_sequence_add_layer(s);
}

kvt_status kvt_sparse_give(kvt_sparse *s, uint32_t layer, const void *k, const void *v)
{
    if (s == NULL || k == NULL || (v == NULL && s->value_bytes > 0)) return KVT_E_ARGUMENT;
    if (layer != s->layers_given || layer >= s->options.layout.layers || s->give_failed ||
        !scratch_is_ours(s->store))
        return KVT_E_STATE;
    const uint64_t row = (uint64_t)s->options.layout.kv_heads * s->row_bytes;
    return give_layer(s, layer, k, v, row, s->row_bytes);
}

/* ---- entries ---- */

/* Address space for a whole sequence, of which only the layers at hand have memory. */
typedef struct give_source {
    uint8_t *memory;
    uint64_t bytes, layer_bytes;
    kvt_view *views;
    const kvt_view **list;
} give_source;

/* A view of each entry, at its tokens' place in [layer][side][token][head]. */
static kvt_status source_open(kvt_sparse *s, const kvt_key *keys, size_t count, give_source *source)
{
    const kvt_layout *layout = &s->options.layout;
    const uint64_t row = (uint64_t)layout->kv_heads * s->row_bytes;
    uint32_t token = 0;
    source->layer_bytes = sparse_whole_grains(2 * layout->tokens * row);
    source->bytes = layout->layers * source->layer_bytes;
    source->views = calloc(count, sizeof *source->views);
    source->list = calloc(count, sizeof *source->list);
    void *memory = mmap(NULL, source->bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    source->memory = memory == MAP_FAILED ? NULL : memory;
    if (source->views == NULL || source->list == NULL || source->memory == NULL)
        return KVT_E_MEMORY;
    for (size_t i = 0; i < count; i++) {
        kvt_description what = {.struct_size = sizeof what};
        kvt_status status = kvt_store_describe(s->store, &keys[i], &what);
        if (status != KVT_OK) return status;
        const kvt_layout *own = &what.layout;
        if (own->layers != layout->layers || own->kv_heads != layout->kv_heads ||
            own->head_dim != layout->head_dim || own->dtype != layout->dtype ||
            own->sides == KVT_SIDES_V || kvt_layout_sides(own) != kvt_layout_sides(layout) ||
            own->tokens > layout->tokens - token)
            return KVT_E_MISMATCH;
        source->views[i] = (kvt_view){.struct_size = sizeof(kvt_view),
                                      .base = {source->memory + token * row},
                                      .base_bytes = {source->bytes - token * row},
                                      .layer_stride = (int64_t)source->layer_bytes,
                                      .side_stride = (int64_t)(layout->tokens * row),
                                      .token_stride = (int64_t)row,
                                      .head_stride = s->row_bytes};
        source->list[i] = &source->views[i];
        token += own->tokens;
    }
    return token == layout->tokens ? KVT_OK : KVT_E_MISMATCH;
}

/* Loads layer after layer; a layer that was given has no memory any more. */
static kvt_status give_entries(kvt_sparse *s, kvt_queue *queue, const kvt_key *keys, size_t count,
                               give_source *source)
{
    const kvt_layout *layout = &s->options.layout;
    const uint64_t row = (uint64_t)layout->kv_heads * s->row_bytes;
    kvt_load_options options = {.struct_size = sizeof options, .deadline_ns = KVT_NO_DEADLINE};
    kvt_load *load;
    kvt_status status = kvt_load_begin(queue, keys, source->list, count, &options, &load);
    if (status != KVT_OK) return status;
    for (uint32_t layer = 0; layer < layout->layers && status == KVT_OK; layer++) {
        status = kvt_load_wait(load, layer + 1, KVT_NO_DEADLINE);
        for (size_t i = 0; i < count && status == KVT_OK; i++) {
            const kvt_status own = kvt_load_status(load, i);
            if (own != KVT_QUEUED && own != KVT_OK) status = own;
        }
        uint8_t *base = source->memory + layer * source->layer_bytes;
        if (status == KVT_OK)
            status = give_layer(s, layer, base, base + layout->tokens * row, row, s->row_bytes);
        (void)madvise(base, source->layer_bytes, MADV_DONTNEED);
        kvt_load_release(load, layer + 1);
    }
    kvt_status ended = kvt_load_end(load, NULL, NULL);
    return status != KVT_OK ? status : ended;
}

kvt_status kvt_sparse_open(kvt_store *store, const kvt_sparse_options *options, const kvt_key *keys,
                           size_t count, kvt_sparse **sequence_out, char *message,
                           size_t message_size)
{
    if (base_store_calls_of(store) != NULL) return KVT_E_UNSUPPORTED;
    kvt_sparse *s = NULL;
    kvt_queue *queue = NULL;
    give_source source = {.memory = NULL};
    if (message != NULL && message_size > 0) message[0] = '\0';
    if (keys == NULL || count == 0 || sequence_out == NULL) return KVT_E_ARGUMENT;
    kvt_status status = sparse_sequence_make(store, options, true, &s, message, message_size);
    if (status == KVT_OK) status = source_open(s, keys, count, &source);
    if (status == KVT_OK) status = kvt_queue_open(store, NULL, &queue);
    if (status == KVT_OK) status = give_entries(s, queue, keys, count, &source);
    if (queue != NULL) kvt_queue_close(queue);
    if (source.memory != NULL) munmap(source.memory, source.bytes);
    free(source.views);
    free(source.list);
    if (status == KVT_OK) {
        *sequence_out = s;
        return KVT_OK;
    }
    sparse_sequence_say(status, message, message_size);
    kvt_sparse_close(s);
    return status;
}
