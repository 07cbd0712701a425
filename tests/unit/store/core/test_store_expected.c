/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_expected.c - the model that the torture of kills relies on (tests/torture/expected.h):
 * a flushed entry that is gone is a finding, and one that an eviction hides for a while is none.
 */
#include "cases.h"

#include "tests/torture/expected.h"

#include <pthread.h>
#include <sched.h>

enum { KEY = 5, VERSION = 1 };

static expected_model *model;
static expected_totals *totals;
static kvt_store *store;

/* A life on a store in DRAM, which holds about a fifth of all entries. */
TEST_BEFORE_EACH
{
    kvt_store_options options;
    model = test_zeros(sizeof *model);
    totals = test_zeros(sizeof *totals);
    expected_attach(model, totals);
    expected_begin_life(model);
    kvt_store_options_init(&options);
    options.policy = "lru";
    options.lossless = false;
    options.limits.put_staging_bytes = 0;
    options.tiers[KVT_TIER_DRAM].capacity_bytes = 512 << 10;
    options.tiers[KVT_TIER_DRAM].unit_bytes = 4096;
    assert_ok(kvt_store_open(&options, &store, NULL, 0));
}

TEST_AFTER_EACH
{
    kvt_store_close(store);
    expected_attach(NULL, NULL);
}

/* A value that an earlier life has put and flushed. */
static void require(void)
{
    atomic_store(&model->keys[KEY].attempted, VERSION);
    atomic_store(&model->keys[KEY].valid, UINT64_C(1) << VERSION);
    atomic_store(&model->keys[KEY].required, VERSION);
}

/* A note of the store about the key. */
static void note(kill_note what, kvt_tier tier)
{
    const kvt_key key = expected_key_of(KEY);
    kvt_kill_note(what, &key, tier);
}

/* The entry is in the store, without a word to the model. */
static void bring_in(void)
{
    static char data[EXPECTED_BYTES_MAX];
    const kvt_entry entry = {.struct_size = sizeof entry,
                             .key = expected_key_of(KEY),
                             .layout = expected_layout_of(KEY),
                             .recompute_seconds = 1};
    expected_fill(KEY, VERSION, data);
    expected_attach(NULL, NULL);
    assert_ok(kvt_store_put(store, &entry, KVT_PACKED(data, expected_bytes_of(KEY))));
    expected_attach(model, totals);
}

static void expect_judged(int found, unsigned lost)
{
    assert_int_equal(atomic_load(&model->keys[KEY].found), found);
    expected_judge(model, totals, false);
    assert_int_equal(totals->lost_flushed, lost);
    assert_int_equal(totals->wrong_bytes + totals->lost_by_fault + totals->came_back, 0);
}

TEST(what_is_found_is_not_lost)
{
    require();
    bring_in();
    expected_look(store, KEY);
    expect_judged(VERSION, 0);
}

TEST(what_was_flushed_and_is_gone_is_lost)
{
    require();
    expected_look(store, KEY);
    expect_judged(0, 1);
}

TEST(what_an_eviction_took_is_not_lost)
{
    require();
    note(KILL_NOTE_EVICTS, KVT_TIER_NONE);
    assert_int_equal(expected_get(store, KEY), KVT_MISS);
    assert_int_equal(atomic_load(&model->keys[KEY].found), -1);
    note(KILL_NOTE_DROPPED, KVT_TIER_SSD);
    expected_look(store, KEY);
    expect_judged(0, 0);
}

/* The look begins while a plan is to evict the entry, and the plan is aborted. */
static void look_over_abort(bool stays)
{
    require();
    note(KILL_NOTE_EVICTS, KVT_TIER_NONE);
    assert_int_equal(expected_get(store, KEY), KVT_MISS);
    assert_int_equal(atomic_load(&model->keys[KEY].found), -1);
    if (stays) bring_in();
    note(KILL_NOTE_ABORTED, KVT_TIER_SSD);
    expected_look(store, KEY);
}

TEST(what_an_aborted_eviction_hid_is_not_lost)
{
    look_over_abort(true);
    expect_judged(VERSION, 0);
}

TEST(what_is_gone_after_an_aborted_eviction_is_lost)
{
    look_over_abort(false);
    expect_judged(0, 1);
}

static void *look(void *unused)
{
    (void)unused;
    expected_look(store, KEY);
    return NULL;
}

TEST(a_look_waits_for_the_end_of_an_eviction)
{
    pthread_t thread;
    require();
    note(KILL_NOTE_EVICTS, KVT_TIER_NONE);
    assert_int_equal(pthread_create(&thread, NULL, look, NULL), 0);
    while (atomic_load(&totals->gets) < 3)
        sched_yield();
    assert_int_equal(atomic_load(&model->keys[KEY].found), -1);
    note(KILL_NOTE_ABORTED, KVT_TIER_SSD);
    assert_int_equal(pthread_join(thread, NULL), 0);
    expect_judged(0, 1);
}

/* Every eviction that the store carries out is over for the model, or no look would end. */
TEST(the_store_tells_of_the_end_of_each_eviction)
{
    uint32_t evicted = 0, kept = 0;
    for (uint32_t i = 0; i < EXPECTED_KEYS; i++)
        expected_put(store, i);
    for (uint32_t i = 0; i < EXPECTED_KEYS; i++) {
        expected_look(store, i);
        evicted += atomic_load(&model->keys[i].leaving) && atomic_load(&model->keys[i].dropped);
        kept += atomic_load(&model->keys[i].found) > 0;
    }
    assert_true(evicted > 0 && kept > 0);
    assert_int_equal(evicted + kept, EXPECTED_KEYS);
}
