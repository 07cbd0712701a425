/* SPDX-License-Identifier: Apache-2.0 */
/*
 * persist_background.c - writing back a few records at a time while the store serves
 * (docs/STORE.md, Write back).
 *
 * The background writes little and late. A restart is rare, and demotions need free room and write
 * bandwidth a moment later: so it stops when an eighth of the tier is left, takes a twentieth of
 * the bandwidth that the tier was measured with, and pauses while copies are dropped for room. It
 * looks at the table in short holds of the lock, and only when it could write.
 *
 * Thread rule: the background round.
 */
#include "store/core/executor.h"

#include <assert.h>
#include <math.h>

#define PERSIST_LOOK  128u  /* buckets under one hold of the lock */
#define PERSIST_SCAN  1024u /* buckets of one round */
#define PERSIST_PICKS 64u   /* records that one round chooses at most */

/* A record is written when a tenth of what it would save is worth its write: about so often a
 * restart comes before the copy is dropped or made anew. */
#define PERSIST_RESTART_CHANCE 0.1
#define PERSIST_REUSE_SECONDS  300.0 /* uses within this time after a restart count */

#define PERSIST_BANDWIDTH_SHARE 0.05
#define PERSIST_ROOM_SHARE      8u /* of the tier: one part stays free */
#define PERSIST_PAUSE_NS        UINT64_C(10000000000)

/* An entry that this round may write, with its worth per byte. */
typedef struct persist_pick {
    uint64_t handle;
    uint64_t bytes;
    double per_byte;
} persist_pick;

/* Adds the bytes that the time since the last call earned; at most a second's worth is saved, or
 * the largest record. Lock held. */
static void persist_earn(kvt_store *store)
{
    store_persist *persist = &store->persist;
    uint64_t now_ns = store_now_ns(store);
    double measured = store->costs.write[KVT_TIER_SSD].bytes_per_s * PERSIST_BANDWIDTH_SHARE;
    double rate = fmin((double)persist->bytes_per_s, measured);
    double most = fmax(rate, (double)store->record_bytes_max);
    persist->tokens += rate * (double)(now_ns - persist->earned_ns) * 1e-9;
    if (persist->tokens > most) persist->tokens = most;
    persist->earned_ns = now_ns;
}

/* Bytes that the background may write into the free room. Lock held. */
static uint64_t persist_room(kvt_store *store)
{
    uint64_t left = store_policy_capacity(store, KVT_TIER_SSD) / PERSIST_ROOM_SHARE;
    uint64_t room = copies_free_bytes(store, false);
    return room > left ? room - left : 0;
}

/* Whether this round can write anything at all. Lock held. */
static bool persist_may_look(kvt_store *store)
{
    store_persist *persist = &store->persist;
    uint64_t now_ns = store_now_ns(store);
    persist_earn(store);
    /* A copy that was dropped for room proves that the room was not free for long. */
    if (store->counters.copies.dropped != persist->dropped_seen) {
        persist->dropped_seen = store->counters.copies.dropped;
        persist->resume_ns = now_ns + PERSIST_PAUSE_NS;
    }
    if (store->stopping || now_ns < persist->resume_ns || pressure_defers_any(store)) return false;
    return persist->tokens >= (double)persist->bytes_wanted &&
           persist_room(store) >= persist->bytes_wanted;
}

/* Takes a record's bytes out of the budget, if they and the room are there. Lock held. */
static bool persist_may_write(kvt_store *store, uint64_t bytes)
{
    store_persist *persist = &store->persist;
    persist_earn(store);
    persist->bytes_wanted = bytes; /* until they are there, no round looks any further */
    if (store->stopping || (double)bytes > persist->tokens) return false;
    if (pressure_defers_any(store)) return false;
    if (persist_room(store) < bytes) return false;
    persist->tokens -= (double)bytes;
    persist->bytes_wanted = 0;
    return true;
}

/* Whether a copy is worth its write although no restart is in sight. Lock held. */
static bool persist_pays(const kvt_store *store, const kvt_policy_worth *worth, uint64_t bytes)
{
    double reuse = fmin(1.0, worth->uses_per_s * PERSIST_REUSE_SECONDS);
    double write_seconds = (double)bytes / store->costs.write[KVT_TIER_SSD].bytes_per_s;
    return worth->saved_seconds * reuse * PERSIST_RESTART_CHANCE > write_seconds;
}

/* Puts an entry among the picks, the best first, if it belongs there. Lock held. */
static uint32_t persist_consider(const kvt_store *store, const store_entry *entry,
                                 persist_pick *picks, uint32_t count)
{
    kvt_policy_worth worth = {.struct_size = sizeof worth};
    if (entry->state != ENTRY_RESIDENT || !entry_is_above_alone(entry)) return count;
    uint64_t bytes = entry->place->record_bytes;
    if (kvt_policy_worth_get(store->policy, entry->handle, KVT_TIER_SSD, &worth) != KVT_OK)
        return count;
    if (!persist_pays(store, &worth, bytes)) return count;
    if (count == PERSIST_PICKS && worth.per_byte <= picks[count - 1].per_byte) return count;
    uint32_t index = count < PERSIST_PICKS ? count++ : count - 1;
    for (; index > 0 && picks[index - 1].per_byte < worth.per_byte; index--)
        picks[index] = picks[index - 1];
    picks[index] = (persist_pick){entry->handle, bytes, worth.per_byte};
    return count;
}

/* Looks at the next buckets. False at the end of the table. Lock held. */
static bool persist_look(kvt_store *store, persist_pick *picks, uint32_t *count)
{
    store_persist *persist = &store->persist;
    for (uint32_t i = 0; i < PERSIST_LOOK; i++) {
        if (persist->bucket >= store->table.bucket_count) {
            persist->bucket = 0;
            if (!persist->pass_found && *count == 0)
                persist->resume_ns = store_now_ns(store) + PERSIST_PAUSE_NS;
            persist->pass_found = false;
            return false;
        }
        const store_entry *entry = store->table.buckets[persist->bucket++];
        for (; entry != NULL; entry = entry->next)
            *count = persist_consider(store, entry, picks, *count);
    }
    return true;
}

void persist_round(kvt_store *store)
{
    persist_pick picks[PERSIST_PICKS];
    if (!store->copies.kept || store->persist.bytes_per_s == 0) return;
    if (store->pools[KVT_TIER_SSD] == NULL) return;
    /* Finds in the next part of the table the entries whose writing back pays, best first. */
    uint32_t count = 0;
    bool more = true;
    for (uint32_t i = 0; i < PERSIST_SCAN / PERSIST_LOOK && more; i++) {
        pthread_mutex_lock(&store->lock);
        more = persist_may_look(store) && persist_look(store, picks, &count);
        if (count != 0) store->persist.pass_found = true;
        pthread_mutex_unlock(&store->lock);
    }
    for (uint32_t i = 0; i < count; i++) {
        pthread_mutex_lock(&store->lock);
        bool may = persist_may_write(store, picks[i].bytes);
        pthread_mutex_unlock(&store->lock);
        if (!may) return;
        kvt_status status = executor_copy(store, picks[i].handle, 0);
        pthread_mutex_lock(&store->lock);
        if (status == KVT_OK) {
            store->counters.persisted.records++;
            store->counters.persisted.bytes += picks[i].bytes;
        }
        pthread_mutex_unlock(&store->lock);
        if (status < 0) return; /* the entry backs off, or there is no room */
    }
}
