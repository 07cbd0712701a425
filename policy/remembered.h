/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remembered.h - what is kept of the options of an entry that left (remembered.c).
 */
#ifndef POLICY_REMEMBERED_H
#define POLICY_REMEMBERED_H

#include "policy/option_runs.h"

/*
 * The remains of the options of an entry that left, when no ladder has them: at most so many
 * points, none of which promises less than an option did. See remembered.c.
 */
#define REMEMBERED_POINTS 6u
/* The tier stands in the two lowest bits of bytes, which are cleared for it. */
typedef struct remembered_point {
    uint16_t seconds; /* load and decode; the upper half of a float, cut off */
    uint16_t loss;    /* the same */
    uint32_t bytes;   /* a float, cut off; the two lowest bits are the tier */
} remembered_point;

/* keep fills the points of an entry that leaves, from options that are still its own; option turns
 * one of them back into a stored option whose bytes all lie in one tier. */
void remembered_keep(const kvt_policy *policy,
                     struct entry *e); /* before the options are given back */
void remembered_option(const kvt_policy *policy, const struct entry *e, uint32_t point,
                       stored_option *out);

#endif
