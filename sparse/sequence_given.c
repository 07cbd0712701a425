/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sequence_given.c - sequences of models that select by themselves: a step's tokens or blocks come
 * from the engine, and the step brings the rows of these tokens alone. And the index keys that such
 * a model scores, which are kept beside.
 *
 *     lists -> a bit of each asked position -> pages -> reads of those that are not resident
 *           -> [wait] -> runs of neighbours, each where its page lies
 *
 * Nothing is clustered. Page n of the zone has the n-th page_tokens positions; or, of a layer that
 * was given with selections, those places: tokens by how many selections have them, in classes of
 * powers of two, the most first, and by position in a class. Appended tokens come to be pages in
 * the order of their positions.
 *
 * Thread rule: the sequence's thread.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/struct_size.h"
#include "sequence.h"

#define GIVEN_LEAST STRUCT_SIZE_THROUGH(kvt_sparse_given, numbers)

/* ---- what is asked for ---- */

static uint32_t tokens_of(const kvt_sparse *s, uint32_t layer)
{
    return s->options.layout.tokens + s->appended[layer];
}

/* The first position from one on that is asked for, below `end`; end: none. */
static uint32_t next_asked(const uint64_t *asked, uint32_t from, uint32_t end)
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

/* Positions that are asked for one after the other, from an asked one on, at most so many. */
static uint32_t count_asked(const uint64_t *asked, uint32_t from, uint32_t most)
{
    uint32_t count = 1;
    while (count < most && (asked[(from + count) / 64] >> (from + count) % 64 & 1) != 0)
        count++;
    return count;
}

/* The page at rest that has a position; SPARSE_NOT_HELD: it is in memory, and in no such page. */
static uint32_t page_of(const kvt_sparse *s, const sparse_unit *unit, uint32_t position)
{
    const uint32_t tokens = unit->paging.page_tokens;
    if (position < s->zone_tokens)
        return (unit->place_of != NULL ? unit->place_of[position] : position) / tokens;
    const uint32_t chunk = (position - s->zone_tokens) / tokens;
    if (chunk >= unit->tail.added.pages_max || unit->tail.chunks[chunk] == SPARSE_NOT_HELD)
        return SPARSE_NOT_HELD;
    return unit->paging.pages + unit->tail.chunks[chunk];
}

/* Whether the lists are ones that a layer can have. */
static bool is_sound(const kvt_sparse *s, uint32_t layer, const kvt_sparse_given *given)
{
    const uint32_t tokens = tokens_of(s, layer), heads = s->options.layout.kv_heads;
    if (given->block_tokens == 0 || given->counts == NULL) return false;
    if (given->lists != 1 && given->lists != heads) return false;
    const uint32_t most = (tokens - 1) / given->block_tokens; /* the last number */
    const uint32_t *number = given->numbers;
    for (uint32_t i = 0; i < given->lists; i++) {
        if (given->counts[i] > 0 && number == NULL) return false;
        for (uint32_t n = 0; n < given->counts[i]; n++)
            if (*number++ > most) return false;
    }
    return true;
}

/* Marks the positions of each head. */
static void mark(const kvt_sparse *s, uint32_t layer, const kvt_sparse_given *given,
                 kvt_sparse_step *step)
{
    const uint32_t tokens = tokens_of(s, layer);
    const uint32_t *numbers = given->numbers;
    for (uint32_t h = 0; h < s->options.layout.kv_heads; h++) {
        uint64_t *asked = step->heads[h].asked;
        memset(asked, 0, (tokens / 64 + 1) * sizeof *asked);
        const uint32_t list = given->lists == 1 ? 0 : h;
        for (uint32_t n = 0; n < given->counts[list]; n++) {
            const uint32_t first = numbers[n] * given->block_tokens;
            const uint32_t count =
                given->block_tokens < tokens - first ? given->block_tokens : tokens - first;
            for (uint32_t p = first; p < first + count; p++)
                asked[p / 64] |= UINT64_C(1) << p % 64;
        }
        if (given->lists > 1 && numbers != NULL) numbers += given->counts[list];
    }
}

/* The weight of a page is the number of its tokens that are asked for. Returns the bytes that
 * drives have of these pages. */
static uint64_t weigh(const kvt_sparse *s, uint32_t layer, const sparse_unit *unit,
                      const sparse_head_work *head)
{
    const uint32_t tokens = tokens_of(s, layer), pages = sparse_unit_pages(unit);
    const uint64_t page_bytes =
        sparse_whole_grains(sparse_page_bytes(&unit->paging, unit->paging.page_tokens, PAGES_RAW));
    uint64_t bytes = 0;
    memset(head->work.page, 0, pages * sizeof *head->work.page);
    for (uint32_t p = next_asked(head->asked, 0, tokens); p < tokens;
         p = next_asked(head->asked, p + 1, tokens)) {
        const uint32_t page = page_of(s, unit, p);
        if (page == SPARSE_NOT_HELD) continue;
        if (head->work.page[page] == 0) bytes += page_bytes;
        head->work.page[page]++;
    }
    return bytes;
}

/* ---- select ---- */

/* Adds what is missing to a fetch and begins it. A hint keeps what is held beside it. */
static kvt_status plan(kvt_sparse *s, kvt_sparse_step *step, sparse_fetch *fetch)
{
    const uint32_t heads = s->options.layout.kv_heads;
    const bool hint = fetch == &step->hint;
    uint64_t bytes = 0;
    kvt_status status = KVT_OK;
    for (uint32_t h = 0; h < heads; h++)
        bytes += weigh(s, step->layer, sparse_unit_of(s, step->layer, h), &step->heads[h]);
    if (bytes > s->options.budget_bytes) return KVT_E_SPACE;
    for (uint32_t h = 0; h < heads && status == KVT_OK; h++) {
        const uint32_t pages = sparse_unit_pages(sparse_unit_of(s, step->layer, h));
        sparse_head_work *head = &step->heads[h];
        head->budget_bytes = s->options.budget_bytes;
        head->plan = (pages_plan){.bytes = 0};
        if (pages == 0) continue;
        memcpy(head->coming, head->variant, pages);
        for (uint32_t page = 0; page < pages && status == KVT_OK; page++) {
            if (head->work.page[page] > 0)
                head->variant[page] = PAGES_RAW;
            else if (!hint)
                head->variant[page] = PAGES_ABSENT;
            if (head->variant[page] > head->coming[page])
                status = sparse_fetch_add(s, fetch, step->layer, h, page, PAGES_RAW);
        }
    }
    return status == KVT_OK ? sparse_fetch_start(s, fetch, !hint) : status;
}

/* Takes in number i of a caller's selections. False: it is none that the layer can have. */
static bool take(const kvt_sparse *s, uint32_t layer, const kvt_sparse_given *list, uint32_t i,
                 kvt_sparse_given *own)
{
    const char *at = (const char *)list + (size_t)i * struct_size_of(list);
    const kvt_sparse_given *given = struct_size_in(at, own, sizeof *own, GIVEN_LEAST);
    if (given == NULL || !is_sound(s, layer, given)) return false;
    if (given != own) *own = *given;
    return true;
}

/* The checks of all calls that take selections of a layer that is there. */
static kvt_status check(const kvt_sparse *s, uint32_t layer, const kvt_sparse_given *list,
                        uint32_t count, kvt_sparse_given *own)
{
    if (s == NULL || list == NULL || count == 0 || layer >= s->options.layout.layers)
        return KVT_E_ARGUMENT;
    if (!s->ready || !s->options.given || !scratch_is_ours(s->store)) return KVT_E_STATE;
    for (uint32_t i = 0; i < count; i++)
        if (!take(s, layer, list, i, own)) return KVT_E_ARGUMENT;
    return KVT_OK;
}

kvt_status kvt_sparse_select_given(kvt_sparse *s, uint32_t layer, const kvt_sparse_given *given,
                                   kvt_sparse_step **step_out)
{
    kvt_sparse_given own = {.struct_size = sizeof own};
    kvt_status status = check(s, layer, given, 1, &own);
    if (status != KVT_OK) return status;
    if (step_out == NULL) return KVT_E_ARGUMENT;
    kvt_sparse_step *step;
    status = sparse_step_take(s, layer, &step);
    if (status != KVT_OK) return status;
    mark(s, layer, &own, step);
    status = plan(s, step, &step->fetch);
    if (status != KVT_OK) {
        sparse_step_end(s, step);
        return status;
    }
    step->state = STEP_SELECTED;
    s->stats.steps++;
    *step_out = step;
    return KVT_OK;
}

kvt_status kvt_sparse_hint_given(kvt_sparse *s, uint32_t layer, const kvt_sparse_given *given)
{
    kvt_sparse_given own = {.struct_size = sizeof own};
    kvt_status status = check(s, layer, given, 1, &own);
    if (status != KVT_OK) return status;
    if (sparse_step_is_open(s, layer)) return KVT_BUSY;
    kvt_sparse_step *step;
    status = sparse_step_take(s, layer, &step);
    assert(status == KVT_OK && "a step is free");
    mark(s, layer, &own, step);
    status = plan(s, step, &step->hint);
    step->state = STEP_HINTED;
    if (status != KVT_OK) sparse_step_end(s, step);
    return status;
}

kvt_status kvt_sparse_observe_given(kvt_sparse *s, uint32_t layer, const kvt_sparse_given *given,
                                    uint32_t count)
{
    kvt_sparse_given own = {.struct_size = sizeof own};
    kvt_status status = check(s, layer, given, count, &own);
    if (status != KVT_OK) return status;
    if (sparse_step_is_open(s, layer)) return KVT_E_STATE;
    status = sparse_observe_begin(s, layer);
    if (status != KVT_OK) return status;
    kvt_sparse_step *step;
    status = sparse_step_take(s, layer, &step);
    assert(status == KVT_OK && "a step is free");
    for (uint32_t i = 0; i < count; i++) {
        (void)take(s, layer, given, i, &own);
        mark(s, layer, &own, step);
        for (uint32_t h = 0; h < s->options.layout.kv_heads; h++) {
            sparse_unit *unit = sparse_unit_of(s, layer, h);
            (void)weigh(s, layer, unit, &step->heads[h]);
            sparse_step_add_heat(s, unit, step->heads[h].work.page, 1.0f / (float)count);
        }
    }
    sparse_step_end(s, step);
    return sparse_observe_end(s, layer);
}

/* ---- wait ---- */

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
    const uint32_t page = page_of(s, unit, position), tokens = unit->paging.page_tokens;
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
    const uint32_t end = tokens_of(s, layer);
    uint32_t runs = 0, tokens = 0;
    for (uint32_t p = next_asked(head->asked, 0, end), count; p < end;
         p = next_asked(head->asked, p + count, end)) {
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

/* ---- the order of a zone ---- */

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

enum { CLASSES = 33 };

/* The class of a token that so many selections have: 0 for none, and one more for each power. */
static uint32_t class_of(uint32_t selections)
{
    return selections == 0 ? 0 : 32 - (uint32_t)__builtin_clz(selections);
}

/* Adds a selection to the counts of one head's tokens. */
static void count_selected(const kvt_sparse *s, const kvt_sparse_given *given, uint32_t h,
                           uint32_t *counts)
{
    const uint32_t list = given->lists == 1 ? 0 : h;
    const uint32_t *numbers = given->numbers;
    for (uint32_t i = 0; i < list; i++)
        numbers += given->counts[i];
    for (uint32_t n = 0; n < given->counts[list]; n++) {
        const uint64_t first = (uint64_t)numbers[n] * given->block_tokens;
        for (uint64_t p = first; p < first + given->block_tokens && p < s->zone_tokens; p++)
            counts[p]++;
    }
}

/* The places of one head's tokens, the classes in falling order. */
static kvt_status order_head(const kvt_sparse *s, sparse_unit *unit, const uint32_t *counts)
{
    uint32_t next[CLASSES + 1] = {0};
    uint32_t *token_at = malloc(s->zone_tokens * sizeof *token_at);
    if (token_at == NULL) return KVT_E_MEMORY;
    for (uint32_t p = 0; p < s->zone_tokens; p++)
        next[CLASSES - 1 - class_of(counts[p])]++;
    for (uint32_t i = 0, first = 0; i < CLASSES; i++) {
        const uint32_t own = next[i];
        next[i] = first;
        first += own;
    }
    for (uint32_t p = 0; p < s->zone_tokens; p++)
        token_at[next[CLASSES - 1 - class_of(counts[p])]++] = p;
    const kvt_status status = sparse_given_arrange(s, unit, token_at);
    if (status != KVT_OK) free(token_at);
    return status;
}

/* Forgets what a layer that may be given again was ordered by. */
static void forget_order(kvt_sparse *s, uint32_t layer)
{
    for (uint32_t h = 0; h < s->options.layout.kv_heads; h++) {
        sparse_unit *unit = sparse_unit_of(s, layer, h);
        free(unit->token_at);
        free(unit->place_of);
        unit->token_at = unit->place_of = NULL;
    }
}

kvt_status kvt_sparse_give_selected(kvt_sparse *s, uint32_t layer, const void *k, const void *v,
                                    const kvt_sparse_given *given, uint32_t count)
{
    kvt_sparse_given own = {.struct_size = sizeof own};
    if (s == NULL || (given == NULL && count > 0)) return KVT_E_ARGUMENT;
    if (!s->options.given || layer != s->layers_given || layer >= s->options.layout.layers ||
        !scratch_is_ours(s->store))
        return KVT_E_STATE;
    for (uint32_t i = 0; i < count; i++)
        if (!take(s, layer, given, i, &own)) return KVT_E_ARGUMENT;
    uint32_t *counts = calloc((uint64_t)s->zone_tokens + 1, sizeof *counts);
    kvt_status status = counts != NULL ? KVT_OK : KVT_E_MEMORY;
    for (uint32_t h = 0; h < s->options.layout.kv_heads && status == KVT_OK && count > 0; h++) {
        memset(counts, 0, s->zone_tokens * sizeof *counts);
        for (uint32_t i = 0; i < count; i++) {
            (void)take(s, layer, given, i, &own);
            count_selected(s, &own, h, counts);
        }
        if (s->zone_tokens > 0) status = order_head(s, sparse_unit_of(s, layer, h), counts);
    }
    free(counts);
    if (status == KVT_OK) status = kvt_sparse_give(s, layer, k, v);
    if (status != KVT_OK && s->layers_given == layer) forget_order(s, layer);
    return status;
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
