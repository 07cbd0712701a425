/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_batch.h - batches of requests on a device that is being measured: so many in flight, at
 * random or following places, with the time that each one took; private to the estimator.
 *
 * Thread rule: the thread that measures owns run, profile and device.
 */
#ifndef ESTIMATOR_DEVICE_BATCH_H
#define ESTIMATOR_DEVICE_BATCH_H

#include "estimator/profile/profile_internal.h"
#include "tiers/devices/device_ops.h"

#define MEASURE_SIZES_MAX    5u
#define MEASURE_DEPTHS_MAX   4u
#define MEASURE_POINTS_MAX   (2u * MEASURE_SIZES_MAX * MEASURE_DEPTHS_MAX)
#define MEASURE_MIXED_MAX    2u
#define MEASURE_TURNS        4u     /* points that are measured in turns */
#define MEASURE_REQUESTS_MAX 65536u /* per repetition; bounds the latencies kept */

typedef struct measure_grid {
    uint32_t sizes[MEASURE_SIZES_MAX]; /* descending: an interrupted run has the large ones */
    uint32_t depths[MEASURE_DEPTHS_MAX];
    uint32_t mixed_sizes[MEASURE_MIXED_MAX]; /* of reads and writes at once, at the last depth */
    uint32_t size_count;
    uint32_t depth_count;
    uint32_t mixed_count;
} measure_grid;

typedef struct measure_run {
    kvt_profile *profile;
    kvt_device *device;
    profile_settings settings;
    measure_grid grid;
    uint64_t range_offset;
    uint64_t range_bytes;
    int64_t run;
    int64_t device_row;
    uint64_t random;
    kvt_io *ios; /* one per depth */
    kvt_io **done;
    unsigned char *buffers; /* one of the largest size per depth */
    double *latencies;      /* of one repetition */
    double *repetitions;    /* of MEASURE_TURNS points: 3 per repetition: bandwidth, p50, p99 */
    kvt_device_point points[MEASURE_POINTS_MAX];
    size_t point_count;
    size_t others_done;    /* mixtures and begins */
    size_t points_planned; /* those included */
    uint64_t progress_at_ns;
    char what[64];
    bool cancelled;
} measure_run;

/* One batch of requests: what to do, and what came of it. */
typedef struct measure_batch {
    kvt_io_kind kind;  /* of all requests, unless they are mixed */
    double read_share; /* above 0: so many of the requests read, evenly spread; the rest write */
    uint32_t bytes;
    uint32_t depth;
    uint64_t requests_max;
    double seconds;     /* no further submit after this; 0 = no limit */
    bool sequential;    /* else random places */
    uint32_t begins_at; /* above 0: places are multiples of it, and may overlap */
    uint64_t submitted;
    uint64_t completed;
    uint64_t timed;    /* of them, in run->latencies: all, or the reads of a mixture */
    uint64_t first_ns; /* device clock */
    uint64_t last_ns;
    uint64_t in_flight;
    uint32_t naps;     /* milliseconds that an idle device said busy */
    kvt_status status; /* the first failure */
} measure_batch;

/* Reports progress at most ten times a second unless asked to; remembers a refusal. */
void measure_report(measure_run *run, double part_of_point, bool always);

/* Keeps up to depth requests in flight until the batch has enough, then drains: buffers may be
 * released only when the device has given every operation back. */
void measure_batch_run(measure_run *run, measure_batch *batch);

/* One repetition of a batch that is filled in but for its limits, into run->repetitions[3 * index]:
 * bytes per second, median and 99th percentile of the latencies. */
KVT_NODISCARD kvt_status measure_repetition(measure_run *run, measure_batch *batch, size_t index);

/* Medians of the three figures over the repetitions from index `first` on, as many as the settings
 * say; the slowest and fastest bandwidth. */
void measure_summarize(measure_run *run, size_t first, kvt_device_point *point);

/* How many places requests of a batch have in the range: at multiples of begins_at, else of their
 * size. 0: the range is too short. */
uint64_t measure_places(const measure_run *run, const measure_batch *batch);

/* ---- where reads begin (device_starts.c) ---- */

/* The number of points that measure_starts makes of this device; 0 for memory. */
size_t measure_start_count(const measure_run *run, kvt_tier tier);

/* Measures reads of 32 to 256 KiB at the largest depth that begin at multiples of 4, 16, 64 and 128
 * KiB, the begins of one size in turns, and stores a row of each. */
KVT_NODISCARD kvt_status measure_starts(measure_run *run, kvt_tier tier);

/* Takes up the newest interrupted run that measured this device with these settings, with its
 * points (docs/PROFILE.md says which one counts). KVT_OK; KVT_MISS (there is none, or it is not
 * asked for: begin one); KVT_E_DATABASE, KVT_E_MEMORY. */
KVT_NODISCARD kvt_status measure_resume(measure_run *run, kvt_tier tier, bool writes);

#endif
