/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sequence_given.c - sequences of models that select by themselves: a step's tokens or blocks come
 * from the engine, and the step brings the rows of these tokens alone.
 *
 *     lists -> a bit of each asked position -> pages -> reads of those that are not resident
 *           -> [wait] -> runs of neighbours, each where its page lies (sequence_given_rows.c)
 *
 * A layer that is given with selections has its tokens in the order of how many selections have
 * them: in classes of powers of two, the most first, and by position in a class.
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

/* Whether the lists are ones that a layer can have. */
static bool is_sound(const kvt_sparse *s, uint32_t layer, const kvt_sparse_given *given)
{
    const uint32_t tokens = sparse_given_tokens(s, layer), heads = s->options.layout.kv_heads;
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

/* The list of a head; *count_out: its numbers. */
static const uint32_t *list_of(const kvt_sparse_given *given, uint32_t h, uint32_t *count_out)
{
    const uint32_t list = given->lists == 1 ? 0 : h;
    const uint32_t *numbers = given->numbers;
    for (uint32_t i = 0; i < list && numbers != NULL; i++)
        numbers += given->counts[i];
    *count_out = given->counts[list];
    return numbers;
}

/* Marks the positions of each head. */
static void mark(const kvt_sparse *s, uint32_t layer, const kvt_sparse_given *given,
                 kvt_sparse_step *step)
{
    const uint32_t tokens = sparse_given_tokens(s, layer);
    for (uint32_t h = 0; h < s->options.layout.kv_heads; h++) {
        uint32_t listed;
        const uint32_t *numbers = list_of(given, h, &listed);
        uint64_t *asked = step->heads[h].asked;
        memset(asked, 0, (tokens / 64 + 1) * sizeof *asked);
        for (uint32_t n = 0; n < listed; n++) {
            const uint32_t first = numbers[n] * given->block_tokens;
            const uint32_t count =
                given->block_tokens < tokens - first ? given->block_tokens : tokens - first;
            for (uint32_t p = first; p < first + count; p++)
                asked[p / 64] |= UINT64_C(1) << p % 64;
        }
    }
}

/* The weight of a page is the number of its tokens that are asked for. Returns the bytes that
 * drives have of these pages. */
static uint64_t weigh(const kvt_sparse *s, uint32_t layer, const sparse_unit *unit,
                      const sparse_head_work *head)
{
    const uint32_t tokens = sparse_given_tokens(s, layer), pages = sparse_unit_pages(unit);
    const uint64_t page_bytes =
        sparse_whole_grains(sparse_page_bytes(&unit->paging, unit->paging.page_tokens, PAGES_RAW));
    uint64_t bytes = 0;
    memset(head->work.page, 0, pages * sizeof *head->work.page);
    for (uint32_t p = sparse_given_next(head->asked, 0, tokens); p < tokens;
         p = sparse_given_next(head->asked, p + 1, tokens)) {
        const uint32_t page = sparse_given_page(s, unit, p);
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

/* ---- the order of a zone ---- */

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
    uint32_t listed;
    const uint32_t *numbers = list_of(given, h, &listed);
    for (uint32_t n = 0; n < listed; n++) {
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
        s->give_failed || !scratch_is_ours(s->store))
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
    if (status != KVT_OK && !s->give_failed) forget_order(s, layer);
    return status;
}
