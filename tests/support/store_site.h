/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_site.h - a store in a folder of its own: files of which each one may fail as the test says,
 * memory above them, entries by number. A test changes the options between site_prepare and
 * site_open, and opens and closes as often as it likes.
 */
#ifndef TESTS_STORE_SITE_H
#define TESTS_STORE_SITE_H

#include "store_support.h"

enum { SITE_DISKS = 4 };

typedef struct site {
    char folder[64], catalog[96], paths[SITE_DISKS][96], message[512];
    support_fault disks[SITE_DISKS], dram;
    kvt_device_config files[SITE_DISKS], memory;
    kvt_store_options options;
    kvt_store *store;
} site;

/* What a site consists of. */
typedef struct site_shape {
    uint32_t
        disks; /* of the SSD tier; the files of others are described, not opened; 0: no folder */
    uint64_t disk_bytes; /* each */
    uint32_t unit_bytes;
    bool plain; /* regular files, which do not fail */
    bool fast;
    bool staged;           /* puts are handed over */
    uint64_t memory_bytes; /* DRAM that does not fail; 0: none */
    uint64_t dram_bytes;   /* DRAM that may fail; 0: none */
} site_shape;

static const char *const site_disks[SITE_DISKS] = {"disk0", "disk1", "disk2", "disk3"};

/* DRAM on a device that may fail, above what is there. */
static inline void site_add_dram(site *s, uint64_t bytes)
{
    s->dram = (support_fault){.capacity_bytes = bytes};
    s->memory = support_fault_config(&s->dram, "dram");
    s->options.tiers[KVT_TIER_DRAM] =
        (kvt_tier_options){.devices = &s->memory, .device_count = 1, .unit_bytes = 4096};
}

static inline void site_close(site *s)
{
    kvt_store_close(s->store);
    s->store = NULL;
}

/* Ends a site before its case does; once more does nothing. */
static inline void site_end(void *at)
{
    site *s = at;
    site_close(s);
    if (s->folder[0] != '\0') support_remove_folder(s->folder);
    s->folder[0] = '\0';
}

/* A site that ends with the case. */
static inline site *site_prepare(site_shape shape)
{
    site *s = test_zeros(sizeof *s);
    if (shape.disks > 0) support_make_folder(s->folder, sizeof s->folder);
    snprintf(s->catalog, sizeof s->catalog, "%s/catalog.db", s->folder);
    kvt_store_options_init(&s->options);
    if (!shape.staged) s->options.limits.put_staging_bytes = 0; /* a put says how its write went */
    s->options.limits.staging_bytes = 8 << 20;
    if (shape.disks > 0) s->options.durability.catalog_path = s->catalog;
    s->options.policy = "lru";
    s->options.limits.tick_seconds = 0;
    for (int i = 0; i < SITE_DISKS; i++) {
        snprintf(s->paths[i], sizeof s->paths[i], "%s/%s", s->folder, site_disks[i]);
        s->disks[i] = (support_fault){
            .capacity_bytes = shape.disk_bytes, .path = s->paths[i], .fast = shape.fast};
        s->files[i] = shape.plain
                          ? support_file_config(site_disks[i], s->paths[i], shape.disk_bytes)
                          : support_fault_config(&s->disks[i], site_disks[i]);
    }
    if (shape.disks > 0)
        s->options.tiers[KVT_TIER_SSD] = (kvt_tier_options){.devices = s->files,
                                                            .device_count = shape.disks,
                                                            .unit_bytes = shape.unit_bytes,
                                                            .weights_fixed = !shape.plain};
    s->options.tiers[KVT_TIER_DRAM].capacity_bytes = shape.memory_bytes;
    if (shape.dram_bytes > 0) site_add_dram(s, shape.dram_bytes);
    return test_after(site_end, s);
}

/* The status; a sentence in s->message when it is not KVT_OK. */
static inline kvt_status site_try_open(site *s)
{
    s->message[0] = '\0';
    s->store = NULL;
    const kvt_status status = kvt_store_open(&s->options, &s->store, s->message, sizeof s->message);
    assert_true(status == KVT_OK || s->message[0] != '\0');
    return status;
}

static inline void site_open(site *s)
{
    const kvt_status status = site_try_open(s);
    if (status != KVT_OK) fail_msg("open: %s: %s", kvt_status_name(status), s->message);
}

static inline void site_reopen(site *s)
{
    site_close(s);
    site_open(s);
}

/* For TEST_EACH. */
static inline site *site_new(void **state, site_shape shape)
{
    *state = site_prepare(shape);
    return *state;
}

/* Puts entries, which all are taken, and waits until they are kept. */
static inline void site_put(site *s, uint32_t from, uint32_t to)
{
    support_puts(s->store, from, to);
    assert_ok(kvt_store_flush(s->store));
}

/* How many of the first entries come back; each one that does has the right bytes. */
static inline uint32_t site_hits(site *s, uint32_t count)
{
    uint32_t hits = 0;
    for (uint32_t i = 0; i < count; i++) {
        const kvt_status status = support_get(s->store, i, NULL);
        assert_true(status == KVT_OK || status == KVT_MISS);
        hits += status == KVT_OK;
    }
    return hits;
}

/* How many of the first entries the store has, read or not. */
static inline uint32_t site_stored(site *s, uint32_t count)
{
    uint32_t stored = 0;
    for (uint32_t i = 0; i < count; i++) {
        const kvt_key key = support_key(i);
        stored += kvt_store_exists(s->store, &key) == KVT_OK;
    }
    return stored;
}

static inline void site_maintain(site *s, uint32_t rounds)
{
    for (uint32_t i = 0; i < rounds; i++) {
        assert_ok(kvt_store_maintain(s->store, NULL));
        assert_ok(kvt_store_flush(s->store));
    }
}

static inline void site_fault(site *s, uint32_t disk, tiers_fault_rule rule)
{
    assert_ok(tiers_fault_add(s->disks[disk].device, &rule));
}

#endif
