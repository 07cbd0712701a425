/* SPDX-License-Identifier: Apache-2.0 */
/*
 * belady.c - the offline optimum for blocks of one size. A heap by next use holds the resident
 * blocks. A hit inserts the block again with its new next use; the old item is stale and skipped
 * when it comes up, so a hit costs one insertion and no search. One thread.
 */
#include "belady.h"

#include <stdlib.h>
#include <string.h>

#define NEVER UINT64_MAX

typedef struct future {
    uint64_t next; /* reference that uses the block next */
    uint32_t block;
} future;

typedef struct futures { /* a binary heap, the farthest first */
    future *items;
    uint64_t count;
} futures;

static void futures_add(futures *heap, future added)
{
    uint64_t at = heap->count++;
    while (at > 0 && heap->items[(at - 1) / 2].next < added.next) {
        heap->items[at] = heap->items[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap->items[at] = added;
}

static future futures_take(futures *heap)
{
    future first = heap->items[0];
    future last = heap->items[--heap->count];
    uint64_t at = 0;
    for (;;) {
        uint64_t child = 2 * at + 1;
        if (child >= heap->count) break;
        if (child + 1 < heap->count && heap->items[child + 1].next > heap->items[child].next) {
            child++;
        }
        if (heap->items[child].next <= last.next) break;
        heap->items[at] = heap->items[child];
        at = child;
    }
    if (heap->count > 0) heap->items[at] = last;
    return first;
}

/* next_use[i]: the reference after i to the same block. */
static void belady_look_ahead(const replay_workload *workload, uint64_t *next_use, uint64_t *seen)
{
    memset(seen, 0xFF, workload->distinct_blocks * sizeof *seen);
    for (uint64_t i = workload->block_refs; i-- > 0;) {
        uint32_t block = workload->blocks[i];
        next_use[i] = seen[block];
        seen[block] = i;
    }
}

double replay_belady(const replay_workload *workload, uint64_t blocks)
{
    uint64_t refs = workload->block_refs;
    uint64_t *next_use = malloc((refs + 1) * sizeof *next_use);
    uint64_t *resident = malloc((workload->distinct_blocks + 1) * sizeof *resident);
    futures heap = {malloc((refs + 1) * sizeof *heap.items), 0};
    double ratio = -1.0;
    if (next_use == NULL || resident == NULL || heap.items == NULL) goto out;
    belady_look_ahead(workload, next_use, resident);
    /* From here on: the next use by which a resident block is filed, 0 for others. */
    memset(resident, 0, workload->distinct_blocks * sizeof *resident);
    uint64_t hits = 0, held = 0;
    for (uint64_t i = 0; i < refs; i++) {
        uint32_t block = workload->blocks[i];
        bool hit = resident[block] != 0;
        hits += hit;
        if (next_use[i] == NEVER) {
            held -= hit;
            resident[block] = 0;
            continue;
        }
        resident[block] = next_use[i];
        futures_add(&heap, (future){next_use[i], block});
        held += !hit;
        while (held > blocks) {
            future farthest = futures_take(&heap);
            if (resident[farthest.block] != farthest.next) continue;
            resident[farthest.block] = 0;
            held--;
        }
    }
    ratio = refs > 0 ? (double)hits / (double)refs : 0.0;
out:
    free(next_use);
    free(resident);
    free(heap.items);
    return ratio;
}
