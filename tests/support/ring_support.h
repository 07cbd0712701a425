/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring_support.h - a ring in memory of two processes, between pages that nobody may touch; and a
 * side that writes anything into it.
 */
#ifndef KVT_TESTS_SUPPORT_RING_SUPPORT_H
#define KVT_TESTS_SUPPORT_RING_SUPPORT_H

#include "cases.h"

#include "base/ring_words.h"

#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define RING_PAGE 4096u

/* Memory of `bytes`, shared with children of fork, that ends with a page; a page before it and one
 * behind it fault. */
static inline void *ring_memory(size_t bytes)
{
    const size_t whole = (bytes + RING_PAGE - 1) / RING_PAGE * RING_PAGE;
    char *memory = mmap(NULL, whole + 2 * RING_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(memory != MAP_FAILED);
    void *inside = mmap(memory + RING_PAGE, whole, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    assert_true(inside != MAP_FAILED);
    /* A ring is a multiple of 64 bytes long, so its end is the end of the memory. */
    return memory + RING_PAGE + whole - bytes;
}

static inline void ring_memory_free(void *memory, size_t bytes)
{
    const size_t whole = (bytes + RING_PAGE - 1) / RING_PAGE * RING_PAGE;
    munmap((char *)memory + bytes - whole - RING_PAGE, whole + 2 * RING_PAGE);
}

static inline uint64_t ring_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Writes one word of a ring: any one, or a value that a sound ring could have. */
static inline void ring_scribble(base_ring_words *words, uint32_t entries, uint64_t *state)
{
    const uint64_t draw = ring_random(state);
    base_ring_entry *entry = &words->entry[draw % entries];
    const uint64_t now = atomic_load_explicit(&entry->sequence, memory_order_relaxed);
    uint64_t value = now;
    switch (draw >> 32 & 7) {
    case 0: value = ring_random(state); break;
    case 1: value = now + 1; break;
    case 2: value = now - 1; break;
    case 3: value = now + entries; break;
    case 4: value = now - entries; break;
    case 5: atomic_store(&words->asleep, (uint32_t)ring_random(state)); return;
    case 6: atomic_store(&words->claimed, ring_random(state)); return;
    default:
        atomic_store_explicit(&entry->body[draw >> 40 & 3], ring_random(state),
                              memory_order_relaxed);
        return;
    }
    atomic_store_explicit(&entry->sequence, value, memory_order_relaxed);
}

/* fork, of a child that ends with its parent, whatever becomes of the case. */
static inline pid_t ring_fork(void)
{
    const pid_t parent = getpid(), child = fork();
    if (child == 0 && (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)) _exit(99);
    assert_true(child >= 0);
    return child;
}

/* The status of a child that ends. */
static inline int ring_child_ends(pid_t child)
{
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

#endif
