/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ranges.cu - minima and scales of the groups of kivi and planes: the first pass over a matrix that
 * is encoded. A group that fp16 cannot hold, or an element that is not finite, makes the matrix one
 * that is stored raw, which the CPU does.
 */
#include "code_device.h"

/* What is known of a group, or of a channel's, so far. */
typedef struct ranges_group {
    float low;
    float high;
    uint32_t most; /* of the sizes' bits: at least those of infinity where one is not finite */
} ranges_group;

KERNEL_INLINE void ranges_add(ranges_group *group, float value)
{
    const uint32_t size = kernel_float_bits(value) & 0x7fffffffu;
    group->low = kernel_smaller(group->low, value);
    group->high = kernel_larger(group->high, value);
    if (size > group->most) group->most = size;
}

/* Metadata of a group, the minimum in the lower half. False: it does not fit. */
KERNEL_INLINE bool ranges_finish(const ranges_group *group, float max_code, uint32_t *minimum_out,
                                 uint32_t *scale_out)
{
    const float minimum = code_round(kernel_add(group->low, 0.0f));
    float range = code_round(kernel_add(group->high, -minimum));
    if (range <= 0.0f) range = 0.0f;
    *minimum_out = kernel_to_half(kernel_add(minimum, 0.0f));
    *scale_out = kernel_to_half(kernel_divide(range, max_code));
    return group->most < 0x7f800000u && minimum >= -65504.0f && minimum <= 65504.0f &&
           range <= 65504.0f;
}

/* Eight channels of a run of tokens. */
KERNEL_INLINE bool ranges_columns(const kernel_code_job *job, uint64_t at, uint32_t item)
{
    const uint32_t eights = job->width / CODE_EIGHT, run = item / eights;
    const uint32_t channel = (item - run * eights) * CODE_EIGHT, first = run * job->group;
    const uint32_t left = job->tokens - first,
                   end = first + (left < job->group ? left : job->group);
    const float max_code = (float)((1u << job->bits) - 1);
    ranges_group groups[CODE_EIGHT];
    float values[CODE_EIGHT];
    uint32_t minima[4] = {0, 0, 0, 0}, scales[4] = {0, 0, 0, 0};
    bool sound = true;
    code_load(job, code_address(job, at, first, channel), values);
    KERNEL_UNROLL
    for (uint32_t i = 0; i < CODE_EIGHT; i++) {
        groups[i].low = groups[i].high = values[i];
        groups[i].most = kernel_float_bits(values[i]) & 0x7fffffffu;
    }
    for (uint32_t token = first + 1; token < end; token++) {
        code_load(job, code_address(job, at, token, channel), values);
        KERNEL_UNROLL
        for (uint32_t i = 0; i < CODE_EIGHT; i++)
            ranges_add(&groups[i], values[i]);
    }
    KERNEL_UNROLL
    for (uint32_t i = 0; i < CODE_EIGHT; i++) {
        uint32_t minimum, scale;
        sound &= ranges_finish(&groups[i], max_code, &minimum, &scale);
        minima[i / 2] |= minimum << (i % 2 == 0 ? 0 : 16);
        scales[i / 2] |= scale << (i % 2 == 0 ? 0 : 16);
    }
    const uint64_t group = (uint64_t)run * job->width + channel;
    kernel_store16(job->minima + 2 * group, minima);
    kernel_store16(job->scales + 2 * group, scales);
    return sound;
}

/* A group of a token. */
KERNEL_INLINE bool ranges_row(const kernel_code_job *job, uint64_t at, uint32_t item)
{
    const uint32_t token = item / job->row_groups, number = item - token * job->row_groups;
    const uint32_t of_unit = (job->unit + job->group - 1) / job->group, unit = number / of_unit;
    const uint32_t in_unit = (number - unit * of_unit) * job->group;
    const uint32_t left = job->unit - in_unit, count = left < job->group ? left : job->group;
    const uint32_t first = unit * job->unit + in_unit;
    ranges_group group = {0.0f, 0.0f, 0};
    float values[CODE_EIGHT];
    uint32_t minimum, scale;
    for (uint32_t channel = first; channel < first + count; channel += CODE_EIGHT) {
        code_load(job, code_address(job, at, token, channel), values);
        if (channel == first) group.low = group.high = values[0];
        KERNEL_UNROLL
        for (uint32_t i = 0; i < CODE_EIGHT; i++)
            ranges_add(&group, values[i]);
    }
    const bool sound = ranges_finish(&group, (float)((1u << job->bits) - 1), &minimum, &scale);
    kernel_store2(job->minima + 2 * (uint64_t)item, (uint16_t)minimum);
    kernel_store2(job->scales + 2 * (uint64_t)item, (uint16_t)scale);
    return sound;
}

KERNEL_ENTRY(2) kvt_ranges(uint64_t jobs, uint32_t job_count, uint64_t verdicts)
{
    const uint64_t at = kernel_job(jobs, sizeof(kernel_code_job), job_count);
    kernel_code_job job;
    KERNEL_TAKE(&job, at);
    const uint32_t item =
        (kernel_block() - job.head.first_block) * KERNEL_THREADS + kernel_thread();
    bool sound = true;
    if (job.columns) {
        const uint32_t runs = (job.tokens + job.group - 1) / job.group;
        if (item < runs * (job.width / CODE_EIGHT)) sound = ranges_columns(&job, at, item);
    } else {
        if (item < job.tokens * job.row_groups) sound = ranges_row(&job, at, item);
    }
    if (!sound) kernel_say(verdicts, &job.head, KERNEL_UNCODED);
}
