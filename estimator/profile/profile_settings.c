/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_settings.c - what both measurements share: a request's defaults, medians, seeded numbers.
 * Pure; any thread.
 */
#include "estimator/profile/profile_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PROFILE_SECONDS_DEFAULT     0.05
#define PROFILE_SECONDS_QUICK       0.03
#define PROFILE_REPETITIONS_DEFAULT 5u
#define PROFILE_REPETITIONS_QUICK   3u
#define PROFILE_REPETITIONS_MAX     1000u
#define PROFILE_RESUME_MAX          (366.0 * 86400.0)

kvt_status profile_settings_read(const kvt_profile_request *request, profile_settings *out)
{
    memset(out, 0, sizeof *out);
    out->seconds_per_point = PROFILE_SECONDS_DEFAULT;
    out->repetitions = PROFILE_REPETITIONS_DEFAULT;
    if (request == NULL) return KVT_OK;
    if (request->struct_size != sizeof *request) return KVT_E_ARGUMENT;
    if (!(request->seconds_per_point >= 0.0 && request->seconds_per_point <= 3600.0) ||
        request->repetitions > PROFILE_REPETITIONS_MAX || !(request->resume_seconds >= 0.0)) {
        return KVT_E_ARGUMENT;
    }
    if (request->quick) {
        out->seconds_per_point = PROFILE_SECONDS_QUICK;
        out->repetitions = PROFILE_REPETITIONS_QUICK;
    }
    out->resume_seconds = fmin(request->resume_seconds, PROFILE_RESUME_MAX);
    if (request->seconds_per_point > 0.0) out->seconds_per_point = request->seconds_per_point;
    if (request->repetitions > 0) out->repetitions = request->repetitions;
    out->quick = request->quick;
    out->command_line = request->command_line;
    out->progress = request->progress;
    out->progress_context = request->progress_context;
    return KVT_OK;
}

static int profile_compare(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

double profile_median(double *values, size_t count)
{
    qsort(values, count, sizeof *values, profile_compare);
    size_t middle = count / 2;
    return count % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2.0;
}

uint64_t profile_random(uint64_t *state)
{
    uint64_t value = (*state += UINT64_C(0x9e3779b97f4a7c15));
    value = (value ^ (value >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    value = (value ^ (value >> 27)) * UINT64_C(0x94d049bb133111eb);
    return value ^ (value >> 31);
}
