/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_basis_keep.c - bases as files beside the catalog: a store is moved with them, one that
 * nothing needs is removed, and what somebody else has put in their place is refused, without a
 * store that refuses. Single thread.
 */
#include "basis_site.h"
#include "small_filesystem.h"

#include <glob.h>

#include <kvterrace/recover.h>

#include <fcntl.h>
#include <sys/stat.h>

enum { ENTRIES = 12 };

static void run(const char *format, const char *from, const char *to)
{
    char command[512];
    (void)snprintf(command, sizeof command, format, from, to);
    assert_int_equal(system(command), 0);
}

static uint32_t count_found(const basis_site *at, kvt_store *store)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < ENTRIES; i++) {
        const kvt_status status = basis_site_get(at, store, i, NULL);
        assert_true(status == KVT_OK || status == KVT_MISS || status == KVT_E_MISMATCH);
        found += status == KVT_OK;
    }
    return found;
}

static bool is_there(const char *path)
{
    struct stat facts;
    return lstat(path, &facts) == 0;
}

TEST_EACH(basis_site_set_up, basis_site_tear_down);

/* Catalog, devices and the files of bases are the whole of a store. */
TEST(a_copy_elsewhere_is_complete)
{
    basis_site copy = site;
    char folder[sizeof site.folder];
    kvt_store_close(basis_site_filled(&site, ENTRIES));
    support_make_folder(folder, sizeof folder);
    basis_site_name(&copy, folder);
    run("cp %s %s", site.ssd_path, copy.ssd_path);
    run("cp %s* %s/", site.catalog_path, folder);
    run("cp %s %s/", site.profile_path, folder);
    support_remove_folder(site.folder);
    kvt_store *store = basis_site_store(&copy, BASIS_SITE_EXACT);
    assert_int_equal(basis_site_info(store).state, KVT_BASIS_PRESENT);
    assert_int_equal(count_found(&copy, store), ENTRIES);
    kvt_store_close(store);
    /* Without the file of the basis nothing wrong is given, and nothing is lost. */
    assert_int_equal(unlink(copy.basis_path), 0);
    store = basis_site_store(&copy, BASIS_SITE_EXACT);
    assert_int_equal(count_found(&copy, store), 0);
    assert_ok(kvt_basis_add(store, site.made.object, site.made.bytes));
    assert_int_equal(count_found(&copy, store), ENTRIES);
    kvt_store_close(store);
}

/* Makes a catalog anew from the devices. */
static void rebuild(void)
{
    const kvt_device_config device = support_file_config("ssd0", site.ssd_path, BASIS_SITE_ROOM);
    const kvt_recover_options how = {.struct_size = sizeof how};
    kvt_recover_report report = {.struct_size = sizeof report};
    kvt_store_options options;
    char message[256] = "";
    kvt_store_options_init(&options);
    support_tier(&options, KVT_TIER_SSD, &device, 1);
    options.durability.catalog_path = site.catalog_path;
    if (kvt_store_recover(&options, &how, &report, message, sizeof message) != KVT_OK)
        fail_msg("recover: %s", message);
    assert_int_equal(report.entries, ENTRIES);
}

/* The files of bases outlive a catalog; without them its rows still say which they need. */
TEST(a_rebuilt_catalog_finds_its_bases)
{
    kvt_store_close(basis_site_filled(&site, ENTRIES));
    run("rm -f %s %s-*", site.catalog_path, site.catalog_path);
    rebuild();
    kvt_store *store = basis_site_store(&site, BASIS_SITE_EXACT);
    assert_int_equal(count_found(&site, store), ENTRIES);
    kvt_store_close(store);
    run("rm -f %s* %s-*", site.catalog_path, site.catalog_path);
    rebuild();
    store = basis_site_store(&site, BASIS_SITE_EXACT);
    assert_int_equal(count_found(&site, store), 0);
    const kvt_basis_info info = basis_site_info(store);
    assert_int_equal(info.state, KVT_BASIS_MISSING);
    assert_int_equal(info.records, ENTRIES);
    assert_int_equal(info.hash_bits, 256);
    assert_memory_equal(info.hash, site.made.basis.hash, sizeof info.hash);
    assert_ok(kvt_basis_add(store, site.made.object, site.made.bytes));
    assert_int_equal(count_found(&site, store), ENTRIES);
    kvt_store_close(store);
}

/* A disk that is full while the file of a basis is written. */
TEST(a_full_disk_takes_no_basis)
{
    kvt_basis_info info = {.struct_size = sizeof info};
    char draft[160];
    if (!small_filesystem_mount(site.folder, "size=24m")) skip();
    const test_rung rung = {site.form_name, 4.0, 0.005, 0.009, true};
    basis_site_make_profile(&site, &rung);
    kvt_store *store = basis_site_store(&site, BASIS_SITE_EXACT);
    assert_ok(basis_site_put(store, 0));
    assert_ok(kvt_store_flush(store));
    small_filesystem_fill(site.folder);
    assert_int_equal(kvt_basis_add(store, site.made.object, site.made.bytes), KVT_E_SPACE);
    assert_int_equal(kvt_basis_get(store, 0, &info), KVT_END);
    (void)snprintf(draft, sizeof draft, "%s.new*", site.basis_path);
    glob_t found;
    assert_int_equal(glob(draft, 0, NULL, &found), GLOB_NOMATCH);
    assert_false(is_there(site.basis_path));
    assert_ok(basis_site_get(&site, store, 0, NULL));
    small_filesystem_make_room(site.folder);
    assert_ok(kvt_basis_add(store, site.made.object, site.made.bytes));
    assert_true(is_there(site.basis_path));
    kvt_store_close(store);
    small_filesystem_unmount(site.folder);
}

/* By another name of the catalog, which a link leads to, the files are those beside the catalog. */
TEST(a_link_to_the_catalog_finds_its_bases)
{
    char link[160];
    kvt_store_close(basis_site_filled(&site, ENTRIES));
    (void)snprintf(link, sizeof link, "%s/other", site.folder);
    assert_int_equal(symlink("catalog.db", link), 0);
    const kvt_device_config device = support_file_config("ssd0", site.ssd_path, BASIS_SITE_ROOM);
    kvt_store_options options;
    kvt_store_options_init(&options);
    support_tier(&options, KVT_TIER_SSD, &device, 1);
    options.durability.catalog_path = link;
    options.follow_symlinks = true;
    options.learning.profile_path = site.profile_path;
    options.loss.ladder = true;
    options.loss.ladder_layout = basis_site_layout;
    options.policy = "lru";
    options.limits.put_staging_bytes = 0;
    options.limits.tick_seconds = 0;
    kvt_store *store = support_open(&options);
    assert_int_equal(count_found(&site, store), ENTRIES);
    kvt_store_close(store);
}

TEST(a_basis_goes_with_its_last_use)
{
    uint8_t other[KVT_BASIS_HASH_BYTES];
    kvt_basis_info info = {.struct_size = sizeof info};
    kvt_store *store = basis_site_filled(&site, ENTRIES);
    const uint8_t *hash = site.made.basis.hash;
    assert_int_equal(kvt_basis_remove(NULL, hash), KVT_E_ARGUMENT);
    assert_int_equal(kvt_basis_remove(store, NULL), KVT_E_ARGUMENT);
    memcpy(other, hash, sizeof other);
    other[31] ^= 1;
    assert_int_equal(kvt_basis_remove(store, other), KVT_MISS);
    assert_int_equal(kvt_basis_remove(store, hash), KVT_BUSY);
    /* The ladder may code with it. */
    for (uint32_t i = 0; i < ENTRIES; i++) {
        const kvt_key key = support_key(i);
        const kvt_status status = kvt_store_delete(store, &key);
        assert_true(status == KVT_OK || status == KVT_MISS);
    }
    assert_int_equal(basis_site_info(store).records, 0);
    assert_int_equal(kvt_basis_remove(store, hash), KVT_BUSY);
    kvt_store_close(store);
    store = basis_site_store(&site, BASIS_SITE_BARE);
    assert_false(basis_site_info(store).in_ladder);
    assert_ok(kvt_basis_remove(store, hash));
    assert_false(is_there(site.basis_path));
    assert_int_equal(kvt_basis_get(store, 0, &info), KVT_END);
    assert_int_equal(kvt_basis_remove(store, hash), KVT_MISS);
    /* It may come back, and into the same slot. */
    assert_ok(kvt_basis_add(store, site.made.object, site.made.bytes));
    assert_int_equal(basis_site_info(store).state, KVT_BASIS_PRESENT);
    kvt_store_close(store);
    store = basis_site_store(&site, BASIS_SITE_CODES);
    for (uint32_t i = 0; i < ENTRIES; i++)
        assert_ok(basis_site_put(store, i));
    assert_int_equal(count_found(&site, store), ENTRIES);
    kvt_store_close(store);
}

/* Without the ladder the rows in its forms go at the open, and with them the need for the basis;
 * none comes back after that. */
TEST(a_basis_is_counted_by_its_records)
{
    kvt_basis_info info = {.struct_size = sizeof info};
    kvt_store *store = basis_site_filled(&site, ENTRIES);
    for (uint32_t i = 0; i < ENTRIES / 2; i++) {
        const kvt_key key = support_key(i);
        assert_int_equal(basis_site_info(store).records, ENTRIES - i);
        assert_ok(kvt_store_delete(store, &key));
    }
    kvt_store_close(store);
    store = basis_site_store(&site, BASIS_SITE_EXACT);
    assert_int_equal(basis_site_info(store).records, ENTRIES / 2);
    kvt_store_close(store);
    store = basis_site_store(&site, BASIS_SITE_BARE);
    assert_int_equal(basis_site_info(store).records, 0);
    assert_ok(kvt_basis_remove(store, site.made.basis.hash));
    kvt_store_close(store);
    store = basis_site_store(&site, BASIS_SITE_EXACT);
    assert_int_equal(kvt_basis_get(store, 0, &info), KVT_END);
    assert_int_equal(support_stats(store).recovered, 0);
    kvt_store_close(store);
}

/* Puts something in the place of the file of the basis, and looks at what the store makes of it. */
static void try_damage(const char *what, kvt_status status)
{
    kvt_basis_info info = {.struct_size = sizeof info};
    char message[256] = "";
    kvt_store *store = NULL;
    assert_ok(basis_site_open(&site, BASIS_SITE_EXACT, &store, message, sizeof message));
    if (strstr(message, ".basis-") == NULL) fail_msg("%s: no note of it: %s", what, message);
    assert_ok(kvt_basis_get(store, 0, &info));
    if (info.state != KVT_BASIS_DAMAGED || info.status != status)
        fail_msg("%s: state %d, status %d", what, info.state, info.status);
    assert_int_equal(info.records, ENTRIES);
    assert_memory_equal(info.hash, site.made.basis.hash, sizeof info.hash);
    assert_int_equal(kvt_basis_get(store, 1, &info), KVT_END);
    assert_int_equal(count_found(&site, store), 0);
    assert_int_equal(kvt_basis_remove(store, site.made.basis.hash), KVT_BUSY);
    kvt_store_close(store);
}

static void mend(void)
{
    kvt_store *store = basis_site_store(&site, BASIS_SITE_EXACT);
    assert_ok(kvt_basis_add(store, site.made.object, site.made.bytes));
    assert_int_equal(basis_site_info(store).state, KVT_BASIS_PRESENT);
    kvt_store_close(store);
    store = basis_site_store(&site, BASIS_SITE_EXACT);
    assert_int_equal(count_found(&site, store), ENTRIES);
    kvt_store_close(store);
}

static void write_file(const char *path, const void *bytes, uint64_t size)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

TEST(what_is_no_file_of_the_basis_is_refused)
{
    kvt_store_close(basis_site_filled(&site, ENTRIES));
    /* One bit, in each part of the object. */
    for (uint64_t at = 0; at + 33 < site.made.bytes; at += site.made.bytes / 3) {
        site.made.object[at + 33] ^= 4;
        write_file(site.basis_path, site.made.object, site.made.bytes);
        site.made.object[at + 33] ^= 4;
        try_damage("a bit", KVT_E_CORRUPT);
    }
    mend();
    const uint64_t sizes[] = {0, 4095, site.made.bytes - 1};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        write_file(site.basis_path, site.made.object, sizes[i]);
        try_damage("cut short", KVT_E_CORRUPT);
    }
    mend();
    assert_int_equal(truncate(site.basis_path, (off_t)site.made.bytes + 4096), 0);
    try_damage("too long", KVT_E_CORRUPT);
    assert_int_equal(truncate(site.basis_path, (off_t)1 << 40), 0);
    try_damage("a terabyte without blocks", KVT_E_CORRUPT);
    mend();
    assert_int_equal(unlink(site.basis_path), 0);
    assert_int_equal(mkfifo(site.basis_path, 0600), 0);
    try_damage("a pipe", KVT_E_IO);
    assert_int_equal(unlink(site.basis_path), 0);
    assert_int_equal(symlink("/dev/zero", site.basis_path), 0);
    try_damage("a device without end", KVT_E_IO);
    mend();
    assert_int_equal(unlink(site.basis_path), 0);
    assert_int_equal(symlink("nowhere", site.basis_path), 0);
    try_damage("a link to nothing", KVT_E_IO);
    mend();
    /* A later version of the format. */
    site.made.object[8]++;
    write_file(site.basis_path, site.made.object, site.made.bytes);
    site.made.object[8]--;
    try_damage("a later version", KVT_E_VERSION);
    mend();
    assert_int_equal(unlink(site.basis_path), 0);
    assert_int_equal(mkdir(site.basis_path, 0700), 0);
    try_damage("a folder", KVT_E_IO);
    kvt_store *store = basis_site_store(&site, BASIS_SITE_EXACT);
    assert_int_equal(kvt_basis_add(store, site.made.object, site.made.bytes), KVT_E_ARGUMENT);
    kvt_store_close(store);
    assert_int_equal(rmdir(site.basis_path), 0);
    mend();
}

/* Two bases whose files have each other's names: neither is used, both come back when added. */
TEST(exchanged_files_are_refused)
{
    char second_path[128], third[160];
    kvt_basis_info info = {.struct_size = sizeof info};
    kvt_store_close(basis_site_filled(&site, ENTRIES));
    basis_made second = basis_made_of(basis_site_shape, 99);
    assert_ok(basis_made_write(&second));
    kvt_store *store = basis_site_store(&site, BASIS_SITE_EXACT);
    assert_ok(kvt_basis_add(store, second.object, second.bytes));
    kvt_store_close(store);
    (void)snprintf(second_path, sizeof second_path, "%s.basis-%05X", site.catalog_path,
                   (unsigned)transform_hash_start(second.basis.hash));
    (void)snprintf(third, sizeof third, "%s/third", site.folder);
    assert_int_equal(rename(site.basis_path, third), 0);
    assert_int_equal(rename(second_path, site.basis_path), 0);
    assert_int_equal(rename(third, second_path), 0);
    store = basis_site_store(&site, BASIS_SITE_EXACT);
    for (size_t i = 0; i < 2; i++) {
        assert_ok(kvt_basis_get(store, i, &info));
        assert_int_equal(info.state, KVT_BASIS_DAMAGED);
        assert_int_equal(info.status, KVT_E_MISMATCH);
    }
    assert_int_equal(kvt_basis_get(store, 2, &info), KVT_END);
    assert_int_equal(count_found(&site, store), 0);
    /* A damaged file that nothing needs can be removed by its known name. */
    assert_ok(kvt_basis_remove(store, second.basis.hash));
    assert_false(is_there(second_path));
    assert_ok(kvt_basis_add(store, second.object, second.bytes));
    assert_ok(kvt_basis_add(store, site.made.object, site.made.bytes));
    assert_int_equal(count_found(&site, store), ENTRIES);
    kvt_store_close(store);
    store = basis_site_store(&site, BASIS_SITE_EXACT);
    assert_int_equal(count_found(&site, store), ENTRIES);
    assert_int_equal(store->bases.damaged_count, 0);
    kvt_store_close(store);
}

/* As many as there is room for, and one more; then one that was removed gives its place. */
TEST(bases_are_bounded)
{
    static const transform_shape small = {
        .layers = 1, .kv_heads = 1, .head_dim = 8, .sides = 1, .span = TRANSFORM_SPAN_HEAD};
    uint8_t first[KVT_BASIS_HASH_BYTES] = {0};
    kvt_basis_info info = {.struct_size = sizeof info};
    kvt_store *store = basis_site_store(&site, BASIS_SITE_EXACT);
    for (uint32_t i = 0; i <= KVT_BASES_MAX; i++) {
        basis_made one = basis_made_of(small, 1000 + i);
        assert_ok(basis_made_write(&one));
        assert_int_equal(kvt_basis_add(store, one.object, one.bytes),
                         i < KVT_BASES_MAX ? KVT_OK : KVT_E_SPACE);
        if (i == 0) memcpy(first, one.basis.hash, sizeof first);
        if (i == KVT_BASES_MAX) {
            assert_ok(kvt_basis_remove(store, first));
            assert_ok(kvt_basis_add(store, one.object, one.bytes));
        }
    }
    assert_ok(kvt_basis_get(store, KVT_BASES_MAX - 1, &info));
    assert_int_equal(kvt_basis_get(store, KVT_BASES_MAX, &info), KVT_END);
    kvt_store_close(store);
    store = basis_site_store(&site, BASIS_SITE_EXACT);
    assert_ok(kvt_basis_get(store, KVT_BASES_MAX - 1, &info));
    info.struct_size = 8;
    assert_int_equal(kvt_basis_get(store, 0, &info), KVT_E_ARGUMENT);
    assert_int_equal(kvt_basis_get(store, 0, NULL), KVT_E_ARGUMENT);
    kvt_store_close(store);
}
