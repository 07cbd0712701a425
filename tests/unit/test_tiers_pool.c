/*
 * test_tiers_pool.c - reserve, shrink, transfers from many threads, failing members, queue order.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>

#include "pool_scratch.h"
#include "tiers/device_fault.h"

enum { UNIT = 16384, GRAIN = TIERS_GRAIN_BYTES };

static uint32_t share_of(const tiers_location *location, uint32_t member)
{
    for (uint32_t i = 0; i < location->share_count; i++)
        if (location->shares[i].member == member) return location->shares[i].units;
    return 0;
}

/* ---- opening ---- */

static void test_open_refuses_what_cannot_work(void **state)
{
    (void)state;
    char message[128] = "";
    tiers_pool *pool = NULL;
    tiers_pool_options options = {.capacity_bytes = 3 << 20};
    tiers_member_options member = scratch_member(scratch_memory(2 << 20), 1e9);
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
    assert_int_equal(tiers_pool_open(&member, 1, &options, &pool, NULL, 0), KVT_OK);
    tiers_pool_close(pool);
    tiers_pool_close(NULL);
}

/* ---- space ---- */

static void test_shares_follow_bandwidth_and_room(void **state)
{
    (void)state;
    const uint64_t sizes[] = {64 * UNIT, 256 * UNIT, 8 * UNIT};
    const double speeds[] = {1e9, 2e9, 1e9};
    tiers_pool *pool = scratch_pool(sizes, speeds, 3);
    tiers_location *first;
    tiers_location *second;
    assert_int_equal(tiers_pool_reserve(pool, 24 * UNIT, &first), KVT_OK);
    assert_int_equal(share_of(first, 0), 6);
    assert_int_equal(share_of(first, 1), 12);
    assert_int_equal(share_of(first, 2), 6);
    assert_int_equal(scratch_used(pool), 24 * UNIT);
    /* The small member has two units left; its other units go to the others, 1:2. */
    assert_int_equal(tiers_pool_reserve(pool, 32 * UNIT, &second), KVT_OK);
    assert_int_equal(share_of(second, 0), 10);
    assert_int_equal(share_of(second, 1), 20);
    assert_int_equal(share_of(second, 2), 2);
    tiers_pool_release(pool, first);
    tiers_pool_release(pool, second);
    tiers_pool_release(pool, NULL);
    assert_int_equal(scratch_used(pool), 0);
    tiers_pool_close(pool);
}

static void test_equal_striping_ignores_bandwidth(void **state)
{
    (void)state;
    tiers_member_options members[2];
    tiers_pool_options options = {.unit_bytes = UNIT, .striping = KVT_STRIPE_EQUAL};
    tiers_pool *pool;
    tiers_location *location;
    for (int i = 0; i < 2; i++)
        members[i] = scratch_member(scratch_memory(64 * UNIT), i == 0 ? 1e9 : 7e9);
    assert_int_equal(tiers_pool_open(members, 2, &options, &pool, NULL, 0), KVT_OK);
    assert_int_equal(tiers_pool_reserve(pool, 20 * UNIT, &location), KVT_OK);
    assert_int_equal(share_of(location, 0), 10);
    assert_int_equal(share_of(location, 1), 10);
    tiers_pool_release(pool, location);
    tiers_pool_close(pool);
}

static void test_a_member_can_be_filled_to_the_last_grain(void **state)
{
    (void)state;
    tiers_member_options member = scratch_member(scratch_memory(100 * GRAIN), 1e9);
    member.reserved_head_bytes = 8192;
    tiers_pool_options options = {.unit_bytes = UNIT};
    tiers_pool *pool;
    tiers_location *locations[2];
    tiers_location *none;
    assert_int_equal(tiers_pool_open(&member, 1, &options, &pool, NULL, 0), KVT_OK);
    assert_int_equal(tiers_pool_reserve(pool, 99 * GRAIN, &none), KVT_E_SPACE);
    assert_int_equal(tiers_pool_reserve(pool, UINT64_MAX, &none), KVT_E_SPACE);
    assert_int_equal(tiers_pool_reserve(pool, 5 * GRAIN - 1, &locations[0]), KVT_OK);
    assert_int_equal(locations[0]->extents[0].offset, 8192);
    assert_int_equal(tiers_pool_reserve(pool, 93 * GRAIN, &locations[1]), KVT_OK);
    assert_int_equal(tiers_pool_reserve(pool, 1, &none), KVT_E_SPACE);
    tiers_pool_release(pool, locations[0]);
    tiers_pool_release(pool, locations[1]);
    assert_int_equal(tiers_pool_reserve(pool, 98 * GRAIN, &locations[0]), KVT_OK);
    assert_int_equal(locations[0]->extent_count, 1);
    tiers_pool_release(pool, locations[0]);
    tiers_pool_close(pool);
}

static void test_small_objects_fill_members_by_bandwidth(void **state)
{
    (void)state;
    const uint64_t sizes[] = {256 * UNIT, 256 * UNIT};
    const double speeds[] = {1e9, 3e9};
    tiers_pool *pool = scratch_pool(sizes, speeds, 2);
    tiers_location *locations[80];
    uint32_t on_second = 0;
    for (int i = 0; i < 80; i++) {
        assert_int_equal(tiers_pool_reserve(pool, UNIT, &locations[i]), KVT_OK);
        assert_int_equal(locations[i]->share_count, 1);
        on_second += share_of(locations[i], 1);
    }
    assert_int_equal(on_second, 60);
    for (int i = 0; i < 80; i++)
        tiers_pool_release(pool, locations[i]);
    tiers_pool_close(pool);
}

static void test_random_reserve_shrink_release(void **state)
{
    (void)state;
    enum { OBJECTS = 40, ROUNDS = 4000 };
    const uint64_t sizes[] = {500 * 1024, 1200 * 1024, 300 * 1024};
    const double speeds[] = {1e9, 2.3e9, 0.4e9};
    tiers_pool *pool = scratch_pool(sizes, speeds, 3);
    tiers_location *objects[OBJECTS] = {NULL};
    uint64_t fills[OBJECTS] = {0};
    uint64_t used = 0;
    uint64_t seed = 11;
    char *buffer = scratch_buffer(1 << 20);
    uint32_t refused = 0;
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t pick = scratch_random(&seed) % OBJECTS;
        tiers_location **object = &objects[pick];
        if (*object == NULL) {
            uint64_t bytes = 1 + scratch_random(&seed) % (round % 4 == 0 ? 900000 : 90000);
            if (tiers_pool_reserve(pool, bytes, object) != KVT_OK) {
                refused++;
                continue;
            }
            used += (*object)->bytes;
            if (round % 2 == 0) {
                uint64_t less = 1 + scratch_random(&seed) % (*object)->bytes;
                used -= (*object)->bytes;
                assert_int_equal(tiers_pool_shrink(pool, object, less), KVT_OK);
                assert_int_equal((*object)->bytes, (less + GRAIN - 1) / GRAIN * GRAIN);
                used += (*object)->bytes;
            }
            fills[pick] = scratch_random(&seed);
            scratch_fill(buffer, (*object)->bytes, fills[pick]);
            assert_int_equal(
                tiers_pool_transfer(pool, KVT_IO_WRITE, *object, buffer, (*object)->bytes), KVT_OK);
        } else {
            assert_int_equal(
                tiers_pool_transfer(pool, KVT_IO_READ, *object, buffer, (*object)->bytes), KVT_OK);
            assert_true(scratch_holds(buffer, (*object)->bytes, fills[pick]));
            used -= (*object)->bytes;
            tiers_pool_release(pool, *object);
            *object = NULL;
        }
        assert_int_equal(scratch_used(pool), used);
    }
    assert_true(refused > 0 && refused < ROUNDS / 2);
    for (int i = 0; i < OBJECTS; i++)
        tiers_pool_release(pool, objects[i]);
    assert_int_equal(scratch_used(pool), 0);
    free(buffer);
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
    char *buffer = scratch_buffer(cap);
    s->sound = true;
    for (int round = 0; round < 60 && s->sound; round++) {
        tiers_location *location;
        uint64_t bytes = 1 + scratch_random(&s->seed) % cap;
        if (tiers_pool_reserve(s->pool, bytes, &location) != KVT_OK) continue;
        uint64_t fill = scratch_random(&s->seed);
        scratch_fill(buffer, location->bytes, fill);
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
                   scratch_holds(buffer, location->bytes, fill) &&
                   parts[1].finished_ns >= parts[1].started_ns &&
                   parts[1].member_finished_ns_first <= parts[1].finished_ns;
        s->moved += location->bytes;
        if (round % 16 == 0 && tiers_pool_sync(s->pool) != KVT_OK) s->sound = false;
        tiers_pool_release(s->pool, location);
    }
    free(buffer);
    return NULL;
}

static void test_four_threads_over_unequal_members(void **state)
{
    (void)state;
    const uint64_t sizes[] = {2 << 20, 5 << 20, 1 << 20};
    const double speeds[] = {1e9, 4e9, 2e9};
    tiers_pool *pool = scratch_pool(sizes, speeds, 3);
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

static void test_more_transfers_than_jobs(void **state)
{
    (void)state;
    enum { TRANSFERS = 2000 };
    const uint64_t sizes[] = {1 << 20, 1 << 20};
    const double speeds[] = {1e9, 1e9};
    tiers_pool *pool = scratch_pool(sizes, speeds, 2);
    tiers_location *location;
    assert_int_equal(tiers_pool_reserve(pool, 4 * UNIT, &location), KVT_OK);
    char *source = scratch_buffer(4 * UNIT);
    char *targets = scratch_buffer((uint64_t)TRANSFERS * GRAIN);
    tiers_transfer *transfers = calloc(TRANSFERS, sizeof *transfers);
    scratch_fill(source, 4 * UNIT, 1);
    assert_int_equal(tiers_pool_transfer(pool, KVT_IO_WRITE, location, source, 4 * UNIT), KVT_OK);
    for (int i = 0; i < TRANSFERS; i++) {
        transfers[i] = (tiers_transfer){.kind = KVT_IO_READ,
                                        .location = location,
                                        .buffer = targets + (size_t)i * GRAIN,
                                        .bytes = GRAIN};
        tiers_transfer_start(pool, &transfers[i]);
    }
    for (int i = 0; i < TRANSFERS; i++) {
        assert_int_equal(tiers_transfer_wait(pool, &transfers[i]), KVT_OK);
        assert_memory_equal(transfers[i].buffer, source, GRAIN);
    }
    tiers_pool_release(pool, location);
    tiers_pool_close(pool);
    free(transfers);
    free(targets);
    free(source);
}

static void test_virtual_time_is_the_slowest_members(void **state)
{
    (void)state;
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
        assert_int_equal(kvt_device_open(&config, &device, NULL, 0), KVT_OK);
        members[i] = scratch_member(device, (double)config.read_bytes_per_s);
    }
    assert_int_equal(tiers_pool_open(members, 2, &options, &pool, NULL, 0), KVT_OK);
    assert_int_equal(tiers_pool_reserve(pool, 1024 * UNIT, &location), KVT_OK);
    assert_int_equal(share_of(location, 0), 256);
    char *buffer = scratch_buffer(1024 * UNIT);
    tiers_transfer transfer = {
        .kind = KVT_IO_READ, .location = location, .buffer = buffer, .bytes = 1024 * UNIT};
    tiers_transfer_start(pool, &transfer);
    assert_int_equal(tiers_transfer_wait(pool, &transfer), KVT_OK);
    /* 256 units of 16 KiB at 100 MB/s, on a clock that starts with the first operation. */
    uint64_t expected_ns = 256ull * UNIT * 10;
    uint64_t took_ns = transfer.finished_ns - transfer.started_ns;
    assert_true(took_ns >= expected_ns && took_ns <= expected_ns + expected_ns / 20);
    tiers_pool_release(pool, location);
    tiers_pool_close(pool);
    free(buffer);
}

/* ---- members that fail ---- */

typedef struct faulty {
    tiers_pool *pool;
    kvt_device *device; /* the second member */
    tiers_location *both;
    tiers_location *first_only;
    char *buffer;
} faulty;

static void faulty_open(faulty *f)
{
    const uint64_t bytes = 64 * UNIT;
    tiers_member_options members[2];
    tiers_pool_options options = {.unit_bytes = UNIT};
    assert_int_equal(tiers_fault_open(scratch_memory(bytes), &f->device), KVT_OK);
    members[0] = scratch_member(scratch_memory(bytes), 2e9);
    members[1] = scratch_member(f->device, 1e9);
    assert_int_equal(tiers_pool_open(members, 2, &options, &f->pool, NULL, 0), KVT_OK);
    assert_int_equal(tiers_pool_reserve(f->pool, GRAIN, &f->first_only), KVT_OK);
    assert_int_equal(share_of(f->first_only, 0), 1);
    assert_int_equal(tiers_pool_reserve(f->pool, 30 * UNIT, &f->both), KVT_OK);
    assert_int_equal(share_of(f->both, 1), 10);
    f->buffer = scratch_buffer(30 * UNIT);
    scratch_fill(f->buffer, 30 * UNIT, 3);
}

static void faulty_close(faulty *f)
{
    tiers_pool_release(f->pool, f->both);
    tiers_pool_release(f->pool, f->first_only);
    tiers_pool_close(f->pool);
    free(f->buffer);
}

static kvt_status faulty_move(faulty *f, kvt_io_kind kind, const tiers_location *location)
{
    return tiers_pool_transfer(f->pool, kind, location, f->buffer, location->bytes);
}

static bool faulty_retired(faulty *f)
{
    kvt_device_stats stats;
    assert_int_equal(tiers_pool_member(f->pool, 1, &stats), KVT_OK);
    return stats.retired;
}

static void test_an_io_error_fails_its_transfer_alone(void **state)
{
    (void)state;
    const kvt_status statuses[] = {KVT_E_IO, KVT_E_SPACE, KVT_E_READ_ONLY};
    faulty f;
    faulty_open(&f);
    for (int i = 0; i < 3; i++) {
        tiers_fault_rule rule = {.action = TIERS_FAULT_FAIL,
                                 .kinds = TIERS_FAULT_WRITES,
                                 .skip = 3,
                                 .hits = 1,
                                 .status = statuses[i],
                                 .os_error = EIO};
        assert_int_equal(tiers_fault_add(f.device, &rule), KVT_OK);
        assert_int_equal(faulty_move(&f, KVT_IO_WRITE, f.both), statuses[i]);
        tiers_fault_clear(f.device);
        assert_int_equal(faulty_move(&f, KVT_IO_WRITE, f.both), KVT_OK);
    }
    assert_false(faulty_retired(&f));
    memset(f.buffer, 0, 30 * UNIT);
    assert_int_equal(faulty_move(&f, KVT_IO_READ, f.both), KVT_OK);
    assert_true(scratch_holds(f.buffer, 30 * UNIT, 3));
    faulty_close(&f);
}

static void test_a_member_that_goes_is_retired_and_others_serve(void **state)
{
    (void)state;
    faulty f;
    tiers_location *later;
    faulty_open(&f);
    assert_int_equal(faulty_move(&f, KVT_IO_WRITE, f.both), KVT_OK);
    tiers_fault_set_gone(f.device, true);
    assert_int_equal(faulty_move(&f, KVT_IO_READ, f.both), KVT_E_GONE);
    assert_true(faulty_retired(&f));
    tiers_fault_set_gone(f.device, false); /* retired for good, whatever the device says */
    assert_int_equal(faulty_move(&f, KVT_IO_READ, f.both), KVT_E_GONE);
    assert_int_equal(faulty_move(&f, KVT_IO_WRITE, f.first_only), KVT_OK);
    assert_int_equal(faulty_move(&f, KVT_IO_READ, f.first_only), KVT_OK);
    assert_int_equal(tiers_pool_sync(f.pool), KVT_OK);
    assert_int_equal(tiers_pool_reserve(f.pool, 12 * UNIT, &later), KVT_OK);
    assert_int_equal(share_of(later, 0), 12);
    tiers_pool_release(f.pool, later);
    tiers_pool_facts facts;
    tiers_pool_facts_get(f.pool, &facts);
    assert_int_equal(facts.capacity_bytes, 64 * UNIT);
    faulty_close(&f);
}

static void test_retire_by_hand(void **state)
{
    (void)state;
    faulty f;
    faulty_open(&f);
    tiers_pool_retire(f.pool, 1);
    assert_int_equal(faulty_move(&f, KVT_IO_READ, f.both), KVT_E_GONE);
    assert_int_equal(faulty_move(&f, KVT_IO_READ, f.first_only), KVT_OK);
    faulty_close(&f);
}

static void test_a_busy_device_is_asked_again(void **state)
{
    (void)state;
    faulty f;
    faulty_open(&f);
    tiers_fault_rule rule = {.action = TIERS_FAULT_BUSY,
                             .kinds = TIERS_FAULT_READS | TIERS_FAULT_WRITES,
                             .skip = 1,
                             .hits = 5};
    assert_int_equal(tiers_fault_add(f.device, &rule), KVT_OK);
    assert_int_equal(faulty_move(&f, KVT_IO_WRITE, f.both), KVT_OK);
    tiers_fault_counts counts;
    tiers_fault_counts_get(f.device, &counts);
    assert_int_equal(counts.hits, 5);
    memset(f.buffer, 0, 30 * UNIT);
    assert_int_equal(faulty_move(&f, KVT_IO_READ, f.both), KVT_OK);
    assert_true(scratch_holds(f.buffer, 30 * UNIT, 3));
    faulty_close(&f);
}

static void test_sync_reports_and_reaches_each_member(void **state)
{
    (void)state;
    faulty f;
    tiers_fault_counts counts;
    faulty_open(&f);
    assert_int_equal(tiers_pool_sync(f.pool), KVT_OK);
    tiers_fault_counts_get(f.device, &counts);
    assert_int_equal(counts.syncs, 1);
    tiers_fault_rule rule = {.action = TIERS_FAULT_FAIL,
                             .kinds = TIERS_FAULT_SYNCS,
                             .hits = 1,
                             .status = KVT_E_IO,
                             .os_error = EIO};
    assert_int_equal(tiers_fault_add(f.device, &rule), KVT_OK);
    assert_int_equal(tiers_pool_sync(f.pool), KVT_E_IO);
    assert_int_equal(tiers_pool_sync(f.pool), KVT_OK);
    faulty_close(&f);
}

/* ---- queue order ---- */

/* A device whose first operation waits for a gate and that writes down the order of kinds. */
typedef struct gate_device {
    kvt_device base;
    sem_t arrived;
    sem_t open;
    uint32_t count;
    kvt_io_kind kinds[512];
} gate_device;

static void gate_close(kvt_device *device)
{
    (void)device; /* the test looks into it afterwards */
}

static kvt_status gate_submit(kvt_device *device, kvt_io *io)
{
    gate_device *gate = (gate_device *)device;
    if (gate->count == 0) {
        sem_post(&gate->arrived);
        while (sem_wait(&gate->open) != 0)
            continue;
    }
    gate->kinds[gate->count++] = io->kind;
    io->status = KVT_OK;
    return KVT_OK;
}

static const kvt_device_ops gate_ops = {.struct_size = sizeof(kvt_device_ops),
                                        .abi_version = KVT_DEVICE_ABI,
                                        .name = "gate",
                                        .close = gate_close,
                                        .submit = gate_submit};

static void test_reads_go_first_but_do_not_starve_writes(void **state)
{
    (void)state;
    enum { PIECES = 64 };
    gate_device *gate = calloc(1, sizeof *gate);
    gate->base = (kvt_device){.ops = &gate_ops,
                              .facts = {.capacity_bytes = 16 << 20,
                                        .align_bytes = 512,
                                        .request_bytes_max = GRAIN,
                                        .depth_max = 1}};
    sem_init(&gate->arrived, 0, 0);
    sem_init(&gate->open, 0, 0);
    tiers_member_options member = scratch_member(&gate->base, 1e9);
    tiers_pool_options options = {.unit_bytes = UNIT};
    tiers_pool *pool;
    tiers_location *location;
    assert_int_equal(tiers_pool_open(&member, 1, &options, &pool, NULL, 0), KVT_OK);
    assert_int_equal(tiers_pool_reserve(pool, PIECES * GRAIN, &location), KVT_OK);
    char *buffer = scratch_buffer(2 * PIECES * GRAIN);
    tiers_transfer write = {
        .kind = KVT_IO_WRITE, .location = location, .buffer = buffer, .bytes = PIECES * GRAIN};
    tiers_transfer read = write;
    read.kind = KVT_IO_READ;
    read.buffer = buffer + PIECES * GRAIN;
    tiers_transfer_start(pool, &write);
    while (sem_wait(&gate->arrived) != 0)
        continue;
    tiers_transfer_start(pool, &read);
    sem_post(&gate->open);
    assert_int_equal(tiers_transfer_wait(pool, &read), KVT_OK);
    assert_int_equal(tiers_transfer_wait(pool, &write), KVT_OK);
    tiers_pool_release(pool, location);
    tiers_pool_close(pool);
    assert_int_equal(gate->count, 2 * PIECES);
    /* One write that was first, then 15 reads and a write in turn until the reads are done. */
    for (uint32_t i = 1; i <= 64; i++)
        assert_int_equal(gate->kinds[i], i % 16 == 0 ? KVT_IO_WRITE : KVT_IO_READ);
    sem_destroy(&gate->arrived);
    sem_destroy(&gate->open);
    free(buffer);
    free(gate);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open_refuses_what_cannot_work),
        cmocka_unit_test(test_shares_follow_bandwidth_and_room),
        cmocka_unit_test(test_equal_striping_ignores_bandwidth),
        cmocka_unit_test(test_a_member_can_be_filled_to_the_last_grain),
        cmocka_unit_test(test_small_objects_fill_members_by_bandwidth),
        cmocka_unit_test(test_random_reserve_shrink_release),
        cmocka_unit_test(test_four_threads_over_unequal_members),
        cmocka_unit_test(test_more_transfers_than_jobs),
        cmocka_unit_test(test_virtual_time_is_the_slowest_members),
        cmocka_unit_test(test_an_io_error_fails_its_transfer_alone),
        cmocka_unit_test(test_a_member_that_goes_is_retired_and_others_serve),
        cmocka_unit_test(test_retire_by_hand),
        cmocka_unit_test(test_a_busy_device_is_asked_again),
        cmocka_unit_test(test_sync_reports_and_reaches_each_member),
        cmocka_unit_test(test_reads_go_first_but_do_not_starve_writes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
