/* SPDX-License-Identifier: Apache-2.0 */
/*
 * follow_internal.h - a follower: what it holds, and what its files share.
 *
 *     follow.c           opens and closes; the table of calls, and those that are refused
 *     follow_look.c      rows of the catalog, and the calls that rows answer
 *     follow_devices.c   devices and bases
 *     follow_get.c       gets
 *
 * Lock: store->lock, over a row's lookup and the opening of catalog, devices and bases; never over
 * the read or the decoding of a record.
 */
#ifndef STORE_FOLLOW_INTERNAL_H
#define STORE_FOLLOW_INTERNAL_H

#include "base/fork_guard.h"
#include "base/handle_calls.h"
#include "store/catalog/catalog.h"
#include "store/learn/bases.h"
#include "store/read/queue_internal.h"

#include <pthread.h>
#include <sys/stat.h>

#define FOLLOW_PAUSE_NS UINT64_C(1000000000) /* between two looks for devices or bases */

#define FOLLOW_SPARE 4u /* records' memory that is kept */

/* The devices as they were found. Gets hold them over their reads; the last one closes them. */
typedef struct follow_devices {
    tiers_pool *pool; /* NULL: none is there */
    uint32_t users;   /* under the store's lock: the store, and each get */
    uint8_t pool_id[16];
    uint32_t count;
    struct {
        uint64_t capacity_bytes; /* 0: it is absent, or not this store's */
        dev_t device;
        ino_t inode;
    } members[TIERS_MEMBERS_MAX];
} follow_devices;

/* Memory for a record, at TIERS_GRAIN_BYTES. */
typedef struct follow_buffer {
    void *memory;
    uint64_t bytes;
} follow_buffer;

typedef struct follow_store {
    const base_store_calls *elsewhere; /* first, as in every handle */
    uint32_t forks;
    /* Fixed: the owner's configuration, as far as a follower needs it. */
    char *catalog_path;
    uint64_t get_deadline_ns; /* a duration; KVT_NO_DEADLINE: none */
    bool within;              /* its owner is of this process (early.h) */
    uint32_t unit_bytes;
    uint32_t device_count;
    kvt_device_config configs[TIERS_MEMBERS_MAX];
    struct {
        char *name, *path, *key_file, *key_command;
    } texts[TIERS_MEMBERS_MAX]; /* of configs */

    pthread_mutex_t lock;       /* of all that follows */
    store_catalog *catalog;     /* NULL: it could not be read when it was last looked at */
    kvt_status catalog_failure; /* why */
    follow_devices *devices;
    uint64_t devices_due_ns, bases_due_ns; /* before that they are not looked for again */
    /* Only added to: what is below base_count stays as it is until the close. */
    const transform_basis *bases[STORE_BASES_MAX];
    store_basis *owned[STORE_BASES_MAX];
    uint32_t base_count;
    follow_buffer spare[FOLLOW_SPARE]; /* of gets that have ended: fresh memory costs page faults */
    kvt_queue *queues;                 /* that are open */
    uint64_t gets, hits, misses, timeouts, load_failures, tokens_refused, bases_lacking, bytes_read;
} follow_store;

_Static_assert(offsetof(follow_store, forks) == offsetof(base_handle, forks), "a handle");

/* A row as it was when it was looked at. */
typedef struct follow_row {
    catalog_row row; /* its pointers are NULL */
    kvt_layout groups[KVT_GROUPS_MAX];
    uint64_t source_bytes;
    bool wants_location;
    tiers_location *location; /* the holder's to free; NULL where it was not asked for */
    kvt_status status;
} follow_row;

/* Whether calls may go on: the handle, or NULL in a child of fork. */
static inline follow_store *follow_enter(kvt_store *handle)
{
    follow_store *store = (follow_store *)(void *)handle;
    return fork_guard_is_current(store->forks) ? store : NULL;
}

/* ---- follow_look.c ---- */

/* Looks a key's row up; the catalog is opened anew where it has moved. The lock is held. KVT_OK: a
 * row that shows; KVT_MISS; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status follow_look(follow_store *store, const kvt_key *key, follow_row *out);

/* Opens the catalog where it is closed or has moved. The lock is held. */
KVT_NODISCARD kvt_status follow_catalog(follow_store *store, char *message, size_t size);

/* Whether a get can decode a row: it needs no basis, or one that is there. The lock is held. */
bool follow_has_basis(follow_store *store, kvt_variant variant);

kvt_status follow_exists(kvt_store *handle, const kvt_key *key);
kvt_status follow_describe(kvt_store *handle, const kvt_key *key, kvt_description *out);
kvt_status follow_match(kvt_store *handle, const kvt_key *keys, size_t count,
                        const kvt_match *match, size_t *matched_out);

/* ---- follow_devices.c; the lock is held, but for follow_devices_close ---- */

/* Opens the devices that are there, with labels of the catalog's store. message: of the first that
 * cannot be used; empty where all can. KVT_OK, also when none is there; KVT_E_UNSUPPORTED;
 * KVT_E_MEMORY. */
KVT_NODISCARD kvt_status follow_devices_open(const follow_store *store,
                                             follow_devices **devices_out, char *message,
                                             size_t size);

/* Whether the devices are not those that their paths lead to now, or one is absent. */
bool follow_devices_moved(const follow_store *store, const follow_devices *devices);

/* Whether an object lies inside of them. */
bool follow_devices_hold(const follow_devices *devices, const tiers_location *location);

/* Takes a user from the devices. True: it was the last, and the caller closes them, unlocked. */
bool follow_devices_leave(follow_devices *devices);
void follow_devices_close(follow_devices *devices);

/* Takes bases beside the catalog that are not there yet. */
void follow_bases_look(follow_store *store);

/* ---- follow_get.c ---- */

kvt_status follow_get(kvt_store *handle, const kvt_key *key, const kvt_view *view,
                      uint64_t deadline_ns, kvt_get_info *info);
kvt_status follow_prefix_get(kvt_store *handle, const kvt_key *keys, const kvt_view *const *views,
                             size_t count, uint64_t deadline_ns, size_t *loaded_out);

#endif
