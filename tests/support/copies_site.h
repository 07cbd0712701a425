/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copies_site.h - a store with a little memory above two files: what the tests of copies and of
 * write-back share.
 */
#ifndef TESTS_COPIES_SITE_H
#define TESTS_COPIES_SITE_H

#include "store_support.h"

enum { DISKS = 2, ENTRIES = 16, DRAM_ENTRIES = 6 };

/* A record of the tests: 32 KiB of elements, with headers and padding. */
#define RECORD_BYTES (44u * 1024u)

typedef struct site {
    char folder[64];
    char catalog[96];
    char paths[DISKS][96];
    support_fault dram;
    support_fault disks[DISKS];
    kvt_device_config memory;
    kvt_device_config files[DISKS];
    kvt_store_options options;
    kvt_store *store;
} site;

static const char *const disk_names[DISKS] = {"disk0", "disk1"};

static inline void site_open(site *s)
{
    assert_int_equal(kvt_open(&s->options, &s->store, NULL, 0), KVT_OK);
}

/* DRAM for a few entries above two disks of so many bytes. */
static inline void site_make(site *s, uint64_t disk_bytes)
{
    support_make_folder(s->folder, sizeof s->folder);
    snprintf(s->catalog, sizeof s->catalog, "%s/catalog.db", s->folder);
    kvt_store_options_init(&s->options);
    s->options.put_staging_bytes = 0; /* a put says how its write went */
    s->options.staging_bytes = 8 << 20;
    s->options.catalog_path = s->catalog;
    s->options.policy = "lru";
    s->options.tick_seconds = 0;
    s->options.persist_bytes_per_s = 0; /* but where a test asks for it */
    /* A plan counts on a little more than a record comes out with. */
    s->dram = (support_fault){.capacity_bytes = DRAM_ENTRIES * RECORD_BYTES + 16 * 1024};
    s->memory = support_fault_config(&s->dram, "memory");
    for (int i = 0; i < DISKS; i++) {
        snprintf(s->paths[i], sizeof s->paths[i], "%s/disk%d", s->folder, i);
        s->disks[i] = (support_fault){.capacity_bytes = disk_bytes, .path = s->paths[i]};
        s->files[i] = support_fault_config(&s->disks[i], disk_names[i]);
    }
    s->options.tiers[KVT_TIER_DRAM] =
        (kvt_tier_options){.devices = &s->memory, .device_count = 1, .unit_bytes = 4096};
    s->options.tiers[KVT_TIER_SSD] = (kvt_tier_options){
        .devices = s->files, .device_count = DISKS, .unit_bytes = 4096, .weights_fixed = true};
    site_open(s);
}

static inline void site_end(site *s)
{
    kvt_close(s->store);
    support_remove_folder(s->folder);
}

static inline void maintain(site *s)
{
    assert_int_equal(kvt_maintain(s->store, NULL), KVT_OK);
    assert_int_equal(kvt_flush(s->store), KVT_OK);
}

static inline uint64_t ssd_written(site *s)
{
    return support_stats(s->store).tiers[KVT_TIER_SSD].bytes_written;
}

static inline void put_some(site *s, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++)
        assert_int_equal(support_put(s->store, i), KVT_OK);
    assert_int_equal(kvt_flush(s->store), KVT_OK);
}

static inline void check_budget(site *s)
{
    kvt_store_stats stats = support_stats(s->store);
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++)
        assert_true(stats.tiers[tier].used_bytes <= stats.tiers[tier].capacity_bytes);
    assert_true(stats.copy_bytes <= stats.tiers[KVT_TIER_SSD].used_bytes);
}

#endif
