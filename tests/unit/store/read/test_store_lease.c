/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_lease.c - leased entries stay: under puts that need their room, until the instant, the
 * release or the owner's end, and never beyond the bound. Also how much of a prefix is worth
 * loading.
 */
#include "store_support.h"

#include "base/clock.h"

#include <kvterrace/lookup.h>
#include <math.h>

enum { FITS = 12, MORE = 60, RECORD_BYTES = SUPPORT_ENTRY_BYTES + 8192 };

#define HOUR_NS UINT64_C(3600000000000)

static uint64_t in_an_hour(void)
{
    return base_clock_ns() + HOUR_NS;
}

/* A store of one tier with room for about FITS entries, that carries puts out in the call. */
static kvt_store *open_store(void)
{
    kvt_store_options options = support_options(4 << 20, "lru");
    options.lossless = false;
    options.tiers[KVT_TIER_DRAM].capacity_bytes = (FITS + 2) * RECORD_BYTES;
    kvt_store *store = support_open(&options);
    return store;
}

static kvt_lease_stats lease_stats(kvt_store *store)
{
    return support_stats(store).leases;
}

static uint64_t lease_keys(kvt_store *store, uint32_t first, uint32_t count, uint64_t until_ns,
                           bool *held)
{
    kvt_key keys[MORE] = {0};
    uint64_t lease = 99;
    for (uint32_t i = 0; i < count; i++)
        keys[i] = support_key(first + i);
    kvt_status status = kvt_lease_begin(store, NULL, keys, count, until_ns, held, &lease);
    assert_int_equal(status, lease != 0 ? KVT_OK : KVT_MISS);
    return lease;
}

static uint32_t count_stored(kvt_store *store, uint32_t first, uint32_t count)
{
    uint32_t stored = 0;
    for (uint32_t i = first; i < first + count; i++) {
        const kvt_key key = support_key(i);
        if (kvt_store_exists(store, &key) == KVT_OK) stored++;
    }
    return stored;
}

TEST(held_entries_outlast_puts)
{
    kvt_store *store = open_store();
    support_puts(store, 0, FITS);
    bool held[4];
    uint64_t lease = lease_keys(store, 0, 4, in_an_hour(), held);
    for (uint32_t i = 0; i < 4; i++)
        assert_true(held[i]);
    support_puts(store, FITS, FITS + MORE);
    assert_int_equal(count_stored(store, 0, 4), 4);
    assert_int_equal(count_stored(store, 4, FITS - 4), 0);
    support_gets(store, 0, 4);
    assert_ok(kvt_lease_end(store, lease));
    assert_int_equal(kvt_lease_end(store, lease), KVT_MISS);
    for (uint32_t i = FITS + MORE; i < FITS + 2 * MORE; i++)
        assert_ok(support_put(store, i));
    assert_int_equal(count_stored(store, 0, 4), 0);
    kvt_lease_stats stats = lease_stats(store);
    assert_int_equal(stats.entries, 0);
    assert_int_equal(stats.bytes[KVT_TIER_DRAM], 0);
    assert_int_equal(stats.released, 1);
    kvt_store_close(store);
}

TEST(a_lease_ends_at_its_instant)
{
    kvt_store *store = open_store();
    assert_ok(support_put(store, 1));
    kvt_key key = support_key(1);
    uint64_t soon_ns = base_clock_ns() + 50000000;
    uint64_t lease = lease_keys(store, 1, 1, soon_ns, NULL);
    assert_int_equal(kvt_store_delete(store, &key), KVT_BUSY);
    base_sleep_until(soon_ns + 1000000);
    assert_int_equal(lease_stats(store).ran_out, 1);
    assert_int_equal(kvt_lease_end(store, lease), KVT_MISS);
    assert_int_equal(kvt_lease_extend(store, lease, in_an_hour()), KVT_MISS);
    assert_ok(kvt_store_delete(store, &key));
    kvt_store_close(store);
}

TEST(several_leases_hold_one_entry)
{
    kvt_store *store = open_store();
    assert_ok(support_put(store, 1));
    kvt_key key = support_key(1);
    uint64_t first = lease_keys(store, 1, 1, in_an_hour(), NULL);
    uint64_t second = lease_keys(store, 1, 1, in_an_hour(), NULL);
    assert_int_equal(lease_stats(store).entries, 1);
    assert_ok(kvt_lease_end(store, first));
    assert_int_equal(kvt_store_delete(store, &key), KVT_BUSY);
    assert_ok(kvt_lease_extend(store, second, base_clock_ns() + 2 * HOUR_NS));
    assert_ok(kvt_lease_end(store, second));
    assert_ok(kvt_store_delete(store, &key));
    kvt_store_close(store);
}

/* The key is put again after its entry was lost: the old lease holds nothing of the new one. */
TEST(a_lost_entry_leaves_its_lease)
{
    support_fault fault = {.capacity_bytes = 1 << 20};
    kvt_device_config device = support_fault_config(&fault, "mem");
    kvt_store_options options = support_options(4 << 20, "lru");
    support_tier(&options, KVT_TIER_DRAM, &device, 1);
    kvt_store *store = support_open(&options);
    assert_ok(support_put(store, 1));
    uint64_t lease = lease_keys(store, 1, 1, in_an_hour(), NULL);
    const tiers_fault_rule flip = {
        .action = TIERS_FAULT_FLIP, .kinds = TIERS_FAULT_READS, .flip_bit = 100000};
    assert_ok(tiers_fault_add(fault.device, &flip));
    assert_int_equal(support_get(store, 1, NULL), KVT_MISS);
    tiers_fault_clear(fault.device);
    assert_int_equal(lease_stats(store).lost, 1);
    assert_int_equal(lease_stats(store).entries, 0);
    assert_ok(support_put(store, 1));
    uint64_t again = lease_keys(store, 1, 1, in_an_hour(), NULL);
    assert_ok(kvt_lease_end(store, lease));
    assert_int_equal(lease_stats(store).entries, 1);
    assert_ok(kvt_lease_end(store, again));
    assert_int_equal(lease_stats(store).entries, 0);
    kvt_store_close(store);
}

TEST(leases_hold_half_a_tier_at_most)
{
    kvt_store *store = open_store();
    support_puts(store, 0, FITS);
    bool held[FITS];
    (void)lease_keys(store, 0, FITS, in_an_hour(), held);
    uint32_t count = 0;
    for (uint32_t i = 0; i < FITS; i++)
        count += held[i];
    kvt_lease_stats stats = lease_stats(store);
    uint64_t half = (FITS + 2) * RECORD_BYTES / 2;
    assert_int_equal(stats.refused_bound, FITS - count);
    assert_true(count > 0 && stats.refused_bound > 0);
    assert_true(stats.bytes[KVT_TIER_DRAM] <= half);
    assert_true(stats.bytes[KVT_TIER_DRAM] + 2 * RECORD_BYTES > half);
    /* Puts still find room, and close ends what is open. */
    support_puts(store, FITS, FITS + MORE);
    kvt_store_close(store);
}

TEST(bad_leases)
{
    kvt_store *store = open_store();
    kvt_key key = support_key(7);
    uint64_t lease = 99;
    bool held = true;
    assert_int_equal(kvt_lease_begin(store, NULL, &key, 1, in_an_hour(), &held, &lease), KVT_MISS);
    assert_false(held);
    assert_int_equal(lease, 0);
    assert_int_equal(kvt_lease_begin(store, NULL, NULL, 0, in_an_hour(), NULL, &lease), KVT_MISS);
    assert_int_equal(kvt_lease_begin(store, NULL, NULL, 1, in_an_hour(), NULL, &lease),
                     KVT_E_ARGUMENT);
    assert_int_equal(kvt_lease_begin(store, NULL, &key, 1, 1, NULL, &lease), KVT_E_ARGUMENT);
    assert_int_equal(kvt_lease_begin(store, NULL, &key, 1, in_an_hour(), NULL, NULL),
                     KVT_E_ARGUMENT);
    assert_int_equal(kvt_lease_begin(store, NULL, &key, SIZE_MAX, in_an_hour(), NULL, &lease),
                     KVT_E_ARGUMENT);
    assert_int_equal(kvt_lease_end(store, 0), KVT_MISS);
    kvt_store_close(store);
}

/* ---- what is worth loading ---- */

static kvt_worth worth_of(kvt_store *store, uint32_t count)
{
    kvt_key keys[MORE] = {0};
    kvt_worth worth = {.struct_size = sizeof worth};
    for (uint32_t i = 0; i < count; i++)
        keys[i] = support_key(i);
    assert_ok(kvt_store_match(store, keys, count, KVT_MATCH(.worth = &worth), NULL));
    return worth;
}

TEST(the_run_ends_at_a_hole)
{
    kvt_store *store = open_store();
    for (uint32_t i = 0; i < 6; i++)
        if (i != 4) assert_ok(support_put(store, i));
    kvt_worth worth = worth_of(store, 6);
    assert_int_equal(worth.stored, 4);
    assert_int_equal(worth.to_load, 4); /* a second each, and memory loads them at once */
    assert_true(fabs(worth.recompute_seconds - 4) < 1e-9);
    assert_true(worth.load_seconds > 0 && worth.load_seconds < 1);
    assert_true(fabs(worth.saved_seconds + worth.load_seconds - 4) < 1e-9);
    assert_int_equal(worth_of(store, 0).stored, 0);
    kvt_store_close(store);
}

/* An entry that is recomputed in no time at the end of the run is not worth loading; before one
 * that is worth it, it is. */
TEST(the_cut_is_where_it_pays)
{
    kvt_store *store = open_store();
    char data[SUPPORT_ENTRY_BYTES];
    static const double seconds[] = {1e-12, 1, 1e-12, 1e-12};
    for (uint32_t i = 0; i < 4; i++) {
        support_fill(i, data);
        kvt_entry entry = support_entry(support_key(i), support_layout, seconds[i]);
        assert_ok(kvt_store_put(store, &entry, KVT_PACKED(data, sizeof data)));
    }
    kvt_worth worth = worth_of(store, 4);
    assert_int_equal(worth.stored, 4);
    assert_int_equal(worth.to_load, 2);
    kvt_store_close(store);
}
