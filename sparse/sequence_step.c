/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sequence_step.c - the calls of a decode step: select plans and starts the reads, wait brings rows
 * and estimates, done decides what stays. Only wait waits.
 *
 * Thread rule: the sequence's thread.
 */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sequence.h"

/* ---- memory ---- */

static kvt_status open_head(kvt_sparse *s, sparse_head_work *head, const sparse_work_room *room)
{
    const uint32_t dim = s->options.layout.head_dim, pages = room->pages;
    kvt_status status = sparse_work_open(room, s->group, dim, &head->work);
    head->held = calloc(pages + 1, 1);
    head->coming = calloc(pages + 1, 1);
    head->variant = calloc(pages + 1, 1);
    head->items = calloc(pages + 1, sizeof *head->items);
    head->lost = malloc((pages + 1) * sizeof *head->lost);
    head->lse = malloc(s->group * sizeof(float));
    head->estimate = malloc(s->group * dim * sizeof(float));
    head->estimate_lse = malloc(s->group * sizeof(float));
    if (s->options.given) {
        head->asked = calloc(s->options.tokens_max / 64 + 1, sizeof *head->asked);
        if (head->asked == NULL) status = KVT_E_MEMORY;
    }
    if (head->held == NULL || head->coming == NULL || head->variant == NULL ||
        head->items == NULL || head->lost == NULL || head->lse == NULL || head->estimate == NULL ||
        head->estimate_lse == NULL)
        status = KVT_E_MEMORY;
    return status == KVT_OK ? sparse_window_open_singles(s, room, head) : status;
}

static void close_head(sparse_head_work *head)
{
    sparse_work_close(&head->work);
    sparse_singles_close(&head->singles);
    free(head->held);
    free(head->coming);
    free(head->variant);
    free(head->items);
    free(head->lost);
    free(head->lse);
    free(head->estimate);
    free(head->estimate_lse);
    free(head->pages);
    free(head->positions);
    free(head->asked);
    free(head->rows);
}

/* The largest unit decides, so that any step serves any layer. */
kvt_status sparse_steps_open(kvt_sparse *s)
{
    const uint32_t heads = s->options.layout.kv_heads;
    sparse_work_room room = {.pages = 0};
    uint32_t coarsest = PAGES_BITS_2;
    while (coarsest < PAGES_RAW && (s->variants >> coarsest & 1u) == 0)
        coarsest++;
    const uint64_t tokens = sparse_head_budget(s) / s->terms.token_bytes[coarsest];
    for (uint64_t i = 0; i < (uint64_t)s->options.layout.layers * heads; i++) {
        const sparse_unit *unit = &s->units[i];
        const uint32_t appended = s->options.given ? unit->tail.added.pages_max : 0;
        sparse_index_read(&s->units[i].index, tokens);
        sparse_work_room_add(&room, &unit->index, unit->paging.pages + appended);
    }
    s->left = malloc(2 * ((size_t)room.pages + 1) * sizeof *s->left);
    s->placeless = s->left + (s->left != NULL ? room.pages + 1 : 0);
    s->meter_variant = malloc(room.pages + 1);
    s->layer_steps = calloc(s->options.layout.layers, sizeof *s->layer_steps);
    const sparse_paging *paging = &s->units[0].paging;
    s->scratch_rows = aligned_alloc(64, (sparse_code_scratch(paging) + 63) / 64 * 64);
    s->hbm.chosen = calloc(room.pages + 1, sizeof *s->hbm.chosen);
    if (s->left == NULL || s->scratch_rows == NULL || s->meter_variant == NULL ||
        s->layer_steps == NULL || s->hbm.chosen == NULL)
        return KVT_E_MEMORY;
    for (uint32_t i = 0; i < SPARSE_STEPS_MAX; i++) {
        kvt_sparse_step *step = &s->steps[i];
        step->sequence = s;
        step->heads = calloc(heads, sizeof *step->heads);
        step->heads_out = calloc(heads, sizeof *step->heads_out);
        if (step->heads == NULL || step->heads_out == NULL) return KVT_E_MEMORY;
        for (uint32_t h = 0; h < heads; h++) {
            kvt_status status = open_head(s, &step->heads[h], &room);
            if (status != KVT_OK) return status;
        }
    }
    s->ready = true;
    return KVT_OK;
}

void sparse_steps_close(kvt_sparse *s)
{
    for (uint32_t i = 0; i < SPARSE_STEPS_MAX; i++) {
        kvt_sparse_step *step = &s->steps[i];
        sparse_fetch *const fetches[] = {&step->fetch, &step->hint, &step->instead};
        for (int f = 0; f < 3; f++) {
            sparse_fetch_end(s, fetches[f]);
            sparse_fetch_free(fetches[f]);
        }
        for (uint32_t h = 0; step->heads != NULL && h < s->options.layout.kv_heads; h++)
            close_head(&step->heads[h]);
        free(step->heads);
        free(step->heads_out);
    }
    free(s->left);
    free(s->meter_variant);
    free(s->layer_steps);
    free(s->scratch_rows);
    sparse_singles_work_close(&s->singles);
}

static kvt_sparse_step *free_step(kvt_sparse *s)
{
    for (uint32_t i = 0; i < SPARSE_STEPS_MAX; i++)
        if (s->steps[i].state == STEP_FREE) return &s->steps[i];
    return NULL;
}

/* ---- plan ---- */

/* A log-sum-exp that grows by parts. */
typedef struct resident_sum {
    const kvt_sparse *s;
    const float *queries;
    float *lse;
} resident_sum;

static void add_rows(const resident_sum *sum, const uint8_t *keys, const uint8_t *values,
                     uint32_t tokens)
{
    const kvt_sparse *s = sum->s;
    float part[SPARSE_GROUP_MAX];
    if (tokens == 0) return;
    const sparse_run run = {.keys = keys,
                            .values = values,
                            .stride_bytes = s->row_bytes,
                            .tokens = tokens,
                            .dtype = (uint8_t)s->options.layout.dtype};
    sparse_attend_lse(&run, sum->queries, s->group, s->options.layout.head_dim, s->scale, part);
    for (uint32_t g = 0; g < s->group; g++) {
        float *lse = &sum->lse[g];
        const float most = part[g] > *lse ? part[g] : *lse;
        if (most != -INFINITY) *lse = most + logf(expf(part[g] - most) + expf(*lse - most));
    }
}

static void add_joined_rows(void *context, const sparse_joined *page)
{
    add_rows(context, page->keys, page->values, page->tokens);
}

/* Log-sum-exp of what is always resident, per query of one head. */
static void resident_lse(kvt_sparse *s, const sparse_unit *unit, const float *queries, float *lse)
{
    resident_sum sum = {.s = s, .queries = queries, .lse = lse};
    for (uint32_t g = 0; g < s->group; g++)
        lse[g] = -INFINITY;
    add_rows(&sum, unit->sinks.keys, unit->sinks.values, unit->sinks.tokens);
    add_rows(&sum, unit->local.keys, unit->local.values, unit->local.tokens);
    (void)sparse_append_in_memory(unit, add_joined_rows, &sum);
}

/* Weights of one head's pages. Queries are finite. */
static kvt_status weigh_head(kvt_sparse *s, uint32_t layer, uint32_t h, const float *queries,
                             sparse_head_work *head)
{
    const sparse_unit *unit = sparse_unit_of(s, layer, h);
    const float *own = queries + (size_t)h * s->group * s->options.layout.head_dim;
    resident_lse(s, unit, own, head->lse);
    if (sparse_unit_pages(unit) == 0) return KVT_OK;
    return sparse_choose_weights(&unit->index, &unit->paging, own, s->group, s->scale, head->lse,
                                 &head->work);
}

/* Chooses the variant of each page by weight; `held` is what is resident or on its way. A segment
 * without a coded form is read raw. */
static void choose_head(kvt_sparse *s, const sparse_unit *unit, const float *weight,
                        const uint8_t *held, uint64_t budget_bytes, sparse_head_work *head)
{
    const pages_problem problem = sparse_head_problem(s, unit, weight, held, budget_bytes);
    head->budget_bytes = budget_bytes;
    head->plan = (pages_plan){.bytes = 0};
    if (problem.count == 0) return;
    pages_choose(&problem, head->variant, &head->plan);
    for (uint32_t page = 0; page < problem.count; page++) {
        uint8_t *variant = &head->variant[page];
        const bool coded = *variant != PAGES_ABSENT && *variant != PAGES_RAW;
        if (coded && !sparse_unit_has_code(s, unit, page)) *variant = PAGES_RAW;
    }
}

/* ---- select ---- */

/* Plans all heads, and begins to read what is missing. */
static kvt_status plan_layer(kvt_sparse *s, kvt_sparse_step *step, const float *queries)
{
    const uint32_t layer = step->layer;
    kvt_status status = KVT_OK;
    sparse_slopes_fit(s);
    for (uint32_t h = 0; h < s->options.layout.kv_heads && status == KVT_OK; h++) {
        const sparse_unit *unit = sparse_unit_of(s, layer, h);
        sparse_head_work *head = &step->heads[h];
        const uint32_t pages = sparse_unit_pages(unit);
        status = weigh_head(s, layer, h, queries, head);
        if (status != KVT_OK || pages == 0) continue;
        memcpy(head->coming, head->variant, pages);
        choose_head(s, unit, head->work.page, head->coming, sparse_head_budget(s), head);
        for (uint32_t page = 0; page < pages && status == KVT_OK; page++) {
            if (head->variant[page] <= head->coming[page]) continue;
            status = sparse_fetch_add(s, &step->fetch, layer, h, page, head->variant[page]);
        }
    }
    return status == KVT_OK ? sparse_fetch_start(s, &step->fetch, true) : status;
}

/* Notes the pages that are held before the step, and so need no read. */
static void begin_step(kvt_sparse *s, kvt_sparse_step *step, uint32_t layer)
{
    step->layer = layer;
    sparse_hbm_begin(s, layer);
    for (uint32_t h = 0; h < s->options.layout.kv_heads; h++) {
        const sparse_unit *unit = sparse_unit_of(s, layer, h);
        sparse_head_work *head = &step->heads[h];
        head->lost_count = 0;
        if (unit->window.pages == 0) continue;
        memcpy(head->held, unit->window.held, unit->window.pages);
        memcpy(head->variant, unit->window.held, unit->window.pages);
    }
}

void sparse_step_end(kvt_sparse *s, kvt_sparse_step *step)
{
    sparse_fetch_end(s, &step->fetch);
    sparse_fetch_end(s, &step->hint);
    sparse_fetch_end(s, &step->instead);
    step->state = STEP_FREE;
}

kvt_status sparse_step_take(kvt_sparse *s, uint32_t layer, kvt_sparse_step **step_out)
{
    kvt_sparse_step *step = sparse_step_find(s, layer);
    if (step != NULL && step->state != STEP_HINTED) return KVT_E_STATE;
    if (step == NULL) {
        step = free_step(s);
        if (step == NULL) return KVT_BUSY;
        begin_step(s, step, layer);
    }
    *step_out = step;
    return KVT_OK;
}

kvt_status kvt_sparse_select(kvt_sparse *s, uint32_t layer, const float *queries,
                             kvt_sparse_step **step_out)
{
    if (s == NULL) return KVT_E_ARGUMENT;
    const size_t count = (size_t)s->options.query_heads * s->options.layout.head_dim;
    if (!s->ready || s->options.given || !scratch_is_ours(s->store)) return KVT_E_STATE;
    if (layer >= s->options.layout.layers || queries == NULL || step_out == NULL ||
        !sparse_queries_are_sound(queries, count))
        return KVT_E_ARGUMENT;
    kvt_sparse_step *step;
    kvt_status status = sparse_step_take(s, layer, &step);
    if (status != KVT_OK) return status;
    status = plan_layer(s, step, queries);
    if (status == KVT_OK)
        sparse_window_choose_singles(s, step, queries); /* while the drives read */
    step->state = STEP_SELECTED;
    if (status != KVT_OK) {
        sparse_step_end(s, step);
        return status;
    }
    s->stats.steps++;
    *step_out = step;
    return KVT_OK;
}

/* ---- wait ---- */

/* Notes which item each page has. A page that did not come is as it was before the step. */
static void list_items(kvt_sparse *s, kvt_sparse_step *step, const sparse_fetch *fetch)
{
    for (uint32_t i = 0; i < fetch->count; i++) {
        sparse_item *item = &fetch->items[i];
        sparse_head_work *head = &step->heads[item->head];
        if (item->bytes != NULL) {
            const sparse_item *other = head->items[item->page];
            if (other == NULL || other->variant < item->variant) head->items[item->page] = item;
        }
    }
    (void)s;
}

/* Settles every page that was to come: in the variant that came, as it was held, or lost. */
static void settle_items(kvt_sparse *s, kvt_sparse_step *step, const sparse_fetch *fetch)
{
    for (uint32_t i = 0; i < fetch->count; i++) {
        const sparse_item *item = &fetch->items[i];
        sparse_head_work *head = &step->heads[item->head];
        const sparse_item *came = head->items[item->page];
        const bool first = head->variant[item->page] != PAGES_ABSENT;
        head->variant[item->page] = came != NULL ? came->variant : head->held[item->page];
        if (head->variant[item->page] != PAGES_ABSENT || !first) continue;
        head->lost[head->lost_count++] = item->page;
        s->stats.lost_pages++;
    }
}

/* Pages and tokens of the zone that a head's step brings, and those of them to decode. */
static void count_pages(const sparse_unit *unit, const sparse_head_work *head, uint32_t *pages_out,
                        uint32_t *tokens_out, uint64_t *coded_out)
{
    *pages_out = *tokens_out = 0;
    *coded_out = 0;
    for (uint32_t page = 0; page < sparse_unit_pages(unit); page++) {
        if (head->variant[page] == PAGES_ABSENT) continue;
        const uint32_t tokens = unit->paging.page_tokens;
        const sparse_item *item = head->items[page];
        ++*pages_out;
        *tokens_out += tokens;
        if (item != NULL && item->variant != PAGES_RAW) *coded_out += tokens;
    }
}

/* Only ever larger. */
kvt_status sparse_step_room(const kvt_sparse *s, sparse_head_work *head, uint32_t pages,
                            uint32_t tokens, uint64_t coded)
{
    const uint64_t rows = coded * 2 * s->row_bytes;
    if (pages > head->page_room) {
        free(head->pages);
        head->page_room = pages + pages / 2;
        head->pages = malloc(head->page_room * sizeof *head->pages);
    }
    if (tokens > head->position_room) {
        free(head->positions);
        head->position_room = tokens + tokens / 2;
        head->positions = malloc(head->position_room * sizeof *head->positions);
    }
    if (rows > head->rows_bytes) {
        free(head->rows);
        head->rows_bytes = rows + rows / 2;
        head->rows = malloc(head->rows_bytes);
    }
    const bool complete = head->pages != NULL &&
                          (head->positions != NULL || head->position_room == 0) &&
                          (head->rows != NULL || head->rows_bytes == 0);
    if (complete) return KVT_OK;
    if (head->pages == NULL) head->page_room = 0;
    if (head->positions == NULL) head->position_room = 0;
    if (head->rows == NULL) head->rows_bytes = 0;
    return KVT_E_MEMORY;
}

/* Pages of what is always resident, as they are added. */
static void add_resident(const uint8_t *keys, const uint8_t *values, const uint32_t *positions,
                         uint32_t tokens, kvt_sparse_page **next)
{
    if (tokens == 0) return;
    *(*next)++ = (kvt_sparse_page){.k = keys,
                                   .v = values,
                                   .positions = positions,
                                   .tokens = tokens,
                                   .variant = KVT_SPARSE_RAW,
                                   .tier = KVT_TIER_NONE};
}

static void add_joined(void *context, const sparse_joined *page)
{
    add_resident(page->keys, page->values, page->positions, page->tokens, context);
}

static uint32_t bring_resident(const kvt_sparse *s, uint32_t layer, const sparse_unit *unit,
                               kvt_sparse_page *pages)
{
    const uint32_t *local = s->positions + s->options.sink_tokens +
                            (sparse_local_position(s, layer, unit) - s->local_first);
    kvt_sparse_page *next = pages;
    add_resident(unit->sinks.keys, unit->sinks.values, s->positions, unit->sinks.tokens, &next);
    add_resident(unit->local.keys, unit->local.values, local, unit->local.tokens, &next);
    (void)sparse_append_in_memory(unit, add_joined, &next);
    return (uint32_t)(next - pages);
}

/* Finds the rows of pages that have come, decoded where they are coded; head->rows has room for
 * them. A page whose code gives none is as it was before the step, or lost. */
static void decode_pages(kvt_sparse *s, const sparse_unit *unit, sparse_head_work *head)
{
    const uint64_t bytes = (uint64_t)unit->paging.page_tokens * 2 * s->row_bytes;
    uint8_t *rows = head->rows;
    for (uint32_t page = 0; page < sparse_unit_pages(unit); page++) {
        sparse_item *item = head->items[page];
        if (item == NULL || head->variant[page] == PAGES_ABSENT) continue;
        item->rows = item->bytes;
        if (item->variant == PAGES_RAW) continue;
        item->rows = rows;
        if (sparse_unit_decode(s, unit, page, (pages_variant)item->variant, item->bytes, rows,
                               rows + bytes / 2) == KVT_OK) {
            rows += bytes;
            continue;
        }
        item->rows = NULL;
        head->items[page] = NULL;
        head->variant[page] = head->held[page];
        if (head->held[page] != PAGES_ABSENT) continue;
        head->lost[head->lost_count++] = page;
        s->stats.lost_pages++;
    }
}

/* Rows and positions of one page of the zone. */
static void bring_page(kvt_sparse *s, const sparse_unit *unit, const sparse_head_work *head,
                       uint32_t page, uint32_t *positions, kvt_sparse_page *out)
{
    const uint32_t tokens = unit->paging.page_tokens;
    const uint64_t side = (uint64_t)tokens * s->row_bytes;
    const sparse_item *item = head->items[page];
    sparse_unit_positions(s, unit, page, positions);
    kvt_tier tier = item != NULL && item->memory == NULL ? KVT_TIER_SSD : KVT_TIER_DRAM;
    const uint8_t *k = item != NULL ? item->rows
                       : unit->place[page] != SPARSE_NOT_HELD
                           ? sparse_window_rows(s, unit, page)
                           : sparse_hbm_find(s, unit, page, &tier);
    if (item == NULL)
        s->stats.tier_hit_bytes[tier] += tokens * s->terms.token_bytes[head->variant[page]];
    *out = (kvt_sparse_page){.k = k,
                             .v = k + side,
                             .positions = positions,
                             .tokens = tokens,
                             .variant = head->variant[page],
                             .tier = (uint8_t)tier};
}

static bool has_estimate(const kvt_sparse *s, const sparse_unit *unit)
{
    return s->options.estimate && !s->options.given && sparse_unit_pages(unit) > 0;
}

/* The estimate of what no page of a head brings, by its variants as they are now. */
static void estimate_head(kvt_sparse *s, const kvt_sparse_step *step, uint32_t h)
{
    const sparse_unit *unit = sparse_unit_of(s, step->layer, h);
    sparse_head_work *head = &step->heads[h];
    if (has_estimate(s, unit))
        sparse_choose_estimate(&unit->index, &unit->paging, head->variant, &head->work,
                               head->estimate, head->estimate_lse);
}

/* Rows of one head's pages. The estimate is there, as if all of them came. */
static kvt_status bring_head(kvt_sparse *s, kvt_sparse_step *step, uint32_t h)
{
    const sparse_unit *unit = sparse_unit_of(s, step->layer, h);
    sparse_head_work *head = &step->heads[h];
    uint32_t pages, tokens, token = 0;
    uint64_t coded;
    count_pages(unit, head, &pages, &tokens, &coded);
    const uint32_t resident = 2 + sparse_append_in_memory(unit, NULL, NULL);
    const uint32_t runs = head->singles.chosen != NULL ? head->singles.count : 0;
    kvt_status status = sparse_step_room(s, head, pages + resident + runs, tokens, coded);
    if (status != KVT_OK) return status;
    decode_pages(s, unit, head);
    uint32_t at = bring_resident(s, step->layer, unit, head->pages);
    for (uint32_t page = 0; page < sparse_unit_pages(unit); page++) {
        if (head->variant[page] == PAGES_ABSENT) continue;
        const bool cut = head->singles.chosen != NULL && page < unit->paging.pages &&
                         head->singles.page[page] != 0;
        bring_page(s, unit, head, page, head->positions + token, &head->pages[at]);
        token += unit->paging.page_tokens;
        at += cut ? sparse_window_cut(s, unit, head, page, &head->pages[at]) : 1;
    }
    const bool estimate = has_estimate(s, unit);
    if (head->lost_count > 0) estimate_head(s, step, h);
    step->heads_out[h] = (kvt_sparse_head){.pages = head->pages,
                                           .page_count = at,
                                           .lost_count = head->lost_count,
                                           .lost = head->lost,
                                           .estimate = estimate ? head->estimate : NULL,
                                           .estimate_lse = estimate ? head->estimate_lse : NULL};
    return KVT_OK;
}

static void forget_items(kvt_sparse_step *step, const sparse_fetch *fetch)
{
    for (uint32_t i = 0; i < fetch->count; i++)
        step->heads[fetch->items[i].head].items[fetch->items[i].page] = NULL;
}

/* Reads the pages that the step counted on in HBM, whose device has failed since: in the variant
 * that they were held in. */
static kvt_status fetch_instead(kvt_sparse *s, kvt_sparse_step *step, uint64_t deadline_ns)
{
    for (uint32_t h = 0; h < s->options.layout.kv_heads; h++) {
        const sparse_unit *unit = sparse_unit_of(s, step->layer, h);
        sparse_head_work *head = &step->heads[h];
        for (uint32_t page = 0; page < unit->window.pages && unit->slots > 0; page++) {
            const uint8_t held = head->held[page];
            if (held == PAGES_ABSENT || !sparse_hbm_has_lost(s, unit, page)) continue;
            head->held[page] = PAGES_ABSENT;
            if (head->items[page] != NULL || head->variant[page] == PAGES_ABSENT) continue;
            kvt_status status = sparse_fetch_add(s, &step->instead, step->layer, h, page, held);
            if (status != KVT_OK) return status;
        }
    }
    (void)!sparse_fetch_start(s, &step->instead, true); /* what is not read is lost */
    return sparse_fetch_wait(s, step->layer, &step->instead, deadline_ns);
}

kvt_status kvt_sparse_wait(kvt_sparse *s, kvt_sparse_step *step, uint64_t deadline_ns,
                           const kvt_sparse_pages **pages_out)
{
    if (s == NULL || step == NULL || pages_out == NULL || step->sequence != s)
        return KVT_E_ARGUMENT;
    if (step->state != STEP_SELECTED || !scratch_is_ours(s->store)) return KVT_E_STATE;
    for (uint32_t h = 0; h < s->options.layout.kv_heads; h++) /* while the drives read */
        estimate_head(s, step, h);
    const kvt_status hinted = sparse_fetch_wait(s, step->layer, &step->hint, deadline_ns);
    const kvt_status fetched = sparse_fetch_wait(s, step->layer, &step->fetch, deadline_ns);
    list_items(s, step, &step->hint);
    list_items(s, step, &step->fetch);
    const kvt_status other = fetch_instead(s, step, deadline_ns);
    list_items(s, step, &step->instead);
    settle_items(s, step, &step->hint);
    settle_items(s, step, &step->fetch);
    settle_items(s, step, &step->instead);
    step->pages =
        (kvt_sparse_pages){.struct_size = sizeof step->pages,
                           .layer = step->layer,
                           .kv_heads = s->options.layout.kv_heads,
                           .group = s->group,
                           .head_dim = s->options.layout.head_dim,
                           .dtype = s->options.layout.dtype,
                           .heads = step->heads_out,
                           .scale = s->scale,
                           .read_bytes = step->hint.bytes + step->fetch.bytes + step->instead.bytes,
                           .step = step};
    kvt_status status = other == KVT_E_TIMEOUT ? KVT_OK : other;
    for (uint32_t h = 0; h < s->options.layout.kv_heads && status == KVT_OK; h++) {
        status = s->options.given ? sparse_given_bring(s, step, h) : bring_head(s, step, h);
        step->pages.lost_count += step->heads[h].lost_count;
    }
    step->state = STEP_WAITED;
    if (status != KVT_OK) return status;
    *pages_out = &step->pages;
    return hinted != KVT_OK ? hinted : fetched != KVT_OK ? fetched : other;
}

/* ---- warm-up ---- */

bool sparse_step_is_open(kvt_sparse *s, uint32_t layer)
{
    return sparse_step_find(s, layer) != NULL || free_step(s) == NULL;
}

void sparse_step_add_heat(kvt_sparse *s, sparse_unit *unit, const float *weight, float share)
{
    const uint32_t pages = sparse_unit_pages(unit);
    if (sparse_divide_is_on(s)) {
        /* The standings of a window that would have been there. */
        float *standing = unit->window.standing;
        sparse_divide_measure(s, unit, weight, standing);
        for (uint32_t page = 0; page < pages; page++)
            standing[page] =
                s->options.decay * standing[page] +
                (1.0f - s->options.decay) * weight[page] / (float)(int32_t)unit->paging.page_tokens;
    }
    for (uint32_t page = 0; page < pages; page++)
        unit->heat[page] += share * weight[page];
}

/* Adds a share of the weights of all pages of a layer to their heat. A step is free. */
kvt_status sparse_step_add_weights(kvt_sparse *s, uint32_t layer, const float *queries, float share)
{
    kvt_sparse_step *step = free_step(s);
    for (uint32_t h = 0; h < s->options.layout.kv_heads; h++) {
        sparse_unit *unit = sparse_unit_of(s, layer, h);
        sparse_head_work *head = &step->heads[h];
        kvt_status status = weigh_head(s, layer, h, queries, head);
        if (status == KVT_OK) status = sparse_slopes_measure(s, unit, &head->work);
        if (status != KVT_OK) return status;
        sparse_step_add_heat(s, unit, head->work.page, share);
    }
    return KVT_OK;
}

/* Reads what fills the windows of a layer by heat, one head at a time. What does not come is left
 * out. */
kvt_status sparse_step_warm_up(kvt_sparse *s, uint32_t layer)
{
    kvt_sparse_step *step = free_step(s);
    kvt_status status = KVT_OK;
    begin_step(s, step, layer);
    for (uint32_t h = 0; h < s->options.layout.kv_heads && status == KVT_OK; h++) {
        const sparse_unit *unit = sparse_unit_of(s, layer, h);
        sparse_head_work *head = &step->heads[h];
        const uint32_t pages = sparse_unit_pages(unit);
        if (pages == 0) continue;
        memcpy(head->coming, head->held, pages);
        choose_head(s, unit, unit->heat, head->coming, unit->window.capacity_bytes, head);
        for (uint32_t page = 0; page < pages && status == KVT_OK; page++)
            if (head->variant[page] > head->held[page])
                status = sparse_fetch_add(s, &step->fetch, layer, h, page, head->variant[page]);
        if (status == KVT_OK) status = sparse_fetch_start(s, &step->fetch, false);
        if (status == KVT_OK) {
            (void)!sparse_fetch_wait(s, layer, &step->fetch, UINT64_MAX);
            list_items(s, step, &step->fetch);
            settle_items(s, step, &step->fetch);
            sparse_window_step(s, layer, h, unit->heat, head->held, head->variant, head->items,
                               true);
        }
        forget_items(step, &step->fetch);
        sparse_fetch_end(s, &step->fetch);
    }
    sparse_hbm_settle(s, layer);
    return status;
}

/* ---- done ---- */

/* A step that was not waited for leaves the windows as they are. */
void kvt_sparse_done(kvt_sparse *s, kvt_sparse_step *step)
{
    if (step == NULL || step->state == STEP_FREE || !scratch_is_ours(s->store)) return;
    assert(step->sequence == s);
    const bool ended = step->state == STEP_WAITED;
    if (ended) sparse_hbm_begin(s, step->layer);
    for (uint32_t h = 0; ended && h < s->options.layout.kv_heads; h++) {
        sparse_head_work *head = &step->heads[h];
        sparse_unit *unit = sparse_unit_of(s, step->layer, h);
        if (sparse_divide_measures(s, step->layer))
            sparse_divide_measure(s, unit, head->work.page, unit->window.standing);
        sparse_window_step(s, step->layer, h, head->work.page, head->held, head->variant,
                           head->items, false);
    }
    forget_items(step, &step->hint);
    forget_items(step, &step->fetch);
    forget_items(step, &step->instead);
    sparse_step_end(s, step);
    if (ended) sparse_divide_step(s, step->layer);
}
