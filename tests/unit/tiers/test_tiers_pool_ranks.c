/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tiers_pool_ranks.c - the order in which a worker serves reads that somebody waits for, other
 * reads, puts and background, what each finds before it, and when waited reads press. A device with
 * a gate takes one operation at a time, so the order is exact whatever the threads do.
 */

#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "gate_device.h"
#include "pool_scratch.h"
#include "tiers/pool/worker_meter.h"

enum { GRAIN = 4096, EACH = 40, ALL = TIERS_RANKS * EACH, UNITS = 256 };

/* A pool over a gate, and one object with a grain for each transfer; the last one has brought a
 * write to the gate already. */
typedef struct ranks {
    gate gate;
    tiers_pool *pool;
    tiers_location *location;
    char *buffer;
    tiers_transfer transfers[ALL + 1];
} ranks;

static void ranks_start(ranks *r, uint32_t index, kvt_io_kind kind, bool waited)
{
    tiers_transfer *transfer = &r->transfers[index];
    transfer->kind = kind;
    transfer->waited = waited;
    transfer->location = r->location;
    transfer->buffer = r->buffer + (size_t)index * GRAIN;
    transfer->bytes = GRAIN;
    transfer->offset = (uint64_t)index * GRAIN;
    tiers_transfer_start(r->pool, transfer);
}

static ranks *ranks_open(void)
{
    ranks *r = test_zeros(sizeof *r);
    gate_make(&r->gate, 4 << 20);
    tiers_member_options member = pool_scratch_member(&r->gate.base, 1e6);
    tiers_pool_options options = {.unit_bytes = GRAIN};
    assert_ok(tiers_pool_open(&member, 1, &options, &r->pool, NULL, 0));
    assert_ok(tiers_pool_reserve(r->pool, UNITS * GRAIN, &r->location));
    r->buffer = pool_scratch_buffer((ALL + 1) * GRAIN);
    ranks_start(r, ALL, KVT_IO_WRITE, false);
    while (atomic_load(&r->gate.taken) == 0)
        base_sleep(50000);
    return r;
}

static void ranks_close(ranks *r)
{
    tiers_pool_release(r->pool, r->location);
    tiers_pool_close(r->pool);
}

/* Background is queued first and waited reads last; transfer i is of rank 3 - i / EACH. */
TEST(a_rank_goes_before_the_next_but_for_one_in_sixteen)
{
    ranks *r = ranks_open();
    for (uint32_t i = 0; i < ALL; i++)
        ranks_start(r, i, i < 2 * EACH ? KVT_IO_WRITE : KVT_IO_READ, i / EACH % 2 == 1);
    atomic_store(&r->gate.open, true);
    for (uint32_t i = 0; i <= ALL; i++)
        assert_ok(tiers_transfer_wait(r->pool, &r->transfers[i]));
    assert_int_equal(atomic_load(&r->gate.taken), ALL + 1);
    uint32_t served[TIERS_RANKS] = {0}, last[TIERS_RANKS] = {0};
    for (uint32_t position = 0; position < ALL; position++) {
        /* Which of the transfers came at so many operations after the one that held the gate. */
        uint32_t index =
            (uint32_t)((r->gate.offsets[position + 1] - r->location->extents[0].offset) / GRAIN);
        uint32_t rank = 3 - index / EACH;
        assert_int_equal(index % EACH, served[rank]); /* in the order of their queueing */
        served[rank]++;
        if (position < 15) assert_int_equal(rank, TIERS_RANK_WAITED);
        for (uint32_t other = 0; other < TIERS_RANKS; other++) {
            /* Three that are due at once go one after the other. */
            if (other == rank || served[other] == EACH) last[other] = position;
            assert_true(position - last[other] <= 17);
        }
        /* While waited reads are left, the others get no more than their operation in sixteen. */
        if (served[TIERS_RANK_WAITED] < EACH)
            assert_true(served[TIERS_RANK_WRITE] <= 1 + position / 16 &&
                        served[TIERS_RANK_READ] <= 1 + position / 16);
        if (served[TIERS_RANK_READ] < EACH)
            assert_true(served[TIERS_RANK_WRITE] <= 1 + position / 16);
    }
    for (uint32_t rank = 0; rank < TIERS_RANKS; rank++)
        assert_int_equal(served[rank], EACH);
    ranks_close(r);
}

TEST(a_part_counts_what_goes_before_it)
{
    ranks *r = ranks_open();
    tiers_part parts[TIERS_MEMBERS_MAX];
    for (uint32_t i = 0; i < 6; i++) /* three writes, two other reads, one that is waited for */
        ranks_start(r, i, i < 3 ? KVT_IO_WRITE : KVT_IO_READ, i == 5);
    assert_int_equal(tiers_pool_parts(r->pool, r->location, parts), 1);
    assert_int_equal(parts[0].ahead_bytes[KVT_IO_READ], GRAIN);
    assert_int_equal(parts[0].ahead_bytes[KVT_IO_WRITE], GRAIN); /* at the gate */
    r->transfers[6].parts = parts;
    ranks_start(r, 6, KVT_IO_READ, false);
    assert_int_equal(parts[0].ahead_bytes[KVT_IO_READ], 3 * GRAIN);
    assert_int_equal(parts[0].ahead_bytes[KVT_IO_WRITE], GRAIN);
    r->transfers[7].parts = parts;
    ranks_start(r, 7, KVT_IO_WRITE, false);
    assert_int_equal(parts[0].ahead_bytes[KVT_IO_READ], 4 * GRAIN);
    assert_int_equal(parts[0].ahead_bytes[KVT_IO_WRITE], 4 * GRAIN);
    atomic_store(&r->gate.open, true);
    for (uint32_t i = 0; i < 8; i++)
        assert_ok(tiers_transfer_wait(r->pool, &r->transfers[i]));
    assert_ok(tiers_transfer_wait(r->pool, &r->transfers[ALL]));
    assert_int_equal(tiers_pool_parts(r->pool, r->location, parts), 1);
    assert_int_equal(parts[0].ahead_bytes[KVT_IO_READ], 0);
    assert_int_equal(parts[0].ahead_bytes[KVT_IO_WRITE], 0);
    ranks_close(r);
}

/* ---- pressure ---- */

#define MS UINT64_C(1000000)

TEST(the_mean_of_a_backlog_switches_with_hysteresis)
{
    tiers_pressure p = {0};
    uint64_t now_ns = 1000 * MS;
    assert_false(tiers_pressure_is_on(&p, now_ns));
    tiers_pressure_sample(&p, 0.100, now_ns); /* one short read, however large */
    tiers_pressure_sample(&p, 0, now_ns += MS / 4);
    assert_false(tiers_pressure_is_on(&p, now_ns));
    assert_false(tiers_pressure_is_on(&p, now_ns += 200 * MS));
    tiers_pressure_sample(&p, 0.0015, now_ns); /* between the bounds: stays off, */
    assert_false(tiers_pressure_is_on(&p, now_ns += 1000 * MS));
    tiers_pressure_sample(&p, 0.003, now_ns);
    assert_false(tiers_pressure_is_on(&p, now_ns += 2 * MS));
    assert_true(tiers_pressure_is_on(&p, now_ns += 200 * MS));
    tiers_pressure_sample(&p, 0.0015, now_ns); /* and on */
    assert_true(tiers_pressure_is_on(&p, now_ns += 1000 * MS));
    tiers_pressure_sample(&p, 0, now_ns);
    assert_true(tiers_pressure_is_on(&p, now_ns += MS));
    assert_false(tiers_pressure_is_on(&p, now_ns += 20 * MS)); /* nobody samples an idle device */
    assert_false(tiers_pressure_is_on(&p, now_ns - 5 * MS));   /* a clock read by another thread */
}

TEST(the_mean_does_not_depend_on_how_often_it_is_looked_at)
{
    tiers_pressure often = {0}, once = {0};
    tiers_pressure_sample(&often, 0.005, MS);
    tiers_pressure_sample(&once, 0.005, MS);
    for (uint32_t i = 1; i <= 1000; i++)
        (void)tiers_pressure_is_on(&often, MS + i * MS / 100);
    (void)tiers_pressure_is_on(&once, 11 * MS);
    assert_true(often.mean_seconds > once.mean_seconds * 0.999999 &&
                often.mean_seconds < once.mean_seconds * 1.000001);
}

TEST(only_waited_reads_press)
{
    ranks *r = ranks_open();
    for (uint32_t i = 0; i < 2 * EACH; i++)
        ranks_start(r, i, i < EACH ? KVT_IO_WRITE : KVT_IO_READ, false);
    assert_false(tiers_pool_is_pressed(r->pool));
    base_sleep(30 * MS);
    assert_false(tiers_pool_is_pressed(r->pool));
    ranks_start(r, 2 * EACH, KVT_IO_READ, true); /* 4 ms at 1 MB/s */
    while (!tiers_pool_is_pressed(r->pool))
        base_sleep(MS);
    atomic_store(&r->gate.open, true);
    for (uint32_t i = 0; i <= 2 * EACH; i++)
        assert_ok(tiers_transfer_wait(r->pool, &r->transfers[i]));
    while (tiers_pool_is_pressed(r->pool))
        base_sleep(MS);
    ranks_close(r);
}

TEST(a_retired_member_is_not_pressed)
{
    ranks *r = ranks_open();
    ranks_start(r, 0, KVT_IO_READ, true);
    while (!tiers_pool_is_pressed(r->pool))
        base_sleep(MS);
    tiers_pool_retire(r->pool, 0); /* it does nothing for anybody any more */
    assert_false(tiers_pool_is_pressed(r->pool));
    atomic_store(&r->gate.open, true);
    assert_int_equal(tiers_transfer_wait(r->pool, &r->transfers[0]), KVT_E_GONE);
    ranks_close(r);
}
