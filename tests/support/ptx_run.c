/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ptx_run.c - a machine from its opening to its close: regions of memory, what a launch needs, and
 * the blocks of a grid with their barriers.
 */
#include "ptx_warp.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TURN_STEPS = 512, /* of a warp, before the next one has a turn */
    ROWS_MOST = 1 << 17,
    LOCAL_MOST = 512 * 1024 /* of a thread, as a GPU has it */
};

/* Modules */

static void free_variables(ptx_machine *machine)
{
    for (uint32_t i = 0; i < machine->variable_count; i++)
        free(machine->variables[i].memory);
    for (uint32_t i = 0; i < machine->function_count; i++)
        free(machine->functions[i].name);
}

void ptx_close(ptx_machine *machine)
{
    if (machine == NULL) return;
    free_variables(machine);
    free(machine->text);
    free(machine->steps);
    free(machine->functions);
    free(machine->variables);
    free(machine->copies);
    free(machine->targets);
    free(machine->constants);
    free(machine->kernels);
    free(machine->shared_gaps);
    free(machine);
}

/* Where the registers and frames of a function and of those that it calls lie; false when they call
 * each other in a circle. */
static bool place_functions(const ptx_machine *machine, uint32_t number, ptx_grid *grid,
                            uint32_t depth, uint32_t *shared)
{
    const ptx_function *function = &machine->functions[number];
    if (grid->row_bases[number] != UINT32_MAX && depth < PTX_DEPTH) return true;
    if (depth == PTX_DEPTH) return false;
    for (uint32_t i = 0; i < function->steps; i++) {
        const ptx_step *step = &machine->steps[function->first + i];
        if (step->op == PTX_CALL &&
            !place_functions(machine, step->target, grid, depth + 1, shared))
            return false;
    }
    grid->row_bases[number] = grid->rows;
    grid->rows += function->rows;
    grid->frame_bytes = (grid->frame_bytes + 127) / 128 * 128;
    grid->frame_bases[number] = grid->frame_bytes;
    grid->frame_bytes += function->frame_bytes;
    *shared += function->shared_bytes;
    return true;
}

static bool place_kernel(const ptx_machine *machine, uint32_t number, ptx_grid *grid,
                         uint32_t *shared)
{
    memset(grid->row_bases, 0xff, sizeof grid->row_bases);
    grid->rows = grid->frame_bytes = *shared = 0;
    const bool placed = place_functions(machine, number, grid, 0, shared);
    grid->frame_bytes = (grid->frame_bytes + 127) / 128 * 128;
    return placed;
}

static bool list_kernels(ptx_machine *machine, char *error)
{
    ptx_grid *grid = calloc(1, sizeof *grid);
    machine->kernels = calloc(machine->kernel_count + 1, sizeof *machine->kernels);
    if (grid == NULL || machine->kernels == NULL) {
        snprintf(error, PTX_ERROR_BYTES, "no memory");
        free(grid);
        return false;
    }
    uint32_t count = 0;
    bool listed = true;
    for (uint32_t i = 0; i < machine->function_count && listed; i++) {
        ptx_function *function = &machine->functions[i];
        if (!function->is_kernel || !function->has_body) continue;
        ptx_kernel *kernel = &machine->kernels[count];
        listed = place_kernel(machine, i, grid, &kernel->shared_bytes);
        if (!listed)
            snprintf(error, PTX_ERROR_BYTES,
                     "%s: functions that call each other in a circle, or "
                     "%u deep",
                     function->name, PTX_DEPTH);
        if (listed && (grid->rows > ROWS_MOST || grid->frame_bytes > LOCAL_MOST)) {
            snprintf(error, PTX_ERROR_BYTES, "%s: %u registers and %u local bytes", function->name,
                     grid->rows, grid->frame_bytes);
            listed = false;
        }
        kernel->name = function->name;
        kernel->parameters = function->inputs;
        kernel->registers = grid->rows;
        kernel->local_bytes = grid->frame_bytes;
        kernel->threads_most = function->threads_most;
        for (uint32_t k = 0; k < function->inputs; k++)
            kernel->parameter_bytes[k] = function->parameter[k].bytes;
        function->kernel = count++;
    }
    free(grid);
    return listed;
}

ptx_machine *ptx_open(const char *text, size_t bytes, char error[PTX_ERROR_BYTES])
{
    ptx_machine *machine = calloc(1, sizeof *machine);
    if (machine != NULL) machine->text = malloc(bytes + 1);
    if (machine == NULL || machine->text == NULL) {
        snprintf(error, PTX_ERROR_BYTES, "no memory");
        free(machine);
        return NULL;
    }
    memcpy(machine->text, text, bytes);
    machine->text[bytes] = 0;
    machine->text_bytes = bytes;
    machine->region_count = 1; /* address 0 leads nowhere */
    error[0] = 0;
    if (ptx_read(machine, error) && list_kernels(machine, error)) return machine;
    ptx_close(machine);
    return NULL;
}

uint32_t ptx_kernels(const ptx_machine *machine)
{
    return machine->kernel_count;
}

const ptx_kernel *ptx_kernel_at(const ptx_machine *machine, uint32_t index)
{
    return index < machine->kernel_count ? &machine->kernels[index] : NULL;
}

/* Memory */

uint64_t ptx_region_add(ptx_machine *machine, void *memory, uint64_t bytes, bool writable,
                        bool constant)
{
    if (machine->region_count == PTX_REGIONS || bytes == 0 || bytes > UINT64_C(1) << 34) return 0;
    const uint32_t number = machine->region_count++;
    const uint64_t address = PTX_REGION_BASE + number * PTX_REGION_STEP;
    machine->regions[number] = (ptx_region){address, memory, bytes, writable, constant, true};
    return address;
}

uint64_t ptx_map(ptx_machine *machine, void *memory, size_t bytes, bool writable)
{
    return ptx_region_add(machine, memory, bytes, writable, false);
}

bool ptx_map_own(ptx_machine *machine, const void *memory, size_t bytes, bool writable)
{
    const uint64_t address = (uint64_t)(uintptr_t)memory;
    if (machine->owned_count == PTX_OWN_REGIONS || bytes == 0 || address < PTX_REGION_STEP ||
        address >= PTX_REGION_BASE)
        return false;
    machine->owned[machine->owned_count++] =
        (ptx_region){address, (uint8_t *)(uintptr_t)memory, bytes, writable, false, true};
    return true;
}

void ptx_unmap(ptx_machine *machine, uint64_t address)
{
    for (uint32_t i = 1; i < machine->region_count; i++)
        if (machine->regions[i].address == address) machine->regions[i].is_mapped = false;
    for (uint32_t i = machine->owned_count; i-- > 0;)
        if (machine->owned[i].address == address)
            machine->owned[i] = machine->owned[--machine->owned_count];
}

uint64_t ptx_symbol(ptx_machine *machine, const char *name, size_t *bytes_out, void **memory_out)
{
    for (uint32_t i = 0; i < machine->variable_count; i++) {
        const ptx_variable *one = &machine->variables[i];
        if (one->memory == NULL || strlen(name) != one->name_bytes ||
            memcmp(one->name, name, one->name_bytes) != 0)
            continue;
        if (bytes_out != NULL) *bytes_out = one->bytes;
        if (memory_out != NULL) *memory_out = one->memory;
        return one->address;
    }
    return 0;
}

/* Blocks */

static void start_warp(ptx_grid *grid, uint32_t number, uint32_t first_step)
{
    ptx_warp *warp = &grid->warps[number];
    const ptx_launch *launch = grid->launch;
    uint64_t(*rows)[PTX_LANES] = warp->rows;
    memset(rows, 0xa5, (PTX_SPECIALS + grid->rows) * sizeof *rows);
    *warp = (ptx_warp){.rows = rows, .number = number};
    for (uint32_t lane = 0; lane < PTX_LANES; lane++) {
        const uint32_t thread = number * PTX_LANES + lane, bit = 1u << lane;
        if (thread >= grid->threads) break;
        warp->live |= bit;
        warp->pc[lane] = first_step;
        rows[PTX_TID_X][lane] = thread % launch->block[0];
        rows[PTX_TID_Y][lane] = thread / launch->block[0] % launch->block[1];
        rows[PTX_TID_Z][lane] = thread / launch->block[0] / launch->block[1];
        for (uint32_t i = 0; i < 3; i++) {
            rows[PTX_NTID_X + i][lane] = launch->block[i];
            rows[PTX_CTAID_X + i][lane] = grid->block[i];
            rows[PTX_NCTAID_X + i][lane] = launch->grid[i];
        }
        rows[PTX_LANEID][lane] = lane;
        rows[PTX_WARPID][lane] = number;
        rows[PTX_NWARPID][lane] = grid->warp_count;
        rows[PTX_MASK_EQ][lane] = bit;
        rows[PTX_MASK_LT][lane] = bit - 1;
        rows[PTX_MASK_LE][lane] = bit - 1 + bit;
        rows[PTX_MASK_GT][lane] = ~(bit - 1 + bit);
        rows[PTX_MASK_GE][lane] = ~(bit - 1);
    }
}

/* A barrier's result for all its threads: bar.red. */
static void reduce_barrier(ptx_grid *grid, uint32_t barrier)
{
    uint32_t found = 0, all = 0;
    for (uint32_t pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < grid->warp_count; i++) {
            ptx_warp *warp = &grid->warps[i];
            if (!warp->stands || warp->barrier != barrier) continue;
            for (uint32_t left = warp->live; left != 0; left &= left - 1) {
                const uint32_t lane = (uint32_t)__builtin_ctz(left);
                const ptx_step *step = &grid->machine->steps[warp->pc[lane]];
                if (step->op != PTX_BAR_RED) continue;
                const bool holds = (ptx_row(grid, warp, step, step->from[1])[lane] != 0) !=
                                   ((step->flags & PTX_SOURCE_NOT) != 0);
                if (pass == 0) {
                    all++;
                    found += holds;
                } else {
                    ptx_row(grid, warp, step, step->to[0])[lane] =
                        step->mode == PTX_POPC_MODE  ? found
                        : step->mode == PTX_AND_MODE ? found == all
                                                     : found > 0;
                }
            }
        }
    }
}

static void open_barrier(ptx_grid *grid, uint32_t barrier)
{
    reduce_barrier(grid, barrier);
    grid->epoch++;
    for (uint32_t i = 0; i < grid->warp_count; i++) {
        ptx_warp *warp = &grid->warps[i];
        if (!warp->stands || warp->barrier != barrier) continue;
        for (uint32_t left = warp->live; left != 0; left &= left - 1)
            warp->pc[__builtin_ctz(left)]++;
        warp->at_barrier = 0;
        warp->stands = false;
    }
}

/* Opens a barrier that has all its threads; false when there is none. */
static bool pass_barriers(ptx_grid *grid)
{
    uint32_t live = 0;
    for (uint32_t i = 0; i < grid->warp_count; i++)
        live += (uint32_t)__builtin_popcount(grid->warps[i].live);
    for (uint32_t i = 0; i < grid->warp_count; i++) {
        const ptx_warp *first = &grid->warps[i];
        if (!first->stands) continue;
        uint32_t come = 0;
        const uint32_t wanted = first->barrier_threads;
        for (uint32_t k = 0; k < grid->warp_count; k++) {
            const ptx_warp *warp = &grid->warps[k];
            if (!warp->stands || warp->barrier != first->barrier) continue;
            /* Who waits for a number of threads comes as a whole warp, as hardware counts. */
            come += wanted == 0 ? (uint32_t)__builtin_popcount(warp->live) : PTX_LANES;
            const uint32_t lane = (uint32_t)__builtin_ctz(warp->live);
            const uint32_t other = (uint32_t)__builtin_ctz(first->live);
            if (warp->barrier_threads == wanted &&
                (wanted != 0 || warp->pc[lane] == first->pc[other]))
                continue;
            grid->warp = first;
            grid->step = &grid->machine->steps[first->pc[other]];
            ptx_lane_fail(grid, other, "a barrier in divergent threads: warp %u is at line %u", k,
                          grid->machine->steps[warp->pc[lane]].line);
        }
        if (come < (wanted == 0 ? live : wanted)) continue;
        open_barrier(grid, first->barrier);
        return true;
    }
    return false;
}

static void run_block(ptx_grid *grid, uint32_t first_step)
{
    grid->block_number++;
    grid->epoch++;
    memset(grid->shared, 0xa5, grid->shared_bytes);
    for (uint32_t i = 0; i < grid->warp_count; i++)
        start_warp(grid, i, first_step);
    for (;;) {
        bool lives = false, runs = false;
        for (uint32_t i = 0; i < grid->warp_count; i++) {
            ptx_warp *warp = &grid->warps[i];
            if (warp->live == 0) continue;
            lives = true;
            if (warp->stands) continue;
            ptx_warp_run(grid, warp, TURN_STEPS);
            runs = true;
        }
        if (!lives) return;
        if (pass_barriers(grid) || runs) continue;
        for (uint32_t i = 0;; i++) {
            const ptx_warp *warp = &grid->warps[i];
            if (warp->live == 0) continue;
            const uint32_t lane = (uint32_t)__builtin_ctz(warp->live);
            grid->warp = warp;
            grid->step = &grid->machine->steps[warp->pc[lane]];
            ptx_lane_fail(grid, lane, "a barrier that not all of its threads come to");
        }
    }
}

/* Launches */

static bool say(char *error, const char *format, ...) __attribute__((format(printf, 2, 3)));

static bool say(char *error, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error, PTX_ERROR_BYTES, format, arguments);
    va_end(arguments);
    return false;
}

static bool check_launch(const ptx_machine *machine, const ptx_launch *launch, uint32_t *number_out,
                         char *error)
{
    const ptx_function *function = NULL;
    for (uint32_t i = 0; launch->kernel != NULL && i < machine->function_count; i++) {
        const ptx_function *one = &machine->functions[i];
        if (!one->is_kernel || !one->has_body || strcmp(one->name, launch->kernel) != 0) continue;
        function = one;
        *number_out = i;
    }
    if (function == NULL)
        return say(error, "no kernel %s", launch->kernel != NULL ? launch->kernel : "");
    uint64_t threads = 1;
    for (uint32_t i = 0; i < 3; i++) {
        if (launch->grid[i] == 0 || launch->grid[i] > (i == 0 ? INT32_MAX : 65535u))
            return say(error, "%u blocks in direction %u", launch->grid[i], i);
        if (launch->block[i] == 0 || launch->block[i] > 1024)
            return say(error, "%u threads in direction %u", launch->block[i], i);
        threads *= launch->block[i];
        if (function->threads_exact[0] != 0 && function->threads_exact[i] != launch->block[i])
            return say(error, "%s has blocks of %u threads in direction %u", launch->kernel,
                       function->threads_exact[i], i);
    }
    if (threads > function->threads_most)
        return say(error, "%llu threads in a block; %s has %u at most", (unsigned long long)threads,
                   launch->kernel, function->threads_most);
    const ptx_kernel *kernel = &machine->kernels[function->kernel];
    if (kernel->shared_bytes > 48 * 1024 || launch->dynamic_shared_bytes > PTX_SHARED_MOST ||
        kernel->shared_bytes + launch->dynamic_shared_bytes > PTX_SHARED_MOST)
        return say(error, "%u shared bytes and %u dynamic ones", kernel->shared_bytes,
                   launch->dynamic_shared_bytes);
    for (uint32_t i = 0; i < kernel->parameters; i++)
        if (launch->parameters == NULL || launch->parameters[i] == NULL)
            return say(error, "no parameter %u", i);
    return true;
}

static bool allot(ptx_grid *grid)
{
    const size_t row_bytes = sizeof(uint64_t[PTX_LANES]);
    grid->shared_bytes = grid->machine->shared_bytes + grid->launch->dynamic_shared_bytes;
    grid->shared = calloc(1, grid->shared_bytes + 1);
    grid->traces = calloc(grid->shared_bytes + 1, sizeof *grid->traces);
    grid->local = calloc((size_t)grid->warp_count * PTX_LANES, grid->frame_bytes + 1);
    grid->warps = calloc(grid->warp_count, sizeof *grid->warps);
    if (grid->shared == NULL || grid->traces == NULL || grid->local == NULL || grid->warps == NULL)
        return false;
    for (uint32_t i = 0; i < grid->warp_count; i++) {
        grid->warps[i].rows = malloc((PTX_SPECIALS + (size_t)grid->rows) * row_bytes);
        if (grid->warps[i].rows == NULL) return false;
    }
    return true;
}

static void run_grid(ptx_grid *grid, uint32_t first_step)
{
    const uint32_t *sides = grid->launch->grid;
    const uint64_t blocks = (uint64_t)sides[0] * sides[1] * sides[2];
    const bool backward = (grid->launch->flags & PTX_BLOCKS_BACKWARD) != 0;
    for (uint64_t i = 0; i < blocks; i++) {
        const uint64_t at = backward ? blocks - 1 - i : i;
        grid->block[0] = (uint32_t)(at % sides[0]);
        grid->block[1] = (uint32_t)(at / sides[0] % sides[1]);
        grid->block[2] = (uint32_t)(at / sides[0] / sides[1]);
        run_block(grid, first_step);
    }
}

bool ptx_run(ptx_machine *machine, ptx_launch *launch, char error[PTX_ERROR_BYTES])
{
    uint32_t number = 0, shared = 0;
    error[0] = 0;
    launch->steps = 0;
    if (!check_launch(machine, launch, &number, error)) return false;
    ptx_grid *grid = calloc(1, sizeof *grid);
    if (grid == NULL) return say(error, "no memory");
    grid->machine = machine;
    grid->launch = launch;
    grid->error = error;
    grid->steps_most = launch->steps_most != 0 ? launch->steps_most : UINT64_C(1) << 36;
    grid->threads = launch->block[0] * launch->block[1] * launch->block[2];
    grid->warp_count = (grid->threads + PTX_LANES - 1) / PTX_LANES;
    place_kernel(machine, number, grid, &shared);
    const ptx_function *function = &machine->functions[number];
    grid->parameter_bytes = function->parameter_bytes;
    for (uint32_t i = 0; i < function->inputs; i++)
        memcpy(grid->parameters + function->parameter[i].offset, launch->parameters[i],
               function->parameter[i].bytes);
    if (!allot(grid))
        say(error, "no memory");
    else if (setjmp(grid->failed) == 0)
        run_grid(grid, function->first);
    launch->steps = grid->steps;
    for (uint32_t i = 0; grid->warps != NULL && i < grid->warp_count; i++)
        free(grid->warps[i].rows);
    free(grid->warps);
    free(grid->local);
    free(grid->traces);
    free(grid->shared);
    free(grid);
    return error[0] == 0;
}
