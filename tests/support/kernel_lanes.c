/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel_lanes.c - see kernel_lanes.h: the kernels of a GPU on this processor. One thread.
 */
#include "kernel_lanes.h"

#include <setjmp.h>
#include <stdio.h>
#include <ucontext.h>

#include "codecs/kernels/kernel_table.h"

#include "codecs/kernels/check.cu"
#include "codecs/kernels/code_kivi.cu"
#include "codecs/kernels/code_planes.cu"
#include "codecs/kernels/codes.cu"
#include "codecs/kernels/dense.cu"
#include "codecs/kernels/entropy.cu"
#include "codecs/kernels/kivi.cu"
#include "codecs/kernels/lossless.cu"
#include "codecs/kernels/planes.cu"
#include "codecs/kernels/ranges.cu"
#include "codecs/kernels/raw.cu"
#include "codecs/kernels/ring.cu"
#include "codecs/kernels/transform.cu"

#if defined(__SANITIZE_ADDRESS__)
#define LANES_ADDRESS 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define LANES_ADDRESS 1
#endif
#endif
#if defined(LANES_ADDRESS)
#include <sanitizer/common_interface_defs.h>
#endif

enum { LANES_STACK = 64 << 10, LANES_MEMORY = 600 };

typedef void lanes_kernel(uint64_t jobs, uint32_t job_count, uint64_t verdicts);

/* One thread of the block. */
typedef struct lanes_lane {
    ucontext_t context;
    uint8_t *stack;
    lanes_meeting meeting; /* that it waits for */
    bool ended;
    uint32_t word; /* given; then got */
    uint32_t source;
} lanes_lane;

/* The launch that runs. */
static struct {
    lanes_memory memory[LANES_MEMORY];
    uint32_t memory_count;
    uint32_t last; /* memory that was touched last */
    uint32_t block;
    uint32_t thread;
    bool fibers;
    lanes_kernel *kernel;
    uint64_t jobs;
    uint32_t job_count;
    uint64_t verdicts;
    lanes_lane lanes[KERNEL_THREADS];
    uint32_t ended; /* of them */
    ucontext_t scheduler;
    const void *main_stack;
    size_t main_stack_bytes;
    jmp_buf left;
    bool failed;
} lanes;

static void lanes_switch(bool to_lane, uint32_t lane)
{
    lanes_lane *own = &lanes.lanes[lane];
#if defined(LANES_ADDRESS)
    void *kept = NULL;
    if (to_lane)
        __sanitizer_start_switch_fiber(&kept, own->stack, LANES_STACK);
    else
        __sanitizer_start_switch_fiber(own->ended ? NULL : &kept, lanes.main_stack,
                                       lanes.main_stack_bytes);
#endif
    if (to_lane)
        swapcontext(&lanes.scheduler, &own->context);
    else
        swapcontext(&own->context, &lanes.scheduler);
#if defined(LANES_ADDRESS)
    if (to_lane)
        __sanitizer_finish_switch_fiber(kept, NULL, NULL);
    else
        __sanitizer_finish_switch_fiber(kept, &lanes.main_stack, &lanes.main_stack_bytes);
#endif
}

/* Ends the launch where it is. */
static _Noreturn void lanes_fail(const char *text, uint64_t address)
{
    fprintf(stderr, "kernel, block %u, thread %u: %s %llx\n", lanes.block, lanes.thread, text,
            (unsigned long long)address);
    lanes.failed = true;
    if (!lanes.fibers) longjmp(lanes.left, 1);
    lanes.lanes[lanes.thread].ended = true;
    lanes_switch(false, lanes.thread);
    abort();
}

uint32_t lanes_block(void)
{
    return lanes.block;
}

uint32_t lanes_thread(void)
{
    return lanes.thread;
}

void *lanes_at(uint64_t address, uint32_t bytes, uint32_t alignment, bool write)
{
    if (address % alignment != 0) lanes_fail("not aligned:", address);
    for (uint32_t i = 0; i <= lanes.memory_count; i++) {
        const uint32_t at = i == 0 ? lanes.last : i - 1;
        const lanes_memory *memory = &lanes.memory[at];
        const uint64_t from = address - (uint64_t)(uintptr_t)memory->start;
        if (from > memory->bytes || memory->bytes - from < bytes) continue;
        if (write && !memory->writable) continue;
        lanes.last = at;
        return (void *)(uintptr_t)address;
    }
    lanes_fail(write ? "writes outside:" : "reads outside:", address);
}

uint32_t lanes_meet(lanes_meeting meeting, uint32_t word, uint32_t source)
{
    lanes_lane *own = &lanes.lanes[lanes.thread];
    if (!lanes.fibers) lanes_fail("a meeting in a kernel that has none", meeting);
    own->meeting = meeting;
    own->word = word;
    own->source = source;
    lanes_switch(false, lanes.thread);
    return own->word;
}

static void lanes_start(void)
{
#if defined(LANES_ADDRESS)
    __sanitizer_finish_switch_fiber(NULL, &lanes.main_stack, &lanes.main_stack_bytes);
#endif
    const uint32_t lane = lanes.thread;
    lanes.kernel(lanes.jobs, lanes.job_count, lanes.verdicts);
    lanes.lanes[lane].ended = true;
    lanes_switch(false, lane);
}

/* Whether the lanes of [first, end) all wait for the same meeting, which is one of a warp. */
static bool lanes_gathered(uint32_t first, uint32_t end, lanes_meeting meeting)
{
    for (uint32_t i = first; i < end; i++)
        if (lanes.lanes[i].ended || lanes.lanes[i].meeting != meeting) return false;
    return true;
}

static void lanes_exchange(uint32_t first)
{
    uint32_t words[KERNEL_WARP], ballot = 0;
    for (uint32_t i = 0; i < KERNEL_WARP; i++) {
        words[i] = lanes.lanes[first + i].word;
        ballot |= (words[i] & 1) << i;
    }
    for (uint32_t i = 0; i < KERNEL_WARP; i++) {
        lanes_lane *lane = &lanes.lanes[first + i];
        lane->word = lane->meeting == LANES_BALLOT ? ballot : words[lane->source % KERNEL_WARP];
        lane->meeting = LANES_NONE;
    }
}

/* Lets gathered lanes go on. False: nobody can. */
static bool lanes_release(void)
{
    bool any = false;
    for (uint32_t warp = 0; warp < KERNEL_THREADS; warp += KERNEL_WARP) {
        const uint32_t end = warp + KERNEL_WARP;
        if (!lanes_gathered(warp, end, LANES_BALLOT) && !lanes_gathered(warp, end, LANES_SHUFFLE))
            continue;
        lanes_exchange(warp);
        any = true;
    }
    if (!any && lanes_gathered(0, KERNEL_THREADS, LANES_ALL)) {
        for (uint32_t i = 0; i < KERNEL_THREADS; i++)
            lanes.lanes[i].meeting = LANES_NONE;
        any = true;
    }
    return any;
}

/* A fiber at its start. */
static void lanes_prepare(lanes_lane *lane)
{
    uint8_t *stack = lane->stack != NULL ? lane->stack : malloc(LANES_STACK);
    if (stack == NULL) abort();
    memset(lane, 0, sizeof *lane);
    lane->stack = stack;
    getcontext(&lane->context);
    lane->context.uc_stack.ss_sp = lane->stack;
    lane->context.uc_stack.ss_size = LANES_STACK;
    makecontext(&lane->context, lanes_start, 0);
}

static void lanes_run_fibers(void)
{
    lanes.ended = 0;
    for (uint32_t i = 0; i < KERNEL_THREADS; i++)
        lanes_prepare(&lanes.lanes[i]);
    while (lanes.ended < KERNEL_THREADS) {
        for (uint32_t i = 0; i < KERNEL_THREADS; i++) {
            lanes_lane *lane = &lanes.lanes[i];
            if (lane->ended || lane->meeting != LANES_NONE) continue;
            lanes.thread = i;
            lanes_switch(true, i);
            if (lanes.failed) return;
            lanes.ended += lane->ended;
        }
        if (lanes.ended < KERNEL_THREADS && !lanes_release()) {
            fprintf(stderr, "kernel, block %u: its threads wait for each other\n", lanes.block);
            lanes.failed = true;
            return;
        }
    }
}

static void lanes_run_straight(void)
{
    for (lanes.thread = 0; lanes.thread < KERNEL_THREADS; lanes.thread++)
        lanes.kernel(lanes.jobs, lanes.job_count, lanes.verdicts);
}

static void lanes_allow(const void *start, uint64_t bytes, bool writable)
{
    if (lanes.memory_count == LANES_MEMORY) abort();
    lanes.memory[lanes.memory_count++] = (lanes_memory){start, bytes, writable};
}

bool lanes_launch(kernel_id kernel, const void *jobs, uint32_t job_count, uint32_t blocks,
                  uint32_t *verdicts, uint32_t verdict_count, const lanes_memory *memory,
                  uint32_t memory_count)
{
    static lanes_kernel *const kernels[KERNEL_COUNT] = {
        [KERNEL_CHECK] = kvt_check,
        [KERNEL_RAW] = kvt_raw,
        [KERNEL_KIVI] = kvt_kivi,
        [KERNEL_PLANES] = kvt_planes,
        [KERNEL_LOSSLESS] = kvt_lossless,
        [KERNEL_DENSE] = kvt_dense,
        [KERNEL_ENTROPY] = kvt_entropy,
        [KERNEL_CODES] = kvt_codes,
        [KERNEL_TRANSFORM] = kvt_transform,
        [KERNEL_GATHER] = kvt_gather,
        [KERNEL_RANGES] = kvt_ranges,
        [KERNEL_CODE_KIVI] = kvt_code_kivi,
        [KERNEL_CODE_PLANES] = kvt_code_planes,
        [KERNEL_RING] = kvt_ring_posts,
    };
    lanes.kernel = kernels[kernel];
    lanes.jobs = (uint64_t)(uintptr_t)jobs;
    lanes.job_count = job_count;
    lanes.verdicts = (uint64_t)(uintptr_t)verdicts;
    lanes.fibers = kernel == KERNEL_CHECK || kernel == KERNEL_RING ||
                   (kernel >= KERNEL_LOSSLESS && kernel < KERNEL_DECODERS);
    lanes.failed = false;
    lanes.memory_count = lanes.last = 0;
    lanes_allow(jobs, job_count * (uint64_t)kernel_facts_of(kernel)->job_bytes,
                kernel == KERNEL_RING);
    lanes_allow(verdicts, verdict_count * sizeof *verdicts, true);
    for (uint32_t i = 0; i < memory_count; i++)
        lanes_allow(memory[i].start, memory[i].bytes, memory[i].writable);
    if (!lanes.fibers && setjmp(lanes.left) != 0) return false;
    for (lanes.block = 0; lanes.block < blocks && !lanes.failed; lanes.block++) {
        if (lanes.fibers)
            lanes_run_fibers();
        else
            lanes_run_straight();
    }
    return !lanes.failed;
}
