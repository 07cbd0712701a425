/* SPDX-License-Identifier: Apache-2.0 */
/*
 * uses.c - uses of entries: counted, with the promotion that the policy plans, and kept in the
 * catalog: written now and then and at close, taken over at open. Without that an open would have
 * to take all entries for equal, and the first new ones would drive out what has been used most.
 *
 *     meta "uses:N"   head, then records: one for each entry on SSD, at most USES_CHUNK of them
 *
 * A record counts for the entry of its handle alone, so rows of several savings may lie side by
 * side, as after a kill: the later one counts. A row whose checksum fails is none. The time between
 * two lives is not counted, because nobody could ask for anything in it.
 *
 * Thread rule: uses_count under the control lock; else the opener's thread, then the background
 * round, then the closer's thread.
 */
#include "store/learn/uses.h"
#include "store/core/plans.h"

#include "store/hosts/remote_tier.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define USES_CHUNK   8192u /* records of a row */
#define USES_BUCKETS 256u  /* looked at under one hold of the lock */
#define USES_AHEAD   16u   /* items whose memory is asked for before their turn */

/* Integers and doubles as this machine has them; sum is XXH3 of all behind it. */
typedef struct uses_head {
    uint64_t sum;
    uint64_t saving; /* epoch << 32 | number within the life: rises */
    uint64_t count;
    uint64_t learned; /* uses that the weights were learned from */
    double weight[KVT_REUSE_HALF_LIVES];
    double hazard[KVT_REUSE_TURNS][KVT_REUSE_AGES];
} uses_head;
_Static_assert(sizeof(uses_head) == 1104, "as docs/FORMAT.md says");

typedef struct uses_record {
    uint64_t handle;
    uint64_t order;
    uint32_t idle; /* milliseconds << 3 | used; the idle time stops at 6 days */
    uint16_t count[KVT_REUSE_HALF_LIVES]; /* 0 = none, else 1 + 1024 (30 + log2), rounded */
} uses_record;
_Static_assert(sizeof(uses_record) == 32, "as docs/FORMAT.md says");

struct uses_item {
    uint64_t saving;
    uses_record record;
};

/* ---- counting ---- */

void uses_count(kvt_store *store, store_entry *entry, uint64_t *clock_ns)
{
    assert(store_is_locked(store));
    kvt_move moves[32];
    kvt_plan plan = {.moves = moves, .capacity = 32};
    /* The policy counts the use in any case; without room for its plan it makes none. */
    bool room = store->queue_count < STORE_PLANS_QUEUED && !store->stopping;
    backoff_expire(store);
    uint64_t started_ns = *clock_ns != 0 ? *clock_ns : store_now_ns(store);
    kvt_status status =
        kvt_policy_access(store->policy, started_ns, entry->handle, room ? &plan : NULL);
    *clock_ns = store_now_ns(store);
    store_count_decision(store, started_ns, *clock_ns);
    if (store->remote != NULL) publisher_note_use(store, entry);
    if (status == KVT_OK && plan.count != 0) {
        plan_mark(store, &plan);
        plan_queue(store, &plan);
    }
}

/* ---- numbers ---- */

static uint16_t uses_pack(double count)
{
    if (!(count > 0x1p-30)) return 0;
    const double log = (30.0 + log2(count)) * 1024.0 + 0.5;
    return log < 61440.0 ? (uint16_t)(1.0 + log) : 61441;
}

static uses_record uses_record_of(uint64_t handle, const kvt_policy_uses *uses)
{
    const double ms = uses->idle_seconds * 1e3;
    uses_record record = {.handle = handle, .order = uses->order};
    record.idle = (ms < 536870911.0 ? (uint32_t)ms : 536870911u) << 3 | (uses->used & 7);
    for (int k = 0; k < KVT_REUSE_HALF_LIVES; k++)
        record.count[k] = uses_pack(uses->count[k]);
    return record;
}

static kvt_policy_uses uses_of_record(const uses_record *record)
{
    kvt_policy_uses uses = {.struct_size = sizeof uses, .used = record->idle & 7};
    uses.idle_seconds = (double)(record->idle >> 3) * 1e-3;
    for (int k = 0; k < KVT_REUSE_HALF_LIVES; k++)
        if (record->count[k] != 0)
            uses.count[k] = exp2((double)(record->count[k] - 1) / 1024.0 - 30.0);
    return uses;
}

/* ---- writing ---- */

/* A row in the making. */
typedef struct uses_row {
    uses_head head;
    uses_record records[USES_CHUNK];
} uses_row;

/* Adds the entries of one bucket that are on SSD. Lock held. */
static void uses_take_bucket(const kvt_store *store, const store_entry *entry, uses_row *row)
{
    kvt_policy_uses uses = {.struct_size = sizeof uses};
    for (; entry != NULL && row->head.count < USES_CHUNK; entry = entry->next) {
        const bool there =
            entry->copy != NULL || (entry->place != NULL && entry->place->tier == KVT_TIER_SSD);
        if (there &&
            kvt_policy_uses_get(store->policy, store_now_ns(store), entry->handle, &uses) == KVT_OK)
            row->records[row->head.count++] = uses_record_of(entry->handle, &uses);
    }
}

/* Adds the next buckets to a row; false when it is full, or the table at its end. */
static bool uses_fill(const kvt_store *store, size_t *bucket, uses_row *row)
{
    for (uint32_t i = 0; i < USES_BUCKETS; i++) {
        /* Chains are short: a chain that passes the row's end loses some records, no more. */
        if (*bucket == store->table.bucket_count || row->head.count >= USES_CHUNK - 16)
            return false;
        uses_take_bucket(store, store->table.buckets[(*bucket)++], row);
    }
    return true;
}

void uses_save(kvt_store *store)
{
    uint8_t pool[16];
    uint64_t epoch;
    kvt_policy_stats stats;
    catalog_health health;
    if (store->catalog == NULL) return;
    catalog_health_get(store->catalog, &health);
    if (health.failure != KVT_OK)
        return; /* rows would wait in memory for a disk that may not come */
    pthread_mutex_lock(&store->lock);
    kvt_policy_stats_get(store->policy, &stats);
    store->uses.saved_ns = store_now_ns(store);
    const uint64_t accesses = stats.accesses;
    const bool due = accesses != store->uses.accesses;
    store->uses.accesses = accesses;
    pthread_mutex_unlock(&store->lock);
    uses_row *row = due ? malloc(sizeof *row) : NULL;
    if (row == NULL) return;
    catalog_identity(store->catalog, pool, &epoch);
    row->head =
        (uses_head){.saving = epoch << 32 | ++store->uses.savings, .learned = stats.reuse.uses};
    memcpy(row->head.weight, stats.reuse.weight, sizeof row->head.weight);
    memcpy(row->head.hazard, stats.reuse.hazard, sizeof row->head.hazard);
    /* Write all rows. Failing leaves the rows of the last time, which are as good as they were. */
    size_t bucket = 0;
    uint32_t number = 0;
    kvt_status status = KVT_OK;
    for (bool more = true; more && status == KVT_OK;) {
        pthread_mutex_lock(&store->lock);
        while (uses_fill(store, &bucket, row)) {
            pthread_mutex_unlock(&store->lock); /* lookups come in between */
            pthread_mutex_lock(&store->lock);
        }
        more = bucket < store->table.bucket_count;
        pthread_mutex_unlock(&store->lock);
        /* Hand the row to the catalog, and begin the next one. */
        const size_t bytes = sizeof row->head + row->head.count * sizeof row->records[0];
        row->head.sum =
            XXH3_64bits((const uint8_t *)row + sizeof row->head.sum, bytes - sizeof row->head.sum);
        status = catalog_note_uses(store->catalog, number++, row, bytes);
        row->head.count = 0;
    }
    free(row);
}

/* ---- reading ---- */

/* Notes a row's records; one that is not whole is passed over. False ends the walk: no memory. */
static bool uses_visit(void *context, const void *bytes, size_t size)
{
    uses_found *found = context;
    uses_head head;
    if (size < sizeof head) return true;
    memcpy(&head, bytes, sizeof head);
    if (head.count > USES_CHUNK || size != sizeof head + head.count * sizeof(uses_record) ||
        head.sum != XXH3_64bits((const uint8_t *)bytes + sizeof head.sum, size - sizeof head.sum))
        return true;
    if (head.saving >= found->saving) {
        found->saving = head.saving;
        found->weights.uses = head.learned;
        memcpy(found->weights.weight, head.weight, sizeof found->weights.weight);
        memcpy(found->weights.hazard, head.hazard, sizeof found->weights.hazard);
    }
    if (head.count == 0) return true;
    uses_item *items = realloc(found->items, (found->count + head.count) * sizeof *found->items);
    found->failed = items == NULL;
    if (found->failed) return false;
    found->items = items;
    for (uint64_t i = 0; i < head.count; i++) {
        uses_item *item = &items[found->count++];
        item->saving = head.saving;
        memcpy(&item->record, (const uint8_t *)bytes + sizeof head + i * sizeof item->record,
               sizeof item->record);
    }
    return true;
}

/* The word that a digit of the order is of: the last use, then the saving. */
static uint64_t uses_word(const uses_item *item, int digit)
{
    return digit < 8 ? item->record.order : item->saving;
}

/* The order of the items by their savings, then by their last uses: digit by digit, the lowest
 * first, passing over those in which no two differ. Returns their numbers, the caller's to free;
 * NULL without memory. */
static uint32_t *uses_sort(const uses_found *found)
{
    uint64_t differ[2] = {0, 0};
    uint32_t *order = malloc(2 * found->count * sizeof *order);
    if (order == NULL) return NULL;
    uint32_t *other = order + found->count;
    for (size_t i = 0; i < found->count; i++) {
        order[i] = (uint32_t)i;
        for (int word = 0; word < 2; word++)
            differ[word] |=
                uses_word(&found->items[i], 8 * word) ^ uses_word(&found->items[0], 8 * word);
    }
    for (int digit = 0; digit < 16; digit++) {
        size_t starts[257] = {0};
        const int shift = digit % 8 * 8;
        if ((differ[digit / 8] >> shift & 0xff) == 0) continue;
        for (size_t i = 0; i < found->count; i++)
            starts[(uses_word(&found->items[i], digit) >> shift & 0xff) + 1]++;
        for (int i = 0; i < 256; i++)
            starts[i + 1] += starts[i];
        for (size_t i = 0; i < found->count; i++) {
            if (i + USES_AHEAD < found->count)
                __builtin_prefetch(&found->items[order[i + USES_AHEAD]]);
            other[starts[uses_word(&found->items[order[i]], digit) >> shift & 0xff]++] = order[i];
        }
        memcpy(order, other, found->count * sizeof *order);
    }
    return order;
}

/* Frees what was read. */
static void uses_free(uses_found *found)
{
    free(found->items);
    free(found->order);
    found->items = NULL;
    found->order = NULL;
    found->count = 0;
}

kvt_status uses_read(kvt_store *store, uses_found *found)
{
    kvt_move unused[1];
    kvt_plan none = {.moves = unused, .capacity = 1};
    memset(found, 0, sizeof *found);
    kvt_status status = catalog_each_blob(store->catalog, "uses:*", uses_visit, found);
    if (status != KVT_OK || found->failed || found->saving == 0) {
        uses_free(found);
        return found->failed ? KVT_E_MEMORY : status;
    }
    /* Uses that were before this life are before the engine's first time, unless it has seen one
     * that is as early. */
    status = kvt_policy_tick(store->policy, 1, 0, 0, &none);
    if (status == KVT_OK) (void)!kvt_policy_weights_set(store->policy, &found->weights);
    found->order = uses_sort(found);
    if (found->order == NULL && found->count != 0) status = KVT_E_MEMORY;
    if (status != KVT_OK) uses_free(found);
    return status;
}

void uses_give(kvt_store *store, uses_found *found)
{
    for (size_t i = 0; i < found->count; i++) {
        if (i + USES_AHEAD < found->count)
            __builtin_prefetch(&found->items[found->order[i + USES_AHEAD]]);
        const uses_record *record = &found->items[found->order[i]].record;
        const kvt_policy_uses uses = uses_of_record(record);
        (void)!kvt_policy_uses_set(store->policy, store_now_ns(store), record->handle, &uses);
    }
    store->uses.saved_ns = store_now_ns(store);
    uses_free(found);
}
