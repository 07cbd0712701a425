/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_queue_puts.c - puts of a queue that wait for room: those before them complete, and a
 * cancel or a close calls off what has not been accepted.
 */
#include "queue_site.h"

enum { PUTS = 40, ROOM = 2 };

typedef struct site {
    char data[PUTS][SUPPORT_ENTRY_BYTES];
    kvt_view views[PUTS];
    kvt_entry entries[PUTS];
    kvt_request requests[PUTS];
    uint64_t batch;
} site;

/* A store whose device answers no write, with room for a few entries in the staging of puts, and a
 * batch of more puts than that, which wait for as long as it takes. */
TEST_BEFORE_EACH
{
    static site s;
    kvt_store_options options = queue_site_options(true);
    options.limits.put_staging_bytes = ROOM * SUPPORT_ENTRY_BYTES;
    assert_ok(kvt_store_open(&options, &store, NULL, 0));
    queue = queue_site_queue(0, 0);
    queue_site_fault((tiers_fault_rule){.action = TIERS_FAULT_HANG, .kinds = TIERS_FAULT_WRITES});
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
    assert_ok(kvt_queue_submit(queue, s.requests, PUTS, &s.batch));
    *state = &s;
}

/* Drains so many completions, which come while the device is silent, in the order of the batch. */
static void drain(uint32_t first, uint32_t count, kvt_status expected)
{
    kvt_completion done = {.struct_size = sizeof done};
    for (uint32_t i = first; i < first + count; i++) {
        assert_ok(kvt_queue_wait(queue, base_clock_ns() + 30 * SECOND_NS));
        assert_int_equal(kvt_queue_drain(queue, &done, 1), 1);
        assert_int_equal(done.index, i);
        assert_int_equal(done.status, expected);
    }
}

/* What was accepted is stored once the device answers, and nothing else. */
static void check_stored(void)
{
    tiers_fault_clear(fault.device);
    assert_ok(kvt_store_flush(store));
    for (uint32_t i = 0; i < PUTS; i++)
        assert_int_equal(support_get(store, i, NULL), i < ROOM ? KVT_OK : KVT_MISS);
}

TEST_EACH(NULL, queue_site_close);

TEST(a_cancel_ends_puts_that_wait)
{
    site *s = *state;
    drain(0, ROOM, KVT_OK); /* the put behind them waits, and holds none of them up */
    assert_ok(kvt_queue_cancel(queue, s->batch));
    drain(ROOM, PUTS - ROOM, KVT_E_CANCELLED);
    assert_int_equal(kvt_queue_cancel(queue, s->batch), KVT_MISS);
    assert_int_equal(queue_site_stats().cancelled, PUTS - ROOM);
    check_stored();
}

TEST(a_close_ends_puts_that_wait)
{
    drain(0, ROOM, KVT_OK);
    kvt_queue_close(queue);
    queue = NULL;
    check_stored();
}
