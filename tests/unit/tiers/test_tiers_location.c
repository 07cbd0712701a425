/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tiers_location.c - the flat form of locations: round trips, damage, and hostile numbers.
 */

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "cases.h"
#include "pool_scratch.h"
#include "tiers/pool/location.h"
#include "tiers/pool/stripe.h"

enum { FLAT_MAX = 4096, MEMBERS = 3 };

static const uint64_t sizes[MEMBERS] = {2 << 20, 4 << 20, 1 << 20};
static const double speeds[MEMBERS] = {1e9, 3e9, 2e9};

typedef struct fixture {
    tiers_pool *pool;
    tiers_location *location;
    uint8_t flat[FLAT_MAX];
    size_t bytes;
} fixture;

TEST_BEFORE_EACH
{
    fixture *f = test_zeros(sizeof *f);
    tiers_location *holes[6];
    f->pool = pool_scratch_pool(sizes, speeds, MEMBERS);
    assert_non_null(f->pool);
    for (int i = 0; i < 6; i++)
        assert_ok(tiers_pool_reserve(f->pool, 200000, &holes[i]));
    assert_ok(tiers_pool_reserve(f->pool, 400000, &f->location));
    f->bytes = tiers_location_pack(f->location, f->flat, sizeof f->flat);
    assert_true(f->bytes <= sizeof f->flat);
    for (int i = 0; i < 6; i++)
        tiers_pool_release(f->pool, holes[i]);
    *state = f;
}

TEST_AFTER_EACH
{
    fixture *f = *state;
    tiers_pool_release(f->pool, f->location);
    tiers_pool_close(f->pool);
}

static void seal(uint8_t *flat, size_t bytes)
{
    uint64_t sum = XXH3_64bits(flat, bytes - 8);
    for (int i = 0; i < 8; i++)
        flat[bytes - 8 + (size_t)i] = (uint8_t)(sum >> (8 * i));
}

TEST(round_trip)
{
    fixture *f = *state;
    uint8_t again[FLAT_MAX];
    tiers_location *copy;
    assert_ok(tiers_location_unpack(f->flat, f->bytes, &copy));
    assert_int_equal(copy->bytes, f->location->bytes);
    assert_int_equal(tiers_location_pack(copy, again, sizeof again), f->bytes);
    assert_memory_equal(again, f->flat, f->bytes);
    assert_int_equal(tiers_location_pack(copy, NULL, 0), f->bytes);
    memset(again, 0xaa, sizeof again);
    assert_int_equal(tiers_location_pack(copy, again, f->bytes - 1), f->bytes);
    assert_int_equal(again[0], 0xaa);
    tiers_location_free(copy);
    tiers_location_free(NULL);
}

/* The first object's turn is 0. */
TEST(turns_are_kept)
{
    fixture *f = *state;
    tiers_pool *pool = pool_scratch_pool(sizes, speeds, MEMBERS);
    uint32_t turned = 0;
    for (int i = 0; i < 9; i++) {
        uint8_t flat[FLAT_MAX];
        tiers_location *location, *copy;
        assert_ok(tiers_pool_reserve(pool, 200000, &location));
        if (i == 0) assert_int_equal(location->turn, 0);
        size_t bytes = tiers_location_pack(location, flat, sizeof flat);
        assert_int_equal(flat[0], 2);
        assert_ok(tiers_location_unpack(flat, bytes, &copy));
        assert_int_equal(copy->turn, location->turn);
        tiers_location_free(copy);
        if (location->turn != 0) {
            const uint8_t wrong[] = {TIERS_TURN_MAX, 200};
            for (size_t k = 0; k < sizeof wrong; k++) {
                flat[24] = wrong[k];
                seal(flat, bytes);
                assert_int_equal(tiers_location_unpack(flat, bytes, &copy), KVT_E_CORRUPT);
            }
            turned++;
        }
        tiers_pool_release(pool, location);
    }
    assert_true(turned >= 6);
    tiers_pool_close(pool);
    (void)f;
}

TEST(every_truncation_and_bit_flip_is_corrupt)
{
    fixture *f = *state;
    tiers_location *out = NULL;
    for (size_t bytes = 0; bytes < f->bytes; bytes++) {
        /* A copy of exact size, so that reading past the end is seen by the sanitizer. */
        uint8_t *cut = test_alloc(bytes + (bytes == 0));
        memcpy(cut, f->flat, bytes);
        assert_int_equal(tiers_location_unpack(cut, bytes, &out), KVT_E_CORRUPT);
    }
    for (size_t bit = 0; bit < f->bytes * 8; bit++) {
        f->flat[bit / 8] ^= (uint8_t)(1u << (bit % 8));
        assert_int_equal(tiers_location_unpack(f->flat, f->bytes, &out), KVT_E_CORRUPT);
        f->flat[bit / 8] ^= (uint8_t)(1u << (bit % 8));
    }
    assert_null(out);
}

/* With the checksum made right again the damage reaches the checks behind it. */
TEST(sealed_damage_never_leaves_the_members)
{
    fixture *f = *state;
    uint32_t adopted = 0;
    uint64_t seed = 17;
    tiers_pool_release(f->pool, f->location); /* so that sound variations find room */
    f->location = NULL;
    const uint8_t values[] = {0x00, 0x01, 0x02, 0x10, 0x7f, 0x80, 0xff};
    for (size_t at = 0; at < f->bytes - 8; at++) {
        for (size_t v = 0; v < sizeof values + 8; v++) {
            uint8_t flat[FLAT_MAX];
            memcpy(flat, f->flat, f->bytes);
            uint8_t flipped = (uint8_t)(flat[at] ^ (1u << v % 8));
            flat[at] = v < sizeof values ? values[v] : flipped;
            if (v % 3 == 2) flat[pool_scratch_random(&seed) % (f->bytes - 8)] ^= 0x10;
            seal(flat, f->bytes);
            tiers_location *location = NULL;
            tiers_pool *pool = f->pool;
            uint64_t used = pool_scratch_used(pool);
            if (tiers_location_unpack(flat, f->bytes, &location) != KVT_OK) continue;
            if (tiers_pool_adopt(pool, location) == KVT_OK) {
                /* What adopt accepted lies inside the members and does not overlap anything
                 * held. */
                for (uint32_t i = 0; i < location->extent_count; i++) {
                    const tiers_extent *extent = &location->extents[i];
                    assert_true(extent->member < MEMBERS);
                    assert_true(extent->offset + extent->bytes <= sizes[extent->member]);
                    for (uint32_t j = 0; j < i; j++) {
                        const tiers_extent *other = &location->extents[j];
                        assert_true(other->member != extent->member ||
                                    other->offset + other->bytes <= extent->offset ||
                                    extent->offset + extent->bytes <= other->offset);
                    }
                }
                assert_int_equal(pool_scratch_used(pool), used + location->bytes);
                tiers_pool_release(pool, location);
                adopted++;
            } else {
                tiers_location_free(location);
            }
            assert_int_equal(pool_scratch_used(pool), used);
        }
    }
    /* Moves of an extent to another free place are sound in themselves. */
    assert_true(adopted > 0);
}

/* Each disagreement between the numbers is seen, one by one. */
TEST_WITH(NULL, NULL, disagreeing_numbers_are_corrupt)
{
    enum { UNIT = 8192, GRAIN = TIERS_GRAIN_BYTES };
    const tiers_share sound_shares[2] = {{.member = 0, .units = 1}, {.member = 2, .units = 2}};
    const tiers_extent sound_extents[3] = {{.member = 0, .offset = 0, .bytes = 2 * GRAIN},
                                           {.member = 2, .offset = 0, .bytes = 2 * GRAIN},
                                           {.member = 2, .offset = 5 * GRAIN, .bytes = GRAIN}};
    for (int wrong = 0; wrong <= 18; wrong++) {
        tiers_share shares[2];
        tiers_extent extents[3];
        memcpy(shares, sound_shares, sizeof shares);
        memcpy(extents, sound_extents, sizeof extents);
        /* The short unit is the deal's last one, which is member 2's. */
        tiers_location location = {.bytes = 5 * GRAIN,
                                   .unit_bytes = UNIT,
                                   .share_count = 2,
                                   .extent_count = 3,
                                   .shares = shares,
                                   .extents = extents};
        switch (wrong) {
        case 0: break;
        case 1: location.bytes = 0; break;
        case 2: location.bytes += 512; break;
        case 3: location.unit_bytes = 0; break;
        case 4: location.unit_bytes = 8192 + 512; break;
        case 5: shares[0].units = 0; break;
        case 6: shares[1].units = 3; break;
        case 7: shares[1].member = 0; break;
        case 8: shares[1].member = TIERS_MEMBERS_MAX; break;
        case 9: extents[0].reserved = 1; break;
        case 10: extents[1].member = 0; break;
        case 11: extents[1].offset = 512; break;
        case 12: extents[2].bytes = 2 * GRAIN; break;
        case 13: extents[2].offset = UINT64_MAX - GRAIN + 1; break;
        case 14: location.extent_count = 2; break;
        case 15: extents[1].bytes = 3 * GRAIN; break; /* one extent too many */
        case 16: extents[1].bytes = 0; break;
        case 17: location.turn = 3; break; /* of three units */
        case 18: location.turn = 2; break; /* the short unit is member 0's then */
        }
        assert_int_equal(tiers_location_check(&location), wrong == 0 ? KVT_OK : KVT_E_CORRUPT);
    }
    /* A share of no units beside shares that add up. */
    tiers_share zero[2] = {{.member = 0, .units = 1}, {.member = 2, .units = 0}};
    tiers_extent extent = {.member = 0, .offset = 0, .bytes = UNIT};
    tiers_location location = {.bytes = UNIT,
                               .unit_bytes = UNIT,
                               .share_count = 2,
                               .extent_count = 1,
                               .shares = zero,
                               .extents = &extent};
    assert_int_equal(tiers_location_check(&location), KVT_E_CORRUPT);
    /* The same member twice, with everything else in order. */
    tiers_share twice[2] = {{.member = 1, .units = 1}, {.member = 1, .units = 1}};
    tiers_extent halves[2] = {{.member = 1, .offset = 0, .bytes = UNIT},
                              {.member = 1, .offset = UNIT, .bytes = UNIT}};
    location = (tiers_location){.bytes = 2 * UNIT,
                                .unit_bytes = UNIT,
                                .share_count = 2,
                                .extent_count = 2,
                                .shares = twice,
                                .extents = halves};
    assert_int_equal(tiers_location_check(&location), KVT_E_CORRUPT);
    twice[0].member = halves[0].member = 0;
    assert_ok(tiers_location_check(&location));
}

TEST(huge_numbers_cost_nothing)
{
    fixture *f = *state;
    tiers_location *out = NULL;
    uint8_t flat[24 + 8 + 24 + 8] = {1};
    flat[4 + 1] = 0x10; /* unit 4096 */
    flat[8 + 5] = 0x10; /* 16 TiB */
    flat[16] = 1;
    flat[20] = 1;
    flat[24 + 7] = 0xff; /* units */
    seal(flat, sizeof flat);
    assert_int_equal(tiers_location_unpack(flat, sizeof flat, &out), KVT_E_CORRUPT);
    memset(flat + 20, 0xff, 4); /* extents */
    seal(flat, sizeof flat);
    assert_int_equal(tiers_location_unpack(flat, sizeof flat, &out), KVT_E_CORRUPT);
    (void)f;
}

TEST(adopt_refuses_overlap_and_absent_members)
{
    fixture *f = *state;
    tiers_location *copy;
    uint64_t used = pool_scratch_used(f->pool);
    assert_ok(tiers_location_unpack(f->flat, f->bytes, &copy));
    assert_int_equal(tiers_pool_adopt(f->pool, copy), KVT_E_CORRUPT); /* held by the original */
    assert_int_equal(pool_scratch_used(f->pool), used);

    tiers_member_options members[MEMBERS];
    for (int i = 0; i < MEMBERS; i++)
        members[i] = pool_scratch_member(i == 1 ? NULL : pool_scratch_memory(sizes[i]), speeds[i]);
    tiers_pool_options options = {.unit_bytes = 16384, .capacity_bytes = 7 << 20};
    tiers_pool *pool;
    assert_ok(tiers_pool_open(members, MEMBERS, &options, &pool, NULL, 0));
    assert_int_equal(tiers_pool_adopt(pool, copy), KVT_E_GONE);
    tiers_location *other;
    assert_ok(tiers_pool_reserve(pool, 100000, &other));
    for (uint32_t i = 0; i < other->share_count; i++)
        assert_int_not_equal(other->shares[i].member, 1);
    tiers_pool_release(pool, other);
    tiers_member_stats stats;
    assert_ok(tiers_pool_member(pool, 1, &stats));
    assert_int_equal(stats.state, KVT_DEVICE_ABSENT);
    assert_int_equal(tiers_pool_member(pool, MEMBERS, &stats), KVT_END);
    tiers_pool_close(pool);

    pool = pool_scratch_pool(sizes, speeds, 2); /* the third member does not exist here */
    assert_int_equal(tiers_pool_adopt(pool, copy), KVT_E_CORRUPT);
    tiers_pool_close(pool);
    tiers_location_free(copy);
}

TEST(adopted_objects_read_back)
{
    fixture *f = *state;
    uint64_t bytes = f->location->bytes;
    char *buffer = pool_scratch_buffer(bytes);
    tiers_location *copy;
    pool_scratch_fill(buffer, bytes, 5);
    assert_ok(tiers_pool_transfer(f->pool, KVT_IO_WRITE, f->location, buffer, bytes));
    tiers_pool_release(f->pool, f->location);
    f->location = NULL;
    assert_ok(tiers_location_unpack(f->flat, f->bytes, &copy));
    assert_ok(tiers_pool_adopt(f->pool, copy));
    assert_int_equal(pool_scratch_used(f->pool), bytes);
    memset(buffer, 0, bytes);
    assert_ok(tiers_pool_transfer(f->pool, KVT_IO_READ, copy, buffer, bytes));
    assert_true(pool_scratch_holds(buffer, bytes, 5));
    tiers_pool_release(f->pool, copy);
}
