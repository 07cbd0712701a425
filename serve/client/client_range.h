/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client_range.h - parts of a channel's area that requests hold: units of one size, the lowest
 * free ones first, so that few requests use little memory over and over.
 *
 * Thread rule: one thread at a time (the channel's lock).
 */
#ifndef SERVE_CLIENT_CLIENT_RANGE_H
#define SERVE_CLIENT_CLIENT_RANGE_H

#include <kvterrace/status.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct client_range {
    uint64_t *used; /* a bit for each unit; those behind the last are set */
    uint64_t units;
    uint64_t lowest; /* no unit below is free */
    uint32_t unit_bytes;
} client_range;

/* bytes is a multiple of unit_bytes, 0 allowed. KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status client_range_init(client_range *range, uint64_t bytes,
                                           uint32_t unit_bytes);

void client_range_free(client_range *range);

/* Whether so many bytes would have room when nothing is taken. */
bool client_range_holds(const client_range *range, uint64_t bytes);

/* Takes bytes, above 0, in one piece. False: there is no such piece now. */
bool client_range_take(client_range *range, uint64_t bytes, uint64_t *at_out);

/* Gives back what was taken. */
void client_range_give(client_range *range, uint64_t at, uint64_t bytes);

#endif
