/* SPDX-License-Identifier: Apache-2.0 */
/*
 * health.c - kvt_health_get: which file, thread or device is out of order, and since when.
 *
 * Nothing is watched here: devices, the catalog's writer, the background, the queue of puts and the
 * nodes of other hosts keep their own failures, and this file puts them into words.
 *
 * Thread rule: any thread; takes the store's, a pool's, the catalog's and the link's lock one after
 * the other.
 */
#include "base/clock.h"
#include "base/struct_size.h"
#include "store/hosts/remote_tier.h"

#include <sqlite3.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* The caller's array, and how many items there are. */
typedef struct health_list {
    void *items; /* each of the struct_size of the first */
    size_t item_bytes;
    size_t capacity;
    size_t count;
    uint64_t now_ns; /* CLOCK_MONOTONIC */
    kvt_status overall;
} health_list;

/* Counts an item, and fills it while the caller's array has room. The first item decides the
 * overall status. A name that is too long keeps its end. */
static void __attribute__((format(printf, 6, 7)))
health_add(health_list *list, kvt_health_kind kind, const char *name, kvt_status status,
           uint64_t since_ns, const char *text, ...)
{
    /* Items are added in the order of their weight. */
    if (list->count == 0) list->overall = status;
    if (list->count < list->capacity) {
        kvt_health_item item = {.kind = kind, .status = status};
        size_t length = strlen(name);
        size_t room = sizeof item.name - 1;
        snprintf(item.name, sizeof item.name, "%s", length > room ? name + length - room : name);
        va_list values;
        va_start(values, text);
        vsnprintf(item.text, sizeof item.text, text, values);
        va_end(values);
        if (since_ns != 0 && list->now_ns > since_ns)
            item.seconds = (double)(list->now_ns - since_ns) * 1e-9;
        unsigned char *to = (unsigned char *)list->items + list->count * list->item_bytes;
        memcpy(to, list->items, sizeof item.struct_size);
        struct_size_out(to, &item, sizeof item);
    }
    list->count++;
}

/* Adds the catalog when it is damaged, or its last batch failed. */
static void health_add_catalog(health_list *list, const catalog_health *health)
{
    static const char risk[] = "What is put or deleted now may not survive.";
    if (health->damaged_ns != 0)
        health_add(
            list, KVT_HEALTH_FILE, health->path, KVT_E_CORRUPT, health->damaged_ns,
            "The catalog is damaged. %s Close the store: kvterrace recover --replace makes a "
            "new one from the devices.",
            risk);
    if (health->failing_ns == 0) return;
    if (health->code != 0)
        health_add(list, KVT_HEALTH_FILE, health->path, health->failure, health->failing_ns,
                   "The catalog cannot be written: SQLite reports %d, %s. %s", health->code,
                   sqlite3_errstr(health->code), risk);
    else
        health_add(list, KVT_HEALTH_FILE, health->path, health->failure, health->failing_ns,
                   "The catalog is not written: %s. %s", kvt_status_text(health->failure), risk);
}

/* Why a device is out of service. */
static const char *health_reason(tiers_retired why)
{
    switch (why) {
    case TIERS_RETIRED_ASKED: return "it was retired by its owner";
    case TIERS_RETIRED_GONE: return "it is gone, or answers every request with an error";
    case TIERS_RETIRED_UNRESPONSIVE: return "it did not answer within its timeout";
    case TIERS_RETIRED_SYNC: return "a sync failed, so that acknowledged writes may be lost";
    case TIERS_RETIRED_THREAD: return "its worker thread has ended";
    case TIERS_SERVES: break;
    }
    return "it was not there when the store was opened";
}

/* Adds a member: in the pass for threads its ended worker, in the other pass the device itself. */
static void health_add_member(health_list *list, const tiers_member_stats *health, bool threads,
                              uint64_t faults)
{
    char name[sizeof health->name + 16];
    bool thread = health->why == TIERS_RETIRED_THREAD && health->state == KVT_DEVICE_GONE;
    if (threads && thread) {
        snprintf(name, sizeof name, "worker of %s", health->name);
        health_add(list, KVT_HEALTH_THREAD, name, KVT_E_STATE, health->retired_ns,
                   "The worker thread of device %s has ended inside the device.", health->name);
    }
    if (threads) return;
    if (health->state == KVT_DEVICE_GONE) {
        health_add(list, KVT_HEALTH_DEVICE, health->name, KVT_E_GONE, health->retired_ns,
                   "Device %s is out of service: %s. Its entries are misses until it is added "
                   "again.",
                   health->name, health_reason(health->why));
    } else if (health->state != KVT_DEVICE_ABSENT && health->write_status < 0) {
        health_add(
            list, KVT_HEALTH_DEVICE, health->name, health->write_status, 0,
            "The last write to device %s failed: %s. New entries go to others where there is "
            "room.",
            health->name, kvt_status_text(health->write_status));
    } else if (faults != 0 && health->state != KVT_DEVICE_ABSENT) {
        health_add(list, KVT_HEALTH_DEVICE, health->name, KVT_E_CORRUPT, 0,
                   "Device %s rots: the scrub has found damage in %llu places that lay on it "
                   "alone%s.",
                   health->name, (unsigned long long)faults,
                   health->state == KVT_DEVICE_DRAINING ? ", and it is drained" : "");
    }
    if (health->key_fault != NULL && health->state != KVT_DEVICE_GONE &&
        health->state != KVT_DEVICE_ABSENT)
        health_add(list, KVT_HEALTH_DEVICE, health->name, KVT_E_CONFIG, 0,
                   "Device %s goes on under the keys it has, and no open would take its key_file: "
                   "%s.",
                   health->name, health->key_fault);
}

/* Damage on a member, once there is so much that it is drained. */
static uint64_t health_faults(kvt_store *store, int tier, uint32_t member)
{
    const store_scrub *scrub = &store->scrub;
    if (tier != KVT_TIER_SSD || scrub->faults_most == 0) return 0;
    pthread_mutex_lock(&store->lock);
    const uint64_t faults = scrub->faults[member];
    pthread_mutex_unlock(&store->lock);
    return faults >= scrub->faults_most ? faults : 0;
}

/* Threads first, then the devices themselves. */
static void health_add_members(health_list *list, kvt_store *store, bool threads)
{
    tiers_member_stats health;
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++) {
        tiers_pool *pool = store->pools[tier];
        for (uint32_t i = 0; pool != NULL && tiers_pool_member(pool, i, &health) == KVT_OK; i++)
            health_add_member(list, &health, threads, health_faults(store, tier, i));
    }
}

/* Adds the bases that stored entries need and that are not there. */
static void health_add_bases(health_list *list, kvt_store *store)
{
    char name[16];
    uint32_t start = 0;
    pthread_mutex_lock(&store->lock);
    const uint64_t records = bases_lacking(store, &start);
    pthread_mutex_unlock(&store->lock);
    if (records == 0) return;
    snprintf(name, sizeof name, "basis %05X", (unsigned)start);
    health_add(list, KVT_HEALTH_BASIS, name, KVT_E_MISMATCH, 0,
               "%llu stored records cannot be read without bases that the store lacks, such as "
               "%05X: kvt_basis_get lists them, kvt_basis_add brings the entries back.",
               (unsigned long long)records, (unsigned)start);
}

/* Adds the nodes of other hosts that are not asked, or fail a kind of work. */
static void health_add_hosts(health_list *list, kvt_store *store)
{
    store_remote *remote = store->remote;
    if (remote == NULL) return;
    const uint32_t clears = epochs_owed(&remote->epochs);
    if (clears != 0 && epochs_tried(&remote->epochs, EPOCHS_ALL)) {
        health_add(list, KVT_HEALTH_HOSTS, "clear", KVT_E_GONE, 0,
                   "%u clears have not reached the engine: other hosts find what they cover.",
                   clears);
    }
    for (uint32_t i = 0;; i++) {
        pthread_mutex_lock(&remote->lock);
        const bool known = i < remote->seen.node_count;
        const remote_node_stats node = known ? remote->nodes[i] : (remote_node_stats){.opened = 0};
        pthread_mutex_unlock(&remote->lock);
        if (!known) return;
        if (node.breaker == REMOTE_CLOSED && !node.suspect) continue;
        health_add(list, KVT_HEALTH_HOSTS, node.address, KVT_E_GONE, node.failing_ns, "%s: %.150s.",
                   node.breaker == REMOTE_CLOSED ? "Node fails some requests"
                                                 : "Node is not asked now",
                   node.message);
    }
}

kvt_status kvt_health_get(kvt_store *store, kvt_health_item *items, size_t capacity,
                          size_t *count_out, kvt_status *overall_out)
{
    const base_store_calls *other = base_store_calls_of(store);
    if (other != NULL)
        return BASE_CALL(other, health, store, items, capacity, count_out, overall_out);
    if (store == NULL || count_out == NULL || (items == NULL && capacity != 0))
        return KVT_E_ARGUMENT;
    if (!fork_guard_is_ours(store)) return KVT_E_STATE;
    if (capacity != 0 && !struct_size_is_sound(items, STRUCT_SIZE_THROUGH(kvt_health_item, text)))
        return KVT_E_ARGUMENT;
    health_list list = {.items = items,
                        .item_bytes = capacity != 0 ? struct_size_of(items) : 0,
                        .capacity = capacity,
                        .now_ns = base_clock_ns(),
                        .overall = KVT_OK};
    catalog_health catalog = {0};
    if (store->catalog != NULL) catalog_health_get(store->catalog, &catalog);
    health_add_catalog(&list, &catalog);
    if (catalog.writer_ended)
        health_add(&list, KVT_HEALTH_THREAD, "catalog writer", KVT_E_STATE, catalog.failing_ns,
                   "The catalog's writer thread has ended: nothing is written to it any more.");
    /* Add the background thread when it ended although the store did not stop it. */
    pthread_mutex_lock(&store->lock);
    uint64_t ended_ns = store->background_ended_ns;
    pthread_mutex_unlock(&store->lock);
    if (ended_ns != 0) {
        health_add(&list, KVT_HEALTH_THREAD, "background", KVT_E_STATE, store->zero_ns + ended_ns,
                   "The background thread has ended: nothing is moved unless kvt_store_maintain is "
                   "called.");
    }
    health_add_members(&list, store, true);
    health_add_members(&list, store, false);
    /* Add the first failure of an accepted put since the last flush. */
    pthread_mutex_lock(&store->lock);
    kvt_status failure = store->handover.failure;
    uint64_t failed_ns = store->handover.failed_ns;
    uint64_t lost = store->counters.puts_lost;
    pthread_mutex_unlock(&store->lock);
    if (failure != KVT_OK) {
        health_add(
            &list, KVT_HEALTH_PUT, "put", failure, failed_ns,
            "An entry that a put had handed over could not be stored: %s. %llu such entries so "
            "far.",
            kvt_status_text(failure), (unsigned long long)lost);
    }
    health_add_bases(&list, store);
    /* Add a log of the catalog that a reader keeps from being cut. */
    char name[256];
    if (catalog.held_ns != 0) {
        const size_t length = strlen(catalog.path), room = sizeof name - 8;
        snprintf(name, sizeof name, "%s-wal",
                 length > room ? catalog.path + length - room : catalog.path);
        health_add(
            &list, KVT_HEALTH_FILE, name, KVT_E_LOCKED, catalog.held_ns,
            "A transaction of another program that reads the catalog keeps its log from being cut: "
            "it has %llu MiB, and grows until that transaction ends.",
            (unsigned long long)(catalog.log_bytes >> 20));
    }
    health_add_hosts(&list, store);
    *count_out = list.count;
    if (overall_out != NULL) *overall_out = list.overall;
    return KVT_OK;
}
