/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tiers_gather.c - ranges of many objects as one read: places, joined neighbours, the choice
 * between copies, and what remains when a request fails, a member vanishes or does not answer.
 */

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cases.h"
#include "fault_device.h"
#include "pool_scratch.h"
#include "tiers/pool/gather.h"

enum { GRAIN = TIERS_GRAIN_BYTES, PAGE = 2 * GRAIN, SITE_MEMBERS = 4, SITE_COPIES = 4 };

/* A pool over memory behind fault layers, and objects in it whose bytes say where they belong. */
typedef struct site {
    tiers_pool *pool;
    kvt_device *faulty[SITE_MEMBERS];
    unsigned char *buffer;
    uint64_t buffer_bytes;
} site;

static void site_open(site *s, const double *speeds, uint32_t count, uint64_t member_bytes)
{
    tiers_member_options members[SITE_MEMBERS];
    memset(s, 0, sizeof *s);
    for (uint32_t i = 0; i < count; i++) {
        assert_ok(tiers_fault_open(pool_scratch_memory(member_bytes), &s->faulty[i]));
        members[i] = pool_scratch_member(s->faulty[i], speeds[i]);
    }
    tiers_pool_options options = {.unit_bytes = 16384};
    assert_ok(tiers_pool_open(members, count, &options, &s->pool, NULL, 0));
    s->buffer_bytes = 2 * SCRATCH_MIB;
    s->buffer = pool_scratch_buffer(s->buffer_bytes);
    assert_non_null(s->buffer);
}

static void site_close(site *s)
{
    assert_true(tiers_pool_close(s->pool));
}

/* One object: its place, and its bytes as a function of the seed. */
typedef struct object {
    tiers_location *location;
    tiers_unit_map *map;
} object;

static object object_make(site *s, uint64_t bytes, uint32_t unit_bytes, uint64_t members,
                          uint64_t seed)
{
    object o;
    unsigned char *source = pool_scratch_buffer(bytes);
    assert_non_null(source);
    pool_scratch_fill(source, bytes, seed);
    assert_ok(tiers_pool_reserve_on(s->pool, bytes, unit_bytes, members, &o.location));
    assert_ok(tiers_pool_transfer(s->pool, KVT_IO_WRITE, o.location, source, bytes));
    assert_ok(tiers_unit_map_make(o.location, &o.map));
    return o;
}

static void object_end(site *s, object *o)
{
    tiers_unit_map_free(o->map);
    tiers_pool_release(s->pool, o->location);
}

static bool holds(const tiers_gather_range *range, uint64_t seed)
{
    return range->status == KVT_OK &&
           pool_scratch_holds(range->data, range->bytes,
                              seed + range->copies[range->copy].offset / 8);
}

static void note_released(void *context)
{
    atomic_fetch_add((atomic_int *)context, 1);
}

static tiers_gather *start(site *s, tiers_gather_range *ranges, uint32_t count, uint64_t hedge_ns)
{
    tiers_gather *gather = NULL;
    tiers_gather_request request = {.ranges = ranges,
                                    .count = count,
                                    .buffer = s->buffer,
                                    .buffer_bytes = s->buffer_bytes,
                                    .waited = true,
                                    .hedge_ns = hedge_ns};
    assert_ok(tiers_gather_start(s->pool, &request, UINT64_MAX, &gather));
    return gather;
}

static void end(tiers_gather *gather)
{
    atomic_int released = 0;
    tiers_gather_release(gather, note_released, &released);
    while (atomic_load(&released) == 0)
        base_sleep(100000);
    assert_int_equal(atomic_load(&released), 1);
}

/* ---- places ---- */

/* Free space in pieces of a grain gives objects whose units go on in other extents. */
TEST(every_range_of_a_scattered_object_comes_from_its_place)
{
    const double speeds[] = {1e9, 3e9, 2e9};
    site s;
    site_open(&s, speeds, 3, 4 * SCRATCH_MIB);
    tiers_location *fill[3000];
    uint32_t filled = 0;
    while (filled < 3000 &&
           tiers_pool_reserve_on(s.pool, GRAIN, GRAIN, UINT64_MAX, &fill[filled]) == KVT_OK)
        filled++;
    assert_true(filled > 2900);
    uint64_t random = 88172645463325252u;
    for (uint32_t i = 0; i < filled; i++) {
        if (pool_scratch_random(&random) % 3 == 0) continue;
        tiers_pool_release(s.pool, fill[i]);
        fill[i] = NULL;
    }
    for (uint32_t round = 0; round < 6; round++) {
        const uint32_t units[] = {GRAIN, 3 * GRAIN, 16384, 5 * GRAIN, 65536, 2 * GRAIN};
        const uint64_t bytes = (97 + round) * GRAIN;
        object o = object_make(&s, bytes, units[round], UINT64_MAX, round);
        tiers_gather_range ranges[40];
        tiers_copy copies[40];
        for (uint32_t i = 0; i < 40; i++) {
            uint64_t length = 1 + pool_scratch_random(&random) % 9;
            uint64_t offset = pool_scratch_random(&random) % (bytes / GRAIN - length + 1);
            copies[i] = (tiers_copy){.map = o.map, .offset = offset * GRAIN};
            ranges[i] = (tiers_gather_range){
                .copies = &copies[i], .copy_count = 1, .bytes = (uint32_t)(length * GRAIN)};
        }
        tiers_gather *gather = start(&s, ranges, 20, 0);
        s.buffer += 20 * 9 * GRAIN; /* two at once, in their own buffers */
        s.buffer_bytes -= 20 * 9 * GRAIN;
        tiers_gather *other = start(&s, ranges + 20, 20, 0);
        s.buffer -= 20 * 9 * GRAIN;
        s.buffer_bytes += 20 * 9 * GRAIN;
        assert_ok(tiers_gather_wait(gather, UINT64_MAX));
        assert_ok(tiers_gather_wait(other, UINT64_MAX));
        for (uint32_t i = 0; i < 40; i++)
            assert_true(holds(&ranges[i], round));
        end(gather);
        end(other);
        object_end(&s, &o);
    }
    for (uint32_t i = 0; i < filled; i++)
        tiers_pool_release(s.pool, fill[i]);
    assert_int_equal(pool_scratch_used(s.pool), 0);
    site_close(&s);
}

/* The order of the caller does not matter, and a gap ends a request. */
TEST(neighbours_on_a_device_are_one_request)
{
    const double speeds[] = {1e9};
    site s;
    site_open(&s, speeds, 1, 4 * SCRATCH_MIB);
    object o = object_make(&s, 64 * PAGE, PAGE, UINT64_MAX, 7);
    const uint32_t pages[] = {11, 3, 4, 10, 5, 40, 12};
    tiers_gather_range ranges[7];
    tiers_copy copies[7];
    for (uint32_t i = 0; i < 7; i++) {
        copies[i] = (tiers_copy){.map = o.map, .offset = pages[i] * PAGE};
        ranges[i] = (tiers_gather_range){.copies = &copies[i], .copy_count = 1, .bytes = PAGE};
    }
    tiers_fault_counts before, after;
    tiers_fault_counts_get(s.faulty[0], &before);
    tiers_gather *gather = start(&s, ranges, 7, 0);
    assert_ok(tiers_gather_wait(gather, UINT64_MAX));
    for (uint32_t i = 0; i < 7; i++)
        assert_true(holds(&ranges[i], 7));
    tiers_fault_counts_get(s.faulty[0], &after);
    assert_int_equal(after.reads - before.reads, 3); /* 3 4 5 | 10 11 12 | 40 */
    tiers_gather_share shares[TIERS_MEMBERS_MAX];
    assert_int_equal(tiers_gather_shares(gather, shares), 1);
    assert_int_equal(shares[0].requests, 3);
    assert_int_equal(shares[0].bytes, 7 * PAGE);
    assert_true(shares[0].finished_ns >= shares[0].started_ns);
    end(gather);
    object_end(&s, &o);
    site_close(&s);
}

/* ---- copies ---- */

/* Pages with a copy everywhere even out what pages without one leave uneven. */
TEST(copies_go_to_the_member_that_is_done_first)
{
    const double speeds[] = {1e9, 1e9, 2e9, 4e9};
    enum { ONLY = 12, COPIED = 52, ALL = ONLY + COPIED };
    site s;
    site_open(&s, speeds, 4, 4 * SCRATCH_MIB);
    object only = object_make(&s, ONLY * PAGE, PAGE, 1u << 2, 1);
    object copied[4];
    for (uint32_t i = 0; i < 4; i++)
        copied[i] = object_make(&s, COPIED * PAGE, PAGE, 1u << i, 2);
    tiers_gather_range ranges[ALL];
    tiers_copy copies[ALL][4];
    for (uint32_t i = 0; i < ALL; i++) {
        /* The choice comes first in the list, and is made last all the same. */
        bool has_copies = i < COPIED;
        copies[i][0] = (tiers_copy){.map = only.map, .offset = (i - COPIED) * PAGE};
        for (uint32_t j = 0; j < 4 && has_copies; j++)
            copies[i][j] = (tiers_copy){.map = copied[j].map, .offset = i * PAGE};
        ranges[i] = (tiers_gather_range){
            .copies = copies[i], .copy_count = has_copies ? 4 : 1, .bytes = PAGE};
    }
    tiers_gather *gather = start(&s, ranges, ALL, 0);
    assert_ok(tiers_gather_wait(gather, UINT64_MAX));
    for (uint32_t i = 0; i < ALL; i++)
        assert_true(holds(&ranges[i], i < COPIED ? 2 : 1));
    tiers_gather_share shares[TIERS_MEMBERS_MAX];
    assert_int_equal(tiers_gather_shares(gather, shares), 4);
    /* 64 pages over 1:1:2:4 are 8, 8, 16, 32; a page more or less is the greedy choice's. */
    const uint32_t ideal[] = {8, 8, 16, 32};
    for (uint32_t i = 0; i < 4; i++) {
        assert_in_range(shares[i].bytes / PAGE, ideal[i] - 1, ideal[i] + 1);
        assert_int_equal(shares[i].member, i);
    }
    end(gather);
    object_end(&s, &only);
    for (uint32_t i = 0; i < 4; i++)
        object_end(&s, &copied[i]);
    site_close(&s);
}

/* ---- failures ---- */

static uint64_t device_offset(const object *o, uint64_t offset)
{
    return tiers_unit_map_find(o->map, offset, GRAIN).device_offset;
}

/* One bad sector in a request of five pages costs the page that it is in, and that one only where
 * it has no copy. */
TEST(a_bad_range_fails_alone_and_is_read_from_its_copy)
{
    const double speeds[] = {1e9, 1e9};
    site s;
    site_open(&s, speeds, 2, 4 * SCRATCH_MIB);
    object o = object_make(&s, 8 * PAGE, PAGE, 1u << 0, 3);
    object replica = object_make(&s, 8 * PAGE, PAGE, 1u << 1, 3);
    for (uint32_t bad = 1; bad <= 2; bad++) {
        tiers_fault_rule rule = {.action = TIERS_FAULT_FAIL,
                                 .kinds = TIERS_FAULT_READS,
                                 .offset = device_offset(&o, bad * PAGE) + GRAIN,
                                 .bytes = 512,
                                 .status = KVT_E_IO};
        assert_ok(tiers_fault_add(s.faulty[0], &rule));
    }
    /* Page 2 has a copy whose place is read after the first failed: member 1 is kept busy. */
    tiers_gather_range ranges[5];
    tiers_copy copies[5][2];
    for (uint32_t i = 0; i < 5; i++) {
        copies[i][0] = (tiers_copy){.map = o.map, .offset = i * PAGE};
        copies[i][1] = (tiers_copy){.map = replica.map, .offset = i * PAGE};
        ranges[i] =
            (tiers_gather_range){.copies = copies[i], .copy_count = i == 2 ? 2 : 1, .bytes = PAGE};
    }
    tiers_fault_rule slow = {
        .action = TIERS_FAULT_FAIL, .kinds = TIERS_FAULT_READS, .hits = 1, .status = KVT_E_IO};
    assert_ok(tiers_fault_add(s.faulty[1], &slow));
    tiers_gather *gather = start(&s, ranges, 5, 0);
    assert_int_equal(tiers_gather_wait(gather, UINT64_MAX), KVT_E_IO);
    for (uint32_t i = 0; i < 5; i++)
        if (i != 1 && i != 2) assert_true(holds(&ranges[i], 3));
    assert_int_equal(ranges[1].status, KVT_E_IO);
    /* Whichever copy of page 2 was read first has failed: both are bad, once each. */
    end(gather);
    tiers_fault_clear(s.faulty[1]);
    gather = start(&s, ranges, 5, 0);
    assert_int_equal(tiers_gather_wait(gather, UINT64_MAX), KVT_E_IO);
    assert_int_equal(ranges[1].status, KVT_E_IO);
    assert_true(holds(&ranges[2], 3));
    assert_int_equal(ranges[2].copy, 1);
    end(gather);
    object_end(&s, &o);
    object_end(&s, &replica);
    site_close(&s);
}

/* A member that vanished before or during the read leaves its ranges to their copies. */
TEST(a_member_that_is_gone_leaves_its_ranges_to_copies)
{
    const double speeds[] = {1e9, 1e9};
    site s;
    site_open(&s, speeds, 2, 4 * SCRATCH_MIB);
    object o = object_make(&s, 8 * PAGE, PAGE, 1u << 0, 3);
    object replica = object_make(&s, 8 * PAGE, PAGE, 1u << 1, 3);
    tiers_gather_range ranges[4];
    tiers_copy copies[4][2];
    for (uint32_t i = 0; i < 4; i++) {
        copies[i][0] = (tiers_copy){.map = o.map, .offset = i * PAGE};
        copies[i][1] = (tiers_copy){.map = replica.map, .offset = i * PAGE};
        ranges[i] =
            (tiers_gather_range){.copies = copies[i], .copy_count = i < 3 ? 2 : 1, .bytes = PAGE};
    }
    tiers_fault_set_gone(s.faulty[0], true);
    for (uint32_t round = 0; round < 2; round++) {
        /* In the second round the pool knows, and the member is not asked. */
        tiers_gather *gather = start(&s, ranges, 4, 0);
        assert_int_equal(tiers_gather_wait(gather, UINT64_MAX), KVT_E_GONE);
        for (uint32_t i = 0; i < 3; i++) {
            assert_true(holds(&ranges[i], 3));
            assert_int_equal(ranges[i].copy, 1);
        }
        assert_int_equal(ranges[3].status, KVT_E_GONE);
        assert_null(ranges[3].data);
        end(gather);
    }
    object_end(&s, &o);
    object_end(&s, &replica);
    site_close(&s);
}

/* ---- silence ---- */

static void hang_reads(kvt_device *faulty)
{
    tiers_fault_rule rule = {.action = TIERS_FAULT_HANG, .kinds = TIERS_FAULT_READS};
    assert_ok(tiers_fault_add(faulty, &rule));
}

/* A deadline ends a wait and nothing else: what has come is there, and the rest may still come. */
TEST(a_deadline_leaves_the_rest_in_flight)
{
    const double speeds[] = {1e9, 1e9};
    site s;
    site_open(&s, speeds, 2, 4 * SCRATCH_MIB);
    object quick = object_make(&s, PAGE, PAGE, 1u << 0, 3);
    object silent = object_make(&s, PAGE, PAGE, 1u << 1, 4);
    tiers_copy copies[] = {{quick.map, 0}, {silent.map, 0}};
    tiers_gather_range ranges[2];
    for (uint32_t i = 0; i < 2; i++)
        ranges[i] = (tiers_gather_range){.copies = &copies[i], .copy_count = 1, .bytes = PAGE};
    hang_reads(s.faulty[1]);
    tiers_gather *gather = start(&s, ranges, 2, 0);
    assert_int_equal(tiers_gather_wait(gather, base_clock_ns() + 30000000), KVT_E_TIMEOUT);
    assert_true(holds(&ranges[0], 3));
    assert_int_equal(ranges[1].status, KVT_E_TIMEOUT);
    tiers_fault_clear(s.faulty[1]);
    assert_ok(tiers_gather_wait(gather, UINT64_MAX));
    assert_true(holds(&ranges[1], 4));
    end(gather);

    /* Released while the device still has the buffer: the word comes when it answers. */
    hang_reads(s.faulty[1]);
    gather = start(&s, ranges, 2, 0);
    assert_int_equal(tiers_gather_wait(gather, base_clock_ns() + 10000000), KVT_E_TIMEOUT);
    atomic_int released = 0;
    tiers_gather_release(gather, note_released, &released);
    base_sleep(5000000);
    assert_int_equal(atomic_load(&released), 0);
    /* Its locations are pinned meanwhile, released or not. */
    object_end(&s, &silent);
    assert_int_equal(pool_scratch_used(s.pool), 2 * PAGE);
    tiers_fault_clear(s.faulty[1]);
    while (atomic_load(&released) == 0)
        base_sleep(100000);
    object_end(&s, &quick);
    tiers_location *any; /* a call that collects late extents */
    assert_ok(tiers_pool_reserve(s.pool, GRAIN, &any));
    assert_int_equal(pool_scratch_used(s.pool), GRAIN);
    tiers_pool_release(s.pool, any);
    site_close(&s);
}

/* A hedge reads from the copy what does not come, into another slot of the buffer. */
TEST(a_hedge_does_not_wait_for_a_silent_member)
{
    const double speeds[] = {1e12, 1e9}; /* the silent one is the choice */
    site s;
    site_open(&s, speeds, 2, 4 * SCRATCH_MIB);
    object o = object_make(&s, 4 * PAGE, PAGE, 1u << 0, 3);
    object replica = object_make(&s, 4 * PAGE, PAGE, 1u << 1, 3);
    tiers_gather_range ranges[4];
    tiers_copy copies[4][2];
    for (uint32_t i = 0; i < 4; i++) {
        copies[i][0] = (tiers_copy){.map = o.map, .offset = i * PAGE};
        copies[i][1] = (tiers_copy){.map = replica.map, .offset = i * PAGE};
        ranges[i] = (tiers_gather_range){.copies = copies[i], .copy_count = 2, .bytes = PAGE};
    }
    hang_reads(s.faulty[0]);
    tiers_gather *gather = start(&s, ranges, 4, 5000000);
    assert_ok(tiers_gather_wait(gather, UINT64_MAX));
    for (uint32_t i = 0; i < 4; i++) {
        assert_true(holds(&ranges[i], 3));
        assert_int_equal(ranges[i].copy, 1);
    }
    atomic_int released = 0;
    tiers_gather_release(gather, note_released, &released);
    assert_int_equal(atomic_load(&released), 0);
    tiers_fault_clear(s.faulty[0]);
    while (atomic_load(&released) == 0)
        base_sleep(100000);

    /* Without room for second reads the late ones are waited for. */
    hang_reads(s.faulty[0]);
    s.buffer_bytes = 4 * PAGE;
    gather = start(&s, ranges, 4, 1000000);
    assert_int_equal(tiers_gather_wait(gather, base_clock_ns() + 20000000), KVT_E_TIMEOUT);
    tiers_fault_clear(s.faulty[0]);
    assert_ok(tiers_gather_wait(gather, UINT64_MAX));
    for (uint32_t i = 0; i < 4; i++)
        assert_true(holds(&ranges[i], 3) && ranges[i].copy == 0);
    end(gather);
    object_end(&s, &o);
    object_end(&s, &replica);
    site_close(&s);
}

/* A member that is out of service and does not answer is as one that is gone, without a hedge. */
TEST(a_stuck_member_is_left)
{
    const double speeds[] = {1e12, 1e9};
    site s;
    site_open(&s, speeds, 2, 4 * SCRATCH_MIB);
    object o = object_make(&s, 2 * PAGE, PAGE, 1u << 0, 3);
    object replica = object_make(&s, 2 * PAGE, PAGE, 1u << 1, 3);
    tiers_copy copies[2][2] = {{{o.map, 0}, {replica.map, 0}}, {{o.map, PAGE}, {NULL, 0}}};
    tiers_gather_range ranges[2];
    for (uint32_t i = 0; i < 2; i++)
        ranges[i] =
            (tiers_gather_range){.copies = copies[i], .copy_count = i == 0 ? 2 : 1, .bytes = PAGE};
    hang_reads(s.faulty[0]);
    tiers_gather *gather = start(&s, ranges, 2, 0);
    assert_int_equal(tiers_gather_wait(gather, base_clock_ns() + 5000000), KVT_E_TIMEOUT);
    tiers_pool_retire(s.pool, 0);
    assert_int_equal(tiers_gather_wait(gather, UINT64_MAX), KVT_E_GONE);
    assert_true(holds(&ranges[0], 3));
    assert_int_equal(ranges[1].status, KVT_E_GONE);
    atomic_int released = 0;
    tiers_gather_release(gather, note_released, &released);
    tiers_fault_clear(s.faulty[0]);
    while (atomic_load(&released) == 0)
        base_sleep(100000);
    object_end(&s, &o);
    object_end(&s, &replica);
    site_close(&s);
}

/* ---- reserve_on ---- */

TEST(an_object_keeps_to_its_members)
{
    const double speeds[] = {1e9, 1e9, 1e9};
    site s;
    site_open(&s, speeds, 3, 64 * GRAIN);
    tiers_location *location;
    assert_ok(tiers_pool_reserve_on(s.pool, 60 * GRAIN, PAGE, 5, &location));
    assert_int_equal(location->unit_bytes, PAGE);
    assert_int_equal(location->share_count, 2);
    assert_int_equal(location->shares[0].member, 0);
    assert_int_equal(location->shares[1].member, 2);
    tiers_location *none;
    assert_int_equal(tiers_pool_reserve_on(s.pool, 70 * GRAIN, PAGE, 5, &none), KVT_E_SPACE);
    assert_int_equal(tiers_pool_reserve_on(s.pool, GRAIN, PAGE, 8, &none), KVT_E_SPACE);
    tiers_pool_release(s.pool, location);
    site_close(&s);
}
