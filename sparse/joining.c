/* SPDX-License-Identifier: Apache-2.0 */
/*
 * joining.c - which page in memory a token joins. Pure memory.
 *
 * Thread rule: as joining.h.
 */
#include "joining.h"

#include "index_lane.h"
#include "paging.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    SPARE_PAGES = 2 /* that are kept for tokens to come */
};
#define NEAR_SHARE (1.0f / 32.0f) /* of a new distance in the mean of them */

void sparse_joining_open(uint32_t head_dim, uint8_t dtype, uint32_t page_tokens,
                         sparse_joining *joining_out)
{
    *joining_out = (sparse_joining){.head_dim = head_dim,
                                    .page_tokens = page_tokens,
                                    .row_bytes = head_dim * kvt_dtype_bytes(dtype),
                                    .value_bytes = head_dim * kvt_dtype_bytes(dtype),
                                    .dtype = dtype};
}

static void free_list(sparse_joined *page)
{
    while (page != NULL) {
        sparse_joined *next = page->next;
        free(page);
        page = next;
    }
}

void sparse_joining_close(sparse_joining *j)
{
    for (uint32_t i = 0; i < j->open_count; i++)
        free(j->open[i]);
    free_list(j->full);
    free_list(j->spare);
    free(j->means);
    *j = (sparse_joining){.open_count = 0};
}

/* One piece: page, sum, positions, rows. */
static sparse_joined *make_page(const sparse_joining *j)
{
    const size_t sum = j->head_dim * sizeof(float);
    const size_t positions = j->page_tokens * sizeof(uint32_t);
    const size_t side = (size_t)j->page_tokens * j->row_bytes;
    const size_t values = (size_t)j->page_tokens * j->value_bytes;
    uint8_t *memory = malloc(sizeof(sparse_joined) + sum + positions + side + values);
    if (memory == NULL) return NULL;
    sparse_joined *page = (sparse_joined *)(void *)memory;
    memory += sizeof *page;
    *page = (sparse_joined){.sum = (float *)(void *)memory,
                            .positions = (uint32_t *)(void *)(memory + sum),
                            .keys = memory + sum + positions,
                            .values = memory + sum + positions + side};
    return page;
}

kvt_status sparse_joining_reserve(sparse_joining *j, uint32_t tokens)
{
    if (tokens == 0) return KVT_OK;
    if (j->means == NULL) j->means = calloc(SPARSE_OPEN_PAGES * j->head_dim, sizeof *j->means);
    if (j->means == NULL) return KVT_E_MEMORY;
    /* A token founds one page at most, and no more are open or full than these. */
    const uint64_t most =
        SPARSE_OPEN_PAGES - j->open_count + ((uint64_t)j->open_tokens + tokens) / j->page_tokens;
    while (j->spare_count < (most < tokens ? most : tokens)) {
        sparse_joined *page = make_page(j);
        if (page == NULL) return KVT_E_MEMORY;
        page->next = j->spare;
        j->spare = page;
        j->spare_count++;
    }
    return KVT_OK;
}

/* ---- lists ---- */

sparse_joined *sparse_joining_next(sparse_joining *j)
{
    sparse_joined *page = j->full;
    if (page == NULL) return NULL;
    j->full = page->next;
    if (j->full == NULL) j->full_last = NULL;
    j->full_count--;
    page->next = NULL;
    return page;
}

void sparse_joining_return(sparse_joining *j, sparse_joined *page)
{
    assert(page->tokens == j->page_tokens);
    page->next = NULL;
    *(j->full_last != NULL ? &j->full_last->next : &j->full) = page;
    j->full_last = page;
    j->full_count++;
}

void sparse_joining_retire(sparse_joining *j, sparse_joined *page)
{
    if (j->spare_count >= SPARE_PAGES) {
        free(page);
        return;
    }
    page->next = j->spare;
    j->spare = page;
    j->spare_count++;
}

/* ---- open pages ---- */

static float *mean_of(const sparse_joining *j, uint32_t i)
{
    return j->means + (size_t)i * j->head_dim;
}

static float dot(const sparse_joining *j, const float *a, const float *b)
{
    float result;
    sparse_kernels_in_use()->dots(a, 0, 1, KVT_DTYPE_FP32, b, j->head_dim, 1.0f, &result);
    return result;
}

static void update_mean(sparse_joining *j, uint32_t i)
{
    const sparse_joined *page = j->open[i];
    float *mean = mean_of(j, i);
    const float share = 1.0f / (float)page->tokens;
    for (uint32_t d = 0; d < j->head_dim; d++)
        mean[d] = page->sum[d] * share;
    j->norms[i] = dot(j, mean, mean);
}

/* Takes a page out of the open ones; the last one has its place then. */
static sparse_joined *close_page(sparse_joining *j, uint32_t i)
{
    sparse_joined *page = j->open[i];
    const uint32_t last = --j->open_count;
    j->open[i] = j->open[last];
    j->norms[i] = j->norms[last];
    if (i != last) memcpy(mean_of(j, i), mean_of(j, last), j->head_dim * sizeof(float));
    return page;
}

static uint32_t found_page(sparse_joining *j)
{
    sparse_joined *page = j->spare;
    assert(page != NULL && j->open_count < SPARSE_OPEN_PAGES);
    j->spare = page->next;
    j->spare_count--;
    page->next = NULL;
    page->tokens = page->failures = 0;
    memset(page->sum, 0, j->head_dim * sizeof *page->sum);
    j->open[j->open_count] = page;
    return j->open_count++;
}

/* A page that is full is open no longer. */
static void settle_page(sparse_joining *j, uint32_t i)
{
    if (j->open[i]->tokens < j->page_tokens) {
        if (!j->in_order) update_mean(j, i);
        return;
    }
    j->open_tokens -= j->page_tokens;
    sparse_joining_return(j, close_page(j, i));
}

/* Two open pages become one. */
static void merge(sparse_joining *j, uint32_t a, uint32_t b)
{
    sparse_joined *to = j->open[a];
    sparse_joined *from = close_page(j, b);
    const size_t at = (size_t)to->tokens * j->row_bytes;
    assert(a < b && to->tokens + from->tokens <= j->page_tokens);
    memcpy(to->keys + at, from->keys, (size_t)from->tokens * j->row_bytes);
    memcpy(to->values + at, from->values, (size_t)from->tokens * j->row_bytes);
    memcpy(to->positions + to->tokens, from->positions, from->tokens * sizeof *to->positions);
    for (uint32_t d = 0; d < j->head_dim; d++)
        to->sum[d] += from->sum[d];
    to->tokens += from->tokens;
    from->next = j->spare;
    j->spare = from;
    j->spare_count++;
    settle_page(j, a);
}

/* Merges the two nearest pages that fit into one and are nearer than `limit`. False: there are
 * none. */
static bool merge_nearest(sparse_joining *j, float limit)
{
    uint32_t best_a = 0, best_b = 0;
    for (uint32_t a = 0; a < j->open_count; a++) {
        for (uint32_t b = a + 1; b < j->open_count; b++) {
            if (j->open[a]->tokens + j->open[b]->tokens > j->page_tokens) continue;
            const float far =
                j->norms[a] + j->norms[b] - 2.0f * dot(j, mean_of(j, a), mean_of(j, b));
            if (!(far < limit)) continue;
            limit = far;
            best_a = a;
            best_b = b;
        }
    }
    if (best_b == 0) return false;
    merge(j, best_a, best_b);
    return true;
}

/* The open page that a key joins. */
static uint32_t choose_page(sparse_joining *j, const float *key)
{
    float products[SPARSE_OPEN_PAGES], least = INFINITY;
    uint32_t best = 0;
    if (j->open_count == 0) return found_page(j);
    sparse_kernels_in_use()->dots(j->means, j->head_dim * sizeof(float), j->open_count,
                                  KVT_DTYPE_FP32, key, j->head_dim, 1.0f, products);
    const float norm = dot(j, key, key);
    for (uint32_t i = 0; i < j->open_count; i++) {
        const float far = norm + j->norms[i] - 2.0f * products[i];
        if (!(far < least)) continue; /* NaN of huge keys as well */
        least = far;
        best = i;
    }
    if (!isfinite(least)) return best;
    const bool founds = least > SPARSE_JOIN_FAR * j->near;
    j->near = j->near > 0.0f ? j->near + (least - j->near) * NEAR_SHARE : least;
    if (!founds || (j->open_count == SPARSE_OPEN_PAGES && !merge_nearest(j, least))) return best;
    return found_page(j);
}

void sparse_joining_take(sparse_joining *j, const uint8_t *key, const uint8_t *value,
                         uint32_t position)
{
    float row[SPARSE_HEAD_DIM_MAX];
    if (!j->in_order) sparse_kernels_in_use()->widen(key, j->head_dim, j->dtype, row);
    const uint32_t i = !j->in_order ? choose_page(j, row) : j->open_count == 0 ? found_page(j) : 0;
    sparse_joined *page = j->open[i];
    assert(page->tokens < j->page_tokens);
    memcpy(page->keys + (size_t)page->tokens * j->row_bytes, key, j->row_bytes);
    memcpy(page->values + (size_t)page->tokens * j->value_bytes, value, j->value_bytes);
    page->positions[page->tokens++] = position;
    for (uint32_t d = 0; d < j->head_dim && !j->in_order; d++)
        page->sum[d] += row[d];
    j->open_tokens++;
    settle_page(j, i);
}

/* ---- a full page's clusters ---- */

/* Of the keys of one cluster around their mean. */
static float scatter_of(const cluster_work *work, uint32_t tokens, uint16_t cluster,
                        const float *mean, const float *key_scatter, uint32_t dim)
{
    float squares[SPARSE_HEAD_DIM_MAX];
    memset(squares, 0, dim * sizeof *squares);
    for (uint32_t t = 0; t < tokens; t++)
        if (work->owner[t] == cluster)
            index_add_squares(squares, work->rows + (size_t)t * dim, mean, 1.0f, dim);
    for (uint32_t d = 0; d < dim; d++)
        squares[d] /= (float)(int32_t)work->counts[cluster];
    return index_scatter(squares, key_scatter, dim);
}

uint32_t sparse_joining_split(const sparse_joining *j, const sparse_joined *page, uint32_t clusters,
                              uint32_t iterations, uint64_t seed, const float *key_scatter,
                              cluster_work *work, float *key_means, float *value_means,
                              uint32_t *tokens_out, float *scatter_out)
{
    const sparse_kernels *kernels = sparse_kernels_in_use();
    const uint32_t dim = j->head_dim;
    uint32_t rank[SPARSE_CODE_TOKENS];
    float row[SPARSE_HEAD_DIM_MAX];
    assert(clusters <= SPARSE_CODE_TOKENS && page->tokens == j->page_tokens);
    for (uint32_t t = 0; t < page->tokens; t++)
        kernels->widen(page->keys + (size_t)t * j->row_bytes, dim, j->dtype,
                       work->rows + (size_t)t * dim);
    const uint32_t found = cluster_segment(work, page->tokens, clusters, iterations, seed);
    memset(key_means, 0, (size_t)found * dim * sizeof *key_means);
    memset(value_means, 0, (size_t)found * dim * sizeof *value_means);
    for (uint32_t i = 0; i < found; i++) {
        rank[work->order[i]] = i;
        tokens_out[i] = work->counts[work->order[i]];
    }
    for (uint32_t t = 0; t < page->tokens; t++) {
        const uint32_t i = rank[work->owner[t]];
        const float share = 1.0f / (float)tokens_out[i];
        kernels->combine(work->rows + (size_t)t * dim, 0, 1, KVT_DTYPE_FP32, &share, dim,
                         key_means + (size_t)i * dim);
        kernels->widen(page->values + (size_t)t * j->row_bytes, dim, j->dtype, row);
        kernels->combine(row, 0, 1, KVT_DTYPE_FP32, &share, dim, value_means + (size_t)i * dim);
    }
    for (uint32_t i = 0; i < found; i++)
        scatter_out[i] = scatter_of(work, page->tokens, work->order[i], key_means + (size_t)i * dim,
                                    key_scatter, dim);
    return found;
}
