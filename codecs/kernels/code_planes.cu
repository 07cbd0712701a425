/* SPDX-License-Identifier: Apache-2.0 */
/*
 * code_planes.cu - the codes of a matrix of planes: the first 1 to 5 planes of a fine code, of 2,
 * 1, 1, 2 and 2 bits, and the counts of fine codes that centroids are chosen by.
 */
#include "code_device.h"

/* Words of a chunk in the planes of 2, 1, 1, 2 and 2 bits. */
typedef struct planes_words {
    uint64_t wide[3][2];
    uint64_t narrow[2];
} planes_words;

/* Bit 0 of each of eight bytes, as a byte. */
KERNEL_INLINE uint64_t planes_gather_bits(uint64_t bytes)
{
    return (bytes & CODE_BYTES(1ull)) * 0x0102040810204080ull >> 56;
}

/* Adds the fine codes of an eight to the words of a full chunk. */
KERNEL_INLINE void planes_add(planes_words *words, uint64_t codes, uint32_t eight)
{
    const uint32_t shift = 2 * (eight / 2);
    KERNEL_UNROLL
    for (uint32_t p = 0; p < 3; p++) {
        const uint64_t part = (codes >> (p == 0 ? 6 : p == 1 ? 2 : 0) & CODE_BYTES(3ull)) << shift;
        words->wide[p][0] |= eight % 2 == 0 ? part : 0;
        words->wide[p][1] |= eight % 2 == 0 ? 0 : part;
    }
    words->narrow[0] |= planes_gather_bits(codes >> 5) << 8 * eight;
    words->narrow[1] |= planes_gather_bits(codes >> 4) << 8 * eight;
}

/* Whether the fine codes of a chunk are counted: of a batch in so many, chunks that lie evenly. */
KERNEL_INLINE bool planes_counts(const kernel_code_job *job, uint32_t first)
{
    const uint32_t of_batch = job->width / CODE_EIGHT; /* chunks */
    const uint32_t chunk = first / CODE_CHUNK, batch = chunk / of_batch;
    const uint32_t left = job->tokens - batch * CODE_BATCH;
    const uint32_t elements = (left < CODE_BATCH ? left : CODE_BATCH) * job->width;
    const uint32_t step = elements / KERNEL_SAMPLE > 1 ? elements / KERNEL_SAMPLE : 1;
    return batch % job->sample_step == 0 && (chunk - batch * of_batch) % step == 0;
}

KERNEL_INLINE void planes_count(const kernel_code_job *job, uint64_t codes)
{
    for (uint32_t i = 0; i < CODE_EIGHT; i++)
        kernel_count_one(job->histogram + 4 * (codes >> 8 * i & 0xff));
}

/* An eight of a chunk that is not full: all planes that there are. at: of the job. */
KERNEL_INLINE void planes_add_rest(const kernel_code_job *job, uint64_t at, uint32_t first,
                                   uint64_t codes, uint32_t eight, uint32_t count)
{
    for (uint32_t p = 0; p < job->planes; p++) {
        const uint32_t bits = p == 1 || p == 2 ? 1 : 2;
        const uint32_t shift = p == 0 ? 6 : p == 1 ? 5 : p == 2 ? 4 : p == 3 ? 2 : 0;
        const uint64_t plane =
            kernel_load8(at + KERNEL_CODE_PLANES_AT + 8 * p) + (uint64_t)first / 8 * bits;
        if (eight == 0)
            for (uint32_t byte = 0; byte < count / 8 * bits; byte++)
                kernel_store1(plane + byte, 0);
        code_add_rest(plane, bits, codes >> shift, eight, count);
    }
}

KERNEL_INLINE void planes_store(const kernel_code_job *job, uint32_t first,
                                const planes_words *words)
{
    const uint64_t at = (uint64_t)first / 8;
    KERNEL_UNROLL
    for (uint32_t i = 0; i < 2; i++) {
        kernel_store8(job->codes[0] + 2 * at + 8 * i, words->wide[0][i]);
        if (job->planes > 3) kernel_store8(job->codes[3] + 2 * at + 8 * i, words->wide[1][i]);
        if (job->planes > 4) kernel_store8(job->codes[4] + 2 * at + 8 * i, words->wide[2][i]);
    }
    if (job->planes > 1) kernel_store8(job->codes[1] + at, words->narrow[0]);
    if (job->planes > 2) kernel_store8(job->codes[2] + at, words->narrow[1]);
}

KERNEL_INLINE void planes_code_chunk(const kernel_code_job *job, uint64_t at, uint32_t first,
                                     uint32_t count)
{
    planes_words words = {{{0, 0}, {0, 0}, {0, 0}}, {0, 0}};
    const bool counts = planes_counts(job, first);
    for (uint32_t eight = 0; eight < count / CODE_EIGHT; eight++) {
        const uint64_t codes = code_eight(job, at, first + CODE_EIGHT * eight, 15.0f, true);
        if (counts) planes_count(job, codes);
        if (count == CODE_CHUNK)
            planes_add(&words, codes, eight);
        else
            planes_add_rest(job, at, first, codes, eight, count);
    }
    if (count == CODE_CHUNK) planes_store(job, first, &words);
}

KERNEL_ENTRY(2) kvt_code_planes(uint64_t jobs, uint32_t job_count, uint64_t verdicts)
{
    const uint64_t at = kernel_job(jobs, sizeof(kernel_code_job), job_count);
    kernel_code_job job;
    uint32_t first, count;
    KERNEL_TAKE(&job, at);
    (void)verdicts;
    if (code_chunk(&job, &first, &count)) planes_code_chunk(&job, at, first, count);
}
