/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool_slots.c - classes of slots: planned, laid out, taken, given back, given up (pool_slots.h).
 *
 * Laying out and giving up call the members' spaces; taking and giving back move a location between
 * a list and its user.
 *
 * Thread rule: under the pool's mutex; tiers_pool_slot_class from any thread.
 */
#include "pool_slots.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "location.h"

enum {
    SLOTS_LOSS = 20,       /* an object leaves at most a twentieth of its slot unused */
    SLOTS_GAP = 40,        /* and alignment has at most half of that */
    SLOTS_KEPT = 16,       /* of the room, which is for extents */
    SLOTS_FEW = 32,        /* a class with less than so much of its slots free wants more */
    SLOTS_STALE_TRIES = 4, /* free slots that a take looks at */
    SLOTS_LISTS = TIERS_MEMBERS_MAX
};
#define SLOTS_DRIFT 1.1 /* a plan is made anew when the new one is so much faster to read */

typedef struct slot_class {
    tiers_slot_size size;
    uint64_t held_bytes; /* of a slot of the plan, alignment included; 0 = the class has no plan */
    uint32_t share_count;
    tiers_share shares[TIERS_MEMBERS_MAX]; /* of the plan; of a whole slot one, of no member */
    bool whole;                            /* slots lie on one member each */
    double owed[TIERS_MEMBERS_MAX];        /* units that its slots left members short of */
    uint32_t free;
    uint32_t taken;
    uint64_t taken_ever;
    uint64_t missed;
    uint64_t missed_seen; /* of them, when slots were laid out last */
    tiers_location *lists[SLOTS_LISTS];
} slot_class;

struct pool_slots {
    uint32_t count;
    uint32_t free; /* of all classes */
    uint32_t laid; /* ever, modulo 2^32: the turn of the next one */
    uint64_t padding_bytes;
    slot_class classes[];
};

/* ---- life ---- */

const char *pool_slots_fault(const tiers_pool_options *options)
{
    if (options->slot_count > TIERS_SLOT_CLASSES_MAX) return "more than 32 classes of slots";
    for (uint32_t i = 0; i < options->slot_count; i++) {
        const tiers_slot_size *size = &options->slots[i];
        if (size->bytes == 0 || size->bytes % TIERS_GRAIN_BYTES != 0)
            return "slots of a size that no entry has: not a multiple of 4096 bytes";
        if (size->unit_bytes % TIERS_GRAIN_BYTES != 0)
            return "slots with a unit that is not a multiple of 4096 bytes";
        if (i > 0 && size->bytes <= options->slots[i - 1].bytes)
            return "two classes of slots of one size";
    }
    return NULL;
}

kvt_status pool_slots_open(const tiers_pool *pool, const tiers_pool_options *options,
                           pool_slots **slots_out)
{
    *slots_out = NULL;
    if (options->slot_count == 0) return KVT_OK;
    const size_t bytes = options->slot_count * sizeof(slot_class);
    pool_slots *slots = calloc(1, sizeof *slots + bytes);
    if (slots == NULL) return KVT_E_MEMORY;
    slots->count = options->slot_count;
    for (uint32_t i = 0; i < slots->count; i++) {
        tiers_slot_size *size = &slots->classes[i].size;
        *size = options->slots[i];
        const bool tensors = pool->striping == TIERS_STRIPE_TENSOR && size->unit_bytes != 0 &&
                             size->bytes > size->unit_bytes;
        if (!tensors) *size = (tiers_slot_size){.bytes = size->bytes};
        if (!tensors || size->bytes % size->unit_bytes == 0) size->odd_first = false;
        if (size->unit_bytes == 0) size->unit_bytes = pool->unit_bytes;
    }
    *slots_out = slots;
    return KVT_OK;
}

void pool_slots_close(pool_slots *slots)
{
    if (slots == NULL) return;
    for (uint32_t i = 0; i < slots->count; i++) {
        for (uint32_t list = 0; list < SLOTS_LISTS; list++) {
            tiers_location *next = slots->classes[i].lists[list];
            while (next != NULL) {
                tiers_location *location = next;
                next = location->next;
                location->shares = tiers_location_own_shares(location);
                tiers_location_free(location);
            }
        }
    }
    free(slots);
}

uint64_t pool_slots_padding(const tiers_pool *pool)
{
    return pool->slots == NULL ? 0 : pool->slots->padding_bytes;
}

/* ---- ranges ---- */

/* What an extent of a slot holds on its member: a range that begins at a multiple of align, with
 * front bytes before the extent and the rest behind it unused. */
typedef struct slot_hold {
    uint64_t align;
    uint64_t front;
    uint64_t bytes;
} slot_hold;

/* Places an extent so that its first whole unit begins where the drive likes it, and the next
 * extent may, too: by the largest halving of the member's alignment that costs little. An object of
 * whole tensors has its head before the first of them, which is then what is not aligned; only the
 * extent with the head is no multiple of a unit. */
static slot_hold slots_hold(const pool_member *member, uint64_t bytes, uint32_t unit_bytes,
                            bool odd_first)
{
    const uint64_t head = odd_first ? bytes % unit_bytes : 0;
    for (uint64_t align = member->align_bytes; align > TIERS_GRAIN_BYTES; align /= 2) {
        const uint64_t front = (align - head % align) & (align - 1);
        const uint64_t held = (front + bytes + align - 1) & ~(align - 1);
        if (held - bytes <= bytes / SLOTS_GAP)
            return (slot_hold){.align = align, .front = front, .bytes = held};
    }
    return (slot_hold){.align = TIERS_GRAIN_BYTES, .front = 0, .bytes = bytes};
}

/* The same of an extent of a location that has its slot's size. */
static slot_hold slots_hold_of(const tiers_pool *pool, const tiers_location *location,
                               uint32_t index)
{
    const tiers_extent *extent = &location->extents[index];
    return slots_hold(&pool->members[extent->member], extent->bytes, location->unit_bytes,
                      location->odd_first);
}

/* The range that it holds. */
static tiers_range slots_range(const tiers_pool *pool, const tiers_location *location,
                               uint32_t index)
{
    const slot_hold hold = slots_hold_of(pool, location, index);
    return (tiers_range){.offset = location->extents[index].offset - hold.front,
                         .bytes = hold.bytes};
}

/* Whose the ranges of a slot are. */
typedef enum slot_owner { SLOT_NOBODY, SLOT_FREE, SLOT_TAKEN } slot_owner;

/* Counts the ranges of a slot, whose location has its whole size, for another owner. Returns their
 * sum. */
static uint64_t slots_count(tiers_pool *pool, const tiers_location *location, slot_owner from,
                            slot_owner to)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < location->extent_count; i++) {
        pool_member *member = &pool->members[location->extents[i].member];
        const uint64_t held = slots_hold_of(pool, location, i).bytes;
        assert(from != SLOT_FREE || member->slot_bytes >= held);
        assert(from != SLOT_TAKEN || member->used_bytes >= held);
        if (from == SLOT_FREE) member->slot_bytes -= held;
        if (from == SLOT_TAKEN) member->used_bytes -= held;
        if (to == SLOT_FREE) member->slot_bytes += held;
        if (to == SLOT_TAKEN) member->used_bytes += held;
        sum += held;
    }
    return sum;
}

/* Frees a slot that nobody counts: its ranges go to the spaces. They are not trimmed, because they
 * are to be written again. */
static void slots_release(tiers_pool *pool, tiers_location *location)
{
    for (uint32_t i = 0; i < location->extent_count; i++)
        tiers_space_release(pool->members[location->extents[i].member].space,
                            slots_range(pool, location, i));
    location->slot = 0;
    tiers_location_free(location);
}

/* ---- lists ---- */

static uint32_t slots_list_of(const slot_class *class, const tiers_location *location)
{
    return class->whole ? location->extents[0].member : 0;
}

/* Puts a slot, whose ranges are counted as free, on its list. */
static void slots_push(tiers_pool *pool, slot_class *class, tiers_location *location)
{
    tiers_location **list = &class->lists[slots_list_of(class, location)];
    location->next = *list; /* in the place of the pointer to its shares */
    *list = location;
    class->free++;
    pool->slots->free++;
}

/* The first slot of a list, which is not empty, for an owner. *held_out: its ranges. */
static tiers_location *slots_pop(tiers_pool *pool, slot_class *class, uint32_t list,
                                 slot_owner owner, uint64_t *held_out)
{
    tiers_location *location = class->lists[list];
    class->lists[list] = location->next;
    location->shares = tiers_location_own_shares(location);
    assert(class->free > 0 && pool->slots->free > 0 && location->pins == 0);
    class->free--;
    pool->slots->free--;
    *held_out = slots_count(pool, location, SLOT_FREE, owner);
    return location;
}

/* Gives up all free slots of a class, or those with an extent on a member of a mask. */
static void slots_drop(tiers_pool *pool, slot_class *class, uint64_t members)
{
    uint64_t held;
    for (uint32_t list = 0; list < SLOTS_LISTS; list++) {
        tiers_location *kept = NULL;
        while (class->lists[list] != NULL) {
            tiers_location *location = slots_pop(pool, class, list, SLOT_NOBODY, &held);
            bool goes = false;
            for (uint32_t i = 0; i < location->extent_count; i++)
                goes = goes || (members >> location->extents[i].member & 1) != 0;
            if (goes) {
                slots_release(pool, location);
                continue;
            }
            location->next = kept;
            kept = location;
        }
        while (kept != NULL) {
            tiers_location *location = kept;
            kept = location->next;
            (void)slots_count(pool, location, SLOT_NOBODY, SLOT_FREE);
            slots_push(pool, class, location);
        }
    }
}

void pool_slots_leave(tiers_pool *pool, uint32_t member)
{
    if (pool->slots == NULL) return;
    for (uint32_t i = 0; i < pool->slots->count; i++)
        slots_drop(pool, &pool->slots->classes[i], UINT64_C(1) << member);
}

/* ---- plans ---- */

static uint32_t slots_units(const slot_class *class)
{
    const tiers_location size = {.bytes = class->size.bytes,
                                 .unit_bytes = class->size.unit_bytes,
                                 .odd_first = class->size.odd_first};
    const uint64_t units = tiers_location_unit_count(&size);
    return units > TIERS_UNITS_MAX ? 0 : (uint32_t)units;
}

/* The members as a deal sees them that may use all of their room. */
static void slots_members(const tiers_pool *pool, const double *owed, tiers_stripe_member *members)
{
    for (uint32_t i = 0; i < pool->member_count; i++) {
        const bool takes = pool_member_takes(&pool->members[i]);
        members[i] = (tiers_stripe_member){.weight = takes ? pool_deal_weight(pool, i) : 0,
                                           .room_units = TIERS_UNITS_MAX,
                                           .owed = owed[i]};
    }
}

/* The shares of a slot that is laid out now, room aside, and what members are owed after it. 0 =
 * none, as without members. */
static uint32_t slots_deal(const tiers_pool *pool, uint32_t units, const double *owed,
                           tiers_share *shares, double *owed_out)
{
    tiers_stripe_member members[TIERS_MEMBERS_MAX];
    uint32_t dealt[TIERS_MEMBERS_MAX], count = 0;
    slots_members(pool, owed, members);
    if (units == 0 || pool_deal(pool, members, units, dealt, owed_out) != KVT_OK) return 0;
    for (uint32_t i = 0; i < pool->member_count; i++)
        if (dealt[i] > 0) shares[count++] = (tiers_share){.member = i, .units = dealt[i]};
    return count;
}

/* Whether a layout on members that take units is read in about the time of one of now. */
static bool slots_are_fast(const tiers_pool *pool, const tiers_share *shares, uint32_t count)
{
    const double owed[TIERS_MEMBERS_MAX] = {0};
    tiers_stripe_member members[TIERS_MEMBERS_MAX];
    slots_members(pool, owed, members);
    for (uint32_t i = 0; i < count; i++)
        if (!pool_member_takes(&pool->members[shares[i].member])) return false;
    return tiers_stripe_gain(members, pool->member_count, shares, count) <= SLOTS_DRIFT;
}

/* Plans a class anew where it has no plan, a member of its plan takes no units any more, or a plan
 * of now would be read faster. Free slots of the old plan go. */
static void slots_plan(tiers_pool *pool, slot_class *class)
{
    tiers_share shares[TIERS_MEMBERS_MAX];
    double owed[TIERS_MEMBERS_MAX] = {0};
    const uint32_t units = slots_units(class);
    const bool whole = pool_is_whole(pool, units);
    uint32_t count = slots_deal(pool, units, owed, shares, owed);
    bool holds = class->share_count != 0 && class->whole == whole && count != 0;
    if (whole && count != 0) {
        shares[0] = (tiers_share){.member = 0, .units = units};
        count = 1;
    } else if (holds) {
        holds = slots_are_fast(pool, class->shares, class->share_count);
    }
    if (holds) return;
    slots_drop(pool, class, UINT64_MAX);
    class->whole = whole;
    class->share_count = count;
    memcpy(class->shares, shares, count * sizeof shares[0]);
    memset(class->owed, 0, sizeof class->owed);
}

void pool_slots_replan(tiers_pool *pool)
{
    if (pool->slots == NULL) return;
    for (uint32_t i = 0; i < pool->slots->count; i++) {
        slot_class *class = &pool->slots->classes[i];
        class->share_count = 0;
        slots_plan(pool, class);
    }
}

/* ---- laying out ---- */

/* The budget that free slots may hold beside what is used, less what is kept for extents. */
static uint64_t slots_room(const tiers_pool *pool)
{
    uint64_t capacity, used;
    pool_sum(pool, &capacity, &used);
    return used < capacity ? (capacity - used) / SLOTS_KEPT * (SLOTS_KEPT - 1) : 0;
}

/* Whether a member has room for one more slot's range, beside what is kept for extents. */
static bool slots_has_room(const pool_member *member, uint64_t held)
{
    const uint64_t room = member->capacity_bytes - member->used_bytes;
    return member->slot_bytes + held <= room - room / SLOTS_KEPT;
}

/* Lays one slot out. A whole one goes to a member. KVT_OK; KVT_E_SPACE (some member has no such
 * range free); KVT_E_MEMORY. */
static kvt_status slots_lay(tiers_pool *pool, uint32_t index, uint32_t member)
{
    slot_class *class = &pool->slots->classes[index];
    kvt_status status = KVT_OK;
    tiers_share shares[TIERS_MEMBERS_MAX] = {{.member = member, .units = slots_units(class)}};
    double owed[TIERS_MEMBERS_MAX] = {0};
    const uint32_t count =
        class->whole ? 1 : slots_deal(pool, slots_units(class), class->owed, shares, owed);
    if (count == 0) return KVT_E_SPACE;
    tiers_location *location =
        tiers_location_make(class->size.bytes, class->size.unit_bytes, shares, count);
    if (location == NULL) return KVT_E_MEMORY;
    if (location->share_count > 1)
        location->turn = (uint8_t)pool_turn(pool, pool->slots->laid, slots_units(class));
    location->odd_first = class->size.odd_first;
    const uint32_t odd = tiers_stripe_odd(location);
    for (uint32_t i = 0; i < location->share_count && status == KVT_OK; i++) {
        const uint32_t at = location->shares[i].member;
        const uint64_t bytes = tiers_stripe_share_bytes(location, i, odd);
        const slot_hold hold =
            slots_hold(&pool->members[at], bytes, class->size.unit_bytes, class->size.odd_first);
        tiers_range range;
        status = KVT_E_SPACE;
        if (slots_has_room(&pool->members[at], hold.bytes))
            status =
                tiers_space_acquire_at(pool->members[at].space, hold.bytes, hold.align, &range);
        if (status == KVT_OK)
            location->extents[location->extent_count++] =
                (tiers_extent){.member = at, .offset = range.offset + hold.front, .bytes = bytes};
    }
    if (status != KVT_OK) {
        slots_release(pool, location);
        return status;
    }
    assert(tiers_location_check(location) == KVT_OK);
    location->slot = (uint8_t)(index + 1);
    memcpy(class->owed, owed, sizeof owed);
    pool->slots->laid++;
    class->held_bytes = slots_count(pool, location, SLOT_NOBODY, SLOT_FREE);
    slots_push(pool, class, location);
    return KVT_OK;
}

/* The member for the next whole slot of a class: the one with the smallest part of its room laid
 * out for the class. member_count: none has room. */
static uint32_t slots_member(const tiers_pool *pool, const slot_class *class)
{
    uint32_t best = pool->member_count;
    double best_part = 0;
    for (uint32_t i = 0; class->whole && i < pool->member_count; i++) {
        const pool_member *member = &pool->members[i];
        if (!pool_member_takes(member)) continue;
        const uint64_t held =
            slots_hold(member, class->size.bytes, class->size.unit_bytes, class->size.odd_first)
                .bytes;
        if (!slots_has_room(member, held)) continue;
        const double part = (double)(member->slot_bytes + held) /
                            (double)(member->capacity_bytes - member->used_bytes);
        if (best != pool->member_count && part >= best_part) continue;
        best = i;
        best_part = part;
    }
    return best;
}

/* Slots of a class that its part of the room holds, on each member of its plan: classes have equal
 * parts in bytes. */
static uint32_t slots_wanted(const tiers_pool *pool, const slot_class *class)
{
    const uint32_t classes = pool->slots->count;
    uint64_t count = slots_room(pool) / classes / class->size.bytes;
    for (uint32_t i = 0; i < class->share_count && !class->whole; i++) {
        const pool_member *member = &pool->members[class->shares[i].member];
        const uint64_t room = member->capacity_bytes - member->used_bytes;
        const uint64_t bytes = (uint64_t) class->shares[i].units * class->size.unit_bytes;
        const uint64_t part = (room - room / SLOTS_KEPT) / classes / bytes;
        if (part < count) count = part;
    }
    return count < TIERS_SLOTS_MAX / classes ? (uint32_t)count : TIERS_SLOTS_MAX / classes;
}

/* Whether a list has free slots, and, where they lie whole on one member, on one of the members. */
static bool slots_lie_on(const slot_class *class, uint32_t list, uint64_t members)
{
    if (class->lists[list] == NULL) return false;
    return !class->whole || (members >> list & 1) != 0;
}

/* The class with the most bytes free beside another one, of those that have a slot on one of the
 * members; NULL = none has a slot to spare. */
static slot_class *slots_richest(tiers_pool *pool, const slot_class *other, uint64_t members)
{
    slot_class *best = NULL;
    for (uint32_t i = 0; i < pool->slots->count; i++) {
        slot_class *class = &pool->slots->classes[i];
        bool lies = false;
        for (uint32_t list = 0; list < SLOTS_LISTS && !lies; list++)
            lies = slots_lie_on(class, list, members);
        if (class == other || !lies) continue;
        if (best == NULL || class->free * class->size.bytes > best->free * best->size.bytes)
            best = class;
    }
    return best;
}

/* Gives up free slots of a class on the members until about so many bytes are free. Returns the
 * bytes. */
static uint64_t slots_give_up(tiers_pool *pool, slot_class *class, uint64_t bytes, uint64_t members)
{
    uint64_t freed = 0, held;
    for (uint32_t list = 0; list < SLOTS_LISTS; list++) {
        while (slots_lie_on(class, list, members) && freed < bytes) {
            freed += class->size.bytes;
            slots_release(pool, slots_pop(pool, class, list, SLOT_NOBODY, &held));
        }
    }
    return freed;
}

/* One class's turn: lays out what it lacks; one that ran out and finds no room gets that of a class
 * that has more than twice its bytes free. Returns the slots laid out. */
static uint32_t slots_fill(tiers_pool *pool, uint32_t index, uint32_t most)
{
    slot_class *class = &pool->slots->classes[index];
    const bool ran_out = class->missed != class->missed_seen;
    uint32_t laid = 0;
    slots_plan(pool, class);
    if (class->share_count == 0) return 0;
    const uint32_t wanted = slots_wanted(pool, class);
    bool gave = false;
    while (laid < most && (class->free < wanted || ran_out) &&
           class->free < TIERS_SLOTS_MAX / pool->slots->count) {
        const uint32_t member = class->whole ? slots_member(pool, class) : 0;
        kvt_status status = KVT_E_SPACE;
        if (!class->whole || member != pool->member_count) status = slots_lay(pool, index, member);
        if (status == KVT_OK) {
            laid++;
            continue;
        }
        slot_class *rich = slots_richest(pool, class, UINT64_MAX);
        if (gave || !ran_out || rich == NULL || status != KVT_E_SPACE) break;
        const uint64_t has = (uint64_t) class->free * class->size.bytes;
        if ((uint64_t)rich->free * rich->size.bytes / 2 <= has) break;
        gave = slots_give_up(pool, rich, (uint64_t)most * class->size.bytes, UINT64_MAX) != 0;
    }
    class->missed_seen = class->missed;
    return laid;
}

bool pool_slots_lay(tiers_pool *pool, uint32_t most)
{
    uint32_t laid = 0;
    for (uint32_t i = 0; i < pool->slots->count && laid < most; i++) {
        slot_class *class = &pool->slots->classes[i];
        const bool low = class->free <= (class->free + class->taken) / SLOTS_FEW ||
                         class->missed != class->missed_seen || class->taken_ever == 0;
        if (low) laid += slots_fill(pool, i, most - laid);
    }
    return laid == most;
}

/* ---- taking and giving ---- */

/* Whether an object fits a slot of a class: whole slots take any that leaves little unused, the
 * others one with as many units, so that the shares are the slot's. */
static bool slots_fits(const slot_class *class, uint64_t bytes, uint32_t unit_bytes, bool odd_first)
{
    const uint64_t held =
        class->held_bytes > class->size.bytes ? class->held_bytes : class->size.bytes;
    if (bytes > class->size.bytes || held - bytes > held / SLOTS_LOSS) return false;
    if (class->size.odd_first || odd_first || unit_bytes != class->size.unit_bytes)
        return bytes == class->size.bytes && unit_bytes == class->size.unit_bytes;
    return class->whole || bytes == class->size.bytes ||
           tiers_location_units(bytes, unit_bytes) == slots_units(class);
}

/* Whether a new object may lie in a free slot now. */
static bool slots_usable(tiers_pool *pool, const tiers_location *location)
{
    for (uint32_t i = 0; i < location->extent_count; i++)
        if (!pool_member_welcomes(&pool->members[location->extents[i].member])) return false;
    return true;
}

/* Sets the object's size: only the extent of the last unit is shorter than the slot's. */
static void slots_size(tiers_location *location, uint64_t bytes)
{
    if (location->bytes == bytes) return;
    const uint32_t odd = tiers_stripe_odd(location);
    location->bytes = bytes;
    if (location->share_count == 1)
        location->shares[0].units = (uint32_t)tiers_location_units(bytes, location->unit_bytes);
    location->extents[odd].bytes = tiers_stripe_share_bytes(location, odd, odd);
    assert(tiers_location_check(location) == KVT_OK);
}

/* The list to take from; SLOTS_LISTS: none. */
static uint32_t slots_choose(tiers_pool *pool, const slot_class *class, uint64_t bytes)
{
    uint64_t mask = 0;
    if (!class->whole) return class->lists[0] != NULL ? 0 : SLOTS_LISTS;
    for (uint32_t i = 0; i < pool->member_count; i++) {
        const bool may = class->lists[i] != NULL && pool_member_welcomes(&pool->members[i]);
        if (may) mask |= UINT64_C(1) << i;
    }
    const uint32_t member = pool_choose_whole(pool, mask, bytes);
    return member < pool->member_count ? member : SLOTS_LISTS;
}

/* A slot with a member that takes no units is given up and another one looked at, a few times; the
 * background does the others. */
static tiers_location *slots_take_of(tiers_pool *pool, slot_class *class, uint64_t bytes)
{
    for (uint32_t tries = 0; tries < SLOTS_STALE_TRIES; tries++) {
        const uint32_t list = slots_choose(pool, class, bytes);
        if (list == SLOTS_LISTS) return NULL;
        const bool usable = slots_usable(pool, class->lists[list]);
        uint64_t held;
        tiers_location *location =
            slots_pop(pool, class, list, usable ? SLOT_TAKEN : SLOT_NOBODY, &held);
        if (!usable) {
            slots_release(pool, location);
            continue;
        }
        if (class->whole) pool_count_whole(pool, list, bytes);
        pool->slots->padding_bytes += held - bytes;
        class->taken++;
        class->taken_ever++;
        slots_size(location, bytes);
        return location;
    }
    return NULL;
}

tiers_location *pool_slot_take(tiers_pool *pool, uint64_t bytes, uint32_t unit_bytes,
                               bool odd_first)
{
    uint64_t capacity, used;
    pool_sum(pool, &capacity, &used);
    for (uint32_t i = 0; i < pool->slots->count; i++) {
        slot_class *class = &pool->slots->classes[i];
        if (!slots_fits(class, bytes, unit_bytes, odd_first)) continue;
        if (used > capacity || class->held_bytes > capacity - used) return NULL;
        tiers_location *location = slots_take_of(pool, class, bytes);
        if (location == NULL) class->missed++;
        return location;
    }
    return NULL;
}

/* Whether a slot of its whole size is as good as one that its class would lay out now: on members
 * that take units, and read in about the same time. */
static bool slots_is_planned(tiers_pool *pool, const slot_class *class,
                             const tiers_location *location)
{
    if (class->share_count == 0 || location->extent_count != location->share_count) return false;
    if (class->whole && location->share_count != 1) return false;
    if (class->whole) return pool_member_takes(&pool->members[location->shares[0].member]);
    return slots_are_fast(pool, location->shares, location->share_count);
}

/* The location may come from the list of late ones, which has its link where the pointer to the
 * shares is. */
void pool_slot_give(tiers_pool *pool, tiers_location *location)
{
    slot_class *class = &pool->slots->classes[location->slot - 1];
    location->shares = tiers_location_own_shares(location);
    location->released = false;
    location->named = false;
    const uint64_t bytes = location->bytes;
    slots_size(location, class->size.bytes);
    const bool planned = slots_is_planned(pool, class, location);
    const uint64_t held =
        slots_count(pool, location, SLOT_TAKEN, planned ? SLOT_FREE : SLOT_NOBODY);
    assert(class->taken > 0 && pool->slots->padding_bytes >= held - bytes);
    class->taken--;
    pool->slots->padding_bytes -= held - bytes;
    if (planned)
        slots_push(pool, class, location);
    else
        slots_release(pool, location);
}

/* Holds a slot's range instead of an extent's own one, or the other way round. The own one is
 * always there, and a space that has just given back a range has memory to take one. */
static kvt_status slots_exchange(tiers_pool *pool, const tiers_location *location, uint32_t index,
                                 bool to_slot)
{
    const tiers_extent *extent = &location->extents[index];
    tiers_space *space = pool->members[extent->member].space;
    const tiers_range own = {.offset = extent->offset, .bytes = extent->bytes};
    const tiers_range slot = slots_range(pool, location, index);
    tiers_space_release(space, to_slot ? own : slot);
    kvt_status status = tiers_space_adopt(space, to_slot ? slot : own);
    if (status != KVT_OK) {
        const kvt_status back = tiers_space_adopt(space, own);
        assert(to_slot && back == KVT_OK);
        (void)back;
    }
    return status;
}

/* What the alignment adds to an extent is taken, too, or the location stays extents. */
void pool_slot_adopt(tiers_pool *pool, tiers_location *location)
{
    slot_class *class = NULL;
    uint32_t index = 0, done = 0;
    for (; class == NULL && index < pool->slots->count; index++)
        if (pool->slots->classes[index].size.bytes == location->bytes)
            class = &pool->slots->classes[index];
    if (class == NULL || class->size.unit_bytes != location->unit_bytes ||
        class->size.odd_first != location->odd_first || !slots_is_planned(pool, class, location))
        return;
    for (; done < location->extent_count; done++) {
        const slot_hold hold = slots_hold_of(pool, location, done);
        const uint64_t offset = location->extents[done].offset;
        if (offset < hold.front || (offset - hold.front) % hold.align != 0 ||
            slots_exchange(pool, location, done, true) != KVT_OK)
            break;
    }
    if (done < location->extent_count) {
        while (done-- > 0)
            (void)slots_exchange(pool, location, done, false);
        return;
    }
    for (uint32_t i = 0; i < location->extent_count; i++) {
        const uint64_t gap = slots_hold_of(pool, location, i).bytes - location->extents[i].bytes;
        pool->members[location->extents[i].member].used_bytes += gap;
        pool->slots->padding_bytes += gap;
    }
    location->slot = (uint8_t)index;
    class->taken++;
}

bool pool_slots_yield(tiers_pool *pool, uint64_t bytes)
{
    if (pool->slots == NULL) return false;
    slot_class *rich = slots_richest(pool, NULL, UINT64_MAX);
    return rich != NULL && slots_give_up(pool, rich, bytes, UINT64_MAX) != 0;
}

bool pool_slots_spare(tiers_pool *pool, uint64_t bytes, uint64_t members)
{
    slot_class *rich = slots_richest(pool, NULL, members);
    if (rich == NULL || rich->free <= rich->taken) return false;
    return slots_give_up(pool, rich, bytes, members) != 0;
}

kvt_status tiers_pool_slot_class(tiers_pool *pool, uint32_t index, tiers_slot_stats *out)
{
    if (pool->slots == NULL || index >= pool->slots->count) return KVT_END;
    pthread_mutex_lock(&pool->mutex);
    const slot_class *class = &pool->slots->classes[index];
    *out = (tiers_slot_stats){.bytes = class->size.bytes,
                              .held_bytes = class->held_bytes,
                              .free = class->free,
                              .taken = class->taken,
                              .taken_ever = class->taken_ever,
                              .missed = class->missed};
    pthread_mutex_unlock(&pool->mutex);
    return KVT_OK;
}
