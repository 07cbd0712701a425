/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_ring_pass.c - blocks of a ring that name a pass: while they are under way, writes wait
 * for their layers as for those of a load; numbers that name no pass change nothing.
 */
#include "store/core/store.h"
#include "tiers/pool/pool_internal.h"

#include "ring_site.h"

#include <kvterrace/load.h>
#include <pthread.h>

enum { LAYERS = 2 };

TEST_EACH(NULL, ring_site_close);

static void open_site(double patience_seconds, uint32_t threads)
{
    const kvt_ring_options ring_options = {.struct_size = sizeof ring_options, .threads = threads};
    kvt_store_options options = queue_site_options(true);
    options.io.write_patience_seconds = patience_seconds;
    fault.depth = 8; /* a write may begin beside a read that hangs */
    assert_ok(kvt_store_open(&options, &store, NULL, 0));
    support_puts(store, 0, RING_ENTRIES);
    ring_site_ring(&ring_options);
    carry_out_layers(); /* heads are known: a block is one read */
}

static uint64_t begin_pass(uint32_t layers, double layer_seconds)
{
    const kvt_pass pass = {.struct_size = sizeof pass,
                           .new_tokens = 64,
                           .layers = layers,
                           .layer_seconds = layer_seconds};
    uint64_t number = 0;
    assert_ok(kvt_pass_begin(store, &pass, &number));
    return number;
}

/* The needs that the tier's pool knows. */
static uint32_t needs(void)
{
    return atomic_load(&store->pools[KVT_TIER_DRAM]->needs.count);
}

static kvt_io_decisions decisions(void)
{
    kvt_device_stats stats = {.struct_size = sizeof stats};
    assert_ok(kvt_device_stats_get(store, 0, &stats));
    return stats.decisions;
}

static void hang(void)
{
    queue_site_fault((tiers_fault_rule){.action = TIERS_FAULT_HANG, .kinds = TIERS_FAULT_READS});
}

/* Posts a matrix of an entry, and waits until so many reads hang. The device takes writes still. */
static kvt_ring_iocb post_hung(uint32_t layer, uint64_t pass, uint64_t hung)
{
    tiers_fault_counts counts;
    kvt_ring_iocb iocb = ring_claim();
    iocb.contexts[0] = ring_matrix(0, layer, 0);
    iocb.block.count = 1;
    iocb.block.pass = pass;
    assert_ok(kvt_ring_submit(ring, &iocb, 1));
    do
        tiers_fault_counts_get(fault.device, &counts);
    while (counts.hung < hung);
    return iocb;
}

static void end_hung(const kvt_ring_iocb *iocb)
{
    tiers_fault_clear(fault.device);
    assert_int_equal(ring_await(iocb->index, NULL).status, KVT_OK);
    ring_assert_bytes();
    assert_int_equal(needs(), 0);
}

static void *put_one(void *argument)
{
    support_puts(store, *(uint32_t *)argument, *(uint32_t *)argument + 1);
    return NULL;
}

TEST(a_write_waits_for_the_layer_of_a_block)
{
    open_site(600, 0);
    /* A layer that is late already; then the same block without a pass, which is a read that
     * somebody waits for, no more. */
    for (uint32_t named = 2; named-- > 0;) {
        pthread_t thread;
        uint32_t entry = RING_ENTRIES + named;
        const uint64_t pass = begin_pass(LAYERS, 1e-9);
        hang();
        const kvt_ring_iocb iocb = post_hung(1, named != 0 ? pass : 0, 1);
        const kvt_io_decisions before = decisions();
        assert_int_equal(needs(), named);
        assert_int_equal(pthread_create(&thread, NULL, put_one, &entry), 0);
        kvt_io_decisions now = before;
        while (now.waits_layers + now.waits_reads == before.waits_layers + before.waits_reads)
            now = decisions();
        assert_int_equal(now.waits_layers > before.waits_layers, named);
        assert_int_equal(now.waits_reads > before.waits_reads, 1 - named);
        assert_int_equal(now.share, before.share);
        end_hung(&iocb);
        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_ok(kvt_pass_end(store, pass));
    }
}

TEST(numbers_of_no_pass_change_nothing)
{
    open_site(600, 0);
    const uint64_t ended = begin_pass(LAYERS, 0.001), shallow = begin_pass(1, 0.001);
    assert_ok(kvt_pass_end(store, ended));
    assert_int_equal(kvt_pass_end(store, ended), KVT_MISS);
    const uint64_t numbers[] = {ended, shallow, ended + 64, 1, UINT64_MAX};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        hang();
        const kvt_ring_iocb iocb = post_hung(1, numbers[i], 1);
        assert_int_equal(needs(), 0);
        end_hung(&iocb);
    }
    assert_ok(kvt_pass_end(store, shallow));
}

TEST(a_pass_that_ends_lets_its_blocks_go_on)
{
    open_site(600, 0);
    const uint64_t pass = begin_pass(LAYERS, 0.001);
    hang();
    const kvt_ring_iocb iocb = post_hung(0, pass, 1);
    assert_int_equal(needs(), 1);
    assert_ok(kvt_pass_layer(store, pass, 1));
    assert_ok(kvt_pass_end(store, pass));
    assert_int_equal(needs(), 0);
    end_hung(&iocb);
}

TEST(more_blocks_than_a_pass_tells_apart)
{
    open_site(600, 16);
    const uint64_t pass = begin_pass(LAYERS, 0.001);
    kvt_ring_iocb iocbs[RING_DEPTH];
    hang();
    for (uint32_t i = 0; i < RING_DEPTH; i++) {
        iocbs[i] = post_hung(i % LAYERS, pass, 1);
        assert_true(needs() <= PASS_LOADS);
    }
    tiers_fault_clear(fault.device);
    for (uint32_t i = 0; i < RING_DEPTH; i++)
        assert_int_equal(ring_await(iocbs[i].index, NULL).status, KVT_OK);
    ring_assert_bytes();
    assert_int_equal(needs(), 0);
    assert_ok(kvt_pass_end(store, pass));
}

TEST(a_ring_that_closes_leaves_its_pass)
{
    open_site(600, 0);
    const uint64_t pass = begin_pass(LAYERS, 0.001);
    hang();
    (void)post_hung(0, pass, 1);
    assert_int_equal(needs(), 1);
    kvt_ring_close(ring);
    ring = NULL;
    assert_int_equal(needs(), 0);
    tiers_fault_clear(fault.device);
    assert_ok(kvt_pass_layer(store, pass, 1));
    assert_ok(kvt_pass_end(store, pass));
}

TEST(entries_in_memory_need_no_device)
{
    ring_site_open(false, NULL);
    const uint64_t pass = begin_pass(LAYERS, 0.001);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        kvt_ring_iocb iocb = ring_claim_layer(layer);
        iocb.block.pass = pass;
        assert_int_equal(ring_carry_out(&iocb, NULL).status, KVT_OK);
        ring_expect_layer(layer);
        assert_int_equal(needs(), 0);
    }
    ring_assert_bytes();
}
