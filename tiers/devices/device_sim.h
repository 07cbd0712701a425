/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_sim.h - changes a simulated device while it runs: a drive that drifts, in virtual time.
 *
 * Thread rule: any thread between open and close; operations submitted later go by the new speed.
 */
#ifndef TIERS_DEVICE_SIM_H
#define TIERS_DEVICE_SIM_H

#include "device_ops.h"

/* The device is an open `sim`; neither speed is 0. */
void tiers_sim_set_speed(kvt_device *device, uint64_t read_bytes_per_s, uint64_t write_bytes_per_s);

#endif
