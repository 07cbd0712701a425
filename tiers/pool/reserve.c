/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reserve.c - a pool's space: shares, extents and their accounting.
 *
 * Every function decides shares first and touches the members' spaces after, so that a failure
 * leaves nothing to undo but extents of the location at hand.
 *
 * Three numbers follow each other through the file: rooms (free bytes by member), shares (units by
 * member) and extents (ranges by member). A member's used_bytes changes in the same step as its
 * space.
 *
 * Thread rule: all functions from any thread; everything here runs under the pool's mutex and does
 * no I/O.
 */
#include <assert.h>
#include <string.h>

#include "base/clock.h"
#include "location.h"
#include "pool_internal.h"
#include "pool_slots.h"
#include "stripe.h"

/* Objects in a row after which a member that got no unit gets one, and after which a member whose
 * writes failed is tried again; and the nap of a reservation that waits for a trim. */
#define RESERVE_PASSED_OVER_MAX 16u
#define RESERVE_SPARED_MAX      64u
#define RESERVE_NAP_NS          100000

/* The bytes of each member that a location under construction may use. */
typedef struct reserve_rooms {
    uint64_t bytes[TIERS_MEMBERS_MAX];
} reserve_rooms;

/* Shares are decided on numbers alone; no space is touched before they are final. */
/* ---- shares ---- */

void tiers_pool_set_striping(tiers_pool *pool, tiers_striping striping)
{
    pthread_mutex_lock(&pool->mutex);
    pool->striping = striping;
    pool_slots_replan(pool);
    pthread_mutex_unlock(&pool->mutex);
}

/* A member whose weight fell so low that object after object passes it over would never be measured
 * again: now and then it gets a unit of the member with the most. At most one unit moves per
 * object, and never a member's only one. */
static void reserve_grant_chance(tiers_pool *pool, const reserve_rooms *rooms, uint32_t unit_bytes,
                                 uint32_t *dealt)
{
    uint32_t most = 0;
    uint32_t chosen = pool->member_count;
    for (uint32_t i = 0; i < pool->member_count; i++) {
        pool_member *member = &pool->members[i];
        if (dealt[i] > dealt[most]) most = i;
        if (dealt[i] > 0) member->passed_over = 0;
        if (dealt[i] > 0 || rooms->bytes[i] < unit_bytes) continue;
        if (++member->passed_over >= RESERVE_PASSED_OVER_MAX) chosen = i;
    }
    if (chosen == pool->member_count || dealt[most] < 2) return;
    assert(chosen != most && dealt[chosen] == 0 && "a unit goes to a member without one");
    pool->members[chosen].passed_over = 0;
    dealt[chosen]++;
    dealt[most]--;
}

/* Lists the members that got units, in member order. Returns their number. A share of 0 units is
 * left out, because a location lists only members that hold something. */
static uint32_t reserve_collect_shares(const uint32_t *units, uint32_t count, tiers_share *shares)
{
    uint32_t used = 0;
    for (uint32_t i = 0; i < count; i++)
        if (units[i] > 0) shares[used++] = (tiers_share){.member = i, .units = units[i]};
    return used;
}

/*
 * For a nearly full pool, where the last unit, which is short, fits only into a remainder smaller
 * than a unit: tries each member as the owner of the last unit. The deal decides who owns it, so a
 * try counts only when the deal agrees.
 *
 * Each try deals all units, so this is paid only when the plain deal found no room. Returns the
 * number of shares, 0 when no owner works out.
 */
static uint32_t reserve_share_tail(const tiers_pool *pool, const reserve_rooms *rooms,
                                   tiers_stripe_member *members, uint32_t units,
                                   uint64_t tail_bytes, uint32_t unit_bytes, uint32_t turn,
                                   tiers_share *shares, double *owed)
{
    uint32_t count = pool->member_count;
    uint32_t dealt[TIERS_MEMBERS_MAX];
    for (uint32_t owner = 0; owner < count; owner++) {
        if (rooms->bytes[owner] % unit_bytes < tail_bytes) continue;
        members[owner].room_units++;
        kvt_status status = pool_deal(pool, members, units, dealt, owed);
        members[owner].room_units--;
        if (status != KVT_OK) continue;
        uint32_t used = reserve_collect_shares(dealt, count, shares);
        if (shares[tiers_stripe_last(shares, used, turn)].member == owner) return used;
    }
    return 0;
}

/* The members as a deal sees them. */
static void reserve_members(const tiers_pool *pool, const reserve_rooms *rooms, uint32_t unit_bytes,
                            tiers_stripe_member *members)
{
    for (uint32_t i = 0; i < pool->member_count; i++)
        members[i] = (tiers_stripe_member){.weight = pool_deal_weight(pool, i),
                                           .room_units = rooms->bytes[i] / unit_bytes,
                                           .owed = pool->members[i].owed};
}

/* Decides the shares of an object within the rooms. Returns their number; 0 = no room. chance:
 * members that were passed over may get a unit. owed: what members are owed when it lies so. An
 * object that lies whole on one member is not dealt. */
static uint32_t reserve_plan(tiers_pool *pool, const reserve_rooms *rooms, uint64_t bytes,
                             uint64_t units, uint32_t unit_bytes, uint32_t turn, bool chance,
                             tiers_share *shares, double *owed)
{
    if (units > TIERS_UNITS_MAX) return 0;
    if (pool_is_whole(pool, units)) {
        uint64_t mask = 0;
        for (uint32_t i = 0; i < pool->member_count; i++)
            if (rooms->bytes[i] >= bytes) mask |= UINT64_C(1) << i;
        const uint32_t member = pool_choose_whole(pool, mask, bytes);
        if (member == pool->member_count) return 0;
        shares[0] = (tiers_share){.member = member, .units = (uint32_t)units};
        return 1;
    }
    tiers_stripe_member members[TIERS_MEMBERS_MAX];
    uint32_t dealt[TIERS_MEMBERS_MAX];
    reserve_members(pool, rooms, unit_bytes, members);
    if (pool_deal(pool, members, (uint32_t)units, dealt, owed) == KVT_OK) {
        if (chance) reserve_grant_chance(pool, rooms, unit_bytes, dealt);
        return reserve_collect_shares(dealt, pool->member_count, shares);
    }
    uint64_t tail_bytes = bytes % unit_bytes;
    if (tail_bytes == 0 || units * unit_bytes < bytes)
        return 0; /* or the first unit is the odd one */
    return reserve_share_tail(pool, rooms, members, (uint32_t)units, tail_bytes, unit_bytes, turn,
                              shares, owed);
}

/* ---- extents ---- */

/* Gives all extents of a location back to their members' spaces. The mutex is held. trim: nothing
 * durable names them. */
static void reserve_release_extents(tiers_pool *pool, const tiers_location *location, bool trim)
{
    for (uint32_t i = 0; i < location->extent_count; i++) {
        const tiers_extent *extent = &location->extents[i];
        pool_member *member = &pool->members[extent->member];
        pool_release_range(member, (tiers_range){.offset = extent->offset, .bytes = extent->bytes},
                           trim);
    }
}

/* Takes the extents of one share and appends them; on failure those taken stay appended. A share
 * may need several extents where the free space is in pieces; the room for them doubles. */
static kvt_status reserve_acquire_share(tiers_pool *pool, tiers_location *location, uint32_t index,
                                        uint64_t bytes, uint32_t *room)
{
    uint32_t member_index = location->shares[index].member;
    pool_member *member = &pool->members[member_index];
    while (bytes > 0) {
        if (location->extent_count == *room) {
            kvt_status status = tiers_location_room(location, 2 * *room);
            if (status != KVT_OK) return status;
            *room *= 2;
        }
        tiers_range range;
        kvt_status status = tiers_space_acquire(member->space, bytes, &range);
        if (status != KVT_OK) return status;
        location->extents[location->extent_count++] =
            (tiers_extent){.member = member_index, .offset = range.offset, .bytes = range.bytes};
        member->used_bytes += range.bytes;
        bytes -= range.bytes;
    }
    return KVT_OK;
}

/* Takes the extents of a location whose shares are decided; nothing is taken on failure. Extents of
 * a failed try may be trimmed, because nothing has named them yet. */
static kvt_status reserve_acquire_extents(tiers_pool *pool, tiers_location *location)
{
    uint32_t room = location->share_count;
    kvt_status status = tiers_location_room(location, room);
    const uint32_t odd = tiers_stripe_odd(location);
    for (uint32_t i = 0; i < location->share_count && status == KVT_OK; i++) {
        const uint64_t bytes = tiers_stripe_share_bytes(location, i, odd);
        status = reserve_acquire_share(pool, location, i, bytes, &room);
    }
    if (status != KVT_OK) reserve_release_extents(pool, location, true);
    assert(status != KVT_OK || tiers_location_check(location) == KVT_OK);
    return status;
}

/* Sums up the free bytes of the members that take new units and may still be written to today,
 * with those of free slots or without. A budget of writes that is spent closes a member for today,
 * as a full one is closed. */
static void reserve_open_rooms(tiers_pool *pool, bool slots, reserve_rooms *rooms)
{
    memset(rooms, 0, sizeof *rooms);
    for (uint32_t i = 0; i < pool->member_count; i++) {
        pool_member *member = &pool->members[i];
        if (member->wear.budget_bytes_per_day != 0) pool_count_wear(member);
        if (tiers_wear_is_spent(&member->wear)) continue;
        assert(member->used_bytes + member->slot_bytes <= member->capacity_bytes ||
               member->worker == NULL);
        if (pool_member_takes(member))
            rooms->bytes[i] =
                member->capacity_bytes - member->used_bytes - (slots ? 0 : member->slot_bytes);
    }
}

/* What an object asks of its place. */
typedef struct reserve_wish {
    uint64_t bytes;
    uint32_t unit_bytes;
    uint64_t members; /* a mask of those that may hold units */
    bool odd_first;   /* the object is of whole tensors */
    bool own_unit;    /* pages and copies of pages: dealt, in no slot */
} reserve_wish;

static uint64_t reserve_units(const reserve_wish *wish)
{
    return wish->odd_first ? wish->bytes / wish->unit_bytes
                           : tiers_location_units(wish->bytes, wish->unit_bytes);
}

/* Notes that a location lies on a member whose answers are late, and whether it had better not. */
static void reserve_note_late(tiers_pool *pool, tiers_location *location)
{
    uint64_t late = 0;
    for (uint32_t i = 0; i < location->share_count; i++) {
        const uint32_t member = location->shares[i].member;
        if (tiers_worker_is_late(pool->members[member].worker)) late |= UINT64_C(1) << member;
    }
    location->on_late = late != 0;
    location->unwanted = late != 0 && (pool_lagging(pool) & late) != 0;
}

/* One try to reserve. spared_out: the try keeps away from members whose writes fail or whose
 * answers are late, and says whether there were any; NULL: with all members. The mutex is held. The
 * budget of the pool is checked first, because the members may hold more than it. */
static kvt_status reserve_locked(tiers_pool *pool, const reserve_wish *wish, bool *spared_out,
                                 tiers_location **location_out)
{
    const uint64_t bytes = wish->bytes;
    const uint32_t unit_bytes = wish->unit_bytes;
    uint64_t capacity;
    uint64_t used;
    pool_sum(pool, &capacity, &used);
    if (used > capacity || bytes > capacity - used) return KVT_E_SPACE;
    reserve_rooms rooms;
    reserve_open_rooms(pool, false, &rooms);
    for (uint32_t i = 0; i < pool->member_count; i++)
        if ((wish->members >> i & 1) == 0) rooms.bytes[i] = 0;
    /* Keep an object away from members whose last write failed. Otherwise a member that reads and
     * does not write would draw every small object, because it is the emptiest. After
     * RESERVE_SPARED_MAX objects such a member is tried again. The count of objects is per member,
     * and a write that succeeds ends it. A member whose answers are late is left out, too, until
     * its worker has found that they are not. */
    for (uint32_t i = 0; spared_out != NULL && i < pool->member_count; i++) {
        pool_member *member = &pool->members[i];
        const bool late = rooms.bytes[i] > 0 && tiers_worker_is_late(member->worker);
        bool failing = rooms.bytes[i] > 0 && tiers_worker_write_failed(member->worker);
        if (!late && (!failing || ++member->spared > RESERVE_SPARED_MAX)) {
            member->spared = 0;
            continue;
        }
        rooms.bytes[i] = 0;
        *spared_out = true;
    }
    tiers_share shares[TIERS_MEMBERS_MAX];
    double owed[TIERS_MEMBERS_MAX];
    const bool chance = pool->reweigh && pool_is_weighted(pool) && wish->members == UINT64_MAX;
    const uint64_t units = reserve_units(wish);
    const uint32_t turn = pool_turn(pool, pool->reserved, units);
    const uint32_t share_count =
        reserve_plan(pool, &rooms, bytes, units, unit_bytes, turn, chance, shares, owed);
    assert(share_count <= pool->member_count);
    if (share_count == 0) return KVT_E_SPACE;
    tiers_location *location = tiers_location_make(bytes, unit_bytes, shares, share_count);
    if (location == NULL) return KVT_E_MEMORY;
    location->turn = share_count > 1 ? (uint8_t)turn : 0;
    location->odd_first = wish->odd_first && bytes % unit_bytes != 0;
    kvt_status status = reserve_acquire_extents(pool, location);
    if (status != KVT_OK) {
        tiers_location_free(location);
        return status;
    }
    pool->reserved++;
    if (pool_is_whole(pool, units)) pool_count_whole(pool, shares[0].member, bytes);
    for (uint32_t i = 0; i < pool->member_count && !pool_is_whole(pool, units); i++)
        if (pool_is_weighted(pool)) pool->members[i].owed = owed[i];
    pool->cursor = (uint32_t)((pool->cursor + units) % pool->member_count);
    *location_out = location;
    return KVT_OK;
}

/* Waits until a range that is being trimmed is back, a moment at a time: the pool's users count
 * such a range as free. False when none is being trimmed. The mutex is held, and released
 * meanwhile. trim_waiters keeps the workers from beginning another trim meanwhile. */
static bool reserve_await_trim(tiers_pool *pool)
{
    bool settled = false;
    bool out = false;
    for (uint32_t i = 0; i < pool->member_count; i++) {
        pool_member *member = &pool->members[i];
        settled = pool_settle_trim(member) || settled;
        if (member->trims.out.bytes == 0) continue;
        (void)tiers_worker_check(member->worker); /* a drive may hang in it */
        out = out || pool_member_takes(member);
    }
    if (settled || !out) return settled;
    pool->trim_waiters++;
    pthread_mutex_unlock(&pool->mutex);
    base_sleep(RESERVE_NAP_NS);
    pthread_mutex_lock(&pool->mutex);
    assert(pool->trim_waiters > 0);
    pool->trim_waiters--;
    return true;
}

/* Whether free slots would make room: the budget holds the object, and the units it takes are not
 * too many. The mutex is held. */
static bool reserve_may_yield(tiers_pool *pool, const reserve_wish *wish)
{
    uint64_t capacity, used;
    pool_sum(pool, &capacity, &used);
    return used <= capacity && wish->bytes <= capacity - used &&
           reserve_units(wish) <= TIERS_UNITS_MAX;
}

/* The members whose due of an object others would get because free slots hold their room, as a
 * mask. The mutex is held. */
static uint64_t reserve_short(tiers_pool *pool, const reserve_wish *wish)
{
    const uint64_t units = reserve_units(wish);
    tiers_stripe_member members[TIERS_MEMBERS_MAX];
    uint32_t dealt[TIERS_MEMBERS_MAX];
    double owed[TIERS_MEMBERS_MAX];
    reserve_rooms rooms, whole;
    uint64_t slot_bytes = 0, mask = 0;
    for (uint32_t i = 0; i < pool->member_count; i++)
        slot_bytes += pool->members[i].slot_bytes;
    if (slot_bytes == 0 || !reserve_may_yield(pool, wish)) return 0;
    reserve_open_rooms(pool, false, &rooms);
    reserve_open_rooms(pool, true, &whole);
    for (uint32_t i = 0; i < pool->member_count; i++) {
        if ((wish->members >> i & 1) == 0) whole.bytes[i] = 0;
        if (whole.bytes[i] >= wish->bytes) mask |= UINT64_C(1) << i;
    }
    if (pool_is_whole(pool, units)) {
        const uint32_t member = pool_choose_whole(pool, mask, wish->bytes);
        const bool lacks = member < pool->member_count && rooms.bytes[member] < wish->bytes;
        return lacks ? UINT64_C(1) << member : 0;
    }
    reserve_members(pool, &whole, wish->unit_bytes, members);
    mask = 0;
    if (pool_deal(pool, members, (uint32_t)units, dealt, owed) != KVT_OK) return 0;
    for (uint32_t i = 0; i < pool->member_count; i++)
        if (dealt[i] > rooms.bytes[i] / wish->unit_bytes) mask |= UINT64_C(1) << i;
    return mask;
}

/* A slot is taken without a look at the spaces. Extents wait for trims alone, never for transfers:
 * room that a transfer will free is not there yet. Members that are spared come last: an object on
 * a doubtful member is better than none. */
static kvt_status reserve_wished(tiers_pool *pool, const reserve_wish *wish,
                                 tiers_location **location_out)
{
    kvt_status status = KVT_E_SPACE;
    uint64_t lacking;
    bool spared = false;
    pthread_mutex_lock(&pool->mutex);
    pool_collect_late(pool);
    if (pool->slots != NULL && !wish->own_unit) {
        *location_out = pool_slot_take(pool, wish->bytes, wish->unit_bytes, wish->odd_first);
        if (*location_out != NULL) status = KVT_OK;
    }
    while (status != KVT_OK && (lacking = reserve_short(pool, wish)) != 0 &&
           pool_slots_spare(pool, wish->bytes, lacking))
        ;
    if (status != KVT_OK) status = reserve_locked(pool, wish, &spared, location_out);
    while (status == KVT_E_SPACE &&
           ((reserve_may_yield(pool, wish) && pool_slots_yield(pool, wish->bytes)) ||
            reserve_await_trim(pool)))
        status = reserve_locked(pool, wish, &spared, location_out);
    if (status == KVT_E_SPACE && spared) status = reserve_locked(pool, wish, NULL, location_out);
    if (status == KVT_OK) reserve_note_late(pool, *location_out);
    pthread_mutex_unlock(&pool->mutex);
    return status;
}

/* The bytes of an object as it is reserved; 0 = more than there are. */
static uint64_t reserve_round(uint64_t bytes)
{
    const uint64_t grain = TIERS_GRAIN_BYTES;
    return bytes > UINT64_MAX - (grain - 1) ? 0 : (bytes + grain - 1) & ~(grain - 1);
}

kvt_status tiers_pool_reserve_on(tiers_pool *pool, uint64_t bytes, uint32_t unit_bytes,
                                 uint64_t members, tiers_location **location_out)
{
    assert(bytes > 0 && unit_bytes > 0 && unit_bytes % TIERS_GRAIN_BYTES == 0);
    const reserve_wish wish = {.bytes = reserve_round(bytes),
                               .unit_bytes = unit_bytes,
                               .members = members,
                               .own_unit = true};
    return wish.bytes == 0 ? KVT_E_SPACE : reserve_wished(pool, &wish, location_out);
}

kvt_status tiers_pool_reserve(tiers_pool *pool, uint64_t bytes, tiers_location **location_out)
{
    assert(bytes > 0);
    const reserve_wish wish = {
        .bytes = reserve_round(bytes), .unit_bytes = pool->unit_bytes, .members = UINT64_MAX};
    return wish.bytes == 0 ? KVT_E_SPACE : reserve_wished(pool, &wish, location_out);
}

/* Less than a head and a tensor is no object of tensors. */
kvt_status tiers_pool_reserve_tensors(tiers_pool *pool, uint64_t bytes, uint32_t unit_bytes,
                                      tiers_location **location_out)
{
    assert(bytes > 0 && unit_bytes % TIERS_GRAIN_BYTES == 0);
    const reserve_wish wish = {.bytes = reserve_round(bytes),
                               .unit_bytes = unit_bytes,
                               .members = UINT64_MAX,
                               .odd_first = true};
    if (pool->striping != TIERS_STRIPE_TENSOR || unit_bytes == 0 || wish.bytes <= unit_bytes)
        return tiers_pool_reserve(pool, bytes, location_out);
    return reserve_wished(pool, &wish, location_out);
}

bool tiers_pool_lay_slots(tiers_pool *pool, uint32_t most)
{
    if (pool->slots == NULL) return false;
    pthread_mutex_lock(&pool->mutex);
    pool_collect_late(pool);
    const bool more = pool_slots_lay(pool, most);
    pthread_mutex_unlock(&pool->mutex);
    return more;
}

/* ---- layout ---- */

/* A layout grows old when weights change; by this figure a caller decides to write it anew. */

double tiers_pool_layout_gain(tiers_pool *pool, const tiers_location *location)
{
    tiers_stripe_member members[TIERS_MEMBERS_MAX];
    reserve_rooms rooms;
    double gain = 1;
    if (location->bytes <= location->unit_bytes || pool->member_count == 1) return gain;
    pthread_mutex_lock(&pool->mutex);
    if (!pool_is_weighted(pool) || pool->striping == TIERS_STRIPE_ENTRY) goto out;
    reserve_open_rooms(pool, false, &rooms);
    for (uint32_t i = 0; i < pool->member_count; i++)
        if (rooms.bytes[i] > 0 && tiers_worker_write_failed(pool->members[i].worker))
            rooms.bytes[i] = 0; /* a new layout would keep away from it */
    reserve_members(pool, &rooms, location->unit_bytes, members);
    gain = tiers_stripe_gain(members, pool->member_count, location->shares, location->share_count);
out:
    pthread_mutex_unlock(&pool->mutex);
    return gain;
}

/* ---- release and adopt ---- */

/* True when transfers of it are in flight, the last of which will hand it on. named: the extents
 * must not be trimmed. */
static bool reserve_leave_pinned(tiers_pool *pool, tiers_location *location, bool named)
{
    pthread_mutex_lock(&pool->done_mutex);
    assert(!location->released && "a location is released once");
    location->released = location->pins > 0;
    location->named = named;
    if (location->released) pool_count_left(pool, location, true);
    bool pinned = location->released;
    pthread_mutex_unlock(&pool->done_mutex);
    return pinned;
}

/* Gives a slot back to its class, else the extents to their spaces. The mutex is held. */
static void reserve_let_go(tiers_pool *pool, tiers_location *location, bool trim)
{
    if (location->slot != 0) {
        pool_slot_give(pool, location);
        return;
    }
    reserve_release_extents(pool, location, trim);
    tiers_location_free(location);
}

/* Releases a location, or leaves that to its last transfer in flight. The location must not be used
 * by the caller any more, pinned or not. */
static void reserve_release(tiers_pool *pool, tiers_location *location, bool trim)
{
    if (location == NULL || reserve_leave_pinned(pool, location, !trim)) return;
    pthread_mutex_lock(&pool->mutex);
    reserve_let_go(pool, location, trim);
    pthread_mutex_unlock(&pool->mutex);
}

void tiers_pool_release(tiers_pool *pool, tiers_location *location)
{
    reserve_release(pool, location, true);
}

void tiers_pool_disown(tiers_pool *pool, tiers_location *location)
{
    reserve_release(pool, location, false);
}

void tiers_pool_forget(tiers_pool *pool, tiers_location *location)
{
    if (location == NULL || reserve_leave_pinned(pool, location, true)) return;
    tiers_location_free(location);
}

void pool_collect_late(tiers_pool *pool)
{
    pthread_mutex_lock(&pool->done_mutex);
    tiers_location *late = pool->late;
    pool->late = NULL;
    pthread_mutex_unlock(&pool->done_mutex);
    while (late != NULL) {
        tiers_location *next = late->next;
        assert(late->released && late->pins == 0);
        reserve_let_go(pool, late, !late->named);
        late = next;
    }
}

/* Marks the extents of a location read from a catalog as used. Nothing is marked on failure. An
 * extent that overlaps one adopted before is not wholly free, and fails here. */
static kvt_status reserve_adopt_extents(tiers_pool *pool, const tiers_location *location)
{
    for (uint32_t i = 0; i < location->extent_count; i++) {
        const tiers_extent *extent = &location->extents[i];
        pool_member *member = &pool->members[extent->member];
        kvt_status status = tiers_space_adopt(
            member->space, (tiers_range){.offset = extent->offset, .bytes = extent->bytes});
        if (status != KVT_OK) {
            tiers_location taken = *location;
            taken.extent_count = i;
            reserve_release_extents(pool, &taken, false); /* other rows may name them */
            return status;
        }
        member->used_bytes += extent->bytes;
    }
    return KVT_OK;
}

kvt_status tiers_pool_adopt(tiers_pool *pool, tiers_location *location)
{
    kvt_status status = tiers_location_check(location);
    if (status != KVT_OK) return status;
    for (uint32_t i = 0; i < location->share_count; i++)
        if (location->shares[i].member >= pool->member_count) return KVT_E_CORRUPT;
    pthread_mutex_lock(&pool->mutex);
    for (uint32_t i = 0; i < location->share_count; i++)
        if (!pool_member_serves(&pool->members[location->shares[i].member])) status = KVT_E_GONE;
    if (status == KVT_OK) status = reserve_adopt_extents(pool, location);
    if (status == KVT_OK && pool->slots != NULL) pool_slot_adopt(pool, location);
    pthread_mutex_unlock(&pool->mutex);
    return status;
}
