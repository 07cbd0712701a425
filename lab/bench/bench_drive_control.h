/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_drive_control.h - speaks to the emulated drives of tests/support/drives: their speed, and
 * whether they are there. A drive is named by the path of its device, FOLDER/N/drive.
 *
 * Thread rule: any thread, one at a time per drive.
 */
#ifndef BENCH_BENCH_DRIVE_CONTROL_H
#define BENCH_BENCH_DRIVE_CONTROL_H

#include <stdbool.h>

/* Bytes per second of the drive, or 0 when the path is not an emulated drive's. */
double bench_drive_rate(const char *path);

/* All return false, with a line on stderr, when the drive cannot be reached or does not follow. */
bool bench_drive_set_rate(const char *path, double bytes_per_s);
bool bench_drive_vanish(const char *path);
bool bench_drive_return(const char *path);

#endif
