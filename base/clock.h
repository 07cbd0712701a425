/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clock.h - a clock's seconds, for what the estimator times. Any thread.
 */
#ifndef ESTIMATOR_CLOCK_H
#define ESTIMATOR_CLOCK_H

#include <time.h>

static inline double estimator_seconds(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

#endif
