/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_lifetime.c - entries with a lifetime: no call sees them after its end, the background
 * takes their room back, and a restart changes nothing. The clocks are the test's own: the library
 * is linked with them.
 */
#include "open_support.h"

#include "base/clock.h"

#include <kvterrace/lookup.h>
#include <kvterrace/names.h>
#include <kvterrace/recover.h>
#include <kvterrace/watch.h>
#include <math.h>
#include <stdatomic.h>

static _Atomic uint64_t passed_ns; /* that the test lets pass, beside what passes */
static _Atomic int64_t set_ns;     /* by which somebody has set the calendar */

uint64_t __real_base_clock_ns(void);
uint64_t __real_base_calendar_ns(void);
uint64_t __wrap_base_clock_ns(void);
uint64_t __wrap_base_calendar_ns(void);

uint64_t __wrap_base_clock_ns(void)
{
    return __real_base_clock_ns() + passed_ns;
}

uint64_t __wrap_base_calendar_ns(void)
{
    return __real_base_calendar_ns() + passed_ns + (uint64_t)set_ns;
}

static void let_pass(double seconds)
{
    passed_ns += (uint64_t)(seconds * 1e9);
}

static kvt_status put_for(kvt_store *store, uint32_t number, double seconds)
{
    static char data[SUPPORT_ENTRY_BYTES];
    support_fill(number, data);
    kvt_entry entry = {.struct_size = sizeof entry,
                       .key = support_key(number),
                       .layout = support_layout,
                       .recompute_seconds = 1,
                       .tenant = 3,
                       .class_id = 2,
                       .request_tokens = 4096,
                       .lifetime_seconds = seconds};
    return kvt_store_put(store, &entry, KVT_PACKED(data, sizeof data));
}

/* A store of memory alone. */
static kvt_store *open_memory(uint64_t put_staging_bytes)
{
    return support_open_memory("lru", 64 << 20, put_staging_bytes);
}

static void expect_unseen(kvt_store *store, uint32_t number)
{
    kvt_key key = support_key(number);
    kvt_description description = {.struct_size = sizeof description};
    kvt_explanation explanation = {.struct_size = sizeof explanation};
    double seconds = 0;
    size_t count = 1;
    assert_int_equal(support_get(store, number, NULL), KVT_MISS);
    assert_int_equal(kvt_store_exists(store, &key), KVT_MISS);
    assert_int_equal(kvt_store_describe(store, &key, &description), KVT_MISS);
    assert_int_equal(kvt_store_explain(store, &key, &explanation), KVT_MISS);
    assert_ok(kvt_store_match(store, &key, 1, KVT_MATCH(.load_seconds = &seconds), NULL));
    assert_true(isnan(seconds));
    assert_ok(kvt_store_match(store, &key, 1, NULL, &count));
    assert_int_equal(count, 0);
    count = 1;
    assert_ok(kvt_store_touch(store, &key, 1, &count));
    assert_int_equal(count, 0);
    const kvt_expectation expected = {
        .struct_size = sizeof expected, .kind = KVT_HINT_RETAIN, .seconds = 10};
    assert_int_equal(kvt_store_hint(store, &key, 1, &expected, &count), KVT_MISS);
    kvt_status status = kvt_store_prefetch(store, &key, KVT_TIER_DRAM);
    assert_true(status == KVT_MISS || status == KVT_E_UNSUPPORTED); /* without such a tier */
}

TEST(no_call_sees_an_entry_after_its_end)
{
    kvt_store *store = open_memory(0);
    kvt_key key = support_key(1);
    kvt_description description = {.struct_size = sizeof description};
    assert_ok(put_for(store, 1, 100));
    assert_ok(put_for(store, 2, 0));
    let_pass(99);
    assert_ok(support_get(store, 1, NULL));
    assert_ok(kvt_store_describe(store, &key, &description));
    assert_true(description.lifetime_seconds > 0 && description.lifetime_seconds <= 1);
    assert_true(description.age_seconds >= 98.9 && description.age_seconds < 200);
    let_pass(1);
    expect_unseen(store, 1);
    assert_ok(support_get(store, 2, NULL));
    assert_int_equal(kvt_store_delete(store, &key), KVT_MISS);
    assert_int_equal(support_stats(store).tiers[KVT_TIER_DRAM].entries, 1);
    kvt_store_close(store);
}

/* A put of a key whose entry has ended finds no entry; one before changes nothing. */
TEST(a_key_can_be_put_again)
{
    kvt_store *store = open_memory(0);
    assert_ok(put_for(store, 1, 100));
    assert_int_equal(put_for(store, 1, 1000), KVT_EXISTS);
    let_pass(101);
    expect_unseen(store, 1);
    assert_ok(put_for(store, 1, 100));
    assert_ok(support_get(store, 1, NULL));
    assert_int_equal(support_stats(store).expired, 1);
    assert_int_equal(support_stats(store).tiers[KVT_TIER_DRAM].entries, 1);
    let_pass(101);
    expect_unseen(store, 1);
    kvt_store_close(store);
}

TEST(the_background_takes_the_room_back)
{
    kvt_store *store = open_memory(0);
    for (uint32_t i = 0; i < 20; i++)
        assert_ok(put_for(store, i, i % 2 == 0 ? 0 : 10 * i));
    uint64_t used = support_stats(store).tiers[KVT_TIER_DRAM].used_bytes;
    assert_ok(kvt_store_maintain(store, NULL));
    assert_int_equal(support_stats(store).expired, 0);
    let_pass(55);
    assert_ok(kvt_store_maintain(store, NULL));
    assert_int_equal(support_stats(store).expired, 3); /* 1, 3 and 5 */
    assert_int_equal(support_stats(store).tiers[KVT_TIER_DRAM].entries, 17);
    assert_true(support_stats(store).tiers[KVT_TIER_DRAM].used_bytes == used / 20 * 17);
    let_pass(1000);
    assert_ok(kvt_store_maintain(store, NULL));
    assert_int_equal(support_stats(store).expired, 10);
    for (uint32_t i = 0; i < 20; i++)
        assert_int_equal(support_get(store, i, NULL), i % 2 == 0 ? KVT_OK : KVT_MISS);
    kvt_store_close(store);
}

static kvt_status put_small(kvt_store *store, uint32_t number, double seconds)
{
    static const char data[64];
    kvt_entry entry = {.struct_size = sizeof entry,
                       .key = support_key(number),
                       .layout = {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = sizeof data},
                       .recompute_seconds = 1,
                       .lifetime_seconds = seconds};
    return kvt_store_put(store, &entry, KVT_PACKED(data, sizeof data));
}

/* More than a round looks at; half of them end while the walk is on its way. */
TEST(a_walk_takes_several_rounds)
{
    enum { MANY = 12000 };
    kvt_store_options options = support_options(4 << 20, "lru");
    options.tiers[KVT_TIER_DRAM].capacity_bytes = UINT64_C(256) << 20;
    kvt_store *store = support_open(&options);
    for (uint32_t i = 0; i < MANY; i++)
        assert_ok(put_small(store, i, i % 3 == 0 ? 0 : i % 3 == 1 ? 10 : 20));
    let_pass(11);
    assert_ok(kvt_store_maintain(store, NULL));
    uint64_t first = support_stats(store).expired;
    assert_true(first > 0 && first < MANY / 3);
    let_pass(10);
    for (int i = 0; i < 6; i++)
        assert_ok(kvt_store_maintain(store, NULL));
    assert_int_equal(support_stats(store).expired, MANY / 3 * 2);
    assert_int_equal(support_stats(store).tiers[KVT_TIER_DRAM].entries, MANY / 3);
    kvt_store_close(store);
}

/* An entry that ends before its record is written. */
TEST(a_put_that_was_handed_over_ends_too)
{
    kvt_store *store = open_memory(4 << 20);
    assert_ok(put_for(store, 1, 50));
    let_pass(51);
    expect_unseen(store, 1);
    assert_ok(kvt_store_flush(store));
    expect_unseen(store, 1);
    assert_ok(kvt_store_maintain(store, NULL));
    assert_int_equal(support_stats(store).expired, 1);
    assert_int_equal(support_stats(store).tiers[KVT_TIER_DRAM].entries, 0);
    kvt_store_close(store);
}

TEST(bad_lifetimes_are_refused)
{
    kvt_store *store = open_memory(0);
    static const double bad[] = {-1,         -1e-300, 1.1e9, (double)INFINITY, -(double)INFINITY,
                                 (double)NAN};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(put_for(store, 1, bad[i]), KVT_E_ARGUMENT);
    assert_ok(put_for(store, 1, 1e9));
    assert_ok(put_for(store, 2, 1e-9));
    let_pass(1);
    expect_unseen(store, 2);
    assert_ok(support_get(store, 1, NULL));
    kvt_store_close(store);
}

/* ---- restarts ---- */

TEST(a_lifetime_goes_on_over_a_restart)
{
    open_site site;
    open_prepare(&site);
    kvt_store *store = open_now(&site);
    for (uint32_t i = 0; i < 3; i++)
        assert_ok(put_for(store, i, i * 100));
    assert_ok(kvt_store_flush(store));
    let_pass(30);
    kvt_store_close(store);
    let_pass(30);
    store = open_now(&site);
    assert_int_equal(support_stats(store).recovered, 3);
    kvt_description description = {.struct_size = sizeof description};
    kvt_key key = support_key(1);
    assert_ok(kvt_store_describe(store, &key, &description));
    assert_true(description.lifetime_seconds > 30 && description.lifetime_seconds <= 40);
    assert_true(description.age_seconds < 30); /* since the open */
    assert_int_equal(description.tenant, 3);
    assert_int_equal(description.class_id, 2);
    assert_int_equal(description.request_tokens, 4096);
    let_pass(41);
    expect_unseen(store, 1);
    assert_ok(support_get(store, 2, NULL));
    assert_ok(kvt_store_maintain(store, NULL));
    assert_int_equal(support_stats(store).expired, 1);
    kvt_store_close(store);
    assert_int_equal(open_count_elsewhere(site.catalog, "SELECT count(*) FROM entry"), 2);
}

/* A calendar that is set while the store serves ends nothing and keeps nothing longer; one that is
 * set while it is closed moves the ends of what it left, and loses nothing else. */
TEST(a_calendar_that_jumps)
{
    const int64_t year_ns = INT64_C(366) * 86400 * 1000000000;
    open_site site;
    open_prepare(&site);
    kvt_store *store = open_now(&site);
    for (uint32_t i = 0; i < 3; i++)
        assert_ok(put_for(store, i, i * 100));
    assert_ok(kvt_store_flush(store));
    for (int sign = -1; sign <= 1; sign += 2) {
        set_ns = sign * 10 * year_ns;
        for (uint32_t i = 0; i < 3; i++)
            assert_ok(support_get(store, i, NULL));
        assert_ok(kvt_store_maintain(store, NULL));
        assert_int_equal(support_stats(store).expired, 0);
    }
    let_pass(101);
    expect_unseen(store, 1);
    set_ns = 0;
    kvt_store_close(store);
    set_ns = -year_ns;
    store = open_now(&site);
    assert_ok(support_get(store, 0, NULL));
    let_pass(101);
    assert_ok(support_get(store, 2, NULL)); /* its end has moved with the calendar */
    kvt_store_close(store);
    set_ns = 10 * year_ns;
    store = open_now(&site);
    expect_unseen(store, 2);
    assert_ok(support_get(store, 0, NULL));
    assert_int_equal(support_stats(store).recovery_drops, 0);
    kvt_store_close(store);
    set_ns = 0;
}

/* An entry that ends while the store is closed is dropped by the open, with its room. */
TEST(an_end_while_the_store_is_closed)
{
    open_site site;
    open_prepare(&site);
    kvt_store *store = open_now(&site);
    for (uint32_t i = 0; i < 4; i++)
        assert_ok(put_for(store, i, i < 2 ? 100 : 0));
    assert_ok(kvt_store_flush(store));
    uint64_t used = support_stats(store).tiers[KVT_TIER_SSD].used_bytes;
    kvt_store_close(store);
    let_pass(101);
    store = open_now(&site);
    assert_int_equal(support_stats(store).recovered, 2);
    assert_int_equal(support_stats(store).recovery_drops, 0);
    assert_int_equal(support_stats(store).expired, 2);
    assert_true(support_stats(store).tiers[KVT_TIER_SSD].used_bytes == used / 2);
    expect_unseen(store, 0);
    assert_ok(support_get(store, 2, NULL));
    kvt_store_close(store);
    assert_int_equal(open_count_elsewhere(site.catalog, "SELECT count(*) FROM entry"), 2);
}

/* A catalog that is rebuilt from the devices has the lifetimes, too. */
TEST(a_lifetime_outlives_its_catalog)
{
    open_site site;
    open_prepare(&site);
    kvt_store *store = open_now(&site);
    for (uint32_t i = 0; i < 3; i++)
        assert_ok(put_for(store, i, i * 100));
    kvt_store_close(store);
    assert_int_equal(unlink(site.catalog), 0);
    kvt_recover_options options;
    kvt_recover_options_init(&options);
    kvt_recover_report report = {.struct_size = sizeof report};
    assert_ok(kvt_store_recover(&site.options, &options, &report, NULL, 0));
    assert_int_equal(report.entries, 3);
    let_pass(101);
    store = open_now(&site);
    assert_int_equal(support_stats(store).recovered, 2);
    assert_int_equal(support_stats(store).expired, 1);
    kvt_description description = {.struct_size = sizeof description};
    kvt_key key = support_key(2);
    assert_ok(kvt_store_describe(store, &key, &description));
    assert_true(description.lifetime_seconds > 50 && description.lifetime_seconds <= 99);
    assert_int_equal(description.tenant, 3);
    assert_int_equal(description.class_id, 2);
    assert_int_equal(description.request_tokens, 4096);
    kvt_store_close(store);
}

/* An entry that ends while its device is away does not come back with it. */
TEST(an_end_in_quarantine)
{
    open_site site;
    open_prepare(&site);
    support_fault disk = {.capacity_bytes = 8 << 20, .path = site.path};
    kvt_device_config config = support_fault_config(&disk, "ssd");
    site.options.tiers[KVT_TIER_SSD].devices = &config;
    kvt_store *store = open_now(&site);
    for (uint32_t i = 0; i < 3; i++)
        assert_ok(put_for(store, i, i * 100));
    assert_ok(kvt_store_flush(store));
    tiers_fault_set_gone(disk.device, true);
    assert_int_equal(support_get(store, 0, NULL), KVT_MISS);
    assert_int_equal(support_stats(store).quarantined, 3);
    let_pass(101);
    assert_ok(kvt_device_add(store, KVT_TIER_SSD, &config, NULL, 0));
    assert_int_equal(support_stats(store).readmitted, 2);
    expect_unseen(store, 1);
    assert_ok(support_get(store, 2, NULL));
    let_pass(100);
    assert_ok(kvt_store_maintain(store, NULL));
    assert_int_equal(support_stats(store).expired, 1);
    kvt_store_close(store);
}

TEST(readers_of_events_are_told)
{
    kvt_store *store = open_memory(0);
    kvt_events *events = NULL;
    kvt_event found[4];
    size_t count = 0;
    assert_ok(kvt_events_open(store, 16, &events));
    assert_ok(put_for(store, 1, 10));
    let_pass(11);
    assert_ok(kvt_store_maintain(store, NULL));
    assert_ok(kvt_events_drain(events, found, 4, &count, NULL));
    assert_int_equal(count, 2);
    assert_int_equal(found[0].kind, KVT_EVENT_STORED);
    assert_int_equal(found[1].kind, KVT_EVENT_REMOVED);
    assert_int_equal(found[1].reason, KVT_REMOVED_EXPIRED);
    kvt_events_close(events);
    kvt_store_close(store);
}
