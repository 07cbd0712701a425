/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ptx_machine.h - runs the PTX text of GPU kernels on the CPU, thread by thread and strictly.
 *
 * nvcc's text is what ships, so a test runs that text and not the source: what the compiler made of
 * a shift, a rounding or a ballot is seen. The machine is made for tests of bytes, not of speed: a
 * few ten million instructions of single threads a second.
 *
 *     text --ptx_open--> steps (decoded once) --ptx_run--> blocks    one after the other
 *                                                  block: warps in turn, to a barrier or the end
 *                                                  warp:  32 lanes; those at the lowest step go on
 *
 * The lowest step first lets lanes that went apart meet again behind a branch, as they do on a GPU;
 * lanes in a called function go before those of its caller. A ballot, a shuffle and bar.warp.sync
 * wait until every living lane of their mask is at the same instruction.
 *
 *     ptx_machine.h   what tests call
 *     ptx_module.h    the decoded module
 *     ptx_text.c      words, declarations, scopes, labels
 *     ptx_decode.c    the table of instructions and the operands
 *     ptx_value.c     arithmetic: one lane's result
 *     ptx_warp.c      one step of a warp: branches, meetings, memory
 *     ptx_run.c       memory regions, launches, barriers of a block
 *
 * Whatever a GPU would answer with garbage, a hang or a fault of its context is an error here, with
 * the line, the instruction and the thread:
 *
 *     text         an instruction, type or modifier that is not in the table; a version above 7.0;
 *                  products and sums without a rounding, which ptxas may contract
 *     memory       an access outside of a region, a shared variable, a frame; into a region that is
 *                  read only; of an address that is no multiple of its size; a read of shared bytes
 *                  that nobody wrote; two threads at one shared byte, one of them writing, without
 *                  a barrier between them
 *     threads      a barrier, a ballot or a shuffle that some lanes of the warp never reach
 *     an end       more steps than the launch allows
 *
 * Not detected: races between blocks, and between threads of a block in global memory. Blocks run
 * in the order of their numbers or in the opposite one. Not there: textures, matrix units, double
 * precision beyond plain arithmetic, recursion, calls by address, and the approximate functions,
 * whose bits a CPU cannot tell. A NaN that an instruction makes is the canonical one.
 *
 * Thread rule: a machine belongs to one thread at a time.
 */
#ifndef KVT_TESTS_SUPPORT_PTX_MACHINE_H
#define KVT_TESTS_SUPPORT_PTX_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PTX_ERROR_BYTES = 400, PTX_PARAMETERS_MAX = 64 };

typedef struct ptx_machine ptx_machine;

/* A kernel of the text, with what a launch of it needs. */
typedef struct ptx_kernel {
    const char *name;      /* ends with a zero; valid until ptx_close */
    uint32_t parameters;   /* how many a launch gives */
    uint32_t registers;    /* that the text declares, with those of called functions */
    uint32_t shared_bytes; /* of the variables that it names, without the dynamic ones */
    uint32_t local_bytes;  /* per thread */
    uint32_t threads_most; /* of a block, by .maxntid or .reqntid; 1024 without one */
    uint32_t parameter_bytes[PTX_PARAMETERS_MAX];
} ptx_kernel;

/* What a launch overlooks; a kernel is at its best with none of them. */
enum {
    PTX_ALLOW_UNWRITTEN = 1, /* reads of shared bytes that nobody wrote; they hold 0xa5 */
    PTX_ALLOW_RACES = 2,     /* unordered accesses to shared bytes */
    PTX_BLOCKS_BACKWARD = 4  /* blocks run from the last to the first */
};

typedef struct ptx_launch {
    const char *kernel;
    uint32_t grid[3], block[3];    /* x, y, z; none is 0 */
    uint32_t dynamic_shared_bytes; /* of the variables that are declared .extern .shared */
    uint32_t flags;                /* PTX_ALLOW_...; 0 is the strictest */
    uint64_t steps_most;           /* instructions of single threads; 0: 2^36 */
    const void *const *parameters; /* as cuLaunchKernel takes them: where each value lies */
    uint64_t steps;                /* set by the launch: the instructions that ran */
} ptx_launch;

/* Opens a module: decodes all of its text, which need not end with a zero, be PTX or stay where it
 * is after the call. NULL with a sentence in `error` that names the line when the text is none that
 * the machine runs, or when memory is short. */
ptx_machine *ptx_open(const char *text, size_t bytes, char error[PTX_ERROR_BYTES]);

/* Gives back all that the machine owns; the bytes of regions are the caller's. NULL is allowed. */
void ptx_close(ptx_machine *machine);

/* The number of the module's kernels, and one of them, in the order of the text; NULL past the last
 * one. */
uint32_t ptx_kernels(const ptx_machine *machine);
const ptx_kernel *ptx_kernel_at(const ptx_machine *machine, uint32_t index);

/* Makes `bytes` bytes at `memory` a region of global memory until ptx_unmap, and returns its
 * address for kernels: a multiple of 256, gibibytes away from every other region, so that no step
 * beyond a region reaches another one. The bytes stay the caller's, who may read and write them
 * between launches. A kernel that writes to a region that is not `writable` fails. 0 when there are
 * 4,000 regions already, or when the size is 0 or above 16 GiB. */
uint64_t ptx_map(ptx_machine *machine, void *memory, size_t bytes, bool writable);

/* The same at the address that the memory has in this process, for kernels that are given addresses
 * which a planner worked out. An error of a few bytes may reach a neighbour that is a region too.
 * False when there are 256 of these already, or when the size is 0. */
bool ptx_map_own(ptx_machine *machine, const void *memory, size_t bytes, bool writable);

/* Ends a region. A later access to its addresses is an error; they are not given out again. */
void ptx_unmap(ptx_machine *machine, uint64_t address);

/* The address of a .global or .const variable of the module with its size, which a test may read
 * and write at `*memory_out`; 0 when there is none of that name. Each of the last two may be
 * NULL. */
uint64_t ptx_symbol(ptx_machine *machine, const char *name, size_t *bytes_out, void **memory_out);

/* Runs a grid to its end. False with a sentence in `error` that names line, instruction, block and
 * thread when it did something that is listed above, or that names the argument when the launch
 * itself is none: what was written until then stays written. */
bool ptx_run(ptx_machine *machine, ptx_launch *launch, char error[PTX_ERROR_BYTES]);

#endif
