/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_base_slab.c - cells of a slab are zeroed, apart from each other, aligned, and used again.
 */
#include "cases.h"

#include "base/slab.h"

#include <string.h>

enum { CELL = 72, CELLS = 5000 }; /* more than the first pieces hold */

static unsigned char *cells[CELLS];

static void take_all(base_slab *slab)
{
    static const unsigned char zeros[CELL];
    for (int i = 0; i < CELLS; i++) {
        cells[i] = base_slab_take(slab);
        assert_non_null(cells[i]);
        assert_int_equal((uintptr_t)cells[i] % sizeof(uint64_t), 0);
        assert_memory_equal(cells[i], zeros, CELL);
        memset(cells[i], 1 + i % 255, CELL);
    }
    for (int i = 0; i < CELLS; i++)
        for (int at = 0; at < CELL; at++)
            assert_int_equal(cells[i][at], 1 + i % 255);
}

TEST(cells_are_apart_and_come_back)
{
    base_slab slab;
    base_slab_open(&slab, CELL);
    take_all(&slab);
    size_t piece_bytes = slab.piece_bytes;
    for (int i = 0; i < CELLS; i++)
        base_slab_give(&slab, cells[i]);
    base_slab_give(&slab, NULL);
    take_all(&slab);
    assert_int_equal(slab.piece_bytes, piece_bytes); /* no piece more */
    for (int i = 0; i < CELLS; i++)
        base_slab_give(&slab, cells[i]);
    base_slab_close(&slab);
}

TEST(a_slab_that_was_never_opened_closes)
{
    base_slab slab = {0};
    base_slab_close(&slab);
    assert_null(slab.pieces);
}
