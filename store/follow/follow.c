/* SPDX-License-Identifier: Apache-2.0 */
/*
 * follow.c - opens and closes a follower; which calls stand for which public function.
 *
 * A follower changes nothing, and counts nothing that its owner would learn from: puts are refused,
 * and what changes a store is unsupported.
 *
 * Thread rule: as follow_internal.h; open and close as those of a store.
 */
#include "store/follow/follow.h"
#include "base/struct_size.h"
#include "store/follow/follow_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what a follower is like ---- */

static kvt_status follow_stats(kvt_store *handle, kvt_store_stats *stats)
{
    follow_store *store = follow_enter(handle);
    if (store == NULL) return KVT_E_STATE;
    if (stats == NULL || !struct_size_is_sound(stats, STRUCT_SIZE_THROUGH(kvt_store_stats, policy)))
        return KVT_E_ARGUMENT;
    kvt_store_stats whole = {.struct_size = sizeof whole};
    kvt_tier_stats *tier = &whole.tiers[KVT_TIER_SSD];
    pthread_mutex_lock(&store->lock);
    whole.gets = store->gets;
    whole.misses = store->misses;
    whole.timeouts = store->timeouts;
    whole.load_failures = store->load_failures;
    whole.refused.tokens = store->tokens_refused;
    whole.refused.basis = store->bases_lacking;
    tier->hits = store->hits;
    tier->bytes_read = store->bytes_read;
    for (uint32_t i = 0; i < store->devices->count; i++)
        tier->capacity_bytes += store->devices->members[i].capacity_bytes;
    pthread_mutex_unlock(&store->lock);
    struct_size_out(stats, &whole, sizeof whole);
    return KVT_OK;
}

/* Adds one item, if there is room for it. */
static void follow_add_health(void *items, size_t capacity, size_t *count, kvt_health_kind kind,
                              kvt_status status, const char *name, const char *text)
{
    if ((*count)++ >= capacity) return;
    kvt_health_item whole = {.struct_size = sizeof whole, .kind = kind, .status = status};
    char *item = (char *)items + (*count - 1) * struct_size_of(items);
    const size_t length = strlen(name), room = sizeof whole.name - 1;
    (void)snprintf(whole.name, sizeof whole.name, "%s",
                   length > room ? name + length - room : name);
    (void)snprintf(whole.text, sizeof whole.text, "%s", text);
    /* The first item's size is that of all. */
    const uint32_t size = struct_size_of(items);
    memcpy(item, &size, sizeof size);
    struct_size_out(item, &whole, sizeof whole);
}

static kvt_status follow_health(kvt_store *handle, kvt_health_item *items, size_t capacity,
                                size_t *count_out, kvt_status *overall_out)
{
    follow_store *store = follow_enter(handle);
    if (store == NULL) return KVT_E_STATE;
    if (count_out == NULL || (items == NULL && capacity != 0)) return KVT_E_ARGUMENT;
    if (capacity != 0 && !struct_size_is_sound(items, STRUCT_SIZE_THROUGH(kvt_health_item, text)))
        return KVT_E_ARGUMENT;
    kvt_status overall = KVT_OK;
    char message[256];
    *count_out = 0;
    pthread_mutex_lock(&store->lock);
    overall = follow_catalog(store, message, sizeof message);
    if (overall != KVT_OK)
        follow_add_health(items, capacity, count_out, KVT_HEALTH_FILE, overall, store->catalog_path,
                          "The catalog cannot be read: every entry is a miss.");
    for (uint32_t i = 0; i < store->devices->count; i++) {
        if (store->devices->members[i].capacity_bytes != 0) continue;
        if (overall == KVT_OK) overall = KVT_E_GONE;
        follow_add_health(items, capacity, count_out, KVT_HEALTH_DEVICE, KVT_E_GONE,
                          store->configs[i].name,
                          "The device is missing, or not the followed store's: its entries are "
                          "misses.");
    }
    pthread_mutex_unlock(&store->lock);
    if (overall_out != NULL) *overall_out = overall;
    return KVT_OK;
}

/* ---- calls that change nothing here; the table lacks all others that change a store ---- */

static kvt_status follow_put(kvt_store *handle, const kvt_entry *entry, const kvt_view *view)
{
    (void)view;
    if (follow_enter(handle) == NULL) return KVT_E_STATE;
    return entry == NULL ? KVT_E_ARGUMENT : KVT_REFUSED;
}

/* Nothing is handed over that could be waited for. */
static kvt_status follow_flush(kvt_store *handle)
{
    return follow_enter(handle) == NULL ? KVT_E_STATE : KVT_OK;
}

static size_t follow_metrics(kvt_store *handle, char *text, size_t size)
{
    (void)handle;
    if (text != NULL && size != 0) text[0] = '\0';
    return 0;
}

/* ---- queues: the store's own, whose threads make the calls above ---- */

static kvt_status follow_queue_open(kvt_store *handle, const kvt_queue_options *options,
                                    kvt_queue **queue_out)
{
    follow_store *store = follow_enter(handle);
    if (store == NULL) return KVT_E_STATE;
    const queue_owner owner = {&store->lock, &store->queues};
    return queue_open_owned(handle, owner, true, options, queue_out);
}

/* ---- open and close ---- */

static void follow_free(follow_store *store)
{
    if (store->devices != NULL && follow_devices_leave(store->devices))
        follow_devices_close(store->devices);
    catalog_close(store->catalog);
    for (uint32_t i = 0; i < FOLLOW_SPARE; i++)
        free(store->spare[i].memory);
    for (uint32_t i = 0; i < store->base_count; i++) {
        free(store->owned[i]->object);
        free(store->owned[i]);
    }
    for (uint32_t i = 0; i < TIERS_MEMBERS_MAX; i++) {
        free(store->texts[i].name);
        free(store->texts[i].path);
        free(store->texts[i].key_file);
        free(store->texts[i].key_command);
    }
    free(store->catalog_path);
    pthread_mutex_destroy(&store->lock);
    free(store);
}

static void follow_close(kvt_store *handle)
{
    follow_store *store = follow_enter(handle);
    if (store == NULL) return;
    queue_stop_all((queue_owner){&store->lock, &store->queues});
    follow_free(store);
}

static const base_store_calls follow_calls = {.close = follow_close,
                                              .put = follow_put,
                                              .get = follow_get,
                                              .exists = follow_exists,
                                              .describe = follow_describe,
                                              .match = follow_match,
                                              .prefix_get = follow_prefix_get,
                                              .flush = follow_flush,
                                              .stats = follow_stats,
                                              .health = follow_health,
                                              .metrics = follow_metrics,
                                              .queue_open = follow_queue_open};

/* Copies what a follower needs of the options. */
static kvt_status follow_fill(follow_store *store, const kvt_store_options *options)
{
    const kvt_tier_options *tier = &options->tiers[KVT_TIER_SSD];
    store->elsewhere = &follow_calls;
    store->forks = base_fork_guard_start();
    store->get_deadline_ns = KVT_NO_DEADLINE;
    if (options->limits.get_deadline_seconds > 0)
        store->get_deadline_ns = (uint64_t)(options->limits.get_deadline_seconds * 1e9);
    store->unit_bytes = tier->unit_bytes;
    store->catalog_path = strdup(options->durability.catalog_path);
    if (store->catalog_path == NULL) return KVT_E_MEMORY;
    for (; store->device_count < tier->device_count; store->device_count++) {
        const uint32_t i = store->device_count;
        const kvt_device_config *given = &tier->devices[i];
        if (given->name == NULL || given->backend == NULL || given->path == NULL ||
            strcmp(given->backend, "file") != 0)
            return KVT_E_UNSUPPORTED;
        store->texts[i].name = strdup(given->name);
        store->texts[i].path = strdup(given->path);
        store->texts[i].key_file = strdup(given->key_file != NULL ? given->key_file : "");
        store->texts[i].key_command = strdup(given->key_command != NULL ? given->key_command : "");
        if (store->texts[i].name == NULL || store->texts[i].path == NULL ||
            store->texts[i].key_file == NULL || store->texts[i].key_command == NULL)
            return KVT_E_MEMORY;
        store->configs[i] = *given;
        store->configs[i].name = store->texts[i].name;
        store->configs[i].path = store->texts[i].path;
        store->configs[i].key_file = store->texts[i].key_file;
        store->configs[i].key_command = store->texts[i].key_command;
        store->configs[i].backend = "file";
        if (options->follow_symlinks) store->configs[i].follow_symlinks = true;
    }
    return KVT_OK;
}

kvt_status follow_open(const kvt_store_options *options, bool within, kvt_store **store_out,
                       char *message, size_t message_size)
{
    const kvt_tier_options *tier = &options->tiers[KVT_TIER_SSD];
    const double deadline_seconds = options->limits.get_deadline_seconds;
    if (options->durability.catalog_path == NULL || tier->device_count == 0 ||
        !(deadline_seconds >= 0 && deadline_seconds <= 1e9)) {
        (void)snprintf(message, message_size,
                       "a follower needs the owner's catalog and SSD devices, and a get_deadline "
                       "of 0 to 1e9 seconds");
        return KVT_E_ARGUMENT;
    }
    follow_store *store = calloc(1, sizeof *store);
    if (store == NULL) return KVT_E_MEMORY;
    pthread_mutex_init(&store->lock, NULL);
    store->within = within;
    kvt_status status = follow_fill(store, options);
    if (status == KVT_E_UNSUPPORTED)
        (void)snprintf(message, message_size,
                       "a follower reads devices of the file back end alone");
    if (status == KVT_OK) status = follow_catalog(store, message, message_size);
    if (status == KVT_OK)
        status = follow_devices_open(store, &store->devices, message, message_size);
    if (status != KVT_OK) {
        if (message[0] == '\0')
            (void)snprintf(message, message_size, "%s", kvt_status_text(status));
        follow_free(store);
        return status;
    }
    follow_bases_look(store);
    *store_out = (kvt_store *)(void *)store;
    return KVT_OK;
}
