/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_starts.c - measures what reads of a drive gain by where they begin. Drives keep their map
 * and their flash pages in pieces larger than a block, so a read that begins inside of a piece may
 * cost a piece more.
 *
 * The begins of one size are measured in turns, repetition by repetition: other work on the machine
 * slows all of them alike, and their ratios stay.
 *
 * Thread rule: the thread that measures owns run, profile and device.
 */
#include "estimator/measure/device_batch.h"

#include <assert.h>
#include <stdio.h>

static const uint32_t start_begins[MEASURE_TURNS] = {1u << 12, 1u << 14, 1u << 16, 1u << 17};
static const uint32_t start_sizes[] = {1u << 15, 1u << 16, 1u << 17, 1u << 18};

#define START_SIZES ((uint32_t)(sizeof start_sizes / sizeof start_sizes[0]))
#define START_QUICK 2u /* the size that a quick measurement has */
#define START_LEAST 8u /* places that a begin needs in the range */

/* Whether reads of this size are measured. All begins are, or none: they are compared. */
static bool starts_have_size(const measure_run *run, kvt_tier tier, uint32_t index)
{
    const kvt_device_facts *facts = &run->device->facts;
    if (tier != KVT_TIER_SSD || (run->settings.quick && index != START_QUICK)) return false;
    const measure_batch batch = {.bytes = start_sizes[index],
                                 .begins_at = start_begins[MEASURE_TURNS - 1]};
    return start_begins[0] % facts->align_bytes == 0 && batch.bytes <= facts->request_bytes_max &&
           batch.bytes <= run->grid.sizes[0] && measure_places(run, &batch) >= START_LEAST;
}

size_t measure_start_count(const measure_run *run, kvt_tier tier)
{
    size_t count = 0;
    for (uint32_t i = 0; i < START_SIZES; i++)
        if (starts_have_size(run, tier, i)) count += MEASURE_TURNS;
    return count;
}

static kvt_status starts_measure_size(measure_run *run, uint32_t bytes)
{
    const uint32_t depth = run->grid.depths[run->grid.depth_count - 1];
    const uint32_t repetitions = run->settings.repetitions;
    kvt_device_start rows[MEASURE_TURNS];
    snprintf(run->what, sizeof run->what, "%s read %u KiB by begin", run->device->name,
             bytes / 1024u);
    measure_report(run, 0.0, true);
    for (uint32_t i = 0; i < repetitions; i++) {
        for (uint32_t turn = 0; turn < MEASURE_TURNS; turn++) {
            measure_batch batch = {.kind = KVT_IO_READ,
                                   .bytes = bytes,
                                   .depth = depth,
                                   .begins_at = start_begins[turn]};
            if (run->cancelled) return KVT_E_CANCELLED;
            const kvt_status status =
                measure_repetition(run, &batch, (size_t)turn * repetitions + i);
            if (status != KVT_OK) return status;
        }
    }
    for (uint32_t turn = 0; turn < MEASURE_TURNS; turn++) {
        kvt_device_point point = {.kind = KVT_IO_READ};
        measure_summarize(run, (size_t)turn * repetitions, &point);
        rows[turn] = (kvt_device_start){.request_bytes = bytes,
                                        .begins_at = start_begins[turn],
                                        .depth = depth,
                                        .repetitions = repetitions,
                                        .bytes_per_s = point.bytes_per_s,
                                        .bytes_per_s_min = point.bytes_per_s_min,
                                        .bytes_per_s_max = point.bytes_per_s_max};
    }
    run->others_done += MEASURE_TURNS;
    return profile_starts_insert(run->profile, run->device_row, rows, MEASURE_TURNS);
}

kvt_status measure_starts(measure_run *run, kvt_tier tier)
{
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; i < START_SIZES && status == KVT_OK; i++)
        if (starts_have_size(run, tier, i)) status = starts_measure_size(run, start_sizes[i]);
    return status;
}
