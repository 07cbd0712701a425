/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_stripe.c - what a pool of unequal drives delivers of their sum, by layout and object size.
 *
 * In one run: every drive alone through a pool of its own, then all of them in one pool, which
 * deals by what was just measured. Objects are written and read whole, one at a time, and what was
 * read is compared with what was written.
 *
 * Thread rule: one bench at a time.
 */
#include "bench_stripe.h"
#include "store/options.h"

#include <kvterrace/kvterrace.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((uint64_t)1 << 20)

enum {
    ITERATIONS_DEFAULT = 5,
    OWN_DRIVES = 4, /* made when there are none: memory behind a throttle */
    LAYOUTS = 3
};

#define ALONE_SECONDS         0.4 /* of one pass over a drive alone */
#define ALONE_BYTES_FIRST     (16 * MIB)
#define OWN_DRIVE_BYTES_QUICK (16 * MIB)
#define OWN_DRIVE_BYTES       (192 * MIB)

static const kvt_striping stripe_layouts[LAYOUTS] = {KVT_STRIPE_PROPORTIONAL, KVT_STRIPE_EQUAL,
                                                     KVT_STRIPE_ROUND_ROBIN};
/* The first has the most repetitions' worth of bytes in the shortest time. */
static const uint64_t stripe_objects[] = {16 * MIB, 64 * MIB, 256 * MIB};

static int stripe_complain(const char *name, kvt_status status, const char *message)
{
    fprintf(stderr, "kvterrace bench stripe: %s: %s\n", name,
            message[0] != '\0' ? message : kvt_status_text(status));
    return 1;
}

/* ---- transfers ---- */

typedef struct stripe_passes {
    double rates[BENCH_ITERATIONS_MAX];
    double spreads[BENCH_ITERATIONS_MAX];
} stripe_passes;

static kvt_status stripe_repeat(tiers_pool *pool, kvt_io_kind kind, const tiers_location *location,
                                void *buffer, uint32_t iterations, bench_rate *rate,
                                bench_rate *spread)
{
    static stripe_passes passes;
    /* The first pass is not counted: it pays for what is touched for the first time. */
    kvt_status status = bench_move(pool, kind, location, buffer, &passes.rates[0], NULL);
    for (uint32_t i = 0; i < iterations && status == KVT_OK; i++)
        status = bench_move(pool, kind, location, buffer, &passes.rates[i], &passes.spreads[i]);
    if (status != KVT_OK) return status;
    *rate = bench_rate_of(passes.rates, iterations);
    *spread = bench_rate_of(passes.spreads, iterations);
    return KVT_OK;
}

/* Writes and reads one object; KVT_E_CORRUPT when it comes back different. */
static kvt_status stripe_measure(tiers_pool *pool, void *source, void *target,
                                 bench_stripe_row *row)
{
    tiers_location *location = NULL;
    kvt_status status = tiers_pool_reserve(pool, row->object_bytes, &location);
    if (status != KVT_OK) return status;
    status = stripe_repeat(pool, KVT_IO_WRITE, location, source, row->repetitions, &row->write,
                           &row->write_spread);
    if (status == KVT_OK)
        status = stripe_repeat(pool, KVT_IO_READ, location, target, row->repetitions, &row->read,
                               &row->read_spread);
    if (status == KVT_OK && memcmp(source, target, row->object_bytes) != 0) status = KVT_E_CORRUPT;
    tiers_pool_release(pool, location);
    return status;
}

/* ---- pools ---- */

/* Opens the devices [first, first + count) and a pool over them. */
static kvt_status stripe_open(const bench_options *options, uint32_t first, uint32_t count,
                              kvt_striping layout, const bench_stripe_results *results,
                              tiers_pool **pool_out, char *message, size_t message_size)
{
    tiers_member_options members[TIERS_MEMBERS_MAX] = {{0}};
    tiers_pool_options pool_options = {.striping = layout};
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; i < count && status == KVT_OK; i++) {
        const bench_stripe_drive *drive = &results->drives[first + i];
        const kvt_device_config *config = &options->devices[first + i];
        kvt_device *device = NULL;
        status = kvt_device_open(config, &device, message, message_size);
        /* Alone the weight only has to be there. */
        members[i] =
            tiers_member_options_of(config, device, drive->read.median > 0 ? drive->read.median : 1,
                                    drive->write.median > 0 ? drive->write.median : 1, NULL);
    }
    if (status == KVT_OK)
        status = tiers_pool_open(members, count, &pool_options, pool_out, message, message_size);
    for (uint32_t i = 0; i < count && status != KVT_OK; i++)
        kvt_device_close(members[i].device);
    return status;
}

static void stripe_describe(tiers_pool *pool, uint32_t member, bench_stripe_drive *drive)
{
    tiers_member_stats stats;
    if (tiers_pool_member(pool, member, &stats) != KVT_OK) return;
    snprintf(drive->name, sizeof drive->name, "%s", stats.name);
    snprintf(drive->engine, sizeof drive->engine, "%s", stats.facts.engine);
    drive->direct = (stats.facts.flags & KVT_DEVICE_DIRECT) != 0;
    drive->emulated = (stats.facts.flags & KVT_DEVICE_EMULATED) != 0;
    drive->depth_achieved = stats.facts.depth_achieved;
}

/* How much of a drive one pass alone moves: what it reads in ALONE_SECONDS, as far as it goes. */
static uint64_t stripe_alone_bytes(tiers_pool *pool, void *buffer, uint64_t room)
{
    tiers_location *location = NULL;
    double rate = 0;
    uint64_t bytes = ALONE_BYTES_FIRST < room ? ALONE_BYTES_FIRST : room;
    if (tiers_pool_reserve(pool, bytes, &location) == KVT_OK &&
        bench_move(pool, KVT_IO_READ, location, buffer, &rate, NULL) == KVT_OK &&
        rate * ALONE_SECONDS > (double)bytes) {
        double wanted = rate * ALONE_SECONDS;
        bytes = wanted < (double)room ? (uint64_t)wanted / MIB * MIB : room;
    }
    tiers_pool_release(pool, location);
    return bytes;
}

static int stripe_alone(const bench_options *options, uint32_t index, void *source, void *target,
                        uint64_t buffer_bytes, bench_stripe_results *results)
{
    char message[256] = "";
    tiers_pool *pool = NULL;
    bench_stripe_drive *drive = &results->drives[index];
    const char *name = options->devices[index].name;
    kvt_status status = stripe_open(options, index, 1, KVT_STRIPE_PROPORTIONAL, results, &pool,
                                    message, sizeof message);
    if (status != KVT_OK) return stripe_complain(name, status, message);
    tiers_pool_facts facts;
    tiers_pool_facts_get(pool, &facts);
    uint64_t room = facts.capacity_bytes / TIERS_GRAIN_BYTES * TIERS_GRAIN_BYTES;
    if (room > buffer_bytes) room = buffer_bytes;
    bench_stripe_row row = {.repetitions = results->iterations};
    row.object_bytes =
        options->quick ? (room < MIB ? room : MIB) : stripe_alone_bytes(pool, target, room);
    status = stripe_measure(pool, source, target, &row);
    stripe_describe(pool, 0, drive);
    drive->object_bytes = row.object_bytes;
    drive->read = row.read;
    drive->write = row.write;
    results->read_sum += row.read.median;
    results->write_sum += row.write.median;
    tiers_pool_close(pool);
    return status == KVT_OK ? 0 : stripe_complain(name, status, "");
}

static int stripe_layout(const bench_options *options, kvt_striping layout, void *source,
                         void *target, uint64_t buffer_bytes, bench_stripe_results *results)
{
    char message[256] = "";
    tiers_pool *pool = NULL;
    kvt_status status = stripe_open(options, 0, options->device_count, layout, results, &pool,
                                    message, sizeof message);
    if (status != KVT_OK) return stripe_complain(kvt_striping_name(layout), status, message);
    for (size_t i = 0; i < sizeof stripe_objects / sizeof stripe_objects[0]; i++) {
        bench_stripe_row *row = &results->rows[results->row_count];
        if (stripe_objects[i] > buffer_bytes) break;
        *row = (bench_stripe_row){.layout = layout,
                                  .object_bytes = stripe_objects[i],
                                  .repetitions = results->iterations};
        status = stripe_measure(pool, source, target, row);
        if (status != KVT_OK) break;
        results->row_count++;
    }
    for (uint32_t i = 0; i < results->drive_count; i++)
        stripe_describe(pool, i, &results->drives[i]);
    tiers_pool_close(pool);
    return status == KVT_OK ? 0 : stripe_complain(kvt_striping_name(layout), status, "");
}

/* ---- the whole ---- */

static int stripe_run(const bench_options *options, bench_stripe_results *results)
{
    uint64_t buffer_bytes = options->quick ? stripe_objects[0] : stripe_objects[2];
    void *source = bench_buffer(buffer_bytes);
    void *target = bench_buffer(buffer_bytes);
    int code = 0;
    if (source == NULL || target == NULL) code = stripe_complain("all", KVT_E_MEMORY, "");
    for (uint32_t i = 0; i < results->drive_count && code == 0; i++) {
        bench_tell(options, i, results->drive_count + LAYOUTS, "drives alone");
        code = stripe_alone(options, i, source, target, buffer_bytes, results);
    }
    for (uint32_t i = 0; i < LAYOUTS && code == 0; i++) {
        bench_tell(options, results->drive_count + i, results->drive_count + LAYOUTS, "pools");
        code = stripe_layout(options, stripe_layouts[i], source, target, buffer_bytes, results);
    }
    free(source);
    free(target);
    bench_tell(options, 1, 1, NULL);
    if (code == 0) code = bench_stripe_report(options, results);
    return code;
}

/* Memory devices behind a throttle, where no drives are configured. */
static void stripe_make_own(bool quick, kvt_device_config *own)
{
    static const char *const names[OWN_DRIVES] = {"memory0", "memory1", "memory2", "memory3"};
    static const uint64_t rates[OWN_DRIVES] = {100000000, 100000000, 200000000, 400000000};
    for (int i = 0; i < OWN_DRIVES; i++)
        own[i] =
            (kvt_device_config){.struct_size = sizeof own[i],
                                .name = names[i],
                                .backend = "memory",
                                .capacity_bytes = quick ? OWN_DRIVE_BYTES_QUICK : OWN_DRIVE_BYTES,
                                .emulated = true,
                                .read_bytes_per_s = rates[i],
                                .write_bytes_per_s = rates[i]};
}

int bench_stripe_run(const bench_options *options)
{
    kvt_device_config own[OWN_DRIVES];
    bench_options given = *options;
    if (given.device_count == 0) {
        stripe_make_own(given.quick, own);
        given.devices = own;
        given.device_count = OWN_DRIVES;
        given.overwrite = NULL;
    }
    if (given.device_count < 2 || given.device_count > TIERS_MEMBERS_MAX)
        return stripe_complain("all", KVT_E_ARGUMENT, "a stripe has 2 to 64 drives");
    for (uint32_t i = 0; i < given.device_count; i++)
        if (given.overwrite != NULL && !given.overwrite[i])
            return stripe_complain(given.devices[i].name, KVT_E_MISMATCH,
                                   "may hold data; store.format = yes gives it up");
    bench_stripe_results results = {
        .iterations = bench_repetitions(given.iterations, ITERATIONS_DEFAULT, given.quick),
        .unit_bytes = TIERS_UNIT_BYTES_DEFAULT,
        .drive_count = given.device_count};
    results.drives = calloc(results.drive_count, sizeof *results.drives);
    results.rows =
        calloc(LAYOUTS * sizeof stripe_objects / sizeof stripe_objects[0], sizeof *results.rows);
    int code = results.drives != NULL && results.rows != NULL
                   ? stripe_run(&given, &results)
                   : stripe_complain("all", KVT_E_MEMORY, "");
    free(results.drives);
    free(results.rows);
    return code;
}
