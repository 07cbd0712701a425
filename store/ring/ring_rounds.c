/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring_rounds.c - the reads of a block of a ring: staging, and gathers of ranges of many records,
 * one for each tier. The file decodes nothing and knows no context.
 *
 * When a block's time passes before its reads complete, the pool keeps them and their staging until
 * the devices answer.
 *
 * Thread rule: a worker belongs to one thread; staging is left on any.
 */
#include "store/ring/ring_internal.h"

#include "base/clock.h"
#include "store/core/store.h"

#include <stdlib.h>

#define RING_SLICE_NS UINT64_C(20000000) /* between two looks whether the ring is stopping */

/* ---- staging ---- */

void ring_lot_leave(void *context)
{
    ring_lot *lot = context;
    if (lot == NULL || atomic_fetch_sub(&lot->users, 1) != 1) return;
    staging_release(lot->staging, &lot->buffer);
    free(lot);
}

kvt_status ring_lot_take(ring_worker *worker, uint64_t bytes, bool at_once, ring_lot **lot_out)
{
    store_staging *staging = worker->store->staging;
    ring_lot *lot = calloc(1, sizeof *lot);
    if (lot == NULL) return KVT_E_MEMORY;
    kvt_status status = at_once ? staging_acquire_now(staging, bytes, &lot->buffer) : KVT_E_TIMEOUT;
    while (!at_once && status == KVT_E_TIMEOUT) {
        uint64_t until_ns = base_clock_ns();
        if (until_ns >= worker->deadline_ns || atomic_load(&worker->ring->stopping)) break;
        until_ns += RING_SLICE_NS;
        if (until_ns > worker->deadline_ns) until_ns = worker->deadline_ns;
        status = staging_acquire(staging, bytes, until_ns, &lot->buffer);
    }
    if (status != KVT_OK) {
        free(lot);
        return status;
    }
    lot->staging = staging;
    atomic_init(&lot->users, 1);
    *lot_out = lot;
    return KVT_OK;
}

kvt_status ring_late(const ring_worker *worker)
{
    return atomic_load(&worker->ring->stopping) ? KVT_E_CANCELLED : KVT_E_TIMEOUT;
}

/* ---- the pass ---- */

void ring_join_pass(ring_worker *worker, uint64_t pass)
{
    kvt_store *store = worker->store;
    uint32_t first = UINT32_MAX, end = 0;
    for (uint32_t p = 0; p < worker->piece_count; p++) {
        if (worker->holds[worker->pieces[p].hold].near) continue;
        const uint32_t layer = ring_first_want(worker, &worker->pieces[p])->layer;
        if (layer < first) first = layer;
        if (layer >= end) end = layer + 1;
    }
    for (uint32_t p = 0, next = 0; p < worker->piece_count; p = next) {
        const ring_hold *hold = &worker->holds[worker->pieces[p].hold];
        while (next < worker->piece_count && worker->pieces[next].hold == worker->pieces[p].hold)
            next++;
        if (hold->near) continue;
        /* Layers and sides of a record count as equal in bytes, as those of a load do. */
        const load_entry *entry = &hold->opened->entry;
        const load_section *last = &entry->sections[entry->section_count - 1];
        const uint64_t matrices =
            (uint64_t)(last->first_layer + last->layout.layers) * kvt_layout_sides(&last->layout);
        tiers_pool *pool = store->pools[hold->place->tier];
        uint64_t *need = &worker->needs[hold->place->tier];
        if (*need == 0) {
            *need = pass_join(&store->passes, pass, pool, first, end, UINT32_MAX);
            if (*need == 0) return;
            tiers_need_progress(pool, *need, first, end);
        }
        tiers_need_add(pool, *need, hold->place->location,
                       hold->place->record_bytes * (next - p) / matrices);
    }
}

void ring_leave_pass(ring_worker *worker, uint64_t pass)
{
    for (uint32_t tier = 0; tier < KVT_TIER_COUNT; tier++) {
        if (worker->needs[tier] == 0) continue;
        pass_leave(&worker->store->passes, pass, worker->needs[tier], worker->store->pools[tier]);
        worker->needs[tier] = 0;
    }
}

/* ---- rounds ---- */

uint64_t ring_half(const ring_worker *worker)
{
    return worker->lot->buffer.bytes / 2 / STAGING_ALIGN * STAGING_ALIGN;
}

bool ring_add_read(ring_round *round, uint32_t hold, uint64_t offset, uint64_t bytes)
{
    if (round->read_count == round->read_room) {
        const uint32_t room = round->read_room * 2 + 256;
        ring_read *reads = realloc(round->reads, room * sizeof *reads);
        if (reads == NULL) return false;
        round->reads = reads;
        round->read_room = room;
    }
    round->reads[round->read_count++] =
        (ring_read){.hold = hold, .status = KVT_QUEUED, .offset = offset, .bytes = bytes};
    return true;
}

/* Gives a round its memory: a half of the block's staging, or staging of its own. */
static kvt_status ring_take_memory(ring_worker *worker, ring_round *round, uint64_t bytes)
{
    if (worker->lot != NULL && !worker->lot->buffer.abandoned && bytes <= ring_half(worker)) {
        round->lot = worker->lot;
        atomic_fetch_add(&round->lot->users, 1);
        round->memory = round->lot->buffer.memory;
        if (round == &worker->rounds[1]) round->memory += ring_half(worker);
        return KVT_OK;
    }
    const kvt_status status = ring_lot_take(worker, bytes, true, &round->lot);
    if (status == KVT_OK) round->memory = round->lot->buffer.memory;
    return status;
}

/* Begins the reads of a round on one tier, whose ranges are next in its arrays. */
static kvt_status ring_start_tier(ring_worker *worker, ring_round *round, uint32_t tier,
                                  uint32_t *next, uint8_t **memory)
{
    uint64_t bytes = 0;
    const uint32_t first = *next;
    for (uint32_t i = 0; i < round->read_count; i++) {
        const ring_read *read = &round->reads[i];
        const ring_hold *hold = &worker->holds[read->hold];
        if (hold->place->tier != tier || read->status != KVT_QUEUED) continue;
        round->copies[*next] = (tiers_copy){hold->opened->map, read->offset};
        round->ranges[*next] = (tiers_gather_range){
            .copies = &round->copies[*next], .copy_count = 1, .bytes = (uint32_t)read->bytes};
        round->of[(*next)++] = i;
        bytes += read->bytes;
    }
    round->firsts[tier] = first;
    round->counts[tier] = *next - first;
    if (*next == first) return KVT_OK;
    const tiers_gather_request request = {.ranges = &round->ranges[first],
                                          .count = *next - first,
                                          .buffer = *memory,
                                          .buffer_bytes = bytes,
                                          .waited = true};
    *memory += bytes;
    const kvt_status status = tiers_gather_start(worker->store->pools[tier], &request,
                                                 worker->deadline_ns, &round->gathers[tier]);
    if (status == KVT_OK) atomic_fetch_add(&round->lot->users, 1);
    return status;
}

static void ring_fail_reads(ring_round *round, kvt_status status)
{
    for (uint32_t i = 0; i < round->read_count; i++)
        if (round->reads[i].status == KVT_QUEUED) round->reads[i].status = status;
}

void ring_start_round(ring_worker *worker, ring_round *round)
{
    uint64_t bytes = 0;
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; i < round->read_count; i++) {
        ring_read *read = &round->reads[i];
        const uint64_t record_bytes = worker->holds[read->hold].place->location->bytes;
        /* A head says what is read: it may ask for more than there is. */
        if (read->offset > record_bytes || read->bytes > record_bytes - read->offset ||
            read->bytes == 0 || read->bytes > UINT32_MAX)
            read->status = KVT_E_CORRUPT;
        else
            bytes += read->bytes;
    }
    if (bytes == 0) return;
    if (base_clock_ns() >= worker->deadline_ns || atomic_load(&worker->ring->stopping))
        status = ring_late(worker);
    if (status == KVT_OK) status = ring_take_memory(worker, round, bytes);
    round->ranges = calloc(round->read_count, sizeof *round->ranges);
    round->copies = calloc(round->read_count, sizeof *round->copies);
    round->of = calloc(round->read_count, sizeof *round->of);
    if (round->ranges == NULL || round->copies == NULL || round->of == NULL) status = KVT_E_MEMORY;
    uint8_t *memory = round->memory;
    uint32_t next = 0;
    for (uint32_t tier = 0; tier < KVT_TIER_COUNT && status == KVT_OK; tier++)
        if (worker->store->pools[tier] != NULL)
            status = ring_start_tier(worker, round, tier, &next, &memory);
    for (uint32_t tier = 0; tier < KVT_TIER_COUNT && status != KVT_OK; tier++)
        if (round->gathers[tier] == NULL) round->counts[tier] = 0;
    /* What is under way goes on; the others have failed. */
    if (status == KVT_OK) return;
    bool begun = false;
    for (uint32_t tier = 0; tier < KVT_TIER_COUNT; tier++)
        begun = begun || round->gathers[tier] != NULL;
    if (!begun) {
        ring_fail_reads(round, status);
        return;
    }
    for (uint32_t i = 0; i < round->read_count; i++) {
        ring_read *read = &round->reads[i];
        const uint32_t tier = worker->holds[read->hold].place->tier;
        if (read->status == KVT_QUEUED && round->gathers[tier] == NULL) read->status = status;
    }
}

void ring_wait_round(ring_worker *worker, ring_round *round)
{
    for (uint32_t tier = 0; tier < KVT_TIER_COUNT; tier++) {
        tiers_gather *gather = round->gathers[tier];
        kvt_status status = gather != NULL ? KVT_E_TIMEOUT : KVT_OK;
        bool late = false;
        while (status == KVT_E_TIMEOUT && !late) {
            const uint64_t now_ns = base_clock_ns();
            late = now_ns >= worker->deadline_ns || atomic_load(&worker->ring->stopping);
            uint64_t until_ns = now_ns + RING_SLICE_NS;
            if (until_ns > worker->deadline_ns) until_ns = worker->deadline_ns;
            status = tiers_gather_wait(gather, late ? 0 : until_ns);
        }
        for (uint32_t i = 0; gather != NULL && i < round->counts[tier]; i++) {
            const tiers_gather_range *range = &round->ranges[round->firsts[tier] + i];
            ring_read *read = &round->reads[round->of[round->firsts[tier] + i]];
            read->status = range->status == KVT_E_TIMEOUT ? ring_late(worker) : range->status;
            read->data = range->data;
            if (read->status == KVT_OK) worker->read_bytes += read->bytes;
        }
        if (gather == NULL) continue;
        if (status == KVT_OK) {
            tiers_gather_share shares[TIERS_MEMBERS_MAX];
            const uint32_t count = tiers_gather_shares(gather, shares);
            for (uint32_t i = 0; i < count; i++)
                worker->requests += shares[i].requests;
        } else if (!round->lot->buffer.abandoned) {
            /* A device may have it still: it counts no longer against the bound. */
            staging_abandon(round->lot->staging, &round->lot->buffer);
        }
    }
}

void ring_end_round(ring_round *round)
{
    for (uint32_t tier = 0; tier < KVT_TIER_COUNT; tier++) {
        if (round->gathers[tier] != NULL)
            tiers_gather_release(round->gathers[tier], ring_lot_leave, round->lot);
        round->gathers[tier] = NULL;
        round->counts[tier] = 0;
    }
    ring_lot_leave(round->lot);
    round->lot = NULL;
    free(round->ranges);
    free(round->copies);
    free(round->of);
    round->ranges = NULL;
    round->copies = NULL;
    round->of = NULL;
    round->read_count = 0;
}
