/* SPDX-License-Identifier: Apache-2.0 */
/*
 * owed.c - deletions of copies that a node has not taken: it was out of service. They are kept,
 * tried again each second, and until one is done its key counts as absent here, so that a deleted
 * entry does not come back with the node.
 *
 * A close forgets them, as docs/REMOTE.md says.
 *
 * Thread rule: any thread; remote->lock is taken inside.
 */
#include "store/hosts/remote_tier.h"

#include <stdlib.h>

kvt_status owed_open(store_remote *remote, uint32_t room)
{
    remote->owed = calloc(room, sizeof *remote->owed);
    remote->owed_room = room;
    return remote->owed != NULL ? KVT_OK : KVT_E_MEMORY;
}

void owed_close(store_remote *remote)
{
    free(remote->owed);
    remote->owed = NULL;
}

/* The place of a handle; owed_count: it is none of them. remote->lock held. */
static uint32_t owed_find(const store_remote *remote, uint64_t handle)
{
    const uint32_t count = atomic_load_explicit(&remote->owed_count, memory_order_relaxed);
    uint32_t at = 0;
    while (at < count && remote->owed[at].handle != handle)
        at++;
    return at;
}

bool owed_add(store_remote *remote, const publish_item *item)
{
    pthread_mutex_lock(&remote->lock);
    const uint32_t count = atomic_load_explicit(&remote->owed_count, memory_order_relaxed);
    const bool known = owed_find(remote, item->handle) < count;
    const bool room = count < remote->owed_room;
    if (!known && room) {
        remote->owed[count] = *item;
        atomic_store_explicit(&remote->owed_count, count + 1, memory_order_release);
    }
    remote->owed_lost += !known && !room;
    pthread_mutex_unlock(&remote->lock);
    return known || room;
}

void owed_forget(store_remote *remote, uint64_t handle)
{
    if (atomic_load_explicit(&remote->owed_count, memory_order_acquire) == 0) return;
    pthread_mutex_lock(&remote->lock);
    const uint32_t at = owed_find(remote, handle);
    const uint32_t count = atomic_load_explicit(&remote->owed_count, memory_order_relaxed);
    if (at < count) { /* the last one comes into its place */
        remote->owed[at] = remote->owed[count - 1];
        atomic_store_explicit(&remote->owed_count, count - 1, memory_order_release);
    }
    pthread_mutex_unlock(&remote->lock);
}

bool owed_has(store_remote *remote, uint64_t handle)
{
    if (atomic_load_explicit(&remote->owed_count, memory_order_acquire) == 0) return false;
    pthread_mutex_lock(&remote->lock);
    const bool found =
        owed_find(remote, handle) < atomic_load_explicit(&remote->owed_count, memory_order_relaxed);
    pthread_mutex_unlock(&remote->lock);
    return found;
}

uint32_t owed_list(store_remote *remote, publish_item *items, uint32_t most)
{
    pthread_mutex_lock(&remote->lock);
    const uint32_t count = atomic_load_explicit(&remote->owed_count, memory_order_relaxed);
    const uint32_t taken = count < most ? count : most;
    /* Tried deletions go behind the others, so that a node that does not answer holds up none. */
    for (uint32_t i = 0; i < taken; i++) {
        const uint32_t at = (remote->owed_turn + i) % count;
        items[i] = remote->owed[at];
    }
    if (count != 0) remote->owed_turn = (remote->owed_turn + taken) % count;
    pthread_mutex_unlock(&remote->lock);
    return taken;
}
