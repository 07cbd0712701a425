/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_gpu_dram.c - records in the DRAM tier that are sent to a GPU from where they lie, in
 * memory that the driver has registered, over the stand-in for the driver.
 */
#include "gpu_engine.h"

TEST_ALL(open_all, NULL);
TEST_EACH(begin_case, end_case);

static const char *const forms[] = {NULL, "kivi:k4v4", "planes:k4v4", "entropy:k0.25v0.5",
                                    "lossless"};

/* Loads and gets all. Returns how many of the layers kernels took from where they lay. */
static uint64_t read_all(bool lossy)
{
    kvt_status statuses[ENTRIES];
    assert_ok(load_all(statuses));
    for (int turn = 0; turn < 2; turn++) {
        assert_int_equal(driver.finish(own.stream), 0);
        for (uint32_t i = 0; i < ENTRIES; i++) {
            assert_ok(statuses[i]);
            assert_true(pool_is(i, lossy));
            if (turn == 0)
                statuses[i] =
                    kvt_store_get(store, &own.keys[i], &own.views[i], KVT_NO_DEADLINE, NULL);
        }
    }
    const kvt_gpu_stats stats = stats_of(0);
    assert_int_equal(stats.decoded_by_gpu, 2 * ENTRIES * LAYERS);
    assert_int_equal(stats.unsound + stats.decoded_by_cpu, 0);
    return stats.sent_in_place;
}

/* Nothing but block numbers and jobs passes through pinned memory. */
TEST(records_are_sent_from_where_they_lie)
{
    give_kernels();
    for (size_t i = 0; i < 10; i++) {
        const char *form = forms[i / 2];
        engine_open(0, axes_of_pools[i % 4]);
        site_open_form(false, i % 2 != 0, form);
        assert_ok(kvt_store_flush(store));
        assert_int_equal(read_all(form != NULL), 2 * ENTRIES * LAYERS);
        assert_true(fake->registered > 0);
        assert_int_equal(fake->pageable, 0);
        assert_int_equal(stats_of(0).registered_bytes, 64 << 20);
        assert_int_equal(queue_site_close(NULL), 0);
        engine_close();
        assert_int_equal(fake->live, 0);
        fake->registered = 0;
    }
}

/* A driver that does not register memory, and memory that somebody else has registered. */
TEST(registrations_that_are_refused)
{
    static const int results[] = {REFUSED, 1, 801, 712};
    give_kernels();
    for (size_t i = 0; i < 4; i++) {
        const bool others = results[i] == 712;
        engine_open(0, "lsbth");
        site_open_form(false, false, forms[i]);
        fake->calls = 0;
        fake->fail_name = "cuMemHostRegister_v2";
        fake->fail_call = 1;
        fake->fail_alike = 1;
        fake->fail_result = results[i];
        assert_int_equal(read_all(i != 0), others ? 2 * ENTRIES * LAYERS : 0);
        assert_int_equal(fake->calls, 1); /* it is asked once */
        assert_int_equal(stats_of(0).registered_bytes, 0);
        fake->fail_call = 0;
        fake->fail_alike = 0;
        assert_int_equal(queue_site_close(NULL), 0);
        engine_close();
        assert_int_equal(fake->live, 0);
    }
}

/* The end of the context in the registration. */
TEST(a_registration_that_ends_the_context)
{
    kvt_status statuses[ENTRIES];
    give_kernels();
    engine_open(0, "lsbth");
    site_open(false, false);
    fake->calls = 0;
    fake->fail_name = "cuMemHostRegister_v2";
    fake->fail_call = 1;
    fake->fail_result = LOST;
    fake->fail_for_good = 1;
    (void)!load_all(statuses);
    assert_int_equal(kvt_store_get(store, &own.keys[0], &own.views[0], KVT_NO_DEADLINE, NULL),
                     KVT_E_GONE);
    fake->fail_call = 0;
    fake->fail_for_good = 0;
    assert_int_equal(support_stats(store).load_failures, 0);
}

/* Memory fills with other bytes: what a load's copies still read stays what it was. */
TEST(entries_that_leave_while_they_are_copied)
{
    static char data[ENTRY_BYTES];
    give_kernels();
    for (int way = 0; way < 4; way++) {
        kvt_status statuses[ENTRIES];
        kvt_load *load;
        engine_open(0, "lsbth");
        site_open(false, false);
        fake->queries_until_done = UINT32_MAX; /* no copy is done before it is waited for */
        assert_ok(kvt_load_begin(queue, own.keys, own.pointers, ENTRIES, NULL, &load));
        kvt_load_release(load, LAYERS);
        assert_ok(kvt_load_wait_layer(load, LAYERS - 1, own.stream));
        for (uint32_t i = 0; i < ENTRIES && way < 2; i++)
            assert_ok(kvt_store_delete(store, &own.keys[i]));
        const uint32_t puts = (64 << 20) / ENTRY_BYTES * 5 / 4;
        kvt_status put = KVT_OK;
        for (uint32_t i = 0; i < puts && put == KVT_OK; i++) {
            kvt_entry entry = support_entry(support_key(1000 + i), layout, 1);
            memset(data, (int)(0x11 + i), sizeof data);
            put = kvt_store_put(store, &entry, KVT_PACKED(data, ENTRY_BYTES));
        }
        assert_int_equal(put, KVT_E_SPACE); /* there is no room but what the load holds */
        if (way % 2 != 0)
            assert_int_equal(kvt_device_change(store, "dram", KVT_DEVICE_REMOVE), KVT_BUSY);
        fake->queries_until_done = 2;
        assert_ok(kvt_load_end(load, statuses, NULL));
        assert_int_equal(driver.finish(own.stream), 0);
        assert_int_equal(stats_of(0).sent_in_place, ENTRIES * LAYERS);
        for (uint32_t i = 0; i < ENTRIES; i++) {
            assert_ok(statuses[i]);
            assert_true(pool_has(i));
        }
        assert_int_equal(queue_site_close(NULL), 0);
        engine_close();
    }
}

/* A device that is removed leaves nothing registered, whose memory is unmapped. */
TEST(a_device_is_removed)
{
    give_kernels();
    engine_open(0, "lsbth");
    site_open(false, false);
    const int before = fake->live;
    load_well();
    assert_true(stats_of(0).registered_bytes > 0);
    assert_true(fake->live > before);
    assert_ok(kvt_device_change(store, "dram", KVT_DEVICE_RETIRE));
    assert_ok(kvt_device_change(store, "dram", KVT_DEVICE_REMOVE));
    assert_int_equal(stats_of(0).registered_bytes, 0);
}

/* test_store_gpu.c has the end of the context at each call. */
TEST(each_call_of_the_driver_fails_in_turn)
{
    give_kernels();
    fail_in_turn_form(false, PASSING, false, NULL);
}
