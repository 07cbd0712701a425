/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_follow_forms.c - what a follower decodes: views, groups, lossless records, records
 * with a basis. The owner has closed its store before the follower of the same process opens.
 */
#include "basis_site.h"
#include "codecs/view_rows.h"

#include <kvterrace/names.h>
#include <kvterrace/view.h>
#include <pthread.h>
#include <unistd.h>

enum { ENTRIES = 6, BLOCK_TOKENS = 8, POOL_BLOCKS = 8 };

TEST_EACH(basis_site_set_up, basis_site_tear_down);

/* Options of a store on the site's file; follow: of its follower. */
static kvt_store *open_plain(const kvt_device_config *device, bool follow)
{
    kvt_store_options options = support_options(32 << 20, "lru");
    support_tier(&options, KVT_TIER_SSD, device, 1);
    options.durability.catalog_path = site.catalog_path;
    options.variant = (kvt_variant){.codec = KVT_CODEC_LOSSLESS, .mode = KVT_LOSSLESS_DENSE};
    options.follow = follow;
    return support_open(&options);
}

/* A view of an engine's pool, in whose blocks the entry's tokens lie in another order. */
static kvt_view pool_view(void *pool, const uint32_t *table)
{
    kvt_view view;
    assert_ok(kvt_view_make(&support_layout, "lbths", BLOCK_TOKENS, POOL_BLOCKS, &view));
    view.base[0] = pool;
    view.blocks = table;
    view.block_count = support_layout.tokens / BLOCK_TOKENS;
    return view;
}

TEST(views_and_groups_are_filled)
{
    static const uint32_t table[4] = {6, 1, 7, 2};
    static char pools[2][SUPPORT_ENTRY_BYTES / 4 * POOL_BLOCKS];
    static uint8_t grouped[4096 + 2048 + 512], read[sizeof grouped];
    const kvt_layout groups[3] = {
        {.layers = 2, .kv_heads = 1, .head_dim = 32, .dtype = KVT_DTYPE_BF16, .tokens = 16},
        {.layers = 2, .kv_heads = 1, .head_dim = 32, .dtype = KVT_DTYPE_BF16, .tokens = 8},
        {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = 512}};
    const kvt_device_config device = support_file_config("ssd0", site.ssd_path, 8 << 20);
    kvt_store *store = open_plain(&device, false);
    for (uint32_t i = 0; i < sizeof grouped; i++)
        grouped[i] = (uint8_t)(i * 131 >> 3);
    kvt_entry entry = {.struct_size = sizeof entry,
                       .key = support_key(100),
                       .recompute_seconds = 1,
                       .group_count = 3,
                       .groups = groups};
    assert_ok(kvt_store_put(store, &entry, KVT_PACKED(grouped, sizeof grouped)));
    support_puts(store, 0, ENTRIES);
    assert_ok(kvt_store_flush(store));
    kvt_store_close(store);
    kvt_store *follower = open_plain(&device, true);
    support_gets(follower, 0, ENTRIES); /* packed */
    for (uint32_t i = 0; i < ENTRIES; i++) {
        const kvt_key key = support_key(i);
        static char data[SUPPORT_ENTRY_BYTES];
        kvt_view views[2] = {pool_view(pools[0], table), pool_view(pools[1], table)};
        kvt_get_info info = {.struct_size = sizeof info};
        memset(pools, 0x77, sizeof pools);
        support_fill(i, data);
        view_scatter_entry(&views[0], &support_layout, 0, 0, data);
        assert_ok(kvt_store_get(follower, &key, &views[1], KVT_NO_DEADLINE, &info));
        assert_memory_equal(pools[0], pools[1], sizeof pools[0]);
        assert_int_equal(info.variant.codec, KVT_CODEC_LOSSLESS);
    }
    assert_ok(
        kvt_store_get(follower, &entry.key, KVT_PACKED(read, sizeof read), KVT_NO_DEADLINE, NULL));
    assert_memory_equal(read, grouped, sizeof read);
    memset(read, 0, sizeof read);
    const kvt_view *parts[3] = {KVT_PACKED(read, 4096), KVT_PACKED(read + 4096, 2048),
                                KVT_PACKED(read + 6144, 512)};
    kvt_view named = {.struct_size = sizeof named,
                      .bases_kind = KVT_BASES_GROUPS,
                      .groups = parts,
                      .group_count = 3};
    assert_ok(kvt_store_get(follower, &entry.key, &named, KVT_NO_DEADLINE, NULL));
    assert_memory_equal(read, grouped, sizeof read);
    named.group_count = 2;
    assert_int_equal(kvt_store_get(follower, &entry.key, &named, KVT_NO_DEADLINE, NULL),
                     KVT_E_ARGUMENT);
    kvt_layout told[3];
    kvt_description what = {.struct_size = sizeof what, .groups_capacity = 3, .groups = told};
    assert_ok(kvt_store_describe(follower, &entry.key, &what));
    assert_true(what.group_count == 3 && what.bytes == sizeof grouped);
    assert_memory_equal(told, groups, sizeof told);
    kvt_store_close(follower);
}

TEST(bases_are_found_beside_the_catalog)
{
    const kvt_device_config device = support_file_config("ssd0", site.ssd_path, BASIS_SITE_ROOM);
    kvt_get_info info = {.struct_size = sizeof info};
    char away[160];
    kvt_store_close(basis_site_filled(&site, ENTRIES));
    kvt_store *follower = open_plain(&device, true);
    for (uint32_t i = 0; i < ENTRIES; i++) {
        assert_ok(basis_site_get(&site, follower, i, &info));
        assert_memory_equal(&info.variant, &site.form, sizeof site.form);
    }
    kvt_store_close(follower);
    /* Without it the entries are there and cannot be read; it is looked for again. */
    (void)snprintf(away, sizeof away, "%s/away", site.folder);
    assert_int_equal(rename(site.basis_path, away), 0);
    follower = open_plain(&device, true);
    const kvt_key key = support_key(0);
    kvt_description what = {.struct_size = sizeof what};
    assert_int_equal(basis_site_get(&site, follower, 0, &info), KVT_E_MISMATCH);
    assert_memory_equal(&info.variant, &site.form, sizeof site.form);
    assert_int_equal(kvt_store_exists(follower, &key), KVT_MISS);
    assert_ok(kvt_store_describe(follower, &key, &what));
    assert_int_equal(what.lacks_basis, 1);
    assert_int_equal(support_stats(follower).refused.basis, 1);
    assert_int_equal(rename(away, site.basis_path), 0);
    while (basis_site_get(&site, follower, 0, &info) == KVT_E_MISMATCH)
        usleep(50000);
    for (uint32_t i = 0; i < ENTRIES; i++)
        assert_ok(basis_site_get(&site, follower, i, &info));
    kvt_store_close(follower);
}

TEST(options_that_no_follower_can_have)
{
    kvt_device_config device = support_file_config("ssd0", site.ssd_path, 8 << 20);
    kvt_store_options options = support_options(32 << 20, "lru");
    kvt_store *store = NULL;
    char message[256];
    options.follow = true;
    assert_int_equal(kvt_store_open(&options, &store, message, sizeof message), KVT_E_ARGUMENT);
    options.durability.catalog_path = site.catalog_path;
    assert_int_equal(kvt_store_open(&options, &store, message, sizeof message), KVT_E_ARGUMENT);
    support_tier(&options, KVT_TIER_SSD, &device, 1);
    assert_int_equal(kvt_store_open(&options, &store, message, sizeof message), KVT_E_GONE);
    assert_non_null(strstr(message, site.catalog_path));
    device.backend = "memory";
    assert_int_equal(kvt_store_open(&options, &store, message, sizeof message), KVT_E_UNSUPPORTED);
    options.reserved[3] = 1;
    assert_int_equal(kvt_store_open(&options, &store, message, sizeof message), KVT_E_UNSUPPORTED);
    assert_null(store);
    assert_int_equal(access(site.ssd_path, F_OK), -1);
    assert_int_equal(access(site.catalog_path, F_OK), -1);
}

/* ---- threads ---- */

static kvt_store *shared_follower;

static void *get_often(void *context)
{
    const uint32_t first = *(const uint32_t *)context;
    for (uint32_t i = 0; i < 200; i++)
        if (support_get(shared_follower, (first + i) % ENTRIES, NULL) != KVT_OK) return context;
    return NULL;
}

/* Gets of several threads, while the device that they read is replaced by a copy. */
TEST(threads_share_a_follower)
{
    const kvt_device_config device = support_file_config("ssd0", site.ssd_path, 8 << 20);
    pthread_t threads[4];
    uint32_t first[4];
    char command[800];
    kvt_store *store = open_plain(&device, false);
    support_puts(store, 0, ENTRIES);
    assert_ok(kvt_store_flush(store));
    kvt_store_close(store);
    shared_follower = open_plain(&device, true);
    for (uint32_t i = 0; i < 4; i++) {
        first[i] = i;
        assert_int_equal(pthread_create(&threads[i], NULL, get_often, &first[i]), 0);
    }
    /* The old file's bytes go, so that every thread finds its records unproven and looks anew. */
    (void)snprintf(command, sizeof command,
                   "cp '%s' '%s/new' && ln '%s' '%s/old' && mv '%s/new' '%s' && "
                   "dd if=/dev/zero of='%s/old' bs=4096 seek=2 count=200 conv=notrunc 2>/dev/null",
                   site.ssd_path, site.folder, site.ssd_path, site.folder, site.folder,
                   site.ssd_path, site.folder);
    assert_int_equal(system(command), 0);
    for (uint32_t i = 0; i < 4; i++) {
        void *failed;
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
    }
    support_gets(shared_follower, 0, ENTRIES);
    assert_int_equal(support_stats(shared_follower).load_failures, 0);
    kvt_store_close(shared_follower);
}
