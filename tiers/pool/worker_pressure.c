/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worker_pressure.c - the mean of a backlog that is known at its changes alone. Between two samples
 * the backlog stays as it is, so the mean approaches it by 1 - exp(-time / constant): the mean does
 * not depend on how often somebody samples, and falls to nothing on an idle device.
 *
 * Thread rule: as worker_pressure.h.
 */
#include "worker_pressure.h"

#include <assert.h>
#include <math.h>

/* Brings the mean up to an instant, then the switch: between the two bounds it stays. */
static void pressure_advance(tiers_pressure *pressure, uint64_t now_ns)
{
    if (pressure->sampled_ns != 0 && now_ns > pressure->sampled_ns) {
        double seconds = (double)(now_ns - pressure->sampled_ns) * 1e-9;
        double share = 1 - exp(-seconds / TIERS_PRESSURE_MEAN_SECONDS);
        pressure->mean_seconds += share * (pressure->backlog_seconds - pressure->mean_seconds);
    }
    if (now_ns > pressure->sampled_ns) pressure->sampled_ns = now_ns;
    if (pressure->mean_seconds > TIERS_PRESSURE_ON_SECONDS)
        pressure->on = true;
    else if (pressure->mean_seconds < TIERS_PRESSURE_OFF_SECONDS)
        pressure->on = false;
}

void tiers_pressure_sample(tiers_pressure *pressure, double backlog_seconds, uint64_t now_ns)
{
    assert(backlog_seconds >= 0);
    pressure_advance(pressure, now_ns);
    pressure->backlog_seconds = backlog_seconds;
}

bool tiers_pressure_is_on(tiers_pressure *pressure, uint64_t now_ns)
{
    pressure_advance(pressure, now_ns);
    return pressure->on;
}
