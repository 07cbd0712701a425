/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torture_store_open.c - an open that is cut short at any of its steps, or of which any step fails,
 * is taken up by the next one.
 *
 * A child is killed before its nth call that changes a file, or that one fails, for every n until
 * the open ends by itself (step_calls.h).
 */
#include "rows_text.h"
#include "store_support.h"
#include "tests/torture/step_calls.h"

#define OPEN_ENTRIES 3u
#define OPEN_MEMBERS 2u

/* ---- the store ---- */

typedef struct open_site {
    char folder[64];
    char catalog[96];
    char profile[96];
    char paths[OPEN_MEMBERS][96];
    kvt_device_config devices[OPEN_MEMBERS];
    kvt_store_options options;
} open_site;

/* A profile, so that nothing is measured; the same for all. */
static void open_make_profile(const char *path)
{
    kvt_profile *profile;
    assert_ok(kvt_profile_open(path, KVT_PROFILE_WRITE, &profile, NULL, 0));
    rows_text_import(profile,
                     "[device]\ndevice,tier,direction,bytes_per_s,request_seconds\n"
                     "ssd0,ssd,read,1e9,0\nssd0,ssd,write,1e9,0\n"
                     "ssd1,ssd,read,1e9,0\nssd1,ssd,write,1e9,0\n",
                     "s");
    kvt_profile_close(profile);
}

static void open_prepare(open_site *site, const char *profile)
{
    static const char *const names[OPEN_MEMBERS] = {"ssd0", "ssd1"};
    memset(site, 0, sizeof *site);
    support_make_folder(site->folder, sizeof site->folder);
    snprintf(site->catalog, sizeof site->catalog, "%s/catalog.db", site->folder);
    snprintf(site->profile, sizeof site->profile, "%s", profile);
    site->options = support_options(4 << 20, "lru");
    site->options.lossless = false;
    site->options.learning.learn = false;
    site->options.durability.catalog_path = site->catalog;
    site->options.learning.profile_path = site->profile;
    site->options.learning.profile_foreign = true;
    for (uint32_t i = 0; i < OPEN_MEMBERS; i++) {
        snprintf(site->paths[i], sizeof site->paths[i], "%s/ssd%u", site->folder, i);
        site->devices[i] = support_file_config(names[i], site->paths[i], 1 << 20);
        site->devices[i].sparse = i == 1;
        site->devices[i].synchronous = true;
    }
    site->options.tiers[KVT_TIER_SSD].devices = site->devices;
    site->options.tiers[KVT_TIER_SSD].device_count = OPEN_MEMBERS;
    site->options.tiers[KVT_TIER_SSD].unit_bytes = 16384;
}

static kvt_store *open_again(open_site *site, long step)
{
    char message[256] = "";
    kvt_store *store = NULL;
    kvt_status status = kvt_store_open(&site->options, &store, message, sizeof message);
    if (status != KVT_OK)
        fail_msg("step %ld: the next open: %s: %s", step, kvt_status_name(status), message);
    return store;
}

static void open_fill(open_site *site, long step)
{
    kvt_store *store = open_again(site, step);
    for (uint32_t i = 0; i < OPEN_ENTRIES; i++) {
        assert_ok(support_put(store, i));
        assert_ok(support_get(store, i, NULL));
    }
    assert_ok(kvt_store_flush(store));
    kvt_store_close(store);
}

static void open_expect_all(open_site *site, long step)
{
    kvt_store *store = open_again(site, step);
    for (uint32_t i = 0; i < OPEN_ENTRIES; i++) {
        kvt_status status = support_get(store, i, NULL);
        if (status != KVT_OK) fail_msg("step %ld: entry %u: %s", step, i, kvt_status_name(status));
    }
    assert_int_equal(support_stats(store).recovered, OPEN_ENTRIES);
    kvt_store_close(store);
}

/* Opens the store, once. */
static void open_child(void *context, int pipe_end)
{
    open_site *site = context;
    kvt_store *store = NULL;
    (void)pipe_end;
    kvt_status opened = kvt_store_open(&site->options, &store, NULL, 0);
    step_at = 0;
    if (opened == KVT_OK) kvt_store_close(store);
}

/* An open whose nth step is its last, or fails. False: it had fewer, or passed over the failure and
 * went to its end. */
static bool open_cut(open_site *site, step_kind does, long step)
{
    return step_run(open_child, site, does, step).counted;
}

/* filled: the open that is cut short is not the first one. */
static void open_sweep(step_kind does, bool filled)
{
    char folder[64], profile[96];
    support_make_folder(folder, sizeof folder);
    snprintf(profile, sizeof profile, "%s/profile.db", folder);
    open_make_profile(profile);
    long step = 1;
    for (bool cut = true; cut; step++) {
        open_site site;
        open_prepare(&site, profile);
        if (filled) open_fill(&site, step);
        cut = open_cut(&site, does, step);
        if (filled) {
            open_expect_all(&site, step);
        } else {
            open_fill(&site, step);
        }
        support_remove_folder(site.folder);
    }
    print_message("%ld steps\n", step - 2);
    assert_true(step > (filled ? 10 : 20));
}

TEST(killed_first_open)
{
    open_sweep(STEP_KILL, false);
}

TEST(failed_first_open)
{
    open_sweep(STEP_FAIL, false);
}

TEST(killed_later_open)
{
    open_sweep(STEP_KILL, true);
}

TEST(failed_later_open)
{
    open_sweep(STEP_FAIL, true);
}

int main(void)
{
    /* Hundreds of opens with their syncs, which a kill of the process alone does not need. */
    if (chdir("/dev/shm") != 0) print_message("no /dev/shm: every sync is the disk's\n");
    return tests_run();
}
