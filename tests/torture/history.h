/* SPDX-License-Identifier: Apache-2.0 */
/*
 * history.h - what gets may give: a history of puts, removals and gets of each key, in which every
 * call is an interval between two instants, and the judgement whether a get fits into it.
 *
 * A key's content has versions, and a version is put once. The store keeps one version of a key at
 * a time, and a put of a key that is stored keeps nothing. A store may drop what it likes, so a
 * miss is always right; a get that gives version v is right when an order of all calls exists that
 * respects their intervals and in which v is stored at that get:
 *
 *     put v      |-------|
 *     get -> v               |---|             right
 *     delete                       |----|
 *     get -> v                       |---|     right: the delete may come after it
 *     get -> v                              |---|   wrong: v had been removed when it began
 *     put w                                  |----|
 *     get -> w                                   |--|
 *     get -> v                                         |--|  wrong as well: w was stored after v
 *
 * Two instants of a version decide: `since`, by which it was stored if it ever was (its put has
 * returned, or a get has given it), and `until`, by which it was gone: a removal that began after
 * `since` has returned, or a version whose put began after `since` is known to have been stored.
 * Both are bounds, so that what is called wrong is wrong; a get that is judged before a get that
 * returned earlier may be called right without being so.
 *
 * A put that has begun and never ends, because its process was killed, may be stored at any time
 * later; whoever gives its version settles it.
 *
 * Thread rule: any thread of the process that made it and of its children by fork, which may be
 * killed at any time; each key has a lock of its own.
 */
#ifndef TESTS_TORTURE_HISTORY_H
#define TESTS_TORTURE_HISTORY_H

#include <stdbool.h>
#include <stdint.h>

typedef struct history history;

/* How a put ended. UNKNOWN: nobody has said, and it will not be stored any more if it is not. */
typedef enum history_outcome {
    HISTORY_KEPT = 1,
    HISTORY_REJECTED = 2,
    HISTORY_UNKNOWN = 3
} history_outcome;

/* A history of keys 0 to count - 1. NULL without memory. */
history *history_make(uint32_t count);
void history_free(history *all);

/* A put begins: the version that it is to put, ascending from 1; 0 when there were 2^18. All
 * instants are of one clock; `call` is taken before the call, `back` after its return. */
uint32_t history_put_begin(history *all, uint32_t key, uint64_t call);

/* And ends. Returns NULL, or what is wrong: a get has given what was rejected. */
const char *history_put_end(history *all, uint32_t key, uint32_t version, uint64_t back,
                            history_outcome outcome);

/* A version ends by itself at an instant. */
void history_expire(history *all, uint32_t key, uint32_t version, uint64_t at);

/* A delete said that the key is not stored. */
void history_removed(history *all, uint32_t key, uint64_t call, uint64_t back);

/* The same of a call that spares puts which had not returned when it began. */
void history_cleared(history *all, uint32_t key, uint64_t call, uint64_t back);

/* A get has given a version. Returns NULL, or what is wrong. */
const char *history_get(history *all, uint32_t key, uint32_t version, uint64_t call, uint64_t back);

/* A call has found the key stored. Returns NULL, or what is wrong. */
const char *history_found(history *all, uint32_t key, uint64_t call, uint64_t back);

/* Prints the last events of a key on standard error. */
void history_print(history *all, uint32_t key);

#endif
