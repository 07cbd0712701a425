/* SPDX-License-Identifier: Apache-2.0 */
/*
 * queue_site.h - a store of memory and a queue on it, one at a time: over a device that fails as
 * the test says, whose every get is a read, or over plain memory. TEST_EACH(NULL, queue_site_close)
 * closes both after each case.
 */
#ifndef TESTS_QUEUE_SITE_H
#define TESTS_QUEUE_SITE_H

#include "queued.h"
#include "store_support.h"

#include <kvterrace/connect.h>

#define SECOND_NS UINT64_C(1000000000)

static kvt_store *store;
static kvt_queue *queue;
static support_fault fault; /* of the device */
static void *queue_site_regions[64];
static uint32_t queue_site_region_count;

/* Options of such a store. Where a device may fail, a put says how its write went. */
static inline kvt_store_options queue_site_options(bool device)
{
    static kvt_device_config config;
    kvt_store_options options;
    kvt_store_options_init(&options);
    if (device) options.limits.put_staging_bytes = 0;
    options.limits.staging_bytes = 16 << 20;
    options.policy = "lru";
    options.limits.tick_seconds = 0;
    options.lossless = false;
    fault = (support_fault){.capacity_bytes = 64 << 20};
    config = support_fault_config(&fault, "mem");
    if (device)
        options.tiers[KVT_TIER_DRAM] = (kvt_tier_options){.devices = &config, .device_count = 1};
    else
        options.tiers[KVT_TIER_DRAM].capacity_bytes = fault.capacity_bytes;
    return options;
}

static inline kvt_queue *queue_site_queue(uint32_t threads, uint32_t depth)
{
    const kvt_queue_options options = {
        .struct_size = sizeof options, .threads = threads, .depth = depth};
    kvt_queue *opened = NULL;
    assert_ok(kvt_queue_open(store, &options, &opened));
    return opened;
}

/* Opens the store, puts the first entries and opens a queue; threads 0: no queue. */
static inline void queue_site_open(bool device, uint32_t entries, uint32_t threads)
{
    const kvt_store_options options = queue_site_options(device);
    assert_ok(kvt_store_open(&options, &store, NULL, 0));
    support_puts(store, 0, entries);
    if (threads > 0) queue = queue_site_queue(threads, 0);
}

static inline void queue_site_fault(tiers_fault_rule rule)
{
    assert_ok(tiers_fault_add(fault.device, &rule));
}

static inline kvt_queue_stats queue_site_stats(void)
{
    kvt_queue_stats stats = {.struct_size = sizeof stats};
    assert_ok(kvt_queue_stats_get(queue, &stats));
    return stats;
}

/* Memory that loads of a lent store may name, until queue_site_close. */
static inline void *queue_site_memory(uint64_t bytes)
{
    void **memory = &queue_site_regions[queue_site_region_count];
    assert_true(queue_site_region_count < 64);
    assert_ok(kvt_region_make(store, bytes, memory));
    queue_site_region_count++;
    return *memory;
}

static inline int queue_site_close(void **state)
{
    (void)state;
    /* A case that failed may have left its device silent. */
    if (store != NULL && fault.device != NULL) tiers_fault_clear(fault.device);
    if (queue != NULL) kvt_queue_close(queue);
    kvt_store_close(store);
    while (queue_site_region_count > 0)
        (void)kvt_region_free(NULL, queue_site_regions[--queue_site_region_count]);
    queue = NULL;
    store = NULL;
    fault.device = NULL;
    return 0;
}

#endif
