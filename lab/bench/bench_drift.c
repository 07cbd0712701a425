/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_drift.c - a drive halves its speed while a store serves: how long until new objects are
 * laid out for it, what old ones get, and what moving the hot ones costs.
 *
 * Speeds are of the emulated drives, so every ratio is to a number that is known. Reads are timed
 * by the device (kvt_get_info.read_ns), because what is asked is what the pool delivers.
 *
 * Thread rule: one bench at a time.
 */
#include "bench_drift.h"

#include "base/clock.h"
#include "bench_parts.h"
#include "tiers/pool/stripe.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MIB                ((uint64_t)1 << 20)
#define DRIFT_OBJECT_BYTES (16 * MIB)
#define DRIFT_UNIT_BYTES   (256u * 1024u)
#define DRIFT_GOAL         0.9
#define DRIFT_MOVE_RATE    (64 * MIB)

enum { DRIFT_OLD = 8, DRIFT_HOT = 4, DRIFT_NEW_KEPT = 4, DRIFT_SAMPLES_MAX = 512 };

static int drift_complain(const char *what, kvt_status status, const char *message)
{
    fprintf(stderr, "kvterrace bench drift: %s: %s\n", what,
            message[0] != '\0' ? message : kvt_status_text(status));
    return 1;
}

/* ---- objects ---- */

static void drift_fill(const drift_object *object, uint64_t *words)
{
    uint64_t seed = (uint64_t)object->number << 32 | object->version;
    for (uint64_t i = 0; i < object->bytes / 8; i++)
        words[i] = (seed + i) * UINT64_C(0x9E3779B97F4A7C15);
}

static bool drift_holds(const drift_object *object, const uint64_t *words)
{
    uint64_t seed = (uint64_t)object->number << 32 | object->version;
    for (uint64_t i = 0; i < object->bytes / 8; i++) {
        if (words[i] != (seed + i) * UINT64_C(0x9E3779B97F4A7C15)) return false;
    }
    return true;
}

static kvt_key drift_key(const drift_object *object)
{
    kvt_key key = {{0}};
    memcpy(key.bytes, &object->number, sizeof object->number);
    return key;
}

kvt_status drift_put(drift_site *site, const drift_object *object, void *buffer)
{
    kvt_entry entry = {
        .struct_size = sizeof entry,
        .key = drift_key(object),
        .layout = {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = object->bytes, .tokens = 1},
        .recompute_seconds = 1};
    drift_fill(object, buffer);
    return kvt_put(site->store, &entry, buffer, object->bytes);
}

drift_reading drift_get(drift_site *site, const drift_object *object, void *buffer)
{
    kvt_key key = drift_key(object);
    kvt_get_info info = {.struct_size = sizeof info};
    uint64_t start = base_clock_ns();
    drift_reading reading = {.status = kvt_get(site->store, &key, buffer, object->bytes, &info)};
    reading.seconds = (double)(base_clock_ns() - start) * 1e-9;
    reading.read_seconds = (double)info.read_ns * 1e-9;
    reading.stored_bytes = info.stored_bytes;
    if (reading.status == KVT_OK && !drift_holds(object, buffer)) reading.status = KVT_E_CORRUPT;
    return reading;
}

void drift_delete(drift_site *site, const drift_object *object)
{
    kvt_key key = drift_key(object);
    (void)!kvt_delete(site->store, &key);
}

/* Sum of the drives' rates. */
static double drift_sum(const drift_site *site)
{
    double sum = 0;
    for (uint32_t i = 0; i < site->drive_count; i++)
        sum += site->rates[i];
    return sum;
}

kvt_store_stats drift_stats(const drift_site *site)
{
    kvt_store_stats stats = {.struct_size = sizeof stats};
    (void)!kvt_stats(site->store, &stats);
    return stats;
}

/* ---- a drive slows ---- */

/* What a read got of the drives' sum; counts wrong bytes. */
static double drift_ratio(drift_site *site, const drift_object *object, void *buffer,
                          drift_slowing *out)
{
    drift_reading reading = drift_get(site, object, buffer);
    if (reading.status != KVT_OK) {
        out->wrong++;
        return 0;
    }
    return (double)reading.stored_bytes / reading.read_seconds / drift_sum(site);
}

/* The ratio that a layout made with these weights allows, by the drives' speeds of now. */
static double drift_allowed(const drift_site *site, const double *weights)
{
    tiers_stripe_member members[DRIFT_DRIVES_MAX];
    uint32_t shares[DRIFT_DRIVES_MAX];
    const uint32_t units = DRIFT_OBJECT_BYTES / DRIFT_UNIT_BYTES;
    double slowest = 0;
    for (uint32_t i = 0; i < site->drive_count; i++)
        members[i] = (tiers_stripe_member){.weight = weights[i], .room_units = UINT64_MAX};
    if (tiers_stripe_share(members, site->drive_count, units, shares) != KVT_OK) return 1;
    for (uint32_t i = 0; i < site->drive_count; i++) {
        double seconds = (double)shares[i] * DRIFT_UNIT_BYTES / site->rates[i];
        if (seconds > slowest) slowest = seconds;
    }
    return (double)units * DRIFT_UNIT_BYTES / slowest / drift_sum(site);
}

/* The median over so many passes, at most three. */
static double drift_median_of(drift_site *site, const drift_object *objects, uint32_t count,
                              uint32_t passes, void *buffer, drift_slowing *out)
{
    double samples[3 * DRIFT_OLD];
    for (uint32_t i = 0; i < passes * count; i++)
        samples[i] = drift_ratio(site, &objects[i % count], buffer, out);
    return bench_rate_of(samples, passes * count).median;
}

/* Puts and reads new objects until the time is over. */
static kvt_status drift_watch_new(drift_site *site, void *buffer, drift_slowing *out)
{
    const double watched_seconds = site->options->quick ? 1.0 : 4.0;
    drift_object recent[DRIFT_NEW_KEPT] = {{0}};
    double later[DRIFT_SAMPLES_MAX];
    uint32_t later_count = 0;
    uint64_t start = base_clock_ns();
    out->seconds_to_ratio = -1;
    for (uint32_t i = 0; i < DRIFT_SAMPLES_MAX; i++) {
        double elapsed = (double)(base_clock_ns() - start) * 1e-9;
        if (elapsed > watched_seconds) break;
        drift_object *object = &recent[i % DRIFT_NEW_KEPT];
        if (object->bytes != 0) drift_delete(site, object);
        *object = (drift_object){.number = 1000 + i, .version = 1, .bytes = DRIFT_OBJECT_BYTES};
        kvt_status status = drift_put(site, object, buffer);
        if (status != KVT_OK) return status;
        double ratio = drift_ratio(site, object, buffer, out);
        if (ratio >= DRIFT_GOAL && out->seconds_to_ratio < 0) out->seconds_to_ratio = elapsed;
        if (elapsed >= watched_seconds / 2) later[later_count++] = ratio;
    }
    for (uint32_t i = 0; i < DRIFT_NEW_KEPT; i++)
        if (recent[i].bytes != 0) drift_delete(site, &recent[i]);
    bench_rate rate = bench_rate_of(later, later_count);
    out->new_ratio = rate.median;
    out->new_ratio_worst = rate.min;
    return KVT_OK;
}

/* Reads the hot objects until they were laid out anew, or for ten seconds. */
static void drift_heat(drift_site *site, const drift_object *hot, void *buffer, drift_slowing *out)
{
    uint64_t start = base_clock_ns();
    double elapsed = 0;
    kvt_store_stats before = drift_stats(site), now = before;
    while (elapsed < 10 && now.relayouts - before.relayouts < DRIFT_HOT) {
        for (uint32_t i = 0; i < DRIFT_HOT; i++)
            (void)drift_ratio(site, &hot[i], buffer, out);
        now = drift_stats(site);
        elapsed = (double)(base_clock_ns() - start) * 1e-9;
    }
    out->hot_objects = DRIFT_HOT;
    out->hot_seconds = elapsed;
    out->moved_objects = now.relayouts - before.relayouts;
    out->moved_bytes = now.relayout_bytes - before.relayout_bytes;
    out->budget_bytes_per_s = DRIFT_MOVE_RATE;
    out->budget_bytes = (uint64_t)((elapsed + 1) * (double)DRIFT_MOVE_RATE);
    out->hot_ratio = drift_median_of(site, hot, DRIFT_HOT, 3, buffer, out);
}

static void drift_weights(const drift_site *site, double *weights)
{
    kvt_device_stats stats = {.struct_size = sizeof stats};
    for (uint32_t i = 0; i < site->drive_count; i++) {
        if (kvt_device_stats_at(site->store, i, &stats) == KVT_OK)
            weights[i] = stats.weight_bytes_per_s;
    }
}

static int bench_drift_slowing(drift_site *site, drift_slowing *out)
{
    drift_object old[DRIFT_OLD];
    double weights[DRIFT_DRIVES_MAX] = {0};
    const uint32_t slow = site->drive_count - 1;
    const char *path = site->options->devices[slow].path;
    kvt_status status = KVT_OK;
    void *buffer = bench_buffer(DRIFT_OBJECT_BYTES);
    if (buffer == NULL) return drift_complain("all", KVT_E_MEMORY, "");
    *out = (drift_slowing){.object_bytes = DRIFT_OBJECT_BYTES, .sum_before = drift_sum(site)};
    drift_weights(site, weights);
    for (uint32_t i = 0; i < DRIFT_OLD && status == KVT_OK; i++) {
        old[i] = (drift_object){.number = i, .version = 1, .bytes = DRIFT_OBJECT_BYTES};
        status = drift_put(site, &old[i], buffer);
    }
    bool told = false;
    if (status == KVT_OK) {
        out->ratio_before = drift_median_of(site, old, DRIFT_OLD, 1, buffer, out);
        told = bench_drive_set_rate(path, site->rates[slow] / 2);
    }
    if (told) {
        site->rates[slow] /= 2;
        out->sum_after = drift_sum(site);
        status = drift_watch_new(site, buffer, out);
        /* Once each: read twice they would count as hot. */
        out->old_ratio = drift_median_of(site, old, DRIFT_OLD, 1, buffer, out);
        out->old_of_allowed = out->old_ratio / drift_allowed(site, weights);
        drift_heat(site, old, buffer, out);
        site->rates[slow] *= 2;
        told = bench_drive_set_rate(path, site->rates[slow]);
    }
    for (uint32_t i = 0; i < DRIFT_OLD; i++)
        drift_delete(site, &old[i]);
    free(buffer);
    if (status != KVT_OK) return drift_complain("a drive slows", status, "");
    return told ? 0 : 1;
}

/* ---- the drives ---- */

static int drift_open(drift_site *site)
{
    const bench_options *given = site->options;
    char message[256] = "";
    kvt_store_options options;
    kvt_store_options_init(&options);
    options.put_staging_bytes = 0; /* what is put is where it stays */
    options.catalog_path = site->catalog;
    options.policy = "lru";
    options.format = true;
    options.lossless = false;
    options.staging_bytes = 256 * MIB;
    options.tiers[KVT_TIER_SSD] = (kvt_tier_options){.devices = given->devices,
                                                     .device_count = given->device_count,
                                                     .unit_bytes = DRIFT_UNIT_BYTES,
                                                     .rebalance_bytes_per_s = DRIFT_MOVE_RATE};
    kvt_status status = kvt_open(&options, &site->store, message, sizeof message);
    return status == KVT_OK ? 0 : drift_complain("open", status, message);
}

static int drift_check_drives(drift_site *site)
{
    const bench_options *options = site->options;
    if (options->device_count < 2 || options->device_count > DRIFT_DRIVES_MAX)
        return drift_complain("drives", KVT_E_ARGUMENT, "2 to 16 drives of tests/support/drives");
    for (uint32_t i = 0; i < options->device_count; i++) {
        site->rates[i] = bench_drive_rate(options->devices[i].path);
        if (!(site->rates[i] > 0)) {
            return drift_complain(options->devices[i].name, KVT_E_MISMATCH,
                                  "not one of tests/support/drives");
        }
        if (options->overwrite == NULL || !options->overwrite[i])
            return drift_complain(options->devices[i].name, KVT_E_MISMATCH,
                                  "holds other bytes; store.format gives them up");
    }
    site->drive_count = options->device_count;
    return 0;
}

/* ---- the report, schema "kvterrace-bench-drift-1" ---- */

static json_t *report_slowing(const drift_slowing *slowing)
{
    return json_pack(
        "{s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:i, s:f, s:f, s:I, s:I, s:I, s:I, s:i}",
        "object_bytes", (json_int_t)slowing->object_bytes, "device_sum_bytes_per_s",
        slowing->sum_before, "device_sum_after_bytes_per_s", slowing->sum_after, "ratio_before",
        slowing->ratio_before, "seconds_to_090", slowing->seconds_to_ratio, "new_ratio",
        slowing->new_ratio, "new_ratio_min", slowing->new_ratio_worst, "old_ratio",
        slowing->old_ratio, "old_of_allowed", slowing->old_of_allowed, "hot_objects",
        (int)slowing->hot_objects, "hot_ratio", slowing->hot_ratio, "hot_seconds",
        slowing->hot_seconds, "moved_objects", (json_int_t)slowing->moved_objects, "moved_bytes",
        (json_int_t)slowing->moved_bytes, "move_budget_bytes_per_s",
        (json_int_t)slowing->budget_bytes_per_s, "move_budget_bytes",
        (json_int_t)slowing->budget_bytes, "wrong", (int)slowing->wrong);
}

static json_t *report_vanishing(const drift_vanishing *vanishing)
{
    return json_pack(
        "{s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:I, s:I, s:I, s:i, s:i, s:i, s:f}",
        "objects", (int)vanishing->objects, "small_objects", (int)vanishing->small_objects, "reads",
        (json_int_t)vanishing->reads, "hits", (json_int_t)vanishing->hits, "misses",
        (json_int_t)vanishing->misses, "wrong", (json_int_t)vanishing->wrong, "late",
        (json_int_t)vanishing->late, "deadline_s", vanishing->deadline_seconds, "slowest_s",
        vanishing->slowest_seconds, "quarantined", (json_int_t)vanishing->quarantined, "readmitted",
        (json_int_t)vanishing->readmitted, "replaced", (json_int_t)vanishing->replaced,
        "readable_while_gone", (int)vanishing->readable_gone, "unreadable_elsewhere",
        (int)vanishing->unreadable_else, "readable_after_return", (int)vanishing->readable_back,
        "add_s", vanishing->add_seconds);
}

static int report_text(FILE *out, const drift_slowing *slowing, const drift_vanishing *vanishing)
{
    fprintf(out,
            "the fastest drive halves its speed: %.0f -> %.0f MB/s in all, objects of %.0f MiB\n",
            slowing->sum_before / 1e6, slowing->sum_after / 1e6,
            (double)slowing->object_bytes / 1048576);
    fprintf(out, "  before                     %.3f of the sum\n", slowing->ratio_before);
    fprintf(out, "  new objects reach 0.9      after %.2f s; later %.3f (worst %.3f)\n",
            slowing->seconds_to_ratio, slowing->new_ratio, slowing->new_ratio_worst);
    fprintf(out, "  old objects                %.3f of the sum, %.3f of what their layout allows\n",
            slowing->old_ratio, slowing->old_of_allowed);
    fprintf(out,
            "  %u hot objects              %.3f after %.2f s; moved %.1f MB of a budget of %.1f "
            "(%.0f MB/s)\n",
            slowing->hot_objects, slowing->hot_ratio, slowing->hot_seconds,
            (double)slowing->moved_bytes / 1e6, (double)slowing->budget_bytes / 1e6,
            (double)slowing->budget_bytes_per_s / 1e6);
    fprintf(out, "a drive vanishes and returns: %u objects, %u of them on one drive each\n",
            vanishing->objects, vanishing->small_objects);
    fprintf(out,
            "  reads                      %llu: %llu hits, %llu misses, %llu wrong, %llu late\n",
            (unsigned long long)vanishing->reads, (unsigned long long)vanishing->hits,
            (unsigned long long)vanishing->misses, (unsigned long long)vanishing->wrong,
            (unsigned long long)vanishing->late);
    fprintf(out, "  slowest read               %.3f s of %.1f\n", vanishing->slowest_seconds,
            vanishing->deadline_seconds);
    fprintf(out, "  while it was gone          %u readable, %llu set aside, %u lost elsewhere\n",
            vanishing->readable_gone, (unsigned long long)vanishing->quarantined,
            vanishing->unreadable_else);
    fprintf(out, "  after its return           %u readable, %llu came back in %.2f s\n",
            vanishing->readable_back, (unsigned long long)vanishing->readmitted,
            vanishing->add_seconds);
    return ferror(out) != 0;
}

static int bench_drift_report(const bench_options *options, const drift_site *site,
                              const drift_slowing *slowing, const drift_vanishing *vanishing)
{
    if (!options->json) return report_text(options->out, slowing, vanishing);
    json_t *root = bench_report_head("kvterrace-bench-drift-1", 1);
    json_t *drives = json_array();
    int failed = root == NULL || drives == NULL;
    for (uint32_t i = 0; i < site->drive_count && !failed; i++)
        failed = json_array_append_new(drives, json_real(site->rates[i]));
    if (!failed) failed = json_object_set(root, "drive_bytes_per_s", drives);
    if (!failed) failed = json_object_set_new(root, "slows", report_slowing(slowing));
    if (!failed) failed = json_object_set_new(root, "vanishes", report_vanishing(vanishing));
    json_decref(drives);
    if (!failed) return bench_report_print(options->out, root);
    json_decref(root);
    return 1;
}

/* ---- the whole ---- */

int bench_drift_run(const bench_options *options)
{
    drift_site site = {.options = options};
    drift_slowing slowing = {0};
    drift_vanishing vanishing = {0};
    if (drift_check_drives(&site) != 0) return 1;
    if (bench_scratch_make(options->scratch_folder, "drift", site.folder, sizeof site.folder) != 0)
        return drift_complain(site.folder, KVT_E_IO, strerror(errno));
    snprintf(site.catalog, sizeof site.catalog, "%s/catalog.db", site.folder);
    int code = drift_open(&site);
    bench_tell(options, 0, 2, "a drive slows");
    if (code == 0) code = bench_drift_slowing(&site, &slowing);
    bench_tell(options, 1, 2, "a drive vanishes");
    if (code == 0) code = bench_drift_vanishing(&site, &vanishing);
    kvt_close(site.store);
    bench_scratch_remove();
    bench_tell(options, 1, 1, NULL);
    if (code == 0) code = bench_drift_report(options, &site, &slowing, &vanishing);
    bool sound = slowing.wrong == 0 && vanishing.wrong == 0 && vanishing.unreadable_else == 0;
    if (code == 0 && !sound) code = drift_complain("reads", KVT_E_CORRUPT, "wrong or lost");
    return code;
}
