/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attend_pages.c - kvt_sparse_attend: checks what an engine hands over, then attends head by head.
 * Rows that lie in a GPU's memory are read back first. Any thread.
 */
#include "attend.h"
#include "base/struct_size.h"
#include "paging.h"
#include "sequence.h"
#include "sparse_kernels.h"

#include <kvterrace/sparse.h>

#include <math.h>

_Static_assert(KVT_SPARSE_HEAD_DIM_MAX == SPARSE_HEAD_DIM_MAX &&
                   KVT_SPARSE_ROW_DIM_MAX == SPARSE_ROW_DIM_MAX,
               "the index and the pages have the same limits");
_Static_assert((int)KVT_SPARSE_ABSENT == (int)PAGES_ABSENT && (int)KVT_SPARSE_RAW == (int)PAGES_RAW,
               "plans and pages name variants alike");

#define PAGES_LEAST STRUCT_SIZE_THROUGH(kvt_sparse_pages, read_bytes)

static bool shape_is_sound(const kvt_sparse_pages *p)
{
    if (p->kv_heads == 0 || p->kv_heads > UINT16_MAX || p->heads == NULL) return false;
    if (p->group == 0 || p->group > KVT_SPARSE_GROUP_MAX) return false;
    if (p->head_dim == 0 || p->head_dim % 8 != 0 || p->head_dim > KVT_SPARSE_ROW_DIM_MAX)
        return false;
    if (p->dtype != KVT_DTYPE_FP16 && p->dtype != KVT_DTYPE_BF16 && p->dtype != KVT_DTYPE_FP32)
        return false;
    return p->scale >= 0.0f && p->scale <= SPARSE_ELEMENT_MAX;
}

static bool head_is_sound(const kvt_sparse_head *head)
{
    if (head->page_count > 0 && head->pages == NULL) return false;
    if ((head->estimate == NULL) != (head->estimate_lse == NULL)) return false;
    for (uint32_t i = 0; i < head->page_count; i++) {
        const kvt_sparse_page *page = &head->pages[i];
        if (page->k == NULL || page->v == NULL || page->tokens == 0) return false;
    }
    return true;
}

/* Query g of a KV head. brought: the rows of the pages that lie in HBM, one behind the other. */
static void attend_head(const kvt_sparse_pages *p, const kvt_sparse_head *head, uint32_t g,
                        const uint8_t *brought, float scale, const float *query, float *output,
                        float *lse)
{
    double sums[SPARSE_ROW_DIM_MAX];
    sparse_partial partial;
    float whole;
    sparse_attend_start(sums, &partial, 1, p->head_dim);
    for (uint32_t i = 0; i < head->page_count; i++) {
        const kvt_sparse_page *page = &head->pages[i];
        const uint8_t *keys = page->k, *values = page->v;
        if (brought != NULL && page->tier == KVT_TIER_HBM) {
            const sparse_hbm *hbm = &p->step->sequence->hbm;
            const uint8_t *own = brought + ((uintptr_t)keys - hbm->address) % hbm->slot_bytes;
            values = own + (values - keys);
            keys = own;
            brought += hbm->slot_bytes;
        }
        const sparse_run run = {.keys = keys,
                                .values = values,
                                .stride_bytes =
                                    (uint64_t)p->head_dim * kvt_dtype_bytes((uint8_t)p->dtype),
                                .tokens = page->tokens,
                                .dtype = (uint8_t)p->dtype};
        sparse_attend_run(&run, query, 1, p->head_dim, scale, sums, &partial);
    }
    if (head->estimate != NULL)
        sparse_attend_merge(head->estimate + (size_t)g * p->head_dim, head->estimate_lse[g],
                            p->head_dim, sums, &partial);
    sparse_attend_end(sums, &partial, 1, p->head_dim, output, &whole);
    if (lse != NULL) *lse = whole;
}

kvt_status kvt_sparse_attend(const kvt_sparse_pages *pages, const float *queries, float *output,
                             float *lse)
{
    kvt_sparse_pages own = {.struct_size = sizeof own};
    if (pages == NULL || queries == NULL || output == NULL) return KVT_E_ARGUMENT;
    const kvt_sparse_pages *p = struct_size_in(pages, &own, sizeof own, PAGES_LEAST);
    if (p == NULL || !shape_is_sound(p)) return KVT_E_ARGUMENT;
    const size_t count = (size_t)p->kv_heads * p->group * p->head_dim;
    if (!sparse_queries_are_sound(queries, count)) return KVT_E_ARGUMENT;
    for (uint32_t h = 0; h < p->kv_heads; h++)
        if (!head_is_sound(&p->heads[h])) return KVT_E_ARGUMENT;
    const float scale = p->scale > 0.0f ? p->scale : 1.0f / sqrtf((float)p->head_dim);
    for (uint32_t h = 0; h < p->kv_heads; h++) {
        const kvt_sparse_head *head = &p->heads[h];
        sparse_block *block = NULL;
        if (p->step != NULL) {
            kvt_status status =
                sparse_hbm_read(p->step->sequence, head->pages, head->page_count, &block);
            if (status != KVT_OK) return status;
        }
        const uint8_t *brought = block != NULL ? sparse_block_memory(block) : NULL;
        for (uint32_t g = 0; g < p->group; g++) {
            const size_t query = (size_t)h * p->group + g, at = query * p->head_dim;
            attend_head(p, head, g, brought, scale, queries + at, output + at,
                        lse != NULL ? lse + query : NULL);
        }
        sparse_block_free(block);
    }
    return KVT_OK;
}
