/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mooncake_library.h - the C interface of Mooncake Store, by libmooncake_store.so (built with
 * WITH_STORE_C_SHARED), which is loaded when a client is opened. The prototypes are ours: a host
 * without the library needs none of its headers.
 *
 * Its calls block and have no deadline. Statuses are 0 or a number of bytes, else negative.
 *
 * Thread rule: any thread, once mooncake_library_get has returned.
 */
#ifndef REMOTE_MOONCAKE_LIBRARY_H
#define REMOTE_MOONCAKE_LIBRARY_H

#include <stddef.h>
#include <stdint.h>

typedef void *mooncake_store;

enum {
    MOONCAKE_FULL = -200,      /* no segment has room */
    MOONCAKE_NOT_READY = -703, /* the object is being written */
    MOONCAKE_NOT_FOUND = -704, /* no such object */
};

/* The functions that are used, as (result, name, arguments). */
#define MOONCAKE_CALLS(CALL)                                                                       \
    CALL(mooncake_store, create, (void))                                                           \
    CALL(void, destroy, (mooncake_store store))                                                    \
    CALL(int, setup,                                                                               \
         (mooncake_store store, const char *local_hostname, const char *metadata_server,           \
          uint64_t segment_bytes, uint64_t buffer_bytes, const char *protocol,                     \
          const char *devices, const char *master))                                                \
    CALL(int, register_buffer, (mooncake_store store, void *buffer, size_t bytes))                 \
    CALL(int, unregister_buffer, (mooncake_store store, void *buffer))                             \
    CALL(int, batch_put_from,                                                                      \
         (mooncake_store store, const char **keys, void **buffers, const size_t *bytes,            \
          size_t count, const void *replication, int *results))                                    \
    CALL(int, batch_get_into,                                                                      \
         (mooncake_store store, const char **keys, void **buffers, const size_t *bytes,            \
          size_t count, int64_t *results))                                                         \
    CALL(int, batch_is_exist,                                                                      \
         (mooncake_store store, const char **keys, size_t count, int *results))                    \
    CALL(int64_t, get_size, (mooncake_store store, const char *key))                               \
    CALL(int, remove, (mooncake_store store, const char *key, int force))

#define MOONCAKE_POINTER(result, name, arguments) result(*name) arguments;
typedef struct mooncake_library {
    MOONCAKE_CALLS(MOONCAKE_POINTER)
} mooncake_library;
#undef MOONCAKE_POINTER

/* NULL: there is no such library, or it lacks a function. */
const mooncake_library *mooncake_library_get(void);

#endif
