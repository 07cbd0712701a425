/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_ring_ends.c - rings while entries leave, devices fail or do not answer, and ring,
 * regions or store end with blocks under way: each block completes once, with a status, and nothing
 * is written afterwards.
 */
#include "ring_site.h"

#include <pthread.h>

/* ---- entries and devices that go ---- */

TEST(entries_that_leave)
{
    signed char statuses[KVT_RING_CONTEXTS_MAX];
    ring_site_open(true, NULL);
    carry_out_layers();
    const kvt_key key = support_key(3);
    assert_ok(kvt_store_delete(store, &key));
    kvt_ring_iocb iocb = ring_claim_layer(0);
    kvt_ring_result result = ring_carry_out(&iocb, statuses);
    assert_int_equal(result.status, KVT_MISS);
    assert_int_equal(result.failed, 2);
    for (uint32_t i = 0; i < 2 * RING_ENTRIES; i++)
        assert_int_equal(statuses[i], i / 2 == 3 ? KVT_MISS : KVT_OK);
    /* It is the same entry under its key once it is put again, wherever that lies. */
    assert_ok(support_put(store, 3));
    carry_out_layers();
    kvt_ring_object_close(ring, &ring_objects[3], 1);
    kvt_ring_object_close(ring, &ring_objects[3], 1);
    iocb = ring_claim_layer(0);
    result = ring_carry_out(&iocb, statuses);
    assert_int_equal(result.status, KVT_E_ARGUMENT);
    assert_int_equal(statuses[6], KVT_E_ARGUMENT);
    uint64_t again;
    assert_ok(kvt_ring_object_open(ring, &key, 1, &again));
    assert_int_equal((uint32_t)again, (uint32_t)ring_objects[3]); /* its place, another number */
    assert_true(again != ring_objects[3]);
}

/* Posts a matrix of entry 3, whose read hangs. The device takes writes still. */
static kvt_ring_iocb post_hung(void)
{
    tiers_fault_counts counts;
    queue_site_fault((tiers_fault_rule){.action = TIERS_FAULT_HANG, .kinds = TIERS_FAULT_READS});
    kvt_ring_iocb iocb = ring_claim();
    iocb.contexts[0] = ring_matrix(3, 0, 1);
    iocb.block.count = 1;
    ring_expect(3, &iocb.contexts[0], 0);
    assert_ok(kvt_ring_submit(ring, &iocb, 1));
    do
        tiers_fault_counts_get(fault.device, &counts);
    while (counts.hung == 0);
    return iocb;
}

/* An entry is evicted, put again and closed while contexts of it are in flight: the block has the
 * bytes that it began with, in a place that nobody else was given. */
TEST(entries_that_leave_with_contexts_in_flight)
{
    const kvt_store_options options = queue_site_options(true);
    fault.depth = 8; /* a write may begin beside a read that hangs */
    assert_ok(kvt_store_open(&options, &store, NULL, 0));
    support_puts(store, 0, RING_ENTRIES);
    ring_site_ring(NULL);
    carry_out_layers();
    memset(ring_memory, 0xee, RING_REGION_BYTES + 8192);
    memset(ring_expected, 0xee, RING_REGION_BYTES + 8192);
    kvt_ring_iocb iocb = post_hung();
    for (uint32_t i = 0; i < RING_ENTRIES; i++) {
        const kvt_key key = support_key(i);
        assert_ok(kvt_store_delete(store, &key));
    }
    support_puts(store, RING_ENTRIES, 4 * RING_ENTRIES);
    assert_ok(support_put(store, 3));
    kvt_ring_object_close(ring, ring_objects, RING_ENTRIES);
    tiers_fault_clear(fault.device);
    assert_int_equal(ring_await(iocb.index, NULL).status, KVT_OK);
    ring_assert_bytes();
    iocb = ring_claim_layer(0);
    assert_int_equal(ring_carry_out(&iocb, NULL).failed, 2 * RING_ENTRIES);
    support_gets(store, RING_ENTRIES, 4 * RING_ENTRIES);
}

TEST(a_device_that_is_pulled_with_contexts_in_flight)
{
    ring_site_open(true, NULL);
    carry_out_layers();
    memset(ring_memory, 0xee, RING_REGION_BYTES + 8192);
    memset(ring_expected, 0xee, RING_REGION_BYTES + 8192);
    const kvt_ring_iocb iocb = post_hung();
    memset(ring_expected, 0xee, RING_REGION_BYTES + 8192);
    tiers_fault_set_gone(fault.device, true);
    const kvt_ring_result result = ring_await(iocb.index, NULL);
    assert_int_equal(result.status, KVT_MISS);
    assert_int_equal(result.failed, 1);
    ring_assert_bytes();
}

/* Damaged bytes are a miss, nothing of them is written, and the entry leaves, as after a get. */
TEST(damaged_bytes)
{
    signed char statuses[KVT_RING_CONTEXTS_MAX];
    ring_site_open(true, NULL);
    carry_out_layers();
    memset(ring_memory, 0xee, RING_REGION_BYTES + 8192);
    memset(ring_expected, 0xee, RING_REGION_BYTES + 8192);
    queue_site_fault((tiers_fault_rule){
        .action = TIERS_FAULT_FLIP, .kinds = TIERS_FAULT_READS, .flip_bit = 8 * 4000});
    kvt_ring_iocb iocb = ring_claim();
    iocb.block.count = 1;
    iocb.contexts[0] = ring_matrix(1, 0, 0);
    iocb.contexts[0].bytes = 1; /* a byte that is sound itself: the whole matrix counts */
    assert_int_equal(ring_carry_out(&iocb, statuses).status, KVT_MISS);
    ring_assert_bytes();
    /* The look at the entry comes behind the completion. */
    const kvt_key key = support_key(1);
    while (kvt_store_exists(store, &key) == KVT_OK)
        base_sleep(1000000);
    tiers_fault_clear(fault.device);
    iocb = ring_claim_layer(0);
    const kvt_ring_result result = ring_carry_out(&iocb, statuses);
    assert_int_equal(result.failed, 2);
    for (uint32_t i = 0; i < 2 * RING_ENTRIES; i++)
        assert_int_equal(statuses[i], i / 2 == 1 ? KVT_MISS : KVT_OK);
}

TEST(failing_and_vanished_device)
{
    ring_site_open(true, NULL);
    carry_out_layers();
    queue_site_fault((tiers_fault_rule){.action = TIERS_FAULT_FAIL,
                                        .kinds = TIERS_FAULT_READS,
                                        .hits = 1,
                                        .status = KVT_E_IO,
                                        .os_error = 5});
    kvt_ring_iocb iocb = ring_claim_layer(0);
    kvt_ring_result result = ring_carry_out(&iocb, NULL);
    assert_int_equal(result.status, KVT_MISS);
    assert_int_equal(result.failed, 2); /* K and V of one entry are one request */
    carry_out_layers();                 /* the look at the entry behind it has found it sound */
    tiers_fault_set_gone(fault.device, true);
    iocb = ring_claim_layer(0);
    result = ring_carry_out(&iocb, NULL);
    assert_int_equal(result.status, KVT_MISS);
    assert_int_equal(result.failed, 2 * RING_ENTRIES);
    assert_int_equal(result.bytes, 0);
    ring_assert_bytes();
}

/* A device that does not answer keeps a block until its deadline. */
TEST(deadlines)
{
    signed char statuses[KVT_RING_CONTEXTS_MAX];
    ring_site_open(true, NULL);
    queue_site_fault((tiers_fault_rule){.action = TIERS_FAULT_HANG, .kinds = TIERS_FAULT_READS});
    for (uint32_t i = 0; i < 3; i++) {
        kvt_ring_iocb iocb = ring_claim_layer(0);
        iocb.block.deadline_ns = i == 0 ? 0 : base_clock_ns() + 50000000;
        const kvt_ring_result result = ring_carry_out(&iocb, statuses);
        assert_int_equal(result.status, KVT_E_TIMEOUT);
        assert_int_equal(result.failed, 2 * RING_ENTRIES);
        ring_assert_bytes();
    }
    tiers_fault_clear(fault.device);
    base_sleep(20000000);
    ring_assert_bytes(); /* what comes late is nobody's */
    carry_out_layers();
    /* Entries in memory are served after the deadline. */
    ring_site_close(NULL);
    ring_site_open(false, NULL);
    kvt_ring_iocb iocb = ring_claim_layer(1);
    iocb.block.deadline_ns = 0;
    assert_int_equal(ring_carry_out(&iocb, NULL).status, KVT_OK);
}

/* ---- ends ---- */

/* Posts blocks on a device that does not answer: some run, one waits for another, others lie in the
 * ring. */
static void post_stuck(kvt_ring_iocb *iocbs)
{
    ring_site_open(true, NULL);
    queue_site_fault((tiers_fault_rule){.action = TIERS_FAULT_HANG, .kinds = TIERS_FAULT_READS});
    for (uint32_t i = 0; i < RING_DEPTH - 1; i++) {
        iocbs[i] = ring_claim_layer(i % 2);
        if (i == 1) iocbs[i].block.after = iocbs[0].index + 1;
    }
    iocbs[RING_DEPTH - 1] = ring_claim(); /* it is never posted */
    assert_ok(kvt_ring_submit(ring, iocbs, RING_DEPTH - 1));
    tiers_fault_counts counts;
    do
        tiers_fault_counts_get(fault.device, &counts);
    while (counts.hung == 0);
}

TEST(ring_closes_with_blocks)
{
    kvt_ring_iocb iocbs[RING_DEPTH];
    post_stuck(iocbs);
    kvt_ring_close(ring);
    ring = NULL;
    tiers_fault_clear(fault.device);
    ring_assert_bytes();
    /* The store has all its staging back. */
    ring_site_ring(NULL);
    carry_out_layers();
}

static void *let_go_later(void *context)
{
    (void)context;
    base_sleep(100000000);
    tiers_fault_clear(fault.device);
    return NULL;
}

TEST(store_closes_with_blocks)
{
    kvt_ring_iocb iocbs[RING_DEPTH], more;
    kvt_ring_memory memory = {.struct_size = sizeof memory};
    uint64_t object;
    uint32_t region;
    const kvt_key key = support_key(0);
    pthread_t thread;
    post_stuck(iocbs);
    assert_int_equal(pthread_create(&thread, NULL, let_go_later, NULL), 0);
    kvt_store_close(store);
    pthread_join(thread, NULL);
    store = NULL;
    fault.device = NULL;
    for (uint32_t i = 0; i < RING_DEPTH; i++)
        assert_int_equal(ring_await(iocbs[i].index, NULL).status, KVT_E_CANCELLED);
    assert_int_equal(kvt_ring_get_iocb(ring, 1, &more), KVT_E_STATE);
    assert_int_equal(kvt_ring_submit(ring, iocbs, 1), KVT_E_STATE);
    assert_int_equal(kvt_ring_object_open(ring, &key, 1, &object), KVT_E_STATE);
    assert_int_equal(kvt_ring_region_add(ring, &object, 8, &region), KVT_E_STATE);
    assert_ok(kvt_ring_describe(ring, &memory));
    ring_assert_bytes();
}

static void *wait_for_first(void *context)
{
    kvt_ring_result *result = context;
    const kvt_status status = kvt_ring_wait(ring, 0, 1, KVT_NO_DEADLINE, result, NULL);
    return status == KVT_OK ? context : NULL;
}

/* Whoever waits is woken by the end of the store. */
TEST(waiter_at_the_end_of_the_store)
{
    kvt_ring_iocb iocbs[RING_DEPTH];
    kvt_ring_result result = {.status = KVT_OK};
    pthread_t waiter, thread;
    void *woken;
    post_stuck(iocbs);
    assert_int_equal(pthread_create(&waiter, NULL, wait_for_first, &result), 0);
    assert_int_equal(pthread_create(&thread, NULL, let_go_later, NULL), 0);
    kvt_store_close(store);
    store = NULL;
    pthread_join(thread, NULL);
    fault.device = NULL;
    pthread_join(waiter, &woken);
    assert_non_null(woken);
    assert_int_equal(result.status, KVT_E_CANCELLED);
}

TEST(regions_end)
{
    kvt_ring_iocb iocbs[RING_DEPTH];
    post_stuck(iocbs);
    assert_int_equal(kvt_ring_region_end(ring, ring_region), KVT_BUSY);
    assert_int_equal(kvt_ring_region_end(ring, ring_region + 1), KVT_MISS);
    tiers_fault_clear(fault.device);
    assert_ok(kvt_ring_wait(ring, iocbs[0].index, RING_DEPTH - 1, KVT_NO_DEADLINE, NULL, NULL));
    assert_ok(kvt_ring_region_end(ring, ring_region));
    assert_int_equal(kvt_ring_region_end(ring, ring_region), KVT_MISS);
    ring_expect_layer(0);
    ring_expect_layer(1);
    ring_assert_bytes();
    for (uint32_t i = 0; i < 1024; i++) {
        uint32_t other;
        assert_ok(kvt_ring_region_add(ring, ring_memory, 1, &other));
        assert_true(other != ring_region);
    }
    assert_int_equal(kvt_ring_region_add(ring, ring_memory, 1, &ring_region), KVT_BUSY);
}

/* A round holds half of the staging: a block that is much larger goes in many. */
TEST(blocks_larger_than_staging)
{
    kvt_store_options options = queue_site_options(true);
    options.limits.staging_bytes = 1 << 20; /* rounds of 128 KiB; the block has 256 */
    assert_ok(kvt_store_open(&options, &store, NULL, 0));
    support_puts(store, 0, RING_ENTRIES);
    ring_site_ring(NULL);
    kvt_ring_iocb iocb = ring_claim();
    for (uint32_t i = 0; i < 4 * RING_ENTRIES; i++) {
        iocb.contexts[i] =
            ring_matrix(i * 5 % RING_ENTRIES, i / RING_ENTRIES / 2, i / RING_ENTRIES % 2);
        ring_expect(i * 5 % RING_ENTRIES, &iocb.contexts[i], 0);
    }
    iocb.block.count = 4 * RING_ENTRIES;
    assert_int_equal(ring_carry_out(&iocb, NULL).status, KVT_OK);
    ring_assert_bytes();
}

TEST_EACH(NULL, ring_site_close);
