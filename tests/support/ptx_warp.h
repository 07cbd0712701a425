/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ptx_warp.h - the state of a grid that runs, which ptx_run.c sets up and ptx_warp.c moves on. An
 * error leaves by longjmp to ptx_run.
 */
#ifndef KVT_TESTS_SUPPORT_PTX_WARP_H
#define KVT_TESTS_SUPPORT_PTX_WARP_H

#include "ptx_module.h"

#include <setjmp.h>

enum { PTX_MANY_READERS = 0xffff, PTX_MANY_WARPS = 0xff };

/* What happened to a shared byte: `block` says when it was written at all. Two accesses of one
 * epoch of the block are not ordered, unless they are one warp's and of two of its epochs. */
typedef struct ptx_trace {
    uint32_t block, write_epoch, write_warp_epoch, read_epoch, read_warp_epoch;
    uint16_t writer, reader; /* threads of the block */
    uint8_t reader_warp;
} ptx_trace;

typedef struct ptx_warp {
    uint64_t (*rows)[PTX_LANES];
    uint32_t pc[PTX_LANES];      /* steps; not that of the group that runs */
    uint32_t members[PTX_LANES]; /* whom a lane that waits in `meeting` waits for */
    uint32_t returns[PTX_DEPTH][PTX_LANES];
    uint8_t depth[PTX_LANES];
    uint32_t live, meeting, at_barrier, carry;
    uint32_t number, epoch;
    uint32_t barrier, barrier_threads; /* of a warp that stands: which, and for how many */
    bool stands;                       /* all that live are at the barrier */
} ptx_warp;

typedef struct ptx_grid {
    ptx_machine *machine;
    const ptx_launch *launch;
    uint32_t row_bases[1024 + 1], frame_bases[1024 + 1]; /* of each function */
    uint32_t rows, frame_bytes;
    uint8_t parameters[4096];
    uint32_t parameter_bytes;
    uint8_t *shared, *local;
    ptx_trace *traces;
    uint32_t shared_bytes; /* of variables and, behind them, the dynamic ones */
    ptx_warp *warps;
    uint32_t warp_count, threads;
    uint32_t block[3], block_number, epoch;
    uint64_t steps, steps_most;
    const ptx_step *step; /* that runs, for errors */
    const ptx_warp *warp;
    char *error;
    jmp_buf failed;
} ptx_grid;

/* Ends the launch with a sentence about a lane of the warp at its step. */
_Noreturn void ptx_lane_fail(ptx_grid *grid, uint32_t lane, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The row of an operand. */
static inline uint64_t *ptx_row(const ptx_grid *grid, const ptx_warp *warp, const ptx_step *step,
                                int32_t index)
{
    if (index < 0) return grid->machine->constants[~index];
    if (index < PTX_SPECIALS) return warp->rows[index];
    return warp->rows[grid->row_bases[step->function] + (uint32_t)index];
}

/* Carries out a step on memory for the lanes of the mask. */
void ptx_access(ptx_grid *grid, ptx_warp *warp, const ptx_step *step, uint32_t mask);

/* Carries out a step for which the lanes of the mask, all that take part, have met. */
void ptx_meet(ptx_grid *grid, ptx_warp *warp, const ptx_step *step, uint32_t mask);

/* Lets a warp run until it ends, stands at a barrier or has taken that many steps. */
void ptx_warp_run(ptx_grid *grid, ptx_warp *warp, uint32_t steps);

#endif
