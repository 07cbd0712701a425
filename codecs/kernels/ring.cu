/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring.cu - a GPU as the producer of a ring (docs/CALLS.md, Rings): a warp claims a position, fills
 * the table of its place, posts, waits no longer than it may, and takes the completion.
 *
 * Positions are claimed in the GPU's memory, because a compare-and-exchange over PCIe is none for
 * the host. Lane 0 decides; the others copy. A wait ends by the clock, and by the number of its
 * looks where the clock stands still.
 *
 * The ring's words may be anything: a word that no sound ring has ends the post with a status.
 */
#include "kernel_words.h"

/* kvt_status, and a look that has found nothing yet. */
enum {
    RING_OK = 0,
    RING_MISS = 1,
    RING_BUSY = 2,
    RING_QUEUED = 4,
    RING_ARGUMENT = -10,
    RING_STATE = -13,
    RING_TIMEOUT = -34,
    RING_CORRUPT = -40
};

enum {
    RING_POSTS = 1, /* kvt_ring_post_mode */
    RING_WAITS = 2,
    RING_ENTRY = 64,
    RING_CONTEXT = 64,
    RING_LOOK_NS = 64,     /* a look takes as long, at least */
    RING_LOOKS_FREE = 4096 /* without a clock */
};

#define RING_WAIT_MOST 10000000000ull /* nanoseconds */

/* Until when a warp may wait. */
typedef struct ring_patience {
    uint64_t from_ns, wait_ns, looks;
} ring_patience;

KERNEL_INLINE bool ring_is_over(ring_patience *patience)
{
    if (patience->wait_ns == 0 || patience->looks == 0) return true;
    patience->looks--;
    return kernel_now_ns() - patience->from_ns >= patience->wait_ns;
}

/* The address of a position's entry. */
KERNEL_INLINE uint64_t ring_entry(const kernel_ring_gate *gate, uint64_t entries, uint64_t position)
{
    return entries + RING_ENTRY * (position & (gate->depth - 1));
}

/* One try, by lane 0. QUEUED: another warp was faster. */
KERNEL_INLINE int32_t ring_try(const kernel_ring_gate *gate, uint64_t counter, uint64_t *position)
{
    const uint64_t next = kernel_peek8(counter);
    const uint64_t word = kernel_peek8(ring_entry(gate, gate->completions, next));
    *position = next;
    if (word == next && kernel_peek8(ring_entry(gate, gate->submissions, next)) == next)
        return kernel_swap8(counter, next, next + 1) == next ? RING_OK : RING_QUEUED;
    if (kernel_peek8(counter) != next) return RING_QUEUED;
    if (word == next + 1) return RING_STATE; /* completed without a post: the ring has ended */
    return word == next - gate->depth || word == next - gate->depth + 1 ? RING_BUSY : RING_CORRUPT;
}

/* Claims a position. All lanes. */
KERNEL_INLINE int32_t ring_claim(const kernel_ring_gate *gate, uint64_t counter,
                                 ring_patience *patience, uint64_t *position)
{
    int32_t status = RING_QUEUED;
    *position = 0;
    while (status == RING_QUEUED) {
        if (kernel_lane() == 0) {
            status = ring_try(gate, counter, position);
            /* Of a full ring earlier blocks end; of warps that race one wins each time. */
            if (status == RING_BUSY && !ring_is_over(patience)) {
                kernel_pause();
                status = RING_QUEUED;
            }
        }
        status = (int32_t)kernel_shuffle((uint32_t)status, 0);
    }
    *position = kernel_shuffle8(*position, 0);
    return status;
}

/* Fills the table of a place, if it has contexts of its own, and posts. All lanes. */
KERNEL_INLINE void ring_fill(const kernel_ring_gate *gate, const kernel_ring_post *post,
                             uint64_t position)
{
    const uint64_t place = position & (gate->depth - 1);
    const uint64_t entry = ring_entry(gate, gate->submissions, position);
    const uint32_t count = post->contexts != 0 ? (uint32_t)post->block[1] : 0;
    const uint64_t table = gate->tables + place * gate->contexts * RING_CONTEXT;
    for (uint32_t i = kernel_lane(); i < count * (RING_CONTEXT / 16); i += KERNEL_WARP) {
        uint32_t words[4];
        kernel_load16(post->contexts + 16 * (uint64_t)i, words);
        kernel_store16(table + 16 * (uint64_t)i, words);
    }
    if (kernel_lane() == 0) {
        KERNEL_UNROLL
        for (uint32_t i = 0; i < 7; i++)
            kernel_store8(entry + 8 * (i + 1),
                          i == 0 && post->contexts != 0 ? place : post->block[i]);
    }
    kernel_fence();
    kernel_meet_warp();
    if (kernel_lane() == 0) kernel_hand8(entry, position + 1);
}

/* One look at a completion, by lane 0. */
KERNEL_INLINE int32_t ring_look(const kernel_ring_gate *gate, uint64_t index)
{
    const uint64_t word = kernel_peek8(ring_entry(gate, gate->completions, index));
    if (word == index + 1) return RING_OK;
    if (word == index) return RING_QUEUED;
    const uint64_t later = word - index;
    return later >> 63 == 0 && (later & (gate->depth - 1)) <= 1 ? RING_MISS : RING_CORRUPT;
}

/* Waits for a completion and takes it. All lanes. */
KERNEL_INLINE int32_t ring_wait(const kernel_ring_gate *gate, uint64_t counter, uint64_t at,
                                const kernel_ring_post *post, ring_patience *patience,
                                uint64_t index)
{
    const uint64_t entry = ring_entry(gate, gate->completions, index);
    const uint64_t said = gate->statuses + (index & (gate->depth - 1)) * gate->contexts;
    const uint32_t count = (uint32_t)post->block[1];
    int32_t status = RING_QUEUED;
    while (status == RING_QUEUED) {
        if (kernel_lane() == 0) {
            status = index < kernel_peek8(counter) ? ring_look(gate, index) : RING_ARGUMENT;
            if (status == RING_QUEUED && ring_is_over(patience)) status = RING_TIMEOUT;
            if (status == RING_QUEUED) kernel_pause();
        }
        status = (int32_t)kernel_shuffle((uint32_t)status, 0);
    }
    if (status != RING_OK) return status;
    if (kernel_lane() < 7)
        kernel_store8(at + offsetof(kernel_ring_post, result) + 8 * kernel_lane(),
                      kernel_peek8(entry + 8 * (kernel_lane() + 1)));
    for (uint32_t i = kernel_lane(); post->statuses != 0 && i < count; i += KERNEL_WARP)
        kernel_store1(post->statuses + i, kernel_peek1(said + i));
    kernel_fence();
    kernel_meet_warp();
    if (kernel_lane() == 0) kernel_hand8(entry, index + gate->depth);
    return RING_OK;
}

/* Whether a post is one. A block of a kept table may be anything: the ring checks it. */
KERNEL_INLINE bool ring_is_sound(const kernel_ring_gate *gate, const kernel_ring_post *post)
{
    const bool own = (post->mode & RING_POSTS) != 0 && post->contexts != 0;
    const uint64_t first = post->block[0] >> 32;
    if (post->mode == 0 || post->mode > (RING_POSTS | RING_WAITS)) return false;
    if ((uint32_t)post->block[1] > gate->contexts && (own || post->statuses != 0)) return false;
    return !own || (first == 0 && post->contexts % 16 == 0);
}

KERNEL_ENTRY(1) kvt_ring_posts(uint64_t posts, uint32_t post_count, uint64_t gate_at)
{
    const uint32_t which = kernel_block() * KERNEL_RING_BLOCK + kernel_warp();
    if (which >= post_count) return;
    const uint64_t at = posts + (uint64_t)which * sizeof(kernel_ring_post);
    const uint64_t counter = gate_at + offsetof(kernel_ring_gate, claimed);
    kernel_ring_post post;
    kernel_ring_gate gate;
    KERNEL_TAKE(&post, at);
    gate.submissions = kernel_load8(gate_at + offsetof(kernel_ring_gate, submissions));
    gate.completions = kernel_load8(gate_at + offsetof(kernel_ring_gate, completions));
    gate.tables = kernel_load8(gate_at + offsetof(kernel_ring_gate, tables));
    gate.statuses = kernel_load8(gate_at + offsetof(kernel_ring_gate, statuses));
    gate.depth = kernel_load4(gate_at + offsetof(kernel_ring_gate, depth));
    gate.contexts = kernel_load4(gate_at + offsetof(kernel_ring_gate, contexts));
    const uint64_t wait_ns = post.wait_ns < RING_WAIT_MOST ? post.wait_ns : RING_WAIT_MOST;
    ring_patience patience = {kernel_now_ns(), wait_ns, wait_ns / RING_LOOK_NS + RING_LOOKS_FREE};
    uint64_t index = post.index;
    int32_t status = ring_is_sound(&gate, &post) ? RING_OK : RING_ARGUMENT;
    if (status == RING_OK && (post.mode & RING_POSTS) != 0) {
        status = ring_claim(&gate, counter, &patience, &index);
        if (status == RING_OK) ring_fill(&gate, &post, index);
    }
    if (status == RING_OK)
        status = (post.mode & RING_WAITS) != 0
                     ? ring_wait(&gate, counter, at, &post, &patience, index)
                     : RING_QUEUED;
    if (kernel_lane() != 0) return;
    kernel_store8(at + offsetof(kernel_ring_post, index), index);
    kernel_store4(at + offsetof(kernel_ring_post, status), (uint32_t)status);
}
