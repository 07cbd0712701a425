/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_bench_verify.c - verify and inspect over a real store on two SSD files: sound, damaged,
 * missing, exchanged; and that neither changes a byte.
 */
#include "store_support.h"
#include "tools/inspect/inspect.h"

#include <fcntl.h>
#include <sys/stat.h>

#define VERIFY_ENTRIES 24u

typedef struct verify_fixture {
    char folder[64];
    char catalog[96];
    char path[2][96];
    kvt_device_config devices[2];
    kvt_store_options options;
} verify_fixture;

/* What the observer saw. */
typedef struct verify_seen {
    uint64_t devices;
    uint64_t entries;
    char reason[128]; /* the last one */
    uint64_t stop_after;
} verify_seen;

static void seen_fault(void *context, const char *device, const kvt_key *key, const char *reason)
{
    verify_seen *seen = context;
    assert_true((device == NULL) != (key == NULL));
    if (key) {
        seen->entries++;
    } else {
        seen->devices++;
    }
    (void)snprintf(seen->reason, sizeof seen->reason, "%s", reason);
}

static bool seen_progress(void *context, uint64_t done, uint64_t total)
{
    verify_seen *seen = context;
    assert_true(done >= 1 && done <= total);
    return seen->stop_after == 0 || done < seen->stop_after;
}

static void fixture_fill(verify_fixture *fixture)
{
    char message[256] = "";
    kvt_store *store = NULL;
    if (kvt_store_open(&fixture->options, &store, message, sizeof message) != KVT_OK) {
        fail_msg("%s", message);
    }
    support_puts(store, 0, VERIFY_ENTRIES);
    assert_ok(kvt_store_flush(store));
    kvt_store_close(store);
}

/* A store in fixture->folder, filled and closed. */
static void fixture_make(verify_fixture *fixture)
{
    (void)snprintf(fixture->catalog, sizeof fixture->catalog, "%s/catalog.db", fixture->folder);
    kvt_store_options_init(&fixture->options);
    fixture->options.limits.put_staging_bytes = 0; /* a put says how its write went */
    fixture->options.limits.staging_bytes = 8 << 20;
    for (int i = 0; i < 2; i++) {
        (void)snprintf(fixture->path[i], sizeof fixture->path[i], "%s/ssd%d", fixture->folder, i);
        fixture->devices[i] = support_file_config(i ? "ssd1" : "ssd0", fixture->path[i], 16u << 20);
    }
    fixture->options.durability.catalog_path = fixture->catalog;
    fixture->options.policy = "lru";
    fixture->options.limits.tick_seconds = 0;
    support_tier(&fixture->options, KVT_TIER_SSD, fixture->devices, 2);
    fixture->options.tiers[KVT_TIER_SSD].unit_bytes = 8192;
    fixture_fill(fixture);
}

TEST_BEFORE_EACH
{
    verify_fixture *fixture = test_zeros(sizeof *fixture);
    support_make_folder(fixture->folder, sizeof fixture->folder);
    fixture_make(fixture);
    *state = fixture;
}

static kvt_status run_verify(const verify_fixture *fixture, verify_counts *counts,
                             verify_seen *seen)
{
    char message[256] = "";
    uint64_t stop_after = seen->stop_after;
    memset(seen, 0, sizeof *seen);
    seen->stop_after = stop_after;
    const verify_observer observer = {
        .context = seen, .fault = seen_fault, .progress = seen_progress};
    kvt_status status = verify_store(&fixture->options, &observer, counts, message, sizeof message);
    assert_true(status == KVT_OK || status == KVT_E_CANCELLED || message[0] != '\0');
    return status;
}

/* Finds the first record of a device file and flips one bit near its end. */
static void damage(const char *path)
{
    static unsigned char page[4096];
    int descriptor = open(path, O_RDWR);
    assert_true(descriptor >= 0);
    off_t at = 8192;
    for (;; at += (off_t)sizeof page) {
        assert_int_equal(pread(descriptor, page, sizeof page, at), (ssize_t)sizeof page);
        bool any = false;
        for (size_t i = 0; i < sizeof page; i++)
            any = any || page[i] != 0;
        if (any) break;
    }
    page[77] ^= 4;
    assert_int_equal(pwrite(descriptor, page, sizeof page, at), (ssize_t)sizeof page);
    assert_int_equal(close(descriptor), 0);
}

static uint64_t file_sum(const char *path)
{
    unsigned char page[4096];
    uint64_t sum = 14695981039346656037u;
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    size_t got;
    while ((got = fread(page, 1, sizeof page, file)) > 0) {
        for (size_t i = 0; i < got; i++)
            sum = (sum ^ page[i]) * 1099511628211u;
    }
    assert_int_equal(fclose(file), 0);
    return sum;
}

TEST(sound)
{
    verify_fixture *fixture = *state;
    verify_counts counts;
    verify_seen seen = {0};
    uint64_t before[3] = {file_sum(fixture->path[0]), file_sum(fixture->path[1]),
                          file_sum(fixture->catalog)};
    for (int round = 0; round < 2; round++) {
        assert_ok(run_verify(fixture, &counts, &seen));
        assert_int_equal(counts.entries, VERIFY_ENTRIES);
        assert_int_equal(counts.sound, VERIFY_ENTRIES);
        assert_int_equal(counts.faulty + counts.devices_faulty, 0);
        assert_int_equal(counts.devices, 2);
        assert_true(counts.bytes_read >= VERIFY_ENTRIES * (uint64_t)SUPPORT_ENTRY_BYTES);
        assert_int_equal(seen.devices + seen.entries, 0);
    }
    assert_true(before[0] == file_sum(fixture->path[0]));
    assert_true(before[1] == file_sum(fixture->path[1]));
    assert_true(before[2] == file_sum(fixture->catalog));
}

/* A device that trims what is given back keeps what was only looked at: rounds, because trimming is
 * the worker's, beside the walk and after it. */
TEST(sound_with_trim)
{
    verify_fixture *fixture = *state;
    verify_counts counts;
    verify_seen seen = {0};
    for (int i = 0; i < 2; i++)
        fixture->devices[i].trim = true;
    uint64_t before[2] = {file_sum(fixture->path[0]), file_sum(fixture->path[1])};
    for (int round = 0; round < 24; round++) {
        assert_ok(run_verify(fixture, &counts, &seen));
        assert_int_equal(counts.sound, VERIFY_ENTRIES);
    }
    assert_true(before[0] == file_sum(fixture->path[0]));
    assert_true(before[1] == file_sum(fixture->path[1]));
}

TEST(damaged)
{
    verify_fixture *fixture = *state;
    verify_counts counts;
    verify_seen seen = {0};
    damage(fixture->path[1]);
    assert_ok(run_verify(fixture, &counts, &seen));
    assert_int_equal(counts.faulty, 1);
    assert_int_equal(counts.sound, VERIFY_ENTRIES - 1);
    assert_int_equal(seen.entries, 1);
}

TEST(missing)
{
    verify_fixture *fixture = *state;
    verify_counts counts;
    verify_seen seen = {0};
    assert_int_equal(unlink(fixture->path[0]), 0);
    assert_ok(run_verify(fixture, &counts, &seen));
    assert_int_equal(seen.devices, 1);
    assert_int_equal(counts.devices_faulty, 1);
    assert_true(counts.faulty > 0);
    assert_int_equal(counts.faulty, seen.entries);
    assert_int_equal(counts.faulty + counts.sound, VERIFY_ENTRIES);
    assert_int_equal(access(fixture->path[0], F_OK), -1);
    assert_int_equal(unlink(fixture->path[1]), 0);
    assert_ok(run_verify(fixture, &counts, &seen));
    assert_int_equal(counts.faulty, VERIFY_ENTRIES);
}

TEST(exchanged)
{
    verify_fixture *fixture = *state;
    verify_counts counts;
    verify_seen seen = {0};
    const char *first = fixture->devices[0].path;
    fixture->devices[0].path = fixture->devices[1].path;
    fixture->devices[1].path = first;
    assert_ok(run_verify(fixture, &counts, &seen));
    assert_int_equal(counts.devices_faulty, 2);
    assert_int_equal(counts.faulty, VERIFY_ENTRIES);
}

TEST(refusals)
{
    verify_fixture *fixture = *state;
    verify_counts counts;
    verify_seen seen = {.stop_after = 3};
    assert_int_equal(run_verify(fixture, &counts, &seen), KVT_E_CANCELLED);
    assert_int_equal(counts.entries, 3);
    seen.stop_after = 0;
    kvt_store *store = support_open(&fixture->options);
    assert_int_equal(run_verify(fixture, &counts, &seen), KVT_E_LOCKED);
    kvt_store_close(store);
    fixture->options.durability.catalog_path = "no-such-catalog.db";
    assert_int_equal(run_verify(fixture, &counts, &seen), KVT_E_GONE);
    assert_int_equal(access("no-such-catalog.db", F_OK), -1);
    fixture->options.durability.catalog_path = NULL;
    assert_int_equal(run_verify(fixture, &counts, &seen), KVT_E_CONFIG);
}

/* ---- inspect ---- */

typedef struct inspect_seen {
    uint8_t pool[16];
    uint64_t epoch;
    uint64_t devices;
    uint64_t entries;
    uint64_t members;
} inspect_seen;

static bool seen_identity(void *context, const uint8_t pool[16], uint64_t epoch)
{
    inspect_seen *seen = context;
    memcpy(seen->pool, pool, 16);
    seen->epoch = epoch;
    return true;
}

static bool seen_device(void *context, const inspect_catalog_device *device)
{
    inspect_seen *seen = context;
    assert_int_equal(device->tier, KVT_TIER_SSD);
    assert_string_equal(device->name, device->member ? "ssd1" : "ssd0");
    seen->devices++;
    return true;
}

static bool seen_entry(void *context, const inspect_entry *entry)
{
    inspect_seen *seen = context;
    assert_true(entry->readable);
    assert_true(entry->extents > 0);
    assert_int_equal(entry->layout.tokens, support_layout.tokens);
    assert_int_equal(entry->tokens_kept, support_layout.tokens);
    seen->members |= entry->members;
    seen->entries++;
    return true;
}

TEST(inspect)
{
    verify_fixture *fixture = *state;
    char message[256] = "";
    inspect_kind kind;
    inspect_label label;
    inspect_seen seen = {.devices = 0};
    const inspect_visitor visitor = {
        .context = &seen, .identity = seen_identity, .device = seen_device, .entry = seen_entry};
    assert_ok(inspect_identify(fixture->catalog, &kind, message, sizeof message));
    assert_int_equal(kind, INSPECT_DATABASE);
    assert_ok(inspect_catalog(fixture->catalog, &visitor, message, sizeof message));
    assert_int_equal(seen.entries, VERIFY_ENTRIES);
    assert_int_equal(seen.devices, 2);
    assert_int_equal(seen.members, 3);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(inspect_identify(fixture->path[i], &kind, message, sizeof message), 0);
        assert_int_equal(kind, INSPECT_DEVICE);
        assert_int_equal(inspect_device(fixture->path[i], &label, message, sizeof message), 0);
        assert_int_equal(label.state, INSPECT_LABEL_SOUND);
        assert_int_equal(label.member, i);
        assert_true(label.epoch == seen.epoch);
        assert_memory_equal(label.pool, seen.pool, sizeof label.pool);
    }
    assert_int_equal(inspect_identify("nowhere", &kind, message, sizeof message), KVT_E_GONE);
}

/* A record on its own, as a file. */
TEST(inspect_record)
{
    verify_fixture *fixture = *state;
    static unsigned char data[SUPPORT_ENTRY_BYTES];
    char path[96], message[256] = "";
    kvt_record_spec spec = {.key = support_key(3),
                            .generation = 9,
                            .layout = support_layout,
                            .variant = {.codec = KVT_CODEC_LOSSLESS, .mode = KVT_LOSSLESS_DENSE}};
    uint64_t capacity, scratch_bytes, bytes;
    support_fill(3, data);
    assert_ok(kvt_record_bound(&spec, &capacity, &scratch_bytes));
    void *record = NULL, *scratch = NULL;
    assert_int_equal(posix_memalign(&record, 4096, capacity), 0);
    assert_int_equal(posix_memalign(&scratch, 64, scratch_bytes + 64), 0);
    assert_true(kvt_record_encode(&spec, data, sizeof data, record, capacity, scratch,
                                  scratch_bytes, &bytes) >= 0);
    for (int round = 0; round < 2; round++) {
        inspect_kind kind;
        kvt_record_info info;
        (void)snprintf(path, sizeof path, "%s/record%d", fixture->folder, round);
        FILE *file = fopen(path, "we");
        assert_non_null(file);
        if (round == 1) ((unsigned char *)record)[bytes - 1] ^= 1;
        assert_int_equal(fwrite(record, 1, bytes, file), bytes);
        assert_int_equal(fclose(file), 0);
        assert_ok(inspect_identify(path, &kind, message, sizeof message));
        assert_int_equal(kind, INSPECT_RECORD);
        assert_int_equal(inspect_record(path, NULL, &info, message, sizeof message),
                         round == 0 ? KVT_OK : KVT_E_CORRUPT);
        if (round == 0) assert_int_equal(info.spec.generation, 9);
    }
    free(record);
    free(scratch);
}

/* `test_bench_verify --make FOLDER` only makes a store there, for the tests of the command. */
int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--make") == 0) {
        static verify_fixture fixture;
        (void)snprintf(fixture.folder, sizeof fixture.folder, "%s", argv[2]);
        fixture_make(&fixture);
        return 0;
    }
    return tests_run();
}
