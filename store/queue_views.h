/* SPDX-License-Identifier: Apache-2.0 */
/*
 * queue_views.h - memory that two gets of one chunk would write.
 *
 * Thread rule: the thread that begins the chunk.
 */
#ifndef STORE_QUEUE_VIEWS_H
#define STORE_QUEUE_VIEWS_H

#include "store/queue_internal.h"

/* Gives KVT_E_ARGUMENT to gets whose view meets that of an earlier item in `items`. Compared are
 * runs of bytes with each other, and block tables of one pool. Items with another status than
 * KVT_OK are passed over. */
void queue_views_check(queue_item *const *items, uint32_t count);

#endif
