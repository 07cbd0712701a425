/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_hint.c - entries that a caller asks for ahead of a get come up, at once where the
 * store has a background; hints reach the policy, and are counted; a long scan for a prefix lets
 * the lock go in between.
 */
#include "copies_site.h"
#include "lock_count.h"
#include "store_support.h"

#include "base/clock.h"

#include <kvterrace/lookup.h>

static kvt_status prefetch(site *s, uint32_t number, kvt_tier tier)
{
    const kvt_key key = support_key(number);
    return kvt_store_prefetch(s->store, &key, tier);
}

/* The first entries went to SSD, because DRAM has room for the last ones alone. */
static site *site_make_filled(double tick_seconds)
{
    site *s = site_make(2 << 20);
    site_close(s);
    s->options.limits.tick_seconds = tick_seconds;
    site_open(s);
    site_put(s, 0, ENTRIES);
    return s;
}

static kvt_tier tier_of(site *s, uint32_t number)
{
    kvt_get_info info = {.struct_size = sizeof info};
    assert_ok(support_get(s->store, number, &info));
    return info.tier;
}

TEST(an_entry_comes_up)
{
    site *s = site_make_filled(0);
    assert_ok(prefetch(s, 0, KVT_TIER_SSD));
    assert_int_equal(support_stats(s->store).promotions, 0);
    assert_ok(prefetch(s, 0, KVT_TIER_DRAM));
    assert_ok(prefetch(s, 0, KVT_TIER_DRAM)); /* on its way */
    uint64_t gets = support_stats(s->store).gets;
    site_maintain(s, 1);
    assert_int_equal(support_stats(s->store).promotions, 1);
    assert_int_equal(support_stats(s->store).gets, gets);
    assert_int_equal(tier_of(s, 0), KVT_TIER_DRAM);
    assert_ok(prefetch(s, 0, KVT_TIER_DRAM));
    /* With an engine it is asked for there. */
    assert_int_equal(prefetch(s, 99, KVT_TIER_DRAM),
                     getenv("KVT_TEST_ENGINE") == NULL ? KVT_MISS : KVT_OK);
    assert_int_equal(prefetch(s, 0, KVT_TIER_HBM), KVT_E_UNSUPPORTED);
    assert_int_equal(prefetch(s, 0, KVT_TIER_REMOTE), KVT_E_UNSUPPORTED);
    assert_int_equal(kvt_store_prefetch(s->store, NULL, KVT_TIER_DRAM), KVT_E_ARGUMENT);
    check_budget(s);
}

/* A leased entry stays where it is. */
TEST(a_held_entry_is_refused)
{
    site *s = site_make_filled(0);
    const kvt_key key = support_key(0);
    uint64_t lease;
    assert_ok(kvt_lease_begin(s->store, NULL, &key, 1, base_clock_ns() + UINT64_C(3600000000000),
                              NULL, &lease));
    assert_int_equal(prefetch(s, 0, KVT_TIER_DRAM), KVT_REFUSED);
    assert_ok(kvt_lease_end(s->store, lease));
    assert_ok(prefetch(s, 0, KVT_TIER_DRAM));
}

/* The background's pause is an hour: only the wake can have carried the move out. */
TEST(the_background_is_woken)
{
    site *s = site_make_filled(3600);
    assert_ok(prefetch(s, 0, KVT_TIER_DRAM));
    while (support_stats(s->store).promotions == 0)
        base_sleep_until(base_clock_ns() + 1000000);
    assert_int_equal(tier_of(s, 0), KVT_TIER_DRAM);
    /* More of them than the queue of plans takes: some are refused, none is lost. */
    for (uint32_t i = 0; i < ENTRIES; i++) {
        kvt_status status = prefetch(s, i, KVT_TIER_DRAM);
        assert_true(status == KVT_OK || status == KVT_REFUSED);
    }
    support_gets(s->store, 0, ENTRIES);
    check_budget(s);
}

static kvt_status hint(site *s, uint32_t from, uint32_t count, uint32_t kind, double seconds,
                       size_t *hinted)
{
    static kvt_key keys[1000];
    for (uint32_t i = 0; i < count; i++)
        keys[i] = support_key(from + i);
    const kvt_expectation expected = {
        .struct_size = sizeof expected, .kind = kind, .seconds = seconds};
    return kvt_store_hint(s->store, keys, count, &expected, hinted);
}

static kvt_hint_stats hint_stats(site *s)
{
    return support_stats(s->store).policy.hints;
}

static site *make_utility_site(void)
{
    site *s = site_make(2 << 20);
    site_close(s);
    s->options.policy = "utility";
    site_open(s);
    site_put(s, 0, DRAM_ENTRIES);
    return s;
}

TEST(hints_are_counted_and_judged)
{
    site *s = make_utility_site();
    size_t hinted = 99;
    /* More keys than one hold of the lock looks up; the last ones are not stored. */
    assert_ok(hint(s, 0, 1000, KVT_HINT_RETAIN, 3600, &hinted));
    assert_int_equal(hinted, DRAM_ENTRIES);
    kvt_hint_stats stats = hint_stats(s);
    assert_int_equal(stats.given[KVT_HINT_RETAIN], DRAM_ENTRIES);
    assert_int_equal(stats.open[KVT_HINT_RETAIN], DRAM_ENTRIES);
    assert_int_equal(support_stats(s->store).hints_skipped, 1000 - DRAM_ENTRIES);
    const kvt_key key = support_key(0);
    assert_ok(hint(s, 1, 1, KVT_HINT_SESSION_END, 0, NULL));
    assert_ok(support_get(s->store, 0, NULL));
    assert_ok(support_get(s->store, 1, NULL));
    assert_ok(kvt_store_delete(s->store, &key));
    stats = hint_stats(s);
    assert_int_equal(stats.came_true[KVT_HINT_RETAIN], 2);
    assert_int_equal(stats.failed[KVT_HINT_SESSION_END], 1);
    assert_int_equal(hint(s, 0, 1, KVT_HINT_RETAIN, 1, &hinted), KVT_MISS);
    assert_int_equal(hinted, 0);
    assert_ok(hint(s, 0, 0, KVT_HINT_RETAIN, 1, NULL));
}

TEST(wrong_hints_are_refused)
{
    site *s = make_utility_site();
    assert_int_equal(hint(s, 1, 1, KVT_HINT_RETAIN, 0, NULL), KVT_E_ARGUMENT);
    assert_int_equal(hint(s, 1, 1, KVT_HINT_DEMOTE, -1, NULL), KVT_E_ARGUMENT);
    assert_int_equal(hint(s, 1, 1, KVT_HINT_NEXT_USE, 1e9, NULL), KVT_E_ARGUMENT);
    assert_int_equal(hint(s, 1, 1, KVT_HINT_KINDS, 1, NULL), KVT_E_ARGUMENT);
    const kvt_key key = support_key(1);
    kvt_expectation expected = {.struct_size = 4, .seconds = 1};
    assert_int_equal(kvt_store_hint(s->store, &key, 1, &expected, NULL), KVT_E_ARGUMENT);
    expected.struct_size = sizeof expected;
    assert_int_equal(kvt_store_hint(s->store, NULL, 1, &expected, NULL), KVT_E_ARGUMENT);
    assert_int_equal(kvt_store_hint(s->store, &key, 1, NULL, NULL), KVT_E_ARGUMENT);
    assert_ok(kvt_store_hint(s->store, &key, 1, &expected, NULL));
}

/* ---- prefixes ---- */

enum { KEYS = 1200, STEP = 256 };

TEST(a_long_scan_lets_the_lock_go)
{
    /* Without staging a put says how its write went. */
    kvt_store *store = support_open_memory("lru", 64 << 20, 0);
    kvt_key *keys = test_alloc((KEYS + 1) * sizeof *keys);
    for (uint32_t i = 0; i <= KEYS; i++)
        keys[i] = support_key(i);
    for (uint32_t i = 0; i < KEYS; i++)
        assert_ok(support_put_small(store, &keys[i], 0));
    size_t matched = 0;
    lock_count_begin();
    assert_ok(kvt_store_match(store, keys, KEYS + 1, NULL, &matched));
    uint32_t holds = lock_count_end();
    assert_int_equal(matched, KEYS);
    if (LOCK_COUNTS) assert_true(holds >= KEYS / STEP);
    /* Wherever the run ends: inside a step, at its end, at the first key. */
    static const uint32_t holes[] = {STEP + 7, STEP, STEP - 1, 1, 0};
    for (size_t i = 0; i < sizeof holes / sizeof holes[0]; i++) {
        assert_ok(kvt_store_delete(store, &keys[holes[i]]));
        assert_ok(kvt_store_match(store, keys, KEYS + 1, NULL, &matched));
        assert_int_equal(matched, holes[i]);
    }
    kvt_store_close(store);
}
