/* SPDX-License-Identifier: Apache-2.0 */
/*
 * elsewhere.h - the engine's notes on copies that somebody else keeps; see elsewhere.c. The
 * caller's lock.
 */
#ifndef KVT_POLICY_ELSEWHERE_H
#define KVT_POLICY_ELSEWHERE_H

#include "kvterrace/policy.h"
#include "policy/survival.h"

struct entry;

/* A copy of an entry that somebody else keeps; all 0 = none that is known of. */
typedef struct copy_note {
    float load_seconds;
    float known_s; /* when it was last known to be there, in seconds since the engine's base */
} copy_note;

/* By index of the entry, as many as the pool holds; NULL and 0 until a copy is known of. */
typedef struct copy_table {
    copy_note *notes;
    uint32_t capacity;
    survival life;
} copy_table;

/* reserve makes the notes, and grow follows the pool of entries; false without memory. */
bool elsewhere_reserve(kvt_policy *policy);
bool elsewhere_grow(kvt_policy *policy, uint32_t capacity);
void elsewhere_close(kvt_policy *policy);

/* These need the notes. cost is that of NONE, with the copy as an alternative to recomputing; note
 * takes down whether a copy is there now, 0 seconds = it is not, and learns from it. */
double elsewhere_cost(const kvt_policy *policy, const struct entry *e);
void elsewhere_note(kvt_policy *policy, uint32_t index, double load_seconds);

#endif
