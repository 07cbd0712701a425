/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worker_meter.h - how fast a member really is, from its completions, and the weight that follows;
 * and whether waited reads press it.
 *
 * Only spans in which requests are in flight count, and only those in which the device had enough
 * to do, so that idleness, small requests and single requests never look like a slow drive; but a
 * drive that takes many times as long for them as it ought to is slow. The rules and their numbers
 * are in docs/TIERS.md, Weights. Time is the device's own clock.
 *
 * Thread rule: the worker's own; pure arithmetic over the caller's memory.
 */
#ifndef TIERS_WORKER_METER_H
#define TIERS_WORKER_METER_H

#include "tiers/devices/device_ops.h"

#include <stdbool.h>

#define TIERS_METER_FLOOR 64.0 /* the weight is never below nominal / 64 */

/* All speeds are bytes per second, all times the device's own clock. The weight is what placement
 * counts on; it is at least 1/64 of the nominal figure. */
typedef struct tiers_meter {
    double nominal_bytes_per_s; /* of reads, when the member was opened */
    double request_seconds;
    double bytes_per_s[2]; /* averages by kvt_io_kind */
    uint32_t samples[2];
    double write_reference; /* the writes' average at the last read sample; 0 = none yet */

    double weight_bytes_per_s;
    double anchor_bytes_per_s; /* following: what the average has to stay close to */
    bool following;
    uint32_t streak; /* samples in a row that speak for a change of `following` */
    uint64_t streak_ns;

    /* Requests that take many times as long as the device's figures say. */
    double sound_bytes_per_s; /* average of reads before; 0: the device is not slow so */
    uint64_t slow_ns;         /* the last such span's end */
    uint32_t well;            /* requests since, of spans that took no longer than they ought to */

    /* The span under way. */
    uint32_t in_flight;
    bool fresh;  /* it began on an idle device */
    bool broken; /* a request failed in it */
    uint64_t begin_ns;
    uint64_t last_ns; /* latest completion */
    uint32_t requests;
    uint64_t bytes[2];
    double byte_seconds;   /* sum of bytes x residence: mean bytes in flight, by Little's law */
    double silent_seconds; /* the longest time in which it had work and answered nothing */

    /* The sample that spans are gathered into. */
    uint64_t sample_bytes[2];
    uint32_t sample_requests;
    double sample_seconds;
} tiers_meter;

/* The figures of the open: read_bytes_per_s above 0, the others may be 0 = unknown. */
void tiers_meter_init(tiers_meter *meter, double read_bytes_per_s, double write_bytes_per_s,
                      double request_seconds);

/* A request that the device has accepted; its submitted_ns is set. */
void tiers_meter_begin(tiers_meter *meter, const kvt_io *io);

/* Its completion. True when averages or weight may have changed. */
bool tiers_meter_end(tiers_meter *meter, const kvt_io *io);

/* Whether the device has lost weight because its answers are late. */
bool tiers_meter_is_late(const tiers_meter *meter);

/* ---- pressure ---- */

/*
 * Whether the reads that somebody waits for keep a device busy: the mean of their backlog over the
 * last 20 ms or so, with hysteresis, so that neither one short read nor a short gap between two
 * turns it over (docs/TIERS.md, Pressure). Between two samples the backlog stays as it is, so the
 * mean approaches it by 1 - exp(-time / constant): it does not depend on how often somebody
 * samples, and falls to nothing on an idle device. Every instant is an argument.
 */
#define TIERS_PRESSURE_ON_SECONDS   0.002
#define TIERS_PRESSURE_OFF_SECONDS  0.001
#define TIERS_PRESSURE_MEAN_SECONDS 0.020 /* the mean's time constant */

/* All zero: no backlog, at any instant. */
typedef struct tiers_pressure {
    double backlog_seconds; /* since the last sample */
    double mean_seconds;    /* of the backlog, up to the last sample */
    uint64_t sampled_ns;    /* the last sample; 0 = there was none */
    bool on;
} tiers_pressure;

/* From now on the backlog is so many seconds of work. Instants do not descend. */
void tiers_pressure_sample(tiers_pressure *pressure, double backlog_seconds, uint64_t now_ns);

/* Whether the reads press now. */
bool tiers_pressure_is_on(tiers_pressure *pressure, uint64_t now_ns);

#endif
