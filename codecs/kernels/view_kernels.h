/* SPDX-License-Identifier: Apache-2.0 */
/*
 * view_kernels.h - scattering and gathering of rows, one set per level of vectors; private to the
 * files of views. Re-entrant.
 */
#ifndef CODECS_VIEW_KERNELS_H
#define CODECS_VIEW_KERNELS_H

#include "codecs/view_rows.h"

enum { VIEW_LINE = 64 };

typedef struct view_kernels {
    void (*scatter)(const view_rows *rows, uint64_t at, uint64_t bytes, const uint8_t *packed);
    void (*gather)(const view_rows *rows, uint64_t at, uint64_t bytes, uint8_t *packed);
} view_kernels;

#if defined(__x86_64__)
extern const view_kernels view_kernels_avx2;
extern const view_kernels view_kernels_avx512;
#endif

/* A place in a matrix: its token's slot, and what is left of the block. */
typedef struct view_rows_place {
    uint8_t *row;
    uint64_t left; /* rows of the block from here on */
} view_rows_place;

static inline view_rows_place view_rows_place_of(const view_rows *rows, uint64_t token)
{
    view_rows_place place = {rows->start, UINT64_MAX};
    uint64_t slot = token;
    if (rows->block_tokens != UINT32_MAX) {
        const uint64_t at = rows->first_slot + token;
        const uint64_t block = at / rows->block_tokens;
        slot = at % rows->block_tokens;
        place.row += (rows->blocks != NULL ? rows->blocks[block] : block) * rows->block_stride;
        place.left = rows->block_tokens - slot;
    }
    place.row += slot * rows->token_stride;
    return place;
}

#endif
