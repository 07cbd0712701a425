/* SPDX-License-Identifier: Apache-2.0 */
/*
 * paging.c - the geometry of a unit's pages: how a zone is cut into segments and these into pages.
 * Arithmetic alone; no memory. Re-entrant.
 */
#include "paging.h"

#include <assert.h>

enum {
    PAGE_TOKENS_LEAST = 16, /* that are chosen when the caller leaves the choice */
    PAGE_TOKENS_MOST = 128
};

uint32_t sparse_segment_count(uint32_t tokens, uint32_t segment_tokens)
{
    /* The rest joins the last segment unless it is half a segment or more. */
    const uint32_t whole = tokens / segment_tokens;
    const uint32_t rest = tokens % segment_tokens;
    if (tokens == 0) return 0;
    return whole == 0 ? 1 : whole + (2 * rest >= segment_tokens ? 1u : 0u);
}

uint32_t sparse_segment_first(uint32_t tokens, uint32_t segment_tokens, uint32_t segment)
{
    const uint32_t count = sparse_segment_count(tokens, segment_tokens);
    assert(segment <= count);
    return segment == count ? tokens : segment * segment_tokens;
}

kvt_status sparse_paging_init(sparse_paging *paging, uint32_t head_dim, uint8_t dtype,
                              uint32_t tokens, uint32_t segment_tokens, uint32_t page_tokens)
{
    const uint32_t element = dtype == KVT_DTYPE_OPAQUE ? 0 : kvt_dtype_bytes(dtype);
    *paging = (sparse_paging){.pages = 0};
    if (element == 0) return KVT_E_ARGUMENT;
    if (head_dim == 0 || head_dim % 8 != 0 || head_dim > SPARSE_ROW_DIM_MAX) return KVT_E_ARGUMENT;
    if (segment_tokens == 0) segment_tokens = SPARSE_SEGMENT_TOKENS;
    if (segment_tokens % SPARSE_CODE_TOKENS != 0 || segment_tokens > SPARSE_SEGMENT_MAX)
        return KVT_E_ARGUMENT;
    if (page_tokens == 0) {
        page_tokens = PAGE_TOKENS_MOST;
        while (page_tokens > PAGE_TOKENS_LEAST && page_tokens * head_dim > SPARSE_GRAIN)
            page_tokens /= 2;
    }
    if (page_tokens < 8 || SPARSE_CODE_TOKENS % page_tokens != 0) return KVT_E_ARGUMENT;
    *paging = (sparse_paging){.head_dim = head_dim,
                              .dtype = dtype,
                              .tokens = tokens,
                              .segment_tokens = segment_tokens,
                              .page_tokens = page_tokens,
                              .sides = 2};
    /* All segments but the last are whole numbers of pages. */
    paging->pages = tokens / page_tokens + (tokens % page_tokens != 0 ? 1u : 0u);
    return KVT_OK;
}

uint32_t sparse_page_first(const sparse_paging *paging, uint32_t page)
{
    assert(page <= paging->pages);
    return page == paging->pages ? paging->tokens : page * paging->page_tokens;
}

uint32_t sparse_page_of(const sparse_paging *paging, uint32_t place)
{
    assert(place < paging->tokens);
    return place / paging->page_tokens;
}

uint64_t sparse_page_bytes(const sparse_paging *paging, uint32_t tokens, pages_variant variant)
{
    const uint64_t elements = paging->sides * (uint64_t)tokens * paging->head_dim;
    switch (variant) {
    case PAGES_BITS_2: return elements / 4;
    case PAGES_BITS_4: return elements / 2;
    case PAGES_BITS_8: return elements;
    case PAGES_RAW: return elements * kvt_dtype_bytes(paging->dtype);
    default: return 0;
    }
}
