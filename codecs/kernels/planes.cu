/* SPDX-License-Identifier: Apache-2.0 */
/*
 * planes.cu - matrices of codec planes at 2, 3, 4, 6 and 8 bits: the first 1 to 5 planes of a fine
 * code, of 2, 1, 1, 2 and 2 bits.
 */
#include "group_device.h"

enum {
    PLANES_CENTROID_BYTES = 24,   /* 4 and 8 of fp16; 8 zero bytes follow */
    PLANES_CENTROID_MOST = 0x4b80 /* 15; a larger number is negative, not finite, or no level */
};

/* Whether the table is one that an encoder writes. */
KERNEL_INLINE bool planes_table_sound(uint64_t table)
{
    bool sound = kernel_load8(table + PLANES_CENTROID_BYTES) == 0;
    for (uint32_t at = 0; at < PLANES_CENTROID_BYTES; at += 2)
        sound &= kernel_load2(table + at) <= PLANES_CENTROID_MOST;
    return sound;
}

/* Eight codes of all planes, the first plane on top. Full chunks alone. */
KERNEL_INLINE uint64_t planes_codes(const kernel_group_job *job, group_place place)
{
    uint64_t codes = group_codes(job->codes[0], 2, place);
    if (job->planes > 1) codes = codes << 1 | group_bits(job->codes[1], place);
    if (job->planes > 2) codes = codes << 1 | group_bits(job->codes[2], place);
    if (job->planes > 3) codes = codes << 2 | group_codes(job->codes[3], 2, place);
    if (job->planes > 4) codes = codes << 2 | group_codes(job->codes[4], 2, place);
    return codes;
}

/* The same of the last chunk, of which only one of many threads has a part. at: of the job. */
KERNEL_INLINE uint64_t planes_rest(uint64_t at, uint32_t planes, group_place place)
{
    uint64_t codes = 0;
    for (uint32_t p = 0; p < planes; p++) {
        const uint32_t bits = p == 1 || p == 2 ? 1 : 2;
        const uint64_t plane = kernel_load8(at + KERNEL_GROUP_CODES_AT + 8 * p);
        codes = codes << bits | group_rest(plane, bits, place);
    }
    return codes;
}

/* This thread's piece. Returns whether all that was read of minima and scales was sound. */
KERNEL_INLINE bool planes_piece(const kernel_group_job *job, uint64_t at, bool columns)
{
    uint32_t centroids[4];
    group_walk walk;
    if (!group_walk_start(job, at, columns, &walk)) return true;
    /* Of 1 plane the first four, of 2 the eight that follow. */
    KERNEL_UNROLL
    for (uint32_t i = 0; i < 4; i++)
        centroids[i] = kernel_load4(job->table + (job->planes == 2 ? 8 : 0) + 4 * i);
    do {
        const group_place place = group_walk_place(job, &walk);
        float levels[GROUP_EIGHT];
        const uint64_t codes = place.elements == GROUP_CHUNK_ELEMENTS
                                   ? planes_codes(job, place)
                                   : planes_rest(at, job->planes, place);
        switch (job->planes) {
        case 1: group_levels_of(GROUP_IS_4, codes, centroids, levels); break;
        case 2: group_levels_of(GROUP_IS_8, codes, centroids, levels); break;
        case 3: group_levels_of(GROUP_IS_CODE, codes, centroids, levels); break;
        case 4: group_levels_of(GROUP_IS_FINE6, codes, centroids, levels); break;
        default: group_levels_of(GROUP_IS_FINE8, codes, centroids, levels); break;
        }
        group_values(job, &walk.ranges, levels, false, walk.row.address + walk.in_row);
    } while (group_walk_next(job, columns, &walk));
    return walk.sound;
}

KERNEL_ENTRY(2) kvt_planes(uint64_t jobs, uint32_t job_count, uint64_t verdicts)
{
    const uint64_t at = kernel_job(jobs, sizeof(kernel_group_job), job_count);
    kernel_group_job job;
    KERNEL_TAKE(&job, at);
    bool sound = job.columns ? planes_piece(&job, at, true) : planes_piece(&job, at, false);
    if (kernel_block() == job.head.first_block && kernel_thread() == 0)
        sound &= planes_table_sound(job.table);
    if (!sound) kernel_say(verdicts, &job.head, KERNEL_CORRUPT);
}
