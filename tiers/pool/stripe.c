/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stripe.c - shares of an object's units, the order in which units are dealt, and the walk over one
 * member's part. The rules are in stripe.h. The file knows neither devices nor free space.
 *
 * Thread rule: pure functions over the caller's memory.
 */
#include "stripe.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* Weights waver by a tenth before they move (docs/TIERS.md, Weights): so much is no gain. */
#define STRIPE_STEADY 1.1

/* ---- shares ---- */

/* Doubles decide here, in an order that is fixed, so equal weights give equal shares everywhere. */

/* One unit more to each of `rest` members, the largest wish first; one of -INFINITY gets none, and
 * ties go to the larger weight, then to the lower member: the order of the tests makes the result
 * the same on every machine. Returns the seconds of the slowest, in units over weight. */
static double stripe_deal_rest(const tiers_stripe_member *members, uint32_t count,
                               const double *wishes, uint32_t rest, uint32_t *shares)
{
    bool dealt[TIERS_MEMBERS_MAX] = {false};
    double slowest = 0;
    for (; rest > 0; rest--) {
        uint32_t best = count;
        for (uint32_t i = 0; i < count; i++) {
            if (dealt[i] || wishes[i] == -INFINITY) continue;
            bool better = best == count || wishes[i] > wishes[best] ||
                          (wishes[i] == wishes[best] && members[i].weight > members[best].weight);
            if (better) best = i;
        }
        assert(best < count && "fewer members than remainder units");
        shares[best]++;
        dealt[best] = true;
    }
    for (uint32_t i = 0; i < count; i++)
        if (shares[i] > 0 && shares[i] / members[i].weight > slowest)
            slowest = shares[i] / members[i].weight;
    return slowest;
}

/* Deals the remainder twice: by fractions alone, which says how long the object may take, then with
 * what members are owed. fractions: -1 outside the deal. owed: as of tiers_stripe_share. */
static void stripe_deal_fair(const tiers_stripe_member *members, uint32_t count,
                             const double *fractions, uint32_t rest, uint32_t *shares, double *owed)
{
    double wishes[TIERS_MEMBERS_MAX] = {0};
    uint32_t plain[TIERS_MEMBERS_MAX];
    double due = 0;
    memcpy(plain, shares, count * sizeof *shares);
    for (uint32_t i = 0; i < count; i++)
        wishes[i] = fractions[i] < 0 ? -INFINITY : fractions[i];
    const double most = TIERS_STRIPE_SLOWER * stripe_deal_rest(members, count, wishes, rest, plain);
    for (uint32_t i = 0; i < count; i++) {
        owed[i] = members[i].owed;
        if (fractions[i] < 0) continue;
        if ((shares[i] + 1) / members[i].weight > most) {
            wishes[i] = -INFINITY;
            continue;
        }
        wishes[i] = fractions[i] + members[i].owed;
        due += fractions[i];
    }
    memcpy(plain, shares, count * sizeof *shares);
    (void)stripe_deal_rest(members, count, wishes, rest, shares);
    for (uint32_t i = 0; i < count && due > 0; i++)
        if (wishes[i] != -INFINITY)
            owed[i] += fractions[i] * rest / due - (double)(shares[i] - plain[i]);
}

/* Proportional shares of `units` over the open members, capacity aside: the floors, and the
 * fractions that are left, -1 for a member outside. Returns the units of the remainder. */
static uint32_t stripe_floors(const tiers_stripe_member *members, uint32_t count, const bool *open,
                              uint32_t units, uint32_t *floors, double *fractions)
{
    double sum = 0;
    for (uint32_t i = 0; i < count; i++)
        if (open[i]) sum += members[i].weight;
    uint32_t given = 0;
    for (uint32_t i = 0; i < count; i++) {
        fractions[i] = -1;
        floors[i] = 0;
        if (!open[i]) continue;
        double exact = members[i].weight / sum * (double)units;
        /* Rounding in the division may lift the sum of the floors above units: never give more
         * than is left. */
        uint32_t whole = (uint32_t)floor(exact);
        if (whole > units - given) whole = units - given;
        floors[i] = whole;
        fractions[i] = exact - floor(exact);
        given += whole;
    }
    assert(given <= units && "floors never add up to more than all");
    return units - given;
}

kvt_status tiers_stripe_share(const tiers_stripe_member *members, uint32_t count, uint32_t units,
                              uint32_t *units_out, double *owed_out)
{
    assert(count <= TIERS_MEMBERS_MAX && units >= 1 && units <= TIERS_UNITS_MAX);
    bool open[TIERS_MEMBERS_MAX] = {false};
    uint32_t proposal[TIERS_MEMBERS_MAX];
    double fractions[TIERS_MEMBERS_MAX], owed[TIERS_MEMBERS_MAX];
    uint64_t room = 0;
    for (uint32_t i = 0; i < count; i++) {
        open[i] = members[i].weight > 0 && members[i].room_units > 0;
        if (open[i]) room += members[i].room_units < units ? members[i].room_units : units;
        units_out[i] = 0;
    }
    if (room < units) return KVT_E_SPACE;
    /* Each round closes the members that would overflow, at exactly their room, and shares the rest
     * out anew; the others' shares only grow by that, so at most count rounds are needed. */
    for (uint32_t left = units;;) {
        const uint32_t rest = stripe_floors(members, count, open, left, proposal, fractions);
        stripe_deal_fair(members, count, fractions, rest, proposal, owed);
        bool fits = true;
        uint32_t still_left = left;
        for (uint32_t i = 0; i < count; i++) {
            if (!open[i] || proposal[i] <= members[i].room_units) continue;
            fits = false;
            open[i] = false;
            units_out[i] = (uint32_t)members[i].room_units;
            still_left -= units_out[i];
        }
        if (fits) break;
        assert(still_left < left && "each round closes a member that has room");
        left = still_left;
    }
    for (uint32_t i = 0; i < count; i++)
        if (open[i]) units_out[i] = proposal[i];
    if (owed_out != NULL) memcpy(owed_out, owed, count * sizeof *owed);
    return KVT_OK;
}

/* Seconds until the slowest member has read its share, in units over weight. */
static double stripe_seconds(const tiers_stripe_member *members, const tiers_share *shares,
                             uint32_t share_count)
{
    double slowest = 0;
    for (uint32_t i = 0; i < share_count; i++) {
        const double weight = members[shares[i].member].weight;
        const double seconds = weight > 0 ? shares[i].units / weight : INFINITY;
        if (seconds > slowest) slowest = seconds;
    }
    return slowest;
}

double tiers_stripe_gain(const tiers_stripe_member *members, uint32_t count,
                         const tiers_share *shares, uint32_t share_count)
{
    tiers_stripe_member even[TIERS_MEMBERS_MAX] = {{0}};
    tiers_share plan[TIERS_MEMBERS_MAX];
    uint32_t dealt[TIERS_MEMBERS_MAX];
    uint32_t units = 0, used = 0;
    double sum = 0;
    for (uint32_t i = 0; i < share_count; i++)
        units += shares[i].units;
    for (uint32_t i = 0; i < count; i++) {
        even[i] = members[i];
        even[i].owed = 0;
        if (members[i].room_units > 0) sum += members[i].weight;
    }
    if (tiers_stripe_share(even, count, units, dealt, NULL) != KVT_OK) return 1;
    for (uint32_t i = 0; i < count; i++)
        if (dealt[i] > 0) plan[used++] = (tiers_share){.member = i, .units = dealt[i]};
    const double gain =
        stripe_seconds(members, shares, share_count) / stripe_seconds(members, plan, used);
    bool falls = gain <= TIERS_STRIPE_SLOWER * STRIPE_STEADY;
    for (uint32_t i = 0; i < share_count && falls; i++) {
        const double exact = members[shares[i].member].weight / sum * units;
        falls = shares[i].units < exact * STRIPE_STEADY + 1;
    }
    return falls || gain < 1 ? 1 : gain;
}

/* ---- deal order ---- */

/* Whole numbers decide here, so a location read from a catalog deals as it did when it was
 * written. */

void tiers_dealer_init(tiers_dealer *dealer, const tiers_share *shares, uint32_t share_count,
                       uint32_t turn)
{
    assert(share_count >= 1 && share_count <= TIERS_MEMBERS_MAX);
    dealer->shares = shares;
    dealer->share_count = share_count;
    dealer->total = 0;
    dealer->step = 0;
    for (uint32_t i = 0; i < share_count; i++) {
        dealer->total += shares[i].units;
        dealer->dealt[i] = 0;
    }
    assert(turn < dealer->total);
    while (dealer->step < turn)
        (void)tiers_dealer_next(dealer);
}

/* The products fit 64 bits, because units and steps are at most 2^20. */
uint32_t tiers_dealer_next(tiers_dealer *dealer)
{
    if (dealer->step == dealer->total) {
        dealer->step = 0;
        memset(dealer->dealt, 0, sizeof dealer->dealt);
    }
    dealer->step++;
    uint32_t best = dealer->share_count;
    for (uint32_t i = 0; i < dealer->share_count; i++) {
        uint64_t units = dealer->shares[i].units;
        uint64_t dealt = dealer->dealt[i];
        /* Within the rounded-up quota: dealt < units * step / total. */
        if (dealt * dealer->total >= units * dealer->step) continue;
        if (best == dealer->share_count) {
            best = i;
            continue;
        }
        uint64_t best_units = dealer->shares[best].units;
        if ((dealt + 1) * best_units < (dealer->dealt[best] + 1ull) * units) best = i;
    }
    assert(best < dealer->share_count && "some member is always below its quota");
    dealer->dealt[best]++;
    return best;
}

uint32_t tiers_stripe_last(const tiers_share *shares, uint32_t share_count, uint32_t turn)
{
    tiers_dealer dealer;
    if (share_count == 1) return 0;
    tiers_dealer_init(&dealer, shares, share_count, 0);
    uint32_t last = 0, steps = turn != 0 ? turn : dealer.total;
    while (dealer.step < steps)
        last = tiers_dealer_next(&dealer);
    return last;
}

/* The first unit is the one that a deal from the turn on gives. */
uint32_t tiers_stripe_odd(const tiers_location *location)
{
    tiers_dealer dealer;
    if (location->share_count == 1) return 0;
    if (!location->odd_first)
        return tiers_stripe_last(location->shares, location->share_count, location->turn);
    tiers_dealer_init(&dealer, location->shares, location->share_count, location->turn);
    return tiers_dealer_next(&dealer);
}

uint64_t tiers_stripe_share_bytes(const tiers_location *location, uint32_t index, uint32_t odd)
{
    const uint64_t unit_bytes = location->unit_bytes;
    uint64_t whole = location->shares[index].units * unit_bytes;
    uint64_t tail = location->bytes % unit_bytes;
    assert(location->shares[index].units > 0 && "a share that has no unit is left out");
    if (index != odd || tail == 0) return whole;
    return location->odd_first ? whole + tail : whole - (unit_bytes - tail);
}

/* ---- walk ---- */

/* The deal is repeated from the object's first unit, because it follows from shares and turn and
 * nothing else of it is stored. */

/* The walk starts at the first extent of its share; a transfer that begins inside the object skips
 * what lies before. */
void tiers_walk_init(tiers_walk *walk, const tiers_location *location, uint32_t share,
                     uint64_t offset, uint64_t bytes)
{
    assert(share < location->share_count && offset % TIERS_GRAIN_BYTES == 0);
    assert(bytes <= location->bytes && offset <= location->bytes - bytes);
    walk->location = location;
    walk->share = share;
    walk->extent = 0;
    walk->extent_used = 0;
    walk->offset = offset;
    walk->end = offset + bytes;
    walk->next = 0;
    walk->run_offset = 0;
    walk->run_bytes = 0;
    walk->run_open = false;
    tiers_dealer_init(&walk->dealer, location->shares, location->share_count, location->turn);
    while (location->extents[walk->extent].member != location->shares[share].member)
        walk->extent++;
    assert(walk->extent < location->extent_count && "every share has an extent");
}

/* Moves over `bytes` of this member's extents, which may cross into further ones. The extents of
 * one share follow each other in the list. */
static void walk_skip_bytes(tiers_walk *walk, uint64_t bytes)
{
    while (bytes > 0) {
        assert(walk->extent < walk->location->extent_count && "extents hold all units of a share");
        uint64_t left = walk->location->extents[walk->extent].bytes - walk->extent_used;
        uint64_t part = bytes < left ? bytes : left;
        walk->extent_used += part;
        bytes -= part;
        if (walk->extent_used == walk->location->extents[walk->extent].bytes) {
            walk->extent++;
            walk->extent_used = 0;
        }
    }
}

/* Deals on until the run has `wanted` bytes, ends at another member's unit, or all is dealt. Units
 * of other members end a run, because the object is not continuous across them. */
static void walk_extend_run(tiers_walk *walk, uint64_t wanted)
{
    while (walk->next < walk->end && (walk->run_bytes == 0 || walk->run_open)) {
        if (walk->run_bytes >= wanted) return;
        uint64_t start = walk->next;
        const uint64_t unit_bytes =
            start == 0 ? tiers_stripe_first_bytes(walk->location) : walk->location->unit_bytes;
        uint64_t end = walk->end - start < unit_bytes ? walk->end : start + unit_bytes;
        walk->next = start + unit_bytes;
        walk->run_open = tiers_dealer_next(&walk->dealer) == walk->share;
        if (!walk->run_open) continue;
        if (start < walk->offset) {
            uint64_t skipped = (end < walk->offset ? end : walk->offset) - start;
            walk_skip_bytes(walk, skipped);
            start += skipped;
            if (start == end) {
                walk->run_open = false;
                continue;
            }
        }
        if (walk->run_bytes == 0) walk->run_offset = start;
        walk->run_bytes += end - start;
    }
}

/* A piece ends where the run, the extent or the limit does, whichever comes first, so every piece
 * is one request. */
bool tiers_walk_has(tiers_walk *walk, uint32_t bytes_max)
{
    assert(bytes_max >= TIERS_GRAIN_BYTES && bytes_max % TIERS_GRAIN_BYTES == 0);
    walk_extend_run(walk, bytes_max);
    return walk->run_bytes != 0;
}

bool tiers_walk_next(tiers_walk *walk, uint32_t bytes_max, tiers_piece *piece_out)
{
    if (!tiers_walk_has(walk, bytes_max)) return false;
    const tiers_extent *extent = &walk->location->extents[walk->extent];
    uint64_t bytes = extent->bytes - walk->extent_used;
    if (bytes > walk->run_bytes) bytes = walk->run_bytes;
    if (bytes > bytes_max) bytes = bytes_max;
    *piece_out = (tiers_piece){.object_offset = walk->run_offset,
                               .device_offset = extent->offset + walk->extent_used,
                               .bytes = (uint32_t)bytes};
    walk->run_offset += bytes;
    walk->run_bytes -= bytes;
    walk_skip_bytes(walk, bytes);
    return true;
}

uint64_t tiers_stripe_ends(uint32_t members, uint64_t unit_bytes)
{
    return members > 1 ? members * (unit_bytes - TIERS_GRAIN_BYTES) : 0;
}
