/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_grid_cells.c - the cells of the grid, and the draw of the hidden half. One table, no state.
 *
 * The first 64 cells are a quarter of the full product of 4 turns, 4 exponents, 4 capacities and 4
 * kinds of devices: with the levels numbered 0 to 3, devices = turns xor exponent xor capacity. Any
 * three of the four factors then meet in all 64 ways, once each, so no pair of factors is confused
 * with another. Forms and load are spread over the cells in the same manner (a fifth column over
 * the field of four elements, cut into two bits). The cells of --quick are a sixteenth of the
 * product, in which any two factors meet in all 16 ways.
 */
#include "bench_grid.h"

#include "lab/replay/random.h"

#include <string.h>

/* Drawn once, before the engine was tuned on any cell. It stays. */
#define GRID_HIDDEN_SEED UINT64_C(20261122)

#define LIGHT 0.3
#define HEAVY 0.8

/* name, family, turns, Zipf exponent, capacity in %, SSD in GB/s, lossless, load, quick, strength
 */
static const grid_cell grid_cells[] = {
    /* clang-format off */
    {"turns1-zipf0-cap2-dram", GRID_SESSIONS, 1, 0.0, 2, 0.0, false, LIGHT, true, 0.0},
    {"turns1-zipf0-cap20-ssd0.5", GRID_SESSIONS, 1, 0.0, 20, 0.5, true, HEAVY, false, 0.0},
    {"turns1-zipf0-cap80-ssd3", GRID_SESSIONS, 1, 0.0, 80, 3.0, true, LIGHT, false, 0.0},
    {"turns1-zipf0-cap200-ssd14", GRID_SESSIONS, 1, 0.0, 200, 14.0, false, HEAVY, false, 0.0},
    {"turns1-zipf0.6-cap2-ssd0.5", GRID_SESSIONS, 1, 0.6, 2, 0.5, false, HEAVY, false, 0.0},
    {"turns1-zipf0.6-cap20-dram", GRID_SESSIONS, 1, 0.6, 20, 0.0, true, LIGHT, false, 0.0},
    {"turns1-zipf0.6-cap80-ssd14", GRID_SESSIONS, 1, 0.6, 80, 14.0, true, HEAVY, false, 0.0},
    {"turns1-zipf0.6-cap200-ssd3", GRID_SESSIONS, 1, 0.6, 200, 3.0, false, LIGHT, true, 0.0},
    {"turns1-zipf0.9-cap2-ssd3", GRID_SESSIONS, 1, 0.9, 2, 3.0, true, HEAVY, false, 0.0},
    {"turns1-zipf0.9-cap20-ssd14", GRID_SESSIONS, 1, 0.9, 20, 14.0, false, LIGHT, true, 0.0},
    {"turns1-zipf0.9-cap80-dram", GRID_SESSIONS, 1, 0.9, 80, 0.0, false, HEAVY, false, 0.0},
    {"turns1-zipf0.9-cap200-ssd0.5", GRID_SESSIONS, 1, 0.9, 200, 0.5, true, LIGHT, false, 0.0},
    {"turns1-zipf1.2-cap2-ssd14", GRID_SESSIONS, 1, 1.2, 2, 14.0, true, LIGHT, false, 0.0},
    {"turns1-zipf1.2-cap20-ssd3", GRID_SESSIONS, 1, 1.2, 20, 3.0, false, HEAVY, false, 0.0},
    {"turns1-zipf1.2-cap80-ssd0.5", GRID_SESSIONS, 1, 1.2, 80, 0.5, false, LIGHT, true, 0.0},
    {"turns1-zipf1.2-cap200-dram", GRID_SESSIONS, 1, 1.2, 200, 0.0, true, HEAVY, false, 0.0},
    {"turns3-zipf0-cap2-ssd0.5", GRID_SESSIONS, 3, 0.0, 2, 0.5, true, LIGHT, false, 0.0},
    {"turns3-zipf0-cap20-dram", GRID_SESSIONS, 3, 0.0, 20, 0.0, false, HEAVY, false, 0.0},
    {"turns3-zipf0-cap80-ssd14", GRID_SESSIONS, 3, 0.0, 80, 14.0, false, LIGHT, true, 0.0},
    {"turns3-zipf0-cap200-ssd3", GRID_SESSIONS, 3, 0.0, 200, 3.0, true, HEAVY, false, 0.0},
    {"turns3-zipf0.6-cap2-dram", GRID_SESSIONS, 3, 0.6, 2, 0.0, true, HEAVY, false, 0.0},
    {"turns3-zipf0.6-cap20-ssd0.5", GRID_SESSIONS, 3, 0.6, 20, 0.5, false, LIGHT, true, 0.0},
    {"turns3-zipf0.6-cap80-ssd3", GRID_SESSIONS, 3, 0.6, 80, 3.0, false, HEAVY, false, 0.0},
    {"turns3-zipf0.6-cap200-ssd14", GRID_SESSIONS, 3, 0.6, 200, 14.0, true, LIGHT, false, 0.0},
    {"turns3-zipf0.9-cap2-ssd14", GRID_SESSIONS, 3, 0.9, 2, 14.0, false, HEAVY, false, 0.0},
    {"turns3-zipf0.9-cap20-ssd3", GRID_SESSIONS, 3, 0.9, 20, 3.0, true, LIGHT, false, 0.0},
    {"turns3-zipf0.9-cap80-ssd0.5", GRID_SESSIONS, 3, 0.9, 80, 0.5, true, HEAVY, false, 0.0},
    {"turns3-zipf0.9-cap200-dram", GRID_SESSIONS, 3, 0.9, 200, 0.0, false, LIGHT, true, 0.0},
    {"turns3-zipf1.2-cap2-ssd3", GRID_SESSIONS, 3, 1.2, 2, 3.0, false, LIGHT, true, 0.0},
    {"turns3-zipf1.2-cap20-ssd14", GRID_SESSIONS, 3, 1.2, 20, 14.0, true, HEAVY, false, 0.0},
    {"turns3-zipf1.2-cap80-dram", GRID_SESSIONS, 3, 1.2, 80, 0.0, true, LIGHT, false, 0.0},
    {"turns3-zipf1.2-cap200-ssd0.5", GRID_SESSIONS, 3, 1.2, 200, 0.5, false, HEAVY, false, 0.0},
    {"turns8-zipf0-cap2-ssd3", GRID_SESSIONS, 8, 0.0, 2, 3.0, false, HEAVY, false, 0.0},
    {"turns8-zipf0-cap20-ssd14", GRID_SESSIONS, 8, 0.0, 20, 14.0, true, LIGHT, false, 0.0},
    {"turns8-zipf0-cap80-dram", GRID_SESSIONS, 8, 0.0, 80, 0.0, true, HEAVY, false, 0.0},
    {"turns8-zipf0-cap200-ssd0.5", GRID_SESSIONS, 8, 0.0, 200, 0.5, false, LIGHT, true, 0.0},
    {"turns8-zipf0.6-cap2-ssd14", GRID_SESSIONS, 8, 0.6, 2, 14.0, false, LIGHT, true, 0.0},
    {"turns8-zipf0.6-cap20-ssd3", GRID_SESSIONS, 8, 0.6, 20, 3.0, true, HEAVY, false, 0.0},
    {"turns8-zipf0.6-cap80-ssd0.5", GRID_SESSIONS, 8, 0.6, 80, 0.5, true, LIGHT, false, 0.0},
    {"turns8-zipf0.6-cap200-dram", GRID_SESSIONS, 8, 0.6, 200, 0.0, false, HEAVY, false, 0.0},
    {"turns8-zipf0.9-cap2-dram", GRID_SESSIONS, 8, 0.9, 2, 0.0, true, LIGHT, false, 0.0},
    {"turns8-zipf0.9-cap20-ssd0.5", GRID_SESSIONS, 8, 0.9, 20, 0.5, false, HEAVY, false, 0.0},
    {"turns8-zipf0.9-cap80-ssd3", GRID_SESSIONS, 8, 0.9, 80, 3.0, false, LIGHT, true, 0.0},
    {"turns8-zipf0.9-cap200-ssd14", GRID_SESSIONS, 8, 0.9, 200, 14.0, true, HEAVY, false, 0.0},
    {"turns8-zipf1.2-cap2-ssd0.5", GRID_SESSIONS, 8, 1.2, 2, 0.5, true, HEAVY, false, 0.0},
    {"turns8-zipf1.2-cap20-dram", GRID_SESSIONS, 8, 1.2, 20, 0.0, false, LIGHT, true, 0.0},
    {"turns8-zipf1.2-cap80-ssd14", GRID_SESSIONS, 8, 1.2, 80, 14.0, false, HEAVY, false, 0.0},
    {"turns8-zipf1.2-cap200-ssd3", GRID_SESSIONS, 8, 1.2, 200, 3.0, true, LIGHT, false, 0.0},
    {"turns16-zipf0-cap2-ssd14", GRID_SESSIONS, 16, 0.0, 2, 14.0, true, HEAVY, false, 0.0},
    {"turns16-zipf0-cap20-ssd3", GRID_SESSIONS, 16, 0.0, 20, 3.0, false, LIGHT, true, 0.0},
    {"turns16-zipf0-cap80-ssd0.5", GRID_SESSIONS, 16, 0.0, 80, 0.5, false, HEAVY, false, 0.0},
    {"turns16-zipf0-cap200-dram", GRID_SESSIONS, 16, 0.0, 200, 0.0, true, LIGHT, false, 0.0},
    {"turns16-zipf0.6-cap2-ssd3", GRID_SESSIONS, 16, 0.6, 2, 3.0, true, LIGHT, false, 0.0},
    {"turns16-zipf0.6-cap20-ssd14", GRID_SESSIONS, 16, 0.6, 20, 14.0, false, HEAVY, false, 0.0},
    {"turns16-zipf0.6-cap80-dram", GRID_SESSIONS, 16, 0.6, 80, 0.0, false, LIGHT, true, 0.0},
    {"turns16-zipf0.6-cap200-ssd0.5", GRID_SESSIONS, 16, 0.6, 200, 0.5, true, HEAVY, false, 0.0},
    {"turns16-zipf0.9-cap2-ssd0.5", GRID_SESSIONS, 16, 0.9, 2, 0.5, false, LIGHT, true, 0.0},
    {"turns16-zipf0.9-cap20-dram", GRID_SESSIONS, 16, 0.9, 20, 0.0, true, HEAVY, false, 0.0},
    {"turns16-zipf0.9-cap80-ssd14", GRID_SESSIONS, 16, 0.9, 80, 14.0, true, LIGHT, false, 0.0},
    {"turns16-zipf0.9-cap200-ssd3", GRID_SESSIONS, 16, 0.9, 200, 3.0, false, HEAVY, false, 0.0},
    {"turns16-zipf1.2-cap2-dram", GRID_SESSIONS, 16, 1.2, 2, 0.0, false, HEAVY, false, 0.0},
    {"turns16-zipf1.2-cap20-ssd0.5", GRID_SESSIONS, 16, 1.2, 20, 0.5, true, LIGHT, false, 0.0},
    {"turns16-zipf1.2-cap80-ssd3", GRID_SESSIONS, 16, 1.2, 80, 3.0, true, HEAVY, false, 0.0},
    {"turns16-zipf1.2-cap200-ssd14", GRID_SESSIONS, 16, 1.2, 200, 14.0, false, LIGHT, true, 0.0},
    {"long-turns1-zipf0.9-cap20-ssd0.5", GRID_LONG, 1, 0.9, 20, 0.5, false, LIGHT, false, 0.0},
    {"long-turns3-zipf0.9-cap20-ssd0.5", GRID_LONG, 3, 0.9, 20, 0.5, true, LIGHT, true, 0.0},
    {"long-turns8-zipf0.9-cap20-ssd0.5", GRID_LONG, 8, 0.9, 20, 0.5, false, HEAVY, false, 0.0},
    {"long-turns1-zipf0.9-cap80-ssd0.5", GRID_LONG, 1, 0.9, 80, 0.5, true, HEAVY, false, 0.0},
    {"long-turns3-zipf0.9-cap80-ssd0.5", GRID_LONG, 3, 0.9, 80, 0.5, false, LIGHT, false, 0.0},
    {"long-turns3-zipf0.9-cap20-ssd3", GRID_LONG, 3, 0.9, 20, 3.0, true, LIGHT, false, 0.0},
    {"drift0.02-turns1-zipf0.9-cap20-dram", GRID_DRIFT, 1, 0.9, 20, 0.0, false, LIGHT, false, 0.02},
    {"drift0.2-turns1-zipf0.9-cap20-ssd3", GRID_DRIFT, 1, 0.9, 20, 3.0, true, LIGHT, false, 0.2},
    {"drift0.2-turns3-zipf0.9-cap20-dram", GRID_DRIFT, 3, 0.9, 20, 0.0, false, HEAVY, true, 0.2},
    {"drift0.02-turns3-zipf0.9-cap20-ssd3", GRID_DRIFT, 3, 0.9, 20, 3.0, true, HEAVY, false, 0.02},
    {"drift0.2-turns1-zipf1.2-cap20-ssd0.5", GRID_DRIFT, 1, 1.2, 20, 0.5, false, LIGHT, false, 0.2},
    {"drift0.2-turns3-zipf1.2-cap2-dram", GRID_DRIFT, 3, 1.2, 2, 0.0, true, LIGHT, false, 0.2},
    {"scan0.5-turns1-zipf0.9-cap20-dram", GRID_SCAN, 1, 0.9, 20, 0.0, false, LIGHT, true, 0.5},
    {"scan0.5-turns3-zipf0.9-cap20-ssd3", GRID_SCAN, 3, 0.9, 20, 3.0, true, LIGHT, false, 0.5},
    {"scan0.2-turns3-zipf0.9-cap80-dram", GRID_SCAN, 3, 0.9, 80, 0.0, false, HEAVY, false, 0.2},
    {"scan0.2-turns1-zipf0.9-cap20-ssd0.5", GRID_SCAN, 1, 0.9, 20, 0.5, true, HEAVY, false, 0.2},
    {"crowd5-turns1-zipf0.9-cap20-dram", GRID_CROWD, 1, 0.9, 20, 0.0, false, LIGHT, false, 5.0},
    {"crowd5-turns3-zipf0.6-cap20-ssd3", GRID_CROWD, 3, 0.6, 20, 3.0, true, LIGHT, true, 5.0},
    {"crowd5-turns3-zipf0.9-cap2-dram", GRID_CROWD, 3, 0.9, 2, 0.0, false, HEAVY, false, 5.0},
    {"crowd2-turns1-zipf0.6-cap20-ssd0.5", GRID_CROWD, 1, 0.6, 20, 0.5, true, HEAVY, false, 2.0},
    {"conversation-cap2-dram", GRID_CONVERSATION, 0, 0.0, 2, 0.0, false, LIGHT, false, 0.0},
    {"conversation-cap20-dram", GRID_CONVERSATION, 0, 0.0, 20, 0.0, true, LIGHT, true, 0.0},
    {"conversation-cap20-ssd0.5", GRID_CONVERSATION, 0, 0.0, 20, 0.5, false, HEAVY, false, 0.0},
    {"conversation-cap20-ssd3", GRID_CONVERSATION, 0, 0.0, 20, 3.0, true, HEAVY, false, 0.0},
    {"conversation-cap20-ssd14", GRID_CONVERSATION, 0, 0.0, 20, 14.0, false, LIGHT, false, 0.0},
    {"conversation-cap80-ssd3", GRID_CONVERSATION, 0, 0.0, 80, 3.0, true, LIGHT, false, 0.0},
    {"toolagent-cap20-dram", GRID_TOOLAGENT, 0, 0.0, 20, 0.0, false, LIGHT, false, 0.0},
    {"toolagent-cap20-ssd3", GRID_TOOLAGENT, 0, 0.0, 20, 3.0, true, LIGHT, true, 0.0},
    {"toolagent-cap2-ssd14", GRID_TOOLAGENT, 0, 0.0, 2, 14.0, false, HEAVY, false, 0.0},
    {"toolagent-cap80-ssd0.5", GRID_TOOLAGENT, 0, 0.0, 80, 0.5, true, HEAVY, false, 0.0},
    {"agentic-cap20-dram", GRID_AGENTIC, 0, 0.0, 20, 0.0, false, LIGHT, false, 0.0},
    {"agentic-cap20-ssd3", GRID_AGENTIC, 0, 0.0, 20, 3.0, true, LIGHT, false, 0.0},
    {"agentic-cap2-ssd14", GRID_AGENTIC, 0, 0.0, 2, 14.0, false, HEAVY, true, 0.0},
    {"agentic-cap80-ssd0.5", GRID_AGENTIC, 0, 0.0, 80, 0.5, true, HEAVY, false, 0.0},
    /* clang-format on */
};
#define GRID_CELLS (sizeof grid_cells / sizeof grid_cells[0])

size_t grid_cell_count(void)
{
    return GRID_CELLS;
}

const grid_cell *grid_cell_at(size_t index)
{
    return &grid_cells[index];
}

static uint64_t grid_draw(const char *name)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325); /* FNV-1a */
    for (const char *at = name; *at != '\0'; at++)
        hash = (hash ^ (unsigned char)*at) * UINT64_C(0x100000001b3);
    return replay_mix(hash ^ GRID_HIDDEN_SEED);
}

/* Of every family the half with the smaller draws is hidden. */
bool grid_is_hidden(size_t index)
{
    uint64_t own = grid_draw(grid_cells[index].name);
    size_t family = 0, smaller = 0;
    for (size_t i = 0; i < GRID_CELLS; i++) {
        if (grid_cells[i].family != grid_cells[index].family) continue;
        family++;
        smaller += grid_draw(grid_cells[i].name) < own;
    }
    return smaller < family / 2;
}

const char *grid_family_name(grid_family family)
{
    static const char *const names[GRID_FAMILIES] = {
        "sessions", "long", "drift", "scan", "crowd", "conversation", "toolagent", "agentic"};
    return names[family];
}

const char *grid_half_name(grid_half half)
{
    return half == GRID_HALF_HIDDEN ? "hidden" : half == GRID_HALF_TUNING ? "tuning" : "all";
}
