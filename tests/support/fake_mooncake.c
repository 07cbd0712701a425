/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_mooncake.c - what tests take for libmooncake_store.so: a store of Mooncake in the memory of
 * this process, with the names and the statuses of its C interface. It keeps an object that is put
 * again as it is, reads into registered memory alone, and is told by
 * fake_mooncake_set what it does wrong.
 *
 * Thread rule: any thread.
 */
#include "fake_mooncake.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FAKE_OBJECTS 8192u
#define FAKE_BUFFERS 64u

typedef struct fake_object {
    char *key, *value;
    size_t bytes;
} fake_object;

static pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;
static fake_object fake_objects[FAKE_OBJECTS]; /* open addressing; a removed one keeps its key */
static struct {
    char *begin;
    size_t bytes;
} fake_buffers[FAKE_BUFFERS];
static atomic_int fake_mode, fake_held;

void fake_mooncake_set(fake_mooncake_mode mode)
{
    atomic_store(&fake_mode, mode);
}

int fake_mooncake_held(void)
{
    return atomic_load(&fake_held);
}

/* Holds a call as long as the store is silent. Nonzero: it fails instead. */
static int fake_pass(void)
{
    const struct timespec step = {.tv_nsec = 1000000};
    atomic_fetch_add(&fake_held, 1);
    while (atomic_load(&fake_mode) == FAKE_MOONCAKE_SILENT)
        nanosleep(&step, NULL);
    atomic_fetch_sub(&fake_held, 1);
    return atomic_load(&fake_mode) == FAKE_MOONCAKE_GONE ? -900 : 0;
}

/* The object of a key, or the place for it; lock held. */
static fake_object *fake_find(const char *key)
{
    uint64_t hash = 14695981039346656037u;
    for (const char *at = key; *at != '\0'; at++)
        hash = (hash ^ (uint8_t)*at) * UINT64_C(1099511628211);
    for (uint64_t i = 0; i < FAKE_OBJECTS; i++) {
        fake_object *object = &fake_objects[(hash + i) % FAKE_OBJECTS];
        if (object->key == NULL || strcmp(object->key, key) == 0) return object;
    }
    abort();
}

static int fake_is_registered(const char *at, size_t bytes)
{
    for (uint32_t i = 0; i < FAKE_BUFFERS; i++)
        if (fake_buffers[i].begin != NULL && at >= fake_buffers[i].begin &&
            at + bytes <= fake_buffers[i].begin + fake_buffers[i].bytes)
            return 1;
    return 0;
}

void *mooncake_store_create(void)
{
    return malloc(1);
}

void mooncake_store_destroy(void *store)
{
    free(store);
}

int mooncake_store_setup(void *store, const char *own, const char *metadata, uint64_t segment_bytes,
                         uint64_t buffer_bytes, const char *protocol, const char *devices,
                         const char *master)
{
    (void)segment_bytes;
    (void)buffer_bytes;
    (void)devices;
    const int failed = fake_pass();
    return failed != 0 || store == NULL || own[0] == '\0' || metadata[0] == '\0' ||
                   protocol[0] == '\0' || master[0] == '\0'
               ? -1
               : 0;
}

int mooncake_store_register_buffer(void *store, void *buffer, size_t bytes)
{
    int status = -1;
    (void)store;
    pthread_mutex_lock(&fake_lock);
    for (uint32_t i = 0; i < FAKE_BUFFERS && status != 0; i++) {
        if (fake_buffers[i].begin != NULL) continue;
        fake_buffers[i].begin = buffer;
        fake_buffers[i].bytes = bytes;
        status = 0;
    }
    pthread_mutex_unlock(&fake_lock);
    return status;
}

int mooncake_store_unregister_buffer(void *store, void *buffer)
{
    int status = -1;
    (void)store;
    pthread_mutex_lock(&fake_lock);
    for (uint32_t i = 0; i < FAKE_BUFFERS; i++) {
        if (fake_buffers[i].begin != buffer) continue;
        fake_buffers[i].begin = NULL;
        status = 0;
    }
    pthread_mutex_unlock(&fake_lock);
    return status;
}

static int fake_put(const char *key, const void *buffer, size_t bytes)
{
    if (!fake_is_registered(buffer, bytes)) return -600;
    fake_object *object = fake_find(key);
    if (object->value != NULL) return 0; /* it stays as it is */
    if (object->key == NULL) object->key = strdup(key);
    object->value = malloc(bytes + 1);
    if (object->key == NULL || object->value == NULL) return -200;
    memcpy(object->value, buffer, bytes);
    object->bytes = bytes;
    return 0;
}

int mooncake_store_batch_put_from(void *store, const char **keys, void **buffers,
                                  const size_t *bytes, size_t count, const void *replication,
                                  int *results)
{
    (void)store;
    (void)replication;
    const int failed = fake_pass();
    pthread_mutex_lock(&fake_lock);
    for (size_t i = 0; i < count; i++) {
        results[i] = failed;
        if (failed != 0) continue;
        results[i] = atomic_load(&fake_mode) == FAKE_MOONCAKE_FULL
                         ? -200
                         : fake_put(keys[i], buffers[i], bytes[i]);
    }
    pthread_mutex_unlock(&fake_lock);
    return 0;
}

static int64_t fake_get(const char *key, void *buffer, size_t bytes)
{
    const fake_object *object = fake_find(key);
    if (object->value == NULL) return -704;
    if (object->bytes > bytes || !fake_is_registered(buffer, bytes)) return -600;
    memcpy(buffer, object->value, object->bytes);
    return (int64_t)object->bytes;
}

int mooncake_store_batch_get_into(void *store, const char **keys, void **buffers,
                                  const size_t *bytes, size_t count, int64_t *results)
{
    (void)store;
    const int failed = fake_pass();
    pthread_mutex_lock(&fake_lock);
    for (size_t i = 0; i < count; i++)
        results[i] = failed != 0 ? failed : fake_get(keys[i], buffers[i], bytes[i]);
    pthread_mutex_unlock(&fake_lock);
    return 0;
}

int mooncake_store_batch_is_exist(void *store, const char **keys, size_t count, int *results)
{
    (void)store;
    const int failed = fake_pass();
    pthread_mutex_lock(&fake_lock);
    for (size_t i = 0; i < count; i++)
        results[i] = failed != 0 ? -1 : fake_find(keys[i])->value != NULL;
    pthread_mutex_unlock(&fake_lock);
    return 0;
}

int64_t mooncake_store_get_size(void *store, const char *key)
{
    (void)store;
    int64_t bytes = fake_pass();
    pthread_mutex_lock(&fake_lock);
    const fake_object *object = fake_find(key);
    if (bytes == 0) bytes = object->value != NULL ? (int64_t)object->bytes : -704;
    pthread_mutex_unlock(&fake_lock);
    return bytes;
}

int mooncake_store_remove(void *store, const char *key, int force)
{
    (void)store;
    (void)force;
    int status = fake_pass();
    pthread_mutex_lock(&fake_lock);
    fake_object *object = fake_find(key);
    if (status == 0 && object->value == NULL) status = -704;
    if (status == 0) {
        free(object->value);
        object->value = NULL;
    }
    pthread_mutex_unlock(&fake_lock);
    return status;
}
