/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote_hints.h - what is known of keys in the engine: there, or not, until an instant. Bounded; a
 * hint that finds no room takes that of the oldest of its set.
 *
 * Thread rule: any thread; its own lock, a leaf.
 */
#ifndef STORE_REMOTE_HINTS_H
#define STORE_REMOTE_HINTS_H

#include <kvterrace/status.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

typedef enum remote_hint { HINT_UNKNOWN = 0, HINT_THERE = 1, HINT_ABSENT = 2 } remote_hint;

typedef struct hint_item {
    uint64_t handle;   /* of the entry */
    uint64_t until_ns; /* its last bit: there */
} hint_item;

typedef struct remote_hints {
    pthread_mutex_t lock;
    hint_item *items; /* HINTS_ROOM, in sets of HINTS_WAYS */
    uint64_t ttl_ns;
} remote_hints;

#define HINTS_ROOM 65536u
#define HINTS_WAYS 4u

KVT_NODISCARD kvt_status remote_hints_open(remote_hints *hints, uint64_t ttl_ns);
void remote_hints_close(remote_hints *hints);

void remote_hints_set(remote_hints *hints, uint64_t handle, remote_hint hint, uint64_t now_ns);
remote_hint remote_hints_get(remote_hints *hints, uint64_t handle, uint64_t now_ns);
void remote_hints_forget(remote_hints *hints, uint64_t handle);
void remote_hints_clear(remote_hints *hints);

#endif
