/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring_words.c - the words of a ring. Of the other side's words only the sequence word of one entry
 * is read at a time, and only compared with the few values that it can have.
 */
#include "base/ring_words.h"

#include <assert.h>
#include <string.h>

void base_ring_make(void *memory, uint32_t entries)
{
    base_ring_words *words = memory;
    assert(base_ring_is_size(entries) && (uintptr_t)memory % 64 == 0);
    memset(memory, 0, base_ring_bytes(entries));
    for (uint64_t i = 0; i < entries; i++)
        atomic_store_explicit(&words->entry[i].sequence, i, memory_order_relaxed);
    atomic_store_explicit(&words->entries, entries, memory_order_relaxed);
    atomic_store_explicit(&words->entry_bytes, sizeof(base_ring_entry), memory_order_relaxed);
    atomic_store_explicit(&words->magic, BASE_RING_MAGIC, memory_order_release);
}

kvt_status base_ring_attach(base_ring *ring, void *memory, size_t bytes, uint32_t entries)
{
    base_ring_words *words = memory;
    if (!base_ring_is_size(entries) || (uintptr_t)memory % 64 != 0) return KVT_E_ARGUMENT;
    if (memory == NULL || bytes < base_ring_bytes(entries)) return KVT_E_ARGUMENT;
    if (atomic_load_explicit(&words->magic, memory_order_acquire) != BASE_RING_MAGIC ||
        atomic_load_explicit(&words->entries, memory_order_relaxed) != entries ||
        atomic_load_explicit(&words->entry_bytes, memory_order_relaxed) != sizeof(base_ring_entry))
        return KVT_E_CORRUPT;
    *ring = (base_ring){.words = words, .entries = entries};
    return KVT_OK;
}

static base_ring_entry *ring_entry(const base_ring *ring, uint64_t position)
{
    return &ring->words->entry[position & (ring->entries - 1)];
}

/* Looks of a claim at a counter that others move: so many more positions than the ring has were
 * taken meanwhile, or the other side plays with a counter that it can write. */
static uint64_t ring_looks(const base_ring *ring)
{
    return ring->entries + 64;
}

/* The entry at a position that nobody has claimed, as a producer sees it. KVT_OK: free; KVT_BUSY:
 * claimed or posted a round ago; KVT_E_CORRUPT: neither, unless it has been claimed meanwhile. */
static kvt_status ring_free(const base_ring *ring, uint64_t position)
{
    const uint64_t word =
        atomic_load_explicit(&ring_entry(ring, position)->sequence, memory_order_acquire);
    const uint64_t before = position - ring->entries;
    if (word == position) return KVT_OK;
    return word == before || word == before + 1 ? KVT_BUSY : KVT_E_CORRUPT;
}

kvt_status base_ring_claim(base_ring *ring, _Atomic uint64_t *claimed, uint32_t count,
                           uint64_t *position_out)
{
    assert(count >= 1 && count <= ring->entries);
    uint64_t next = atomic_load_explicit(claimed, memory_order_relaxed);
    for (uint64_t look = ring_looks(ring); look > 0; look--) {
        const kvt_status status = ring_free(ring, next + count - 1);
        const uint64_t seen = next;
        if (status != KVT_OK) {
            next = atomic_load_explicit(claimed, memory_order_relaxed);
            if (next == seen) return status;
        } else if (atomic_compare_exchange_weak_explicit(
                       claimed, &next, next + count, memory_order_relaxed, memory_order_relaxed)) {
            *position_out = seen;
            return KVT_OK;
        }
    }
    return KVT_BUSY;
}

kvt_status base_ring_room(const base_ring *ring, const _Atomic uint64_t *claimed, uint32_t ahead)
{
    assert(ahead < ring->entries);
    uint64_t next = atomic_load_explicit(claimed, memory_order_relaxed);
    for (uint64_t look = ring_looks(ring); look > 0; look--) {
        const kvt_status status = ring_free(ring, next + ahead);
        const uint64_t seen = next;
        next = atomic_load_explicit(claimed, memory_order_relaxed);
        if (status != KVT_E_CORRUPT || next == seen) return status;
    }
    return KVT_BUSY;
}

kvt_status base_ring_post(base_ring *ring, uint64_t position, const base_ring_body *body)
{
    base_ring_entry *entry = ring_entry(ring, position);
    if (atomic_load_explicit(&entry->sequence, memory_order_acquire) != position)
        return KVT_E_CORRUPT;
    for (uint32_t i = 0; i < BASE_RING_BODY_WORDS; i++)
        atomic_store_explicit(&entry->body[i], body->words[i], memory_order_relaxed);
    /* In one order with base_ring_sleeps, so that either side sees the other's word. */
    atomic_store_explicit(&entry->sequence, position + 1, memory_order_seq_cst);
    return KVT_OK;
}

kvt_status base_ring_take(base_ring *ring, uint64_t position, base_ring_body *body_out)
{
    base_ring_entry *entry = ring_entry(ring, position);
    const uint64_t word = atomic_load_explicit(&entry->sequence, memory_order_acquire);
    if (word == position) return KVT_END;
    if (word != position + 1) return KVT_E_CORRUPT;
    for (uint32_t i = 0; i < BASE_RING_BODY_WORDS; i++)
        body_out->words[i] = atomic_load_explicit(&entry->body[i], memory_order_relaxed);
    atomic_store_explicit(&entry->sequence, position + ring->entries, memory_order_release);
    return KVT_OK;
}

const _Atomic uint64_t *base_ring_word(const base_ring *ring, uint64_t position)
{
    return &ring->words->entry[position & (ring->entries - 1)].sequence;
}

bool base_ring_was_taken(const base_ring *ring, uint64_t position)
{
    return atomic_load_explicit(base_ring_word(ring, position), memory_order_acquire) !=
           position + 1;
}

bool base_ring_sleeps(base_ring *ring, uint64_t position)
{
    atomic_store_explicit(&ring->words->asleep, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&ring_entry(ring, position)->sequence, memory_order_seq_cst) ==
        position)
        return true;
    atomic_store_explicit(&ring->words->asleep, 0, memory_order_relaxed);
    return false;
}

bool base_ring_wakes(base_ring *ring)
{
    return atomic_load_explicit(&ring->words->asleep, memory_order_seq_cst) != 0 &&
           atomic_exchange_explicit(&ring->words->asleep, 0, memory_order_seq_cst) != 0;
}
