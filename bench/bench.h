/*
 * bench.h - the benches behind `kvterrace bench`: parts of the library beside this machine's own
 * limits, measured in the same run.
 *
 * Thread rule: one bench at a time.
 */
#ifndef BENCH_BENCH_H
#define BENCH_BENCH_H

#include <kvterrace/device.h>

#include <stdio.h>

typedef struct bench_options {
    FILE *out;           /* results; messages go to stderr */
    bool json;           /* one JSON document instead of a table */
    bool quick;          /* one repetition of small work: shows that it runs, not how fast */
    uint32_t iterations; /* repetitions; 0 = the bench's default */

    /* devices bench: what to measure. None = a memory device and a file of 256 MiB each, the file
     * in a new folder inside scratch_folder, which is removed afterwards. */
    const kvt_device_config *devices;
    const bool *overwrite; /* one per device: a file device's content may be lost. NULL = none may,
                              so file devices are only read */
    uint32_t device_count;
    const char *scratch_folder; /* NULL = /var/tmp */
} bench_options;

/*
 * Reads and writes every device through a pool of its own, and two throttled members through a
 * stripe with proportional and with equal shares. Returns an exit code: 0; 1 (a device could not be
 * opened or failed; the reason is on stderr). Blocking.
 */
int bench_devices_run(const bench_options *options);

#endif
