/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_stripe.c - what drives give, and what a pool of unequal drives gives of their sum.
 *
 * An object is written and read on every drive alone, and then on all of them in one pool, which
 * deals by what was just measured, by layout and size of the object; what was read is compared with
 * what was written. All transfers go through a pool, so that its work counts: splitting, queueing,
 * waking.
 *
 * Thread rule: one case at a time.
 */
#include "bench.h"
#include "bench_parts.h"

#include "lab/private.h"

#include <kvterrace/kvterrace.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((uint64_t)1 << 20)

enum { ITERATIONS_DEFAULT = 5, LAYOUTS = 3, OBJECTS = 3 };

#define ALONE_SECONDS         0.4 /* of one pass over a drive alone */
#define ALONE_BYTES_FIRST     (16 * MIB)
#define OWN_DRIVE_BYTES_QUICK (16 * MIB)
#define OWN_DRIVE_BYTES       (192 * MIB)

/* ---- transfers ---- */

typedef struct drive_rates {
    bench_rate read, write; /* bytes per second */
    bench_rate read_spread; /* of the members' completion: (last - first) / first */
    bench_rate write_spread;
} drive_rates;

/* The first pass pays for page faults and file blocks and is not counted. */
static kvt_status drive_repeat(tiers_pool *pool, kvt_io_kind kind, const tiers_location *location,
                               void *buffer, uint32_t iterations, bench_rate *rate,
                               bench_rate *spread)
{
    static double rates[BENCH_ITERATIONS_MAX], spreads[BENCH_ITERATIONS_MAX];
    kvt_status status = bench_move(pool, kind, location, buffer, &rates[0], NULL);
    for (uint32_t i = 0; i < iterations && status == KVT_OK; i++)
        status = bench_move(pool, kind, location, buffer, &rates[i], &spreads[i]);
    if (status != KVT_OK) return status;
    *rate = bench_rate_of(rates, iterations);
    *spread = bench_rate_of(spreads, iterations);
    return KVT_OK;
}

/* Writes one object and reads it. KVT_E_CORRUPT: it came back different. */
static kvt_status drive_measure(tiers_pool *pool, const void *source, void *target, uint64_t bytes,
                                uint32_t iterations, drive_rates *out)
{
    tiers_location *location = NULL;
    kvt_status status = tiers_pool_reserve(pool, bytes, &location);
    if (status != KVT_OK) return status;
    status = drive_repeat(pool, KVT_IO_WRITE, location, (void *)(uintptr_t)source, iterations,
                          &out->write, &out->write_spread);
    if (status == KVT_OK)
        status = drive_repeat(pool, KVT_IO_READ, location, target, iterations, &out->read,
                              &out->read_spread);
    if (status == KVT_OK && memcmp(source, target, bytes) != 0) status = KVT_E_CORRUPT;
    tiers_pool_release(pool, location);
    return status;
}

/* A row of a drive that is alone in its pool. */
static json_t *drive_row(tiers_pool *pool, uint64_t object_bytes, const drive_rates *rates)
{
    tiers_member_stats stats;
    if (tiers_pool_member(pool, 0, &stats) != KVT_OK) return NULL;
    json_t *row =
        json_pack("{s:s, s:s, s:b, s:b, s:I, s:I, s:I, s:i}", "device", stats.name, "engine",
                  stats.facts.engine, "direct", (stats.facts.flags & KVT_DEVICE_DIRECT) != 0,
                  "emulated", (stats.facts.flags & KVT_DEVICE_EMULATED) != 0, "depth_achieved",
                  (json_int_t)stats.facts.depth_achieved, "object_bytes", (json_int_t)object_bytes,
                  "unit_bytes", (json_int_t)TIERS_UNIT_BYTES_DEFAULT, "members", 1);
    row = bench_with_rate(row, "read_bytes_per_s", &rates->read);
    return bench_with_rate(row, "write_bytes_per_s", &rates->write);
}

/* ---- all drives as one pool ---- */

static const tiers_striping stripe_layouts[LAYOUTS] = {
    TIERS_STRIPE_PROPORTIONAL, TIERS_STRIPE_EQUAL, TIERS_STRIPE_ROUND_ROBIN};
static const char *const stripe_names[LAYOUTS] = {[TIERS_STRIPE_PROPORTIONAL] = "proportional",
                                                  [TIERS_STRIPE_EQUAL] = "equal",
                                                  [TIERS_STRIPE_ROUND_ROBIN] = "round_robin"};
/* The first has the most repetitions' worth of bytes in the shortest time. */
static const uint64_t stripe_objects[OBJECTS] = {16 * MIB, 64 * MIB, 256 * MIB};

typedef struct stripe_bench {
    const bench_options *options;
    bench_report *report;
    uint32_t iterations;
    uint64_t buffer_bytes;
    void *source, *target;
    drive_rates alone[TIERS_MEMBERS_MAX];
    double read_sum, write_sum; /* of the drives alone, bytes per second */
} stripe_bench;

/* Opens the devices [first, first + count) and a pool over them. */
static kvt_status stripe_open(stripe_bench *bench, uint32_t first, uint32_t count,
                              tiers_striping layout, tiers_pool **pool_out)
{
    tiers_member_options members[TIERS_MEMBERS_MAX] = {{0}};
    const tiers_pool_options pool_options = {.striping = layout};
    char message[256] = "";
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; i < count && status == KVT_OK; i++) {
        const drive_rates *alone = &bench->alone[first + i];
        const kvt_device_config *config = &bench->options->devices[first + i];
        kvt_device *device = NULL;
        status = kvt_device_open(config, &device, message, sizeof message);
        /* Alone the weight only has to be there. */
        members[i] =
            tiers_member_options_of(config, device, alone->read.median > 0 ? alone->read.median : 1,
                                    alone->write.median > 0 ? alone->write.median : 1, NULL);
    }
    if (status == KVT_OK)
        status = tiers_pool_open(members, count, &pool_options, pool_out, message, sizeof message);
    for (uint32_t i = 0; i < count && status != KVT_OK; i++)
        kvt_device_close(members[i].device);
    return bench_blame(bench->report, status,
                       count == 1 ? bench->options->devices[first].name : stripe_names[layout],
                       message);
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

static kvt_status stripe_alone(stripe_bench *bench, uint32_t index)
{
    tiers_pool *pool = NULL;
    tiers_pool_facts facts;
    drive_rates *rates = &bench->alone[index];
    kvt_status status = stripe_open(bench, index, 1, TIERS_STRIPE_PROPORTIONAL, &pool);
    if (status != KVT_OK) return status;
    tiers_pool_facts_get(pool, &facts);
    uint64_t room = facts.capacity_bytes / TIERS_GRAIN_BYTES * TIERS_GRAIN_BYTES;
    if (room > bench->buffer_bytes) room = bench->buffer_bytes;
    const uint64_t bytes = bench->options->quick ? (room < MIB ? room : MIB)
                                                 : stripe_alone_bytes(pool, bench->target, room);
    status = drive_measure(pool, bench->source, bench->target, bytes, bench->iterations, rates);
    if (status == KVT_OK) bench_report_row(bench->report, "drives", drive_row(pool, bytes, rates));
    bench->read_sum += rates->read.median;
    bench->write_sum += rates->write.median;
    tiers_pool_close(pool);
    return bench_blame(bench->report, status, bench->options->devices[index].name, "");
}

static json_t *stripe_row(const stripe_bench *bench, tiers_striping layout, uint64_t bytes,
                          const drive_rates *rates)
{
    const double read = bench->read_sum > 0 ? rates->read.median / bench->read_sum : 0;
    const double write = bench->write_sum > 0 ? rates->write.median / bench->write_sum : 0;
    json_t *row = json_pack(
        "{s:s, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f}", "layout", stripe_names[layout],
        "object_bytes", (json_int_t)bytes, "unit_bytes", (json_int_t)TIERS_UNIT_BYTES_DEFAULT,
        "repetitions", (json_int_t)bench->iterations, "device_sum_bytes_per_s", bench->read_sum,
        "device_write_sum_bytes_per_s", bench->write_sum, "read_ratio", read, "write_ratio", write,
        "ratio", read < write ? read : write);
    row = bench_with_rate(row, "read_bytes_per_s", &rates->read);
    row = bench_with_rate(row, "write_bytes_per_s", &rates->write);
    row = bench_with_rate(row, "spread", &rates->read_spread);
    return bench_with_rate(row, "write_spread", &rates->write_spread);
}

static kvt_status stripe_layout(stripe_bench *bench, tiers_striping layout)
{
    tiers_pool *pool = NULL;
    kvt_status status = stripe_open(bench, 0, bench->options->device_count, layout, &pool);
    if (status != KVT_OK) return status;
    for (int i = 0; i < OBJECTS && stripe_objects[i] <= bench->buffer_bytes; i++) {
        drive_rates rates = {.read = {.median = 0}};
        status = drive_measure(pool, bench->source, bench->target, stripe_objects[i],
                               bench->iterations, &rates);
        if (status != KVT_OK) break;
        bench_report_row(bench->report, "results",
                         stripe_row(bench, layout, stripe_objects[i], &rates));
    }
    tiers_pool_close(pool);
    return bench_blame(bench->report, status, stripe_names[layout], "");
}

static kvt_status stripe_run(const bench_options *options, bench_report *report)
{
    kvt_device_config own[BENCH_OWN_DRIVES];
    bench_options given = *options;
    kvt_status status = bench_take_drives(
        &given, given.quick ? OWN_DRIVE_BYTES_QUICK : OWN_DRIVE_BYTES, 0, own, report);
    if (status != KVT_OK) return status;
    const uint32_t drives = given.device_count;
    if (drives < 2 || drives > TIERS_MEMBERS_MAX)
        return bench_blame(report, KVT_E_ARGUMENT, "devices", "a stripe has 2 to 64 drives");
    stripe_bench bench = {
        .options = &given,
        .report = report,
        .iterations = bench_repetitions(given.iterations, ITERATIONS_DEFAULT, given.quick),
        .buffer_bytes = given.quick ? stripe_objects[0] : stripe_objects[OBJECTS - 1]};
    bench.source = bench_buffer(bench.buffer_bytes);
    bench.target = bench_buffer(bench.buffer_bytes);
    if (bench.source == NULL || bench.target == NULL) status = KVT_E_MEMORY;
    for (uint32_t i = 0; i < drives && status == KVT_OK; i++) {
        (void)bench_tell(options, i, drives + LAYOUTS, "drives alone");
        status = stripe_alone(&bench, i);
    }
    for (uint32_t i = 0; i < LAYOUTS && status == KVT_OK; i++) {
        (void)bench_tell(options, drives + i, drives + LAYOUTS, "pools");
        status = stripe_layout(&bench, stripe_layouts[i]);
    }
    bench_report_set(report, "repetitions", json_integer(bench.iterations));
    free(bench.source);
    free(bench.target);
    return status;
}

const bench_case bench_stripe_case = {
    .name = "stripe",
    .schema = "kvterrace-bench-stripe-1",
    .tables =
        (const document_table[]){
            {"drives", "device engine read_bytes_per_s write_bytes_per_s direct "
                       "depth_achieved"},
            {"results", "layout object_bytes read_bytes_per_s write_bytes_per_s "
                        "read_ratio write_ratio spread spread_max"},
            {0}},
    .run = stripe_run,
};
