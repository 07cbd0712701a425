/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lend.c - the memory of members, lent to the threads that want what lies in it: objects in one
 * piece where they are, and transfers as copies on the calling thread. A lender's worker has no
 * part in it. Memory that the host cannot follow is lent by its address, to a GPU's kernels.
 *
 * A loan is a count of the member. It keeps the member's device (tiers_pool_eject), and nothing
 * else: the caller holds the location.
 *
 * Thread rule: any thread; no lock is taken.
 */
#include <assert.h>
#include <string.h>

#include "base/clock.h"
#include "pool_internal.h"
#include "stripe.h"

#define LEND_PIECE_BYTES_MAX (1u << 30) /* a multiple of the grain */

/* The member in whose memory an object lies in one piece, or NULL. */
static pool_member *lend_member(tiers_pool *pool, const tiers_location *location)
{
    if (location->extent_count != 1) return NULL;
    assert(location->extents[0].member < pool->member_count);
    pool_member *member = &pool->members[location->extents[0].member];
    return atomic_load_explicit(&member->memory, memory_order_relaxed) != NULL ? member : NULL;
}

bool tiers_pool_lends(tiers_pool *pool, const tiers_location *location)
{
    return lend_member(pool, location) != NULL;
}

bool tiers_pool_in_memory(tiers_pool *pool)
{
    bool any = false;
    for (uint32_t i = 0; i < pool->member_count; i++) {
        pool_member *member = &pool->members[i];
        if (!pool_member_serves(member)) continue;
        if (atomic_load_explicit(&member->memory, memory_order_relaxed) == NULL) return false;
        any = true;
    }
    return any;
}

/* Takes a loan of a member's memory. NULL: the member has none, or does not serve. The count rises
 * before the member is looked at, and eject looks at the count after the member was retired: one of
 * the two sees the other. */
static unsigned char *lend_borrow(pool_member *member)
{
    atomic_fetch_add(&member->lent, 1);
    unsigned char *memory = atomic_load(&member->memory);
    if (memory != NULL && pool_member_serves(member)) return memory;
    atomic_fetch_sub(&member->lent, 1);
    return NULL;
}

/* Ends a loan and counts the bytes that were moved. */
static void lend_give_back(pool_member *member, kvt_io_kind kind, uint64_t bytes)
{
    if (bytes != 0) tiers_worker_count(member->worker, kind, bytes);
    uint32_t lent = atomic_fetch_sub(&member->lent, 1);
    assert(lent > 0 && "what is given back was lent");
    (void)lent;
}

void *tiers_pool_lend(tiers_pool *pool, const tiers_location *location)
{
    pool_member *member = lend_member(pool, location);
    unsigned char *memory = member != NULL ? lend_borrow(member) : NULL;
    return memory != NULL ? memory + location->extents[0].offset : NULL;
}

void *tiers_pool_lent_memory(tiers_pool *pool, const tiers_location *location, uint64_t *bytes_out)
{
    pool_member *member = lend_member(pool, location);
    assert(member != NULL && atomic_load(&member->lent) > 0);
    *bytes_out = member->facts.capacity_bytes; /* written before the member had memory */
    return atomic_load(&member->memory);
}

/* As lend_borrow: the count rises first. */
uint64_t tiers_pool_lend_address(tiers_pool *pool, const tiers_location *location,
                                 uint32_t *gpu_out)
{
    if (location->extent_count != 1) return 0;
    assert(location->extents[0].member < pool->member_count);
    pool_member *member = &pool->members[location->extents[0].member];
    atomic_fetch_add(&member->lent, 1);
    const uint64_t address = atomic_load(&member->address);
    if (gpu_out != NULL) *gpu_out = member->gpu;
    if (address != 0 && pool_member_serves(member)) return address + location->extents[0].offset;
    atomic_fetch_sub(&member->lent, 1);
    return 0;
}

void tiers_pool_take_back(tiers_pool *pool, const tiers_location *location, kvt_io_kind kind,
                          uint64_t bytes)
{
    assert(location->extent_count == 1 && bytes <= location->bytes);
    lend_give_back(&pool->members[location->extents[0].member], kind, bytes);
}

bool tiers_transfer_copy(tiers_pool *pool, tiers_transfer *transfer)
{
    const tiers_location *location = transfer->location;
    unsigned char *memory[TIERS_MEMBERS_MAX];
    uint32_t borrowed = 0;
    assert(location->share_count <= TIERS_MEMBERS_MAX && !transfer->finished);
    while (borrowed < location->share_count) {
        memory[borrowed] = lend_borrow(&pool->members[location->shares[borrowed].member]);
        if (memory[borrowed] == NULL) break;
        borrowed++;
    }
    if (borrowed != location->share_count) {
        while (borrowed > 0)
            lend_give_back(&pool->members[location->shares[--borrowed].member], transfer->kind, 0);
        return false;
    }
    transfer->started_ns = base_clock_ns();
    transfer->part_count = transfer->parts != NULL ? location->share_count : 0;
    for (uint32_t i = 0; i < location->share_count; i++) {
        uint32_t member = location->shares[i].member;
        uint64_t began_ns = i == 0 ? transfer->started_ns : transfer->finished_ns;
        /* Copy the part of a transfer that one share has. Returns its bytes. */
        tiers_walk walk;
        tiers_piece piece;
        uint64_t bytes = 0;
        tiers_walk_init(&walk, transfer->location, i, transfer->offset, transfer->bytes);
        while (tiers_walk_next(&walk, LEND_PIECE_BYTES_MAX, &piece)) {
            char *buffer = (char *)transfer->buffer + piece.object_offset - transfer->offset;
            unsigned char *place = memory[i] + piece.device_offset;
            if (transfer->kind == KVT_IO_READ)
                memcpy(buffer, place, piece.bytes);
            else
                memcpy(place, buffer, piece.bytes);
            bytes += piece.bytes;
        }
        lend_give_back(&pool->members[member], transfer->kind, bytes);
        transfer->finished_ns = base_clock_ns();
        if (i == 0) transfer->member_finished_ns_first = transfer->finished_ns;
        if (transfer->parts == NULL) continue;
        /* One part after the other: each has its own seconds, and nothing was ahead of it. */
        uint64_t own_ns = transfer->finished_ns - began_ns;
        transfer->parts[i] = (tiers_part){
            .member = member, .bytes = bytes, .finished_ns = transfer->started_ns + own_ns};
    }
    transfer->status = KVT_OK;
    transfer->finished = true;
    return true;
}
