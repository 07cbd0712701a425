/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_visit.c - entries that are read where they lie: on drives and in memory, under
 * pressure, and through all that can befall an entry meanwhile. Bytes that are visited are always
 * somebody's, and come back with the last visitor.
 */
#include "copies_site.h"

#include "store/core/store.h"
#include "store/lend/scratch.h"

#include <math.h>
#include <pthread.h>

enum { MIB = 1 << 20, BYTES = SUPPORT_ENTRY_BYTES - 100 };

/* Memory that is lent for so many entries, above two disks. */
static site *visit_start(uint32_t dram_entries, uint64_t disk_bytes)
{
    site *s = site_make(disk_bytes);
    site_close(s);
    s->options.tiers[KVT_TIER_DRAM] = (kvt_tier_options){
        .capacity_bytes = (uint64_t)dram_entries * RECORD_BYTES + 16384, .unit_bytes = 4096};
    site_open(s);
    return s;
}

static void fill_bytes(uint32_t number, uint8_t *data)
{
    for (uint32_t i = 0; i < BYTES; i++)
        data[i] = (uint8_t)(number * 37 + i + i / 251);
}

static kvt_status put_opaque(site *s, uint32_t number)
{
    static _Thread_local uint8_t data[BYTES];
    fill_bytes(number, data);
    const kvt_entry entry = {.struct_size = sizeof entry,
                             .key = support_key(number),
                             .layout = {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = BYTES},
                             .recompute_seconds = 1};
    return kvt_store_put(s->store, &entry, KVT_PACKED(data, BYTES));
}

/* Opaque entries, of which the oldest are on SSD then. */
static void put_opaques(site *s, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        assert_ok(put_opaque(s, i));
    assert_ok(kvt_store_flush(s->store));
}

static store_scratch *scratch_of(site *s)
{
    store_scratch *scratch = NULL;
    assert_ok(scratch_open(s->store, NULL, 0, &scratch, NULL));
    return scratch;
}

static kvt_status visit(store_scratch *scratch, uint32_t number, scratch_visited *visited)
{
    const kvt_key key = support_key(number);
    return scratch_visit(scratch_store(scratch), &key, true, visited);
}

/* Reads all of a visited entry, and a part in its middle, and compares. */
static kvt_status check_bytes(store_scratch *scratch, uint32_t number, const scratch_visited *at)
{
    static uint8_t expected[BYTES];
    _Alignas(4096) static uint8_t data[SUPPORT_ENTRY_BYTES];
    fill_bytes(number, expected);
    assert_int_equal(at->bytes, BYTES);
    if (at->memory != NULL) {
        assert_memory_equal(at->memory, expected, BYTES);
        return KVT_OK;
    }
    tiers_pool *pool = scratch_pool(scratch, at->tier);
    for (uint64_t from = 0; from <= 12288; from += 12288) {
        tiers_transfer transfer = {.kind = KVT_IO_READ,
                                   .location = at->location,
                                   .buffer = data,
                                   .bytes = SUPPORT_ENTRY_BYTES - from,
                                   .offset = at->offset + from};
        tiers_transfer_start(pool, &transfer);
        kvt_status status = tiers_transfer_wait(pool, &transfer);
        if (status != KVT_OK) return status;
        assert_memory_equal(data, expected + from, BYTES - from);
    }
    return KVT_OK;
}

static kvt_status get_opaque(site *s, uint32_t number)
{
    static uint8_t data[BYTES], expected[BYTES];
    const kvt_key key = support_key(number);
    kvt_status status =
        kvt_store_get(s->store, &key, KVT_PACKED(data, BYTES), KVT_STORE_DEADLINE, NULL);
    fill_bytes(number, expected);
    if (status == KVT_OK) assert_memory_equal(data, expected, BYTES);
    return status;
}

static void check_nothing_is_held(site *s)
{
    const kvt_store_stats stats = support_stats(s->store);
    assert_int_equal(stats.in_place.entries, 0);
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++) {
        assert_int_equal(stats.in_place.bytes[tier], 0);
        assert_int_equal(stats.lent_bytes[tier], 0);
    }
    assert_int_equal(s->store->draining[KVT_TIER_SSD] + s->store->draining[KVT_TIER_DRAM], 0);
}

/* ---- what can be visited ---- */

TEST(entries_are_read_where_they_lie)
{
    site *s = visit_start(6, 2 * MIB);
    put_opaques(s, 12);
    store_scratch *scratch = scratch_of(s), *other = scratch_of(s);
    scratch_visited disk, memory, again, none;
    assert_ok(visit(scratch, 0, &disk));
    assert_int_equal(disk.tier, KVT_TIER_SSD);
    assert_true(disk.location->share_count == DISKS); /* striped over both */
    assert_null(disk.memory);
    assert_ok(visit(scratch, 11, &memory));
    assert_int_equal(memory.tier, KVT_TIER_DRAM);
    assert_non_null(memory.memory);
    assert_ok(visit(other, 0, &again));
    assert_ptr_equal(again.location, disk.location);
    assert_ok(check_bytes(scratch, 0, &disk));
    assert_ok(check_bytes(scratch, 11, &memory));
    kvt_store_stats stats = support_stats(s->store);
    assert_int_equal(stats.in_place.entries, 2);
    assert_int_equal(stats.in_place.bytes[KVT_TIER_SSD], RECORD_BYTES);
    assert_int_equal(stats.in_place.bytes[KVT_TIER_DRAM], RECORD_BYTES);
    assert_int_equal(stats.lent_bytes[KVT_TIER_SSD], 0);
    const kvt_key below = support_key(1), above = support_key(10);
    assert_int_equal(scratch_visit(s->store, &above, false, &none), KVT_E_UNSUPPORTED);
    assert_ok(scratch_visit(s->store, &below, false, &none));
    scratch_leave(s->store, &none);
    /* What is none. */
    assert_int_equal(visit(scratch, 77, &none), KVT_MISS);
    assert_ok(support_put(s->store, 200));
    assert_int_equal(visit(scratch, 200, &none), KVT_E_MISMATCH);
    scratch_leave(s->store, &disk);
    assert_null(disk.visit);
    assert_int_equal(support_stats(s->store).in_place.entries, 2);
    scratch_leave(s->store, &again);
    scratch_leave(s->store, &memory);
    scratch_leave(s->store, &memory); /* zeroed */
    check_nothing_is_held(s);
    scratch_close(scratch);
    scratch_close(other);
}

/* Of a tier of memory half may be held; an entry beyond that is visited in its copy. */
TEST(memory_is_held_in_half)
{
    site *s = visit_start(6, 2 * MIB);
    put_opaques(s, 5);
    store_scratch *scratch = scratch_of(s);
    scratch_visited visited[4], copy;
    for (uint32_t i = 0; i < 3; i++)
        assert_ok(visit(scratch, i, &visited[i]));
    assert_int_equal(visit(scratch, 3, &visited[3]), KVT_E_UNSUPPORTED);
    assert_ok(kvt_store_persist(s->store, KVT_NO_DEADLINE, NULL));
    assert_int_equal(support_stats(s->store).copies.count, 5);
    assert_ok(visit(scratch, 3, &copy));
    assert_int_equal(copy.tier, KVT_TIER_SSD);
    assert_ok(check_bytes(scratch, 3, &copy));
    /* The entry leaves memory, and its copy stays. */
    for (uint32_t i = 20; i < 30; i++)
        assert_ok(put_opaque(s, i));
    assert_ok(kvt_store_flush(s->store));
    kvt_get_info info = {.struct_size = sizeof info};
    static uint8_t data[BYTES];
    const kvt_key key = support_key(3);
    assert_ok(kvt_store_get(s->store, &key, KVT_PACKED(data, BYTES), KVT_STORE_DEADLINE, &info));
    assert_int_equal(info.tier, KVT_TIER_SSD);
    assert_ok(check_bytes(scratch, 3, &copy));
    for (uint32_t i = 0; i < 3; i++) {
        assert_ok(check_bytes(scratch, i, &visited[i]));
        scratch_leave(s->store, &visited[i]);
    }
    scratch_leave(s->store, &copy);
    check_nothing_is_held(s);
    scratch_close(scratch);
}

/* ---- pressure ---- */

TEST(a_visited_entry_stays_under_pressure)
{
    site *s = visit_start(6, MIB / 2);
    put_opaques(s, 12);
    store_scratch *scratch = scratch_of(s);
    scratch_visited disk, memory;
    assert_ok(visit(scratch, 0, &disk));
    assert_ok(visit(scratch, 11, &memory));
    assert_int_equal(memory.tier, KVT_TIER_DRAM);
    for (uint32_t i = 100; i < 200; i++)
        assert_ok(put_opaque(s, i));
    site_maintain(s, 1);
    assert_int_equal(get_opaque(s, 1), KVT_MISS); /* as old, and not visited */
    /* A borrower that takes all it can get does not have them either. */
    store_scratch *greedy;
    const scratch_wish all = {.tier = KVT_TIER_SSD, .bytes = MIB / 2, .worth_per_byte = INFINITY};
    assert_ok(scratch_open(s->store, &all, 1, &greedy, NULL));
    assert_ok(check_bytes(scratch, 0, &disk));
    assert_ok(check_bytes(scratch, 11, &memory));
    assert_ok(get_opaque(s, 0));
    assert_ok(get_opaque(s, 11));
    scratch_close(greedy);
    scratch_leave(s->store, &disk);
    scratch_leave(s->store, &memory);
    for (uint32_t i = 200; i < 300; i++)
        assert_ok(put_opaque(s, i));
    assert_int_equal(get_opaque(s, 0), KVT_MISS); /* an entry as any again */
    assert_int_equal(get_opaque(s, 11), KVT_MISS);
    check_nothing_is_held(s);
    scratch_close(scratch);
}

/* ---- entries that go ---- */

TEST(a_deleted_entry_is_read_until_the_last_one_leaves)
{
    site *s = visit_start(6, 2 * MIB);
    put_opaques(s, 12);
    const uint64_t used = support_stats(s->store).tiers[KVT_TIER_SSD].used_bytes;
    store_scratch *one = scratch_of(s), *two = scratch_of(s);
    scratch_visited a, b, fresh, memory;
    assert_ok(visit(one, 0, &a));
    assert_ok(visit(two, 0, &b));
    assert_ok(visit(one, 11, &memory));
    const kvt_key key = support_key(0), above = support_key(11);
    assert_ok(kvt_store_delete(s->store, &key));
    assert_ok(kvt_store_delete(s->store, &above));
    assert_ok(kvt_store_flush(s->store)); /* waits for no visitor */
    assert_int_equal(get_opaque(s, 0), KVT_MISS);
    kvt_store_stats stats = support_stats(s->store);
    assert_int_equal(stats.in_place.entries, 0);
    assert_int_equal(stats.lent_bytes[KVT_TIER_SSD], RECORD_BYTES);
    assert_int_equal(stats.lent_bytes[KVT_TIER_DRAM], RECORD_BYTES);
    assert_int_equal(stats.tiers[KVT_TIER_SSD].used_bytes, used);
    /* Another entry under the key is another place. */
    assert_ok(put_opaque(s, 0));
    assert_ok(visit(two, 0, &fresh));
    assert_ptr_not_equal(fresh.location, a.location);
    assert_ok(check_bytes(one, 0, &a));
    scratch_leave(s->store, &a);
    assert_int_equal(support_stats(s->store).lent_bytes[KVT_TIER_SSD], RECORD_BYTES);
    assert_ok(check_bytes(two, 0, &b));
    assert_ok(check_bytes(one, 11, &memory));
    scratch_leave(s->store, &b);
    scratch_leave(s->store, &memory);
    stats = support_stats(s->store);
    assert_int_equal(stats.lent_bytes[KVT_TIER_SSD] + stats.lent_bytes[KVT_TIER_DRAM], 0);
    assert_int_equal(stats.in_place.entries, 1);
    scratch_leave(s->store, &fresh);
    assert_ok(kvt_store_flush(s->store));
    check_nothing_is_held(s);
    check_budget(s);
    scratch_close(one);
    scratch_close(two);
}

/* Puts that lack room do not wait for a visitor, who may stay for hours. */
TEST(nobody_waits_for_a_visitor)
{
    site *s = visit_start(6, MIB / 2);
    put_opaques(s, 20);
    store_scratch *scratch = scratch_of(s);
    scratch_visited visited[4];
    uint32_t count = 0;
    for (uint32_t i = 0; i < 20 && count < 4; i++) {
        if (visit(scratch, i, &visited[count]) != KVT_OK) continue;
        const kvt_key key = support_key(i);
        if (visited[count].tier != KVT_TIER_SSD)
            scratch_leave(s->store, &visited[count]);
        else if (kvt_store_delete(s->store, &key) == KVT_OK)
            count++;
    }
    assert_int_equal(count, 4);
    assert_int_equal(support_stats(s->store).lent_bytes[KVT_TIER_SSD], 4 * RECORD_BYTES);
    for (uint32_t i = 100; i < 200; i++) /* each needs the room of another */
        assert_ok(put_opaque(s, i));
    check_budget(s);
    for (uint32_t i = 0; i < count; i++)
        scratch_leave(s->store, &visited[i]);
    assert_ok(kvt_store_flush(s->store));
    check_nothing_is_held(s);
    scratch_close(scratch);
}

/* A store that opens after the death of one with visitors has all of it. */
TEST(a_visit_leaves_nothing_durable)
{
    site *s = visit_start(6, 2 * MIB);
    put_opaques(s, 12);
    const uint64_t used = support_stats(s->store).tiers[KVT_TIER_SSD].used_bytes;
    store_scratch *scratch = scratch_of(s);
    scratch_visited kept, deleted;
    const kvt_key key = support_key(1);
    assert_ok(visit(scratch, 0, &kept));
    assert_ok(visit(scratch, 1, &deleted));
    assert_ok(kvt_store_delete(s->store, &key));
    assert_ok(kvt_store_flush(s->store));
    /* A copy of the catalog is what a crash would leave. */
    char command[1024], catalog[160];
    snprintf(catalog, sizeof catalog, "%s/crashed.db", s->folder);
    snprintf(command, sizeof command, "cp '%s' '%s' && cp '%s-wal' '%s-wal'", s->catalog, catalog,
             s->catalog, catalog);
    assert_int_equal(system(command), 0);
    scratch_leave(s->store, &kept);
    scratch_leave(s->store, &deleted);
    scratch_close(scratch);
    site_close(s);
    char *const own = s->catalog;
    s->options.durability.catalog_path = catalog;
    site_open(s);
    assert_ok(get_opaque(s, 0));
    assert_int_equal(get_opaque(s, 1), KVT_MISS);
    assert_true(support_stats(s->store).tiers[KVT_TIER_SSD].used_bytes < used);
    check_nothing_is_held(s);
    s->options.durability.catalog_path = own;
}

/* ---- devices ---- */

TEST(a_device_that_goes_takes_its_bytes_along)
{
    site *s = visit_start(6, 2 * MIB);
    put_opaques(s, 12);
    store_scratch *scratch = scratch_of(s);
    scratch_visited visited;
    assert_ok(visit(scratch, 0, &visited));
    assert_ok(kvt_device_change(s->store, "disk1", KVT_DEVICE_RETIRE));
    assert_int_equal(get_opaque(s, 0), KVT_MISS);
    assert_int_equal(check_bytes(scratch, 0, &visited), KVT_E_GONE);
    kvt_store_stats stats = support_stats(s->store);
    assert_int_equal(stats.in_place.entries, 0);
    assert_true(stats.lent_bytes[KVT_TIER_SSD] > 0); /* what is on the other disk */
    assert_true(stats.lent_bytes[KVT_TIER_SSD] < RECORD_BYTES);
    /* With the device the entry comes back, and is visited as before. */
    assert_ok(kvt_device_change(s->store, "disk1", KVT_DEVICE_REMOVE));
    assert_ok(kvt_device_add(s->store, KVT_TIER_SSD, &s->files[1], NULL, 0));
    stats = support_stats(s->store);
    assert_int_equal(stats.in_place.entries, 1);
    assert_int_equal(stats.lent_bytes[KVT_TIER_SSD], 0);
    assert_ok(check_bytes(scratch, 0, &visited));
    for (uint32_t i = 100; i < 200; i++)
        assert_ok(put_opaque(s, i));
    assert_ok(get_opaque(s, 0)); /* pinned again */
    /* It goes again, and the key is put anew: the old bytes stay until the visitor leaves. */
    assert_ok(kvt_device_change(s->store, "disk1", KVT_DEVICE_RETIRE));
    assert_ok(put_opaque(s, 0));
    assert_true(support_stats(s->store).lent_bytes[KVT_TIER_SSD] > 0);
    scratch_leave(s->store, &visited);
    assert_ok(kvt_store_flush(s->store));
    check_nothing_is_held(s);
    scratch_close(scratch);
}

/* A drain moves the entry; the disk is empty when the visitor has left. */
TEST(a_drain_waits_for_the_visitor_alone)
{
    site *s = visit_start(6, 2 * MIB);
    put_opaques(s, 12);
    store_scratch *scratch = scratch_of(s);
    scratch_visited visited, moved;
    assert_ok(visit(scratch, 0, &visited));
    assert_ok(kvt_device_change(s->store, "disk1", KVT_DEVICE_DRAIN));
    site_maintain(s, 1);
    site_maintain(s, 1);
    assert_ok(visit(scratch, 0, &moved));
    assert_ptr_not_equal(moved.location, visited.location);
    assert_ok(check_bytes(scratch, 0, &visited));
    assert_ok(check_bytes(scratch, 0, &moved));
    assert_int_equal(support_stats(s->store).lent_bytes[KVT_TIER_SSD], RECORD_BYTES);
    assert_int_equal(kvt_device_change(s->store, "disk1", KVT_DEVICE_REMOVE), KVT_BUSY);
    scratch_leave(s->store, &visited);
    site_maintain(s, 1);
    assert_ok(kvt_device_change(s->store, "disk1", KVT_DEVICE_REMOVE));
    assert_ok(check_bytes(scratch, 0, &moved));
    scratch_leave(s->store, &moved);
    check_nothing_is_held(s);
    scratch_close(scratch);
}

/* ---- threads ---- */

typedef struct visitor {
    site *s;
    uint32_t seed;
} visitor;

static void *come_and_go(void *context)
{
    visitor *self = context;
    for (uint32_t i = 0; i < 400; i++) {
        self->seed = self->seed * 1664525u + 1013904223u;
        const uint32_t number = (self->seed >> 16) % 12;
        const kvt_key key = support_key(number);
        scratch_visited visited;
        kvt_status status = scratch_visit(self->s->store, &key, true, &visited);
        assert_true(status == KVT_OK || status == KVT_MISS || status == KVT_E_UNSUPPORTED);
        if ((self->seed & 7) == 0) (void)!kvt_store_delete(self->s->store, &key);
        if ((self->seed & 0x300) == 0) (void)!put_opaque(self->s, 50 + (self->seed >> 24) % 20);
        if (status == KVT_OK) scratch_leave(self->s->store, &visited);
    }
    return NULL;
}

static void *put_again(void *context)
{
    visitor *self = context;
    for (uint32_t i = 0; i < 400; i++)
        (void)!put_opaque(self->s, i % 12);
    return NULL;
}

TEST(visitors_come_and_go_beside_puts_and_deletes)
{
    site *s = visit_start(6, MIB / 2);
    put_opaques(s, 12);
    visitor visitors[4];
    pthread_t threads[4];
    for (uint32_t i = 0; i < 4; i++) {
        visitors[i] = (visitor){.s = s, .seed = i + 1};
        assert_int_equal(
            pthread_create(&threads[i], NULL, i == 3 ? put_again : come_and_go, &visitors[i]), 0);
    }
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_ok(kvt_store_flush(s->store));
    check_nothing_is_held(s);
    check_budget(s);
}
