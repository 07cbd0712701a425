/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ptx_memory.c - loads, stores and atomic operations: where an address leads, whether it may be
 * touched, and who else touched a shared byte since the last barrier.
 */
#include "ptx_warp.h"

#include <string.h>

/* The only region in which the address can be. */
static const ptx_region *find_region(const ptx_machine *machine, uint64_t address)
{
    if (address >= PTX_REGION_BASE) {
        const uint64_t number = (address - PTX_REGION_BASE) / PTX_REGION_STEP;
        return &machine->regions[number < machine->region_count ? number : 0];
    }
    for (uint32_t i = 0; i < machine->owned_count; i++) {
        const ptx_region *region = &machine->owned[i];
        if (region->is_mapped && address - region->address < region->bytes) return region;
    }
    return &machine->regions[0];
}

static uint8_t *reach_region(ptx_grid *grid, uint32_t lane, uint64_t address, uint32_t bytes,
                             bool writes, ptx_space space)
{
    const ptx_region *region = find_region(grid->machine, address);
    const uint64_t at = address - region->address;
    if (!region->is_mapped || region->bytes < bytes || at > region->bytes - bytes)
        ptx_lane_fail(grid, lane, "%u bytes at %#llx, which no region holds%s", bytes,
                      (unsigned long long)address,
                      region->memory != NULL && !region->is_mapped ? " any more" : "");
    if (writes && !region->is_writable)
        ptx_lane_fail(grid, lane, "a write to %#llx, which is read only",
                      (unsigned long long)address);
    if (space != PTX_GENERIC && region->is_constant != (space == PTX_CONST))
        ptx_lane_fail(grid, lane, "%#llx lies in another space", (unsigned long long)address);
    return region->memory + at;
}

/* A read, or a write, of a shared byte after all that is known of it. */
static void trace_byte(ptx_grid *grid, uint32_t lane, ptx_trace *trace, bool writes,
                       uint64_t address)
{
    const ptx_warp *warp = grid->warp;
    const uint32_t number = warp->number, thread = number * PTX_LANES + lane;
    const bool is_strong = (grid->step->flags & PTX_STRONG) != 0 || grid->step->op == PTX_ATOM ||
                           grid->step->op == PTX_RED;
    const uint32_t allowed = grid->launch->flags;
    if (!writes && trace->block != grid->block_number && (allowed & PTX_ALLOW_UNWRITTEN) == 0)
        ptx_lane_fail(grid, lane, "a read of shared byte %#llx, which nobody wrote",
                      (unsigned long long)address);
    if (writes) trace->block = grid->block_number;
    if (is_strong || (allowed & PTX_ALLOW_RACES) != 0) return;
    if (trace->write_epoch == grid->epoch && trace->writer != thread &&
        (trace->writer / PTX_LANES != number || trace->write_warp_epoch == warp->epoch))
        ptx_lane_fail(grid, lane,
                      "shared byte %#llx, which thread %u writes between the same barriers",
                      (unsigned long long)address, trace->writer);
    const bool same_read = trace->read_epoch == grid->epoch &&
                           (trace->reader_warp != number || trace->read_warp_epoch == warp->epoch);
    if (writes) {
        if (same_read && trace->reader != thread)
            ptx_lane_fail(grid, lane,
                          "a write to shared byte %#llx, which another thread reads "
                          "between the same barriers",
                          (unsigned long long)address);
        trace->write_epoch = grid->epoch;
        trace->write_warp_epoch = warp->epoch;
        trace->writer = (uint16_t)thread;
    } else if (!same_read) {
        trace->read_epoch = grid->epoch;
        trace->read_warp_epoch = warp->epoch;
        trace->reader = (uint16_t)thread;
        trace->reader_warp = (uint8_t)number;
    } else {
        if (trace->reader != thread) trace->reader = PTX_MANY_READERS;
        if (trace->reader_warp != number) trace->reader_warp = PTX_MANY_WARPS;
    }
}

static uint8_t *reach_shared(ptx_grid *grid, uint32_t lane, uint64_t address, uint32_t bytes,
                             bool reads, bool writes)
{
    const uint32_t fixed = grid->machine->shared_bytes;
    uint64_t at = address, end = fixed;
    if (address >= PTX_DYNAMIC_SHARED) {
        at = address - PTX_DYNAMIC_SHARED + fixed;
        end = grid->shared_bytes;
    }
    bool is_inside = at < end && bytes <= end - at;
    for (uint32_t i = 0; is_inside && i < bytes; i++)
        is_inside = at + i >= fixed || grid->machine->shared_gaps[at + i] == 0;
    if (!is_inside)
        ptx_lane_fail(grid, lane, "%u bytes at shared %#llx, outside of every variable", bytes,
                      (unsigned long long)address);
    for (uint32_t i = 0; i < bytes; i++) {
        if (reads) trace_byte(grid, lane, &grid->traces[at + i], false, address + i);
        if (writes) trace_byte(grid, lane, &grid->traces[at + i], true, address + i);
    }
    return grid->shared + at;
}

static uint8_t *reach(ptx_grid *grid, const ptx_step *step, uint32_t lane, uint64_t address,
                      uint32_t bytes, bool reads, bool writes)
{
    ptx_space space = (ptx_space)step->space;
    if (address % bytes != 0)
        ptx_lane_fail(grid, lane, "%#llx is no multiple of %u", (unsigned long long)address, bytes);
    if (space == PTX_SHARED) address &= UINT32_MAX;
    if (space == PTX_GENERIC && address >= PTX_SHARED_WINDOW && address < PTX_REGION_STEP) {
        space = address < PTX_LOCAL_WINDOW ? PTX_SHARED : PTX_LOCAL;
        address -= space == PTX_SHARED ? PTX_SHARED_WINDOW : PTX_LOCAL_WINDOW;
    }
    switch (space) {
    case PTX_SHARED: return reach_shared(grid, lane, address, bytes, reads, writes);
    case PTX_LOCAL: {
        if (address >= grid->frame_bytes || bytes > grid->frame_bytes - address)
            ptx_lane_fail(grid, lane, "%u bytes at local %#llx of %u", bytes,
                          (unsigned long long)address, grid->frame_bytes);
        const uint64_t thread = grid->warp->number * PTX_LANES + lane;
        return grid->local + thread * grid->frame_bytes + address;
    }
    case PTX_PARAM:
        if (writes || address >= grid->parameter_bytes || bytes > grid->parameter_bytes - address)
            ptx_lane_fail(grid, lane, "%u bytes at parameter %#llx of %u", bytes,
                          (unsigned long long)address, grid->parameter_bytes);
        return grid->parameters + address;
    default: return reach_region(grid, lane, address, bytes, writes, space);
    }
}

static uint64_t load_value(const ptx_step *step, const uint8_t *from)
{
    uint64_t value = 0;
    memcpy(&value, from, step->bits / 8u);
    return ptx_extend((ptx_type)step->type, value) & step->keep;
}

static void atomic(ptx_grid *grid, ptx_warp *warp, const ptx_step *step, uint32_t lane,
                   uint8_t *place)
{
    const uint64_t *a = ptx_row(grid, warp, step, step->from[0]);
    const uint64_t *b = ptx_row(grid, warp, step, step->from[1]);
    uint64_t old = 0;
    memcpy(&old, place, step->bits / 8u);
    const uint64_t now = ptx_combine(step, old, a[lane], b[lane]);
    memcpy(place, &now, step->bits / 8u);
    if (step->op == PTX_ATOM) ptx_row(grid, warp, step, step->to[0])[lane] = old;
}

void ptx_access(ptx_grid *grid, ptx_warp *warp, const ptx_step *step, uint32_t mask)
{
    const uint64_t *base = step->base != PTX_NO_ROW ? ptx_row(grid, warp, step, step->base) : NULL;
    uint64_t offset = (uint64_t)step->offset;
    if ((step->flags & PTX_OF_FRAME) != 0) offset += grid->frame_bases[step->function];
    if (step->op == PTX_TOUCH) return; /* any address may be fetched ahead */
    const uint32_t each = step->bits / 8u, bytes = each * step->count;
    const bool writes = step->op != PTX_LD, reads = step->op != PTX_ST;
    for (uint32_t left = mask; left != 0; left &= left - 1) {
        const uint32_t lane = (uint32_t)__builtin_ctz(left);
        const uint64_t address = offset + (base != NULL ? base[lane] : 0);
        uint8_t *place = reach(grid, step, lane, address, bytes, reads, writes);
        if (step->op == PTX_ATOM || step->op == PTX_RED) {
            atomic(grid, warp, step, lane, place);
            continue;
        }
        for (uint32_t i = 0; i < step->count; i++) {
            if (writes)
                memcpy(place + i * each, &ptx_row(grid, warp, step, step->from[i])[lane], each);
            else
                ptx_row(grid, warp, step, step->to[i])[lane] = load_value(step, place + i * each);
        }
    }
}
