/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gather_batch.c - which copy of each range is read, and by which requests.
 *
 *     choose    ranges in ascending number of copies; each to the copy that comes first
 *     sort      by member and place on it, so that neighbours follow each other
 *     lay out   slots of the buffer in this order, and runs: a run goes on while both the device
 *               and the buffer do
 *     start     one transfer a member; all are queued before one is woken
 *
 * Thread rule: one thread at a time has a gather; workers read the runs of started batches.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "gather_internal.h"

/* ---- which copy ---- */

/* Seconds until each member is done with what it has. */
typedef struct gather_loads {
    double seconds[TIERS_MEMBERS_MAX];
    double bytes_per_s[TIERS_MEMBERS_MAX]; /* 0 = the member does not serve */
} gather_loads;

/* When the last member of a copy would be done with it; below 0: one does not serve. add: the copy
 * is chosen, so its members have that much more to do. */
static double gather_copy_seconds(const tiers_gather *gather, gather_loads *loads, uint32_t range,
                                  uint32_t copy, bool add)
{
    const tiers_gather_range *r = &gather->request.ranges[range];
    double seconds = 0;
    for (uint64_t done = 0; done < r->bytes;) {
        tiers_spot spot = tiers_unit_map_find(r->copies[copy].map, r->copies[copy].offset + done,
                                              r->bytes - done);
        double bytes_per_s = loads->bytes_per_s[spot.member];
        if (!(bytes_per_s > 0)) return -1;
        double then = loads->seconds[spot.member] + (double)spot.bytes / bytes_per_s;
        if (then > seconds) seconds = then;
        if (add) loads->seconds[spot.member] = then;
        done += spot.bytes;
    }
    return seconds;
}

bool gather_copy_serves(const tiers_gather *gather, uint32_t range, uint32_t copy)
{
    const tiers_gather_range *r = &gather->request.ranges[range];
    for (uint64_t done = 0; done < r->bytes;) {
        tiers_spot spot = tiers_unit_map_find(r->copies[copy].map, r->copies[copy].offset + done,
                                              r->bytes - done);
        if (!pool_member_serves(&gather->pool->members[spot.member])) return false;
        done += spot.bytes;
    }
    return true;
}

/* Gives a range to the copy that comes first. False: none serves. */
static bool gather_choose_copy(tiers_gather *gather, gather_loads *loads, uint32_t range,
                               gather_pick *pick)
{
    const tiers_gather_range *r = &gather->request.ranges[range];
    uint32_t best = r->copy_count;
    double best_seconds = 0;
    for (uint32_t copy = 0; copy < r->copy_count; copy++) {
        double seconds = gather_copy_seconds(gather, loads, range, copy, false);
        if (seconds < 0 || (best != r->copy_count && seconds >= best_seconds)) continue;
        best = copy;
        best_seconds = seconds;
    }
    if (best == r->copy_count) return false;
    (void)gather_copy_seconds(gather, loads, range, best, true);
    *pick = (gather_pick){.range = range, .copy = best};
    return true;
}

uint32_t gather_choose(tiers_gather *gather)
{
    gather_loads loads;
    uint32_t picked = 0, left = gather->request.count;
    const tiers_pool *pool = gather->pool;
    tiers_rank rank = gather->request.waited ? TIERS_RANK_WAITED : TIERS_RANK_READ;
    memset(&loads, 0, sizeof loads);
    for (uint32_t i = 0; i < pool->member_count; i++) {
        const pool_member *member = &pool->members[i];
        if (!pool_member_serves(member)) continue;
        uint64_t ahead = tiers_worker_ahead(member->worker, rank, KVT_IO_READ) +
                         tiers_worker_ahead(member->worker, rank, KVT_IO_WRITE);
        loads.bytes_per_s[i] = pool_member_weight(member);
        loads.seconds[i] = (double)ahead / loads.bytes_per_s[i];
    }
    for (uint32_t copies = 1; copies <= TIERS_GATHER_COPIES_MAX && left > 0; copies++) {
        for (uint32_t i = 0; i < gather->request.count; i++) {
            tiers_gather_range *range = &gather->request.ranges[i];
            if (range->copy_count != copies) continue;
            left--;
            if (gather_choose_copy(gather, &loads, i, &gather->picks[picked])) {
                picked++;
                continue;
            }
            range->status = KVT_E_GONE;
            gather->states[i].done = true;
        }
    }
    assert(left == 0 && "every range has 1 to TIERS_GATHER_COPIES_MAX copies");
    return picked;
}

/* ---- which requests ---- */

static int gather_compare_picks(const void *a, const void *b)
{
    const tiers_spot *x = &((const gather_pick *)a)->first, *y = &((const gather_pick *)b)->first;
    if (x->member != y->member) return x->member < y->member ? -1 : 1;
    if (x->device_offset != y->device_offset) return x->device_offset < y->device_offset ? -1 : 1;
    return 0;
}

/* The pieces of the picks, by member. */
typedef struct gather_counts {
    uint32_t pieces;
    uint32_t of_member[TIERS_MEMBERS_MAX];
    uint32_t members;
} gather_counts;

/* One piece of memory for all of a batch. Sizes are sums of 32-bit counts, so they do not wrap. */
static gather_batch *gather_make_batch(const gather_counts *counts, uint32_t attempts)
{
    size_t parts = sizeof(gather_batch) + counts->members * sizeof(gather_part);
    size_t runs = counts->pieces * sizeof(tiers_run);
    size_t tries = attempts * sizeof(gather_attempt);
    size_t pieces = counts->pieces * sizeof(uint32_t);
    _Static_assert(sizeof(gather_part) % 8 == 0 && sizeof(tiers_run) % 8 == 0 &&
                       sizeof(gather_attempt) % 8 == 0,
                   "what follows is aligned");
    unsigned char *memory = calloc(1, parts + runs + tries + pieces + counts->pieces);
    if (memory == NULL) return NULL;
    gather_batch *batch = (gather_batch *)(void *)memory;
    batch->part_count = counts->members;
    batch->attempt_count = attempts;
    batch->runs = (tiers_run *)(void *)(memory + parts);
    batch->attempts = (gather_attempt *)(void *)(memory + parts + runs);
    batch->pieces = (uint32_t *)(void *)(memory + parts + runs + tries);
    batch->shared = (bool *)(memory + parts + runs + tries + pieces);
    uint32_t next = 0, part = 0;
    for (uint32_t i = 0; i < TIERS_MEMBERS_MAX; i++) {
        if (counts->of_member[i] == 0) continue;
        batch->parts[part].member = i;
        batch->parts[part++].runs.runs = &batch->runs[next];
        next += counts->of_member[i];
    }
    return batch;
}

/* Adds a piece to the runs of its member. Returns the number of its run. */
static uint32_t gather_add_piece(gather_batch *batch, const tiers_spot *spot, unsigned char *data,
                                 bool joins)
{
    uint32_t i = 0;
    while (batch->parts[i].member != spot->member)
        i++;
    assert(i < batch->part_count);
    gather_part *part = &batch->parts[i];
    tiers_run *last = part->runs.count > 0 ? &part->runs.runs[part->runs.count - 1] : NULL;
    part->transfer.bytes += spot->bytes;
    if (joins && last != NULL && last->device_offset + last->bytes == spot->device_offset &&
        (unsigned char *)last->buffer + last->bytes == data) {
        last->bytes += spot->bytes;
        batch->shared[last - batch->runs] = true;
        return (uint32_t)(last - batch->runs);
    }
    tiers_run *run = &part->runs.runs[part->runs.count++];
    run->device_offset = spot->device_offset;
    run->bytes = spot->bytes;
    run->buffer = data;
    atomic_store_explicit(&run->status, KVT_QUEUED, memory_order_relaxed);
    return (uint32_t)(run - batch->runs);
}

/* Slots and runs of the picks in their order. Two pieces of one range may share a run, which then
 * counts as shared: the range is read once more at worst. */
static void gather_lay_out(tiers_gather *gather, gather_batch *batch, const gather_pick *picks)
{
    uint32_t piece = 0;
    bool joins = false; /* the pick before may be joined */
    for (uint32_t i = 0; i < batch->attempt_count; i++) {
        const gather_pick *pick = &picks[i];
        const tiers_gather_range *range = &gather->request.ranges[pick->range];
        const tiers_copy *copy = &range->copies[pick->copy];
        gather_attempt *attempt = &batch->attempts[i];
        *attempt = (gather_attempt){
            .range = pick->range, .copy = pick->copy, .data = pick->data, .first_piece = piece};
        if (attempt->data == NULL) {
            attempt->data = (unsigned char *)gather->request.buffer + gather->buffer_used;
            gather->buffer_used += range->bytes;
            assert(gather->buffer_used <= gather->request.buffer_bytes);
        }
        joins = joins && !pick->alone;
        for (uint64_t done = 0; done < range->bytes;) {
            tiers_spot spot =
                tiers_unit_map_find(copy->map, copy->offset + done, range->bytes - done);
            batch->pieces[piece++] =
                gather_add_piece(batch, &spot, attempt->data + done, joins || done > 0);
            attempt->members |= UINT64_C(1) << spot.member;
            done += spot.bytes;
        }
        joins = !pick->alone;
        attempt->piece_count = piece - attempt->first_piece;
    }
}

/* ---- start ---- */

kvt_status gather_begin(tiers_gather *gather, gather_pick *picks, uint32_t count,
                        uint64_t deadline_ns)
{
    gather_counts counts;
    memset(&counts, 0, sizeof counts);
    for (uint32_t i = 0; i < count; i++) {
        const tiers_gather_range *range = &gather->request.ranges[picks[i].range];
        const tiers_copy *copy = &range->copies[picks[i].copy];
        for (uint64_t done = 0; done < range->bytes;) {
            tiers_spot spot =
                tiers_unit_map_find(copy->map, copy->offset + done, range->bytes - done);
            if (done == 0) picks[i].first = spot;
            if (counts.of_member[spot.member]++ == 0) counts.members++;
            counts.pieces++;
            done += spot.bytes;
        }
    }
    gather_batch *batch = gather_make_batch(&counts, count);
    if (batch == NULL) return KVT_E_MEMORY;
    qsort(picks, count, sizeof *picks, gather_compare_picks);
    gather_lay_out(gather, batch, picks);
    const uint64_t hedge_ns = gather->request.hedge_ns;
    const uint64_t now_ns = hedge_ns != 0 ? base_clock_ns() : 0;
    batch->hedge_at_ns =
        hedge_ns == 0 || hedge_ns > UINT64_MAX - now_ns ? UINT64_MAX : now_ns + hedge_ns;
    for (uint32_t i = 0; i < count; i++)
        gather->states[picks[i].range].tried |= (uint8_t)(1u << picks[i].copy);
    batch->next = gather->batches;
    gather->batches = batch;
    /* The locations of all copies are pinned by the gather, so a part needs no pin. */
    tiers_pool *pool = gather->pool;
    pool_calls calls = {0, 0};
    for (uint32_t i = 0; i < batch->part_count; i++) {
        gather_part *part = &batch->parts[i];
        part->transfer.kind = KVT_IO_READ;
        part->transfer.waited = gather->request.waited;
        part->transfer.runs = &part->runs;
        pthread_mutex_lock(&pool->done_mutex);
        pool_begin_transfer(pool, &part->transfer, UINT64_C(1) << part->member, 1);
        pthread_mutex_unlock(&pool->done_mutex);
        tiers_job_result result = {.member = part->member};
        pool_note_call(pool, &calls, part->member);
        result.status = tiers_worker_queue_runs(pool->members[part->member].worker, &part->transfer,
                                                part->member, deadline_ns);
        if (result.status == KVT_OK) continue;
        for (uint32_t j = 0; j < part->runs.count; j++)
            atomic_store_explicit(&part->runs.runs[j].status, result.status, memory_order_release);
        pool_job_finished(pool, &part->transfer, &result);
    }
    pool_call(pool, &calls);
    return KVT_OK;
}
