/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hints.h - hints that are open, and how far hints of a kind are trusted.
 *
 * A hint is what a caller says of an entry's next use. It bends the entry's predicted rate until it
 * is judged: it came true or failed. The table of open hints is asked for with the first hint and
 * bounded; when it is full, the hint that is judged next is dropped.
 */
#ifndef KVT_POLICY_HINTS_H
#define KVT_POLICY_HINTS_H

#include "kvterrace/policy.h"
#include "policy/heap.h"

#define HINT_NONE UINT32_MAX

/* The record of hints of one kind from one tenant: how many of those judged lately came true. Hints
 * of one moment, as those of a session's entries, count as one together: each by one over the usual
 * number of them. */
typedef struct hint_trust {
    double judged; /* both fade, so that about the last 256 count */
    double came_true;
    double expected;   /* of them, by the entries' counters alone */
    double usual;      /* number given in one moment, smoothed; 0 before the first has ended */
    uint64_t given_ns; /* the moment of the last one given, */
    uint32_t given;    /* and how many were given then */
} hint_trust;

/* One open hint. An entry has one of each kind at most, chained from the latest on. */
typedef struct open_hint {
    uint64_t given_ns;
    uint64_t at_ns;    /* the instant that it names */
    uint64_t until_ns; /* it bends the rate until then */
    uint64_t due_ns;   /* it is judged then at the latest; at most until_ns */
    uint32_t entry;
    uint32_t next;  /* of the same entry, given before; or of the free ones; HINT_NONE ends both */
    uint32_t place; /* in the heap by due_ns */
    uint8_t kind;   /* kvt_hint_kind */
    uint8_t tenant; /* that gave it */
    uint16_t expected; /* the chance that it comes true by the entry's counters, of 65535 */
} open_hint;

typedef struct hint_table {
    open_hint *hints; /* capacity of them, of which `used` ever were */
    uint32_t capacity;
    uint32_t used;
    uint32_t free;
    heap due; /* by due_ns */
    kvt_hint_stats counts;
} hint_table;

struct reuse_now;

void hints_open(kvt_policy *policy);
void hints_close(kvt_policy *policy);
/* Says whether a hint of a kind names a time by which a use comes. */
static inline bool hints_expect_use(uint8_t kind)
{
    return kind == KVT_HINT_RETAIN || kind == KVT_HINT_NEXT_USE;
}

/* Makes room for one hint more; false without memory. give takes one of a held entry. */
bool hints_reserve(kvt_policy *policy);
void hints_give(kvt_policy *policy, uint32_t index, uint8_t kind, double seconds, uint8_t giver);
/* Judges the hints that are due, some in each call. Sorts their entries anew. */
void hints_pass(kvt_policy *policy);
/* Judges the hints of an entry that is used now, and ends them. */
void hints_use(kvt_policy *policy, uint32_t index);
/* Drops the hints of an entry that is forgotten. */
void hints_forget(kvt_policy *policy, uint32_t index);
/* Bends a rate by the open hint `number`, the entry's latest. */
void hints_bend(const kvt_policy *policy, uint32_t number, struct reuse_now *now);

#endif
