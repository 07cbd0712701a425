/* SPDX-License-Identifier: Apache-2.0 */
/*
 * code_kivi.cu - the codes of a matrix of kivi: one plane of 2, 4 or 8 bits. Word m of a chunk's
 * `bits` words has the eights m, m + bits, m + 2 * bits, .. , each `bits` higher than the last.
 */
#include "code_device.h"

KERNEL_INLINE void kivi_code_chunk(const kernel_code_job *job, uint64_t at, uint32_t first,
                                   uint32_t count)
{
    const float max_code = (float)((1u << job->bits) - 1);
    const uint64_t plane = job->codes[0] + (uint64_t)first / 8 * job->bits;
    if (count < CODE_CHUNK) {
        for (uint32_t byte = 0; byte < count / 8 * job->bits; byte++)
            kernel_store1(plane + byte, 0);
        for (uint32_t eight = 0; eight < count / CODE_EIGHT; eight++)
            code_add_rest(plane, job->bits,
                          code_eight(job, at, first + CODE_EIGHT * eight, max_code, false), eight,
                          count);
        return;
    }
    for (uint32_t m = 0; m < job->bits; m++) {
        uint64_t word = 0;
        for (uint32_t eight = m; eight < CODE_EIGHT; eight += job->bits) {
            const uint64_t codes = code_eight(job, at, first + CODE_EIGHT * eight, max_code, false);
            word |= codes << (eight - m);
        }
        kernel_store8(plane + 8 * m, word);
    }
}

KERNEL_ENTRY(2) kvt_code_kivi(uint64_t jobs, uint32_t job_count, uint64_t verdicts)
{
    const uint64_t at = kernel_job(jobs, sizeof(kernel_code_job), job_count);
    kernel_code_job job;
    uint32_t first, count;
    KERNEL_TAKE(&job, at);
    (void)verdicts;
    if (code_chunk(&job, &first, &count)) kivi_code_chunk(&job, at, first, count);
}
