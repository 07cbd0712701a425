/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tiers_stripe.c - shares by bandwidth, the deal order's balance, and the walk over a part.
 */

#include "cases.h"
#include "dice.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tiers/pool/location.h"
#include "tiers/pool/stripe.h"

TEST(shares_follow_bandwidth)
{
    uint64_t seed = 99;
    for (int round = 0; round < 5000; round++) {
        tiers_stripe_member members[TIERS_MEMBERS_MAX];
        uint32_t units_out[TIERS_MEMBERS_MAX];
        uint32_t count = 1 + (uint32_t)(dice_shift(&seed) % (round % 10 == 0 ? 64 : 8));
        uint32_t units = 1 + (uint32_t)(dice_shift(&seed) % (round % 3 == 0 ? 9000 : 40));
        double sum = 0;
        for (uint32_t i = 0; i < count; i++) {
            members[i].weight = (double)(1 + dice_shift(&seed) % 7000) * 1e6;
            members[i].room_units = UINT64_MAX;
            members[i].owed = (double)(dice_shift(&seed) % 400) / 100 - 2;
            sum += members[i].weight;
        }
        assert_ok(tiers_stripe_share(members, count, units, units_out, NULL));
        uint64_t given = 0;
        for (uint32_t i = 0; i < count; i++) {
            double exact = members[i].weight / sum * units;
            assert_true(units_out[i] + 1e-6 >= floor(exact));
            assert_true(units_out[i] <= floor(exact) + 1);
            given += units_out[i];
        }
        assert_int_equal(given, units);
    }
}

TEST(remainder_goes_to_the_largest_fractions)
{
    uint32_t out[3];
    /* 7 units over 5:3:2 = 3.5, 2.1, 1.4: one unit is left, for the first. */
    const tiers_stripe_member uneven[] = {{5, 99, 0}, {3, 99, 0}, {2, 99, 0}};
    assert_ok(tiers_stripe_share(uneven, 3, 7, out, NULL));
    assert_int_equal(out[0], 4);
    assert_int_equal(out[1], 2);
    assert_int_equal(out[2], 1);
    /* 5 units over three equals: the two left go to the lower two, not both to one. */
    const tiers_stripe_member equal[] = {{1, 99, 0}, {1, 99, 0}, {1, 99, 0}};
    assert_ok(tiers_stripe_share(equal, 3, 5, out, NULL));
    assert_int_equal(out[0], 2);
    assert_int_equal(out[1], 2);
    assert_int_equal(out[2], 1);
    /* 2 units over 1:3 = 0.5, 1.5: equal fractions, the larger weight wins. */
    const tiers_stripe_member tie[] = {{1, 99, 0}, {3, 99, 0}};
    assert_ok(tiers_stripe_share(tie, 2, 2, out, NULL));
    assert_int_equal(out[0], 0);
    assert_int_equal(out[1], 2);
}

/* Objects of few units in a row: each member gets its proportion of all of them, and no object
 * takes more than twice as long as it would have to. */
TEST(many_small_objects_keep_all_members_busy)
{
    static const double weights[][4] = {
        {100, 100, 200, 400}, {1, 1, 1, 1},   {1, 4}, {3, 5}, {1, 2, 3},
        {7, 7, 3.5, 3.5},     {10, 10, 10, 6}};
    for (uint32_t set = 0; set < sizeof weights / sizeof weights[0]; set++) {
        for (uint32_t units = 2; units < 40; units++) {
            tiers_stripe_member members[4] = {{0, 0, 0}};
            double owed[4] = {0}, sum = 0, slowest = 0;
            uint64_t given[4] = {0};
            uint32_t count = 0, out[4];
            for (; count < 4 && weights[set][count] > 0; count++) {
                members[count] = (tiers_stripe_member){weights[set][count], UINT64_MAX, 0};
                sum += weights[set][count];
            }
            for (uint32_t object = 0; object < 400; object++) {
                tiers_share shares[4];
                uint32_t used = 0;
                assert_ok(tiers_stripe_share(members, count, units, out, owed));
                for (uint32_t i = 0; i < count; i++) {
                    members[i].owed = owed[i];
                    given[i] += out[i];
                    if (out[i] > 0) shares[used++] = (tiers_share){.member = i, .units = out[i]};
                }
                /* A layout that a deal makes is not worth another one. */
                assert_true(tiers_stripe_gain(members, count, shares, used) == 1);
            }
            for (uint32_t i = 0; i < count; i++)
                slowest = fmax(slowest, (double)given[i] / weights[set][i]);
            assert_true(400.0 * units / sum / slowest > 0.97);
        }
    }
}

TEST(a_slow_member_gets_no_unit_for_what_it_is_owed)
{
    /* 3 units over 1:99: the slow one would make the object take 33 times as long. */
    tiers_stripe_member members[] = {{1, 99, 0}, {99, 99, 0}};
    double owed[2];
    uint32_t out[2];
    for (uint32_t object = 0; object < 500; object++) {
        assert_ok(tiers_stripe_share(members, 2, 3, out, owed));
        assert_int_equal(out[1], 3);
        members[0].owed = owed[0];
        members[1].owed = owed[1];
    }
    assert_true(fabs(owed[0]) + fabs(owed[1]) < 1);
}

TEST(a_layout_that_fell_behind_gains)
{
    tiers_stripe_member members[] = {{1, 99, 0}, {1, 99, 0}, {1, 99, 0}, {1, 99, 0}};
    const tiers_share shares[] = {{0, 16}, {1, 16}, {2, 16}, {3, 16}};
    assert_true(tiers_stripe_gain(members, 4, shares, 4) == 1);
    members[3].weight = 0.5; /* 32 against 64 / 3.5 */
    assert_true(tiers_stripe_gain(members, 4, shares, 4) > 1.6);
    members[3].weight = 0; /* gone */
    assert_true(tiers_stripe_gain(members, 4, shares, 4) > 1e6);
    members[3].weight = 1;
    assert_true(tiers_stripe_gain(members, 4, shares, 3) > 1.2); /* a member was added */
    for (uint32_t i = 0; i < 4; i++)
        members[i].room_units = 2;
    assert_true(tiers_stripe_gain(members, 4, shares, 3) == 1); /* there is no room to gain it */
}

TEST(a_full_members_share_moves_on)
{
    uint32_t out[3];
    const tiers_stripe_member tight[] = {{4, 2, 0}, {2, 99, 0}, {2, 99, 0}};
    assert_ok(tiers_stripe_share(tight, 3, 16, out, NULL));
    assert_int_equal(out[0], 2);
    assert_int_equal(out[1], 7);
    assert_int_equal(out[2], 7);
    const tiers_stripe_member full[] = {{4, 0, 0}, {2, 3, 0}, {0, 99, 0}};
    assert_ok(tiers_stripe_share(full, 3, 3, out, NULL));
    assert_int_equal(out[0], 0);
    assert_int_equal(out[1], 3);
    assert_int_equal(out[2], 0);
    assert_int_equal(tiers_stripe_share(full, 3, 4, out, NULL), KVT_E_SPACE);
}

TEST(room_is_never_exceeded)
{
    uint64_t seed = 7;
    for (int round = 0; round < 5000; round++) {
        tiers_stripe_member members[16];
        uint32_t out[16];
        uint32_t count = 1 + (uint32_t)(dice_shift(&seed) % 16);
        uint32_t units = 1 + (uint32_t)(dice_shift(&seed) % 300);
        uint64_t room = 0;
        for (uint32_t i = 0; i < count; i++) {
            members[i].weight = (double)(dice_shift(&seed) % 10);
            members[i].room_units = dice_shift(&seed) % 60;
            members[i].owed = (double)(dice_shift(&seed) % 400) / 100 - 2;
            if (members[i].weight > 0) room += members[i].room_units;
        }
        kvt_status status = tiers_stripe_share(members, count, units, out, NULL);
        assert_int_equal(status, room >= units ? KVT_OK : KVT_E_SPACE);
        if (status != KVT_OK) continue;
        uint64_t given = 0;
        for (uint32_t i = 0; i < count; i++) {
            assert_true(out[i] <= members[i].room_units);
            if (members[i].weight <= 0) assert_int_equal(out[i], 0);
            given += out[i];
        }
        assert_int_equal(given, units);
    }
}

/* After t units every member has its proportion to within less than one unit. */
static void check_deal(const tiers_share *shares, uint32_t count)
{
    tiers_dealer dealer;
    int64_t dealt[TIERS_MEMBERS_MAX] = {0};
    uint32_t last = 0;
    tiers_dealer_init(&dealer, shares, count, 0);
    int64_t total = dealer.total;
    for (int64_t t = 1; t <= total; t++) {
        last = tiers_dealer_next(&dealer);
        dealt[last]++;
        for (uint32_t i = 0; i < count; i++) {
            int64_t off = dealt[i] * total - (int64_t)shares[i].units * t;
            assert_true(off < total && off > -total);
        }
    }
    for (uint32_t i = 0; i < count; i++)
        assert_int_equal(dealt[i], shares[i].units);
    assert_int_equal(tiers_stripe_last(shares, count, 0), last);
}

TEST(every_prefix_is_balanced)
{
    tiers_share one_large[11] = {{0, 100}};
    for (uint32_t i = 1; i < 11; i++)
        one_large[i] = (tiers_share){.member = i, .units = 1};
    check_deal(one_large, 11);
    uint64_t seed = 3;
    for (int round = 0; round < 300; round++) {
        tiers_share shares[TIERS_MEMBERS_MAX];
        uint32_t count = 1 + (uint32_t)(dice_shift(&seed) % (round % 20 == 0 ? 64 : 6));
        for (uint32_t i = 0; i < count; i++) {
            uint32_t units = 1 + (uint32_t)(dice_shift(&seed) % (round % 2 == 0 ? 5 : 150));
            shares[i] = (tiers_share){.member = i, .units = units};
        }
        check_deal(shares, count);
        /* From any step on the deal goes round as it does from the first one, to the step
         * before. */
        tiers_dealer plain, turned;
        tiers_dealer_init(&plain, shares, count, 0);
        const uint32_t total = plain.total;
        for (uint32_t turn = 0; turn < total && turn < TIERS_TURN_MAX; turn++) {
            uint32_t last = 0;
            tiers_dealer_init(&turned, shares, count, turn);
            tiers_dealer_init(&plain, shares, count, 0);
            for (uint32_t i = 0; i < turn; i++)
                (void)tiers_dealer_next(&plain);
            for (uint32_t i = turn; i < total; i++)
                assert_int_equal(tiers_dealer_next(&turned), last = tiers_dealer_next(&plain));
            tiers_dealer_init(&plain, shares, count, 0);
            for (uint32_t i = 0; i < turn; i++)
                assert_int_equal(tiers_dealer_next(&turned), last = tiers_dealer_next(&plain));
            assert_int_equal(tiers_stripe_last(shares, count, turn), last);
        }
    }
}

TEST(the_deal_order_is_pinned)
{
    /* Stored objects depend on this order: changing it makes them unreadable. */
    const tiers_share shares[] = {{0, 2}, {3, 4}, {5, 1}};
    const uint32_t expected[] = {1, 0, 1, 1, 0, 1, 2};
    tiers_dealer dealer;
    tiers_dealer_init(&dealer, shares, 3, 0);
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++)
        assert_int_equal(tiers_dealer_next(&dealer), expected[i]);
    tiers_dealer_init(&dealer, shares, 3, 5);
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++)
        assert_int_equal(tiers_dealer_next(&dealer),
                         expected[(i + 5) % (sizeof expected / sizeof expected[0])]);
}

/* Builds a location whose extents are cut into random pieces, at made-up device offsets. */
static tiers_location *make_location(uint64_t *seed, uint32_t *members_out)
{
    uint32_t unit_bytes = TIERS_GRAIN_BYTES * (1 + (uint32_t)(dice_shift(seed) % 8));
    uint32_t count = 1 + (uint32_t)(dice_shift(seed) % 5);
    tiers_share shares[5];
    uint64_t units = 0;
    for (uint32_t i = 0; i < count; i++) {
        shares[i] = (tiers_share){.member = i, .units = 1 + (uint32_t)(dice_shift(seed) % 20)};
        units += shares[i].units;
    }
    uint64_t bytes = units * unit_bytes;
    const bool odd_first = dice_shift(seed) % 2 == 0;
    const uint64_t rest = dice_shift(seed) % (unit_bytes / TIERS_GRAIN_BYTES) * TIERS_GRAIN_BYTES;
    bytes = odd_first ? bytes + rest : bytes - rest;
    tiers_location *location = tiers_location_make(bytes, unit_bytes, shares, count);
    assert_non_null(location);
    assert_ok(tiers_location_room(location, 4096));
    location->odd_first = odd_first;
    location->turn =
        (uint8_t)(dice_shift(seed) % (units < TIERS_TURN_MAX ? units : TIERS_TURN_MAX));
    const uint32_t odd = tiers_stripe_odd(location);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t left = tiers_stripe_share_bytes(location, i, odd);
        uint64_t offset = TIERS_GRAIN_BYTES;
        while (left > 0) {
            uint64_t piece = TIERS_GRAIN_BYTES * (1 + dice_shift(seed) % 40);
            if (piece > left) piece = left;
            location->extents[location->extent_count++] =
                (tiers_extent){.member = i, .offset = offset, .bytes = piece};
            offset += piece + TIERS_GRAIN_BYTES;
            left -= piece;
        }
    }
    assert_ok(tiers_location_check(location));
    *members_out = count;
    return location;
}

/* Where byte `at` of the object lies, by the plain definition. */
static uint64_t find_byte(const tiers_location *location, uint64_t at, uint32_t *share_out)
{
    tiers_dealer dealer;
    tiers_dealer_init(&dealer, location->shares, location->share_count, location->turn);
    uint64_t inside[TIERS_MEMBERS_MAX] = {0};
    uint32_t share = 0;
    uint64_t start = 0, bytes = tiers_stripe_first_bytes(location);
    for (;;) {
        share = tiers_dealer_next(&dealer);
        if (at < start + bytes) break;
        inside[share] += bytes;
        start += bytes;
        bytes = location->unit_bytes;
    }
    uint64_t offset = inside[share] + at - start;
    *share_out = share;
    for (uint32_t i = 0; i < location->extent_count; i++) {
        const tiers_extent *extent = &location->extents[i];
        if (extent->member != location->shares[share].member) continue;
        if (offset < extent->bytes) return extent->offset + offset;
        offset -= extent->bytes;
    }
    fail_msg("byte outside the extents");
    return 0;
}

TEST(walks_cover_each_grain_once)
{
    uint64_t seed = 0xabcdef;
    for (int round = 0; round < 150; round++) {
        uint32_t count;
        tiers_location *location = make_location(&seed, &count);
        uint64_t units = tiers_location_unit_count(location);
        uint64_t offset = round % 2 == 0 ? 0 : dice_shift(&seed) % units * location->unit_bytes;
        uint64_t grains = (location->bytes - offset) / TIERS_GRAIN_BYTES;
        uint64_t bytes = (1 + dice_shift(&seed) % grains) * TIERS_GRAIN_BYTES;
        uint32_t piece_max = TIERS_GRAIN_BYTES * (1 + (uint32_t)(dice_shift(&seed) % 30));
        uint8_t *seen = test_zeros(bytes / TIERS_GRAIN_BYTES);
        for (uint32_t share = 0; share < count; share++) {
            tiers_walk walk;
            tiers_piece piece;
            uint64_t before = 0;
            tiers_walk_init(&walk, location, share, offset, bytes);
            while (tiers_walk_next(&walk, piece_max, &piece)) {
                assert_true(piece.bytes > 0 && piece.bytes <= piece_max);
                assert_true(piece.object_offset >= before && piece.object_offset >= offset);
                before = piece.object_offset + piece.bytes;
                assert_true(before <= offset + bytes);
                for (uint32_t i = 0; i < piece.bytes; i += TIERS_GRAIN_BYTES) {
                    uint32_t owner;
                    uint64_t where = find_byte(location, piece.object_offset + i, &owner);
                    assert_int_equal(owner, share);
                    assert_int_equal(where, piece.device_offset + i);
                    seen[(piece.object_offset + i - offset) / TIERS_GRAIN_BYTES]++;
                }
            }
        }
        for (uint64_t i = 0; i < bytes / TIERS_GRAIN_BYTES; i++)
            assert_int_equal(seen[i], 1);
        tiers_location_free(location);
    }
}
