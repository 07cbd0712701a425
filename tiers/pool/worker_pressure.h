/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worker_pressure.h - whether the reads that somebody waits for keep a device busy: the mean of
 * their backlog over the last 20 ms or so, with hysteresis, so that neither one short read nor a
 * short gap between two turns it over (docs/TIERS.md, Pressure).
 *
 * Thread rule: pure arithmetic over the caller's memory; every instant is an argument.
 */
#ifndef TIERS_WORKER_PRESSURE_H
#define TIERS_WORKER_PRESSURE_H

#include <stdbool.h>
#include <stdint.h>

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
