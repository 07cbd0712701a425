/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sequence_given_rows.c - where the rows of selections lie: places of positions, the runs that a
 * step brings, and the index keys beside them.
 *
 * Nothing is clustered. Page n of the zone has the n-th page_tokens places, which are positions
 * unless the layer was given an order. Appended tokens come to be pages in the order of their
 * positions.
 *
 * Thread rule: the sequence's thread.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "sequence.h"

/* ---- places ---- */

uint32_t sparse_given_tokens(const kvt_sparse *s, uint32_t layer)
{
    return s->options.layout.tokens + s->appended[layer];
}

uint32_t sparse_given_next(const uint64_t *asked, uint32_t from, uint32_t end)
{
    while (from < end) {
        const uint64_t bits = asked[from / 64] >> from % 64;
        if (bits != 0) {
            from += (uint32_t)__builtin_ctzll(bits);
            return from < end ? from : end;
        }
        from = (from / 64 + 1) * 64;
    }
    return end;
}

uint32_t sparse_given_page(const kvt_sparse *s, const sparse_unit *unit, uint32_t position)
{
    const uint32_t tokens = unit->paging.page_tokens;
    if (position < s->zone_tokens)
        return (unit->place_of != NULL ? unit->place_of[position] : position) / tokens;
    const uint32_t chunk = (position - s->zone_tokens) / tokens;
    if (chunk >= unit->tail.added.pages_max || unit->tail.chunks[chunk] == SPARSE_NOT_HELD)
        return SPARSE_NOT_HELD;
    return unit->paging.pages + unit->tail.chunks[chunk];
}

kvt_status sparse_given_arrange(const kvt_sparse *s, sparse_unit *unit, uint32_t *token_at)
{
    uint32_t *place_of = malloc(s->zone_tokens * sizeof *place_of);
    if (place_of == NULL) return KVT_E_MEMORY;
    memset(place_of, 0xff, s->zone_tokens * sizeof *place_of);
    for (uint32_t place = 0; place < s->zone_tokens; place++) {
        const uint32_t position = token_at[place];
        if (position >= s->zone_tokens || place_of[position] != UINT32_MAX) {
            free(place_of);
            return KVT_E_CORRUPT;
        }
        place_of[position] = place;
    }
    unit->token_at = token_at;
    unit->place_of = place_of;
    return KVT_OK;
}

/* ---- runs ---- */

/* Positions that are asked for one after the other, from an asked one on, at most so many. */
static uint32_t count_asked(const uint64_t *asked, uint32_t from, uint32_t most)
{
    uint32_t count = 1;
    while (count < most && (asked[(from + count) / 64] >> (from + count) % 64 & 1) != 0)
        count++;
    return count;
}

/* Where the row of a position lies, and how many positions from it on follow it there. */
typedef struct given_rows {
    const uint8_t *k, *v; /* NULL: lost */
    uint32_t tokens;
    uint8_t tier;
} given_rows;

typedef struct given_search {
    uint32_t position;
    const sparse_joined *found;
} given_search;

static void search_joined(void *context, const sparse_joined *page)
{
    given_search *search = context;
    const uint32_t first = page->tokens > 0 ? page->positions[0] : UINT32_MAX;
    if (search->position >= first && search->position - first < page->tokens) search->found = page;
}

/* Rows that are in memory and in no page at rest. */
static given_rows find_appended(const kvt_sparse *s, uint32_t layer, const sparse_unit *unit,
                                uint32_t position)
{
    const uint32_t local = sparse_local_position(s, layer, unit);
    const uint8_t *keys = unit->local.keys, *values = unit->local.values;
    uint32_t at = position - local, count = unit->local.tokens;
    if (position < local) {
        given_search search = {.position = position};
        (void)sparse_append_in_memory(unit, search_joined, &search);
        assert(search.found != NULL && "a position is at rest, in an own page, or local");
        keys = search.found->keys;
        values = s->value_bytes > 0 ? search.found->values : keys;
        at = position - search.found->positions[0];
        count = search.found->tokens;
    }
    return (given_rows){.k = keys + (uint64_t)at * s->row_bytes,
                        .v = values + (uint64_t)at * s->row_bytes,
                        .tokens = count - at,
                        .tier = KVT_TIER_NONE};
}

static given_rows find_rows(const kvt_sparse *s, uint32_t layer, const sparse_unit *unit,
                            const sparse_head_work *head, uint32_t position)
{
    const uint32_t page = sparse_given_page(s, unit, position), tokens = unit->paging.page_tokens;
    if (page == SPARSE_NOT_HELD) return find_appended(s, layer, unit, position);
    const bool placed = unit->place_of != NULL && position < s->zone_tokens;
    const uint32_t place = placed ? unit->place_of[position] : position;
    const uint32_t at = place % tokens; /* the zone is whole pages, from place 0 on */
    const sparse_item *item = head->items[page];
    given_rows rows = {.tokens = tokens - at};
    for (uint32_t i = 1; placed && i < rows.tokens; i++)
        if (position + i >= s->zone_tokens || unit->place_of[position + i] != place + i)
            rows.tokens = i;
    if (head->variant[page] == PAGES_ABSENT) return rows;
    kvt_tier tier = item != NULL && item->memory == NULL ? KVT_TIER_SSD : KVT_TIER_DRAM;
    const uint8_t *from = item != NULL ? item->bytes
                          : unit->place[page] != SPARSE_NOT_HELD
                              ? sparse_window_rows(s, unit, page)
                              : sparse_hbm_find(s, unit, page, &tier);
    rows.k = from + (uint64_t)at * s->row_bytes;
    rows.v = s->value_bytes > 0 ? rows.k + (uint64_t)tokens * s->row_bytes : rows.k;
    rows.tier = (uint8_t)tier;
    return rows;
}

/* Counts the runs and their tokens, or lists them where there is room. */
static void list_runs(kvt_sparse *s, uint32_t layer, const sparse_unit *unit,
                      const sparse_head_work *head, bool list, uint32_t *runs_out,
                      uint32_t *tokens_out)
{
    const uint32_t end = sparse_given_tokens(s, layer);
    uint32_t runs = 0, tokens = 0;
    for (uint32_t p = sparse_given_next(head->asked, 0, end), count; p < end;
         p = sparse_given_next(head->asked, p + count, end)) {
        const given_rows rows = find_rows(s, layer, unit, head, p);
        const uint32_t most = rows.tokens < end - p ? rows.tokens : end - p;
        count = count_asked(head->asked, p, most);
        if (rows.k == NULL) continue;
        for (uint32_t i = 0; list && i < count; i++)
            head->positions[tokens + i] = p + i;
        if (list)
            head->pages[runs] = (kvt_sparse_page){.k = rows.k,
                                                  .v = rows.v,
                                                  .positions = head->positions + tokens,
                                                  .tokens = count,
                                                  .variant = KVT_SPARSE_RAW,
                                                  .tier = rows.tier};
        if (list && rows.tier != KVT_TIER_NONE && rows.tier != KVT_TIER_SSD)
            s->stats.tier_hit_bytes[rows.tier] += (uint64_t)count * s->terms.token_bytes[PAGES_RAW];
        runs++;
        tokens += count;
    }
    *runs_out = runs;
    *tokens_out = tokens;
}

kvt_status sparse_given_bring(kvt_sparse *s, kvt_sparse_step *step, uint32_t h)
{
    const sparse_unit *unit = sparse_unit_of(s, step->layer, h);
    sparse_head_work *head = &step->heads[h];
    uint32_t runs, tokens;
    list_runs(s, step->layer, unit, head, false, &runs, &tokens);
    kvt_status status = sparse_step_room(s, head, runs + 1, tokens, 0);
    if (status != KVT_OK) return status;
    list_runs(s, step->layer, unit, head, true, &runs, &tokens);
    step->heads_out[h] = (kvt_sparse_head){.pages = runs > 0 ? head->pages : NULL,
                                           .page_count = runs,
                                           .lost_count = head->lost_count,
                                           .lost = head->lost};
    return KVT_OK;
}

/* ---- index keys ---- */

kvt_status sparse_given_open(kvt_sparse *s)
{
    const kvt_sparse_options *o = &s->options;
    if (o->key_bytes == 0) return KVT_OK;
    s->index_keys = calloc((uint64_t)o->layout.layers * o->tokens_max, o->key_bytes);
    s->index_key_tokens = calloc(o->layout.layers, sizeof *s->index_key_tokens);
    return s->index_keys != NULL && s->index_key_tokens != NULL ? KVT_OK : KVT_E_MEMORY;
}

void sparse_given_close(kvt_sparse *s)
{
    free(s->index_keys);
    free(s->index_key_tokens);
}

static uint8_t *keys_of(const kvt_sparse *s, uint32_t layer)
{
    return s->index_keys + (uint64_t)layer * s->options.tokens_max * s->options.key_bytes;
}

kvt_status kvt_sparse_give_keys(kvt_sparse *s, uint32_t layer, const void *keys, uint32_t tokens)
{
    if (s == NULL || (keys == NULL && tokens > 0) || layer >= s->options.layout.layers)
        return KVT_E_ARGUMENT;
    if (s->index_keys == NULL || !scratch_is_ours(s->store)) return KVT_E_STATE;
    const uint32_t has = s->index_key_tokens[layer];
    const uint64_t bytes = s->options.key_bytes;
    if (tokens > s->options.tokens_max - has) return KVT_E_STATE;
    if (tokens > 0) memcpy(keys_of(s, layer) + has * bytes, keys, tokens * bytes);
    s->index_key_tokens[layer] += tokens;
    return KVT_OK;
}

kvt_status kvt_sparse_keys(const kvt_sparse *s, uint32_t layer, const void **keys_out,
                           uint32_t *tokens_out)
{
    if (s == NULL || keys_out == NULL || tokens_out == NULL || layer >= s->options.layout.layers)
        return KVT_E_ARGUMENT;
    if (s->index_keys == NULL || !scratch_is_ours(s->store)) return KVT_E_STATE;
    *keys_out = keys_of(s, layer);
    *tokens_out = s->index_key_tokens[layer];
    return KVT_OK;
}
