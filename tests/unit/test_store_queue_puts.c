/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_queue_puts.c - puts of a queue that wait for room: those before them complete, and a
 * cancel or a close calls off what has not been accepted.
 */
#include "store_support.h"

#include "base/clock.h"

#include <kvterrace/queue.h>

enum { PUTS = 40, ROOM = 2 };

#define SECOND_NS UINT64_C(1000000000)

typedef struct site {
    support_fault fault;
    kvt_device_config device;
    kvt_store *store;
    kvt_queue *queue;
    char data[PUTS][SUPPORT_ENTRY_BYTES];
    kvt_view views[PUTS];
    kvt_entry entries[PUTS];
    kvt_request requests[PUTS];
    uint64_t batch;
} site;

/* A store whose device answers no write, with room for a few entries in the staging of puts, and a
 * batch of more puts than that, which wait for as long as it takes. */
static int site_open(void **state)
{
    static site s;
    kvt_store_options options;
    kvt_store_options_init(&options);
    s.fault = (support_fault){.capacity_bytes = 64 << 20};
    s.device = support_fault_config(&s.fault, "mem");
    options.staging_bytes = 16 << 20;
    options.put_staging_bytes = ROOM * SUPPORT_ENTRY_BYTES;
    options.policy = "lru";
    options.tick_seconds = 0;
    options.tiers[KVT_TIER_DRAM] = (kvt_tier_options){.devices = &s.device, .device_count = 1};
    assert_int_equal(kvt_open(&options, &s.store, NULL, 0), KVT_OK);
    assert_int_equal(kvt_queue_open(s.store, NULL, &s.queue), KVT_OK);
    const tiers_fault_rule hang = {.action = TIERS_FAULT_HANG, .kinds = TIERS_FAULT_WRITES};
    assert_int_equal(tiers_fault_add(s.fault.device, &hang), KVT_OK);
    for (uint32_t i = 0; i < PUTS; i++) {
        support_fill(i, s.data[i]);
        s.views[i] = kvt_view_packed(&support_layout, s.data[i]);
        s.entries[i] = (kvt_entry){.struct_size = sizeof(kvt_entry),
                                   .key = support_key(i),
                                   .layout = support_layout,
                                   .recompute_seconds = 1};
        s.requests[i] = (kvt_request){.struct_size = sizeof(kvt_request),
                                      .kind = KVT_REQUEST_PUT,
                                      .entry = &s.entries[i],
                                      .view = &s.views[i],
                                      .deadline_ns = KVT_NO_DEADLINE};
    }
    assert_int_equal(kvt_submit(s.queue, s.requests, PUTS, &s.batch), KVT_OK);
    *state = &s;
    return 0;
}

static int site_close(void **state)
{
    kvt_close(((site *)*state)->store);
    return 0;
}

/* Drains so many completions, which come while the device is silent, in the order of the batch. */
static void drain(site *s, uint32_t first, uint32_t count, kvt_status expected)
{
    kvt_completion done = {.struct_size = sizeof done};
    for (uint32_t i = first; i < first + count; i++) {
        assert_int_equal(kvt_queue_wait(s->queue, base_clock_ns() + 30 * SECOND_NS), KVT_OK);
        assert_int_equal(kvt_drain(s->queue, &done, 1), 1);
        assert_int_equal(done.index, i);
        assert_int_equal(done.status, expected);
    }
}

/* What was accepted is stored once the device answers, and nothing else. */
static void check_stored(site *s)
{
    tiers_fault_clear(s->fault.device);
    assert_int_equal(kvt_flush(s->store), KVT_OK);
    for (uint32_t i = 0; i < PUTS; i++)
        assert_int_equal(support_get(s->store, i, NULL), i < ROOM ? KVT_OK : KVT_MISS);
}

TEST_EACH(site_open, site_close);

TEST(a_cancel_ends_puts_that_wait)
{
    site *s = *state;
    drain(s, 0, ROOM, KVT_OK); /* the put behind them waits, and holds none of them up */
    assert_int_equal(kvt_cancel(s->queue, s->batch), KVT_OK);
    drain(s, ROOM, PUTS - ROOM, KVT_E_CANCELLED);
    assert_int_equal(kvt_cancel(s->queue, s->batch), KVT_MISS);
    kvt_queue_stats stats = {.struct_size = sizeof stats};
    assert_int_equal(kvt_queue_stats_get(s->queue, &stats), KVT_OK);
    assert_int_equal(stats.cancelled, PUTS - ROOM);
    check_stored(s);
    kvt_queue_close(s->queue);
}

TEST(a_close_ends_puts_that_wait)
{
    site *s = *state;
    drain(s, 0, ROOM, KVT_OK);
    kvt_queue_close(s->queue);
    check_stored(s);
}
