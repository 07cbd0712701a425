/* SPDX-License-Identifier: Apache-2.0 */
/*
 * buckets.h - entries in order of a key, 64 buckets to a unit of the key, every call O(1).
 *
 * The order of entries whose keys differ by less than 1/64 of a unit is that of their arrival. The
 * utility policy's keys are moments, in units of a minute: when the entry's loss per byte falls to
 * the price of its tier. A ring of 8192 buckets covers 128 units around the present and moves up
 * with time. Buckets that fall below it go to one list, the sink, one after the other: the sink is
 * still in order, and coarser only for entries that come there later. Keys above the ring count as
 * its top. The order knows neither prices nor time, and asks for no memory.
 *
 *     sink | low ... first bucket in use ... | low + 8191
 *            ^-- bitmap of buckets in use, and a bitmap of its words
 *
 * Links are kept with the entries, at links.first + entry * links.stride. One owner, no locks.
 */
#ifndef KVT_POLICY_BUCKETS_H
#define KVT_POLICY_BUCKETS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BUCKETS_RING     8192u
#define BUCKETS_PER_UNIT 64
#define BUCKETS_ABSENT   INT32_MIN

/* An entry's place: neighbours in its list and the number of its bucket as it was when it came.
 * The heap keeps its place in `newer`. */
typedef struct bucket_link {
    uint32_t newer;
    uint32_t older;
    int32_t number; /* BUCKETS_ABSENT outside */
} bucket_link;

/* The places of the links of all entries: the first one, and the bytes from one to the next. */
typedef struct bucket_links {
    unsigned char *first;
    size_t stride;
} bucket_links;

/* Both ends of a list; both are UINT32_MAX when it is empty. */
typedef struct bucket_list {
    uint32_t newest;
    uint32_t oldest;
} bucket_list;

/* An order of entries. count is the number of them, the sink included. Bit i of words[] says that
 * ring[i] holds entries, bit i of groups[] that word i is not 0. */
typedef struct buckets {
    /* low never falls, because time does not. */
    int32_t low; /* number of the ring's lowest bucket */
    uint32_t count;
    bucket_list sink;
    uint64_t groups[2];
    uint64_t words[BUCKETS_RING / 64];
    bucket_list ring[BUCKETS_RING];
} buckets;

/* Makes an order without entries. It has to be called before any other function. */
void buckets_init(buckets *b);

/* Moves the ring up so that it is centred on `now`, a key. */
void buckets_advance(buckets *b, bucket_links links, double now);

/* Puts an entry into the bucket of its key, at the newest end; one that is in it already stays. */
void buckets_set(buckets *b, bucket_links links, uint32_t entry, double key);

/* Removes the entry if it is there. */
void buckets_remove(buckets *b, bucket_links links, uint32_t entry);

/* The first entry in order, and the one after an entry; UINT32_MAX at the end. */
uint32_t buckets_first(const buckets *b);
uint32_t buckets_next(const buckets *b, bucket_links links, uint32_t entry);

/* The least key that an entry of this one's bucket can have; hugely negative in the sink. Two
 * orders of the same tier are merged by it. */
double buckets_floor(const buckets *b, bucket_links links, uint32_t entry);

#endif
