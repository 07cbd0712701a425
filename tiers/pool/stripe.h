/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stripe.h - how an object's units are shared out among members, and in which order.
 *
 * Shares follow Unified KV Pooling, section IV-A, algorithm 1: p_i = b_i / sum b; of n units
 * floor(p_i n) go to member i; the remainder goes one unit each to the members with the largest
 * fractions (docs/decisions/0002-stripe-remainder.md says why not all to the fastest), to which
 * is added what earlier objects left them short of. So objects of few units, too, give each member
 * its proportion in the long run. A member without room passes its share to the others.
 *
 * The deal order is the quota method of Balinski and Young (1975): the next unit goes to the member
 * with the smallest (dealt + 1) / units among those that stay within their rounded-up quota; ties
 * go to the lower member. It follows from the shares alone, and after every prefix of t units each
 * member has its proportion units * t / total to within less than one unit, so a load that stops
 * after some layers kept all members busy.
 *
 * Objects that are read together, layer by layer, would all ask the same members for the same
 * layer, if their deals began alike. So each begins at a step of its own, its turn, and goes round;
 * any t units in a row give each member its proportion to within less than two.
 *
 * Thread rule: pure functions over the caller's memory.
 */
#ifndef TIERS_STRIPE_H
#define TIERS_STRIPE_H

#include "pool.h"

/* Bounds the cost of one deal, also for locations read from a damaged catalog. */
#define TIERS_UNITS_MAX (1u << 20)

/* The order repeats itself after few units, so that small turns spread as well as large ones, and
 * finding the first unit stays cheap. */
#define TIERS_TURN_MAX 64u

/* A member that is slow for its one unit more gets none, however much it is owed: an object takes
 * at most so many times as long as with the largest fractions alone. */
#define TIERS_STRIPE_SLOWER 2.0

typedef struct tiers_stripe_member {
    double weight; /* bytes per second; 0 = takes no part */
    uint64_t room_units;
    double owed; /* units that earlier objects left it short of; below 0: gave it too much */
} tiers_stripe_member;

/* Shares `units` (1..TIERS_UNITS_MAX) out. units_out has count entries, zero for members without a
 * share; owed_out, unless NULL, what the members are owed after this object, in the sum as much as
 * before. KVT_OK; KVT_E_SPACE (the members' rooms do not hold it). */
KVT_NODISCARD kvt_status tiers_stripe_share(const tiers_stripe_member *members, uint32_t count,
                                            uint32_t units, uint32_t *units_out, double *owed_out);

/* How many times as fast shares made now, with nothing owed, would be read as these are; 1 where
 * these are as remainders may fall, and where there is no room. */
double tiers_stripe_gain(const tiers_stripe_member *members, uint32_t count,
                         const tiers_share *shares, uint32_t share_count);

/* After `step` units dealt[i] of them are member i's. */
typedef struct tiers_dealer {
    const tiers_share *shares; /* the caller's; stays while dealing */
    uint32_t share_count;
    uint32_t total;
    uint32_t step; /* units dealt so far, in this round */
    uint32_t dealt[TIERS_MEMBERS_MAX];
} tiers_dealer;

/* Starts at a step of the deal, less than the number of units. The shares are sound: none is 0 and
 * their sum is at most TIERS_UNITS_MAX. */
void tiers_dealer_init(tiers_dealer *dealer, const tiers_share *shares, uint32_t share_count,
                       uint32_t turn);

/* The index into shares of the next unit's member. After the last step the first one comes. */
uint32_t tiers_dealer_next(tiers_dealer *dealer);

/* Bytes that objects may be unable to use at the ends of several members: the last unit of each may
 * be short. */
uint64_t tiers_stripe_ends(uint32_t members, uint64_t unit_bytes);

/* The index into shares of the object's last unit, which may be short. */
uint32_t tiers_stripe_last(const tiers_share *shares, uint32_t share_count, uint32_t turn);

/* The index into shares of the unit of a location that has another size than the others: the last
 * one, or with odd_first the first one. */
uint32_t tiers_stripe_odd(const tiers_location *location);

/* Bytes that share `index` holds, when `odd` is the index of the location's odd unit. */
uint64_t tiers_stripe_share_bytes(const tiers_location *location, uint32_t index, uint32_t odd);

/* Bytes of the first unit of a location that has several, and of an object that has one. */
static inline uint64_t tiers_stripe_first_bytes(const tiers_location *location)
{
    return location->odd_first ? location->unit_bytes + location->bytes % location->unit_bytes
                               : location->unit_bytes;
}

/*
 * A walk over the part of a transfer that lies on one member, piece by piece in object order, made
 * without memory of its own. Neighbouring units are one piece where both the object and the device
 * continue.
 */
typedef struct tiers_walk {
    const tiers_location *location;
    uint32_t share;
    uint32_t extent; /* index of the extent that holds the next byte */
    uint64_t extent_used;
    uint64_t offset; /* first byte of the object that is wanted */
    uint64_t end;    /* first byte no longer wanted */
    uint64_t next;   /* start of the next unit to be dealt */
    uint64_t run_offset;
    uint64_t run_bytes; /* dealt to this member and not handed out yet */
    bool run_open;      /* the unit dealt last is the end of the run */
    tiers_dealer dealer;
} tiers_walk;

/* One request: bytes from device_offset on the member are those of the object from object_offset
 * on. */
typedef struct tiers_piece {
    uint64_t object_offset;
    uint64_t device_offset;
    uint32_t bytes;
} tiers_piece;

/* offset is a multiple of the grain. */
void tiers_walk_init(tiers_walk *walk, const tiers_location *location, uint32_t share,
                     uint64_t offset, uint64_t bytes);

/* Whether another piece follows. */
bool tiers_walk_has(tiers_walk *walk, uint32_t bytes_max);

/* The next piece of at most bytes_max, a multiple of the grain; false at the end. */
bool tiers_walk_next(tiers_walk *walk, uint32_t bytes_max, tiers_piece *piece_out);

#endif
