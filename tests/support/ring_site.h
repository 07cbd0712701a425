/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring_site.h - a ring on the store of queue_site.h, with a region that takes two matrices a layer
 * of each entry, and what its blocks are to bring. Single thread, but for what a test says.
 */
#ifndef TESTS_RING_SITE_H
#define TESTS_RING_SITE_H

#include "queue_site.h"

#include <kvterrace/ring.h>

enum { RING_ENTRIES = 8, RING_MATRIX = SUPPORT_ENTRY_BYTES / 4, RING_DEPTH = 8 };

#define RING_REGION_BYTES ((uint64_t)RING_ENTRIES * SUPPORT_ENTRY_BYTES)

static kvt_ring *ring;
static uint64_t ring_objects[RING_ENTRIES];
static uint32_t ring_region;
static char *ring_memory, *ring_expected; /* a page in front of and behind the region */

static inline void ring_site_ring(const kvt_ring_options *options)
{
    kvt_key keys[RING_ENTRIES];
    assert_ok(kvt_ring_open(store, RING_DEPTH, options, &ring));
    ring_memory = test_alloc(RING_REGION_BYTES + 8192);
    ring_expected = test_alloc(RING_REGION_BYTES + 8192);
    memset(ring_memory, 0xee, RING_REGION_BYTES + 8192);
    memset(ring_expected, 0xee, RING_REGION_BYTES + 8192);
    assert_ok(kvt_ring_region_add(ring, ring_memory + 4096, RING_REGION_BYTES, &ring_region));
    for (uint32_t i = 0; i < RING_ENTRIES; i++)
        keys[i] = support_key(i);
    assert_ok(kvt_ring_object_open(ring, keys, RING_ENTRIES, ring_objects));
}

/* A store over a device whose faults the test controls, or over memory, and a ring on it. */
static inline void ring_site_open(bool device, const kvt_ring_options *options)
{
    queue_site_open(device, RING_ENTRIES, 0);
    ring_site_ring(options);
}

static inline int ring_site_close(void **state)
{
    if (store != NULL && fault.device != NULL) tiers_fault_clear(fault.device);
    kvt_ring_close(ring);
    ring = NULL;
    return queue_site_close(state);
}

/* A whole matrix, into its place in the region: packed entries, one behind the other. */
static inline kvt_ring_context ring_matrix(uint32_t entry, uint32_t layer, uint32_t side)
{
    return (kvt_ring_context){.object = ring_objects[entry],
                              .layer = layer,
                              .side = side,
                              .bytes = RING_MATRIX,
                              .region = ring_region,
                              .target =
                                  entry * (uint64_t)SUPPORT_ENTRY_BYTES +
                                  kvt_layout_matrix_offset(&support_layout, layer, (kvt_side)side)};
}

static inline kvt_ring_iocb ring_claim(void)
{
    kvt_ring_iocb iocb;
    assert_ok(kvt_ring_get_iocb(ring, 1, &iocb));
    return iocb;
}

/* A block of one layer of all entries. */
static inline kvt_ring_iocb ring_claim_layer(uint32_t layer)
{
    kvt_ring_iocb iocb = ring_claim();
    for (uint32_t i = 0; i < 2 * RING_ENTRIES; i++)
        iocb.contexts[i] = ring_matrix(i / 2, layer, i % 2);
    iocb.block.count = 2 * RING_ENTRIES;
    iocb.block.user = 1000 + layer;
    return iocb;
}

static inline kvt_ring_result ring_await(uint64_t index, signed char *statuses)
{
    kvt_ring_result result;
    assert_ok(kvt_ring_wait(ring, index, 1, base_clock_ns() + 60 * SECOND_NS, &result, statuses));
    return result;
}

/* Submits a block, and waits for it. */
static inline kvt_ring_result ring_carry_out(const kvt_ring_iocb *iocb, signed char *statuses)
{
    assert_ok(kvt_ring_submit(ring, iocb, 1));
    return ring_await(iocb->index, statuses);
}

/* What a context is to bring, as far as the layer that its block adds goes. */
static inline void ring_expect(uint32_t entry, const kvt_ring_context *context, uint64_t add)
{
    static char data[SUPPORT_ENTRY_BYTES];
    support_fill(entry, data);
    const char *from =
        data + kvt_layout_matrix_offset(&support_layout, context->layer, (kvt_side)context->side) +
        context->offset;
    char *to = ring_expected + 4096 + context->target + add;
    const uint64_t row =
        context->stride != 0 ? RING_MATRIX / support_layout.tokens : context->bytes;
    for (uint64_t done = 0; done < context->bytes; done += row) {
        memcpy(to, from + done, row);
        to += context->stride;
    }
}

static inline void ring_expect_layer(uint32_t layer)
{
    for (uint32_t i = 0; i < 2 * RING_ENTRIES; i++) {
        const kvt_ring_context context = ring_matrix(i / 2, layer, i % 2);
        ring_expect(i / 2, &context, 0);
    }
}

/* Exactly what was expected was written. */
static inline void ring_assert_bytes(void)
{
    assert_memory_equal(ring_memory, ring_expected, RING_REGION_BYTES + 8192);
}

/* All matrices of all entries, by a block a layer. */
static inline void carry_out_layers(void)
{
    for (uint32_t layer = 0; layer < 2; layer++) {
        const kvt_ring_iocb iocb = ring_claim_layer(layer);
        const kvt_ring_result result = ring_carry_out(&iocb, NULL);
        assert_int_equal(result.status, KVT_OK);
        assert_int_equal(result.failed, 0);
        assert_int_equal(result.user, 1000 + layer);
        assert_int_equal(result.bytes, 2 * RING_ENTRIES * RING_MATRIX);
        assert_true(result.taken_ns <= result.done_ns);
        ring_expect_layer(layer);
        ring_assert_bytes();
    }
}

static inline kvt_ring_stats ring_stats(void)
{
    kvt_ring_stats stats = {.struct_size = sizeof stats};
    assert_ok(kvt_ring_stats_get(ring, &stats));
    return stats;
}

#endif
