/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_transfer.c - the transfers of a batch reach their device in the order of their places,
 * in whatever order they were asked for.
 */

#include "cases.h"
#include "gate_device.h"
#include "pool_scratch.h"
#include "store/core/transfer.h"

enum { GRAIN = 4096, COUNT = 48 };

typedef struct site {
    gate gate;
    tiers_pool *pool;
    store_staging *staging;
    tiers_location *locations[COUNT + 1];
    atomic_uint landed;
} site;

static void site_landed(void *context)
{
    atomic_fetch_add(&((site *)context)->landed, 1);
}

static void site_open(site *s)
{
    memset(s, 0, sizeof *s);
    gate_make(&s->gate, 4 << 20);
    const tiers_member_options member = pool_scratch_member(&s->gate.base, 1e9);
    const tiers_pool_options options = {.unit_bytes = GRAIN};
    assert_ok(tiers_pool_open(&member, 1, &options, &s->pool, NULL, 0));
    assert_ok(staging_open(1 << 20, &s->staging));
    for (uint32_t i = 0; i <= COUNT; i++)
        assert_ok(tiers_pool_reserve(s->pool, GRAIN, &s->locations[i]));
}

static void site_close(site *s)
{
    for (uint32_t i = 0; i <= COUNT; i++)
        tiers_pool_release(s->pool, s->locations[i]);
    tiers_pool_close(s->pool);
    staging_close(s->staging);
}

static store_transfer *site_prepare(site *s, uint32_t index)
{
    staging_buffer buffer;
    assert_ok(staging_acquire(s->staging, GRAIN, STAGING_NO_DEADLINE, &buffer));
    const tiers_transfer read = {.kind = KVT_IO_READ,
                                 .waited = true,
                                 .location = s->locations[index],
                                 .buffer = buffer.memory,
                                 .bytes = GRAIN};
    const transfer_owner owner = {.landed = site_landed, .context = s};
    store_transfer *transfer = transfer_prepare(s->staging, s->pool, &read, NULL, &buffer, &owner);
    assert_non_null(transfer);
    return transfer;
}

static void site_take(site *s, store_transfer *transfer)
{
    staging_buffer buffer;
    transfer_report report;
    assert_ok(transfer_take(transfer, &buffer, &report));
    staging_release(s->staging, &buffer);
}

TEST(a_batch_is_read_in_the_order_of_its_places)
{
    site s;
    store_transfer *batch[COUNT];
    site_open(&s);
    store_transfer *first = site_prepare(&s, COUNT); /* holds the gate until all are queued */
    transfer_start_all(&first, 1);
    while (atomic_load(&s.gate.taken) == 0)
        base_sleep(50000);
    for (uint32_t i = 0; i < COUNT; i++) /* 29 and 48 have no divisor in common */
        batch[i] = site_prepare(&s, i * 29 % COUNT);
    transfer_sort(batch, COUNT);
    transfer_start_all(batch, COUNT);
    atomic_store(&s.gate.open, true);
    while (atomic_load(&s.landed) < COUNT + 1)
        base_sleep(50000);
    assert_int_equal(atomic_load(&s.gate.taken), COUNT + 1);
    for (uint32_t i = 1; i < COUNT; i++)
        assert_true(s.gate.offsets[i] < s.gate.offsets[i + 1]);
    site_take(&s, first);
    for (uint32_t i = 0; i < COUNT; i++)
        site_take(&s, batch[i]);
    site_close(&s);
}
