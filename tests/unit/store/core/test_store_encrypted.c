/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_encrypted.c - a store on encrypted devices: nothing of an entry lies on them in plain,
 * nothing is lost by wrong keys, damage and rotation, and recovery and followers read it.
 */
#include "store_folder.h"

#include "tiers/pool/pool.h"
#include "tiers/seal/seal_header.h"

#include "store/core/store.h"

#include <dirent.h>
#include <kvterrace/recover.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>

TEST_EACH(store_folder_make, NULL);

enum { DRIVES = 2, NUMBERS = 48 };

static const char key_a[] = "00112233445566778899aabbccddeeff0123456789abcdef0123456789abcdef\n";
static const char key_b[] = "ff112233445566778899aabbccddeeff0123456789abcdef0123456789abcdef\n";

static char drive_paths[DRIVES][96], key_path[96];
static kvt_device_config drives[DRIVES];

static void write_key_mode(const char *first, const char *second, mode_t mode)
{
    char draft[128];
    snprintf(draft, sizeof draft, "%s-draft", key_path);
    FILE *file = fopen(draft, "we");
    assert_non_null(file);
    assert_int_equal(fchmod(fileno(file), mode), 0);
    fprintf(file, "%s%s", first, second);
    fclose(file);
    assert_int_equal(rename(draft, key_path), 0);
}

static void write_key(const char *first, const char *second)
{
    write_key_mode(first, second, 0600);
}

/* Two drives over which every record is spread, as its bytes are. */
static kvt_store_options encrypted_options(bool encrypted)
{
    static const char *const names[DRIVES] = {"d0", "d1"};
    kvt_store_options options = support_options(4 << 20, "lru");
    options.durability.catalog_path = catalog_path;
    options.variant.codec = KVT_CODEC_RAW;
    options.lossless = false;
    snprintf(key_path, sizeof key_path, "%s/key", folder);
    for (int i = 0; i < DRIVES; i++) {
        snprintf(drive_paths[i], sizeof drive_paths[i], "%s/%s", folder, names[i]);
        drives[i] = support_file_config(names[i], drive_paths[i], 6 << 20);
        if (encrypted) drives[i].key_file = key_path;
    }
    support_tier(&options, KVT_TIER_SSD, drives, DRIVES);
    options.tiers[KVT_TIER_SSD].unit_bytes = 4096;
    if (access(key_path, F_OK) != 0) write_key(key_a, "");
    return options;
}

/* How many of the entries have bytes in a file of the folder. */
static uint32_t count_in_plain(void)
{
    static bool found[NUMBERS];
    struct dirent *one;
    DIR *all = opendir(folder);
    memset(found, 0, sizeof found);
    while ((one = readdir(all)) != NULL) {
        char path[400];
        snprintf(path, sizeof path, "%s/%s", folder, one->d_name);
        FILE *file = fopen(path, "re");
        if (file == NULL || one->d_name[0] == '.') continue;
        char *bytes = test_alloc(8 << 20);
        const size_t count = fread(bytes, 1, 8 << 20, file);
        fclose(file);
        for (uint32_t i = 0; i < NUMBERS; i++) {
            static char data[SUPPORT_ENTRY_BYTES];
            support_fill(i, data);
            for (size_t at = 0; at + 64 <= sizeof data && !found[i]; at += 16384)
                found[i] = memmem(bytes, count, data + at, 32) != NULL;
        }
    }
    closedir(all);
    uint32_t total = 0;
    for (uint32_t i = 0; i < NUMBERS; i++)
        total += found[i];
    return total;
}

TEST(nothing_lies_in_plain)
{
    for (int encrypted = 0; encrypted < 2; encrypted++) {
        for (int i = 0; i < DRIVES; i++)
            (void)unlink(drive_paths[i]);
        (void)unlink(catalog_path);
        const kvt_store_options options = encrypted_options(encrypted == 1);
        kvt_store *store = support_open(&options);
        support_puts(store, 0, NUMBERS);
        assert_ok(kvt_store_flush(store));
        support_gets(store, 0, NUMBERS);
        kvt_store_close(store);
        assert_int_equal(count_in_plain(), encrypted == 1 ? 0 : NUMBERS);
        store = support_open(&options);
        support_gets(store, 0, NUMBERS);
        const kvt_store_stats stats = support_stats(store);
        assert_int_equal(stats.load_failures, 0);
        kvt_store_close(store);
    }
}

static void expect_refused(const kvt_store_options *options, kvt_status expected, const char *words)
{
    kvt_store *store = NULL;
    char message[256] = "";
    assert_int_equal(kvt_store_open(options, &store, message, sizeof message), expected);
    if (strstr(message, words) == NULL) fail_msg("'%s' is not in '%s'", words, message);
    assert_non_null(strstr(message, "d0")); /* the device is named */
}

/* No key that is wrong or gone, and no setting that is, opens the store or costs it anything, even
 * with store.format. */
TEST(wrong_keys_cost_nothing)
{
    for (int first_plain = 0; first_plain < 2; first_plain++) {
        for (int i = 0; i < DRIVES; i++)
            (void)unlink(drive_paths[i]);
        (void)unlink(catalog_path);
        kvt_store_options options = encrypted_options(first_plain == 0);
        kvt_store *store = support_open(&options);
        support_puts(store, 0, 8);
        assert_ok(kvt_store_flush(store));
        kvt_store_close(store);
        for (int format = 0; format < 2; format++) {
            kvt_store_options other = encrypted_options(first_plain == 1);
            other.format = format == 1;
            expect_refused(&other, KVT_E_MISMATCH,
                           first_plain == 1 ? "is not encrypted" : "is encrypted");
            other = encrypted_options(true);
            other.format = format == 1;
            write_key(key_b, "");
            expect_refused(&other, KVT_E_MISMATCH,
                           first_plain == 1 ? "is not encrypted" : "wrong key");
            assert_int_equal(unlink(key_path), 0);
            expect_refused(&other, KVT_E_CONFIG, "cannot be read");
            write_key(key_a, "");
        }
        options = encrypted_options(first_plain == 0);
        store = support_open(&options);
        support_gets(store, 0, 8);
        kvt_store_close(store);
    }
}

/* Bits of units flip on both drives: each get of their entries is a miss, the damage is counted by
 * device, and every other entry is whole. */
TEST(damage_is_a_miss)
{
    const kvt_store_options options = encrypted_options(true);
    kvt_store *store = support_open(&options);
    support_puts(store, 0, NUMBERS);
    assert_ok(kvt_store_flush(store));
    kvt_store_close(store);
    for (int i = 0; i < DRIVES; i++) {
        FILE *file = fopen(drive_paths[i], "r+e");
        assert_non_null(file);
        for (long at = (1 << 20) + (256 << 10); at < (1 << 20) + (320 << 10); at += 4096) {
            assert_int_equal(fseek(file, at + 100, SEEK_SET), 0);
            const int byte = fgetc(file);
            assert_int_equal(fseek(file, at + 100, SEEK_SET), 0);
            fputc(byte ^ 4, file);
        }
        fclose(file);
    }
    store = support_open(&options);
    uint32_t hits = 0;
    for (uint32_t i = 0; i < NUMBERS; i++) {
        const kvt_status status = support_get(store, i, NULL);
        assert_true(status == KVT_OK || status == KVT_MISS);
        hits += status == KVT_OK;
    }
    assert_true(hits > NUMBERS / 2 && hits < NUMBERS);
    for (size_t i = 0; i < DRIVES; i++) {
        kvt_device_stats device = {.struct_size = sizeof device};
        assert_ok(kvt_device_stats_get(store, i, &device));
        assert_true(device.tag_faults >= 16);
        assert_true((device.facts.flags & KVT_DEVICE_ENCRYPTED) != 0);
    }
    kvt_store_close(store);
}

/* How many keys a drive's header has. */
static uint64_t header_keys(int drive)
{
    uint64_t sequence[2] = {0}, keys[2] = {0};
    FILE *file = fopen(drive_paths[drive], "re");
    for (int slot = 0; slot < 2; slot++) {
        assert_int_equal(fseek(file, slot * 4096L + 48, SEEK_SET), 0);
        assert_int_equal(fread(&sequence[slot], 8, 1, file), 1);
        assert_int_equal(fread(&keys[slot], 8, 1, file), 1);
    }
    fclose(file);
    return keys[sequence[1] > sequence[0]];
}

typedef struct worker_site {
    kvt_store *store;
    uint32_t from;
    atomic_bool stop;
} worker_site;

static void *run_worker(void *context)
{
    worker_site *site = context;
    for (uint32_t round = 0; !atomic_load(&site->stop); round++) {
        const uint32_t number = site->from + round % (NUMBERS / 2);
        kvt_status status = support_put(site->store, number);
        if (status != KVT_OK && status != KVT_EXISTS && status != KVT_BUSY) abort();
        status = support_get(site->store, number, NULL);
        if (status != KVT_OK && status != KVT_MISS) abort(); /* KVT_E_CORRUPT: other bytes */
        const kvt_key key = support_key(number);
        if (round % 3 == 0) (void)!kvt_store_delete(site->store, &key);
        if (round % 8 == 0) (void)!kvt_store_flush(site->store);
    }
    return NULL;
}

/* The key changes under puts and gets; then rekey takes the old one out. */
TEST(keys_change_while_it_serves)
{
    const kvt_store_options options = encrypted_options(true);
    kvt_store *store = support_open(&options);
    worker_site sites[2] = {{.store = store}, {.store = store, .from = NUMBERS / 2}};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, run_worker, &sites[i]), 0);
    usleep(50000);
    write_key("not a key\n", "");
    usleep(50000);
    write_key(key_b, key_a);
    for (int i = 0; i < 2000 && (header_keys(0) < 2 || header_keys(1) < 2); i++)
        usleep(10000);
    usleep(50000);
    for (int i = 0; i < 2; i++) {
        atomic_store(&sites[i].stop, true);
        pthread_join(threads[i], NULL);
        assert_int_equal(header_keys(i), 2);
    }
    for (uint32_t i = 0; i < NUMBERS; i++) {
        const kvt_status status = support_put(store, i);
        assert_true(status == KVT_OK || status == KVT_EXISTS);
    }
    assert_ok(kvt_store_flush(store));
    support_gets(store, 0, NUMBERS);
    assert_int_equal(support_stats(store).load_failures, 0);
    kvt_store_close(store);

    char message[256];
    kvt_rekey_report report = {.struct_size = sizeof report};
    write_key(key_b, "");
    assert_int_equal(kvt_store_rekey(&options, NULL, NULL, &report, message, sizeof message),
                     KVT_E_MISMATCH);
    assert_non_null(strstr(message, "is missing"));
    write_key(key_b, key_a);
    assert_ok(kvt_store_rekey(&options, NULL, NULL, &report, message, sizeof message));
    assert_int_equal(report.devices, DRIVES);
    assert_int_equal(report.damaged_bytes, 0);
    assert_true(report.changed_bytes > 0);
    write_key(key_b, "");
    store = support_open(&options);
    support_gets(store, 0, NUMBERS);
    kvt_store_close(store);
    report.struct_size = 3;
    assert_int_equal(kvt_store_rekey(&options, NULL, NULL, &report, NULL, 0), KVT_E_ARGUMENT);
    report.struct_size = sizeof report;
    assert_int_equal(unlink(drive_paths[1]), 0);
    assert_int_equal(kvt_store_rekey(&options, NULL, NULL, &report, message, sizeof message),
                     KVT_E_GONE);
    assert_int_not_equal(access(drive_paths[1], F_OK), 0); /* and it was not made */
}

/* Whether health says of each drive what has become of its key file, and nothing else; NULL: all is
 * in order. */
static bool health_says(kvt_store *store, const char *words)
{
    kvt_health_item items[8];
    size_t count = 0;
    items[0].struct_size = sizeof items[0];
    assert_ok(kvt_health_get(store, items, 8, &count, NULL));
    assert_true(count == 0 || count == DRIVES); /* both sync with each flush */
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(items[i].kind, KVT_HEALTH_DEVICE);
        assert_int_equal(items[i].status, KVT_E_CONFIG);
        assert_string_equal(items[i].name, drives[i].name);
        assert_null(strstr(items[i].text, "00112233445566778899"));
        if (words == NULL || strstr(items[i].text, words) == NULL) return false;
    }
    return (count == 0) == (words == NULL);
}

/* A key file that changes into one that cannot be taken costs nothing and is said, until it is one
 * that can. */
TEST(a_refused_key_is_said)
{
    static const char short_key[] = "0011\n";
    const kvt_store_options options = encrypted_options(true);
    const struct {
        const char *first, *second, *words;
        mode_t mode;
    } files[] = {{key_b, "", "wrong key", 0600},
                 {short_key, key_a, "it is not 64 hexadecimal digits", 0600},
                 {key_a, key_a, "the key is there twice", 0600},
                 {"# none\n", "", "there is no key", 0600},
                 {"", "", "is empty", 0600},
                 {key_b, key_a, "may be read by others", 0644},
                 {NULL, NULL, "cannot be read", 0}};
    kvt_store *store = support_open(&options);
    uint32_t number = 0;
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        for (int sound = 1; sound >= 0; sound--) {
            const char *words = sound ? NULL : files[i].words;
            if (sound)
                write_key(key_a, "");
            else if (files[i].first == NULL)
                assert_int_equal(unlink(key_path), 0);
            else
                write_key_mode(files[i].first, files[i].second, files[i].mode);
            bool said = false;
            for (int tries = 0; tries < 500 && !said; tries++) {
                const kvt_key key = support_key(++number % NUMBERS);
                assert_ok(support_put(store, number % NUMBERS));
                assert_ok(kvt_store_flush(store));
                said = health_says(store, words);
                assert_ok(kvt_store_delete(store, &key));
            }
            if (!said) fail_msg("file %zu: '%s' is not said", i, words != NULL ? words : "");
        }
    }
    support_puts(store, 0, 8);
    assert_ok(kvt_store_flush(store));
    support_gets(store, 0, 8);
    kvt_store_close(store);
    for (int i = 0; i < DRIVES; i++)
        assert_int_equal(header_keys(i), 1); /* the last sound file has the old key alone */
    write_key(key_a, "");
    store = support_open(&options);
    support_gets(store, 0, 8);
    kvt_store_close(store);
}

/* A lost catalog is rebuilt from the devices, and a follower reads them. */
TEST(recovery_and_followers_read_it)
{
    kvt_store_options options = encrypted_options(true);
    kvt_store *store = support_open(&options);
    support_puts(store, 0, NUMBERS);
    assert_ok(kvt_store_flush(store));
    kvt_store_close(store);
    assert_int_equal(unlink(catalog_path), 0);
    char message[256];
    static kvt_recover_report report;
    kvt_recover_options recover;
    report.struct_size = sizeof report;
    kvt_recover_options_init(&recover);
    write_key(key_b, "");
    assert_int_equal(kvt_store_recover(&options, &recover, &report, message, sizeof message),
                     KVT_E_MISMATCH);
    assert_non_null(strstr(message, "wrong key"));
    write_key(key_a, "");
    assert_ok(kvt_store_recover(&options, &recover, &report, message, sizeof message));
    assert_int_equal(report.entries, NUMBERS);
    store = support_open(&options);
    support_gets(store, 0, NUMBERS);
    kvt_store_close(store);

    options.follow = true;
    store = support_open(&options);
    support_gets(store, 0, NUMBERS);
    kvt_store_close(store);
}

/* Memory that is encrypted is lent to nobody, and serves all the same. */
TEST(memory_is_not_lent)
{
    kvt_store_options options = support_options(4 << 20, "lru");
    const kvt_device_config memory = {.struct_size = sizeof memory,
                                      .name = "d0",
                                      .backend = "memory",
                                      .capacity_bytes = 6 << 20,
                                      .key_command = "printf '%064d' 9"};
    support_tier(&options, KVT_TIER_DRAM, &memory, 1);
    kvt_store *store = support_open(&options);
    assert_false(tiers_pool_in_memory(store->pools[KVT_TIER_DRAM]));
    support_puts(store, 0, NUMBERS);
    support_gets(store, 0, NUMBERS);
    kvt_store_close(store);
}
