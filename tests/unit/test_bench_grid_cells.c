/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_bench_grid_cells.c - the grid's cells: every level that they are to cover, names that tell
 * them apart, and a draw of the hidden half that stays as it was drawn.
 */
#include "cases.h"

#include "lab/bench/bench_grid.h"

#include <stdlib.h>
#include <string.h>

#define LEVELS 4u

static const uint32_t turns[LEVELS] = {1, 3, 8, 16};
static const double zipfs[LEVELS] = {0.0, 0.6, 0.9, 1.2};
static const uint32_t percents[LEVELS] = {2, 20, 80, 200};
static const double speeds[LEVELS] = {0.0, 0.5, 3.0, 14.0};

static unsigned level_of(const double values[LEVELS], double value)
{
    for (unsigned i = 0; i < LEVELS; i++)
        if (values[i] >= value && values[i] <= value) return i;
    fail_msg("%g is no level", value);
    return 0;
}

static void levels_of_cell(const grid_cell *cell, unsigned levels[4])
{
    double lengths[LEVELS], capacities[LEVELS];
    for (unsigned i = 0; i < LEVELS; i++) {
        lengths[i] = turns[i];
        capacities[i] = percents[i];
    }
    levels[0] = level_of(lengths, cell->turns);
    levels[1] = level_of(zipfs, cell->zipf);
    levels[2] = level_of(capacities, cell->capacity_percent);
    levels[3] = level_of(speeds, cell->ssd_gb_per_s);
}

/* Counts how often the levels of `first` and `second` meet in the cells that `quick` asks for. */
static void check_pair(unsigned first, unsigned second, bool quick, unsigned wanted)
{
    unsigned met[LEVELS][LEVELS] = {{0}};
    for (size_t i = 0; i < grid_cell_count(); i++) {
        const grid_cell *cell = grid_cell_at(i);
        unsigned levels[4];
        if (cell->family != GRID_SESSIONS || (quick && !cell->quick)) continue;
        levels_of_cell(cell, levels);
        met[levels[first]][levels[second]]++;
    }
    for (unsigned a = 0; a < LEVELS; a++)
        for (unsigned b = 0; b < LEVELS; b++)
            assert_int_equal(met[a][b], wanted);
}

TEST(any_two_levels_meet)
{
    for (unsigned first = 0; first < 4; first++) {
        for (unsigned second = first + 1; second < 4; second++) {
            check_pair(first, second, false, 4);
            check_pair(first, second, true, 1);
        }
    }
}

/* Forms and load are balanced, and neither goes along with a level of another factor. */
TEST(forms_and_loads_are_spread)
{
    unsigned lossless = 0, heavy = 0, both = 0, at[4][LEVELS] = {{0}};
    for (size_t i = 0; i < grid_cell_count(); i++) {
        const grid_cell *cell = grid_cell_at(i);
        unsigned levels[4];
        if (cell->family != GRID_SESSIONS) continue;
        bool loaded = cell->load > 0.5;
        lossless += cell->lossless;
        heavy += loaded;
        both += cell->lossless && loaded;
        levels_of_cell(cell, levels);
        for (unsigned f = 0; f < 4; f++)
            at[f][levels[f]] += cell->lossless;
    }
    assert_int_equal(lossless, 32);
    assert_int_equal(heavy, 32);
    assert_int_equal(both, 16);
    for (unsigned f = 0; f < 4; f++)
        for (unsigned level = 0; level < LEVELS; level++)
            assert_int_equal(at[f][level], 8);
}

TEST(every_family_has_both_halves)
{
    unsigned cells[GRID_FAMILIES] = {0}, hidden[GRID_FAMILIES] = {0}, quick[GRID_FAMILIES] = {0};
    assert_true(grid_cell_count() >= 80);
    for (size_t i = 0; i < grid_cell_count(); i++) {
        const grid_cell *cell = grid_cell_at(i);
        cells[cell->family]++;
        quick[cell->family] += cell->quick;
        hidden[cell->family] += grid_is_hidden(i);
        assert_true(cell->load > 0.0 && cell->load < 1.0);
    }
    for (unsigned family = 0; family < GRID_FAMILIES; family++) {
        assert_true(cells[family] >= 4 && cells[family] % 2 == 0);
        assert_int_equal(hidden[family], cells[family] / 2);
        assert_true(quick[family] >= 1);
    }
}

TEST(names_tell_cells_apart)
{
    for (size_t i = 0; i < grid_cell_count(); i++)
        for (size_t j = 0; j < i; j++)
            assert_string_not_equal(grid_cell_at(i)->name, grid_cell_at(j)->name);
}

/* The sum over the names of the hidden cells, as it was when the seed was written down. A cell that
 * changes its half, or its name, changes it. */
TEST(the_draw_stays)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < grid_cell_count(); i++) {
        uint64_t hash = UINT64_C(0xcbf29ce484222325);
        for (const char *at = grid_cell_at(i)->name; *at != '\0'; at++)
            hash = (hash ^ (unsigned char)*at) * UINT64_C(0x100000001b3);
        if (grid_is_hidden(i)) sum += hash;
    }
    assert_int_equal(sum, UINT64_C(0x991c620f6ec2b4f1));
}
