/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote_hints.c - a table of sets of four (remote_hints.h). A handle is a keyed hash, so its low
 * bits choose the set.
 */
#include "store/hosts/remote_hints.h"

#include "base/wait.h"

#include <stdlib.h>
#include <string.h>

kvt_status remote_hints_open(remote_hints *hints, uint64_t ttl_ns)
{
    hints->items = calloc(HINTS_ROOM, sizeof *hints->items);
    hints->ttl_ns = ttl_ns;
    base_brief_lock_init(&hints->lock);
    return hints->items != NULL ? KVT_OK : KVT_E_MEMORY;
}

void remote_hints_close(remote_hints *hints)
{
    free(hints->items);
    pthread_mutex_destroy(&hints->lock);
}

/* The item of a handle, or the one that gives way to it. */
static hint_item *remote_hints_find(const remote_hints *hints, uint64_t handle)
{
    hint_item *set = &hints->items[handle % (HINTS_ROOM / HINTS_WAYS) * HINTS_WAYS], *oldest = set;
    for (uint32_t i = 0; i < HINTS_WAYS; i++) {
        if (set[i].handle == handle) return &set[i];
        if (set[i].until_ns < oldest->until_ns) oldest = &set[i];
    }
    return oldest;
}

void remote_hints_set(remote_hints *hints, uint64_t handle, remote_hint hint, uint64_t now_ns)
{
    pthread_mutex_lock(&hints->lock);
    hint_item *item = remote_hints_find(hints, handle);
    item->handle = handle;
    item->until_ns = ((now_ns + hints->ttl_ns) & ~UINT64_C(1)) | (hint == HINT_THERE);
    pthread_mutex_unlock(&hints->lock);
}

remote_hint remote_hints_get(remote_hints *hints, uint64_t handle, uint64_t now_ns)
{
    pthread_mutex_lock(&hints->lock);
    const hint_item *item = remote_hints_find(hints, handle);
    const bool known = item->handle == handle && item->until_ns > now_ns;
    const bool there = (item->until_ns & 1) != 0;
    pthread_mutex_unlock(&hints->lock);
    return !known ? HINT_UNKNOWN : there ? HINT_THERE : HINT_ABSENT;
}

void remote_hints_forget(remote_hints *hints, uint64_t handle)
{
    pthread_mutex_lock(&hints->lock);
    hint_item *item = remote_hints_find(hints, handle);
    if (item->handle == handle) item->until_ns = 0;
    pthread_mutex_unlock(&hints->lock);
}

void remote_hints_clear(remote_hints *hints)
{
    pthread_mutex_lock(&hints->lock);
    memset(hints->items, 0, HINTS_ROOM * sizeof *hints->items);
    pthread_mutex_unlock(&hints->lock);
}
