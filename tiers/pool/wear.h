/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wear.h - the bytes written to a device in all its lives, and the rest of its daily budget.
 *
 * The budget is a bucket that holds one day's bytes and refills evenly. Writes are counted when
 * they have happened, so writes in flight when the bucket ran dry may overdraw it; a debt is
 * paid back first. Time is CLOCK_REALTIME, so that days go on while the process does not run; a
 * clock that was set back earns nothing.
 *
 * Thread rule: pure functions over the caller's memory.
 */
#ifndef TIERS_WEAR_H
#define TIERS_WEAR_H

#include <stdbool.h>
#include <stdint.h>

typedef struct tiers_wear {
    uint64_t written_bytes;        /* ever */
    uint64_t budget_bytes_per_day; /* 0 = none */
    double left_bytes;             /* of the bucket; below 0 = overdrawn */
    bool shadow;           /* the budget closes nothing: what it would have refused counts, */
    uint64_t beyond_bytes; /* here, since the open */
    uint64_t at_ns;        /* when that was; 0 = never: the bucket is full */
} tiers_wear;

/* Lets time pass to now_ns and counts `written` more bytes. */
static inline void tiers_wear_advance(tiers_wear *wear, uint64_t now_ns, uint64_t written)
{
    double budget = (double)wear->budget_bytes_per_day;
    if (wear->at_ns == 0) wear->left_bytes = budget;
    if (wear->at_ns != 0 && now_ns > wear->at_ns)
        wear->left_bytes += budget * ((double)(now_ns - wear->at_ns) / 86400e9);
    if (wear->left_bytes > budget) wear->left_bytes = budget;
    if (wear->shadow && wear->left_bytes < 0) wear->left_bytes = 0; /* debt of stricter days */
    wear->left_bytes -= (double)written;
    if (wear->shadow && budget > 0 && wear->left_bytes < 0) {
        wear->beyond_bytes += (uint64_t)-wear->left_bytes;
        wear->left_bytes = 0;
    }
    wear->written_bytes += written;
    wear->at_ns = now_ns;
}

/* Whether the day's bytes are used up. A device without a budget never is. */
static inline bool tiers_wear_is_spent(const tiers_wear *wear)
{
    return wear->budget_bytes_per_day != 0 && wear->left_bytes <= 0 && !wear->shadow;
}

#endif
