/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scrub.h - records on SSD are read and verified before a request needs them (scrub.c;
 * docs/STORE.md, Scrub).
 */
#ifndef STORE_SCRUB_H
#define STORE_SCRUB_H

#include "tiers/pool/pool.h"

#include <kvterrace/kvterrace.h>

#define SCRUB_LAPS 3u /* in a period */

/* Under store->lock. */
typedef struct store_scrub {
    uint64_t lap_ns;       /* fixed after open; 0 = records are verified by their gets alone */
    double share;          /* fixed after open: of each device's read bandwidth */
    uint32_t faults_most;  /* fixed after open: a device that has so many is drained; 0 = none */
    uint64_t earned_ns;    /* up to when tokens were earned */
    uint64_t lap_began_ns; /* store_now_ns */
    size_t bucket;         /* where the lap goes on; beyond the table: it has ended */
    uint8_t lap;           /* 1 to 3, in turn */
    double tokens[TIERS_MEMBERS_MAX]; /* of SSD's members: bytes that may be read now; below 0: they
                                         have been */
    kvt_record_counts read;
    uint64_t damaged;                   /* of the records read */
    uint64_t faults[TIERS_MEMBERS_MAX]; /* of SSD's members: damage that lay on one alone */
    uint64_t drains;                    /* a mask of members that scrub has begun to drain */
} store_scrub;

/* Reads and verifies some records within the budget. In the background round; no lock held. */
void scrub_round(kvt_store *store);

#endif
