/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_stripe.c - what a pool of unequal drives delivers of their sum, by layout and object size.
 *
 * In one run: every drive alone through a pool of its own, then all of them in one pool, which
 * deals by what was just measured. Objects are written and read whole, one at a time, and what was
 * read is compared with what was written.
 *
 * The report is a table, or JSON of the schema "kvterrace-bench-stripe-1".
 *
 * Thread rule: one bench at a time.
 */
#include "bench.h"
#include "bench_parts.h"
#include "store/options.h"

#include <kvterrace/kvterrace.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((uint64_t)1 << 20)

enum { ITERATIONS_DEFAULT = 5, LAYOUTS = 3 };

#define ALONE_SECONDS         0.4 /* of one pass over a drive alone */
#define ALONE_BYTES_FIRST     (16 * MIB)
#define OWN_DRIVE_BYTES_QUICK (16 * MIB)
#define OWN_DRIVE_BYTES       (192 * MIB)

static const kvt_striping stripe_layouts[LAYOUTS] = {KVT_STRIPE_PROPORTIONAL, KVT_STRIPE_EQUAL,
                                                     KVT_STRIPE_ROUND_ROBIN};
/* The first has the most repetitions' worth of bytes in the shortest time. */
static const uint64_t stripe_objects[] = {16 * MIB, 64 * MIB, 256 * MIB};

/* One drive alone. */
typedef struct bench_stripe_drive {
    char name[32];
    char engine[32];
    bool direct;
    bool emulated;
    uint32_t depth_achieved;
    uint64_t object_bytes;
    bench_rate read; /* bytes per second */
    bench_rate write;
} bench_stripe_drive;

/* All drives at once. */
typedef struct bench_stripe_row {
    kvt_striping layout;
    uint64_t object_bytes;
    uint32_t repetitions;
    bench_rate read; /* bytes per second */
    bench_rate write;
    bench_rate read_spread; /* of the members' completion: (last - first) / first */
    bench_rate write_spread;
} bench_stripe_row;

typedef struct bench_stripe_results {
    uint32_t iterations;
    uint32_t unit_bytes;
    double read_sum; /* of the drives alone, bytes per second */
    double write_sum;
    uint32_t drive_count;
    bench_stripe_drive *drives;
    uint32_t row_count;
    bench_stripe_row *rows;
} bench_stripe_results;

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

static double report_share(double part, double whole)
{
    return whole > 0 ? part / whole : 0;
}

/* ---- the report as JSON ---- */

static json_t *report_drive(const bench_stripe_drive *drive)
{
    json_t *object = json_pack("{s:s, s:s, s:b, s:b, s:I, s:I}", "device", drive->name, "engine",
                               drive->engine, "direct", drive->direct, "emulated", drive->emulated,
                               "depth_achieved", (json_int_t)drive->depth_achieved, "object_bytes",
                               (json_int_t)drive->object_bytes);
    int failed = object == NULL || bench_put_rate(object, "read_bytes_per_s", &drive->read) != 0 ||
                 bench_put_rate(object, "write_bytes_per_s", &drive->write) != 0;
    if (!failed) return object;
    json_decref(object);
    return NULL;
}

static json_t *report_row(const bench_stripe_results *results, const bench_stripe_row *row)
{
    double read = report_share(row->read.median, results->read_sum);
    double write = report_share(row->write.median, results->write_sum);
    json_t *object =
        json_pack("{s:s, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f}", "layout",
                  kvt_striping_name(row->layout), "object_bytes", (json_int_t)row->object_bytes,
                  "unit_bytes", (json_int_t)results->unit_bytes, "repetitions",
                  (json_int_t)row->repetitions, "device_sum_bytes_per_s", results->read_sum,
                  "device_write_sum_bytes_per_s", results->write_sum, "read_ratio", read,
                  "write_ratio", write, "ratio", read < write ? read : write);
    int failed = object == NULL || bench_put_rate(object, "read_bytes_per_s", &row->read) != 0 ||
                 bench_put_rate(object, "write_bytes_per_s", &row->write) != 0 ||
                 bench_put_rate(object, "spread", &row->read_spread) != 0 ||
                 bench_put_rate(object, "write_spread", &row->write_spread) != 0;
    if (!failed) return object;
    json_decref(object);
    return NULL;
}

static int report_json(FILE *out, const bench_stripe_results *results)
{
    json_t *root = bench_report_head("kvterrace-bench-stripe-1", results->iterations);
    json_t *drives = json_array();
    json_t *rows = json_array();
    int failed = root == NULL || drives == NULL || rows == NULL;
    for (uint32_t i = 0; i < results->drive_count && !failed; i++)
        failed = json_array_append_new(drives, report_drive(&results->drives[i]));
    for (uint32_t i = 0; i < results->row_count && !failed; i++)
        failed = json_array_append_new(rows, report_row(results, &results->rows[i]));
    if (!failed) failed = json_object_set(root, "drives", drives);
    if (!failed) failed = json_object_set(root, "results", rows);
    json_decref(drives);
    json_decref(rows);
    if (!failed) return bench_report_print(out, root);
    json_decref(root);
    return 1;
}

/* ---- the report as text ---- */

static int report_text(FILE *out, const bench_stripe_results *results)
{
    fprintf(out, "%-12s  %-18s  %22s  %22s  %6s  %5s\n", "drive alone", "engine",
            "read MB/s (min-max)", "write MB/s (min-max)", "direct", "depth");
    for (uint32_t i = 0; i < results->drive_count; i++) {
        const bench_stripe_drive *drive = &results->drives[i];
        fprintf(out, "%-12s  %-18s", drive->name, drive->engine);
        bench_print_cell(out, &drive->read);
        bench_print_cell(out, &drive->write);
        fprintf(out, "  %6s  %5u\n", drive->direct ? "yes" : "no", drive->depth_achieved);
    }
    fprintf(out, "%-12s  %-18s  %22.0f  %22.0f\n\n", "sum", "", results->read_sum / 1e6,
            results->write_sum / 1e6);
    fprintf(out, "%-12s  %6s  %22s  %22s  %6s  %6s  %6s  %6s\n", "layout", "MiB",
            "read MB/s (min-max)", "write MB/s (min-max)", "read", "write", "spread", "most");
    for (uint32_t i = 0; i < results->row_count; i++) {
        const bench_stripe_row *row = &results->rows[i];
        fprintf(out, "%-12s  %6llu", kvt_striping_name(row->layout),
                (unsigned long long)(row->object_bytes >> 20));
        bench_print_cell(out, &row->read);
        bench_print_cell(out, &row->write);
        fprintf(out, "  %6.3f  %6.3f  %6.4f  %6.4f\n",
                report_share(row->read.median, results->read_sum),
                report_share(row->write.median, results->write_sum), row->read_spread.median,
                row->read_spread.max);
    }
    fprintf(out,
            "\nMedian of %u. read and write are shares of the drives' sum alone. spread: how much "
            "later\nthe last drive was done than the first, of the first one's time (reads).\n",
            results->iterations);
    return ferror(out) != 0;
}

static int stripe_report(const bench_options *options, const bench_stripe_results *results)
{
    int failed =
        options->json ? report_json(options->out, results) : report_text(options->out, results);
    if (fflush(options->out) != 0) failed = 1;
    return failed;
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
    if (code == 0) code = stripe_report(options, results);
    return code;
}

int bench_stripe_run(const bench_options *options)
{
    kvt_device_config own[BENCH_OWN_DRIVES];
    bench_options given = *options;
    bench_give_drives(&given, given.quick ? OWN_DRIVE_BYTES_QUICK : OWN_DRIVE_BYTES, 0, own);
    if (given.device_count < 2 || given.device_count > TIERS_MEMBERS_MAX)
        return stripe_complain("all", KVT_E_ARGUMENT, "a stripe has 2 to 64 drives");
    const kvt_device_config *kept = bench_kept_drive(&given);
    if (kept != NULL)
        return stripe_complain(kept->name, KVT_E_MISMATCH,
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
