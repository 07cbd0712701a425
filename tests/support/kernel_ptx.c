/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel_ptx.c - launches of a GPU's kernels by the PTX that is in the library: the lanes_launch of
 * kernel_lanes.h for the programs that are linked to ptx_machine.h instead of kernel_lanes.c. Every
 * second launch runs its blocks backwards, as no block may stand on another one.
 */
#include "codecs/kernels/kernel_table.h"

#include "kernel_lanes.h"
#include "ptx_machine.h"

#include <stdio.h>

static ptx_machine *machines[KERNEL_COUNT];

static void close_machines(void)
{
    for (uint32_t i = 0; i < KERNEL_COUNT; i++)
        ptx_close(machines[i]);
}

/* The kernel's module, opened once; NULL: it is none. */
static ptx_machine *machine_of(kernel_id kernel, char error[PTX_ERROR_BYTES])
{
    static bool closes;
    if (!closes) closes = atexit(close_machines) == 0;
    const char *text = kernel_facts_of(kernel)->ptx;
    if (machines[kernel] == NULL) machines[kernel] = ptx_open(text, strlen(text), error);
    return machines[kernel];
}

bool lanes_launch(kernel_id kernel, const void *jobs, uint32_t job_count, uint32_t blocks,
                  uint32_t *verdicts, uint32_t verdict_count, const lanes_memory *memory,
                  uint32_t memory_count)
{
    static uint32_t launches;
    char error[PTX_ERROR_BYTES];
    const kernel_facts *facts = kernel_facts_of(kernel);
    ptx_machine *machine = machine_of(kernel, error);
    if (machine == NULL) {
        fprintf(stderr, "%s: %s\n", facts->module, error);
        return false;
    }
    const uint64_t addresses[] = {(uint64_t)(uintptr_t)jobs, (uint64_t)(uintptr_t)verdicts};
    bool ran =
        ptx_map_own(machine, jobs, job_count * (size_t)facts->job_bytes, kernel == KERNEL_RING) &&
        ptx_map_own(machine, verdicts, verdict_count * sizeof *verdicts, true);
    for (uint32_t i = 0; i < memory_count && ran; i++)
        ran = memory[i].bytes == 0 ||
              ptx_map_own(machine, memory[i].start, memory[i].bytes, memory[i].writable);
    snprintf(error, sizeof error, "a launch without memory");
    ptx_launch launch = {.kernel = facts->function,
                         .grid = {blocks, 1, 1},
                         .block = {KERNEL_THREADS, 1, 1},
                         .flags = launches++ % 2 == 0 ? 0 : PTX_BLOCKS_BACKWARD,
                         .steps_most = UINT64_C(1) << 32,
                         .parameters =
                             (const void *const[]){&addresses[0], &job_count, &addresses[1]}};
    ran = ran && ptx_run(machine, &launch, error);
    ptx_unmap(machine, addresses[0]);
    ptx_unmap(machine, addresses[1]);
    for (uint32_t i = 0; i < memory_count; i++)
        ptx_unmap(machine, (uint64_t)(uintptr_t)memory[i].start);
    if (!ran) fprintf(stderr, "%s: %s\n", facts->function, error);
    return ran;
}
