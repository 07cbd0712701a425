/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory.c - memory for the engine's tables, see policy.h. Any thread.
 *
 * A million entries take 170 MB, which small pages cover with forty thousand translations, more
 * than any processor keeps at hand. Large pages are a wish: where they are not to be had, the
 * memory is as good as any.
 */
#include <kvterrace/policy.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define MEMORY_LARGE ((size_t)2 << 20)

/* Blocks of 2 MiB and more are aligned to large pages and always move; smaller ones are
 * realloc's. */
void *kvt_memory_resize(void *context, void *memory, size_t old_bytes, size_t bytes)
{
    (void)context;
    if (bytes == 0) {
        free(memory);
        return NULL;
    }
    if (bytes < MEMORY_LARGE) return realloc(memory, bytes);
    if (bytes > SIZE_MAX - MEMORY_LARGE) return NULL;
    size_t rounded = (bytes + MEMORY_LARGE - 1) / MEMORY_LARGE * MEMORY_LARGE;
    void *grown = aligned_alloc(MEMORY_LARGE, rounded);
    if (grown == NULL) return NULL;
    (void)madvise(grown, rounded, MADV_HUGEPAGE);
    if (memory != NULL) memcpy(grown, memory, old_bytes < bytes ? old_bytes : bytes);
    free(memory);
    return grown;
}
