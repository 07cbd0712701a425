/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torture_store_rebuild.c - a catalog is rebuilt from devices that are damaged, cut off, failing or
 * hostile: what is lost is what lay there, and nothing wrong gets into the catalog.
 */
#include "rebuild_site.h"

TEST_ALL(group_setup, NULL);
TEST_EACH(setup, teardown);

/* Blocks of a member rot: what is lost is what lay there, and nothing else. */
TEST(damaged_blocks)
{
    rebuild_site *site = *state;
    remove_catalog(site);
    recover_whole(site);
    uint64_t entries = report.entries;
    (void)check_all(site);
    remove_catalog(site);
    int file = open(site->paths[2], O_RDWR);
    assert_true(file >= 0);
    for (off_t at = 8192 + 300; at < (12 << 20); at += 37 * 4096) {
        unsigned char byte;
        if (pread(file, &byte, 1, at) != 1) break;
        byte ^= 0x10;
        assert_int_equal(pwrite(file, &byte, 1, at), 1);
    }
    close(file);
    assert_ok(recover_with(site, false, false));
    assert_true(report.entries < entries && report.entries > entries / 2);
    kvt_store *store = site_open(site);
    uint32_t lost = 0;
    for (uint32_t i = 0; i < REBUILD_ENTRIES; i++) {
        uint8_t version = entry_get(store, i);
        lost += rebuild_version[i] != 0 && version == 0;
    }
    assert_true(lost > 0);
    assert_int_equal(support_stats(store).load_failures, 0); /* what was listed was sound */
    kvt_store_close(store);
}

/* A member's file was cut off: what is left of it is scanned, and the rest is said to be missing.
 */
TEST(truncated_member)
{
    rebuild_site *site = *state;
    remove_catalog(site);
    recover_whole(site);
    uint64_t entries = report.entries;
    remove_catalog(site);
    assert_int_equal(truncate(site->paths[2], 2 << 20), 0);
    assert_ok(recover_with(site, false, false));
    assert_int_equal(report.devices[2].state, KVT_RECOVER_USED);
    assert_int_equal(report.devices[2].unreadable_bytes, 10 << 20);
    assert_true(!report.complete && report.written);
    assert_true(report.entries < entries && report.entries > 0);
}

/* ---- devices that fail ---- */

/* Rules that hold from the opening on. */
typedef struct failing_device {
    support_fault fault;
    tiers_fault_rule rules[8];
    uint32_t count;
} failing_device;

static kvt_status failing_open(const kvt_device_config *config, kvt_device **device_out,
                               char *message, size_t message_size)
{
    failing_device *failing = stand_in_context(config);
    kvt_device_config inner = {.struct_size = sizeof inner,
                               .name = config->name,
                               .backend = "file",
                               .path = failing->fault.path};
    kvt_device *device;
    kvt_status status = kvt_device_open(&inner, &device, message, message_size);
    if (status == KVT_OK) status = tiers_fault_open(device, device_out);
    failing->fault.device = *device_out;
    for (uint32_t i = 0; i < failing->count && status == KVT_OK; i++)
        status = tiers_fault_add(*device_out, &failing->rules[i]);
    return status;
}

static const kvt_device_ops failing_ops = {.struct_size = sizeof failing_ops,
                                           .abi_version = KVT_DEVICE_ABI,
                                           .name = "failing",
                                           .open = failing_open};

/* The last member fails as the rules say during a rebuilding; then it is a file again. */
static kvt_status recover_failing(rebuild_site *site, failing_device *failing, uint64_t timeout_ns)
{
    kvt_device_config plain = site->devices[2];
    failing->fault.path = site->paths[2];
    site->devices[2] = (kvt_device_config){
        .struct_size = sizeof plain,
        .name = plain.name,
        .backend = stand_in_set(&failing->fault.stand_in, &failing_ops, failing),
        .timeout_ns = timeout_ns};
    kvt_status status = recover_with(site, false, false);
    site->devices[2] = plain;
    return status;
}

/* Sectors that cannot be read cost the records that they are part of, and are counted. */
TEST(unreadable_sectors)
{
    rebuild_site *site = *state;
    failing_device failing = {.count = 8};
    remove_catalog(site);
    recover_whole(site);
    uint64_t entries = report.entries;
    remove_catalog(site);
    for (uint32_t i = 0; i < failing.count; i++) {
        failing.rules[i] = (tiers_fault_rule){.action = TIERS_FAULT_FAIL,
                                              .kinds = TIERS_FAULT_READS,
                                              .offset = 8192 + i * UINT64_C(401408),
                                              .bytes = 4096,
                                              .status = KVT_E_IO,
                                              .os_error = EIO};
    }
    assert_ok(recover_failing(site, &failing, UINT64_MAX));
    assert_int_equal(report.unreadable_bytes, 8 * 4096);
    assert_int_equal(report.devices[2].unreadable_bytes, 8 * 4096);
    assert_true(report.written && !report.complete);
    assert_true(report.entries < entries && report.entries + 8 >= entries);
    kvt_store *store = site_open(site);
    uint32_t found = 0;
    for (uint32_t i = 0; i < REBUILD_ENTRIES; i++)
        found += entry_get(store, i) != 0;
    assert_int_equal(found, report.entries);
    kvt_store_close(store);
}

/* A member that vanishes, or hangs, while it is scanned: what lies elsewhere is recovered. */
TEST(member_fails_in_the_scan)
{
    rebuild_site *site = *state;
    uint64_t members[REBUILD_ENTRIES];
    note_members(site, members);
    for (int hang = 0; hang < 2; hang++) {
        failing_device failing = {.count = 1};
        failing.rules[0] = (tiers_fault_rule){.action = hang ? TIERS_FAULT_HANG : TIERS_FAULT_FAIL,
                                              .kinds = TIERS_FAULT_READS,
                                              .offset = 5 << 20,
                                              .bytes = 4096,
                                              .status = KVT_E_GONE,
                                              .os_error = ENODEV};
        remove_catalog(site);
        assert_ok(recover_failing(site, &failing, hang ? 50000000 : UINT64_MAX));
        assert_int_equal(report.devices[2].state, KVT_RECOVER_FAILED);
        assert_true(report.written && !report.complete && report.absent > 0);
        if (hang) tiers_fault_clear(failing.fault.device);
        check_without(site, 2, members);
    }
}

/* Blocks that claim to be records of places where they do not lie, of other extents, of another
 * store, with notes that are longer than they are: none gets into the catalog, none hurts. */
TEST(hostile_notes)
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
    uint32_t written = 0;
    for (uint32_t i = 0; written < 200 && free_at + 8192 <= end; i++, free_at += 8192) {
        static _Alignas(4096) uint8_t copy[2][4096];
        assert_int_equal(pread(file, copy, sizeof copy, free_at), (ssize_t)sizeof copy);
        if (copy[0][0] != 0 || memcmp(copy[0], copy[0] + 1, sizeof copy - 1) != 0) continue;
        written++;
        const void *note;
        uint64_t length;
        uint8_t changed[4096];
        memcpy(copy, blocks, sizeof copy);
        memset(copy[1], 0, sizeof copy[1]);
        assert_ok(record_note_get(copy, &note, &length));
        memcpy(changed, note, length);
        for (uint32_t k = 0; k < i % 5; k++) {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            changed[seed % length] = (uint8_t)(seed >> 32);
        }
        assert_ok(record_note_set(copy, changed, length));
        assert_int_equal(pwrite(file, copy, sizeof copy, free_at), (ssize_t)sizeof copy);
    }
    close(file);
    assert_true(written > 10);
    assert_ok(recover_with(site, false, false));
    assert_int_equal(report.entries, entries);
    assert_true(report.elsewhere > 0 && report.without_note > 0);
    (void)check_all(site);
}
