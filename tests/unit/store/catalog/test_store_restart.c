/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_restart.c - what a clean close and a kill leave of a store with memory above its SSDs:
 * the entries that were used most are not the ones that are lost, then or later.
 */
#include "store_site.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { ENTRIES = 200, HOT = 20, ROUNDS = 6 };

/* Two files that hold all entries and more, and memory for a tenth of them. */
static site *site_make(const char *policy)
{
    site *s = site_prepare((site_shape){.disks = 2,
                                        .disk_bytes = 8 << 20,
                                        .unit_bytes = 8192,
                                        .plain = true,
                                        .memory_bytes = 1 << 20});
    s->options.policy = policy;
    return s;
}

/* Some entries are read again and again, and come up. */
static void use(kvt_store *store)
{
    for (int round = 0; round < ROUNDS; round++) {
        for (uint32_t i = 0; i < HOT; i++) {
            assert_ok(support_get(store, i * 9, NULL));
            assert_ok(kvt_store_maintain(store, NULL));
        }
    }
}

static void check_close(const char *policy)
{
    site *s = site_make(policy);
    site_open(s);
    site_put(s, 0, ENTRIES);
    use(s->store);
    assert_int_equal(site_hits(s, ENTRIES), ENTRIES);
    site_reopen(s);
    assert_int_equal(site_hits(s, ENTRIES), ENTRIES);
}

TEST(close_loses_nothing)
{
    check_close("utility");
}

TEST(close_loses_nothing_by_recency)
{
    check_close("lru");
}

/* The child's life: `listed` says what was on SSD when the first flush had ended. */
static void live_and_die(site *s, bool *listed)
{
    site_open(s);
    site_put(s, 0, ENTRIES);
    for (uint32_t i = 0; i < ENTRIES; i++) {
        kvt_get_info info = {.struct_size = sizeof info};
        if (support_get(s->store, i, &info) != KVT_OK) _exit(1);
        listed[i] = info.tier == KVT_TIER_SSD;
    }
    use(s->store);
    if (kvt_store_flush(s->store) != KVT_OK) _exit(1);
    kill(getpid(), SIGKILL);
}

TEST(kill_leaves_what_was_promoted)
{
    site *s = site_make("lru");
    bool *listed = mmap(NULL, ENTRIES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(listed != MAP_FAILED);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) live_and_die(s, listed);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    site_open(s);
    uint32_t count = 0;
    for (uint32_t i = 0; i < ENTRIES; i++) {
        if (!listed[i]) continue;
        count++;
        assert_ok(support_get(s->store, i, NULL));
    }
    assert_true(count > ENTRIES / 2);
    munmap(listed, ENTRIES);
}

/* A file with room for few entries and no memory above it, full, of which some have been used. */
enum { ROOM = 40, USED = 12, NEW = 24 };

static site *site_make_full(const char *policy)
{
    site *s = site_make(policy);
    s->files[0] = support_file_config("disk0", s->paths[0], 2 << 20);
    s->options.tiers[KVT_TIER_SSD] =
        (kvt_tier_options){.devices = s->files, .device_count = 1, .unit_bytes = 4096};
    s->options.tiers[KVT_TIER_DRAM].capacity_bytes = 0;
    return s;
}

/* Offers entries that were never there, three times each, and counts which of the used ones the
 * store has kept. */
static uint32_t count_kept(kvt_store *store)
{
    const uint64_t before = support_stats(store).tiers[KVT_TIER_SSD].entries;
    for (int round = 0; round < 3; round++)
        for (uint32_t i = 0; i < NEW; i++)
            (void)!support_put(store, 1000 + i);
    uint32_t kept = 0, taken = 0;
    for (uint32_t i = 0; i < NEW; i++) {
        const kvt_key key = support_key(1000 + i);
        taken += kvt_store_exists(store, &key) == KVT_OK;
    }
    for (uint32_t i = 0; i < USED; i++)
        kept += support_get(store, i, NULL) == KVT_OK;
    assert_true(before > ROOM / 2 && taken > NEW / 2); /* others have made their room */
    return kept;
}

static void check_uses_outlive(const char *policy)
{
    site *s = site_make_full(policy);
    site_open(s);
    /* Fill the store, then uses the entries that came first, the ones to go if nothing is known. */
    kvt_store *store = s->store;
    for (uint32_t i = 0; i < ROOM; i++)
        (void)!support_put(store, i);
    for (int round = 0; round < ROUNDS; round++)
        support_gets(store, 0, USED);
    site_reopen(s);
    assert_int_equal(count_kept(s->store), USED);
}

TEST(uses_outlive_a_close)
{
    check_uses_outlive("utility");
    check_uses_outlive("lru");
    check_uses_outlive("lru-leaf");
}
