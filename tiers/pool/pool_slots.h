/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool_slots.h - places for objects of one size that exist before they are needed (Tutti 3.1).
 *
 * A slot is a location with its extents, one a share, each at a multiple of the member's alignment.
 * The member's space holds the extents of free slots, too, and the pool counts them as free room:
 *
 *                     take (O(1))                   yield: extents are short of room
 *     laid ----> FREE ------------> TAKEN     FREE ----------------------------------> the space
 *                  ^                  |         the plan of its class is another one,
 *                  +------ give ------+         or a member of it takes no units
 *
 * Slots on one member alone (objects of one unit, and placement by entry) have a list for each
 * member; the others, which have shares on several, are on one list.
 *
 * Nothing durable knows a slot: the catalog has locations. A location that is adopted becomes a
 * taken slot where it is as its class would lay it out now; any other is extents.
 *
 * Invariants: a free slot is not pinned, has the bytes of its class, one extent a share, and its
 * ranges are held; slot_bytes of a member is the sum of the ranges of free slots on it; an object
 * leaves at most a twentieth of its slot's ranges unused.
 *
 * Thread rule: under the pool's mutex, all of it.
 */
#ifndef TIERS_POOL_SLOTS_H
#define TIERS_POOL_SLOTS_H

#include "pool_internal.h"

#define TIERS_SLOTS_MAX (1u << 20) /* free at a time, in a pool */

/* The slots of the options, none of which are laid out yet. KVT_OK (NULL without classes);
 * KVT_E_MEMORY. */
KVT_NODISCARD kvt_status pool_slots_open(const tiers_pool *pool, const tiers_pool_options *options,
                                         pool_slots **slots_out);

/* Frees the free slots and the classes; extents stay held. NULL allowed. */
void pool_slots_close(pool_slots *slots);

/* The fault of the options' classes, or NULL. */
const char *pool_slots_fault(const tiers_pool_options *options);

/* Plans the classes anew, for the weights and members of now. Free slots of another plan go. */
void pool_slots_replan(tiers_pool *pool);

/* Frees the free slots with an extent on a member, which is about to have another device. */
void pool_slots_leave(tiers_pool *pool, uint32_t member);

/* Lays out at most so many. True when there is more to do. */
bool pool_slots_lay(tiers_pool *pool, uint32_t most);

/* A free slot of the smallest class that fits, or NULL. */
tiers_location *pool_slot_take(tiers_pool *pool, uint64_t bytes, uint32_t unit_bytes,
                               bool odd_first);

/* The end of an object in a slot: the location is the slot's again. */
void pool_slot_give(tiers_pool *pool, tiers_location *location);

/* Makes an adopted location, whose extents are held, a taken slot where it is one. */
void pool_slot_adopt(tiers_pool *pool, tiers_location *location);

/* Gives free slots of about so many bytes to the spaces. False when there is none. */
bool pool_slots_yield(tiers_pool *pool, uint64_t bytes);

/* The same of a class that has more slots free than taken, for extents whose due on members of a
 * mask others would get. There are slots. */
bool pool_slots_spare(tiers_pool *pool, uint64_t bytes, uint64_t members);

/* What objects leave unused of their slots. */
uint64_t pool_slots_padding(const tiers_pool *pool);

#endif
