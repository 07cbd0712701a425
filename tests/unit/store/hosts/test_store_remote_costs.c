/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_remote_costs.c - what a store makes of the seconds that loads from an engine take: it
 * predicts them by node, asks nobody where recomputing is sooner, and keeps what nobody else has.
 */
#include "store_remote_support.h"

#include "store/hosts/remote_tier.h"

#include <kvterrace/lookup.h>

/* Loads take what `request_s` says, and as much again for each MiB. */
static double request_s;

static double load_clock(void *context, learn_timing what, double bytes, double measured_seconds)
{
    (void)context;
    if (what != LEARN_TIME_REMOTE) return measured_seconds;
    return request_s * (1 + bytes / 1048576);
}

static kvt_store *open_timed(double seconds)
{
    kvt_store *store = open_mode(KVT_PUBLISH_NONE);
    request_s = seconds;
    store->learn->clock = load_clock;
    return store;
}

/* Puts the entries whose recomputing takes so long, and publishes them. */
static void put_recomputed_in(kvt_store *store, double seconds)
{
    static char data[SUPPORT_ENTRY_BYTES];
    for (uint32_t i = 0; i < COUNT; i++) {
        support_fill(i, data);
        const kvt_entry entry = support_entry(support_key(i), support_layout, seconds);
        assert_ok(kvt_store_put(store, &entry, KVT_PACKED(data, sizeof data)));
    }
    assert_ok(kvt_remote_flush(store, KVT_NO_DEADLINE));
}

TEST_EACH(clear, NULL);

TEST(loads_are_predicted_by_node)
{
    kvt_store *a = open_mode(KVT_PUBLISH_ALL), *b = open_timed(0.0006);
    kvt_remote_node node = {.struct_size = sizeof node};
    put_all(a);
    support_gets(b, 0, COUNT);
    assert_ok(kvt_remote_node_get(b, 0, &node));
    assert_int_equal(node.loads, COUNT);
    assert_true(node.load_error > 0);
    /* 20 loads of 32 KiB say what one of them takes. */
    const double expected = remote_costs_load(b->remote, 0, b->remote->last_size->record_bytes);
    assert_true(expected > 0.0005 && expected < 0.0008);
    assert_int_equal(kvt_remote_node_get(b, 1, &node), KVT_END);
    assert_int_equal(b->remote->ahead[0], 0);
    kvt_store_close(a);
    kvt_store_close(b);
}

TEST(recomputing_may_be_sooner)
{
    kvt_store *a = open_mode(KVT_PUBLISH_ALL), *b = open_timed(0.002);
    put_recomputed_in(a, 1e-5);
    uint64_t hits = 0;
    for (uint32_t i = 0; i < COUNT; i++) {
        const kvt_status status = support_get(b, i, NULL);
        assert_true(status == KVT_OK || status == KVT_MISS);
        hits += status == KVT_OK;
    }
    /* The first one said what such entries cost; few are asked for after it, and none is lost. */
    kvt_remote_stats stats = stats_of(b);
    assert_int_equal(stats.hits, hits);
    assert_int_equal(stats.hits + stats.not_worth, COUNT);
    assert_true(hits >= 1 && stats.not_worth >= COUNT / 2);
    kvt_store_close(b);
    /* What takes a second to recompute is asked for however slow the node is. */
    b = open_timed(0.002);
    kvt_store *c = open_mode(KVT_PUBLISH_ALL);
    remote_memory_clear(ENGINE);
    put_all(c);
    support_gets(b, 0, COUNT);
    assert_int_equal(stats_of(b).not_worth, 0);
    kvt_store_close(a);
    kvt_store_close(b);
    kvt_store_close(c);
}

/* How many of some entries are here. */
static uint32_t here(kvt_store *store, uint32_t from, uint32_t count)
{
    uint32_t found = 0;
    for (uint32_t i = from; i < from + count; i++) {
        const kvt_key key = support_key(i);
        found += kvt_store_exists(store, &key) == KVT_OK;
    }
    return found;
}

/* Of entries that are alike, those with a copy make room. */
TEST(room_goes_to_what_nobody_else_keeps)
{
    const uint32_t half = COUNT / 2;
    kvt_key keys[COUNT];
    size_t matched;
    kvt_store *a = open_mode(KVT_PUBLISH_ALL);
    for (uint32_t i = 0; i < half; i++)
        assert_ok(support_put(a, 2 * i));
    assert_ok(kvt_remote_flush(a, KVT_NO_DEADLINE));
    const kvt_remote_options remote = remote_options(KVT_PUBLISH_NONE);
    kvt_store *b = open_policy(&remote, "utility", COUNT * 2 * SUPPORT_ENTRY_BYTES);
    for (uint32_t i = 0; i < COUNT; i++) {
        keys[i] = support_key(i);
        assert_ok(kvt_store_match(
            b, &keys[i], 1, KVT_MATCH(.hosts = true, .deadline_ns = KVT_NO_DEADLINE), &matched));
        assert_int_equal(matched, i % 2 == 0);
        assert_ok(support_put(b, i));
    }
    assert_int_equal(here(b, 0, COUNT), COUNT);
    for (uint32_t i = 0; i < 2 * COUNT; i++)
        (void)!support_put(b, 1000 + i);
    uint32_t with = 0, without = 0;
    for (uint32_t i = 0; i < COUNT; i++) {
        if (i % 2 == 0)
            with += here(b, i, 1);
        else
            without += here(b, i, 1);
    }
    assert_true(with + without < COUNT);
    assert_true(with < without);
    kvt_store_close(a);
    kvt_store_close(b);
}

/* The policy hears of copies that are made, found and lost. */
TEST(the_policy_hears_of_copies)
{
    const kvt_remote_options remote = remote_options(KVT_PUBLISH_ALL);
    kvt_store *a = open_policy(&remote, "utility", 8 << 20);
    put_all(a);
    assert_int_equal(stats_of(a).published, COUNT);
    assert_int_equal(stats_of(a).copies_told, COUNT);
    kvt_store *b = open_policy(&remote, "utility", 8 << 20);
    put_all(b); /* another host has written them */
    assert_int_equal(stats_of(b).deduplicated, COUNT);
    assert_int_equal(stats_of(b).copies_told, COUNT);
    kvt_store_close(a);
    kvt_store_close(b);
}
