/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slab.h - memory for objects of one size that are kept by the million: cells in large pieces,
 * without a header of their own. The file moves no object and gives no piece back before the close.
 *
 * Thread rule: base_slab_take and base_slab_give from any thread; the others from one.
 */
#ifndef BASE_SLAB_H
#define BASE_SLAB_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct base_slab {
    pthread_mutex_t lock; /* a leaf */
    size_t cell_bytes;
    void *spare;        /* cells that came back, chained through their first word */
    char *fresh;        /* the rest of the newest piece, never used, */
    size_t fresh_bytes; /* and its size */
    void *pieces;       /* chained through their first word */
    size_t piece_bytes; /* of the next piece */
} base_slab;

/* A slab of static storage, which is never closed. */
#define BASE_SLAB_STATIC(bytes)                                                                    \
    {                                                                                              \
        .lock = PTHREAD_MUTEX_INITIALIZER, .cell_bytes = (bytes),                                  \
        .piece_bytes = BASE_SLAB_PIECE_FIRST                                                       \
    }
#define BASE_SLAB_PIECE_FIRST ((size_t)16 << 10)

/* A slab of cells of this size, a multiple of 8 bytes. Takes no memory yet. */
void base_slab_open(base_slab *slab, size_t cell_bytes);

/* Frees all pieces, whatever cells are out. A slab that is zeroed and was never opened is
 * allowed. */
void base_slab_close(base_slab *slab);

/* A cell of zeros; NULL without memory. Under AddressSanitizer every cell is malloc's, so that a
 * use after base_slab_give is found. */
void *base_slab_take(base_slab *slab);

/* Gives a cell back. NULL is allowed. */
void base_slab_give(base_slab *slab, void *cell);

#endif
