/* SPDX-License-Identifier: Apache-2.0 */
/*
 * raw.cu - rows that are stored as they are, to their places in pages and back: raw matrices, and
 * the raw tokens of coded ones.
 *
 * A block has some rows. A row is copied by as many lanes as it has transfers, at most a warp, so
 * that a warp writes whole neighbouring lines. A thread reads four transfers before it writes them:
 * 64 bytes on their way for each of 2,048 threads is what a multiprocessor needs to be kept busy.
 */
#include "kernel_words.h"

enum { RAW_AHEAD = 4 };

/* One transfer; bytes is a constant at each call: 16, 4 or 1. */
KERNEL_INLINE void raw_load(uint64_t address, uint32_t bytes, uint32_t words[4])
{
    if (bytes == 16)
        kernel_load16(address, words);
    else
        words[0] = bytes == 4 ? kernel_load4(address) : kernel_load1(address);
}

KERNEL_INLINE void raw_store(uint64_t address, uint32_t bytes, const uint32_t words[4])
{
    if (bytes == 16)
        kernel_store16(address, words);
    else if (bytes == 4)
        kernel_store4(address, words[0]);
    else
        kernel_store1(address, words[0]);
}

/* Where a transfer of a row goes. */
KERNEL_INLINE uint64_t raw_place(const kernel_raw_job *job, uint64_t row, uint32_t transfer,
                                 uint32_t bytes)
{
    if (job->target.heads == 1) return row + (uint64_t)transfer * bytes;
    const uint32_t of_head = (uint32_t)job->target.head_bytes / bytes;
    const uint32_t head = transfer / of_head;
    return row + head * job->target.head_stride + (uint64_t)(transfer - head * of_head) * bytes;
}

/* gather, here and below: from pages, a constant at each call. */
KERNEL_INLINE void raw_rows(const kernel_raw_job *job, uint64_t at, uint32_t bytes, bool gather)
{
    const uint32_t first = (kernel_block() - job->head.first_block) * job->block_rows;
    const uint32_t left = (uint32_t)job->rows - first;
    const uint32_t end = first + (left < job->block_rows ? left : job->block_rows);
    const uint32_t transfers = (uint32_t)job->row_bytes / bytes;
    uint32_t lanes = KERNEL_WARP;
    while (lanes > 1 && lanes / 2 >= transfers)
        lanes /= 2;
    const uint32_t lane = kernel_thread() % lanes;
    for (uint32_t row = first + kernel_thread() / lanes; row < end; row += KERNEL_THREADS / lanes) {
        const uint64_t source = job->source + row * job->row_bytes;
        const uint64_t target =
            kernel_row_of(&job->target, at + offsetof(kernel_raw_job, target), row).address;
        for (uint32_t next = lane; next < transfers; next += RAW_AHEAD * lanes) {
            uint32_t words[RAW_AHEAD][4];
            KERNEL_UNROLL
            for (uint32_t i = 0; i < RAW_AHEAD; i++) {
                const uint32_t transfer = next + i * lanes;
                const uint64_t stored = source + (uint64_t)transfer * bytes;
                if (transfer < transfers)
                    raw_load(gather ? raw_place(job, target, transfer, bytes) : stored, bytes,
                             words[i]);
            }
            KERNEL_UNROLL
            for (uint32_t i = 0; i < RAW_AHEAD; i++) {
                const uint32_t transfer = next + i * lanes;
                const uint64_t stored = source + (uint64_t)transfer * bytes;
                if (transfer < transfers)
                    raw_store(gather ? stored : raw_place(job, target, transfer, bytes), bytes,
                              words[i]);
            }
        }
    }
}

KERNEL_INLINE void raw_all(uint64_t jobs, uint32_t job_count, bool gather)
{
    const uint64_t at = kernel_job(jobs, sizeof(kernel_raw_job), job_count);
    kernel_raw_job job;
    KERNEL_TAKE(&job, at);
    if (job.transfer_bytes == 16)
        raw_rows(&job, at, 16, gather);
    else if (job.transfer_bytes >= 4)
        raw_rows(&job, at, 4, gather);
    else
        raw_rows(&job, at, 1, gather);
}

KERNEL_ENTRY(4) kvt_raw(uint64_t jobs, uint32_t job_count, uint64_t verdicts)
{
    (void)verdicts;
    raw_all(jobs, job_count, false);
}

KERNEL_ENTRY(4) kvt_gather(uint64_t jobs, uint32_t job_count, uint64_t verdicts)
{
    (void)verdicts;
    raw_all(jobs, job_count, true);
}
