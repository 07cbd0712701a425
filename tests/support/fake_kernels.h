/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_kernels.h - the kernels of the library's table for the stand-in of the driver: the host's
 * build of them (kernel_lanes.h). A kernel that is added to the table needs nothing here. A program
 * without the stand-in may include it, too: fake_kernels_give does nothing there.
 *
 * Thread rule: as fake_cuda.h.
 */
#ifndef TESTS_SUPPORT_FAKE_KERNELS_H
#define TESTS_SUPPORT_FAKE_KERNELS_H

#include "codecs/kernels/kernel_table.h"
#include "fake_cuda.h"
#include "kernel_lanes.h"

#include <stdlib.h>

enum { FAKE_KERNEL_WORDS = 16384, FAKE_KERNELS_MAX = KERNEL_COUNT + 4, FAKE_KERNEL_ROOMS = 24 };

/* Launches that left their memory, or hung. */
static uint32_t fake_kernel_failures;

static bool fake_kernel_lies; /* checks say that what is sound is not */

/* Memory that kernels which decode may write beside the verdicts and the rooms that jobs name; no
 * bytes: all that is accessible, as those may that encode. */
static lanes_memory fake_kernel_targets[2];

static void fake_kernel_run(const fake_cuda_kernel *kernel, const fake_cuda_launch *launch);

static fake_cuda_kernel fake_kernels[FAKE_KERNELS_MAX];

static void fake_kernel_run(const fake_cuda_kernel *kernel, const fake_cuda_launch *launch)
{
    const kernel_id id = (kernel_id)(kernel - fake_kernels);
    const bool bounded = fake_kernel_targets[0].bytes != 0;
    const kernel_codes_job *codes = (const void *)(uintptr_t)launch->parameters[0];
    const uint32_t jobs = (uint32_t)launch->parameters[1];
    lanes_memory memory[FAKE_KERNEL_ROOMS + 3] = {fake_kernel_targets[0], fake_kernel_targets[1]};
    uint32_t count = bounded ? 2 : 0;
    for (uint32_t i = 0; bounded && id == KERNEL_CODES && i < jobs; i++) {
        const uint32_t blocks = (codes[i].tokens + KERNEL_CODES_TOKENS - 1) / KERNEL_CODES_TOKENS;
        if (i == FAKE_KERNEL_ROOMS) abort();
        memory[count++] =
            (lanes_memory){(void *)(uintptr_t)codes[i].room, blocks * codes[i].room_bytes, true};
    }
    memory[count++] = (lanes_memory){
        .start = NULL, .bytes = UINT64_MAX, .writable = !bounded || id >= KERNEL_DECODERS};
    if (launch->block != KERNEL_THREADS ||
        !lanes_launch(id, (void *)(uintptr_t)launch->parameters[0], jobs, launch->grid,
                      (uint32_t *)(uintptr_t)launch->parameters[2], FAKE_KERNEL_WORDS, memory,
                      count))
        fake_kernel_failures++;
    if (id == KERNEL_CHECK && fake_kernel_lies)
        ((uint32_t *)(uintptr_t)launch->parameters[2])[0] = 2;
}

/* Gives modules the kernels of the table, and others behind them; state may be NULL. */
static inline void fake_kernels_give(fake_cuda_state *state, const fake_cuda_kernel *others,
                                     uint32_t other_count)
{
    if (state == NULL) return;
    for (uint32_t k = 0; k < KERNEL_COUNT; k++)
        fake_kernels[k] =
            (fake_cuda_kernel){kernel_facts_of((kernel_id)k)->function, fake_kernel_run, {8, 4, 8}};
    for (uint32_t i = 0; i < other_count && KERNEL_COUNT + i < FAKE_KERNELS_MAX; i++)
        fake_kernels[KERNEL_COUNT + i] = others[i];
    state->kernels = fake_kernels;
    state->kernel_count = KERNEL_COUNT + other_count;
}

#endif
