/* SPDX-License-Identifier: Apache-2.0 */
/*
 * option_runs.h - the pool of options: entries with equal options share a run of them.
 *
 * Pointers are valid until the next options_reserve. Thread rule: the caller's lock.
 */
#ifndef POLICY_OPTION_RUNS_H
#define POLICY_OPTION_RUNS_H

#include "policy/units.h"

#include <stdbool.h>

struct entry;

/* One stored option; NONE has the entry's recompute_seconds alone. made_from and kept_from have a
 * bit for each option of the same list. Bit i of made_from: this option can be made of option i
 * without another loss. Bit i of kept_from, a part of it: bytes of option i stay in place then.
 * bytes counts against the capacities, read_bytes is what a load reads. The seconds and losses are
 * of one use; encode_seconds are paid once. loss_upper is what tenants' limits are held against. */
typedef struct stored_option {
    kvt_variant variant;
    uint64_t bytes[TIERS];
    uint64_t read_bytes[TIERS];
    double load_seconds;
    double decode_seconds;
    double encode_seconds;
    double loss;
    double loss_upper;
    uint32_t made_from;
    uint32_t kept_from;
    /* The fields from here on are derived, or the pool's: equal options may differ in them. */
    double base_cost; /* seconds of one use, without loss */
    bool fits;        /* each tier's whole capacity */
    uint8_t length;   /* of the run that begins here */
    uint32_t users;   /* of that run: entries */
} stored_option;
_Static_assert(sizeof(stored_option) == 120, "options are stored by the thousand");
#define OPTION_FACTS_BYTES offsetof(stored_option, base_cost)

/* A ladder: options that many entries share. It lives as long as the engine. options is the index
 * of the first stored option, NIL without any; option_count counts NONE, not in the pool. */
typedef struct ladder {
    uint32_t options;
    uint32_t option_count;
} ladder;

bool options_open(kvt_policy *policy);
void options_close(kvt_policy *policy);
/* Room for a run more; the one call besides open that can fail. */
bool options_reserve(kvt_policy *policy, uint32_t count);
/* An entry has the options of this run, which was taken and filled. Returns the run that the entry
 * uses from now on: this one, or an older one with the same options. */
uint32_t options_join(kvt_policy *policy, uint32_t first, uint32_t count);
/* An entry has them no longer. */
void options_leave(kvt_policy *policy, uint32_t first, uint32_t count);
/* Takes an entry's options out of sharing, to be changed and joined again: the run itself, or a
 * copy when it has more users, for which room was made. */
uint32_t options_part(kvt_policy *policy, uint32_t first, uint32_t count);
/* Copies options as the public calls give them, of entries and of ladders. */
void options_copy(stored_option *to, const kvt_option *options, uint32_t count);
/* Takes a run of that many options out of the pool, which options_reserve has made room for. The
 * run is the taker's until it is given back; a ladder keeps its own for good. */
uint32_t options_take(kvt_policy *policy, uint32_t count);
/* Brings options up to date with weights and capacities. */
void options_refresh(kvt_policy *policy, uint32_t first, uint32_t count);
/* The bytes in a tier of the largest of these options but one; 0 when all are equally large. */
uint64_t options_second(const kvt_policy *policy, uint32_t first, uint32_t count, int tier);
/* Weights or capacities have changed: refreshes all options and calls index on every held entry. */
void entries_index_all(kvt_policy *policy);
/* Adds a group of victims; false without memory. */
bool entries_add_group(kvt_policy *policy);

/* Works out which options of an entry its tenant's limits rule out: whenever either changes. */
void options_exclude(kvt_policy *policy, struct entry *e);

#endif
