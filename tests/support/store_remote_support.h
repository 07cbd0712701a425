/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_remote_support.h - stores that share an engine in this process's memory, and its clearing.
 */
#ifndef SUPPORT_STORE_REMOTE_SUPPORT_H
#define SUPPORT_STORE_REMOTE_SUPPORT_H

#include "store_support.h"

#include "base/clock.h"
#include "remote/remote_memory.h"
#include "store/hosts/remote_tier.h"

#include <kvterrace/remote.h>

#define ENGINE "engine"
#define COUNT  20u /* entries that put_all puts */

static inline kvt_remote_options remote_options(kvt_publish publish)
{
    kvt_remote_options remote;
    kvt_remote_options_init(&remote);
    remote.backend = "memory";
    remote.address = ENGINE;
    remote.namespace_text = "model@1";
    remote.publish = publish;
    remote.deadline_seconds = 20;
    return remote;
}

/* A store of memory whose policy is named; remote may be NULL. */
static inline kvt_store *open_policy(const kvt_remote_options *remote, const char *policy,
                                     uint64_t dram_bytes)
{
    kvt_store *store = NULL;
    char message[256];
    kvt_store_options options = support_options(4 << 20, policy);
    options.tiers[KVT_TIER_DRAM].capacity_bytes = dram_bytes;
    options.remote = remote;
    const kvt_status status = kvt_store_open(&options, &store, message, sizeof message);
    if (status != KVT_OK) print_message("%s\n", message);
    assert_ok(status);
    return store;
}

static inline kvt_store *open_with(const kvt_remote_options *remote)
{
    return open_policy(remote, "lru", 8 << 20);
}

static inline kvt_store *open_mode(kvt_publish publish)
{
    const kvt_remote_options remote = remote_options(publish);
    return open_with(&remote);
}

static inline kvt_remote_stats stats_of(kvt_store *store)
{
    kvt_remote_stats stats = {.struct_size = sizeof stats};
    assert_ok(kvt_remote_stats_get(store, &stats));
    return stats;
}

/* The epoch that copies of a key have now; one that is absent is drawn. */
static inline uint64_t epoch_of(const kvt_key *key)
{
    kvt_store *store = open_mode(KVT_PUBLISH_NONE);
    remote_epochs *epochs = &store->remote->epochs;
    epochs_asking asking = {.creates = true};
    uint64_t epoch = 0;
    epochs_want(store->remote, key, 0, &asking, KVT_NO_DEADLINE);
    assert_true(asking.count != 0);
    epochs_run(store->remote, &asking, KVT_NO_DEADLINE);
    assert_int_equal(epochs_get(epochs, key, 0, base_clock_ns(), &epoch), EPOCH_KNOWN);
    kvt_store_close(store);
    return epoch;
}

static inline void put_all(kvt_store *store)
{
    support_puts(store, 0, COUNT);
    assert_ok(kvt_remote_flush(store, KVT_NO_DEADLINE));
}

static inline int clear(void **state)
{
    (void)state;
    remote_memory_clear(ENGINE);
    remote_memory_limit(ENGINE, 0);
    return 0;
}

#endif
