/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slab.c - cells of one size, see slab.h.
 *
 * Pieces double from 16 KiB to 2 MiB: a small store takes little, and a large one has its cells in
 * large pages, so that a look-up among millions misses no translation.
 *
 * Thread rule: as slab.h.
 */
#include "base/slab.h"

#include <assert.h>
#include <kvterrace/policy.h>
#include <stdlib.h>
#include <string.h>

#define SLAB_PIECE_LAST ((size_t)2 << 20)
#define SLAB_HEAD_BYTES ((size_t)64) /* of a piece: its chain, and alignment of the first cell */

#if defined(__SANITIZE_ADDRESS__)
#define SLAB_CELLS_APART 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SLAB_CELLS_APART 1
#endif
#endif
#ifndef SLAB_CELLS_APART
#define SLAB_CELLS_APART 0
#endif

void base_slab_open(base_slab *slab, size_t cell_bytes)
{
    assert(cell_bytes >= sizeof(void *) && cell_bytes % 8 == 0);
    assert(cell_bytes <= BASE_SLAB_PIECE_FIRST - SLAB_HEAD_BYTES);
    *slab = (base_slab){.cell_bytes = cell_bytes, .piece_bytes = BASE_SLAB_PIECE_FIRST};
    pthread_mutex_init(&slab->lock, NULL);
}

void base_slab_close(base_slab *slab)
{
    if (slab->cell_bytes == 0) return;
    for (void *piece = slab->pieces, *next; piece != NULL; piece = next) {
        memcpy(&next, piece, sizeof next);
        kvt_memory_resize(NULL, piece, 0, 0);
    }
    pthread_mutex_destroy(&slab->lock);
    memset(slab, 0, sizeof *slab);
}

/* Begins a new piece; what is left of the one before is less than a cell. False without memory.
 * slab->lock held. */
static bool slab_grow(base_slab *slab)
{
    char *piece = kvt_memory_resize(NULL, NULL, 0, slab->piece_bytes);
    if (piece == NULL) return false;
    memcpy(piece, &slab->pieces, sizeof slab->pieces);
    slab->pieces = piece;
    slab->fresh = piece + SLAB_HEAD_BYTES;
    slab->fresh_bytes = slab->piece_bytes - SLAB_HEAD_BYTES;
    if (slab->piece_bytes < SLAB_PIECE_LAST) slab->piece_bytes *= 2;
    return true;
}

void *base_slab_take(base_slab *slab)
{
    assert(slab->cell_bytes != 0);
    if (SLAB_CELLS_APART) return calloc(1, slab->cell_bytes);
    pthread_mutex_lock(&slab->lock);
    void *cell = slab->spare;
    if (cell != NULL) {
        memcpy(&slab->spare, cell, sizeof slab->spare);
    } else if (slab->fresh_bytes >= slab->cell_bytes || slab_grow(slab)) {
        cell = slab->fresh;
        slab->fresh += slab->cell_bytes;
        slab->fresh_bytes -= slab->cell_bytes;
    }
    pthread_mutex_unlock(&slab->lock);
    if (cell != NULL) memset(cell, 0, slab->cell_bytes);
    return cell;
}

void base_slab_give(base_slab *slab, void *cell)
{
    if (cell == NULL) return;
    if (SLAB_CELLS_APART) {
        free(cell);
        return;
    }
    pthread_mutex_lock(&slab->lock);
    memcpy(cell, &slab->spare, sizeof slab->spare);
    slab->spare = cell;
    pthread_mutex_unlock(&slab->lock);
}
