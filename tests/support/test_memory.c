/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_memory.c - see test_memory.h. A flag guards the list and not a mutex, which some programs
 * send to functions of their own.
 */
#include "test_memory.h"

#include <stdatomic.h>
#include <stdlib.h>

typedef struct test_end_call {
    void (*end)(void *);
    void *what;
} test_end_call;

static test_end_call *ends;
static size_t end_count, end_room;
static atomic_flag taken = ATOMIC_FLAG_INIT;

void *test_after(void (*end)(void *), void *what)
{
    while (atomic_flag_test_and_set(&taken))
        continue;
    if (end_count == end_room) {
        end_room = end_room * 2 + 64;
        ends = realloc(ends, end_room * sizeof *ends);
        if (ends == NULL) abort();
    }
    ends[end_count++] = (test_end_call){end, what};
    atomic_flag_clear(&taken);
    return what;
}

void *test_zeros(size_t bytes)
{
    void *memory = calloc(1, bytes);
    if (memory == NULL) abort();
    return test_after(free, memory);
}

void *test_alloc(size_t bytes)
{
    return memset(test_zeros(bytes), 0xa5, bytes);
}

void *test_aligned(size_t alignment, size_t bytes)
{
    const size_t whole = (bytes + alignment - 1) / alignment * alignment;
    void *memory = aligned_alloc(alignment, whole);
    if (memory == NULL) abort();
    return test_after(free, memset(memory, 0xa5, whole));
}

size_t test_ends(void)
{
    return end_count;
}

void test_end(size_t count)
{
    while (end_count > count) {
        end_count--;
        ends[end_count].end(ends[end_count].what);
    }
}
