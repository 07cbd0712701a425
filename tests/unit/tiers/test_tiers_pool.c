/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tiers_pool.c - reserve, shrink, transfers from many threads, files behind it.
 */

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "pool_scratch.h"

enum { UNIT = 16384, GRAIN = TIERS_GRAIN_BYTES };

/* ---- opening ---- */

TEST(open_refuses_what_cannot_work)
{
    char message[128] = "";
    tiers_pool *pool = NULL;
    tiers_pool_options options = {.capacity_bytes = 3 << 20};
    tiers_member_options member = pool_scratch_member(pool_scratch_memory(2 << 20), 1e9);
    assert_int_equal(tiers_pool_open(&member, 1, &options, &pool, message, sizeof message),
                     KVT_E_SPACE);
    assert_true(message[0] != '\0');
    options = (tiers_pool_options){.unit_bytes = 5000};
    assert_int_equal(tiers_pool_open(&member, 1, &options, &pool, NULL, 0), KVT_E_ARGUMENT);
    options = (tiers_pool_options){0};
    assert_int_equal(tiers_pool_open(&member, 0, &options, &pool, NULL, 0), KVT_E_ARGUMENT);
    member.read_bytes_per_s = 0;
    assert_int_equal(tiers_pool_open(&member, 1, &options, &pool, NULL, 0), KVT_E_ARGUMENT);
    member.read_bytes_per_s = 1e9;
    uint32_t align = member.device->facts.align_bytes;
    member.device->facts.align_bytes = 2 * GRAIN;
    assert_int_equal(tiers_pool_open(&member, 1, &options, &pool, NULL, 0), KVT_E_ARGUMENT);
    member.device->facts.align_bytes = align;
    assert_null(pool);
    assert_ok(tiers_pool_open(&member, 1, &options, &pool, NULL, 0));
    tiers_pool_close(pool);
    tiers_pool_close(NULL);
}

/* ---- space ---- */

TEST(shares_follow_bandwidth_and_room)
{
    const uint64_t sizes[] = {64 * UNIT, 256 * UNIT, 8 * UNIT};
    const double speeds[] = {1e9, 2e9, 1e9};
    tiers_pool *pool = pool_scratch_pool(sizes, speeds, 3);
    tiers_location *first;
    tiers_location *second;
    assert_ok(tiers_pool_reserve(pool, 24 * UNIT, &first));
    assert_int_equal(share_of(first, 0), 6);
    assert_int_equal(share_of(first, 1), 12);
    assert_int_equal(share_of(first, 2), 6);
    assert_int_equal(pool_scratch_used(pool), 24 * UNIT);
    /* The small member has two units left; its other units go to the others, 1:2. */
    assert_ok(tiers_pool_reserve(pool, 32 * UNIT, &second));
    assert_int_equal(share_of(second, 0), 10);
    assert_int_equal(share_of(second, 1), 20);
    assert_int_equal(share_of(second, 2), 2);
    tiers_pool_release(pool, first);
    tiers_pool_release(pool, second);
    tiers_pool_release(pool, NULL);
    assert_int_equal(pool_scratch_used(pool), 0);
    tiers_pool_close(pool);
}

TEST(equal_striping_ignores_bandwidth)
{
    tiers_member_options members[2];
    tiers_pool_options options = {.unit_bytes = UNIT, .striping = TIERS_STRIPE_EQUAL};
    tiers_pool *pool;
    tiers_location *location;
    for (int i = 0; i < 2; i++)
        members[i] = pool_scratch_member(pool_scratch_memory(64 * UNIT), i == 0 ? 1e9 : 7e9);
    assert_ok(tiers_pool_open(members, 2, &options, &pool, NULL, 0));
    assert_ok(tiers_pool_reserve(pool, 20 * UNIT, &location));
    assert_int_equal(share_of(location, 0), 10);
    assert_int_equal(share_of(location, 1), 10);
    tiers_pool_release(pool, location);
    tiers_pool_close(pool);
}

TEST(round_robin_goes_on_where_the_last_object_ended)
{
    const uint64_t sizes[] = {64 * UNIT, 64 * UNIT, 8 * UNIT};
    tiers_member_options members[3];
    tiers_pool_options options = {.unit_bytes = UNIT, .striping = TIERS_STRIPE_ROUND_ROBIN};
    tiers_pool *pool;
    tiers_location *locations[5];
    for (int i = 0; i < 3; i++)
        members[i] = pool_scratch_member(pool_scratch_memory(sizes[i]), i == 0 ? 1e9 : 7e9);
    assert_ok(tiers_pool_open(members, 3, &options, &pool, NULL, 0));
    /* Members 0 1 2 0, then 1 2, then 0, then 1: counted on over objects of one unit, too. */
    const uint64_t units[] = {4, 2, 1, 1, 30};
    const uint32_t expected[][3] = {{2, 1, 1}, {0, 1, 1}, {1, 0, 0}, {0, 1, 0}, {12, 12, 6}};
    for (int i = 0; i < 5; i++) {
        assert_ok(tiers_pool_reserve(pool, units[i] * UNIT, &locations[i]));
        for (uint32_t j = 0; j < 3; j++)
            assert_int_equal(share_of(locations[i], j), expected[i][j]);
    }
    for (int i = 0; i < 5; i++)
        tiers_pool_release(pool, locations[i]);
    tiers_pool_close(pool);
}

TEST(a_member_can_be_filled_to_the_last_grain)
{
    tiers_member_options member = pool_scratch_member(pool_scratch_memory(100 * GRAIN), 1e9);
    member.reserved_head_bytes = 8192;
    tiers_pool_options options = {.unit_bytes = UNIT};
    tiers_pool *pool;
    tiers_location *locations[2];
    tiers_location *none;
    assert_ok(tiers_pool_open(&member, 1, &options, &pool, NULL, 0));
    assert_int_equal(tiers_pool_reserve(pool, 99 * GRAIN, &none), KVT_E_SPACE);
    assert_int_equal(tiers_pool_reserve(pool, UINT64_MAX, &none), KVT_E_SPACE);
    assert_ok(tiers_pool_reserve(pool, 5 * GRAIN - 1, &locations[0]));
    assert_int_equal(locations[0]->extents[0].offset, 8192);
    assert_ok(tiers_pool_reserve(pool, 93 * GRAIN, &locations[1]));
    assert_int_equal(tiers_pool_reserve(pool, 1, &none), KVT_E_SPACE);
    tiers_pool_release(pool, locations[0]);
    tiers_pool_release(pool, locations[1]);
    assert_ok(tiers_pool_reserve(pool, 98 * GRAIN, &locations[0]));
    assert_int_equal(locations[0]->extent_count, 1);
    tiers_pool_release(pool, locations[0]);
    tiers_pool_close(pool);
}

TEST(the_budget_holds)
{
    tiers_member_options member = pool_scratch_member(pool_scratch_memory(100 * GRAIN), 1e9);
    tiers_pool_options options = {.unit_bytes = UNIT, .capacity_bytes = 10 * GRAIN};
    tiers_pool *pool;
    tiers_location *location;
    tiers_location *none;
    tiers_pool_facts facts;
    assert_ok(tiers_pool_open(&member, 1, &options, &pool, NULL, 0));
    tiers_pool_facts_get(pool, &facts);
    assert_int_equal(facts.capacity_bytes, 10 * GRAIN);
    assert_int_equal(tiers_pool_reserve(pool, 11 * GRAIN, &none), KVT_E_SPACE);
    assert_ok(tiers_pool_reserve(pool, 9 * GRAIN, &location));
    assert_int_equal(tiers_pool_reserve(pool, 2 * GRAIN, &none), KVT_E_SPACE);
    tiers_pool_release(pool, location);
    assert_ok(tiers_pool_reserve(pool, 8 * GRAIN, &location));
    assert_ok(tiers_pool_reserve(pool, 2 * GRAIN, &none));
    tiers_pool_release(pool, none);
    tiers_pool_release(pool, location);
    tiers_pool_close(pool);
    /* Without a budget it is what the member holds. */
    member.device = pool_scratch_memory(100 * GRAIN);
    options.capacity_bytes = 0;
    assert_ok(tiers_pool_open(&member, 1, &options, &pool, NULL, 0));
    tiers_pool_facts_get(pool, &facts);
    assert_int_equal(facts.capacity_bytes, 100 * GRAIN);
    tiers_pool_close(pool);
}

TEST(small_objects_fill_members_by_bandwidth)
{
    const uint64_t sizes[] = {256 * UNIT, 256 * UNIT};
    const double speeds[] = {1e9, 3e9};
    tiers_pool *pool = pool_scratch_pool(sizes, speeds, 2);
    tiers_location *locations[80];
    uint32_t on_second = 0;
    for (int i = 0; i < 80; i++) {
        assert_ok(tiers_pool_reserve(pool, UNIT, &locations[i]));
        assert_int_equal(locations[i]->share_count, 1);
        on_second += share_of(locations[i], 1);
    }
    assert_int_equal(on_second, 60);
    for (int i = 0; i < 80; i++)
        tiers_pool_release(pool, locations[i]);
    tiers_pool_close(pool);
}

TEST(random_reserve_release)
{
    enum { OBJECTS = 40, ROUNDS = 4000 };
    const uint64_t sizes[] = {500 * 1024, 1200 * 1024, 300 * 1024};
    const double speeds[] = {1e9, 2.3e9, 0.4e9};
    tiers_pool *pool = pool_scratch_pool(sizes, speeds, 3);
    tiers_location *objects[OBJECTS] = {NULL};
    uint64_t fills[OBJECTS] = {0};
    uint64_t used = 0;
    uint64_t seed = 11;
    char *buffer = pool_scratch_buffer(1 << 20);
    uint32_t refused = 0;
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t pick = pool_scratch_random(&seed) % OBJECTS;
        tiers_location **object = &objects[pick];
        if (*object == NULL) {
            uint64_t bytes = 1 + pool_scratch_random(&seed) % (round % 4 == 0 ? 900000 : 90000);
            if (tiers_pool_reserve(pool, bytes, object) != KVT_OK) {
                refused++;
                continue;
            }
            used += (*object)->bytes;
            fills[pick] = pool_scratch_random(&seed);
            pool_scratch_fill(buffer, (*object)->bytes, fills[pick]);
            assert_ok(tiers_pool_transfer(pool, KVT_IO_WRITE, *object, buffer, (*object)->bytes));
        } else {
            assert_ok(tiers_pool_transfer(pool, KVT_IO_READ, *object, buffer, (*object)->bytes));
            assert_true(pool_scratch_holds(buffer, (*object)->bytes, fills[pick]));
            used -= (*object)->bytes;
            tiers_pool_release(pool, *object);
            *object = NULL;
        }
        assert_int_equal(pool_scratch_used(pool), used);
    }
    assert_true(refused > 0 && refused < ROUNDS / 2);
    for (int i = 0; i < OBJECTS; i++)
        tiers_pool_release(pool, objects[i]);
    assert_int_equal(pool_scratch_used(pool), 0);
    tiers_pool_close(pool);
}

/* ---- transfers ---- */

typedef struct storm {
    tiers_pool *pool;
    uint64_t seed;
    uint64_t moved;
    bool sound;
} storm;

static void *storm_main(void *argument)
{
    storm *s = argument;
    const uint64_t cap = 1 << 20;
    char *buffer = pool_scratch_buffer(cap);
    s->sound = true;
    for (int round = 0; round < 60 && s->sound; round++) {
        tiers_location *location;
        uint64_t bytes = 1 + pool_scratch_random(&s->seed) % cap;
        if (tiers_pool_reserve(s->pool, bytes, &location) != KVT_OK) continue;
        uint64_t fill = pool_scratch_random(&s->seed);
        pool_scratch_fill(buffer, location->bytes, fill);
        kvt_status status =
            tiers_pool_transfer(s->pool, KVT_IO_WRITE, location, buffer, location->bytes);
        memset(buffer, 0, location->bytes);
        /* Two halves at once, from unit boundaries. */
        uint64_t half = location->bytes / 2 / UNIT * UNIT;
        tiers_transfer parts[2] = {
            {.kind = KVT_IO_READ, .location = location, .buffer = buffer, .bytes = half},
            {.kind = KVT_IO_READ,
             .location = location,
             .buffer = buffer + half,
             .bytes = location->bytes - half,
             .offset = half}};
        tiers_transfer_start(s->pool, &parts[0]);
        tiers_transfer_start(s->pool, &parts[1]);
        s->sound = status == KVT_OK && tiers_transfer_wait(s->pool, &parts[1]) == KVT_OK &&
                   tiers_transfer_wait(s->pool, &parts[0]) == KVT_OK &&
                   pool_scratch_holds(buffer, location->bytes, fill) &&
                   parts[1].finished_ns >= parts[1].started_ns &&
                   parts[1].member_finished_ns_first <= parts[1].finished_ns;
        s->moved += location->bytes;
        if (round % 16 == 0 && tiers_pool_sync(s->pool) != KVT_OK) s->sound = false;
        tiers_pool_release(s->pool, location);
    }
    return NULL;
}

TEST(four_threads_over_unequal_members)
{
    const uint64_t sizes[] = {2 << 20, 5 << 20, 1 << 20};
    const double speeds[] = {1e9, 4e9, 2e9};
    tiers_pool *pool = pool_scratch_pool(sizes, speeds, 3);
    pthread_t threads[4];
    storm storms[4];
    uint64_t moved = 0;
    for (uint32_t i = 0; i < 4; i++) {
        storms[i] = (storm){.pool = pool, .seed = 77 + i};
        assert_int_equal(pthread_create(&threads[i], NULL, storm_main, &storms[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_true(storms[i].sound);
        moved += storms[i].moved;
    }
    tiers_pool_facts facts;
    tiers_pool_facts_get(pool, &facts);
    assert_true(moved > 0);
    assert_int_equal(facts.bytes_written, moved);
    assert_int_equal(facts.bytes_read, moved);
    assert_int_equal(facts.used_bytes, 0);
    assert_false(facts.durable);
    tiers_pool_close(pool);
}

TEST(more_transfers_than_jobs)
{
    enum { TRANSFERS = 2000 };
    const uint64_t sizes[] = {1 << 20, 1 << 20};
    const double speeds[] = {1e9, 1e9};
    tiers_pool *pool = pool_scratch_pool(sizes, speeds, 2);
    tiers_location *location;
    assert_ok(tiers_pool_reserve(pool, 4 * UNIT, &location));
    char *source = pool_scratch_buffer(4 * UNIT);
    char *targets = pool_scratch_buffer((uint64_t)TRANSFERS * GRAIN);
    tiers_transfer *transfers = test_zeros(TRANSFERS * sizeof *transfers);
    pool_scratch_fill(source, 4 * UNIT, 1);
    assert_ok(tiers_pool_transfer(pool, KVT_IO_WRITE, location, source, 4 * UNIT));
    for (int i = 0; i < TRANSFERS; i++) {
        transfers[i] = (tiers_transfer){.kind = KVT_IO_READ,
                                        .location = location,
                                        .buffer = targets + (size_t)i * GRAIN,
                                        .bytes = GRAIN};
        tiers_transfer_start(pool, &transfers[i]);
    }
    for (int i = 0; i < TRANSFERS; i++) {
        assert_ok(tiers_transfer_wait(pool, &transfers[i]));
        assert_memory_equal(transfers[i].buffer, source, GRAIN);
    }
    tiers_pool_release(pool, location);
    tiers_pool_close(pool);
}

TEST(virtual_time_is_the_slowest_members)
{
    tiers_member_options members[2];
    tiers_pool_options options = {.unit_bytes = UNIT};
    tiers_pool *pool;
    tiers_location *location;
    for (int i = 0; i < 2; i++) {
        kvt_device_config config = {.struct_size = sizeof config,
                                    .name = "model",
                                    .backend = "sim",
                                    .capacity_bytes = 64 << 20,
                                    .read_bytes_per_s = i == 0 ? 100000000 : 300000000,
                                    .write_bytes_per_s = 100000000};
        kvt_device *device;
        assert_ok(kvt_device_open(&config, &device, NULL, 0));
        members[i] = pool_scratch_member(device, (double)config.read_bytes_per_s);
    }
    assert_ok(tiers_pool_open(members, 2, &options, &pool, NULL, 0));
    assert_ok(tiers_pool_reserve(pool, 1024 * UNIT, &location));
    assert_int_equal(share_of(location, 0), 256);
    char *buffer = pool_scratch_buffer(1024 * UNIT);
    tiers_transfer transfer = {
        .kind = KVT_IO_READ, .location = location, .buffer = buffer, .bytes = 1024 * UNIT};
    tiers_transfer_start(pool, &transfer);
    assert_ok(tiers_transfer_wait(pool, &transfer));
    /* 256 units of 16 KiB at 100 MB/s, on a clock that starts with the first operation. */
    uint64_t expected_ns = 256ull * UNIT * 10;
    uint64_t took_ns = transfer.finished_ns - transfer.started_ns;
    assert_true(took_ns >= expected_ns && took_ns <= expected_ns + expected_ns / 20);
    tiers_pool_release(pool, location);
    tiers_pool_close(pool);
}

/* ---- files ---- */

/* A pool over two files made in folder; create = new files. */
static tiers_pool *open_files(const char *folder, bool create)
{
    tiers_member_options members[2];
    for (int i = 0; i < 2; i++) {
        char path[64];
        snprintf(path, sizeof path, "%s/member%d", folder, i);
        kvt_device_config config = {.struct_size = sizeof config,
                                    .name = "file",
                                    .backend = "file",
                                    .path = path,
                                    .capacity_bytes = create ? 4u << 20 : 0};
        kvt_device *device = NULL;
        assert_ok(kvt_device_open(&config, &device, NULL, 0));
        members[i] = pool_scratch_member(device, i == 0 ? 1e9 : 2e9);
        members[i].reserved_head_bytes = 8192;
    }
    tiers_pool_options options = {.unit_bytes = UNIT};
    tiers_pool *pool = NULL;
    assert_ok(tiers_pool_open(members, 2, &options, &pool, NULL, 0));
    return pool;
}

TEST(objects_in_files_survive_a_restart)
{
    enum { OBJECTS = 5 };
    const uint64_t sizes[OBJECTS] = {1, 900000, 3 * UNIT, 2000000, 70000};
    uint8_t flats[OBJECTS][2048];
    size_t flat_bytes[OBJECTS];
    char folder[] = "pool-scratch-XXXXXX";
    char *buffer = pool_scratch_buffer(2 << 20);
    assert_non_null(mkdtemp(folder));
    tiers_pool *pool = open_files(folder, true);
    for (int i = 0; i < OBJECTS; i++) {
        tiers_location *location;
        assert_ok(tiers_pool_reserve(pool, sizes[i], &location));
        pool_scratch_fill(buffer, location->bytes, (uint64_t)i);
        assert_ok(tiers_pool_transfer(pool, KVT_IO_WRITE, location, buffer, location->bytes));
        flat_bytes[i] = tiers_location_pack(location, flats[i], sizeof flats[i]);
        assert_true(flat_bytes[i] <= sizeof flats[i]);
        tiers_location_free(location); /* the bytes stay where they are */
    }
    assert_ok(tiers_pool_sync(pool));
    tiers_pool_facts facts;
    tiers_pool_facts_get(pool, &facts);
    assert_true(facts.durable);
    tiers_pool_close(pool);

    pool = open_files(folder, false);
    for (int i = 0; i < OBJECTS; i++) {
        tiers_location *location;
        assert_ok(tiers_location_unpack(flats[i], flat_bytes[i], &location));
        assert_ok(tiers_pool_adopt(pool, location));
        memset(buffer, 0, location->bytes);
        assert_ok(tiers_pool_transfer(pool, KVT_IO_READ, location, buffer, location->bytes));
        assert_true(pool_scratch_holds(buffer, location->bytes, (uint64_t)i));
        tiers_pool_release(pool, location);
    }
    tiers_pool_close(pool);
    for (int i = 0; i < 2; i++) {
        char path[64];
        snprintf(path, sizeof path, "%s/member%d", folder, i);
        assert_int_equal(remove(path), 0);
    }
    assert_int_equal(remove(folder), 0);
}
