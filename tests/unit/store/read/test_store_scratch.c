/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_scratch.c - bytes of tiers lent to sequences: out of the policy's capacity, refused
 * with the bytes that are missing, against entries at the policy's price, and given back by a
 * close, and by the death of the process.
 */
#include "copies_site.h"

#include "base/clock.h"
#include "store/core/store.h"
#include "store/lend/scratch.h"

#include <math.h>
#include <signal.h>
#include <sys/wait.h>

enum { MIB = 1 << 20, PAGE = 8192 };

static scratch_wish ssd_wish(uint64_t bytes, double worth)
{
    return (scratch_wish){.tier = KVT_TIER_SSD, .bytes = bytes, .worth_per_byte = worth};
}

static uint64_t capacity_of(site *s, kvt_tier tier)
{
    pthread_mutex_lock(&s->store->lock);
    uint64_t bytes = store_policy_capacity(s->store, tier);
    pthread_mutex_unlock(&s->store->lock);
    return bytes;
}

static uint64_t policy_used(site *s, kvt_tier tier)
{
    return support_stats(s->store).policy.used_bytes[tier];
}

static uint32_t count_readable(site *s, uint32_t entries)
{
    uint32_t readable = 0;
    for (uint32_t i = 0; i < entries; i++) {
        kvt_status status = support_get(s->store, i, NULL);
        assert_true(status == KVT_OK || status == KVT_MISS);
        readable += status == KVT_OK;
    }
    return readable;
}

/* ---- free room ---- */

TEST(free_room_leaves_the_policy_and_comes_back)
{
    site *s = site_make(2 * MIB);
    const uint64_t ssd = capacity_of(s, KVT_TIER_SSD), dram = capacity_of(s, KVT_TIER_DRAM);
    const scratch_wish wishes[] = {{.tier = KVT_TIER_SSD, .bytes = MIB},
                                   {.tier = KVT_TIER_DRAM, .bytes = 2 * RECORD_BYTES}};
    store_scratch *scratch;
    uint64_t missing[KVT_TIER_COUNT];
    assert_ok(scratch_open(s->store, wishes, 2, &scratch, missing));
    assert_int_equal(missing[KVT_TIER_SSD] + missing[KVT_TIER_DRAM], 0);
    assert_int_equal(capacity_of(s, KVT_TIER_SSD), ssd - MIB);
    assert_int_equal(capacity_of(s, KVT_TIER_DRAM), dram - 2 * RECORD_BYTES);
    kvt_store_stats stats = support_stats(s->store);
    assert_int_equal(stats.lent_bytes[KVT_TIER_SSD], MIB);
    assert_int_equal(stats.lent_bytes[KVT_TIER_DRAM], 2 * RECORD_BYTES);

    /* The grant bounds what is reserved, and entries never come into it. */
    tiers_location *location, *none;
    assert_int_equal(scratch_reserve(scratch, KVT_TIER_SSD, MIB + 1, PAGE, UINT64_MAX, &none),
                     KVT_E_SPACE);
    assert_ok(scratch_reserve(scratch, KVT_TIER_SSD, MIB, PAGE, UINT64_MAX, &location));
    assert_int_equal(scratch_free(scratch, KVT_TIER_SSD), 0);
    assert_int_equal(scratch_reserve(scratch, KVT_TIER_SSD, 1, PAGE, UINT64_MAX, &none),
                     KVT_E_SPACE);
    for (uint32_t i = 0; i < 3 * ENTRIES; i++) {
        kvt_status status = support_put(s->store, i);
        assert_true(status == KVT_OK || status == KVT_REFUSED);
        assert_true(policy_used(s, KVT_TIER_SSD) <= ssd - MIB);
        assert_true(policy_used(s, KVT_TIER_DRAM) <= dram - 2 * RECORD_BYTES);
    }
    check_budget(s);
    scratch_release(scratch, KVT_TIER_SSD, location);
    assert_int_equal(scratch_free(scratch, KVT_TIER_SSD), MIB);
    scratch_close(scratch);
    scratch_close(NULL);
    assert_int_equal(capacity_of(s, KVT_TIER_SSD), ssd);
    assert_int_equal(support_stats(s->store).lent_bytes[KVT_TIER_SSD], 0);
}

TEST(a_refusal_names_the_missing_bytes)
{
    site *s = site_make(MIB);
    const uint64_t ssd = capacity_of(s, KVT_TIER_SSD), dram = capacity_of(s, KVT_TIER_DRAM);
    uint64_t missing[KVT_TIER_COUNT];
    store_scratch *scratch = NULL;
    const scratch_wish wishes[] = {{.tier = KVT_TIER_SSD, .bytes = ssd + 12345},
                                   {.tier = KVT_TIER_DRAM, .bytes = 4096}};
    assert_int_equal(scratch_open(s->store, wishes, 2, &scratch, missing), KVT_E_SPACE);
    assert_null(scratch);
    assert_int_equal(missing[KVT_TIER_SSD], 12345);
    assert_int_equal(missing[KVT_TIER_DRAM], 0);
    /* Nothing of a refused one stays lent. */
    assert_int_equal(capacity_of(s, KVT_TIER_SSD), ssd);
    assert_int_equal(capacity_of(s, KVT_TIER_DRAM), dram);
    const scratch_wish hbm = {.tier = KVT_TIER_HBM, .bytes = 4096};
    assert_int_equal(scratch_open(s->store, &hbm, 1, &scratch, missing), KVT_E_UNSUPPORTED);

    /* Free room alone: what entries hold is missing. */
    site_put(s, 0, ENTRIES);
    const uint64_t used = policy_used(s, KVT_TIER_SSD);
    assert_true(used > 0);
    const scratch_wish all = ssd_wish(ssd, 0);
    assert_int_equal(scratch_open(s->store, &all, 1, &scratch, missing), KVT_E_SPACE);
    assert_int_equal(missing[KVT_TIER_SSD], used);
    const scratch_wish rest = ssd_wish(ssd - used, 0);
    assert_ok(scratch_open(s->store, &rest, 1, &scratch, missing));
    scratch_close(scratch);
}

/* ---- against entries ---- */

TEST(entries_make_way_for_what_must_have_room)
{
    site *s = site_make(MIB);
    site_put(s, 0, 64);
    const uint64_t ssd = capacity_of(s, KVT_TIER_SSD), used = policy_used(s, KVT_TIER_SSD);
    const uint32_t before = count_readable(s, 64);
    assert_true(used > ssd * 8 / 10 && before > 20);
    store_scratch *scratch;
    const scratch_wish half = ssd_wish(ssd / 2, INFINITY);
    assert_ok(scratch_open(s->store, &half, 1, &scratch, NULL));
    assert_true(policy_used(s, KVT_TIER_SSD) <= ssd - ssd / 2);
    tiers_location *location;
    assert_ok(scratch_reserve(scratch, KVT_TIER_SSD, ssd / 2, PAGE, UINT64_MAX, &location));
    tiers_pool *pool = scratch_pool(scratch, KVT_TIER_SSD);
    void *buffer = test_aligned(4096, location->bytes);
    memset(buffer, 0x77, location->bytes);
    assert_ok(tiers_pool_transfer(pool, KVT_IO_WRITE, location, buffer, location->bytes));
    /* What is left is whole: no entry has lost bytes to the scratch. */
    const uint32_t after = count_readable(s, 64);
    assert_true(after > 0 && after < before);
    check_budget(s);
    scratch_release(scratch, KVT_TIER_SSD, location);
    scratch_close(scratch);
    site_put(s, 100, 120);
    assert_ok(support_get(s->store, 119, NULL));
}

/* Copies of entries that lie in memory are no reason to refuse, and make way for extents. */
TEST(copies_make_way_for_extents)
{
    site *s = site_make(MIB);
    site_put(s, 0, DRAM_ENTRIES);
    assert_ok(kvt_store_persist(s->store, KVT_NO_DEADLINE, NULL));
    assert_true(support_stats(s->store).copies.count > 0);
    const uint64_t ssd = capacity_of(s, KVT_TIER_SSD);
    store_scratch *scratch;
    tiers_location *location;
    const scratch_wish all = ssd_wish(ssd - policy_used(s, KVT_TIER_SSD), 0);
    assert_ok(scratch_open(s->store, &all, 1, &scratch, NULL));
    assert_ok(scratch_reserve(scratch, KVT_TIER_SSD, scratch_lent(scratch, KVT_TIER_SSD), 4096,
                              UINT64_MAX, &location));
    assert_int_equal(count_readable(s, DRAM_ENTRIES), DRAM_ENTRIES);
    check_budget(s);
    scratch_release(scratch, KVT_TIER_SSD, location);
    scratch_close(scratch);
}

/* The unit of a wish's worth is that of the policy's price, so the two decide. */
TEST(the_price_decides_between_entries_and_a_window)
{
    kvt_store_options options = support_options(4 << 20, "utility");
    /* 32 raw entries and no room for one more: a tier in which a victim would fit has no price. */
    options.lossless = false;
    options.tiers[KVT_TIER_DRAM].capacity_bytes =
        32 * SUPPORT_ENTRY_BYTES + SUPPORT_ENTRY_BYTES / 8;
    kvt_store *store = support_open(&options);
    for (uint32_t round = 0; round < 4; round++) {
        for (uint32_t i = 0; i < 60; i++)
            (void)!support_put(store, i);
        for (uint32_t i = 0; i < 60; i++)
            (void)!support_get(store, i, NULL);
    }
    assert_ok(kvt_store_maintain(store, NULL));
    const double price = support_stats(store).policy.price[KVT_TIER_DRAM];
    assert_true(price > 0);
    store_scratch *scratch = NULL;
    uint64_t missing[KVT_TIER_COUNT];
    scratch_wish window = {
        .tier = KVT_TIER_DRAM, .bytes = 8 * SUPPORT_ENTRY_BYTES, .worth_per_byte = price / 2};
    assert_int_equal(scratch_open(store, &window, 1, &scratch, missing), KVT_E_SPACE);
    assert_true(missing[KVT_TIER_DRAM] > 0 && missing[KVT_TIER_DRAM] <= window.bytes);
    window.worth_per_byte = price * 2;
    assert_ok(scratch_open(store, &window, 1, &scratch, missing));
    const kvt_store_stats stats = support_stats(store);
    assert_true(stats.policy.used_bytes[KVT_TIER_DRAM] + window.bytes <=
                stats.tiers[KVT_TIER_DRAM].capacity_bytes);
    scratch_close(scratch);
    kvt_store_close(store);
}

/* ---- drives and restarts ---- */

TEST(a_member_that_goes_takes_its_part_with_it)
{
    site *s = site_make(2 * MIB);
    const uint64_t ssd = capacity_of(s, KVT_TIER_SSD);
    store_scratch *scratch;
    tiers_location *location, *none;
    const scratch_wish wish = ssd_wish(MIB, 0);
    assert_ok(scratch_open(s->store, &wish, 1, &scratch, NULL));
    assert_ok(scratch_reserve(scratch, KVT_TIER_SSD, MIB / 2, PAGE, UINT64_MAX, &location));
    site_put(s, 0, ENTRIES);
    assert_ok(kvt_device_change(s->store, "disk1", KVT_DEVICE_RETIRE));
    assert_true(capacity_of(s, KVT_TIER_SSD) <= ssd - 2 * MIB - MIB + 64 * 1024);
    void *buffer = test_aligned(4096, MIB / 2);
    assert_int_equal(tiers_pool_transfer(scratch_pool(scratch, KVT_TIER_SSD), KVT_IO_READ, location,
                                         buffer, MIB / 2),
                     KVT_E_GONE);
    /* New extents lie on the member that serves. */
    tiers_location *more;
    assert_ok(scratch_reserve(scratch, KVT_TIER_SSD, MIB / 4, PAGE, UINT64_MAX, &more));
    assert_int_equal(more->share_count, 1);
    assert_int_equal(scratch_reserve(scratch, KVT_TIER_SSD, MIB / 4, PAGE, 2, &none), KVT_E_SPACE);
    scratch_release(scratch, KVT_TIER_SSD, more);
    scratch_release(scratch, KVT_TIER_SSD, location);
    scratch_close(scratch);
    (void)count_readable(s, ENTRIES);
}

/* The child has borrowed half of the tier and written to it when it is killed. */
TEST(a_killed_process_gives_everything_back)
{
    site *s = site_make(MIB);
    site_put(s, 0, ENTRIES);
    const uint64_t ssd = capacity_of(s, KVT_TIER_SSD);
    site_close(s);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        store_scratch *scratch;
        tiers_location *location;
        const scratch_wish wish = ssd_wish(MIB / 2, INFINITY);
        if (kvt_store_open(&s->options, &s->store, NULL, 0) != KVT_OK ||
            scratch_open(s->store, &wish, 1, &scratch, NULL) != KVT_OK ||
            scratch_reserve(scratch, KVT_TIER_SSD, MIB / 2, PAGE, UINT64_MAX, &location) != KVT_OK)
            _exit(1);
        void *buffer = test_aligned(4096, MIB / 2);
        memset(buffer, 0x5a, MIB / 2);
        if (tiers_pool_transfer(scratch_pool(scratch, KVT_TIER_SSD), KVT_IO_WRITE, location, buffer,
                                MIB / 2) != KVT_OK ||
            kvt_store_flush(s->store) != KVT_OK)
            _exit(2);
        kill(getpid(), SIGKILL);
    }
    int how;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
    site_open(s);
    assert_int_equal(capacity_of(s, KVT_TIER_SSD), ssd);
    assert_int_equal(support_stats(s->store).lent_bytes[KVT_TIER_SSD], 0);
    assert_true(count_readable(s, ENTRIES) > 0);
    store_scratch *scratch;
    const scratch_wish wish = ssd_wish(ssd, INFINITY);
    assert_ok(scratch_open(s->store, &wish, 1, &scratch, NULL));
    scratch_close(scratch);
}
