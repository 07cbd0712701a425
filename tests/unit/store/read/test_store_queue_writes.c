/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_queue_writes.c - puts of one batch whose records are written together: all writes are
 * under way before the first one is answered, each put gets its own status, and a device that
 * fails, hangs or ends costs the puts that it has and no other.
 */
#include "queue_site.h"

enum { PUTS = 48, TOGETHER = 32 };

typedef struct site {
    char data[PUTS][SUPPORT_ENTRY_BYTES];
    kvt_view views[PUTS];
    kvt_entry entries[PUTS];
    kvt_request requests[PUTS];
    kvt_key parents[PUTS];
    kvt_status statuses[PUTS];
    uint64_t batch;
} site;

TEST_BEFORE_EACH
{
    static site s;
    memset(&s, 0, sizeof s);
    kvt_store_options options = queue_site_options(true);
    fault.depth = PUTS;
    assert_ok(kvt_store_open(&options, &store, NULL, 0));
    queue = queue_site_queue(0, 0);
    for (uint32_t i = 0; i < PUTS; i++) {
        support_fill(i, s.data[i]);
        s.views[i] = kvt_view_packed(s.data[i], SUPPORT_ENTRY_BYTES);
        s.entries[i] = support_entry(support_key(i), support_layout, 1);
        s.requests[i] = (kvt_request){.struct_size = sizeof(kvt_request),
                                      .kind = KVT_REQUEST_PUT,
                                      .entry = &s.entries[i],
                                      .view = &s.views[i],
                                      .deadline_ns = KVT_NO_DEADLINE};
    }
    *state = &s;
}

TEST_EACH(NULL, queue_site_close);

static void submit(site *s)
{
    assert_ok(kvt_queue_submit(queue, s->requests, PUTS, &s->batch));
}

/* Waits for all completions and keeps their statuses. */
static void drain(site *s)
{
    kvt_completion done = {.struct_size = sizeof done};
    for (uint32_t i = 0; i < PUTS; i++) {
        assert_ok(kvt_queue_wait(queue, base_clock_ns() + 60 * SECOND_NS));
        assert_int_equal(kvt_queue_drain(queue, &done, 1), 1);
        s->statuses[done.index] = done.status;
    }
}

static void check_stored(const site *s)
{
    for (uint32_t i = 0; i < PUTS; i++)
        assert_int_equal(support_get(store, i, NULL), s->statuses[i] == KVT_OK ? KVT_OK : KVT_MISS);
}

/* Waits until the device has so many operations that it does not answer. */
static void await_hung(uint64_t count)
{
    tiers_fault_counts counts = {0};
    const uint64_t end_ns = base_clock_ns() + 30 * SECOND_NS;
    while (counts.hung < count && base_clock_ns() < end_ns) {
        base_sleep(1000000);
        tiers_fault_counts_get(fault.device, &counts);
    }
    assert_int_equal(counts.hung, count);
}

TEST(all_writes_of_a_batch_are_under_way_at_once)
{
    site *s = *state;
    queue_site_fault((tiers_fault_rule){.action = TIERS_FAULT_HANG, .kinds = TIERS_FAULT_WRITES});
    submit(s);
    await_hung(TOGETHER);
    assert_int_equal(support_get(store, 0, NULL), KVT_MISS); /* nothing shows before its write */
    tiers_fault_clear(fault.device);
    drain(s);
    for (uint32_t i = 0; i < PUTS; i++)
        assert_ok(s->statuses[i]);
    check_stored(s);
}

TEST(a_write_that_fails_is_tried_again_and_costs_no_other)
{
    site *s = *state;
    queue_site_fault((tiers_fault_rule){.action = TIERS_FAULT_FAIL,
                                        .kinds = TIERS_FAULT_WRITES,
                                        .skip = 3,
                                        .hits = 1,
                                        .status = KVT_E_IO});
    submit(s);
    drain(s);
    for (uint32_t i = 0; i < PUTS; i++)
        assert_ok(s->statuses[i]);
    check_stored(s);
}

TEST(every_write_from_one_on_fails)
{
    site *s = *state;
    queue_site_fault((tiers_fault_rule){
        .action = TIERS_FAULT_FAIL, .kinds = TIERS_FAULT_WRITES, .skip = 5, .status = KVT_E_IO});
    submit(s);
    drain(s);
    uint32_t stored = 0;
    for (uint32_t i = 0; i < PUTS; i++) {
        stored += s->statuses[i] == KVT_OK;
        if (s->statuses[i] != KVT_OK) assert_int_equal(s->statuses[i], KVT_E_IO);
    }
    assert_int_equal(stored, 5);
    check_stored(s);
}

TEST(a_key_twice_in_a_batch_is_there_already)
{
    site *s = *state;
    s->entries[9].key = s->entries[2].key;
    s->entries[10].key = s->entries[2].key;
    submit(s);
    drain(s);
    for (uint32_t i = 0; i < PUTS; i++)
        assert_int_equal(s->statuses[i], i == 9 || i == 10 ? KVT_EXISTS : KVT_OK);
}

TEST(a_chain_in_a_batch_is_stored_whole)
{
    site *s = *state;
    for (uint32_t i = 1; i < PUTS; i++) {
        s->parents[i] = s->entries[i - 1].key;
        s->entries[i].parent = &s->parents[i];
    }
    submit(s);
    drain(s);
    for (uint32_t i = 0; i < PUTS; i++)
        assert_ok(s->statuses[i]);
    check_stored(s);
}

TEST(a_wrong_put_among_good_ones_fails_alone)
{
    site *s = *state;
    s->entries[4].tenant = KVT_TENANTS_MAX;
    s->views[7] = kvt_view_packed(s->data[7], 1);
    submit(s);
    drain(s);
    for (uint32_t i = 0; i < PUTS; i++)
        assert_int_equal(s->statuses[i], i == 4 || i == 7 ? KVT_E_ARGUMENT : KVT_OK);
    check_stored(s);
}

TEST(a_device_that_goes_ends_every_put_of_a_batch)
{
    site *s = *state;
    queue_site_fault((tiers_fault_rule){.action = TIERS_FAULT_HANG, .kinds = TIERS_FAULT_WRITES});
    submit(s);
    await_hung(TOGETHER);
    tiers_fault_set_gone(fault.device, true);
    drain(s);
    for (uint32_t i = 0; i < PUTS; i++)
        assert_true(s->statuses[i] != KVT_OK);
    tiers_fault_set_gone(fault.device, false);
}

TEST(staging_for_a_few_entries_is_enough_for_a_batch)
{
    site *s = *state;
    (void)queue_site_close(NULL);
    kvt_store_options options = queue_site_options(true);
    options.limits.staging_bytes = 1 << 20; /* some 30 entries */
    assert_ok(kvt_store_open(&options, &store, NULL, 0));
    queue = queue_site_queue(0, 0);
    submit(s);
    drain(s);
    for (uint32_t i = 0; i < PUTS; i++)
        assert_ok(s->statuses[i]);
    check_stored(s);
}
