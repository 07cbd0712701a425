/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client_regions.c - memory that calls use without a copy. Regions that were made outlive their
 * store, as the memory of whoever has it; so all regions of the process stand in one list.
 */
#include "serve/client/client_load_state.h"
#include "serve/client/client_transfer.h"

#include "serve/wire/shared_memory.h"

#include <assert.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define REGION_NOT_THERE UINT32_MAX /* this server has not taken it: calls copy */

typedef struct client_region {
    struct client_region *next;
    kvt_store *store; /* that is connected; NULL: it was closed, or is of this process */
    char *memory;
    uint64_t offset, bytes;
    int descriptor;  /* -1: of a store of this process */
    bool made;       /* mapped here */
    uint32_t number; /* the server's; under store->lock */
} client_region;

static pthread_mutex_t regions_lock = PTHREAD_MUTEX_INITIALIZER;
static client_region *regions; /* under regions_lock */

/* A child of fork connects by itself, and must not find the list locked by a thread that it does
 * not have. */
static void regions_before_fork(void)
{
    pthread_mutex_lock(&regions_lock);
}

static void regions_after_fork(void)
{
    pthread_mutex_unlock(&regions_lock);
}

static void regions_watch_forks(void)
{
    (void)pthread_atfork(regions_before_fork, regions_after_fork, regions_after_fork);
}

static void region_list(client_region *region)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, regions_watch_forks);
    pthread_mutex_lock(&regions_lock);
    region->next = regions;
    regions = region;
    pthread_mutex_unlock(&regions_lock);
}

/* Takes the region of a store that begins there out of the list; NULL: there is none. */
static client_region *region_take(const kvt_store *store, const void *memory)
{
    pthread_mutex_lock(&regions_lock);
    client_region **at = &regions;
    while (*at != NULL && ((*at)->memory != memory || (*at)->store != store))
        at = &(*at)->next;
    client_region *region = *at;
    if (region != NULL) *at = region->next;
    pthread_mutex_unlock(&regions_lock);
    return region;
}

static void region_free(client_region *region)
{
    if (region->made) wire_memory_unmap(region->memory, region->bytes);
    if (region->descriptor >= 0) close(region->descriptor);
    free(region);
}

/* ---- a connected store's; under store->lock ---- */

static kvt_status region_register(client_store *store, client_region *region)
{
    wire_message question, answer;
    wire_message_make(&question, WIRE_REGISTER, store->protocol, 1);
    question.registers.offset = region->offset;
    question.registers.bytes = region->bytes;
    region->number = REGION_NOT_THERE;
    const kvt_status status =
        client_ask_locked(store, &question, &region->descriptor, 1, WIRE_REGION, &answer, NULL);
    if (status == KVT_OK && answer.one.value < WIRE_REGIONS_MAX) region->number = answer.one.value;
    return status;
}

void client_regions_tell(client_store *store, client_channel *channel)
{
    for (uint32_t i = 0; i < WIRE_REGIONS_MAX; i++)
        channel->regions[i] = (wire_region){0};
    pthread_mutex_lock(&regions_lock);
    for (const client_region *region = regions; region != NULL; region = region->next)
        if ((const void *)region->store == (const void *)store &&
            region->number != REGION_NOT_THERE)
            channel->regions[region->number] =
                (wire_region){.address = region->memory, .bytes = region->bytes};
    pthread_mutex_unlock(&regions_lock);
}

static void regions_tell_all(client_store *store)
{
    for (client_channel *channel = store->channels; channel != NULL; channel = channel->next) {
        pthread_mutex_lock(&channel->lock);
        client_regions_tell(store, channel);
        pthread_mutex_unlock(&channel->lock);
    }
}

uint32_t client_region_number(const client_store *store, const void *memory)
{
    uint32_t number = REGION_NOT_THERE;
    pthread_mutex_lock(&regions_lock);
    for (const client_region *region = regions; region != NULL; region = region->next)
        if ((const void *)region->store == (const void *)store && region->memory == memory)
            number = region->number;
    pthread_mutex_unlock(&regions_lock);
    return number < WIRE_REGIONS_MAX ? number : WIRE_REGIONS_MAX;
}

kvt_status client_regions_restore(client_store *store)
{
    client_region *own[WIRE_REGIONS_MAX];
    uint32_t count = 0;
    kvt_status status = KVT_OK;
    /* Those of one store come and go under store->lock alone, so the list's own lock is not held
     * over the questions. */
    pthread_mutex_lock(&regions_lock);
    for (client_region *region = regions; region != NULL && count < WIRE_REGIONS_MAX;
         region = region->next)
        if ((const void *)region->store == (const void *)store) own[count++] = region;
    pthread_mutex_unlock(&regions_lock);
    for (uint32_t i = 0; i < count && status != KVT_E_GONE; i++)
        status = region_register(store, own[i]);
    return status == KVT_E_GONE ? status : KVT_OK;
}

void client_regions_leave(client_store *store)
{
    pthread_mutex_lock(&regions_lock);
    client_region **at = &regions;
    while (*at != NULL) {
        client_region *region = *at;
        if ((const void *)region->store != (const void *)store) {
            at = &region->next;
            continue;
        }
        region->store = NULL;
        if (region->made) {
            at = &region->next;
            continue;
        }
        *at = region->next;
        region_free(region);
    }
    pthread_mutex_unlock(&regions_lock);
}

/* Adds a region to a connected store. What fails is the caller's still. */
static kvt_status region_connect(kvt_store *handle, client_region *region)
{
    client_store *store;
    kvt_status status = client_enter(handle, &store);
    if (status == KVT_OK) status = client_restore(store, NULL);
    if (status != KVT_OK) return status;
    pthread_mutex_lock(&store->lock);
    status = region_register(store, region);
    if (status == KVT_OK) {
        region_list(region);
        regions_tell_all(store);
    }
    pthread_mutex_unlock(&store->lock);
    return status;
}

/* Whether a get, a put or a load of the store may name a region. Under store->lock. */
static bool region_is_used(client_store *store, const client_region *region)
{
    bool used = false;
    for (client_channel *channel = store->channels; channel != NULL; channel = channel->next) {
        pthread_mutex_lock(&channel->lock);
        used = used || client_transfer_names(channel, region->memory, region->bytes) ||
               (region->number != REGION_NOT_THERE && client_loads_name(channel, region->number));
        pthread_mutex_unlock(&channel->lock);
    }
    return used;
}

/* Takes a region away from its server. */
static kvt_status region_disconnect(kvt_store *handle, client_region *region)
{
    client_store *store;
    wire_message question, answer;
    kvt_status status = client_enter(handle, &store);
    if (status != KVT_OK) return status;
    pthread_mutex_lock(&store->lock);
    regions_tell_all(store); /* it is not in the list: no request names it from now on */
    if (region_is_used(store, region)) {
        status = KVT_BUSY;
    } else if (region->number != REGION_NOT_THERE) {
        wire_message_make(&question, WIRE_RELEASE, store->protocol, 1);
        question.one.value = region->number;
        status = client_ask_locked(store, &question, NULL, 0, WIRE_DONE, &answer, NULL);
        /* With its server; or as soon as that goes on. */
        if (status == KVT_E_GONE || status == KVT_E_TIMEOUT) status = KVT_OK;
    }
    if (status != KVT_OK) {
        region_list(region);
        regions_tell_all(store);
    }
    pthread_mutex_unlock(&store->lock);
    return status;
}

/* ---- public ---- */

/* Whether a store is of a parent of this process: every call of one of this process says so. Of a
 * connected one a call might wait for its server. */
static bool is_of_a_parent(kvt_store *store)
{
    static const kvt_key none;
    client_store *connected;
    if (base_store_calls_of(store) != NULL) return client_enter(store, &connected) != KVT_OK;
    return kvt_store_exists(store, &none) == KVT_E_STATE;
}

/* Memory of the right kind for the store. */
static kvt_status region_map(client_region *region, bool shared)
{
    void *memory = NULL;
    region->made = true;
    if (!shared) {
        memory =
            mmap(NULL, region->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) return KVT_E_MEMORY;
        region->memory = memory;
        return KVT_OK;
    }
    kvt_status status = wire_memory_make("kvterrace-region", region->bytes, &region->descriptor);
    if (status == KVT_OK)
        status = wire_memory_map(region->descriptor, 0, region->bytes, WIRE_SEALED_SHRINK, &memory);
    region->memory = memory;
    return status;
}

kvt_status kvt_region_make(kvt_store *store, uint64_t bytes, void **memory_out)
{
    const bool shared = client_is(store);
    if (store == NULL || memory_out == NULL || bytes == 0 || bytes > WIRE_MEMORY_MAX)
        return KVT_E_ARGUMENT;
    *memory_out = NULL;
    if (is_of_a_parent(store)) return KVT_E_STATE;
    client_region *region = malloc(sizeof *region);
    if (region == NULL) return KVT_E_MEMORY;
    *region = (client_region){.store = shared ? store : NULL,
                              .descriptor = -1,
                              .bytes = (bytes + WIRE_PAGE - 1) / WIRE_PAGE * WIRE_PAGE,
                              .number = REGION_NOT_THERE};
    kvt_status status = region_map(region, shared);
    if (status == KVT_OK && shared) status = region_connect(store, region);
    if (status != KVT_OK) {
        region_free(region);
        return status;
    }
    if (!shared) region_list(region);
    *memory_out = region->memory;
    return KVT_OK;
}

kvt_status kvt_region_add(kvt_store *store, int descriptor, uint64_t offset, uint64_t bytes,
                          void *memory)
{
    if (store == NULL || memory == NULL || bytes == 0) return KVT_E_ARGUMENT;
    const bool shared = client_is(store);
    if (is_of_a_parent(store)) return KVT_E_STATE;
    /* A server ends the session of a client that asks for parts of pages. */
    if (shared && (offset % WIRE_PAGE != 0 || bytes % WIRE_PAGE != 0)) return KVT_E_ARGUMENT;
    client_region *region = malloc(sizeof *region);
    if (region == NULL) return KVT_E_MEMORY;
    *region = (client_region){.store = shared ? store : NULL,
                              .memory = memory,
                              .offset = offset,
                              .bytes = bytes,
                              .descriptor = -1,
                              .number = REGION_NOT_THERE};
    if (!shared) {
        region_list(region);
        return KVT_OK;
    }
    region->descriptor = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
    const kvt_status status =
        region->descriptor >= 0 ? region_connect(store, region) : KVT_E_ARGUMENT;
    if (status != KVT_OK) region_free(region);
    return status;
}

kvt_status kvt_region_free(kvt_store *store, void *memory)
{
    if (memory == NULL) return KVT_E_ARGUMENT;
    if (store != NULL && is_of_a_parent(store)) return KVT_E_STATE;
    client_region *region = region_take(store, memory);
    /* It may have been made before its store was closed. */
    if (region == NULL && store != NULL) region = region_take(NULL, memory);
    if (region == NULL) return KVT_E_ARGUMENT;
    if (region->store != NULL && region->descriptor >= 0) {
        const kvt_status status = region_disconnect(store, region);
        if (status != KVT_OK) return status;
    }
    region_free(region);
    return KVT_OK;
}
