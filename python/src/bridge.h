/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bridge.h - handles that make a store, queue, event reader or policy safe to hand to Python, and
 * loops that make one call of Python into many of C.
 *
 * A handle outlives its object. Each guarded call counts itself in and out within C, so that no
 * Python code, a signal handler included, ever runs between the two. An end of the object keeps
 * further calls out, waits for those inside and then makes the call that ends it; calls from then
 * on find no object. In a child of fork a handle has no object and its end does nothing, because
 * calls that were inside at the fork never come out there.
 *
 * Thread rule: any thread; the calls are made without the interpreter's lock.
 */
#ifndef KVTERRACE_BRIDGE_H
#define KVTERRACE_BRIDGE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wunused-function"
#endif

typedef struct kvtpy_handle {
    void *_Atomic object; /* NULL once its end has begun */
    atomic_long users;
    pid_t process; /* that opened it */
    pthread_mutex_t lock;
    pthread_cond_t left;
    pthread_mutex_t alone; /* held by calls that exclude each other */
} kvtpy_handle;

static void kvtpy_leave_shared(kvtpy_handle *handle)
{
    if (atomic_fetch_sub(&handle->users, 1) != 1 || atomic_load(&handle->object) != NULL) return;
    pthread_mutex_lock(&handle->lock);
    pthread_cond_broadcast(&handle->left);
    pthread_mutex_unlock(&handle->lock);
}

static void *kvtpy_enter_shared(kvtpy_handle *handle)
{
    if (handle == NULL || handle->process != getpid()) return NULL;
    atomic_fetch_add(&handle->users, 1);
    void *object = atomic_load(&handle->object);
    if (object == NULL) kvtpy_leave_shared(handle);
    return object;
}

static void *kvtpy_enter_alone(kvtpy_handle *handle)
{
    void *object = kvtpy_enter_shared(handle);
    if (object != NULL) pthread_mutex_lock(&handle->alone);
    return object;
}

static void kvtpy_leave_alone(kvtpy_handle *handle)
{
    pthread_mutex_unlock(&handle->alone);
    kvtpy_leave_shared(handle);
}

static kvtpy_handle *kvtpy_new(void *object)
{
    kvtpy_handle *handle = calloc(1, sizeof *handle);
    if (handle == NULL) return NULL;
    atomic_init(&handle->object, object);
    atomic_init(&handle->users, 0);
    handle->process = getpid();
    pthread_mutex_init(&handle->lock, NULL);
    pthread_cond_init(&handle->left, NULL);
    pthread_mutex_init(&handle->alone, NULL);
    return handle;
}

/* Releases a handle whose object has ended, or that a child of fork has inherited. */
static void kvtpy_free(kvtpy_handle *handle)
{
    free(handle);
}

/* Takes the object out, waits for the calls inside, and returns it: the caller's to end. NULL when
 * another thread has taken it, and in a child of fork. */
static void *kvtpy_take(kvtpy_handle *handle)
{
    if (handle == NULL || handle->process != getpid()) return NULL;
    void *object = atomic_exchange(&handle->object, NULL);
    if (object == NULL) return NULL;
    pthread_mutex_lock(&handle->lock);
    while (atomic_load(&handle->users) != 0)
        pthread_cond_wait(&handle->left, &handle->lock);
    pthread_mutex_unlock(&handle->lock);
    return object;
}

static void kvtpy_store_close(kvtpy_handle *handle)
{
    kvt_store_close(kvtpy_take(handle));
}

static void kvtpy_queue_close(kvtpy_handle *handle)
{
    kvt_queue_close(kvtpy_take(handle));
}

static void kvtpy_events_close(kvtpy_handle *handle)
{
    kvt_events_close(kvtpy_take(handle));
}

static void kvtpy_policy_close(kvtpy_handle *handle)
{
    kvt_policy_close(kvtpy_take(handle));
}

/* 1: open; 0: closed; -1: of another process. */
static int kvtpy_state(kvtpy_handle *handle)
{
    if (handle->process != getpid()) return -1;
    return atomic_load(&handle->object) != NULL;
}

/* A queue of a store, opened as one call of the store. */
static kvt_status kvtpy_queue_open(kvtpy_handle *store, const kvt_queue_options *options,
                                   kvtpy_handle **handle_out)
{
    *handle_out = NULL;
    void *object = kvtpy_enter_shared(store);
    if (object == NULL) return KVT_E_STATE;
    kvt_queue *queue = NULL;
    kvt_status status = kvt_queue_open(object, options, &queue);
    kvtpy_leave_shared(store);
    if (status != KVT_OK) return status;
    *handle_out = kvtpy_new(queue);
    if (*handle_out != NULL) return KVT_OK;
    kvt_queue_close(queue);
    return KVT_E_MEMORY;
}

/* A lease of a store without an owner: the twin of kvt_lease_begin with NULL there. */
static kvt_status kvtpy_lease(kvtpy_handle *store, const uint8_t *keys, size_t count,
                              uint64_t until_ns, bool *held_out, uint64_t *lease_out)
{
    void *object = kvtpy_enter_shared(store);
    if (object == NULL) return KVT_E_STATE;
    kvt_status status =
        kvt_lease_begin(object, NULL, (const kvt_key *)keys, count, until_ns, held_out, lease_out);
    kvtpy_leave_shared(store);
    return status;
}

typedef struct kvtpy_range {
    uintptr_t from, to;
} kvtpy_range;

static int kvtpy_range_compare(const void *left, const void *right)
{
    const kvtpy_range *a = left, *b = right;
    return (a->from > b->from) - (a->from < b->from);
}

/* Whether two of `count` buffers share a byte: 1, 0, or -1 for want of memory. The numbers are as
 * of kvtpy_get_many. */
static int kvtpy_overlap(uintptr_t addresses, uintptr_t bytes, size_t count)
{
    const uintptr_t *from = (const uintptr_t *)addresses;
    const uint64_t *size = (const uint64_t *)bytes;
    size_t ordered = 1;
    while (ordered < count && from[ordered - 1] + size[ordered - 1] <= from[ordered])
        ordered++;
    if (ordered >= count) return 0;
    kvtpy_range *ranges = malloc(count * sizeof *ranges);
    if (ranges == NULL) return -1;
    size_t kept = 0;
    for (size_t i = 0; i < count; i++)
        if (size[i] != 0) ranges[kept++] = (kvtpy_range){from[i], from[i] + size[i]};
    qsort(ranges, kept, sizeof *ranges, kvtpy_range_compare);
    int overlap = 0;
    for (size_t i = 1; i < kept && !overlap; i++)
        overlap = ranges[i].from < ranges[i - 1].to;
    free(ranges);
    return overlap;
}

/* Marks the keys whose entries lie on devices, or in memory with so many bytes at least. Returns
 * how many. */
static size_t kvtpy_find_far(kvtpy_handle *store, const uint8_t *keys, uintptr_t bytes,
                             size_t count, uint64_t large_bytes, uint8_t *far_out)
{
    size_t far = 0;
    void *object = kvtpy_enter_shared(store);
    for (size_t i = 0; i < count && object != NULL; i++) {
        kvt_description is = {.struct_size = sizeof is};
        if (kvt_store_describe(object, (const kvt_key *)keys + i, &is) != KVT_OK) continue;
        far_out[i] = is.tier == KVT_TIER_SSD || ((const uint64_t *)bytes)[i] >= large_bytes;
        far += far_out[i];
    }
    if (object != NULL) kvtpy_leave_shared(store);
    return far;
}

/*
 * kvt_store_get of one key after the other.
 *   keys, addresses, bytes   count of each; the latter two as numbers, since native.c makes them
 *   passed                   count of marks, nonzero where a key is passed over; or NULL
 *   statuses                 count of them; one that is not reached, because the store closes, is
 *                            KVT_E_STATE
 * Returns how many are KVT_OK.
 */
static size_t kvtpy_get_many(kvtpy_handle *store, const uint8_t *keys, uintptr_t addresses,
                             uintptr_t bytes, size_t count, uint64_t deadline_ns,
                             const uint8_t *passed, int *statuses)
{
    size_t loaded = 0;
    void *object = kvtpy_enter_shared(store);
    for (size_t i = 0; i < count; i++) {
        if (passed != NULL && passed[i] != 0) continue;
        statuses[i] = KVT_E_STATE;
        if (object == NULL) continue;
        statuses[i] =
            kvt_store_get(object, (const kvt_key *)keys + i,
                          KVT_PACKED(((void *const *)addresses)[i], ((const uint64_t *)bytes)[i]),
                          deadline_ns, NULL);
        loaded += statuses[i] == KVT_OK;
    }
    if (object != NULL) kvtpy_leave_shared(store);
    return loaded;
}

/* For the bench: `rounds` rounds of gets of all keys, `batch` keys after each other or one by one,
 * as a program in C would make them. Returns the gets that were KVT_OK. */
static size_t kvtpy_bench_gets(kvtpy_handle *store, const uint8_t *keys, void *const *addresses,
                               const uint64_t *bytes, size_t count, size_t rounds)
{
    size_t loaded = 0;
    void *object = kvtpy_enter_shared(store);
    if (object == NULL) return 0;
    for (size_t round = 0; round < rounds; round++)
        for (size_t i = 0; i < count; i++)
            loaded +=
                kvt_store_get(object, (const kvt_key *)keys + i, KVT_PACKED(addresses[i], bytes[i]),
                              KVT_STORE_DEADLINE, NULL) == KVT_OK;
    kvtpy_leave_shared(store);
    return loaded;
}

/* For the bench: memcpy of `count` pieces, from sources that are `step` bytes apart. */
static void kvtpy_bench_copies(void *const *targets, const void *source, size_t step, size_t bytes,
                               size_t count)
{
    for (size_t i = 0; i < count; i++)
        memcpy(targets[i], (const char *)source + i * step, bytes);
}

static int kvtpy_policy_resident(kvtpy_handle *handle, uint64_t entry)
{
    void *object = kvtpy_enter_alone(handle);
    if (object == NULL) return -1;
    int option = kvt_policy_option_get(object, entry);
    kvtpy_leave_alone(handle);
    return option;
}

/* The rest of this file is cffi's, which reads it between the marks; C has all of it above. */
#if 0
/* cdef: from here */
typedef struct kvtpy_handle kvtpy_handle;
kvtpy_handle *kvtpy_new(void *object);
void kvtpy_free(kvtpy_handle *handle);
void kvtpy_store_close(kvtpy_handle *handle);
void kvtpy_queue_close(kvtpy_handle *handle);
void kvtpy_events_close(kvtpy_handle *handle);
void kvtpy_policy_close(kvtpy_handle *handle);
int kvtpy_state(kvtpy_handle *handle);
kvt_status kvtpy_queue_open(kvtpy_handle *store, const kvt_queue_options *options,
                            kvtpy_handle **handle_out);
kvt_status kvtpy_lease(kvtpy_handle *store, const uint8_t *keys, size_t count, uint64_t until_ns,
                       bool *held_out, uint64_t *lease_out);
int kvtpy_overlap(uintptr_t addresses, uintptr_t bytes, size_t count);
size_t kvtpy_get_many(kvtpy_handle *store, const uint8_t *keys, uintptr_t addresses,
                      uintptr_t bytes, size_t count, uint64_t deadline_ns, const uint8_t *passed,
                      int *statuses);
size_t kvtpy_find_far(kvtpy_handle *store, const uint8_t *keys, uintptr_t bytes, size_t count,
                      uint64_t large_bytes, uint8_t *far_out);
size_t kvtpy_bench_gets(kvtpy_handle *store, const uint8_t *keys, void *const *addresses,
                        const uint64_t *bytes, size_t count, size_t rounds);
void kvtpy_bench_copies(void *const *targets, const void *source, size_t step, size_t bytes,
                        size_t count);
int kvtpy_policy_resident(kvtpy_handle *handle, uint64_t entry);
/* cdef: to here */
#endif

#endif
