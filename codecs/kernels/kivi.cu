/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kivi.cu - matrices of codec kivi: one plane of 2, 4 or 8 bits, values in fp32 or in fp16 steps.
 */
#include "group_device.h"

/* This thread's piece. Returns whether all that was read of minima and scales was sound. */
KERNEL_INLINE bool kivi_piece(const kernel_group_job *job, uint64_t at, bool columns)
{
    const uint32_t none[4] = {0, 0, 0, 0};
    group_walk walk;
    if (!group_walk_start(job, at, columns, &walk)) return true;
    do {
        const group_place place = group_walk_place(job, &walk);
        float levels[GROUP_EIGHT];
        const uint64_t codes = place.elements == GROUP_CHUNK_ELEMENTS
                                   ? group_codes(job->codes[0], job->bits, place)
                                   : group_rest(job->codes[0], job->bits, place);
        group_levels_of(GROUP_IS_CODE, codes, none, levels);
        group_values(job, &walk.ranges, levels, job->half_steps != 0,
                     walk.row.address + walk.in_row);
    } while (group_walk_next(job, columns, &walk));
    return walk.sound;
}

KERNEL_ENTRY(2) kvt_kivi(uint64_t jobs, uint32_t job_count, uint64_t verdicts)
{
    const uint64_t at = kernel_job(jobs, sizeof(kernel_group_job), job_count);
    kernel_group_job job;
    KERNEL_TAKE(&job, at);
    const bool sound = job.columns ? kivi_piece(&job, at, true) : kivi_piece(&job, at, false);
    if (!sound) kernel_say(verdicts, &job.head, KERNEL_CORRUPT);
}
