/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_hint.c - entries that a caller asks for ahead of a get come up, at once where the
 * store has a background.
 */
#include "copies_site.h"

#include "base/clock.h"

#include <kvterrace/lookup.h>

static kvt_status prefetch(site *s, uint32_t number, kvt_tier tier)
{
    const kvt_key key = support_key(number);
    return kvt_prefetch(s->store, &key, tier);
}

/* The first entries went to SSD, because DRAM has room for the last ones alone. */
static void site_make_filled(site *s, double tick_seconds)
{
    site_make(s, 2 << 20);
    kvt_close(s->store);
    s->options.tick_seconds = tick_seconds;
    site_open(s);
    put_some(s, 0, ENTRIES);
}

static kvt_tier tier_of(site *s, uint32_t number)
{
    kvt_get_info info = {.struct_size = sizeof info};
    assert_int_equal(support_get(s->store, number, &info), KVT_OK);
    return info.tier;
}

static void test_an_entry_comes_up(void **state)
{
    (void)state;
    site s;
    site_make_filled(&s, 0);
    assert_int_equal(prefetch(&s, 0, KVT_TIER_SSD), KVT_OK);
    assert_int_equal(support_stats(s.store).promotions, 0);
    assert_int_equal(prefetch(&s, 0, KVT_TIER_DRAM), KVT_OK);
    assert_int_equal(prefetch(&s, 0, KVT_TIER_DRAM), KVT_OK); /* on its way */
    uint64_t gets = support_stats(s.store).gets;
    maintain(&s);
    assert_int_equal(support_stats(s.store).promotions, 1);
    assert_int_equal(support_stats(s.store).gets, gets);
    assert_int_equal(tier_of(&s, 0), KVT_TIER_DRAM);
    assert_int_equal(prefetch(&s, 0, KVT_TIER_DRAM), KVT_OK);
    assert_int_equal(prefetch(&s, 99, KVT_TIER_DRAM), KVT_MISS);
    assert_int_equal(prefetch(&s, 0, KVT_TIER_HBM), KVT_E_UNSUPPORTED);
    assert_int_equal(prefetch(&s, 0, KVT_TIER_REMOTE), KVT_E_UNSUPPORTED);
    assert_int_equal(kvt_prefetch(s.store, NULL, KVT_TIER_DRAM), KVT_E_ARGUMENT);
    check_budget(&s);
    site_end(&s);
}

/* A leased entry stays where it is. */
static void test_a_held_entry_is_refused(void **state)
{
    (void)state;
    site s;
    site_make_filled(&s, 0);
    const kvt_key key = support_key(0);
    uint64_t lease;
    assert_int_equal(
        kvt_lease(s.store, NULL, &key, 1, base_clock_ns() + UINT64_C(3600000000000), NULL, &lease),
        KVT_OK);
    assert_int_equal(prefetch(&s, 0, KVT_TIER_DRAM), KVT_REFUSED);
    assert_int_equal(kvt_release(s.store, lease), KVT_OK);
    assert_int_equal(prefetch(&s, 0, KVT_TIER_DRAM), KVT_OK);
    site_end(&s);
}

/* The background's pause is an hour: only the wake can have carried the move out. */
static void test_the_background_is_woken(void **state)
{
    (void)state;
    site s;
    site_make_filled(&s, 3600);
    assert_int_equal(prefetch(&s, 0, KVT_TIER_DRAM), KVT_OK);
    while (support_stats(s.store).promotions == 0)
        base_sleep_until(base_clock_ns() + 1000000);
    assert_int_equal(tier_of(&s, 0), KVT_TIER_DRAM);
    /* More of them than the queue of plans takes: some are refused, none is lost. */
    for (uint32_t i = 0; i < ENTRIES; i++) {
        kvt_status status = prefetch(&s, i, KVT_TIER_DRAM);
        assert_true(status == KVT_OK || status == KVT_REFUSED);
    }
    for (uint32_t i = 0; i < ENTRIES; i++)
        assert_int_equal(support_get(s.store, i, NULL), KVT_OK);
    check_budget(&s);
    site_end(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_entry_comes_up),
        cmocka_unit_test(test_a_held_entry_is_refused),
        cmocka_unit_test(test_the_background_is_woken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
