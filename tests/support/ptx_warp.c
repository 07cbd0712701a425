/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ptx_warp.c - runs the 32 lanes of a warp. Lanes that are at the same step are a group; the group
 * that is deepest in calls and, of those, at the lowest step goes on until it splits, ends, waits
 * or comes to where other lanes are.
 */
#include "ptx_warp.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

_Noreturn void ptx_lane_fail(ptx_grid *grid, uint32_t lane, const char *format, ...)
{
    const ptx_step *step = grid->step;
    const uint32_t *sides = grid->launch->block;
    const uint32_t thread = grid->warp->number * PTX_LANES + lane;
    const int at =
        snprintf(grid->error, PTX_ERROR_BYTES,
                 "line %u (%.*s), block (%u, %u, %u), thread (%u, %u, %u): ", step->line,
                 step->name_bytes > 60 ? 60 : (int)step->name_bytes,
                 grid->machine->text + step->name, grid->block[0], grid->block[1], grid->block[2],
                 thread % sides[0], thread / sides[0] % sides[1], thread / sides[0] / sides[1]);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(grid->error + at, PTX_ERROR_BYTES - (size_t)at, format, arguments);
    va_end(arguments);
    longjmp(grid->failed, 1);
}

/* Values */

static void run_values(ptx_grid *grid, ptx_warp *warp, const ptx_step *step, uint32_t mask)
{
    const uint64_t *a = ptx_row(grid, warp, step, step->from[0]);
    const uint64_t *b = ptx_row(grid, warp, step, step->from[1]);
    const uint64_t *c = ptx_row(grid, warp, step, step->from[2]);
    const uint64_t *d = ptx_row(grid, warp, step, step->from[3]);
    uint64_t *to = ptx_row(grid, warp, step, step->to[0]);
    const uint64_t keep = step->keep;
    for (uint32_t left = mask; left != 0; left &= left - 1) {
        const uint32_t lane = (uint32_t)__builtin_ctz(left);
        to[lane] = ptx_value(step, a[lane], b[lane], c[lane], d[lane]) & keep;
    }
}

/* setp: the comparison, joined with a predicate or not; the second result has it turned round. */
static void run_comparison(ptx_grid *grid, ptx_warp *warp, const ptx_step *step, uint32_t mask)
{
    const uint64_t *a = ptx_row(grid, warp, step, step->from[0]);
    const uint64_t *b = ptx_row(grid, warp, step, step->from[1]);
    const uint64_t *c = ptx_row(grid, warp, step, step->from[2]);
    for (uint32_t left = mask; left != 0; left &= left - 1) {
        const uint32_t lane = (uint32_t)__builtin_ctz(left);
        const bool holds = ptx_holds(step, (ptx_type)step->type, a[lane], b[lane]);
        const bool joined = (c[lane] != 0) != ((step->flags & PTX_SOURCE_NOT) != 0);
        bool results[2] = {holds, !holds};
        for (uint32_t i = 0; i < 2; i++) {
            if (step->joined == PTX_AND_MODE) results[i] = results[i] && joined;
            if (step->joined == PTX_OR_MODE) results[i] = results[i] || joined;
            if (step->joined == PTX_XOR_MODE) results[i] = results[i] != joined;
        }
        ptx_row(grid, warp, step, step->to[1])[lane] = results[1];
        ptx_row(grid, warp, step, step->to[0])[lane] = results[0];
    }
}

/* Sums and differences with the carry of the lane. */
static uint64_t run_carry(ptx_warp *warp, const ptx_step *step, uint32_t lane, uint64_t a,
                          uint64_t b)
{
    const bool minus = (step->flags & PTX_SUBTRACT) != 0;
    const uint64_t in = (step->flags & PTX_CARRY_IN) != 0 ? warp->carry >> lane & 1 : 0;
    const unsigned __int128 whole =
        minus ? (unsigned __int128)a - b - in : (unsigned __int128)a + b + in;
    if ((step->flags & PTX_CARRY_OUT) != 0) {
        const uint32_t out = (uint32_t)(whole >> step->bits) & 1; /* a borrow, too */
        warp->carry = (warp->carry & ~(1u << lane)) | out << lane;
    }
    return (uint64_t)whole;
}

static bool lies_in(uint64_t address, uint8_t space)
{
    if (space == PTX_SHARED) return address >= PTX_SHARED_WINDOW && address < PTX_LOCAL_WINDOW;
    if (space == PTX_LOCAL) return address >= PTX_LOCAL_WINDOW && address < PTX_REGION_STEP;
    return address >= PTX_REGION_STEP;
}

static void run_odd(ptx_grid *grid, ptx_warp *warp, const ptx_step *step, uint32_t lane,
                    uint32_t group)
{
    const uint64_t a = ptx_row(grid, warp, step, step->from[0])[lane];
    uint64_t *to = &ptx_row(grid, warp, step, step->to[0])[lane];
    const uint32_t part = step->count > 1 ? (uint32_t)step->bits / step->count : 0;
    uint64_t value = 0;
    switch (step->op) {
    case PTX_PACK:
        for (uint32_t i = 0; i < step->count; i++)
            value |= ptx_row(grid, warp, step, step->from[i])[lane] << (i * part);
        break;
    case PTX_UNPACK:
        for (uint32_t i = 0; i < step->count; i++)
            ptx_row(grid, warp, step, step->to[i])[lane] = a >> (i * part) & ptx_ones(part);
        return;
    case PTX_CARRY:
        value = run_carry(warp, step, lane, a, ptx_row(grid, warp, step, step->from[1])[lane]);
        break;
    case PTX_CLOCK: value = grid->steps; break;
    case PTX_FRAME: value = grid->frame_bases[step->function] + (uint64_t)step->offset; break;
    case PTX_ISSPACEP: value = lies_in(a, step->space); break;
    default: value = group; break; /* ACTIVEMASK */
    }
    *to = value & step->keep;
}

/* Meetings */

static void shuffle(ptx_grid *grid, ptx_warp *warp, const ptx_step *step, uint32_t mask)
{
    const uint64_t *a = ptx_row(grid, warp, step, step->from[0]);
    const uint64_t *b = ptx_row(grid, warp, step, step->from[1]);
    const uint64_t *c = ptx_row(grid, warp, step, step->from[2]);
    uint64_t values[PTX_LANES], inside[PTX_LANES];
    for (uint32_t left = mask; left != 0; left &= left - 1) {
        const uint32_t lane = (uint32_t)__builtin_ctz(left);
        const uint32_t by = b[lane] & 31, clamp = c[lane] & 31, segment = c[lane] >> 8 & 31;
        const uint32_t first = lane & segment, last = first | (clamp & ~segment & 31);
        int from = (int)lane;
        switch (step->mode) {
        case PTX_UP_MODE: from -= (int)by; break;
        case PTX_DOWN_MODE: from += (int)by; break;
        case PTX_BFLY_MODE: from ^= (int)by; break;
        default: from = (int)(first | (by & ~segment)); break;
        }
        inside[lane] = step->mode == PTX_UP_MODE ? from >= (int)last : from <= (int)last;
        if (inside[lane] == 0) from = (int)lane;
        if ((mask >> from & 1) == 0)
            ptx_lane_fail(grid, lane, "the value of lane %d, which does not take part", from);
        values[lane] = a[from];
    }
    for (uint32_t left = mask; left != 0; left &= left - 1) {
        const uint32_t lane = (uint32_t)__builtin_ctz(left);
        ptx_row(grid, warp, step, step->to[1])[lane] = inside[lane];
        ptx_row(grid, warp, step, step->to[0])[lane] = values[lane];
    }
}

static void give_all(ptx_grid *grid, ptx_warp *warp, const ptx_step *step, uint32_t mask,
                     uint64_t value)
{
    uint64_t *to = ptx_row(grid, warp, step, step->to[0]);
    for (uint32_t left = mask; left != 0; left &= left - 1)
        to[__builtin_ctz(left)] = value & step->keep;
}

static uint32_t lanes_true(const ptx_step *step, const uint64_t *row, uint32_t mask)
{
    uint32_t found = 0;
    for (uint32_t left = mask; left != 0; left &= left - 1)
        found |= (uint32_t)(row[__builtin_ctz(left)] != 0) << __builtin_ctz(left);
    return (step->flags & PTX_SOURCE_NOT) != 0 ? ~found & mask : found;
}

static void match(ptx_grid *grid, ptx_warp *warp, const ptx_step *step, uint32_t mask)
{
    const uint64_t *a = ptx_row(grid, warp, step, step->from[0]);
    uint64_t like[PTX_LANES];
    bool all = true;
    for (uint32_t left = mask; left != 0; left &= left - 1) {
        const uint32_t lane = (uint32_t)__builtin_ctz(left);
        like[lane] = 0;
        for (uint32_t other = mask; other != 0; other &= other - 1)
            like[lane] |= (uint64_t)(a[__builtin_ctz(other)] == a[lane]) << __builtin_ctz(other);
        all = all && like[lane] == mask;
    }
    for (uint32_t left = mask; left != 0; left &= left - 1) {
        const uint32_t lane = (uint32_t)__builtin_ctz(left);
        uint64_t *to = &ptx_row(grid, warp, step, step->to[0])[lane];
        if (step->op == PTX_MATCH_ALL) ptx_row(grid, warp, step, step->to[1])[lane] = all;
        *to = step->op == PTX_MATCH_ANY ? like[lane] : all ? mask : 0;
    }
}

void ptx_meet(ptx_grid *grid, ptx_warp *warp, const ptx_step *step, uint32_t mask)
{
    const uint64_t *a = ptx_row(grid, warp, step, step->from[0]);
    const uint32_t first = (uint32_t)__builtin_ctz(mask);
    switch (step->op) {
    case PTX_SHFL: shuffle(grid, warp, step, mask); break;
    case PTX_VOTE: {
        const uint32_t found = lanes_true(step, a, mask);
        give_all(grid, warp, step, mask,
                 step->mode == PTX_BALLOT_MODE ? found
                 : step->mode == PTX_ANY_MODE  ? found != 0
                 : step->mode == PTX_ALL_MODE  ? found == mask
                                               : found == mask || found == 0);
        break;
    }
    case PTX_REDUX: {
        uint64_t value = a[first];
        for (uint32_t left = mask & (mask - 1); left != 0; left &= left - 1)
            value = ptx_combine(step, value, a[__builtin_ctz(left)], 0);
        give_all(grid, warp, step, mask, value);
        break;
    }
    case PTX_WARP_SYNC: warp->epoch++; break;
    default: match(grid, warp, step, mask); break;
    }
}

/* Where the row of a meeting's members stands among the sources. */
static uint32_t members_at(const ptx_step *step)
{
    return step->op == PTX_WARP_SYNC ? 0 : step->op == PTX_SHFL ? 3 : 1;
}

/* Lets a meeting go on that has all its living members; false when there is none. */
static bool settle(ptx_grid *grid, ptx_warp *warp)
{
    for (uint32_t left = warp->meeting; left != 0; left &= left - 1) {
        const uint32_t lane = (uint32_t)__builtin_ctz(left);
        const uint32_t members = warp->members[lane] & warp->live;
        bool complete = (members & ~warp->meeting) == 0;
        for (uint32_t other = members; complete && other != 0; other &= other - 1) {
            const uint32_t at = (uint32_t)__builtin_ctz(other);
            complete = warp->pc[at] == warp->pc[lane] && warp->members[at] == warp->members[lane];
        }
        if (!complete) continue;
        const ptx_step *step = &grid->machine->steps[warp->pc[lane]];
        grid->step = step;
        ptx_meet(grid, warp, step, members);
        warp->meeting &= ~members;
        for (uint32_t other = members; other != 0; other &= other - 1)
            warp->pc[__builtin_ctz(other)]++;
        return true;
    }
    return false;
}

static void arrive(ptx_grid *grid, ptx_warp *warp, const ptx_step *step, uint32_t mask)
{
    const uint64_t *members = ptx_row(grid, warp, step, step->from[members_at(step)]);
    for (uint32_t left = mask; left != 0; left &= left - 1) {
        const uint32_t lane = (uint32_t)__builtin_ctz(left);
        warp->members[lane] = (uint32_t)members[lane];
        if ((warp->members[lane] >> lane & 1) == 0)
            ptx_lane_fail(grid, lane, "a mask of %#x, which is without the lane itself",
                          warp->members[lane]);
    }
    warp->meeting |= mask;
    settle(grid, warp);
}

_Noreturn static void fail_meeting(ptx_grid *grid, ptx_warp *warp)
{
    const uint32_t lane = (uint32_t)__builtin_ctz(warp->meeting);
    const uint32_t members = warp->members[lane] & warp->live;
    grid->step = &grid->machine->steps[warp->pc[lane]];
    for (uint32_t left = members; left != 0; left &= left - 1) {
        const uint32_t other = (uint32_t)__builtin_ctz(left);
        if (warp->pc[other] != warp->pc[lane])
            ptx_lane_fail(grid, lane, "lane %u never comes: it waits at line %u", other,
                          grid->machine->steps[warp->pc[other]].line);
        if (warp->members[other] != warp->members[lane])
            ptx_lane_fail(grid, lane, "lane %u has the mask %#x, not %#x", other,
                          warp->members[other], warp->members[lane]);
    }
    ptx_lane_fail(grid, lane, "the lanes of %#x never meet", members);
}

/* All lanes that live are at barriers: is it one barrier? */
static void stand(ptx_grid *grid, ptx_warp *warp)
{
    const uint32_t first = (uint32_t)__builtin_ctz(warp->live);
    const ptx_step *step = &grid->machine->steps[warp->pc[first]];
    grid->step = step;
    for (uint32_t left = warp->live; left != 0; left &= left - 1) {
        const uint32_t lane = (uint32_t)__builtin_ctz(left);
        const ptx_step *other = &grid->machine->steps[warp->pc[lane]];
        const uint64_t barrier = ptx_row(grid, warp, other, other->from[0])[lane];
        const uint64_t threads =
            other->count == 2 ? ptx_row(grid, warp, other, other->from[1])[lane] : 0;
        if (lane == first) {
            warp->barrier = (uint32_t)barrier;
            warp->barrier_threads = (uint32_t)threads;
        }
        if (barrier != warp->barrier || threads != warp->barrier_threads ||
            (other != step && (step->op != PTX_BARRIER || other->op != PTX_BARRIER)))
            ptx_lane_fail(grid, first, "a barrier in divergent threads: lane %u is at line %u",
                          lane, other->line);
        if (barrier > 15 || threads % PTX_LANES != 0)
            ptx_lane_fail(grid, lane, "barrier %llu of %llu threads", (unsigned long long)barrier,
                          (unsigned long long)threads);
    }
    warp->stands = true;
}

/* The way on */

static void copy_arguments(ptx_grid *grid, const ptx_warp *warp, const ptx_step *call,
                           uint32_t lane, bool results)
{
    const ptx_machine *machine = grid->machine;
    const ptx_function *called = &machine->functions[call->target];
    uint8_t *frames = grid->local + (size_t)(warp->number * PTX_LANES + lane) * grid->frame_bytes;
    for (uint32_t i = 0; i < called->inputs + called->outputs; i++) {
        const ptx_copy *copy = &machine->copies[call->copies + i];
        uint8_t *ours = frames + grid->frame_bases[call->function] + copy->offset;
        uint8_t *theirs = frames + grid->frame_bases[call->target] + called->parameter[i].offset;
        if (copy->is_result != results) continue;
        memcpy(results ? ours : theirs, results ? theirs : ours, copy->bytes);
    }
}

static void leave(ptx_grid *grid, ptx_warp *warp, uint32_t lane)
{
    if (warp->depth[lane] == 0) {
        warp->live &= ~(1u << lane);
        return;
    }
    const uint32_t call = warp->returns[--warp->depth[lane]][lane];
    copy_arguments(grid, warp, &grid->machine->steps[call], lane, true);
    warp->pc[lane] = call + 1;
}

/* A step after which the lanes of the mask are no group any more. */
static void run_way(ptx_grid *grid, ptx_warp *warp, const ptx_step *step, uint32_t mask)
{
    const ptx_machine *machine = grid->machine;
    const uint64_t *a = ptx_row(grid, warp, step, step->from[0]);
    for (uint32_t left = mask; left != 0; left &= left - 1) {
        const uint32_t lane = (uint32_t)__builtin_ctz(left);
        switch (step->op) {
        case PTX_BRA: warp->pc[lane] = step->target; break;
        case PTX_BRX:
            if (a[lane] >= step->target_count)
                ptx_lane_fail(grid, lane, "target %llu of %u", (unsigned long long)a[lane],
                              step->target_count);
            warp->pc[lane] = machine->targets[step->target + a[lane]];
            break;
        case PTX_CALL:
            warp->returns[warp->depth[lane]++][lane] = (uint32_t)(step - machine->steps);
            copy_arguments(grid, warp, step, lane, false);
            warp->pc[lane] = machine->functions[step->target].first;
            break;
        case PTX_RET: leave(grid, warp, lane); break;
        case PTX_EXIT: warp->live &= ~(1u << lane); break;
        default: ptx_lane_fail(grid, lane, "a trap"); /* TRAP */
        }
    }
}

/* One step of a group; false when its lanes must be looked at anew, each with its own pc. */
static bool run_step(ptx_grid *grid, ptx_warp *warp, const ptx_step *step, uint32_t group,
                     uint32_t mask)
{
    switch (step->op) {
    case PTX_SETP: run_comparison(grid, warp, step, mask); return true;
    case PTX_LD:
    case PTX_ST:
    case PTX_ATOM:
    case PTX_RED:
    case PTX_TOUCH: ptx_access(grid, warp, step, mask); return true;
    case PTX_NOTHING: return true;
    case PTX_PACK:
    case PTX_UNPACK:
    case PTX_CARRY:
    case PTX_CLOCK:
    case PTX_FRAME:
    case PTX_ISSPACEP:
    case PTX_ACTIVEMASK:
        for (uint32_t left = mask; left != 0; left &= left - 1)
            run_odd(grid, warp, step, (uint32_t)__builtin_ctz(left), group);
        return true;
    default: break;
    }
    const uint32_t pc = (uint32_t)(step - grid->machine->steps);
    for (uint32_t left = group; left != 0; left &= left - 1) {
        const uint32_t lane = (uint32_t)__builtin_ctz(left);
        warp->pc[lane] = pc + ((mask >> lane & 1) == 0);
    }
    if (step->op >= PTX_BRA)
        run_way(grid, warp, step, mask);
    else if (step->op >= PTX_BAR)
        warp->at_barrier |= mask;
    else
        arrive(grid, warp, step, mask);
    return false;
}

/* The group that goes on, and the lowest step behind it where other lanes of its depth are. */
static uint32_t choose(const ptx_warp *warp, uint32_t ready, uint32_t *pc_out, uint32_t *limit_out)
{
    uint32_t group = 0, pc = UINT32_MAX, limit = UINT32_MAX, depth = 0;
    for (uint32_t left = ready; left != 0; left &= left - 1) {
        const uint32_t lane = (uint32_t)__builtin_ctz(left);
        const uint32_t at = warp->pc[lane];
        if (warp->depth[lane] > depth) {
            depth = warp->depth[lane];
            group = 0;
            pc = limit = UINT32_MAX;
        } else if (warp->depth[lane] < depth) {
            continue;
        }
        if (at < pc) {
            limit = pc;
            pc = at;
            group = 0;
        }
        if (at == pc)
            group |= 1u << lane;
        else if (at < limit)
            limit = at;
    }
    *pc_out = pc;
    *limit_out = limit;
    return group;
}

void ptx_warp_run(ptx_grid *grid, ptx_warp *warp, uint32_t steps)
{
    const ptx_machine *machine = grid->machine;
    grid->warp = warp;
    while (steps > 0 && warp->live != 0) {
        const uint32_t ready = warp->live & ~(warp->meeting | warp->at_barrier);
        if (ready == 0) {
            if ((warp->meeting & warp->live) != 0) {
                if (!settle(grid, warp)) fail_meeting(grid, warp);
                continue;
            }
            stand(grid, warp);
            return;
        }
        uint32_t pc, limit;
        const uint32_t group = choose(warp, ready, &pc, &limit);
        for (bool together = true; together;) {
            const ptx_step *step = &machine->steps[pc];
            uint32_t mask = group;
            grid->step = step;
            grid->steps += (uint32_t)__builtin_popcount(group);
            if (grid->steps > grid->steps_most)
                ptx_lane_fail(grid, (uint32_t)__builtin_ctz(group), "more than %llu steps",
                              (unsigned long long)grid->steps_most);
            if (step->guard != PTX_NO_ROW) {
                const uint64_t *guard = ptx_row(grid, warp, step, step->guard);
                mask = 0;
                for (uint32_t lane = 0; lane < PTX_LANES; lane++)
                    mask |= (uint32_t)(guard[lane] & 1) << lane;
                mask = ((step->flags & PTX_GUARD_NOT) != 0 ? ~mask : mask) & group;
            }
            if (mask != 0 && step->op < PTX_VALUES_END)
                run_values(grid, warp, step, mask);
            else if (mask != 0 && step->op == PTX_BRA && mask == group)
                pc = step->target - 1;
            else if (mask != 0)
                together = run_step(grid, warp, step, group, mask);
            if (!together) break;
            pc++;
            if (--steps == 0 || pc >= limit) {
                for (uint32_t left = group; left != 0; left &= left - 1)
                    warp->pc[__builtin_ctz(left)] = pc;
                break;
            }
        }
        if (steps > 0) steps--;
    }
}
