/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tiers_replica.c - second copies: where their units go, what they may cost, and which copy a
 * read takes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "pool_scratch.h"

enum { UNIT = 16384, MEMBERS = 4, SEED = 3, SEED_REPLICA = 1000003 };

static const double speeds[MEMBERS] = {100e6, 100e6, 200e6, 400e6};

static tiers_pool *open_pool(const char *backend, kvt_striping striping, double share)
{
    tiers_member_options members[MEMBERS];
    tiers_pool_options options = {.unit_bytes = UNIT, .striping = striping, .replica_share = share};
    tiers_pool *pool = NULL;
    for (int i = 0; i < MEMBERS; i++) {
        kvt_device_config config = {.struct_size = sizeof config,
                                    .name = "member",
                                    .backend = backend,
                                    .capacity_bytes = 256 * UNIT,
                                    .read_bytes_per_s = (uint64_t)speeds[i],
                                    .write_bytes_per_s = (uint64_t)speeds[i]};
        kvt_device *device;
        assert_int_equal(kvt_device_open(&config, &device, NULL, 0), KVT_OK);
        members[i] = pool_scratch_member(device, speeds[i]);
    }
    assert_int_equal(tiers_pool_open(members, MEMBERS, &options, &pool, NULL, 0), KVT_OK);
    return pool;
}

static uint64_t replica_bytes(tiers_pool *pool)
{
    tiers_pool_facts facts;
    tiers_pool_facts_get(pool, &facts);
    return facts.replica_bytes;
}

static bool routed_to_replica(const tiers_transfer *transfer, uint64_t unit)
{
    return (transfer->routes[unit / 64] >> unit % 64 & 1) != 0;
}

/* ---- where they go, and what they may cost ---- */

static void test_no_unit_lies_where_the_first_copy_has_it(void **state)
{
    (void)state;
    const uint64_t sizes[] = {1, 2 * UNIT, 7 * UNIT + 4096, 64 * UNIT, 101 * UNIT - 4096};
    tiers_pool *pool = open_pool("memory", KVT_STRIPE_PROPORTIONAL, 1.0);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        tiers_location *first;
        tiers_location *replica;
        assert_int_equal(tiers_pool_reserve(pool, sizes[i], &first), KVT_OK);
        assert_int_equal(tiers_pool_reserve_replica(pool, first, &replica), KVT_OK);
        assert_int_equal(replica_bytes(pool), first->bytes);
        assert_int_equal(pool_scratch_used(pool), 2 * first->bytes);
        uint64_t held = 0;
        for (uint32_t j = 0; j < replica->extent_count; j++)
            held += replica->extents[j].bytes;
        assert_int_equal(held, first->bytes);
        for (uint32_t member = 0; member < MEMBERS; member++)
            assert_true(tiers_location_survives(first, replica, UINT64_C(1) << member));
        assert_false(tiers_location_survives(first, replica, 15));
        assert_false(tiers_location_survives(first, NULL, 15));
        tiers_pool_release(pool, replica);
        assert_int_equal(replica_bytes(pool), 0);
        tiers_pool_release(pool, first);
        assert_int_equal(pool_scratch_used(pool), 0);
    }
    tiers_pool_close(pool);
}

static void test_the_second_deal_follows_the_weights_too(void **state)
{
    (void)state;
    const uint32_t expected[MEMBERS] = {8, 8, 16, 32};
    tiers_pool *pool = open_pool("memory", KVT_STRIPE_PROPORTIONAL, 1.0);
    tiers_location *first;
    tiers_location *replica;
    assert_int_equal(tiers_pool_reserve(pool, 64 * UNIT, &first), KVT_OK);
    assert_int_equal(tiers_pool_reserve_replica(pool, first, &replica), KVT_OK);
    assert_int_equal(replica->share_count, MEMBERS);
    for (uint32_t i = 0; i < MEMBERS; i++) {
        assert_in_range(replica->shares[i].units, expected[i] - 1, expected[i] + 1);
    }
    tiers_pool_release(pool, replica);
    tiers_pool_release(pool, first);
    tiers_pool_close(pool);
}

static void test_replicas_stay_within_their_share_of_the_capacity(void **state)
{
    (void)state;
    tiers_pool *pool = open_pool("memory", KVT_STRIPE_PROPORTIONAL, 0.0625); /* 64 units */
    tiers_location *first;
    tiers_location *replicas[2];
    tiers_location *none;
    tiers_pool_facts facts;
    assert_int_equal(tiers_pool_reserve(pool, 32 * UNIT, &first), KVT_OK);
    for (int i = 0; i < 2; i++)
        assert_int_equal(tiers_pool_reserve_replica(pool, first, &replicas[i]), KVT_OK);
    tiers_pool_facts_get(pool, &facts);
    assert_int_equal(facts.replica_bytes_max, 64 * UNIT);
    assert_int_equal(facts.replica_bytes, 64 * UNIT);
    assert_int_equal(tiers_pool_reserve_replica(pool, first, &none), KVT_E_SPACE);
    tiers_pool_release(pool, replicas[0]);
    assert_int_equal(tiers_pool_reserve_replica(pool, first, &replicas[0]), KVT_OK);
    for (int i = 0; i < 2; i++)
        tiers_pool_release(pool, replicas[i]);
    tiers_pool_release(pool, first);
    tiers_pool_close(pool);
    /* None by default. */
    pool = open_pool("memory", KVT_STRIPE_PROPORTIONAL, 0);
    assert_int_equal(tiers_pool_reserve(pool, UNIT, &first), KVT_OK);
    assert_int_equal(tiers_pool_reserve_replica(pool, first, &none), KVT_E_SPACE);
    tiers_pool_release(pool, first);
    tiers_pool_close(pool);
}

static void test_an_object_gets_the_shares_that_it_would_have_without_replicas(void **state)
{
    (void)state;
    tiers_pool *pool = open_pool("memory", KVT_STRIPE_PROPORTIONAL, 1.0);
    tiers_location *first;
    tiers_location *replicas[3];
    tiers_location *object;
    assert_int_equal(tiers_pool_reserve(pool, 128 * UNIT, &first), KVT_OK);
    for (int i = 0; i < 3; i++)
        assert_int_equal(tiers_pool_reserve_replica(pool, first, &replicas[i]), KVT_OK);
    /* The fastest member has 256 - 4 * 64 units left: not the half of an object, but others have.
     */
    assert_int_equal(tiers_pool_reserve(pool, 64 * UNIT, &object), KVT_E_SPACE);
    tiers_pool_release(pool, replicas[0]);
    assert_int_equal(tiers_pool_reserve(pool, 64 * UNIT, &object), KVT_OK);
    assert_int_equal(object->shares[3].units, 32);
    tiers_pool_release(pool, object);
    tiers_pool_release(pool, replicas[1]);
    tiers_pool_release(pool, replicas[2]);
    tiers_pool_release(pool, first);
    tiers_pool_close(pool);
}

static void test_one_member_and_too_many_units_have_no_replica(void **state)
{
    (void)state;
    tiers_member_options member = pool_scratch_member(pool_scratch_memory(64 * UNIT), 1e9);
    tiers_pool_options options = {.unit_bytes = UNIT, .replica_share = 1.0};
    tiers_pool *pool;
    tiers_location *first;
    tiers_location *none;
    assert_int_equal(tiers_pool_open(&member, 1, &options, &pool, NULL, 0), KVT_OK);
    assert_int_equal(tiers_pool_reserve(pool, 4 * UNIT, &first), KVT_OK);
    assert_int_equal(tiers_pool_reserve_replica(pool, first, &none), KVT_E_SPACE);
    assert_int_equal(pool_scratch_used(pool), 4 * UNIT);
    tiers_pool_release(pool, first);
    tiers_pool_close(pool);
    const uint64_t sizes[] = {64 << 20, 64 << 20};
    const double even[] = {1e9, 1e9};
    tiers_member_options members[2];
    for (int i = 0; i < 2; i++)
        members[i] = pool_scratch_member(pool_scratch_memory(sizes[i]), even[i]);
    options.unit_bytes = 4096;
    assert_int_equal(tiers_pool_open(members, 2, &options, &pool, NULL, 0), KVT_OK);
    assert_int_equal(tiers_pool_reserve(pool, (TIERS_REPLICA_UNITS_MAX + 1) * 4096, &first),
                     KVT_OK);
    assert_int_equal(tiers_pool_reserve_replica(pool, first, &none), KVT_E_SPACE);
    assert_int_equal(tiers_pool_shrink(pool, &first, TIERS_REPLICA_UNITS_MAX * 4096), KVT_OK);
    assert_int_equal(tiers_pool_reserve_replica(pool, first, &none), KVT_OK);
    tiers_pool_release(pool, none);
    tiers_pool_release(pool, first);
    tiers_pool_close(pool);
}

/* ---- which copy is read ---- */

/* An object of 64 units whose copies hold different bytes, so that it shows where a unit came from.
 */
typedef struct two_copies {
    tiers_pool *pool;
    tiers_location *first;
    tiers_location *replica;
    char *buffer;
    uint64_t bytes;
} two_copies;

static void two_copies_write(two_copies *t, const tiers_location *location, uint64_t seed)
{
    pool_scratch_fill(t->buffer, t->bytes, seed);
    assert_int_equal(tiers_pool_transfer(t->pool, KVT_IO_WRITE, location, t->buffer, t->bytes),
                     KVT_OK);
}

static void two_copies_open(two_copies *t, tiers_pool *pool, uint64_t bytes)
{
    *t = (two_copies){.pool = pool, .bytes = bytes};
    t->buffer = pool_scratch_buffer(bytes);
    assert_int_equal(tiers_pool_reserve(pool, bytes, &t->first), KVT_OK);
    assert_int_equal(tiers_pool_reserve_replica(pool, t->first, &t->replica), KVT_OK);
    two_copies_write(t, t->first, SEED);
    two_copies_write(t, t->replica, SEED_REPLICA);
}

static void two_copies_close(two_copies *t)
{
    tiers_pool_release(t->pool, t->replica);
    tiers_pool_release(t->pool, t->first);
    tiers_pool_close(t->pool);
    free(t->buffer);
}

/* Every byte that was read is of the copy that the route names. Returns the units from the replica.
 */
static uint32_t two_copies_check(const two_copies *t, const tiers_transfer *transfer)
{
    uint32_t second = 0;
    for (uint64_t at = 0; at < transfer->bytes; at += UNIT) {
        uint64_t left = transfer->bytes - at;
        bool replica = routed_to_replica(transfer, (transfer->offset + at) / UNIT);
        uint64_t seed = (replica ? SEED_REPLICA : SEED) + (transfer->offset + at) / 8;
        assert_true(pool_scratch_holds(t->buffer + at, left < UNIT ? left : UNIT, seed));
        second += replica;
    }
    return second;
}

static kvt_status two_copies_read(two_copies *t, tiers_transfer *transfer)
{
    transfer->kind = KVT_IO_READ;
    transfer->location = t->first;
    transfer->replica = t->replica;
    transfer->buffer = t->buffer;
    memset(t->buffer, 0, t->bytes);
    tiers_transfer_start(t->pool, transfer);
    return tiers_transfer_wait(t->pool, transfer);
}

static void test_an_idle_pool_reads_the_first_copy_but_for_what_is_avoided(void **state)
{
    (void)state;
    two_copies t;
    two_copies_open(&t, open_pool("memory", KVT_STRIPE_PROPORTIONAL, 1.0), 64 * UNIT);
    tiers_transfer transfer = {.bytes = t.bytes};
    assert_int_equal(two_copies_read(&t, &transfer), KVT_OK);
    assert_int_equal(two_copies_check(&t, &transfer), 0);
    for (uint32_t avoided = 0; avoided < MEMBERS; avoided++) {
        transfer.avoid = UINT64_C(1) << avoided;
        assert_int_equal(two_copies_read(&t, &transfer), KVT_OK);
        assert_true(two_copies_check(&t, &transfer) >= t.first->shares[avoided].units);
    }
    transfer.avoid = 15; /* there is nothing else */
    assert_int_equal(two_copies_read(&t, &transfer), KVT_OK);
    (void)two_copies_check(&t, &transfer);
    two_copies_close(&t);
}

static void test_parts_of_an_object_come_from_where_the_route_says(void **state)
{
    (void)state;
    two_copies t;
    uint64_t random = 5;
    uint32_t second = 0;
    two_copies_open(&t, open_pool("memory", KVT_STRIPE_EQUAL, 1.0), 97 * UNIT - 8192);
    for (int i = 0; i < 300; i++) {
        uint64_t offset = pool_scratch_random(&random) % 96 * UNIT;
        uint64_t grains = (t.bytes - offset) / TIERS_GRAIN_BYTES;
        tiers_transfer transfer = {.offset = offset,
                                   .bytes = (1 + pool_scratch_random(&random) % grains) *
                                            TIERS_GRAIN_BYTES};
        assert_int_equal(two_copies_read(&t, &transfer), KVT_OK);
        second += two_copies_check(&t, &transfer);
        transfer.avoid = pool_scratch_random(&random) % 16;
        assert_int_equal(two_copies_read(&t, &transfer), KVT_OK);
        second += two_copies_check(&t, &transfer);
    }
    assert_true(second > 0);
    two_copies_close(&t);
}

static void test_an_object_outlives_any_one_member(void **state)
{
    (void)state;
    for (uint32_t gone = 0; gone < MEMBERS; gone++) {
        two_copies t;
        two_copies_open(&t, open_pool("memory", KVT_STRIPE_PROPORTIONAL, 1.0), 61 * UNIT - 4096);
        tiers_pool_retire(t.pool, gone);
        tiers_transfer transfer = {.bytes = t.bytes};
        assert_int_equal(two_copies_read(&t, &transfer), KVT_OK);
        assert_true(two_copies_check(&t, &transfer) >= t.first->shares[gone].units);
        for (uint32_t i = 0; i < MEMBERS; i++)
            tiers_pool_retire(t.pool, i);
        assert_int_equal(two_copies_read(&t, &transfer), KVT_E_GONE);
        two_copies_close(&t);
    }
}

/* Virtual seconds of one read on drives that were idle so far, each on its own clock. */
static double read_seconds(bool with_replica)
{
    tiers_pool *pool = open_pool("sim", KVT_STRIPE_EQUAL, 1.0);
    char *buffer = pool_scratch_buffer(128 * UNIT);
    tiers_location *first;
    tiers_location *replica;
    assert_int_equal(tiers_pool_reserve(pool, 128 * UNIT, &first), KVT_OK);
    assert_int_equal(tiers_pool_reserve_replica(pool, first, &replica), KVT_OK);
    tiers_transfer transfer = {.kind = KVT_IO_READ,
                               .location = first,
                               .replica = with_replica ? replica : NULL,
                               .buffer = buffer,
                               .bytes = 128 * UNIT};
    tiers_transfer_start(pool, &transfer);
    assert_int_equal(tiers_transfer_wait(pool, &transfer), KVT_OK);
    tiers_pool_release(pool, replica);
    tiers_pool_release(pool, first);
    tiers_pool_close(pool);
    free(buffer);
    return (double)(transfer.finished_ns - transfer.started_ns) * 1e-9;
}

/* Members that slowed down since the object was written: equal shares stand for the old layout. */
static void test_a_read_gets_around_slow_members(void **state)
{
    (void)state;
    double ideal = 128.0 * UNIT / 800e6;
    assert_true(ideal / read_seconds(false) < 0.51);
    assert_true(ideal / read_seconds(true) > 0.97);
}

/* ---- queues ---- */

/* A drive that answers nothing until its gate is opened. */
typedef struct gated {
    kvt_device base;
    kvt_io *ios[64];
    uint32_t count;
    atomic_bool *open;
} gated;

static void gated_close(kvt_device *device)
{
    (void)device; /* the test's */
}

static kvt_status gated_submit(kvt_device *device, kvt_io *io)
{
    gated *g = (gated *)device;
    if (g->count == 64) return KVT_BUSY;
    io->submitted_ns = 1;
    g->ios[g->count++] = io;
    return KVT_QUEUED;
}

static size_t gated_reap(kvt_device *device, kvt_io **done, size_t min, size_t max,
                         uint64_t timeout_ns)
{
    gated *g = (gated *)device;
    size_t count = 0;
    (void)min, (void)timeout_ns;
    while (count < max && g->count > 0 && atomic_load(g->open)) {
        kvt_io *io = g->ios[--g->count];
        io->status = KVT_OK;
        io->finished_ns = 2;
        done[count++] = io;
    }
    return count;
}

static const kvt_device_ops gated_ops = {.struct_size = sizeof(kvt_device_ops),
                                         .abi_version = KVT_DEVICE_ABI,
                                         .name = "gated",
                                         .close = gated_close,
                                         .submit = gated_submit,
                                         .reap = gated_reap};

/* Eight reads of one small object, while none is answered, spread over both members that have it;
 * a slower one gets fewer. */
static void test_reads_of_a_small_object_go_to_the_shorter_queue(void **state)
{
    (void)state;
    enum { READS = 9 };
    char *buffer = pool_scratch_buffer(UNIT);
    atomic_bool open = false;
    gated drives[2];
    tiers_member_options members[2];
    tiers_pool_options options = {.unit_bytes = UNIT, .replica_share = 1.0};
    tiers_pool *pool;
    tiers_location *first;
    tiers_location *replica;
    for (int i = 0; i < 2; i++) {
        drives[i] = (gated){.base = {.ops = &gated_ops,
                                     .facts = {.capacity_bytes = 64 * UNIT,
                                               .align_bytes = 512,
                                               .request_bytes_max = 1 << 20,
                                               .depth_max = 64}},
                            .open = &open};
        members[i] = pool_scratch_member(&drives[i].base, i == 0 ? 1e9 : 2e9);
    }
    assert_int_equal(tiers_pool_open(members, 2, &options, &pool, NULL, 0), KVT_OK);
    assert_int_equal(tiers_pool_reserve(pool, UNIT, &first), KVT_OK);
    assert_int_equal(tiers_pool_reserve_replica(pool, first, &replica), KVT_OK);
    tiers_transfer reads[READS];
    uint32_t counts[2] = {0, 0};
    for (int i = 0; i < READS; i++) {
        reads[i] = (tiers_transfer){.kind = KVT_IO_READ,
                                    .location = first,
                                    .replica = replica,
                                    .buffer = buffer,
                                    .bytes = UNIT};
        tiers_transfer_start(pool, &reads[i]);
        const tiers_location *copy = routed_to_replica(&reads[i], 0) ? replica : first;
        counts[copy->shares[0].member]++;
    }
    atomic_store(&open, true);
    for (int i = 0; i < READS; i++)
        assert_int_equal(tiers_transfer_wait(pool, &reads[i]), KVT_OK);
    assert_int_equal(counts[0], 3);
    assert_int_equal(counts[1], 6);
    tiers_pool_release(pool, replica);
    tiers_pool_release(pool, first);
    tiers_pool_close(pool);
    free(buffer);
}

/* ---- many readers ---- */

enum { READERS = 4, ROUNDS = 200 };

static void *read_often(void *argument)
{
    two_copies t = *(two_copies *)argument;
    t.buffer = pool_scratch_buffer(t.bytes);
    for (int i = 0; i < ROUNDS; i++) {
        tiers_transfer transfer = {.bytes = t.bytes, .avoid = (uint64_t)(i % 16)};
        if (two_copies_read(&t, &transfer) != KVT_OK) abort();
        (void)two_copies_check(&t, &transfer);
    }
    free(t.buffer);
    return NULL;
}

static void test_many_read_both_copies_at_once(void **state)
{
    (void)state;
    two_copies t;
    pthread_t threads[READERS];
    two_copies_open(&t, open_pool("memory", KVT_STRIPE_PROPORTIONAL, 1.0), 40 * UNIT);
    for (int i = 0; i < READERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, read_often, &t), 0);
    for (int i = 0; i < READERS; i++)
        pthread_join(threads[i], NULL);
    two_copies_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_unit_lies_where_the_first_copy_has_it),
        cmocka_unit_test(test_the_second_deal_follows_the_weights_too),
        cmocka_unit_test(test_replicas_stay_within_their_share_of_the_capacity),
        cmocka_unit_test(test_an_object_gets_the_shares_that_it_would_have_without_replicas),
        cmocka_unit_test(test_one_member_and_too_many_units_have_no_replica),
        cmocka_unit_test(test_an_idle_pool_reads_the_first_copy_but_for_what_is_avoided),
        cmocka_unit_test(test_parts_of_an_object_come_from_where_the_route_says),
        cmocka_unit_test(test_an_object_outlives_any_one_member),
        cmocka_unit_test(test_a_read_gets_around_slow_members),
        cmocka_unit_test(test_reads_of_a_small_object_go_to_the_shorter_queue),
        cmocka_unit_test(test_many_read_both_copies_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
