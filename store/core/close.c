/* SPDX-License-Identifier: Apache-2.0 */
/*
 * close.c - closes a store, or the parts that a failed open has made.
 *
 * Order: puts that were handed over are finished or called off, the background ends, entries above
 * the SSD are written back, what is known of uses is noted, then the catalog's writer ends with its
 * last batch, then pools and memory.
 *
 * Thread rule: not concurrent with anything.
 */
#include "base/clock.h"
#include "base/kill_point.h"
#include "store/background/maintain.h"
#include "store/catalog/recovery.h"
#include "store/core/handover.h"
#include "store/core/store.h"
#include "store/follow/early.h"
#include "store/hosts/remote_tier.h"
#include "store/learn/uses.h"
#include "store/read/queue_internal.h"
#include "store/ring/ring_internal.h"
#include "store/watch/watching.h"

#include <stdlib.h>

/* Extents of places are the pools'; only the tickets and locations need freeing one by one. */
static void close_free_places(kvt_store *store, const entry_table *table)
{
    for (size_t i = 0; i < table->bucket_count; i++) {
        for (store_entry *entry = table->buckets[i]; entry != NULL; entry = entry->next) {
            const store_place *places[2] = {entry->place, entry->copy};
            for (int j = 0; j < 2 && places[j] != NULL; j++) {
                catalog_ticket_free(places[j]->ticket);
                tiers_pool_forget(store->pools[places[j]->tier], places[j]->location);
            }
        }
    }
}

void store_close_parts(kvt_store *store)
{
    ring_stop_all(store);
    queue_stop_all((queue_owner){&store->lock, &store->queues});
    uint64_t deadline_ns = 0; /* until when entries may be written, CLOCK_MONOTONIC; 0 = none is */
    if (store->close_deadline_seconds > 0)
        deadline_ns = (uint64_t)((double)base_clock_ns() + store->close_deadline_seconds * 1e9);
    watch_file_stop(store);
    handover_stop(store, store->opened && store->catalog != NULL ? deadline_ns : 0);
    maintain_stop(store);
    remote_tier_close(store);
    KILL_POINT("close: background stopped");
    if (store->opened) persist_close(store, deadline_ns);
    KILL_POINT("close: entries written back");
    if (store->catalog != NULL && store->opened) members_note_wear(store, 1);
    if (store->opened) uses_save(store);
    if (store->opened && store->catalog != NULL)
        recover_close_catalog(store);
    else
        catalog_close(store->catalog);
    KILL_POINT("close: catalog closed");
    if (store->opened) learn_save(store); /* may wait for others; the catalog is safe by now */
    close_free_places(store, &store->table);
    close_free_places(store, &store->quarantined);
    gpu_sites_close(&store->gpus); /* its kernels may read the memory of an hbm device */
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++) {
        /* One that abandons an unresponsive device goes on without the store (docs/TIERS.md). */
        (void)tiers_pool_close(store->pools[tier]);
    }
    KILL_POINT("close: pools closed");
    kvt_policy_close(store->policy);
    learn_close(store);
    watch_close(store);
    entry_table_deinit(&store->table);
    entry_table_deinit(&store->quarantined);
    entry_memory_close(&store->memory);
    free(store->copies.listed);
    lease_close(store);
    free(store->spaces.items);
    handover_close(store);
    staging_close(store->staging);
    bases_close(store);
    pthread_cond_destroy(&store->changed);
    pthread_cond_destroy(&store->background_due);
    pthread_mutex_destroy(&store->wear_lock);
    pthread_mutex_destroy(&store->members_lock);
    pthread_mutex_destroy(&store->reads_lock);
    passes_destroy(&store->passes);
    pthread_cond_destroy(&store->read_ended);
    pthread_mutex_destroy(&store->kept_lock);
    pthread_mutex_destroy(&store->observer_lock);
    pthread_mutex_destroy(&store->lock);
}

void kvt_store_close(kvt_store *store)
{
    const base_store_calls *other = base_store_calls_of(store);
    if (other != NULL) {
        other->close(store);
        return;
    }
    if (store == NULL || !fork_guard_is_ours(store)) return;
    early_free(store->early); /* with the reader's hold on the catalog's log */
    store_close_parts(store);
    free(store);
}
