/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_measure.c - measures a device: direction x request size x depth, then reads and writes at
 * once, then reads by their begin (device_starts.c), and stores each point. An interrupted run is
 * gone on with (device_batch.c).
 *
 * Thread rule: the calling thread owns profile and device for the duration.
 */
#include "estimator/measure/device_batch.h"
#include "estimator/profile/profile_internal.h"
#include "measure.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MEASURE_PREWRITE_BYTES   (UINT64_C(1) << 30)
#define MEASURE_PREWRITE_QUICK   (UINT64_C(1) << 28)
#define MEASURE_PREWRITE_SECONDS 10.0
#define MEASURE_PREWRITE_QUICK_S 1.0
#define MEASURE_BUFFER_ALIGN_MIN 4096u

/* Whether an interrupted run that is gone on with has this point. */
static bool measure_has_point(const measure_run *run, uint8_t kind, uint32_t bytes, uint32_t depth)
{
    for (size_t i = 0; i < run->point_count; i++) {
        const kvt_device_point *point = &run->points[i];
        if (point->kind == kind && point->request_bytes == bytes && point->depth == depth) {
            return true;
        }
    }
    return false;
}

static kvt_status measure_point(measure_run *run, uint8_t kind, uint32_t bytes, uint32_t depth)
{
    kvt_device_point *point = &run->points[run->point_count];
    if (measure_has_point(run, kind, bytes, depth)) return KVT_OK;
    *point = (kvt_device_point){.kind = kind,
                                .request_bytes = bytes,
                                .depth = depth,
                                .repetitions = run->settings.repetitions};
    snprintf(run->what, sizeof run->what, "%s %s %u KiB depth %u", run->device->name,
             kind == KVT_IO_WRITE ? "write" : "read", bytes / 1024u, depth);
    measure_report(run, 0.0, true);
    for (uint32_t i = 0; i < run->settings.repetitions; i++) {
        measure_batch batch = {.kind = (kvt_io_kind)kind, .bytes = bytes, .depth = depth};
        if (run->cancelled) return KVT_E_CANCELLED;
        kvt_status status = measure_repetition(run, &batch, i);
        if (status != KVT_OK) return status;
    }
    measure_summarize(run, 0, point);
    run->point_count++;
    kvt_affine fit;
    bool fitted = profile_fit_points(run->points, run->point_count, kind, &fit);
    return profile_point_insert(run->profile, run->device_row, point,
                                run->device->facts.depth_achieved, fitted ? &fit : NULL);
}

/* The bandwidth of a point of this run. */
static double measure_rate(const measure_run *run, uint8_t kind, uint32_t bytes, uint32_t depth)
{
    for (size_t i = 0; i < run->point_count; i++) {
        const kvt_device_point *point = &run->points[i];
        if (point->kind == kind && point->request_bytes == bytes && point->depth == depth) {
            return point->bytes_per_s;
        }
    }
    return 0.0;
}

/* Shares of reads: of the largest size all, one read to one write first; of other sizes that. */
static const double measure_shares[] = {0.5, 0.75, 0.25};

#define MEASURE_SHARES (sizeof measure_shares / sizeof measure_shares[0])

static size_t measure_share_count(const measure_grid *grid, uint32_t index)
{
    return grid->mixed_sizes[index] == grid->sizes[0] ? MEASURE_SHARES : 1;
}

/* Reads and writes at once, of one size at the largest depth. */
static kvt_status measure_mixed(measure_run *run, uint32_t bytes, double share)
{
    const uint32_t depth = run->grid.depths[run->grid.depth_count - 1];
    const double read = measure_rate(run, KVT_IO_READ, bytes, depth);
    const double write = measure_rate(run, KVT_IO_WRITE, bytes, depth);
    kvt_device_point total = {.request_bytes = bytes, .depth = depth};
    if (read <= 0.0 || write <= 0.0) return KVT_OK;
    snprintf(run->what, sizeof run->what, "%s mixed %.2f %u KiB depth %u", run->device->name, share,
             bytes / 1024u, depth);
    measure_report(run, 0.0, true);
    for (uint32_t i = 0; i < run->settings.repetitions; i++) {
        measure_batch batch = {.read_share = share, .bytes = bytes, .depth = depth};
        if (run->cancelled) return KVT_E_CANCELLED;
        kvt_status status = measure_repetition(run, &batch, i);
        if (status != KVT_OK) return status;
    }
    measure_summarize(run, 0, &total);
    run->others_done++;
    const kvt_device_mixed mixed = {
        .request_bytes = bytes,
        .depth = depth,
        .repetitions = run->settings.repetitions,
        .read_share = share,
        .bytes_per_s = total.bytes_per_s,
        .unmixed_bytes_per_s = 1.0 / (share / read + (1.0 - share) / write),
        .read_latency_seconds_p50 = total.latency_seconds_p50,
        .read_latency_seconds_p99 = total.latency_seconds_p99,
    };
    return profile_mixed_insert(run->profile, run->device_row, &mixed);
}

/* Writes the range once from its start, so that reads meet written blocks and writes overwrite
 * (a fresh file's blocks cost more to write and less to read). A slow device gets as far as time
 * allows; the measured range shrinks to that. */
static kvt_status measure_prewrite(measure_run *run)
{
    uint64_t limit = run->settings.quick ? MEASURE_PREWRITE_QUICK : MEASURE_PREWRITE_BYTES;
    uint32_t depth = run->grid.depths[run->grid.depth_count - 1];
    uint32_t bytes = run->grid.sizes[0];
    if (run->range_bytes > limit) run->range_bytes = limit;
    if (run->device->facts.flags & KVT_DEVICE_NO_DATA) return KVT_OK;
    measure_batch batch = {.kind = KVT_IO_WRITE,
                           .bytes = bytes,
                           .depth = depth,
                           .requests_max = run->range_bytes / bytes,
                           .sequential = true,
                           .seconds = run->settings.quick ? MEASURE_PREWRITE_QUICK_S
                                                          : MEASURE_PREWRITE_SECONDS};
    snprintf(run->what, sizeof run->what, "%s write once", run->device->name);
    measure_report(run, 0.0, true);
    measure_batch_run(run, &batch);
    if (batch.status != KVT_OK) return batch.status;
    if (run->cancelled) return KVT_E_CANCELLED;
    run->range_bytes = batch.submitted * bytes;
    return KVT_OK;
}

/* Sizes that the device and the range allow, largest first; depths up to the device's. */
static kvt_status measure_grid_make(const kvt_device_facts *facts, uint64_t range_bytes, bool quick,
                                    measure_grid *grid)
{
    static const uint32_t sizes[] = {1u << 20, 1u << 18, 1u << 16, 1u << 14, 1u << 12};
    static const uint32_t depths[] = {1, 4, 16, 32};
    static const uint32_t quick_depths[] = {1, 8};
    uint64_t largest = facts->request_bytes_max;
    if (largest > range_bytes) largest = range_bytes;
    largest = largest / facts->align_bytes * facts->align_bytes;
    memset(grid, 0, sizeof *grid);
    if (largest == 0) return KVT_E_SPACE;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        if (sizes[i] > largest || sizes[i] % facts->align_bytes != 0) continue;
        bool keep = !quick || grid->size_count < 2 || sizes[i] == 1u << 14;
        if (keep) grid->sizes[grid->size_count++] = sizes[i];
    }
    /* A device of odd or large grains: what it takes at most, within the grid's largest. */
    if (grid->size_count == 0) {
        if (largest > sizes[0]) largest = facts->align_bytes;
        grid->sizes[grid->size_count++] = (uint32_t)largest;
    }
    const uint32_t *wanted = quick ? quick_depths : depths;
    size_t wanted_count =
        quick ? sizeof quick_depths / sizeof depths[0] : sizeof depths / sizeof depths[0];
    for (size_t i = 0; i < wanted_count; i++) {
        uint32_t depth = wanted[i] < facts->depth_max ? wanted[i] : facts->depth_max;
        bool repeated = grid->depth_count > 0 && grid->depths[grid->depth_count - 1] == depth;
        if (!repeated) grid->depths[grid->depth_count++] = depth;
    }
    /* The largest, and the one in the middle: what a store moves, and what a small entry is. */
    grid->mixed_sizes[grid->mixed_count++] = grid->sizes[0];
    if (grid->size_count > 1) {
        grid->mixed_sizes[grid->mixed_count++] = grid->sizes[grid->size_count / 2];
    }
    return KVT_OK;
}

/* Buffers hold random bytes: a device that compresses gains nothing, and every page is touched. */
static kvt_status measure_allocate(measure_run *run)
{
    uint32_t depth = run->grid.depths[run->grid.depth_count - 1];
    size_t align = run->device->facts.align_bytes;
    if (align < MEASURE_BUFFER_ALIGN_MIN) align = MEASURE_BUFFER_ALIGN_MIN;
    size_t stride = (run->grid.sizes[0] + align - 1) / align * align;
    size_t values = MEASURE_REQUESTS_MAX;
    run->ios = calloc(depth, sizeof *run->ios);
    run->done = calloc(depth, sizeof(kvt_io *));
    run->latencies = calloc(values, sizeof *run->latencies);
    run->repetitions =
        calloc((size_t)run->settings.repetitions * MEASURE_TURNS * 3u, sizeof *run->repetitions);
    run->buffers = aligned_alloc(align, stride * depth);
    if (!run->ios || !run->done || !run->latencies || !run->repetitions || !run->buffers) {
        return KVT_E_MEMORY;
    }
    for (size_t i = 0; i + 8 <= stride * depth; i += 8) {
        uint64_t word = profile_random(&run->random);
        memcpy(run->buffers + i, &word, sizeof word);
    }
    for (uint32_t i = 0; i < depth; i++)
        run->ios[i].buffer = run->buffers + (size_t)i * stride;
    return KVT_OK;
}

static kvt_status measure_directions(measure_run *run, kvt_tier tier, bool writes)
{
    kvt_status status = KVT_OK;
    const measure_grid *grid = &run->grid;
    run->points_planned += (writes ? 2u : 1u) * (size_t)grid->size_count * grid->depth_count;
    for (uint32_t m = 0; writes && m < grid->mixed_count; m++)
        run->points_planned += measure_share_count(grid, m);
    run->points_planned += measure_start_count(run, tier);
    if (writes) status = measure_prewrite(run);
    for (int pass = writes ? 0 : 1; pass < 2; pass++) {
        uint8_t kind = pass == 0 ? KVT_IO_WRITE : KVT_IO_READ;
        for (uint32_t s = 0; s < grid->size_count; s++) {
            for (uint32_t d = 0; d < grid->depth_count && status == KVT_OK; d++) {
                status = measure_point(run, kind, grid->sizes[s], grid->depths[d]);
            }
        }
    }
    for (uint32_t m = 0; writes && m < grid->mixed_count && status == KVT_OK; m++) {
        for (size_t i = 0; i < measure_share_count(grid, m) && status == KVT_OK; i++)
            status = measure_mixed(run, grid->mixed_sizes[m], measure_shares[i]);
    }
    return status != KVT_OK ? status : measure_starts(run, tier);
}

/* At full depth a device needs its queues, which are the calling thread's meanwhile. */
static kvt_status measure_attached(measure_run *run, kvt_tier tier, bool writes)
{
    bool attached = run->device->attached;
    if (!attached) kvt_device_attach(run->device);
    kvt_status status = measure_directions(run, tier, writes);
    if (!attached) kvt_device_detach(run->device);
    return status;
}

static kvt_status measure_check_range(const kvt_device_facts *facts, uint64_t write_offset,
                                      uint64_t write_bytes, measure_run *run)
{
    if (write_bytes == 0) {
        run->range_bytes = facts->capacity_bytes;
        return KVT_OK;
    }
    if (facts->flags & KVT_DEVICE_READ_ONLY) return KVT_E_READ_ONLY;
    if (write_offset > facts->capacity_bytes ||
        write_bytes > facts->capacity_bytes - write_offset) {
        return KVT_E_ARGUMENT;
    }
    uint64_t align = facts->align_bytes;
    uint64_t skipped = (align - write_offset % align) % align;
    if (skipped >= write_bytes) return KVT_E_SPACE;
    run->range_offset = write_offset + skipped;
    run->range_bytes = (write_bytes - skipped) / align * align;
    return KVT_OK;
}

/* Goes on with a run that was interrupted, or begins one. */
static kvt_status measure_begin(measure_run *run, kvt_tier tier, bool writes)
{
    kvt_status status = measure_resume(run, tier, writes);
    if (status != KVT_MISS) return status;
    status = profile_run_begin(run->profile, "device", run->settings.command_line,
                               PROFILE_DEVICE_SEED, &run->run);
    if (status != KVT_OK) return status;
    return profile_device_insert(run->profile, run->run, run->device, tier, &run->device_row);
}

kvt_status kvt_profile_measure_device(kvt_profile *profile, kvt_device *device, kvt_tier tier,
                                      uint64_t write_offset, uint64_t write_bytes,
                                      const kvt_profile_request *request)
{
    assert(profile != NULL && device != NULL && device->in_flight == 0);
    if (tier <= KVT_TIER_NONE || tier >= KVT_TIER_COUNT) return KVT_E_ARGUMENT;
    if (!profile->writable) return KVT_E_READ_ONLY;
    measure_run *run = calloc(1, sizeof *run);
    if (run == NULL) return KVT_E_MEMORY;
    run->profile = profile;
    run->device = device;
    run->random = PROFILE_DEVICE_SEED;
    kvt_status status = profile_settings_read(request, &run->settings);
    if (status == KVT_OK) {
        status = measure_check_range(&device->facts, write_offset, write_bytes, run);
    }
    if (status == KVT_OK) {
        status =
            measure_grid_make(&device->facts, run->range_bytes, run->settings.quick, &run->grid);
    }
    if (status == KVT_OK) status = measure_allocate(run);
    if (status == KVT_OK) status = measure_begin(run, tier, write_bytes > 0);
    if (status == KVT_OK) status = measure_attached(run, tier, write_bytes > 0);
    if (status == KVT_OK) status = profile_run_complete(profile, run->run);
    if (status == KVT_OK) measure_report(run, 0.0, true);
    free(run->ios);
    free(run->done);
    free(run->buffers);
    free(run->latencies);
    free(run->repetitions);
    free(run);
    return status;
}

/* ---- the fit ---- */

/*
 * From measured points to the affine model request_seconds + bytes / bytes_per_s.
 * docs/decisions/0004-affine-device-model.md gives the reasons.
 *
 * Two steps, both least squares of relative errors, so that small requests count as much as large:
 *   1. For each request size the time per request at the depth with the best bandwidth, y = bytes /
 *      bandwidth, is fitted by overhead + bytes / bytes_per_s. Only bytes_per_s is kept: a request
 *      set pays the overhead at depth, not one after the other. Where the two largest sizes reach
 *      the same bandwidth, that is bytes_per_s.
 *   2. request_seconds is what then fits the median latencies at depth 1 best.
 */

/* Growth of bandwidth from the second largest request size to the largest, fourfold one, below
 * which nothing is left to gain: on an affine device 2 % mean that at most 0.7 % are missing. */
#define FIT_SATURATED 0.02

/* Sums of a relative least-squares line: weights are 1 / y^2. */
typedef struct fit_sums {
    double w, wx, wy, wxx, wxy;
    double best_rate; /* largest x / y seen */
    size_t count;
} fit_sums;

static void fit_add(fit_sums *sums, double x, double y)
{
    double weight = 1.0 / (y * y);
    sums->w += weight;
    sums->wx += weight * x;
    sums->wy += weight * y;
    sums->wxx += weight * x * x;
    sums->wxy += weight * x * y;
    sums->best_rate = fmax(sums->best_rate, x / y);
    sums->count++;
}

/* The best median bandwidth of a size over its depths; 0 for a size that is no point's. */
static double fit_best_bandwidth(const kvt_device_point *points, size_t count, uint8_t kind,
                                 uint32_t request_bytes)
{
    double best = 0.0;
    for (size_t i = 0; i < count; i++) {
        if (points[i].kind != kind || points[i].request_bytes != request_bytes) continue;
        best = fmax(best, points[i].bytes_per_s);
    }
    return best;
}

/*
 * The asymptotic rate. A line through points that are nearly parallel to the axis says little: when
 * it claims more than twice what any request size reached, overhead would be more than half of even
 * the largest request, and the best rate seen is the answer instead.
 */
static double fit_rate(const fit_sums *sums)
{
    double determinant = sums->w * sums->wxx - sums->wx * sums->wx;
    if (sums->count < 2 || determinant <= 0.0) return sums->best_rate;
    double slope = (sums->w * sums->wxy - sums->wx * sums->wy) / determinant;
    double overhead = (sums->wxx * sums->wy - sums->wx * sums->wxy) / determinant;
    if (overhead < 0.0) slope = sums->wxy / sums->wxx;
    if (slope <= 0.0 || 1.0 / slope > 2.0 * sums->best_rate) return sums->best_rate;
    return 1.0 / slope;
}

/*
 * The bandwidth of a device that its two largest request sizes have reached alike: there is nothing
 * to extrapolate then, and the line through smaller requests, which wait for the CPU or for each
 * other instead, would only mislead. 0 when bandwidth still grows.
 */
static double fit_saturated(const kvt_device_point *points, size_t count, uint8_t kind)
{
    uint32_t largest = 0, second = 0;
    for (size_t i = 0; i < count; i++) {
        const uint32_t bytes = points[i].request_bytes;
        if (points[i].kind != kind) continue;
        if (bytes > largest) {
            second = largest;
            largest = bytes;
        } else if (bytes > second && bytes < largest) {
            second = bytes;
        }
    }
    if (second == 0) return 0.0;
    const double last = fit_best_bandwidth(points, count, kind, largest);
    const double before = fit_best_bandwidth(points, count, kind, second);
    return fabs(last / before - 1.0) <= FIT_SATURATED ? fmax(last, before) : 0.0;
}

static bool fit_is_first_of_size(const kvt_device_point *points, size_t index)
{
    for (size_t i = 0; i < index; i++) {
        if (points[i].kind == points[index].kind &&
            points[i].request_bytes == points[index].request_bytes) {
            return false;
        }
    }
    return true;
}

/* A clock may be too coarse to see a small request; its bandwidth still tells its time. */
static double fit_latency(const kvt_device_point *point)
{
    if (point->latency_seconds_p50 > 0.0) return point->latency_seconds_p50;
    return (double)point->request_bytes / point->bytes_per_s;
}

bool profile_fit_points(const kvt_device_point *points, size_t count, uint8_t kind, kvt_affine *out)
{
    fit_sums sums, latency;
    memset(&sums, 0, sizeof sums);
    memset(&latency, 0, sizeof latency);
    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < count; i++) {
        if (points[i].kind != kind) continue;
        double bytes = (double)points[i].request_bytes;
        if (fit_is_first_of_size(points, i)) {
            double best = fit_best_bandwidth(points, count, kind, points[i].request_bytes);
            fit_add(&sums, bytes, bytes / best);
        }
        if (points[i].depth == 1) fit_add(&latency, bytes, fit_latency(&points[i]));
    }
    if (latency.count == 0) return false;
    out->bytes_per_s = fit_saturated(points, count, kind);
    if (out->bytes_per_s == 0.0) out->bytes_per_s = fit_rate(&sums);
    out->request_seconds = fmax(0.0, (latency.wy - latency.wx / out->bytes_per_s) / latency.w);
    for (size_t i = 0; i < count; i++) {
        if (points[i].kind != kind || points[i].depth != 1) continue;
        double measured = fit_latency(&points[i]);
        double predicted =
            out->request_seconds + (double)points[i].request_bytes / out->bytes_per_s;
        out->residual = fmax(out->residual, fabs(predicted - measured) / measured);
    }
    return true;
}
