/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_arena.h - memory of one fuzz execution: blocks are cut from one static room and given back
 * all at once, which is many times faster than malloc under AddressSanitizer. A block is exactly as
 * large as asked for: what lies around it is poisoned, so that the sanitizer still sees every byte
 * too many. What does not fit the room comes from malloc. One thread.
 */
#ifndef TESTS_FUZZ_ARENA_H
#define TESTS_FUZZ_ARENA_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FUZZ_ARENA_POISON 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define FUZZ_ARENA_POISON 1
#endif
#ifdef FUZZ_ARENA_POISON
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size)   ((void)(address), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#endif

enum {
    FUZZ_ARENA_BYTES = 4 << 20,
    FUZZ_ARENA_ALIGN = 64,
    FUZZ_ARENA_GAP = 64, /* at least so much poison behind every block */
    FUZZ_ARENA_LARGE = 16
};

static _Alignas(4096) uint8_t fuzz_arena_room[FUZZ_ARENA_BYTES];
static size_t fuzz_arena_used = 0;
static void *fuzz_arena_large[FUZZ_ARENA_LARGE];
static size_t fuzz_arena_large_count = 0;

/* Gives everything back; to be called where an execution starts. */
static inline void fuzz_arena_reset(void)
{
    while (fuzz_arena_large_count > 0) {
        free(fuzz_arena_large[--fuzz_arena_large_count]);
    }
    if (fuzz_arena_used == 0)
        ASAN_POISON_MEMORY_REGION(fuzz_arena_room, FUZZ_ARENA_BYTES);
    else
        ASAN_POISON_MEMORY_REGION(fuzz_arena_room, fuzz_arena_used);
    fuzz_arena_used = FUZZ_ARENA_ALIGN;
}

/* A block at an address with remainder `offset` (below 64) modulo 64; its content is whatever. */
static inline void *fuzz_arena_take_at(uint64_t bytes, size_t offset)
{
    if (bytes + 2 * FUZZ_ARENA_GAP + FUZZ_ARENA_ALIGN > FUZZ_ARENA_BYTES - fuzz_arena_used) {
        const size_t rounded = (size_t)(bytes / FUZZ_ARENA_ALIGN + 2) * FUZZ_ARENA_ALIGN;
        if (fuzz_arena_large_count == FUZZ_ARENA_LARGE) abort();
        uint8_t *memory = aligned_alloc(FUZZ_ARENA_ALIGN, rounded);
        if (memory == NULL) abort();
        fuzz_arena_large[fuzz_arena_large_count++] = memory;
        return memory + offset;
    }
    uint8_t *block = fuzz_arena_room + fuzz_arena_used + offset;
    const uint64_t end = fuzz_arena_used + offset + bytes + FUZZ_ARENA_GAP;
    fuzz_arena_used = (size_t)((end + FUZZ_ARENA_ALIGN - 1) / FUZZ_ARENA_ALIGN * FUZZ_ARENA_ALIGN);
    ASAN_UNPOISON_MEMORY_REGION(block, bytes);
    return block;
}

static inline void *fuzz_arena_take(uint64_t bytes)
{
    return fuzz_arena_take_at(bytes, 0);
}

static inline void *fuzz_arena_copy(const void *data, size_t bytes)
{
    uint8_t *block = fuzz_arena_take_at(bytes, 0);
    if (bytes > 0) memcpy(block, data, bytes);
    return block;
}

/* The rest of an input; bytes behind its end are 0. */
typedef struct fuzz_input {
    const uint8_t *data;
    size_t size;
} fuzz_input;

static inline uint8_t fuzz_byte(fuzz_input *input)
{
    if (input->size == 0) return 0;
    input->size--;
    return *input->data++;
}

#endif
