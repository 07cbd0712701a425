/* SPDX-License-Identifier: Apache-2.0 */
/*
 * entries.h - entries: handle to slot, prefix tree, entries that left, lists of recency.
 *
 * Pointers to entries are valid until the next entries_reserve, which runs only at the start of a
 * public call. Thread rule: the caller's lock.
 */
#ifndef POLICY_ENTRIES_H
#define POLICY_ENTRIES_H

#include "policy/buckets.h"
#include "policy/remembered.h"

/* The states of a handle's slot. A slot is free, then held; an entry that leaves is remembered
 * as a ghost, if the policy remembers any, until its slot is free again or it comes back. */
typedef enum policy_entry_state {
    POLICY_ENTRY_FREE = 0,
    POLICY_ENTRY_GHOST = 1,
    POLICY_ENTRY_HELD = 2
} policy_entry_state;

/*
 * POLICY_ENTRY_HELD: stored, or its first PUT is in flight. POLICY_ENTRY_GHOST: left; its counter
 * and its options are remembered: the ladder's, or option_count - 1 points.
 * An entry is in its policy's victim index exactly when entry_is_movable says so.
 */
typedef struct entry {
    /* The fields that finding, counting and appraising an entry touch lie together. */
    /* The caller's name of the entry; 0 in a free slot alone. */
    uint64_t handle;
    /* Time of the last counted use; every count below is as of this time. */
    uint64_t last_access_ns;
    union {
        uint16_t uses[HALF_LIVES]; /* each halved once a half life, as of the last access */
        float count[3];            /* a plain counter, and what baselines keep */
    };
    float density[TIERS]; /* log2 of the least cost per byte freed; DENSITY_NONE without step */
    uint32_t parent;      /* tree links join held entries only */
    uint32_t options;     /* first of option_count - 1 options */
    /* Facts that the caller gave when the entry was admitted. */
    float sensitivity; /* factor on losses */
    float share;       /* of the tokens of the requests that use it */
    uint32_t excluded; /* bit i: a loss or load limit rules option i out */
    uint8_t tenant;
    uint8_t current;      /* option; KVT_OPTION_NONE until the first PUT commits */
    uint8_t state : 2;    /* policy_entry_state */
    uint8_t shares : 1;   /* its options belong to a ladder */
    uint8_t rate_set : 1; /* a caller has set its rate: it has a plain counter */
    uint8_t watched : 1;  /* its terms are in the model's sums */
    uint8_t missed : 1; /* an access has counted a use that found no bytes: an admission is of it */
    uint8_t rank : 2;   /* which of its parent's `below` counts it */
    uint8_t option_count;
    /* Then its place. */
    uint64_t recency;        /* number of its last use, counted over the engine */
    bucket_link link[TIERS]; /* place in each tier's buckets or heap; [0] also in a recency list
                                 or among the ghosts, when the policy keeps no buckets for it */
    float recompute_seconds; /* of option NONE */
    uint8_t next[TIERS];     /* the step behind each density, and its kind in the highest bit */
    uint8_t listed : 4;      /* number of the recency list that holds it, 0 outside */
    uint8_t turn : 3;        /* uses that its path has seen, TURN_MOST at most */
    uint8_t idle : 1;        /* its life has ended: a step has made it worse since its last use */
    uint32_t hint;           /* number of its latest open hint, from 1 on; 0 = none */
    union {
        /* A held entry has bytes and a place in the tree. One that left has neither, so its
         * points lie in the same memory: entries_leave and entries_hold change one to the other. */
        struct {                   /* held */
            uint64_t bytes[TIERS]; /* really stored in the present option */
            uint32_t move;         /* slot of the move in flight, NIL when there is none */
            uint32_t pins;
            /* Held children by the highest tier that they are in or go to; inside a tentative plan
             * less those that it evicts. New ones without a place count as of the last tier. */
            uint32_t below[TIERS];
            uint32_t first_child;
            uint32_t older_sibling;
            uint32_t newer_sibling;
        };
        remembered_point points[REMEMBERED_POINTS]; /* left, without a ladder */
    };
} entry;
_Static_assert(sizeof(entry) == 176, "with its part of the tables an entry stays below 192 bytes");

#define TURN_MOST    7u
#define SWEPT_SLOTS  8u /* entries whose time is counted together */
#define DENSITY_NONE (1e30f)
#define NEXT_PAID    0x80u

typedef bucket_list recency_list;

/* All tables are asked for at open; entries_close may follow an entries_open that has failed. */
bool entries_open(kvt_policy *policy);
void entries_close(kvt_policy *policy);
/* Everything below but add_group cannot fail once reserve has made room, so a public call reserves
 * before it changes anything. */
bool entries_reserve(kvt_policy *policy); /* room for one entry more */
/* Look-up and creation by handle. entries_add gives the handle a slot in state GHOST, outside the
 * list of ghosts; the caller has looked the handle up and reserved room. */
uint32_t entries_find(const kvt_policy *policy, uint64_t handle); /* NIL when unknown */
uint32_t entries_add(kvt_policy *policy, uint64_t handle);        /* a ghost outside the FIFO */
/* The life of a slot: a ghost becomes held, a held one leaves and is remembered or not, a ghost is
 * forgotten or becomes the last to be forgotten. hold takes the options from the caller's
 * description and links the entry under its parent. leave needs an entry without a move in flight
 * and gives its options back. */
void entries_hold(kvt_policy *policy, uint32_t index, const kvt_policy_entry *given);
void entries_leave(kvt_policy *policy, uint32_t index, bool remember);
void entries_drop_ghost(kvt_policy *policy, uint32_t index);
void entries_refresh_ghost(kvt_policy *policy, uint32_t index);
/* Counts an entry where it is, or goes to, among its parent's children: after every change of that,
 * the index of the parent follows. */
void entries_rank(kvt_policy *policy, uint32_t index);
/* Counts an entry among its parent's children no more (by -1), or again (by 1). */
void entries_count_child(kvt_policy *policy, uint32_t index, int by);
/* Counts an entry in (by 1) or out (by -1) of the numbers by tier: around every change of its
 * option. */
void engine_tally(kvt_policy *policy, const entry *e, int by);
/* Lists of recency use link[0] of their entries; an entry is in one of them at most. The state and
 * `listed` of an entry say which. */
void list_add_newest(kvt_policy *policy, recency_list *list, uint32_t index);
void list_remove(kvt_policy *policy, recency_list *list, uint32_t index);

#endif
