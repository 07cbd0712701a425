/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rebuild_site.h - what the tests of kvt_store_recover share: a store that is filled once, three
 * members of unequal size, entries of several sizes, forms and kinds, some deleted, some put again
 * with other bytes, all laid out anew in a drain. Each test works on a copy of its files.
 */
#ifndef SUPPORT_REBUILD_SITE_H
#define SUPPORT_REBUILD_SITE_H

#include "codecs/record.h"
#include "codecs/record_note.h"
#include "store/catalog/placement_note.h"
#include "store/core/store.h"
#include "store_support.h"

#include <kvterrace/recover.h>

#include <errno.h>
#include <fcntl.h>

#define REBUILD_ENTRIES    240u
#define REBUILD_MEMBERS    3u
#define REBUILD_DATA_BYTES (128u * 1024u)

typedef struct rebuild_site {
    char folder[64];
    char catalog[96];
    char paths[REBUILD_MEMBERS][96];
    kvt_device_config devices[REBUILD_MEMBERS];
    kvt_store_options options;
    char message[512];
} rebuild_site;

/* What is stored under a number: 0 = nothing, else which bytes; and which ever were. */
static uint8_t rebuild_version[REBUILD_ENTRIES];
static uint8_t rebuild_last[REBUILD_ENTRIES];
static char rebuild_master[64];

static const char *const rebuild_names[REBUILD_MEMBERS] = {"ssd0", "ssd1", "ssd2"};

static inline void site_configure(rebuild_site *site, const char *folder)
{
    static const uint64_t sizes[REBUILD_MEMBERS] = {6 << 20, 8 << 20, 12 << 20};
    snprintf(site->folder, sizeof site->folder, "%s", folder);
    snprintf(site->catalog, sizeof site->catalog, "%s/catalog.db", folder);
    site->options = support_options(8 << 20, "lru");
    site->options.durability.catalog_path = site->catalog;
    site->options.lossless = true;
    for (uint32_t i = 0; i < REBUILD_MEMBERS; i++) {
        snprintf(site->paths[i], sizeof site->paths[i], "%s/%s", folder, rebuild_names[i]);
        site->devices[i] = support_file_config(rebuild_names[i], site->paths[i], sizes[i]);
    }
    site->options.tiers[KVT_TIER_SSD] = (kvt_tier_options){
        .devices = site->devices, .device_count = REBUILD_MEMBERS, .unit_bytes = 32768};
}

static inline kvt_store *site_open(rebuild_site *site)
{
    kvt_store *store = NULL;
    kvt_status status = KVT_E_LOCKED;
    while (status == KVT_E_LOCKED) /* the ring of who was killed goes in its own time */
        status = kvt_store_open(&site->options, &store, site->message, sizeof site->message);
    if (status != KVT_OK) fail_msg("open: %s: %s", kvt_status_name(status), site->message);
    tiers_pool_set_striping(store->pools[KVT_TIER_SSD], TIERS_STRIPE_EQUAL);
    return store;
}

/* ---- entries ---- */

static inline kvt_layout entry_layout(uint32_t number)
{
    kvt_layout layout = support_layout;
    if (number % 7 == 3)
        return (kvt_layout){.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = 3000 + 333 * number};
    layout.tokens = 16u << number % 4;
    if (number % 5 == 4) layout.sides = 1;
    return layout;
}

static inline uint64_t entry_fill(uint32_t number, uint32_t version, void *data)
{
    const kvt_layout layout = entry_layout(number);
    uint64_t bytes;
    if (kvt_layout_bytes(&layout, &bytes) != KVT_OK || bytes > REBUILD_DATA_BYTES) abort();
    if (layout.dtype != KVT_DTYPE_OPAQUE) {
        codecs_kv_sample_fill(&layout, 1000 * version + number, data);
    } else {
        for (uint64_t i = 0; i < bytes; i++)
            ((uint8_t *)data)[i] = (uint8_t)(i * 7 + number + 31 * version + (i >> 8));
    }
    return bytes;
}

static inline kvt_status entry_put(kvt_store *store, uint32_t number, uint8_t version)
{
    static char data[REBUILD_DATA_BYTES];
    uint64_t bytes = entry_fill(number, version, data);
    kvt_key parent = support_key(number - 1);
    kvt_entry entry = {.struct_size = sizeof entry,
                       .key = support_key(number),
                       .parent = number % 4 != 0 ? &parent : NULL,
                       .layout = entry_layout(number),
                       .first_position = 32 * (number % 4),
                       .recompute_seconds = 0.5 + number};
    return kvt_store_put(store, &entry, KVT_PACKED(data, bytes));
}

/* The version whose bytes are stored; 0 = a miss. Anything else fails the test. */
static inline uint8_t entry_get(kvt_store *store, uint32_t number)
{
    static char data[REBUILD_DATA_BYTES], expected[REBUILD_DATA_BYTES];
    kvt_key key = support_key(number);
    uint64_t bytes = entry_fill(number, 1, expected);
    kvt_status status =
        kvt_store_get(store, &key, KVT_PACKED(data, bytes), KVT_STORE_DEADLINE, NULL);
    if (status == KVT_MISS) return 0;
    if (status != KVT_OK) fail_msg("entry %u: %s", number, kvt_status_name(status));
    for (uint8_t version = 1; version <= rebuild_last[number]; version++) {
        (void)entry_fill(number, version, expected);
        if (memcmp(data, expected, bytes) == 0) return version;
    }
    fail_msg("entry %u has wrong bytes", number);
    return 0;
}

/* ---- the store that all tests start from ---- */

static inline void fill_some(kvt_store *store, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++) {
        assert_ok(entry_put(store, i, 1));
        rebuild_version[i] = rebuild_last[i] = 1;
    }
}

static inline void change_some(kvt_store *store, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++) {
        kvt_key key = support_key(i);
        if (i % 5 != 1 && i % 11 != 2) continue;
        assert_int_equal(kvt_store_delete(store, &key),
                         rebuild_version[i] != 0 ? KVT_OK : KVT_MISS);
        rebuild_version[i] = 0;
        if (i % 11 != 2) continue;
        assert_ok(kvt_store_flush(store));
        assert_ok(entry_put(store, i, 2));
        rebuild_version[i] = rebuild_last[i] = 2;
    }
}

/* Moves everything off a member and lets it serve again: every record there is laid out anew. */
static inline void drain_one(kvt_store *store, const char *name)
{
    assert_ok(kvt_device_change(store, name, KVT_DEVICE_DRAIN));
    for (int i = 0; i < 20; i++)
        assert_ok(kvt_store_maintain(store, NULL));
    assert_true(support_stats(store).relayouts.records > 0);
    assert_ok(kvt_device_change(store, name, KVT_DEVICE_SERVE));
}

static inline void fill_store(rebuild_site *site)
{
    const uint32_t third = REBUILD_ENTRIES / 3;
    site->options.variant = (kvt_variant){.codec = KVT_CODEC_LOSSLESS, .mode = KVT_LOSSLESS_DENSE};
    kvt_store *store = site_open(site);
    fill_some(store, 0, third);
    drain_one(store, "ssd1");
    change_some(store, 0, third);
    kvt_store_close(store);
    site->options.variant = (kvt_variant){.codec = KVT_CODEC_RAW};
    store = site_open(site);
    fill_some(store, third, 2 * third);
    change_some(store, third / 2, 2 * third);
    drain_one(store, "ssd0");
    fill_some(store, 2 * third, REBUILD_ENTRIES);
    assert_int_equal(support_stats(store).evictions, 0);
    assert_ok(kvt_store_flush(store));
    kvt_store_close(store);
}

static inline int group_setup(void **state)
{
    static rebuild_site site;
    (void)state;
    support_make_folder(rebuild_master, sizeof rebuild_master);
    site_configure(&site, rebuild_master);
    fill_store(&site);
    return 0;
}

static inline int setup(void **state)
{
    char folder[64], command[256];
    rebuild_site *site = calloc(1, sizeof *site);
    support_make_folder(folder, sizeof folder);
    snprintf(command, sizeof command, "cp '%s'/* '%s'/", rebuild_master, folder);
    if (system(command) != 0) return -1;
    site_configure(site, folder);
    *state = site;
    return 0;
}

static inline int teardown(void **state)
{
    rebuild_site *site = *state;
    free(site);
    return 0;
}

/* ---- recovering ---- */

static kvt_recover_report report; /* of the last call */

static inline kvt_status recover_with(rebuild_site *site, bool replace, bool dry_run)
{
    kvt_recover_options options;
    kvt_recover_options_init(&options);
    options.replace = replace;
    options.dry_run = dry_run;
    report.struct_size = sizeof report;
    site->message[0] = '\0';
    kvt_status status =
        kvt_store_recover(&site->options, &options, &report, site->message, sizeof site->message);
    assert_true(status == KVT_OK || site->message[0] != '\0');
    return status;
}

static inline void recover_whole(rebuild_site *site)
{
    kvt_status status = recover_with(site, false, false);
    if (status != KVT_OK) fail_msg("recover: %s: %s", kvt_status_name(status), site->message);
    assert_true(report.written && report.complete);
    uint64_t dropped = report.older + report.overlapped + report.absent + report.damaged +
                       report.without_note + report.other_store + report.elsewhere +
                       report.too_large;
    assert_int_equal(report.headers, report.entries + dropped);
    assert_int_equal(report.without_note + report.other_store + report.absent + report.elsewhere +
                         report.too_large,
                     0);
}

/* Everything that was stored is there; returns how many deleted entries came back. */
static inline uint32_t check_all(rebuild_site *site)
{
    uint32_t back = 0;
    kvt_store *store = site_open(site);
    assert_int_equal(support_stats(store).recovered, report.entries);
    assert_int_equal(support_stats(store).recovery_drops, 0);
    for (uint32_t i = 0; i < REBUILD_ENTRIES; i++) {
        uint8_t version = entry_get(store, i);
        if (rebuild_version[i] != 0 && version != rebuild_version[i])
            fail_msg("entry %u: version %u instead of %u", i, version, rebuild_version[i]);
        back += rebuild_version[i] == 0 && version != 0;
    }
    assert_int_equal(support_stats(store).load_failures, 0);
    kvt_store_close(store);
    return back;
}

static inline void remove_catalog(const rebuild_site *site)
{
    char log[128];
    snprintf(log, sizeof log, "%s-wal", site->catalog);
    assert_int_equal(unlink(site->catalog), 0);
    (void)unlink(log);
}

/* ---- members ---- */

/* Which stored entries have a unit on a member, by the notes of their newest records. */
static inline void note_members(const rebuild_site *site, uint64_t members_out[REBUILD_ENTRIES])
{
    static _Alignas(4096) uint8_t block[4096];
    static uint64_t serials[REBUILD_ENTRIES];
    memset(serials, 0, sizeof serials);
    memset(members_out, 0, REBUILD_ENTRIES * sizeof *members_out);
    for (uint32_t m = 0; m < REBUILD_MEMBERS; m++) {
        int file = open(site->paths[m], O_RDONLY);
        assert_true(file >= 0);
        for (off_t at = 8192; pread(file, block, 4096, at) == 4096; at += 4096) {
            const void *bytes;
            uint64_t length;
            uint32_t number;
            placement_note note;
            if (record_note_of_slot(block, &bytes, &length) != KVT_OK) continue;
            assert_ok(placement_note_unpack(bytes, length, &note));
            memcpy(&number, block + 32, sizeof number);
            assert_true(number < REBUILD_ENTRIES);
            if (note.serial > serials[number]) {
                serials[number] = note.serial;
                members_out[number] = 0;
                for (uint32_t i = 0; i < note.location->share_count; i++)
                    members_out[number] |= UINT64_C(1) << note.location->shares[i].member;
            }
            tiers_location_free(note.location);
        }
        close(file);
    }
}

/* After a member was lost: what has units there is a miss or an older state, all else is there. */
static inline void check_without(rebuild_site *site, uint32_t member, const uint64_t *members)
{
    uint32_t kept = 0, lost = 0;
    kvt_store *store = site_open(site);
    for (uint32_t i = 0; i < REBUILD_ENTRIES; i++) {
        uint8_t version = entry_get(store, i);
        if (rebuild_version[i] == 0) continue;
        bool touched = (members[i] >> member & 1) != 0;
        if (!touched) assert_int_equal(version, rebuild_version[i]);
        kept += !touched;
        lost += touched && version == 0;
    }
    assert_true(kept > 0 && lost > 0);
    kvt_store_close(store);
}

#endif
