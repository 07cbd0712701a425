/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lock_scratch.h - whether this process may lock memory, as registered buffers are: a container's
 * root may not, and others have limits.
 */
#ifndef TESTS_LOCK_SCRATCH_H
#define TESTS_LOCK_SCRATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

/* Tries it with four times as much, for what is locked beside it. */
static inline bool scratch_may_lock(uint64_t bytes)
{
    void *memory =
        mmap(NULL, 4 * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return false;
    bool locked = mlock(memory, 4 * bytes) == 0;
    (void)munmap(memory, 4 * bytes);
    return locked;
}

#endif
