/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel_lanes.h - the words of codecs/kernels/kernel_words.h for a GPU that is this processor: the
 * kernels' sources compiled as C, and a launch that runs their threads one after the other. Where a
 * kernel has meetings each thread is a fiber, which runs to its next meeting; there all of a warp,
 * or of the block, have to be.
 *
 * Every read and write is checked against the memory that the launch was given, so that a kernel
 * that leaves it is seen without a sanitizer as well. One thread.
 */
#ifndef SUPPORT_KERNEL_LANES_H
#define SUPPORT_KERNEL_LANES_H

#include "base/clock.h"
#include "base/half.h"
#include "codecs/kernels/jobs.h"

#include <stdlib.h>

/* Memory that a launch may touch. */
typedef struct lanes_memory {
    const void *start;
    uint64_t bytes;
    bool writable;
} lanes_memory;

/*
 * Runs a launch. memory: all that the kernel may touch but for the jobs. False, with what happened
 * on stderr: it left the memory, read or wrote a word that is not aligned, or its threads did not
 * meet; then it was left where it was.
 */
bool lanes_launch(kernel_id kernel, const void *jobs, uint32_t job_count, uint32_t blocks,
                  uint32_t *verdicts, uint32_t verdict_count, const lanes_memory *memory,
                  uint32_t memory_count);

/* ---- the words ---- */

typedef enum lanes_meeting { LANES_NONE, LANES_ALL, LANES_BALLOT, LANES_SHUFFLE } lanes_meeting;

uint32_t lanes_block(void);
uint32_t lanes_thread(void);
uint32_t lanes_meet(lanes_meeting meeting, uint32_t word, uint32_t source);
/* The memory behind an address, for an access of so many bytes. */
void *lanes_at(uint64_t address, uint32_t bytes, uint32_t alignment, bool write);

#define KERNEL_ENTRY(blocks) void
#define KERNEL_INLINE        static inline
#define KERNEL_SHARED        static
#define KERNEL_FOURS         _Alignas(16)
#define KERNEL_TABLE         static const
#define KERNEL_UNROLL

#define kernel_block()  lanes_block()
#define kernel_thread() lanes_thread()
#define kernel_meet()   ((void)lanes_meet(LANES_ALL, 0, 0))

#define kernel_meet_warp() ((void)lanes_meet(LANES_BALLOT, 0, 0))

#define kernel_ballot(flag)        lanes_meet(LANES_BALLOT, (flag) ? 1 : 0, 0)
#define kernel_shuffle(word, lane) lanes_meet(LANES_SHUFFLE, (word), (lane))
#define kernel_count_bits(word)    ((uint32_t)__builtin_popcount(word))
#define kernel_lowest_bit(word)    ((uint32_t)__builtin_ctz(word))
#define kernel_multiply(a, b)      ((a) * (b))
#define kernel_add(a, b)           ((a) + (b))
#define kernel_divide(a, b)        ((a) / (b))
#define kernel_larger(a, b)        ((a) > (b) ? (a) : (b))
#define kernel_smaller(a, b)       ((a) < (b) ? (a) : (b))

#define kernel_multiply_double(a, b) ((a) * (b))
#define kernel_add_double(a, b)      ((a) + (b))
#define kernel_multiply_add(a, b, c) ((a) * (b) + (c))

#define kernel_float_bits(value) half_float_bits(value)
#define kernel_bits_float(bits)  half_bits_float(bits)
#define kernel_from_half(half)   half_to_float((uint16_t)(half))
#define kernel_to_half(value)    ((uint32_t)half_from_float(value))
#define kernel_to_bf16s(first, next)                                                               \
    ((uint32_t)half_bf16_from_float(first) | (uint32_t)half_bf16_from_float(next) << 16)

static inline uint32_t kernel_pick_bytes(uint32_t low, uint32_t high, uint32_t selector)
{
    const uint64_t both = (uint64_t)high << 32 | low;
    uint32_t picked = 0;
    for (uint32_t i = 0; i < 4; i++)
        picked |= (uint32_t)(both >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
    return picked;
}

static inline uint64_t kernel_multiply_high(uint64_t a, uint64_t b)
{
    __extension__ typedef unsigned __int128 wide;
    return (uint64_t)((wide)a * b >> 64);
}

#define LANES_LOAD(name, type, bytes)                                                              \
    static inline type name(uint64_t address)                                                      \
    {                                                                                              \
        type word = 0;                                                                             \
        memcpy(&word, lanes_at(address, bytes, bytes, false), bytes);                              \
        return word;                                                                               \
    }

#define LANES_STORE(name, type, bytes)                                                             \
    static inline void name(uint64_t address, type word)                                           \
    {                                                                                              \
        memcpy(lanes_at(address, bytes, bytes, true), &word, bytes);                               \
    }

LANES_LOAD(kernel_load1, uint32_t, 1)
LANES_LOAD(kernel_load2, uint16_t, 2)
LANES_LOAD(kernel_reload2, uint16_t, 2)
LANES_LOAD(kernel_load4, uint32_t, 4)
LANES_LOAD(kernel_load8, uint64_t, 8)
LANES_STORE(kernel_store1, uint32_t, 1)
LANES_STORE(kernel_store2, uint16_t, 2)
LANES_STORE(kernel_store4, uint32_t, 4)
LANES_STORE(kernel_store8, uint64_t, 8)

static inline void kernel_take_four(const float *from, float four[4])
{
    memcpy(four, from, 4 * sizeof *four);
}

static inline void kernel_load16(uint64_t address, uint32_t words[4])
{
    memcpy(words, lanes_at(address, 16, 16, false), 16);
}

static inline void kernel_store16(uint64_t address, const uint32_t words[4])
{
    memcpy(lanes_at(address, 16, 16, true), words, 16);
}

#define kernel_reload1(address) kernel_load1(address)

static inline void kernel_count_one(uint64_t address)
{
    uint32_t count;
    void *word = lanes_at(address, sizeof count, sizeof count, true);
    memcpy(&count, word, sizeof count);
    count++;
    memcpy(word, &count, sizeof count);
}

static inline uint64_t kernel_peek8(uint64_t address)
{
    return __atomic_load_n((uint64_t *)lanes_at(address, 8, 8, false), __ATOMIC_ACQUIRE);
}

static inline uint32_t kernel_peek1(uint64_t address)
{
    return __atomic_load_n((uint8_t *)lanes_at(address, 1, 1, false), __ATOMIC_RELAXED);
}

static inline void kernel_hand8(uint64_t address, uint64_t word)
{
    __atomic_store_n((uint64_t *)lanes_at(address, 8, 8, true), word, __ATOMIC_RELEASE);
}

static inline uint64_t kernel_swap8(uint64_t address, uint64_t was, uint64_t word)
{
    uint64_t *at = lanes_at(address, 8, 8, true);
    __atomic_compare_exchange_n(at, &was, word, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return was;
}

#define kernel_fence()  __atomic_thread_fence(__ATOMIC_ACQ_REL)
#define kernel_now_ns() base_clock_ns()
#define kernel_pause()  base_sleep(20000)

static inline void kernel_ahead(uint64_t address)
{
    (void)lanes_at(address, 1, 1, false);
}

#define KERNEL_TAKE(job, address)                                                                  \
    memcpy((job), lanes_at((address), sizeof *(job), 8, false), sizeof *(job))

void kvt_check(uint64_t jobs, uint32_t job_count, uint64_t verdicts);
void kvt_raw(uint64_t jobs, uint32_t job_count, uint64_t verdicts);
void kvt_kivi(uint64_t jobs, uint32_t job_count, uint64_t verdicts);
void kvt_planes(uint64_t jobs, uint32_t job_count, uint64_t verdicts);
void kvt_lossless(uint64_t jobs, uint32_t job_count, uint64_t verdicts);
void kvt_dense(uint64_t jobs, uint32_t job_count, uint64_t verdicts);
void kvt_entropy(uint64_t jobs, uint32_t job_count, uint64_t verdicts);
void kvt_codes(uint64_t jobs, uint32_t job_count, uint64_t verdicts);
void kvt_transform(uint64_t jobs, uint32_t job_count, uint64_t verdicts);
void kvt_gather(uint64_t jobs, uint32_t job_count, uint64_t verdicts);
void kvt_ranges(uint64_t jobs, uint32_t job_count, uint64_t verdicts);
void kvt_code_kivi(uint64_t jobs, uint32_t job_count, uint64_t verdicts);
void kvt_code_planes(uint64_t jobs, uint32_t job_count, uint64_t verdicts);
void kvt_ring_posts(uint64_t posts, uint32_t post_count, uint64_t gate);

#endif
