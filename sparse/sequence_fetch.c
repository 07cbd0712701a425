/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sequence_fetch.c - the reads of one layer's step: all pages of all heads as one gather, verified
 * page by page, and once more from another copy where bytes are not what was written.
 *
 * Thread rule: the sequence's thread. A buffer may outlive its fetch, on a device.
 */
#include <assert.h>
#include <stdlib.h>

#include "base/clock.h"
#include "sequence.h"

/* ---- buffers ---- */

static void buffer_drop(void *context)
{
    sparse_buffer *buffer = context;
    if (buffer == NULL || atomic_fetch_sub(&buffer->holds, 1) > 1) return;
    free(buffer->memory);
    free(buffer);
}

/* Memory of at least so many bytes that no device has: the fetch's own from before, or new. */
static sparse_buffer *buffer_for(sparse_fetch *fetch, uint64_t bytes)
{
    sparse_buffer *buffer = fetch->buffer;
    if (buffer != NULL && atomic_load(&buffer->holds) == 1 && buffer->bytes >= bytes) return buffer;
    fetch->buffer = NULL;
    buffer_drop(buffer);
    buffer = calloc(1, sizeof *buffer);
    if (buffer == NULL) return NULL;
    atomic_store(&buffer->holds, 1);
    buffer->bytes = bytes + bytes / 4 / SPARSE_GRAIN * SPARSE_GRAIN;
    buffer->memory = aligned_alloc(SPARSE_GRAIN, buffer->bytes);
    if (buffer->memory == NULL) {
        free(buffer);
        return NULL;
    }
    fetch->buffer = buffer;
    return buffer;
}

/* ---- fetches ---- */

static kvt_status fetch_room(sparse_fetch *fetch)
{
    if (fetch->count < fetch->room) return KVT_OK;
    const uint32_t room = fetch->room != 0 ? 2 * fetch->room : 64;
    sparse_item *items = realloc(fetch->items, room * sizeof *items);
    if (items == NULL) return KVT_E_MEMORY;
    fetch->items = items;
    tiers_gather_range *ranges = realloc(fetch->ranges, room * sizeof *ranges);
    if (ranges == NULL) return KVT_E_MEMORY;
    fetch->ranges = ranges;
    fetch->room = room;
    return KVT_OK;
}

kvt_status sparse_fetch_add(kvt_sparse *s, sparse_fetch *fetch, uint32_t layer, uint32_t head,
                            uint32_t page, uint8_t variant)
{
    uint32_t own;
    const sparse_table *table = sparse_unit_table(sparse_unit_of(s, layer, head), page, &own);
    assert(!fetch->begun);
    kvt_status status = fetch_room(fetch);
    if (status != KVT_OK) return status;
    sparse_item *item = &fetch->items[fetch->count++];
    *item = (sparse_item){.head = head, .page = page, .variant = variant};
    item->part = sparse_table_part(table, own, (pages_variant)variant);
    if (table->slots != NULL) {
        item->memory = table->slots + (uint64_t)own * table->slot_bytes + item->part.offset;
        return KVT_OK;
    }
    item->range = fetch->range_count++;
    fetch->ranges[item->range] = (tiers_gather_range){
        .bytes = item->part.bytes,
        .copy_count = sparse_table_copies(table, own, &item->part, item->copies)};
    fetch->bytes += item->part.bytes;
    return KVT_OK;
}

/* Nanoseconds until a page is taken to be late: the option's, behind four times what the whole
 * batch should take, so that a large batch is not read twice. */
static uint64_t fetch_hedge_ns(const kvt_sparse *s, tiers_pool *pool, uint64_t bytes)
{
    tiers_pool_facts facts;
    if (s->options.hedge_ns == 0) return 0;
    tiers_pool_facts_get(pool, &facts);
    if (!(facts.read_bytes_per_s > 0)) return s->options.hedge_ns;
    return s->options.hedge_ns + (uint64_t)(4e9 * (double)bytes / facts.read_bytes_per_s);
}

/* Ranges name the copies in the items, which have stopped moving. */
kvt_status sparse_fetch_start(kvt_sparse *s, sparse_fetch *fetch, bool waited)
{
    if (fetch->range_count == 0) {
        fetch->begun = fetch->count > 0;
        return KVT_OK;
    }
    uint64_t spare = 0; /* for second reads of pages that have a second copy */
    for (uint32_t i = 0; i < fetch->count; i++) {
        const sparse_item *item = &fetch->items[i];
        if (item->memory != NULL) continue;
        tiers_gather_range *range = &fetch->ranges[item->range];
        range->copies = item->copies;
        if (range->copy_count > 1) spare += range->bytes;
    }
    sparse_buffer *buffer = buffer_for(fetch, fetch->bytes + spare);
    if (buffer == NULL) return KVT_E_MEMORY;
    tiers_pool *pool = scratch_pool(s->scratch, KVT_TIER_SSD);
    const tiers_gather_request request = {.ranges = fetch->ranges,
                                          .count = fetch->range_count,
                                          .buffer = buffer->memory,
                                          .buffer_bytes = buffer->bytes,
                                          .waited = waited,
                                          .hedge_ns = fetch_hedge_ns(s, pool, fetch->bytes)};
    kvt_status status = tiers_gather_start(pool, &request, UINT64_MAX, &fetch->gather);
    if (status != KVT_OK) return status;
    atomic_fetch_add(&buffer->holds, 1);
    fetch->begun = true;
    s->stats.reads += fetch->range_count;
    s->stats.read_bytes += fetch->bytes;
    return KVT_OK;
}

/* Looks at what came of one item. False: its bytes are there and are wrong. */
static bool fetch_verify(kvt_sparse *s, uint32_t layer, const sparse_fetch *fetch, uint32_t i)
{
    sparse_item *item = &fetch->items[i];
    const uint8_t *bytes = item->memory;
    if (bytes == NULL) {
        const tiers_gather_range *range = &fetch->ranges[item->range];
        if (range->status != KVT_OK) return true;
        bytes = range->data;
    }
    uint32_t own;
    const sparse_table *table =
        sparse_unit_table(sparse_unit_of(s, layer, item->head), item->page, &own);
    if (!sparse_table_verify(table, own, (pages_variant)item->variant, bytes)) {
        s->stats.checksum_failures++;
        return false;
    }
    item->bytes = bytes;
    return true;
}

/* Puts the pages whose bytes were wrong into a second fetch, from the copy that was not read. */
static kvt_status fetch_again(kvt_sparse *s, sparse_fetch *fetch, const sparse_item *item,
                              uint32_t copy)
{
    if (fetch->again == NULL) fetch->again = calloc(1, sizeof *fetch->again);
    if (fetch->again == NULL) return KVT_E_MEMORY;
    sparse_fetch *again = fetch->again;
    kvt_status status = fetch_room(again);
    if (status != KVT_OK) return status;
    (void)s;
    sparse_item *second = &again->items[again->count++];
    *second = *item;
    second->copies[0] = item->copies[1 - copy];
    second->range = again->range_count++;
    again->ranges[second->range] = (tiers_gather_range){.bytes = item->part.bytes, .copy_count = 1};
    again->bytes += item->part.bytes;
    return KVT_OK;
}

/* Gives the items of a second fetch to those of the first that lack their bytes. */
static void fetch_merge(const sparse_fetch *fetch)
{
    const sparse_fetch *again = fetch->again;
    for (uint32_t i = 0, j = 0; i < again->count; i++) {
        const sparse_item *found = &again->items[i];
        while (fetch->items[j].head != found->head || fetch->items[j].page != found->page)
            j++; /* both are in the order of the first */
        fetch->items[j].bytes = found->bytes;
    }
}

/* Counts how long the devices had a fetch's reads. */
static void fetch_count_time(kvt_sparse *s, const sparse_fetch *fetch)
{
    tiers_gather_share shares[TIERS_MEMBERS_MAX];
    const uint32_t count = tiers_gather_shares(fetch->gather, shares);
    uint64_t first_ns = UINT64_MAX, last_ns = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (shares[i].started_ns < first_ns) first_ns = shares[i].started_ns;
        if (shares[i].finished_ns > last_ns) last_ns = shares[i].finished_ns;
    }
    if (last_ns > first_ns) s->stats.io_ns += last_ns - first_ns;
}

kvt_status sparse_fetch_wait(kvt_sparse *s, uint32_t layer, sparse_fetch *fetch,
                             uint64_t deadline_ns)
{
    if (!fetch->begun) return KVT_OK;
    bool late = false;
    if (fetch->gather != NULL) {
        (void)!tiers_gather_wait(fetch->gather, deadline_ns);
        fetch_count_time(s, fetch);
    }
    for (uint32_t i = 0; i < fetch->count; i++) {
        const sparse_item *item = &fetch->items[i];
        const tiers_gather_range *range = item->memory == NULL ? &fetch->ranges[item->range] : NULL;
        late = late || (range != NULL && range->status == KVT_E_TIMEOUT);
        if (item->bytes != NULL || fetch_verify(s, layer, fetch, i)) continue;
        if (range != NULL && range->copy_count > 1)
            (void)!fetch_again(s, fetch, item, range->copy); /* else it is lost */
    }
    if (fetch->again == NULL || fetch->again->count == 0 || fetch->again->begun)
        return late ? KVT_E_TIMEOUT : KVT_OK;
    if (sparse_fetch_start(s, fetch->again, true) == KVT_OK) {
        if (sparse_fetch_wait(s, layer, fetch->again, deadline_ns) != KVT_OK) late = true;
        fetch_merge(fetch);
    }
    return late ? KVT_E_TIMEOUT : KVT_OK;
}

void sparse_fetch_end(kvt_sparse *s, sparse_fetch *fetch)
{
    if (fetch->again != NULL) sparse_fetch_end(s, fetch->again);
    if (fetch->gather != NULL) tiers_gather_release(fetch->gather, buffer_drop, fetch->buffer);
    fetch->gather = NULL;
    fetch->begun = false;
    fetch->count = fetch->range_count = 0;
    fetch->bytes = 0;
}

void sparse_fetch_free(sparse_fetch *fetch)
{
    assert(fetch->gather == NULL && "it has ended");
    if (fetch->again != NULL) {
        sparse_fetch_free(fetch->again);
        free(fetch->again);
    }
    free(fetch->items);
    free(fetch->ranges);
    buffer_drop(fetch->buffer);
    *fetch = (sparse_fetch){.count = 0};
}
