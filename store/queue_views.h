/* SPDX-License-Identifier: Apache-2.0 */
/*
 * queue_views.h - memory that two gets of one chunk, or two entries of a layered load, would write.
 *
 * Thread rule: the thread that begins them.
 */
#ifndef STORE_QUEUE_VIEWS_H
#define STORE_QUEUE_VIEWS_H

#include "store/queue_internal.h"

/* A view that is about to be written. */
typedef struct queue_view {
    const kvt_view *view; /* checked for the layout */
    uint64_t tokens;      /* of the layout */
    uint64_t bytes;       /* packed */
    kvt_status *status;   /* becomes KVT_E_ARGUMENT */
} queue_view;

/* Gives KVT_E_ARGUMENT to views that meet an earlier one. Compared are runs of bytes with each
 * other, and block tables of one pool. */
void queue_views_check(const queue_view *views, uint32_t count);

#endif
