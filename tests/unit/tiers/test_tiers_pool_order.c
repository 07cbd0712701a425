/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tiers_pool_order.c - the orders in which a worker begins operations (docs/TIERS.md, Passes
 * and slack), and that nothing is held for ever. A device with a gate takes one operation at a
 * time, so the order is exact whatever the threads do.
 */

#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "gate_device.h"
#include "pool_scratch.h"
#include "tiers/pool/needs.h"
#include "tiers/pool/slack_log.h"

#define MS UINT64_C(1000000)

enum { GRAIN = 4096, EACH = 10, ALL = 2 * EACH };

/* A pool over a gate, and an object with a grain for each transfer; the last one holds the gate. */
typedef struct orders {
    gate gate;
    tiers_pool *pool;
    tiers_location *location;
    char *buffer;
    tiers_transfer transfers[ALL + 1];
} orders;

static tiers_transfer *orders_start(orders *o, uint32_t index, kvt_io_kind kind)
{
    tiers_transfer *transfer = &o->transfers[index];
    *transfer = (tiers_transfer){.kind = kind,
                                 .waited = true,
                                 .location = o->location,
                                 .buffer = o->buffer + (size_t)index * GRAIN,
                                 .bytes = GRAIN,
                                 .offset = (uint64_t)index * GRAIN};
    tiers_transfer_start(o->pool, transfer);
    return transfer;
}

static orders *orders_open(tiers_order order, uint64_t patience_ns)
{
    orders *o = test_zeros(sizeof *o);
    gate_make(&o->gate, 4 << 20);
    tiers_member_options member = pool_scratch_member(&o->gate.base, 1e6);
    const tiers_pool_options options = {
        .unit_bytes = GRAIN, .order = order, .write_patience_ns = patience_ns};
    assert_ok(tiers_pool_open(&member, 1, &options, &o->pool, NULL, 0));
    assert_ok(tiers_pool_reserve(o->pool, (ALL + 1) * GRAIN, &o->location));
    o->buffer = pool_scratch_buffer((ALL + 1) * GRAIN);
    return o;
}

static void orders_close(orders *o)
{
    tiers_pool_release(o->pool, o->location);
    tiers_pool_close(o->pool);
}

/* Queues writes and reads in turn behind an operation that holds the gate, opens it, and says in
 * which order they came: which_out[position] is a transfer. */
static void orders_run(orders *o, uint32_t which_out[ALL])
{
    orders_start(o, ALL, KVT_IO_READ);
    while (atomic_load(&o->gate.taken) == 0)
        base_sleep(50000);
    for (uint32_t i = 0; i < ALL; i++)
        orders_start(o, i, i < EACH ? KVT_IO_WRITE : KVT_IO_READ);
    atomic_store(&o->gate.open, true);
    for (uint32_t i = 0; i <= ALL; i++)
        assert_ok(tiers_transfer_wait(o->pool, &o->transfers[i]));
    for (uint32_t i = 0; i < ALL; i++)
        which_out[i] =
            (uint32_t)((o->gate.offsets[i + 1] - o->location->extents[0].offset) / GRAIN);
}

static uint64_t orders_decisions(orders *o, slack_reason reason)
{
    tiers_member_stats stats;
    assert_ok(tiers_pool_member(o->pool, 0, &stats));
    return stats.decisions[reason];
}

TEST(fifo_serves_as_they_came)
{
    uint32_t which[ALL];
    orders *o = orders_open(TIERS_FIFO, 0);
    orders_run(o, which);
    for (uint32_t i = 0; i < ALL; i++)
        assert_int_equal(which[i], i);
    orders_close(o);
}

TEST(round_robin_serves_both_directions_in_turn)
{
    uint32_t which[ALL];
    orders *o = orders_open(TIERS_ROUND_ROBIN, 0);
    orders_run(o, which);
    /* One write was taken from its job while the gate was closed: it waits for the busy device. */
    for (uint32_t i = 0; i < ALL; i++)
        assert_int_equal(which[i] < EACH, i % 2 == 0);
    orders_close(o);
}

/* A pass that is late everywhere: its load reads all of the object. */
static uint64_t orders_need(orders *o)
{
    const tiers_pace pace = {.layers = 8, .began_ns = base_clock_ns(), .step_ns = 60000 * MS};
    const uint64_t number = tiers_need_begin(o->pool, &pace, 0, pace.layers, 2);
    assert_true(number != 0);
    tiers_need_add(o->pool, number, o->location, o->location->bytes);
    return number;
}

/* Where none was announced, or only long ago, no gate is asked: the path is that of reads_first. */
TEST(slack_without_a_pass_is_reads_first)
{
    uint32_t plain[ALL], which[ALL];
    for (uint32_t k = 0; k < 3; k++) {
        orders *o = orders_open(k == 0 ? TIERS_READS_FIRST : TIERS_SLACK, k == 2 ? MS : 0);
        if (k == 2) {
            tiers_need_end(o->pool, orders_need(o));
            base_sleep(3 * MS);
        }
        orders_run(o, k == 0 ? plain : which);
        if (k != 0) assert_memory_equal(which, plain, sizeof plain);
        for (uint32_t reason = 0; reason < SLACK_REASONS; reason++)
            assert_int_equal(orders_decisions(o, (slack_reason)reason), 0);
        orders_close(o);
    }
}

TEST(reads_first_and_slack_serve_reads_first)
{
    static const tiers_order both[] = {TIERS_READS_FIRST, TIERS_TABLE, TIERS_SLACK};
    for (uint32_t k = 0; k < 3; k++) {
        uint32_t which[ALL], writes = 0;
        orders *o = orders_open(both[k], 0);
        /* A pass that has ended counts for the patience. */
        if (both[k] == TIERS_SLACK) tiers_need_end(o->pool, orders_need(o));
        orders_run(o, which);
        for (uint32_t i = 0; i < EACH; i++)
            writes += which[i] < EACH;
        /* One that the worker had taken before the reads came. */
        assert_true(writes <= 1);
        if (both[k] == TIERS_SLACK) assert_int_equal(orders_decisions(o, SLACK_IDLE), EACH);
        orders_close(o);
    }
}

TEST(a_write_waits_for_the_layers_of_a_pass)
{
    orders *o = orders_open(TIERS_SLACK, 0);
    atomic_store(&o->gate.open, true);
    const uint64_t number = orders_need(o);
    tiers_transfer *write = orders_start(o, 0, KVT_IO_WRITE);
    assert_int_equal(tiers_transfer_wait_until(o->pool, write, base_clock_ns() + 30 * MS),
                     KVT_E_TIMEOUT);
    assert_int_equal(atomic_load(&o->gate.taken), 0);
    assert_int_equal(orders_decisions(o, SLACK_LATE), 1); /* one wait, however often it was asked */
    /* A read is served meanwhile. */
    assert_ok(tiers_transfer_wait(o->pool, orders_start(o, 1, KVT_IO_READ)));
    /* The first layer has come, and the next one is due in a minute. */
    tiers_need_progress(o->pool, number, 1, 3);
    assert_ok(tiers_transfer_wait(o->pool, write));
    assert_int_equal(orders_decisions(o, SLACK_FITS), 2);
    /* Its end, twice; then a number that was never given. */
    tiers_need_end(o->pool, number);
    tiers_need_end(o->pool, number);
    tiers_need_end(o->pool, UINT64_MAX);
    tiers_need_add(o->pool, number, o->location, GRAIN);
    tiers_need_progress(o->pool, number, 1, 1);
    assert_ok(tiers_transfer_wait(o->pool, orders_start(o, 2, KVT_IO_WRITE)));
    assert_int_equal(orders_decisions(o, SLACK_IDLE), 1);
    orders_close(o);
}

/* A need of two layers of eight, as a ring's block has it: those alone, at their own instants. */
TEST(a_part_of_a_pass)
{
    tiers_needs needs;
    slack_need listed[SLACK_NEEDS_MAX];
    const tiers_pace pace = {.layers = 8, .layer = 1, .began_ns = 1000, .step_ns = 100};
    tiers_share shares[] = {{.member = 0, .units = 1}, {.member = 3, .units = 3}};
    const tiers_location place = {.shares = shares, .share_count = 2};
    needs_init(&needs, 10000);
    const uint64_t number = needs_begin(&needs, &pace, 3, 5, UINT32_MAX, 1);
    assert_true(number != 0);
    needs_add(&needs, number, &place, 8000);
    needs_progress(&needs, number, 3, 5);
    assert_int_equal(needs_list(&needs, 3, 1000, 6000, listed), 1);
    assert_int_equal(listed[0].due_ns, 1200);
    assert_int_equal(listed[0].layers, 2);
    assert_int_equal(listed[0].layer_bytes, 3000);
    assert_int_equal(listed[0].landed_bytes, 0);
    assert_int_equal(needs_list(&needs, 3, 1000, 2000, listed), 1);
    assert_int_equal(listed[0].landed_bytes, 4000);
    assert_int_equal(needs_list(&needs, 0, 1000, 0, listed), 1);
    assert_int_equal(listed[0].layer_bytes, 1000);
    assert_int_equal(needs_list(&needs, 1, 1000, 0, listed), 0); /* nothing lies there */
    needs_progress(&needs, number, 4, 5);
    assert_int_equal(needs_list(&needs, 3, 1000, 3000, listed), 1);
    assert_true(listed[0].due_ns == 1300 && listed[0].layers == 1);
    needs_progress(&needs, number, 8, 8); /* more than it has */
    assert_int_equal(needs_list(&needs, 3, 1000, 0, listed), 0);
    needs_end(&needs, number);
    needs_destroy(&needs);
}

TEST(decisions_that_are_counted_are_lines)
{
    orders *o = orders_open(TIERS_SLACK, 0);
    FILE *log = tmpfile();
    assert_non_null(log);
    tiers_pool_log_decisions(o->pool, log);
    atomic_store(&o->gate.open, true);
    const uint64_t number = orders_need(o);
    tiers_transfer *write = orders_start(o, 0, KVT_IO_WRITE);
    for (uint32_t i = 1; i < ALL; i++)
        assert_ok(tiers_transfer_wait(o->pool, orders_start(o, i, KVT_IO_READ)));
    while (orders_decisions(o, SLACK_LATE) == 0)
        base_sleep(MS / 10);
    tiers_pool_hurry_writes(o->pool, true);
    assert_ok(tiers_transfer_wait(o->pool, write)); /* by its share */
    tiers_need_end(o->pool, number);
    assert_ok(tiers_transfer_wait(o->pool, orders_start(o, 0, KVT_IO_WRITE)));
    uint64_t counted = 0;
    for (uint32_t reason = 0; reason < SLACK_REASONS; reason++)
        counted += orders_decisions(o, (slack_reason)reason);
    assert_true(orders_decisions(o, SLACK_SHARE) > 0 && orders_decisions(o, SLACK_LATE) > 0);
    orders_close(o);
    slack_log_sums sums;
    rewind(log);
    assert_ok(tiers_slack_log_check(log, &sums));
    assert_int_equal(sums.decisions, counted);
    assert_int_equal(sums.lines, counted);
    assert_int_equal(sums.differ, 0);
    assert_int_equal(fclose(log), 0);
}

TEST(a_pass_that_never_ends_holds_a_write_for_the_patience)
{
    orders *o = orders_open(TIERS_SLACK, 40 * MS);
    atomic_store(&o->gate.open, true);
    orders_need(o);
    const uint64_t began_ns = base_clock_ns();
    assert_ok(tiers_transfer_wait(o->pool, orders_start(o, 0, KVT_IO_WRITE)));
    assert_true(base_clock_ns() - began_ns >= 40 * MS);
    assert_int_equal(orders_decisions(o, SLACK_SHARE), 1);
    orders_close(o);
}

TEST(staging_above_its_watermark_does_not_wait)
{
    orders *o = orders_open(TIERS_SLACK, 0);
    atomic_store(&o->gate.open, true);
    orders_need(o);
    tiers_transfer *write = orders_start(o, 0, KVT_IO_WRITE);
    assert_int_equal(tiers_transfer_wait_until(o->pool, write, base_clock_ns() + 10 * MS),
                     KVT_E_TIMEOUT);
    tiers_pool_hurry_writes(o->pool, true);
    assert_ok(tiers_transfer_wait(o->pool, write));
    assert_int_equal(orders_decisions(o, SLACK_SHARE), 1);
    orders_close(o);
}

TEST(what_is_held_can_be_cancelled_and_closed)
{
    orders *o = orders_open(TIERS_SLACK, 0);
    atomic_store(&o->gate.open, true);
    orders_need(o);
    tiers_transfer *write = orders_start(o, 0, KVT_IO_WRITE);
    tiers_transfer_cancel(o->pool, write);
    assert_int_equal(tiers_transfer_wait(o->pool, write), KVT_E_CANCELLED);
    /* A close writes what is left and waits for no pass. */
    write = orders_start(o, 1, KVT_IO_WRITE);
    tiers_pool_release(o->pool, o->location);
    assert_true(tiers_pool_close(o->pool));
    assert_true(write->finished && write->status == KVT_OK);
}

TEST(needs_are_bounded_and_give_their_places_back)
{
    orders *o = orders_open(TIERS_SLACK, 20 * MS);
    const tiers_pace none = {.layers = 0}, past = {.layers = 4, .layer = 5};
    assert_int_equal(tiers_need_begin(o->pool, &none, 0, none.layers, 2), 0);
    assert_int_equal(tiers_need_begin(o->pool, &past, 0, past.layers, 2), 0);
    const tiers_pace pace = {.layers = 1, .began_ns = base_clock_ns(), .step_ns = MS};
    uint64_t last = 0;
    assert_int_equal(tiers_need_begin(o->pool, &pace, 0, 2, 2), 0); /* not of the pass */
    assert_int_equal(tiers_need_begin(o->pool, &pace, 1, 1, 2), 0);
    assert_int_equal(tiers_need_begin(o->pool, &pace, UINT32_MAX, UINT32_MAX, 2), 0);
    for (uint32_t i = 0; i < SLACK_NEEDS_MAX; i++) {
        const uint64_t number = tiers_need_begin(o->pool, &pace, 0, pace.layers, 2);
        assert_true(number > 0 && number != last);
        last = number;
    }
    /* All places are taken, until their passes have stopped for the patience. */
    if (base_clock_ns() < pace.began_ns + 10 * MS)
        assert_int_equal(tiers_need_begin(o->pool, &pace, 0, pace.layers, 2), 0);
    while (base_clock_ns() <= pace.began_ns + 20 * MS)
        base_sleep(MS);
    const tiers_pace now = {.layers = 1, .began_ns = base_clock_ns(), .step_ns = MS};
    const uint64_t number = tiers_need_begin(o->pool, &now, 0, now.layers, 2);
    assert_true(number != 0);
    tiers_need_set_pace(o->pool, last, &now); /* forgotten: nothing happens */
    tiers_need_end(o->pool, number);
    orders_close(o);
}
