/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote_memory.c - objects in the memory of this process (remote_memory.h). A request completes
 * when it is submitted.
 *
 * Thread rule: one lock over all stores; a client is its thread's.
 */
#include "remote/remote_memory.h"

#include "base/clock.h"
#include "base/wait.h"
#include "remote/backends.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define MEMORY_BUCKETS 4096u

typedef struct memory_object {
    struct memory_object *next;
    size_t key_bytes, value_bytes;
    uint64_t until_ns; /* base_clock_ns; it is gone then */
    char bytes[];      /* the key, then the value */
} memory_object;

typedef struct memory_store {
    struct memory_store *next;
    char *name;
    uint64_t count, bytes, value_bytes, limit;
    memory_object *buckets[MEMORY_BUCKETS];
} memory_store;

typedef struct memory_client {
    remote_client base;
    memory_store *store;
    remote_request *first, *last; /* done */
    remote_stats stats;
    pthread_mutex_t lock; /* of woken */
    pthread_cond_t changed;
    bool woken;
} memory_client;

static pthread_mutex_t memory_lock = PTHREAD_MUTEX_INITIALIZER;
static memory_store *memory_stores; /* under memory_lock, as all that they hold; never freed */

/* The store of a name, which is made when it is new; NULL without memory. Lock held. */
static memory_store *memory_find(const char *name)
{
    memory_store *store = memory_stores;
    while (store != NULL && strcmp(store->name, name) != 0)
        store = store->next;
    if (store != NULL) return store;
    store = calloc(1, sizeof *store);
    if (store == NULL) return NULL;
    store->name = strdup(name);
    if (store->name == NULL) {
        free(store);
        return NULL;
    }
    store->next = memory_stores;
    memory_stores = store;
    return store;
}

static memory_object **memory_slot(memory_store *store, const char *key, size_t key_bytes)
{
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < key_bytes; i++)
        hash = (hash ^ (uint8_t)key[i]) * UINT64_C(1099511628211);
    memory_object **at = &store->buckets[(hash >> 32) % MEMORY_BUCKETS];
    while (*at != NULL &&
           ((*at)->key_bytes != key_bytes || memcmp((*at)->bytes, key, key_bytes) != 0))
        at = &(*at)->next;
    return at;
}

static void memory_remove(memory_store *store, memory_object **at)
{
    memory_object *object = *at;
    *at = object->next;
    store->count--;
    store->bytes -= object->key_bytes + object->value_bytes;
    store->value_bytes -= object->value_bytes;
    free(object);
}

/* As memory_slot, of an object whose time is not over. */
static memory_object **memory_live(memory_store *store, const char *key, size_t key_bytes)
{
    memory_object **at = memory_slot(store, key, key_bytes);
    if (*at != NULL && (*at)->until_ns <= base_clock_ns()) memory_remove(store, at);
    return memory_slot(store, key, key_bytes);
}

/* Sets a value from parts. Lock held. */
static kvt_status memory_set(memory_store *store, const char *key, size_t key_bytes,
                             const struct iovec *parts, uint32_t part_count, uint32_t ttl_seconds)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < part_count; i++)
        bytes += parts[i].iov_len;
    memory_object **at = memory_slot(store, key, key_bytes);
    const size_t before = *at != NULL ? (*at)->value_bytes : 0;
    if (store->limit != 0 && store->value_bytes - before + bytes > store->limit) return KVT_E_SPACE;
    memory_object *object = malloc(sizeof *object + key_bytes + bytes);
    if (object == NULL) return KVT_E_SPACE;
    if (*at != NULL) memory_remove(store, at);
    at = memory_slot(store, key, key_bytes);
    *object = (memory_object){
        .key_bytes = key_bytes,
        .value_bytes = bytes,
        .until_ns =
            ttl_seconds == 0 ? UINT64_MAX : base_clock_ns() + ttl_seconds * UINT64_C(1000000000)};
    memcpy(object->bytes, key, key_bytes);
    char *to = object->bytes + key_bytes;
    for (uint32_t i = 0; i < part_count; i++) {
        if (parts[i].iov_len > 0) memcpy(to, parts[i].iov_base, parts[i].iov_len);
        to += parts[i].iov_len;
    }
    *at = object;
    store->count++;
    store->bytes += key_bytes + bytes;
    store->value_bytes += bytes;
    return KVT_OK;
}

/* Copies a value into the parts of a GET. */
static kvt_status memory_give(const memory_object *object, remote_request *request)
{
    const char *from = object->bytes + object->key_bytes;
    size_t left = object->value_bytes;
    request->value_bytes = left;
    if (left > remote_parts_bytes(request)) return KVT_E_SPACE;
    for (uint32_t i = 0; left > 0; i++) {
        const size_t step = request->parts[i].iov_len < left ? request->parts[i].iov_len : left;
        if (step > 0) memcpy(request->parts[i].iov_base, from, step);
        from += step;
        left -= step;
    }
    return KVT_OK;
}

static kvt_status memory_run(memory_store *store, remote_request *request)
{
    if (base_clock_ns() >= request->deadline_ns) return KVT_E_TIMEOUT;
    if (request->kind == REMOTE_PUT && request->fresh &&
        *memory_live(store, request->key, request->key_bytes) != NULL)
        return KVT_EXISTS;
    if (request->kind == REMOTE_PUT)
        return memory_set(store, request->key, request->key_bytes, request->parts,
                          request->part_count, request->ttl_seconds);
    memory_object **at = memory_live(store, request->key, request->key_bytes);
    if (*at == NULL) return KVT_MISS;
    if (request->kind == REMOTE_GET) return memory_give(*at, request);
    if (request->kind == REMOTE_DELETE) memory_remove(store, at);
    return KVT_OK;
}

static void memory_submit(remote_client *base, remote_request *request)
{
    memory_client *client = (memory_client *)base;
    pthread_mutex_lock(&memory_lock);
    request->status = memory_run(client->store, request);
    pthread_mutex_unlock(&memory_lock);
    request->state = REMOTE_DONE;
    request->finished_ns = base_clock_ns();
    request->node = 0;
    client->stats.requests[request->kind]++;
    if (client->last != NULL)
        client->last->next = request;
    else
        client->first = request;
    client->last = request;
}

static void memory_flush(remote_client *base)
{
    (void)base;
}

static size_t memory_reap(remote_client *base, remote_request **done, size_t min, size_t max,
                          uint64_t timeout_ns)
{
    memory_client *client = (memory_client *)base;
    const uint64_t now_ns = base_clock_ns();
    const uint64_t end_ns = timeout_ns < UINT64_MAX - now_ns ? now_ns + timeout_ns : UINT64_MAX;
    size_t count = 0;
    while (count < max && client->first != NULL) {
        done[count++] = client->first;
        client->first = client->first->next;
        if (client->first == NULL) client->last = NULL;
    }
    /* Nothing is on its way, so more can only come from another thread's wake. */
    pthread_mutex_lock(&client->lock);
    bool waiting = true;
    while (count < min && !client->woken && waiting)
        waiting = base_condition_wait_until(&client->changed, &client->lock, end_ns);
    client->woken = false;
    pthread_mutex_unlock(&client->lock);
    return count;
}

static void memory_wake(remote_client *base)
{
    memory_client *client = (memory_client *)base;
    pthread_mutex_lock(&client->lock);
    client->woken = true;
    pthread_cond_broadcast(&client->changed);
    pthread_mutex_unlock(&client->lock);
}

static int memory_fd(const remote_client *base)
{
    (void)base;
    return -1;
}

static void memory_stats(const remote_client *base, remote_stats *out)
{
    *out = ((const memory_client *)base)->stats;
    out->node_count = 1;
}

static bool memory_node_stats(const remote_client *base, uint32_t node, remote_node_stats *out)
{
    (void)base;
    memcpy(out->address, "memory", sizeof "memory");
    return node == 0;
}

static void memory_close(remote_client *base)
{
    memory_client *client = (memory_client *)base;
    pthread_mutex_destroy(&client->lock);
    pthread_cond_destroy(&client->changed);
    free(client);
}

static kvt_status memory_open(const remote_config *config, remote_client **client_out,
                              char *message, size_t message_size)
{
    (void)message;
    (void)message_size;
    memory_client *client = calloc(1, sizeof *client);
    if (client == NULL) return KVT_E_MEMORY;
    client->base.ops = &remote_memory_ops;
    pthread_mutex_lock(&memory_lock);
    client->store = memory_find(config->addresses != NULL ? config->addresses : "");
    pthread_mutex_unlock(&memory_lock);
    if (client->store == NULL) {
        free(client);
        return KVT_E_MEMORY;
    }
    pthread_mutex_init(&client->lock, NULL);
    base_condition_init(&client->changed);
    *client_out = &client->base;
    return KVT_OK;
}

/* ---- for tests ---- */

void remote_memory_clear(const char *name)
{
    pthread_mutex_lock(&memory_lock);
    memory_store *store = memory_find(name);
    for (uint32_t i = 0; store != NULL && i < MEMORY_BUCKETS; i++)
        while (store->buckets[i] != NULL)
            memory_remove(store, &store->buckets[i]);
    pthread_mutex_unlock(&memory_lock);
}

uint64_t remote_memory_count(const char *name, uint64_t *bytes_out)
{
    pthread_mutex_lock(&memory_lock);
    const memory_store *store = memory_find(name);
    const uint64_t count = store != NULL ? store->count : 0;
    if (bytes_out != NULL) *bytes_out = store != NULL ? store->bytes : 0;
    pthread_mutex_unlock(&memory_lock);
    return count;
}

bool remote_memory_peek(const char *name, const char *key, void *to, size_t capacity,
                        size_t *bytes_out)
{
    pthread_mutex_lock(&memory_lock);
    memory_store *store = memory_find(name);
    const memory_object *object = store != NULL ? *memory_slot(store, key, strlen(key)) : NULL;
    if (object != NULL) {
        *bytes_out = object->value_bytes;
        memcpy(to, object->bytes + object->key_bytes,
               object->value_bytes < capacity ? object->value_bytes : capacity);
    }
    pthread_mutex_unlock(&memory_lock);
    return object != NULL;
}

kvt_status remote_memory_poke(const char *name, const char *key, const void *value, size_t bytes)
{
    const struct iovec part = {(void *)(uintptr_t)value, bytes};
    pthread_mutex_lock(&memory_lock);
    memory_store *store = memory_find(name);
    const kvt_status status =
        store != NULL ? memory_set(store, key, strlen(key), &part, 1, 0) : KVT_E_MEMORY;
    pthread_mutex_unlock(&memory_lock);
    return status;
}

void remote_memory_limit(const char *name, uint64_t bytes)
{
    pthread_mutex_lock(&memory_lock);
    memory_store *store = memory_find(name);
    if (store != NULL) store->limit = bytes;
    pthread_mutex_unlock(&memory_lock);
}

const remote_ops remote_memory_ops = {.struct_size = sizeof(remote_ops),
                                      .name = "memory",
                                      .open = memory_open,
                                      .close = memory_close,
                                      .fd = memory_fd,
                                      .submit = memory_submit,
                                      .flush = memory_flush,
                                      .reap = memory_reap,
                                      .wake = memory_wake,
                                      .stats = memory_stats,
                                      .node_stats = memory_node_stats};
