/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tiers_trim.c - trimming of what is free: the notes alone, and a pool over a file in which
 * trimmed ranges become holes while objects come and go; and over a drive that takes its time.
 */
#include "device_scratch.h"
#include "pool_scratch.h"
#include "stand_in.h"

#include <pthread.h>
#include <sys/stat.h>
#include <time.h>

#include "tiers/pool/location.h"
#include "tiers/pool/trim.h"

enum { GRAIN = 4096, WAIT_NS = 10000000 };

static tiers_range range_of(uint64_t offset, uint64_t bytes)
{
    return (tiers_range){.offset = offset, .bytes = bytes};
}

static tiers_range take(tiers_space *space, uint64_t bytes)
{
    tiers_range range;
    assert_ok(tiers_space_acquire(space, bytes, &range));
    assert_int_equal(range.bytes, bytes);
    return range;
}

TEST(notes)
{
    tiers_trims trims = {.count = 0};
    tiers_space *space = NULL;
    tiers_space_facts facts;
    assert_ok(tiers_space_open(0, 256 * SCRATCH_MIB, &space));
    assert_false(tiers_trim_begin(&trims, space));
    assert_int_equal(tiers_trim_end(&trims, space), 0);

    /* Freed in turn and adjacent: one note; taken again since: none. */
    tiers_range a = take(space, 4 * GRAIN);
    tiers_range b = take(space, 4 * GRAIN);
    tiers_space_release(space, a);
    assert_true(tiers_trim_note(&trims, a));
    tiers_space_release(space, b);
    assert_true(tiers_trim_note(&trims, b));
    assert_int_equal(trims.count, 1);
    assert_true(tiers_trim_begin(&trims, space));
    assert_int_equal(trims.out.bytes, 8 * GRAIN);
    tiers_range c = take(space, 4 * GRAIN); /* not from what is out */
    assert_true(c.offset >= 8 * GRAIN);
    assert_int_equal(tiers_trim_end(&trims, space), 8 * GRAIN);
    tiers_space_release(space, c);
    assert_true(tiers_trim_note(&trims, c));
    tiers_range again = take(space, 256 * SCRATCH_MIB);
    assert_false(tiers_trim_begin(&trims, space));
    assert_int_equal(trims.count, 0);
    tiers_space_release(space, again);

    /* A large range goes in parts, and notes of a space that was another are harmless. */
    assert_true(tiers_trim_note(&trims, range_of(0, 150 * SCRATCH_MIB)));
    assert_true(tiers_trim_note(&trims, range_of(UINT64_C(1) << 40, GRAIN)));
    for (uint64_t left = 150; left > 0;) {
        uint64_t part = left < 64 ? left : 64;
        assert_true(tiers_trim_begin(&trims, space));
        assert_int_equal(tiers_trim_end(&trims, space), part * SCRATCH_MIB);
        left -= part;
    }
    assert_false(tiers_trim_begin(&trims, space));

    /* Bounded: more notes than room are lost, and all room can be used again. */
    for (uint64_t i = 0; i < TIERS_TRIM_NOTES + 5; i++)
        assert_int_equal(tiers_trim_note(&trims, range_of(i * 2 * GRAIN, GRAIN)),
                         i < TIERS_TRIM_NOTES);
    uint32_t count = 0;
    while (tiers_trim_begin(&trims, space)) {
        assert_int_equal(tiers_trim_end(&trims, space), GRAIN);
        count++;
    }
    assert_int_equal(count, TIERS_TRIM_NOTES);
    tiers_space_facts_get(space, &facts);
    assert_int_equal(facts.free_bytes, 256 * SCRATCH_MIB);
    tiers_space_close(space);
}

static char folder[64];
static char path[96];

static tiers_pool *open_pool(bool trim)
{
    kvt_device_config config = {.struct_size = sizeof config,
                                .name = "d0",
                                .backend = "file",
                                .path = path,
                                .capacity_bytes = 16 * SCRATCH_MIB,
                                .trim = trim};
    kvt_device *device = scratch_open(&config);
    if (trim && (device->facts.flags & KVT_DEVICE_TRIM) == 0) {
        kvt_device_close(device);
        scratch_remove(folder);
        print_message("skipped: this file system has no holes\n");
        skip();
    }
    tiers_member_options member = pool_scratch_member(device, 1e9);
    tiers_pool_options options = {.unit_bytes = 65536};
    tiers_pool *pool = NULL;
    assert_ok(tiers_pool_open(&member, 1, &options, &pool, NULL, 0));
    return pool;
}

static int64_t blocks(void)
{
    struct stat facts;
    assert_int_equal(stat(path, &facts), 0);
    return facts.st_blocks;
}

static uint64_t used_bytes(tiers_pool *pool)
{
    tiers_pool_facts facts;
    tiers_pool_facts_get(pool, &facts);
    return facts.used_bytes;
}

/* Half of the pool is written and freed. With trimming, and only then, the file loses the blocks;
 * the other half stays as it was. */
TEST(pool)
{
    scratch_make(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/data", folder);
    const uint64_t half = 8 * SCRATCH_MIB;
    unsigned char *buffer = scratch_buffer(half);
    for (int trim = 0; trim < 2; trim++) {
        tiers_location *kept = NULL;
        tiers_location *freed = NULL;
        tiers_pool *pool = open_pool(trim == 1);
        int64_t before = blocks();
        pool_scratch_fill(buffer, half, 3);
        assert_ok(tiers_pool_reserve(pool, half, &kept));
        assert_ok(tiers_pool_reserve(pool, half, &freed));
        assert_ok(tiers_pool_transfer(pool, KVT_IO_WRITE, kept, buffer, half));
        assert_ok(tiers_pool_transfer(pool, KVT_IO_WRITE, freed, buffer, half));
        tiers_pool_release(pool, freed);
        const struct timespec nap = {.tv_nsec = WAIT_NS};
        while (trim == 1 && (blocks() > before / 2 + 64 || used_bytes(pool) != half))
            nanosleep(&nap, NULL); /* the time limit ends what never comes */
        assert_int_equal(used_bytes(pool), half);
        assert_true(trim == 1 ? blocks() <= before / 2 + 64 : blocks() >= before);
        memset(buffer, 0, half);
        assert_ok(tiers_pool_transfer(pool, KVT_IO_READ, kept, buffer, half));
        assert_true(pool_scratch_holds(buffer, half, 3));
        tiers_pool_release(pool, kept);
        tiers_pool_close(pool);
    }
    scratch_remove(folder);
}

typedef struct churn {
    tiers_pool *pool;
    uint64_t seed;
    uint32_t wrong;
} churn;

static void *churn_main(void *argument)
{
    enum { OBJECTS = 300, BYTES = 256 * 1024 };
    churn *one = argument;
    uint64_t state = one->seed * 977 + 1;
    unsigned char *buffer = test_aligned(GRAIN, BYTES);
    for (uint32_t i = 0; i < OBJECTS; i++) {
        tiers_location *location = NULL;
        uint64_t bytes = (pool_scratch_random(&state) % (BYTES / GRAIN) + 1) * GRAIN;
        if (tiers_pool_reserve(one->pool, bytes, &location) != KVT_OK) continue;
        pool_scratch_fill(buffer, bytes, i + one->seed);
        bool good = tiers_pool_transfer(one->pool, KVT_IO_WRITE, location, buffer, bytes) == KVT_OK;
        memset(buffer, 0, bytes);
        good = good &&
               tiers_pool_transfer(one->pool, KVT_IO_READ, location, buffer, bytes) == KVT_OK &&
               pool_scratch_holds(buffer, bytes, i + one->seed);
        if (!good) one->wrong++;
        tiers_pool_release(one->pool, location);
    }
    return NULL;
}

/* Objects come and go under trimming, the drive is taken out and put back: none loses a byte. */
TEST(churn)
{
    enum { THREADS = 3 };
    scratch_make(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/data", folder);
    tiers_pool *pool = open_pool(true);
    pthread_t threads[THREADS];
    churn runs[THREADS];
    for (int round = 0; round < 2; round++) {
        for (uint64_t i = 0; i < THREADS; i++) {
            runs[i] = (churn){.pool = pool, .seed = i + 10 * (uint64_t)round};
            assert_int_equal(pthread_create(&threads[i], NULL, churn_main, &runs[i]), 0);
        }
        for (int i = 0; i < THREADS; i++) {
            assert_int_equal(pthread_join(threads[i], NULL), 0);
            assert_int_equal(runs[i].wrong, 0);
        }
        kvt_device *device = NULL;
        assert_ok(tiers_pool_drain(pool, 0, true));
        while (tiers_pool_eject(pool, 0, &device) == KVT_BUSY) /* until nothing is being trimmed */
            nanosleep(&(struct timespec){.tv_nsec = WAIT_NS / 100}, NULL);
        tiers_member_options back = pool_scratch_member(device, 1e9);
        assert_ok(tiers_pool_insert(pool, 0, &back));
    }
    assert_int_equal(used_bytes(pool), 0);
    tiers_pool_close(pool);
    scratch_remove(folder);
}

/* ---- a drive whose trims wait at a gate ---- */

enum { GATED_BYTES = 1 << 20, GATED_LOG = 8, GATED_OPENS_AFTER_NS = 300000000 };

typedef struct gated_drive {
    kvt_device base;
    unsigned char *memory;
    uint64_t clock_ns;
} gated_drive;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool shut;
    uint32_t begun;
    tiers_range log[GATED_LOG];
} gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static kvt_status gated_trim(kvt_device *device, uint64_t offset, uint64_t bytes)
{
    gated_drive *drive = (gated_drive *)device;
    pthread_mutex_lock(&gate.lock);
    if (gate.begun < GATED_LOG) gate.log[gate.begun] = range_of(offset, bytes);
    gate.begun++;
    pthread_cond_broadcast(&gate.changed);
    while (gate.shut)
        pthread_cond_wait(&gate.changed, &gate.lock);
    pthread_mutex_unlock(&gate.lock);
    memset(drive->memory + offset, 0xDD, bytes);
    return KVT_OK;
}

static kvt_status gated_submit(kvt_device *device, kvt_io *io)
{
    gated_drive *drive = (gated_drive *)device;
    unsigned char *place = drive->memory + io->offset;
    if (io->kind == KVT_IO_READ)
        memcpy(io->buffer, place, io->bytes);
    else
        memcpy(place, io->buffer, io->bytes);
    io->submitted_ns = ++drive->clock_ns;
    io->finished_ns = ++drive->clock_ns;
    io->status = KVT_OK;
    return KVT_OK;
}

static void gated_close(kvt_device *device)
{
    free(device);
}

static kvt_status gated_open(const kvt_device_config *config, kvt_device **device_out,
                             char *message, size_t message_size);

static const kvt_device_ops gated_ops = {.struct_size = sizeof gated_ops,
                                         .abi_version = KVT_DEVICE_ABI,
                                         .name = "gated",
                                         .open = gated_open,
                                         .close = gated_close,
                                         .submit = gated_submit,
                                         .trim = gated_trim};

static kvt_status gated_open(const kvt_device_config *config, kvt_device **device_out,
                             char *message, size_t message_size)
{
    (void)config;
    (void)message;
    (void)message_size;
    gated_drive *drive = calloc(1, sizeof *drive);
    assert_non_null(drive);
    drive->memory = scratch_buffer(GATED_BYTES);
    drive->base = (kvt_device){.ops = &gated_ops,
                               .name = "gated",
                               .facts = {.capacity_bytes = GATED_BYTES,
                                         .align_bytes = GRAIN,
                                         .request_bytes_max = 65536,
                                         .depth_max = 4,
                                         .flags = KVT_DEVICE_TRIM}};
    *device_out = &drive->base;
    return KVT_OK;
}

static tiers_pool *open_gated(bool shut)
{
    stand_in gated;
    kvt_device_config config = {.struct_size = sizeof config,
                                .name = "gated",
                                .backend = stand_in_set(&gated, &gated_ops, NULL)};
    gate.shut = shut;
    gate.begun = 0;
    tiers_member_options member = pool_scratch_member(scratch_open(&config), 1e9);
    tiers_pool_options options = {.unit_bytes = GATED_BYTES / 4};
    tiers_pool *pool = NULL;
    assert_ok(tiers_pool_open(&member, 1, &options, &pool, NULL, 0));
    return pool;
}

static void await_trims(uint32_t count)
{
    pthread_mutex_lock(&gate.lock);
    while (gate.begun < count)
        pthread_cond_wait(&gate.changed, &gate.lock);
    pthread_mutex_unlock(&gate.lock);
}

static void *open_gate(void *after_ns)
{
    nanosleep(&(struct timespec){.tv_nsec = *(long *)after_ns}, NULL);
    pthread_mutex_lock(&gate.lock);
    gate.shut = false;
    pthread_cond_broadcast(&gate.changed);
    pthread_mutex_unlock(&gate.lock);
    return NULL;
}

/* An object that fits into what is free and what is being trimmed is not refused. */
TEST(room_under_a_trim)
{
    long after_ns = GATED_OPENS_AFTER_NS;
    tiers_location *half[2] = {NULL, NULL};
    tiers_location *next = NULL;
    pthread_t opener;
    tiers_pool *pool = open_gated(true);
    for (int i = 0; i < 2; i++)
        assert_ok(tiers_pool_reserve(pool, GATED_BYTES / 2, &half[i]));
    tiers_pool_release(pool, half[1]);
    await_trims(1);
    assert_int_equal(pthread_create(&opener, NULL, open_gate, &after_ns), 0);
    assert_ok(tiers_pool_reserve(pool, GATED_BYTES / 2, &next));
    assert_int_equal(pthread_join(opener, NULL), 0);
    assert_int_equal(tiers_pool_reserve(pool, GRAIN, &half[1]), KVT_E_SPACE);
    tiers_pool_release(pool, half[0]);
    tiers_pool_release(pool, next);
    tiers_pool_close(pool);
}

/* A drive that hangs in a trim is retired: taking it out does not hang with it. */
TEST(no_eject_under_a_trim)
{
    long at_once = 0;
    tiers_location *all = NULL;
    kvt_device *device = NULL;
    tiers_pool *pool = open_gated(true);
    assert_ok(tiers_pool_reserve(pool, GATED_BYTES, &all));
    tiers_pool_release(pool, all);
    await_trims(1);
    tiers_pool_retire(pool, 0);
    assert_int_equal(tiers_pool_eject(pool, 0, &device), KVT_BUSY); /* or the time limit ends it */
    (void)open_gate(&at_once);
    while (tiers_pool_eject(pool, 0, &device) == KVT_BUSY)
        nanosleep(&(struct timespec){.tv_nsec = WAIT_NS / 100}, NULL);
    assert_non_null(device);
    kvt_device_close(device);
    assert_int_equal(used_bytes(pool), 0);
    tiers_pool_close(pool);
}

/* What a catalog may still name is never trimmed: neither the part of a location that could be
 * adopted before the rest could not, nor one that is given up again. */
TEST(adopted_extents_stay)
{
    enum { QUARTER = GATED_BYTES / 4 };
    tiers_pool *pool = open_gated(false);
    tiers_location *whole = NULL;
    tiers_location *copy = NULL;
    unsigned char flat[512];
    unsigned char *buffer = scratch_buffer(2 * QUARTER);
    assert_ok(tiers_pool_reserve(pool, 2 * QUARTER, &whole));
    pool_scratch_fill(buffer, 2 * QUARTER, 5);
    assert_ok(tiers_pool_transfer(pool, KVT_IO_WRITE, whole, buffer, 2 * QUARTER));
    assert_ok(tiers_location_room(whole, 2));
    whole->extents[1] = whole->extents[0];
    whole->extents[0].bytes = whole->extents[1].bytes = QUARTER;
    whole->extents[1].offset += QUARTER;
    whole->extent_count = 2;
    size_t bytes = tiers_location_pack(whole, flat, sizeof flat);
    assert_ok(tiers_location_unpack(flat, bytes, &copy));
    whole->extents[0].bytes = 2 * QUARTER; /* it was taken as one */
    whole->extent_count = 1;
    tiers_pool_disown(pool, whole);
    tiers_location *first = NULL;
    tiers_location *second = NULL;
    assert_ok(tiers_pool_reserve(pool, QUARTER, &first));
    assert_ok(tiers_pool_reserve(pool, QUARTER, &second));
    tiers_pool_disown(pool, first);
    assert_int_equal(tiers_pool_adopt(pool, copy), KVT_E_CORRUPT); /* its first part was free */
    /* Notes are served in turn: had that part been noted, it would be trimmed before this. */
    tiers_location *last = NULL;
    assert_ok(tiers_pool_reserve(pool, 2 * QUARTER, &last));
    tiers_pool_release(pool, last);
    await_trims(1);
    assert_int_equal(gate.log[0].offset, 2 * QUARTER);
    tiers_pool_disown(pool, second);
    assert_ok(tiers_pool_adopt(pool, copy));
    memset(buffer, 0, 2 * QUARTER);
    assert_ok(tiers_pool_transfer(pool, KVT_IO_READ, copy, buffer, 2 * QUARTER));
    assert_true(pool_scratch_holds(buffer, 2 * QUARTER, 5));
    tiers_pool_release(pool, copy);
    tiers_pool_close(pool);
}
