/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copies_site.h - a store with a little memory above two files: what the tests of copies and of
 * write-back share.
 */
#ifndef TESTS_COPIES_SITE_H
#define TESTS_COPIES_SITE_H

#include "store_site.h"

enum { DISKS = 2, ENTRIES = 16, DRAM_ENTRIES = 6 };

/* A record of the tests: 32 KiB of elements, with headers and padding. */
#define RECORD_BYTES (44u * 1024u)

/* DRAM for a few entries above two disks of so many bytes; nothing is written back on its own. */
static inline site *site_make(uint64_t disk_bytes)
{
    /* A plan counts on a little more than a record comes out with. */
    site *s = site_prepare((site_shape){.disks = DISKS,
                                        .disk_bytes = disk_bytes,
                                        .unit_bytes = 4096,
                                        .dram_bytes = DRAM_ENTRIES * RECORD_BYTES + 16 * 1024});
    s->options.durability.persist_bytes_per_s = 0;
    site_open(s);
    return s;
}

static inline uint64_t ssd_written(site *s)
{
    return support_stats(s->store).tiers[KVT_TIER_SSD].bytes_written;
}

static inline void check_budget(site *s)
{
    kvt_store_stats stats = support_stats(s->store);
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++)
        assert_true(stats.tiers[tier].used_bytes <= stats.tiers[tier].capacity_bytes);
    assert_true(stats.copies.bytes <= stats.tiers[KVT_TIER_SSD].used_bytes);
}

#endif
