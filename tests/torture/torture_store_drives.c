/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torture_store_drives.c - a store on drives that lie, fail and vanish: right bytes or a miss, and
 * a store that goes on.
 *
 * Needs root; what the machine cannot make is skipped, one by one.
 */
#include "drive_scratch.h"
#include "store_support.h"

#include "base/clock.h"

enum { ENTRIES = 40 };

#define NEVER UINT64_MAX

static kvt_device_config drives_config(const char *name, const char *path, uint64_t timeout_ns)
{
    kvt_device_config config = support_file_config(name, path, 0);
    config.timeout_ns = timeout_ns;
    return config;
}

/* A store whose only tier is SSD, on one or two files, of which the last may stop answering. What
 * lay on them is lost. NULL when the last one was unresponsive while it was opened. */
static kvt_store *drives_store_with(const char *first, const char *second, uint64_t timeout_ns)
{
    kvt_device_config devices[2] = {drives_config("d0", first, second == NULL ? timeout_ns : NEVER),
                                    drives_config("d1", second, timeout_ns)};
    kvt_store *store = NULL;
    char message[256];
    kvt_store_options options = support_options(8 << 20, "lru");
    options.format = true;
    support_tier(&options, KVT_TIER_SSD, devices, second != NULL ? 2 : 1);
    kvt_status status = kvt_store_open(&options, &store, message, sizeof message);
    if (status == KVT_E_GONE && timeout_ns != NEVER) return NULL;
    if (status != KVT_OK) fail_msg("open: %s: %s", kvt_status_name(status), message);
    return store;
}

static kvt_store *drives_store(const char *first, const char *second)
{
    return drives_store_with(first, second, NEVER);
}

static void drives_put_all(kvt_store *store, uint32_t first)
{
    for (uint32_t i = 0; i < ENTRIES; i++)
        assert_ok(support_put(store, first + i));
}

/* Gets all; nothing but right bytes or a miss. Returns how many were there. */
static uint32_t drives_get_all(kvt_store *store, uint32_t first)
{
    uint32_t hits = 0;
    for (uint32_t i = 0; i < ENTRIES; i++) {
        kvt_status status = support_get(store, first + i, NULL);
        if (status == KVT_OK)
            hits++;
        else if (status != KVT_MISS)
            fail_msg("get %u: %s", first + i, kvt_status_name(status));
    }
    return hits;
}

/* Whether the store serves from both drives, and each of them holds entries. */
static bool drives_hold_both(kvt_store *store)
{
    for (size_t i = 0; i < 2; i++) {
        kvt_device_stats stats = {.struct_size = sizeof stats};
        assert_ok(kvt_device_stats_get(store, i, &stats));
        if (stats.state != KVT_DEVICE_SERVING || stats.used_bytes == 0) return false;
    }
    return true;
}

/* A store on two drives, with entries on both. A drive that a busy machine held up while it was
 * measured may get no entry, or be taken for unresponsive: then all begins again, with a longer
 * limit. */
static kvt_store *drives_store_on_both(const drive_scratch drives[2], uint64_t timeout_ns)
{
    for (;;) {
        kvt_store *store = drives_store_with(drives[0].path, drives[1].path, timeout_ns);
        for (uint32_t i = 0; store != NULL && i < ENTRIES; i++)
            (void)!support_put(store, i);
        if (store != NULL && drives_hold_both(store)) {
            assert_int_equal(drives_get_all(store, 0), ENTRIES);
            return store;
        }
        if (store != NULL) kvt_store_close(store);
        if (timeout_ns != NEVER) timeout_ns *= 2;
    }
}

/* What is dropped leaves no room behind. */
static void drives_check_empty(kvt_store *store)
{
    for (uint32_t i = 0; i < 4 * ENTRIES; i++) {
        kvt_key key = support_key(i);
        kvt_status status = kvt_store_delete(store, &key);
        assert_true(status == KVT_OK || status == KVT_MISS);
    }
    assert_int_equal(support_stats(store).tiers[KVT_TIER_SSD].used_bytes, 0);
}

/* Spoils every record on the drive by one setting, then checks that the store only misses. */
static void drives_check_setting(const char *setting, bool before_puts)
{
    drive_scratch drive;
    if (!drive_scratch_make(&drive, "16Mi", "latency_us=0")) skip();
    kvt_store *store = drives_store(drive.path, NULL);
    if (before_puts) assert_true(drive_scratch_set(&drive, setting));
    drives_put_all(store, 0);
    if (!before_puts) {
        assert_int_equal(drives_get_all(store, 0), ENTRIES);
        assert_true(drive_scratch_set(&drive, setting));
    }
    assert_int_equal(drives_get_all(store, 0), 0);
    assert_true(drive_scratch_set(&drive, "clear=1"));
    /* What failed was dropped; the drive is well again and takes them anew. */
    drives_put_all(store, 0);
    assert_int_equal(drives_get_all(store, 0), ENTRIES);
    drives_check_empty(store);
    kvt_store_close(store);
    drive_scratch_remove(&drive);
}

/* The label, 8 KiB at the head, stays readable. */
TEST(corrupt_reads)
{
    drives_check_setting("corrupt=8Ki+1Gi", false);
}

TEST(torn_writes)
{
    drives_check_setting("torn=8Ki+1Gi", true);
}

TEST(failing_reads)
{
    drives_check_setting("eio_read=8Ki+1Gi", false);
}

/* Writes fail on one of two drives: the store says so or uses the other, and serves what it took.
 */
TEST(failing_writes)
{
    drive_scratch drives[2];
    bool first = drive_scratch_make(&drives[0], "16Mi", "latency_us=0");
    bool second = drive_scratch_make(&drives[1], "16Mi", "latency_us=0");
    if (!first || !second) skip();
    kvt_store *store = drives_store(drives[0].path, drives[1].path);
    assert_true(drive_scratch_set(&drives[0], "eio_write=8Ki+1Gi"));
    drives_put_all(store, 0);
    assert_int_equal(drives_get_all(store, 0), ENTRIES);
    assert_true(drive_scratch_set(&drives[0], "clear=1"));
    drives_check_empty(store);
    kvt_store_close(store);
    for (int i = 0; i < 2; i++)
        drive_scratch_remove(&drives[i]);
}

/* One of two drives vanishes: its entries are misses, the other serves and takes new ones. */
TEST(vanished)
{
    drive_scratch drives[2];
    bool first = drive_scratch_make(&drives[0], "16Mi", "latency_us=0");
    bool second = drive_scratch_make(&drives[1], "16Mi", "latency_us=0");
    if (!first || !second) skip();
    kvt_store *store = drives_store_on_both(drives, NEVER);
    assert_true(drive_scratch_kill(&drives[1]));
    uint32_t hits = drives_get_all(store, 0);
    assert_in_range(hits, 1, ENTRIES - 1); /* one unit each: they lie on one drive or the other */
    assert_int_equal(drives_get_all(store, 0), hits);
    drives_put_all(store, ENTRIES);
    assert_int_equal(drives_get_all(store, ENTRIES), ENTRIES);
    assert_int_equal(drives_get_all(store, 0), hits);
    kvt_store_close(store);
    for (int i = 0; i < 2; i++)
        drive_scratch_remove(&drives[i]);
}

static void drives_await_staging(kvt_store *store)
{
    while (support_stats(store).staging_bytes != 0)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

/* Whether an entry lies on the second drive, by a get of it. */
static bool drives_reads_second(kvt_store *store, uint32_t number)
{
    kvt_device_stats before = {.struct_size = sizeof before}, after = {.struct_size = sizeof after};
    assert_ok(kvt_device_stats_get(store, 1, &before));
    assert_ok(support_get(store, number, NULL));
    assert_ok(kvt_device_stats_get(store, 1, &after));
    return after.bytes_read != before.bytes_read;
}

/* One of two drives hangs: gets that need it are misses at their deadline, the others are served,
 * and when it goes on nothing has been lost. */
TEST(hung_gets)
{
    const uint64_t patience_ns = 50000000;
    drive_scratch drives[2];
    static char data[SUPPORT_ENTRY_BYTES];
    bool first = drive_scratch_make(&drives[0], "16Mi", "latency_us=0");
    bool second = drive_scratch_make(&drives[1], "16Mi", "latency_us=0");
    if (!first || !second) skip();
    kvt_store *store = drives_store_on_both(drives, NEVER);
    bool hangs[ENTRIES];
    for (uint32_t i = 0; i < ENTRIES; i++)
        hangs[i] = drives_reads_second(store, i);
    assert_true(drive_scratch_set(&drives[1], "hang=1"));
    uint32_t late = 0;
    uint64_t longest_ns = 0;
    for (uint32_t i = 0; i < ENTRIES; i++) {
        kvt_key key = support_key(i);
        kvt_get_info info = {.struct_size = sizeof info};
        uint64_t begun_ns = base_clock_ns();
        uint64_t deadline_ns = hangs[i] ? begun_ns + patience_ns : NEVER;
        kvt_status status =
            kvt_store_get(store, &key, KVT_PACKED(data, sizeof data), deadline_ns, &info);
        uint64_t took_ns = base_clock_ns() - begun_ns;
        if (hangs[i] && took_ns > longest_ns) longest_ns = took_ns;
        assert_int_equal(status, hangs[i] ? KVT_MISS : KVT_OK);
        assert_int_equal(info.timed_out, hangs[i]);
        late += hangs[i];
    }
    printf("%u of %u gets timed out; the longest took %.1f ms with a deadline of %.1f ms\n", late,
           ENTRIES, (double)longest_ns * 1e-6, (double)patience_ns * 1e-6);
    assert_in_range(late, 1, ENTRIES - 1);
    assert_true(drive_scratch_set(&drives[1], "hang=0"));
    drives_await_staging(store);
    assert_int_equal(drives_get_all(store, 0), ENTRIES);
    drives_check_empty(store);
    kvt_store_close(store);
    for (int i = 0; i < 2; i++)
        drive_scratch_remove(&drives[i]);
}

/* One of two drives hangs for longer than the timeout: it is out of service, puts go to the
 * other, and when it goes on it is taken back with what it held. Writes that were given up have
 * landed by then, and spoiled nothing. */
TEST(hung_retired)
{
    drive_scratch drives[2];
    char message[256] = "";
    bool first = drive_scratch_make(&drives[0], "16Mi", "latency_us=0");
    bool second = drive_scratch_make(&drives[1], "16Mi", "latency_us=0");
    if (!first || !second) skip();
    kvt_store *store = drives_store_on_both(drives, 200000000);
    assert_true(drive_scratch_set(&drives[1], "hang=1"));
    drives_put_all(store, ENTRIES);
    assert_int_equal(drives_get_all(store, ENTRIES), ENTRIES);
    uint32_t hits = drives_get_all(store, 0);
    assert_in_range(hits, 1, ENTRIES - 1);
    assert_true(drive_scratch_set(&drives[1], "hang=0"));
    drives_await_staging(store);
    kvt_device_config back = drives_config("d1", drives[1].path, NEVER);
    kvt_status status = KVT_BUSY;
    while (status == KVT_BUSY)
        status = kvt_device_add(store, KVT_TIER_SSD, &back, message, sizeof message);
    if (status != KVT_OK) fail_msg("add: %s: %s", kvt_status_name(status), message);
    assert_int_equal(drives_get_all(store, 0), ENTRIES);
    assert_int_equal(drives_get_all(store, ENTRIES), ENTRIES);
    drives_check_empty(store);
    kvt_store_close(store);
    for (int i = 0; i < 2; i++)
        drive_scratch_remove(&drives[i]);
}

/* Opens a store on one drive, which may still be held by whoever gave it up. */
static kvt_status drives_open_when_free(const kvt_device_config *device, kvt_store **store_out,
                                        char *message, size_t message_size)
{
    kvt_store_options options = support_options(8 << 20, "lru");
    support_tier(&options, KVT_TIER_SSD, device, 1);
    kvt_status status = KVT_E_LOCKED;
    while (status == KVT_E_LOCKED)
        status = kvt_store_open(&options, store_out, message, message_size);
    return status;
}

/* A store on one drive, with entries. On a machine that hardly runs the drive may pass the limit
 * without having been told to hang: then the limit is twice as long. */
static kvt_store *drives_store_that_may_stop_answering(const char *path, uint64_t timeout_ns)
{
    for (;; timeout_ns *= 2) {
        kvt_device_config device = drives_config("d0", path, timeout_ns);
        char message[256];
        kvt_store *store = NULL;
        kvt_status status = drives_open_when_free(&device, &store, message, sizeof message);
        if (status == KVT_E_GONE) continue;
        if (status != KVT_OK) fail_msg("open: %s: %s", kvt_status_name(status), message);
        uint32_t put = 0;
        for (uint32_t i = 0; i < ENTRIES; i++)
            put += support_put(store, i) == KVT_OK;
        kvt_device_stats stats = {.struct_size = sizeof stats};
        assert_ok(kvt_device_stats_get(store, 0, &stats));
        if (stats.state == KVT_DEVICE_SERVING) {
            assert_int_equal(put, ENTRIES);
            return store;
        }
        kvt_store_close(store);
    }
}

/* A drive hangs while it is opened, by a store that begins or one that it joins: whoever opens it
 * leaves, and it can be had when it goes on. */
TEST(hung_open)
{
    drive_scratch drives[2];
    char message[256] = "";
    kvt_store *store = NULL;
    bool first = drive_scratch_make(&drives[0], "16Mi", "latency_us=0");
    bool second = drive_scratch_make(&drives[1], "16Mi", "latency_us=0");
    if (!first || !second) skip();
    kvt_device_config config = drives_config("d0", drives[0].path, 100000000);
    kvt_device_config joins = drives_config("d1", drives[1].path, 100000000);
    assert_true(drive_scratch_set(&drives[0], "hang=1"));
    assert_int_equal(drives_open_when_free(&config, &store, message, sizeof message), KVT_E_GONE);
    assert_non_null(strstr(message, "does not answer"));
    assert_true(drive_scratch_set(&drives[0], "hang=0"));
    config.timeout_ns = NEVER;
    kvt_status status = drives_open_when_free(&config, &store, message, sizeof message);
    if (status != KVT_OK) fail_msg("open: %s: %s", kvt_status_name(status), message);
    assert_true(drive_scratch_set(&drives[1], "hang=1"));
    assert_int_equal(kvt_device_add(store, KVT_TIER_SSD, &joins, message, sizeof message),
                     KVT_E_GONE);
    assert_non_null(strstr(message, "does not answer"));
    drives_put_all(store, 0);
    assert_int_equal(drives_get_all(store, 0), ENTRIES);
    assert_true(drive_scratch_set(&drives[1], "hang=0"));
    joins.timeout_ns = NEVER;
    do {
        status = kvt_device_add(store, KVT_TIER_SSD, &joins, message, sizeof message);
    } while (status == KVT_E_LOCKED);
    if (status != KVT_OK) fail_msg("add: %s: %s", kvt_status_name(status), message);
    kvt_store_close(store);
    for (int i = 0; i < 2; i++)
        drive_scratch_remove(&drives[i]);
}

/* Somebody writes into the drive's backing file, or punches holes into it. */
TEST(backing_spoiled)
{
    loop_scratch loop;
    int backing = memory_scratch_file(16 << 20);
    if (backing < 0 || !loop_scratch_make(&loop, backing, 0)) skip();
    kvt_store *store = drives_store(loop.path, NULL);
    drives_put_all(store, 0);
    assert_int_equal(drives_get_all(store, 0), ENTRIES);
    for (off_t at = 8 << 10; at < 16 << 20; at += 16 << 10)
        assert_int_equal(pwrite(backing, "spoiled", 7, at + 100), 7);
    assert_int_equal(drives_get_all(store, 0), 0);
    drives_put_all(store, 0);
    assert_int_equal(fallocate(backing, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 8 << 10,
                               (16 << 20) - (8 << 10)),
                     0);
    assert_int_equal(drives_get_all(store, 0), 0);
    drives_put_all(store, 0);
    assert_int_equal(drives_get_all(store, 0), ENTRIES);
    drives_check_empty(store);
    kvt_store_close(store);
    loop_scratch_remove(&loop);
    close(backing);
}

/* A store closes while its drive hangs: the drive's worker is abandoned, and ends when the drive
 * goes on. Last, because ThreadSanitizer does not see that liburing unmaps a ring, and takes one
 * that is mapped in its place for a race with the abandoned worker. */
TEST(hung_close)
{
    drive_scratch drive;
    static char data[SUPPORT_ENTRY_BYTES];
    if (!drive_scratch_make(&drive, "16Mi", "latency_us=0")) skip();
    kvt_store *store = drives_store_that_may_stop_answering(drive.path, 100000000);
    assert_true(drive_scratch_set(&drive, "hang=1"));
    kvt_key key = support_key(1);
    assert_int_equal(
        kvt_store_get(store, &key, KVT_PACKED(data, sizeof data), base_clock_ns() + 20000000, NULL),
        KVT_MISS);
    kvt_store_close(store);
    assert_true(drive_scratch_set(&drive, "hang=0"));
    /* It lets the drive go: another store can take it. */
    kvt_device_config config = drives_config("d0", drive.path, NEVER);
    kvt_device *device = NULL;
    kvt_status status = KVT_E_LOCKED;
    while (status == KVT_E_LOCKED)
        status = kvt_device_open(&config, &device, NULL, 0);
    assert_ok(status);
    kvt_device_close(device);
    drive_scratch_remove(&drive);
}

int main(void)
{
    if (geteuid() != 0) {
        printf("torture_store_drives: needs root\n");
        return 77;
    }
    return tests_run();
}
