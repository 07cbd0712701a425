/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring_words.h - entries of 64 bytes that one process hands to another, or a GPU to a process,
 * through memory that both map (docs/SERVE.md, The ring, has the words to the byte).
 *
 *     base_ring ring;                                  producer
 *     kvt_status status = base_ring_attach(&ring, memory, bytes, entries);
 *     status = base_ring_claim(&ring, &claimed, 1, &position);
 *     if (status == KVT_OK) status = base_ring_post(&ring, position, &body);
 *     if (status == KVT_OK && base_ring_wakes(&ring)) ... ring the consumer's bell ...
 *
 *     while (base_ring_take(&ring, next, &body) == KVT_OK) next++, ... use body ...     consumer
 *     if (base_ring_sleeps(&ring, next)) ... wait for the bell ...
 *
 * The other side is not trusted: whatever it writes, and whenever, each call returns within a
 * bounded number of steps, touches the ring alone and gives a value or KVT_E_CORRUPT. After
 * KVT_E_CORRUPT the ring is of no use any more. A body that was taken is a copy; its bytes are
 * whatever the other side has written, and the taker checks them.
 *
 * Thread rule: claim and post from any thread; take and sleeps from one thread at a time for each
 * position. Nothing here waits, allocates, or calls the system.
 */
#ifndef BASE_RING_WORDS_H
#define BASE_RING_WORDS_H

#include <kvterrace/status.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BASE_RING_MAGIC       UINT64_C(0x31676e697274766b) /* "kvtring1" */
#define BASE_RING_ENTRIES_MAX (UINT32_C(1) << 20)
#define BASE_RING_BODY_WORDS  7

/* The part of an entry that its taker gets: 56 bytes. */
typedef struct base_ring_body {
    uint64_t words[BASE_RING_BODY_WORDS];
} base_ring_body;

typedef struct base_ring_entry {
    _Atomic uint64_t sequence;
    _Atomic uint64_t body[BASE_RING_BODY_WORDS];
} base_ring_entry;

/* The memory of a ring. */
typedef struct base_ring_words {
    _Atomic uint64_t magic;
    _Atomic uint32_t entries, entry_bytes;
    uint64_t zero_a[6];
    _Atomic uint32_t asleep; /* the consumer asks to be woken */
    uint32_t zero_b[15];
    _Atomic uint64_t claimed; /* for producers that share it; consumers do not read it */
    uint64_t zero_c[15];
    base_ring_entry entry[];
} base_ring_words;

_Static_assert(sizeof(base_ring_entry) == 64, "an entry is a cache line");
_Static_assert(offsetof(base_ring_words, entries) == 8, "entries");
_Static_assert(offsetof(base_ring_words, asleep) == 64, "the consumer's line");
_Static_assert(offsetof(base_ring_words, claimed) == 128, "the producers' line");
_Static_assert(offsetof(base_ring_words, entry) == 256, "head");
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2 && ATOMIC_INT_LOCK_FREE == 2,
               "a lock would be of one process");

/* One side's own view of a ring, which the other side cannot write. */
typedef struct base_ring {
    base_ring_words *words;
    uint64_t entries;
} base_ring;

/* Whether a ring may have so many entries: a power of two from 2 to BASE_RING_ENTRIES_MAX. */
static inline bool base_ring_is_size(uint64_t entries)
{
    return entries >= 2 && entries <= BASE_RING_ENTRIES_MAX && (entries & (entries - 1)) == 0;
}

/* Bytes of the memory of a ring of a sound size. */
static inline size_t base_ring_bytes(uint32_t entries)
{
    return sizeof(base_ring_words) + entries * sizeof(base_ring_entry);
}

/* Makes an empty ring in memory of base_ring_bytes(entries), aligned to 64; `entries` is a sound
 * size. The other side attaches to the memory afterwards. */
void base_ring_make(void *memory, uint32_t entries);

/*
 * Takes memory that the other side may write as a ring of the size that was agreed.
 *   memory   aligned to 64, mapped for as long as the ring is used
 *   bytes    of the mapping
 * KVT_OK; KVT_E_ARGUMENT (size, alignment, too few bytes); KVT_E_CORRUPT (its head says otherwise).
 */
KVT_NODISCARD kvt_status base_ring_attach(base_ring *ring, void *memory, size_t bytes,
                                          uint32_t entries);

/*
 * Takes `count` positions in a row, all or none, from a counter of the producers: one in memory of
 * their own, 0 at first, or the ring's `claimed`. Each is posted soon: an entry that is claimed and
 * not posted keeps all behind it from the consumer.
 *   count   1 to the ring's entries
 * KVT_OK; KVT_BUSY (so many are not free); KVT_E_CORRUPT.
 */
KVT_NODISCARD kvt_status base_ring_claim(base_ring *ring, _Atomic uint64_t *claimed, uint32_t count,
                                         uint64_t *position_out);

/* Whether the entry `ahead` positions behind the next one to claim is free, and so are all before
 * it. KVT_OK; KVT_BUSY; KVT_E_CORRUPT. ahead is below the ring's entries. Other producers may claim
 * meanwhile. */
KVT_NODISCARD kvt_status base_ring_room(const base_ring *ring, const _Atomic uint64_t *claimed,
                                        uint32_t ahead);

/* Hands over the entry at a position that the caller has claimed, or, where completions stand at
 * the index of their submission, at that index. KVT_OK; KVT_E_CORRUPT: it is not free. */
KVT_NODISCARD kvt_status base_ring_post(base_ring *ring, uint64_t position,
                                        const base_ring_body *body);

/* Takes the entry at a position: a consumer's next one, or the index of a submission. KVT_OK;
 * KVT_END (it is not posted); KVT_E_CORRUPT. */
KVT_NODISCARD kvt_status base_ring_take(base_ring *ring, uint64_t position,
                                        base_ring_body *body_out);

/* The word of the entry at a position, which is the position itself until the entry is posted: for
 * a consumer that looks for a while (base/spin.h). */
const _Atomic uint64_t *base_ring_word(const base_ring *ring, uint64_t position);

/* Whether the entry at a position that was posted has been taken, as far as its word says. */
bool base_ring_was_taken(const base_ring *ring, uint64_t position);

/* Asks the producers for the bell. True: the entry at the position is not there, and the consumer
 * may sleep until its bell rings. False: look again, nothing was asked. */
bool base_ring_sleeps(base_ring *ring, uint64_t position);

/* After posts: whether the consumer sleeps. True once for each time that it has asked. */
bool base_ring_wakes(base_ring *ring);

#endif
