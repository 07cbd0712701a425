/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torture_store_kill.c - kill -9 at moments spread over a run: every entry that was put and flushed
 * before is there with its bytes, every other one is a miss or right, never wrong.
 */
#include "store/core/store.h"
#include "store_support.h"
#include "tiers/pool/pool.h"

#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#define KILL_ENTRIES 60u

typedef struct kill_site {
    char folder[64];
    char catalog[96];
    char paths[2][96];
    kvt_device_config devices[2];
    kvt_store_options options;
} kill_site;

static void kill_prepare(kill_site *site, kvt_placement placement, const char *slots)
{
    const uint32_t count = slots == NULL ? 1 : 2;
    snprintf(site->catalog, sizeof site->catalog, "%s/catalog.db", site->folder);
    kvt_store_options_init(&site->options);
    site->options.limits.put_staging_bytes = 0; /* a put says how its write went */
    site->options.limits.staging_bytes = 8 << 20;
    site->options.scrub.period_seconds =
        0; /* its read keeps a deleted record's room until its end */
    site->options.policy = "lru";
    site->options.durability.catalog_path = site->catalog;
    for (uint32_t i = 0; i < count; i++) {
        const char *name = i == 0 ? "ssd" : "other";
        snprintf(site->paths[i], sizeof site->paths[i], "%s/%s", site->folder, name);
        site->devices[i] = support_file_config(name, site->paths[i], 8 << 20);
    }
    support_tier(&site->options, KVT_TIER_SSD, site->devices, count);
    site->options.tiers[KVT_TIER_SSD].unit_bytes = 16384;
    site->options.tiers[KVT_TIER_SSD].placement = (uint32_t)placement;
    site->options.tiers[KVT_TIER_SSD].slots = slots;
    site->options.loss.ladder_layout = support_layout;
}

/* The child: puts, deletes and puts again, flushes now and then, and says what has been flushed. */
static void kill_child(kill_site *site, int pipe_end)
{
    kvt_store *store = NULL;
    if (kvt_store_open(&site->options, &store, NULL, 0) != KVT_OK) _exit(2);
    for (uint32_t i = 0; i < KILL_ENTRIES; i++) {
        kvt_key old = support_key(i >= 10 && i % 5 == 0 ? i - 9 : 9999);
        if (kvt_store_delete(store, &old) == KVT_OK && support_put(store, i - 9) != KVT_OK)
            _exit(3);
        if (support_put(store, i) < 0) _exit(3);
        if (i % 3 != 2) continue;
        if (kvt_store_flush(store) != KVT_OK) _exit(4);
        if (write(pipe_end, &i, sizeof i) != sizeof i) _exit(5);
    }
    for (;;) {
        pause();
    }
}

/* Waits until the child has flushed up to `stop`, gives it a little more time, kills it. Returns
 * the last number it reported. */
static uint32_t kill_run(kill_site *site, uint32_t stop, long extra_ns)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        close(ends[0]);
        kill_child(site, ends[1]);
    }
    close(ends[1]);
    uint32_t reported = UINT32_MAX, number;
    while ((reported == UINT32_MAX || reported < stop) &&
           read(ends[0], &number, sizeof number) == sizeof number) {
        reported = number;
    }
    nanosleep(&(struct timespec){.tv_nsec = extra_ns}, NULL);
    assert_int_equal(kill(child, SIGKILL), 0);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    while (read(ends[0], &number, sizeof number) == sizeof number) {
        reported = number;
    }
    close(ends[0]);
    return reported;
}

/* What is deleted frees its slots: none is lost that was laid out or found again. */
static void kill_check_slots(kvt_store *store)
{
    tiers_pool *pool = store->pools[KVT_TIER_SSD];
    tiers_slot_stats before, after;
    tiers_pool_facts facts;
    const bool slots = tiers_pool_slot_class(pool, 0, &before) == KVT_OK;
    for (uint32_t i = 0; i < KILL_ENTRIES; i++) {
        kvt_key key = support_key(i);
        kvt_status deleted = kvt_store_delete(store, &key);
        assert_true(deleted == KVT_OK || deleted == KVT_MISS);
    }
    assert_ok(kvt_store_flush(store));
    tiers_pool_facts_get(pool, &facts);
    assert_int_equal(facts.used_bytes + facts.padding_bytes, 0);
    if (!slots) return;
    assert_ok(tiers_pool_slot_class(pool, 0, &after));
    assert_int_equal(after.taken, 0);
    assert_true(after.free >= before.free + before.taken); /* the background may add some */
}

static void kill_runs(kvt_placement placement, const char *slots)
{
    for (uint32_t run = 0; run < 8; run++) {
        kill_site site;
        memset(&site, 0, sizeof site);
        support_make_folder(site.folder, sizeof site.folder);
        kill_prepare(&site, placement, slots);
        uint32_t flushed = kill_run(&site, 2 + run * 7, (long)run * 1700000);
        assert_true(flushed != UINT32_MAX);
        char message[256] = "";
        kvt_store *store = NULL;
        /* The kernel takes the ring of who was killed down in its own time. */
        kvt_status opened = KVT_E_LOCKED;
        while (opened == KVT_E_LOCKED)
            opened = kvt_store_open(&site.options, &store, message, sizeof message);
        if (opened != KVT_OK) fail_msg("reopen: %s: %s", kvt_status_name(opened), message);
        uint32_t found = 0;
        for (uint32_t i = 0; i < KILL_ENTRIES; i++) {
            kvt_status status = support_get(store, i, NULL);
            assert_true(status == KVT_OK || status == KVT_MISS);
            found += status == KVT_OK;
            /* Entries near the end of what was flushed may be between delete and second put. */
            if (i + 12 <= flushed) assert_ok(status);
        }
        assert_true(found + 12 >= flushed);
        assert_int_equal(support_stats(store).load_failures, 0);
        kill_check_slots(store);
        kvt_store_close(store);
        support_remove_folder(site.folder);
    }
}

TEST(kill)
{
    kill_runs(KVT_PLACE_PROPORTIONAL, NULL);
}

TEST(kill_with_slots)
{
    kill_runs(KVT_PLACE_PROPORTIONAL, "raw@32, 64KiB");
}

TEST(kill_with_tensors_in_slots)
{
    kill_runs(KVT_PLACE_TENSOR, "raw@32");
}

TEST(kill_with_whole_entries_in_slots)
{
    kill_runs(KVT_PLACE_ENTRY, "raw@32");
}
