/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_mooncake.h - what a test tells the Mooncake Store of fake_mooncake.c, which it finds by
 * dlsym.
 *
 * Thread rule: any thread.
 */
#ifndef TESTS_FAKE_MOONCAKE_H
#define TESTS_FAKE_MOONCAKE_H

#include <stddef.h>
#include <stdint.h>

typedef enum fake_mooncake_mode {
    FAKE_MOONCAKE_GOOD = 0,
    FAKE_MOONCAKE_SILENT = 1, /* no call returns */
    FAKE_MOONCAKE_GONE = 2,   /* every call fails */
    FAKE_MOONCAKE_FULL = 3    /* every put does, for want of room */
} fake_mooncake_mode;

void fake_mooncake_set(fake_mooncake_mode mode);

/* Calls that have not returned. */
int fake_mooncake_held(void);

/* The C interface, as remote/mooncake_library.h has it. */
void *mooncake_store_create(void);
void mooncake_store_destroy(void *store);
int mooncake_store_setup(void *store, const char *own, const char *metadata, uint64_t segment_bytes,
                         uint64_t buffer_bytes, const char *protocol, const char *devices,
                         const char *master);
int mooncake_store_register_buffer(void *store, void *buffer, size_t bytes);
int mooncake_store_unregister_buffer(void *store, void *buffer);
int mooncake_store_batch_put_from(void *store, const char **keys, void **buffers,
                                  const size_t *bytes, size_t count, const void *replication,
                                  int *results);
int mooncake_store_batch_get_into(void *store, const char **keys, void **buffers,
                                  const size_t *bytes, size_t count, int64_t *results);
int mooncake_store_batch_is_exist(void *store, const char **keys, size_t count, int *results);
int64_t mooncake_store_get_size(void *store, const char *key);
int mooncake_store_remove(void *store, const char *key, int force);

#endif
