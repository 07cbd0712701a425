/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_devices.c - bandwidth of devices and of a stripe over two of them.
 *
 * One object is written to and read from a pool, so the figures include the pool: splitting,
 * queueing, waking. The stripe's members are memory devices behind a throttle, because a real
 * disk's own noise would hide a few percent; its limit is the sum of the caps.
 *
 * Thread rule: one bench at a time.
 */
#include "bench_devices.h"

#include "base/clock.h"
#include "bench_parts.h"

#include <errno.h>
#include <kvterrace/kvterrace.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((uint64_t)1 << 20)

enum { ITERATIONS_DEFAULT = 5, STRIPE_MEMBERS = 2, SCRATCH_PATH_BYTES = 4096 };

#define DEVICE_BYTES        (256 * MIB)
#define DEVICE_OBJECT_BYTES (64 * MIB)
#define STRIPE_OBJECT_BYTES (64 * MIB)
#define MEMCPY_BYTES        (64 * MIB)

static const uint64_t stripe_caps[STRIPE_MEMBERS] = {150000000, 300000000};

/* ---- repetitions ---- */

static int bench_memcpy(uint32_t iterations, bench_rate *rate)
{
    double samples[BENCH_ITERATIONS_MAX];
    void *source = bench_buffer(MEMCPY_BYTES);
    void *target = bench_buffer(MEMCPY_BYTES);
    if (source != NULL && target != NULL) {
        memcpy(target, source, MEMCPY_BYTES); /* warms up, as the devices' first pass does */
        for (uint32_t i = 0; i < iterations; i++) {
            uint64_t start = base_clock_ns();
            memcpy(target, source, MEMCPY_BYTES);
            /* The copy must have happened, although nobody reads it. */
            __asm__ volatile("" : : "r"(target) : "memory");
            samples[i] = bench_bytes_per_s(MEMCPY_BYTES, base_clock_ns() - start);
        }
        *rate = bench_rate_of(samples, iterations);
    }
    int code = source != NULL && target != NULL ? 0 : 1;
    free(source);
    free(target);
    return code;
}

/* ---- one pool ---- */

static kvt_status bench_repeat(tiers_pool *pool, kvt_io_kind kind, const tiers_location *location,
                               void *buffer, uint32_t iterations, bench_rate *rate)
{
    double samples[BENCH_ITERATIONS_MAX];
    double warm;
    /* The first pass pays for page faults and file blocks and is not counted. */
    kvt_status status = bench_move(pool, kind, location, buffer, &warm, NULL);
    for (uint32_t i = 0; i < iterations && status == KVT_OK; i++)
        status = bench_move(pool, kind, location, buffer, &samples[i], NULL);
    if (status == KVT_OK) *rate = bench_rate_of(samples, iterations);
    return status;
}

/* Fills the row's rates from a pool; writes only where that is allowed. */
static kvt_status bench_pool(tiers_pool *pool, bool writes, uint32_t iterations,
                             bench_device_row *row)
{
    tiers_location *location = NULL;
    void *buffer = bench_buffer(row->object_bytes);
    kvt_status status = buffer != NULL ? KVT_OK : KVT_E_MEMORY;
    if (status == KVT_OK) status = tiers_pool_reserve(pool, row->object_bytes, &location);
    if (status == KVT_OK && writes)
        status = bench_repeat(pool, KVT_IO_WRITE, location, buffer, iterations, &row->write);
    if (status == KVT_OK)
        status = bench_repeat(pool, KVT_IO_READ, location, buffer, iterations, &row->read);
    tiers_member_stats stats;
    row->members = 0;
    while (tiers_pool_member(pool, row->members, &stats) == KVT_OK) {
        row->members++;
        row->direct = (stats.facts.flags & KVT_DEVICE_DIRECT) != 0;
        row->emulated = (stats.facts.flags & KVT_DEVICE_EMULATED) != 0;
        memcpy(row->engine, stats.facts.engine, sizeof row->engine);
        if (stats.facts.depth_achieved > row->depth_achieved)
            row->depth_achieved = stats.facts.depth_achieved;
    }
    tiers_pool_release(pool, location);
    free(buffer);
    return status;
}

static int bench_complain(const char *name, kvt_status status, const char *message)
{
    fprintf(stderr, "kvterrace bench devices: %s: %s\n", name,
            message[0] != '\0' ? message : kvt_status_text(status));
    return 1;
}

/* ---- devices ---- */

static int bench_device(const kvt_device_config *config, bool overwrite, uint32_t iterations,
                        bench_device_row *row)
{
    char message[256] = "";
    kvt_device *device = NULL;
    tiers_pool *pool = NULL;
    kvt_status status = kvt_device_open(config, &device, message, sizeof message);
    if (status != KVT_OK) return bench_complain(config->name, status, message);
    bool read_only = (device->facts.flags & KVT_DEVICE_READ_ONLY) != 0;
    uint64_t half = device->facts.capacity_bytes / 2 / TIERS_GRAIN_BYTES * TIERS_GRAIN_BYTES;
    tiers_member_options member = tiers_member_options_of(config, device, 1, 1, NULL);
    tiers_pool_options options = {0};
    snprintf(row->device, sizeof row->device, "%s", config->name);
    row->object_bytes = half < DEVICE_OBJECT_BYTES ? half : DEVICE_OBJECT_BYTES;
    row->unit_bytes = TIERS_UNIT_BYTES_DEFAULT;
    if (half == 0) {
        kvt_device_close(device);
        return bench_complain(config->name, KVT_E_SPACE, "smaller than 8 KiB");
    }
    status = tiers_pool_open(&member, 1, &options, &pool, message, sizeof message);
    if (status != KVT_OK) {
        kvt_device_close(device);
        return bench_complain(config->name, status, message);
    }
    status = bench_pool(pool, overwrite && !read_only, iterations, row);
    tiers_pool_close(pool);
    return status == KVT_OK ? 0 : bench_complain(config->name, status, "");
}

static int bench_given_devices(const bench_options *options, bench_device_results *results)
{
    int code = 0;
    for (uint32_t i = 0; i < options->device_count; i++) {
        const kvt_device_config *config = &options->devices[i];
        const char *backend = config->backend != NULL ? config->backend : "";
        bool keeps = strcmp(backend, "file") == 0 || strcmp(backend, "nvme") == 0;
        bench_tell(options, i, options->device_count + 1, config->name);
        bool overwrite = !keeps || (options->overwrite != NULL && options->overwrite[i]);
        if (bench_device(config, overwrite, results->iterations,
                         &results->rows[results->row_count]))
            code = 1;
        else
            results->row_count++;
    }
    return code;
}

/* A memory device and a file, made for the occasion. */
static int bench_own_devices(const bench_options *options, bench_device_results *results)
{
    char folder[SCRATCH_PATH_BYTES];
    char path[SCRATCH_PATH_BYTES + 8];
    if (bench_scratch_make(options->scratch_folder, "bench", folder, sizeof folder) != 0)
        return bench_complain(folder, KVT_E_IO, strerror(errno));
    snprintf(path, sizeof path, "%s/device", folder);
    const kvt_device_config own[] = {
        {.struct_size = sizeof(kvt_device_config),
         .name = "memory",
         .backend = "memory",
         .capacity_bytes = DEVICE_BYTES},
        {.struct_size = sizeof(kvt_device_config),
         .name = "file",
         .backend = "file",
         .path = path,
         .capacity_bytes = DEVICE_BYTES,
         .timeout_ns = UINT64_MAX}, /* whatever else this disk has to do */
    };
    const bool overwrite[] = {true, true};
    bench_options given = *options;
    given.devices = own;
    given.overwrite = overwrite;
    given.device_count = 2;
    int code = bench_given_devices(&given, results);
    bench_scratch_remove();
    return code;
}

/* ---- stripe ---- */

static kvt_status bench_stripe_open(kvt_striping striping, tiers_pool **pool_out, char *message,
                                    size_t message_size)
{
    tiers_member_options members[STRIPE_MEMBERS] = {{0}};
    tiers_pool_options options = {.striping = striping};
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; i < STRIPE_MEMBERS && status == KVT_OK; i++) {
        kvt_device_config config = {.struct_size = sizeof config,
                                    .name = i == 0 ? "member0" : "member1",
                                    .backend = "memory",
                                    .capacity_bytes = STRIPE_OBJECT_BYTES,
                                    .read_bytes_per_s = stripe_caps[i],
                                    .write_bytes_per_s = stripe_caps[i]};
        status = kvt_device_open(&config, &members[i].device, message, message_size);
        members[i].read_bytes_per_s = (double)stripe_caps[i];
        members[i].write_bytes_per_s = (double)stripe_caps[i];
        members[i].present = true;
    }
    if (status == KVT_OK)
        status =
            tiers_pool_open(members, STRIPE_MEMBERS, &options, pool_out, message, message_size);
    for (uint32_t i = 0; i < STRIPE_MEMBERS && status != KVT_OK; i++)
        kvt_device_close(members[i].device);
    return status;
}

static int bench_stripe(kvt_striping striping, uint32_t iterations, bench_device_row *row)
{
    char message[256] = "";
    tiers_pool *pool = NULL;
    kvt_status status = bench_stripe_open(striping, &pool, message, sizeof message);
    if (status != KVT_OK) return bench_complain("stripe", status, message);
    snprintf(row->device, sizeof row->device, "stripe");
    row->layout = striping == KVT_STRIPE_EQUAL ? "equal" : "proportional";
    row->object_bytes = STRIPE_OBJECT_BYTES;
    row->unit_bytes = TIERS_UNIT_BYTES_DEFAULT;
    for (uint32_t i = 0; i < STRIPE_MEMBERS; i++)
        row->device_sum_bytes_per_s += (double)stripe_caps[i];
    status = bench_pool(pool, true, iterations, row);
    tiers_pool_close(pool);
    return status == KVT_OK ? 0 : bench_complain("stripe", status, "");
}

/* ---- the report, schema "kvterrace-bench-devices-1" ---- */

static double report_ratio(double part, double whole)
{
    return whole > 0 ? part / whole : 0;
}

static double report_smaller(double a, double b)
{
    return a < b ? a : b;
}

/* ---- JSON ---- */

static json_t *report_row(const bench_device_row *row)
{
    json_t *object =
        json_pack("{s:s, s:s, s:b, s:b, s:I, s:I, s:I, s:I}", "device", row->device, "engine",
                  row->engine, "direct", row->direct, "emulated", row->emulated, "depth_achieved",
                  (json_int_t)row->depth_achieved, "object_bytes", (json_int_t)row->object_bytes,
                  "unit_bytes", (json_int_t)row->unit_bytes, "members", (json_int_t)row->members);
    if (object == NULL) return NULL;
    int failed = bench_put_rate(object, "read_bytes_per_s", &row->read);
    failed |= bench_put_rate(object, "write_bytes_per_s", &row->write);
    if (row->layout != NULL) {
        double sum = row->device_sum_bytes_per_s;
        double read = report_ratio(row->read.median, sum);
        double write = report_ratio(row->write.median, sum);
        failed |= json_object_set_new(object, "layout", json_string(row->layout));
        failed |= json_object_set_new(object, "device_sum_bytes_per_s", json_real(sum));
        failed |= json_object_set_new(object, "read_ratio", json_real(read));
        failed |= json_object_set_new(object, "write_ratio", json_real(write));
        failed |= json_object_set_new(object, "ratio", json_real(report_smaller(read, write)));
    }
    if (failed == 0) return object;
    json_decref(object);
    return NULL;
}

static int report_json(FILE *out, const bench_device_results *results)
{
    json_t *root = bench_report_head("kvterrace-bench-devices-1", results->iterations);
    json_t *rows = json_array();
    int failed = root == NULL || rows == NULL;
    for (uint32_t i = 0; i < results->row_count && !failed; i++)
        failed = json_array_append_new(rows, report_row(&results->rows[i]));
    if (!failed) failed = bench_put_rate(root, "memcpy_bytes_per_s", &results->memcpy_rate);
    if (!failed) failed = json_object_set(root, "results", rows);
    json_decref(rows);
    if (!failed) return bench_report_print(out, root);
    json_decref(root);
    return 1;
}

/* ---- text ---- */

static int report_text(FILE *out, const bench_device_results *results)
{
    fprintf(out, "%-22s  %-18s  %22s  %22s  %6s  %5s  %5s\n", "device", "engine",
            "read MB/s (min-max)", "write MB/s (min-max)", "direct", "depth", "ratio");
    for (uint32_t i = 0; i < results->row_count; i++) {
        const bench_device_row *row = &results->rows[i];
        char name[64];
        snprintf(name, sizeof name, "%s%s%s", row->device, row->layout != NULL ? " " : "",
                 row->layout != NULL ? row->layout : "");
        fprintf(out, "%-22s  %-18s", name, row->engine);
        bench_print_cell(out, &row->read);
        bench_print_cell(out, &row->write);
        fprintf(out, "  %6s  %5u", row->direct ? "yes" : "no", row->depth_achieved);
        if (row->layout != NULL) {
            double slower = report_smaller(row->read.median, row->write.median);
            fprintf(out, "  %5.3f", report_ratio(slower, row->device_sum_bytes_per_s));
        }
        fputc('\n', out);
    }
    fprintf(out, "%-22s  %-18s", "memcpy", "one thread");
    bench_print_cell(out, &results->memcpy_rate);
    fprintf(out,
            "\n\nMedian of %u. The stripe's ratio is the slower direction over the sum of its "
            "members' caps.\n",
            results->iterations);
    return ferror(out) != 0;
}

/* Prints as options say. 0, or 1 when out cannot be written or memory is short. */
static int bench_devices_report(const bench_options *options, const bench_device_results *results)
{
    int failed =
        options->json ? report_json(options->out, results) : report_text(options->out, results);
    if (fflush(options->out) != 0) failed = 1;
    return failed;
}

/* ---- the whole ---- */

int bench_devices_run(const bench_options *options)
{
    uint32_t device_rows = options->device_count > 0 ? options->device_count : 2;
    bench_device_results results = {
        .iterations = bench_repetitions(options->iterations, ITERATIONS_DEFAULT, options->quick)};
    results.rows = calloc(device_rows + 2, sizeof *results.rows);
    if (results.rows == NULL) return bench_complain("all", KVT_E_MEMORY, "");
    int code = bench_memcpy(results.iterations, &results.memcpy_rate);
    if (code != 0) bench_complain("memcpy", KVT_E_MEMORY, "");
    int devices = options->device_count > 0 ? bench_given_devices(options, &results)
                                            : bench_own_devices(options, &results);
    if (devices != 0) code = 1;
    const kvt_striping layouts[] = {KVT_STRIPE_PROPORTIONAL, KVT_STRIPE_EQUAL};
    for (int i = 0; i < 2; i++) {
        bench_tell(options, device_rows + i / 2.0, device_rows + 1, "stripes");
        if (bench_stripe(layouts[i], results.iterations, &results.rows[results.row_count]) != 0)
            code = 1;
        else
            results.row_count++;
    }
    bench_tell(options, 1, 1, NULL);
    if (bench_devices_report(options, &results) != 0) code = 1;
    free(results.rows);
    return code;
}
