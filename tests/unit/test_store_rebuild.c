/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_rebuild.c - a catalog that is lost or damaged is rebuilt from the devices: every entry
 * that was stored is there with its bytes, whatever became of the catalog; and what is lost with a
 * member, or with damaged blocks, is exactly what lay there.
 *
 * One store is filled once: three members of unequal size, entries of several sizes, forms and
 * kinds, some deleted, some put again with other bytes, all laid out anew in a drain. Each test
 * works on a copy of its files.
 */
#include "codecs/record_note.h"
#include "store/placement_note.h"
#include "store_support.h"

#include <kvterrace/recover.h>

#include <fcntl.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <sys/wait.h>

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

static void site_configure(rebuild_site *site, const char *folder)
{
    static const uint64_t sizes[REBUILD_MEMBERS] = {10 << 20, 16 << 20, 24 << 20};
    snprintf(site->folder, sizeof site->folder, "%s", folder);
    snprintf(site->catalog, sizeof site->catalog, "%s/catalog.db", folder);
    kvt_store_options_init(&site->options);
    site->options.staging_bytes = 8 << 20;
    site->options.catalog_path = site->catalog;
    site->options.policy = "lru";
    site->options.tick_seconds = 0;
    site->options.lossless = true;
    for (uint32_t i = 0; i < REBUILD_MEMBERS; i++) {
        snprintf(site->paths[i], sizeof site->paths[i], "%s/%s", folder, rebuild_names[i]);
        site->devices[i] = support_file_config(rebuild_names[i], site->paths[i], sizes[i]);
    }
    site->options.tiers[KVT_TIER_SSD] = (kvt_tier_options){
        .devices = site->devices, .device_count = REBUILD_MEMBERS, .unit_bytes = 32768};
}

static kvt_store *site_open(rebuild_site *site)
{
    kvt_store *store = NULL;
    kvt_status status = KVT_E_LOCKED;
    while (status == KVT_E_LOCKED) /* the ring of who was killed goes in its own time */
        status = kvt_open(&site->options, &store, site->message, sizeof site->message);
    if (status != KVT_OK) fail_msg("open: %s: %s", kvt_status_name(status), site->message);
    return store;
}

/* ---- entries ---- */

static kvt_layout entry_layout(uint32_t number)
{
    kvt_layout layout = support_layout;
    if (number % 7 == 3)
        return (kvt_layout){.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = 3000 + 333 * number};
    layout.tokens = 16u << number % 4;
    return layout;
}

static uint64_t entry_fill(uint32_t number, uint32_t version, void *data)
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

static kvt_status entry_put(kvt_store *store, uint32_t number, uint8_t version)
{
    static char data[REBUILD_DATA_BYTES];
    uint64_t bytes = entry_fill(number, version, data);
    kvt_key parent = support_key(number - 1);
    kvt_entry entry = {.key = support_key(number),
                       .parent = number % 4 != 0 ? &parent : NULL,
                       .layout = entry_layout(number),
                       .first_position = 32 * (number % 4),
                       .recompute_seconds = 0.5 + number};
    return kvt_put(store, &entry, data, bytes);
}

/* The version whose bytes are stored; 0 = a miss. Anything else fails the test. */
static uint8_t entry_get(kvt_store *store, uint32_t number)
{
    static char data[REBUILD_DATA_BYTES], expected[REBUILD_DATA_BYTES];
    kvt_key key = support_key(number);
    uint64_t bytes = entry_fill(number, 1, expected);
    kvt_status status = kvt_get(store, &key, data, bytes, NULL);
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

static void fill_some(kvt_store *store, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++) {
        assert_int_equal(entry_put(store, i, 1), KVT_OK);
        rebuild_version[i] = rebuild_last[i] = 1;
    }
}

static void change_some(kvt_store *store, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++) {
        kvt_key key = support_key(i);
        if (i % 5 != 1 && i % 11 != 2) continue;
        assert_int_equal(kvt_delete(store, &key), rebuild_version[i] != 0 ? KVT_OK : KVT_MISS);
        rebuild_version[i] = 0;
        if (i % 11 != 2) continue;
        assert_int_equal(kvt_flush(store), KVT_OK);
        assert_int_equal(entry_put(store, i, 2), KVT_OK);
        rebuild_version[i] = rebuild_last[i] = 2;
    }
}

/* Moves everything off a member and lets it serve again: every record there is laid out anew. */
static void drain_one(kvt_store *store, const char *name)
{
    assert_int_equal(kvt_store_device_change(store, name, KVT_DEVICE_DRAIN), KVT_OK);
    for (int i = 0; i < 20; i++)
        assert_int_equal(kvt_maintain(store, NULL), KVT_OK);
    assert_true(support_stats(store).relayouts > 0);
    assert_int_equal(kvt_store_device_change(store, name, KVT_DEVICE_SERVE), KVT_OK);
}

static void fill_store(rebuild_site *site)
{
    const uint32_t third = REBUILD_ENTRIES / 3;
    site->options.variant = (kvt_variant){.codec = KVT_CODEC_LOSSLESS, .mode = KVT_LOSSLESS_DENSE};
    kvt_store *store = site_open(site);
    fill_some(store, 0, third);
    drain_one(store, "ssd1");
    change_some(store, 0, third);
    kvt_close(store);
    site->options.variant = (kvt_variant){.codec = KVT_CODEC_RAW};
    store = site_open(site);
    fill_some(store, third, 2 * third);
    change_some(store, third / 2, 2 * third);
    drain_one(store, "ssd0");
    fill_some(store, 2 * third, REBUILD_ENTRIES);
    assert_int_equal(support_stats(store).evictions, 0);
    assert_int_equal(kvt_flush(store), KVT_OK);
    kvt_close(store);
}

static int group_setup(void **state)
{
    static rebuild_site site;
    (void)state;
    support_make_folder(rebuild_master, sizeof rebuild_master);
    site_configure(&site, rebuild_master);
    fill_store(&site);
    return 0;
}

static int group_teardown(void **state)
{
    (void)state;
    support_remove_folder(rebuild_master);
    return 0;
}

static int setup(void **state)
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

static int teardown(void **state)
{
    rebuild_site *site = *state;
    support_remove_folder(site->folder);
    free(site);
    return 0;
}

/* ---- recovering ---- */

static kvt_recover_report report; /* of the last call */

static kvt_status recover_with(rebuild_site *site, bool replace, bool dry_run)
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

static void recover_whole(rebuild_site *site)
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
static uint32_t check_all(rebuild_site *site)
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
    kvt_close(store);
    return back;
}

static void remove_catalog(const rebuild_site *site)
{
    char log[128];
    snprintf(log, sizeof log, "%s-wal", site->catalog);
    assert_int_equal(unlink(site->catalog), 0);
    (void)unlink(log);
}

static void test_catalog_deleted(void **state)
{
    rebuild_site *site = *state;
    remove_catalog(site);
    recover_whole(site);
    uint32_t back = check_all(site);
    print_message("%llu headers, %llu entries, %u deleted ones came back\n",
                  (unsigned long long)report.headers, (unsigned long long)report.entries, back);
    /* A second life, and again without its catalog: what is put then is newer. */
    kvt_store *store = site_open(site);
    for (uint32_t i = 0; i < 20; i++) {
        kvt_key key = support_key(i);
        kvt_status status = kvt_delete(store, &key);
        assert_true(status == KVT_OK || status == KVT_MISS);
        assert_int_equal(entry_put(store, i, 1), KVT_OK);
    }
    kvt_close(store);
    remove_catalog(site);
    recover_whole(site);
    store = site_open(site);
    for (uint32_t i = 0; i < 20; i++)
        assert_int_equal(entry_get(store, i), 1);
    kvt_close(store);
}

/* Flips bits of the catalog, or cuts it off: as long as it opens it is not lost, and else the old
 * file is kept, and the new one has everything. */
static void test_catalog_damaged(void **state)
{
    rebuild_site *site = *state;
    struct stat facts, kept;
    assert_int_equal(stat(site->catalog, &facts), 0);
    for (int round = 0; round < 2; round++) {
        if (round == 0) {
            int file = open(site->catalog, O_RDWR);
            unsigned char bytes[512];
            assert_true(file >= 0);
            for (off_t at = 0; at < facts.st_size; at += 4096) {
                assert_true(pread(file, bytes, sizeof bytes, at) == (ssize_t)sizeof bytes);
                for (size_t i = at == 0 ? 16 : 0; i < sizeof bytes; i += 3)
                    bytes[i] ^= 0x24;
                assert_true(pwrite(file, bytes, sizeof bytes, at) == (ssize_t)sizeof bytes);
            }
            close(file);
        } else {
            assert_int_equal(stat(site->catalog, &facts), 0);
            assert_int_equal(truncate(site->catalog, facts.st_size / 2 + 100), 0);
        }
        kvt_store *store = NULL;
        kvt_status status = kvt_open(&site->options, &store, site->message, sizeof site->message);
        assert_true(status < 0);
        assert_int_equal(stat(site->catalog, &facts), 0);
        assert_int_equal(recover_with(site, false, false), KVT_EXISTS);
        assert_non_null(strstr(site->message, "replace"));
        assert_int_equal(recover_with(site, true, false), KVT_OK);
        assert_true(report.written && report.complete);
        char wanted[128];
        snprintf(wanted, sizeof wanted, "%s.damaged-%d", site->catalog, round + 1);
        assert_string_equal(report.kept, wanted);
        assert_int_equal(stat(wanted, &kept), 0);
        assert_true(kept.st_ino == facts.st_ino && kept.st_size == facts.st_size);
        (void)check_all(site);
    }
}

/* The store dies without closing; its catalog and log are lost. */
static void test_killed(void **state)
{
    rebuild_site *site = *state;
    int ends[2];
    char byte;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        kvt_store *store = NULL;
        if (kvt_open(&site->options, &store, NULL, 0) != KVT_OK) _exit(2);
        for (uint32_t i = 0; i < REBUILD_ENTRIES; i += 3) {
            kvt_key key = support_key(i);
            kvt_status status = kvt_delete(store, &key);
            if (status != KVT_OK && status != KVT_MISS) _exit(3);
            if (entry_put(store, i, 1) != KVT_OK) _exit(4);
        }
        if (kvt_flush(store) != KVT_OK || write(ends[1], "x", 1) != 1) _exit(5);
        for (;;)
            pause();
    }
    assert_int_equal(read(ends[0], &byte, 1), 1);
    assert_int_equal(recover_with(site, true, true), KVT_E_LOCKED); /* it serves */
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    close(ends[0]);
    close(ends[1]);
    remove_catalog(site);
    kvt_status status = KVT_E_LOCKED;
    while (status == KVT_E_LOCKED)
        status = recover_with(site, false, false);
    assert_int_equal(status, KVT_OK);
    assert_true(report.complete);
    kvt_store *store = site_open(site);
    for (uint32_t i = 0; i < REBUILD_ENTRIES; i++) {
        uint8_t version = entry_get(store, i);
        if (i % 3 == 0) assert_int_equal(version, 1);
        if (i % 3 != 0 && rebuild_version[i] != 0) assert_int_equal(version, rebuild_version[i]);
    }
    kvt_close(store);
}

static void test_dry_run_and_refusals(void **state)
{
    rebuild_site *site = *state;
    char command[1024], before[128], after[128];
    snprintf(before, sizeof before, "%s.before", site->folder);
    snprintf(after, sizeof after, "%s.after", site->folder);
    remove_catalog(site);
    snprintf(command, sizeof command, "cd '%s' && ls >'../%s' && md5sum * >>'../%s'", site->folder,
             before, before);
    assert_int_equal(system(command), 0);
    assert_int_equal(recover_with(site, false, true), KVT_OK);
    assert_true(!report.written && report.complete && report.entries > 0);
    uint64_t entries = report.entries;
    snprintf(command, sizeof command,
             "cd '%s' && ls >'../%s' && md5sum * >>'../%s' && cmp '../%s' '../%s'", site->folder,
             after, after, before, after);
    assert_int_equal(system(command), 0);
    assert_int_equal(unlink(before) | unlink(after), 0);
    recover_whole(site);
    assert_int_equal(report.entries, entries);
    /* No draft stays, and no old catalog was there to be kept. */
    assert_string_equal(report.kept, "");
    snprintf(command, sizeof command, "ls '%s' | grep -c recovering >/dev/null", site->folder);
    assert_int_not_equal(system(command), 0);
    assert_int_equal(recover_with(site, false, false), KVT_EXISTS);
    kvt_store *store = site_open(site);
    assert_int_equal(recover_with(site, true, false), KVT_E_LOCKED);
    assert_int_equal(recover_with(site, true, true), KVT_E_LOCKED);
    kvt_close(store);
    report.entries = entries;
    (void)check_all(site); /* it was left as it is */
    site->options.catalog_path = NULL;
    assert_int_equal(recover_with(site, false, false), KVT_E_ARGUMENT);
    site->options.catalog_path = "nowhere/at/all/catalog.db";
    assert_true(recover_with(site, false, false) < 0);
    site->options.catalog_path = site->catalog;
    site->options.tiers[KVT_TIER_SSD].device_count = 0;
    assert_int_equal(recover_with(site, true, false), KVT_E_ARGUMENT);
}

static bool stop_at_once(void *context, kvt_recover_stage stage, uint64_t done, uint64_t total)
{
    assert_true(done <= total);
    return stage != *(kvt_recover_stage *)context;
}

static void test_cancelled(void **state)
{
    rebuild_site *site = *state;
    remove_catalog(site);
    for (int i = 0; i < 2; i++) {
        kvt_recover_stage stage = i == 0 ? KVT_RECOVER_SCAN : KVT_RECOVER_VERIFY;
        kvt_recover_options options;
        kvt_recover_options_init(&options);
        options.progress = stop_at_once;
        options.context = &stage;
        kvt_status status = kvt_store_recover(&site->options, &options, &report, site->message,
                                              sizeof site->message);
        if (i == 0 && status == KVT_OK) { /* the scan was done before it was asked */
            remove_catalog(site);
            continue;
        }
        assert_int_equal(status, KVT_E_CANCELLED);
        assert_int_equal(access(site->catalog, F_OK), -1);
    }
    recover_whole(site);
    (void)check_all(site);
}

/* ---- members ---- */

/* Which stored entries have a unit on a member, by the notes of their newest records. */
static void note_members(const rebuild_site *site, uint64_t members_out[REBUILD_ENTRIES])
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
            assert_int_equal(placement_note_unpack(bytes, length, &note), KVT_OK);
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
static void check_without(rebuild_site *site, uint32_t member, const uint64_t *members)
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
    kvt_close(store);
}

static void test_missing_member(void **state)
{
    rebuild_site *site = *state;
    uint64_t members[REBUILD_ENTRIES];
    char kept[128];
    note_members(site, members);
    snprintf(kept, sizeof kept, "%s/kept", site->folder);
    remove_catalog(site);
    assert_int_equal(rename(site->paths[2], kept), 0);
    assert_int_equal(recover_with(site, false, false), KVT_OK);
    assert_true(report.written && !report.complete && report.absent > 0);
    assert_int_equal(report.devices[2].state, KVT_RECOVER_MISSING);
    assert_int_equal(access(site->paths[2], F_OK), -1); /* no file was made in its place */
    /* It comes back, and the rebuilding is done again. */
    assert_int_equal(rename(kept, site->paths[2]), 0);
    assert_int_equal(recover_with(site, true, false), KVT_OK);
    assert_true(report.complete);
    (void)check_all(site);
    remove_catalog(site);
    assert_int_equal(rename(site->paths[2], kept), 0);
    assert_int_equal(recover_with(site, false, false), KVT_OK);
    check_without(site, 2, members);
}

/* A member of another store, and one that is in another's place, do not count; nor do they hurt. */
static void test_foreign_member(void **state)
{
    rebuild_site *site = *state, other;
    char folder[64], kept[128];
    uint64_t members[REBUILD_ENTRIES];
    note_members(site, members);
    memset(&other, 0, sizeof other);
    support_make_folder(folder, sizeof folder);
    site_configure(&other, folder);
    kvt_store *store = site_open(&other);
    for (uint32_t i = 0; i < 30; i++)
        assert_int_equal(entry_put(store, i, 2), KVT_OK);
    kvt_close(store);
    remove_catalog(site);
    snprintf(kept, sizeof kept, "%s/kept", site->folder);
    assert_int_equal(rename(site->paths[2], kept), 0);
    assert_int_equal(rename(other.paths[2], site->paths[2]), 0);
    assert_int_equal(recover_with(site, false, false), KVT_OK);
    assert_true(!report.complete && report.absent > 0);
    assert_int_equal(report.devices[2].state, KVT_RECOVER_FOREIGN);
    site->options.format = true; /* the other store's member is taken over */
    check_without(site, 2, members);
    site->options.format = false;
    remove_catalog(site);
    const char *first = site->devices[1].path;
    site->devices[1].path = site->devices[0].path;
    site->devices[0].path = first;
    site->options.tiers[KVT_TIER_SSD].device_count = 2;
    assert_int_equal(recover_with(site, false, false), KVT_MISS);
    assert_int_equal(report.devices[1].state, KVT_RECOVER_MISPLACED);
    assert_int_equal(access(site->catalog, F_OK), -1);
    support_remove_folder(folder);
}

static void copy_file(const char *source, const char *target)
{
    char command[300];
    snprintf(command, sizeof command, "cp '%s' '%s'", source, target);
    assert_int_equal(system(command), 0);
}

/* A member that was away during an open which served, one epoch or two, is stale. One whose label
 * an open that was cut short did not get to counts. */
static void test_stale_member(void **state)
{
    rebuild_site *site = *state;
    uint64_t members[REBUILD_ENTRIES];
    char kept[128];
    snprintf(kept, sizeof kept, "%s/kept", site->folder);
    copy_file(site->paths[1], kept);
    kvt_close(site_open(site)); /* labels of a new epoch, nothing placed */
    copy_file(kept, site->paths[1]);
    remove_catalog(site);
    recover_whole(site);
    assert_true(report.devices[1].epoch + 1 == report.epoch);
    (void)check_all(site); /* and nothing was taken back empty */
    copy_file(site->paths[1], kept);
    kvt_store *store = site_open(site);
    kvt_key key = support_key(0);
    assert_true(kvt_delete(store, &key) >= 0);
    assert_int_equal(entry_put(store, 0, 1), KVT_OK);
    kvt_close(store);
    note_members(site, members);
    copy_file(kept, site->paths[1]);
    remove_catalog(site);
    assert_int_equal(recover_with(site, false, false), KVT_OK);
    assert_int_equal(report.devices[1].state, KVT_RECOVER_STALE);
    assert_true(!report.complete && report.absent > 0);
    check_without(site, 1, members);
}

/* ---- damage ---- */

/* Blocks of a member rot: what is lost is what lay there, and nothing else. */
static void test_damaged_blocks(void **state)
{
    rebuild_site *site = *state;
    remove_catalog(site);
    recover_whole(site);
    uint64_t entries = report.entries;
    (void)check_all(site);
    remove_catalog(site);
    int file = open(site->paths[2], O_RDWR);
    assert_true(file >= 0);
    for (off_t at = 8192 + 300; at < (24 << 20); at += 61 * 4096) {
        unsigned char byte;
        if (pread(file, &byte, 1, at) != 1) break;
        byte ^= 0x10;
        assert_int_equal(pwrite(file, &byte, 1, at), 1);
    }
    close(file);
    assert_int_equal(recover_with(site, false, false), KVT_OK);
    assert_true(report.entries < entries && report.entries > entries / 2);
    kvt_store *store = site_open(site);
    uint32_t lost = 0;
    for (uint32_t i = 0; i < REBUILD_ENTRIES; i++) {
        uint8_t version = entry_get(store, i);
        lost += rebuild_version[i] != 0 && version == 0;
    }
    assert_true(lost > 0);
    assert_int_equal(support_stats(store).load_failures, 0); /* what was listed was sound */
    kvt_close(store);
}

/* A member's file was cut off: what is left of it is scanned, and the rest is said to be missing.
 */
static void test_truncated_member(void **state)
{
    rebuild_site *site = *state;
    remove_catalog(site);
    recover_whole(site);
    uint64_t entries = report.entries;
    remove_catalog(site);
    assert_int_equal(truncate(site->paths[2], 2 << 20), 0);
    assert_int_equal(recover_with(site, false, false), KVT_OK);
    assert_int_equal(report.devices[2].state, KVT_RECOVER_USED);
    assert_int_equal(report.devices[2].unreadable_bytes, 22 << 20);
    assert_true(!report.complete && report.written);
    assert_true(report.entries < entries && report.entries > 0);
}

/* Blocks that claim to be records of places where they do not lie, of other extents, of another
 * store, with notes that are longer than they are: none gets into the catalog, none hurts. */
static void test_hostile_notes(void **state)
{
    static _Alignas(4096) uint8_t blocks[2][4096];
    rebuild_site *site = *state;
    uint64_t seed = 88172645463325252u;
    remove_catalog(site);
    recover_whole(site);
    uint64_t entries = report.entries;
    remove_catalog(site);
    int file = open(site->paths[2], O_RDWR);
    assert_true(file >= 0);
    off_t end = lseek(file, 0, SEEK_END), free_at = 0, found_at = 0;
    for (off_t at = 8192; at + 8192 <= end; at += 4096) {
        const void *note;
        uint64_t length;
        assert_int_equal(pread(file, blocks[0], 4096, at), 4096);
        if (found_at == 0 && record_note_of_slot(blocks[0], &note, &length) == KVT_OK)
            found_at = at;
        bool zero = blocks[0][0] == 0 && memcmp(blocks[0], blocks[0] + 1, 4095) == 0;
        if (zero && at > end / 2) {
            free_at = at;
            break;
        }
    }
    assert_true(found_at != 0 && free_at != 0);
    assert_int_equal(pread(file, blocks[0], 4096, found_at), 4096);
    assert_int_equal(pread(file, blocks[1], 4096, found_at + 4096), 4096);
    for (uint32_t i = 0; i < 200 && free_at + 8192 <= end; i++, free_at += 8192) {
        static _Alignas(4096) uint8_t copy[2][4096];
        const void *note;
        uint64_t length;
        uint8_t changed[4096];
        memcpy(copy, blocks, sizeof copy);
        memset(copy[1], 0, sizeof copy[1]);
        assert_int_equal(record_note_get(copy, &note, &length), KVT_OK);
        memcpy(changed, note, length);
        for (uint32_t k = 0; k < i % 5; k++) {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            changed[seed % length] = (uint8_t)(seed >> 32);
        }
        assert_int_equal(record_note_set(copy, changed, length), KVT_OK);
        assert_int_equal(pwrite(file, copy, sizeof copy, free_at), (ssize_t)sizeof copy);
    }
    close(file);
    assert_int_equal(recover_with(site, false, false), KVT_OK);
    assert_int_equal(report.entries, entries);
    assert_true(report.elsewhere > 0 && report.without_note > 0);
    (void)check_all(site);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_catalog_deleted, setup, teardown),
        cmocka_unit_test_setup_teardown(test_catalog_damaged, setup, teardown),
        cmocka_unit_test_setup_teardown(test_killed, setup, teardown),
        cmocka_unit_test_setup_teardown(test_dry_run_and_refusals, setup, teardown),
        cmocka_unit_test_setup_teardown(test_cancelled, setup, teardown),
        cmocka_unit_test_setup_teardown(test_missing_member, setup, teardown),
        cmocka_unit_test_setup_teardown(test_foreign_member, setup, teardown),
        cmocka_unit_test_setup_teardown(test_stale_member, setup, teardown),
        cmocka_unit_test_setup_teardown(test_damaged_blocks, setup, teardown),
        cmocka_unit_test_setup_teardown(test_truncated_member, setup, teardown),
        cmocka_unit_test_setup_teardown(test_hostile_notes, setup, teardown),
    };
    return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
